/* What each call of a worker means, once, on real daemons: weights and what a shard refuses. */
#include <cairn.h>
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

enum { ELEMS = 100, WORKERS = 2 };

static struct cluster cluster;

static void describe(struct tiny_job *tiny, uint32_t rank)
{
    tiny_describe(tiny, ELEMS);
    tiny->spec.rank = rank;
    tiny->spec.workers_min = WORKERS;
}

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
    cluster_start(&cluster, 2, NULL);
    for (uint32_t i = 0; i < WORKERS; i++) {
        struct tiny_job tiny;
        describe(&tiny, i);
        t[i] = (struct trainer) { .session = tiny_session(&cluster, NULL) };
        t[i].job = trainer_open(t[i].session, "weights", &tiny.spec);
        parts[i] = (struct part) { .job = t[i].job };
    }
    for (int i = 0; i < WORKERS; i++) good(cairn_init_done(t[i].job, NULL, CLUSTER_WAIT_MS));
    both(parts, begin);
    for (size_t i = 0; i < 3; i++) {
        struct cairn_result result = { .struct_size = sizeof result };
        ck_assert_int_eq(cairn_commit(t[0].job, &parts[0].round, too_large[i], NULL, 0, 0, &result),
                         CAIRN_ERR_INVALID);
        ck_assert_msg(strstr(cairn_error(), "allowed: 0 to 2^53") != NULL, "%s", cairn_error());
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
    cluster_stop(&cluster);
}

SUITE(60);
