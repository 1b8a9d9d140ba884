/* Chunks of a version that lies on a card come to its copy's side in host memory as they are asked for.
 *
 *   fetch ─► is it there? ── yes ──────────────────────────────────────► answered
 *                └─ no ─► a run of the device's threads copies the chunk ─► all who wait for it
 *
 * A chunk of a version is brought once, whoever asks, and one that nobody asks for never: whole chunks, also
 * where a part of one is asked for, so that many who each want a part of it cost one copy. They are copied
 * beside whatever else the device does, an update included, in lists with that (compute.h). No loop waits:
 * who asked does, in job->replies.coming.
 *
 * While a chunk of a copy is on its way nothing else is written to that copy, it is not closed
 * (cairn_published_lend), and its job is not parked. So what was asked for in time is answered, although an
 * update that follows waits to write there. Loop thread. */
#ifndef CAIRN_SHARD_READ_BRING_H
#define CAIRN_SHARD_READ_BRING_H

#include <stdbool.h>
#include <stdint.h>

struct cairn_published;
struct cairn_reply;
struct cairn_shard_job;

/* Whether a chunk of a copy is in host memory. */
enum cairn_brought { CAIRN_BROUGHT_NOT, CAIRN_BROUGHT_COMING, CAIRN_BROUGHT };

/* The copy has the chunk in host memory. */
bool cairn_bring_has(const struct cairn_published *copy, uint64_t chunk);
/* Some are on their way. */
bool cairn_bring_works(const struct cairn_shard_job *job);
/* The chunk, which is not there, is brought, unless it is on its way: cairn_fetch_brought follows. */
void cairn_bring(struct cairn_reply *reply, const struct cairn_published *copy, uint64_t chunk);
/* The threads have ended: drops what was on its way; no cairn_fetch_brought follows. */
void cairn_bring_drop(struct cairn_shard_job *job);

#endif
