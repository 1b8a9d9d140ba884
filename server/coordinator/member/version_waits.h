/* Who waits for a version, or for the client state of the newest. */
#ifndef CAIRN_COORDINATOR_MEMBER_VERSION_WAITS_H
#define CAIRN_COORDINATOR_MEMBER_VERSION_WAITS_H

#include "server/coordinator/base/names.h"
#include "server/core/decision.h"

/* Threads of one member wait side by side. Waits whose time is over make room, and are not
 * answered. */
enum { CAIRN_MEMBER_WAITS_MAX = 8 };
struct cairn_cluster_version_wait {
    uint32_t request;
    bool state; /* the client state; else a version at least as new */
    struct cairn_version wanted;
    uint64_t ends_ms; /* of uv_now: when the thread gives up; 0: it did not say */
};

/* A member's waits: [count], oldest first; one too many only while it is judged. */
struct cairn_cluster_version_waits {
    struct cairn_cluster_version_wait list[CAIRN_MEMBER_WAITS_MAX + 1];
    uint32_t count;
};

/* Answers it when it can. CAIRN_ERR_BUSY, to the peer: as many wait already. */
void cairn_cluster_member_version_wait(struct cairn_cluster_member *member, uint32_t request,
                                       const Cairn__VersionWait *message);
/* Answers the waits whose version is there. */
void cairn_cluster_members_answer_versions(struct cairn_cluster_job *job);
/* After an event of the core: if the version is another one than they were told. */
void cairn_cluster_members_tell_version(struct cairn_cluster_job *job);
/* The newest version and its client state to those who asked for it, if it is known now. */
void cairn_cluster_members_answer_states(struct cairn_cluster_job *job);

#endif
