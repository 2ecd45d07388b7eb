/* Buckets of gradients, whose slice of them is whose, and where elements lie in arenas that hold slices only. */
#include <stdlib.h>

#include "model/params.h"

/* ---- buckets ---- */
static int64_t members_of(const params *p, int over) {
    return p->members[over] ? p->members[over] : 1;
}

/* Of a range of so many elements; at most one a unit, which is members * PARAM_ALIGN elements. */
static int64_t count_buckets(const params *p, int64_t elements, int64_t units, uint32_t wanted) {
    double share = (double)wanted * (double)elements / (double)p->begin[PARAM_CLASSES] + 0.5;
    int64_t n = share < (double)units ? (int64_t)share : units;
    return n ? n : 1;
}

/* Which parameters [begin, begin + count) has a part of. */
static void find_params(const params *p, param_bucket *b) {
    uint32_t i = 0;
    while (i + 1 < p->n && p->at[i].offset + p->at[i].count <= b->begin) i++;
    b->first = b->last = i;
    for (; i < p->n && p->at[i].offset < b->begin + b->count; i++) b->last = i;
}

static void cut_range(params *p, int kind, int over, uint32_t wanted) {
    int64_t begin = p->range[kind][over], elements = p->range[kind][over + 1] - begin, members = members_of(p, over);
    if (!elements) return;
    int64_t unit = members * PARAM_ALIGN, units = elements / unit, n = count_buckets(p, elements, units, wanted);
    for (int64_t i = 0; i < n; i++) {
        param_bucket *b = &p->buckets[p->n_buckets++];
        *b = (param_bucket){
            .kind = (param_class)kind, .over = (param_reduce)over, .begin = begin + units * i / n * unit};
        b->count = begin + units * (i + 1) / n * unit - b->begin;
        b->slice = b->count / members;
        b->own = b->begin + b->slice * p->index[over];
        b->at = p->slices[kind + 1];
        p->slices[kind + 1] += b->slice;
        find_params(p, b);
    }
}

/* The last layer first: a bucket is complete when its first parameter is, the one that forward reads first. */
static int by_completion(const void *a, const void *b, void *arg) {
    const param_bucket *x = a, *y = b;
    const params *p = arg;
    int32_t first = p->at[x->first].order, second = p->at[y->first].order;
    if (first != second) return first > second ? -1 : 1;
    return (x->begin < y->begin) - (x->begin > y->begin);
}

int params_slice(params *p, uint32_t n_buckets, int sliced) {
    uint64_t most = (uint64_t)n_buckets + 2 * PARAM_CLASSES * PARAM_REDUCES;
    uint64_t units = (uint64_t)p->begin[PARAM_CLASSES] / PARAM_ALIGN + 1;
    free(p->buckets);
    p->buckets = calloc(most < units ? most : units, sizeof *p->buckets);
    p->n_buckets = 0;
    p->sliced = sliced;
    if (!p->buckets) return -1;
    p->slices[0] = 0;
    for (int kind = 0; kind < PARAM_CLASSES; kind++) {
        p->slices[kind + 1] = p->slices[kind];
        for (int over = 0; over < PARAM_REDUCES; over++) cut_range(p, kind, over, n_buckets);
    }
    qsort_r(p->buckets, p->n_buckets, sizeof *p->buckets, by_completion, p);
    return 0;
}

void params_flag(params *p) {
    for (uint32_t i = 0; i < p->n; i++) {
        param *a = &p->at[i];
        if (a->kind != PARAM_LINEAR || !a->experts || members_of(p, (int)a->over) > 1) continue;
        a->flags = p->n_filled;
        p->n_filled += a->experts;
    }
}

/* ---- addresses ---- */
int params_own_only(const params *p, param_arena arena, param_class kind) {
    if (!p->sliced || arena == PARAM_GRAD) return 0;
    return arena != PARAM_MASTER || (p->weight_dtype == MOE_BF16 && kind == PARAM_LINEAR);
}

float *params_address(const params *p, param_arena arena, const param_bucket *b, int64_t offset) {
    float *const flat[] = {p->master, p->grad, p->m, p->v};
    if (!flat[arena]) return NULL;
    if (b && params_own_only(p, arena, b->kind)) return flat[arena] + (b->at + offset - b->own);
    if (params_own_only(p, arena, PARAM_LINEAR)) /* a master of another class, behind the slices of LINEAR */
        offset += p->slices[PARAM_LINEAR + 1] - p->begin[PARAM_LINEAR + 1];
    return flat[arena] + offset;
}

param_span params_next_own(const params *p, int64_t begin, int64_t end) {
    param_span out = {end, 0, NULL};
    for (uint32_t i = 0; i < p->n_buckets; i++) {
        const param_bucket *b = &p->buckets[i];
        int64_t from = b->own > begin ? b->own : begin, to = b->own + b->slice < end ? b->own + b->slice : end;
        if (from < to && from < out.begin) out = (param_span){from, to - from, b};
    }
    return out;
}

param_span params_next_held(const params *p, param_arena arena, param_class kind, int64_t begin, int64_t end) {
    if (params_own_only(p, arena, kind)) return params_next_own(p, begin, end);
    return (param_span){begin, end - begin, NULL};
}
