/* Byte data: files as one stream of tokens 0..255, cut in windows of S inputs whose targets are the bytes one ahead.
 * Which window a sample is depends on (seed, global sample index) alone: resume and data-parallel slices are exact, and
 * an epoch visits every window once. Everything is in memory after data_open; an open reader is constant, so all
 * functions below data_open may be called from any thread. */
#ifndef CORE_DATA_BYTES_H
#define CORE_DATA_BYTES_H
#include <moe/base.h>
#include <stdint.h>

#define DATA_LIMIT (4ull << 30) /* bytes of all files together */
enum { DATA_TRAIN, DATA_VALID };

typedef struct data_config {
    const char *base; /* directory that relative patterns start from; NULL = the working directory */
    /* File names or globs (glob(7); a name that exists is taken literally). Every file counts once, whatever its names
     * (real paths are compared), in the order of real paths. */
    const char *const *train, *const *valid; /* [n_train], [n_valid] */
    uint64_t n_train, n_valid;
    double valid_fraction; /* in [0, 1), used when n_valid is 0: the last floor(fraction * size) bytes of every file */
    int64_t seq_len;       /* S >= 1 */
    uint64_t seed;
    void (*note)(void *ctx, const char *text); /* called in data_open for what is worth a warning; NULL = nobody */
    void *note_ctx;
} data_config;

typedef struct data_reader data_reader;
typedef struct data_file {
    const char *path; /* real path, lives as long as the reader */
    uint64_t bytes, train,
        valid; /* size, and how much of it went to which stream: its head to train, its tail to valid */
} data_file;

/* Reads all files. The train stream is their heads in order, the valid stream their tails or its own files. *out is set
 * on success only. MOE_E_ARG: a pattern that matches nothing, a directory, a bad fraction or length, too little data
 * for one window (bytes found and needed), more than DATA_LIMIT; MOE_E_DATA: unreadable or changed; MOE_E_NOMEM. */
moe_status data_open(const data_config *cfg, data_reader **out, moe_err *err);
void data_close(data_reader *r); /* NULL is fine */

uint64_t data_count_files(const data_reader *r);
const data_file *data_file_at(const data_reader *r, uint64_t i); /* i < data_count_files */
uint64_t data_count_bytes(const data_reader *r, int split);
int64_t data_count_windows(const data_reader *r, int split); /* (bytes - 1) / S; valid may have 0 */
/* XXH3-64 of both streams: a resumed run must find the same data. */
uint64_t data_hash(const data_reader *r);

/* The window that a sample >= 0 is. Train: the permutation of epoch sample / windows, at sample % windows. Valid: the
 * sample itself, -1 past the last. It covers bytes [window * S, window * S + S] of the stream. */
int64_t data_window_of(const data_reader *r, int split, int64_t sample);

/* Samples first .. first + n - 1 (global indices): tokens [n, S] and targets [n, S] in 0..255. Valid samples past the
 * last window have tokens 0 and targets -1 (no loss). */
void data_fill(const data_reader *r, int split, int64_t first, int64_t n, int32_t *tokens, int32_t *targets);
#endif
