/* moehost import: a recipe from the config.json of a Hugging Face folder, which stays where it is: [model] weights
 * names it. */
#include <errno.h>
#include <io/fs.h>
#include <moe/options.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hf_config.h"
#include "wire.h"

enum { CONFIG_MOST = 1 << 24 }; /* bytes */

typedef struct import {
    const char *given; /* folder as written */
    char *dir;         /* its absolute path */
    char *config;      /* "<given>/config.json" */
    char *out;         /* recipe to write */
    char *text;        /* of config.json */
    uint64_t n;
    char *recipe; /* text to write */
    size_t recipe_bytes;
    hf_config values;
} import;

static int fail(const char *text) {
    fprintf(stderr, "moehost import: %s\n", text);
    return EXIT_CODE_USAGE;
}

static int print_errors(err_list *errs, int code) {
    err_list_print(errs, stderr);
    err_list_clear(errs);
    return code;
}

/* Paths and the text of config.json. */
static int import_open(import *m, const command_args *args) {
    moe_err err = {.size = sizeof err};
    const char *out = command_value(args, "o");
    m->given = args->positional[0];
    m->dir = realpath(m->given, NULL);
    if (!m->dir) {
        fprintf(stderr, "moehost import: %s: %s\n", m->given, strerror(errno));
        return EXIT_CODE_FAILED;
    }
    const char *base = strrchr(m->dir, '/') + 1;
    m->config = fs_join(m->given, "config.json");
    if (out)
        m->out = strdup(out);
    else if (asprintf(&m->out, "%s.ini", *base ? base : "model") < 0)
        m->out = NULL;
    if (!m->config || !m->out) return fail("out of memory");
    if (access(m->out, F_OK) == 0 && !command_flag(args, "overwrite")) {
        fprintf(stderr, "moehost import: %s: is there already; give --overwrite or -o another file\n", m->out);
        return EXIT_CODE_USAGE;
    }
    moe_status status = fs_load(m->config, CONFIG_MOST, &m->text, &m->n, &err);
    if (status) fprintf(stderr, "moehost import: %s\n", err.msg);
    return wire_exit_code(status);
}

static int import_read(import *m) {
    err_list errs = {.n = 0}, notes = {.n = 0};
    bool fits = hf_config_parse(m->text, (size_t)m->n, m->config, &m->values, &notes, &errs);
    for (size_t i = 0; fits && i < notes.n; i++) fprintf(stderr, "moehost: note: %s\n", notes.lines[i]);
    err_list_clear(&notes);
    return print_errors(&errs, fits ? EXIT_CODE_OK : EXIT_CODE_USAGE);
}

/* [run] name, where the file's name without ".ini" would be none: its odd characters become '_'. NULL: needs none. */
static char *run_name(const char *out) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const char *base = strrchr(out, '/') ? strrchr(out, '/') + 1 : out;
    size_t n = strlen(base);
    if (n > 4 && strcmp(base + n - 4, ".ini") == 0) n -= 4;
    char *name = strndup(base, n < 100 ? n : 100);
    int good = name && n && n <= 100 && strspn(name, allowed) == n && name[0] != '.' && name[0] != '-';
    if (!name || good) {
        free(name);
        return NULL;
    }
    for (char *c = name; *c; c++)
        if (!strchr(allowed, *c) || (c == name && (*c == '.' || *c == '-'))) *c = '_';
    return name;
}

/* The recipe as text, and a reading of it: what it says must be a recipe, and the folder must survive. */
static int import_print(import *m) {
    FILE *to = open_memstream(&m->recipe, &m->recipe_bytes);
    char *name = run_name(m->out);
    if (to) hf_config_print(&m->values, m->config, m->dir, name, to);
    free(name);
    if (!to || fclose(to)) return fail("out of memory");
    err_list errs = {.n = 0};
    recipe *r = recipe_parse(m->out, m->recipe, m->recipe_bytes, NULL, 0, 0, &errs);
    size_t n = 0;
    const char *const *weights = r ? recipe_list(r, "model", "weights", &n) : NULL;
    if (!r)
        err_list_add(&errs, "moehost import: %s: nothing is written: the recipe for it would be refused as above",
                     m->dir);
    else if (n != 1 || strcmp(weights[0], m->dir) != 0)
        err_list_add(&errs, "moehost import: %s: a recipe cannot name this folder; rename it", m->dir);
    recipe_destroy(r);
    return print_errors(&errs, err_list_count(&errs) ? EXIT_CODE_USAGE : EXIT_CODE_OK);
}

/* Whole or not at all. */
static int import_write(const import *m) {
    moe_err err = {.size = sizeof err};
    char *part = NULL;
    if (asprintf(&part, "%s.part", m->out) < 0) return fail("out of memory");
    moe_status status = fs_save(part, m->recipe, m->recipe_bytes, &err);
    if (!status && rename(part, m->out)) status = fs_fail(&err, MOE_E_IO, m->out, "%m");
    if (status) {
        fprintf(stderr, "moehost import: %s\n", err.msg);
        unlink(part);
    } else {
        printf("%s: written; fill in [data] train, then moehost check %s\n", m->out, m->out);
    }
    free(part);
    return wire_exit_code(status);
}

int cmd_import(int argc, char **argv) {
    command_args args;
    int code = command_parse("import", argc, argv, &args);
    if (code >= 0) return code;
import m = {.given = NULL };
    code = import_open(&m, &args);
    if (!code) code = import_read(&m);
    if (!code) code = import_print(&m);
    if (!code) code = import_write(&m);
    free(m.recipe);
    free(m.text);
    free(m.out);
    free(m.config);
    free(m.dir);
    return command_finish(code);
}
