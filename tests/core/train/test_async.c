/* Training on a device whose calls only enqueue ("late": its memory has addresses that no host code can read): the bits
 * of the CPU, its errors, no update by any rank in a step that has one, and what the host is told and when. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/rig.h"
#include "core/run_suite.h"
#include "train/trainer_impl.h"

/* Which device plugin_open and the rig take from now on. */
static void use(const char *device) {
    ck_assert_int_eq(setenv("MOE_TEST_DEVICE", device, 1), 0);
    const char *folder = strcmp(device, "cpu") == 0 ? MOE_BUILD_DIR "/plugins" : MOE_LATE_PLUGINS;
    ck_assert_int_eq(setenv("MOE_TEST_PLUGINS", folder, 1), 0);
}

/* This rank's master weights, all in one place where they are not cut in slices; free. */
static float *masters(const rig *r, uint64_t *bytes) {
    const params *p = &r->t->model->params;
    *bytes = (uint64_t)p->begin[PARAM_CLASSES] * sizeof(float);
    float *w = malloc(*bytes);
    ck_assert_ptr_nonnull(w);
    rig_get(r, w, p->master, *bytes);
    return w;
}

/* ---- the same bits ---- */
typedef struct bits {
    rig_cfg cfg;
    double loss, eval;
    float *weights; /* [n] of the whole model */
    int64_t n;
} bits;

static void train_rank(rank_env *env) {
    bits *b = env->arg;
    double loss = 0, eval = 0;
    rig r;
    rig_open(&r, &b->cfg, env);
    for (int64_t step = 1; step <= 20; step++) loss = rig_step(&r, step).loss;
    check_ok(trainer_eval(r.t, 2, &eval, err));
    int64_t n = 0;
    float *weights = rig_tensors(&r, 0, &n);
    if (env->rank == 0) {
        b->loss = loss;
        b->eval = eval;
        b->weights = weights;
        b->n = n;
    } else {
        free(weights);
    }
    rig_close(&r);
}

static bits train(const rig_cfg *c, const char *device) {
    bits b = {.cfg = *c};
    use(device);
    ranks_run(c->world, train_rank, &b);
    return b;
}

START_TEST(twenty_steps_have_the_bits_of_the_cpu) {
    rig_cfg c = rig_default();
    rig_balance(&c);
    c.router[3] = (moe_kv){"expert_bias", "true"};
    c.world = _i % 2 ? 2 : 1;
    c.precision = _i / 2 ? "bf16" : "fp32";
    c.trainer.optimizer = (optimizer_cfg){.kind = OPTIMIZER_ADAMW,
                                          .beta1 = 0.9F,
                                          .beta2 = 0.95F,
                                          .eps = 1e-8F,
                                          .weight_decay = 0.1F,
                                          .clip = 1,
                                          .distributed = _i / 2};
    c.trainer.lr.lr = 1e-2;
    c.trainer.model.capacity = 1.25F;
    c.trainer.model.documents = 1;
    bits cpu = train(&c, "cpu"), late = train(&c, "late");
    ck_assert_msg(cpu.loss == late.loss && cpu.eval == late.eval, "%.17g %.17g and %.17g %.17g", cpu.loss, cpu.eval,
                  late.loss, late.eval);
    ck_assert_int_eq(cpu.n, late.n);
    ck_assert(memcmp(cpu.weights, late.weights, (size_t)cpu.n * sizeof *cpu.weights) == 0);
    free(cpu.weights);
    free(late.weights);
}
END_TEST

/* ---- errors in the data ---- */
enum { BAD_LOGIT, BAD_ID, TOO_MANY_ROWS, BAD_CASES };

typedef struct bad {
    int what;
    rig_cfg cfg;
    moe_status status[2];
    char msg[2][512];
    int moved[2]; /* the rank's weights are others */
} bad;

/* The last rank's router of layer 1 sees NaN. */
static void plant(rig *r, uint32_t rank, uint32_t world) {
    static const float nan = NAN;
    const model *m = r->t->model;
    float *w = m->params.master + m->params.at[m->layers[1].router].offset;
    if (rank == world - 1) rig_set(r, w, &nan, sizeof nan);
}

static void bad_rank(rank_env *env) {
    bad *b = env->arg;
    uint64_t bytes = 0;
    step_result out;
    moe_err err = {.size = sizeof err};
    rig r;
    rig_open(&r, &b->cfg, env);
    if (b->what == BAD_LOGIT) plant(&r, env->rank, env->world);
    float *before = masters(&r, &bytes);
    b->status[env->rank] = trainer_step(r.t, 1, 0, &out, &err);
    snprintf(b->msg[env->rank], sizeof b->msg[0], "%s", err.msg);
    float *after = masters(&r, &bytes);
    b->moved[env->rank] = memcmp(before, after, bytes) != 0;
    free(before);
    free(after);
    rig_close(&r);
}

static bad fail_with(int what, uint32_t world, const char *device) {
    bad b = {.what = what, .cfg = rig_default()};
    model_cfg *m = &b.cfg.trainer.model;
    b.cfg.world = world;
    if (what == BAD_ID) m->vocab = 110; /* the text has larger bytes */
    if (what == TOO_MANY_ROWS) {
        m->recv = RECV_CAPACITY;
        m->recv_factor = 0.5F;
        m->overflow = MOE_OVERFLOW_STOP;
    }
    use(device);
    ranks_run(world, bad_rank, &b);
    return b;
}

/* The words that the CPU and a fault have in common. */
static const char *words_of(int what, const char *cpu, char *words, size_t bytes) {
    snprintf(words, bytes, "%s", cpu);
    char *cut = what == BAD_LOGIT       ? strstr(words, " is ")
                : what == TOO_MANY_ROWS ? strstr(words, " rows needed")
                                        : NULL;
    if (cut) *cut = 0;
    char *colon = what == TOO_MANY_ROWS ? strchr(words, ':') : NULL;
    return colon ? colon : words;
}

START_TEST(an_error_in_the_data_is_the_cpus_and_nobody_updates) {
    int what = _i % BAD_CASES;
    uint32_t world = _i / BAD_CASES ? 2 : 1, told = 0;
    static const char *const nodes[BAD_CASES] = {"(node L1.mb0.route.fwd, rank ", "(node mb0.embed.fwd, rank ",
                                                 "(node L0.mb0.layout.fwd, rank "};
    bad cpu = fail_with(what, world, "cpu"), late = fail_with(what, world, "late");
    for (uint32_t rank = 0; rank < world; rank++) {
        char room[512];
        ck_assert_msg(late.status[rank] != MOE_OK, "rank %u has not failed", rank);
        ck_assert_msg(!late.moved[rank], "the weights of rank %u have moved", rank);
        check_text(late.msg[rank], (const char *const[]){nodes[what], NULL});
        if (late.status[rank] == MOE_E_COMM) continue;
        told++;
        ck_assert_int_eq(late.status[rank], what == TOO_MANY_ROWS ? MOE_E_OVERFLOW : MOE_E_DATA);
        if (cpu.status[rank] == MOE_E_COMM) continue;
        check_text(late.msg[rank], (const char *const[]){words_of(what, cpu.msg[rank], room, sizeof room), NULL});
        if (what == BAD_ID) ck_assert_str_eq(late.msg[rank], cpu.msg[rank]);
    }
    ck_assert_uint_ge(told, 1);
    if (what == BAD_LOGIT && world == 2) { /* of one rank alone */
        ck_assert_int_eq(late.status[0], MOE_E_COMM);
        check_text(late.msg[0], (const char *const[]){"aborted by rank 1", "layer 1: logit of token 0", NULL});
    }
}
END_TEST

/* Programs without an optimiser. */
static void other_programs(const char *device, char *eval_msg, char *logits_msg) {
    rig_cfg c = rig_default();
    moe_err err = {.size = sizeof err};
    double loss;
    rig r;
    use(device);
    c.trainer.programs = TRAINER_EVAL | TRAINER_LOGITS;
    c.trainer.model.vocab = 110;
    rig_open(&r, &c, NULL);
    ck_assert_int_eq(trainer_eval(r.t, 1, &loss, &err), MOE_E_DATA);
    strcpy(eval_msg, err.msg);
    int64_t T = c.trainer.model.micro * c.trainer.model.seq;
    int32_t *tokens = calloc((size_t)T, sizeof *tokens);
    float *logits = malloc((size_t)(T * c.trainer.model.vocab) * sizeof *logits);
    ck_assert(tokens && logits);
    tokens[7] = 110;
    ck_assert_int_eq(trainer_logits(r.t, tokens, T, logits, &err), MOE_E_DATA);
    strcpy(logits_msg, err.msg);
    tokens[7] = 109; /* a step without a fault after one with */
    if (strcmp(device, "late") == 0) ck_assert_msg(!trainer_logits(r.t, tokens, T, logits, &err), "%s", err.msg);
    free(tokens);
    free(logits);
    rig_close(&r);
}

START_TEST(evaluation_and_logits_have_the_errors_of_the_cpu) {
    char cpu[2][512], late[2][512];
    other_programs("cpu", cpu[0], cpu[1]);
    other_programs("late", late[0], late[1]);
    for (int i = 0; i < 2; i++) ck_assert_str_eq(cpu[i], late[i]);
    check_text(late[1], (const char *const[]){"token 7 has id 110, the table has 110 rows (node mb0.embed.fwd", NULL});
}
END_TEST

/* ---- counts and handles in host memory ---- */
enum { MOST_CALLS = 64 };
static struct {
    int host_counts, arrays, products; /* of the cfg; calls of layout with arrays; grouped products that saw counts */
    int layouts, moves, async;
    void *handles[MOST_CALLS];
} seen;
static const parts *seen_parts; /* of the only rank */

static const moe_dispatcher_v0 *local(void) {
    return plugin_open("dispatcher", "local")->vtable;
}
static moe_status spy_create(const moe_dispatcher_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    seen.host_counts += cfg->host_counts == 1;
    return local()->create(cfg, host, self, err);
}
static void spy_destroy(void *self) {
    local()->destroy(self);
}
static moe_status spy_needs(void *self, moe_dispatcher_needs *needs, moe_err *err) {
    moe_status s = local()->needs(self, needs, err);
    needs->host_handle = sizeof(int64_t);
    return s;
}
static moe_status spy_layout(const void *self, const moe_layout_args *a, moe_err *err) {
    moe_status s = local()->layout(self, a, err);
    uint64_t groups = a->rows->groups;
    for (int i = 0; i < seen.layouts; i++) ck_assert_ptr_ne(seen.handles[i], a->host_handle);
    ck_assert_int_lt(seen.layouts, MOST_CALLS);
    *(int64_t *)a->host_handle = 1000 + seen.layouts;
    seen.handles[seen.layouts++] = a->host_handle;
    ck_assert_ptr_eq(a->host_offsets, a->rows->host_offsets);
    ck_assert_ptr_eq(a->host_counts, a->rows->host_counts);
    if (!a->host_counts || s) return s;
    seen.arrays++;
    const moe_device_v0 *d = seen_parts->device;
    s = d->copy(seen_parts->device_self, a->stream, a->host_offsets, a->offsets->data, 8 * (groups + 1), err);
    if (!s) s = d->copy(seen_parts->device_self, a->stream, a->host_counts, a->counts->data, 8 * groups, err);
    return s ? s : d->stream_sync(seen_parts->device_self, a->stream, err);
}
static moe_status see_move(const moe_move_args *a) {
    int64_t number = *(const int64_t *)a->host_handle - 1000;
    seen.moves += number >= 0 && number < seen.layouts && seen.handles[number] == a->host_handle;
    return MOE_OK;
}
static moe_status spy_pack(const void *self, const moe_move_args *a, moe_err *err) {
    see_move(a);
    return local()->pack(self, a, err);
}
static moe_status spy_unpack(const void *self, const moe_move_args *a, moe_err *err) {
    see_move(a);
    return local()->unpack(self, a, err);
}
static moe_status spy_exchange(const void *self, const moe_move_args *a, moe_err *err) {
    return local()->exchange(self, a, err);
}
static const moe_dispatcher_v0 spy_dispatcher = {
    sizeof spy_dispatcher, 0, spy_create, spy_destroy, spy_needs, spy_layout, spy_pack, spy_exchange, spy_unpack, NULL};

static moe_status spy_linear(const void *self, const moe_linear_args *a, moe_err *err) {
    const moe_precision_v0 *inner = plugin_open("precision", "fp32")->vtable;
    const moe_rows *r = a->rows;
    if (r && r->host_counts) {
        int64_t sum = 0;
        for (uint32_t g = 0; g < r->groups; g++) sum += r->host_counts[g];
        seen.products += sum == 32 * 2 && r->host_offsets[r->groups] == sum; /* tokens of a microbatch, choices */
    }
    return inner->linear(self, a, err);
}

static void see_step(const char *device, int32_t recv) {
    use(device);
    rig_cfg c = rig_default();
    moe_precision_v0 precision = *(const moe_precision_v0 *)plugin_open("precision", "fp32")->vtable;
    precision.linear = spy_linear;
    c.precision_table = &precision;
    c.dispatcher_table = &spy_dispatcher;
    c.trainer.programs = TRAINER_TRAIN;
    c.trainer.model.recv = recv;
    c.trainer.model.recv_factor = 4;
    memset(&seen, 0, sizeof seen);
    rig r;
    rig_open(&r, &c, NULL);
    seen_parts = r.t->parts;
    rig_step(&r, 1);
    rig_close(&r);
}

START_TEST(the_host_knows_counts_where_exact_rows_are_received) {
    enum { LAYOUTS = 2 * 2, PRODUCTS = LAYOUTS * 6, MOVES = LAYOUTS * 4 }; /* layers x microbatches */
    see_step("late", RECV_EXACT);
    ck_assert_int_eq(seen.host_counts, 2);
    ck_assert_int_eq(seen.arrays, LAYOUTS);
    ck_assert_int_eq(seen.products, PRODUCTS);
    ck_assert_int_eq(seen.moves, MOVES);
    see_step("cpu", RECV_EXACT);
    ck_assert_int_eq(seen.host_counts, 2);
    ck_assert_int_eq(seen.arrays, 0);
    ck_assert_int_eq(seen.moves, MOVES);
    static const int32_t fixed[] = {RECV_WORST, RECV_CAPACITY};
    for (int i = 0; i < 2; i++) {
        see_step("late", fixed[i]);
        ck_assert_int_eq(seen.host_counts, 0);
        ck_assert_int_eq(seen.arrays, 0);
        ck_assert_int_eq(seen.products, 0);
        ck_assert_int_eq(seen.layouts, LAYOUTS);
    }
}
END_TEST

/* ---- communication ---- */
/* A comm that reads host memory would end in a signal. */
START_TEST(one_rank_moves_nothing_by_its_comm) {
    use("cpu");
    const moe_comm_v0 *threads = plugin_open("comm", "threads")->vtable;
    use("late");
    rig_cfg c = rig_default();
    int64_t n = 0;
    c.comm = threads;
    rig r;
    rig_open(&r, &c, NULL);
    rig_step(&r, 1);
    free(rig_tensors(&r, 0, &n));
    rig_close(&r);
}
END_TEST

/* Rank 1 does not come to the step; rank 0's calls have all returned, and its device waits. */
static void lonely_rank(rank_env *env) {
    rig_cfg c = rig_default();
    moe_err reason = {.size = sizeof reason};
    step_result out;
    rig r;
    c.world = 2;
    c.trainer.timeout = 0.5;
    rig_open(&r, &c, env);
    const parts *p = r.t->parts;
    if (env->rank == 0) {
        check_fails(trainer_step(r.t, 1, 0, &out, err), MOE_E_COMM, "rank 0: a communication call has not ended for 0.",
                    ": call ", "rank 1 has not come");
    } else {
        while (!p->comm->poll(p->comm_self, &reason)) usleep(1000);
        check_text(reason.msg, (const char *const[]){"a communication call has not ended", NULL});
    }
    rig_close(&r);
}

START_TEST(a_rank_that_does_not_come_is_seen_by_what_the_comm_waits_for) {
    use("late");
    ranks_run(2, lonely_rank, NULL);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("async");
    tcase_add_loop_test(t, twenty_steps_have_the_bits_of_the_cpu, 0, 4);
    tcase_add_loop_test(t, an_error_in_the_data_is_the_cpus_and_nobody_updates, 0, 2 * BAD_CASES);
    tcase_add_test(t, evaluation_and_logits_have_the_errors_of_the_cpu);
    tcase_add_test(t, the_host_knows_counts_where_exact_rows_are_received);
    tcase_add_test(t, one_rank_moves_nothing_by_its_comm);
    tcase_add_test(t, a_rank_that_does_not_come_is_seen_by_what_the_comm_waits_for);
    return run_suite("async", t);
}
