/* moehost help [TOPIC]: the overview, one command, or a topic: recipe (from the key tables), plugins, exit-codes. */
#include <string.h>

#include "command.h"
#include "suggest.h"

static const char plugins_text[] =
    "Where plugins are looked for. A name with '/' or '.so' is a file: absolute, or from the recipe's folder;\n"
    "FILE.so#ID picks one of several in a file. Any other name is an id: KIND/ID.so, and KIND/ID-DEVICE.so, under\n"
    "  each folder of MOEHOST_PLUGIN_PATH (absolute, between colons)\n"
    "  ../lib/moehost/plugins and plugins, beside the program\n"
    "and nowhere else. An id in two folders is refused: name the file. A file, or a folder, that others can write is\n"
    "refused (folders with the sticky bit are not). Every file is loaded in a child process first, which may take\n"
    "MOEHOST_PROBE_SECONDS (10). `moehost plugins` lists what there is, `moehost plugins KIND/ID` its options.\n";
static const char codes_text[] =
    "0    done\n"
    "1    the run failed: not a number in the loss, disk full, data or checkpoint unreadable\n"
    "2    usage or recipe error\n"
    "3    plugin missing or refused\n"
    "4    a peer was lost\n"
    "130  interrupted by SIGINT, checkpoint written\n"
    "143  interrupted by SIGTERM, checkpoint written\n";

static int unknown_topic(const char *topic) {
    char hint[96];
    size_t n;
    const command *c = command_table(&n);
    suggest near = suggest_begin(topic);
    for (size_t i = 0; i < n; i++) suggest_offer(&near, c[i].name);
    suggest_offer(&near, "recipe");
    suggest_offer(&near, "exit-codes");
    fprintf(stderr, "moehost help: no topic '%.100s'%s\n", topic, suggest_text(&near, hint, sizeof hint));
    return EXIT_CODE_USAGE;
}

int cmd_help(int argc, char **argv) {
    command_args args;
    int code = command_parse("help", argc, argv, &args);
    if (code >= 0) return code;
    const char *topic = args.n_positional ? args.positional[0] : "";
    bool markdown = command_flag(&args, "markdown");
    if (markdown && strcmp(topic, "recipe") != 0) {
        fprintf(stderr, "moehost help: --markdown goes with the topic 'recipe' only\n");
        return EXIT_CODE_USAGE;
    }
    if (strcmp(topic, "recipe") == 0) {
        recipe_print_reference(stdout, markdown);
    } else if (strcmp(topic, "exit-codes") == 0) {
        fputs(codes_text, stdout);
    } else if (strcmp(topic, "plugins") == 0) {
        command_print_help(command_find("plugins"), stdout);
        printf("\n%s", plugins_text);
    } else if (*topic == '\0') {
        command_print_overview(stdout);
    } else {
        const command *c = command_find(topic);
        if (!c) return unknown_topic(topic);
        command_print_help(c, stdout);
    }
    return command_finish(EXIT_CODE_OK);
}
