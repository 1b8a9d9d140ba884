/* What rounds and waiting do not do: real daemons, watched from outside. */
#include <fts.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/descriptors.h"
#include "tests/e2e/scene.h"

enum {
    SHARDS = 2,
    DAEMONS = 1 + SHARDS,
    ROUNDS = 300,
    WINDOWS = 3,
    WINDOW_MS = 1000,
    SHARE_MAX = 5 /* a 1000th: 0.5 % of a core */
};

static pid_t daemon_of(int i)
{
    return i == 0 ? cluster.coordinator : cluster.shards[i - 1];
}

/* ---- disk ---- */

static void run_rounds(int count)
{
    static float gradient[65536];
    for (int i = 0; i < count; i++) (void)trainer_step(job, "w", gradient);
}

/* Bytes that the process had written to a disk, or made dirty for one. */
static uint64_t written_bytes(pid_t pid)
{
    char path[64], line[128];
    uint64_t bytes = UINT64_MAX;
    snprintf(path, sizeof path, "/proc/%d/io", (int)pid);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "write_bytes: ", 13) == 0) bytes = strtoull(line + 13, NULL, 10);
    fclose(file);
    ck_assert(bytes != UINT64_MAX);
    return bytes;
}

/* Changes when anything in the folder is written to, made or removed, whatever it lies on. */
static uint64_t folder_state(const char *folder)
{
    char path[CAIRN_SCRATCH_BYTES];
    snprintf(path, sizeof path, "%s", folder);
    char *const paths[] = { path, NULL };
    uint64_t state = 0;
    FTS *walk = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    ck_assert_ptr_nonnull(walk);
    for (const FTSENT *entry; (entry = fts_read(walk)) != NULL;) {
        if (entry->fts_info == FTS_DP) continue;
        const struct stat *st = entry->fts_statp;
        state = state * 31 + (uint64_t)st->st_size;
        state = state * 31 + (uint64_t)st->st_mtim.tv_sec * 1000000000 +
                (uint64_t)st->st_mtim.tv_nsec;
    }
    fts_close(walk);
    return state;
}

/* Rounds are made, and nothing is written meanwhile. */
static bool is_quiet(void)
{
    uint64_t written[DAEMONS];
    const uint64_t state = folder_state(cluster.folder);
    bool quiet = true;
    for (int i = 0; i < DAEMONS; i++) written[i] = written_bytes(daemon_of(i));
    run_rounds(ROUNDS);
    for (int i = 0; i < DAEMONS; i++) quiet &= written_bytes(daemon_of(i)) == written[i];
    return quiet && folder_state(cluster.folder) == state;
}

/* What a round writes it writes in every window; a machine that stands still may be logged in one. */
TEST(rounds_write_nothing_to_disk)
{
    start(SHARDS);
    join("tiny", TINY(65536, .workers_min = 1));
    run_rounds(1);
    int windows = 1;
    while (!is_quiet()) ck_assert_int_lt(windows++, WINDOWS);
}

/* ---- the network ---- */

/* Its coordinator listens at a socket, so strangers of this host speak to none of its processes. */
TEST(a_cluster_of_one_host_listens_on_no_port)
{
    start(SHARDS);
    join("tiny", TINY(65536, .workers_min = 1));
    run_rounds(2);
    for (int i = 0; i < DAEMONS; i++) ck_assert_uint_eq(descriptors_listening(daemon_of(i)), 0);
    ck_assert_uint_eq(descriptors_listening(getpid()), 0);
    says(0, "mapped", "cluster status");
}

/* Who is told of shards that listen on loopback opens ucx there, also where the device was set. */
TEST_EACH(shards_of_kind_ucx_are_reached_over_loopback, 0, 2)
{
    if (_i == 1) setenv("CAIRN_FABRIC_DEVICE", "lo", 1);
    start(SHARDS, .shard_set = SETTINGS("fabric.kind=ucx"));
    join("tiny", TINY(65536, .workers_min = 1));
    run_rounds(2);
    ck_assert_uint_eq(descriptors_listening(getpid()), 1);
    stop();
    unsetenv("CAIRN_FABRIC_DEVICE");
}

/* A port that this process listens on; 0: it listens on none. */
static unsigned own_port(void)
{
    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_in here = { 0 };
        socklen_t bytes = sizeof here, size = sizeof(int);
        int listens = 0;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0 &&
            getsockname(fd, (struct sockaddr *)&here, &bytes) == 0 && here.sin_family == AF_INET)
            return ntohs(here.sin_port);
    }
    return 0;
}

TEST(a_trainer_listens_on_a_port_of_the_range_that_it_was_given)
{
    setenv("CAIRN_FABRIC_PORT_RANGE", "24300-24399", 1);
    start(1, .shard_set = SETTINGS("fabric.kind=ucx"));
    join("tiny", TINY(65536, .workers_min = 1));
    run_rounds(1);
    const unsigned port = own_port();
    ck_assert_msg(port >= 24300 && port <= 24399, "port %u", port);
    stop();
    unsetenv("CAIRN_FABRIC_PORT_RANGE");
}

/* ---- processors ---- */

/* Nanoseconds of processor time that it has used, in all of its threads: not of the clock on the wall. */
static uint64_t used_ns(pid_t pid)
{
    clockid_t clock;
    struct timespec t;
    ck_assert_int_eq(clock_getcpuclockid(pid, &clock), 0);
    ck_assert_int_eq(clock_gettime(clock, &t), 0);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void note_used(uint64_t ns[DAEMONS + 1])
{
    for (int i = 0; i <= DAEMONS; i++) ns[i] = used_ns(i < DAEMONS ? daemon_of(i) : getpid());
}

/* This process waits in cairn_round_begin for a second worker, who does not come. What a process does again
 * and again it does in every window: a client's 23 wake-ups take 1.2 ms, with ASan 1.7 ms. What counts is the
 * least of the windows: what a host takes from its virtual machine is counted as used, and was 20 ms once. */
TEST(what_waits_uses_no_processor)
{
    start(SHARDS, .coordinator_set = SETTINGS("lease.heartbeat=1s"));
    join("tiny", TINY(65536, .workers_min = 2));
    struct cairn_round round = { .struct_size = sizeof round };
    uint64_t least_ns[DAEMONS + 1], before_ns[DAEMONS + 1], after_ns[DAEMONS + 1];
    memset(least_ns, 0xff, sizeof least_ns);
    for (int window = 0; window < WINDOWS; window++) {
        note_used(before_ns);
        ck_assert_int_eq(cairn_round_begin(job, WINDOW_MS, &round), CAIRN_ERR_TIMEOUT);
        note_used(after_ns);
        for (int i = 0; i <= DAEMONS; i++)
            if (after_ns[i] - before_ns[i] < least_ns[i]) least_ns[i] = after_ns[i] - before_ns[i];
    }
    for (int i = 0; i <= DAEMONS; i++)
        ck_assert_msg(least_ns[i] <= (uint64_t)WINDOW_MS * 1000 * SHARE_MAX,
                      "%s %d used %.3f ms in each %d ms in which nothing happened",
                      i < DAEMONS ? "daemon" : "client", i, (double)least_ns[i] * 1e-6, WINDOW_MS);
}

SUITE(60, .tear_down = stop);
