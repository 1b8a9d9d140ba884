/* How cuts end: answered; failed; given up, by themselves or by an operator's word. See cut.h.
 *
 * One that fails is given up on every shard, and ends when they have said so. Nobody is waited for without
 * an end: a shard that is away before anything is pinned, or that does not answer once the cut has failed
 * (its disk hangs), has a lease to come back; for a cut that cannot end holds up restores and amendments. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cut.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/cut/digests.h"
#include "server/coordinator/round/pace.h"
#include "server/coordinator/snapshot/scrub.h"
#include "server/coordinator/store/events.h"

void cairn_cluster_cut_free(struct cairn_cluster_cut *cut)
{
    if (cut->job != NULL && cut->job->snapshots.cut == cut) cut->job->snapshots.cut = NULL;
    cairn_cluster_waiters_release(&cut->now.at_begin);
    cairn_cluster_waiters_release(&cut->now.at_end);
    cairn_cluster_waiters_release(&cut->next.at_begin);
    cairn_cluster_waiters_release(&cut->next.at_end);
    cairn_cluster_waiters_release(&cut->at_cancel);
    cairn_manifest_release(&cut->manifest);
    free(cut->folder);
    free(cut->parts);
    free(cut->progress);
    cairn_cluster_digests_release(&cut->digests);
    free(cut);
}

const char *cairn_cluster_cut_id(const struct cairn_cluster_cut *cut)
{
    return cut->making_folder ? "" : cut->id; // the other thread writes it
}

bool cairn_cluster_cut_takes(const struct cairn_cluster_job *job, const char *id)
{
    const struct cairn_cluster_cut *cut = job->snapshots.cut;
    return cut != NULL && strcmp(cairn_cluster_cut_id(cut), id) == 0;
}

void cairn_cluster_cut_tell_folder(const struct cairn_cluster_cut *cut, const char *path)
{
    Cairn__PinFolder message = CAIRN__PIN_FOLDER__INIT;
    message.job = cut->job->id;
    message.snapshot = cut->number;
    message.path = (char *)(uintptr_t)path;
    CAIRN_EACH_SHARD (cut->job, i) {
        const struct cairn_cluster_seat *seat = cut->job->shards[i].seat;
        const bool is_prepared = cut->stage == CAIRN_CUT_PINNING && seat->session != NULL;
        if (cairn_part_is_open(cut->parts[i]) || is_prepared)
            cairn_cluster_session_send(seat->session, CAIRN_MSG_PIN_FOLDER, 0, &message.base);
    }
}

void cairn_cluster_cut_fail(struct cairn_cluster_cut *cut, cairn_status status, const char *name,
                            const char *text)
{
    if (cut->status != CAIRN_OK) return;
    cut->status = status == CAIRN_OK ? CAIRN_ERR_INTERNAL : status;
    cairn_sentence_set(&cut->why, "%s%s%s", name, *name == '\0' ? "" : ": ", text);
    if (cut->stage != CAIRN_CUT_WORKING) cairn_cluster_cut_tell_folder(cut, ""); // of no use now
}

/* ---- the end ---- */

static void answer(struct cairn_cluster_cut *cut)
{
    struct cairn_manifest *m = &cut->manifest;
    if (!cut->is_snapshot) {
        Cairn__JobDigest digest = CAIRN__JOB_DIGEST__INIT;
        digest.generation = cut->version.generation;
        digest.step = cut->version.step;
        digest.root.data = m->content_root;
        digest.root.len = sizeof m->content_root;
        cairn_cluster_waiters_answer(&cut->now.at_end, CAIRN_MSG_JOB_DIGEST, &digest.base);
        return;
    }
    struct cairn_snapshot_view view;
    const Cairn__SnapshotStatus *status = &view.status;
    cairn_cluster_manifest_to_view(m, cut->id, cut->folder, &view);
    cut->job->snapshots.passed_over.text[0] = '\0';
    cairn_log_info("snapshot %s of job %s committed: %" PRIu32 " files, %" PRIu64 " bytes, %" PRIu64
                   " ms",
                   cut->id, cut->job->spec.name, status->files, status->bytes,
                   uv_now(cut->work.cluster->loop) - cut->begun_ms);
    cairn_cluster_scrub_want(cut->work.cluster, cut->job->spec.name, cut->id);
    cairn_cluster_event_note(cut->work.cluster, CAIRN_EVENT_SNAPSHOT, cut->job->spec.name, NULL,
                             "%s of step %" PRIu64, cut->id, cut->version.step);
    cairn_cluster_waiters_answer(&cut->now.at_end, CAIRN_MSG_SNAPSHOT_STATUS, &status->base);
}

static void answer_failed(struct cairn_cluster_cut *cut)
{
    Cairn__SnapshotCanceled canceled = CAIRN__SNAPSHOT_CANCELED__INIT;
    cairn_log_warn("%s of job %s failed: %s", cut->is_snapshot ? "snapshot" : "digest",
                   cut->job->spec.name, cut->why.text);
    if (cut->is_snapshot)
        cairn_cluster_event_note(cut->work.cluster, CAIRN_EVENT_SNAPSHOT_FAILED,
                                 cut->job->spec.name, NULL, "%s", cut->why.text);
    cairn_cluster_waiters_fail(&cut->now.at_begin, cut->status, cut->why.text);
    cairn_cluster_waiters_fail(&cut->now.at_end, cut->status, cut->why.text);
    canceled.job = cut->job->spec.name;
    canceled.id = cut->id;
    canceled.digest = !cut->is_snapshot;
    cairn_cluster_waiters_answer(&cut->at_cancel, CAIRN_MSG_SNAPSHOT_CANCELED, &canceled.base);
}

static void finish(struct cairn_cluster_cut *cut)
{
    if (cut->status == CAIRN_OK)
        answer(cut);
    else
        answer_failed(cut);
    struct cairn_cluster_job *job = cut->job;
    const struct cairn_cluster_cut_waiters next = cut->next;
    cut->next = (struct cairn_cluster_cut_waiters) { NULL, NULL };
    cairn_cluster_cost_ended(cut);
    if (cut->cause == CAIRN_CUT_PERIODIC) cairn_cluster_periodic_ended(cut);
    if (cut->cause == CAIRN_CUT_PARTING) cairn_cluster_parting_cut_ended(cut);
    cairn_cluster_cut_free(cut);
    cairn_cluster_cut_follow(job, next);
}

static void on_worked(struct cairn_cluster_work *work)
{
    struct cairn_cluster_cut *cut = (struct cairn_cluster_cut *)work;
    if (work->cluster->closing || cut->job == NULL)
        cairn_cluster_cut_free(cut);
    else
        finish(cut);
}

void cairn_cluster_cut_advance(struct cairn_cluster_cut *cut)
{
    if (cut->stage != CAIRN_CUT_PINNED || cut->making_folder) return;
    CAIRN_EACH_SHARD (cut->job, i) {
        if (cairn_part_is_open(cut->parts[i])) return;
    }
    cut->stage = CAIRN_CUT_WORKING;
    cut->work.run = cairn_cluster_cut_work;
    cut->work.done = on_worked;
    if (cairn_cluster_work_start(&cut->work, cut->job->cluster, NULL, 0)) return;
    cairn_cluster_cut_fail(cut, CAIRN_ERR_NO_MEMORY, "", "no thread for the snapshot");
    finish(cut);
}

/* ---- given up ---- */

void cairn_cluster_cut_shard_gone(struct cairn_cluster_job *job, uint32_t shard)
{
    struct cairn_cluster_cut *cut = job->snapshots.cut;
    cairn_cluster_cut_unprepare(job); // it has no memory any more
    if (cut == NULL || cut->stage != CAIRN_CUT_PINNED) return;
    if (!cairn_part_is_open(cut->parts[shard])) return;
    cut->parts[shard] = CAIRN_PART_NONE;
    cairn_cluster_cut_fail(cut, CAIRN_ERR_CLOSED, job->shards[shard].seat->name,
                           "it went away while writing");
    cairn_cluster_cut_advance(cut);
}

/* It has failed, and ends now, whoever has not answered: what these have written is in no manifest. */
static void end_now(struct cairn_cluster_cut *cut)
{
    if (cut->stage == CAIRN_CUT_PINNING) {
        finish(cut);
        return;
    }
    memset(cut->parts, CAIRN_PART_NONE, cut->job->shard_count);
    cairn_cluster_cut_advance(cut);
}

void cairn_cluster_cut_abort(struct cairn_cluster_job *job, const char *reason)
{
    struct cairn_cluster_cut *cut = job->snapshots.cut;
    if (cut == NULL) return;
    cairn_cluster_waiters_fail(&cut->next.at_begin, CAIRN_ERR_CANCELED, reason);
    cairn_cluster_waiters_fail(&cut->next.at_end, CAIRN_ERR_CANCELED, reason);
    if (cut->stage == CAIRN_CUT_WORKING) return;
    cairn_cluster_cut_fail(cut, CAIRN_ERR_CANCELED, "", reason);
    end_now(cut);
}

/* Its thread may be at work on it: that ends it, then, alone. */
void cairn_cluster_cut_orphan(struct cairn_cluster_job *job, const char *reason)
{
    cairn_cluster_cut_abort(job, reason);
    struct cairn_cluster_cut *cut = job->snapshots.cut;
    if (cut == NULL) return;
    struct cairn_cluster_waiter **const waiters[] = { &cut->now.at_begin, &cut->now.at_end,
                                                      &cut->at_cancel };
    for (size_t i = 0; i < sizeof waiters / sizeof *waiters; i++)
        cairn_cluster_waiters_fail(waiters[i], CAIRN_ERR_CANCELED, reason);
    cut->job = NULL;
    job->snapshots.cut = NULL;
}

void cairn_cluster_cut_part_missed(struct cairn_cluster_job *job, uint32_t shard)
{
    struct cairn_cluster_cut *cut = job->snapshots.cut;
    if (cut == NULL || cut->stage != CAIRN_CUT_PINNING) return;
    cairn_cluster_cut_fail(cut, CAIRN_ERR_CLOSED, job->shards[shard].seat->name,
                           "it restarted without its part");
    end_now(cut);
}

/* The first shard that may never do what the cut waits for; NULL: all is as it should be. */
static const struct cairn_cluster_seat *stuck_at(const struct cairn_cluster_cut *cut)
{
    CAIRN_EACH_SHARD (cut->job, i) {
        const struct cairn_cluster_job_shard *s = &cut->job->shards[i];
        const bool stuck = cut->stage == CAIRN_CUT_PINNING
                               ? !s->up
                               : cut->status != CAIRN_OK && cairn_part_is_open(cut->parts[i]);
        if (stuck) return s->seat;
    }
    return NULL;
}

/* A shard was not heard for half a lease: it is away, or hangs. */
static bool is_any_silent(const struct cairn_cluster_job *job)
{
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster);
    const uint64_t most_ms = (uint64_t)job->cluster->options->lease_timeout_ms / 2;
    CAIRN_EACH_SHARD (job, i) {
        const struct cairn_cluster_session *session = job->shards[i].seat->session;
        if (session == NULL || now_ms - session->last_frame_ms >= most_ms) return true;
    }
    return false;
}

/* Shards that make memory beside training are waited for, one that is silent is not: the others begin. */
static void end_preparing(struct cairn_cluster_job *job)
{
    struct cairn_cluster_cut *cut = job->snapshots.cut;
    if (cut == NULL || cut->is_ready) return;
    const uint64_t most_ms = 1000 * (uint64_t)cairn_policy_prepare_within_s(&job->spec.policy);
    cut->is_ready = is_any_silent(job) || uv_now(job->cluster->loop) - cut->begun_ms >= most_ms;
}

void cairn_cluster_cut_tick(struct cairn_cluster_job *job)
{
    cairn_cluster_cut_look_behind(job);
    end_preparing(job);
    cairn_cluster_cut_resume(job, cairn_cluster_pace_nears_step(job));
    struct cairn_cluster_cut *cut = job->snapshots.cut;
    if (cut == NULL || cut->stage == CAIRN_CUT_WORKING) return;
    const struct cairn_cluster_seat *seat = stuck_at(cut);
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster);
    const uint64_t patience_ms = (uint64_t)job->cluster->options->lease_timeout_ms;
    if (seat == NULL || cut->stuck_ms == 0) {
        cut->stuck_ms = seat != NULL ? now_ms + 1 : 0; // not 0
        return;
    }
    if (now_ms < cut->stuck_ms + patience_ms) return;
    struct cairn_sentence text;
    cairn_sentence_set(&text, "it is away for longer than lease.timeout, %" PRIu64 " ms",
                       patience_ms);
    cairn_cluster_cut_fail(cut, CAIRN_ERR_CLOSED, seat->name, text.text);
    end_now(cut);
}

/* ---- by an operator's word ---- */

cairn_status cairn_cluster_cut_cancel(struct cairn_cluster_job *job, const char *id,
                                      struct cairn_cluster_session *session, uint32_t request,
                                      struct cairn_sentence *why)
{
    struct cairn_cluster_cut *cut = job->snapshots.cut;
    if (cut == NULL)
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND,
                          "no snapshot or digest of job %s is being taken", job->spec.name);
    if (*id != '\0' && strcmp(cairn_cluster_cut_id(cut), id) != 0)
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "no snapshot %.100s of job %s is being taken",
                          id, job->spec.name);
    if (cut->stage == CAIRN_CUT_WORKING)
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "no shard is at work any more: it waits for the disk of snapshots.path "
                          "alone, and then ends");
    if (!cairn_cluster_waiters_add(&cut->at_cancel, session, request))
        return cairn_fail(why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
    cairn_cluster_cut_fail(cut, CAIRN_ERR_CANCELED, "",
                           "an operator gave it up (`cairn snapshot cancel`)");
    if (cut->stage == CAIRN_CUT_PINNING) finish(cut);
    return CAIRN_OK;
}

/* ---- nobody waits any more ---- */

void cairn_cluster_cut_forget(struct cairn_cluster_job *job,
                              const struct cairn_cluster_session *session)
{
    if (job->snapshots.cut == NULL) return;
    cairn_cluster_waiters_forget(&job->snapshots.cut->now.at_begin, session);
    cairn_cluster_waiters_forget(&job->snapshots.cut->now.at_end, session);
    cairn_cluster_waiters_forget(&job->snapshots.cut->next.at_begin, session);
    cairn_cluster_waiters_forget(&job->snapshots.cut->next.at_end, session);
    cairn_cluster_waiters_forget(&job->snapshots.cut->at_cancel, session);
}

/* With the cluster: nobody is told, a folder without a manifest is no snapshot. */
void cairn_cluster_cut_close(struct cairn_cluster_job *job)
{
    if (job->snapshots.cut != NULL) cairn_cluster_cut_free(job->snapshots.cut);
}
