/* Crossing: the plan of a routing. Each member counts, tells how many rows and entries it has for each other, and sends
 * every member the list of what to do with its rows. See cross.h. */
#include <inttypes.h>

#include "cross.h"

/* Layout's memory: one block, taken piece by piece. */
typedef struct passing {
    int64_t *sizes;                                  /* [n, 2n] of all members */
    int64_t *next_row, *next_entry;                  /* [n] cursors */
    uint64_t *in_at, *in_bytes, *out_at, *out_bytes; /* [n] of all_to_all_v */
    char *out, *in;                                  /* lists, member by member */
} passing;

static void *take(char **at, uint64_t bytes) {
    void *p = *at;
    *at += (bytes + 7) / 8 * 8;
    return p;
}

static void take_lists(const cross *c, cross_plan *p, char **at) {
    p->in_end = take(at, 8 * (uint64_t)(c->rows_in + 1));
    p->in_row = take(at, 8 * (uint64_t)c->entries_in);
    p->in_place = take(at, 4 * (uint64_t)c->entries_in);
}

cross_plan cross_plan_at(const cross *c, void *lasting, void *from) {
    const uint64_t n = c->n, crossings = (uint64_t)c->crossings;
    char *at = lasting, *other = from;
    cross_plan p = {.head = take(&at, 16)};
    int64_t **const ends[] = {&p.out_first, &p.out_entry, &p.in_first, &p.in_entry};
    int64_t **const begins[] = {&p.there_row, &p.there_entry, &p.back_row, &p.back_entry};
    for (int i = 0; i < 4; i++) *ends[i] = take(&at, 8 * (n + 1));
    for (int i = 0; i < 4; i++) *begins[i] = take(&at, 8 * n);
    p.token = take(&at, 8 * crossings);
    p.scalar = take(&at, 8 * (uint64_t)c->out_entries);
    p.hop_first = take(&at, 8 * (uint64_t)(c->tokens + 1));
    p.hop_at = take(&at, 8 * crossings);
    p.hop_member = take(&at, 4 * crossings);
    if (c->expands || from) take_lists(c, &p, c->expands ? &at : &other);
    return p;
}

static passing passing_at(const cross *c, void *memory) {
    const uint64_t n = c->n;
    cross_plan lists;
    char *at = memory;
    if (!c->expands) take_lists(c, &lists, &at);
    passing w = {.sizes = take(&at, 16 * n * n)};
    w.next_row = take(&at, 8 * n);
    w.next_entry = take(&at, 8 * n);
    uint64_t **const args[] = {&w.in_at, &w.in_bytes, &w.out_at, &w.out_bytes};
    for (int i = 0; i < 4; i++) *args[i] = take(&at, 8 * n);
    w.out = at;
    w.in =
        at + 8 * (uint64_t)(c->crossings + c->out_entries + c->n) + 8 * (uint64_t)((c->out_entries + c->n) / 2 + c->n);
    return w;
}

/* ---- what one member sends another: the end of each row's entries (counted from 0), their rows, their places ---- */
static uint64_t list_bytes(int64_t rows, int64_t entries) {
    return 8 * (uint64_t)(rows + entries) + ((uint64_t)entries * 4 + 7) / 8 * 8;
}
typedef struct list {
    int64_t *end, *row;
    uint32_t *place;
} list;
static list list_at(char *memory, int64_t rows, int64_t entries) {
    list l = {.end = (int64_t *)(void *)memory};
    l.row = l.end + rows;
    l.place = (uint32_t *)(void *)(l.row + entries);
    return l;
}

/* ---- this member's side ---- */
static int64_t first_of(const cross_input *in, int64_t t) {
    return in->first ? in->first[t] : t * in->k;
}

void cross_count(const cross *c, const cross_input *in, int64_t *sizes) {
    memset(sizes, 0, 16 * (size_t)c->n);
    for (int64_t t = 0; t < in->tokens; t++) {
        const int64_t from = first_of(in, t), to = first_of(in, t + 1);
        for (int64_t e = from; e < to; e++) {
            if (in->rows[e] < 0) continue;
            for (uint32_t m = c->low[in->places[e]]; m < c->high[in->places[e]]; m++) {
                int seen = 0; /* by an entry before: whose place has this member too */
                for (int64_t b = from; b < e && !seen; b++)
                    seen = in->rows[b] >= 0 && c->low[in->places[b]] <= m && m < c->high[in->places[b]];
                sizes[2 * m] += !seen;
                sizes[2 * m + 1]++;
            }
        }
    }
}

/* The list for member m, once the plan says how long it is. */
static list list_for(const cross_plan *p, const passing *w, uint32_t m) {
    return list_at(w->out + w->in_at[m], p->out_first[m + 1] - p->out_first[m], p->out_entry[m + 1] - p->out_entry[m]);
}

/* A new position of token t for member m, among the token's hops [from, to), which are by member. */
static void add_hop(const cross_plan *p, int64_t from, int64_t to, uint32_t m, int64_t position) {
    int64_t h = to;
    for (; h > from && p->hop_member[h - 1] > m; h--) {
        p->hop_member[h] = p->hop_member[h - 1];
        p->hop_at[h] = p->hop_at[h - 1];
    }
    p->hop_member[h] = m;
    p->hop_at[h] = position;
}

/* Entry e of token t goes to member m, with the token's row, which the member may have already. */
static void add_entry(const cross_plan *p, const passing *w, const cross_input *in, int64_t t, int64_t e, uint32_t m) {
    const list l = list_for(p, w, m);
    const int64_t at = w->next_entry[m]++;
    int64_t i = w->next_row[m];
    if (i == 0 || p->token[p->out_first[m] + i - 1] != t) {
        p->token[p->out_first[m] + i] = t;
        add_hop(p, p->hop_first[t], p->hop_first[t + 1]++, m, p->out_first[m] + i);
        w->next_row[m] = ++i;
    }
    l.end[i - 1] = at + 1;
    l.row[at] = in->rows[e];
    l.place[at] = in->places[e];
    p->scalar[p->out_entry[m] + at] = e;
}

static void fill(const cross *c, const cross_plan *p, const passing *w, const cross_input *in) {
    memset(w->next_row, 0, 8 * (size_t)c->n);
    memset(w->next_entry, 0, 8 * (size_t)c->n);
    p->head[0] = in->tokens;
    p->head[1] = first_of(in, in->tokens);
    p->hop_first[0] = 0;
    for (int64_t t = 0; t < in->tokens; t++) {
        p->hop_first[t + 1] = p->hop_first[t];
        for (int64_t e = first_of(in, t); e < first_of(in, t + 1); e++)
            for (uint32_t m = in->rows[e] < 0 ? 0 : c->low[in->places[e]];
                 m < (in->rows[e] < 0 ? 0 : c->high[in->places[e]]); m++)
                add_entry(p, w, in, t, e, m);
    }
}

/* ---- all members ---- */
/* Prefix sums of sizes, which is [n][2] of member s at s * stride. */
static void place(const cross *c, const cross_plan *p, const int64_t *sizes, int64_t stride) {
    p->out_first[0] = p->out_entry[0] = p->in_first[0] = p->in_entry[0] = 0;
    for (uint32_t m = 0; m < c->n; m++) {
        const int64_t *mine = sizes + c->me * stride + 2 * m, *its = sizes + m * stride;
        p->out_first[m + 1] = p->out_first[m] + mine[0];
        p->out_entry[m + 1] = p->out_entry[m] + mine[1];
        p->in_first[m + 1] = p->in_first[m] + its[2 * c->me];
        p->in_entry[m + 1] = p->in_entry[m] + its[2 * c->me + 1];
        p->there_row[m] = p->there_entry[m] = p->back_row[m] = p->back_entry[m] = 0;
        for (uint32_t s = 0; s < c->me; s++) {
            if (s == m) continue; /* what stays with a member passes no window */
            p->there_row[m] += sizes[s * stride + 2 * m];
            p->there_entry[m] += sizes[s * stride + 2 * m + 1];
            p->back_row[m] += its[2 * s];
            p->back_entry[m] += its[2 * s + 1];
        }
    }
}

static moe_status check_sizes(const cross *c, const cross_plan *p, const cross_input *in, moe_err *err) {
    const uint32_t n = c->n;
    const struct {
        const char *what;
        int64_t is, most;
    } all[] = {{"tokens", in->tokens, c->tokens},
               {"rows to send", p->out_first[n], c->crossings},
               {"entries to send", p->out_entry[n], c->out_entries},
               {"rows to get", p->in_first[n], c->rows_in},
               {"entries to get", p->in_entry[n], c->entries_in}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].is > all[i].most)
            return moe_fail(err, MOE_E_INTERNAL, "%s: layer %u: %" PRId64 " %s, at most %" PRId64 " were foreseen",
                            c->d->name, c->d->layer, all[i].is, all[i].what, all[i].most);
    return MOE_OK;
}

/* Where each member's list lies, in what is sent and in what comes. */
static void place_lists(const cross *c, const cross_plan *p, const passing *w) {
    uint64_t out = 0, in = 0;
    for (uint32_t m = 0; m < c->n; m++) {
        w->in_at[m] = out;
        w->out_at[m] = in;
        out += w->in_bytes[m] =
            list_bytes(p->out_first[m + 1] - p->out_first[m], p->out_entry[m + 1] - p->out_entry[m]);
        in += w->out_bytes[m] = list_bytes(p->in_first[m + 1] - p->in_first[m], p->in_entry[m + 1] - p->in_entry[m]);
    }
}

static moe_status send_lists(const cross *c, void *stream, const passing *w, moe_err *err) {
    const moe_a2a_args args = {.size = sizeof args,
                               .in = w->out,
                               .out = w->in,
                               .in_at = w->in_at,
                               .in_bytes = w->in_bytes,
                               .out_at = w->out_at,
                               .out_bytes = w->out_bytes};
    return c->d->comm->all_to_all_v(c->d->comm_self, c->layout_group, stream, &args, err);
}

static void take_in(const cross *c, const cross_plan *p, const passing *w) {
    p->in_end[0] = 0;
    for (uint32_t s = 0; s < c->n; s++) {
        const int64_t row = p->in_first[s], entry = p->in_entry[s], rows = p->in_first[s + 1] - row,
                      entries = p->in_entry[s + 1] - entry;
        const list l = list_at((c->n > 1 ? w->in : w->out) + w->out_at[s], rows, entries);
        for (int64_t i = 0; i < rows; i++) p->in_end[row + i + 1] = entry + l.end[i];
        memcpy(p->in_row + entry, l.row, 8 * (size_t)entries);
        memcpy(p->in_place + entry, l.place, 4 * (size_t)entries);
    }
}

moe_status cross_make(const cross *c, void *stream, const cross_input *in, const int64_t *sizes, int64_t stride,
                      const cross_plan *p, void *memory, moe_err *err) {
    const passing w = passing_at(c, memory);
    moe_status s = MOE_OK;
    if (!sizes) {
        sizes = w.sizes;
        stride = 2 * (int64_t)c->n;
        int64_t *mine = w.sizes + c->me * stride;
        cross_count(c, in, mine);
        if (c->n > 1)
            s = c->d->comm->all_gather(c->d->comm_self, c->layout_group, stream, mine, w.sizes, (uint64_t)stride,
                                       MOE_I64, err);
        if (s != MOE_OK) return s;
    }
    place(c, p, sizes, stride);
    s = check_sizes(c, p, in, err);
    if (s != MOE_OK) return disp_end_all(c->d, s, err);
    place_lists(c, p, &w);
    fill(c, p, &w, in);
    if (c->n > 1) s = send_lists(c, stream, &w, err);
    if (s == MOE_OK) take_in(c, p, &w);
    return s;
}
