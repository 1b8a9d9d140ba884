/* A worker or reader and a job. Owned by its session. A request that waits is its request id; 0 = none: one
 * slot each, so that a peer cannot pile them up. */
#ifndef CAIRN_COORDINATOR_BASE_MEMBER_H
#define CAIRN_COORDINATOR_BASE_MEMBER_H

#include "server/coordinator/base/names.h"
#include "server/coordinator/job/amend.h"
#include "server/coordinator/job/init.h"
#include "server/coordinator/job/openings.h"
#include "server/coordinator/member/commits.h"
#include "server/coordinator/member/tiles.h"
#include "server/coordinator/member/version_waits.h"
#include "server/coordinator/member/waiting.h"
#include "server/coordinator/member/writes.h"
#include "server/coordinator/round/times.h"

enum cairn_cluster_member_phase {
    CAIRN_MEMBER_PAGES,    /* its spec is on its way */
    CAIRN_MEMBER_JUDGED,   /* a thread reads its spec, or compares it with the job's */
    CAIRN_MEMBER_WAITING,  /* for the job to be made or restored */
    CAIRN_MEMBER_JOINING,  /* the shards are told of it */
    CAIRN_MEMBER_ATTACHED, /* a worker: known to the core */
};

struct cairn_cluster_member {
    struct cairn_cluster_member *next_of_session, *next_of_job, *next_of_bucket;
    struct cairn_cluster_session *session;
    struct cairn_cluster_job *job; /* while JOINING or ATTACHED */
    enum cairn_cluster_member_phase phase;
    uint64_t id, token, job_id;
    uint32_t role, rank;
    char *job_name; /* owned */
    /* owned: [shard_count], enum member_known in member/members.c; tiles.known_to behind it */
    uint8_t *known_to;
    uint32_t open_request, begin_request;
    uint64_t attached_ms;         /* cairn_cluster_now_ms; of one that is attached */
    uint64_t attach;              /* of job->members.attaches: its own */
    bool has_ended_round;         /* a round that it was in has ended, since it attached */
    uint64_t opened_round;        /* the last that it was told of */
    uint32_t in_flight;           /* bits of enum cairn_in_flight, of its last heartbeat */
    struct cairn_step_ring times; /* of a worker */
    uint64_t read_bytes;          /* of published memory, by itself: as it told last */
    /* each is its module's own */
    struct cairn_cluster_opening opening;
    struct cairn_cluster_member_tiles tiles;
    struct cairn_cluster_pause pause;
    struct cairn_cluster_member_init init;
    struct cairn_cluster_write write;
    struct cairn_cluster_amend_wait amend;
    struct cairn_cluster_commits commits;
    struct cairn_cluster_version_waits waits;
};

#endif
