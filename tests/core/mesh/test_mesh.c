/* The two foldings of the ranks: coordinates, groups as partitions, and refusals with their numbers. */
#include <mesh/mesh.h>

#include "core/run_suite.h"

enum { WORLD_MAX = 64 };

static mesh make(mesh_cfg cfg) {
    mesh m;
    check_ok(mesh_init(&m, &cfg, err));
    return m;
}

START_TEST(fill_takes_what_the_others_leave) {
    mesh m = make((mesh_cfg){.world = 8, .tp = 2, .cp = 1, .pp = 1, .etp = 1, .ep = 8});
    static const uint32_t want[MESH_AXES] = {2, 1, 4, 1, 1, 8, 1, 8, 4, 8, 8};
    for (int a = 0; a < MESH_AXES; a++) ck_assert_uint_eq(m.degree[a], want[a]);
    m = make((mesh_cfg){.world = 48, .tp = 2, .cp = 2, .dp = 4, .pp = 3, .etp = 2, .ep = 4});
    ck_assert_uint_eq(m.degree[MESH_DP], 4);
    ck_assert_uint_eq(m.degree[MESH_EDP], 2);
}
END_TEST

/* TP 2 x DP 4 beside EP 8 on eight ranks. */
START_TEST(attention_and_experts_fold_the_same_ranks) {
    mesh m = make((mesh_cfg){.world = 8, .tp = 2, .cp = 1, .pp = 1, .etp = 1, .ep = 8});
    uint32_t ranks[8];
    for (uint32_t r = 0; r < 8; r++) {
        ck_assert_uint_eq(mesh_coord(&m, MESH_TP, r), r % 2);
        ck_assert_uint_eq(mesh_coord(&m, MESH_DP, r), r / 2);
        ck_assert_uint_eq(mesh_coord(&m, MESH_EP, r), r);
        ck_assert_uint_eq(mesh_coord(&m, MESH_EDP, r), 0);
        ck_assert_uint_eq(mesh_group(&m, MESH_DP, r, ranks), 4);
        for (uint32_t i = 0; i < 4; i++) ck_assert_uint_eq(ranks[i], r % 2 + 2 * i);
        ck_assert_uint_eq(mesh_group(&m, MESH_TP, r, ranks), 2);
        ck_assert(ranks[0] == r / 2 * 2 && ranks[1] == ranks[0] + 1);
        ck_assert_uint_eq(mesh_group(&m, MESH_EP, r, ranks), 8);
        ck_assert_uint_eq(mesh_group(&m, MESH_EDP, r, ranks), 1);
        ck_assert_uint_eq(ranks[0], r);
    }
}
END_TEST

/* A pipeline stage is the same run of ranks in both foldings. */
START_TEST(stages_are_runs_of_ranks) {
    mesh m = make((mesh_cfg){.world = 48, .tp = 2, .cp = 2, .pp = 3, .etp = 4, .ep = 2});
    for (uint32_t r = 0; r < 48; r++) ck_assert_uint_eq(mesh_coord(&m, MESH_PP, r), r / 16);
    uint32_t ranks[WORLD_MAX];
    for (int axis = 0; axis < MESH_PP; axis++)
        for (uint32_t r = 0; r < 48; r++)
            for (uint32_t i = mesh_group(&m, (mesh_axis)axis, r, ranks); i-- > 0;)
                ck_assert_uint_eq(ranks[i] / 16, r / 16);
    for (int axis = MESH_ETP; axis <= MESH_EDP; axis++)
        for (uint32_t r = 0; r < 48; r++)
            for (uint32_t i = mesh_group(&m, (mesh_axis)axis, r, ranks); i-- > 0;)
                ck_assert_uint_eq(ranks[i] / 16, r / 16);
}
END_TEST

/* Every rank is in exactly one group of an axis, all its members name the same group, and each has another coordinate.
 * One assertion a rank: these loops are long, and Check notes every assertion. */
static void check_axis(const mesh *m, mesh_axis axis) {
    uint32_t world = m->degree[MESH_WORLD], members[WORLD_MAX] = {0};
    int good = 1;
    for (uint32_t r = 0; r < world; r++) {
        uint32_t ranks[WORLD_MAX], other[WORLD_MAX], n = mesh_group(m, axis, r, ranks);
        good &= n == m->degree[axis] && ranks[mesh_coord(m, axis, r)] == r;
        for (uint32_t i = 0; i < n && good; i++) {
            good &= ranks[i] < world && (i == 0 || ranks[i] > ranks[i - 1]);
            good &= mesh_coord(m, axis, ranks[i]) == i;
            good &= mesh_group(m, axis, ranks[i], other) == n && memcmp(ranks, other, n * sizeof *ranks) == 0;
        }
        members[ranks[0]]++;
    }
    for (uint32_t r = 0; r < world; r++) good &= members[r] == 0 || members[r] == m->degree[axis];
    if (!good) ck_abort_msg("axis %s of degree %u does not cut %u ranks", mesh_axis_name(axis), m->degree[axis], world);
}

/* No two ranks have all coordinates of a folding in common; its first axis runs fastest. */
static void check_folding(const mesh *m, const mesh_axis axes[4]) {
    for (uint32_t r = 0; r < m->degree[MESH_WORLD]; r++) {
        uint32_t at = 0;
        for (int i = 3; i >= 0; i--) at = at * m->degree[axes[i]] + mesh_coord(m, axes[i], r);
        if (at != r) ck_abort_msg("rank %u has the coordinates of rank %u", r, at);
    }
}

START_TEST(all_meshes_partition_all_ranks) {
    static const mesh_axis attention[] = {MESH_TP, MESH_CP, MESH_DP, MESH_PP};
    static const mesh_axis experts[] = {MESH_ETP, MESH_EP, MESH_EDP, MESH_PP};
    int n = 0;
    uint32_t world = (uint32_t)_i;
    for (uint32_t tp = 1; tp <= world; tp++)
        for (uint32_t cp = 1; cp <= 4; cp++)
            for (uint32_t pp = 1; pp <= world; pp++)
                for (uint32_t ep = 1; ep <= world; ep++)
                    for (uint32_t etp = 1; etp <= 4; etp++) {
                        mesh m;
                        moe_err err = {.size = sizeof err};
                        mesh_cfg cfg = {.world = world, .tp = tp, .cp = cp, .pp = pp, .etp = etp, .ep = ep};
                        int fits = world % (tp * cp * pp) == 0 && world % (etp * ep * pp) == 0;
                        moe_status status = mesh_init(&m, &cfg, &err);
                        if (status != (fits ? MOE_OK : MOE_E_ARG))
                            ck_abort_msg("tp %u cp %u pp %u etp %u ep %u: %d", tp, cp, pp, etp, ep, status);
                        if (!fits) continue;
                        n++;
                        for (int a = 0; a < MESH_AXES; a++) check_axis(&m, (mesh_axis)a);
                        check_folding(&m, attention);
                        check_folding(&m, experts);
                    }
    ck_assert_int_gt(n, 0);
}
END_TEST

START_TEST(what_does_not_divide_is_refused_with_its_numbers) {
    mesh m;
    mesh_cfg c = {.world = 8, .tp = 3, .cp = 1, .pp = 1, .etp = 1, .ep = 1};
    check_fails(mesh_init(&m, &c, err), MOE_E_ARG, "8 ranks cannot be divided by tp * cp * pp = 3 * 1 * 1");
    c = (mesh_cfg){.world = 8, .tp = 16, .cp = 2, .pp = 4, .etp = 1, .ep = 1};
    check_fails(mesh_init(&m, &c, err), MOE_E_ARG, "8 ranks", "tp * cp * pp = 16 * 2 * 4");
    c = (mesh_cfg){.world = 8, .tp = 1, .cp = 1, .pp = 2, .etp = 1, .ep = 8};
    check_fails(mesh_init(&m, &c, err), MOE_E_ARG, "8 ranks", "etp * ep * pp = 1 * 8 * 2");
    c = (mesh_cfg){.world = 8, .tp = 2, .cp = 1, .dp = 3, .pp = 1, .etp = 1, .ep = 1};
    check_fails(mesh_init(&m, &c, err), MOE_E_ARG, "tp * cp * dp * pp = 6", "8 ranks", "dp would be 4");
    c = (mesh_cfg){.world = 7, .tp = UINT32_MAX, .cp = UINT32_MAX, .pp = UINT32_MAX, .etp = 1, .ep = 1};
    check_fails(mesh_init(&m, &c, err), MOE_E_ARG, "7 ranks", "4294967295 * 4294967295 * 4294967295");
    c = (mesh_cfg){.world = 1, .tp = 2, .cp = 1, .pp = 1, .etp = 1, .ep = 1};
    check_fails(mesh_init(&m, &c, err), MOE_E_ARG, "1 rank cannot", "tp * cp * pp = 2 * 1 * 1");
}
END_TEST

START_TEST(zero_is_no_degree) {
    mesh_cfg c = {.world = 4, .tp = 1, .cp = 1, .pp = 1, .etp = 1, .ep = 1};
    uint32_t *const fields[] = {&c.world, &c.tp, &c.cp, &c.pp, &c.etp, &c.ep};
    mesh m;
    *fields[_i] = 0;
    check_fails(mesh_init(&m, &c, err), MOE_E_ARG, "at least 1");
}
END_TEST

int main(void) {
    TCase *t = tcase_create("mesh");
    tcase_add_test(t, fill_takes_what_the_others_leave);
    tcase_add_test(t, attention_and_experts_fold_the_same_ranks);
    tcase_add_test(t, stages_are_runs_of_ranks);
    tcase_add_loop_test(t, all_meshes_partition_all_ranks, 1, 17);
    tcase_add_test(t, what_does_not_divide_is_refused_with_its_numbers);
    tcase_add_loop_test(t, zero_is_no_degree, 0, 6);
    return run_suite("mesh", t);
}
