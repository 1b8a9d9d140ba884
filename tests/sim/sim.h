/* cairn-sim: a whole cluster in one process, on one seed. The real cores (server/core), the real push
 * machine (proto/link/push) and the real arithmetic (gpu/host, proto/wire) run; clock, network, disk and
 * processes are simulated, with faults. An oracle that knows only the contributions recomputes every round.
 *
 *   sim_main.c         seeds, the summary, what was seen how often
 *   seen.h             what is counted
 *   messages.h         what is said, and what happens
 *   actors.h           who says it: the processes
 *   truth.h            what it has to come to
 *   sim_world.c        a scenario from a seed; the loop; failures and the trace
 *   sim_net.c          the heap of events, connections, delay, reordering, duplication, loss
 *   sim_coordinator.c  the coordinator's daemon, as thin as can be
 *   sim_groups.c       the members of a host, who are one to the owners
 *   sim_shard.c        the shard's daemon
 *   sim_peers.c        what it knows of those that push to it
 *   sim_layouts.c      who owns which chunk
 *   sim_reshard.c      the coordinator while the layout changes: plans, slices, who has left
 *   sim_take.c         a shard while the layout changes: what it prepares, takes, gives, publishes
 *   sim_relay.c        a shard as the relay of its host: cores that forward, buffers, folds
 *   sim_relay_send.c   what it passes on to the owners
 *   sim_worker.c       the worker's process: the library and a trainer
 *   sim_truth.c        what is contributed, and the state after each round
 *   sim_oracle.c       what has to hold, whatever happens
 *   sim_twin.c         a second process under a shard's name, and who has the seat
 *   sim_store.c        the coordinator's store, mixed up and adopted
 *   sim_standby.c      standbys, and whose host dies
 *   sim_mirror.c       the mirrors that the coordinator has there
 *   sim_log.c          the logs of parts, out of which they are made again
 *   sim_lead.c         several coordinators, and their store in etcd
 *   sim_line.c         which snapshots a job descends from that went back
 *   sim_faults.c       what happens
 *   sim_attack.c       who meddles with the network
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
#include "tests/sim/actors.h"
#include "tests/sim/seen.h"
#include "tests/sim/truth.h"

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

struct scenario {          /* drawn from the seed */
    uint32_t shards, room; /* at first; and that there may ever be */
    bool reshards;
    uint32_t ranks, workers_min, window, small, in_place, chunks, queue_max, folds_wanted;
    uint32_t elems[CHUNKS_MAX];
    uint32_t client_state_max;
    struct group_hyper groups[GROUPS];
    struct schedule schedules[GROUPS]; /* constant, or driven */
    bool driven;                       /* some are */
    struct round_tensor tensors[TENSORS_MAX];
    uint32_t tensor_count;
    bool leaves_untouched;
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
    bool logs;               /* each shard has one, and all memory may be lost */
    uint32_t coordinators;   /* of which one leads; 0: there is one, and its store is a file */
    uint64_t store_lease_ms;
    double lost_answer, refused_write; /* of etcd */
    uint32_t standbys;                 /* each place has so many */
    uint64_t patience_ms;              /* for an owner that is away */
    double owner_dies; /* whenever a standby fetches its sums, or carries out a decision */
    double row_delay;  /* of the store's rows beside the epoch */
    uint64_t faults_end, deadline_ms;
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
    struct coordinator *former; /* one that led before it, and lives; owned */
    uint32_t former_knows;      /* which shards are connected to it, a bit each */
    struct sim_leads *leads;    /* owned */
    struct sim_layout layouts[LAYOUTS_MAX];
    uint32_t layout_count;
    struct sim_plan plan;
    struct sim_shard shards[SHARDS_MAX]; /* that have the places, as far as the coordinator knows */
    /* the other processes of each place (sim_standby.c) */
    struct sim_shard others[CAIRN_STANDBYS_MAX][SHARDS_MAX];
    uint32_t shard_count; /* that there ever were */
    bool has_others;      /* processes in `others` */
    struct sim_shard spare;
    struct message spare_message;
    uint64_t starts, serials; /* of processes; of mirrors */
    uint64_t coordinators;    /* processes of coordinators that have led */
    struct link no_link;
    uint64_t stores; /* made so far */
    bool slipped;    /* one was put in place of another */
    struct twin twins[SHARDS_MAX];
    struct sim_relay relays[SHARDS_MAX]; /* each of the shard's process */
    struct process procs[PROCS_MAX];
    uint64_t lives;
    uint64_t revision; /* of the terms; every coordinator knows the newest */
    struct oracle oracle;
    struct attack *attack; /* owned */
    struct sim_logs *logs; /* owned */

    /* memory and scratch of the cores, made once and used for all seeds */
    void *round_spare, *move_spare; /* of the former coordinator, or of nobody */
    void *round_memory, *step_memory[2][ROOMS_MAX], *push_memory[PROCS_MAX], *move_memory;
    void *relay_step_memory[2][SHARDS_MAX][SHARDS_MAX], *relay_push_memory[SHARDS_MAX][SHARDS_MAX];
    struct round_action *round_list;
    struct step_action *step_list;
    struct push_action *push_list;
};

/* The process of that name. */
#define shard_at(sim, id) (&((id) < OTHER ? (sim)->shards : (sim)->others[WHICH(id)])[PLACE(id)])

/* sim_operations.c: goes through all orders of a job's operations, and prints what is wrong. */
bool sim_operations(void);

/* sim_world.c */
struct sim *sim_open(void);
void sim_close(struct sim *sim);
void sim_run(struct sim *sim, uint64_t seed, bool verbose);
void sim_fail(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_trace(struct sim *sim, const char *what, uint64_t a, uint64_t b, uint64_t c);
struct round_config sim_round_config(const struct sim *sim);
struct step_config sim_step_config(const struct sim *sim, const struct sim_layout *layout,
                                   uint32_t shard);
struct push_config sim_push_config(const struct sim *sim);
/* Every other chunk is. */
static inline bool sim_is_small(uint32_t chunk)
{
    return chunk % 2 == 1;
}
/* Where a worker has its gradients. */
static inline enum push_lies sim_lies(uint32_t chunk)
{
    return (enum push_lies)(chunk % 3);
}
struct push_config sim_relay_push_config(void);

/* sim_attack.c */
struct attack *attack_open(void);
void attack_close(struct attack *attack);
void attack_start(struct sim *sim);
/* Seals a message that is sent over the connection, if there is an attacker. */
void attack_seal(struct sim *sim, struct link *link, int way, struct message *message);
/* Opens the record of a message that arrives. False: it is refused, and the connection is given up. */
bool attack_take(struct sim *sim, const struct event *event);
void attack_event(struct sim *sim);

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
void reshard_attached(struct sim *sim, uint32_t proc); /* what Attached tells, and what follows */
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
/* Shards that had joined are dead, and in the layout. */
bool take_some_are_lost(const struct sim *sim);
bool take_is_fresh(const struct sim *sim, uint32_t shard); /* nothing is lost with it */
void shard_join(struct sim *sim); /* a process is started that holds nothing */
void shard_end(struct sim *sim, uint32_t shard);

/* sim_names.c */
const char *sim_message_name(enum message_kind kind);
const char *event_name(enum event_kind kind);
const char *step_action_name(enum step_action_kind kind);
const char *round_action_name(enum round_action_kind kind);

/* sim_net.c */
struct event *sim_at(struct sim *sim, uint64_t delay, enum event_kind kind, uint32_t a, uint32_t b,
                     uint64_t conn);
bool sim_pop(struct sim *sim, struct event *out);
void sim_net_reset(struct sim *sim);
/* Nothing that the shard's process has begun ends any more. */
void sim_forget_work(struct sim *sim, uint32_t shard);
/* What is under way for the one process of a place is for the other one, and the other way round. */
void sim_rename_work(struct sim *sim, uint32_t place, uint32_t id);
struct message *sim_message_copy(struct sim *sim, const struct message *from);
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
struct message peer_answer(enum message_kind kind, const struct step_action *action, uint32_t owner,
                           bool relayed);
struct step_event peer_event_of(const struct message *message, uint64_t tag);
struct landing landing_of(const struct sim *sim, uint32_t shard, uint32_t chunk,
                          const struct message *message);
/* The one-sided read ends: of the buffer as it is now. OK, CHECKSUM or CLOSED. */
cairn_status landing_read(struct sim *sim, uint32_t shard, const struct landing *landing,
                          float *out);
/* That connection is through memory that both have. */
bool sim_shares(const struct sim *sim, uint32_t place, uint32_t shard, uint64_t conn);
/* A chunk that came over it can be read where it lies. */
bool peer_reads(const struct sim *sim, uint32_t shard, const struct event *in);
/* What is read in place is there at once; its memory is the shard's until the end of its fold. */
void landing_view(struct sim *sim, uint32_t shard, const struct landing *landing, float *out);
void landing_folded(struct sim *sim, uint32_t shard, const struct landing *landing);
/* The table of an OPEN; NULL where all hold everything. */
const uint8_t *fill_holds(const struct sim *sim, const struct sim_layout *layout, uint32_t owner,
                          uint64_t round, const uint64_t *members, uint32_t count,
                          uint8_t out[HOLDS_MAX]);

/* sim_coordinator.c */
void coordinator_start(struct sim *sim);
void coordinator_kill(struct sim *sim);
/* Lets go of all that are connected to it. */
void coordinator_leave(struct sim *sim);
void coordinator_event(struct sim *sim, const struct event *event);
void coordinator_pin(struct sim *sim);
/* Its control connection is lost. The coordinator notices in that time, about, if it has not come back by
 * then. */
void shard_link_break(struct sim *sim, uint32_t shard, double notice);
void coordinator_core_event(struct sim *sim, struct round_event *event);
void coordinator_report(struct sim *sim, uint32_t shard, const struct message *message);
void link_cut(struct sim *sim, struct link *link);

/* sim_groups.c */
/* As a round opens. */
void groups_form(struct sim *sim, const struct round_action *open);
/* Whom the owner has as contributors, by their least rank. */
void groups_put_members(struct sim *sim, uint32_t owner, const struct round_action *open,
                        struct message *message);
/* Whom the shard relays for. */
void groups_put_relay(const struct sim *sim, uint32_t shard, struct message *message);

/* sim_store.c */
void store_made(struct sim *sim);
void store_opened(struct sim *sim);
void store_written(struct sim *sim);
void store_slip(struct sim *sim); /* the coordinator is killed, and its store another one */
bool store_admits(struct sim *sim, uint32_t shard); /* the coordinator may act on what it holds */
/* The same of a worker, who says the newest epoch that it has seen a round in. */
bool store_admits_worker(struct sim *sim, const struct message *attach);
void store_heard(struct sim *sim, uint32_t shard, const struct message *message);
/* The highest that was: after a slip only what a shard heard counts; a fence that none got fences nobody. */
uint64_t store_epoch_used(const struct sim *sim);
void store_adopts(struct sim *sim);

/* sim_twin.c */
void twin_start(struct sim *sim, uint32_t shard);
void twin_lost(struct sim *sim, uint32_t shard); /* its connection, if it has one */
void twin_event(struct sim *sim, const struct event *event);
void seat_hello(struct sim *sim, uint32_t shard, enum sitter who, const struct message *hello);
void seat_up(struct sim *sim, uint32_t shard); /* the process with the state counts */
void seat_down(struct sim *sim, uint32_t shard);
void seat_answers(struct sim *sim, uint32_t shard, enum sitter who);
void seat_left(struct sim *sim, uint32_t shard, enum sitter who);

/* sim_standby.c, sim_mirror.c */
/* Goes through the processes of a place that do not have it. */
#define EACH_STANDBY(sim, place, id) \
    for (uint32_t id = OTHER + (place); id < OTHER * (1 + (sim)->scenario.standbys); id += OTHER)
enum sim_standby_fault { SIM_OWNER_DIES, SIM_STANDBY_DIES, SIM_CUT_OFF, SIM_STANDBY_CUT_OFF };
void standby_start(struct sim *sim);
void standby_fault(struct sim *sim, enum sim_standby_fault fault, uint32_t place);
void standby_event(struct sim *sim, const struct event *event);
void standby_row_saved(struct sim *sim, uint64_t incarnation);
/* The process that has the place and that one change: what is under way for them goes with them. */
void standby_swap(struct sim *sim, uint32_t id);
/* To a shard's process, as a standby or its owner. */
void standby_message(struct sim *sim, uint32_t id, const struct message *message);
void standby_updates(struct sim *sim, uint32_t id); /* an update begins */
void standby_coordinator_starts(struct sim *sim);
void standby_coordinator_dies(struct sim *sim);
/* From a process without a place, or an answer of one that has a place. */
void standby_from(struct sim *sim, uint32_t id, const struct message *message);
/* The owner's report waits for the standby's. */
bool standby_holds(struct sim *sim, uint32_t place, const struct message *message);
/* False: whoever says hello does not count as the owner now. */
bool standby_has_place(struct sim *sim, uint32_t place, const struct message *hello);
void standby_owner_up(struct sim *sim, uint32_t place); /* before the core hears of it */
void standby_owner_down(struct sim *sim, uint32_t place);
void standby_down(struct sim *sim, uint32_t id);
/* To the standbys of a place that take part. */
void standby_send(struct sim *sim, uint32_t place, const struct message *message);
void standby_opens(struct sim *sim, const struct round_action *open); /* before it is sent */
void standby_layout_begins(struct sim *sim);
void standby_tick(struct sim *sim);
/* The standby has to have what the owner has, as far as it is filled; or all of it. */
bool standby_counts(const struct sim *sim, uint32_t id);
bool standby_is_whole(const struct sim_shard *s, uint32_t chunk); /* the chunk is there */
bool standby_is_in_step(const struct sim *sim, uint32_t id);
/* True if the standby is promised to take the place if the owner's host is lost: both are in step, as the
 * store says, and nothing that was begun takes that back. */
bool standby_is_ready(const struct sim *sim, uint32_t id);
bool standby_is_awaited(const struct sim *sim, uint32_t place); /* its owner is lost */
bool standby_is_last(const struct sim *sim);                    /* the same of any place */

/* sim_shard.c */
void shard_start(struct sim *sim, uint32_t shard);
void shard_event(struct sim *sim, const struct event *event);
void shard_garbage(struct sim *sim, uint32_t shard);
/* Its process dies, and its memory does not: the next process goes on, if it may. */
void shard_kill_kept(struct sim *sim, uint32_t shard);
/* Shards die whose memory does not. */
bool shard_is_keeping(const struct sim *sim);
/* True if what is kept of the shard's layouts is enough to go on with; and what the next process has of them:
 * that before an unsettled one, and that one prepared. */
bool take_may_die(const struct sim *sim, uint32_t shard);
void take_dies(struct sim *sim, uint32_t shard);
void shard_connect(struct sim *sim, uint32_t shard);
void shard_core_event(struct sim *sim, uint32_t shard, const struct step_event *event);

/* Its process dies. */
void shard_dies(struct sim *sim, uint32_t shard);
/* Its next process goes on from what the one before left. */
void shard_comes_again(struct sim *sim, uint32_t shard, const struct step_kept *kept);
/* Makes an update that was decided once more, of the sums that are there, and publishes the version. */
void shard_update_again(struct sim *sim, uint32_t shard, const struct decision *decision);
void shard_begin_update(struct sim *sim, uint32_t shard, const struct decision *decision);
void shard_report_published(struct sim *sim, uint32_t shard, const struct step_action *action);

/* sim_log.c */
struct sim_logs *logs_open(void);
void logs_close(struct sim_logs *logs);
void log_start(struct sim *sim, uint32_t shard);
void log_event(struct sim *sim, const struct event *event);
/* True: it goes on when that is on disk. */
bool log_takes_round(struct sim *sim, uint32_t shard, const struct step_sums *sums);
bool log_takes_update(struct sim *sim, uint32_t shard, const struct decision *decision);
bool log_takes_skip(struct sim *sim, uint32_t shard, const struct step_action *action);
void log_updated(struct sim *sim, uint32_t shard); /* to another version */
void log_fault(struct sim *sim);

/* sim_lead.c */
struct sim_leads *leads_open(void);
void lead_start(struct sim *sim);
void lead_event(struct sim *sim, const struct event *event);
/* True: the process to which it comes is stopped, and has it later. */
bool lead_defers(struct sim *sim, struct event *event);
/* True: it was for a former leader. */
bool lead_dispatch(struct sim *sim, const struct event *event);
/* The process that a peer finds when it connects; 0: none. */
uint64_t lead_found(struct sim *sim);
void lead_missed(struct sim *sim, const struct event *event);
/* Another one has counted itself in the store since sim->coordinator did. */
bool lead_is_former(const struct sim *sim);
void lead_persist(struct sim *sim);
void lead_dies(struct sim *sim); /* the process that is sim->coordinator */
void lead_fault(struct sim *sim);
void lead_healed(struct sim *sim);

/* sim_line.c */
void line_run(struct sim *sim);

/* sim_relay.c */
void relay_start(struct sim *sim, uint32_t shard);
void relay_from_coordinator(struct sim *sim, uint32_t shard, const struct message *message);
void relay_from_worker(struct sim *sim, uint32_t shard, const struct event *in);
void relay_peer_event(struct sim *sim, uint32_t shard, const struct step_event *event);
void relay_work_event(struct sim *sim, const struct event *in);
void relay_tick(struct sim *sim, uint32_t shard);
bool relay_idle(const struct sim *sim, uint32_t shard); /* nothing is in flight in any core */
void relay_recut(struct sim *sim, uint32_t shard); /* its shard has gone over to another layout */
/* Adds what its workers have not pushed to it in that round. */
void relay_lacks(const struct sim *sim, uint32_t shard, uint64_t round, struct message *out);
/* The same of any core. */
void core_lacks(const struct step_machine *core, bool relayed, struct message *out);
void relay_garbage(struct sim *sim, uint32_t shard, const struct step_event *garbage);
/* A buffer may be free: folds that wait go on. */
void relay_advance(struct sim *sim, uint32_t shard);

/* sim_relay_send.c */
void relay_send_begin(struct sim *sim, uint32_t shard, uint32_t owner);
void relay_send_end(struct sim *sim, uint32_t shard, uint32_t owner);
void relay_forward(struct sim *sim, uint32_t shard, uint32_t owner,
                   const struct step_action *action);
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

/* sim_faults.c */
void faults_start(struct sim *sim);
void faults_event(struct sim *sim);
void faults_heal(struct sim *sim);

#endif
