/* A shard, as the owner of its chunks, and the connection to it. The two part where a relay speaks for the
 * owner (proto/wire/chunk.h): then what is pushed to the owner, and some of what is fetched, goes over
 * the connection of another link, its carrier. Loop thread, but for what says otherwise. */
#ifndef CAIRN_CLIENT_SHARD_LINK_H
#define CAIRN_CLIENT_SHARD_LINK_H

#include "proto/base/sentence.h"
#include "proto/geometry/layout.h"
#include "proto/link/asker.h"
#include "proto/link/chunk_link.h"

#define CAIRN_CLIENT_SHARDS_MAX 4096

struct job;

struct shard_link {
    struct job *job;
    uint32_t index;
    /* the owner */
    char name[64];
    uint8_t *address; /* owned */
    size_t address_bytes;
    struct cairn_shard_map map;
    /* lock; owned: [map.extent_count], where each extent lies in a published copy; NULL: not known yet */
    uint64_t *published_at;
    uint64_t published_bytes;        /* lock; of a copy, once published_at is there */
    struct cairn_chunk_header grant; /* the last one; kind 0: none on its connection */
    struct shard_link *carrier;      /* takes what is pushed in the open round; NULL: not granted */
    bool relayed;               /* MICRO_END and COMMIT to the carrier have this owner's index */
    bool declined;              /* the relay that granted has no chunks of this owner to fetch */
    uint64_t grant_deadline_ms; /* until then, fetches wait for the GRANT that names the relay */
    struct cairn_asker asker;   /* for puts and fetches */
    /* the connection */
    struct cairn_chunk_link conn;
    uint32_t asked;            /* puts and fetches that went over it and are unanswered */
    bool relays;               /* it has granted for others */
    bool reached;              /* something came from it, ever */
    uint64_t unheard_since_ms; /* there, awaited and not heard since; 0: not looked at yet */
    bool silent;               /* for so long that body.silence says so */
    uint64_t judged_ms;        /* when that was last looked at */
};

/* What a layout brings, and another one would replace: any thread reads layout, shards and their maps under
 * the lock. Changed by the loop thread, under the lock. */
struct job_body {
    struct cairn_layout *layout;
    struct shard_link *shards; /* [shard_count] */
    uint32_t shard_count;
    struct cairn_sentence silence; /* over which way nothing comes any more; else empty */
};

#endif
