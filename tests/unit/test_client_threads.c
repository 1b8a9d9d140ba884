/* One worker, several threads: some push, or look at operations, while another commits rounds, gives them up
 * and begins the next. Run under the sanitizers, too. */
#include <inttypes.h>
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "tests/support/suite.h"
#include "tests/support/toy_scene.h"

enum { PUSHERS = 3, ROUNDS = 60, MICROS = 2, TRAINED = 4, ALL = (1 << TRAINED) - 1 };

static cairn_job *job;
static float gradients[2][TOY_ELEMS]; // of rounds with an even number, and with an odd one

/* What the pushers push into. */
static struct {
    pthread_mutex_t lock;
    struct cairn_round round;
    uint32_t accepted; // the tensors, as bits
    bool is_over;
} now = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void open_rooms(void)
{
    toy_start(2, .seed = 5, .delay_max_ticks = 40);
    session = toy_session(&rooms, "several");
    for (int i = 0; i < TOY_ELEMS; i++) gradients[0][i] = 1, gradients[1][i] = 3;
}

static void open_job(uint32_t stage, uint32_t micros)
{
    job = toy_ready(session, "threads",
                    TOY_SPEC(.stage = CAIRN_STAGE(stage), .micro_batches = micros));
}

static void set_round(const struct cairn_round *round, bool is_over)
{
    pthread_mutex_lock(&now.lock);
    if (round != NULL) now.round = *round;
    now.accepted = 0;
    now.is_over = is_over;
    pthread_mutex_unlock(&now.lock);
}

static bool take_round(struct cairn_round *out)
{
    pthread_mutex_lock(&now.lock);
    *out = now.round;
    const bool is_over = now.is_over;
    pthread_mutex_unlock(&now.lock);
    return !is_over;
}

static uint32_t note_accepted(const struct cairn_round *round, uint32_t tensors)
{
    pthread_mutex_lock(&now.lock);
    if (now.round.round == round->round) now.accepted |= tensors;
    const uint32_t accepted = now.accepted;
    pthread_mutex_unlock(&now.lock);
    return accepted;
}

/* Pushes every tensor in every micro-batch of whatever round there is: some of it is too late, or twice. */
static void *push_always(void *arg)
{
    struct cairn_round round;
    (void)arg;
    while (take_round(&round)) {
        for (uint32_t i = 0; i < MICROS * TRAINED; i++) {
            const uint32_t tensor = i % TRAINED;
            const cairn_status status = cairn_push(job, &round, i / TRAINED,
                                                   toy_tensors[tensor].name, NULL,
                                                   TOY_F32(gradients[round.round % 2]), NULL);
            if (status == CAIRN_OK) note_accepted(&round, 1u << tensor);
            ck_assert_msg(status == CAIRN_OK || status == CAIRN_ERR_EXISTS ||
                              status == CAIRN_ERR_INVALID || status == CAIRN_ERR_STALE ||
                              status == CAIRN_ERR_EPOCH_CHANGED,
                          "a push gave %d: %s", (int)status, cairn_error());
        }
        sched_yield();
    }
    return NULL;
}

/* Is the norm that of whole gradients of this round, each tensor's once or twice? */
static bool is_whole(double norm, float value)
{
    for (uint32_t twice = 0; twice <= ALL; twice++) {
        double square = 0;
        for (int t = 0; t < TRAINED; t++) {
            const double sum = (twice >> t & 1 ? 2 : 1) * value;
            square += sum * sum * (double)toy_elems(t);
        }
        if (fabs(norm * norm - square) < 1e-5 * square) return true;
    }
    return false;
}

/* The round that the pushers are at, when each tensor was accepted in it. */
static struct cairn_round next_round(void)
{
    const struct cairn_round round = toy_begin(job);
    set_round(&round, false);
    while (note_accepted(&round, 0) != ALL) sched_yield();
    return round;
}

TEST(what_is_pushed_beside_a_commit_is_whole_and_of_its_round)
{
    pthread_t threads[PUSHERS];
    open_job(1, MICROS);
    set_round(NULL, false); // what they give at first is no round
    for (int i = 0; i < PUSHERS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, push_always, NULL), 0);
    for (int i = 0; i < ROUNDS; i++) {
        const struct cairn_round round = next_round();
        struct cairn_result result = { .struct_size = sizeof result };
        if (i % 3 == 1) good(cairn_micro_end(job, &round, 0));
        if (i % 4 == 3) {
            good(cairn_round_abandon(job, &round, TOY_WAIT_MS));
            continue;
        }
        good(cairn_commit(job, &round, 1, NULL, 0, TOY_WAIT_MS, &result));
        ck_assert_msg(is_whole(result.grad_norm, gradients[round.round % 2][0]),
                      "round %" PRIu64 ": a norm of %.9g", round.round, result.grad_norm);
    }
    set_round(NULL, true);
    for (int i = 0; i < PUSHERS; i++) pthread_join(threads[i], NULL);
}

static atomic_bool all_pushed;

static void *give_up(void *arg)
{
    const struct cairn_round *round = arg;
    while (!atomic_load(&all_pushed)) sched_yield();
    good(cairn_round_abandon(job, round, TOY_WAIT_MS));
    return NULL;
}

/* Looks at each in turn until all are over; how many failed. */
static int poll_all(cairn_op *ops[TRAINED])
{
    int failed = 0;
    for (int left = TRAINED; left > 0;) {
        for (int t = 0; t < TRAINED; t++) {
            const cairn_status status = ops[t] == NULL ? CAIRN_ERR_TIMEOUT : cairn_wait(ops[t], 0);
            if (status == CAIRN_ERR_TIMEOUT) continue;
            ck_assert_msg(status == CAIRN_OK || status == CAIRN_ERR_EPOCH_CHANGED, "%d: %s",
                          (int)status, cairn_error());
            failed += status != CAIRN_OK;
            ops[t] = NULL, left--;
        }
    }
    return failed;
}

TEST(operations_are_looked_at_while_they_fail)
{
    int failed = 0;
    open_job(2, 1);
    // On a busy machine all may be through before the other thread runs: until one was not.
    for (int i = 0; i < ROUNDS || (failed == 0 && i < 100 * ROUNDS); i++) {
        struct cairn_round round = toy_begin(job);
        cairn_op *ops[TRAINED] = { NULL };
        pthread_t thread;
        atomic_store(&all_pushed, false);
        ck_assert_int_eq(pthread_create(&thread, NULL, give_up, &round), 0);
        for (int t = 0; t < TRAINED; t++)
            good(cairn_push(job, &round, 0, toy_tensors[t].name, NULL, TOY_F32(gradients[0]),
                            &ops[t]));
        atomic_store(&all_pushed, true);
        failed += poll_all(ops);
        pthread_join(thread, NULL);
    }
    ck_assert_int_gt(failed, 0);
}

SUITE(100, open_rooms, toy_stop);
