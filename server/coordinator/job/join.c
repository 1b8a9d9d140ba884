/* A member whose job is there joins it, if it is the same job and has room; or it is refused. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"

/* BUSY, at which a client asks again until its deadline: one that died is gone after its lease. */
static cairn_status judge_room(const struct cairn_cluster_member *member,
                               const struct cairn_cluster_job *job, struct cairn_sentence *why)
{
    const uint32_t most = job->spec.workers_max;
    uint32_t others = 0;
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        const bool is_worker = m->role == CAIRN_ROLE_WIRE_WORKER;
        others += is_worker && m->id != member->id && m->rank != member->rank;
    }
    if (most == 0 || others < most) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_BUSY,
                      "job %s has %" PRIu32 " workers, and its workers_max is %" PRIu32
                      ": raise it (`cairn job amend %s --workers MIN:MAX`), or end one",
                      job->spec.name, others, most, job->spec.name);
}

const struct cairn_cluster_member *
cairn_cluster_opening_rival(const struct cairn_cluster_member *member,
                            const struct cairn_cluster_job *job)
{
    const struct cairn_cluster_opening *mine = &member->opening;
    if (member->role != CAIRN_ROLE_WIRE_WORKER || mine->takes_over) return NULL;
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        const bool is_older_start = mine->run != 0 && m->opening.run == mine->run &&
                                    m->opening.restarts < mine->restarts;
        if (m->role == CAIRN_ROLE_WIRE_WORKER && m->rank == member->rank && m->id != member->id &&
            m->session != member->session && !is_older_start)
            return m;
    }
    return NULL;
}

static cairn_status judge_join(const struct cairn_cluster_member *member,
                               struct cairn_cluster_job *job, struct cairn_sentence *why)
{
    const struct cairn_cluster_member *same = cairn_cluster_job_member(job, member->id);
    if (job->state == CAIRN_CLUSTER_JOB_LOST)
        return cairn_fail(why, CAIRN_ERR_JOB_LOST, "job %s is %s", job->spec.name,
                          job->loss.why.text);
    if (same != NULL && same->token != member->token) {
        return cairn_fail(why, CAIRN_ERR_REFUSED, "that session number belongs to another member");
    }
    if (same == NULL && job->members.count >= 2 * (uint64_t)job->cluster->options->workers_max) {
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "job %s has %" PRIu32 " members; raise round.workers_max", job->spec.name,
                          job->members.count);
    }
    if (member->role != CAIRN_ROLE_WIRE_WORKER) return CAIRN_OK;
    if (member->opening.joins) return judge_room(member, job, why);
    cairn_sentence_set(why,
                       "job %s is another one than this spec: give the job's values, or choose "
                       "another name, or drop "
                       "it (`cairn job drop`), or change it as the last line says:\n",
                       job->spec.name);
    cairn_sentence_add(why, "%s", member->opening.differences.text);
    return CAIRN_ERR_MISMATCH;
}

void cairn_cluster_opening_refuse(struct cairn_cluster_member *member, cairn_status status,
                                  const char *text)
{
    cairn_log_info("refused to open job %s for %s %s: %s", member->job_name,
                   cairn_role_name(member->role), member->session->name, text);
    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = (int32_t)status;
    error.text = (char *)(uintptr_t)text;
    if (status == CAIRN_ERR_MISMATCH && member->opening.rows != NULL) {
        error.differences = member->opening.rows->differences;
        error.n_differences = member->opening.rows->n_differences;
    }
    cairn_cluster_session_send(member->session, CAIRN_MSG_ERROR, member->open_request, &error.base);
    cairn_cluster_member_free(member);
}

/* Hands over the requests of `same`, if it is on the same connection; on another connection the
 * peer asks again. */
static void take_over(struct cairn_cluster_member *member, struct cairn_cluster_member *same)
{
    if (same->session == member->session) {
        member->init.request = same->init.request;
        member->begin_request = same->begin_request;
        member->write.request = same->write.request;
        member->write.reserves = same->write.reserves;
        member->amend.request = same->amend.request;
        member->amend.later = same->amend.later; // moves
        same->amend.later = NULL;
        member->amend.revision = same->amend.revision;
        member->pause.ends_ms = same->pause.ends_ms;
        memcpy(member->pause.what, same->pause.what, sizeof member->pause.what);
        memcpy(member->commits.list, same->commits.list, sizeof member->commits.list);
        member->commits.count = same->commits.count;
        memcpy(member->waits.list, same->waits.list, sizeof member->waits.list);
        member->waits.count = same->waits.count;
        if (!same->tiles.arriving) member->tiles.request = same->tiles.request;
        member->tiles.world = same->tiles.world;
    }
    member->tiles.declared = same->tiles.declared;
    member->has_ended_round = same->has_ended_round;
    cairn_cluster_member_free(same);
}

void cairn_cluster_opening_join(struct cairn_cluster_member *member, struct cairn_cluster_job *job)
{
    struct cairn_sentence why;
    cairn_status status = judge_join(member, job, &why);
    if (status == CAIRN_OK) {
        member->known_to = calloc(job->shard_room, 2);
        if (member->known_to == NULL) {
            status = cairn_fail(&why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
        }
    }
    if (status != CAIRN_OK) {
        cairn_cluster_opening_refuse(member, status, why.text);
        return;
    }
    // The same session after a reconnect: the new connection takes its place, nobody else hears.
    struct cairn_cluster_member *same = cairn_cluster_job_member(job, member->id);
    if (same != NULL) take_over(member, same);
    cairn_cluster_member_forget_spec(member);
    member->tiles.known_to = member->known_to + job->shard_room;
    member->phase = CAIRN_MEMBER_JOINING;
    cairn_cluster_job_member_add(job, member);
    cairn_cluster_member_tell_shards(member);
}
