/* A job: its shards, its members, its core (server/core/round.h), at most one snapshot and at most one
 * restore.
 *
 * State that only one module reads and writes is a struct in the header of that module. A job is made of
 * these structs, so this header includes all those headers. */
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
#include "server/coordinator/operations.h"
#include "server/coordinator/tenants.h"
#include "server/core/decision.h"
#include "server/core/safety.h"

/* ==== openings ==== */

/* Openings: workers and readers that are joining a job. */

/* A member's JobOpen, until the member is ATTACHED. */
struct coord_opening {
    struct paged pages; /* owned: the pages of the spec, in the phase PAGES */
    /* held: the spec as received; NULL: the spec is not complete yet, or the opener is a reader without a
     * spec */
    struct packed *packed;
    struct job_spec_data spec; /* owned; the spec of a reader has no name */
    /* held: the job's spec with which the opener's spec was compared; NULL: not compared yet */
    struct packed *compared;
    bool joins; /* true: the opener's spec is the job's spec, or was an earlier one */
    struct sentence differences; /* unless `joins`: how the two specs differ */
    /* owned: the differences as a message, with a Difference for each; NULL if `joins` */
    Cairn__Error *rows;
    /* launch: JobOpen.world, the number of workers that were launched together; 0: not reported.
     * start_wait_ms: how long the first round may wait for all of them */
    uint32_t launch, start_wait_ms;
    uint64_t attached_id; /* id of the job of which the opener was a member before; 0: none */
    /* the last epoch of that job that the opener saw while the store had our store's identity; 0: none */
    uint64_t seen_epoch;
    bool must_exist; /* true: the opener creates no job */
    /* true: if the job does not exist or is lost, the opener wants the newest snapshot restored */
    bool resumes;
    bool must_not_exist; /* true: the opener joins no job that has taken a step */
    bool takes_over;     /* true: the opener takes its rank from a live worker */
    uint32_t restarts;   /* number of restarts in the launcher's run */
    uint64_t run;        /* id of the launcher's run; 0: not known */
    /* now_ms + 1: since when the opener has waited for its rank; 0: it does not wait */
    uint64_t contested_ms;
    bool put_off; /* true: the opener is put off because it failed too often (members.h) */
};

/* A job that a thread is planning (jobs.c), and that is in no list of jobs yet. The texts are borrowed. */
struct coord_planning {
    struct coord_planning *next;
    const char *name, *owner;
};

/* The cluster's openings. The flags `advancing` and `again` keep coord_openings_advance from being entered
 * twice. */
struct coord_openings {
    bool advancing, again;
    struct coord_planning *planned; /* owned by jobs.c: the jobs that threads are planning */
    bool contested; /* true: an opening waits until its rank is free, or is put off */
};

/* Takes a page of the spec that a JobOpen announced. */
void coord_member_page(struct coord_session *session, uint32_t request, const Cairn__Page *page);
/* Checks that the spec's bounds of workers are within round.workers_max. CAIRN_ERR_INVALID. */
cairn_status coord_judge_workers(const struct coord *cluster, const struct job_spec_data *spec,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* Judges the waiting openings again: a shard connected, or a job was created, restored or dropped. */
void coord_openings_advance(struct coord *cluster);
/* Ends every wait for a rank, and every read of the snapshots' folder, that has lasted too long. */
void coord_openings_tick(struct coord *cluster);
/* The verdict on whether an opener with this spec may join a job that is to be restored. */
struct coord_verdict;
/* Adds to the list the specs of the openers that ask for a restore of the job. Returns true if some of
 * these specs are new. */
bool coord_openers_list(struct coord *cluster, const char *name, struct coord_verdict **list);
/* Compares each spec that was not judged yet with `saved`, the spec that is to be restored. Any thread. */
void coord_verdicts_judge(struct coord_verdict *list, const struct job_spec_data *saved);
void coord_verdicts_free(struct coord_verdict *list);
/* The snapshot is to be restored for the openers that ask for it: refuses each opener whose spec differs,
 * or is not in the list. CAIRN_ERR_MISMATCH: all openers were refused. */
cairn_status coord_openers_judge(struct coord *cluster, const char *name,
                                 struct coord_verdict *list, struct sentence *why) CAIRN_MUST_CHECK;
/* Called when the job could not be created: tells the job's openers why. */
void coord_job_openers_fail(struct coord *cluster, const char *name, cairn_status status,
                            const char *text);

/* ==== init ==== */

/* The initial state of a job: which members put it, whether all members put the same state, and its
 * seal. */

#define CAIRN_INIT_DIGEST_BYTES 32
/* The digest of a rank's initial state, as that rank reports it. */
struct init_digest {
    bool known;
    uint8_t bytes[CAIRN_INIT_DIGEST_BYTES];
    uint32_t rank;
};

/* A job's initial state. */
struct coord_init {
    struct coord_steps seal; /* the shards seal the initial state, and the store records this */
    bool seal_wanted;        /* true: the initial state is complete, and is to be sealed */
    /* true: a source said InitDone. In a job with tiles, the other ranks must put their tiles as well */
    bool sourced;
    uint64_t moments_of; /* id of the member that put moments, too; 0: no member did */
    /* source: digest of the state that the source put, kept in the store. given: digest of the state that the
     * callers gave, known as long as this coordinator lives */
    struct init_digest source, given;
    /* owned: the steps that the tensors missed before the job began, kept until the job is made; NULL: none
     * were missed */
    uint8_t *payload;
    size_t payload_bytes;
};

/* A member's InitDone. */
struct coord_member_init {
    uint32_t request;          /* id of the InitDone request */
    struct init_digest digest; /* digest of the state that the member put */
    uint8_t *held; /* owned: [tensor_count]: InitDone.held; NULL: nothing is to be compared */
};

/* Seals the initial state, if a seal is wanted and all shards are up. */
void coord_job_try_seal(struct coord_job *job);

/* ==== loss ==== */

/* Jobs that are lost, or whose shards hold newer state than the store knows: why, and what happens next. */

#define CAIRN_RESTORES_MAX 3

/* The automatic restore of a lost job: see restore.h. */
struct coord_recovery {
    uint32_t restores;            /* restores begun since the last applied step */
    struct snapshot_place behind; /* the oldest snapshot that was found damaged */
    uint64_t retry_ms;            /* coord_now_ms: no restore begins before this time */
    uint64_t lost_ms;             /* coord_now_ms: when the job was lost */
    char why[300];                /* why the job was lost */
    /* which newest snapshot is damaged, and how; valid while behind.id is not empty */
    struct sentence damaged;
    bool running, gave_up;
    /* true (only with gave_up): snapshots exist, but none is restored unless an operator asks for this */
    bool passed;
    bool begun; /* true: a restore has replaced the job, so its parts can no longer return */
    /* true: a shard did not see the snapshot, and the restore waits for that shard's storage */
    bool unseen;
    bool waited; /* a restore was pending at the last tick */
};

/* A job that has less durability than it asks for, and what the log said of it. */
struct coord_unsafe {
    uint64_t next_ms;  /* coord_now_ms: when it is judged again */
    uint64_t since_ms; /* coord_now_ms + 1; 0: it has what it asks for */
    uint64_t said_ms;  /* coord_now_ms + 1; 0: it was not said */
    uint32_t lacking;  /* when it was said */
};

/* A job's loss, and its recovery. */
struct coord_loss {
    struct sentence why; /* "lost: ...", "behind: ..." */
    /* true: the job is LOST only because parts are missing, and its core is still alive */
    bool may_return;
    /* true: the job is LOST because our store is an older copy. This ends when the job is adopted */
    bool behind;
    struct coord_recovery recovery;
    struct coord_mirrors *mirrors; /* owned: what keeps it from being lost */
    struct coord_unsafe unsafe;
};

/* Makes the job LOST, and expels its members. may_return: the parts may come back, so the core is still
 * told of shards. */
void coord_job_lose(struct coord_job *job, bool may_return, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A shard, or a member ("worker"), has seen a higher value of the job's `what`, such as "epoch", than our
 * store knows. The store is then an older copy, and nothing is done with the job until the job is
 * adopted. */
void coord_job_behind(struct coord_job *job, const char *kind, const char *name, const char *what);

/* ---- on_shard_loss ---- */

/* Returns the least number of shards for the restore. This is cluster.shards, or less if the job was moved
 * off some shards. After cluster.shards_wait, it is the number of connected shards, but at least
 * cluster.shards_min. */
uint32_t coord_recovery_shards(const struct coord_job *job);
/* True if the job's on_shard_loss asks for a restore. */
bool coord_recovery_wanted(const struct coord_job *job);
/* Returns true if the job is LOST and will be restored without an operator. Until the restore, nobody has
 * to give up the job. */
bool coord_recovery_pending(const struct coord_job *job);
/* Writes what happens next to a job that is LOST, or what an operator has to do. The text follows "lost:
 * WHY; ". */
void coord_recovery_advise(const struct coord_job *job, struct sentence *out);

/* ==== job ==== */

/* A job has no initial state before INITIALIZING ends. */
enum coord_job_state {
    /* shards make room for the job, or free its room, as job->making says; there is no core */
    CAIRN_CLUSTER_JOB_CREATING,
    CAIRN_CLUSTER_JOB_INITIALIZING, /* the source puts the initial state */
    CAIRN_CLUSTER_JOB_RUNNING,
    CAIRN_CLUSTER_JOB_LOST, /* `loss` says why, and whether the job may return */
};

/* ==== logs ==== */

/* The logs of jobs that ask for one (durability = log): the shards write them, and report with their
 * heartbeats on which snapshot each stands, and whether it wants a newer one. The coordinator tells them of
 * the newest snapshot, and takes one for a log's sake: when the log begins, and when it comes near its
 * budget. */

/* A shard's log of a job, as its last heartbeat said. */
struct coord_log {
    bool is_told, wants, failed;
    /* first: from there on it has all rounds; 0.0: there is none. sent: the snapshot of which it was told */
    struct cairn_version first, base, sent;
    struct cairn_version had; /* the base of the log that a process before had; 0.0: none */
    uint64_t sent_ms;
    uint64_t again_done, again_total; /* as in LogTold, as the next ones are */
    char why[256], waits[256];
};

/* At a loss of power hosts start anew, load a snapshot, and do updates again: on_shard_loss waits so long
 * at least before it gives up what is in the logs. */
#define CAIRN_LOG_LOSS_WAIT_S ((uint64_t)1800)

/* True if the job asks for logs. */
bool coord_logs_wanted(const struct coord_job *job);
void coord_logs_take(const struct coord *cluster, const struct coord_shard_entry *entry,
                     const Cairn__Heartbeat *message);
/* True if the shard has no part of the job yet, because the snapshot on which its log stands is not there. */
bool coord_logs_awaits(const struct coord_job *job, const struct coord_shard_entry *entry);
/* Another process of the shard may have come: its log is not known yet. */
void coord_logs_shard_up(struct coord_job *job, uint32_t shard);
/* Adds to why a part is lost, if its shard had a log of it: that this is lost, too, and how many steps are
 * that trainers were told of. */
void coord_logs_lost(const struct coord_job *job, uint32_t shard, struct sentence *why);
void coord_logs_tick(struct coord_job *job);
/* True if a snapshot for a log is about to begin: it becomes the periodic one that is due. */
bool coord_logs_give_way(struct coord_job *job);
/* A snapshot or digest has ended. */
struct coord_snapshot;
void coord_logs_saved(struct coord_snapshot *snapshot);
/* How long on_shard_loss waits for a shard of the job. */
uint64_t coord_logs_loss_wait_ms(const struct coord_job *job);
/* Says for whose log the job's round waits; false: for none. */
bool coord_logs_waiting(const struct coord_job *job, struct sentence *out);

/* A shard's part of a job. */
struct coord_job_shard {
    struct coord_shard_entry *entry; /* NULL: a hole, see CAIRN_EACH_SHARD */
    bool up;                         /* true: the core was told that the shard is up */
    uint64_t incarnation;            /* the shard's incarnation when JobCreate was sent */
    uint64_t address_sent;           /* hash of the fabric address that members know; 0: none yet */
    bool is_told_away;               /* members know that the shard is away */
    uint64_t missed_ms; /* coord_now_ms + 1: since when the part is missing; 0: it is not missing */
    uint64_t patience_ms; /* how long the part may be missing before the job is LOST */
    bool part_may_come;   /* while it is missing: its shard waits for its log, or for a snapshot */
    /* coord_now_ms + 1: since when recovery.c has seen the shard away; 0: it is not away */
    uint64_t away_ms;
    /* true: the shard also holds, staged, a newer generation of the job than ours */
    bool newer;
    uint64_t revision; /* revision of the spec that the shard has; 0: not known */
    /* The job's version when the shard's first layout came into force. The shard has nothing of this
     * version or of an older one. 0.0: the shard was part of the job from the beginning. */
    struct cairn_version joined_at;
    struct step_ring times;
    struct coord_part_tiles tiles;
    struct coord_part_results results;
    /* weight of the shard in the re-sharding under way; 0: everything moves off the shard */
    double weight;
    /* true: the shard was lost in the slice under way, and is left out when the slice is taken back */
    bool lost;
    struct coord_log log;
};

/* A change of a job's tenant (jobs.c). */
struct coord_sharing {
    bool is_storing; /* true: the tenant that the job has now is being written to the store */
    struct coord_tenant former;   /* if that fails, the job has this one again */
    struct coord_waiters waiters; /* owned: those who wait until the tenant is durable */
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

/* The shape of a job: its tensors and terms, and where they lie. A new generation of the job replaces the
 * shape as a whole (amend.c), so everything that belongs to a generation is a row here.
 *   spec         owned
 *   layout       owned
 *   shards       owned: [shard_room], by index in the layout; the shards that join follow the shards of the
 *                layout
 *   shard_count  the number of shards, holes included; no index is used a second time
 *   shard_room   the most that shard_count may become
 *   entry_count  the number of shards without the holes
 *   base_step    the step at which the generation began */
#define COORD_SHAPE                       \
    {                                     \
        struct job_spec_data spec;        \
        struct layout *layout;            \
        struct coord_job_shard *shards;   \
        uint32_t shard_count, shard_room; \
        uint32_t entry_count;             \
        struct coord_planned planned;     \
        uint64_t generation;              \
        uint64_t base_step;               \
    }
struct coord_shape COORD_SHAPE;

struct coord_job {
    struct coord_job *next; /* in the cluster's list, by name */
    struct coord *cluster;
    uint64_t id;
    enum coord_job_state state;
    /* borrowed: what creates, restores or drops the job, while it is CREATING; else NULL */
    struct coord_steps *making;
    bool stored;      /* true: the job is in the store, or is being written to it */
    bool initialized; /* the initial state is complete and durable */
    /* true: the job was loaded from the store, and its shards have not reported its version yet */
    bool version_unknown;
    uint64_t epoch;
    union {
        struct coord_shape shape;
        struct COORD_SHAPE; /* the same, by the names of its fields */
    };
    struct origin origin;
    struct turns turns;
    struct coord_reserved reserved;
    struct coord_tenant tenant;
    struct coord_sharing sharing;

    /* NULL in CREATING. In LOST the core is dead, unless loss.may_return */
    struct round_machine *core;
    /* each of these structs is used only by its own module */
    struct coord_rounds rounds;
    struct coord_halts halts;
    struct coord_groups *groups; /* owned; NULL: the job had no groups yet */
    struct coord_job_members members;
    struct coord_tiles tiles;
    struct coord_leases leases;
    struct coord_snapshots snapshots;
    struct coord_init init;
    struct coord_amends amends;
    struct coord_park park;
    struct coord_layouts layouts;
    struct coord_reshard reshard;
    struct coord_loss loss;
};

/* The most shards that may join a job between its creation, restore or load from the store and the next
 * restore or start. */
#define CAIRN_JOB_JOINS_MAX 1024
/* Makes room for a total of shard_room shards. Returns false if there is no memory. */
bool coord_job_shards_init(struct coord_job *job, uint32_t shard_room);
/* Returns how many bytes of state the job's layout puts on each shard. The numbers are kept with the
 * layout, because counting takes 0.1 s for a million tensors. Returns NULL if there is no memory. */
const uint64_t *coord_job_shard_bytes(struct coord_job *job);
/* Returns their sum; 0: no memory. */
uint64_t coord_job_state_bytes(struct coord_job *job);
/* Puts the entry at the index `shard` of the job. NULL: leaves a hole there. */
void coord_job_set_shard(struct coord_job *job, uint32_t shard, struct coord_shard_entry *entry);
/* Visits each shard of the job by its index: the shards of the layout in force, then the shards that join.
 * A drained shard leaves a hole, which owns nothing and has no entry. Holes are skipped. */
#define CAIRN_EACH_SHARD(job, i)                                              \
    for (uint32_t i = coord_job_shard_from((job), 0); i < (job)->shard_count; \
         i = coord_job_shard_from((job), i + 1))
/* Returns the first index, from `index` on, whose shard has an entry; shard_count: there is no such
 * index. */
uint32_t coord_job_shard_from(const struct coord_job *job, uint32_t index);
/* Returns a malloc'ed bitmap of the holes among the first shard_count shards (server/core/holes.h). NULL:
 * no memory. */
uint8_t *coord_holes(const struct coord_job *job, uint32_t shard_count);
/* Returns true if the layout in force has that shard, so that rounds need the shard. */
bool coord_job_in_force(const struct coord_job *job, uint32_t shard);

/* Returns NULL if no job has that name. */
struct coord_job *coord_job_find(struct coord *cluster, const char *name);
/* Does the same. If there is no such job, `why` says so. */
struct coord_job *coord_job_named(struct coord *cluster, const char *name, struct sentence *why);
struct coord_job *coord_job_by_id(const struct coord *cluster, uint64_t id);
/* coord_job_link adds the job to the cluster's list, coord_job_unlink removes it. */
void coord_job_link(struct coord_job *job);
void coord_job_unlink(struct coord_job *job);
struct cairn_version coord_job_version(const struct coord_job *job);
/* Returns true if the job is LOST and only a restore brings it back. */
bool coord_job_dead(const struct coord_job *job);
struct coord_member *coord_job_member(struct coord_job *job, uint64_t id);
/* Returns true if the job has a part on that shard, or is to have a part there. */
bool coord_job_has_shard(const struct coord_job *job, const struct coord_shard_entry *entry);
/* Finds the layout in which the newest version is published after the next layout has taken effect at
 * version `now`. Returns this layout, borrowed, and its number of shards in *shards_out. NULL: the version
 * is published in the next layout itself, which is the same. */
struct packed *coord_job_before_next(const struct coord_job *job, struct cairn_version now,
                                     uint32_t *shards_out);
bool coord_job_shards_up(const struct coord_job *job);
/* The shard is back: notes its present address. Returns true if members were told another address
 * before. */
bool coord_job_shard_moved(struct coord_job_shard *shard);

/* Sends a message to all shards of the layout in force that are up. */
void coord_job_send_all(struct coord_job *job, uint16_t type, const ProtobufCMessage *message);
/* Sends JobDrop, and does not wait for the answer. */
void coord_job_send_drop(struct coord *cluster, struct coord_shard_entry *entry, uint64_t job_id);
/* The names and addresses of the shards, as messages; the texts are borrowed from the entries. */
struct coord_shard_infos {
    Cairn__ShardInfo *infos; /* owned, [shard_count], by index */
    Cairn__ShardInfo **list; /* owned, [count], without holes */
    size_t count;
};
/* Lists the shards whose index is below shard_count, for a message to members, which hear again of those that
 * are away now. False: no memory. */
bool coord_shard_infos_init(struct coord_shard_infos *infos, struct coord_job *job,
                            uint32_t shard_count);
void coord_shard_infos_release(struct coord_shard_infos *infos);

/* ==== member ==== */

/* A worker's or reader's membership in a job, owned by its session. A request that waits is stored as its
 * id (0 = none). There is one place for each kind of request, so that a peer cannot pile up requests. */

enum coord_member_phase {
    CAIRN_MEMBER_PAGES,   /* the pages of the member's spec are arriving */
    CAIRN_MEMBER_JUDGED,  /* a thread reads the member's spec, or compares it with the job's spec */
    CAIRN_MEMBER_WAITING, /* the member waits for the job to be created or restored */
    CAIRN_MEMBER_JOINING, /* the shards are being told of the member */
    CAIRN_MEMBER_ATTACHED, /* the member takes part; a worker is known to the core */
};

struct coord_member {
    struct coord_member *next_of_session, *next_of_job, *next_of_bucket;
    struct coord_session *session;
    struct coord_job *job; /* while JOINING or ATTACHED */
    enum coord_member_phase phase;
    uint64_t id, token, job_id;
    uint32_t role, rank;
    char *job_name; /* owned */
    /* owned: [shard_room], enum member_known in members.c. tiles.known_to follows in the same memory */
    uint8_t *known_to;
    uint32_t open_request, begin_request;
    uint64_t attached_ms; /* coord_now_ms: when the member attached, if it has */
    uint64_t attach;      /* job->members.attaches when the member attached */
    /* true: since the member attached, a round in which it took part has ended */
    bool has_ended_round;
    uint64_t opened_round;  /* the last opened round that the member was told of */
    uint32_t in_flight;     /* bits of enum in_flight, from its last heartbeat */
    struct step_ring times; /* workers only */
    /* bytes of published memory that the member read by itself, as it last reported */
    uint64_t read_bytes;
    /* each of these structs is used only by its own module */
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

/* How jobs are created, loaded after a start, and dropped. */

#define CAIRN_JOBS_MAX 1024

/* coord_job_load makes one job from its row of the store, coord_jobs_load makes all jobs. */
cairn_status coord_job_load(struct coord *cluster, const struct stored_job *row,
                            struct sentence *why);
cairn_status coord_jobs_load(struct coord *cluster, struct sentence *why);
/* Begins to create the job whose spec is `packed`: a thread plans the job, the shards make room, and the
 * store records the job. Then the members that wait for the job are told. `generation` is the job's first
 * generation (see first_generation in openings.c). `maker` says whose it will be.
 * CAIRN_ERR_REFUSED, CAIRN_ERR_UNSUPPORTED, CAIRN_ERR_NO_MEMORY: nothing was begun. */
CAIRN_MUST_CHECK cairn_status coord_job_create(struct coord *cluster,
                                               const struct job_spec_data *spec,
                                               uint64_t generation, struct packed *packed,
                                               const struct coord_tenant *maker,
                                               struct sentence *why);
/* Deletes the job from the store, then frees it here and on its shards. Until then the job is CREATING. The
 * job must have no members. */
void coord_job_drop(struct coord_job *job);
void coord_job_free(struct coord_job *job);
/* Called before a spec or a layout is stored. CAIRN_ERR_INVALID: the spec or layout is too large to be
 * sent. */
CAIRN_MUST_CHECK cairn_status coord_judge_packed(const char *job, const struct packed *packed,
                                                 struct sentence *why);
/* A job that is planned but not known to anybody yet. It is spread over all connected shards that see the
 * snapshots, but at least over as many shards as cluster.shards says. */
struct coord_draft {
    struct coord_job *job; /* owned; NULL: none */
    uint32_t shard_count;
};
/* Opens the draft of a job that is to be restored, over all shards that fit. False: no memory. */
bool coord_draft_open(struct coord_draft *draft, struct coord *cluster,
                      const struct job_spec_data *spec);
/* Plans the draft's spec and layout. Any thread may call this. A million tensors take seconds. */
cairn_status coord_draft_plan(struct coord_draft *draft, const struct job_spec_data *spec,
                              struct sentence *why) CAIRN_MUST_CHECK;
/* Assigns shards to the draft, and gives its job to the caller. CAIRN_ERR_NOT_READY: too few shards are
 * connected, or some have left since the draft was planned. */
cairn_status coord_draft_take(struct coord_draft *draft, struct coord_job **job_out,
                              struct sentence *why) CAIRN_MUST_CHECK;
void coord_draft_close(struct coord_draft *draft);
/* The fields of a JobCreate message. */
struct coord_create {
    bool extend; /* true: the new part is made from the part that the shard has */
    bool joins;  /* true: the shard joins a running job, and the part owns nothing */
    /* true (only with `extend`): the part is made of the former version (back_generation, version.step) */
    bool back;
    uint64_t back_generation;
    bool mirror; /* true (only with `joins`): the part mirrors the one at the index */
    const char *snapshot_path;
    /* number for the SnapshotParts that report digests of the loaded state; 0: no digests are wanted */
    uint64_t digest;
    struct cairn_version version;
    const struct decision *last; /* may be NULL */
};
/* Sends JobCreate and its pages to all shards of the job. Each is a call of the gather, which the caller
 * starts. */
void coord_job_send_create(struct coord_job *job, const struct coord_create *load,
                           struct coord_gather *gather);
/* Sends JobCreate and its pages to one shard, which has the index `shard` in `layout`. */
void coord_job_ask_create(const struct coord_job *job, const struct coord_create *load,
                          uint32_t shard, struct coord_shard_entry *entry, struct packed *layout,
                          struct coord_gather *gather);
/* Called when all shards have made their parts: checks that each shard is still the process that made the
 * part. CAIRN_ERR_CLOSED: a shard is another process; `why` says which. */
cairn_status coord_job_judge_shards(const struct coord_job *job,
                                    struct sentence *why) CAIRN_MUST_CHECK;

/* parts.c */
extern const struct coord_callbacks coord_job_callbacks;
/* reshard.c: opens the job's core, and the machine that moves the job's layouts. */
cairn_status coord_job_core_open(struct coord_job *job, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== bytes ==== */

/* How many bytes the shards of a job receive and send, and how much memory the job takes, as shards report.
 * Both are added up for status requests. Loop thread only. */

#define CAIRN_BYTES_WORKERS_SHOWN 64
#define CAIRN_MEMORY_TOLD_MAX     1024 /* the most jobs that a shard reports */

struct bytes_view {
    /* number of entries: the first is for all members, the others are for workers, by rank */
    size_t count;
    Cairn__BytesTold told[1 + CAIRN_BYTES_WORKERS_SHOWN];
    Cairn__BytesTold *list[1 + CAIRN_BYTES_WORKERS_SHOWN];
};

/* Replaces the numbers that the shard reported before. If there is no memory, the shard has no numbers. */
void coord_bytes_take(struct coord_shard_entry *entry, const Cairn__Heartbeat *message);
/* Notes how many bytes a worker or reader says that it has read by itself. The count never goes down. */
void coord_bytes_read(struct coord_member *member, uint64_t bytes);
/* Adds up what the job's shards and members last reported, and returns the entry for all members. Do not
 * move `out`, because it has pointers into itself. */
const Cairn__BytesTold *coord_bytes_of(const struct coord_job *job, struct bytes_view *out);

/* Fills in `memory` of the status, which is what the job's shards last reported, by index, and the sum. The
 * names are borrowed. */
void coord_memory_show(const struct coord_job *job, struct coord_answer *answer,
                       Cairn__JobStatus *status);

/* ==== missed ==== */

/* Computes how many steps each tensor of a job has missed (server/core/decision.h), when the job's tensors
 * change. */

/* Takes from the spec how many steps each tensor of a new job missed before the job's first step, and puts
 * these counts into a payload for the shards. *payload_out is malloc'ed, and *bytes_out long. If nothing
 * was missed, they are NULL and 0. CAIRN_ERR_INVALID: the tensors have more different counts than can be
 * sent. CAIRN_ERR_NO_MEMORY. Any thread. */
cairn_status coord_missed_begin(struct job_spec_data *spec, uint8_t **payload_out,
                                size_t *bytes_out, struct sentence *why) CAIRN_MUST_CHECK;
/* Gives `last`, the job's last decision, a payload for a new generation that has the tensors of `next`. The
 * payload is *payload_out, malloc'ed. A tensor that was not trained until now has missed all steps.
 * CAIRN_ERR_INVALID: tensors would have more different counts than can be sent. CAIRN_ERR_NO_MEMORY. */
cairn_status coord_missed_extend(const struct coord_job *job, const struct job_spec_data *next,
                                 struct decision *last, uint8_t **payload_out,
                                 struct sentence *why) CAIRN_MUST_CHECK;
/* Checks whether the job may be amended to the groups and tensors of `next`. Returns the same errors as
 * coord_missed_extend. */
cairn_status coord_missed_judge(const struct coord_job *job, const struct job_spec_data *next,
                                struct sentence *why) CAIRN_MUST_CHECK;

/* ==== parts ==== */

/* Keeps track of the parts of jobs when shards connect and disconnect. */

/* coord_jobs_shard_up: the shard has connected, and says in `held` which parts it holds.
 * coord_jobs_shard_down: the shard is gone. */
void coord_jobs_shard_up(struct coord *cluster, struct coord_shard_entry *entry,
                         Cairn__HeldJob *const *held, size_t held_count);
void coord_jobs_shard_down(struct coord *cluster, struct coord_shard_entry *entry);
/* The shard, which is connected, has this part of the job, or (NULL) lacks its part. */
void coord_job_shard_has(struct coord_job *job, const struct coord_shard_entry *entry,
                         Cairn__HeldJob *part);
/* A shard, or a member ("worker"), has seen this epoch of the job. If our store does not know the epoch,
 * the store is an older copy, and nothing is done with the job. */
void coord_job_seen(struct coord_job *job, const char *kind, const char *name, uint64_t epoch);
/* Makes the job LOST if a part has been missing for too long. The job stays LOST until the part is back. */
void coord_job_parts_tick(struct coord_job *job);
/* The shard, which has connected without its part, says why: the part will not be back. */
void coord_job_part_stopped(struct coord_job *job, const struct coord_shard_entry *entry,
                            const char *why);

/* ==== settings ==== */

/* The settings (proto/spec/spec.h) of an amendment, or of a job that is made from a snapshot. */

/* The purpose of the settings, which decides what changes are allowed. */
enum settings_purpose {
    /* the job continues: a change that needs a new job is refused, and the error names the command that
     * makes such a change */
    CAIRN_SETTINGS_AMEND,
    CAIRN_SETTINGS_CREATE
};
/* Applies a whole amendment to `next`, a copy of the job's spec. *extends_out: true if tensors get planes or
 * lose them, or a setting needs it, so that the shards have to make a new generation. */
cairn_status coord_spec_amend(struct job_spec_data *next, const Cairn__JobAmend *amend,
                              bool *extends_out, struct sentence *why) CAIRN_MUST_CHECK;
/* Applies the settings to `next`, a copy of the job's or the snapshot's spec, and makes `next` canonical.
 * Does not judge the result as a whole. Sets *reopens_out to true if a new generation is needed, else
 * leaves *reopens_out unchanged. */
cairn_status coord_settings_apply(struct job_spec_data *next, Cairn__Setting *const *settings,
                                  size_t count, enum settings_purpose purpose, bool *reopens_out,
                                  struct sentence *why) CAIRN_MUST_CHECK;
/* Checks that the tensors of the groups keep their planes. These planes exist already, on the shards or in
 * the snapshot; only an average may be new in a job that is made from a snapshot. */
cairn_status coord_settings_judge_planes(const struct job_spec_data *was,
                                         const struct job_spec_data *next,
                                         enum settings_purpose purpose,
                                         struct sentence *why) CAIRN_MUST_CHECK;
/* Adapts the payload of the job's last decision to other terms. A loss scale that the settings set begins
 * anew. A trainer's state is kept; if the new terms have no room for the state: CAIRN_ERR_INVALID. The
 * payload of `last` is replaced by *owned_out (malloc'd, the caller's), or kept if *owned_out is NULL. */
cairn_status coord_settings_payload(const struct job_spec_data *was,
                                    const struct job_spec_data *next, struct decision *last,
                                    uint8_t **owned_out, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== drop ==== */

/* A job is dropped because an operator asks for it. */

/* Called after the sessions and the saves are closed: no answer can reach the drops that are left. */
void coord_drops_close(struct coord *cluster);

/* ==== rollback ==== */

/* Takes the versions to which the shard's parts can go back. */
void coord_former_take(struct coord_shard_entry *entry, const Cairn__Heartbeat *message);
/* Adds the versions to which the job can go back, the newest first, to the field `former` of a message.
 * Returns those to which it can go back by its logs; NULL: none. */
Cairn__FormerRange *coord_former_show(const struct coord_job *job, struct coord_answer *answer,
                                      ProtobufCMessage *message);
/* Says the same as a clause, "to 3 versions, ..."; "": the job keeps no versions, and no log. */
const char *coord_former_say(const struct coord_job *job, struct coord_answer *answer);

/* ==== mirror ==== */

/* Standbys: shards that mirror the parts of another shard, their owner, and take its place if it is lost. A
 * standby owns no part, unless it has taken a place. server/core/mirror.h has the rule.
 *
 *   a standby is connected ─► its part is made ─► the owner lets it in ─► it takes part in the next round,
 *       and is filled ─► the store says that it is in step ─► the owner is lost: the store says that the
 *       standby is the owner
 *
 * In each round the standby is a shard more, of which the core knows nothing: the reports of the owner are
 * handed to the core when the standby has reported the same. A shard has up to CAIRN_STANDBYS_MAX of them,
 * and its reports wait for all that are in step. Loop thread. */

/* True if the shard is a standby that owns no part of any job. It gets none, and does not count. */
bool coord_shard_is_standby(const struct coord *cluster, const struct coord_shard_entry *entry);

/* Reads which standbys are in step. Must be called when the jobs are loaded. */
cairn_status coord_mirrors_load(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
void coord_mirrors_free(struct coord_job *job);
void coord_mirrors_tick(struct coord_job *job);
/* The job's layout is about to change, which no standby follows: ends all mirrors at once. They are made anew
 * afterwards. */
void coord_mirrors_end(struct coord_job *job, const char *why);
/* The shard has stopped its part of the job. If that mirrors another part, the mirror ends. */
void coord_mirrors_part_stopped(struct coord_job *job, const struct coord_shard_entry *entry,
                                const char *why);

/* A shard has connected, or is gone: as a standby. Called before its parts are judged. */
void coord_mirrors_standby_up(struct coord *cluster, struct coord_shard_entry *entry);
void coord_mirrors_standby_down(struct coord *cluster, struct coord_shard_entry *entry);
/* The owner is back with its part, perhaps as another process; or gone. */
void coord_mirrors_owner_up(struct coord_job *job, uint32_t shard);
void coord_mirrors_owner_down(struct coord_job *job, uint32_t shard);
/* True while the store is told that the shard has the place, in which it has nothing to do before. */
bool coord_mirrors_is_taking(const struct coord_job *job, uint32_t shard);
/* True if a standby that is here is in step with the part, so that the job is not lost without its owner. */
bool coord_mirrors_may_take(const struct coord_job *job, uint32_t shard);
/* True if the shard's part of the job is a mirror, which is not to be dropped. */
bool coord_mirrors_has(const struct coord_job *job, const struct coord_shard_entry *entry);

/* Sends the standbys what the owners are told of rounds. */
void coord_mirrors_send(const struct coord_job *job, uint16_t type,
                        const ProtobufCMessage *message);
void coord_mirrors_fence(struct coord_job *job, const Cairn__Fence *fence);
void coord_mirrors_open(struct coord_job *job, const struct round_action *action,
                        const Cairn__RoundOpen *owners);
/* Returns the name of a standby for which a report of the shard waits; NULL: no report waits. */
const char *coord_mirrors_awaited(const struct coord_job *job, uint32_t shard);
/* Takes the report of a standby, or one of an owner that waits for its standby's. False: the message is
 * handled as any other. */
bool coord_mirrors_take(struct coord_session *session, const struct wire_frame *frame,
                        const ProtobufCMessage *message);
/* Handles a message of a part, as if it came now (messages.c). */
void coord_part_message(struct coord_job *job, uint32_t shard, uint16_t type,
                        const ProtobufCMessage *message);

/* How far a mirror of a shard's part is. */
struct coord_mirrored {
    enum {
        CAIRN_MIRRORED_NEVER, /* there was no standby */
        CAIRN_MIRRORED_NOT,
        CAIRN_MIRRORED_SOON, /* the standby is being filled */
        CAIRN_MIRRORED_NOW
    } state;
    const char *standby; /* its name; "": none has been found yet */
    const char *why;     /* if NOT: why */
};
/* mirror: its number, below CAIRN_STANDBYS_MAX. */
struct coord_mirrored coord_mirrors_of(const struct coord_job *job, uint32_t shard, int mirror);
/* Returns a standby for that mirror of the shard's part. NULL: there is none. */
struct coord_shard_entry *coord_mirrors_standby(const struct coord_job *job, uint32_t shard,
                                                int mirror);
/* Says why the standby mirrors nothing, if its shard has as many standbys as it may have. */
void coord_mirrors_say_spare(const struct coord *cluster, const struct coord_shard_entry *entry,
                             struct sentence *out);

/* ==== durability ==== */

/* A job asks for a durability (cairn_durability), server/core/safety.h judges what it has, and operators
 * are told if that is less. Loop thread. */

/* Takes what a shard can do; NULL: it does not say. */
void coord_durability_take(struct coord_shard_entry *entry, const Cairn__ShardTiers *tiers);
/* Refuses what the job's shards cannot have. `spec`: what the job is to ask for. */
cairn_status coord_durability_may(const struct coord_job *job, const struct job_spec_data *spec,
                                  struct sentence *why) CAIRN_MUST_CHECK;
/* How safe the job is now. */
struct safety coord_durability_of(const struct coord_job *job);
/* Says in the log when the job has less than it asks for, and then once an hour. */
void coord_durability_tick(struct coord_job *job);

#endif
