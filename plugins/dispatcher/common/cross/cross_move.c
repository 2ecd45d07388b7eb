/* Crossing: the movements. A row is read once and written to each member that needs it; what lands here anyway does not
 * pass a window. Loops are cut into pieces for the device's threads; each piece orders its own stores. See cross.h. */
#include <inttypes.h>

#include "cross.h"

enum { LINE = 64, PIECE = 1 << 16 }; /* bytes of rows in a piece of a loop, about */

/* One plane of a movement, as the loops see it. */
typedef struct move {
    const cross *c;
    const cross_plan *p;
    const cross_plane *plane;
    const moe_rows *rows;
    uint64_t at; /* of the plane in a half of a window */
    int64_t block;
    int past, own; /* own: the rows that stay with this member, in place of the others' */
} move;

static int64_t blocks(int64_t n, int64_t block) {
    return (n + block - 1) / block;
}

static char *half_of(const cross *c, uint32_t member) {
    const cross_memory *m = c->memory;
    return (char *)m->window.peers[member] + (m->turn & 1) * m->half;
}
/* Row i of the plane in this movement's half of a member's window. */
static char *window_row(const move *v, uint32_t member, int64_t i) {
    return half_of(v->c, member) + v->at + i * v->plane->width;
}
/* Where this member finds position (or entry) i of those that begin at first [n + 1]: its own pass no window. */
static int64_t place_in(const cross *c, const int64_t *first, int64_t i) {
    return i < first[c->me] ? i : i - (first[c->me + 1] - first[c->me]);
}
static uint64_t plane_end(const cross *c, uint64_t at, int64_t width) {
    const uint64_t end = at + (uint64_t)c->window_rows * (uint64_t)width;
    return (end + LINE - 1) / LINE * LINE;
}
static float *window_scalars(const cross *c, uint32_t member, uint64_t at) {
    return (float *)(void *)(half_of(c, member) + at);
}

static const char *token_row(const cross_side *side, int64_t t, int64_t width) {
    if (t < side->own_first || t >= side->own_end) return side->rows + t * width;
    return side->own + side->own_index[t - side->own_first] * width;
}

int cross_is_large(const cross *c, int64_t rows, int64_t width) {
    return rows * width * c->d->members >= ROWS_LARGE_BYTES;
}

static move move_of(const cross *c, const cross_plan *p, const cross_call *call, uint32_t i) {
    move v = {.c = c, .p = p, .plane = &call->planes[i], .rows = call->rows};
    for (uint32_t j = 0; j < i; j++) v.at = plane_end(c, v.at, call->planes[j].width);
    v.block = disp_max(1, PIECE / disp_max(1, v.plane->width));
    v.past = cross_is_large(c, p->in_entry[c->n], v.plane->width);
    return v;
}

/* ---- dispatch ---- */
static void send_tokens(void *arg, int64_t piece, uint32_t worker) {
    const move *v = arg;
    const cross_plan *p = v->p;
    const int64_t end = disp_min(p->head[0], (piece + 1) * v->block), width = v->plane->width;
    (void)worker;
    for (int64_t t = piece * v->block; t < end; t++)
        for (int64_t h = p->hop_first[t]; h < p->hop_first[t + 1]; h++) {
            const uint32_t m = p->hop_member[h];
            if (m == v->c->me) continue;
            char *to = window_row(v, m, p->there_row[m] + p->hop_at[h] - p->out_first[m]);
            v->c->kernel->copy(to, token_row(&v->plane->tokens, t, width), width, v->past);
        }
    v->c->kernel->done();
}

/* Rows that came, [in_first of 0, .. of n), to where they are wanted; those of this member, or those of the others. */
static void spread_rows(void *arg, int64_t piece, uint32_t worker) {
    const move *v = arg;
    const cross *c = v->c;
    const cross_plan *p = v->p;
    const int64_t end = disp_min(p->in_first[c->n], (piece + 1) * v->block), width = v->plane->width,
                  own = p->in_first[c->me], own_end = p->in_first[c->me + 1];
    (void)worker;
    for (int64_t i = piece * v->block; i < end; i++) {
        const int is_own = i >= own && i < own_end;
        if (is_own != v->own) continue;
        const char *from = is_own ? token_row(&v->plane->tokens, p->token[p->out_first[c->me] + i - own], width)
                                  : window_row(v, c->me, place_in(c, p->in_first, i));
        for (int64_t e = p->in_end[i]; e < p->in_end[i + 1]; e++)
            c->kernel->copy(v->plane->experts + p->in_row[e] * width, from, width, v->past);
    }
    c->kernel->done();
}

static void clear_padding(const move *v) {
    const moe_rows *rows = v->rows;
    for (uint32_t g = 0; g < rows->groups; g++) {
        const int64_t from = rows->dev_offsets[g] + rows->dev_counts[g], to = rows->dev_offsets[g + 1];
        v->c->kernel->zero(v->plane->experts + from * v->plane->width, (to - from) * v->plane->width, v->past);
    }
    v->c->kernel->done();
}

static void send_scalars(const cross *c, const cross_plan *p, const cross_call *call, uint64_t at) {
    for (uint32_t m = 0; m < c->n; m++) {
        if (m == c->me) continue;
        float *to = window_scalars(c, m, at) + p->there_entry[m];
        for (int64_t e = p->out_entry[m]; e < p->out_entry[m + 1]; e++) *to++ = call->scalars[p->scalar[e]];
    }
}

static void spread_scalars(const cross *c, const cross_plan *p, const cross_call *call, uint64_t at) {
    const moe_rows *rows = call->rows;
    for (uint32_t g = 0; g < rows->groups; g++)
        for (int64_t r = rows->dev_offsets[g] + rows->dev_counts[g]; r < rows->dev_offsets[g + 1]; r++)
            call->row_scalar[r] = 0;
    const int64_t *own = p->scalar + p->out_entry[c->me] - p->in_entry[c->me];
    for (uint32_t s = 0; s < c->n; s++)
        for (int64_t e = p->in_entry[s]; e < p->in_entry[s + 1]; e++)
            call->row_scalar[p->in_row[e]] =
                s == c->me ? call->scalars[own[e]] : window_scalars(c, c->me, at)[place_in(c, p->in_entry, e)];
}

/* ---- combine ---- */
/* Sums what each row of the others' tokens became here, and gives it back. */
static void return_rows(void *arg, int64_t piece, uint32_t worker) {
    const move *v = arg;
    const cross *c = v->c;
    const cross_plan *p = v->p;
    const int64_t end = disp_min(p->in_first[c->n], (piece + 1) * v->block), width = v->plane->width;
    const void *lists[2][CROSS_LIST];
    int64_t lengths[2] = {0, 0}, i = piece * v->block;
    uint32_t s = 0;
    (void)worker;
    for (int64_t turn = 0; i <= end; i++, turn ^= 1) { /* the list of row i is made while that of i - 1 is summed */
        lengths[turn] = 0;
        for (int64_t e = i < end ? p->in_end[i] : 0; i < end && e < p->in_end[i + 1]; e++)
            lists[turn][lengths[turn]++] = v->plane->experts + p->in_row[e] * width;
        const int64_t before = i - 1;
        if (before < piece * v->block) continue;
        while (before >= p->in_first[s + 1]) s++;
        if (s == c->me) continue;
        const rows_list list = {
            .rows = lists[turn ^ 1], .ahead = lists[turn], .n = lengths[turn ^ 1], .n_ahead = lengths[turn]};
        c->kernel->sum(window_row(v, s, p->back_row[s] + before - p->in_first[s]), &list,
                       width / (v->plane->narrow ? 2 : 4), v->plane->narrow, v->past);
    }
    c->kernel->done();
}

/* The rows that make token t, by member: what came back, and this member's own rows, which are a part. */
static rows_list list_token(const move *v, int64_t t, const void **rows) {
    const cross *c = v->c;
    const cross_plan *p = v->p;
    const int64_t width = v->plane->width;
    rows_list list = {.rows = rows};
    for (int64_t h = p->hop_first[t]; h < p->hop_first[t + 1]; h++) {
        const int64_t at = p->hop_at[h], i = p->in_first[c->me] + at - p->out_first[c->me];
        if (p->hop_member[h] != c->me) {
            rows[list.n++] = window_row(v, c->me, place_in(c, p->out_first, at));
            continue;
        }
        list.part = list.n;
        for (int64_t e = p->in_end[i]; e < p->in_end[i + 1]; e++)
            rows[list.n++] = v->plane->experts + p->in_row[e] * width;
        list.part_end = list.n;
    }
    return list;
}

static void sum_tokens(void *arg, int64_t piece, uint32_t worker) {
    const move *v = arg;
    const int64_t from = piece * v->block, end = disp_min(v->p->head[0], from + v->block), width = v->plane->width;
    const void *rows[2][CROSS_LIST];
    rows_list list = {0}, next = {0};
    (void)worker;
    for (int64_t t = from; t <= end; t++) { /* the list of token t is made while t - 1 is summed */
        list = next;
        if (t < end) next = list_token(v, t, rows[t & 1]);
        if (t == from) continue;
        list.ahead = next.rows;
        list.n_ahead = t < end ? next.n : 0;
        v->c->kernel->sum(v->plane->tokens.rows + (t - 1) * width, &list, width / (v->plane->narrow ? 2 : 4),
                          v->plane->narrow, v->past);
    }
    v->c->kernel->done();
}

static void return_scalars(const cross *c, const cross_plan *p, const cross_call *call, uint64_t at) {
    for (uint32_t s = 0; s < c->n; s++) {
        if (s == c->me) continue;
        float *to = window_scalars(c, s, at) + p->back_entry[s];
        for (int64_t e = p->in_entry[s]; e < p->in_entry[s + 1]; e++) *to++ = call->row_scalar[p->in_row[e]];
    }
}

/* Each to its entry; an entry that several members have gets their sum, in order. */
static void sum_scalars(const cross *c, const cross_plan *p, const cross_call *call, uint64_t at) {
    memset(call->scalars, 0, (size_t)p->head[1] * sizeof *call->scalars);
    const int64_t *own = p->in_row + p->in_entry[c->me] - p->out_entry[c->me];
    for (uint32_t m = 0; m < c->n; m++)
        for (int64_t e = p->out_entry[m]; e < p->out_entry[m + 1]; e++)
            call->scalars[p->scalar[e]] +=
                m == c->me ? call->row_scalar[own[e]] : window_scalars(c, c->me, at)[place_in(c, p->out_entry, e)];
}

/* ---- movements ---- */
static moe_status check_call(const cross *c, const cross_call *call, uint64_t *scalars_at, moe_err *err) {
    *scalars_at = 0;
    for (uint32_t i = 0; i < call->n_planes; i++) *scalars_at = plane_end(c, *scalars_at, call->planes[i].width);
    const uint64_t scalars = call->scalars ? 4 * (uint64_t)c->window_entries : 0;
    if (c->n < 2 || *scalars_at + scalars <= c->half) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "%s: layer %u: planes take %" PRIu64 " bytes of a window of %" PRIu64, c->d->name,
                    c->d->layer, *scalars_at + scalars, c->half);
}

/* Everybody has written; what this member wrote is out. */
static moe_status meet(const cross *c, const cross_call *call, moe_err *err) {
    c->kernel->done();
    return c->n > 1 ? c->d->comm->barrier(c->d->comm_self, c->group, call->stream, err) : MOE_OK;
}

static void spread_all(const cross *c, const cross_plan *p, const cross_call *call, int own) {
    for (uint32_t i = 0; i < call->n_planes; i++) {
        move v = move_of(c, p, call, i);
        v.own = own;
        if (own) clear_padding(&v);
        if (own || c->n > 1) cross_run(c, blocks(p->in_first[c->n], v.block), spread_rows, &v);
    }
}

moe_status cross_dispatch(const cross *c, const cross_plan *p, const cross_call *call, moe_err *err) {
    uint64_t scalars_at;
    moe_status s = check_call(c, call, &scalars_at, err);
    if (s != MOE_OK) return disp_end_all(c->d, s, err);
    for (uint32_t i = 0; i < call->n_planes && c->n > 1; i++) {
        move v = move_of(c, p, call, i);
        cross_run(c, blocks(p->head[0], v.block), send_tokens, &v);
    }
    if (call->scalars) send_scalars(c, p, call, scalars_at);
    spread_all(c, p, call, 1);
    s = meet(c, call, err);
    if (s != MOE_OK) return s;
    spread_all(c, p, call, 0);
    if (call->scalars) spread_scalars(c, p, call, scalars_at);
    if (c->memory) c->memory->turn++;
    return MOE_OK;
}

moe_status cross_combine(const cross *c, const cross_plan *p, const cross_call *call, moe_err *err) {
    uint64_t scalars_at;
    moe_status s = check_call(c, call, &scalars_at, err);
    if (s != MOE_OK) return disp_end_all(c->d, s, err);
    for (uint32_t i = 0; i < call->n_planes && c->n > 1; i++) {
        move v = move_of(c, p, call, i);
        cross_run(c, blocks(p->in_first[c->n], v.block), return_rows, &v);
    }
    if (call->scalars) return_scalars(c, p, call, scalars_at);
    s = meet(c, call, err);
    if (s != MOE_OK) return s;
    for (uint32_t i = 0; i < call->n_planes; i++) {
        move v = move_of(c, p, call, i);
        cross_run(c, blocks(p->head[0], v.block), sum_tokens, &v);
    }
    if (call->scalars) sum_scalars(c, p, call, scalars_at);
    if (c->memory) c->memory->turn++;
    return MOE_OK;
}

uint64_t cross_sent(const cross *c, const cross_plan *p, int32_t direction, int64_t width, int scalars, uint32_t m) {
    const int64_t *first = direction == MOE_DISPATCH ? p->out_first : p->in_first,
                  *entry = direction == MOE_DISPATCH ? p->out_entry : p->in_entry;
    if (m == c->me) return 0;
    return (uint64_t)((first[m + 1] - first[m]) * width + (scalars ? 4 * (entry[m + 1] - entry[m]) : 0));
}

/* ---- rows without windows ---- */
static int64_t block_of(int64_t width) {
    return disp_max(1, PIECE / disp_max(1, width));
}

static void sum_piece(void *arg, int64_t piece, uint32_t worker) {
    const cross_sums *v = arg;
    const cross_plan *p = v->p;
    const int64_t block = block_of(v->width), end = disp_min(p->head[0], (piece + 1) * block);
    const void *list[CROSS_LIST];
    (void)worker;
    for (int64_t t = piece * block; t < end; t++) {
        int64_t n = 0;
        for (int64_t h = p->hop_first[t]; h < p->hop_first[t + 1]; h++)
            list[n++] = p->hop_member[h] == v->c->me ? v->own + (p->hop_at[h] - p->out_first[v->c->me]) * v->width
                                                     : v->rows + p->hop_at[h] * v->width;
        const rows_list rows = {.rows = list, .n = n};
        v->c->kernel->sum(v->to + t * v->width, &rows, v->width / (v->narrow ? 2 : 4), v->narrow, v->past);
    }
    v->c->kernel->done();
}

void cross_sum_positions(const cross_sums *s) {
    cross_run(s->c, blocks(s->p->head[0], block_of(s->width)), sum_piece, (void *)(uintptr_t)s);
}

static void copy_piece(void *arg, int64_t piece, uint32_t worker) {
    const cross_rows *v = arg;
    const int64_t block = block_of(v->width), end = disp_min(v->n, (piece + 1) * block);
    (void)worker;
    for (int64_t i = piece * block; i < end; i++)
        v->c->kernel->copy(v->to + i * v->width, v->from + (v->index ? v->index[i] : i) * v->width, v->width, v->past);
    v->c->kernel->done();
}

void cross_copy_rows(const cross_rows *r) {
    cross_run(r->c, blocks(r->n, block_of(r->width)), copy_piece, (void *)(uintptr_t)r);
}
