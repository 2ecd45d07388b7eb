/* A range is taken piece by piece (experts), a piece by its runs. This rank's elements of a range lie side by side in
 * the flat arenas, so that one copy moves them, and runs then go between two places in host memory. Getting: every rank
 * puts the elements that it owns among zeros, and the sum of the bits as integers over all ranks is the whole. */
#include "model/values.h"

#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "exec/watchdog.h"

moe_status values_open(value_mover *v, const model *m, int64_t room, moe_err *err) {
    const parts *p = m->parts;
    *v = (value_mover){.m = m, .room = room};
    v->own = malloc((size_t)room * sizeof *v->own);
    v->half = malloc((size_t)room * sizeof *v->half);
    if (!v->own || !v->half) return moe_fail(err, MOE_E_NOMEM, "out of memory for %lld values", (long long)room);
    moe_status status = p->device->stream_create(p->device_self, "values", &v->stream, err);
    if (!status && m->place.mesh->degree[MESH_WORLD] > 1)
        status = p->device->alloc(p->device_self, MOE_SPACE_DEVICE, (uint64_t)room * sizeof *v->shared,
                                  (void **)&v->shared, err);
    return status;
}

void values_close(value_mover *v) {
    const parts *p = v->m ? v->m->parts : NULL;
    if (v->stream) p->device->stream_destroy(p->device_self, v->stream);
    if (v->shared) p->device->free(p->device_self, MOE_SPACE_DEVICE, v->shared, (uint64_t)v->room * sizeof *v->shared);
    free(v->half);
    free(v->own);
    *v = (value_mover){0};
}

static moe_status copy_now(const value_mover *v, void *dst, const void *src, uint64_t bytes, moe_err *err) {
    const parts *p = v->m->parts;
    moe_status status = p->device->copy(p->device_self, v->stream, dst, src, bytes, err);
    return status ? status : p->device->stream_sync(p->device_self, v->stream, err);
}

/* ---- which elements ---- */
/* What a rank has of elements [first, end) of a piece: runs [run, last) and, in the flat arenas, [begin, stop). */
typedef struct overlap {
    param_piece piece;
    int64_t first, end, run, last, begin, stop;
} overlap;

/* The first run that ends after `element`. */
static int64_t find_run(const param_piece *piece, int64_t element) {
    int64_t low = 0, high = param_runs(piece);
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        param_run r = param_run_at(piece, middle);
        if (r.whole + r.count > element)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The part of a run that lies in the range. */
static param_run clip(const overlap *o, int64_t index) {
    param_run r = param_run_at(&o->piece, index);
    int64_t skip = r.whole < o->first ? o->first - r.whole : 0, end = r.whole + r.count;
    if (end > o->end) end = o->end;
    return (param_run){r.whole + skip, r.offset + skip, end - r.whole - skip};
}

static overlap overlap_of(const param *p, int64_t piece, int64_t first, int64_t end) {
    overlap o = {.first = first, .end = end};
    param_piece_at(p, piece, &o.piece);
    int64_t runs = param_runs(&o.piece);
    o.run = o.last = find_run(&o.piece, first);
    while (o.last < runs && param_run_at(&o.piece, o.last).whole < end) o.last++;
    if (o.run == o.last) return o;
    param_run a = clip(&o, o.run), b = clip(&o, o.last - 1);
    o.begin = a.offset;
    o.stop = b.offset + b.count;
    return o;
}

typedef moe_status (*overlap_fn)(const value_mover *v, const param *p, param_arena arena, const overlap *o, float *at,
                                 moe_err *err);

/* fn for the pieces of [first, first + count); at: where the piece's part of the range begins in `all`. */
static moe_status each_piece(const value_mover *v, const param *p, param_arena arena, int64_t first, int64_t count,
                             float *all, overlap_fn fn, moe_err *err) {
    int64_t pieces = param_pieces(p), each = 1;
    for (int i = 0; i < p->ndim; i++) each *= p->whole[i];
    each /= pieces;
    if (count > v->room)
        return moe_fail(err, MOE_E_INTERNAL, "%s: %lld values at once, there is room for %lld", p->name,
                        (long long)count, (long long)v->room);
    moe_status status = MOE_OK;
    for (int64_t at = first; at < first + count && !status;) {
        int64_t piece = at / each, begin = at % each, n = each - begin;
        if (n > first + count - at) n = first + count - at;
        overlap o = overlap_of(p, piece, begin, begin + n);
        if (o.run < o.last) status = fn(v, p, arena, &o, all + (at - first), err);
        at += n;
    }
    return status;
}

/* ---- out ---- */
/* Does memory hold the piece's values? A gradient of an expert that no row has reached stands for zeros. */
static moe_status holds_values(const value_mover *v, const param *p, param_arena arena, const param_piece *piece,
                               int32_t *out, moe_err *err) {
    *out = 1;
    if (arena != PARAM_GRAD || p->flags < 0) return MOE_OK;
    int64_t expert = (piece->offset - p->offset) / (p->count / p->experts);
    return copy_now(v, out, v->m->params.filled + p->flags + expert, sizeof *out, err);
}

static moe_status get_piece(const value_mover *v, const param *p, param_arena arena, const overlap *o, float *at,
                            moe_err *err) {
    const params *all = &v->m->params;
    int32_t there = 0;
    if (p->idle) return MOE_OK;
    moe_status status = holds_values(v, p, arena, &o->piece, &there, err);
    if (status || !there) return status; /* out holds zeros */
    memset(v->own, 0, (size_t)(o->stop - o->begin) * sizeof *v->own);
    param_span s = params_next_own(all, o->begin, o->stop);
    for (; s.count && !status; s = params_next_own(all, s.begin + s.count, o->stop))
        status = copy_now(v, v->own + (s.begin - o->begin), params_address(all, arena, s.bucket, s.begin),
                          (uint64_t)s.count * sizeof(float), err);
    for (int64_t i = o->run; i < o->last && !status; i++) {
        param_run r = clip(o, i);
        memcpy(at + (r.whole - o->first), v->own + (r.offset - o->begin), (size_t)r.count * sizeof *at);
    }
    return status;
}

static moe_status sum_bits(const value_mover *v, float *out, int64_t count, moe_err *err) {
    const parts *p = v->m->parts;
    uint64_t bytes = (uint64_t)count * sizeof *out;
    moe_status status = copy_now(v, v->shared, out, bytes, err);
    watchdog_enter(p->cfg.dog, "the collection of values from all ranks");
    if (!status)
        status = p->comm->all_reduce(p->comm_self, v->m->place.groups->of[MESH_WORLD], v->stream, v->shared, v->shared,
                                     (uint64_t)count, MOE_I32, MOE_SUM, err);
    if (!status) status = copy_now(v, out, v->shared, bytes, err);
    watchdog_leave(p->cfg.dog);
    return status;
}

moe_status values_get(const value_mover *v, const param *p, param_arena arena, int64_t first, int64_t count, float *out,
                      moe_err *err) {
    memset(out, 0, (size_t)count * sizeof *out);
    moe_status status = each_piece(v, p, arena, first, count, out, get_piece, err);
    return status || !v->shared ? status : sum_bits(v, out, count, err);
}

/* ---- in ---- */
moe_status values_put_own(const value_mover *v, const param *p, param_arena arena, int64_t offset, int64_t count,
                          const float *in, moe_err *err) {
    const params *all = &v->m->params;
    int64_t end = offset + count;
    moe_status status = MOE_OK;
    param_span s = params_next_held(all, arena, p->kind, offset, end);
    for (; s.count && !status; s = params_next_held(all, arena, p->kind, s.begin + s.count, end))
        status = copy_now(v, params_address(all, arena, s.bucket, s.begin), in + (s.begin - offset),
                          (uint64_t)s.count * sizeof *in, err);
    if (status || arena != PARAM_MASTER || p->kind != PARAM_LINEAR || !all->copy) return status;
    params_round_bf16(in, v->half, count);
    return copy_now(v, all->copy + offset, v->half, (uint64_t)count * sizeof *v->half, err);
}

static moe_status put_piece(const value_mover *v, const param *p, param_arena arena, const overlap *o, float *at,
                            moe_err *err) {
    for (int64_t i = o->run; i < o->last; i++) {
        param_run r = clip(o, i);
        memcpy(v->own + (r.offset - o->begin), at + (r.whole - o->first), (size_t)r.count * sizeof *at);
    }
    return values_put_own(v, p, arena, o->begin, o->stop - o->begin, v->own, err);
}

moe_status values_put(const value_mover *v, const param *p, param_arena arena, int64_t first, int64_t count,
                      const float *in, moe_err *err) {
    return each_piece(v, p, arena, first, count, (float *)in, put_piece, err);
}
