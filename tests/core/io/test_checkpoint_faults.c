/* Saving a checkpoint while the system fails or the process ends at any call: the linker puts wrappers around every
 * call with which core/io changes files (--wrap, CMakeLists.txt), and each test takes them one after the other. A third
 * mode keeps the books of what is durable, as a loss of power would leave it. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/wait.h>

#include "core/io/put_checkpoint.h"

enum { OFF, COUNT, FAIL, END }; /* OFF: the calls are the test's own, or Check's */
enum { END_CODE = 9, SAVE_CALLS = 25 /* less than a save makes: fewer mean that wrappers are not in place */ };

static struct {
    int mode, calls, at; /* the call that fails, or before which the process ends; from 1 */
    const char *name;    /* of the call that failed */
} fault;

/* 1: this call fails, with errno. */
static int fails(const char *name, int error) {
    if (fault.mode == OFF || ++fault.calls != fault.at || fault.mode == COUNT) return 0;
    if (fault.mode == END) _exit(END_CODE);
    fault.name = name;
    errno = error;
    return 1;
}

/* ---- what is durable ---- */
enum { MOST_DIRTY = 64 };
static char dirty[MOST_DIRTY][512]; /* files with data, directories with names that are not on disk; "" = free */
static char early[512];             /* the first thing that got its name before it was durable */

static void set_dirty(const char *path, int on) {
    if (fault.mode == OFF) return;
    int at = -1;
    for (int i = 0; i < MOST_DIRTY; i++)
        if (strcmp(dirty[i], path) == 0) at = i;
    for (int i = 0; i < MOST_DIRTY && at < 0 && on; i++)
        if (!dirty[i][0]) at = i;
    if (at >= 0) snprintf(dirty[at], sizeof dirty[at], "%s", on ? path : "");
}

static void set_parent_dirty(const char *path) {
    char parent[512];
    snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(path, '/') - path), path);
    set_dirty(parent, 1);
}

static void set_fd_dirty(int fd, int on) {
    if (fault.mode == OFF) return;
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return;
    path[n] = 0;
    set_dirty(path, on);
}

/* What lies below `from` must be durable when it becomes the checkpoint `to`; what is dirty moves along. */
static void note_rename(const char *from, const char *to) {
    size_t n = strlen(from);
    for (int i = 0; i < MOST_DIRTY; i++) {
        if (strncmp(dirty[i], from, n) != 0 || (dirty[i][n] && dirty[i][n] != '/')) continue;
        if (strstr(to, "/step-") && !early[0]) snprintf(early, sizeof early, "%.511s", dirty[i]);
        char moved[1100];
        snprintf(moved, sizeof moved, "%s%s", to, dirty[i] + n);
        snprintf(dirty[i], sizeof dirty[i], "%.511s", moved);
    }
    set_parent_dirty(from);
    set_parent_dirty(to);
}

/* ---- the wrappers ---- */
#define WRAP(type, name, args) \
    type __real_##name args;   \
    type __wrap_##name args;   \
    type __wrap_##name args

WRAP(int, mkdir, (const char *path, mode_t mode)) {
    if (fails("mkdir", ENOSPC) || __real_mkdir(path, mode) != 0) return -1;
    set_dirty(path, 1);
    set_parent_dirty(path);
    return 0;
}
WRAP(int, open, (const char *path, int flags, ...)) {
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    if (fails("open", EMFILE)) return -1;
    if (flags & O_CREAT) set_dirty(path, 1), set_parent_dirty(path);
    return __real_open(path, flags, mode);
}
WRAP(FILE *, fopen, (const char *path, const char *how)) {
    if (fails("fopen", ENOSPC)) return NULL;
    if (how[0] == 'w') set_dirty(path, 1), set_parent_dirty(path);
    return __real_fopen(path, how);
}
WRAP(size_t, fwrite, (const void *bytes, size_t size, size_t n, FILE *f)) {
    if (fails("fwrite", ENOSPC)) return 0;
    set_fd_dirty(fileno(f), 1);
    return __real_fwrite(bytes, size, n, f);
}
WRAP(int, fflush, (FILE * f)) {
    return fails("fflush", ENOSPC) ? EOF : __real_fflush(f);
}
WRAP(int, fclose, (FILE * f)) {
    int failed = fails("fclose", EIO);
    int result = __real_fclose(f);
    if (failed) errno = EIO;
    return failed ? EOF : result;
}
WRAP(ssize_t, write, (int fd, const void *bytes, size_t n)) {
    if (fails("write", ENOSPC)) return -1;
    set_fd_dirty(fd, 1);
    return __real_write(fd, bytes, n);
}
WRAP(int, fsync, (int fd)) {
    if (fails("fsync", EIO)) return -1;
    set_fd_dirty(fd, 0);
    return 0; /* the books are enough, and quicker */
}
WRAP(int, rename, (const char *from, const char *to)) {
    if (fails("rename", EIO)) return -1;
    int result = __real_rename(from, to);
    int error = errno;
    if (result == 0) note_rename(from, to);
    errno = error;
    return result;
}
WRAP(int, renameat2, (int from_dir, const char *from, int to_dir, const char *to, unsigned flags)) {
    if (fails("renameat2", EIO)) return -1;
    note_rename(from, to);
    return __real_renameat2(from_dir, from, to_dir, to, flags);
}
WRAP(int, remove, (const char *path)) {
    return fails("remove", EIO) ? -1 : __real_remove(path);
}

/* ---- what is done ---- */
enum { BYTES = 3000 };
typedef moe_status (*work_fn)(moe_err *err);

static moe_status save_next(moe_err *err) {
    return put_checkpoint(scratch_dir, 2, BYTES, 20, err);
}
static moe_status save_again(moe_err *err) {
    return put_checkpoint(scratch_dir, 1, BYTES, 20, err);
}
static moe_status save_and_prune(moe_err *err) {
    moe_status s = save_next(err);
    return s == MOE_OK ? ckpt_prune(scratch_dir, 1, 0, err) : s;
}

static const struct {
    const char *name;
    work_fn work;
    int64_t step; /* of the newest afterwards, when all went well */
} works[] = {{"a further step", save_next, 2}, {"the same step", save_again, 1}, {"save and prune", save_and_prune, 2}};
enum { WORKS = sizeof works / sizeof works[0] };

/* The fill of a tensor, the same in every byte. */
static int value_in(const char *dir, const char *name) {
    char path[700];
    unsigned char bytes[BYTES];
    st_file *st = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    ck_ok(st_open(path, &st, err));
    const st_tensor *t = st_find(st, "w");
    ck_ok(st_read(st, t, bytes, t->bytes, err));
    ck_assert_int_eq(memcmp(bytes, bytes + 1, t->bytes - 1), 0);
    st_close(st);
    return bytes[0];
}

/* The newest checkpoint is whole, and its files are of one save: 10 the first, 20 the second. Its fill. */
static int check_whole(int64_t *step) {
    char *dir = NULL;
    *step = check_latest();
    ck_ok(ckpt_latest(scratch_dir, &dir, step, err));
    int value = value_in(dir, "model.safetensors");
    ck_assert(value == 10 || value == 20);
    ck_assert_int_eq(value_in(dir, "optimizer.safetensors"), value + 1);
    free(dir);
    return value;
}

/* Whatever happened: the next save works and leaves nothing but itself. */
static void check_next(void) {
    ck_ok(put_checkpoint(scratch_dir, 3, BYTES, 10, err));
    ck_ok(ckpt_prune(scratch_dir, 1, 0, err));
    ck_assert_int_eq(scratch_count("ckpt"), 1);
    ck_assert_int_eq(check_latest(), 3);
}

/* Does the work; no ck_ macro in between. */
static moe_status run(int w, int mode, int at, moe_err *err) {
    fault.mode = mode;
    fault.at = at;
    fault.calls = 0;
    moe_status s = works[w].work(err);
    fault.mode = OFF;
    return s;
}

static void begin(void) {
    moe_err ignored;
    ck_assert_int_eq(fs_remove_tree(scratch_path("ckpt"), &ignored), MOE_OK);
    ck_ok(put_checkpoint(scratch_dir, 1, BYTES, 10, err));
    fault.name = "none";
}

/* Calls that the work makes when all goes well. */
static int count_calls(int w) {
    begin();
    ck_ok(run(w, COUNT, 0, err));
    int calls = fault.calls;
    ck_assert_int_gt(calls, SAVE_CALLS);
    return calls;
}

START_TEST(any_call_may_fail) {
    int reported = 0, calls = count_calls(_i);
    for (int at = 1; at <= calls; at++) {
        moe_err err = {.size = sizeof err};
        int64_t step;
        begin();
        moe_status s = run(_i, FAIL, at, &err);
        int value = check_whole(&step);
        if (s == MOE_OK) /* only what cleans up afterwards may fail in silence, or what there is another way for */
            ck_assert_msg(step == works[_i].step && value == 20, "call %d, %s: lost, and nothing said", at, fault.name);
        else
            ck_assert_msg(s == MOE_E_IO && err.msg[0] == '/', "call %d, %s: %s", at, fault.name, err.msg);
        reported += s != MOE_OK;
        check_next();
    }
    printf("%s: %d calls, the failure of %d ends the save\n", works[_i].name, calls, reported);
    ck_assert_int_gt(reported, 15);
}
END_TEST

START_TEST(the_end_may_come_at_any_call) {
    int calls = count_calls(_i), kept = 0;
    for (int at = 1; at <= calls; at++) {
        int status = 0;
        int64_t step;
        begin();
        pid_t child = fork();
        if (child == 0) {
            moe_err err;
            _exit(run(_i, END, at, &err) == MOE_OK ? 0 : 1);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == END_CODE, "call %d: status %d", at, status);
        kept += check_whole(&step) == 10;
        check_next();
    }
    printf("%s: ended before each of %d calls, %d times with the earlier one\n", works[_i].name, calls, kept);
    ck_assert(kept > 15 && kept < calls);
}
END_TEST

START_TEST(durable_before_it_has_its_name) {
    begin();
    memset(dirty, 0, sizeof dirty);
    early[0] = 0;
    ck_ok(run(_i, COUNT, 0, err));
    ck_assert_msg(!early[0], "%s: %s was not on disk when the checkpoint got its name", works[_i].name, early);
    if (works[_i].work == save_and_prune) return; /* names that go need not be gone at once */
    for (int i = 0; i < MOST_DIRTY; i++)
        ck_assert_msg(!dirty[i][0] || strstr(dirty[i], ".tmp-"), "%s is not on disk after the commit", dirty[i]);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("checkpoint_faults");
    TCase *tc = tcase_create("checkpoint_faults");
    tcase_add_checked_fixture(tc, scratch_setup, scratch_teardown);
    tcase_add_loop_test(tc, any_call_may_fail, 0, WORKS);
    tcase_add_loop_test(tc, the_end_may_come_at_any_call, 0, WORKS);
    tcase_add_loop_test(tc, durable_before_it_has_its_name, 0, WORKS);
    suite_add_tcase(suite, tc);
    return scratch_run(suite);
}
