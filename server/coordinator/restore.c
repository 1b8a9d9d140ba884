/* Makes a job from a snapshot. First the snapshot is checked on another thread. Then the job is
 * created on the shards, in a new generation.
 *
 *   check    reads the manifest, and checks that the files are there and cover the whole state. If
 *            a running job would be given up for the snapshot, also checks the content root of the
 *            files. A failure changes nothing
 *   plan     plans the new job over the present shards
 *   reserve  notes in the store a generation that the existing job has not used, while this job
 *            continues
 *   replace  expels the existing job's members, and sends JobCreate with the folder to the shards.
 *            From here on a failure leaves the job lost, and the job's status says so
 *   prove    the shards report the digests of what they loaded; the digests must match the root in
 *            the manifest
 *   store    the new job becomes durable
 *   done     the core is READY at the snapshot's version, with the payload of its last decision */
#include "server/coordinator/restore.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "server/coordinator/cluster.h"

#define TENSOR_BYTES 64 /* about the bytes that one tensor of a spec takes */

/* ==== answer ==== */

/* Answers an operator about a restore: which job the restore would replace, and how the restore ended. */

/* Returns the spec of the restored job: the manifest's spec, or the spec with the settings that were
 * asked for. */
static const struct job_spec_data *spec_of(const struct coord_restore *restore)
{
    return restore->spec.name != NULL ? &restore->spec : &restore->manifest.spec;
}

/* Notes the state of the job that this restore replaces. */
static void note_replaced(struct coord_restore *restore, const struct coord_job *old)
{
    Cairn__ReplacedJob *replaced = &restore->replaced;
    const struct cairn_version version = coord_job_version(old);
    cairn__replaced_job__init(replaced);
    replaced->state = wire_text(coord_job_state_name(old));
    replaced->generation = version.generation;
    replaced->step = version.step;
    replaced->version_unknown = old->version_unknown;
    replaced->may_return = old->loss.may_return;
    for (const struct coord_member *m = old->members.list; m != NULL; m = m->next_of_job)
        *(m->role == CAIRN_ROLE_WIRE_WORKER ? &replaced->workers : &replaced->readers) += 1;
    restore->replaces = true;
}

/* Answers the operator. Called when the restore is done, or when it was only to be planned. */
static void restore_answer(struct coord_restore *restore)
{
    struct snapshot_view view;
    Cairn__SnapshotStatus *message = &view.status;
    const char *slash = strrchr(restore->folder, '/');
    coord_manifest_to_view(&restore->manifest, slash == NULL ? restore->folder : slash + 1,
                           restore->folder, &view);
    message->job = wire_text(coord_restore_job_name(restore));
    if (restore->replaces) message->replaced = &restore->replaced;
    message->passed_over = restore->latest.passed.text;
    if (!restore->plan) message->restored_generation = restore->generation;
    coord_waiters_answer(&restore->waiter, CAIRN_MSG_SNAPSHOT_STATUS, &message->base);
}

/* ==== replace ==== */

/* Drops the existing job and creates the snapshot's job on the shards, in a new generation. */

/* Returns a generation that is above every generation that the job has used, or may have used
 * according to the store. It is also above every generation in the folder that has the job's
 * name. */
static uint64_t next_generation(const struct coord_restore *restore, const struct coord_job *old)
{
    uint64_t newest = restore->manifest.generation;
    if (restore->last_generation > newest) newest = restore->last_generation;
    if (old == NULL) return newest + 1;
    const uint64_t now = coord_job_version(old).generation;
    if (now > newest) newest = now;
    if (old->reserved.generation > newest) newest = old->reserved.generation;
    return newest + 1;
}

/* Gives the restored job its generation, and what it keeps of the former job: the id, the epoch,
 * the numbers that must not be used twice, and the pause. If the restore is automatic, it keeps the
 * recovery, too. */
static void inherit_former(struct coord_job *restored, const struct coord_job *old,
                           const struct coord_restore *restore)
{
    restored->generation = restore->generation;
    restored->base_step = restore->manifest.step;
    restored->origin.generation = restore->generation;
    if (restore->is_its_own)
        restored->origin.from = (struct cairn_version) { restore->manifest.generation,
                                                         restore->manifest.step };
    restored->restoring = true;
    if (old == NULL) return;
    restored->id = old->id;
    restored->epoch = old->epoch;
    restored->reserved.round = old->reserved.round;
    restored->reserved.generation = restored->generation;
    restored->stored = old->stored;
    restored->members.pause.ends_ms = old->members.pause.ends_ms;
    memcpy(restored->members.pause.what, old->members.pause.what,
           sizeof restored->members.pause.what);
    if (restore->latest.of_job == 0) return;
    restored->loss.recovery = old->loss.recovery;
    restored->loss.recovery.waited = true;
}

static void remove_old(struct coord_job *old, const struct coord_job *restored, const char *folder)
{
    struct sentence text;
    sentence_set(&text,
                 "job %s was restored from %s, of step %" PRIu64 ": close it and open it again",
                 old->spec.name, folder, restored->base_step);
    while (old->members.list != NULL)
        coord_member_expel(old->members.list, CAIRN_ERR_ROLLED_BACK, text.text);
    CAIRN_EACH_SHARD (old, i) {
        struct coord_shard_entry *entry = old->shards[i].entry;
        if (!coord_job_has_shard(restored, entry))
            coord_job_send_drop(old->cluster, entry, old->id);
    }
    coord_job_unlink(old);
    coord_job_free(old);
}

/* Judges whether the snapshot's job may replace `old` now. `old` is the job of that name, or NULL if
 * there is none. */
static cairn_status judge_replace(const struct coord_restore *restore, const struct coord_job *old,
                                  struct sentence *why)
{
    const struct manifest *m = &restore->manifest;
    if (restore->latest.of_job != 0 &&
        (old == NULL || old->id != restore->latest.of_job || old->state != CAIRN_CLUSTER_JOB_LOST))
        return fail_with(why, CAIRN_ERR_CANCELED,
                         "job %s was lost, and is not any more: it needs no restore", m->spec.name);
    if (restore->latest.ended != NULL && restore->latest.of_job == 0 && old != NULL &&
        old->state != CAIRN_CLUSTER_JOB_LOST)
        return fail_with(why, CAIRN_ERR_EXISTS, "job %s is there again", old->spec.name);
    if (old != NULL) CAIRN_TRY(coord_operation_judge(old, CAIRN_OPERATION_MAKE, why));
    if (old != NULL && old->loss.behind)
        return fail_with(why, CAIRN_ERR_NOT_READY, "job %s is %s", old->spec.name,
                         old->loss.why.text);
    if (coord_job_is_strange(restore->cluster, m->spec.name, why)) return CAIRN_ERR_NOT_READY;
    if (coord_snapshot_removing(restore->cluster, restore->folder))
        return fail_with(why, CAIRN_ERR_BUSY, "%s is being removed", restore->folder);
    return coord_judge_workers(restore->cluster, spec_of(restore), why);
}

/* Notes that every shard has yet to report what it has loaded. */
static cairn_status await_parts(struct coord_restore *restore, const struct coord_job *restored,
                                struct sentence *why)
{
    restore->parts = malloc(restored->layout->shard_count);
    if (restore->parts == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    memset(restore->parts, CAIRN_PART_AWAITED, restored->layout->shard_count);
    restore->number = coord_snapshot_number();
    return CAIRN_OK;
}

/* Takes the results of the restored version from the manifest, until the shards report their own.
 * The results of all shards count as results of shard 0. */
static void take_results(struct coord_job *job, const struct results *saved)
{
    job->shards[0].results.published = *saved;
}

/* Replaces `old` by the snapshot's job, and asks the shards to create that job. When all shards
 * have answered, `on_made` is called with the restore. A failure leaves `old` as it was, unless
 * memory runs out at the end. */
static cairn_status replace_job(struct coord_restore *restore, struct coord_job *old,
                                cluster_gather_fn on_made, struct sentence *why)
{
    struct manifest *m = &restore->manifest;
    const struct job_spec_data *spec = spec_of(restore);
    struct decision last = { .kind = CAIRN_DECISION_NONE,
                             .version_after = { restore->generation, m->step },
                             .payload = m->payload,
                             .payload_bytes = m->payload_bytes };
    uint8_t *payload;
    CAIRN_TRY(coord_settings_payload(&m->spec, spec, &last, &payload, why));
    struct coord_job *restored;
    cairn_status status = coord_draft_take(&restore->draft, &restored, why);
    if (status != CAIRN_OK) {
        free(payload);
        return CAIRN_ERR_NOT_READY;
    }
    if (old != NULL) coord_job_keep_pauses(old);
    inherit_former(restored, old, restore);
    status = coord_groups_restored(restored, &m->reduce_groups);
    if (status == CAIRN_OK) status = await_parts(restore, restored, why);
    if (status != CAIRN_OK) {
        free(payload);
        coord_job_free(restored);
        return status;
    }
    const struct coord_create load = { .snapshot_path = restore->folder,
                                       .digest = restore->number,
                                       .version = { restored->generation, m->step },
                                       .last = &last };
    if (old != NULL) {
        note_replaced(restore, old);
        remove_old(old, restored, restore->folder);
    }
    take_results(restored, &m->nonfinite);
    coord_job_link(restored);
    restore->job_id = restored->id;
    struct coord_gather *gather = coord_gather_open(restored->cluster, on_made, restore);
    if (gather == NULL) {
        free(payload);
        coord_job_lose(restored, false, "out of memory to restore it");
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    }
    coord_job_send_create(restored, &load, gather);
    free(payload);
    coord_gather_start(gather);
    return CAIRN_OK;
}

/* ==== restore ==== */

static void tell_ended(struct coord_restore *restore, cairn_status status, const char *text)
{
    const cluster_restored_fn ended = restore->latest.ended;
    restore->latest.ended = NULL;
    if (ended != NULL && !restore->cluster->closing) ended(restore, status, text);
}

/* Frees a restore. If the restore was begun without an admin, its initiator is told that the
 * restore was given up, unless its end was reported before. */
static void restore_free(struct coord_restore *restore)
{
    tell_ended(restore, CAIRN_ERR_NOT_READY, "its restore was given up");
    struct coord_restore **at = &restore->cluster->restores;
    while (*at != NULL && *at != restore) at = &(*at)->next;
    if (*at == restore) *at = restore->next;
    coord_waiters_release(&restore->waiter);
    cairn__snapshot_restore__free_unpacked(restore->settings, NULL);
    spec_release(&restore->spec);
    manifest_release(&restore->manifest);
    coord_digests_release(&restore->digests);
    coord_draft_close(&restore->draft);
    coord_verdicts_free(restore->verdicts);
    free(restore->parts);
    free(restore->folder);
    free(restore->asked);
    free(restore->job_name);
    free(restore);
}

static void end_restore(struct coord_restore *restore, cairn_status status, const char *text)
{
    if (status != CAIRN_OK) {
        if (!restore->latest.none_found) // the initiator reports this case
            log_warn("restore of %s failed: %s",
                     restore->folder != NULL ? restore->folder : "the newest snapshot", text);
        struct sentence said;
        const bool may_fall_back = restore->is_stored && !restore->fallback &&
                                   restore->latest.passed.text[0] == '\0' && // none was passed over
                                   restore->checked && coord_restore_is_damage(status);
        sentence_set(&said, "%s%s", text,
                     may_fall_back ? "; --fallback takes the newest good one that is older" : "");
        coord_waiters_fail(&restore->waiter, status, said.text);
    } else {
        log_info("job %s restored from %s at step %" PRIu64 " as generation %" PRIu64,
                 restore->manifest.spec.name, restore->folder, restore->manifest.step,
                 restore->generation);
        const char *passed = restore->latest.passed.text;
        coord_event_note(restore->cluster, CAIRN_EVENT_RESTORED, restore->manifest.spec.name, NULL,
                         "from %s at step %" PRIu64 " as generation %" PRIu64 "%s%.600s",
                         restore->folder, restore->manifest.step, restore->generation,
                         passed[0] != '\0' ? "; passed over: " : "", passed);
        if (restore->is_stored) coord_restore_passed_over(restore, &restore->latest.passed);
        restore_answer(restore);
    }
    tell_ended(restore, status, text);
    struct coord *cluster = restore->cluster;
    restore_free(restore);
    coord_openings_advance(cluster);
}

/* ---- loaded and stored, on the loop ---- */

/* Notes in the job, which is about to be lost, that a restore has replaced its parts, so no part
 * can come back. Then on_shard_loss tries the restore again, even if an operator or a worker asked
 * for it. There is no second try if the snapshot is damaged, or is not of this job. */
static void note_begun(const struct coord_restore *restore, struct coord_job *job,
                       cairn_status status)
{
    struct coord_recovery *r = &job->loss.recovery;
    if (restore->latest.of_job != 0) return; // the job's recovery decides
    r->begun = restore->is_its_own && !coord_restore_is_damage(status);
    r->unseen = restore->unseen;
}

static void end_load(struct coord_restore *restore, struct coord_job *job, cairn_status status,
                     const char *text)
{
    job->restoring = false;
    if (status != CAIRN_OK && job->reserved.generation != 0) {
        note_begun(restore, job, status);
        coord_job_lose(job, false, "restoring %s failed (%s)", restore->folder, text);
    } else if (status != CAIRN_OK) { // no job existed before
        coord_job_drop(job);
    }
    end_restore(restore, status, text);
}

/* Called when the job is durable, or could not be stored. Starts the job if it is durable and its
 * shards are still the same. */
static void on_stored(const struct coord_saved *saved)
{
    struct coord_job *job = coord_job_by_id(saved->cluster, saved->job);
    struct coord_restore *restore = saved->cluster->restores;
    struct sentence why;
    while (restore != NULL && restore->job_id != saved->job) restore = restore->next;
    if (restore == NULL) return;
    if (job == NULL || !job->restoring) {
        restore_free(restore);
        return;
    }
    cairn_status status = saved->status;
    sentence_set(&why, "%s", saved->why);
    if (status == CAIRN_OK) status = coord_job_judge_shards(job, &why);
    if (status == CAIRN_OK) {
        job->state = CAIRN_CLUSTER_JOB_RUNNING;
        sentence_set(&job->rounds.epoch_reason, "the job was restored");
        status = coord_job_core_open(job, &why);
    }
    if (status == CAIRN_OK) coord_terms_tell_all(job);
    end_load(restore, job, status, why.text);
}

/* Called when all shards have loaded their parts and the state was proven, or when this failed. */
static void on_loaded(struct coord_restore *restore, cairn_status status, const char *text)
{
    struct coord_job *job = coord_job_by_id(restore->cluster, restore->job_id);
    struct sentence why;
    if (restore->cluster->closing || job == NULL) {
        restore_free(restore);
        return;
    }
    sentence_set(&why, "%s", text);
    if (status == CAIRN_OK) status = coord_job_judge_shards(job, &why);
    if (status == CAIRN_OK) {
        job->initialized = true;
        status = coord_save_job(job, CAIRN_STORE_JOB, NULL, 0, on_stored, &why);
    }
    if (status != CAIRN_OK) end_load(restore, job, status, why.text);
}

static void on_proven(struct coord_work *work)
{
    struct coord_restore *restore = (struct coord_restore *)work;
    const struct sentence why = restore->why;
    on_loaded(restore, restore->status, why.text);
}

/* If no part is awaited any more, begins to prove the state that the shards have loaded. */
static void restore_advance(struct coord_restore *restore)
{
    const struct coord_job *job = coord_job_by_id(restore->cluster, restore->job_id);
    if (!restore->made || job == NULL) return;
    CAIRN_EACH_SHARD (job, i) {
        if (part_is_open(restore->parts[i])) return;
    }
    restore->made = false; // the proof is begun only one time
    restore->work.run = coord_restore_prove_loaded;
    restore->work.done = on_proven;
    // The proof is done by a thread even if the restore has failed already. So the restore ends
    // later, on the loop. Its end may free the job, which our caller still uses.
    const bool started = coord_work_start(&restore->work, restore->cluster, NULL, 0);
    assert(started); // there is no session that could refuse the work
    (void)started;
}

static void on_made(void *context, cairn_status status, const char *text)
{
    struct coord_restore *restore = context;
    struct sentence why;
    sentence_set(&why, "%s", text);
    // a shard does not find a file that the coordinator has just read
    if (status == CAIRN_ERR_NOT_FOUND) {
        restore->unseen = true;
        status = CAIRN_ERR_IO;
        sentence_add(&why, "; is the storage of the snapshots mounted at that shard?");
    }
    if (status != CAIRN_OK || restore->cluster->closing) {
        on_loaded(restore, status, why.text);
        return;
    }
    restore->made = true;
    restore_advance(restore);
}

static void on_reserved(const struct coord_saved *saved);
static void advance_restore(struct coord_restore *restore);

/* Gives the snapshot's spec the policy and the number of workers that the job has now. An amendment
 * may have changed them since the snapshot, and the job's workers must be able to join the restored
 * job. CAIRN_ERR_NO_MEMORY. */
static cairn_status keep_policy(struct job_spec_data *spec, const struct job_spec_data *now)
{
    if (policy_same(&spec->policy, &now->policy) && spec->workers_min == now->workers_min &&
        spec->workers_max == now->workers_max)
        return CAIRN_OK;
    // workers may open the job with the old spec
    const cairn_status status = spec_note_former(spec);
    if (status != CAIRN_OK) return status;
    spec->policy = now->policy;
    spec->workers_min = now->workers_min;
    spec->workers_max = now->workers_max;
    return CAIRN_OK;
}

/* Copies from the lost job to the restored spec the settings that may have changed in the job since the
 * snapshot (restore.h). If the lost job came from an unfinished restore of this very snapshot, copies all
 * settings of that restore. */
static cairn_status take_over(struct coord_restore *restore, const struct coord_job *old)
{
    const struct manifest *m = &restore->manifest;
    const struct cairn_version from = { m->generation, m->step };
    const bool is_same = version_compare(old->origin.from, from) == 0 && !old->initialized;
    if (!is_same) return keep_policy(&restore->manifest.spec, &old->spec);
    spec_release(&restore->spec);
    return spec_copy(&old->spec, &restore->spec);
}

/* ---- planned, and compared with what its openers want, on another thread ---- */

static void run_plan(struct coord_work *work)
{
    struct coord_restore *restore = (struct coord_restore *)work;
    coord_verdicts_judge(restore->verdicts, &restore->manifest.spec);
    if (restore->draft.job->planned.spec == NULL)
        restore->status = coord_draft_plan(&restore->draft, spec_of(restore), &restore->why);
}

static void on_planned(struct coord_work *work)
{
    struct coord_restore *restore = (struct coord_restore *)work;
    const struct sentence why = restore->why;
    if (work->cluster->closing)
        restore_free(restore);
    else if (restore->status == CAIRN_OK)
        advance_restore(restore);
    else
        end_restore(restore, restore->status, why.text);
}

static bool is_for_openers(const struct coord_restore *restore)
{
    return restore->latest.ended != NULL && restore->latest.of_job == 0;
}

/* True if the caller need not continue: either a thread now plans the job, and the restore continues
 * afterwards, or the restore has ended. */
static bool plans_on_thread(struct coord_restore *restore)
{
    const struct job_spec_data *spec = spec_of(restore);
    const bool has_new = is_for_openers(restore) &&
                         coord_openers_list(restore->cluster, spec->name, &restore->verdicts);
    if (restore->draft.job != NULL && !has_new) return false;
    restore->work.run = run_plan;
    restore->work.done = on_planned;
    if ((restore->draft.job != NULL || coord_draft_open(&restore->draft, restore->cluster, spec)) &&
        coord_work_do(&restore->work, restore->cluster, NULL, 0, spec->tensor_count * TENSOR_BYTES))
        return true;
    end_restore(restore, CAIRN_ERR_NO_MEMORY, "out of memory to plan the job");
    return true;
}

/* Continues a restore whose snapshot was checked. Plans the new job, then reserves a generation in
 * the existing job, then replaces the existing job. This function is called again after each of
 * these steps. The existing job goes on meanwhile, so each call judges it again, and reserves a
 * higher generation if the job itself has used the reserved one. */
static void advance_restore(struct coord_restore *restore)
{
    struct manifest *m = &restore->manifest;
    struct coord_job *old = coord_job_find(restore->cluster, m->spec.name);
    struct sentence why;
    cairn_status status = judge_replace(restore, old, &why);
    if (status == CAIRN_OK && restore->latest.ended != NULL && old != NULL)
        status = take_over(restore, old);
    if (status == CAIRN_OK && plans_on_thread(restore)) return;
    if (status == CAIRN_OK && is_for_openers(restore))
        status = coord_openers_judge(restore->cluster, m->spec.name, restore->verdicts, &why);
    const uint64_t next = next_generation(restore, old), id = old != NULL ? old->id : 0;
    if (status == CAIRN_OK && (restore->generation < next || restore->old_id != id)) {
        restore->generation = next;
        restore->old_id = id;
        restore->reserving = old != NULL && old->stored;
        if (restore->reserving)
            status = coord_save_job(old, CAIRN_STORE_GENERATION, NULL, next, on_reserved, &why);
        if (restore->reserving && status == CAIRN_OK) return;
    }
    if (status == CAIRN_OK) status = replace_job(restore, old, on_made, &why);
    if (status != CAIRN_OK) end_restore(restore, status, why.text);
}

static void on_reserved(const struct coord_saved *saved)
{
    struct coord_restore *restore = saved->cluster->restores;
    while (restore != NULL && (!restore->reserving || restore->old_id != saved->job ||
                               restore->generation != saved->number))
        restore = restore->next;
    if (restore == NULL) return;
    restore->reserving = false;
    if (saved->status == CAIRN_OK ||
        saved->status == CAIRN_ERR_NOT_FOUND) // the job was dropped, or never stored
        advance_restore(restore);
    else
        end_restore(restore, saved->status, saved->why);
}

/* Applies the settings to a copy of the spec. The manifest's spec stays as it is, because the loaded
 * state is checked against the manifest's spec. */
static cairn_status apply_settings(struct coord_restore *restore, struct sentence *why)
{
    const struct job_spec_data *was = &restore->manifest.spec;
    const Cairn__SnapshotRestore *asked = restore->settings;
    bool reopens = false;
    if (asked == NULL) return CAIRN_OK;
    spec_release(&restore->spec);
    cairn_status status = spec_copy(was, &restore->spec);
    if (status == CAIRN_OK) status = spec_note_former(&restore->spec);
    if (status != CAIRN_OK) return fail_with(why, status, "out of memory for the job's spec");
    restore->spec.revision++;
    status = coord_settings_apply(&restore->spec, asked->settings, asked->n_settings,
                                  CAIRN_SETTINGS_CREATE, &reopens, why);
    if (status == CAIRN_OK) status = coord_settings_judge_planes(was, &restore->spec, why);
    if (status == CAIRN_OK && spec_note_made(&restore->spec, was) != CAIRN_OK)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the job's spec");
    if (status == CAIRN_OK) status = spec_check(&restore->spec, optimizer_names(), why);
    return status == CAIRN_OK ? spec_check_usable(&restore->spec, why) : status;
}

static void begin_load(struct coord_work *work)
{
    struct coord_restore *restore = (struct coord_restore *)work;
    restore->checked = true;
    if (work->cluster->closing) {
        restore_free(restore);
        return;
    }
    cairn_status status = restore->status;
    if (status == CAIRN_OK && restore->job_name != NULL)
        status = spec_set_name(&restore->manifest.spec, restore->job_name);
    if (status != CAIRN_OK && restore->status == CAIRN_OK)
        sentence_set(&restore->why, "out of memory");
    if (status == CAIRN_OK) status = apply_settings(restore, &restore->why);
    const struct sentence why = restore->why;
    if (status == CAIRN_OK)
        advance_restore(restore);
    else
        end_restore(restore, status, why.text);
}

static const struct coord_job *job_there(const struct coord_restore *restore)
{
    return coord_job_find(restore->cluster, coord_restore_job_name(restore));
}

/* True if a job of that name exists and is not lost, but would be lost if the restore failed later. */
static bool is_risky(const struct coord_restore *restore)
{
    const struct coord_job *old = job_there(restore);
    return old != NULL && old->state != CAIRN_CLUSTER_JOB_LOST;
}

static void on_checked(struct coord_work *work)
{
    struct coord_restore *restore = (struct coord_restore *)work;
    restore->checked = true;
    if (restore->status == CAIRN_OK) restore->status = apply_settings(restore, &restore->why);
    if (restore->plan && restore->status == CAIRN_OK && !work->cluster->closing) {
        const struct coord_job *old = job_there(restore);
        if (old != NULL) note_replaced(restore, old);
        restore_answer(restore);
        restore_free(restore);
        return;
    }
    if (restore->status == CAIRN_OK) coord_restore_warn(restore);
    if (restore->status == CAIRN_OK && !work->cluster->closing && is_risky(restore)) {
        restore->checked = false; // the proof may still choose another folder
        work->run = coord_restore_prove;
        work->done = begin_load;
        if (coord_work_start(work, work->cluster, NULL, 0)) return;
        restore->status = fail_with(&restore->why, CAIRN_ERR_NO_MEMORY, "no thread for it");
    }
    begin_load(work);
}

/* ---- begun and forgotten ---- */

/* Makes a restore, and puts it into the cluster's list. The caller has to start its work. Returns
 * NULL if there is no memory. */
static struct coord_restore *restore_new(struct coord *cluster)
{
    struct coord_restore *restore = calloc(1, sizeof *restore);
    if (restore == NULL) return NULL;
    restore->cluster = cluster;
    manifest_init(&restore->manifest);
    spec_init(&restore->spec);
    coord_keys_ring(cluster, &restore->ring);
    restore->work.run = coord_restore_check;
    restore->work.done = on_checked;
    restore->next = cluster->restores;
    cluster->restores = restore;
    return restore;
}

void coord_restores_close(struct coord *cluster)
{
    while (cluster->restores != NULL) restore_free(cluster->restores);
}

/* ==== ask ==== */

/* Restores the snapshot that an admin names by its id or by its folder. */

static cairn_status judge_ask(struct coord_restore *restore, const Cairn__SnapshotRestore *message,
                              struct sentence *why)
{
    uint64_t generation, step;
    char resolved[PATH_MAX];
    const bool by_id = message->id[0] != '\0';
    if (by_id == (message->path[0] != '\0'))
        return fail_with(why, CAIRN_ERR_INVALID, "give either a snapshot's id or its folder");
    if (message->job[0] != '\0' && !job_name_ok(message->job))
        return fail_with(why, CAIRN_ERR_INVALID, "\"%s\" is not a name of a job", message->job);
    if (by_id && (message->job[0] == '\0' || !snapshot_id_parse(message->id, &generation, &step)))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "a snapshot's id goes with its job's name and looks like "
                         "step-000000012000-g1, not \"%s\"",
                         message->id);
    const int n = by_id ? snprintf(resolved, sizeof resolved, "%s/%s/%s",
                                   restore->cluster->storage.path, message->job, message->id)
                        : snprintf(resolved, sizeof resolved, "%s", message->path);
    if (n < 0 || (size_t)n >= sizeof resolved)
        return fail_with(why, CAIRN_ERR_INVALID, "the path is too long");
    const bool renamed = message->job[0] != '\0';
    const struct coord_job *job = coord_job_find(restore->cluster, message->job);
    restore->fallback = message->fallback || (job != NULL && job->spec.policy.snapshot_fallback);
    if (message->fallback && !by_id)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "--fallback needs a snapshot's id, not a folder: a folder does not tell "
                         "which snapshots are older");
    if (message->n_settings > 0) {
        uint8_t *bytes = malloc(cairn__snapshot_restore__get_packed_size(message));
        if (bytes != NULL)
            restore->settings = cairn__snapshot_restore__unpack(
                NULL, cairn__snapshot_restore__pack(message, bytes), bytes);
        free(bytes);
        if (restore->settings == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    }
    restore->is_stored = by_id;
    restore->folder = strdup(resolved);
    restore->asked = strdup(resolved);
    if (renamed) restore->job_name = strdup(message->job);
    return restore->folder != NULL && restore->asked != NULL &&
                   (!renamed || restore->job_name != NULL)
               ? CAIRN_OK
               : fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
}

static void on_snapshot_restore(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__SnapshotRestore *message = any;
    struct sentence why;
    struct coord_restore *restore = restore_new(session->cluster);
    if (restore == NULL) {
        coord_session_error(session, request, CAIRN_ERR_NO_MEMORY, "out of memory");
        return;
    }
    restore->plan = message->plan;
    restore->waiver = (struct trust_waiver) { message->allow_unsigned, message->allow_untrusted };
    cairn_status status = judge_ask(restore, message, &why);
    if (status == CAIRN_OK && (!coord_waiters_add(&restore->waiter, session, request) ||
                               !coord_work_start(&restore->work, session->cluster, NULL, 0)))
        status = fail_with(&why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
    if (status == CAIRN_OK) return;
    coord_session_error(session, request, status, why.text);
    restore_free(restore);
}

/* ==== proof ==== */

/* Proves the state of a restore, by computing its content root again. The first proof reads the
 * files, before a running job is given up for them. The second proof uses what the shards have in
 * memory, before the job is ready. Each proof detects every bit of the state that differs from what
 * was saved, even if the checksums were changed along with the files. The second proof also detects
 * what has changed since the first proof. If the root differs, the block checksums show which block
 * is damaged. */

static cairn_status take_part(struct coord_restore *restore, const Cairn__SnapshotPart *part,
                              struct sentence *why)
{
    CAIRN_TRY(coord_part_failed(part, why));
    return coord_digests_take(&restore->digests, restore->manifest.spec.tensor_count, part, why);
}

static void end_part(struct coord_restore *restore, uint32_t shard, cairn_status status,
                     const char *name, const char *text)
{
    restore->parts[shard] = status == CAIRN_OK ? CAIRN_PART_IN : CAIRN_PART_NONE;
    if (status != CAIRN_OK && restore->status == CAIRN_OK)
        restore->status = fail_with(&restore->why, status, "%s: %s", name, text);
    restore_advance(restore);
}

bool coord_restore_on_part(struct coord_session *session, const Cairn__SnapshotPart *part)
{
    struct coord_restore *r = session->cluster->restores;
    while (r != NULL && (r->parts == NULL || r->number != part->snapshot)) r = r->next;
    const struct coord_job *job = r == NULL ? NULL : coord_job_by_id(session->cluster, r->job_id);
    if (job == NULL) return r != NULL;
    CAIRN_EACH_SHARD (job, i) {
        struct sentence why = { "" };
        if (job->shards[i].entry != session->entry || !part_is_open(r->parts[i])) continue;
        const cairn_status status = take_part(r, part, &why);
        if (status == CAIRN_OK && part->more) {
            r->parts[i] = CAIRN_PART_BEGUN;
            coord_part_next(session->entry, part);
        } else {
            end_part(r, i, status, session->entry->name, why.text);
        }
        break;
    }
    return true;
}

void coord_restores_shard_gone(struct coord *cluster, const struct coord_shard_entry *entry)
{
    for (struct coord_restore *r = cluster->restores; r != NULL; r = r->next) {
        const struct coord_job *job = coord_job_by_id(cluster, r->job_id);
        for (uint32_t i = 0; r->parts != NULL && job != NULL && i < job->shard_count; i++)
            if (job->shards[i].entry == entry && part_is_open(r->parts[i]))
                end_part(r, i, CAIRN_ERR_CLOSED, entry->name,
                         "it went away before it told what it had loaded");
    }
}

/* ==== latest ==== */

/* Restores the newest snapshot of a job without an admin's request: because a worker resumes, or because
 * the job has lost a part (loss.c). */

bool coord_restore_latest(struct coord *cluster, const char *job, uint64_t of_job,
                          const struct snapshot_place *behind, cluster_restored_fn ended)
{
    struct coord_restore *restore = restore_new(cluster);
    if (restore == NULL) return false;
    const struct coord_job *lost = of_job != 0 ? coord_job_by_id(cluster, of_job)
                                               : coord_job_find(cluster, job);
    const bool known = of_job != 0 && lost != NULL && !lost->version_unknown;
    const char *trust = cluster->options->snapshots_trust;
    const bool takes_any = trust != NULL && strcmp(trust, "any") == 0;
    restore->waiver = (struct trust_waiver) { takes_any, takes_any };
    restore->latest.of_job = of_job;
    restore->latest.newest = known ? coord_job_version(lost)
                                   : (struct cairn_version) { UINT64_MAX, UINT64_MAX };
    restore->latest.behind = *behind;
    restore->latest.has_origin = lost != NULL;
    if (lost != NULL) restore->latest.origin = lost->origin;
    restore->asked = strdup("");
    restore->job_name = strdup(job);
    if (restore->asked != NULL && restore->job_name != NULL &&
        coord_work_start(&restore->work, cluster, NULL, 0)) {
        restore->latest.ended = ended;
        return true;
    }
    restore_free(restore);
    return false;
}

/* ==== messages ==== */

const struct coord_row coord_restore_rows[] = {
    { CAIRN_MSG_SNAPSHOT_RESTORE, CAIRN_FROM_ADMIN, .by_session = on_snapshot_restore },
    { 0 },
};
