/* A job goes back to one of its last versions, which its shards have kept or make again from their logs: with
 * the bits of then, and on from there with the bits of a run that was never past it. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/e2e/scene.h"
#include "tests/support/scratch.h"

enum { ELEMS = 20000, STEPS = 7 };

/* A job in which everything changes with the step: a schedule, an average, a loss scale that grows. */
static struct tiny_job *changing(struct tiny_job *tiny)
{
    tiny->group.ema = 0.9;
    tiny->group.ema_schedule = CAIRN_EMA_WARMUP;
    tiny->group.schedule = CAIRN_SCHEDULE_COSINE;
    tiny->group.warmup_steps = 2;
    tiny->group.total_steps = 100;
    tiny->spec.clip_norm = 0.5;
    tiny->spec.loss_scale = 8;
    tiny->spec.loss_scale_policy = CAIRN_LOSS_SCALE_DYNAMIC;
    tiny->spec.loss_scale_growth_steps = 2;
    tiny->spec.loss_scale_min = 1;
    tiny->spec.loss_scale_max = 1024;
    return tiny;
}

/* The gradient of each step is another one. */
static void step_to(uint64_t step)
{
    while (newest(job).step < step) train_pushing(1.0f / (float)(newest(job).step + 1), 1);
}

/* A round with a gradient that is none: it is skipped, and the loss scale falls. */
static void skip(void)
{
    static float gradient[ELEMS];
    const struct cairn_round round = trainer_begin(job);
    for (int i = 0; i < ELEMS; i++) gradient[i] = NAN;
    trainer_push(job, &round, "w", gradient);
    const struct cairn_result result = trainer_result(job, &round);
    ck_assert(!result.applied);
}

static void expect_rolled_back(void)
{
    static float gradient[ELEMS];
    uint64_t step;
    ck_assert_int_eq(trainer_try_step(job, "w", gradient, &step), CAIRN_ERR_ROLLED_BACK);
    expect_error("taken back to step");
}

TEST(a_job_goes_back_and_trains_on_with_the_bits_of_a_run_that_was_never_past_it)
{
    static char roots[STEPS + 1][65];
    const struct tiny_job *tiny = changing(TINY(ELEMS, .keep_versions = 3));
    start(2, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
    join("tiny", tiny);
    for (uint64_t s = 1; s <= STEPS; s++) {
        step_to(s);
        bits(roots[s]);
    }
    skip();
    says(0, "", "job rollback tiny");
    says(0, "step 4", "job rollback tiny");
    says(0, "goes on from", "job rollback tiny --to-version 5 --yes");
    expect_rolled_back();
    leave();
    join("tiny", tiny);
    ck_assert_uint_eq(newest(job).step, 5);
    expect_bits(roots[5]);
    for (uint64_t s = 6; s <= STEPS; s++) {
        step_to(s);
        expect_bits(roots[s]);
    }
    // those before the version stay
    struct cairn_version now;
    good(cairn_job_rollback(session, "tiny", (struct cairn_version) { 1, 4 }, CLUSTER_WAIT_MS,
                            &now));
    ck_assert_uint_eq(now.generation, 3);
    ck_assert_uint_eq(now.step, 4);
    leave();
    join("tiny", tiny);
    expect_bits(roots[4]);
    step_to(5);
    expect_bits(roots[5]);
}

TEST(what_cannot_be_gone_back_to_is_refused_with_what_there_is)
{
    start(2, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
    join("tiny", TINY(1 << 20));
    ask("job amend tiny --keep-versions 64"); // 64 times 6 MiB on each shard, of 256 MiB
    ck_assert_msg(said.status != 0 && strstr(said.err, "bytes") != NULL, "%s", said.err);
    says(0, "", "job drop tiny --yes --force");
    leave();
    join("tiny", TINY(ELEMS));
    train_pushing(0.5f, 2);
    says(0, "no former version", "job rollback tiny");
    ask("job rollback tiny --to-version 1 --yes");
    expect_said(4, "keep_versions is 0", "job amend tiny --keep-versions K");
    says(4, "there is no job \"other\"", "job rollback other --to-version 1 --yes");
    says(2, "give a step", "job rollback tiny --to-version one --yes");
    says(2, "cannot be brought back", "job rollback tiny --to-version 1");
    says(0, "", "job amend tiny --keep-versions 64");
    leave();
    join("tiny", TINY(ELEMS));
    train_pushing(0.5f, 2);
    await_said("to 2 versions", "job show tiny");
    ask("job show tiny -o json");
    ck_assert_int_ge(said_number("memory.former"), 64 * 12 * ELEMS);
    ck_assert_int_lt(said_number("memory.former"), 64 * 13 * ELEMS + (64 << 16));
    ask("job rollback tiny --to-version 9 --yes");
    expect_said(4, "no shard has such a version", "2:2", "2:3");
    ask("job amend tiny --set keep_versions=65");
    ck_assert_int_ne(said.status, 0);
    leave();
}

/* All shards have a version to go back to, as they tell within a few heartbeats. */
static bool has_versions(void)
{
    for (int i = 0; i < 50; i++) {
        ask("job show tiny");
        if (strstr(said.out, "to no version yet") == NULL) return true;
    }
    return false;
}

TEST(a_write_is_gone_back_over_and_another_layout_begins_with_no_version)
{
    static float ones[ELEMS];
    char root[65], moved[65];
    struct cairn_version version;
    cairn *reading;
    const struct tiny_job *tiny = changing(TINY(ELEMS, .keep_versions = 2));
    start(2, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
    join("tiny", tiny);
    step_to(3);
    bits(root);
    good(cairn_write_begin(job, CLUSTER_WAIT_MS));
    trainer_put(job, "w", ones);
    good(cairn_write_end(job, CLUSTER_WAIT_MS, &version));
    ck_assert_uint_eq(version.generation, 2);
    step_to(4);
    cairn_job *reader = join_reader("tiny", NULL, &reading);
    good(cairn_lease(reader, newest(reader), CLUSTER_WAIT_MS, CLUSTER_WAIT_MS, &version));
    says(0, "", "job rollback tiny --to-version 1:3 --yes");
    ck_assert_int_eq(
        cairn_version_wait(reader, (struct cairn_version) { 3, 4 }, CLUSTER_WAIT_MS, &version),
        CAIRN_ERR_ROLLED_BACK);
    cairn_close(reading);
    expect_bits(root);
    leave();
    join("tiny", tiny);
    step_to(6);
    says(0, "", "job park tiny");
    says(11, "is parked", "job rollback tiny --to-version 5 --yes");
    says(0, "", "job unpark tiny");
    says(0, "", "reshard apply tiny --shards 1");
    step_to(7);
    says(0, "", "reshard apply tiny --shards 2"); // one joins
    says(4, "job tiny cannot go back to step 5", "job rollback tiny --to-version 5 --yes");
    train(10); // the memory of former versions is there again after eight
    while (!has_versions()) train(1);
    const uint64_t step = newest(job).step;
    bits(moved);
    train(1);
    says(0, "", "job rollback tiny --to-version %d --yes", (int)step);
    expect_bits(moved);
}

/* The roots of a run that nothing happens to, by step. */
static void run_undisturbed(const struct tiny_job *tiny, char roots[][65], uint64_t until)
{
    join("undisturbed", tiny);
    for (uint64_t s = 1; s <= until; s++) {
        step_to(s);
        bits(roots[s]);
    }
    leave();
}

static void train_on(char roots[][65], uint64_t steps)
{
    step_to(newest(job).step + steps);
    expect_bits(roots[newest(job).step]);
}

/* The logs stand on a snapshot. */
static void await_log(void)
{
    await_said("log; log is asked for", "job show tiny");
}

/* A shard, or the coordinator, dies at any time while the job goes back: by its logs, or by what shards keep
 * in memory. */
static void die_on_the_way(const struct tiny_job *tiny, bool by_logs)
{
    enum { KILLS_MAX = 100, MORE = 4 };
    static char roots[4 * KILLS_MAX + MORE + 5][65];
    const char *asked = getenv("CAIRN_TEST_KILLS");
    const int kills = asked != NULL ? atoi(asked) : by_logs ? 2 : 4;
    int gone_back = 0, more = 0;
    ck_assert_int_le(kills, KILLS_MAX);
    run_undisturbed(tiny, roots, 4 * (uint64_t)kills + MORE);
    join("tiny", tiny);
    if (by_logs) says(0, "", "job durability tiny log -q");
    if (by_logs) await_log();
    for (int i = 0; i < kills; i++) {
        struct cluster_command command;
        train_on(roots, 4); // a shard that died has forgotten those before
        for (; more < MORE && !has_versions(); more++) train_on(roots, 1);
        const struct cairn_version before = newest(job);
        cluster_cli_begin(&cluster, &command, "job rollback tiny --to-version %d --yes",
                          (int)before.step - 1);
        usleep((useconds_t)(rand() % 60000));
        if (i % 2 == 0) {
            kill(cluster_shard_process(&cluster, rand() % 2), SIGKILL);
        } else {
            kill_coordinator();
            restart_coordinator();
        }
        (void)cluster_wait(command.pid, CLUSTER_WAIT_MS);
        leave();
        join("tiny", tiny);
        if (by_logs) await_log();
        const struct cairn_version now = newest(job);
        if (now.generation == before.generation)
            ck_assert_uint_eq(now.step, before.step);
        else
            ck_assert_uint_eq(now.step, before.step - 1);
        expect_bits(roots[now.step]);
        gone_back += now.generation != before.generation;
    }
    if (asked != NULL) fprintf(stderr, "%d of %d times gone back\n", gone_back, kills);
}

TEST(whoever_dies_on_the_way_the_job_is_where_it_was_or_where_it_went_back_to)
{
    start(2, .shards_kept = true, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
    die_on_the_way(changing(TINY(ELEMS, .keep_versions = 3)), false);
}

/* Its next process has both generations, and may tell so before the store says which one the job is. */
TEST(a_shard_that_dies_when_its_new_part_is_there_comes_again_with_it)
{
    const struct tiny_job *tiny = TINY(ELEMS, .keep_versions = 3);
    start(2, .shards_kept = true, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
    join("tiny", tiny);
    for (int i = 0; i < 8; i++) {
        struct cluster_command command;
        step_to(newest(job).step + 12); // the memory of former versions is there again after eight
        const struct cairn_version before = newest(job);
        const int parts = logged("shard-1.log", "ready at version");
        cluster_cli_begin(&cluster, &command, "job rollback tiny --to-version %d --yes",
                          (int)before.step - 1);
        await(logged("shard-1.log", "ready at version") > parts);
        usleep((useconds_t)(rand() % 15000));
        kill(cluster_shard_process(&cluster, 1), SIGKILL);
        (void)cluster_wait(command.pid, CLUSTER_WAIT_MS);
        leave();
        join("tiny", tiny);
        ck_assert_uint_eq(newest(job).step,
                          before.step - (newest(job).generation != before.generation));
    }
}

/* A job that goes back twice, and loses a shard before there is a snapshot of it, is restored from one that
 * it descends from, and not from one that it gave up. */
TEST(what_was_given_up_twice_ago_is_not_restored)
{
    const struct tiny_job *tiny = TINY(ELEMS, .keep_versions = 8,
                                       .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST);
    char root[65];
    start(2, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
    join("tiny", tiny);
    step_to(2);
    bits(root);
    says(0, "committed", "snapshot create tiny --wait");
    step_to(5);
    says(0, "committed", "snapshot create tiny --wait");
    step_to(6);
    says(0, "step 3", "job rollback tiny --to-version 1:3 --yes");
    leave();
    join("tiny", tiny);
    step_to(5);
    says(0, "step 4", "job rollback tiny --to-version 2:4 --yes");
    leave();
    join("tiny", tiny);
    step_to(7);
    kill_coordinator(); // the store knows, too
    restart_coordinator();
    leave();
    restart_shard(0);
    await(logged("coordinator.log", "job tiny restored from") == 1);
    join("tiny", tiny);
    ck_assert_uint_eq(newest(job).step, 2);
    expect_bits(root);
}

/* ---- by its log ---- */

static void start_logged(int shards, const char *memory_limit, bool is_kept)
{
    start(shards, .coordinator_set = SETTINGS("lease.heartbeat=100ms"),
          .shard_set = SETTINGS("compute.threads=1", memory_limit, logs_setting),
          .shards_kept = is_kept);
}

static void go_back(uint64_t step)
{
    says(0, "its logs begin anew", "job rollback tiny --to-version %d --yes", (int)step);
    expect_rolled_back();
    leave();
}

TEST(a_job_with_a_log_goes_back_to_any_step_since_its_snapshot)
{
    enum { FIRST = 2, SKIPPED = 5, LAST = 9 };
    static char roots[LAST + 1][65];
    const struct tiny_job *tiny = changing(TINY(ELEMS));
    start_logged(2, "memory.limit=256MiB", false);
    join("tiny", tiny);
    step_to(FIRST);
    says(0, "", "job durability tiny log -q");
    await_log();
    for (uint64_t s = FIRST; s <= LAST; s++) {
        step_to(s);
        if (s == SKIPPED) skip(); // the last decision at this version
        bits(roots[s]);
    }
    says(0, "going back        to each step from 2 to 8 of generation 1 by its logs",
         "job show tiny");
    says(0, "can go back to each step from 2 to 8 of generation 1", "job rollback tiny");
    go_back(SKIPPED);
    join("tiny", tiny);
    ck_assert_uint_eq(newest(job).step, SKIPPED);
    expect_bits(roots[SKIPPED]);
    ck_assert_int_eq(logged("shard-0.log", "by 3 updates to step 5"), 1);
    for (uint64_t s = SKIPPED + 1; s <= LAST; s++) {
        step_to(s);
        expect_bits(roots[s]);
    }
    // in the new generation, too: to the snapshot itself, which needs no update
    await_log();
    const uint64_t based = newest(job).step;
    step_to(based + 2);
    ask("job rollback tiny -o json");
    const uint64_t from = (uint64_t)said_number("by_log.from_step");
    ck_assert_uint_le(from, based);
    go_back(from);
    ck_assert_int_eq(logged("shard-1.log", "by 0 updates to step"), 1);
    join("tiny", tiny);
    if (from <= LAST) expect_bits(roots[from]);
    // and then the hosts lose power
    await_log();
    step_to(LAST + 3);
    bits(roots[0]);
    for (int i = 0; i < 2; i++) kill_shard(i);
    for (int i = 0; i < 2; i++) cluster_restart_shard(&cluster, i);
    expect_bits(roots[0]);
}

/* A job that has its log from step 1 on. */
static void begin_logged(const struct tiny_job *tiny)
{
    join("tiny", tiny);
    train_pushing(0.5f, 1);
    says(0, "", "job durability tiny log -q");
    await_log();
}

static void expect_refused(const char *why)
{
    ck_assert_int_ne(said.status, 0);
    ck_assert_msg(strstr(said.err, why) != NULL, "%s", said.err);
    ck_assert_msg(strstr(said.err, "it goes on as it was") != NULL, "%s", said.err);
}

TEST(what_a_log_does_not_have_is_refused_and_the_job_goes_on)
{
    char root[65], away[sizeof cluster.snapshots_path + 8];
    start_logged(1, "memory.limit=19MiB", false);
    begin_logged(TINY(1 << 17)); // a second part of it has no room
    train_pushing(0.5f, 2);
    ask("job rollback tiny --to-version 2 --yes");
    expect_refused(" bytes");
    train_pushing(0.5f, 1);
    leave();
    says(0, "", "job drop tiny --yes --force");
    begin_logged(TINY(ELEMS));
    ask("job rollback tiny --to-version 0 --yes");
    expect_said(4, "cannot go back to step 0", "their logs have no other step yet");
    step_to(5);
    bits(root);
    ask("job rollback tiny --to-version 0 --yes");
    expect_said(4, "cannot go back to step 0", "each step from 1 to 4 of generation 2");
    says(4, "each step from 1 to 4", "job rollback tiny --to-version 5 --yes");
    snprintf(away, sizeof away, "%s.away", cluster.snapshots_path);
    ck_assert_int_eq(rename(cluster.snapshots_path, away), 0);
    ask("job rollback tiny --to-version 4 --yes");
    expect_refused("step-000000000001");
    expect_bits(root);
    ck_assert_int_eq(rename(away, cluster.snapshots_path), 0);
    step_to(6);
    says(0, "", "job rollback tiny --to-version 5 --yes");
    expect_bits(root);
}

/* The shard serves, so its next start would bring nothing. */
TEST(a_snapshot_that_was_replaced_is_to_be_brought_back_while_the_shard_serves)
{
    char first[CLUSTER_WORD_BYTES], second[CLUSTER_WORD_BYTES], command[2048];
    start_logged(1, "memory.limit=256MiB", false);
    begin_logged(TINY(ELEMS));
    word_of(first, "snapshot create tiny --wait -q");
    train_pushing(0.5f, 1);
    word_of(second, "snapshot create tiny --wait -q");
    train_pushing(0.5f, 2);
    const int step = (int)newest(job).step - 1;
    await((ask("job rollback tiny -o json"), said_number("by_log.from_step") == step - 1));
    snprintf(command, sizeof command, "cd %s/tiny && mv %s right && cp -r %s %s",
             cluster.snapshots_path, second, first, second);
    ck_assert_int_eq(system(command), 0);
    ask("job rollback tiny --to-version %d --yes", step);
    expect_refused("it was replaced since; bring the one back that was there");
    ck_assert_ptr_null(strstr(said.err, "start this shard again"));
}

TEST(a_log_that_is_not_wanted_any_more_offers_no_version)
{
    start_logged(1, "memory.limit=256MiB", false);
    begin_logged(TINY(ELEMS, .keep_versions = 2));
    train_pushing(0.5f, 4);
    await_said("by its logs", "job show tiny");
    says(0, "", "job durability tiny default -q");
    train_pushing(0.5f, 4);
    await_unsaid("by its logs", "job show tiny");
    ask("job rollback tiny --to-version 2 --yes");
    expect_said(4, "cannot go back to step 2", "no shard has such a version");
}

enum { LARGE = 1 << 17 };

/* Each of three shards has its third of the job. */
static bool has_third_at_each(void)
{
    const int64_t bytes = 12 * LARGE / 4;
    return said_count("memory.shards") == 3 && said_number("memory.shards.0.state") > bytes &&
           said_number("memory.shards.1.state") > bytes &&
           said_number("memory.shards.2.state") > bytes;
}

/* The shards make their parts again from their logs, by so many updates that there is time to ask. */
TEST(a_resharding_that_is_asked_for_while_a_job_goes_back_spreads_it_as_asked)
{
    enum { MANY = 300 };
    struct cluster_command command;
    start(2, .coordinator_set = SETTINGS("lease.heartbeat=100ms"),
          .shard_set = SETTINGS("compute.threads=1", "memory.limit=256MiB", logs_setting,
                                "log.budget=1GiB")); // so no snapshot is taken meanwhile
    cluster_add_shard(&cluster, 2);
    begin_logged(TINY(LARGE));
    train_pushing(0.5f, MANY);
    cluster_cli_begin(&cluster, &command, "job rollback tiny --to-version %d --yes", MANY);
    await(logged("shard-0.log", "goes back by its log") > 0);
    says(0, "", "reshard apply tiny --shards 3");
    // not while a snapshot for the new log is being taken, if it was taken back already
    await((ask("job park tiny"), strstr(said.err, "a snapshot or digest of job tiny") == NULL));
    ck_assert_msg(said.status == 0 || strstr(said.err, "is being taken back: ask again") != NULL,
                  "%s", said.err);
    ck_assert_int_eq(cluster_wait(command.pid, CLUSTER_WAIT_MS), 0);
    if (said.status == 0) says(0, "", "job unpark tiny");
    await_said("\"shards_after\": 3", "reshard status tiny -o json");
    await((ask("job show tiny -o json"), has_third_at_each()));
}

static void await_mirror(int times)
{
    while (logged("coordinator.log", "is mirrored by") < times) train_pushing(0.5f, 1);
}

/* The standby mirrors the new generation, and takes the place with its bits. */
TEST(a_job_with_a_standby_goes_back_by_its_log)
{
    char root[65];
    start(1, .coordinator_set = SETTINGS("lease.heartbeat=100ms", "cluster.standby_after=0s"),
          .shard_set = SETTINGS("compute.threads=1", "memory.limit=256MiB", logs_setting));
    cluster_add_standby(&cluster, 1, 0);
    join("tiny", TINY(ELEMS));
    await_mirror(1);
    says(0, "", "job durability tiny log+peer -q");
    await_said("log+peer; log+peer is asked for", "job show tiny");
    train_pushing(0.5f, 2);
    const uint64_t step = newest(job).step;
    bits(root);
    train_pushing(0.25f, 3);
    go_back(step);
    expect_bits(root);
    join("tiny", TINY(ELEMS));
    await_mirror(2);
    train_pushing(0.5f, 2);
    bits(root);
    kill_shard(0);
    train_pushing(0.5f, 1);
    ck_assert_int_eq(logged("coordinator.log", "job tiny is lost"), 0);
}

TEST(whoever_dies_on_the_way_by_the_logs_the_job_is_where_it_was_or_where_it_went_back_to)
{
    start_logged(2, "memory.limit=256MiB", true);
    die_on_the_way(changing(TINY(ELEMS)), true);
}

SUITE(60, logs_begin, logs_end);
