/* What the tests of `moehost probe` share: small safetensors files in a folder of each test, the real program, and
 * what it wrote. */
#ifndef TESTS_TRYOUT_RUNS_H
#define TESTS_TRYOUT_RUNS_H
#include <check.h>
#include <io/safetensors.h>

/* For inner loops: an assert of Check writes to a pipe even when it holds. */
#define check_that(cond, ...)                   \
    do {                                        \
        if (!(cond)) ck_abort_msg(__VA_ARGS__); \
    } while (0)

/* A tensor of an input file. shape ends at the first -1; data as dtype says. name NULL ends a list. */
typedef struct given {
    const char *name;
    int32_t dtype;
    int64_t shape[5];
    const void *data;
} given;
#define F32(...) ((const float[]){__VA_ARGS__})
#define I32(...) ((const int32_t[]){__VA_ARGS__})
#define I64(...) ((const int64_t[]){__VA_ARGS__})
#define U8(...) ((const uint8_t[]){__VA_ARGS__})
#define END \
    { .name = NULL } /* of a list */
#define SHAPE(...) \
    { __VA_ARGS__, -1 }

void runs_setup(void);
void runs_teardown(void);
const char *runs_path(const char *name); /* in the folder of this test */
int there(const char *name);
/* Writes in.safetensors. */
void put(const given *tensors);
void put_as(const char *name, const given *tensors);

/* Runs "moehost probe ARGS" in that folder; blanks part words. Returns the exit code; says [4096] is what stderr got,
 * stdout goes to the file "printed". */
int probe(const char *args, char *says);
/* The same with --in in.safetensors --out out.safetensors, which must succeed in silence. */
void probe_well(const char *args);

/* A tensor of out.safetensors: data of this dtype and number of elements, in memory that lives as long as the test. */
const void *got(const char *name, int32_t dtype, int64_t elements);
int has(const char *name);
void want_floats(const char *name, const float *want, int64_t n, double tolerance);
void want_i64(const char *name, const int64_t *want, int64_t n);
void want_i32(const char *name, const int32_t *want, int64_t n);
double got_scalar(const char *name); /* F64 [1] */

TCase *router_tests(void);
TCase *precision_tests(void);
TCase *dispatcher_tests(void);
TCase *scheduler_tests(void);
TCase *refusal_tests(void);

#endif
