/* Parts that a process before left: kept.h has the picture. */
#include "server/shard/kept.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/wire/wire.h"
#include "server/shard/kept_aside.h"
#include "server/shard/kept_file.h"
#include "server/shard/part.h"
#include "server/shard/shard.h"

/* The descriptors of a part that the keeper handed over. */
struct kept_part {
    struct kept_part *next_part;
    uint32_t number;
    /* of the newest record, of the ledger that it names, and of the newest layout that was
     * prepared; 0: none */
    uint32_t edition, ledger_edition, next_edition;
    int record_fd, ledger_fd, next_fd; /* owned; -1: none */
    struct {
        int *fds; /* owned: [count]; -1: none */
        uint64_t count;
    } planes[CAIRN_PLANES];
    const struct kept_record *record; /* owned: mapped; NULL: not yet */
    struct kept_ledger *ledger;       /* owned: mapped; NULL: not yet, or the job has taken it */
    struct kept_next *next;           /* the same; NULL: no layout was prepared, either */
};

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void part_close(struct kept_part *part)
{
    if (part == NULL) return;
    close_fd(&part->record_fd);
    close_fd(&part->ledger_fd);
    close_fd(&part->next_fd);
    for (int p = 0; p < CAIRN_PLANES; p++) {
        for (uint64_t s = 0; s < part->planes[p].count; s++) close_fd(&part->planes[p].fds[s]);
        free(part->planes[p].fds);
    }
    if (part->record != NULL) munmap((void *)(uintptr_t)part->record, (size_t)part->record->bytes);
    if (part->ledger != NULL) munmap(part->ledger, (size_t)part->ledger->bytes);
    if (part->next != NULL) munmap(part->next, (size_t)part->next->bytes);
    free(part);
}

/* ---- sorting what came ---- */

static struct kept_part *find_part(struct kept_part **list, uint32_t number)
{
    struct kept_part *part = *list;
    while (part != NULL && part->number != number) part = part->next_part;
    if (part != NULL) return part;
    part = calloc(1, sizeof *part);
    if (part == NULL) return NULL;
    part->number = number;
    part->record_fd = part->ledger_fd = part->next_fd = -1;
    part->next_part = *list;
    *list = part;
    return part;
}

/* Adds a segment to its part. Returns false if there is no such segment, or if it is there twice. */
static bool add_segment(struct kept_part *part, const struct kept_name *name, int fd)
{
    const uint32_t plane = name->number;
    const uint64_t segment = name->segment;
    if (plane >= CAIRN_PLANES || segment >= CAIRN_KEEPER_FDS_MAX) return false;
    uint64_t count = part->planes[plane].count;
    if (segment >= count) {
        int *fds = realloc(part->planes[plane].fds, (size_t)(segment + 1) * sizeof *fds);
        if (fds == NULL) return false;
        while (count <= segment) fds[count++] = -1;
        part->planes[plane].fds = fds;
        part->planes[plane].count = count;
    }
    if (part->planes[plane].fds[segment] >= 0) return false;
    part->planes[plane].fds[segment] = fd;
    return true;
}

static void take_fd(int *to, struct kept_fd *one)
{
    if (*to >= 0) close(*to);
    *to = one->fd;
    one->fd = -1;
}

/* Takes a segment, and notes which record and which prepared layout of its part are the newest. */
static void sort_one(struct kept_part **list, struct kept_fd *one)
{
    const struct kept_name name = kept_name_read(one->name);
    struct kept_part *part = name.what != 0 ? find_part(list, name.part) : NULL;
    if (part == NULL) return;
    if (name.what == 'p' && add_segment(part, &name, one->fd)) one->fd = -1;
    if (name.what == 'r' && name.number > part->edition) part->edition = name.number;
    if (name.what == 'n' && name.number > part->next_edition) part->next_edition = name.number;
}

/* Takes the newest record, and the newest layout. There are others if the process died while it
 * exchanged them. */
static void sort_newest(struct kept_part **list, struct kept_fd *one)
{
    const struct kept_name name = kept_name_read(one->name);
    struct kept_part *part = name.what == 'r' || name.what == 'n' ? find_part(list, name.part)
                                                                  : NULL;
    struct kept_record head;
    if (part == NULL) return;
    if (name.what == 'n' && name.number == part->next_edition) take_fd(&part->next_fd, one);
    if (name.what != 'r' || name.number != part->edition) return;
    take_fd(&part->record_fd, one);
    if (pread(part->record_fd, &head, sizeof head, 0) == (ssize_t)sizeof head)
        part->ledger_edition = head.ledger_edition;
}

/* Takes the ledger that the newest record names. */
static void sort_ledger(struct kept_part **list, struct kept_fd *one)
{
    const struct kept_name name = kept_name_read(one->name);
    struct kept_part *part = name.what == 'l' ? find_part(list, name.part) : NULL;
    if (part != NULL && part->ledger_edition == name.number) take_fd(&part->ledger_fd, one);
}

/* Makes the list of parts. Descriptors that belong to none are closed, and forgotten by the
 * keeper. */
static struct kept_part *sort_parts(struct shard_kept *kept, struct kept_fd *fds, size_t count)
{
    struct kept_part *list = NULL;
    for (size_t i = 0; i < count; i++) sort_one(&list, &fds[i]);
    for (size_t i = 0; i < count; i++) sort_newest(&list, &fds[i]);
    for (size_t i = 0; i < count; i++) sort_ledger(&list, &fds[i]);
    for (const struct kept_part *part = list; part != NULL; part = part->next_part)
        if (part->number > kept->parts) kept->parts = part->number;
    for (size_t i = 0; i < count; i++) {
        if (fds[i].fd < 0) continue;
        kept_forget(fds[i].name);
        close(fds[i].fd);
    }
    free(fds);
    return list;
}

/* ---- reading it ---- */

static bool ledger_is_right(const struct kept_ledger *ledger, const struct kept_part *part,
                            uint64_t bytes)
{
    return kept_head_is_known(&ledger->head) && ledger->head.edition == part->ledger_edition &&
           part->record->ledger_bytes == bytes && kept_ledger_is_whole(ledger, bytes);
}

static cairn_status read_ledger(struct kept_part *part, struct sentence *why)
{
    uint64_t bytes = 0;
    struct kept_ledger *ledger = kept_map(part->ledger_fd, sizeof *ledger, PROT_READ | PROT_WRITE,
                                          &bytes);
    if (ledger == NULL) return fail_with(why, CAIRN_ERR_IO, "its ledger cannot be read");
    if (ledger->head.format == KEPT_VOID_FORMAT) {
        munmap(ledger, (size_t)bytes);
        return fail_with(why, CAIRN_ERR_NOT_FOUND, KEPT_NO_MORE);
    }
    if (!ledger_is_right(ledger, part, bytes)) {
        munmap(ledger, (size_t)bytes);
        return fail_with(why, CAIRN_ERR_CHECKSUM, "its ledger is damaged");
    }
    part->ledger = ledger;
    const struct kept_outcome *last = kept_last(ledger);
    if (last->phase == CAIRN_STEP_JOINING)
        return fail_with(why, CAIRN_ERR_NOT_READY, "the part had not joined the job yet");
    if (last->phase == CAIRN_STEP_UPDATING && last->kind != CAIRN_DECISION_APPLY)
        return fail_with(why, CAIRN_ERR_CANCELED,
                         "the process before died while it put what a member had written into the "
                         "state");
    return CAIRN_OK;
}

/* ---- resuming ---- */

/* Borrows bytes as if they had arrived. */
static struct paged borrow(enum page_what what, const uint8_t *bytes, uint64_t size)
{
    return (struct paged) { .what = what,
                            .bytes = (uint8_t *)(uintptr_t)bytes,
                            .have_bytes = (size_t)size,
                            .total_bytes = size };
}

struct kept_create kept_create_of(const struct kept_terms *terms)
{
    struct kept_create create = {
        .spec = borrow(CAIRN_PAGE_SPEC, terms->bytes, terms->spec_bytes),
        .layout = borrow(CAIRN_PAGE_LAYOUT, terms->bytes + terms->spec_bytes + terms->amended_bytes,
                         terms->layout_bytes),
    };
    cairn__job_create__init(&create.message);
    return create;
}

static struct kept_create create_of(const struct kept_part *part)
{
    const struct kept_record *record = part->record;
    struct kept_create create = kept_create_of(
        &(struct kept_terms) { kept_record_spec(record), record->spec_bytes, record->amended_bytes,
                               record->layout_bytes });
    create.message.job = record->job;
    create.message.generation = record->generation;
    create.message.step = record->base_step;
    create.message.shard_index = record->shard_index;
    create.message.member_max = record->member_max;
    // its state is there; and if it went back, it gets no room for former versions before it serves
    create.message.extend = create.message.back = record->is_staged != 0;
    return create;
}

void kept_take_part(struct shard_job *job, struct kept_part *part)
{
    job->kept = (struct job_kept) { .part = part->number,
                                    .edition = part->edition,
                                    .record = part->edition,
                                    .nexts = part->next_edition,
                                    .is_stored = true,
                                    .from = part };
}

void kept_leave_part(struct shard_job *job)
{
    job->kept = (struct job_kept) { .from = NULL };
}

void kept_is_pending(struct shard_job *job)
{
    job->kept.is_pending = job->kept.was_kept = true;
    job->shard->kept.pending++;
}

static void forget_part(const struct kept_part *part)
{
    if (part->edition != 0) kept_forget_edition(part->number, 'r', part->edition);
    if (part->ledger_edition != 0) kept_forget_edition(part->number, 'l', part->ledger_edition);
    if (part->next_edition != 0) kept_forget_edition(part->number, 'n', part->next_edition);
    for (int p = 0; p < CAIRN_PLANES; p++)
        kept_forget_segments(part->number, p, 0, part->planes[p].count);
}

/* A part goes on without a layout that cannot be read: the coordinator takes it back, if it can. */
static void read_next(struct kept_part *part)
{
    struct sentence why;
    const cairn_status status = kept_next_read(part->next_fd, &part->next, &why);
    if (status != CAIRN_OK && status != CAIRN_ERR_NOT_FOUND)
        log_error("what was kept of the layout that job %016" PRIx64
                  " goes over to is not used: %s",
                  part->record->job, why.text);
}

static cairn_status try_resume(struct shard_daemon *shard, struct kept_part *part,
                               struct sentence *why)
{
    CAIRN_TRY(kept_record_read(part->record_fd, &part->record, why));
    CAIRN_TRY(read_ledger(part, why));
    read_next(part);
    const struct coordinator_id seen = kept_last(part->ledger)->seen;
    const struct kept_create create = create_of(part);
    CAIRN_TRY(shard->up->resume(shard, &create, part, NULL, why));
    if (seen.incarnation >= shard->session.seen.incarnation) shard->session.seen = seen;
    return CAIRN_OK;
}

static void resume(struct shard_daemon *shard, struct kept_part *part)
{
    struct sentence why;
    char name[32] = "a part";
    if (try_resume(shard, part, &why) == CAIRN_OK) return;
    if (part->record != NULL) snprintf(name, sizeof name, "job %016" PRIx64, part->record->job);
    log_error(
        "what was kept of %s cannot be used, and is forgotten: %s; the job is restored from a "
        "snapshot by its on_shard_loss, or by `cairn snapshot restore`",
        name, why.text);
    forget_part(part);
    part_close(part);
}

void kept_open(struct shard_daemon *shard, const struct shard_options *options)
{
    const char *refused = getenv(CAIRN_KEPT_REFUSED);
    const size_t count = kept_set_aside(
        options->state, shard->name, options->kept, options->kept_count,
        refused != NULL && strcmp(refused, "1") == 0, &shard->kept.parts);
    struct kept_part *list = sort_parts(&shard->kept, options->kept, count);
    while (list != NULL) {
        struct kept_part *part = list;
        list = part->next_part;
        resume(shard, part);
    }
}

static cairn_status want_as_amended(struct shard_job *job, const struct paged *amended,
                                    struct sentence *why)
{
    struct job_spec_data spec;
    CAIRN_TRY(spec_unpack(amended->bytes, amended->have_bytes, optimizer_names(), &spec, why));
    terms_want(job, &spec.policy);
    spec_release(&spec);
    return CAIRN_OK;
}

cairn_status kept_take_amended(struct shard_job *job, bool settled, uint64_t revision,
                               const uint8_t *bytes, size_t count, struct sentence *why)
{
    job->terms.settled = settled;
    job->terms.revision = revision;
    if (count == 0) return CAIRN_OK;
    struct paged *amended = &job->terms.amended;
    *amended = (struct paged) { .what = CAIRN_PAGE_SPEC, .bytes = malloc(count) };
    if (amended->bytes == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    memcpy(amended->bytes, bytes, count);
    amended->have_bytes = amended->capacity_bytes = count;
    amended->total_bytes = count;
    leaf_hash(amended->bytes, count, &job->terms.digest);
    return want_as_amended(job, amended, why);
}

cairn_status kept_place(struct shard_job *job, struct sentence *why)
{
    const struct kept_part *part = job->kept.from;
    const struct kept_record *record = part->record;
    struct shard_map *map = &job->view->table.map;
    const uint8_t *places = (const uint8_t *)(record + 1);
    if (record->extent_count != map->extent_count)
        return fail_with(why, CAIRN_ERR_MALFORMED, "the layout has %zu extents, not %" PRIu64,
                         map->extent_count, record->extent_count);
    for (size_t i = 0; i < map->extent_count; i++)
        memcpy(&map->extents[i].local_elem, places + i * sizeof(uint64_t), sizeof(uint64_t));
    map->local_end = record->local_end;
    for (size_t i = 0; i < map->extent_count; i++) {
        const struct local_extent *extent = &map->extents[i];
        if (extent->elem_count > map->local_end ||
            extent->local_elem > map->local_end - extent->elem_count)
            return fail_with(why, CAIRN_ERR_MALFORMED, "extent %zu lies beyond the planes", i);
    }
    return kept_take_amended(job, kept_last(part->ledger)->settled != 0, record->revision,
                             kept_record_spec(record) + record->spec_bytes,
                             (size_t)record->amended_bytes, why);
}

static cairn_status open_plane(struct shard_job *job, enum plane plane, struct sentence *why)
{
    struct kept_part *part = job->kept.from;
    uint64_t bytes = part->record->plane_bytes[plane];
    if (part->next != NULL && part->next->plane_bytes[plane] > bytes)
        bytes = part->next->plane_bytes[plane];
    const uint64_t count = planes_segments(plane, bytes);
    if (count > part->planes[plane].count)
        return fail_with(why, CAIRN_ERR_IO, "%" PRIu64 " segments of a plane came, of %" PRIu64,
                         part->planes[plane].count, count);
    int *fds = part->planes[plane].fds;
    const cairn_status status = planes_adopt(&job->planes, plane, fds, bytes, why);
    for (uint64_t s = 0; s < count; s++) fds[s] = -1; // the arena has them, or has closed them
    job->kept.segments[plane] = count;
    // Segments of planes that were about to grow: when these grow again, others have these names.
    kept_forget_segments(part->number, (int)plane, count, part->planes[plane].count);
    return status;
}

cairn_status kept_open_planes(struct shard_job *job, const struct need *need, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    if (need->host_from != 0)
        return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                         "it lies in host memory, and this process would have it on a device");
    planes_init(&job->planes, &job->view->table.map, job->view->forms, 0, need->room_elems);
    for (enum plane p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++)
        status = open_plane(job, p, why);
    return status;
}

struct step_kept kept_step(const struct shard_job *job)
{
    const struct kept_outcome *last = kept_last(job->kept.from->ledger);
    return kept_outcome_step(last, kept_payload(last));
}

cairn_status kept_take(struct shard_job *job, bool *was_cut_out, struct sentence *why)
{
    struct kept_part *part = job->kept.from;
    struct kept_ledger *ledger = part->ledger;
    const struct kept_outcome *last = kept_last(ledger);
    const bool *frozen = kept_frozen(ledger, last);
    if (ledger->trained_count != job->pass.table->trained_count ||
        ledger->group_count != job->spec.group_count ||
        ledger->tensor_count != job->spec.tensor_count ||
        ledger->payload_max != shard_payload_max(job))
        return fail_with(why, CAIRN_ERR_MALFORMED, "its ledger is of another layout");
    job->kept.ledger_of = job->view;
    job->kept.ledger = ledger; // with the marks of the update, also for the process after this one
    part->ledger = NULL;
    kept_marks(job);
    memcpy(job->frozen.groups, frozen, ledger->group_count * sizeof *frozen);
    memcpy(job->frozen.tensors, frozen + ledger->group_count,
           ledger->tensor_count * sizeof *frozen);
    *was_cut_out = last->phase == CAIRN_STEP_UPDATING;
    return CAIRN_OK;
}

struct update_undo *kept_undo(const struct shard_job *job, uint32_t lane, bool *is_of,
                              uint32_t *trained_out)
{
    const struct kept_ledger *ledger = job->kept.marked;
    if (lane == KEPT_LANES) return NULL;
    struct update_undo *undo = kept_undo_at(ledger, lane);
    *is_of = undo->stamp == job->kept.stamp && undo->work < ledger->trained_count &&
             !kept_has_ended(job, (uint32_t)undo->work);
    *trained_out = (uint32_t)undo->work;
    return undo;
}

/* ---- the layout that was prepared ---- */

bool kept_has_places(const struct shard_job *job, const struct shard_view *view)
{
    const struct kept_next *next = job->kept.next;
    const struct shard_map *map = &view->table.map;
    bool is_same = next->extent_count == map->extent_count;
    for (size_t i = 0; is_same && i < map->extent_count; i++)
        is_same = memcmp((const uint8_t *)(next + 1) + i * sizeof(uint64_t),
                         &map->extents[i].local_elem, sizeof(uint64_t)) == 0;
    return is_same;
}

static cairn_status prepare_by(struct shard_job *job, kept_prepare_fn *prepare,
                               struct sentence *why)
{
    const struct kept_next *next = job->kept.next;
    const uint8_t *at = (const uint8_t *)(next + 1) + next->extent_count * sizeof(uint64_t);
    Cairn__PartPrepare *message = cairn__part_prepare__unpack(NULL, (size_t)next->message_bytes,
                                                              at);
    if (message == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a layout");
    const struct paged layout = borrow(CAIRN_PAGE_LAYOUT, at + next->message_bytes,
                                       next->layout_bytes);
    const cairn_status status = prepare(job, message, &layout, next->is_whole != 0, why);
    cairn__part_prepare__free_unpacked(message, NULL);
    return status;
}

void kept_prepare_next(struct shard_job *job, kept_prepare_fn *prepare)
{
    struct sentence why;
    if (prepare_by(job, prepare, &why) != CAIRN_OK)
        log_error("job %s: layout %" PRIu64
                  ", which was prepared here, is not any more: %s; if it is in force, the job "
                  "is restored from a snapshot",
                  job->spec.name, job->kept.next->layout, why.text);
}

/* Prepares the layout that the process before had prepared. Returns true if this has begun: then
 * kept_resumed is called again when it is over. */
static bool resume_next(struct shard_job *job)
{
    struct job_kept *kept = &job->kept;
    if (kept->from == NULL || kept->from->next == NULL || job->state != CAIRN_JOB_SERVING)
        return false;
    kept->next = kept->from->next;
    kept->from->next = NULL;
    // A settled layout has a record of its own.
    if (kept->next->layout > job->view->layout->version) shard_tell(job, SHARD_JOB_RESUMES);
    if (job->move.next != NULL) return true;
    kept_forget_next(job);
    return false;
}

void kept_resumed(struct shard_job *job)
{
    struct shard_daemon *shard = job->shard;
    if (!job->kept.is_pending || resume_next(job)) return;
    job->kept.is_pending = false;
    part_close(job->kept.from);
    job->kept.from = NULL;
    assert(shard->kept.pending > 0);
    if (--shard->kept.pending == 0) shard->up->resumed(shard);
}

/* ---- the end ---- */

static void resume_end(struct shard_job *job)
{
    if (!job->shard->closing) kept_resumed(job);
}

static void resume_free(struct shard_job *job)
{
    part_close(job->kept.from);
    job->kept.from = NULL;
}

const struct shard_module kept_resume_module = {
    .on = { [SHARD_JOB_STOPS] = resume_end, [SHARD_JOB_FREED] = resume_free },
};
