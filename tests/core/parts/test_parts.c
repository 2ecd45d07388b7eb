/* Life of the plugin instances of a rank: order, services, options, operations. */
#include <model/model.h>

#include "fake_parts.h"

static void add_layer(parts *p, uint32_t layer) {
    moe_router_cfg router = {.layer = layer};
    moe_dispatcher_cfg dispatcher = {.layer = layer};
    check_ok(parts_add_router(p, &router, err));
    check_ok(parts_add_dispatcher(p, &dispatcher, err));
}

START_TEST(instances_go_in_reverse_order) {
    fake_set s;
    parts *p = NULL;
    fake_set_init(&s, -1, NULL);
    check_ok(parts_create(&p, &s.cfg, err));
    add_layer(p, 0); /* layer 1 is dense */
    add_layer(p, 2);
    ck_assert_str_eq(s.log,
                     "device/fake+ comm/fake+ precision/fake+ scheduler/fake+ router/fake layer 0+ "
                     "dispatcher/fake layer 0+ router/fake layer 2+ dispatcher/fake layer 2+ ");
    s.log[0] = 0;
    parts_destroy(p);
    ck_assert_str_eq(s.log,
                     "dispatcher/fake layer 2- router/fake layer 2- dispatcher/fake layer 0- router/fake layer 0- "
                     "scheduler/fake- precision/fake- comm/fake- device/fake- ");
    parts_destroy(NULL);
}
END_TEST

/* Whoever needs one plugin alone gives no others. */
START_TEST(kinds_without_a_plugin_are_left_out) {
    fake_set s;
    parts *p = NULL;
    fake_set_init(&s, -1, NULL);
    s.cfg.comm = s.cfg.precision = s.cfg.scheduler = (part_ref){.desc = NULL};
    check_ok(parts_create(&p, &s.cfg, err));
    add_layer(p, 1);
    ck_assert_str_eq(s.log, "device/fake+ router/fake layer 1+ dispatcher/fake layer 1+ ");
    const moe_host *host = ((const fake *)p->router_self[1])->host;
    ck_assert_ptr_nonnull(host->service(host->ctx, "moe.device/0"));
    ck_assert_ptr_null(host->service(host->ctx, "moe.comm/0"));
    s.log[0] = 0;
    parts_drop_layers(p);
    ck_assert_str_eq(s.log, "dispatcher/fake layer 1- router/fake layer 1- ");
    parts_drop_layers(p);
    parts_destroy(p);
    ck_assert_str_eq(s.log, "dispatcher/fake layer 1- router/fake layer 1- device/fake- ");
}
END_TEST

START_TEST(what_instances_say_of_themselves_is_kept) {
    fake_set s;
    parts *p = NULL;
    fake_set_init(&s, -1, NULL);
    check_ok(parts_create(&p, &s.cfg, err));
    ck_assert_uint_eq(p->device_info.compute_units, 7);
    ck_assert_uint_eq(p->device_info.alignment, 64);
    ck_assert_int_eq(p->precision_needs.row_align, 16);
    parts_destroy(p);
}
END_TEST

START_TEST(services_are_found_by_name) {
    fake_set s;
    parts *p = NULL;
    const moe_bootstrap bootstrap = {.size = sizeof bootstrap, .rank = 2, .world = 4};
    fake_set_init(&s, -1, NULL);
    s.cfg.bootstrap = &bootstrap;
    check_ok(parts_create(&p, &s.cfg, err));
    add_layer(p, 0);
    const moe_host *host = ((const fake *)p->router_self[0])->host, *other = ((const fake *)p->comm_self)->host;
    ck_assert(host->size == sizeof(moe_host) && host->ctx != other->ctx); /* a context each */
    const moe_device_service *device = host->service(host->ctx, "moe.device/0");
    ck_assert(device && device->size == sizeof *device && device->table == &fake_device);
    ck_assert_ptr_eq(device->self, p->device_self);
    const moe_comm_service *comm = host->service(host->ctx, "moe.comm/0");
    ck_assert(comm && comm->table == &fake_comm && comm->self == p->comm_self);
    ck_assert_ptr_eq(host->service(host->ctx, "moe.bootstrap/0"), &bootstrap);
    ck_assert_ptr_null(host->service(host->ctx, "moe.device/1"));
    ck_assert_ptr_null(host->service(host->ctx, ""));
    parts_destroy(p);
}
END_TEST

START_TEST(each_instance_gets_its_options) {
    fake_set s;
    parts *p = NULL;
    fake_set_init(&s, -1, NULL);
    moe_kv other[] = {{"fail", "no"}, {"topk", "4"}};
    s.routers[2].kv = other;
    s.routers[2].n_kv = 2;
    check_ok(parts_create(&p, &s.cfg, err));
    add_layer(p, 0);
    add_layer(p, 2);
    const fake *first = p->router_self[0], *last = p->router_self[2];
    ck_assert(first->kv == s.kv[FAKE_ROUTER] && first->n_kv == 1);
    ck_assert(last->kv == other && last->n_kv == 2);
    ck_assert_ptr_eq(parts_router(p, 2), &fake_router);
    parts_destroy(p);
}
END_TEST

START_TEST(operations_are_found_by_their_whole_name) {
    fake_set s;
    parts *p = NULL;
    fake_set_init(&s, -1, NULL);
    check_ok(parts_create(&p, &s.cfg, err));
    ck_assert_ptr_eq(parts_op(p, MOE_OP_ROPE), &fake_ops[2]);
    ck_assert_ptr_null(parts_op(p, MOE_OP_ATTENTION));
    ck_assert_ptr_null(parts_op(p, "moe.rope"));
    ck_assert_ptr_null(parts_op(p, "moe.rope/01"));
    parts_destroy(p);
}
END_TEST

START_TEST(operations_that_a_device_lacks_are_all_named) {
    fake_set s;
    parts *p = NULL;
    model *m = NULL;
    const model_cfg cfg = {.layers = 1,
                           .heads = 1,
                           .kv_heads = 1,
                           .head_dim = 2,
                           .hidden = 2,
                           .vocab = 2,
                           .dense_ffn = 2,
                           .seq = 1,
                           .micro = 1,
                           .head_rows = 1};
    const mesh alone = {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}};
    const mesh_groups none = {0};
    const model_place place = {&alone, 0, 0, &none};
    const model_use use = {.arenas = PARAMS_WEIGHTS};
    fake_set_init(&s, -1, NULL);
    check_ok(parts_create(&p, &s.cfg, err));
    check_fails(model_create(&m, &cfg, &place, p, &use, err), MOE_E_UNSUPPORTED,
                "device/fake lacks the operations: " MOE_OP_ATTENTION " " MOE_OP_SGD);
    ck_assert_ptr_null(m);
    parts_destroy(p);
}
END_TEST

START_TEST(flags_say_who_enqueues) {
    const moe_desc async = {.flags = MOE_ASYNC | MOE_DETERMINISTIC}, plain = {.flags = MOE_DETERMINISTIC};
    const moe_desc follows = {.flags = MOE_FOLLOWS_DEVICE};
    const parts on_async = {.cfg.device.desc = &async}, on_plain = {.cfg.device.desc = &plain};
    ck_assert_int_eq(parts_async(&on_plain, &(part_ref){.desc = &async}), 1);
    ck_assert_int_eq(parts_async(&on_async, &(part_ref){.desc = &plain}), 0);
    ck_assert_int_eq(parts_async(&on_async, &(part_ref){.desc = &follows}), 1);
    ck_assert_int_eq(parts_async(&on_plain, &(part_ref){.desc = &follows}), 0);
}
END_TEST

int main(void) {
    TCase *t = tcase_create("parts");
    tcase_add_test(t, instances_go_in_reverse_order);
    tcase_add_test(t, kinds_without_a_plugin_are_left_out);
    tcase_add_test(t, what_instances_say_of_themselves_is_kept);
    tcase_add_test(t, services_are_found_by_name);
    tcase_add_test(t, each_instance_gets_its_options);
    tcase_add_test(t, operations_are_found_by_their_whole_name);
    tcase_add_test(t, operations_that_a_device_lacks_are_all_named);
    tcase_add_test(t, flags_say_who_enqueues);
    return run_suite("parts", t);
}
