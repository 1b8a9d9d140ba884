#include "server/coordinator/restore.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/base.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/job.h"
#include "server/coordinator/members.h"
#include "server/coordinator/round.h"
#include "server/coordinator/snapshot.h"

/* ---- a shard that stays away ---- */

/* Its part counts as missed, and is found if it comes back. */
static void lose_away(struct coord_job *job, const struct coord_shard_entry *entry)
{
    CAIRN_EACH_SHARD (job, i) {
        struct coord_job_shard *s = &job->shards[i];
        if (s->away_ms != 0) s->missed_ms = s->away_ms;
    }
    coord_job_lose(job, true, "%s is away for longer than shard_loss_wait_s, %" PRIu32 " s",
                   entry->name, job->spec.policy.shard_loss_wait_s);
}

static void watch_away(struct coord_job *job)
{
    const uint64_t now_ms = coord_now_ms(job->cluster);
    const uint64_t wait_ms = (uint64_t)job->spec.policy.shard_loss_wait_s * 1000;
    const struct coord_shard_entry *gone = NULL;
    CAIRN_EACH_SHARD (job, i) {
        struct coord_job_shard *s = &job->shards[i];
        if (s->up || s->missed_ms != 0)
            s->away_ms = 0;
        else if (s->away_ms == 0)
            s->away_ms = now_ms + 1; // not 0
        else if (now_ms >= s->away_ms + wait_ms)
            gone = s->entry;
    }
    job->loss.recovery.lost_ms = 0;
    job->loss.recovery.gave_up = false; // there may be other snapshots the next time
    job->loss.recovery.behind.id[0] = '\0';
    if (gone != NULL) lose_away(job, gone);
}

/* ---- the restore ---- */

/* Notes that a snapshot is damaged: the next attempt takes an older one. */
static void note_damage(struct coord_recovery *recovery, const struct coord_restore *restore,
                        const char *text)
{
    if (recovery->behind.id[0] == '\0')
        coord_restore_say_damaged(restore, text, &recovery->damaged);
    recovery->behind = restore->latest.behind;
}

static void on_recovered(const struct coord_restore *restore, cairn_status status, const char *text)
{
    struct coord_job *job = coord_job_by_id(restore->cluster, restore->latest.of_job);
    if (job == NULL) return;
    struct coord_recovery *r = &job->loss.recovery;
    r->running = false;
    const bool touched = restore->job_id != 0; // else the job is what it was
    r->begun = r->begun || touched;
    r->unseen = restore->unseen;
    if (status == CAIRN_OK) {
        const bool is_first = r->behind.id[0] == '\0';
        coord_restore_passed_over(restore, is_first ? &restore->latest.passed : &r->damaged);
        return;
    }
    if ((!touched || r->unseen) && r->restores > 0) r->restores--;
    r->passed = restore->latest.none_found && restore->latest.passed.text[0] != '\0';
    if (restore->latest.none_found)
        r->gave_up = true;
    else if (coord_restore_is_damage(status))
        note_damage(r, restore, text);
    else
        r->retry_ms = coord_now_ms(job->cluster) +
                      (uint64_t)job->cluster->options->lease_timeout_ms;
    if (job->state != CAIRN_CLUSTER_JOB_LOST) return;
    struct sentence advice;
    coord_recovery_advise(job, &advice);
    sentence_set(&job->loss.why, "lost: %s; ", r->why);
    if (!restore->latest.none_found || restore->latest.passed.text[0] != '\0')
        sentence_add(&job->loss.why, "restoring failed: %s; ", sentence_brief(text, 1000).text);
    sentence_add(&job->loss.why, "%s", advice.text);
    log_warn("job %s is %s", job->spec.name, job->loss.why.text);
}

static void begin_restore(struct coord_job *job)
{
    struct coord_recovery *r = &job->loss.recovery;
    const uint64_t now_ms = coord_now_ms(job->cluster);
    if (r->running || job->snapshots.running != NULL || now_ms < r->retry_ms ||
        coord_shards_staying(job->cluster, &job->spec, r->unseen) < coord_recovery_shards(job))
        return;
    r->running = coord_restore_latest(job->cluster, job->spec.name, job->id, &r->behind,
                                      on_recovered);
    if (r->running) r->restores++;
}

void coord_recovery_tick(struct coord_job *job)
{
    const bool waited = job->loss.recovery.waited;
    if (!coord_recovery_wanted(job) && !waited) return;
    job->loss.recovery.waited = coord_recovery_pending(job);
    if (job->loss.recovery.waited)
        begin_restore(job);
    else if (waited) // its parts came back, or nothing more is tried
        coord_openings_advance(job->cluster);
    else if (job->state == CAIRN_CLUSTER_JOB_RUNNING)
        watch_away(job);
}

cairn_status coord_recovery_keep(struct job_spec_data *spec, const struct job_spec_data *now)
{
    if (policy_same(&spec->policy, &now->policy) && spec->workers_min == now->workers_min &&
        spec->workers_max == now->workers_max)
        return CAIRN_OK;
    const cairn_status status = spec_note_former(spec); // workers may come with it as it was
    if (status != CAIRN_OK) return status;
    spec->policy = now->policy;
    spec->workers_min = now->workers_min;
    spec->workers_max = now->workers_max;
    return CAIRN_OK;
}

/* ==== replace ==== */

/* The job that is there goes, and the one of the snapshot is made on the shards, in a new generation. */

uint64_t coord_restore_next_generation(const struct coord_restore *restore,
                                       const struct coord_job *old)
{
    uint64_t newest = restore->manifest.generation;
    if (restore->last_generation > newest) newest = restore->last_generation;
    if (old == NULL) return newest + 1;
    const uint64_t now = coord_job_version(old).generation;
    if (now > newest) newest = now;
    if (old->reserved.generation > newest) newest = old->reserved.generation;
    return newest + 1;
}

/* Keeps what outlives the former job: its number, its epochs and rounds, and that no generation
 * comes twice. */
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

cairn_status coord_restore_judge_replace(const struct coord_restore *restore,
                                         const struct coord_job *old, struct sentence *why)
{
    const struct manifest *m = &restore->manifest;
    if (restore->latest.of_job != 0 &&
        (old == NULL || old->id != restore->latest.of_job || old->state != CAIRN_CLUSTER_JOB_LOST))
        return fail_with(why, CAIRN_ERR_CANCELED,
                         "job %s was lost, and is not any more: it needs no restore", m->spec.name);
    if (restore->latest.ended != NULL && restore->latest.of_job == 0 && old != NULL &&
        old->state != CAIRN_CLUSTER_JOB_LOST)
        return fail_with(why, CAIRN_ERR_EXISTS, "job %s is there again", old->spec.name);
    if (old != NULL && old->snapshots.running != NULL) return coord_snapshot_refuse(old, why);
    if (old != NULL && (old->extension.staged_job != NULL || old->amends.amending != NULL ||
                        old->state == CAIRN_CLUSTER_JOB_CREATING)) {
        return fail_with(why, CAIRN_ERR_BUSY, "job %s is being made, amended or restored",
                         m->spec.name);
    }
    if (old != NULL && old->loss.behind)
        return fail_with(why, CAIRN_ERR_NOT_READY, "job %s is %s", old->spec.name,
                         old->loss.why.text);
    if (coord_job_is_strange(restore->cluster, m->spec.name, why)) return CAIRN_ERR_NOT_READY;
    if (coord_snapshot_removing(restore->cluster, restore->folder))
        return fail_with(why, CAIRN_ERR_BUSY, "%s is being removed", restore->folder);
    return coord_judge_workers(restore->cluster, coord_restore_spec(restore), why);
}

/* Every shard will tell of what it has loaded. */
static cairn_status await_parts(struct coord_restore *restore, const struct coord_job *restored,
                                struct sentence *why)
{
    restore->parts = malloc(restored->layout->shard_count);
    if (restore->parts == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    memset(restore->parts, CAIRN_PART_AWAITED, restored->layout->shard_count);
    restore->number = coord_snapshot_number();
    return CAIRN_OK;
}

cairn_status coord_restore_replace(struct coord_restore *restore, struct coord_job *old,
                                   cluster_gather_fn on_made, struct sentence *why)
{
    struct manifest *m = &restore->manifest;
    const struct job_spec_data *spec = coord_restore_spec(restore);
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
    const struct coord_job_load load = { .snapshot_path = restore->folder,
                                         .digest = restore->number,
                                         .version = { restored->generation, m->step },
                                         .last = &last };
    if (old != NULL) {
        coord_restore_replaces(restore, old);
        remove_old(old, restored, restore->folder);
    }
    coord_halts_restored(restored, &m->nonfinite);
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

/* ==== resume ==== */

/* Workers that open a job with the wish that its newest snapshot is restored, where there is no such job or
 * it is lost. One restore for all who wish it: the first begins it, those who come meanwhile wait. A snapshot
 * that turns out to be damaged gives way to the one before it.
 *
 * The newest, and not the one that `latest` names: that word is for people and may be behind, where a
 * coordinator died between a commit and its word. All that is loaded is judged by its checksums and by the
 * content root before anybody trains on it, so that the word could only lose steps. */

struct coord_resume {
    struct coord_resume *next;
    struct coord *cluster;
    char *job;                    /* owned */
    size_t damaged_count;         /* of the newest */
    struct snapshot_place behind; /* the oldest of these */
    struct sentence damaged;      /* the newest of these, and how */
};

static struct coord_resume *find_resume(const struct coord *cluster, const char *job)
{
    struct coord_resume *r = cluster->resumes;
    while (r != NULL && strcmp(r->job, job) != 0) r = r->next;
    return r;
}

static void free_resume(struct coord_resume *resume)
{
    struct coord_resume **at = &resume->cluster->resumes;
    while (*at != NULL && *at != resume) at = &(*at)->next;
    if (*at == resume) *at = resume->next;
    free(resume->job);
    free(resume);
}

/* CAIRN_OK: there is the job, or nothing to restore it from; they go on as if they had wished nothing. */
static void end_resume(struct coord_resume *resume, cairn_status status, const char *text)
{
    struct coord *cluster = resume->cluster;
    struct sentence why;
    char *job = resume->job;
    resume->job = NULL;
    sentence_set(&why, "%s", text); // it may be the resume's own
    free_resume(resume);
    coord_openers_resumed(cluster, job, status, why.text);
    free(job);
    coord_openings_advance(cluster);
}

static void end_damaged(struct coord_resume *resume)
{
    struct sentence why;
    sentence_set(&why, "none of the %zu snapshots of job %s could be restored; the newest, %s",
                 resume->damaged_count, resume->job, resume->damaged.text);
    end_resume(resume, CAIRN_ERR_CORRUPT, why.text);
}

static void on_resumed(const struct coord_restore *restore, cairn_status status, const char *text);

static bool restore_next(struct coord_resume *resume)
{
    log_info("job %s: a worker wants its newest snapshot", resume->job);
    return coord_restore_latest(resume->cluster, resume->job, 0, &resume->behind, on_resumed);
}

static void on_resumed(const struct coord_restore *restore, cairn_status status, const char *text)
{
    struct coord_resume *resume = find_resume(restore->cluster, restore->job_name);
    if (resume == NULL) return;
    if (restore->latest.none_found && resume->damaged_count > 0) {
        end_damaged(resume);
    } else if (restore->latest.none_found && restore->latest.passed.text[0] != '\0') {
        end_resume(resume, CAIRN_ERR_CORRUPT, text); // it was trained: it does not begin anew
    } else if (!restore->latest.none_found && coord_restore_is_damage(status)) {
        resume->behind = restore->latest.behind;
        if (resume->damaged_count++ == 0)
            coord_restore_say_damaged(restore, text, &resume->damaged);
        if (!restore_next(resume))
            end_resume(resume, CAIRN_ERR_NO_MEMORY, "no thread to restore it");
    } else { // EXISTS: somebody has made the job meanwhile
        const bool fine = restore->latest.none_found || status == CAIRN_ERR_EXISTS;
        if (restore->latest.none_found)
            log_info("job %s: there is no snapshot of it in %s", resume->job,
                     resume->cluster->storage.path);
        const bool is_first = resume->damaged_count == 0;
        if (status == CAIRN_OK)
            coord_restore_passed_over(restore,
                                      is_first ? &restore->latest.passed : &resume->damaged);
        end_resume(resume, fine ? CAIRN_OK : status, text);
    }
}

bool coord_resume_begin(struct coord *cluster, const char *job)
{
    if (find_resume(cluster, job) != NULL) return true;
    struct coord_resume *resume = calloc(1, sizeof *resume);
    if (resume == NULL) return false;
    resume->cluster = cluster;
    resume->job = strdup(job);
    resume->next = cluster->resumes;
    cluster->resumes = resume;
    if (resume->job != NULL && restore_next(resume)) return true;
    free_resume(resume);
    return false;
}

bool coord_resuming(const struct coord *cluster, const char *job)
{
    return find_resume(cluster, job) != NULL;
}

void coord_resumes_close(struct coord *cluster)
{
    while (cluster->resumes != NULL) free_resume(cluster->resumes);
}
