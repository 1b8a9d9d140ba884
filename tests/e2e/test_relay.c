/* Reduce groups: workers of a host are added up there, and what comes out is what the sums of the hosts,
 * in the order of their least ranks, would have made by themselves. The hosts are played, on one machine:
 * what goes between them goes over ucx. With CAIRN_TEST_MEMORY=device gradients lie on the emulated card. */
#include <pthread.h>
#include <stdlib.h>

#include "tests/support/emulated.h"
#include "tests/e2e/scene.h"

enum { WAIT_MS = 20000, TENSORS = 4, STEPS = 4, WORKERS_MAX = 5, HOSTS = 2, ELEMS_MAX = 300 * 411 };

static const struct cairn_tensor model[TENSORS] = {
    TRAINER_MATRIX("big", "u", 300, 411, 1),
    TRAINER_MATRIX("expert", "v", 200, 300, 2),
    TRAINER_MATRIX("half", "u", 311, 200, 3, .wire = CAIRN_BF16),
    TRAINER_ONES("small", "w", 77),
};

/* Who is where: of the hosts A, B, A, B, A the ranks 0, 2, 4 and 1, 3. */
struct world {
    const char *name;
    int workers, micros;
    bool grouped;
    int steps;
};

struct worker {
    const struct world *world;
    int rank;
    cairn *session;
    cairn_job *job;
    pthread_t thread;
};

static struct emulated card; /* if gradients are on it */
static bool is_on_card;
static const char *const hosts[HOSTS] = { "host-a", "host-b" };

/* Numbers of which a sum depends on its order. */
static float gradient(int rank, uint64_t step, int micro, int t, size_t i)
{
    const uint64_t seed = (uint64_t)rank * 7919 + step * 104729 + (uint64_t)micro * 1299709 +
                          (uint64_t)t * 15485863;
    return (float)((i * 2654435761u + seed * 40503u) % 200003) / 7919.0f - 11.0f;
}

/* Nobody has gradients for the expert in step 1, and only odd ranks later; rank 0 skips a micro-batch. */
static bool contributes(int rank, uint64_t step, int micro, int t)
{
    if (t == 1) return step != 1 && rank % 2 == 1;
    return !(t == 3 && rank == 0 && micro == 1);
}

/* One contribution, of a worker or of a whole host: then rank < 0, host -1 - rank. False: none. */
static bool fill(const struct world *world, int rank, uint64_t step, int micro, int t, float *out)
{
    bool any = false;
    const int first = rank >= 0 ? rank : -1 - rank, stride = rank >= 0 ? WORKERS_MAX : HOSTS;
    for (int r = first; r < WORKERS_MAX; r += stride) {
        if (rank < 0 && r >= 5) break;
        if (rank < 0 && r >= world->workers) break;
        if (!contributes(r, step, micro, t)) continue;
        for (size_t i = 0; i < trainer_elems(&model[t]); i++)
            out[i] = any ? out[i] + gradient(r, step, micro, t, i) : gradient(r, step, micro, t, i);
        any = true;
    }
    return any;
}

static uint64_t weight_of(const struct world *world, int rank)
{
    uint64_t weight = 0;
    if (rank >= 0) return (uint64_t)rank + 1;
    for (int r = -1 - rank; r < world->workers; r += HOSTS) weight += (uint64_t)r + 1;
    return weight;
}

static void open_worker(struct worker *worker, const struct world *world, int rank, int count)
{
    struct cairn_group adamw = CAIRN_GROUP_INIT;
    adamw.weight_decay = 0.1;
    struct cairn_job_spec spec = trainer_spec(model, TENSORS);
    spec.groups = &adamw;
    spec.chunk_leaves = 2;
    spec.workers_min = (uint32_t)count;
    spec.rank = (uint32_t)rank;
    spec.micro_batches = (uint32_t)world->micros;
    spec.reduce_groups = world->grouped ? CAIRN_GROUPS_HOST : CAIRN_GROUPS_NONE;
    *worker = (struct worker) { .world = world, .rank = world->grouped ? rank : -1 - rank };
    setenv("CAIRN_HOST", hosts[rank % HOSTS], 1);
    worker->session = trainer_session(cluster.address, NULL);
    worker->job = trainer_open(worker->session, world->name, &spec);
}

/* A gradient: made on the host, pushed from where the worker has memory. */
struct memory {
    float *host;
    void *at;
};

static struct memory take_memory(const struct worker *worker, int t)
{
    struct memory memory;
    const size_t bytes = trainer_elems(&model[t]) * sizeof(float);
    good(cairn_alloc(worker->session, bytes, is_on_card ? CAIRN_GPU(0) : 0, &memory.at));
    memory.host = is_on_card ? malloc(bytes) : memory.at;
    return memory;
}

static struct cairn_mem mem_of(const struct memory *memory, int t)
{
    struct cairn_mem mem = trainer_mem(memory->at, CAIRN_F32);
    if (!is_on_card) return mem;
    mem.device = CAIRN_GPU(0);
    ck_assert_int_eq(card.driver.cuMemcpyHtoDAsync((uint64_t)(uintptr_t)memory->at, memory->host,
                                                   trainer_elems(&model[t]) * sizeof(float), NULL),
                     0);
    return mem;
}

static void run_step(const struct worker *worker, const struct memory memory[TENSORS])
{
    const struct world *world = worker->world;
    const struct cairn_round round = trainer_begin(worker->job);
    for (int micro = 0; micro < world->micros; micro++) {
        cairn_op *ops[TENSORS];
        int count = 0;
        for (int t = TENSORS - 1; t >= 0; t--) {
            if (!fill(world, worker->rank, round.step, micro, t, memory[t].host)) continue;
            const struct cairn_mem mem = mem_of(&memory[t], t);
            good(cairn_push(worker->job, &round, (uint32_t)micro, model[t].name, NULL, &mem,
                            &ops[count++]));
        }
        good(cairn_micro_end(worker->job, &round, (uint32_t)micro));
        for (int i = 0; i < count; i++) good(cairn_wait(ops[i], WAIT_MS));
    }
    trainer_commit(worker->job, &round, weight_of(world, worker->rank));
}

static void *run_worker(void *arg)
{
    const struct worker *worker = arg;
    struct memory memory[TENSORS];
    if (is_on_card) ck_assert_int_eq(card.driver.cuCtxSetCurrent(card.context), 0);
    for (int t = 0; t < TENSORS; t++) memory[t] = take_memory(worker, t);
    good(cairn_init_done(worker->job, NULL, WAIT_MS));
    for (int step = 0; step < worker->world->steps; step++) run_step(worker, memory);
    for (int t = 0; t < TENSORS && is_on_card; t++) free(memory[t].host);
    return NULL;
}

/* Trains, over so many shards meanwhile as the list says one after another, and gives the content root. */
static void train_over(const struct world *world, int count, const char *const *shards,
                       char root[65])
{
    struct worker workers[WORKERS_MAX];
    for (int i = 0; i < count; i++) open_worker(&workers[i], world, i, count);
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]), 0);
    for (; *shards != NULL; shards++)
        says(0, "done", "reshard apply %s --shards %s", world->name, *shards);
    for (int i = 0; i < count; i++) pthread_join(workers[i].thread, NULL);
    trainer_digest(&cluster, world->name, root);
    for (int i = 0; i < count; i++) cairn_close(workers[i].session);
}

static void train_in(const struct world *world, int count, char root[65])
{
    static const char *const as_they_are[] = { NULL };
    train_over(world, count, as_they_are, root);
}

static void set_up(void)
{
    static const char *const places[] = { "host-a", "host-b", "host-a" };
    is_on_card = getenv("CAIRN_TEST_MEMORY") != NULL;
    start(3, .shard_hosts = places);
    if (is_on_card) card = emulated_open(NULL);
}

static void tear_down(void)
{
    unsetenv("CAIRN_HOST");
    stop();
}

TEST_EACH(the_sum_is_that_of_the_hosts_sums, 0, 2)
{
    static const int micros[] = { 1, 3 };
    char grouped[65], flat[65];
    const struct world with = { "grouped", 5, micros[_i], true, STEPS };
    const struct world without = { "flat", 5, micros[_i], false, STEPS };
    train_in(&with, with.workers, grouped);
    ask("job show grouped");
    ck_assert_msg(strstr(said.out, "ranks 0,2,4 by shards shard-0, shard-2") != NULL, "%s",
                  said.out);
    train_in(&without, HOSTS, flat);
    ck_assert_str_eq(grouped, flat);
}

/* Who relays for whom is another one each time, and some of it is in the middle of a round. */
TEST(the_sum_is_the_same_when_the_shards_change_meanwhile)
{
    static const char *const shards[] = { "2", "3", NULL };
    char grouped[65], flat[65];
    const struct world with = { "grouped", 5, 1, true, 40 }, without = { "flat", 5, 1, false, 40 };
    if (is_on_card) return; // the state is, too, and does not move while its job goes on
    train_over(&with, with.workers, shards, grouped);
    train_in(&without, HOSTS, flat);
    ck_assert_str_eq(grouped, flat);
}

SUITE(100, set_up, tear_down);
