/* The tiers of a bench's own cluster: what a tier needs beside the shards, when a job is safe at it, and what
 * it takes of memory and of a step. */
#include "client/ctl/bench/bench.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

#define SAFE_S    600.0
#define LOOK_MS   20
#define SUM_BYTES 4 /* of a parameter: what a standby fetches, or a log takes, in each step */

static const char *const tiers[] = { "none", "process", "peer", "log" };

const char *bench_tier_name(enum bench_tier tier)
{
    return tiers[tier];
}

enum bench_tier bench_tier_of(const char *name)
{
    enum bench_tier tier = BENCH_TIER_NONE;
    while (name != NULL && strcmp(tiers[tier], name) != 0) tier++; // the option has no other words
    return tier;
}

int bench_tier_open(struct bench *b)
{
    int done = -1;
    for (uint32_t i = 1; i <= b->ctl->shards && done < 0 && b->tier == BENCH_TIER_PEER; i++)
        done = local_shard_add(b->local, (int)i);
    return done;
}

/* ---- safe ---- */

/* Returns 1 if all parts of the job are safe at the tier, 0 if not; -1 after printing the error. */
static int is_safe(const struct bench *b)
{
    struct ctl ctl = *b->ctl;
    Cairn__JobShow message = CAIRN__JOB_SHOW__INIT;
    ProtobufCMessage *reply;
    ctl.endpoint = b->local->endpoint;
    message.name = wire_text(b->model.job);
    if (ctl_call(&ctl, CAIRN_MSG_JOB_SHOW, &message.base, CAIRN_MSG_JOB_STATUS, &reply) != CAIRN_OK)
        return -1;
    const Cairn__JobStatus *status = (const Cairn__JobStatus *)reply;
    const int safe = strstr(status->durability, tiers[b->tier]) != NULL; // "process+peer"
    message_free(reply);
    return safe;
}

bool bench_tier_await(struct bench *b, uint32_t word)
{
    const double end = bench_now() + SAFE_S;
    int safe;
    do {
        if (!(bench_order(b, word, 1) > 0)) return false;
        safe = is_safe(b);
        if (safe == 0) poll(NULL, 0, LOOK_MS);
    } while (safe == 0 && bench_now() < end);
    if (safe == 0)
        (void)ctl_fail(CAIRN_ERR_TIMEOUT, "the job is not safe at tier %s after %.0f s",
                       tiers[b->tier], SAFE_S);
    return safe > 0;
}

/* ---- what it costs ---- */

/* Returns the resident bytes of all shards and standbys. */
static uint64_t shard_bytes(const struct local *local)
{
    uint64_t bytes = 0;
    for (int i = 1; i < local->daemon_count; i++)
        bytes += bench_process_bytes(local_shard_process(local, i));
    return bytes;
}

static double used_s(const struct local *cluster)
{
    double seconds = 0;
    for (int i = 1; i < cluster->daemon_count; i++)
        seconds += bench_used_s(local_shard_process(cluster, i));
    return seconds;
}

double bench_tier_order(struct bench *b, uint32_t word, const struct local *cluster)
{
    const double before = used_s(cluster), value = bench_order(b, word, 1);
    b->figures[STEP_FIGURE_CPU] = used_s(cluster) - before;
    return value;
}

static const struct bench_times *find_times(const struct bench *b, uint32_t shard, uint64_t round)
{
    for (size_t i = 0; i < b->time_count; i++)
        if (b->times[i].shard == shard && b->times[i].round == round) return &b->times[i];
    return NULL;
}

/* Returns the time in which the sums of a round reach a standby: from the report of its shard that the round
 * is reduced, until the standby has them all. Or a log: from the last fold until that report, which also
 * takes the norm. 0: the times are not known. */
static double sums_s(const struct bench *b, const struct bench_times *owner)
{
    if (b->tier == BENCH_TIER_LOG) return bench_between_s(owner->reduce, owner->reduced);
    const struct bench_times *standby = find_times(b, b->ctl->shards + owner->shard, owner->round);
    return standby != NULL ? bench_between_s(owner->reduced, standby->reduce) : 0;
}

/* Returns the median over the rounds of a shard. */
static double median_sums_s(const struct bench *b, uint32_t shard)
{
    uint32_t count = 0;
    double *values = calloc(b->time_count + 1, sizeof *values);
    for (size_t i = 0; i < b->time_count && values != NULL; i++) {
        const double s = b->times[i].shard == shard ? sums_s(b, &b->times[i]) : 0;
        if (s > 0) values[count++] = s;
    }
    const double median = count > 0 ? bench_spread_of(values, count).median : 0;
    free(values);
    return median;
}

/* Returns the GB/s at which sums can go, at the most. 0 after printing the error. */
static double limit_of(const struct bench *b, uint64_t bytes)
{
    if (b->tier == BENCH_TIER_PEER) return bench_fabric_limit(b->ctl->path, bytes);
    struct bench_disk disk = { .b = b, .bytes = bytes };
    double values[3];
    for (int i = 0; i < 3; i++)
        if (!((values[i] = bench_disk_write(&disk)) > 0)) return 0;
    return bench_spread_of(values, 3).median;
}

/* Adds the rate at which sums go to the standbys or the logs, beside that of the fabric or the disk. */
static int report_sums(struct bench *b)
{
    const bool is_log = b->tier == BENCH_TIER_LOG;
    const uint64_t bytes = bench_model_params(&b->model) * SUM_BYTES;
    double slowest = 0;
    for (uint32_t s = 1; s <= b->ctl->shards; s++) {
        const double seconds = median_sums_s(b, s);
        if (seconds > slowest) slowest = seconds;
    }
    const double limit = limit_of(b, bytes);
    if (!(limit > 0)) return 1;
    const double rate = slowest > 0 ? (double)bytes * 1e-9 / slowest : 0;
    bench_add_count(b, "sums_bytes_a_step", bytes);
    BENCH_PARTS(b, { "sums_s", slowest }, { "sums_GB/s", rate },
                { is_log ? "disk_GB/s" : "fabric_GB/s", limit },
                { is_log ? "sums_over_disk" : "sums_over_fabric", rate / limit });
    return -1;
}

int bench_tier_report(struct bench *b)
{
    const double params = (double)bench_model_params(&b->model);
    const double cpu_s = bench_median(b, BENCH_SUBJECT, STEP_FIGURE_CPU);
    const double cpu_without_s = bench_median(b, BENCH_REFERENCE, STEP_FIGURE_CPU);
    BENCH_PARTS(b, { "cost_percent", (1 / b->result.ratio.median - 1) * 100 },
                { "shards_cpu_s", cpu_s }, { "shards_cpu_s_without", cpu_without_s },
                { "cpu_cost_percent", (cpu_s / cpu_without_s - 1) * 100 },
                { "memory_bytes_a_param", (double)shard_bytes(b->local) / params },
                { "memory_bytes_a_param_without", (double)shard_bytes(b->beside) / params });
    return b->tier == BENCH_TIER_PROCESS ? -1 : report_sums(b);
}
