/* Members join, connect, are lost and leave. Loop thread. */
#ifndef CAIRN_SHARD_JOB_MEMBERS_H
#define CAIRN_SHARD_JOB_MEMBERS_H

#include "server/shard/base/member.h"

/* Adds or replaces a member and begins to connect. */
CAIRN_MUST_CHECK cairn_status cairn_member_join(struct cairn_shard_job *job,
                                                const Cairn__MemberJoin *message,
                                                struct cairn_sentence *why);
void cairn_member_leave(struct cairn_shard_job *job, uint64_t number);
/* Removes the members that the coordinator has not named in this session: they left while it was
 * away. */
void cairn_members_forget_untold(struct cairn_shard_job *job);
void cairn_members_release(struct cairn_shard_job *job);
/* A message of the member came: connects the member if it is not connected. */
void cairn_member_heard(struct cairn_member *member);
/* Closes its peer and tells the core. */
void cairn_member_down(struct cairn_member *member);
/* The member's HELLO, of its connection of that number: the member is heard, and greeted. The core is told
 * even of a member that was connected: it may have lost a GRANT. */
void cairn_member_hello(struct cairn_member *member, uint64_t connection);

#endif
