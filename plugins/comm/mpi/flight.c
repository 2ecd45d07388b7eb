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

static void note(group *g, uint64_t bytes, uint32_t peer, int tag, int receive) {
    flight *f = &g->flight;
    f->transfers[f->n++] = (transfer){.bytes = bytes, .peer = peer, .tag = tag, .receive = receive};
    atomic_store_explicit(&g->owe[peer], 1, memory_order_relaxed);
}

moe_status flight_send(group *g, MPI_Comm comm, const void *from, uint64_t bytes, uint32_t peer, int tag,
                       moe_err *err) {
    flight *f = &g->flight;
    moe_status s = flight_reserve(f, f->n + 1, err);
    if (s != MOE_OK) return s;
    int code = MPI_Isend(from, (int)bytes, MPI_BYTE, (int)peer, tag, comm, &f->requests[f->n]);
    if (code != MPI_SUCCESS) return fail_all(g, "MPI_Isend", code, err);
    note(g, bytes, peer, tag, 0);
    return MOE_OK;
}

moe_status flight_receive(group *g, MPI_Comm comm, void *to, uint64_t bytes, uint32_t peer, int tag, moe_err *err) {
    flight *f = &g->flight;
    moe_status s = flight_reserve(f, f->n + 1, err);
    if (s != MOE_OK) return s;
    int code = MPI_Irecv(to, (int)bytes, MPI_BYTE, (int)peer, tag, comm, &f->requests[f->n]);
    if (code != MPI_SUCCESS) return fail_all(g, "MPI_Irecv", code, err);
    note(g, bytes, peer, tag, 1);
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
        moe_fail(err, MOE_E_COMM, "group %s: rank %u sends more than %llu bytes to rank %u, which expects %llu",
                 g->name, g->ranks[t->peer], want, g->me->rank, want);
        node_abort(g->me->node, err->msg);
        return MOE_E_COMM;
    }
    if (code != MPI_SUCCESS) return fail_all(g, t->receive ? "MPI_Irecv" : "MPI_Isend", code, err);
    if (!t->receive) return MOE_OK;
    MPI_Get_count(status, MPI_BYTE, &bytes);
    if ((uint64_t)bytes == t->bytes) return MOE_OK;
    moe_fail(err, MOE_E_COMM, "group %s: rank %u sends %d bytes to rank %u, which expects %llu", g->name,
             g->ranks[t->peer], bytes, g->me->rank, want);
    node_abort(g->me->node, err->msg);
    return MOE_E_COMM;
}

/* Of which members is something under way, to or from? */
static void tell_owing(group *g) {
    const flight *f = &g->flight;
    for (uint32_t i = 0; i < g->n; i++) atomic_store_explicit(&g->owe[i], 0, memory_order_relaxed);
    for (uint32_t i = 0; i < f->n; i++)
        if (f->requests[i] != MPI_REQUEST_NULL)
            atomic_store_explicit(&g->owe[f->transfers[i].peer], 1, memory_order_relaxed);
}

/* A member that has destroyed its handle sends and takes nothing any more; what it sent before has come by now. */
enum { LEFT_TURNS = 4000 };
static moe_status check_left(group *g, moe_err *err) {
    const flight *f = &g->flight;
    for (uint32_t i = 0; i < f->n; i++) {
        const uint32_t peer = f->transfers[i].peer;
        if (f->requests[i] != MPI_REQUEST_NULL && g->slot[peer] && atomic_load(&g->slot[peer]->calls) & NODE_LEFT)
            return moe_fail(err, MOE_E_COMM, "group %s: rank %u has left", g->name, g->ranks[peer]);
    }
    return MOE_OK;
}

moe_status flight_land(group *g, moe_status s, moe_err *err) {
    flight *f = &g->flight;
    uint32_t turn = 0, left = f->n;
    while (left && s == MOE_OK) {
        int n = 0, code = MPI_Testsome((int)f->n, f->requests, &n, f->done, f->statuses);
        if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) s = fail_all(g, "MPI_Testsome", code, err);
        if (n == MPI_UNDEFINED) break;
        for (int k = 0; k < n && s == MOE_OK; k++) {
            transfer *t = &f->transfers[f->done[k]];
            atomic_store_explicit(&t->landed, 1, memory_order_relaxed);
            s = check_one(g, t, &f->statuses[k], code == MPI_ERR_IN_STATUS, err);
        }
        left -= (uint32_t)n;
        if (n) turn = 0;
        if (!left || s != MOE_OK) break;
        if (n || turn == 0) tell_owing(g);
        s = group_pause(g->me, &turn, err);
        if (s == MOE_OK && turn % LEFT_TURNS == 0) s = check_left(g, err);
    }
    if (s != MOE_OK) call_back(f);
    f->n = 0;
    tell_owing(g); /* nobody */
    return s;
}
