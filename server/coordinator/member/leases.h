/* Leases: versions that members want kept for longer than training keeps them.
 *
 *   LeaseTake → a lease of the member (WAITS until no epoch is changing) → its version is KEPT:
 *   LeaseKeep to all shards → all said Done → Leased. One refused: the others are told to end it, Error.
 *
 * All leases of a version are one for the shards: kept for the longest of them, ended with the last. The word
 * travels on the channels that decisions travel on, so it comes between the same two of them on every shard.
 *
 * Asked for again, a lease is renewed, and never made shorter. It ends when the member drops it, leaves or is
 * expelled, or when its time is over; nothing of it is durable. Shards end by themselves what they have not
 * been told of for its time and a quarter of it. */
#ifndef CAIRN_COORDINATOR_MEMBER_LEASES_H
#define CAIRN_COORDINATOR_MEMBER_LEASES_H

#include "server/coordinator/base/names.h"
#include "server/core/decision.h"

#define CAIRN_MEMBER_LEASES_MAX 16

/* A version that shards keep, or are asked to. */
struct cairn_cluster_kept {
    struct cairn_cluster_kept *next; /* of the job's */
    struct cairn_version version;
    uint64_t number;                     /* for the shards */
    uint64_t asked_ms;                   /* when they were asked last; while `asking` */
    struct cairn_cluster_gather *gather; /* borrowed, while `asking` */
    bool asking, again;
};

struct cairn_cluster_lease {
    struct cairn_cluster_lease *next;    /* of the job's */
    struct cairn_cluster_member *member; /* borrowed: goes before it */
    struct cairn_cluster_kept *kept;     /* borrowed of the job; NULL: WAITS */
    struct cairn_version version;        /* while it WAITS, {0, 0}: the newest */
    uint32_t request;                    /* LeaseTake; 0: answered */
    uint64_t key;                        /* of the LeaseTake that began it */
    uint64_t ttl_ms;                     /* that was asked for last */
    uint64_t ends_ms;                    /* of cairn_cluster_now_ms; 0: not granted yet */
    bool asked;                          /* the shards are being asked for it */
};

/* A job's leases. */
struct cairn_cluster_leases {
    struct cairn_cluster_lease *list; /* owned */
    struct cairn_cluster_kept *kept;  /* owned; the versions of them */
};

/* A request; answered here or later. */
void cairn_cluster_lease_take(struct cairn_cluster_member *member, uint32_t request,
                              const Cairn__LeaseTake *message);
void cairn_cluster_lease_drop(struct cairn_cluster_member *member, const Cairn__LeaseDrop *message);
/* Rounds may go on: leases that wait are taken. Not during an event of the core. */
void cairn_cluster_leases_advance(struct cairn_cluster_job *job);
/* The newest version was published once more, in the layout in force: shards that joined since have it, too,
 * and are asked to keep it where it is leased, before another round opens. */
void cairn_cluster_leases_republished(struct cairn_cluster_job *job);
/* Ends the leases whose time is over. */
void cairn_cluster_leases_tick(struct cairn_cluster_job *job);
/* True: the member waits for a lease, and `out` says for which shards. */
bool cairn_cluster_leases_waiting(const struct cairn_cluster_member *member,
                                  struct cairn_sentence *out);
/* The requests of the member that wait fail. */
void cairn_cluster_leases_fail(struct cairn_cluster_member *member, cairn_status status,
                               const char *text);
/* The member goes: its leases end. */
void cairn_cluster_leases_forget(struct cairn_cluster_member *member);

#endif
