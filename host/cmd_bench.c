/* moehost bench: measured figures of recipes' steps, beside the machine's measured peaks. All recipes, each with every
 * number of threads, run in turn, and that several times: what a shared machine does meanwhile meets them all. */
#include <exec/exec.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_show.h"
#include "stop.h"
#include "value.h"
#include "wire.h"

enum { MOST_THREAD_COUNTS = 16 };

typedef struct pair {
    const char *recipe, *threads; /* threads NULL: as the recipe says */
    size_t first;                 /* the pair of the first recipe with the same threads */
    session s;
    bench_sample *samples; /* [runs] */
    bench_table *tables;   /* [runs] */
} pair;

typedef struct series {
    const command_args *args;
    char *thread_texts[MOST_THREAD_COUNTS]; /* owned */
    size_t n_threads;
    int64_t runs, steps, done; /* done: rounds that all pairs have run */
    pair *pairs;               /* [n] */
    size_t n;
} series;

/* ---- arguments ---- */
/* --threads LIST: distinct numbers between commas. An exit code. */
static int read_threads(series *b, const char *list) {
    const char *at = NULL;
    char why[300];
    size_t length = 0;
    value_type type;
    typed_value v;
    if (!value_type_parse("int 1..1024", true, &type, why, sizeof why)) return EXIT_CODE_USAGE;
    for (size_t i = 0; value_list_item(list, i, &at, &length); i++) {
        char *text = strndup(at, length);
        int ok = text && value_parse(&type, text, &v, why, sizeof why);
        if (!text) snprintf(why, sizeof why, "out of memory");
        if (ok) snprintf(text, length + 1, "%" PRId64, v.i); /* "02" is 2 */
        for (size_t k = 0; k < b->n_threads && ok; k++) {
            ok = strcmp(b->thread_texts[k], text) != 0;
            if (!ok) snprintf(why, sizeof why, "%s is there twice", text);
        }
        if (ok && b->n_threads == MOST_THREAD_COUNTS) {
            snprintf(why, sizeof why, "more than %d numbers", MOST_THREAD_COUNTS);
            ok = 0;
        }
        if (!ok) {
            free(text);
            fprintf(stderr, "moehost bench: --threads: %s; want numbers of threads between commas, as in 1,2\n", why);
            return EXIT_CODE_USAGE;
        }
        b->thread_texts[b->n_threads++] = text;
    }
    if (b->n_threads) return EXIT_CODE_OK;
    fprintf(stderr, "moehost bench: --threads: the list is empty\n");
    return EXIT_CODE_USAGE;
}

/* The command line as if it named the pair alone. */
static command_args args_of(const series *b, const pair *p) {
    command_args one = *b->args;
    one.positional[0] = (char *)(uintptr_t)p->recipe;
    one.n_positional = 1;
    for (int i = 0; i < one.n_given && p->threads; i++)
        if (strcmp(one.given[i].option->name, "threads") == 0) one.given[i].text = p->threads;
    return one;
}

static int fail(const pair *p, const moe_err *err, moe_status status) {
    fprintf(stderr, "moehost: %s: %s\n", p->recipe, err->msg);
    return wire_exit_code(status);
}

/* ---- the series ---- */
static int open_pair(const series *b, pair *p) {
    const command_args args = args_of(b, p);
    moe_err err = {.size = sizeof err};
    int code = session_open(&p->s, &args, 0); /* no data: bench makes its own */
    moe_status status = code ? MOE_OK : bench_prepare(&p->s, &err);
    if (status) code = fail(p, &err, status);
    if (code) return code;
    p->samples = calloc((size_t)b->runs, sizeof *p->samples);
    p->tables = calloc((size_t)b->runs, sizeof *p->tables);
    if (p->samples && p->tables) return EXIT_CODE_OK;
    fprintf(stderr, "moehost: out of memory for %" PRId64 " runs\n", b->runs);
    return EXIT_CODE_FAILED;
}

/* Once, before anything runs. */
static void note_untimed(const pair *p) {
    const moe_desc *device = p->s.parts.device.desc;
    if (device->flags & MOE_ASYNC)
        fprintf(stderr,
                "moehost: note: %s: device/%s is asynchronous: a step's time is known, that of its parts is not\n",
                p->recipe, device->id);
}

static int open_pairs(series *b) {
    size_t counts = b->n_threads ? b->n_threads : 1;
    int code = EXIT_CODE_OK;
    b->pairs = calloc((size_t)b->args->n_positional * counts, sizeof *b->pairs);
    if (!b->pairs) {
        fprintf(stderr, "moehost: out of memory for %d recipes\n", b->args->n_positional);
        return EXIT_CODE_FAILED;
    }
    for (int i = 0; i < b->args->n_positional && !code; i++)
        for (size_t k = 0; k < counts && !code; k++) {
            pair *p = &b->pairs[b->n++];
            *p = (pair){.recipe = b->args->positional[i], .threads = b->n_threads ? b->thread_texts[k] : NULL};
            p->first = k;
            code = open_pair(b, p);
            if (!code) note_untimed(p);
        }
    return code;
}

static int run_pairs(series *b) {
    moe_err err = {.size = sizeof err};
    for (int64_t run = 0; run < b->runs; run++, b->done++)
        for (size_t i = 0; i < b->n; i++) {
            pair *p = &b->pairs[i];
            fprintf(stderr, "bench %zu/%zu: %s, ", (size_t)run * b->n + i + 1, (size_t)b->runs * b->n, p->recipe);
            if (p->threads) fprintf(stderr, "%s thread%s, ", p->threads, strcmp(p->threads, "1") == 0 ? "" : "s");
            fprintf(stderr, "run %" PRId64 " of %" PRId64 "\n", run + 1, b->runs);
            moe_status status = bench_run(&p->s, b->steps, &p->samples[run], &err);
            if (status) return fail(p, &err, status);
            if (p->samples[run].stopped) return EXIT_CODE_OK;
        }
    return EXIT_CODE_OK;
}

/* Rows of each run, then their medians. */
static void sum_up(const series *b, bench_result *results) {
    for (size_t i = 0; i < b->n; i++) {
        pair *p = &b->pairs[i];
        for (int64_t run = 0; run < b->done; run++) {
            bench_rows(&p->s, &p->samples[run], &p->tables[run]);
            if (b->n > 1) bench_rows_compare(&p->tables[run], &b->pairs[p->first].tables[run]);
        }
        results[i] = (bench_result){.recipe = p->recipe,
                                    .device = p->samples[0].device,
                                    .threads = p->samples[0].threads,
                                    .runs = b->done,
                                    .steps = b->steps};
        bench_rows_median(p->tables, b->done, &results[i].table);
    }
}

static int show(const series *b) {
    int json = command_flag(b->args, "json");
    bench_result *results = calloc(b->n, sizeof *results);
    if (!results) {
        fprintf(stderr, "moehost: out of memory for %zu tables\n", b->n);
        return EXIT_CODE_FAILED;
    }
    sum_up(b, results);
    for (size_t i = 0; i < b->n; i++)
        if (json)
            bench_show_json(&results[i], stdout);
        else
            bench_show(&results[i], stdout);
    if (b->n > 1 && !json) bench_show_summary(results, b->n, stdout);
    free(results);
    return EXIT_CODE_OK;
}

static void free_series(series *b) {
    for (size_t i = 0; i < b->n; i++) {
        session_free(&b->pairs[i].s);
        free(b->pairs[i].samples);
        free(b->pairs[i].tables);
    }
    free(b->pairs);
    for (size_t i = 0; i < b->n_threads; i++) free(b->thread_texts[i]);
}

/* Options of bench dispatch; a recipe says these itself. */
static int refuse_sizes(const command_args *args) {
    static const char *const sizes[] = {"ranks",   "tokens",    "hidden", "top-k",
                                        "experts", "node-size", "dtype",  "dispatchers"};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (command_value(args, sizes[i])) {
            fprintf(stderr, "moehost bench: --%s is an option of bench dispatch; a recipe says it itself\n", sizes[i]);
            return 1;
        }
    return 0;
}

int cmd_bench(int argc, char **argv) {
    command_args args;
    int code = command_parse("bench", argc, argv, &args);
    if (code >= 0) return code;
    if (strcmp(args.positional[0], "dispatch") == 0) return cmd_bench_dispatch(&args);
    if (refuse_sizes(&args)) return EXIT_CODE_USAGE;
    series b = {.args = &args, .runs = command_int(&args, "runs", 3), .steps = command_int(&args, "steps", 3)};
    const char *threads = command_value(&args, "threads");
    code = threads ? read_threads(&b, threads) : EXIT_CODE_OK;
    stop_install();
    crash_install(exec_current_node);
    if (!code) code = open_pairs(&b);
    if (!code) code = run_pairs(&b);
    int signal_number = code ? 0 : stop_requested();
    if (signal_number)
        fprintf(stderr, "moehost: stopped by %s after %" PRId64 " whole round%s of %" PRId64 "\n",
                signal_number == SIGINT ? "SIGINT" : "SIGTERM", b.done, b.done == 1 ? "" : "s", b.runs);
    if (!code && b.done) code = show(&b);
    free_series(&b);
    return command_finish(code ? code : signal_number ? 128 + signal_number : EXIT_CODE_OK);
}
