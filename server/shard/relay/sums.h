/* The sums of a relay: the buffers that they lie in, and the folds that make them. */
#ifndef CAIRN_SHARD_RELAY_SUMS_H
#define CAIRN_SHARD_RELAY_SUMS_H

#include "server/base/log.h"
#include "server/core/buffer_pool.h"
#include "server/shard/collect/collector.h"
#include "server/shard/memory/arena.h"

struct cairn_relay;
struct cairn_relay_owner;

struct cairn_relay_sums {
    struct cairn_buffer_pool pool; /* who gets a buffer, and who waits; pool.buffers is owned */
    /* [pool.count][buffer_bytes] a page that was never touched is none */
    struct cairn_arena arena;
    size_t buffer_bytes;
    uint32_t reserved; /* buffers that the shard's budget counts from the start, touched or not */
    struct cairn_log_limit starving;
};

CAIRN_MUST_CHECK cairn_status cairn_relay_sums_open(struct cairn_relay *relay,
                                                    struct cairn_sentence *why);
void cairn_relay_sums_close(struct cairn_relay *relay);
/* Hands of the owners' collectors. */
bool cairn_relay_fold_place(struct cairn_fold *fold);
bool cairn_relay_fold(const struct cairn_fold *fold, uint32_t stage, struct cairn_works *works);
void cairn_relay_fold_done(struct cairn_fold *fold);
/* A buffer is free, or may be taken: folds that wait go on. */
void cairn_relay_sums_advance(struct cairn_relay *relay);
/* Gives the relay up if only room would let the owner's folds go on, and there has been none for long. */
void cairn_relay_sums_tick(struct cairn_relay_owner *owner, uint64_t now_ms);
/* The round is void: folds that wait are not done, and the sums are nobody's. Before the core drains. */
void cairn_relay_sums_void(struct cairn_relay *relay);
float *cairn_relay_buffer_at(const struct cairn_relay *relay, uint32_t buffer);

#endif
