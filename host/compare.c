/* Hashes are compared; texts travel only where these differ. */
#include "compare.h"

#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

static uint64_t hash_text(const char *text) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *text; text++) hash = (hash ^ (uint8_t)*text) * 0x100000001b3u;
    return hash;
}

/* What counts of a text: without comments and the blanks before them. New memory; NULL: none. */
static char *essence(const char *text) {
    char *out = malloc(strlen(text) + 2), *to = out;
    while (out && *text) {
        size_t n = strcspn(text, "\n"), keep = 0;
        while (keep < n && !(text[keep] == ';' && (keep == 0 || text[keep - 1] == ' '))) keep++;
        while (keep && text[keep - 1] == ' ') keep--;
        memcpy(to, text, keep);
        if (keep) to[keep] = '\n', to += keep + 1;
        text += n + (text[n] == '\n');
    }
    if (out) *to = 0;
    return out;
}

/* "[optimizer] lr = 0.1": the line at `at`, after the section that it is in. */
static void name_line(const char *text, size_t at, char *out, size_t bytes) {
    const char *section = "", *line = text + at;
    int in = 0;
    for (const char *c = text; c < line; c += strcspn(c, "\n") + 1)
        if (*c == '[') section = c, in = (int)strcspn(c, "\n");
    if (*line == '[') in = 0;
    if (!*line)
        snprintf(out, bytes, "nothing more");
    else
        snprintf(out, bytes, "%.*s%s%.*s", in, section, in ? " " : "", (int)strcspn(line, "\n"), line);
}

static moe_status tell_difference(const char *what, uint32_t rank, const char *first, const char *other, moe_err *err) {
    size_t at = 0, line = 0;
    char a[180], b[180];
    for (; first[at] && first[at] == other[at]; at++)
        if (first[at] == '\n') line = at + 1;
    name_line(first, line, a, sizeof a);
    name_line(other, line, b, sizeof b);
    return moe_fail(err, MOE_E_ARG, "ranks 0 and %u differ in the %s: rank 0 has %s, rank %u %s", rank, what, a, rank,
                    b);
}

/* The hashes differ: texts travel. */
static moe_status find_difference(const moe_bootstrap *b, const char *what, const char *own, moe_err *err) {
    uint64_t n = strlen(own) + 1, most = n, *sizes = calloc(b->world, sizeof *sizes);
    char *all = NULL, *mine = NULL;
    moe_status status =
        sizes ? b->all_gather(b->ctx, &n, sizeof n, sizes, err) : moe_fail(err, MOE_E_NOMEM, "out of memory");
    for (uint32_t r = 0; r < b->world && !status; r++)
        if (sizes[r] > most) most = sizes[r];
    if (!status) {
        all = calloc(b->world, most);
        mine = calloc(1, most);
        if (!all || !mine) status = moe_fail(err, MOE_E_NOMEM, "out of memory for %u recipes", b->world);
    }
    if (!status) {
        memcpy(mine, own, n);
        status = b->all_gather(b->ctx, mine, most, all, err);
    }
    for (uint32_t r = 1; r < b->world && !status; r++)
        if (strcmp(all, all + r * most) != 0) status = tell_difference(what, r, all, all + r * most, err);
    free(sizes);
    free(all);
    free(mine);
    return status;
}

moe_status compare_texts(const moe_bootstrap *b, const char *what, const char *text, moe_err *err) {
    if (b->world == 1) return MOE_OK;
    char *own = essence(text);
    uint64_t hash = own ? hash_text(own) : 0, *all = calloc(b->world, sizeof *all);
    int same = 1;
    moe_status status = own && all ? b->all_gather(b->ctx, &hash, sizeof hash, all, err)
                                   : moe_fail(err, MOE_E_NOMEM, "out of memory for %u ranks", b->world);
    for (uint32_t r = 1; r < b->world && !status; r++) same &= all[r] == all[0];
    if (!status && !same) status = find_difference(b, what, own, err);
    free(own);
    free(all);
    return status;
}
