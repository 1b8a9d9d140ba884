/* A lost store costs nothing: rebuilt from the shards, or copied back, it goes on with the same bits. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/suite.h"
#include "tests/support/trainer.h"

enum { ELEMS = 1500, STEPS_BEFORE = 3, STEPS_AFTER = 20 };

struct run {
    cairn *session;
    cairn_job *job;
    float values[ELEMS];
};

static const struct cairn_tensor tensors[] = {
    { .struct_size = sizeof *tensors, .name = "body.w", .rank = 1, .shape = { ELEMS } },
    { .struct_size = sizeof *tensors, .name = "head.w", .rank = 1, .shape = { ELEMS } },
};

static void open_run(struct run *run, const struct cluster *cluster)
{
    struct cairn_group groups[2] = { CAIRN_GROUP_INIT, CAIRN_GROUP_INIT };
    groups[0].name = "body";
    groups[0].pattern = "body.*";
    groups[1].name = "head";
    groups[1].pattern = "*";
    struct cairn_job_spec spec = trainer_spec(tensors, 2);
    spec.groups = groups;
    spec.group_count = 2;
    spec.client_state_max = 16;
    for (int i = 0; i < ELEMS; i++) run->values[i] = (float)i / 7;
    run->session = trainer_session(cluster->address, NULL);
    run->job = trainer_open(run->session, "run", &spec);
    trainer_put(run->job, "body.w", run->values);
    trainer_put(run->job, "head.w", run->values);
    good(cairn_init_done(run->job, NULL, CLUSTER_WAIT_MS));
}

/* `frozen`: the head takes no gradient. */
static void train(struct run *run, int steps, bool frozen)
{
    static float gradient[ELEMS];
    for (int k = 0; k < steps; k++) {
        struct cairn_result result = { .struct_size = sizeof result };
        char state[16] = "";
        const struct cairn_round round = trainer_begin(run->job);
        for (int i = 0; i < ELEMS; i++)
            gradient[i] = (float)((i * 31 + (int)round.step * 17) % 101);
        trainer_push(run->job, &round, "body.w", gradient);
        if (!frozen) trainer_push(run->job, &round, "head.w", gradient);
        snprintf(state, sizeof state, "at %d", (int)round.step);
        good(cairn_commit(run->job, &round, 1, state, sizeof state, CLUSTER_WAIT_MS, &result));
    }
}

static void amend(struct run *run)
{
    static const char *const freeze[] = { "head" };
    struct cairn_group body = CAIRN_GROUP_INIT;
    body.name = "body";
    body.lr = 0.02;
    const struct cairn_amend amend = { .struct_size = sizeof amend,
                                       .groups = &body,
                                       .group_count = 1,
                                       .freeze = freeze,
                                       .freeze_count = 1 };
    good(cairn_job_amend(run->job, &amend, CLUSTER_WAIT_MS));
}

static void write_plane(struct run *run)
{
    struct cairn_version version;
    good(cairn_write_begin(run->job, CLUSTER_WAIT_MS));
    trainer_put(run->job, "head.w", run->values);
    good(cairn_write_end(run->job, CLUSTER_WAIT_MS, &version));
}

static void expect_said(const struct cluster *cluster, struct cluster_said *said, int status,
                        const char *word)
{
    ck_assert_msg(said->status == status && strstr(said->out, word) != NULL,
                  "%s: %d: no \"%s\" in %s%s", cluster->address, said->status, word, said->out,
                  said->err);
}

enum slip { NONE, LOST, OLDER, VERSION };

/* A copy of what is in the store now; training goes on. */
static void back_up(const struct cluster *cluster)
{
    static struct cluster_said said;
    char path[CAIRN_SCRATCH_BYTES + 64];
    snprintf(path, sizeof path, "%s/copy", cluster->folder);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/copy/coordinator.db", cluster->folder);
    cluster_cli(cluster, &said, "cluster", "backup", path, NULL);
    expect_said(cluster, &said, 0, path);
    cluster_cli(cluster, &said, "cluster", "backup", path, NULL);
    ck_assert_int_ne(said.status, 0);
    ck_assert_msg(strstr(said.err, "is there already") != NULL, "%s", said.err);
}

/* The coordinator is ended, and its store is marked as another version's: the next start refuses it, and says
 * what is done then, but for the start. */
static void refuse_store(struct cluster *cluster)
{
    static char words[8192];
    const char *argv[64];
    const uint8_t version[4] = { 0, 0, 0, 8 }; // SQLite's header has it at 60
    char path[CAIRN_SCRATCH_BYTES + 64], moved[CAIRN_SCRATCH_BYTES + 64];
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)cluster->coordinator);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    const char *end = words + fread(words, 1, sizeof words - 1, file);
    fclose(file);
    size_t argc = 0;
    for (const char *word = words; word < end && argc < 63; word += strlen(word) + 1)
        argv[argc++] = word;
    argv[argc] = NULL;
    ck_assert_int_eq(kill(cluster->coordinator, SIGTERM), 0);
    ck_assert_int_eq(cluster_wait(cluster->coordinator, CLUSTER_WAIT_MS), 0);
    cluster->coordinator = 0;
    snprintf(path, sizeof path, "%s/coordinator/coordinator.db", cluster->folder);
    file = fopen(path, "r+e");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 60, SEEK_SET), 0);
    ck_assert_uint_eq(fwrite(version, 1, sizeof version, file), sizeof version);
    ck_assert_int_eq(fclose(file), 0);
    snprintf(moved, sizeof moved, "%s/coordinator.log", cluster->folder);
    ck_assert_int_eq(cluster_wait(cluster_spawn(argv, moved), CLUSTER_WAIT_MS), 13);
    ck_assert_int_eq(cluster_logged(cluster, "coordinator.log",
                                    "coordinator.db is a store of version 8; this program has "
                                    "version 1 and reads no other. Move the file away and start "
                                    "again, with an empty store: `cairn cluster adopt --yes` then "
                                    "takes its jobs from the shards"),
                     1);
    snprintf(moved, sizeof moved, "%s/moved.db", cluster->folder);
    ck_assert_int_eq(rename(path, moved), 0);
}

/* The coordinator comes back with an empty store, or an older one. */
static void slip_store(struct cluster *cluster, enum slip slip)
{
    char path[CAIRN_SCRATCH_BYTES + 64], moved[CAIRN_SCRATCH_BYTES + 64];
    char copy[CAIRN_SCRATCH_BYTES + 64];
    if (slip == VERSION) {
        refuse_store(cluster);
        cluster_restart_coordinator(cluster);
        return;
    }
    cluster_kill_coordinator(cluster);
    snprintf(path, sizeof path, "%s/coordinator", cluster->folder);
    snprintf(moved, sizeof moved, "%s/lost", cluster->folder);
    snprintf(copy, sizeof copy, "%s/copy", cluster->folder);
    ck_assert_int_eq(rename(path, moved), 0);
    if (slip == OLDER) ck_assert_int_eq(rename(copy, path), 0);
    cluster_restart_coordinator(cluster);
}

/* The trainer's call says so, and its next ones go on. */
static void slip_and_adopt(struct run *run, struct cluster *cluster, enum slip slip)
{
    static struct cluster_said said;
    struct cairn_round round = { .struct_size = sizeof round };
    slip_store(cluster, slip);
    fails(cairn_round_begin(run->job, 1500, &round), CAIRN_ERR_TIMEOUT, "cairn cluster adopt");
    cluster_cli(cluster, &said, "cluster", "status", NULL);
    expect_said(cluster, &said, 0, slip == OLDER ? "by a newer coordinator" : "of another store");
    cluster_cli(cluster, &said, "job", "list", NULL);
    ck_assert_int_eq(said.status, 0);
    ck_assert_msg(slip == OLDER ||
                      strstr(said.err, "of jobs that are not acted on: `cairn cluster status`") !=
                          NULL,
                  "%s", said.err);
    cluster_cli(cluster, &said, "cluster", "adopt", NULL);
    expect_said(cluster, &said, 0, "nothing was adopted");
    cluster_cli(cluster, &said, "cluster", "adopt", "--yes", NULL);
    expect_said(cluster, &said, 0, "run");
}

static void root_of(enum slip slip, char root[65])
{
    struct cluster cluster;
    struct run run;
    char state[16] = "";
    size_t bytes = 0;
    struct cairn_version version;
    cluster_start(&cluster, 2, NULL);
    open_run(&run, &cluster);
    train(&run, STEPS_BEFORE, false);
    if (slip == OLDER) {
        back_up(&cluster);
        cluster_kill_coordinator(&cluster); // a newer one than that of the copy is obeyed
        cluster_restart_coordinator(&cluster);
    }
    amend(&run);
    write_plane(&run);
    train(&run, 1, true);
    if (slip != NONE) slip_and_adopt(&run, &cluster, slip);
    good(cairn_client_state(run.job, state, sizeof state, CLUSTER_WAIT_MS, &bytes, &version));
    ck_assert_str_eq(state, "at 3");
    train(&run, STEPS_AFTER, true);
    trainer_digest(&cluster, "run", root);
    cairn_close(run.session);
    cluster_stop(&cluster);
}

TEST(a_lost_store_and_an_older_one_cost_nothing)
{
    char kept[65], lost[65], older[65];
    root_of(NONE, kept);
    root_of(LOST, lost);
    root_of(OLDER, older);
    ck_assert_str_eq(lost, kept);
    ck_assert_str_eq(older, kept);
}

TEST(a_store_of_another_version_is_refused_and_what_the_refusal_says_costs_nothing)
{
    char kept[65], moved[65];
    root_of(NONE, kept);
    root_of(VERSION, moved);
    ck_assert_str_eq(moved, kept);
}

TEST(a_backup_that_is_put_back_before_anything_changed_goes_on_by_itself)
{
    struct cluster cluster;
    struct run run;
    cluster_start(&cluster, 2, NULL);
    open_run(&run, &cluster);
    train(&run, 1, false);
    back_up(&cluster);
    train(&run, 1, false); // nothing of it is in the store
    slip_store(&cluster, OLDER);
    train(&run, 1, false);
    cairn_close(run.session);
    cluster_stop(&cluster);
}

/* Asks until it says as many times that word. */
static void wait_said(const struct cluster *cluster, struct cluster_said *said, const char *verb,
                      const char *word, int times)
{
    const time_t end = time(NULL) + CLUSTER_WAIT_MS / 1000;
    for (int found = -1; found != times;) {
        ck_assert_msg(time(NULL) < end, "%s: \"%s\" is not there %d times: %s%s", verb, word, times,
                      said->out, said->err);
        cluster_cli(cluster, said, "cluster", verb, NULL);
        found = 0;
        for (const char *at = said->out; (at = strstr(at, word)) != NULL; at++) found++;
    }
}

TEST(with_a_shard_away_nothing_is_adopted_and_with_it_back_the_run_goes_on)
{
    static struct cluster_said said;
    struct cluster cluster;
    struct run run;
    char store[64];
    // So long adopt waits for the shard that does not come.
    static const char *const quick[] = { "lease.heartbeat=200ms", "lease.timeout=1s", NULL };
    cluster_start(&cluster, 2, &(struct cluster_options) { .coordinator_set = quick });
    open_run(&run, &cluster);
    train(&run, STEPS_BEFORE, false);
    ck_assert_int_eq(kill(cluster.shards[1], SIGSTOP), 0);
    slip_store(&cluster, LOST);
    wait_said(&cluster, &said, "status", "of another store", 1);
    snprintf(store, sizeof store, "%.31s", strstr(said.out, "store ")); // its number, and start 1
    cluster_cli(&cluster, &said, "cluster", "adopt", "--yes", NULL);
    expect_said(&cluster, &said, 1, "is on no connected shard");
    cluster_cli(&cluster, &said, "cluster", "status", NULL);
    expect_said(&cluster, &said, 0, "of another store");
    expect_said(&cluster, &said, 0, store);
    cluster_cli(&cluster, &said, "job", "list", "-q", NULL);
    ck_assert_msg(strstr(said.out, "run") == NULL, "%s", said.out);
    ck_assert_int_eq(kill(cluster.shards[1], SIGCONT), 0);
    wait_said(&cluster, &said, "status", "of another store", 2);
    cluster_cli(&cluster, &said, "cluster", "adopt", "--yes", NULL);
    expect_said(&cluster, &said, 0, "run");
    train(&run, 1, false);
    cairn_close(run.session);
    cluster_stop(&cluster);
}

/* It has come, and is stopped then: as far as anybody knows it is up. */
TEST(a_shard_that_is_stopped_when_it_is_asked_is_named_and_waited_for_no_longer_than_its_lease)
{
    static const char *const short_lease[] = { "lease.heartbeat=200ms", "lease.timeout=1s", NULL };
    static struct cluster_said said;
    struct cluster cluster;
    struct run run;
    cluster_start(&cluster, 2, &(struct cluster_options) { .coordinator_set = short_lease });
    open_run(&run, &cluster);
    train(&run, STEPS_BEFORE, false);
    slip_store(&cluster, LOST);
    wait_said(&cluster, &said, "status", "of another store", 2);
    ck_assert_int_eq(kill(cluster.shards[1], SIGSTOP), 0);
    cluster_cli(&cluster, &said, "cluster", "adopt", "--yes", NULL);
    expect_said(&cluster, &said, 1, "these shards do not say what they hold: shard-1");
    expect_said(&cluster, &said, 1, "shard shard-1 did not say what it holds, and stays as it is");
    ck_assert_int_eq(kill(cluster.shards[1], SIGCONT), 0);
    wait_said(&cluster, &said, "status", "of another store", 2);
    cluster_cli(&cluster, &said, "cluster", "adopt", "--yes", NULL);
    expect_said(&cluster, &said, 0, "run");
    train(&run, 1, false);
    cairn_close(run.session);
    cluster_stop(&cluster);
}

TEST(what_is_forgotten_is_gone_and_its_name_is_free)
{
    static struct cluster_said said;
    struct cluster cluster;
    struct run run;
    cluster_start(&cluster, 2, NULL);
    open_run(&run, &cluster);
    train(&run, STEPS_BEFORE, false);
    cairn_close(run.session);
    slip_store(&cluster, LOST);
    wait_said(&cluster, &said, "status", "of another store", 2);
    cluster_cli(&cluster, &said, "cluster", "forget", "walk", "--yes", NULL);
    ck_assert_int_ne(said.status, 0);
    ck_assert_msg(strstr(said.err, "no connected shard holds parts of a job") != NULL, "%s",
                  said.err);
    cluster_cli(&cluster, &said, "cluster", "forget", "run", NULL);
    expect_said(&cluster, &said, 0, "nothing was dropped");
    wait_said(&cluster, &said, "status", "of another store", 2);
    cluster_cli(&cluster, &said, "cluster", "forget", "run", "--yes", NULL);
    expect_said(&cluster, &said, 0, "2 of 2");
    wait_said(&cluster, &said, "status", "of another store", 0);
    open_run(&run, &cluster);
    train(&run, 1, false);
    cairn_close(run.session);
    cluster_stop(&cluster);
}

SUITE(90);
