/* What a trainer gives of its own with a commit, on real daemons: it belongs to the version, whoever dies,
 * whoever reads, and wherever it is restored. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

enum { ELEMS = 5000, STATE_MAX = 65536 };

static struct trainer attach(const struct cluster *cluster, const char *name, uint32_t rank,
                             uint32_t workers_min, uint32_t client_state_max)
{
    return tiny_attach(cluster, name,
                       TINY(ELEMS, .rank = rank, .workers_min = workers_min,
                            .client_state_max = client_state_max));
}

static cairn_status commit(const struct trainer *t, const struct cairn_round *round,
                           const void *state, size_t bytes, int timeout_ms)
{
    struct cairn_result result = { .struct_size = sizeof result };
    return cairn_commit(t->job, round, 1, state, bytes, timeout_ms, &result);
}

static void train(const struct trainer *t, const char *state)
{
    const struct cairn_round round = trainer_begin(t->job);
    tiny_push(t->job, &round, ELEMS, 0.5f);
    good(commit(t, &round, state, state != NULL ? strlen(state) : 0, CLUSTER_WAIT_MS));
}

/* The newest version has this state, and is of that step. */
static void expect_state(cairn_job *job, const char *expected, uint64_t step)
{
    static char buffer[STATE_MAX];
    struct cairn_version version;
    size_t bytes;
    good(cairn_client_state(job, buffer, sizeof buffer, CLUSTER_WAIT_MS, &bytes, &version));
    ck_assert_msg(bytes == strlen(expected) && memcmp(buffer, expected, bytes) == 0, "%.*s, not %s",
                  (int)bytes, buffer, expected);
    ck_assert_uint_eq(version.step, step);
}

TEST(it_belongs_to_the_version_whoever_dies_and_whoever_reads)
{
    struct cluster cluster;
    struct cluster_said said;
    cluster_start(&cluster, 2, NULL);
    struct trainer t = attach(&cluster, "tiny", 0, 1, STATE_MAX);
    cairn *session = tiny_session(&cluster, NULL);
    cairn_job *reader;
    good(cairn_job_open(session, "tiny", NULL, CAIRN_READER, CLUSTER_WAIT_MS, &reader));
    expect_state(reader, "", 0);
    train(&t, "batch 17");
    expect_state(reader, "batch 17", 1);
    struct cairn_round round = trainer_begin(t.job); // one that is skipped keeps it
    tiny_push(t.job, &round, ELEMS, NAN);
    good(commit(&t, &round, "batch 18", 8, CLUSTER_WAIT_MS));
    expect_state(t.job, "batch 17", 1);
    round = trainer_begin(t.job);
    tiny_push(t.job, &round, ELEMS, 1);
    cluster_kill_coordinator(&cluster);
    cluster_restart_coordinator(&cluster);
    expect_state(t.job, "batch 17", 1); // it was on no disk
    const cairn_status status = commit(&t, &round, "void", 4, CLUSTER_WAIT_MS);
    ck_assert_int_eq(status, CAIRN_ERR_EPOCH_CHANGED);
    expect_state(reader, "batch 17", 1);
    static char large[STATE_MAX + 1];
    memset(large, 'x', STATE_MAX);
    train(&t, large);
    expect_state(reader, large, 2);
    cluster_cli(&cluster, &said, "job show tiny");
    ck_assert_msg(strstr(said.out, "65536 bytes, at most 65536") != NULL, "%s", said.out);
    cairn_close(t.session); // a trainer that comes again begins with it
    t = attach(&cluster, "tiny", 0, 1, STATE_MAX);
    trainer_begin(t.job);
    expect_state(t.job, large, 2);
    cairn_close(t.session);
    cairn_close(session);
    cluster_stop(&cluster);
}

TEST(it_is_in_the_content_root_and_in_snapshots_on_any_number_of_shards)
{
    struct cluster one, three;
    struct cluster_said said;
    char root[128], other[128], id[128], path[CAIRN_SCRATCH_BYTES + 256];
    cluster_start(&one, 1, NULL);
    cluster_start(&three, 3, NULL);
    struct trainer a = attach(&one, "tiny", 0, 1, 100), b = attach(&three, "tiny", 0, 1, 100);
    train(&a, "alpha");
    train(&b, "beta");
    cluster_word(&one, root, "job digest -q tiny");
    cluster_word(&three, other, "job digest -q tiny");
    ck_assert_str_ne(root, other);
    train(&a, "gamma");
    train(&b, "gamma");
    cluster_word(&one, root, "job digest -q tiny");
    cluster_word(&three, other, "job digest -q tiny");
    ck_assert_str_eq(root, other);
    cluster_word(&one, id, "snapshot create -q tiny --wait");
    cluster_cli(&one, &said, "snapshot show tiny %s", id);
    const char *at = strstr(said.out, one.snapshots_path);
    ck_assert_ptr_nonnull(at);
    snprintf(path, sizeof path, "%.*s", (int)strcspn(at, "\n"), at);
    cluster_says(&three, 0, "", "snapshot restore --path %s --job twin --yes --allow-untrusted",
                 path);
    cluster_word(&three, other, "job digest -q twin");
    ck_assert_str_eq(root, other);
    cairn_close(b.session);
    b = attach(&three, "twin", 0, 1, 100);
    expect_state(b.job, "gamma", 2);
    train(&b, NULL); // gives none: then there is none
    expect_state(b.job, "", 3);
    cairn_close(a.session);
    cairn_close(b.session);
    cluster_stop(&one);
    cluster_stop(&three);
}

TEST(rank_0_gives_it_and_what_cannot_be_is_refused)
{
    struct cluster cluster;
    cluster_start(&cluster, 1, NULL);
    struct trainer t[2] = { attach(&cluster, "tiny", 0, 2, 4), attach(&cluster, "tiny", 1, 2, 4) };
    struct cairn_round rounds[2] = { trainer_begin(t[0].job), trainer_begin(t[1].job) };
    size_t bytes = 0;
    char small[2];
    fails(commit(&t[1], &rounds[1], "no", 2, 0), CAIRN_ERR_REFUSED, "this is rank 1");
    fails(commit(&t[0], &rounds[0], "12345", 5, 0), CAIRN_ERR_INVALID, "client_state_max = 4");
    fails(commit(&t[0], &rounds[0], NULL, 5, 0), CAIRN_ERR_INVALID, "client_state is NULL");
    for (int i = 0; i < 2; i++) tiny_push(t[i].job, &rounds[i], ELEMS, 1);
    fails(commit(&t[1], &rounds[1], NULL, 0, 1), CAIRN_ERR_TIMEOUT, "rank 0");
    good(commit(&t[0], &rounds[0], "1234", 4, CLUSTER_WAIT_MS));
    good(commit(&t[1], &rounds[1], NULL, 0, CLUSTER_WAIT_MS));
    fails(cairn_client_state(t[1].job, small, 2, CLUSTER_WAIT_MS, &bytes, NULL), CAIRN_ERR_INVALID,
          "4 bytes");
    ck_assert_uint_eq(bytes, 4);
    expect_state(t[1].job, "1234", 1);
    struct trainer none = attach(&cluster, "none", 0, 1, 0);
    const struct cairn_round round = trainer_begin(none.job);
    fails(commit(&none, &round, "1", 1, 0), CAIRN_ERR_REFUSED, "declare client_state_max");
    for (int i = 0; i < 2; i++) cairn_close(t[i].session);
    cairn_close(none.session);
    cluster_stop(&cluster);
}

SUITE(90);
