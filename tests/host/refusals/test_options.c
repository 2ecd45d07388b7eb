/* Options of plugins, and overrides from the command line. */
#include "runner.h"

START_TEST(options_with_a_slip) {
    static const row rows[] = {
        {"a key", .put = {"router: renormalize = true"}, .code = 2,
         .say = {"[router] renormalize", "router/topk", "did you mean 'renormalise'?"}},
        {"a key of another kind", .put = {"router: isa = base"}, .code = 2, .say = {"[router] isa", "unknown option"}},
        {"nothing like it", .put = {"router: quux = 1"}, .code = 2, .say = {"unknown option"},
         .not_say = "did you mean"},
        {"of a plugin without options", .put = {"scheduler: depth = 2"}, .code = 2,
         .say = {"[scheduler] depth", "scheduler/serial"}},
        {"of the device", .put = {"device: treads = 1"}, .code = 2, .say = {"did you mean 'threads'?"}},
        {"of one layer", .put = {"router:1: scal = 2"}, .code = 2, .say = {"[router:1] scal", "'scale'"}},
        {"a broken plugin's control", .put = {"router: plugin = $BAD/good.so", "router: strength = 1"}},
        {"of a plugin by path", .put = {"router: strenght = 1", "router: plugin = $BAD/good.so"}, .code = 2,
         .say = {"[router] strenght", "router/bad", "did you mean 'strength'?"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(C033_unknown_words_of_an_enum) {
    static const row rows[] = {
        {"unset works", .put = {"router: scale = 1"}},
        {"a word works", .put = {"router: aux_scope = sequence"}},
        {"another word", .put = {"router: aux_scope = batch"}, .code = 2,
         .say = {"[router] aux_scope", "'batch'", "microbatch|sequence"}},
        {"a slip", .put = {"router: score = sigmod"}, .code = 2, .say = {"softmax|sigmoid", "did you mean 'sigmoid'?"}},
        {"case counts", .put = {"router: order = Before"}, .code = 2, .say = {"'Before'", "before|after"}},
        {"of the device", .put = {"device: isa = avx9"}, .code = 2, .say = {"[device] isa", "auto|base|v3|v4"}},
        {"by --set", .args = "check tiny.ini --set router.score=none", .code = 2,
         .say = {"--set router.score=none: ", "softmax|sigmoid"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(options_of_the_wrong_type) {
    static const row rows[] = {
        {"a word for a number", .put = {"router: aux_coef = some"}, .code = 2, .say = {"[router] aux_coef", "'some'"}},
        {"negative", .put = {"router: aux_coef = -1"}, .code = 2, .say = {"-1 is outside 0..1000"}},
        {"zero", .put = {"router: scale = 0"}, .code = 2, .say = {"[router] scale", "outside"}},
        {"a number for a bool", .put = {"router: renormalise = 1"}, .code = 2, .say = {"'1'", "true|false"}},
        {"too many threads", .put = {"device: threads = 2000"}, .code = 2, .say = {"[device] threads", "0..1024"}},
        {"empty", .put = {"router: aux_coef ="}, .code = 2, .say = {"[router] aux_coef", "empty"}},
        {"required and missing", .put = {"router: plugin = $BAD/option_required.so"}, .code = 2,
         .say = {"router/bad", "needs option 'strength'", "float 0..1"}},
        {"required and given", .put = {"router: plugin = $BAD/option_required.so", "router: strength = 0"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(C032_options_that_contradict) {
    static const row rows[] = {
        {"a rate of a bias that is off", .put = {"router: bias_rate = 0.01"}, .line = NO_PLACE, .code = 2,
         .say = {"topk", "bias_rate = 0.01", "expert_bias = false"}},
        {"the centre of a bias that is off", .put = {"router: bias_centre = true"}, .line = NO_PLACE, .code = 2,
         .say = {"topk", "bias_centre", "expert_bias = false"}},
        {"both are fine with the bias",
         .put = {"router: bias_rate = 0.01", "router: bias_centre = true", "router: expert_bias = true"}},
        {"an order of sigmoids", .put = {"router: order = after", "router: score = sigmoid"}, .line = NO_PLACE,
         .code = 2, .say = {"score = sigmoid", "order = after"}},
        {"one expert, weight one", .put = {"model: top_k = 1", "router: renormalise = true"}, .line = NO_PLACE,
         .code = 2, .say = {"top_k = 1", "renormalise = true"}},
        {"one expert, softmax of one", .put = {"model: top_k = 1", "router: order = after"}, .line = NO_PLACE,
         .code = 2, .say = {"top_k = 1", "order = after"}},
        {"one expert is fine", .put = {"model: top_k = 1"}},
        {"in one layer only", .put = {"router:1: bias_rate = 0.01"}, .line = NO_PLACE, .code = 2,
         .say = {"layer 1", "bias_rate"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(overrides) {
    static const row rows[] = {
        {"a right one", .args = "check tiny.ini --set run.steps=5 --set router.scale=2"},
        {"in one word", .args = "check --set=run.steps=5 tiny.ini"},
        {"it replaces the line", .put = {"model: top_k = 9"}, .args = "check tiny.ini --set model.top_k=2"},
        {"of one layer", .args = "check tiny.ini --set router:1.scale=2"},
        {"no section", .args = "check tiny.ini --set steps=5", .code = 2, .say = {"--set", "section.key=value"}},
        {"no '='", .args = "check tiny.ini --set run.steps", .code = 2, .say = {"--set", "section.key=value"}},
        {"no key", .args = "check tiny.ini --set run.=5", .code = 2, .say = {"--set", "section.key=value"}},
        {"an empty section", .args = "check tiny.ini --set .steps=5", .code = 2, .say = {"section.key=value"}},
        {"no value", .args = "check tiny.ini --set run.steps=", .code = 2, .say = {"--set run.steps=: ", "empty"}},
        {"nothing", .args = "check tiny.ini --set", .code = 2, .say = {"--set", "SECTION.KEY=VALUE"}},
        {"an unknown section", .args = "check tiny.ini --set rnu.steps=5", .code = 2,
         .say = {"--set rnu.steps=5: ", "unknown section", "did you mean 'run'?"}},
        {"an unknown key", .args = "check tiny.ini --set run.step=5", .code = 2,
         .say = {"--set run.step=5: ", "did you mean 'steps'?"}},
        {"a wrong type", .args = "check tiny.ini --set run.steps=five", .code = 2,
         .say = {"--set run.steps=five: ", "'five'"}},
        {"out of range", .args = "check tiny.ini --set model.layers=0", .code = 2,
         .say = {"--set model.layers=0: ", "1..4096"}},
        {"twice", .args = "check tiny.ini --set run.steps=5 --set run.steps=6", .code = 2,
         .say = {"--set run.steps=6: ", "twice", "--set run.steps=5"}},
        {"an unknown option", .args = "check tiny.ini --set router.scal=2", .code = 2,
         .say = {"--set router.scal=2: ", "did you mean 'scale'?"}},
        {"a comment sign", .args = "check tiny.ini --set run.name=a~;b", .code = 2, .say = {"--set", "comment"}},
        {"a quote", .args = "check tiny.ini --set run.name=\"a\"", .code = 2, .say = {"--set", "quotes"}},
        {"a contradiction", .args = "check tiny.ini --set model.kv_heads=3 --set model.heads=4", .code = 2,
         .say = {"--set model.kv_heads=3: ", "heads = 4"}},
        {"an unknown plugin", .args = "check tiny.ini --set router.plugin=topc", .code = 3,
         .say = {"--set router.plugin=topc: ", "did you mean 'topk'?"}},
        {"two wrong ones", .args = "check tiny.ini --set run.step=5 --set model.layer=2", .code = 2, .lines = 2,
         .say = {"'steps'", "'layers'"}},
    };
    RUN(rows);
}
END_TEST

TCase *option_tests(void) {
    TCase *tc = tcase_create("options");
    tcase_add_test(tc, options_with_a_slip);
    tcase_add_test(tc, C033_unknown_words_of_an_enum);
    tcase_add_test(tc, options_of_the_wrong_type);
    tcase_add_test(tc, C032_options_that_contradict);
    tcase_add_test(tc, overrides);
    return tc;
}
