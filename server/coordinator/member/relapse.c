#include "server/coordinator/member/relapse.h"

#include <inttypes.h>
#include <stdlib.h>

#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"

#define FIRST_MS  1000
#define FORGET_MS 600000 /* without a loss */
#define RANKS_MAX 1024   /* of a job; of more nobody is put off */

struct cairn_cluster_relapse {
    struct cairn_cluster_relapse *next; /* of the job's list */
    uint32_t rank, count;
    uint64_t lost_ms; /* cairn_cluster_now_ms: the last time */
};

static struct cairn_cluster_relapse **find(struct cairn_cluster_job *job, uint32_t rank)
{
    struct cairn_cluster_relapse **at = &job->members.relapses;
    while (*at != NULL && (*at)->rank != rank) at = &(*at)->next;
    return at;
}

static void forget(struct cairn_cluster_job *job, uint32_t rank)
{
    struct cairn_cluster_relapse **at = find(job, rank), *relapse = *at;
    if (relapse == NULL) return;
    *at = relapse->next;
    job->members.relapse_count--;
    free(relapse);
}

static uint64_t delay_ms(const struct cairn_cluster_relapse *relapse)
{
    if (relapse->count <= CAIRN_RELAPSE_FREE) return 0;
    const uint32_t twice = relapse->count - CAIRN_RELAPSE_FREE - 1;
    const uint64_t delay = twice < 16 ? (uint64_t)FIRST_MS << twice : CAIRN_RELAPSE_MAX_MS;
    return delay < CAIRN_RELAPSE_MAX_MS ? delay : CAIRN_RELAPSE_MAX_MS;
}

void cairn_cluster_relapse_lost(const struct cairn_cluster_member *member)
{
    struct cairn_cluster_job *job = member->job;
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster);
    struct cairn_cluster_relapse *relapse = *find(job, member->rank);
    if (member->has_ended_round || job->state != CAIRN_CLUSTER_JOB_RUNNING) return;
    if (relapse == NULL && job->members.relapse_count < RANKS_MAX &&
        (relapse = calloc(1, sizeof *relapse)) != NULL) {
        *relapse = (struct cairn_cluster_relapse) { job->members.relapses, member->rank, 0,
                                                    now_ms };
        job->members.relapses = relapse;
        job->members.relapse_count++;
    }
    if (relapse == NULL) return;
    if (now_ms - relapse->lost_ms >= FORGET_MS) relapse->count = 0;
    relapse->lost_ms = now_ms;
    relapse->count++;
    if (delay_ms(relapse) == 0) return;
    cairn_log_warn("job %s: rank %" PRIu32 " (%s) was lost %" PRIu32
                   " times in a row before it had ended a round: its next attach is put off for "
                   "%" PRIu64 " s, while others train",
                   job->spec.name, relapse->rank, member->session->name, relapse->count,
                   delay_ms(relapse) / 1000);
}

void cairn_cluster_relapse_over(struct cairn_cluster_member *member)
{
    if (member->has_ended_round) return;
    member->has_ended_round = true;
    forget(member->job, member->rank);
}

/* Somebody's rounds would be void. */
static bool do_others_train(const struct cairn_cluster_job *job)
{
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->phase == CAIRN_MEMBER_ATTACHED && m->has_ended_round) return true;
    return false;
}

uint64_t cairn_cluster_relapse_wait_ms(struct cairn_cluster_job *job,
                                       const struct cairn_cluster_member *member)
{
    const struct cairn_cluster_relapse *relapse = *find(job, member->rank);
    if (relapse == NULL || member->role != CAIRN_ROLE_WIRE_WORKER || !do_others_train(job) ||
        cairn_cluster_job_member(job, member->id) != NULL) // it was not lost
        return 0;
    const uint64_t passed_ms = cairn_cluster_now_ms(job->cluster) - relapse->lost_ms;
    const uint64_t delay = delay_ms(relapse);
    return passed_ms < delay ? delay - passed_ms : 0;
}

void cairn_cluster_relapse_waiting(struct cairn_cluster_job *job,
                                   const struct cairn_cluster_member *member,
                                   struct cairn_sentence *out)
{
    const struct cairn_cluster_relapse *relapse = *find(job, member->rank);
    const uint64_t left_ms = cairn_cluster_relapse_wait_ms(job, member);
    cairn_sentence_set(out,
                       "its turn in %" PRIu64 " s: rank %" PRIu32 " of job %s was lost %" PRIu32
                       " times in a row before it had ended a round, each time with the round of "
                       "the others",
                       (left_ms + 999) / 1000, member->rank, job->spec.name,
                       relapse != NULL ? relapse->count : 0);
}

void cairn_cluster_relapses_release(struct cairn_cluster_job *job)
{
    while (job->members.relapses != NULL) forget(job, job->members.relapses->rank);
}
