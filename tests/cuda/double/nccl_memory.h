/* Memory of ncclMemAlloc: anonymous files, so that the other members of a window can map it. */
#ifndef NCCL_DOUBLE_MEMORY_H
#define NCCL_DOUBLE_MEMORY_H
#include "nccl_double.h"

/* Sets fd and offset of o when [at, at + bytes) lies in such memory. */
void memory_find(const void *at, size_t bytes, double_offer *o);
/* Maps what another member has offered at a fixed place. 0: it cannot be. */
int memory_map(char *place, const double_offer *o);

#endif
