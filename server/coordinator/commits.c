/* See commits.h. */
#include "server/coordinator/commits.h"

#include <string.h>

#include "server/coordinator/cluster.h"

static void take_out(struct cairn_cluster_member *member, uint32_t at)
{
    member->commit_count--;
    memmove(&member->commits[at], &member->commits[at + 1],
            (member->commit_count - at) * sizeof *member->commits);
}

void cairn_cluster_commits_add(struct cairn_cluster_member *member, uint32_t request,
                               uint64_t round)
{
    if (member->commit_count == CAIRN_MEMBER_COMMITS_MAX) {
        const uint32_t oldest = member->commits[0].request;
        take_out(member, 0);
        cairn_cluster_session_error(member->session, oldest, CAIRN_ERR_BUSY,
                                    "more than 8 calls of this worker ask how a round ends; call "
                                    "it again when one of them has returned");
    }
    member->commits[member->commit_count++] = (struct cairn_cluster_commit) { request, round };
}

bool cairn_cluster_commits_answer(struct cairn_cluster_member *member,
                                  const Cairn__RoundResult *result)
{
    bool any = false;
    for (uint32_t i = 0; i < member->commit_count;) {
        const struct cairn_cluster_commit commit = member->commits[i];
        if (commit.round != result->round) {
            i++;
            continue;
        }
        take_out(member, i);
        any = true;
        cairn_cluster_session_send(member->session, CAIRN_MSG_ROUND_RESULT, commit.request,
                                   &result->base);
    }
    return any;
}

void cairn_cluster_commits_fail(struct cairn_cluster_member *member, cairn_status status,
                                const char *text)
{
    for (uint32_t i = 0; i < member->commit_count; i++)
        cairn_cluster_session_error(member->session, member->commits[i].request, status, text);
    member->commit_count = 0;
}
