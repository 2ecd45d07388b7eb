/* What the program refuses, and what it says: recipes, options, plugins, files and command lines, each given to the
 * real program (build/moehost). Rows that are right stand between those that are wrong. */
#include <stdlib.h>

#include "runner.h"

int main(void) {
    Suite *s = suite_create("host_refusals");
    suite_add_tcase(s, ini_tests());
    suite_add_tcase(s, recipe_tests());
    suite_add_tcase(s, option_tests());
    suite_add_tcase(s, plugin_tests());
    suite_add_tcase(s, file_tests());
    suite_add_tcase(s, command_tests());
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
