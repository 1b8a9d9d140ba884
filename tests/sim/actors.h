/* The processes of a simulated cluster: the coordinator and its store, shards, each with its relay, and
 * workers; and the layouts that they go by. */
#ifndef CAIRN_SIM_ACTORS_H
#define CAIRN_SIM_ACTORS_H

#include "proto/link/push.h"
#include "proto/spec/spec.h"
#include "server/core/buffer_pool.h"
#include "server/core/mirror.h"
#include "server/core/move.h"
#include "server/core/standing.h"
#include "tests/sim/messages.h"

/* ---- layouts ---- */
struct sim_layout {  /* who owns which chunk */
    uint32_t id;     /* its place in sim->layouts */
    uint64_t number; /* as the daemons know it: of one that was taken back it is used again */
    uint32_t shards; /* that it has, a bit each */
    uint32_t shard_count;
    uint32_t owner[CHUNKS_MAX], local[CHUNKS_MAX]; /* local: its number on that shard */
    uint32_t count[SHARDS_MAX], chunk[SHARDS_MAX][CHUNKS_MAX];
    const struct sim_layout *before;
    bool back, empty; /* as in the event of the round core */
    /* durable with it: what the shards had when it came into force; what is newer than `after` it serves, and
     * `published` the others */
    struct cairn_version at, after;
    const struct sim_layout *published;
};

/* What an operator wants, who asks again. */
struct sim_plan {
    bool active, canceled;
    uint32_t joins, leaves; /* a shard; NOBODY: none */
    uint32_t target[CHUNKS_MAX];
};

/* ---- the coordinator ---- */
enum sitter { NO_SITTER = 0, THE_SHARD, THE_TWIN };
struct seat {
    enum sitter sitter;
    uint64_t conn; /* of the sitter */
    enum seat_probe probe;
    uint64_t probe_number;
};

/* The store's row of a mirror: which process is in step, in which layout. life 0: none. */
struct sim_row {
    uint64_t life;
    const struct sim_layout *layout;
};
enum sim_row_kind { SIM_ROW_IN_STEP, SIM_ROW_DROPPED, SIM_ROW_PLACE };
struct sim_row_write {
    enum sim_row_kind kind;
    uint32_t id, name; /* of the standby's process */
    struct sim_row row;
    uint64_t serial; /* of the mirror that hears of its end; 0: none does */
};

/* A mirror of a place, as server/coordinator/mirror.c has it. */
struct sim_mirror {
    struct mirror_state state;
    uint64_t serial;                 /* tells late answers apart */
    uint64_t life;                   /* of the standby's process */
    const struct sim_layout *layout; /* of its part */
    bool is_there;                   /* it is connected, and the mirror's */
    uint32_t paired;       /* bits: the standby knows of the owner, and the owner of the standby */
    uint64_t again;        /* when a mirror may be made */
    struct message answer; /* the standby's last one */
};

/* What all mirrors of a place know of its owner. */
struct sim_owner {
    bool is_empty;
    uint64_t gone; /* since when it is away */
    bool holds[CAIRN_MIRROR_REPORTS];
    struct message held[CAIRN_MIRROR_REPORTS];
    uint64_t since[CAIRN_MIRROR_REPORTS];
};

/* What a process knows as a standby. */
struct sim_standby {
    bool on, complete;
    /* The round that it has carried out, or does, and no shard with a place has begun to: that of a decision
     * which may be forgotten with its coordinator. 0: none */
    uint64_t ahead;
    bool is_stray;    /* it has carried out what nobody waited for: it is not compared any more */
    uint64_t request; /* the mirror's serial */
    uint64_t serial;  /* of what is asked for: another one is of no use any more */
    uint64_t owner_life;   /* the process that it mirrors */
    uint64_t epoch, round; /* whose sums it fetches; round 0: none */
    uint64_t until;
    uint32_t sums_here, asked;
    uint8_t here[CHUNKS_MAX], wanted[CHUNKS_MAX]; /* planes, a bit each */
};

/* A second process under a shard's name: it holds nothing. */
struct twin {
    bool alive;
    struct link control;
};

struct store { /* what is durable */
    uint64_t identity, incarnation, epoch, reserved;
    struct sim_layout *layout;
    struct sim_row mirrors[CAIRN_STANDBYS_MAX][SHARDS_MAX];
    uint32_t name[SHARDS_MAX]; /* of the process that has the place */
    uint64_t notes;            /* what operators have had written, a bit each */
};

struct coordinator {
    bool alive;
    uint32_t candidate; /* that it is (sim_lead.c) */
    struct round_machine *core;
    uint64_t incarnation; /* one more with every process, whatever its store says */
    struct store store, backup;
    bool is_adopting; /* the operator knows that it should */
    bool persisting;
    uint64_t persist_epoch, persist_reserved;
    struct sim_layout *persist_layout;
    struct move *move;
    struct sim_layout *layout; /* in force */
    struct sim_layout *next;   /* of the slice; NULL: none */
    bool publishing;           /* the newest version, in the layout in force */
    uint32_t published_anew;   /* shards that did, a bit each */
    bool pin_waits;            /* for the slice to be settled */
    uint64_t decided_round;    /* by this incarnation, the last */
    uint64_t pins, probes;
    bool started;        /* a round of steps has opened since workers came */
    uint64_t came_ms;    /* the first of them, by the core's clock */
    uint64_t tick_ms;    /* by the core's clock, .. */
    uint64_t stopped_ms; /* .. which stood while the process was stopped */
    uint64_t last_tick;
    uint32_t awaited; /* so many workers, since one was lost; 0: none */
    uint64_t awaited_until_ms;
    bool loss_halts;
    bool is_acting; /* on what the core said last */
    struct sim_mirror mirrors[CAIRN_STANDBYS_MAX][SHARDS_MAX];
    struct sim_owner owners[SHARDS_MAX];
    struct sim_row_write rows[SIM_ROWS_MAX];
    uint32_t row_count;
    struct seat seats[SHARDS_MAX];
    struct {
        uint64_t number; /* 0: it never was one */
        uint64_t members[PROCS_MAX];
        const struct sim_layout *layout;
        uint32_t member_count; /* in the round at hand; 0: not in this one */
    } relays[SHARDS_MAX];
};

/* ---- a shard ---- */
struct peer { /* of a shard: what it knows of a worker process, or a relay */
    uint64_t member, conn;
    bool up;
    uint64_t endpoint; /* of the shard to the worker: the number */
    bool dead;         /* that endpoint is; nobody noticed yet */
};

/* Bits: by a connection that shares no memory, by one that does; and what that could not read in place. */
enum { SIM_WAY_SENT = 1, SIM_WAY_SHARED = 2, SIM_WAY_UNREADABLE = 4 };

struct landing { /* a contribution that is being read */
    uint64_t member, conn, endpoint, round;
    uint32_t micro, chunk; /* of the model */
    bool in_place;
};

struct sim_copy { /* of a version, published */
    struct cairn_version version;
    const struct sim_layout *layout;
    uint32_t chunks; /* a bit each */
    float param[CHUNKS_MAX][ELEMS_MAX];
};

struct sim_shard {
    uint32_t id;   /* its name as events have it */
    uint32_t room; /* of the memory that its cores are in */
    /* of the processes of a place (sim_standby.c): which one it is, and a number that each start has anew */
    uint32_t name;
    uint64_t life;
    bool is_empty;      /* its host died, or it was told to drop its part */
    uint64_t died;      /* when its host did; 0: it lives */
    uint64_t cut_until; /* it does not reach the coordinator */
    struct sim_standby standby;
    bool alive;                                 /* the process */
    struct step_machine *core;                  /* NULL: it has no part yet */
    uint32_t core_place;                        /* of the memory that it is in */
    const struct sim_layout *layout, *prepared; /* as it works by; NULL: none */
    const struct sim_layout *next; /* a fence brought it, and something is in flight; NULL: none */
    struct message held;           /* its answer, until then */
    uint64_t prepared_by;          /* the coordinator, by its process */
    uint64_t take_conn;
    bool taking;         /* it has asked for what lacks */
    uint32_t has, lacks; /* state of chunks, a bit each */
    /* the layout before the one in force, which is not settled; NULL: it is */
    const struct sim_layout *before;
    bool awaits_settled; /* it is not REDUCED before that: server/shard/kept.h */
    struct cairn_version state_at[CHUNKS_MAX];
    bool publish_asked, joining;
    struct step_kept noted; /* as the ledger has it: what was told last */
    uint8_t noted_payload[PAYLOAD_MAX];
    const struct step_machine *noted_of; /* the core of which that is; another one is noted anew */
    bool unfenced; /* it was kept, and no coordinator has fenced this process yet */
    struct sim_copy copies[2];
    uint32_t newest_copy;
    struct link control;          /* to the coordinator */
    bool known_up;                /* by the coordinator */
    struct coordinator_id obeyed; /* the newest */
    struct marks marks;           /* the highest it has seen */
    struct peer peers[PLACES_MAX];
    uint64_t endpoints; /* made so far */
    float slots[SLOTS_MAX][ELEMS_MAX];
    struct landing landing[SLOTS_MAX];
    struct step_action folds[CHUNKS_MAX]; /* under way, by chunk */
    float acc[CHUNKS_MAX][ELEMS_MAX];
    struct sums chunk_sums[CHUNKS_MAX]; /* of folds that were likely the last .. */
    bool untouched[CHUNKS_MAX];         /* nobody contributed */
    bool summed[CHUNKS_MAX];            /* .. and were it so far */
    /* by chunk of the model; what is folded, by its own number */
    float param[CHUNKS_MAX][ELEMS_MAX], m[CHUNKS_MAX][ELEMS_MAX], v[CHUNKS_MAX][ELEMS_MAX];
    uint32_t executed; /* ledger entries */
    struct decision updating;
    uint8_t updating_payload[PAYLOAD_MAX];
    bool drain_counted;
};

/* ---- a shard as the relay of its host; as server/shard/relay.h ---- */
struct relay_sum { /* what is in a buffer */
    uint32_t micro;
    uint8_t sent; /* enum sent */
    bool folding;
    float elems[ELEMS_MAX];
};

struct relay_owner { /* of a relay: a shard that it passes on to */
    struct step_machine *core;
    struct link link;
    struct landing landing[SLOTS_MAX];
    struct step_action folds[CHUNKS_MAX];
    struct buffer_claim claims[CHUNKS_MAX]; /* of the folds under way */
    struct buffer_owner buffers;
    uint32_t sums[CHUNKS_MAX];
    uint32_t forwards, micros; /* passed on in this micro-batch; micro-batches ended */
    struct push_round *push;   /* NULL: no round */
    struct {
        uint64_t round, endpoint;
        struct push_window window;
    } grant;
    float slots[SLOTS_MAX][ELEMS_MAX];
};

struct sim_relay {
    struct sim *sim;       /* borrowed */
    uint64_t number;       /* as a member of the owners; 0: never was one */
    uint64_t round, epoch; /* that it relays; round 0: none */
    uint32_t owner_bits;
    struct relay_owner owners[SHARDS_MAX];
    struct buffer_pool pool;
    struct buffer buffers[CHUNKS_MAX];
    struct relay_sum sums[CHUNKS_MAX]; /* by buffer */
    uint64_t room_at;                  /* the host has none until then */
    bool ticking;
    uint32_t core_place;             /* of the memory that its cores are in */
    const struct sim_layout *layout; /* of its cores */
};

/* ---- a worker ---- */
enum sent { NOT_SENT = 0, SENT, SENT_BEFORE /* on a connection that is lost */ };
#define LAYOUTS_KEPT 4
struct kept_layout {
    const struct sim_layout *layout;
    struct cairn_version since;
};
enum trainer { T_IDLE, T_COMPUTING, T_PUSHING, T_WAITING, T_GIVING_UP };

struct process {
    bool alive, stalled;
    uint64_t pause_ends, paused_ms; /* as it says; as the coordinator knows. 0: it does not pause */
    bool mute;                      /* what it sends to shards is lost, and nobody notices */
    uint64_t life;                  /* member number: process index + 16 * count */
    uint32_t rank;
    bool zombie; /* another process has its rank */
    struct link control;
    struct link fabric[SHARDS_MAX];
    struct {
        uint64_t round, endpoint;
        struct push_window window;
        uint32_t via; /* the shard that granted: the owner, or a relay */
        bool relayed;
    } grant[SHARDS_MAX]; /* by owner */
    enum trainer state;
    uint64_t epoch, round;
    struct spec_batch batch; /* of the round; without a total where each worker has its own */
    bool surplus;            /* the batch has nothing for it */
    bool wishes;             /* to write, in the next round */
    bool writes;             /* the round is a write */
    bool computed;
    const struct sim_layout *layout, *round_layout,
        *push_layout; /* that it knows; of the round; of what it
                                                                   * pushes */
    /* As client/layouts.h: the newest first, each with the version from which on it serves. */
    struct kept_layout kept[LAYOUTS_KEPT];
    uint32_t kept_count;
    struct push_round *push;
    bool pushing; /* the machine was made and is not known to be idle */
    uint64_t push_epoch, push_round;
    uint32_t push_via[SHARDS_MAX]; /* by owner; NOBODY: not granted yet */
    bool push_relayed[SHARDS_MAX];
    uint8_t push_ways[SHARDS_MAX];   /* in the round, by owner: SIM_WAY_* */
    uint32_t next_micro, next_chunk; /* to push */
    bool committed;                  /* to the machine */
    uint32_t calls_left;             /* of the library, until it gives the round up */
    bool on_loan[MICROS_MAX][CHUNKS_MAX];
    uint8_t sent[MICROS_MAX][CHUNKS_MAX]; /* enum sent */
    float buffer[MICROS_MAX][CHUNKS_MAX][ELEMS_MAX];
};

#endif
