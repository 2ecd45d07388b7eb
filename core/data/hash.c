/* The hash by which a resumed run knows its data; data.h says what goes into it. */
#include <moe/options.h>
#include <xxhash.h>

#include "data/element.h"
#include "data/reader.h"

enum { BLOCK = 4096, BLOCKS = 256, WHOLE = BLOCK * BLOCKS };

static void add(XXH3_state_t *h, const void *bytes, uint64_t n) {
    if (n > 0) XXH3_64bits_update(h, bytes, (size_t)n);
}

static void add_numbers(XXH3_state_t *h, const uint64_t *numbers, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint8_t bytes[8];
        for (int b = 0; b < 8; b++) bytes[b] = (uint8_t)(numbers[i] >> 8 * b);
        add(h, bytes, sizeof bytes);
    }
}

static void add_stream(XXH3_state_t *h, const stream *s) {
    for (uint64_t i = 0; i < s->n_pieces; i++) {
        const piece *p = &s->pieces[i];
        uint32_t bytes = element_bytes(p->file->element);
        map_expect(&p->file->content, MAP_IN_ORDER);
        add(h, p->file->content.bytes + p->from * bytes, p->n * bytes);
    }
}

static void add_file(XXH3_state_t *h, const corpus_file *f) {
    const file_map *m = &f->content;
    add_numbers(h, (const uint64_t[]){m->n, (uint64_t)f->element, f->info.tokens, f->info.train, f->info.valid}, 5);
    add(h, f->index.bytes, f->index.n);
    if (m->n <= WHOLE) {
        add(h, m->bytes, m->n);
        return;
    }
    uint64_t stride = (m->n - BLOCK) / (BLOCKS - 1), rest = (m->n - BLOCK) % (BLOCKS - 1);
    for (uint64_t i = 0; i < BLOCKS; i++) add(h, m->bytes + i * stride + i * rest / (BLOCKS - 1), BLOCK);
}

/* What else decides which tokens a sample has; nothing in the plainest case, whose hash is that of its bytes. */
static uint64_t add_settings(XXH3_state_t *h, const data_reader *r, uint64_t content) {
    if (r->blend.n == 0 && !r->documents) return content;
    XXH3_64bits_reset(h);
    add_numbers(h, (const uint64_t[]){content, (uint64_t)r->documents, r->blend.n, r->blend.period}, 4);
    for (uint64_t i = 0; i < r->blend.n; i++) {
        uint64_t counts[] = {r->blend.counts[i], r->sources[i].n_tokens};
        add_numbers(h, counts, 2);
    }
    return XXH3_64bits_digest(h);
}

moe_status hash_reader(const data_reader *r, const data_config *cfg, uint64_t *hash, moe_err *err) {
    uint64_t train = data_count_tokens(r, DATA_TRAIN), total = train + data_count_tokens(r, DATA_VALID);
    XXH3_state_t *h = XXH3_createState();
    if (!h) return moe_fail(err, MOE_E_NOMEM, "no memory for a checksum");
    if (cfg->format == DATA_BYTES && total <= DATA_HASH_WHOLE) {
        XXH3_64bits_reset_withSeed(h, train); /* seed: where train and valid part */
        for (uint64_t i = 0; i < r->n_sources; i++) add_stream(h, &r->sources[i]);
        add_stream(h, &r->valid);
    } else {
        XXH3_64bits_reset_withSeed(h, (uint64_t)cfg->format);
        for (uint64_t i = 0; i < r->n_files; i++) add_file(h, &r->files[i]);
    }
    *hash = add_settings(h, r, XXH3_64bits_digest(h));
    XXH3_freeState(h);
    return MOE_OK;
}
