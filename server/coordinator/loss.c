#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/restore.h"

/* ==== loss ==== */

/* Handles a job that is lost or behind its shards: what is reported about the job, and whether the
 * job is restored without an operator (restore.h). */

/* ---- what comes next ---- */

/* True if the job's on_shard_loss asks for a restore. */
static bool recovery_wanted(const struct coord_job *job)
{
    return job->spec.policy.on_shard_loss == CAIRN_SHARD_LOSS_RESTORE_LATEST;
}

bool coord_recovery_pending(const struct coord_job *job)
{
    const struct coord_recovery *r = &job->loss.recovery;
    if (job->state != CAIRN_CLUSTER_JOB_LOST || job->loss.behind || !recovery_wanted(job))
        return false;
    if (r->running) return true;
    return !r->gave_up && r->restores < CAIRN_RESTORES_MAX && (job->loss.may_return || r->begun);
}

/* True if the job has waited for all its shards so long that it may be restored over fewer
 * shards. */
static bool takes_fewer(const struct coord_job *job)
{
    const struct coord_options *options = job->cluster->options;
    const uint64_t lost_ms = job->loss.recovery.lost_ms;
    return options->shards_min > 0 && job->state == CAIRN_CLUSTER_JOB_LOST && lost_ms != 0 &&
           recovery_wanted(job) &&
           coord_now_ms(job->cluster) + 1 - lost_ms >= (uint64_t)options->shards_wait_ms;
}

uint32_t coord_recovery_shards(const struct coord_job *job)
{
    const struct coord_options *options = job->cluster->options;
    const uint32_t wanted = (uint32_t)options->shards, least = (uint32_t)options->shards_min;
    uint32_t staying = 0;
    CAIRN_EACH_SHARD (job, i) staying += !job->shards[i].entry->leaving;
    if (staying == 0 || staying > wanted) staying = wanted;
    if (takes_fewer(job)) {
        const uint32_t here = coord_shards_staying(job->cluster, &job->spec, false);
        if (here < staying) staying = here > least ? here : least < staying ? least : staying;
    }
    return plan_job_shards(&job->spec, staying);
}

static void advise_to_wait(const struct coord_job *job, struct sentence *out)
{
    const uint32_t count = coord_recovery_shards(job);
    sentence_set(out, "its newest snapshot is restored by itself (on_shard_loss)");
    if (coord_shards_staying(job->cluster, &job->spec, false) < count) {
        sentence_add(out, ", once %" PRIu32 " shard%s here", count, count == 1 ? " is" : "s are");
        // Tells the operator how the job could continue with fewer shards.
        const struct coord_options *options = job->cluster->options;
        if (options->shards_min == 0)
            sentence_add(out, ", or cluster.shards_min allows fewer");
        else if (!takes_fewer(job))
            sentence_add(out,
                         ", or over those that are here, %" PRId64
                         " at least, when it has waited for cluster.shards_wait",
                         options->shards_min);
    } else if (job->loss.recovery.unseen)
        sentence_add(out, ", once it is mounted at every shard (`cairn cluster status` shows "
                          "where snapshots cannot be saved)");
}

void coord_recovery_advise(const struct coord_job *job, struct sentence *out)
{
    const char *name = job->spec.name;
    if (coord_recovery_pending(job)) {
        advise_to_wait(job, out);
        return;
    }
    out->text[0] = '\0';
    if (recovery_wanted(job) && job->loss.recovery.gave_up && job->loss.recovery.passed) {
        sentence_add(out,
                     "on_shard_loss takes none of its snapshots unasked: fix what is reported of "
                     "them, or restore one by its id as reported there; `cairn job drop %s` gives "
                     "it up, so that it may begin anew",
                     name);
        return;
    }
    if (recovery_wanted(job) && job->loss.recovery.gave_up) {
        sentence_add(out,
                     "on_shard_loss finds no whole snapshot of it: `cairn snapshot restore %s "
                     "latest` tries again, once one is made whole; `cairn job drop %s` gives it "
                     "up, so that it may begin anew",
                     name, name);
        return;
    }
    if (recovery_wanted(job) && job->loss.recovery.restores >= CAIRN_RESTORES_MAX)
        sentence_add(out,
                     "on_shard_loss has restored it %d times without a step applied in "
                     "between, and waits now; ",
                     CAIRN_RESTORES_MAX);
    sentence_add(out,
                 "restore a snapshot with `cairn snapshot restore %s ID` (`cairn snapshot "
                 "list %s` shows which there are)",
                 name, name);
}

/* ---- the loss ---- */

/* Stops a job whose job->loss.why is set. */
static void stop_lost_job(struct coord_job *job)
{
    job->state = CAIRN_CLUSTER_JOB_LOST;
    log_error("job %s is %s", job->spec.name, job->loss.why.text);
    coord_event_note(job->cluster, CAIRN_EVENT_JOB_LOST, job->spec.name, NULL, "%s",
                     job->loss.why.text);
    job->cluster->callbacks->lost(job);
}

void coord_job_behind(struct coord_job *job, const char *kind, const char *name, const char *what)
{
    sentence_set(&job->loss.why,
                 "behind: %s %s has seen a higher %s of it than the coordinator's store, which is "
                 "an older copy; nothing is done with it until `cairn cluster adopt` takes what "
                 "the shards hold, or the coordinator gets its newest store back",
                 kind, name, what);
    job->loss.behind = true;
    job->loss.may_return = false;
    stop_lost_job(job);
}

void coord_job_lose(struct coord_job *job, bool may_return, const char *format, ...)
{
    va_list args;
    struct sentence advice;
    char what[CAIRN_SENTENCE_BYTES / 2];
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    job->loss.behind = false;
    job->loss.may_return = may_return;
    job->state = CAIRN_CLUSTER_JOB_LOST;
    // If the job has applied a step since its generation began, earlier restores and failures no
    // longer count.
    if (coord_job_version(job).step > job->base_step)
        job->loss.recovery = (struct coord_recovery) { .running = job->loss.recovery.running };
    if (job->loss.recovery.lost_ms == 0)
        job->loss.recovery.lost_ms = coord_now_ms(job->cluster) + 1; // never 0
    snprintf(job->loss.recovery.why, sizeof job->loss.recovery.why, "%.*s",
             (int)sizeof job->loss.recovery.why - 1,
             sentence_brief(what, sizeof job->loss.recovery.why - 1).text);
    coord_recovery_advise(job, &advice);
    sentence_set(&job->loss.why, "lost: %s; %s", what, advice.text);
    const bool pending = coord_recovery_pending(job);
    stop_lost_job(job);
    if (pending) coord_job_keep_pauses(job);
    struct sentence why;
    sentence_set(&why, "job %s is %s", job->spec.name, job->loss.why.text);
    while (job->members.list != NULL)
        coord_member_put_out(job->members.list,
                             pending ? CAIRN_ERR_ROLLED_BACK : CAIRN_ERR_JOB_LOST, why.text);
}

void coord_job_seen(struct coord_job *job, const char *kind, const char *name, uint64_t epoch)
{
    const struct marks ours = { .epoch = job->epoch }, seen = { .epoch = epoch };
    const char *what = marks_behind(&ours, &seen);
    if (what == NULL || job->state == CAIRN_CLUSTER_JOB_CREATING || job->loss.behind) return;
    coord_job_behind(job, kind, name, what);
}

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
            s->away_ms = now_ms + 1; // never 0
        else if (now_ms >= s->away_ms + wait_ms)
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

void coord_recovery_tick(struct coord_job *job)
{
    const bool waited = job->loss.recovery.waited;
    if (!recovery_wanted(job) && !waited) return;
    job->loss.recovery.waited = coord_recovery_pending(job);
    if (job->loss.recovery.waited)
        begin_restore(job);
    else if (waited) // the job's parts are back, or no further restore is tried
        coord_openings_advance(job->cluster);
    else if (job->state == CAIRN_CLUSTER_JOB_RUNNING)
        watch_away(job);
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
    char *job;                    /* owned */
    struct coord_resumer by;      /* the worker that wants it */
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
    resume->job = NULL;
    sentence_set(&why, "%s", text); // `text` may be freed with the resume
    free_resume(resume);
    coord_openers_resumed(cluster, job, status, why.text);
    free(job);
    coord_openings_advance(cluster);
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

bool coord_resume_begin(struct coord *cluster, const char *job, const struct coord_resumer *by)
{
    if (find_resume(cluster, job) != NULL) return true;
    struct coord_resume *resume = calloc(1, sizeof *resume);
    if (resume == NULL) return false;
    resume->cluster = cluster;
    resume->job = strdup(job);
    resume->by = *by;
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
