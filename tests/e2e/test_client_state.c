/* What a trainer gives of its own with a commit, on real daemons: it belongs to the version, whoever dies,
 * whoever reads, and wherever it is restored. */
#include <math.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 5000, STATE_MAX = 65536 };

static struct trainer attach_rank(uint32_t rank, uint32_t workers_min, uint32_t client_state_max)
{
    return attach("tiny", TINY(ELEMS, .rank = rank, .workers_min = workers_min,
                               .client_state_max = client_state_max));
}

static cairn_status commit(const struct trainer *t, const struct cairn_round *round,
                           const char *state, int timeout_ms)
{
    const size_t bytes = state != NULL ? strlen(state) : 0;
    return trainer_try_commit(t->job, round, state, bytes, timeout_ms);
}

static void train_with(const struct trainer *t, const char *state)
{
    const struct cairn_round round = trainer_begin(t->job);
    tiny_push(t->job, &round, ELEMS, 0.5f);
    good(commit(t, &round, state, CLUSTER_WAIT_MS));
}

/* The newest version has this state, and is of that step. */
static void expect_state(cairn_job *of, const char *expected, uint64_t step)
{
    static char buffer[STATE_MAX];
    struct cairn_version version;
    size_t bytes;
    good(cairn_client_state(of, buffer, sizeof buffer, CLUSTER_WAIT_MS, &bytes, &version));
    ck_assert_msg(bytes == strlen(expected) && memcmp(buffer, expected, bytes) == 0, "%.*s, not %s",
                  (int)bytes, buffer, expected);
    ck_assert_uint_eq(version.step, step);
}

TEST(it_belongs_to_the_version_whoever_dies_and_whoever_reads)
{
    start(2);
    struct trainer t = attach_rank(0, 1, STATE_MAX);
    cairn_job *reader = join_reader("tiny", NULL, &session);
    expect_state(reader, "", 0);
    train_with(&t, "batch 17");
    expect_state(reader, "batch 17", 1);
    struct cairn_round round = trainer_begin(t.job); // one that is skipped keeps it
    tiny_push(t.job, &round, ELEMS, NAN);
    good(commit(&t, &round, "batch 18", CLUSTER_WAIT_MS));
    expect_state(t.job, "batch 17", 1);
    round = trainer_begin(t.job);
    tiny_push(t.job, &round, ELEMS, 1);
    restart_coordinator();
    expect_state(t.job, "batch 17", 1); // it was on no disk
    ck_assert_int_eq(commit(&t, &round, "void", CLUSTER_WAIT_MS), CAIRN_ERR_EPOCH_CHANGED);
    expect_state(reader, "batch 17", 1);
    static char large[STATE_MAX + 1];
    memset(large, 'x', STATE_MAX);
    train_with(&t, large);
    expect_state(reader, large, 2);
    says(0, "65536 bytes, at most 65536", "job show tiny");
    cairn_close(t.session); // a trainer that comes again begins with it
    t = attach_rank(0, 1, STATE_MAX);
    trainer_begin(t.job);
    expect_state(t.job, large, 2);
    cairn_close(t.session);
}

TEST(it_is_in_the_content_root_and_in_snapshots_on_any_number_of_shards)
{
    struct cluster three;
    char root[65], other[65], id[CLUSTER_WORD_BYTES];
    start(1);
    cluster_start(&three, 3, NULL);
    struct trainer a = attach_rank(0, 1, 100),
                   b = tiny_attach(&three, "tiny", TINY(ELEMS, .client_state_max = 100));
    train_with(&a, "alpha");
    train_with(&b, "beta");
    trainer_digest(&cluster, "tiny", root);
    trainer_digest(&three, "tiny", other);
    ck_assert_str_ne(root, other);
    train_with(&a, "gamma");
    train_with(&b, "gamma");
    trainer_digest(&cluster, "tiny", root);
    trainer_expect_digest(&three, "tiny", root);
    word_of(id, "snapshot create -q tiny --wait");
    const char *path = snapshot_folder("tiny", id);
    says(0, path, "snapshot show tiny %s", id);
    cluster_says(&three, 0, "", "snapshot restore --path %s --job twin --yes --allow-untrusted",
                 path);
    trainer_expect_digest(&three, "twin", root);
    cairn_close(b.session);
    b = tiny_attach(&three, "twin", TINY(ELEMS, .client_state_max = 100));
    expect_state(b.job, "gamma", 2);
    train_with(&b, NULL); // gives none: then there is none
    expect_state(b.job, "", 3);
    cairn_close(a.session);
    cairn_close(b.session);
    stop();
    cluster_stop(&three);
}

TEST(rank_0_gives_it_and_what_cannot_be_is_refused)
{
    start(1);
    struct trainer t[2] = { attach_rank(0, 2, 4), attach_rank(1, 2, 4) };
    struct cairn_round rounds[2] = { trainer_begin(t[0].job), trainer_begin(t[1].job) };
    size_t bytes = 0;
    char small[2];
    fails(commit(&t[1], &rounds[1], "no", 0), CAIRN_ERR_REFUSED, "this is rank 1");
    fails(commit(&t[0], &rounds[0], "12345", 0), CAIRN_ERR_INVALID, "client_state_max = 4");
    fails(trainer_try_commit(t[0].job, &rounds[0], NULL, 5, 0), CAIRN_ERR_INVALID,
          "client_state is NULL");
    for (int i = 0; i < 2; i++) tiny_push(t[i].job, &rounds[i], ELEMS, 1);
    fails(commit(&t[1], &rounds[1], NULL, 1), CAIRN_ERR_TIMEOUT, "rank 0");
    good(commit(&t[0], &rounds[0], "1234", CLUSTER_WAIT_MS));
    good(commit(&t[1], &rounds[1], NULL, CLUSTER_WAIT_MS));
    fails(cairn_client_state(t[1].job, small, 2, CLUSTER_WAIT_MS, &bytes, NULL), CAIRN_ERR_INVALID,
          "4 bytes");
    ck_assert_uint_eq(bytes, 4);
    expect_state(t[1].job, "1234", 1);
    struct trainer none = attach("none", TINY(ELEMS));
    const struct cairn_round round = trainer_begin(none.job);
    fails(commit(&none, &round, "1", 0), CAIRN_ERR_REFUSED, "declare client_state_max");
    for (int i = 0; i < 2; i++) cairn_close(t[i].session);
    cairn_close(none.session);
}

SUITE(90, .tear_down = stop);
