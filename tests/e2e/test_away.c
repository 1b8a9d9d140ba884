/* A shard is away, with real daemons: what is said of its job; and one that is gone for good is forgotten. */

#include "tests/e2e/scene.h"

static void train_one_step(void)
{
    join("tiny", TINY(20000));
    train(1);
    leave();
}

TEST(after_a_restart_a_job_is_waiting_and_its_step_unknown_until_its_shards_have_told)
{
    char name[32], owner[32], state[32], generation[32], step[32];
    start(2);
    train_one_step();
    kill_coordinator();
    kill_shard(1);
    restart_coordinator();
    await_said("shard shard-1 (it is away)", "job list --no-headers"); // the other one is back
    ask("job list --no-headers");
    ck_assert_int_eq(
        sscanf(said.out, "%31s %31s %31s %31s %31s", name, owner, state, generation, step), 5);
    ck_assert_str_eq(state, "waiting");
    ck_assert_str_eq(generation, "-");
    ck_assert_str_eq(step, "-");
    says(0, "unknown: not all shards have told it", "job show tiny");
    says(0, "\"step\": null", "job show tiny -ojson");
}

TEST(a_shard_that_died_is_forgotten_when_its_job_has_gone)
{
    start(2);
    train_one_step();
    says(11, "is connected from", "shard forget shard-1");
    kill_shard(1);
    await_said("shard shard-1 (it is away)", "job list --no-headers");
    says(11, "job tiny has a part on shard shard-1", "shard forget shard-1");
    says(0, "shard-1", "job drop tiny --yes");
    says(0, "away", "cluster status");
    says(0, "shard-1", "shard forget shard-1");
    ask("cluster status");
    expect_said(0);
    expect_unsaid("shard-1");
    says(4, "no shard shard-1", "shard forget shard-1");
}

SUITE(110, .tear_down = stop);
