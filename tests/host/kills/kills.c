/* kills MOEHOST WORKDIR N: ends training N times by SIGKILL - at moments spread over the run, and while the directory
 * of a checkpoint is being written or removed - and resumes it until it is done; then the run must equal one that was
 * never ended. N = "signals": SIGTERM and SIGINT while a checkpoint is being written. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "same_run.h"

enum { STEPS = 24, KILLS_A_RUN = 5, LIMIT_S = 120 };

/* ---- small things ---- */
static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void wait_for(double s) {
    nanosleep(&(struct timespec){(time_t)s, (long)((s - (double)(time_t)s) * 1e9)}, NULL);
}

static void fail(const char *what) {
    printf("FAILED: %s\n", what);
    exit(1);
}

static void check(int ok, const char *what) {
    if (!ok) fail(what);
}

static unsigned next_random(void) { /* the same moments in every run, as far as clocks allow */
    static unsigned state = 20240917;
    state = state * 1103515245u + 12345u;
    return state >> 8;
}
static double next_fraction(void) {
    return (next_random() & 0xffff) / 65536.0;
}

static void remove_tree(const char *path) {
    char command[SAME_PATH + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    check(system(command) == 0, command);
}

/* ---- what is trained ---- */
static const struct {
    const char *name, *precision, *lr, *bias;
    int ranks, every; /* steps between checkpoints */
} variants[] = {
    {"fp32, one rank", "fp32", "0.01", "true", 1, 2},
    {"bf16, two ranks", "bf16", "0.01", "true", 2, 3},
    {"nothing learnt, so that the loss shows the batch", "fp32", "0", "false", 1, 2},
};
enum { VARIANTS = sizeof variants / sizeof variants[0], ORDER_OF_DATA = 2 };

static void write_recipe(int v) {
    FILE *f = fopen("tiny.ini", "w");
    check(f != NULL, "tiny.ini");
    fprintf(f,
            "[run]\nsteps = %d\neval_every = 4\neval_batches = 2\n[data]\ntrain = text.txt\nseq_len = 32\n"
            "[model]\nlayers = 2\nhidden = 64\nheads = 4\nkv_heads = 2\nexperts = 8\ntop_k = 2\nexpert_ffn = 64\n"
            "[router]\nexpert_bias = %s\naux_coef = 0.01\n[batch]\nglobal = 4\nmicro = 2\n"
            "[precision]\nplugin = %s\n[comm]\nranks = %d\n[optimizer]\nlr = %s\n"
            "[checkpoint]\nevery = %d\nkeep = 2\nkeep_every = 6\n",
            STEPS, variants[v].bias, variants[v].precision, variants[v].ranks, variants[v].lr, variants[v].every);
    check(fclose(f) == 0, "tiny.ini");
}

static void write_text(void) {
    FILE *f = fopen("text.txt", "w");
    check(f != NULL, "text.txt");
    for (long i = 1; i <= 400; i++)
        fprintf(f, "the quick brown fox number %ld jumps over the lazy dog %ld\n", i, i * i * 7919 % 10007);
    check(fclose(f) == 0, "text.txt");
}

/* ---- one process; run directories are whole/run and cut/run, so that both have --out run ---- */
static const char *program;
static double started; /* of the last process, CLOCK_REALTIME as files have it */

static pid_t start(const char *dir, int resume) {
    mkdir(dir, 0755);
    started = seconds(CLOCK_REALTIME);
    pid_t pid = fork();
    check(pid >= 0, "fork");
    if (pid) return pid;
    int out = chdir(dir) == 0 ? open("out.txt", O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
    if (out < 0) _exit(127);
    dup2(out, 1);
    dup2(out, 2);
    execl(program, program, "run", "../tiny.ini", "--out", "run", resume ? "--resume" : NULL, NULL);
    _exit(127);
}

/* 1 when it has ended; then its status. */
static int ended(pid_t pid, int *status) {
    check(seconds(CLOCK_REALTIME) - started < LIMIT_S, "a process has not ended in time");
    return waitpid(pid, status, WNOHANG) == pid;
}

static int join(pid_t pid) {
    int status = 0;
    while (!ended(pid, &status)) wait_for(0.002);
    return status;
}

static void expect_done(int status) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    if (system("tail -n 5 */out.txt")) printf("no output\n");
    printf("status %d\n", status);
    fail("a run did not end by itself with 0");
}

/* ---- what is in cut/run now ---- */
enum { EARLY, NO_CHECKPOINT, WRITE, PRUNE, BETWEEN, PLACES };
static const char *const places[PLACES] = {"before the run had begun", "before its first checkpoint",
                                           "inside the write of a checkpoint", "inside the removal of an old one",
                                           "between"};

/* Steps of the newest checkpoint, and of those that this process is making or removing; -1: none. */
typedef struct state {
    long newest, writing, removing;
} state;

static state look(void) {
    state s = {-1, -1, -1};
    long step;
    DIR *d = opendir("cut/run/ckpt");
    if (!d) return s;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (sscanf(e->d_name, "step-%ld", &step) == 1 && step > s.newest) s.newest = step;
    rewinddir(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        struct stat st;
        if (sscanf(e->d_name, ".tmp-step-%ld", &step) != 1 || fstatat(dirfd(d), e->d_name, &st, 0) != 0) continue;
        if ((double)st.st_ctim.tv_sec + 1e-9 * (double)st.st_ctim.tv_nsec < started) continue; /* an earlier one's */
        *(step > s.newest ? &s.writing : &s.removing) = step;
    }
    closedir(d);
    return s;
}

static int place(void) {
    state s = look();
    if (access("cut/run/recipe.ini", F_OK) != 0) return EARLY;
    if (s.writing >= 0) return WRITE;
    if (s.removing >= 0) return PRUNE;
    return s.newest < 0 ? NO_CHECKPOINT : BETWEEN;
}

/* ---- aims ---- */
/* Waits until a checkpoint is being written (or removed) for the nth time. 0: the process ended before. */
static int wait_for_write(pid_t pid, int removal, int nth, int *status) {
    long last = -1;
    for (;;) {
        state s = look();
        long now = removal ? s.removing : s.writing;
        if (now >= 0 && now != last && --nth <= 0) return 1;
        if (now >= 0) last = now;
        if (ended(pid, status)) return 0;
        wait_for(0.0001);
    }
}

/* Waits for the moment; 0: the process ended before. */
static int wait_for_aim(pid_t pid, int aim, double whole_s, int *status) {
    static const double spread[] = {0, 0.0003, 0.001, 0.002, 0.004, 0.008};
    if (aim == BETWEEN) {
        wait_for(next_fraction() * 1.05 * whole_s);
        return !ended(pid, status);
    }
    if (!wait_for_write(pid, aim == PRUNE, 1 + (int)(next_random() % 3), status)) return 0;
    wait_for(spread[next_random() % (aim == PRUNE ? 2 : 6)]);
    return !ended(pid, status);
}

/* ---- kills ---- */
typedef struct tally {
    int kills, aimed, runs, lost, hits[PLACES];
    double whole_s;
} tally;

static int compare(tally *t) {
    t->runs++;
    t->lost += same_run("whole/run", "cut/run", STEPS);
    return t->lost;
}

/* One run from its beginning to its end, killed up to `most` times; those aimed at are taken in turn. */
static void killed_run(tally *t, int most) {
    static const int aims[] = {BETWEEN, WRITE, BETWEEN, WRITE, PRUNE};
    remove_tree("cut");
    for (int kills = 0;;) {
        int status = 0;
        pid_t pid = start("cut", access("cut/run/recipe.ini", F_OK) == 0);
        if (kills == most) {
            expect_done(join(pid));
            break;
        }
        if (!wait_for_aim(pid, aims[t->aimed++ % 5], t->whole_s, &status)) {
            expect_done(status);
            break;
        }
        kill(pid, SIGKILL);
        check(waitpid(pid, &status, 0) == pid, "waitpid");
        if (!WIFSIGNALED(status)) { /* it was about to end */
            expect_done(status);
            break;
        }
        t->hits[place()]++;
        t->kills++;
        kills++;
    }
    compare(t);
}

static void kill_variant(tally *t, int v, int kills) {
    remove_tree("whole");
    write_recipe(v);
    double begin = seconds(CLOCK_MONOTONIC);
    expect_done(join(start("whole", 0)));
    t->whole_s = seconds(CLOCK_MONOTONIC) - begin;
    if (v == ORDER_OF_DATA) t->lost += distinct_losses("whole/run");
    for (int end = t->kills + kills; t->kills < end;) {
        int left = end - t->kills;
        killed_run(t, left < KILLS_A_RUN ? left : KILLS_A_RUN);
    }
    printf("%s: %.2f s when whole; so far %d kills in %d runs, %d things lost\n", variants[v].name, t->whole_s,
           t->kills, t->runs, t->lost);
}

static int kills(int n) {
    tally t = {0};
    double begin = seconds(CLOCK_MONOTONIC);
    for (int v = 0; v < VARIANTS; v++) kill_variant(&t, v, n / VARIANTS + (v < n % VARIANTS));
    for (int i = 0; i < PLACES; i++) printf("  %2d %s\n", t.hits[i], places[i]);
    printf("kills: %d; losses: %d; %.0f s\n", t.kills, t.lost, seconds(CLOCK_MONOTONIC) - begin);
    if (t.hits[WRITE] * 10 < n) fail("too few kills hit the write of a checkpoint to show anything");
    return t.lost != 0;
}

/* ---- signals ---- */
/* Starts a run and waits until its second checkpoint is being written; that step. */
static pid_t start_to_write(long *step) {
    int status = 0;
    remove_tree("cut");
    pid_t pid = start("cut", 0);
    check(wait_for_write(pid, 0, 2, &status), "the run ended before its second checkpoint");
    *step = look().writing;
    if (*step < 0) *step = look().newest;
    return pid;
}

static int has_checkpoint(long step) {
    char path[SAME_PATH];
    snprintf(path, sizeof path, "cut/run/ckpt/step-%08ld/meta.json", step);
    return access(path, F_OK) == 0;
}

/* SIGTERM: the checkpoint is finished, a further step ends the run with its own, 143. */
static void terminate(tally *t) {
    long step;
    pid_t pid = start_to_write(&step);
    kill(pid, SIGTERM);
    int status = join(pid);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 143, "SIGTERM does not end the run with 143");
    check(has_checkpoint(step), "SIGTERM: the checkpoint being written was not finished");
    check(look().newest > step, "SIGTERM: the last step is in no checkpoint");
    check(look().writing < 0, "SIGTERM: something is left of the write");
    expect_done(join(start("cut", 1)));
    compare(t);
}

/* Waits until the process has taken the signal (two that are pending are one), for a second at most. */
static void wait_until_taken(pid_t pid, int sig) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%ld/status", (long)pid);
    for (int i = 0; i < 1000; i++) {
        FILE *f = fopen(path, "r");
        unsigned long long pending = 0, shared = 0;
        while (f && fgets(line, sizeof line, f)) {
            sscanf(line, "SigPnd: %llx", &pending);
            sscanf(line, "ShdPnd: %llx", &shared);
        }
        if (f) fclose(f);
        if (!((pending | shared) >> (sig - 1) & 1)) return;
        wait_for(0.001);
    }
}

/* Two SIGINTs: the end at once, and the earlier checkpoint whole. */
static void interrupt_twice(tally *t) {
    long step;
    pid_t pid = start_to_write(&step);
    kill(pid, SIGINT);
    wait_until_taken(pid, SIGINT);
    double begin = seconds(CLOCK_MONOTONIC);
    kill(pid, SIGINT);
    int status = join(pid);
    check(seconds(CLOCK_MONOTONIC) - begin < 2, "two SIGINTs do not end the run at once");
    check(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT, "two SIGINTs do not end the run by SIGINT");
    check(look().newest >= 2, "two SIGINTs: the earlier checkpoint is not there");
    expect_done(join(start("cut", 1)));
    compare(t);
}

static int signals(void) {
    tally t = {0};
    signal(SIGINT, SIG_DFL); /* a shell's background job ignores it, and so would the runs */
    write_recipe(0);
    remove_tree("whole");
    expect_done(join(start("whole", 0)));
    for (int i = 0; i < 2; i++) {
        terminate(&t);
        interrupt_twice(&t);
    }
    printf("SIGTERM and two SIGINTs, twice each; losses: %d\n", t.lost);
    return t.lost != 0;
}

int main(int argc, char **argv) {
    static char absolute[4096];
    if (argc != 4) {
        fprintf(stderr, "usage: kills MOEHOST WORKDIR N|signals\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    program = realpath(argv[1], absolute);
    check(program != NULL, argv[1]);
    remove_tree(argv[2]);
    check(mkdir(argv[2], 0755) == 0 && chdir(argv[2]) == 0, argv[2]);
    write_text();
    return strcmp(argv[3], "signals") == 0 ? signals() : kills(atoi(argv[3]));
}
