/* Streams, events and memory of the CUDA runtime. See runtime.h. */
#include "runtime.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

namespace {

std::atomic<int> poisoned{cudaSuccess};
thread_local cudaError_t last = cudaSuccess;
thread_local int device = 0;

int number(const char *name, int other) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : other;
}
int devices() {
    static const int n = number("MOE_DOUBLE_DEVICES", 8);
    return n;
}

}  // namespace

namespace {

/* How often the host has waited for a device, written at the end where MOE_DOUBLE_WAITS names a file. */
struct wait_count {
    std::atomic<long long> n{0};
    ~wait_count() {
        const char *path = getenv("MOE_DOUBLE_WAITS");
        FILE *f = path && *path ? fopen(path, "w") : nullptr;
        if (!f) return;
        fprintf(f, "%lld\n", n.load());
        fclose(f);
    }
} waits;

}  // namespace

/* The runtime's opaque types. A stream's commands run one after the other on its thread. */
struct CUstream_st {
    std::mutex lock;
    std::condition_variable wake, moved;
    struct command {
        void (*fn)(void *);
        void *arg;
    };
    std::deque<command> queue;
    uint64_t issued = 0, done = 0;
    bool over = false;
    std::thread worker;

    CUstream_st() : worker([this] { work(); }) {}
    ~CUstream_st() {
        {
            std::lock_guard<std::mutex> hold(lock);
            over = true;
        }
        wake.notify_all();
        worker.join();
    }
    uint64_t add(void (*fn)(void *), void *arg) {
        std::lock_guard<std::mutex> hold(lock);
        queue.push_back({fn, arg});
        wake.notify_one();
        return ++issued;
    }
    void reach(uint64_t n) {
        std::unique_lock<std::mutex> hold(lock);
        moved.wait(hold, [&] { return done >= n; });
    }
    bool reached(uint64_t n) {
        std::lock_guard<std::mutex> hold(lock);
        return done >= n;
    }
    uint64_t end() {
        std::lock_guard<std::mutex> hold(lock);
        return issued;
    }

private:
    void work() {
        static const int delay = number("MOE_DOUBLE_DELAY_US", 0);
        for (;;) {
            command c;
            {
                std::unique_lock<std::mutex> hold(lock);
                wake.wait(hold, [&] { return over || !queue.empty(); });
                if (queue.empty()) return;
                c = queue.front();
                queue.pop_front();
            }
            if (delay) usleep((useconds_t)delay);
            c.fn(c.arg);
            std::lock_guard<std::mutex> hold(lock);
            done++;
            moved.notify_all();
        }
    }
};

/* The mark that a record leaves: shared with the streams that wait for it, which may outlive event and stream. */
struct mark {
    std::mutex lock;
    std::condition_variable passed_now;
    bool passed = false;
    std::chrono::steady_clock::time_point at;
    void pass() {
        std::lock_guard<std::mutex> hold(lock);
        passed = true;
        at = std::chrono::steady_clock::now();
        passed_now.notify_all();
    }
    void wait() {
        std::unique_lock<std::mutex> hold(lock);
        passed_now.wait(hold, [&] { return passed; });
    }
    bool has_passed() {
        std::lock_guard<std::mutex> hold(lock);
        return passed;
    }
};
struct CUevent_st {
    std::shared_ptr<mark> last; /* empty = never recorded */
};

namespace {

CUstream_st *stream_of(cudaStream_t s) {
    static std::mutex lock;
    static std::map<int, CUstream_st *> defaults; /* never destroyed: their threads may run at exit */
    if (s && s != cudaStreamLegacy && s != cudaStreamPerThread) return s;
    std::lock_guard<std::mutex> hold(lock);
    CUstream_st *&d = defaults[device];
    if (!d) d = new CUstream_st;
    return d;
}

/* What streams may use is never destroyed: at exit their threads may still be at work. */
std::mutex &streams_lock = *new std::mutex;
std::set<CUstream_st *> &streams = *new std::set<CUstream_st *>;

/* Allocations, so that what is freed twice or never is seen by sanitizers and by cudaFree itself. */
std::mutex &memory_lock = *new std::mutex;
std::map<void *, size_t> &memory = *new std::map<void *, size_t>;
size_t memory_used;
const size_t MEMORY_TOTAL = size_t{8} << 30;

cudaError_t take(const char *function, void **p, size_t bytes) {
    if (double_fails(function)) return cuda_double::note(cudaErrorMemoryAllocation);
    std::lock_guard<std::mutex> hold(memory_lock);
    if (memory_used + bytes > MEMORY_TOTAL) return cuda_double::note(cudaErrorMemoryAllocation);
    const size_t rounded = (bytes + 255) / 256 * 256;
    *p = aligned_alloc(256, rounded ? rounded : 256);
    if (!*p) return cuda_double::note(cudaErrorMemoryAllocation);
    memset(*p, 0xcb, rounded);
    memory[*p] = bytes;
    memory_used += bytes;
    return cudaSuccess;
}
cudaError_t give(void *p) {
    if (!p) return cudaSuccess;
    std::lock_guard<std::mutex> hold(memory_lock);
    const auto at = memory.find(p);
    if (at == memory.end()) return cuda_double::note(cudaErrorInvalidValue);
    memory_used -= at->second;
    memory.erase(at);
    free(p);
    return cudaSuccess;
}

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    int value;
};

cudaError_t state() {
    const int p = poisoned;
    return p == cudaSuccess ? cudaSuccess : cuda_double::note((cudaError_t)p);
}

}  // namespace

namespace cuda_double {
cudaError_t note(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}
}  // namespace cuda_double
using cuda_double::note;

extern "C" {

int double_fails(const char *function) {
    static std::mutex lock;
    static std::map<std::string, int> calls;
    static const char *const text = getenv("MOE_DOUBLE_FAIL");
    char name[64];
    int n = 0;
    if (!text || sscanf(text, "%63s %d", name, &n) != 2 || strcmp(name, function) != 0) return 0;
    std::lock_guard<std::mutex> hold(lock);
    return ++calls[function] == n;
}
void double_poison(cudaError_t error) {
    poisoned = error;
}
cudaError_t double_enqueue(cudaStream_t stream, void (*fn)(void *), void *arg) {
    const cudaError_t error = state();
    if (error == cudaSuccess) stream_of(stream)->add(fn, arg);
    return error;
}

/* ---- devices and errors ---- */
cudaError_t cudaGetDeviceCount(int *n) {
    if (devices() < 1) return note(cudaErrorNoDevice);
    *n = devices();
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int d) {
    if (d < 0 || d >= devices()) return note(cudaErrorInvalidDevice);
    device = d;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *d) {
    *d = device;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
    if (d < 0 || d >= devices()) return note(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "CPU double of a GPU");
    p->totalGlobalMem = MEMORY_TOTAL;
    p->multiProcessorCount = 4;
    p->major = 9;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = 227 << 10;
    p->cooperativeLaunch = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int d) {
    struct cudaDeviceProp p;
    const cudaError_t error = cudaGetDeviceProperties(&p, d);
    if (error != cudaSuccess) return error;
    switch (attr) {
        case cudaDevAttrMultiProcessorCount:
            *value = p.multiProcessorCount;
            return cudaSuccess;
        case cudaDevAttrComputeCapabilityMajor:
            *value = p.major;
            return cudaSuccess;
        case cudaDevAttrComputeCapabilityMinor:
            *value = p.minor;
            return cudaSuccess;
        case cudaDevAttrCooperativeLaunch:
            *value = 1;
            return cudaSuccess;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *value = 227 << 10;
            return cudaSuccess;
        case cudaDevAttrMemoryPoolsSupported:
            *value = 1;
            return cudaSuccess;
        default:
            return note(cudaErrorInvalidValue);
    }
}
cudaError_t cudaGetLastError(void) {
    const cudaError_t error = last;
    last = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError(void) {
    return last;
}
const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "cudaSuccess";
        case cudaErrorMemoryAllocation:
            return "cudaErrorMemoryAllocation";
        case cudaErrorInvalidValue:
            return "cudaErrorInvalidValue";
        case cudaErrorInvalidConfiguration:
            return "cudaErrorInvalidConfiguration";
        case cudaErrorInvalidDevice:
            return "cudaErrorInvalidDevice";
        case cudaErrorNoDevice:
            return "cudaErrorNoDevice";
        case cudaErrorNotReady:
            return "cudaErrorNotReady";
        case cudaErrorIllegalAddress:
            return "cudaErrorIllegalAddress";
        default:
            return "cudaErrorUnknown";
    }
}
const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "no error";
        case cudaErrorMemoryAllocation:
            return "out of memory";
        case cudaErrorInvalidValue:
            return "invalid argument";
        case cudaErrorInvalidConfiguration:
            return "invalid configuration argument";
        case cudaErrorInvalidDevice:
            return "invalid device ordinal";
        case cudaErrorNoDevice:
            return "no CUDA-capable device is detected";
        case cudaErrorNotReady:
            return "device not ready";
        case cudaErrorIllegalAddress:
            return "an illegal memory access was encountered";
        default:
            return "unknown error";
    }
}
cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int) {
    return cudaSuccess;
}

/* ---- memory ---- */
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    std::lock_guard<std::mutex> hold(memory_lock);
    *total = MEMORY_TOTAL;
    *free_bytes = MEMORY_TOTAL - memory_used;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t bytes) {
    return take("cudaMalloc", p, bytes);
}
cudaError_t cudaFree(void *p) {
    return give(p);
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
    return take("cudaHostAlloc", p, bytes);
}
cudaError_t cudaFreeHost(void *p) {
    return give(p);
}
cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t) {
    return take("cudaMallocAsync", p, bytes);
}
cudaError_t cudaFreeAsync(void *p, cudaStream_t stream) {
    return double_enqueue(
        stream, [](void *arg) { give(arg); }, p);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind, cudaStream_t stream) {
    auto *c = new copy{to, from, bytes, 0};
    const cudaError_t error = double_enqueue(
        stream,
        [](void *arg) {
            copy *c = static_cast<copy *>(arg);
            if (c->bytes) memcpy(c->to, c->from, c->bytes);
            delete c;
        },
        c);
    if (error != cudaSuccess) delete c;
    return error;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    auto *c = new copy{to, nullptr, bytes, value};
    const cudaError_t error = double_enqueue(
        stream,
        [](void *arg) {
            copy *c = static_cast<copy *>(arg);
            if (c->bytes) memset(c->to, c->value, c->bytes);
            delete c;
        },
        c);
    if (error != cudaSuccess) delete c;
    return error;
}

/* ---- streams ---- */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned) {
    if (double_fails("cudaStreamCreateWithFlags")) return note(cudaErrorMemoryAllocation);
    *out = new CUstream_st;
    std::lock_guard<std::mutex> hold(streams_lock);
    streams.insert(*out);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int) {
    return cudaStreamCreateWithFlags(out, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    if (!s) return note(cudaErrorInvalidValue);
    s->reach(s->end());
    {
        std::lock_guard<std::mutex> hold(streams_lock);
        streams.erase(s);
    }
    delete s;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    waits.n++;
    CUstream_st *s = stream_of(stream);
    s->reach(s->end());
    return state();
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    CUstream_st *s = stream_of(stream);
    const cudaError_t error = state();
    if (error != cudaSuccess) return error;
    return s->reached(s->end()) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize(void) {
    waits.n++;
    std::set<CUstream_st *> all;
    {
        std::lock_guard<std::mutex> hold(streams_lock);
        all = streams;
    }
    all.insert(stream_of(nullptr));
    for (CUstream_st *s : all) s->reach(s->end());
    return state();
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg) {
    return double_enqueue(stream, fn, arg);
}

/* ---- events ---- */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) {
    *out = new CUevent_st;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream) {
    auto m = std::make_shared<mark>();
    auto *held = new std::shared_ptr<mark>(m);
    const cudaError_t error = double_enqueue(
        stream,
        [](void *arg) {
            auto *held = static_cast<std::shared_ptr<mark> *>(arg);
            (*held)->pass();
            delete held;
        },
        held);
    if (error != cudaSuccess) {
        delete held;
        return error;
    }
    e->last = m;
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned) {
    if (!e->last) return cudaSuccess;
    auto *held = new std::shared_ptr<mark>(e->last);
    const cudaError_t error = double_enqueue(
        stream,
        [](void *arg) {
            auto *held = static_cast<std::shared_ptr<mark> *>(arg);
            (*held)->wait();
            delete held;
        },
        held);
    if (error != cudaSuccess) delete held;
    return error;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    waits.n++;
    if (e->last) e->last->wait();
    return state();
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    const cudaError_t error = state();
    if (error != cudaSuccess) return error;
    return !e->last || e->last->has_passed() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    if (!from->last || !to->last) return note(cudaErrorInvalidValue);
    if (!from->last->has_passed() || !to->last->has_passed()) return note(cudaErrorNotReady);
    *ms = std::chrono::duration<float, std::milli>(to->last->at - from->last->at).count();
    return cudaSuccess;
}
}
