/* The plugin handshake: tables made of the input, with true pointers and false everything else, and the same bytes as a
 * shared object's file. */
#include <string.h>

#include "elf_check.h"
#include "file.h"
#include "handshake.h"

typedef struct reader {
    const uint8_t *at, *end;
} reader;

static uint32_t take(reader *r) {
    uint32_t v = 0;
    size_t left = (size_t)(r->end - r->at), n = left < sizeof v ? left : sizeof v;
    memcpy(&v, r->at, n);
    r->at += n;
    return v;
}

/* NULL, a word that means something, or bytes of the input. text [16] is where those go. */
static const char *take_text(reader *r, char text[16]) {
    static const char *const words[] = {
        "router",   "dispatcher", "precision",  "scheduler", "device",     "comm", "cpu",      "any", "topk", "0.1.0",
        "int 0..4", "bool",       "float 0..1", "string",    "enum a|b|c", "a",    "int 4..0", "-1",  "true", ""};
    uint32_t i = take(r) % 64;
    if (i == 0) return NULL;
    if (i <= sizeof words / sizeof words[0]) return words[i - 1];
    for (int k = 0; k < 15; k += 4) {
        uint32_t v = take(r);
        memcpy(text + k, &v, k < 12 ? 4 : 3);
    }
    text[15] = 0;
    return text;
}

/* Either what is right or what the input says. */
static uint32_t near(reader *r, uint32_t right) {
    uint32_t v = take(r);
    return v % 4 ? right : take(r);
}

/* A list of operations, with names of the input's; functions [8]: pointers, or NULL. */
enum { OPS = 4, OP_POINTERS = 60 };
static void *device_ops(reader *r, void *const *functions) {
    static char names[OPS][16];
    static moe_op ops[OPS];
    static const moe_op *pointers[OP_POINTERS];
    memset(ops, 0, sizeof ops);
    for (int i = 0; i < OPS; i++) {
        ops[i].size = near(r, sizeof ops[i]);
        ops[i].name = take_text(r, names[i]);
        memcpy(&ops[i].forward, &functions[take(r) % 8], sizeof ops[i].forward);
    }
    for (int i = 0; i < OP_POINTERS; i++) pointers[i] = take(r) % 32 ? &ops[i % OPS] : NULL;
    return pointers;
}

static void check_tables(reader *r) {
    enum { DESCS = 2, OPTIONS = 3 };
    static char texts[DESCS][7 + 4 * OPTIONS][16];
    static void *vtable[64];
    moe_option rows[DESCS][OPTIONS];
    moe_desc descs[DESCS];
    const moe_desc *pointers[DESCS];
    memset(descs, 0, sizeof descs);
    for (int i = 0; i < 64; i++) vtable[i] = take(r) % 8 ? (void *)vtable : NULL;
    for (int d = 0; d < DESCS; d++) {
        moe_desc *p = &descs[d];
        const char **words[] = {&p->kind, &p->id, &p->device, &p->version, &p->vendor, &p->license, &p->summary};
        for (int i = 0; i < 7; i++) *words[i] = take_text(r, texts[d][i]);
        for (int i = 0; i < OPTIONS; i++) {
            moe_option *o = &rows[d][i];
            o->key = take_text(r, texts[d][7 + 4 * i]);
            o->type = take_text(r, texts[d][8 + 4 * i]);
            o->dflt = take_text(r, texts[d][9 + 4 * i]);
            o->help = take_text(r, texts[d][10 + 4 * i]);
        }
        p->size = near(r, sizeof *p);
        p->kind_major = near(r, 0);
        p->flags = take(r);
        p->options = take(r) % 8 ? rows[d] : NULL;
        p->n_options = take(r) % (OPTIONS + 1);
        p->vtable = take(r) % 8 ? (const void *)vtable : NULL;
        pointers[d] = take(r) % 16 ? p : NULL;
    }
    vtable[1] = device_ops(r, vtable + 2); /* where a device has its operations */
    const uint32_t head[2] = {near(r, 256),
                              take(r) % OP_POINTERS}; /* every table begins with its size; a device's ops follow */
    memcpy(vtable, head, sizeof head);
    const moe_entry entry = {near(r, MOE_MAGIC),
                             near(r, sizeof entry),
                             near(r, MOE_MINOR),
                             near(r, 0),
                             near(r, (uint32_t)(8 * sizeof(void *))),
                             take(r) % (DESCS + 1),
                             take(r) % 8 ? MOE_ABI_TAG : take_text(r, texts[0][0]),
                             take(r) % 16 ? pointers : NULL};
    char why[256] = "";
    if (!handshake_check(&entry, why, sizeof why) && !why[0]) abort(); /* a refusal says why */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64], why[256] = "";
    struct stat st;
    reader r = {data, data + size};
    int fd = file_of(data, size, path);
    if (!elf_check(path, &st, why, sizeof why) && !why[0]) abort();
    close(fd);
    check_tables(&r);
    return 0;
}
