/* metrics.jsonl of an earlier run, as --resume finds it: it opens and takes a line, or says why not. */
#include <string.h>

#include "file.h"
#include "metrics.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    metrics *m = NULL;
    moe_err err = {.size = sizeof err};
    int fd = file_of(data, size, path);
    moe_status status = metrics_open(path, 5, &m, &err);
    if (status && !err.msg[0]) abort();
    if (!status) {
        metrics_row row = {.step = 5};
        if (metrics_write(m, &row, &err)) abort();
        metrics_close(m);
    }
    close(fd);
    return 0;
}
