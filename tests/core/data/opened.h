/* Opening a reader in a test: it must, or must not. */
#ifndef TESTS_CORE_DATA_OPENED_H
#define TESTS_CORE_DATA_OPENED_H
#include "core/io/scratch.h"
#include "data/data.h"

static inline data_reader *opened(const data_config *cfg) {
    data_reader *r = NULL;
    ck_ok(data_open(cfg, &r, err));
    return r;
}

static inline void refused(const data_config *cfg, moe_status code, const char *text) {
    data_reader *none = NULL;
    ck_fails(data_open(cfg, &none, err), code, text);
    ck_assert_ptr_null(none);
}

#endif
