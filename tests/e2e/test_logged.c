/* All hosts lose power, and no step is lost: jobs with durability = log. The next step commits, and the
 * content root is the one of the undisturbed run. What a log cannot do, it says. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/shard/journal_file.h"
#include "tests/e2e/crew.h"
#include "tests/e2e/scene.h"
#include "tests/support/good.h"
#include "tests/support/scratch.h"

enum { ELEMS = 60000 };

#define SHARDS(count, ...)                                                                \
    start((count), .coordinator_set = SETTINGS("lease.heartbeat=100ms"),                  \
          .shard_set = SETTINGS("compute.threads=1", "memory.limit=256MiB", logs_setting, \
                                ##__VA_ARGS__))

#define SHARDS_KEPT(count)                                                                 \
    start((count), .coordinator_set = SETTINGS("lease.heartbeat=100ms"),                   \
          .shard_set = SETTINGS("compute.threads=1", "memory.limit=256MiB", logs_setting), \
          .shards_kept = true)

static int in_log(const char *text)
{
    return logged("coordinator.log", text);
}

static void expect_in(const char *command, const char *text)
{
    await((ask_line(command), strstr(said.out, text) != NULL));
}

/* The job has a log at each of its shards. */
static void log_it(const char *name)
{
    char command[64];
    says(0, "", "job durability %s log -q", name);
    snprintf(command, sizeof command, "job show %s", name);
    expect_in(command, "log; log is asked for");
}

/* As when the hosts lose power: nothing of their memory comes again. */
static void lose_power(int shards, bool of_coordinator)
{
    for (int i = 0; i < shards; i++) kill_shard(i);
    if (of_coordinator) kill_coordinator();
    if (of_coordinator) cluster_restart_coordinator(&cluster);
    for (int i = 0; i < shards; i++) cluster_restart_shard(&cluster, i);
}

/* ---- all lose power ---- */

TEST(a_job_whose_hosts_lose_power_again_and_again_loses_no_step)
{
    const char *many = getenv("CAIRN_LOG_STEPS");
    const uint64_t steps = many != NULL ? strtoull(many, NULL, 10) : 160;
    const struct crew crew = { .job = &bits_job, .endpoint = cluster.address, .until_step = steps };
    struct crew_run run;
    unsigned seed = 11;
    int losses = 0;
    char root[65];
    SHARDS(2);
    crew_start(&run, &crew);
    crew_await(&run, 2);
    log_it(BITS_JOB);
    for (; run.step + 30 < steps && (many != NULL || losses < 8); losses++) {
        crew_await(&run, run.step + 1 + (uint64_t)(rand_r(&seed) % 10));
        poll(NULL, 0, rand_r(&seed) % 20);
        const uint64_t step = run.step;
        lose_power(2, losses % 2 == 1);
        crew_await(&run, step + 1);
    }
    crew_join(&run);
    ck_assert_int_gt(losses, 1);
    ck_assert_int_eq(in_log("job bits is lost"), 0);
    ck_assert_int_eq(logged("shard-0.log", "its part is made again from its log"), losses);
    bits_root_at(steps, root);
    crew_check_root(cluster.address, &bits_job, root);
}

/* A job of the scene's trainer, with its log, and some steps. */
static void begin(int steps)
{
    join("tiny", TINY(ELEMS));
    train_pushing(0.5f, 1);
    log_it("tiny");
    train_pushing(0.5f, steps);
}

static void expect_power_to_lose_nothing(int shards)
{
    char root[65], again[65];
    bits(root);
    const uint64_t step = newest(job).step;
    lose_power(shards, true);
    bits(again);
    ck_assert_str_eq(again, root);
    train_pushing(0.25f, 2);
    ck_assert_uint_eq(newest(job).step, step + 2);
}

/* Each step is compared with its checksums: what is made again is no alarm. */
TEST(a_job_with_audits_is_made_again)
{
    SHARDS(2);
    join("tiny", TINY(ELEMS, .audit_every = 1));
    train_pushing(0.5f, 2);
    log_it("tiny");
    train_pushing(0.5f, 5);
    expect_power_to_lose_nothing(2);
    ck_assert_int_eq(in_log("is lost"), 0);
}

/* A process that is killed leaves its state to the next one, which goes on with the log. Then the host
 * goes. */
TEST(a_log_goes_on_behind_a_keeper)
{
    SHARDS_KEPT(2);
    begin(3);
    for (int i = 0; i < 4; i++) {
        cluster_renew_shard(&cluster, i % 2, SIGKILL);
        train_pushing(0.5f, 3);
    }
    expect_in("job show tiny", "process+log; log is asked for");
    ck_assert_int_eq(in_log("a snapshot is taken for its log"), 1);
    expect_power_to_lose_nothing(2);
    ck_assert_int_eq(logged("shard-0.log", "its part is made again from its log"), 1);
}

TEST(one_host_loses_power_and_the_others_wait_for_it)
{
    SHARDS(2);
    begin(3);
    kill_shard(1);
    cluster_restart_shard(&cluster, 1);
    train_pushing(0.5f, 3);
    expect_power_to_lose_nothing(2);
    ck_assert_int_eq(logged("shard-0.log", "its part is made again from its log"), 1);
    ck_assert_int_eq(logged("shard-1.log", "its part is made again from its log"), 2);
}

/* ---- a log begins anew ---- */

static void reshard(const char *option, const char *shard)
{
    int status;
    const pid_t pid = fork_child();
    if (pid == 0) {
        ask("reshard apply tiny %s %s -q", option, shard);
        _exit(said.status);
    }
    while (waitpid(pid, &status, WNOHANG) == 0) train_pushing(0.5f, 1);
    ck_assert_int_eq(status, 0);
}

TEST(another_layout_has_another_log)
{
    SHARDS(1);
    begin(3);
    cluster_add_shard(&cluster, 1);
    reshard("--add", "shard-1");
    expect_in("job show tiny", "durability        log; log is asked for");
    await(in_log("a snapshot is taken for its log") >= 2);
    train_pushing(0.5f, 3);
    says(0, "all is well", "job check tiny");
    expect_power_to_lose_nothing(2);
}

/* A shard that goes takes two layouts: its part moves, and then the others have what they have, by another
 * number. */
TEST(a_layout_that_has_another_number_alone_has_another_log)
{
    SHARDS(3);
    begin(3);
    reshard("--drain", "shard-2");
    expect_in("job show tiny", "durability        log; log is asked for");
    train_pushing(0.5f, 3);
    expect_in("job show tiny", "durability        log; log is asked for");
    expect_power_to_lose_nothing(2);
}

TEST(a_write_begins_the_log_anew)
{
    static float w[ELEMS];
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = w, .dtype = CAIRN_F32 };
    struct cairn_version version;
    SHARDS(2);
    begin(3);
    good(cairn_write_begin(job, CLUSTER_WAIT_MS));
    good(cairn_put(job, "w", "param", NULL, &mem, NULL));
    good(cairn_write_end(job, CLUSTER_WAIT_MS, &version));
    await(in_log("a snapshot is taken for its log") >= 2);
    expect_in("job show tiny", "durability        log; log is asked for");
    train_pushing(0.5f, 3);
    expect_power_to_lose_nothing(2);
}

/* No folder of a log is in the shard's. */
static bool is_without_logs(int shard)
{
    char path[CAIRN_SCRATCH_BYTES + 32];
    struct stat is;
    snprintf(path, sizeof path, "%s/shard-%d", logs_folder, shard);
    return stat(path, &is) == 0 && is.st_nlink == 2;
}

TEST(a_log_that_is_not_wanted_any_more_is_gone)
{
    SHARDS(1);
    begin(3);
    says(0, "", "job durability tiny default -q");
    await(is_without_logs(0));
    expect_in("job show tiny", "durability        none");
    train_pushing(0.5f, 3);
    log_it("tiny");
    train_pushing(0.5f, 1);
    expect_power_to_lose_nothing(1);
}

/* The log was given up, and the process ended before its files were gone: a keeper has what came after, and
 * the next process must not leave the log to the one behind. */
TEST(a_log_that_is_behind_its_keeper_is_ended)
{
    char command[4 * CAIRN_SCRATCH_BYTES];
    SHARDS_KEPT(1);
    begin(3);
    snprintf(command, sizeof command, "cp -r %s/shard-0 %s/saved", logs_folder, logs_folder);
    ck_assert_int_eq(system(command), 0);
    says(0, "", "job durability tiny default -q");
    expect_in("job show tiny", "durability        process");
    train_pushing(0.5f, 3);
    snprintf(command, sizeof command, "cp -r %s/saved/* %s/shard-0/", logs_folder, logs_folder);
    ck_assert_int_eq(system(command), 0);
    cluster_renew_shard(&cluster, 0, SIGKILL);
    train_pushing(0.5f, 1);
    kill_shard(0);
    cluster_restart_shard(&cluster, 0);
    await(in_log("job tiny is lost: shard-0 restarted without its part") > 0);
    ck_assert_int_eq(logged("shard-0.log", "made again from its log"), 0);
}

/* ---- its files ---- */

/* The last name in a folder of names that are so long; "": there is none. */
static void last_name(int folder_fd, size_t length, char name_out[64])
{
    DIR *names = fdopendir(folder_fd);
    const struct dirent *name;
    ck_assert_ptr_nonnull(names);
    name_out[0] = '\0';
    while ((name = readdir(names)) != NULL)
        if (strlen(name->d_name) == length && strcmp(name->d_name, name_out) > 0)
            memcpy(name_out, name->d_name, length + 1);
    closedir(names);
}

/* Writes the path of a file of the shard's one log. */
static void log_file(int shard, const char *name, char path_out[256])
{
    char at[CAIRN_SCRATCH_BYTES + 16], log[64];
    snprintf(at, sizeof at, "%s/shard-%d", logs_folder, shard);
    last_name(open(at, O_RDONLY | O_DIRECTORY), 33, log);
    snprintf(path_out, 256, "%s/%s/%s", at, log, name);
}

/* The path of the snapshot in a base's file. */
static const char *base_text(const char *file)
{
    static char text[1024];
    const int fd = open(file, O_RDONLY);
    const ssize_t got = fd >= 0 ? pread(fd, text, sizeof text - 1, sizeof(struct journal_base)) : 0;
    text[got > 0 ? got : 0] = '\0';
    if (fd >= 0) close(fd);
    return text;
}

/* Opens the newest segment of the shard's one log. */
static int open_newest(int shard)
{
    char segment[64], path[256];
    log_file(shard, "", path);
    last_name(open(path, O_RDONLY | O_DIRECTORY), 20, segment);
    log_file(shard, segment, path);
    const int fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    return fd;
}

static void *extend(void *unused)
{
    static const struct cairn_tensor more = { .struct_size = sizeof more,
                                              .name = "more",
                                              .kind = CAIRN_FROZEN,
                                              .rank = 1,
                                              .shape = { 64 },
                                              .init = { CAIRN_INIT_NORMAL, 0, 1, 7 } };
    const struct cairn_amend amend = { .struct_size = sizeof amend, .add = &more, .add_count = 1 };
    (void)unused;
    (void)!cairn_job_amend(job, &amend, CLUSTER_WAIT_MS); // it may be taken back
    return NULL;
}

static void newest_segment(int shard, char name_out[64])
{
    char path[256];
    log_file(shard, "", path);
    last_name(open(path, O_RDONLY | O_DIRECTORY), 20, name_out);
}

/* A generation that is staged may be given up: the log goes on with the one that serves. */
TEST(a_part_that_is_staged_leaves_the_log_to_the_one_that_serves)
{
    char part[256], before[64], now[64];
    pthread_t extending;
    SHARDS_KEPT(2);
    begin(3);
    log_file(0, "part", part);
    newest_segment(0, before);
    const pid_t other = cluster_shard_process(&cluster, 1);
    const int ready = logged("shard-0.log", "job tiny: ready at version");
    cluster_freeze(other); // the generation cannot come into force without it
    good((cairn_status)pthread_create(&extending, NULL, extend, NULL));
    await(logged("shard-0.log", "job tiny: ready at version") > ready);
    cluster_renew_shard(&cluster, 0, SIGKILL);
    await((newest_segment(0, now), strcmp(now, before) != 0));
    ck_assert_int_eq(access(part, F_OK), 0);
    ck_assert_int_eq(logged("shard-0.log", "as the process before left it"), 2);
    ck_assert_int_eq(kill(other, SIGCONT), 0);
    pthread_join(extending, NULL);
    leave();
    join("tiny", TINY(ELEMS));
    train_pushing(0.5f, 2);
    expect_in("job show tiny", "log; log is asked for");
    expect_power_to_lose_nothing(2);
}

/* ---- what a log cannot do ---- */

/* Zeros from there on look like a write that was cut off: this shard alone cannot know, the others do. */
TEST(a_part_that_is_behind_the_others_is_not_used)
{
    static const char zeros[500000];
    SHARDS(2);
    begin(3);
    says(0, "", "snapshot create tiny --wait -q");
    const uint64_t saved = newest(job).step;
    train_pushing(0.5f, 3);
    for (int i = 0; i < 2; i++) kill_shard(i);
    const int fd = open_newest(1);
    ck_assert_int_eq(pwrite(fd, zeros, sizeof zeros, 1000000 - (off_t)sizeof zeros), sizeof zeros);
    close(fd);
    for (int i = 0; i < 2; i++) cluster_restart_shard(&cluster, i);
    await(in_log("job tiny is lost: shard-1: it knows nothing of a round that another shard has") >
          0);
    leave();
    says(0, "", "snapshot restore tiny latest --yes -q");
    expect_in("job show tiny", "durability        log; log is asked for");
    join("tiny", TINY(ELEMS));
    ck_assert_uint_eq(newest(job).step, saved);
    train_pushing(0.5f, 3);
    expect_power_to_lose_nothing(2);
}

/* Of the sums of a round that was decided. */
TEST(a_damaged_log_is_refused_with_a_sentence)
{
    SHARDS(1);
    begin(3);
    kill_shard(0);
    const int fd = open_newest(0);
    uint8_t byte;
    ck_assert_int_eq(pread(fd, &byte, 1, 20000), 1);
    byte ^= 64;
    ck_assert_int_eq(pwrite(fd, &byte, 1, 20000), 1);
    close(fd);
    cluster_restart_shard(&cluster, 0);
    ck_assert_int_eq(logged("shard-0.log", "the sums of round"), 1);
    ck_assert_int_eq(logged("shard-0.log", "it is restored from a snapshot by its on_shard_loss"),
                     1);
    await(in_log("job tiny is lost: shard-0") > 0);
}

/* A folder in the place of a file cannot be removed as one: so it is with a disk that takes no writes. If the
 * rounds went on, a loss of power would bring the older state of that log back. */
TEST(a_log_that_cannot_be_ended_holds_the_rounds)
{
    char part[256], aside[CAIRN_SCRATCH_BYTES + 16];
    int status;
    SHARDS(1);
    begin(3);
    log_file(0, "part", part);
    snprintf(aside, sizeof aside, "%s/aside", logs_folder);
    ck_assert_int_eq(rename(part, aside), 0);
    ck_assert_int_eq(mkdir(part, 0700), 0);
    says(0, "", "job durability tiny default -q");
    await(logged("shard-0.log", "job tiny waits for the end of its log") > 0);
    const uint64_t step = newest(job).step;
    const pid_t pid = fork_child();
    if (pid == 0) { // the trainer is in its step until this has happened
        poll(NULL, 0, 500);
        ask_line("job show tiny");
        char version[32];
        snprintf(version, sizeof version, "%lu", (unsigned long)step);
        const bool waited = strstr(said.out, version) != NULL;
        _exit(waited && rmdir(part) == 0 && rename(aside, part) == 0 ? 0 : 1);
    }
    train_pushing(0.5f, 2);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(logged("shard-0.log", "job tiny: its log has ended now"), 1);
    kill_shard(0);
    cluster_restart_shard(&cluster, 0);
    await(in_log("job tiny is lost: shard-0 restarted without its part") > 0);
    ck_assert_int_eq(logged("shard-0.log", "made again from its log"), 0);
}

/* The file that names the snapshot cannot be written: the log stands on the one before, and tries again. */
TEST(a_base_that_cannot_be_written_costs_no_log)
{
    char base[256], text[64], id[CLUSTER_WORD_BYTES];
    SHARDS(1);
    begin(3);
    log_file(0, "base.new", base);
    ck_assert_int_eq(mkdir(base, 0700), 0);
    word_of(id, "snapshot create tiny --wait -q");
    const uint64_t saved = newest(job).step;
    train_pushing(0.5f, 3);
    await(logged("shard-0.log", "job tiny: its log is as it was, and tries again") > 0);
    expect_in("job show tiny", "durability        log; log is asked for");
    ck_assert_int_eq(rmdir(base), 0);
    log_file(0, "base", base);
    await(strstr(base_text(base), id) != NULL);
    expect_power_to_lose_nothing(1);
    snprintf(text, sizeof text, "from the snapshot of step %lu on", (unsigned long)saved);
    ck_assert_int_eq(logged("shard-0.log", text), 1);
    ck_assert_int_eq(logged("shard-0.log", "is given up"), 0);
}

/* A job of one shard, of which there are two snapshots: its log stands on the second one. */
static void begin_on_second(char first_out[CLUSTER_WORD_BYTES], char second_out[CLUSTER_WORD_BYTES])
{
    char base[256];
    SHARDS(1);
    begin(1);
    word_of(first_out, "snapshot create tiny --wait -q");
    train_pushing(0.5f, 1);
    word_of(second_out, "snapshot create tiny --wait -q");
    log_file(0, "base", base);
    await(strstr(base_text(base), second_out) != NULL);
}

/* Its path alone does not say which one it is: the sums of the log would be added to other bits. */
TEST(another_snapshot_at_the_path_of_the_base_is_refused)
{
    char first[CLUSTER_WORD_BYTES], second[CLUSTER_WORD_BYTES], at[512], command[5 * sizeof at];
    char root[65];
    begin_on_second(first, second);
    train_pushing(0.5f, 2);
    bits(root);
    kill_shard(0);
    snprintf(at, sizeof at, "%s", snapshot_folder("tiny", second));
    snprintf(command, sizeof command, "mv %s %s.right && cp -r %s %s", at, at,
             snapshot_folder("tiny", first), at);
    ck_assert_int_eq(system(command), 0);
    cluster_restart_shard(&cluster, 0);
    await(in_log("job tiny is lost: shard-0") > 0);
    ck_assert_int_eq(logged("shard-0.log", "is another one, of version"), 1);
    ck_assert_int_gt(in_log("it cannot use the log of it, and its own log says why: until then it "
                            "had one, and without it 2 steps are lost"),
                     0);
    kill_shard(0);
    snprintf(command, sizeof command, "rm -r %s && mv %s.right %s", at, at, at);
    ck_assert_int_eq(system(command), 0);
    cluster_restart_shard(&cluster, 0);
    expect_bits(root);
}

TEST(a_log_that_is_gone_leaves_the_snapshot)
{
    SHARDS(1);
    begin(3);
    kill_shard(0);
    cairn_scratch_remove(logs_folder);
    ck_assert_int_eq(mkdir(logs_folder, 0700), 0);
    cluster_restart_shard(&cluster, 0);
    await(in_log("job tiny is lost: shard-0 restarted without its part") > 0);
    ck_assert_int_gt(in_log("there is no log in its log.path, as if its disk were not mounted: "
                            "until then it had one, and without it 3 steps are lost"),
                     0);
}

/* The next segment fails, in mid-training: no step is lost, and none is held up. */
TEST(a_log_whose_disk_fails_is_given_up_and_the_job_goes_on)
{
    char command[2 * CAIRN_SCRATCH_BYTES];
    SHARDS(2);
    begin(3);
    snprintf(command, sizeof command, "rm -r %s/shard-1", logs_folder);
    ck_assert_int_eq(system(command), 0);
    const uint64_t step = newest(job).step;
    train_pushing(0.5f, 12);
    ck_assert_uint_eq(newest(job).step, step + 12);
    await(logged("shard-1.log", "is given up: creating") == 1);
    expect_in("job show tiny", "shard shard-1 gave its log up: creating");
    says(3, "less safe than it asks for", "job check tiny");
    await(in_log("job tiny is less safe than it asks for (log)") > 0);
}

TEST(a_shard_without_a_folder_is_named_when_a_log_is_asked_for)
{
    start(2, .coordinator_set = SETTINGS("lease.heartbeat=100ms"));
    join("tiny", TINY(ELEMS));
    says(2, "durability log cannot be had: shards shard-0, shard-1 have no folder for a log",
         "job durability tiny log");
}

static char away[CAIRN_SCRATCH_BYTES + 48];

/* As if its disk were not mounted. */
static void take_away(const char *path)
{
    snprintf(away, sizeof away, "%s.away", path);
    ck_assert_int_eq(rename(path, away), 0);
}

static void bring_back(const char *path)
{
    ck_assert_int_eq(rename(away, path), 0);
}

TEST(a_disk_that_comes_late_is_waited_for)
{
    char root[65];
    SHARDS(1);
    join("tiny", TINY(ELEMS, .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST));
    train_pushing(0.5f, 1);
    log_it("tiny");
    train_pushing(0.5f, 6);
    bits(root);
    kill_shard(0);
    kill_coordinator();
    take_away(logs_folder);
    cluster_restart_coordinator(&cluster);
    says(0, "shard shard-0 has not been heard yet", "job show tiny");
    const pid_t pid = fork_child();
    if (pid == 0) {
        await(logged("shard-0.log", "it does not connect before it can read the logs") > 0);
        bring_back(logs_folder);
        _exit(0);
    }
    cluster_restart_shard(&cluster, 0); // until it has connected
    ck_assert_int_eq(cluster_wait(pid, CLUSTER_WAIT_MS), 0);
    expect_bits(root);
    ck_assert_int_eq(in_log("is lost"), 0);
    ck_assert_int_eq(in_log("restored from"), 0);
    expect_in("job show tiny", "log; log is asked for");
    train_pushing(0.5f, 2);
}

TEST(a_part_whose_snapshot_is_away_is_waited_for_and_the_other_jobs_are_not)
{
    char root[65];
    SHARDS(2);
    begin(3);
    bits(root);
    leave();
    for (int i = 0; i < 2; i++) kill_shard(i);
    take_away(cluster.snapshots_path);
    for (int i = 0; i < 2; i++) cluster_restart_shard(&cluster, i);
    join("next", TINY(ELEMS));
    train_pushing(0.5f, 2);
    expect_in("job show tiny", "which is made again from its log and waits for the snapshot");
    expect_in("cluster status", "waits for the snapshot on which its log stands");
    ck_assert_int_eq(logged("shard-0.log", "the part of job tiny waits for the snapshot"), 1);
    ck_assert_int_eq(in_log("job tiny is lost"), 0);
    bring_back(cluster.snapshots_path);
    train_pushing(0.5f, 2);
    leave();
    join("tiny", TINY(ELEMS));
    expect_bits(root);
    train_pushing(0.5f, 2);
    ck_assert_int_eq(in_log("job tiny is lost"), 0);
    expect_in("job show tiny", "log; log is asked for");
}

/* The part of another job would take it. */
TEST(the_memory_of_a_part_whose_snapshot_is_away_is_not_given_away)
{
    enum { BIG = 1 << 17 };
    char root[65];
    cairn_job *next;
    start(1, .coordinator_set = SETTINGS("lease.heartbeat=100ms"),
          .shard_set = SETTINGS("compute.threads=1", "memory.limit=19MiB", logs_setting));
    join("tiny", TINY(BIG));
    train_pushing(0.5f, 1);
    log_it("tiny");
    train_pushing(0.5f, 3);
    bits(root);
    leave();
    kill_shard(0);
    take_away(cluster.snapshots_path);
    cluster_restart_shard(&cluster, 0);
    expect_in("job show tiny", "which is made again from its log and waits for the snapshot");
    session = trainer_session(cluster.address, NULL);
    ck_assert_int_eq(
        cairn_job_open(session, "next", &TINY(BIG)->spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &next),
        CAIRN_ERR_NO_MEMORY);
    leave();
    bring_back(cluster.snapshots_path);
    join("tiny", TINY(BIG));
    expect_bits(root);
    ck_assert_int_eq(in_log("job tiny is lost"), 0);
    train_pushing(0.5f, 1);
}

/* memory.limit was lowered, and is raised again. */
TEST(a_part_for_which_memory_lacks_waits_for_it)
{
    char root[65];
    static char limit[] = "memory.limit=64MiB";
    start(1, .coordinator_set = SETTINGS("lease.heartbeat=100ms"),
          .shard_set = SETTINGS("compute.threads=1", limit, logs_setting));
    join("tiny", TINY(1 << 17));
    train_pushing(0.5f, 1);
    log_it("tiny");
    train_pushing(0.5f, 3);
    bits(root);
    leave();
    kill_shard(0);
    memcpy(limit, "memory.limit=04MiB", sizeof limit);
    cluster_restart_shard(&cluster, 0);
    expect_in("job show tiny", "waits for memory for its job");
    await(logged("shard-0.log", "its part is made again from its log") > 1);
    ck_assert_int_eq(logged("shard-0.log", "this is tried again, less often each time"), 1);
    kill_shard(0);
    memcpy(limit, "memory.limit=64MiB", sizeof limit);
    cluster_restart_shard(&cluster, 0);
    expect_bits(root);
    ck_assert_int_eq(in_log("job tiny is lost"), 0);
}

/* The job is restored, or dropped, while its part waits for a snapshot that does not come again. */
TEST_EACH(a_part_whose_snapshot_is_gone_waits_no_longer_than_its_job, 0, 2)
{
    char first[CLUSTER_WORD_BYTES], second[CLUSTER_WORD_BYTES], command[1024];
    begin_on_second(first, second);
    leave();
    kill_shard(0);
    snprintf(command, sizeof command, "rm -r %s", snapshot_folder("tiny", second));
    ck_assert_int_eq(system(command), 0);
    cluster_restart_shard(&cluster, 0);
    expect_in("job show tiny", "which is made again from its log and waits for the snapshot");
    if (_i == 0) {
        says(0, "", "snapshot restore tiny %s --yes -q", first);
        expect_in("job show tiny", "durability        log; log is asked for");
        join("tiny", TINY(ELEMS));
        train_pushing(0.5f, 2);
        expect_power_to_lose_nothing(1);
    } else {
        says(0, "", "job drop tiny --yes -q");
        await(is_without_logs(0));
    }
}

/* The coordinator and the shard end. */
static void end_all(void)
{
    kill_coordinator();
    kill_shard(0);
}

/* A log whose snapshot is away holds no shard to a store that may be gone, and is there when that store comes
 * again. */
TEST(a_log_whose_snapshot_is_away_does_not_keep_its_shard_from_another_store)
{
    char root[65], snapshots[sizeof cluster.snapshots_path + 8];
    SHARDS(1);
    begin(2);
    bits(root);
    leave();
    snprintf(snapshots, sizeof snapshots, "%s/tiny", cluster.snapshots_path);
    take_away(snapshots);
    end_all();
    ck_assert_int_eq(rename(in_folder("coordinator"), in_folder("lost")), 0);
    cluster_restart_coordinator(&cluster);
    cluster_restart_shard(&cluster, 0);
    join("next", TINY(ELEMS));
    train_pushing(0.5f, 2);
    ck_assert_int_eq(logged("shard-0.log", "the log of job tiny, which waits for its snapshot"), 1);
    ck_assert_int_eq(logged("coordinator.log", "is not used"), 0);
    bring_back(snapshots);
    await(logged("shard-0.log", "and this shard obeys the coordinator of store") == 1);
    train_pushing(0.5f, 2);
    leave();
    says(0, "", "job drop next --yes --force -q");
    end_all();
    ck_assert_int_eq(rename(in_folder("coordinator"), in_folder("other")), 0);
    ck_assert_int_eq(rename(in_folder("lost"), in_folder("coordinator")), 0);
    cluster_restart_coordinator(&cluster);
    cluster_restart_shard(&cluster, 0);
    join("tiny", TINY(ELEMS));
    expect_bits(root);
    train_pushing(0.5f, 2);
}

TEST(a_part_that_a_keeper_has_does_not_wait_for_the_disk)
{
    SHARDS_KEPT(1);
    begin(3);
    take_away(logs_folder);
    cluster_renew_shard(&cluster, 0, SIGKILL);
    train_pushing(0.5f, 2);
    says(2, ", which is no folder", "job durability tiny log+peer");
    says(3, ", which is no folder", "job check tiny");
    bring_back(logs_folder);
}

TEST(a_snapshot_on_which_a_log_stands_stays)
{
    char id[21], command[64];
    SHARDS(1);
    begin(3);
    ask_line("snapshot list tiny");
    const char *listed = strstr(said.out, "step-");
    ck_assert_ptr_nonnull(listed);
    snprintf(id, sizeof id, "%s", listed);
    says(12, "stands on snapshot", "snapshot rm tiny %s --yes", id);
    says(0, "", "snapshot create tiny --wait -q");
    snprintf(command, sizeof command, "snapshot rm tiny %s --yes", id);
    // when the log stands on the newer one; it goes by itself then, too
    await(
        (ask_line(command), said.status == 0 || strstr(said.err, "there is no snapshot") != NULL));
    expect_power_to_lose_nothing(1);
}

/* ---- space ---- */

/* A segment of it takes a mebibyte, so the log comes near its budget again and again. */
TEST(at_half_of_its_budget_a_log_gets_a_snapshot)
{
    SHARDS(1, "log.budget=6MiB");
    begin(60);
    await(in_log("a snapshot is taken for its log") >= 3);
    await(in_log("of job tiny is removed") > 0); // one on which no log stands any more
    ck_assert_int_eq(logged("shard-0.log", "gave its log up"), 0);
    expect_power_to_lose_nothing(1);
}

static void await_full(const struct crew_run *run)
{
    await(logged("shard-0.log", "its log has reached log.budget") > 0);
    ck_assert_uint_gt(run->step, 0);
}

/* Nothing would be won by the wait: a log without a base brings nothing back. */
TEST(a_full_log_without_a_base_does_not_hold_the_job_up)
{
    const struct crew crew = { .job = &bits_job, .endpoint = cluster.address, .until_step = 80 };
    struct crew_run run;
    SHARDS(1, "log.budget=4MiB");
    crew_start(&run, &crew);
    crew_await(&run, 2);
    take_away(cluster.snapshots_path);
    says(0, "", "job durability bits log -q");
    await_full(&run);
    crew_join(&run);
    expect_in("job show bits", "gave its log up: it reached log.budget");
    bring_back(cluster.snapshots_path);
}

/* The snapshot for which the log waits begins after the re-shard, and that needs rounds. */
TEST(a_full_log_does_not_hold_another_layout_up)
{
    const struct crew crew = { .job = &bits_job, .endpoint = cluster.address, .until_step = 80 };
    struct cluster_command command;
    struct crew_run run;
    SHARDS(1, "log.budget=4MiB");
    cluster_add_shard(&cluster, 1);
    crew_start(&run, &crew);
    crew_await(&run, 2);
    log_it(BITS_JOB);
    take_away(cluster.snapshots_path);
    await_full(&run);
    cluster_cli_begin(&cluster, &command, "reshard apply bits --add shard-1 -q");
    cluster_cli_end(&command, cluster_wait(command.pid, CLUSTER_WAIT_MS), &said);
    ck_assert_int_eq(said.status, 0);
    bring_back(cluster.snapshots_path);
    crew_join(
        &run); // with a log again, or without one if both were full before the storage was back
}

TEST(a_budget_without_room_is_told_with_bytes)
{
    SHARDS(1, "log.budget=100KiB");
    join("tiny", TINY(ELEMS));
    train_pushing(0.5f, 1);
    says(0, "", "job durability tiny log -q");
    expect_in("job show tiny", "gave its log up: log.budget = 102400 has no room for two rounds");
    train_pushing(0.5f, 3);
    says(3, "less safe than it asks for: shard shard-0 gave its log up", "job check tiny");
}

SUITE(120, logs_begin, logs_end);
