/* See lsa.h. The record lies in device memory; the address is what ncclGetLsaPointer computes from it. NCCL asks for
 * the same version at run time as at compile time, which window.c looks at. */
#include "lsa.h"

#include <cuda_runtime_api.h>
#include <nccl_device.h>

extern "C" cudaError_t lsa_peers(ncclComm_t comm, ncclWindow_t window, int rank, int n, void **peers,
                                 cudaStream_t stream) {
    const ncclTeam_t team = ncclTeamLsa(comm); /* neighbours: rank - team.rank .. + team.nRanks - 1 */
    ncclWindow_vidmem record = {};
    cudaError_t r = cudaMemcpyAsync(&record, window, sizeof record, cudaMemcpyDeviceToHost, stream);
    if (r == cudaSuccess) r = cudaStreamSynchronize(stream);
    for (int i = 0; i < n; i++) {
        const int place = i - (rank - team.rank);
        const bool reached = r == cudaSuccess && place >= 0 && place < team.nRanks;
        peers[i] = reached ? record.lsaFlatBase + ((size_t)place * record.stride4G << 32) : nullptr;
    }
    return r;
}
