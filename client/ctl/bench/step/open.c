/* cairn bench open: what others feel while a job of very many tensors is opened, in a cluster of the bench's
 * own. One process steps a small job all the time; another opens a new job of 300,000 tensors of 3 elements,
 * again and again. The subject is the longest step of the first one while the other opens, the reference its
 * longest step in as long a time at rest.
 *
 * The parts: how long an opening took (open_s), and what of memory it left in the trainer for each tensor
 * (trainer_bytes_a_tensor), by its greatest resident memory. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/model.h"

#define TENSORS_DEFAULT 300000
#define RUNS            5
#define OPEN_MS         300000
#define NAME_BYTES      24

/* Shared with the processes. */
struct shared {
    atomic_bool measuring;
    _Atomic double longest_s; /* step since measuring began */
    double open_s, trainer_bytes;
};

struct open_bench {
    struct cairn_bench_result *result;
    struct cairn_bench_crew crew;
    struct shared *shared;
    uint32_t tensors, runs;
    double open_s[RUNS + 1], trainer_bytes[RUNS + 1];
};

/* ---- who steps all the time ---- */

static bool step_once(struct cairn_bench_member *member, const float *gradient)
{
    const struct cairn_mem mem = { .struct_size = sizeof mem,
                                   .ptr = (void *)(uintptr_t)gradient,
                                   .dtype = CAIRN_F32 };
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    cairn_status status = cairn_round_begin(member->job, CAIRN_BENCH_CALL_MS, &round);
    if (status == CAIRN_OK)
        status = cairn_push(member->job, &round, 0, member->names[0], NULL, &mem, NULL);
    if (status == CAIRN_OK)
        status = cairn_commit(member->job, &round, 1, NULL, 0, CAIRN_BENCH_CALL_MS, &result);
    return status == CAIRN_ERR_EPOCH_CHANGED || cairn_bench_is_ok(status);
}

static int step_for_ever(const struct cairn_bench_worker *worker)
{
    static struct cairn_bench_member member;
    static float gradient[CAIRN_BENCH_COLUMNS];
    const struct open_bench *bench = worker->plan;
    struct shared *shared = bench->shared;
    const struct cairn_bench_model model = {
        .job = "bench.open.small", .tensors = 1, .rows = 1, .wire = CAIRN_F32
    };
    const struct cairn_bench_report ready = { { 1 } };
    const pid_t parent = getppid();
    if (!cairn_bench_member_open(&member, &model, worker) ||
        !cairn_bench_worker_report(worker, &ready))
        return 1;
    while (getppid() == parent) {
        const double begin = cairn_bench_now();
        if (!step_once(&member, gradient)) return 1;
        const double took = cairn_bench_now() - begin;
        if (atomic_load(&shared->measuring) && took > atomic_load(&shared->longest_s))
            atomic_store(&shared->longest_s, took);
    }
    return 0;
}

/* ---- who opens ---- */

static double resident_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss * 1024;
}

static int open_many(const struct open_bench *bench)
{
    struct cairn_tensor *tensors = calloc(bench->tensors, sizeof *tensors);
    char(*names)[NAME_BYTES] = calloc(bench->tensors, sizeof *names);
    const struct cairn_opts opts = { .struct_size = sizeof opts };
    const struct cairn_group group = CAIRN_GROUP_INIT;
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = tensors,
                                         .tensor_count = bench->tensors,
                                         .groups = &group,
                                         .group_count = 1 };
    char job_name[64];
    cairn *session;
    cairn_job *job;
    if (tensors == NULL || names == NULL) return 1;
    for (uint32_t i = 0; i < bench->tensors; i++) {
        snprintf(names[i], NAME_BYTES, "block.%u.scale", i);
        tensors[i] = (struct cairn_tensor) { .struct_size = sizeof *tensors,
                                             .name = names[i],
                                             .unit = "all",
                                             .rank = 1,
                                             .shape = { 3 },
                                             .init = { .kind = CAIRN_INIT_ONES } };
    }
    snprintf(job_name, sizeof job_name, "bench.open.%u", bench->runs);
    if (!cairn_bench_is_ok(cairn_open(&opts, &session))) return 1;
    const double before = resident_bytes(), begin = cairn_bench_now();
    cairn_status status = cairn_job_open(session, job_name, &spec, CAIRN_WORKER, OPEN_MS, &job);
    if (status == CAIRN_OK) status = cairn_init_done(job, NULL, OPEN_MS);
    bench->shared->open_s = cairn_bench_now() - begin;
    bench->shared->trainer_bytes = (resident_bytes() - before) / bench->tensors;
    if (!cairn_bench_is_ok(status)) return 1;
    cairn_close(session);
    free(tensors);
    free(names);
    return 0;
}

/* ---- subject and reference ---- */

static double longest(struct open_bench *bench)
{
    atomic_store(&bench->shared->measuring, false);
    return atomic_load(&bench->shared->longest_s);
}

static void measure(struct open_bench *bench)
{
    atomic_store(&bench->shared->longest_s, 0);
    atomic_store(&bench->shared->measuring, true);
}

/* 0: it failed, and has said why. */
static double run_opening(struct open_bench *bench)
{
    int status = 0;
    measure(bench);
    const pid_t child = fork();
    if (child == 0) _exit(open_many(bench));
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 0;
    bench->open_s[bench->runs] = bench->shared->open_s;
    bench->trainer_bytes[bench->runs] = bench->shared->trainer_bytes;
    return longest(bench);
}

static double run_at_rest(struct open_bench *bench)
{
    const double s = bench->open_s[bench->runs];
    measure(bench);
    usleep((useconds_t)(s * 1e6));
    return longest(bench);
}

static int run_all(struct open_bench *bench, struct local *local)
{
    double opening[RUNS], rest[RUNS], ratio[RUNS];
    for (bench->runs = 0; bench->runs < RUNS; bench->runs++) {
        const uint32_t i = bench->runs;
        opening[i] = run_opening(bench);
        if (opening[i] <= 0) return 1;
        rest[i] = run_at_rest(bench);
        ratio[i] = rest[i] / opening[i];
        if (cairn_bench_is_interrupted(local)) return 1;
    }
    bench->result->value = cairn_bench_spread_of(opening, RUNS);
    bench->result->reference = cairn_bench_spread_of(rest, RUNS);
    bench->result->ratio = cairn_bench_spread_of(ratio, RUNS);
    bench->result->runs = RUNS;
    bench->result->parts = json_pack(
        "{s:f, s:f}", "open_s", cairn_bench_spread_of(bench->open_s, RUNS).median,
        "trainer_bytes_a_tensor", cairn_bench_spread_of(bench->trainer_bytes, RUNS).median);
    return -1;
}

static int run_there(struct local *local, void *context)
{
    struct open_bench *bench = context;
    int done = 1;
    if (cairn_bench_crew_start(&bench->crew, local, 1, step_for_ever, bench))
        done = run_all(bench, local);
    cairn_bench_crew_stop(&bench->crew);
    return done;
}

int cairn_bench_open(struct ctl *ctl)
{
    static struct open_bench bench;
    static struct local local;
    struct cairn_bench_result result = { .bench = "open",
                                         .unit = "s",
                                         .reference_name = "the longest step at rest",
                                         .less_is_better = true };
    if (ctl->shards == 0) ctl->shards = 2;
    local.ctl = ctl;
    bench.result = &result;
    bench.tensors = ctl->bench.tensors > 0 ? ctl->bench.tensors : TENSORS_DEFAULT;
    bench.shared = mmap(NULL, sizeof *bench.shared, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (bench.shared == MAP_FAILED)
        return cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "no memory for the bench");
    const int done = cairn_local_run(&local, run_there, &bench);
    if (done >= 0) return done;
    result.params = json_pack("{s:I, s:I}", "tensors", (json_int_t)bench.tensors, "shards",
                              (json_int_t)ctl->shards);
    return cairn_bench_print(&result, ctl);
}
