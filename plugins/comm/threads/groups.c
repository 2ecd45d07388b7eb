/* Groups of comm/threads: a rank's handles, and the split of a group by colors. See hub.h, threads.h. */
#include <moe/options.h>
#include <stdio.h>
#include <stdlib.h>

#include "threads.h"

member *member_alloc(void) {
    return calloc(1, sizeof(member));
}

void member_free(member *m) {
    if (!m) return;
    free(m->messages);
    free(m);
}

void member_attach(instance *me, member *m, group *g, uint32_t index) {
    m->g = g;
    m->owner = me;
    m->index = index;
    pthread_mutex_lock(&me->lock);
    m->next = me->members;
    me->members = m;
    pthread_mutex_unlock(&me->lock);
}

void threads_group_destroy(void *self, void *handle) {
    instance *me = self;
    member *m = handle;
    if (!m) return;
    pthread_mutex_lock(&me->lock);
    member **at = &me->members;
    while (*at && *at != m) at = &(*at)->next;
    const int found = *at != NULL; /* else not a handle of this instance */
    if (found) *at = m->next;
    pthread_mutex_unlock(&me->lock);
    if (!found) return;
    group_leave(m->g, m->index);
    member_free(m);
}

moe_status threads_group_info(void *self, void *handle, uint32_t *n, uint32_t *index, moe_err *err) {
    const instance *me = self;
    const member *m = handle;
    if (!m) return moe_fail(err, MOE_E_ARG, "rank %u: group_info: group is NULL (this rank is not a member)", me->rank);
    *n = m->g->n;
    *index = m->index;
    return MOE_OK;
}

/* ---- split ---- */

/* Members of a color before `end`. */
static uint32_t count_color(const post *all, uint32_t end, uint32_t color) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < end; i++) n += all[i].o.color == color;
    return n;
}

/* The group of a color, made by the first of its members; NULL when out of memory. */
static group *make_colored(const group *parent, const post *all, const char *name, uint32_t color) {
    uint32_t *ranks = malloc(parent->n * sizeof *ranks), n = 0;
    for (uint32_t i = 0; ranks && i < parent->n; i++)
        if (all[i].o.color == color) ranks[n++] = parent->ranks[i];
    group *made = ranks ? group_new(parent->hub, name, ranks, n) : NULL;
    free(ranks);
    return made;
}

/* A member says by a NULL in its offer that it is out of memory: then all fail alike. */
static moe_status check_memory(const group *g, const post *all, const char *name, moe_err *err) {
    for (uint32_t i = 0; i < g->n; i++)
        if (!all[i].o.in) return moe_fail(err, MOE_E_NOMEM, "group %s: rank %u is out of memory", name, g->ranks[i]);
    return MOE_OK;
}

/* Two meetings: all show their colors, then the first of each color shows its group. m becomes the handle. */
static moe_status split(instance *me, member *p, member *m, const char *name, uint32_t color, moe_err *err) {
    const comm_call call = {.what = COMM_GROUP_SPLIT, .op = -1, .name = name};
    moe_status s = member_join(p, &(offer){.call = call, .color = color, .in = m ? me : NULL}, err);
    if (s != MOE_OK) return s;
    const post *all = member_posts(p);
    const int joins = color != MOE_NO_GROUP;
    const uint32_t index = count_color(all, p->index, color);
    uint32_t first = 0;
    while (all[first].o.color != color) first++;
    s = check_memory(p->g, all, name, err);
    group *made = s == MOE_OK && joins && index == 0 ? make_colored(p->g, all, name, color) : NULL;
    const int ok = s == MOE_OK && (made || index || !joins);
    member_done(p);
    /* without the name: whoever passes this meeting may give its memory back while others still compare */
    const comm_call again = {.what = COMM_BARRIER, .op = -1};
    s = member_join(p, &(offer){.call = again, .in = ok ? me : NULL, .out = made}, err);
    if (s == MOE_OK) {
        all = member_posts(p);
        s = check_memory(p->g, all, name, err);
        if (s == MOE_OK && joins) member_attach(me, m, all[first].o.out, index);
        member_done(p);
    }
    if (s != MOE_OK && made)
        for (uint32_t i = 0, n = made->n; i < n; i++) group_leave(made, i);
    return s;
}

moe_status threads_group_split(void *self, void *parent, const char *name, uint32_t color, void **handle,
                               moe_err *err) {
    instance *me = self;
    member *p = parent ? parent : me->world;
    if (!name) return member_refuse(me, p, "group_split", "name is NULL", err);
    member *m = member_alloc();
    pthread_mutex_lock(&me->lock);
    snprintf(me->splits, sizeof me->splits, "%s", name);
    pthread_mutex_unlock(&me->lock);
    moe_status s = split(me, p, m, name, color, err);
    if (s == MOE_OK) *handle = color == MOE_NO_GROUP ? NULL : m;
    if (s != MOE_OK || color == MOE_NO_GROUP) member_free(m);
    return s;
}
