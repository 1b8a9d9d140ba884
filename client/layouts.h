/* A served layout is a layout, together with the places where the shards published by that layout,
 * and the versions that the layout serves. While a job is re-sharded, the job has several served
 * layouts, newest first. Each serves the versions from its `since` up to the `since` of the next
 * newer layout: the shard that published a part of a version serves this part, even if another
 * shard owns the part by now. Pushes, writes and the state itself always use the newest layout.
 *
 * Any thread may read the list and the layouts under the lock; the loop thread changes them, under
 * the lock. */
#ifndef CAIRN_CLIENT_LAYOUTS_H
#define CAIRN_CLIENT_LAYOUTS_H

#include <cairn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/base.h"
#include "proto/base/status.h"
#include "proto/geometry/layout.h"
#include "proto/wire/wire.h"

struct job;

/* One shard's part in a layout. */
struct served_part {
    struct shard_map map;
    /* lock; owned: [map.extent_count], the offset of each extent in a published copy; NULL: the
     * offsets are not known yet */
    uint64_t *published_at;
    /* lock; the bytes of a published copy, valid if published_at is not NULL */
    uint64_t published_bytes;
    bool absent; /* a hole: this shard owns nothing and takes no part in rounds */
};

struct served_layout {
    struct served_layout *older; /* the next older layout of the job's list */
    uint32_t refs; /* loop thread: held by the list, by commands and by the open round */
    struct cairn_version since;
    /* the layout was found when this member returned to the job, so it may also serve versions
     * before `since` */
    bool found;
    struct layout *layout;      /* owned */
    struct served_part parts[]; /* [layout->shard_count] */
};

/* Takes over `layout` on success. CAIRN_ERR_NO_MEMORY. */
cairn_status served_layout_open(const struct job_spec_data *spec, struct layout *layout,
                                struct cairn_version since,
                                struct served_layout **out) CAIRN_MUST_CHECK;
/* Loop thread. */
struct served_layout *served_layout_get(struct served_layout *served);
void served_layout_put(struct served_layout *served); /* NULL is fine */

/* Loop thread, not under the lock: makes the layout the job's newest, and takes over the caller's
 * reference. */
void served_layouts_add(struct job *job, struct served_layout *served);
/* Loop thread, not under the lock: sets the version from which the layout serves. */
void served_layouts_serve_since(struct job *job, struct served_layout *served,
                                struct cairn_version since);
/* Loop thread, not under the lock: releases the layouts that no fetch uses any more. Returns true
 * if there were any. */
bool served_layouts_trim(struct job *job);
/* Loop thread, not under the lock: releases all layouts. */
void served_layouts_release(struct job *job);
/* Returns the layout for fetching a published version, which is the newest layout that serves the
 * version. There is always such a layout. */
struct served_layout *served_layout_of_version(const struct job *job, struct cairn_version version);
/* Returns true if the shard has left the job; its published copies may still exist. */
bool served_layouts_left_by(const struct job *job, uint32_t shard);

/* ==== pieces ==== */

/* Copies of a card's memory for shards that cannot read that memory directly. Each copy is in a piece
 * of memory such as cairn_alloc gives, on the card or on the host (pinned for the card). Pieces are
 * reused, so their number is the highest number of chunks that were in flight, or copied ahead, at one
 * time (push.h). A piece that is allocated while a stream waits is on the host, and is not pinned yet.
 * Loop thread. */

struct card;
struct staging_area;
struct session;

struct staged {
    struct staging_area *area; /* borrowed */
    uint8_t *at;               /* NULL: none */
    bool on_card;
};

/* Called when nothing reads the copies any more; the memory of the copies is freed with the
 * session's. */
void stage_close_areas(struct session *s);

/* ==== tiles ==== */

/* Tiles: the part of each tensor that this worker holds. A declaration is made by cairn_tiles, and
 * takes effect when the coordinator confirms that the declarations of all ranks fit together. */

/* Constant after its creation. */
struct declared {
    struct tiles tiles; /* without whole tensors, which are not listed */
    uint64_t hash;
    uint32_t world;
    struct packed *packed; /* held: `tiles`, packed */
};

struct held_tiles {
    /* lock */
    /* owned: the declaration in effect. Whole tensors are held if this is NULL, or if its world is
     * 0 */
    struct declared *declared;
    /* the declaration of the cairn_tiles call that waits for other ranks; NULL: none */
    struct declared *declaring;
    bool declaring_holds; /* `declaring` became `declared` */
    /* loop thread */
    /* the request number of a declaration that was repeated after an attach; 0: no such declaration
     * is unanswered */
    uint32_t request;
};

/* Any thread, not under the lock: returns what this worker holds of a tensor. */
struct piece client_tiles_own(struct job *job, size_t tensor);
Cairn__TilesDeclare client_tiles_message(const struct declared *declared);
void client_tiles_free(struct declared *declared); /* NULL is fine */

#endif
