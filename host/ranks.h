/* Ranks as threads of this process: starts fn on each, gives it a bootstrap (moe/base.h) to meet the others, joins. */
#ifndef HOST_RANKS_H
#define HOST_RANKS_H
#include <moe/base.h>

/* One rank's work; returning a failure tells the bootstrap of the others, whose calls then fail with MOE_E_COMM. */
typedef moe_status (*ranks_fn)(void *arg, uint32_t rank, const moe_bootstrap *bootstrap, moe_err *err);

/* Runs world ranks and waits for all. *err gets the cause: the first failure that is not a mere MOE_E_COMM echo of
 * another's, or the first of those. Rank 0 runs on a new thread too. [main] */
moe_status ranks_run(uint32_t world, ranks_fn fn, void *arg, moe_err *err);

/* [collective] Returns when every rank has called it; MOE_E_COMM when one has died. */
moe_status ranks_meet(const moe_bootstrap *b, moe_err *err);
/* [collective] *value becomes the largest of all ranks. */
moe_status ranks_max(const moe_bootstrap *b, int64_t *value, moe_err *err);
/* [collective] Rows [first, first + n) of array [rows, row_bytes] are this rank's; afterwards the array has every
 * rank's. All ranks call it with the same row_bytes. */
moe_status ranks_share_rows(const moe_bootstrap *b, void *array, uint64_t row_bytes, uint64_t first, uint64_t n,
                            moe_err *err);

#endif
