/* Daemons and trainers over UCX: two processes have one connection, whatever jobs and purposes share it. So a
 * re-sharding, which is a purpose of its own for a while, stops no job. */
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/e2e/elastic_watch.h"
#include "tests/e2e/scene.h"

enum { SHARDS = 3, JOBS = 2, ROUNDS = 2, STEP_MAX_MS = 1000 };
enum { LEASE_MS = 500, OVER_MS = 2000, STOPS_LONG = 60 };

static struct elastic_shared *shared[JOBS];
static pid_t workers[JOBS]; /* the first one trains */

static void pause_ms(int ms)
{
    nanosleep(&(struct timespec) { .tv_nsec = ms * 1000000L }, NULL);
}

/* ---- how long nothing is trained ---- */

static void begin_watch(void)
{
    elastic_watch_begin(shared[0], &shared[0]->step);
}

static void look(void)
{
    elastic_watch_look();
    ck_assert_int_eq(cluster_wait(workers[0], 0), -1);
}

static void await_steps(uint64_t more)
{
    const uint64_t goal = atomic_load(&shared[0]->step) + more;
    for (const int64_t end_ms = now_ms() + CLUSTER_WAIT_MS; atomic_load(&shared[0]->step) < goal;) {
        ck_assert_int_lt(now_ms(), end_ms);
        look();
    }
}

static void look_until_end(struct cluster_command *command)
{
    int status = -1;
    for (const int64_t end_ms = now_ms() + CLUSTER_WAIT_MS; status == -1; look()) {
        ck_assert_int_lt(now_ms(), end_ms);
        status = cluster_wait(command->pid, 0);
    }
    cluster_cli_end(command, status, &said);
}

/* A command, which succeeds; one looks on meanwhile. A shard that is drained may end a moment before the
 * re-sharding that took all off it does, during which another one is refused. */
static void ask_and_look(const char *line)
{
    do {
        struct cluster_command command;
        cluster_cli_begin_line(&cluster, &command, line);
        look_until_end(&command);
    } while (said.status != 0 && strstr(said.err, "is under way") != NULL);
    expect_said(0);
}

/* ---- connections ---- */

/* Those of TCP that a process has with others of this host, but for what it listens on. */
static int count_connections(pid_t pid)
{
    char path[64], line[256];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *folder = opendir(path);
    ck_assert_ptr_nonnull(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char link[128] = "", name[PATH_MAX];
        unsigned long inode, of;
        unsigned state;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (readlink(name, link, sizeof link - 1) <= 0 || sscanf(link, "socket:[%lu]", &inode) != 1)
            continue;
        FILE *tcp = fopen("/proc/net/tcp", "re");
        ck_assert_ptr_nonnull(tcp);
        while (fgets(line, sizeof line, tcp) != NULL)
            if (sscanf(line, "%*d: %*s %*s %x %*s %*s %*s %*s %*s %lu", &state, &of) == 2 &&
                of == inode && state == 1 /* ESTABLISHED */)
                count++;
        fclose(tcp);
    }
    closedir(folder);
    return count;
}

/* With the worker and the other shards. */
static void check_connections(void)
{
    for (int i = 0; i < SHARDS; i++)
        ck_assert_int_le(count_connections(cluster.shards[i]), 1 + (SHARDS - 1));
}

/* ---- the scene ---- */

/* With leases that a machine at work keeps; or short ones, where the end of one is waited for. */
static void start_shards(bool is_short)
{
    static const char *const leases[] = { "lease.heartbeat=300ms", "lease.timeout=1500ms", NULL };
    static const char *const short_ones[] = { "lease.heartbeat=100ms", "lease.timeout=500ms",
                                              NULL };
    start(SHARDS,
          .shard_set = SETTINGS("fabric.kind=ucx", "compute.threads=1", "memory.limit=256MiB"),
          .coordinator_set = is_short ? short_ones : leases);
}

static void start_two_jobs(void)
{
    start_shards(false);
    for (int j = 0; j < JOBS; j++) shared[j] = elastic_share();
    atomic_store(&shared[0]->until, UINT64_MAX);
    atomic_store(&shared[1]->until, 3); // then it leaves, and its job is idle
    for (int j = 0; j < JOBS; j++)
        workers[j] = elastic_start(cluster.address, &elastic_models[j], 0, shared[j]);
    begin_watch();
    await_steps(2);
    ck_assert_int_eq(cluster_wait(workers[1], CLUSTER_WAIT_MS), 0);
    begin_watch();
}

static void stop_two_jobs(void)
{
    cluster_kill(workers[0]);
    for (int j = 0; j < JOBS; j++) says(0, "", "job drop --force --yes %s", elastic_models[j].name);
    stop();
    for (int j = 0; j < JOBS; j++) munmap(shared[j], sizeof *shared[j]);
}

TEST(a_re_sharding_of_two_jobs_stops_neither_and_connects_nobody_twice)
{
    int again = 0;
    start_two_jobs();
    for (int done = 0; done < ROUNDS;) {
        begin_watch();
        ask_and_look("member drain shard-1");
        cluster_await_end_of_shard(&cluster, 1);
        cluster_add_shard(&cluster, 1);
        ask_and_look("reshard apply --all");
        await_steps(5);
        check_connections();
        printf("note: the longest step took %" PRId64 " ms\n", elastic_watch_longest_ms());
        done += elastic_watch_is_below(STEP_MAX_MS, &again);
    }
    stop_two_jobs();
}

/* It may be stopped with anything half sent: what a shard has begun to receive of it ends, too. */
TEST(a_trainer_that_is_stopped_holds_the_others_up_for_a_lease)
{
    const int stops = getenv("CAIRN_TEST_LONG") != NULL ? STOPS_LONG : 1;
    int again = 0;
    start_shards(true);
    shared[0] = elastic_share();
    atomic_store(&shared[0]->until, UINT64_MAX);
    for (int i = 0; i < JOBS; i++)
        workers[i] = elastic_start(cluster.address, &elastic_models[0], (uint32_t)i, shared[0]);
    begin_watch();
    await_steps(4);
    srand((unsigned)now_ms());
    for (int done = 0; done < stops;) {
        await_steps(3 + (uint64_t)rand() % 3);
        pause_ms(rand() % 30);
        begin_watch();
        cluster_freeze(workers[1]);
        await_steps(6);
        printf("note: stopped: %" PRId64 " ms\n", elastic_watch_longest_ms());
        fflush(stdout);
        done += elastic_watch_is_below(LEASE_MS + OVER_MS, &again);
        kill(workers[1], SIGCONT);
        const uint64_t rounds = atomic_load(&shared[0]->rounds);
        while (atomic_load(&shared[0]->rounds) < rounds + 8) look();
    }
    for (int i = 0; i < JOBS; i++) cluster_kill(workers[i]);
    says(0, "", "job drop --force --yes %s", elastic_models[0].name);
    stop();
    munmap(shared[0], sizeof *shared[0]);
}

SUITE(600);
