/* A relay: this shard adds up what the workers of its host contribute to chunks that other shards own
 * (and to its own), and passes one contribution of the host on to each owner; and it fetches the owners'
 * published chunks once for all of them. A reduce group is a host.
 *
 *   coordinator ── RelaySet, RoundOpen, Fence ──► relay.c
 *   workers ── PUSH, MICRO_END, COMMIT ──► collect.c: a collector for each owner (collector.h)
 *                                          sums.c ◄──┘            │ FORWARD
 *   owners ◄── link.c ◄────────────────── forward.c ◄─────────────┘
 *   workers ── FETCH ──► fetch.c ──► ask.c ──► link.c ──► owners
 *
 * To its workers the relay is the owner (proto/wire/chunk.h, "Relays"); to an owner it is a worker:
 * the member `number`, whose rank is the least of its workers'. The bits are those of step.h: a
 * strict left fold within the host, and the owners fold the hosts' sums in the order of their least
 * ranks.
 *
 * A FOLD that begins a chunk's sum takes a buffer of one chunk, which is free again when the owner
 * has folded it. So memory grows with what is under way, not with the model, as long as the workers
 * push in about the same order: a chunk that one worker has pushed and another not yet keeps its
 * buffer. buffer_pool.h decides which folds get a buffer and which wait; the shard's budget counts
 * a buffer when it is first touched.
 *
 * All would wait for a sum that the relay cannot pass on (there is no room for it and only room
 * could end it, or an owner refuses it). So the relay tells the coordinator, which goes on without
 * reduce groups.
 *
 * A job has at most one relay that works; earlier relays end when nothing of theirs is under way.
 * Loop thread. */
#ifndef CAIRN_SHARD_RELAY_RELAY_H
#define CAIRN_SHARD_RELAY_RELAY_H

#include "server/shard/relay/collect.h"
#include "server/shard/relay/fetch.h"
#include "server/shard/relay/link.h"
#include "server/shard/relay/owner.h"
#include "server/shard/relay/sums.h"
#include "server/shard/shard.h"

struct cairn_relay {
    struct cairn_relay *next;      /* of the job's: the first may work, others end */
    struct cairn_shard_job *job;   /* borrowed */
    struct cairn_shard_view *view; /* counted: by its layout they are owners */
    uint32_t shard;                /* our own index in it */
    uint64_t number, token;
    uint64_t *members; /* owned: [member_count] by rank */
    uint32_t member_count;
    struct cairn_relay_owner *owners; /* owned: [owner_count] by index */
    uint32_t owner_count;
    uint64_t round; /* that it relays; 0: none */
    bool leaving;
    bool given_up;          /* the coordinator was told that it cannot go on */
    uint32_t busy;          /* folds, loans and messages that refer to it */
    uint64_t silent_max_ms; /* so long an owner may not answer; then the relay is given up */

    struct cairn_relay_collect collect;
    struct cairn_relay_sums sums;
    struct cairn_relay_fetches *fetches; /* owned; NULL: they are closed */
};

/* Replaces the relay of the job. CAIRN_ERR_MALFORMED, CAIRN_ERR_NO_MEMORY: there is none then. */
CAIRN_MUST_CHECK cairn_status cairn_relay_set(struct cairn_shard_job *job,
                                              const Cairn__RelaySet *message,
                                              struct cairn_sentence *why);
/* The job's relay that works; NULL: none. */
struct cairn_relay *cairn_relay_of(const struct cairn_shard_job *job);
struct cairn_relay_owner *cairn_relay_owner_find(struct cairn_relay *relay, uint32_t index);
/* The owner of a chunk of the grid; NULL: no owner of this relay. */
struct cairn_relay_owner *cairn_relay_owner_of_chunk(struct cairn_relay *relay, uint32_t tensor,
                                                     uint64_t first_leaf);
void cairn_relay_on_fence(struct cairn_shard_job *job, uint64_t epoch);
void cairn_relay_on_resolve(struct cairn_shard_job *job, uint64_t epoch);
/* A round is open. CAIRN_ERR_PROTOCOL: it names a relay that there is not. */
CAIRN_MUST_CHECK cairn_status cairn_relay_on_open(struct cairn_shard_job *job,
                                                  const Cairn__RoundOpen *message);
/* A worker's connection is UP or DOWN. */
void cairn_relay_on_peer(struct cairn_member *member, enum cairn_step_event_kind kind);
/* A message that an owner sent to a relay; false: it is not one. Takes or drops the message if so. */
bool cairn_relay_on_message(struct cairn_shard *shard, const struct cairn_chunk_header *header,
                            struct cairn_fabric_message *message);
/* Ends all relays of a job. */
void cairn_relay_leave(struct cairn_shard_job *job);
/* Frees all relays of a job: nothing is in flight, or the fabric and the pools are closed. */
void cairn_relay_free_all(struct cairn_shard_job *job);
/* Gives the relay up: what it has of the round cannot be passed on, nor will it be. The coordinator
 * is told once and goes on without the relay, since all would wait for a relay that is silent. */
void cairn_relay_give_up(struct cairn_relay *relay, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* There is something to wait for: ticks begin. */
void cairn_relay_wake(struct cairn_shard *shard);
void cairn_relay_busy(struct cairn_relay *relay);
void cairn_relay_idle(struct cairn_relay *relay); /* may free it, and its job */

#endif
