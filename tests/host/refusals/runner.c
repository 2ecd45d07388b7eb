/* Runs rows two at a time: recipe and files, fork and exec, a clock, and the judgement of what came out. */
#include "runner.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "files.h"

enum { SLOTS = 2, LIMIT_MS = 20000, MOST_ARGS = 32, TIMED_OUT = -1 };

static const char tiny[] =
    "; a small recipe that is right\n"
    "[run]\n"
    "steps = 2\n"
    "log_every = 1\n"
    "\n"
    "[data]\n"
    "train = ../text.txt\n"
    "seq_len = 16\n"
    "\n"
    "[model]\n"
    "layers = 2\n"
    "hidden = 16\n"
    "heads = 2\n"
    "kv_heads = 1\n"
    "experts = 4\n"
    "top_k = 2\n"
    "expert_ffn = 16\n"
    "\n"
    "[router]\n"
    "plugin = topk\n"
    "\n"
    "[device]\n"
    "threads = 1\n"
    "\n"
    "[batch]\n"
    "global = 4\n"
    "micro = 2\n";

typedef struct running {
    const row *row; /* NULL: free */
    pid_t pid;
    int64_t end_ms;
    int line; /* that the error has to name; 0 = none */
    char dir[PATH_BYTES];
} running;

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- text ---- */
/* A malloc'ed copy with $BAD, $BUILD and $DIR replaced. */
static char *expand(const char *text, const char *dir) {
    const struct {
        const char *name, *value;
    } names[] = {{"$BAD", MOE_BUILD_DIR "/tests/badplugins"}, {"$BUILD", MOE_BUILD_DIR}, {"$DIR", dir}};
    char *out = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&out, &bytes);
    ck_assert(to != NULL);
    while (*text) {
        size_t i = 0;
        while (i < 3 && strncmp(text, names[i].name, strlen(names[i].name)) != 0) i++;
        if (i < 3) {
            fputs(names[i].value, to);
            text += strlen(names[i].name);
        } else {
            fputc(*text++, to);
        }
    }
    fclose(to);
    return out;
}

/* Where the line that begins with `start` (n bytes) is, from `text` on; NULL when there is none. whole: and is no more.
 */
static char *find_line(char *text, const char *start, size_t n, int whole) {
    for (char *at = text; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        if (strncmp(at, start, n) == 0 && (!whole || at[n] == '\n')) return at;
    return NULL;
}

/* "section: key = value" into the recipe, which is malloc'ed and replaced. */
static char *put_line(char *recipe, const char *put) {
    char header[64];
    const char *line = strstr(put, ": ");
    ck_assert_msg(line != NULL, "no section in '%s'", put);
    line += 2;
    snprintf(header, sizeof header, "[%.*s]", (int)(line - 2 - put), put);
    char *section = find_line(recipe, header, strlen(header), 1), *out = NULL;
    if (!section) {
        ck_assert(asprintf(&out, "%s\n%s\n%s\n", recipe, header, line) > 0);
    } else {
        char *from = strchr(section, '\n') + 1, *next = find_line(from, "[", 1, 0);
        size_t key = strcspn(line, "=") + 1;
        char *old = find_line(from, line, key, 0);
        if (next && old && old > next) old = NULL;
        char *rest = old ? strchr(old, '\n') + 1 : from;
        ck_assert(asprintf(&out, "%.*s%s\n%s", (int)((old ? old : from) - recipe), recipe, line, rest) > 0);
    }
    free(recipe);
    return out;
}

/* The number of the line that put_line has put. */
static int line_of(char *recipe, const char *put) {
    char header[64];
    const char *line = strstr(put, ": ") + 2;
    snprintf(header, sizeof header, "[%.*s]", (int)(line - 2 - put), put);
    char *at = find_line(recipe, header, strlen(header), 1);
    if (at) at = find_line(at, line, strlen(line), 1);
    ck_assert_msg(at != NULL, "the recipe lacks '%s'", put);
    int number = 1;
    for (char *c = recipe; c < at; c++) number += *c == '\n';
    return number;
}

/* Writes tiny.ini; returns the line that the error is to name, 0 = none. */
static int write_recipe(const row *r, const char *dir) {
    char path[PATH_BYTES];
    file_path(path, "%s/tiny.ini", dir);
    if (r->text && r->text_bytes) {
        file_write(path, r->text, r->text_bytes);
        return r->line > 0 ? r->line : 0;
    }
    char *recipe = expand(r->text ? r->text : tiny, dir);
    int line = r->line > 0 ? r->line : 0;
    for (int i = 0; i < MOST_PUTS && r->put[i]; i++) {
        char *put = expand(r->put[i], dir);
        recipe = put_line(recipe, put);
        free(put);
    }
    if (r->put[0] && r->line == 0 && r->code) {
        char *put = expand(r->put[0], dir);
        line = line_of(recipe, put);
        free(put);
    }
    file_write(path, recipe, strlen(recipe));
    free(recipe);
    return line;
}

/* ---- one process ---- */
static int open_output(const char *dir, const char *name) {
    char path[PATH_BYTES];
    file_path(path, "%s/%s", dir, name);
    return open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
}

static void set_variable(const char *name, const char *text, const char *dir) {
    char *value = expand(text ? text : "", dir);
    if (text)
        setenv(name, value, 1);
    else
        unsetenv(name);
    free(value);
}

/* In the child. Words of a command line; '~' inside a word stands for a blank. */
static void start(const row *r, const char *dir) {
    char *argv[MOST_ARGS + 1], *save = NULL;
    char *exe = expand(r->exe ? r->exe : "$BUILD/moehost", dir);
    char *args = expand(r->args ? r->args : "check tiny.ini", dir);
    int n = 1;
    argv[0] = exe;
    for (char *word = strtok_r(args, " ", &save); word && n < MOST_ARGS; word = strtok_r(NULL, " ", &save)) {
        for (char *c = word; *c; c++)
            if (*c == '~') *c = ' ';
        argv[n++] = word;
    }
    argv[n] = NULL;
    setpgid(0, 0);
    set_variable("MOEHOST_PLUGIN_PATH", r->path, dir);
    set_variable("MOEHOST_PROBE_SECONDS", r->probe, dir);
    int in = open("/dev/null", O_RDONLY), err = open_output(dir, "err"), out = open_output(dir, "out");
    if (r->disk_full) dup2(open("/dev/full", O_WRONLY), out);
    if (chdir(dir) != 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
    close(in), close(out), close(err);
    execv(exe, argv);
    _exit(127);
}

static running begin(const row *r, const char *work, size_t i) {
    running run = {.row = r, .end_ms = now_ms() + LIMIT_MS};
    file_path(run.dir, "%s/%zu", work, i);
    file_make_dir(run.dir, 0755);
    run.line = write_recipe(r, run.dir);
    if (r->prepare) r->prepare(run.dir);
    fflush(NULL);
    run.pid = fork();
    ck_assert_msg(run.pid >= 0, "fork: %s", strerror(errno));
    if (run.pid == 0) start(r, run.dir);
    return run;
}

/* ---- judgement ---- */
typedef struct verdict {
    FILE *to;
    int faults;
} verdict;

__attribute__((format(printf, 2, 3))) static void object(verdict *v, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    fputs("    ", v->to);
    vfprintf(v->to, format, ap);
    fputc('\n', v->to);
    va_end(ap);
    v->faults++;
}

static int count_lines(const char *text) {
    int n = 0;
    for (const char *c = text; *c; c++) n += *c == '\n';
    return n;
}

static void judge_words(verdict *v, const row *r, const char *dir, const char *out, const char *err) {
    for (int i = 0; i < MOST_WORDS && r->say[i]; i++) {
        char *word = expand(r->say[i], dir);
        if (!strstr(err, word) && (r->code || !strstr(out, word))) object(v, "does not say: %s", word);
        free(word);
    }
    if (r->not_say && strstr(err, r->not_say)) object(v, "says: %s", r->not_say);
}

static void judge_refusal(verdict *v, const running *run, const char *out, const char *err) {
    const row *r = run->row;
    char place[32];
    int lines = count_lines(err), wanted = r->lines == 0 ? 1 : r->lines;
    snprintf(place, sizeof place, "tiny.ini:%d:", run->line);
    if (run->line && !strstr(err, place)) object(v, "does not name the place: %s", place);
    if (wanted != ANY_NUMBER && lines != wanted) object(v, "%d lines on stderr, not %d", lines, wanted);
    if (lines == 0 || err[strlen(err) - 1] != '\n') object(v, "the last line on stderr has no end");
    for (const char *c = err; *c; c++)
        if ((unsigned char)*c < ' ' && *c != '\n') {
            object(v, "control character %d on stderr", *c);
            break;
        }
    int lists = r->args && strncmp(r->args, "plugins", 7) == 0; /* and goes on after a refused file */
    if (*out && (r->code == 2 || r->code == 3) && !lists) object(v, "a refusal writes to stdout");
}

/* status: of waitpid, or TIMED_OUT. Returns the number of objections, which are printed. */
static int judge(const running *run, int status) {
    const row *r = run->row;
    char path[PATH_BYTES];
    file_path(path, "%s/out", run->dir);
    char *out = file_read(path);
    file_path(path, "%s/err", run->dir);
    char *err = file_read(path);
    char *list = NULL;
    size_t bytes = 0;
    verdict v = {.to = open_memstream(&list, &bytes)};
    ck_assert(v.to != NULL);
    int code = status == TIMED_OUT ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (status == TIMED_OUT) object(&v, "not done after %d s", LIMIT_MS / 1000);
    if (status != TIMED_OUT && code != r->code) object(&v, "exit code %d, not %d", code, r->code);
    if (strstr(err, "Sanitizer") || strstr(err, "runtime error:")) object(&v, "a sanitizer speaks");
    judge_words(&v, r, run->dir, out, err);
    if (r->code) judge_refusal(&v, run, out, err);
    fclose(v.to);
    if (v.faults)
        fprintf(stderr, "row '%s' in %s\n%s    stdout: %s\n    stderr: %s\n", r->name, run->dir, list, out, err);
    free(list);
    free(out);
    free(err);
    return v.faults;
}

/* ---- all rows ---- */
/* Waits for one of the slots; 1 when its row is wrong. */
static int finish_one(running *slots) {
    for (;;) {
        for (int i = 0; i < SLOTS; i++) {
            int status;
            if (!slots[i].row) continue;
            pid_t done = waitpid(slots[i].pid, &status, WNOHANG);
            ck_assert_msg(done >= 0, "waitpid: %s", strerror(errno));
            if (done == 0 && now_ms() < slots[i].end_ms) continue;
            kill(-slots[i].pid, SIGKILL); /* whatever it left behind */
            if (done == 0) {
                waitpid(slots[i].pid, &status, 0);
                status = TIMED_OUT;
            }
            int wrong = judge(&slots[i], status) != 0;
            slots[i].row = NULL;
            return wrong;
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

static void write_data(const char *work) {
    char path[PATH_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    ck_assert(to != NULL);
    for (int i = 0; i < 100; i++) fprintf(to, "line %d of a text that nobody has to learn\n", i);
    fclose(to);
    file_path(path, "%s/text.txt", work);
    file_write(path, text, bytes);
    free(text);
}

void run_rows(const row *rows, size_t n) {
    running slots[SLOTS] = {{.row = NULL}};
    char work[PATH_BYTES];
    size_t started = 0, done = 0, wrong = 0;
    file_path(work, MOE_BUILD_DIR "/tests/host/refusals/work-%ld", (long)getpid());
    file_remove_tree(work);
    file_make_dir(work, 0755);
    write_data(work);
    while (done < n) {
        for (int i = 0; i < SLOTS && started < n; i++)
            if (!slots[i].row) slots[i] = begin(&rows[started], work, started), started++;
        wrong += (size_t)finish_one(slots);
        done++;
    }
    if (!wrong) file_remove_tree(work);
    ck_assert_msg(wrong == 0, "%zu of %zu rows are answered wrongly", wrong, n);
}
