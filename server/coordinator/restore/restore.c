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
#include <stdlib.h>
#include <string.h>

#include "proto/spec/optimizer.h"
#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cut.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/cut/digests.h"
#include "server/coordinator/job/jobs.h"
#include "server/coordinator/job/settings.h"
#include "server/coordinator/restore/recovery.h"
#include "server/coordinator/restore/restore.h"
#include "server/coordinator/snapshot/find.h"
#include "server/coordinator/store/events.h"
#include "server/coordinator/trust/keys.h"

#define TENSOR_BYTES 64 /* of a spec, about */

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
    cairn__snapshot_restore__free_unpacked(restore->settings, NULL);
    cairn_spec_release(&restore->spec);
    cairn_manifest_release(&restore->manifest);
    cairn_cluster_digests_release(&restore->digests);
    cairn_cluster_draft_close(&restore->draft);
    cairn_cluster_verdicts_free(restore->verdicts);
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

/* ---- loaded and stored, on the loop ---- */

/* The job has no part any more that could come back. With on_shard_loss its restore is tried again, also
 * where an operator or a worker asked for it: unless the snapshot is to blame, of which they are told. */
static void note_begun(const struct cairn_cluster_restore *restore, struct cairn_cluster_job *job,
                       cairn_status status)
{
    struct cairn_cluster_recovery *r = &job->loss.recovery;
    if (restore->latest.of_job != 0) return; // its recovery judges by itself
    r->begun = restore->is_its_own && !cairn_cluster_restore_is_damage(status);
    r->unseen = restore->unseen;
}

static void end_load(struct cairn_cluster_restore *restore, struct cairn_cluster_job *job,
                     cairn_status status, const char *text)
{
    job->restoring = false;
    if (status != CAIRN_OK && job->reserved.generation != 0) {
        note_begun(restore, job, status);
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
        status = cairn_cluster_save_job(job, CAIRN_STORE_JOB, NULL, 0, on_stored, &why);
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

static void on_reserved(const struct cairn_cluster_saved *saved);
static void advance(struct cairn_cluster_restore *restore);

/* Gives the restored spec what the lost job may have otherwise than its snapshot (recovery.h).
 * If the lost job came from a restore of this snapshot that did not end, all settings of that
 * restore are taken. */
static cairn_status take_over(struct cairn_cluster_restore *restore,
                              const struct cairn_cluster_job *old)
{
    const struct cairn_manifest *m = &restore->manifest;
    const struct cairn_version from = { m->generation, m->step };
    const bool is_same = cairn_version_compare(old->origin.from, from) == 0 && !old->initialized;
    if (!is_same) return cairn_cluster_recovery_keep(&restore->manifest.spec, &old->spec);
    cairn_spec_release(&restore->spec);
    return cairn_spec_copy(&old->spec, &restore->spec);
}

/* ---- planned, and compared with what its openers want, on another thread ---- */

static void run_plan(struct cairn_cluster_work *work)
{
    struct cairn_cluster_restore *restore = (struct cairn_cluster_restore *)work;
    cairn_cluster_verdicts_judge(restore->verdicts, &restore->manifest.spec);
    if (restore->draft.job->planned.spec == NULL)
        restore->status = cairn_cluster_draft_plan(
            &restore->draft, cairn_cluster_restore_spec(restore), &restore->why);
}

static void on_planned(struct cairn_cluster_work *work)
{
    struct cairn_cluster_restore *restore = (struct cairn_cluster_restore *)work;
    const struct cairn_sentence why = restore->why;
    if (work->cluster->closing)
        cairn_cluster_restore_free(restore);
    else if (restore->status == CAIRN_OK)
        advance(restore);
    else
        end_restore(restore, restore->status, why.text);
}

static bool is_for_openers(const struct cairn_cluster_restore *restore)
{
    return restore->latest.ended != NULL && restore->latest.of_job == 0;
}

/* True: a thread is at it, and the restore goes on when that is through; or it has ended. */
static bool plans(struct cairn_cluster_restore *restore)
{
    const struct cairn_job_spec_data *spec = cairn_cluster_restore_spec(restore);
    const bool has_new = is_for_openers(restore) &&
                         cairn_cluster_openers_list(restore->cluster, spec->name,
                                                    &restore->verdicts);
    if (restore->draft.job != NULL && !has_new) return false;
    restore->work.run = run_plan;
    restore->work.done = on_planned;
    if ((restore->draft.job != NULL ||
         cairn_cluster_draft_open(&restore->draft, restore->cluster, spec)) &&
        cairn_cluster_work_do(&restore->work, restore->cluster, NULL, 0,
                              spec->tensor_count * TENSOR_BYTES))
        return true;
    end_restore(restore, CAIRN_ERR_NO_MEMORY, "no memory to plan the job");
    return true;
}

/* Plans the job, reserves a generation of the one that is there, and replaces that one when all is durable.
 * It goes on meanwhile, and each time is judged anew: if it has come to that generation by itself, a newer
 * one is reserved. */
static void advance(struct cairn_cluster_restore *restore)
{
    struct cairn_manifest *m = &restore->manifest;
    struct cairn_cluster_job *old = cairn_cluster_job_find(restore->cluster, m->spec.name);
    struct cairn_sentence why;
    cairn_status status = cairn_cluster_restore_judge_replace(restore, old, &why);
    if (status == CAIRN_OK && restore->latest.ended != NULL && old != NULL)
        status = take_over(restore, old);
    if (status == CAIRN_OK && plans(restore)) return;
    if (status == CAIRN_OK && is_for_openers(restore))
        status = cairn_cluster_openers_judge(restore->cluster, m->spec.name, restore->verdicts,
                                             &why);
    const uint64_t next = cairn_cluster_restore_next_generation(restore, old),
                   id = old != NULL ? old->id : 0;
    if (status == CAIRN_OK && (restore->generation < next || restore->old_id != id)) {
        restore->generation = next;
        restore->old_id = id;
        restore->reserving = old != NULL && old->stored;
        if (restore->reserving)
            status = cairn_cluster_save_job(old, CAIRN_STORE_GENERATION, NULL, next, on_reserved,
                                            &why);
        if (restore->reserving && status == CAIRN_OK) return;
    }
    if (status == CAIRN_OK) status = cairn_cluster_restore_replace(restore, old, on_made, &why);
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

/* The manifest's spec stays what it is, which the proof of what is loaded goes by. */
static cairn_status apply_settings(struct cairn_cluster_restore *restore,
                                   struct cairn_sentence *why)
{
    const struct cairn_job_spec_data *was = &restore->manifest.spec;
    const Cairn__SnapshotRestore *asked = restore->settings;
    bool reopens = false;
    if (asked == NULL) return CAIRN_OK;
    cairn_spec_release(&restore->spec);
    cairn_status status = cairn_spec_copy(was, &restore->spec);
    if (status == CAIRN_OK) status = cairn_spec_note_former(&restore->spec);
    if (status != CAIRN_OK) return cairn_fail(why, status, "no memory for the job's spec");
    restore->spec.revision++;
    status = cairn_cluster_settings_apply(&restore->spec, asked->settings, asked->n_settings,
                                          CAIRN_SETTINGS_CREATE, &reopens, why);
    if (status == CAIRN_OK) status = cairn_cluster_settings_judge_planes(was, &restore->spec, why);
    if (status == CAIRN_OK && cairn_spec_note_made(&restore->spec, was) != CAIRN_OK)
        status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the job's spec");
    if (status == CAIRN_OK) status = cairn_spec_check(&restore->spec, cairn_optimizer_names(), why);
    return status == CAIRN_OK ? cairn_spec_check_usable(&restore->spec, why) : status;
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
    if (status != CAIRN_OK && restore->status == CAIRN_OK)
        cairn_sentence_set(&restore->why, "no memory");
    if (status == CAIRN_OK) status = apply_settings(restore, &restore->why);
    const struct cairn_sentence why = restore->why;
    if (status == CAIRN_OK)
        advance(restore);
    else
        end_restore(restore, status, why.text);
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
    if (restore->status == CAIRN_OK) restore->status = apply_settings(restore, &restore->why);
    if (restore->plan && restore->status == CAIRN_OK && !work->cluster->closing) {
        end_plan(restore);
        return;
    }
    if (restore->status == CAIRN_OK) cairn_cluster_restore_warn(restore);
    if (restore->status == CAIRN_OK && !work->cluster->closing && is_risky(restore)) {
        restore->checked = false; // it may come to another folder yet
        work->run = cairn_cluster_restore_prove;
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
    cairn_spec_init(&restore->spec);
    cairn_cluster_keys_ring(cluster, &restore->ring);
    restore->work.run = cairn_cluster_restore_check;
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
