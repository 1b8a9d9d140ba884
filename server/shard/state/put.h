/* Chunks that members put: of the initial state, or of a write. Loop thread. */
#ifndef CAIRN_SHARD_STATE_PUT_H
#define CAIRN_SHARD_STATE_PUT_H

#include "proto/fabric/fabric.h"
#include "proto/geometry/layout.h"
#include "proto/wire/chunk.h"
#include "server/shard/collect/tiles.h"
#include "server/shard/memory/arena.h"

struct cairn_shard_job;
struct cairn_member;
struct cairn_write;

enum { CAIRN_SHARD_PUTS_MAX = 16 }; /* of a job, being received */

/* A chunk that is being received. */
struct cairn_put {
    struct cairn_shard_job *job; /* borrowed; NULL: free */
    struct cairn_chunk_header header;
    struct cairn_chunk_place place;
    struct cairn_piece piece;
    uint64_t chunk; /* in the map */
};

/* Bits of a chunk: the planes that were put; and the moments that lie there but do not count,
 * because their member did not come to the end: the seal makes these 0. */
#define CAIRN_PUT_HAS(plane)   (1u << (plane))
#define CAIRN_PUT_STALE(plane) (CAIRN_PUT_HAS(plane) << CAIRN_PUT_STALE_SHIFT)
#define CAIRN_PUT_STALE_SHIFT  3
_Static_assert(CAIRN_PUT_STALE(CAIRN_PLANE_EXP_AVG_SQ) <= UINT8_MAX, "they are bytes");

/* The puts of a job. */
struct cairn_puts {
    struct cairn_put list[CAIRN_SHARD_PUTS_MAX]; /* `max` of them are used */
    uint32_t max;
    size_t bytes;              /* of each: a chunk and a box */
    struct cairn_arena arena;  /* [max][bytes], while the job is not SERVING or a write is open */
    uint8_t *have;             /* owned: [map.chunk_count] CAIRN_PUT_... of the initial state */
    uint64_t moments_of;       /* the member whose moments count; 0: nobody's */
    struct cairn_write *write; /* owned; NULL: no write is open */
};

void cairn_put_on_message(struct cairn_member *member, const struct cairn_chunk_header *header,
                          struct cairn_fabric_message *message);
/* CAIRN_OK: every chunk was put. CAIRN_ERR_NOT_READY: `why` names what is missing. */
CAIRN_MUST_CHECK cairn_status cairn_put_whole(const struct cairn_shard_job *job,
                                              struct cairn_sentence *why);
/* The moments of this member count, and those that others put are stale. */
void cairn_put_count_moments(struct cairn_shard_job *job, uint64_t member);
/* Sealed before, when another shard's part was missing: all moments that are sealed count, so their member
 * put them, or put them again. CAIRN_ERR_EXISTS. */
CAIRN_MUST_CHECK cairn_status cairn_put_judge_again(const struct cairn_shard_job *job,
                                                    struct cairn_sentence *why);
/* It serves: gives the buffers of puts back. */
void cairn_put_end(struct cairn_shard_job *job);
/* A write is open: they are needed again. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_put_open_buffers(struct cairn_shard_job *job,
                                                     struct cairn_sentence *why);

/* The chunk that a PUT names: chunk and place of *out are set. CAIRN_ERR_MALFORMED: it is not one of
 * here. */
CAIRN_MUST_CHECK cairn_status cairn_put_judge_chunk(const struct cairn_shard_job *job,
                                                    const struct cairn_chunk_header *header,
                                                    struct cairn_put *out,
                                                    struct cairn_sentence *why);
/* The dtype that a PUT's plane must have. */
cairn_dtype cairn_put_dtype(const struct cairn_shard_job *job, const struct cairn_put *put);
/* The plane is one of state, as the chunk of `put` keeps it. CAIRN_ERR_MALFORMED, CAIRN_ERR_NOT_FOUND. */
CAIRN_MUST_CHECK cairn_status cairn_put_judge_plane(const struct cairn_shard_job *job,
                                                    const struct cairn_chunk_header *header,
                                                    const struct cairn_put *put,
                                                    struct cairn_sentence *why);
/* CAIRN_ERR_MALFORMED: the payload is not as long as put->piece in the header's dtype. */
CAIRN_MUST_CHECK cairn_status cairn_put_judge_payload(const struct cairn_chunk_header *header,
                                                      const struct cairn_put *put,
                                                      struct cairn_sentence *why);

#endif
