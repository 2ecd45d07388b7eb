/* The plugins of odd.so: right by default, wrong where their option `fault` says so. */
#ifndef TESTS_TRYOUT_ODD_H
#define TESTS_TRYOUT_ODD_H
#include <moe/plugin.h>

extern const moe_desc odd_router, odd_dispatcher, odd_scheduler;

#endif
