/* One rank fails or stays away - in create, in a step, in evaluation, while saving - and all others end, with its
 * reason. Nothing here may hang: the time limit of each test is the judge of that. */
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/rig.h"
#include "core/run_suite.h"

enum { WORLD = 3, FAILING = 1 };

/* What the failing rank does. */
enum {
    BAD_BATCH,
    BAD_DEVICE,
    BAD_PRECISION,
    BAD_ROUTER,
    NO_MEMORY,
    OTHER_CALLS,
    FIRST_STEP,
    THIRD_STEP,
    IN_EVAL,
    IN_SAVE,
    STAYS_AWAY,
    DEAF
};

typedef struct ends {
    int what;
    const char *cause; /* words of every rank's error */
    moe_status status[WORLD];
    char msg[WORLD][512];
} ends;

/* ---- parts that fail ---- */
static atomic_int routings, fail_at; /* of the failing rank, since fail_at was set; 0 = never */
static atomic_int inside, let_go;    /* a deaf routing has begun; it may end */

static const moe_router_v0 *topk(void) {
    return plugin_open("router", "topk")->vtable;
}
static moe_status failing_route(const void *self, const moe_route_args *args, moe_err *err) {
    int at = atomic_load(&fail_at);
    if (at && atomic_fetch_add(&routings, 1) + 1 >= at) return moe_fail(err, MOE_E_DATA, "token 5 is not a number");
    return topk()->route(self, args, err);
}
static moe_status deaf_route(const void *self, const moe_route_args *args, moe_err *err) {
    atomic_store(&inside, 1);
    while (!atomic_load(&let_go)) usleep(1000);
    return topk()->route(self, args, err);
}
static moe_status failing_router(const moe_router_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)host;
    (void)self;
    return moe_fail(err, MOE_E_UNSUPPORTED, "no routing for %u experts", cfg->n_experts);
}
static moe_status failing_precision(const moe_precision_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    (void)cfg;
    (void)host;
    (void)self;
    return moe_fail(err, MOE_E_UNSUPPORTED, "no products today");
}

static moe_status many_buckets(const void *self, const moe_shape_in *in, moe_shape_out *out, moe_err *err) {
    (void)self;
    (void)in;
    (void)err;
    out->n_buckets = 40;
    return MOE_OK;
}

typedef struct odd_parts {
    moe_router_v0 router;
    moe_precision_v0 precision;
    moe_scheduler_v0 scheduler;
} odd_parts;

/* The rank's configuration; the failing one's differs. */
static rig_cfg cfg_of(const ends *e, uint32_t rank, odd_parts *odd) {
    rig_cfg c = rig_default();
    c.world = WORLD;
    c.trainer.global = 6;
    c.trainer.optimizer = (optimizer_cfg){.kind = OPTIMIZER_ADAMW, .beta1 = 0.9F, .beta2 = 0.95F, .eps = 1e-8F};
    if (e->what == STAYS_AWAY) c.trainer.timeout = 1;
    if (rank != FAILING) return c;
    odd->router = *topk();
    odd->precision = *(const moe_precision_v0 *)plugin_open("precision", "fp32")->vtable;
    odd->scheduler = *(const moe_scheduler_v0 *)plugin_open("scheduler", "serial")->vtable;
    odd->router.route = e->what == DEAF ? deaf_route : failing_route;
    if (e->what == BAD_ROUTER) odd->router.create = failing_router;
    odd->precision.create = failing_precision;
    odd->scheduler.shape = many_buckets;
    c.router_table = &odd->router;
    if (e->what == BAD_BATCH) c.trainer.global = 7;
    if (e->what == BAD_DEVICE) c.threads = "none";
    if (e->what == BAD_PRECISION) c.precision_table = &odd->precision;
    if (e->what == NO_MEMORY) c.trainer.memory_limit = 1000;
    if (e->what == OTHER_CALLS) c.scheduler = &odd->scheduler;
    return c;
}

/* ---- a rank ---- */
static moe_status ignore_key(void *arg, const char *key, moe_err *err) {
    (void)arg;
    (void)key;
    (void)err;
    return MOE_OK;
}

static moe_status save(rig *r, uint32_t rank, const ends *e, moe_err *err) {
    char dir[] = "/tmp/moehost-ends-XXXXXX", rm[64];
    if (rank) return trainer_save(r->t, NULL, NULL, NULL, err);
    ck_assert_ptr_nonnull(mkdtemp(dir));
    moe_status status = trainer_save(r->t, e->what == IN_SAVE ? "/nowhere/at/all" : dir, ignore_key, NULL, err);
    snprintf(rm, sizeof rm, "rm -r %s", dir);
    ck_assert_int_eq(system(rm), 0);
    return status;
}

static moe_status work(rig *r, uint32_t rank, const ends *e, moe_err *err) {
    step_result out;
    double loss;
    moe_status status = MOE_OK;
    if (e->what == STAYS_AWAY && rank == FAILING) /* until the others have given it up */
        for (int i = 0; i < 20000 && !__atomic_load_n(&e->status[0], __ATOMIC_ACQUIRE); i++) usleep(1000);
    for (int64_t step = 1; step <= 4 && !status; step++) {
        if (rank == FAILING && ((e->what == FIRST_STEP && step == 1) || (e->what == THIRD_STEP && step == 3)))
            atomic_store(&fail_at, 2);
        status = trainer_step(r->t, step, 0, &out, err);
    }
    if (rank == FAILING && e->what == IN_EVAL) atomic_store(&fail_at, 1);
    if (!status) status = trainer_eval(r->t, 3, &loss, err);
    if (!status) status = save(r, rank, e, err);
    if (!status) status = trainer_step(r->t, 5, 0, &out, err);
    return status;
}

static void one_rank(rank_env *env) {
    ends *e = env->arg;
    odd_parts odd;
    rig_cfg c = cfg_of(e, env->rank, &odd);
    rig r;
    moe_err err = {.size = sizeof err};
    moe_status status = rig_try_open(&r, &c, env, &err);
    if (!status) {
        status = work(&r, env->rank, e, &err);
        if (status) trainer_abort(r.t, err.msg);
        rig_close(&r);
    }
    snprintf(e->msg[env->rank], sizeof e->msg[0], "%s", status ? err.msg : "");
    __atomic_store_n(&e->status[env->rank], status, __ATOMIC_RELEASE);
}

/* The failing rank ends with its own status, all others with MOE_E_COMM, and all know the cause. */
static void run_ends(ends *e, uint32_t failing, moe_status own) {
    ranks_run(WORLD, one_rank, e);
    for (uint32_t r = 0; r < WORLD; r++) {
        moe_status want = r == failing ? own : MOE_E_COMM;
        ck_assert_msg(e->status[r] == want, "rank %u: %d, expected %d: %s", r, e->status[r], want, e->msg[r]);
        ck_assert_msg(strstr(e->msg[r], e->cause) != NULL, "rank %u: '%s' lacks '%s'", r, e->msg[r], e->cause);
    }
}

/* ---- create ---- */
/* Before there is a comm the reason stays with its rank: the host prefers it to the others' (host/ranks.c). */
START_TEST(a_rank_that_cannot_start_ends_all) {
    static const int what[] = {BAD_BATCH, BAD_DEVICE};
    static const char *const own[] = {"global = 7", "device/cpu"};
    ends e = {.what = what[_i], .cause = ""};
    run_ends(&e, FAILING, MOE_E_ARG);
    ck_assert_ptr_nonnull(strstr(e.msg[FAILING], own[_i]));
}
END_TEST

START_TEST(a_rank_that_fails_in_create_gives_its_reason) {
    static const struct {
        int what;
        moe_status status;
        const char *cause;
    } at[] = {{BAD_PRECISION, MOE_E_UNSUPPORTED, "no products today"},
              {BAD_ROUTER, MOE_E_UNSUPPORTED, "no routing for 4 experts"},
              {NO_MEMORY, MOE_E_ARG, "[memory] limit is 1000"}};
    ends e = {.what = at[_i].what, .cause = at[_i].cause};
    run_ends(&e, FAILING, at[_i].status);
}
END_TEST

START_TEST(other_calls_are_refused_on_all_ranks) {
    ends e = {.what = OTHER_CALLS};
    ranks_run(WORLD, one_rank, &e);
    for (uint32_t r = 0; r < WORLD; r++) {
        ck_assert_msg(e.status[r] == MOE_E_ARG, "rank %u: %d: %s", r, e.status[r], e.msg[r]);
        ck_assert_str_eq(e.msg[r], e.msg[0]);
        ck_assert_ptr_nonnull(strstr(e.msg[r], "ranks 0 and 1 make other communication calls"));
    }
}
END_TEST

/* ---- running ---- */
START_TEST(a_rank_that_fails_in_a_call_gives_its_reason) {
    static const struct {
        int what;
        const char *cause;
    } at[] = {{FIRST_STEP, "token 5 is not a number (node L1.mb0.route.fwd, rank 1)"},
              {THIRD_STEP, "token 5 is not a number (node L1.mb0.route.fwd, rank 1)"},
              {IN_EVAL, "token 5 is not a number (node L0.mb0.route.fwd, rank 1)"}};
    ends e = {.what = at[_i].what, .cause = at[_i].cause};
    run_ends(&e, FAILING, MOE_E_DATA);
}
END_TEST

START_TEST(a_rank_that_cannot_save_gives_its_reason) {
    ends e = {.what = IN_SAVE, .cause = "/nowhere/at/all"};
    run_ends(&e, 0, MOE_E_IO);
}
END_TEST

/* The watchdog of a rank that waits says for whom; the one that was away finds it when it comes. */
START_TEST(a_rank_that_stays_away_is_named) {
    ends e = {.what = STAYS_AWAY, .cause = "has not returned for"};
    run_ends(&e, FAILING, MOE_E_COMM);
    for (uint32_t r = 0; r < WORLD; r++) {
        ck_assert_msg(strstr(e.msg[r], ".all_reduce on group") != NULL, "rank %u: %s", r, e.msg[r]);
        ck_assert_msg(strstr(e.msg[r], "1 ha") != NULL, "rank %u: %s", r, e.msg[r]); /* "rank 1 has not come" */
    }
}
END_TEST

/* A plugin call that never returns, and a peer that has ended: the rank is given up, from outside of the call. */
typedef struct deaf_case {
    atomic_int stuck;
    char msg[1024];
} deaf_case;
static void give_up(void *arg, const char *msg) {
    deaf_case *d = arg;
    snprintf(d->msg, sizeof d->msg, "%s", msg);
    atomic_fetch_add(&d->stuck, 1);
    atomic_store(&let_go, 1);
}
static void deaf_rank(rank_env *env) {
    const ends e = {.what = DEAF};
    odd_parts odd;
    rig_cfg c = cfg_of(&e, env->rank, &odd);
    rig r;
    step_result out;
    moe_err err = {.size = sizeof err};
    c.trainer.grace = 0.5;
    c.trainer.on_stuck = give_up;
    c.trainer.on_stuck_arg = env->arg;
    rig_open(&r, &c, env);
    if (env->rank == 0) {
        while (!atomic_load(&inside)) usleep(1000);
        trainer_abort(r.t, "the disk is full");
    }
    moe_status status = trainer_step(r.t, 1, 0, &out, &err);
    ck_assert_msg(status == MOE_E_COMM && strstr(err.msg, "the disk is full"), "rank %u: %d: %s", env->rank, status,
                  err.msg);
    rig_close(&r);
}

START_TEST(a_rank_that_does_not_hear_is_given_up) {
    deaf_case d = {.stuck = 0};
    ranks_run(WORLD, deaf_rank, &d);
    ck_assert_int_eq(atomic_load(&d.stuck), 1);
    ck_assert_msg(strstr(d.msg, "the disk is full; rank 1 has not ended") != NULL, "%s", d.msg);
    ck_assert_msg(strstr(d.msg, "inside of L0.mb0.route.fwd") != NULL, "%s", d.msg);
}
END_TEST

/* The same while the other waits for its routing: the dispatcher's calls are watched as all others. */
static void absent_rank(rank_env *env) {
    const ends e = {.what = DEAF};
    odd_parts odd;
    rig_cfg c = cfg_of(&e, env->rank, &odd);
    rig r;
    step_result out;
    moe_err err = {.size = sizeof err};
    c.world = 2;
    c.trainer.global = 4;
    c.trainer.mesh.ep = 2;
    c.dispatcher = "alltoall";
    c.trainer.timeout = 1;
    c.trainer.grace = 0.5;
    c.trainer.on_stuck = give_up;
    c.trainer.on_stuck_arg = env->arg;
    rig_open(&r, &c, env);
    moe_status status = trainer_step(r.t, 1, 0, &out, &err);
    ck_assert_msg(status == MOE_E_COMM, "rank %u: %d: %s", env->rank, status, err.msg);
    check_text(err.msg, (const char *const[]){"L0.mb0.layout.fwd on group layout has not returned for",
                                              "rank 1 has not come", NULL});
    rig_close(&r);
}

START_TEST(C042_a_rank_that_does_not_route_is_named) {
    deaf_case d = {.stuck = 0};
    ranks_run(2, absent_rank, &d);
    ck_assert_int_eq(atomic_load(&d.stuck), 1);
    ck_assert_msg(strstr(d.msg, "rank 1 has not ended") != NULL, "%s", d.msg);
}
END_TEST

START_TEST(without_a_fault_all_ranks_end_well) {
    ends e = {.what = -1};
    ranks_run(WORLD, one_rank, &e);
    for (uint32_t r = 0; r < WORLD; r++) ck_assert_msg(!e.status[r], "rank %u: %d: %s", r, e.status[r], e.msg[r]);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("ends");
    tcase_add_unchecked_fixture(t, rig_warm, NULL);
    tcase_add_loop_test(t, a_rank_that_cannot_start_ends_all, 0, 2);
    tcase_add_loop_test(t, a_rank_that_fails_in_create_gives_its_reason, 0, 3);
    tcase_add_test(t, other_calls_are_refused_on_all_ranks);
    tcase_add_loop_test(t, a_rank_that_fails_in_a_call_gives_its_reason, 0, 3);
    tcase_add_test(t, a_rank_that_cannot_save_gives_its_reason);
    tcase_add_test(t, a_rank_that_stays_away_is_named);
    tcase_add_test(t, a_rank_that_does_not_hear_is_given_up);
    tcase_add_test(t, C042_a_rank_that_does_not_route_is_named);
    tcase_add_test(t, without_a_fault_all_ranks_end_well);
    return run_suite("ends", t);
}
