/* moe.fma/0: what the arithmetic units can do at most, for measuring. A block of floats lies in twelve vector registers
 * for all its rounds: twelve chains that do not wait for each other, more than any unit needs to stay busy. They are
 * named one by one, since an array of them would be kept in memory. */
#include "args.h"

#if defined(__FMA__)
#include <immintrin.h>
#endif

static const char op[] = MOE_OP_FMA;

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
enum { CHAINS = 12, BLOCK = CHAINS * LANES };
typedef float fma_vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* any float address */

/* Multiplications that a piece should take: some ten microseconds. */
static const int64_t PIECE_WORK = INT64_C(1) << 20;

typedef struct fma_call {
    const float *x; /* [n] */
    float *y;       /* [n] */
    int64_t n, piece;
    moe_fma_attr attr;
} fma_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    return op_sizes_none(op_check_fma(a, err), saved, workspace);
}

/* x * factor + term. Intrinsics where the set has fused ones, so that a build without optimisation fuses them too. */
static inline __attribute__((always_inline)) fma_vector step(fma_vector x, fma_vector factor, fma_vector term) {
#if defined(__AVX512F__)
    return (fma_vector)_mm512_fmadd_ps((__m512)x, (__m512)factor, (__m512)term);
#elif defined(__AVX2__) && defined(__FMA__)
    return (fma_vector)_mm256_fmadd_ps((__m256)x, (__m256)factor, (__m256)term);
#else
    return x * factor + term;
#endif
}

#define EACH_CHAIN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define READ(i) fma_vector x##i = *(const fma_vector *)(x + i * LANES);
#define STEP(i) x##i = step(x##i, factor, term);
#define WRITE(i) *(fma_vector *)(y + i * LANES) = x##i;

/* y [BLOCK] = x [BLOCK] after all rounds; may be the same memory. */
static void run_block(const float *x, float *y, const moe_fma_attr *attr) {
    const fma_vector zero = {0}, factor = zero + attr->factor, term = zero + attr->term;
    EACH_CHAIN(READ)
    for (uint32_t r = attr->rounds; r > 0; r--) {
        EACH_CHAIN(STEP)
    }
    EACH_CHAIN(WRITE)
}

static void run_piece(void *arg, int64_t piece, cpu_worker *w) {
    const fma_call *c = arg;
    int64_t i = piece * c->piece, end = cpu_min(c->n, i + c->piece);
    for (; i + BLOCK <= end; i += BLOCK) run_block(c->x + i, c->y + i, &c->attr);
    if (i == end) return;
    memset(w->scratch, 0, BLOCK * sizeof(float)); /* the rest of the tensor, in a block of its own */
    memcpy(w->scratch, c->x + i, (size_t)(end - i) * sizeof(float));
    run_block(w->scratch, w->scratch, &c->attr);
    memcpy(c->y + i, w->scratch, (size_t)(end - i) * sizeof(float));
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    (void)err;
    fma_call c = {.x = a->in[0].data, .y = a->out[0].data, .n = a->in[0].shape[0]};
    c.attr = *(const moe_fma_attr *)a->attr;
    int64_t blocks = PIECE_WORK / BLOCK / ((int64_t)c.attr.rounds + 1);
    c.piece = BLOCK * (blocks > 0 ? blocks : 1);
    cpu_run(dev, cpu_blocks(c.n, c.piece), run_piece, &c);
    return MOE_OK;
}

const moe_op CPU_OP(fma) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
