/* A job that trains, and one snapshot in an interval of it: intervals without and with one by turns, so that
 * what the machine does otherwise meets both. With a backward that sleeps, and with one that computes on
 * every core; and, sleeping again, with a snapshot that the job takes by itself, at a step. */
#include <stdlib.h>
#include <string.h>

#include "client/ctl/bench/card.h"
#include "client/ctl/bench/snapshot/figures.h"
#include "client/ctl/bench/snapshot/snapshot.h"
#include "client/ctl/bench/snapshot/torch.h"

#define PAIRS     2
#define STEPS_MIN 5   /* of an interval, however short it is to be */
#define BEFORE    0.1 /* of an interval with a snapshot, until that is asked for */
#define DUE       30  /* steps ahead one that the job takes by itself is due: time to prepare */

static const struct kind {
    const char *how;
    uint32_t word; /* of a step */
    bool is_due;   /* the job takes the snapshot by itself */
} kinds[] = { { "sleeping", STEP_ORDER_STEP, false },
              { "computing", STEP_ORDER_BUSY, false },
              { "due", STEP_ORDER_STEP, true } };
#define KINDS ((int)(sizeof kinds / sizeof *kinds))

static void forget_peaks(const struct local *local)
{
    for (int s = 1; s < local->daemon_count; s++)
        cairn_bench_process_peak_forget(local->daemons[s].pid);
}

static void take_peaks(const struct local *local, struct cairn_bench_interval *interval)
{
    const int most = (int)(sizeof interval->shard_bytes / sizeof *interval->shard_bytes);
    for (int s = 1; s < local->daemon_count && s <= most; s++)
        interval->shard_bytes[s - 1] = cairn_bench_process_peak(local->daemons[s].pid);
}

/* One step more; false, and said. */
static bool add_step(struct snapshot_bench *b, uint32_t word, struct cairn_bench_interval *interval)
{
    const double seconds = snapshot_step(b, word);
    if (!(seconds > 0)) return false;
    if (cairn_bench_interval_add(interval, seconds)) return true;
    (void)cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "no memory");
    return false;
}

static bool run_without(struct snapshot_bench *b, const struct kind *kind,
                        struct cairn_bench_interval *interval)
{
    forget_peaks(b->local);
    interval->begin = cairn_bench_now();
    const double end = interval->begin + b->seconds;
    while (interval->count < STEPS_MIN || cairn_bench_now() < end)
        if (!add_step(b, kind->word, interval)) return false;
    take_peaks(b->local, interval);
    return true;
}

/* Until the snapshot is committed, if that is later. */
static bool run_with(struct snapshot_bench *b, const struct kind *kind,
                     struct cairn_bench_interval *interval)
{
    bool is_asked = false, is_ok = true;
    if (!cairn_bench_save_remove(&b->saver)) return false;
    forget_peaks(b->local);
    interval->begin = cairn_bench_now();
    const double ask = interval->begin + BEFORE * b->seconds, end = interval->begin + b->seconds;
    while (is_ok && (interval->count < STEPS_MIN || cairn_bench_now() < end ||
                     !atomic_load(&b->saver.is_over))) {
        if (!is_asked && interval->count > 0 && cairn_bench_now() >= ask) {
            b->saver.every = kind->is_due ? b->steps + DUE : 0; // it divides one step of these
            if (!cairn_bench_save_begin(&b->saver)) return false;
            is_asked = true;
        }
        is_ok = add_step(b, kind->word, interval);
    }
    take_peaks(b->local, interval);
    if (is_asked && !cairn_bench_save_end(&b->saver, !is_ok)) return false;
    interval->snapshot_begin = b->saver.begin;
    interval->snapshot_end = b->saver.end;
    return is_ok;
}

/* ---- what is said ---- */

static json_t *steps_json(const struct cairn_bench_interval *interval)
{
    json_t *steps = json_array();
    for (uint32_t i = 0; i < interval->count; i++)
        json_array_append_new(steps, json_real(interval->steps[i]));
    json_t *object = json_pack("{s:o}", "steps_s", steps);
    if (interval->snapshot_end > 0) {
        json_object_set_new(object, "snapshot_begin_s",
                            json_real(interval->snapshot_begin - interval->begin));
        json_object_set_new(object, "snapshot_end_s",
                            json_real(interval->snapshot_end - interval->begin));
    }
    return object;
}

/* Every step, for who wants to see which of them made a bad ratio. */
static void add_steps(struct snapshot_bench *b, const char *how,
                      struct cairn_bench_interval (*pairs)[2])
{
    char name[48];
    json_t *all = json_array();
    for (int i = 0; i < PAIRS; i++) {
        json_array_append_new(all, steps_json(&pairs[i][0]));
        json_array_append_new(all, steps_json(&pairs[i][1]));
    }
    snprintf(name, sizeof name, "%s_intervals", how);
    json_object_set_new(b->parts, name, all);
}

static void add(struct snapshot_bench *b, const char *how, const char *what, double value)
{
    char name[64];
    snprintf(name, sizeof name, "%s_%s", how, what);
    snapshot_set(b, name, value);
}

static void report(struct snapshot_bench *b, const char *how,
                   const struct cairn_bench_slowdown *figures, double snapshot_s)
{
    add(b, how, "mean_without_s", figures->mean_without);
    add(b, how, "mean_with_s", figures->mean_with);
    add(b, how, "slowdown", figures->slowdown);
    add(b, how, "median_s", figures->median);
    add(b, how, "worst_over_median", figures->worst_over_median);
    add(b, how, "worst_over_median_without", figures->worst_without / figures->median);
    add(b, how, "worst_added_s", figures->worst_added);
    if (b->stall_s > 0) add(b, how, "worst_added_over_stall", figures->worst_added / b->stall_s);
    add(b, how, "shard_memory_added_bytes", figures->memory_added);
    add(b, how, "snapshot_s", snapshot_s);
}

/* ---- the part ---- */

/* *out only on success. */
static bool measure(struct snapshot_bench *b, const struct kind *kind,
                    struct cairn_bench_slowdown *out)
{
    struct cairn_bench_interval pairs[PAIRS][2];
    double snapshot_s = 0;
    memset(pairs, 0, sizeof pairs);
    bool is_ok = true;
    for (int i = 0; i < PAIRS && is_ok; i++) {
        is_ok = run_without(b, kind, &pairs[i][0]) && run_with(b, kind, &pairs[i][1]);
        snapshot_s += (pairs[i][1].snapshot_end - pairs[i][1].snapshot_begin) / PAIRS;
    }
    if (is_ok &&
        !cairn_bench_slowdown_of((const struct cairn_bench_interval(*)[2])pairs, PAIRS, out)) {
        (void)cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "no memory");
        is_ok = false;
    }
    if (is_ok) report(b, kind->how, out, snapshot_s);
    if (is_ok && b->ctl->json) add_steps(b, kind->how, pairs);
    for (int i = 0; i < PAIRS; i++) free(pairs[i][0].steps), free(pairs[i][1].steps);
    return is_ok;
}

static struct cairn_bench_spread one(double value)
{
    return (struct cairn_bench_spread) { value, value, value };
}

/* Before anybody trains: it would take cores. */
static bool measure_stall(struct snapshot_bench *b)
{
    struct cairn_bench_torch torch;
    if (!cairn_bench_torch_measure(b->local, snapshot_elems(b), b->workers, &torch)) return false;
    b->stall_s = torch.stall_s > 0 ? torch.stall_s : torch.save_s;
    if (torch.stall_s > 0) snapshot_set(b, "stall_of_dcp_async_save_s", torch.stall_s);
    if (!(torch.stall_s > 0) && torch.save_s > 0) {
        fprintf(stderr, "note: the stall is all of torch.save and fsync\n");
        snapshot_set(b, "stall_of_torch_save_s", torch.save_s);
    }
    return true;
}

int snapshot_interval(struct snapshot_bench *b)
{
    struct cairn_bench_slowdown figures[KINDS];
    bool is_ok = measure_stall(b) && snapshot_crew_start(b);
    for (int k = 0; k < KINDS; k++) is_ok = is_ok && measure(b, &kinds[k], &figures[k]);
    cairn_bench_crew_stop(&b->crew);
    if (!is_ok) return 1;
    const struct cairn_bench_slowdown *sleeping = &figures[0];
    b->result->value = one(sleeping->mean_with);
    b->result->reference = one(sleeping->mean_without);
    b->result->ratio = one(sleeping->mean_without / sleeping->mean_with);
    b->result->runs = sleeping->steps;
    return -1;
}
