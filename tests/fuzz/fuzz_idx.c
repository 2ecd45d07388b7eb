/* Megatron's .idx: the first eight bytes are the size of the .bin, the rest is the index. What parses has documents in
 * order that end where the tokens end. */
#include <string.h>

#include "data/idx.h"
#include "file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t bin = 0;
    idx_view v;
    moe_err err = {.size = sizeof err};
    if (size < sizeof bin) return 0;
    memcpy(&bin, data, sizeof bin);
    moe_status status = idx_parse(data + sizeof bin, size - sizeof bin, bin, "fuzz.idx", &v, &err);
    if (status) {
        if (!err.msg[0]) abort();
        return 0;
    }
    if (idx_start(&v, 0) != 0 || idx_start(&v, v.n_documents) != v.n_tokens) abort();
    for (uint64_t d = 0; d < v.n_documents; d++)
        if (idx_start(&v, d) > idx_start(&v, d + 1)) abort();
    for (uint64_t t = 0; t < v.n_tokens && t < 64; t++) {
        uint64_t d = idx_after(&v, t);
        if (d < 1 || d > v.n_documents || idx_start(&v, d) <= t || idx_start(&v, d - 1) > t) abort();
    }
    return 0;
}
