/* Workers and readers of jobs: how they join at the shards, what they hear, how they leave. */
#ifndef CAIRN_COORDINATOR_MEMBER_MEMBERS_H
#define CAIRN_COORDINATOR_MEMBER_MEMBERS_H

#include "server/coordinator/base/names.h"
#include "server/coordinator/member/waiting.h"
#include "server/core/decision.h"

#define CAIRN_MEMBER_BUCKETS 512 /* of a job's index of its members; their ids are random */

/* A job's members. */
struct cairn_cluster_job_members {
    struct cairn_cluster_member *list;                        /* by next_of_job */
    struct cairn_cluster_member *by_id[CAIRN_MEMBER_BUCKETS]; /* by next_of_bucket */
    uint32_t count;
    uint64_t read_bytes;               /* of members that have left, in this generation */
    struct cairn_version version_told; /* readers were told that it is there */
    /* the longest of those who were put out for a restore, and come back */
    struct cairn_cluster_pause pause;
    struct cairn_cluster_relapse *relapses; /* owned: relapse.h; [relapse_count] */
    uint32_t relapse_count;
    uint64_t attaches; /* so far, of readers as well */
};

/* The session's member of the job, JOINING or ATTACHED; NULL: there is none. */
struct cairn_cluster_member *cairn_cluster_member_find(struct cairn_cluster_session *session,
                                                       uint64_t job_id);
/* Puts the member into the job's list and index; cairn_cluster_member_free takes it out. */
void cairn_cluster_job_member_add(struct cairn_cluster_job *job,
                                  struct cairn_cluster_member *member);
/* The member left the job by itself: tells the core and the shards, and frees it. */
void cairn_cluster_member_leave(struct cairn_cluster_member *member, const char *reason);
/* The same of one that is gone without a word. */
void cairn_cluster_member_lost(struct cairn_cluster_member *member, const char *reason);
/* Expels the member, and tells the core: the round goes on without it. */
void cairn_cluster_member_put_out(struct cairn_cluster_member *member, cairn_status status,
                                  const char *text);
/* A shard cannot read what the member pushed: expels the member; the open round is done again without it. */
void cairn_cluster_member_fault(struct cairn_cluster_job *job, uint64_t id, const char *text);
/* The member may not go on: its requests fail with this status, and the shards drop it. One that was attached
 * gets an Error of its own, and its connection is closed. Frees the member. The core knows already. */
void cairn_cluster_member_expel(struct cairn_cluster_member *member, cairn_status status,
                                const char *text);
/* Frees what a member that is on its way in has of the spec it came with. */
void cairn_cluster_member_forget_spec(struct cairn_cluster_member *member);
/* Frees the member and tells nobody. */
void cairn_cluster_member_free(struct cairn_cluster_member *member);
/* Sends MemberJoin to all shards of the job; Attached follows when all of them know the member. */
void cairn_cluster_member_tell_shards(struct cairn_cluster_member *member);
/* Attaches the members whom all shards know, once the job's version is known. */
void cairn_cluster_members_attach(struct cairn_cluster_job *job);
/* A shard of the job is back: it is told of all members. */
void cairn_cluster_members_tell_shard(struct cairn_cluster_job *job, uint32_t shard);
/* A shard of the job is gone: it knows no member. */
void cairn_cluster_members_forget_shard(struct cairn_cluster_job *job, uint32_t shard);
/* ShardsChanged to all who are attached. */
void cairn_cluster_members_shards_changed(struct cairn_cluster_job *job);

#endif
