/* Shards in a control group with less memory than two of them ask for: the job is refused with the numbers of
 * the group, both shards live on, and a job that fits trains there. Root makes the group; without it,
 * or where the kernel lets nobody, this is skipped. */
#include <inttypes.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e/scene.h"

enum { WAIT_MS = 30000, SHARDS = 2 };
#define MIB ((uint64_t)1 << 20)

static char group[256],
    inner[300]; /* the limit is the outer one's, the shards are in the inner one */

static bool write_number(const char *folder, const char *name, uint64_t number)
{
    char path[512], text[32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const int length = snprintf(text, sizeof text, "%" PRIu64, number);
    const bool written = fd >= 0 && write(fd, text, (size_t)length) == length;
    if (fd >= 0) close(fd);
    return written;
}

static bool make_group(const char *hierarchy, const char *limit)
{
    snprintf(group, sizeof group, "%s/cairn-test-%d", hierarchy, (int)getpid());
    snprintf(inner, sizeof inner, "%s/shards", group);
    if (mkdir(group, 0755) == 0 && write_number(group, limit, 256 * MIB) && mkdir(inner, 0755) == 0)
        return true;
    rmdir(group);
    return false;
}

static bool make_any_group(void)
{
    return make_group("/sys/fs/cgroup/memory", "memory.limit_in_bytes") ||
           make_group("/sys/fs/cgroup", "memory.max");
}

/* The daemons of a test that failed are being killed. */
static void remove_group(void)
{
    for (int tries = 0; tries < 100 && rmdir(inner) != 0; tries++) usleep(20000);
    rmdir(group);
}

static cairn_status open_job(const char *name, uint64_t elems)
{
    struct cairn_group sgd = CAIRN_GROUP_INIT;
    sgd.optimizer = "sgd";
    sgd.lr = 0.5;
    sgd.weight_decay = 0;
    struct tiny_job *tiny = TINY(elems);
    tiny->group = sgd;
    tiny->tensor.init.kind = CAIRN_INIT_ZEROS;
    return cairn_job_open(session, name, &tiny->spec, CAIRN_WORKER, WAIT_MS, &job);
}

/* One step with gradients of 1. */
static void train_ones(uint64_t elems)
{
    float *ones = malloc(elems * sizeof *ones);
    for (uint64_t i = 0; i < elems; i++) ones[i] = 1;
    good(cairn_init_done(job, NULL, WAIT_MS));
    const struct cairn_result result = trainer_step(job, "w", ones);
    ck_assert_uint_eq(result.step, 1);
    trainer_fetch(job, result.version, "w", NULL, CAIRN_F32, ones);
    uint64_t right = 0; // one assertion: each is a system call
    while (right < elems && ones[right] == -0.5f) right++;
    ck_assert_uint_eq(right, elems);
    free(ones);
}

TEST(what_a_control_group_has_no_room_for_is_refused_and_kills_nobody)
{
    start(SHARDS, .shard_set = SETTINGS("memory.limit=2GiB"));
    for (int i = 0; i < SHARDS; i++)
        ck_assert(write_number(inner, "cgroup.procs", (uint64_t)cluster.shards[i]));
    session = trainer_session(cluster.address, NULL);
    // param, sums and two copies, 4 bytes each: 160 MiB a shard. Alone each would fit.
    fails(open_job("large", 20 * MIB), CAIRN_ERR_NO_MEMORY, group);
    expect_error(" has 268435456, and the rest is in use");
    for (int i = 0; i < SHARDS; i++) ck_assert_int_eq(kill(cluster.shards[i], 0), 0);
    good(open_job("fits", 4 * MIB));
    train_ones(4 * MIB);
}

SUITE(60, .tear_down = stop);

int main(void)
{
    if (!make_any_group()) {
        printf("skip: this user or kernel makes no control group with a limit of memory\n");
        return SUITE_SKIPPED;
    }
    const int failed = suite_main();
    remove_group();
    return failed;
}
