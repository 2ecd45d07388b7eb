/* Router "topk" against the rules that hold for every router: inputs and guards untouched, same bits again and on any
 * threads, instances that share nothing, no allocation in step calls. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "combos.h"
#include "fixture.h"
#include "pool.h"
#include "test_main.h"

/* ---- allocations are counted where no sanitizer owns malloc ---- */

#if !SANITIZED
static atomic_long allocations;
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void *malloc(size_t bytes) {
    atomic_fetch_add(&allocations, 1);
    return __libc_malloc(bytes);
}
void *calloc(size_t n, size_t bytes) {
    atomic_fetch_add(&allocations, 1);
    return __libc_calloc(n, bytes);
}
void *realloc(void *old, size_t bytes) {
    atomic_fetch_add(&allocations, 1);
    return __libc_realloc(old, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes) {
    atomic_fetch_add(&allocations, 1);
    return __libc_memalign(alignment, bytes);
}

START_TEST(step_calls_do_not_allocate) {
    char text[256];
    ref_options o;
    if (!test_on_cpu())
        return; /* where the device's own library does, and the rig's calls are not the plugin's alone */
    if (!combo(_i, 8, 2, text, sizeof text, &o)) return;
    rig r;
    rig_open(&r, "topk", 200, 8, 2, text, NULL);
    rig_random(r.logits, 1600, 1, 3);
    long before = atomic_load(&allocations);
    moe_status s = rig_route(&r) | rig_bwd(&r) | rig_end_step(&r);
    r.logits[100] = 1.0f / 0.0f;
    moe_status bad = rig_route(&r);
    long after = atomic_load(&allocations);
    ck_assert_int_gt(before, 5); /* the rig's own: the counter counts */
    ck_assert_int_eq(s, MOE_OK);
    ck_assert_int_eq(bad, MOE_E_DATA);
    ck_assert_int_eq(before, after);
    void *probe = NULL;
    moe_err err;
    ck_assert_int_eq(rig_create("topk", 8, 2, 4, text, &r.host.host, &probe, &err), MOE_OK);
    ck_assert_int_gt(atomic_load(&allocations), after); /* create does allocate: the plugin is counted too */
    r.table->destroy(probe);
    rig_close(&r);
}
END_TEST
#endif

static void fill(rig *r, uint64_t seed) {
    rig_random(r->logits, r->tokens * r->experts, 1.5, seed);
    rig_random(r->d_weights, r->tokens * r->k, 1, seed + 1);
    rig_random(r->bias, r->experts, 0.2, seed + 2);
    r->seq_len = r->tokens / 2;
    r->masked = 1;
    for (int64_t t = 0; t < r->tokens; t++) r->mask[t] = t % 7 != 3;
}

static void run_all_calls(rig *r) {
    ck_assert_int_eq(rig_route(r), MOE_OK);
    ck_assert_int_eq(rig_bwd(r), MOE_OK);
    ck_assert_int_eq(rig_end_step(r), MOE_OK);
}

static void same_outputs(const rig *a, const rig *b) {
    size_t te = (size_t)(a->tokens * a->experts), tk = (size_t)(a->tokens * a->k), e = (size_t)a->experts;
    ck_assert_mem_eq(a->ids, b->ids, tk * sizeof *a->ids);
    ck_assert_mem_eq(a->weights, b->weights, tk * sizeof *a->weights);
    ck_assert_mem_eq(a->counts, b->counts, e * sizeof *a->counts);
    ck_assert_mem_eq(a->losses, b->losses, 3 * sizeof *a->losses);
    ck_assert_mem_eq(a->d_logits, b->d_logits, te * sizeof *a->d_logits);
    ck_assert_mem_eq(a->bias, b->bias, e * sizeof *a->bias);
}

START_TEST(same_bits_on_any_threads) {
    char text[256];
    ref_options o;
    if (!test_on_cpu()) return; /* a device with host threads */
    if (!combo(_i, 12, 3, text, sizeof text, &o)) return;
    rig alone;
    rig_open(&alone, "topk", 700, 12, 3, text, NULL);
    fill(&alone, 9);
    run_all_calls(&alone);
    for (uint32_t threads = 2; threads < 5; threads++) {
        pool p;
        const test_service *services = pool_open(&p, threads, threads != 4);
        rig shared;
        rig_open(&shared, "topk", 700, 12, 3, text, services);
        fill(&shared, 9);
        run_all_calls(&shared);
        ck_assert_int_ge(p.runs, 2);
        same_outputs(&alone, &shared);
        rig_close(&shared);
    }
    rig_close(&alone);
}
END_TEST

START_TEST(first_bad_token_on_any_threads) {
    pool p;
    rig r;
    if (!test_on_cpu()) return;
    rig_open(&r, "topk", 900, 8, 2, "", pool_open(&p, 3, 1));
    for (int t = 77; t < 900; t += 50) r.logits[8 * t + 5] = 1.0f / 0.0f;
    ck_assert_int_eq(rig_route(&r), MOE_E_DATA);
    ck_assert_str_eq(r.err.msg, "layer 3: logit of token 77, expert 5 is inf");
    rig_close(&r);
}
END_TEST

START_TEST(a_device_without_the_extension_is_fine) {
    static const moe_device_v0 bare = {.size = sizeof(moe_device_v0)};
    moe_device_service device = {sizeof device, 0, &bare, NULL};
    test_service services[] = {{"moe.device/0", &device}, {NULL, NULL}};
    rig r;
    if (!test_on_cpu()) return;
    rig_open(&r, "topk", 100, 8, 2, "", services);
    fill(&r, 1);
    run_all_calls(&r);
    rig_close(&r);
}
END_TEST

START_TEST(inputs_unchanged_and_same_bits_again) {
    char text[256];
    ref_options o;
    if (!combo(_i, 12, 3, text, sizeof text, &o)) return;
    rig r, again;
    rig_open(&r, "topk", 90, 12, 3, text, NULL);
    rig_open(&again, "topk", 90, 12, 3, text, NULL);
    fill(&r, 4);
    fill(&again, 4);
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    ck_assert_mem_eq(r.logits, again.logits, 90 * 12 * sizeof(float));
    ck_assert_mem_eq(r.mask, again.mask, 90);
    ck_assert_mem_eq(r.bias, again.bias, 12 * sizeof(float));
    int32_t ids[270];
    float weights[270];
    memcpy(ids, r.ids, sizeof ids);
    memcpy(weights, r.weights, sizeof weights);
    ck_assert_int_eq(rig_bwd(&r), MOE_OK);
    ck_assert_mem_eq(r.logits, again.logits, 90 * 12 * sizeof(float));
    ck_assert_mem_eq(r.d_weights, again.d_weights, 90 * 3 * sizeof(float));
    ck_assert_mem_eq(r.ids, ids, sizeof ids);
    ck_assert_mem_eq(r.weights, weights, sizeof weights);
    ck_assert_int_eq(rig_end_step(&r), MOE_OK);
    rig_fill_workspace(&again, 0x7f); /* what lies in the workspace is not read */
    run_all_calls(&again);
    same_outputs(&r, &again);
    rig_close(&r);
    rig_close(&again);
}
END_TEST

START_TEST(C031_interleaved_instances_equal_two_alone) {
    static const char *const styles[2] = {"score=sigmoid expert_bias=true aux_coef=0.1", "renormalise=true z_coef=1"};
    rig alone[2], mixed[2];
    for (int i = 0; i < 2; i++) {
        rig_open(&alone[i], "topk", 80, 8 + 4 * i, 2, styles[i], NULL);
        fill(&alone[i], (uint64_t)i);
        run_all_calls(&alone[i]);
    }
    for (int i = 0; i < 2; i++) {
        rig_open(&mixed[i], "topk", 80, 8 + 4 * i, 2, styles[i], NULL);
        fill(&mixed[i], (uint64_t)i);
    }
    ck_assert_int_eq(rig_route(&mixed[1]) | rig_route(&mixed[0]), MOE_OK);
    ck_assert_int_eq(rig_bwd(&mixed[0]) | rig_bwd(&mixed[1]), MOE_OK);
    ck_assert_int_eq(rig_end_step(&mixed[1]) | rig_end_step(&mixed[0]), MOE_OK);
    for (int i = 0; i < 2; i++) {
        same_outputs(&alone[i], &mixed[i]);
        rig_close(&alone[i]);
        rig_close(&mixed[i]);
    }
}
END_TEST

typedef struct walker {
    const rig *like;
    rig own; /* buffers of its own, the instance of `like` */
} walker;

static void *walk(void *arg) {
    walker *w = arg;
    void *own = w->own.self;
    w->own.self = w->like->self;
    moe_status s = MOE_OK;
    for (int i = 0; i < 5; i++) {
        memset(w->own.counts, 0, (size_t)w->own.experts * sizeof *w->own.counts);
        memset(w->own.losses, 0, 3 * sizeof *w->own.losses);
        s |= rig_route(&w->own) | rig_bwd(&w->own);
    }
    w->own.self = own;
    return s == MOE_OK ? w : NULL;
}

/* Calls of one instance for different microbatches may overlap. On CUDA all come from one thread. */
START_TEST(one_instance_in_two_threads) {
    rig r;
    if (!test_on_cpu()) return;
    walker w[2];
    pthread_t threads[2];
    rig_open(&r, "topk", 300, 8, 2, "score=sigmoid expert_bias=true aux_coef=0.1", NULL);
    fill(&r, 3);
    ck_assert_int_eq(rig_route(&r) | rig_bwd(&r), MOE_OK);
    for (int i = 0; i < 2; i++) {
        w[i].like = &r;
        rig_open(&w[i].own, "topk", 300, 8, 2, "score=sigmoid expert_bias=true aux_coef=0.1", NULL);
        fill(&w[i].own, 3);
    }
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, walk, &w[i]), 0);
    for (int i = 0; i < 2; i++) {
        void *done = NULL;
        pthread_join(threads[i], &done);
        ck_assert_ptr_eq(done, &w[i]);
    }
    for (int i = 0; i < 2; i++) {
        same_outputs(&r, &w[i].own);
        rig_close(&w[i].own);
    }
    rig_close(&r);
}
END_TEST

START_TEST(hundred_instances) {
    const moe_router_v0 *table = plugin_open("router", "topk")->vtable;
    void *self[100];
    moe_err err;
    rig r; /* has a host of the device under test */
    rig_open(&r, "topk", 1, 8, 2, "", NULL);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 100; i++)
            ck_assert_int_eq(rig_create("topk", 8, 2, 64, "", &r.host.host, &self[i], &err), MOE_OK);
        for (int i = 0; i < 100; i++) table->destroy(self[(i * 37) % 100]);
    }
    rig_close(&r);
}
END_TEST

START_TEST(wrong_shapes_are_refused) {
    rig r;
    rig_open(&r, "topk", 4, 8, 2, "", NULL);
    rig_refuses_shapes(&r);
    r.tokens = 2; /* fewer is fine */
    ck_assert_int_eq(rig_route(&r), MOE_OK);
    r.tokens = 4;
    rig_close(&r);
}
END_TEST

int main(void) {
    TCase *c = tcase_create("contract");
    tcase_set_timeout(c, 60);
#if !SANITIZED
    tcase_add_loop_test(c, step_calls_do_not_allocate, 0, COMBOS);
#endif
    tcase_add_loop_test(c, same_bits_on_any_threads, 0, COMBOS);
    tcase_add_test(c, first_bad_token_on_any_threads);
    tcase_add_test(c, a_device_without_the_extension_is_fine);
    tcase_add_loop_test(c, inputs_unchanged_and_same_bits_again, 0, COMBOS);
    tcase_add_test(c, C031_interleaved_instances_equal_two_alone);
    tcase_add_test(c, one_instance_in_two_threads);
    tcase_add_test(c, hundred_instances);
    tcase_add_test(c, wrong_shapes_are_refused);
    return run_case(c);
}
