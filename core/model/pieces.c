/* Tensors of files, which of their elements a rank holds, and what these begin as. Everything that moves values between
 * a whole tensor and the flat arenas goes by the runs made here. */
#include <moe/random.h>
#include <stdio.h>
#include <string.h>

#include "model/params.h"

/* An entry that was never in a table is not cut. */
static const int64_t *whole_of(const param *p) {
    return p->whole[0] ? p->whole : p->shape;
}

int64_t param_pieces(const param *p) {
    return p->experts ? whole_of(p)[0] : 1;
}

void param_piece_at(const param *p, int64_t index, param_piece *out) {
    int lead = p->experts ? 1 : 0, n = 0;
    int64_t own = index - p->first_expert; /* among this rank's experts */
    *out = (param_piece){.ndim = p->ndim - lead, .whole = 1};
    for (int i = 0; i < 4; i++) out->shape[i] = i < out->ndim ? whole_of(p)[i + lead] : 1;
    for (int i = 0; i < out->ndim; i++) out->whole *= out->shape[i];
    for (int i = 0; i < PARAM_CUTS; i++) {
        if (p->cut[i].parts <= 1 || p->cut[i].dim < lead) continue;
        out->cut[n] = p->cut[i];
        out->cut[n++].dim -= lead;
    }
    if (!lead || (own >= 0 && own < p->experts)) {
        out->count = p->count / (lead ? p->experts : 1);
        out->offset = p->offset + own * out->count;
    }
    const char *last = strrchr(p->name, '.');
    if (lead && last)
        snprintf(out->name, sizeof out->name, "%.*s.%lld%s", (int)(last - p->name), p->name, (long long)index, last);
    else
        snprintf(out->name, sizeof out->name, "%s", p->name);
}

/* ---- runs ---- */
static int count_cuts(const param_piece *piece) {
    int n = 0;
    while (n < PARAM_CUTS && piece->cut[n].parts > 1) n++;
    return n;
}

static const param_cut *cut_of(const param_piece *piece, int dim) {
    for (int i = 0; i < count_cuts(piece); i++)
        if (piece->cut[i].dim == dim) return &piece->cut[i];
    return NULL;
}

/* This rank's size of a dimension. */
static int64_t extent(const param_piece *piece, int dim) {
    const param_cut *c = cut_of(piece, dim);
    return piece->shape[dim] / (c ? c->parts : 1);
}

/* Where this rank's part of section s begins, in the whole dimension and among its own. */
static void find_section(const param_cut *c, int64_t s, int64_t *whole, int64_t *own) {
    int64_t before = 0;
    for (int64_t i = 0; i < s; i++) before += c->sections[i];
    *whole = before + c->sections[s] / c->parts * c->index;
    *own = before / c->parts;
}

static int64_t to_whole(const param_cut *c, int64_t own) {
    int64_t begin_whole = own, begin_own = own;
    for (int64_t s = 0; c && s < c->n_sections; s++) {
        find_section(c, s, &begin_whole, &begin_own);
        if (own < begin_own + c->sections[s] / c->parts) break;
    }
    return begin_whole + own - begin_own;
}

/* A run is this rank's part of one section of the last dimension that is cut, with all dimensions after it. */
int64_t param_runs(const param_piece *piece) {
    int n = count_cuts(piece);
    if (!piece->count) return 0;
    if (!n) return 1;
    int64_t runs = piece->cut[n - 1].n_sections;
    for (int d = 0; d < piece->cut[n - 1].dim; d++) runs *= extent(piece, d);
    return runs;
}

param_run param_run_at(const param_piece *piece, int64_t index) {
    int n = count_cuts(piece);
    if (!n) return (param_run){0, piece->offset, piece->count};
    const param_cut *c = &piece->cut[n - 1];
    int64_t section = index % c->n_sections, row = index / c->n_sections, left = row, rows = 0, scale = 1, inner = 1;
    for (int d = c->dim + 1; d < piece->ndim; d++) inner *= piece->shape[d];
    for (int d = c->dim - 1; d >= 0; d--) { /* the row's number in the whole tensor */
        rows += to_whole(cut_of(piece, d), left % extent(piece, d)) * scale;
        scale *= piece->shape[d];
        left /= extent(piece, d);
    }
    int64_t whole, own;
    find_section(c, section, &whole, &own);
    return (param_run){.whole = (rows * piece->shape[c->dim] + whole) * inner,
                       .offset = piece->offset + (row * extent(piece, c->dim) + own) * inner,
                       .count = c->sections[section] / c->parts * inner};
}

/* ---- initial values ---- */
/* Elements [begin, begin + n) of the whole tensor: two of each block of random words. */
static void draw(const param *p, moe_random_key key, int64_t begin, int64_t n, float *out) {
    for (int64_t i = 0; i < n && p->std == 0; i++) out[i] = p->fill;
    for (int64_t i = 0; i < n && p->std != 0;) {
        moe_random_block b = moe_random_words(key, (uint64_t)(begin + i) / 2, 0);
        if ((begin + i) % 2 == 0) {
            out[i++] = p->std * moe_random_normal(b.v[0], b.v[1]);
            if (i == n) break;
        }
        out[i++] = p->std * moe_random_normal(b.v[2], b.v[3]);
    }
}

void param_piece_init(const param *p, const param_piece *piece, uint64_t seed, float *out) {
    moe_random_key key = moe_random_key_make(seed, MOE_RANDOM_INIT, piece->name);
    for (int64_t i = 0, n = param_runs(piece); i < n; i++) {
        param_run r = param_run_at(piece, i);
        draw(p, key, r.whole, r.count, out + (r.offset - piece->offset));
    }
}
