/* compare MODEL CASE IN GOLDEN DUMP: is what `moehost eval --grads` dumped what the reference implementation computed?
 * Prints one row of the parity table (largest errors of each kind) on stdout and a line for each name that differs on
 * stderr. Exit code 0: within the bounds; 1: not; 2: usage, or a file that cannot be read. parity.sh drives it. */
#include <inttypes.h>
#include <math.h>
#include <moe/options.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/safetensors.h"

#define LOSS_BOUND 1e-5   /* absolute */
#define LOGIT_BOUND 1e-4  /* absolute: logits, router logits */
#define WEIGHT_BOUND 1e-4 /* absolute */
#define GRAD_BOUND 1e-4   /* of the largest magnitude of the tensor, */
/* but no tensor counts as smaller than this part of the largest gradient of the model: the bound is then 1e-7 of that,
 * about what FP32 rounds (scores of sequences of two tokens, say, have gradients that are zero but for rounding) */
#define SMALL_TENSOR 1e-3
enum { MAX_CHOICES = 64 }; /* experts a token */

typedef struct comparison {
    const st_file *golden, *dump;
    double *mask; /* [tokens]; NULL: all live */
    int64_t tokens;
    double largest_grad; /* of the golden */
    /* largest errors */
    double loss, logits, router, weights, grads;
    int64_t choices, wrong_choices, grad_tensors;
    int failures, unreadable;
} comparison;

/* ---- files ---- */

static int st_failed(comparison *c, const moe_err *err) {
    fprintf(stderr, "compare: %s\n", err->msg);
    c->unreadable = 1;
    return 1;
}

static double value_of(const void *data, int32_t dtype, int64_t i) {
    switch (dtype) {
        case MOE_F32:
            return (double)((const float *)data)[i];
        case MOE_F64:
            return ((const double *)data)[i];
        case MOE_I32:
            return (double)((const int32_t *)data)[i];
        case MOE_I64:
            return (double)((const int64_t *)data)[i];
        default:
            return (double)((const uint8_t *)data)[i]; /* U8, BOOL */
    }
}

/* All values of a tensor; the caller frees them. NULL: said why. */
static double *load(comparison *c, const st_file *file, const st_tensor *t) {
    moe_err err = {0};
    int known = t->dtype == MOE_F32 || t->dtype == MOE_F64 || t->dtype == MOE_I32 || t->dtype == MOE_I64 ||
                t->dtype == MOE_U8 || t->dtype == ST_BOOL;
    void *raw = malloc(t->bytes + 1);
    double *out = malloc(((uint64_t)t->elements + 1) * sizeof *out);
    if (!raw || !out)
        moe_fail(&err, MOE_E_NOMEM, "%s: no memory", t->name);
    else if (!known)
        moe_fail(&err, MOE_E_UNSUPPORTED, "%s: type %s is not compared", t->name, st_dtype_name(t->dtype));
    else if (st_read(file, t, raw, t->bytes, &err) == MOE_OK) {
        for (int64_t i = 0; i < t->elements; i++) out[i] = value_of(raw, t->dtype, i);
        free(raw);
        return out;
    }
    free(raw);
    free(out);
    st_failed(c, &err);
    return NULL;
}

static int begins(const char *name, const char *prefix) {
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

static int ends(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

static int same_shape(const st_tensor *a, const st_tensor *b) {
    if (a->elements == 1 && b->elements == 1) return 1; /* [1] or a scalar */
    if (a->ndim != b->ndim) return 0;
    for (int32_t i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i]) return 0;
    return 1;
}

/* The dump's tensor of this name and shape; NULL: a failure, and said so. */
static const st_tensor *counterpart(comparison *c, const st_tensor *golden) {
    const st_tensor *dump = st_find(c->dump, golden->name);
    if (dump && same_shape(golden, dump)) return dump;
    fprintf(stderr, dump ? "compare: %s has another shape\n" : "compare: %s is not in the dump\n", golden->name);
    c->failures++;
    return NULL;
}

/* ---- one tensor ---- */

static int live(const comparison *c, int64_t token) {
    return !c->mask || c->mask[token] != 0;
}

/* The larger, where NaN is largest. */
static double worse(double a, double b) {
    return isnan(a) || a > b ? a : b;
}

static void judge(comparison *c, const char *name, double error, double bound) {
    if (error <= bound) return;
    fprintf(stderr, "compare: %s differs by %.2g, the bound is %.2g\n", name, error, bound);
    c->failures++;
}

/* Largest |a - b| over the rows of live tokens; a tensor without a row a token is one row. */
static double distance(const comparison *c, const double *a, const double *b, int64_t n, int rows) {
    int64_t width = rows && c->tokens > 0 ? n / c->tokens : n;
    double error = 0;
    for (int64_t i = 0; i < n; i++)
        if (!rows || live(c, i / width)) error = worse(fabs(a[i] - b[i]), error);
    return error;
}

/* |a - b| of a tensor by name; rows: one a token. Infinite where it is missing. */
static double tensor_error(comparison *c, const st_tensor *golden, int rows, double *largest) {
    const st_tensor *dump = counterpart(c, golden);
    double error = INFINITY;
    double *a = dump ? load(c, c->golden, golden) : NULL, *b = dump ? load(c, c->dump, dump) : NULL;
    if (a && b) {
        error = distance(c, a, b, golden->elements, rows);
        for (int64_t i = 0; largest && i < golden->elements; i++) *largest = worse(fabs(a[i]), *largest);
    }
    free(a);
    free(b);
    return error;
}

static void compare_grad(comparison *c, const st_tensor *golden) {
    double largest = SMALL_TENSOR * c->largest_grad;
    double error = tensor_error(c, golden, 0, &largest);
    if (!isinf(error)) {
        if (largest > 0) error /= largest;
        judge(c, golden->name, error, GRAD_BOUND);
    }
    c->grads = worse(error, c->grads);
    c->grad_tensors++;
}

/* ---- choices: sets of (id, weight) ---- */

/* One token: wrong choices, and the largest error of the weights of the right ones. Padding: -1 and 0 throughout. */
static int64_t compare_choices(const double *id, const double *weight, const double *their_id,
                               const double *their_weight, int64_t k, double *error) {
    int64_t wrong = 0;
    char used[MAX_CHOICES] = {0};
    for (int64_t j = 0; j < k; j++) {
        int64_t i = 0;
        while (i < k && (used[i] || their_id[i] != id[j])) i++;
        if (i == k) {
            wrong++;
            continue;
        }
        used[i] = 1;
        *error = worse(fabs(their_weight[i] - weight[j]), *error);
    }
    return wrong;
}

/* ids and weights of one layer, of both files: [tokens, k] each */
static void compare_tokens(comparison *c, const char *name, double *const x[4], int64_t k) {
    double error = 0;
    int64_t wrong = 0, first = -1;
    for (int64_t t = 0; t < c->tokens; t++) {
        int64_t at = t * k, n = compare_choices(x[0] + at, x[1] + at, x[2] + at, x[3] + at, k, &error);
        if (n > 0 && first < 0) first = t;
        wrong += n;
        c->choices += live(c, t) ? k : 0;
    }
    if (wrong > 0) {
        fprintf(stderr, "compare: %s: %" PRId64 " choices differ, the first at token %" PRId64 "\n", name, wrong,
                first);
        c->failures++;
    }
    char weights[256];
    snprintf(weights, sizeof weights, "%.*sweights", (int)(strlen(name) - strlen("ids")), name);
    judge(c, weights, error, WEIGHT_BOUND);
    c->wrong_choices += wrong;
    c->weights = worse(error, c->weights);
}

static void compare_layer_choices(comparison *c, const st_tensor *ids) {
    char name[256];
    snprintf(name, sizeof name, "%.*sweights", (int)(strlen(ids->name) - strlen("ids")), ids->name);
    const st_tensor *weights = st_find(c->golden, name);
    const st_tensor *dump_ids = counterpart(c, ids), *dump_weights = weights ? counterpart(c, weights) : NULL;
    if (!dump_ids || !dump_weights) {
        c->weights = INFINITY;
        return;
    }
    int64_t k = ids->shape[ids->ndim - 1];
    if (k > MAX_CHOICES || !same_shape(ids, weights) || ids->elements != c->tokens * k) {
        fprintf(stderr, "compare: %s of the golden has no [tokens, k] that can be compared\n", ids->name);
        c->unreadable = 1;
        return;
    }
    double *x[4] = {load(c, c->golden, ids), load(c, c->golden, weights), load(c, c->dump, dump_ids),
                    load(c, c->dump, dump_weights)};
    if (x[0] && x[1] && x[2] && x[3]) compare_tokens(c, ids->name, x, k);
    for (int i = 0; i < 4; i++) free(x[i]);
}

/* ---- all ---- */

static void compare_tensor(comparison *c, const st_tensor *t) {
    double error = 0;
    if (begins(t->name, "grad.")) {
        compare_grad(c, t);
    } else if (strcmp(t->name, "loss") == 0) {
        judge(c, t->name, error = tensor_error(c, t, 0, NULL), LOSS_BOUND);
        c->loss = worse(error, c->loss);
    } else if (strcmp(t->name, "logits") == 0) {
        judge(c, t->name, error = tensor_error(c, t, 1, NULL), LOGIT_BOUND);
        c->logits = worse(error, c->logits);
    } else if (ends(t->name, ".router_logits")) {
        judge(c, t->name, error = tensor_error(c, t, 1, NULL), LOGIT_BOUND);
        c->router = worse(error, c->router);
    } else if (ends(t->name, ".expert_ids")) {
        compare_layer_choices(c, t);
    } else if (!ends(t->name, ".expert_weights")) {
        fprintf(stderr, "compare: the golden has %s, which nothing compares\n", t->name);
        c->unreadable = 1;
    }
}

/* What eval should not have: a gradient or a layer that the reference lacks. */
static void refuse_extras(comparison *c) {
    for (uint64_t i = 0; i < st_count(c->dump); i++) {
        const char *name = st_at(c->dump, i)->name;
        int compared = (c->largest_grad >= 0 && begins(name, "grad.")) || begins(name, "layers.");
        if (!compared || st_find(c->golden, name)) continue;
        fprintf(stderr, "compare: %s is in the dump only\n", name);
        c->failures++;
    }
}

/* largest_grad = of all tensors; -1: the golden has no gradients. */
static void find_largest_grad(comparison *c) {
    c->largest_grad = -1;
    for (uint64_t i = 0; i < st_count(c->golden); i++) {
        const st_tensor *t = st_at(c->golden, i);
        double *x = begins(t->name, "grad.") ? load(c, c->golden, t) : NULL;
        for (int64_t j = 0; x && j < t->elements; j++) c->largest_grad = worse(fabs(x[j]), c->largest_grad);
        free(x);
    }
}

static void print_row(const comparison *c, const char *model, const char *name) {
    printf("| %s | %s | %.1e | %.1e | %.1e | %" PRId64 " of %" PRId64 " | %.1e |", model, name, c->loss, c->logits,
           c->router, c->wrong_choices, c->choices, c->weights);
    if (c->grad_tensors > 0)
        printf(" %.1e | %" PRId64 " |", c->grads, c->grad_tensors);
    else
        printf(" - | - |");
    printf("%s\n", c->failures || c->unreadable ? " FAILED |" : " held |");
}

/* tokens and mask of the input */
static int read_input(comparison *c, const st_file *in) {
    const st_tensor *tokens = st_find(in, "tokens"), *mask = st_find(in, "mask");
    if (!tokens || (mask && mask->elements != tokens->elements)) {
        fprintf(stderr, "compare: the input has no tokens, or a mask of another size\n");
        return 2;
    }
    c->tokens = tokens->elements;
    return mask && !(c->mask = load(c, in, mask)) ? 2 : 0;
}

static int compare(comparison *c, const st_file *in, const char *model, const char *name) {
    int code = read_input(c, in);
    if (code) return code;
    if (!st_find(c->golden, "loss") || !st_find(c->golden, "logits")) {
        fprintf(stderr, "compare: the golden has no loss or no logits\n");
        return 2;
    }
    find_largest_grad(c);
    for (uint64_t i = 0; i < st_count(c->golden); i++) compare_tensor(c, st_at(c->golden, i));
    refuse_extras(c);
    print_row(c, model, name);
    return c->unreadable ? 2 : c->failures > 0;
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: compare MODEL CASE IN GOLDEN DUMP\n");
        return 2;
    }
    comparison c = {0};
    st_file *in = NULL, *golden = NULL, *dump = NULL;
    moe_err err = {0};
    int code = 2;
    if (st_open(argv[3], &in, &err) || st_open(argv[4], &golden, &err) || st_open(argv[5], &dump, &err)) {
        st_failed(&c, &err);
    } else {
        c.golden = golden;
        c.dump = dump;
        code = compare(&c, in, argv[1], argv[2]);
    }
    free(c.mask);
    st_close(in);
    st_close(golden);
    st_close(dump);
    return code;
}
