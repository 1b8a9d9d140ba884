/* The header of everything that travels on the fabric: 128 fixed bytes, little-endian, in front of a
 * payload of at most CAIRN_CHUNK_PAYLOAD_MAX bytes.
 *
 * One header serves every kind, so that there is one judge. A field that a kind does not use is 0.
 *
 *   kind       from    to      meaning, and the fields it uses beside magic, kind, job, member, token
 *   HELLO      worker  shard   "here I am (again)": request = the number of the worker's connection. The
 *                              shard answers with its HELLO, and with GRANT if a round is open
 *   HELLO      shard   worker  request = the number of the way it comes by: see below
 *   GRANT      shard   worker  push in this round: epoch, round, value = window (chunks in flight),
 *                              leaf_count = as many small ones beside (0: they are counted as the others),
 *                              micro = as many beside that the shard reads where they lie (0: likewise);
 *                              first_leaf = so many of its chunks, the first ones, it adds up on a card:
 *                              of these it reads memory of the card there, of the others memory of the
 *                              host; request = the number of the way it comes by
 *   PUSH       worker  shard   a contribution: epoch, round, micro, tensor, first_leaf, leaf_count, tile,
 *                              table_hash, dtype, checksum, request = the worker's cookie, value = 1: it
 *                              is counted among those that are read where they lie
 *   ACK        shard   worker  of PUSH or PUT, echoing request: folded (or had before); the buffer is the
 *                              worker's again and a credit is back
 *   NAK        shard   worker  of PUSH, PUT, FETCH, echoing request: value = a cairn_status
 *   MICRO_END  worker  shard   epoch, round, micro, value = chunks sent to this shard; payload: the tensors
 *                              not touched, u32 indices in ascending order
 *   MICRO_ACK  shard   worker  epoch, round, micro: every chunk is past this micro-batch of this member
 *   COMMIT     worker  shard   epoch, round, micro = last micro-batch, value = weight
 *   PUT        worker  shard   initial state: as PUSH but epoch, round and micro; and plane
 *   FETCH      worker  shard   plane, tensor, first_leaf, leaf_count, tile, table_hash, version, request
 *   DATA       shard   worker  the answer: as FETCH, with dtype, checksum and the payload
 *
 * CAIRN_CHUNK_UNSUMMED is a bit of value. In a shard's HELLO and in a worker's FETCH it says that who sends
 * them takes payloads without a checksum (PUSH, DATA); in these, that there is none: the payload went over
 * the network from a card's memory (CAIRN_FABRIC_PATH_DIRECT), where no processor has read it, and what
 * guards it are the network's own checksums.
 *
 * Messages to one peer may overtake each other; nothing here relies on their order. `token` is a secret
 * of the member's session (from the coordinator, over the control channel): a header with another
 * token is dropped. `epoch` and `round` fence: anything of an older one changes nothing. A PUSH, PUT, FETCH
 * or DATA is always of exactly one chunk of the layout's chunk grid (proto/geometry/layout.h).
 *
 * Ways. The worker's endpoint to a shard and the shard's to that worker are two, and each may be lost alone,
 * with what was sent on it. The worker notices its own loss, connects again, and asks again for all that is
 * unanswered. The shard tells the worker of a loss of the shard's own: it says HELLO on every
 * endpoint that it makes in place of a lost one, and as the answer to every HELLO. The number
 * (CAIRN_CHUNK_WAY) is higher for every endpoint that the shard makes to this worker, and for every
 * connection of the worker that it hears of. After a HELLO whose number has a higher endpoint the
 * worker asks again for unanswered PUTs and FETCHes. After a GRANT with a higher number it sends
 * all unanswered PUSHes again; the shard sends that GRANT when nothing of the past is being
 * received. A worker that waits for an answer and hears nothing for a while says HELLO again, with
 * the same number.
 *
 * Relays. If the job's reduce groups are hosts, the shards on a host of several workers take these
 * workers' contributions to all shards, each relay for some of the shards (the owners): a relay
 * adds them up and passes on one contribution (server/shard/relay.h). To its workers a relay
 * speaks for the owner, on its own endpoints: in its GRANT, ACK, NAK and MICRO_ACK `tile` is the
 * index of the owner, and `tensor` of GRANT is 1 + the relay's own. The workers send the relay PUSH
 * as they would the owner, and MICRO_END and COMMIT with `tensor` = 1 + the index of the owner (0:
 * the receiver itself is meant). To the owner the relay is a worker of its own, of which the
 * coordinator has told; `value` of that worker's HELLO is 1. A relay answers a FETCH of another
 * shard's chunk (param, CAIRN_TILE_WHOLE) likewise (DATA with `tile` of the owner), from a copy
 * that it has fetched once for all; if it has none (any more), it answers NAK NOT_FOUND: then the
 * owner is to be asked.
 *
 * Tiles. In a worker's messages `table_hash` is the tiles_digest of the list that it declared
 * (proto/wire/chunk.h; without one, of the empty list): a header with another hash than the shard
 * knows is refused with CAIRN_ERR_MISMATCH. `tile` says which part of the chunk is meant:
 *   CAIRN_TILE_WHOLE  all of it
 *   CAIRN_TILE_OWN    what it has in common with the worker's own box of the tensor
 *   CAIRN_TILE_BOX    FETCH, and PUT in a write, only: with the box (box_encode) that is the payload
 *                     of FETCH, and comes before the elements in that of PUT
 * The payload of PUSH, PUT and DATA is then that part only, ascending, which is one contiguous piece of the
 * box's memory; a part without elements is not sent and not asked for. In a shard's messages `tile`
 * is the shard's index in the layout. */
#ifndef CAIRN_WIRE_CHUNK_H
#define CAIRN_WIRE_CHUNK_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/box.h"
#include "proto/spec/spec.h"

#define CAIRN_CHUNK_HEADER_BYTES 128
#define CAIRN_CHUNK_MAGIC        0x434e5243u /* "CRNC" */
#define CAIRN_CHUNK_PROTOCOL     1
#define CAIRN_CHUNK_PAYLOAD_MAX  (((size_t)4 << 20) + 4096) /* the largest chunk, and a box */
#define CAIRN_CHUNK_SMALL        ((size_t)16 << 10) /* a PUSH with a payload up to here is a small one */
#define CAIRN_TABLE_HASH_WHOLE   0x656c6f6877ull /* of the empty list of tiles: "whole tensors" */

/* Bits of header.value. */
#define CAIRN_CHUNK_OF_RELAY 1u /* of a HELLO: a relay says it, not a shard or a worker */
#define CAIRN_CHUNK_IN_PLACE 1u /* of a PUSH: it takes a credit of chunks that are read in place */
#define CAIRN_CHUNK_UNSUMMED 2u

enum chunk_tile { CAIRN_TILE_WHOLE = 0, CAIRN_TILE_OWN = 1, CAIRN_TILE_BOX = 2 };

enum chunk_kind {
    CAIRN_CHUNK_HELLO = 1,
    CAIRN_CHUNK_GRANT = 2,
    CAIRN_CHUNK_PUSH = 3,
    CAIRN_CHUNK_ACK = 4,
    CAIRN_CHUNK_NAK = 5,
    CAIRN_CHUNK_MICRO_END = 6,
    CAIRN_CHUNK_MICRO_ACK = 7,
    CAIRN_CHUNK_COMMIT = 8,
    CAIRN_CHUNK_PUT = 9,
    CAIRN_CHUNK_FETCH = 10,
    CAIRN_CHUNK_DATA = 11,
    CAIRN_CHUNK_KIND_COUNT = 12 /* one more than the last */
};

/* As it lies in memory; on the wire at the offsets in chunk.c, which asserts them. */
struct chunk_header {
    uint32_t magic;
    uint8_t kind;     /* enum chunk_kind */
    uint8_t protocol; /* CAIRN_CHUNK_PROTOCOL */
    uint8_t dtype;    /* of the payload; cairn_dtype */
    uint8_t plane;    /* enum plane */
    uint64_t job;
    uint64_t epoch;
    uint64_t round;
    uint64_t member; /* the worker's session, whichever way the message goes */
    uint64_t token;
    uint64_t table_hash;
    uint32_t tile;   /* from a worker: enum chunk_tile; from a shard: the shard's index */
    uint32_t tensor; /* index in the job's tensor list */
    uint64_t first_leaf;
    uint32_t leaf_count;
    uint32_t micro;
    uint64_t generation; /* the version asked for or given */
    uint64_t step;
    uint64_t request; /* the sender's cookie, echoed by the answer */
    uint64_t value;
    uint64_t payload_bytes;
    /* XXH3-64 of the payload; 0 without one, of a PUSH through memory of this host, which is folded where it
     * lies, and with CAIRN_CHUNK_UNSUMMED */
    uint64_t checksum;
};

/* The number of a way: of the shard's endpoint (from 1 in a shard's process), and of the worker's connection
 * that the shard heard of last (0: of none). */
#define CAIRN_CHUNK_WAY(endpoint, connection) ((uint64_t)(endpoint) << 32 | (uint32_t)(connection))
#define CAIRN_CHUNK_WAY_ENDPOINT(way)         ((uint32_t)((way) >> 32))

/* Writes the 128 bytes of `header`; magic and protocol are filled in. */
void chunk_encode(const struct chunk_header *header, uint8_t out[CAIRN_CHUNK_HEADER_BYTES]);

/* Judges the bytes of a header that came in with a payload of `payload_bytes` and gives it in
 * `header_out`. The fields that only the job can judge (member, token, epoch, round, the grid) are
 * left to it.
 *   CAIRN_ERR_MALFORMED  not a header of ours, an unknown kind, dtype or plane, a length that is not
 *                        the payload's or over the limit, an index range that overflows
 *   CAIRN_ERR_VERSION    another protocol */
cairn_status chunk_decode(const void *bytes, size_t bytes_len, size_t payload_bytes,
                          struct chunk_header *header_out) CAIRN_MUST_CHECK;

/* XXH3-64 of a payload. */
uint64_t chunk_checksum(const void *payload, size_t payload_bytes);

/* "PUSH"; "?" for a number that is not a kind. */
const char *chunk_kind_name(unsigned kind);

/* ==== tiles ==== */

/* The tiles of a worker: which box of which tensor it holds.
 *
 * A worker that holds only parts of some tensors declares a list: one box a tensor, ascending by tensor.
 * It holds a tensor that is not listed as a whole, and nothing of a tensor with an empty box (an
 * expert that lives on other ranks). The declared boxes of all ranks must make up every tensor
 * exactly: two ranks hold the same box (replicas) or boxes that have no element in common, and
 * together all of it. A tile that is declared for an alias is not looked at: the tensor that the
 * alias names counts.
 *
 * Pure: no input or output. A list owns its memory; one thread changes it, many may read. */

struct tile_box {
    uint32_t tensor; /* index in the job's canonical tensor list */
    struct cairn_box box;
};
/* All zero: the empty list, "whole tensors". */
struct cairn_tiles {
    struct tile_box *list; /* owned: [count], by tensor, none twice */
    size_t count;
};
void tiles_release(struct cairn_tiles *tiles);

/* Sets the box of a tensor, which is not judged here; the list stays sorted. CAIRN_ERR_NO_MEMORY. */
cairn_status tiles_set(struct cairn_tiles *tiles, uint32_t tensor,
                       const struct cairn_box *box) CAIRN_MUST_CHECK;
/* The box of the tensor, which stays the list's; NULL: the whole tensor. */
const struct cairn_box *tiles_find(const struct cairn_tiles *tiles, uint32_t tensor);
bool tiles_equal(const struct cairn_tiles *a, const struct cairn_tiles *b);
/* Names the list in the header of a chunk (table_hash): the first 8 bytes, little-endian, of BLAKE2b-256
 * over "cairn tiles 1" (with its NUL), u64 count, and for each box u32 tensor and the box's bytes (box.h);
 * CAIRN_TABLE_HASH_WHOLE of the empty list. */
uint64_t tiles_digest(const struct cairn_tiles *tiles);

/* A list as bytes of a TileList, malloc'ed; the caller frees them. CAIRN_ERR_NO_MEMORY. */
cairn_status tiles_pack(const struct cairn_tiles *tiles, uint8_t **bytes_out,
                        size_t *bytes_len_out) CAIRN_MUST_CHECK;
/* The reverse, of a stranger's bytes, judged against the spec. CAIRN_ERR_MALFORMED: not a TileList.
 * CAIRN_ERR_INVALID: no such tensor, not ascending, a box that is not within its tensor. */
cairn_status tiles_unpack(const uint8_t *bytes, size_t bytes_len, const struct job_spec_data *spec,
                          struct cairn_tiles *tiles_out, struct sentence *why) CAIRN_MUST_CHECK;

/* Whether the lists of the ranks 0, ..., world - 1 make up every tensor exactly. CAIRN_ERR_MISMATCH:
 * `why` names the tensor, the ranks and boxes that overlap, or a part that no rank holds. Ranks with
 * equal lists cost nothing more than one of them. CAIRN_ERR_NO_MEMORY; CAIRN_ERR_UNSUPPORTED: over
 * 4096 boxes of a tensor of which no straight cut separates any. */
cairn_status tiles_cover(const struct job_spec_data *spec, const struct cairn_tiles *const *of_rank,
                         uint32_t world, struct sentence *why) CAIRN_MUST_CHECK;

#endif
