/* Brings a job back: restores its newest snapshot after a loss, if the job's policy says so, or when a worker
 * asks for it. See restore.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/cluster.h"
#include "server/coordinator/restore.h"

/* ==== recovery ==== */

/* ---- a shard that stays away ---- */

/* Makes the job LOST because a shard stays away. The parts of all shards that are away count as
 * missing from the moment at which these shards went away. The parts are found again when the
 * shards come back. */
static void lose_away(struct coord_job *job, const struct coord_shard_entry *entry)
{
    CAIRN_EACH_SHARD (job, i) {
        struct coord_job_shard *s = &job->shards[i];
        if (s->away_ms != 0) s->missed_ms = s->away_ms;
    }
    coord_job_lose(job, true, "%s is away for longer than shard_loss_wait_s, %" PRIu64 " s",
                   entry->name, coord_logs_loss_wait_ms(job) / 1000);
}

static void watch_away(struct coord_job *job)
{
    const uint64_t now_ms = coord_now_ms(job->cluster);
    const uint64_t wait_ms = coord_logs_loss_wait_ms(job);
    const struct coord_shard_entry *gone = NULL;
    CAIRN_EACH_SHARD (job, i) {
        struct coord_job_shard *s = &job->shards[i];
        if (s->up || s->missed_ms != 0)
            s->away_ms = 0;
        else if (s->away_ms == 0)
            s->away_ms = now_ms + 1; // never 0
        else if (now_ms >= s->away_ms + wait_ms && !coord_mirrors_may_take(job, i))
            gone = s->entry;
    }
    job->loss.recovery.lost_ms = 0;
    job->loss.recovery.gave_up = false; // at the next loss other snapshots may exist
    job->loss.recovery.behind.id[0] = '\0';
    if (gone != NULL) lose_away(job, gone);
}

/* ---- the restore ---- */

/* Says that the chosen snapshot is damaged, and how, according to `text`. */
static void say_damaged(const struct coord_restore *restore, const char *text, struct sentence *out)
{
    sentence_set(out, "%s, is damaged: %s", restore->latest.behind.id,
                 sentence_brief(text, 600).text);
}

/* Notes that a snapshot is damaged. The next attempt takes an older snapshot. */
static void note_damage(struct coord_recovery *recovery, const struct coord_restore *restore,
                        const char *text)
{
    if (recovery->behind.id[0] == '\0') say_damaged(restore, text, &recovery->damaged);
    recovery->behind = restore->latest.behind;
}

static void on_recovered(const struct coord_restore *restore, cairn_status status, const char *text)
{
    struct coord_job *job = coord_job_by_id(restore->steps.cluster, restore->latest.of_job);
    if (job == NULL) return;
    struct coord_recovery *r = &job->loss.recovery;
    r->running = false;
    const bool touched = restore->job_id != 0; // false: the restore has not changed the job
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
    if (r->running || coord_stage(job, CAIRN_OPERATION_SNAPSHOT) != CAIRN_STAGE_NONE ||
        now_ms < r->retry_ms ||
        coord_shards_staying(job->cluster, &job->spec, r->unseen) < coord_recovery_shards(job))
        return;
    r->running = coord_restore_latest(job->cluster, job->spec.name, job->id, &r->behind, NULL,
                                      on_recovered);
    if (r->running) r->restores++;
}

bool coord_recovery_tick(struct coord_job *job)
{
    const bool waited = job->loss.recovery.waited, waits = coord_recovery_pending(job);
    if (!coord_recovery_wanted(job) && !waited) return false;
    job->loss.recovery.waited = waits;
    if (waits)
        begin_restore(job);
    else if (!waited && job->state == CAIRN_CLUSTER_JOB_RUNNING)
        watch_away(job);
    return waited && !waits;
}

/* ==== resume ==== */

/* A worker that opens a job may ask that the job's newest snapshot be restored if the job does not
 * exist or is lost. All workers that ask for this share one restore. The first worker begins this
 * restore, and workers that open the job in the meantime wait for its end. If a snapshot turns out
 * to be damaged, the snapshot before it is restored.
 *
 * The newest snapshot is restored, even if `latest` names an older one. `latest` is for people, and
 * names an older snapshot if a coordinator died after a commit, but before setting `latest`. The
 * newest snapshot is as safe, because all loaded state is judged by its checksums and by the
 * content root before anybody trains on it. So using `latest` could only lose steps. */

struct coord_resume {
    struct coord_resume *next;
    struct coord *cluster;
    char *job;               /* owned */
    struct coord_resumer by; /* the worker that wants it */
    cluster_resumed_fn ended;
    size_t damaged_count;         /* number of snapshots that were found damaged */
    struct snapshot_place behind; /* the oldest snapshot that was found damaged */
    struct sentence damaged;      /* names the newest damaged snapshot, and its damage */
};

static struct coord_resume *find_resume(const struct coord *cluster, const char *job)
{
    struct coord_resume *r = cluster->under_way.resumes;
    while (r != NULL && strcmp(r->job, job) != 0) r = r->next;
    return r;
}

static void free_resume(struct coord_resume *resume)
{
    struct coord_resume **at = &resume->cluster->under_way.resumes;
    while (*at != NULL && *at != resume) at = &(*at)->next;
    if (*at == resume) *at = resume->next;
    free(resume->job);
    free(resume);
}

/* Ends the resume. CAIRN_OK: the job exists, or there is no snapshot to restore it from. In both
 * cases the job's openers continue as if they had not asked for a restore. */
static void end_resume(struct coord_resume *resume, cairn_status status, const char *text)
{
    struct coord *cluster = resume->cluster;
    struct sentence why;
    char *job = resume->job;
    const cluster_resumed_fn ended = resume->ended;
    resume->job = NULL;
    sentence_set(&why, "%s", text); // `text` may be freed with the resume
    free_resume(resume);
    ended(cluster, job, status, why.text);
    free(job);
}

static void on_resumed(const struct coord_restore *restore, cairn_status status, const char *text);

static bool restore_next(struct coord_resume *resume)
{
    log_info("job %s: a worker wants its newest snapshot", resume->job);
    return coord_restore_latest(resume->cluster, resume->job, 0, &resume->behind, &resume->by,
                                on_resumed);
}

static void on_resumed(const struct coord_restore *restore, cairn_status status, const char *text)
{
    struct coord_resume *resume = find_resume(restore->steps.cluster, restore->job_name);
    if (resume == NULL) return;
    if (restore->latest.none_found && resume->damaged_count > 0) {
        struct sentence why;
        sentence_set(&why, "none of the %zu snapshots of job %s could be restored; the newest, %s",
                     resume->damaged_count, resume->job, resume->damaged.text);
        end_resume(resume, CAIRN_ERR_CORRUPT, why.text);
    } else if (restore->latest.none_found && restore->latest.passed.text[0] != '\0') {
        end_resume(resume, CAIRN_ERR_CORRUPT, text); // a trained job does not begin anew
    } else if (!restore->latest.none_found && coord_restore_is_damage(status)) {
        resume->behind = restore->latest.behind;
        if (resume->damaged_count++ == 0) say_damaged(restore, text, &resume->damaged);
        if (!restore_next(resume))
            end_resume(resume, CAIRN_ERR_NO_MEMORY, "no thread to restore it");
    } else { // CAIRN_ERR_EXISTS: somebody has created the job meanwhile
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

bool coord_resume_begin(struct coord *cluster, const char *job, const struct coord_resumer *by,
                        cluster_resumed_fn ended)
{
    if (find_resume(cluster, job) != NULL) return true;
    struct coord_resume *resume = calloc(1, sizeof *resume);
    if (resume == NULL) return false;
    resume->cluster = cluster;
    resume->job = strdup(job);
    resume->by = *by;
    resume->ended = ended;
    resume->next = cluster->under_way.resumes;
    cluster->under_way.resumes = resume;
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
    while (cluster->under_way.resumes != NULL) free_resume(cluster->under_way.resumes);
}
