/* Shards by name: who sits there, and who may (server/core/seat.h). */
#ifndef CAIRN_COORDINATOR_SEATS_H
#define CAIRN_COORDINATOR_SEATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "proto/wire/messages.h"
#include "server/base/listener.h"
#include "server/base/log.h"
#include "server/core/seat.h"
#include "server/core/standing.h"

struct cairn_cluster;
struct cairn_cluster_session;

TAILQ_HEAD(cairn_cluster_calls, cairn_cluster_call); /* of calls.c */

/* A shard, known by its name. */
struct cairn_cluster_seat {
    struct cairn_cluster_seat *next;       /* of the cluster's list, by name */
    char *name;                            /* owned */
    struct cairn_cluster_session *session; /* NULL = away */
    struct cairn_cluster_calls calls; /* what it was asked and has not answered, oldest first */
    uint64_t incarnation;
    struct cairn_seat_part *held; /* owned, [held_count]: what it came with */
    size_t held_count;
    enum cairn_seat_probe probe; /* of who sits there, for another process of this name */
    uint64_t asked_ms;           /* cairn_cluster_now_ms: the probe */
    char claimant[64];           /* where a process is that holds parts, too, and waits; .. */
    uint64_t claimed_ms;         /* .. when it came last; 0: never */
    struct cairn_log_limit claims;
    bool ended;        /* its last connection was closed at its end: most likely with its process */
    uint64_t since_ms; /* of the loop's clock: when it came or went */
    uint8_t *fabric_address; /* owned, [fabric_address_bytes]; the last one it had */
    size_t fabric_address_bytes;
    Cairn__ShardStats stats; /* of its last Heartbeat, if has_stats */
    bool has_stats;
    struct cairn_sentence
        storage;             /* why it cannot save snapshots; empty: it can, or has not said */
    Cairn__BytesTold *bytes; /* owned, [bytes_count]: of the same Heartbeat */
    size_t bytes_count;
    Cairn__MemoryTold *memory; /* owned, [memory_count]: likewise */
    size_t memory_count;
    /* of its session: may we act on what it holds, and what that is (standing.c) */
    struct cairn_coordinator_id seen;
    enum cairn_standing standing;
    Cairn__HeldJobs *parts; /* owned; NULL: it has not told yet, or holds nothing */
    bool parts_awaited; /* it holds jobs that are not known here, and has not told their names */
    uint64_t planned_bytes; /* of cairn_cluster_job_choose_shards, while it chooses */
};

uint32_t cairn_cluster_seats_up(const struct cairn_cluster *cluster);
/* Not 0. */
uint64_t cairn_cluster_seat_address_hash(const struct cairn_cluster_seat *seat);
/* NULL: there is none of that name. */
struct cairn_cluster_seat *cairn_cluster_seat_find(const struct cairn_cluster *cluster,
                                                   const char *name);
/* Makes it if need be; NULL: no memory, or CAIRN_SEATS_MAX. */
struct cairn_cluster_seat *cairn_cluster_seat_get(struct cairn_cluster *cluster, const char *name);
/* By the operator's word: it is gone for good. CAIRN_ERR_BUSY: it is here, or a job has a part on it. */
cairn_status cairn_cluster_seat_forget(struct cairn_cluster *cluster, const char *name,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_cluster_seat_free(struct cairn_cluster_seat *seat);
/* May the shard that says this Hello have its seat? CAIRN_OK: nobody has it now. CAIRN_ERR_BUSY: it is to
 * come again. CAIRN_ERR_FENCED: its process is to end. */
cairn_status cairn_cluster_seat_claim(struct cairn_cluster *cluster, struct cairn_peer *peer,
                                      const Cairn__Hello *hello,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* It has it: the jobs hear of it. False: no place, or no memory. */
bool cairn_cluster_seat_take(struct cairn_cluster_session *session, const Cairn__Hello *hello);
/* The session is gone, for that reason. */
void cairn_cluster_seat_leave(struct cairn_cluster_session *session, cairn_status status,
                              const char *why);
/* Another process, which holds parts, asked for it within the last lease. */
bool cairn_cluster_seat_claimed(const struct cairn_cluster *cluster,
                                const struct cairn_cluster_seat *seat);
/* Who was asked and is silent loses its seat. */
void cairn_cluster_seats_tick(struct cairn_cluster *cluster);

#endif
