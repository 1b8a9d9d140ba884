/* Published memory of this host's shards: see mapped.c. Loop thread, unless it says otherwise. */
#ifndef CAIRN_CLIENT_READ_MAPPED_H
#define CAIRN_CLIENT_READ_MAPPED_H

#include <cairn.h>

#include "client/base/piece.h"
#include "proto/geometry/published.h"

struct body;
struct cairn_fabric_mapping;
struct job;
struct parcel;
struct session;

/* A head or a segment of a copy. */
struct shown {
    struct shown *next;
    struct cairn_fabric_mapping *mapping; /* held */
    uint32_t segment;                     /* as of the note */
    enum cairn_published_side side;
    bool is_there; /* it can be read: on a card it is mapped later, where a stream waits */
};

/* A copy that a shard showed, or what it showed of it until now. Changed under the lock. */
struct published {
    struct published *next;
    struct cairn_published_note note;        /* of its first region that came */
    struct shown *shown;                     /* owned */
    const struct cairn_published_head *head; /* NULL: not here; or the session is closed */
    /* owned: [bytes] its segments side by side, read only; NULL: not is_whole */
    const uint8_t *base;
    /* the same on the session's card, no host address; NULL: not all is there */
    const uint8_t *on_card;
    size_t bytes;
    uint32_t uses; /* of lent.c, stitch.c, card.c, each ended by cairn_mapped_unuse */
    bool is_whole; /* all of it is here, as it has to be */
    bool gone;     /* the shard took some of it back, or is gone; or it is not what it says */
};

/* Bytes that a job's member read of published memory by itself: no shard counts them. */
struct mapped_reads {
    uint64_t bytes; /* lock */
    /* loop thread */
    uint64_t told;        /* of them, to the coordinator */
    uint64_t told_before; /* of those, while the coordinator took it for an earlier member */
};

/* cairn_fabric_options.on_mapping and on_mapping_gone. */
void cairn_mapped_on_mapping(void *session, struct cairn_fabric_mapping *mapping);
void cairn_mapped_on_gone(void *session, struct cairn_fabric_mapping *mapping);
/* Lets copies go that are gone, and that nobody uses any more. */
void cairn_mapped_sweep(struct session *s);
/* After cairn_card_imports_turn: what it mapped can be read. */
void cairn_mapped_settle(struct session *s);
/* Before the fabric is closed. Copies that are in use are freed with their last use; their memory is not
 * there any more. */
void cairn_mapped_release(struct session *s);
/* Any thread, under the lock: a use of the copy ends. */
void cairn_mapped_unuse(struct published *copy);
/* Any thread, under the lock: the copy of the shard's part of that body that has the version now on that
 * side, and its sequence; NULL: none. The places of the part are known then. */
struct published *cairn_mapped_find(struct job *job, struct body *body, uint32_t shard,
                                    struct cairn_version version, enum cairn_published_side side,
                                    uint64_t *sequence_out);
/* Copies what a fetch wants of a chunk of that body, if memory that is mapped here has it. False: it has to
 * be asked for. */
bool cairn_mapped_read(struct parcel *parcel, struct body *body, uint64_t chunk,
                       const struct piece *piece);
/* Any thread, under the lock: so much of published memory was read here, or lent. Told to the coordinator
 * with the heartbeats. */
void cairn_mapped_count(struct job *job, uint64_t bytes);

#endif
