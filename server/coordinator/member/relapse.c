#include "server/coordinator/member/relapse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/fabric/fabric.h"
#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"

#define FIRST_MS    1000
#define FORGET_MS   600000 /* without a loss */
#define RECORDS_MAX 2048   /* of a job; of more nobody is put off */

/* The losses of a host, or of a rank. */
struct cairn_cluster_relapse {
    struct cairn_cluster_relapse *next; /* of the job's list */
    bool is_rank;
    bool is_wide; /* of a rank: on several hosts */
    uint32_t rank, count;
    char host[CAIRN_FABRIC_HOST_BYTES]; /* of a rank: the first; empty: not known */
    uint64_t lost_ms;                   /* cairn_cluster_now_ms: the last time */
    uint64_t attaches;                  /* of the job by then */
};

static void host_of(const struct cairn_cluster_member *member, char host[CAIRN_FABRIC_HOST_BYTES])
{
    const struct cairn_cluster_session *session = member->session;
    if (!cairn_fabric_address_host(session->fabric_address, session->fabric_address_bytes, host,
                                   CAIRN_FABRIC_HOST_BYTES))
        host[0] = '\0';
}

/* `host` NULL: of the rank. */
static struct cairn_cluster_relapse **find(struct cairn_cluster_job *job, const char *host,
                                           uint32_t rank)
{
    struct cairn_cluster_relapse **at = &job->members.relapses;
    for (; *at != NULL; at = &(*at)->next)
        if (host == NULL ? (*at)->is_rank && (*at)->rank == rank
                         : !(*at)->is_rank && strcmp((*at)->host, host) == 0)
            break;
    return at;
}

static void forget(struct cairn_cluster_job *job, struct cairn_cluster_relapse **at)
{
    struct cairn_cluster_relapse *relapse = *at;
    if (relapse == NULL) return;
    *at = relapse->next;
    job->members.relapse_count--;
    free(relapse);
}

/* Nobody counts any more who was lost so long ago: a host that never comes again is not forgotten
 * otherwise. */
static void forget_old(struct cairn_cluster_job *job)
{
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster);
    struct cairn_cluster_relapse **at = &job->members.relapses;
    while (*at != NULL) {
        if (now_ms - (*at)->lost_ms > FORGET_MS)
            forget(job, at);
        else
            at = &(*at)->next;
    }
}

static struct cairn_cluster_relapse *get(struct cairn_cluster_job *job, bool is_rank,
                                         const char *host, uint32_t rank)
{
    struct cairn_cluster_relapse *relapse = *find(job, is_rank ? NULL : host, rank);
    if (relapse == NULL && job->members.relapse_count == RECORDS_MAX) forget_old(job);
    if (relapse != NULL || job->members.relapse_count == RECORDS_MAX ||
        (relapse = calloc(1, sizeof *relapse)) == NULL)
        return relapse;
    relapse->next = job->members.relapses;
    relapse->is_rank = is_rank;
    relapse->rank = rank;
    snprintf(relapse->host, sizeof relapse->host, "%s", host);
    relapse->lost_ms = cairn_cluster_now_ms(job->cluster);
    job->members.relapses = relapse;
    job->members.relapse_count++;
    return relapse;
}

static uint64_t delay_ms(const struct cairn_cluster_relapse *relapse)
{
    if (relapse == NULL || relapse->count <= CAIRN_RELAPSE_FREE) return 0;
    const uint32_t twice = relapse->count - CAIRN_RELAPSE_FREE - 1;
    const uint64_t delay = twice < 16 ? (uint64_t)FIRST_MS << twice : CAIRN_RELAPSE_MAX_MS;
    return delay < CAIRN_RELAPSE_MAX_MS ? delay : CAIRN_RELAPSE_MAX_MS;
}

static uint64_t left_ms(const struct cairn_cluster_job *job,
                        const struct cairn_cluster_relapse *relapse)
{
    const uint64_t delay = delay_ms(relapse);
    if (delay == 0) return 0;
    const uint64_t passed_ms = cairn_cluster_now_ms(job->cluster) - relapse->lost_ms;
    return passed_ms < delay ? delay - passed_ms : 0;
}

/* The record that puts the member off for longest: its rank's or its host's. NULL: neither
 * counts. */
static const struct cairn_cluster_relapse *worst(struct cairn_cluster_job *job,
                                                 const struct cairn_cluster_member *member)
{
    char host[CAIRN_FABRIC_HOST_BYTES];
    host_of(member, host);
    const struct cairn_cluster_relapse *of_rank = *find(job, NULL, member->rank);
    const struct cairn_cluster_relapse *of_host = host[0] != '\0' ? *find(job, host, 0) : NULL;
    if (of_rank != NULL && !of_rank->is_wide && strcmp(of_rank->host, host) != 0) of_rank = NULL;
    return left_ms(job, of_rank) >= left_ms(job, of_host) && of_rank != NULL ? of_rank : of_host;
}

static void who(const struct cairn_cluster_job *job, const struct cairn_cluster_relapse *relapse,
                struct cairn_sentence *out)
{
    if (relapse->is_rank)
        cairn_sentence_set(out,
                           "rank %" PRIu32 " of job %s was lost %" PRIu32
                           " times in a row before it had ended a round",
                           relapse->rank, job->spec.name, relapse->count);
    else
        cairn_sentence_set(out,
                           "workers of host %s of job %s were lost %" PRIu32
                           " times in a row before one had ended a round",
                           relapse->host, job->spec.name, relapse->count);
}

static void count(struct cairn_cluster_job *job, struct cairn_cluster_relapse *relapse)
{
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster);
    if (now_ms - relapse->lost_ms >= FORGET_MS) relapse->count = 0;
    relapse->lost_ms = now_ms;
    relapse->attaches = job->members.attaches;
    relapse->count++;
}

void cairn_cluster_relapse_lost(const struct cairn_cluster_member *member)
{
    struct cairn_cluster_job *job = member->job;
    char host[CAIRN_FABRIC_HOST_BYTES];
    if (member->has_ended_round || job->state != CAIRN_CLUSTER_JOB_RUNNING) return;
    host_of(member, host);
    struct cairn_cluster_relapse *of_rank = get(job, true, host, member->rank);
    struct cairn_cluster_relapse *of_host = host[0] != '\0' ? get(job, false, host, 0) : NULL;
    if (of_rank != NULL) {
        of_rank->is_wide |= strcmp(of_rank->host, host) != 0;
        count(job, of_rank);
    }
    // Workers of a host that are lost together count once: one that attached before the host's last
    // loss belongs to that loss.
    if (of_host != NULL && member->attach > of_host->attaches) count(job, of_host);
    const struct cairn_cluster_relapse *relapse = worst(job, member);
    if (delay_ms(relapse) == 0) return;
    struct cairn_sentence text;
    who(job, relapse, &text);
    cairn_log_warn("%s (the last was %s, rank %" PRIu32 "): the next attach is put off for %" PRIu64
                   " s, while others train",
                   text.text, member->session->name, member->rank, delay_ms(relapse) / 1000);
}

void cairn_cluster_relapse_over(struct cairn_cluster_member *member)
{
    char host[CAIRN_FABRIC_HOST_BYTES];
    if (member->has_ended_round) return;
    member->has_ended_round = true;
    host_of(member, host);
    forget(member->job, find(member->job, NULL, member->rank));
    forget(member->job, find(member->job, host, 0));
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
    if (member->role != CAIRN_ROLE_WIRE_WORKER || !do_others_train(job) ||
        cairn_cluster_job_member(job, member->id) != NULL) // it was not lost
        return 0;
    return left_ms(job, worst(job, member));
}

void cairn_cluster_relapse_waiting(struct cairn_cluster_job *job,
                                   const struct cairn_cluster_member *member,
                                   struct cairn_sentence *out)
{
    const struct cairn_cluster_relapse *relapse = worst(job, member);
    struct cairn_sentence text = { "" };
    if (relapse != NULL) who(job, relapse, &text);
    cairn_sentence_set(out, "its turn in %" PRIu64 " s: %s, each time with the round of the others",
                       (left_ms(job, relapse) + 999) / 1000, text.text);
}

void cairn_cluster_relapses_release(struct cairn_cluster_job *job)
{
    while (job->members.relapses != NULL) forget(job, &job->members.relapses);
}
