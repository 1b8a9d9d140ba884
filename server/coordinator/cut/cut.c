/* Cuts on the loop: begun, pinned by the core, gathered from the shards. See cut.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/base/log.h"
#include "server/base/wall.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cut.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/cut/digests.h"
#include "server/coordinator/round/groups.h"
#include "server/coordinator/round/pace.h"

/* ---- parts ---- */

static cairn_status take_files(struct cairn_cluster_cut *cut, const Cairn__SnapshotPart *part,
                               struct cairn_sentence *why)
{
    for (size_t i = 0; i < part->n_files; i++) {
        const Cairn__SnapshotFile *f = part->files[i];
        if (!cut->is_snapshot || f->sums.len % CAIRN_SNAPSHOT_SUM_BYTES != 0) {
            return cairn_fail(why, CAIRN_ERR_PROTOCOL, "a file that was not asked for");
        }
        const cairn_status status = cairn_manifest_add_blocks(
            &cut->manifest, f->path, f->bytes, f->first_block, f->sums.data,
            f->sums.len / CAIRN_SNAPSHOT_SUM_BYTES);
        if (status != CAIRN_OK)
            return cairn_fail(why, status,
                              "file %s: not a name of ours, or not its blocks in order", f->path);
        if (f->first_block == 0) cut->bytes += f->bytes;
    }
    return CAIRN_OK;
}

/* Shards keep the same last decision, so their payloads are the same bytes. */
static cairn_status take_payload(struct cairn_cluster_cut *cut, const Cairn__SnapshotPart *part,
                                 struct cairn_sentence *why)
{
    struct cairn_manifest *m = &cut->manifest;
    if (!cut->has_payload) {
        cut->has_payload = true;
        const cairn_status status = cairn_manifest_set_payload(m, part->payload.data,
                                                               part->payload.len);
        return status == CAIRN_OK ? status : cairn_fail(why, status, "the payload is too long");
    }
    if (part->payload.len == m->payload_bytes &&
        (part->payload.len == 0 || memcmp(part->payload.data, m->payload, m->payload_bytes) == 0)) {
        return CAIRN_OK;
    }
    return cairn_fail(why, CAIRN_ERR_PROTOCOL, "its last decision is another one than the others'");
}

cairn_status cairn_cluster_part_failed(const Cairn__SnapshotPart *part, struct cairn_sentence *why)
{
    if (part->status == CAIRN_OK) return CAIRN_OK;
    const bool known = cairn_status_known(part->status);
    return cairn_fail(why, known ? (cairn_status)part->status : CAIRN_ERR_INTERNAL, "%s",
                      part->text);
}

static cairn_status take_part(struct cairn_cluster_cut *cut, const Cairn__SnapshotPart *part,
                              bool is_first, struct cairn_sentence *why)
{
    cairn_status status = cairn_cluster_part_failed(part, why);
    if (status != CAIRN_OK) return status;
    if (part->generation != cut->version.generation || part->step != cut->version.step) {
        return cairn_fail(why, CAIRN_ERR_PROTOCOL,
                          "it is of step %" PRIu64 " (generation %" PRIu64
                          "), the set of step %" PRIu64 " (%" PRIu64 ")",
                          part->step, part->generation, cut->version.step, cut->version.generation);
    }
    if (is_first) status = take_payload(cut, part, why);
    if (status == CAIRN_OK) status = take_files(cut, part, why);
    if (status == CAIRN_OK)
        status = cairn_cluster_digests_take(&cut->digests, cut->manifest.spec.tensor_count, part,
                                            why);
    return status;
}

void cairn_cluster_part_next(const struct cairn_cluster_seat *seat, const Cairn__SnapshotPart *part)
{
    Cairn__SnapshotPartNext next = CAIRN__SNAPSHOT_PART_NEXT__INIT;
    next.job = part->job;
    next.snapshot = part->snapshot;
    cairn_cluster_session_send(seat->session, CAIRN_MSG_SNAPSHOT_PART_NEXT, 0, &next.base);
}

void cairn_cluster_cut_on_part(struct cairn_cluster_job *job, uint32_t shard,
                               const Cairn__SnapshotPart *part)
{
    struct cairn_cluster_cut *cut = job->snapshots.cut;
    struct cairn_sentence why;
    if (cut == NULL || cut->number != part->snapshot || cut->stage != CAIRN_CUT_PINNED) return;
    if (!cairn_part_is_open(cut->parts[shard])) return;
    const struct cairn_cluster_seat *seat = job->shards[shard].seat;
    const cairn_status status = take_part(cut, part, cut->parts[shard] == CAIRN_PART_AWAITED, &why);
    if (status == CAIRN_OK && part->more && cut->status == CAIRN_OK) {
        cut->parts[shard] = CAIRN_PART_BEGUN;
        cairn_cluster_part_next(seat, part);
        return;
    }
    cut->parts[shard] = status == CAIRN_OK ? CAIRN_PART_IN : CAIRN_PART_NONE;
    if (status != CAIRN_OK) cairn_cluster_cut_fail(cut, status, seat->name, why.text);
    cairn_cluster_cut_advance(cut);
}

/* ---- the beginning ---- */

/* A digest whose asker is gone before anything was pinned: whoever comes next has its place. */
static bool is_abandoned(const struct cairn_cluster_cut *cut)
{
    return cut->stage == CAIRN_CUT_PINNING && !cut->is_snapshot && cut->now.at_begin == NULL &&
           cut->now.at_end == NULL;
}

bool cairn_cluster_cut_waiting(const struct cairn_cluster_job *job, struct cairn_sentence *out)
{
    const struct cairn_cluster_cut *cut = job->snapshots.cut;
    bool is_away = false;
    out->text[0] = '\0';
    if (cut == NULL || cut->stage == CAIRN_CUT_PINNING) cairn_cluster_job_waiting(job, out);
    if (cut != NULL && cut->making_folder) cairn_sentence_set(out, "the disk of snapshots.path");
    CAIRN_EACH_SHARD (job, i) {
        is_away |= job->shards[i].seat->session == NULL;
        if (cut == NULL || !cairn_part_is_open(cut->parts[i])) continue;
        cairn_sentence_add(out, "%sshard %s", out->text[0] != '\0' ? ", " : "",
                           job->shards[i].seat->name);
    }
    return is_away && out->text[0] != '\0';
}

void cairn_cluster_cut_show(const struct cairn_cluster_job *job, struct cairn_sentence *out)
{
    const struct cairn_cluster_cut *cut = job->snapshots.cut;
    struct cairn_sentence awaited;
    out->text[0] = '\0';
    if (cut == NULL) return;
    const char *id = cairn_cluster_cut_id(cut);
    cairn_cluster_cut_waiting(job, &awaited);
    cairn_sentence_set(out, "a %s%s%s, for %" PRIu64 " s", cut->is_snapshot ? "snapshot" : "digest",
                       id[0] != '\0' ? " " : "", id,
                       (uv_now(job->cluster->loop) - cut->begun_ms) / 1000);
    cairn_cluster_cut_add_progress(job, out);
    if (awaited.text[0] != '\0') cairn_sentence_add(out, "; it waits for %s", awaited.text);
}

cairn_status cairn_cluster_cut_refuse(const struct cairn_cluster_job *job,
                                      struct cairn_sentence *why)
{
    struct cairn_sentence awaited;
    cairn_cluster_cut_waiting(job, &awaited);
    return cairn_fail(why, CAIRN_ERR_BUSY,
                      "a snapshot or digest of job %s is being taken%s%.300s; try again when it is "
                      "done, or give it up: `cairn snapshot cancel %s`",
                      job->spec.name, awaited.text[0] != '\0' ? " and waits for " : "",
                      awaited.text, job->spec.name);
}

static struct cairn_cluster_cut *new_cut(struct cairn_cluster_job *job)
{
    struct cairn_cluster_cut *cut = calloc(1, sizeof *cut);
    if (cut == NULL) return NULL;
    cairn_manifest_init(&cut->manifest);
    cut->job = job;
    cut->job_id = job->id;
    cut->work.cluster = job->cluster;
    cut->parts = calloc(job->shard_room, 1);
    cut->progress = calloc(job->shard_room, sizeof *cut->progress);
    if (cut->parts != NULL && cut->progress != NULL) return cut;
    cairn_cluster_cut_free(cut);
    return NULL;
}

/* Not at the end, when all others have written. */
static cairn_status judge_storage(const struct cairn_cluster_job *job, struct cairn_sentence *why)
{
    const char *said = job->cluster->storage.watch.said.text;
    if (said[0] != '\0') return cairn_fail(why, CAIRN_ERR_IO, "%s", said);
    CAIRN_EACH_SHARD (job, i) {
        const struct cairn_cluster_seat *seat = job->shards[i].seat;
        if (seat->storage.text[0] != '\0')
            return cairn_fail(why, CAIRN_ERR_IO, "shard %s cannot save: %s", seat->name,
                              seat->storage.text);
    }
    return CAIRN_OK;
}

cairn_status cairn_cluster_cut_judge(const struct cairn_cluster_job *job, bool is_snapshot,
                                     struct cairn_sentence *why)
{
    if (job->state == CAIRN_CLUSTER_JOB_LOST)
        return cairn_fail(why, CAIRN_ERR_JOB_LOST, "job %s is %s", job->spec.name,
                          job->loss.why.text);
    if (job->state != CAIRN_CLUSTER_JOB_RUNNING) {
        return cairn_fail(why, CAIRN_ERR_NOT_READY, "job %s is %s: there is nothing to save yet",
                          job->spec.name, cairn_cluster_job_state_name(job));
    }
    if (job->extension.body != NULL)
        return cairn_fail(why, CAIRN_ERR_BUSY, "job %s is being amended; ask again",
                          job->spec.name);
    if (job->park.shut && !(job->park.settled && job->park.wanted))
        return cairn_fail(why, CAIRN_ERR_BUSY, "job %s is being parked, or taken back; ask again",
                          job->spec.name);
    return is_snapshot ? judge_storage(job, why) : CAIRN_OK;
}

static void start(struct cairn_cluster_job *job, struct cairn_cluster_cut *cut, bool is_snapshot)
{
    const bool inherits = job->snapshots.cut == cut;
    cut->is_snapshot = is_snapshot;
    cut->begun_ms = uv_now(job->cluster->loop);
    cut->stuck_ms = 0;
    if (inherits) return; // the core knows of it
    job->snapshots.cut = cut;
    if (!cairn_cluster_cut_prepare(cut)) cut->is_ready = true;
    cairn_cluster_cut_resume(job, false);
}

void cairn_cluster_cut_resume(struct cairn_cluster_job *job, bool awaits_step)
{
    struct cairn_cluster_cut *cut = job->snapshots.cut;
    if (awaits_step || cut == NULL || !cut->is_ready || cut->is_asked || job->core == NULL ||
        cairn_cluster_job_moves(job))
        return;
    cut->is_asked = true;
    const struct cairn_round_event pin = { .kind = CAIRN_ROUND_PIN, .snapshot = cut->number };
    cairn_cluster_job_event(job, &pin);
}

void cairn_cluster_cut_hurry(struct cairn_cluster_job *job)
{
    if (job->snapshots.cut != NULL) job->snapshots.cut->is_ready = true;
    cairn_cluster_cut_resume(job, false);
}

bool cairn_cluster_cut_holds_layout(const struct cairn_cluster_job *job)
{
    return job->snapshots.cut != NULL && job->snapshots.cut->is_asked;
}

cairn_status cairn_cluster_cut_begin(struct cairn_cluster_job *job, bool is_snapshot,
                                     struct cairn_cluster_session *session, uint32_t request,
                                     bool wait, struct cairn_sentence *why)
{
    const bool inherits = job->snapshots.cut != NULL && is_abandoned(job->snapshots.cut);
    const bool follows = job->snapshots.cut != NULL &&
                         job->snapshots.cut->cause == CAIRN_CUT_PERIODIC && is_snapshot;
    const cairn_status status = cairn_cluster_cut_judge(job, is_snapshot, why);
    if (status != CAIRN_OK) return status;
    if (!inherits && !follows && job->snapshots.cut != NULL)
        return cairn_cluster_cut_refuse(job, why);
    struct cairn_cluster_cut *cut = inherits || follows ? job->snapshots.cut : new_cut(job);
    if (cut == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    struct cairn_cluster_cut_waiters *waiters = follows ? &cut->next : &cut->now;
    if (!cairn_cluster_waiters_add(wait ? &waiters->at_end : &waiters->at_begin, session,
                                   request)) {
        if (cut != job->snapshots.cut) cairn_cluster_cut_free(cut);
        return cairn_fail(why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
    }
    if (!follows) start(job, cut, is_snapshot);
    return CAIRN_OK;
}

cairn_status cairn_cluster_cut_begin_unasked(struct cairn_cluster_job *job,
                                             enum cairn_cut_cause cause, struct cairn_sentence *why)
{
    const cairn_status status = cairn_cluster_cut_judge(job, true, why);
    if (status != CAIRN_OK) return status;
    if (job->snapshots.cut != NULL) return cairn_cluster_cut_refuse(job, why);
    struct cairn_cluster_cut *cut = new_cut(job);
    if (cut == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    cut->cause = cause;
    start(job, cut, true);
    return CAIRN_OK;
}

void cairn_cluster_cut_follow(struct cairn_cluster_job *job,
                              struct cairn_cluster_cut_waiters waiters)
{
    struct cairn_sentence why;
    if (waiters.at_begin == NULL && waiters.at_end == NULL) return;
    cairn_status status = cairn_cluster_cut_judge(job, true, &why);
    struct cairn_cluster_cut *cut = status == CAIRN_OK ? new_cut(job) : NULL;
    if (cut != NULL) {
        cut->now = waiters;
        start(job, cut, true);
        return;
    }
    if (status == CAIRN_OK) status = cairn_fail(&why, CAIRN_ERR_NO_MEMORY, "no memory");
    cairn_cluster_waiters_fail(&waiters.at_begin, status, why.text);
    cairn_cluster_waiters_fail(&waiters.at_end, status, why.text);
}

static void answer_begun(struct cairn_cluster_cut *cut)
{
    struct cairn_snapshot_view view;
    cairn_cluster_cut_to_view(cut, "writing", &view);
    cairn_cluster_waiters_answer(&cut->now.at_begin, CAIRN_MSG_SNAPSHOT_STATUS, &view.status.base);
}

static cairn_status fill_manifest(struct cairn_cluster_cut *cut)
{
    const struct cairn_cluster_job *job = cut->job;
    struct cairn_manifest *m = &cut->manifest;
    m->cluster = strdup(job->cluster->options->name);
    m->generation = cut->version.generation;
    m->step = cut->version.step;
    m->epoch = cairn_round_epoch(job->core);
    m->origin = job->origin;
    m->created_unix_s = cairn_wall_unix_s();
    m->periodic = cut->cause == CAIRN_CUT_PERIODIC ? job->id : 0;
    m->shard_count = job->seat_count;
    m->nonfinite = cairn_cluster_halts_damage(job);
    if (cut->cause == CAIRN_CUT_PERIODIC &&
        m->nonfinite.nonfinite > 0) // it was not when the cut began
        return cairn_fail(&cut->why, CAIRN_ERR_NONFINITE, "the job is damaged");
    // As it is at the pinned step: an amendment may come while the shards write.
    cairn_status status = cairn_spec_copy(&job->spec, &m->spec);
    if (status == CAIRN_OK) status = cairn_cluster_groups_record(job, &m->reduce_groups);
    if (m->cluster != NULL && status == CAIRN_OK) return CAIRN_OK;
    return cairn_fail(&cut->why, CAIRN_ERR_NO_MEMORY, "no memory for the manifest");
}

static void send_pins(struct cairn_cluster_cut *cut)
{
    Cairn__Pin pin = CAIRN__PIN__INIT;
    pin.job = cut->job->id;
    pin.snapshot = cut->number;
    pin.files = cut->is_snapshot;
    CAIRN_EACH_SHARD (cut->job, i) {
        const struct cairn_cluster_job_shard *s = &cut->job->shards[i];
        if (!s->up) {
            cairn_cluster_cut_fail(cut, CAIRN_ERR_CLOSED, s->seat->name, "it is away");
            continue;
        }
        cut->parts[i] = CAIRN_PART_AWAITED;
        cairn_cluster_session_send(s->seat->session, CAIRN_MSG_PIN, 0, &pin.base);
    }
}

static void on_folder(struct cairn_cluster_work *work)
{
    struct cairn_cluster_cut *cut = (struct cairn_cluster_cut *)work;
    if (work->cluster->closing || cut->job == NULL) { // a folder without a manifest is no snapshot
        cairn_cluster_cut_free(cut);
        return;
    }
    cut->making_folder = false;
    if (cut->folder_status == CAIRN_OK) {
        cairn_cluster_storage_used(work->cluster);
    } else {
        cairn_cluster_cut_fail(cut, cut->folder_status, "", cut->folder_why.text);
        cairn_storage_watch_doubt(&work->cluster->storage.watch);
    }
    cairn_cluster_cut_tell_folder(cut, cut->status == CAIRN_OK ? cut->folder : "");
    if (cut->status == CAIRN_OK) {
        cairn_log_info("snapshot %s of job %s begins", cut->id, cut->job->spec.name);
        answer_begun(cut);
    }
    cairn_cluster_cut_advance(cut);
}

/* The folder's name has the step, and the shards need the folder: it is made while they copy. */
static void begin_folder(struct cairn_cluster_cut *cut)
{
    cut->work.run = cairn_cluster_cut_make_folder;
    cut->work.done = on_folder;
    cut->making_folder = cairn_cluster_work_start(&cut->work, cut->job->cluster, NULL, 0);
    if (cut->making_folder) return;
    cairn_cluster_cut_fail(cut, CAIRN_ERR_NO_MEMORY, "", "no thread for the snapshot");
}

void cairn_cluster_cut_on_pin(struct cairn_cluster_job *job, uint64_t number,
                              struct cairn_version version)
{
    struct cairn_cluster_cut *cut = job->snapshots.cut;
    if (cut == NULL || cut->number != number || cut->stage != CAIRN_CUT_PINNING) return;
    cut->version = version;
    cut->status = fill_manifest(cut);
    if (cut->status != CAIRN_OK) cairn_cluster_cut_tell_folder(cut, ""); // who has prepared it
    cut->stage = CAIRN_CUT_PINNED;
    if (cut->status == CAIRN_OK) {
        send_pins(cut);
        if (cut->is_snapshot)
            begin_folder(cut);
        else
            answer_begun(cut);
    }
    cairn_cluster_cut_advance(cut);
}
