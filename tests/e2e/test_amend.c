/* Amendments that change the tensors of a job, on real daemons, held against amend_model.h. */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "tests/e2e/amend_model.h"
#include "tests/e2e/scene.h"

enum { END_STEP = 10, MORE_STEP = 13 };

/* A worker: a thread of its own, or the test's. */
struct worker {
    const char *address;
    uint32_t rank;
    uint64_t until_step;
    bool amends;       /* at AMEND_STEP */
    bool after;        /* its spec is the amended one */
    uint32_t reopened; /* because it was fenced */
    cairn *session;
    cairn_job *job;
    pthread_t thread;
};

static void open_job(struct worker *w)
{
    struct cairn_tensor tensors[AMEND_TENSORS];
    const struct cairn_job_spec spec = amend_spec(tensors, w->rank, w->after);
    if (w->session == NULL) w->session = trainer_session(w->address, NULL);
    w->job = trainer_ready(w->session, AMEND_JOB, &spec);
}

static void reopen(struct worker *w)
{
    cairn_job_close(w->job);
    open_job(w);
}

/* The amendment of the model. */
static cairn_status amend(cairn_job *of)
{
    struct cairn_tensor added[AMEND_TENSORS];
    const char *thawed = "fixed";
    const struct cairn_tie tie = { "head", "weight" };
    size_t count = 0;
    for (int t = 0; t < AMEND_TENSORS; t++)
        if (amend_tensors[t].before == 0) added[count++] = amend_describe(t, true);
    const struct cairn_amend all = { .struct_size = sizeof all,
                                     .unfreeze_tensors = &thawed,
                                     .unfreeze_tensor_count = 1,
                                     .add = added,
                                     .add_count = count,
                                     .ties = &tie,
                                     .tie_count = 1 };
    return cairn_job_amend(of, &all, CLUSTER_WAIT_MS);
}

/* Pushes what trains at the round's step. */
static cairn_status push_all(struct worker *w, const struct cairn_round *round)
{
    static _Thread_local float wire[AMEND_ELEMS_MAX], gradient[AMEND_TENSORS][AMEND_ELEMS_MAX];
    for (int t = 0; t < AMEND_TENSORS; t++) {
        const struct amend_tensor *tensor = &amend_tensors[t];
        const struct cairn_mem out = trainer_mem(gradient[t], CAIRN_F32);
        if ((round->revision > 0 ? tensor->after : tensor->before) != CAIRN_TRAINED) continue;
        cairn_status status = trainer_try_fetch(w->job, round->version, tensor->name, "wire",
                                                tensor->wire, wire);
        if (status != CAIRN_OK) return status;
        amend_gradient(round->step, w->rank, t, wire, gradient[t]);
        status = cairn_push(w->job, round, 0, tensor->name, NULL, &out, NULL);
        if (status != CAIRN_OK) return status;
    }
    return CAIRN_OK;
}

static cairn_status train_step(struct worker *w, uint64_t *step_out)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = cairn_round_begin(w->job, CLUSTER_WAIT_MS, &round);
    if (status == CAIRN_OK && round.step >= w->until_step) {
        *step_out = round.step;
        return CAIRN_OK;
    }
    if (status == CAIRN_OK) status = push_all(w, &round);
    if (status == CAIRN_OK)
        status = cairn_commit(w->job, &round, 1, NULL, 0, CLUSTER_WAIT_MS, &result);
    if (status == CAIRN_OK) *step_out = result.step;
    return status;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    for (uint64_t step = 0; step < w->until_step;) {
        const cairn_status status = train_step(w, &step);
        if (status == CAIRN_ERR_REOPEN) {
            w->reopened++;
            reopen(w);
        } else if (status != CAIRN_ERR_EPOCH_CHANGED) {
            good(status);
        }
        if (status != CAIRN_OK || !w->amends || step != AMEND_STEP) continue;
        good(amend(w->job));
        w->amends = false;
        w->after = true;
        reopen(w);
    }
    return NULL;
}

static void begin(struct worker workers[AMEND_WORKERS], const char *address, bool amends,
                  uint64_t until_step)
{
    for (uint32_t r = 0; r < AMEND_WORKERS; r++) {
        workers[r] = (struct worker) {
            .address = address, .rank = r, .until_step = until_step, .amends = amends && r == 0
        };
        open_job(&workers[r]);
        ck_assert_int_eq(pthread_create(&workers[r].thread, NULL, work, &workers[r]), 0);
    }
}

static void end(struct worker workers[AMEND_WORKERS])
{
    for (uint32_t r = 0; r < AMEND_WORKERS; r++) pthread_join(workers[r].thread, NULL);
}

static void close_all(struct worker workers[AMEND_WORKERS])
{
    for (uint32_t r = 0; r < AMEND_WORKERS; r++) cairn_close(workers[r].session);
}

/* Every plane, bit for bit, and the content root. */
static void check_state(const struct cluster *in, const struct worker *w,
                        const struct amend_reference *ref)
{
    static float values[AMEND_ELEMS_MAX];
    char root[65];
    const struct cairn_version version = newest(w->job);
    ck_assert_uint_eq(version.step, ref->step);
    for (int t = 0; t < AMEND_TENSORS; t++) {
        for (int p = CAIRN_PLANE_PARAM; p < CAIRN_PLANE_COUNT; p++) {
            if (ref->tensor[t].plane[p] == NULL) continue;
            trainer_fetch(w->job, version, amend_tensors[t].name, plane_name(p), CAIRN_F32, values);
            ck_assert_msg(
                memcmp(values, ref->tensor[t].plane[p], amend_elems(t) * sizeof *values) == 0,
                "%s %s differs at step %" PRIu64, amend_tensors[t].name, plane_name(p), ref->step);
        }
    }
    amend_reference_root(ref, root);
    trainer_expect_digest(in, AMEND_JOB, root);
}

/* An alias has the values of its target. */
static void check_tied(const struct worker *w, struct cairn_version version)
{
    static uint16_t head[AMEND_ELEMS_MAX], weight[AMEND_ELEMS_MAX];
    trainer_fetch(w->job, version, "head", "wire", CAIRN_BF16, head);
    trainer_fetch(w->job, version, "weight", "wire", CAIRN_BF16, weight);
    ck_assert_mem_eq(head, weight, amend_elems(6) * sizeof *head);
}

TEST_EACH(tensors_are_added_tied_and_thawed_while_training_goes_on_with_the_bits_of_one_process, 1,
          4)
{
    struct cluster other;
    struct worker workers[AMEND_WORKERS];
    struct amend_reference ref;
    char id[64];
    amend_reference_open(&ref);
    start(_i);
    begin(workers, cluster.address, true, END_STEP);
    end(workers);
    ck_assert_uint_eq(workers[1].reopened, 1); // with the spec as it was
    ck_assert(!workers[1].after);
    amend_reference_run(&ref, END_STEP);
    check_state(&cluster, &workers[1], &ref);
    const struct cairn_version version = newest(workers[0].job);
    ck_assert_uint_eq(version.generation, 2);
    check_tied(&workers[0], version);
    good(cairn_snapshot(workers[0].job, CAIRN_SNAPSHOT_WAIT, CLUSTER_WAIT_MS, id));
    close_all(workers);

    cluster_start(&other, _i % 3 + 1, NULL);
    cluster_says(&other, 0, "", "snapshot restore --path %s --yes --allow-untrusted",
                 snapshot_folder(AMEND_JOB, id));
    begin(workers, other.address, false, MORE_STEP); // both with the spec as it was
    end(workers);
    amend_reference_run(&ref, MORE_STEP);
    check_state(&other, &workers[0], &ref);
    close_all(workers);
    cluster_stop(&other);
    stop();
    amend_reference_close(&ref);
}

TEST(coordinators_and_shards_that_come_back_have_the_amended_job)
{
    struct worker workers[AMEND_WORKERS];
    struct amend_reference ref;
    amend_reference_open(&ref);
    start(2);
    begin(workers, cluster.address, true, END_STEP);
    end(workers);
    restart_coordinator();
    for (uint32_t r = 0; r < AMEND_WORKERS; r++) {
        workers[r].until_step = MORE_STEP;
        ck_assert_int_eq(pthread_create(&workers[r].thread, NULL, work, &workers[r]), 0);
    }
    end(workers);
    amend_reference_run(&ref, MORE_STEP);
    check_state(&cluster, &workers[0], &ref);
    ck_assert_int_eq(amend(workers[0].job), CAIRN_ERR_EXISTS); // it has them
    close_all(workers);
    stop();
    amend_reference_close(&ref);
}

/* A worker in a process of its own, which begins a round and then only stands there. */
static pid_t stand_there(int *begun)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    const pid_t pid = fork_child();
    if (pid == 0) {
        struct worker w = { .address = cluster.address, .rank = 1 };
        open_job(&w);
        (void)trainer_begin(w.job);
        if (write(ends[1], "x", 1) == 1) pause();
        _exit(0);
    }
    close(ends[1]);
    *begun = ends[0];
    return pid;
}

TEST(a_worker_that_is_killed_meanwhile_and_an_open_round_do_not_stop_an_amendment)
{
    int begun;
    char byte;
    start(2);
    const pid_t pid = stand_there(&begun);
    struct worker w = { .address = cluster.address, .rank = 0 };
    open_job(&w);
    struct cairn_round round = trainer_begin(w.job);
    ck_assert_int_eq(read(begun, &byte, 1), 1);
    close(begun);
    cluster_kill(pid);
    good(amend(w.job));
    const cairn_status committed = trainer_try_commit(w.job, &round, NULL, 0, CLUSTER_WAIT_MS);
    ck_assert(committed == CAIRN_ERR_REOPEN || committed == CAIRN_ERR_EPOCH_CHANGED);
    fails(cairn_round_begin(w.job, CLUSTER_WAIT_MS, &round), CAIRN_ERR_REOPEN,
          "close it and open it again");
    w.after = true;
    reopen(&w);
    struct cairn_job_info info = { .struct_size = sizeof info };
    good(cairn_job_describe(w.job, &info));
    ck_assert_uint_eq(info.tensor_count, AMEND_TENSORS);
    ck_assert_uint_eq(info.newest.generation, 2);
    ck_assert_uint_eq(info.newest.step, 0);
    cairn_close(w.session);
}

static const struct wrong {
    const char *name, *alias_of, *thaw;
    cairn_init_kind init;
    cairn_status status;
    const char *word;
} wrongs[] = {
    { .name = "late", .status = CAIRN_ERR_INVALID, .word = "begins by its initializer" },
    { .name = "bias", .init = CAIRN_INIT_ONES, .status = CAIRN_ERR_EXISTS, .word = "already" },
    { .name = "bias", .alias_of = "weight", .status = CAIRN_ERR_INVALID, .word = "another shape" },
    { .name = "head", .alias_of = "none", .status = CAIRN_ERR_NOT_FOUND, .word = "no tensor" },
    { .name = "head", .alias_of = "head", .status = CAIRN_ERR_INVALID, .word = "itself" },
    { .thaw = "none", .status = CAIRN_ERR_NOT_FOUND, .word = "no tensor" },
};

static cairn_status try_wrong(cairn_job *of, const struct wrong *wrong)
{
    const struct cairn_tie tie = { wrong->name, wrong->alias_of };
    const struct cairn_tensor tensor = { .struct_size = sizeof tensor,
                                         .name = wrong->name,
                                         .rank = 1,
                                         .shape = { 5 },
                                         .init = { .kind = wrong->init } };
    const bool ties = wrong->alias_of != NULL;
    const struct cairn_amend all = { .struct_size = sizeof all,
                                     .unfreeze_tensors = &wrong->thaw,
                                     .unfreeze_tensor_count = wrong->thaw != NULL,
                                     .add = &tensor,
                                     .add_count = !ties && wrong->thaw == NULL,
                                     .ties = &tie,
                                     .tie_count = ties };
    return cairn_job_amend(of, &all, CLUSTER_WAIT_MS);
}

TEST(what_cannot_be_or_does_not_fit_changes_nothing)
{
    struct cairn_tensor big = { .struct_size = sizeof big,
                                .name = "big",
                                .rank = 2,
                                .shape = { 8192, 8192 },
                                .init = { .kind = CAIRN_INIT_ONES } };
    const struct cairn_amend adds_big = { .struct_size = sizeof adds_big,
                                          .add = &big,
                                          .add_count = 1 };
    struct cairn_job_info info = { .struct_size = sizeof info };
    start(2);
    struct worker w = { .address = cluster.address, .rank = 0 };
    open_job(&w);
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++)
        fails(try_wrong(w.job, &wrongs[i]), wrongs[i].status, wrongs[i].word);
    fails(cairn_job_amend(w.job, &adds_big, CLUSTER_WAIT_MS), CAIRN_ERR_NO_MEMORY,
          "goes on as it was");
    good(cairn_job_describe(w.job, &info)); // the handle is good
    ck_assert_uint_eq(info.tensor_count, 4);
    ck_assert_uint_eq(info.newest.generation, 1);
    good(amend(w.job)); // what was made of it is gone
    cairn_close(w.session);
}

SUITE(60, .tear_down = stop);
