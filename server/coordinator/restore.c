/* A snapshot becomes a job: checked on another thread, then made on the shards in a new generation.
 *
 *   check    manifest, files, cover; where a job would be given up for it, checksums and the content root of
 *            the files, too; nothing is touched, a failure changes nothing
 *   reserve  a generation that the job has not used becomes durable, while the job goes on
 *   replace  the job's members are expelled, the new one is planned over the shards there are, and
 *            JobCreate names the folder; from here on a failure leaves the job lost, and says so
 *   prove    the shards have told the digests of what they loaded, and these come to the manifest's root
 *   store    the new job becomes durable
 *   done     the core READY at the snapshot's version with the payload of its last decision */
#include "server/coordinator/restore.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"
#include "proto/snapshot_io/snapshot_io.h"
#include "proto/spec/spec.h"
#include "server/base/log.h"
#include "server/coordinator/base.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/job.h"
#include "server/coordinator/snapshot.h"
#include "server/coordinator/store.h"

#define TENSOR_BYTES 64 /* of a spec, about */

static void restore_answer(struct coord_restore *restore);
static void restore_prove_loaded(struct coord_work *work);
static const char *restore_job_name(const struct coord_restore *restore);
static void restore_warn(const struct coord_restore *restore);
static void restore_prove(struct coord_work *work);
static void restore_check(struct coord_work *work);
static bool restore_fall_back(struct coord_restore *restore);
static void restore_prove_files(struct coord_work *work);
static void restore_find_latest(struct coord_restore *restore);

static void tell_ended(struct coord_restore *restore, cairn_status status, const char *text)
{
    const cluster_restored_fn ended = restore->latest.ended;
    restore->latest.ended = NULL;
    if (ended != NULL && !restore->cluster->closing) ended(restore, status, text);
}

/* Who began it without an admin hears that it was given up, unless that one was told of its end. */
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
        if (!restore->latest.none_found) // who began it says so
            log_warn("restore of %s failed: %s",
                     restore->folder != NULL ? restore->folder : "the newest snapshot", text);
        struct sentence said;
        const bool may_fall_back = restore->is_stored && !restore->fallback &&
                                   restore->latest.passed.text[0] == '\0' && // else it was said
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

/* The job has no part any more that could come back. With on_shard_loss its restore is tried again, also
 * where an operator or a worker asked for it: unless the snapshot is to blame, of which they are told. */
static void note_begun(const struct coord_restore *restore, struct coord_job *job,
                       cairn_status status)
{
    struct coord_recovery *r = &job->loss.recovery;
    if (restore->latest.of_job != 0) return; // its recovery judges by itself
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
    } else if (status != CAIRN_OK) { // there was none before
        coord_job_drop(job);
    }
    end_restore(restore, status, text);
}

/* Durable: it is the job, if its shards are still the same. */
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

/* All shards have made their part, and it was proven; or not. */
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

/* A part came, or will not come. */
static void restore_advance(struct coord_restore *restore)
{
    const struct coord_job *job = coord_job_by_id(restore->cluster, restore->job_id);
    if (!restore->made || job == NULL) return;
    CAIRN_EACH_SHARD (job, i) {
        if (part_is_open(restore->parts[i])) return;
    }
    restore->made = false; // once
    restore->work.run = restore_prove_loaded;
    restore->work.done = on_proven;
    // A failure, too, ends on the loop later: the job may go then, and here somebody has it in hand.
    const bool started = coord_work_start(&restore->work, restore->cluster, NULL, 0);
    assert(started); // of no session
    (void)started;
}

static void on_made(void *context, cairn_status status, const char *text)
{
    struct coord_restore *restore = context;
    struct sentence why;
    sentence_set(&why, "%s", text);
    if (status == CAIRN_ERR_NOT_FOUND) { // we have just read it
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

/* Gives the restored spec what the lost job may have otherwise than its snapshot (restore.h).
 * If the lost job came from a restore of this snapshot that did not end, all settings of that
 * restore are taken. */
static cairn_status take_over(struct coord_restore *restore, const struct coord_job *old)
{
    const struct manifest *m = &restore->manifest;
    const struct cairn_version from = { m->generation, m->step };
    const bool is_same = version_compare(old->origin.from, from) == 0 && !old->initialized;
    if (!is_same) return coord_recovery_keep(&restore->manifest.spec, &old->spec);
    spec_release(&restore->spec);
    return spec_copy(&old->spec, &restore->spec);
}

/* ---- planned, and compared with what its openers want, on another thread ---- */

static void run_plan(struct coord_work *work)
{
    struct coord_restore *restore = (struct coord_restore *)work;
    coord_verdicts_judge(restore->verdicts, &restore->manifest.spec);
    if (restore->draft.job->planned.spec == NULL)
        restore->status = coord_draft_plan(&restore->draft, coord_restore_spec(restore),
                                           &restore->why);
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

/* True: a thread is at it, and the restore goes on when that is through; or it has ended. */
static bool plans_on_thread(struct coord_restore *restore)
{
    const struct job_spec_data *spec = coord_restore_spec(restore);
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

/* Plans the job, reserves a generation of the one that is there, and replaces that one when all is durable.
 * It goes on meanwhile, and each time is judged anew: if it has come to that generation by itself, a newer
 * one is reserved. */
static void advance_restore(struct coord_restore *restore)
{
    struct manifest *m = &restore->manifest;
    struct coord_job *old = coord_job_find(restore->cluster, m->spec.name);
    struct sentence why;
    cairn_status status = coord_restore_judge_replace(restore, old, &why);
    if (status == CAIRN_OK && restore->latest.ended != NULL && old != NULL)
        status = take_over(restore, old);
    if (status == CAIRN_OK && plans_on_thread(restore)) return;
    if (status == CAIRN_OK && is_for_openers(restore))
        status = coord_openers_judge(restore->cluster, m->spec.name, restore->verdicts, &why);
    const uint64_t next = coord_restore_next_generation(restore, old),
                   id = old != NULL ? old->id : 0;
    if (status == CAIRN_OK && (restore->generation < next || restore->old_id != id)) {
        restore->generation = next;
        restore->old_id = id;
        restore->reserving = old != NULL && old->stored;
        if (restore->reserving)
            status = coord_save_job(old, CAIRN_STORE_GENERATION, NULL, next, on_reserved, &why);
        if (restore->reserving && status == CAIRN_OK) return;
    }
    if (status == CAIRN_OK) status = coord_restore_replace(restore, old, on_made, &why);
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
        saved->status == CAIRN_ERR_NOT_FOUND) // dropped, or never stored
        advance_restore(restore);
    else
        end_restore(restore, saved->status, saved->why);
}

/* The manifest's spec stays what it is, which the proof of what is loaded goes by. */
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
    return coord_job_find(restore->cluster, restore_job_name(restore));
}

/* There is a job of its name that is not lost, and would be if it came to a failure later. */
static bool is_risky(const struct coord_restore *restore)
{
    const struct coord_job *old = job_there(restore);
    return old != NULL && old->state != CAIRN_CLUSTER_JOB_LOST;
}

static void end_plan(struct coord_restore *restore)
{
    const struct coord_job *old = job_there(restore);
    if (old != NULL) coord_restore_replaces(restore, old);
    restore_answer(restore);
    restore_free(restore);
}

static void on_checked(struct coord_work *work)
{
    struct coord_restore *restore = (struct coord_restore *)work;
    restore->checked = true;
    if (restore->status == CAIRN_OK) restore->status = apply_settings(restore, &restore->why);
    if (restore->plan && restore->status == CAIRN_OK && !work->cluster->closing) {
        end_plan(restore);
        return;
    }
    if (restore->status == CAIRN_OK) restore_warn(restore);
    if (restore->status == CAIRN_OK && !work->cluster->closing && is_risky(restore)) {
        restore->checked = false; // it may come to another folder yet
        work->run = restore_prove;
        work->done = begin_load;
        if (coord_work_start(work, work->cluster, NULL, 0)) return;
        restore->status = fail_with(&restore->why, CAIRN_ERR_NO_MEMORY, "no thread for it");
    }
    begin_load(work);
}

/* ---- begun and forgotten ---- */

/* In the cluster's list, its work not started yet. NULL: no memory. */
static struct coord_restore *restore_new(struct coord *cluster)
{
    struct coord_restore *restore = calloc(1, sizeof *restore);
    if (restore == NULL) return NULL;
    restore->cluster = cluster;
    manifest_init(&restore->manifest);
    spec_init(&restore->spec);
    coord_keys_ring(cluster, &restore->ring);
    restore->work.run = restore_check;
    restore->work.done = on_checked;
    restore->next = cluster->restores;
    cluster->restores = restore;
    return restore;
}

bool coord_restore_reads(const struct coord_restore *restore, const char *job, const char *folder)
{
    if (strcmp(restore->asked, folder) == 0) return true;
    if (restore->checked) return strcmp(restore->folder, folder) == 0;
    const bool chooses = restore->fallback || restore->asked[0] == '\0';
    return chooses && strcmp(restore->job_name, job) == 0;
}

void coord_restores_forget(struct coord *cluster, const struct coord_session *session)
{
    for (struct coord_restore *r = cluster->restores; r != NULL; r = r->next) {
        coord_waiters_forget(&r->waiter, session);
    }
}

void coord_restores_close(struct coord *cluster)
{
    while (cluster->restores != NULL) restore_free(cluster->restores);
}

/* ==== ask ==== */

/* An admin asks for a restore: of a snapshot by its id, or by its folder. */

static cairn_status judge_ask(struct coord_restore *restore, const Cairn__SnapshotRestore *message,
                              struct sentence *why)
{
    uint64_t generation, step;
    char resolved[PATH_MAX];
    const bool by_id = message->id[0] != '\0';
    if (by_id == (message->path[0] != '\0')) {
        return fail_with(why, CAIRN_ERR_INVALID, "give a snapshot's id or its folder, one of them");
    }
    if (message->job[0] != '\0' && !job_name_ok(message->job)) {
        return fail_with(why, CAIRN_ERR_INVALID, "\"%s\" is not a name of a job", message->job);
    }
    if (by_id && (message->job[0] == '\0' || !snapshot_id_parse(message->id, &generation, &step))) {
        return fail_with(why, CAIRN_ERR_INVALID,
                         "a snapshot's id goes with its job's name and looks like "
                         "step-000000012000-g1, not \"%s\"",
                         message->id);
    }
    const int n = by_id ? snprintf(resolved, sizeof resolved, "%s/%s/%s",
                                   restore->cluster->storage.path, message->job, message->id)
                        : snprintf(resolved, sizeof resolved, "%s", message->path);
    if (n < 0 || (size_t)n >= sizeof resolved) {
        return fail_with(why, CAIRN_ERR_INVALID, "the path is too long");
    }
    const bool renamed = message->job[0] != '\0';
    const struct coord_job *job = coord_job_find(restore->cluster, message->job);
    restore->fallback = message->fallback || (job != NULL && job->spec.policy.snapshot_fallback);
    if (message->fallback && !by_id)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "--fallback is for a snapshot that is given by its id: of a folder "
                         "nobody knows which are older");
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

void coord_restore_begin(struct coord_session *session, uint32_t request,
                         const Cairn__SnapshotRestore *message)
{
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
                               !coord_work_start(&restore->work, session->cluster, NULL, 0))) {
        status = fail_with(&why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
    }
    if (status == CAIRN_OK) return;
    coord_session_error(session, request, status, why.text);
    restore_free(restore);
}

/* ==== answer ==== */

/* Tells an operator about a restore: which job it would replace, and its outcome. */

/* Under which name it is, or will be, a job. */
static const char *restore_job_name(const struct coord_restore *restore)
{
    return restore->job_name != NULL ? restore->job_name : restore->manifest.spec.name;
}

const struct job_spec_data *coord_restore_spec(const struct coord_restore *restore)
{
    return restore->spec.name != NULL ? &restore->spec : &restore->manifest.spec;
}

void coord_restore_replaces(struct coord_restore *restore, const struct coord_job *old)
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

/* It is done, or planned: who asked hears of it. */
static void restore_answer(struct coord_restore *restore)
{
    struct snapshot_view view;
    Cairn__SnapshotStatus *message = &view.status;
    const char *slash = strrchr(restore->folder, '/');
    coord_manifest_to_view(&restore->manifest, slash == NULL ? restore->folder : slash + 1,
                           restore->folder, &view);
    message->job = wire_text(restore_job_name(restore));
    if (restore->replaces) message->replaced = &restore->replaced;
    message->passed_over = restore->latest.passed.text;
    if (!restore->plan) message->restored_generation = restore->generation;
    coord_waiters_answer(&restore->waiter, CAIRN_MSG_SNAPSHOT_STATUS, &message->base);
}

/* ==== check ==== */

/* Reads a snapshot for a restore on another thread, before anything is touched: manifest,
 * signature, files. If it is damaged and may give way, the next older snapshot is read. */

/* A snapshot is read before it is loaded only if a file has one checksum over all of it, since
 * somebody has to read all of it then, or if the snapshot may give way to another. Otherwise the
 * shards hash what they load, or, where a job is given up for the snapshot, the files are proved
 * first: the content root tells of every bit. Checksums are then asked only to find whose fault
 * a damage is. */
static bool has_whole_sums(const struct manifest *m)
{
    for (size_t i = 0; i < m->file_count; i++)
        if (m->files[i].is_whole) return true;
    return false;
}

/* May it be taken, by who signed it? Any thread. CAIRN_ERR_REFUSED, CAIRN_ERR_CHECKSUM. */
static cairn_status restore_judge_signature(const struct coord_restore *restore,
                                            const struct manifest *manifest, const char *folder,
                                            struct sentence *why)
{
    struct sentence said = { "" };
    const cairn_status status = manifest_accept(manifest, &restore->ring, restore->waiver, &said);
    return status == CAIRN_OK ? CAIRN_OK : fail_with(why, status, "%s: %s", folder, said.text);
}

/* Of restore->folder; which is then without links. */
static void check_folder(struct coord_restore *restore)
{
    struct snapshot snapshot;
    char *folder;
    restore->status = storage_of(restore->folder)->resolve(restore->folder, &folder, &restore->why);
    if (restore->status != CAIRN_OK) return;
    free(restore->folder);
    restore->folder = folder;
    restore->status = snapshot_open(restore->folder, &snapshot, &restore->why);
    if (restore->status != CAIRN_OK) return;
    restore->status = restore_judge_signature(restore, &snapshot.manifest, restore->folder,
                                              &restore->why);
    const bool is_read = restore->fallback || has_whole_sums(&snapshot.manifest);
    if (restore->status == CAIRN_OK && !restore->plan && is_read)
        restore->status = snapshot_verify(&snapshot, NULL, &restore->why);
    if (restore->status == CAIRN_OK) {
        restore->manifest = snapshot.manifest; // moves
        manifest_init(&snapshot.manifest);
    }
    snapshot_close(&snapshot);
}

static void check_in_turn(struct coord_restore *restore)
{
    do check_folder(restore);
    while (restore->status != CAIRN_OK && restore_fall_back(restore));
}

/* Proves the files before a job is given up for them; an older folder may be chosen if they are
 * damaged. */
static void restore_prove(struct coord_work *work)
{
    struct coord_restore *restore = (struct coord_restore *)work;
    while (restore->status == CAIRN_OK) {
        restore_prove_files(work);
        if (restore->status == CAIRN_OK || !restore_fall_back(restore)) return;
        manifest_release(&restore->manifest);
        check_in_turn(restore);
    }
}

/* Looks at the other snapshots in the folder of the job to be made. If they cannot be listed,
 * the new generation follows the manifest's alone. */
static void look_around(struct coord_restore *restore)
{
    const char *root = restore->cluster->storage.path;
    const char *job = restore_job_name(restore);
    const char *id = strrchr(restore->folder, '/');
    struct sentence why;
    if (snapshot_last_generation(root, job, &restore->last_generation, &why) != CAIRN_OK)
        log_warn("which generations of job %s there were is not known: %s", job, why.text);
    restore->is_its_own = id != NULL && strcmp(restore->manifest.spec.name, job) == 0 &&
                          snapshot_committed(root, job, id + 1, &why) == CAIRN_OK;
}

/* Reads manifest and files of the folder that was asked for, or chosen, and moves the manifest here. */
static void restore_check(struct coord_work *work)
{
    struct coord_restore *restore = (struct coord_restore *)work;
    if (restore->is_stored) restore->status = coord_storage_seen(restore->cluster, &restore->why);
    if (restore->folder == NULL) restore_find_latest(restore);
    if (restore->status == CAIRN_OK) check_in_turn(restore);
    if (restore->status == CAIRN_OK) look_around(restore);
}

/* On the loop: tells of one that no trusted key has signed, or whose manifest has no hash over itself. */
static void restore_warn(const struct coord_restore *restore)
{
    struct sentence what;
    if (manifest_trust(&restore->manifest, &restore->ring, &what) != CAIRN_TRUST_SIGNED)
        log_warn("%s is restored, and is %s", restore->folder, what.text);
    if (restore->manifest.unsealed)
        log_warn("the manifest of %s is of a former version, without a hash over itself: "
                 "whether it was changed cannot be told but by its content root",
                 restore->folder);
}

/* ==== proof ==== */

/* The content root of a restore, made anew: of the files, before a job that runs is given up for them; and
 * of what the shards have in memory, before the job is ready. Each tells of every bit of the state that is
 * not as it was saved, also where checksums were changed with the files; the second, of what was changed
 * since the first. Where it is another one the checksums of the blocks tell which is damaged. */

/* ---- on another thread ---- */

static cairn_status compare_roots(struct coord_restore *restore, const char *what)
{
    const struct manifest *m = &restore->manifest;
    struct hash root;
    double loss_scale;
    char has[2 * CAIRN_HASH_BYTES + 1], says[2 * CAIRN_HASH_BYTES + 1];
    CAIRN_TRY(coord_content_root(m, &restore->digests, &root, &loss_scale, &restore->why));
    if (memcmp(root.byte, m->content_root, sizeof root.byte) == 0) return CAIRN_OK;
    sodium_bin2hex(has, sizeof has, root.byte, sizeof root.byte);
    sodium_bin2hex(says, sizeof says, m->content_root, sizeof m->content_root);
    return fail_with(&restore->why, CAIRN_ERR_CHECKSUM,
                     "%s the content root %s, the manifest says %s: files or manifest were "
                     "changed since they were saved; use another snapshot",
                     what, has, says);
}

/* The hashes of files that are being read, by several threads. */
struct proof {
    struct coord_restore *restore;
    pthread_mutex_t mutex; /* of its digests */
};

static cairn_status hash_range(void *context, uint32_t thread, const struct sweep_range *range,
                               const void *elems, struct sentence *why)
{
    struct proof *proof = context;
    const struct job_spec_data *spec = &proof->restore->manifest.spec;
    const struct geometry g = geometry_of(&spec->tensors[range->tensor].shape);
    struct hash_tree tree;
    (void)thread;
    tree_init(&tree, range->first_leaf);
    backend_hash_leaves(backend_host(), elems, spec_plane_dtype(spec, range->tensor, range->plane),
                        &g, range->leaf_count, &tree);
    pthread_mutex_lock(&proof->mutex);
    const cairn_status status = coord_digests_add(&proof->restore->digests, range->tensor,
                                                  (enum plane)range->plane, &tree, why);
    pthread_mutex_unlock(&proof->mutex);
    return status;
}

/* All that the files hold. */
static cairn_status add_all(const struct job_spec_data *spec, struct sweep_ranges *ranges,
                            struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (uint32_t t = 0; t < spec->tensor_count; t++) {
        const struct geometry g = geometry_of(&spec->tensors[t].shape);
        for (uint32_t p = 1; p < CAIRN_PLANE_COUNT && status == CAIRN_OK; p++) {
            const struct sweep_range whole = { .tensor = t,
                                               .plane = p,
                                               .leaf_count = g.leaf_count };
            if (spec_planes(spec, t) & (1u << p))
                status = sweep_ranges_add(ranges, &g, dtype_size((int)spec_plane_dtype(spec, t, p)),
                                          &whole, why);
        }
    }
    return status;
}

static cairn_status hash_files(struct coord_restore *restore, const struct snapshot *snapshot)
{
    struct proof proof = { .restore = restore };
    struct sweep_ranges ranges = { 0 };
    const struct sweep sweep = { .snapshot = snapshot, .take = hash_range, .context = &proof };
    pthread_mutex_init(&proof.mutex, NULL);
    cairn_status status = add_all(&restore->manifest.spec, &ranges, &restore->why);
    if (status == CAIRN_OK) status = snapshot_sweep(&sweep, &ranges, &restore->why);
    sweep_ranges_release(&ranges);
    pthread_mutex_destroy(&proof.mutex);
    return status;
}

/* The content root is another one: which file and block are to blame, if it is they. */
static void find_damage(struct coord_restore *restore)
{
    struct snapshot snapshot;
    struct sentence why;
    cairn_status status = snapshot_open(restore->folder, &snapshot, &why);
    if (status == CAIRN_OK) {
        status = snapshot_verify(&snapshot, NULL, &why);
        snapshot_close(&snapshot);
    }
    if (!coord_restore_is_damage(status)) return;
    restore->status = status;
    restore->why = why;
}

static void judge_proof(struct coord_restore *restore, const char *what)
{
    if (restore->status != CAIRN_OK) return;
    restore->status = compare_roots(restore, what);
    if (restore->status == CAIRN_ERR_CHECKSUM) find_damage(restore);
}

/* On another thread: the content root of the files, which were verified, against the manifest's. */
static void restore_prove_files(struct coord_work *work)
{
    struct coord_restore *restore = (struct coord_restore *)work;
    struct snapshot snapshot;
    restore->status = snapshot_open(restore->folder, &snapshot, &restore->why);
    if (restore->status == CAIRN_OK) {
        restore->status = hash_files(restore, &snapshot);
        snapshot_close(&snapshot);
    }
    judge_proof(restore, "its files have");
    coord_digests_release(&restore->digests);
}

/* On another thread: that of what the shards told. */
static void restore_prove_loaded(struct coord_work *work)
{
    struct coord_restore *restore = (struct coord_restore *)work;
    judge_proof(restore, "what the shards have loaded has");
}

/* ---- on the loop ---- */

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

/* A restore of the newest snapshot of a job, which no admin asked for: a worker resumes
 * (recovery.c), or the
 * job has lost a part (recovery.c). */

/* One with results that are not finite, or of nobody that is trusted, is restored by its id alone. */
static bool pass_over(struct coord_restore *restore, const struct found_snapshot *f)
{
    const struct manifest *m = &f->manifest;
    char tensors[CAIRN_RESULTS_BYTES];
    struct sentence text, why;
    if (m->nonfinite.nonfinite != 0) {
        results_list(&m->nonfinite, &m->spec, tensors);
        sentence_set(&text, "%s, is damaged: of %" PRIu64 " elements a result is not finite: %s",
                     f->place.id, m->nonfinite.nonfinite, tensors);
    } else if (manifest_accept(m, &restore->ring, restore->waiver, &why) != CAIRN_OK) {
        sentence_set(&text, "%s, is not trusted: %s", f->place.id, why.text);
    } else {
        return false;
    }
    log_warn("job %s: passed over: %s", m->spec.name, text.text);
    if (restore->latest.passed.text[0] == '\0') restore->latest.passed = text;
    return true;
}

/* The job went back behind it, or it is of another job that had the name. Said of the newest. */
static void pass_left(struct coord_restore *restore, const struct found_snapshot *f)
{
    if (restore->latest.passed.text[0] != '\0') return;
    sentence_set(&restore->latest.passed,
                 "%s, is not of the present job's past: it went back behind that, or began "
                 "anew",
                 f->place.id);
    log_info("job %s: passed over: %s", f->manifest.spec.name, restore->latest.passed.text);
}

static struct found_snapshot *choose_latest(struct coord_restore *restore,
                                            const struct coord_found *found)
{
    for (size_t i = 0; i < found->count; i++) {
        struct found_snapshot *f = &found->list[i];
        if (f->is_left) pass_left(restore, f);
        if (f->is_left || version_compare(f->place.version, restore->latest.newest) > 0 ||
            !snapshot_place_behind(&f->place, &restore->latest.behind))
            continue;
        if (!pass_over(restore, f)) return f;
    }
    return NULL;
}

/* On another thread, the folder of a restore that has none. */
static void restore_find_latest(struct coord_restore *restore)
{
    struct coord_found found;
    const char *job = restore->job_name;
    restore->status = coord_find_snapshots(restore->cluster, job, NULL, &found, &restore->why);
    if (restore->latest.has_origin) find_line(&found, &restore->latest.origin);
    struct found_snapshot *chosen = choose_latest(restore, &found);
    if (restore->status == CAIRN_OK && chosen == NULL) {
        restore->latest.none_found = true;
        restore->status = fail_with(&restore->why, CAIRN_ERR_NOT_FOUND,
                                    "there is no whole snapshot of job %s", job);
        if (restore->latest.passed.text[0] != '\0')
            sentence_add(&restore->why,
                         " that may be taken unasked; `cairn snapshot restore %s ID` takes "
                         "one by its id; the newest, %s",
                         job, restore->latest.passed.text);
    } else if (restore->status == CAIRN_OK) {
        restore->folder = chosen->folder; // moves
        chosen->folder = NULL;
        restore->latest.behind = chosen->place;
    }
    coord_found_release(&found);
}

/* The place of a folder, which may have no manifest any more. */
static struct snapshot_place place_of(const char *folder)
{
    const char *slash = strrchr(folder, '/');
    struct snapshot_place place = { .id = "" };
    snprintf(place.id, sizeof place.id, "%s", slash != NULL ? slash + 1 : folder);
    if (!snapshot_id_parse(place.id, &place.version.generation, &place.version.step))
        place.id[0] = '\0';
    return place;
}

/* The one that was asked for by its id is damaged, as restore->why says: with `fallback` the newest that is
 * older is to be tried in its place, which is then restore->folder (true); else `why` names it. */
static bool restore_fall_back(struct coord_restore *restore)
{
    struct sentence text = restore->why, passed = restore->latest.passed;
    const cairn_status status = restore->status;
    char *folder = restore->folder;
    uint64_t bytes;
    if (!restore->is_stored || !coord_restore_is_damage(status) ||
        storage_of(folder)->stat(folder, "", &bytes, NULL) == CAIRN_ERR_NOT_FOUND)
        // a mistyped id is no damage
        return false;
    const struct snapshot_place place = place_of(folder);
    if (passed.text[0] == '\0')
        sentence_set(&passed, "%s, is damaged: %s", place.id, sentence_brief(text.text, 600).text);
    restore->latest.behind = place;
    restore->latest.newest = place.version;
    restore->folder = NULL;
    restore_find_latest(restore);
    restore->latest.passed = passed; // the newest
    const bool found = restore->status == CAIRN_OK;
    if (found && restore->fallback) {
        log_warn("job %s: passed over: %s", restore->job_name, passed.text);
        free(folder);
        return true;
    }
    restore->status = fail_with(
        &restore->why, status, "%s; %s%s%s", sentence_brief(text.text, 1000).text,
        found ? "--fallback takes " : "there is no older one of the job to fall back on",
        found ? restore->latest.behind.id : "", found ? ", the newest that is older" : "");
    restore->latest.none_found = false;
    free(restore->folder);
    restore->folder = folder;
    return false;
}

void coord_restore_say_damaged(const struct coord_restore *restore, const char *text,
                               struct sentence *out)
{
    sentence_set(out, "%s, is damaged: %s", restore->latest.behind.id,
                 sentence_brief(text, 600).text);
}

void coord_restore_passed_over(const struct coord_restore *restore, const struct sentence *damaged)
{
    struct coord_job *job = coord_job_by_id(restore->cluster, restore->job_id);
    if (job == NULL || damaged->text[0] == '\0') return;
    sentence_set(&job->snapshots.passed_over, "%s was restored; the newest snapshot, %s",
                 restore->latest.behind.id, damaged->text);
}

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

bool coord_restore_is_damage(cairn_status status)
{
    return status == CAIRN_ERR_CHECKSUM || status == CAIRN_ERR_CORRUPT ||
           status == CAIRN_ERR_MALFORMED || status == CAIRN_ERR_VERSION ||
           status == CAIRN_ERR_NOT_FOUND;
}
