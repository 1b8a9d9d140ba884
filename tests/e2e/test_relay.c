/* Reduce groups: workers of a host are added up there, and what comes out is what the sums of the hosts,
 * in the order of their least ranks, would have made by themselves. The hosts are played, on one machine:
 * what goes between them goes over ucx. */
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cairn.h>

#include "tests/support/cluster.h"
#include "tests/support/good.h"
#include "tests/support/suite.h"

enum { WAIT_MS = 20000, TENSORS = 4, STEPS = 4, WORKERS_MAX = 5, HOSTS = 2, ELEMS_MAX = 300 * 411 };

static const struct cairn_tensor model[TENSORS] = {
    { .struct_size = sizeof model[0],
      .name = "big",
      .unit = "u",
      .rank = 2,
      .shape = { 300, 411 },
      .init = { CAIRN_INIT_NORMAL, 0, 1, 1 } },
    { .struct_size = sizeof model[0],
      .name = "expert",
      .unit = "v",
      .rank = 2,
      .shape = { 200, 300 },
      .init = { CAIRN_INIT_NORMAL, 0, 1, 2 } },
    { .struct_size = sizeof model[0],
      .name = "half",
      .unit = "u",
      .rank = 2,
      .shape = { 311, 200 },
      .wire = CAIRN_BF16,
      .init = { CAIRN_INIT_NORMAL, 0, 1, 3 } },
    { .struct_size = sizeof model[0],
      .name = "small",
      .unit = "w",
      .rank = 1,
      .shape = { 77 },
      .init = { CAIRN_INIT_ONES, 0, 0, 0 } },
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

static struct cluster cluster;
static struct cluster_said said;
static const char *const hosts[HOSTS] = { "host-a", "host-b" };

static size_t elems_of(int t)
{
    return (size_t)model[t].shape[0] * (model[t].rank > 1 ? (size_t)model[t].shape[1] : 1);
}

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
        for (size_t i = 0; i < elems_of(t); i++)
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
    const struct cairn_job_spec spec = {
        .struct_size = sizeof spec,
        .tensors = model,
        .tensor_count = TENSORS,
        .groups = &adamw,
        .group_count = 1,
        .chunk_leaves = 2,
        .workers_min = (uint32_t)count,
        .rank = (uint32_t)rank,
        .micro_batches = (uint32_t)world->micros,
        .reduce_groups = world->grouped ? CAIRN_GROUPS_HOST : CAIRN_GROUPS_NONE,
    };
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = cluster.address };
    *worker = (struct worker) { .world = world, .rank = world->grouped ? rank : -1 - rank };
    setenv("CAIRN_HOST", hosts[rank % HOSTS], 1);
    good(cairn_open(&opts, &worker->session));
    good(cairn_job_open(worker->session, world->name, &spec, CAIRN_WORKER, WAIT_MS, &worker->job));
}

static void run_step(const struct worker *worker, float *memory[TENSORS])
{
    const struct world *world = worker->world;
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    good(cairn_round_begin(worker->job, WAIT_MS, &round));
    for (int micro = 0; micro < world->micros; micro++) {
        cairn_op *ops[TENSORS];
        int count = 0;
        for (int t = TENSORS - 1; t >= 0; t--) {
            if (!fill(world, worker->rank, round.step, micro, t, memory[t])) continue;
            const struct cairn_mem mem = { .struct_size = sizeof mem,
                                           .ptr = memory[t],
                                           .dtype = CAIRN_F32 };
            good(cairn_push(worker->job, &round, (uint32_t)micro, model[t].name, NULL, &mem,
                            &ops[count++]));
        }
        good(cairn_micro_end(worker->job, &round, (uint32_t)micro));
        for (int i = 0; i < count; i++) good(cairn_wait(ops[i], WAIT_MS));
    }
    good(cairn_commit(worker->job, &round, weight_of(world, worker->rank), NULL, 0, WAIT_MS,
                      &result));
    ck_assert(result.applied);
}

static void *run_worker(void *arg)
{
    const struct worker *worker = arg;
    float *memory[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        void *room;
        good(cairn_alloc(worker->session, elems_of(t) * sizeof(float), -1, &room));
        memory[t] = room;
    }
    good(cairn_init_done(worker->job, NULL, WAIT_MS));
    for (int step = 0; step < worker->world->steps; step++) run_step(worker, memory);
    return NULL;
}

/* Trains, and gives the content root. */
static void train(const struct world *world, int count, char root[128])
{
    struct worker workers[WORKERS_MAX];
    for (int i = 0; i < count; i++) open_worker(&workers[i], world, i, count);
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]), 0);
    for (int i = 0; i < count; i++) pthread_join(workers[i].thread, NULL);
    cluster_cli(&cluster, &said, "job", "digest", "-q", world->name, NULL);
    ck_assert_msg(said.status == 0, "%s", said.err);
    snprintf(root, 128, "%.120s", said.out);
    for (int i = 0; i < count; i++) cairn_close(workers[i].session);
}

static void set_up(void)
{
    static const char *const places[] = { "host-a", "host-b", "host-a" };
    cluster_start(&cluster, 3, &(struct cluster_options) { .shard_hosts = places });
}

static void tear_down(void)
{
    unsetenv("CAIRN_HOST");
    cluster_stop(&cluster);
}

START_TEST(the_sum_is_that_of_the_hosts_sums)
{
    static const int micros[] = { 1, 3 };
    char grouped[128], flat[128];
    const struct world with = { "grouped", 5, micros[_i], true, STEPS };
    const struct world without = { "flat", 5, micros[_i], false, STEPS };
    train(&with, with.workers, grouped);
    cluster_cli(&cluster, &said, "job", "show", "grouped", NULL);
    ck_assert_msg(strstr(said.out, "ranks 0,2,4 by shards shard-0, shard-2") != NULL, "%s",
                  said.out);
    train(&without, HOSTS, flat);
    ck_assert_str_eq(grouped, flat);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("relay");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_loop_test(tcase, the_sum_is_that_of_the_hosts_sums, 0, 2);
    tcase_set_timeout(tcase, 100);
    Suite *suite = suite_create("relay");
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
