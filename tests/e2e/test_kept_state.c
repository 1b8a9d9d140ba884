/* A shard that dies under a keeper loses nothing: its next process goes on with the state that it left,
 * and the content root is the one of the undisturbed run. What cannot be gone on with is refused with a
 * sentence. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/e2e/crew.h"
#include "tests/e2e/scene.h"
#include "tests/support/good.h"

enum { ELEMS = 9000, WIDE = 60000, LEAF = 4096 };

static struct crew both(void)
{
    return (
        struct crew) { .job = &bits_job, .endpoint = cluster.address, .until_step = BITS_STEPS };
}

static const char *log_of(int shard)
{
    static char name[4][32];
    snprintf(name[shard], sizeof name[shard], "shard-%d.log", shard);
    return name[shard];
}

/* How often the shard's processes went on with what the one before had left. */
static int resumed(int shard)
{
    return logged(log_of(shard), "as the process before left it");
}

/* Its keeper starts the next one. */
static void kill_process(int shard)
{
    ck_assert_int_eq(kill(cluster_shard_process(&cluster, shard), SIGKILL), 0);
}

/* ---- it dies ---- */

TEST(a_shard_killed_under_a_keeper_changes_no_bit)
{
    static const uint64_t steps[] = { 3, 8, 15, 22, 35, 42 };
    struct crew_run run;
    char root[65];
    crew_keep_averages();
    crew_reference_at(&bits_job, BITS_STEPS, root);
    start(3, .shards_kept = true);
    struct crew crew = both();
    crew.shuffle = 99;
    crew_start(&run, &crew);
    for (int i = 0; i < 6; i++) {
        crew_await(&run, steps[i]);
        kill_process(i % 3);
    }
    crew_join(&run);
    for (int i = 0; i < 3; i++) await(resumed(i) == 2);
    ck_assert_int_eq(logged("coordinator.log", "without its part"), 0);
    crew_check_root(cluster.address, &bits_job, root);
}

/* All of them at once, and the coordinator. */
TEST(a_cluster_whose_daemons_all_die_goes_on_where_it_was)
{
    char root[65];
    start(2, .shards_kept = true);
    join("tiny", TINY(ELEMS));
    train_pushing(0.5f, 5);
    bits(root);
    for (int i = 0; i < 2; i++) kill_process(i);
    restart_coordinator();
    expect_bits(root);
    train_pushing(0.25f, 3);
    ck_assert_uint_eq(newest(job).step, 8);
}

/* A file that is exchanged, a setting that needs another process: state stays where it is. */
TEST(a_daemon_that_is_exchanged_goes_on_with_its_state)
{
    char root[65];
    start(1, .shards_kept = true);
    join("tiny", TINY(ELEMS));
    train_pushing(0.5f, 5);
    bits(root);
    cluster_renew_shard(&cluster, 0, SIGUSR2);
    ck_assert_int_eq(resumed(0), 1);
    expect_bits(root);
    train_pushing(0.5f, 3);
    ck_assert_uint_eq(newest(job).step, 8);
}

/* The version that a reader has mapped stays as it is, and the next one is read from the next process. */
TEST(what_a_worker_has_mapped_outlives_the_shard)
{
    static float before[ELEMS], after[ELEMS];
    struct cairn_view view = { .struct_size = sizeof view };
    size_t count = 1;
    cairn_op *op;
    start(1, .shards_kept = true);
    join("tiny", TINY(ELEMS));
    train_pushing(0.5f, 2);
    const struct cairn_version version = newest(job);
    good(cairn_map(job, version, "w", &view, &count, &op));
    good(cairn_wait(op, CLUSTER_WAIT_MS));
    memcpy(before, view.ptr, sizeof before);
    kill_process(0);
    await(resumed(0) == 1);
    ck_assert_mem_eq(view.ptr, before, sizeof before);
    good(cairn_unmap(job, &view, NULL));
    train_pushing(0.5f, 1);
    trainer_fetch(job, newest(job), "w", NULL, CAIRN_F32, after);
    ck_assert_mem_ne(after, before, sizeof after);
}

/* What was put went with the process, so the write is void. */
TEST(a_write_whose_shard_was_killed_is_begun_again)
{
    static float values[WIDE];
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = values, .dtype = CAIRN_F32 };
    struct cairn_version after;
    cairn_status status;
    int kills = 0;
    start(1, .shards_kept = true);
    join("tiny", TINY(WIDE));
    do {
        good(cairn_write_begin(job, CLUSTER_WAIT_MS));
        if (kills++ == 0) kill_process(0);
        status = cairn_put(job, "w", "param", NULL, &mem, NULL);
        if (status == CAIRN_OK) status = cairn_write_end(job, CLUSTER_WAIT_MS, &after);
    } while (status == CAIRN_ERR_EPOCH_CHANGED);
    good(status);
    ck_assert_int_eq(resumed(0), 1);
    train_pushing(0.5f, 1);
}

/* Its values were of the process alone, and the others may have decided on it. */
TEST(a_write_whose_shard_was_killed_when_it_was_reduced_is_refused_with_a_sentence)
{
    static float values[LEAF];
    const struct cairn_mem mem = { .struct_size = sizeof mem, .ptr = values, .dtype = CAIRN_F32 };
    const struct cairn_box box = { .rank = 1, .extent = { LEAF } };
    struct cairn_version after;
    char root[65];
    start(2, .shards_kept = true, .log_level = "debug");
    join("tiny", TINY(WIDE, .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST));
    train_pushing(0.5f, 1);
    says(0, "committed", "snapshot create tiny --wait");
    bits(root);
    good(cairn_write_begin(job, CLUSTER_WAIT_MS));
    const pid_t other = cluster_shard_process(&cluster, 1);
    cluster_freeze(other);
    good(cairn_put(job, "w", "param", &box, &mem, NULL));
    fails(cairn_write_end(job, 100, &after), CAIRN_ERR_TIMEOUT, "");
    await(logged(log_of(0), "values of a write wait for the decision") == 1);
    kill_process(0);
    ck_assert_int_eq(kill(other, SIGCONT), 0);
    await(logged(log_of(0), "waiting for the decision on a write") == 1);
    leave();
    await(logged("coordinator.log", "job tiny restored from") == 1);
    join("tiny", TINY(WIDE, .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST));
    expect_bits(root);
}

/* ---- what is kept follows what there is ---- */

/* Descriptors of memory of that name that the keeper holds; NULL: of any. fd_out, unless it is NULL: one of
 * them, opened; -1: there is none. */
static int find_held(pid_t keeper, const char *label, int *fd_out)
{
    char folder[64], path[PATH_MAX], link[PATH_MAX];
    int count = 0;
    snprintf(folder, sizeof folder, "/proc/%d/fd", (int)keeper);
    DIR *fds = opendir(folder);
    ck_assert_ptr_nonnull(fds);
    if (fd_out != NULL) *fd_out = -1;
    for (const struct dirent *entry; (entry = readdir(fds)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        const ssize_t length = readlink(path, link, sizeof link - 1);
        if (length <= 0) continue;
        link[length] = '\0';
        if (strncmp(link, "/memfd:cairn-", 13) != 0) continue;
        if (label != NULL && strncmp(link + 7, label, strlen(label)) != 0) continue;
        if (count++ == 0 && fd_out != NULL) *fd_out = open(path, O_RDWR | O_CLOEXEC);
    }
    closedir(fds);
    return count;
}

static int held(pid_t keeper, const char *label)
{
    return find_held(keeper, label, NULL);
}

TEST(a_job_that_is_dropped_is_kept_no_more)
{
    start(1, .shards_kept = true);
    const pid_t keeper = cluster.shards[0];
    join("tiny", TINY(ELEMS));
    await(held(keeper, "cairn-record") == 1 && held(keeper, "cairn-ledger") == 1);
    ck_assert_int_eq(held(keeper, "cairn-param"), 1);
    ck_assert_int_eq(held(keeper, "cairn-acc"), 1);
    leave();
    says(0, "", "job drop tiny --yes");
    await(held(keeper, NULL) == 0);
}

static void add_shard_while_training(void)
{
    int status;
    cluster_add_shard(&cluster, 2);
    const pid_t pid = fork_child();
    if (pid == 0) {
        ask("reshard apply tiny --add shard-2");
        _exit(said.status);
    }
    while (waitpid(pid, &status, WNOHANG) == 0) train_pushing(0.5f, 1);
    ck_assert_int_eq(status, 0);
}

TEST(what_was_amended_and_moved_is_kept_as_it_is_now)
{
    char root[65];
    start(2, .shards_kept = true);
    join("tiny", TINY(WIDE, .chunk_leaves = 1));
    train_pushing(0.5f, 3);
    says(0, "", "job amend tiny --clip-norm 3");
    add_shard_while_training();
    await(held(cluster.shards[2], "cairn-record") == 1);
    bits(root);
    for (int i = 0; i < 3; i++) {
        kill_process(i);
        await(resumed(i) == 1);
        expect_bits(root);
    }
    says(0, "clip norm         3", "job show tiny");
    train_pushing(0.5f, 3);
}

/* ---- what is kept ends while it is in use ---- */

enum { LARGE = 24 << 20 };

/* Rounds with nothing in them until one fails: nearly all of the time of each is the update. */
static void train_until_it_fails(void)
{
    struct cairn_round round;
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = CAIRN_OK;
    while (status == CAIRN_OK || status == CAIRN_ERR_EPOCH_CHANGED) {
        round = (struct cairn_round) { .struct_size = sizeof round };
        status = cairn_round_begin(job, CLUSTER_WAIT_MS, &round);
        if (status == CAIRN_OK)
            status = cairn_commit(job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result);
    }
}

TEST(a_job_that_is_dropped_during_its_update_takes_no_daemon_along)
{
    start(1, .shards_kept = true, .shard_set = SETTINGS("memory.limit=2GiB", "compute.threads=2"));
    const pid_t process = cluster_shard_process(&cluster, 0);
    for (int i = 0; i < 4; i++) {
        join("tiny", TINY(LARGE));
        const pid_t pid = fork_child();
        if (pid == 0) {
            poll(NULL, 0, 100 + 7 * i);
            ask("job drop tiny --yes --force");
            _exit(said.status);
        }
        train_until_it_fails();
        int status;
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        leave();
        ck_assert_int_eq(logged(log_of(0), "was killed by signal"), 0);
        ck_assert_int_eq(cluster_shard_process(&cluster, 0), process);
    }
}

/* A layout is prepared while updates are under way, and comes into force between two. */
TEST(a_layout_that_is_prepared_during_an_update_takes_no_daemon_along)
{
    int status;
    start(1, .shards_kept = true, .shard_set = SETTINGS("memory.limit=2GiB", "compute.threads=2"));
    join("tiny", TINY(LARGE / 2));
    cluster_add_shard(&cluster, 1);
    const pid_t pid = fork_child();
    if (pid == 0) {
        ask("reshard apply tiny --add shard-1 --pause 100%%");
        _exit(said.status);
    }
    while (waitpid(pid, &status, WNOHANG) == 0) train(1);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(logged(log_of(0), "was killed by signal"), 0);
}

/* ---- what cannot be gone on with ---- */

static int open_held(pid_t keeper, const char *label)
{
    int fd;
    (void)find_held(keeper, label, &fd);
    ck_assert_int_ge(fd, 0);
    return fd;
}

static void change(int fd, off_t at, uint8_t by)
{
    uint8_t byte;
    ck_assert_int_eq((int)pread(fd, &byte, 1, at), 1);
    byte ^= by;
    ck_assert_int_eq((int)pwrite(fd, &byte, 1, at), 1);
}

static void damage_record(int fd)
{
    struct stat is;
    ck_assert_int_eq(fstat(fd, &is), 0);
    change(fd, is.st_size - 1, 1);
}

static void cut_off(int fd)
{
    ck_assert_int_eq(ftruncate(fd, 4096), 0);
}

static void other_format(int fd)
{
    change(fd, 8, 0xff);
}

/* A shard's process ends while its keeper is stopped, and what the keeper holds is changed meanwhile. */
static const struct {
    const char *label, *word;
    void (*change)(int fd);
} damages[] = {
    { "cairn-record", "its record is damaged", damage_record },
    { "cairn-record", "its record is damaged", cut_off },
    { "cairn-ledger", "its ledger is damaged", other_format },
    { "cairn-ledger", "its ledger is damaged", cut_off },
    { "cairn-param", "has 4096 bytes, and", cut_off },
    { "cairn-exp_avg_sq", "has 4096 bytes, and", cut_off },
};

TEST_EACH(what_is_damaged_is_refused_with_a_sentence_and_the_job_waits_for_a_snapshot, 0,
          sizeof damages / sizeof *damages)
{
    char root[65];
    start(1, .shards_kept = true);
    const pid_t keeper = cluster.shards[0];
    join("tiny", TINY(ELEMS, .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST));
    train_pushing(0.5f, 3);
    says(0, "committed", "snapshot create tiny --wait");
    bits(root);
    await(held(keeper, "cairn-record") == 1);
    cluster_freeze(keeper);
    const int fd = open_held(keeper, damages[_i].label);
    kill_process(0);
    damages[_i].change(fd);
    close(fd);
    ck_assert_int_eq(kill(keeper, SIGCONT), 0);
    await(logged(log_of(0), damages[_i].word) == 1);
    await(logged(log_of(0), "cannot be used, and is forgotten") +
              logged(log_of(0), "cannot hold job tiny") ==
          1);
    leave();
    await(logged("coordinator.log", "job tiny restored from") == 1);
    join("tiny", TINY(ELEMS, .on_shard_loss = CAIRN_SHARD_LOSS_RESTORE_LATEST));
    expect_bits(root);
}

/* ---- what kills the daemon ---- */

/* What `cairn-shard --inspect shard-0 --state FOLDER [WORD]` prints. */
static int inspect(const char *word, char out[static 2048])
{
    char line[512];
    snprintf(line, sizeof line, CAIRN_BIN_DIR "/cairn-shard --inspect shard-0 --state %s/state %s",
             cluster.folder, word);
    FILE *pipe = popen(line, "re");
    ck_assert_ptr_nonnull(pipe);
    out[fread(out, 1, 2047, pipe)] = '\0';
    const int status = pclose(pipe);
    return WEXITSTATUS(status);
}

/* The first process was given nothing. Three more die of what they were given: the next one is not. */
static void die_of_it(void)
{
    for (int i = 1; i <= 4; i++) {
        ck_assert_int_eq(kill(cluster_shard_process(&cluster, 0), SIGSEGV), 0);
        if (i < 4) await(resumed(0) == i);
    }
    await(logged(log_of(0), "parts of 1 jobs are set aside") == 1);
}

TEST_EACH(a_part_that_kills_its_daemon_is_set_aside_and_dropped_or_given_back, 0, 2)
{
    char root[65], out[2048], state[2048];
    const bool is_dropped = _i == 0;
    start(1, .shards_kept = true);
    join("tiny", TINY(ELEMS));
    train_pushing(0.5f, 3);
    says(0, "committed", "snapshot create tiny --wait");
    bits(root);
    die_of_it();
    leave();
    ck_assert_int_eq(inspect("", out), 0);
    ck_assert_msg(strstr(out, "job tiny (") != NULL && strstr(out, "version 1.3") != NULL, "%s",
                  out);
    ck_assert_int_gt(held(cluster.shards[0], "cairn-param"), 0);
    ck_assert_int_eq(inspect(is_dropped ? "drop" : "return", out), 0);
    ck_assert_int_eq(kill(cluster.shards[0], SIGUSR2), 0);
    await(logged(log_of(0), "as an operator wants") == 1);
    ck_assert_int_eq(inspect("", state), 0);
    ck_assert_msg(strstr(state, "nothing of shard shard-0") != NULL, "%s", state);
    if (is_dropped) {
        await(held(cluster.shards[0], NULL) == 0);
        says(0, "", "snapshot restore tiny latest --yes");
    } else {
        await(resumed(0) == 4);
    }
    join("tiny", TINY(ELEMS));
    expect_bits(root);
}

/* Another build, which keeps state in another format, is started, and then the former one again: nothing is
 * lost. The build that cannot read the part goes on without it, also if it is given back to that one. */
TEST(a_part_that_another_build_keeps_is_set_aside_until_that_build_is_back)
{
    char root[65], out[2048];
    start(1, .shards_kept = true);
    const pid_t keeper = cluster.shards[0];
    join("tiny", TINY(ELEMS));
    train_pushing(0.5f, 3);
    bits(root);
    await(held(keeper, "cairn-record") == 1);
    const int fd = open_held(keeper, "cairn-record");
    leave();
    cluster_freeze(keeper);
    kill_process(0);
    other_format(fd);
    ck_assert_int_eq(kill(keeper, SIGCONT), 0);
    await(logged(log_of(0),
                 "keeps state in format 251, and this build reads 4; to go on with it") == 1);
    ck_assert_int_eq(inspect("", out), 0);
    ck_assert_msg(strstr(out, "and this build reads 4") != NULL, "%s", out);
    ck_assert_int_eq(inspect("return", out), 0);
    ck_assert_int_eq(kill(keeper, SIGUSR2), 0);
    await(logged(log_of(0), "and this build reads 4; to go on with it") == 2);
    other_format(fd);
    close(fd);
    ck_assert_int_eq(inspect("return", out), 0);
    ck_assert_int_eq(kill(keeper, SIGUSR2), 0);
    await(resumed(0) == 1);
    ck_assert_int_eq(logged(log_of(0), "is forgotten"), 0);
    join("tiny", TINY(ELEMS));
    expect_bits(root);
    train_pushing(0.5f, 1);
}

/* A part that is trained between the deaths is not what its daemon dies of; one that rests may be. */
TEST(a_part_with_steps_between_the_deaths_of_its_daemon_is_not_set_aside)
{
    enum { DEATHS = 7 };
    char root[65], out[2048];
    start(1, .shards_kept = true);
    join("tiny", TINY(ELEMS));
    const struct trainer resting = attach("resting", TINY(ELEMS));
    for (int i = 1; i <= DEATHS; i++) {
        train_pushing(0.5f, 2);
        bits(root);
        ck_assert_int_eq(kill(cluster_shard_process(&cluster, 0), SIGSEGV), 0);
        await(logged(log_of(0), "job tiny: ready at version") == 1 + i);
        expect_bits(root);
    }
    ck_assert_uint_eq(newest(job).step, 2 * DEATHS);
    ck_assert_int_gt(logged(log_of(0), "parts of 1 jobs are set aside"), 0);
    ck_assert_int_eq(inspect("", out), 0);
    ck_assert_msg(strstr(out, "job resting (") != NULL && strstr(out, "job tiny (") == NULL, "%s",
                  out);
    cairn_job_close(resting.job);
    cairn_close(resting.session);
}

/* The keeper has yet to read that the part is not kept any more when its process dies. */
TEST(what_went_on_while_its_keeper_was_stopped_is_refused_with_a_sentence)
{
    start(1, .shards_kept = true);
    const pid_t keeper = cluster.shards[0];
    join("tiny", TINY(ELEMS));
    train_pushing(0.5f, 3);
    await(held(keeper, "cairn-record") == 1);
    cluster_freeze(keeper);
    for (int i = 1; logged(log_of(0), "does not outlive this process") == 0; i++)
        says(0, "", "job amend tiny --clip-norm %d", i);
    train_pushing(0.5f, 3);
    leave();
    kill_coordinator();
    kill_process(0);
    ck_assert_int_eq(kill(keeper, SIGCONT), 0);
    restart_coordinator();
    await(logged(log_of(0), "as the process before left it") > 0 ||
          logged(log_of(0), "cannot be used, and is forgotten") > 0);
    ck_assert_int_eq(resumed(0), 0);
}

SUITE(60, .tear_down = stop);

int main(int argc, char **argv)
{
    return crew_main(argc, argv, both());
}
