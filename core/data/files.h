/* Patterns to files: what data_open of bytes.h does before it reads. */
#ifndef CORE_DATA_FILES_H
#define CORE_DATA_FILES_H
#include "data/bytes.h"

typedef struct file_list {
    data_file *files; /* [n], sorted by real path, each once, none empty; paths are owned */
    uint64_t n, room;
    uint64_t bytes; /* sum of sizes, <= DATA_LIMIT */
} file_list;

/* Fills list (zeroed before) with the files of patterns[n]; what: "train" or "valid", for errors. On failure the list
 * still has to be destroyed. */
moe_status files_expand(const data_config *cfg, const char *what, const char *const *patterns, uint64_t n,
                        file_list *list, moe_err *err);
void files_destroy(file_list *list);

/* Calls cfg->note with a formatted line. */
__attribute__((format(printf, 2, 3))) void files_note(const data_config *cfg, const char *format, ...);
#endif
