/* Reading the options that the host gave to create. The host has checked type and range against the published schema,
 * so a missing key here is a fault of the plugin's own table. Header-only; not part of the binary contract. */
#ifndef MOE_OPTIONS_H
#define MOE_OPTIONS_H
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"

/* The value of key, or NULL. */
static inline const char *moe_kv_find(const moe_kv *kv, uint64_t n, const char *key) {
    for (uint64_t i = 0; i < n; i++)
        if (strcmp(kv[i].key, key) == 0) return kv[i].value;
    return NULL;
}
static inline int64_t moe_kv_int(const moe_kv *kv, uint64_t n, const char *key, int64_t absent) {
    const char *v = moe_kv_find(kv, n, key);
    return v ? strtoll(v, NULL, 10) : absent;
}
static inline double moe_kv_float(const moe_kv *kv, uint64_t n, const char *key, double absent) {
    const char *v = moe_kv_find(kv, n, key);
    return v ? strtod(v, NULL) : absent;
}
static inline int moe_kv_is(const moe_kv *kv, uint64_t n, const char *key, const char *word) {
    const char *v = moe_kv_find(kv, n, key);
    return v && strcmp(v, word) == 0;
}

/* Fills err (never NULL) and returns code: `return moe_fail(err, MOE_E_ARG, "k is %d", k);` */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static inline moe_status
moe_fail(moe_err *err, moe_status code, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    err->size = (uint32_t)sizeof(moe_err);
    err->code = code;
    vsnprintf(err->msg, sizeof err->msg, format, ap);
    va_end(ap);
    return code;
}

#endif
