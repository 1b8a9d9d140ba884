/* A reader's lease over real daemons: its version is the same bits after many updates, which do not wait for
 * it; when it ends the version is gone and the memory is back. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/suite.h"
#include "tests/support/trainer.h"

enum { WAIT_MS = 20000, LONG_MS = 60000, TENSORS = 3, ELEMS_MAX = 129 * 257, SHARDS = 2 };

static const struct tensor {
    const char *name;
    cairn_kind kind;
    cairn_dtype wire;
    uint64_t rows, columns;
} model[TENSORS] = { { "bias", CAIRN_TRAINED, CAIRN_F32, 1, 5000 },
                     { "fixed", CAIRN_FROZEN, CAIRN_F32, 97, 61 },
                     { "weight", CAIRN_TRAINED, CAIRN_BF16, 129, 257 } };

static struct cluster cluster;
static struct cluster_said said;
static cairn *trainer, *evaluator;
static cairn_job *trains, *reads;

static size_t elems_of(int t)
{
    return (size_t)(model[t].rows * model[t].columns);
}

static cairn_job *open_worker(cairn **session_out)
{
    struct cairn_group adamw = CAIRN_GROUP_INIT;
    struct cairn_tensor tensors[TENSORS];
    adamw.weight_decay = 0.1; // so that gradients of zero move parameters, too
    for (int t = 0; t < TENSORS; t++) {
        tensors[t] = (struct cairn_tensor) { .struct_size = sizeof tensors[t],
                                             .name = model[t].name,
                                             .kind = model[t].kind,
                                             .wire = model[t].wire,
                                             .rank = 2,
                                             .shape = { model[t].rows, model[t].columns },
                                             .init = { CAIRN_INIT_NORMAL, 0, 1, 7 } };
    }
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = tensors,
                                         .tensor_count = TENSORS,
                                         .groups = &adamw,
                                         .group_count = 1 };
    *session_out = trainer_session(cluster.address, NULL);
    return trainer_ready(*session_out, "l", &spec);
}

static cairn_status open_reader(const char *address, cairn **session_out, cairn_job **job_out)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = address,
                                     .name = "evaluator" };
    const cairn_status status = cairn_open(&opts, session_out);
    if (status != CAIRN_OK) return status;
    return cairn_job_open(*session_out, "l", NULL, CAIRN_READER, WAIT_MS, job_out);
}

static void set_up(void)
{
    cluster_start(&cluster, SHARDS, NULL);
    trains = open_worker(&trainer);
    good(open_reader(cluster.address, &evaluator, &reads));
}

static void tear_down(void)
{
    cairn_close(evaluator);
    cairn_close(trainer);
    cluster_stop(&cluster);
}

static struct cairn_version train(int steps)
{
    struct cairn_result result = { .struct_size = sizeof result };
    for (int i = 0; i < steps; i++) {
        const struct cairn_round round = trainer_begin(trains);
        good(cairn_commit(trains, &round, 1, NULL, 0, WAIT_MS, &result));
        ck_assert(result.applied);
    }
    return result.version;
}

/* All tensors of a version, one behind the other. */
struct copy {
    uint8_t bytes[TENSORS][ELEMS_MAX * 4];
};

static cairn_status read_all(cairn_job *job, struct cairn_version version, struct copy *out)
{
    for (int t = 0; t < TENSORS; t++) {
        const struct cairn_mem mem = trainer_mem(out->bytes[t], model[t].wire);
        cairn_op *op;
        cairn_status status = cairn_fetch(job, version, model[t].name, NULL, NULL, &mem, &op);
        if (status == CAIRN_OK) status = cairn_wait(op, WAIT_MS);
        if (status != CAIRN_OK) return status;
    }
    return CAIRN_OK;
}

static void check_same(const struct copy *a, const struct copy *b, bool same)
{
    for (int t = 0; t < TENSORS; t++) {
        const size_t bytes = elems_of(t) * (model[t].wire == CAIRN_BF16 ? 2 : 4);
        const bool equal = memcmp(a->bytes[t], b->bytes[t], bytes) == 0;
        ck_assert_msg(equal == (same || model[t].kind == CAIRN_FROZEN), "%s", model[t].name);
    }
}

/* The line of `cairn job show` that begins with `word`, or NULL. */
static const char *show(const char *word)
{
    cluster_cli(&cluster, &said, "job", "show", "l", NULL);
    ck_assert_msg(said.status == 0, "%s", said.err);
    const char *line = strstr(said.out, word);
    return line;
}

/* What the shards hold for their jobs, as they say with each heartbeat. */
static uint64_t state_bytes(void)
{
    cluster_cli(&cluster, &said, "-o", "json", "job", "show", "l", NULL);
    ck_assert_msg(said.status == 0, "%s", said.err);
    const char *at = strstr(said.out, "\"state_bytes\":");
    ck_assert_ptr_nonnull(at);
    return strtoull(at + strlen("\"state_bytes\":"), NULL, 10); // null: 0
}

/* Published copies that the shards have: descriptors of their memfds. */
static int copies(void)
{
    int count = 0;
    for (int i = 0; i < SHARDS; i++) {
        char path[64], target[128];
        snprintf(path, sizeof path, "/proc/%d/fd", (int)cluster.shards[i]);
        DIR *folder = opendir(path);
        ck_assert_ptr_nonnull(folder);
        for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
            const ssize_t n = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
            if (n <= 0) continue;
            target[n] = 0;
            count += strstr(target, "memfd:cairn-wire-") != NULL;
        }
        closedir(folder);
    }
    return count;
}

/* The test's own timeout ends it. */
static void until_copies_are(int count)
{
    while (copies() != count) usleep(20000);
}

static void until_gone(struct cairn_version version, struct copy *copy)
{
    cairn_status status;
    while ((status = read_all(reads, version, copy)) == CAIRN_OK) usleep(1000);
    ck_assert_msg(status == CAIRN_ERR_VERSION_GONE, "%d: %s", (int)status, cairn_error());
}

TEST(a_leased_version_is_read_bit_for_bit_twenty_updates_later)
{
    static struct copy first, later;
    struct cairn_version leased = { 0, 0 };
    const struct cairn_version published = train(3);
    const int before = copies();
    while (state_bytes() == 0) usleep(20000);
    const uint64_t counted = state_bytes();
    good(read_all(reads, published, &first));
    good(cairn_lease(reads, (struct cairn_version) { 0, 0 }, LONG_MS, WAIT_MS, &leased));
    ck_assert_uint_eq(leased.step, published.step);
    ck_assert_ptr_nonnull(show("lease"));
    ck_assert_ptr_nonnull(strstr(said.out, "step 3: reader evaluator"));
    struct cairn_version newest = train(20);
    ck_assert_uint_eq(newest.step, 23);
    good(read_all(reads, leased, &later));
    check_same(&first, &later, true);
    good(read_all(reads, newest, &later)); // and the newest has its frozen tensors
    check_same(&first, &later, false);
    ck_assert_int_gt(copies(), before);
    while (state_bytes() <= counted) usleep(20000); // and it is counted
    good(cairn_lease_end(reads, leased, WAIT_MS));
    until_gone(leased, &later);
    until_copies_are(before);
    good(cairn_lease_end(reads, leased, WAIT_MS)); // there is none
    fails(cairn_lease(reads, leased, LONG_MS, WAIT_MS, &leased), CAIRN_ERR_VERSION_GONE,
          "not kept any more");
    good(read_all(reads, newest, &later));
}

TEST(a_lease_that_timed_out_was_not_begun_and_its_error_names_the_shard)
{
    static struct copy copy;
    const struct cairn_version newest = { 0, 0 };
    struct cairn_version leased = train(1);
    good(read_all(reads, leased, &copy));
    kill(cluster.shards[1], SIGSTOP);
    const cairn_status status = cairn_lease(reads, newest, LONG_MS, 100, &leased);
    ck_assert_msg(status == CAIRN_ERR_TIMEOUT && strstr(cairn_error(), "shard-1") != NULL, "%d: %s",
                  (int)status, cairn_error());
    kill(cluster.shards[1], SIGCONT);
    ck_assert_ptr_null(show("lease"));
    train(3);
    until_gone(leased, &copy);
    good(cairn_lease(reads, newest, LONG_MS, WAIT_MS, &leased));
    ck_assert_uint_eq(leased.step, 4);
}

TEST(a_lease_outlives_a_coordinator_if_it_is_renewed)
{
    static struct copy first, later;
    struct cairn_version leased = train(1);
    good(read_all(reads, leased, &first));
    good(cairn_lease(reads, leased, LONG_MS, WAIT_MS, &leased));
    train(5);
    cluster_kill_coordinator(&cluster);
    good(read_all(reads, leased, &later));
    cluster_restart_coordinator(&cluster);
    good(cairn_lease(reads, leased, LONG_MS, WAIT_MS, &leased)); // the new one knows of none
    train(5);
    good(read_all(reads, leased, &later));
    check_same(&first, &later, true);
    ck_assert_ptr_nonnull(show("lease"));
}

TEST(a_reader_that_is_killed_holds_no_memory)
{
    static struct copy copy;
    struct cairn_version leased = train(1);
    const int before = copies();
    good(read_all(reads, leased, &copy));
    const char *const argv[] = { "/proc/self/exe", cluster.address, NULL };
    char log[CAIRN_SCRATCH_BYTES + 16];
    snprintf(log, sizeof log, "%s/reader.log", cluster.folder);
    const pid_t pid = cluster_spawn(argv, log);
    while (show("lease") == NULL) usleep(20000);
    train(5);
    good(read_all(reads, leased, &copy)); // whoever leased it
    ck_assert_int_gt(copies(), before);
    cluster_kill(pid);
    until_gone(leased, &copy);
    until_copies_are(before);
    ck_assert_ptr_null(show("lease"));
}

TEST(a_write_beside_a_lease_leaves_its_version_as_it_was)
{
    static struct copy first, later;
    static float values[ELEMS_MAX];
    const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
    struct cairn_version leased = train(2), written = { 0, 0 };
    good(read_all(reads, leased, &first));
    good(cairn_lease(reads, leased, LONG_MS, WAIT_MS, &leased));
    good(cairn_write_begin(trains, WAIT_MS));
    good(cairn_put(trains, "fixed", "param", NULL, &mem, NULL)); // zeros
    good(cairn_write_end(trains, WAIT_MS, &written));
    for (int i = 0; i < 4; i++) { // in whatever copy the next versions lie
        const struct cairn_version newest = train(1);
        good(read_all(reads, newest, &later));
        ck_assert_mem_eq(later.bytes[1], values, elems_of(1) * sizeof(float));
    }
    good(read_all(reads, leased, &later));
    check_same(&first, &later, true);
}

/* What the killed reader of the test above is. */
static int lease_and_hang(const char *address)
{
    const struct cairn_version newest = { 0, 0 };
    struct cairn_version leased;
    if (open_reader(address, &evaluator, &reads) != CAIRN_OK ||
        cairn_lease(reads, newest, LONG_MS, WAIT_MS, &leased) != CAIRN_OK)
        return 1;
    for (;;) pause();
}

SUITE(60, set_up, tear_down);

int main(int argc, char **argv)
{
    return argc == 2 ? lease_and_hang(argv[1]) : suite_main();
}
