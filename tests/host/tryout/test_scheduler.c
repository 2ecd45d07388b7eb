/* Schedulers: JSON in which every node stands once a rank, after all that it needs, at times that follow from the
 * order. */
#include <jansson.h>
#include <string.h>

#include "runs.h"

static json_t *run(const char *args, const char *file) {
    char says[4096];
    json_error_t why;
    int code = probe(args, says);
    ck_assert_msg(code == 0 && !*says, "%s: %d: %s", args, code, says);
    json_t *root = json_load_file(runs_path(file), JSON_REJECT_DUPLICATES, &why);
    ck_assert_msg(root != NULL, "%s:%d: %s", file, why.line, why.text);
    return root;
}

static const char *text(json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    ck_assert_msg(s != NULL, "no %s", key);
    return s;
}

static json_int_t number(json_t *o, const char *key) {
    json_t *n = json_object_get(o, key);
    ck_assert_msg(json_is_integer(n), "no %s", key);
    return json_integer_value(n);
}

/* The timeline of a rank against the nodes: starts after the needs and after the node before on the lane, at once. */
static void check_rank(json_t *root, json_t *rank) {
    json_t *nodes = json_object_get(root, "nodes"), *timeline = json_object_get(rank, "timeline"), *x, *need;
    json_t *by_name = json_object(), *ends = json_object(), *places = json_object(), *lanes = json_object();
    size_t i, j;
    json_array_foreach(nodes, i, x) json_object_set(by_name, text(x, "name"), x);
    ck_assert_uint_eq(json_object_size(by_name), json_array_size(nodes));
    ck_assert_uint_eq(json_array_size(timeline), json_array_size(nodes));
    json_int_t span = 0;
    json_array_foreach(timeline, i, x) {
        const char *name = text(x, "node"), *lane = text(x, "lane");
        json_t *node = json_object_get(by_name, name);
        check_that(node && !json_object_get(ends, name), "%s: unknown, or for the second time", name);
        json_int_t start = json_integer_value(json_object_get(lanes, lane));
        json_array_foreach(json_object_get(node, "needs"), j, need) {
            json_t *end = json_object_get(ends, json_string_value(need));
            check_that(end != NULL, "%s comes before %s", name, json_string_value(need));
            if (json_integer_value(end) > start) start = json_integer_value(end);
        }
        check_that(strcmp(lane, text(node, "lane")) == 0 && number(x, "start") == start &&
                       number(x, "end") == start + number(node, "cost"),
                   "%s is wrong in the timeline", name);
        json_object_set(ends, name, json_object_get(x, "end"));
        json_object_set(lanes, lane, json_object_get(x, "end"));
        if (number(x, "end") > span) span = number(x, "end");
        json_t *order = json_object_get(json_object_get(rank, "order"), lane);
        json_int_t place = json_integer_value(json_object_get(places, lane));
        check_that(strcmp(json_string_value(json_array_get(order, (size_t)place)), name) == 0, "%s: order of lane %s",
                   name, lane);
        json_object_set_new(places, lane, json_integer(place + 1));
    }
    ck_assert_int_eq(number(rank, "span"), span);
    json_decref(by_name), json_decref(ends), json_decref(places), json_decref(lanes);
}

static size_t count_names(json_t *root, const char *part) {
    size_t i, n = 0;
    json_t *x;
    json_array_foreach(json_object_get(root, "nodes"), i, x) n += strstr(text(x, "name"), part) != NULL;
    return n;
}

START_TEST(every_node_once) {
    json_t *root = run("scheduler/serial --layers 3 --microbatches 4 --ranks 2 --out s.json", "s.json");
    json_t *ranks = json_object_get(root, "ranks"), *rank, *cost;
    size_t i;
    const char *name;
    ck_assert_uint_eq(json_array_size(ranks), 2);
    json_array_foreach(ranks, i, rank) {
        ck_assert_int_eq(number(rank, "rank"), (json_int_t)i);
        check_rank(root, rank);
    }
    ck_assert_uint_eq(count_names(root, "attention.fwd"), 12);
    ck_assert_uint_eq(count_names(root, "experts.wgrad"), 12);
    ck_assert_uint_eq(count_names(root, "bucket"), 1);
    json_object_foreach(json_object_get(root, "costs"), name, cost) {
        ck_assert_msg(count_names(root, name) > 0, "no node costs %s", name);
        ck_assert_int_gt(json_integer_value(cost), 0);
    }
    ck_assert(!there("s.json.part"));
    json_decref(root);
}
END_TEST

/* Every compute node costs; so serial's compute lane is busy for its sum, and the span is at least that. */
START_TEST(to_standard_output_without_ranks) {
    json_t *root = run("scheduler/serial", "printed"), *x;
    json_t *rank = json_array_get(json_object_get(root, "ranks"), 0);
    json_int_t compute = 0;
    size_t i;
    json_array_foreach(json_object_get(root, "nodes"), i, x) if (strcmp(text(x, "lane"), "compute") == 0) compute +=
        number(x, "cost");
    ck_assert_int_eq(number(json_object_get(rank, "busy"), "compute"), compute);
    ck_assert_int_ge(number(rank, "span"), compute);
    ck_assert_uint_eq(count_names(root, "reduce"), 0); /* one rank has nothing to reduce */
    check_rank(root, rank);
    json_decref(root);
}
END_TEST

START_TEST(pieces_and_buckets_are_the_schedulers) {
    json_t *root = run("scheduler/" ODD " --ranks 2", "printed");
    check_rank(root, json_array_get(json_object_get(root, "ranks"), 1));
    ck_assert_int_eq(number(json_object_get(root, "shape"), "pieces_fwd"), 2);
    ck_assert_uint_eq(count_names(root, "experts.fwd"), 8);
    ck_assert_uint_eq(count_names(root, "experts.dgrad"), 4);
    ck_assert_uint_eq(count_names(root, "bucket"), 3);
    json_t *rank = json_array_get(json_object_get(root, "ranks"), 0);
    json_t *compute = json_object_get(json_object_get(rank, "order"), "compute");
    json_int_t last_dgrad = 0, first_wgrad = -1; /* it defers what may wait */
    for (size_t i = 0; i < json_array_size(compute); i++) {
        const char *name = json_string_value(json_array_get(compute, i));
        if (strstr(name, "dgrad")) last_dgrad = (json_int_t)i;
        if (strstr(name, "wgrad") && first_wgrad < 0) first_wgrad = (json_int_t)i;
    }
    ck_assert_int_gt(first_wgrad, last_dgrad);
    json_decref(root);
}
END_TEST

TCase *scheduler_tests(void) {
    TCase *t = tcase_create("scheduler");
    tcase_add_test(t, every_node_once);
    tcase_add_test(t, to_standard_output_without_ranks);
    tcase_add_test(t, pieces_and_buckets_are_the_schedulers);
    return t;
}
