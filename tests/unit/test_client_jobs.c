/* Several jobs of one session, as an actor and a critic; and an evaluator beside a running job. */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

enum { STEPS = 12 };

static void open_rooms(void)
{
    toy_start(3, .seed = 10, .delay_max_ticks = 2);
    session = toy_session(&rooms, "trainer");
}

/* A job and the thread that trains it, until `steps` are done or a call fails. */
struct trainer {
    pthread_t thread;
    cairn_job *job;
    atomic_uint done;
    uint32_t steps, void_rounds;
    cairn_status status;
    char error[512];
    float values[TOY_ELEMS]; /* of every gradient of a step: on loan */
};

static cairn_status train_step(struct trainer *trainer)
{
    cairn_job *job = trainer->job;
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = cairn_round_begin(job, TOY_WAIT_MS, &round);
    for (uint32_t i = 0; status == CAIRN_OK && i < TOY_ELEMS; i++)
        trainer->values[i] = (float)(i % 17 + (uint32_t)round.step) / 16;
    for (int t = 0; status == CAIRN_OK && t < 4; t++)
        status = cairn_push(job, &round, 0, toy_tensors[t].name, NULL, TOY_F32(trainer->values),
                            NULL);
    return status != CAIRN_OK ? status
                              : cairn_commit(job, &round, 0, NULL, 0, TOY_WAIT_MS, &result);
}

static void *train(void *arg)
{
    struct trainer *t = arg;
    while (t->status == CAIRN_OK && atomic_load(&t->done) < t->steps) {
        t->status = train_step(t);
        if (t->status == CAIRN_OK) {
            atomic_fetch_add(&t->done, 1);
        } else if (t->status == CAIRN_ERR_EPOCH_CHANGED) {
            t->void_rounds++;
            t->status = CAIRN_OK;
        }
    }
    strncpy(t->error, t->status == CAIRN_OK ? "" : cairn_error(), sizeof t->error - 1);
    return NULL;
}

static void start(struct trainer *t, const char *name, uint32_t steps)
{
    *t = (struct trainer) { .job = toy_ready(session, name, TOY_SPEC()), .steps = steps };
    ck_assert_int_eq(pthread_create(&t->thread, NULL, train, t), 0);
}

static void await_steps(struct trainer *t, uint32_t steps)
{
    while (atomic_load(&t->done) < steps) sched_yield(); // bounded by the calls' own deadlines
}

static void end_well(struct trainer *t)
{
    pthread_join(t->thread, NULL);
    ck_assert_msg(t->status == CAIRN_OK, "%s", t->error);
    ck_assert_uint_eq(t->done, t->steps);
    ck_assert_uint_eq(t->void_rounds, 0);
}

static void read_all(cairn_job *job, struct cairn_version version, float values[TOY_VALUES])
{
    for (int t = 0; t < TOY_TENSORS; t++) {
        toy_fetch(job, version, t, "param", CAIRN_F32, values);
        values += toy_elems(t);
    }
}

TEST(two_jobs_of_a_session_train_at_once_and_as_they_would_alone)
{
    static float values[3][TOY_VALUES];
    const char *const names[] = { "actor", "critic", "alone" };
    static struct trainer trainers[3];
    for (int i = 0; i < 2; i++) start(&trainers[i], names[i], STEPS);
    for (int i = 0; i < 2; i++) end_well(&trainers[i]);
    start(&trainers[2], names[2], STEPS);
    end_well(&trainers[2]);
    for (int i = 0; i < 3; i++) {
        struct cairn_version version;
        good(cairn_version_wait(trainers[i].job, (struct cairn_version) { 0, 0 }, TOY_WAIT_MS,
                                &version));
        ck_assert_uint_eq(version.step, STEPS);
        read_all(trainers[i].job, version, values[i]);
        ck_assert_int_eq(memcmp(values[i], values[0], sizeof values[0]), 0);
    }
}

enum { JOBS_MAX = 64 };

TEST(more_jobs_than_a_session_may_have_are_refused_at_once)
{
    cairn_job *jobs[JOBS_MAX + 1];
    char name[16];
    for (int i = 0; i < JOBS_MAX; i++) {
        snprintf(name, sizeof name, "job%d", i);
        jobs[i] = toy_open(session, name, TOY_SPEC());
    }
    const uint64_t before_ns = uv_hrtime();
    fails(cairn_job_open(session, "more", TOY_SPEC(), CAIRN_WORKER, TOY_WAIT_MS, &jobs[JOBS_MAX]),
          CAIRN_ERR_REFUSED, "64 jobs are open");
    ck_assert_uint_lt(uv_hrtime() - before_ns, (uint64_t)TOY_WAIT_MS * 1000000 / 2);
    cairn_job_close(jobs[0]);
    toy_open(session, "job0", TOY_SPEC());
}

/* Members come and go, so it asks again; what it was told is what it says in the end. */
TEST(who_is_put_off_until_its_deadline_says_why)
{
    static struct rooms few;
    const struct cairn_fabric_mem_options fabric = { .seed = 11 };
    cairn *sessions[3];
    cairn_job *job;
    rooms_open_for(&few, 1, 1, &fabric);
    for (int i = 0; i < 3; i++) sessions[i] = toy_session(&few, "member");
    toy_open(sessions[0], "toy", TOY_SPEC());
    toy_open(sessions[1], "toy", NULL);
    fails(cairn_job_open(sessions[2], "toy", NULL, CAIRN_READER, 250, &job), CAIRN_ERR_TIMEOUT,
          "job toy has 2 members; raise round.workers_max");
    for (int i = 0; i < 3; i++) cairn_close(sessions[i]);
    rooms_close(&few);
}

TEST(a_job_that_is_closed_leaves_the_other_one_undisturbed)
{
    static struct trainer actor, critic;
    start(&actor, "actor", UINT32_MAX);
    start(&critic, "critic", STEPS);
    await_steps(&actor, 2);
    cairn_job_close(actor.job);
    pthread_join(actor.thread, NULL);
    ck_assert_msg(actor.status == CAIRN_ERR_CANCELED || actor.status == CAIRN_ERR_HANDLE, "%d: %s",
                  (int)actor.status, actor.error);
    end_well(&critic);
}

/* The coordinator names the job whose place is lost, and keeps the connection. */
TEST(a_job_that_is_fenced_leaves_the_other_one_undisturbed)
{
    static struct trainer actor, critic;
    start(&actor, "actor", UINT32_MAX);
    start(&critic, "critic", 4 * STEPS);
    await_steps(&actor, 2);
    await_steps(&critic, 2);
    cairn *other = toy_session(&rooms, "usurper");
    cairn_job *taken = toy_open(other, "actor", TOY_SPEC(.open_flags = CAIRN_OPEN_TAKEOVER));
    pthread_join(actor.thread, NULL);
    ck_assert_msg(actor.status == CAIRN_ERR_FENCED, "%d: %s", (int)actor.status, actor.error);
    ck_assert_msg(strstr(actor.error, "usurper attached as rank 0 of job actor") != NULL, "%s",
                  actor.error);
    end_well(&critic);
    good(cairn_init_done(taken, NULL, TOY_WAIT_MS));
    toy_step(taken, 1);
    cairn_job_close(actor.job); // and it may be opened again, which takes the place back
    cairn_job *again = toy_open(session, "actor", TOY_SPEC(.open_flags = CAIRN_OPEN_TAKEOVER));
    good(cairn_init_done(again, NULL, TOY_WAIT_MS));
    toy_step(again, 2);
    struct cairn_round round = { .struct_size = sizeof round };
    fails(cairn_round_begin(taken, TOY_WAIT_MS, &round), CAIRN_ERR_FENCED, "of job actor");
}

/* ---- an evaluator ---- */

/* One version, whole; CAIRN_ERR_VERSION_GONE: training went on twice meanwhile. */
static cairn_status read_version(cairn_job *job, struct cairn_version version,
                                 float values[TOY_VALUES])
{
    cairn_op *ops[TOY_TENSORS];
    cairn_status status = CAIRN_OK;
    for (int t = 0; t < TOY_TENSORS; t++) {
        const struct cairn_mem mem = toy_mem(values, t == 2 ? CAIRN_BF16 : CAIRN_F32);
        good(cairn_fetch(job, version, toy_tensors[t].name, NULL, NULL, &mem, &ops[t]));
        values += toy_elems(t);
    }
    for (int t = 0; t < TOY_TENSORS; t++) {
        const cairn_status waited = cairn_wait(ops[t], TOY_WAIT_MS);
        if (status == CAIRN_OK) status = waited;
    }
    return status;
}

TEST(an_evaluator_reads_whole_versions_while_training_goes_on)
{
    static float first[TOY_VALUES], second[TOY_VALUES];
    static struct trainer trainer;
    struct cairn_version version = { 0, 0 };
    cairn *reader = toy_session(&rooms, "evaluator");
    start(&trainer, "toy", 40);
    cairn_job *job = toy_open(reader, "toy", NULL);
    for (int whole = 0; whole < 5;) {
        good(cairn_version_wait(job, (struct cairn_version) { 0, 0 }, TOY_WAIT_MS, &version));
        cairn_status status = read_version(job, version, first);
        if (status == CAIRN_OK) {
            whole++;
            status = read_version(job, version, second); // it never changes
            if (status == CAIRN_OK) ck_assert_int_eq(memcmp(first, second, sizeof first), 0);
        }
        ck_assert_msg(status == CAIRN_OK || status == CAIRN_ERR_VERSION_GONE, "%d: %s", (int)status,
                      cairn_error());
    }
    end_well(&trainer);
}

TEST(a_slow_evaluator_is_told_to_begin_anew_and_can)
{
    static float values[TOY_VALUES];
    cairn_job *trained = toy_ready(session, "toy", TOY_SPEC());
    cairn *reader = toy_session(&rooms, "evaluator");
    cairn_job *job = toy_open(reader, "toy", NULL);
    struct cairn_version version;
    good(cairn_version_wait(job, (struct cairn_version) { 0, 0 }, TOY_WAIT_MS, &version));
    toy_step(trained, 1);
    good(read_version(job, version, values)); // the one before the newest is kept
    toy_step(trained, 2);
    fails(read_version(job, version, values), CAIRN_ERR_VERSION_GONE, "read all of it anew");
    good(cairn_version_wait(job, (struct cairn_version) { 0, 0 }, TOY_WAIT_MS, &version));
    ck_assert_uint_eq(version.step, 2);
    good(read_version(job, version, values));
}

enum { MANY = 2000, OPENINGS = 8, LONG_NAME_BYTES = 80 };

/* So many tensors that threads read them: of the coordinator, of the shards and of the client. */
static struct cairn_job_spec many_tensors(void)
{
    static struct cairn_tensor tensors[MANY];
    static char names[MANY][LONG_NAME_BYTES];
    struct cairn_job_spec spec = *TOY_SPEC();
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof names[i], "one.of.many.%060d", i);
        tensors[i] = (struct cairn_tensor) { .struct_size = sizeof *tensors,
                                             .name = names[i],
                                             .unit = "all",
                                             .rank = 1,
                                             .shape = { 3 },
                                             .init = { .kind = CAIRN_INIT_ONES } };
    }
    spec.tensors = tensors;
    spec.tensor_count = MANY;
    return spec;
}

/* Each is given up at another moment, or is quicker. */
TEST(a_large_job_that_is_given_up_while_it_is_read_disturbs_no_other_one)
{
    static struct trainer actor;
    const struct cairn_job_spec spec = many_tensors();
    cairn *beside = toy_session(&rooms, "beside");
    cairn_job *job;
    char name[16];
    start(&actor, "actor", 100);
    for (int i = 0; i < OPENINGS; i++) {
        snprintf(name, sizeof name, "large.%d", i);
        const cairn_status status = cairn_job_open(beside, name, &spec, CAIRN_WORKER, 1 + 8 * i,
                                                   &job);
        ck_assert_msg(status == CAIRN_OK || status == CAIRN_ERR_TIMEOUT, "%s", cairn_error());
        if (i % 2 == 0) {
            cairn_close(beside);
            beside = toy_session(&rooms, "beside");
        } else if (status == CAIRN_OK) {
            cairn_job_close(job);
        }
    }
    job = toy_open(beside, "large", &spec);
    good(cairn_init_done(job, NULL, TOY_WAIT_MS));
    toy_open(session, "large", NULL);
    end_well(&actor);
}

SUITE(60, open_rooms, toy_stop);
