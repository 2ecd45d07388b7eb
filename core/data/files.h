/* Patterns to files: what data_open does before it opens any. */
#ifndef CORE_DATA_FILES_H
#define CORE_DATA_FILES_H
#include "data/data.h"

typedef struct file_name {
    char *path, *index; /* real paths of the content and of its .idx (megatron, else NULL) */
    uint64_t source;    /* number of its pattern where patterns have weights, else 0 */
} file_name;

typedef struct file_list {
    file_name *names; /* [n], sorted by source, then path, each path once; owned */
    uint64_t n, room;
} file_list;

/* Fills list (zeroed before) with the files of patterns[n]; what: "train" or "valid", for errors; weighted: a path
 * under two patterns is refused. Files without bytes are noted and left out, but for megatron. On failure the list
 * still has to be destroyed. */
moe_status files_expand(const data_config *cfg, const char *what, const char *const *patterns, uint64_t n, int weighted,
                        file_list *list, moe_err *err);
void files_destroy(file_list *list);

/* Calls cfg->note with a formatted line. */
__attribute__((format(printf, 2, 3))) void files_note(const data_config *cfg, const char *format, ...);
#endif
