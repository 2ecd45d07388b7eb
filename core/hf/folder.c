/* Opening shards and holding the index to them. */
#include "hf/folder.h"

#include <errno.h>
#include <jansson.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/fs.h"

enum { INDEX_MOST = 1 << 28, CONFIG_MOST = 1 << 24 }; /* bytes */

static int exists(const char *dir, const char *name) {
    struct stat st;
    char *path = fs_join(dir, name);
    int there = path && stat(path, &st) == 0;
    free(path);
    return there;
}

/* A JSON object from a file; NULL with the reason in err. */
static json_t *load_object(const char *dir, const char *name, uint64_t most, moe_err *err) {
    char *path = fs_join(dir, name), *text = NULL;
    uint64_t n = 0;
    json_error_t where;
    json_t *root = NULL;
    moe_status status = path ? fs_load(path, most, &text, &n, err) : fs_fail(err, MOE_E_NOMEM, dir, "out of memory");
    if (!status) {
        root = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &where);
        if (!root)
            fs_fail(err, MOE_E_DATA, path, "line %d, column %d: %s", where.line, where.column, where.text);
        else if (!json_is_object(root))
            fs_fail(err, MOE_E_DATA, path, "is no JSON object");
        if (root && !json_is_object(root)) {
            json_decref(root);
            root = NULL;
        }
    }
    free(text);
    free(path);
    return root;
}

/* The number of a file, opened on its first use. */
static moe_status open_file(hf_folder *f, const char *dir, const char *name, uint32_t *number, moe_err *err) {
    for (*number = 0; *number < f->n; ++*number)
        if (strcmp(f->names[*number], name) == 0) return MOE_OK;
    st_file **files = realloc(f->files, (f->n + 1) * sizeof *files);
    if (files) f->files = files;
    char **names = realloc(f->names, (f->n + 1) * sizeof *names);
    if (names) f->names = names;
    char *path = fs_join(dir, name), *copy = strdup(name);
    moe_status status = files && names && path && copy ? st_open(path, &f->files[f->n], err)
                                                       : fs_fail(err, MOE_E_NOMEM, dir, "out of memory");
    free(path);
    if (status)
        free(copy);
    else
        f->names[f->n++] = copy;
    return status;
}

/* One entry of the weight map. seen counts the tensors of a file that the index names. */
static moe_status take_entry(hf_folder *f, const char *dir, const char *name, const json_t *file, moe_err *err) {
    const char *text = json_string_value(file);
    uint32_t number = 0;
    if (!text || !*text || strchr(text, '/') || strcmp(text, "..") == 0)
        return fs_fail(err, MOE_E_DATA, dir, HF_INDEX ": the file of %.100s is no name of a file in this folder", name);
    moe_status status = open_file(f, dir, text, &number, err);
    if (!status && !st_find(f->files[number], name))
        status = fs_fail(err, MOE_E_DATA, dir, HF_INDEX " says that %.100s is in %.100s, which does not hold it", name,
                         text);
    return status;
}

/* Every tensor of the files is in the index, under that file. */
static moe_status check_files(const hf_folder *f, const char *dir, const json_t *map, moe_err *err) {
    for (uint32_t i = 0; i < f->n; i++)
        for (uint64_t k = 0; k < st_count(f->files[i]); k++) {
            const char *name = st_at(f->files[i], k)->name;
            const char *file = json_string_value(json_object_get(map, name));
            if (!file || strcmp(file, f->names[i]) != 0)
                return fs_fail(err, MOE_E_DATA, dir, "%.100s holds %.100s, which " HF_INDEX " %s", f->names[i], name,
                               file ? "puts into another file" : "does not name");
        }
    return MOE_OK;
}

static moe_status open_shards(hf_folder *f, const char *dir, moe_err *err) {
    json_t *root = load_object(dir, HF_INDEX, INDEX_MOST, err);
    if (!root) return err->code;
    json_t *map = json_object_get(root, "weight_map"), *file;
    const char *name;
    moe_status status = MOE_OK;
    if (!json_is_object(map) || !json_object_size(map))
        status = fs_fail(err, MOE_E_DATA, dir, HF_INDEX " has no weight_map");
    else
        json_object_foreach(map, name, file) {
            status = take_entry(f, dir, name, file, err);
            if (status) break;
        }
    if (!status) status = check_files(f, dir, map, err);
    json_decref(root);
    return status;
}

/* Neither file was found: is it the folder that is missing or closed? */
static moe_status refuse_empty(const char *path, moe_err *err) {
    struct stat st;
    int bad = stat(path, &st);
    if (!bad && !S_ISDIR(st.st_mode)) {
        errno = ENOTDIR;
        bad = 1;
    }
    if (bad || access(path, X_OK)) return fs_fail(err, MOE_E_IO, path, "cannot open: %m");
    return fs_fail(err, MOE_E_IO, path, "holds neither " HF_ONE_FILE " nor " HF_INDEX);
}

moe_status hf_folder_open(const char *path, hf_folder **out, moe_err *err) {
    int one = exists(path, HF_ONE_FILE), index = exists(path, HF_INDEX);
    uint32_t number;
    if (one && index)
        return fs_fail(err, MOE_E_DATA, path,
                       "holds both " HF_ONE_FILE " and " HF_INDEX ": remove the one that is not meant");
    if (!one && !index) return refuse_empty(path, err);
    hf_folder *f = calloc(1, sizeof *f);
    if (!f) return fs_fail(err, MOE_E_NOMEM, path, "out of memory");
    moe_status status = one ? open_file(f, path, HF_ONE_FILE, &number, err) : open_shards(f, path, err);
    if (status)
        hf_folder_close(f);
    else
        *out = f;
    return status;
}

void hf_folder_close(hf_folder *f) {
    for (uint32_t i = 0; f && i < f->n; i++) {
        st_close(f->files[i]);
        free(f->names[i]);
    }
    if (f) free(f->files);
    if (f) free(f->names);
    free(f);
}

const st_tensor *hf_folder_find(const hf_folder *f, const char *name, uint32_t *file) {
    for (*file = 0; *file < f->n; ++*file) {
        const st_tensor *t = st_find(f->files[*file], name);
        if (t) return t;
    }
    return NULL;
}

moe_status hf_folder_extra_layers(const char *path, int64_t *out, moe_err *err) {
    *out = 0;
    if (!exists(path, "config.json")) return MOE_OK;
    json_t *root = load_object(path, "config.json", CONFIG_MOST, err);
    if (!root) return err->code;
    json_int_t n = json_integer_value(json_object_get(root, "num_nextn_predict_layers"));
    *out = n > 0 ? n : 0;
    json_decref(root);
    return MOE_OK;
}
