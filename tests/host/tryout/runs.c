/* Files and processes of the tests of probe. */
#include "runs.h"

#include <fcntl.h>
#include <io/fs.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <util/arena.h>

#include "core/io/scratch.h"

/* One at a time: Check runs each test in a process of its own. */
static st_file *out_file;
static arena results;

void runs_setup(void) {
    scratch_setup();
}

void runs_teardown(void) {
    st_close(out_file);
    out_file = NULL;
    arena_free(&results);
    scratch_teardown();
}

const char *runs_path(const char *name) {
    return scratch_path(name);
}

int there(const char *name) {
    return scratch_exists(name);
}

void put_as(const char *name, const given *tensors) {
    st_writer *w = NULL;
    ck_ok(st_writer_create(scratch_path(name), &w, err));
    for (const given *g = tensors; g->name; g++) {
        int32_t ndim = 0;
        while (g->shape[ndim] >= 0) ndim++;
        ck_ok(st_writer_declare(w, g->name, g->dtype, ndim, g->shape, err));
    }
    for (const given *g = tensors; g->name; g++) {
        uint64_t n = 1;
        for (int i = 0; g->shape[i] >= 0; i++) n *= (uint64_t)g->shape[i];
        ck_ok(st_write(w, g->data, n * st_dtype_bits(g->dtype) / 8, err));
    }
    ck_ok(st_writer_finish(w, err));
}

void put(const given *tensors) {
    put_as("in.safetensors", tensors);
}

static void redirect(const char *name, int to) {
    int fd = open(scratch_path(name), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || dup2(fd, to) < 0) _exit(126);
    close(fd);
}

static void start(const char *args) {
    char words[1024], *argv[64] = {MOE_BUILD_DIR "/moehost", "probe"}, *save = NULL;
    int n = 2;
    snprintf(words, sizeof words, "%s", args);
    for (char *w = strtok_r(words, " ", &save); w && n < 63; w = strtok_r(NULL, " ", &save)) argv[n++] = w;
    redirect("printed", 1);
    redirect("said", 2);
    unsetenv("MOEHOST_PLUGIN_PATH");
    if (chdir(scratch_dir)) _exit(126);
    alarm(60);
    execv(argv[0], argv);
    _exit(127);
}

int probe(const char *args, char *says) {
    char *text = NULL;
    uint64_t n = 0;
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    ck_assert(pid >= 0);
    if (pid == 0) start(args);
    ck_assert(waitpid(pid, &status, 0) == pid);
    ck_ok(fs_load(scratch_path("said"), 1 << 20, &text, &n, err));
    snprintf(says, 4096, "%s", text);
    free(text);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void probe_well(const char *args) {
    char line[1024], says[4096];
    snprintf(line, sizeof line, "%s --in in.safetensors --out out.safetensors", args);
    int code = probe(line, says);
    ck_assert_msg(code == 0 && !*says, "probe %s: exit code %d: %s", line, code, says);
    st_close(out_file);
    out_file = NULL;
    ck_ok(st_open(scratch_path("out.safetensors"), &out_file, err));
    ck_assert(!scratch_exists("out.safetensors.part"));
}

int has(const char *name) {
    return st_find(out_file, name) != NULL;
}

const void *got(const char *name, int32_t dtype, int64_t elements) {
    const st_tensor *t = st_find(out_file, name);
    ck_assert_msg(t != NULL, "no %s in the results", name);
    ck_assert_msg(t->dtype == dtype && t->elements == elements, "%s is %s of %lld elements, not %s of %lld", name,
                  st_dtype_name(t->dtype), (long long)t->elements, st_dtype_name(dtype), (long long)elements);
    void *data = arena_alloc(&results, t->bytes + 1);
    ck_assert(data != NULL);
    ck_ok(st_read(out_file, t, data, t->bytes, err));
    return data;
}

void want_floats(const char *name, const float *want, int64_t n, double tolerance) {
    const float *is = got(name, MOE_F32, n);
    for (int64_t i = 0; i < n; i++)
        check_that(fabs((double)is[i] - (double)want[i]) <= tolerance, "%s[%lld] is %.9g, not %.9g", name, (long long)i,
                   (double)is[i], (double)want[i]);
}

void want_i64(const char *name, const int64_t *want, int64_t n) {
    const int64_t *is = got(name, MOE_I64, n);
    for (int64_t i = 0; i < n; i++)
        check_that(is[i] == want[i], "%s[%lld] is %lld, not %lld", name, (long long)i, (long long)is[i],
                   (long long)want[i]);
}

void want_i32(const char *name, const int32_t *want, int64_t n) {
    const int32_t *is = got(name, MOE_I32, n);
    for (int64_t i = 0; i < n; i++)
        check_that(is[i] == want[i], "%s[%lld] is %d, not %d", name, (long long)i, is[i], want[i]);
}

double got_scalar(const char *name) {
    return *(const double *)got(name, MOE_F64, 1);
}
