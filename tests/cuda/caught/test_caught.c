/* The test of the tests: what runs kernels on the CPU catches a kernel whose barriers are gone, and one that reads
 * beyond its input. Programs: norm.cpp. Without a sanitizer a missing barrier is a wrong result, since shared memory
 * begins poisoned and threads run one after the other; under ThreadSanitizer it is a race at the kernel's line. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct outcome {
    int code; /* exit code; 128 + signal */
    char text[65536];
} outcome;

/* Runs it and waits; text: both outputs, cut at the end. */
static void run(outcome *o, const char *program, const char *word) {
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    const pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (!child) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        execl(program, program, word, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    size_t have = 0;
    char rest[4096];
    for (;;) {
        const size_t room = sizeof o->text - 1 - have;
        const ssize_t n = room ? read(ends[0], o->text + have, room) : read(ends[0], rest, sizeof rest);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        if (room) have += (size_t)n;
    }
    close(ends[0]);
    o->text[have] = 0;
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    o->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
static void want_code(const outcome *o, int code) {
    ck_assert_msg(o->code == code, "exit code %d, want %d:\n%.2000s", o->code, code, o->text);
}
static void want_text(const outcome *o, const char *part) {
    ck_assert_msg(strstr(o->text, part), "no \"%s\" in:\n%.2000s", part, o->text);
}
static int sanitizer_is(const char *name) {
    return strstr(CAUGHT_SANITIZER, name) != NULL;
}

static outcome o;

START_TEST(a_whole_kernel_passes) {
    run(&o, CAUGHT_WHOLE, NULL);
    want_code(&o, 0);
    want_text(&o, "0 of 771 wrong");
}
END_TEST

START_TEST(a_kernel_without_its_barriers_is_caught) {
    run(&o, CAUGHT_BARE, NULL);
    if (sanitizer_is("thread")) {
        want_code(&o, 66);
        want_text(&o, "data race");
        want_text(&o, "reduce.cuh");
    } else {
        want_code(&o, 3);
    }
}
END_TEST

START_TEST(a_read_beyond_the_input_is_caught) {
    run(&o, CAUGHT_WHOLE, "beyond");
    ck_assert_int_ne(o.code, 0);
    want_text(&o, "heap-buffer-overflow");
    want_text(&o, "rmsnorm.cu");
}
END_TEST

int main(void) {
    Suite *suite = suite_create("caught");
    TCase *all = tcase_create("all");
    tcase_add_test(all, a_whole_kernel_passes);
    tcase_add_test(all, a_kernel_without_its_barriers_is_caught);
    if (sanitizer_is("address")) tcase_add_test(all, a_read_beyond_the_input_is_caught);
    suite_add_tcase(suite, all);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
