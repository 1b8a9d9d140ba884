/* The bytes between processes: headers of bulk data, and control messages. */
#ifndef CAIRN_WIRE_WIRE_H
#define CAIRN_WIRE_WIRE_H

#include <protobuf-c/protobuf-c.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "control.pb-c.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"

/* ==== chunks ==== */

/* Everything that travels on the fabric begins with this header: 128 fixed bytes, little-endian, in front
 * of a payload of at most CAIRN_CHUNK_PAYLOAD_MAX bytes.
 *
 * One header serves every kind, so that one function validates all. A field that a kind does not use is 0.
 *
 *   kind       from    to      meaning, and the fields it uses beside magic, kind, job, member, token
 *   HELLO      worker  shard   "here I am (again)": request = the number of the worker's connection. The
 *                              shard answers with its HELLO, and with GRANT if a round is open
 *   HELLO      shard   worker  request = the number of the way by which this HELLO arrives: see below
 *   GRANT      shard   worker  push in this round: epoch, round, value = window (chunks in flight),
 *                              leaf_count = the window of small chunks (0: small chunks count as the
 *                              others), micro = the window of chunks that the shard reads in place (0: it
 *                              reads none in place); first_leaf = n: the shard adds up its first n chunks
 *                              on a card, and reads these chunks in place in memory of the card, all others
 *                              in memory of the host; request = the number of the way by which this GRANT
 *                              arrives
 *   PUSH       worker  shard   a contribution: epoch, round, micro, tensor, first_leaf, leaf_count, tile,
 *                              table_hash, dtype, checksum, request = the worker's cookie, value = 1: the
 *                              chunk is counted among the chunks that are read in place
 *   ACK        shard   worker  answers PUSH or PUT, echoing request: the chunk is folded or received, now
 *                              or before; the buffer belongs to the worker again, and a credit is returned
 *   NAK        shard   worker  answers PUSH, PUT, FETCH, echoing request: value = a cairn_status
 *   MICRO_END  worker  shard   epoch, round, micro, value = chunks sent to this shard; payload: the tensors
 *                              not touched, u32 indices in ascending order
 *   MICRO_ACK  shard   worker  epoch, round, micro: every chunk is past this micro-batch of this member
 *   COMMIT     worker  shard   epoch, round, micro = last micro-batch, value = weight
 *   PUT        worker  shard   initial state: as PUSH without epoch, round and micro, but with plane; in a
 *                              write with round, too
 *   FETCH      worker  shard   plane, tensor, first_leaf, leaf_count, tile, table_hash, version, request;
 *                              from a standby, round: the sums of the round that the shard is prepared for
 *   DATA       shard   worker  the answer: as FETCH, with dtype, checksum and the payload
 *
 * CAIRN_CHUNK_UNSUMMED is a bit of value. In a shard's HELLO and in a worker's FETCH the bit says that the
 * sender accepts payloads without a checksum (PUSH, DATA). In PUSH and DATA the bit says that there is no
 * checksum: the payload was sent over the network directly from a card's memory (CAIRN_FABRIC_PATH_DIRECT).
 * No processor has read such a payload, and only the network's own checksums guard it.
 *
 * Messages to one peer may overtake each other; nothing here relies on their order. `token` is a secret
 * of the member's session (from the coordinator, over the control channel): a header with another
 * token is dropped. `epoch` and `round` are fences: a message of an older epoch or round changes nothing. A
 * PUSH, PUT, FETCH or DATA always holds exactly one chunk of the layout's chunk grid
 * (proto/geometry/layout.h).
 *
 * Ways. The worker has an endpoint to a shard, and the shard has another endpoint to that worker. Each
 * endpoint may be lost alone, together with the messages that were sent on it. A worker that loses its
 * endpoint notices the loss, connects again, and asks again for everything that is unanswered. A shard that
 * loses its endpoint tells the worker: the shard sends HELLO on every endpoint that it makes in place of a
 * lost one. The shard also answers every HELLO with HELLO. The number in HELLO (CAIRN_CHUNK_WAY) grows with
 * every endpoint that the shard makes to this worker, and with every connection of the worker that the
 * shard hears of. After a HELLO whose number has a higher endpoint the worker sends its unanswered PUTs and
 * FETCHes again. After a GRANT with a higher number the worker sends all unanswered PUSHes again; the shard
 * sends that GRANT only when it is no longer receiving anything that was sent earlier. A worker that waits
 * for an answer and hears nothing for a while sends HELLO again, with the same number.
 *
 * Relays. If the job's reduce groups are hosts, the shards on a host with several workers are relays: they
 * receive what these workers contribute to all shards. Each relay acts for some of the shards (the owners):
 * it adds up the contributions to an owner, and passes on one contribution (server/shard/relay.h). Towards
 * its workers a relay speaks for the owner, on its own endpoints: in its GRANT, ACK, NAK and MICRO_ACK
 * `tile` is the index of the owner, and `tensor` of GRANT is 1 + the index of the relay itself. The workers
 * send PUSH to the relay as they would to the owner. The workers send MICRO_END and COMMIT with `tensor` =
 * 1 + the index of the owner (0: the receiver itself is meant). Towards the owner the relay acts as a
 * separate worker, which the coordinator has announced; `value` of that worker's HELLO is 1. A relay also
 * answers a FETCH of another shard's chunk (param, CAIRN_TILE_WHOLE): the relay sends DATA with `tile` of
 * the owner, from a copy that it has fetched once for all workers. A relay without such a copy answers NAK
 * NOT_FOUND: then the worker asks the owner.
 *
 * Tiles. In a worker's messages `table_hash` is the tiles_digest of the list that the worker declared (see
 * "tiles" below; without a list, the digest of the empty list). If a header has another hash than the shard
 * knows, the shard refuses the message with CAIRN_ERR_MISMATCH. `tile` says which part of the chunk is
 * meant:
 *   CAIRN_TILE_WHOLE  all of it
 *   CAIRN_TILE_OWN    the elements that the chunk shares with the worker's own box of the tensor
 *   CAIRN_TILE_BOX    FETCH, and PUT in a write, only: the elements in the box (box_encode) that is the
 *                     payload of FETCH, and precedes the elements in the payload of PUT
 * The payload of PUSH, PUT and DATA is then only that part, in ascending order, which is one contiguous
 * piece of the box's memory. A part without elements is neither sent nor asked for. In a shard's messages
 * `tile` is the shard's index in the layout. */

#define CAIRN_CHUNK_HEADER_BYTES 128
#define CAIRN_CHUNK_MAGIC        0x434e5243u /* "CRNC" */
#define CAIRN_CHUNK_PROTOCOL     1
#define CAIRN_CHUNK_PAYLOAD_MAX  (((size_t)4 << 20) + 4096) /* the largest chunk with a box */
#define CAIRN_CHUNK_SMALL        ((size_t)16 << 10) /* the largest payload of a small PUSH */
/* the hash of the empty list of tiles: "whole tensors" */
#define CAIRN_TABLE_HASH_WHOLE 0x656c6f6877ull

/* Bits of header.value. */
#define CAIRN_CHUNK_OF_RELAY 1u /* in a HELLO: the sender is a relay, not a shard or a worker */
/* in a PUSH: the chunk takes a credit of the window for chunks that are read in place */
#define CAIRN_CHUNK_IN_PLACE 1u
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

/* This is the layout in memory. On the wire the fields have the offsets in chunk.c, which asserts them. */
struct chunk_header {
    uint32_t magic;
    uint8_t kind;     /* enum chunk_kind */
    uint8_t protocol; /* CAIRN_CHUNK_PROTOCOL */
    uint8_t dtype;    /* of the payload; cairn_dtype */
    uint8_t plane;    /* enum plane */
    uint64_t job;
    uint64_t epoch;
    uint64_t round;
    uint64_t member; /* the worker's session, in both directions */
    uint64_t token;
    uint64_t table_hash;
    uint32_t tile;   /* from a worker: enum chunk_tile; from a shard: the shard's index */
    uint32_t tensor; /* index in the job's tensor list */
    uint64_t first_leaf;
    uint32_t leaf_count;
    uint32_t micro;
    uint64_t generation; /* the version that is asked for or sent */
    uint64_t step;
    uint64_t request; /* the sender's cookie, echoed by the answer */
    uint64_t value;
    uint64_t payload_bytes;
    /* XXH3-64 of the payload. 0 if there is no payload, with CAIRN_CHUNK_UNSUMMED, and in a PUSH through
     * memory of this host, whose payload is folded in place */
    uint64_t checksum;
};

/* The number of a way consists of two numbers: the number of the shard's endpoint (from 1 in a shard's
 * process), and the number of the worker's newest connection that the shard has heard of (0: none). */
#define CAIRN_CHUNK_WAY(endpoint, connection) ((uint64_t)(endpoint) << 32 | (uint32_t)(connection))
#define CAIRN_CHUNK_WAY_ENDPOINT(way)         ((uint32_t)((way) >> 32))

/* Writes the 128 bytes of `header`, and fills in magic and protocol. */
void chunk_encode(const struct chunk_header *header, uint8_t out[CAIRN_CHUNK_HEADER_BYTES]);

/* Validates the bytes of a header that arrived with a payload of `payload_bytes`, and writes the header to
 * `header_out`. The job validates the fields that only the job can judge (member, token, epoch, round, the
 * grid).
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

/* The tiles of a worker say which box of which tensor the worker holds.
 *
 * A worker that holds only parts of some tensors declares a list: one box per tensor, ascending by tensor.
 * The worker holds all of a tensor that is not listed, and nothing of a tensor with an empty box (an expert
 * that lives on other ranks). The declared boxes of all ranks must make up every tensor exactly: two ranks
 * hold the same box (replicas) or boxes that have no element in common, and all ranks together hold the
 * complete tensor. A tile that is declared for an alias is ignored: only the tile of the tensor that the
 * alias names counts.
 *
 * Pure: no input or output. A list owns its memory. One thread at a time may change a list, and many may
 * read it. */

struct tile_box {
    uint32_t tensor; /* index in the job's canonical tensor list */
    struct cairn_box box;
};
/* All zero: the empty list, "whole tensors". */
struct tiles {
    struct tile_box *list; /* owned: [count], sorted by tensor, no tensor twice */
    size_t count;
};
void tiles_release(struct tiles *tiles);

/* Sets the box of a tensor, without validating it; the list stays sorted. CAIRN_ERR_NO_MEMORY. */
cairn_status tiles_set(struct tiles *tiles, uint32_t tensor,
                       const struct cairn_box *box) CAIRN_MUST_CHECK;
/* Returns the box of the tensor, owned by the list; NULL: the worker holds the complete tensor. */
const struct cairn_box *tiles_find(const struct tiles *tiles, uint32_t tensor);
bool tiles_equal(const struct tiles *a, const struct tiles *b);
/* Returns the hash that names the list in the header of a chunk (table_hash): the first 8 bytes,
 * little-endian, of BLAKE2b-256 over "cairn tiles 1" (with its NUL), u64 count, and for each box u32 tensor
 * and the box's bytes (layout.h); CAIRN_TABLE_HASH_WHOLE for the empty list. */
uint64_t tiles_digest(const struct tiles *tiles);

/* Packs a list as bytes of a TileList, malloc'ed; the caller frees them. CAIRN_ERR_NO_MEMORY. */
cairn_status tiles_pack(const struct tiles *tiles, uint8_t **bytes_out,
                        size_t *bytes_len_out) CAIRN_MUST_CHECK;
/* The reverse of tiles_pack, for a stranger's bytes; validates the list against the spec.
 * CAIRN_ERR_MALFORMED: the bytes are not a TileList. CAIRN_ERR_INVALID: there is no such tensor, the list
 * is not ascending, or a box is not within its tensor. */
cairn_status tiles_unpack(const uint8_t *bytes, size_t bytes_len, const struct job_spec_data *spec,
                          struct tiles *tiles_out, struct sentence *why) CAIRN_MUST_CHECK;

/* Checks that the lists of the ranks 0, ..., world - 1 make up every tensor exactly. CAIRN_ERR_MISMATCH:
 * `why` names the tensor, the ranks and boxes that overlap, or a part that no rank holds. Several ranks
 * with equal lists cost no more than one such rank. CAIRN_ERR_NO_MEMORY. CAIRN_ERR_UNSUPPORTED: a tensor
 * has a set of more than 4096 boxes that no straight cut separates. */
cairn_status tiles_cover(const struct job_spec_data *spec, const struct tiles *const *of_rank,
                         uint32_t world, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== frame ==== */

/* Control frames: how messages are cut out of a stream of bytes. Pure: no socket, no clock.
 *
 *   offset 0  u32  magic "CRN1"                        little-endian throughout
 *          4  u16  type, the number of the message (proto/wire/wire.h)
 *          6  u16  flags, 0 in this version
 *          8  u32  payload bytes that follow
 *         12  u32  request id; 0 = not a request; a reply carries its request's id
 *         16  ...  payload: the message, packed by protobuf-c
 *
 * The decoder validates the bytes of a header as soon as these bytes arrive: a stream that begins with
 * anything but "C" is refused at its first byte. The decoder allocates nothing for the payload before the
 * header is validated. The decoder's buffer grows only when bytes have really arrived, by doubling, and
 * never above the limit that the caller set. The limit counts the complete frame: 16 KiB before a peer's
 * Hello (a fabric address of 4 KiB, a name, a version and a device; a shard with many jobs sends several
 * Hellos), and 1 MiB after the Hello.
 *
 * Calling sequence, for libuv and for blocking sockets alike:
 *   frame_decoder_init(&d, limits);
 *   frame_decoder_reserve(&d, &room, &room_bytes);      read(fd, room, room_bytes) -> n
 *   frame_decoder_added(&d, n);
 *   while (frame_decoder_next(&d, &frame, &why) == CAIRN_FRAME_READY) use(&frame);
 *   ... until CAIRN_FRAME_MALFORMED (close the connection) ...   frame_decoder_release(&d); */

#define CAIRN_FRAME_HEADER_BYTES 16u
#define CAIRN_FRAME_HELLO_BYTES \
    (16u << 10) /* the largest complete frame before Hello, and the largest Hello */
#define CAIRN_FRAME_BYTES_MAX (1u << 20) /* largest complete frame after Hello */

/* The frames that a connection accepts in its present state. */
struct frame_limits {
    uint16_t type_min; /* types outside type_min..type_max are refused at the header */
    uint16_t type_max;
    uint32_t frame_bytes; /* largest frame, header included; at most CAIRN_FRAME_BYTES_MAX */
};

/* One frame. `payload` is borrowed from the decoder until the decoder's next call. */
struct wire_frame {
    uint16_t type;
    uint32_t request;
    const uint8_t *payload;
    size_t payload_bytes;
};

enum frame_state {
    CAIRN_FRAME_NONE,      /* all bytes that arrived are valid; more bytes are needed */
    CAIRN_FRAME_READY,     /* a complete frame was taken out */
    CAIRN_FRAME_MALFORMED, /* the stream is garbage from here on: close it */
    CAIRN_FRAME_NO_MEMORY, /* only from reserve */
};

struct frame_decoder {
    /* owned: freed by frame_decoder_release */
    uint8_t *bytes;  /* [capacity]; the bytes [start, end) have arrived and are not yet taken out */
    size_t capacity; /* 0 while nothing is waiting and nothing was reserved */
    size_t start;
    size_t end;
    struct frame_limits limits;
    int malformed;
};

void frame_decoder_init(struct frame_decoder *decoder, struct frame_limits limits);
void frame_decoder_release(struct frame_decoder *decoder);

/* Changes the limits from the next header on (the peer sent Hello). */
void frame_decoder_limit(struct frame_decoder *decoder, struct frame_limits limits);

/* Lends room for at least one more byte until frame_decoder_added. CAIRN_FRAME_NONE: the room is
 * lent. CAIRN_FRAME_READY: the buffer is full, so take frames out first. CAIRN_FRAME_NO_MEMORY: nothing
 * changed. */
enum frame_state frame_decoder_reserve(struct frame_decoder *decoder, uint8_t **room_out,
                                       size_t *room_bytes_out);
/* Tells the decoder that `added_bytes` of the reserved room were filled; 0 gives the room back. */
void frame_decoder_added(struct frame_decoder *decoder, size_t added_bytes);

/* Adds as many of the bytes as there is room for, and writes how many these are. The results are those of
 * frame_decoder_reserve. */
enum frame_state frame_decoder_feed(struct frame_decoder *decoder, const uint8_t *bytes,
                                    size_t count, size_t *taken_out);

/* Takes the next frame out. If there is none, the result says why. `why` is written if the result is
 * CAIRN_FRAME_MALFORMED. */
enum frame_state frame_decoder_next(struct frame_decoder *decoder, struct wire_frame *frame_out,
                                    struct sentence *why);

/* Gives back memory that a large frame needed. Call this when no frame is in use any more. */
void frame_decoder_trim(struct frame_decoder *decoder);

/* Writes a header. */
void frame_header_write(uint8_t header_out[CAIRN_FRAME_HEADER_BYTES], uint16_t type,
                        uint32_t request, uint32_t payload_bytes);

/* Packs a complete frame into `*frame_out`, [*frame_bytes_out], malloc'ed; the caller frees it.
 * CAIRN_ERR_INVALID: the frame is larger than frame_bytes_max (some list is too long, and must be sent in
 * pages). CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status frame_pack(uint16_t type, uint32_t request,
                                         const ProtobufCMessage *message, uint32_t frame_bytes_max,
                                         uint8_t **frame_out, size_t *frame_bytes_out,
                                         struct sentence *why);

/* ==== packed ==== */

/* Packed bytes with several holders: a job's spec, its layout, a list of tiles. The bytes never change; the
 * last release frees them. Any thread. */

struct packed {
    atomic_uint holds;
    size_t size;          /* bytes */
    const uint8_t *bytes; /* owned */
};

/* Takes ownership of malloc'ed bytes, and frees the bytes if the call fails. The result has one hold, the
 * caller's. Returns NULL if there is no memory, or if `bytes` is NULL. */
struct packed *packed_take(uint8_t *bytes, size_t size);
/* Like packed_take, with a copy of the bytes: the caller keeps the original. */
struct packed *packed_copy(const uint8_t *bytes, size_t size);
struct packed *packed_spec(const struct job_spec_data *spec);
struct packed *packed_layout(const struct layout *layout);
struct packed *packed_tiles(const struct tiles *tiles);
struct packed *packed_hold(struct packed *packed);
void packed_release(struct packed *packed); /* NULL is fine */

/* ==== messages ==== */

/* This part lists the control messages by number, and converts between their fields and the plain data that
 * the cores and the planner use. Message texts, senders and receivers: control.proto. */

#define CAIRN_CONTROL_PROTOCOL 3
#define CAIRN_HELD_JOBS_MAX    1024 /* jobs of one shard that Hello and HeldJobs list */

/* X(number, CONSTANT, ProtobufMessage, proto_message) */
#define CAIRN_MESSAGE_TABLE(X)                                      \
    X(1, HELLO, Hello, hello)                                       \
    X(2, WELCOME, Welcome, welcome)                                 \
    X(3, ERROR, Error, error)                                       \
    X(4, HEARTBEAT, Heartbeat, heartbeat)                           \
    X(5, DONE, Done, done)                                          \
    X(6, PAGE, Page, page)                                          \
    X(10, JOB_OPEN, JobOpen, job_open)                              \
    X(11, ATTACHED, Attached, attached)                             \
    X(12, JOB_LEAVE, JobLeave, job_leave)                           \
    X(13, INIT_DONE, InitDone, init_done)                           \
    X(14, ROUND_BEGIN, RoundBegin, round_begin)                     \
    X(15, ROUND_OPENED, RoundOpened, round_opened)                  \
    X(16, ROUND_COMMIT, RoundCommit, round_commit)                  \
    X(17, ROUND_RESULT, RoundResult, round_result)                  \
    X(18, VERSION_WAIT, VersionWait, version_wait)                  \
    X(19, VERSION_READY, VersionReady, version_ready)               \
    X(20, SHARDS_CHANGED, ShardsChanged, shards_changed)            \
    X(21, WHO_IS_AWAITED, WhoIsAwaited, who_is_awaited)             \
    X(22, AWAITED, Awaited, awaited)                                \
    X(23, TILES_DECLARE, TilesDeclare, tiles_declare)               \
    X(24, TILES_SET, TilesSet, tiles_set)                           \
    X(25, JOB_AMEND, JobAmend, job_amend)                           \
    X(26, JOB_AMENDED, JobAmended, job_amended)                     \
    X(28, WRITE_BEGIN, WriteBegin, write_begin)                     \
    X(29, WRITE_CANCEL, WriteCancel, write_cancel)                  \
    X(30, JOB_CREATE, JobCreate, job_create)                        \
    X(31, JOB_SEAL, JobSeal, job_seal)                              \
    X(32, JOB_DROP, JobDrop, job_drop)                              \
    X(33, MEMBER_JOIN, MemberJoin, member_join)                     \
    X(34, MEMBER_LEAVE, MemberLeave, member_leave)                  \
    X(35, ROUND_OPEN, RoundOpen, round_open)                        \
    X(36, REDUCED, Reduced, reduced)                                \
    X(37, DECIDE, Decide, decide)                                   \
    X(38, PUBLISHED, Published, published)                          \
    X(39, FENCE, Fence, fence)                                      \
    X(40, ANSWER, Answer, answer)                                   \
    X(41, RESOLVE, Resolve, resolve)                                \
    X(42, PIN, Pin, pin)                                            \
    X(43, SNAPSHOT_PART, SnapshotPart, snapshot_part)               \
    X(45, MEMBER_TILES, MemberTiles, member_tiles)                  \
    X(46, MEMBER_FAULT, MemberFault, member_fault)                  \
    X(47, JOB_SWITCH, JobSwitch, job_switch)                        \
    X(48, RELAY_SET, RelaySet, relay_set)                           \
    X(49, JOB_TERMS, JobTerms, job_terms)                           \
    X(50, LEASE_TAKE, LeaseTake, lease_take)                        \
    X(51, LEASED, Leased, leased)                                   \
    X(52, LEASE_DROP, LeaseDrop, lease_drop)                        \
    X(53, LEASE_KEEP, LeaseKeep, lease_keep)                        \
    X(54, LEASE_END, LeaseEnd, lease_end)                           \
    X(55, HELD_JOBS, HeldJobs, held_jobs)                           \
    X(56, PART_GET, PartGet, part_get)                              \
    X(57, PART, Part, part)                                         \
    X(58, SNAPSHOT_PART_NEXT, SnapshotPartNext, snapshot_part_next) \
    X(59, PART_PARK, PartPark, part_park)                           \
    X(60, CLUSTER_STATUS_GET, ClusterStatusGet, cluster_status_get) \
    X(61, CLUSTER_STATUS, ClusterStatus, cluster_status)            \
    X(62, JOB_LIST_GET, JobListGet, job_list_get)                   \
    X(63, JOB_LIST, JobList, job_list)                              \
    X(64, JOB_SHOW, JobShow, job_show)                              \
    X(65, JOB_STATUS, JobStatus, job_status)                        \
    X(66, JOB_DIGEST_GET, JobDigestGet, job_digest_get)             \
    X(67, JOB_DIGEST, JobDigest, job_digest)                        \
    X(68, SNAPSHOT_CREATE, SnapshotCreate, snapshot_create)         \
    X(69, SNAPSHOT_STATUS, SnapshotStatus, snapshot_status)         \
    X(70, SNAPSHOT_LIST_GET, SnapshotListGet, snapshot_list_get)    \
    X(71, SNAPSHOT_LIST, SnapshotList, snapshot_list)               \
    X(72, SNAPSHOT_SHOW, SnapshotShow, snapshot_show)               \
    X(73, SNAPSHOT_RESTORE, SnapshotRestore, snapshot_restore)      \
    X(74, JOB_REMOVE, JobRemove, job_remove)                        \
    X(75, JOB_REMOVED, JobRemoved, job_removed)                     \
    X(76, SNAPSHOT_REMOVE, SnapshotRemove, snapshot_remove)         \
    X(77, SNAPSHOT_REMOVED, SnapshotRemoved, snapshot_removed)      \
    X(78, JOB_PARK, JobPark, job_park)                              \
    X(79, JOB_PARKED, JobParked, job_parked)                        \
    X(80, STORE_ADOPTED, StoreAdopted, store_adopted)               \
    X(81, PART_DROP, PartDrop, part_drop)                           \
    X(82, CLUSTER_ADOPT, ClusterAdopt, cluster_adopt)               \
    X(83, CLUSTER_ADOPTED, ClusterAdopted, cluster_adopted)         \
    X(84, CLUSTER_FORGET, ClusterForget, cluster_forget)            \
    X(85, CLUSTER_FORGOTTEN, ClusterForgotten, cluster_forgotten)   \
    X(86, SNAPSHOT_CANCEL, SnapshotCancel, snapshot_cancel)         \
    X(87, SNAPSHOT_CANCELED, SnapshotCanceled, snapshot_canceled)   \
    X(88, SHARD_FORGET, ShardForget, shard_forget)                  \
    X(89, CLUSTER_BACKUP, ClusterBackup, cluster_backup)            \
    X(90, PROBE, Probe, probe)                                      \
    X(91, LACKS_GET, LacksGet, lacks_get)                           \
    X(92, LACKS, Lacks, lacks)                                      \
    X(93, CLUSTER_BACKED_UP, ClusterBackedUp, cluster_backed_up)    \
    X(94, PAUSE, Pause, pause)                                      \
    X(95, PIN_FOLDER, PinFolder, pin_folder)                        \
    X(125, PIN_PREPARE, PinPrepare, pin_prepare)                    \
    X(110, JOB_SPEC_GET, JobSpecGet, job_spec_get)                  \
    X(111, JOB_SPEC_TOLD, JobSpecTold, job_spec_told)               \
    X(112, EVENTS_GET, EventsGet, events_get)                       \
    X(113, EVENTS, Events, events)                                  \
    X(114, PART_PREPARE, PartPrepare, part_prepare)                 \
    X(115, PART_UNPREPARE, PartUnprepare, part_unprepare)           \
    X(116, PART_MOVED, PartMoved, part_moved)                       \
    X(117, PART_SETTLED, PartSettled, part_settled)                 \
    X(118, PART_PUBLISH, PartPublish, part_publish)                 \
    X(119, LAYOUT_CHANGED, LayoutChanged, layout_changed)           \
    X(120, RESHARD_ASK, ReshardAsk, reshard_ask)                    \
    X(121, RESHARD_TOLD, ReshardTold, reshard_told)                 \
    X(122, MEMBER_DRAIN, MemberDrain, member_drain)                 \
    X(123, DRAIN_ME, DrainMe, drain_me)                             \
    X(124, MEMBER_END, MemberEnd, member_end)                       \
    X(128, KEYS_GET, KeysGet, keys_get)                             \
    X(129, KEYS, Keys, keys)                                        \
    X(130, KEY_TRUST, KeyTrust, key_trust)                          \
    X(135, SNAPSHOT_PRUNE, SnapshotPrune, snapshot_prune)           \
    X(136, SNAPSHOT_PRUNED, SnapshotPruned, snapshot_pruned)        \
    X(137, SNAPSHOT_TAG, SnapshotTag, snapshot_tag)                 \
    X(138, SNAPSHOT_TAGGED, SnapshotTagged, snapshot_tagged)        \
    X(141, SNAPSHOT_ADVISE, SnapshotAdvise, snapshot_advise)        \
    X(142, SNAPSHOT_ADVICE, SnapshotAdvice, snapshot_advice)        \
    X(143, CLUSTER_INIT, ClusterInit, cluster_init)                 \
    X(144, CLUSTER_INITED, ClusterInited, cluster_inited)           \
    X(145, KEY_CHANGE, KeyChange, key_change)                       \
    X(146, KEY_CHANGED, KeyChanged, key_changed)                    \
    X(147, AUDIT_GET, AuditGet, audit_get)                          \
    X(148, PART_STOPPED, PartStopped, part_stopped)                 \
    X(150, JOB_SHARE, JobShare, job_share)                          \
    X(151, JOB_SHARED, JobShared, job_shared)                       \
    X(152, QUOTA_GET, QuotaGet, quota_get)                          \
    X(153, QUOTAS, Quotas, quotas)                                  \
    X(154, MIRROR_OF, MirrorOf, mirror_of)                          \
    X(155, MIRROR_SUMS, MirrorSums, mirror_sums)                    \
    X(156, MIRROR_FILLED, MirrorFilled, mirror_filled)              \
    X(161, AUDIT_LOOK, AuditLook, audit_look)                       \
    X(162, AUDIT_LOOKED, AuditLooked, audit_looked)                 \
    X(170, PART_FORMER, PartFormer, part_former)                    \
    X(171, JOB_ROLLBACK, JobRollback, job_rollback)                 \
    X(172, JOB_ROLLED_BACK, JobRolledBack, job_rolled_back)         \
    X(180, LOG_BASE, LogBase, log_base)

enum wire_message {
#define X(number, constant, type, field) CAIRN_MSG_##constant = (number),
    CAIRN_MESSAGE_TABLE(X)
#undef X
};
#define CAIRN_MSG_MAX 180

/* How many versions of a job can be leased at a time. Every shard has one more published copy for each
 * leased version. */
#define CAIRN_LEASED_VERSIONS_MAX 4
/* The most entries of Heartbeat.bytes. */
#define CAIRN_BYTES_TOLD_MAX 1024

/* Lacks.flags */
enum lack_flags {
    /* everything that the worker can send now has arrived, and other workers must send first */
    CAIRN_LACK_WAITS = 1,
    CAIRN_LACK_RELAYED = 2, /* the data is lacking at the relay */
    CAIRN_LACK_ARRIVED = 4, /* some of the micro-batch has arrived */
};

/* InFlight.what */
enum in_flight {
    CAIRN_FLIES_FETCH = 1, /* requests to a shard */
    CAIRN_FLIES_PUSH = 2,  /* pushes that no shard has added up yet */
};

/* ReshardAsk.op */
enum reshard_op {
    CAIRN_RESHARD_PLAN = 0,
    CAIRN_RESHARD_APPLY = 1,
    CAIRN_RESHARD_STATUS = 2,
    CAIRN_RESHARD_CANCEL = 3,
};

/* KeyChange.op */
enum key_change {
    CAIRN_KEY_ADD = 1,
    CAIRN_KEY_REVOKE = 2,
    CAIRN_KEY_ROTATE = 3,
    CAIRN_KEY_ROTATE_CLUSTER = 4,
};

/* The role of the sender, in Hello and in MemberJoin. */
enum role_wire {
    CAIRN_ROLE_WIRE_WORKER = 1,
    CAIRN_ROLE_WIRE_READER = 2,
    CAIRN_ROLE_WIRE_SHARD = 3,
    CAIRN_ROLE_WIRE_ADMIN = 4
};
/* "worker"; "?" for a number that is not a role. */
const char *role_name(uint32_t role);

/* The message type of a number; NULL if there is none. */
const ProtobufCMessageDescriptor *message_type(uint16_t number);
/* "JobOpen"; "?" for a number that is not a message. */
const char *message_name(uint16_t number);
/* Messages about a job have its number as their first field, `job`. Returns where the message has that
 * number; NULL if its first field is another one. */
uint64_t *message_job(ProtobufCMessage *message);

/* Like protobuf_c_message_unpack, with a budget of memory that is a small multiple of the message's length:
 * a message of a few bytes can ask for a thousand times its size in structs. NULL if the message is
 * malformed or over the budget, and with errno ENOMEM if there is no memory. Only message_free frees the
 * result. */
ProtobufCMessage *message_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes,
                                 size_t bytes_len);
void message_free(ProtobufCMessage *message); /* NULL is fine */
/* Makes every string in the message valid text of one or several lines (text_mend), before the message is
 * shown to people. */
void message_mend(ProtobufCMessage *message);

/* The message that a Page is part of. */
enum page_what { CAIRN_PAGE_SPEC = 1, CAIRN_PAGE_LAYOUT = 2, CAIRN_PAGE_TILES = 3 };
#define CAIRN_PAGE_BYTES      ((size_t)256 << 10) /* a full page */
#define CAIRN_PAGED_BYTES_MAX ((uint64_t)64 << 20)

/* Bytes that arrive page by page: one of the parts that follow a message, which has at most one part of a
 * kind. Memory grows with the bytes that have arrived, never with the bytes that were announced. A part
 * that is all zero is none, and is complete. */
struct paged {
    enum page_what what;
    uint8_t *bytes; /* owned; [have_bytes] */
    size_t have_bytes, capacity_bytes;
    uint64_t total_bytes; /* the bytes that were announced */
};
/* CAIRN_ERR_INVALID if total_bytes is over CAIRN_PAGED_BYTES_MAX. */
cairn_status paged_init(struct paged *part, enum page_what what,
                        uint64_t total_bytes) CAIRN_MUST_CHECK;
void paged_release(struct paged *parts, size_t count);
/* Adds a page to its part. CAIRN_ERR_PROTOCOL if the page is of no part, or is not the part's next page, or
 * exceeds the part's total. */
cairn_status paged_add(struct paged *parts, size_t count, const Cairn__Page *page) CAIRN_MUST_CHECK;
/* The parts of a job: Attached and Part are followed by the pages of both. */
enum job_part { CAIRN_PART_SPEC, CAIRN_PART_LAYOUT, CAIRN_PARTS };
/* Like paged_init, for the parts of a job. */
cairn_status paged_init_job(struct paged parts[CAIRN_PARTS], uint64_t spec_bytes,
                            uint64_t layout_bytes) CAIRN_MUST_CHECK;
/* True if all pages of all parts have arrived. */
bool paged_whole(const struct paged *parts, size_t count);
/* Fills the page that begins at `offset`, which must be within the bytes. The page borrows the bytes.
 * Returns the page's length. */
size_t page_cut(enum page_what what, const uint8_t *bytes, size_t bytes_len, size_t offset,
                Cairn__Page *page_out);

/* Packs a spec as bytes of a JobSpec, malloc'ed; the caller frees them. CAIRN_ERR_NO_MEMORY. */
cairn_status spec_pack(const struct job_spec_data *spec, uint8_t **bytes_out,
                       size_t *bytes_len_out) CAIRN_MUST_CHECK;
/* Fills a message with everything except tensors, groups and former hashes. The message borrows the spec's
 * strings. */
void spec_to_message(const struct job_spec_data *spec, Cairn__JobSpec *out);
/* The reverse of spec_to_message, for the scalars alone. */
void spec_fields_of_message(const Cairn__JobSpec *in, struct job_spec_data *spec);
/* Fills a difference that borrows from a stranger's message. */
void difference_of_message(const Cairn__Difference *in, struct spec_difference *out);
/* Fills a message that borrows the tensor's strings and shape, but leaves out the box of an alias. */
void tensor_to_message(const struct tensor_spec *tensor, Cairn__TensorSpec *out);
/* The reverse of tensor_to_message, for a stranger's message: fills a tensor that borrows from the message
 * and, for the box of an alias, from *box. Validates only the number of dimensions (CAIRN_ERR_INVALID;
 * `why` says so). */
cairn_status tensor_of_message(const Cairn__TensorSpec *in, struct tensor_spec *out,
                               struct cairn_box *box, struct sentence *why) CAIRN_MUST_CHECK;
/* Fills a message that borrows the group's strings and points. */
void group_to_message(const struct group_spec *group, Cairn__GroupSpec *out);
/* The reverse of group_to_message, for a stranger's message: fills a group that borrows from the message.
 * Validates only the number of points (CAIRN_ERR_INVALID). */
cairn_status group_of_message(const Cairn__GroupSpec *in, struct group_spec *out) CAIRN_MUST_CHECK;
/* The reverse of spec_pack, for a stranger's bytes: bounds and canonicalizes the spec, and validates it by
 * spec_check against the optimizers of this build. On success the caller releases spec_out. */
cairn_status spec_unpack(const uint8_t *bytes, size_t bytes_len, const char *const *optimizers,
                         struct job_spec_data *spec_out, struct sentence *why) CAIRN_MUST_CHECK;

/* Returns how many of held[count], from the first, fit into one frame of CAIRN_FRAME_HELLO_BYTES together
 * with the rest of `hello`. The other jobs are sent in further Hellos; each of these has room for some
 * dozens of jobs (Hello.held_after). */
size_t hello_fit(const Cairn__Hello *hello, Cairn__HeldJob *const *held, size_t count);

/* ==== outbox ==== */

/* The queue of a connection's writes, in order: frames and pages. A page is cut from packed bytes when its
 * turn comes, so a slow reader costs the memory of one page, and not of all pages. */

/* Complete frames, one after the other. */
struct outbox_frames {
    uint8_t *bytes; /* owned; [capacity_bytes] */
    size_t used_bytes;
    size_t capacity_bytes;
};

struct outbox {
    struct outbox_frames frames;       /* these frames are sent first */
    struct outbox_pages *first, *last; /* owned */
    size_t frame_bytes;                /* the bytes of all waiting frames, without pages */
    uint64_t paged_bytes;              /* the bytes of all data held to be sent in pages */
};

/* Adds a frame: its header and the bytes that follow. CAIRN_ERR_NO_MEMORY: nothing was added. */
CAIRN_MUST_CHECK cairn_status outbox_add(struct outbox *box, const uint8_t *head, size_t head_bytes,
                                         const uint8_t *tail, size_t tail_bytes);
/* Adds a Page frame for each CAIRN_PAGE_BYTES of `packed`, and holds `packed` until all pages are taken. */
CAIRN_MUST_CHECK cairn_status outbox_add_pages(struct outbox *box, uint32_t request,
                                               enum page_what what, struct packed *packed);
/* Moves the next data to write to `out`, which is empty: all frames at the front, or one page.
 * CAIRN_ERR_NOT_FOUND: nothing waits. CAIRN_ERR_NO_MEMORY: nothing was moved. */
CAIRN_MUST_CHECK cairn_status outbox_take(struct outbox *box, struct outbox_frames *out);
void outbox_release(struct outbox *box);
void outbox_frames_release(struct outbox_frames *frames);

/* ==== former versions ==== */

/* The most versions that the heartbeat of a shard tells, of all its jobs together. */
#define CAIRN_FORMER_TOLD_MAX 1024

/* ==== audits ==== */

/* A range of checksums is split into at most so many equal ranges, the last of which may be short. */
#define CAIRN_AUDIT_RANGES 64
/* Returns how many checksums each of the ranges has. */
static inline uint64_t audit_range(uint64_t count)
{
    return count / CAIRN_AUDIT_RANGES + (count % CAIRN_AUDIT_RANGES != 0);
}

#endif
