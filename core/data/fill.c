/* A sample's place and its tokens: from a global sample number to the window of a stream to runs of a file. */
#include <inttypes.h>

#include "data/element.h"
#include "data/reader.h"
#include "data/shuffle.h"
#include "io/fs.h"

typedef struct place {
    const stream *in;
    uint64_t source;
    int64_t window; /* of the stream, -1: past the last */
} place;

static place place_of(const data_reader *r, int split, int64_t sample) {
    if (split == DATA_VALID) return (place){&r->valid, 0, sample < r->valid.windows ? sample : -1};
    blend_place at = {0, (uint64_t)sample};
    if (r->blend.n) at = blend_at(&r->blend, at.index);
    const stream *in = &r->sources[at.source];
    uint64_t n = (uint64_t)in->windows;
    return (place){in, at.source, (int64_t)shuffle_at(in->key, at.index / n, n, at.index % n)};
}

int64_t data_window_of(const data_reader *r, int split, int64_t sample) {
    place at = place_of(r, split, sample);
    return at.window < 0 ? -1 : at.in->first_window + at.window;
}

uint64_t data_source_of(const data_reader *r, int split, int64_t sample) {
    return place_of(r, split, sample).source;
}

/* The piece that holds a position of the stream. */
static const piece *find_piece(const stream *s, uint64_t position) {
    uint64_t low = 0, high = s->n_pieces; /* start of low <= position < start of high */
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (s->pieces[middle].start <= position)
            low = middle;
        else
            high = middle;
    }
    return &s->pieces[low];
}

/* Tokens at .. at + n - 1 of a file, each checked against the vocabulary. */
static moe_status read_tokens(const corpus_file *f, uint64_t at, int64_t n, int64_t vocab, int32_t *out, moe_err *err) {
    uint32_t bytes = element_bytes(f->element);
    const uint8_t *from = f->content.bytes + at * bytes;
    for (int64_t i = 0; i < n; i++, from += bytes) {
        int64_t id = element_load(f->element, from);
        if (id < 0 || id >= vocab)
            return fs_fail(err, MOE_E_DATA, f->info.path,
                           "offset %" PRIu64 ": token id %" PRId64 " (%s) is not in 0..%" PRId64,
                           (at + (uint64_t)i) * bytes, id, element_name(f->element), vocab - 1);
        out[i] = (int32_t)id;
    }
    return MOE_OK;
}

/* End, in tokens of its file, of what targets and attention may reach from token `at` of the piece. */
static uint64_t reach(const data_reader *r, const piece *p, uint64_t at) {
    uint64_t end = p->from + p->n;
    if (!r->documents || !p->file->documents.n_documents) return end;
    uint64_t border = idx_start(&p->file->documents, idx_after(&p->file->documents, at));
    return border < end ? border : end;
}

/* One run of tokens without a border: the first n of a row, and the target of the last where the run goes on. */
static moe_status fill_run(const data_reader *r, const piece *p, uint64_t at, uint64_t end, int64_t n, int32_t *tokens,
                           int32_t *targets, moe_err *err) {
    moe_status s = read_tokens(p->file, at, n, r->vocab, tokens, err);
    if (s != MOE_OK) return s;
    for (int64_t i = 0; i + 1 < n; i++) targets[i] = tokens[i + 1];
    targets[n - 1] = -1;
    if (at + (uint64_t)n < end) s = read_tokens(p->file, at + (uint64_t)n, 1, r->vocab, &targets[n - 1], err);
    return s;
}

/* Before a row of n tokens reads a piece from its token `at` on: the files are still whole, and the disk may start. */
static moe_status prepare(const data_reader *r, const piece *p, uint64_t at, int64_t n, moe_err *err) {
    const corpus_file *f = p->file;
    uint64_t left = p->from + p->n - at, bytes = element_bytes(f->element);
    moe_status s = map_check(&f->content, err);
    if (s == MOE_OK && r->documents && f->index.n) s = map_check(&f->index, err);
    if (s == MOE_OK) map_want(&f->content, at * bytes, ((uint64_t)n < left ? (uint64_t)n : left) * bytes);
    return s;
}

static moe_status fill_window(const data_reader *r, const stream *in, int64_t window, int32_t *tokens, int32_t *targets,
                              int32_t *docs, moe_err *err) {
    uint64_t position = (uint64_t)window * (uint64_t)r->seq_len;
    const piece *p = find_piece(in, position), *ready = NULL;
    moe_status s = MOE_OK;
    int32_t doc = 0;
    for (int64_t j = 0; s == MOE_OK && j < r->seq_len; doc++) {
        if (position == p->start + p->n) p++;
        uint64_t at = p->from + (position - p->start);
        if (p != ready) s = prepare(r, p, at, r->seq_len - j + 1, err);
        if (s != MOE_OK) return s;
        ready = p;
        uint64_t end = reach(r, p, at);
        int64_t left = r->seq_len - j, n = end - at < (uint64_t)left ? (int64_t)(end - at) : left;
        s = fill_run(r, p, at, end, n, tokens + j, targets + j, err);
        for (int64_t i = j; docs && i < j + n; i++) docs[i] = r->documents ? doc : 0;
        j += n;
        position += (uint64_t)n;
    }
    return s;
}

static void fill_padding(int64_t n, int32_t *tokens, int32_t *targets, int32_t *docs) {
    for (int64_t i = 0; i < n; i++) {
        tokens[i] = 0;
        targets[i] = -1;
        if (docs) docs[i] = -1;
    }
}

moe_status data_fill(const data_reader *r, int split, int64_t first, int64_t n, int32_t *tokens, int32_t *targets,
                     int32_t *docs, moe_err *err) {
    moe_status s = MOE_OK;
    for (int64_t i = 0; s == MOE_OK && i < n; i++) {
        place at = place_of(r, split, first + i);
        int64_t row = i * r->seq_len;
        int32_t *row_docs = docs ? docs + row : NULL;
        if (at.window < 0)
            fill_padding(r->seq_len, tokens + row, targets + row, row_docs);
        else
            s = fill_window(r, at.in, at.window, tokens + row, targets + row, row_docs, err);
    }
    return s;
}
