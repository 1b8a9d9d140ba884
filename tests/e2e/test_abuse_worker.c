/* What workers do wrong, and what happens to them: each is told, and training goes on. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "tests/e2e/abuse_job.h"
#include "tests/support/now.h"
#include "tests/e2e/scene.h"

static void set_up(void)
{
    start(2, .coordinator_set = SETTINGS("lease.heartbeat=100ms", "lease.timeout=2s"));
    session = abuse_session(&cluster, "worker zero");
}

/* After all the mischief the cluster stops cleanly. */
static void tear_down(void)
{
    stop();
}

static void open_tiny(void)
{
    const struct cairn_job_spec spec = abuse_spec(0);
    job = abuse_open(session, &spec);
    abuse_train(job, 2);
}

/* ---- specs ---- */

static void check_refused(struct cairn_job_spec spec, cairn_status status, const char *word,
                          const char *other)
{
    cairn *stranger = abuse_session(&cluster, "stranger");
    cairn_job *none = NULL;
    spec.rank = 1;
    ck_assert_int_eq(cairn_job_open(stranger, "tiny", &spec, CAIRN_WORKER, ABUSE_WAIT_MS, &none),
                     status);
    abuse_says(cairn_error(), word);
    abuse_says(cairn_error(), other);
    ck_assert_ptr_null(none);
    cairn_close(stranger);
}

TEST(a_worker_of_another_model_is_told_the_differences_and_training_goes_on)
{
    open_tiny();
    struct cairn_job_spec spec = abuse_spec(1);
    struct cairn_tensor tensors[2];
    memcpy(tensors, spec.tensors, sizeof tensors);
    spec.tensors = tensors;
    tensors[0].name = "weight";
    check_refused(spec, CAIRN_ERR_MISMATCH, "weight", "w");
    tensors[0].name = "w";
    tensors[1].shape[0] = 11;
    check_refused(spec, CAIRN_ERR_MISMATCH, "b", "11");
    tensors[1].shape[0] = 10;
    tensors[0].wire = CAIRN_BF16;
    check_refused(spec, CAIRN_ERR_MISMATCH, "w", "bf16");
    ck_assert_uint_eq(abuse_train(job, 1), 3);
}

TEST(a_spec_that_makes_no_sense_is_refused_before_it_is_sent)
{
    struct cairn_job_spec spec = abuse_spec(0);
    struct cairn_group group = spec.groups[0];
    spec.groups = &group;
    group.optimizer = "adamx";
    check_refused(spec, CAIRN_ERR_UNSUPPORTED, "adamx", "adamw");
    group.optimizer = "adamw";
    group.lr = NAN;
    check_refused(spec, CAIRN_ERR_INVALID, "lr", "default");
    group.lr = 1e-3;
    struct cairn_tensor tensor = spec.tensors[0];
    spec.tensors = &tensor;
    spec.tensor_count = 1;
    tensor.rank = 9;
    check_refused(spec, CAIRN_ERR_INVALID, "9 dimensions", "8");
}

TEST(a_wrong_buffer_is_refused_and_the_round_goes_on)
{
    open_tiny();
    static float data[ABUSE_ELEMS];
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_mem mem = trainer_mem(data, CAIRN_F16);
    const struct cairn_box row = { .rank = 2, .extent = { 1, 256 } };
    good(cairn_round_begin(job, ABUSE_WAIT_MS, &round));
    ck_assert_int_eq(cairn_push(job, &round, 0, "w", NULL, &mem, NULL), CAIRN_ERR_INVALID);
    abuse_says(cairn_error(), "CAIRN_F32 or CAIRN_BF16");
    mem.dtype = CAIRN_F32;
    ck_assert_int_eq(cairn_push(job, &round, 0, "nosuch", NULL, &mem, NULL), CAIRN_ERR_NOT_FOUND);
    abuse_says(cairn_error(), "nosuch");
    ck_assert_int_eq(cairn_push(job, &round, 0, "w", &row, &mem, NULL), CAIRN_ERR_INVALID);
    abuse_says(cairn_error(), "holds");
    ck_assert_int_eq(cairn_push(job, &round, 3, "w", NULL, &mem, NULL), CAIRN_ERR_INVALID);
    abuse_says(cairn_error(), "micro-batch 3");
    round.round += 7;
    ck_assert_int_eq(cairn_push(job, &round, 0, "w", NULL, &mem, NULL), CAIRN_ERR_STALE);
    round.round -= 7;
    good(cairn_push(job, &round, 0, "w", NULL, &mem, NULL));
    const struct cairn_result result = trainer_commit(job, &round, 0);
    ck_assert_uint_eq(result.version.step, 3);
}

/* ---- the same rank twice ---- */

TEST(a_second_worker_of_a_rank_fences_the_older_one)
{
    open_tiny();
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    good(cairn_round_begin(job, ABUSE_WAIT_MS, &round));
    cairn *second = abuse_session(&cluster, "the newer one");
    struct cairn_job_spec spec = abuse_spec(0);
    spec.open_flags = CAIRN_OPEN_TAKEOVER;
    cairn_job *newer = abuse_open(second, &spec);
    ck_assert_uint_eq(abuse_train(newer, 2), 4);
    ck_assert_int_eq(cairn_commit(job, &round, 0, NULL, 0, ABUSE_WAIT_MS, &result),
                     CAIRN_ERR_FENCED);
    abuse_says(cairn_error(), "the newer one");
    abuse_says(cairn_error(), "rank 0");
    ck_assert_int_eq(cairn_round_begin(job, ABUSE_WAIT_MS, &round), CAIRN_ERR_FENCED);
    ck_assert_uint_eq(abuse_train(newer, 1), 5);
    cairn_close(second);
}

/* ---- gradients that are not finite ---- */

static void check_nan(cairn_nonfinite policy)
{
    struct cairn_job_spec spec = abuse_spec(0);
    struct cairn_result result;
    spec.on_nonfinite = policy;
    job = abuse_open(session, &spec);
    abuse_train(job, 2);
    float *before = abuse_parameters(job);
    const cairn_status status = abuse_round(job, NAN, ABUSE_WAIT_MS, &result);
    if (policy == CAIRN_NONFINITE_SKIP) {
        ck_assert_int_eq(status, CAIRN_OK);
        ck_assert(!result.applied);
        ck_assert(!result.finite);
    } else {
        ck_assert_int_eq(status, CAIRN_ERR_NONFINITE);
        abuse_says(cairn_error(), "not finite");
    }
    ck_assert_uint_eq(abuse_version(job).step, 2);
    float *after = abuse_parameters(job);
    ck_assert_mem_eq(before, after, ABUSE_ELEMS * sizeof *before);
    free(before);
    free(after);
    ck_assert_uint_eq(abuse_train(job, 1), 3);
}

TEST(a_round_with_a_nan_is_skipped_and_changes_no_bit)
{
    check_nan(CAIRN_NONFINITE_SKIP);
}

TEST(a_job_that_fails_on_a_nan_says_so_and_changes_no_bit)
{
    check_nan(CAIRN_NONFINITE_FAIL);
}

/* ---- who is awaited ---- */

TEST(waiting_for_workers_says_how_many)
{
    struct cairn_job_spec spec = abuse_spec(0);
    struct cairn_result result;
    spec.workers_min = 2;
    job = abuse_open(session, &spec);
    ck_assert_int_eq(abuse_round(job, 0, 300, &result), CAIRN_ERR_TIMEOUT);
    abuse_says(cairn_error(), "worker");
    abuse_says(cairn_error(), "1");
}

TEST(a_worker_that_does_not_commit_is_named)
{
    open_tiny();
    cairn *other = abuse_session(&cluster, "the sleepy one");
    const struct cairn_job_spec spec = abuse_spec(1);
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_job *sleepy = abuse_open(other, &spec);
    const struct cairn_round round = trainer_begin(job);
    ck_assert_uint_eq(round.world, 2);
    ck_assert_int_eq(cairn_commit(job, &round, 0, NULL, 0, 300, &result), CAIRN_ERR_TIMEOUT);
    abuse_says(cairn_error(), "the sleepy one");
    cairn_job_close(sleepy); // the round is void, and goes on without it
    abuse_train(job, 1);
    cairn_close(other);
}

TEST(a_stopped_shard_is_named_and_training_goes_on_when_it_wakes)
{
    open_tiny();
    struct cairn_result result;
    kill(cluster.shards[1], SIGSTOP);
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < 20 && status != CAIRN_ERR_TIMEOUT; i++)
        status = abuse_round(job, 0.5f, 3500, &result); // longer than a lease
    ck_assert_int_eq(status, CAIRN_ERR_TIMEOUT);
    abuse_says(cairn_error(), "shard-1");
    kill(cluster.shards[1], SIGCONT);
    abuse_train(job, 2);
}

TEST(an_absent_coordinator_is_named_and_training_goes_on_when_it_is_back)
{
    open_tiny();
    struct cairn_result result;
    kill_coordinator();
    ck_assert_int_eq(abuse_round(job, 0.5f, 500, &result), CAIRN_ERR_TIMEOUT);
    abuse_says(cairn_error(), "coordinator");
    abuse_says(cairn_error(), cluster.address);
    restart_coordinator();
    abuse_train(job, 2);
}

/* The restore command that the error names, with the id of the one snapshot that there is. */
static void restore_tiny(void)
{
    ask("snapshot list tiny --no-headers");
    char id[64] = "";
    ck_assert_msg(sscanf(said.out, "tiny %63s", id) == 1, "%s", said.out);
    says(0, "", "snapshot restore tiny %s --yes", id);
}

TEST(a_job_whose_shard_lost_its_part_says_how_to_restore_and_is_restored)
{
    open_tiny();
    struct cairn_result result;
    const struct cairn_job_spec spec = abuse_spec(0);
    says(0, "", "snapshot create tiny --wait");
    abuse_train(job, 1);
    kill_shard(1);
    cairn_status status;
    do // the round may have been begun before the shard is missed
        status = abuse_round(job, 0.5f, 1000, &result);
    while (status == CAIRN_ERR_EPOCH_CHANGED);
    ck_assert_int_eq(status, CAIRN_ERR_TIMEOUT);
    abuse_says(cairn_error(), "shard-1");
    restart_shard(1);
    ck_assert_int_eq(abuse_round(job, 0.5f, ABUSE_WAIT_MS, &result), CAIRN_ERR_JOB_LOST);
    abuse_says(cairn_error(), "shard-1");
    abuse_says(cairn_error(), "cairn snapshot restore tiny");
    cairn_job_close(job);
    restore_tiny();
    job = abuse_open(session, &spec);
    ck_assert_uint_eq(abuse_version(job).generation, 2);
    ck_assert_uint_eq(abuse_train(job, 1), 3);
}

/* ---- handles ---- */

static void *commit_and_wait(void *arg)
{
    struct cairn_result result = { .struct_size = sizeof result };
    const cairn_status status = cairn_commit(job, arg, 0, NULL, 0, ABUSE_WAIT_MS, &result);
    return (void *)(intptr_t)status;
}

TEST(a_job_closed_while_a_commit_waits_ends_the_commit)
{
    open_tiny();
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    good(cairn_round_begin(job, ABUSE_WAIT_MS, &round));
    kill(cluster.shards[0], SIGSTOP); // so that no commit can end
    kill(cluster.shards[1], SIGSTOP);
    ck_assert_int_eq(cairn_commit(job, &round, 0, NULL, 0, 100, &result), CAIRN_ERR_TIMEOUT);
    pthread_t thread;
    void *status = NULL;
    ck_assert_int_eq(pthread_create(&thread, NULL, commit_and_wait, &round), 0);
    const int64_t before_ms = now_ms();
    cairn_job_close(job);
    pthread_join(thread, &status);
    ck_assert_int_lt(now_ms() - before_ms, 3000);
    ck_assert_ptr_nonnull(status);
    kill(cluster.shards[0], SIGCONT);
    kill(cluster.shards[1], SIGCONT);
    ck_assert_int_eq(cairn_round_begin(job, 100, &round), CAIRN_ERR_HANDLE);
}

TEST(a_session_closed_with_operations_in_flight_is_closed_within_two_seconds)
{
    open_tiny();
    static float data[ABUSE_ELEMS];
    const struct cairn_mem mem = trainer_mem(data, CAIRN_F32);
    cairn_op *op = NULL;
    const struct cairn_version version = abuse_version(job);
    kill(cluster.shards[0], SIGSTOP);
    kill(cluster.shards[1], SIGSTOP);
    good(cairn_fetch(job, version, "w", "param", NULL, &mem, &op));
    ck_assert_int_eq(cairn_wait(op, 50), CAIRN_ERR_TIMEOUT);
    abuse_says(cairn_error(), "tiny");
    const int64_t before_ms = now_ms();
    cairn_close(session);
    ck_assert_int_lt(now_ms() - before_ms, 2500);
    ck_assert_int_ne(cairn_wait(op, 100), CAIRN_OK);
    kill(cluster.shards[0], SIGCONT);
    kill(cluster.shards[1], SIGCONT);
}

SUITE(40, set_up, tear_down);
