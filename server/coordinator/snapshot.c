#include "server/coordinator/snapshot.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/base/log.h"
#include "server/coordinator/base.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/job.h"
#include "server/coordinator/round.h"
#include "server/coordinator/store.h"

/* ==== snapshot ==== */

/* Cuts on the loop: begun, pinned by the core, gathered from the shards. See snapshot.h. */

static void add_snapshot_progress(const struct coord_job *job, struct sentence *out);
static bool prepare_snapshot(struct coord_snapshot *snapshot);
static void snapshot_to_view(const struct coord_snapshot *snapshot, const char *state,
                             struct snapshot_view *view);
static void make_snapshot_folder(struct coord_work *work);
static void snapshot_nonfinite(const struct manifest *manifest, struct snapshot_view *view);

/* ---- parts ---- */

static cairn_status take_files(struct coord_snapshot *snapshot, const Cairn__SnapshotPart *part,
                               struct sentence *why)
{
    for (size_t i = 0; i < part->n_files; i++) {
        const Cairn__SnapshotFile *f = part->files[i];
        if (!snapshot->has_files || f->sums.len % CAIRN_SNAPSHOT_SUM_BYTES != 0) {
            return fail_with(why, CAIRN_ERR_PROTOCOL, "a file that was not asked for");
        }
        const cairn_status status = manifest_add_blocks(&snapshot->manifest, f->path, f->bytes,
                                                        f->first_block, f->sums.data,
                                                        f->sums.len / CAIRN_SNAPSHOT_SUM_BYTES);
        if (status != CAIRN_OK)
            return fail_with(why, status, "file %s: not a name of ours, or not its blocks in order",
                             f->path);
        if (f->first_block == 0) snapshot->bytes += f->bytes;
    }
    return CAIRN_OK;
}

/* Shards keep the same last decision, so their payloads are the same bytes. */
static cairn_status take_payload(struct coord_snapshot *snapshot, const Cairn__SnapshotPart *part,
                                 struct sentence *why)
{
    struct manifest *m = &snapshot->manifest;
    if (!snapshot->has_payload) {
        snapshot->has_payload = true;
        const cairn_status status = manifest_set_payload(m, part->payload.data, part->payload.len);
        return status == CAIRN_OK ? status : fail_with(why, status, "the payload is too long");
    }
    if (part->payload.len == m->payload_bytes &&
        (part->payload.len == 0 || memcmp(part->payload.data, m->payload, m->payload_bytes) == 0)) {
        return CAIRN_OK;
    }
    return fail_with(why, CAIRN_ERR_PROTOCOL, "its last decision is another one than the others'");
}

cairn_status coord_part_failed(const Cairn__SnapshotPart *part, struct sentence *why)
{
    if (part->status == CAIRN_OK) return CAIRN_OK;
    const bool known = status_known(part->status);
    return fail_with(why, known ? (cairn_status)part->status : CAIRN_ERR_INTERNAL, "%s",
                     part->text);
}

static cairn_status take_part(struct coord_snapshot *snapshot, const Cairn__SnapshotPart *part,
                              bool is_first, struct sentence *why)
{
    cairn_status status = coord_part_failed(part, why);
    if (status != CAIRN_OK) return status;
    if (part->generation != snapshot->version.generation || part->step != snapshot->version.step) {
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "it is of step %" PRIu64 " (generation %" PRIu64
                         "), the set of step %" PRIu64 " (%" PRIu64 ")",
                         part->step, part->generation, snapshot->version.step,
                         snapshot->version.generation);
    }
    if (is_first) status = take_payload(snapshot, part, why);
    if (status == CAIRN_OK) status = take_files(snapshot, part, why);
    if (status == CAIRN_OK)
        status = coord_digests_take(&snapshot->digests, snapshot->manifest.spec.tensor_count, part,
                                    why);
    return status;
}

void coord_part_next(const struct coord_shard_entry *entry, const Cairn__SnapshotPart *part)
{
    Cairn__SnapshotPartNext next = CAIRN__SNAPSHOT_PART_NEXT__INIT;
    next.job = part->job;
    next.snapshot = part->snapshot;
    coord_session_send(entry->session, CAIRN_MSG_SNAPSHOT_PART_NEXT, 0, &next.base);
}

void coord_snapshot_on_part(struct coord_job *job, uint32_t shard, const Cairn__SnapshotPart *part)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    struct sentence why;
    if (snapshot == NULL || snapshot->number != part->snapshot ||
        snapshot->stage != CAIRN_SNAPSHOT_PINNED)
        return;
    if (!part_is_open(snapshot->parts[shard])) return;
    const struct coord_shard_entry *entry = job->shards[shard].entry;
    const cairn_status status = take_part(snapshot, part,
                                          snapshot->parts[shard] == CAIRN_PART_AWAITED, &why);
    if (status == CAIRN_OK && part->more && snapshot->status == CAIRN_OK) {
        snapshot->parts[shard] = CAIRN_PART_BEGUN;
        coord_part_next(entry, part);
        return;
    }
    snapshot->parts[shard] = status == CAIRN_OK ? CAIRN_PART_IN : CAIRN_PART_NONE;
    if (status != CAIRN_OK) coord_snapshot_fail(snapshot, status, entry->name, why.text);
    coord_snapshot_advance(snapshot);
}

/* ---- the beginning ---- */

/* A digest whose asker is gone before anything was pinned: whoever comes next has its place. */
static bool is_abandoned(const struct coord_snapshot *snapshot)
{
    return snapshot->stage == CAIRN_SNAPSHOT_PINNING && !snapshot->has_files &&
           snapshot->now.at_begin == NULL && snapshot->now.at_end == NULL;
}

bool coord_snapshot_waiting(const struct coord_job *job, struct sentence *out)
{
    const struct coord_snapshot *snapshot = job->snapshots.running;
    bool is_away = false;
    out->text[0] = '\0';
    if (snapshot == NULL || snapshot->stage == CAIRN_SNAPSHOT_PINNING) coord_job_waiting(job, out);
    if (snapshot != NULL && snapshot->making_folder)
        sentence_set(out, "the disk of snapshots.path");
    CAIRN_EACH_SHARD (job, i) {
        is_away |= job->shards[i].entry->session == NULL;
        if (snapshot == NULL || !part_is_open(snapshot->parts[i])) continue;
        sentence_add(out, "%sshard %s", out->text[0] != '\0' ? ", " : "",
                     job->shards[i].entry->name);
    }
    return is_away && out->text[0] != '\0';
}

void coord_snapshot_show(const struct coord_job *job, struct sentence *out)
{
    const struct coord_snapshot *snapshot = job->snapshots.running;
    struct sentence awaited;
    out->text[0] = '\0';
    if (snapshot == NULL) return;
    const char *id = coord_snapshot_id(snapshot);
    coord_snapshot_waiting(job, &awaited);
    sentence_set(out, "a %s%s%s, for %" PRIu64 " s", snapshot->has_files ? "snapshot" : "digest",
                 id[0] != '\0' ? " " : "", id,
                 (uv_now(job->cluster->loop) - snapshot->begun_ms) / 1000);
    add_snapshot_progress(job, out);
    if (awaited.text[0] != '\0') sentence_add(out, "; it waits for %s", awaited.text);
}

cairn_status coord_snapshot_refuse(const struct coord_job *job, struct sentence *why)
{
    struct sentence awaited;
    coord_snapshot_waiting(job, &awaited);
    return fail_with(why, CAIRN_ERR_BUSY,
                     "a snapshot or digest of job %s is being taken%s%.300s; try again when it is "
                     "done, or give it up: `cairn snapshot cancel %s`",
                     job->spec.name, awaited.text[0] != '\0' ? " and waits for " : "", awaited.text,
                     job->spec.name);
}

static struct coord_snapshot *new_snapshot(struct coord_job *job)
{
    struct coord_snapshot *snapshot = calloc(1, sizeof *snapshot);
    if (snapshot == NULL) return NULL;
    manifest_init(&snapshot->manifest);
    snapshot->job = job;
    snapshot->job_id = job->id;
    snapshot->work.cluster = job->cluster;
    snapshot->parts = calloc(job->shard_room, 1);
    snapshot->progress = calloc(job->shard_room, sizeof *snapshot->progress);
    if (snapshot->parts != NULL && snapshot->progress != NULL) return snapshot;
    coord_snapshot_free(snapshot);
    return NULL;
}

/* Not at the end, when all others have written. */
static cairn_status judge_storage(const struct coord_job *job, struct sentence *why)
{
    const char *said = job->cluster->storage.watch.said.text;
    if (said[0] != '\0') return fail_with(why, CAIRN_ERR_IO, "%s", said);
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_shard_entry *entry = job->shards[i].entry;
        if (entry->storage.text[0] != '\0')
            return fail_with(why, CAIRN_ERR_IO, "shard %s cannot save: %s", entry->name,
                             entry->storage.text);
    }
    return CAIRN_OK;
}

/* May one be begun, but for a snapshot that runs? */
static cairn_status judge_snapshot(const struct coord_job *job, bool has_files,
                                   struct sentence *why)
{
    if (job->state == CAIRN_CLUSTER_JOB_LOST)
        return fail_with(why, CAIRN_ERR_JOB_LOST, "job %s is %s", job->spec.name,
                         job->loss.why.text);
    if (job->state != CAIRN_CLUSTER_JOB_RUNNING) {
        return fail_with(why, CAIRN_ERR_NOT_READY, "job %s is %s: there is nothing to save yet",
                         job->spec.name, coord_job_state_name(job));
    }
    if (job->extension.staged_job != NULL)
        return fail_with(why, CAIRN_ERR_BUSY, "job %s is being amended; ask again", job->spec.name);
    if (job->park.shut && !(job->park.settled && job->park.wanted))
        return fail_with(why, CAIRN_ERR_BUSY, "job %s is being parked, or taken back; ask again",
                         job->spec.name);
    return has_files ? judge_storage(job, why) : CAIRN_OK;
}

static void start_snapshot(struct coord_job *job, struct coord_snapshot *snapshot, bool has_files)
{
    const bool inherits = job->snapshots.running == snapshot;
    snapshot->has_files = has_files;
    snapshot->begun_ms = uv_now(job->cluster->loop);
    snapshot->stuck_ms = 0;
    if (inherits) return; // the core knows of it
    job->snapshots.running = snapshot;
    if (!prepare_snapshot(snapshot)) snapshot->is_ready = true;
    coord_snapshot_resume(job, false);
}

void coord_snapshot_resume(struct coord_job *job, bool awaits_step)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (awaits_step || snapshot == NULL || !snapshot->is_ready || snapshot->is_asked ||
        job->core == NULL || coord_job_moves(job))
        return;
    snapshot->is_asked = true;
    const struct round_event pin = { .kind = CAIRN_ROUND_PIN, .snapshot = snapshot->number };
    coord_job_event(job, &pin);
}

/* Something waits for the end of the one that stands, if any: that waits for no memory any more. */
static void hurry_snapshot(struct coord_job *job)
{
    if (job->snapshots.running != NULL) job->snapshots.running->is_ready = true;
    coord_snapshot_resume(job, false);
}

bool coord_snapshot_holds_layout(const struct coord_job *job)
{
    return job->snapshots.running != NULL && job->snapshots.running->is_asked;
}

cairn_status coord_snapshot_begin(struct coord_job *job, bool has_files,
                                  struct coord_session *session, uint32_t request, bool wait,
                                  struct sentence *why)
{
    const bool inherits = job->snapshots.running != NULL && is_abandoned(job->snapshots.running);
    const bool follows = job->snapshots.running != NULL &&
                         job->snapshots.running->cause == CAIRN_SNAPSHOT_PERIODIC && has_files;
    CAIRN_TRY(judge_snapshot(job, has_files, why));
    if (!inherits && !follows && job->snapshots.running != NULL)
        return coord_snapshot_refuse(job, why);
    struct coord_snapshot *snapshot = inherits || follows ? job->snapshots.running
                                                          : new_snapshot(job);
    if (snapshot == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    struct coord_snapshot_waiters *waiters = follows ? &snapshot->next : &snapshot->now;
    if (!coord_waiters_add(wait ? &waiters->at_end : &waiters->at_begin, session, request)) {
        if (snapshot != job->snapshots.running) coord_snapshot_free(snapshot);
        return fail_with(why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
    }
    if (!follows) start_snapshot(job, snapshot, has_files);
    return CAIRN_OK;
}

cairn_status coord_snapshot_begin_unasked(struct coord_job *job, enum snapshot_cause cause,
                                          struct sentence *why)
{
    CAIRN_TRY(judge_snapshot(job, true, why));
    if (job->snapshots.running != NULL) return coord_snapshot_refuse(job, why);
    struct coord_snapshot *snapshot = new_snapshot(job);
    if (snapshot == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    snapshot->cause = cause;
    start_snapshot(job, snapshot, true);
    return CAIRN_OK;
}

void coord_snapshot_follow(struct coord_job *job, struct coord_snapshot_waiters waiters)
{
    struct sentence why;
    if (waiters.at_begin == NULL && waiters.at_end == NULL) return;
    cairn_status status = judge_snapshot(job, true, &why);
    struct coord_snapshot *snapshot = status == CAIRN_OK ? new_snapshot(job) : NULL;
    if (snapshot != NULL) {
        snapshot->now = waiters;
        start_snapshot(job, snapshot, true);
        return;
    }
    if (status == CAIRN_OK) status = fail_with(&why, CAIRN_ERR_NO_MEMORY, "out of memory");
    coord_waiters_fail(&waiters.at_begin, status, why.text);
    coord_waiters_fail(&waiters.at_end, status, why.text);
}

static void answer_begun(struct coord_snapshot *snapshot)
{
    struct snapshot_view view;
    snapshot_to_view(snapshot, "writing", &view);
    coord_waiters_answer(&snapshot->now.at_begin, CAIRN_MSG_SNAPSHOT_STATUS, &view.status.base);
}

static cairn_status fill_manifest(struct coord_snapshot *snapshot)
{
    const struct coord_job *job = snapshot->job;
    struct manifest *m = &snapshot->manifest;
    m->cluster = strdup(job->cluster->options->name);
    m->generation = snapshot->version.generation;
    m->step = snapshot->version.step;
    m->epoch = round_epoch_of(job->core);
    m->origin = job->origin;
    m->created_unix_s = wall_unix_s();
    m->periodic = snapshot->cause == CAIRN_SNAPSHOT_PERIODIC ? job->id : 0;
    m->shard_count = job->entry_count;
    m->nonfinite = coord_halts_damage(job);
    if (snapshot->cause == CAIRN_SNAPSHOT_PERIODIC &&
        m->nonfinite.nonfinite > 0) // it was not when the snapshot began
        return fail_with(&snapshot->why, CAIRN_ERR_NONFINITE, "the job is damaged");
    // As it is at the pinned step: an amendment may come while the shards write.
    cairn_status status = spec_copy(&job->spec, &m->spec);
    if (status == CAIRN_OK) status = coord_groups_record(job, &m->reduce_groups);
    if (m->cluster != NULL && status == CAIRN_OK) return CAIRN_OK;
    return fail_with(&snapshot->why, CAIRN_ERR_NO_MEMORY, "out of memory for the manifest");
}

static void send_pins(struct coord_snapshot *snapshot)
{
    Cairn__Pin pin = CAIRN__PIN__INIT;
    pin.job = snapshot->job->id;
    pin.snapshot = snapshot->number;
    pin.files = snapshot->has_files;
    CAIRN_EACH_SHARD (snapshot->job, i) {
        const struct coord_job_shard *s = &snapshot->job->shards[i];
        if (!s->up) {
            coord_snapshot_fail(snapshot, CAIRN_ERR_CLOSED, s->entry->name, "it is away");
            continue;
        }
        snapshot->parts[i] = CAIRN_PART_AWAITED;
        coord_session_send(s->entry->session, CAIRN_MSG_PIN, 0, &pin.base);
    }
}

static void on_folder(struct coord_work *work)
{
    struct coord_snapshot *snapshot = (struct coord_snapshot *)work;
    if (work->cluster->closing ||
        snapshot->job == NULL) { // a folder without a manifest is no snapshot
        coord_snapshot_free(snapshot);
        return;
    }
    snapshot->making_folder = false;
    if (snapshot->folder_status == CAIRN_OK) {
        coord_storage_used(work->cluster);
    } else {
        coord_snapshot_fail(snapshot, snapshot->folder_status, "", snapshot->folder_why.text);
        storage_watch_doubt(&work->cluster->storage.watch);
    }
    coord_snapshot_tell_folder(snapshot, snapshot->status == CAIRN_OK ? snapshot->folder : "");
    if (snapshot->status == CAIRN_OK) {
        log_info("snapshot %s of job %s begins", snapshot->id, snapshot->job->spec.name);
        answer_begun(snapshot);
    }
    coord_snapshot_advance(snapshot);
}

/* The folder's name has the step, and the shards need the folder: it is made while they copy. */
static void begin_folder(struct coord_snapshot *snapshot)
{
    snapshot->work.run = make_snapshot_folder;
    snapshot->work.done = on_folder;
    snapshot->making_folder = coord_work_start(&snapshot->work, snapshot->job->cluster, NULL, 0);
    if (snapshot->making_folder) return;
    coord_snapshot_fail(snapshot, CAIRN_ERR_NO_MEMORY, "", "no thread for the snapshot");
}

void coord_snapshot_on_pin(struct coord_job *job, uint64_t number, struct cairn_version version)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL || snapshot->number != number || snapshot->stage != CAIRN_SNAPSHOT_PINNING)
        return;
    snapshot->version = version;
    snapshot->status = fill_manifest(snapshot);
    if (snapshot->status != CAIRN_OK)
        coord_snapshot_tell_folder(snapshot, ""); // who has prepared it
    snapshot->stage = CAIRN_SNAPSHOT_PINNED;
    if (snapshot->status == CAIRN_OK) {
        send_pins(snapshot);
        if (snapshot->has_files)
            begin_folder(snapshot);
        else
            answer_begun(snapshot);
    }
    coord_snapshot_advance(snapshot);
}

/* ==== prepare ==== */

/* Shards make memory for what updates overwrite before a version is pinned, and no update has to. One that is
 * due at a step is prepared for some steps ahead; whichever snapshot comes next has what was made. */

/* Whoever could not make its memory makes do without. */
static void on_prepared(struct coord_job *job, const void *about, cairn_status status,
                        const char *why)
{
    uint64_t number;
    memcpy(&number, about, sizeof number);
    if (status != CAIRN_OK) log_debug("job %s: a snapshot: %s", job->spec.name, why);
    if (status != CAIRN_OK && job->snapshots.ahead == number) coord_snapshot_unprepare(job);
    if (job->snapshots.running == NULL || job->snapshots.running->number != number) return;
    job->snapshots.running->is_ready = true;
    coord_snapshot_resume(job, coord_pace_nears_step(job));
}

/* False: no memory. */
static bool ask_all(struct coord_job *job, uint64_t number)
{
    struct coord_gather *gather = coord_gather_open_job(job, on_prepared, &number, sizeof number);
    if (gather == NULL) return false;
    Cairn__PinPrepare message = CAIRN__PIN_PREPARE__INIT;
    message.job = job->id;
    message.snapshot = number;
    CAIRN_EACH_SHARD (job, i) {
        (void)coord_gather_send(gather, job->shards[i].entry, CAIRN_MSG_PIN_PREPARE, &message.base);
    }
    coord_gather_start(gather);
    return true;
}

uint64_t coord_snapshot_number(void)
{
    uint64_t number;
    randombytes_buf(&number, sizeof number);
    return number | 1;
}

/* The snapshot gets the number of one that was prepared ahead, if there is one; else a new one, and the
 * shards are asked for memory. False: nobody waits for memory. A snapshot by steps is of the version
 * that there is now, as the last before a parting is, so neither asks; and nobody needs the memory
 * where nobody trains. */
static bool prepare_snapshot(struct coord_snapshot *snapshot)
{
    struct coord_job *job = snapshot->job;
    const bool by_steps = snapshot->cause == CAIRN_SNAPSHOT_PERIODIC &&
                          job->spec.policy.snapshot_every_s == 0;
    const uint64_t ahead = job->snapshots.ahead;
    job->snapshots.ahead = 0;
    snapshot->number = ahead != 0 ? ahead : coord_snapshot_number();
    if (by_steps || ahead != 0 || snapshot->cause == CAIRN_SNAPSHOT_PARTING ||
        coord_pace_rests(job))
        return false;
    return ask_all(job, snapshot->number);
}

/* ---- ahead ---- */

/* A step will come at which one is taken, and the memory has no other use. */
static bool is_of_use(const struct coord_job *job)
{
    const struct policy *policy = &job->spec.policy;
    struct sentence unsaid;
    return policy->snapshot_every > 0 && policy->snapshot_every_s == 0 &&
           coord_halts_damage(job).nonfinite == 0 && !coord_job_moves(job) &&
           !coord_pace_rests(job) && judge_snapshot(job, true, &unsaid) == CAIRN_OK;
}

/* In a half of the time that making memory may take at most; or with the next step. */
static bool is_soon(const struct coord_job *job, uint64_t steps)
{
    const uint64_t within_us = 500000 * (uint64_t)policy_prepare_within_s(&job->spec.policy);
    const uint64_t median_us = coord_pace_median(&job->pace); // 0: not known
    return steps == 1 || (median_us > 0 && steps * median_us <= within_us);
}

void coord_snapshot_prepare_ahead(struct coord_job *job, uint64_t steps)
{
    if (job->snapshots.ahead != 0 || job->snapshots.running != NULL || !is_soon(job, steps) ||
        !is_of_use(job))
        return;
    const uint64_t number = coord_snapshot_number();
    if (ask_all(job, number)) job->snapshots.ahead = number;
}

void coord_snapshot_look_behind(struct coord_job *job)
{
    if (job->snapshots.ahead != 0 && !is_of_use(job)) coord_snapshot_unprepare(job);
}

void coord_snapshot_unprepare(struct coord_job *job)
{
    Cairn__PinFolder message = CAIRN__PIN_FOLDER__INIT;
    if (job->snapshots.ahead == 0) return;
    message.job = job->id;
    message.snapshot = job->snapshots.ahead;
    message.path = wire_text("");
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_shard_entry *entry = job->shards[i].entry;
        if (entry->session != NULL)
            coord_session_send(entry->session, CAIRN_MSG_PIN_FOLDER, 0, &message.base);
    }
    job->snapshots.ahead = 0;
}

/* ==== progress ==== */

/* How far a snapshot is: what shards tell of it with their heartbeats. */

static void take_progress(struct coord_job *job, const struct coord_shard_entry *entry,
                          const Cairn__PinTold *told)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL || snapshot->number != told->snapshot) return;
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].entry != entry) continue;
        // A shard that says more than can be is shown as one that is done.
        const uint64_t total = told->total_bytes < UINT64_MAX / 65536 ? told->total_bytes : 0;
        snapshot->progress[i] = (struct snapshot_progress) {
            .done_bytes = told->done_bytes < total ? told->done_bytes : total,
            .total_bytes = total,
            .waited_ms = told->waited_ms,
        };
    }
}

void coord_snapshot_on_progress(struct coord *cluster, const struct coord_shard_entry *entry,
                                const Cairn__Heartbeat *message)
{
    for (size_t i = 0; i < message->n_pins; i++) {
        struct coord_job *job = coord_job_by_id(cluster, message->pins[i]->job);
        if (job != NULL) take_progress(job, entry, message->pins[i]);
    }
}

bool coord_snapshot_progress(const struct coord_job *job, struct snapshot_progress *out)
{
    const struct coord_snapshot *snapshot = job->snapshots.running;
    *out = (struct snapshot_progress) { 0 };
    if (snapshot == NULL) return false;
    CAIRN_EACH_SHARD (job, i) {
        const struct snapshot_progress *of = &snapshot->progress[i];
        // Its part is in: it told last a little before that.
        out->done_bytes += snapshot->parts[i] == CAIRN_PART_IN ? of->total_bytes : of->done_bytes;
        out->total_bytes += of->total_bytes;
        if (of->waited_ms > out->waited_ms) out->waited_ms = of->waited_ms;
    }
    if (out->total_bytes == 0) return false;
    const uint64_t ms = uv_now(job->cluster->loop) - snapshot->begun_ms;
    out->bytes_per_s = (uint64_t)((double)out->done_bytes * 1000 / (double)(ms > 0 ? ms : 1));
    if (out->bytes_per_s > 0)
        out->left_s = (out->total_bytes - out->done_bytes + out->bytes_per_s - 1) /
                      out->bytes_per_s;
    return true;
}

/* For people, behind what the sentence says: bytes, rate, seconds left; nothing if nobody has told. */
static void add_snapshot_progress(const struct coord_job *job, struct sentence *out)
{
    struct snapshot_progress progress;
    if (!coord_snapshot_progress(job, &progress)) return;
    sentence_add(out, "; %.1f of %.1f MB, %.1f MB/s", (double)progress.done_bytes / 1e6,
                 (double)progress.total_bytes / 1e6, (double)progress.bytes_per_s / 1e6);
    if (progress.bytes_per_s > 0) sentence_add(out, ", %" PRIu64 " s left", progress.left_s);
    if (progress.waited_ms > 0)
        sentence_add(out, ", updates waited %" PRIu64 " ms for its staging", progress.waited_ms);
}

/* Describes a snapshot that is being taken, without its progress. `view` borrows from `snapshot` and
 * `state`. */
static void snapshot_to_view(const struct coord_snapshot *snapshot, const char *state,
                             struct snapshot_view *view)
{
    Cairn__SnapshotStatus *out = &view->status;
    cairn__snapshot_status__init(out);
    out->job = snapshot->job->spec.name;
    out->state = wire_text(state);
    out->shards = snapshot->job->entry_count;
    out->periodic = snapshot->cause == CAIRN_SNAPSHOT_PERIODIC;
    if (snapshot->stage == CAIRN_SNAPSHOT_PINNING) return; // neither version nor manifest
    out->generation = snapshot->version.generation;
    out->step = snapshot->version.step;
    out->created_unix_ms = snapshot->manifest.created_unix_s * 1000;
    if (snapshot->status == CAIRN_OK) snapshot_nonfinite(&snapshot->manifest, view);
    if (coord_snapshot_id(snapshot)[0] == '\0') return; // another thread makes the folder
    out->id = wire_text(snapshot->id);
    out->path = snapshot->folder;
}

bool coord_snapshot_running(const struct coord_job *job, struct snapshot_view *view)
{
    const struct coord_snapshot *snapshot = job->snapshots.running;
    struct snapshot_progress progress;
    if (snapshot == NULL || !snapshot->has_files) return false;
    snapshot_to_view(snapshot, "running", view);
    if (!coord_snapshot_progress(job, &progress)) return true;
    view->status.done_bytes = progress.done_bytes;
    view->status.total_bytes = progress.total_bytes;
    view->status.bytes_per_s = progress.bytes_per_s;
    view->status.left_s = progress.left_s;
    return true;
}

/* ==== work ==== */

/* The work of a snapshot that another thread does: the content root from the digests, and the
 * manifest. */

/* Removes the files of a snapshot that was begun. If some cannot be removed, they have no
 * manifest, so nobody lists them, and the snapshot stays noted as begun until they are gone
 * (snapshot.h). */
static cairn_status remove_begun(const struct coord_snapshot *snapshot)
{
    struct snapshot_removed removed;
    struct sentence why;
    const char *root = snapshot->work.cluster->storage.path, *job = snapshot->manifest.spec.name;
    const cairn_status status = snapshot_remove(root, job, snapshot->id, &removed, &why);
    if (status != CAIRN_OK && status != CAIRN_ERR_NOT_FOUND)
        log_warn("what snapshot %s of job %s has written stays for now: %s", snapshot->id, job,
                 why.text);
    return status == CAIRN_ERR_NOT_FOUND ? CAIRN_OK : status;
}

/* Makes the folder, and the id. Any thread, as the next one; touches, too, what is constant of the cluster.
 * */
static void make_snapshot_folder(struct coord_work *work)
{
    struct coord_snapshot *snapshot = (struct coord_snapshot *)work;
    snapshot->folder_status = coord_storage_seen(work->cluster, &snapshot->folder_why);
    if (snapshot->folder_status != CAIRN_OK) return;
    snapshot->folder_status = snapshot_folder_make(
        work->cluster->storage.path, snapshot->manifest.spec.name, snapshot->version.generation,
        snapshot->version.step, snapshot->id, &snapshot->folder, &snapshot->folder_why);
    if (snapshot->folder_status == CAIRN_OK)
        snapshot->folder_status = snapshot_begun_set(work->cluster->storage.path,
                                                     snapshot->manifest.spec.name, snapshot->id,
                                                     snapshot->job_id, &snapshot->folder_why);
}

/* Whoever waits for the snapshot finds that `latest` names it: files and headers are as the
 * manifest has them, read back from the storage. The scrub reads all of it later, and takes
 * `latest` off a damaged one. If `latest` cannot be set, the log says so, and the next snapshot
 * that is verified sets it. */
static void note_latest(const struct coord_snapshot *snapshot)
{
    struct snapshot opened;
    struct sentence why;
    cairn_status status = snapshot_open(snapshot->folder, &opened, &why);
    if (status == CAIRN_OK) {
        snapshot_close(&opened);
        status = coord_snapshot_note_latest(snapshot->work.cluster, snapshot->manifest.spec.name,
                                            snapshot->id, &why);
    }
    if (status != CAIRN_OK)
        log_warn("snapshot %s of job %s is committed, and `latest` does not name it: %s",
                 snapshot->id, snapshot->manifest.spec.name, why.text);
}

void coord_snapshot_work(struct coord_work *work)
{
    struct coord_snapshot *snapshot = (struct coord_snapshot *)work;
    struct manifest *m = &snapshot->manifest;
    struct hash root;
    if (snapshot->status == CAIRN_OK)
        snapshot->status = coord_content_root(m, &snapshot->digests, &root, &m->loss_scale,
                                              &snapshot->why);
    if (snapshot->status == CAIRN_OK) memcpy(m->content_root, root.byte, sizeof m->content_root);
    if (snapshot->status == CAIRN_OK && coord_note_missed(m) != CAIRN_OK)
        snapshot->status = fail_with(&snapshot->why, CAIRN_ERR_NO_MEMORY,
                                     "out of memory for the manifest");
    if (snapshot->status == CAIRN_OK && snapshot->has_files)
        snapshot->status = manifest_commit_signed(snapshot->folder, m,
                                                  coord_keys_signer(work->cluster), &snapshot->why);
    if (snapshot->status == CAIRN_OK && snapshot->has_files) note_latest(snapshot);
    if (snapshot->folder != NULL &&
        (snapshot->status == CAIRN_OK || remove_begun(snapshot) == CAIRN_OK))
        snapshot_begun_forget(work->cluster->storage.path, m->spec.name, snapshot->id);
}

/* Says what of the saved version is not finite. */
static void snapshot_nonfinite(const struct manifest *manifest, struct snapshot_view *view)
{
    results_list(&manifest->nonfinite, &manifest->spec, view->nonfinite);
    view->status.nonfinite = manifest->nonfinite.nonfinite;
    view->status.nonfinite_tensors = view->nonfinite;
}

void coord_manifest_to_view(const struct manifest *manifest, const char *id, const char *folder,
                            struct snapshot_view *view)
{
    Cairn__SnapshotStatus *out = &view->status;
    cairn__snapshot_status__init(out);
    snapshot_nonfinite(manifest, view);
    out->id = wire_text(id);
    out->path = wire_text(folder);
    out->job = manifest->spec.name;
    out->state = wire_text("committed");
    out->generation = manifest->generation;
    out->step = manifest->step;
    out->files = (uint32_t)manifest->file_count;
    for (size_t i = 0; i < manifest->file_count; i++) out->bytes += manifest->files[i].bytes;
    out->shards = manifest->shard_count;
    out->content_root.data = (uint8_t *)(uintptr_t)manifest->content_root;
    out->content_root.len = sizeof manifest->content_root;
    out->created_unix_ms = manifest->created_unix_s * 1000;
    out->periodic = manifest->periodic != 0;
}

/* ==== parting ==== */

static void say_unsaved(struct coord_job *job, const char *why)
{
    sentence_set(&job->parting.outcome, "nothing durable is left of job %s but older snapshots: %s",
                 job->spec.name, why);
}

void coord_parting_want(struct coord_job *job)
{
    struct coord_parting *p = &job->parting;
    if (p->state == CAIRN_PARTING_WANTED || p->state == CAIRN_PARTING_TAKEN) return;
    if (p->is_saved && (job->state == CAIRN_CLUSTER_JOB_LOST ||
                        version_compare(p->version, coord_job_version(job)) == 0))
        return;
    p->state = CAIRN_PARTING_WANTED;
    p->is_saved = false;
    say_unsaved(job, "its snapshot had not begun");
}

bool coord_parting_advance(struct coord_job *job)
{
    struct coord_parting *p = &job->parting;
    struct sentence why;
    if (p->state != CAIRN_PARTING_WANTED) return p->state != CAIRN_PARTING_TAKEN;
    p->state = CAIRN_PARTING_TAKEN;
    say_unsaved(job, "its snapshot was not done in time");
    const cairn_status status = coord_snapshot_begin_unasked(job, CAIRN_SNAPSHOT_PARTING, &why);
    if (status == CAIRN_OK) return p->state == CAIRN_PARTING_ENDED;
    if (status == CAIRN_ERR_BUSY) hurry_snapshot(job); // it is behind that one
    p->state = status == CAIRN_ERR_BUSY ? CAIRN_PARTING_WANTED : CAIRN_PARTING_ENDED;
    say_unsaved(job, why.text);
    return p->state == CAIRN_PARTING_ENDED;
}

void coord_parting_snapshot_ended(const struct coord_snapshot *snapshot)
{
    struct coord_parting *p = &snapshot->job->parting;
    p->state = CAIRN_PARTING_ENDED;
    p->is_saved = snapshot->status == CAIRN_OK;
    p->version = snapshot->version;
    if (p->is_saved)
        sentence_set(&p->outcome, "job %s is saved as snapshot %s of step %" PRIu64,
                     snapshot->job->spec.name, snapshot->id, snapshot->version.step);
    else
        say_unsaved(snapshot->job, snapshot->why.text);
}

/* ==== cost ==== */

static void begin_cost(struct coord_cost *cost, const struct coord_snapshot *snapshot)
{
    const bool comparable = cost->plain.count >= CAIRN_COST_STEPS;
    cost->is_counting = true;
    cost->has_ended = cost->is_committed = false;
    cost->number = snapshot->number;
    cost->extra_us = 0;
    cost->usual_us = comparable ? coord_pace_median(&cost->plain) : 0;
}

static uint32_t bounded_us(int64_t us)
{
    return us < 0 ? 0 : us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

/* One that failed, or had nothing to be compared with, says nothing. */
static void conclude_cost(struct coord_cost *cost)
{
    cost->is_counting = false;
    if (!cost->is_committed || cost->usual_us == 0) return;
    cost->extras_us[cost->next] = bounded_us(cost->extra_us);
    cost->writes_us[cost->next] = bounded_us((int64_t)cost->write_us);
    cost->next = (cost->next + 1) % CAIRN_COST_SNAPSHOTS;
    if (cost->count < CAIRN_COST_SNAPSHOTS) cost->count++;
}

void coord_cost_note_step(struct coord_job *job)
{
    struct coord_cost *cost = &job->snapshots.cost;
    const struct coord_snapshot *snapshot = job->snapshots.running;
    const uint32_t us = job->pace.last_us;
    if (!cost->is_counting && snapshot != NULL && snapshot->has_files) begin_cost(cost, snapshot);
    if (cost->is_counting) {
        cost->extra_us += (int64_t)us - cost->usual_us;
        if (cost->has_ended) conclude_cost(cost);
    } else if (snapshot == NULL) { // a digest is neither
        coord_pace_note(&cost->plain, us);
    }
}

void coord_cost_ended(const struct coord_snapshot *snapshot)
{
    struct coord_cost *cost = &snapshot->job->snapshots.cost;
    if (!snapshot->has_files) return;
    if (!cost->is_counting || cost->number != snapshot->number)
        begin_cost(cost, snapshot); // within one step
    cost->has_ended = true;
    cost->is_committed = snapshot->status == CAIRN_OK;
    cost->write_us = 1000 * (uv_now(snapshot->job->cluster->loop) - snapshot->begun_ms);
}
