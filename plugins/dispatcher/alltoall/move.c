/* The movements of dispatcher/alltoall. Each phase goes over the planes in order; the scalars go with plane 0, in an
 * array of their own. */
#include "alltoall.h"

/* The staged rows of a movement: which part of the workspace belongs to a plane. */
typedef struct staging {
    const alltoall *me;
    const moe_move_args *args;
    const routes *r;
    int64_t rows;                                /* of every array */
    uint64_t scalars, slots, plane[DISP_PLANES]; /* where they begin; slots: [T, k * etp] */
} staging;

static void *at(const staging *s, uint64_t bytes) {
    return (char *)s->args->workspace + bytes;
}

static moe_status stage(const alltoall *me, const moe_move_args *args, staging *s, moe_err *err) {
    const disp *d = &me->d;
    *s = (staging){.me = me, .args = args, .r = args->handle};
    moe_status status = disp_check_move(d, args, s->r->tokens, err);
    if (status == MOE_OK) status = disp_check_staged(d, args, err);
    if (status != MOE_OK) return status;
    s->rows = args->direction == MOE_DISPATCH ? s->r->staged_out : s->r->staged_back;
    uint64_t end = me->rows;
    for (uint32_t i = 0; i < args->n_planes; i++)
        s->plane[i] = disp_place(d, &end, (uint64_t)(s->rows * disp_width_bytes(&args->planes[i].token_order)));
    s->scalars = disp_place(d, &end, 4 * (uint64_t)s->rows);
    s->slots = disp_place(d, &end, 0);
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
    staging s;
    moe_status status = stage(me, args, &s, err);
    void *workspace = at(&s, me->ops_workspace);
    for (uint32_t i = 0; i < args->n_planes && status == MOE_OK; i++) {
        const moe_plane *p = &args->planes[i];
        if (args->direction == MOE_DISPATCH) {
            const disp_rows x = of_plane(i, &p->token_order, args->slot_scalar), y = staged(&s, i, s.r->sent[1]);
            const moe_rows rows = disp_run(s.r->sent, y.n);
            status = disp_permute(&me->d, &me->ops, args->stream, &x, me->d.top_k, routes_array(s.r, me->sent_slot),
                                  &rows, &y, workspace, err);
        } else {
            const disp_rows x = of_plane(i, &p->expert_order, args->row_scalar), y = staged(&s, i, s.r->landed[1]);
            const moe_rows rows = disp_run(s.r->landed, y.n);
            status = disp_permute(&me->d, &me->ops, args->stream, &x, 1, routes_array(s.r, me->landed_row), &rows, &y,
                                  workspace, err);
        }
    }
    return disp_end_all(&me->d, status, err);
}

/* ---- exchange ---- */
/* Bytes to and from each member, for rows of `width` bytes; parts [4, members] are the arrays of a. */
static void set_parts(const staging *s, int64_t width, uint64_t *parts, moe_a2a_args *a) {
    const alltoall *me = s->me;
    const disp *d = &me->d;
    const int64_t *send = routes_array(s->r, me->send_rows), *recv = routes_array(s->r, me->recv_rows);
    const int out = s->args->direction == MOE_DISPATCH;
    uint64_t *in_at = parts, *in = parts + d->members, *out_at = in + d->members, *from = out_at + d->members;
    int64_t sent = 0, landed = 0, others = 0; /* rows before this member's; others: of those that come */
    for (uint32_t m = 0; m < d->members; m++) {
        const int64_t to_ep = send[m / d->etp_size], gives = out ? to_ep : recv[m], gets = out ? recv[m] : to_ep;
        in_at[m] = (uint64_t)((out ? sent : landed) * width);
        in[m] = m == d->me ? 0 : (uint64_t)(gives * width);
        out_at[m] = (uint64_t)(others * width);
        from[m] = m == d->me ? 0 : (uint64_t)(gets * width);
        others += m == d->me ? 0 : gets;
        landed += recv[m];
        if (m % d->etp_size == d->etp_size - 1) sent += to_ep; /* all members of an ep rank get the same */
    }
    a->in_at = in_at;
    a->in_bytes = in;
    a->out_at = out_at;
    a->out_bytes = from;
}

static moe_status exchange_rows(const staging *s, void *rows, int64_t width, moe_err *err) {
    const disp *d = &s->me->d;
    const int64_t *mine = s->args->direction == MOE_DISPATCH ? s->r->sent : s->r->landed;
    moe_a2a_args a = {.size = sizeof a, .in = rows, .out = (char *)rows + mine[1] * width};
    set_parts(s, width, s->args->workspace, &a);
    for (uint32_t m = 0; m < d->members; m++) disp_sent(d, s->args, m, a.in_bytes[m]);
    return d->comm->all_to_all_v(d->comm_self, d->group, s->args->stream, &a, err);
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
/* A slot's scalar is the sum of what its etp members give, in order. */
static void sum_scalars(const staging *s) {
    const int64_t etp = s->me->d.etp_size, n = s->r->tokens * s->me->d.top_k;
    const float *from = at(s, s->slots); /* [T * k, etp] */
    float *to = s->args->slot_scalar->data;
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int64_t f = 0; f < etp; f++) sum += from[i * etp + f];
        to[i] = sum;
    }
}

moe_status alltoall_unpack(const void *self, const moe_move_args *args, moe_err *err) {
    const alltoall *me = self;
    const int64_t etp = me->d.etp_size;
    staging s;
    moe_status status = stage(me, args, &s, err);
    void *workspace = at(&s, me->ops_workspace);
    for (uint32_t i = 0; i < args->n_planes && status == MOE_OK; i++) {
        const moe_plane *p = &args->planes[i];
        const disp_rows x = staged(&s, i, s.rows);
        if (args->direction == MOE_DISPATCH) {
            const disp_rows y = of_plane(i, &p->expert_order, args->row_scalar);
            status = disp_permute(&me->d, &me->ops, args->stream, &x, 1, routes_array(s.r, me->row_from), args->rows,
                                  &y, workspace, err);
        } else {
            disp_rows y = of_plane(i, &p->token_order, args->slot_scalar);
            if (y.scalars && etp > 1) y.scalars = at(&s, s.slots);
            status = disp_unpermute(&me->d, &me->ops, args->stream, &x, me->d.top_k * etp,
                                    routes_array(s.r, me->slot_at), NULL, &y, workspace, err);
        }
    }
    if (status == MOE_OK && args->direction == MOE_COMBINE && etp > 1 && disp_present(args->slot_scalar))
        sum_scalars(&s);
    return disp_end_all(&me->d, status, err);
}
