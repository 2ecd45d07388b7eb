/* Command lines, run directories and checkpoints. */
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "runner.h"

START_TEST(command_lines) {
    static const row rows[] = {
        {"nothing", .args = "", .lines = ANY_NUMBER, .code = 2,
         .say = {"usage: moehost COMMAND", "check", "--version"}},
        {"an unknown command", .args = "chekc tiny.ini", .code = 2, .say = {"'chekc'", "did you mean 'check'?"}},
        {"a command like no other", .args = "frobnicate", .code = 2, .say = {"'frobnicate'", "moehost help"},
         .not_say = "did you mean"},
        {"an option before the command", .args = "--steps 5 run tiny.ini", .code = 2, .say = {"'--steps'"}},
        {"no recipe", .args = "check", .code = 2, .say = {"moehost check: ", "RECIPE"}},
        {"no recipe to run", .args = "run", .code = 2, .say = {"moehost run: ", "RECIPE"}},
        {"two recipes", .args = "check tiny.ini other.ini", .code = 2, .say = {"'other.ini'"}},
        {"--version", .args = "--version", .say = {"moehost ", "ABI 0.", "checkpoints:"}},
        {"--help", .args = "--help", .say = {"usage: moehost"}},
        {"help of a command", .args = "run --help", .say = {"usage: moehost run", "--resume", "--set"}},
        {"help of the recipe", .args = "help recipe", .say = {"top_k", "seq_len"}},
        {"help of nothing", .args = "help recipes", .code = 2, .say = {"'recipes'", "did you mean 'recipe'?"}},
        {"a wrong option of help", .args = "help --makrdown", .code = 2, .say = {"did you mean '--markdown'?"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(options_of_commands) {
    static const row rows[] = {
        {"of check", .args = "check tiny.ini --reslved", .code = 2,
         .say = {"moehost check: ", "'--reslved'", "did you mean '--resolved'?"}},
        {"of run", .args = "run tiny.ini --resum", .code = 2, .say = {"moehost run: ", "did you mean '--resume'?"}},
        {"of run, an abbreviation", .args = "run tiny.ini --res", .code = 2, .say = {"'--res'"}},
        {"of run, with a value", .args = "run tiny.ini --step=5", .code = 2, .say = {"did you mean '--steps'?"}},
        {"of generate", .args = "generate tiny.ini --promt x", .code = 2, .say = {"did you mean '--prompt'?"}},
        {"of plugins", .args = "plugins --jsno", .code = 2, .say = {"moehost plugins: ", "did you mean '--json'?"}},
        {"like no other", .args = "check tiny.ini --quux", .code = 2, .say = {"'--quux'"}, .not_say = "did you mean"},
        {"one letter", .args = "check tiny.ini -q", .code = 2, .say = {"'-q'"}},
        {"of another command", .args = "check tiny.ini --steps 5", .code = 2, .say = {"'--steps'"}},
        {"no value", .args = "run tiny.ini --steps", .code = 2, .say = {"--steps", "value"}},
        {"no number", .args = "run tiny.ini --steps many", .code = 2, .say = {"--steps", "'many'"}},
        {"out of range", .args = "run tiny.ini --steps -1", .code = 2, .say = {"--steps", "-1 is outside"}},
        {"a value of a flag", .args = "run tiny.ini --quiet=yes", .code = 2, .say = {"--quiet", "no value"}},
        {"twice", .args = "run tiny.ini --steps 1 --steps 2", .code = 2, .say = {"--steps", "twice"}},
        {"two that exclude each other", .args = "run tiny.ini --resume --overwrite", .code = 2,
         .say = {"--resume", "--overwrite"}},
        {"an option and its --set", .args = "run tiny.ini --steps 1 --set run.steps=2", .code = 2,
         .say = {"--set run.steps=2: ", "twice", "--steps 1"}},
        {"generate nothing", .args = "generate tiny.ini", .code = 2, .say = {"--prompt"}},
        {"generate after nothing", .args = "generate tiny.ini --prompt=", .code = 2, .say = {"--prompt"}},
        {"a negative temperature", .args = "generate tiny.ini --prompt x --temperature -1", .code = 2,
         .say = {"--temperature", "outside"}},
        {"no tokens", .args = "generate tiny.ini --prompt x --tokens 0", .code = 2, .say = {"--tokens", "outside"}},
        {"an unknown kind", .args = "plugins ruoter", .code = 2, .say = {"'ruoter'", "did you mean 'router'?"}},
        {"an unknown id", .args = "plugins router/topc", .code = 3, .say = {"router/topc"}},
        {"all plugins", .args = "plugins", .say = {"router/topk", "comm/threads", "precision/bf16"}},
        {"all plugins for programs", .args = "plugins --json", .say = {"\"id\": \"topk\"", "\"refused\": []"}},
        {"one plugin", .args = "plugins router/topk", .say = {"aux_coef", "softmax|sigmoid"}},
        {"a file of plugins", .args = "plugins router/$BAD/good.so", .say = {"router/bad", "$BAD/good.so"}},
        {"a file with options", .args = "plugins $BUILD/plugins/router/topk.so", .say = {"router/topk", "aux_coef"}},
        {"a file that is not there", .args = "plugins mine/router.so", .code = 3,
         .say = {"mine/router.so: there is no such file"}},
        {"a file that is refused", .args = "plugins router/$BAD/magic.so", .code = 3,
         .say = {"magic.so: plugin refused: ", "magic is 0x12345678"}},
        {"defaults of generate", .args = "generate --help", .say = {"default 200", "default 0.8", "default 1"}},
        {"what export gives", .args = "export --help", .say = {"--ckpt", "max_position_embeddings", "seq_len"}},
        {"one rank", .args = "check tiny.ini", .say = {", 1 rank, "}},
        {"a full disk", .args = "check tiny.ini", .disk_full = 1, .code = 1, .say = {"standard output", "No space"}},
        {"a full disk for a list", .args = "plugins", .disk_full = 1, .code = 1, .say = {"standard output"}},
        {"resolved", .args = "check tiny.ini --resolved", .say = {"[optimizer]", "seq_len = 16", "; default"}},
    };
    RUN(rows);
}
END_TEST

/* ---- run directories ---- */
static void make_run(const char *dir) {
    char path[PATH_BYTES];
    file_path(path, "%s/runs/tiny", dir);
    file_make_dir(path, 0755);
    file_path(path, "%s/runs/tiny/metrics.jsonl", dir);
    file_write(path, "{\"step\": 1}\n", 12);
}
static void make_checkpoint(const char *dir, const char *meta) {
    char path[PATH_BYTES];
    make_run(dir);
    file_path(path, "%s/runs/tiny/ckpt/step-00000001", dir);
    file_make_dir(path, 0755);
    file_path(path, "%s/runs/tiny/ckpt/step-00000001/meta.json", dir);
    file_write(path, meta, strlen(meta));
}
static void make_broken_checkpoint(const char *dir) {
    make_checkpoint(dir, "{\"format\": ");
}
static void make_empty_checkpoint(const char *dir) {
    make_checkpoint(dir, "{}\n");
}
static void make_file_runs(const char *dir) {
    char path[PATH_BYTES];
    file_path(path, "%s/runs", dir);
    file_write(path, "", 0);
}

START_TEST(run_directories) {
    static const row rows[] = {
        {"a run", .args = "run tiny.ini", .say = {"loss"}},
        {"a run elsewhere", .args = "run tiny.ini --out elsewhere --quiet --steps 1"},
        {"a run is there", .args = "run tiny.ini", .prepare = make_run, .code = 2,
         .say = {"runs/tiny", "--resume", "--overwrite", "--out"}},
        {"it may go", .args = "run tiny.ini --overwrite", .prepare = make_run},
        {"nothing to resume", .args = "run tiny.ini --resume", .code = 2, .say = {"runs/tiny", "checkpoint"}},
        {"no checkpoint to resume", .args = "run tiny.ini --resume", .prepare = make_run, .code = 2,
         .say = {"runs/tiny", "checkpoint"}},
        {"a broken checkpoint", .args = "run tiny.ini --resume", .prepare = make_broken_checkpoint, .code = 1,
         .lines = ANY_NUMBER, .say = {"step-00000001", "meta.json"}},
        {"a checkpoint of nothing", .args = "run tiny.ini --resume", .prepare = make_empty_checkpoint, .code = 1,
         .lines = ANY_NUMBER, .say = {"step-00000001"}},
        {"below a file", .args = "run tiny.ini --out ../text.txt/x", .code = 1, .say = {"text.txt", "not a directory"}},
        {"a file", .args = "run tiny.ini --out ../text.txt", .code = 1, .say = {"text.txt"}},
        {"runs is a file", .args = "run tiny.ini", .prepare = make_file_runs, .code = 1, .say = {"runs"}},
        {"nowhere", .args = "run tiny.ini --out /proc/nowhere/x", .code = 1, .say = {"/proc/nowhere"}},
        {"an empty name is the usual one", .args = "run tiny.ini --out= --quiet", .say = {""}},
    };
    RUN(rows);
}
END_TEST

START_TEST(generations) {
    static const row rows[] = {
        {"without a run", .args = "generate tiny.ini --prompt x", .code = 2, .say = {"runs/tiny", "checkpoint"}},
        {"elsewhere", .args = "generate tiny.ini --prompt x --out elsewhere", .code = 2, .say = {"elsewhere"}},
        {"from no checkpoint", .args = "generate tiny.ini --prompt x --ckpt elsewhere", .code = 1,
         .say = {"elsewhere"}},
        {"from a broken one", .args = "generate tiny.ini --prompt x", .prepare = make_broken_checkpoint, .code = 1,
         .lines = ANY_NUMBER, .say = {"meta.json"}},
        {"with a broken recipe", .put = {"model: top_k = 9"}, .args = "generate tiny.ini --prompt x", .code = 2,
         .say = {"[model] top_k"}},
    };
    RUN(rows);
}
END_TEST

TCase *command_tests(void) {
    TCase *tc = tcase_create("commands");
    tcase_add_test(tc, command_lines);
    tcase_add_test(tc, options_of_commands);
    tcase_add_test(tc, run_directories);
    tcase_add_test(tc, generations);
    return tc;
}
