/* The arrays of `cairn bench update` in a home, and passes over them by threads that give the home lists of
 * works, as a shard's pool does. Private to the bench of the update; calls are made from one thread. */
#ifndef CAIRN_CLIENT_CTL_BENCH_UPDATE_H
#define CAIRN_CLIENT_CTL_BENCH_UPDATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/home.h"

/* ==== streams ==== */

/* The yardstick of memory speed: arrays that are updated in place, one add to each element. Private to
 * the bench of the update. */

#define CAIRN_BENCH_STREAMS_MAX 8

struct cairn_bench_stream {
    void *data;
    size_t bytes_per_elem; /* 2 or 4 */
};

/* Reads and writes elements [first, first + elems) of every stream, side by side, and leaves all as it was:
 * it adds 0. first and elems are multiples of 2048. In the widest instruction set that the CPU has. */
void cairn_bench_streams_touch(const struct cairn_bench_stream *streams, size_t stream_count,
                               size_t first, size_t elems);

/* ==== update ==== */

#define CAIRN_UPDATE_CHUNK_LEAVES 64
#define CAIRN_UPDATE_CHUNK_ELEMS  ((size_t)CAIRN_UPDATE_CHUNK_LEAVES * CAIRN_LEAF_ELEMS)
#define CAIRN_UPDATE_SOURCES      2
#define CAIRN_UPDATE_THREADS_MAX  64

/* The part of an update that is done, by --only. */
enum cairn_update_only {
    CAIRN_UPDATE_ALL,   /* fold and update, as a shard */
    CAIRN_UPDATE_ADAMW, /* of an fp32 gradient, without a published copy */
    CAIRN_UPDATE_ZEROS, /* the same, of gradients and moments that are and stay 0 */
    CAIRN_UPDATE_FOLD,
    CAIRN_UPDATE_HASH, /* the leaf hashes of a plane */
    CAIRN_UPDATE_COPY, /* a plane into a device and out of it */
    CAIRN_UPDATE_ONLIES
};

/* The data that the works of one chunk point to while they run. */
struct cairn_update_slot {
    struct cairn_source sources[CAIRN_UPDATE_SOURCES];
    struct cairn_sums sums;
    uint64_t nonfinite;
    struct cairn_hash hashes[CAIRN_UPDATE_CHUNK_LEAVES];
};

/* A thread's own things, owned. */
struct cairn_update_thread {
    struct cairn_home_stream *stream;
    struct cairn_update_slot *slots; /* [list_chunks] */
    struct cairn_work *works;        /* [list_chunks], at least as many as a chunk is filled with */
    float *values;                   /* [chunk] host memory, to fill from */
};

struct cairn_update_arrays {
    /* set by the caller before opening */
    struct cairn_home *home; /* borrowed */
    struct cairn_geometry geometry;
    struct cairn_group_scalars scalars;
    cairn_dtype wire_dtype;
    enum cairn_update_only only;
    size_t elems; /* whole chunks */
    uint32_t threads;
    /* owned: addresses in the home; NULL: not of this bench */
    void *sources[CAIRN_UPDATE_SOURCES], *wire; /* [elems] wire_dtype */
    float *sum, *param, *exp_avg, *exp_avg_sq;
    float *host; /* [elems] pinned host memory, of CAIRN_UPDATE_COPY; in large pages */
    bool is_pinned;
    void *copies; /* a device's: room for all arrays once more; NULL for the host */
    struct cairn_bench_stream streams[CAIRN_BENCH_STREAMS_MAX]; /* the same arrays */
    struct cairn_update_map {
        struct cairn_home_memory memory; /* a device's */
        void *map;                       /* the host's, in large pages */
        size_t bytes;
    } maps[CAIRN_BENCH_STREAMS_MAX + 2]; /* of the same, of copies, of host */
    size_t stream_count, map_count;
    size_t streams_bytes; /* an element: of all arrays */
    size_t list_chunks;   /* works that a thread gives at once */
    struct cairn_update_thread thread[CAIRN_UPDATE_THREADS_MAX];
};

/* Makes them, and fills them: gradients of about the size that a step has, or of CAIRN_UPDATE_ZEROS zeros;
 * parameters and moments have seen one update. False: `why` says it, and all is given back by
 * cairn_update_arrays_close. */
bool cairn_update_arrays_open(struct cairn_update_arrays *arrays, struct cairn_sentence *why);
void cairn_update_arrays_close(struct cairn_update_arrays *arrays);

/* Fills the arrays; of opening. */
bool cairn_update_pass_fill(struct cairn_update_arrays *arrays, struct cairn_sentence *why);
/* One pass over all arrays that it needs. Each gives the seconds that it took, and adds those of all cores to
 * *cpu_sum. 0: it failed, and `why` says how. */
typedef double cairn_update_pass_fn(struct cairn_update_arrays *arrays, double *cpu_sum,
                                    struct cairn_sentence *why);
cairn_update_pass_fn cairn_update_pass_fold, cairn_update_pass_update, cairn_update_pass_hash,
    cairn_update_pass_libsodium;
/* Measures on the host how fast one thread hashes by each instruction set (NAME_gbps), and how many
 * times libsodium's rate that is (NAME_ratio), and adds that to `parts`. */
void cairn_update_hash_sets(const struct cairn_update_arrays *arrays, json_t *parts);
/* The plane out of pinned host memory, and back. */
cairn_update_pass_fn cairn_update_pass_in, cairn_update_pass_out;
/* Reads all arrays once and writes as many bytes: in place on the host, a copy on a device. */
cairn_update_pass_fn cairn_update_pass_reference;

#endif
