/* safetensors files: whatever opens can be read to its last byte. */
#include <string.h>

#include "file.h"
#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    int fd = file_of(data, size, path);
    st_file *f = NULL;
    moe_err err = {.size = sizeof err};
    moe_status status = st_open(path, &f, &err);
    if (status && (!err.msg[0] || f)) abort();
    for (uint64_t i = 0; !status && i < st_count(f); i++) {
        const st_tensor *t = st_at(f, i);
        if (st_find(f, t->name) != t) abort();
        void *out = malloc(t->bytes + !t->bytes);
        if (!out || st_read(f, t, out, t->bytes, &err)) abort();
        free(out);
        if (!st_read_part(f, t, t->bytes, &i, 1, &err)) abort(); /* one byte past the end */
    }
    st_close(f);
    close(fd);
    return 0;
}
