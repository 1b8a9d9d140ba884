#include "tests/support/suite.h"

#include <errno.h>
#include <stdio.h>

static Suite *suite;
static TCase *cases; /* NULL: the next test begins them */

void suite_add(const TTest *test, int signal, int first, int end)
{
    if (cases == NULL) cases = tcase_create(program_invocation_short_name);
    tcase_add_loop_test_raise_signal(cases, test, signal, first, end);
}

void suite_close(struct suite_manner manner)
{
    if (suite == NULL) suite = suite_create(program_invocation_short_name);
    tcase_set_timeout(cases, manner.seconds);
    tcase_add_checked_fixture(cases, manner.set_up, manner.tear_down);
    suite_add_tcase(suite, cases);
    cases = NULL;
}

int suite_run(Suite *of)
{
    SRunner *runner = srunner_create(of);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

int suite_main(void)
{
    if (suite == NULL || cases != NULL) {
        fprintf(stderr, "tests without a SUITE below them\n");
        return 1;
    }
    return suite_run(suite);
}
