/* A shard is away, with real daemons: what is said of its job; and one that is gone for good is forgotten. */
#include <stdio.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

static struct cluster cluster;
static struct cluster_said said;

static void train_one_step(void)
{
    struct tiny_job tiny;
    tiny_describe(&tiny, 20000);
    cairn *session = tiny_session(&cluster, NULL);
    tiny_step(tiny_open(session, "tiny", &tiny));
    cairn_close(session);
}

#define RUN(status, word, ...) cluster_says(&cluster, status, word, __VA_ARGS__, NULL)

TEST(after_a_restart_a_job_is_waiting_and_its_step_unknown_until_its_shards_have_told)
{
    char name[32], state[32], generation[32], step[32];
    cluster_start(&cluster, 2, NULL);
    train_one_step();
    cluster_kill_coordinator(&cluster);
    cluster_kill_shard(&cluster, 1);
    cluster_restart_coordinator(&cluster);
    cluster_await(&cluster, true, "shard shard-1 (it is away)", "job", "list", "--no-headers",
                  NULL); // the other one is back
    cluster_cli(&cluster, &said, "job", "list", "--no-headers", NULL);
    ck_assert_int_eq(sscanf(said.out, "%31s %31s %31s %31s", name, state, generation, step), 4);
    ck_assert_str_eq(state, "waiting");
    ck_assert_str_eq(generation, "-");
    ck_assert_str_eq(step, "-");
    RUN(0, "unknown: not all shards have told it", "job", "show", "tiny");
    RUN(0, "\"step\": null", "job", "show", "tiny", "-ojson");
    cluster_stop(&cluster);
}

TEST(a_shard_that_died_is_forgotten_when_its_job_has_gone)
{
    cluster_start(&cluster, 2, NULL);
    train_one_step();
    RUN(11, "is connected from", "shard", "forget", "shard-1");
    cluster_kill_shard(&cluster, 1);
    cluster_await(&cluster, true, "shard shard-1 (it is away)", "job", "list", "--no-headers",
                  NULL);
    RUN(11, "job tiny has a part on shard shard-1", "shard", "forget", "shard-1");
    RUN(0, "shard-1", "job", "drop", "tiny", "--yes");
    RUN(0, "away", "cluster", "status");
    RUN(0, "shard-1", "shard", "forget", "shard-1");
    cluster_cli(&cluster, &said, "cluster", "status", NULL);
    ck_assert_msg(said.status == 0 && strstr(said.out, "shard-1") == NULL, "%s%s", said.out,
                  said.err);
    RUN(4, "no shard shard-1", "shard", "forget", "shard-1");
    cluster_stop(&cluster);
}

SUITE(110);
