/* The table, its layout and its memory. */
#include "model/params.h"

#include <moe/options.h>
#include <moe/random.h>
#include <stdlib.h>
#include <string.h>

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
    e->count = 1;
    for (int i = 0; i < e->ndim; i++)
        if (__builtin_mul_overflow(e->count, e->shape[i], &e->count)) e->count = PARAMS_LIMIT + 1;
    if (e->count > PARAMS_LIMIT || p->total > PARAMS_LIMIT) return -2;
    p->total += e->count;
    for (int i = e->ndim; i < 4; i++) e->shape[i] = 1;
    if (!e->whole[0]) memcpy(e->whole, e->shape, sizeof e->whole); /* not cut */
    return p->n++;
}

/* Stable insertion by class: tables are short and mostly ordered. */
static void sort_by_class(params *p) {
    for (uint32_t i = 1; i < p->n; i++) {
        param e = p->at[i];
        uint32_t j = i;
        for (; j > 0 && p->at[j - 1].kind > e.kind; j--) p->at[j] = p->at[j - 1];
        p->at[j] = e;
    }
}

void params_layout(params *p, int32_t weight_dtype) {
    sort_by_class(p);
    p->weight_dtype = weight_dtype;
    int64_t offset = 0;
    uint32_t i = 0;
    for (int kind = 0; kind < PARAM_CLASSES; kind++) {
        p->begin[kind] = offset;
        for (; i < p->n && (int)p->at[i].kind == kind; i++) {
            p->at[i].offset = offset;
            offset += (p->at[i].count + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
        }
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
static uint64_t copy_bytes(const params *p) {
    return p->weight_dtype == MOE_BF16 ? (uint64_t)p->begin[PARAM_LINEAR + 1] * sizeof(uint16_t) : 0;
}

/* 1 for weights, 2 with gradients, 4 with moments: the first so many of master, grad, m, v. */
uint64_t params_bytes(const params *p, int arenas) {
    return flat_bytes(p) * (uint64_t)arenas + copy_bytes(p);
}

uint64_t params_weight_bytes(const params *p) {
    uint64_t copies = copy_bytes(p), linear = (uint64_t)p->begin[PARAM_LINEAR + 1] * sizeof(float);
    return copies ? flat_bytes(p) - linear + copies : flat_bytes(p);
}

moe_status params_alloc(params *p, int arenas, const moe_device_v0 *device, void *self, moe_err *err) {
    void **flat[] = {(void **)&p->master, (void **)&p->grad, (void **)&p->m, (void **)&p->v};
    moe_status status = MOE_OK;
    for (int i = 0; i < arenas && !status; i++)
        status = device->alloc(self, MOE_SPACE_DEVICE, flat_bytes(p), flat[i], err);
    if (!status && copy_bytes(p)) status = device->alloc(self, MOE_SPACE_DEVICE, copy_bytes(p), (void **)&p->copy, err);
    return status;
}

void params_free(params *p, const moe_device_v0 *device, void *self) {
    void *arenas[] = {p->master, p->grad, p->m, p->v};
    for (int i = 0; i < 4; i++) device->free(self, MOE_SPACE_DEVICE, arenas[i], flat_bytes(p));
    device->free(self, MOE_SPACE_DEVICE, p->copy, copy_bytes(p));
    free(p->at);
    *p = (params){0};
}

/* ---- pieces ---- */
int64_t param_pieces(const param *p) {
    return p->experts ? p->experts : 1;
}

void param_piece_at(const param *p, int64_t index, param_piece *out) {
    int lead = p->experts ? 1 : 0;
    *out = (param_piece){.ndim = p->ndim - lead, .count = p->count / param_pieces(p)};
    for (int i = 0; i < 4; i++) out->shape[i] = i + lead < 4 ? p->shape[i + lead] : 1;
    out->offset = p->offset + index * out->count;
    const char *last = strrchr(p->name, '.');
    if (lead && last)
        snprintf(out->name, sizeof out->name, "%.*s.%lld%s", (int)(last - p->name), p->name, (long long)index, last);
    else
        snprintf(out->name, sizeof out->name, "%s", p->name);
}

void param_piece_init(const param *p, const param_piece *piece, uint64_t seed, float *out) {
    moe_random_key key = moe_random_key_make(seed, MOE_RANDOM_INIT, piece->name);
    for (int64_t i = 0; i < piece->count; i += 2) {
        if (p->std == 0) {
            out[i] = p->fill;
            if (i + 1 < piece->count) out[i + 1] = p->fill;
            continue;
        }
        moe_random_block b = moe_random_words(key, (uint64_t)(i / 2), 0);
        out[i] = p->std * moe_random_normal(b.v[0], b.v[1]);
        if (i + 1 < piece->count) out[i + 1] = p->std * moe_random_normal(b.v[2], b.v[3]);
    }
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
