/* moehost plugins [KIND[/ID]|FILE] [--json]: every plugin that the loader finds, or those of one file, with its
 * options. A refused file is a line on stderr and exit code 3. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "handshake.h"
#include "suggest.h"

typedef struct listing {
    const char *kind, *id; /* NULL = all */
    char *file;            /* as it was given, without #ID; NULL = all in the folders */
    size_t n;
    json_t *array; /* NULL: plain text */
    bool failed;   /* out of memory */
} listing;

static json_t *describe_options(const moe_desc *d) {
    json_t *options = json_array();
    for (uint32_t i = 0; i < d->n_options; i++) {
        const moe_option *o = &d->options[i];
        json_array_append_new(options, json_pack("{s:s, s:s, s:s?, s:s}", "key", o->key, "type", o->type, "default",
                                                 o->dflt, "help", o->help));
    }
    return options;
}

static json_t *describe_flags(const moe_desc *d) {
    static const char *const names[] = {"async", "host_counts", "deterministic", "graph_safe"};
    json_t *flags = json_array();
    for (uint32_t i = 0; i < 4; i++)
        if (d->flags & (1u << i)) json_array_append_new(flags, json_string(names[i]));
    return flags;
}

static void add_json(listing *list, const loader_found *f) {
    char hash[24];
    const moe_desc *d = f->desc;
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)f->hash);
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:o}", "kind", d->kind, "id", d->id, "device",
                  d->device, "version", d->version, "vendor", d->vendor, "license", d->license, "summary", d->summary,
                  "path", f->path, "hash", hash, "flags", describe_flags(d), "options", describe_options(d));
    if (!o || json_array_append_new(list->array, o) != 0) list->failed = true;
}

static void print_options(const moe_desc *d) {
    for (uint32_t i = 0; i < d->n_options; i++) {
        const moe_option *o = &d->options[i];
        printf("    %-20s %-28s %-12s %s\n", o->key, o->type, o->dflt ? o->dflt : "required", o->help);
    }
    if (d->n_options == 0) printf("    no options\n");
}

static void visit(void *ctx, const loader_found *f) {
    listing *list = ctx;
    if (list->kind && strcmp(list->kind, f->desc->kind) != 0) return;
    if (list->id && strcmp(list->id, f->desc->id) != 0) return;
    list->n++;
    if (list->array) {
        add_json(list, f);
        return;
    }
    printf("%s/%s  %s, device %s, %s\n    %s\n    %s, hash %016llx\n", f->desc->kind, f->desc->id, f->desc->version,
           f->desc->device, f->desc->vendor, f->desc->summary, f->path, (unsigned long long)f->hash);
    if (list->id || list->file) print_options(f->desc);
}

static bool known_kind(const char *kind) {
    char hint[96];
    suggest near = suggest_begin(kind);
    for (size_t i = 0; handshake_kind(i); i++) {
        if (strcmp(handshake_kind(i), kind) == 0) return true;
        suggest_offer(&near, handshake_kind(i));
    }
    fprintf(stderr, "moehost plugins: unknown kind '%.60s'%s\n", kind, suggest_text(&near, hint, sizeof hint));
    return false;
}

static bool is_kind(const char *text, size_t n) {
    for (size_t i = 0; handshake_kind(i); i++)
        if (strlen(handshake_kind(i)) == n && strncmp(handshake_kind(i), text, n) == 0) return true;
    return false;
}

static bool is_library(const char *text) {
    size_t n = strlen(text);
    return strstr(text, ".so#") || (n > 3 && strcmp(text + n - 3, ".so") == 0);
}

/* "mine.so#other" -> file, id. */
static void take_file(char *text, listing *list) {
    char *hash = strstr(text, ".so#");
    list->file = text;
    if (hash) list->id = hash + 4;
    if (hash) hash[3] = '\0';
}

/* Fills what was asked for: "router/topk" -> kind, id; "router/./mine.so" -> kind, file; "./mine.so" -> file. A path is
 * known as in a recipe, by '/' or '.so'; one whose first folder is a kind needs ./ before it. */
static bool split_request(char *text, listing *list) {
    char *slash = strchr(text, '/');
    if (!is_kind(text, strcspn(text, "/")) && (strchr("./", *text) || is_library(text))) {
        take_file(text, list);
        return true;
    }
    if (slash) *slash = '\0';
    if (!known_kind(text)) return false;
    list->kind = text;
    if (!slash || !slash[1]) return true;
    if (strchr(slash + 1, '/') || is_library(slash + 1))
        take_file(slash + 1, list);
    else
        list->id = slash + 1;
    return true;
}

static void scan(listing *list, loader *l, err_list *errs) {
    if (list->file)
        loader_scan_file(l, list->file, errs); /* nothing else is loaded */
    else
        loader_scan(l, list->kind, list->id, errs);
    loader_each(l, visit, list);
}

static void print_json(listing *list, const loader *l, const err_list *errs) {
    json_t *folders = json_array(), *refused = json_array();
    for (size_t i = 0; loader_folder(l, i); i++) json_array_append_new(folders, json_string(loader_folder(l, i)));
    for (size_t i = 0; i < errs->n; i++) json_array_append_new(refused, json_string(errs->lines[i]));
    json_t *root = json_pack("{s:O, s:o, s:o}", "plugins", list->array, "refused", refused, "folders", folders);
    if (!root || json_dumpf(root, stdout, JSON_INDENT(2)) != 0) list->failed = true;
    putchar('\n');
    json_decref(root);
}

int cmd_plugins(int argc, char **argv) {
    command_args args;
    listing list = {.kind = NULL};
    err_list errs = {.n = 0};
    char *request = NULL;
    loader *l = NULL;
    int code = command_parse("plugins", argc, argv, &args);
    if (code >= 0) return code;
    code = EXIT_CODE_USAGE;
    if (args.n_positional) {
        request = strdup(args.positional[0]);
        if (!request || !split_request(request, &list)) goto done;
    }
    l = command_loader();
    if (!l) goto done;
    if (command_flag(&args, "json")) list.array = json_array();
    scan(&list, l, &errs);
    if (list.array) print_json(&list, l, &errs);
    code = err_list_count(&errs) ? EXIT_CODE_PLUGIN : EXIT_CODE_OK;
    if (list.n == 0 && code == EXIT_CODE_OK && args.n_positional) {
        if (list.file)
            err_list_add(&errs, "moehost plugins: %s: holds no such plugin: %s", list.file, args.positional[0]);
        else
            err_list_add(&errs, "moehost plugins: no plugin %s; moehost help plugins says where they are looked for",
                         args.positional[0]);
        code = EXIT_CODE_PLUGIN;
    }
    err_list_print(&errs, stderr);
    if (list.failed) fprintf(stderr, "moehost plugins: out of memory, or text that is not UTF-8\n");
    if (list.failed && code == EXIT_CODE_OK) code = EXIT_CODE_FAILED;
done:
    json_decref(list.array);
    err_list_clear(&errs);
    loader_destroy(l);
    free(request);
    return command_finish(code);
}
