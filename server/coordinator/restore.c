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

enum restore_step {
    CHECKS,
    PROVES,
    SETTLES,
    JUDGES_FORMER,
    PLANS,
    CHOOSES_GENERATION,
    RESERVES,
    MAKES,
    AWAITS_LOADING,
    PROVES_LOADED,
    SAVES,
    OPENS,
    IS_OVER
};

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
    if (!restore->plan) message->restored_generation = restore->generation.chosen;
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
    if (restore->generation.last > newest) newest = restore->generation.last;
    if (old == NULL) return newest + 1;
    const uint64_t now = coord_job_version(old).generation;
    if (now > newest) newest = now;
    if (old->reserved.generation > newest) newest = old->reserved.generation;
    return newest + 1;
}

/* Returns the owner that the snapshot names; "": none. */
static const char *named_owner(const struct coord_restore *restore)
{
    return restore->manifest.owner != NULL ? restore->manifest.owner : "";
}

/* Returns whose a job is that is not there yet. Whoever brings one back does so for its owner. If the
 * snapshot names none, only an admin may, and the job is that admin's. */
static const char *owner_of(const struct coord_restore *restore)
{
    const char *owner = named_owner(restore);
    return owner[0] != '\0' ? owner : restore->maker.owner;
}

/* Gives the restored job its generation, and what it keeps of the former job: the id, the epoch,
 * the numbers that must not be used twice, and the pause. If the restore is automatic, it keeps the
 * recovery, too. */
static void inherit_former(struct coord_job *restored, const struct coord_job *old,
                           const struct coord_restore *restore)
{
    restored->generation = restore->generation.chosen;
    restored->base_step = restore->manifest.step;
    restored->origin.generation = restore->generation.chosen;
    if (restore->is_its_own) {
        restored->origin.from = (struct cairn_version) { restore->manifest.generation,
                                                         restore->manifest.step };
        line_restore(old != NULL ? &old->origin : NULL, old != NULL ? &old->turns : NULL,
                     restored->origin.from, &restore->manifest.origin, &restored->turns);
    }
    restored->tenant = restore->maker;
    snprintf(restored->tenant.owner, sizeof restored->tenant.owner, "%s", owner_of(restore));
    if (old == NULL) return;
    restored->tenant = old->tenant;
    restored->init.source = old->init.source;
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
    if (old != NULL) CAIRN_TRY(coord_operation_judge(old, CAIRN_OPERATION_RESTORE, why));
    if (old != NULL && old->loss.behind)
        return fail_with(why, CAIRN_ERR_NOT_READY, "job %s is %s", old->spec.name,
                         old->loss.why.text);
    if (coord_job_is_strange(restore->steps.cluster, m->spec.name, why)) return CAIRN_ERR_NOT_READY;
    if (coord_snapshot_removing(restore->steps.cluster, restore->folder))
        return fail_with(why, CAIRN_ERR_BUSY, "%s is being removed", restore->folder);
    return coord_judge_workers(restore->steps.cluster, spec_of(restore), why);
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

/* A durability that the operator asks for must be there; that of a snapshot need not, for its job is better
 * restored with less. */
static cairn_status judge_durability(const struct coord_restore *restore,
                                     const struct coord_job *restored, struct sentence *why)
{
    const cairn_durability asked = spec_of(restore)->policy.durability;
    if (restore->settings == NULL || asked == restore->manifest.spec.policy.durability)
        return CAIRN_OK;
    return coord_durability_may(restored, spec_of(restore), why);
}

/* Replaces the job of that name by the snapshot's job, and asks the shards to create that job. A failure
 * leaves the former job as it was. */
static cairn_status replace_job(struct coord_steps *steps, struct sentence *why)
{
    struct coord_restore *restore = (struct coord_restore *)steps;
    struct manifest *m = &restore->manifest;
    struct coord_job *old = coord_job_find(steps->cluster, m->spec.name);
    const struct job_spec_data *spec = spec_of(restore);
    struct decision last = { .kind = CAIRN_DECISION_NONE,
                             .version_after = { restore->generation.chosen, m->step },
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
    if (status == CAIRN_OK) status = judge_durability(restore, restored, why);
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
    restored->making = steps;
    restore->job_id = restored->id;
    coord_job_send_create(restored, &load, steps->gather);
    free(payload);
    return CAIRN_OK;
}

/* ==== restore ==== */

/* Returns the job that is being restored. NULL: there is none yet, or it is another one now. */
static struct coord_job *restored_job(const struct coord_steps *steps)
{
    const uint64_t id = ((const struct coord_restore *)steps)->job_id;
    struct coord_job *job = id != 0 ? coord_job_by_id(steps->cluster, id) : NULL;
    return job != NULL && job->making == steps ? job : NULL;
}

static void tell_ended(struct coord_restore *restore, cairn_status status, const char *text)
{
    const cluster_restored_fn ended = restore->latest.ended;
    restore->latest.ended = NULL;
    if (ended != NULL && !restore->steps.cluster->closing) ended(restore, status, text);
}

/* Frees a restore. If the restore was begun without an admin, its initiator is told that the
 * restore was given up, unless its end was reported before. */
static void restore_free(struct coord_restore *restore)
{
    struct coord_job *job = restored_job(&restore->steps);
    if (job != NULL) job->making = NULL;
    tell_ended(restore, CAIRN_ERR_NOT_READY, "its restore was given up");
    struct coord_restore **at = &restore->steps.cluster->under_way.restores;
    (void)coord_steps_cancel(&restore->steps);
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
                                   coord_restore_is_damage(status);
        sentence_set(&said, "%s%s", text,
                     may_fall_back ? "; --fallback takes the newest good one that is older" : "");
        coord_waiters_fail(&restore->waiter, status, said.text);
    } else {
        log_info("job %s restored from %s at step %" PRIu64 " as generation %" PRIu64,
                 restore->manifest.spec.name, restore->folder, restore->manifest.step,
                 restore->generation.chosen);
        const char *passed = restore->latest.passed.text;
        coord_event_note(restore->steps.cluster, CAIRN_EVENT_RESTORED, restore->manifest.spec.name,
                         NULL, "from %s at step %" PRIu64 " as generation %" PRIu64 "%s%.600s",
                         restore->folder, restore->manifest.step, restore->generation.chosen,
                         passed[0] != '\0' ? "; passed over: " : "", passed);
        if (restore->is_stored) coord_restore_passed_over(restore, &restore->latest.passed);
        restore_answer(restore);
    }
    tell_ended(restore, status, text);
    struct coord *cluster = restore->steps.cluster;
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

/* The restore has failed after it replaced a job, or when there was none. */
static void give_job_up(struct coord_restore *restore, struct coord_job *job, cairn_status status,
                        const char *text)
{
    job->making = NULL;
    if (job->reserved.generation != 0) {
        note_begun(restore, job, status);
        coord_job_lose(job, false, "restoring %s failed (%s)", restore->folder, text);
    } else { // no job existed before
        coord_job_drop(job);
    }
}

static cairn_status judge_made(struct coord_steps *steps, cairn_status status, struct sentence *why)
{
    if (status != CAIRN_ERR_NOT_FOUND) return status;
    // a shard does not find a file that the coordinator has just read
    ((struct coord_restore *)steps)->unseen = true;
    sentence_add(why, "; is the storage of the snapshots mounted at that shard?");
    return CAIRN_ERR_IO;
}

/* True if all shards have reported what they have loaded. */
static bool is_loaded(const struct coord_steps *steps)
{
    const struct coord_job *job = restored_job(steps);
    if (job == NULL) return true; // the next step sees to it
    CAIRN_EACH_SHARD (job, i)
        if (part_is_open(((const struct coord_restore *)steps)->parts[i])) return false;
    return true;
}

/* Stores the job, if the proof was good and the shards are still the same. */
static cairn_status save_restored(struct coord_steps *steps, struct sentence *why)
{
    struct coord_job *job = restored_job(steps);
    if (job == NULL) return fail_with(why, CAIRN_ERR_CANCELED, "the job is another one now");
    CAIRN_TRY(coord_job_judge_shards(job, why));
    job->initialized = true;
    return coord_steps_save(steps, job, CAIRN_STORE_JOB, NULL, 0, why);
}

/* The job is durable: starts it, if its shards are still the same. */
static cairn_status open_restored(struct coord_steps *steps, struct sentence *why)
{
    struct coord_job *job = restored_job(steps);
    if (job == NULL) return fail_with(why, CAIRN_ERR_CANCELED, "the job is another one now");
    CAIRN_TRY(coord_job_judge_shards(job, why));
    job->state = CAIRN_CLUSTER_JOB_RUNNING;
    sentence_set(&job->rounds.epoch_reason, "the job was restored");
    CAIRN_TRY(coord_job_core_open(job, why));
    coord_terms_tell_all(job);
    job->making = NULL;
    return CAIRN_OK;
}

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

static bool is_for_openers(const struct coord_restore *restore)
{
    return restore->latest.ended != NULL && restore->latest.of_job == 0;
}

/* Judges whether the owner may have the job, as far as it is planned. A job that is replaced by itself takes
 * what it had. */
static cairn_status judge_quota(const struct coord_restore *restore, struct sentence *why)
{
    struct coord_job *old = coord_job_find(restore->steps.cluster, restore->manifest.spec.name);
    struct coord_job *draft = restore->draft.job;
    if (old != NULL) return CAIRN_OK;
    const struct quota more = { .jobs = 1,
                                .bytes = draft != NULL && draft->layout != NULL
                                             ? coord_job_state_bytes(draft)
                                             : 0 };
    return coord_quota_judge(restore->steps.cluster, owner_of(restore), &more, why);
}

/* The former job goes on while the restore is planned and its generation is reserved. So it is judged
 * anew after each of these steps. */
static cairn_status judge_former(struct coord_steps *steps, struct sentence *why)
{
    struct coord_restore *restore = (struct coord_restore *)steps;
    const char *name = restore->manifest.spec.name;
    const struct coord_job *old = coord_job_find(steps->cluster, name);
    CAIRN_TRY(judge_replace(restore, old, why));
    CAIRN_TRY(judge_quota(restore, why));
    if (restore->latest.ended != NULL && old != NULL) CAIRN_TRY(take_over(restore, old));
    const bool has_new = is_for_openers(restore) &&
                         coord_openers_list(steps->cluster, name, &restore->verdicts);
    restore->plans = restore->draft.job == NULL || has_new;
    return CAIRN_OK;
}

static bool is_to_be_planned(const struct coord_steps *steps)
{
    return ((const struct coord_restore *)steps)->plans;
}

static size_t spec_bytes(const struct coord_steps *steps)
{
    return spec_of((const struct coord_restore *)steps)->tensor_count * TENSOR_BYTES;
}

static cairn_status open_draft(struct coord_steps *steps, struct sentence *why)
{
    struct coord_restore *restore = (struct coord_restore *)steps;
    if (restore->draft.job != NULL ||
        coord_draft_open(&restore->draft, steps->cluster, spec_of(restore)))
        return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to plan the job");
}

static cairn_status plan_restored(struct coord_steps *steps, struct sentence *why)
{
    struct coord_restore *restore = (struct coord_restore *)steps;
    coord_verdicts_judge(restore->verdicts, &restore->manifest.spec);
    if (restore->draft.job->planned.spec != NULL) return CAIRN_OK;
    return coord_draft_plan(&restore->draft, spec_of(restore), why);
}

/* ---- a generation ---- */

/* Chooses the generation, or a higher one if the former job itself has used it meanwhile. */
static cairn_status choose_generation(struct coord_steps *steps, struct sentence *why)
{
    struct coord_restore *restore = (struct coord_restore *)steps;
    const char *name = restore->manifest.spec.name;
    const struct coord_job *old = coord_job_find(steps->cluster, name);
    if (is_for_openers(restore))
        CAIRN_TRY(coord_openers_judge(steps->cluster, name, restore->verdicts, why));
    const uint64_t next = next_generation(restore, old), id = old != NULL ? old->id : 0;
    restore->generation.reserves = false;
    if (restore->generation.chosen >= next && restore->generation.old_id == id) return CAIRN_OK;
    restore->generation.chosen = next;
    restore->generation.old_id = id;
    restore->generation.reserves = old != NULL && old->stored;
    return CAIRN_OK;
}

static bool is_to_be_reserved(const struct coord_steps *steps)
{
    return ((const struct coord_restore *)steps)->generation.reserves;
}

static cairn_status reserve_generation(struct coord_steps *steps, struct sentence *why)
{
    const struct coord_restore *restore = (struct coord_restore *)steps;
    struct coord_job *old = coord_job_by_id(steps->cluster, restore->generation.old_id);
    return coord_steps_save(steps, old, CAIRN_STORE_GENERATION, NULL, restore->generation.chosen,
                            why);
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
    if (status == CAIRN_OK)
        status = coord_settings_judge_planes(was, &restore->spec, CAIRN_SETTINGS_CREATE, why);
    if (status == CAIRN_OK && spec_note_made(&restore->spec, was) != CAIRN_OK)
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the job's spec");
    if (status == CAIRN_OK) status = spec_check(&restore->spec, optimizer_names(), why);
    return status == CAIRN_OK ? spec_check_usable(&restore->spec, why) : status;
}

static const struct coord_job *job_there(const struct coord_restore *restore)
{
    return coord_job_find(restore->steps.cluster, coord_restore_job_name(restore));
}

/* True if a job of that name exists and is not lost, but would be lost if the restore failed later. */
static bool is_risky(const struct coord_steps *steps)
{
    const struct coord_job *old = job_there((const struct coord_restore *)steps);
    return old != NULL && old->state != CAIRN_CLUSTER_JOB_LOST;
}

/* Judges whether who asked may make a job of the snapshot, whose owner the job will have: this owner may, or
 * an admin, under each of the two names. */
static cairn_status judge_maker(const struct coord_restore *restore, struct sentence *why)
{
    const char *owner = named_owner(restore);
    cairn_status status = coord_owner_judge_access(&restore->who, restore->manifest.spec.name,
                                                   owner, CAIRN_ACCESS_OWN, why);
    if (status == CAIRN_OK)
        status = coord_owner_judge_access(&restore->who, coord_restore_job_name(restore), owner,
                                          CAIRN_ACCESS_OWN, why);
    // to a resume, NOT_FOUND would say that this snapshot is damaged, and the next one is to be tried
    return status == CAIRN_ERR_NOT_FOUND && restore->latest.is_resumed ? CAIRN_ERR_REFUSED : status;
}

/* Judges whether who asked may read the snapshot, and replace the job. */
static cairn_status judge_asker(const struct coord_restore *restore, struct sentence *why)
{
    const struct manifest *m = &restore->manifest;
    const struct coord_job *old = job_there(restore);
    const struct identity *who = &restore->who;
    const bool is_asked = !LIST_EMPTY(&restore->waiter);
    // who resumes a job that is there was judged with it (openings.c)
    if (!is_asked && (!restore->latest.is_resumed || old != NULL)) return CAIRN_OK;
    if (old == NULL) return judge_maker(restore, why);
    CAIRN_TRY(coord_snapshot_judge_access(restore->steps.cluster, who, m->spec.name,
                                          named_owner(restore), CAIRN_ACCESS_READ, why));
    return coord_job_judge_access(who, old, CAIRN_ACCESS_OWN, why);
}

/* A restore that only reports what it would do ends here. */
static cairn_status judge_checked(struct coord_steps *steps, cairn_status status,
                                  struct sentence *why)
{
    struct coord_restore *restore = (struct coord_restore *)steps;
    if (status == CAIRN_OK) status = judge_asker(restore, why);
    if (status == CAIRN_OK) status = apply_settings(restore, why);
    if (status != CAIRN_OK) return status;
    const struct coord_job *old = job_there(restore);
    if (!restore->plan) coord_restore_warn(restore);
    if (restore->plan && old != NULL) note_replaced(restore, old);
    if (restore->plan) coord_steps_go(steps, IS_OVER, false);
    return CAIRN_OK;
}

/* The proof may have chosen another snapshot than the check. */
static cairn_status settle_on_snapshot(struct coord_steps *steps, struct sentence *why)
{
    struct coord_restore *restore = (struct coord_restore *)steps;
    restore->checked = true;
    CAIRN_TRY(judge_asker(restore, why));
    if (restore->job_name != NULL &&
        spec_set_name(&restore->manifest.spec, restore->job_name) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    return apply_settings(restore, why);
}

/* ---- the steps ---- */

static cairn_status judge_again(struct coord_steps *steps, cairn_status status,
                                struct sentence *why)
{
    (void)why;
    if (status == CAIRN_OK) coord_steps_go(steps, JUDGES_FORMER, false);
    return status;
}

static cairn_status judge_reserved(struct coord_steps *steps, cairn_status status,
                                   struct sentence *why)
{
    // NOT_FOUND: the former job was dropped, or never stored
    return judge_again(steps, status == CAIRN_ERR_NOT_FOUND ? CAIRN_OK : status, why);
}

static void done_restore(struct coord_steps *steps)
{
    struct coord_restore *restore = (struct coord_restore *)steps;
    if (!restore->plan) {
        end_restore(restore, CAIRN_OK, "");
        return;
    }
    restore_answer(restore);
    restore_free(restore);
}

static void fail_restore(struct coord_steps *steps, cairn_status status, const char *text)
{
    struct coord_restore *restore = (struct coord_restore *)steps;
    struct coord_job *job = restored_job(steps);
    if (restore->job_id != 0 && job == NULL) {
        restore_free(restore);
        return;
    }
    if (job != NULL) give_job_up(restore, job, status, text);
    end_restore(restore, status, text);
}

static void release_restore(struct coord_steps *steps)
{
    restore_free((struct coord_restore *)steps);
}

#define LOADS "the shards to load the snapshot"

static const struct coord_step restore_steps[] = {
    [CHECKS] = { CAIRN_STEP_THREAD, .run = coord_restore_check, .end = judge_checked },
    [PROVES] = { CAIRN_STEP_THREAD, .is_needed = is_risky, .run = coord_restore_prove },
    [SETTLES] = { CAIRN_STEP_DO, .begin = settle_on_snapshot },
    [JUDGES_FORMER] = { CAIRN_STEP_DO, .begin = judge_former },
    [PLANS] = { CAIRN_STEP_THREAD, .is_needed = is_to_be_planned, .begin = open_draft,
                .bytes = spec_bytes, .run = plan_restored, .end = judge_again },
    [CHOOSES_GENERATION] = { CAIRN_STEP_DO, .begin = choose_generation },
    [RESERVES] = { CAIRN_STEP_STORE, .is_needed = is_to_be_reserved, .begin = reserve_generation,
                   .end = judge_reserved },
    [MAKES] = { CAIRN_STEP_ASK, CAIRN_STAGE_RESTORING, LOADS, .begin = replace_job,
                .end = judge_made },
    [AWAITS_LOADING] = { CAIRN_STEP_WAIT, CAIRN_STAGE_RESTORING, LOADS, .is_ready = is_loaded },
    [PROVES_LOADED] = { CAIRN_STEP_THREAD, CAIRN_STAGE_RESTORING, LOADS,
                        .run = coord_restore_prove_loaded },
    [SAVES] = { CAIRN_STEP_STORE, CAIRN_STAGE_RESTORING, LOADS, .begin = save_restored },
    [OPENS] = { CAIRN_STEP_DO, .begin = open_restored },
    [IS_OVER] = { .kind = CAIRN_STEP_LAST },
};

static const struct coord_operation_plan restore_plan = { restore_steps, .done = done_restore,
                                                          .failed = fail_restore,
                                                          .release = release_restore };

/* ---- as an operation ---- */

static struct coord_steps *steps_of_restore(struct coord_job *job)
{
    return job->making != NULL && job->making->plan == &restore_plan ? job->making : NULL;
}

const struct coord_operation coord_restoring = {
    .steps = steps_of_restore,
    .being = "restored",
    .until = "until the job is made",
};

/* ---- begun and forgotten ---- */

/* Makes a restore, and puts it into the cluster's list. The caller has to start its work. Returns
 * NULL if there is no memory. */
static struct coord_restore *restore_new(struct coord *cluster)
{
    struct coord_restore *restore = calloc(1, sizeof *restore);
    if (restore == NULL) return NULL;
    coord_steps_start(&restore->steps, &restore_plan, cluster, NULL);
    manifest_init(&restore->manifest);
    spec_init(&restore->spec);
    coord_keys_ring(cluster, &restore->ring);
    restore->next = cluster->under_way.restores;
    cluster->under_way.restores = restore;
    return restore;
}

void coord_restores_close(struct coord *cluster)
{
    while (cluster->under_way.restores != NULL) restore_free(cluster->under_way.restores);
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
                                   restore->steps.cluster->storage.path, message->job, message->id)
                        : snprintf(resolved, sizeof resolved, "%s", message->path);
    if (n < 0 || (size_t)n >= sizeof resolved)
        return fail_with(why, CAIRN_ERR_INVALID, "the path is too long");
    if (!by_id && !access_role(&restore->who, CAIRN_MAY_ADMIN))
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "only an admin restores a folder: name a job and a snapshot's id");
    const bool renamed = message->job[0] != '\0';
    const struct coord_job *job = coord_job_find(restore->steps.cluster, message->job);
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

static cairn_status on_snapshot_restore(struct coord_session *session, uint32_t request,
                                        const void *any, struct sentence *why)
{
    const Cairn__SnapshotRestore *message = any;
    struct coord_restore *restore = restore_new(session->cluster);
    if (restore == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    coord_tenant_make(&restore->maker, session);
    restore->who = *coord_who(session);
    restore->plan = message->plan;
    restore->waiver = (struct trust_waiver) { message->allow_unsigned, message->allow_untrusted };
    cairn_status status = judge_ask(restore, message, why);
    if (status == CAIRN_OK) status = coord_waiters_add(&restore->waiter, session, request, why);
    if (status == CAIRN_OK)
        coord_steps_advance(&restore->steps);
    else
        restore_free(restore);
    return status;
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
    if (status != CAIRN_OK && restore->steps.status == CAIRN_OK)
        restore->steps.status = fail_with(&restore->steps.why, status, "%s: %s", name, text);
    coord_steps_advance(&restore->steps);
}

bool coord_restore_on_part(struct coord_session *session, const Cairn__SnapshotPart *part)
{
    struct coord_restore *r = session->cluster->under_way.restores;
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
    for (struct coord_restore *r = cluster->under_way.restores; r != NULL; r = r->next) {
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
                          const struct snapshot_place *behind, const struct coord_resumer *by,
                          cluster_restored_fn ended)
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
    if (lost != NULL) restore->latest.turns = lost->turns;
    restore->latest.is_resumed = by != NULL;
    if (by != NULL) restore->maker = by->maker;
    if (by != NULL) restore->who = by->who;
    restore->asked = strdup("");
    restore->job_name = strdup(job);
    if (restore->asked == NULL || restore->job_name == NULL) {
        restore_free(restore);
        return false;
    }
    restore->latest.ended = ended;
    coord_steps_advance(&restore->steps);
    return true;
}

/* ==== messages ==== */

const struct coord_row coord_restore_rows[] = {
    { CAIRN_MSG_SNAPSHOT_RESTORE, CAIRN_FROM_ADMIN, .asks = on_snapshot_restore,
      .verb = "snapshot restore", .awaits = CAIRN_AWAITS_REPORTS, .job = "job",
      .wants = CAIRN_ACCESS_OWN },
    { 0 },
};
