/* Each kind of file operation takes longer than everybody's lease, once, in a cluster that trains: what needs
 * it waits, says so, and succeeds; training does not notice, and no daemon touches a file on its loop, or
 * gives much memory back there. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/now.h"
#include "tests/e2e/scene.h"

enum { WAIT_MS = 60000, ELEMS = 4096, ELEMS_LARGE = 20 << 20 }; // of 2 shards: 40 MiB a plane

static char root[CAIRN_SCRATCH_BYTES], control[CAIRN_SCRATCH_BYTES + 32];
static cairn *other;
static pthread_t training, opening;
static atomic_bool stopping, opened;
static atomic_llong longest_ms, steps;
static int slow_ms, lease_ms;

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec) { 0, ms * 1000000 }, NULL);
}

static bool is_there(const char *name)
{
    char path[sizeof control + 64];
    snprintf(path, sizeof path, "%s/%s", control, name);
    return access(path, F_OK) == 0;
}

/* `word`: only a path that has it in its last name counts. */
static void write_control(const char *name, long number, const char *word)
{
    char path[sizeof control + 64], fresh[sizeof control + 64];
    snprintf(path, sizeof path, "%s/%s", control, name);
    snprintf(fresh, sizeof fresh, "%s/fresh", control);
    FILE *file = fopen(fresh, "we");
    ck_assert_ptr_nonnull(file);
    fprintf(file, word[0] != '\0' ? "%ld %s" : "%ld", number, word);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(rename(fresh, path), 0);
}

/* ---- the cluster ---- */

static cairn_job *open_job(const char *name, uint64_t elems, cairn **session_out)
{
    struct tiny_job *tiny = TINY(elems);
    tiny->tensor.init = (struct cairn_init) { CAIRN_INIT_NORMAL, 0, 1, 7 };
    tiny->group.optimizer = "sgd";
    *session_out = trainer_session(cluster.address, NULL);
    cairn_job *opened_job;
    good(cairn_job_open(*session_out, name, &tiny->spec, CAIRN_WORKER, WAIT_MS, &opened_job));
    good(cairn_init_done(opened_job, NULL, WAIT_MS));
    return opened_job;
}

static void step(void)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    good(cairn_round_begin(job, WAIT_MS, &round));
    good(cairn_commit(job, &round, 1, NULL, 0, WAIT_MS, &result));
    ck_assert(result.applied);
    atomic_fetch_add(&steps, 1);
}

static void *train_on(void *unused)
{
    int64_t last = now_ms();
    (void)unused;
    while (!atomic_load(&stopping)) {
        step();
        const int64_t now = now_ms();
        if (now - last > atomic_load(&longest_ms)) atomic_store(&longest_ms, now - last);
        last = now;
        pause_ms(2);
    }
    return NULL;
}

static void set_up(void)
{
    static char store[sizeof root + 32], snapshots[sizeof root + 32], heartbeat[64], timeout[64];
    const bool is_long = getenv("CAIRN_TEST_LONG") != NULL;
    slow_ms = is_long ? 12000 : 1500;
    lease_ms = is_long ? 10000 : 1200;
    cairn_scratch_make(root);
    snprintf(control, sizeof control, "%s/control", root);
    ck_assert_int_eq(mkdir(control, 0700), 0);
    snprintf(store, sizeof store, "store.path=%s/store", root);
    snprintf(snapshots, sizeof snapshots, "%s/snapshots", root);
    snprintf(heartbeat, sizeof heartbeat, "lease.heartbeat=%dms", lease_ms / 8);
    snprintf(timeout, sizeof timeout, "lease.timeout=%dms", lease_ms);
    setenv("CAIRN_SLOW_FOLDER", control, 1);
    setenv("LD_PRELOAD", CAIRN_SLOW_FILES, 1);
    setenv("UCX_MEM_EVENTS", "n", 1); // else UCX puts its own munmap into ours
    start(2, .coordinator_set = SETTINGS(store, heartbeat, timeout), .snapshots_path = snapshots,
          .shard_set = SETTINGS("memory.limit=1GiB")); // of the large job once, not twice
    unsetenv("LD_PRELOAD");
    job = open_job("l", ELEMS, &session);
    for (int i = 0; i < 3; i++) step(); // everything has been loaded and connected
    write_control("armed", 1, "");
    good((cairn_status)pthread_create(&training, NULL, train_on, NULL));
}

/* No lease was lost, and nobody's loop met a file. */
static void tear_down(void)
{
    char line[512], path[sizeof control + 64];
    atomic_store(&stopping, true);
    pthread_join(training, NULL);
    printf("%lld steps; the longest took %lld ms, a lease %d, a call %d\n", atomic_load(&steps),
           atomic_load(&longest_ms), lease_ms, slow_ms);
    ck_assert_int_lt(atomic_load(&longest_ms), lease_ms);
    snprintf(path, sizeof path, "%s/loop", control);
    FILE *file = fopen(path, "re");
    if (file != NULL) ck_abort_msg("on a loop: %s", fgets(line, sizeof line, file));
    snprintf(path, sizeof path, "%s/armed", control);
    ck_assert_int_eq(unlink(path), 0); // ending is not training
    ask("cluster status");
    expect_said(0);
    expect_unsaid("away");
    stop();
    cairn_scratch_remove(root);
}

/* The next call of that kind takes long. */
static void arm_for(const char *call, const char *word)
{
    char name[32];
    snprintf(name, sizeof name, "arm-%s", call);
    write_control(name, slow_ms, word);
}
static void arm(const char *call)
{
    arm_for(call, "");
}

/* It was made, of that kind, and what asked for it waited. */
static void check_met(const char *call, long long begun_ms)
{
    char name[32];
    snprintf(name, sizeof name, "arm-%s", call);
    ck_assert_msg(!is_there(name), "no %s on the disk", call);
    ck_assert_int_ge(now_ms() - begun_ms, slow_ms);
}

/* What asked for it waited. The scrub and those who look after snapshots use the same disk, and may meet the
 * call first: then again. */
static bool is_met(const char *call, long long begun_ms)
{
    char name[32];
    snprintf(name, sizeof name, "arm-%s", call);
    return !is_there(name) && now_ms() - begun_ms >= slow_ms;
}
enum { TRIES = 8 };

static void create_and_meet(const char *call)
{
    for (int i = 0; i < TRIES; i++) {
        const int64_t begun = now_ms();
        arm(call);
        ask("snapshot create --wait -q l");
        ck_assert_msg(said.status == 0, "%s: %s", call, said.err);
        if (is_met(call, begun)) return;
    }
    ck_abort_msg("no snapshot waited for %s", call);
}

static void list_and_meet(const char *call)
{
    for (int i = 0; i < TRIES; i++) {
        const int64_t begun = now_ms();
        arm(call);
        says(0, "", "snapshot list");
        if (is_met(call, begun)) return;
    }
    ck_abort_msg("no list waited for %s", call);
}

/* ---- what needs the disk ---- */

TEST(snapshots_are_made_listed_and_restored_under_another_name)
{
    static const char *const calls[] = { "mkdir", "open", "fsync", "rename" };
    char folder[sizeof root + 128];
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) create_and_meet(calls[i]);
    said.out[strcspn(said.out, "\n")] = '\0';
    snprintf(folder, sizeof folder, "%s/snapshots/l/%.60s", root, said.out);
    list_and_meet("open");
    const int64_t begun = now_ms();
    arm("realpath");
    says(0, "", "snapshot restore --path %s --job again --yes", folder);
    check_met("realpath", begun);
}

/* The manifest is there before `latest` names the snapshot: whoever finds the snapshot in the list may
 * restore the latest one, and gets this one. */
TEST(a_snapshot_is_listed_once_latest_names_it)
{
    char id[CLUSTER_WORD_BYTES];
    says(0, "", "snapshot create --wait -q l");
    arm_for("rename", "latest");
    word_of(id, "snapshot create -q l");
    do {
        ask("snapshot list l -o json");
    } while (said_count("snapshots") < 2);
    ck_assert_msg(!is_there("arm-rename"), "`latest` was not written");
    says(0, id, "snapshot show l latest");
}

TEST(an_amendment_waits_for_the_store_and_training_goes_on)
{
    const struct cairn_amend amend = { .struct_size = sizeof amend,
                                       .set_clip_norm = true,
                                       .clip_norm = 2 };
    const int64_t begun = now_ms();
    arm("fsync");
    good(cairn_job_amend(job, &amend, WAIT_MS));
    check_met("fsync", begun);
    ck_assert_int_gt(atomic_load(&steps), 10);
}

static void *open_second(void *unused)
{
    (void)unused;
    (void)open_job("second", ELEMS, &other);
    atomic_store(&opened, true);
    return NULL;
}

TEST(a_job_that_is_made_waits_for_the_store_and_says_so)
{
    const int64_t begun = now_ms();
    slow_ms *= 2; // for a program to be started and ask meanwhile, also on a busy machine
    arm("write");
    ck_assert_int_eq(pthread_create(&opening, NULL, open_second, NULL), 0);
    do {
        ask("job show second");
        ck_assert_int_lt(now_ms() - begun, WAIT_MS);
    } while (strstr(said.out, "the store's disk") == NULL && !atomic_load(&opened));
    ck_assert_msg(!atomic_load(&opened), "it was opened before anybody said what it waits for");
    pthread_join(opening, NULL);
    check_met("write", begun);
    cairn_close(other);
}

TEST(the_memory_of_a_job_that_is_replaced_is_not_given_back_on_the_loop)
{
    char id[CLUSTER_WORD_BYTES];
    (void)open_job("large", ELEMS_LARGE, &other);
    word_of(id, "snapshot create --wait -q large");
    says(0, "", "snapshot restore large %s --yes", id);
    cairn_close(other);
}

SUITE(200, set_up, tear_down);

/* ---- a shard that joins ---- */

TEST(storage_that_hangs_holds_up_no_join_and_is_said)
{
    char snapshots[sizeof root + 32];
    cairn_scratch_make(root);
    snprintf(control, sizeof control, "%s/control", root);
    ck_assert_int_eq(mkdir(control, 0700), 0);
    snprintf(snapshots, sizeof snapshots, "%s/snapshots", root);
    start(1, .coordinator_set = SETTINGS("lease.heartbeat=100ms"), .snapshots_path = snapshots);
    kill_shard(0);
    setenv("CAIRN_SLOW_FOLDER", control, 1);
    setenv("LD_PRELOAD", CAIRN_SLOW_FILES, 1);
    setenv("UCX_MEM_EVENTS", "n", 1);
    slow_ms = 4000;
    arm("open");
    const int64_t begun_ms = now_ms();
    restart_shard(0);
    unsetenv("LD_PRELOAD");
    ck_assert_int_lt(now_ms() - begun_ms, slow_ms);
    await_said("/snapshots has not answered for 3 s or more: its storage hangs", "cluster status");
    await_unsaid("no snapshot can be saved", "cluster status");
    check_met("open", begun_ms);
    stop();
    cairn_scratch_remove(root);
}

/* ---- a log behind a keeper ---- */

static atomic_llong done_ms;

static void *train_one(void *unused)
{
    (void)unused;
    train_pushing(0.5f, 1);
    atomic_store(&done_ms, now_ms());
    return NULL;
}

static void await_met(const char *name)
{
    const int64_t end_ms = now_ms() + WAIT_MS;
    while (is_there(name)) {
        ck_assert_msg(now_ms() < end_ms, "nobody met %s", name);
        pause_ms(2);
    }
}

/* A cluster with slow files, of one shard that has a folder for logs; with a keeper, or none. */
static void start_logged(bool is_kept)
{
    static char log_path[sizeof root + 32], logs[sizeof root + 16], snapshots[sizeof root + 16];
    cairn_scratch_make(root);
    snprintf(control, sizeof control, "%s/control", root);
    snprintf(logs, sizeof logs, "%s/logs", root);
    snprintf(log_path, sizeof log_path, "log.path=%s", logs);
    snprintf(snapshots, sizeof snapshots, "%s/snapshots", root);
    ck_assert_int_eq(mkdir(control, 0700), 0);
    ck_assert_int_eq(mkdir(logs, 0700), 0);
    setenv("CAIRN_SLOW_FOLDER", control, 1);
    setenv("LD_PRELOAD", CAIRN_SLOW_FILES, 1);
    setenv("UCX_MEM_EVENTS", "n", 1);
    start(1, .shards_kept = is_kept, .snapshots_path = snapshots,
          .coordinator_set = SETTINGS("lease.heartbeat=100ms"),
          .shard_set = SETTINGS("compute.threads=1", "memory.limit=256MiB", log_path));
    unsetenv("LD_PRELOAD");
}

/* A job of it has its log, and a step more. */
static void train_logged(void)
{
    join("tiny", TINY(ELEMS));
    train_pushing(0.5f, 1);
    says(0, "", "job durability tiny log -q");
    await((ask("job show tiny"), strstr(said.out, "log; log is asked for") != NULL));
    train_pushing(0.5f, 1);
}

/* A shard is killed while it writes the decision of a round to its log, so its keeper has the step, and the
 * log has not. The next process has the step in the log before anybody is told that it is done: a loss of
 * power in between would take it back. */
TEST(a_step_that_only_a_keeper_has_is_told_when_the_log_has_it)
{
    start_logged(true);
    train_logged();
    const uint64_t step = newest(job).step;
    slow_ms = 1500;
    arm_for("fsync", ".seg"); // of the round
    good((cairn_status)pthread_create(&training, NULL, train_one, NULL));
    await_met("arm-fsync");
    slow_ms = 2 * WAIT_MS;
    arm_for("write", ".seg"); // of the decision
    await_met("arm-write");
    slow_ms = 3000;
    arm_for("fsync", ".seg"); // of the next segment
    ck_assert_int_eq(kill(cluster_shard_process(&cluster, 0), SIGKILL), 0);
    await_met("arm-fsync");
    const int64_t begun_ms = now_ms();
    pthread_join(training, NULL);
    ck_assert_int_ge(atomic_load(&done_ms) - begun_ms, slow_ms / 2);
    ck_assert_uint_eq(newest(job).step, step + 1);
    ck_assert_int_eq(logged("shard-0.log", "as the process before left it"), 1);
    says(0, "process+log; log is asked for", "job show tiny");
    stop();
    cairn_scratch_remove(root);
}

/* The look for the snapshot of a log has a thread of its own. */
TEST(storage_that_hangs_holds_up_no_shard_that_has_a_log)
{
    char bits_before[65];
    start_logged(false);
    train_logged();
    bits(bits_before);
    kill_shard(0);
    setenv("LD_PRELOAD", CAIRN_SLOW_FILES, 1);
    slow_ms = 4000;
    arm_for("stat", "manifest");
    const int64_t begun_ms = now_ms();
    restart_shard(0);
    unsetenv("LD_PRELOAD");
    ck_assert_int_lt(now_ms() - begun_ms, slow_ms);
    await_said("its storage does not answer", "job show tiny");
    expect_bits(bits_before);
    check_met("stat", begun_ms);
    stop();
    cairn_scratch_remove(root);
}

SUITE(60);

int main(void)
{
    if (CAIRN_SLOW_FILES[0] != '\0') return suite_main();
    printf("skip: a sanitizer wants to be the first library, and so does the slow disk\n");
    return 77;
}
