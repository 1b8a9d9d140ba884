#include "server/coordinator/snapshot.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "proto/store/confine.h"
#include "server/coordinator/cluster.h"

/* ==== who waits ==== */

static bool has_waiters(const struct coord_snapshot_waiters *of)
{
    return !LIST_EMPTY(&of->at_begin) || !LIST_EMPTY(&of->at_end);
}

static void move_waiters(struct coord_snapshot_waiters *from, struct coord_snapshot_waiters *to)
{
    coord_waiters_move(&from->at_begin, &to->at_begin);
    coord_waiters_move(&from->at_end, &to->at_end);
}

static void fail_waiters(struct coord_snapshot_waiters *of, cairn_status status, const char *why)
{
    coord_waiters_fail(&of->at_begin, status, why);
    coord_waiters_fail(&of->at_end, status, why);
}

static void release_waiters(struct coord_snapshot_waiters *of)
{
    coord_waiters_release(&of->at_begin);
    coord_waiters_release(&of->at_end);
}

/* ==== given up ==== */

/* Frees the snapshot without answering its waiters. */
static void free_snapshot(struct coord_snapshot *snapshot)
{
    (void)coord_steps_cancel(&snapshot->steps);
    if (snapshot->job != NULL && snapshot->job->snapshots.running == snapshot)
        snapshot->job->snapshots.running = NULL;
    release_waiters(&snapshot->now);
    for (int has_files = 0; has_files < 2; has_files++) release_waiters(&snapshot->next[has_files]);
    coord_waiters_release(&snapshot->at_cancel);
    manifest_release(&snapshot->manifest);
    free(snapshot->folder);
    free(snapshot->parts);
    free(snapshot->progress);
    coord_digests_release(&snapshot->digests);
    free(snapshot);
}

/* Sends PinFolder to the shards that are working on the snapshot, or may have prepared memory for
 * it. An empty path tells them that the snapshot was given up. */
static void tell_folder(const struct coord_snapshot *snapshot, const char *path)
{
    Cairn__PinFolder message = CAIRN__PIN_FOLDER__INIT;
    message.job = snapshot->job->id;
    message.snapshot = snapshot->number;
    message.path = wire_text(path);
    CAIRN_EACH_SHARD (snapshot->job, i) {
        const struct coord_shard_entry *entry = snapshot->job->shards[i].entry;
        const bool is_prepared = !snapshot->is_pinned && entry->session != NULL;
        if (part_is_open(snapshot->parts[i]) || is_prepared)
            coord_session_send(entry->session, CAIRN_MSG_PIN_FOLDER, 0, &message.base);
    }
}

/* True if no shard works on the snapshot any more. */
static bool commits(const struct coord_snapshot *snapshot)
{
    return coord_steps_at(&snapshot->steps) == CAIRN_SNAPSHOT_COMMITS;
}

/* Records a failure, and tells the working shards to stop. Only the first failure is kept. */
static void fail_snapshot(struct coord_snapshot *snapshot, cairn_status status, const char *name,
                          const char *text)
{
    if (snapshot->status != CAIRN_OK) return;
    snapshot->status = status == CAIRN_OK ? CAIRN_ERR_INTERNAL : status;
    sentence_set(&snapshot->why, "%s%s%s", name, *name == '\0' ? "" : ": ", text);
    // the shards' work is useless now
    if (!commits(snapshot)) tell_folder(snapshot, "");
}

/* ==== work ==== */

/* Another thread does a part of a snapshot's work. It makes the folder, computes the content root
 * from the digests, and writes the manifest. */

/* Removes the files of a snapshot that was begun. If files cannot be removed, nobody lists them,
 * because they have no manifest. The snapshot stays noted as begun until the files are gone
 * (snapshot.h). */
static cairn_status remove_begun(const struct coord_snapshot *snapshot)
{
    struct snapshot_removed removed;
    struct sentence why;
    const char *root = snapshot->steps.cluster->storage.path, *job = snapshot->manifest.spec.name;
    const cairn_status status = snapshot_remove(root, job, snapshot->id, &removed, &why);
    if (status != CAIRN_OK && status != CAIRN_ERR_NOT_FOUND)
        log_warn("the files of snapshot %s of job %s stay for now: %s", snapshot->id, job,
                 why.text);
    return status == CAIRN_ERR_NOT_FOUND ? CAIRN_OK : status;
}

/* Makes the snapshot's folder and id. May run on any thread, like work_on_snapshot(), so it uses
 * only the snapshot and constant fields of the cluster. */
static cairn_status make_snapshot_folder(struct coord_steps *steps, struct sentence *why)
{
    struct coord_snapshot *snapshot = (struct coord_snapshot *)steps;
    const char *root = steps->cluster->storage.path, *job = snapshot->manifest.spec.name;
    CAIRN_TRY(coord_storage_seen(steps->cluster, why));
    CAIRN_TRY(snapshot_folder_make(root, job, snapshot->version.generation, snapshot->version.step,
                                   snapshot->id, &snapshot->folder, why));
    return snapshot_begun_set(root, job, snapshot->id, snapshot->job_id, why);
}

/* The files and their headers of a snapshot, against its manifest. */
struct looked {
    const char *folder; /* borrowed */
    cairn_status status;
    struct sentence why;
};

static void look_at_files(void *context)
{
    struct looked *looked = context;
    struct snapshot opened;
    looked->status = snapshot_open(looked->folder, &opened, &looked->why);
    if (looked->status == CAIRN_OK) snapshot_close(&opened);
}

/* Makes `latest` name the snapshot, before those who wait for the snapshot are answered. First
 * checks the files and their headers, as the storage has them, against the manifest. The scrub
 * reads all of the snapshot later, and removes `latest` from a damaged snapshot. If `latest` cannot
 * be set, the log says so, and the next snapshot that is verified sets it. */
static void note_latest(const struct coord_snapshot *snapshot)
{
    struct looked looked = { .folder = snapshot->folder };
    cairn_status status = confine_run_in(looked.folder, look_at_files, &looked, &looked.why);
    if (status == CAIRN_OK) status = looked.status;
    if (status == CAIRN_OK)
        status = coord_snapshot_note_latest(snapshot->steps.cluster, snapshot->manifest.spec.name,
                                            snapshot->id, &looked.why);
    if (status != CAIRN_OK)
        log_warn("snapshot %s of job %s is committed, and `latest` does not name it: %s",
                 snapshot->id, snapshot->manifest.spec.name, looked.why.text);
}

/* Computes the content root from the parts, stores it in the manifest, and commits the manifest if
 * the snapshot has files. On failure, removes the folder. May run on any thread, so it uses only
 * the snapshot, which has a copy of the spec. */
static cairn_status work_on_snapshot(struct coord_steps *steps, struct sentence *why)
{
    struct coord_snapshot *snapshot = (struct coord_snapshot *)steps;
    (void)why; // snapshot->why has the first failure
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
        snapshot->status = manifest_commit_signed(
            snapshot->folder, m, coord_keys_signer(snapshot->steps.cluster), &snapshot->why);
    if (snapshot->status == CAIRN_OK && snapshot->has_files) note_latest(snapshot);
    if (snapshot->folder != NULL &&
        (snapshot->status == CAIRN_OK || remove_begun(snapshot) == CAIRN_OK))
        snapshot_begun_forget(steps->cluster->storage.path, m->spec.name, snapshot->id);
    return CAIRN_OK;
}

/* ==== snapshot ==== */

/* Snapshots on the loop: a snapshot is begun, the core pins it, and its parts are gathered from the
 * shards. See snapshot.h. */

static bool prepare_snapshot(struct coord_snapshot *snapshot);
static const struct coord_operation_plan snapshot_plan;

/* ---- parts ---- */

static cairn_status take_files(struct coord_snapshot *snapshot, const Cairn__SnapshotPart *part,
                               struct sentence *why)
{
    for (size_t i = 0; i < part->n_files; i++) {
        const Cairn__SnapshotFile *f = part->files[i];
        if (!snapshot->has_files || f->sums.len % CAIRN_SNAPSHOT_SUM_BYTES != 0)
            return fail_with(why, CAIRN_ERR_PROTOCOL, "a file that was not asked for");
        const cairn_status status = manifest_add_blocks(&snapshot->manifest, f->path, f->bytes,
                                                        f->first_block, f->sums.data,
                                                        f->sums.len / CAIRN_SNAPSHOT_SUM_BYTES);
        if (status != CAIRN_OK)
            return fail_with(why, status,
                             "file %s has a foreign name, or its blocks are out of order", f->path);
        if (f->first_block == 0) snapshot->bytes += f->bytes;
    }
    return CAIRN_OK;
}

/* Takes the payload of the last decision. All shards keep the same decision, so their payloads must have
 * the same bytes. */
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
        (part->payload.len == 0 || memcmp(part->payload.data, m->payload, m->payload_bytes) == 0))
        return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_PROTOCOL, "its last decision differs from the other shards'");
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
    if (part->generation != snapshot->version.generation || part->step != snapshot->version.step)
        return fail_with(why, CAIRN_ERR_PROTOCOL,
                         "its part is of step %" PRIu64 " (generation %" PRIu64
                         "), not of step %" PRIu64 " (%" PRIu64 ")",
                         part->step, part->generation, snapshot->version.step,
                         snapshot->version.generation);
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
    if (snapshot == NULL || snapshot->number != part->snapshot) return;
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
    if (status != CAIRN_OK) fail_snapshot(snapshot, status, entry->name, why.text);
    coord_steps_advance(&snapshot->steps);
}

/* ---- the beginning ---- */

/* True for a digest whose requesters have left before anything was pinned. The next request takes
 * such a digest over. */
static bool is_abandoned(const struct coord_snapshot *snapshot)
{
    return !snapshot->is_pinned && !snapshot->has_files && !has_waiters(&snapshot->now);
}

static cairn_status refuse_second(const struct coord_job *job, struct sentence *why)
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
    coord_steps_start(&snapshot->steps, &snapshot_plan, job->cluster, job);
    snapshot->parts = calloc(job->shard_room, 1);
    snapshot->progress = calloc(job->shard_room, sizeof *snapshot->progress);
    if (snapshot->parts != NULL && snapshot->progress != NULL) return snapshot;
    free_snapshot(snapshot);
    return NULL;
}

/* Judges the storage before the snapshot begins. Without this, the snapshot might fail only at its
 * end, after all shards have written. */
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

/* Judges whether a snapshot may begin. Does not judge whether another one is running. */
static cairn_status judge_snapshot(const struct coord_job *job, bool has_files,
                                   struct sentence *why)
{
    if (job->state == CAIRN_CLUSTER_JOB_LOST)
        return fail_with(why, CAIRN_ERR_JOB_LOST, "job %s is %s", job->spec.name,
                         job->loss.why.text);
    if (job->state != CAIRN_CLUSTER_JOB_RUNNING)
        return fail_with(why, CAIRN_ERR_NOT_READY, "job %s is %s: there is nothing to save yet",
                         job->spec.name, coord_job_state_name(job));
    CAIRN_TRY(coord_operation_judge(job, CAIRN_OPERATION_SNAPSHOT, why));
    return has_files ? judge_storage(job, why) : CAIRN_OK;
}

/* The shards have allocated memory, or the snapshot does not wait for this any longer. */
static void note_prepared(struct coord_snapshot *snapshot)
{
    if (coord_steps_at(&snapshot->steps) == CAIRN_SNAPSHOT_PREPARES)
        coord_steps_go(&snapshot->steps, CAIRN_SNAPSHOT_READY, false);
}

static void start_snapshot(struct coord_job *job, struct coord_snapshot *snapshot, bool has_files)
{
    const bool inherits = job->snapshots.running == snapshot;
    snapshot->has_files = has_files;
    snapshot->begun_ms = uv_now(job->cluster->loop);
    snapshot->stuck_ms = 0;
    if (inherits) return; // the core already knows of the snapshot
    job->snapshots.running = snapshot;
    if (!prepare_snapshot(snapshot)) note_prepared(snapshot);
    coord_snapshot_resume(job, false);
}

void coord_snapshot_resume(struct coord_job *job, bool awaits_step)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (awaits_step || snapshot == NULL ||
        coord_steps_at(&snapshot->steps) != CAIRN_SNAPSHOT_READY ||
        !coord_operation_may_begin(job, CAIRN_OPERATION_SNAPSHOT))
        return;
    coord_steps_go(&snapshot->steps, CAIRN_SNAPSHOT_PINS, false);
    const struct round_event pin = { .kind = CAIRN_ROUND_PIN, .snapshot = snapshot->number };
    coord_job_event(job, &pin);
}

/* If a snapshot is running, ends its wait for memory, because something waits for the end of the
 * snapshot. */
static void hurry_snapshot(struct coord_job *job)
{
    if (job->snapshots.running != NULL) note_prepared(job->snapshots.running);
    coord_snapshot_resume(job, false);
}

cairn_status coord_snapshot_begin(struct coord_job *job, bool has_files,
                                  struct coord_session *session, uint32_t request, bool wait,
                                  struct sentence *why)
{
    const bool inherits = job->snapshots.running != NULL && is_abandoned(job->snapshots.running);
    const bool follows = job->snapshots.running != NULL &&
                         snapshot_cause_is_periodic(job->snapshots.running->cause);
    CAIRN_TRY(judge_snapshot(job, has_files, why));
    if (!inherits && !follows && job->snapshots.running != NULL) return refuse_second(job, why);
    struct coord_snapshot *snapshot = inherits || follows ? job->snapshots.running
                                                          : new_snapshot(job);
    if (snapshot == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    struct coord_snapshot_waiters *waiters = follows ? &snapshot->next[has_files] : &snapshot->now;
    const cairn_status status = coord_waiters_add(wait ? &waiters->at_end : &waiters->at_begin,
                                                  session, request, why);
    if (status != CAIRN_OK) {
        if (snapshot != job->snapshots.running) free_snapshot(snapshot);
        return status;
    }
    if (!wait) coord_waiters_note_end(&waiters->at_end, session, request);
    if (!follows) start_snapshot(job, snapshot, has_files);
    return CAIRN_OK;
}

cairn_status coord_snapshot_begin_unasked(struct coord_job *job, enum snapshot_cause cause,
                                          struct sentence *why)
{
    CAIRN_TRY(judge_snapshot(job, true, why));
    if (job->snapshots.running != NULL) return refuse_second(job, why);
    struct coord_snapshot *snapshot = new_snapshot(job);
    if (snapshot == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    snapshot->cause = cause;
    start_snapshot(job, snapshot, true);
    return CAIRN_OK;
}

/* Called when a snapshot has ended. Begins the digest that `waiters` wait for, or else the snapshot; with
 * a digest, whoever waits for the snapshot waits on. */
static void follow_snapshot(struct coord_job *job, struct coord_snapshot_waiters waiters[2])
{
    struct sentence why;
    for (int has_files = 0; has_files < 2; has_files++) {
        struct coord_snapshot_waiters *of = &waiters[has_files];
        if (!has_waiters(of)) continue;
        cairn_status status = judge_snapshot(job, has_files, &why);
        struct coord_snapshot *snapshot = status == CAIRN_OK ? new_snapshot(job) : NULL;
        if (snapshot != NULL) {
            move_waiters(of, &snapshot->now);
            if (!has_files) move_waiters(&waiters[true], &snapshot->next[true]);
            start_snapshot(job, snapshot, has_files);
            return;
        }
        if (status == CAIRN_OK) status = fail_with(&why, CAIRN_ERR_NO_MEMORY, "out of memory");
        fail_waiters(of, status, why.text);
    }
}

static void answer_begun(struct coord_snapshot *snapshot)
{
    struct snapshot_view view;
    coord_snapshot_to_view(snapshot, "writing", &view);
    coord_waiters_answer(&snapshot->now.at_begin, CAIRN_MSG_SNAPSHOT_STATUS, &view.status.base);
}

/* Copies the groups of the round that made the present version. CAIRN_ERR_NO_MEMORY. */
static cairn_status record_groups(const struct coord_job *job, struct rank_groups *out)
{
    const struct coord_groups *groups = job->groups;
    if (groups == NULL) return CAIRN_OK;
    return rank_groups_copy(groups->made_step ? &groups->now : &groups->before, out);
}

static cairn_status fill_manifest(struct coord_snapshot *snapshot)
{
    const struct coord_job *job = snapshot->job;
    struct manifest *m = &snapshot->manifest;
    m->cluster = strdup(job->cluster->options->name);
    m->owner = strdup(job->tenant.owner);
    m->generation = snapshot->version.generation;
    m->step = snapshot->version.step;
    m->epoch = round_epoch_of(job->core);
    m->origin = line_as_one(&job->origin, &job->turns);
    m->created_unix_s = wall_unix_s();
    m->periodic = snapshot_cause_is_periodic(snapshot->cause) ? job->id : 0;
    m->shard_count = job->entry_count;
    m->nonfinite = coord_halts_damage(job);
    if (snapshot_cause_is_periodic(snapshot->cause) &&
        m->nonfinite.nonfinite > 0) // the results were finite when the snapshot began
        return fail_with(&snapshot->why, CAIRN_ERR_NONFINITE, "the job is damaged");
    // The manifest gets the spec of the pinned step, because the job may be amended while the
    // shards write.
    cairn_status status = spec_copy(&job->spec, &m->spec);
    if (status == CAIRN_OK) status = record_groups(job, &m->reduce_groups);
    if (m->cluster != NULL && m->owner != NULL && status == CAIRN_OK) return CAIRN_OK;
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
            fail_snapshot(snapshot, CAIRN_ERR_CLOSED, s->entry->name, "it is away");
            continue;
        }
        snapshot->parts[i] = CAIRN_PART_AWAITED;
        coord_session_send(s->entry->session, CAIRN_MSG_PIN, 0, &pin.base);
    }
    // no folder is made for it, so those that were told to pin are told that there is none
    if (snapshot->status != CAIRN_OK) tell_folder(snapshot, "");
}

/* The folder cannot be made before the version is pinned, because its name contains the step. The
 * shards copy meanwhile. */
static bool needs_folder(const struct coord_steps *steps)
{
    const struct coord_snapshot *snapshot = (const struct coord_snapshot *)steps;
    return snapshot->has_files && snapshot->status == CAIRN_OK;
}

static cairn_status begin_files(struct coord_steps *steps, cairn_status status,
                                struct sentence *why)
{
    struct coord_snapshot *snapshot = (struct coord_snapshot *)steps;
    if (status == CAIRN_OK) {
        coord_storage_used(steps->cluster);
    } else {
        fail_snapshot(snapshot, status, "", why->text);
        storage_watch_doubt(&steps->cluster->storage.watch);
    }
    tell_folder(snapshot, snapshot->status == CAIRN_OK ? snapshot->folder : "");
    if (snapshot->status == CAIRN_OK) {
        log_info("snapshot %s of job %s begins", snapshot->id, snapshot->job->spec.name);
        answer_begun(snapshot);
    }
    return CAIRN_OK;
}

void coord_snapshot_on_pin(struct coord_job *job, uint64_t number, struct cairn_version version)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL || snapshot->number != number || snapshot->is_pinned) return;
    snapshot->version = version;
    snapshot->status = fill_manifest(snapshot);
    // the shards may have prepared memory
    if (snapshot->status != CAIRN_OK) tell_folder(snapshot, "");
    snapshot->is_pinned = true;
    coord_steps_go(&snapshot->steps, CAIRN_SNAPSHOT_MAKES_FOLDER, false);
    if (snapshot->status == CAIRN_OK) {
        send_pins(snapshot);
        if (!snapshot->has_files) answer_begun(snapshot);
    }
    coord_steps_advance(&snapshot->steps);
}

/* ==== prepare ==== */

/* Before a version is pinned, shards allocate memory for the data that updates overwrite, so that updates
 * need not allocate any. If a snapshot is due at a step, the shards prepare this memory some steps ahead.
 * The next snapshot of any kind uses the memory. */

/* Called when all shards have answered. A shard that could not allocate memory takes the snapshot
 * without prepared memory. */
static void on_prepared(struct coord_job *job, const void *about, cairn_status status,
                        const char *why)
{
    uint64_t number;
    memcpy(&number, about, sizeof number);
    if (status != CAIRN_OK) log_debug("job %s: a snapshot: %s", job->spec.name, why);
    if (status != CAIRN_OK && job->snapshots.ahead == number) coord_snapshot_unprepare(job);
    if (job->snapshots.running == NULL || job->snapshots.running->number != number) return;
    note_prepared(job->snapshots.running);
    coord_snapshot_resume(job, coord_pace_nears_step(job));
}

/* Asks all shards to prepare memory. Returns false if there is no memory for the question. */
static bool ask_all(struct coord_job *job, uint64_t number)
{
    struct coord_gather *gather = coord_gather_open_job(job, on_prepared, &number, sizeof number);
    if (gather == NULL) return false;
    Cairn__PinPrepare message = CAIRN__PIN_PREPARE__INIT;
    message.job = job->id;
    message.snapshot = number;
    CAIRN_EACH_SHARD (job, i)
        (void)coord_gather_send(gather, job->shards[i].entry, CAIRN_MSG_PIN_PREPARE, &message.base);
    coord_gather_start(gather);
    return true;
}

/* Gives the snapshot its number. This is the number under which memory was prepared ahead, if there
 * is any. Otherwise it is a new number, and the shards are asked to prepare memory. Returns true if
 * the snapshot waits for the memory. No memory is prepared for a periodic snapshot that is due by
 * steps, or for the last snapshot before a parting, because they save the present version. No
 * memory is prepared either if nobody trains. */
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

/* True if memory that is prepared ahead is likely to be used: the job trains, takes snapshots by
 * steps, and a snapshot could begin now. */
static bool is_of_use(const struct coord_job *job)
{
    const struct policy *policy = &job->spec.policy;
    struct sentence unsaid;
    return policy->snapshot_every > 0 && policy->snapshot_every_s == 0 &&
           coord_halts_damage(job).nonfinite == 0 &&
           coord_operation_may_begin(job, CAIRN_OPERATION_SNAPSHOT) && !coord_pace_rests(job) &&
           judge_snapshot(job, true, &unsaid) == CAIRN_OK;
}

/* True if the snapshot is due with the next step, or within half of the longest time that preparing may
 * take. */
static bool is_soon(const struct coord_job *job, uint64_t steps)
{
    const uint64_t within_us = 500000 * (uint64_t)policy_prepare_within_s(&job->spec.policy);
    const uint64_t median_us = coord_pace_median(&job->rounds.pace); // 0: not known
    return steps == 1 || (median_us > 0 && steps * median_us <= within_us);
}

/* A snapshot is due in `steps` steps: if this is soon, has the shards prepare the snapshot. */
static void prepare_ahead(struct coord_job *job, uint64_t steps)
{
    if (job->snapshots.ahead != 0 || job->snapshots.running != NULL || !is_soon(job, steps) ||
        !is_of_use(job))
        return;
    const uint64_t number = coord_snapshot_number();
    if (ask_all(job, number)) job->snapshots.ahead = number;
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

/* ==== parting ==== */

bool coord_parting_advance(struct coord_job *job)
{
    struct coord_parting *p = &job->snapshots.parting;
    struct sentence why;
    if (p->state != CAIRN_PARTING_WANTED) return p->state != CAIRN_PARTING_TAKEN;
    p->state = CAIRN_PARTING_TAKEN;
    coord_parting_unsaved(job, "its snapshot was not done in time");
    const cairn_status status = coord_snapshot_begin_unasked(job, CAIRN_SNAPSHOT_PARTING, &why);
    if (status == CAIRN_OK) return p->state == CAIRN_PARTING_ENDED;
    // our snapshot begins when the running one has ended
    if (status == CAIRN_ERR_BUSY) hurry_snapshot(job);
    p->state = status == CAIRN_ERR_BUSY ? CAIRN_PARTING_WANTED : CAIRN_PARTING_ENDED;
    coord_parting_unsaved(job, why.text);
    return p->state == CAIRN_PARTING_ENDED;
}

/* ==== periodic ==== */

/* True if the policy wants a snapshot of this step. With snapshot_every_s, a snapshot is due when
 * this time has passed since the last one was due, or, after a start, since the first step that
 * this process has seen. Otherwise a snapshot is due after every snapshot_every steps. */
static bool is_due(struct coord_job *job, uint64_t step)
{
    const struct policy *policy = &job->spec.policy;
    const uint64_t now_ms = coord_now_ms(job->cluster) + 1; // never 0
    const uint64_t since_ms = job->snapshots.due_ms;
    if (policy->snapshot_every_s == 0) {
        job->snapshots.due_ms = 0;
        return policy->snapshot_every > 0 && step % policy->snapshot_every == 0;
    }
    const bool due = since_ms != 0 &&
                     now_ms - since_ms >= 1000 * (uint64_t)policy->snapshot_every_s;
    if (since_ms == 0 || due) job->snapshots.due_ms = now_ms;
    return due;
}

/* True if `now` is a version that must be saved. Usually this is the version that a due step makes.
 * In a job with buffers_every, it is the version that the write after the due step makes, or, if no
 * write follows, the version that the next step makes. */
static bool is_to_be_saved(struct coord_job *job, struct cairn_version was,
                           struct cairn_version now)
{
    const bool was_due = job->snapshots.awaits_write;
    const bool is_written = now.generation == was.generation + 1 && now.step == was.step;
    const bool is_stepped = now.generation == was.generation && now.step > was.step;
    if (!is_stepped && !is_written) return false;
    job->snapshots.awaits_write = false;
    if (is_written) return was_due;
    const uint64_t every = job->spec.policy.snapshot_every;
    const bool due = is_due(job, now.step);
    if (!due && !was_due && every > 0) prepare_ahead(job, every - now.step % every);
    if (due && !was_due && job->spec.buffers_every > 0) job->snapshots.awaits_write = true;
    return was_due || (due && job->spec.buffers_every == 0);
}

/* Begins a periodic snapshot if one is due. Only a step that is applied while this process runs can
 * make a snapshot due. The step at which the job was restored or loaded cannot do so. */
static void periodic_advance(struct coord_job *job)
{
    const struct cairn_version was = job->snapshots.stepped, now = coord_job_version(job);
    struct sentence why;
    if (!job->rounds.heard || job->version_unknown) return;
    if (version_compare(now, was) == 0) return;
    job->snapshots.stepped = now;
    const bool is_damaged = coord_halts_damage(job).nonfinite > 0;
    if (!is_damaged) coord_periodic_undamaged(job);
    if (!is_to_be_saved(job, was, now)) return;
    if (is_damaged)
        coord_periodic_damaged(job);
    else if (!coord_logs_give_way(job) &&
             coord_snapshot_begin_unasked(job, CAIRN_SNAPSHOT_PERIODIC, &why) != CAIRN_OK)
        coord_periodic_failed(job, now.step, why.text);
}

/* ==== end ==== */

/* How snapshots end: a snapshot is answered, fails, or is given up by the coordinator or by an operator.
 * See snapshot.h.
 *
 * A snapshot that fails is given up on every shard, and ends when all shards have confirmed this.
 * The wait is limited, because a snapshot that cannot end holds up restores and amendments. If a
 * shard is away before anything is pinned, it has one lease to come back. If the snapshot has
 * failed, a shard has one lease to confirm this; it may be unable to, because its disk hangs. */

/* ---- the end ---- */

static void answer_snapshot(struct coord_snapshot *snapshot)
{
    struct manifest *m = &snapshot->manifest;
    if (!snapshot->has_files) {
        Cairn__JobDigest digest = CAIRN__JOB_DIGEST__INIT;
        digest.generation = snapshot->version.generation;
        digest.step = snapshot->version.step;
        digest.root.data = m->content_root;
        digest.root.len = sizeof m->content_root;
        coord_waiters_answer(&snapshot->now.at_end, CAIRN_MSG_JOB_DIGEST, &digest.base);
        return;
    }
    struct snapshot_view view;
    const Cairn__SnapshotStatus *status = &view.status;
    coord_manifest_to_view(m, snapshot->id, snapshot->folder, &view);
    snapshot->job->snapshots.passed_over.text[0] = '\0';
    log_info("snapshot %s of job %s committed: %" PRIu32 " files, %" PRIu64 " bytes, %" PRIu64
             " ms",
             snapshot->id, snapshot->job->spec.name, status->files, status->bytes,
             uv_now(snapshot->steps.cluster->loop) - snapshot->begun_ms);
    coord_scrub_want(snapshot->steps.cluster, snapshot->job->spec.name, snapshot->id);
    coord_event_note(snapshot->steps.cluster, CAIRN_EVENT_SNAPSHOT, snapshot->job->spec.name, NULL,
                     "%s of step %" PRIu64, snapshot->id, snapshot->version.step);
    coord_waiters_answer(&snapshot->now.at_end, CAIRN_MSG_SNAPSHOT_STATUS, &status->base);
}

static void answer_failed(struct coord_snapshot *snapshot)
{
    Cairn__SnapshotCanceled canceled = CAIRN__SNAPSHOT_CANCELED__INIT;
    log_warn("%s of job %s failed: %s", snapshot->has_files ? "snapshot" : "digest",
             snapshot->job->spec.name, snapshot->why.text);
    if (snapshot->has_files)
        coord_event_note(snapshot->steps.cluster, CAIRN_EVENT_SNAPSHOT_FAILED,
                         snapshot->job->spec.name, NULL, "%s", snapshot->why.text);
    fail_waiters(&snapshot->now, snapshot->status, snapshot->why.text);
    canceled.job = snapshot->job->spec.name;
    canceled.id = snapshot->id;
    canceled.digest = !snapshot->has_files;
    coord_waiters_answer(&snapshot->at_cancel, CAIRN_MSG_SNAPSHOT_CANCELED, &canceled.base);
}

static void finish_snapshot(struct coord_snapshot *snapshot)
{
    if (snapshot->status == CAIRN_OK)
        answer_snapshot(snapshot);
    else
        answer_failed(snapshot);
    struct coord_job *job = snapshot->job;
    struct coord_snapshot_waiters next[2];
    for (int has_files = 0; has_files < 2; has_files++)
        move_waiters(&snapshot->next[has_files], &next[has_files]);
    coord_snapshot_note_end(snapshot);
    coord_logs_saved(snapshot);
    free_snapshot(snapshot);
    follow_snapshot(job, next);
}

static bool has_all_parts(const struct coord_steps *steps)
{
    const struct coord_snapshot *snapshot = (const struct coord_snapshot *)steps;
    CAIRN_EACH_SHARD (snapshot->job, i) {
        if (part_is_open(snapshot->parts[i])) return false;
    }
    return true;
}

static void done_snapshot(struct coord_steps *steps)
{
    finish_snapshot((struct coord_snapshot *)steps);
}

static void fail_commit(struct coord_steps *steps, cairn_status status, const char *why)
{
    fail_snapshot((struct coord_snapshot *)steps, status, "", why);
    finish_snapshot((struct coord_snapshot *)steps);
}

static void release_snapshot(struct coord_steps *steps)
{
    free_snapshot((struct coord_snapshot *)steps);
}

/* A snapshot that has failed gets its parts nevertheless, and its folder is removed where it would
 * be committed. */
static const struct coord_step snapshot_steps[] = {
    [CAIRN_SNAPSHOT_PREPARES] = { .kind = CAIRN_STEP_WAIT, .stage = CAIRN_STAGE_PREPARING },
    [CAIRN_SNAPSHOT_READY] = { .kind = CAIRN_STEP_WAIT, .stage = CAIRN_STAGE_READY },
    [CAIRN_SNAPSHOT_PINS] = { .kind = CAIRN_STEP_WAIT, .stage = CAIRN_STAGE_PINNED },
    [CAIRN_SNAPSHOT_MAKES_FOLDER] = { CAIRN_STEP_THREAD, CAIRN_STAGE_PINNED,
                                      .is_needed = needs_folder, .run = make_snapshot_folder,
                                      .end = begin_files },
    [CAIRN_SNAPSHOT_GETS_PARTS] = { CAIRN_STEP_WAIT, CAIRN_STAGE_PINNED,
                                    .is_ready = has_all_parts },
    [CAIRN_SNAPSHOT_COMMITS] = { CAIRN_STEP_THREAD, CAIRN_STAGE_PINNED, .run = work_on_snapshot },
    [CAIRN_SNAPSHOT_OVER] = { .kind = CAIRN_STEP_LAST },
};

static const struct coord_operation_plan snapshot_plan = { snapshot_steps, .done = done_snapshot,
                                                           .failed = fail_commit,
                                                           .release = release_snapshot };

/* ---- given up ---- */

static void lose_part(struct coord_job *job, uint32_t shard)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    coord_snapshot_unprepare(job); // the shard has lost the memory it prepared
    if (snapshot == NULL || !part_is_open(snapshot->parts[shard])) return;
    snapshot->parts[shard] = CAIRN_PART_NONE;
    fail_snapshot(snapshot, CAIRN_ERR_CLOSED, job->shards[shard].entry->name,
                  "it went away while writing");
    coord_steps_advance(&snapshot->steps);
}

/* Ends a failed snapshot now, without waiting for shards that have not answered. The files that
 * these shards may still write are in no manifest. */
static void end_now(struct coord_snapshot *snapshot)
{
    if (!snapshot->is_pinned) {
        finish_snapshot(snapshot);
        return;
    }
    memset(snapshot->parts, CAIRN_PART_NONE, snapshot->job->shard_count);
    coord_steps_advance(&snapshot->steps);
}

void coord_snapshot_abort(struct coord_job *job, const char *reason)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL) return;
    for (int has_files = 0; has_files < 2; has_files++)
        fail_waiters(&snapshot->next[has_files], CAIRN_ERR_CANCELED, reason);
    if (commits(snapshot)) return;
    fail_snapshot(snapshot, CAIRN_ERR_CANCELED, "", reason);
    end_now(snapshot);
}

/* If a thread is working on the snapshot, the snapshot is freed when the thread's work has ended. */
void coord_snapshot_orphan(struct coord_job *job, const char *reason)
{
    coord_snapshot_abort(job, reason);
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL) return;
    fail_waiters(&snapshot->now, CAIRN_ERR_CANCELED, reason);
    coord_waiters_fail(&snapshot->at_cancel, CAIRN_ERR_CANCELED, reason);
}

void coord_snapshot_part_missed(struct coord_job *job, uint32_t shard)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL || snapshot->is_pinned) return;
    fail_snapshot(snapshot, CAIRN_ERR_CLOSED, job->shards[shard].entry->name,
                  "it restarted without its part");
    end_now(snapshot);
}

/* Returns the first shard that may never do what the snapshot waits for; NULL if there is none. */
static const struct coord_shard_entry *stuck_at(const struct coord_snapshot *snapshot)
{
    CAIRN_EACH_SHARD (snapshot->job, i) {
        const struct coord_job_shard *s = &snapshot->job->shards[i];
        const bool stuck = !snapshot->is_pinned
                               ? !s->up
                               : snapshot->status != CAIRN_OK && part_is_open(snapshot->parts[i]);
        if (stuck) return s->entry;
    }
    return NULL;
}

/* True if some shard is away, or has been silent for half a lease and so may hang. */
static bool is_any_silent(const struct coord_job *job)
{
    const uint64_t now_ms = coord_now_ms(job->cluster);
    const uint64_t most_ms = (uint64_t)job->cluster->options->lease_timeout_ms / 2;
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_session *session = job->shards[i].entry->session;
        if (session == NULL || now_ms - session->last_frame_ms >= most_ms) return true;
    }
    return false;
}

/* Ends the wait for memory if it has taken too long, or if a shard is silent. The shards take a
 * while to prepare memory, because the job trains meanwhile. */
static void end_preparing(struct coord_job *job)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL) return;
    const uint64_t most_ms = 1000 * (uint64_t)policy_prepare_within_s(&job->spec.policy);
    if (is_any_silent(job) || uv_now(job->cluster->loop) - snapshot->begun_ms >= most_ms)
        note_prepared(snapshot);
}

/* Gives up a snapshot that has waited for a shard for longer than a lease. The shard is away, or
 * the snapshot has failed and the shard does not confirm this. */
static void tick_snapshot(struct coord_job *job)
{
    // Memory that was prepared ahead is released if it is no longer likely to be used.
    if (job->snapshots.ahead != 0 && !is_of_use(job)) coord_snapshot_unprepare(job);
    end_preparing(job);
    coord_snapshot_resume(job, coord_pace_nears_step(job));
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL || commits(snapshot)) return;
    const struct coord_shard_entry *entry = stuck_at(snapshot);
    const uint64_t now_ms = coord_now_ms(job->cluster);
    const uint64_t patience_ms = (uint64_t)job->cluster->options->lease_timeout_ms;
    if (entry == NULL || snapshot->stuck_ms == 0) {
        snapshot->stuck_ms = entry != NULL ? now_ms + 1 : 0; // never 0, which means not stuck
        return;
    }
    if (now_ms < snapshot->stuck_ms + patience_ms) return;
    struct sentence text;
    sentence_set(&text, "it is away for longer than lease.timeout, %" PRIu64 " ms", patience_ms);
    fail_snapshot(snapshot, CAIRN_ERR_CLOSED, entry->name, text.text);
    end_now(snapshot);
}

/* ---- by an operator's word ---- */

cairn_status coord_snapshot_cancel(struct coord_job *job, const char *id,
                                   struct coord_session *session, uint32_t request,
                                   struct sentence *why)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "no snapshot or digest of job %s is being taken",
                         job->spec.name);
    if (*id != '\0' && strcmp(coord_snapshot_id(snapshot), id) != 0)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "no snapshot %.100s of job %s is being taken",
                         id, job->spec.name);
    if (commits(snapshot))
        return fail_with(why, CAIRN_ERR_BUSY,
                         "no shard is at work any more: the snapshot waits only for the disk of "
                         "snapshots.path, then ends");
    CAIRN_TRY(coord_waiters_add(&snapshot->at_cancel, session, request, why));
    fail_snapshot(snapshot, CAIRN_ERR_CANCELED, "",
                  "an operator gave it up (`cairn snapshot cancel`)");
    if (!snapshot->is_pinned) finish_snapshot(snapshot);
    return CAIRN_OK;
}

/* ---- nobody waits any more ---- */

/* Called when the job is freed, so nobody is told. A folder that stays without a manifest is no
 * snapshot. A snapshot that is still there is freed when its thread is done. */
static void detach_snapshot(struct coord_job *job)
{
    if (job->snapshots.running != NULL) job->snapshots.running->job = NULL;
    job->snapshots.running = NULL;
    free(job->snapshots.newest_folder);
    job->snapshots.newest_folder = NULL;
}

/* ---- as an operation ---- */

static struct coord_steps *steps_of_snapshot(struct coord_job *job)
{
    return job->snapshots.running != NULL ? &job->snapshots.running->steps : NULL;
}

static void note_step(struct coord_job *job)
{
    coord_cost_note_step(job);
    coord_snapshot_resume(job, false);
}

static void lose_snapshot(struct coord_job *job)
{
    coord_snapshot_abort(job, job->loss.why.text);
}

const struct coord_operation coord_snapshotting = {
    .steps = steps_of_snapshot,
    .advance = periodic_advance,
    .tick = tick_snapshot,
    .stepped = note_step,
    .shard_down = lose_part,
    .lost = lose_snapshot,
    .release = detach_snapshot,
    .refuse = refuse_second,
    .until = "for a snapshot or digest that is being taken",
};
