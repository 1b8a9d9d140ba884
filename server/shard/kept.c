/* Parts that outlive their process: kept.h has the picture. */
#include "server/shard/kept.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/wire/wire.h"
#include "server/shard/kept_file.h"
#include "server/shard/part.h"
#include "server/shard/shard.h"

static cairn_status store_segments(struct shard_job *job, struct sentence *why)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    for (int p = 0; p < CAIRN_PLANES; p++) {
        const struct home_memory *memory = &job->planes.host[p].memory;
        for (uint64_t *s = &job->kept.segments[p]; *s < home_memory_segments(memory); ++*s) {
            kept_name_segment(name, job->kept.part, p, *s);
            CAIRN_TRY(keeper_store(name, home_memory_fd(memory, *s), why));
        }
    }
    return CAIRN_OK;
}

static void unmap_ledger(struct job_kept *kept)
{
    if (kept->ledger != NULL) munmap(kept->ledger, (size_t)kept->ledger->bytes);
    kept->ledger = NULL;
}

static void unmap_next(struct job_kept *kept)
{
    if (kept->next != NULL) munmap(kept->next, (size_t)kept->next->bytes);
    kept->next = NULL;
}

/* ---- outcomes ---- */

struct kept_outcome kept_outcome_of(const struct shard_job *job)
{
    const struct step_kept step = step_keep(job->collector.step);
    return (struct kept_outcome) {
        .phase = step.phase,
        .kind = step.last.kind,
        .epoch = step.epoch,
        .round = step.round,
        .round_seen = step.round_seen,
        .round_epoch = step.round_epoch,
        .version = step.version,
        .version_after = step.last.version_after,
        .last_round = step.last.round,
        .payload_bytes = step.last.payload_bytes,
        .seen = job->shard->session.seen,
        .settled = job->terms.settled,
    };
}

static void fill_outcome(const struct shard_job *job, const struct kept_ledger *ledger,
                         struct kept_outcome *out)
{
    const struct step_kept step = step_keep(job->collector.step);
    const bool has_payload = out->last_round == step.last.round && out->kind == step.last.kind &&
                             out->payload_bytes == step.last.payload_bytes && step.last.round != 0;
    bool *frozen = kept_frozen(ledger, out);
    assert(step.last.payload_bytes <= ledger->payload_max);
    // A process that dies in here leaves an outcome of no round, so the next one copies the payload.
    out->last_round = 0;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (!has_payload && step.last.payload_bytes > 0)
        memcpy(kept_payload(out), step.last.payload, step.last.payload_bytes);
    memcpy(frozen, job->frozen.groups, ledger->group_count * sizeof *frozen);
    memcpy(frozen + ledger->group_count, job->frozen.tensors,
           ledger->tensor_count * sizeof *frozen);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    *out = kept_outcome_of(job);
}

void kept_note(struct shard_job *job)
{
    struct kept_ledger *ledger = job->kept.ledger;
    if (ledger == NULL || !job->kept.is_stored) return;
    // The outcome before stays whole until this one is. A process dies between two instructions, so only the
    // compiler could exchange these stores.
    const struct cairn_version before = kept_last(ledger)->version;
    struct kept_outcome *next = kept_outcome(ledger, ledger->count + 1);
    fill_outcome(job, ledger, next);
    if (version_compare(before, next->version) != 0) ledger->lives = 0;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(&ledger->count, ledger->count + 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

bool kept_lacks_round(const struct shard_job *job)
{
    const struct kept_ledger *ledger = job->kept.ledger;
    return ledger != NULL && kept_last(ledger)->round_seen != step_round_seen(job->collector.step);
}

void kept_marks(struct shard_job *job)
{
    struct job_kept *kept = &job->kept;
    kept->marked = kept->is_stored ? kept->ledger : NULL;
    if (kept->marked != NULL) kept->stamp = kept_last(kept->marked)->last_round;
}

void kept_update(const struct shard_job *job, uint32_t trained, uint32_t lane,
                 struct update_work *work)
{
    const struct kept_ledger *ledger = job->kept.marked;
    if (ledger == NULL) return;
    assert(lane < KEPT_LANES && trained < ledger->trained_count);
    work->undo = kept_undo_at(ledger, lane);
    work->ended = &kept_ended(ledger)[trained];
    work->stamp = job->kept.stamp;
    work->work = trained;
}

bool kept_has_ended(const struct shard_job *job, uint32_t trained)
{
    return kept_ended(job->kept.marked)[trained] == job->kept.stamp;
}

/* ---- an edition ---- */

/* The view whose state the record describes. A layout that is in force, but not settled, is kept
 * as one that is prepared: until then nothing of the state before it has changed. */
static const struct shard_view *kept_view(const struct shard_job *job)
{
    return job->move.now != NULL ? job->move.before : job->view;
}

static cairn_status make_ledger(struct shard_job *job, uint32_t edition,
                                struct kept_ledger **ledger_out, struct sentence *why)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    int fd;
    struct kept_ledger head = {
        .head = kept_head(edition),
        .payload_max = shard_payload_max(job),
        .group_count = job->spec.group_count,
        .tensor_count = job->spec.tensor_count,
        .trained_count = kept_view(job)->table.trained_count,
        .lives = job->kept.ledger != NULL ? job->kept.ledger->lives : 0,
    };
    head.bytes = kept_ledger_bytes(&head);
    struct kept_ledger *ledger = kept_map_new("cairn-ledger", head.bytes, &fd, why);
    if (ledger == NULL) return CAIRN_ERR_NO_MEMORY;
    *ledger = head;
    fill_outcome(job, ledger, kept_outcome(ledger, 0));
    kept_name_edition(name, job->kept.part, 'l', edition);
    const cairn_status status = keeper_store(name, fd, why);
    close(fd);
    if (status == CAIRN_OK)
        *ledger_out = ledger;
    else
        munmap(ledger, (size_t)head.bytes);
    return status;
}

static struct kept_record record_of(const struct shard_job *job, uint32_t edition,
                                    size_t spec_bytes, size_t layout_bytes)
{
    const struct shard_map *map = &kept_view(job)->table.map;
    struct kept_record record = {
        .head = kept_head(edition),
        .job = job->number,
        .generation = job->generation,
        .base_step = job->base_step,
        .layout = kept_view(job)->layout->version,
        .revision = job->terms.revision,
        .shard_index = map->shard,
        .member_max = shard_job_member_max(job),
        .is_staged = job->staged,
        .local_end = map->local_end,
        .extent_count = map->extent_count,
        .spec_bytes = spec_bytes,
        .amended_bytes = job->terms.amended.have_bytes,
        .layout_bytes = layout_bytes,
    };
    snprintf(record.build, sizeof record.build, "%s", job->shard->build);
    snprintf(record.name, sizeof record.name, "%s", job->spec.name);
    for (int p = 0; p < CAIRN_PLANES; p++) record.plane_bytes[p] = job->planes.host[p].bytes;
    record.bytes = sizeof record + map->extent_count * sizeof(uint64_t) + spec_bytes +
                   record.amended_bytes + layout_bytes;
    return record;
}

/* Writes where the extents lie. Returns where the bytes after the places begin. */
static uint8_t *write_places(const struct shard_map *map, void *places)
{
    uint8_t *at = places;
    for (size_t i = 0; i < map->extent_count; i++, at += sizeof(uint64_t))
        memcpy(at, &map->extents[i].local_elem, sizeof(uint64_t));
    return at;
}

void kept_terms_write(const struct shard_job *job, const struct packed *spec,
                      const struct packed *layout, uint8_t *at)
{
    const struct paged *amended = &job->terms.amended;
    memcpy(at, spec->bytes, spec->size);
    at += spec->size;
    if (amended->have_bytes > 0) memcpy(at, amended->bytes, amended->have_bytes);
    memcpy(at + amended->have_bytes, layout->bytes, layout->size);
}

static void write_record(const struct shard_job *job, const struct kept_record *head,
                         const struct packed *spec, const struct packed *layout,
                         struct kept_record *out)
{
    kept_terms_write(job, spec, layout, write_places(&kept_view(job)->table.map, out + 1));
    *out = *head;
    kept_record_seal(out);
}

static cairn_status store_record(struct shard_job *job, uint32_t edition,
                                 const struct kept_ledger *ledger, const struct packed *spec,
                                 const struct packed *layout, struct sentence *why)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    int fd;
    struct kept_record head = record_of(job, edition, spec->size, layout->size);
    head.ledger_bytes = ledger->bytes;
    head.ledger_edition = ledger->head.edition;
    struct kept_record *out = kept_map_new("cairn-record", head.bytes, &fd, why);
    if (out == NULL) return CAIRN_ERR_NO_MEMORY;
    write_record(job, &head, spec, layout, out);
    munmap(out, (size_t)head.bytes);
    kept_name_edition(name, job->kept.part, 'r', edition);
    const cairn_status status = keeper_store(name, fd, why);
    close(fd);
    return status;
}

static cairn_status make_record(struct shard_job *job, uint32_t edition,
                                const struct kept_ledger *ledger, struct sentence *why)
{
    struct packed *spec = packed_spec(&job->spec);
    struct packed *layout = packed_layout(kept_view(job)->layout);
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    if (spec != NULL && layout != NULL)
        status = store_record(job, edition, ledger, spec, layout, why);
    else
        sentence_set(why, "out of memory for the spec of a job");
    packed_release(spec);
    packed_release(layout);
    return status;
}

/* ---- the layout that is prepared ---- */

void kept_forget_next(struct shard_job *job)
{
    struct job_kept *kept = &job->kept;
    if (kept->next == NULL) return;
    // A keeper that does not read may hold it for longer, and hand it over.
    kept->next->head.format = KEPT_VOID_FORMAT;
    kept_forget_edition(kept->part, 'n', kept->next->head.edition);
    unmap_next(kept);
}

/* Has the part not kept for now. */
static void kept_pause(struct shard_job *job)
{
    struct job_kept *kept = &job->kept;
    kept_forget_next(job);
    // A keeper that does not read may hold the edition for longer, and hand it over.
    if (kept->ledger != NULL) kept->ledger->head.format = KEPT_VOID_FORMAT;
    if (kept->is_stored) kept_forget_edition(kept->part, 'r', kept->record);
    if (kept->is_stored && kept->ledger != NULL)
        kept_forget_edition(kept->part, 'l', kept->ledger->head.edition);
    kept->record = 0;
    kept->is_stored = false;
    // The ledger stays mapped until the next edition, or until the job is freed: the threads of an
    // update that is under way write into it.
}

static cairn_status store_next(struct shard_job *job, const struct packed *layout,
                               struct sentence *why)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    int fd;
    const struct packed *message = job->move.next->message;
    const struct shard_view *view = job->move.next->view;
    struct kept_next head = {
        .head = kept_head(++job->kept.nexts),
        .layout = view->layout->version,
        .extent_count = view->table.map.extent_count,
        .message_bytes = message->size,
        .layout_bytes = layout->size,
    };
    for (int p = 0; p < CAIRN_PLANES; p++) head.plane_bytes[p] = job->planes.host[p].bytes;
    head.bytes = sizeof head + head.extent_count * sizeof(uint64_t) + message->size + layout->size;
    struct kept_next *next = kept_map_new("cairn-next", head.bytes, &fd, why);
    if (next == NULL) return CAIRN_ERR_NO_MEMORY;
    *next = head;
    uint8_t *at = write_places(&view->table.map, next + 1);
    memcpy(at, message->bytes, message->size);
    memcpy(at + message->size, layout->bytes, layout->size);
    kept_next_seal(next);
    kept_name_edition(name, job->kept.part, 'n', head.head.edition);
    const cairn_status status = keeper_store(name, fd, why);
    close(fd);
    if (status == CAIRN_OK)
        job->kept.next = next;
    else
        munmap(next, (size_t)head.bytes);
    return status;
}

/* Segments first, so that nothing is named that did not come. */
static cairn_status make_next(struct shard_job *job, struct sentence *why)
{
    if (job->move.now != NULL)
        return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                         "layout %" PRIu64 " is taken back before it is settled",
                         job->view->layout->version);
    if (job->move.next->message == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a layout");
    CAIRN_TRY(store_segments(job, why));
    struct packed *layout = packed_layout(job->move.next->view->layout);
    if (layout == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a layout");
    const cairn_status status = store_next(job, layout, why);
    packed_release(layout);
    return status;
}

static void say_not_kept(struct shard_job *job, const struct sentence *why)
{
    log_limited(&job->shard->kept.said, CAIRN_LOG_WARN,
                "job %s: its state here does not outlive this process: %s", job->spec.name,
                why->text);
}

void kept_prepared(struct shard_job *job)
{
    struct sentence why;
    if (job->kept.is_pending || !job->kept.is_stored) return;
    kept_forget_next(job);
    if (make_next(job, &why) == CAIRN_OK) return;
    kept_pause(job);
    say_not_kept(job, &why);
}

void kept_unprepared(struct shard_job *job)
{
    const bool is_unwanted = job->kept.next != NULL &&
                             job->kept.next->layout > job->view->layout->version;
    if (is_unwanted) kept_forget_next(job);
    // Otherwise the layout in force may just have got the number of the prepared one, and the next
    // record takes the place of that one.
    if (!is_unwanted) kept_begin(job);
}

void kept_is_whole(struct shard_job *job)
{
    if (job->kept.next != NULL) job->kept.next->is_whole = 1;
}

void kept_without_write(struct shard_job *job)
{
    if (!job->kept.is_stored || job->puts.write == NULL) return;
    kept_pause(job);
    job->kept.is_due = true;
    log_debug("job %s: values of a write wait for the decision: till then its state here does not "
              "outlive this process",
              job->spec.name);
}

bool kept_awaits_settled(const struct shard_job *job)
{
    return job->kept.is_stored && job->kept.next != NULL &&
           job->kept.next->layout == job->view->layout->version;
}

/* ---- from beginning to end ---- */

/* True if the part can be kept now. A change of the layout is kept if the part was when it began. */
static bool may_keep(const struct shard_job *job)
{
    const struct move_part *next = job->move.next;
    const bool is_changing = job->move.now != NULL || (next != NULL && next->is_ready);
    return keeper_is_there() && job->state == CAIRN_JOB_SERVING && !job->mirrors.is_mirror &&
           job->planes.host_from == 0 && (!is_changing || job->kept.is_stored) &&
           !job->shard->closing;
}

/* The ledger that the next record names: the one that there is, if the record is of the same view.
 * It may be in use by an update. */
static cairn_status next_ledger(struct shard_job *job, uint32_t edition,
                                struct kept_ledger **ledger_out, struct sentence *why)
{
    *ledger_out = job->kept.ledger;
    if (job->kept.is_stored && job->kept.ledger_of == kept_view(job)) return CAIRN_OK;
    return make_ledger(job, edition, ledger_out, why);
}

static void take_ledger(struct shard_job *job, struct kept_ledger *ledger)
{
    struct job_kept *kept = &job->kept;
    const uint32_t before = kept->is_stored ? kept->ledger->head.edition : 0;
    if (ledger == kept->ledger) return;
    unmap_ledger(kept);
    kept->ledger = ledger;
    kept->ledger_of = kept_view(job);
    if (before > 0) kept_forget_edition(kept->part, 'l', before);
}

/* Segments first, then the ledger, then the record, by which the edition counts. Then the
 * edition before is forgotten: there is one of them at any time, and the higher one counts. */
static cairn_status keep(struct shard_job *job, struct sentence *why)
{
    struct job_kept *kept = &job->kept;
    struct kept_ledger *ledger = NULL;
    const uint32_t before = kept->record;
    if (kept->part == 0) kept->part = ++job->shard->kept.parts;
    CAIRN_TRY(store_segments(job, why));
    // Editions are never used twice, also if one of them could not be stored.
    const uint32_t edition = ++kept->edition;
    cairn_status status = next_ledger(job, edition, &ledger, why);
    if (status == CAIRN_OK) status = make_record(job, edition, ledger, why);
    if (status != CAIRN_OK) {
        kept_forget_edition(kept->part, 'r', edition);
        if (ledger == NULL || ledger == kept->ledger) return status;
        kept_forget_edition(kept->part, 'l', edition);
        munmap(ledger, (size_t)ledger->bytes);
        return status;
    }
    take_ledger(job, ledger);
    kept->record = edition;
    kept->is_stored = true;
    if (before > 0) kept_forget_edition(kept->part, 'r', before);
    if (kept->next != NULL && kept->next->layout <= kept_view(job)->layout->version)
        kept_forget_next(job);
    return CAIRN_OK;
}

void kept_begin(struct shard_job *job)
{
    struct sentence why;
    shard_tell(job, SHARD_JOB_CHANGED);
    // the marks of an update are in the ledger that it began with
    job->kept.is_due = job->pass.updating &&
                       !(job->kept.is_stored && job->kept.ledger_of == kept_view(job));
    if (!may_keep(job) || job->kept.is_due || keep(job, &why) == CAIRN_OK) return;
    kept_pause(job);
    say_not_kept(job, &why);
}

/* The part is stopped, or leaves. When only the process ends, the next one takes it up. */
static void kept_end(struct shard_job *job)
{
    struct job_kept *kept = &job->kept;
    if (job->shard->closing) return;
    kept_pause(job);
    for (int p = 0; p < CAIRN_PLANES; p++) {
        kept_forget_segments(kept->part, p, 0, kept->segments[p]);
        kept->segments[p] = 0;
    }
}

static void kept_free(struct shard_job *job)
{
    unmap_ledger(&job->kept);
    unmap_next(&job->kept);
}

const struct shard_module kept_module = {
    .on = { [SHARD_JOB_STOPS] = kept_end, [SHARD_JOB_FREED] = kept_free },
};
