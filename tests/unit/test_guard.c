/* Memory that cannot be read: the thread that reads it comes back, the process goes on. */
#include <inttypes.h>
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "server/base/daemon.h"
#include "tests/support/suite.h"

enum { PAGE = 4096, PAGES = 4 };

struct reading {
    const uint8_t *bytes;
    size_t count;
    uint64_t sum;
    const void *failed_at;
};

static void add_up(void *arg)
{
    struct reading *reading = arg;
    for (size_t i = 0; i < reading->count; i++) reading->sum += reading->bytes[i];
}

/* PAGES of ones, of which the last two have no memory any more. */
static uint8_t *half_gone(void)
{
    const int fd = memfd_create("test", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, PAGES * PAGE), 0);
    uint8_t *base = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert(base != MAP_FAILED);
    memset(base, 1, PAGES * PAGE);
    ck_assert_int_eq(ftruncate(fd, 2 * PAGE), 0);
    close(fd);
    return base;
}

static void set_up(void)
{
    ck_assert_int_eq(guard_install(), CAIRN_OK);
}

TEST(a_page_that_is_not_there_ends_the_reading_and_nothing_else)
{
    uint8_t *base = half_gone();
    for (int again = 0; again < 3; again++) {
        struct reading whole = { .bytes = base, .count = PAGES * PAGE };
        const void *at = guard_run(add_up, &whole);
        ck_assert_ptr_eq(at, base + 2 * PAGE);
        struct reading half = { .bytes = base, .count = 2 * PAGE };
        ck_assert_ptr_null(guard_run(add_up, &half));
        ck_assert_uint_eq(half.sum, 2 * PAGE);
    }
    munmap(base, PAGES * PAGE);
}

static void *read_guarded(void *arg)
{
    struct reading *reading = arg;
    reading->failed_at = guard_run(add_up, reading);
    return NULL;
}

TEST(threads_that_meet_it_at_once_come_back_each)
{
    enum { THREADS = 8 };
    uint8_t *base = half_gone();
    pthread_t threads[THREADS];
    struct reading readings[THREADS];
    for (int i = 0; i < THREADS; i++) {
        readings[i] = (struct reading) { .bytes = base, .count = (size_t)(i % 2 + 1) * 2 * PAGE };
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_guarded, &readings[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_ptr_eq(readings[i].failed_at, i % 2 == 0 ? NULL : base + 2 * PAGE);
    }
    munmap(base, PAGES * PAGE);
}

#ifndef __SANITIZE_ADDRESS__ // which makes an exit status of it
TEST_KILLED(outside_of_guarded_code_it_ends_the_process_as_before, SIGBUS)
{
    struct reading whole = { .bytes = half_gone(), .count = PAGES * PAGE };
    add_up(&whole);
    ck_abort_msg("a sum of %" PRIu64, whole.sum);
}
#endif

SUITE(30, set_up, NULL);
