/* Sentences for what went wrong with a chunk: what, where, and what to do. */
#include <inttypes.h>

#include "client/session.h"

/* Why a version could not be read, and how to get one that can. */
static void explain_version(const struct part *part, cairn_status status,
                            struct cairn_version newest, struct cairn_sentence *out)
{
    const char *tensor = part->job->spec.tensors[part->place.tensor].name;
    if (status == CAIRN_ERR_VERSION_GONE)
        cairn_sentence_set(out,
                           "tensor %s: version %" PRIu64 ".%" PRIu64 " is no longer kept; take the "
                           "newest (cairn_version_wait) and read all of it anew",
                           tensor, part->version.generation, part->version.step);
    else
        cairn_sentence_set(
            out,
            "tensor %s: version %" PRIu64 ".%" PRIu64 " is not published yet, the "
            "newest that was heard of is %" PRIu64 ".%" PRIu64 "; cairn_version_wait waits for it",
            tensor, part->version.generation, part->version.step, newest.generation, newest.step);
}

void cairn_explain_part(const struct part *part, cairn_status status, struct cairn_sentence *out)
{
    struct job *job = part->job;
    pthread_mutex_lock(&job->session->lock);
    const bool initialized = job->initialized, failed = job->failed == status;
    const struct cairn_version newest = job->newest;
    if (failed) *out = job->failed_why;
    pthread_mutex_unlock(&job->session->lock);
    if (failed) return;
    const char *tensor = job->spec.tensors[part->place.tensor].name;
    if (part->kind == CAIRN_CHUNK_FETCH && status == CAIRN_ERR_NOT_READY && !initialized)
        cairn_sentence_set(out,
                           "tensor %s: job %s has no state yet; rank 0 puts it (cairn_put, "
                           "cairn_init_done)",
                           tensor, job->name);
    else if (part->kind == CAIRN_CHUNK_FETCH &&
             (status == CAIRN_ERR_NOT_READY || status == CAIRN_ERR_VERSION_GONE))
        explain_version(part, status, newest, out);
    else
        cairn_sentence_set(out, "tensor %s at shard %s: %s", tensor, job->shards[part->shard].name,
                           cairn_status_text((int)status));
}
