/* Between nccl_life.c and nccl_window.cpp. */
#ifndef NCCL_DOUBLE_RECORD_H
#define NCCL_DOUBLE_RECORD_H
#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif
/* How many neighbours, this rank among them, reach each other's memory, and its place there. */
void record_team(ncclComm_t c, int *size, int *place);
/* In device memory: the team's windows begin at flat, 4 GiB apart. NULL: no memory. */
void *record_new(char *flat, int lsa_rank, int rank);
#ifdef __cplusplus
}
#endif
#endif
