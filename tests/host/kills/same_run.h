/* Are two run directories the same, but for the clock? What the runs under kills are measured by. */
#ifndef TESTS_KILLS_SAME_RUN_H
#define TESTS_KILLS_SAME_RUN_H
#include <stdint.h>

enum { SAME_PATH = 1024 };

/* Prints what differs between run directories a and b, and returns how many things do: lines of metrics.jsonl without
 * the fields that clocks fill (text compared, so losses bit by bit), recipe.ini, the names in ckpt, and every byte of
 * every checkpoint. */
int same_run(const char *a, const char *b, int64_t steps);
/* Do the losses of a run whose weights never change (lr = 0, no expert bias) tell all its steps apart? Then equal
 * losses of another such run mean equal batches in equal order. Prints and returns the number of pairs that do not. */
int distinct_losses(const char *run);

#endif
