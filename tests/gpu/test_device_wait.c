/* Streams that wait for words, and what maps memory of the card beside them: client/device alone, without a
 * session. Seeded bugs of it are this program once more (proto/base/mutant.h). */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "client/device.h"
#include "tests/support/emulated.h"
#include "tests/support/good.h"
#include "tests/support/now.h"
#include "tests/support/suite.h"

static struct emulated emulator;
static struct card *card;
static struct CUstream_st *stream;

/* Of a driver that lets what maps memory wait for all that the card has under way. */
static void set_up(void)
{
    emulator = emulated_open("maps_wait=500,quiet=1");
    good(card_get(0, &card));
    ck_assert_int_eq(emulator.driver.cuStreamCreate(&stream, CAIRN_CU_STREAM_NON_BLOCKING), 0);
}

static void tear_down(void)
{
    ck_assert_int_eq(emulator.driver.cuStreamSynchronize(stream), 0);
    ck_assert_int_eq(emulator.driver.cuStreamDestroy(stream), 0);
    ck_assert_uint_eq(emulator.cairn_emulator_complaints(), 0);
}

/* What a session's thread does in between. */
static void map_and_unmap(void)
{
    struct card_memory memory;
    good(card_memory_open(card, 4096, &memory));
    card_memory_close(&memory);
}

/* False: some stream waits, and it is done later. */
static bool change(void)
{
    if (!card_change_begin()) return false;
    map_and_unmap();
    card_change_end();
    return true;
}

static struct card_word *have_the_stream_wait(void)
{
    struct card_word *word;
    struct card_wait wait;
    good(card_word_acquire(card, &word, &wait));
    good(card_stream_await_word(card, stream, &wait));
    return word;
}

TEST(who_ends_a_streams_wait_maps_nothing_until_it_has)
{
    ck_assert(change());
    struct card_word *first = have_the_stream_wait(), *second = have_the_stream_wait();
    ck_assert(!change());
    card_word_set(first);
    ck_assert(!change());
    card_word_set(second);
    ck_assert(change());
}

/* ---- a stream that is to wait meanwhile ---- */

static sem_t has_begun;
static atomic_bool waits;

/* A stream that began to wait in between would do so soon. */
static void *change_slowly(void *arg)
{
    const int64_t until = now_ms() + 50;
    (void)arg;
    ck_assert(card_change_begin());
    sem_post(&has_begun);
    while (!atomic_load(&waits) && now_ms() < until) sched_yield();
    map_and_unmap();
    card_change_end();
    return NULL;
}

TEST(a_stream_begins_to_wait_when_what_is_being_mapped_is)
{
    pthread_t thread;
    sem_init(&has_begun, 0, 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, change_slowly, NULL), 0);
    sem_wait(&has_begun);
    struct card_word *word = have_the_stream_wait();
    atomic_store(&waits, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    card_word_set(word);
    sem_destroy(&has_begun);
}

SUITE(30, set_up, tear_down);
