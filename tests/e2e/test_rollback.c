/* A job goes back to one of its last versions, which its shards have kept: with the bits of then, and on from
 * there with the bits of a run that was never past it. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/e2e/scene.h"

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
    await((train(1), ask("job show tiny"), strstr(said.out, "to 2 versions") != NULL));
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

/* All shards have a version to go back to, as they tell within a few heartbeats. */
static bool has_versions(void)
{
    for (int i = 0; i < 50; i++) {
        ask("job show tiny");
        if (strstr(said.out, "to no version yet") == NULL) return true;
    }
    return false;
}

/* A shard, or the coordinator, dies at any time while the job goes back. */
TEST(whoever_dies_on_the_way_the_job_is_where_it_was_or_where_it_went_back_to)
{
    enum { KILLS_MAX = 100, MORE = 4 };
    static char roots[4 * KILLS_MAX + MORE + 5][65];
    const struct tiny_job *tiny = changing(TINY(ELEMS, .keep_versions = 3));
    const char *asked = getenv("CAIRN_TEST_KILLS");
    const int kills = asked != NULL ? atoi(asked) : 4;
    int gone_back = 0, more = 0;
    ck_assert_int_le(kills, KILLS_MAX);
    start(2, .shards_kept = true, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
    run_undisturbed(tiny, roots, 4 * (uint64_t)kills + MORE);
    join("tiny", tiny);
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

SUITE(60, .tear_down = stop);
