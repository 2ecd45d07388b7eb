/* The writer of safetensors files; see safetensors.h. The header text grows with every declaration, so its exact length
 * is known, and refused when no reader would take it, before a byte is written. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <moe/options.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/fs.h"
#include "io/safetensors.h"

enum { STREAM_BUFFER = 1 << 20 };

struct st_writer {
    char *path, *part; /* final name, name while writing */
    FILE *file;        /* NULL until the first byte */
    char *buffer;      /* of file, [STREAM_BUFFER] */
    char *header;      /* growing: "{" and entries; [room] */
    size_t length, room;
    char *meta; /* entries of __metadata__, the same */
    size_t meta_length, meta_room;
    json_t *names;         /* set of declared names -> offset of the end of their data */
    json_t *keys;          /* set of metadata keys */
    uint64_t total, given; /* bytes of data declared, given */
    moe_err failed;        /* code MOE_OK: none so far */
};

moe_status st_writer_create(const char *path, st_writer **out, moe_err *err) {
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return fs_fail(err, MOE_E_IO, path, "exists and is not a regular file");
    st_writer *w = calloc(1, sizeof *w);
    if (!w) return fs_fail(err, MOE_E_NOMEM, path, "no memory");
    w->path = strdup(path);
    if (asprintf(&w->part, "%s.part", path) < 0) w->part = NULL;
    w->buffer = malloc(STREAM_BUFFER);
    w->names = json_object();
    w->keys = json_object();
    if (!w->path || !w->part || !w->buffer || !w->names || !w->keys) {
        st_writer_abort(w);
        return fs_fail(err, MOE_E_NOMEM, path, "no memory");
    }
    *out = w;
    return MOE_OK;
}

/* Appends n bytes to a growing text; 0 = out of memory. */
static int append(char **text, size_t *length, size_t *room, const char *bytes, size_t n) {
    if (n > *room - *length) {
        size_t larger = 2 * (*length + n) + 1024;
        char *moved = realloc(*text, larger);
        if (!moved) return 0;
        *text = moved;
        *room = larger;
    }
    memcpy(*text + *length, bytes, n);
    *length += n;
    return 1;
}

/* The file's bytes before data, were it written now with `more` further bytes of entries. */
static uint64_t header_bytes(const st_writer *w, uint64_t more) {
    uint64_t frame = strlen("{}") + (w->meta_length ? strlen("\"__metadata__\":{},") : 0);
    uint64_t n = w->length + w->meta_length + frame + more;
    return (n + 7) / 8 * 8;
}

static moe_status check_open(const st_writer *w, const char *name, moe_err *err) {
    if (!w->file) return MOE_OK;
    return fs_fail(err, MOE_E_ARG, w->path, "'%.100s' declared after the first byte of data", name);
}

static moe_status too_long(const st_writer *w, const char *name, moe_err *err) {
    return fs_fail(err, MOE_E_OVERFLOW, w->path,
                   "with '%.100s' the header exceeds %u bytes, which readers refuse: split the tensors into several "
                   "files",
                   name, ST_HEADER_MAX);
}

/* A JSON string literal in new memory, NULL when text is not UTF-8 or memory is out. */
static char *json_literal(const char *text) {
    const char *c = text;
    char *out = NULL;
    while (*c >= ' ' && *c < 0x7f && *c != '"' && *c != '\\') c++;
    if (!*c) return asprintf(&out, "\"%s\"", text) < 0 ? NULL : out; /* nearly every name: nothing to escape */
    json_t *string = json_string(text);
    out = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    json_decref(string);
    return out;
}

moe_status st_writer_meta(st_writer *w, const char *key, const char *value, moe_err *err) {
    char *k = NULL, *v = NULL, *entry = NULL;
    moe_status s = check_open(w, key, err);
    if (s != MOE_OK) return s;
    k = json_literal(key);
    v = json_literal(value);
    if (!k || !v) {
        s = fs_fail(err, MOE_E_ARG, w->path, "metadata '%.100s' is not UTF-8", key);
        goto out;
    }
    if (json_object_get(w->keys, key)) {
        s = fs_fail(err, MOE_E_ARG, w->path, "metadata '%.100s' is given twice", key);
        goto out;
    }
    int n = asprintf(&entry, "%s%s:%s", w->meta_length ? "," : "", k, v);
    if (n < 0) {
        entry = NULL;
        s = fs_fail(err, MOE_E_NOMEM, w->path, "no memory for metadata '%.100s'", key);
        goto out;
    }
    if (header_bytes(w, (uint64_t)n + strlen("\"__metadata__\":{},")) > ST_HEADER_MAX)
        s = too_long(w, key, err);
    else if (!append(&w->meta, &w->meta_length, &w->meta_room, entry, (size_t)n) ||
             json_object_set_new(w->keys, key, json_true()) != 0)
        s = fs_fail(err, MOE_E_NOMEM, w->path, "no memory for metadata '%.100s'", key);
out:
    free(k);
    free(v);
    free(entry);
    return s;
}

static moe_status tensor_bytes(const st_writer *w, const char *name, int32_t dtype, int32_t ndim, const int64_t *shape,
                               uint64_t *bytes, moe_err *err) {
    int64_t elements = 1;
    uint64_t bits, end;
    if (!st_dtype_name(dtype)) return fs_fail(err, MOE_E_ARG, w->path, "tensor '%.100s': no dtype %d", name, dtype);
    if (ndim < 0 || ndim > ST_NDIM_MAX)
        return fs_fail(err, MOE_E_ARG, w->path, "tensor '%.100s': %d dimensions are not in 0..%d", name, ndim,
                       ST_NDIM_MAX);
    for (int32_t i = 0; i < ndim; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(elements, shape[i], &elements))
            return fs_fail(err, MOE_E_ARG, w->path, "tensor '%.100s': shape[%d] = %lld is negative or too large", name,
                           i, (long long)shape[i]);
    if (__builtin_mul_overflow((uint64_t)elements, st_dtype_bits(dtype), &bits) || bits % 8 ||
        __builtin_add_overflow(w->total, bits / 8, &end) || end > INT64_MAX)
        return fs_fail(err, MOE_E_ARG, w->path, "tensor '%.100s': %lld elements of %s are no size of a file", name,
                       (long long)elements, st_dtype_name(dtype));
    *bytes = bits / 8;
    return MOE_OK;
}

/* `,"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}` in new memory; NULL = not UTF-8 or no memory. */
static char *tensor_entry(const st_writer *w, const char *name, int32_t dtype, int32_t ndim, const int64_t *shape,
                          uint64_t bytes) {
    char dims[ST_NDIM_MAX * 22] = "", *entry = NULL, *literal = json_literal(name);
    size_t at = 0;
    for (int32_t i = 0; i < ndim; i++)
        at += (size_t)snprintf(dims + at, sizeof dims - at, "%s%lld", i ? "," : "", (long long)shape[i]);
    if (literal &&
        asprintf(&entry, "%s%s:{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}", w->length ? "," : "",
                 literal, st_dtype_name(dtype), dims, w->total + 0ull, w->total + bytes + 0ull) < 0)
        entry = NULL;
    free(literal);
    return entry;
}

moe_status st_writer_declare(st_writer *w, const char *name, int32_t dtype, int32_t ndim, const int64_t *shape,
                             moe_err *err) {
    uint64_t bytes = 0;
    moe_status s = check_open(w, name, err);
    if (s == MOE_OK) s = tensor_bytes(w, name, dtype, ndim, shape, &bytes, err);
    if (s != MOE_OK) return s;
    if (strcmp(name, "__metadata__") == 0)
        return fs_fail(err, MOE_E_ARG, w->path, "no tensor can have the name '__metadata__'");
    if (json_object_get(w->names, name))
        return fs_fail(err, MOE_E_ARG, w->path, "tensor '%.100s' is declared twice", name);
    char *entry = tensor_entry(w, name, dtype, ndim, shape, bytes);
    if (!entry) return fs_fail(err, MOE_E_ARG, w->path, "tensor name '%.100s' is not UTF-8", name);
    size_t n = strlen(entry);
    if (header_bytes(w, n) > ST_HEADER_MAX)
        s = too_long(w, name, err);
    else if (!append(&w->header, &w->length, &w->room, entry, n) ||
             json_object_set_new(w->names, name, json_integer((json_int_t)(w->total + bytes))) != 0)
        s = fs_fail(err, MOE_E_NOMEM, w->path, "no memory for tensor '%.100s'", name);
    else
        w->total += bytes;
    free(entry);
    return s;
}

/* ---- data ---- */

/* Remembers a failure of the file: whatever comes after would leave a hole. */
static moe_status fail_for_good(st_writer *w, moe_err *err, const char *what) {
    fs_fail(&w->failed, MOE_E_IO, w->part, "cannot %s: %m", what);
    *err = w->failed;
    return err->code;
}

static int put(st_writer *w, const void *bytes, size_t n) {
    return fwrite(bytes, 1, n, w->file) == n;
}

static moe_status write_header(st_writer *w, moe_err *err) {
    static const char spaces[] = "        ";
    uint64_t length = header_bytes(w, 0);
    unsigned char prefix[8];
    /* no wait for the reader of a pipe that stands in the way */
    int fd = open(w->part, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0666);
    w->file = fd < 0 ? NULL : fdopen(fd, "w");
    if (fd >= 0 && !w->file) close(fd);
    if (!w->file) return fail_for_good(w, err, "create");
    if (setvbuf(w->file, w->buffer, _IOFBF, STREAM_BUFFER) != 0) return fail_for_good(w, err, "buffer");
    for (int i = 0; i < 8; i++) prefix[i] = (unsigned char)(length >> (8 * i));
    int ok = put(w, prefix, 8) && put(w, "{", 1);
    uint64_t used = 2 + w->length + w->meta_length;
    if (w->meta_length) {
        const char *comma = w->length ? "}," : "}";
        ok = ok && put(w, "\"__metadata__\":{", 16) && put(w, w->meta, w->meta_length) && put(w, comma, strlen(comma));
        used += 16 + strlen(comma);
    }
    ok = ok && (!w->length || put(w, w->header, w->length)) && put(w, "}", 1);
    if (!ok || !put(w, spaces, (size_t)(length - used))) return fail_for_good(w, err, "write the header");
    return MOE_OK;
}

moe_status st_write(st_writer *w, const void *bytes, uint64_t n, moe_err *err) {
    if (w->failed.code != MOE_OK) {
        *err = w->failed;
        return err->code;
    }
    if (n > w->total - w->given)
        return fs_fail(err, MOE_E_ARG, w->path, "%llu bytes given after %llu, but only %llu are declared", n + 0ull,
                       w->given + 0ull, w->total + 0ull);
    moe_status s = w->file ? MOE_OK : write_header(w, err);
    if (s != MOE_OK || n == 0) return s;
    if (!put(w, bytes, (size_t)n)) return fail_for_good(w, err, "write data");
    w->given += n;
    return MOE_OK;
}

/* The first declared tensor whose data is not all there. */
static moe_status incomplete(const st_writer *w, moe_err *err) {
    const char *name;
    json_t *end;
    json_object_foreach(w->names, name, end) {
        if ((uint64_t)json_integer_value(end) <= w->given) continue;
        return fs_fail(err, MOE_E_ARG, w->path, "finished after %llu of %llu bytes: tensor '%.100s' is not complete",
                       w->given + 0ull, w->total + 0ull, name);
    }
    return MOE_OK;
}

moe_status st_writer_finish(st_writer *w, moe_err *err) {
    moe_status s = st_write(w, "", 0, err); /* a file without data has a header too */
    if (s == MOE_OK) s = incomplete(w, err);
    if (s == MOE_OK && (fflush(w->file) != 0 || fsync(fileno(w->file)) != 0)) s = fail_for_good(w, err, "write data");
    if (s == MOE_OK) {
        FILE *file = w->file;
        w->file = NULL;
        if (fclose(file) != 0 || rename(w->part, w->path) != 0) {
            s = fail_for_good(w, err, "close and rename");
            unlink(w->part);
        }
    }
    st_writer_abort(w);
    return s;
}

void st_writer_abort(st_writer *w) {
    if (!w) return;
    if (w->file) {
        fclose(w->file);
        unlink(w->part);
    }
    json_decref(w->names);
    json_decref(w->keys);
    free(w->buffer);
    free(w->header);
    free(w->meta);
    free(w->path);
    free(w->part);
    free(w);
}
