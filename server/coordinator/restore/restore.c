/* A snapshot becomes a job: checked on another thread, then made on the shards in a new generation.
 *
 *   check    manifest, files, cover; where a job would be given up for it, checksums and the content root of
 *            the files, too; nothing is touched, a failure changes nothing
 *   reserve  a generation that the job has not used becomes durable, while the job goes on
 *   replace  the job's members are expelled, its body is planned anew over the shards there are, and
 *            JobCreate names the folder; from here on a failure leaves the job lost, and says so
 *   prove    the shards have told the digests of what they loaded, and these come to the manifest's root
 *   store    the new job becomes durable
 *   done     the core READY at the snapshot's version with the payload of its last decision */
#include <assert.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/base/log.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/job/jobs.h"
#include "server/coordinator/restore/recovery.h"
#include "server/coordinator/restore/restore.h"
#include "server/coordinator/round/groups.h"
#include "server/coordinator/snapshot/cut.h"
#include "server/coordinator/snapshot/cuts.h"
#include "server/coordinator/snapshot/digests.h"
#include "server/coordinator/snapshot/find.h"
#include "server/coordinator/store/events.h"
#include "server/coordinator/trust/keys.h"

static void tell_ended(struct cairn_cluster_restore *restore, cairn_status status, const char *text)
{
    const cairn_cluster_restored_fn ended = restore->latest.ended;
    restore->latest.ended = NULL;
    if (ended != NULL && !restore->cluster->closing) ended(restore, status, text);
}

void cairn_cluster_restore_free(struct cairn_cluster_restore *restore)
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
        if (!restore->latest.none_found) // who began it says so
            cairn_log_warn("restore of %s failed: %s",
                           restore->folder != NULL ? restore->folder : "the newest snapshot", text);
        struct cairn_sentence said;
        const bool may_fall_back = restore->is_stored && !restore->fallback &&
                                   restore->latest.passed.text[0] == '\0' && // else it was said
                                   restore->checked && cairn_cluster_restore_is_damage(status);
        cairn_sentence_set(&said, "%s%s", text,
                           may_fall_back ? "; --fallback takes the newest good one that is older"
                                         : "");
        cairn_cluster_waiters_fail(&restore->waiter, status, said.text);
    } else {
        cairn_log_info("job %s restored from %s at step %" PRIu64 " as generation %" PRIu64,
                       restore->manifest.spec.name, restore->folder, restore->manifest.step,
                       restore->generation);
        const char *passed = restore->latest.passed.text;
        cairn_cluster_event_note(restore->cluster, CAIRN_EVENT_RESTORED,
                                 restore->manifest.spec.name, NULL,
                                 "from %s at step %" PRIu64 " as generation %" PRIu64 "%s%.600s",
                                 restore->folder, restore->manifest.step, restore->generation,
                                 passed[0] != '\0' ? "; passed over: " : "", passed);
        if (restore->is_stored) cairn_cluster_restore_passed_over(restore, &restore->latest.passed);
        cairn_cluster_restore_answer(restore);
    }
    tell_ended(restore, status, text);
    struct cairn_cluster *cluster = restore->cluster;
    cairn_cluster_restore_free(restore);
    cairn_cluster_openings_advance(cluster);
}

/* ---- check, on another thread ---- */

/* What is loaded is hashed by who loads it, the shards, and where a job is given up for it by the proof of
 * the files before: the content root tells of every bit of it. Checksums are asked then, for whose fault it
 * is. But of a file with one checksum over all of it, somebody has to read all; and of one that may give way
 * to another, before it is loaded. */
static bool has_whole_sums(const struct cairn_manifest *m)
{
    for (size_t i = 0; i < m->file_count; i++)
        if (m->files[i].is_whole) return true;
    return false;
}

cairn_status cairn_cluster_restore_judge_signature(const struct cairn_cluster_restore *restore,
                                                   const struct cairn_manifest *manifest,
                                                   const char *folder, struct cairn_sentence *why)
{
    struct cairn_sentence said = { "" };
    const cairn_status status = cairn_manifest_accept(manifest, &restore->ring, restore->waiver,
                                                      &said);
    return status == CAIRN_OK ? CAIRN_OK : cairn_fail(why, status, "%s: %s", folder, said.text);
}

/* One that is taken without the word of a trusted key is told of. */
static void warn_of_trust(const struct cairn_cluster_restore *restore)
{
    struct cairn_sentence what;
    if (cairn_manifest_trust(&restore->manifest, &restore->ring, &what) != CAIRN_TRUST_SIGNED)
        cairn_log_warn("%s is restored, and is %s", restore->folder, what.text);
}

/* Of restore->folder; which is then without links. */
static void check_folder(struct cairn_cluster_restore *restore)
{
    struct cairn_snapshot snapshot;
    char *folder;
    restore->status =
        cairn_storage_of(restore->folder)->resolve(restore->folder, &folder, &restore->why);
    if (restore->status != CAIRN_OK) return;
    free(restore->folder);
    restore->folder = folder;
    restore->status = cairn_snapshot_open(restore->folder, &snapshot, &restore->why);
    if (restore->status != CAIRN_OK) return;
    restore->status = cairn_cluster_restore_judge_signature(restore, &snapshot.manifest,
                                                            restore->folder, &restore->why);
    const bool is_read = restore->fallback || has_whole_sums(&snapshot.manifest);
    if (restore->status == CAIRN_OK && !restore->plan && is_read)
        restore->status = cairn_snapshot_verify(&snapshot, NULL, &restore->why);
    if (restore->status == CAIRN_OK) {
        restore->manifest = snapshot.manifest; // moves
        cairn_manifest_init(&snapshot.manifest);
    }
    cairn_snapshot_close(&snapshot);
}

static void check_in_turn(struct cairn_cluster_restore *restore)
{
    do check_folder(restore);
    while (restore->status != CAIRN_OK && cairn_cluster_restore_fall_back(restore));
}

/* What the files say, of a job that would be given up for them. */
static void prove_files(struct cairn_cluster_work *work)
{
    struct cairn_cluster_restore *restore = (struct cairn_cluster_restore *)work;
    while (restore->status == CAIRN_OK) {
        cairn_cluster_restore_prove_files(work);
        if (restore->status == CAIRN_OK || !cairn_cluster_restore_fall_back(restore)) return;
        cairn_manifest_release(&restore->manifest);
        check_in_turn(restore);
    }
}

static void check(struct cairn_cluster_work *work)
{
    struct cairn_cluster_restore *restore = (struct cairn_cluster_restore *)work;
    if (restore->is_stored)
        restore->status = cairn_cluster_storage_seen(restore->cluster, &restore->why);
    if (restore->folder == NULL) cairn_cluster_restore_find_latest(restore);
    if (restore->status == CAIRN_OK) check_in_turn(restore);
}

/* ---- replace, on the loop ---- */

static void end_load(struct cairn_cluster_restore *restore, struct cairn_cluster_job *job,
                     cairn_status status, const char *text)
{
    job->restoring = false;
    if (status != CAIRN_OK && job->reserved.generation != 0) {
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
        cairn_cluster_restore_free(restore);
        return;
    }
    cairn_status status = saved->status;
    cairn_sentence_set(&why, "%s", saved->why);
    if (status == CAIRN_OK) status = cairn_cluster_job_judge_shards(job, &why);
    if (status == CAIRN_OK) {
        job->state = CAIRN_CLUSTER_JOB_RUNNING;
        cairn_sentence_set(&job->rounds.epoch_reason, "the job was restored");
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
        cairn_cluster_restore_free(restore);
        return;
    }
    cairn_sentence_set(&why, "%s", text);
    if (status == CAIRN_OK) status = cairn_cluster_job_judge_shards(job, &why);
    if (status == CAIRN_OK) {
        job->initialized = true;
        status = cairn_cluster_save_job(job, job->planned.spec, 0, on_stored, &why);
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
    CAIRN_EACH_SHARD (job, i) {
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
    struct cairn_sentence why;
    cairn_sentence_set(&why, "%s", text);
    if (status == CAIRN_ERR_NOT_FOUND) { // we have just read it
        restore->unseen = true;
        status = CAIRN_ERR_IO;
        cairn_sentence_add(&why, "; is the storage of the snapshots mounted at that shard?");
    }
    if (status != CAIRN_OK || restore->cluster->closing) {
        on_loaded(restore, status, why.text);
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
    if (old->reserved.generation > newest) newest = old->reserved.generation;
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
    body->reserved.round = old->reserved.round;
    body->reserved.generation = body->generation;
    body->stored = old->stored;
    body->members.pause.ends_ms = old->members.pause.ends_ms;
    memcpy(body->members.pause.what, old->members.pause.what, sizeof body->members.pause.what);
    if (restore->latest.of_job == 0) return;
    body->loss.recovery = old->loss.recovery;
    body->loss.recovery.waited = true;
}

static void remove_old(struct cairn_cluster_job *old, const struct cairn_cluster_job *body,
                       const char *folder)
{
    struct cairn_sentence text;
    cairn_sentence_set(
        &text, "job %s was restored from %s, of step %" PRIu64 ": close it and open it again",
        old->spec.name, folder, body->base_step);
    while (old->members.list != NULL)
        cairn_cluster_member_expel(old->members.list, CAIRN_ERR_ROLLED_BACK, text.text);
    CAIRN_EACH_SHARD (old, i) {
        struct cairn_cluster_seat *seat = old->shards[i].seat;
        if (!cairn_cluster_job_has_seat(body, seat))
            cairn_cluster_job_send_drop(old->cluster, seat, old->id);
    }
    cairn_cluster_job_unlink(old);
    cairn_cluster_job_free(old);
}

static cairn_status judge_replace(const struct cairn_cluster_restore *restore,
                                  const struct cairn_cluster_job *old, struct cairn_sentence *why)
{
    const struct cairn_manifest *m = &restore->manifest;
    if (restore->latest.of_job != 0 &&
        (old == NULL || old->id != restore->latest.of_job || old->state != CAIRN_CLUSTER_JOB_LOST))
        return cairn_fail(why, CAIRN_ERR_CANCELED,
                          "job %s was lost, and is not any more: it needs no restore",
                          m->spec.name);
    if (restore->latest.ended != NULL && restore->latest.of_job == 0 && old != NULL &&
        old->state != CAIRN_CLUSTER_JOB_LOST)
        return cairn_fail(why, CAIRN_ERR_EXISTS, "job %s is there again", old->spec.name);
    if (old != NULL && old->snapshots.cut != NULL) return cairn_cluster_cut_refuse(old, why);
    if (old != NULL && (old->extension.body != NULL || old->amends.amending != NULL ||
                        old->state == CAIRN_CLUSTER_JOB_CREATING)) {
        return cairn_fail(why, CAIRN_ERR_BUSY, "job %s is being made, amended or restored",
                          m->spec.name);
    }
    if (old != NULL && old->loss.behind)
        return cairn_fail(why, CAIRN_ERR_NOT_READY, "job %s is %s", old->spec.name,
                          old->loss.why.text);
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
    struct cairn_cluster_job *body = cairn_cluster_job_plan(restore->cluster, &m->spec, true, why);
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
    cairn_cluster_halts_restored(body, &m->nonfinite);
    cairn_cluster_job_link(body);
    restore->job_id = body->id;
    struct cairn_cluster_gather *gather = cairn_cluster_gather_open(body->cluster, on_made,
                                                                    restore);
    if (gather == NULL) {
        cairn_cluster_job_lose(body, false, "no memory to restore it");
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    }
    cairn_cluster_job_send_create(body, &load, gather);
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
    if (status == CAIRN_OK && restore->latest.ended != NULL && old != NULL)
        status = cairn_cluster_recovery_keep(&m->spec, &old->spec);
    if (status == CAIRN_OK && restore->latest.ended != NULL && restore->latest.of_job == 0)
        status = cairn_cluster_openers_judge(restore->cluster, &m->spec, &why);
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
    restore->checked = true;
    if (work->cluster->closing) {
        cairn_cluster_restore_free(restore);
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
    cairn_cluster_restore_free(restore);
}

static void on_checked(struct cairn_cluster_work *work)
{
    struct cairn_cluster_restore *restore = (struct cairn_cluster_restore *)work;
    restore->checked = true;
    if (restore->plan && restore->status == CAIRN_OK && !work->cluster->closing) {
        end_plan(restore);
        return;
    }
    if (restore->status == CAIRN_OK) warn_of_trust(restore);
    if (restore->status == CAIRN_OK && restore->manifest.unsealed)
        cairn_log_warn("the manifest of %s is of a former version, without a hash over itself: "
                       "whether it was changed cannot be told but by its content root",
                       restore->folder);
    if (restore->status == CAIRN_OK && !work->cluster->closing && is_risky(restore)) {
        restore->checked = false; // it may come to another folder yet
        work->run = prove_files;
        work->done = begin_load;
        if (cairn_cluster_work_start(work, work->cluster, NULL, 0)) return;
        restore->status = cairn_fail(&restore->why, CAIRN_ERR_NO_MEMORY, "no thread for it");
    }
    begin_load(work);
}

/* ---- begun and forgotten ---- */

struct cairn_cluster_restore *cairn_cluster_restore_new(struct cairn_cluster *cluster)
{
    struct cairn_cluster_restore *restore = calloc(1, sizeof *restore);
    if (restore == NULL) return NULL;
    restore->cluster = cluster;
    cairn_manifest_init(&restore->manifest);
    cairn_cluster_keys_ring(cluster, &restore->ring);
    restore->work.run = check;
    restore->work.done = on_checked;
    restore->next = cluster->restores;
    cluster->restores = restore;
    return restore;
}

bool cairn_cluster_restore_reads(const struct cairn_cluster_restore *restore, const char *job,
                                 const char *folder)
{
    if (strcmp(restore->asked, folder) == 0) return true;
    if (restore->checked) return strcmp(restore->folder, folder) == 0;
    const bool chooses = restore->fallback || restore->asked[0] == '\0';
    return chooses && strcmp(restore->job_name, job) == 0;
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
    while (cluster->restores != NULL) cairn_cluster_restore_free(cluster->restores);
}
