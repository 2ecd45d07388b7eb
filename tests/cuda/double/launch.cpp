/* Grids on the machine's threads. A plain grid is shared among a pool and the stream's own thread; a cooperative one
 * gets a thread a block. */
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "fibre.h"
#include "runtime.h"

namespace cuda_double {

namespace {

struct grid_run {
    const std::function<void()> *kernel;
    dim3 grid, block;
    size_t shared;
    uint64_t blocks;
    std::atomic<uint64_t> next{0};
    void work() {
        for (uint64_t i; (i = next++) < blocks;) run_block(grid, block, shared, *kernel, i);
    }
};

/* Helpers that take part in one grid at a time; a second grid that comes meanwhile is run by its stream alone. */
class pool {
public:
    pool() {
        unsigned n = std::thread::hardware_concurrency();
        n = n > 1 ? std::min(n - 1, 7u) : 0;
        for (unsigned i = 0; i < n; i++) threads.emplace_back([this] { help(); });
    }
    ~pool() {
        {
            std::lock_guard<std::mutex> hold(lock);
            over = true;
        }
        wake.notify_all();
        for (std::thread &t : threads) t.join();
    }
    void run(grid_run *g) {
        std::unique_lock<std::mutex> mine(busy, std::try_to_lock);
        if (!mine.owns_lock() || g->blocks < 2 || threads.empty()) return g->work();
        {
            std::lock_guard<std::mutex> hold(lock);
            now = g;
            round++;
            inside = (unsigned)threads.size();
        }
        wake.notify_all();
        g->work();
        std::unique_lock<std::mutex> hold(lock);
        done.wait(hold, [this] { return inside == 0; });
        now = nullptr;
    }

private:
    void help() {
        uint64_t seen = 0;
        for (;;) {
            grid_run *g;
            {
                std::unique_lock<std::mutex> hold(lock);
                wake.wait(hold, [&] { return over || round != seen; });
                if (over) return;
                seen = round;
                g = now;
            }
            g->work();
            std::lock_guard<std::mutex> hold(lock);
            if (--inside == 0) done.notify_all();
        }
    }
    std::vector<std::thread> threads;
    std::mutex busy, lock;
    std::condition_variable wake, done;
    grid_run *now = nullptr;
    uint64_t round = 0;
    unsigned inside = 0;
    bool over = false;
};

pool &helpers() {
    static pool *p = new pool; /* streams may outlive static objects */
    return *p;
}

}  // namespace

void run_grid(const std::function<void()> &kernel, dim3 grid, dim3 block, size_t shared_bytes, bool together) {
    grid_run g;
    g.kernel = &kernel;
    g.grid = grid;
    g.block = block;
    g.shared = shared_bytes;
    g.blocks = (uint64_t)grid.x * grid.y * grid.z;
    if (!together) return helpers().run(&g);
    std::vector<std::thread> own;
    for (uint64_t i = 0; i < g.blocks; i++) own.emplace_back([&g] { g.work(); });
    for (std::thread &t : own) t.join();
}

/* The limits of the GPUs that the kernels are built for. */
static bool fits(dim3 grid, dim3 block, size_t shared, bool together) {
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || !threads || threads > 1024 || block.z > 64) return false;
    if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535 || shared > (227u << 10)) return false;
    return !together || (uint64_t)grid.x * grid.y * grid.z <= 64; /* threads of the machine */
}

void launch(const std::function<void()> &kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            bool together) {
    if (double_fails("launch")) {
        note(cudaErrorLaunchOutOfResources);
        return;
    }
    if (!fits(grid, block, shared_bytes, together)) {
        note(cudaErrorInvalidConfiguration);
        return;
    }
    struct command {
        std::function<void()> kernel;
        dim3 grid, block;
        size_t shared;
        bool together;
    };
    auto *c = new command{kernel, grid, block, shared_bytes, together};
    const cudaError_t error = double_enqueue(
        stream,
        [](void *arg) {
            command *c = static_cast<command *>(arg);
            run_grid(c->kernel, c->grid, c->block, c->shared, c->together);
            delete c;
        },
        c);
    if (error != cudaSuccess) delete c;
}

}  // namespace cuda_double
