/* What must be the same on all ranks of a run - recipe, plugins - compared before anything is computed. */
#ifndef HOST_COMPARE_H
#define HOST_COMPARE_H
#include <moe/base.h>

/* [main, collective] Are the lines of text the same on all ranks? A line is "[section]", "key = value", or a comment
 * (ignored, as is what stands behind " ;"). MOE_E_ARG on every rank with the first line that differs and the two ranks,
 * the first of which is 0. what: "recipe", for the error. */
moe_status compare_texts(const moe_bootstrap *b, const char *what, const char *text, moe_err *err);

#endif
