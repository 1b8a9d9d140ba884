/* The published copies of a job: which memory has which version, which is written next, which may go.
 *
 * Two copies are always there: the newest version, and the one before, which the next update overwrites. A
 * lease (leases.h) keeps a version from that: it takes one copy more, out of the shard's budget, at the
 * moment it is taken, and gives one back when nothing keeps its version any more. So with n versions leased
 * there are 2 + n copies, and one of them is neither the newest nor leased: an update takes the oldest of
 * those, allocates nothing and waits for nobody. Loop thread only; compute threads write the copy that was
 * begun.
 *
 * When a job goes on in another view (job/switch.h) its copies stay in theirs, until they are written next:
 * so a version is read by the view that it was written in. The newest version may be written once more, in
 * the job's view: then two copies have it.
 *
 * A shard shows members at most 4092 regions (proto/fabric/fabric.h), each a segment or a head: 255 GiB of
 * copies of all its jobs, half of that where they have a device's side. One beyond that is shown to nobody,
 * which the log says, and sent. */
#ifndef CAIRN_SHARD_READ_PUBLISHED_H
#define CAIRN_SHARD_READ_PUBLISHED_H

#include "proto/wire/messages.h"
#include "server/core/decision.h"
#include "server/shard/memory/arena.h"
#include "server/shard/read/leases.h"

#define CAIRN_PUBLISHED_NONE UINT32_MAX
enum { CAIRN_SHARD_PUBLISHED_MAX = 2 + CAIRN_LEASED_VERSIONS_MAX };

struct cairn_member;
struct cairn_shard;
struct cairn_shard_job;
struct cairn_shard_view;
struct cairn_works;

/* A published copy, or room for one. */
struct cairn_published {
    /* proto/geometry/published.h: its head, and the extents, each in its wire dtype; members of this host map
     * both, or nobody does */
    struct cairn_arena head, wire;
    /* the same as `wire` where the planes lie, which is written first; of a job that is wholly on a device */
    struct cairn_arena device;
    /* `wire` has all of the version, too. It is left out if nobody maps it there; then it has of it what was
     * asked for (bring.h), and frozen tensors always */
    bool on_host;
    /* owned: [view->table.map.chunk_count] of enum cairn_brought, unless on_host; NULL with checksums */
    uint8_t *brought;
    /* owned: [view->table.map.chunk_count] 0 = not asked for yet; NULL: there is no copy here */
    uint64_t *checksums;
    struct cairn_shard_view
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
struct cairn_versions {
    struct cairn_published copies[CAIRN_SHARD_PUBLISHED_MAX];
    /* Which of the copies; writing: CAIRN_PUBLISHED_NONE between updates. */
    uint32_t newest, writing;
    /* A copy of this version or a later one, in the job's view, has the parameters that the planes
     * have; only if knows_param. */
    struct cairn_version param;
    bool knows_param;
    uint32_t direct_sends; /* out of a copy's memory on the card, which stays there meanwhile */
    uint64_t room_bytes;   /* of addresses that a copy has in host memory, at least */
    uint64_t leased_bytes; /* of the budget, that copies for leases took */
    struct cairn_shard_lease leases[CAIRN_SHARD_LEASES_MAX];
};

/* The copies of every job, before a lease: budget is taken by the caller. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_published_open(struct cairn_shard_job *job,
                                                   struct cairn_sentence *why);
void cairn_published_close(struct cairn_shard_job *job);
/* To a member that was just connected: if it is of this host it reads the copies where they are. */
void cairn_published_show(struct cairn_member *member);
/* The first version is about to be written into copy 0; it was. */
void cairn_published_seal_begin(struct cairn_shard_job *job);
void cairn_published_seal_end(struct cairn_shard_job *job, struct cairn_version version);
/* The copy of that version; of two, that of the later layout. NULL: the version is not kept. */
const struct cairn_published *cairn_published_find(const struct cairn_shard_job *job,
                                                   struct cairn_version version);
/* The copy of that version whose layout is the last one before that of `later`, a copy; NULL: none. */
const struct cairn_published *cairn_published_find_before(const struct cairn_shard_job *job,
                                                          const struct cairn_published *later);
/* Why cairn_published_find gave NULL: CAIRN_ERR_NOT_READY (it is yet to come), CAIRN_ERR_VERSION_GONE. */
cairn_status cairn_published_missing(const struct cairn_shard_job *job,
                                     struct cairn_version version);
/* Where a local element of that chunk, both of the copy's view, stands in it: where it is written first, and
 * in host memory. */
uint8_t *cairn_published_at(const struct cairn_published *copy, uint64_t chunk,
                            uint64_t local_elem);
uint8_t *cairn_published_host_at(const struct cairn_published *copy, uint64_t chunk,
                                 uint64_t local_elem);
size_t cairn_published_bytes(const struct cairn_published *copy, uint64_t chunk);
/* The chunk is about to be written: what was known of it, and its side in host memory, are of before. Any
 * thread that writes it. */
void cairn_published_forget(struct cairn_published *copy, uint64_t chunk);
/* Brings a chunk of the side on the device to the one in host memory. Any thread. */
void cairn_published_fill(struct cairn_works *works, const struct cairn_published *copy,
                          uint64_t chunk);
/* Chooses the copy to write: what it had cannot be read any more from here on. It may be written when nothing
 * of it is being sent any more, and it was made ready. */
void cairn_published_begin(struct cairn_shard_job *job);
/* Makes the copy ready that was chosen: by the job's view. CAIRN_ERR_NO_MEMORY: it cannot be written. */
CAIRN_MUST_CHECK cairn_status cairn_published_ready(struct cairn_shard_job *job,
                                                    struct cairn_sentence *why);
/* The n-th copy (0, 1, ...) that must be brought to the host before its side on the device goes, or to the
 * device's side that was opened. False: there are no more. Nothing is written or updated meanwhile. */
struct cairn_published_move {
    void *to;
    const void *from;
    size_t bytes;
};
bool cairn_published_move(const struct cairn_shard_job *job, bool to_host, uint32_t n,
                          struct cairn_published_move *move_out);
/* The bytes of the device that copies take now. `all`: those that the copies must have there, which
 * leaves out copies for leases, since these can do without. */
uint64_t cairn_published_device_bytes(const struct cairn_shard_job *job, bool all);
/* Room on the device for the copies that there are; those for leases stay in host memory alone where there
 * is none. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO: cairn_published_park is to be called all the same. */
CAIRN_MUST_CHECK cairn_status cairn_published_open_device(struct cairn_shard_job *job,
                                                          struct cairn_sentence *why);
/* Ends a park or an unpark, once all that had to be copied is copied: from here on the copies have
 * the host's side alone, or both. */
void cairn_published_park(struct cairn_shard_job *job);
void cairn_published_unpark(struct cairn_shard_job *job);
/* A send right out of it, or a copy within it, began, or ended: then it may be closed. */
void cairn_published_lend(struct cairn_shard_job *job, const struct cairn_published *copy);
void cairn_published_return(struct cairn_shard_job *job, const struct cairn_published *copy);
/* The version that was written last changed parameters here. */
void cairn_published_note_params(struct cairn_shard_job *job);
/* Some came from another shard, or the view is another one: what older copies have of them counts no more. */
void cairn_published_forget_params(struct cairn_shard_job *job);
/* It is written: the newest version, readable. `frozen_changed`: the others have frozen tensors of before. */
void cairn_published_end(struct cairn_shard_job *job, struct cairn_version version,
                         bool frozen_changed);

/* One copy more, out of the budget, for `what` (in words). CAIRN_ERR_BUSY: as many as can be are there;
 * CAIRN_ERR_NO_MEMORY, with the numbers. */
CAIRN_MUST_CHECK cairn_status cairn_published_add(struct cairn_shard_job *job, const char *what,
                                                  struct cairn_sentence *why);
/* Copies beyond two and one a leased version go, the oldest first. */
void cairn_published_trim(struct cairn_shard_job *job);

#endif
