/* cairn bench latency; also measures how much of a core idle daemons use. */
#include "client/ctl/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "client/ctl/ctl.h"
#include "gpu/gpu.h"

/* ==== idle ==== */

/* Measures how much processor time the daemons of the bench's own cluster use while nothing
 * happens. The time is that of all threads, in nanoseconds, so other load on the machine does not
 * change the figure. */

#define BENCH_IDLE_LIMIT 0.5 /* percent of a core, per daemon */

#define SETTLE_S 0.2 /* for work still in flight after the last round */

/* Waits for `seconds`. False: a daemon ended (a message was printed), or a signal came. */
static bool let_go_by(struct local *local, double seconds)
{
    const double end_s = bench_now() + seconds;
    for (double left_s = seconds; left_s > 0; left_s = end_s - bench_now()) {
        const int number = local_signal(local, (int)(left_s * 1000) + 1, NULL);
        if (number != 0 && number != SIGCHLD) return false; // the user sent this signal
        if (local_daemons_reap(local) > 0) return false;
    }
    return true;
}

/* Waits for `seconds` and computes the percentage of one core that the busiest daemon used. Attached
 * workers are idle meanwhile. False: a daemon ended (a message was printed), or a signal came. */
static bool idle_percent(struct local *local, double seconds, double *percent_out)
{
    double before_s[1 + CTL_SHARDS_MAX], most_s = 0;
    if (!let_go_by(local, SETTLE_S)) return false;
    const double begin_s = bench_now();
    for (int i = 0; i < local->daemon_count; i++) before_s[i] = bench_used_s(local->daemons[i].pid);
    if (!let_go_by(local, seconds)) return false;
    for (int i = 0; i < local->daemon_count; i++) {
        const double s = bench_used_s(local->daemons[i].pid);
        if (before_s[i] < 0 || s < 0) {
            (void)ctl_fail(CAIRN_ERR_IO, "the processor time of %s cannot be read",
                           local->daemons[i].name);
            return false;
        }
        if (s - before_s[i] > most_s) most_s = s - before_s[i];
    }
    *percent_out = most_s / (bench_now() - begin_s) * 100;
    return true;
}

/* ==== latency ==== */

/* cairn bench latency: measures an empty step, which pushes nothing and updates a tiny model. The
 * time of such a step is the least cost of a round, whatever the model. The path of its messages,
 * from the last worker that begins to the first worker that has the result, is eight hops long:
 *
 *   worker ──begin──► coordinator ──open──► shard ──grant──► worker ──end of micro-batch, commit──► shard
 *     ──reduced──► coordinator ──decide──► shard ──published──► coordinator ──result──► worker
 *
 * So the reference is eight times half a round trip, by raw TCP over loopback, between two
 * processes that do nothing else. Each of the two sleeps in read() until the 128 bytes of the other
 * arrive.
 *
 * The parts are measured in a second cluster of the same kind, whose shards log the times of their progress
 * (bench.h). A worker records its begin and end by the same clock. Each part ends when the last shard, or
 * the last worker, has finished this part.
 *
 * idle_percent is the share of a core that the busiest daemon uses while all workers are attached
 * and none begins a round. Waiting should cost almost nothing (idle_percent_limit). The share is
 * not measured on the user's own cluster (--endpoint), whose processes this bench does not
 * inspect. */

#define HOPS         8
#define BLOCK_ROUNDS 200
#define PART_ROUNDS  500
#define ROW_COUNT    4 /* 16 KiB of parameters per tensor: one leaf each */
#define PING_BYTES   128
#define PINGS        1000
#define IDLE_S_MIN   1.0
#define IDLE_S_MAX   5.0

enum { ORDER_EMPTY = 1, ORDER_PUSH = 2, ORDER_ACK = 3 };
enum { FIGURE_STEP, FIGURE_BEGIN, FIGURE_COMMIT, FIGURE_P99, FIGURE_ACK };

struct stamp {
    uint64_t round;
    double begin_us, result_us;
};

struct latency_bench {
    struct bench b;
    /* shared: [workers][PART_ROUNDS], of the workers' last PART_ROUNDS rounds */
    struct stamp *stamps;
    int ping_fd;
    pid_t echo;
};

/* ---- a worker ---- */

struct block {
    double step[BLOCK_ROUNDS], begin[BLOCK_ROUNDS], commit[BLOCK_ROUNDS], ack[BLOCK_ROUNDS];
    float gradient[ROW_COUNT * BENCH_COLUMNS];
};

static double now_us(void)
{
    return bench_now() * 1e6;
}

static bool run_round(struct bench_member *m, struct block *block, uint32_t word, uint32_t i,
                      struct stamp *stamp)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    struct cairn_mem gradient = { .struct_size = sizeof gradient,
                                  .ptr = block->gradient,
                                  .dtype = CAIRN_F32 };
    cairn_op *op = NULL;
    const double begin_us = now_us();
    cairn_status status = cairn_round_begin(m->job, BENCH_CALL_MS, &round);
    const double opened_us = now_us();
    if (status == CAIRN_OK && word != ORDER_EMPTY)
        status = cairn_push(m->job, &round, 0, m->names[0], NULL, &gradient, &op);
    if (status == CAIRN_OK && word == ORDER_ACK) status = cairn_wait(op, BENCH_CALL_MS);
    const double pushed_us = now_us();
    if (status == CAIRN_OK)
        status = cairn_commit(m->job, &round, 1, NULL, 0, BENCH_CALL_MS, &result);
    const double result_us = now_us();
    if (status == CAIRN_OK && word == ORDER_PUSH) status = cairn_wait(op, BENCH_CALL_MS);
    block->step[i % BLOCK_ROUNDS] = result_us - begin_us;
    block->begin[i % BLOCK_ROUNDS] = opened_us - begin_us;
    block->ack[i % BLOCK_ROUNDS] = pushed_us - opened_us;
    block->commit[i % BLOCK_ROUNDS] = result_us - pushed_us;
    *stamp = (struct stamp) { round.round, begin_us, result_us };
    return bench_is_ok(status);
}

static struct bench_report report_of(struct block *block, uint32_t count)
{
    struct bench_report report = { { 0 } };
    if (count > BLOCK_ROUNDS) count = BLOCK_ROUNDS;
    report.figures[FIGURE_STEP] = bench_spread_of(block->step, count).median;
    report.figures[FIGURE_P99] = block->step[count - 1 - count / 100]; // sorted by the call above
    report.figures[FIGURE_BEGIN] = bench_spread_of(block->begin, count).median;
    report.figures[FIGURE_COMMIT] = bench_spread_of(block->commit, count).median;
    report.figures[FIGURE_ACK] = bench_spread_of(block->ack, count).median;
    return report;
}

/* The state of a worker: its member of the job, its figures, and the memory that receives its
 * stamps. */
struct latency_worker {
    struct bench_member member;
    struct block block;
    struct stamp *stamps;
};

static bool obey_latency(void *own, const struct bench_order *order, struct bench_report *report)
{
    struct latency_worker *w = own;
    for (uint32_t i = 0; i < order->count; i++)
        if (!run_round(&w->member, &w->block, order->word, i, &w->stamps[i % PART_ROUNDS]))
            return false;
    *report = report_of(&w->block, order->count);
    return true;
}

static int work_latency(const struct bench_worker *worker)
{
    static struct latency_worker w;
    const struct latency_bench *l = worker->bench;
    w.stamps = l->stamps + (size_t)worker->rank * PART_ROUNDS;
    if (!bench_member_open(&w.member, &l->b.model, worker)) return 1;
    return bench_serve(worker, &w.member, obey_latency, &w);
}

/* ---- subject and reference ---- */

static double run_empty(void *bench)
{
    return bench_order(bench, ORDER_EMPTY, BLOCK_ROUNDS);
}

static bool pass_on(int fd, char *bytes)
{
    for (size_t have = 0; have < PING_BYTES;) {
        const ssize_t got = read(fd, bytes + have, PING_BYTES - have);
        if (got <= 0) return false;
        have += (size_t)got;
    }
    return write(fd, bytes, PING_BYTES) == PING_BYTES;
}

static double run_pings(void *bench)
{
    const struct latency_bench *l = bench;
    static double trips[PINGS];
    char bytes[PING_BYTES] = { 0 };
    if (write(l->ping_fd, bytes, PING_BYTES) != PING_BYTES) return 0;
    double before_us = now_us();
    for (int i = 0; i < PINGS; i++) {
        if (!pass_on(l->ping_fd, bytes)) return 0;
        const double us = now_us();
        trips[i] = us - before_us;
        before_us = us;
    }
    if (read(l->ping_fd, bytes, PING_BYTES) <= 0) return 0;
    return bench_spread_of(trips, PINGS).median / 2 * HOPS;
}

/* Starts the process at the other end. This process starts before the workers, which therefore do
 * not inherit its ends. */
static int start_echo(void *bench)
{
    struct latency_bench *l = bench;
    const int one = 1;
    int ends[2];
    bool ok = bench_connect_self(ends);
    for (int i = 0; i < 2 && ok; i++)
        ok = setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0;
    if (!ok) return ctl_fail(CAIRN_ERR_IO, "there is no TCP over loopback to measure");
    l->echo = local_fork(l->b.local);
    if (l->echo == 0) {
        char bytes[PING_BYTES];
        close(ends[0]);
        while (pass_on(ends[1], bytes)) {}
        _exit(0);
    }
    close(ends[1]);
    l->ping_fd = ends[0];
    return l->echo > 0 ? -1 : 1;
}

static void close_latency(void *bench)
{
    struct latency_bench *l = bench;
    if (l->echo <= 0) return;
    close(l->ping_fd);
    waitpid(l->echo, NULL, 0);
}

/* ---- the figures ---- */

static int report_idle(struct bench *b)
{
    double seconds = b->ctl->bench.seconds, percent;
    if (!(seconds > IDLE_S_MIN)) seconds = seconds > 0 ? IDLE_S_MIN : IDLE_S_MAX;
    if (seconds > IDLE_S_MAX) seconds = IDLE_S_MAX;
    if (b->local->daemon_count == 0) return -1;
    if (!idle_percent(b->local, seconds, &percent)) return 1;
    BENCH_PARTS(b, { "idle_percent", percent }, { "idle_percent_limit", BENCH_IDLE_LIMIT });
    return -1;
}

static int report_latency(void *bench)
{
    struct bench *b = bench;
    const double empty = bench_order(b, ORDER_EMPTY, BLOCK_ROUNDS), p99 = bench_most(b, FIGURE_P99);
    const double pushed = empty > 0 ? bench_order(b, ORDER_PUSH, BLOCK_ROUNDS) : 0;
    const double acked = pushed > 0 ? bench_order(b, ORDER_ACK, BLOCK_ROUNDS) : 0;
    if (!(acked > 0)) return 1;
    BENCH_PARTS(b, { "p99_us", p99 }, { "step_of_one_small_push_us", pushed },
                { "push_to_ack_us", bench_most(b, FIGURE_ACK) });
    bench_add_params(b, json_pack("{s:I, s:I}", "hops", (json_int_t)HOPS, "rounds_in_a_run",
                                  (json_int_t)BLOCK_ROUNDS));
    return report_idle(b);
}

/* ---- the parts ---- */

enum { PART_BEGIN, PART_COLLECT, PART_REDUCE, PART_DECIDE, PART_UPDATE, PART_RESULT, PARTS };
static const char *const part_names[PARTS] = { "1_begin_us",          "2_grant_end_commit_us",
                                               "3_reduce_us",         "4_decide_us",
                                               "5_update_publish_us", "6_result_us" };

/* The times at which the last shard finished each step of one round. */
struct ends {
    uint64_t grant, reduce, reduced, update, published;
    uint32_t shards;
};

static void take_last(uint64_t *last, uint64_t us)
{
    if (us > *last) *last = us;
}

static void add_shard(const struct bench_times *times, size_t count, uint64_t round,
                      struct ends *ends)
{
    for (size_t i = 0; i < count; i++) {
        if (times[i].round != round) continue;
        take_last(&ends->grant, times[i].grant);
        take_last(&ends->reduce, times[i].reduce);
        take_last(&ends->reduced, times[i].reduced);
        take_last(&ends->update, times[i].update);
        take_last(&ends->published, times[i].published);
        ends->shards++;
        return;
    }
}

/* Splits one round into its parts; false if a worker or a shard has no times for that round. */
static bool find_parts(const struct latency_bench *l, uint32_t i, const struct ends *ends,
                       double out[PARTS])
{
    const struct stamp *first = &l->stamps[i];
    double begin_us = 0, result_us = 0;
    for (uint32_t w = 0; w < l->b.workers; w++) {
        const struct stamp *stamp = first + (size_t)w * PART_ROUNDS;
        if (stamp->round != first->round) return false;
        if (stamp->begin_us > begin_us) begin_us = stamp->begin_us;
        if (stamp->result_us > result_us) result_us = stamp->result_us;
    }
    const double at[PARTS + 1] = { begin_us,
                                   (double)ends->grant,
                                   (double)ends->reduce,
                                   (double)ends->reduced,
                                   (double)ends->update,
                                   (double)ends->published,
                                   result_us };
    for (int p = 0; p < PARTS; p++) out[p] = at[p + 1] - at[p];
    return ends->update > 0;
}

/* Runs in the second cluster, whose shards tell the times of their progress. */
static int report_parts(void *bench)
{
    static struct ends ends[PART_ROUNDS];
    static double parts[PARTS][PART_ROUNDS];
    struct latency_bench *l = bench;
    const uint32_t shards = (uint32_t)l->b.local->daemon_count - 1;
    for (int i = 0; i < 2; i++) // the first rounds are not yet those of a cluster at work
        if (!(bench_order(&l->b, ORDER_EMPTY, PART_ROUNDS) > 0)) return 1;
    for (uint32_t s = 1; s <= shards; s++) {
        struct bench_times *times = NULL;
        size_t count = 0;
        if (!bench_times_read(l->b.local, (int)s, &times, &count)) continue;
        for (uint32_t i = 0; i < PART_ROUNDS; i++)
            add_shard(times, count, l->stamps[i].round, &ends[i]);
        free(times);
    }
    uint32_t found = 0;
    for (uint32_t i = 0; i < PART_ROUNDS; i++) {
        double one[PARTS];
        if (ends[i].shards != shards || !find_parts(l, i, &ends[i], one)) continue;
        for (int p = 0; p < PARTS; p++) parts[p][found] = one[p];
        found++;
    }
    for (int p = 0; p < PARTS && found > 0; p++)
        BENCH_PARTS(&l->b, { part_names[p], bench_spread_of(parts[p], found).median });
    return -1;
}

/* ---- the row ---- */

static int prepare_latency(void *bench)
{
    struct latency_bench *l = bench;
    l->b.model = (struct bench_model) { .tensors = 2, .rows = ROW_COUNT, .wire = CAIRN_F32 };
    snprintf(l->b.model.job, sizeof l->b.model.job, "bench.latency.w%u", l->b.workers);
    l->stamps = bench_share(l->b.workers * sizeof *l->stamps * PART_ROUNDS);
    return l->stamps != NULL ? -1 : 1;
}

const struct bench_row bench_latency = {
    .name = "latency",
    .unit = "us",
    .reference_name = "8 hops of raw TCP over loopback",
    .less_is_better = true,
    .in_cluster = true,
    .bytes = sizeof(struct latency_bench),
    .params_told = "workers shards",
    .shards = 2,
    .workers = 2,
    .prepare = prepare_latency,
    .open = start_echo,
    .work = work_latency,
    .run = run_empty,
    .reference = run_pings,
    .report = report_latency,
    .again = report_parts,
    .close = close_latency,
};
