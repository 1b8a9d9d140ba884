/* A rank whose tiles share no chunk with another's need not wait for it: each of its pushes is acknowledged
 * before anyone else has pushed anything, though only one chunk at a time is in flight. */
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#include "tests/e2e/crew.h"
#include "tests/support/rooms.h"
#include "tests/support/suite.h"

enum { WAIT_MS = 10000, RANKS = 2, ROWS = 8, COLUMNS = 4096, MICROS = 2, ROUNDS = 2 };

/* Cut along dimension 0: rows of one leaf each, and a tensor that one rank holds alone. */
static const struct cairn_tensor tensors[] = {
    { .struct_size = sizeof tensors[0],
      .name = "columns",
      .rank = 2,
      .shape = { ROWS, COLUMNS },
      .init = { .kind = CAIRN_INIT_ZEROS } },
    { .struct_size = sizeof tensors[0],
      .name = "expert",
      .rank = 2,
      .shape = { 3, COLUMNS },
      .init = { .kind = CAIRN_INIT_ZEROS } },
};

struct rank {
    uint32_t rank;
    const char *endpoint;
    struct fabric_hub *hub;
    sem_t *pushed; /* of rank 1: its pushes are acknowledged, or it has failed */
    float *gradient;
    char error[1024];
    pthread_t thread;
};

static bool good(struct rank *self, const char *what, cairn_status status)
{
    if (status != CAIRN_OK && self->error[0] == '\0')
        snprintf(self->error, sizeof self->error, "rank %u: %s: %s", (unsigned)self->rank, what,
                 cairn_error());
    return status == CAIRN_OK;
}

static bool open_job(struct rank *self, cairn *session, cairn_job **job)
{
    static const struct cairn_group group = CAIRN_GROUP_INIT;
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = tensors,
                                         .tensor_count = 2,
                                         .groups = &group,
                                         .group_count = 1,
                                         .rank = self->rank,
                                         .workers_min = RANKS,
                                         .chunk_leaves = 1,
                                         .window = 1,
                                         .micro_batches = MICROS };
    const uint64_t half = ROWS / 2;
    const struct cairn_tile tiles[] = {
        { .struct_size = sizeof tiles[0],
          .tensor = "columns",
          .box = { .rank = 2, .start = { self->rank * half, 0 }, .extent = { half, COLUMNS } } },
        { .struct_size = sizeof tiles[0],
          .tensor = "expert",
          .box = { .rank = 2, .extent = { self->rank == 1 ? 3 : 0, COLUMNS } } },
    };
    return good(self, "open",
                cairn_job_open(session, "alone", &spec, CAIRN_WORKER, WAIT_MS, job)) &&
           good(self, "tiles", cairn_tiles(*job, tiles, 2, RANKS, WAIT_MS)) &&
           good(self, "init", cairn_init_done(*job, NULL, WAIT_MS));
}

/* Waits for every push before it does anything else, as a trainer does that has one buffer. */
static bool push_and_wait(struct rank *self, cairn_job *job, const struct cairn_round *round)
{
    const struct cairn_mem mem = { .struct_size = sizeof mem,
                                   .ptr = self->gradient,
                                   .dtype = CAIRN_F32 };
    for (uint32_t micro = 0; micro < MICROS; micro++) {
        for (uint32_t t = 0; t < (self->rank == 1 ? 2 : 1); t++) {
            cairn_op *op;
            if (!good(self, "push",
                      cairn_push(job, round, micro, tensors[t].name, NULL, &mem, &op)) ||
                !good(self, "wait for the push", cairn_wait(op, WAIT_MS)))
                return false;
        }
        if (!good(self, "micro end", cairn_micro_end(job, round, micro))) return false;
    }
    return true;
}

static bool train(struct rank *self, cairn_job *job)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    if (!good(self, "begin", cairn_round_begin(job, WAIT_MS, &round))) return false;
    if (self->rank == 0) sem_wait(self->pushed);
    const bool pushed = push_and_wait(self, job, &round);
    if (self->rank == 1) sem_post(self->pushed);
    return pushed &&
           good(self, "commit", cairn_commit(job, &round, 0, NULL, 0, WAIT_MS, &result)) &&
           result.applied;
}

static void *run_rank(void *arg)
{
    struct rank *self = arg;
    cairn *session = crew_session(self->endpoint, self->hub);
    cairn_job *job;
    bool well = open_job(self, session, &job);
    for (int i = 0; well && i < ROUNDS; i++) well = train(self, job);
    if (!well && self->error[0] == '\0') snprintf(self->error, sizeof self->error, "not applied");
    if (!well && self->rank == 1) sem_post(self->pushed); // let the other one fail by itself
    cairn_close(session);
    return NULL;
}

TEST(a_rank_waits_for_its_pushes_before_a_lower_one_has_pushed_anything)
{
    struct rooms rooms;
    static float gradient[ROWS * COLUMNS];
    sem_t pushed;
    rooms_open(&rooms, 2, &(struct cairn_fabric_mem_options) { .seed = 1 });
    ck_assert_int_eq(sem_init(&pushed, 0, 0), 0);
    for (int i = 0; i < ROWS * COLUMNS; i++) gradient[i] = (float)(i % 13) - 6;
    struct rank ranks[RANKS];
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank) { .rank = r,
                                   .endpoint = rooms.address,
                                   .hub = rooms.hub,
                                   .pushed = &pushed,
                                   .gradient = gradient };
        ck_assert_int_eq(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
    for (uint32_t r = 0; r < RANKS; r++) ck_assert_str_eq(ranks[r].error, "");
    sem_destroy(&pushed);
    rooms_close(&rooms);
}

SUITE(60);
