/* What each call of a worker means, once, on real daemons: weights, what a shard refuses, whose a rank is. */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 100, WORKERS = 2 };

/* A worker's commit of its round, on a thread of its own. */
struct part {
    cairn_job *job;
    struct cairn_round round;
    uint64_t weight;
    cairn_status status;
    struct cairn_result result;
    char why[512];
};

static void *begin(void *context)
{
    struct part *part = context;
    part->round = (struct cairn_round) { .struct_size = sizeof part->round };
    part->status = cairn_round_begin(part->job, CLUSTER_WAIT_MS, &part->round);
    return NULL;
}

static void *commit(void *context)
{
    struct part *part = context;
    part->result = (struct cairn_result) { .struct_size = sizeof part->result };
    part->status = cairn_commit(part->job, &part->round, part->weight, NULL, 0, CLUSTER_WAIT_MS,
                                &part->result);
    snprintf(part->why, sizeof part->why, "%s", cairn_error());
    return NULL;
}

static void both(struct part parts[WORKERS], void *(*run)(void *))
{
    pthread_t threads[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run, &parts[i]), 0);
    for (int i = 0; i < WORKERS; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
}

TEST(weights_are_bounded_and_what_a_shard_refuses_is_the_error_of_its_worker)
{
    static const uint64_t too_large[] = { ((uint64_t)1 << 53) + 1, (uint64_t)1 << 63,
                                          UINT64_MAX - 2 };
    struct trainer t[WORKERS];
    struct part parts[WORKERS];
    start(2);
    for (uint32_t i = 0; i < WORKERS; i++) {
        t[i] = (struct trainer) { .session = trainer_session(cluster.address, NULL) };
        t[i].job = trainer_open(t[i].session, "weights",
                                &TINY(ELEMS, .rank = i, .workers_min = WORKERS)->spec);
        parts[i] = (struct part) { .job = t[i].job };
    }
    for (int i = 0; i < WORKERS; i++) good(cairn_init_done(t[i].job, NULL, CLUSTER_WAIT_MS));
    both(parts, begin);
    for (size_t i = 0; i < 3; i++) {
        struct cairn_result result = { .struct_size = sizeof result };
        fails(cairn_commit(t[0].job, &parts[0].round, too_large[i], NULL, 0, 0, &result),
              CAIRN_ERR_INVALID, "allowed: 0 to 2^53");
    }
    // Each is allowed, and both are not: one at least is refused, at once, and the other does the step again.
    for (int i = 0; i < WORKERS; i++) parts[i].weight = (uint64_t)1 << 53;
    both(parts, commit);
    int refused = 0;
    for (int i = 0; i < WORKERS; i++) {
        refused += parts[i].status == CAIRN_ERR_INVALID;
        ck_assert_msg(parts[i].status == CAIRN_ERR_INVALID ||
                          parts[i].status == CAIRN_ERR_EPOCH_CHANGED,
                      "%s", parts[i].why);
        if (parts[i].status == CAIRN_ERR_INVALID)
            ck_assert_msg(strstr(parts[i].why, "come to more than 2^53") != NULL, "%s",
                          parts[i].why);
    }
    ck_assert_int_ge(refused, 1);
    // As the error says: with smaller ones it goes on, in the same session.
    both(parts, begin);
    parts[0].weight = ((uint64_t)1 << 53) - 1;
    parts[1].weight = 1;
    both(parts, commit);
    for (int i = 0; i < WORKERS; i++) {
        ck_assert_msg(parts[i].status == CAIRN_OK, "%s", parts[i].why);
        ck_assert_uint_eq(parts[i].result.step, 1);
    }
    // A call that is repeated is the same call; with another weight it is none.
    parts[0].weight = 7;
    commit(&parts[0]);
    ck_assert_int_eq(parts[0].status, CAIRN_ERR_INVALID);
    ck_assert_msg(strstr(parts[0].why, "repeat the call as it was") != NULL, "%s", parts[0].why);
    parts[0].weight = ((uint64_t)1 << 53) - 1;
    commit(&parts[0]);
    ck_assert_msg(parts[0].status == CAIRN_OK, "%s", parts[0].why);
    for (int i = 0; i < WORKERS; i++) cairn_close(t[i].session);
}

/* In a session of its own, by the flags: CAIRN_OK, or what it was refused for. */
static cairn_status try_open(const char *name, uint64_t flags, struct trainer *t)
{
    t->session = trainer_session(cluster.address, NULL);
    const cairn_status status = cairn_job_open(t->session, name,
                                               &TINY(ELEMS, .open_flags = flags)->spec,
                                               CAIRN_WORKER, CLUSTER_WAIT_MS, &t->job);
    if (status == CAIRN_OK) good(cairn_init_done(t->job, NULL, CLUSTER_WAIT_MS));
    return status;
}

static void refused(const char *name, uint64_t flags, cairn_status expected, const char *word)
{
    struct trainer t;
    fails(try_open(name, flags, &t), expected, word);
    cairn_close(t.session);
}

/* Whoever does not wait for as long as the other one may be dead hears for whom it waited. */
static void late_for_the_place(const char *name)
{
    session = trainer_session(cluster.address, NULL);
    fails(cairn_job_open(session, name, &TINY(ELEMS)->spec, CAIRN_WORKER, 100, &job),
          CAIRN_ERR_TIMEOUT, "waits for the worker that has rank 0 of job ");
    leave();
}

/* It has one step more, and ends without a word. */
static pid_t lone_trainer(const char *name)
{
    const pid_t pid = fork_child();
    if (pid != 0) return pid;
    struct trainer t;
    good(try_open(name, 0, &t));
    tiny_step(t.job);
    raise(SIGKILL);
    _exit(1);
}

static struct cairn_job_info info_of(cairn_job *of)
{
    struct cairn_job_info info = { .struct_size = sizeof info };
    good(cairn_job_describe(of, &info));
    return info;
}

/* A session that let go of the shards' memory holds its own step up, and not the shards. */
static void late_without_memory(const struct trainer *t, cairn *its_session)
{
    good(cairn_detach_memory(its_session, CLUSTER_WAIT_MS));
    const struct cairn_round round = trainer_begin(t->job);
    fails(trainer_try_commit(t->job, &round, NULL, 0, 100), CAIRN_ERR_TIMEOUT,
          "calls that need the shards wait for its cairn_attach_memory");
    good(cairn_attach_memory(its_session, CLUSTER_WAIT_MS));
    (void)trainer_result(t->job, &round);
}

/* Nor do shards hold it up where this process has no descriptor left. */
static void late_without_descriptors(void)
{
    struct rlimit was;
    session = trainer_session(cluster.address, NULL);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit) { 3, was.rlim_max }), 0);
    join("few", TINY(ELEMS));
    const struct cairn_round round = trainer_begin(job);
    fails(trainer_try_commit(job, &round, NULL, 0, 100), CAIRN_ERR_TIMEOUT,
          "may open no more descriptors");
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
    (void)trainer_result(job, &round);
    leave();
}

TEST(a_rank_is_one_process_unless_the_place_is_asked_for)
{
    struct trainer first, second, anew;
    struct cairn_round round = { .struct_size = sizeof round };
    start(1, .coordinator_set = SETTINGS("lease.heartbeat=100ms", "lease.timeout=400ms"));
    good(try_open("gpt", CAIRN_OPEN_MUST_NOT_EXIST, &first));
    ck_assert(!info_of(first.job).found);
    tiny_step(first.job);
    refused("gpt", 0, CAIRN_ERR_PLACE_TAKEN, "which lives: it was heard");
    late_for_the_place("gpt");
    refused("gpt", CAIRN_OPEN_MUST_NOT_EXIST, CAIRN_ERR_EXISTS, "at step 1, made by worker ");
    refused("gpt", CAIRN_OPEN_MUST_NOT_EXIST | CAIRN_OPEN_MUST_EXIST, CAIRN_ERR_INVALID, "neither");
    tiny_step(first.job); // it did not hear of them
    good(try_open("gpt", CAIRN_OPEN_TAKEOVER, &second));
    const struct cairn_job_info info = info_of(second.job);
    ck_assert(info.found && info.found_step == 2 && strncmp(info.made_by, "worker ", 7) == 0);
    ck_assert_int_eq(cairn_round_begin(first.job, CLUSTER_WAIT_MS, &round), CAIRN_ERR_FENCED);
    ck_assert_uint_eq(tiny_step(second.job), 3);
    // In its own session it may close it and open it again.
    cairn_job_close(second.job);
    anew.job = trainer_ready(second.session, "gpt", &TINY(ELEMS)->spec);
    ck_assert_uint_eq(tiny_step(anew.job), 4);
    late_without_memory(&anew, second.session);
    late_without_descriptors();
    // The launcher's next start of a run has the place of the one before, and not the other way round.
    setenv("CAIRN_RUN_ID", "nightly", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
    struct trainer run[2];
    good(try_open("run", 0, &run[0]));
    setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
    good(try_open("run", 0, &run[1]));
    ck_assert_int_eq(cairn_round_begin(run[0].job, CLUSTER_WAIT_MS, &round), CAIRN_ERR_FENCED);
    setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
    refused("run", 0, CAIRN_ERR_PLACE_TAKEN, "takeover=True");
    unsetenv("CAIRN_RUN_ID");
    unsetenv("TORCHELASTIC_RESTART_COUNT");
    cairn_close(run[0].session);
    cairn_close(run[1].session);
    cairn_close(first.session);
    cairn_close(second.session);
}

/* It needs no flag, and does not wait for a lease. */
TEST(who_comes_after_a_death_has_the_place_at_once)
{
    struct trainer t;
    start(1, .coordinator_set = SETTINGS("lease.timeout=30s"));
    for (uint64_t step = 1; step <= 2; step++)
        ck_assert_int_eq(cluster_wait(lone_trainer("dies"), CLUSTER_WAIT_MS), 128 + SIGKILL);
    good(try_open("dies", CAIRN_OPEN_MUST_EXIST, &t));
    ck_assert_uint_eq(info_of(t.job).found_step, 2);
    cairn_close(t.session);
}

/* The call ended with TIMEOUT, in its time and little more, and says that word. */
static void in_time(cairn_status status, int64_t begun_ms, int64_t span_ms, const char *word)
{
    const int64_t took_ms = now_ms() - begun_ms;
    ck_assert_int_eq(status, CAIRN_ERR_TIMEOUT);
    ck_assert_msg(took_ms >= span_ms && took_ms < span_ms + 400,
                  "%" PRId64 " ms for %" PRId64 ": %s", took_ms, span_ms, cairn_error());
    expect_error(word);
}

TEST(a_timeout_is_kept_and_says_what_it_waited_for)
{
    const struct cairn_version none = { 0, 0 }, far = { 1, 99 };
    struct cairn_version out;
    struct trainer t;
    char id[64];
    start(1);
    good(try_open("late", 0, &t));
    tiny_step(t.job);
    int64_t begun_ms = now_ms();
    in_time(cairn_version_wait(t.job, far, 300, &out), begun_ms, 300, "nobody has begun");
    cluster_freeze(cluster.coordinator);
    begun_ms = now_ms();
    in_time(cairn_lease(t.job, none, 60000, 600, &out), begun_ms, 600, "does not answer");
    begun_ms = now_ms();
    in_time(cairn_snapshot(t.job, 0, 400, id), begun_ms, 400, "does not answer");
    kill(cluster.coordinator, SIGCONT);
    good(cairn_lease(t.job, none, 60000, CLUSTER_WAIT_MS, &out)); // none was left over
    // A job whose opening was not awaited is found by the next call.
    cluster_freeze(cluster.shards[0]);
    struct trainer late = { .session = trainer_session(cluster.address, NULL) };
    struct tiny_job *tiny = TINY(ELEMS);
    begun_ms = now_ms();
    in_time(cairn_job_open(late.session, "slow", &tiny->spec, CAIRN_WORKER, 300, &late.job),
            begun_ms, 300, "open it again to go on");
    kill(cluster.shards[0], SIGCONT);
    tiny->spec.open_flags = CAIRN_OPEN_MUST_NOT_EXIST; // it is as good as none
    late.job = trainer_ready(late.session, "slow", &tiny->spec);
    ck_assert_uint_eq(tiny_step(late.job), 1);
    cairn_close(late.session);
    cairn_close(t.session);
}

TEST(stages_and_micro_batches_have_one_meaning)
{
    struct tiny_job *tiny = TINY(ELEMS, .micro_batches = 2);
    struct trainer t;
    static float gradient[ELEMS];
    const struct cairn_mem mem = trainer_mem(gradient, CAIRN_F32);
    start(1);
    t.session = trainer_session(cluster.address, NULL);
    for (uint32_t stage = 1; stage <= 4; stage++) {
        tiny->spec.stage = stage;
        fails(
            cairn_job_open(t.session, "stages", &tiny->spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &t.job),
            CAIRN_ERR_INVALID, "write CAIRN_STAGE(0)");
    }
    for (uint32_t stage = 0; stage <= 3; stage++) {
        char name[16];
        snprintf(name, sizeof name, "stage%u", stage);
        tiny->spec.stage = CAIRN_STAGE(stage);
        t.job = tiny_open(t.session, name, tiny);
        ck_assert_uint_eq(info_of(t.job).stage, CAIRN_STAGE(stage));
        const struct cairn_round round = trainer_begin(t.job);
        for (uint32_t micro = 0; micro < 2; micro++) {
            good(cairn_push(t.job, &round, micro, "w", NULL, &mem, NULL));
            good(cairn_micro_end(t.job, &round, micro));
        }
        fails(cairn_push(t.job, &round, 2, "w", NULL, &mem, NULL), CAIRN_ERR_INVALID,
              "declares micro_batches = 2");
        trainer_commit(t.job, &round, 0);
    }
    cairn_close(t.session);
}

/* As a supervisor may start them: without standard descriptors. */
TEST(daemons_without_standard_descriptors_end_well)
{
    char folder[CAIRN_SCRATCH_BYTES], command[4 * sizeof folder + 512];
    cairn_scratch_make(folder);
    snprintf(command, sizeof command,
             "cd '%s' && printf '[network]\nlisten = %%s/c.sock\n[store]\npath = store\n"
             "[snapshots]\npath = snaps\n' '%s' >c.conf && '%s/cairn-coordinator' --config c.conf "
             "--ready-file ready <&- >&- 2>&- & pid=$!; "
             "until [ -s '%s/ready' ]; do kill -0 $pid || exit 99; sleep 0.01; done; "
             "kill $pid; wait $pid",
             folder, folder, CAIRN_BIN_DIR, folder);
    const pid_t pid = cluster_spawn((const char *const[]) { "/bin/sh", "-c", command, NULL },
                                    "/dev/null");
    ck_assert_int_eq(cluster_wait(pid, CLUSTER_WAIT_MS), 0);
    cairn_scratch_remove(folder);
}

SUITE(60, .tear_down = stop);
