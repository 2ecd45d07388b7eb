/* See environment.h. Each launcher has its names for the same three numbers. */
#include "environment.h"

#include <moe/options.h>

typedef struct launcher {
    const char *rank, *world, *local;
} launcher;

/* In the order in which they are believed. The first two must agree where both are set; PMI and srun may also stand
 * around a launcher of their own (`srun torchrun`), and then count processes of another kind. */
static const launcher launchers[] = {{"RANK", "WORLD_SIZE", "LOCAL_RANK"},
                                     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
                                     {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
                                     {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"}};
enum { BY_TORCHRUN, BY_OMPI, BY_PMI, BY_SRUN, LAUNCHERS };

static const char *value_of(const char *name) {
    const char *v = getenv(name);
    return v && v[0] ? v : NULL;
}

static moe_status read_number(const char *name, uint32_t most, uint32_t *out, moe_err *err) {
    const char *v = value_of(name);
    char *end = NULL;
    const unsigned long n = v && v[0] >= '0' && v[0] <= '9' ? strtoul(v, &end, 10) : 0;
    if (!end || *end || n > most)
        return moe_fail(err, MOE_E_ARG, "environment: %s is \"%.40s\", not a number of 0 to %u", name, v ? v : "",
                        most);
    *out = (uint32_t)n;
    return MOE_OK;
}

/* Is it there? All of its variables, or none. */
static moe_status find_launcher(const launcher *l, int *found, moe_err *err) {
    const char *const names[] = {l->rank, l->world, l->local};
    int set = 0;
    const char *there = NULL, *missing = NULL;
    for (int i = 0; i < 3; i++) {
        set += value_of(names[i]) != NULL;
        if (value_of(names[i])) there = names[i];
        if (!value_of(names[i]) && !missing) missing = names[i];
    }
    *found = set == 3;
    if (set == 0 || set == 3) return MOE_OK;
    return moe_fail(err, MOE_E_ARG, "environment: %s is set, but %s is not; %s, %s and %s go together", there, missing,
                    l->rank, l->world, l->local);
}

static moe_status read_launcher(const launcher *l, environment *e, moe_err *err) {
    moe_status s = read_number(l->rank, INT32_MAX, &e->rank, err);
    if (s == MOE_OK) s = read_number(l->world, INT32_MAX, &e->world, err);
    if (s == MOE_OK) s = read_number(l->local, INT32_MAX, &e->local, err);
    if (s != MOE_OK) return s;
    if (e->rank >= e->world)
        return moe_fail(err, MOE_E_ARG, "environment: %s is %u, but %s is %u", l->rank, e->rank, l->world, e->world);
    if (e->local > e->rank)
        return moe_fail(err, MOE_E_ARG, "environment: %s is %u, but %s is %u", l->local, e->local, l->rank, e->rank);
    return MOE_OK;
}

static moe_status compare(const environment *a, const environment *b, moe_err *err) {
    const launcher *x = &launchers[BY_TORCHRUN], *y = &launchers[BY_OMPI];
    if (a->rank != b->rank)
        return moe_fail(err, MOE_E_ARG, "environment: %s is %u, but %s is %u", x->rank, a->rank, y->rank, b->rank);
    if (a->world != b->world)
        return moe_fail(err, MOE_E_ARG, "environment: %s is %u, but %s is %u", x->world, a->world, y->world, b->world);
    if (a->local != b->local)
        return moe_fail(err, MOE_E_ARG, "environment: %s is %u, but %s is %u", x->local, a->local, y->local, b->local);
    return MOE_OK;
}

static moe_status read_master(environment *e, moe_err *err) {
    const char *address = value_of("MASTER_ADDR"), *port = value_of("MASTER_PORT");
    uint32_t number = 0;
    if (!address && !port) return MOE_OK;
    if (!address || !port)
        return moe_fail(err, MOE_E_ARG, "environment: %s is set, but %s is not",
                        address ? "MASTER_ADDR" : "MASTER_PORT", address ? "MASTER_PORT" : "MASTER_ADDR");
    moe_status s = read_number("MASTER_PORT", 65535, &number, err);
    if (s != MOE_OK) return s;
    if (number == 0) return moe_fail(err, MOE_E_ARG, "environment: MASTER_PORT is 0, not a port");
    if (strlen(address) >= sizeof e->address) return moe_fail(err, MOE_E_ARG, "environment: MASTER_ADDR is too long");
    snprintf(e->address, sizeof e->address, "%s", address);
    snprintf(e->port, sizeof e->port, "%hu", (unsigned short)number);
    return MOE_OK;
}

/* Open MPI says how many of its processes are on this machine, and has a name for the job. */
static void read_job(environment *e) {
    const char *here = value_of("OMPI_COMM_WORLD_LOCAL_SIZE"), *name = value_of("PMIX_NAMESPACE");
    if (!name) name = value_of("OMPI_MCA_ess_base_jobid");
    if (here && name && strtoul(here, NULL, 10) == e->world) snprintf(e->job, sizeof e->job, "%s", name);
}

moe_status environment_read(environment *e, moe_err *err) {
    environment by[LAUNCHERS] = {{0}};
    int found[LAUNCHERS] = {0}, first = -1;
    *e = (environment){.world = 1};
    for (int i = 0; i < LAUNCHERS; i++) {
        moe_status s = MOE_OK;
        if (i == BY_PMI && (first >= 0 || value_of("SLURM_STEP_ID"))) continue;
        if (i == BY_SRUN && (first >= 0 || !value_of("SLURM_STEP_ID"))) continue; /* no step: a batch script */
        s = find_launcher(&launchers[i], &found[i], err);
        if (s == MOE_OK && found[i]) s = read_launcher(&launchers[i], &by[i], err);
        if (s != MOE_OK) return s;
        if (found[i] && first < 0) first = i;
    }
    if (first < 0) return MOE_OK;
    *e = by[first];
    moe_status s = found[BY_TORCHRUN] && found[BY_OMPI] ? compare(&by[BY_TORCHRUN], &by[BY_OMPI], err) : MOE_OK;
    if (s == MOE_OK) s = read_master(e, err);
    if (s == MOE_OK && found[BY_OMPI]) read_job(e);
    return s;
}

moe_status environment_check_meeting(const environment *e, moe_err *err) {
    if (e->world == 1 || e->address[0] || e->job[0]) return MOE_OK;
    return moe_fail(err, MOE_E_ARG,
                    "environment: rank %u of %u does not know where rank 0 is: set MASTER_ADDR to its machine and "
                    "MASTER_PORT to a free port of it, the same for all (mpirun -x MASTER_ADDR=... -x MASTER_PORT=...)",
                    e->rank, e->world);
}
