/* A pusher: it drives the push machine (push.h) of the open round over chunk links, and turns what that says
 * into messages (proto/wire/chunk.h). A worker has one for all shards of its job; a relay has one for
 * each owner, to whom it is the worker. Loop thread. */
#ifndef CAIRN_LINK_PUSHER_H
#define CAIRN_LINK_PUSHER_H

#include "proto/link/chunk_link.h"
#include "proto/link/push.h"

struct cairn_pusher;

/* The functions in which a worker and a relay differ. `shard` is the machine's number of a
 * shard. */
struct cairn_pusher_hands {
    /* The connection by which what is for the shard goes. */
    struct cairn_chunk_link *(*link)(struct cairn_pusher *pusher, uint32_t shard);
    /* It refused a send: whatever refuses it, a new connection sends it again. */
    void (*link_failed)(struct cairn_pusher *pusher, struct cairn_chunk_link *link);
    /* Sends the chunk of action->cookie; the header has the numbers of the round. */
    cairn_status (*send_chunk)(struct cairn_pusher *pusher, const struct cairn_push_action *action,
                               struct cairn_chunk_header *header);
    /* header.tensor of MICRO_END and COMMIT: 0, or whom a relay is told them for. NULL: 0. */
    uint32_t (*mark)(const struct cairn_pusher *pusher, uint32_t shard);
    /* Trained tensors of the shard that the micro-batch had nothing of, ascending: returns how many there
     * are, at most absent_max. */
    size_t (*absent_max)(const struct cairn_pusher *pusher, uint32_t shard);
    size_t (*absent)(const struct cairn_pusher *pusher, uint32_t shard, uint32_t micro,
                     uint32_t *tensors_out);
    void (*released)(struct cairn_pusher *pusher, const struct cairn_push_action *action);
    /* The shard refuses, so the round is void; may be NULL. */
    void (*refused)(struct cairn_pusher *pusher, const struct cairn_push_action *action);
};

struct cairn_pusher {
    const struct cairn_pusher_hands *hands; /* static */
    struct cairn_push_config config;
    void *memory;                      /* owned: of the machine */
    struct cairn_push *push;           /* in it; NULL: no round */
    struct cairn_push_actions actions; /* owned */
    uint64_t epoch, round;             /* of the open round, or the last one */
};

/* CAIRN_ERR_NO_MEMORY: too much for a machine, too; close it. Once open, it is not opened again. */
CAIRN_MUST_CHECK cairn_status cairn_pusher_open(struct cairn_pusher *pusher,
                                                const struct cairn_pusher_hands *hands,
                                                const struct cairn_push_config *config);
/* Also of one that was never opened, all zero. */
void cairn_pusher_close(struct cairn_pusher *pusher);
/* A round opened; the one before has ended. */
void cairn_pusher_begin(struct cairn_pusher *pusher, uint64_t epoch, uint64_t round);
/* There is no such shard: right behind _begin. */
void cairn_pusher_absent(struct cairn_pusher *pusher, uint32_t shard);
/* It is void, or resolved: what the fabric has on loan is given back by itself. */
void cairn_pusher_end(struct cairn_pusher *pusher);

/* ---- the caller's side, of an open round: as in push.h; what the machine then says is done ---- */
CAIRN_MUST_CHECK cairn_status cairn_pusher_chunk(struct cairn_pusher *pusher, uint32_t shard,
                                                 uint32_t micro, struct cairn_push_chunk chunk);
CAIRN_MUST_CHECK cairn_status cairn_pusher_micro_end(struct cairn_pusher *pusher, uint32_t micro);
CAIRN_MUST_CHECK cairn_status cairn_pusher_commit(struct cairn_pusher *pusher, uint64_t weight);
void cairn_pusher_resolved(struct cairn_pusher *pusher);

/* ---- the shards. Without a round, or of another round or shard, nothing happens ---- */
/* Rounds grow, and so do the numbers of a shard's ways: one that was overtaken is no newer than `last` (of
 * kind 0: none). Ways of several shards cannot be compared, but a round has one carrier. */
bool cairn_grant_is_newer(const struct cairn_chunk_header *last,
                          const struct cairn_chunk_header *grant);
/* `way`: the highest that the carrier's HELLOs had; one may have overtaken the GRANT. */
void cairn_pusher_on_grant(struct cairn_pusher *pusher, uint32_t shard,
                           const struct cairn_chunk_header *grant, uint64_t way);
void cairn_pusher_on_hello(struct cairn_pusher *pusher, uint32_t shard, uint64_t way);
/* ACK, NAK, MICRO_ACK. */
void cairn_pusher_on_answer(struct cairn_pusher *pusher, uint32_t shard,
                            const struct cairn_chunk_header *header);
void cairn_pusher_on_lost(struct cairn_pusher *pusher, uint32_t shard);
bool cairn_pusher_waits(const struct cairn_pusher *pusher, uint32_t shard);

#endif
