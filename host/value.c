/* The grammar of types and values. Numbers are plain decimal: no hex, no sign '+', no infinity, no thousands. */
#include "value.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "suggest.h"

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}
static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* ---- numbers ---- */
enum { NUMBER_OK, NUMBER_BAD, NUMBER_FAR };

/* -?[0-9]+ in the n bytes at text */
static int read_int(const char *text, size_t n, int64_t *out) {
    char digits[32];
    size_t start = n > 0 && text[0] == '-';
    if (start == n) return NUMBER_BAD;
    for (size_t i = start; i < n; i++)
        if (!is_digit(text[i])) return NUMBER_BAD;
    if (n >= sizeof digits) return NUMBER_FAR;
    memcpy(digits, text, n);
    digits[n] = '\0';
    errno = 0;
    *out = strtoll(digits, NULL, 10);
    return errno == ERANGE ? NUMBER_FAR : NUMBER_OK;
}

/* -?digits[.digits][e[+-]digits] in the n bytes at text */
static int read_float(const char *text, size_t n, double *out) {
    char copy[64];
    size_t i = n > 0 && text[0] == '-', digits = 0;
    for (; i < n && is_digit(text[i]); i++) digits++;
    if (i < n && text[i] == '.')
        for (i++; i < n && is_digit(text[i]); i++) digits++;
    if (digits == 0) return NUMBER_BAD;
    if (i < n && (text[i] == 'e' || text[i] == 'E')) {
        i++;
        if (i < n && (text[i] == '-' || text[i] == '+')) i++;
        if (i == n) return NUMBER_BAD;
        while (i < n && is_digit(text[i])) i++;
    }
    if (i != n) return NUMBER_BAD;
    if (n >= sizeof copy) return NUMBER_FAR;
    memcpy(copy, text, n);
    copy[n] = '\0';
    errno = 0;
    *out = strtod(copy, NULL);
    return errno == ERANGE && (isinf(*out) || fabs(*out) < 1e-300) ? NUMBER_FAR : NUMBER_OK;
}

/* ---- types ---- */
static bool bad_type(const char *text, const char *cause, char *why, size_t bytes) {
    snprintf(why, bytes, "type '%.60s': %s", text, cause);
    return false;
}

static bool parse_range(const char *text, const char *range, value_type *t, char *why, size_t bytes) {
    const char *dots = strstr(range, "..");
    if (!dots) return bad_type(text, "a range LO..HI is missing", why, bytes);
    const char *hi = dots + 2;
    size_t n_hi = strcspn(hi, " "), n_lo = (size_t)(dots - range);
    bool read = t->kind == VALUE_INT
                    ? read_int(range, n_lo, &t->lo) == NUMBER_OK && read_int(hi, n_hi, &t->hi) == NUMBER_OK
                    : read_float(range, n_lo, &t->flo) == NUMBER_OK && read_float(hi, n_hi, &t->fhi) == NUMBER_OK;
    if (!read) return bad_type(text, "the ends of LO..HI must be numbers", why, bytes);
    if (t->kind == VALUE_INT ? t->lo > t->hi : t->flo > t->fhi)
        return bad_type(text, "the range LO..HI is empty", why, bytes);
    t->span = range;
    t->span_len = (int)(hi + n_hi - range);
    const char *rest = hi + n_hi;
    if (strncmp(rest, " or ", 4) == 0 && rest[4] && !strchr(rest + 4, ' ')) {
        t->word = rest + 4;
        return true;
    }
    return *rest == '\0' || bad_type(text, "text after the range", why, bytes);
}

static bool parse_words(const char *text, const char *words, value_type *t, char *why, size_t bytes) {
    size_t n = strlen(words);
    if (n == 0 || words[0] == '|' || words[n - 1] == '|' || strstr(words, "||"))
        return bad_type(text, "an enum needs words: a|b", why, bytes);
    if (strpbrk(words, " \t")) return bad_type(text, "words of an enum hold no blanks", why, bytes);
    if (n > 400) return bad_type(text, "more than 400 bytes of words", why, bytes);
    t->span = words;
    t->span_len = (int)n;
    return true;
}

bool value_type_parse(const char *text, bool host, value_type *type, char *why, size_t bytes) {
    *type = (value_type){.kind = VALUE_STRING, .lo = INT64_MIN, .hi = INT64_MAX, .span = ""};
    if (strncmp(text, "int ", 4) == 0) {
        type->kind = VALUE_INT;
        if (!parse_range(text, text + 4, type, why, bytes)) return false;
        return host || !type->word || bad_type(text, "text after the range", why, bytes);
    }
    if (strncmp(text, "float ", 6) == 0) {
        type->kind = VALUE_FLOAT;
        if (!parse_range(text, text + 6, type, why, bytes)) return false;
        return !type->word || bad_type(text, "text after the range", why, bytes);
    }
    if (strncmp(text, "enum ", 5) == 0) {
        type->kind = VALUE_ENUM;
        if (!host && strchr(text, ':')) return bad_type(text, "words of an enum hold no ':'", why, bytes);
        return parse_words(text, text + 5, type, why, bytes);
    }
    static const struct {
        const char *text;
        value_kind kind;
        bool host;
    } plain[] = {{"bool", VALUE_BOOL, false},
                 {"string", VALUE_STRING, false},
                 {"size", VALUE_SIZE, true},
                 {"list", VALUE_LIST, true},
                 {"path list", VALUE_PATHS, true}};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcmp(text, plain[i].text) == 0 && (host || !plain[i].host)) {
            type->kind = plain[i].kind;
            if (type->kind == VALUE_SIZE) type->lo = 0;
            return true;
        }
    return bad_type(text, "not one of int LO..HI, float LO..HI, bool, enum a|b, string", why, bytes);
}

/* ---- values ---- */
static bool parse_number(const value_type *t, const char *text, typed_value *out, char *why, size_t bytes) {
    bool whole = t->kind == VALUE_INT;
    int status = whole ? read_int(text, strlen(text), &out->i) : read_float(text, strlen(text), &out->f);
    if (status == NUMBER_BAD) {
        snprintf(why, bytes, "'%.60s' is not a %s (%.*s%s%s)", text, whole ? "whole number" : "number", t->span_len,
                 t->span, t->word ? " or " : "", t->word ? t->word : "");
        return false;
    }
    if (whole) out->f = (double)out->i;
    bool outside = whole ? out->i < t->lo || out->i > t->hi : out->f < t->flo || out->f > t->fhi;
    if (status == NUMBER_FAR || outside) {
        snprintf(why, bytes, "%.60s is outside %.*s", text, t->span_len, t->span);
        return false;
    }
    return true;
}

static bool parse_bool(const char *text, typed_value *out, char *why, size_t bytes) {
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
    for (int i = 0; i < 6; i++)
        if (strcasecmp(text, words[i]) == 0) {
            out->i = i & 1;
            return true;
        }
    snprintf(why, bytes, "'%.60s' is not one of true|false|yes|no|on|off", text);
    return false;
}

/* text is "word:NUMBER" for the word "word:LO..HI"? Then what of the number. */
static bool parse_numbered(const char *word, const char *text, double *out, bool *good) {
    const char *range = strchr(word, ':');
    size_t n = range ? (size_t)(range - word) + 1 : 0;
    value_type t = {.kind = VALUE_FLOAT};
    char why[96];
    if (!n || strncmp(text, word, n) != 0) return false;
    *good = parse_range(word, range + 1, &t, why, sizeof why) &&
            read_float(text + n, strlen(text + n), out) == NUMBER_OK && *out >= t.flo && *out <= t.fhi;
    return true;
}

static bool parse_enum(const value_type *t, const char *text, typed_value *out, char *why, size_t bytes) {
    char words[512], hint[96];
    snprintf(words, sizeof words, "%.*s", t->span_len, t->span);
    suggest near = suggest_begin(text);
    int index = 0;
    char *save = NULL;
    for (char *w = strtok_r(words, "|", &save); w; w = strtok_r(NULL, "|", &save), index++) {
        suggest_offer(&near, w);
        if (strcmp(w, text) == 0) {
            out->i = index;
            return true;
        }
        bool good = false;
        if (!parse_numbered(w, text, &out->f, &good)) continue;
        out->i = index;
        if (!good) snprintf(why, bytes, "'%.60s' is no %s", text, w);
        return good;
    }
    snprintf(why, bytes, "'%.60s' is not one of %.*s%s", text, t->span_len, t->span,
             suggest_text(&near, hint, sizeof hint));
    return false;
}

static bool parse_size(const value_type *t, const char *text, typed_value *out, char *why, size_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t digits = strspn(text, "0123456789");
    const char *unit = text + digits + strspn(text + digits, " ");
    int power = *unit ? -1 : 0;
    for (int i = 0; i < 5; i++)
        if (strcmp(unit, units[i]) == 0) power = i;
    if (digits == 0 || power < 0) {
        snprintf(why, bytes, "'%.60s' is not a size: whole bytes, or a whole number of KiB, MiB, GiB or TiB", text);
        return false;
    }
    int64_t count = 0;
    if (read_int(text, digits, &count) != NUMBER_OK || count > t->hi >> (10 * power)) {
        snprintf(why, bytes, "%.60s is more than 63 bits of bytes", text);
        return false;
    }
    out->i = count << (10 * power);
    return true;
}

bool value_list_item(const char *text, size_t i, const char **start, size_t *length) {
    if (text[strspn(text, " \t")] == '\0') return false;
    for (;; i--) {
        size_t n = strcspn(text, ",");
        if (i == 0) {
            while (n > 0 && is_blank(text[n - 1])) n--;
            size_t skip = 0;
            while (skip < n && is_blank(text[skip])) skip++;
            *start = text + skip;
            *length = n - skip;
            return true;
        }
        if (text[n] == '\0') return false;
        text += n + 1;
    }
}

static bool parse_list(const char *text, typed_value *out, char *why, size_t bytes) {
    const char *start;
    size_t length, i = 0;
    for (; value_list_item(text, i, &start, &length); i++)
        if (length == 0) {
            snprintf(why, bytes, "item %zu of the list is empty", i + 1);
            return false;
        }
    out->i = (int64_t)i;
    return true;
}

bool value_parse(const value_type *type, const char *text, typed_value *out, char *why, size_t bytes) {
    *out = (typed_value){.i = 0};
    if (type->word && strcmp(type->word, text) == 0) {
        out->word = true;
        return true;
    }
    if (text[0] == '\0' && type->kind <= VALUE_ENUM) {
        snprintf(why, bytes, "the value is empty");
        return false;
    }
    switch (type->kind) {
        case VALUE_INT:
        case VALUE_FLOAT:
            return parse_number(type, text, out, why, bytes);
        case VALUE_BOOL:
            return parse_bool(text, out, why, bytes);
        case VALUE_ENUM:
            return parse_enum(type, text, out, why, bytes);
        case VALUE_SIZE:
            return parse_size(type, text, out, why, bytes);
        case VALUE_LIST:
        case VALUE_PATHS:
            return parse_list(text, out, why, bytes);
        case VALUE_STRING:
            break;
    }
    return true;
}
