/* Checkpoints: what is written is what is opened, and nothing that goes wrong harms the ones before. */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "core/io/put_checkpoint.h"
#include "io/checkpoint_meta.h"

START_TEST(commits_and_opens) {
    char *dir = NULL;
    int64_t step = 0;
    ck_ok(ckpt_latest(scratch_dir, &dir, &step, err));
    ck_assert_ptr_null(dir);
    ck_assert_int_eq(step, -1);
    ck_ok(put_checkpoint(scratch_dir, 100, 5000, 7, err));
    ck_assert_int_eq(scratch_count("ckpt"), 1);
    ck_assert(scratch_exists("ckpt/step-00000100/meta.json"));
    ck_assert_int_eq(scratch_count("ckpt/step-00000100"), 3);
    ckpt_view *view = NULL;
    ck_ok(ckpt_open(scratch_path("ckpt/step-00000100"), &view, err));
    ck_assert_int_eq(view->step, 100);
    ck_assert_uint_eq(view->n_keys, 2);
    ck_assert_str_eq(view->keys[0], "w");
    ck_assert_str_eq(view->keys[1], "adam.w");
    ck_assert_uint_eq(view->n_files, 2);
    ck_assert_ptr_nonnull(strstr(view->files[0], "/model.safetensors"));
    ck_assert_ptr_nonnull(strstr(view->files[1], "/optimizer.safetensors"));
    ck_assert_str_eq(ckpt_get(view, "recipe"), "[run]\nsteps = 3\n");
    ck_assert_ptr_null(ckpt_get(view, "absent"));
    st_file *st = NULL;
    ck_ok(st_open(view->files[0], &st, err));
    ck_assert_uint_eq(st_find(st, "w")->bytes, 5000);
    st_close(st);
    ckpt_close(view);
    ckpt_close(NULL);
}
END_TEST

START_TEST(same_step_is_replaced) {
    ck_ok(put_checkpoint(scratch_dir, 5, 100, 1, err));
    ck_ok(put_checkpoint(scratch_dir, 5, 200, 2, err));
    ck_assert_int_eq(scratch_count("ckpt"), 1);
    st_file *st = NULL;
    ck_ok(st_open(scratch_path("ckpt/step-00000005/model.safetensors"), &st, err));
    ck_assert_uint_eq(st_at(st, 0)->bytes, 200);
    st_close(st);
    ck_assert_int_eq(check_latest(), 5);
}
END_TEST

START_TEST(replacing_by_renames_survives_a_kill) {
    ck_ok(put_checkpoint(scratch_dir, 4, 100, 1, err));
    ck_ok(put_checkpoint(scratch_dir, 5, 200, 2, err));
    const char *five = scratch_path("ckpt/step-00000005"), *aside = scratch_path("ckpt/.old-step-00000005");
    /* Killed between the two renames: the newest is still found, and gets its name back. */
    ck_assert_int_eq(rename(five, aside), 0);
    ck_assert_int_eq(check_latest(), 5);
    ck_ok(put_checkpoint(scratch_dir, 6, 10, 3, err));
    ck_assert(scratch_exists("ckpt/step-00000005/meta.json"));
    ck_assert(!scratch_exists("ckpt/.old-step-00000005"));
    ck_ok(ckpt_replace_by_renames(scratch_path("ckpt/step-00000006"), five, aside, err));
    st_file *st = NULL;
    ck_ok(st_open(scratch_path("ckpt/step-00000005/model.safetensors"), &st, err));
    ck_assert_uint_eq(st_at(st, 0)->bytes, 10);
    st_close(st);
    /* Killed after the second rename: what was replaced goes at the next begin. */
    ck_ok(put_checkpoint(scratch_dir, 7, 10, 3, err));
    ck_assert_int_eq(scratch_count("ckpt"), 3);
    ck_fails(ckpt_replace_by_renames(scratch_path("ckpt/absent"), five, aside, err), MOE_E_IO, "absent");
    ck_assert(scratch_exists("ckpt/step-00000005/meta.json"));
}
END_TEST

START_TEST(leftovers_of_killed_runs_are_removed) {
    ckpt *c = NULL, *d = NULL;
    ck_ok(put_checkpoint(scratch_dir, 1, 100, 1, err));
    ck_ok(ckpt_begin(scratch_dir, 2, &c, err));
    ck_ok(put_tensor(c, "model.safetensors", 100, 1, err));
    ck_assert_int_eq(scratch_count("ckpt"), 2);
    ck_assert_int_eq(check_latest(), 1);
    ck_ok(ckpt_begin(scratch_dir, 3, &d, err)); /* c stands for a killed run */
    ck_assert(!scratch_exists("ckpt/.tmp-step-00000002"));
    ckpt_abort(d);
    ckpt_abort(c);
    ckpt_abort(NULL);
    ck_assert_int_eq(scratch_count("ckpt"), 1);
    /* Names that are not ours are left alone. */
    ck_assert_int_eq(mkdir(scratch_path("ckpt/.tmp-step-2"), 0700), 0);
    ck_assert_int_eq(mkdir(scratch_path("ckpt/step-best"), 0700), 0);
    ck_assert_int_eq(mkdir(scratch_path("ckpt/step-00000099x"), 0700), 0);
    ck_ok(put_checkpoint(scratch_dir, 2, 100, 1, err));
    ck_assert_int_eq(scratch_count("ckpt"), 5);
    ck_assert_int_eq(check_latest(), 2);
}
END_TEST

START_TEST(prune_keeps_the_newest) {
    ck_ok(ckpt_prune(scratch_dir, 3, 0, err));
    for (int64_t step = 99999998; step < 100000003; step++) ck_ok(put_checkpoint(scratch_dir, step, 10, 1, err));
    ck_fails(ckpt_prune(scratch_dir, 0, 0, err), MOE_E_ARG, "cannot keep 0");
    ck_fails(ckpt_prune(scratch_dir, 1, -1, err), MOE_E_ARG, "every -1 steps");
    ck_ok(ckpt_prune(scratch_dir, 5, 0, err));
    ck_assert_int_eq(scratch_count("ckpt"), 5);
    ck_ok(ckpt_prune(scratch_dir, 2, 0, err));
    ck_assert_int_eq(scratch_count("ckpt"), 2);
    ck_assert(scratch_exists("ckpt/step-100000001"));
    ck_assert_int_eq(check_latest(), 100000002);
}
END_TEST

START_TEST(prune_keeps_steps_for_good) {
    for (int64_t step = 2; step <= 14; step += 2) ck_ok(put_checkpoint(scratch_dir, step, 10, 1, err));
    ck_ok(ckpt_prune(scratch_dir, 2, 5, err)); /* 10; and 12, 14 */
    ck_assert_int_eq(scratch_count("ckpt"), 3);
    ck_assert(scratch_exists("ckpt/step-00000010"));
    ck_ok(ckpt_prune(scratch_dir, 1, 5, err)); /* 10 stays, however new or old */
    ck_assert_int_eq(scratch_count("ckpt"), 2);
    ck_ok(ckpt_prune(scratch_dir, 1, 7, err));
    ck_assert_int_eq(scratch_count("ckpt"), 1);
    ck_assert_int_eq(check_latest(), 14);
    ck_ok(put_checkpoint(scratch_dir, 16, 10, 1, err));
    ck_ok(ckpt_prune(scratch_dir, 1, 1, err)); /* every one */
    ck_assert_int_eq(scratch_count("ckpt"), 2);
    /* what a kill left goes too, also when no further checkpoint is made */
    ck_assert_int_eq(mkdir(scratch_path("ckpt/.tmp-step-00000015"), 0700), 0);
    ck_ok(ckpt_prune(scratch_dir, 2, 0, err));
    ck_assert_int_eq(scratch_count("ckpt"), 2);
}
END_TEST

/* Rewrites meta.json with one change to its text, sealed again when `seal` so that only the change is wrong. */
static void change_meta(const char *path, const char *from, const char *to, int seal) {
    char *text = NULL, *again = NULL, hash[CKPT_HASH_CHARS];
    uint64_t n = 0;
    ck_ok(fs_load(path, 1 << 20, &text, &n, err));
    char *at = strstr(text, from);
    ck_assert_msg(at != NULL, "no '%s' in %s", from, text);
    ck_assert_int_gt(asprintf(&again, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)), 0);
    if (seal) {
        json_t *meta = json_loads(again, 0, NULL);
        ck_assert_ptr_nonnull(meta);
        ck_assert(ckpt_seal(meta, hash));
        json_object_set_new(meta, "meta_xxh3_64", json_string(hash));
        free(again);
        again = json_dumps(meta, 0);
        json_decref(meta);
    }
    ck_ok(fs_save(path, again, strlen(again), err));
    free(text);
    free(again);
}

static moe_status open_changed(const char *from, const char *to, int seal, moe_err *err) {
    ckpt_view *view = NULL;
    ck_assert_int_eq(put_checkpoint(scratch_dir, 5, 100, 1, err), MOE_OK);
    change_meta(scratch_path("ckpt/step-00000005/meta.json"), from, to, seal);
    moe_status s = ckpt_open(scratch_path("ckpt/step-00000005"), &view, err);
    ck_assert_ptr_null(view);
    return s;
}

START_TEST(C108_unknown_version_and_keys_are_refused) {
    ck_fails(open_changed("\"version\": 1", "\"version\": 2", 1, err), MOE_E_DATA,
             "meta.json: is version 2; this program reads version 1");
    ck_fails(open_changed("\"version\": 1", "\"version\": 2", 0, err), MOE_E_DATA, "version 2");
    ck_fails(open_changed("\"version\": 1", "\"version\": \"1\"", 1, err), MOE_E_DATA, "not the description");
    ck_ok(put_checkpoint(scratch_dir, 6, 100, 1, err));
    ckpt_view *view = NULL;
    ck_ok(ckpt_open(scratch_path("ckpt/step-00000006"), &view, err));
    ck_ok(ckpt_check_keys(view, (const char *[]){"adam.w", "w"}, 2, err));
    ck_fails(ckpt_check_keys(view, (const char *[]){"w"}, 1, err), MOE_E_DATA, "0 missing, 1 unknown, first adam.w");
    ck_fails(ckpt_check_keys(view, (const char *[]){"w", "b", "adam.w", "adam.b"}, 4, err), MOE_E_DATA,
             "step-00000006: state keys differ: 2 missing, first b, 0 unknown");
    ckpt_close(view);
}
END_TEST

START_TEST(damaged_meta_is_refused) {
    ck_fails(open_changed("\"w\"", "\"v\"", 0, err), MOE_E_DATA, "meta.json: is damaged: checksum");
    ck_fails(open_changed("\"step\": 5", "\"step\": 6", 0, err), MOE_E_DATA, "meta.json: is damaged");
    ck_fails(open_changed("\"keys\"", "\"kex\"", 1, err), MOE_E_DATA, "lacks 'keys'");
    ck_fails(open_changed("\"w\"", "3", 1, err), MOE_E_DATA, "keys[0] is not a string");
    ck_fails(open_changed("{", "{{", 0, err), MOE_E_DATA, "meta.json: line 1, column 2");
    ck_fails(open_changed("model.safe", "../model.safe", 1, err), MOE_E_DATA, "no name of a file in it");
    ck_fails(open_changed("model.safe", "m/model.safe", 1, err), MOE_E_DATA, "no name of a file in it");
    ck_fails(open_changed("\"xxh3_64\"", "\"xxh\"", 1, err), MOE_E_DATA, "has not its size and checksum alone");
    ckpt_view *view = NULL;
    ck_fails(ckpt_open(scratch_path("absent"), &view, err), MOE_E_IO, "absent/meta.json: cannot open: No such file");
}
END_TEST

START_TEST(damaged_files_are_named) {
    ck_ok(put_checkpoint(scratch_dir, 5, 5000, 1, err));
    ckpt_view *view = NULL;
    const char *dir = scratch_path("ckpt/step-00000005"), *file = scratch_path("ckpt/step-00000005/model.safetensors");
    FILE *f = fopen(file, "r+b");
    fseek(f, 4000, SEEK_SET);
    fputc('x', f);
    fclose(f);
    ck_fails(ckpt_open(dir, &view, err), MOE_E_DATA, "model.safetensors: is damaged: checksum");
    ck_assert_int_eq(truncate(file, 4000), 0);
    ck_fails(ckpt_open(dir, &view, err), MOE_E_DATA, "model.safetensors: has 4000 bytes, written were");
    ck_assert_int_eq(unlink(file), 0);
    ck_fails(ckpt_open(dir, &view, err), MOE_E_IO, "model.safetensors: cannot open");
}
END_TEST

/* One change to each field, with its text and what must be said; sealed again, so that the change itself is found. */
START_TEST(each_field_is_strict) {
    static const struct {
        const char *from, *to, *said;
    } rows[] = {
        {"\"format\": \"moehost", "\"format\": \"other", "not the description of a checkpoint"},
        {"\"step\": 5", "\"step\": \"5\"", "lacks 'step'"},
        {"\"step\": 5", "\"step\": -5", "step is negative"},
        {"\"step\": 5", "\"step\": 5.0", "lacks 'step'"},
        {"\"step\": 5", "\"step\": 5, \"epoch\": 1", "has a field 'epoch', unknown here"},
        {"\"step\"", "\"steps\"", "lacks 'step'"},
        {"\"values\"", "\"valued\"", "lacks 'values'"},
        {"\"files\"", "\"filed\"", "lacks 'files'"},
        {"\"recipe\": \"", "\"count\": 3, \"recipe\": \"", "values: 'count' is not a string"},
        {"\"adam.w\"", "\"w\"", "keys[1] 'w' is there twice"},
        {"\"bytes\"", "\"mode\": 1, \"bytes\"", "has not its size and checksum alone"},
        {"\"bytes\": ", "\"bytes\": 1", "bytes, written were 1"},
        {"\"xxh3_64\": \"", "\"xxh3_64\": \"0", "is damaged: checksum"},
        {"\"model.safe", "\"other.safe", "other.safetensors: cannot open"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        moe_err err = {.code = MOE_OK};
        ck_assert_msg(open_changed(rows[i].from, rows[i].to, 1, &err) != MOE_OK, "%s accepted", rows[i].to);
        ck_assert_msg(strstr(err.msg, rows[i].said) != NULL, "%s: '%s' lacks '%s'", rows[i].to, err.msg, rows[i].said);
    }
}
END_TEST

/* Every byte of every file counts: one bit of each, in turn. */
START_TEST(every_byte_counts) {
    static const char *const names[] = {"meta.json", "model.safetensors", "optimizer.safetensors"};
    ckpt_view *view = NULL;
    ck_ok(put_checkpoint(scratch_dir, 5, 100, 1, err));
    const char *dir = scratch_path("ckpt/step-00000005");
    for (int f = 0; f < 3; f++) {
        char path[600], *bytes = NULL;
        uint64_t n = 0;
        snprintf(path, sizeof path, "%s/%s", dir, names[f]);
        ck_ok(fs_load(path, 1 << 20, &bytes, &n, err));
        int fd = open(path, O_WRONLY);
        for (uint64_t i = 0; i < n; i++) {
            moe_err err = {.code = MOE_OK};
            char changed = (char)(bytes[i] ^ (1 << i % 8));
            if (f == 0 && strchr(" \n", bytes[i]) && strchr(" \t\r\n", changed)) continue; /* blanks mean the same */
            ck_assert(pwrite(fd, &changed, 1, (off_t)i) == 1);
            ck_assert_msg(ckpt_open(dir, &view, &err) != MOE_OK, "%s: byte %llu does not count", names[f], i + 0ull);
            ck_assert_msg(strstr(err.msg, names[f]) != NULL, "'%s' does not name %s", err.msg, names[f]);
            ck_assert(pwrite(fd, bytes + i, 1, (off_t)i) == 1);
        }
        close(fd);
        free(bytes);
    }
    ck_assert_int_eq(check_latest(), 5);
}
END_TEST

START_TEST(strangers_are_refused) {
    ckpt_view *view = NULL;
    ck_ok(put_checkpoint(scratch_dir, 5, 100, 1, err));
    const char *dir = scratch_path("ckpt/step-00000005");
    scratch_save("ckpt/step-00000005/.nfs0001", "x", 1); /* of the file system, and nobody reads it */
    ck_assert_int_eq(check_latest(), 5);
    const char *file = scratch_save("ckpt/step-00000005/model-2.safetensors", "x", 1);
    ck_fails(ckpt_open(dir, &view, err), MOE_E_DATA, "step-00000005: 'model-2.safetensors' is no file of this");
    ck_assert_int_eq(unlink(file), 0);
    ck_assert_int_eq(mkdir(scratch_path("ckpt/step-00000005/more"), 0700), 0);
    ck_fails(ckpt_open(dir, &view, err), MOE_E_DATA, "step-00000005: 'more' is no file of this");
    ck_assert_int_eq(rmdir(scratch_path("ckpt/step-00000005/more")), 0);
}
END_TEST

START_TEST(what_does_not_belong_is_refused) {
    ckpt *c = NULL;
    ck_fails(ckpt_begin(scratch_dir, -1, &c, err), MOE_E_ARG, "step -1");
    ck_ok(ckpt_begin(scratch_dir, 1, &c, err));
    ck_ok(ckpt_add_key(c, "w", err));
    ck_fails(ckpt_add_key(c, "w", err), MOE_E_ARG, "'w' is given twice");
    ck_fails(ckpt_add_key(c, "\xff", err), MOE_E_ARG, "UTF-8");
    ck_fails(ckpt_set(c, "v", "\xff", err), MOE_E_ARG, "UTF-8");
    scratch_save("ckpt/.tmp-step-00000001/a.safetensors.part", "x", 1);
    ck_fails(ckpt_commit(c, err), MOE_E_ARG, "a.safetensors.part: is hidden or not finished");
    ck_ok(ckpt_begin(scratch_dir, 1, &c, err));
    ck_assert_int_eq(mkdir(scratch_path("ckpt/.tmp-step-00000001/sub"), 0700), 0);
    ck_fails(ckpt_commit(c, err), MOE_E_IO, "sub: is not a regular file");
    ck_assert_int_eq(scratch_count("ckpt"), 0);
}
END_TEST

/* put_checkpoint where no file may exceed `limit` bytes. No ck_ macro in between: Check's own files are limited too. */
static moe_status put_limited(rlim_t limit, int64_t step, int64_t bytes, moe_err *err) {
    struct rlimit old, low;
    if (getrlimit(RLIMIT_FSIZE, &old) != 0) return MOE_E_INTERNAL;
    low = (struct rlimit){limit, old.rlim_max};
    if (setrlimit(RLIMIT_FSIZE, &low) != 0) return MOE_E_INTERNAL;
    moe_status s = put_checkpoint(scratch_dir, step, bytes, 2, err);
    return setrlimit(RLIMIT_FSIZE, &old) == 0 ? s : MOE_E_INTERNAL;
}

START_TEST(full_disk_leaves_earlier_ones) {
    static const rlim_t limits[] = {0, 100, 300, 4096, 65536}; /* none fits the tensor */
    signal(SIGXFSZ, SIG_IGN);
    ck_ok(put_checkpoint(scratch_dir, 1, 1 << 16, 1, err));
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        ck_fails(put_limited(limits[i], 2, 1 << 16, err), MOE_E_IO, "File too large");
        ck_fails(put_limited(limits[i], 1, 1 << 16, err), MOE_E_IO, "File too large");
    }
    ck_fails(put_limited(300, 1, 10, err), MOE_E_IO, "meta.json: cannot write"); /* small tensors fit */
    ck_assert_int_eq(scratch_count("ckpt"), 1);
    ck_assert_int_eq(check_latest(), 1);
}
END_TEST

START_TEST(read_only_directory_leaves_earlier_ones) {
    ck_ok(put_checkpoint(scratch_dir, 1, 100, 1, err));
    ck_ok(put_checkpoint(scratch_dir, 2, 100, 1, err));
    int root = geteuid() == 0;
    if (root) { /* nothing is read-only for root: become nobody, for whom root's files are */
        ck_assert_int_eq(chmod(scratch_dir, 0755), 0);
        if (setresuid(65534, 65534, 0) != 0) return;
    } else {
        ck_assert_int_eq(chmod(scratch_path("ckpt"), 0500), 0);
    }
    ck_fails(put_checkpoint(scratch_dir, 3, 100, 1, err), MOE_E_IO, "Permission denied");
    ck_fails(put_checkpoint(scratch_dir, 1, 100, 1, err), MOE_E_IO, "Permission denied");
    ck_fails(ckpt_prune(scratch_dir, 1, 0, err), MOE_E_IO, "cannot rename: Permission denied");
    ck_assert_int_eq(check_latest(), 2);
    if (root)
        ck_assert_int_eq(setresuid(0, 0, 0), 0);
    else
        ck_assert_int_eq(chmod(scratch_path("ckpt"), 0700), 0);
}
END_TEST

/* Commits new steps, replaces old ones and prunes, until it is killed; a byte to fd after each round. */
static void train_until_killed(int64_t step, int fd) {
    for (;; step++) {
        moe_err err;
        if (put_checkpoint(scratch_dir, step, 30000, (int)step & 0xff, &err) != MOE_OK ||
            put_checkpoint(scratch_dir, step, 40000, 3, &err) != MOE_OK ||
            ckpt_prune(scratch_dir, 2, 4, &err) != MOE_OK || write(fd, "", 1) != 1) {
            fprintf(stderr, "%s\n", err.msg);
            _exit(1);
        }
    }
}

/* Kills a child after `nanoseconds`; when `late`, these begin after two rounds, so that steps advance however slow. */
static void train_and_kill(int64_t step, int late, long nanoseconds) {
    int ends[2], status = 0;
    char byte;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) train_until_killed(step, ends[1]);
    for (int i = 0; late && i < 2; i++) ck_assert_int_eq(read(ends[0], &byte, 1), 1);
    nanosleep(&(struct timespec){0, nanoseconds}, NULL);
    kill(child, SIGKILL);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFSIGNALED(status), "the child failed by itself");
    close(ends[0]);
    close(ends[1]);
}

START_TEST(kills_leave_a_whole_checkpoint) {
    int64_t step = 1;
    unsigned random = 12345;
    ck_ok(put_checkpoint(scratch_dir, step, 100, 1, err));
    for (int i = 0; i < 30; i++) {
        random = random * 1103515245u + 12345u;
        train_and_kill(step, i % 3 == 0, (long)(random >> 8) % 25000 * 1000); /* up to 25 ms */
        int64_t latest = check_latest();
        ck_assert_int_ge(latest, step); /* never back */
        step = latest;
    }
    ck_assert_int_gt(step, 10);
    ck_ok(put_checkpoint(scratch_dir, step + 1, 100, 1, err));
    ck_ok(ckpt_prune(scratch_dir, 1, 0, err));
    ck_assert_int_eq(scratch_count("ckpt"), 1);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("checkpoint");
    TCase *tc = tcase_create("checkpoint");
    tcase_add_checked_fixture(tc, scratch_setup, scratch_teardown);
    tcase_add_test(tc, commits_and_opens);
    tcase_add_test(tc, same_step_is_replaced);
    tcase_add_test(tc, replacing_by_renames_survives_a_kill);
    tcase_add_test(tc, leftovers_of_killed_runs_are_removed);
    tcase_add_test(tc, prune_keeps_the_newest);
    tcase_add_test(tc, prune_keeps_steps_for_good);
    tcase_add_test(tc, C108_unknown_version_and_keys_are_refused);
    tcase_add_test(tc, damaged_meta_is_refused);
    tcase_add_test(tc, each_field_is_strict);
    tcase_add_test(tc, every_byte_counts);
    tcase_add_test(tc, strangers_are_refused);
    tcase_add_test(tc, damaged_files_are_named);
    tcase_add_test(tc, what_does_not_belong_is_refused);
    tcase_add_test(tc, full_disk_leaves_earlier_ones);
    tcase_add_test(tc, read_only_directory_leaves_earlier_ones);
    tcase_add_test(tc, kills_leave_a_whole_checkpoint);
    suite_add_tcase(suite, tc);
    return scratch_run(suite);
}
