/* The same bits when gradients and parameters are read one-sidedly (over TCP's emulation), also when a
 * worker dies in the middle of it. `test_bits_one_sided --worker ENDPOINT RANK DIE_AT` is a worker. */

#include "tests/e2e/crew.h"
#include "tests/e2e/scene.h"

static const struct cluster_options options = {
    .shard_set = SETTINGS("fabric.kind=ucx", "fabric.one_sided=on", "compute.threads=1",
                          "memory.limit=256MiB"),
    .coordinator_set = SETTINGS("lease.heartbeat=50ms")
};

static struct crew both(void)
{
    return (struct crew) {
        .job = &bits_job, .endpoint = cluster.address, .until_step = BITS_STEPS, .allocated = true
    };
}

static void train_to_the_golden_root(void)
{
    const struct crew crew = both();
    crew_train_quietly(&crew, 1);
    crew_check_root(cluster.address, &bits_job, BITS_GOLDEN_ROOT);
}

/* Nearly all: what was sent before an endpoint's ends had agreed went as messages. */
static bool is_nearly_all(const char *what)
{
    char one_sided[64], carried[64];
    snprintf(one_sided, sizeof one_sided, "bytes.%s.one_sided", what);
    snprintf(carried, sizeof carried, "bytes.%s.carried", what);
    return said_number(one_sided) > 0 && said_number(one_sided) >= said_number(carried) / 10 * 9;
}

/* Shards tell what they counted with their heartbeats. */
static void check_was_read(void)
{
    await((ask("job show -o json %s", BITS_JOB),
           is_nearly_all("pushed") && is_nearly_all("fetched")));
    ck_assert_int_eq(said_number("bytes.pushed.shared"), 0);
    says(0, "read one-sidedly: pushed", "job show %s", BITS_JOB);
    says(0, "ucx, one-sided", "cluster status");
}

TEST(two_workers_and_two_shards_make_the_bits_of_every_other_way)
{
    cluster_start(&cluster, 2, &options);
    train_to_the_golden_root();
    check_was_read();
}

/* The one end allows it and the other does not: then everything goes as messages. */
TEST(workers_that_do_not_allow_it_get_messages_and_the_same_bits)
{
    cluster_start(&cluster, 2, &options);
    setenv("CAIRN_FABRIC_ONE_SIDED", "off", 1);
    train_to_the_golden_root();
    ask("job show %s", BITS_JOB);
    expect_unsaid("one-sided");
}

TEST_EACH(a_worker_killed_while_its_pushes_are_read_changes_no_bit, 0, 2)
{
    const struct crew crew = both();
    cluster_start(&cluster, 2, &options);
    crew_kill_in_mid_round(&cluster, &crew, (uint32_t)_i, 20 + (uint64_t)_i);
    crew_check_root(cluster.address, &bits_job, BITS_GOLDEN_ROOT);
}

SUITE(60, .tear_down = stop);

int main(int argc, char **argv)
{
    setenv("CAIRN_FABRIC", "ucx", 1);
    setenv("CAIRN_FABRIC_ONE_SIDED", "on", 1);
    return crew_main(argc, argv, both());
}
