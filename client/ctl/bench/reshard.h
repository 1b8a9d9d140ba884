#ifndef CAIRN_CLIENT_CTL_BENCH_RESHARD_H
#define CAIRN_CLIENT_CTL_BENCH_RESHARD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/ctl/local.h"

/* ==== copy ==== */

/* The reference for the bench of moves: memcpy of as many bytes, by one thread or by one a core, to
 * memory that was written before or that is fresh. Private to that bench. */

/* Two areas of memory; zero: none yet. */
struct bench_copier {
    char *to, *from; /* owned: mapped, [bytes] */
    size_t bytes;
};

/* GB/s; 0, and said: there is no memory, or no thread. `is_fresh`: the pages of what is written are made
 * while it is copied. Areas of another size than before are made anew. */
double cairn_bench_copy(struct bench_copier *copier, size_t bytes, uint32_t threads, bool is_fresh);
void cairn_bench_copier_release(struct bench_copier *copier);

/* ==== move ==== */

/* A move of the bench's job, and what is watched meanwhile: by a thread of its own, so that the bench may
 * order steps. */

/* The measured figures of one move. */
struct bench_move {
    double seconds; /* from the request until the coordinator says that it is done */
    double moved_bytes, least_bytes, slices;
    double state_bytes, state_s;       /* that came to shards, and in how long, slice by slice */
    double prepare_s, cut_s, waited_s; /* of all slices: until all were ready, in force, whole */
    double memory; /* the most of any shard / (what it owned before or after, and a slice) */
};

struct bench_mover {
    /* the caller's, before begin */
    const struct local *local;
    const char *job;
    uint32_t first, last; /* "shard-FIRST" to "shard-LAST" */
    bool adds;            /* they join, else they are drained */
    bool rests;           /* it begins when nobody trains the job, as the coordinator sees it */
    /* the thread's */
    struct ctl ctl;
    pthread_t thread;
    uint64_t peaks[1 + CTL_SHARDS_MAX]; /* bytes of the shards, by number */
    struct bench_move move;
    bool is_ok; /* it has said so where it is not */
    atomic_bool is_over;
};

/* False, and said: there is no thread. */
bool cairn_bench_move_begin(struct bench_mover *mover);
/* Waits for its end; false, and said: it failed. */
bool cairn_bench_move_end(struct bench_mover *mover, struct bench_move *move_out);

#endif
