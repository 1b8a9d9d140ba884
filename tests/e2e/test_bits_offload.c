/* A part of the state in host memory beside a device (offload_fraction): the same bits at any fraction, over
 * a shard that dies and a snapshot that is restored, which finds its place again. With
 * CAIRN_TEST_BACKEND=cuda the rest lies on the card; without it all of it is in host memory anyway, which the
 * shard says. */

#include "tests/e2e/crew.h"
#include "tests/e2e/scene.h"
#include "tests/support/test_backend.h"

enum { SHARDS = 2, HALFWAY = 20 };

static int64_t memory_of(const char *kind)
{
    ask("job show " BITS_JOB " -o json");
    return said_number(kind);
}

/* Both of a split job, one of the others; by and by heartbeats tell of what was planned. */
static void check_place(double fraction)
{
    const bool has_device = strcmp(cairn_test_backend(), "cuda") == 0;
    ask("job plan " BITS_JOB " --backend %s -o json", cairn_test_backend());
    const int64_t device = said_number("memory.device"), state = said_number("memory.state");
    ck_assert_int_eq(device > 0, has_device && fraction < 1);
    ck_assert_int_eq(state > 0, !has_device || fraction > 0);
    await(memory_of("memory.device") == device && said_number("memory.state") == state);
}

static void train_with(double fraction, uint64_t until_step, uint32_t skipped)
{
    crew_train_quietly(&(struct crew) { .job = &bits_job,
                                        .endpoint = cluster.address,
                                        .until_step = until_step,
                                        .offload_fraction = fraction },
                       skipped);
}

static const double fractions[] = { 0, 0.5, 1 };

TEST_EACH(at_any_fraction_the_bits_are_the_same_and_a_restored_job_lies_where_it_lay, 0, 3)
{
    const double fraction = fractions[_i];
    if (_i != 1 && strcmp(cairn_test_backend(), "cuda") != 0) return; // all the same
    char id[CLUSTER_WORD_BYTES];
    start(SHARDS);
    train_with(fraction, HALFWAY, 1);
    check_place(fraction);
    word_of(id, "snapshot create %s --wait -q", BITS_JOB);
    restart_shard(0);
    says(0, "", "snapshot restore %s %s --yes", BITS_JOB, id);
    check_place(fraction);
    train_with(fraction, BITS_STEPS, 0);
    crew_check_root(cluster.address, &bits_job, BITS_GOLDEN_ROOT);
}

TEST(a_shard_without_a_device_says_that_a_fraction_means_nothing)
{
    ck_assert_int_eq(setenv("CAIRN_TEST_BACKEND", "host", 1), 0);
    start(1);
    train_with(0.5, 1, 0);
    check_place(0.5);
    ck_assert_int_eq(logged("shard-0.log", "offload_fraction 0.5 means nothing here"), 1);
    says(0, "0.5 of the state in host memory", "job show " BITS_JOB);
}

SUITE(60, .tear_down = stop);
