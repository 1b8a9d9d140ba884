/* See version_waits.h. */
#include "server/coordinator/member/version_waits.h"

#include <string.h>

#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"

static void take_out(struct cairn_cluster_member *member, uint32_t at)
{
    member->waits.count--;
    memmove(&member->waits.list[at], &member->waits.list[at + 1],
            (member->waits.count - at) * sizeof *member->waits.list);
}

/* Answers those of `state` that can be. */
static void answer(struct cairn_cluster_job *job, bool state, const Cairn__VersionReady *ready)
{
    const struct cairn_version now = { ready->generation, ready->step };
    for (struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        for (uint32_t i = 0; i < m->waits.count;) {
            const struct cairn_cluster_version_wait wait = m->waits.list[i];
            if (wait.state != state || cairn_version_compare(now, wait.wanted) < 0) {
                i++;
                continue;
            }
            take_out(m, i);
            cairn_cluster_session_send(m->session, CAIRN_MSG_VERSION_READY, wait.request,
                                       &ready->base);
        }
    }
}

/* Takes out one wait when there is one too many: the first for which nobody may wait any more
 * (its time is over, or it named none), unanswered; else the newest, which is refused. */
static void make_room(struct cairn_cluster_member *member, uint64_t now_ms)
{
    const uint32_t last = CAIRN_MEMBER_WAITS_MAX;
    uint32_t at = 0;
    struct cairn_sentence why;
    while (at < last && member->waits.list[at].ends_ms > now_ms) at++;
    const uint32_t request = member->waits.list[last].request;
    take_out(member, at);
    if (at < last) return;
    cairn_sentence_set(&why,
                       "%d threads of this member wait for versions or client states already: ask "
                       "again when one of them has ended",
                       CAIRN_MEMBER_WAITS_MAX);
    cairn_cluster_session_error(member->session, request, CAIRN_ERR_BUSY, why.text);
}

void cairn_cluster_member_version_wait(struct cairn_cluster_member *member, uint32_t request,
                                       const Cairn__VersionWait *message)
{
    const uint64_t now_ms = uv_now(member->session->cluster->loop);
    struct cairn_cluster_version_wait wait = { .request = request, .state = message->client_state };
    if (!wait.state) wait.wanted = (struct cairn_version) { message->generation, message->step };
    if (message->timeout_ms != 0) wait.ends_ms = now_ms + message->timeout_ms;
    member->waits.list[member->waits.count++] = wait;
    if (wait.state)
        cairn_cluster_members_answer_states(member->job);
    else
        cairn_cluster_members_answer_versions(member->job);
    if (member->waits.count > CAIRN_MEMBER_WAITS_MAX) make_room(member, now_ms);
}

void cairn_cluster_members_answer_states(struct cairn_cluster_job *job)
{
    Cairn__VersionReady ready = CAIRN__VERSION_READY__INIT;
    const uint8_t *state;
    size_t bytes;
    if (job->core == NULL || !cairn_round_client_state(job->core, &state, &bytes)) return;
    const struct cairn_version now = cairn_cluster_job_version(job);
    ready.job = job->id;
    ready.generation = now.generation;
    ready.step = now.step;
    ready.client_state = (ProtobufCBinaryData) { bytes, (uint8_t *)(uintptr_t)state };
    answer(job, true, &ready);
}

void cairn_cluster_members_answer_versions(struct cairn_cluster_job *job)
{
    Cairn__VersionReady ready = CAIRN__VERSION_READY__INIT;
    if (!job->initialized || job->core == NULL) return;
    const struct cairn_version now = cairn_cluster_job_version(job);
    ready.job = job->id;
    ready.generation = now.generation;
    ready.step = now.step;
    answer(job, false, &ready);
}

void cairn_cluster_members_tell_version(struct cairn_cluster_job *job)
{
    const struct cairn_version now = cairn_cluster_job_version(job);
    if (cairn_version_compare(now, job->members.version_told) == 0) return;
    job->members.version_told = now;
    cairn_cluster_members_answer_versions(job);
}
