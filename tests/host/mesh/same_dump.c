/* same_dump A B BOUND: do two dumps of `moehost eval` (or two checkpoints) hold the same tensors? Floating values
 * within BOUND of the largest magnitude of the tensor in A, whole numbers equal; BOUND 0: bit for bit. One line a
 * tensor that differs on stderr; the largest error on stdout. Exit code 0: the same; 1: not; 2: usage, or a file that
 * cannot be read. */
#include <inttypes.h>
#include <math.h>
#include <moe/options.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/safetensors.h"

/* Largest |a - b| over largest |a|; infinite where one is not a number. */
static double float_error(const void *a, const void *b, int32_t dtype, int64_t n) {
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = dtype == MOE_F64 ? ((const double *)a)[i] : (double)((const float *)a)[i];
        double y = dtype == MOE_F64 ? ((const double *)b)[i] : (double)((const float *)b)[i];
        double d = fabs(x - y);
        if (!(d <= worst)) worst = isnan(d) ? (double)INFINITY : d;
        if (fabs(x) > scale) scale = fabs(x);
    }
    return worst == 0 ? 0 : worst / scale;
}

/* Error of one tensor, infinite where whole numbers or bytes differ; -1: unreadable, and said why. */
static double error_of(const st_file *fa, const st_tensor *a, const st_file *fb, const st_tensor *b, double bound) {
    moe_err err = {.size = sizeof err};
    void *x = malloc(a->bytes + 1), *y = malloc(b->bytes + 1);
    double out = -1;
    if (!x || !y || st_read(fa, a, x, a->bytes, &err) || st_read(fb, b, y, b->bytes, &err))
        fprintf(stderr, "same_dump: %s: %s\n", a->name, err.msg);
    else if (memcmp(x, y, a->bytes) == 0)
        out = 0;
    else if (bound > 0 && (a->dtype == MOE_F32 || a->dtype == MOE_F64))
        out = float_error(x, y, a->dtype, a->elements);
    else
        out = (double)INFINITY;
    free(x);
    free(y);
    return out;
}

static int same_shape(const st_tensor *a, const st_tensor *b) {
    int same = b && a->dtype == b->dtype && a->ndim == b->ndim;
    for (int i = 0; i < a->ndim && same; i++) same = a->shape[i] == b->shape[i];
    return same;
}

static int compare(const st_file *fa, const st_file *fb, double bound) {
    double worst = 0;
    int bad = st_count(fa) != st_count(fb);
    if (bad) fprintf(stderr, "same_dump: %" PRIu64 " tensors and %" PRIu64 "\n", st_count(fa), st_count(fb));
    for (uint64_t i = 0; i < st_count(fa); i++) {
        const st_tensor *a = st_at(fa, i), *b = st_find(fb, a->name);
        if (!same_shape(a, b)) {
            fprintf(stderr, "same_dump: %s is missing or of another shape\n", a->name);
            bad = 1;
            continue;
        }
        double e = error_of(fa, a, fb, b, bound);
        if (e < 0) return 2;
        if (e > worst) worst = e;
        if (e <= bound) continue;
        fprintf(stderr, "same_dump: %s differs by %.3g\n", a->name, e);
        bad = 1;
    }
    printf("%.3g\n", worst);
    return bad;
}

int main(int argc, char **argv) {
    st_file *a = NULL, *b = NULL;
    moe_err err = {.size = sizeof err};
    if (argc != 4) {
        fprintf(stderr, "usage: same_dump A B BOUND\n");
        return 2;
    }
    int code = 2;
    if (st_open(argv[1], &a, &err) || st_open(argv[2], &b, &err))
        fprintf(stderr, "same_dump: %s\n", err.msg);
    else
        code = compare(a, b, strtod(argv[3], NULL));
    st_close(a);
    st_close(b);
    return code;
}
