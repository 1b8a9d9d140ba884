/* Sentences for what went wrong with a chunk: what, where, and what to do. */
#include <inttypes.h>

#include "client/job.h"

/* Why a version could not be read, and how to get one that can. */
static void explain_version(const struct parcel *parcel, cairn_status status,
                            struct cairn_version newest, struct cairn_sentence *out)
{
    const char *tensor = parcel->job->spec.tensors[parcel->place.tensor].name;
    if (status == CAIRN_ERR_VERSION_GONE)
        cairn_sentence_set(
            out,
            "tensor %s: version %" PRIu64 ".%" PRIu64
            " is no longer kept; take the newest (cairn_version_wait) and read all of it anew",
            tensor, parcel->version.generation, parcel->version.step);
    else
        cairn_sentence_set(out,
                           "tensor %s: version %" PRIu64 ".%" PRIu64
                           " is not published yet, the newest that was heard of is %" PRIu64
                           ".%" PRIu64 "; cairn_version_wait waits for it",
                           tensor, parcel->version.generation, parcel->version.step,
                           newest.generation, newest.step);
}

void cairn_explain_parcel(const struct parcel *parcel, cairn_status status,
                          struct cairn_sentence *out)
{
    struct job *job = parcel->job;
    pthread_mutex_lock(&job->session->lock);
    const bool initialized = job->known.initialized, failed = job->failure.status == status;
    const struct cairn_version newest = job->known.newest;
    if (failed) *out = job->failure.why;
    pthread_mutex_unlock(&job->session->lock);
    if (failed) return;
    const char *tensor = job->spec.tensors[parcel->place.tensor].name;
    if (parcel->kind == CAIRN_CHUNK_FETCH && status == CAIRN_ERR_NOT_READY && !initialized)
        cairn_sentence_set(
            out, "tensor %s: job %s has no state yet; rank 0 puts it (cairn_put, cairn_init_done)",
            tensor, job->name);
    else if (parcel->kind == CAIRN_CHUNK_FETCH &&
             (status == CAIRN_ERR_NOT_READY || status == CAIRN_ERR_VERSION_GONE))
        explain_version(parcel, status, newest, out);
    else if (parcel->kind == CAIRN_CHUNK_PUT && status == CAIRN_ERR_EXISTS && !initialized)
        cairn_sentence_set(out,
                           "tensor %s at shard %s: it was put with other values before; give "
                           "those, or drop the job (`cairn job drop %s`) to begin anew",
                           tensor, job->shards.links[parcel->shard]->name, job->name);
    else
        cairn_sentence_set(out, "tensor %s at shard %s: %s", tensor,
                           job->shards.links[parcel->shard]->name, cairn_status_text((int)status));
}

/* Chunks of the job that a shard has not answered. *via_out: the other shard that one of them went to, which
 * relays; or NULL. */
static uint32_t count_open(const struct job *job, uint32_t shard, const struct shard_link **via_out)
{
    uint32_t count = 0;
    *via_out = NULL;
    for (uint32_t i = 0; i < job->parcels.count; i++) {
        const struct parcel *parcel = job->parcels.all[i];
        if (parcel->op == NULL || parcel->answered || parcel->shard != shard) continue;
        if (parcel->via != shard) *via_out = job->shards.links[parcel->via];
        count++;
    }
    return count;
}

/* "shard s1 (5 chunks, through shard s0, not connected)" */
static void add_awaited(const struct shard_link *owner, uint32_t open, const struct shard_link *via,
                        struct cairn_sentence *out)
{
    const struct shard_link *asked = via != NULL ? via : owner;
    cairn_sentence_add(out, "%sshard %s (%u chunks", out->text[0] != '\0' ? ", " : "", owner->name,
                       open);
    if (via != NULL) cairn_sentence_add(out, ", through shard %s", via->name);
    cairn_sentence_add(out, "%s)", asked->conn.peer == NULL ? ", not connected" : "");
}

static void list_awaited(const struct job *job, struct cairn_sentence *out)
{
    for (uint32_t i = 0; i < job->shards.count; i++) {
        const struct shard_link *via;
        const uint32_t open = count_open(job, i, &via);
        if (open > 0) add_awaited(job->shards.links[i], open, via, out);
    }
}

void cairn_explain_awaited(struct job *job)
{
    struct session *s = job->session;
    struct cairn_sentence awaited = { "" };
    pthread_mutex_lock(&s->lock);
    const bool asked = job->awaited.asked;
    pthread_mutex_unlock(&s->lock);
    if (!asked) return;
    list_awaited(job, &awaited);
    pthread_mutex_lock(&s->lock);
    job->awaited.text = awaited;
    job->awaited.asked = false;
    job->awaited.told = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}
