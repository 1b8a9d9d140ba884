/* What workers do wrong, and what happens to them: each is told, and training goes on. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "proto/base/text.h"
#include "tests/support/now.h"
#include "tests/e2e/scene.h"

enum { ROWS = 512, COLUMNS = 256, ELEMS = ROWS * COLUMNS, WAIT_MS = 15000 };

/* Large enough that two shards have a part of it. */
static const struct cairn_tensor model[] = {
    { .struct_size = sizeof *model,
      .name = "w",
      .rank = 2,
      .shape = { ROWS, COLUMNS },
      .init.kind = CAIRN_INIT_ZEROS },
    { .struct_size = sizeof *model,
      .name = "b",
      .rank = 1,
      .shape = { 10 },
      .init.kind = CAIRN_INIT_ZEROS },
};
#define SPEC(...) (struct cairn_job_spec) TRAINER_SPEC(model, 2, __VA_ARGS__)

static void set_up(void)
{
    start(2, .coordinator_set = SETTINGS("lease.heartbeat=100ms", "lease.timeout=2s"));
    session = session_named("worker zero");
}

static void open_tiny(void)
{
    join_spec("tiny", &SPEC(.rank = 0));
    train_pushing(0.5f, 2);
}

/* One more worker, of that rank and name. */
static cairn_job *join_beside(const char *name, struct cairn_job_spec spec, cairn **session_out)
{
    *session_out = session_named(name);
    return trainer_ready(*session_out, "tiny", &spec);
}

/* A round of the job with that gradient; *out only on CAIRN_OK. */
static cairn_status try_round(float value, int timeout_ms, struct cairn_result *out)
{
    static float gradient[ELEMS];
    const struct cairn_mem mem = trainer_mem(gradient, CAIRN_F32);
    struct cairn_round round = { .struct_size = sizeof round };
    out->struct_size = sizeof *out;
    for (size_t i = 0; i < ELEMS; i++) gradient[i] = value;
    cairn_status status = cairn_round_begin(job, timeout_ms, &round);
    for (int t = 0; t < 2 && status == CAIRN_OK; t++)
        status = cairn_push(job, &round, 0, model[t].name, NULL, &mem, NULL);
    return status == CAIRN_OK ? cairn_commit(job, &round, 0, NULL, 0, timeout_ms, out) : status;
}

static uint64_t train_newer(cairn_job *newer, int rounds)
{
    cairn_job *older = job;
    job = newer;
    const uint64_t step = train_pushing(0.5f, rounds);
    job = older;
    return step;
}

/* ---- specs ---- */

static void check_refused(struct cairn_job_spec spec, cairn_status status, const char *word,
                          const char *other)
{
    cairn *stranger = session_named("stranger");
    cairn_job *none = NULL;
    spec.rank = 1;
    fails(cairn_job_open(stranger, "tiny", &spec, CAIRN_WORKER, WAIT_MS, &none), status, word);
    expect_error(other);
    ck_assert_ptr_null(none);
    cairn_close(stranger);
}

TEST(a_worker_of_another_model_is_told_the_differences_and_training_goes_on)
{
    open_tiny();
    struct cairn_job_spec spec = SPEC(.rank = 1);
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
    ck_assert_uint_eq(train_pushing(0.5f, 1), 3);
}

TEST(a_worker_of_another_initial_state_hears_how_far_the_job_is_and_so_does_the_log)
{
    struct cairn_job_spec spec = SPEC(.rank = 1);
    struct cairn_tensor tensors[2];
    memcpy(tensors, spec.tensors, sizeof tensors);
    spec.tensors = tensors;
    tensors[0].init = (struct cairn_init) { .kind = CAIRN_INIT_NORMAL, .b = 0.02, .seed = 9 };
    open_tiny();
    check_refused(spec, CAIRN_ERR_MISMATCH,
                  "job tiny, which is at step 2 and was made by worker worker zero, differs",
                  "seed 9");
    ck_assert_int_eq(logged("coordinator.log", "level=warn"), 1);
    ck_assert_int_eq(logged("coordinator.log", "refused to open job tiny for worker stranger"), 1);
}

/* ---- what a trainer hears of a job that is there ---- */

static struct sentence heard;

static bool hear(void *context, const char *name, const char *text, int paused_ms)
{
    (void)context;
    (void)paused_ms;
    sentence_set(&heard, "%s: %s", name, text);
    return true;
}

static cairn_job *open_hearing(const struct cairn_job_spec *spec, cairn **session_out)
{
    const struct cairn_opts opts = {
        .struct_size = sizeof opts, .endpoint = cluster.address, .name = "later", .on_wait = hear
    };
    cairn_job *opened;
    heard.text[0] = '\0';
    good(cairn_open(&opts, session_out));
    good(cairn_job_open(*session_out, "tiny", spec, CAIRN_WORKER, WAIT_MS, &opened));
    return opened;
}

/* The job has its state already, so nothing is put. */
static void bring(float *values, cairn_status status)
{
    cairn *later;
    struct cairn_tensor tensors[2];
    struct cairn_job_spec spec = SPEC(.rank = 0);
    memcpy(tensors, model, sizeof tensors);
    for (int t = 0; t < 2; t++) tensors[t].init.kind = 0;
    spec.tensors = tensors;
    cairn_job *opened = open_hearing(&spec, &later);
    for (int t = 0; t < 2; t++) {
        const struct cairn_mem mem = trainer_mem(values, CAIRN_F32);
        ck_assert_int_eq(cairn_put(opened, tensors[t].name, "param", NULL, &mem, NULL), status);
    }
    for (int i = 0; i < 2; i++) good(cairn_init_done(opened, NULL, WAIT_MS));
    if (status == CAIRN_OK) {
        job = opened;
        train_pushing(0.5f, 2);
    }
    cairn_close(later);
}

TEST(a_worker_that_brings_other_values_hears_the_jobs_step_and_so_does_the_log)
{
    static float zeros[ELEMS], others[ELEMS] = { 1 };
    bring(zeros, CAIRN_OK);
    ck_assert_str_eq(heard.text, "");
    for (int i = 1; i <= 2; i++) {
        bring(zeros, CAIRN_ERR_EXISTS);
        ck_assert_str_eq(heard.text, "");
        bring(others, CAIRN_ERR_EXISTS);
        ck_assert_msg(strstr(heard.text, "tiny: it is at step 2, and began with another initial "
                                         "state than this worker brings") != NULL,
                      "%s", heard.text);
        ck_assert_int_eq(logged("coordinator.log", "worker later opens job tiny: it is at step 2"),
                         i);
        restart_coordinator(); // the store has the digest
    }
}

TEST(a_worker_of_a_former_spec_hears_what_was_changed_and_so_does_the_log)
{
    cairn *later;
    open_tiny();
    says(0, "", "job amend tiny --clip-norm 3 --workers 1:2");
    cairn_job *opened = open_hearing(&SPEC(.rank = 1), &later);
    ck_assert_msg(strstr(heard.text, "tiny: it is at step 2, and was changed since") != NULL &&
                      strstr(heard.text, "clip_norm") != NULL,
                  "%s", heard.text);
    ck_assert_int_eq(logged("coordinator.log", "worker later opens job tiny by a former spec"), 1);
    ck_assert_int_gt(logged("coordinator.log", "level=warn"), 0);
    cairn_job_close(opened);
    cairn_close(later);
}

TEST(a_spec_that_makes_no_sense_is_refused_before_it_is_sent)
{
    struct cairn_job_spec spec = SPEC(.rank = 0);
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
    static float data[ELEMS];
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_mem mem = trainer_mem(data, CAIRN_F16);
    const struct cairn_box row = { .rank = 2, .extent = { 1, 256 } };
    good(cairn_round_begin(job, WAIT_MS, &round));
    fails(cairn_push(job, &round, 0, "w", NULL, &mem, NULL), CAIRN_ERR_INVALID,
          "CAIRN_F32 or CAIRN_BF16");
    mem.dtype = CAIRN_F32;
    fails(cairn_push(job, &round, 0, "nosuch", NULL, &mem, NULL), CAIRN_ERR_NOT_FOUND, "nosuch");
    fails(cairn_push(job, &round, 0, "w", &row, &mem, NULL), CAIRN_ERR_INVALID, "holds");
    fails(cairn_push(job, &round, 3, "w", NULL, &mem, NULL), CAIRN_ERR_INVALID, "micro-batch 3");
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
    good(cairn_round_begin(job, WAIT_MS, &round));
    cairn *second;
    cairn_job *newer = join_beside("the newer one", SPEC(.open_flags = CAIRN_OPEN_TAKEOVER),
                                   &second);
    ck_assert_uint_eq(train_newer(newer, 2), 4);
    fails(cairn_commit(job, &round, 0, NULL, 0, WAIT_MS, &result), CAIRN_ERR_FENCED,
          "the newer one");
    expect_error("rank 0");
    ck_assert_int_eq(cairn_round_begin(job, WAIT_MS, &round), CAIRN_ERR_FENCED);
    ck_assert_uint_eq(train_newer(newer, 1), 5);
    cairn_close(second);
}

/* ---- gradients that are not finite ---- */

static void check_nan(cairn_nonfinite policy)
{
    static float before[ELEMS], after[ELEMS];
    struct cairn_result result;
    join_spec("tiny", &SPEC(.on_nonfinite = policy));
    train_pushing(0.5f, 2);
    trainer_fetch(job, newest(job), "w", "param", CAIRN_F32, before);
    const cairn_status status = try_round(NAN, WAIT_MS, &result);
    if (policy == CAIRN_NONFINITE_SKIP) {
        ck_assert_int_eq(status, CAIRN_OK);
        ck_assert(!result.applied);
        ck_assert(!result.finite);
    } else {
        ck_assert_int_eq(status, CAIRN_ERR_NONFINITE);
        expect_error("not finite");
    }
    ck_assert_uint_eq(newest(job).step, 2);
    trainer_fetch(job, newest(job), "w", "param", CAIRN_F32, after);
    ck_assert_mem_eq(before, after, sizeof before);
    ck_assert_uint_eq(train_pushing(0.5f, 1), 3);
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
    struct cairn_result result;
    join_spec("tiny", &SPEC(.workers_min = 2));
    fails(try_round(0, 300, &result), CAIRN_ERR_TIMEOUT, "worker");
    expect_error("1");
}

TEST(a_worker_that_does_not_commit_is_named)
{
    open_tiny();
    cairn *other;
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_job *sleepy = join_beside("the sleepy one", SPEC(.rank = 1), &other);
    const struct cairn_round round = trainer_begin(job);
    ck_assert_uint_eq(round.world, 2);
    fails(cairn_commit(job, &round, 0, NULL, 0, 300, &result), CAIRN_ERR_TIMEOUT, "the sleepy one");
    cairn_job_close(sleepy); // the round is void, and goes on without it
    train_pushing(0.5f, 1);
    cairn_close(other);
}

TEST(a_stopped_shard_is_named_and_training_goes_on_when_it_wakes)
{
    open_tiny();
    struct cairn_result result;
    cluster_freeze(cluster.shards[1]);
    cairn_status status = CAIRN_OK;
    for (int i = 0; i < 20 && status != CAIRN_ERR_TIMEOUT; i++)
        status = try_round(0.5f, 3500, &result); // longer than a lease
    fails(status, CAIRN_ERR_TIMEOUT, "shard-1");
    kill(cluster.shards[1], SIGCONT);
    train_pushing(0.5f, 2);
}

TEST(an_absent_coordinator_is_named_and_training_goes_on_when_it_is_back)
{
    open_tiny();
    struct cairn_result result;
    kill_coordinator();
    fails(try_round(0.5f, 500, &result), CAIRN_ERR_TIMEOUT, "coordinator");
    expect_error(cluster.address);
    restart_coordinator();
    train_pushing(0.5f, 2);
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
    says(0, "", "snapshot create tiny --wait");
    train_pushing(0.5f, 1);
    kill_shard(1);
    cairn_status status;
    do // the round may have been begun before the shard is missed
        status = try_round(0.5f, 1000, &result);
    while (status == CAIRN_ERR_EPOCH_CHANGED);
    fails(status, CAIRN_ERR_TIMEOUT, "shard-1");
    restart_shard(1);
    fails(try_round(0.5f, WAIT_MS, &result), CAIRN_ERR_JOB_LOST, "shard-1");
    expect_error("cairn snapshot restore tiny");
    cairn_job_close(job);
    restore_tiny();
    join_spec("tiny", &SPEC(.rank = 0));
    ck_assert_uint_eq(newest(job).generation, 2);
    ck_assert_uint_eq(train_pushing(0.5f, 1), 3);
}

/* ---- handles ---- */

static void *commit_and_wait(void *arg)
{
    struct cairn_result result = { .struct_size = sizeof result };
    const cairn_status status = cairn_commit(job, arg, 0, NULL, 0, WAIT_MS, &result);
    return (void *)(intptr_t)status;
}

TEST(a_job_closed_while_a_commit_waits_ends_the_commit)
{
    open_tiny();
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    good(cairn_round_begin(job, WAIT_MS, &round));
    cluster_freeze(cluster.shards[0]); // so that no commit can end
    cluster_freeze(cluster.shards[1]);
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
    static float data[ELEMS];
    const struct cairn_mem mem = trainer_mem(data, CAIRN_F32);
    cairn_op *op = NULL;
    const struct cairn_version version = newest(job);
    cluster_freeze(cluster.shards[0]);
    cluster_freeze(cluster.shards[1]);
    good(cairn_fetch(job, version, "w", "param", NULL, &mem, &op));
    fails(cairn_wait(op, 50), CAIRN_ERR_TIMEOUT, "tiny");
    const int64_t before_ms = now_ms();
    cairn_close(session);
    ck_assert_int_lt(now_ms() - before_ms, 2500);
    ck_assert_int_ne(cairn_wait(op, 100), CAIRN_OK);
    kill(cluster.shards[0], SIGCONT);
    kill(cluster.shards[1], SIGCONT);
}

SUITE(40, set_up, stop);
