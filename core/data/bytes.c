/* Byte data in memory and its windows; see bytes.h. */
#include "data/bytes.h"

#include <inttypes.h>
#include <math.h>
#include <moe/options.h>
#include <unistd.h>
#include <xxhash.h>

#include "data/files.h"
#include "data/shuffle.h"
#include "io/fs.h"

struct data_reader {
    uint8_t *memory; /* the train stream, then the valid stream */
    struct {
        const uint8_t *bytes;
        uint64_t n;
        int64_t windows;
    } split[2];
    int64_t seq_len;
    moe_random_key key;
    uint64_t hash;
    file_list train, valid; /* valid: its own files, when there are any */
};

static moe_status check_config(const data_config *cfg, moe_err *err) {
    if (cfg->n_train == 0) return moe_fail(err, MOE_E_ARG, "train: no file is named");
    if (cfg->seq_len < 1 || cfg->seq_len >= INT64_C(1) << 31)
        return moe_fail(err, MOE_E_ARG, "sequence length %" PRId64 " is not in 1..2^31-1", cfg->seq_len);
    if (!(cfg->valid_fraction >= 0 && cfg->valid_fraction < 1))
        return moe_fail(err, MOE_E_ARG, "valid_fraction %g is not in [0, 1)", cfg->valid_fraction);
    return MOE_OK;
}

/* A file in both lists makes validation blind to overfitting: allowed, but said. Both lists are sorted. */
static void note_overlap(const data_config *cfg, const data_reader *r) {
    for (uint64_t i = 0, j = 0; i < r->train.n && j < r->valid.n;) {
        int order = strcmp(r->train.files[i].path, r->valid.files[j].path);
        if (order == 0) files_note(cfg, "%s is in both train and valid", r->train.files[i].path);
        i += order <= 0;
        j += order >= 0;
    }
}

/* How much of each file goes where, and the streams' sizes. */
static moe_status divide(const data_config *cfg, data_reader *r, moe_err *err) {
    uint64_t *n[2] = {&r->split[DATA_TRAIN].n, &r->split[DATA_VALID].n};
    for (uint64_t i = 0; i < r->train.n; i++) {
        data_file *f = &r->train.files[i];
        f->valid = cfg->n_valid ? 0 : (uint64_t)floor(cfg->valid_fraction * (double)f->bytes);
        f->train = f->bytes - f->valid;
        *n[DATA_TRAIN] += f->train;
        *n[DATA_VALID] += f->valid;
    }
    for (uint64_t i = 0; i < r->valid.n; i++) {
        r->valid.files[i].valid = r->valid.files[i].bytes;
        *n[DATA_VALID] += r->valid.files[i].bytes;
    }
    if (*n[DATA_TRAIN] + *n[DATA_VALID] > DATA_LIMIT)
        return moe_fail(err, MOE_E_ARG, "train and valid have %" PRIu64 " bytes, more than the %llu held in memory",
                        *n[DATA_TRAIN] + *n[DATA_VALID], DATA_LIMIT);
    int wanted[2] = {1, cfg->n_valid > 0 || cfg->valid_fraction > 0};
    for (int i = 0; i < 2; i++) {
        r->split[i].windows = *n[i] ? (int64_t)((*n[i] - 1) / (uint64_t)cfg->seq_len) : 0;
        if (wanted[i] && r->split[i].windows == 0)
            return moe_fail(err, MOE_E_ARG,
                            "%s: found %" PRIu64 " bytes, but one window of sequence length %" PRId64 " needs %" PRId64,
                            i ? "valid" : "train", *n[i], cfg->seq_len, cfg->seq_len + 1);
    }
    return MOE_OK;
}

/* The head of a file to *train, its tail to *valid; both move on. */
static moe_status load_file(const data_file *f, uint8_t **train, uint8_t **valid, moe_err *err) {
    int fd = -1;
    uint64_t bytes = 0;
    moe_status s = fs_open_read(f->path, &fd, &bytes, err);
    if (s != MOE_OK) return s;
    if (bytes != f->bytes)
        s = fs_fail(err, MOE_E_DATA, f->path, "changed from %" PRIu64 " to %" PRIu64 " bytes while in use", f->bytes,
                    bytes);
    if (s == MOE_OK) s = fs_read_at(fd, f->path, 0, *train, f->train, err);
    if (s == MOE_OK) s = fs_read_at(fd, f->path, f->train, *valid, f->valid, err);
    close(fd);
    *train += f->train;
    *valid += f->valid;
    return s;
}

static moe_status load(data_reader *r, moe_err *err) {
    uint64_t n_train = r->split[DATA_TRAIN].n, total = n_train + r->split[DATA_VALID].n;
    moe_status s = MOE_OK;
    r->memory = malloc((size_t)total);
    if (!r->memory) return moe_fail(err, MOE_E_NOMEM, "no memory for %" PRIu64 " bytes of data", total);
    uint8_t *train = r->memory, *valid = r->memory + n_train;
    r->split[DATA_TRAIN].bytes = train;
    r->split[DATA_VALID].bytes = valid;
    for (uint64_t i = 0; s == MOE_OK && i < r->train.n; i++) s = load_file(&r->train.files[i], &train, &valid, err);
    for (uint64_t i = 0; s == MOE_OK && i < r->valid.n; i++) s = load_file(&r->valid.files[i], &train, &valid, err);
    if (s == MOE_OK) r->hash = XXH3_64bits_withSeed(r->memory, (size_t)total, n_train); /* seed: where they part */
    return s;
}

moe_status data_open(const data_config *cfg, data_reader **out, moe_err *err) {
    moe_status s = check_config(cfg, err);
    if (s != MOE_OK) return s;
    data_reader *r = calloc(1, sizeof *r);
    if (!r) return moe_fail(err, MOE_E_NOMEM, "no memory for a data reader");
    r->seq_len = cfg->seq_len;
    r->key = moe_random_key_make(cfg->seed, MOE_RANDOM_DATA, "shuffle");
    s = files_expand(cfg, "train", cfg->train, cfg->n_train, &r->train, err);
    if (s == MOE_OK) s = files_expand(cfg, "valid", cfg->valid, cfg->n_valid, &r->valid, err);
    if (s == MOE_OK) note_overlap(cfg, r);
    if (s == MOE_OK) s = divide(cfg, r, err);
    if (s == MOE_OK) s = load(r, err);
    if (s == MOE_OK)
        *out = r;
    else
        data_close(r);
    return s;
}

void data_close(data_reader *r) {
    if (!r) return;
    files_destroy(&r->train);
    files_destroy(&r->valid);
    free(r->memory);
    free(r);
}

uint64_t data_count_files(const data_reader *r) {
    return r->train.n + r->valid.n;
}

const data_file *data_file_at(const data_reader *r, uint64_t i) {
    return i < r->train.n ? &r->train.files[i] : &r->valid.files[i - r->train.n];
}

uint64_t data_count_bytes(const data_reader *r, int split) {
    return r->split[split].n;
}

int64_t data_count_windows(const data_reader *r, int split) {
    return r->split[split].windows;
}

uint64_t data_hash(const data_reader *r) {
    return r->hash;
}

int64_t data_window_of(const data_reader *r, int split, int64_t sample) {
    int64_t windows = r->split[split].windows;
    if (split == DATA_VALID) return sample < windows ? sample : -1;
    uint64_t n = (uint64_t)windows, at = (uint64_t)sample;
    return (int64_t)shuffle_at(r->key, at / n, n, at % n);
}

void data_fill(const data_reader *r, int split, int64_t first, int64_t n, int32_t *tokens, int32_t *targets) {
    for (int64_t i = 0; i < n; i++) {
        int64_t window = data_window_of(r, split, first + i);
        const uint8_t *from = window < 0 ? NULL : r->split[split].bytes + window * r->seq_len;
        for (int64_t j = 0; j < r->seq_len; j++) {
            *tokens++ = from ? from[j] : 0;
            *targets++ = from ? from[j + 1] : -1;
        }
    }
}
