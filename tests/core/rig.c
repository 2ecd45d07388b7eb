/* Plugins by dlopen, options from the published defaults. */
#include "rig.h"

#include <io/fs.h>
#include <math.h>
#include <stdlib.h>
#include <train/trainer_impl.h>
#include <unistd.h>

rig_cfg rig_default(void) {
    rig_cfg c = {.precision = "fp32", .world = 1, .threads = "1"};
    c.trainer = (trainer_cfg){.model = {.layers = 2,
                                        .dense_layers = 0,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .head_dim = 8,
                                        .experts = 4,
                                        .top_k = 2,
                                        .hidden = 32,
                                        .vocab = 256,
                                        .expert_ffn = 24,
                                        .dense_ffn = 40,
                                        .seq = 16,
                                        .micro = 2,
                                        .head_rows = 24,
                                        .rope.theta = 10000,
                                        .norm_eps = 1e-6F,
                                        .init_std = 0.1F,
                                        .seed = 3},
                              .optimizer = {.kind = OPTIMIZER_SGD},
                              .lr = {.schedule = LR_CONSTANT, .lr = 0.1, .total = 1000},
                              .mesh = {.world = 1, .tp = 1, .cp = 1, .pp = 1, .etp = 1, .ep = 1},
                              .programs = TRAINER_TRAIN | TRAINER_EVAL,
                              .global = 4};
    return c;
}

void rig_balance(rig_cfg *c) {
    c->router[0] = (moe_kv){"aux_coef", "0.02"};
    c->router[1] = (moe_kv){"aux_scope", "sequence"};
    c->router[2] = (moe_kv){"z_coef", "0.001"};
}

/* One file of made-up text in dir. Half of the bytes follow from the one before: something to learn. */
static void write_text(const char *dir, int number, int bytes) {
    char path[64];
    moe_random_key key = moe_random_key_make(11 + (uint64_t)number, MOE_RANDOM_DATA, "rig");
    snprintf(path, sizeof path, "%s/%03d", dir, number);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    for (int i = 0, last = 0; i < bytes; i++) {
        last = i % 2 ? (unsigned char)(last * 7 + 3)
                     : (unsigned char)(97u + moe_random_words(key, (uint64_t)i, 0).v[0] % 26u);
        fputc(last, f);
    }
    ck_assert_int_eq(fclose(f), 0);
}

data_reader *rig_data(int64_t seq, int documents) {
    enum { BYTES = 20000, FILES = 200 };
    char dir[] = "/tmp/moehost-rig-XXXXXX", pattern[64];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(pattern, sizeof pattern, "%s/*", dir);
    int n = documents ? FILES : 1, bytes = seq > BYTES / 10 ? (int)(10 * seq) : BYTES;
    for (int i = 0; i < n; i++) write_text(dir, i, n > 1 ? 5 + i % 37 : bytes);
    const char *const files[] = {pattern};
    const data_config cfg = {
        .train = files, .n_train = 1, .valid_fraction = 0.2, .seq_len = seq, .seed = 5, .documents = documents};
    data_reader *out = NULL;
    moe_err err = {.size = sizeof err};
    moe_status status = data_open(&cfg, &out, &err);
    ck_assert(!fs_remove_tree(dir, &(moe_err){.size = sizeof err}));
    ck_assert_msg(!status, "%s", err.msg);
    return out;
}

/* Options of a plugin: its defaults, then what the test changes. */
static part_ref ref_of(const moe_desc *d, moe_kv *kv, const moe_kv *changes) {
    for (uint32_t i = 0; i < d->n_options; i++) {
        kv[i] = (moe_kv){d->options[i].key, d->options[i].dflt};
        for (const moe_kv *c = changes; c && c->key; c++)
            if (strcmp(c->key, kv[i].key) == 0) kv[i].value = c->value;
    }
    return (part_ref){d, d->vtable, kv, d->n_options};
}

static void log_line(void *arg, int32_t level, const char *part, const char *msg) {
    (void)arg;
    if (level == MOE_LOG_ERROR) fprintf(stderr, "%s: %s\n", part, msg);
}

moe_status rig_try_open(rig *r, const rig_cfg *cfg, rank_env *env, moe_err *err) {
    *r = (rig){.data = rig_data(cfg->trainer.model.seq, cfg->trainer.model.documents)};
    const moe_kv device[] = {{"threads", cfg->threads}, {NULL, NULL}};
    r->parts = (parts_cfg){
        .device = ref_of(plugin_open("device", test_device()), r->kv[0], device),
        .comm = ref_of(plugin_open("comm", "threads"), r->kv[1], cfg->comm_options),
        .scheduler = ref_of(plugin_open("scheduler", "serial"), NULL, NULL),
        .dispatcher = ref_of(plugin_open("dispatcher", cfg->dispatcher ? cfg->dispatcher : "local"), r->kv[2], NULL),
        .precision = ref_of(plugin_open("precision", cfg->precision), r->kv[3], NULL),
        .routers = r->routers,
        .n_layers = cfg->trainer.model.layers,
        .rank = env ? env->rank : 0,
        .world = cfg->world,
        .bootstrap = env ? &env->bootstrap : NULL,
        .log = log_line};
    if (cfg->scheduler) {
        r->parts.scheduler.table = cfg->scheduler;
        r->parts.scheduler.kv = cfg->scheduler_kv;
        r->parts.scheduler.n_kv = cfg->n_scheduler_kv;
    }
    if (cfg->device) r->parts.device.table = cfg->device;
    if (cfg->precision_table) r->parts.precision.table = cfg->precision_table;
    if (cfg->dispatcher_table) r->parts.dispatcher.table = cfg->dispatcher_table;
    if (cfg->comm) r->parts.comm.table = cfg->comm;
    for (uint32_t l = 0; l < cfg->trainer.model.layers; l++) {
        r->routers[l] = ref_of(plugin_open("router", "topk"), r->kv[4], cfg->router);
        if (cfg->router_table) r->routers[l].table = cfg->router_table;
    }
    trainer_cfg t = cfg->trainer;
    t.data = r->data;
    t.mesh.world = cfg->world;
    moe_status status = trainer_create(&r->t, &t, &r->parts, err);
    if (status) {
        data_close(r->data);
        *r = (rig){0};
    }
    return status;
}

static moe_status alone(void *ctx, const void *in, uint64_t bytes, void *out, moe_err *err) {
    (void)ctx;
    (void)err;
    memcpy(out, in, bytes);
    return MOE_OK;
}

void rig_open(rig *r, const rig_cfg *cfg, rank_env *env) {
    moe_err err = {.size = sizeof err};
    static const moe_bootstrap single = {.size = sizeof single, .world = 1, .all_gather = alone};
    rank_env one = {.rank = 0, .world = 1, .bootstrap = single};
    moe_status status = rig_try_open(r, cfg, env ? env : &one, &err);
    ck_assert_msg(!status, "%s", err.msg);
}

void rig_close(rig *r) {
    trainer_destroy(r->t);
    data_close(r->data);
    *r = (rig){0};
}

int rig_has_ranks(uint32_t n) {
    const char *most = getenv("MOE_TEST_RANKS");
    return test_on_cpu() || n <= (most ? strtoul(most, NULL, 10) : 1);
}

/* On a stream of its own; the step's are idle. */
static void move(const rig *r, void *to, const void *from, int byte, uint64_t bytes) {
    const moe_device_v0 *d = r->t->parts->device;
    void *self = r->t->parts->device_self, *stream = NULL;
    moe_err err = {.size = sizeof err};
    moe_status s = d->stream_create(self, "test", &stream, &err);
    if (s == MOE_OK)
        s = from ? d->copy(self, stream, to, from, bytes, &err) : d->fill(self, stream, to, (uint8_t)byte, bytes, &err);
    if (s == MOE_OK) s = d->stream_sync(self, stream, &err);
    ck_assert_msg(s == MOE_OK, "%s", err.msg);
    d->stream_destroy(self, stream);
}
void rig_get(const rig *r, void *to, const void *device_memory, uint64_t bytes) {
    move(r, to, device_memory, 0, bytes);
}
void rig_set(const rig *r, void *device_memory, const void *from, uint64_t bytes) {
    move(r, device_memory, from, 0, bytes);
}
void rig_fill(const rig *r, void *device_memory, uint8_t byte, uint64_t bytes) {
    move(r, device_memory, NULL, byte, bytes);
}

void rig_warm(void) {
    const rig_cfg c = rig_default();
    rig r;
    rig_open(&r, &c, NULL);
    rig_step(&r, 1);
    rig_close(&r);
}

step_result rig_step(rig *r, int64_t step) {
    step_result out;
    moe_err err = {.size = sizeof err};
    moe_status status = trainer_step(r->t, step, 0, &out, &err);
    ck_assert_msg(!status, "%s", err.msg);
    return out;
}

static moe_status any_key(void *arg, const char *key, moe_err *err) {
    (void)arg;
    (void)key;
    (void)err;
    return MOE_OK;
}

void rig_save(const rig *r, const char *dir) {
    moe_err err = {.size = sizeof err};
    int writes = r->parts.rank == 0;
    if (writes) ck_assert_msg(!fs_make_dirs(dir, &err), "%s", err.msg);
    ck_assert_msg(!trainer_save(r->t, writes ? dir : NULL, any_key, NULL, &err), "%s", err.msg);
}

float *rig_tensors(const rig *r, int gradient, int64_t *count) {
    int64_t n = 0, total = 0;
    const char *name;
    moe_err err = {.size = sizeof err};
    for (uint32_t i = 0; trainer_param_name(r->t, i, &n); i++) total += n;
    float *out = malloc((size_t)total * sizeof *out), *at = out;
    ck_assert_ptr_nonnull(out);
    for (uint32_t i = 0; (name = trainer_param_name(r->t, i, &n)); i++) {
        ck_assert_msg(trainer_read(r->t, name, gradient, at, &err) == n, "%s", err.msg);
        at += n;
    }
    *count = total;
    return out;
}

double rig_difference(const rig *r, const float *a, const float *b) {
    double worst = 0;
    int64_t n = 0;
    for (uint32_t i = 0; trainer_param_name(r->t, i, &n); i++) {
        double diff = 0, size = 1e-30;
        int finite = 1; /* an assertion is a message to another process: one for all elements */
        for (int64_t k = 0; k < n; k++, a++, b++) {
            finite &= isfinite(*a) && isfinite(*b);
            diff = fmax(diff, fabs((double)*a - (double)*b));
            size = fmax(size, fabs((double)*b));
        }
        ck_assert(finite);
        worst = fmax(worst, diff / size);
    }
    return worst;
}
