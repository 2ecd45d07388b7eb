/* Where a window's peers are. NCCL's record of a window is C++. */
#ifndef COMM_NCCL_LSA_H
#define COMM_NCCL_LSA_H
#include <cuda_runtime_api.h>
#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif
/* peers[i], for i below n, the communicator's size: member i's memory as this device addresses it, NULL where it does
 * not reach it. Waits for the stream. */
cudaError_t lsa_peers(ncclComm_t comm, ncclWindow_t window, int rank, int n, void **peers, cudaStream_t stream);
#ifdef __cplusplus
}
#endif
#endif
