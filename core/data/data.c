/* Opens a data reader: expands patterns, opens files, cuts train from valid, lays streams of them; see data.h. */
#include "data/data.h"

#include <inttypes.h>
#include <math.h>
#include <moe/options.h>

#include "data/reader.h"
#include "io/fs.h"

static moe_status check_config(const data_config *cfg, moe_err *err) {
    if (cfg->n_train == 0) return moe_fail(err, MOE_E_ARG, "train: no file is named");
    if (cfg->seq_len < 1 || cfg->seq_len >= INT64_C(1) << 31)
        return moe_fail(err, MOE_E_ARG, "sequence length %" PRId64 " is not in 1..2^31-1", cfg->seq_len);
    if (!(cfg->valid_fraction >= 0 && cfg->valid_fraction < 1))
        return moe_fail(err, MOE_E_ARG, "valid_fraction %g is not in [0, 1)", cfg->valid_fraction);
    if (cfg->format < DATA_BYTES || cfg->format > DATA_MEGATRON)
        return moe_fail(err, MOE_E_ARG, "format %d is not one of DATA_BYTES..DATA_MEGATRON", cfg->format);
    if (cfg->format == DATA_TOKENS && (cfg->token_dtype < DATA_U16 || cfg->token_dtype > DATA_I32))
        return moe_fail(err, MOE_E_ARG, "token_dtype %d is not one of DATA_U16..DATA_I32", cfg->token_dtype);
    if (cfg->vocab < 0 || cfg->vocab > INT64_C(1) << 31)
        return moe_fail(err, MOE_E_ARG, "vocabulary %" PRId64 " is not in 0..2^31", cfg->vocab);
    if (cfg->n_weights && cfg->n_weights != cfg->n_train)
        return moe_fail(err, MOE_E_ARG, "weights: %" PRIu64 " for %" PRIu64 " train patterns", cfg->n_weights,
                        cfg->n_train);
    return MOE_OK;
}

/* A file in both lists makes validation blind to overfitting: allowed, but said. */
static void note_overlap(const data_config *cfg, const data_reader *r) {
    const file_list *train = &r->train_names, *valid = &r->valid_names;
    for (uint64_t i = 0; i < train->n; i++) {
        uint64_t low = 0, high = valid->n;
        while (low < high) {
            uint64_t middle = low + (high - low) / 2;
            int order = strcmp(valid->names[middle].path, train->names[i].path);
            if (order == 0) files_note(cfg, "%s is in both train and valid", train->names[i].path);
            if (order >= 0) high = middle;
            if (order <= 0) low = middle + 1;
        }
    }
}

/* ---- files ---- */
static moe_status open_file(const data_config *cfg, const file_name *name, corpus_file *f, moe_err *err) {
    f->info.path = name->path;
    moe_status s = MOE_OK;
    if (cfg->format == DATA_BYTES)
        s = bytes_open(f, cfg, err);
    else if (cfg->format == DATA_TOKENS)
        s = tokens_open(f, cfg, err);
    else
        s = megatron_open(f, name->index, err);
    f->info.bytes = f->content.n;
    return s;
}

static moe_status open_files(const data_config *cfg, data_reader *r, moe_err *err) {
    uint64_t n_train = r->train_names.n, n = n_train + r->valid_names.n, total = 0;
    moe_status s = MOE_OK;
    r->files = calloc((size_t)n + 1, sizeof *r->files);
    if (!r->files) return moe_fail(err, MOE_E_NOMEM, "no memory for %" PRIu64 " files", n);
    r->n_files = n;
    r->n_train_files = n_train;
    for (uint64_t i = 0; s == MOE_OK && i < n; i++) {
        corpus_file *f = &r->files[i];
        s = open_file(cfg, i < n_train ? &r->train_names.names[i] : &r->valid_names.names[i - n_train], f, err);
        if (s != MOE_OK) break;
        if (f->info.tokens > DATA_MAX_TOKENS - total)
            s = fs_fail(err, MOE_E_ARG, f->info.path, "with its %" PRIu64 " tokens there are more than 2^62",
                        f->info.tokens);
        else
            total += f->info.tokens;
    }
    return s;
}

/* Train: the head of a train file. Valid: its tail, or a valid file. */
static void cut_file(const data_config *cfg, corpus_file *f, int is_train) {
    uint64_t n = f->info.tokens, cut = is_train ? n : 0;
    if (is_train && !cfg->n_valid) cut = n - (uint64_t)floor(cfg->valid_fraction * (double)n);
    if (f->documents.n_documents && cut > 0 && cut < n) cut = megatron_cut(f, cut);
    f->info.train = cut;
    f->info.valid = n - cut;
}

/* ---- streams ---- */
static moe_status append(stream *s, const corpus_file *f, uint64_t from, uint64_t n, moe_err *err) {
    if (n == 0) return MOE_OK;
    if (s->n_pieces == s->room) {
        uint64_t room = 2 * s->room + 4;
        piece *moved = reallocarray(s->pieces, (size_t)room, sizeof *moved);
        if (!moved) return moe_fail(err, MOE_E_NOMEM, "no memory for a list of files");
        s->pieces = moved;
        s->room = room;
    }
    s->pieces[s->n_pieces++] = (piece){f, from, n, s->n_tokens};
    s->n_tokens += n;
    return MOE_OK;
}

static moe_status lay_streams(const data_config *cfg, data_reader *r, moe_err *err) {
    moe_status s = MOE_OK;
    r->n_sources = cfg->n_weights ? cfg->n_weights : 1;
    r->sources = calloc((size_t)r->n_sources, sizeof *r->sources);
    if (!r->sources) return moe_fail(err, MOE_E_NOMEM, "no memory for %" PRIu64 " sources", r->n_sources);
    for (uint64_t i = 0; s == MOE_OK && i < r->n_files; i++) {
        corpus_file *f = &r->files[i];
        int is_train = i < r->n_train_files;
        cut_file(cfg, f, is_train);
        if (is_train) s = append(&r->sources[r->train_names.names[i].source], f, 0, f->info.train, err);
        if (s == MOE_OK) s = append(&r->valid, f, f->info.train, f->info.valid, err);
    }
    return s;
}

static int64_t count_windows(const data_reader *r, const stream *s) {
    return s->n_tokens ? (int64_t)((s->n_tokens - 1) / (uint64_t)r->seq_len) : 0;
}

static moe_status fail_short(const data_config *cfg, const stream *s, const char *what, const char *pattern,
                             moe_err *err) {
    char of[128] = "";
    if (pattern) snprintf(of, sizeof of, " in '%.100s'", pattern);
    return moe_fail(err, MOE_E_ARG,
                    "%s: found %" PRIu64 " %s%s, but one window of sequence length %" PRId64 " needs %" PRId64, what,
                    s->n_tokens, cfg->format == DATA_BYTES ? "bytes" : "tokens", of, cfg->seq_len, cfg->seq_len + 1);
}

/* A stream in which every document has one token has no target at all. */
static int has_target(const stream *s) {
    for (uint64_t i = 0; i < s->n_pieces; i++) {
        const idx_view *documents = &s->pieces[i].file->documents;
        if (!documents->n_documents ? s->pieces[i].n > 1 : documents->longest > 1) return 1;
    }
    return 0;
}

static moe_status count_all(const data_config *cfg, data_reader *r, moe_err *err) {
    int64_t windows = 0;
    for (uint64_t i = 0; i < r->n_sources; i++) {
        stream *s = &r->sources[i];
        char name[40] = "shuffle";
        if (cfg->n_weights) snprintf(name, sizeof name, "shuffle.%" PRIu64, i);
        s->key = moe_random_key_make(cfg->seed, MOE_RANDOM_DATA, name);
        s->windows = count_windows(r, s);
        s->first_window = windows;
        windows += s->windows;
        if (s->windows == 0) return fail_short(cfg, s, "train", cfg->n_weights ? cfg->train[i] : NULL, err);
        if (cfg->documents && !has_target(s))
            return moe_fail(err, MOE_E_ARG, "train: no document has two tokens, so there is no target to learn");
    }
    r->valid.windows = count_windows(r, &r->valid);
    if ((cfg->n_valid > 0 || cfg->valid_fraction > 0) && r->valid.windows == 0)
        return fail_short(cfg, &r->valid, "valid", NULL, err);
    return MOE_OK;
}

static moe_status make_blend(const data_config *cfg, data_reader *r, moe_err *err) {
    if (cfg->n_weights == 0) return MOE_OK;
    moe_status s = blend_make(&r->blend, cfg->weights, cfg->n_weights, err);
    if (s == MOE_OK && !r->blend.exact) files_note(cfg, "weights are rounded to parts of %u", BLEND_MAX_PERIOD);
    return s;
}

moe_status data_open(const data_config *cfg, data_reader **out, moe_err *err) {
    moe_status s = check_config(cfg, err);
    if (s != MOE_OK) return s;
    data_reader *r = calloc(1, sizeof *r);
    if (!r) return moe_fail(err, MOE_E_NOMEM, "no memory for a data reader");
    r->seq_len = cfg->seq_len;
    r->vocab = cfg->vocab ? cfg->vocab : INT64_C(1) << 31;
    r->documents = cfg->documents != 0;
    s = make_blend(cfg, r, err);
    if (s == MOE_OK) s = files_expand(cfg, "train", cfg->train, cfg->n_train, cfg->n_weights > 0, &r->train_names, err);
    if (s == MOE_OK) s = files_expand(cfg, "valid", cfg->valid, cfg->n_valid, 0, &r->valid_names, err);
    if (s == MOE_OK) note_overlap(cfg, r);
    if (s == MOE_OK) s = open_files(cfg, r, err);
    if (s == MOE_OK) s = lay_streams(cfg, r, err);
    if (s == MOE_OK) s = count_all(cfg, r, err);
    if (s == MOE_OK) s = hash_reader(r, cfg, &r->hash, err);
    for (uint64_t i = 0; s == MOE_OK && i < r->n_files; i++) {
        map_expect(&r->files[i].content, MAP_AT_RANDOM);
        map_expect(&r->files[i].index, MAP_AT_RANDOM);
    }
    if (s == MOE_OK)
        *out = r;
    else
        data_close(r);
    return s;
}

void data_close(data_reader *r) {
    if (!r) return;
    for (uint64_t i = 0; i < r->n_files; i++) {
        map_close(&r->files[i].content);
        map_close(&r->files[i].index);
    }
    for (uint64_t i = 0; r->sources && i < r->n_sources; i++) free(r->sources[i].pieces);
    free(r->sources);
    free(r->valid.pieces);
    free(r->files);
    blend_free(&r->blend);
    files_destroy(&r->train_names);
    files_destroy(&r->valid_names);
    free(r);
}

/* ---- what was opened ---- */
uint64_t data_count_files(const data_reader *r) {
    return r->n_files;
}

const data_file *data_file_at(const data_reader *r, uint64_t i) {
    return &r->files[i].info;
}

uint64_t data_count_tokens(const data_reader *r, int split) {
    uint64_t n = 0;
    if (split == DATA_VALID) return r->valid.n_tokens;
    for (uint64_t i = 0; i < r->n_sources; i++) n += r->sources[i].n_tokens;
    return n;
}

int64_t data_count_windows(const data_reader *r, int split) {
    const stream *last = split == DATA_VALID ? &r->valid : &r->sources[r->n_sources - 1];
    return last->first_window + last->windows;
}

uint64_t data_count_sources(const data_reader *r) {
    return r->n_sources;
}

int64_t data_source_windows(const data_reader *r, uint64_t source) {
    return r->sources[source].windows;
}

uint64_t data_hash(const data_reader *r) {
    return r->hash;
}
