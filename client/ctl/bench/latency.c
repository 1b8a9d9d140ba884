/* cairn bench latency; also measures how much of a core idle daemons use. */
#include "client/ctl/bench/bench.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "client/ctl/ctl.h"

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
    bool is_over = bench_is_interrupted(local);
    for (double left_s = seconds; left_s > 0 && !is_over; left_s = end_s - bench_now()) {
        const int number = local_signal(local, (int)(left_s * 1000) + 1, NULL);
        is_over = (number != 0 && number != SIGCHLD) || bench_is_interrupted(local);
    }
    return !is_over;
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
enum { FIGURE_STEP, FIGURE_ACK, FIGURES, FIGURE_P99 = FIGURES };

struct stamp {
    uint64_t round;
    double begin_us, result_us;
};

struct latency_bench {
    struct bench b;
    /* shared: [workers][PART_ROUNDS], of the workers' last PART_ROUNDS rounds */
    struct stamp *stamps;
    int ping_fd;
};

/* ---- a worker ---- */

/* The state of a worker: its member of the job, the figures of a block of rounds, and the memory that
 * receives its stamps. */
struct latency_worker {
    struct bench_member member;
    double values[FIGURES][BLOCK_ROUNDS];
    float gradient[ROW_COUNT * BENCH_COLUMNS];
    struct stamp *stamps;
    uint32_t word; /* the order */
    cairn_op *op;
};

static cairn_status push_small(void *own, const struct cairn_round *round)
{
    struct latency_worker *w = own;
    const struct cairn_mem gradient = { .struct_size = sizeof gradient,
                                        .ptr = w->gradient,
                                        .dtype = CAIRN_F32 };
    if (w->word == ORDER_EMPTY) return CAIRN_OK;
    const cairn_status status = cairn_push(w->member.job, round, 0, w->member.names[0], NULL,
                                           &gradient, &w->op);
    return status == CAIRN_OK && w->word == ORDER_ACK ? cairn_wait(w->op, BENCH_CALL_MS) : status;
}

static bool run_round(struct latency_worker *w, uint32_t i)
{
    struct bench_step step = { .job = w->member.job, .micros = 1, .push = push_small, .own = w };
    cairn_status status = bench_step_do(&step);
    if (status == CAIRN_OK && w->word == ORDER_PUSH) status = cairn_wait(w->op, BENCH_CALL_MS);
    w->values[FIGURE_STEP][i % BLOCK_ROUNDS] = (step.at[3] - step.at[0]) * 1e6;
    w->values[FIGURE_ACK][i % BLOCK_ROUNDS] = (step.at[2] - step.at[1]) * 1e6;
    w->stamps[i % PART_ROUNDS] = (struct stamp) { step.round.round, step.at[0] * 1e6,
                                                  step.at[3] * 1e6 };
    return bench_is_ok(status);
}

static bool obey_latency(void *own, const struct bench_order *order, struct bench_report *report)
{
    struct latency_worker *w = own;
    const uint32_t count = order->count < BLOCK_ROUNDS ? order->count : BLOCK_ROUNDS;
    w->word = order->word;
    for (uint32_t i = 0; i < order->count; i++)
        if (!run_round(w, i)) return false;
    for (int f = 0; f < FIGURES; f++)
        report->figures[f] = bench_spread_of(w->values[f], count).median;
    report->figures[FIGURE_P99] = w->values[FIGURE_STEP][count - 1 - count / 100]; // now sorted
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
    double before = bench_now();
    for (int i = 0; i < PINGS; i++) {
        if (!pass_on(l->ping_fd, bytes)) return 0;
        const double now = bench_now();
        trips[i] = (now - before) * 1e6;
        before = now;
    }
    if (read(l->ping_fd, bytes, PING_BYTES) <= 0) return 0;
    return bench_spread_of(trips, PINGS).median / 2 * HOPS;
}

static int echo(void *fd)
{
    char bytes[PING_BYTES];
    while (pass_on(*(int *)fd, bytes)) {}
    return 0;
}

/* Starts the process at the other end. This process starts before the workers, which therefore do
 * not inherit its ends. */
static int start_echo(void *bench)
{
    struct latency_bench *l = bench;
    struct bench_child other;
    const int one = 1;
    int ends[2];
    bool ok = bench_connect_self(ends);
    for (int i = 0; i < 2 && ok; i++)
        ok = setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0;
    if (!ok) return ctl_fail(CAIRN_ERR_IO, "there is no TCP over loopback to measure");
    ok = bench_child_start(&other, l->b.local, echo, &ends[1]);
    close(ends[1]);
    l->ping_fd = ends[0];
    return ok ? -1 : 1;
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
    const double empty = bench_order(b, ORDER_EMPTY, BLOCK_ROUNDS), p99 = b->figures[FIGURE_P99];
    const double pushed = empty > 0 ? bench_order(b, ORDER_PUSH, BLOCK_ROUNDS) : 0;
    const double acked = pushed > 0 ? bench_order(b, ORDER_ACK, BLOCK_ROUNDS) : 0;
    if (!(acked > 0)) return 1;
    BENCH_PARTS(b, { "p99_us", p99 }, { "step_of_one_small_push_us", pushed },
                { "push_to_ack_us", b->figures[FIGURE_ACK] });
    bench_add_params(b, json_pack("{s:I, s:I}", "hops", (json_int_t)HOPS, "rounds_in_a_run",
                                  (json_int_t)BLOCK_ROUNDS));
    return report_idle(b);
}

/* ---- the parts ---- */

enum { PART_BEGIN, PART_COLLECT, PART_REDUCE, PART_DECIDE, PART_UPDATE, PART_RESULT, PARTS };
static const char *const part_names[PARTS] = { "1_begin_us",          "2_grant_end_commit_us",
                                               "3_reduce_us",         "4_decide_us",
                                               "5_update_publish_us", "6_result_us" };

static void take_last(double *last, uint64_t us)
{
    if ((double)us > *last) *last = (double)us;
}

/* Splits one round into its parts; false if a worker or a shard has no times for that round. Each time
 * `at` is that of the last worker or shard to get there. */
static bool find_parts(const struct latency_bench *l, uint32_t i, double out[PARTS])
{
    const struct stamp *first = &l->stamps[i];
    double at[PARTS + 1] = { 0 };
    int shards = 0;
    for (uint32_t w = 0; w < l->b.workers; w++) {
        const struct stamp *stamp = first + (size_t)w * PART_ROUNDS;
        if (stamp->round != first->round) return false;
        if (stamp->begin_us > at[PART_BEGIN]) at[PART_BEGIN] = stamp->begin_us;
        if (stamp->result_us > at[PARTS]) at[PARTS] = stamp->result_us;
    }
    for (size_t t = 0; t < l->b.time_count; t++) {
        const struct bench_times *times = &l->b.times[t];
        if (times->round != first->round) continue;
        take_last(&at[PART_BEGIN + 1], times->grant);
        take_last(&at[PART_COLLECT + 1], times->reduce);
        take_last(&at[PART_REDUCE + 1], times->reduced);
        take_last(&at[PART_DECIDE + 1], times->update);
        take_last(&at[PART_UPDATE + 1], times->published);
        shards++;
    }
    for (int p = 0; p < PARTS; p++) out[p] = at[p + 1] - at[p];
    return shards == l->b.local->daemon_count - 1 && at[PART_DECIDE + 1] > 0;
}

/* Runs in the second cluster, whose shards tell the times of their progress. */
static int report_parts(void *bench)
{
    static double parts[PARTS][PART_ROUNDS];
    struct latency_bench *l = bench;
    uint32_t found = 0;
    for (int i = 0; i < 2; i++) // the first rounds are not yet those of a cluster at work
        if (!(bench_order(&l->b, ORDER_EMPTY, PART_ROUNDS) > 0)) return 1;
    bench_times_read(&l->b);
    for (uint32_t i = 0; i < PART_ROUNDS; i++) {
        double one[PARTS];
        if (!find_parts(l, i, one)) continue;
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
    l->stamps = bench_memory_map(l->b.workers * sizeof *l->stamps * PART_ROUNDS, BENCH_SHARED);
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
};
