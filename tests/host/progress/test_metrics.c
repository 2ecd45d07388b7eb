/* metrics.jsonl: lines, resume, disk full. */
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include "core/io/scratch.h"
#include "metrics.h"

static metrics *opened(int64_t first_step) {
    metrics *m = NULL;
    ck_ok(metrics_open(scratch_path("metrics.jsonl"), first_step, &m, err));
    return m;
}

static void write_steps(int64_t first, int64_t last) {
    metrics *m = opened(first);
    for (int64_t step = first; step <= last; step++) {
        metrics_row row = {.step = step};
        METRICS_SET(&row, loss, 1.0 / (double)step);
        ck_ok(metrics_write(m, &row, err));
    }
    ck_ok(metrics_sync(m, err));
    metrics_close(m);
}

/* The file's text; freed by the test's end. */
static char *text_of(void) {
    char *text = NULL;
    uint64_t n = 0;
    ck_ok(fs_load(scratch_path("metrics.jsonl"), 1 << 20, &text, &n, err));
    ck_assert_uint_eq(strlen(text), n);
    return text;
}

static void check_text(const char *expected) {
    char *text = text_of();
    ck_assert_str_eq(text, expected);
    free(text);
}

START_TEST(one_object_a_step_in_the_order_of_the_contract) {
    static const char *const names[] = {"step",
                                        "tokens",
                                        "loss",
                                        "aux_loss",
                                        "z_loss",
                                        "lr",
                                        "grad_norm",
                                        "step_ms",
                                        "tokens_per_s",
                                        "model_gflops",
                                        "mfu",
                                        "dropped",
                                        "imbalance",
                                        "dead",
                                        "router_entropy",
                                        "dispatch_bytes",
                                        "dispatch_far_bytes",
                                        "peak_bytes",
                                        "val_loss"};
    metrics_row row = {.step = INT64_MAX};
    char line[METRICS_LINE];
#define SET_EXTREME(name, type) METRICS_SET(&row, name, (type)(-1.2345678901234567e-300 * (sizeof(type) == 8)));
    METRICS_FIELDS(SET_EXTREME)
    METRICS_SET(&row, tokens, INT64_MAX);
    METRICS_SET(&row, peak_bytes, INT64_MIN);
    METRICS_SET(&row, dead, INT64_MIN);
    int n = metrics_format(&row, line);
    ck_assert_int_lt(n, METRICS_LINE);
    ck_assert_int_eq(n, (int)strlen(line));
    ck_assert_int_eq(line[n - 1], '\n');
    json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_uint_eq(json_object_size(object), METRICS_COUNT + 1);
    const char *key;
    json_t *value;
    size_t i = 0;
    json_object_foreach(object, key, value) ck_assert_str_eq(key, names[i++]);
    ck_assert(json_integer_value(json_object_get(object, "tokens")) == INT64_MAX);
    ck_assert(json_real_value(json_object_get(object, "val_loss")) == -1.2345678901234567e-300);
    json_decref(object);
}
END_TEST

START_TEST(absent_is_left_out_and_not_finite_is_null) {
    metrics_row row = {.step = 7};
    char line[METRICS_LINE];
    metrics_format(&row, line);
    ck_assert_str_eq(line, "{\"step\":7}\n");
    METRICS_SET(&row, loss, NAN);
    METRICS_SET(&row, lr, 0.1);
    METRICS_SET(&row, grad_norm, INFINITY);
    METRICS_SET(&row, mfu, 0.0);
    METRICS_SET(&row, dead, 0);
    METRICS_SET(&row, val_loss, 2.5);
    metrics_format(&row, line);
    ck_assert_str_eq(
        line, "{\"step\":7,\"loss\":null,\"lr\":0.1,\"grad_norm\":null,\"mfu\":0,\"dead\":0,\"val_loss\":2.5}\n");
}
END_TEST

START_TEST(reals_read_back_equal) {
    double value = 1;
    char line[METRICS_LINE];
    for (int i = 0; i < 500; i++) {
        metrics_row row = {.step = 1};
        value = i % 2 ? (double)(float)(value * 1.37) : sqrt(value * 3.1) * (i % 3 ? 1 : 1e7);
        METRICS_SET(&row, loss, value);
        metrics_format(&row, line);
        ck_assert(strtod(strstr(line, "loss\":") + 6, NULL) == value);
    }
}
END_TEST

START_TEST(resume_drops_what_runs_again) {
    write_steps(1, 4);
    write_steps(3, 3); /* resumed from the checkpoint of step 2 */
    check_text("{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":0.5}\n{\"step\":3,\"loss\":0.3333333333333333}\n");
    metrics_close(opened(4)); /* nothing to drop */
    metrics_close(opened(3));
    check_text("{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":0.5}\n");
    write_steps(1, 1); /* a new run over the old one */
    check_text("{\"step\":1,\"loss\":1}\n");
    ck_assert_int_eq(scratch_count(""), 1);
    metrics_close(NULL);
}
END_TEST

static void save_and_open(const char *text, int64_t first_step, const char *expected) {
    scratch_save("metrics.jsonl", text, strlen(text));
    metrics_close(opened(first_step));
    check_text(expected);
}

START_TEST(torn_last_line_is_dropped) {
    save_and_open("{\"step\":1}\n{\"step\":2,\"lo", 9, "{\"step\":1}\n");
    save_and_open("{\"step\":1}\n{\"step\":2,\"loss\":1.", 9, "{\"step\":1}\n");
    save_and_open("{\"step\":1}\n{\"step\":2}", 9, "{\"step\":1}\n{\"step\":2}\n"); /* only the newline was lost */
    save_and_open("{\"step\":1}\n{\"step\":2}", 2, "{\"step\":1}\n");
    save_and_open("{\"st", 9, "");
    save_and_open("", 9, "");
    save_and_open("{\"step\":1}\n\n", 9, "{\"step\":1}\n");
    /* Kept lines keep their bytes, and any fields. */
    save_and_open("{ \"step\" : 1, \"other\":[1,2] }\n{\"step\":5}\n{\"step\":2}\n", 3,
                  "{ \"step\" : 1, \"other\":[1,2] }\n{\"step\":2}\n");
}
END_TEST

START_TEST(damage_in_the_middle_is_an_error) {
    metrics *m = NULL;
    static const char text[] = "{\"step\":1}\n{\"stp\":2}\n{\"step\":3}\n";
    const char *path = scratch_save("metrics.jsonl", text, sizeof text - 1);
    ck_fails(metrics_open(path, 9, &m, err), MOE_E_DATA, "metrics.jsonl: line 2 is not an object with a step");
    check_text(text);
    ck_fails(metrics_open(scratch_path("no/such"), 1, &m, err), MOE_E_IO, "cannot open for writing");
    ck_fails(metrics_open(scratch_dir, 1, &m, err), MOE_E_IO, "is not a regular file");
}
END_TEST

/* Writes rows under a file-size limit; no ck_ macro in between, since Check's own files are limited too. */
static moe_status write_limited(metrics *m, rlim_t limit, const metrics_row *row, moe_err *err) {
    struct rlimit old, low;
    if (getrlimit(RLIMIT_FSIZE, &old) != 0) return MOE_E_INTERNAL;
    low = (struct rlimit){limit, old.rlim_max};
    if (setrlimit(RLIMIT_FSIZE, &low) != 0) return MOE_E_INTERNAL;
    moe_status s = metrics_write(m, row, err);
    return setrlimit(RLIMIT_FSIZE, &old) == 0 ? s : MOE_E_INTERNAL;
}

START_TEST(full_disk_surfaces_and_leaves_no_torn_line) {
    signal(SIGXFSZ, SIG_IGN);
    metrics *m = opened(1);
    metrics_row row = {.step = 1};
    ck_ok(write_limited(m, 11, &row, err)); /* fits exactly */
    row.step = 2;
    ck_fails(write_limited(m, 11, &row, err), MOE_E_IO, "cannot write the line of step 2: File too large");
    ck_fails(write_limited(m, 15, &row, err), MOE_E_IO, "only 4 of 11 bytes of step 2 fit");
    check_text("{\"step\":1}\n");
    ck_ok(metrics_write(m, &row, err)); /* room again */
    check_text("{\"step\":1}\n{\"step\":2}\n");
    metrics_close(m);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("metrics");
    TCase *tc = tcase_create("metrics");
    tcase_add_checked_fixture(tc, scratch_setup, scratch_teardown);
    tcase_add_test(tc, one_object_a_step_in_the_order_of_the_contract);
    tcase_add_test(tc, absent_is_left_out_and_not_finite_is_null);
    tcase_add_test(tc, reals_read_back_equal);
    tcase_add_test(tc, resume_drops_what_runs_again);
    tcase_add_test(tc, torn_last_line_is_dropped);
    tcase_add_test(tc, damage_in_the_middle_is_an_error);
    tcase_add_test(tc, full_disk_surfaces_and_leaves_no_torn_line);
    suite_add_tcase(suite, tc);
    return scratch_run(suite);
}
