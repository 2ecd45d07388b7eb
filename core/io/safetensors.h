/* safetensors files: 8 bytes little-endian header length, a JSON header, then raw little-endian row-major tensor data.
 * Format: https://github.com/huggingface/safetensors (README, "Format"). The reader is strict: what the format does not
 * allow (holes, overlaps, trailing bytes, unknown types, duplicate names) is an error with file, offset and reason, and
 * nothing is allocated on the word of a length that the file does not have. The writer makes only files it can read. */
#ifndef CORE_IO_SAFETENSORS_H
#define CORE_IO_SAFETENSORS_H
#include <moe/base.h>
#include <stddef.h>
#include <stdint.h>

#define ST_HEADER_MAX 100000000u /* bytes; the reference implementation's limit */
enum { ST_NDIM_MAX = 8 };

/* Types of files: the MOE_ dtypes of moe/base.h, and these, which only files have. A file's MOE_F4E2M1X2 ("F4") counts
 * 4-bit values in its shape, two in a byte. */
enum { ST_F16 = MOE_E8M0 + 1, ST_BOOL, ST_I8, ST_I16, ST_U16, ST_U32, ST_U64, ST_DTYPE_COUNT };

const char *st_dtype_name(int32_t dtype);     /* "BF16"; NULL for a number that is no dtype */
uint64_t st_dtype_bits(int32_t dtype);        /* of one element; 0 for a number that is no dtype */
int32_t st_dtype_from_name(const char *name); /* -1: unknown */

/* Element i of bytes in a file's order, of BOOL, U8, I32 or I64. *known: 0 = another type, and the result is 0. */
int64_t st_whole_at(int32_t dtype, const void *data, int64_t i, int *known);

typedef struct st_tensor {
    const char *name; /* UTF-8, lives as long as the file is open */
    int32_t dtype, ndim;
    int64_t shape[ST_NDIM_MAX]; /* entries at and after ndim are 1 */
    int64_t elements;           /* product of shape */
    uint64_t offset, bytes;     /* of its data in the file */
} st_tensor;

/* ---- reading; an open file is constant, so every function below st_open may be called from any thread ---- */
typedef struct st_file st_file;

/* Opens and checks the whole header. *out is set on success only; st_close frees it. MOE_E_IO: cannot be read;
 * MOE_E_DATA: not a valid file; MOE_E_UNSUPPORTED: a dtype or rank unknown here; MOE_E_NOMEM. */
moe_status st_open(const char *path, st_file **out, moe_err *err);
void st_close(st_file *st); /* NULL is fine */

uint64_t st_count(const st_file *st);
const st_tensor *st_at(const st_file *st, uint64_t i);         /* i < st_count, in order of their data */
const st_tensor *st_find(const st_file *st, const char *name); /* NULL: not there */
const char *st_meta(const st_file *st, const char *key);       /* of __metadata__; NULL: not there */

/* Reads the whole tensor into out, which has exactly t->bytes = bytes (anything else is MOE_E_ARG). */
moe_status st_read(const st_file *st, const st_tensor *t, void *out, uint64_t bytes, moe_err *err);
/* Reads `bytes` bytes that begin `begin` bytes into the tensor: a rank's shard of it. */
moe_status st_read_part(const st_file *st, const st_tensor *t, uint64_t begin, void *out, uint64_t bytes, moe_err *err);

/* ---- writing: declare every tensor, then give all bytes in declared order; one thread at a time ----
 * Data goes to "<path>.part", which st_writer_finish renames: path holds a whole file or what it held before. */
typedef struct st_writer st_writer;

moe_status st_writer_create(const char *path, st_writer **out, moe_err *err);
/* Adds to __metadata__. MOE_E_ARG: after the first st_write, a duplicate, not UTF-8. */
moe_status st_writer_meta(st_writer *w, const char *key, const char *value, moe_err *err);
/* Data offset = sum of the sizes before. MOE_E_ARG: a bad shape, a duplicate, not UTF-8, after the first st_write;
 * MOE_E_OVERFLOW: the header would exceed ST_HEADER_MAX and no reader would take the file (split it). */
moe_status st_writer_declare(st_writer *w, const char *name, int32_t dtype, int32_t ndim, const int64_t *shape,
                             moe_err *err);
/* The next n bytes of data; calls need not match tensors. A failure (disk full) is final and repeats at finish. */
moe_status st_write(st_writer *w, const void *bytes, uint64_t n, moe_err *err);
/* Checks that every byte was given, makes the file durable, renames it, frees w - on failure too, and then path is
 * untouched. The new name is durable once its directory is synced (fs_sync_dir; ckpt_commit does). */
moe_status st_writer_finish(st_writer *w, moe_err *err);
void st_writer_abort(st_writer *w); /* drops what was written and frees w; NULL is fine */
#endif
