/* Tensors of several shards in one piece: address space of our own into which the pages of the shards'
 * copies are mapped one behind another (proto/geometry/published.h). Under the session's lock, any thread.
 *
 * The two copies that a shard publishes take turns, so a stitch that was read is wanted again two versions
 * later, of the same pages: the stitch is kept, with its page tables, and only the edges at which two runs
 * meet are copied anew. Mapping them all again would cost a fault for every few pages, which is most of the
 * time that reading a tensor takes. A stitch goes when a copy of it is taken back, with its job, or for newer
 * ones when there are more than CAIRN_STITCH_MAPS_MAX maps. */
#ifndef CAIRN_CLIENT_READ_STITCH_H
#define CAIRN_CLIENT_READ_STITCH_H

#include <stddef.h>
#include <stdint.h>

struct job;
struct published;

/* Maps in all stitches of a job: each counts for up to two of the maps that a process may have
 * (65530 by default). */
#define CAIRN_STITCH_MAPS_MAX 4096

struct stitch;

/* The stitches of a job. Under the lock. */
struct stitches {
    struct stitch *first; /* owned: in use or kept; the one used last is the first */
    size_t map_count;     /* of all of them */
};

/* A run of the tensor's bytes on one shard. */
struct stitch_run {
    struct published *copy;
    uint64_t sequence;  /* of the copy, since when `at` is the version that is wanted */
    uint64_t at;        /* its first byte in the copy; at and from agree modulo the page */
    uint64_t from, end; /* in the tensor */
};

/* A stitch of runs [count], which are in order and without holes, until cairn_stitch_put. The runs are
 * copied; the copies that they are of are in use as long as the stitch is there. NULL: no address space, or
 * no memory. */
struct stitch *cairn_stitch_get(struct job *job, uint32_t tensor, const struct stitch_run *runs,
                                size_t count);
/* Where it begins; aligned to the page, read only. */
const uint8_t *cairn_stitch_base(const struct stitch *stitch);
void cairn_stitch_put(struct job *job, struct stitch *stitch); /* NULL is fine */
/* Lets those go that are kept of a copy that is gone. */
void cairn_stitches_sweep(struct job *job);
/* With the job: none is in use any more. */
void cairn_stitches_release(struct job *job);

#endif
