/* The command line: one table of commands and options (commands.c) that reads arguments, makes every help text, and
 * knows the nearest name of a mistyped one. A command is a function of argc and argv (argv[0] is its name) that calls
 * command_parse first and returns an exit code. */
#ifndef HOST_COMMAND_H
#define HOST_COMMAND_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "loader.h"
#include "recipe.h"

enum { /* exit codes, a contract with scripts */
       EXIT_CODE_OK = 0,
       EXIT_CODE_FAILED = 1, /* the run failed: not a number, disk full, data or checkpoint unreadable */
       EXIT_CODE_USAGE = 2,  /* command line or recipe */
       EXIT_CODE_PLUGIN = 3, /* missing or refused */
       EXIT_CODE_PEER = 4,   /* a peer was lost */
       EXIT_CODE_SIGINT = 130,
       EXIT_CODE_SIGTERM = 143
};

typedef struct command_option {
    const char *name; /* "steps": --steps; one letter, "o": -o */
    const char *arg;  /* "N"; NULL = a flag */
    const char *type; /* grammar of value.h, checked; NULL for a flag */
    bool repeats;     /* may be given several times */
    const char *sets; /* "run.steps": stands for an override of the recipe; NULL = does not */
    const char *help;
} command_option;

typedef struct command {
    const char *name, *args, *summary; /* args: "RECIPE" */
    int least, most;                   /* positional arguments */
    int (*run)(int argc, char **argv);
    const command_option *options; /* [n_options] */
    size_t n_options;
    bool hidden;
    const char *more; /* lines after the options in the help; NULL = none */
} command;

enum { COMMAND_VALUES = 256, COMMAND_POSITIONALS = 64 };
typedef struct command_args {
    const command *command;
    char *positional[COMMAND_POSITIONALS];
    int n_positional;
    struct {
        const command_option *option;
        const char *text; /* borrowed from argv; "" for a flag */
    } given[COMMAND_VALUES];
    int n_given;
} command_args;

/* All commands of this build; hidden ones too. */
const command *command_table(size_t *n);
const command *command_find(const char *name);

/* Runs the command that argv names, and returns the exit code. For main. */
int command_main(int argc, char **argv);

/* Reads the arguments of a command after its row in the table. -1: go on; else the exit code to return (0 after --help,
 * 2 after an error, which is on stderr). Options may stand before, between and after positional arguments; "--" ends
 * them; they are not abbreviated. */
int command_parse(const char *name, int argc, char **argv, command_args *args);
/* Last value of an option, or NULL when it was not given. */
const char *command_value(const command_args *args, const char *option);
bool command_flag(const command_args *args, const char *option);
int64_t command_int(const command_args *args, const char *option, int64_t absent);
double command_float(const command_args *args, const char *option, double absent);

/* The recipe that positional[0] names, with --set and every option that has `sets`. NULL after errors, which are on
 * stderr: return EXIT_CODE_USAGE. flags: RECIPE_NEED_DATA. */
recipe *command_recipe(const command_args *args, unsigned flags);
/* The plugin loader of this program and environment (MOEHOST_PLUGIN_PATH, MOEHOST_PROBE_SECONDS). NULL after an error,
 * which is on stderr: return EXIT_CODE_USAGE. */
loader *command_loader(void);

/* Usage, options and meaning of one command; the list of all. */
void command_print_help(const command *c, FILE *to);
void command_print_overview(FILE *to);
/* Flushes stdout; EXIT_CODE_FAILED with a line on stderr when what was printed could not be written, else code. */
int command_finish(int code);

/* The commands, a file cmd_<name>.c each. */
int cmd_run(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_bench_dispatch(const command_args *args); /* bench dispatch: no command of its own */
int cmd_eval(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_import(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_probe(int argc, char **argv);
int cmd_plugins(int argc, char **argv);
int cmd_help(int argc, char **argv);

#endif
