/* What the two halves of checkpoints share, and tests of them; users include checkpoint.h. */
#ifndef CORE_IO_CHECKPOINT_META_H
#define CORE_IO_CHECKPOINT_META_H
#include <jansson.h>
#include <moe/base.h>

#define CKPT_FORMAT "moehost checkpoint"
enum { CKPT_HASH_CHARS = 17 }; /* 16 hexadecimal digits and NUL */

/* XXH3-64 of meta without its own "meta_xxh3_64", as compact JSON with sorted keys. 0 = out of memory. */
int ckpt_seal(const json_t *meta, char hash[CKPT_HASH_CHARS]);

/* Puts temp in place of final, an existing directory, where the file system cannot exchange names: final -> aside,
 * temp -> final. Killed in between, the old one is found under `aside` by ckpt_latest and put back by ckpt_begin. */
moe_status ckpt_replace_by_renames(const char *temp, const char *final, const char *aside, moe_err *err);
#endif
