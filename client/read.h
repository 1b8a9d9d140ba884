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

/* Reads the contents of the Attached message: the servers' spec, and the layout. Reading a million
 * tensors takes a second. So a separate thread reads a large message, while other jobs of the
 * session continue; a small message is read at once.
 *
 *   reading_begin ─► a thread reads ─► is over (the loop thread is kicked) ─► attach.c takes it
 *
 * The job's spec and the pages do not change until the reading is freed. Loop thread. */

struct reading {
    const struct job *job;
    pthread_t thread;
    bool has_thread, first, wants_served;
    atomic_bool is_over; /* true: all fields below are set */
    /* the status of the spec; unless CAIRN_OK, `why` explains it */
    cairn_status spec_status;
    struct sentence why;
    bool tells_clip_norm; /* clip_norm is the value in effect */
    double clip_norm;
    bool takes_spec;           /* `spec` will become the job's spec */
    struct job_spec_data spec; /* owned */
    /* the status of the layout, unless the spec failed */
    cairn_status layout_status;
    struct layout *layout;        /* owned; NULL: moved to `served` */
    struct served_layout *served; /* owned: for a job that has no served layout yet; else NULL */
};

/* Called when all pages have arrived: creates job->attachment.reading, which may be over on return.
 * CAIRN_ERR_NO_MEMORY. */
cairn_status reading_begin(struct job *job) CAIRN_MUST_CHECK;
/* Reads a layout of the spec's tensors from its wire form; the caller owns the result.
 * CAIRN_ERR_MALFORMED, CAIRN_ERR_PROTOCOL, CAIRN_ERR_NO_MEMORY. Any thread. */
cairn_status layout_of_pages(const struct job_spec_data *spec, const struct paged *pages,
                             struct layout **layout_out) CAIRN_MUST_CHECK;
/* Waits until the reading is over. */
void reading_await(struct reading *reading);

/* ==== cache ==== */

/* Gathered units: the units that cairn_prefetch and cairn_map hold in the library's memory
 * (api_read.c). */

/* Called when the job is released: no operation is in progress any more. */
void cache_release(struct job *job);

/* Under the lock: frees all units that are not on loan. False: some unit is on loan, or being
 * fetched. */
bool cache_forget(struct job *job);

/* ==== mapped ==== */

/* Published memory of this host's shards: see read.c. Loop thread, unless a comment says otherwise. */

struct parcel;

/* A head or a segment of a copy. */
struct shown {
    struct shown *next;
    struct fabric_mapping *mapping; /* held */
    uint32_t segment;               /* the segment's number, from the note */
    enum published_side side;
    bool is_there; /* readable now: a mapping on a card is postponed while a stream waits */
};

/* A copy that a shard shows, as far as it has been shown. Changed under the lock. */
struct published {
    struct published *next;
    struct published_note note;        /* the note of the copy's first region that arrived */
    struct shown *shown;               /* owned */
    const struct published_head *head; /* NULL: not shown yet, or the session is closed */
    /* owned: [bytes] the copy's segments side by side, read-only; NULL: is_whole is false */
    const uint8_t *base;
    /* the copy's segments side by side, as an address of the session's card and not of the host;
     * NULL: not complete yet */
    const uint8_t *on_card;
    size_t bytes;
    uint32_t uses; /* uses by read.c, each ended by unuse_copy */
    bool is_whole; /* the entire copy has been shown, and is valid */
    bool gone;     /* the shard withdrew part of the copy or is gone, or the copy is not valid */
};

/* Bytes that a job's member read directly from published memory; shards cannot count these
 * bytes. */
struct mapped_reads {
    uint64_t bytes; /* lock */
    /* loop thread */
    uint64_t reported; /* the part of `bytes` that was reported to the coordinator */
    /* the part of `reported` that was reported on behalf of an earlier member */
    uint64_t reported_before;
};

/* The callbacks fabric_options.on_mapping and on_mapping_gone. */
void mapped_on_mapping(void *session, struct fabric_mapping *mapping);
void mapped_on_gone(void *session, struct fabric_mapping *mapping);
/* Releases copies that are gone and no longer in use. */
void mapped_sweep(struct session *s);
/* Called after card_imports_turn: makes the newly mapped segments readable. */
void mapped_settle(struct session *s);
/* Called before the fabric is closed. A copy that is in use is freed when its last use ends; the
 * copy's memory no longer exists by then. */
void mapped_release(struct session *s);
/* Copies a fetch's part of a chunk of that layout, if mapped memory has that part. False: the part must
 * be requested from the shard. */
bool mapped_read(struct parcel *parcel, struct served_layout *served, uint64_t chunk,
                 const struct piece *piece);
/* Any thread, under the lock: counts bytes of published memory that were read or lent here. The
 * heartbeats report the count to the coordinator. */
void mapped_count(struct job *job, uint64_t bytes);

/* ==== stitch ==== */

/* A stitch shows tensors of several shards as one contiguous range. The range is private address
 * space into which the pages of the shards' copies are mapped one after another
 * (proto/geometry/layout.h). Under the session's lock, any thread.
 *
 * The two copies that a shard publishes alternate, so a stitch that was read is needed again two
 * versions later, with the same pages. The stitch is therefore kept, with its page tables, and only
 * the edges between two runs are copied again. Mapping all pages again would cost a fault for every
 * few pages, which is most of the time of reading a tensor. A stitch is released in three cases: a
 * shard withdraws one of the stitch's copies, the job is released, or newer stitches need room
 * because there are more than CAIRN_STITCH_MAPS_MAX maps. */

/* The limit of maps in all stitches of a job. Each map counts for up to two of the maps that a
 * process may have (65530 by default). */
#define CAIRN_STITCH_MAPS_MAX 4096

struct stitch;

/* The stitches of a job. Under the lock. */
struct stitches {
    LIST_HEAD(, stitch) all; /* owned: in use or kept; the most recently used is first */
    size_t map_count;        /* the number of maps of all stitches together */
};

/* Called when the job is released: no stitch is in use any more. */
void stitches_release(struct job *job);

/* ==== published view ==== */

/* Views of tensors where the shards of this host published them, each as one contiguous range: only
 * the pages in which parts of several shards meet are copied (above). Under the session's lock, any
 * thread. */

/* Opens the wire planes of whole tensors at a version, read-only, until published_view_close. On
 * the device side, the addresses are addresses of the session's card. NULL: a shard of another host
 * has a part, the version does not exist or no longer exists, there is no address space, or, on the
 * card, several shards have parts of one tensor. */
struct published_view *published_view_open(struct job *job, struct cairn_version version,
                                           enum published_side side, const uint32_t *tensors,
                                           size_t count);
/* Returns the beginning of the i-th tensor, aligned to 64 bytes. */
const uint8_t *published_view_at(const struct published_view *view, size_t i);
/* Returns true if no later version has overwritten any part of the view until now. */
bool published_view_whole(const struct published_view *view);
void published_view_close(struct published_view *view); /* NULL is fine */

/* Returns true if this is the session's card: data that is published there may be lent or copied. */
bool published_view_has_card(const struct job *job, const struct card *card);
/* Copies the wire plane of a whole tensor, at the version, from its published copy on the card to
 * other memory of the card, and returns when the copy is complete. False: the published copy does not
 * have the whole tensor, or no longer has it. Not under the lock. */
bool published_view_copy(struct job *job, struct cairn_version version, uint32_t tensor,
                         struct card *card, void *to);

#endif
