#include "server/coordinator/early.h"

#include <stdlib.h>
#include <string.h>

#include "proto/wire/messages.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"

#define HELD_MAX 64 /* in the cluster */

/* Requests whose answer depends on what shards hold, or on which shards are there. */
static const uint16_t depends[] = {
    CAIRN_MSG_DRAIN_ME,        CAIRN_MSG_JOB_AMEND,        CAIRN_MSG_JOB_DIGEST_GET,
    CAIRN_MSG_JOB_PARK,        CAIRN_MSG_JOB_REMOVE,       CAIRN_MSG_MEMBER_DRAIN,
    CAIRN_MSG_RESHARD_ASK,     CAIRN_MSG_SHARD_FORGET,     CAIRN_MSG_SNAPSHOT_CANCEL,
    CAIRN_MSG_SNAPSHOT_CREATE, CAIRN_MSG_SNAPSHOT_RESTORE, CAIRN_MSG_CLUSTER_ADOPT,
    CAIRN_MSG_CLUSTER_FORGET,
};

/* True if the answer depends on jobs that the store does not know: nobody knows which of their
 * shards have yet to come. */
static bool is_of_strangers(uint16_t type)
{
    return type == CAIRN_MSG_CLUSTER_ADOPT || type == CAIRN_MSG_CLUSTER_FORGET;
}

static bool is_told(const struct cairn_cluster *cluster)
{
    for (const struct cairn_cluster_job *job = cluster->jobs; job != NULL; job = job->next) {
        if (job->version_unknown && job->state == CAIRN_CLUSTER_JOB_RUNNING) return false;
        if (job->park.shut && !job->park.settled) return false; // taken over, and asked once more
        CAIRN_EACH_SHARD (job, i)
            if (job->stored && job->shards[i].seat->incarnation == 0) return false;
    }
    return true;
}

/* Also those that do not obey this coordinator. */
static bool are_all_here(const struct cairn_cluster *cluster)
{
    uint64_t here = 0;
    for (const struct cairn_cluster_seat *s = cluster->seats; s != NULL; s = s->next)
        here += s->session != NULL;
    return here >= (uint64_t)cluster->options->shards;
}

/* Once it is over it stays so: who goes away later is missed, and the answers say that. */
static bool is_early(struct cairn_cluster *cluster, uint16_t type)
{
    struct cairn_cluster_earlies *e = &cluster->earlies;
    const uint64_t passed_ms = uv_now(cluster->loop) - cluster->clock.started_ms;
    const bool is_lease_over = passed_ms >= (uint64_t)cluster->options->lease_timeout_ms;
    if (!e->over) e->over = is_lease_over || is_told(cluster);
    return !e->over || (is_of_strangers(type) && !is_lease_over && !are_all_here(cluster));
}

bool cairn_cluster_early_hold(struct cairn_cluster_session *session,
                              const struct cairn_frame *frame)
{
    struct cairn_cluster *cluster = session->cluster;
    struct cairn_cluster_earlies *e = &cluster->earlies;
    size_t i = 0;
    while (i < sizeof depends / sizeof *depends && depends[i] != frame->type) i++;
    if (i == sizeof depends / sizeof *depends || frame->request == 0 ||
        !is_early(cluster, frame->type))
        return false;
    struct cairn_cluster_early *early = e->count < HELD_MAX
                                            ? malloc(sizeof *early + frame->payload_bytes)
                                            : NULL;
    if (early == NULL) {
        cairn_cluster_session_error(session, frame->request, CAIRN_ERR_BUSY,
                                    "the coordinator has just started and waits for its shards; "
                                    "ask again");
        return true;
    }
    *early = (struct cairn_cluster_early) { .session = session, .frame = *frame };
    if (frame->payload_bytes > 0) memcpy(early->bytes, frame->payload, frame->payload_bytes);
    early->frame.payload = early->bytes;
    struct cairn_cluster_early **at = &e->list;
    while (*at != NULL) at = &(*at)->next;
    *at = early;
    e->count++;
    return true;
}

struct cairn_cluster_early *cairn_cluster_early_take(struct cairn_cluster *cluster)
{
    struct cairn_cluster_earlies *e = &cluster->earlies;
    struct cairn_cluster_early **at = &e->list;
    while (*at != NULL && is_early(cluster, (*at)->frame.type)) at = &(*at)->next;
    struct cairn_cluster_early *early = *at;
    if (early == NULL) return NULL;
    *at = early->next;
    e->count--;
    return early;
}

void cairn_cluster_early_forget(struct cairn_cluster *cluster,
                                const struct cairn_cluster_session *session)
{
    struct cairn_cluster_early **at = &cluster->earlies.list;
    while (*at != NULL) {
        struct cairn_cluster_early *early = *at;
        if (early->session != session) {
            at = &early->next;
            continue;
        }
        *at = early->next;
        cluster->earlies.count--;
        free(early);
    }
}
