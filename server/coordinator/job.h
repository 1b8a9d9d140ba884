/* A job: its shards, its members, its core (server/core/round.h), at most one snapshot and at most one
 * restore.
 *
 * State that one module alone reads and writes is a struct of that module's header. A job is the
 * sum of these structs, so this header includes those headers. */
#ifndef CAIRN_COORDINATOR_JOB_H
#define CAIRN_COORDINATOR_JOB_H

#include "proto/base/text.h"
#include "proto/geometry/layout.h"
#include "proto/snapshot/snapshot.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"
#include "server/coordinator/base.h"
#include "server/coordinator/members.h"
#include "server/coordinator/reshard.h"
#include "server/coordinator/round.h"
#include "server/coordinator/snapshot.h"
#include "server/core/decision.h"

/* ==== openings ==== */

/* Openings: workers and readers that are joining a job. */

/* A member's JobOpen, until the member is ATTACHED. */
struct coord_opening {
    struct paged pages; /* owned; used in the phase PAGES */
    /* held: the spec as received; NULL: a reader has none, or it is not complete yet */
    struct packed *packed;
    struct job_spec_data spec; /* owned; a reader's has no name */
    /* held: the job's spec with which this one was compared; NULL: none yet */
    struct packed *compared;
    bool joins;                  /* this spec is, or once was, the job's */
    struct sentence differences; /* unless it joins */
    /* owned: the differences as messages, one Difference each; NULL: it joins */
    Cairn__Error *rows;
    /* launch: JobOpen.world, how many were launched together; 0: not said */
    uint32_t launch, start_wait_ms;
    uint64_t attached_id; /* id of the job that it was a member of already; 0: none */
    /* last epoch that it saw of that job, under a store of our identity; 0: none */
    uint64_t seen_epoch;
    bool must_exist; /* it creates no job */
    bool resumes; /* if the job does not exist or is lost, it wants the newest snapshot restored */
    bool must_not_exist; /* it joins no job that has taken a step */
    bool takes_over;     /* it takes a rank from a live worker */
    uint32_t restarts;   /* number of restarts in the launcher's run */
    uint64_t run;        /* id of the launcher's run; 0: not known */
    /* since when it has waited for its rank (now_ms + 1); 0: it does not wait */
    uint64_t contested_ms;
    bool put_off; /* it is put off because it failed too often: members.h */
};

/* The cluster's openings. The flags keep coord_openings_advance from being entered
 * twice. */
struct coord_openings {
    bool advancing, again;
    struct coord_plan *plans; /* jobs.c: jobs that are being planned on a thread */
    bool contested;           /* an opening waits for its rank to be free, or is put off */
};

/* Handles JobOpen, which is answered at once, or when the job exists. */
void coord_member_open(struct coord_session *session, uint32_t request,
                       const Cairn__JobOpen *message);
/* Takes a page of the spec that a JobOpen announced. */
void coord_member_page(struct coord_session *session, uint32_t request, const Cairn__Page *page);
/* Checks that the spec's bounds of workers are within round.workers_max. CAIRN_ERR_INVALID. */
cairn_status coord_judge_workers(const struct coord *cluster, const struct job_spec_data *spec,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* Judges the waiting openings again: a shard connected, or a job was created, restored or dropped. */
void coord_openings_advance(struct coord *cluster);
/* Ends waits for a rank, and readings of the snapshots' folder, that have lasted too long. */
void coord_openings_tick(struct coord *cluster);
/* The restore that the job's openers asked for has ended. CAIRN_OK: the job exists, or there is no snapshot
 * to restore it from; with another status the openers are refused. */
void coord_openers_resumed(struct coord *cluster, const char *name, cairn_status status,
                           const char *text);
/* The verdict on whether an opener with this spec may join a job that is to be restored. */
struct coord_verdict;
/* Adds to the list the specs of the openers that ask for a restore of the job. True: some are new. */
bool coord_openers_list(struct coord *cluster, const char *name, struct coord_verdict **list);
/* Compares the specs that were not judged yet with the spec that is to be restored. Any thread. */
void coord_verdicts_judge(struct coord_verdict *list, const struct job_spec_data *saved);
void coord_verdicts_free(struct coord_verdict *list);
/* The snapshot is to be restored for the openers that ask for it: refuses those whose spec differs, or is
 * not in the list. CAIRN_ERR_MISMATCH: all of them were refused. */
cairn_status coord_openers_judge(struct coord *cluster, const char *name,
                                 struct coord_verdict *list, struct sentence *why) CAIRN_MUST_CHECK;
/* The job could not be created: tells its openers why. */
void coord_job_openers_fail(struct coord *cluster, const char *name, cairn_status status,
                            const char *text);

/* ==== init ==== */

/* The initial state of a job: which members put it, whether all put the same, and its seal. */

#define CAIRN_INIT_DIGEST_BYTES 32
/* The digest of a rank's initial state, as that rank reports it. */
struct init_digest {
    bool known;
    uint8_t bytes[CAIRN_INIT_DIGEST_BYTES];
    uint32_t rank;
};

/* A job's initial state. Digests are kept in memory only, for the life of this coordinator. */
struct coord_init {
    bool seal_wanted, seal_running; /* the source said InitDone; the shards are asked to seal */
    bool sourced;        /* a source said InitDone; with tiles the other ranks put theirs, too */
    uint64_t moments_of; /* the member that also put moments; 0: none did */
    /* the state that the source put, and the state that the callers gave */
    struct init_digest source, given;
    /* owned: the steps that its tensors missed before it began, until the job is made; NULL: none */
    uint8_t *payload;
    size_t payload_bytes;
};

/* A member's InitDone. */
struct coord_member_init {
    uint32_t request;          /* id of its InitDone request */
    struct init_digest digest; /* digest of the state that it put */
    uint8_t *held;             /* owned: InitDone.held, [tensor_count]; NULL: not to be compared */
};

void coord_member_init_done(struct coord_member *member, uint32_t request,
                            const Cairn__InitDone *message);
/* Seals the initial state, if that is wanted and all shards are up. */
void coord_job_try_seal(struct coord_job *job);

/* ==== loss ==== */

/* A job is lost, or older than what its shards hold: why, and what happens next. */

#define CAIRN_RESTORES_MAX 3

/* The automatic restore of a lost job: see restore.h. */
struct coord_recovery {
    uint32_t restores;            /* restores begun since the last applied step */
    struct snapshot_place behind; /* the oldest snapshot that was found damaged */
    uint64_t retry_ms;            /* coord_now_ms: no restore begins before */
    uint64_t lost_ms;             /* coord_now_ms: when the job was lost */
    char why[300];                /* why the job was lost */
    /* the newest damaged snapshot, and its damage; valid while behind.id is not empty */
    struct sentence damaged;
    bool running, gave_up;
    /* with gave_up: snapshots exist, but none may be restored unless an operator asks for it */
    bool passed;
    bool begun;  /* a restore has replaced the job: its parts can no longer return */
    bool unseen; /* a shard did not see the snapshot: the restore waits for its storage */
    bool waited; /* a restore was pending at the last tick */
};

/* A job's loss, and its recovery. */
struct coord_loss {
    struct sentence why; /* "lost: ...", "behind: ..." */
    bool may_return;     /* LOST only because parts are missing: the core is still alive */
    /* LOST, because our store is an older copy of the job; lasts until the job is adopted */
    bool behind;
    struct coord_recovery recovery;
};

/* Makes the job LOST, and expels its members. may_return: its core is still told of shards, because the
 * parts may come back. */
void coord_job_lose(struct coord_job *job, bool may_return, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A shard, or a member ("worker"), has seen a higher `what` of the job, such as "epoch", than our store
 * knows: the store is an older copy, and nothing is done with the job until it is adopted. */
void coord_job_behind(struct coord_job *job, const char *kind, const char *name, const char *what);

/* ---- on_shard_loss ---- */

/* Returns the least number of shards for the restore: cluster.shards, or fewer if the job was moved off
 * some; after cluster.shards_wait, the number that are connected, but at least cluster.shards_min. */
uint32_t coord_recovery_shards(const struct coord_job *job);
/* True: the job is LOST, and will be restored without an operator, so nobody need give it up yet. */
bool coord_recovery_pending(const struct coord_job *job);
/* Says what happens next to a job that is LOST, or what an operator has to do. The text follows "lost: WHY;
 * ". */
void coord_recovery_advise(const struct coord_job *job, struct sentence *out);

/* ==== job ==== */

/* The initial state is missing until INITIALIZING ends; `restoring` and `dropping` distinguish kinds of
 * CREATING. */
enum coord_job_state {
    CAIRN_CLUSTER_JOB_CREATING,     /* shards make room, or free it (dropping); there is no core */
    CAIRN_CLUSTER_JOB_INITIALIZING, /* the source puts the initial state */
    CAIRN_CLUSTER_JOB_RUNNING,
    CAIRN_CLUSTER_JOB_LOST, /* `loss` says why, and whether the job may return */
};

/* A shard's part of a job. */
struct coord_job_shard {
    struct coord_shard_entry *entry; /* NULL: a hole, see CAIRN_EACH_SHARD */
    bool up;                         /* as the core was told */
    uint64_t incarnation;            /* the shard's incarnation when JobCreate was sent */
    uint64_t address_sent;           /* hash of the fabric address that members know; 0: none yet */
    uint64_t missed_ms;   /* coord_now_ms + 1: since when the part is missed; 0: it is not missed */
    uint64_t patience_ms; /* how long the part may be missed before the job is LOST */
    /* coord_now_ms + 1: since when loss.c has seen it away; 0: it is not away */
    uint64_t away_ms;
    bool newer;        /* the shard has a staged generation beside ours */
    uint64_t revision; /* revision of the spec that the shard has; 0: not known */
    /* The job's version when the shard's first layout came into force: the shard has nothing of that
     * version or older ones. 0.0: the shard was part of the job from the beginning. */
    struct cairn_version joined_at;
    struct step_ring times;
    struct coord_part_tiles tiles;
    struct coord_part_results results;
    double weight; /* its weight in the re-sharding under way; 0: everything moves off it */
    bool lost;     /* lost in the slice under way: taking the slice back leaves it out */
};

/* Numbers that are durable before they are used, so that no restart or restore uses one a second time. */
struct coord_reserved {
    uint64_t generation; /* generations up to this one may have been used */
    uint64_t round;      /* round numbers up to this one may have been used */
    /* leases.c: generations up to this one are being written to the store; 0: none */
    uint64_t asked;
};

/* The spec and the layout that the planner made, in their packed form, as sent to shards and
 * members. */
struct coord_planned {
    struct packed *spec, *layout; /* held */
    double heaviest_over_mean; /* ratio of the largest to the mean number of bytes of the shards */
    uint64_t *shard_bytes; /* owned: [layout->shard_count] bytes of state; NULL: not counted yet */
};

struct coord_job {
    struct coord_job *next; /* in the cluster's list, by name */
    struct coord *cluster;
    uint64_t id;
    enum coord_job_state state;
    bool restoring; /* CREATING from a snapshot */
    bool dropping;  /* CREATING, and being deleted from the store: its shards are told after that */
    bool stored;    /* in the store, or being written to it */
    bool initialized; /* the initial state is complete and durable */
    /* the job was loaded from the store, and its shards have not reported yet */
    bool version_unknown;
    uint64_t generation, epoch;
    uint64_t base_step; /* the step at which the generation began */
    struct origin origin;
    char made_by[CAIRN_NAME_MAX + 16]; /* its maker, until the event of its creation names it */
    struct coord_reserved reserved;

    struct job_spec_data spec; /* owned */
    struct layout *layout;     /* owned */
    /* owned: [shard_room], by index in the layout; after those of the layout come the shards that join */
    struct coord_job_shard *shards;
    /* the shards that there are, and the most that there may ever be: no index is used a second time */
    uint32_t shard_count, shard_room;
    uint32_t entry_count; /* shards without the holes */
    struct coord_planned planned;

    struct round_machine *core; /* NULL in CREATING; dead in LOST, unless loss.may_return */
    /* each is used by its module alone */
    struct coord_rounds rounds;
    struct coord_halts halts;
    struct coord_straggler straggler;
    struct coord_pace pace;
    struct coord_groups *groups; /* owned; NULL: the job had no groups yet */
    struct coord_job_members members;
    struct coord_tiles tiles;
    struct coord_gate gate;
    struct coord_leases leases;
    struct coord_snapshots snapshots;
    struct coord_parting parting;
    struct coord_init init;
    struct coord_amends amends;
    struct coord_extension extension;
    struct coord_park park;
    struct coord_layouts layouts;
    struct coord_reshard reshard;
    struct coord_loss loss;
};

/* The number of shards that may join a job after it is created, or loaded from the store, until the next
 * restore or start. */
#define CAIRN_JOB_JOINS_MAX 1024
/* Makes room for shard_room shards in all. False: no memory. */
bool coord_job_shards_init(struct coord_job *job, uint32_t shard_room);
/* Puts a shard at that index of the job, or (NULL) leaves a hole there. */
void coord_job_set_shard(struct coord_job *job, uint32_t shard, struct coord_shard_entry *entry);
/* Each shard of the job by its index: those of the layout in force and those that join. A shard that was
 * drained leaves a hole, which owns nothing and has no entry; holes are skipped. */
#define CAIRN_EACH_SHARD(job, i)                                              \
    for (uint32_t i = coord_job_shard_from((job), 0); i < (job)->shard_count; \
         i = coord_job_shard_from((job), i + 1))
/* Returns the first index from `index` on that has an entry; shard_count: none has. */
uint32_t coord_job_shard_from(const struct coord_job *job, uint32_t index);
/* Returns a bitmap of the holes among the first shard_count shards (server/core/holes.h), malloc'ed. NULL:
 * no memory. */
uint8_t *coord_holes(const struct coord_job *job, uint32_t shard_count);
/* True: the layout in force has that shard, so rounds need it. */
bool coord_job_in_force(const struct coord_job *job, uint32_t shard);

/* NULL: no job has that name. */
struct coord_job *coord_job_find(struct coord *cluster, const char *name);
/* The same for a request, which is answered with an error if no job has that name. */
struct coord_job *coord_job_named(struct coord_session *session, uint32_t request,
                                  const char *name);
struct coord_job *coord_job_by_id(const struct coord *cluster, uint64_t id);
/* Adds the job to the cluster's list, and removes it. */
void coord_job_link(struct coord_job *job);
void coord_job_unlink(struct coord_job *job);
const char *coord_job_state_name(const struct coord_job *job);
struct cairn_version coord_job_version(const struct coord_job *job);
/* True: the job is LOST, and only a restore brings it back. */
bool coord_job_dead(const struct coord_job *job);
struct coord_member *coord_job_member(struct coord_job *job, uint64_t id);
/* True: the job has a part on that shard, or is to have one. */
bool coord_job_has_shard(const struct coord_job *job, const struct coord_shard_entry *entry);
/* True: the layout is changing or not settled; whatever needs a stable layout must wait. */
bool coord_job_moves(const struct coord_job *job);
/* Returns the layout, borrowed, in which the newest version is published once the next layout takes effect,
 * at version `now`; *shards_out is its number of shards. NULL: that is the next layout itself. */
struct packed *coord_job_before_next(const struct coord_job *job, struct cairn_version now,
                                     uint32_t *shards_out);
bool coord_job_shards_up(const struct coord_job *job);
/* The shard is back: returns whether its address differs from what the members were told. Notes the present
 * address. */
bool coord_job_shard_moved(struct coord_job_shard *shard);

/* Sends a message to all shards of the layout in force that are up. */
void coord_job_send_all(struct coord_job *job, uint16_t type, const ProtobufCMessage *message);
/* Sends JobDrop, and does not wait for Done. */
void coord_job_send_drop(struct coord *cluster, struct coord_shard_entry *entry, uint64_t job_id);
/* The names and addresses of the shards, as messages; the texts are borrowed from the entries. */
struct coord_shard_infos {
    Cairn__ShardInfo *infos; /* owned, [shard_count], by index */
    Cairn__ShardInfo **list; /* owned, [count], without holes */
    size_t count;
};
/* Lists the shards whose index is below shard_count. False: no memory. */
bool coord_shard_infos_init(struct coord_shard_infos *infos, const struct coord_job *job,
                            uint32_t shard_count);
void coord_shard_infos_release(struct coord_shard_infos *infos);

/* ==== member ==== */

/* A worker's or reader's membership in a job, owned by its session. A waiting request is stored as its
 * request id (0 = none), with one slot for each kind, so that a peer cannot pile them up. */

enum coord_member_phase {
    CAIRN_MEMBER_PAGES,    /* its spec is arriving */
    CAIRN_MEMBER_JUDGED,   /* a thread reads its spec, or compares it with the job's */
    CAIRN_MEMBER_WAITING,  /* it waits for the job to be created or restored */
    CAIRN_MEMBER_JOINING,  /* the shards are being told of it */
    CAIRN_MEMBER_ATTACHED, /* a worker: known to the core */
};

struct coord_member {
    struct coord_member *next_of_session, *next_of_job, *next_of_bucket;
    struct coord_session *session;
    struct coord_job *job; /* while JOINING or ATTACHED */
    enum coord_member_phase phase;
    uint64_t id, token, job_id;
    uint32_t role, rank;
    char *job_name; /* owned */
    /* owned: [shard_count], enum member_known in members.c; followed by tiles.known_to */
    uint8_t *known_to;
    uint32_t open_request, begin_request;
    uint64_t attached_ms;   /* coord_now_ms: when it attached, if it has */
    uint64_t attach;        /* the count of job->members.attaches when it attached */
    bool has_ended_round;   /* a round that it took part in has ended since it attached */
    uint64_t opened_round;  /* the last opened round that it was told of */
    uint32_t in_flight;     /* bits of enum in_flight, from its last heartbeat */
    struct step_ring times; /* workers only */
    uint64_t read_bytes; /* bytes of published memory that it read by itself, as it last reported */
    /* each is used by its module alone */
    struct coord_opening opening;
    struct coord_member_tiles tiles;
    struct coord_pause pause;
    struct coord_member_init init;
    struct coord_write write;
    struct coord_amend_wait amend;
    struct coord_commits commits;
    struct coord_version_waits waits;
};

/* ==== jobs ==== */

/* Jobs are created, loaded after a start, and dropped. */

#define CAIRN_JOBS_MAX 1024

/* Makes a job from a row of the store; or from each row. */
cairn_status coord_job_load(struct coord *cluster, const struct stored_job *row,
                            struct sentence *why);
cairn_status coord_jobs_load(struct coord *cluster, struct sentence *why);
/* Begins to create the job whose spec is `packed`: a thread plans it, the shards make room, and it is
 * stored. Members that wait for the job are then told. `generation` is explained at first_generation of
 * openings.c; `maker` is the session that wants the job. CAIRN_ERR_REFUSED, CAIRN_ERR_UNSUPPORTED,
 * CAIRN_ERR_NO_MEMORY: nothing was begun. */
CAIRN_MUST_CHECK cairn_status coord_job_create(struct coord *cluster,
                                               const struct job_spec_data *spec,
                                               uint64_t generation, struct packed *packed,
                                               const char *maker, struct sentence *why);
/* True: a thread is planning a job of that name. */
bool coord_job_planning(const struct coord *cluster, const char *name);
/* Deletes the job from the store, then frees it here and on its shards; until then it is CREATING. It must
 * have no members. */
void coord_job_drop(struct coord_job *job);
void coord_job_free(struct coord_job *job);
/* Refuses a spec or a layout that is too large to be sent, before it is stored: CAIRN_ERR_INVALID. */
CAIRN_MUST_CHECK cairn_status coord_judge_packed(const char *job, const struct packed *packed,
                                                 struct sentence *why);
/* A job that is planned but not known to anybody yet, over as many shards as `shards` of the configuration
 * says, and as many more as are connected and see the snapshots. */
struct coord_draft {
    struct coord_job *job; /* owned; NULL: none */
    uint32_t shard_count;
};
/* Opens the draft of a job that is to be restored, over all shards that fit. False: no memory. */
bool coord_draft_open(struct coord_draft *draft, struct coord *cluster,
                      const struct job_spec_data *spec);
/* Plans the draft's spec and layout. Any thread: a million tensors take seconds. */
cairn_status coord_draft_plan(struct coord_draft *draft, const struct job_spec_data *spec,
                              struct sentence *why) CAIRN_MUST_CHECK;
/* Gives the draft its shards, and the job to the caller. CAIRN_ERR_NOT_READY: too few shards are connected,
 * or some have left since. */
cairn_status coord_draft_take(struct coord_draft *draft, struct coord_job **job_out,
                              struct sentence *why) CAIRN_MUST_CHECK;
void coord_draft_close(struct coord_draft *draft);
/* The fields of a JobCreate message. */
struct coord_create {
    bool extend; /* the part is made from the one that the shard has */
    bool joins;  /* a part that owns nothing, of a running job that the shard joins */
    const char *snapshot_path;
    /* number for the SnapshotParts with the digests of what was loaded; 0: none are wanted */
    uint64_t digest;
    struct cairn_version version;
    const struct decision *last; /* may be NULL */
};
/* Sends JobCreate and its pages to all shards of the job, as calls of the gather, which the caller
 * starts. */
void coord_job_send_create(struct coord_job *job, const struct coord_create *load,
                           struct coord_gather *gather);
/* Sends them to one shard, with that index and that layout. */
void coord_job_ask_create(const struct coord_job *job, const struct coord_create *load,
                          uint32_t shard, struct coord_shard_entry *entry, struct packed *layout,
                          struct coord_gather *gather);
/* All shards have made their part: checks that each is still the process that did. CAIRN_ERR_CLOSED: `why`
 * says which is not. */
cairn_status coord_job_judge_shards(const struct coord_job *job,
                                    struct sentence *why) CAIRN_MUST_CHECK;

/* parts.c */
extern const struct coord_callbacks coord_job_callbacks;
/* reshard.c: opens the core, and the machine that moves its layouts. */
cairn_status coord_job_core_open(struct coord_job *job, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== bytes ==== */

/* The bytes of a job, and the memory it takes, as its shards report them, added up for status requests.
 * Loop thread only. */

#define CAIRN_BYTES_WORKERS_SHOWN 64
#define CAIRN_MEMORY_TOLD_MAX     1024 /* the most jobs that a shard reports */

struct bytes_view {
    size_t count; /* the first entry is for all members, then come workers by rank */
    Cairn__BytesTold told[1 + CAIRN_BYTES_WORKERS_SHOWN];
    Cairn__BytesTold *list[1 + CAIRN_BYTES_WORKERS_SHOWN];
};

/* Replaces what the entry's shard reported before; if there is no memory, nothing is kept. */
void coord_bytes_take(struct coord_shard_entry *entry, const Cairn__Heartbeat *message);
/* Notes how many bytes a worker or reader says that it has read by itself. The count never goes down. */
void coord_bytes_read(struct coord_member *member, uint64_t bytes);
/* Adds up what the job's shards and members last reported; returns the entry for all members. `out` points
 * into itself: do not move it. */
const Cairn__BytesTold *coord_bytes_of(const struct coord_job *job, struct bytes_view *out);

struct memory_view {
    Cairn__MemoryTold *told;  /* owned: [the job's entry_count], by index */
    Cairn__MemoryTold **list; /* owned: [entry_count], points into `told` */
    size_t count;             /* 0: no memory */
    uint64_t sum;
};
/* Lists the memory that the job's shards last reported. The names are borrowed; release the list with
 * coord_memory_release. */
void coord_memory_of(const struct coord_job *job, struct memory_view *out);
void coord_memory_release(struct memory_view *view);

/* ==== missed ==== */

/* How many steps each tensor of a job has missed (server/core/decision.h), when the job's tensors
 * change. */

/* Moves what the tensors of a new job missed before its first step out of its spec and into a payload for
 * its shards: *payload_out is malloc'ed, *bytes_out long; NULL and 0 if nothing was missed.
 * CAIRN_ERR_INVALID: the tensors have more different counts than can be sent. CAIRN_ERR_NO_MEMORY. Any
 * thread. */
cairn_status coord_missed_begin(struct job_spec_data *spec, uint8_t **payload_out,
                                size_t *bytes_out, struct sentence *why) CAIRN_MUST_CHECK;
/* Gives `last`, the last decision of the job, a payload for a next generation with the tensors of `next`:
 * *payload_out, malloc'ed. A tensor that was not trained so far has missed all steps. CAIRN_ERR_INVALID:
 * tensors would have more different counts than can be sent. CAIRN_ERR_NO_MEMORY. */
cairn_status coord_missed_extend(const struct coord_job *job, const struct job_spec_data *next,
                                 struct decision *last, uint8_t **payload_out,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* Checks an amendment of the job to the groups and tensors of `next`. It fails as
 * coord_missed_extend does. */
cairn_status coord_missed_judge(const struct coord_job *job, const struct job_spec_data *next,
                                struct sentence *why) CAIRN_MUST_CHECK;

/* ==== parts ==== */

/* The parts of jobs, as shards connect and disconnect. */

/* The shard has connected and says what it holds (held), or it is gone. */
void coord_jobs_shard_up(struct coord *cluster, struct coord_shard_entry *entry,
                         Cairn__HeldJob *const *held, size_t held_count);
void coord_jobs_shard_down(struct coord *cluster, struct coord_shard_entry *entry);
/* A shard, or a member ("worker"), has seen that epoch of the job. If our store does not know that epoch,
 * the store is an older copy, and nothing is done with the job. */
void coord_job_seen(struct coord_job *job, const char *kind, const char *name, uint64_t epoch);
/* Makes the job LOST if a part has been missing for too long, until the part is back. */
void coord_job_parts_tick(struct coord_job *job);

/* ==== settings ==== */

/* Settings of an amendment, or of a job that is made from a snapshot (proto/spec/spec.h). */

/* The purpose of the settings: it decides which changes are allowed. */
enum settings_purpose {
    /* the job continues: a change that needs a new job is refused, and the command for it is named */
    CAIRN_SETTINGS_AMEND,
    CAIRN_SETTINGS_CREATE
};
/* Applies the settings to `next`, a copy of the job's or the snapshot's spec, and makes it canonical. Does
 * not judge the result as a whole. Sets *reopens_out if a new generation is needed, else leaves it. */
cairn_status coord_settings_apply(struct job_spec_data *next, Cairn__Setting *const *settings,
                                  size_t count, enum settings_purpose purpose, bool *reopens_out,
                                  struct sentence *why) CAIRN_MUST_CHECK;
/* Checks that the planes of the groups' tensors stay the same, because they exist on the shards or in the
 * snapshot already. */
cairn_status coord_settings_judge_planes(const struct job_spec_data *was,
                                         const struct job_spec_data *next,
                                         struct sentence *why) CAIRN_MUST_CHECK;
/* Adapts the payload of the job's last decision to other terms: a loss scale that is set begins anew, and a
 * trainer's state is kept, if the terms have room for it (else CAIRN_ERR_INVALID). The payload of `last` is
 * replaced by *owned_out (malloc'd, the caller's), or kept if that is NULL. */
cairn_status coord_settings_payload(const struct job_spec_data *was,
                                    const struct job_spec_data *next, struct decision *last,
                                    uint8_t **owned_out, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== drop ==== */

/* A job is dropped because an operator asks for it. */

void coord_job_remove(struct coord_session *session, uint32_t request,
                      const Cairn__JobRemove *message);
/* Called after the sessions and the saves are closed: no answer can reach the drops that are left. */
void coord_drops_close(struct coord *cluster);

#endif
