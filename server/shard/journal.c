/* The log of a job's part, as it is written: journal.h has the picture. */
#include "server/shard/journal_op.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "proto/wire/wire.h"
#include "server/shard/jobs.h"
#include "server/shard/kept.h"
#include "server/shard/shard.h"

/* After a failure a journal is begun again so much later. */
#define RETRY_MS ((uint64_t)60000)
/* A log that is full, and has no snapshot to stand on, waits so long for one. */
#define BASELESS_MS ((uint64_t)5000)
/* An operation that failed, and without which no round may go on, is tried again so much later. */
#define AGAIN_MS ((uint64_t)2000)
/* A round that takes longer to write is told of. */
#define SLOW_MS ((uint64_t)1000)
/* A budget that is not configured is so many times the state. A snapshot writes all of the state, so with
 * a budget of N times the state it adds some 8 / N bytes to the 4 bytes that each step writes for a
 * parameter. */
#define BUDGET_STATES ((uint64_t)8)
#define BUDGET_LEAST  ((uint64_t)64 << 20)

static void pump(struct shard_job *job);

/* ==== its budget ==== */

static void want_budget(struct shard_job *job)
{
    const uint64_t wanted = job->shard->journals.budget_bytes;
    uint64_t bytes = BUDGET_STATES * job->memory.state;
    if (bytes < BUDGET_LEAST) bytes = BUDGET_LEAST;
    job->journal.budget_bytes = wanted != 0 ? wanted : bytes;
}

/* ==== a journal's end ==== */

static void report_skip(struct shard_job *job)
{
    const bool skips = job->journal.skips;
    job->journal.skips = false;
    if (skips && job->state == CAIRN_JOB_SERVING) own_report_published(job, &job->journal.skip);
}

/* A round that waited goes on without a journal. */
static void let_go(struct shard_job *job)
{
    struct job_journal *journal = &job->journal;
    const bool waited = (journal->wants & JOURNAL_WANT_ROUND) != 0;
    journal->wants &= ~(unsigned)(JOURNAL_WANT_ROUND | JOURNAL_WANT_DECISION);
    journal->waits.text[0] = '\0';
    report_skip(job);
    if (waited)
        own_step(job, &(struct step_event) { .kind = CAIRN_STEP_SUMMED, .sums = &journal->sums });
}

static void forget_files(struct job_journal *journal)
{
    if (journal->folder != NULL) journal_segment_close(&journal->segment);
    journal->segment_count = 0;
    journal->is_open = journal->is_based = journal->lacks_room = false;
    journal->round = 0;
    free(journal->next_base.path);
    journal->next_base.path = NULL;
}

/* Ends the journal, if there is one: its state is not the part's any more. */
static void want_end(struct shard_job *job, const char *why)
{
    struct job_journal *journal = &job->journal;
    journal->wants &= ~(unsigned)(JOURNAL_WANT_BASE | JOURNAL_WANT_PART | JOURNAL_WANT_BEGIN);
    if (!journal->is_open && journal->op == NULL) return;
    sentence_set(&journal->why, "%s", why);
    journal->wants |= JOURNAL_WANT_END;
    pump(job);
}

static void give_up(struct shard_job *job, const struct sentence *why)
{
    struct job_journal *journal = &job->journal;
    log_error(
        "job %s: its log in %s is given up: %s; the job is less safe than it asks for, until a "
        "new log stands on a new snapshot",
        job->spec.name, journal->folder, why->text);
    journal->retry_ms = uv_now(job->shard->loop) + RETRY_MS;
    journal->is_open = true; // there may be files
    struct sentence said;
    sentence_set(&said, "gave its log up: %s", sentence_brief(why->text, 300).text);
    want_end(job, said.text);
}

/* Until the files are gone, the next process would make a part of them. So no round may be reported that is
 * not in them: the rounds wait, and the end is tried again. */
static void end_failed(struct shard_job *job, const struct journal_op *op)
{
    struct job_journal *journal = &job->journal;
    journal->wants |= JOURNAL_WANT_END;
    journal->again_ms = uv_now(job->shard->loop) + AGAIN_MS;
    journal->end_fails = true;
    sentence_set(&journal->waits,
                 "the end of its log in %s, which is behind it and cannot be removed (repair the "
                 "disk of log.path): %s",
                 journal->folder, sentence_brief(op->why.text, 300).text);
    log_limited(&journal->slow_said, CAIRN_LOG_ERROR, "job %s waits for %s", job->spec.name,
                journal->waits.text);
    shard_wake(job->shard);
}

static void end_done(struct shard_job *job, const struct journal_op *op)
{
    const bool serves = job->state == CAIRN_JOB_SERVING;
    if (op->status != CAIRN_OK && serves) {
        end_failed(job, op);
        return;
    }
    if (op->status != CAIRN_OK)
        log_error(
            "job %s: its log could not be removed: %s; remove %s by hand, before this host "
            "starts anew: it would bring back a state that is older than what the job has now",
            job->spec.name, op->why.text, job->journal.folder);
    if (job->journal.end_fails) log_info("job %s: its log has ended now", job->spec.name);
    job->journal.end_fails = job->journal.lag.is_there = false;
    forget_files(&job->journal);
    if (serves) let_go(job);
    if (serves) shard_tell(job, SHARD_COPIES_ENDED);
    if (job->journal.wanted) shard_wake(job->shard);
}

/* ==== what follows an operation ==== */

static void take_segment(struct shard_job *job, struct journal_op *op)
{
    struct job_journal *journal = &job->journal;
    struct journal_kept_segment *grown = realloc(journal->segments, (journal->segment_count + 1) *
                                                                        sizeof *journal->segments);
    if (grown == NULL) {
        struct sentence why = { "out of memory for a segment" };
        give_up(job, &why);
        return;
    }
    journal->segments = grown;
    grown[journal->segment_count++] = (struct journal_kept_segment) {
        .number = op->made.number,
        .bytes = op->made.bytes,
        .first = op->head.outcome.version,
    };
    journal_segment_close(&journal->segment);
    journal->segment.fd = op->made.fd;
    journal->segment.number = op->made.number;
    journal->segment.bytes = op->made.bytes;
    journal->segment.end = op->made.end;
    atomic_store(&journal->segment.is_direct, atomic_load(&op->made.is_direct));
    op->made.fd = -1;
    journal->lacks_room = false;
    journal->entry++;
    journal->is_open = true;
}

static void begin_done(struct shard_job *job, struct journal_op *op)
{
    struct job_journal *journal = &job->journal;
    take_segment(job, op);
    if ((journal->wants & JOURNAL_WANT_END) != 0) return;
    journal->lag.is_there = false;
    if (op->kind != OP_BEGIN) return;
    journal->budget_bytes = op->budget_bytes;
    journal->revision = op->part->revision;
    sentence_set(&journal->why, "waits for a snapshot on which its log may stand");
    log_info("job %s: a log of it begins in %s, at version %" PRIu64 ".%" PRIu64
             ", and takes %" PRIu64 " bytes at most",
             job->spec.name, journal->folder, op->head.outcome.version.generation,
             op->head.outcome.version.step, journal->budget_bytes);
    connection_beat(job->shard); // the sooner there is a snapshot, the better
}

static void entry_done(struct shard_job *job, const struct journal_op *op)
{
    struct job_journal *journal = &job->journal;
    journal->segment.end += journal_entry_bytes(&op->head);
    journal->entry++;
    const uint64_t took_ms = uv_now(job->shard->loop) - op->began_ms;
    if (took_ms >= SLOW_MS)
        log_limited(&journal->slow_said, CAIRN_LOG_WARN,
                    "job %s: the disk of log.path took %" PRIu64 " ms for %" PRIu64
                    " bytes of its log: steps wait for it",
                    job->spec.name, took_ms, journal_entry_bytes(&op->head));
}

static void round_done(struct shard_job *job, const struct journal_op *op)
{
    entry_done(job, op);
    job->journal.round = op->head.outcome.round;
    if (job->state != CAIRN_JOB_SERVING) return;
    own_step(job, &(struct step_event) { .kind = CAIRN_STEP_SUMMED, .sums = &job->journal.sums });
}

static void base_done(struct shard_job *job, const struct journal_op *op)
{
    struct job_journal *journal = &job->journal;
    size_t left = 0;
    for (size_t i = 0; i < journal->segment_count; i++)
        if (journal->segments[i].number >= op->number)
            journal->segments[left++] = journal->segments[i];
    journal->segment_count = left;
    journal->again_ms = 0; // there is room now
    if (!journal->is_based)
        log_info("job %s: its log stands on the snapshot of version %" PRIu64 ".%" PRIu64,
                 job->spec.name, op->base.version.generation, op->base.version.step);
    journal->base = op->base.version;
    journal->is_based = true;
    journal->why.text[0] = '\0';
    connection_beat(job->shard);
}

static void succeed(struct shard_job *job, struct journal_op *op)
{
    switch (op->kind) {
    case OP_BEGIN:
    case OP_SEGMENT: begin_done(job, op); break;
    case OP_ROUND: round_done(job, op); break;
    case OP_DECISION:
        entry_done(job, op);
        report_skip(job);
        if (job->state == CAIRN_JOB_SERVING) shard_tell(job, SHARD_COPIES_ENDED);
        break;
    case OP_BASE: base_done(job, op); break;
    case OP_PART: job->journal.revision = op->part->revision; break;
    case OP_END: break;
    }
}

/* True if what failed has cost nothing: the files are as they were, and it is tried again. */
static bool try_again(struct shard_job *job, struct journal_op *op)
{
    struct job_journal *journal = &job->journal;
    if ((journal->wants & JOURNAL_WANT_END) != 0) return false;
    if (op->kind == OP_BASE) {
        journal->wants |= JOURNAL_WANT_BASE;
        if (journal->next_base.path == NULL) { // no newer one has come meanwhile
            journal->next_base = op->base;
            op->base.path = NULL;
        }
    } else if (op->kind == OP_PART) {
        journal->wants |= JOURNAL_WANT_PART;
    } else if (op->kind == OP_SEGMENT && op->status == CAIRN_ERR_NO_SPACE && journal->is_based &&
               journal->is_open) {
        // As with a log that has reached its budget: a snapshot makes room. The round still waits.
        journal->lacks_room = true;
        sentence_set(&journal->waits, "room for its log, which a newer snapshot may make: %s",
                     sentence_brief(op->why.text, 300).text);
    } else {
        return false;
    }
    journal->again_ms = uv_now(job->shard->loop) + AGAIN_MS;
    log_limited(&journal->slow_said, CAIRN_LOG_WARN,
                "job %s: its log is as it was, and tries again: %s", job->spec.name, op->why.text);
    shard_wake(job->shard);
    return true;
}

/* Lets the Fence go on that waited for the log. The coordinator hears first whether there still is one: it
 * takes the answer for that of a job that has its log. */
static void release_fence(struct shard_job *job)
{
    struct journal_lag *lag = &job->journal.lag;
    const uint64_t epoch = lag->epoch;
    if (lag->is_there || epoch == 0 || job->state != CAIRN_JOB_SERVING) return;
    lag->epoch = 0;
    connection_beat(job->shard);
    lag->fence(job, epoch, lag->layout);
}

static void op_done(struct task *task)
{
    struct journal_op *op = (struct journal_op *)task;
    struct shard_job *job = op->job;
    struct job_journal *journal = &job->journal;
    static const unsigned again[] = {
        [OP_ROUND] = JOURNAL_WANT_ROUND, [OP_DECISION] = JOURNAL_WANT_DECISION, [OP_PART] = 0
    };
    journal->op = NULL;
    if (!journal->end_fails) journal->waits.text[0] = '\0';
    if (op->kind == OP_END) {
        end_done(job, op);
    } else if (op->status == CAIRN_OK) {
        succeed(job, op);
    } else if (!try_again(job, op)) {
        journal->wants |= again[op->kind]; // goes on when the journal has ended
        give_up(job, &op->why);
    }
    journal_op_free(op);
    pump(job);
    release_fence(job);
    job->shard->up->memory_back(job->shard); // a create may have waited for the log (open.c)
    shard_job_idle(job);
}

/* ==== which is next ==== */

/* True if the round that waits, and its decision, have no room in the segment. */
static bool needs_segment(const struct shard_job *job)
{
    const struct journal_segment *segment = &job->journal.segment;
    return segment->end + journal_entry_most(job, true) + journal_entry_most(job, false) >
           segment->bytes;
}

/* True if no segment may be added: the round waits for a snapshot. */
static bool is_full(struct shard_job *job)
{
    struct job_journal *journal = &job->journal;
    if (journal_bytes(journal) + journal_segment_size(job) <= journal->budget_bytes) {
        journal->full_ms = 0;
        return false;
    }
    if (journal->full_ms == 0) journal->full_ms = uv_now(job->shard->loop) + 1; // never 0
    shard_wake(job->shard); // a tick looks whether it ends (ends_full)
    sentence_set(&journal->waits,
                 "its log has reached log.budget, %" PRIu64
                 " bytes, and waits for a snapshot on which it may stand",
                 journal->budget_bytes);
    log_limited(&journal->slow_said, CAIRN_LOG_WARN, "job %s: %s", job->spec.name,
                journal->waits.text);
    return true;
}

/* True if nothing is worth the wait for a snapshot, so that a full log ends. Another layout ends it anyway,
 * and no snapshot begins before the layout is in force, which needs rounds. A log without a base brings
 * nothing back; but a snapshot that is being written becomes its base soon. */
static bool ends_full(struct shard_job *job)
{
    struct job_journal *journal = &job->journal;
    const bool is_baseless = !journal->is_based && LIST_EMPTY(&job->pins.list) &&
                             uv_now(job->shard->loop) + 1 >= journal->full_ms + BASELESS_MS;
    if (job->move.next != NULL) {
        sentence_set(&journal->why, "begins its log anew, because the layout changes and the log "
                                    "has reached log.budget");
    } else if (is_baseless) {
        sentence_set(&journal->why,
                     "gave its log up: it reached log.budget, %" PRIu64
                     " bytes, before there was a snapshot on which it may stand",
                     journal->budget_bytes);
        log_error("job %s: this shard %s; its rounds go on without a log", job->spec.name,
                  journal->why.text);
        journal->retry_ms = uv_now(job->shard->loop) + RETRY_MS;
    } else {
        return false;
    }
    journal->full_ms = 0;
    journal->wants &= ~(unsigned)(JOURNAL_WANT_BASE | JOURNAL_WANT_PART | JOURNAL_WANT_BEGIN);
    return true;
}

/* True if the round that waits to be written was given up meanwhile: nobody waits for its sums. */
static bool is_void(const struct shard_job *job)
{
    return step_phase_of(job->collector.step) != CAIRN_STEP_REDUCING;
}

/* True if what failed is tried again now. */
static bool is_again(const struct shard_job *job)
{
    return uv_now(job->shard->loop) >= job->journal.again_ms;
}

/* Chooses an operation, and takes it off what is wanted. */
static bool next_op(struct shard_job *job, enum journal_op_kind *kind_out)
{
    static const struct {
        unsigned want;
        enum journal_op_kind kind;
    } order[] = { { JOURNAL_WANT_END, OP_END },           { JOURNAL_WANT_BEGIN, OP_BEGIN },
                  { JOURNAL_WANT_BASE, OP_BASE },         { JOURNAL_WANT_ROUND, OP_ROUND },
                  { JOURNAL_WANT_DECISION, OP_DECISION }, { JOURNAL_WANT_PART, OP_PART } };
    struct job_journal *journal = &job->journal;
    if ((journal->wants & JOURNAL_WANT_ROUND) != 0 && is_void(job)) let_go(job);
    if (journal->op != NULL) return false; // what followed has begun one
    if ((journal->wants & JOURNAL_WANT_END) != 0 && journal->end_fails && !is_again(job))
        return false; // nothing comes before an end
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        if ((journal->wants & order[i].want) == 0) continue;
        const bool is_file = order[i].kind == OP_BASE || order[i].kind == OP_PART;
        if (is_file && (!is_again(job) || journal->read_by != NULL)) continue;
        *kind_out = order[i].kind;
        if (order[i].kind == OP_ROUND && needs_segment(job)) {
            const bool lacks = journal->lacks_room && !is_again(job);
            if (!lacks && !is_full(job)) {
                *kind_out = OP_SEGMENT;
                return true;
            }
            if (!ends_full(job)) continue;
            *kind_out = OP_END; // end_done lets the round go on
            return true;
        }
        journal->wants &= ~order[i].want;
        return true;
    }
    return false;
}

static void pump(struct shard_job *job)
{
    struct job_journal *journal = &job->journal;
    enum journal_op_kind kind;
    if (journal->op != NULL || job->shard->closing) return;
    if (!next_op(job, &kind)) return;
    struct journal_op *op = journal_op_make(job, kind, op_done);
    if (op != NULL) {
        journal_op_start(op);
        return;
    }
    struct sentence why = { "out of memory for a log" };
    if (kind == OP_END) { // a later tick tries again
        journal->wants |= JOURNAL_WANT_END;
        shard_wake(job->shard);
        return;
    }
    if (kind == OP_ROUND) journal->wants |= JOURNAL_WANT_ROUND;
    if (kind == OP_DECISION) journal->wants |= JOURNAL_WANT_DECISION;
    give_up(job, &why);
}

/* ==== its beginning ==== */

/* Says why the part can have no journal; false: it can. */
static bool find_lack(const struct shard_job *job, struct sentence *why)
{
    const struct shard_journals *all = &job->shard->journals;
    if (all->lacks.text[0] != '\0')
        sentence_set(why, "%s", all->lacks.text);
    else if (all->folder == NULL)
        sentence_set(why, "has no folder for a log: give the shard one (log.path)");
    else if (planes_device_end(&job->planes) > 0)
        sentence_set(why, "has state on a device, which is not logged: compute.backend = host");
    else
        return false;
    return true;
}

/* True if the machine is where a START may say so. */
static bool may_begin(const struct shard_job *job)
{
    const enum step_phase phase = step_phase_of(job->collector.step);
    return !job->staged && !job->mirrors.is_mirror && job->move.now == NULL &&
           !job->pass.updating && !job->shard->closing &&
           (phase == CAIRN_STEP_IDLE || phase == CAIRN_STEP_COLLECTING) &&
           uv_now(job->shard->loop) >= job->journal.retry_ms;
}

static cairn_status name_journal(struct shard_job *job, struct sentence *why)
{
    struct job_journal *journal = &job->journal;
    free(journal->folder);
    journal->folder = NULL;
    if (getrandom(&journal->log, sizeof journal->log, 0) != (ssize_t)sizeof journal->log ||
        asprintf(&journal->folder, "%s/%016" PRIx64 "-%016" PRIx64, job->shard->journals.folder,
                 job->number, journal->log) < 0)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a log");
    journal->entry = 0;
    journal->segment.fd = -1;
    journal->segment.number = 0;
    return CAIRN_OK;
}

/* Lists the segments of a journal that was read. False: no memory. */
static bool take_segments(struct job_journal *journal, const struct journal_entries *entries)
{
    free(journal->segments);
    journal->segment_count = 0;
    journal->segments = calloc(entries->count + 1, sizeof *journal->segments);
    if (journal->segments == NULL) return false;
    for (size_t i = 0; i < entries->count; i++) {
        const struct journal_entry *entry = &entries->list[i];
        if (entry->head.kind != JOURNAL_START) continue;
        journal->segments[journal->segment_count++] = (struct journal_kept_segment) {
            .number = entry->head.segment,
            .bytes = entry->segment_bytes,
            .first = entry->head.outcome.version,
        };
    }
    return true;
}

/* Goes on with the journal that was read for the job, in a segment more. */
static void go_on(struct shard_job *job, struct journal_resumed *from)
{
    struct job_journal *journal = &job->journal;
    const struct journal_entries *entries = &from->entries;
    free(journal->folder);
    journal->folder = from->folder;
    from->folder = NULL;
    journal->log = from->part->log;
    journal->revision = from->part->revision;
    journal->entry = entries->list[entries->count - 1].head.entry + 1;
    journal->segment.fd = -1;
    journal->segment.number = entries->segments_end;
    journal->base = from->base.version;
    journal->is_based = journal_has_base(from);
    journal->round = step_phase_of(job->collector.step) == CAIRN_STEP_REDUCED
                         ? step_round_of(job->collector.step)
                         : 0;
    sentence_set(&journal->why, "%s",
                 journal->is_based ? "" : "waits for a snapshot on which its log may stand");
    struct journal_op *op = take_segments(journal, entries)
                                ? journal_op_make(job, OP_SEGMENT, op_done)
                                : NULL;
    if (op != NULL) {
        op->number = entries->segments_end;
        journal_op_start(op);
        return;
    }
    struct sentence why = { "out of memory for a log" };
    give_up(job, &why);
}

/* Takes the journal that a process before left, and goes on with it; or ends it, before the job's state can
 * leave it behind. False: there was one. */
static bool take_left(struct shard_job *job)
{
    struct job_journal *journal = &job->journal;
    const bool is_made_of_it = journal->from != NULL;
    bool is_of_job;
    struct journal_resumed *from = journal_find(job->shard, job, &is_of_job);
    if (from == NULL) return true;
    journal->lag.is_there = !is_made_of_it;
    if (is_of_job && journal->wanted) {
        want_budget(job);
        go_on(job, from);
    } else {
        free(journal->folder);
        journal->folder = from->folder;
        from->folder = NULL;
        journal->segment.fd = -1;
        journal->is_open = true;
        want_end(job, "begins its log anew, because it was behind what its keeper had");
    }
    journal_resumed_free(from);
    return false;
}

static void begin(struct shard_job *job)
{
    struct job_journal *journal = &job->journal;
    struct sentence why;
    want_budget(job);
    if (!may_begin(job)) {
        shard_wake(job->shard);
        return;
    }
    if (name_journal(job, &why) == CAIRN_OK)
        journal->wants |= JOURNAL_WANT_BEGIN;
    else
        journal->retry_ms = uv_now(job->shard->loop) + RETRY_MS;
    pump(job);
}

static void journal_changed(struct shard_job *job)
{
    struct job_journal *journal = &job->journal;
    struct sentence lack;
    // a staged part may be given up, and the log is that of the part that serves
    if (job->state != CAIRN_JOB_SERVING || job->staged || journal_is_scanning(job->shard)) return;
    if (!journal->is_open && journal->op == NULL && !take_left(job)) return;
    if (!journal->wanted) {
        want_end(job, "");
        return;
    }
    if (journal->is_open) {
        if (journal->revision == job->terms.revision || (journal->wants & JOURNAL_WANT_END) != 0)
            return;
        journal->wants |= JOURNAL_WANT_PART;
        pump(job);
        return;
    }
    if (find_lack(job, &lack)) {
        if (strcmp(lack.text, journal->why.text) != 0)
            log_warn("job %s: this shard %s", job->spec.name, lack.text);
        journal->why = lack;
        return;
    }
    if (journal->op == NULL && journal->wants == 0) begin(job);
}

void journal_want(struct shard_job *job, bool wanted)
{
    job->journal.wanted = wanted;
}

void journal_leaves_layout(struct shard_job *job)
{
    want_end(job, "begins its log anew, because the layout changed");
}

/* ==== rounds ==== */

/* True if entries are written, or will be. */
static bool is_writing(const struct shard_job *job)
{
    const struct job_journal *journal = &job->journal;
    const bool is_under_way = journal->op != NULL;
    const bool begins = is_under_way &&
                        (journal->op->kind == OP_BEGIN || journal->op->kind == OP_SEGMENT);
    const bool ends = (journal->wants & JOURNAL_WANT_END) != 0 ||
                      (is_under_way && journal->op->kind == OP_END);
    return (journal->is_open || begins) && !ends;
}

bool journal_takes_round(struct shard_job *job, const struct step_sums *sums)
{
    const bool may_pass = !is_writing(job) || job->puts.write != NULL;
    if (may_pass && !job->journal.end_fails) return false;
    job->journal.sums = *sums;
    job->journal.wants |= JOURNAL_WANT_ROUND;
    pump(job);
    return true;
}

bool journal_takes_fence(struct shard_job *job, uint64_t epoch, uint64_t layout,
                         void (*fence)(struct shard_job *job, uint64_t epoch, uint64_t layout))
{
    struct journal_lag *lag = &job->journal.lag;
    const bool waits = lag->is_there && job->state == CAIRN_JOB_SERVING;
    lag->epoch = waits ? epoch : 0; // this Fence replaces a Fence that waits
    lag->layout = layout;
    lag->fence = fence;
    return waits;
}

void journal_decided(struct shard_job *job, const struct decision *decision)
{
    struct job_journal *journal = &job->journal;
    if (!is_writing(job)) return;
    if (decision->kind == CAIRN_DECISION_APPLY && decision->round == journal->round) {
        journal->wants |= JOURNAL_WANT_DECISION;
        pump(job);
        return;
    }
    want_end(job, decision->kind == CAIRN_DECISION_WRITE
                      ? "begins its log anew, because a member wrote into the state"
                      : "begins its log anew, because a round was not in it");
}

bool journal_takes_skip(struct shard_job *job, const struct step_action *action)
{
    struct job_journal *journal = &job->journal;
    const struct decision *last = step_last(job->collector.step);
    const bool is_new = is_writing(job) && last->kind == CAIRN_DECISION_SKIP &&
                        last->round == journal->round && journal->round != 0;
    if (!is_new && !journal->skips) return false;
    journal->skip = *action;
    journal->skips = true;
    if (!is_new) return true;
    journal->round = 0;
    journal->wants |= JOURNAL_WANT_DECISION;
    pump(job);
    return true;
}

bool journal_holds_update(const struct shard_job *job)
{
    const struct job_journal *journal = &job->journal;
    const unsigned held = JOURNAL_WANT_END | JOURNAL_WANT_DECISION;
    return (journal->wants & held) != 0 ||
           (journal->op != NULL &&
            (journal->op->kind == OP_END || journal->op->kind == OP_DECISION));
}

/* ==== bases, and ticks ==== */

/* A snapshot was committed, on which the journal may stand: if it has all rounds since. */
static void on_base(struct shard_job *job, const void *body)
{
    const Cairn__LogBase *message = body;
    struct job_journal *journal = &job->journal;
    const bool has_root = message->content_root.len == CAIRN_HASH_BYTES;
    const struct cairn_version version = { message->generation, message->step },
                               now = step_version(job->collector.step);
    if (!is_writing(job) || journal->segment_count == 0 || message->path[0] == '\0' ||
        version_compare(version, journal->segments[0].first) < 0 ||
        version_compare(version, now) > 0 ||
        (journal->is_based && version_compare(version, journal->base) <= 0))
        return;
    if (!has_root) {
        sentence_set(&journal->why, "has a log that stands on no snapshot, because the coordinator "
                                    "is older than this shard: exchange it, too");
        return;
    }
    free(journal->next_base.path);
    journal->next_base = (struct log_base) { .version = version, .path = strdup(message->path) };
    if (journal->next_base.path == NULL) return;
    memcpy(journal->next_base.root.byte, message->content_root.data, CAIRN_HASH_BYTES);
    journal->wants |= JOURNAL_WANT_BASE;
    pump(job);
}

/* True if a Fence, the round, or its update cannot go on before the operation has ended. */
static bool is_waited_for(const struct shard_job *job)
{
    const struct job_journal *journal = &job->journal;
    return journal->op->kind == OP_ROUND || journal->op->kind == OP_DECISION ||
           journal->lag.epoch != 0 ||
           (journal->wants & (JOURNAL_WANT_ROUND | JOURNAL_WANT_DECISION)) != 0 ||
           (job->pass.update_waits && journal_holds_update(job));
}

/* An operation that the disk does not end keeps the round waiting. */
static void look_at_op(struct shard_job *job, uint64_t now_ms)
{
    struct job_journal *journal = &job->journal;
    if (journal->op == NULL || now_ms < journal->op->began_ms + SLOW_MS || !is_waited_for(job))
        return;
    const uint64_t waits_s = (now_ms - journal->op->began_ms) / 1000;
    sentence_set(&journal->waits,
                 "the disk of its log.path, which has not answered for %" PRIu64 " s", waits_s);
    if (journal->op->said_s >= waits_s || waits_s % 10 != 0) return;
    journal->op->said_s = waits_s;
    log_warn("job %s: the disk of log.path has not answered for %" PRIu64 " s: its round waits",
             job->spec.name, waits_s);
}

static bool tick_journal(struct shard_job *job, uint64_t now_ms)
{
    struct job_journal *journal = &job->journal;
    look_at_op(job, now_ms);
    if (journal->wants != 0) pump(job);
    struct sentence lack;
    const bool waits = journal->wanted && !journal->is_open && job->state == CAIRN_JOB_SERVING &&
                       !job->mirrors.is_mirror && !find_lack(job, &lack);
    if (waits && journal->wants == 0) journal_changed(job);
    return waits || journal->wants != 0 || journal->op != NULL;
}

/* When only the process ends, the next one takes the journal up. So does the next one of a part that
 * stopped. */
static void stop_journal(struct shard_job *job)
{
    job->journal.wants &= (unsigned)JOURNAL_WANT_END;
}

static void leave_journal(struct shard_job *job)
{
    if (!job->shard->closing) want_end(job, "");
}

/* The next session brings another Fence. */
static void forget_fence(struct shard_job *job)
{
    job->journal.lag.epoch = 0;
}

static void free_journal(struct shard_job *job)
{
    struct job_journal *journal = &job->journal;
    if (journal->read_by != NULL) journal->read_by->back.serves = NULL; // the shard closes
    journal_op_free(journal->op);
    forget_files(journal);
    free(journal->segments);
    free(journal->folder);
    journal_resumed_free(journal->from);
}

const struct shard_module journal_module = {
    .messages = (const struct shard_message[]) { { CAIRN_MSG_LOG_BASE, .on_job = on_base }, { 0 } },
    .on = { [SHARD_JOB_STOPS] = stop_journal,
            [SHARD_JOB_LEAVES] = leave_journal,
            [SHARD_JOB_FREED] = free_journal,
            [SHARD_JOB_CHANGED] = journal_changed,
            [SHARD_SESSION_ENDED] = forget_fence },
    .tick = tick_journal,
};
