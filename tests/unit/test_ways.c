/* A shard's endpoint to a worker dies alone, again and again, while the worker's own stands: what was
 * answered on it is lost, and nothing waits for it for ever. A whole cluster in this process. */
#include <cairn.h>
#include <check.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/base.h"
#include "client/job.h"
#include "tests/support/rooms.h"
#include "tests/support/suite.h"

enum { ELEMS = 100000, SHARDS = 2, TURNS = 30, CUTS = 20, WAIT_MS = 20000 };

static struct rooms rooms;
static cairn *session;
static cairn_job *job;
static struct fabric *fabric; /* the worker's */
static float *values, *copy;
static char names[TURNS][8];

static void set_up(void)
{
    const struct cairn_fabric_mem_options options = { .seed = 5, .delay_max_ticks = 4 };
    static struct cairn_tensor tensors[TURNS]; // a tensor is put once: one for each turn
    for (int i = 0; i < TURNS; i++) {
        snprintf(names[i], sizeof names[i], "w%02d", i);
        tensors[i] = (struct cairn_tensor) {
            .struct_size = sizeof *tensors, .name = names[i], .rank = 1, .shape = { ELEMS }
        };
    }
    const struct cairn_group group = CAIRN_GROUP_INIT;
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = tensors,
                                         .tensor_count = TURNS,
                                         .groups = &group,
                                         .group_count = 1,
                                         .workers_min = 1,
                                         .chunk_leaves = 4,
                                         .window = 4 };
    rooms_open(&rooms, SHARDS, &options);
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = rooms.address };
    ck_assert_msg(client_open(&opts, rooms.hub, &session) == CAIRN_OK, "%s", cairn_error());
    ck_assert_msg(cairn_job_open(session, "w", &spec, CAIRN_WORKER, WAIT_MS, &job) == CAIRN_OK,
                  "%s", cairn_error());
    const struct session *s = handle_get(CAIRN_HANDLE_SESSION, session);
    fabric = s->path.fabric; // constant while the session is open
    handle_put(session);
    values = calloc(ELEMS, sizeof *values);
    copy = calloc(ELEMS, sizeof *copy);
    for (int i = 0; i < ELEMS; i++) values[i] = (float)i;
}

static void tear_down(void)
{
    cairn_close(session);
    rooms_close(&rooms);
    free(values);
    free(copy);
}

/* Cuts while it is under way, some of the times in the middle of it. */
static void await(cairn_op *op)
{
    cairn_status status = CAIRN_ERR_TIMEOUT;
    for (int i = 0; i < CUTS && status == CAIRN_ERR_TIMEOUT; i++) {
        cairn_fabric_mem_cut_to(fabric);
        sched_yield();
        status = cairn_wait(op, 1);
    }
    if (status == CAIRN_ERR_TIMEOUT) status = cairn_wait(op, WAIT_MS);
    ck_assert_msg(status == CAIRN_OK, "%s", cairn_error());
}

static void put(int i)
{
    const struct cairn_mem from = { .struct_size = sizeof from, .ptr = values, .dtype = CAIRN_F32 };
    cairn_op *op;
    ck_assert_int_eq(cairn_put(job, names[i], "param", NULL, &from, &op), CAIRN_OK);
    await(op);
}

TEST(puts_and_fetches_are_asked_again)
{
    for (int i = 0; i < TURNS; i++) put(i);
    ck_assert_msg(cairn_init_done(job, NULL, WAIT_MS) == CAIRN_OK, "%s", cairn_error());
    struct cairn_version version;
    ck_assert_int_eq(cairn_version_wait(job, (struct cairn_version) { 0, 0 }, WAIT_MS, &version),
                     CAIRN_OK);
    const struct cairn_mem to = { .struct_size = sizeof to, .ptr = copy, .dtype = CAIRN_F32 };
    for (int i = 0; i < TURNS; i++) {
        cairn_op *op;
        memset(copy, 0xff, ELEMS * sizeof *copy);
        ck_assert_int_eq(cairn_fetch(job, version, names[i], NULL, NULL, &to, &op), CAIRN_OK);
        await(op);
        ck_assert_mem_eq(copy, values, ELEMS * sizeof *copy);
    }
}

TEST(pushes_are_sent_again)
{
    for (int i = 0; i < TURNS; i++) put(i);
    ck_assert_msg(cairn_init_done(job, NULL, WAIT_MS) == CAIRN_OK, "%s", cairn_error());
    for (int i = 0; i < TURNS; i++) {
        const struct cairn_mem from = { .struct_size = sizeof from,
                                        .ptr = values,
                                        .dtype = CAIRN_F32 };
        struct cairn_round round = { .struct_size = sizeof round };
        struct cairn_result result = { .struct_size = sizeof result };
        cairn_op *op;
        ck_assert_msg(cairn_round_begin(job, WAIT_MS, &round) == CAIRN_OK, "%s", cairn_error());
        ck_assert_int_eq(cairn_push(job, &round, 0, names[i], NULL, &from, &op), CAIRN_OK);
        await(op);
        ck_assert_int_eq(cairn_micro_end(job, &round, 0), CAIRN_OK);
        cairn_fabric_mem_cut_to(fabric);
        const cairn_status status = cairn_commit(job, &round, 1, NULL, 0, WAIT_MS, &result);
        ck_assert_msg(status == CAIRN_OK, "%s", cairn_error());
    }
}

SUITE(60, set_up, tear_down);
