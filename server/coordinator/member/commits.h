/* Who waits to hear how a round ended. */
#ifndef CAIRN_COORDINATOR_MEMBER_COMMITS_H
#define CAIRN_COORDINATOR_MEMBER_COMMITS_H

#include "server/coordinator/base/names.h"

/* Threads of one member wait side by side: one trains, one writes, and several may wait for one
 * round. If there are more than this, the oldest is answered that it is one too many: most
 * likely its thread has given up, which nobody tells us. */
enum { CAIRN_MEMBER_COMMITS_MAX = 8 };
struct cairn_cluster_commit {
    uint32_t request;
    uint64_t round;
};

/* The requests of a member that wait for the end of a round. */
struct cairn_cluster_commits {
    struct cairn_cluster_commit list[CAIRN_MEMBER_COMMITS_MAX]; /* [count], oldest first */
    uint32_t count;
};

void cairn_cluster_commits_add(struct cairn_cluster_member *member, uint32_t request,
                               uint64_t round);
/* To all who wait for that round; false: nobody does. */
bool cairn_cluster_commits_answer(struct cairn_cluster_member *member,
                                  const Cairn__RoundResult *result);
/* All of them. */
void cairn_cluster_commits_fail(struct cairn_cluster_member *member, cairn_status status,
                                const char *text);

#endif
