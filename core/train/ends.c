/* How the run of a program has ended, where not all of it is known when its calls have returned. */
#include <moe/options.h>
#include <time.h>

#include "train/trainer_impl.h"
#include "util/clock.h"

enum { REASON_SECONDS = 5 };

/* A call of this rank: the others are told, as by a call that fails at once. */
static moe_status own_fault(trainer *t, const program *p, moe_err *err) {
    const int64_t *fault = t->staging.fault;
    char text[384];
    if (fault[3] < 0 || fault[3] >= p->faults.n)
        return moe_fail(err, MOE_E_INTERNAL, "device/%s: moe.first_fault/0 gives fault %lld of %u",
                        t->parts->cfg.device.desc->id, (long long)fault[3], p->faults.n);
    faults_say(&p->faults, fault, text, sizeof text);
    moe_fail(err, (moe_status)fault[0], "%.380s (node %s, rank %u)", text,
             p->g->nodes[p->faults.at[fault[3]].node].info.name, t->parts->cfg.rank);
    trainer_abort(t, err->msg);
    return (moe_status)fault[0];
}

/* Another rank's, which is about to tell its reason. */
static moe_status others_fault(trainer *t, moe_err *err) {
    const parts *p = t->parts;
    const struct timespec short_while = {0, 1000000};
    double until = clock_seconds() + REASON_SECONDS;
    while (clock_seconds() < until) {
        moe_status status = p->comm->poll(p->comm_self, err);
        if (status) return status;
        nanosleep(&short_while, NULL);
    }
    return moe_fail(err, MOE_E_COMM, "another rank has reported an error in its data, code %lld, and not said which",
                    (long long)t->staging.fault[4]);
}

moe_status trainer_run(trainer *t, int which, moe_err *err) {
    const program *p = &t->programs[which];
    const int64_t *fault = t->staging.fault;
    moe_status status = program_run(&t->programs[which], err);
    if (status) return status;
    /* An asynchronous call that was ended has returned long ago: what came out of this run is then no one's fault. */
    int late = t->parts->cfg.world > 1 && parts_async(t->parts, &t->parts->cfg.comm);
    if (late) status = t->parts->comm->poll(t->parts->comm_self, err);
    if (status) return status;
    if (p->faults.n && fault[0]) return own_fault(t, p, err);
    return p->faults.n && fault[4] ? others_fault(t, err) : MOE_OK;
}
