/* The same bits when gradients and parameters are read one-sidedly (over TCP's emulation), also when a
 * worker dies in the middle of it. `test_bits_one_sided --worker ENDPOINT RANK DIE_AT` is a worker. */
#include <jansson.h>

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

static uint64_t number(const json_t *bytes, const char *what, const char *way)
{
    return (uint64_t)json_integer_value(json_object_get(json_object_get(bytes, what), way));
}

/* Nearly all: what was sent before an endpoint's ends had agreed went as messages. */
static void check_was_read(void)
{
    bool is_read = false;
    for (int i = 0; i < 1000 && !is_read;
         i++) { // shards tell what they counted with their heartbeats
        ask("job show -o json %s", BITS_JOB);
        ck_assert_msg(said.status == 0, "%s", said.err);
        json_t *show = json_loads(said.out, 0, NULL);
        const json_t *bytes = json_object_get(show, "bytes");
        const uint64_t pushed = number(bytes, "pushed", "one_sided");
        const uint64_t fetched = number(bytes, "fetched", "one_sided");
        is_read = pushed > 0 && pushed >= number(bytes, "pushed", "carried") / 10 * 9 &&
                  fetched > 0 && fetched >= number(bytes, "fetched", "carried") / 10 * 9 &&
                  number(bytes, "pushed", "shared") == 0;
        json_decref(show);
    }
    ck_assert_msg(is_read, "%s", said.out);
    ask("job show %s", BITS_JOB);
    ck_assert_ptr_nonnull(strstr(said.out, "read one-sidedly: pushed"));
    ask("cluster status");
    ck_assert_msg(strstr(said.out, "ucx, one-sided") != NULL, "%s", said.out);
}

TEST(two_workers_and_two_shards_make_the_bits_of_every_other_way)
{
    cluster_start(&cluster, 2, &options);
    train_to_the_golden_root();
    check_was_read();
    stop();
}

/* The one end allows it and the other does not: then everything goes as messages. */
TEST(workers_that_do_not_allow_it_get_messages_and_the_same_bits)
{
    cluster_start(&cluster, 2, &options);
    setenv("CAIRN_FABRIC_ONE_SIDED", "off", 1);
    train_to_the_golden_root();
    ask("job show %s", BITS_JOB);
    ck_assert_ptr_null(strstr(said.out, "one-sided"));
    stop();
}

TEST_EACH(a_worker_killed_while_its_pushes_are_read_changes_no_bit, 0, 2)
{
    const struct crew crew = both();
    cluster_start(&cluster, 2, &options);
    crew_kill_in_mid_round(&cluster, &crew, (uint32_t)_i, 20 + (uint64_t)_i);
    crew_check_root(cluster.address, &bits_job, BITS_GOLDEN_ROOT);
    stop();
}

SUITE(60);

int main(int argc, char **argv)
{
    setenv("CAIRN_FABRIC", "ucx", 1);
    setenv("CAIRN_FABRIC_ONE_SIDED", "on", 1);
    return crew_main(argc, argv, both());
}
