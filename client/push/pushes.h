/* Pushes of the open round. Loop thread. */
#ifndef CAIRN_CLIENT_PUSH_PUSHES_H
#define CAIRN_CLIENT_PUSH_PUSHES_H

#include "proto/link/pusher.h"
#include "proto/wire/messages.h"

struct body;
struct command;
struct job;
struct shard_link;

struct pushing {
    struct cairn_pusher pusher;
    struct body
        *body; /* held: of the last round, that the pusher is made for; NULL: there was none */
    uint8_t **pushed;     /* owned: [micro_count][tensor_count] 1: pushed in that micro-batch */
    uint32_t micro_count; /* begun in this round */
    uint64_t gives_up;    /* a round of which a shard refused something; 0: none, or it was told */
};

/* Commands of the round. */
bool cairn_pushes_run(struct command *command);
bool cairn_pushes_micro_end_run(struct command *command);
bool cairn_pushes_commit_run(struct command *command);

/* The coordinator's word about a round. CAIRN_ERR_NO_MEMORY: nothing of it was taken, and it is to be said
 * again. */
cairn_status cairn_pushes_on_opened(struct job *job,
                                    const Cairn__RoundOpened *opened) CAIRN_MUST_CHECK;
void cairn_pushes_on_result(struct job *job, const Cairn__RoundResult *result);
/* Every parcel of the machine ends; it is dropped. */
void cairn_pushes_drop(struct job *job, cairn_status status);
void cairn_pushes_release(struct job *job); /* with the job, behind that */

/* The connection that the owner's last GRANT came by. */
struct shard_link *cairn_pushes_granter(struct shard_link *owner);
void cairn_pushes_on_grant(struct shard_link *owner);
/* The shard said HELLO on this connection: its answers to what was pushed over it may be lost. */
void cairn_pushes_on_hello(struct shard_link *link, uint64_t way);
/* Something is owed to the open round's machine that comes, or may come, by this connection. */
bool cairn_pushes_waits(const struct shard_link *link);
/* The connection is lost, and with it the grants that came by it. */
void cairn_pushes_lost(struct shard_link *link);

#endif
