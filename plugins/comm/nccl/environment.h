/* Who this process is, as the launcher's environment tells it. */
#ifndef COMM_NCCL_ENVIRONMENT_H
#define COMM_NCCL_ENVIRONMENT_H
#include <moe/base.h>

typedef struct environment {
    uint32_t rank, world, local;
    char address[256], port[8]; /* MASTER_ADDR, MASTER_PORT; "" = not set */
    char job[128];              /* a name of the job that its processes on one machine share; "" = none */
} environment;

/* Reads RANK, WORLD_SIZE, LOCAL_RANK (torchrun), or what Open MPI, PMI or srun set; not started by a launcher: rank 0
 * of 1. Contradictions and missing variables are errors that name them. */
moe_status environment_read(environment *e, moe_err *err);
/* Can the ranks meet? Needs MASTER_ADDR and MASTER_PORT, or all ranks of a named job on this machine. */
moe_status environment_check_meeting(const environment *e, moe_err *err);

#endif
