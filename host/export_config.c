/* The weights' own config.json as the source of what training does not change. */
#include "export_config.h"

#include <io/fs.h>
#include <jansson.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A token's id, a list of them, or null. */
static int is_ids(const json_t *value) {
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!json_is_integer(json_array_get(value, i))) return 0;
    return json_is_integer(value) || json_is_array(value) || json_is_null(value);
}

static moe_status take(json_t *to, const json_t *from, const char *path, moe_err *err) {
    static const char *const ids[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    static const char positions[] = "max_position_embeddings";
    int bad = 0;
    for (int i = 0; i < 3; i++) {
        json_t *value = json_object_get(from, ids[i]);
        if (value && !is_ids(value))
            return fs_fail(err, MOE_E_DATA, path, "%s is neither a token id, nor a list of them, nor null", ids[i]);
        if (value) bad |= json_object_set(to, ids[i], value);
    }
    json_t *longest = json_object_get(from, positions);
    if (longest && !json_is_integer(longest)) return fs_fail(err, MOE_E_DATA, path, "%s is no whole number", positions);
    if (json_integer_value(longest) > json_integer_value(json_object_get(to, positions)))
        bad |= json_object_set(to, positions, longest);
    return bad ? fs_fail(err, MOE_E_NOMEM, path, "out of memory") : MOE_OK;
}

static moe_status merge(char **config, const char *path, const char *base, uint64_t n, moe_err *err) {
    json_error_t where;
    json_t *from = json_loadb(base, n, 0, &where), *to = NULL;
    moe_status status = MOE_OK;
    if (!from)
        status = fs_fail(err, MOE_E_DATA, path, "%d:%d: %s", where.line, where.column, where.text);
    else if (!json_is_object(from))
        status = fs_fail(err, MOE_E_DATA, path, "is no JSON object");
    else if (!(to = json_loads(*config, 0, NULL)))
        status = fs_fail(err, MOE_E_NOMEM, path, "out of memory");
    if (!status) status = take(to, from, path, err);
    char *text = status ? NULL : json_dumps(to, JSON_INDENT(2) | JSON_REAL_PRECISION(15)); /* as hf_config_text */
    if (!status && !text) status = fs_fail(err, MOE_E_NOMEM, path, "out of memory");
    if (!status) {
        free(*config);
        *config = text;
    }
    json_decref(from);
    json_decref(to);
    return status;
}

moe_status export_config_complete(char **config, const char *folder, moe_err *err) {
    if (!folder) return MOE_OK;
    char *path = fs_join(folder, "config.json"), *base = NULL;
    uint64_t n = 0;
    moe_status status = path ? MOE_OK : fs_fail(err, MOE_E_NOMEM, folder, "out of memory");
    if (!status && access(path, F_OK) == 0) {
        status = fs_load(path, 1U << 26, &base, &n, err);
        if (!status) status = merge(config, path, base, n, err);
    }
    free(base);
    free(path);
    return status;
}
