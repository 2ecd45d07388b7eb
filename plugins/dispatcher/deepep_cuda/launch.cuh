/* Launches of both kinds: one member, or all virtual ranks. See deepep_grid. */
#ifndef DEEPEP_CUDA_LAUNCH_CUH
#define DEEPEP_CUDA_LAUNCH_CUH
#include "kernel.h"
#include "peers.h"
#include "status.h"

namespace {

template <class C>
moe_status launch(void (*kernel)(C, const C *), const char *name, const deepep_grid *grid, const C *one, const C *all,
                  moe_err *err) {
    const C none = {};
    KERNEL_LAUNCH_ALL(kernel, dim3(grid->blocks, all ? grid->ranks : 1), dim3(grid->threads), 0,
                      static_cast<cudaStream_t>(grid->stream), all ? none : *one, all);
    return cuda_launched(name, err);
}

}  // namespace

#define LAUNCH(kernel, grid, one, all, err) launch(kernel, "dispatcher/deepep: " #kernel, grid, one, all, err)
#endif
