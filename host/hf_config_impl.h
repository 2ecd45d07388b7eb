/* What the two halves of reading config.json share: hf_config_table.c has the keys that are a row of a table each,
 * hf_config.c those that need more. */
#ifndef HOST_HF_CONFIG_IMPL_H
#define HOST_HF_CONFIG_IMPL_H
#include <hf/map.h>
#include <inttypes.h>
#include <jansson.h>

#include "hf_config.h"

typedef struct hf_reader {
    const char *text, *name; /* [n], and what errors call it */
    size_t n;
    json_t *root;
    hf_config *c;
    err_list *notes, *errs;
} hf_reader;

/* Every row of the family's keys, and every key that is in no row. */
void hf_read_table(hf_reader *r);

/* "config.json:12: key = value: reason"; parent: the object that holds the key, NULL = the outermost; value NULL: the
 * key is not there. */
__attribute__((format(printf, 5, 6))) void hf_refuse(hf_reader *r, const char *parent, const char *key,
                                                     const json_t *value, const char *format, ...);
/* value as a number, whole number or truth value in lo..hi; false and an error when it is none. */
bool hf_read_real(hf_reader *r, const char *parent, const char *key, const json_t *value, double lo, double hi,
                  double *out);
bool hf_read_int(hf_reader *r, const char *parent, const char *key, const json_t *value, double lo, double hi,
                 int64_t *out);
bool hf_read_bool(hf_reader *r, const char *parent, const char *key, const json_t *value, bool *out);
/* An error when a key that says again what others say (`of`) says something else. */
void hf_check_same(hf_reader *r, const char *key, int64_t expected, const char *of);
#endif
