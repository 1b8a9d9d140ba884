/* cairn bench recover: how long a training run stands still when a shard dies. Worker processes step, a
 * shard is killed at any moment of a step, and the figure is the time from the kill until the next step is
 * committed, as the slowest worker learns of it.
 *
 *   --tier process   the shard's process is killed; its keeper has its memory, and starts the next process.
 *                    With --planned the keeper is asked to exchange the process, as for an upgrade
 *   --tier log       all shards are killed, as when all hosts lose power, and started again at once. Each
 *                    makes its part again from its log
 *   --tier peer      the shard is killed with its keeper, as a host dies. Each shard has a standby, which
 *                    takes its place; then the shard that died is started as the standby of that one
 *
 * The reference is what a trainer does today on this machine: torchrun notices that a worker was killed and
 * starts it again, it loads the same parameters and moments by torch.distributed.checkpoint, and makes a
 * step (torch_recover.py). Its checkpoint was just written, so it comes out of the page cache. Without torch,
 * a line says so, and the reference is the least that any restart from a checkpoint does: to read its bytes
 * from the disk. The reference is measured before the workers start, so that both never need memory at
 * once. */
#include "client/ctl/bench/bench.h"
#include "bench/torch_recover.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/statvfs.h>

#include "client/ctl/ctl.h"

#define RECOVER_PARAMS_DEFAULT 64000000u
#define TENSORS_DEFAULT        64
#define KILLS_DEFAULT          30
#define STATE_BYTES            12 /* per element in a checkpoint: the parameter, two moments */
#define SHARD_BYTES            28 /* per element: its state, with the shard's other memory */
#define TORCH_BYTES            20 /* per element: the state, its gradient, and what a load takes beside */
#define ON_DISK                1.1
#define ON_DISK_LOGGED         11 /* logs of eight times the state (log.budget), and snapshots */
#define REFERENCES             3  /* so often the reference is measured */
#define STEPS_BETWEEN          3  /* undisturbed steps before each kill */
#define ON_ITS_WAY_S           0.01

struct recover_bench {
    struct bench b;
    double references[REFERENCES];
    uint32_t reference_count, reference_next;
    struct bench_disk disk;
    double step_s;   /* of the last undisturbed step */
    uint64_t redone; /* steps that workers computed again */
    unsigned seed;   /* of the moments of kills */
    uint32_t victim; /* the last one, of the first shards */
    int owner[1 +
              CTL_SHARDS_MAX]; /* by place: the shard that has it, and its standby at tier peer */
    int standby[1 + CTL_SHARDS_MAX];
};

/* ==== worker ==== */

enum { ORDER_STEP = 1 };
/* Figures of a step. The times are those of bench_now. */
enum {
    FIGURE_ALL,
    FIGURE_COMMITS,
    FIGURE_COMMITTED,
    FIGURE_REDONE,
    FIGURE_RECOVERED,
    FIGURE_BEYOND
};

/* In the worker's process. */
struct recover_worker {
    const struct recover_bench *bench;
    struct bench_member member;
    char *grads, *params;
    cairn_op *ops[BENCH_TENSORS_MAX];
};

static cairn_status push_all(void *own, const struct cairn_round *round)
{
    struct recover_worker *w = own;
    return bench_push_each(&w->member, &w->bench->b.model, round, 0, w->grads);
}

static cairn_status fetch_all(void *own, struct cairn_version version)
{
    struct recover_worker *w = own;
    const struct bench_model *model = &w->bench->b.model;
    cairn_status status = bench_fetch_each(&w->member, model, version, w->params, w->ops);
    for (uint32_t i = 0; i < model->tensors && status == CAIRN_OK; i++)
        status = cairn_wait(w->ops[i], BENCH_CALL_MS);
    return status;
}

/* Makes a step as a trainer does: a round that the members' change has ended is computed again. */
static bool obey_recover(void *own, const struct bench_order *order, struct bench_report *report)
{
    struct recover_worker *w = own;
    struct bench_step step = { w->member.job, 1, push_all, fetch_all, .own = w };
    cairn_status status;
    const double begin = bench_now();
    (void)order;
    *report = (struct bench_report) { { 0 } };
    do {
        status = bench_step_do(&step);
    } while ((status == CAIRN_ERR_EPOCH_CHANGED || status == CAIRN_ERR_STALE) &&
             ++report->figures[FIGURE_REDONE] > 0);
    report->figures[FIGURE_ALL] = step.at[4] - begin;
    report->figures[FIGURE_COMMITS] = step.at[2];
    report->figures[FIGURE_COMMITTED] = step.at[3];
    return bench_is_ok(status);
}

static int work_recover(const struct bench_worker *worker)
{
    static struct recover_worker w;
    w.bench = worker->bench;
    const struct bench_model *model = &w.bench->b.model;
    const size_t bytes = model->tensors * bench_model_bytes(model);
    void *grads = NULL, *params = NULL;
    if (!bench_member_open(&w.member, model, worker)) return 1;
    cairn_status status = cairn_alloc(w.member.session, bytes, 0, &grads);
    if (status == CAIRN_OK) status = cairn_alloc(w.member.session, bytes, 0, &params);
    if (!bench_is_ok(status)) return 1;
    w.grads = memset(grads, 1, bytes);
    w.params = memset(params, 1, bytes);
    return bench_serve(worker, &w.member, obey_recover, &w);
}

/* ==== tier ==== */

/* Steps until the whole job is safe, and then some more. Returns false after printing the error. */
static bool await_safe(struct recover_bench *r)
{
    r->step_s = bench_tier_await(&r->b, ORDER_STEP) ? 1 : 0;
    for (int i = 0; i < STEPS_BETWEEN && r->step_s > 0; i++)
        r->step_s = bench_order(&r->b, ORDER_STEP, 1);
    return r->step_s > 0;
}

static int open_tier(struct recover_bench *r)
{
    for (int i = 1; i <= (int)r->b.ctl->shards; i++) {
        r->owner[i] = i;
        r->standby[i] = (int)r->b.ctl->shards + i;
    }
    return bench_tier_open(&r->b);
}

/* ==== kill ==== */

/* Waits until the keeper has a process of the shard. */
static pid_t await_process(const struct recover_bench *r, int shard)
{
    pid_t process;
    while ((process = local_shard_process(r->b.local, shard)) == 0 &&
           !bench_is_interrupted(r->b.local)) {}
    return process;
}

/* All shards die, and are started again. */
static int lose_power(struct local *local)
{
    int done = -1;
    for (int i = 1; i < local->daemon_count; i++) local_shard_kill(local, i);
    for (int i = 1; i < local->daemon_count && done < 0; i++) done = local_shard_start(local, i, 0);
    return done;
}

/* Lets a shard die. Returns when, or 0 if the bench is over. */
static double kill_shard(struct recover_bench *r)
{
    struct local *local = r->b.local;
    const int shard = r->owner[r->victim];
    const pid_t process = await_process(r, shard);
    if (process == 0) return 0;
    const double now = bench_now();
    if (r->b.ctl->bench.is_planned)
        kill(local->daemons[shard].pid, SIGUSR2);
    else if (r->b.tier == BENCH_TIER_PROCESS)
        kill(process, SIGKILL);
    else if (r->b.tier == BENCH_TIER_PEER)
        local_shard_kill(local, shard);
    else
        return lose_power(local) < 0 ? now : 0;
    return now;
}

/* The standby that took the place of the victim gets a standby: the victim. */
static int restore_tier(struct recover_bench *r)
{
    if (r->b.tier != BENCH_TIER_PEER) return -1;
    const int died = r->owner[r->victim];
    r->owner[r->victim] = r->standby[r->victim];
    r->standby[r->victim] = died;
    return local_shard_start(r->b.local, died, r->owner[r->victim]);
}

static void sleep_s(double seconds)
{
    const struct timespec time = { .tv_sec = (time_t)seconds,
                                   .tv_nsec = (long)((seconds - floor(seconds)) * 1e9) };
    nanosleep(&time, NULL);
}

/* True if the step of the last order was committed behind the kill. A commit that returned right behind the
 * kill was on its way before. */
static bool is_behind(const struct recover_bench *r, double killed)
{
    const double *figures = r->b.figures;
    const double s = figures[FIGURE_COMMITTED] - killed;
    return s > ON_ITS_WAY_S || (s > 0 && figures[FIGURE_COMMITS] > killed);
}

/* Kills a shard at any moment of a step; returns the seconds until the next commit. */
static double recover_once(void *bench)
{
    struct recover_bench *r = bench;
    if (!await_safe(r)) return 0;
    r->victim = r->victim % r->b.ctl->shards + 1;
    if (!bench_order_begin(&r->b, ORDER_STEP, 1)) return 0;
    sleep_s(r->step_s * (rand_r(&r->seed) % 1000) * 1e-3);
    const double killed = kill_shard(r);
    if (!(killed > 0) || !(bench_order_end(&r->b) > 0)) return 0;
    r->redone += (uint64_t)r->b.figures[FIGURE_REDONE];
    while (!is_behind(r, killed)) {
        if (!(bench_order(&r->b, ORDER_STEP, 1) > 0)) return 0;
        r->redone += (uint64_t)r->b.figures[FIGURE_REDONE];
    }
    const double seconds = r->b.figures[FIGURE_COMMITTED] - killed;
    r->b.figures[FIGURE_ALL] = r->step_s;
    r->b.figures[FIGURE_RECOVERED] = seconds;
    r->b.figures[FIGURE_BEYOND] = seconds - r->step_s;
    return restore_tier(r) < 0 ? seconds : 0;
}

/* ==== reference ==== */

/* Measures restarts of torchrun. 1: they are measured; 0: there is no such torch; -1: a signal came. */
static int measure_torch(struct recover_bench *r)
{
    const uint64_t elems = bench_model_params(&r->b.model);
    uint32_t *count = &r->reference_count;
    for (*count = 0; *count < REFERENCES && *count < r->b.runs_wanted; (*count)++) {
        double numbers[2] = { 0 };
        const int is_there = bench_torch_run(r->b.local, torch_recover, elems, 1, numbers);
        if (is_there <= 0 || !(numbers[0] > 0)) return is_there < 0 ? -1 : 0;
        r->references[*count] = numbers[0];
    }
    return 1;
}

static int measure_disk(struct recover_bench *r)
{
    r->disk = (struct bench_disk) { .b = &r->b,
                                    .bytes = bench_model_params(&r->b.model) * STATE_BYTES };
    r->b.result.reference_name = "reading as many bytes as a checkpoint has from the disk";
    for (r->reference_count = 0; r->reference_count < REFERENCES; r->reference_count++) {
        const double speed = bench_disk_read(&r->disk);
        if (!(speed > 0)) return 1;
        r->references[r->reference_count] = (double)r->disk.bytes * 1e-9 / speed;
    }
    return -1;
}

static int open_recover(void *bench)
{
    struct recover_bench *r = bench;
    const int is_there = measure_torch(r);
    if (is_there < 0) return 1;
    if (is_there == 0)
        fprintf(stderr, "skip: torchrun: no python3 has torch with torch.distributed.checkpoint\n");
    const int done = is_there == 0 ? measure_disk(r) : -1;
    return done < 0 ? open_tier(r) : done;
}

static double next_reference(void *bench)
{
    struct recover_bench *r = bench;
    return r->references[r->reference_next++ % r->reference_count];
}

/* ==== the row ==== */

/* Says what the bench needs, and refuses if it is not there. */
static int check_recover(const struct recover_bench *r)
{
    struct statvfs fs;
    const struct bench *b = &r->b;
    const uint64_t elems = bench_model_params(&b->model);
    const uint64_t copies = b->tier == BENCH_TIER_PEER ? 2 : 1;
    const uint64_t worker = 2 * (b->model.wire == CAIRN_F32 ? 4 : 2);
    const uint64_t cluster = elems * (copies * SHARD_BYTES + b->workers * worker);
    const uint64_t torch = elems * TORCH_BYTES, bytes = cluster > torch ? cluster : torch;
    const double copies_there = b->tier == BENCH_TIER_LOG ? ON_DISK_LOGGED : ON_DISK;
    const uint64_t on_disk = (uint64_t)((double)(elems * STATE_BYTES) * copies_there);
    const char *folder = getenv("TMPDIR");
    if (folder == NULL || folder[0] == '\0') folder = "/tmp";
    fprintf(stderr, "note: this takes up to %s of memory, and ", ctl_bytes(bytes));
    fprintf(stderr, "%s in %s\n", ctl_bytes(on_disk), folder);
    const int done = bench_check_memory(bytes, " of memory", "--params");
    if (done >= 0) return done;
    if (statvfs(folder, &fs) != 0 || (uint64_t)fs.f_bavail * fs.f_frsize >= on_disk) return -1;
    return ctl_fail(CAIRN_ERR_NO_SPACE,
                    "the bench needs %s in %s, %s are free; give fewer --params, or set TMPDIR",
                    ctl_bytes(on_disk), folder, ctl_bytes((uint64_t)fs.f_bavail * fs.f_frsize));
}

static int prepare_recover(void *bench)
{
    struct recover_bench *r = bench;
    struct bench *b = bench;
    const struct ctl_bench *asked = &b->ctl->bench;
    if (b->tier == BENCH_TIER_NONE) b->tier = BENCH_TIER_PROCESS;
    if (asked->is_planned && b->tier != BENCH_TIER_PROCESS)
        return ctl_usage_fail(b->ctl,
                              "--planned: the process is exchanged, so its tier is process");
    const uint32_t most = b->tier == BENCH_TIER_PEER ? CTL_SHARDS_MAX / 2 : CTL_SHARDS_MAX;
    if (b->ctl->shards > most)
        return ctl_fail(CAIRN_ERR_INVALID, "--shards %u: 1 to %u is allowed", b->ctl->shards, most);
    b->runs_wanted = asked->kills > 0 ? asked->kills : KILLS_DEFAULT;
    r->seed = 1;
    bench_add_params(b, json_pack("{s:s, s:b, s:I}", "tier", bench_tier_name(b->tier), "planned",
                                  asked->is_planned, "kills", (json_int_t)b->runs_wanted));
    return check_recover(r);
}

static int report_recover(void *bench)
{
    struct recover_bench *r = bench;
    struct bench *b = bench;
    if (!await_safe(r)) return 1; // the last shard that died is safe again, too
    double *values = b->series[BENCH_SUBJECT].values[FIGURE_RECOVERED] + 1;
    const uint32_t count = b->result.runs;
    bench_spread_of(values, count); // sorts them
    BENCH_PARTS(b, { "p99_s", values[(uint32_t)ceil(0.99 * count) - 1] },
                { "step_s", bench_median(b, BENCH_SUBJECT, FIGURE_ALL) },
                { "beyond_a_step_s", bench_median(b, BENCH_SUBJECT, FIGURE_BEYOND) });
    bench_add_count(b, "steps_computed_again", r->redone);
    bench_add_count(b, "reference_runs", r->reference_count);
    return -1;
}

const struct bench_row bench_recover = {
    .name = "recover",
    .unit = "s",
    .reference_name = "torchrun starts the workers again, which load a checkpoint and step",
    .less_is_better = true,
    .in_cluster = true,
    .bytes = sizeof(struct recover_bench),
    .params_told = "params tensors workers shards threads wire",
    .shards = 2,
    .workers = 1,
    .tensors = TENSORS_DEFAULT,
    .params = RECOVER_PARAMS_DEFAULT,
    .wire = CAIRN_BF16,
    .prepare = prepare_recover,
    .open = open_recover,
    .work = work_recover,
    .run = recover_once,
    .reference = next_reference,
    .report = report_recover,
};
