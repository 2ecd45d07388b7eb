/* What the tests of the host's front half share: a list of error lines compared with words, and text files. */
#ifndef TESTS_HOST_CHECK_LINES_H
#define TESTS_HOST_CHECK_LINES_H
#include <check.h>
#include <errors.h>
#include <stdlib.h>
#include <string.h>

/* One error, and it holds these words; the list is empty afterwards. */
static inline void check_one_line(err_list *errs, const char *what, const char *words) {
    if (err_list_count(errs) != 1) err_list_print(errs, stderr);
    ck_assert_msg(err_list_count(errs) == 1, "%s: %zu errors, not 1", what, err_list_count(errs));
    ck_assert_msg(strstr(errs->lines[0], words) != NULL, "%s: '%s' lacks '%s'", what, errs->lines[0], words);
    err_list_clear(errs);
}

static inline int run_case(TCase *tests) {
    Suite *suite = suite_create("host");
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
#endif
