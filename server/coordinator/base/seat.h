/* The seat of a shard. */
#ifndef CAIRN_COORDINATOR_BASE_SEAT_H
#define CAIRN_COORDINATOR_BASE_SEAT_H

#include <sys/queue.h>

#include "proto/fabric/fabric.h"
#include "server/base/listener.h"
#include "server/base/log.h"
#include "server/coordinator/base/names.h"
#include "server/core/seat.h"
#include "server/core/standing.h"

TAILQ_HEAD(cairn_cluster_calls, cairn_cluster_call); /* of calls.c */

/* A shard, known by its name. */
struct cairn_cluster_seat {
    struct cairn_cluster_seat *next;       /* of the cluster's list, by name */
    char *name;                            /* owned */
    struct cairn_cluster_session *session; /* NULL = away */
    struct cairn_cluster_calls calls; /* what it was asked and has not answered, oldest first */
    uint64_t incarnation;
    struct cairn_seat_part
        *held; /* owned, [held_count]: what it came with, in force and prepared */
    size_t held_count;
    enum cairn_seat_probe probe; /* of who sits there, for another process of this name */
    uint64_t asked_ms;           /* cairn_cluster_now_ms: the probe */
    char claimant[64];           /* where a process is that holds parts, too, and waits; .. */
    uint64_t claimed_ms;         /* .. when it came last; 0: never */
    struct cairn_log_limit claims;
    bool ended;        /* its last connection was closed at its end: most likely with its process */
    uint64_t since_ms; /* of the loop's clock: when it came or went */
    uint64_t gone_ms;  /* cairn_cluster_now_ms: when it went; while we are stopped nobody is away */
    uint8_t *fabric_address; /* owned, [fabric_address_bytes]; the last one it had */
    size_t fabric_address_bytes;
    /* by that address: other hosts reach it; or its own host alone, by memory. Neither: it does not say */
    bool is_networked, is_mapped;
    bool apart_said;                    /* cairn_cluster_seat_apart, in the log */
    char host[CAIRN_FABRIC_HOST_BYTES]; /* where it is; empty: it does not say */
    Cairn__ShardStats stats;            /* of its last Heartbeat, if has_stats */
    bool has_stats;
    /* why it cannot save snapshots; empty: it can, or has not said */
    struct cairn_sentence storage;
    Cairn__BytesTold *bytes; /* owned, [bytes_count]: of the same Heartbeat */
    size_t bytes_count;
    Cairn__MemoryTold *memory; /* owned, [memory_count]: likewise */
    size_t memory_count;
    /* of its session: may we act on what it holds, and what that is (member/standing.c) */
    struct cairn_coordinator_id seen;
    enum cairn_standing standing;
    Cairn__HeldJobs *parts; /* owned; NULL: it has not told yet, or holds nothing */
    bool parts_awaited; /* it holds jobs that are not known here, and has not told their names */
    /* the question of an adoption for them (0: it was away then), and the one that they answer (0: none) */
    uint32_t parts_asked, parts_told;
    uint64_t memory_bytes;       /* that it may use for state; 0: it does not say */
    bool leaving;                /* its jobs go to others, and it gets no part of any */
    struct cairn_sentence unfit; /* its device failed: what becomes of what else it holds */
    struct {
        struct cairn_cluster_waiter *waiters; /* owned: who asked for it */
        struct cairn_cluster_waiter *begun;   /* owned: who is told when the store has it */
        uint32_t
            stored; /* by an operator's word, and in the store or on its way: its number; 0: not */
        uint32_t request; /* the shard's own; 0: none */
        /* cairn_cluster_now_ms: nothing moves any more from then on, and it is given up; 0: never */
        uint64_t saves_ms, ends_ms;
        bool is_unfit;       /* nobody asked: its device failed. It ends by itself */
        uint64_t again_ms;   /* cairn_cluster_now_ms: what could not be is not tried before */
        bool is_over;        /* it holds nothing, and was told to end */
        bool is_saving;      /* it cannot be brought to hold nothing, and ends: cut/parting.h */
        cairn_status status; /* then: why not */
        struct cairn_sentence why; /* and of an unfit one: what of its jobs cannot move */
    } drain;
    uint64_t planned_bytes; /* of job/jobs.c, while it chooses the shards of a job */
};

#endif
