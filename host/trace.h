/* trace.json: when every node of some steps ran, in Chrome's trace event format (one process a rank, one thread a
 * lane), which Perfetto and chrome://tracing open. Format: the "Trace Event Format" document, events "X" and "M". */
#ifndef HOST_TRACE_H
#define HOST_TRACE_H
#include <train/trainer.h>

typedef struct trace trace;

/* [main] Makes the file. MOE_E_IO. */
moe_status trace_open(const char *path, trace **out, moe_err *err);
/* Adds what t (watched) did in its last step. Any thread; ranks take turns. A failed write is told by trace_close. */
void trace_add(trace *x, const trainer *t, uint32_t rank, int64_t step);
/* [collective] The same where ranks are processes: rank 0 gets what all ranks did. x: of rank 0, elsewhere NULL. */
moe_status trace_gather(trace *x, const trainer *t, const moe_bootstrap *b, int64_t step, moe_err *err);
/* [main] Ends the file and frees x; NULL is fine. MOE_E_IO when anything of it could not be written. */
moe_status trace_close(trace *x, moe_err *err);

#endif
