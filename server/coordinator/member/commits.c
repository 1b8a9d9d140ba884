/* See commits.h. */
#include "server/coordinator/member/commits.h"

#include <string.h>

#include "server/coordinator/base/member.h"
#include "server/coordinator/base/session.h"

static void take_out(struct cairn_cluster_member *member, uint32_t at)
{
    member->commits.count--;
    memmove(&member->commits.list[at], &member->commits.list[at + 1],
            (member->commits.count - at) * sizeof *member->commits.list);
}

void cairn_cluster_commits_add(struct cairn_cluster_member *member, uint32_t request,
                               uint64_t round)
{
    if (member->commits.count == CAIRN_MEMBER_COMMITS_MAX) {
        const uint32_t oldest = member->commits.list[0].request;
        take_out(member, 0);
        cairn_cluster_session_error(member->session, oldest, CAIRN_ERR_BUSY,
                                    "more than 8 calls of this worker ask how a round ends; call "
                                    "it again when one of them has returned");
    }
    member->commits.list[member->commits.count++] = (struct cairn_cluster_commit) { request,
                                                                                    round };
}

bool cairn_cluster_commits_answer(struct cairn_cluster_member *member,
                                  const Cairn__RoundResult *result)
{
    bool any = false;
    for (uint32_t i = 0; i < member->commits.count;) {
        const struct cairn_cluster_commit commit = member->commits.list[i];
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
    for (uint32_t i = 0; i < member->commits.count; i++)
        cairn_cluster_session_error(member->session, member->commits.list[i].request, status, text);
    member->commits.count = 0;
}
