/* A lost store costs nothing: rebuilt from the shards, or copied back, it goes on with the same bits. */
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 1500, STEPS_BEFORE = 3, STEPS_AFTER = 20 };

static float values[ELEMS];

static const struct cairn_tensor tensors[] = {
    { .struct_size = sizeof *tensors, .name = "body.w", .rank = 1, .shape = { ELEMS } },
    { .struct_size = sizeof *tensors, .name = "head.w", .rank = 1, .shape = { ELEMS } },
};

static void enter(void)
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
    for (int i = 0; i < ELEMS; i++) values[i] = (float)i / 7;
    session = trainer_session(cluster.address, NULL);
    job = trainer_open(session, "run", &spec);
    trainer_put(job, "body.w", values);
    trainer_put(job, "head.w", values);
    good(cairn_init_done(job, NULL, CLUSTER_WAIT_MS));
}

/* `frozen`: the head takes no gradient. */
static void advance(int steps, bool frozen)
{
    static float gradient[ELEMS];
    for (int k = 0; k < steps; k++) {
        char state[16] = "";
        const struct cairn_round round = trainer_begin(job);
        for (int i = 0; i < ELEMS; i++)
            gradient[i] = (float)((i * 31 + (int)round.step * 17) % 101);
        trainer_push(job, &round, "body.w", gradient);
        if (!frozen) trainer_push(job, &round, "head.w", gradient);
        snprintf(state, sizeof state, "at %d", (int)round.step);
        good(trainer_try_commit(job, &round, state, sizeof state, CLUSTER_WAIT_MS));
    }
}

static void enter_and_train(void)
{
    enter();
    advance(STEPS_BEFORE, false);
}

static void amend(void)
{
    struct cairn_group body = CAIRN_GROUP_INIT;
    body.name = "body";
    body.lr = 0.02;
    const struct cairn_amend amend = { .struct_size = sizeof amend,
                                       .groups = &body,
                                       .group_count = 1,
                                       .freeze = (const char *const[]) { "head" },
                                       .freeze_count = 1 };
    good(cairn_job_amend(job, &amend, CLUSTER_WAIT_MS));
}

static void write_plane(void)
{
    struct cairn_version version;
    good(cairn_write_begin(job, CLUSTER_WAIT_MS));
    trainer_put(job, "head.w", values);
    good(cairn_write_end(job, CLUSTER_WAIT_MS, &version));
}

enum slip { NONE, LOST, OLDER, VERSION };

/* A copy of what is in the store now; training goes on. */
static void back_up(void)
{
    const char *path = in_folder("copy/coordinator.db");
    ck_assert_int_eq(mkdir(in_folder("copy"), 0700), 0);
    says(0, path, "cluster backup %s", path);
    ask("cluster backup %s", path);
    ck_assert_int_ne(said.status, 0);
    expect_said(said.status, "is there already");
}

/* The coordinator is ended, and its store is marked as another version's: the next start refuses it, and says
 * what is done then, but for the start. */
static void refuse_store(void)
{
    const char *argv[64];
    const uint8_t version[4] = { 0, 0, 0, 8 }; // SQLite's header has it at 60
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)cluster.coordinator);
    const char *word = cluster_text(path); // words, each ended by a NUL
    size_t argc = 0;
    for (; *word != '\0' && argc < 63; word += strlen(word) + 1) argv[argc++] = word;
    argv[argc] = NULL;
    ck_assert_int_eq(kill(cluster.coordinator, SIGTERM), 0);
    ck_assert_int_eq(cluster_wait(cluster.coordinator, CLUSTER_WAIT_MS), 0);
    cluster.coordinator = 0;
    const char *store = in_folder("coordinator/coordinator.db");
    FILE *file = fopen(store, "r+e");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 60, SEEK_SET), 0);
    ck_assert_uint_eq(fwrite(version, 1, sizeof version, file), sizeof version);
    ck_assert_int_eq(fclose(file), 0);
    const pid_t next = cluster_spawn(argv, in_folder("coordinator.log"));
    ck_assert_int_eq(cluster_wait(next, CLUSTER_WAIT_MS), 13);
    ck_assert_int_eq(logged("coordinator.log",
                            "coordinator.db is a store of version 8; this program has "
                            "version 1 and reads no other. Move the file away and start "
                            "again, with an empty store: `cairn cluster adopt --yes` then "
                            "takes its jobs from the shards"),
                     1);
    ck_assert_int_eq(rename(store, in_folder("moved.db")), 0);
}

/* The coordinator comes back with an empty store, or an older one. */
static void slip_store(enum slip slip)
{
    if (slip == VERSION) refuse_store();
    if (slip == LOST) lose_store();
    if (slip == OLDER) {
        kill_coordinator();
        ck_assert_int_eq(rename(in_folder("coordinator"), in_folder("lost")), 0);
        ck_assert_int_eq(rename(in_folder("copy"), in_folder("coordinator")), 0);
    }
    if (slip != LOST) restart_coordinator();
}

/* The trainer's call says so, and its next ones go on. */
static void slip_and_adopt(enum slip slip)
{
    struct cairn_round round = { .struct_size = sizeof round };
    slip_store(slip);
    fails(cairn_round_begin(job, 1500, &round), CAIRN_ERR_TIMEOUT, "cairn cluster adopt");
    says(0, slip == OLDER ? "by a newer coordinator" : "of another store", "cluster status");
    ask("job list");
    expect_said(0);
    if (slip != OLDER) expect_said(0, "of jobs that are not acted on: `cairn cluster status`");
    says(0, "nothing was adopted", "cluster adopt");
    says(0, "run", "cluster adopt --yes");
    // shards do not know whose a job is, so a store that knew it keeps that
    says(0, slip == OLDER ? "owner             uid:" : "owner             not known",
         "job show run");
}

static void root_of(enum slip slip, char root[65])
{
    char state[16] = "";
    size_t bytes = 0;
    struct cairn_version version;
    start(2);
    enter_and_train();
    if (slip == OLDER) {
        back_up();
        restart_coordinator(); // a newer one than that of the copy is obeyed
    }
    amend();
    write_plane();
    advance(1, true);
    if (slip != NONE) slip_and_adopt(slip);
    good(cairn_client_state(job, state, sizeof state, CLUSTER_WAIT_MS, &bytes, &version));
    ck_assert_str_eq(state, "at 3");
    advance(STEPS_AFTER, true);
    trainer_digest(&cluster, "run", root);
    stop();
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
    start(2);
    enter();
    advance(1, false);
    back_up();
    advance(1, false); // nothing of it is in the store
    slip_store(OLDER);
    advance(1, false);
}

/* How often the status says it. */
static int times_said(const char *word)
{
    int found = 0;
    ask("cluster status");
    for (const char *at = said.out; (at = strstr(at, word)) != NULL; at++) found++;
    return found;
}

TEST(with_a_shard_away_nothing_is_adopted_and_with_it_back_the_run_goes_on)
{
    char store[64];
    // So long adopt waits for the shard that does not come.
    start(2, .coordinator_set = SETTINGS("lease.heartbeat=200ms", "lease.timeout=1s"));
    enter_and_train();
    cluster_freeze(cluster.shards[1]);
    slip_store(LOST);
    await(times_said("of another store") == 1);
    snprintf(store, sizeof store, "%.31s", strstr(said.out, "store ")); // its number, and start 1
    says(1, "is on no connected shard", "cluster adopt --yes");
    ask("cluster status");
    expect_said(0, "of another store", store);
    ask("job list -q");
    expect_unsaid("run");
    ck_assert_int_eq(kill(cluster.shards[1], SIGCONT), 0);
    await(times_said("of another store") == 2);
    says(0, "run", "cluster adopt --yes");
    advance(1, false);
}

/* It has come, and is stopped then: as far as anybody knows it is up. */
TEST(a_shard_that_is_stopped_when_it_is_asked_is_named_and_waited_for_no_longer_than_its_lease)
{
    start(2, .coordinator_set = SETTINGS("lease.heartbeat=200ms", "lease.timeout=1s"));
    enter_and_train();
    slip_store(LOST);
    await(times_said("of another store") == 2);
    cluster_freeze(cluster.shards[1]);
    ask("cluster adopt --yes");
    expect_said(1, "these shards do not say what they hold: shard-1",
                "shard shard-1 did not say what it holds, and stays as it is");
    ck_assert_int_eq(kill(cluster.shards[1], SIGCONT), 0);
    await(times_said("of another store") == 2);
    says(0, "run", "cluster adopt --yes");
    advance(1, false);
}

TEST(what_is_forgotten_is_gone_and_its_name_is_free)
{
    start(2);
    enter_and_train();
    leave();
    slip_store(LOST);
    await(times_said("of another store") == 2);
    ask("cluster forget walk --yes");
    ck_assert_int_ne(said.status, 0);
    expect_said(said.status, "no connected shard holds parts of a job");
    says(0, "nothing was dropped", "cluster forget run");
    await(times_said("of another store") == 2);
    says(0, "2 of 2", "cluster forget run --yes");
    await(times_said("of another store") == 0);
    enter();
    advance(1, false);
}

SUITE(90, .tear_down = stop);
