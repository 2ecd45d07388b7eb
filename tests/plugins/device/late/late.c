/* Device "late", for tests alone: device/cpu made asynchronous, as a GPU is. A step call checks that it was given this
 * device's memory, copies its arguments and returns; the CPU's operation runs when its turn comes on the stream, a
 * little later. MOE_SPACE_DEVICE and LAZY memory has an address that no host code can read or write: what it stands for
 * lies elsewhere. An error in the data goes to `fault`; any other that comes after the return is told by the next
 * stream_sync or event_sync, as a CUDA error is. Memory is looked up by the one issuing thread. */
#include <dlfcn.h>
#include <errno.h>
#include <list.h>
#include <moe/plugin.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

enum { ALIGNMENT = 256, LATE_NS = 50000, MAX_LIST = 64, MAX_ATTR = 256 };

typedef struct range {
    int32_t space;
    char *address, *real; /* what callers have, and what it stands for; the same for MOE_SPACE_HOST */
    uint64_t bytes;
    struct range *next;
} range;

typedef struct late_device {
    const moe_device_v0 *cpu;
    void *self, *so;
    range *ranges;
    pthread_mutex_t lock;
    moe_err error; /* under lock: the first that no sync has told; code MOE_OK = none */
} late_device;

/* ---- memory ---- */
static moe_status late_alloc(void *self, int32_t space, uint64_t bytes, void **out, moe_err *err) {
    late_device *d = self;
    range *r = calloc(1, sizeof *r);
    if (!r) return moe_fail(err, MOE_E_NOMEM, "device/late: out of memory");
    void *real = NULL;
    moe_status s = d->cpu->alloc(d->self, space, bytes, &real, err);
    if (s != MOE_OK) goto fail;
    *r = (range){space, real, real, bytes, d->ranges};
    if (space != MOE_SPACE_HOST) {
        r->address = mmap(NULL, bytes ? bytes : 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (r->address == MAP_FAILED) {
            s = moe_fail(err, MOE_E_NOMEM, "device/late: addresses of %llu bytes: %s", (unsigned long long)bytes,
                         strerror(errno));
            d->cpu->free(d->self, space, real, bytes);
            goto fail;
        }
    }
    d->ranges = r;
    *out = r->address;
    return MOE_OK;
fail:
    free(r);
    return s;
}

static void late_free(void *self, int32_t space, void *ptr, uint64_t bytes) {
    late_device *d = self;
    for (range **at = &d->ranges; ptr && *at; at = &(*at)->next) {
        range *r = *at;
        if (r->address != ptr) continue;
        *at = r->next;
        if (r->address != r->real) munmap(r->address, r->bytes ? r->bytes : 1);
        d->cpu->free(d->self, space, r->real, bytes);
        free(r);
        return;
    }
}

/* The range that the bytes touch, or NULL. A tensor of which only a part is there may begin before its range. */
static const range *find(const late_device *d, const void *ptr, uint64_t bytes) {
    uintptr_t begin = (uintptr_t)ptr, end = begin + bytes;
    for (const range *r = d->ranges; r; r = r->next) {
        uintptr_t at = (uintptr_t)r->address;
        if (begin <= end ? begin < at + r->bytes && at < end : begin < at + r->bytes || at < end) return r;
    }
    return NULL;
}

/* Puts the real address in the place of *ptr; what is not this device's memory is refused where device is 1. */
static moe_status translate(const late_device *d, const char *what, void **ptr, uint64_t bytes, int device,
                            moe_err *err) {
    const range *r = bytes ? find(d, *ptr, bytes) : NULL;
    if (r)
        *ptr = r->real + ((char *)*ptr - r->address);
    else if (bytes && device)
        return moe_fail(err, MOE_E_ARG, "device/late: %s at %p is not memory of this device", what, *ptr);
    return MOE_OK;
}

/* ---- step calls ---- */
typedef struct job {
    late_device *d;
    moe_status (*step)(void *dev, const moe_op_args *args, moe_err *err);
    moe_op_args args;
    moe_tensor in[MAX_LIST], out[MAX_LIST];
    moe_rows rows;
    _Alignas(8) char attr[MAX_ATTR];
} job;

static void wait_a_little(void *arg) {
    (void)arg;
    nanosleep(&(struct timespec){.tv_nsec = LATE_NS}, NULL);
}

/* The number that follows `words` in text; 0 where they are not there. */
static int64_t number_after(const char *text, const char *words) {
    const char *at = strstr(text, words);
    return at ? strtoll(at + strlen(words), NULL, 10) : 0;
}

/* Where the CPU does not fill a fault, it says in words what that says in numbers: "token 2 has id 12, the table has 12
 * rows". */
static moe_fault fault_of(const moe_err *err) {
    static const char *const values[] = {" has id ",   " has target ", " has expert ",
                                         " has slot ", " has row ",    " chose expert "};
    const char *text = err->msg;
    moe_fault f = {.code = err->code, .layer = -1};
    f.token = number_after(text, strstr(text, "token ") ? "token " : "row ");
    f.value = strstr(text, "a weight") ? number_after(text, " slot ") : 0;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (strstr(text, values[i])) f.value = number_after(text, values[i]);
    return f;
}

static void run_job(void *arg) {
    job *j = arg;
    moe_err err = {.size = sizeof err};
    moe_fault *fault = j->args.fault;
    wait_a_little(NULL);
    moe_status s = j->step(j->d->self, &j->args, &err);
    if (fault && (s == MOE_E_DATA || s == MOE_E_OVERFLOW)) {
        if (fault->code == MOE_OK) *fault = fault_of(&err);
    } else if (s != MOE_OK) {
        pthread_mutex_lock(&j->d->lock);
        if (j->d->error.code == MOE_OK) j->d->error = err;
        pthread_mutex_unlock(&j->d->lock);
    }
    free(j);
}

static uint64_t tensor_bytes(const moe_tensor *t) {
    static const uint8_t bytes[] = {4, 2, 8, 4, 8, 1, 1, 1, 1, 1};
    if (t->ndim < 1 || t->ndim > 4 || t->dtype < 0 || t->dtype > MOE_E8M0) return 0;
    uint64_t n = bytes[t->dtype];
    for (int32_t i = 0; i < t->ndim; i++) n *= (uint64_t)t->shape[i];
    return n;
}

static moe_status take_list(const late_device *d, const char *what, const moe_tensor *from, uint32_t n, moe_tensor *to,
                            moe_err *err) {
    if (n > MAX_LIST) return moe_fail(err, MOE_E_ARG, "device/late: %u tensors", n);
    moe_status s = MOE_OK;
    for (uint32_t i = 0; i < n && s == MOE_OK; i++) {
        to[i] = from[i];
        s = translate(d, what, &to[i].data, tensor_bytes(&to[i]), 1, err);
    }
    return s;
}

static moe_status take_rows(const late_device *d, job *j, moe_err *err) {
    j->rows = *j->args.rows; /* of this tree's size: the tests are built with the device */
    j->args.rows = &j->rows;
    void *offsets = (void *)(uintptr_t)j->rows.dev_offsets, *counts = (void *)(uintptr_t)j->rows.dev_counts;
    moe_status s = translate(d, "dev_offsets", &offsets, (j->rows.groups + UINT64_C(1)) * 8, 1, err);
    if (s == MOE_OK && counts) s = translate(d, "dev_counts", &counts, j->rows.groups * UINT64_C(8), 1, err);
    j->rows.dev_offsets = offsets;
    j->rows.dev_counts = counts;
    return s;
}

/* saved, workspace: device memory, not what the host can read, at info.alignment. */
static moe_status take_room(const late_device *d, const char *what, void **ptr, uint64_t alignment, moe_err *err) {
    if (!*ptr) return MOE_OK;
    const range *r = find(d, *ptr, 1);
    if (!r || r->space == MOE_SPACE_HOST || (uintptr_t)*ptr % alignment)
        return moe_fail(err, MOE_E_ARG, "device/late: %s at %p, want device memory at %llu bytes", what, *ptr,
                        (unsigned long long)alignment);
    return translate(d, what, ptr, 1, 1, err);
}

/* The arguments of a call, with real addresses. */
static moe_status take(const late_device *d, job *j, moe_err *err) {
    moe_op_args *a = &j->args;
    moe_status s = take_list(d, "an input", a->in, a->n_in, j->in, err);
    if (s == MOE_OK) s = take_list(d, "an output", a->out, a->n_out, j->out, err);
    if (s == MOE_OK && a->rows) s = take_rows(d, j, err);
    if (s == MOE_OK) s = take_room(d, "saved", &a->saved, ALIGNMENT, err);
    if (s == MOE_OK) s = take_room(d, "workspace", &a->workspace, ALIGNMENT, err);
    if (s == MOE_OK) s = take_room(d, "fault", &a->fault, sizeof(int64_t), err);
    if (s != MOE_OK || !a->attr) return s;
    uint32_t bytes = *(const uint32_t *)a->attr;
    if (bytes > MAX_ATTR) return moe_fail(err, MOE_E_ARG, "device/late: attr of %u bytes", bytes);
    memcpy(j->attr, a->attr, bytes);
    a->attr = j->attr;
    return MOE_OK;
}

static moe_status enqueue(void *self, int index, int backward, const moe_op_args *args, moe_err *err) {
    late_device *d = self;
    job *j = calloc(1, sizeof *j);
    if (!j) return moe_fail(err, MOE_E_NOMEM, "device/late: out of memory");
    j->d = d;
    j->step = backward ? d->cpu->ops[index]->backward : d->cpu->ops[index]->forward;
    j->args = *args;
    moe_status s = take(d, j, err);
    j->args.in = j->in;
    j->args.out = j->out;
    if (s == MOE_OK) s = d->cpu->call_host(d->self, args->stream, run_job, j, err);
    if (s != MOE_OK) free(j);
    return s;
}

static moe_status sizes(void *self, int index, const moe_op_args *args, uint64_t *saved, uint64_t *workspace,
                        moe_err *err) {
    const late_device *d = self;
    return d->cpu->ops[index]->sizes(d->self, args, saved, workspace, err);
}

/* One record an operation, in the CPU's order. */
#define yes(name) name##_backward
#define no(name) NULL
#define RECORD(name, id, backward_)                                                                                  \
    static moe_status name##_sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *work, moe_err *err) { \
        return sizes(dev, CPU_INDEX_##name, a, saved, work, err);                                                    \
    }                                                                                                                \
    static moe_status name##_forward(void *dev, const moe_op_args *a, moe_err *err) {                                \
        return enqueue(dev, CPU_INDEX_##name, 0, a, err);                                                            \
    }                                                                                                                \
    static __attribute__((unused)) moe_status name##_backward(void *dev, const moe_op_args *a, moe_err *err) {       \
        return enqueue(dev, CPU_INDEX_##name, 1, a, err);                                                            \
    }                                                                                                                \
    static const moe_op name##_op = {sizeof(moe_op), 0, id, name##_sizes, name##_forward, backward_(name)};
CPU_OPS(RECORD)
#define OP_OF(name, id, backward_) &name##_op,
static const moe_op *const ops[] = {CPU_OPS(OP_OF)};
#undef OP_OF
#undef RECORD
#undef yes
#undef no

/* ---- streams: the CPU's own ---- */
static moe_status late_copy(void *self, void *stream, void *dst, const void *src, uint64_t bytes, moe_err *err) {
    late_device *d = self;
    void *from = (void *)(uintptr_t)src;
    moe_status s = translate(d, "dst", &dst, bytes, 0, err);
    if (s == MOE_OK) s = translate(d, "src", &from, bytes, 0, err);
    if (s == MOE_OK) s = d->cpu->call_host(d->self, stream, wait_a_little, NULL, err);
    return s == MOE_OK ? d->cpu->copy(d->self, stream, dst, from, bytes, err) : s;
}

static moe_status late_fill(void *self, void *stream, void *dst, uint8_t byte, uint64_t bytes, moe_err *err) {
    late_device *d = self;
    moe_status s = translate(d, "dst", &dst, bytes, 1, err);
    if (s == MOE_OK) s = d->cpu->call_host(d->self, stream, wait_a_little, NULL, err);
    return s == MOE_OK ? d->cpu->fill(d->self, stream, dst, byte, bytes, err) : s;
}

static moe_status late_stream_create(void *self, const char *name, void **out, moe_err *err) {
    late_device *d = self;
    return d->cpu->stream_create(d->self, name, out, err);
}
static void late_stream_destroy(void *self, void *stream) {
    late_device *d = self;
    d->cpu->stream_destroy(d->self, stream);
}
static moe_status late_event_create(void *self, void **out, moe_err *err) {
    late_device *d = self;
    return d->cpu->event_create(d->self, out, err);
}
static void late_event_destroy(void *self, void *event) {
    late_device *d = self;
    d->cpu->event_destroy(d->self, event);
}
static moe_status late_event_record(void *self, void *event, void *stream, moe_err *err) {
    late_device *d = self;
    return d->cpu->event_record(d->self, event, stream, err);
}
static moe_status late_event_wait(void *self, void *stream, void *event, moe_err *err) {
    late_device *d = self;
    return d->cpu->event_wait(d->self, stream, event, err);
}
static moe_status late_call_host(void *self, void *stream, moe_host_fn fn, void *arg, moe_err *err) {
    late_device *d = self;
    return d->cpu->call_host(d->self, stream, fn, arg, err);
}

/* s, or the error of a step that no sync has told yet. */
static moe_status tell(late_device *d, moe_status s, moe_err *err) {
    pthread_mutex_lock(&d->lock);
    if (s == MOE_OK && d->error.code != MOE_OK) {
        *err = d->error;
        s = d->error.code;
        d->error.code = MOE_OK;
    }
    pthread_mutex_unlock(&d->lock);
    return s;
}
static moe_status late_event_sync(void *self, void *event, moe_err *err) {
    late_device *d = self;
    return tell(d, d->cpu->event_sync(d->self, event, err), err);
}
static moe_status late_stream_sync(void *self, void *stream, moe_err *err) {
    late_device *d = self;
    return tell(d, d->cpu->stream_sync(d->self, stream, err), err);
}

/* ---- life ---- */
static const moe_device_v0 *open_cpu(void **so, moe_err *err) {
    const char *path = MOE_BUILD_DIR "/plugins/device/cpu.so";
    const moe_entry *(*entry)(void) = NULL;
    *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*so) *(void **)&entry = dlsym(*so, MOE_ENTRY_SYMBOL);
    if (!entry) {
        moe_fail(err, MOE_E_IO, "device/late: %s: %s", path, dlerror());
        return NULL;
    }
    const moe_device_v0 *table = entry()->descs[0]->vtable;
    if (table->n_ops == CPU_N_OPS) return table;
    moe_fail(err, MOE_E_INTERNAL, "device/late: device/cpu has %u operations, was built with %d", table->n_ops,
             (int)CPU_N_OPS);
    return NULL;
}

static moe_status late_create(const moe_device_cfg *cfg, const moe_host *host, void **self, moe_err *err) {
    static const moe_kv kv[] = {{"threads", "2"}, {"isa", "auto"}, {"spin_us", "0"}};
    moe_device_cfg own = *cfg;
    own.kv = kv;
    own.n_kv = 3;
    late_device *d = calloc(1, sizeof *d);
    if (!d) return moe_fail(err, MOE_E_NOMEM, "device/late: out of memory");
    d->cpu = open_cpu(&d->so, err);
    moe_status s = d->cpu ? d->cpu->create(&own, host, &d->self, err) : err->code;
    if (s != MOE_OK) {
        if (d->so) dlclose(d->so);
        free(d);
        return s;
    }
    pthread_mutex_init(&d->lock, NULL);
    *self = d;
    return MOE_OK;
}

static void late_destroy(void *self) {
    late_device *d = self;
    if (!d) return;
    d->cpu->destroy(d->self);
    pthread_mutex_destroy(&d->lock);
    dlclose(d->so);
    free(d);
}

static moe_status late_info(void *self, moe_device_info *info, moe_err *err) {
    late_device *d = self;
    moe_status s = d->cpu->info(d->self, info, err);
    info->alignment = ALIGNMENT; /* pages, in truth */
    return s;
}

static const void *late_extension(void *self, const char *id) {
    (void)self;
    (void)id;
    return NULL;
}

static const moe_device_v0 table = {
    .size = sizeof(moe_device_v0),
    .n_ops = CPU_N_OPS,
    .ops = ops,
    .create = late_create,
    .destroy = late_destroy,
    .info = late_info,
    .alloc = late_alloc,
    .free = late_free,
    .copy = late_copy,
    .fill = late_fill,
    .stream_create = late_stream_create,
    .stream_destroy = late_stream_destroy,
    .event_create = late_event_create,
    .event_destroy = late_event_destroy,
    .event_record = late_event_record,
    .event_wait = late_event_wait,
    .event_sync = late_event_sync,
    .stream_sync = late_stream_sync,
    .call_host = late_call_host,
    .extension = late_extension,
};
static const moe_desc desc = {.size = sizeof(moe_desc),
                              .kind = "device",
                              .id = "late",
                              .device = "late",
                              .version = "0.1.0",
                              .vendor = "moehost",
                              .license = "MIT",
                              .summary = "device/cpu behind asynchronous calls, for tests",
                              .flags = MOE_ASYNC | MOE_DETERMINISTIC,
                              .vtable = &table};
static const moe_desc *const descs[] = {&desc};
MOE_PLUGIN(descs)
