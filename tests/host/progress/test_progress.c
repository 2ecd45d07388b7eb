/* The progress line on a pseudo-terminal, seen through a small emulation of a screen, and in a pipe. */
#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <pty.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "progress.h"

/* ---- what the user sees ---- */

enum { ROWS = 400, COLS = 200 };
typedef struct screen {
    int in, out; /* the program writes to out, the test reads in */
    int width;
    int row, col, wraps;
    int redraws; /* carriage returns that were not part of a line end */
    char text[ROWS][COLS + 1];
} screen;

static void set_width(screen *s, int width) {
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)width};
    ck_assert_int_eq(ioctl(s->out, TIOCSWINSZ, &size), 0);
    s->width = width ? width : 80;
}

static void open_screen(screen *s, int width) {
    memset(s, 0, sizeof *s);
    ck_assert_int_eq(openpty(&s->in, &s->out, NULL, NULL, NULL), 0);
    ck_assert_int_eq(fcntl(s->in, F_SETFL, O_NONBLOCK), 0);
    set_width(s, width);
}

static void put_char(screen *s, char c) {
    if (c == '\r') {
        s->col = 0;
        s->redraws++;
    } else if (c == '\n') {
        s->row++;
        s->redraws--; /* the terminal writes "\r\n" */
    } else {
        ck_assert_msg(c >= ' ' && c < 0x7f, "byte 0x%02x on the screen", c);
        if (s->col == s->width) {
            s->col = 0;
            s->row++;
            s->wraps++;
        }
        ck_assert_int_lt(s->row, ROWS);
        memset(s->text[s->row] + strlen(s->text[s->row]), ' ',
               s->col > (int)strlen(s->text[s->row]) ? (size_t)s->col - strlen(s->text[s->row]) : 0);
        s->text[s->row][s->col++] = c;
    }
}

/* Takes in what was written. */
static void look(screen *s) {
    char bytes[4096];
    for (ssize_t n; (n = read(s->in, bytes, sizeof bytes)) > 0;)
        for (ssize_t i = 0; i < n; i++) put_char(s, bytes[i]);
}

/* A row without the blanks at its end. */
static const char *row_of(screen *s, int row) {
    char *end = s->text[row] + strlen(s->text[row]);
    while (end > s->text[row] && end[-1] == ' ') *--end = 0;
    return s->text[row];
}

/* ---- a clock of our own ---- */

static double read_clock(void *ctx) {
    return *(double *)ctx;
}

static progress *created(const screen *s, int64_t total, int64_t log_every, int quiet, double *clock) {
    progress *p = NULL;
    moe_err err;
    progress_config cfg = {.fd = s->out,
                           .message_fd = s->out,
                           .quiet = quiet,
                           .total = total,
                           .log_every = log_every,
                           .now = read_clock,
                           .now_ctx = clock};
    ck_assert_int_eq(progress_create(&cfg, &p, &err), MOE_OK);
    return p;
}

static metrics_row row_at(int64_t step) {
    metrics_row row = {.step = step};
    METRICS_SET(&row, loss, 2.34567);
    METRICS_SET(&row, tokens_per_s, 12345.0);
    METRICS_SET(&row, imbalance, 1.254);
    return row;
}

/* Steps first..last, one a second. */
static void run_steps(progress *p, double *clock, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; step++) {
        metrics_row row = row_at(step);
        *clock += 1;
        progress_step(p, &row);
    }
}

/* ---- terminal ---- */

START_TEST(one_line_with_all_there_is_room_for) {
    screen s;
    double clock = 0;
    open_screen(&s, 120);
    progress *p = created(&s, 200, 10, 0, &clock);
    run_steps(p, &clock, 1, 49);
    metrics_row row = row_at(50);
    METRICS_SET(&row, val_loss, 2.5);
    clock += 1;
    progress_step(p, &row);
    look(&s);
    ck_assert_str_eq(row_of(&s, 0),
                     "step 50/200  loss 2.3457  val 2.5000  12.3k tok/s  imb 1.25  eta 2m30s  "
                     "[##########------------------------------]");
    run_steps(p, &clock, 51, 51); /* the validation loss stays */
    look(&s);
    ck_assert_ptr_nonnull(strstr(row_of(&s, 0), "step 51/200  loss 2.3457  val 2.5000"));
    progress_finish(p);
    look(&s);
    ck_assert_int_eq(s.row, 1);
    ck_assert_int_eq(s.col, 0);
    ck_assert_int_eq(s.wraps, 0);
}
END_TEST

START_TEST(cut_to_every_width) {
    for (int width = 1; width <= 130; width++) {
        screen s;
        double clock = 0;
        open_screen(&s, width);
        progress *p = created(&s, 100000, 10, 0, &clock);
        run_steps(p, &clock, 99990, 99999);
        look(&s);
        ck_assert_int_eq(s.row, 0);
        ck_assert_int_eq(s.wraps, 0);
        ck_assert_int_lt(s.col, width);
        const char *line = s.text[0];
        ck_assert_int_eq(strncmp(line, "step 99999/100000", (size_t)(width - 1 < 17 ? width - 1 : 17)), 0);
        if (width > 17 + 13) ck_assert_ptr_nonnull(strstr(line, "loss 2.3457"));
        if (width > 17 + 13 + 8) ck_assert_ptr_nonnull(strstr(line, "eta 1s"));
        progress_finish(p);
        close(s.in);
        close(s.out);
    }
}
END_TEST

START_TEST(unknown_width_is_80) {
    screen s;
    double clock = 0;
    open_screen(&s, 0);
    progress *p = created(&s, 100, 10, 0, &clock);
    run_steps(p, &clock, 1, 9);
    look(&s);
    ck_assert_uint_eq(strlen(row_of(&s, 0)), 79);
    progress_finish(p);
}
END_TEST

START_TEST(shorter_lines_leave_nothing_behind) {
    screen s;
    double clock = 0;
    open_screen(&s, 100);
    progress *p = created(&s, 1000, 10, 0, &clock);
    run_steps(p, &clock, 1, 10);
    metrics_row bare = {.step = 11};
    clock += 1;
    look(&s);
    set_width(&s, 30);
    progress_step(p, &bare);
    look(&s);
    s.text[0][29] = 0; /* beyond is what the terminal cut when it was made narrower */
    ck_assert_str_eq(row_of(&s, 0), "step 11/1000  eta 16m29s");
    set_width(&s, 100);
    run_steps(p, &clock, 12, 12);
    clock += 1;
    bare.step = 13;
    progress_step(p, &bare);
    look(&s);
    ck_assert_ptr_null(strstr(row_of(&s, 0), "loss"));
    progress_finish(p);
}
END_TEST

START_TEST(redraws_at_most_ten_a_second) {
    screen s;
    double clock = 100;
    open_screen(&s, 100);
    progress *p = created(&s, 1000, 10, 0, &clock);
    for (int64_t step = 1; step <= 1000; step++) { /* two seconds */
        metrics_row row = row_at(step);
        clock += 0.002;
        progress_step(p, &row);
        look(&s);
    }
    ck_assert_int_ge(s.redraws, 19);
    ck_assert_int_le(s.redraws, 21);
    progress_finish(p); /* but the last state is there */
    look(&s);
    ck_assert_ptr_nonnull(strstr(row_of(&s, 0), "step 1000/1000  loss 2.3457  12.3k tok/s  imb 1.25  eta 0s  [####"));
    ck_assert_int_eq(s.row, 1);
}
END_TEST

START_TEST(messages_stay_whole_above_the_line) {
    screen s;
    double clock = 0;
    open_screen(&s, 100);
    progress *p = created(&s, 100, 10, 0, &clock);
    progress_message(p, "before");
    run_steps(p, &clock, 1, 5);
    progress_message(p, "short");
    run_steps(p, &clock, 6, 6);
    progress_message(p, "checkpoint of step 6 written\nand a second line\n");
    run_steps(p, &clock, 7, 7);
    progress_message(p, "");
    progress_finish(p);
    look(&s);
    ck_assert_str_eq(row_of(&s, 0), "before");
    ck_assert_str_eq(row_of(&s, 1), "short");
    ck_assert_str_eq(row_of(&s, 2), "checkpoint of step 6 written");
    ck_assert_str_eq(row_of(&s, 3), "and a second line");
    ck_assert_str_eq(row_of(&s, 4), "");
    ck_assert_ptr_nonnull(strstr(row_of(&s, 5), "step 7/100  loss 2.3457"));
    ck_assert_int_eq(s.row, 6);
    ck_assert_int_eq(s.wraps, 0);
}
END_TEST

typedef struct speaker {
    progress *p;
    int id;
} speaker;

static void *speak(void *arg) {
    const speaker *s = arg;
    char text[32];
    snprintf(text, sizeof text, "rank %d", s->id);
    for (int i = 0; i < 50; i++) progress_message(s->p, text);
    return NULL;
}

START_TEST(messages_from_many_threads) {
    screen s;
    double clock = 0;
    open_screen(&s, 60);
    progress *p = created(&s, 1000, 10, 0, &clock);
    pthread_t threads[4];
    speaker speakers[4];
    metrics_row row = row_at(1);
    progress_step(p, &row);
    for (int i = 0; i < 4; i++) {
        speakers[i] = (speaker){p, i};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, speak, &speakers[i]), 0);
    }
    int counts[4] = {0}, seen = 0;
    while (s.row < 200) look(&s), usleep(100);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    progress_finish(p);
    look(&s);
    for (int i = 0; i < 200; i++) {
        int id = -1;
        ck_assert_msg(sscanf(row_of(&s, i), "rank %d", &id) == 1 && strlen(row_of(&s, i)) == 6, "row %d: '%s'", i,
                      row_of(&s, i));
        counts[id]++, seen++;
    }
    for (int i = 0; i < 4; i++) ck_assert_int_eq(counts[i], 50);
}
END_TEST

START_TEST(time_to_go_is_smoothed) {
    screen s;
    double clock = 0;
    open_screen(&s, 40);
    progress *p = created(&s, 110, 10, 0, &clock);
    run_steps(p, &clock, 1, 1);
    look(&s);
    ck_assert_ptr_null(strstr(row_of(&s, 0), "eta")); /* one step tells no rate */
    run_steps(p, &clock, 2, 9);
    clock += 10; /* one slow step of 11 s, weight 0.1 / (1 - 0.9^9) = 0.163: 2.63 s a step */
    run_steps(p, &clock, 10, 10);
    look(&s);
    ck_assert_ptr_nonnull(strstr(row_of(&s, 0), "eta 4m23s"));
    run_steps(p, &clock, 11, 90);
    look(&s);
    ck_assert_ptr_nonnull(strstr(row_of(&s, 0), "eta 20s"));
    progress_finish(p);
}
END_TEST

START_TEST(numbers_are_short) {
    static const struct {
        double rate, seconds; /* per step, 1000 to go */
        const char *rate_text, *eta_text;
    } rows[] = {{0, 0.042, " 0 tok/s", "eta 42s"},
                {999.4, 0.0594, " 999 tok/s", "eta 59s"},
                {999.6, 0.0596, " 1.00k tok/s", "eta 1m00s"},
                {9996, 3.599, " 10.0k tok/s", "eta 59m59s"},
                {99960, 3.6, " 100k tok/s", "eta 1h00m"},
                {4.56e6, 86.4, " 4.56M tok/s", "eta 1d00h"},
                {1e18, 1e7, " 1000P tok/s", "eta long"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        screen s;
        double clock = 0;
        open_screen(&s, 60);
        progress *p = created(&s, 1002, 10, 0, &clock);
        for (int64_t step = 1; step <= 2; step++) {
            metrics_row row = {.step = step};
            METRICS_SET(&row, loss, NAN);
            METRICS_SET(&row, tokens_per_s, rows[i].rate);
            progress_step(p, &row);
            clock += step == 1 ? rows[i].seconds : 0;
        }
        progress_finish(p);
        look(&s);
        ck_assert_msg(strstr(row_of(&s, 0), rows[i].rate_text) != NULL, "%s", row_of(&s, 0));
        ck_assert_msg(strstr(row_of(&s, 0), rows[i].eta_text) != NULL, "%s", row_of(&s, 0));
        ck_assert_ptr_nonnull(strstr(row_of(&s, 0), "loss nan"));
        close(s.in);
        close(s.out);
    }
}
END_TEST

/* ---- pipe and quiet ---- */

static const char *pipe_text(int fd) {
    static char text[4096];
    ssize_t n = read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    return text;
}

static void open_pipe(screen *s) {
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_NONBLOCK), 0);
    *s = (screen){.in = ends[0], .out = ends[1]};
}

START_TEST(plain_lines_in_a_pipe) {
    screen s;
    double clock = 0;
    open_pipe(&s);
    progress *p = created(&s, 10, 4, 0, &clock);
    run_steps(p, &clock, 1, 5);
    metrics_row row = row_at(6);
    METRICS_SET(&row, val_loss, 2.5);
    progress_step(p, &row);
    progress_message(p, "message");
    clock = 6;
    run_steps(p, &clock, 7, 10);
    progress_finish(p);
    ck_assert_str_eq(pipe_text(s.in),
                     "step 4/10  loss 2.3457  12.3k tok/s  imb 1.25  eta 6s\n"
                     "step 6/10  loss 2.3457  val 2.5000  12.3k tok/s  imb 1.25  eta 4s\n"
                     "message\n"
                     "step 8/10  loss 2.3457  12.3k tok/s  imb 1.25  eta 2s\n"
                     "step 10/10  loss 2.3457  12.3k tok/s  imb 1.25  eta 0s\n");
}
END_TEST

START_TEST(interrupted_run_shows_its_last_step) {
    screen s;
    double clock = 0;
    open_pipe(&s);
    progress *p = created(&s, 0, 100, 0, &clock); /* total not known */
    run_steps(p, &clock, 1, 7);
    progress_finish(p);
    ck_assert_str_eq(pipe_text(s.in), "step 7  loss 2.3457  12.3k tok/s  imb 1.25\n");
    p = created(&s, 10, 1, 0, &clock); /* not a step done: nothing to show */
    progress_finish(p);
    ck_assert_str_eq(pipe_text(s.in), "");
    progress_finish(NULL);
}
END_TEST

START_TEST(quiet_prints_messages_only) {
    screen s;
    double clock = 0;
    open_pipe(&s);
    progress *p = created(&s, 10, 1, 1, &clock);
    run_steps(p, &clock, 1, 10);
    progress_message(p, "kept");
    progress_finish(p);
    ck_assert_str_eq(pipe_text(s.in), "kept\n");
    open_screen(&s, 80);
    p = created(&s, 10, 1, 1, &clock);
    run_steps(p, &clock, 1, 10);
    progress_message(p, "kept");
    progress_finish(p);
    look(&s);
    ck_assert_str_eq(row_of(&s, 0), "kept");
    ck_assert_int_eq(s.row, 1);
}
END_TEST

START_TEST(bad_interval_is_refused) {
    progress *p = NULL;
    moe_err err;
    progress_config cfg = {.fd = 1, .message_fd = 2, .total = 1, .log_every = 0};
    ck_assert_int_eq(progress_create(&cfg, &p, &err), MOE_E_ARG);
    ck_assert_str_eq(err.msg, "log_every 0 is not positive");
    ck_assert_ptr_null(p);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("progress");
    TCase *tc = tcase_create("progress");
    tcase_add_test(tc, one_line_with_all_there_is_room_for);
    tcase_add_test(tc, cut_to_every_width);
    tcase_add_test(tc, unknown_width_is_80);
    tcase_add_test(tc, shorter_lines_leave_nothing_behind);
    tcase_add_test(tc, redraws_at_most_ten_a_second);
    tcase_add_test(tc, messages_stay_whole_above_the_line);
    tcase_add_test(tc, messages_from_many_threads);
    tcase_add_test(tc, time_to_go_is_smoothed);
    tcase_add_test(tc, numbers_are_short);
    tcase_add_test(tc, plain_lines_in_a_pipe);
    tcase_add_test(tc, interrupted_run_shows_its_last_step);
    tcase_add_test(tc, quiet_prints_messages_only);
    tcase_add_test(tc, bad_interval_is_refused);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
