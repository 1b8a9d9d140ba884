#ifndef CAIRN_SHARD_READ_H
#define CAIRN_SHARD_READ_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/fabric/fabric.h"
#include "proto/wire/wire.h"
#include "server/core/decision.h"
#include "server/shard/base.h"
#include "server/shard/memory.h"

/* ==== leases ==== */

/* Leases: versions of the published copies that are kept in addition to the newest version and the previous
 * one.
 *
 * The coordinator keeps the leases and ends them. If the coordinator no longer renews a lease, the shard
 * ends the lease by its own clock, a quarter of the lease's time later. A lease from an earlier coordinator
 * is kept, because its holder may be about to renew it; it ends when a lease of the present coordinator
 * finds no room. Loop thread only. */

enum {
    CAIRN_SHARD_LEASES_MAX = 4 *
                             CAIRN_LEASED_VERSIONS_MAX, /* includes those of earlier coordinators */
    CAIRN_SHARD_LEASE_MS_MAX = 86400000
};

/* A version that the coordinator wants kept. */
struct shard_lease {
    uint64_t number; /* 0: none */
    struct cairn_version version;
    uint64_t ends_ms;     /* of uv_now */
    uint64_t coordinator; /* the incarnation that last asked for the lease */
};

/* ==== published ==== */

/* The published copies of a job: which memory holds which version, which copy is written next, and which
 * copies may be dropped.
 *
 * Two copies always exist: the newest version, and the previous version, which the next update overwrites.
 * A lease (above) protects a version from being overwritten. When a lease begins, one more copy is taken
 * out of the shard's budget; when nothing keeps the leased version any longer, one copy is given back. So
 * with n leased versions there are 2 + n copies, and at least one of these copies is neither the newest nor
 * leased. An update takes the oldest such copy, allocates nothing and waits for nobody. Loop thread only;
 * compute threads write the copy that published_begin chose.
 *
 * When a job continues in another view (jobs.h), each copy keeps the view by which it was written until it
 * is written again. So a version is read by the view by which it was written. The newest version may be
 * written once more, in the job's view; then two copies have the newest version.
 *
 * A shard shows members at most 4092 regions (proto/fabric/fabric.h), each a segment or a head: 255 GiB of
 * copies of all its jobs, half of that for copies with a device's side. A copy beyond this limit is shown
 * to nobody, and its data is sent instead; the log reports this. */

#define CAIRN_PUBLISHED_NONE UINT32_MAX
enum { CAIRN_SHARD_PUBLISHED_MAX = 2 + CAIRN_LEASED_VERSIONS_MAX };

struct shard_view;

/* A published copy, or room for one. */
struct published_copy {
    /* proto/geometry/layout.h: the head, and the extents, each in its wire dtype; members of this host map
     * both, or neither */
    struct arena head, wire;
    /* the same as `wire`, in the home of the planes, and written first; only for a job that is completely
     * on a device */
    struct arena device;
    /* `wire` has the complete version, too. If nobody maps `wire`, the version is not written to it; then
     * `wire` holds only the chunks that were requested (below), and always the frozen tensors */
    bool on_host;
    /* owned: [view->table.map.chunk_count] of enum brought, unless on_host; NULL if checksums is NULL */
    uint8_t *brought;
    /* owned: [view->table.map.chunk_count] 0 = not requested yet; NULL: this copy does not exist */
    uint64_t *checksums;
    /* counted: the view by which it was written, or will be; NULL if checksums is NULL */
    struct shard_view *view;
    struct cairn_version version;
    /* of the copy being written: the parameters in it are already the newest */
    bool holds_params;
    uint64_t most_bytes; /* the largest size of `wire` in the views so far */
    uint32_t settled;    /* the number of times that it was written in `view` */
    bool readable;       /* false before it is first written, and while it is being written */
    bool stale;          /* its frozen tensors differ from the newest */
    /* sends to workers directly out of the copy, and chunks being brought to `wire`. Until these end, the
     * copy is neither written nor closed */
    uint32_t sends;
};

/* The versions of a job that can be fetched. */
struct versions {
    struct published_copy copies[CAIRN_SHARD_PUBLISHED_MAX];
    /* Indices in `copies`; writing is CAIRN_PUBLISHED_NONE between updates. */
    uint32_t newest, writing;
    /* If knows_param: a copy of this version or a later one, in the job's view, has the same parameters as
     * the planes. */
    struct cairn_version param;
    bool knows_param;
    /* sends out of a copy's memory on the card, which must stay on the card until the sends end */
    uint32_t direct_sends;
    uint64_t room_bytes;   /* each copy has addresses for at least this many bytes of host memory */
    uint64_t leased_bytes; /* bytes of the budget that copies for leases have taken */
    struct shard_lease leases[CAIRN_SHARD_LEASES_MAX];
};

/* Opens the copies that every job has without leases. The caller must have taken their bytes from the
 * budget. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status published_open(struct shard_job *job, struct sentence *why);
void published_close(struct shard_job *job);
/* Shows the copies to a member that was just connected. If the member is on this host, it then reads the
 * copies in place. */
void published_show(struct shard_member *member);
/* Called before and after the first version is written into copy 0. */
void published_seal_begin(struct shard_job *job);
void published_seal_end(struct shard_job *job, struct cairn_version version);
/* Returns the copy of that version; if two copies have it, the copy in the later layout. NULL: the version
 * is not kept. */
const struct published_copy *published_find(const struct shard_job *job,
                                            struct cairn_version version);
/* Returns the copy of the same version as `later` that is in the last layout before the layout of `later`;
 * NULL: none. */
const struct published_copy *published_find_before(const struct shard_job *job,
                                                   const struct published_copy *later);
/* Returns why published_find returned NULL: CAIRN_ERR_NOT_READY (the version is still to be made),
 * CAIRN_ERR_VERSION_GONE. */
cairn_status published_missing(const struct shard_job *job, struct cairn_version version);
/* Return where a local element of a chunk lies in the copy. The element and the chunk are numbered by the
 * copy's view. copy_chunk_at is for the memory that is written first, published_host_at for host memory. */
uint8_t *copy_chunk_at(const struct published_copy *copy, uint64_t chunk, uint64_t local_elem);
uint8_t *published_host_at(const struct published_copy *copy, uint64_t chunk, uint64_t local_elem);
size_t copy_chunk_bytes(const struct published_copy *copy, uint64_t chunk);
/* Called before the chunk is written: notes that its checksum and its side in host memory are out of date.
 * Called by the thread that writes the chunk, which may be any. */
void published_forget(struct published_copy *copy, uint64_t chunk);
/* Copies a chunk from the copy's side on the device to its side in host memory. Any thread. */
void published_fill(struct works *works, const struct published_copy *copy, uint64_t chunk);
/* Chooses the copy to write. From here on the copy's old version cannot be read. The copy may be written
 * when nothing of it is being sent any longer, and published_ready has succeeded. */
void published_begin(struct shard_job *job);
/* Prepares the chosen copy for the job's view. CAIRN_ERR_NO_MEMORY: the copy cannot be written. */
CAIRN_MUST_CHECK cairn_status published_ready(struct shard_job *job, struct sentence *why);
/* Describes the n-th move (0, 1, ...) of a published copy: to the host, before its side on the device is
 * given back; or to the side on the device that was opened. False: there are no more moves. Nothing may be
 * written or updated meanwhile. */
struct published_move {
    void *to;
    const void *from;
    size_t bytes;
};
bool published_move(const struct shard_job *job, bool to_host, uint32_t n,
                    struct published_move *move_out);
/* Returns the bytes of the device that copies take now. With `all`, returns only the bytes that copies must
 * have on the device; copies for leases then do not count, since they do not need the device. */
uint64_t published_device_bytes(const struct shard_job *job, bool all);
/* Takes room on the device for the existing copies. If there is no room for the copies for leases, they
 * stay only in host memory. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO: call published_park all the same. */
CAIRN_MUST_CHECK cairn_status published_open_device(struct shard_job *job, struct sentence *why);
/* Ends a park or an unpark once everything was copied. After published_park the copies have only the host's
 * side; after published_unpark they have both sides. */
void published_park(struct shard_job *job);
void published_unpark(struct shard_job *job);
/* Notes that the version that was written last changed parameters here. */
void published_note_params(struct shard_job *job);
/* Notes that some parameters arrived from another shard, or that the view changed: the parameters in older
 * copies are out of date. */
void published_forget_params(struct shard_job *job);
/* Ends the writing: the copy is now the newest version, and readable. `frozen_changed`: the frozen tensors
 * of the other copies are out of date. */
void published_end(struct shard_job *job, struct cairn_version version, bool frozen_changed);

/* Keeps two copies and one for each leased version. Drops all further copies, the oldest first. */
void published_trim(struct shard_job *job);

/* ==== reply ==== */

/* A reply: the answer to a fetch, from the request until it is sent, with memory for a chunk.
 *
 * Each worker, and each shard that takes state from this one, keeps one reply. Its bytes are counted when
 * the job is admitted (need.h), and taken when the worker joins, so that no worker waits for memory for
 * ever. Further fetches of a worker, and the fetches of readers, get a reply if memory.limit has room for
 * another. These further replies stay with the job, and serve every member. Loop thread. */

struct reply {
    struct shard_job *job; /* borrowed */
    bool is_kept;          /* for one worker */
    bool is_used;          /* by a fetch */
    struct chunk_header header;
    struct cairn_box box; /* the part of the chunk that is asked for; if `boxed` */
    bool boxed;           /* only a part of the chunk is asked for */
    enum bytes_path path; /* of the data */
    /* the copy out of which the data is sent; NULL: `bytes` are sent */
    const struct published_copy *in_copy;
    bool is_direct; /* sent from the copy's memory on the card */
    /* sent directly out of the planes, to a shard that takes the state (receiver.c) */
    bool is_given;
    uint8_t box_bytes[CAIRN_BOX_BYTES_MAX]; /* the encoded box, being received */
    struct work_run bring;                  /* on behalf of all replies that wait for the chunk */
    /* in replies.coming: the copy to which the chunk belongs */
    const struct published_copy *from;
    uint64_t chunk;     /* in `from` */
    struct reply *next; /* in one of the lists of struct replies */
    uint8_t bytes[];    /* owned: [job->replies.bytes] */
};

struct replies {
    size_t bytes;       /* the size of the largest chunk, which is the room in each reply */
    struct reply *free; /* owned: replies that no worker keeps and no fetch uses */
    /* replies that wait for the current UPDATE, for a park, or for arriving state */
    struct reply *deferred;
    struct reply *coming; /* replies that wait for a chunk being brought (below) */
    uint32_t away;        /* replies kept for workers that left, and still being sent */
    bool is_short;        /* there was no room for another reply, and this was logged */
};

/* Returns the bytes that a reply takes if chunks have at most chunk_bytes. */
static inline size_t reply_memory_bytes(size_t chunk_bytes)
{
    return sizeof(struct reply) + chunk_bytes;
}
/* Takes the reply of a worker that joined, once. CAIRN_ERR_NO_MEMORY: the worker is refused. */
CAIRN_MUST_CHECK cairn_status reply_keep(struct shard_member *member, struct sentence *why);
/* `to` replaces `from`, and takes over its reply. */
void reply_move(struct shard_member *from, struct shard_member *to);
/* The member is freed: gives its reply's memory back, now or when the reply has been sent. */
void reply_forget(struct shard_member *member);

/* ==== copies ==== */

/* The memory of published copies: made, shown to members, brought to another view, closed; and their two
 * sides, in host memory and on a device. published.c knows which copy holds which version. */

#define CAIRN_COPIES_ALWAYS 2 /* of every job; any others are for leases */

/* ==== bring ==== */

/* When chunks of a version on a card are requested, brings them to the copy's side in host memory.
 *
 *   fetch ─► is it there? ── yes ──────────────────────────────────────► answered
 *                └─ no ─► a run of the device's threads copies the chunk ─► all who wait for it
 *
 * A chunk of a version is brought once, whoever asks, and never if nobody asks. Chunks are always brought
 * complete, even if only a part is requested, so that many requests for different parts cost one copy.
 * Chunks are copied while the device does other work, including an update, in the same lists (base.h). The
 * loop does not wait; only the requests wait, in job->replies.coming.
 *
 * While a chunk of a copy is being brought, nothing else is written to that copy, the copy is not closed
 * (published_lend), and its job is not parked. So a request that was made in time is answered, even if a
 * later update is waiting to write to the copy. Loop thread. */

/* Whether a chunk of a copy is in host memory. */
enum brought { CAIRN_BROUGHT_NOT, CAIRN_BROUGHT_COMING, CAIRN_BROUGHT };

/* True if some chunks are being brought. */
bool bring_works(const struct shard_job *job);

/* ==== fetch ==== */

/* Fetches. Loop thread. */

/* Takes or drops the message. */
void fetch_on_message(struct shard_member *member, const struct chunk_header *header,
                      struct fabric_message *message);
/* Answers the deferred fetches, when an UPDATE has ended, a park or unpark is done (part.h), or all state
 * has arrived. */
void fetch_deferred(struct shard_job *job);

#endif
