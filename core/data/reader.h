/* Inside of a data reader: open files, and streams of pieces of them. Shared by the files of this folder alone. */
#ifndef CORE_DATA_READER_H
#define CORE_DATA_READER_H
#include <moe/random.h>

#include "data/blend.h"
#include "data/data.h"
#include "data/files.h"
#include "data/idx.h"
#include "data/map.h"

typedef struct corpus_file {
    data_file info;
    int32_t element; /* ELEMENT_* */
    file_map content, index;
    idx_view documents; /* n_documents 0: no index, the file is one document */
} corpus_file;

/* Tokens from .. from + n - 1 of a file, at positions start .. of its stream; n >= 1. */
typedef struct piece {
    const corpus_file *file;
    uint64_t from, n, start;
} piece;

typedef struct stream {
    piece *pieces; /* [n_pieces] */
    uint64_t n_pieces, room, n_tokens;
    int64_t windows, first_window; /* first_window: windows of the sources before */
    moe_random_key key;            /* of the order of train windows */
} stream;

struct data_reader {
    file_list train_names, valid_names;
    corpus_file *files; /* [n_files]: train, then valid */
    uint64_t n_files, n_train_files;
    stream *sources; /* [n_sources], train */
    uint64_t n_sources;
    stream valid;
    blend blend; /* n 0: one source */
    int64_t seq_len, vocab;
    int32_t documents;
    uint64_t hash;
};

/* Open the content (and index) of f, whose info.path and index path are set; fill element, tokens, documents. They fail
 * with maps open or not; the caller closes both. */
moe_status bytes_open(corpus_file *f, const data_config *cfg, moe_err *err);
moe_status tokens_open(corpus_file *f, const data_config *cfg, moe_err *err);
moe_status megatron_open(corpus_file *f, const char *index, moe_err *err);
/* Where to cut the train part for valid_fraction: the first token of the valid part. */
uint64_t megatron_cut(const corpus_file *f, uint64_t wanted);

/* data_hash of an open reader. */
moe_status hash_reader(const data_reader *r, const data_config *cfg, uint64_t *hash, moe_err *err);
#endif
