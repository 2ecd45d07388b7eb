/* The table, its layout and its memory. Pieces of parameters: pieces.c; buckets and slices: slices.c. */
#include "model/params.h"

#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

/* This rank's shape; cuts in one part are none. */
static void cut_shape(param *e) {
    int n = 0;
    memcpy(e->shape, e->whole, sizeof e->shape);
    for (int i = 0; i < PARAM_CUTS; i++) {
        param_cut c = e->cut[i];
        e->cut[i] = (param_cut){.dim = -1};
        if (c.parts <= 1) continue;
        e->shape[c.dim] /= c.parts;
        if (c.dim == 0 && e->experts) e->first_expert = e->shape[0] * c.index;
        e->cut[n++] = c;
    }
    if (e->experts) e->experts = e->shape[0];
}

int64_t params_add(params *p, const param *entry) {
    if (p->n == p->cap) {
        uint32_t cap = p->cap ? p->cap * 2 : 64;
        param *at = realloc(p->at, cap * sizeof *at);
        if (!at) return -1;
        p->at = at;
        p->cap = cap;
    }
    param *e = &p->at[p->n];
    *e = *entry;
    e->order = (int32_t)p->n;
    e->flags = -1;
    for (int i = e->ndim; i < 4; i++) e->shape[i] = 1;
    if (!e->whole[0]) memcpy(e->whole, e->shape, sizeof e->whole);
    for (int i = e->ndim; i < 4; i++) e->whole[i] = 1;
    cut_shape(e);
    int64_t elements = 1; /* of the whole tensor: what a file can hold */
    for (int i = 0; i < 4; i++)
        if (__builtin_mul_overflow(elements, e->whole[i], &elements)) return -2;
    if (elements > PARAMS_LIMIT || p->total > PARAMS_LIMIT) return -2;
    e->count = e->shape[0] * e->shape[1] * e->shape[2] * e->shape[3];
    p->total += e->count;
    return p->n++;
}

static int rank_of(const param *e) {
    return (int)e->kind * PARAM_REDUCES + (int)e->over;
}

/* Stable insertion: tables are short and mostly ordered. */
static void sort_entries(params *p) {
    for (uint32_t i = 1; i < p->n; i++) {
        param e = p->at[i];
        uint32_t j = i;
        for (; j > 0 && rank_of(&p->at[j - 1]) > rank_of(&e); j--) p->at[j] = p->at[j - 1];
        p->at[j] = e;
    }
}

static int64_t round_up(int64_t n, int64_t align) {
    return (n + align - 1) / align * align;
}

void params_layout(params *p, int32_t weight_dtype) {
    sort_entries(p);
    p->weight_dtype = weight_dtype;
    int64_t offset = 0;
    uint32_t i = 0;
    for (int kind = 0; kind < PARAM_CLASSES; kind++) {
        p->begin[kind] = offset;
        for (int over = 0; over < PARAM_REDUCES; over++) {
            int64_t align = PARAM_ALIGN * (int64_t)(p->members[over] ? p->members[over] : 1);
            p->range[kind][over] = offset;
            for (; i < p->n && rank_of(&p->at[i]) == kind * PARAM_REDUCES + over; i++) {
                p->at[i].offset = offset;
                offset += round_up(p->at[i].count, PARAM_ALIGN);
            }
            offset = p->range[kind][over] + round_up(offset - p->range[kind][over], align);
        }
        p->range[kind][PARAM_REDUCES] = offset;
    }
    p->begin[PARAM_CLASSES] = offset;
}

int64_t params_find(const params *p, const char *name) {
    for (uint32_t i = 0; i < p->n; i++)
        if (strcmp(p->at[i].name, name) == 0) return i;
    return -1;
}

/* ---- memory ---- */
static uint64_t flat_bytes(const params *p) {
    return (uint64_t)p->begin[PARAM_CLASSES] * sizeof(float);
}
static uint64_t arena_bytes(const params *p, int arena) {
    int64_t n = 0;
    for (int kind = 0; kind < PARAM_CLASSES; kind++)
        n += params_own_only(p, (param_arena)arena, (param_class)kind) ? p->slices[kind + 1] - p->slices[kind]
                                                                       : p->begin[kind + 1] - p->begin[kind];
    return (uint64_t)n * sizeof(float);
}
static uint64_t copy_bytes(const params *p) {
    return p->weight_dtype == MOE_BF16 ? (uint64_t)p->begin[PARAM_LINEAR + 1] * sizeof(uint16_t) : 0;
}

static uint64_t filled_bytes(const params *p) {
    return (uint64_t)p->n_filled * sizeof *p->filled;
}

/* 1 for weights, 2 with gradients, 4 with moments: the first so many of master, grad, m, v. */
uint64_t params_bytes(const params *p, int arenas) {
    uint64_t bytes = copy_bytes(p) + (arenas >= PARAMS_GRADS ? filled_bytes(p) : 0);
    for (int i = 0; i < arenas; i++) bytes += arena_bytes(p, i);
    return bytes;
}

uint64_t params_weight_bytes(const params *p) {
    uint64_t copies = copy_bytes(p), linear = (uint64_t)p->begin[PARAM_LINEAR + 1] * sizeof(float);
    return copies ? flat_bytes(p) - linear + copies : flat_bytes(p);
}

moe_status params_alloc(params *p, int arenas, const moe_device_v0 *device, void *self, moe_err *err) {
    void **flat[] = {(void **)&p->master, (void **)&p->grad, (void **)&p->m, (void **)&p->v};
    moe_status status = MOE_OK;
    for (int i = 0; i < arenas && !status; i++)
        status = device->alloc(self, MOE_SPACE_DEVICE, arena_bytes(p, i), flat[i], err);
    if (!status && copy_bytes(p)) status = device->alloc(self, MOE_SPACE_DEVICE, copy_bytes(p), (void **)&p->copy, err);
    if (!status && arenas >= PARAMS_GRADS && p->n_filled)
        status = device->alloc(self, MOE_SPACE_DEVICE, filled_bytes(p), (void **)&p->filled, err);
    return status;
}

void params_free(params *p, const moe_device_v0 *device, void *self) {
    void *arenas[] = {p->master, p->grad, p->m, p->v};
    for (int i = 0; i < 4; i++) device->free(self, MOE_SPACE_DEVICE, arenas[i], arena_bytes(p, i));
    device->free(self, MOE_SPACE_DEVICE, p->copy, copy_bytes(p));
    device->free(self, MOE_SPACE_DEVICE, p->filled, filled_bytes(p));
    free(p->buckets);
    free(p->at);
    *p = (params){0};
}

void params_round_bf16(const float *in, uint16_t *out, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &in[i], sizeof bits);
        if ((bits & 0x7fffffffu) > 0x7f800000u)
            out[i] = (uint16_t)((bits >> 16) | 0x40u);
        else
            out[i] = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
}
