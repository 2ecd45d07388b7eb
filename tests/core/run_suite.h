/* What the tests of core share: the end of every main, and checks of a status with its text. */
#ifndef TESTS_CORE_RUN_SUITE_H
#define TESTS_CORE_RUN_SUITE_H
#include <check.h>
#include <moe/base.h>
#include <string.h>

/* Sanitizers slow and enlarge what they watch: figures of time and memory are not asserted under them. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNDER_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNDER_SANITIZER 1
#endif
#endif
#ifndef UNDER_SANITIZER
#define UNDER_SANITIZER 0
#endif

/* The call succeeds; it names its error `err`. */
#define check_ok(call)                                                            \
    do {                                                                          \
        moe_err err_ = {.size = sizeof err_};                                     \
        moe_err *err = &err_;                                                     \
        moe_status status_ = (call);                                              \
        ck_assert_msg(status_ == MOE_OK, "%s: %d: %s", #call, status_, err_.msg); \
    } while (0)

/* The call fails with this code, and with these words in its text. */
#define check_fails(call, code_, ...)                                                                  \
    do {                                                                                               \
        moe_err err_ = {.size = sizeof err_};                                                          \
        moe_err *err = &err_;                                                                          \
        moe_status status_ = (call);                                                                   \
        ck_assert_msg(status_ == (code_), "%s: %d, expected %d: %s", #call, status_, code_, err_.msg); \
        check_text(err_.msg, (const char *const[]){__VA_ARGS__, NULL});                                \
    } while (0)

static inline void check_text(const char *text, const char *const *words) {
    for (; *words; words++) ck_assert_msg(strstr(text, *words) != NULL, "'%s' lacks '%s'", text, *words);
}

static inline int run_suite_of(Suite *s) {
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
static inline int run_suite(const char *name, TCase *t) {
    Suite *s = suite_create(name);
    suite_add_tcase(s, t);
    return run_suite_of(s);
}
#endif
