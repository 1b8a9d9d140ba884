/* Workers that open a job with the wish that its newest snapshot is restored, where there is no such job or
 * it is lost. One restore for all who wish it: the first begins it, those who come meanwhile wait. A snapshot
 * that turns out to be damaged gives way to the one before it. */
#include <stdlib.h>
#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/requests.h"

struct cairn_cluster_resume {
    struct cairn_cluster_resume *next;
    struct cairn_cluster *cluster;
    /* owned */
    char *job;
    char **folders; /* [count], the newest first */
    size_t count, at;
    struct cairn_sentence why; /* of the newest that could not be restored */
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
    for (size_t i = 0; i < resume->count; i++) free(resume->folders[i]);
    free(resume->folders);
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

static bool is_damage(cairn_status status)
{
    return status == CAIRN_ERR_CORRUPT || status == CAIRN_ERR_CHECKSUM ||
           status == CAIRN_ERR_MALFORMED || status == CAIRN_ERR_NOT_FOUND;
}

static void restore_next(struct cairn_cluster_resume *resume);

static void on_restored(struct cairn_cluster *cluster, const char *job, cairn_status status,
                        const char *text)
{
    struct cairn_cluster_resume *resume = find(cluster, job);
    if (resume == NULL) return;
    if (is_damage(status)) {
        if (resume->at++ == 0) cairn_sentence_set(&resume->why, "%s", text);
        restore_next(resume);
        return;
    }
    // EXISTS: somebody has made the job meanwhile.
    end(resume, status == CAIRN_ERR_EXISTS ? CAIRN_OK : status, text);
}

static void restore_next(struct cairn_cluster_resume *resume)
{
    struct cairn_sentence why;
    if (resume->at == resume->count) {
        cairn_sentence_set(
            &why,
            "none of the %zu snapshots of job %s could be restored, the newest because: "
            "%s",
            resume->count, resume->job, resume->why.text);
        end(resume, CAIRN_ERR_CORRUPT, why.text);
        return;
    }
    cairn_log_info("job %s: a worker wants its newest snapshot, %s", resume->job,
                   resume->folders[resume->at]);
    const cairn_status status = cairn_cluster_restore_resume(
        resume->cluster, resume->job, resume->folders[resume->at], on_restored, &why);
    if (status != CAIRN_OK) end(resume, status, why.text);
}

static void on_found(void *context, cairn_status status, const char *text, char **folders,
                     size_t count)
{
    struct cairn_cluster_resume *resume = context;
    resume->folders = folders;
    resume->count = count;
    if (resume->cluster->closing) return; // it is freed with the cluster
    if (status != CAIRN_OK || count == 0)
        end(resume, status, text);
    else
        restore_next(resume);
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
    if (resume->job != NULL && cairn_cluster_snapshots_find(cluster, job, on_found, resume))
        return true;
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
