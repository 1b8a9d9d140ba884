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
#include "server/shard/part.h"
#include "server/shard/shard.h"

/* Another format is refused by name, and the part is restored from a snapshot. */
#define FORMAT      2
#define VOID_FORMAT 0 /* of a ledger whose part is not kept any more */
#define BUILD_BYTES 64
#define LANES \
    (CAIRN_POOL_THREADS_MAX + 8) /* of an undo each, of which untouched ones take no memory */
#define LEDGER_ALIGN 4096u

static const char magic[8] = "cairnk1";

/* ---- the record ---- */

/* The record's head. After it: places, u64[extent_count]; the spec; the amended spec; the
 * layout. */
struct record {
    char magic[8];
    uint32_t format, edition;
    char build[BUILD_BYTES];
    uint64_t checksum; /* of the bytes after this field */
    uint64_t bytes;    /* of the whole record */
    uint64_t ledger_bytes;
    uint64_t job, generation, base_step;
    uint64_t revision;
    uint32_t shard_index, member_max;
    uint64_t plane_bytes[CAIRN_PLANES]; /* as arena.bytes; 0: there is no such plane */
    uint64_t local_end, extent_count;
    uint64_t spec_bytes, amended_bytes, layout_bytes;
};
#define CHECKED_FROM (offsetof(struct record, checksum) + sizeof(uint64_t))

/* ---- the ledger ---- */

/* The last outcome of the machine, as struct step_kept. After it: the payload, [payload_max];
 * the frozen groups and tensors of the round, a byte each. */
struct outcome {
    uint32_t phase, kind;
    uint64_t epoch, round, round_seen, round_epoch;
    struct cairn_version version, version_after;
    uint64_t last_round, payload_bytes;
    struct coordinator_id seen; /* the coordinator that the shard obeyed last */
    uint64_t settled;
};

/* The ledger's head. After it: two outcomes; for each trained chunk the round whose update it
 * has, u64; at the next page: [LANES] undos. */
struct kept_ledger {
    char magic[8];
    uint32_t format, edition;
    uint64_t bytes;
    uint64_t payload_max, group_count, tensor_count, trained_count;
    uint64_t count; /* of the outcomes until now; the last one is at count % 2 */
};

static uint64_t outcome_bytes(const struct kept_ledger *ledger)
{
    return ALIGN_UP(sizeof(struct outcome) + ledger->payload_max + ledger->group_count +
                        ledger->tensor_count,
                    64u);
}

static struct outcome *outcome_at(const struct kept_ledger *ledger, uint64_t count)
{
    uint8_t *first = (uint8_t *)(uintptr_t)(ledger + 1);
    return (struct outcome *)(first + count % 2 * outcome_bytes(ledger));
}

static const struct outcome *last_outcome(const struct kept_ledger *ledger)
{
    return outcome_at(ledger, ledger->count);
}

static uint8_t *payload_of(const struct outcome *outcome)
{
    return (uint8_t *)(uintptr_t)(outcome + 1);
}

static bool *frozen_of(const struct kept_ledger *ledger, const struct outcome *outcome)
{
    return (bool *)(payload_of(outcome) + ledger->payload_max);
}

static uint64_t *ended_of(const struct kept_ledger *ledger)
{
    return (uint64_t *)outcome_at(ledger, 0) + 2 * outcome_bytes(ledger) / sizeof(uint64_t);
}

static uint64_t undos_from(const struct kept_ledger *ledger)
{
    return ALIGN_UP(sizeof *ledger + 2 * outcome_bytes(ledger) +
                        ledger->trained_count * sizeof(uint64_t),
                    LEDGER_ALIGN);
}

static struct update_undo *undo_at(const struct kept_ledger *ledger, uint32_t lane)
{
    return (struct update_undo *)((uint8_t *)(uintptr_t)ledger + undos_from(ledger)) + lane;
}

static uint64_t ledger_bytes(const struct kept_ledger *ledger)
{
    return undos_from(ledger) + LANES * sizeof(struct update_undo);
}

/* ---- to the keeper ---- */

/* The name of a descriptor of a part: "3.r7", the record of edition 7; "3.l7", its ledger;
 * "3.p2.11", segment 11 of plane 2. All numbers are hexadecimal. */
static void name_edition(char name[CAIRN_KEEPER_NAME_MAX + 1], uint32_t part, char what,
                         uint32_t edition)
{
    snprintf(name, CAIRN_KEEPER_NAME_MAX + 1, "%x.%c%x", part, what, edition);
}

static void name_segment(char name[CAIRN_KEEPER_NAME_MAX + 1], uint32_t part, int plane,
                         uint64_t segment)
{
    snprintf(name, CAIRN_KEEPER_NAME_MAX + 1, "%x.p%d.%" PRIx64, part, plane, segment);
}

/* A name, read. */
struct kept_name {
    char what;             /* 'r', 'l' or 'p'; 0: it is none of these names */
    uint32_t part, number; /* number: the edition, or the plane */
    uint64_t segment;
};

static struct kept_name read_name(const char *text)
{
    struct kept_name name = { .what = 0 };
    int end = -1;
    const int count = sscanf(text, "%" SCNx32 ".%c%" SCNx32 "%n.%" SCNx64 "%n", &name.part,
                             &name.what, &name.number, &end, &name.segment, &end);
    const bool is_segment = count == 4 && name.what == 'p',
               is_edition = count == 3 && (name.what == 'r' || name.what == 'l');
    if ((!is_segment && !is_edition) || text[end] != '\0') name.what = 0;
    return name;
}

static void forget(const char *name)
{
    struct sentence why;
    // A keeper that is gone keeps nothing; if it is not, the memory is freed when this unit ends.
    if (keeper_forget(name, &why) != CAIRN_OK) log_debug("%s", why.text);
}

static void forget_edition(uint32_t part, uint32_t edition)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    name_edition(name, part, 'r', edition);
    forget(name);
    name_edition(name, part, 'l', edition);
    forget(name);
}

/* Forgets the segments [first, end) of a plane. */
static void forget_segments(uint32_t part, int plane, uint64_t first, uint64_t end)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    for (uint64_t s = first; s < end; s++) {
        name_segment(name, part, plane, s);
        forget(name);
    }
}

static cairn_status store_segments(struct shard_job *job, struct sentence *why)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    for (int p = 0; p < CAIRN_PLANES; p++) {
        const struct home_memory *memory = &job->planes.host[p].memory;
        for (uint64_t *s = &job->kept.segments[p]; *s < home_memory_segments(memory); ++*s) {
            name_segment(name, job->kept.part, p, *s);
            CAIRN_TRY(keeper_store(name, home_memory_fd(memory, *s), why));
        }
    }
    return CAIRN_OK;
}

/* Maps a new memfd. */
static void *map_new(const char *label, uint64_t bytes, int *fd_out, struct sentence *why)
{
    const int fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *at = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
        at = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        sentence_set(why, "cannot make %" PRIu64 " bytes for %s: %s", bytes, label,
                     strerror(errno));
        if (fd >= 0) close(fd);
        return NULL;
    }
    *fd_out = fd;
    return at;
}

static void unmap_ledger(struct job_kept *kept)
{
    if (kept->ledger != NULL) munmap(kept->ledger, (size_t)kept->ledger->bytes);
    kept->ledger = NULL;
}

/* ---- outcomes ---- */

static void fill_outcome(const struct shard_job *job, const struct kept_ledger *ledger,
                         struct outcome *out)
{
    const struct step_kept step = step_keep(job->collector.step);
    const bool has_payload = out->last_round == step.last.round && out->kind == step.last.kind &&
                             out->payload_bytes == step.last.payload_bytes && step.last.round != 0;
    bool *frozen = frozen_of(ledger, out);
    assert(step.last.payload_bytes <= ledger->payload_max);
    // A process that dies in here leaves an outcome of no round, so the next one copies the payload.
    out->last_round = 0;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (!has_payload && step.last.payload_bytes > 0)
        memcpy(payload_of(out), step.last.payload, step.last.payload_bytes);
    memcpy(frozen, job->frozen.groups, ledger->group_count * sizeof *frozen);
    memcpy(frozen + ledger->group_count, job->frozen.tensors,
           ledger->tensor_count * sizeof *frozen);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    *out = (struct outcome) {
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

void kept_note(struct shard_job *job)
{
    struct kept_ledger *ledger = job->kept.ledger;
    if (ledger == NULL || !job->kept.is_stored) return;
    // The outcome before stays whole until this one is. A process dies between two instructions, so only the
    // compiler could exchange these stores.
    fill_outcome(job, ledger, outcome_at(ledger, ledger->count + 1));
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(&ledger->count, ledger->count + 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

bool kept_lacks_round(const struct shard_job *job)
{
    const struct kept_ledger *ledger = job->kept.ledger;
    return ledger != NULL &&
           last_outcome(ledger)->round_seen != step_round_seen(job->collector.step);
}

void kept_marks(struct shard_job *job)
{
    struct job_kept *kept = &job->kept;
    kept->marked = kept->is_stored ? kept->ledger : NULL;
    if (kept->marked != NULL) kept->stamp = last_outcome(kept->marked)->last_round;
}

void kept_update(const struct shard_job *job, uint32_t trained, uint32_t lane,
                 struct update_work *work)
{
    const struct kept_ledger *ledger = job->kept.marked;
    if (ledger == NULL) return;
    assert(lane < LANES && trained < ledger->trained_count);
    work->undo = undo_at(ledger, lane);
    work->ended = &ended_of(ledger)[trained];
    work->stamp = job->kept.stamp;
    work->work = trained;
}

bool kept_has_ended(const struct shard_job *job, uint32_t trained)
{
    return ended_of(job->kept.marked)[trained] == job->kept.stamp;
}

/* ---- an edition ---- */

static cairn_status make_ledger(struct shard_job *job, uint32_t edition,
                                struct kept_ledger **ledger_out, struct sentence *why)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    int fd;
    struct kept_ledger head = {
        .format = FORMAT,
        .edition = edition,
        .payload_max = shard_payload_max(job),
        .group_count = job->spec.group_count,
        .tensor_count = job->spec.tensor_count,
        .trained_count = job->pass.table->trained_count,
    };
    memcpy(head.magic, magic, sizeof head.magic);
    head.bytes = ledger_bytes(&head);
    struct kept_ledger *ledger = map_new("cairn-ledger", head.bytes, &fd, why);
    if (ledger == NULL) return CAIRN_ERR_NO_MEMORY;
    *ledger = head;
    fill_outcome(job, ledger, outcome_at(ledger, 0));
    name_edition(name, job->kept.part, 'l', edition);
    const cairn_status status = keeper_store(name, fd, why);
    close(fd);
    if (status == CAIRN_OK)
        *ledger_out = ledger;
    else
        munmap(ledger, (size_t)head.bytes);
    return status;
}

static struct record record_of(const struct shard_job *job, uint32_t edition, size_t spec_bytes,
                               size_t layout_bytes)
{
    const struct shard_map *map = &job->view->table.map;
    struct record record = {
        .format = FORMAT,
        .edition = edition,
        .job = job->number,
        .generation = job->generation,
        .base_step = job->base_step,
        .revision = job->terms.revision,
        .shard_index = map->shard,
        .member_max = shard_job_member_max(job),
        .local_end = map->local_end,
        .extent_count = map->extent_count,
        .spec_bytes = spec_bytes,
        .amended_bytes = job->terms.amended.have_bytes,
        .layout_bytes = layout_bytes,
    };
    memcpy(record.magic, magic, sizeof record.magic);
    snprintf(record.build, sizeof record.build, "%s", job->shard->build);
    for (int p = 0; p < CAIRN_PLANES; p++) record.plane_bytes[p] = job->planes.host[p].bytes;
    record.bytes = sizeof record + map->extent_count * sizeof(uint64_t) + spec_bytes +
                   record.amended_bytes + layout_bytes;
    return record;
}

static void write_record(const struct shard_job *job, const struct record *head,
                         const struct packed *spec, const struct packed *layout, uint8_t *out)
{
    const struct shard_map *map = &job->view->table.map;
    uint8_t *at = out + sizeof *head;
    for (size_t i = 0; i < map->extent_count; i++, at += sizeof(uint64_t))
        memcpy(at, &map->extents[i].local_elem, sizeof(uint64_t));
    memcpy(at, spec->bytes, spec->size);
    at += spec->size;
    if (head->amended_bytes > 0) memcpy(at, job->terms.amended.bytes, head->amended_bytes);
    at += head->amended_bytes;
    memcpy(at, layout->bytes, layout->size);
    memcpy(out, head, sizeof *head);
    ((struct record *)out)->checksum = chunk_checksum(out + CHECKED_FROM,
                                                      (size_t)head->bytes - CHECKED_FROM);
}

static cairn_status store_record(struct shard_job *job, uint32_t edition, uint64_t ledger_size,
                                 const struct packed *spec, const struct packed *layout,
                                 struct sentence *why)
{
    char name[CAIRN_KEEPER_NAME_MAX + 1];
    int fd;
    struct record head = record_of(job, edition, spec->size, layout->size);
    head.ledger_bytes = ledger_size;
    uint8_t *out = map_new("cairn-record", head.bytes, &fd, why);
    if (out == NULL) return CAIRN_ERR_NO_MEMORY;
    write_record(job, &head, spec, layout, out);
    munmap(out, (size_t)head.bytes);
    name_edition(name, job->kept.part, 'r', edition);
    const cairn_status status = keeper_store(name, fd, why);
    close(fd);
    return status;
}

static cairn_status make_record(struct shard_job *job, uint32_t edition, uint64_t ledger_size,
                                struct sentence *why)
{
    struct packed *spec = packed_spec(&job->spec);
    struct packed *layout = packed_layout(job->view->layout);
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    if (spec != NULL && layout != NULL)
        status = store_record(job, edition, ledger_size, spec, layout, why);
    else
        sentence_set(why, "out of memory for the spec of a job");
    packed_release(spec);
    packed_release(layout);
    return status;
}

/* True if the part can be kept now. */
static bool may_keep(const struct shard_job *job)
{
    return keeper_is_there() && job->state == CAIRN_JOB_SERVING && !job->staged &&
           job->planes.host_from == 0 && job->move.next == NULL && job->move.now == NULL &&
           !job->shard->closing;
}

/* Segments first, then the ledger, then the record, by which the edition counts. Then the
 * edition before is forgotten: there is one of them at any time, and the higher one counts. */
static cairn_status keep(struct shard_job *job, struct sentence *why)
{
    struct job_kept *kept = &job->kept;
    struct kept_ledger *ledger = NULL;
    const uint32_t before = kept->is_stored ? kept->edition : 0;
    if (kept->part == 0) kept->part = ++job->shard->kept.parts;
    CAIRN_TRY(store_segments(job, why));
    // Editions are never used twice, also if one of them could not be stored.
    const uint32_t edition = ++kept->edition;
    cairn_status status = make_ledger(job, edition, &ledger, why);
    if (status == CAIRN_OK) status = make_record(job, edition, ledger->bytes, why);
    if (status != CAIRN_OK) {
        if (ledger != NULL) munmap(ledger, (size_t)ledger->bytes);
        forget_edition(kept->part, edition);
        return status;
    }
    unmap_ledger(kept);
    kept->ledger = ledger;
    kept->is_stored = true;
    if (before > 0) forget_edition(kept->part, before);
    return CAIRN_OK;
}

void kept_begin(struct shard_job *job)
{
    struct sentence why;
    // the marks of an update are in the ledger that it began with
    job->kept.is_due = job->pass.updating;
    if (!may_keep(job) || job->kept.is_due || keep(job, &why) == CAIRN_OK) return;
    kept_pause(job);
    log_limited(&job->shard->kept.said, CAIRN_LOG_WARN,
                "job %s: its state here does not outlive this process: %s", job->spec.name,
                why.text);
}

void kept_pause(struct shard_job *job)
{
    struct job_kept *kept = &job->kept;
    // A keeper that does not read may hold the edition for longer, and hand it over.
    if (kept->ledger != NULL) kept->ledger->format = VOID_FORMAT;
    if (kept->is_stored) forget_edition(kept->part, kept->edition);
    kept->is_stored = false;
    // The ledger stays mapped until the next edition, or until the job is freed: the threads of an
    // update that is under way write into it.
}

static void part_close(struct kept_part *part);

/* The part is stopped, or leaves. When only the process ends, the next one takes it up. */
static void kept_end(struct shard_job *job)
{
    struct job_kept *kept = &job->kept;
    if (job->shard->closing) return;
    kept_resumed(job);
    kept_pause(job);
    for (int p = 0; p < CAIRN_PLANES; p++) {
        forget_segments(kept->part, p, 0, kept->segments[p]);
        kept->segments[p] = 0;
    }
}

static void kept_free(struct shard_job *job)
{
    unmap_ledger(&job->kept);
    part_close(job->kept.from);
    job->kept.from = NULL;
}

const struct shard_module kept_module = {
    .on = { [SHARD_JOB_STOPS] = kept_end, [SHARD_JOB_FREED] = kept_free },
};

/* ==== the next process ==== */

/* The descriptors of a part that the keeper handed over. */
struct kept_part {
    struct kept_part *next;
    uint32_t number, edition;
    size_t record_at;         /* of the newest record among the descriptors that came */
    int record_fd, ledger_fd; /* owned; -1: none */
    struct {
        int *fds; /* owned: [count]; -1: none */
        uint64_t count;
    } planes[CAIRN_PLANES];
    const struct record *record; /* owned: mapped; NULL: not yet */
    struct kept_ledger *ledger;  /* owned: mapped; NULL: not yet, or the job has taken it */
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
    for (int p = 0; p < CAIRN_PLANES; p++) {
        for (uint64_t s = 0; s < part->planes[p].count; s++) close_fd(&part->planes[p].fds[s]);
        free(part->planes[p].fds);
    }
    if (part->record != NULL) munmap((void *)(uintptr_t)part->record, (size_t)part->record->bytes);
    if (part->ledger != NULL) munmap(part->ledger, (size_t)part->ledger->bytes);
    free(part);
}

/* ---- sorting what came ---- */

static struct kept_part *find_part(struct kept_part **list, uint32_t number)
{
    struct kept_part *part = *list;
    while (part != NULL && part->number != number) part = part->next;
    if (part != NULL) return part;
    part = calloc(1, sizeof *part);
    if (part == NULL) return NULL;
    part->number = number;
    part->record_fd = part->ledger_fd = -1;
    part->next = *list;
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

/* Takes a segment, or notes which record of its part is the newest. */
static void sort_one(struct kept_part **list, struct kept_fd *fds, size_t at)
{
    const struct kept_name name = read_name(fds[at].name);
    struct kept_part *part = name.what != 0 ? find_part(list, name.part) : NULL;
    if (part == NULL) return;
    if (name.what == 'p' && add_segment(part, &name, fds[at].fd)) fds[at].fd = -1;
    if (name.what != 'r' || name.number <= part->edition) return;
    part->edition = name.number;
    part->record_at = at;
}

static int take_fd(struct kept_fd *one)
{
    const int fd = one->fd;
    one->fd = -1;
    return fd;
}

/* Takes the ledger of the newest record. It was stored before that record, and is forgotten after
 * it. There are others if the process died while it exchanged them. */
static void sort_ledger(struct kept_part **list, struct kept_fd *one)
{
    const struct kept_name name = read_name(one->name);
    struct kept_part *part = name.what == 'l' ? find_part(list, name.part) : NULL;
    if (part != NULL && part->ledger_fd < 0 && part->edition == name.number)
        part->ledger_fd = take_fd(one);
}

/* Makes the list of parts. Descriptors that belong to none are closed, and forgotten by the
 * keeper. */
static struct kept_part *sort_parts(struct shard_kept *kept, struct kept_fd *fds, size_t count)
{
    struct kept_part *list = NULL;
    for (size_t i = 0; i < count; i++) sort_one(&list, fds, i);
    for (size_t i = 0; i < count; i++) sort_ledger(&list, &fds[i]);
    for (struct kept_part *part = list; part != NULL; part = part->next) {
        if (part->edition > 0) part->record_fd = take_fd(&fds[part->record_at]);
        if (part->number > kept->parts) kept->parts = part->number;
    }
    for (size_t i = 0; i < count; i++) {
        if (fds[i].fd < 0) continue;
        forget(fds[i].name);
        close(fds[i].fd);
    }
    free(fds);
    return list;
}

/* ---- reading it ---- */

static void *map_old(int fd, uint64_t least, int protection, uint64_t *bytes_out)
{
    struct stat is;
    if (fd < 0 || fstat(fd, &is) != 0 || (uint64_t)is.st_size < least) return NULL;
    void *at = mmap(NULL, (size_t)is.st_size, protection, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return NULL;
    *bytes_out = (uint64_t)is.st_size;
    return at;
}

/* True if the parts of the record have the size that its head says. */
static bool adds_up(const struct record *record, uint64_t bytes)
{
    const uint64_t most = CAIRN_PAGED_BYTES_MAX;
    return record->bytes == bytes && record->extent_count <= bytes / sizeof(uint64_t) &&
           record->spec_bytes <= most && record->amended_bytes <= most &&
           record->layout_bytes <= most &&
           sizeof *record + record->extent_count * sizeof(uint64_t) + record->spec_bytes +
                   record->amended_bytes + record->layout_bytes ==
               bytes;
}

static cairn_status read_record(struct kept_part *part, struct sentence *why)
{
    uint64_t bytes = 0;
    const struct record *record = map_old(part->record_fd, sizeof *record, PROT_READ, &bytes);
    if (record == NULL)
        return fail_with(why, CAIRN_ERR_NOT_FOUND,
                         "the process before was making the part, or moving it");
    cairn_status status = CAIRN_OK;
    if (memcmp(record->magic, magic, sizeof magic) != 0 || record->format != FORMAT)
        status = fail_with(why, CAIRN_ERR_VERSION,
                           "build %.*s keeps state in format %u, and this build reads %d",
                           BUILD_BYTES, record->build, record->format, FORMAT);
    else if (!adds_up(record, bytes) ||
             chunk_checksum((const uint8_t *)record + CHECKED_FROM, (size_t)bytes - CHECKED_FROM) !=
                 record->checksum)
        status = fail_with(why, CAIRN_ERR_CHECKSUM, "its record is damaged");
    if (status == CAIRN_OK)
        part->record = record;
    else
        munmap((void *)(uintptr_t)record, (size_t)bytes);
    return status;
}

static bool ledger_is_right(const struct kept_ledger *ledger, const struct kept_part *part,
                            uint64_t bytes)
{
    const uint64_t most = (uint64_t)1 << 40;
    if (memcmp(ledger->magic, magic, sizeof magic) != 0 || ledger->format != FORMAT ||
        ledger->edition != part->edition || ledger->payload_max > most ||
        ledger->group_count > most || ledger->tensor_count > most || ledger->trained_count > most ||
        ledger_bytes(ledger) != bytes || ledger->bytes != bytes ||
        part->record->ledger_bytes != bytes)
        return false;
    return last_outcome(ledger)->payload_bytes <= ledger->payload_max;
}

static cairn_status read_ledger(struct kept_part *part, struct sentence *why)
{
    uint64_t bytes = 0;
    struct kept_ledger *ledger = map_old(part->ledger_fd, sizeof *ledger, PROT_READ | PROT_WRITE,
                                         &bytes);
    if (ledger == NULL) return fail_with(why, CAIRN_ERR_IO, "its ledger cannot be read");
    if (ledger->format == VOID_FORMAT) {
        munmap(ledger, (size_t)bytes);
        return fail_with(why, CAIRN_ERR_NOT_FOUND,
                         "the process before was moving the part, or giving it up");
    }
    if (!ledger_is_right(ledger, part, bytes)) {
        munmap(ledger, (size_t)bytes);
        return fail_with(why, CAIRN_ERR_CHECKSUM, "its ledger is damaged");
    }
    part->ledger = ledger;
    const struct outcome *last = last_outcome(ledger);
    if (last->phase == CAIRN_STEP_JOINING)
        return fail_with(why, CAIRN_ERR_NOT_READY, "the part had not joined the job yet");
    if (last->phase == CAIRN_STEP_UPDATING && last->kind != CAIRN_DECISION_APPLY)
        return fail_with(why, CAIRN_ERR_CANCELED,
                         "the process before died while it put what a member had written into the "
                         "state");
    return CAIRN_OK;
}

/* ---- resuming ---- */

static const uint8_t *after_places(const struct record *record)
{
    return (const uint8_t *)(record + 1) + record->extent_count * sizeof(uint64_t);
}

/* Borrows bytes as if they had arrived. */
static struct paged borrow(enum page_what what, const uint8_t *bytes, uint64_t size)
{
    return (struct paged) { .what = what,
                            .bytes = (uint8_t *)(uintptr_t)bytes,
                            .have_bytes = (size_t)size,
                            .total_bytes = size };
}

static struct kept_create create_of(const struct kept_part *part)
{
    const struct record *record = part->record;
    const uint8_t *at = after_places(record);
    struct kept_create create = {
        .spec = borrow(CAIRN_PAGE_SPEC, at, record->spec_bytes),
        .layout = borrow(CAIRN_PAGE_LAYOUT, at + record->spec_bytes + record->amended_bytes,
                         record->layout_bytes),
    };
    cairn__job_create__init(&create.message);
    create.message.job = record->job;
    create.message.generation = record->generation;
    create.message.step = record->base_step;
    create.message.shard_index = record->shard_index;
    create.message.member_max = record->member_max;
    return create;
}

void kept_take_part(struct shard_job *job, struct kept_part *part)
{
    job->kept = (struct job_kept) {
        .part = part->number, .edition = part->edition, .is_stored = true, .from = part
    };
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
    if (part->edition != 0) forget_edition(part->number, part->edition);
    for (int p = 0; p < CAIRN_PLANES; p++)
        forget_segments(part->number, p, 0, part->planes[p].count);
}

static cairn_status try_resume(struct shard_daemon *shard, struct kept_part *part, bool is_refused,
                               struct sentence *why)
{
    CAIRN_TRY(read_record(part, why));
    if (is_refused)
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "this daemon died with it three times in a minute, and it may be why");
    CAIRN_TRY(read_ledger(part, why));
    const struct coordinator_id seen = last_outcome(part->ledger)->seen;
    const struct kept_create create = create_of(part);
    CAIRN_TRY(shard->up->resume(shard, &create, part, why));
    if (seen.incarnation >= shard->session.seen.incarnation) shard->session.seen = seen;
    return CAIRN_OK;
}

static void resume(struct shard_daemon *shard, struct kept_part *part, bool is_refused)
{
    struct sentence why;
    char name[32] = "a part";
    if (try_resume(shard, part, is_refused, &why) == CAIRN_OK) return;
    if (part->record != NULL) snprintf(name, sizeof name, "job %016" PRIx64, part->record->job);
    log_error(
        "what was kept of %s cannot be used, and is forgotten: %s; the job is restored from a "
        "snapshot by its on_shard_loss, or by `cairn snapshot restore`",
        name, why.text);
    forget_part(part);
    part_close(part);
}

void kept_open(struct shard_daemon *shard, struct kept_fd *fds, size_t count)
{
    const char *refused = getenv(CAIRN_KEPT_REFUSED);
    const bool is_refused = refused != NULL && strcmp(refused, "1") == 0;
    struct kept_part *list = count > 0 ? sort_parts(&shard->kept, fds, count) : NULL;
    while (list != NULL) {
        struct kept_part *part = list;
        list = part->next;
        resume(shard, part, is_refused);
    }
}

static cairn_status want_audits(struct shard_job *job, const struct paged *amended,
                                struct sentence *why)
{
    struct job_spec_data spec;
    CAIRN_TRY(spec_unpack(amended->bytes, amended->have_bytes, optimizer_names(), &spec, why));
    audit_want(job, spec.policy.audit_every);
    spec_release(&spec);
    return CAIRN_OK;
}

static cairn_status take_amended(struct shard_job *job, struct sentence *why)
{
    const struct record *record = job->kept.from->record;
    const size_t bytes = (size_t)record->amended_bytes;
    job->terms.settled = last_outcome(job->kept.from->ledger)->settled != 0;
    job->terms.revision = record->revision;
    if (bytes == 0) return CAIRN_OK;
    struct paged *amended = &job->terms.amended;
    *amended = (struct paged) { .what = CAIRN_PAGE_SPEC, .bytes = malloc(bytes) };
    if (amended->bytes == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    memcpy(amended->bytes, after_places(record) + record->spec_bytes, bytes);
    amended->have_bytes = amended->capacity_bytes = bytes;
    amended->total_bytes = bytes;
    leaf_hash(amended->bytes, bytes, &job->terms.digest);
    return want_audits(job, amended, why);
}

cairn_status kept_place(struct shard_job *job, struct sentence *why)
{
    const struct kept_part *part = job->kept.from;
    const struct record *record = part->record;
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
    return take_amended(job, why);
}

static cairn_status open_plane(struct shard_job *job, enum plane plane, struct sentence *why)
{
    struct kept_part *part = job->kept.from;
    const uint64_t bytes = part->record->plane_bytes[plane];
    const uint64_t count = planes_segments(plane, bytes);
    if (count > part->planes[plane].count)
        return fail_with(why, CAIRN_ERR_IO, "%" PRIu64 " segments of a plane came, of %" PRIu64,
                         part->planes[plane].count, count);
    int *fds = part->planes[plane].fds;
    const cairn_status status = planes_adopt(&job->planes, plane, fds, bytes, why);
    for (uint64_t s = 0; s < count; s++) fds[s] = -1; // the arena has them, or has closed them
    job->kept.segments[plane] = count;
    // Segments of planes that were about to grow: when these grow again, others have these names.
    forget_segments(part->number, (int)plane, count, part->planes[plane].count);
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
    const struct outcome *last = last_outcome(job->kept.from->ledger);
    return (struct step_kept) {
        .phase = (enum step_phase)last->phase,
        .epoch = last->epoch,
        .round = last->round,
        .round_seen = last->round_seen,
        .round_epoch = last->round_epoch,
        .version = last->version,
        .last = { .kind = (enum decision_kind)last->kind,
                  .round = last->last_round,
                  .version_after = last->version_after,
                  .payload = payload_of(last),
                  .payload_bytes = (size_t)last->payload_bytes },
    };
}

cairn_status kept_take(struct shard_job *job, bool *was_cut_out, struct sentence *why)
{
    struct kept_part *part = job->kept.from;
    struct kept_ledger *ledger = part->ledger;
    const struct outcome *last = last_outcome(ledger);
    const bool *frozen = frozen_of(ledger, last);
    if (ledger->trained_count != job->pass.table->trained_count ||
        ledger->group_count != job->spec.group_count ||
        ledger->tensor_count != job->spec.tensor_count ||
        ledger->payload_max != shard_payload_max(job))
        return fail_with(why, CAIRN_ERR_MALFORMED, "its ledger is of another layout");
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
    if (lane == LANES) return NULL;
    struct update_undo *undo = undo_at(ledger, lane);
    *is_of = undo->stamp == job->kept.stamp && undo->work < ledger->trained_count &&
             !kept_has_ended(job, (uint32_t)undo->work);
    *trained_out = (uint32_t)undo->work;
    return undo;
}

void kept_resumed(struct shard_job *job)
{
    struct shard_daemon *shard = job->shard;
    if (!job->kept.is_pending) return;
    job->kept.is_pending = false;
    part_close(job->kept.from);
    job->kept.from = NULL;
    assert(shard->kept.pending > 0);
    if (--shard->kept.pending == 0) shard->up->resumed(shard);
}
