/* Published memory of this host's shards: see mapped.c. Loop thread, unless it says otherwise. */
#ifndef CAIRN_CLIENT_MAPPED_H
#define CAIRN_CLIENT_MAPPED_H

#include "client/session.h"
#include "proto/wire/published.h"

/* A copy that a shard showed us. Changed under the lock. */
struct published {
    struct published *next;
    struct cairn_fabric_mapping *mapping; /* held */
    struct cairn_published_note note;
    const uint8_t *base; /* [bytes] the mapping's, read only; NULL: the session is closed */
    size_t bytes;
    int fd;        /* the mapping's */
    uint32_t uses; /* of lent.c and stitch.c, each ended by cairn_mapped_unuse */
    bool gone;     /* the shard took it back, or is gone */
};

/* cairn_fabric_options.on_mapping and on_mapping_gone. */
void cairn_mapped_on_mapping(void *session, struct cairn_fabric_mapping *mapping);
void cairn_mapped_on_gone(void *session, struct cairn_fabric_mapping *mapping);
/* Lets copies go that are gone, and that nobody uses any more. */
void cairn_mapped_sweep(struct session *s);
/* Before the fabric is closed. Copies that are in use are freed with their last use; their memory is not
 * there any more. */
void cairn_mapped_release(struct session *s);
/* Any thread, under the lock: a use of the copy ends. */
void cairn_mapped_unuse(struct published *copy);
/* Any thread, under the lock: the shard's copy that has the version now, and its sequence; NULL: none. The
 * places of the link are known then. */
struct published *cairn_mapped_find(struct shard_link *link, struct cairn_version version,
                                    uint64_t *sequence_out);
/* Copies what a fetch wants of a chunk, if memory that is mapped here has it. False: it has to be asked
 * for. */
bool cairn_mapped_read(struct part *part, const struct piece *piece);
/* Any thread, under the lock: so much of published memory was read here, or lent. Told to the coordinator
 * with the heartbeats. */
void cairn_mapped_count(struct job *job, uint64_t bytes);

#endif
