/* The compare program must be able to say no: goldens against copies of themselves in which one thing is changed. */
#include <math.h>
#include <sys/wait.h>

#include "core/io/scratch.h"
#include "core/run_suite.h"
#include "io/safetensors.h"

#define GOLDEN MOE_SOURCE_DIR "/tests/oracle/golden/deepseek_v3/"
#define GRAD "grad.model.layers.0.self_attn.q_a_proj.weight"

enum { ADD, SET, DROP, FLATTEN, REVERSE, EXTRA };

/* What is done to the tensor `name` of the copy; at: the element. */
typedef struct change {
    const char *name;
    int kind;
    int64_t at;
    double value;
} change;

static void change_value(const st_tensor *t, void *data, const change *c) {
    int64_t i = c->at;
    ck_assert(i < t->elements);
    if (t->dtype == MOE_I32) {
        int32_t *x = data;
        x[i] = c->kind == ADD ? x[i] + (int32_t)c->value : (int32_t)c->value;
    } else {
        float *x = data;
        x[i] = c->kind == ADD ? x[i] + (float)c->value : (float)c->value;
    }
}

/* The choices of every token in the opposite order. */
static void reverse_rows(const st_tensor *t, void *data) {
    int64_t k = t->shape[1];
    uint32_t *x = data;
    for (int64_t row = 0; row < t->shape[0]; row++, x += k)
        for (int64_t j = 0; j < k / 2; j++) {
            uint32_t kept = x[j];
            x[j] = x[k - 1 - j];
            x[k - 1 - j] = kept;
        }
}

static void declare(const st_file *in, st_writer *w, const change *c) {
    for (uint64_t i = 0; i < st_count(in); i++) {
        const st_tensor *t = st_at(in, i);
        int hit = c->name && strcmp(t->name, c->name) == 0;
        if (hit && c->kind == DROP) continue;
        if (hit && c->kind == FLATTEN)
            ck_ok(st_writer_declare(w, t->name, t->dtype, 1, &t->elements, err));
        else
            ck_ok(st_writer_declare(w, t->name, t->dtype, t->ndim, t->shape, err));
    }
    if (c->kind == EXTRA) ck_ok(st_writer_declare(w, c->name, MOE_F32, 1, (const int64_t[]){1}, err));
}

/* Copies a golden with the change; the path of the copy. */
static const char *copy(const char *file, const change *c) {
    const char *path = scratch_path("dump.safetensors");
    st_file *in = NULL;
    st_writer *w = NULL;
    ck_ok(st_open(file, &in, err));
    ck_ok(st_writer_create(path, &w, err));
    declare(in, w, c);
    for (uint64_t i = 0; i < st_count(in); i++) {
        const st_tensor *t = st_at(in, i);
        int hit = c->name && strcmp(t->name, c->name) == 0;
        if (hit && c->kind == DROP) continue;
        void *data = malloc(t->bytes);
        ck_assert(data != NULL);
        ck_ok(st_read(in, t, data, t->bytes, err));
        if (hit && (c->kind == ADD || c->kind == SET)) change_value(t, data, c);
        if (c->kind == REVERSE && strstr(t->name, ".expert_")) reverse_rows(t, data);
        ck_ok(st_write(w, data, t->bytes, err));
        free(data);
    }
    if (c->kind == EXTRA) ck_ok(st_write(w, (const float[]){0}, sizeof(float), err));
    ck_ok(st_writer_finish(w, err));
    st_close(in);
    return path;
}

/* Compares case `name` with its changed copy: the exit code; what was said in `said`. */
static int run(const char *name, const change *c, char *said, size_t n) {
    char file[512], command[4096];
    snprintf(file, sizeof file, GOLDEN "%s.out.safetensors", name);
    const char *dump = copy(file, c);
    snprintf(command, sizeof command, "'%s' deepseek_v3 %s '" GOLDEN "%s.in.safetensors' '%s' '%s' 2>&1", COMPARE, name,
             name, file, dump);
    FILE *p = popen(command, "r");
    ck_assert(p != NULL);
    size_t got = fread(said, 1, n - 1, p);
    said[got] = '\0';
    int status = pclose(p);
    ck_assert_msg(WIFEXITED(status), "compare ended by a signal: %s", said);
    return WEXITSTATUS(status);
}

static void check(const char *name, change c, int code, const char *words) {
    char said[8192];
    int got = run(name, &c, said, sizeof said);
    ck_assert_msg(got == code, "exit code %d, not %d: %s", got, code, said);
    ck_assert_msg(strstr(said, words) != NULL, "'%s' lacks '%s'", said, words);
}

/* Layers 1 and 2 route; padded: tokens 0..3 and 23..25 of 26 are padding; 79 logits and 3 choices a token. */

START_TEST(same_files_hold) {
    check("plain", (change){0}, 0, "| deepseek_v3 | plain | 0.0e+00 | 0.0e+00 | 0.0e+00 | 0 of 156 | 0.0e+00 |");
    check("padded", (change){0}, 0, "0 of 114");
    check("long", (change){0}, 0, " - | - | held |"); /* no gradients in this golden */
}
END_TEST

START_TEST(order_of_choices_does_not_matter) {
    check("plain", (change){.kind = REVERSE}, 0, "0 of 156");
}
END_TEST

START_TEST(errors_within_the_bounds_hold) {
    check("plain", (change){"logits", ADD, 100, 0.8e-4}, 0, "held");
    check("plain", (change){"loss", ADD, 0, 0.7e-5}, 0, "held");
    check("plain", (change){"layers.2.expert_weights", ADD, 5, 0.8e-4}, 0, "held");
}
END_TEST

START_TEST(errors_beyond_the_bounds_fail_by_name) {
    check("plain", (change){"logits", ADD, 100, 2e-4}, 1, "logits differs by 0.0002");
    check("plain", (change){"loss", ADD, 0, 3e-5}, 1, "loss differs");
    check("plain", (change){"layers.1.router_logits", ADD, 7, 2e-4}, 1, "layers.1.router_logits differs");
    check("plain", (change){"layers.2.expert_weights", ADD, 5, 2e-4}, 1, "layers.2.expert_weights differs");
    check("plain", (change){GRAD, ADD, 5, 1e-2}, 1, GRAD " differs");
    check("plain", (change){"logits", SET, 100, NAN}, 1, "logits differs by nan");
    check("plain", (change){GRAD, SET, 5, NAN}, 1, GRAD " differs by nan");
}
END_TEST

START_TEST(gradients_are_held_to_their_own_size) {
    const char *name = "grad.model.layers.1.mlp.gate.weight";
    st_file *in = NULL;
    ck_ok(st_open(GOLDEN "plain.out.safetensors", &in, err));
    const st_tensor *t = st_find(in, name);
    ck_assert(t != NULL);
    float *x = malloc(t->bytes), largest = 0;
    ck_ok(st_read(in, t, x, t->bytes, err));
    for (int64_t i = 0; i < t->elements; i++) largest = fmaxf(largest, fabsf(x[i]));
    free(x);
    st_close(in);
    check("plain", (change){name, ADD, 3, 0.7e-4 * (double)largest}, 0, "held");
    check("plain", (change){name, ADD, 3, 1.4e-4 * (double)largest}, 1, "gate.weight differs by 0.00014");
}
END_TEST

START_TEST(another_expert_fails) {
    check("plain", (change){"layers.2.expert_ids", SET, 3 * 9 + 1, 99}, 1,
          "layers.2.expert_ids: 1 choices differ, the first at token 9");
    check("padded", (change){"layers.1.expert_ids", SET, 0, 2}, 1, "the first at token 0"); /* padding has none */
    check("plain", (change){"layers.1.expert_ids", SET, 0, -1}, 1, "the first at token 0");
}
END_TEST

START_TEST(logits_of_padding_are_not_compared) {
    check("padded", (change){"logits", ADD, 79 * 3, 1}, 0, "held");
    check("padded", (change){"logits", SET, 79 * 25, NAN}, 0, "held");
    check("padded", (change){"layers.1.router_logits", ADD, 0, 1}, 0, "held");
    check("padded", (change){"logits", ADD, 79 * 4, 1}, 1, "logits differs by 1,");
}
END_TEST

START_TEST(missing_extra_and_misshapen_tensors_fail) {
    check("plain", (change){GRAD, DROP, 0, 0}, 1, GRAD " is not in the dump");
    check("plain", (change){"logits", DROP, 0, 0}, 1, "logits is not in the dump");
    check("plain", (change){"layers.1.expert_ids", DROP, 0, 0}, 1, "layers.1.expert_ids is not in the dump");
    check("plain", (change){"layers.1.expert_weights", DROP, 0, 0}, 1, "layers.1.expert_weights is not in the dump");
    check("plain", (change){"grad.more", EXTRA, 0, 0}, 1, "grad.more is in the dump only");
    check("long", (change){"grad.more", EXTRA, 0, 0}, 0, "held");
    check("plain", (change){"layers.0.router_logits", EXTRA, 0, 0}, 1, "layers.0.router_logits is in the dump only");
    check("plain", (change){"aux_loss", EXTRA, 0, 0}, 0, "held");
    check("plain", (change){"logits", FLATTEN, 0, 0}, 1, "logits has another shape");
}
END_TEST

START_TEST(unreadable_files_are_another_exit_code) {
    ck_assert_int_eq(WEXITSTATUS(system("'" COMPARE "' a b c d e 2>/dev/null")), 2);
    ck_assert_int_eq(WEXITSTATUS(system("'" COMPARE "' 2>/dev/null")), 2);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("compare");
    tcase_add_checked_fixture(t, scratch_setup, scratch_teardown);
    tcase_add_test(t, same_files_hold);
    tcase_add_test(t, order_of_choices_does_not_matter);
    tcase_add_test(t, errors_within_the_bounds_hold);
    tcase_add_test(t, errors_beyond_the_bounds_fail_by_name);
    tcase_add_test(t, gradients_are_held_to_their_own_size);
    tcase_add_test(t, another_expert_fails);
    tcase_add_test(t, logits_of_padding_are_not_compared);
    tcase_add_test(t, missing_extra_and_misshapen_tensors_fail);
    tcase_add_test(t, unreadable_files_are_another_exit_code);
    return run_suite("compare", t);
}
