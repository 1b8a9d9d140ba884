/* How large a simulated cluster may be; what its processes say to each other, and the events that bring that
 * or end some work. */
#ifndef CAIRN_SIM_MESSAGES_H
#define CAIRN_SIM_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/core/mirror.h"
#include "server/core/round.h"
#include "server/core/step.h"

#define SHARDS_MAX  5
#define RANKS_MAX   4
#define PROCS_MAX   8 /* worker processes at a time: one a rank, and zombies */
#define CHUNKS_MAX  32
#define ELEMS_MAX   128                    /* of a chunk */
#define TENSORS_MAX ((CHUNKS_MAX + 1) / 2) /* of two chunks, which may be on two shards */
#define MICROS_MAX  3
#define WINDOW_MAX  4 /* slots of a member, .. */
#define SMALL_MAX   2 /* and beside for small chunks */
#define PLACED_MAX  3 /* and for those that are read in place */
#define SLOTS_MAX   (PROCS_MAX * (WINDOW_MAX + SMALL_MAX + PLACED_MAX))
#define GROUPS      2
#define FAULTS      22
#define LEDGER_MAX  1024
#define STATE_MAX   40 /* of a trainer, bytes */
#define PAYLOAD_MAX 800
#define NOBODY      UINT32_MAX
/* A shard's process is named by its place in the layout; the other processes of a place, which are or may
 * become its standbys, by OTHER + the place, and by 2 * OTHER + the place. */
#define OTHER        8
#define PLACE(id)    ((id) % OTHER)
#define WHICH(id)    ((id) / OTHER - 1)                      /* of the other processes */
#define ROOMS_MAX    ((1 + CAIRN_STANDBYS_MAX) * SHARDS_MAX) /* of cores: two for each process */
#define HOSTS_MAX    3
#define LAYOUTS_MAX  64
#define SIM_ROWS_MAX 64 /* writes that wait for the store, beside the epoch's */
#define SIM_MIRROR_MEMBER \
    ((1u << 24) * 16ull + 15)               /* as which a standby's machine knows its owner */
#define PLACES_MAX (PROCS_MAX + SHARDS_MAX) /* who pushes: processes, and the relay of each shard */
#define LACKS_MAX  (PROCS_MAX * (SHARDS_MAX + 1))
#define HOLDS_MAX  (PROCS_MAX * CHUNKS_MAX / 8)

static inline uint32_t tensor_of(uint32_t chunk)
{
    return chunk / 2;
}

enum message_kind {
    /* coordinator to shards, and their answers */
    M_FENCE,
    M_RESOLVE,
    M_OPEN,
    M_DECIDE,
    M_PIN,
    M_SHARD_HELLO,
    M_ANSWER,
    M_REDUCED,
    M_PUBLISHED,
    /* workers and coordinator */
    M_ATTACH,
    M_BEGIN,
    M_WRITE,
    M_COMMIT,
    M_ABANDON,
    M_PAUSE,
    M_OPENED,
    M_RESULT,
    M_FENCED,
    M_REFUSED,
    /* workers and shards */
    M_HELLO,
    M_CHUNK,
    M_MICRO_END,
    M_SHARD_COMMIT,
    M_GRANT,
    M_ACK,
    M_REFUSE,
    M_MICRO_ACK,
    /* the step's deadline */
    M_ASK_LACKS,
    M_LACKS,
    /* of a seat */
    M_PROBE,
    M_ALIVE,
    M_COME_AGAIN,
    M_END,
    /* of a change of layout; the last two to workers */
    M_JOIN,
    M_PREPARE,
    M_PREPARED,
    M_UNPREPARE,
    M_MOVED,
    M_SETTLED,
    M_PUBLISH,
    M_PUBLISHED_ANEW,
    M_LEAVE,
    M_ATTACHED, /* the layout in which the newest version is published, and that version */
    M_LAYOUT,   /* the one in force, and from which version on it serves */
    /* of a standby: `request` is the mirror's serial */
    M_MIRROR_MAKE, /* make a part */
    M_MIRROR_MADE,
    M_MIRROR_OF,   /* to the standby, of the owner's process `weight` */
    M_MIRROR_JOIN, /* to the owner */
    M_MIRROR_PAIRED,
    M_MIRROR_SUMS, /* the owner has the sums of that round */
    M_MIRROR_FILLED,
    M_MIRROR_DROP, /* the part is of no use */
    M_MIRROR_OWNS, /* the part is no mirror any more; request 0: no answer is wanted */
    M_MIRROR_FREE,
};

/* A message's record, if there is an attacker (sim_attack.c). */
struct sim_record {
    uint32_t wire; /* 0: the message travels as it is */
    int way;       /* 0: to the coordinator, 1: from it */
    uint64_t serial;
    size_t count;
    uint8_t bytes[64];
};

struct message {
    enum message_kind kind;
    cairn_status status;
    uint64_t epoch, round, member, request, weight, snapshot;
    uint64_t endpoint; /* HELLO and GRANT of a shard: the number of what it goes by */
    uint32_t micro, chunk, sent, absent, rank, world;
    struct push_window window;
    bool is_small;
    bool in_place;   /* CHUNK */
    bool unreadable; /* REFUSE: of one that was counted so */
    uint32_t layout; /* its place; in FENCE its number */
    enum step_phase phase;
    struct cairn_version version;
    double loss_scale;
    struct step_sums sums;
    struct round_untouched untouched[CHUNKS_MAX]; /* REDUCED */
    uint32_t untouched_count;
    struct decision decision; /* its payload points nowhere: it is below */
    uint8_t payload[PAYLOAD_MAX];
    uint64_t members[PROCS_MAX];
    uint32_t member_count;
    uint8_t state[STATE_MAX]; /* COMMIT */
    size_t state_bytes;
    double driven[GROUPS]; /* COMMIT */
    bool unknown;          /* RESULT: too old. SHARD_HELLO: the process has a part */
    bool refused;          /* ANSWER */
    bool write;            /* OPENED */
    /* between those that push and shards: whose chunks, and whether a relay is between */
    uint32_t owner;
    bool relayed;
    /* OPEN: this shard is a relay in the round; 0: it is not */
    uint64_t relay;
    uint64_t relay_members[PROCS_MAX];
    uint32_t relay_member_count;
    uint32_t relay_owners; /* a bit each */
    struct round_lack lacks[LACKS_MAX];
    uint32_t lack_count;
    struct sim_record sealed;
};

enum event_kind {
    E_NOTHING, /* it was forgotten */
    /* deliveries: a = to, b = from, conn = the connection it was sent on */
    E_COORDINATOR_FROM_SHARD,
    E_COORDINATOR_FROM_WORKER,
    E_SHARD_FROM_COORDINATOR,
    E_WORKER_FROM_COORDINATOR,
    E_SHARD_FROM_WORKER,
    E_WORKER_FROM_SHARD,
    /* work that ends: a = shard, b = slot or chunk */
    E_LANDED,
    E_FOLDED,
    E_SUMMED,
    E_UPDATED,
    E_RELAY_LANDED, /* b = OWNED(owner, slot) */
    E_RELAY_FOLDED, /* b = OWNED(owner, chunk) */
    E_RELAY_TICK,   /* folds wait */
    E_PERSISTED,
    E_TICK,
    E_COMPUTED,          /* a = process; conn = its life */
    E_LEASE,             /* conn = member */
    E_SHARD_DOWN,        /* the coordinator notices: a = shard, conn */
    E_PEER_DOWN,         /* a shard notices: a = shard, b = process, conn */
    E_ENDPOINT_DOWN,     /* it notices that its own way there is lost; conn = the endpoint */
    E_CONTROL_RECONNECT, /* a shard, or b a process */
    E_FABRIC_RECONNECT,  /* a = shard, b = process, conn = its life */
    E_COORDINATOR_START,
    E_PROCESS_START,
    E_FAULT,
    E_HEAL,
    /* a second process of a shard's name: a = shard, or b in what it says */
    E_TWIN_CONNECTS,
    E_TWIN_FROM_COORDINATOR,
    E_COORDINATOR_FROM_TWIN,
    E_PROBE_ENDS, /* conn = its number */
    E_ADOPT,      /* conn = the incarnation */
    E_AMEND,      /* the same; a: workers_min is lowered */
    E_ASK_AGAIN,  /* a = process; conn = its life */
    E_TAKEN,      /* a = shard, b = chunk; conn = of the connection that it is taken over */
    E_TAKE_AGAIN, /* a = shard: it is connected again to who gives; conn = the new one */
    E_ATTACK,
    /* of standbys: a = process */
    E_MIRROR_FEED,  /* conn = the serial of what it asks for */
    E_MIRROR_PIECE, /* b = chunk << 2 | plane; conn = the serial */
    E_MIRROR_SUMS,  /* b = the chunk, by its number on the shard; conn = the round */
    E_HOST_START,
    E_ROW_SAVED, /* conn = the incarnation */
    /* of logs: a = shard */
    E_LOGGED,   /* an operation on its files has ended; conn = its number */
    E_LOG_BASE, /* a snapshot was committed */
    /* of coordinators and their store: a = candidate */
    E_LEAD,         /* a rest has ended; conn = its serial */
    E_ETCD,         /* a request arrives; conn = its number */
    E_ETCD_ANSWERS, /* the same */
    E_ETCD_SILENT,  /* it is not waited for any longer */
    E_WRITE_AGAIN,  /* conn = the serial */
    E_NOTE,         /* an operator wants a change */
    E_LEAD_MISSED,  /* a = shard, or NOBODY, and b = process; conn */
};

#define OWNED(owner, what) ((owner) << 8 | (what))

struct event {
    uint64_t time, order; /* order: of scheduling; breaks ties */
    enum event_kind kind;
    uint32_t a, b;
    uint64_t conn;
    struct message *message; /* NULL, or owned by the pool */
};

/* A connection: what was sent on another `id` than the present one is lost. */
struct link {
    uint64_t id;
    bool up;
    uint64_t to;           /* of a control connection: the coordinator's process */
    uint64_t drains_until; /* what the coordinator sent before the loss arrives until then */
    uint64_t arrives[2];   /* of the last message each way: control is in order */
    /* sim_attack.c */
    uint32_t wire; /* of the connection `wire_id`; 0: none */
    uint64_t wire_id;
};

#endif
