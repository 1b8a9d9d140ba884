/* A shard, as the owner of chunks, and the connection to it; which chunks, the job's bodies say
 * (client/body.h). The two part where a relay speaks for the owner (proto/wire/chunk.h): then what is pushed
 * to the owner, and some of what is fetched, goes over the connection of another link, its carrier. Loop
 * thread, but for what says otherwise. */
#ifndef CAIRN_CLIENT_SHARD_LINK_H
#define CAIRN_CLIENT_SHARD_LINK_H

#include <sys/queue.h>

#include "proto/base/sentence.h"
#include "proto/link/asker.h"
#include "proto/link/chunk_link.h"

#define CAIRN_CLIENT_SHARDS_MAX 4096

struct job;
struct parcel;

struct shard_link {
    struct job *job;
    uint32_t index;
    /* the owner */
    char name[64];
    uint8_t *address; /* owned */
    size_t address_bytes;
    struct cairn_chunk_header grant; /* the last one; kind 0: none on its connection */
    struct shard_link *carrier;      /* takes what is pushed in the open round; NULL: not granted */
    bool relayed;               /* MICRO_END and COMMIT to the carrier have this owner's index */
    bool declined;              /* the relay that granted has no chunks of this owner to fetch */
    uint64_t grant_deadline_ms; /* until then, fetches wait for the GRANT that names the relay */
    struct cairn_asker asker;   /* for puts and fetches */
    struct {
        TAILQ_HEAD(, parcel) queue; /* of a card's memory: cut, and not copied yet */
        uint32_t ahead;             /* copied or being copied, and not sent yet */
    } staging;                      /* push/stage.c */
    /* the connection */
    struct cairn_chunk_link conn;
    uint32_t asked;            /* puts and fetches that went over it and are unanswered */
    bool takes_unsummed;       /* CAIRN_CHUNK_UNSUMMED of its last HELLO */
    bool relays;               /* it has granted for others */
    bool reached;              /* something came from it, ever */
    uint64_t unheard_since_ms; /* there, awaited and not heard since; 0: not looked at yet */
    bool starves;       /* this process has no memory to send to it: shards.silence says so */
    bool silent;        /* for so long that shards.silence says so */
    uint64_t judged_ms; /* when that was last looked at */
};

/* The links of a job to its shards. A shard has the same number in all of the job's layouts. */
struct job_shards {
    /* loop thread */
    struct shard_link **links; /* owned, each: [count] */
    uint32_t count;
    /* lock: over which way nothing comes any more, or nothing goes for want of memory; else empty */
    struct cairn_sentence silence;
};

#endif
