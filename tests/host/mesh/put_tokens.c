/* put_tokens FILE ROWS SEQ VOCAB PADDED: tokens [ROWS,SEQ] for `moehost eval`, made up, the same every time; PADDED 1:
 * with a mask, in which every third row ends early. */
#include <moe/random.h>
#include <stdio.h>
#include <stdlib.h>

#include "io/safetensors.h"

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: put_tokens FILE ROWS SEQ VOCAB PADDED\n");
        return 2;
    }
    int64_t rows = atoll(argv[2]), seq = atoll(argv[3]), vocab = atoll(argv[4]), n = rows * seq;
    int padded = atoi(argv[5]);
    int32_t *tokens = malloc((size_t)n * sizeof *tokens);
    uint8_t *mask = malloc((size_t)n);
    const int64_t shape[] = {rows, seq};
    moe_random_key key = moe_random_key_make(7, MOE_RANDOM_DATA, "put_tokens");
    st_writer *w = NULL;
    moe_err err = {.size = sizeof err};
    if (!tokens || !mask) return 2;
    for (int64_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)(moe_random_words(key, (uint64_t)i, 0).v[0] % (uint32_t)vocab);
        mask[i] = !(i / seq % 3 == 2 && i % seq >= seq / 2);
    }
    moe_status status = st_writer_create(argv[1], &w, &err);
    if (!status) status = st_writer_declare(w, "tokens", MOE_I32, 2, shape, &err);
    if (!status && padded) status = st_writer_declare(w, "mask", MOE_U8, 2, shape, &err);
    if (!status) status = st_write(w, tokens, (uint64_t)n * sizeof *tokens, &err);
    if (!status && padded) status = st_write(w, mask, (uint64_t)n, &err);
    if (!status) status = st_writer_finish(w, &err);
    if (status) fprintf(stderr, "put_tokens: %s\n", err.msg);
    free(tokens);
    free(mask);
    return status ? 2 : 0;
}
