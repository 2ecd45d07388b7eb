/* Types and values as text: one grammar for the recipe's own keys, for command line options and for the schemas that
 * plugins publish (moe_option in moe/base.h).
 *   both:      "int LO..HI"  "float LO..HI"  "bool"  "enum a|b|c"  "string"
 *   host only: "int LO..HI or WORD"  "size"  "list"  "path list"  "enum a|b|c:LO..HI" (c with a number: c:1.25)  */
#ifndef HOST_VALUE_H
#define HOST_VALUE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum value_kind {
    VALUE_INT,    /* decimal, 64 bits, no suffix */
    VALUE_FLOAT,  /* decimal, finite */
    VALUE_BOOL,   /* true|false|yes|no|on|off */
    VALUE_ENUM,   /* one of the words */
    VALUE_STRING, /* anything, empty too */
    VALUE_SIZE,   /* bytes, or with B, KiB, MiB, GiB, TiB */
    VALUE_LIST,   /* items between commas; blanks around an item do not count; empty = no items */
    VALUE_PATHS   /* a list of paths or globs */
} value_kind;

typedef struct value_type {
    value_kind kind;
    int64_t lo, hi;   /* VALUE_INT, VALUE_SIZE */
    double flo, fhi;  /* VALUE_FLOAT */
    const char *span; /* the words "a|b|c" or the range "LO..HI" inside the type text; borrowed */
    int span_len;
    const char *word; /* of "or WORD", else NULL; borrowed */
} value_type;

typedef struct typed_value {
    int64_t i; /* VALUE_INT, VALUE_SIZE (bytes), VALUE_BOOL (0, 1), VALUE_ENUM (index of the word) */
    double f;  /* VALUE_FLOAT; VALUE_INT too; the number of a word of VALUE_ENUM that has one */
    bool word; /* "or WORD" was given; i is 0 */
} typed_value;

/* Reads a type text. host: allow the host-only forms. False with the reason in why when it is malformed. */
bool value_type_parse(const char *text, bool host, value_type *type, char *why, size_t bytes);
/* Reads text as that type. False with the reason in why ("'x' is not a whole number", "65 is outside 1..64"). */
bool value_parse(const value_type *type, const char *text, typed_value *out, char *why, size_t bytes);
/* The i-th item of a list, blanks trimmed: its start and length in text. False past the last item. */
bool value_list_item(const char *text, size_t i, const char **start, size_t *length);

#endif
