/* Leases: versions of the published copies that are kept beside the newest and the one before.
 *
 * The coordinator keeps the leases and ends them. A shard that hears no more of one ends it by its own
 * clock, a quarter of its time later; one of a coordinator before this one, whose holder may be about to
 * renew it, when what this one asks for has no room. Loop thread only. */
#ifndef CAIRN_SHARD_READ_LEASES_H
#define CAIRN_SHARD_READ_LEASES_H

#include "proto/wire/messages.h"
#include "server/core/decision.h"

enum {
    CAIRN_SHARD_LEASES_MAX = 4 *
                             CAIRN_LEASED_VERSIONS_MAX, /* also of coordinators before this one */
    CAIRN_SHARD_LEASE_MS_MAX = 86400000
};

struct cairn_shard_job;

/* A version that the coordinator wants kept. */
struct cairn_shard_lease {
    uint64_t number; /* 0: none */
    struct cairn_version version;
    uint64_t ends_ms;     /* of uv_now */
    uint64_t coordinator; /* the incarnation that said so last */
};

bool cairn_shard_is_leased(const struct cairn_shard_job *job, struct cairn_version version);
/* Keeps a version, or goes on keeping it. CAIRN_ERR_VERSION_GONE, CAIRN_ERR_NOT_READY, CAIRN_ERR_BUSY (as
 * many as can be are kept), CAIRN_ERR_NO_MEMORY (with the numbers): as before. */
CAIRN_MUST_CHECK cairn_status cairn_shard_lease_keep(struct cairn_shard_job *job,
                                                     const Cairn__LeaseKeep *message,
                                                     struct cairn_sentence *why);
void cairn_shard_lease_end(struct cairn_shard_job *job, uint64_t number);

#endif
