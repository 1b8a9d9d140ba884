/* Writes at a step boundary: a worker asks for a round of its own, in which it puts planes (round.h says how
 * it ends). The generation that it begins is made durable before the round can open, so that no
 * restore takes the number again. */
#include <inttypes.h>

#include "server/coordinator/cluster.h"

#define GENERATION_BLOCK 16 /* made durable at a time, and as many as can be asked for at once */

static cairn_status reserve(struct cairn_cluster_job *job, struct cairn_sentence *why)
{
    uint64_t now = cairn_cluster_job_version(job).generation;
    const bool known = cairn_round_stage_of(job->core) >= CAIRN_ROUND_STEADY;
    // The shards were not heard yet: what was reserved may be used up.
    if (!known && job->generation_reserved > now) now = job->generation_reserved;
    const uint64_t needed = now + 1 + job->member_count; // all may ask before one is answered
    if (job->generation_reserved >= needed) return CAIRN_OK;
    const cairn_status status = cairn_store_reserve_generation(job->cluster->store, job->id,
                                                               needed + GENERATION_BLOCK, why);
    if (status == CAIRN_OK) job->generation_reserved = needed + GENERATION_BLOCK;
    return status;
}

void cairn_cluster_member_write(struct cairn_cluster_member *member, uint32_t request)
{
    struct cairn_cluster_job *job = member->job;
    struct cairn_sentence why;
    cairn_status status = CAIRN_ERR_NOT_READY;
    cairn_sentence_set(&why, "job %s has no initial state yet: it is put, not written",
                       job->spec.name);
    if (job->initialized) status = reserve(job, &why);
    if (status != CAIRN_OK) {
        cairn_cluster_session_error(member->session, request, status, why.text);
        return;
    }
    member->write_request = request;
    if (cairn_round_stage_of(job->core) == CAIRN_ROUND_OPEN &&
        cairn_round_contributes(job->core, member->id)) {
        cairn_sentence_set(&job->epoch_reason, "worker %s (rank %" PRIu32 ") writes",
                           member->session->name, member->rank);
    }
    const struct cairn_round_event write = { .kind = CAIRN_ROUND_WORKER_WRITE,
                                             .member = member->id };
    cairn_cluster_job_event(job, &write);
}

void cairn_cluster_member_unwrite(struct cairn_cluster_member *member, uint64_t round)
{
    struct cairn_cluster_job *job = member->job;
    const struct cairn_round_event unwrite = { .kind = CAIRN_ROUND_WORKER_UNWRITE,
                                               .member = member->id,
                                               .round = round };
    if (job->core != NULL && cairn_round_open_round(job->core) == round) {
        cairn_sentence_set(&job->epoch_reason, "worker %s (rank %" PRIu32 ") gave up its write",
                           member->session->name, member->rank);
    }
    cairn_cluster_job_event(job, &unwrite);
}
