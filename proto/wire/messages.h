/* The control messages by number, and the conversions between what they carry and the plain data that
 * the cores and the planner use. Message texts, senders and receivers: control.proto. */
#ifndef CAIRN_WIRE_MESSAGES_H
#define CAIRN_WIRE_MESSAGES_H

#include <protobuf-c/protobuf-c.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "control.pb-c.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"
#include "proto/wire/chunk.h"

/* ==== frame ==== */

/* Control frames: how messages are cut out of a stream of bytes. Pure: no socket, no clock.
 *
 *   offset 0  u32  magic "CRN1"                        little-endian throughout
 *          4  u16  type, the number of the message (proto/wire/messages.h)
 *          6  u16  flags, 0 in this version
 *          8  u32  payload bytes that follow
 *         12  u32  request id; 0 = not a request; a reply carries its request's id
 *         16  ...  payload: the message, packed by protobuf-c
 *
 * The header is judged before a byte is allocated for its payload, and as soon as its bytes are
 * there: a stream that begins with anything but "C" is refused at its first byte. The decoder's
 * buffer grows only when bytes have really arrived, by doubling, and never above the limit that the
 * caller set, which counts the whole frame: 16 KiB before a peer said Hello (a fabric address of 4 KiB, and
 * what a name, a version and a device have to say; a shard with many jobs says more than one), 1 MiB after.
 *
 * Calling sequence, for libuv and for blocking sockets alike:
 *   frame_decoder_init(&d, limits);
 *   frame_decoder_reserve(&d, &room, &room_bytes);      read(fd, room, room_bytes) -> n
 *   frame_decoder_added(&d, n);
 *   while (frame_decoder_next(&d, &frame, &why) == CAIRN_FRAME_READY) use(&frame);
 *   ... until CAIRN_FRAME_MALFORMED (close the connection) ...   frame_decoder_release(&d); */

#define CAIRN_FRAME_HEADER_BYTES 16u
#define CAIRN_FRAME_HELLO_BYTES \
    (16u << 10)                          /* largest whole frame before Hello, and largest Hello */
#define CAIRN_FRAME_BYTES_MAX (1u << 20) /* largest whole frame after Hello */

/* The frames that a connection takes in its present state. */
struct frame_limits {
    uint16_t type_min; /* types outside type_min..type_max are refused at the header */
    uint16_t type_max;
    uint32_t frame_bytes; /* largest whole frame, header included; at most CAIRN_FRAME_BYTES_MAX */
};

/* One frame. `payload` is borrowed from the decoder until its next call. */
struct wire_frame {
    uint16_t type;
    uint32_t request;
    const uint8_t *payload;
    size_t payload_bytes;
};

enum frame_state {
    CAIRN_FRAME_NONE,      /* all bytes so far are well; more are needed */
    CAIRN_FRAME_READY,     /* a whole frame was taken out */
    CAIRN_FRAME_MALFORMED, /* the stream is garbage and stays so: close it */
    CAIRN_FRAME_NO_MEMORY, /* only from reserve */
};

struct frame_decoder {
    /* owned: freed by frame_decoder_release */
    uint8_t *bytes;  /* [capacity], of which [start, end) has arrived and is not yet taken */
    size_t capacity; /* 0 while nothing is waiting and nothing was reserved */
    size_t start;
    size_t end;
    struct frame_limits limits;
    int malformed;
};

void frame_decoder_init(struct frame_decoder *decoder, struct frame_limits limits);
void frame_decoder_release(struct frame_decoder *decoder);

/* Changes what is taken from the next header on (a peer said Hello). */
void frame_decoder_limit(struct frame_decoder *decoder, struct frame_limits limits);

/* Room for at least one more byte, lent until frame_decoder_added. CAIRN_FRAME_NONE: it is
 * there. CAIRN_FRAME_READY: full, take frames out first. CAIRN_FRAME_NO_MEMORY: nothing changed. */
enum frame_state frame_decoder_reserve(struct frame_decoder *decoder, uint8_t **room_out,
                                       size_t *room_bytes_out);
/* `added_bytes` of the reserved room were filled; 0 gives the room back. */
void frame_decoder_added(struct frame_decoder *decoder, size_t added_bytes);

/* Takes the next frame out, or says why there is none. `why` is written when malformed. */
enum frame_state frame_decoder_next(struct frame_decoder *decoder, struct wire_frame *frame_out,
                                    struct sentence *why);

/* Gives memory back that a large frame needed. Call when no frame of it is in use any more. */
void frame_decoder_trim(struct frame_decoder *decoder);

/* Writes a header. */
void frame_header_write(uint8_t header_out[CAIRN_FRAME_HEADER_BYTES], uint16_t type,
                        uint32_t request, uint32_t payload_bytes);

/* Packs a whole frame into `*frame_out`, [*frame_bytes_out], malloc'd, the caller's to free.
 * CAIRN_ERR_INVALID: larger than frame_bytes_max (a programmer's or a user's list is too long: page
 * it). CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status frame_pack(uint16_t type, uint32_t request,
                                         const ProtobufCMessage *message, uint32_t frame_bytes_max,
                                         uint8_t **frame_out, size_t *frame_bytes_out,
                                         struct sentence *why);

/* ==== packed ==== */

/* Packed bytes that several hold: a job's spec, its layout, a list of tiles. They never change; the last
 * hold frees them. Any thread. */

struct packed {
    atomic_uint holds;
    size_t size;          /* bytes */
    const uint8_t *bytes; /* owned */
};

/* Takes malloc'ed bytes, which are freed also where this fails; held once. NULL: no memory, or `bytes` is. */
struct packed *packed_take(uint8_t *bytes, size_t size);
/* The same of a copy, which the caller's bytes may be gone after. */
struct packed *packed_copy(const uint8_t *bytes, size_t size);
struct packed *packed_spec(const struct job_spec_data *spec);
struct packed *packed_layout(const struct layout *layout);
struct packed *packed_tiles(const struct cairn_tiles *tiles);
struct packed *packed_hold(struct packed *packed);
void packed_release(struct packed *packed); /* NULL is fine */

/* ==== messages ==== */

/* For a string of a message, or of a spec that is added to another: protobuf-c's packers, and whatever copies
 * specs, take char * and write nothing. */
static inline char *wire_text(const char *text)
{
    return (char *)(uintptr_t)text;
}

#define CAIRN_CONTROL_PROTOCOL 2
#define CAIRN_HELD_JOBS_MAX    1024 /* jobs of one shard: what Hello and HeldJobs list */

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
    X(142, SNAPSHOT_ADVICE, SnapshotAdvice, snapshot_advice)

enum wire_message {
#define X(number, constant, type, field) CAIRN_MSG_##constant = (number),
    CAIRN_MESSAGE_TABLE(X)
#undef X
};
#define CAIRN_MSG_MAX 142

/* Versions of a job that can be leased at a time: for each, every shard has a published copy more. */
#define CAIRN_LEASED_VERSIONS_MAX 4
/* Heartbeat.bytes are not more. */
#define CAIRN_BYTES_TOLD_MAX 1024

/* Lacks.flags */
enum lack_flags {
    CAIRN_LACK_WAITS = 1,   /* something of it is here, and others come first */
    CAIRN_LACK_RELAYED = 2, /* at the relay */
    CAIRN_LACK_ARRIVED = 4, /* something of the micro-batch is here */
};

/* InFlight.what */
enum in_flight {
    CAIRN_FLIES_FETCH = 1, /* what it asked a shard for */
    CAIRN_FLIES_PUSH = 2,  /* what it pushed, and no shard has added up yet */
};

/* ReshardAsk.op */
enum reshard_op {
    CAIRN_RESHARD_PLAN = 0,
    CAIRN_RESHARD_APPLY = 1,
    CAIRN_RESHARD_STATUS = 2,
    CAIRN_RESHARD_CANCEL = 3,
};

/* Who speaks, in Hello and in MemberJoin. */
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

/* protobuf_c_message_unpack under a budget: a message of a few bytes can ask for a thousand times its size in
 * structs, so the memory it may take is bounded by a small multiple of its length. NULL if it is malformed or
 * over the budget, and with errno ENOMEM if there is no memory. Freed by message_free, and by nothing
 * else. */
ProtobufCMessage *message_unpack(const ProtobufCMessageDescriptor *type, const uint8_t *bytes,
                                 size_t bytes_len);
void message_free(ProtobufCMessage *message); /* NULL is fine */
/* For who shows it to people: makes text of every string in it, of one or several lines (text_mend). */
void message_mend(ProtobufCMessage *message);

/* The message that a Page is part of. */
enum page_what { CAIRN_PAGE_SPEC = 1, CAIRN_PAGE_LAYOUT = 2, CAIRN_PAGE_TILES = 3 };
#define CAIRN_PAGE_BYTES      ((size_t)256 << 10) /* a full page */
#define CAIRN_PAGED_BYTES_MAX ((uint64_t)64 << 20)

/* Bytes that arrive page by page. Memory grows with what has arrived, never with what was announced. */
struct paged {
    uint8_t *bytes; /* owned; [have_bytes] */
    size_t have_bytes, capacity_bytes;
    uint64_t total_bytes; /* announced */
};
/* CAIRN_ERR_INVALID if total_bytes is over CAIRN_PAGED_BYTES_MAX. */
cairn_status paged_init(struct paged *paged, uint64_t total_bytes) CAIRN_MUST_CHECK;
void paged_release(struct paged *paged);
/* Takes the next page. CAIRN_ERR_PROTOCOL if it is not the next one, or goes past the end. */
cairn_status paged_add(struct paged *paged, const Cairn__Page *page) CAIRN_MUST_CHECK;
static inline int paged_whole(const struct paged *paged)
{
    return paged->have_bytes == paged->total_bytes;
}
/* Fills the page that begins at `offset`, which is within the bytes; it borrows them. How many it has. */
size_t page_cut(enum page_what what, const uint8_t *bytes, size_t bytes_len, size_t offset,
                Cairn__Page *page_out);

/* A spec as bytes of a JobSpec, malloc'ed; the caller frees them. CAIRN_ERR_NO_MEMORY. */
cairn_status spec_pack(const struct job_spec_data *spec, uint8_t **bytes_out,
                       size_t *bytes_len_out) CAIRN_MUST_CHECK;
/* Fills a message with all but tensors, groups and former hashes, that borrows the spec's strings. */
void spec_to_message(const struct job_spec_data *spec, Cairn__JobSpec *out);
/* The reverse, of the scalars alone. */
void spec_fields_of_message(const Cairn__JobSpec *in, struct job_spec_data *spec);
/* Fills a message that borrows the tensor's strings and shape; without the box of an alias. */
void tensor_to_message(const struct tensor_spec *tensor, Cairn__TensorSpec *out);
/* The reverse, of a stranger's message: fills a tensor that borrows from it and, for the box of an alias,
 * from *box; not judged but for the number of dimensions (CAIRN_ERR_INVALID; `why` says so). */
cairn_status tensor_of_message(const Cairn__TensorSpec *in, struct tensor_spec *out,
                               struct cairn_box *box, struct sentence *why) CAIRN_MUST_CHECK;
/* Fills a message that borrows the group's strings and points. */
void group_to_message(const struct group_spec *group, Cairn__GroupSpec *out);
/* The reverse, of a stranger's message: fills a group that borrows from it, not judged but for the number of
 * points (CAIRN_ERR_INVALID). */
cairn_status group_of_message(const Cairn__GroupSpec *in, struct group_spec *out) CAIRN_MUST_CHECK;
/* The reverse, of a stranger's bytes: bounded, canonicalized and judged by spec_check against the
 * optimizers of this build. On success the caller releases spec_out. */
cairn_status spec_unpack(const uint8_t *bytes, size_t bytes_len, const char *const *optimizers,
                         struct job_spec_data *spec_out, struct sentence *why) CAIRN_MUST_CHECK;

/* How many of held[count], from the first, fit into one frame of CAIRN_FRAME_HELLO_BYTES with all else that
 * `hello` says. The others go in Hellos that follow, of which each has room for some dozens
 * (Hello.held_after). */
size_t hello_fit(const Cairn__Hello *hello, Cairn__HeldJob *const *held, size_t count);

#endif
