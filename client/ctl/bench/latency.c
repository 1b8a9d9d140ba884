/* cairn bench latency; also measures how much of a core idle daemons use. */
#include "client/ctl/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "client/ctl/ctl.h"
#include "gpu/gpu.h"

/* ==== idle ==== */

/* Measures how much processor time the daemons of the bench's own cluster use while nothing happens: the
 * time is that of all threads, in nanoseconds, so other load on the machine does not change the figure. */

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
static bool bench_idle(struct local *local, double seconds, double *percent_out)
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

/* cairn bench latency: measures an empty step, which pushes nothing and updates a tiny model. Its time is
 * the least cost of a round, whatever the model. The path of its messages, from the last worker that begins
 * to the first worker that has the result, is eight hops long:
 *
 *   worker ──begin──► coordinator ──open──► shard ──grant──► worker ──end of micro-batch, commit──► shard
 *     ──reduced──► coordinator ──decide──► shard ──published──► coordinator ──result──► worker
 *
 * so the reference is eight times half a round trip between two processes that do nothing else; each sleeps
 * in read() until the other's 128 bytes arrive: raw TCP over loopback.
 *
 * The parts are measured in a second cluster of the same kind, whose shards log the times of their progress
 * (bench.h). A worker records its begin and end by the same clock. Each part ends when the last shard, or
 * the last worker, has finished this part.
 *
 * idle_percent is the share of a core that the busiest daemon uses while all workers are attached and none
 * begins a round: waiting should cost nothing (idle_percent_limit). It is not measured on the user's own
 * cluster (--endpoint), whose processes this bench does not inspect. */

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
    const struct ctl *ctl;
    struct bench_result *result;
    struct bench_model model;
    uint32_t workers;
    /* shared: [workers][PART_ROUNDS], of the workers' last PART_ROUNDS rounds */
    struct stamp *stamps;
    struct bench_crew crew;
    int ping_fd;
    pid_t echo;
    struct bench_report last[BENCH_WORKERS_MAX];
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

static int work_latency(const struct bench_worker *worker)
{
    static struct bench_member member;
    static struct block block;
    const struct latency_bench *bench = worker->plan;
    struct stamp *stamps = bench->stamps + (size_t)worker->rank * PART_ROUNDS;
    struct bench_order order;
    struct bench_report report = { { 0 } };
    if (!bench_member_open(&member, &bench->model, worker)) return 1;
    while (bench_worker_report(worker, &report) && bench_worker_next(worker, &order)) {
        for (uint32_t i = 0; i < order.count; i++)
            if (!run_round(&member, &block, order.word, i, &stamps[i % PART_ROUNDS])) return 1;
        report = report_of(&block, order.count);
    }
    cairn_close(member.session);
    return 0;
}

/* ---- subject and reference ---- */

/* Runs a block of rounds and returns the slowest worker's figure; 0: the block failed. */
static double run_block(struct latency_bench *bench, uint32_t word, int figure)
{
    const struct bench_order order = { word, BLOCK_ROUNDS };
    if (!bench_crew_do(&bench->crew, order, bench->last)) return 0;
    return bench_greatest(bench->last, bench->crew.count, figure);
}

static double run_empty(void *context)
{
    return run_block(context, ORDER_EMPTY, FIGURE_STEP);
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

static double run_pings(void *context)
{
    const struct latency_bench *bench = context;
    static double trips[PINGS];
    char bytes[PING_BYTES] = { 0 };
    if (write(bench->ping_fd, bytes, PING_BYTES) != PING_BYTES) return 0;
    double before_us = now_us();
    for (int i = 0; i < PINGS; i++) {
        if (!pass_on(bench->ping_fd, bytes)) return 0;
        const double us = now_us();
        trips[i] = us - before_us;
        before_us = us;
    }
    if (read(bench->ping_fd, bytes, PING_BYTES) <= 0) return 0;
    return bench_spread_of(trips, PINGS).median / 2 * HOPS;
}

/* Opens both ends of a TCP connection over loopback. */
static bool connect_self(int ends[2])
{
    struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t bytes = sizeof here;
    const int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ends[0] = ends[1] = -1;
    if (listener < 0) return false;
    bool ok = bind(listener, (struct sockaddr *)&here, bytes) == 0 && listen(listener, 1) == 0 &&
              getsockname(listener, (struct sockaddr *)&here, &bytes) == 0;
    if (ok) ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ok = ok && ends[0] >= 0 && connect(ends[0], (struct sockaddr *)&here, bytes) == 0;
    if (ok) ends[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    close(listener);
    for (int i = 0; i < 2 && ok; i++)
        ok = ends[i] >= 0 && setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0;
    return ok;
}

static bool start_echo(struct latency_bench *bench, struct local *local)
{
    int ends[2];
    bench->echo = -1;
    if (!connect_self(ends)) {
        (void)ctl_fail(CAIRN_ERR_IO, "there is no TCP over loopback to measure");
        return false;
    }
    bench->echo = local_fork(local);
    if (bench->echo == 0) {
        char bytes[PING_BYTES];
        close(ends[0]);
        while (pass_on(ends[1], bytes)) {}
        _exit(0);
    }
    close(ends[1]);
    bench->ping_fd = ends[0];
    return bench->echo > 0;
}

static void stop_echo(struct latency_bench *bench)
{
    if (bench->echo <= 0) return;
    close(bench->ping_fd);
    waitpid(bench->echo, NULL, 0);
}

/* ---- the figures ---- */

static int measure_latency(struct latency_bench *bench)
{
    struct bench_result *result = bench->result;
    const int done = bench_alternate(result, bench->ctl->bench.seconds, run_empty, run_pings,
                                     bench);
    if (done >= 0) return done;
    const double p99 = run_block(bench, ORDER_EMPTY, FIGURE_P99);
    const double pushed = run_block(bench, ORDER_PUSH, FIGURE_STEP);
    const double ack = run_block(bench, ORDER_ACK, FIGURE_ACK);
    if (!(p99 > 0 && pushed > 0 && ack > 0)) return 1;
    result->parts = json_pack("{s:f, s:f, s:f}", "p99_us", p99, "step_of_one_small_push_us", pushed,
                              "push_to_ack_us", ack);
    return -1;
}

static int measure_idle(struct latency_bench *bench, struct local *local)
{
    double seconds = bench->ctl->bench.seconds, percent;
    if (!(seconds > IDLE_S_MIN)) seconds = seconds > 0 ? IDLE_S_MIN : IDLE_S_MAX;
    if (seconds > IDLE_S_MAX) seconds = IDLE_S_MAX;
    if (local->daemon_count == 0) return -1;
    if (!bench_idle(local, seconds, &percent)) return 1;
    json_object_set_new(bench->result->parts, "idle_percent", json_real(percent));
    json_object_set_new(bench->result->parts, "idle_percent_limit", json_real(BENCH_IDLE_LIMIT));
    return -1;
}

static int run_there(struct local *local, void *context)
{
    struct latency_bench *bench = context;
    int done = start_echo(bench, local) ? -1 : 1; // first, so that workers do not inherit its ends
    if (done < 0)
        done = bench_crew_start(&bench->crew, local, bench->workers, work_latency, bench)
                   ? measure_latency(bench)
                   : 1;
    if (done < 0) done = measure_idle(bench, local);
    bench_crew_stop(&bench->crew);
    stop_echo(bench);
    return done;
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
static bool find_parts(const struct latency_bench *bench, uint32_t i, const struct ends *ends,
                       double out[PARTS])
{
    const struct stamp *first = &bench->stamps[i];
    double begin_us = 0, result_us = 0;
    for (uint32_t w = 0; w < bench->workers; w++) {
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

static void add_parts(const struct latency_bench *bench, const struct local *local)
{
    static struct ends ends[PART_ROUNDS];
    static double parts[PARTS][PART_ROUNDS];
    const int shards = local->daemon_count - 1;
    for (int s = 1; s <= shards; s++) {
        struct bench_times *times = NULL;
        size_t count = 0;
        if (!bench_times_read(local, s, &times, &count)) continue;
        for (uint32_t i = 0; i < PART_ROUNDS; i++)
            add_shard(times, count, bench->stamps[i].round, &ends[i]);
        free(times);
    }
    uint32_t found = 0;
    for (uint32_t i = 0; i < PART_ROUNDS; i++) {
        double one[PARTS];
        if (ends[i].shards != (uint32_t)shards || !find_parts(bench, i, &ends[i], one)) continue;
        for (int p = 0; p < PARTS; p++) parts[p][found] = one[p];
        found++;
    }
    for (int p = 0; p < PARTS && found > 0; p++)
        json_object_set_new(bench->result->parts, part_names[p],
                            json_real(bench_spread_of(parts[p], found).median));
}

static int run_parts(struct local *local, void *context)
{
    struct latency_bench *bench = context;
    const struct bench_order order = { ORDER_EMPTY, PART_ROUNDS };
    const bool ok = bench_crew_start(&bench->crew, local, bench->workers, work_latency, bench) &&
                    bench_crew_do(&bench->crew, order, bench->last) &&
                    bench_crew_do(&bench->crew, order, bench->last);
    bench_crew_stop(&bench->crew);
    if (ok) add_parts(bench, local);
    return ok ? -1 : 1;
}

int bench_latency(struct ctl *ctl)
{
    static struct latency_bench bench;
    static struct local local;
    struct bench_result result = {
        .bench = "latency",
        .unit = "us",
        .reference_name = "8 hops of raw TCP over loopback",
        .less_is_better = true,
    };
    if (ctl->shards == 0) ctl->shards = 2;
    bench.ctl = local.ctl = ctl;
    bench.result = &result;
    bench.workers = ctl->bench.workers > 0 ? ctl->bench.workers : 2;
    int done = bench_check(ctl, bench.workers, 1);
    if (done >= 0) return done;
    bench.model = (struct bench_model) { .tensors = 2, .rows = ROW_COUNT, .wire = CAIRN_F32 };
    snprintf(bench.model.job, sizeof bench.model.job, "bench.latency.w%u", bench.workers);
    const size_t bytes = (size_t)bench.workers * PART_ROUNDS * sizeof *bench.stamps;
    bench.stamps = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (bench.stamps == MAP_FAILED) return ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    done = local_run(&local, run_there, &bench);
    local.is_debug = true;
    if (done < 0 && ctl->endpoint == NULL) done = local_run(&local, run_parts, &bench);
    munmap(bench.stamps, bytes);
    if (done >= 0) return done;
    result.params = json_pack("{s:I, s:I, s:I, s:I}", "workers", (json_int_t)bench.workers,
                              "shards", (json_int_t)ctl->shards, "hops", (json_int_t)HOPS,
                              "rounds_in_a_run", (json_int_t)BLOCK_ROUNDS);
    return bench_print(&result, ctl);
}
