/* Finds the files that a name can mean, and picks the one descriptor that it does mean. */
#include "loader.h"

#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <moe/options.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "handshake.h"
#include "loader_impl.h"
#include "probe.h"
#include "suggest.h"

/* ---- set-up ---- */
static bool add_folder(loader *l, const char *path, size_t n) {
    char real[PATH_MAX];
    char *copy = strndup(path, n);
    if (!copy || l->n_folders == LOADER_FOLDERS) {
        free(copy);
        return false;
    }
    if (realpath(copy, real)) { /* one folder under two names is searched once */
        for (size_t i = 0; i < l->n_folders; i++)
            if (strcmp(l->folders[i], real) == 0) {
                free(copy);
                return true;
            }
        free(copy);
        copy = strdup(real);
        if (!copy) return false;
    }
    l->folders[l->n_folders++] = copy;
    return true;
}

static moe_status add_folders(loader *l, const loader_cfg *cfg, moe_err *err) {
    bool ok = true;
    for (const char *p = cfg->plugin_path; p && *p && ok;) {
        size_t n = strcspn(p, ":");
        if (n > 0 && *p != '/')
            return moe_fail(err, MOE_E_ARG, "MOEHOST_PLUGIN_PATH: '%.*s' is not an absolute path", (int)n, p);
        if (n > 0) ok = add_folder(l, p, n);
        p += n + (p[n] == ':');
    }
    char path[PATH_MAX];
    char *copy = strdup(l->exe);
    const char *dir = copy ? dirname(copy) : "/";
    int above = (int)(strrchr(dir, '/') - dir); /* exe is a real path: dir/.. without its last part */
    int n = snprintf(path, sizeof path, "%.*s/lib/moehost/plugins", above, dir);
    ok = ok && copy && n < (int)sizeof path && add_folder(l, path, strlen(path));
    n = snprintf(path, sizeof path, "%s/plugins", dir);
    ok = ok && n < (int)sizeof path && add_folder(l, path, strlen(path));
    free(copy);
    return ok ? MOE_OK : moe_fail(err, MOE_E_ARG, "out of memory, or more than %d folders of plugins", LOADER_FOLDERS);
}

moe_status loader_create(loader **out, const loader_cfg *cfg, moe_err *err) {
    char real[PATH_MAX];
    loader *l = calloc(1, sizeof *l);
    if (!l) return moe_fail(err, MOE_E_NOMEM, "out of memory for the plugin loader");
    l->probe_ms = cfg->probe_ms ? cfg->probe_ms : PROBE_DEFAULT_MS;
    const char *exe = cfg->exe ? cfg->exe : "/proc/self/exe";
    moe_status status = MOE_OK;
    if (!realpath(exe, real) || !(l->exe = strdup(real)))
        status = moe_fail(err, MOE_E_ARG, "%.300s: %s", exe, strerror(errno));
    else
        status = add_folders(l, cfg, err);
    if (status == MOE_OK)
        *out = l;
    else
        loader_destroy(l);
    return status;
}

void loader_destroy(loader *l) {
    if (!l) return;
    registry_clear(&l->registry);
    for (loaded_file *f = l->files; f;) {
        loaded_file *next = f->next;
        free(f->path);
        free(f);
        f = next;
    }
    for (size_t i = 0; i < l->n_folders; i++) free(l->folders[i]);
    free(l->exe);
    free(l);
}

const char *loader_folder(const loader *l, size_t i) {
    return i < l->n_folders ? l->folders[i] : NULL;
}

/* ---- one search ---- */
typedef struct search {
    loader *l;
    const loader_request *q;
    const char *id; /* NULL: the file's only one of the kind */
    const registry_entry *best;
    int match;
    size_t n_best; /* equally good ones, in different files or of different ids */
    bool refused;
    const char *other; /* the device of one that is for another; NULL = none was seen */
    char *report;      /* every place and what was there */
    size_t report_bytes;
    FILE *to;
} search;

static void note(search *s, const char *path, const char *what) {
    fprintf(s->to, "%s%s: %s", ftell(s->to) > 0 ? "; " : "", path, what);
}

/* Looks at one path. */
static void try_file(search *s, const char *path) {
    const loaded_file *f = loader_open(s->l, path);
    if (!f) {
        note(s, path, "absent");
        return;
    }
    if (!f->ok) {
        s->refused = true;
        note(s, path, f->why);
        return;
    }
    int matched = 0;
    for (const registry_entry *e = s->l->registry.first; e; e = e->next) {
        if (strcmp(e->path, f->path) != 0 || strcmp(e->desc->kind, s->q->kind) != 0) continue;
        if (s->id && strcmp(e->desc->id, s->id) != 0) continue;
        int match = registry_match(e->desc, s->q->device);
        if (match == 0) s->other = e->desc->device;
        if (match == 0 || e == s->best) continue;
        char what[160];
        snprintf(what, sizeof what, "holds %s/%s %s for device %s", s->q->kind, e->desc->id, e->desc->version,
                 e->desc->device);
        note(s, f->path, what);
        matched = match;
        if (match > s->match) s->n_best = 0;
        if (match < s->match) continue;
        s->match = match;
        s->best = e;
        s->n_best++;
    }
    if (matched == 0 && !(s->best && strcmp(s->best->path, f->path) == 0))
        note(s, f->path, s->id ? "holds no such id for this device" : "holds nothing of this kind for this device");
}

static void try_path(search *s, const char *name) {
    char path[PATH_MAX];
    const char *hash = strstr(name, ".so#");
    int n = (int)(hash ? (size_t)(hash + 3 - name) : strlen(name));
    s->id = hash ? hash + 4 : NULL;
    if (name[0] != '/' && !s->q->dir) {
        note(s, name, "a relative path, and there is no recipe that it could start from");
        return;
    }
    int need = name[0] == '/' ? snprintf(path, sizeof path, "%.*s", n, name)
                              : snprintf(path, sizeof path, "%s/%.*s", s->q->dir, n, name);
    if (need >= (int)sizeof path)
        note(s, "the path", "too long");
    else
        try_file(s, path);
}

static void try_folders(search *s) {
    char path[PATH_MAX];
    s->id = s->q->name;
    for (size_t i = 0; i < s->l->n_folders; i++)
        for (int with_device = 0; with_device < (s->q->device ? 2 : 1); with_device++) {
            int n = snprintf(path, sizeof path, "%s/%s/%s%s%s.so", s->l->folders[i], s->q->kind, s->q->name,
                             with_device ? "-" : "", with_device ? s->q->device : "");
            if (n < (int)sizeof path && (!with_device || access(path, F_OK) == 0)) try_file(s, path);
        }
}

/* The nearest file name of the kind in all folders. */
static void offer_files(const loader *l, const char *kind, suggest *near, char *best, size_t bytes) {
    char path[PATH_MAX];
    for (size_t i = 0; i < l->n_folders; i++) {
        int n = snprintf(path, sizeof path, "%s/%s", l->folders[i], kind);
        DIR *dir = n < (int)sizeof path ? opendir(path) : NULL;
        for (struct dirent *d; dir && (d = readdir(dir));) {
            char *dot = strrchr(d->d_name, '.');
            if (!dot || strcmp(dot, ".so") != 0) continue;
            *dot = '\0';
            suggest_offer(near, d->d_name);
            if (near->best == d->d_name) { /* the entry's memory goes with the directory */
                snprintf(best, bytes, "%s", d->d_name);
                near->best = best;
            }
        }
        if (dir) closedir(dir);
    }
}

static void explain(const search *s, err_list *errs) {
    char best[256] = "", hint[320] = "", device[128] = "";
    const loader_request *q = s->q;
    const char *what = s->refused ? "refused" : s->n_best > 1 ? "ambiguous; name one by its path" : "not found";
    if (!s->best && !s->refused && !s->other) {
        suggest near = suggest_begin(q->name);
        offer_files(s->l, q->kind, &near, best, sizeof best);
        suggest_text(&near, hint, sizeof hint);
    }
    if (!s->best && !s->refused && s->other) {
        if (s->id && strcmp(s->id, q->name) == 0) /* by id, not by path */
            snprintf(hint, sizeof hint, "; there is no %.20s/%.200s-%.60s.so", q->kind, q->name, q->device);
        err_list_add(errs, "%s: plugin %s '%s' is for device %s, and the device is %s%s (%s)", q->where, q->kind,
                     q->name, s->other, q->device, hint, s->report);
        return;
    }
    if (q->device && strcmp(q->device, "any") != 0) snprintf(device, sizeof device, " for device %.90s", q->device);
    err_list_add(errs, "%s: plugin %s '%s'%s %s%s (%s)", q->where, q->kind, q->name, device, what, hint, s->report);
}

bool loader_find(loader *l, const loader_request *request, loader_found *found, err_list *errs) {
    search s = {.l = l, .q = request};
    s.to = open_memstream(&s.report, &s.report_bytes);
    if (!s.to) {
        err_list_add(errs, "%s: out of memory", request->where);
        return false;
    }
    size_t length = strlen(request->name);
    bool path = strchr(request->name, '/') || strstr(request->name, ".so#") ||
                (length > 3 && strcmp(request->name + length - 3, ".so") == 0);
    if (path)
        try_path(&s, request->name);
    else
        try_folders(&s);
    fclose(s.to);
    bool ok = s.n_best == 1 && !s.refused;
    if (ok) {
        *found = (loader_found){.desc = s.best->desc, .vtable = s.best->vtable, .path = s.best->path};
        for (const loaded_file *f = l->files; f; f = f->next)
            if (strcmp(f->path, found->path) == 0) found->hash = f->hash;
    } else {
        explain(&s, errs);
    }
    free(s.report);
    return ok;
}

/* ---- everything there is ---- */
static int is_plugin(const struct dirent *d) {
    size_t n = strlen(d->d_name);
    return n > 3 && strcmp(d->d_name + n - 3, ".so") == 0;
}

static void scan_folder(loader *l, const char *folder, const char *kind, const char *id, err_list *errs) {
    char path[PATH_MAX];
    struct dirent **names = NULL;
    int room = snprintf(path, sizeof path, "%s/%s", folder, kind);
    int n = room < (int)sizeof path ? scandir(path, &names, is_plugin, alphasort) : 0;
    for (int i = 0; i < n; i++) {
        size_t length = id ? strlen(id) : 0;
        bool wanted = !id || (strncmp(names[i]->d_name, id, length) == 0 && strchr(".-", names[i]->d_name[length]));
        room = snprintf(path, sizeof path, "%s/%s/%s", folder, kind, names[i]->d_name);
        const loaded_file *f = wanted && room < (int)sizeof path ? loader_open(l, path) : NULL;
        if (f && !f->ok) err_list_add(errs, "%s: plugin refused: %s", path, f->why);
        free(names[i]);
    }
    free(names);
}

void loader_scan(loader *l, const char *kind, const char *id, err_list *errs) {
    for (size_t i = 0; i < l->n_folders; i++)
        for (size_t k = 0; handshake_kind(k); k++)
            if (!kind || strcmp(kind, handshake_kind(k)) == 0)
                scan_folder(l, l->folders[i], handshake_kind(k), id, errs);
}

void loader_scan_file(loader *l, const char *path, err_list *errs) {
    const loaded_file *f = loader_open(l, path);
    if (!f)
        err_list_add(errs, "%s: there is no such file", path);
    else if (!f->ok)
        err_list_add(errs, "%s: plugin refused: %s", path, f->why);
}

void loader_each(const loader *l, void (*visit)(void *ctx, const loader_found *found), void *ctx) {
    for (const registry_entry *e = l->registry.first; e; e = e->next) {
        loader_found found = {.desc = e->desc, .vtable = e->vtable, .path = e->path};
        for (const loaded_file *f = l->files; f; f = f->next)
            if (strcmp(f->path, e->path) == 0) found.hash = f->hash;
        visit(ctx, &found);
    }
}
