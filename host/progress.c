/* The progress line; see progress.h. Every update is one write(2) of "\r", text, and spaces over what was longer
 * before: no escape sequences, so nothing depends on the kind of terminal. */
#include "progress.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <moe/options.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <util/clock.h>

enum { WIDTH_MAX = 512, BAR_MIN = 10, BAR_MAX = 40, FIELDS = 6 };
static const double redraw_seconds = 0.1, smoothing = 0.9;

struct progress {
    progress_config cfg;
    pthread_mutex_t lock;
    int terminal;
    metrics_row row; /* the last step; step 0: none yet */
    double val_loss; /* the last known */
    int has_val;
    int shown;                        /* row is on the screen or printed */
    size_t drawn;                     /* characters of the line on the screen */
    double drawn_at, step_at;         /* seconds */
    double step_seconds, step_weight; /* smoothed: seconds per step = step_seconds / step_weight */
};

static double system_now(void *ctx) {
    (void)ctx;
    return clock_seconds();
}

moe_status progress_create(const progress_config *cfg, progress **out, moe_err *err) {
    if (cfg->log_every < 1) return moe_fail(err, MOE_E_ARG, "log_every %" PRId64 " is not positive", cfg->log_every);
    progress *p = calloc(1, sizeof *p);
    if (!p) return moe_fail(err, MOE_E_NOMEM, "no memory for the progress line");
    p->cfg = *cfg;
    if (!p->cfg.now) p->cfg.now = system_now;
    p->terminal = isatty(cfg->fd);
    pthread_mutex_init(&p->lock, NULL);
    *out = p;
    return MOE_OK;
}

/* Display only: what cannot be written is dropped. */
static void emit(int fd, const char *text, size_t n) {
    while (n > 0) {
        ssize_t put = write(fd, text, n);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return;
        text += put;
        n -= (size_t)put;
    }
}

/* ---- numbers ---- */

/* 950, 12.3k, 4.56M, ... three digits. */
static void format_count(char *out, size_t n, double value) {
    static const char units[] = " kMGTP";
    size_t unit = 0;
    while (value >= 999.5 && unit + 2 < sizeof units) {
        value /= 1000;
        unit++;
    }
    int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(out, n, "%.*f%.*s", digits, value, unit > 0, units + unit);
}

/* 42s, 12m05s, 3h07m, 2d04h. */
static void format_duration(char *out, size_t n, double seconds) {
    if (!(seconds < 1e9)) {
        snprintf(out, n, "long");
        return;
    }
    int64_t s = (int64_t)(seconds + 0.5);
    if (s < 60)
        snprintf(out, n, "%" PRId64 "s", s);
    else if (s < 3600)
        snprintf(out, n, "%" PRId64 "m%02" PRId64 "s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, n, "%" PRId64 "h%02" PRId64 "m", s / 3600, s / 60 % 60);
    else
        snprintf(out, n, "%" PRId64 "d%02" PRId64 "h", s / 86400, s / 3600 % 24);
}

/* ---- the line ---- */

typedef char field_text[48];

/* The fields in order of display; an empty one has nothing to show. */
static void fill_fields(const progress *p, int val_known, field_text fields[FIELDS]) {
    const metrics_row *row = &p->row;
    char number[24];
    memset(fields, 0, FIELDS * sizeof *fields);
    snprintf(fields[0], sizeof *fields, p->cfg.total > 0 ? "step %" PRId64 "/%" PRId64 : "step %" PRId64, row->step,
             p->cfg.total);
    if (METRICS_HAS(row, loss)) snprintf(fields[1], sizeof *fields, "loss %.4f", row->loss);
    if (val_known) snprintf(fields[2], sizeof *fields, "val %.4f", p->val_loss);
    if (METRICS_HAS(row, tokens_per_s)) {
        format_count(number, sizeof number, row->tokens_per_s);
        snprintf(fields[3], sizeof *fields, "%s tok/s", number);
    }
    if (METRICS_HAS(row, imbalance)) snprintf(fields[4], sizeof *fields, "imb %.2f", row->imbalance);
    if (p->cfg.total >= row->step && p->step_weight > 0) {
        format_duration(number, sizeof number, (double)(p->cfg.total - row->step) * p->step_seconds / p->step_weight);
        snprintf(fields[5], sizeof *fields, "eta %s", number);
    }
}

/* "[#####-----]" in the room that is left, if any; its length. */
static size_t draw_bar(const progress *p, char *out, size_t room) {
    if (p->cfg.total <= 0 || room < BAR_MIN + 4) return 0;
    size_t cells = room - 4 < BAR_MAX ? room - 4 : BAR_MAX;
    double done = fmin(1, (double)p->row.step / (double)p->cfg.total);
    size_t full = (size_t)((double)cells * done);
    memcpy(out, "  [", 3);
    memset(out + 3, '#', full);
    memset(out + 3 + full, '-', cells - full);
    out[3 + cells] = ']';
    return cells + 4;
}

/* Takes the fields that matter most while they fit in width, puts them in their order; the length. */
static size_t compose(const progress *p, char *out, size_t width) {
    static const int by_importance[FIELDS] = {0, 1, 5, 3, 2, 4};
    field_text fields[FIELDS];
    size_t taken = 0, at = 0;
    int take[FIELDS] = {0};
    fill_fields(p, p->has_val, fields);
    for (int i = 0; i < FIELDS; i++) {
        size_t n = strlen(fields[by_importance[i]]) + (i ? 2 : 0);
        if (!fields[by_importance[i]][0] || (i && taken + n > width)) continue;
        take[by_importance[i]] = 1;
        taken += n;
    }
    for (int i = 0; i < FIELDS; i++) {
        if (!take[i]) continue;
        size_t n = strlen(fields[i]);
        if (i) memcpy(out + at, "  ", 2);
        at += i ? 2 : 0;
        if (n > width - at) n = width - at; /* the step alone on a very narrow terminal */
        memcpy(out + at, fields[i], n);
        at += n;
    }
    return at + draw_bar(p, out + at, width - at);
}

/* Columns that may be used: one less than there are, so that the cursor never wraps. */
static size_t columns(const progress *p) {
    struct winsize size;
    size_t n = ioctl(p->cfg.fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    return n > WIDTH_MAX ? WIDTH_MAX : n - 1;
}

/* Draws over the line on the screen; without a row, or with nothing to show, blanks it. */
static void draw(progress *p, int blank) {
    char line[WIDTH_MAX + 2] = "\r";
    size_t width = columns(p), n = blank ? 0 : compose(p, line + 1, width);
    size_t end = p->drawn > width ? width : p->drawn; /* of what has to be covered */
    if (end < n) end = n;
    memset(line + 1 + n, ' ', end - n);
    if (blank) line[++end] = '\r';
    emit(p->cfg.fd, line, 1 + end);
    p->drawn = n;
}

static void print_line(const progress *p) {
    field_text fields[FIELDS];
    char line[FIELDS * (sizeof(field_text) + 2) + 2];
    size_t at = 0;
    fill_fields(p, METRICS_HAS(&p->row, val_loss) != 0, fields);
    for (int i = 0; i < FIELDS; i++)
        if (fields[i][0]) at += (size_t)snprintf(line + at, sizeof line - at, "%s%s", i ? "  " : "", fields[i]);
    line[at++] = '\n';
    emit(p->cfg.fd, line, at);
}

/* ---- events ---- */

static void take_time(progress *p, int64_t step, double now) {
    int64_t steps = step - p->row.step;
    if (p->row.step > 0 && steps > 0 && now > p->step_at) {
        p->step_seconds = smoothing * p->step_seconds + (1 - smoothing) * (now - p->step_at) / (double)steps;
        p->step_weight = smoothing * p->step_weight + (1 - smoothing);
    }
    p->step_at = now;
}

static void show(progress *p, double now) {
    const metrics_row *row = &p->row;
    if (p->terminal) {
        p->shown = p->drawn == 0 || now - p->drawn_at >= redraw_seconds;
        if (!p->shown) return;
        draw(p, 0);
        p->drawn_at = now;
    } else {
        p->shown = row->step % p->cfg.log_every == 0 || row->step == p->cfg.total || METRICS_HAS(row, val_loss);
        if (p->shown) print_line(p);
    }
}

void progress_step(progress *p, const metrics_row *row) {
    pthread_mutex_lock(&p->lock);
    double now = p->cfg.now(p->cfg.now_ctx);
    take_time(p, row->step, now);
    p->row = *row;
    if (METRICS_HAS(row, val_loss)) {
        p->val_loss = row->val_loss;
        p->has_val = 1;
    }
    if (!p->cfg.quiet) show(p, now);
    pthread_mutex_unlock(&p->lock);
}

void progress_message(progress *p, const char *text) {
    size_t n = strlen(text);
    pthread_mutex_lock(&p->lock);
    int redraw = p->terminal && p->drawn > 0;
    if (redraw) draw(p, 1);
    emit(p->cfg.message_fd, text, n);
    if (n == 0 || text[n - 1] != '\n') emit(p->cfg.message_fd, "\n", 1);
    if (redraw) draw(p, 0);
    pthread_mutex_unlock(&p->lock);
}

void progress_finish(progress *p) {
    if (!p) return;
    if (!p->cfg.quiet && p->row.step > 0) {
        if (p->terminal) {
            if (!p->shown) draw(p, 0);
            emit(p->cfg.fd, "\n", 1);
        } else if (!p->shown) {
            print_line(p);
        }
    }
    pthread_mutex_destroy(&p->lock);
    free(p);
}
