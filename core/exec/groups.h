/* The communication groups of a rank, by the number that nodes carry (moe_sched_node.group): for messages, and for
 * what is compared across ranks. */
#ifndef CORE_EXEC_GROUPS_H
#define CORE_EXEC_GROUPS_H
#include <stdint.h>

typedef struct exec_group {
    const char *name;      /* "dp"; groups of one name on different ranks have the same members, or none in common */
    void *handle;          /* the comm's; NULL where it has no handle of its own */
    const uint32_t *ranks; /* [n] numbers in the world, ascending */
    uint32_t n, reserved;  /* 0 or 1: no communication, no call carries this number */
} exec_group;

/* Borrowed; lives as long as the programs whose nodes carry the numbers. */
typedef struct exec_groups {
    const exec_group *at; /* [n] */
    uint32_t n;
    int32_t alike; /* number of the group whose members run the same program; -1 = none */
} exec_groups;

#endif
