/* cairn-sim: a whole cluster in one process, on one seed. The real cores (server/core), the real push
 * machine (proto/link/push) and the real arithmetic (gpu/host, proto/wire) run; clock, network, disk and
 * processes are simulated, with faults. An oracle that knows only the contributions recomputes every round.
 *
 *   sim_main.c         seeds, the summary, what was seen how often
 *   seen.h             what is counted
 *   sim_world.c        a scenario from a seed; the loop; failures and the trace
 *   sim_net.c          the heap of events, connections, delay, reordering, duplication, loss
 *   sim_coordinator.c  the coordinator's daemon, as thin as can be
 *   sim_shard.c        the shard's daemon
 *   sim_peers.c        what it knows of those that push to it
 *   sim_layouts.c      who owns which chunk
 *   sim_reshard.c      the coordinator while the layout changes: plans, slices, who has left
 *   sim_take.c         a shard while the layout changes: what it prepares, takes, gives, publishes
 *   sim_relay.c        a shard as the relay of its host: cores that forward, buffers, folds
 *   sim_relay_send.c   what it passes on to the owners
 *   sim_worker.c       the worker's process: the library and a trainer
 *   sim_oracle.c       what is true whatever happens
 *   sim_twin.c         a second process under a shard's name, and who has the seat
 *   sim_store.c        the coordinator's store, mixed up and adopted
 *   sim_faults.c       what happens
 *   sim_names.c        names for --verbose
 *
 * Everything is a function of the seed: no address, no time of day, no uninitialised byte may reach a
 * decision (each seed is run twice and must give the same trace). Times are in microseconds. */
#ifndef CAIRN_SIM_H
#define CAIRN_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/gpu.h"
#include "proto/link/push.h"
#include "proto/spec/batch.h"
#include "server/core/buffer_pool.h"
#include "server/core/move.h"
#include "server/core/round.h"
#include "server/core/seat.h"
#include "server/core/standing.h"
#include "server/core/step.h"
#include "tests/sim/seen.h"

#define SHARDS_MAX  5
#define RANKS_MAX   4
#define PROCS_MAX   8 /* worker processes at a time: one a rank, and zombies */
#define CHUNKS_MAX  32
#define ELEMS_MAX   128 /* of a chunk */
#define MICROS_MAX  3
#define WINDOW_MAX  4
#define GROUPS      2
#define FAULTS      15
#define LEDGER_MAX  1024
#define STATE_MAX   40 /* of a trainer, bytes */
#define PAYLOAD_MAX 256
#define NOBODY      UINT32_MAX
#define HOSTS_MAX   3
#define LAYOUTS_MAX 64
#define PLACES_MAX  (PROCS_MAX + SHARDS_MAX) /* who pushes: processes, and the relay of each shard */
#define LACKS_MAX   (PROCS_MAX * (SHARDS_MAX + 1))
#define HOLDS_MAX   (PROCS_MAX * CHUNKS_MAX / 8)

#define MS(x)   ((uint64_t)(x)*1000)
#define LEASE   MS(60)
#define NOTICE  2000      /* after which a lost control connection is noticed */
#define HEALTHY 3         /* steps that must commit after the faults */
#define LIMIT   MS(10000) /* within so long (P12) */

/* ---- random numbers: one stream each for the schedule, the faults and the workload ---- */
struct rng {
    uint64_t state;
};
uint64_t rng_next(struct rng *rng);
uint64_t rng_below(struct rng *rng, uint64_t bound); /* [0, bound) */
double rng_unit(struct rng *rng);                    /* [0, 1) */
bool rng_chance(struct rng *rng, double probability);
uint64_t rng_exponential(struct rng *rng, double mean);
uint64_t mix(uint64_t a, uint64_t b); /* a hash of both */

/* ---- messages and events ---- */
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
    /* of a change of layout; M_LAYOUT to workers */
    M_JOIN,
    M_PREPARE,
    M_PREPARED,
    M_UNPREPARE,
    M_MOVED,
    M_SETTLED,
    M_PUBLISH,
    M_PUBLISHED_ANEW,
    M_LEAVE,
    M_LAYOUT,
};

struct message {
    enum message_kind kind;
    cairn_status status;
    uint64_t epoch, round, member, request, weight, snapshot;
    uint64_t endpoint; /* HELLO and GRANT of a shard: the number of what it goes by */
    uint32_t micro, chunk, sent, absent, window, rank, world;
    uint32_t layout; /* its place; in FENCE its number */
    enum cairn_step_phase phase;
    struct cairn_version version;
    double loss_scale;
    struct cairn_step_sums sums;
    struct cairn_decision decision; /* its payload points nowhere: it is below */
    uint8_t payload[PAYLOAD_MAX];
    uint64_t members[PROCS_MAX];
    uint32_t member_count;
    uint8_t state[STATE_MAX]; /* COMMIT */
    size_t state_bytes;
    double driven[GROUPS]; /* COMMIT */
    bool unknown;          /* RESULT: too old */
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
    struct cairn_round_lack lacks[LACKS_MAX];
    uint32_t lack_count;
};

enum event_kind {
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
    uint64_t drains_until; /* what the coordinator sent before the loss arrives until then */
    uint64_t arrives[2];   /* of the last message each way: control is in order */
};

struct sim_layout;

/* ---- actors ---- */
enum sitter { NO_SITTER = 0, THE_SHARD, THE_TWIN };
struct seat {
    enum sitter sitter;
    uint64_t conn; /* of the sitter */
    enum cairn_seat_probe probe;
    uint64_t probe_number;
};

/* A second process under a shard's name: it holds nothing. */
struct twin {
    bool alive;
    struct link control;
};

struct store { /* what is durable */
    uint64_t identity, incarnation, epoch, reserved;
    struct sim_layout *layout;
};

struct coordinator {
    bool alive;
    struct cairn_round *core;
    uint64_t incarnation; /* one more with every process, whatever its store says */
    struct store store, backup;
    bool is_adopting; /* the operator knows that it should */
    bool persisting;
    uint64_t persist_epoch, persist_reserved;
    struct sim_layout *persist_layout;
    struct cairn_move *move;
    struct sim_layout *layout; /* in force */
    struct sim_layout *next;   /* of the slice; NULL: none */
    bool publishing;           /* the newest version, in the layout in force */
    uint32_t published_anew;   /* shards that did, a bit each */
    bool pin_waits;            /* for the slice to be settled */
    uint64_t decided_round;    /* by this incarnation, the last */
    uint64_t pins, probes;
    bool started;     /* a round of steps has opened since workers came */
    uint64_t came_ms; /* the first of them, by the core's clock */
    uint64_t tick_ms;
    uint32_t awaited; /* so many workers, since one was lost; 0: none */
    uint64_t awaited_until_ms;
    bool loss_halts;
    struct seat seats[SHARDS_MAX];
    struct {
        uint64_t number; /* 0: it never was one */
        uint64_t members[PROCS_MAX];
        const struct sim_layout *layout;
        uint32_t member_count; /* in the round at hand; 0: not in this one */
    } relays[SHARDS_MAX];
};

struct peer { /* of a shard: what it knows of a worker process, or a relay */
    uint64_t member, conn;
    bool up;
    uint64_t endpoint; /* of the shard to the worker: the number */
    bool dead;         /* that endpoint is; nobody noticed yet */
};

struct landing { /* a contribution that is being read */
    uint64_t member, conn, endpoint, round;
    uint32_t micro, chunk; /* of the model */
};

struct sim_copy { /* of a version, published */
    struct cairn_version version;
    const struct sim_layout *layout;
    uint32_t chunks; /* a bit each */
    float param[CHUNKS_MAX][ELEMS_MAX];
};

struct sim_shard {
    bool alive;                                 /* the process */
    struct cairn_step *core;                    /* NULL: it has no part yet */
    uint32_t core_place;                        /* of the memory that it is in */
    const struct sim_layout *layout, *prepared; /* as it works by; NULL: none */
    const struct sim_layout *next; /* a fence brought it, and something is in flight; NULL: none */
    struct message held;           /* its answer, until then */
    uint64_t prepared_by;          /* the coordinator, by its process */
    uint64_t take_conn;
    bool taking;         /* it has asked for what lacks */
    uint32_t has, lacks; /* state of chunks, a bit each */
    struct cairn_version state_at[CHUNKS_MAX];
    bool publish_asked, joining;
    struct sim_copy copies[2];
    uint32_t newest_copy;
    struct link control;                /* to the coordinator */
    bool known_up;                      /* by the coordinator */
    struct cairn_coordinator_id obeyed; /* the newest */
    struct cairn_marks marks;           /* the highest it has seen */
    struct peer peers[PLACES_MAX];
    uint64_t endpoints; /* made so far */
    float slots[PROCS_MAX * WINDOW_MAX][ELEMS_MAX];
    struct landing landing[PROCS_MAX * WINDOW_MAX];
    struct cairn_step_action folds[CHUNKS_MAX]; /* under way, by chunk */
    float acc[CHUNKS_MAX][ELEMS_MAX];
    struct cairn_sums chunk_sums[CHUNKS_MAX]; /* of folds that were likely the last .. */
    bool summed[CHUNKS_MAX];                  /* .. and were it so far */
    /* by chunk of the model; what is folded, by its own number */
    float param[CHUNKS_MAX][ELEMS_MAX], m[CHUNKS_MAX][ELEMS_MAX], v[CHUNKS_MAX][ELEMS_MAX];
    uint32_t executed; /* ledger entries */
    struct cairn_decision updating;
    uint8_t updating_payload[PAYLOAD_MAX];
    bool drain_counted;
};

/* ---- a shard as the relay of its host; as server/shard/relay/relay.h ---- */
struct relay_sum { /* what is in a buffer */
    uint32_t micro;
    uint8_t sent; /* enum sent */
    bool folding;
    float elems[ELEMS_MAX];
};

struct relay_owner { /* of a relay: a shard that it passes on to */
    struct cairn_step *core;
    struct link link;
    struct landing landing[PROCS_MAX * WINDOW_MAX];
    struct cairn_step_action folds[CHUNKS_MAX];
    struct cairn_buffer_claim claims[CHUNKS_MAX]; /* of the folds under way */
    struct cairn_buffer_owner buffers;
    uint32_t sums[CHUNKS_MAX];
    uint32_t forwards, micros; /* passed on in this micro-batch; micro-batches ended */
    struct cairn_push *push;   /* NULL: no round */
    struct {
        uint64_t round, endpoint;
        uint32_t window;
    } grant;
    float slots[PROCS_MAX * WINDOW_MAX][ELEMS_MAX];
};

struct sim_relay {
    struct sim *sim;       /* borrowed */
    uint64_t number;       /* as a member of the owners; 0: never was one */
    uint64_t round, epoch; /* that it relays; round 0: none */
    uint32_t owner_bits;
    struct relay_owner owners[SHARDS_MAX];
    struct cairn_buffer_pool pool;
    struct cairn_buffer buffers[CHUNKS_MAX];
    struct relay_sum sums[CHUNKS_MAX]; /* by buffer */
    uint64_t room_at;                  /* the host has none until then */
    bool ticking;
    uint32_t core_place;             /* of the memory that its cores are in */
    const struct sim_layout *layout; /* of its cores */
};

enum sent { NOT_SENT = 0, SENT, SENT_BEFORE /* on a connection that is lost */ };
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
        uint32_t window, via; /* the shard that granted: the owner, or a relay */
        bool relayed;
    } grant[SHARDS_MAX]; /* by owner */
    enum trainer state;
    uint64_t epoch, round;
    struct cairn_batch batch; /* of the round; without a total where each worker has its own */
    bool surplus;             /* the batch has nothing for it */
    bool wishes;              /* to write, in the next round */
    bool writes;              /* the round is a write */
    bool computed;
    const struct sim_layout *layout, *round_layout,
        *push_layout;                  /* that it knows; of the round; of what it
                                                                   * pushes */
    struct cairn_version layout_after; /* what is newer than this, the layout serves */
    struct cairn_push *push;
    bool pushing; /* the machine was made and is not known to be idle */
    uint64_t push_epoch, push_round;
    uint32_t push_via[SHARDS_MAX]; /* by owner; NOBODY: not granted yet */
    bool push_relayed[SHARDS_MAX];
    uint32_t next_micro, next_chunk; /* to push */
    bool committed;                  /* to the machine */
    uint32_t calls_left;             /* of the library, until it gives the round up */
    bool on_loan[MICROS_MAX][CHUNKS_MAX];
    uint8_t sent[MICROS_MAX][CHUNKS_MAX]; /* enum sent */
    float buffer[MICROS_MAX][CHUNKS_MAX][ELEMS_MAX];
};

/* ---- the truth ---- */
struct ledger_entry {
    uint64_t incarnation, lives; /* of the coordinator, of all members, when it was decided */
    bool uncounted;              /* a skip because the weights add up to 0 */
    uint64_t round;
    enum cairn_decision_kind kind;
    struct cairn_version after;
    uint8_t payload[PAYLOAD_MAX];
    size_t payload_bytes;
};

struct opened {
    uint64_t round;
    uint32_t count;
    uint64_t members[PROCS_MAX];
    bool write;
    bool voided;       /* a worker was told so */
    uint64_t revision; /* of the terms that it goes by */
    uint32_t shards;   /* that the job had, a bit each */
};

struct oracle {
    struct ledger_entry ledger[LEDGER_MAX];
    uint32_t ledger_count;
    struct opened opened[LEDGER_MAX];
    uint32_t opened_count;
    uint64_t step, generation;
    double loss_scale;
    struct cairn_skips skips;
    uint8_t state[STATE_MAX]; /* of the trainer, at the step */
    size_t state_bytes;
    double driven[GROUPS]; /* of driven groups, at the step */
    uint32_t applied;
    uint64_t last_epoch;
    const struct sim_layout *layout;  /* in force: a shard has gone over to it */
    const struct sim_layout *settled; /* the last one that was */
    float acc[CHUNKS_MAX][ELEMS_MAX];
    float param[CHUNKS_MAX][ELEMS_MAX], m[CHUNKS_MAX][ELEMS_MAX], v[CHUNKS_MAX][ELEMS_MAX];
};

struct scenario {          /* drawn from the seed */
    uint32_t shards, room; /* at first; and that there may ever be */
    bool reshards;
    uint32_t ranks, workers_min, window, chunks, queue_max, folds_wanted;
    uint32_t elems[CHUNKS_MAX];
    uint32_t client_state_max;
    struct cairn_group_hyper groups[GROUPS];
    struct cairn_schedule schedules[GROUPS]; /* constant, or driven */
    bool driven;                             /* some are */
    double clip_norm, loss_scale;
    bool fail_nonfinite;
    uint32_t skips_max;
    uint32_t lowered;               /* what workers_min is amended to; 0: it is not */
    uint32_t launch, start_wait_ms; /* of every worker; 0: it does not say */
    cairn_worker_loss on_worker_loss;
    uint32_t loss_wait_ms;
    /* the workload */
    double absent, unheld, poison, weightless;
    uint32_t micros_max;
    uint32_t batch; /* micro-batches of a step, whoever is there; 0: each worker has its own */
    double write;   /* a worker's wish */
    double give_up; /* a round, half pushed */
    /* hosts with shards and workers, which relay; 0: everybody pushes to the owners */
    uint32_t hosts, shard_host[SHARDS_MAX];
    uint32_t buffers_wanted; /* of a relay */
    double roomless;         /* its host, when it needs another buffer */
    /* the network and the machines: means, in us */
    double control_delay, fabric_delay, receive_delay, work_delay, compute_delay, disk_delay;
    double duplicate, corrupt;
    /* faults */
    double fault_gap, kill_midway, break_midway;
    uint32_t weight[FAULTS]; /* of each kind of fault */
    uint64_t faults_end, deadline_ms;
};

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

struct sim {
    uint64_t seed, now, order, events_seen;
    bool verbose, healed, failed, done;
    char failure[512];
    struct rng schedule, fault;
    uint64_t trace; /* a hash of everything that happened */
    struct scenario scenario;
    uint64_t seen[SEEN_COUNT];
    uint64_t healthy_from;   /* steps applied when the faults stopped */
    uint32_t healthy_rounds; /* rounds opened until then */

    struct event *heap;
    size_t heap_count, heap_capacity;
    struct message *pool; /* free messages are linked through `free_list` */
    struct message **free_list;
    size_t free_count, pool_count;

    struct coordinator coordinator;
    struct sim_layout layouts[LAYOUTS_MAX];
    uint32_t layout_count;
    struct sim_plan plan;
    struct sim_shard shards[SHARDS_MAX];
    uint32_t shard_count; /* that there ever were */
    uint64_t stores;      /* made so far */
    bool slipped;         /* one was put in place of another */
    struct twin twins[SHARDS_MAX];
    struct sim_relay relays[SHARDS_MAX]; /* each of the shard's process */
    struct process procs[PROCS_MAX];
    uint64_t lives;
    uint64_t revision; /* of the terms; every coordinator knows the newest */
    struct oracle oracle;

    /* memory and scratch of the cores, made once and used for all seeds */
    void *round_memory, *step_memory[2][SHARDS_MAX], *push_memory[PROCS_MAX], *move_memory;
    void *relay_step_memory[2][SHARDS_MAX][SHARDS_MAX], *relay_push_memory[SHARDS_MAX][SHARDS_MAX];
    struct cairn_round_action *round_list;
    struct cairn_step_action *step_list;
    struct cairn_push_action *push_list;
};

/* sim_world.c */
struct sim *sim_open(void);
void sim_close(struct sim *sim);
void sim_run(struct sim *sim, uint64_t seed, bool verbose);
void sim_fail(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_trace(struct sim *sim, const char *what, uint64_t a, uint64_t b, uint64_t c);
struct cairn_round_config sim_round_config(const struct sim *sim);
struct cairn_step_config sim_step_config(const struct sim *sim, const struct sim_layout *layout,
                                         uint32_t shard);
struct cairn_push_config sim_push_config(const struct sim *sim);
struct cairn_push_config sim_relay_push_config(void);

/* sim_layouts.c */
/* As the one before, with the next number; NULL: too many. `layout_index` when its owners stand. */
struct sim_layout *layout_new(struct sim *sim, const struct sim_layout *before);
void layout_index(const struct sim *sim, struct sim_layout *layout);
bool layout_has(const struct sim_layout *layout, uint32_t shard);
/* Which layout serves that version, for who knows that the first serves what is newer than `after`. */
const struct sim_layout *layout_serves(const struct sim_layout *layout, struct cairn_version after,
                                       struct cairn_version version);

/* sim_reshard.c */
void reshard_start(struct sim *sim); /* the coordinator does */
void reshard_want(struct sim *sim);  /* an operator asks for something, or takes it back */
void reshard_tick(struct sim *sim);
void reshard_heard(struct sim *sim, uint32_t shard, const struct message *message);
/* Its connection is gone, or another one. */
void reshard_shard_down(struct sim *sim, uint32_t shard);
/* A fence brings that layout. */
void reshard_in_force(struct sim *sim, uint64_t number);
void reshard_persisted(struct sim *sim, struct sim_layout *layout, struct cairn_version at);
void reshard_tell_worker(struct sim *sim, uint32_t proc);
bool reshard_under_way(const struct sim *sim);
struct sim_layout *reshard_layout(struct sim *sim, uint64_t number); /* in force, or of the slice */
bool reshard_leaves(struct sim *sim,
                    uint32_t shard); /* it has no part any more, and does not know it */

/* sim_take.c */
void take_message(struct sim *sim, uint32_t shard, const struct message *message);
/* Before the core is given the fence. */
void take_fence(struct sim *sim, uint32_t shard, const struct message *message);
/* The answer to that fence, until the shard has gone over. */
void take_hold(struct sim *sim, uint32_t shard, const struct message *answer);
void take_resolved(struct sim *sim, uint32_t shard);
/* Goes over to the layout that a fence brought, when nothing is in flight. */
void take_advance(struct sim *sim, uint32_t shard);
void take_event(struct sim *sim, const struct event *event);
void take_break(struct sim *sim, uint32_t shard); /* its connections to those who give */
void take_updated(struct sim *sim, uint32_t shard);
/* Writes the newest version once more, in the layout in force. */
void take_publish(struct sim *sim, uint32_t shard);
/* A worker fetches that version, of the chunk's owner in the layout. */
void take_fetch(struct sim *sim, const struct sim_layout *layout, uint32_t chunk,
                struct cairn_version version);
bool take_is_fresh(const struct sim *sim, uint32_t shard); /* nothing is lost with it */
void shard_join(struct sim *sim); /* a process is started that holds nothing */
void shard_end(struct sim *sim, uint32_t shard);

/* sim_names.c */
const char *message_name(enum message_kind kind);
const char *event_name(enum event_kind kind);
const char *step_action_name(enum cairn_step_action_kind kind);
const char *round_action_name(enum cairn_round_action_kind kind);

/* sim_net.c */
struct event *sim_at(struct sim *sim, uint64_t delay, enum event_kind kind, uint32_t a, uint32_t b,
                     uint64_t conn);
bool sim_pop(struct sim *sim, struct event *out);
void sim_net_reset(struct sim *sim);
void sim_message_free(struct sim *sim, struct message *message);
/* In order, reliable until the connection is lost. way: 0 to the coordinator, 1 from it. */
void sim_send_control(struct sim *sim, struct link *link, int way, enum event_kind kind,
                      uint32_t to, uint32_t from, const struct message *message);
/* Any order, perhaps twice. */
void sim_send_fabric(struct sim *sim, const struct link *link, enum event_kind kind, uint32_t to,
                     uint32_t from, const struct message *message);
struct process *sim_process(struct sim *sim, uint64_t member); /* NULL: no more */

/* sim_peers.c */
uint32_t sim_place(const struct sim *sim, uint64_t member); /* of who pushes; NOBODY: no more */
struct link *sim_fabric(struct sim *sim, uint32_t place, uint32_t shard);
void peer_hello(struct sim *sim, uint32_t shard, uint32_t place, uint64_t member, uint64_t conn);
void peer_down(struct sim *sim, uint32_t shard, uint32_t place, uint64_t conn);
void peer_endpoint_down(struct sim *sim, uint32_t shard, uint32_t place, uint64_t endpoint);
/* What the shard sends to that place is lost, until it notices; the other way stands. */
void shard_endpoint_break(struct sim *sim, uint32_t shard, uint32_t place);
/* To message->member, if it is connected. */
void peer_send(struct sim *sim, uint32_t shard, struct message *message);
struct message peer_answer(enum message_kind kind, const struct cairn_step_action *action,
                           uint32_t owner, bool relayed);
struct cairn_step_event peer_event_of(const struct message *message, uint64_t tag);
struct landing landing_of(const struct sim *sim, uint32_t shard, uint32_t chunk,
                          const struct message *message);
/* The one-sided read ends: of the buffer as it is now. OK, CHECKSUM or CLOSED. */
cairn_status landing_read(struct sim *sim, uint32_t shard, const struct landing *landing,
                          float *out);
/* The table of an OPEN; NULL where all hold everything. */
const uint8_t *fill_holds(const struct sim *sim, const struct sim_layout *layout, uint32_t owner,
                          uint64_t round, const uint64_t *members, uint32_t count,
                          uint8_t out[HOLDS_MAX]);

/* sim_coordinator.c */
void coordinator_start(struct sim *sim);
void coordinator_kill(struct sim *sim);
void coordinator_event(struct sim *sim, const struct event *event);
void coordinator_pin(struct sim *sim);
/* Its control connection is lost. The coordinator notices in that time, about, if it has not come back by
 * then. */
void shard_link_break(struct sim *sim, uint32_t shard, double notice);
void coordinator_core_event(struct sim *sim, struct cairn_round_event *event);
void link_cut(struct sim *sim, struct link *link);

/* sim_store.c */
void store_made(struct sim *sim);
void store_opened(struct sim *sim);
void store_written(struct sim *sim);
void store_slip(struct sim *sim); /* the coordinator is killed, and its store another one */
bool store_admits(struct sim *sim, uint32_t shard); /* the coordinator may act on what it holds */
void store_heard(struct sim *sim, uint32_t shard, const struct message *message);
/* The highest that was: after a slip only what a shard heard counts; a fence that none got fences nobody. */
uint64_t store_epoch_used(const struct sim *sim);
void store_adopts(struct sim *sim);

/* sim_twin.c */
void twin_start(struct sim *sim, uint32_t shard);
void twin_lost(struct sim *sim, uint32_t shard); /* its connection, if it has one */
void twin_event(struct sim *sim, const struct event *event);
void seat_hello(struct sim *sim, uint32_t shard, enum sitter who);
void seat_answers(struct sim *sim, uint32_t shard, enum sitter who);
void seat_left(struct sim *sim, uint32_t shard, enum sitter who);

/* sim_shard.c */
void shard_start(struct sim *sim, uint32_t shard);
void shard_event(struct sim *sim, const struct event *event);
void shard_garbage(struct sim *sim, uint32_t shard);
void shard_connect(struct sim *sim, uint32_t shard);
void shard_core_event(struct sim *sim, uint32_t shard, const struct cairn_step_event *event);

/* sim_relay.c */
void relay_start(struct sim *sim, uint32_t shard);
void relay_from_coordinator(struct sim *sim, uint32_t shard, const struct message *message);
void relay_from_worker(struct sim *sim, uint32_t shard, const struct event *in);
void relay_peer_event(struct sim *sim, uint32_t shard, const struct cairn_step_event *event);
void relay_work_event(struct sim *sim, const struct event *in);
void relay_tick(struct sim *sim, uint32_t shard);
bool relay_idle(const struct sim *sim, uint32_t shard); /* nothing is in flight in any core */
void relay_recut(struct sim *sim, uint32_t shard); /* its shard has gone over to another layout */
/* Adds what its workers have not pushed to it in that round. */
void relay_lacks(const struct sim *sim, uint32_t shard, uint64_t round, struct message *out);
/* The same of any core. */
void core_lacks(const struct cairn_step *core, bool relayed, struct message *out);
void relay_garbage(struct sim *sim, uint32_t shard, const struct cairn_step_event *garbage);
/* A buffer may be free: folds that wait go on. */
void relay_advance(struct sim *sim, uint32_t shard);

/* sim_relay_send.c */
void relay_send_begin(struct sim *sim, uint32_t shard, uint32_t owner);
void relay_send_end(struct sim *sim, uint32_t shard, uint32_t owner);
void relay_forward(struct sim *sim, uint32_t shard, uint32_t owner,
                   const struct cairn_step_action *action);
void relay_from_owner(struct sim *sim, uint32_t shard, uint32_t owner,
                      const struct message *message);
void relay_break(struct sim *sim, uint32_t shard, uint32_t owner);
void relay_reconnect(struct sim *sim, uint32_t shard, uint32_t owner);
/* The owner reads what the relay has on loan. */
void relay_read(struct sim *sim, uint32_t owner, const struct landing *landing, float *out);

/* sim_worker.c */
void process_start(struct sim *sim, uint32_t rank);
void process_kill(struct sim *sim, uint32_t proc);
void process_event(struct sim *sim, const struct event *event);
void process_connect(struct sim *sim, uint32_t proc);
void process_pause(struct sim *sim, uint32_t proc, uint64_t at_most_ms); /* says so */
void process_link_break(struct sim *sim, uint32_t proc);
void fabric_break(struct sim *sim, uint32_t shard, uint32_t proc);

/* sim_oracle.c */
void oracle_start(struct sim *sim);
/* Does the member hold the chunk? Like a worker's tiles: constant for its life. */
bool truth_holds(const struct sim *sim, uint64_t member, uint32_t chunk);
/* The same for whoever is a member in that round, a relay, too. */
bool oracle_holds(const struct sim *sim, uint64_t round, uint64_t member, uint32_t chunk);
uint32_t truth_host(const struct sim *sim, uint64_t member);
/* Do several of these share a host that has some of the shards? Then those of member i's host are one
 * contribution. */
bool truth_grouped(const struct sim *sim, uint32_t shards, const uint64_t *members, uint32_t count,
                   uint32_t i);
/* The contribution: the same for whoever asks. With a batch it is nobody's (truth_owner 0), and `micro`, and
 * `member` of a weight, the micro-batch's number in the step. */
uint64_t truth_owner(const struct sim *sim, uint64_t member);
uint32_t truth_micros(const struct sim *sim, uint64_t round, uint64_t member);
uint64_t truth_weight(const struct sim *sim, uint64_t round, uint64_t member);
bool truth_present(const struct sim *sim, uint64_t round, uint64_t member, uint32_t micro,
                   uint32_t chunk);
void truth_gradient(const struct sim *sim, uint64_t round, uint64_t member, uint32_t micro,
                    uint32_t chunk, float *out);
/* What the worker gives of its own with a commit; returns how many bytes. */
size_t truth_state(const struct sim *sim, uint64_t round, uint64_t member, uint8_t out[STATE_MAX]);
/* The learning rate that it gives for a driven group. */
double truth_lr(const struct sim *sim, uint64_t round, uint64_t member, uint32_t group);
/* After how many calls of the library a worker gives the round up; UINT32_MAX: it does not. */
uint32_t truth_gives_up(const struct sim *sim, uint64_t round, uint64_t member);
/* What a write leaves in a chunk: false, nothing was put. */
bool truth_write(const struct sim *sim, uint64_t round, uint32_t chunk, float *param, float *m);
/* No round of steps may open: too many skips in a row, and nobody has amended the job since. */
bool oracle_halted(const struct sim *sim);
/* A shard goes over to the layout. */
void oracle_recut(struct sim *sim, uint32_t shard, const struct sim_layout *layout);
/* A coordinator whose store was another one goes on: a layout that none of its shards goes by never was. */
void oracle_slipped(struct sim *sim);
/* A shard that joins has what was decided last. */
void oracle_joins(struct sim *sim, uint32_t shard, const struct cairn_decision *last);
void oracle_opened(struct sim *sim, const struct cairn_round_action *open);
/* A shard begins to do as the decision says. */
void oracle_executes(struct sim *sim, uint32_t shard, const struct cairn_decision *decision);
/* A shard has done so: every bit of its state. */
void oracle_compare(struct sim *sim, uint32_t shard);
void oracle_result(struct sim *sim, const struct message *result);
void oracle_told_worker(struct sim *sim, const struct cairn_round_action *opened);
/* A shard has the pin: the version must be the one of the cut. */
void oracle_pinned(struct sim *sim, uint32_t shard, const struct message *pin);
struct cairn_geometry chunk_geometry(const struct sim *sim, uint32_t chunk);

/* sim_faults.c */
void faults_start(struct sim *sim);
void faults_event(struct sim *sim);
void faults_heal(struct sim *sim);

#endif
