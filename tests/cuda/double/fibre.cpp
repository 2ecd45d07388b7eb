/* Fibres of one block on one thread of the machine. See fibre.h. */
#include "fibre.h"

#include <sched.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
#if !defined(__x86_64__)
#error "fibres are written for x86-64"
#endif

namespace cuda_double {

/* double_switch(save, load): keeps what a call must keep, leaves its stack pointer in *save and goes on with `load`. */
extern "C" void double_switch(void **save, void *load);
__asm__(
    ".text\n"
    ".globl double_switch\n"
    ".hidden double_switch\n"
    ".type double_switch, @function\n"
    "double_switch:\n"
    "    push %rbx\n"
    "    push %rbp\n"
    "    push %r12\n"
    "    push %r13\n"
    "    push %r14\n"
    "    push %r15\n"
    "    mov %rsp, (%rdi)\n"
    "    mov %rsi, %rsp\n"
    "    pop %r15\n"
    "    pop %r14\n"
    "    pop %r13\n"
    "    pop %r12\n"
    "    pop %rbp\n"
    "    pop %rbx\n"
    "    ret\n"
    ".size double_switch, . - double_switch\n");
enum { KEPT = 6 }; /* registers that it pushes */

/* No power of two: tops of stacks that lie in few sets of the caches would drive each other out at every switch. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const size_t STACK_BYTES = (256 << 10) + 19 * 64;
#else
static const size_t STACK_BYTES = (64 << 10) + 19 * 64;
#endif

namespace {

struct fibre {
    void *stack;
    uint3 thread;
    void *tsan;
};

struct warp {
    void *mine[32];
    unsigned alive;
    unsigned ready;   /* of these: those that do not wait for others of the block */
    unsigned arrived; /* lanes whose meeting is not complete */
};

/* One that a kernel declares; malloc'ed a block, so that sanitizers see what is written past its end. */
struct object {
    const void *site;
    char *data;
};
enum { MOST_OBJECTS = 16 };

/* Marks that fibres have left around variables would lie on what is mapped there next. */
DOUBLE_UNSEEN void drop_stacks(char *stacks, size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stacks, bytes);
#endif
    munmap(stacks, bytes);
}

struct block {
    place at;
    std::vector<fibre> fibres;
    std::vector<warp> warps;
    unsigned n, current, live;
    unsigned arrived, round; /* of sync_block */
    int counting, counted;   /* of count_block */
    object objects[MOST_OBJECTS];
    unsigned n_objects;
    char *dynamic;
    char *stacks = nullptr;
    unsigned n_stacks = 0;
    void *home;
    void *tsan_home;
    const std::function<void()> *kernel;
    ~block() {
        if (stacks) drop_stacks(stacks, n_stacks * STACK_BYTES);
#if defined(__SANITIZE_THREAD__)
        for (fibre &f : fibres) __tsan_destroy_fiber(f.tsan);
#endif
    }
};

thread_local __attribute__((tls_model("initial-exec"))) block *running; /* asked for at every step of a fibre */

/* A thread's block, used again by all that it runs. Known to all, so that of a thread that never ends it is not lost.
 */
struct own_block {
    block *const mine = new block;
    own_block() {
        std::lock_guard<std::mutex> hold(lock());
        all().insert(mine);
    }
    ~own_block() {
        std::lock_guard<std::mutex> hold(lock());
        all().erase(mine);
        delete mine;
    }
    static std::mutex &lock() {
        static std::mutex *m = new std::mutex;
        return *m;
    }
    static std::set<block *> &all() {
        static auto *blocks = new std::set<block *>;
        return *blocks;
    }
};

DOUBLE_UNSEEN void tsan_release(void *p) {
#if defined(__SANITIZE_THREAD__)
    __tsan_release(p);
#else
    (void)p;
#endif
}
DOUBLE_UNSEEN void tsan_acquire(void *p) {
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(p);
#else
    (void)p;
#endif
}
DOUBLE_UNSEEN void tsan_switch(void *to) {
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(to, __tsan_switch_to_fiber_no_sync);
#else
    (void)to;
#endif
}

/* The next fibre after `from` that can go on; it may be `from` itself. */
DOUBLE_UNSEEN unsigned next_ready(const block *b, unsigned from) {
    const size_t warps = b->warps.size();
    size_t at = from / 32;
    unsigned ready = b->warps[at].ready & (~1u << from % 32);
    for (size_t seen = 0; !ready; seen++) {
        if (seen == warps) {
            fputs("the threads of a block wait for each other for ever\n", stderr);
            abort();
        }
        at = at + 1 == warps ? 0 : at + 1;
        ready = b->warps[at].ready;
    }
    return (unsigned)at * 32 + (unsigned)__builtin_ctz(ready);
}

/* Goes on with the next fibre that can, or with the block's caller when all have ended. */
DOUBLE_UNSEEN void next_fibre() {
    block *b = running;
    const unsigned from = b->current;
    if (!b->live) {
        void *unused;
        tsan_switch(b->tsan_home);
        double_switch(&unused, b->home);
    }
    const unsigned to = next_ready(b, from);
    if (to == from) return;
    b->current = to;
    b->at.thread = b->fibres[to].thread;
    b->at.lane = to % 32;
    tsan_switch(b->fibres[to].tsan);
    double_switch(&b->fibres[from].stack, b->fibres[to].stack);
}

DOUBLE_UNSEEN void release_block(block *b) {
    b->arrived = 0;
    b->counted = b->counting;
    b->counting = 0;
    b->round++;
    for (warp &w : b->warps) w.ready = w.alive;
}

/* This fibre does not go on before others have made it ready. */
DOUBLE_UNSEEN void wait_for_others(block *b) {
    b->warps[b->current / 32].ready &= ~(1u << b->current % 32);
    next_fibre();
}

DOUBLE_UNSEEN void fibre_main() {
    block *b = running;
    tsan_acquire(b);
    (*b->kernel)();
    tsan_release(b);
    warp *w = &b->warps[b->current / 32];
    b->live--;
    w->alive &= ~(1u << b->current % 32);
    w->ready = (w->ready | w->arrived) & w->alive; /* a meeting that waited for this one looks again */
    if (b->live && b->arrived == b->live) release_block(b);
    next_fibre();
    abort(); /* an ended fibre is not chosen again */
}

DOUBLE_UNSEEN char *new_shared(size_t bytes) {
    void *p = nullptr;
    if (posix_memalign(&p, 64, bytes)) abort();
    memset(p, 0xcb, bytes);
    return static_cast<char *>(p);
}

DOUBLE_UNSEEN void make_stacks(block *b) {
    if (b->n_stacks >= b->n) return;
    if (b->stacks) drop_stacks(b->stacks, b->n_stacks * STACK_BYTES);
    b->n_stacks = b->n;
    void *p =
        mmap(nullptr, b->n * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        perror("stacks of fibres");
        abort();
    }
    b->stacks = static_cast<char *>(p);
}

DOUBLE_UNSEEN void begin_fibre(block *b, unsigned i) {
    fibre &f = b->fibres[i];
    const dim3 d = b->at.block_dim;
    f.thread = uint3{i % d.x, i / d.x % d.y, i / d.x / d.y};
#if defined(__SANITIZE_ADDRESS__)
    /* What a fibre leaves at its end it never returns from: its marks around variables would stay. */
    __asan_unpoison_memory_region(b->stacks + i * STACK_BYTES, STACK_BYTES);
#endif
    void **top = reinterpret_cast<void **>(b->stacks + (i + 1) * STACK_BYTES - 64);
    *--top = nullptr; /* where fibre_main would return to; keeps the stack aligned as after a call */
    *--top = reinterpret_cast<void *>(fibre_main);
    for (int k = 0; k < KEPT; k++) *--top = nullptr;
    f.stack = top;
#if defined(__SANITIZE_THREAD__)
    if (!f.tsan) f.tsan = __tsan_create_fiber(0); /* slow, so it is used again: the block's end orders its uses */
#endif
}

}  // namespace

__thread const place *now;

DOUBLE_UNSEEN void *shared(const void *site, size_t bytes) {
    block *b = running;
    for (unsigned i = 0; i < b->n_objects; i++) {
        if (b->objects[i].site != site) continue;
        tsan_acquire(&b->objects[i]);
        return b->objects[i].data;
    }
    if (b->n_objects == MOST_OBJECTS) {
        fputs("a kernel has too many objects in shared memory\n", stderr);
        abort();
    }
    object *o = &b->objects[b->n_objects++];
    *o = object{site, new_shared(bytes)};
    tsan_release(o);
    return o->data;
}

DOUBLE_UNSEEN void *dynamic() {
    return running->dynamic;
}

DOUBLE_UNSEEN int count_block(int predicate) {
    block *b = running;
    const unsigned round = b->round;
    tsan_release(&b->round);
    b->counting += predicate != 0;
    if (++b->arrived == b->live) release_block(b);
    while (b->round == round) wait_for_others(b);
    tsan_acquire(&b->round);
    return b->counted;
}

DOUBLE_UNSEEN void sync_block() {
    count_block(0);
}

DOUBLE_UNSEEN void meet_warp(unsigned mask, void *mine, void (*finish)(void *const lanes[32], unsigned mask)) {
    block *b = running;
    const unsigned me = 1u << b->current % 32;
    warp *w = &b->warps[b->current / 32];
    const bool orders = finish == nullptr;
    if (orders) tsan_release(w);
    w->mine[b->current % 32] = mine;
    w->arrived |= me;
    while (w->arrived & me) {
        const unsigned all = mask & w->alive;
        if ((w->arrived & all) != all) {
            wait_for_others(b);
            continue;
        }
        if (orders) tsan_acquire(w);
        if (finish) finish(w->mine, all);
        w->arrived &= ~all;
        w->ready |= all;
        if (orders) tsan_release(w);
    }
    if (orders) tsan_acquire(w);
}

DOUBLE_UNSEEN void yield() {
    sched_yield();
    next_fibre();
}

DOUBLE_UNSEEN void run_block(dim3 grid, dim3 dim, size_t shared_bytes, const std::function<void()> &kernel,
                             uint64_t index) {
    static thread_local own_block own;
    block &b = *own.mine;
    b.n = b.live = dim.x * dim.y * dim.z;
    b.at.block_dim = dim;
    b.at.grid_dim = grid;
    b.at.block =
        uint3{(unsigned)(index % grid.x), (unsigned)(index / grid.x % grid.y), (unsigned)(index / grid.x / grid.y)};
    b.kernel = &kernel;
    b.current = b.arrived = b.round = 0;
    b.at.thread = uint3{0, 0, 0};
    b.at.lane = 0;
    b.counting = b.counted = 0;
    b.n_objects = 0;
    b.dynamic = shared_bytes ? new_shared(shared_bytes) : nullptr;
    make_stacks(&b);
    if (b.fibres.size() < b.n) b.fibres.resize(b.n);
    b.warps.assign((b.n + 31) / 32, warp{});
    for (unsigned i = 0; i < b.n; i++) {
        begin_fibre(&b, i);
        b.warps[i / 32].alive |= 1u << i % 32;
        b.warps[i / 32].ready |= 1u << i % 32;
    }
    running = &b;
    now = &b.at;
#if defined(__SANITIZE_THREAD__)
    b.tsan_home = __tsan_get_current_fiber();
    __tsan_release(&b);
#endif
    tsan_switch(b.fibres[0].tsan);
    double_switch(&b.home, b.fibres[0].stack);
    tsan_acquire(&b);
    for (unsigned i = 0; i < b.n_objects; i++) free(b.objects[i].data);
    free(b.dynamic);
    running = nullptr;
}

}  // namespace cuda_double
