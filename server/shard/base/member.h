/* The members of a job: job/members.c connects them. Loop thread. */
#ifndef CAIRN_SHARD_BASE_MEMBER_H
#define CAIRN_SHARD_BASE_MEMBER_H

#include <uv.h>

#include "proto/fabric/fabric.h"
#include "proto/wire/chunk.h"
#include "proto/wire/messages.h"
#include "server/base/log.h"
#include "server/shard/base/bytes.h"

struct cairn_member_tile;
struct cairn_shard_job;

/* A member of a job: a worker or a reader. */
struct cairn_member {
    struct cairn_shard_job *job; /* borrowed */
    uint64_t number, token;
    uint64_t told; /* session.serial when the coordinator last told of it */
    uint32_t rank, role;
    char name[64];
    struct cairn_fabric_peer *peer; /* owned; NULL: not connected */
    bool is_relay;     /* of a host's workers: a shard, or this one (MemberJoin.relay) */
    bool is_mover;     /* a shard that takes what we give: move/; it is there as long as that */
    bool heard;        /* since it was connected: worth connecting again when it goes down */
    bool again;        /* it went down after it was heard: one try more, by shard->connects.again */
    bool cut;          /* a send failed: to be closed when the actions at hand are done */
    uint32_t endpoint; /* the number of `peer`, or of the last one */
    uint32_t connection;      /* of the member: the highest number that a HELLO of it had */
    uint32_t replies;         /* fetches that wait or are being sent */
    struct cairn_reply *kept; /* owned: reply.h, of a worker; NULL: it gets one that comes back */
    uint32_t notes;           /* micro-batch ends being received */
    uint64_t tiles_hash;      /* of the list that it declared: CAIRN_TABLE_HASH_WHOLE without one */
    struct cairn_member_tile *tiles; /* owned: [tile_count], by tensor; those of tensors here */
    size_t tile_count;
    uint64_t untouched;       /* chunks of trained tensors here that it holds nothing of */
    struct cairn_bytes bytes; /* its own, since it joined */
    struct cairn_log_limit refusals;
    size_t address_bytes;
    uint8_t address[]; /* owned: [address_bytes], for the fabric */
};

struct cairn_members {
    struct cairn_member **list; /* owned: [capacity], by number, open addressing */
    size_t count, capacity;
    bool cut; /* some have `cut` set */
};

struct cairn_member *cairn_member_find(const struct cairn_shard_job *job, uint64_t number);
/* So that one more can be added. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_members_make_room(struct cairn_shard_job *job);
void cairn_members_add(struct cairn_shard_job *job, struct cairn_member *member);
void cairn_members_take_out(struct cairn_shard_job *job, const struct cairn_member *member);

/* The way's number that HELLO and GRANT to the member carry: proto/wire/chunk.h. */
uint64_t cairn_member_way(const struct cairn_member *member);
/* Its connection, if it has one, is to be closed when the actions at hand are done. */
void cairn_member_cut(struct cairn_shard_job *job, uint64_t number);
/* Sends a header; job, member and token are filled in. Dropped if it is not connected. */
void cairn_member_send(struct cairn_member *member, struct cairn_chunk_header *header);
/* The same in the name of another shard, by its index: an owner, whose relay we are. */
void cairn_member_send_for(struct cairn_member *member, struct cairn_chunk_header *header,
                           uint32_t shard);
/* NAK that echoes a request. */
void cairn_member_refuse(struct cairn_member *member, const struct cairn_chunk_header *header,
                         cairn_status status);
void cairn_member_refuse_for(struct cairn_member *member, const struct cairn_chunk_header *header,
                             cairn_status status, uint32_t shard);
/* Counts a refusal, and says it in the log. */
void cairn_member_note_refusal(struct cairn_member *member, const struct cairn_chunk_header *header,
                               const char *why);
/* Its memory cannot be read: the coordinator is asked to put it out, and a round that it spoiled never
 * ends here. */
void cairn_member_unreadable(struct cairn_shard_job *job, uint64_t number);

#endif
