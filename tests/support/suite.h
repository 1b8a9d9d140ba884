/* A test program: tests that are sentences, and at the end what they begin and end with.
 *
 *   TEST(a_stale_chunk_changes_nothing) { ... }
 *   TEST_EACH(every_kind_arrives_whole, 0, KINDS) { ... _i ... }
 *   SUITE(30, set_up, tear_down); // at most 30 seconds each; or SUITE(30)
 *
 * The seconds end what hangs and measure nothing: where others use the processors all takes much longer.
 *
 * A SUITE takes all that stand above it since the one before. Each test is a process of its own, with its
 * set_up and tear_down. `main` is in the support library, for whoever has none. */
#ifndef CAIRN_TESTS_SUITE_H
#define CAIRN_TESTS_SUITE_H

#include <check.h>
#include <stdlib.h>
#include <unistd.h>

struct suite_manner {
    double seconds;
    SFun set_up, tear_down;
};

void suite_add(const TTest *test, int signal, int first, int end);
void suite_close(struct suite_manner manner);
/* What main returns where the tests cannot run: CTest shows them as skipped. */
enum { SUITE_SKIPPED = 77 };
/* Runs them (CK_VERBOSITY says how much is told), and is what main returns: 0 if nothing failed. */
int suite_main(void);
int suite_run(Suite *suite);

#define TEST(name) SUITE_TEST(name, 0, 0, 1)
/* For each `_i` from `first` on, below `end`. */
#define TEST_EACH(name, first, end) SUITE_TEST(name, 0, first, end)
/* It ends by this signal. */
#define TEST_KILLED(name, signal) SUITE_TEST(name, signal, 0, 1)
#define SUITE_TEST(name, signal, first, end)                                \
    static void name##_fn(int _i);                                          \
    __attribute__((constructor)) static void name##_add(void)               \
    {                                                                       \
        static const TTest test = { #name, name##_fn, __FILE__, __LINE__ }; \
        suite_add(&test, signal, (int)(first), (int)(end));                 \
    }                                                                       \
    static void name##_fn(int _i __attribute__((unused)))

#define SUITE(...)          SUITE_AT(__LINE__, __VA_ARGS__)
#define SUITE_AT(line, ...) SUITE_NAMED(line, __VA_ARGS__)
#define SUITE_NAMED(line, ...)                                         \
    __attribute__((constructor)) static void suite_close_##line(void)  \
    {                                                                  \
        suite_close((struct suite_manner) { .seconds = __VA_ARGS__ }); \
    }                                                                  \
    _Static_assert(1, "a semicolon follows")

/* UCX starts a thread when it is loaded, which looks for a file system of its own and ends. The madvise of a
 * thread that ends is hooked by UCX: a test that is forked in that moment has the hook's lock held by nobody,
 * and hangs in ucp_init (seen with UCX 1.18). So the program begins again, without that thread. */
__attribute__((constructor)) static void suite_begin_without_thread(int argc, char **argv)
{
    (void)argc;
    if (getenv("UCX_VFS_ENABLE") != NULL || setenv("UCX_VFS_ENABLE", "n", 1) != 0) return;
    execv("/proc/self/exe", argv);
}

#endif
