#ifndef CAIRN_CLIENT_READ_H
#define CAIRN_CLIENT_READ_H

#include <cairn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "client/base.h"
#include "client/layouts.h"
#include "client/device.h"
#include "proto/base/text.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"

/* ==== reading ==== */

/* Reads what the message Attached brings: the spec that the servers have, and the layout. A million
 * tensors take a second, so many are read by a thread of their own, while other jobs of the session go
 * on; a few are read at once.
 *
 *   reading_begin ─► a thread reads ─► is over (the loop thread is kicked) ─► attach.c takes it
 *
 * The job's spec and the pages stay as they are until the reading is freed. Loop thread. */

struct reading {
    const struct job *job;
    pthread_t thread;
    bool has_thread, first, wants_served;
    atomic_bool is_over; /* all that follows is there */
    /* of the spec. Not CAIRN_OK: `why` says it */
    cairn_status spec_status;
    struct sentence why;
    bool tells_clip_norm; /* clip_norm is the one in force */
    double clip_norm;
    bool takes_spec;           /* `spec` is to become the job's */
    struct job_spec_data spec; /* owned */
    /* of the layout, unless the spec failed */
    cairn_status layout_status;
    struct layout *layout;        /* owned; NULL: `served` has it */
    struct served_layout *served; /* owned: of a job that has none yet; else NULL */
};

/* All pages are here: job->attachment.reading is there, and perhaps over. CAIRN_ERR_NO_MEMORY. */
cairn_status reading_begin(struct job *job) CAIRN_MUST_CHECK;
/* A layout of tensors of the spec, off the wire: the caller's. CAIRN_ERR_MALFORMED, CAIRN_ERR_PROTOCOL,
 * CAIRN_ERR_NO_MEMORY. Any thread. */
cairn_status layout_of_pages(const struct job_spec_data *spec, const struct paged *pages,
                             struct layout **layout_out) CAIRN_MUST_CHECK;
/* Waits until it is over. */
void reading_await(struct reading *reading);

/* ==== cache ==== */

/* Gathered units: what cairn_prefetch and cairn_map have in the library's memory (api_read.c). */

/* With the job: no operation is under way any more. */
void cache_release(struct job *job);

/* Under the lock: gives up what nobody has on loan. False: something is on loan, or being fetched. */
bool cache_forget(struct job *job);

/* ==== mapped ==== */

/* Published memory of this host's shards: see read.c. Loop thread, unless it says otherwise. */

struct parcel;

/* A head or a segment of a copy. */
struct shown {
    struct shown *next;
    struct fabric_mapping *mapping; /* held */
    uint32_t segment;               /* as of the note */
    enum published_side side;
    bool is_there; /* it can be read: on a card it is mapped later, where a stream waits */
};

/* A copy that a shard showed, or what it showed of it until now. Changed under the lock. */
struct published {
    struct published *next;
    struct published_note note;        /* of its first region that came */
    struct shown *shown;               /* owned */
    const struct published_head *head; /* NULL: not here; or the session is closed */
    /* owned: [bytes] its segments side by side, read only; NULL: not is_whole */
    const uint8_t *base;
    /* the same on the session's card, no host address; NULL: not all is there */
    const uint8_t *on_card;
    size_t bytes;
    uint32_t uses; /* of read.c, each ended by unuse_copy */
    bool is_whole; /* all of it is here, as it has to be */
    bool gone;     /* the shard took some of it back, or is gone; or it is not what it says */
};

/* Bytes that a job's member read of published memory by itself: no shard counts them. */
struct mapped_reads {
    uint64_t bytes; /* lock */
    /* loop thread */
    uint64_t reported;        /* of them, to the coordinator */
    uint64_t reported_before; /* of those, while the coordinator took it for an earlier member */
};

/* fabric_options.on_mapping and on_mapping_gone. */
void mapped_on_mapping(void *session, struct fabric_mapping *mapping);
void mapped_on_gone(void *session, struct fabric_mapping *mapping);
/* Lets copies go that are gone, and that nobody uses any more. */
void mapped_sweep(struct session *s);
/* After card_imports_turn: what it mapped can be read. */
void mapped_settle(struct session *s);
/* Before the fabric is closed. Copies that are in use are freed with their last use; their memory is not
 * there any more. */
void mapped_release(struct session *s);
/* Copies what a fetch wants of a chunk of that layout, if memory that is mapped here has it. False: it has to
 * be asked for. */
bool mapped_read(struct parcel *parcel, struct served_layout *served, uint64_t chunk,
                 const struct piece *piece);
/* Any thread, under the lock: so much of published memory was read here, or lent. Told to the coordinator
 * with the heartbeats. */
void mapped_count(struct job *job, uint64_t bytes);

/* ==== stitch ==== */

/* Tensors of several shards in one piece: address space of our own into which the pages of the shards'
 * copies are mapped one behind another (proto/geometry/layout.h). Under the session's lock, any thread.
 *
 * The two copies that a shard publishes take turns, so a stitch that was read is wanted again two versions
 * later, of the same pages: the stitch is kept, with its page tables, and only the edges at which two runs
 * meet are copied anew. Mapping them all again would cost a fault for every few pages, which is most of the
 * time that reading a tensor takes. A stitch goes when a copy of it is taken back, with its job, or for newer
 * ones when there are more than CAIRN_STITCH_MAPS_MAX maps. */

/* Maps in all stitches of a job: each counts for up to two of the maps that a process may have
 * (65530 by default). */
#define CAIRN_STITCH_MAPS_MAX 4096

struct stitch;

/* The stitches of a job. Under the lock. */
struct stitches {
    LIST_HEAD(, stitch) all; /* owned: in use or kept; the one used last is the first */
    size_t map_count;        /* of all of them */
};

/* With the job: none is in use any more. */
void stitches_release(struct job *job);

/* ==== published view ==== */

/* Tensors where the shards of this host published them, in one piece each: nothing is copied but the pages
 * in which parts of several shards meet (above). Under the session's lock, any thread. */

/* The wire planes of whole tensors at a version, read only, until published_view_close; of the device's side
 * at addresses of the session's card. NULL: a shard of another host has a part, or the version is not there
 * (any more), or there is no address space; or on the card, several shards have parts of one tensor. */
struct published_view *published_view_open(struct job *job, struct cairn_version version,
                                           enum published_side side, const uint32_t *tensors,
                                           size_t count);
/* Where the i-th of them begins: aligned to 64 bytes. */
const uint8_t *published_view_at(const struct published_view *view, size_t i);
/* Nothing of it was overwritten by a later version until now. */
bool published_view_whole(const struct published_view *view);
void published_view_close(struct published_view *view); /* NULL is fine */

/* It is the session's card: what is published there may be lent, or copied. */
bool published_view_has_card(const struct job *job, const struct card *card);
/* Copies the wire plane of a whole tensor, at the version, from where it is published on the card to memory
 * of it, and returns when that is done. False: not all of it is there, or any more. Not under the lock. */
bool published_view_copy(struct job *job, struct cairn_version version, uint32_t tensor,
                         struct card *card, void *to);

#endif
