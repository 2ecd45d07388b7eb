/* The record of a window, which kernels read: nccl_device.h is C++. See nccl_double.h. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstdlib>

#include "nccl_record.h"

extern "C" ncclTeam_t ncclTeamLsa(ncclComm_t c) {
    ncclTeam_t team = {};
    record_team(c, &team.nRanks, &team.rank);
    team.stride = 1;
    return team;
}

extern "C" void *record_new(char *flat, int lsa_rank, int rank) {
    ncclWindow_vidmem record = {};
    void *out = nullptr;
    record.lsaFlatBase = flat;
    record.lsaRank = lsa_rank;
    record.worldRank = rank;
    record.stride4G = 1;
    if (cudaMalloc(&out, sizeof record) != cudaSuccess) return nullptr;
    cudaMemcpy(out, &record, sizeof record, cudaMemcpyHostToDevice);
    return out;
}
