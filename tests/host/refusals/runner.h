/* Tables of refusals: each row is a recipe or a command line, given to the real program in a folder of its own, and
 * what the program must answer - exit code, place, words, and how many lines. Two rows run at a time, each in a process
 * group of its own that is ended after 20 seconds. */
#ifndef TESTS_REFUSALS_RUNNER_H
#define TESTS_REFUSALS_RUNNER_H
#include <check.h>
#include <stddef.h>

enum {
    NO_PLACE = -1,  /* .line: the error is about no line */
    ANY_NUMBER = -1 /* .lines: not counted */
};
enum { MOST_PUTS = 4, MOST_WORDS = 8 };

/* In .put, .text, .args and .say, $BAD is the folder of the broken plugins, $BUILD the build folder, $DIR the row's own
 * folder, which is the working directory. The recipe is $DIR/tiny.ini: a small one that is right (runner.c). */
typedef struct row {
    const char *name;
    /* Changes to the recipe, "section: key = value": takes the place of that key's line, or is added to that section.
     */
    const char *put[MOST_PUTS];
    const char *text;  /* instead: the whole recipe. NULL: the small one with the changes */
    size_t text_bytes; /* 0 = strlen(text) */
    const char *args;  /* words between blanks; NULL: "check tiny.ini". "" is no argument at all */
    const char *exe;   /* NULL: $BUILD/moehost */
    const char *path;  /* MOEHOST_PLUGIN_PATH; NULL = unset */
    const char *probe; /* MOEHOST_PROBE_SECONDS; NULL = unset */
    void (*prepare)(const char *dir);
    int disk_full; /* 1: nothing can be written to stdout */
    int code;      /* exit status */
    /* The line of tiny.ini that the error begins with, as tiny.ini:LINE:. 0: the line of put[0], where there is one. */
    int line;
    int lines;                   /* on stderr; 0: one */
    const char *say[MOST_WORDS]; /* all of them on stderr; with code 0: on stdout or stderr */
    const char *not_say;         /* must not be on stderr */
} row;

/* Runs all of them; prints what is wrong with each, then fails if any was. */
void run_rows(const row *rows, size_t n);
#define RUN(rows_) run_rows(rows_, sizeof(rows_) / sizeof(rows_)[0])

/* Each file's tests. */
TCase *ini_tests(void);
TCase *recipe_tests(void);
TCase *option_tests(void);
TCase *plugin_tests(void);
TCase *file_tests(void);
TCase *command_tests(void);

#endif
