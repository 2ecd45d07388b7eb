/* One hash a group; on a difference the first call that differs is found by halving, with one number a rank and round.
 */
#include "train/agree.h"

#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

/* What a rank says of one group. */
typedef struct group_calls {
    uint32_t first, n; /* its first member, and how many; n < 2: nobody to talk to */
    uint64_t calls, hash;
} group_calls;

typedef struct rank_calls {
    group_calls of[AGREE_GROUPS];
} rank_calls;

typedef struct agreement {
    const moe_bootstrap *b;
    const exec_groups *groups;
    const program *programs;
    uint32_t n_programs;
    rank_calls *all; /* [world] */
} agreement;

static uint64_t hash_text(uint64_t hash, const char *text) {
    do hash = (hash ^ (uint8_t)*text) * 0x100000001b3u; /* FNV-1a, with the end of the text */
    while (*text++);
    return hash;
}

/* The calls of a group, or of all where its members run the same program: in the order of each lane, lane by lane, as
 * lanes do not wait for each other. */
typedef struct call_list {
    uint64_t hash, n, most; /* of the first n calls, at most so many */
    const char *last;       /* the name of the n-th */
} call_list;

static void add_lane(const agreement *a, uint32_t group, const program *p, int32_t lane, call_list *list) {
    int alike = (int32_t)group == a->groups->alike;
    for (uint32_t k = 0; k < p->g->n_nodes && list->n < list->most; k++) {
        const moe_sched_node *node = &p->g->nodes[p->order[k]].info;
        if (node->lane != lane || node->group < 0 || (!alike && node->group != (int32_t)group)) continue;
        list->hash = hash_text(list->hash, node->name);
        list->last = node->name;
        list->n++;
    }
}

static call_list list_calls(const agreement *a, uint32_t group, uint64_t most) {
    call_list list = {.hash = 0xcbf29ce484222325u, .most = most};
    for (uint32_t i = 0; i < a->n_programs; i++)
        for (int32_t lane = 0; lane < MOE_LANES && a->programs[i].g; lane++)
            add_lane(a, group, &a->programs[i], lane, &list);
    return list;
}

static void describe(const agreement *a, rank_calls *own) {
    memset(own, 0, sizeof *own);
    for (uint32_t i = 0; i < a->groups->n; i++) {
        const exec_group *g = &a->groups->at[i];
        if (g->n < 2) continue;
        call_list list = list_calls(a, i, UINT64_MAX);
        own->of[i] = (group_calls){.first = g->ranks[0], .n = g->n, .calls = list.n, .hash = list.hash};
    }
}

/* Two ranks of one group that differ; found alike on all ranks. */
typedef struct difference {
    uint32_t group, one, other;
    uint32_t members; /* that say so */
} difference;

/* counts [world]: how many ranks say that their group begins with this one. */
static int find_in_group(const agreement *a, uint32_t group, uint32_t *counts, difference *d) {
    uint32_t world = a->b->world;
    memset(counts, 0, world * sizeof *counts);
    for (uint32_t r = 0; r < world; r++) {
        const group_calls *mine = &a->all[r].of[group];
        if (mine->n >= 2 && mine->first < world) counts[mine->first]++;
    }
    for (uint32_t r = 0; r < world; r++) {
        const group_calls *mine = &a->all[r].of[group];
        if (mine->n < 2) continue;
        *d = (difference){group, mine->first < world ? mine->first : 0, r, 0};
        d->members = counts[d->one];
        if (d->members != mine->n || memcmp(mine, &a->all[d->one].of[group], sizeof *mine) != 0) return 1;
    }
    return 0;
}

/* 1: found; 0: none; -1: out of memory. */
static int find_difference(const agreement *a, difference *d) {
    uint32_t *counts = malloc(a->b->world * sizeof *counts);
    int found = counts ? 0 : -1;
    for (uint32_t g = 0; g < a->groups->n && !found; g++) found = find_in_group(a, g, counts, d);
    free(counts);
    return found;
}

/* Number of calls that the two make alike before the first that differs. */
static moe_status count_alike(const agreement *a, const difference *d, uint64_t *alike, moe_err *err) {
    uint64_t one = a->all[d->one].of[d->group].calls, other = a->all[d->other].of[d->group].calls;
    uint64_t low = 0, high = (one < other ? one : other) + 1; /* alike up to low, not up to high */
    uint64_t *all = malloc(a->b->world * sizeof *all);
    moe_status status = all ? MOE_OK : moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", a->b->world);
    while (!status && low + 1 < high) {
        uint64_t middle = low + (high - low) / 2, own = list_calls(a, d->group, middle).hash;
        status = a->b->all_gather(a->b->ctx, &own, sizeof own, all, err);
        if (status) break;
        if (all[d->one] == all[d->other])
            low = middle;
        else
            high = middle;
    }
    *alike = low;
    free(all);
    return status;
}

typedef struct call_name {
    char text[128];
} call_name;

static moe_status refuse(const agreement *a, const difference *d, moe_err *err) {
    const group_calls *one = &a->all[d->one].of[d->group], *other = &a->all[d->other].of[d->group];
    const char *group = a->groups->at[d->group].name;
    if (d->members != other->n || one->first != other->first || one->n != other->n)
        return moe_fail(err, MOE_E_ARG,
                        "group %s: for rank %u it has %u ranks from rank %u on, for rank %u it has %u from rank %u on; "
                        "%u say that they are its members",
                        group, d->one, one->n, one->first, d->other, other->n, other->first, d->members);
    uint64_t alike = 0;
    moe_status status = count_alike(a, d, &alike, err);
    if (status) return status;
    call_name own = {"no call"}, *all = malloc(a->b->world * sizeof *all);
    call_list list = list_calls(a, d->group, alike + 1);
    if (list.n == alike + 1) snprintf(own.text, sizeof own.text, "%s", list.last);
    status = all ? a->b->all_gather(a->b->ctx, &own, sizeof own, all, err)
                 : moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", a->b->world);
    if (!status)
        status = moe_fail(err, MOE_E_ARG,
                          "group %s: ranks %u and %u make other communication calls, or in another order: call %llu is "
                          "%.120s on rank %u, and %.120s on rank %u",
                          group, d->one, d->other, (unsigned long long)alike + 1, all[d->one].text, d->one,
                          all[d->other].text, d->other);
    free(all);
    return status;
}

moe_status agree_on_calls(const moe_bootstrap *b, const exec_groups *groups, const program *programs, uint32_t n,
                          moe_err *err) {
    if (!b || b->world == 1) return MOE_OK;
    if (groups->n > AGREE_GROUPS)
        return moe_fail(err, MOE_E_INTERNAL, "%u communication groups of at most %d", groups->n, AGREE_GROUPS);
    agreement a = {.b = b, .groups = groups, .programs = programs, .n_programs = n};
    rank_calls own;
    difference d;
    describe(&a, &own);
    a.all = malloc(b->world * sizeof *a.all);
    moe_status status = a.all ? b->all_gather(b->ctx, &own, sizeof own, a.all, err)
                              : moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", b->world);
    int found = status ? 0 : find_difference(&a, &d);
    if (found < 0) status = moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", b->world);
    if (found > 0) status = refuse(&a, &d, err);
    free(a.all);
    return status;
}
