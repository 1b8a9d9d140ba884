/* Workers that open a job with the wish that its newest snapshot is restored, where there is no such job or
 * it is lost. One restore for all who wish it: the first begins it, those who come meanwhile wait. A snapshot
 * that turns out to be damaged gives way to the one before it.
 *
 * The newest, and not the one that `latest` names: that word is for people and may be behind, where a
 * coordinator died between a commit and its word. All that is loaded is judged by its checksums and by the
 * content root before anybody trains on it, so that the word could only lose steps. */
#include <stdlib.h>
#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/restore/restore.h"
#include "server/coordinator/restore/resume.h"
#include "server/coordinator/snapshot/find.h"

struct cairn_cluster_resume {
    struct cairn_cluster_resume *next;
    struct cairn_cluster *cluster;
    char *job;                          /* owned */
    size_t damaged_count;               /* of the newest */
    struct cairn_snapshot_place behind; /* the oldest of these */
    struct cairn_sentence damaged;      /* the newest of these, and how */
};

static struct cairn_cluster_resume *find(const struct cairn_cluster *cluster, const char *job)
{
    struct cairn_cluster_resume *r = cluster->resumes;
    while (r != NULL && strcmp(r->job, job) != 0) r = r->next;
    return r;
}

static void free_resume(struct cairn_cluster_resume *resume)
{
    struct cairn_cluster_resume **at = &resume->cluster->resumes;
    while (*at != NULL && *at != resume) at = &(*at)->next;
    if (*at == resume) *at = resume->next;
    free(resume->job);
    free(resume);
}

/* CAIRN_OK: there is the job, or nothing to restore it from; they go on as if they had wished nothing. */
static void end(struct cairn_cluster_resume *resume, cairn_status status, const char *text)
{
    struct cairn_cluster *cluster = resume->cluster;
    struct cairn_sentence why;
    char *job = resume->job;
    resume->job = NULL;
    cairn_sentence_set(&why, "%s", text); // it may be the resume's own
    free_resume(resume);
    cairn_cluster_openers_resumed(cluster, job, status, why.text);
    free(job);
    cairn_cluster_openings_advance(cluster);
}

static void end_damaged(struct cairn_cluster_resume *resume)
{
    struct cairn_sentence why;
    cairn_sentence_set(&why,
                       "none of the %zu snapshots of job %s could be restored; the newest, %s",
                       resume->damaged_count, resume->job, resume->damaged.text);
    end(resume, CAIRN_ERR_CORRUPT, why.text);
}

static void on_restored(const struct cairn_cluster_restore *restore, cairn_status status,
                        const char *text);

static bool restore_next(struct cairn_cluster_resume *resume)
{
    cairn_log_info("job %s: a worker wants its newest snapshot", resume->job);
    return cairn_cluster_restore_latest(resume->cluster, resume->job, 0, &resume->behind,
                                        on_restored);
}

static void on_restored(const struct cairn_cluster_restore *restore, cairn_status status,
                        const char *text)
{
    struct cairn_cluster_resume *resume = find(restore->cluster, restore->job_name);
    if (resume == NULL) return;
    if (restore->latest.none_found && resume->damaged_count > 0) {
        end_damaged(resume);
    } else if (restore->latest.none_found && restore->latest.passed.text[0] != '\0') {
        end(resume, CAIRN_ERR_CORRUPT, text); // it was trained: it does not begin anew
    } else if (!restore->latest.none_found && cairn_cluster_restore_is_damage(status)) {
        resume->behind = restore->latest.behind;
        if (resume->damaged_count++ == 0)
            cairn_cluster_restore_say_damaged(restore, text, &resume->damaged);
        if (!restore_next(resume)) end(resume, CAIRN_ERR_NO_MEMORY, "no thread to restore it");
    } else { // EXISTS: somebody has made the job meanwhile
        const bool fine = restore->latest.none_found || status == CAIRN_ERR_EXISTS;
        if (restore->latest.none_found)
            cairn_log_info("job %s: there is no snapshot of it in %s", resume->job,
                           resume->cluster->storage.path);
        const bool is_first = resume->damaged_count == 0;
        if (status == CAIRN_OK)
            cairn_cluster_restore_passed_over(restore, is_first ? &restore->latest.passed
                                                                : &resume->damaged);
        end(resume, fine ? CAIRN_OK : status, text);
    }
}

bool cairn_cluster_resume_begin(struct cairn_cluster *cluster, const char *job)
{
    if (find(cluster, job) != NULL) return true;
    struct cairn_cluster_resume *resume = calloc(1, sizeof *resume);
    if (resume == NULL) return false;
    resume->cluster = cluster;
    resume->job = strdup(job);
    resume->next = cluster->resumes;
    cluster->resumes = resume;
    if (resume->job != NULL && restore_next(resume)) return true;
    free_resume(resume);
    return false;
}

bool cairn_cluster_resuming(const struct cairn_cluster *cluster, const char *job)
{
    return find(cluster, job) != NULL;
}

void cairn_cluster_resumes_close(struct cairn_cluster *cluster)
{
    while (cluster->resumes != NULL) free_resume(cluster->resumes);
}
