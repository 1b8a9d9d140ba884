/* Prints a re-sharding: before it, while it goes on, and after it. */
#include <inttypes.h>
#include <stdio.h>

#include "client/ctl/ctl.h"

static double seconds(uint64_t ms)
{
    return (double)ms / 1e3;
}

static double percent_longer(double ratio)
{
    return (ratio - 1) * 100;
}

/* ---- JSON ---- */

static json_t *pairs_json(const Cairn__ReshardJob *job)
{
    json_t *pairs = json_array();
    for (size_t i = 0; i < job->n_pairs; i++)
        json_array_append_new(pairs, json_pack("{s:s, s:s, s:I}", "from", job->pairs[i]->from, "to",
                                               job->pairs[i]->to, "bytes",
                                               (json_int_t)job->pairs[i]->bytes));
    return pairs;
}

/* 0: not known. */
static json_t *known_real(double number)
{
    return number > 0 ? json_real(number) : json_null();
}

static json_t *job_json(const Cairn__ReshardJob *job)
{
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)job->layout_hash);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:i, s:o, s:I, s:I, s:I, s:f, s:f, s:o, s:o, s:i, s:i, s:f, "
        "s:o, s:I, s:I, s:I, s:i}",
        "job", job->name, "state", job->state, "text", job->text, "layout", hash, "shards_before",
        (int)job->shards_before, "shards_after", (int)job->shards_after, "moves", pairs_json(job),
        "bytes", (json_int_t)job->all_bytes, "least_bytes", (json_int_t)job->least_bytes,
        "moved_bytes", (json_int_t)job->moved_bytes, "heaviest_before", job->heaviest_before,
        "heaviest_after", job->heaviest_after, "expected_s", known_real(job->expected_s),
        "expected_pause_s", known_real(job->expected_pause_s), "slices", (int)job->slices, "slice",
        (int)job->slice, "elapsed_s", seconds(job->elapsed_ms), "longest_step",
        known_real(job->worst_step), "pieces_before", (json_int_t)job->pieces_before,
        "pieces_after", (json_int_t)job->pieces_after, "pieces_fresh",
        (json_int_t)job->pieces_fresh, "afresh", (int)job->afresh);
}

json_t *cairn_ctl_reshard_json(const Cairn__ReshardTold *told)
{
    json_t *jobs = json_array();
    for (size_t i = 0; i < told->n_jobs; i++) json_array_append_new(jobs, job_json(told->jobs[i]));
    return json_pack("{s:o}", "jobs", jobs);
}

/* ---- for people ---- */

/* The number of pieces in a fresh layout is known only where the plan was compared with one, which
 * is not done when only the least had to move. */
static void print_pieces(const Cairn__ReshardJob *job)
{
    char fresh[64] = "";
    if (job->pieces_fresh > 0)
        snprintf(fresh, sizeof fresh, "; a fresh layout has %" PRIu64, job->pieces_fresh);
    cairn_ctl_line("pieces", "%" PRIu64 " of its tensors on shards, then %" PRIu64 "%s",
                   job->pieces_before, job->pieces_after, fresh);
}

static void print_pairs(const struct ctl *ctl, const Cairn__ReshardJob *job)
{
    static const char *const headers[] = { "FROM", "TO", "BYTES" };
    if (job->n_pairs == 0) return;
    printf("\n");
    struct ctl_table *table = cairn_ctl_table_open(headers, 3);
    for (size_t i = 0; i < job->n_pairs; i++) {
        cairn_ctl_table_cell(table, "%s", job->pairs[i]->from);
        cairn_ctl_table_cell(table, "%s", job->pairs[i]->to);
        cairn_ctl_table_cell(table, "%s", cairn_ctl_bytes(job->pairs[i]->bytes));
    }
    cairn_ctl_table_close(table, ctl);
}

void cairn_ctl_reshard_print(const struct ctl *ctl, const Cairn__ReshardJob *job)
{
    cairn_ctl_line("job", "%s", job->name);
    cairn_ctl_line("state", "%s%s%s", job->state, job->text[0] != '\0' ? ": " : "", job->text);
    cairn_ctl_line("shards", "%u, then %u", job->shards_before, job->shards_after);
    cairn_ctl_line("moves", "%s in %u slice%s; the least that levels the shards is %s",
                   cairn_ctl_bytes(job->all_bytes), job->slices, job->slices == 1 ? "" : "s",
                   cairn_ctl_bytes(job->least_bytes));
    if (job->afresh > 0 && job->all_bytes > job->least_bytes)
        cairn_ctl_line("", "%s more than the least, since %u tensor%s would lie in too many pieces",
                       cairn_ctl_bytes(job->all_bytes - job->least_bytes), job->afresh,
                       job->afresh == 1 ? "" : "s");
    if (job->moved_bytes > 0) cairn_ctl_line("moved", "%s", cairn_ctl_bytes(job->moved_bytes));
    cairn_ctl_line("heaviest shard", "%.2f of the mean, then %.2f", job->heaviest_before,
                   job->heaviest_after);
    if (job->pieces_after > 0) print_pieces(job);
    if (job->expected_s > 0) cairn_ctl_line("expected", "%.1f s", job->expected_s);
    if (job->expected_pause_s > 0)
        cairn_ctl_line("longest step", "%.3f s longer, as expected", job->expected_pause_s);
    if (job->elapsed_ms > 0) cairn_ctl_line("took", "%.1f s", seconds(job->elapsed_ms));
    if (job->worst_step > 0)
        cairn_ctl_line("longest step", "%.1f %% longer than the median before",
                       percent_longer(job->worst_step));
    print_pairs(ctl, job);
}

void cairn_ctl_reshard_list(const struct ctl *ctl, const Cairn__ReshardTold *told)
{
    static const char *const headers[] = { "JOB", "STATE", "SLICE",        "MOVED",
                                           "OF",  "FOR",   "LONGEST STEP", "" };
    struct ctl_table *table = cairn_ctl_table_open(headers, 8);
    for (size_t i = 0; i < told->n_jobs; i++) {
        const Cairn__ReshardJob *job = told->jobs[i];
        cairn_ctl_table_cell(table, "%s", job->name);
        cairn_ctl_table_cell(table, "%s", job->state);
        cairn_ctl_table_cell(table, "%u of %u", job->slice, job->slices);
        cairn_ctl_table_cell(table, "%s", cairn_ctl_bytes(job->moved_bytes));
        cairn_ctl_table_cell(table, "%s", cairn_ctl_bytes(job->all_bytes));
        cairn_ctl_table_cell(table, "%.1f s", seconds(job->elapsed_ms));
        if (job->worst_step > 0)
            cairn_ctl_table_cell(table, "%+.1f %%", percent_longer(job->worst_step));
        else
            cairn_ctl_table_cell(table, "-");
        cairn_ctl_table_cell(table, "%s", job->text);
    }
    cairn_ctl_table_close(table, ctl);
}
