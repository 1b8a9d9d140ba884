/* Two nodes of four workers each, as network namespaces with a wire between them, and its counters: with
 * reduce groups a node sends the sum of its workers once, and fetches what the other has once.
 *
 * `test_nodes worker ADDRESS RANK JOB STEPS GATHERS GROUPED` is one of the workers. Needs root. */
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/netns.h"
#include "tests/e2e/scene.h"

enum {
    WAIT_MS = 30000,
    NODES = 2,
    PER_NODE = 4,
    WORKERS = NODES * PER_NODE,
    TENSORS = 4,
    STEPS = 6,
    ATTEMPTS = 3
};
enum { ROWS = 1000, COLUMNS = 1024 };

#define ELEMS ((size_t)ROWS * COLUMNS)
/* Bytes of the model on the wire. */
#define PSI ((double)TENSORS * ELEMS * 2)

/* ---- a worker ---- */

#define need(call)                                             \
    do {                                                       \
        if ((call) != CAIRN_OK) {                              \
            fprintf(stderr, "%s: %s\n", #call, cairn_error()); \
            exit(1);                                           \
        }                                                      \
    } while (0)

static void describe(struct cairn_tensor tensors[TENSORS])
{
    static const char *const names[TENSORS] = { "a", "b", "c", "d" };
    for (int t = 0; t < TENSORS; t++)
        tensors[t] = (struct cairn_tensor) {
            .struct_size = sizeof tensors[t],
            .name = names[t],
            .unit = names[t],
            .wire = CAIRN_BF16,
            .rank = 2,
            .shape = { ROWS, COLUMNS },
            .init = { CAIRN_INIT_NORMAL, 0, 1, (uint64_t)t },
        };
}

static void gather(struct cairn_version version, const struct cairn_tensor *tensors, uint16_t *room)
{
    cairn_op *ops[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        const struct cairn_mem mem = trainer_mem(room + (size_t)t * ELEMS, CAIRN_BF16);
        need(cairn_fetch(job, version, tensors[t].name, NULL, NULL, &mem, &ops[t]));
    }
    for (int t = 0; t < TENSORS; t++) need(cairn_wait(ops[t], WAIT_MS));
}

static void step(const struct cairn_tensor *tensors, uint16_t *grads, struct cairn_result *result)
{
    struct cairn_round round = { .struct_size = sizeof round };
    need(cairn_round_begin(job, WAIT_MS, &round));
    for (int t = 0; t < TENSORS; t++) {
        const struct cairn_mem mem = trainer_mem(grads, CAIRN_BF16);
        need(cairn_push(job, &round, 0, tensors[t].name, NULL, &mem, NULL));
    }
    need(cairn_commit(job, &round, 1, NULL, 0, WAIT_MS, result));
}

static int work(char **argv)
{
    struct cairn_tensor tensors[TENSORS];
    struct cairn_result result = { .struct_size = sizeof result };
    void *grads, *room;
    const int steps = atoi(argv[5]), gathers = atoi(argv[6]);
    describe(tensors);
    const struct cairn_opts opts = { .struct_size = sizeof opts, .endpoint = argv[2] };
    const struct cairn_job_spec spec = TRAINER_SPEC(
        tensors, TENSORS, .workers_min = WORKERS, .rank = (uint32_t)atoi(argv[3]),
        .reduce_groups = atoi(argv[7]) != 0 ? CAIRN_GROUPS_HOST : CAIRN_GROUPS_NONE);
    need(cairn_open(&opts, &session));
    need(cairn_job_open(session, argv[4], &spec, CAIRN_WORKER, WAIT_MS, &job));
    need(cairn_init_done(job, NULL, WAIT_MS));
    need(cairn_alloc(session, ELEMS * 2, 0, &grads));
    need(cairn_alloc(session, TENSORS * ELEMS * 2, 0, &room));
    for (size_t i = 0; i < ELEMS; i++) ((uint16_t *)grads)[i] = (uint16_t)(0x3c00 + i % 512);
    for (int i = 0; i < steps; i++) {
        step(tensors, grads, &result);
        if (gathers != 0) gather(result.version, tensors, room);
    }
    cairn_close(session);
    return 0;
}

/* ---- the nodes ---- */

static char netns[NODES][NETNS_NAME_BYTES];
static const char *const places[NODES] = { netns[0], netns[1] };

static bool make_nodes(void)
{
    bool ok = true;
    for (int n = 0; n < NODES; n++) ok = ok && netns_make(netns[n], (char)('a' + n));
    return ok && netns_wire(netns[0], netns[1], "cairn0", 77);
}

static void drop_nodes(void)
{
    for (int n = 0; n < NODES; n++) (void)netns_drop(netns[n]);
}

/* Bytes that the first node has put on the wire. */
static double sent_bytes(void)
{
    char command[160];
    double bytes = -1;
    snprintf(command, sizeof command,
             "ip netns exec %s cat /sys/class/net/cairn0/statistics/tx_bytes", netns[0]);
    FILE *pipe = popen(command, "re");
    ck_assert_ptr_nonnull(pipe);
    ck_assert_int_eq(fscanf(pipe, "%lf", &bytes), 1);
    pclose(pipe);
    return bytes;
}

/* Bytes of a step from the first node to the second, in Ψ. */
static double train_on(const char *name, bool gathers, bool grouped)
{
    pid_t workers[WORKERS];
    const double before = sent_bytes();
    for (int i = 0; i < WORKERS; i++)
        workers[i] = run_on(netns[i / PER_NODE], "workers.log", "self worker %s %d %s %d %d %d",
                            cluster.address, i, name, STEPS, gathers, grouped);
    for (int i = 0; i < WORKERS; i++)
        ck_assert_msg(cluster_wait(workers[i], CLUSTER_WAIT_MS) == 0, "worker %d: see %s", i,
                      cluster.folder);
    return (sent_bytes() - before) / STEPS / PSI;
}

static void set_up(void)
{
    static const char *const shard_set[] = { "fabric.device=cairn0", "memory.limit=2GiB", NULL };
    setenv("CAIRN_FABRIC_DEVICE", "cairn0", 1);
    start(NODES, .shard_set = shard_set, .shard_netns = places, .coordinator_ip = "10.77.0.1");
}

static void tear_down(void)
{
    stop();
}

/* False: more, as it may be when a shard says later than a worker waits for it who relays. Then what
 * the worker sends or asks for goes to the owner itself. */
static bool crosses_once(int attempt)
{
    char pushes[16], gathers[16];
    snprintf(pushes, sizeof pushes, "pushes-%d", attempt);
    snprintf(gathers, sizeof gathers, "gathers-%d", attempt);
    const double pushed = train_on(pushes, false, true);
    const double fetched = train_on(gathers, true, true) - pushed;
    printf("bytes of a step from a node, in Ψ: push %.2f, fetch %.2f\n", pushed, fetched);
    return pushed <= 1.1 * 2 / 2 /* fp32 sums of bf16 */ && fetched <= 1.1 / 2;
}

TEST(a_node_sends_one_sum_and_fetches_everything_once)
{
    int attempt = 0;
    // Half of the model is the other node's: each worker by itself would send Ψ / 2, and fetch as much.
    while (!crosses_once(attempt)) ck_assert_msg(++attempt < ATTEMPTS, "more than once, each time");
    const double alone = train_on("alone", true, false);
    printf("without groups both %.2f\n", alone);
    ck_assert(alone >= 3.5);
}

SUITE(200, set_up, tear_down);

int main(int argc, char **argv)
{
    if (argc == 8 && strcmp(argv[1], "worker") == 0) return work(argv);
    return netns_suite_main(make_nodes, drop_nodes);
}
