/* Several threads of one job handle at once: one trains, others map, lease, fetch into memory of cairn_alloc,
 * prefetch and write. Under TSan (tests/run) this shows races of the client library, which tests/unit
 * without a cluster does not. */
#include <pthread.h>
#include <time.h>

#include "tests/e2e/scene.h"

enum {
    WAIT_MS = 20000,
    RUN_MS = 2000,
    THREADS = 8,
    ROWS = 300,
    COLUMNS = 200,
    ELEMS = ROWS * COLUMNS
};

static struct timespec end;

/* One thread: what it does again and again, and how often it went well. */
struct actor {
    const char *name;
    cairn_status (*act)(struct actor *actor, unsigned turn);
    float *memory; /* of cairn_alloc; NULL: it needs none */
    unsigned well;
    cairn_status wrong; /* the first status that is no answer to others going on */
    char why[256];
};

/* Each goes on until it went well once, if the processors are busy for longer than the run. */
static bool is_over(const struct actor *actor)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (actor->well == 0) now.tv_sec -= WAIT_MS / 1000;
    return now.tv_sec != end.tv_sec ? now.tv_sec > end.tv_sec : now.tv_nsec > end.tv_nsec;
}

/* A round was void, a version overtaken, a write was begun by another or voided by the round. */
static bool is_expected(cairn_status status)
{
    return status == CAIRN_OK || status == CAIRN_ERR_EPOCH_CHANGED ||
           status == CAIRN_ERR_VERSION_GONE || status == CAIRN_ERR_STALE ||
           status == CAIRN_ERR_BUSY || status == CAIRN_ERR_REFUSED || status == CAIRN_ERR_NOT_READY;
}

static cairn_status take_newest(struct cairn_version *out)
{
    return cairn_version_wait(job, (struct cairn_version) { 0, 0 }, WAIT_MS, out);
}

static cairn_status train_round(struct actor *actor, unsigned turn)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    const struct cairn_mem gradient = trainer_mem(actor->memory, CAIRN_F32);
    cairn_status status = cairn_round_begin(job, WAIT_MS, &round);
    if (status == CAIRN_OK) status = cairn_push(job, &round, 0, "a", NULL, &gradient, NULL);
    if (status != CAIRN_OK) return status;
    if (turn % 7 == 6) return cairn_round_abandon(job, &round, WAIT_MS);
    return cairn_commit(job, &round, 1, "state", 5, WAIT_MS, &result);
}

static cairn_status map_unit(struct cairn_version version, const char *unit)
{
    struct cairn_view view = { .struct_size = sizeof view };
    size_t count = 1;
    cairn_op *op;
    cairn_status status = cairn_map(job, version, unit, &view, &count, &op);
    if (status == CAIRN_OK) status = cairn_wait(op, WAIT_MS);
    return status == CAIRN_OK ? cairn_unmap(job, &view, NULL) : status;
}

static cairn_status map(struct actor *actor, unsigned turn)
{
    struct cairn_version version;
    const cairn_status status = take_newest(&version);
    (void)actor;
    return status == CAIRN_OK ? map_unit(version, turn % 2 == 0 ? "a" : "b") : status;
}

static cairn_status lease(struct actor *actor, unsigned turn)
{
    struct cairn_version version;
    cairn_status status = cairn_lease(job, (struct cairn_version) { 0, 0 }, 1000, WAIT_MS,
                                      &version);
    (void)actor;
    (void)turn;
    if (status != CAIRN_OK) return status;
    status = map_unit(version, "b");
    const cairn_status ended = cairn_lease_end(job, version, WAIT_MS);
    return status == CAIRN_OK ? ended : status;
}

static cairn_status fetch(struct actor *actor, unsigned turn)
{
    struct cairn_version version;
    void *memory;
    cairn_op *op;
    (void)actor;
    (void)turn;
    cairn_status status = take_newest(&version);
    if (status == CAIRN_OK) status = cairn_alloc(session, ELEMS * sizeof(float), 0, &memory);
    if (status != CAIRN_OK) return status;
    const struct cairn_mem mem = trainer_mem(memory, CAIRN_F32);
    status = cairn_fetch(job, version, "a", NULL, NULL, &mem, &op);
    if (status == CAIRN_OK) status = cairn_wait(op, WAIT_MS);
    const cairn_status freed = cairn_free(session, memory);
    return status == CAIRN_OK ? freed : status;
}

static cairn_status prefetch(struct actor *actor, unsigned turn)
{
    static const char *const units[] = { "a", "b" };
    struct cairn_stats stats = { .struct_size = sizeof stats };
    struct cairn_version version;
    char state[64];
    size_t bytes;
    (void)actor;
    (void)turn;
    cairn_status status = cairn_job_stats(job, &stats);
    if (status == CAIRN_OK)
        status = cairn_client_state(job, state, sizeof state, WAIT_MS, &bytes, &version);
    return status == CAIRN_OK ? cairn_prefetch(job, version, units, 2) : status;
}

static cairn_status write_plane(struct actor *actor, unsigned turn)
{
    const struct cairn_mem mem = trainer_mem(actor->memory, CAIRN_F32);
    struct cairn_version version;
    (void)turn;
    cairn_status status = cairn_write_begin(job, WAIT_MS);
    if (status != CAIRN_OK) return status;
    status = cairn_put(job, "b", "param", NULL, &mem, NULL);
    const cairn_status ended = cairn_write_end(job, WAIT_MS, &version);
    return status == CAIRN_OK ? ended : status;
}

static void *run(void *arg)
{
    struct actor *actor = arg;
    for (unsigned turn = 0; !is_over(actor) && actor->wrong == CAIRN_OK; turn++) {
        const cairn_status status = actor->act(actor, turn);
        if (status == CAIRN_OK) actor->well++;
        if (is_expected(status)) continue;
        actor->wrong = status;
        snprintf(actor->why, sizeof actor->why, "%s", cairn_error());
    }
    return NULL;
}

static void open_job(void)
{
    static const struct cairn_init uniform = { CAIRN_INIT_UNIFORM, -1, 1, 7 };
    const struct cairn_tensor tensors[] = {
        { .struct_size = sizeof *tensors,
          .name = "a",
          .rank = 1,
          .shape = { ELEMS },
          .init = uniform },
        { .struct_size = sizeof *tensors,
          .name = "b",
          .rank = 2,
          .shape = { ROWS, COLUMNS },
          .init = uniform },
    };
    join_spec("threads", &(struct cairn_job_spec)TRAINER_SPEC(tensors, 2, .client_state_max = 64,
                                                              .chunk_leaves = 4));
}

static float *memory_of_the_library(void)
{
    void *memory;
    good(cairn_alloc(session, ELEMS * sizeof(float), 0, &memory));
    return memory;
}

TEST(threads_of_one_handle_do_not_disturb_each_other)
{
    pthread_t threads[THREADS];
    start(2);
    open_job();
    struct actor actors[THREADS] = {
        { .name = "train", .act = train_round }, { .name = "map", .act = map },
        { .name = "another map", .act = map },   { .name = "another prefetch", .act = prefetch },
        { .name = "lease", .act = lease },       { .name = "fetch", .act = fetch },
        { .name = "prefetch", .act = prefetch }, { .name = "write", .act = write_plane }
    };
    actors[0].memory = memory_of_the_library();
    actors[THREADS - 1].memory = memory_of_the_library();
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += RUN_MS / 1000;
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run, &actors[i]), 0);
    for (int i = 0; i < THREADS; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < THREADS; i++)
        if (actors[i].wrong != CAIRN_OK)
            printf("%s: status %d: %s\n", actors[i].name, (int)actors[i].wrong, actors[i].why);
    for (int i = 0; i < THREADS; i++) {
        ck_assert_msg(actors[i].wrong == CAIRN_OK, "%s: status %d: %s", actors[i].name,
                      (int)actors[i].wrong, actors[i].why);
        printf("note: %s: %u turns\n", actors[i].name, actors[i].well);
        ck_assert_msg(actors[i].well > 0, "%s never went well", actors[i].name);
    }
}

SUITE(60, .tear_down = stop);
