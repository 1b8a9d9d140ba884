/* A shard is killed before a system call that it makes while a worker comes, trains and goes, whichever
 * call that is: one that has a keeper, and one that has a log alone, as if its host had lost power. The
 * worker hears of nothing that it cannot go on from, and the content root is that of a run that nobody
 * disturbs.
 *
 * Which call it is goes by its number: of all threads of the process, in the order in which they come. Some
 * are tried; CAIRN_TEST_LONG=1: all, until a worker has come and gone undisturbed. */
#include <signal.h>
#include <stdlib.h>

#include "tests/e2e/elastic_worker.h"
#include "tests/e2e/scene.h"
#include "tests/support/call_fault.h"

enum { TRACED_STEPS = 2, SOME_CALLS = 12, TURN_MS = 20, TIERS = 2 };

static const char *const tiers[TIERS] = { "process", "log" };
static bool is_kept;

static int resumed(void)
{
    return logged("shard-0.log", "as the process before left it");
}

/* The worker's exit status. A shard without a keeper is started again here, when it was killed; the worker
 * may end before that does. */
static int await_worker(struct tracer *tracer, const struct call_fault *fault, pid_t worker)
{
    const int64_t end_ms = now_ms() + CLUSTER_WAIT_MS;
    int status = -1;
    if (is_kept) return tracer_await(tracer, worker, CLUSTER_WAIT_MS);
    while (now_ms() < end_ms && (fault->met == NULL ? status : tracer->status) == -1) {
        if (status == -1)
            status = tracer_await(tracer, worker, TURN_MS);
        else
            (void)tracer_await(tracer, tracer->process, TURN_MS);
    }
    if (fault->met == NULL) return status;
    tracer_detach(tracer);
    cluster.shards[0] = 0;
    cluster_restart_shard(&cluster, 0);
    return status != -1 ? status : cluster_wait(worker, CLUSTER_WAIT_MS);
}

/* A worker comes, trains a few steps and goes while the shard is traced. The calls that the shard made are
 * counted in `fault`, and the shard is killed before the n-th. */
static void train_traced(struct elastic_shared *shared, struct call_fault *fault)
{
    struct tracer tracer;
    const int before = resumed();
    atomic_fetch_add(&shared->until, TRACED_STEPS);
    tracer_attach(&tracer, is_kept ? cluster_shard_process(&cluster, 0) : cluster.shards[0],
                  call_fault_judge, fault);
    const pid_t worker = elastic_start(cluster.address, &elastic_models[0], 0, shared);
    const int status = await_worker(&tracer, fault, worker);
    tracer_detach(&tracer);
    ck_assert_msg(status == 0, "a worker ends with %d, a shard killed before call %u, %s", status,
                  fault->nth, fault->met != NULL ? fault->met : "which never came");
    if (fault->met != NULL) await(resumed() > before);
}

/* The part survives the next death. */
static void make_ready(void)
{
    const char *name = elastic_models[0].name;
    if (!is_kept) await((ask("job show %s", name), strstr(said.out, "log; log is asked") != NULL));
    // Each death doubles the keeper's pause. A process that is exchanged for another one is forgiven.
    if (is_kept && getenv("CAIRN_TEST_LONG") != NULL) cluster_renew_shard(&cluster, 0, SIGUSR2);
}

static void start_tier(void)
{
    logs_begin();
    start(1, .shards_kept = is_kept, .shard_set = is_kept ? NULL : SETTINGS(logs_setting));
}

TEST_EACH(a_shard_killed_before_any_call_that_it_makes_in_a_step_changes_no_bit, 0, TIERS)
{
    const bool is_long = getenv("CAIRN_TEST_LONG") != NULL;
    const char *only = getenv("CAIRN_TEST_TIER");
    struct elastic_shared *shared = elastic_share();
    struct call_fault making = { .nth = 0 }, all = { .nth = 0 }, fault;
    char root[CLUSTER_WORD_BYTES], root_of_calm[CLUSTER_WORD_BYTES];
    unsigned nth = 0, kills = 0;
    if (only != NULL && strcmp(only, tiers[_i]) != 0) return;
    is_kept = _i == 0;
    start_tier();
    train_traced(shared, &making); // the job is made
    if (!is_kept) says(0, "", "job durability %s log -q", elastic_models[0].name);
    make_ready();
    train_traced(shared, &all);
    do {
        nth += is_long ? 1 : 1 + all.count / SOME_CALLS;
        fault = (struct call_fault) { .nth = nth, .fate = TRACER_KILLS };
        make_ready();
        train_traced(shared, &fault);
        kills += fault.met != NULL;
    } while (fault.met != NULL && (is_long || nth < all.count));
    word_of(root, "job digest -q %s", elastic_models[0].name);
    ck_assert_uint_eq(atomic_load(&shared->rolled_back), 0);
    logs_end();

    start(1);
    struct elastic_run calm = elastic_begin(&elastic_models[0], atomic_load(&shared->until));
    elastic_end(&calm, root_of_calm);
    stop();
    printf("note: %s: a shard killed before %u of some %u system calls of %d steps\n", tiers[_i],
           kills, all.count, TRACED_STEPS);
    ck_assert_str_eq(root, root_of_calm);
    ck_assert_uint_gt(kills, SOME_CALLS / 2);
}

SUITE(getenv("CAIRN_TEST_LONG") != NULL ? 2400 : 90);

int main(void)
{
    return tracer_works() ? suite_main() : SUITE_SKIPPED;
}
