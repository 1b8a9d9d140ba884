/* What a caller mixes up is told at the call, and changes nothing. A whole cluster in this process. */
#include <cairn.h>
#include <check.h>

#include "client/base.h"
#include "client/job.h"
#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

enum { ELEMS = 30, SHARDS = 2, WAIT_MS = 20000 };

static cairn_job *actor, *critic;
static float values[ELEMS], copy[ELEMS];

static cairn_job *open_job(const char *name)
{
    static const struct cairn_tensor tensors[] = {
        { .struct_size = sizeof *tensors,
          .name = "w",
          .rank = 1,
          .shape = { ELEMS },
          .init = { .kind = CAIRN_INIT_ZEROS } },
        { .struct_size = sizeof *tensors,
          .name = "mean",
          .rank = 1,
          .shape = { ELEMS },
          .kind = CAIRN_BUFFER,
          .init = { .kind = CAIRN_INIT_ZEROS } },
    };
    struct cairn_group group = CAIRN_GROUP_INIT;
    group.optimizer = "sgd";
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = tensors,
                                         .tensor_count = 2,
                                         .groups = &group,
                                         .group_count = 1 };
    cairn_job *job;
    good(cairn_job_open(session, name, &spec, CAIRN_WORKER, WAIT_MS, &job));
    good(cairn_init_done(job, NULL, WAIT_MS));
    return job;
}

static void set_up(void)
{
    toy_start(SHARDS, .seed = 9);
    session = toy_session(&rooms, "trainer");
    actor = open_job("actor");
    critic = open_job("critic");
    for (int i = 0; i < ELEMS; i++) values[i] = (float)i;
}

TEST(a_round_of_another_job_is_refused)
{
    struct cairn_round ours = { .struct_size = sizeof ours }, theirs = ours;
    struct cairn_result result = { .struct_size = sizeof result };
    good(cairn_round_begin(actor, WAIT_MS, &ours));
    good(cairn_round_begin(critic, WAIT_MS, &theirs));
    ck_assert_uint_eq(ours.round, theirs.round); // nothing else tells them apart
    fails(cairn_push(actor, &theirs, 0, "w", NULL, TOY_F32(values), NULL), CAIRN_ERR_STALE,
          "actor");
    fails(cairn_micro_end(actor, &theirs, 0), CAIRN_ERR_STALE, "actor");
    fails(cairn_commit(critic, &ours, 1, NULL, 0, WAIT_MS, &result), CAIRN_ERR_STALE, "critic");
    good(cairn_push(actor, &ours, 0, "w", NULL, TOY_F32(values), NULL));
    good(cairn_commit(actor, &ours, 1, NULL, 0, WAIT_MS, &result));
    good(cairn_commit(critic, &theirs, 1, NULL, 0, WAIT_MS, &result));
}

TEST(an_argument_that_is_wrong_is_named_with_its_value)
{
    struct cairn_version version = { 0, 0 };
    char id[64];
    cairn_job *job;
    cairn_op *op;
    void *memory;
    fails(cairn_version_wait(actor, version, -7, &version), CAIRN_ERR_INVALID,
          "timeout_ms is -7; give 0 or more");
    fails(cairn_lease(actor, version, 1000, 0, NULL), CAIRN_ERR_INVALID, "out is NULL");
    fails(cairn_lease(actor, version, -2, 0, &version), CAIRN_ERR_INVALID, "ttl_ms is -2");
    fails(cairn_snapshot(actor, 6, 0, id), CAIRN_ERR_INVALID, "flags is 6");
    fails(cairn_job_open(session, "a b", NULL, CAIRN_READER, 0, &job), CAIRN_ERR_INVALID,
          "name is \"a b\"; allowed: 1 to 255 bytes of [A-Za-z0-9._-]");
    fails(cairn_job_open(session, "a", NULL, CAIRN_READER, -1, &job), CAIRN_ERR_INVALID,
          "timeout_ms is -1");
    ck_assert_int_eq(setenv("CAIRN_CUDA_DRIVER", "/nonexistent/libcuda.so.1", 1), 0);
    fails(cairn_alloc(session, 8, CAIRN_GPU(0), &memory), CAIRN_ERR_UNSUPPORTED,
          "no GPU can be used: no CUDA driver: /nonexistent");
    fails(cairn_fetch(actor, version, "wieght", NULL, NULL, TOY_F32(copy), &op),
          CAIRN_ERR_NOT_FOUND, "job actor has no tensor wieght; cairn_job_tensor lists its 2");
    fails(cairn_fetch(actor, version, "w", "momentum", NULL, TOY_F32(copy), &op),
          CAIRN_ERR_NOT_FOUND, "no plane \"momentum\"; planes are \"wire\", \"param\"");
}

TEST(a_plane_that_a_tensor_has_not_is_refused_at_the_call)
{
    const struct cairn_mem mem = toy_mem(copy, CAIRN_F32);
    struct cairn_version version = { 0, 0 };
    cairn_op *op;
    good(cairn_version_wait(actor, version, WAIT_MS, &version));
    fails(cairn_fetch(actor, version, "mean", "exp_avg", NULL, &mem, &op), CAIRN_ERR_NOT_FOUND,
          "mean is a buffer");
    fails(cairn_fetch(actor, version, "w", "exp_avg", NULL, &mem, &op), CAIRN_ERR_NOT_FOUND,
          "optimizer sgd of its group default");
    good(cairn_write_begin(actor, WAIT_MS));
    fails(cairn_put(actor, "mean", "exp_avg_sq", NULL, &mem, &op), CAIRN_ERR_NOT_FOUND,
          "exp_avg_sq");
    good(cairn_put(actor, "mean", "param", NULL, &mem, NULL));
    good(cairn_write_end(actor, WAIT_MS, &version));
}

/* As if a shard had refused a put of the write. */
static void fail_a_put(cairn_job *handle)
{
    struct job *job = handle_get(CAIRN_HANDLE_JOB, handle);
    pthread_mutex_lock(&job->session->lock);
    job->puts.status = CAIRN_ERR_NO_MEMORY;
    sentence_set(&job->puts.why, "the shard is full");
    pthread_mutex_unlock(&job->session->lock);
    handle_put(handle);
}

TEST(a_write_may_follow_one_that_failed_at_once)
{
    struct cairn_version version;
    for (int i = 0; i < 5; i++) {
        good(cairn_write_begin(actor, WAIT_MS));
        good(cairn_put(actor, "w", "param", NULL, TOY_F32(values), NULL));
        fail_a_put(actor);
        fails(cairn_write_end(actor, WAIT_MS, &version), CAIRN_ERR_NO_MEMORY,
              "nothing was written");
    }
    good(cairn_write_begin(actor, WAIT_MS));
    good(cairn_write_end(actor, WAIT_MS, &version));
    struct cairn_round round = { .struct_size = sizeof round };
    good(cairn_round_begin(actor, WAIT_MS, &round));
}

TEST(a_job_is_described_with_the_clip_norm_that_it_has)
{
    const struct cairn_amend amend = { .struct_size = sizeof amend,
                                       .clip_norm = 0.5,
                                       .set_clip_norm = true };
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_job_info info = { .struct_size = sizeof info };
    struct job *job = handle_get(CAIRN_HANDLE_JOB, actor);
    good(cairn_job_amend(actor, &amend, WAIT_MS));
    good(cairn_job_describe(actor, &info));
    ck_assert(info.clip_norm == 0.5);
    pthread_mutex_lock(&job->session->lock);
    job->known.clip_norm = 0; // as if another worker had amended it
    pthread_mutex_unlock(&job->session->lock);
    handle_put(actor);
    good(cairn_round_begin(actor, WAIT_MS, &round));
    good(cairn_job_describe(actor, &info));
    ck_assert(info.clip_norm == 0.5);
}

TEST(a_name_with_control_characters_is_refused_at_once)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts,
                                     .endpoint = rooms.address,
                                     .name = "two\nlines" };
    cairn *another;
    fails(cairn_open(&opts, &another), CAIRN_ERR_INVALID, "opts.name");
}

SUITE(60, set_up, toy_stop);
