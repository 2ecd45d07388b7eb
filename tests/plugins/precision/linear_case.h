/* One product through precision/fp32 or precision/bf16 on one device, dense or grouped, and what it must give. */
#ifndef TESTS_LINEAR_CASE_H
#define TESTS_LINEAR_CASE_H
#include <any_device.h>

/* Test i of a loop: format i / N_TEST_DEVICES on device i % N_TEST_DEVICES. */
enum { FORMAT_FP32, FORMAT_BF16, N_FORMATS, N_COMBINATIONS = N_FORMATS * N_TEST_DEVICES };

typedef struct precision_case {
    any_device dev;
    const moe_precision_v0 *table;
    void *self;
    int32_t act; /* dtype */
    moe_err err;
} precision_case;
void precision_open(precision_case *c, int combination);
void precision_close(precision_case *c);

/* groups 0: dense with M rows. Grouped: counts[g] rows each, aligned to align and what the precision wants, and spare
 * rows behind. */
typedef struct product_case {
    int32_t role, out_dtype;
    uint32_t accumulate, groups;
    int64_t m, n, k, align, spare;
    const int64_t *counts;
    const int32_t *filled; /* [groups] what the flags are before a wgrad that has them; NULL: none are given */
    int exact;             /* small integers: compared bit for bit; else within rounding */
    int host_counts;       /* the rows' numbers are known to the host too */
} product_case;
/* Runs it and checks every element of the output, and that rows past the last are not touched. */
void product_check(precision_case *c, const product_case *p);

Suite *suite_linear(void);
Suite *suite_refusals(void);
#endif
