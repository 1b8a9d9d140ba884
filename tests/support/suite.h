/* How a test program ends. */
#ifndef CAIRN_TESTS_SUITE_H
#define CAIRN_TESTS_SUITE_H

#include <check.h>

/* Runs the suite (CK_VERBOSITY says how much is told), and is what main returns: 0 if nothing failed. */
static inline int suite_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

#endif
