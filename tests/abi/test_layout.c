/* What two sides that were compiled apart must agree on: offsets, sizes and numbers of the ABI, and how MOE_REACH reads
 * structs that are shorter or longer than one's own. */
#include <check.h>
#include <moe/plugin.h>
#include <stdlib.h>
#include <string.h>

#include "layout_table.h"

typedef struct row {
    const char *type, *member; /* member NULL: the whole struct */
    size_t want_at, want_bytes, at, bytes;
} row;

#define SIZE_ROW(type, want) {#type, NULL, 0, want, 0, sizeof(type)},
#define AT_ROW(type, member, at, want) {#type, #member, at, want, offsetof(type, member), sizeof(((type *)0)->member)},
static const row rows[] = {LAYOUT_TABLE(SIZE_ROW, AT_ROW)};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

START_TEST(every_member_is_where_it_was) {
    for (size_t i = 0; i < N_ROWS; i++) {
        const row *r = &rows[i];
        const char *member = r->member ? r->member : "(whole)";
        ck_assert_msg(r->at == r->want_at, "%s.%s is at %zu, was at %zu", r->type, member, r->at, r->want_at);
        ck_assert_msg(r->bytes == r->want_bytes, "%s.%s has %zu bytes, had %zu", r->type, member, r->bytes,
                      r->want_bytes);
    }
}
END_TEST

/* Members follow each other without holes up to the end, so a member that the table lacks is seen. */
START_TEST(table_leaves_no_byte_out) {
    size_t end = 0, structs = 0;
    for (size_t i = 0; i < N_ROWS; i++) {
        const row *r = &rows[i];
        if (!r->member) {
            structs++;
            end = 0;
            continue;
        }
        ck_assert_msg(r->at == end, "%s.%s is at %zu, the member before ends at %zu", r->type, r->member, r->at, end);
        end = r->at + r->bytes;
        if (i + 1 < N_ROWS && rows[i + 1].member) continue;
        size_t whole = i;
        while (rows[whole].member) whole--;
        ck_assert_msg(end == rows[whole].bytes, "the table of %s ends at %zu of %zu bytes", r->type, end,
                      rows[whole].bytes);
    }
    ck_assert_uint_ge(structs, 52);
}
END_TEST

/* Structs without size are frozen for ever; these and no others. */
START_TEST(structs_that_grow_begin_with_size) {
    static const char *const frozen[] = {"moe_tensor",     "moe_option",       "moe_kv",         "moe_entry",
                                         "moe_plane",      "moe_random_key",   "moe_param_spec", "moe_random_block",
                                         "moe_sched_node", "moe_sched_buffer", "moe_fault",      "moe_p2p_op"};
    for (size_t i = 0; i + 1 < N_ROWS; i++) {
        if (rows[i].member) continue;
        int is_frozen = 0, sized = strcmp(rows[i + 1].member, "size") == 0;
        for (size_t k = 0; k < sizeof frozen / sizeof frozen[0]; k++) is_frozen |= strcmp(rows[i].type, frozen[k]) == 0;
        ck_assert_msg(sized != is_frozen, "%s %s", rows[i].type,
                      sized ? "has a size but is listed frozen" : "has no size");
        if (sized) ck_assert_msg(rows[i + 1].at == 0 && rows[i + 1].bytes == 4, "%s.size", rows[i].type);
    }
    ck_assert_uint_eq(offsetof(moe_entry, magic), 0); /* before size, so that a foreign table is known at once */
    ck_assert_uint_eq(offsetof(moe_entry, size), 4);
}
END_TEST

/* Numbers that cross the border. */
#define NUMBER(name, want) \
    { #name, (int64_t)(name), want }
static const struct {
    const char *name;
    int64_t value, want;
} numbers[] = {
    NUMBER(MOE_MAGIC, 0x30454f4d),
    NUMBER(MOE_MAJOR, 0),
    NUMBER(MOE_OK, 0),
    NUMBER(MOE_E_ARG, 1),
    NUMBER(MOE_E_UNSUPPORTED, 2),
    NUMBER(MOE_E_NOMEM, 3),
    NUMBER(MOE_E_DEVICE, 4),
    NUMBER(MOE_E_COMM, 5),
    NUMBER(MOE_E_OVERFLOW, 6),
    NUMBER(MOE_E_DATA, 7),
    NUMBER(MOE_E_INTERNAL, 8),
    NUMBER(MOE_E_IO, 9),
    NUMBER(MOE_F32, 0),
    NUMBER(MOE_BF16, 1),
    NUMBER(MOE_F64, 2),
    NUMBER(MOE_I32, 3),
    NUMBER(MOE_I64, 4),
    NUMBER(MOE_U8, 5),
    NUMBER(MOE_F8E4M3, 6),
    NUMBER(MOE_F8E5M2, 7),
    NUMBER(MOE_F4E2M1X2, 8),
    NUMBER(MOE_E8M0, 9),
    NUMBER(MOE_LOG_ERROR, 0),
    NUMBER(MOE_LOG_WARN, 1),
    NUMBER(MOE_LOG_INFO, 2),
    NUMBER(MOE_LOG_DEBUG, 3),
    NUMBER(MOE_ASYNC, 1),
    NUMBER(MOE_HOST_COUNTS, 2),
    NUMBER(MOE_DETERMINISTIC, 4),
    NUMBER(MOE_GRAPH_SAFE, 8),
    NUMBER(MOE_FOLLOWS_DEVICE, 16),
    NUMBER(MOE_SUM, 0),
    NUMBER(MOE_MAX, 1),
    NUMBER(MOE_MIN, 2),
    NUMBER(MOE_LAUNCH_THREADS, 0),
    NUMBER(MOE_LAUNCH_PROCESSES, 1),
    NUMBER(MOE_SPACE_DEVICE, 0),
    NUMBER(MOE_SPACE_HOST, 1),
    NUMBER(MOE_DISPATCH, 0),
    NUMBER(MOE_COMBINE, 1),
    NUMBER(MOE_PHASE_PACK, 1),
    NUMBER(MOE_PHASE_EXCHANGE, 2),
    NUMBER(MOE_PHASE_UNPACK, 4),
    NUMBER(MOE_FPROP, 0),
    NUMBER(MOE_DGRAD, 1),
    NUMBER(MOE_WGRAD, 2),
    NUMBER(MOE_DROP_PROB, 0),
    NUMBER(MOE_DROP_POSITION, 1),
    NUMBER(MOE_RANDOM_INIT, 1),
    NUMBER(MOE_RANDOM_JITTER, 2),
    NUMBER(MOE_RANDOM_ROUND, 3),
    NUMBER(MOE_RANDOM_DATA, 4),
    NUMBER(MOE_RANDOM_SAMPLE, 5),
    NUMBER(MOE_ROUTER_LOGITS, 1),
    NUMBER(MOE_ROUTER_HIDDEN, 2),
    NUMBER(MOE_ROUTER_TOKEN_IDS, 4),
    NUMBER(MOE_SCOPE_TOKEN, 0),
    NUMBER(MOE_SCOPE_SEQUENCE, 1),
    NUMBER(MOE_SCOPE_MICROBATCH, 2),
    NUMBER(MOE_SCOPE_GLOBAL, 3),
    NUMBER(MOE_ROUTE_TRAIN, 1),
    NUMBER(MOE_ROUTE_RECOMPUTE, 2),
    NUMBER(MOE_LANE_COMPUTE, 0),
    NUMBER(MOE_LANE_COMM_EP, 1),
    NUMBER(MOE_LANE_COMM_DP, 2),
    NUMBER(MOE_LANE_COMM_PP, 3),
    NUMBER(MOE_LANE_COMM_TP, 4),
    NUMBER(MOE_LANE_COPY, 5),
    NUMBER(MOE_LANES, 6),
    NUMBER(MOE_SCHED_PREPARE, 0),
    NUMBER(MOE_SCHED_FORWARD, 1),
    NUMBER(MOE_SCHED_BACKWARD, 2),
    NUMBER(MOE_SCHED_REDUCE, 3),
    NUMBER(MOE_SCHED_UPDATE, 4),
};

START_TEST(numbers_are_what_they_were) {
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        ck_assert_msg(numbers[i].value == numbers[i].want, "%s is %lld, was %lld", numbers[i].name,
                      (long long)numbers[i].value, (long long)numbers[i].want);
    ck_assert_str_eq(MOE_ENTRY_SYMBOL, "moe_plugin_entry_v0");
    ck_assert_mem_eq(&(uint32_t){MOE_MAGIC}, "MOE0", 4);
}
END_TEST

/* A copy of from with this size in memory of exactly this size: a reader that goes past it is seen by AddressSanitizer.
 */
static moe_router_needs *cut(const moe_router_needs *from, uint32_t size, size_t bytes) {
    char *p = malloc(bytes);
    ck_assert_ptr_nonnull(p);
    memset(p, 0xa5, bytes);
    memcpy(p, from, bytes < sizeof *from ? bytes : sizeof *from);
    memcpy(p, &size, sizeof size);
    return (moe_router_needs *)(void *)p;
}

START_TEST(C119_reach_is_read_per_field) {
    const moe_router_needs whole = {.workspace = 7, .saved = 8, .n_losses = 3, .scope = 1, .loss_scope = 2};
    /* shorter: an older peer, from before loss_scope */
    uint32_t old = (uint32_t)offsetof(moe_router_needs, loss_scope);
    moe_router_needs *p = cut(&whole, old, old);
    ck_assert(MOE_REACH(p, moe_router_needs, size));
    ck_assert(MOE_REACH(p, moe_router_needs, scope));
    ck_assert_uint_eq(p->scope, 1);
    ck_assert(!MOE_REACH(p, moe_router_needs, loss_scope));
    ck_assert(!MOE_REACH(p, moe_router_needs, input_jitter));
    free(p);
    /* a member of which only a part is inside is not reached */
    for (uint32_t part = 1; part <= 4; part++) {
        p = cut(&whole, old + part, old + part);
        ck_assert_int_eq(MOE_REACH(p, moe_router_needs, loss_scope), part == 4);
        free(p);
    }
    /* longer: a newer peer; everything known is reached, and nothing asks for equality */
    p = cut(&whole, sizeof whole + 64, sizeof whole + 64);
    ck_assert(MOE_REACH(p, moe_router_needs, loss_scope));
    ck_assert_uint_eq(p->loss_scope, 2);
    free(p);
    /* a size of zero reaches nothing, not even itself */
    p = cut(&whole, 0, sizeof whole);
    ck_assert(!MOE_REACH(p, moe_router_needs, size));
    free(p);
    /* the largest size is no overflow */
    p = cut(&whole, UINT32_MAX, sizeof whole);
    ck_assert(MOE_REACH(p, moe_router_needs, input_jitter));
    free(p);
}
END_TEST

START_TEST(moe_fail_fills_and_cuts) {
    moe_err err = {0};
    char text[2 * sizeof err.msg];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    ck_assert_int_eq(moe_fail(&err, MOE_E_IO, "%s %d", "line", 3), MOE_E_IO);
    ck_assert_int_eq(err.code, MOE_E_IO);
    ck_assert_uint_eq(err.size, sizeof err);
    ck_assert_str_eq(err.msg, "line 3");
    moe_fail(&err, MOE_E_ARG, "%s", text);
    ck_assert_uint_eq(strlen(err.msg), sizeof err.msg - 1);
}
END_TEST

int main(void) {
    Suite *s = suite_create("abi_layout");
    TCase *t = tcase_create("abi_layout");
    tcase_add_test(t, every_member_is_where_it_was);
    tcase_add_test(t, table_leaves_no_byte_out);
    tcase_add_test(t, structs_that_grow_begin_with_size);
    tcase_add_test(t, numbers_are_what_they_were);
    tcase_add_test(t, C119_reach_is_read_per_field);
    tcase_add_test(t, moe_fail_fills_and_cuts);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
