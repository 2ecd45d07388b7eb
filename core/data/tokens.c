/* The tokens format: a file is a plain array of little-endian ids and one document. */
#include "data/element.h"
#include "data/reader.h"
#include "io/fs.h"

moe_status tokens_open(corpus_file *f, const data_config *cfg, moe_err *err) {
    static const int elements[] = {[DATA_U16] = ELEMENT_U16, [DATA_U32] = ELEMENT_U32, [DATA_I32] = ELEMENT_I32};
    moe_status s = map_open(&f->content, f->info.path, err);
    if (s != MOE_OK) return s;
    f->element = elements[cfg->token_dtype];
    uint32_t bytes = element_bytes(f->element);
    if (f->content.n % bytes)
        return fs_fail(
            err, MOE_E_DATA, f->info.path, "offset %llu: ends within a token: %llu bytes are no multiple of %u (%s)",
            (f->content.n - f->content.n % bytes) + 0ull, f->content.n + 0ull, bytes, element_name(f->element));
    f->info.tokens = f->content.n / bytes;
    f->info.documents = 1;
    return MOE_OK;
}
