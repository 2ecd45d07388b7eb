/* Faults of the recipe's text, before any key has a meaning. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "files.h"
#include "runner.h"

/* What makes a whole recipe of a [run] section. */
#define REST                \
    "[data]\n"              \
    "train = ../text.txt\n" \
    "seq_len = 16\n"        \
    "[model]\n"             \
    "layers = 1\n"          \
    "hidden = 16\n"         \
    "heads = 2\n"           \
    "experts = 4\n"         \
    "top_k = 2\n"           \
    "expert_ffn = 16\n"     \
    "[device]\n"            \
    "threads = 1\n"
#define X50 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"

START_TEST(C113_text_after_a_bracket) {
    static const row rows[] = {
        {"words after ']'", .text = "[run]\nsteps = 1\n[model] top_k=2\n", .line = 3, .code = 2,
         .say = {"text after ']'", "top_k=2"}},
        {"a second ']'", .text = "[run]]\nsteps = 1\n" REST, .line = 1, .code = 2, .say = {"text after ']'"}},
        {"a comment after ']'", .text = "[run] ; top_k=2\nsteps = 1 # one\n" REST, .say = {"tiny"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(sections_that_are_none) {
    static const row rows[] = {
        {"no ']'", .text = "[run\nsteps = 1\n" REST, .line = 1, .code = 2, .say = {"']' is missing"}},
        {"no name", .text = "[run]\nsteps = 1\n[]\n" REST, .line = 3, .code = 2, .say = {"no name"}},
        {"a blank in the name", .text = "[r un]\nsteps = 1\n" REST, .line = 1, .code = 2, .say = {"letters, digits"}},
        {"a long name", .text = "[" X50 "]\n" REST, .line = 1, .code = 2, .say = {"50 bytes", "49"}},
        {"an unknown name", .text = "[run]\nsteps = 1\n[modle]\n" REST, .line = 3, .code = 2,
         .say = {"[modle]", "unknown section", "did you mean 'model'?"}},
        {"nothing like a name", .text = "[run]\nsteps = 1\n[kitchen]\n" REST, .line = 3, .code = 2,
         .say = {"unknown section"}, .not_say = "did you mean"},
        {"twice", .text = "[run]\nsteps = 1\n" REST "[run]\nlog_every = 1\n", .line = 15, .code = 2,
         .say = {"[run]", "first in line 1"}},
        {"case counts", .text = "[Run]\nsteps = 1\n" REST, .line = 1, .code = 2, .say = {"did you mean 'run'?"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(lines_that_are_none) {
    static const row rows[] = {
        {"no '='", .text = "[run]\nsteps 1\n" REST, .line = 2, .code = 2, .say = {"steps 1", "key = value"}},
        {"a colon", .text = "[run]\nsteps: 1\n" REST, .line = 2, .code = 2, .say = {"the sign is '='"}},
        {"no key", .text = "[run]\n= 1\n" REST, .line = 2, .code = 2, .say = {"key"}},
        {"a blank in the key", .text = "[run]\nlog every = 1\n" REST, .line = 2, .code = 2, .say = {"key"}},
        {"a long key", .text = "[run]\n" X50 " = 1\n" REST, .line = 2, .code = 2, .say = {"50 bytes", "49"}},
        {"before the first section", .text = "steps = 1\n" REST, .line = 1, .code = 2,
         .say = {"steps", "before the first [section]"}},
        {"a quoted value", .text = "[run]\nname = \"one\"\n" REST, .line = 2, .code = 2, .say = {"quotes"}},
        {"a key given twice", .text = "[run]\nsteps = 1\nlog_every = 1\nsteps = 2\n" REST, .line = 4, .code = 2,
         .say = {"[run] steps", "first in line 2"}},
        {"an option given twice", .text = REST "[router]\nscale = 1\nscale = 1\n", .line = 15, .code = 2,
         .say = {"[router] scale", "first in line 14"}},
        {"a plugin named twice", .text = REST "[router]\nplugin = topk\nplugin = topk\n", .line = 15, .code = 2,
         .say = {"[router] plugin", "first in line 14"}},
        {"no value", .text = "[run]\nsteps =\n" REST, .line = 2, .code = 2, .say = {"[run] steps", "empty"}},
        {"a value that is a comment", .text = "[run]\nsteps = ; 5\n" REST, .line = 2, .code = 2, .say = {"empty"}},
        {"a continued line", .text = "[run]\nsteps = 1\n  0\n" REST, .line = 3, .code = 2, .say = {"key = value"}},
    };
    RUN(rows);
}
END_TEST

START_TEST(bytes_that_are_no_text) {
#define BYTES(text_) .text = text_, .text_bytes = sizeof(text_) - 1
    static const row rows[] = {
        {"a NUL",
         BYTES("[run]\nsteps = 1\0"
               "2\n" REST),
         .line = 2, .code = 2, .say = {"a NUL byte"}},
        {"an escape", BYTES("[run]\nname = \033[31mred\n" REST), .line = 2, .code = 2, .say = {"control character"}},
        {"a lone CR", BYTES("[run]\nsteps = 1\rlog_every = 1\n" REST), .line = 2, .code = 2,
         .say = {"carriage return"}},
        {"Latin-1", BYTES("[run]\nname = caf\xe9\n" REST), .line = 2, .code = 2, .say = {"UTF-8"}},
        {"an overlong form", BYTES("[run]\nname = \xc0\xaf\n" REST), .line = 2, .code = 2, .say = {"UTF-8"}},
        {"UTF-16", BYTES("\xff\xfe[\0r\0u\0n\0]\0\n\0"), .line = 1, .code = 2, .say = {"UTF-16"}},
        {"a BOM and CRLF are fine", BYTES("\xef\xbb\xbf[run]\r\nsteps = 1\r\n" REST)},
        {"no end of the last line is fine", BYTES(REST "[run]\nsteps = 1")},
    };
    RUN(rows);
}
END_TEST

/* ---- files that are no recipe ---- */
static void write_at(const char *dir, const char *name, const void *bytes, size_t n) {
    char path[PATH_BYTES];
    file_path(path, "%s/%s", dir, name);
    file_write(path, bytes, n);
}

static void repeat(const char *dir, const char *before, size_t n) {
    char *text = malloc(strlen(before) + n + 1);
    ck_assert(text != NULL);
    strcpy(text, before);
    memset(text + strlen(before), 'x', n);
    write_at(dir, "other.ini", text, strlen(before) + n);
    free(text);
}
static void make_long_line(const char *dir) {
    repeat(dir, "[run]\nsteps = 1\nname = ", 5000);
}
static void make_large(const char *dir) {
    repeat(dir, "[run]\nsteps = 1\n# ", 2 << 20);
}
static void make_empty(const char *dir) {
    write_at(dir, "other.ini", "", 0);
}
static void make_binary(const char *dir) {
    char path[PATH_BYTES];
    file_path(path, "%s/other.ini", dir);
    file_copy(MOE_BUILD_DIR "/plugins/router/topk.so", path, 8192);
}
static void make_pipe(const char *dir) {
    char path[PATH_BYTES];
    file_path(path, "%s/other.ini", dir);
    ck_assert(mkfifo(path, 0644) == 0);
}
static void make_comments(const char *dir) {
    write_at(dir, "other.ini", "; nothing\n# at all\n", 19);
}

START_TEST(files_that_are_none) {
    static const row rows[] = {
        {"absent", .args = "check other.ini", .code = 2, .say = {"other.ini: No such file"}},
        {"absent, to run", .args = "run other.ini", .code = 2, .say = {"other.ini: No such file"}},
        {"absent folder", .args = "check a/b/c.ini", .code = 2, .say = {"a/b/c.ini: No such file"}},
        {"a folder", .args = "check .", .code = 2, .say = {".: a directory"}},
        {"below a file", .args = "check tiny.ini/x.ini", .code = 2, .say = {"tiny.ini/x.ini: Not a directory"}},
        {"a pipe", .args = "check other.ini", .prepare = make_pipe, .code = 2, .say = {"not a regular file"}},
        {"empty", .args = "check other.ini", .prepare = make_empty, .code = 2, .say = {"other.ini", "empty"}},
        {"comments only", .args = "check other.ini", .prepare = make_comments, .code = 2, .lines = 4,
         .say = {"[model] hidden: missing", "[model] layers: missing", "[model] heads: missing",
                 "[data] train: missing"}},
        {"a long line", .args = "check other.ini", .prepare = make_long_line, .code = 2,
         .say = {"other.ini:3:1: ", "bytes", "4096"}},
        {"too large", .args = "check other.ini", .prepare = make_large, .code = 2, .say = {"1 MiB"}},
        {"binary", .args = "check other.ini", .prepare = make_binary, .code = 2, .lines = ANY_NUMBER,
         .say = {"other.ini:1:1: "}},
    };
    RUN(rows);
}
END_TEST

TCase *ini_tests(void) {
    TCase *tc = tcase_create("ini");
    tcase_add_test(tc, C113_text_after_a_bracket);
    tcase_add_test(tc, sections_that_are_none);
    tcase_add_test(tc, lines_that_are_none);
    tcase_add_test(tc, bytes_that_are_no_text);
    tcase_add_test(tc, files_that_are_none);
    return tc;
}
