/* Reads command lines after the table: getopt_long does the syntax, the table gives names, types and help. */
#include "command.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "suggest.h"
#include "value.h"

enum { MOST_OPTIONS = 32, HELP_INDEX = 1000 };

/* An option whose name is one letter is written with one dash: -o FILE, -oFILE. */
static bool is_letter(const command_option *o) {
    return o->name[0] && !o->name[1];
}
static const char *dashes(const command_option *o) {
    return is_letter(o) ? "-" : "--";
}

/* ---- help ---- */
void command_print_help(const command *c, FILE *to) {
    fprintf(to, "usage: moehost %s %s%s\n%c%s.\n\noptions:\n", c->name, c->args, c->n_options ? " [OPTION]..." : "",
            c->summary[0] - ('a' - 'A'), c->summary + 1);
    for (size_t i = 0; i < c->n_options; i++) {
        const command_option *o = &c->options[i];
        int n = fprintf(to, "  %s%s%s%s", dashes(o), o->name, o->arg ? " " : "", o->arg ? o->arg : "");
        fprintf(to, "%*s  %s\n", n < 28 ? 28 - n : 0, "", o->help);
    }
    fprintf(to, "  %-26s  %s\n", "--help", "this text");
    if (c->more) fprintf(to, "\n%s", c->more);
}

void command_print_overview(FILE *to) {
    size_t n;
    const command *c = command_table(&n);
    fprintf(to, "moehost trains Mixture-of-Experts language models from plugins.\n\nusage: moehost COMMAND ...\n\n");
    for (size_t i = 0; i < n; i++)
        if (!c[i].hidden) fprintf(to, "  %-10s %-16s %s\n", c[i].name, c[i].args, c[i].summary);
    fprintf(to, "  %-10s %-16s %s\n\n", "--version", "", "build, ABI, and what it can read");
    fprintf(to, "Every command has --help.\n");
}

int command_finish(int code) {
    errno = 0;
    if ((fflush(stdout) == 0 && !ferror(stdout)) || code != EXIT_CODE_OK) return code; /* the first reason was said */
    fprintf(stderr, "moehost: standard output: %s\n", errno ? strerror(errno) : "cannot be written");
    return EXIT_CODE_FAILED;
}

/* ---- arguments ---- */
static int usage_error(const command *c, const char *text, const char *hint) {
    fprintf(stderr, "moehost %s: %s%s; see moehost %s --help\n", c->name, text, hint, c->name);
    return EXIT_CODE_USAGE;
}

static int unknown_option(const command *c, const char *arg) {
    char word[64], text[160], hint[96];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(arg + strspn(arg, "-"), "="), arg + strspn(arg, "-"));
    suggest near = suggest_begin(word);
    for (size_t i = 0; i < c->n_options; i++)
        if (!is_letter(&c->options[i])) suggest_offer(&near, c->options[i].name);
    suggest_offer(&near, "help");
    const char *name = suggest_name(&near);
    snprintf(text, sizeof text, "unknown option '%.100s'", arg);
    if (name) snprintf(hint, sizeof hint, "; did you mean '--%.60s'?", name);
    return usage_error(c, text, name ? hint : "");
}

/* Keeps one option; -1, or the exit code after an error. */
static int take_option(command_args *args, const command_option *o, const char *text) {
    char why[700], line[800];
    value_type type;
    typed_value v;
    if (o->type &&
        (!value_type_parse(o->type, true, &type, why, sizeof why) || !value_parse(&type, text, &v, why, sizeof why))) {
        snprintf(line, sizeof line, "%s%s: %s", dashes(o), o->name, why);
        return usage_error(args->command, line, "");
    }
    if (!o->repeats && command_value(args, o->name)) {
        snprintf(line, sizeof line, "%s%s: given twice", dashes(o), o->name);
        return usage_error(args->command, line, "");
    }
    if (args->n_given == COMMAND_VALUES) return usage_error(args->command, "too many options", "");
    args->given[args->n_given].option = o;
    args->given[args->n_given++].text = o->arg ? text : "";
    return -1;
}

static int take_positional(command_args *args, int argc, char **argv, int first) {
    const command *c = args->command;
    char line[300];
    int n = argc - first;
    if (n < c->least) {
        snprintf(line, sizeof line, "%s is missing", c->args);
        return usage_error(c, line, "");
    }
    if (n > c->most) {
        snprintf(line, sizeof line, "one argument too many: '%.200s'", argv[first + c->most]);
        return usage_error(c, line, "");
    }
    for (int i = 0; i < n; i++) args->positional[args->n_positional++] = argv[first + i];
    return -1;
}

/* getopt's tables of a command's options: words by their place, letters by themselves. */
static void make_tables(const command *c, struct option *longs, char *letters) {
    size_t n = 0;
    *letters++ = ':';
    for (size_t i = 0; i < c->n_options; i++) {
        const command_option *o = &c->options[i];
        if (is_letter(o)) {
            *letters++ = o->name[0];
            if (o->arg) *letters++ = ':';
            continue;
        }
        longs[n++] = (struct option){
            .name = o->name, .has_arg = o->arg ? required_argument : no_argument, .val = HELP_INDEX + 1 + (int)i};
    }
    *letters = 0;
    longs[n] = (struct option){.name = "help", .has_arg = no_argument, .val = HELP_INDEX};
}

/* The option that getopt's number stands for, or NULL. */
static const command_option *option_of(const command *c, int number) {
    for (size_t i = 0; i < c->n_options; i++) {
        const command_option *o = &c->options[i];
        if (is_letter(o) ? number == o->name[0] : number == HELP_INDEX + 1 + (int)i) return o;
    }
    return NULL;
}

static int syntax_error(const command *c, int got, const char *arg) {
    char line[300];
    const command_option *o = option_of(c, optopt);
    if (!o) return unknown_option(c, arg);
    snprintf(line, sizeof line, got == ':' ? "%s%s needs a value: %s" : "%s%s takes no value%s", dashes(o), o->name,
             got == ':' ? o->arg : "");
    return usage_error(c, line, "");
}

int command_parse(const char *name, int argc, char **argv, command_args *args) {
    struct option longs[MOST_OPTIONS + 2] = {{0}};
    char letters[2 * MOST_OPTIONS + 2];
    const command *c = command_find(name);
    *args = (command_args){.command = c};
    if (!c || c->n_options > MOST_OPTIONS) {
        fprintf(stderr, "moehost: internal fault: no command '%s'\n", name);
        return EXIT_CODE_USAGE;
    }
    make_tables(c, longs, letters);
    optind = 0; /* getopt's own reset: scan anew, options anywhere */
    opterr = 0;
    for (;;) {
        int before = optind ? optind : 1, index = -1;
        int got = getopt_long(argc, argv, letters, longs, &index);
        if (got == -1) break;
        if (got == HELP_INDEX) {
            command_print_help(c, stdout);
            return command_finish(EXIT_CODE_OK);
        }
        const char *arg = optind > before ? argv[optind - 1] : argv[before];
        if (got == ':' || got == '?') return syntax_error(c, got, arg);
        const command_option *o = option_of(c, got);
        /* getopt takes any unique beginning of a name; scripts that use one break with the next option */
        const char *written = o->arg && optarg == argv[optind - 1] ? argv[optind - 2] : argv[optind - 1];
        size_t length = strcspn(written, "=");
        if (!is_letter(o) && (length != strlen(o->name) + 2 || strncmp(written + 2, o->name, length - 2) != 0))
            return unknown_option(c, written);
        int code = take_option(args, o, optarg);
        if (code >= 0) return code;
    }
    return take_positional(args, argc, argv, optind);
}

const char *command_value(const command_args *args, const char *option) {
    for (int i = args->n_given - 1; i >= 0; i--)
        if (strcmp(args->given[i].option->name, option) == 0) return args->given[i].text;
    return NULL;
}
bool command_flag(const command_args *args, const char *option) {
    return command_value(args, option) != NULL;
}
int64_t command_int(const command_args *args, const char *option, int64_t absent) {
    const char *text = command_value(args, option);
    return text ? strtoll(text, NULL, 10) : absent;
}
double command_float(const command_args *args, const char *option, double absent) {
    const char *text = command_value(args, option);
    return text ? strtod(text, NULL) : absent;
}

/* ---- recipe and loader ---- */
/* One --set, or an option that stands for one. copy, where: owned by the caller. False after an error. */
static bool make_set(const command_option *o, const char *text, recipe_set *set, char **copy, char **where,
                     err_list *errs) {
    char why[256];
    bool direct = strcmp(o->name, "set") == 0;
    int n = direct ? asprintf(copy, "%s", text) : asprintf(copy, "%s=%s", o->sets, text);
    if (n < 0) *copy = NULL;
    if (n < 0 || asprintf(where, "--%s %s", o->name, text) < 0) {
        *where = NULL;
        err_list_add(errs, "--%s: out of memory", o->name);
        return false;
    }
    if (!recipe_split_set(*copy, set, why, sizeof why)) {
        err_list_add(errs, "--set: %s", why);
        return false;
    }
    set->where = *where;
    return true;
}

recipe *command_recipe(const command_args *args, unsigned flags) {
    char *memory[2 * COMMAND_VALUES] = {NULL};
    recipe_set sets[COMMAND_VALUES];
    size_t n_sets = 0;
    err_list errs = {.n = 0};
    recipe *r = NULL;
    for (int i = 0; i < args->n_given; i++) {
        const command_option *o = args->given[i].option;
        if (strcmp(o->name, "set") != 0 && !o->sets) continue;
        if (make_set(o, args->given[i].text, &sets[n_sets], &memory[2 * i], &memory[2 * i + 1], &errs)) n_sets++;
    }
    if (err_list_count(&errs) == 0) r = recipe_load(args->positional[0], sets, n_sets, flags, &errs);
    err_list_print(&errs, stderr);
    err_list_clear(&errs);
    for (size_t i = 0; i < 2 * COMMAND_VALUES; i++) free(memory[i]);
    return r;
}

loader *command_loader(void) {
    loader *l = NULL;
    moe_err err = {.size = sizeof err};
    unsigned probe_ms = 0;
    const char *seconds = getenv("MOEHOST_PROBE_SECONDS");
    if (seconds && *seconds) {
        value_type type;
        typed_value v;
        char why[256];
        if (!value_type_parse("float 0.01..3600", false, &type, why, sizeof why) ||
            !value_parse(&type, seconds, &v, why, sizeof why)) {
            fprintf(stderr, "moehost: MOEHOST_PROBE_SECONDS: %s\n", why);
            return NULL;
        }
        probe_ms = (unsigned)(v.f * 1000);
    }
    loader_cfg cfg = {.plugin_path = getenv("MOEHOST_PLUGIN_PATH"), .probe_ms = probe_ms};
    if (loader_create(&l, &cfg, &err) == MOE_OK) return l;
    fprintf(stderr, "moehost: %s\n", err.msg);
    return NULL;
}

int command_main(int argc, char **argv) {
    const command *c = command_find(argv[1]);
    if (c) return c->run(argc - 1, argv + 1);
    char hint[96];
    size_t n;
    const command *all = command_table(&n);
    suggest near = suggest_begin(argv[1]);
    for (size_t i = 0; i < n; i++)
        if (!all[i].hidden) suggest_offer(&near, all[i].name);
    fprintf(stderr, "moehost: unknown %s '%.100s'%s; see moehost help\n", argv[1][0] == '-' ? "option" : "command",
            argv[1], suggest_text(&near, hint, sizeof hint));
    return EXIT_CODE_USAGE;
}
