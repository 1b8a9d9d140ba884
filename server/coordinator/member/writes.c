/* Writes at a step boundary: a worker asks for a round of its own, in which it puts planes
 * (server/core/round.h says how it ends). The generation that it begins is made durable before the round
 * can open, so that no restore takes the number again. */
#include <inttypes.h>

#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/store/saves.h"

#define GENERATION_BLOCK 16 /* made durable at a time, and as many as can be asked for at once */

/* So many that all may ask before one is answered. */
static uint64_t generations_needed(const struct cairn_cluster_job *job)
{
    uint64_t now = cairn_cluster_job_version(job).generation;
    const bool known = cairn_round_stage_of(job->core) >= CAIRN_ROUND_STEADY;
    // The shards were not heard yet: what was reserved may be used up.
    if (!known && job->reserved.generation > now) now = job->reserved.generation;
    return now + 1 + job->members.count;
}

static void begin(struct cairn_cluster_member *member)
{
    struct cairn_cluster_job *job = member->job;
    member->write.reserves = false;
    if (cairn_round_stage_of(job->core) == CAIRN_ROUND_OPEN &&
        cairn_round_contributes(job->core, member->id)) {
        cairn_sentence_set(&job->rounds.epoch_reason, "worker %s (rank %" PRIu32 ") writes",
                           member->session->name, member->rank);
    }
    const struct cairn_round_event write = { .kind = CAIRN_ROUND_WORKER_WRITE,
                                             .member = member->id };
    cairn_cluster_job_event(job, &write);
}

static void fail(struct cairn_cluster_member *member, cairn_status status, const char *text)
{
    cairn_cluster_session_error(member->session, member->write.request, status, text);
    member->write.request = 0;
    member->write.reserves = false;
}

static struct cairn_cluster_member *find_reserving(const struct cairn_cluster_job *job)
{
    struct cairn_cluster_member *member = job->members.list;
    while (member != NULL && !member->write.reserves) member = member->next_of_job;
    return member;
}

static void on_reserved(const struct cairn_cluster_saved *saved)
{
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(saved->cluster, saved->job);
    struct cairn_cluster_member *member;
    if (job == NULL) return;
    if (saved->status == CAIRN_OK && saved->number > job->reserved.generation)
        job->reserved.generation = saved->number;
    if (saved->number < job->reserved.asked) return; // more are on their way
    job->reserved.asked = 0;
    // An event may expel others: from the first again.
    while ((member = find_reserving(job)) != NULL) {
        if (saved->status == CAIRN_OK)
            begin(member);
        else
            fail(member, saved->status, saved->why);
    }
}

void cairn_cluster_member_write(struct cairn_cluster_member *member, uint32_t request)
{
    struct cairn_cluster_job *job = member->job;
    struct cairn_sentence why;
    member->write.request = request;
    if (!job->initialized) {
        cairn_sentence_set(&why, "job %s has no initial state yet: it is put, not written",
                           job->spec.name);
        fail(member, CAIRN_ERR_NOT_READY, why.text);
        return;
    }
    const uint64_t needed = generations_needed(job);
    if (job->reserved.generation >= needed) {
        begin(member);
        return;
    }
    member->write.reserves = true;
    if (job->reserved.asked >= needed) return;
    const cairn_status status = cairn_cluster_save_job(
        job, CAIRN_STORE_GENERATION, NULL, needed + GENERATION_BLOCK, on_reserved, &why);
    if (status == CAIRN_OK)
        job->reserved.asked = needed + GENERATION_BLOCK;
    else
        fail(member, status, why.text);
}

void cairn_cluster_member_unwrite(struct cairn_cluster_member *member, uint64_t round)
{
    struct cairn_cluster_job *job = member->job;
    member->write.reserves = false;
    const struct cairn_round_event unwrite = { .kind = CAIRN_ROUND_WORKER_UNWRITE,
                                               .member = member->id,
                                               .round = round };
    if (job->core != NULL && cairn_round_open_round(job->core) == round) {
        cairn_sentence_set(&job->rounds.epoch_reason,
                           "worker %s (rank %" PRIu32 ") gave up its write", member->session->name,
                           member->rank);
    }
    cairn_cluster_job_event(job, &unwrite);
}
