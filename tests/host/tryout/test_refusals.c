/* Command lines, files and plugins that probe must refuse: exit code, one line, its words, and no result left. */
#include <io/fs.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/run_suite.h"
#include "runs.h"

typedef struct row {
    const char *args;
    given in[6]; /* none: no file */
    int code;
    const char *say[4];
} row;

/* $IO stands for both files, $ODD for the plugin file of these tests. */
static void expand(const char *args, char *out, size_t bytes) {
    static const char *const names[][2] = {{"$IO", "--in in.safetensors --out out.safetensors"},
                                           {"$ODD", ODD},
                                           {"$BAD", MOE_BUILD_DIR "/tests/badplugins"}};
    size_t used = 0;
    while (*args && used + 1 < bytes) {
        size_t i = 0;
        while (i < 3 && strncmp(args, names[i][0], strlen(names[i][0])) != 0) i++;
        if (i == 3) {
            out[used++] = *args++;
            continue;
        }
        used += (size_t)snprintf(out + used, bytes - used, "%s", names[i][1]);
        args += strlen(names[i][0]);
    }
    out[used < bytes ? used : bytes - 1] = 0;
}

static int count_lines(const char *text) {
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

static int check_row(const row *r) {
    char line[1024], says[4096];
    int faults = 0;
    remove(runs_path("in.safetensors"));
    if (r->in[0].name) put(r->in);
    expand(r->args, line, sizeof line);
    int code = probe(line, says);
    faults += code != r->code || count_lines(says) != 1 || strstr(says, "anitizer") != NULL;
    for (int i = 0; i < 4 && r->say[i]; i++) faults += strstr(says, r->say[i]) == NULL;
    faults += there("out.safetensors") || there("out.safetensors.part");
    if (faults) fprintf(stderr, "probe %s\n  exit code %d, expected %d: %s\n", line, code, r->code, says);
    return faults != 0;
}

static void check_rows(const row *rows, size_t n) {
    int wrong = 0;
    for (size_t i = 0; i < n; i++) wrong += check_row(&rows[i]);
    ck_assert_msg(wrong == 0, "%d of %zu rows are answered wrongly", wrong, n);
}
#define CHECK(rows_) check_rows(rows_, sizeof(rows_) / sizeof(rows_)[0])

#define LOGITS \
    { "logits", MOE_F32, SHAPE(2, 4), F32(0, 1, 2, 3, 4, 5, 6, 7) }
#define X \
    { "x", MOE_F32, SHAPE(2, 3), F32(0, 1, 2, 3, 4, 5) }

START_TEST(command_lines) {
    const row rows[] = {
        {"", .code = 2, .say = {"KIND/ID is missing"}},
        {"router/topk extra", .code = 2, .say = {"one argument too many", "extra"}},
        {"topk", .code = 2, .say = {"'topk' is not KIND/ID"}},
        {"router/", .code = 2, .say = {"'router/' is not KIND/ID"}},
        {"/topk", .code = 2, .say = {"is not KIND/ID"}},
        {"ruoter/topk $IO", .code = 2, .say = {"unknown kind 'ruoter'", "did you mean 'router'?"}},
        {"device/cpu $IO", .code = 2, .say = {"kind device takes no tensors", "router, precision"}},
        {"comm/threads", .code = 2, .say = {"kind comm takes no tensors"}},
        {"router/topk --in in.safetensors", .code = 2, .say = {"--in FILE and --out FILE are needed"}},
        {"precision/fp32 --out out.safetensors", .code = 2, .say = {"--in FILE", "precision"}},
        {"router/topk --in a.safetensors --out a.safetensors", .code = 2, .say = {"are one file"}},
        {"router/topk $IO --topk 2", .code = 2, .say = {"unknown option '--topk'", "did you mean '--top-k'?"}},
        {"router/topk $IO --top-k 0", .code = 2, .say = {"--top-k", "0 is outside 1..65536"}},
        {"router/topk $IO --top-k two", .code = 2, .say = {"--top-k", "'two'"}},
        {"router/topk $IO --ranks 2", .code = 2, .say = {"--ranks has no effect on a router"}},
        {"precision/fp32 $IO --top-k 2", .code = 2, .say = {"--top-k has no effect on a precision"}},
        {"dispatcher/local $IO --backward", .code = 2, .say = {"--backward has no effect on a dispatcher"}},
        {"scheduler/serial --in in.safetensors", .code = 2, .say = {"--in has no effect on a scheduler"}},
        {"scheduler/serial --layers 65", .code = 2, .say = {"--layers", "65 is outside 1..64"}},
        {"scheduler/serial --seed 1", .code = 2, .say = {"--seed has no effect on a scheduler"}},
        {"router/topk $IO --set aux_coef", .in = {LOGITS}, .code = 2, .say = {"'aux_coef' is not key=value"}},
        {"router/topk $IO --set =3", .in = {LOGITS}, .code = 2, .say = {"'=3' is not key=value"}},
        {"router/topk $IO --set scor=softmax", .in = {LOGITS}, .code = 2,
         .say = {"--set scor=softmax", "did you mean 'score'?"}},
        {"router/topk $IO --set score=relu", .in = {LOGITS}, .code = 2, .say = {"--set score=relu", "softmax|sigmoid"}},
        {"router/topk $IO --set scale=2000", .in = {LOGITS}, .code = 2, .say = {"--set scale=2000", "outside"}},
        {"router/topk $IO --set router.scale=2", .in = {LOGITS}, .code = 2, .say = {"unknown option of router/topk"}},
        {"scheduler/serial --set depth=2", .code = 2, .say = {"--set depth=2", "unknown option of scheduler/serial"}},
        {"router/topk $IO --set groups=3", .in = {LOGITS}, .code = 2,
         .say = {"router/topk", "groups = 3 does not divide experts = 4"}},
        {"router/topk $IO --top-k 5", .in = {LOGITS}, .code = 2, .say = {"--top-k 5 is more than the 4 experts"}},
        {"router/topk $IO --seq-len 3", .in = {LOGITS}, .code = 2, .say = {"--seq-len 3 does not divide the 2 tokens"}},
        {"router/topk $IO --experts 5", .in = {LOGITS}, .code = 2, .say = {"--experts 5", "4 columns"}},
    };
    CHECK(rows);
}
END_TEST

START_TEST(plugins) {
    const row rows[] = {
        {"router/topc $IO", .in = {LOGITS}, .code = 3, .say = {"plugin router 'topc'", "did you mean 'topk'?"}},
        {"router/./none.so $IO", .in = {LOGITS}, .code = 3, .say = {"none.so", "absent"}},
        {"router/$BAD/magic.so $IO", .in = {LOGITS}, .code = 3, .say = {"magic.so"}},
        {"router/$BAD/create_fails.so $IO", .in = {LOGITS}, .code = 2, .say = {"router/bad"}},
        {"router/$BAD/needs_silent.so $IO", .in = {LOGITS}, .code = 3,
         .say = {"router/bad", "failed without a reason"}},
        {"router/$BAD/option_required.so $IO", .in = {LOGITS}, .code = 2,
         .say = {"router/bad needs option 'strength'"}},
        {"precision/topk $IO", .in = {X}, .code = 3, .say = {"plugin precision 'topk'", "not found"}},
        {"router/topk $IO --device rocm", .in = {LOGITS}, .code = 3, .say = {"device 'rocm'", "not found"}},
        {"scheduler/$ODD --set fault=shape", .code = 3, .say = {"2 layers are no shape"}},
        {"scheduler/$ODD --set fault=pieces", .code = 3, .say = {"scheduler/odd", "asks for 0 and 1 pieces"}},
        {"scheduler/$ODD --set fault=early", .code = 3, .say = {"scheduler/odd", "ordered before"}},
        {"scheduler/$ODD --set fault=twice", .code = 3, .say = {"scheduler/odd", "twice"}},
    };
    CHECK(rows);
}
END_TEST

#define ODD_IN                                                                                  \
    {"hidden", MOE_F32, SHAPE(2, 1), F32(1, 2)}, {"token_ids", MOE_I32, SHAPE(2), I32(1, 2)}, { \
        "mask", MOE_U8, SHAPE(2), U8(1, 0)                                                      \
    }

/* A router that breaks its contract gives no file. */
START_TEST(broken_routers) {
    const row rows[] = {
        {"router/$ODD $IO --experts 4 --set fault=range", .in = {ODD_IN}, .code = 3,
         .say = {"router/odd", "token 0 expert 4 of 4"}},
        {"router/$ODD $IO --experts 4 --backward --set fault=range", .in = {ODD_IN}, .code = 3,
         .say = {"router/odd", "token 0 expert 4 of 4"}},
        {"router/$ODD $IO --experts 4 --backward --set fault=below", .in = {ODD_IN}, .code = 3,
         .say = {"router/odd", "token 0 expert -2 of 4"}},
        {"router/$ODD $IO --experts 4 --set fault=minimum", .in = {ODD_IN}, .code = 3,
         .say = {"router/odd", "counts -9223372036854775808 choices of expert 1"}},
        {"router/$BAD/losses_many.so $IO", .in = {LOGITS}, .code = 3,
         .say = {"router/bad layer 0: ", "1000000000 losses"}},
        {"router/$BAD/params_null.so $IO", .in = {LOGITS}, .code = 3,
         .say = {"router/bad layer 0: ", "params is NULL"}},
        {"router/$BAD/spec_path.so $IO", .in = {LOGITS}, .code = 3, .say = {"router/bad layer 0: ", "'../gain'"}},
        {"router/$ODD $IO --experts 4 --set fault=twice", .in = {ODD_IN}, .code = 3, .say = {"token 0 expert 1 twice"}},
        {"router/$ODD $IO --experts 4 --set fault=count", .in = {ODD_IN}, .code = 3,
         .say = {"counts 0 choices of expert 1, and makes 1"}},
        {"router/$ODD $IO --experts 4 --top-k 1 --set fault=padding", .in = {ODD_IN}, .code = 3,
         .say = {"token 1, which is padding, expert 2"}},
        {"router/$ODD $IO --experts 4 --set fault=nothing", .in = {ODD_IN}, .code = 3,
         .say = {"token 0 expert 2139062143"}},
        {"router/$ODD $IO --experts 4 --set fault=refuse", .in = {ODD_IN}, .code = 1,
         .say = {"router/odd route: token 0 is not to my taste"}},
    };
    CHECK(rows);
}
END_TEST

START_TEST(files_for_routers) {
    static const uint16_t halves[8] = {0};
    const row rows[] = {
        {"router/topk $IO", .code = 1, .say = {"in.safetensors"}},
        {"router/topk $IO", .in = {X}, .code = 1, .say = {"holds no tensor logits [T,E]"}},
        {"router/topk $IO", .in = {LOGITS, X}, .code = 1, .say = {"holds x", "logits, hidden"}},
        {"router/topk $IO", .in = {{"logits", MOE_F32, SHAPE(8), F32(0, 1, 2, 3, 4, 5, 6, 7)}}, .code = 1,
         .say = {"logits is [8]", "[T,E]"}},
        {"router/topk $IO", .in = {{"logits", MOE_F64, SHAPE(1, 1), ((const double[]){1})}}, .code = 1,
         .say = {"logits is F64", "F32 or BF16"}},
        {"router/topk $IO", .in = {{"logits", ST_F16, SHAPE(2, 4), halves}}, .code = 1, .say = {"logits is F16"}},
        {"router/topk $IO", .in = {{"logits", MOE_F32, SHAPE(2, 0), ""}}, .code = 1, .say = {"0 columns"}},
        {"router/topk $IO", .in = {LOGITS, {"mask", MOE_U8, SHAPE(3), U8(1, 1, 1)}}, .code = 1,
         .say = {"mask is [3]", "want [2]"}},
        {"router/topk $IO", .in = {LOGITS, {"mask", MOE_U8, SHAPE(2), U8(1, 2)}}, .code = 1,
         .say = {"mask[1] = 2 is outside of 0..1"}},
        {"router/topk $IO", .in = {LOGITS, {"mask", MOE_F32, SHAPE(2), F32(1, 1)}}, .code = 1,
         .say = {"mask is F32", "whole numbers"}},
        {"router/topk $IO", .in = {LOGITS, {"d_weights", MOE_F32, SHAPE(2, 3), F32(1, 1, 1, 1, 1, 1)}}, .code = 1,
         .say = {"d_weights is [2,3]", "want [2,2]"}},
        {"router/topk $IO", .in = {LOGITS, {"token_ids", MOE_I64, SHAPE(2), I64(1, -1)}}, .code = 1,
         .say = {"token_ids[1] = -1 is outside"}},
        {"router/topk $IO", .in = {LOGITS, {"hidden", MOE_F32, SHAPE(1, 2), F32(1, 1)}}, .code = 1,
         .say = {"hidden is [1,2]"}},
        {"router/topk $IO", .in = {LOGITS, {"state.expert_bias", MOE_F32, SHAPE(4), F32(0, 0, 0, 0)}}, .code = 1,
         .say = {"holds state.expert_bias", "as the router declares"}},
        {"router/topk $IO --set expert_bias=true",
         .in = {LOGITS, {"state.expert_bias", MOE_F32, SHAPE(3), F32(0, 0, 0)}}, .code = 1,
         .say = {"state.expert_bias has 3", "declares 4"}},
        {"router/topk $IO --layer 5", .in = {{"logits", MOE_F32, SHAPE(2, 2), F32(0, 1, 2, NAN)}}, .code = 1,
         .say = {"router/topk route: layer 5: logit of token 1, expert 1 is nan"}},
        {"router/topk $IO", .in = {{"logits", MOE_F32, SHAPE(1, 2), F32(0, INFINITY)}}, .code = 1,
         .say = {"expert 1 is inf"}},
        {"router/$ODD $IO --experts 4", .in = {{"token_ids", MOE_I32, SHAPE(1), I32(1)}}, .code = 1,
         .say = {"hidden [T,h]", "router/odd asks"}},
    };
    CHECK(rows);
}
END_TEST

START_TEST(files_for_precisions) {
    const given w = {"w", MOE_F32, SHAPE(1, 3), F32(0, 1, 2)}, dy = {"dy", MOE_F32, SHAPE(2, 1), F32(1, 1)};
    const row rows[] = {
        {"precision/bf16 $IO", .in = {LOGITS}, .code = 1, .say = {"holds no tensor x [M,K]"}},
        {"precision/bf16 $IO", .in = {X, LOGITS}, .code = 1, .say = {"holds logits", "x, w, dy"}},
        {"precision/bf16 $IO", .in = {{"x", MOE_F32, SHAPE(2), F32(1, 2)}}, .code = 1, .say = {"x is [2]; want [M,K]"}},
        {"precision/bf16 $IO", .in = {X, {"w", MOE_F32, SHAPE(1, 2), F32(1, 2)}}, .code = 1,
         .say = {"w is [1,2]", "want [1,3]"}},
        {"precision/bf16 $IO", .in = {X, {"w", MOE_F32, SHAPE(1, 1, 3), F32(1, 2, 3)}}, .code = 1,
         .say = {"w is [1,1,3]", "group_offsets"}},
        {"precision/bf16 $IO --backward", .in = {X, w}, .code = 1, .say = {"holds no tensor dy [M,N]"}},
        {"precision/bf16 $IO", .in = {X, w, {"dy", MOE_F32, SHAPE(1, 2), F32(1, 2)}}, .code = 1,
         .say = {"dy is [1,2]", "want [2,1]"}},
        {"precision/bf16 $IO", .in = {X, {"group_offsets", MOE_I64, SHAPE(2), I64(0, 2)}}, .code = 1,
         .say = {"without w [G,N,K] or dy"}},
        {"precision/bf16 $IO", .in = {X, w, {"group_offsets", MOE_I64, SHAPE(2), I64(0, 2)}}, .code = 1,
         .say = {"w is [1,3]; want [G,N,K]"}},
        {"precision/bf16 $IO", .in = {X, dy, {"group_offsets", MOE_I64, SHAPE(2), I64(0, 1)}}, .code = 1,
         .say = {"group_offsets[1] = 1", "M = 2"}},
        {"precision/bf16 $IO", .in = {X, dy, {"group_offsets", MOE_I64, SHAPE(3), I64(0, 3, 2)}}, .code = 1,
         .say = {"group_offsets[1] = 3"}},
        {"precision/bf16 $IO", .in = {X, dy, {"group_offsets", MOE_I64, SHAPE(3), I64(1, 1, 2)}}, .code = 1,
         .say = {"group_offsets[0] = 1"}},
        {"precision/bf16 $IO", .in = {X, dy, {"group_offsets", MOE_I64, SHAPE(4), I64(0, 2, 1, 2)}}, .code = 1,
         .say = {"group_offsets[2] = 1"}},
        {"precision/bf16 $IO", .in = {X, dy, {"group_offsets", MOE_I64, SHAPE(1), I64(0)}}, .code = 1,
         .say = {"1 entries"}},
        {"precision/bf16 $IO", .in = {X, dy, {"group_offsets", MOE_I64, SHAPE(2), I64(0, -2)}}, .code = 1,
         .say = {"= -2 is outside"}},
        {"precision/bf16 $IO", .in = {X, dy, {"group_offsets", MOE_F32, SHAPE(2), F32(0, 2)}}, .code = 1,
         .say = {"group_offsets is F32"}},
    };
    CHECK(rows);
}
END_TEST

#define HIDDEN \
    { "rank.0.hidden", MOE_F32, SHAPE(2, 2), F32(1, 2, 3, 4) }
#define IDS(...) \
    { "rank.0.expert_ids", MOE_I32, SHAPE(2, 2), I32(__VA_ARGS__) }
#define WEIGHTS \
    { "rank.0.weights", MOE_F32, SHAPE(2, 2), F32(1, 1, 1, 1) }

START_TEST(files_for_dispatchers) {
    const row rows[] = {
        {"dispatcher/local $IO", .in = {HIDDEN, WEIGHTS}, .code = 1,
         .say = {"holds no tensor rank.0.expert_ids [T,k]"}},
        {"dispatcher/local $IO", .in = {HIDDEN, IDS(0, 1, 1, 0)}, .code = 1, .say = {"holds no tensor rank.0.weights"}},
        {"dispatcher/local $IO --ranks 2", .in = {HIDDEN, IDS(0, 1, 1, 0), WEIGHTS}, .code = 1,
         .say = {"holds no tensor rank.1.hidden"}},
        {"dispatcher/local $IO",
         .in = {HIDDEN, IDS(0, 1, 1, 0), WEIGHTS, {"rank.1.hidden", MOE_F32, SHAPE(1, 2), F32(1, 2)}}, .code = 1,
         .say = {"holds rank.1.hidden", "R = 0..0"}},
        {"dispatcher/local $IO --experts 2", .in = {HIDDEN, IDS(0, 1, 2, 0), WEIGHTS}, .code = 1,
         .say = {"rank.0.expert_ids[1,0] = 2 is outside of -1..1"}},
        {"dispatcher/local $IO", .in = {HIDDEN, IDS(0, 1, -2, 0), WEIGHTS}, .code = 1,
         .say = {"rank.0.expert_ids[1,0] = -2 is outside"}},
        {"dispatcher/local $IO", .in = {HIDDEN, IDS(0, 1, 1, 1), WEIGHTS}, .code = 1,
         .say = {"dispatcher/local layout: "}},
        {"dispatcher/local $IO --experts 1", .in = {HIDDEN, IDS(0, -1, 0, -1), WEIGHTS}, .code = 1,
         .say = {"2 choices a token of 1 experts"}},
        {"dispatcher/local $IO", .in = {{"rank.0.hidden", MOE_F32, SHAPE(1, 2), F32(1, 2)}, IDS(0, 1, 1, 0), WEIGHTS},
         .code = 1, .say = {"rank.0.expert_ids is [2,2]", "want [1,2]"}},
        {"dispatcher/local $IO --ranks 3 --ep 2", .code = 1, .say = {"in.safetensors"}},
        {"dispatcher/$ODD $IO --set fault=offsets", .in = {HIDDEN, IDS(0, 1, 1, 0), WEIGHTS}, .code = 3,
         .say = {"dispatcher/odd", "layout gives offset 5 of 4 rows to local expert 2"}},
    };
    CHECK(rows);
}
END_TEST

/* Two ranks that share their experts: today's local dispatcher is for one. */
START_TEST(local_over_ranks) {
    const row rows[] = {
        {"dispatcher/local $IO --ranks 2",
         .in = {HIDDEN,
                IDS(0, 1, 1, 0),
                {"rank.1.hidden", MOE_F32, SHAPE(0, 2), ""},
                {"rank.1.expert_ids", MOE_I32, SHAPE(0, 2), ""},
                {"rank.1.weights", MOE_F32, SHAPE(0, 2), ""}},
         .code = 1, .say = {"holds no tensor rank.0.weights"}},
    };
    CHECK(rows);
    const given both[] = {HIDDEN,
                          IDS(0, 1, 1, 0),
                          WEIGHTS,
                          {"rank.1.hidden", MOE_F32, SHAPE(0, 2), ""},
                          {"rank.1.expert_ids", MOE_I32, SHAPE(0, 2), ""},
                          {"rank.1.weights", MOE_F32, SHAPE(0, 2), ""},
                          END};
    char says[4096];
    put(both);
    int code = probe("dispatcher/local --ranks 2 --in in.safetensors --out out.safetensors", says);
    ck_assert_msg(code == 3 && strstr(says, "ep_size is 2") && count_lines(says) == 1, "%d: %s", code, says);
    code = probe("dispatcher/local --ranks 2 --ep 2 --experts 3 --in in.safetensors --out out.safetensors", says);
    ck_assert_msg(code == 2 && strstr(says, "--experts 3 is no multiple of the 2 ranks"), "%d: %s", code, says);
    code = probe("dispatcher/local --ranks 2 --ep 3 --in in.safetensors --out out.safetensors", says);
    ck_assert_msg(code == 2 && strstr(says, "--ep 3 does not divide --ranks 2"), "%d: %s", code, says);
    code = probe("dispatcher/local --ranks 2 --ep 2 --etp 2 --in in.safetensors --out out.safetensors", says);
    ck_assert_msg(code == 2 && strstr(says, "--ep 2 times --etp 2 does not divide --ranks 2"), "%d: %s", code, says);
}
END_TEST

START_TEST(files_that_are_none) {
    char says[4096];
    check_ok(fs_save(runs_path("in.safetensors"), "not a safetensors file", 22, err));
    int code = probe("router/topk --in in.safetensors --out out.safetensors", says);
    ck_assert_msg(code == 1 && count_lines(says) == 1, "%d: %s", code, says);
    put((const given[]){LOGITS, END});
    code = probe("router/topk --in in.safetensors --out none/out.safetensors", says);
    ck_assert_msg(code == 1 && strstr(says, "none/out.safetensors"), "%d: %s", code, says);
    code = probe("scheduler/serial --out none/s.json", says);
    ck_assert_msg(code == 1 && strstr(says, "none/s.json"), "%d: %s", code, says);
    /* what was there stays when a later run fails */
    probe_well("router/topk");
    put((const given[]){X, END});
    code = probe("router/topk --in in.safetensors --out out.safetensors", says);
    ck_assert_msg(code == 1 && there("out.safetensors") && !there("out.safetensors.part"), "%d: %s", code, says);
}
END_TEST

START_TEST(a_crash_names_the_call) {
    char says[4096];
    put((const given[]){ODD_IN, END});
    int code = probe("router/" ODD " --experts 4 --set fault=crash --in in.safetensors --out out.safetensors", says);
    ck_assert_msg(code != 0 && (UNDER_SANITIZER || strstr(says, "router/odd route")), "%d: %s", code, says);
    ck_assert(!there("out.safetensors"));
}
END_TEST

TCase *refusal_tests(void) {
    TCase *t = tcase_create("refusals");
    tcase_add_test(t, command_lines);
    tcase_add_test(t, plugins);
    tcase_add_test(t, broken_routers);
    tcase_add_test(t, files_for_routers);
    tcase_add_test(t, files_for_precisions);
    tcase_add_test(t, files_for_dispatchers);
    tcase_add_test(t, local_over_ranks);
    tcase_add_test(t, files_that_are_none);
    tcase_add_test(t, a_crash_names_the_call);
    return t;
}
