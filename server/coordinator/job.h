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

/* Openings: workers and readers on their way into a job. */

/* A member's JobOpen, until the member is ATTACHED. */
struct coord_opening {
    struct paged pages;        /* owned; in PAGES */
    struct packed *packed;     /* held: the spec as it came; NULL: a reader's, or not whole yet */
    struct job_spec_data spec; /* owned; a reader's has no name */
    /* held: the job's spec that this one was compared with; NULL: none yet */
    struct packed *compared;
    bool joins;                     /* that spec is the same, or was */
    struct sentence differences;    /* unless it joins */
    Cairn__Error *rows;             /* owned: the same, a Difference each; NULL: it joins */
    uint32_t launch, start_wait_ms; /* JobOpen.world: so many came together; 0: not said */
    uint64_t attached_id;           /* of the job that it was a member of already; 0: of none */
    uint64_t seen_epoch;            /* of that job, under a store of our identity; 0: none */
    bool must_exist;                /* it begins no job */
    bool resumes;                   /* without the job it wants the newest snapshot restored */
    bool must_not_exist;            /* it joins none that has taken a step */
    bool takes_over;                /* a rank from a worker that lives */
    uint32_t restarts;              /* of the launcher's run */
    uint64_t run;                   /* 0: not known */
    uint64_t contested_ms; /* since when it waits for its rank (now_ms + 1); 0: it does not */
    bool put_off;          /* it failed too often: members.h */
};

/* The cluster's openings. The flags keep coord_openings_advance from being entered
 * twice. */
struct coord_openings {
    bool advancing, again;
    struct coord_plan *plans; /* jobs.c: jobs that a thread plans */
    bool contested;           /* one waits for its rank to be free, or is put off */
};

/* JobOpen: answered at once, or when the job is there. */
void coord_member_open(struct coord_session *session, uint32_t request,
                       const Cairn__JobOpen *message);
/* A page of the spec that a JobOpen announced. */
void coord_member_page(struct coord_session *session, uint32_t request, const Cairn__Page *page);
/* The spec's bounds of workers are within round.workers_max. CAIRN_ERR_INVALID. */
cairn_status coord_judge_workers(const struct coord *cluster, const struct job_spec_data *spec,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* Who waits for a job looks again: a shard came, a job was made, restored or dropped. */
void coord_openings_advance(struct coord *cluster);
/* Whoever waits for a rank does not wait for ever. */
void coord_openings_tick(struct coord *cluster);
/* The restore that the job's openers wished has ended. CAIRN_OK: the job is there, or there is nothing to
 * restore it from; with another status the openers are refused. */
void coord_openers_resumed(struct coord *cluster, const char *name, cairn_status status,
                           const char *text);
/* Does the spec of an opener join a job that is to be restored? */
struct coord_verdict;
/* Adds to the list the specs of those who wish that the job is restored. True: some are new. */
bool coord_openers_list(struct coord *cluster, const char *name, struct coord_verdict **list);
/* Compares those that were not yet with what is to be restored. Any thread. */
void coord_verdicts_judge(struct coord_verdict *list, const struct job_spec_data *saved);
void coord_verdicts_free(struct coord_verdict *list);
/* The snapshot is to be restored for the openers who wish it, all of whom are in the list: refuses who came
 * with another spec. CAIRN_ERR_MISMATCH: all of them did. */
cairn_status coord_openers_judge(struct coord *cluster, const char *name,
                                 struct coord_verdict *list, struct sentence *why) CAIRN_MUST_CHECK;
/* The job could not be made: its openers hear why. */
void coord_job_openers_fail(struct coord *cluster, const char *name, cairn_status status,
                            const char *text);

/* ==== init ==== */

/* The initial state of a job: who put it, whether all put the same, and its seal. */

#define CAIRN_INIT_DIGEST_BYTES 32
/* The digest of the initial state that a rank has, as that rank reports it. */
struct init_digest {
    bool known;
    uint8_t bytes[CAIRN_INIT_DIGEST_BYTES];
    uint32_t rank;
};

/* A job's initial state. Digests are kept while this coordinator lives. */
struct coord_init {
    bool seal_wanted, seal_running; /* the source said InitDone; the shards are asked */
    bool sourced;        /* a source said InitDone; with tiles the others put theirs, too */
    uint64_t moments_of; /* the member that put moments, too; 0: none did */
    struct init_digest source, given; /* what the source put, and what the callers gave */
    /* owned: what its tensors have missed before it began, until it is made; NULL: nothing */
    uint8_t *payload;
    size_t payload_bytes;
};

/* A member's InitDone. */
struct coord_member_init {
    uint32_t request;          /* InitDone */
    struct init_digest digest; /* of what it put */
    uint8_t *held;             /* owned: InitDone.held, [tensor_count]; NULL: not to be compared */
};

void coord_member_init_done(struct coord_member *member, uint32_t request,
                            const Cairn__InitDone *message);
/* Seals it, if that is wanted and all shards are there. */
void coord_job_try_seal(struct coord_job *job);

/* ==== loss ==== */

/* A job is lost, or behind its shards: why, and what comes next. */

#define CAIRN_RESTORES_MAX 3

/* How a lost job is being restored by itself: see restore.h. */
struct coord_recovery {
    uint32_t restores;            /* begun without a step applied in between */
    struct snapshot_place behind; /* the oldest that was found damaged */
    uint64_t retry_ms;            /* coord_now_ms: not before */
    uint64_t lost_ms;             /* coord_now_ms: the job was */
    char why[300];                /* the job was lost */
    struct sentence damaged;      /* the newest of those, and how; while behind.id says one */
    bool running, gave_up;
    bool passed; /* gave_up: there are snapshots, of which none may be taken unasked */
    bool begun;  /* one has replaced the job: no part comes back by itself */
    bool unseen; /* a shard did not see the snapshot: its storage is waited for */
    bool waited; /* it was pending with the last tick */
};

/* A job's loss, and its recovery. */
struct coord_loss {
    struct sentence why; /* "lost: ...", "behind: ..." */
    bool may_return;     /* LOST for want of parts only: the core lives */
    bool behind;         /* LOST, since our store is an older copy: until it is adopted */
    struct coord_recovery recovery;
};

/* Its members are expelled. may_return: its core goes on hearing of shards, for the parts may come back. */
void coord_job_lose(struct coord_job *job, bool may_return, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A shard, or a member ("worker"), has seen more of it than our store knows of, in `what`: nothing is done
 * until it is adopted. */
void coord_job_behind(struct coord_job *job, const char *kind, const char *name, const char *what);

/* ---- on_shard_loss ---- */

/* Over so many shards at least: cluster.shards, less those that it was moved off; after cluster.shards_wait
 * as many as are here, at least cluster.shards_min. */
uint32_t coord_recovery_shards(const struct coord_job *job);
/* The job is LOST, and will be restored by itself: nobody need give it up yet. */
bool coord_recovery_pending(const struct coord_job *job);
/* Says what comes next for a job that is LOST, or what an operator is to do. The text follows
 * "lost: WHY; ". */
void coord_recovery_advise(const struct coord_job *job, struct sentence *out);

/* ==== job ==== */

/* The initial state is missing until INITIALIZING ends; `restoring` and `dropping` say more of CREATING. */
enum coord_job_state {
    CAIRN_CLUSTER_JOB_CREATING, /* shards make room, or are to give it back (dropping); no core */
    CAIRN_CLUSTER_JOB_INITIALIZING, /* the source puts */
    CAIRN_CLUSTER_JOB_RUNNING,
    CAIRN_CLUSTER_JOB_LOST, /* `loss` says why, and until when */
};

/* A shard's part of a job. */
struct coord_job_shard {
    struct coord_shard_entry *entry; /* NULL: a hole, see CAIRN_EACH_SHARD */
    bool up;                         /* as the core knows it */
    uint64_t incarnation;            /* of the shard when JobCreate was sent */
    uint64_t address_sent;           /* hash of the fabric address that members know; 0: none yet */
    uint64_t missed_ms;   /* coord_now_ms: its shard came without the part; 0: it did not */
    uint64_t patience_ms; /* the part may be missed for so long; then the job is LOST */
    /* coord_now_ms: since then loss.c sees it away; 0: it is not */
    uint64_t away_ms;
    bool newer;        /* the shard has a staged generation beside ours */
    uint64_t revision; /* of the spec that the shard has; 0: not known */
    /* The job's version when the shard's first layout came into force: of that and older ones it has nothing.
     * 0.0: it was there from the beginning. */
    struct cairn_version joined_at;
    struct step_ring times;
    struct coord_part_tiles tiles;
    struct coord_part_results results;
    double weight; /* of the re-sharding under way; 0: all goes off it */
    bool lost;     /* in the slice under way: the way back leaves it out */
};

/* Numbers that are durable before they are used, so that no restart or restore takes one again. */
struct coord_reserved {
    uint64_t generation; /* generations up to this one may have been used */
    uint64_t round;      /* round numbers likewise */
    /* leases.c: generations up to this one are on their way to the store; 0: none */
    uint64_t asked;
};

/* The spec and the layout that the planner made, in their packed form, as sent to shards and
 * members. */
struct coord_planned {
    struct packed *spec, *layout; /* held */
    double heaviest_over_mean;    /* of the bytes of the shards */
    uint64_t *shard_bytes;        /* owned: [layout->shard_count] of state; NULL: not counted yet */
};

struct coord_job {
    struct coord_job *next; /* of the cluster's list, by name */
    struct coord *cluster;
    uint64_t id;
    enum coord_job_state state;
    bool restoring; /* CREATING from a snapshot */
    bool dropping;  /* CREATING, and on its way out of the store: then its shards hear of it, too */
    bool stored;    /* in the store, or on its way there */
    bool initialized;     /* the initial state is there, and durable */
    bool version_unknown; /* the job comes from the store, and its shards were not heard yet */
    uint64_t generation, epoch;
    uint64_t base_step; /* at which the generation began */
    struct origin origin;
    char made_by[CAIRN_NAME_MAX + 16]; /* until the event of its creation says it */
    struct coord_reserved reserved;

    struct job_spec_data spec; /* owned */
    struct layout *layout;     /* owned */
    /* owned: [shard_room], by index in the layout; behind those of the layout stand the ones that join */
    struct coord_job_shard *shards;
    uint32_t shard_count,
        shard_room;       /* that there are, and may ever be: nobody's index is given anew */
    uint32_t entry_count; /* without holes */
    struct coord_planned planned;

    struct round_machine *core; /* NULL in CREATING; dead in LOST, unless loss.may_return */
    /* each is its module's own */
    struct coord_rounds rounds;
    struct coord_halts halts;
    struct coord_straggler straggler;
    struct coord_pace pace;
    struct coord_groups *groups; /* owned; NULL: there were none */
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

/* Shards that may join a job from when it is made, or found in the store, until the next restore or start. */
#define CAIRN_JOB_JOINS_MAX 1024
/* Room for so many shards in all. False: no memory. */
bool coord_job_shards_init(struct coord_job *job, uint32_t shard_room);
/* A shard takes its place in the job, or (NULL) leaves a hole. */
void coord_job_set_shard(struct coord_job *job, uint32_t shard, struct coord_shard_entry *entry);
/* Each shard of the job by its index: those of the layout in force and those that join. A shard that was
 * drained leaves a hole, which owns nothing and has no entry; it is passed over. */
#define CAIRN_EACH_SHARD(job, i)                                              \
    for (uint32_t i = coord_job_shard_from((job), 0); i < (job)->shard_count; \
         i = coord_job_shard_from((job), i + 1))
/* The first that has an entry, from `index` on; shard_count: there is none. */
uint32_t coord_job_shard_from(const struct coord_job *job, uint32_t index);
/* A bit for each hole among the first shard_count shards (server/core/holes.h), malloc'ed. NULL: no
 * memory. */
uint8_t *coord_holes(const struct coord_job *job, uint32_t shard_count);
/* The layout in force has that shard: rounds count on it. */
bool coord_job_in_force(const struct coord_job *job, uint32_t shard);

/* NULL: there is none. */
struct coord_job *coord_job_find(struct coord *cluster, const char *name);
/* The same for a request, which is answered where there is none. */
struct coord_job *coord_job_named(struct coord_session *session, uint32_t request,
                                  const char *name);
struct coord_job *coord_job_by_id(const struct coord *cluster, uint64_t id);
/* Into the list of the cluster's jobs, and out of it. */
void coord_job_link(struct coord_job *job);
void coord_job_unlink(struct coord_job *job);
const char *coord_job_state_name(const struct coord_job *job);
struct cairn_version coord_job_version(const struct coord_job *job);
/* LOST, and a restore alone ends it. */
bool coord_job_dead(const struct coord_job *job);
struct coord_member *coord_job_member(struct coord_job *job, uint64_t id);
/* The job has a part on that entry, or is to have one. */
bool coord_job_has_shard(const struct coord_job *job, const struct coord_shard_entry *entry);
/* A layout is on its way or not settled: what needs one that stands still waits. */
bool coord_job_moves(const struct coord_job *job);
/* In what the newest version is published when the next layout is in force, which it is to be at `now`:
 * *shards_out of its shards; NULL: that one itself. Borrowed. */
struct packed *coord_job_before_next(const struct coord_job *job, struct cairn_version now,
                                     uint32_t *shards_out);
bool coord_job_shards_up(const struct coord_job *job);
/* The shard is back: has it another address than the members were told? Notes the present one. */
bool coord_job_shard_moved(struct coord_job_shard *shard);

/* To all shards of the layout in force that are up. */
void coord_job_send_all(struct coord_job *job, uint16_t type, const ProtobufCMessage *message);
/* JobDrop, whose Done nobody waits for. */
void coord_job_send_drop(struct coord *cluster, struct coord_shard_entry *entry, uint64_t job_id);
/* Where the shards are, as messages; the addresses are borrowed from the entries. */
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

/* A worker or reader and a job. Owned by its session. A request that waits is its request id; 0 = none: one
 * slot each, so that a peer cannot pile them up. */

enum coord_member_phase {
    CAIRN_MEMBER_PAGES,    /* its spec is on its way */
    CAIRN_MEMBER_JUDGED,   /* a thread reads its spec, or compares it with the job's */
    CAIRN_MEMBER_WAITING,  /* for the job to be made or restored */
    CAIRN_MEMBER_JOINING,  /* the shards are told of it */
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
    /* owned: [shard_count], enum member_known in members.c; tiles.known_to behind it */
    uint8_t *known_to;
    uint32_t open_request, begin_request;
    uint64_t attached_ms;   /* coord_now_ms; of one that is attached */
    uint64_t attach;        /* of job->members.attaches: its own */
    bool has_ended_round;   /* a round that it was in has ended, since it attached */
    uint64_t opened_round;  /* the last that it was told of */
    uint32_t in_flight;     /* bits of enum in_flight, of its last heartbeat */
    struct step_ring times; /* of a worker */
    uint64_t read_bytes;    /* of published memory, by itself: as it told last */
    /* each is its module's own */
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

/* Jobs are made, found again after a start, and dropped. */

#define CAIRN_JOBS_MAX 1024

/* A row of the store becomes a job; or all rows do. */
cairn_status coord_job_load(struct coord *cluster, const struct stored_job *row,
                            struct sentence *why);
cairn_status coord_jobs_load(struct coord *cluster, struct sentence *why);
/* Begins to make the job that `packed` is the spec of: a thread plans it, the shards make room,
 * and it is stored. Members that wait for the job then hear of it. `generation` is explained at
 * first_generation of openings.c; `maker` is the session that wants the job. CAIRN_ERR_REFUSED,
 * CAIRN_ERR_UNSUPPORTED, CAIRN_ERR_NO_MEMORY: nothing was begun. */
CAIRN_MUST_CHECK cairn_status coord_job_create(struct coord *cluster,
                                               const struct job_spec_data *spec,
                                               uint64_t generation, struct packed *packed,
                                               const char *maker, struct sentence *why);
/* A thread plans a job of that name. */
bool coord_job_planning(const struct coord *cluster, const char *name);
/* Takes the job out of the store, then frees it here and on its shards; until then it is CREATING. Its
 * members must be gone. */
void coord_job_drop(struct coord_job *job);
void coord_job_free(struct coord_job *job);
/* A spec or a layout that nobody could take is refused before it is stored: CAIRN_ERR_INVALID. */
CAIRN_MUST_CHECK cairn_status coord_judge_packed(const char *job, const struct packed *packed,
                                                 struct sentence *why);
/* A job that nobody knows yet, over as many shards as `shards` of the configuration says, and as many more as
 * are here and see the snapshots. */
struct coord_draft {
    struct coord_job *job; /* owned; NULL: there is none */
    uint32_t shard_count;
};
/* Opens a draft of a job that is to be restored, over all shards that fit. False: no memory. */
bool coord_draft_open(struct coord_draft *draft, struct coord *cluster,
                      const struct job_spec_data *spec);
/* Spec and layout. Any thread: a million tensors take seconds. */
cairn_status coord_draft_plan(struct coord_draft *draft, const struct job_spec_data *spec,
                              struct sentence *why) CAIRN_MUST_CHECK;
/* Its shards: the job is the caller's. CAIRN_ERR_NOT_READY: there are not so many, or not any more. */
cairn_status coord_draft_take(struct coord_draft *draft, struct coord_job **job_out,
                              struct sentence *why) CAIRN_MUST_CHECK;
void coord_draft_close(struct coord_draft *draft);
/* The fields of a JobCreate message. */
struct coord_create {
    bool extend; /* made of the part that the shard has */
    bool joins;  /* a part that owns nothing, of a job that goes on */
    const char *snapshot_path;
    uint64_t digest; /* of a SnapshotPart of what was loaded; 0: none is wanted */
    struct cairn_version version;
    const struct decision *last; /* may be NULL */
};
/* JobCreate and its pages to all shards of the job. Asks them with the gather, which the caller starts. */
void coord_job_send_create(struct coord_job *job, const struct coord_create *load,
                           struct coord_gather *gather);
/* The same to one shard, of that index and in that layout. */
void coord_job_ask_create(const struct coord_job *job, const struct coord_create *load,
                          uint32_t shard, struct coord_shard_entry *entry, struct packed *layout,
                          struct coord_gather *gather);
/* All shards have made their part: is each still the process that did? CAIRN_ERR_CLOSED: `why` says which is
 * not. */
cairn_status coord_job_judge_shards(const struct coord_job *job,
                                    struct sentence *why) CAIRN_MUST_CHECK;

/* parts.c */
extern const struct coord_callbacks coord_job_callbacks;
/* reshard.c: opens the core, and what its layouts move by. */
cairn_status coord_job_core_open(struct coord_job *job, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== bytes ==== */

/* Bytes of a job, and the memory it takes, as its shards tell of them, added up for those who ask. Loop
 * thread only. */

#define CAIRN_BYTES_WORKERS_SHOWN 64
#define CAIRN_MEMORY_TOLD_MAX     1024 /* jobs of a shard */

struct bytes_view {
    size_t count; /* the first is of all members, then workers by rank */
    Cairn__BytesTold told[1 + CAIRN_BYTES_WORKERS_SHOWN];
    Cairn__BytesTold *list[1 + CAIRN_BYTES_WORKERS_SHOWN];
};

/* Keeps what the entry's shard told, instead of what it told before; without memory nothing. */
void coord_bytes_take(struct coord_shard_entry *entry, const Cairn__Heartbeat *message);
/* Notes how much a worker or reader says that it has read by itself. The count never goes down. */
void coord_bytes_read(struct coord_member *member, uint64_t bytes);
/* Adds up what the job's shards and members told last; of all members is returned. Borrows itself: do not
 * move it. */
const Cairn__BytesTold *coord_bytes_of(const struct coord_job *job, struct bytes_view *out);

struct memory_view {
    Cairn__MemoryTold *told;  /* owned: [entry_count] of the job, by index */
    Cairn__MemoryTold **list; /* owned: [entry_count], to these */
    size_t count;             /* 0: no memory */
    uint64_t sum;
};
/* Lists the memory that the job's shards told last. The names are borrowed; the list is released
 * with coord_memory_release. */
void coord_memory_of(const struct coord_job *job, struct memory_view *out);
void coord_memory_release(struct memory_view *view);

/* ==== missed ==== */

/* How many steps passed a job's tensors by (server/core/decision.h), where its tensors become others. */

/* Moves what the tensors of a new job missed before its first step out of its spec and into a
 * payload for its shards: *payload_out is malloc'ed, *bytes_out long; NULL and 0 if nothing was
 * missed. CAIRN_ERR_INVALID: the tensors stand at more different counts than can be told.
 * CAIRN_ERR_NO_MEMORY. Any thread. */
cairn_status coord_missed_begin(struct job_spec_data *spec, uint8_t **payload_out,
                                size_t *bytes_out, struct sentence *why) CAIRN_MUST_CHECK;
/* The last decision of the job, `last`, gets a payload for a next generation with the tensors of
 * `next`: *payload_out, malloc'ed. A tensor that was not trained so far has missed all steps.
 * CAIRN_ERR_INVALID: tensors would stand at more counts than can be told. CAIRN_ERR_NO_MEMORY. */
cairn_status coord_missed_extend(const struct coord_job *job, const struct job_spec_data *next,
                                 struct decision *last, uint8_t **payload_out,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* Checks an amendment of the job to the groups and tensors of `next`. It fails as
 * coord_missed_extend does. */
cairn_status coord_missed_judge(const struct coord_job *job, const struct job_spec_data *next,
                                struct sentence *why) CAIRN_MUST_CHECK;

/* ==== parts ==== */

/* The parts of jobs, while shards come and go. */

/* The shard is there and says what it holds (held), or it is gone. */
void coord_jobs_shard_up(struct coord *cluster, struct coord_shard_entry *entry,
                         Cairn__HeldJob *const *held, size_t held_count);
void coord_jobs_shard_down(struct coord *cluster, struct coord_shard_entry *entry);
/* A shard, or a member ("worker"), has seen that epoch of the job. If our store does not know of it, that is
 * an older copy, and nothing is done with the job. */
void coord_job_seen(struct coord_job *job, const char *kind, const char *name, uint64_t epoch);
/* A part that is missing for too long makes its job LOST, until it is back. */
void coord_job_parts_tick(struct coord_job *job);

/* ==== settings ==== */

/* Settings of an amendment, or of a job that is made of a snapshot (proto/spec/spec.h). */

/* Who asks: it says which ways are open. */
enum settings_purpose {
    CAIRN_SETTINGS_AMEND, /* the job goes on: what takes a new job is refused, with its command */
    CAIRN_SETTINGS_CREATE
};
/* Does to `next`, a copy of what the job is or of what the snapshot says, what the settings say; canonical
 * after it. Not judged as a whole. *reopens_out is set if a new generation is needed, else left. */
cairn_status coord_settings_apply(struct job_spec_data *next, Cairn__Setting *const *settings,
                                  size_t count, enum settings_purpose purpose, bool *reopens_out,
                                  struct sentence *why) CAIRN_MUST_CHECK;
/* The planes of the groups' tensors stand on the shards, or in the snapshot: they are the same. */
cairn_status coord_settings_judge_planes(const struct job_spec_data *was,
                                         const struct job_spec_data *next,
                                         struct sentence *why) CAIRN_MUST_CHECK;
/* Adapts the payload of the job's last decision to other terms: a loss scale that is set begins
 * anew, and a trainer's state stays, if the terms have room for it (else CAIRN_ERR_INVALID). The
 * payload of `last` is replaced by *owned_out (malloc'd, the caller's), or stays if that is
 * NULL. */
cairn_status coord_settings_payload(const struct job_spec_data *was,
                                    const struct job_spec_data *next, struct decision *last,
                                    uint8_t **owned_out, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== drop ==== */

/* A job is dropped by the operator's word. */

void coord_job_remove(struct coord_session *session, uint32_t request,
                      const Cairn__JobRemove *message);
/* Behind the sessions and the saves: nothing comes back to those that are left. */
void coord_drops_close(struct coord *cluster);

#endif
