/* Comparing run directories byte by byte; see same_run.h. */
#include "same_run.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *load(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    long size = -1;
    if (f && fseek(f, 0, SEEK_END) == 0 && (size = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0)
        text = malloc((size_t)size + 1);
    if (text && fread(text, 1, (size_t)size, f) != (size_t)size) {
        free(text);
        text = NULL;
    }
    if (f) fclose(f);
    if (!text) {
        printf("LOST: cannot read %s\n", path);
        return NULL;
    }
    text[size] = 0;
    *n = (size_t)size;
    return text;
}

/* Cuts ,"name":value out of a line. */
static void drop_field(char *line, const char *name) {
    char key[64];
    snprintf(key, sizeof key, ",\"%s\":", name);
    char *at = strstr(line, key);
    if (!at) return;
    char *end = at + strlen(key);
    end += strcspn(end, ",}");
    memmove(at, end, strlen(end) + 1);
}

static void drop_clock(char *line) {
    static const char *const fields[] = {"step_ms", "tokens_per_s", "model_gflops", "mfu"};
    for (int i = 0; i < 4; i++) drop_field(line, fields[i]);
}

static int same_metrics(const char *a, const char *b, int64_t steps) {
    char path[SAME_PATH], *text[2] = {NULL, NULL}, *rest[2], *line[2];
    size_t n;
    int wrong = 0;
    int64_t lines = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/metrics.jsonl", i ? b : a);
        rest[i] = text[i] = load(path, &n);
        wrong += !text[i];
    }
    while (!wrong) {
        for (int i = 0; i < 2; i++) line[i] = strsep(&rest[i], "\n");
        if (!line[0] || !line[1] || !line[0][0] || !line[1][0]) break;
        for (int i = 0; i < 2; i++) drop_clock(line[i]);
        lines++;
        if (strcmp(line[0], line[1]) == 0) continue;
        printf("LOST: line %lld of metrics:\n  %s\n  %s\n", (long long)lines, line[0], line[1]);
        wrong++;
    }
    if (!wrong && (lines != steps || (line[0] && line[0][0]) || (line[1] && line[1][0]))) {
        printf("LOST: metrics of %s and %s have not %lld lines both\n", a, b, (long long)steps);
        wrong++;
    }
    free(text[0]);
    free(text[1]);
    return wrong;
}

static int same_file(const char *a, const char *b, const char *name) {
    char path[2][SAME_PATH];
    size_t n[2] = {0, 0};
    snprintf(path[0], SAME_PATH, "%s/%s", a, name);
    snprintf(path[1], SAME_PATH, "%s/%s", b, name);
    char *x = load(path[0], &n[0]), *y = load(path[1], &n[1]);
    int same = x && y && n[0] == n[1] && memcmp(x, y, n[0]) == 0;
    if (x && y && !same) printf("LOST: %s and %s differ\n", path[0], path[1]);
    free(x);
    free(y);
    return !same;
}

static int no_dots(const struct dirent *e) {
    return strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
}

/* The names in the folder `name` of both, and what `each` finds under each of them. */
static int same_folder(const char *a, const char *b, const char *name, int depth) {
    char path[2][SAME_PATH], below[SAME_PATH];
    struct dirent **entries[2] = {NULL, NULL};
    int n[2], wrong = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], SAME_PATH, "%s/%s", i ? b : a, name);
        n[i] = scandir(path[i], &entries[i], no_dots, alphasort);
    }
    for (int i = 0; i < n[0] || i < n[1]; i++) {
        const char *x = i < n[0] ? entries[0][i]->d_name : "nothing", *y = i < n[1] ? entries[1][i]->d_name : "nothing";
        if (strcmp(x, y) != 0) {
            printf("LOST: %s holds %s where %s holds %s\n", path[0], x, path[1], y);
            wrong++;
            break;
        }
        snprintf(below, sizeof below, "%s/%s", name, x);
        wrong += depth ? same_folder(a, b, below, depth - 1) : same_file(a, b, below);
    }
    if (n[0] < 1 || n[1] < 1) printf("LOST: nothing in %s or %s\n", path[0], path[1]), wrong++;
    for (int i = 0; i < 2; i++) {
        for (int e = 0; e < n[i]; e++) free(entries[i][e]);
        free(entries[i]);
    }
    return wrong;
}

int same_run(const char *a, const char *b, int64_t steps) {
    return same_metrics(a, b, steps) + same_file(a, b, "recipe.ini") + same_folder(a, b, "ckpt", 1);
}

int distinct_losses(const char *run) {
    enum { MOST = 256 };
    char path[SAME_PATH], losses[MOST][32];
    size_t bytes;
    int n = 0, wrong = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    char *text = load(path, &bytes), *at = text;
    while (at && n < MOST && (at = strstr(at, "\"loss\":")) != NULL) {
        at += strlen("\"loss\":");
        snprintf(losses[n++], sizeof losses[0], "%.*s", (int)strcspn(at, ",}"), at);
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) wrong += strcmp(losses[i], losses[j]) == 0;
    if (wrong || n < 2) printf("losses of %s do not tell its steps apart\n", path);
    free(text);
    return wrong + (n < 2);
}
