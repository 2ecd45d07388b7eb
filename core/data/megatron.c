/* The megatron format: a .bin of tokens whose .idx tells where its documents part; see idx.h. */
#include "data/element.h"
#include "data/reader.h"
#include "io/fs.h"

moe_status megatron_open(corpus_file *f, const char *index, moe_err *err) {
    moe_status s = map_open(&f->content, f->info.path, err);
    if (s == MOE_OK) s = map_open(&f->index, index, err);
    if (s == MOE_OK && f->content.n == 0) s = fs_fail(err, MOE_E_DATA, f->info.path, "offset 0: has no token");
    if (s == MOE_OK) map_expect(&f->index, MAP_IN_ORDER);
    if (s == MOE_OK) s = idx_parse(f->index.bytes, f->index.n, f->content.n, index, &f->documents, err);
    if (s != MOE_OK) return s;
    f->element = f->documents.element;
    f->info.tokens = f->documents.n_tokens;
    f->info.documents = f->documents.n_documents;
    return MOE_OK;
}

uint64_t megatron_cut(const corpus_file *f, uint64_t wanted) {
    if (wanted >= f->info.tokens) return f->info.tokens;
    uint64_t after = idx_after(&f->documents, wanted);
    uint64_t high = idx_start(&f->documents, after), low = idx_start(&f->documents, after - 1);
    return high - wanted < wanted - low ? high : low;
}
