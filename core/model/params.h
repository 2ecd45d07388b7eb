/* Parameters: one table of names and shapes, and flat arenas in device memory - FP32 master weights, gradients and
 * moments. The table is ordered by class and in each class by the group over which gradients are summed, so that every
 * class, and every group of it, is one flat range. Classes:
 *   LINEAR  matrices that products read in the precision's weight dtype (a copy where that is not FP32), decayed
 *   MATRIX  matrices that are read in FP32 always (router), decayed
 *   VECTOR  norm weights, biases (of all experts: stacked), sinks, and whatever a router declares in one dimension,
 * FP32, not decayed */
#ifndef CORE_MODEL_PARAMS_H
#define CORE_MODEL_PARAMS_H
#include <moe/base.h>
#include <moe/device.h>

typedef enum param_class { PARAM_LINEAR, PARAM_MATRIX, PARAM_VECTOR } param_class;
enum { PARAM_CLASSES = 3, PARAM_ALIGN = 16 /* elements: 64 bytes */ };

/* A dimension of the whole tensor of which this rank holds a part: the dimension is n_sections runs (q, k and v; gate
 * and up) of these sizes, each cut in `parts` equal parts, of which this rank has number `index` of each. */
enum { PARAM_SECTIONS = 3, PARAM_CUTS = 2 };
typedef struct param_cut {
    int32_t dim, n_sections; /* dim of `whole`; -1 = no cut */
    uint32_t parts, index;
    int64_t sections[PARAM_SECTIONS];
} param_cut;
/* Over which ranks a gradient is summed: those that hold the same elements. A replicated parameter's gradient is
 * partial over tp too, whose ranks see other tokens (or other heads). What every rank of a tp group works out alike -
 * a router plugin's own parameters - is to be counted once: ranks of tp_rank > 0 leave that gradient zero.
 * experts.b2 is not cut over etp, where partial sums of rows are added up: etp_rank 0 alone adds it, and on the others
 * it has gradient zero, stays as it began and is not read. */
typedef enum param_reduce { PARAM_OVER_STAGE, PARAM_OVER_DP_CP, PARAM_OVER_EDP } param_reduce;
enum { PARAM_REDUCES = 3 };

typedef struct param {
    char name[96]; /* global: "layers.3.experts.w1"; expert e of it is "layers.3.experts.e.w1" in files */
    param_class kind;
    int32_t ndim;
    param_reduce over;
    int64_t whole[4];                /* of the model; entries at and after ndim are 1 */
    param_cut cut[PARAM_CUTS];       /* at most one a dimension, by ascending dim, then those with parts 0: none */
    int64_t shape[4], count, offset; /* of this rank, elements; offset in every flat arena */
    int64_t experts;                 /* leading dimension of shape when it numbers experts, else 0 */
    int64_t first_expert;            /* the number of the first of them */
    int64_t flags;                   /* place of its first in params.filled, one an expert; -1 = has none */
    int32_t order;                   /* place in which it was added: of the first product that reads it */
    int32_t idle;                    /* 1: not read on this rank, whose values are not the model's (b2, above) */
    float std;                       /* of the normal initial values; 0: constant `fill` */
    float fill;
} param;

/* A flat range of one class and group whose gradients are summed by one call. It is cut in equal slices, one a member
 * of the group: whatever is done once an element of the whole model, its owner does. Several buckets may share a
 * parameter. */
typedef struct param_bucket {
    param_class kind;
    param_reduce over;
    int64_t begin, count; /* flat, elements; count = members * slice */
    int64_t own, slice;   /* where this rank's slice begins (flat); its elements */
    int64_t at;           /* and where in arenas that hold own slices alone */
    uint32_t first, last; /* parameters of which it has a part */
} param_bucket;

typedef struct params {
    param *at; /* [n] */
    uint32_t n, cap;
    int64_t total;                                         /* elements so far */
    uint32_t members[PARAM_REDUCES], index[PARAM_REDUCES]; /* of each group; set before params_layout; 0 members = 1 */
    int64_t begin[PARAM_CLASSES + 1];                      /* flat range of each class, elements, after params_layout */
    int64_t range[PARAM_CLASSES][PARAM_REDUCES + 1]; /* and of each group in it: a multiple of members * PARAM_ALIGN */
    param_bucket *buckets; /* [n_buckets] in the order in which a backward completes their gradients */
    uint32_t n_buckets;
    int64_t slices[PARAM_CLASSES + 1]; /* elements of own slices of the classes before */
    int sliced; /* 1: distributed optimiser: moments, and FP32 masters beside BF16 copies, are of own slices alone */
    /* Device memory: master and grad [begin[PARAM_CLASSES]]; m and v so many too, or [slices[PARAM_CLASSES]] where
     * sliced; master then begins with the slices of LINEAR where there are copies. Addresses: params_address. */
    float *master, *grad, *m, *v;
    int32_t *filled; /* [n_filled] device memory too, beside grad: flags of gradients (params_flag), or NULL */
    int64_t n_filled;
    uint16_t *copy; /* [begin[PARAM_LINEAR + 1]] BF16, or NULL where the weight dtype is FP32 */
    int32_t weight_dtype;
} params;

/* Elements of a parameter, and of all before it, at most: sizes in bytes of every arena stay within 64 bits. */
#define PARAMS_LIMIT ((int64_t)1 << 56)
/* Appends one: whole and cut, of which shape, count and experts follow; or, where it is not cut, shape alone. Returns
 * its number (it changes in params_layout: look up by name after). -1 = out of memory, -2 = past PARAMS_LIMIT. */
int64_t params_add(params *p, const param *entry);
/* Orders by class, then by group (stable), and sets offsets. */
void params_layout(params *p, int32_t weight_dtype);
/* Cuts every range in buckets, about n_buckets (>= 1) of like size in all but at least one a range, and sets sliced.
 * 0, or -1: out of memory. */
int params_slice(params *p, uint32_t n_buckets, int sliced);
/* After params_slice: from now on the gradients of stacked LINEAR parameters that are summed over no other ranks have
 * flags, one an expert. Where it is 0 the expert's gradient stands for zeros, and what memory holds there is nothing
 * (`filled` of moe.linear/0). */
void params_flag(params *p);
/* Number by name, or -1. */
int64_t params_find(const params *p, const char *name);
/* Which arenas a run needs: weights; and gradients; and AdamW's moments. */
enum { PARAMS_WEIGHTS = 1, PARAMS_GRADS = 2, PARAMS_MOMENTS = 4 };
/* Device memory of these arenas, bytes, and the making of it. */
uint64_t params_bytes(const params *p, int arenas);
/* Of these, the weights as they are read: BF16 where the weight dtype is, without their FP32 masters. */
uint64_t params_weight_bytes(const params *p);
moe_status params_alloc(params *p, int arenas, const moe_device_v0 *device, void *self, moe_err *err);
void params_free(params *p, const moe_device_v0 *device, void *self);

/* ---- addresses ---- */
typedef enum param_arena { PARAM_MASTER, PARAM_GRAD, PARAM_M, PARAM_V } param_arena;
/* 1: of this class this rank holds its own slices only. */
int params_own_only(const params *p, param_arena arena, param_class kind);
/* The place of a flat offset in an arena; where own slices only are held, of one in the own slice of b (else NULL will
 * do). NULL where there is no memory. */
float *params_address(const params *p, param_arena arena, const param_bucket *b, int64_t offset);

/* Neighbouring elements in the flat arenas. */
typedef struct param_span {
    int64_t begin, count;       /* count 0: none */
    const param_bucket *bucket; /* in whose own slice they are; NULL: not asked for */
} param_span;
/* The first elements of the flat range [begin, end) that this rank owns: of all ranks that hold them it is the one. */
param_span params_next_own(const params *p, int64_t begin, int64_t end);
/* The first that it holds in this arena. The range lies within one class. */
param_span params_next_held(const params *p, param_arena arena, param_class kind, int64_t begin, int64_t end);

/* ---- pieces (pieces.c): tensors as files hold them ---- */
/* One tensor of a file: a whole parameter, or one expert of a stacked one. */
typedef struct param_piece {
    char name[112];
    int32_t ndim;
    int64_t shape[4], whole; /* of the whole tensor; its elements */
    param_cut cut[PARAM_CUTS];
    int64_t count, offset; /* of this rank: elements, 0 = it has none of this expert; their place in the flat arenas */
} param_piece;
int64_t param_pieces(const param *p); /* 1, or the number of experts of the model */
void param_piece_at(const param *p, int64_t index, param_piece *out);

/* Neighbouring elements of the whole tensor that are neighbours here too. */
typedef struct param_run {
    int64_t whole, offset, count; /* the first one's place in the whole tensor, and in the flat arenas; elements */
} param_run;
/* A piece is so many runs, by ascending place on both sides. */
int64_t param_runs(const param_piece *piece);
param_run param_run_at(const param_piece *piece, int64_t index);

/* Initial values of this rank's elements of a piece into out [count]: a function of (seed, name, element of the whole
 * tensor) alone. */
void param_piece_init(const param *p, const param_piece *piece, uint64_t seed, float *out);
/* count FP32 values -> BF16, nearest even; NaN stays NaN. */
void params_round_bf16(const float *in, uint16_t *out, int64_t count);

#endif
