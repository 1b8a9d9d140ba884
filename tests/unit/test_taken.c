/* Pages that are being made, and who waits for some of them: for no more than these, and never for ever. */
#include <check.h>

#include "server/shard/memory.h"
#include "tests/support/suite.h"

static struct made_pages taken;
static char memory[4096];

static void enter(void)
{
    made_pages_open(&taken);
}

static void leave(void)
{
    made_pages_close(&taken);
}

/* One who waits for bytes [at, at + count). */
struct waiter {
    pthread_t thread;
    size_t at, count;
    bool is_there;
};

static void *wait_for(void *context)
{
    struct waiter *w = context;
    w->is_there = made_pages_await(&taken, memory + w->at, w->count);
    return NULL;
}

static void begin(struct waiter *w, size_t at, size_t count)
{
    *w = (struct waiter) { .at = at, .count = count };
    ck_assert_int_eq(pthread_create(&w->thread, NULL, wait_for, w), 0);
}

static bool end(const struct waiter *w)
{
    pthread_join(w->thread, NULL);
    return w->is_there;
}

TEST(what_is_there_is_not_waited_for)
{
    made_pages_add(&taken, memory + 100, 100);
    ck_assert(made_pages_await(&taken, memory + 100, 100));
    ck_assert(made_pages_await(&taken, memory + 150, 10));
}

TEST(bytes_that_came_in_parts_and_in_any_order_are_there)
{
    struct waiter w;
    begin(&w, 50, 300);
    made_pages_add(&taken, memory + 300, 100);
    made_pages_add(&taken, memory, 100);
    made_pages_add(&taken, memory + 1000, 100);
    made_pages_add(&taken, memory + 100, 200);
    ck_assert(end(&w));
    ck_assert_uint_eq(taken.count, 2); // what touches is one
}

TEST(the_end_tells_all_who_wait)
{
    struct waiter a, b;
    begin(&a, 0, 10);
    begin(&b, 4000, 10);
    made_pages_end(&taken, true);
    ck_assert(end(&a));
    ck_assert(end(&b));
}

TEST(what_was_given_up_never_comes)
{
    struct waiter w;
    begin(&w, 0, 10);
    made_pages_end(&taken, false);
    ck_assert(!end(&w));
    made_pages_end(&taken, true); // the first holds
    ck_assert(!made_pages_await(&taken, memory, 10));
}

SUITE(10, enter, leave);
