#include "tests/e2e/elastic_watch.h"

#include <time.h>
#include <unistd.h>

#include "tests/e2e/scene.h"
#include "tests/support/processor.h"

enum { PAUSE_MS = 2, READ_MS = 50, AGAIN_MAX = 4 };

static struct {
    const struct elastic_shared *shared;
    const _Atomic uint64_t *steps;
    uint64_t seen;    /* of steps */
    int64_t since_ms; /* the last one */
    int64_t read_ms;  /* when waited_ns was read, until then or a little earlier */
    uint64_t waited_ns;
    int64_t longest_ms, waited_ms; /* the longest step, and for processors in it */
} watch;

/* The sum of all threads that take part, though several wait at the same time: it is never less than what
 * held a step up. */
static uint64_t waited_ns(void)
{
    uint64_t sum = processor_time(getpid()).waited_ns;
    sum += processor_time(cluster.coordinator).waited_ns;
    for (int i = 0; i < cluster.shard_count; i++)
        if (cluster.shards[i] != 0) sum += processor_time(cluster.shards[i]).waited_ns;
    for (int i = 0; i < ELASTIC_RANKS; i++) {
        const pid_t pid = atomic_load(&watch.shared->pids[i]);
        if (pid != 0) sum += processor_time(pid).waited_ns;
    }
    return sum;
}

static void begin_step(void)
{
    watch.seen = atomic_load(watch.steps);
    watch.since_ms = now_ms();
    if (watch.since_ms - watch.read_ms < READ_MS)
        return; // to read all of it costs as much as a step
    watch.read_ms = watch.since_ms;
    watch.waited_ns = waited_ns();
}

static void note_longest(void)
{
    const int64_t took_ms = now_ms() - watch.since_ms;
    if (took_ms <= watch.longest_ms) return;
    const uint64_t now_ns = waited_ns(); // less than before if threads have ended
    watch.longest_ms = took_ms;
    watch.waited_ms = now_ns > watch.waited_ns ? (int64_t)((now_ns - watch.waited_ns) / 1000000)
                                               : 0;
}

void elastic_watch_begin(const struct elastic_shared *shared, const _Atomic uint64_t *steps)
{
    watch.shared = shared;
    watch.steps = steps;
    watch.longest_ms = watch.waited_ms = 0;
    watch.read_ms = -READ_MS;
    begin_step();
}

void elastic_watch_look(void)
{
    if (atomic_load(watch.steps) != watch.seen) {
        note_longest();
        begin_step();
    }
    nanosleep(&(struct timespec) { .tv_nsec = PAUSE_MS * 1000000L }, NULL);
}

int64_t elastic_watch_longest_ms(void)
{
    note_longest();
    return watch.longest_ms;
}

bool elastic_watch_is_below(int64_t most_ms, int *again)
{
    const int64_t over_ms = elastic_watch_longest_ms() - most_ms;
    if (over_ms < 0) {
        *again = 0;
        return true;
    }
    ck_assert_msg(
        watch.waited_ms >= over_ms && *again < AGAIN_MAX,
        "a step took %d ms, of %d that it may, in which %d ms were waited for processors; "
        "%d times before, too",
        (int)watch.longest_ms, (int)most_ms, (int)watch.waited_ms, *again);
    (*again)++;
    printf("note: done again: a step took %d ms, and its threads waited for processors for %d\n",
           (int)watch.longest_ms, (int)watch.waited_ms);
    return false;
}
