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

/* Leases: versions of the published copies that are kept beside the newest and the one before.
 *
 * The coordinator keeps the leases and ends them. A shard that hears no more of one ends it by its own
 * clock, a quarter of its time later; one of a coordinator before this one, whose holder may be about to
 * renew it, when what this one asks for has no room. Loop thread only. */

enum {
    CAIRN_SHARD_LEASES_MAX = 4 *
                             CAIRN_LEASED_VERSIONS_MAX, /* also of coordinators before this one */
    CAIRN_SHARD_LEASE_MS_MAX = 86400000
};

/* A version that the coordinator wants kept. */
struct shard_lease {
    uint64_t number; /* 0: none */
    struct cairn_version version;
    uint64_t ends_ms;     /* of uv_now */
    uint64_t coordinator; /* the incarnation that said so last */
};

/* Keeps a version, or goes on keeping it. CAIRN_ERR_VERSION_GONE, CAIRN_ERR_NOT_READY, CAIRN_ERR_BUSY (as
 * many as can be are kept), CAIRN_ERR_NO_MEMORY (with the numbers): as before. */
CAIRN_MUST_CHECK cairn_status shard_lease_keep(struct shard_job *job,
                                               const Cairn__LeaseKeep *message,
                                               struct sentence *why);
void shard_lease_end(struct shard_job *job, uint64_t number);

/* ==== published ==== */

/* The published copies of a job: which memory has which version, which is written next, which may go.
 *
 * Two copies are always there: the newest version, and the one before, which the next update
 * overwrites. A lease (above) keeps a version from that: it takes one copy more, out of the shard's
 * budget, at the moment it is taken, and gives one back when nothing keeps its version any more. So
 * with n versions leased there are 2 + n copies, and one of them is neither the newest nor leased:
 * an update takes the oldest of those, allocates nothing and waits for nobody. Loop thread only;
 * compute threads write the copy that was begun.
 *
 * When a job goes on in another view (jobs.h) its copies stay in theirs, until they are written next:
 * so a version is read by the view that it was written in. The newest version may be written once more, in
 * the job's view: then two copies have it.
 *
 * A shard shows members at most 4092 regions (proto/fabric/fabric.h), each a segment or a head: 255 GiB of
 * copies of all its jobs, half of that where they have a device's side. One beyond that is shown to nobody,
 * which the log says, and sent. */

#define CAIRN_PUBLISHED_NONE UINT32_MAX
enum { CAIRN_SHARD_PUBLISHED_MAX = 2 + CAIRN_LEASED_VERSIONS_MAX };

struct shard_view;

/* A published copy, or room for one. */
struct published_copy {
    /* proto/geometry/layout.h: its head, and the extents, each in its wire dtype; members of this host map
     * both, or nobody does */
    struct arena head, wire;
    /* the same as `wire` where the planes lie, which is written first; of a job that is wholly on a device */
    struct arena device;
    /* `wire` has all of the version, too. It is left out if nobody maps it there; then it has of it what was
     * asked for (below), and frozen tensors always */
    bool on_host;
    /* owned: [view->table.map.chunk_count] of enum brought, unless on_host; NULL with checksums */
    uint8_t *brought;
    /* owned: [view->table.map.chunk_count] 0 = not asked for yet; NULL: there is no copy here */
    uint64_t *checksums;
    struct shard_view
        *view; /* counted: by which it was written, or is to be; NULL with checksums */
    struct cairn_version version;
    bool holds_params;   /* of the one that is written: the parameters that it has are the newest */
    uint64_t most_bytes; /* that `wire` had, of the views that it followed */
    uint32_t settled;    /* how often it was written in its view */
    bool readable;       /* false before it is first written, and while it is being written */
    bool stale;          /* its frozen tensors are not those of the newest */
    /* to workers, right out of it, and chunks that are brought to `wire`: until they end it is neither
     * written nor closed */
    uint32_t sends;
};

/* The versions of a job that can be fetched. */
struct versions {
    struct published_copy copies[CAIRN_SHARD_PUBLISHED_MAX];
    /* Which of the copies; writing: CAIRN_PUBLISHED_NONE between updates. */
    uint32_t newest, writing;
    /* A copy of this version or a later one, in the job's view, has the parameters that the planes
     * have; only if knows_param. */
    struct cairn_version param;
    bool knows_param;
    uint32_t direct_sends; /* out of a copy's memory on the card, which stays there meanwhile */
    uint64_t room_bytes;   /* of addresses that a copy has in host memory, at least */
    uint64_t leased_bytes; /* of the budget, that copies for leases took */
    struct shard_lease leases[CAIRN_SHARD_LEASES_MAX];
};

/* The copies of every job, before a lease: budget is taken by the caller. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status published_open(struct shard_job *job, struct sentence *why);
void published_close(struct shard_job *job);
/* To a member that was just connected: if it is of this host it reads the copies where they are. */
void published_show(struct shard_member *member);
/* The first version is about to be written into copy 0; it was. */
void published_seal_begin(struct shard_job *job);
void published_seal_end(struct shard_job *job, struct cairn_version version);
/* The copy of that version; of two, that of the later layout. NULL: the version is not kept. */
const struct published_copy *published_find(const struct shard_job *job,
                                            struct cairn_version version);
/* The copy of that version whose layout is the last one before that of `later`, a copy; NULL: none. */
const struct published_copy *published_find_before(const struct shard_job *job,
                                                   const struct published_copy *later);
/* Why published_find gave NULL: CAIRN_ERR_NOT_READY (it is yet to come), CAIRN_ERR_VERSION_GONE. */
cairn_status published_missing(const struct shard_job *job, struct cairn_version version);
/* Where a local element of that chunk, both of the copy's view, stands in it: where it is written first, and
 * in host memory. */
uint8_t *copy_chunk_at(const struct published_copy *copy, uint64_t chunk, uint64_t local_elem);
uint8_t *published_host_at(const struct published_copy *copy, uint64_t chunk, uint64_t local_elem);
size_t copy_chunk_bytes(const struct published_copy *copy, uint64_t chunk);
/* The chunk is about to be written: what was known of it, and its side in host memory, are of before. Any
 * thread that writes it. */
void published_forget(struct published_copy *copy, uint64_t chunk);
/* Brings a chunk of the side on the device to the one in host memory. Any thread. */
void published_fill(struct works *works, const struct published_copy *copy, uint64_t chunk);
/* Chooses the copy to write: what it had cannot be read any more from here on. It may be written when nothing
 * of it is being sent any more, and it was made ready. */
void published_begin(struct shard_job *job);
/* Makes the copy ready that was chosen: by the job's view. CAIRN_ERR_NO_MEMORY: it cannot be written. */
CAIRN_MUST_CHECK cairn_status published_ready(struct shard_job *job, struct sentence *why);
/* The n-th copy (0, 1, ...) that must be brought to the host before its side on the device goes, or to the
 * device's side that was opened. False: there are no more. Nothing is written or updated meanwhile. */
struct published_move {
    void *to;
    const void *from;
    size_t bytes;
};
bool published_move(const struct shard_job *job, bool to_host, uint32_t n,
                    struct published_move *move_out);
/* The bytes of the device that copies take now. `all`: those that the copies must have there, which
 * leaves out copies for leases, since these can do without. */
uint64_t published_device_bytes(const struct shard_job *job, bool all);
/* Room on the device for the copies that there are; those for leases stay in host memory alone where there
 * is none. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO: published_park is to be called all the same. */
CAIRN_MUST_CHECK cairn_status published_open_device(struct shard_job *job, struct sentence *why);
/* Ends a park or an unpark, once all that had to be copied is copied: from here on the copies have
 * the host's side alone, or both. */
void published_park(struct shard_job *job);
void published_unpark(struct shard_job *job);
/* The version that was written last changed parameters here. */
void published_note_params(struct shard_job *job);
/* Some came from another shard, or the view is another one: what older copies have of them counts no more. */
void published_forget_params(struct shard_job *job);
/* It is written: the newest version, readable. `frozen_changed`: the others have frozen tensors of before. */
void published_end(struct shard_job *job, struct cairn_version version, bool frozen_changed);

/* Copies beyond two and one a leased version go, the oldest first. */
void published_trim(struct shard_job *job);

/* ==== reply ==== */

/* A reply: the answer to a fetch, from when it is asked for until it is sent, with memory for a chunk.
 *
 * Each worker, and each shard that takes state from this one, keeps one, which is counted with the job at
 * its admission (need.h) and taken as the worker joins, so that no worker waits for memory for ever.
 * Further fetches of a worker, and the fetches of readers, get one while memory.limit has room for one;
 * these replies stay with the job, and serve every member. Loop thread. */

struct reply {
    struct shard_job *job; /* borrowed */
    bool is_kept;          /* for one worker */
    bool is_used;          /* by a fetch */
    struct chunk_header header;
    struct cairn_box box;                 /* what of the chunk is asked for; if `boxed` */
    bool boxed;                           /* not all of the chunk is asked for */
    enum bytes_path path;                 /* by which the data goes */
    const struct published_copy *in_copy; /* the copy that is sent out of; NULL: `bytes` are sent */
    bool is_direct;                       /* from the copy's memory on the card */
    bool is_given; /* it is sent right out of the planes, to a shard that takes it (receiver.c) */
    uint8_t box_bytes[CAIRN_BOX_BYTES_MAX]; /* the encoded box, being received */
    struct work_run bring;                  /* for all who wait for the chunk */
    const struct published_copy *from;      /* in replies.coming: the copy */
    uint64_t chunk;                         /* of it */
    struct reply *next;                     /* in one of the lists of struct replies */
    uint8_t bytes[];                        /* owned: [job->replies.bytes] */
};

struct replies {
    size_t bytes;           /* of the largest chunk: what a reply has room for */
    struct reply *free;     /* owned: those that no worker keeps and no fetch uses */
    struct reply *deferred; /* those that wait for the UPDATE at hand, or the end of the part */
    struct reply *coming;   /* those that wait for a chunk which is brought (below) */
    uint32_t away;          /* kept for workers that left, and still being sent */
    bool is_short;          /* there was no room for one more, and the log has said so */
};

/* The bytes that a reply takes where chunks have at most chunk_bytes. */
static inline size_t reply_memory_bytes(size_t chunk_bytes)
{
    return sizeof(struct reply) + chunk_bytes;
}
/* Once, for a worker that joined. CAIRN_ERR_NO_MEMORY: the worker is refused. */
CAIRN_MUST_CHECK cairn_status reply_keep(struct shard_member *member, struct sentence *why);
/* `to` replaces `from`, and has its reply. */
void reply_move(struct shard_member *from, struct shard_member *to);
/* The member is freed: gives its memory back, or when it has been sent. */
void reply_forget(struct shard_member *member);
/* For a fetch of the member; NULL: none for now, which the log says if memory.limit is why. */
struct reply *reply_open(struct shard_member *member, const struct chunk_header *header);
/* The fetch is over, however it ended. */
void reply_end(struct reply *reply);
/* The job leaves: frees its replies. Replies that are being sent come back first, and are freed by
 * a later call. */
void replies_release(struct shard_job *job);

/* ==== copies ==== */

/* The memory of published copies: made, shown to members, brought to another view, closed; and the sides that
 * they have, in host memory and on a device. Which copy has which version: published.c. */

#define CAIRN_COPIES_ALWAYS 2 /* of every job; the others are for leases */

/* ==== bring ==== */

/* Chunks of a version that lies on a card come to its copy's side in host memory as they are asked for.
 *
 *   fetch ─► is it there? ── yes ──────────────────────────────────────► answered
 *                └─ no ─► a run of the device's threads copies the chunk ─► all who wait for it
 *
 * A chunk of a version is brought once, whoever asks, and one that nobody asks for never: whole chunks, also
 * where a part of one is asked for, so that many who each want a part of it cost one copy. They are copied
 * beside whatever else the device does, an update included, in lists with that (base.h). No loop waits:
 * who asked does, in job->replies.coming.
 *
 * While a chunk of a copy is on its way nothing else is written to that copy, it is not closed
 * (published_lend), and its job is not parked. So what was asked for in time is answered, although an
 * update that follows waits to write there. Loop thread. */

/* Whether a chunk of a copy is in host memory. */
enum brought { CAIRN_BROUGHT_NOT, CAIRN_BROUGHT_COMING, CAIRN_BROUGHT };

/* Some are on their way. */
bool bring_works(const struct shard_job *job);

/* ==== fetch ==== */

/* Fetches. Loop thread. */

/* Takes or drops the message. */
void fetch_on_message(struct shard_member *member, const struct chunk_header *header,
                      struct fabric_message *message);
/* An UPDATE has ended, or a job is where it is to be (part.h): answers what was deferred. */
void fetch_deferred(struct shard_job *job);

#endif
