/* The tables of the recipe's sections and keys: name, type, default, help. Everything else is made from them - reading,
 * checking, the resolved recipe and recipes/README.md. */
#ifndef HOST_KEYS_H
#define HOST_KEYS_H
#include <stdbool.h>
#include <stddef.h>

/* One key. type: grammar of value.h. dflt NULL = required. */
typedef struct key_row {
    const char *key, *type, *dflt, *help;
} key_row;

typedef struct section_row {
    const char *name, *help;
    const key_row *keys; /* [n_keys] */
    size_t n_keys;
    const char *plugin; /* the plugin used when the recipe names none; NULL: the section has no plugin. In a plugin
                         * section every key that is not in `keys` is an option of the plugin. */
    bool layers;        /* [name:0-3,5] overrides it for some layers */
    bool parts;         /* [name:experts] overrides it for the experts' products */
} section_row;

/* All sections, in the order of the resolved recipe. */
const section_row *keys_sections(size_t *n);
/* By name, or NULL. */
const section_row *keys_find_section(const char *name);
const key_row *keys_find(const section_row *section, const char *key);

#endif
