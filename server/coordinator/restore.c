/* A snapshot becomes a job: checked on another thread, then made on the shards in a new generation.
 *
 *   check    manifest, files, cover, checksums; where a job would be given up for it, the content root of
 *            the files, too; nothing is touched, a failure changes nothing
 *   reserve  a generation that the job has not used becomes durable, while the job goes on
 *   replace  the job's members are expelled, its body is planned anew over the shards there are, and
 *            JobCreate names the folder; from here on a failure leaves the job lost, and says so
 *   prove    the shards have told the digests of what they loaded, and these come to the manifest's root
 *   store    the new job becomes durable
 *   done     the core READY at the snapshot's version with the payload of its last decision */
#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/snapshot_io.h"
#include "server/base/log.h"
#include "server/coordinator/cuts.h"
#include "server/coordinator/groups.h"
#include "server/coordinator/recovery.h"
#include "server/coordinator/requests.h"
#include "server/coordinator/restore.h"
#include "server/coordinator/saves.h"
#include "server/coordinator/snapshot_find.h"
#include "server/coordinator/standing.h"

static void tell_ended(struct cairn_cluster_restore *restore, cairn_status status, const char *text)
{
    const cairn_cluster_restored_fn ended = restore->ended;
    restore->ended = NULL;
    if (ended != NULL && !restore->cluster->closing) ended(restore, status, text);
}

static void free_restore(struct cairn_cluster_restore *restore)
{
    tell_ended(restore, CAIRN_ERR_NOT_READY, "its restore was given up");
    struct cairn_cluster_restore **at = &restore->cluster->restores;
    while (*at != NULL && *at != restore) at = &(*at)->next;
    if (*at == restore) *at = restore->next;
    cairn_cluster_waiters_release(&restore->waiter);
    cairn_manifest_release(&restore->manifest);
    cairn_cluster_digests_release(&restore->digests);
    free(restore->parts);
    free(restore->folder);
    free(restore->asked);
    free(restore->job_name);
    free(restore);
}

static void end_restore(struct cairn_cluster_restore *restore, cairn_status status,
                        const char *text)
{
    if (status != CAIRN_OK) {
        if (!restore->none_found) // who began it says so
            cairn_log_warn("restore of %s failed: %s",
                           restore->folder != NULL ? restore->folder : "the newest snapshot", text);
        cairn_cluster_waiters_fail(&restore->waiter, status, text);
    } else {
        cairn_log_info("job %s restored from %s at step %" PRIu64 " as generation %" PRIu64,
                       restore->manifest.spec.name, restore->folder, restore->manifest.step,
                       restore->generation);
        cairn_cluster_restore_answer(restore);
    }
    tell_ended(restore, status, text);
    struct cairn_cluster *cluster = restore->cluster;
    free_restore(restore);
    cairn_cluster_openings_advance(cluster);
}

/* ---- check, on another thread ---- */

static struct cairn_found_snapshot *choose(const struct cairn_cluster_restore *restore,
                                           const struct cairn_cluster_found *found)
{
    const struct cairn_version *newest = &restore->newest;
    size_t skip = restore->skip;
    for (size_t i = 0; i < found->count; i++) {
        const struct cairn_manifest *m = &found->list[i].manifest;
        if (m->generation <= newest->generation && m->step <= newest->step && skip-- == 0)
            return &found->list[i];
    }
    return NULL;
}

static void find_newest(struct cairn_cluster_restore *restore)
{
    struct cairn_cluster_found found;
    const char *job = restore->job_name;
    restore->status = cairn_cluster_find_snapshots(restore->cluster->snapshots_path, job, NULL,
                                                   &found, &restore->why);
    struct cairn_found_snapshot *chosen = choose(restore, &found);
    if (restore->status == CAIRN_OK && chosen == NULL) {
        restore->none_found = true;
        restore->status = cairn_fail(&restore->why, CAIRN_ERR_NOT_FOUND,
                                     "there is no whole snapshot of job %s (%zu damaged)", job,
                                     restore->skip);
    } else if (restore->status == CAIRN_OK) {
        restore->folder = chosen->folder; // moves
        chosen->folder = NULL;
    }
    cairn_cluster_found_release(&found);
}

static void check(struct cairn_cluster_work *work)
{
    struct cairn_cluster_restore *restore = (struct cairn_cluster_restore *)work;
    struct cairn_snapshot snapshot;
    if (restore->folder == NULL) find_newest(restore);
    if (restore->status != CAIRN_OK) return;
    char *folder = realpath(restore->folder, NULL);
    if (folder == NULL) {
        restore->status = cairn_fail(&restore->why, CAIRN_ERR_NOT_FOUND, "there is no snapshot %s",
                                     restore->folder);
        return;
    }
    free(restore->folder);
    restore->folder = folder;
    restore->status = cairn_snapshot_open(restore->folder, &snapshot, &restore->why);
    if (restore->status != CAIRN_OK) return;
    if (!restore->plan) restore->status = cairn_snapshot_verify(&snapshot, &restore->why);
    if (restore->status == CAIRN_OK) {
        restore->manifest = snapshot.manifest; // moves
        cairn_manifest_init(&snapshot.manifest);
    }
    cairn_snapshot_close(&snapshot);
}

/* ---- replace, on the loop ---- */

static void end_load(struct cairn_cluster_restore *restore, struct cairn_cluster_job *job,
                     cairn_status status, const char *text)
{
    job->restoring = false;
    if (status != CAIRN_OK && job->generation_reserved != 0) {
        cairn_cluster_job_lose(job, false, "restoring %s failed (%s)", restore->folder, text);
    } else if (status != CAIRN_OK) { // there was none before
        cairn_cluster_job_drop(job);
    }
    end_restore(restore, status, text);
}

/* Durable: it is the job, if its shards are still the same. */
static void on_stored(const struct cairn_cluster_saved *saved)
{
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(saved->cluster, saved->job);
    struct cairn_cluster_restore *restore = saved->cluster->restores;
    struct cairn_sentence why;
    while (restore != NULL && restore->job_id != saved->job) restore = restore->next;
    if (restore == NULL) return;
    if (job == NULL || !job->restoring) {
        free_restore(restore);
        return;
    }
    cairn_status status = saved->status;
    cairn_sentence_set(&why, "%s", saved->why);
    if (status == CAIRN_OK) status = cairn_cluster_job_judge_shards(job, &why);
    if (status == CAIRN_OK) {
        job->state = CAIRN_CLUSTER_JOB_RUNNING;
        status = cairn_cluster_job_core_open(job, &why);
    }
    if (status == CAIRN_OK) cairn_cluster_terms_tell_all(job);
    end_load(restore, job, status, why.text);
}

/* All shards have made their part, and it was proven; or not. */
static void on_loaded(struct cairn_cluster_restore *restore, cairn_status status, const char *text)
{
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(restore->cluster, restore->job_id);
    struct cairn_sentence why;
    if (restore->cluster->closing || job == NULL) {
        free_restore(restore);
        return;
    }
    cairn_sentence_set(&why, "%s", text);
    if (status == CAIRN_OK) status = cairn_cluster_job_judge_shards(job, &why);
    if (status == CAIRN_OK) {
        job->initialized = true;
        status = cairn_cluster_save_job(job, job->spec_packed, 0, on_stored, &why);
    }
    if (status != CAIRN_OK) end_load(restore, job, status, why.text);
}

static void on_proven(struct cairn_cluster_work *work)
{
    struct cairn_cluster_restore *restore = (struct cairn_cluster_restore *)work;
    const struct cairn_sentence why = restore->why;
    on_loaded(restore, restore->status, why.text);
}

void cairn_cluster_restore_advance(struct cairn_cluster_restore *restore)
{
    const struct cairn_cluster_job *job = cairn_cluster_job_by_id(restore->cluster,
                                                                  restore->job_id);
    if (!restore->made || job == NULL) return;
    for (uint32_t i = 0; i < job->layout->shard_count; i++) {
        if (cairn_part_is_open(restore->parts[i])) return;
    }
    restore->made = false; // once
    restore->work.run = cairn_cluster_restore_prove_loaded;
    restore->work.done = on_proven;
    // A failure, too, ends on the loop later: the job may go then, and here somebody has it in hand.
    const bool started = cairn_cluster_work_start(&restore->work, restore->cluster, NULL, 0);
    assert(started); // of no session
    (void)started;
}

static void on_made(void *context, cairn_status status, const char *text)
{
    struct cairn_cluster_restore *restore = context;
    if (status != CAIRN_OK || restore->cluster->closing) {
        on_loaded(restore, status, text);
        return;
    }
    restore->made = true;
    cairn_cluster_restore_advance(restore);
}

/* Above all that the job has used, or may use by what is durable of it. */
static uint64_t next_generation(const struct cairn_cluster_job *old, const struct cairn_manifest *m)
{
    uint64_t newest = m->generation;
    if (old == NULL) return newest + 1;
    const uint64_t now = cairn_cluster_job_version(old).generation;
    if (now > newest) newest = now;
    if (old->generation_reserved > newest) newest = old->generation_reserved;
    return newest + 1;
}

/* What stays of the job that was: its number, its epochs and rounds, and no generation twice. */
static void inherit(struct cairn_cluster_job *body, const struct cairn_cluster_job *old,
                    const struct cairn_cluster_restore *restore)
{
    body->generation = restore->generation;
    body->base_step = restore->manifest.step;
    body->restoring = true;
    if (old == NULL) return;
    body->id = old->id;
    body->epoch = old->epoch;
    body->round_reserved = old->round_reserved;
    body->generation_reserved = body->generation;
    body->stored = old->stored;
    body->pause_ends_ms = old->pause_ends_ms;
    memcpy(body->pause, old->pause, sizeof body->pause);
    if (restore->of_job == 0) return;
    body->recovery = old->recovery;
    body->recovery.waited = true;
}

static bool in_layout(const struct cairn_cluster_job *job, const struct cairn_cluster_seat *seat)
{
    for (uint32_t i = 0; i < job->layout->shard_count; i++) {
        if (job->shards[i].seat == seat) return true;
    }
    return false;
}

static void remove_old(struct cairn_cluster_job *old, const struct cairn_cluster_job *body,
                       const char *folder)
{
    struct cairn_sentence text;
    cairn_sentence_set(
        &text, "job %s was restored from %s, of step %" PRIu64 ": close it and open it again",
        old->spec.name, folder, body->base_step);
    while (old->members != NULL)
        cairn_cluster_member_expel(old->members, CAIRN_ERR_ROLLED_BACK, text.text);
    for (uint32_t i = 0; i < old->layout->shard_count; i++) {
        struct cairn_cluster_seat *seat = old->shards[i].seat;
        if (!in_layout(body, seat)) cairn_cluster_job_send_drop(old->cluster, seat, old->id);
    }
    cairn_cluster_job_unlink(old);
    cairn_cluster_job_free(old);
}

static cairn_status judge_replace(const struct cairn_cluster_restore *restore,
                                  const struct cairn_cluster_job *old, struct cairn_sentence *why)
{
    const struct cairn_manifest *m = &restore->manifest;
    if (restore->of_job != 0 &&
        (old == NULL || old->id != restore->of_job || old->state != CAIRN_CLUSTER_JOB_LOST))
        return cairn_fail(why, CAIRN_ERR_CANCELED,
                          "job %s was lost, and is not any more: it needs no restore",
                          m->spec.name);
    if (restore->ended != NULL && restore->of_job == 0 && old != NULL &&
        old->state != CAIRN_CLUSTER_JOB_LOST)
        return cairn_fail(why, CAIRN_ERR_EXISTS, "job %s is there again", old->spec.name);
    if (old != NULL && old->cut != NULL) return cairn_cluster_cut_refuse(old, why);
    if (old != NULL && (old->extension != NULL || old->amending != NULL ||
                        old->state == CAIRN_CLUSTER_JOB_CREATING)) {
        return cairn_fail(why, CAIRN_ERR_BUSY, "job %s is being made, amended or restored",
                          m->spec.name);
    }
    if (old != NULL && old->behind)
        return cairn_fail(why, CAIRN_ERR_NOT_READY, "job %s is %s", old->spec.name, old->lost.text);
    if (cairn_cluster_job_is_strange(restore->cluster, m->spec.name, why))
        return CAIRN_ERR_NOT_READY;
    if (cairn_cluster_snapshot_removing(restore->cluster, restore->folder))
        return cairn_fail(why, CAIRN_ERR_BUSY, "%s is being removed", restore->folder);
    return cairn_cluster_judge_workers(restore->cluster, &m->spec, why);
}

/* Every shard will tell of what it has loaded. */
static cairn_status await_parts(struct cairn_cluster_restore *restore,
                                const struct cairn_cluster_job *body, struct cairn_sentence *why)
{
    restore->parts = malloc(body->layout->shard_count);
    if (restore->parts == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    memset(restore->parts, CAIRN_PART_AWAITED, body->layout->shard_count);
    randombytes_buf(&restore->number, sizeof restore->number);
    restore->number |= 1; // never 0
    return CAIRN_OK;
}

static cairn_status replace(struct cairn_cluster_restore *restore, struct cairn_cluster_job *old,
                            struct cairn_sentence *why)
{
    struct cairn_manifest *m = &restore->manifest;
    struct cairn_cluster_job *body = cairn_cluster_job_plan(restore->cluster, &m->spec, why);
    if (body == NULL) return CAIRN_ERR_NOT_READY;
    if (old != NULL) cairn_cluster_job_keep_pauses(old);
    inherit(body, old, restore);
    cairn_status status = cairn_cluster_groups_restored(body, &m->reduce_groups);
    if (status == CAIRN_OK) status = await_parts(restore, body, why);
    if (status != CAIRN_OK) {
        cairn_cluster_job_free(body);
        return status;
    }
    const struct cairn_decision last = { .kind = CAIRN_DECISION_NONE,
                                         .version_after = { body->generation, m->step },
                                         .payload = m->payload,
                                         .payload_bytes = m->payload_bytes };
    const struct cairn_cluster_job_load load = { .snapshot_path = restore->folder,
                                                 .digest = restore->number,
                                                 .version = { body->generation, m->step },
                                                 .last = &last };
    if (old != NULL) {
        cairn_cluster_restore_replaces(restore, old);
        remove_old(old, body, restore->folder);
    }
    cairn_cluster_job_link(body);
    restore->job_id = body->id;
    struct cairn_cluster_gather *gather = cairn_cluster_job_send_create(body, &load, on_made,
                                                                        restore);
    if (gather == NULL) {
        cairn_cluster_job_lose(body, false, "no memory to restore it");
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    }
    cairn_cluster_gather_start(gather);
    return CAIRN_OK;
}

static void on_reserved(const struct cairn_cluster_saved *saved);

/* Reserves a generation of the job that is there, and replaces it when that is durable. The job goes on
 * meanwhile: if it has come to that generation by itself, a newer one is reserved. */
static void advance(struct cairn_cluster_restore *restore)
{
    struct cairn_manifest *m = &restore->manifest;
    struct cairn_cluster_job *old = cairn_cluster_job_find(restore->cluster, m->spec.name);
    struct cairn_sentence why;
    cairn_status status = judge_replace(restore, old, &why);
    if (status == CAIRN_OK && restore->ended != NULL && old != NULL)
        status = cairn_cluster_recovery_keep(&m->spec, &old->spec);
    const uint64_t next = next_generation(old, m), id = old != NULL ? old->id : 0;
    if (status == CAIRN_OK && (restore->generation < next || restore->old_id != id)) {
        restore->generation = next;
        restore->old_id = id;
        restore->reserving = old != NULL && old->stored;
        if (restore->reserving)
            status = cairn_cluster_save_generation(old, next, on_reserved, &why);
        if (restore->reserving && status == CAIRN_OK) return;
    }
    if (status == CAIRN_OK) status = replace(restore, old, &why);
    if (status != CAIRN_OK) end_restore(restore, status, why.text);
}

static void on_reserved(const struct cairn_cluster_saved *saved)
{
    struct cairn_cluster_restore *restore = saved->cluster->restores;
    while (restore != NULL && (!restore->reserving || restore->old_id != saved->job ||
                               restore->generation != saved->number))
        restore = restore->next;
    if (restore == NULL) return;
    restore->reserving = false;
    if (saved->status == CAIRN_OK ||
        saved->status == CAIRN_ERR_NOT_FOUND) // dropped, or never stored
        advance(restore);
    else
        end_restore(restore, saved->status, saved->why);
}

static void begin_load(struct cairn_cluster_work *work)
{
    struct cairn_cluster_restore *restore = (struct cairn_cluster_restore *)work;
    if (work->cluster->closing) {
        free_restore(restore);
        return;
    }
    cairn_status status = restore->status;
    if (status == CAIRN_OK && restore->job_name != NULL)
        status = cairn_spec_set_name(&restore->manifest.spec, restore->job_name);
    if (status == CAIRN_OK)
        advance(restore);
    else
        end_restore(restore, status, restore->status != CAIRN_OK ? restore->why.text : "no memory");
}

static const struct cairn_cluster_job *job_there(const struct cairn_cluster_restore *restore)
{
    return cairn_cluster_job_find(restore->cluster, cairn_cluster_restore_job_name(restore));
}

/* There is a job of its name that is not lost, and would be if it came to a failure later. */
static bool is_risky(const struct cairn_cluster_restore *restore)
{
    const struct cairn_cluster_job *old = job_there(restore);
    return old != NULL && old->state != CAIRN_CLUSTER_JOB_LOST;
}

static void end_plan(struct cairn_cluster_restore *restore)
{
    const struct cairn_cluster_job *old = job_there(restore);
    if (old != NULL) cairn_cluster_restore_replaces(restore, old);
    cairn_cluster_restore_answer(restore);
    free_restore(restore);
}

static void on_checked(struct cairn_cluster_work *work)
{
    struct cairn_cluster_restore *restore = (struct cairn_cluster_restore *)work;
    restore->checked = true;
    if (restore->plan && restore->status == CAIRN_OK && !work->cluster->closing) {
        end_plan(restore);
        return;
    }
    if (restore->status == CAIRN_OK && restore->manifest.unsealed)
        cairn_log_warn("the manifest of %s is of a former version, without a hash over itself: "
                       "whether it was changed cannot be told but by its content root",
                       restore->folder);
    if (restore->status == CAIRN_OK && !work->cluster->closing && is_risky(restore)) {
        work->run = cairn_cluster_restore_prove_files;
        work->done = begin_load;
        if (cairn_cluster_work_start(work, work->cluster, NULL, 0)) return;
        restore->status = cairn_fail(&restore->why, CAIRN_ERR_NO_MEMORY, "no thread for it");
    }
    begin_load(work);
}

/* ---- the request ---- */

static cairn_status judge(struct cairn_cluster_restore *restore,
                          const Cairn__SnapshotRestore *message, struct cairn_sentence *why)
{
    uint64_t generation, step;
    char resolved[PATH_MAX];
    const bool by_id = message->id[0] != '\0';
    if (by_id == (message->path[0] != '\0')) {
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "give a snapshot's id or its folder, one of them");
    }
    if (message->job[0] != '\0' && !cairn_job_name_ok(message->job)) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "\"%s\" is not a name of a job", message->job);
    }
    if (by_id &&
        (message->job[0] == '\0' || !cairn_snapshot_id_parse(message->id, &generation, &step))) {
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "a snapshot's id goes with its job's name and looks like "
                          "step-000000012000-g1, not \"%s\"",
                          message->id);
    }
    const int n = by_id ? snprintf(resolved, sizeof resolved, "%s/%s/%s",
                                   restore->cluster->snapshots_path, message->job, message->id)
                        : snprintf(resolved, sizeof resolved, "%s", message->path);
    if (n < 0 || (size_t)n >= sizeof resolved) {
        return cairn_fail(why, CAIRN_ERR_INVALID, "the path is too long");
    }
    const bool renamed = message->job[0] != '\0';
    restore->folder = strdup(resolved);
    restore->asked = strdup(resolved);
    if (renamed) restore->job_name = strdup(message->job);
    return restore->folder != NULL && restore->asked != NULL &&
                   (!renamed || restore->job_name != NULL)
               ? CAIRN_OK
               : cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
}

/* In the cluster's list. */
static struct cairn_cluster_restore *new_restore(struct cairn_cluster *cluster)
{
    struct cairn_cluster_restore *restore = calloc(1, sizeof *restore);
    if (restore == NULL) return NULL;
    restore->cluster = cluster;
    cairn_manifest_init(&restore->manifest);
    restore->work.run = check;
    restore->work.done = on_checked;
    restore->next = cluster->restores;
    cluster->restores = restore;
    return restore;
}

void cairn_cluster_restore_begin(struct cairn_cluster_session *session, uint32_t request,
                                 const Cairn__SnapshotRestore *message)
{
    struct cairn_sentence why;
    struct cairn_cluster_restore *restore = new_restore(session->cluster);
    if (restore == NULL) {
        cairn_cluster_session_error(session, request, CAIRN_ERR_NO_MEMORY, "no memory");
        return;
    }
    restore->plan = message->plan;
    cairn_status status = judge(restore, message, &why);
    if (status == CAIRN_OK &&
        (!cairn_cluster_waiters_add(&restore->waiter, session, request) ||
         !cairn_cluster_work_start(&restore->work, session->cluster, NULL, 0))) {
        status = cairn_fail(&why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
    }
    if (status == CAIRN_OK) return;
    cairn_cluster_session_error(session, request, status, why.text);
    free_restore(restore);
}

bool cairn_cluster_restore_latest(struct cairn_cluster *cluster, const char *job, uint64_t of_job,
                                  size_t skip, cairn_cluster_restored_fn ended)
{
    struct cairn_cluster_restore *restore = new_restore(cluster);
    if (restore == NULL) return false;
    const struct cairn_cluster_job *lost = cairn_cluster_job_by_id(cluster, of_job);
    const bool known = lost != NULL && !lost->version_unknown;
    restore->of_job = of_job;
    restore->newest = known ? cairn_cluster_job_version(lost)
                            : (struct cairn_version) { UINT64_MAX, UINT64_MAX };
    restore->skip = skip;
    restore->asked = strdup("");
    restore->job_name = strdup(job);
    if (restore->asked != NULL && restore->job_name != NULL &&
        cairn_cluster_work_start(&restore->work, cluster, NULL, 0)) {
        restore->ended = ended;
        return true;
    }
    free_restore(restore);
    return false;
}

bool cairn_cluster_restore_is_damage(cairn_status status)
{
    return status == CAIRN_ERR_CHECKSUM || status == CAIRN_ERR_CORRUPT ||
           status == CAIRN_ERR_MALFORMED || status == CAIRN_ERR_VERSION ||
           status == CAIRN_ERR_NOT_FOUND;
}

void cairn_cluster_restores_forget(struct cairn_cluster *cluster,
                                   const struct cairn_cluster_session *session)
{
    for (struct cairn_cluster_restore *r = cluster->restores; r != NULL; r = r->next) {
        cairn_cluster_waiters_forget(&r->waiter, session);
    }
}

void cairn_cluster_restores_close(struct cairn_cluster *cluster)
{
    while (cluster->restores != NULL) free_restore(cluster->restores);
}
