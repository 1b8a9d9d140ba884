/* The logs of parts (durability = log): all memory of all hosts may be lost, and no step is. The rules of
 * what a log brings back, and of which segments it needs, are the daemons' (core/journal.h); the disk, and
 * what of an entry is there when power is lost, are simulated. server/shard/journal.h has the picture.
 *
 * A write of a member ends a log, and a new one begins: until that stands on a snapshot, nobody promises that
 * its part survives. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/journal.h"
#include "tests/sim/sim.h"

#define ENTRIES_MAX     256
#define SEGMENTS_MAX    (ENTRIES_MAX + 1)
#define SEGMENT_ENTRIES 7 /* then the next one begins, before a round */

enum log_op { OP_NONE, OP_BEGIN, OP_SEGMENT, OP_ROUND, OP_DECISION, OP_BASE, OP_END };
enum log_want { WANT_END = 1, WANT_BEGIN = 2, WANT_BASE = 4, WANT_ROUND = 8, WANT_DECISION = 16 };

struct entry {
    struct journal_record record;
    uint8_t payload[PAYLOAD_MAX];
    struct coordinator_id seen;
    uint64_t segment;
    bool is_cut; /* of a ROUND: its sums are not whole */
    float sums[CHUNKS_MAX][ELEMS_MAX];
};

struct snapshot { /* of a part */
    struct cairn_version version;
    float param[CHUNKS_MAX][ELEMS_MAX], m[CHUNKS_MAX][ELEMS_MAX], v[CHUNKS_MAX][ELEMS_MAX];
};

/* Of one shard. As struct job_journal of server/shard/journal.h, and its files. */
struct log {
    bool is_open, is_based;
    unsigned wants;     /* bits of enum log_want */
    enum log_op op;     /* under way; the entry that it writes is the last one, and not synced */
    uint64_t op_serial; /* tells the ends of operations apart */
    uint64_t entry, round,
        segment;           /* numbers: of the next entry, of the last ROUND, of the segment */
    struct entry *entries; /* owned: [ENTRIES_MAX] */
    size_t count;
    struct journal_kept_segment segments[SEGMENTS_MAX];
    size_t segment_count, segment_entries;
    struct snapshot base, next_base;
    bool is_coming;        /* next_base is, and is not told yet */
    struct step_sums sums; /* of the round that waits to be SUMMED */
    bool skips;            /* `skip` waits for its entry */
    struct step_action skip;
    bool updates; /* `update` waits for its entry, or for the log's end */
    struct decision update;
    uint8_t update_payload[PAYLOAD_MAX];
};

struct sim_logs {
    struct log of[SHARDS_MAX];
};

static void pump(struct sim *sim, uint32_t shard);

struct sim_logs *logs_open(void)
{
    struct sim_logs *logs = calloc(1, sizeof *logs);
    for (uint32_t s = 0; logs != NULL && s < SHARDS_MAX; s++) {
        logs->of[s].entries = calloc(ENTRIES_MAX, sizeof(struct entry));
        if (logs->of[s].entries == NULL) abort();
    }
    return logs;
}

void logs_close(struct sim_logs *logs)
{
    for (uint32_t s = 0; s < SHARDS_MAX; s++) free(logs->of[s].entries);
    free(logs);
}

static struct log *log_of(const struct sim *sim, uint32_t shard)
{
    return &sim->logs->of[PLACE(shard)];
}

static bool has_logs(const struct sim *sim, uint32_t shard)
{
    return sim->scenario.logs && shard < OTHER;
}

/* ---- the state, in and out ---- */

/* The coordinator tells it of the snapshot. */
static void send_base(struct sim *sim, uint32_t shard)
{
    log_of(sim, shard)->is_coming = true;
    sim_at(sim, rng_exponential(&sim->schedule, 8 * sim->scenario.disk_delay), E_LOG_BASE, shard, 0,
           0);
}

static void take_snapshot(struct sim *sim, uint32_t shard)
{
    struct log *log = log_of(sim, shard);
    const struct sim_shard *s = shard_at(sim, shard);
    if (log->is_coming || (log->wants & WANT_BASE) != 0 || log->op == OP_BASE) return;
    log->next_base.version = step_version(s->core);
    for (uint32_t i = 0; i < s->layout->count[shard]; i++) {
        const uint32_t c = s->layout->chunk[shard][i];
        memcpy(log->next_base.param[c], s->param[c], sizeof s->param[c]);
        memcpy(log->next_base.m[c], s->m[c], sizeof s->m[c]);
        memcpy(log->next_base.v[c], s->v[c], sizeof s->v[c]);
    }
    send_base(sim, shard);
}

static void load_base(struct sim *sim, uint32_t shard)
{
    const struct log *log = log_of(sim, shard);
    struct sim_shard *s = shard_at(sim, shard);
    memset(s->param, 0x5a, sizeof s->param);
    memset(s->m, 0x5a, sizeof s->m);
    memset(s->v, 0x5a, sizeof s->v);
    memset(s->acc, 0x5a, sizeof s->acc);
    for (uint32_t i = 0; i < s->layout->count[shard]; i++) {
        const uint32_t c = s->layout->chunk[shard][i];
        memcpy(s->param[c], log->base.param[c], sizeof s->param[c]);
        memcpy(s->m[c], log->base.m[c], sizeof s->m[c]);
        memcpy(s->v[c], log->base.v[c], sizeof s->v[c]);
    }
}

static void load_sums(struct sim *sim, uint32_t shard, size_t entry)
{
    struct sim_shard *s = shard_at(sim, shard);
    const struct entry *from = &log_of(sim, shard)->entries[entry];
    if (from->is_cut) sim_fail(sim, "shard %u goes on with sums that are torn", shard);
    for (uint32_t i = 0; i < s->layout->count[shard]; i++)
        memcpy(s->acc[i], from->sums[i], sizeof s->acc[i]);
}

/* ---- operations ---- */

static void begin_op(struct sim *sim, uint32_t shard, enum log_op op)
{
    struct log *log = log_of(sim, shard);
    log->op = op;
    sim_at(sim, rng_exponential(&sim->schedule, sim->scenario.disk_delay), E_LOGGED, shard, 0,
           ++log->op_serial);
}

/* Writes an entry; when the operation has ended, it is synced. */
static void write_entry(struct sim *sim, uint32_t shard, enum log_op op, enum journal_kind kind)
{
    struct log *log = log_of(sim, shard);
    const struct sim_shard *s = shard_at(sim, shard);
    if (log->count == ENTRIES_MAX) {
        sim_fail(sim, "the log of shard %u has no room", shard);
        return;
    }
    struct entry *entry = &log->entries[log->count++];
    entry->record =
        (struct journal_record) { .kind = kind, .number = log->entry, .kept = step_keep(s->core) };
    struct step_kept *kept = &entry->record.kept;
    if (kept->last.payload_bytes > 0)
        memcpy(entry->payload, kept->last.payload, kept->last.payload_bytes);
    kept->last.payload = entry->payload;
    entry->seen = s->obeyed;
    entry->is_cut = false;
    if (kind == JOURNAL_START) log->segment++;
    entry->segment = log->segment;
    if (kind == JOURNAL_ROUND) {
        kept->phase = CAIRN_STEP_REDUCED;
        kept->round = step_round_of(s->core);
        for (uint32_t i = 0; i < s->layout->count[shard]; i++)
            memcpy(entry->sums[i], s->acc[i], sizeof s->acc[i]);
    }
    begin_op(sim, shard, op);
}

static bool is_writing(const struct log *log)
{
    const bool begins = log->op == OP_BEGIN || log->op == OP_SEGMENT;
    const bool ends = (log->wants & WANT_END) != 0 || log->op == OP_END;
    return (log->is_open || begins) && !ends;
}

static bool holds_update(const struct log *log)
{
    return (log->wants & (WANT_END | WANT_DECISION)) != 0 || log->op == OP_END ||
           log->op == OP_DECISION;
}

static void want_end(struct sim *sim, uint32_t shard)
{
    struct log *log = log_of(sim, shard);
    log->wants &= ~(unsigned)(WANT_BASE | WANT_BEGIN);
    if (!log->is_open && log->op == OP_NONE) return;
    log->wants |= WANT_END;
    pump(sim, shard);
}

static void go_on(struct sim *sim, uint32_t shard)
{
    struct log *log = log_of(sim, shard);
    const struct step_event summed = { .kind = CAIRN_STEP_SUMMED, .sums = &log->sums };
    shard_core_event(sim, shard, &summed);
}

static void report_skip(struct sim *sim, uint32_t shard)
{
    struct log *log = log_of(sim, shard);
    const bool skips = log->skips;
    log->skips = false;
    if (skips) shard_report_published(sim, shard, &log->skip);
}

static void let_go(struct sim *sim, uint32_t shard)
{
    struct log *log = log_of(sim, shard);
    const bool waited = (log->wants & WANT_ROUND) != 0;
    log->wants &= ~(unsigned)(WANT_ROUND | WANT_DECISION);
    report_skip(sim, shard);
    if (waited) go_on(sim, shard);
}

static void begin_update(struct sim *sim, uint32_t shard)
{
    struct log *log = log_of(sim, shard);
    if (!log->updates || holds_update(log)) return;
    log->updates = false;
    shard_begin_update(sim, shard, &log->update);
}

/* As next_op of server/shard/journal.c. */
static void pump(struct sim *sim, uint32_t shard)
{
    struct log *log = log_of(sim, shard);
    const enum step_phase phase = step_phase_of(shard_at(sim, shard)->core);
    if (log->op != OP_NONE) return;
    if ((log->wants & WANT_ROUND) != 0 && phase != CAIRN_STEP_REDUCING) let_go(sim, shard);
    if (log->op != OP_NONE) return;
    if ((log->wants & WANT_END) != 0) {
        log->wants &= ~(unsigned)WANT_END;
        begin_op(sim, shard, OP_END);
    } else if ((log->wants & WANT_BEGIN) != 0) {
        if (phase != CAIRN_STEP_IDLE && phase != CAIRN_STEP_COLLECTING) return; // the next event
        log->wants &= ~(unsigned)WANT_BEGIN;
        write_entry(sim, shard, OP_BEGIN, JOURNAL_START);
    } else if ((log->wants & WANT_BASE) != 0) {
        log->wants &= ~(unsigned)WANT_BASE;
        begin_op(sim, shard, OP_BASE);
    } else if ((log->wants & WANT_ROUND) != 0 && log->count > ENTRIES_MAX - 4) {
        begin_op(sim, shard, OP_END); // end_done lets the round go on
    } else if ((log->wants & WANT_ROUND) != 0 && log->segment_entries >= SEGMENT_ENTRIES) {
        write_entry(sim, shard, OP_SEGMENT, JOURNAL_START);
    } else if ((log->wants & WANT_ROUND) != 0) {
        log->wants &= ~(unsigned)WANT_ROUND;
        write_entry(sim, shard, OP_ROUND, JOURNAL_ROUND);
    } else if ((log->wants & WANT_DECISION) != 0) {
        log->wants &= ~(unsigned)WANT_DECISION;
        write_entry(sim, shard, OP_DECISION, JOURNAL_DECISION);
    }
}

/* ---- their ends ---- */

static void entry_done(struct log *log)
{
    const struct entry *entry = &log->entries[log->count - 1];
    log->entry++;
    log->segment_entries++;
    if (entry->record.kind != JOURNAL_START) return;
    log->is_open = true;
    log->segment_entries = 1;
    log->segments[log->segment_count++] = (struct journal_kept_segment) {
        .number = entry->segment, .first = entry->record.kept.version
    };
}

/* The segments that no replay needs go, with what is in them. */
static void base_done(struct log *log)
{
    const uint64_t first = journal_first_needed(log->segments, log->segment_count,
                                                log->next_base.version);
    size_t gone = 0, left = 0;
    while (gone < log->count && log->entries[gone].segment < first) gone++;
    memcpy(&log->base, &log->next_base, sizeof log->base);
    log->is_based = true;
    if (gone == 0) return;
    log->count -= gone;
    memmove(log->entries, log->entries + gone, log->count * sizeof *log->entries);
    for (size_t i = 0; i < log->count; i++)
        log->entries[i].record.kept.last.payload = log->entries[i].payload;
    for (size_t i = 0; i < log->segment_count; i++)
        if (log->segments[i].number >= first) log->segments[left++] = log->segments[i];
    log->segment_count = left;
}

static void end_done(struct sim *sim, uint32_t shard)
{
    struct log *log = log_of(sim, shard);
    sim->seen[SEEN_log_ended]++;
    log->is_open = log->is_based = false;
    log->count = log->segment_count = 0;
    log->entry = log->round = 0;
    let_go(sim, shard);
    log->wants |= WANT_BEGIN;
}

static void op_done(struct sim *sim, uint32_t shard)
{
    struct log *log = log_of(sim, shard);
    const enum log_op op = log->op;
    log->op = OP_NONE;
    switch (op) {
    case OP_NONE: break;
    case OP_BEGIN:
        entry_done(log);
        take_snapshot(sim, shard);
        break;
    case OP_SEGMENT: entry_done(log); break;
    case OP_ROUND:
        entry_done(log);
        log->round = log->entries[log->count - 1].record.kept.round;
        go_on(sim, shard);
        break;
    case OP_DECISION:
        entry_done(log);
        report_skip(sim, shard);
        break;
    case OP_BASE: base_done(log); break;
    case OP_END: end_done(sim, shard); break;
    }
}

void log_event(struct sim *sim, const struct event *event)
{
    struct log *log = log_of(sim, event->a);
    if (event->kind == E_LOG_BASE) {
        // Taken before the log began anew, it is of no use to this one: as on_base of the daemon.
        const bool is_its = is_writing(log) && log->segment_count > 0 &&
                            version_compare(log->next_base.version, log->segments[0].first) >= 0 &&
                            (!log->is_based ||
                             version_compare(log->next_base.version, log->base.version) > 0);
        log->is_coming = false;
        if (is_its) log->wants |= WANT_BASE;
    } else if (event->conn == log->op_serial) {
        op_done(sim, event->a);
    }
    begin_update(sim, event->a);
    pump(sim, event->a);
}

/* ---- rounds ---- */

void log_start(struct sim *sim, uint32_t shard)
{
    if (!has_logs(sim, shard)) return;
    struct log *log = log_of(sim, shard);
    struct entry *entries = log->entries;
    *log = (struct log) { .entries = entries, .wants = WANT_BEGIN };
    pump(sim, shard);
}

static bool is_write(struct sim *sim, uint32_t shard)
{
    const struct opened *round = truth_opened(&sim->oracle,
                                              step_round_of(shard_at(sim, shard)->core));
    return round != NULL && round->write;
}

bool log_takes_round(struct sim *sim, uint32_t shard, const struct step_sums *sums)
{
    if (!has_logs(sim, shard)) return false;
    struct log *log = log_of(sim, shard);
    if (!is_writing(log) || is_write(sim, shard)) return false;
    log->sums = *sums;
    log->wants |= WANT_ROUND;
    pump(sim, shard);
    return true;
}

bool log_takes_update(struct sim *sim, uint32_t shard, const struct decision *decision)
{
    if (!has_logs(sim, shard)) return false;
    struct log *log = log_of(sim, shard);
    log->updates = true;
    log->update = *decision;
    memcpy(log->update_payload, decision->payload, decision->payload_bytes);
    log->update.payload = log->update_payload;
    if (is_writing(log) && decision->kind == CAIRN_DECISION_APPLY &&
        decision->round == log->round) {
        log->wants |= WANT_DECISION;
        pump(sim, shard);
    } else if (is_writing(log)) {
        want_end(sim, shard);
    }
    begin_update(sim, shard);
    return true;
}

bool log_takes_skip(struct sim *sim, uint32_t shard, const struct step_action *action)
{
    if (!has_logs(sim, shard)) return false;
    struct log *log = log_of(sim, shard);
    const struct decision *last = step_last(shard_at(sim, shard)->core);
    const bool is_new = is_writing(log) && last->kind == CAIRN_DECISION_SKIP &&
                        last->round == log->round && log->round != 0;
    if (!is_new && !log->skips) return false;
    log->skip = *action;
    log->skips = true;
    if (!is_new) return true;
    log->round = 0;
    log->wants |= WANT_DECISION;
    pump(sim, shard);
    return true;
}

/* Of one version in three there is a snapshot, and of any if the log becomes long. */
void log_updated(struct sim *sim, uint32_t shard)
{
    if (!has_logs(sim, shard)) return;
    struct log *log = log_of(sim, shard);
    if (is_writing(log) && (rng_chance(&sim->schedule, 0.3) || log->count > ENTRIES_MAX / 2))
        take_snapshot(sim, shard);
}

/* ---- power is lost ---- */

/* True if its part is made again from its log, if all memory is lost now. */
static bool covers(struct sim *sim, uint32_t shard)
{
    const struct log *log = log_of(sim, shard);
    const struct sim_shard *s = shard_at(sim, shard);
    return s->alive && log->is_open && log->is_based && (log->wants & WANT_END) == 0 &&
           log->op != OP_END && log->count < ENTRIES_MAX - 2 && !is_write(sim, shard);
}

/* What was synced is there. Of the entry that was being written, all is there, or some, or nothing. */
static void lose_power(struct sim *sim, uint32_t shard)
{
    struct log *log = log_of(sim, shard);
    const enum log_op op = log->op;
    const bool is_base_told = op == OP_BASE || (log->wants & WANT_BASE) != 0;
    log->op = OP_NONE;
    log->op_serial++;
    log->wants = 0;
    log->skips = log->updates = false;
    if (op == OP_BASE && rng_chance(&sim->fault, 0.5))
        base_done(log);
    else if (is_base_told)
        send_base(sim, shard);
    if (op != OP_SEGMENT && op != OP_ROUND && op != OP_DECISION) return;
    const bool is_whole = rng_chance(&sim->fault, 0.4);
    if (is_whole) {
        entry_done(log);
        sim->seen[SEEN_log_unsynced]++;
    } else if (op == OP_ROUND && rng_chance(&sim->fault, 0.5)) {
        log->entries[log->count - 1].is_cut = true;
        entry_done(log);
        sim->seen[SEEN_log_torn]++;
    } else {
        log->count--;
    }
}

static cairn_status make_plan(const struct log *log, struct journal_step *steps,
                              struct journal_plan *plan, struct sentence *why)
{
    struct journal_record records[ENTRIES_MAX];
    for (size_t i = 0; i < log->count; i++) records[i] = log->entries[i].record;
    return journal_plan_of(records, log->count, log->base.version, NULL, steps, plan, why);
}

static void replay(struct sim *sim, uint32_t shard, const struct journal_plan *plan)
{
    const struct log *log = log_of(sim, shard);
    load_base(sim, shard);
    for (size_t i = 0; i < plan->count && !sim->failed; i++) {
        const struct entry *decided = &log->entries[plan->steps[i].decided];
        load_sums(sim, shard, plan->steps[i].round);
        shard_update_again(sim, shard, &decided->record.kept.last);
        sim->seen[SEEN_log_replayed]++;
    }
    if (plan->step.phase == CAIRN_STEP_REDUCED) load_sums(sim, shard, plan->round);
}

static void lose_memory(struct sim *sim, uint32_t shard)
{
    struct log *log = log_of(sim, shard);
    struct sim_shard *s = shard_at(sim, shard);
    struct journal_step steps[ENTRIES_MAX];
    struct journal_plan plan;
    struct sentence why;
    shard_dies(sim, shard);
    lose_power(sim, shard);
    if (make_plan(log, steps, &plan, &why) != CAIRN_OK) {
        sim_fail(sim, "the log of shard %u cannot be used: %s", shard, why.text);
        return;
    }
    if (plan.step.phase == CAIRN_STEP_REDUCED && log->entries[plan.round].is_cut &&
        plan.round == plan.last)
        journal_plan_go_without(&log->entries[plan.last].record, &plan);
    sim_trace(sim, "shard loses its memory", shard, plan.count, plan.step.phase);
    replay(sim, shard, &plan);
    if (plan.step.phase == CAIRN_STEP_REDUCED) sim->seen[SEEN_log_prepared]++;
    s->marks = (struct marks) { .epoch = plan.step.epoch, .round = plan.step.round_seen };
    s->obeyed = log->entries[plan.last].seen;
    shard_comes_again(sim, shard, &plan.step);
    oracle_comes_back(sim, shard, step_last(s->core));
    log->entry = log->entries[log->count - 1].record.number + 1;
    log->round = plan.step.phase == CAIRN_STEP_REDUCED ? plan.step.round : 0;
    if (log->count > 0 && !sim->failed) write_entry(sim, shard, OP_SEGMENT, JOURNAL_START);
}

/* All shards lose their memory, or one; the coordinator may die at the same moment. */
void log_fault(struct sim *sim)
{
    const bool all = rng_chance(&sim->fault, 0.6);
    const uint32_t one = (uint32_t)rng_below(&sim->fault, sim->scenario.shards);
    for (uint32_t s = 0; s < sim->scenario.shards; s++)
        if ((all || s == one) && !covers(sim, s)) return;
    sim->seen[all ? SEEN_log_all : SEEN_log_one]++;
    for (uint32_t s = 0; s < sim->scenario.shards && !sim->failed; s++)
        if (all || s == one) lose_memory(sim, s);
    if (rng_chance(&sim->fault, 0.3)) coordinator_kill(sim);
}
