/* A job is dropped by the operator's word: out of the store first, then off its shards. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/job/drop.h"
#include "server/coordinator/job/jobs.h"
#include "server/coordinator/store/events.h"

#define NAMED_MAX 4 /* members in a refusal */

/* A job being dropped: the answer that the asker gets when the shards have given the memory
 * back. */
struct cairn_cluster_drop {
    struct cairn_cluster *cluster;
    struct cairn_cluster_waiter *waiter;
    struct cairn_cluster_drop *next; /* of the cluster's list */
    Cairn__JobRemoved removed;
    uint64_t job; /* its id */
    /* owned */
    char *name;
    char **away; /* [removed.n_away] */
};

static void free_drop(struct cairn_cluster_drop *drop)
{
    struct cairn_cluster_drop **at = &drop->cluster->drops;
    while (*at != NULL && *at != drop) at = &(*at)->next;
    if (*at == drop) *at = drop->next;
    cairn_cluster_waiters_release(&drop->waiter);
    for (size_t i = 0; i < drop->removed.n_away; i++) free(drop->away[i]);
    free(drop->away);
    free(drop->name);
    free(drop);
}

void cairn_cluster_drops_forget(struct cairn_cluster *cluster,
                                const struct cairn_cluster_session *session)
{
    for (struct cairn_cluster_drop *d = cluster->drops; d != NULL; d = d->next)
        cairn_cluster_waiters_forget(&d->waiter, session);
}

void cairn_cluster_drops_close(struct cairn_cluster *cluster)
{
    while (cluster->drops != NULL) free_drop(cluster->drops);
}

/* The job is gone whatever the shards say: one whose connection was lost meanwhile drops its part later. */
static void on_dropped(void *context, cairn_status status, const char *text)
{
    struct cairn_cluster_drop *drop = context;
    if (!drop->cluster->closing) {
        if (status != CAIRN_OK) cairn_log_warn("job %s was dropped, but: %s", drop->name, text);
        drop->removed.note = (char *)(uintptr_t)(status == CAIRN_OK ? "" : text);
        cairn_cluster_waiters_answer(&drop->waiter, CAIRN_MSG_JOB_REMOVED, &drop->removed.base);
    }
    free_drop(drop);
}

/* ---- may it be? ---- */

static cairn_status refuse_members(const struct cairn_cluster_job *job, struct cairn_sentence *why)
{
    uint32_t named = 0;
    cairn_sentence_set(why, "job %s is in use: ", job->spec.name);
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL && named < NAMED_MAX;
         m = m->next_of_job)
        cairn_sentence_add(why, "%s%s %.60s", named++ == 0 ? "" : ", ", cairn_role_name(m->role),
                           m->session->name);
    if (job->members.count > named)
        cairn_sentence_add(why, " and %" PRIu32 " more", job->members.count - named);
    cairn_sentence_add(why, "; end them, or force it (--force, CAIRN_DROP_FORCE)");
    return CAIRN_ERR_BUSY;
}

static cairn_status judge(struct cairn_cluster_job *job, bool force, struct cairn_sentence *why)
{
    if (force && job->snapshots.cut != NULL)
        cairn_cluster_cut_abort(job, "the job is to be dropped");
    if (job->snapshots.cut != NULL) return cairn_cluster_cut_refuse(job, why);
    if (job->extension.body != NULL || job->amends.amending != NULL ||
        job->state == CAIRN_CLUSTER_JOB_CREATING)
        return cairn_fail(
            why, CAIRN_ERR_BUSY,
            "job %s is being made, amended or restored: ask again when that has ended",
            job->spec.name);
    if (job->loss.behind)
        return cairn_fail(why, CAIRN_ERR_NOT_READY, "job %s is %s", job->spec.name,
                          job->loss.why.text);
    if (job->members.list != NULL && !force) return refuse_members(job, why);
    return CAIRN_OK;
}

/* ---- it is ---- */

static struct cairn_cluster_drop *new_drop(const struct cairn_cluster_job *job)
{
    struct cairn_cluster_drop *drop = calloc(1, sizeof *drop);
    if (drop == NULL) return NULL;
    const struct cairn_version version = cairn_cluster_job_version(job);
    drop->cluster = job->cluster;
    drop->job = job->id;
    drop->next = job->cluster->drops;
    job->cluster->drops = drop;
    cairn__job_removed__init(&drop->removed);
    drop->name = strdup(job->spec.name);
    drop->away = calloc(job->seat_count + 1, sizeof *drop->away);
    if (drop->name == NULL || drop->away == NULL) {
        free_drop(drop);
        return NULL;
    }
    drop->removed.name = drop->name;
    drop->removed.away = drop->away;
    drop->removed.generation = version.generation;
    drop->removed.step = version.step;
    drop->removed.version_unknown = job->version_unknown;
    return drop;
}

static void ask_shards(struct cairn_cluster_drop *drop, const struct cairn_cluster_job *job,
                       struct cairn_cluster_gather *gather)
{
    Cairn__JobDrop message = CAIRN__JOB_DROP__INIT;
    message.job = job->id;
    CAIRN_EACH_SHARD (job, i) {
        struct cairn_cluster_seat *seat = job->shards[i].seat;
        if (!cairn_cluster_seat_obeys(seat)) {
            char *name = strdup(seat->name);
            if (name != NULL) drop->away[drop->removed.n_away++] = name;
            continue;
        }
        if (cairn_cluster_gather_send(gather, seat, CAIRN_MSG_JOB_DROP, &message.base) != 0)
            drop->removed.shards++;
    }
}

/* It is in no store any more, and leaves its shards; or the disk failed, and a coordinator that is started
 * again has it. */
static void on_saved(const struct cairn_cluster_saved *saved)
{
    struct cairn_cluster *cluster = saved->cluster;
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(cluster, saved->job);
    struct cairn_cluster_drop *drop = cluster->drops;
    while (drop != NULL && drop->job != saved->job) drop = drop->next;
    if (drop == NULL || job == NULL) return;
    struct cairn_cluster_gather *gather = NULL;
    if (saved->status == CAIRN_OK || saved->status == CAIRN_ERR_NOT_FOUND)
        gather = cairn_cluster_gather_open(cluster, on_dropped, drop);
    if (gather == NULL) {
        const char *text = saved->status == CAIRN_OK ? "no memory" : saved->why;
        job->dropping = false;
        cairn_cluster_waiters_fail(&drop->waiter, CAIRN_ERR_IO, text);
        cairn_cluster_job_lose(job, false, "dropping it failed (%s); drop it again", text);
        free_drop(drop);
        return;
    }
    cairn_cluster_dropped_add(cluster, job->id);
    cairn_log_info("job %s is dropped at step %" PRIu64, drop->name, drop->removed.step);
    cairn_cluster_event_note(cluster, CAIRN_EVENT_DROPPED, drop->name, NULL, "at step %" PRIu64,
                             drop->removed.step);
    ask_shards(drop, job, gather);
    cairn_cluster_job_unlink(job);
    cairn_cluster_job_free(job);
    cairn_cluster_gather_start(gather);
    cairn_cluster_openings_advance(cluster);
}

/* Nobody has it open, and nobody comes. */
static void stop(struct cairn_cluster_job *job)
{
    struct cairn_sentence text, why = { "" };
    cairn_sentence_set(&text, "job %s was dropped by an operator", job->spec.name);
    while (job->members.list != NULL)
        cairn_cluster_member_expel(job->members.list, CAIRN_ERR_CANCELED, text.text);
    cairn_cluster_job_openers_fail(job->cluster, job->spec.name, CAIRN_ERR_CANCELED, text.text);
    job->state = CAIRN_CLUSTER_JOB_CREATING;
    job->dropping = true;
    cairn_cluster_reshard_end(job, CAIRN_RESHARD_FAILED, "the job is dropped");
    cairn_cluster_job_core_close(job);
    cairn_cluster_reshard_close(job);
    struct cairn_cluster_saved saved = { .cluster = job->cluster, .job = job->id };
    if (job->stored)
        saved.status = cairn_cluster_save_job(job, CAIRN_STORE_JOB_DROP, NULL, 0, on_saved, &why);
    saved.why = why.text;
    if (!job->stored || saved.status != CAIRN_OK) on_saved(&saved);
}

void cairn_cluster_job_remove(struct cairn_cluster_session *session, uint32_t request,
                              const Cairn__JobRemove *message)
{
    struct cairn_sentence why;
    struct cairn_cluster_job *job = cairn_cluster_job_find(session->cluster, message->name);
    struct cairn_cluster_drop *drop = NULL;
    cairn_status status = job == NULL ? cairn_fail(&why, CAIRN_ERR_NOT_FOUND,
                                                   "there is no job %.128s; `cairn job list`",
                                                   message->name)
                                      : judge(job, message->force, &why);
    if (status == CAIRN_OK && (drop = new_drop(job)) == NULL)
        status = cairn_fail(&why, CAIRN_ERR_NO_MEMORY, "no memory");
    if (status == CAIRN_OK && !cairn_cluster_waiters_add(&drop->waiter, session, request))
        status = cairn_fail(&why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
    if (status == CAIRN_OK) {
        stop(job);
        return;
    }
    if (drop != NULL) free_drop(drop);
    cairn_cluster_session_error(session, request, status, why.text);
}
