/* A reader's lease over real daemons: its version is the same bits after many updates, which do not wait for
 * it; when it ends the version is gone and the memory is back. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/descriptors.h"
#include "tests/e2e/scene.h"

enum { WAIT_MS = 20000, LONG_MS = 60000, TENSORS = 3, ELEMS_MAX = 129 * 257, SHARDS = 2 };

static const struct cairn_tensor model[TENSORS] = {
    TRAINER_MATRIX("bias", NULL, 1, 5000, 7),
    TRAINER_MATRIX("fixed", NULL, 97, 61, 7, .kind = CAIRN_FROZEN),
    TRAINER_MATRIX("weight", NULL, 129, 257, 7, .wire = CAIRN_BF16),
};

static cairn *evaluator;
static cairn_job *reads;

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
    struct cairn_group adamw = CAIRN_GROUP_INIT;
    struct cairn_job_spec spec = trainer_spec(model, TENSORS);
    adamw.weight_decay = 0.1; // so that gradients of zero move parameters, too
    spec.groups = &adamw;
    start(SHARDS);
    join_spec("l", &spec);
    good(open_reader(cluster.address, &evaluator, &reads));
}

static void tear_down(void)
{
    cairn_close(evaluator);
    stop();
}

static struct cairn_version advance(int steps)
{
    struct cairn_result result = { .struct_size = sizeof result };
    for (int i = 0; i < steps; i++) {
        const struct cairn_round round = trainer_begin(job);
        result = trainer_commit(job, &round, 1);
    }
    return result.version;
}

/* All tensors of a version, one behind the other. */
struct copy {
    uint8_t bytes[TENSORS][ELEMS_MAX * 4];
};

static cairn_status read_all(cairn_job *of, struct cairn_version version, struct copy *out)
{
    cairn_status status = CAIRN_OK;
    for (int t = 0; t < TENSORS && status == CAIRN_OK; t++)
        status = trainer_try_fetch(of, version, model[t].name, NULL, trainer_wire(&model[t]),
                                   out->bytes[t]);
    return status;
}

static void check_same(const struct copy *a, const struct copy *b, bool same)
{
    for (int t = 0; t < TENSORS; t++) {
        const bool equal = memcmp(a->bytes[t], b->bytes[t], trainer_wire_bytes(&model[t])) == 0;
        ck_assert_msg(equal == (same || model[t].kind == CAIRN_FROZEN), "%s", model[t].name);
    }
}

/* `cairn job show` has the word. */
static bool is_shown(const char *word)
{
    ask("job show l");
    expect_said(0);
    return strstr(said.out, word) != NULL;
}

/* What the shards hold for their jobs, as they say with each heartbeat. */
static int64_t state_bytes(void)
{
    ask("-o json job show l");
    expect_said(0, "\"state_bytes\":");
    return said_number("state_bytes");
}

/* Published copies that the shards have: descriptors of their memfds. */
static unsigned copies(void)
{
    return descriptors_named(cluster.shards[0], "memfd:cairn-wire-") +
           descriptors_named(cluster.shards[1], "memfd:cairn-wire-");
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
    const struct cairn_version published = advance(3);
    const unsigned before = copies();
    await(state_bytes() > 0);
    const int64_t counted = state_bytes();
    good(read_all(reads, published, &first));
    good(cairn_lease(reads, (struct cairn_version) { 0, 0 }, LONG_MS, WAIT_MS, &leased));
    ck_assert_uint_eq(leased.step, published.step);
    ck_assert(is_shown("lease"));
    ck_assert(is_shown("step 3: reader evaluator"));
    struct cairn_version latest = advance(20);
    ck_assert_uint_eq(latest.step, 23);
    good(read_all(reads, leased, &later));
    check_same(&first, &later, true);
    good(read_all(reads, latest, &later)); // and the latest has its frozen tensors
    check_same(&first, &later, false);
    ck_assert_uint_gt(copies(), before);
    await(state_bytes() > counted); // and it is counted
    good(cairn_lease_end(reads, leased, WAIT_MS));
    until_gone(leased, &later);
    await(copies() == before);
    good(cairn_lease_end(reads, leased, WAIT_MS)); // there is none
    fails(cairn_lease(reads, leased, LONG_MS, WAIT_MS, &leased), CAIRN_ERR_VERSION_GONE,
          "not kept any more");
    good(read_all(reads, latest, &later));
}

TEST(a_lease_that_timed_out_was_not_begun_and_its_error_names_the_shard)
{
    static struct copy copy;
    const struct cairn_version latest = { 0, 0 };
    struct cairn_version leased = advance(1);
    good(read_all(reads, leased, &copy));
    cluster_freeze(cluster.shards[1]);
    fails(cairn_lease(reads, latest, LONG_MS, 100, &leased), CAIRN_ERR_TIMEOUT, "shard-1");
    kill(cluster.shards[1], SIGCONT);
    ck_assert(!is_shown("lease"));
    advance(3);
    until_gone(leased, &copy);
    good(cairn_lease(reads, latest, LONG_MS, WAIT_MS, &leased));
    ck_assert_uint_eq(leased.step, 4);
}

TEST(a_lease_outlives_a_coordinator_if_it_is_renewed)
{
    static struct copy first, later;
    struct cairn_version leased = advance(1);
    good(read_all(reads, leased, &first));
    good(cairn_lease(reads, leased, LONG_MS, WAIT_MS, &leased));
    advance(5);
    kill_coordinator();
    good(read_all(reads, leased, &later));
    restart_coordinator();
    good(cairn_lease(reads, leased, LONG_MS, WAIT_MS, &leased)); // the new one knows of none
    advance(5);
    good(read_all(reads, leased, &later));
    check_same(&first, &later, true);
    ck_assert(is_shown("lease"));
}

TEST(a_reader_that_is_killed_holds_no_memory)
{
    static struct copy copy;
    struct cairn_version leased = advance(1);
    const unsigned before = copies();
    good(read_all(reads, leased, &copy));
    const pid_t pid = run_on(NULL, "reader.log", "self %s", cluster.address);
    await(is_shown("lease"));
    advance(5);
    good(read_all(reads, leased, &copy)); // whoever leased it
    ck_assert_uint_gt(copies(), before);
    cluster_kill(pid);
    until_gone(leased, &copy);
    await(copies() == before);
    ck_assert(!is_shown("lease"));
}

TEST(a_write_beside_a_lease_leaves_its_version_as_it_was)
{
    static struct copy first, later;
    static float values[ELEMS_MAX];
    struct cairn_version leased = advance(2), written = { 0, 0 };
    good(read_all(reads, leased, &first));
    good(cairn_lease(reads, leased, LONG_MS, WAIT_MS, &leased));
    good(cairn_write_begin(job, WAIT_MS));
    trainer_put(job, "fixed", values); // zeros
    good(cairn_write_end(job, WAIT_MS, &written));
    for (int i = 0; i < 4; i++) { // in whatever copy the next versions lie
        const struct cairn_version latest = advance(1);
        good(read_all(reads, latest, &later));
        ck_assert_mem_eq(later.bytes[1], values, trainer_elems(&model[1]) * sizeof(float));
    }
    good(read_all(reads, leased, &later));
    check_same(&first, &later, true);
}

/* What the killed reader of the test above is. */
static int lease_and_hang(const char *address)
{
    const struct cairn_version latest = { 0, 0 };
    struct cairn_version leased;
    if (open_reader(address, &evaluator, &reads) != CAIRN_OK ||
        cairn_lease(reads, latest, LONG_MS, WAIT_MS, &leased) != CAIRN_OK)
        return 1;
    for (;;) pause();
}

SUITE(60, set_up, tear_down);

int main(int argc, char **argv)
{
    return argc == 2 ? lease_and_hang(argv[1]) : suite_main();
}
