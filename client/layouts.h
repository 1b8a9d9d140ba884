/* A served layout: a layout, where the shards published by it, and which versions it serves. While a job is
 * re-sharded it has several of them, newest first. Each serves the versions from its `since` up
 * to the next layout's: the shard that published a version serves it, whoever owns that part by now.
 * Pushes, writes and the state itself always go by the newest layout.
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
    /* lock; owned: [map.extent_count], where each extent lies in a published copy; NULL: not known yet */
    uint64_t *published_at;
    uint64_t published_bytes; /* lock; of a copy, once published_at is there */
    bool absent;              /* a hole: it owns nothing, and takes no part in rounds */
};

struct served_layout {
    struct served_layout *older; /* of the job's list */
    uint32_t refs;               /* loop thread: of the list, of commands and of the open round */
    struct cairn_version since;
    bool
        found; /* when this member came back: what was published before `since` may be by it, too */
    struct layout *layout;      /* owned */
    struct served_part parts[]; /* [layout->shard_count] */
};

/* Takes `layout` on success. CAIRN_ERR_NO_MEMORY. */
cairn_status served_layout_open(const struct job_spec_data *spec, struct layout *layout,
                                struct cairn_version since,
                                struct served_layout **out) CAIRN_MUST_CHECK;
/* Loop thread. */
struct served_layout *served_layout_get(struct served_layout *served);
void served_layout_put(struct served_layout *served); /* NULL is fine */

/* Loop thread, not under the lock: it becomes the job's newest, with its reference. */
void served_layouts_add(struct job *job, struct served_layout *served);
/* Likewise: the layout serves from this version on. */
void served_layouts_serve_since(struct job *job, struct served_layout *served,
                                struct cairn_version since);
/* Likewise: releases the layouts by which nothing is fetched any more. True if there were any. */
bool served_layouts_trim(struct job *job);
void served_layouts_release(struct job *job); /* likewise: all of them */
/* The layout by which a published version is fetched: the newest one that serves it. There always is
 * one. */
struct served_layout *served_layout_of_version(const struct job *job, struct cairn_version version);
/* The shard has left the job: what it published may still be there. */
bool served_layouts_left_by(const struct job *job, uint32_t shard);

/* ==== pieces ==== */

/* Copies of a card's memory on their way to shards that do not take it from where it lies: pieces of memory
 * of cairn_alloc's kind, on the card or of the host (pinned for the card), used again and again. There are as
 * many as chunks were under way at a time, or copied ahead of that (link.h). While a stream waits, what
 * is new is of the host, and not pinned yet. Loop thread. */

struct card;
struct staging_area;
struct session;

struct staged {
    struct staging_area *area; /* borrowed */
    uint8_t *at;               /* NULL: none */
    bool on_card;
};

/* Nothing of them is read any more; their memory goes with the session's. */
void stage_close_areas(struct session *s);

/* ==== tiles ==== */

/* Tiles: what this worker holds of each tensor. A declaration is made by cairn_tiles, and holds from the
 * coordinator's word that those of all ranks fit together. */

/* Constant once made. */
struct declared {
    struct tiles tiles; /* without whole tensors: those are not listed */
    uint64_t hash;
    uint32_t world;
    struct packed *packed; /* held: the same */
};

struct held_tiles {
    /* lock */
    struct declared *declared;  /* owned; what holds. NULL, or of world 0: whole tensors */
    struct declared *declaring; /* of the cairn_tiles that waits for the other ranks; or NULL */
    bool declaring_holds;       /* `declaring` became `declared` */
    /* loop thread */
    uint32_t request; /* of the declaration told again after an attach; 0: none is unanswered */
};

/* Any thread, not under the lock: what this worker holds of a tensor. */
struct piece client_tiles_own(struct job *job, size_t tensor);
Cairn__TilesDeclare client_tiles_message(const struct declared *declared);
void client_tiles_free(struct declared *declared); /* NULL is fine */

#endif
