#include "tests/support/caller.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>

static atomic_bool is_over;
static void (*call_made)(void);
static pthread_t thread;

static void *run(void *arg)
{
    (void)arg;
    call_made();
    atomic_store(&is_over, true);
    return NULL;
}

void caller_begin(void (*made)(void))
{
    call_made = made;
    atomic_store(&is_over, false);
    ck_assert_int_eq(pthread_create(&thread, NULL, run, NULL), 0);
}

bool caller_is_over(void)
{
    return atomic_load(&is_over);
}

void caller_end(void)
{
    pthread_join(thread, NULL);
}
