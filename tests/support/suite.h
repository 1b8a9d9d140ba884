/* How a test program ends. */
#ifndef CAIRN_TESTS_SUITE_H
#define CAIRN_TESTS_SUITE_H

#include <check.h>
#include <stdlib.h>
#include <unistd.h>

/* UCX starts a thread when it is loaded, which looks for a file system of its own and ends. The madvise of a
 * thread that ends is hooked by UCX: a test that is forked in that moment has the hook's lock held by nobody,
 * and hangs in ucp_init (seen with UCX 1.18). So the program begins again, without that thread. */
__attribute__((constructor)) static void suite_begin_without_thread(int argc, char **argv)
{
    (void)argc;
    if (getenv("UCX_VFS_ENABLE") != NULL || setenv("UCX_VFS_ENABLE", "n", 1) != 0) return;
    execv("/proc/self/exe", argv);
}

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
