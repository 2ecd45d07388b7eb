/* Messages under way: begun without blocking, and landed by a loop that also sees an abort. */
#include <moe/options.h>
#include <stdlib.h>

#include "mpi_comm.h"

moe_status flight_reserve(flight *f, uint32_t room, moe_err *err) {
    if (room <= f->room) return MOE_OK;
    MPI_Request *requests = realloc(f->requests, room * sizeof *requests);
    if (requests) f->requests = requests;
    transfer *transfers = realloc(f->transfers, room * sizeof *transfers);
    if (transfers) f->transfers = transfers;
    MPI_Status *statuses = realloc(f->statuses, room * sizeof *statuses);
    if (statuses) f->statuses = statuses;
    int *done = realloc(f->done, room * sizeof *done);
    if (done) f->done = done;
    if (!requests || !transfers || !statuses || !done)
        return moe_fail(err, MOE_E_NOMEM, "out of memory for %u messages", room);
    f->room = room;
    return MOE_OK;
}

void flight_free(flight *f) {
    free(f->requests);
    free(f->transfers);
    free(f->statuses);
    free(f->done);
    *f = (flight){0};
}

/* MPI's failure is everybody's: the others would wait. */
static moe_status fail_all(group *g, const char *what, int code, moe_err *err) {
    moe_status s = mpi_fail(what, code, err);
    node_abort(g->me->node, err->msg);
    return s;
}

static void note(group *g, uint64_t bytes, uint32_t peer, int receive) {
    flight *f = &g->flight;
    f->transfers[f->n++] = (transfer){bytes, peer, receive};
    atomic_store_explicit(&g->owe[peer], 1, memory_order_relaxed);
}

moe_status flight_send(group *g, MPI_Comm comm, const void *from, uint64_t bytes, uint32_t peer, int tag,
                       moe_err *err) {
    flight *f = &g->flight;
    moe_status s = flight_reserve(f, f->n + 1, err);
    if (s != MOE_OK) return s;
    int code = MPI_Isend(from, (int)bytes, MPI_BYTE, (int)peer, tag, comm, &f->requests[f->n]);
    if (code != MPI_SUCCESS) return fail_all(g, "MPI_Isend", code, err);
    note(g, bytes, peer, 0);
    return MOE_OK;
}

moe_status flight_receive(group *g, MPI_Comm comm, void *to, uint64_t bytes, uint32_t peer, int tag, moe_err *err) {
    flight *f = &g->flight;
    moe_status s = flight_reserve(f, f->n + 1, err);
    if (s != MOE_OK) return s;
    int code = MPI_Irecv(to, (int)bytes, MPI_BYTE, (int)peer, tag, comm, &f->requests[f->n]);
    if (code != MPI_SUCCESS) return fail_all(g, "MPI_Irecv", code, err);
    note(g, bytes, peer, 1);
    return MOE_OK;
}

/* What has been begun is given up: its memory may go, so what can be called back is. */
static void call_back(flight *f) {
    for (uint32_t i = 0; i < f->n; i++) {
        int over = 0;
        if (f->requests[i] == MPI_REQUEST_NULL) continue;
        MPI_Cancel(&f->requests[i]);
        for (int turn = 0; turn < 100 && !over; turn++) MPI_Test(&f->requests[i], &over, MPI_STATUS_IGNORE);
        if (!over) MPI_Request_free(&f->requests[i]);
    }
    f->n = 0;
}

static moe_status check_one(group *g, const transfer *t, const MPI_Status *status, int failed, moe_err *err) {
    int code = failed ? status->MPI_ERROR : MPI_SUCCESS, class = MPI_SUCCESS, bytes = 0;
    const unsigned long long want = t->bytes;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &class);
    if (class == MPI_ERR_TRUNCATE) {
        moe_fail(err, MOE_E_COMM, "group %s: rank %u expects %llu bytes from rank %u, which sends more", g->name,
                 g->me->rank, want, g->ranks[t->peer]);
        node_abort(g->me->node, err->msg);
        return MOE_E_COMM;
    }
    if (code != MPI_SUCCESS) return fail_all(g, t->receive ? "MPI_Irecv" : "MPI_Isend", code, err);
    if (!t->receive) return MOE_OK;
    MPI_Get_count(status, MPI_BYTE, &bytes);
    if ((uint64_t)bytes == t->bytes) return MOE_OK;
    moe_fail(err, MOE_E_COMM, "group %s: rank %u expects %llu bytes from rank %u, which sends %d", g->name, g->me->rank,
             want, g->ranks[t->peer], bytes);
    node_abort(g->me->node, err->msg);
    return MOE_E_COMM;
}

/* Those of the members that nothing is under way to or from. */
static void tell_owing(group *g) {
    const flight *f = &g->flight;
    for (uint32_t i = 0; i < g->n; i++) atomic_store_explicit(&g->owe[i], 0, memory_order_relaxed);
    for (uint32_t i = 0; i < f->n; i++)
        if (f->requests[i] != MPI_REQUEST_NULL)
            atomic_store_explicit(&g->owe[f->transfers[i].peer], 1, memory_order_relaxed);
}

moe_status flight_land(group *g, moe_status s, moe_err *err) {
    flight *f = &g->flight;
    uint32_t turn = 0, left = f->n;
    while (left && s == MOE_OK) {
        int n = 0, code = MPI_Testsome((int)f->n, f->requests, &n, f->done, f->statuses);
        if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) s = fail_all(g, "MPI_Testsome", code, err);
        if (n == MPI_UNDEFINED) break;
        for (int k = 0; k < n && s == MOE_OK; k++)
            s = check_one(g, &f->transfers[f->done[k]], &f->statuses[k], code == MPI_ERR_IN_STATUS, err);
        left -= (uint32_t)n;
        if (n) turn = 0;
        if (!left || s != MOE_OK) break;
        if (n || turn == 0) tell_owing(g);
        s = group_pause(g->me, &turn, err);
    }
    if (s != MOE_OK) call_back(f);
    f->n = 0;
    return s;
}
