/* The bytes format: every byte of a file is a token, and a file is one document. */
#include "data/element.h"
#include "data/reader.h"

moe_status bytes_open(corpus_file *f, const data_config *cfg, moe_err *err) {
    (void)cfg;
    moe_status s = map_open(&f->content, f->info.path, err);
    f->element = ELEMENT_U8;
    f->info.tokens = f->content.n;
    f->info.documents = 1;
    return s;
}
