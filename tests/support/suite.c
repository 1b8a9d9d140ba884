#include "tests/support/suite.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tests/support/now.h"

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

/* Check writes every assert that holds to a file, so that it can say behind which one a signal or the limit
 * ended a test. This was most of the time of tests that compare many values. An assert is written the first
 * time, and after that if nothing was for some milliseconds: what is said may be that much too early. */
void __real__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line)
{
    enum { POINTS = 64, QUIET_MS = 10 };
    static _Thread_local struct {
        const char *file;
        int line;
    } written[POINTS];
    static _Thread_local int64_t written_ms;
    const size_t at = ((uintptr_t)file / 8 + (unsigned)line) % POINTS;
    const bool is_new = written[at].file != file || written[at].line != line;
    const int64_t now = now_ms();
    if (!is_new && now - written_ms < QUIET_MS) return;
    written[at].file = file;
    written[at].line = line;
    written_ms = now;
    __real__mark_point(file, line);
}

int suite_main(void)
{
    if (suite == NULL || cases != NULL) {
        fprintf(stderr, "tests without a SUITE below them\n");
        return 1;
    }
    return suite_run(suite);
}
