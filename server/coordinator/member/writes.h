/* Writes at a step boundary. Answered by RoundOpened, later. */
#ifndef CAIRN_COORDINATOR_MEMBER_WRITES_H
#define CAIRN_COORDINATOR_MEMBER_WRITES_H

#include "server/coordinator/base/names.h"

/* A member's request to write. */
struct cairn_cluster_write {
    uint32_t request;
    bool reserves; /* the request waits for generations that are durable */
};

void cairn_cluster_member_write(struct cairn_cluster_member *member, uint32_t request);
void cairn_cluster_member_unwrite(struct cairn_cluster_member *member, uint64_t round);

#endif
