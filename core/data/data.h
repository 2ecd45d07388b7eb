/* Training data: files as streams of token ids, cut in windows of S inputs whose targets are one ahead. Three formats
 * share one reader: bytes (every byte a token), tokens (plain little-endian ids) and megatron (.bin with .idx, idx.h).
 * Which window a sample is depends on the configuration and the global sample index alone: a reader has no state, so
 * resume and data-parallel slices are exact, whatever the mesh. An open reader is constant: every function below
 * data_open may be called from any thread.
 *
 * Streams. Without weights all train files are one stream, in the order of their real paths; with weights each train
 * pattern is a source with a stream of its own. Windows tile a stream: window w has its tokens [wS, wS + S); a
 * remainder too short for a window and one token more is never read. Train samples of a source go through its windows
 * in epochs, each a permutation of its own (shuffle.h): nothing is skipped or read twice within an epoch. Validation is
 * one stream, in order, without weights.
 *
 * Borders. A target never comes from another file than its input, nor from the other side of the cut between train and
 * valid: it is -1 there (no loss). With documents = 1 it never comes from another document either, and docs numbers the
 * documents of a window for attention. With documents = 0 targets run on across the documents within a file, as in
 * Megatron-LM, which marks borders by an end-of-document token alone.
 *
 * Memory. Files are mapped, not read: data_open reads the .idx files and what data_hash says. A mapped file that is
 * cut would end the process by SIGBUS; so data_fill first compares the size of each file it is about to read with that
 * at open, and a cut file is MOE_E_DATA. What remains is a cut in the microseconds between the two, or while
 * data_open reads. A file that was removed or replaced by another of its name does no harm: the mapping holds the old
 * one. */
#ifndef CORE_DATA_DATA_H
#define CORE_DATA_DATA_H
#include <moe/base.h>
#include <stdint.h>

enum { DATA_TRAIN, DATA_VALID };
enum { DATA_BYTES, DATA_TOKENS, DATA_MEGATRON }; /* format */
enum { DATA_U16, DATA_U32, DATA_I32 };           /* token_dtype */

#define DATA_HASH_WHOLE (4ull << 30) /* bytes of a byte format's files up to which data_hash reads them all */
#define DATA_MAX_TOKENS (1ull << 62) /* of all files together */

typedef struct data_config {
    const char *base; /* directory that relative patterns start from; NULL = the working directory */
    /* File names or globs (glob(7); a name that exists is taken literally). Every file counts once, whatever its names
     * (real paths are compared), in the order of real paths. megatron: the name with or without .bin or .idx; a glob
     * may match either or both, or lack the ending. */
    const char *const *train, *const *valid; /* [n_train], [n_valid] */
    uint64_t n_train, n_valid;
    /* In [0, 1), used when n_valid is 0: the last floor(fraction * tokens) tokens of every file; megatron: cut at the
     * document border nearest to that (the earlier one of two), where one document may leave nothing to one side. */
    double valid_fraction;
    int64_t seq_len; /* S >= 1 */
    uint64_t seed;
    int32_t format, token_dtype; /* DATA_*; token_dtype is read for DATA_TOKENS alone */
    /* Share of samples of each train pattern, > 0, in any unit (blend.h); n_weights is 0 (one stream: in proportion to
     * tokens) or n_train. A file under two patterns is then refused. */
    const double *weights;
    uint64_t n_weights;
    int32_t documents; /* 1: attention and targets stay within a document; a file of bytes or tokens is one document */
    int64_t vocab;     /* ids are in 0..vocab-1; 0: in 0..2^31-1 */
    void (*note)(void *ctx, const char *text); /* called in data_open for what is worth a warning; NULL = nobody */
    void *note_ctx;
} data_config;

typedef struct data_reader data_reader;
typedef struct data_file {
    const char *path;       /* real path (of the .bin), lives as long as the reader */
    uint64_t bytes, tokens; /* of the file */
    uint64_t train, valid;  /* tokens that went to which: its head to train, its tail to valid */
    uint64_t documents;     /* 1 without an index */
} data_file;

/* Opens and checks all files. *out is set on success only. MOE_E_ARG: a pattern that matches nothing, a directory, a
 * bad number in cfg, a file with two weights, too little data for one window (found and needed); MOE_E_IO: unreadable;
 * MOE_E_DATA: not of the format (file, offset and reason), or cut meanwhile; MOE_E_NOMEM. */
moe_status data_open(const data_config *cfg, data_reader **out, moe_err *err);
void data_close(data_reader *r); /* NULL is fine */

uint64_t data_count_files(const data_reader *r);
const data_file *data_file_at(const data_reader *r, uint64_t i); /* i < data_count_files: train files, then valid */
uint64_t data_count_tokens(const data_reader *r, int split);
/* Sum over sources of (tokens - 1) / S; valid may have 0. */
int64_t data_count_windows(const data_reader *r, int split);
uint64_t data_count_sources(const data_reader *r);                  /* of train: n_weights, or 1 */
int64_t data_source_windows(const data_reader *r, uint64_t source); /* >= 1 */

/* XXH3-64 by which a resumed run knows its data. bytes: all bytes of the train streams and of the valid stream, up to
 * DATA_HASH_WHOLE. Otherwise of every file: its size, element type, tokens and cut, its whole .idx, and of its content
 * everything up to 1 MiB, or else 256 blocks of 4 KiB, the first at the start, the last at the end, the others evenly
 * between: a change elsewhere in a large file is not seen. Weights and documents count, where given; paths do not. */
uint64_t data_hash(const data_reader *r);

/* Where a sample >= 0 lies. Train: its source by blend_at, and of that source's j-th sample the permutation of epoch j
 * / windows, at j % windows. Windows are numbered source after source. Valid: the sample itself, -1 past the last. */
int64_t data_window_of(const data_reader *r, int split, int64_t sample);
uint64_t data_source_of(const data_reader *r, int split, int64_t sample); /* valid: 0 */

/* Samples first .. first + n - 1 (global indices): tokens [n, S] in 0..vocab-1; targets [n, S] in -1..vocab-1; docs
 * [n, S], the number of the token's document within its window, from 0 (all 0 with documents = 0); docs NULL: not
 * asked. Valid samples past the last window have tokens 0, targets -1, docs -1. No allocation. MOE_E_DATA: an id out of
 * range (file, byte offset, value), a file that was cut; the outputs are then undefined. */
moe_status data_fill(const data_reader *r, int split, int64_t first, int64_t n, int32_t *tokens, int32_t *targets,
                     int32_t *docs, moe_err *err);
#endif
