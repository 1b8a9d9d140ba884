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

/* A lease keeps a published version in addition to the newest version and the version before it.
 *
 * The coordinator begins, renews and ends leases. If a lease is not renewed in time, the shard ends
 * the lease by its own clock, a quarter of the lease's time after the time is over. The shard keeps
 * a lease of an earlier coordinator, too, because the lease's holder may be about to renew it. Such
 * a lease ends early if a lease of the present coordinator finds no room. Loop thread only. */

enum {
    CAIRN_SHARD_LEASES_MAX = 4 *
                             /* includes leases of earlier coordinators */
                             CAIRN_LEASED_VERSIONS_MAX,
    CAIRN_SHARD_LEASE_MS_MAX = 86400000
};

/* A version that the coordinator wants to be kept. */
struct shard_lease {
    uint64_t number; /* 0: none */
    struct cairn_version version;
    uint64_t ends_ms;     /* the uv_now at which the lease ends */
    uint64_t coordinator; /* the incarnation of the coordinator that asked for the lease last */
};

/* ==== published ==== */

/* The published copies of a job. This section decides which memory holds which version, which copy
 * is written next, and which copies may be dropped.
 *
 * Without leases there are two copies: the newest version, and the version before it, which the
 * next update overwrites. A lease (above) protects a version from being overwritten. When a version
 * is leased for the first time, one more copy is taken out of the shard's budget; when no lease
 * keeps the version any longer, one copy is given back. So with n leased versions there are 2 + n
 * copies, and at least one copy is neither the newest nor leased. An update overwrites the oldest
 * such copy; it allocates nothing and waits for nobody. Loop thread only; compute threads write the
 * copy that published_begin chose.
 *
 * When a job continues in another view (jobs.h), each copy keeps its view until the copy is written
 * again, and its version is read by that view. The newest version may be written a second time, by
 * the job's view; then two copies have the newest version.
 *
 * A process that has mapped a copy cannot be made to let go of it. So if a member loses the right to
 * read the job, the copies that it may have mapped are withdrawn: each gets new memory when it is
 * written next, the members that are left map the new memory, and the old memory is freed when
 * nobody has it mapped any longer. A member that leaves by itself costs nothing; but it may have
 * kept its mapping, and lose its right later. So each copy notes that somebody left with it.
 *
 * A shard shows its members at most 4092 regions (proto/fabric/fabric.h). Each region is a segment
 * or a head, so the copies of all jobs that are shown have at most 255 GiB, or about 128 GiB if the
 * copies have a side on the device. A copy beyond this limit is shown to nobody, and its data is
 * sent; the log reports this. */

#define CAIRN_PUBLISHED_NONE UINT32_MAX
enum { CAIRN_SHARD_PUBLISHED_MAX = 2 + CAIRN_LEASED_VERSIONS_MAX };

struct shard_view;

/* A published copy, or an entry that has no copy yet. */
struct published_copy {
    /* head: see proto/geometry/layout.h; wire: the extents, each in its wire dtype. Members of this
     * host map both arenas, or neither */
    struct arena head, wire;
    /* the same data as `wire`, on the device, where an update writes it first; only for a job whose
     * planes all lie on a device */
    struct arena device;
    /* `wire` has the complete version. This is false if the version was written only to `device`,
     * because nobody maps `wire`. Then `wire` has only the frozen tensors and the chunks that were
     * requested (bring, below) */
    bool on_host;
    /* owned: [view->table.map.chunk_count] enum brought, counts unless on_host; NULL if checksums
     * is NULL */
    uint8_t *brought;
    /* owned: [view->table.map.chunk_count] the checksum of each chunk; 0: nobody has requested the
     * chunk yet. NULL: this copy does not exist */
    uint64_t *checksums;
    /* counted: the view by which the copy was or will be written; NULL if checksums is NULL */
    struct shard_view *view;
    struct cairn_version version;
    /* while the copy is being written: the parameters in it are already the newest ones */
    bool holds_params;
    uint64_t most_bytes; /* the largest size that `wire` has had in any view */
    uint32_t settled;    /* how often the copy was written in `view`, after the first time */
    bool readable;       /* false before the copy is first written, and while it is being written */
    bool stale;          /* the frozen tensors in the copy are not the newest ones */
    bool left_with;      /* a member of this host that may have mapped the copy has left */
    bool withdrawn;      /* the copy gets new memory before it is written again */
    /* how many sends out of the copy, and transfers of chunks to `wire`, are under way. Until they
     * end, the copy is neither written nor closed */
    uint32_t sends;
};

/* The versions of a job that can be fetched. */
struct versions {
    struct published_copy copies[CAIRN_SHARD_PUBLISHED_MAX];
    /* Indices in `copies`; `writing` is CAIRN_PUBLISHED_NONE while no copy is being written. */
    uint32_t newest, writing;
    /* If knows_param is true, a copy that has this version or a later one, in the job's view, has
     * the same parameters as the planes. */
    struct cairn_version param;
    bool knows_param;
    /* how many sends out of copies' memory on the card are under way; this memory must stay there
     * until the sends end */
    uint32_t direct_sends;
    uint64_t room_bytes;   /* each copy has addresses for at least this many bytes of host memory */
    uint64_t leased_bytes; /* bytes of the budget that copies for leases have taken */
    struct log_limit withdraw_refusals; /* there was no room for the memory of withdrawn copies */
    struct shard_lease leases[CAIRN_SHARD_LEASES_MAX];
};

/* Opens the copies that every job has without leases. The caller must have taken their bytes from
 * the budget. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status published_open(struct shard_job *job, struct sentence *why);
void published_close(struct shard_job *job);
/* Shows the copies to a member that was just connected. A member of this host then reads the copies
 * in place. */
void published_show(struct shard_member *member);
/* Notes that a member has left that may have mapped the copies, and may have kept them. */
void published_left(struct shard_job *job);
/* Withdraws the copies with which a member has left, because such a member may have lost the right
 * to read the job. */
void published_withdraw(struct shard_job *job);
/* Called before and after the first version of the job is written, into copy 0. On
 * CAIRN_ERR_NO_MEMORY it cannot be written. */
CAIRN_MUST_CHECK cairn_status published_seal_begin(struct shard_job *job, struct sentence *why);
void published_seal_end(struct shard_job *job, struct cairn_version version);
/* Returns the copy that has the version. If two copies have the version, returns the one with the
 * later layout. NULL: the version is not kept. */
const struct published_copy *published_find(const struct shard_job *job,
                                            struct cairn_version version);
/* Returns the copy that has the same version as `later` but an earlier layout; of several, the one
 * with the latest such layout. NULL: there is none. */
const struct published_copy *published_find_before(const struct shard_job *job,
                                                   const struct published_copy *later);
/* Returns why published_find returned NULL. CAIRN_ERR_NOT_READY: the version is not made yet.
 * CAIRN_ERR_VERSION_GONE: it is no longer kept. */
cairn_status published_missing(const struct shard_job *job, struct cairn_version version);
/* Both functions return where a local element of a chunk lies in the copy: copy_chunk_at in the
 * memory that is written first, published_host_at in host memory. The copy's view numbers the
 * element and the chunk. */
uint8_t *copy_chunk_at(const struct published_copy *copy, uint64_t chunk, uint64_t local_elem);
uint8_t *published_host_at(const struct published_copy *copy, uint64_t chunk, uint64_t local_elem);
size_t copy_chunk_bytes(const struct published_copy *copy, uint64_t chunk);
/* Notes that the chunk's checksum, and the chunk in `wire`, are out of date. Called before the
 * chunk is written, by the thread that writes it, which may be any thread. */
void published_forget(struct published_copy *copy, uint64_t chunk);
/* Adds a work that copies a chunk from the copy's side on the device to its side in host memory.
 * Any thread. */
void published_fill(struct works *works, const struct published_copy *copy, uint64_t chunk);
/* Chooses the copy that is written next. After this call the copy's old version cannot be read. The
 * copy may be written when nothing is sent out of it any longer, and published_ready has then
 * succeeded. */
void published_begin(struct shard_job *job);
/* Has no copy readable any more, the one that is being written aside: the planes have changed without an
 * update. */
void published_void(struct shard_job *job);
/* Prepares the chosen copy to be written in the job's view. On CAIRN_ERR_NO_MEMORY the copy cannot
 * be written. */
CAIRN_MUST_CHECK cairn_status published_ready(struct shard_job *job, struct sentence *why);
/* Describes the n-th copy operation (0, 1, ...) that parking needs for published copies. If to_host
 * is true, it copies from a side on the device, which is then given back, to host memory; otherwise
 * from host memory to a side on the device that was just opened. Returns false if there is no n-th
 * operation. No copy may be written meanwhile. */
struct published_move {
    void *to;
    const void *from;
    size_t bytes;
};
bool published_move(const struct shard_job *job, bool to_host, uint32_t n,
                    struct published_move *move_out);
/* Returns the bytes of device memory that copies take now. If `all` is true, returns the bytes that
 * copies need on the device when the job is not parked. Copies for leases do not count then,
 * because they may do without the device. */
uint64_t published_device_bytes(const struct shard_job *job, bool all);
/* Takes memory on the device for the existing copies. If there is no room for copies for leases,
 * these copies stay only in host memory. After CAIRN_ERR_NO_MEMORY or CAIRN_ERR_IO call
 * published_park. */
CAIRN_MUST_CHECK cairn_status published_open_device(struct shard_job *job, struct sentence *why);
/* Called when everything was copied. After published_park the copies have a side only in host
 * memory; after published_unpark they also have the side on the device that published_open_device
 * opened. */
void published_park(struct shard_job *job);
void published_unpark(struct shard_job *job);
/* Notes that the newest version is the last one that changed parameters of this shard. */
void published_note_params(struct shard_job *job);
/* Notes that parameters in older copies may be out of date, because parameters arrived from another
 * shard or the view changed. */
void published_forget_params(struct shard_job *job);
/* Ends the writing of the chosen copy, which is now readable and has the newest version. If
 * frozen_changed is true, the frozen tensors in the other copies are out of date. */
void published_end(struct shard_job *job, struct cairn_version version, bool frozen_changed);

/* Drops copies, the oldest first, until there are two copies and one more for each leased
 * version. */
void published_trim(struct shard_job *job);

/* ==== reply ==== */

/* A reply is the answer to a fetch, from the request until the answer is sent. A reply has memory
 * for a chunk.
 *
 * Each worker keeps one reply, so that no worker waits for memory for ever; each shard that takes
 * state from this shard keeps one, too. The bytes of this reply are considered when the job is
 * admitted (need.h), and taken when the worker joins. Further fetches of a worker, and all fetches
 * of readers, get a reply if memory.limit has room for one more. These replies stay with the job,
 * and any member may use them later. Loop thread. */

struct reply {
    struct shard_job *job; /* borrowed */
    bool is_kept;          /* one worker (or a mover) keeps the reply */
    bool is_used;          /* a fetch uses the reply */
    struct chunk_header header;
    struct cairn_box box; /* if `boxed`: the part of the chunk that is asked for */
    bool boxed;           /* only a part of the chunk is asked for */
    enum bytes_path path; /* the path by which the data is sent */
    /* the copy out of which the data is sent; NULL: `bytes` are sent */
    const struct published_copy *in_copy;
    bool is_direct; /* the data is sent from the copy's memory on the card */
    /* the data is sent directly out of the planes, to a shard that takes state (receiver.c) */
    bool is_given;
    uint8_t box_bytes[CAIRN_BOX_BYTES_MAX]; /* the encoded box, being received */
    /* the run that brings the chunk (below), for all replies that wait for the chunk */
    struct work_run bring;
    /* while the reply is in replies.coming: the copy to which the chunk belongs */
    const struct published_copy *from;
    uint64_t chunk;     /* the chunk's number in `from` */
    struct reply *next; /* the next reply in one of the lists of struct replies */
    uint8_t bytes[];    /* owned: [job->replies.bytes] */
};

struct replies {
    size_t bytes;       /* the room in each reply: the size of the largest chunk */
    struct reply *free; /* owned: replies that no worker keeps and no fetch uses */
    /* replies that wait for the current UPDATE, for a park, or for arriving state */
    struct reply *deferred;
    struct reply *coming; /* replies that wait until their chunk is brought (below) */
    /* how many replies are still being sent that were kept by workers that have left */
    uint32_t away;
    bool is_short; /* there was no room for one more reply, and this was logged */
};

/* Returns the bytes that a reply takes if chunks have at most chunk_bytes. */
static inline size_t reply_memory_bytes(size_t chunk_bytes)
{
    return sizeof(struct reply) + chunk_bytes;
}
/* Takes the reply that a worker or mover keeps, unless the member has one. On CAIRN_ERR_NO_MEMORY
 * the member must be refused. */
CAIRN_MUST_CHECK cairn_status reply_keep(struct shard_member *member, struct sentence *why);
/* Gives the reply that `from` keeps to `to`, which replaces `from`. */
void reply_move(struct shard_member *from, struct shard_member *to);
/* Gives the member's reply back, now or when the reply has been sent. Called when the member is
 * freed. */
void reply_forget(struct shard_member *member);

/* ==== copies ==== */

/* The memory of published copies: how it is made, shown to members, prepared for another view, and
 * closed. A copy may have two sides: in host memory, and on a device. */

#define CAIRN_COPIES_ALWAYS 2 /* how many copies every job has; more are for leases */

/* ==== bring ==== */

/* Brings chunks of a version that lies on a card to the copy's side in host memory, when they are
 * requested.
 *
 *   fetch ─► is it there? ── yes ──────────────────────────────────────► answered
 *                └─ no ─► a run of the device's threads copies the chunk ─► all who wait for it
 *
 * A chunk of a version is brought only if somebody requests it, and only once, whoever else
 * requests it. A complete chunk is brought even if only a part is requested, so that many requests
 * for different parts cost one copy. The copies are works in the same lists (base.h) as other work
 * of the device, such as an update. The loop thread does not wait for a copy; only the requests
 * wait, in job->replies.coming.
 *
 * While a chunk is being brought, its copy is not overwritten or closed (published_lend), and the
 * job is not parked. So a request that was made in time is answered, even if a later update waits
 * to overwrite the copy. Loop thread. */

/* Whether a chunk of a copy is in host memory. */
enum brought { CAIRN_BROUGHT_NOT, CAIRN_BROUGHT_COMING, CAIRN_BROUGHT };

/* True if some chunks are being brought. */
bool bring_works(const struct shard_job *job);

/* ==== fetch ==== */

/* Fetches. Loop thread. */

/* Handles a FETCH. Takes or drops the message. */
void fetch_on_message(struct shard_member *member, const struct chunk_header *header,
                      struct fabric_message *message);
/* Answers the deferred fetches. Called when an UPDATE has ended, when the job was parked or taken
 * back to the device (part.h), or when all state has arrived. */
void fetch_deferred(struct shard_job *job);

#endif
