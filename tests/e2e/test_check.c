/* What is not well is said a line each, and the exit status is that of the worst kind; and who asked for what
 * stands in the events. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 100 };

static const struct cairn_tensor tensors[] = {
    { .struct_size = sizeof *tensors, .name = "w", .rank = 1, .shape = { ELEMS } },
};

static void set_up(void)
{
    float values[ELEMS] = { 0 };
    start(2, .shards_kept = true, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
    session = trainer_session(cluster.address, NULL);
    const struct cairn_job_spec spec = trainer_spec(tensors, 1);
    job = trainer_open(session, "run", &spec);
    trainer_put(job, "w", values);
    good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
    trainer_step(job, "w", values);
    await_said("process", "job list"); // the shards have said that they keep their parts
}

static void tear_down(void)
{
    if (session != NULL) stop();
}

static void expect(int status, const char *word)
{
    ck_assert_msg(said.status == status && strstr(said.out, word) != NULL,
                  "status %d, no \"%s\" in: %s%s", said.status, word, said.out, said.err);
}

TEST(each_kind_of_what_is_not_well_has_its_status)
{
    ask("cluster status --check");
    expect(0, "all is well");
    ask("job check run --snapshot-age 1h");
    expect(22, "snapshot: run: has no snapshot");
    ask("job list");
    expect(0, "LAST STEP");
    expect(0, " s ago");
    kill_shard(1);
    do // until its connection is known to be closed
        ask("cluster status --check --snapshot-age 1h");
    while (said.status == 22);
    expect(20, "away for");
    expect(20, "1 of 2 shards are up");
    expect(20, "has no snapshot");
    ask("-o json cluster status --check");
    expect(20, "\"well\": false");
    ask("-q cluster status --check");
    ck_assert_int_eq(said.status, 20);
    ck_assert_str_eq(said.out, "");
}

/* The last byte of a file of the model. */
static void corrupt(void)
{
    char command[CAIRN_SCRATCH_BYTES + 300];
    snprintf(command, sizeof command,
             "f=$(ls %s/run/step-*/model/*.safetensors | head -1) && printf '\\377' | dd of=\"$f\" "
             "bs=1 seek=$(($(stat -c %%s \"$f\") - 1)) conv=notrunc 2>/dev/null",
             cluster.snapshots_path);
    ck_assert_int_eq(system(command), 0);
}

TEST(what_is_meant_to_be_is_well_and_what_is_damaged_or_lost_is_not)
{
    says(0, "parked", "job park run");
    says(0, "all is well", "job check run");
    says(0, "unparked", "job unpark run");
    says(0, "all is well", "job check run");
    says(0, "committed", "snapshot create run --wait");
    says(0, "all is well", "job check run --snapshot-age 1h");
    says(0, "", "job amend run --snapshot-scrub-every 1s");
    corrupt();
    do // until it is read again
        ask("job check run");
    while (said.status == 0);
    expect(22, "is damaged");
    cairn_close(session); // a job without workers need not go on
    session = NULL;
    says(22, "is damaged", "cluster status --check");
    restart_shard(1);
    do // until its part is given up for lost
        ask("cluster status --check");
    while (strstr(said.out, "waits: run: is lost: ") == NULL);
    ck_assert_int_eq(said.status, 21);
    char moved[CAIRN_SCRATCH_BYTES + 64];
    snprintf(moved, sizeof moved, "%s.away", cluster.snapshots_path);
    ck_assert(rename(cluster.snapshots_path, moved) == 0); // nobody can list them
    ck_assert(symlink("snapshots", cluster.snapshots_path) == 0);
    ask("cluster status --check");
    expect(21, "is lost: "); // which is worse, and not hidden by it
    expect(21, "its snapshots cannot be listed: ");
    ck_assert_str_eq(said.err, ""); // all of it is what was found, in JSON as well
}

TEST(a_part_that_dies_with_its_process_is_named)
{
    const pid_t process = cluster_shard_process(&cluster, 1);
    cluster_kill(cluster.shards[1]); // its keeper
    cluster.shards[1] = 0;
    says(0, "", "job amend run --clip-norm 3"); // of which the part makes a new record
    do                                          // until the shard has said so
        ask("job check run");
    while (said.status == 0);
    expect(3, "safety: run: is less safe than it asks for: shard shard-1 loses its part");
    says(0, "none", "job list");
    ck_assert_int_eq(kill(process, SIGKILL), 0);
}

TEST(every_member_says_which_build_it_is)
{
    static const char key[] = "\"version\": \"";
    const char *first = NULL;
    size_t count = 0, length = 0;
    ask("cluster status -o json");
    for (const char *at = said.out; (at = strstr(at, key)) != NULL; count++) {
        at += sizeof key - 1;
        if (first == NULL) {
            first = at;
            length = strcspn(at, "\"") + 1;
        }
        ck_assert_msg(strncmp(at, first, length) == 0, "another one: %s", said.out);
    }
    ck_assert_uint_eq(count, 4); // the coordinator, two shards, a worker
}

TEST(an_operators_action_has_its_who_and_from_where)
{
    says(0, "", "job amend run --lr 0.5");
    ask("job amend run --set stage=2 --workers 1:3");
    ask("job drop other --yes");
    ask("cluster events -o json");
    expect(0, "\"asked\"");
    expect(0, "admin cairn job amend, pid ");
    expect(0, " at ");
    expect(0, "\"job amend name=run");
    expect(0, "workers_max=3"); // what was asked for, not only that something was
    expect(0, " stage=2");
    expect(0, "\"job drop name=other");
    ck_assert_ptr_null(strstr(said.out, "\"cluster events")); // who only asks changes nothing
}

/* Whose numbers begin anew. What one that was killed had not stored is numbered again, too. */
TEST(events_are_watched_past_a_coordinator_with_another_store)
{
    struct cluster_command events;
    cluster_cli_begin(&cluster, &events, "cluster events --watch 0.01");
    await(strstr(cluster_cli_printed(&events), "job-created") != NULL);
    lose_store();
    says(0, "run", "cluster adopt --yes");
    await(strstr(cluster_cli_printed(&events), "cluster adopt") != NULL);
    kill(events.pid, SIGINT);
    cluster_cli_end(&events, cluster_wait(events.pid, CLUSTER_WAIT_MS), &said);
    ck_assert_int_eq(said.status, 130);
    ck_assert_ptr_nonnull(strstr(strstr(said.out, "job-created"), "started"));
}

SUITE(60, set_up, tear_down);
