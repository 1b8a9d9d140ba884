/* A reply: the answer to a fetch, from when it is asked for until it is sent, with memory for a chunk.
 *
 * Each worker, and each shard that takes state from this one, keeps one, which is counted with the job at
 * its admission (need.h) and taken as the worker joins, so that no worker waits for memory for ever.
 * Further fetches of a worker, and the fetches of readers, get one while memory.limit has room for one;
 * these replies stay with the job, and serve every member. Loop thread. */
#ifndef CAIRN_SHARD_READ_REPLY_H
#define CAIRN_SHARD_READ_REPLY_H

#include "proto/wire/chunk.h"
#include "proto/wire/tiles.h"
#include "server/shard/base/bytes.h"
#include "server/shard/base/compute.h"

struct cairn_member;
struct cairn_published;
struct cairn_shard_job;

struct cairn_reply {
    struct cairn_shard_job *job; /* borrowed */
    bool is_kept;                /* for one worker */
    bool is_used;                /* by a fetch */
    struct cairn_chunk_header header;
    struct cairn_box box;               /* what of the chunk is asked for; if `boxed` */
    bool boxed;                         /* not all of the chunk is asked for */
    enum cairn_way way;                 /* by which the data goes */
    const struct cairn_published *lent; /* the copy that is sent out of; NULL: `bytes` are sent */
    bool is_direct;                     /* from the copy's memory on the card */
    bool is_given; /* it is sent right out of the planes, to a shard that takes it (move/) */
    uint8_t box_bytes[CAIRN_BOX_BYTES_MAX]; /* the encoded box, being received */
    struct cairn_run bring;                 /* bring.h: for all who wait for the chunk */
    const struct cairn_published *from;     /* in replies.coming: the copy */
    uint64_t chunk;                         /* of it */
    struct cairn_reply *next;               /* in one of the lists of struct cairn_replies */
    uint8_t bytes[];                        /* owned: [job->replies.bytes] */
};

struct cairn_replies {
    size_t bytes;                 /* of the largest chunk: what a reply has room for */
    struct cairn_reply *free;     /* owned: those that no worker keeps and no fetch uses */
    struct cairn_reply *deferred; /* those that wait for the UPDATE at hand, or the end of park.h */
    struct cairn_reply *coming;   /* those that wait for a chunk which is brought: bring.h */
    uint32_t away;                /* kept for workers that left, and still being sent */
    bool is_short;                /* there was no room for one more, and the log has said so */
};

/* The bytes that a reply takes where chunks have at most chunk_bytes. */
static inline size_t cairn_reply_bytes(size_t chunk_bytes)
{
    return sizeof(struct cairn_reply) + chunk_bytes;
}
/* Once, for a worker that joined. CAIRN_ERR_NO_MEMORY: the worker is refused. */
CAIRN_MUST_CHECK cairn_status cairn_reply_keep(struct cairn_member *member,
                                               struct cairn_sentence *why);
/* `to` replaces `from`, and has its reply. */
void cairn_reply_move(struct cairn_member *from, struct cairn_member *to);
/* The member is freed: gives its memory back, or when it has been sent. */
void cairn_reply_forget(struct cairn_member *member);
/* For a fetch of the member; NULL: none for now, which the log says if memory.limit is why. */
struct cairn_reply *cairn_reply_open(struct cairn_member *member,
                                     const struct cairn_chunk_header *header);
/* The fetch is over, however it ended. */
void cairn_reply_end(struct cairn_reply *reply);
/* The job leaves: frees its replies. Replies that are being sent come back first, and are freed by
 * a later call. */
void cairn_replies_release(struct cairn_shard_job *job);

#endif
