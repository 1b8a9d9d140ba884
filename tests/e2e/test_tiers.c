/* What a job is asked to lose no step by: had, shown and changed while it trains; refused if it cannot be
 * had; and missed aloud. What each tier is worth: e2e.kept, e2e.standby. */
#include "tests/e2e/scene.h"

enum { ELEMS = 5000 };

#define AT_ONCE SETTINGS("lease.heartbeat=100ms", "cluster.standby_after=0s")

static int in_log(const char *text)
{
    return logged("coordinator.log", text);
}

static void come_in_step(int times)
{
    while (in_log("is mirrored by") < times) train_pushing(0.5f, 1);
}

static void expect_in(const char *command, const char *text)
{
    await((ask_line(command), strstr(said.out, text) != NULL));
}

TEST(what_cannot_be_had_is_refused_when_it_is_asked_for)
{
    start(2, .coordinator_set = AT_ONCE);
    join("tiny", TINY(ELEMS));
    says(2, "durability peer cannot be had: shards shard-0, shard-1 have no standby",
         "job durability tiny peer");
    says(2, "durability process cannot be had: shards shard-0, shard-1 lose their parts",
         "job durability tiny process");
    says(2, "have no standby", "job amend tiny --set durability=peer");
    says(2, "there is no durability \"tape\"", "job durability tiny tape");
    says(0, "", "snapshot create tiny --wait -q");
    says(2, "durability peer cannot be had: shards shard-",
         "job create --from tiny/latest --as other --set durability=peer");
    says(4, "", "job show other");
    cluster_add_standby(&cluster, 2, 0);
    await(in_log("shard shard-2 is up") == 1);
    says(2, "durability peer cannot be had: shard shard-1 has no standby",
         "job durability tiny peer");
    expect_in("job show tiny", "durability        none");
    ck_assert_int_eq(in_log("less safe"), 0);
}

/* A script asks for it, and no job is made. */
TEST(a_job_that_asks_for_what_cannot_be_had_is_not_made)
{
    const struct tiny_job *tiny = TINY(ELEMS, .durability = CAIRN_DURABILITY_PEER);
    cairn_job *none;
    start(1, .coordinator_set = AT_ONCE);
    session = trainer_session(cluster.address, NULL);
    ck_assert_int_eq(cairn_job_open(session, "tiny", &tiny->spec, CAIRN_WORKER, 5000, &none),
                     CAIRN_ERR_UNSUPPORTED);
    expect_error("durability peer cannot be had: shard shard-0 has no standby");
    says(4, "", "job show tiny");
}

TEST(a_tier_changes_while_the_job_trains_and_its_loss_is_said)
{
    start(1, .coordinator_set = AT_ONCE);
    cluster_add_standby(&cluster, 1, 0);
    join("tiny", TINY(ELEMS));
    come_in_step(1);
    says(0, "has               peer", "job durability tiny peer");
    train_pushing(0.5f, 2);
    says(0, "peer; peer is asked for", "job show tiny");
    says(0, "\"durability\": \"peer\"", "job show tiny -o json");
    says(0, "peer", "job list");
    says(0, "all is well", "job check tiny");
    kill_shard(1);
    train_pushing(0.5f, 2);
    await(
        in_log("job tiny is less safe than it asks for (peer), and has none: shard shard-0 is not "
               "mirrored: the connection to it was lost") == 1);
    says(3, "is less safe than it asks for: shard shard-0 is not mirrored", "job check tiny");
    says(0, "job tiny is less safe than it asks for: shard shard-0", "cluster status");
    says(0, "none, degraded", "job list");
    says(0, "degraded", "cluster events");
    // given up by the operator, nothing is missed any more; asked for again, it is not there
    says(0, "", "job durability tiny default -q");
    says(2, "durability peer cannot be had", "job durability tiny peer");
    cluster_add_standby(&cluster, 1, 0);
    come_in_step(2);
    await(in_log("has the durability again that it asks for") == 1);
}

/* What is asked for in words is had, and nothing else: a standby that is there mirrors nothing. */
TEST(a_job_that_asks_for_process_has_no_standby)
{
    start(1, .coordinator_set = AT_ONCE, .shards_kept = true);
    cluster_add_standby(&cluster, 1, 0);
    join("tiny", TINY(ELEMS));
    come_in_step(1);
    expect_in("job show tiny", "process+peer");
    says(0, "", "job durability tiny process -q");
    await(in_log("asks for a durability without standbys") == 1);
    train_pushing(0.5f, 3);
    expect_in("job show tiny", "process; process is asked for");
    says(0, "all is well", "job check tiny");
    ck_assert_int_eq(in_log("less safe"), 0);
    says(0, "", "job durability tiny peer -q");
    come_in_step(2);
}

/* A standby beside its owner is used, and is no second host. */
TEST(a_standby_in_the_domain_of_its_owner_is_not_enough)
{
    start(1, .coordinator_set = AT_ONCE, .shard_set = SETTINGS("shard.domain=rack-1"));
    cluster_add_standby(&cluster, 1, 0);
    join("tiny", TINY(ELEMS));
    come_in_step(1);
    says(2,
         "durability peer cannot be had: shard shard-0 is not mirrored: there is no second domain",
         "job durability tiny peer");
    says(3, "there is no second domain", "job check tiny");
    kill_shard(0);
    train_pushing(0.5f, 2);
    ck_assert_int_eq(in_log("takes its place"), 1);
}

SUITE(120, .tear_down = stop);
