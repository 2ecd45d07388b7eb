/* The movements of dispatcher/alltoall. Each phase goes over the planes in order; the scalars go with plane 0, in an
 * array of their own. */
#include "alltoall.h"

/* The staged rows of a movement: which part of the workspace belongs to a plane. */
typedef struct staging {
    const alltoall *me;
    const moe_move_args *args;
    const routes *r;                      /* what the host knows */
    int64_t mine, rows;                   /* rows before those that come; of every array */
    uint64_t scalars, plane[DISP_PLANES]; /* where they begin */
} staging;

static void *at(const staging *s, uint64_t bytes) {
    return (char *)s->args->workspace + bytes;
}
static int64_t *map(const staging *s, uint64_t bytes) {
    return routes_array(s->args->handle, bytes);
}

/* A number of `parts` for member m: what moe.exchange_maps/0 has written, or what it says of fixed parts. */
static int64_t part(const staging *s, int which, uint32_t m) {
    const disp *d = &s->me->d;
    const int64_t slot = s->me->slot, own = m == d->me;
    if (!d->fixed) return routes_array(s->r, s->me->parts)[which * (int64_t)d->members + m];
    if (which == MOE_PART_GIVES || which == MOE_PART_GETS) return own ? 0 : slot;
    if (which == MOE_PART_OUT_AT || (which == MOE_PART_IN_AT && own)) return m / d->etp_size * slot;
    if (which == MOE_PART_IN_AT) return (int64_t)(d->ep_size + m) * slot;
    return which == MOE_PART_LANDED_AT || own ? m * slot : (int64_t)(d->members + m) * slot;
}

static moe_status stage(const alltoall *me, const moe_move_args *args, staging *s, moe_err *err) {
    const disp *d = &me->d;
    const int out = args->direction == MOE_DISPATCH;
    *s = (staging){.me = me, .args = args, .r = disp_host(d, args->handle, args->host_handle)};
    moe_status status = disp_check_move(d, args, s->r->tokens, err);
    if (status == MOE_OK) status = disp_check_staged(d, args, err);
    if (status != MOE_OK) return status;
    s->mine = d->fixed ? (out ? d->ep_size : d->members) * me->slot : routes_array(s->r, me->runs)[out ? 1 : 3];
    s->rows = s->mine;
    for (uint32_t m = 0; m < d->members; m++) s->rows += part(s, out ? MOE_PART_GETS : MOE_PART_GIVES, m);
    if (d->fixed) s->rows = s->mine + d->members * me->slot;
    uint64_t end = me->rows;
    for (uint32_t i = 0; i < args->n_planes; i++)
        s->plane[i] = disp_place(d, &end, (uint64_t)(s->rows * disp_width_bytes(&args->planes[i].token_order)));
    s->scalars = disp_place(d, &end, 4 * (uint64_t)s->rows);
    return MOE_OK;
}

/* Plane i with its scalars, if any: rows [0, n) of the staged array. */
static disp_rows staged(const staging *s, uint32_t i, int64_t n) {
    const moe_tensor *x = &s->args->planes[i].token_order;
    const int with = i == 0 && disp_present(s->args->slot_scalar);
    return (disp_rows){.data = at(s, s->plane[i]),
                       .scalars = with ? at(s, s->scalars) : NULL,
                       .n = n,
                       .width = x->shape[1],
                       .dtype = x->dtype};
}
static disp_rows of_plane(uint32_t i, const moe_tensor *x, const moe_tensor *scalars) {
    const int with = i == 0 && disp_present(scalars);
    return (disp_rows){.data = x->data,
                       .scalars = with ? scalars->data : NULL,
                       .n = x->shape[0],
                       .width = x->shape[1],
                       .dtype = x->dtype};
}

/* ---- pack ---- */
moe_status alltoall_pack(const void *self, const moe_move_args *args, moe_err *err) {
    const alltoall *me = self;
    const int out = args->direction == MOE_DISPATCH;
    staging s;
    moe_status status = stage(me, args, &s, err);
    void *workspace = at(&s, me->ops_workspace);
    for (uint32_t i = 0; i < args->n_planes && status == MOE_OK; i++) {
        const moe_plane *p = &args->planes[i];
        const disp_rows x =
            out ? of_plane(i, &p->token_order, args->slot_scalar) : of_plane(i, &p->expert_order, args->row_scalar);
        const disp_rows y = staged(&s, i, s.mine);
        const moe_rows rows = disp_run(map(&s, me->runs) + (out ? 0 : 2), y.n);
        status = disp_permute(&me->d, &me->ops, args->stream, &x, out ? me->d.top_k : 1,
                              map(&s, out ? me->sent_slot : me->landed_row), &rows, &y, workspace, err);
    }
    return disp_end_all(&me->d, status, err);
}

/* ---- exchange ---- */
/* Bytes to and from each member, for rows of `width` bytes; arrays [4, members] are those of a. */
static void set_parts(const staging *s, int64_t width, uint64_t *arrays, moe_a2a_args *a) {
    const uint32_t n = s->me->d.members;
    const int out = s->args->direction == MOE_DISPATCH;
    const int which[] = {out ? MOE_PART_OUT_AT : MOE_PART_LANDED_AT, out ? MOE_PART_GIVES : MOE_PART_GETS,
                         out ? MOE_PART_IN_AT : MOE_PART_RETURN_AT, out ? MOE_PART_GETS : MOE_PART_GIVES};
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t m = 0; m < n; m++) arrays[i * n + m] = (uint64_t)(part(s, which[i], m) * width);
    a->in_at = arrays;
    a->in_bytes = arrays + n;
    a->out_at = arrays + 2 * (uint64_t)n;
    a->out_bytes = arrays + 3 * (uint64_t)n;
}

static moe_status exchange_rows(const staging *s, void *rows, int64_t width, moe_err *err) {
    const disp *d = &s->me->d;
    const int which = s->args->direction == MOE_DISPATCH ? MOE_PART_GIVES : MOE_PART_GETS;
    void *arrays = d->async ? (char *)s->args->host_handle + s->me->scratch : s->args->workspace;
    moe_a2a_args a = {.size = sizeof a, .in = rows, .out = rows};
    set_parts(s, width, arrays, &a);
    const moe_status status = disp_count_sent(
        d, &s->me->ops, s->args, map(s, s->me->parts) + which * (int64_t)d->members, d->members, width, err);
    return status == MOE_OK ? d->comm->all_to_all_v(d->comm_self, d->group, s->args->stream, &a, err) : status;
}

moe_status alltoall_exchange(const void *self, const moe_move_args *args, moe_err *err) {
    const alltoall *me = self;
    if (me->d.members == 1) return MOE_OK;
    staging s;
    moe_status status = stage(me, args, &s, err);
    for (uint32_t i = 0; i < args->n_planes && status == MOE_OK; i++)
        status = exchange_rows(&s, at(&s, s.plane[i]), disp_width_bytes(&args->planes[i].token_order), err);
    if (status == MOE_OK && disp_present(args->slot_scalar)) status = exchange_rows(&s, at(&s, s.scalars), 4, err);
    return disp_end_all(&me->d, status, err);
}

/* ---- unpack ---- */
/* A slot's scalar is the sum of what its etp members give, in order: rows of one element, summed as rows are. */
static moe_status sum_scalars(const staging *s, moe_err *err) {
    const alltoall *me = s->me;
    const disp_rows y = {.data = at(s, s->scalars), .n = s->rows, .width = 1, .dtype = MOE_F32};
    const disp_rows x = {.data = s->args->slot_scalar->data,
                         .n = s->args->slot_scalar->shape[0] * me->d.top_k,
                         .width = 1,
                         .dtype = MOE_F32};
    return disp_unpermute(&me->d, &me->ops, s->args->stream, &y, me->d.etp_size, map(s, me->slot_at), NULL, &x,
                          at(s, me->ops_workspace), err);
}

moe_status alltoall_unpack(const void *self, const moe_move_args *args, moe_err *err) {
    const alltoall *me = self;
    const int64_t etp = me->d.etp_size;
    const int out = args->direction == MOE_DISPATCH, apart = !out && etp > 1 && disp_present(args->slot_scalar);
    staging s;
    moe_status status = stage(me, args, &s, err);
    void *workspace = at(&s, me->ops_workspace);
    for (uint32_t i = 0; i < args->n_planes && status == MOE_OK; i++) {
        const moe_plane *p = &args->planes[i];
        disp_rows x = staged(&s, i, s.rows);
        if (out) {
            const disp_rows y = of_plane(i, &p->expert_order, args->row_scalar);
            status = disp_permute(&me->d, &me->ops, args->stream, &x, 1, map(&s, me->row_from), args->rows, &y,
                                  workspace, err);
        } else {
            disp_rows y = of_plane(i, &p->token_order, args->slot_scalar);
            if (apart) x.scalars = y.scalars = NULL;
            status = disp_unpermute(&me->d, &me->ops, args->stream, &x, me->d.top_k * etp, map(&s, me->slot_at), NULL,
                                    &y, workspace, err);
        }
    }
    if (status == MOE_OK && apart) status = sum_scalars(&s, err);
    return disp_end_all(&me->d, status, err);
}
