/* Shards that are slower than their workers, and members that are stopped: what shards hold is bounded by
 * what they were told to hold, and only those wait who have to. Each test over both ways of the data. */
#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/e2e/overload_worker.h"
#include "tests/support/descriptors.h"
#include "tests/support/now.h"
#include "tests/e2e/scene.h"

enum {
    SHARDS = 2,
    WORKERS = 4,
    MICROS = 8,
    REPLIES = 16,
    MEMFDS_MAX = 256,
    STEPS = 5,
    STEP_MAX_MS = 4000
};
#define MIB ((uint64_t)1 << 20)

static const char *const fabrics[] = { "auto", "sealed" };

static void set_up(void)
{
    signal(SIGPIPE, SIG_IGN); // of a process that ended by itself
    start(SHARDS, .coordinator_set = SETTINGS("round.workers_max=8"), .both_ways = true);
}

static void tear_down(void)
{
    stop();
}

/* ---- what a shard holds ---- */

/* Memory that the process has to itself: pages that are no file's. */
static uint64_t anonymous_bytes(pid_t pid)
{
    char path[64], line[128];
    uint64_t kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "RssAnon:", 8) == 0) kib = strtoull(line + 8, NULL, 10);
    fclose(file);
    ck_assert_uint_gt(kib, 0);
    return kib << 10;
}

/* The memfds of Cairn that the process can write to: its own. Those of others it maps read-only. */
static size_t own_memfds(pid_t pid, uint64_t inodes[MEMFDS_MAX])
{
    char path[64], line[512], flags[8], name[64];
    size_t count = 0;
    uint64_t inode;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%*s %7s %*s %*s %" SCNu64 " %63s", flags, &inode, name) != 3) continue;
        if (flags[1] != 'w' || strncmp(name, "/memfd:cairn", 12) != 0) continue;
        ck_assert_uint_lt(count, MEMFDS_MAX);
        inodes[count++] = inode;
    }
    fclose(file);
    return count;
}

static bool take_out(uint64_t *inodes, size_t count, uint64_t inode)
{
    bool found = false;
    for (size_t i = 0; i < count; i++) {
        if (inodes[i] != inode) continue;
        found = true;
        inodes[i] = 0; // each is counted once
    }
    return found;
}

static uint64_t memfd_bytes(pid_t pid)
{
    char path[64], at[320];
    uint64_t inodes[MEMFDS_MAX], bytes = 0;
    const size_t count = own_memfds(pid, inodes);
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    ck_assert_ptr_nonnull(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        struct stat st;
        snprintf(at, sizeof at, "%s/%s", path, entry->d_name);
        if (stat(at, &st) == 0 && S_ISREG(st.st_mode) && take_out(inodes, count, st.st_ino))
            bytes += (uint64_t)st.st_blocks * 512;
    }
    closedir(folder);
    return bytes;
}

/* Of a shard: half of the state of each job, what lands, what is being sent, and 64 MiB. */
static uint64_t budget(uint32_t jobs, uint32_t workers, uint32_t readers)
{
    const uint64_t elems = OVERLOAD_ELEMS / SHARDS + OVERLOAD_TENSORS * 4096; // a quantum of each
    const uint64_t state = elems * (4 + 8 + 4 + 2 * 4);
    const uint64_t landing = (uint64_t)workers * OVERLOAD_WINDOW * OVERLOAD_CHUNK_BYTES;
    const uint64_t replies = (uint64_t)(workers + readers) * REPLIES * OVERLOAD_CHUNK_BYTES;
    return jobs * state + landing + replies + 64 * MIB;
}

static void check_memory(uint64_t bound)
{
    for (int i = 0; i < SHARDS; i++) {
        const uint64_t anonymous = anonymous_bytes(cluster.shards[i]);
        const uint64_t memfds = memfd_bytes(cluster.shards[i]);
        ck_assert_msg(anonymous + memfds <= bound,
                      "shard %d holds %" PRIu64 " bytes, and %" PRIu64 " in memfds: %" PRIu64
                      " are allowed",
                      i, anonymous, memfds, bound);
    }
}

/* ---- workers that are faster ---- */

static void signal_shards(int number)
{
    for (int i = 0; i < SHARDS; i++) ck_assert_int_eq(kill(cluster.shards[i], number), 0);
}

static void pause_ms(int ms)
{
    const struct timespec time = { .tv_nsec = ms * 1000000L };
    nanosleep(&time, NULL);
}

/* Shards that run a quarter of the time: what is pushed in a step is about twice what a shard may hold. */
TEST_EACH(what_slow_shards_hold_is_bounded, 0, 2)
{
    struct overload_child workers[WORKERS];
    struct overload_plan plan = { .cluster = &cluster,
                                  .fabric = fabrics[_i],
                                  .job = "fast",
                                  .tensors = OVERLOAD_TENSORS,
                                  .world = WORKERS,
                                  .micros = MICROS,
                                  .steps = 1 };
    const uint64_t bound = budget(1, WORKERS, 0),
                   pushed = (uint64_t)OVERLOAD_ELEMS / SHARDS * 4 * WORKERS * MICROS;
    ck_assert_uint_gt(pushed, 3 * bound / 2);
    for (plan.rank = 0; plan.rank < WORKERS; plan.rank++)
        overload_start(&workers[plan.rank], &plan, overload_train);
    for (int i = 0; i < WORKERS; i++) ck_assert(overload_said(&workers[i], 'r', CLUSTER_WAIT_MS));
    for (int i = 0; i < WORKERS; i++) overload_order(&workers[i]);
    const int64_t deadline_ms = now_ms() + CLUSTER_WAIT_MS;
    for (int done = 0; done < WORKERS;) {
        signal_shards(SIGSTOP);
        check_memory(bound);
        pause_ms(6);
        signal_shards(SIGCONT);
        ck_assert_int_lt(now_ms(), deadline_ms);
        while (done < WORKERS && overload_said(&workers[done], 's', 2)) done++;
    }
    for (int i = 0; i < SHARDS;
         i++) // that is what was looked at: master, moments and sums at least
        ck_assert_uint_gt(memfd_bytes(cluster.shards[i]), OVERLOAD_ELEMS / SHARDS / 8 * 7 * 16);
    for (int i = 0; i < WORKERS; i++) overload_end(&workers[i]);
}

/* ---- members that are stopped ---- */

static int64_t train_under(const struct overload_child *trainer, uint64_t bound)
{
    const int64_t begin_ms = now_ms();
    overload_order(trainer);
    while (!overload_said(trainer, 's', 10)) {
        check_memory(bound);
        ck_assert_int_lt(now_ms(), begin_ms + CLUSTER_WAIT_MS);
    }
    return now_ms() - begin_ms;
}

/* The reader is of the trainer's job; the holder is all there is of another one. */
TEST_EACH(members_that_are_stopped_hold_nobody_up, 0, 2)
{
    struct overload_child trainer, reader, holder;
    struct overload_plan plan = { .cluster = &cluster,
                                  .fabric = fabrics[_i],
                                  .job = "trained",
                                  .tensors = OVERLOAD_TENSORS,
                                  .world = 1,
                                  .micros = 1,
                                  .steps = 1 };
    const uint64_t bound = budget(2, 2, 1);
    overload_start(&trainer, &plan, overload_train);
    ck_assert(overload_said(&trainer, 'r', CLUSTER_WAIT_MS));
    overload_start(&reader, &plan, overload_read);
    plan.job = "held";
    overload_start(&holder, &plan, overload_hold);
    ck_assert(overload_said(&holder, 'm', CLUSTER_WAIT_MS));
    cluster_freeze(holder.pid);
    ck_assert(overload_said(&reader, 'f', CLUSTER_WAIT_MS));
    cluster_freeze(reader.pid); // with fetches under way
    for (int i = 0; i < STEPS; i++) {
        const int64_t took_ms = train_under(&trainer, bound);
        // who waits for a member that is stopped waits until it is taken for lost: 5 s
        ck_assert_msg(took_ms < STEP_MAX_MS, "step %d took %" PRId64 " ms", i, took_ms);
    }
    kill(reader.pid, SIGCONT);
    kill(holder.pid, SIGCONT);
    overload_order(&reader);
    overload_order(&holder);
    overload_end(&reader);
    overload_end(&holder);
    for (int i = 0; i < STEPS; i++) (void)train_under(&trainer, bound);
    overload_end(&trainer);
}

/* ---- descriptors ---- */

static size_t fds_of_all(void)
{
    size_t count = descriptors_of(cluster.coordinator);
    for (int i = 0; i < SHARDS; i++) count += descriptors_of(cluster.shards[i]);
    return count;
}

/* UCX 1.13 keeps the socket of each connection that it could not make: to one that dies after it has answered
 * the socket that asks first (ucx.c). The log has a line of each. */
static size_t failed_connects(void)
{
    size_t count = 0;
    for (int i = 0; i < SHARDS; i++) {
        char path[CAIRN_SCRATCH_BYTES + 32], line[1024];
        snprintf(path, sizeof path, "%s/shard-%d.log", cluster.folder, i);
        FILE *file = fopen(path, "re");
        ck_assert_ptr_nonnull(file);
        while (fgets(line, sizeof line, file) != NULL)
            count += strstr(line, "cannot reach") != NULL;
        fclose(file);
    }
    return count;
}

/* Half of them end without a word. */
TEST_EACH(workers_that_come_and_go_leave_no_descriptor, 0, 2)
{
    struct overload_plan plan = { .cluster = &cluster,
                                  .fabric = fabrics[_i],
                                  .job = "visited",
                                  .tensors = 2,
                                  .world = 1,
                                  .micros = 1 };
    size_t before = 0, failed = 0;
    for (plan.rank = 0; plan.rank < 30; plan.rank++) {
        struct overload_child visitor;
        overload_start(&visitor, &plan, overload_visit);
        overload_end(&visitor);
        if (plan.rank != 5) continue; // those of the last may be closing
        before = fds_of_all();
        failed = failed_connects();
    }
    size_t after = fds_of_all(), kept = failed_connects() - failed;
    for (const int64_t end_ms = now_ms() + 5000; after > before + kept && now_ms() < end_ms;) {
        pause_ms(10);
        after = fds_of_all();
        kept = failed_connects() - failed;
    }
    ck_assert_msg(after <= before + kept,
                  "%zu descriptors, %zu after the first workers, %zu kept by UCX", after, before,
                  kept);
}

SUITE(100, set_up, tear_down);
