/* A directory of its own for each test, made and removed by scratch_setup and scratch_teardown (a checked fixture), and
 * small helpers around files in it. */
#ifndef TESTS_CORE_IO_SCRATCH_H
#define TESTS_CORE_IO_SCRATCH_H
#include <check.h>
#include <dirent.h>
#include <moe/base.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/fs.h"

static char scratch_dir[256];

static inline void scratch_setup(void) {
    const char *root = getenv("TMPDIR");
    snprintf(scratch_dir, sizeof scratch_dir, "%s/moehost-test-XXXXXX", root && *root ? root : "/tmp");
    ck_assert_msg(mkdtemp(scratch_dir) != NULL, "cannot make %s", scratch_dir);
}

static inline void scratch_teardown(void) {
    moe_err err;
    ck_assert_msg(fs_remove_tree(scratch_dir, &err) == MOE_OK, "%s", err.msg);
}

/* A path in the directory; up to eight live at once in each thread. */
static inline const char *scratch_path(const char *name) {
    static _Thread_local char paths[8][512];
    static _Thread_local unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", scratch_dir, name);
    return path;
}

static inline const char *scratch_save(const char *name, const void *bytes, size_t n) {
    moe_err err;
    const char *path = scratch_path(name);
    ck_assert_msg(fs_save(path, bytes, n, &err) == MOE_OK, "%s", err.msg);
    return path;
}

static inline int scratch_exists(const char *name) {
    struct stat st;
    return lstat(scratch_path(name), &st) == 0;
}

/* Entries of a directory, without "." and "..". */
static inline int scratch_count(const char *name) {
    int n = -2;
    DIR *d = opendir(scratch_path(name));
    ck_assert_msg(d != NULL, "cannot list %s", name);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

#define ck_ok(call)                                                              \
    do {                                                                         \
        moe_err err_ = {.code = MOE_OK};                                         \
        moe_err *err = &err_;                                                    \
        moe_status status_ = (call);                                             \
        ck_assert_msg(status_ == MOE_OK, "%s: %d %s", #call, status_, err_.msg); \
    } while (0)

/* The call fails with this code and its text holds this part. */
#define ck_fails(call, code_, part)                                                                    \
    do {                                                                                               \
        moe_err err_ = {.code = MOE_OK};                                                               \
        moe_err *err = &err_;                                                                          \
        moe_status status_ = (call);                                                                   \
        ck_assert_msg(status_ == (code_), "%s: %d, expected %d: %s", #call, status_, code_, err_.msg); \
        ck_assert_int_eq(err_.code, code_);                                                            \
        ck_assert_msg(strstr(err_.msg, part) != NULL, "'%s' lacks '%s'", err_.msg, part);              \
    } while (0)

static inline int scratch_run(Suite *suite) {
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
#endif
