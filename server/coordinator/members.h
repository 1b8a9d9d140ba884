/* Workers and readers of jobs: how they join, how they leave, and what they are told in between. */
#ifndef CAIRN_COORDINATOR_MEMBERS_H
#define CAIRN_COORDINATOR_MEMBERS_H

#include "proto/base/text.h"
#include "proto/fabric/fabric.h"
#include "server/coordinator/base.h"
#include "server/core/decision.h"
#include "server/core/standing.h"

/* ==== waiting ==== */

/* Says in words for which members a job waits. Also keeps the pauses, which workers announce while they are
 * busy with something else. */

#define CAIRN_MEMBER_PAUSE_BYTES 64

struct coord_pause {
    uint64_t ends_ms; /* coord_now_ms; 0: no pause */
    char what[CAIRN_MEMBER_PAUSE_BYTES];
};

/* Writes for whom and for what the job waits; empty: for nobody. */
void coord_job_waiting(const struct coord_job *job, struct sentence *out);
/* If all workers that the job awaits pause, returns for how long the job may still be paused. Returns 0 if
 * the job also awaits a worker that does not pause. */
uint64_t coord_job_paused_ms(const struct coord_job *job);
/* Returns JobStatus.still_ms, the time for which the job should have applied a round and has applied
 * none. */
uint64_t coord_job_still_ms(const struct coord_job *job);
/* Called when the job's members are put out for a restore. Keeps the longest of their pauses, because the
 * restored job must wait for its end, too. */
void coord_job_keep_pauses(struct coord_job *job);

/* ==== members ==== */

/* buckets of a job's hash table of members; the members' ids are random */
#define CAIRN_MEMBER_BUCKETS 512

/* A job's members. */
struct coord_job_members {
    struct coord_member *list;                        /* linked by next_of_job */
    struct coord_member *by_id[CAIRN_MEMBER_BUCKETS]; /* linked by next_of_bucket */
    uint32_t count;
    uint64_t read_bytes; /* bytes read by members that have left, in this generation */
    struct cairn_version version_sent; /* the version that readers were last told of */
    /* the longest pause of the members that were put out for a restore, and are expected to return */
    struct coord_pause pause;
    struct coord_relapse *relapses; /* owned: [relapse_count] */
    uint32_t relapse_count;
    uint64_t attaches; /* how often a worker or reader attached to the job until now */
};

/* Called when the member has left the job by itself: tells the core and the shards, and frees the
 * member. */
void coord_member_leave(struct coord_member *member, const char *reason);
/* Does the same for a member that is gone without having said that it leaves. */
void coord_member_lost(struct coord_member *member, const char *reason);
/* Expels the member, and tells the core: the round continues without it. */
void coord_member_put_out(struct coord_member *member, cairn_status status, const char *text);
/* Tells the shards that members which have left may have lost the right to read the job. They may have kept
 * what they mapped, so shards of their hosts publish in new memory. A shard that is away does the same when
 * it comes again. */
void coord_members_withdraw(struct coord_job *job);
/* Expels a member that may not continue: its requests fail with this status, the shards drop the member,
 * and the member is freed. If the member was no longer opening the job, it is also sent an Error, and its
 * connection is closed unless it has other jobs open. The core is not told: the caller does that. */
void coord_member_expel(struct coord_member *member, cairn_status status, const char *text);
/* Frees the data that a member has held, while joining, of the spec that it brought. */
void coord_member_forget_spec(struct coord_member *member);
/* Frees the member and tells nobody. */
void coord_member_free(struct coord_member *member);
/* Sends MemberJoin to all shards of the job. When all of them know the member, the member gets Attached. */
void coord_member_tell_shards(struct coord_member *member);
/* If the job's version is known, attaches the members that all shards know. */
void coord_members_attach(struct coord_job *job);
/* A shard of the job is back: tells it of all members. */
void coord_members_tell_shard(struct coord_job *job, uint32_t shard);
/* A shard of the job is gone: notes that the shard knows no member. */
void coord_members_forget_shard(struct coord_job *job, uint32_t shard);

/* ==== entries ==== */

/* The entries of shards, by name: which process has each entry, and which process may have it
 * (server/core/standing.h). */

#define CAIRN_SHARD_ENTRIES_MAX 4096 /* the most shards that are known by name */

uint32_t coord_shards_up(const struct coord *cluster);
/* Counts the shards that may get a part of a job of this spec (NULL: of any job). With `storing`, counts
 * only those that have not complained about their storage. */
uint32_t coord_shards_staying(const struct coord *cluster, const struct job_spec_data *spec,
                              bool storing);
/* Returns NULL if no shard has that name. */
struct coord_shard_entry *coord_shard_find(const struct coord *cluster, const char *name);
/* Finds the shard's entry, or makes one. Returns NULL if there is no memory, or there are
 * CAIRN_SHARD_ENTRIES_MAX entries already. */
struct coord_shard_entry *coord_shard_get(struct coord *cluster, const char *name);
void coord_shard_free(struct coord_shard_entry *entry);

/* ==== relapse ==== */

/* Puts off a worker that fails right after each attach. Every attach and every loss voids the open round,
 * so no other worker completes a step as long as one worker keeps attaching and failing. A worker that was
 * lost repeatedly before it ended a round is admitted later each time, if other workers of the job do end
 * rounds. When a worker ends a round, the counts of its losses start again at 0.
 *
 * A process that failed returns as another process, and perhaps as another rank, so losses are counted by
 * host. All workers of a host have one count, and workers that are lost together count once. Each rank has
 * a count, too, for all hosts on which the rank ran. On a host where it has not failed, a rank is put off
 * only if it has failed on several hosts. If the host is not known, only the count of the rank matters. */

#define CAIRN_RELAPSE_FREE   2     /* losses in a row for which a worker is not put off yet */
#define CAIRN_RELAPSE_MAX_MS 60000 /* the longest time for which a worker is put off */

/* The member has ended a round: clears its losses. */
void coord_relapse_over(struct coord_member *member);
/* Returns for how long from now a worker that wants to join is put off, or 0 if it is not put off. */
uint64_t coord_relapse_wait_ms(struct coord_job *job, const struct coord_member *member);
/* Writes what a worker that is put off waits for. */
void coord_relapse_waiting(struct coord_job *job, const struct coord_member *member,
                           struct sentence *out);
void coord_relapses_release(struct coord_job *job);

/* ==== layouts ==== */

/* The layouts of a job: the layout in force, the next layout, and the older layout, if the newest version
 * is still published in one. Members are told about layouts, too. */

/* A job's layouts. All pointers are owned, or held. */
struct coord_layouts {
    /* The job's version when the layout in force took effect; 0.0: this layout is the job's first. */
    struct cairn_version at;
    /* The layout in which that version is published, with before_shards shards; NULL: it is published in
     * the layout in force. */
    struct packed *before;
    uint32_t before_shards;
    /* The next layout; NULL: none is being prepared. */
    struct layout *next;
    struct packed *next_packed;
    /* [(next->shard_count + 7) / 8]: a bitmap of the holes of the next layout */
    uint8_t *next_gone;
    /* True: the next layout is being written to the store, and can no longer be given up. */
    bool storing;
};

void coord_layouts_release(struct coord_job *job);
/* Drops the next layout. */
void coord_layouts_drop_next(struct coord_job *job);
/* Returns true if the newest version is published in an older layout. New members begin with the older
 * layout. */
bool coord_layouts_behind(const struct coord_job *job);

/* Sends LayoutChanged to all attached members. */
void coord_members_layout_changed(struct coord_job *job);

/* ==== commits ==== */

/* Members that wait for the result of a round. */

/* The most threads of one member that may wait at the same time: one that trains, one that writes, and
 * others that wait for a round. If one more waits, the oldest wait is answered with an error. The thread of
 * that wait has most likely given up, which is not reported to us. */
enum { CAIRN_MEMBER_COMMITS_MAX = 8 };
struct coord_commit {
    uint32_t request;
    uint64_t round;
};

/* The requests of a member that wait for the end of a round. */
struct coord_commits {
    struct coord_commit list[CAIRN_MEMBER_COMMITS_MAX]; /* [count], oldest first */
    uint32_t count;
};

void coord_commits_add(struct coord_member *member, uint32_t request, uint64_t round);
/* Answers all waits for that round. Returns false if there are none. */
bool coord_commits_answer(struct coord_member *member, const Cairn__RoundResult *result);

/* ==== version waits ==== */

/* Members that wait for a version, or for the client state of the newest one. */

/* The most threads of one member that may wait at the same time. Waits that have expired are removed to
 * make room, and get no answer. */
enum { CAIRN_MEMBER_WAITS_MAX = 8 };
struct coord_version_wait {
    uint32_t request;
    /* true: the thread waits for the client state. false: the thread waits for a version at least as new as
     * `wanted` */
    bool state;
    struct cairn_version wanted;
    uint64_t ends_ms; /* when the thread gives up, on the clock of uv_now; 0: not known */
};

/* The waits of a member, the oldest first. The list has one more place, which is used only while a new wait
 * is judged. */
struct coord_version_waits {
    struct coord_version_wait list[CAIRN_MEMBER_WAITS_MAX + 1];
    uint32_t count;
};

/* Answers the waits whose version has been reached. */
void coord_members_answer_versions(struct coord_job *job);
/* Called after an event of the core: tells members the version, if they were last told another one. */
void coord_members_tell_version(struct coord_job *job);
/* If the client state of the newest version is known now, sends this version and its client state to the
 * members that asked for the state. */
void coord_members_answer_states(struct coord_job *job);

/* ==== standing ==== */

/* The standing of a shard: whether we may act on the parts that it holds (server/core/standing.h). A part
 * is strange if it belongs to another store, or is newer than our store's record of the part's job. */

/* The identity by which shards know this cluster. */
struct coord_identity {
    struct coordinator_id id; /* identifies this process and its store */
    uint64_t *dropped;        /* owned: [dropped_count]: ids of dropped jobs, the oldest first */
    size_t dropped_count;
};

/* Fills cluster->identity from the store. CAIRN_ERR_NO_MEMORY. */
cairn_status coord_standing_open(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
/* Notes that the job is no longer in the store. */
void coord_dropped_add(struct coord *cluster, uint64_t job);
/* Returns true if the shard is connected and we may act on the parts that it holds. */
bool coord_shard_obeys(const struct coord_shard_entry *entry);
/* True: the shard's device has failed, and nothing may be placed on it (server/shard/shard.h). */
bool coord_shard_unfit(const struct coord_shard_entry *entry);
/* True: the shard listens on no network, so other hosts cannot reach it, and shards of other hosts are
 * connected. If such a shard had a part of a job, every worker on another host would be stopped. */
bool coord_shard_apart(const struct coord_shard_entry *entry);
#define CAIRN_SHARD_APART_TEXT                                                                    \
    "listens on no network, and shards of other hosts are here: it gets no part of a job before " \
    "fabric.device is set there"
/* True: the shard obeys, and does not leave the cluster. */
bool coord_shard_stays(const struct coord_shard_entry *entry);
/* True: the shard may get a part of a job of this spec (NULL: of any job): the shard stays, is not apart,
 * and would not put the part on a failed device. */
bool coord_shard_fits(const struct coord_shard_entry *entry, const struct job_spec_data *spec);
/* Notes what the Hello says. If we must not act on the parts that the shard holds, logs this and returns
 * false. */
bool coord_shard_judge_hello(struct coord *cluster, struct coord_shard_entry *entry,
                             const Cairn__Hello *hello);
/* Says why a shard does not obey, such as "it holds state of another store". */
const char *coord_shard_standing_text(const struct coord_shard_entry *entry);
void coord_shard_forget_parts(struct coord_shard_entry *entry);
/* Takes a frame of HeldJobs. If the frame has a request id, it answers a question. Returns false if the
 * frame is malformed. */
bool coord_shard_take_held(struct coord_session *session,
                           const struct wire_frame *frame) CAIRN_MUST_CHECK;
/* Cleans our own leftovers from the shard: parts of jobs whose creation was never finished here, and parts
 * of jobs that were dropped, or restored onto other shards, while the shard was away. */
void coord_shard_clean(struct coord *cluster, struct coord_shard_entry *entry,
                       const Cairn__Hello *hello);
/* The marks of a job, for a comparison. coord_held_marks: as a shard has seen them. coord_job_marks: as our
 * store knows them. */
struct marks coord_held_marks(const Cairn__HeldJob *held);
struct marks coord_job_marks(const struct coord_job *job);
/* Returns true if a shard holds, or may hold, a job of that name that is not ours. `why` says what to
 * do. */
bool coord_job_is_strange(const struct coord *cluster, const char *name, struct sentence *why);
/* Adds the parts on which we do not act to the repeated field of that name of `to`. Texts in the messages are
 * borrowed from the entries. */
void coord_strangers_add(const struct coord *cluster, struct coord_answer *answer,
                         ProtobufCMessage *to, const char *field);

/* ==== tiles ==== */

/* Tiles: the boxes of tensors that each rank holds (see TilesDeclare in control.proto). tiles.c explains
 * how tiles are kept. */

/* The gate of a job's rounds, as the core knows it (tiles.c). */
struct coord_gate {
    bool shut;
    uint32_t world;
};

/* A job's tiles: which rank holds which boxes of the tensors. */
struct coord_tiles {
    uint32_t world; /* the ranks 0, ..., world - 1 declare tiles; 0: the job has no tiles */
    struct coord_tile_list **of_rank; /* owned: [world]; NULL: the rank has declared no tiles */
    /* owned: the lists, each once, although several ranks may have the same tiles */
    struct coord_tile_list *lists;
    /* true: a worker or a shard has told this incarnation of the coordinator about the tiles */
    bool known;
    /* true: shards may know of tiles, so they are told the tiles of each worker, even of a worker without
     * tiles */
    bool telling;
    bool covered; /* the lists of all ranks together cover the tensors */
    bool changed; /* true: members joined or left during an event of the core */
    struct coord_gate gate;
};

/* How much of a job's tiles has been sent to a shard. */
struct coord_part_tiles {
    size_t unanswered_bytes; /* bytes of MemberTiles that the shard has not answered */
    /* the member whose tiles are sent to the shard next, unless the shard knows them */
    struct coord_member *next;
};

/* A member's tiles, and which shards know them. */
struct coord_member_tiles {
    /* [shard_room]: which shards know the member's tiles; borrowed from member->known_to */
    uint8_t *known_to;
    uint32_t knowing; /* number of shards that know the member's tiles */
    /* incremented when sent tiles are forgotten; answers with an older number are stale */
    uint32_t serial;
    /* id of the TilesDeclare whose pages are arriving, or that waits for TilesSet */
    uint32_t request;
    uint32_t world;     /* from that TilesDeclare */
    struct paged pages; /* owned: the pages that have arrived, while `arriving` */
    bool arriving, declared;
};

void coord_tiles_page(struct coord_session *session, uint32_t request, const Cairn__Page *page);
/* Called when the worker asks for a round. If neither this worker nor another member of the job has
 * declared tiles, the job has no tiles from now on. */
void coord_tiles_begins(struct coord_member *member);
/* A shard says that it knows tiles for `world` ranks; 0: it knows no tiles. */
void coord_tiles_heard(struct coord_job *job, uint32_t world);
/* Called after any change: tells the shards about tiles, checks whether the tiles cover the tensors, and
 * opens or shuts the core's gate. During an event of the core, this is put off until the event is over. */
void coord_gate_update(struct coord_job *job);
/* The shard is gone: it no longer knows the member's tiles. */
void coord_tiles_shard_gone(struct coord_member *m, uint32_t shard);

/* Returns true if a round cannot open because of tiles; `out` then says which members are missing. */
bool coord_tiles_waiting(const struct coord_job *job, struct sentence *out);
void coord_tiles_release(struct coord_job *job);

/* ==== leases ==== */

/* Leases: versions that members want kept for longer than training keeps them.
 *
 *   LeaseTake → a lease of the member (WAITS until no epoch is changing) → the version is KEPT:
 *   LeaseKeep to all shards → all said Done → Leased. One refused → the others end it → Error.
 *
 * Shards treat all leases of a version as one lease: they keep the version for the longest lease, and
 * release it with the last lease. LeaseKeep is sent on the channels of the decisions, so it arrives between
 * the same two decisions on every shard.
 *
 * A lease that is asked for again is renewed, and never made shorter. A lease ends when the member drops
 * it, leaves or is expelled, or when the lease's time is over. Leases are not durable. Shards end a lease
 * by themselves if they have heard nothing about it for 1.25 times its time. */

#define CAIRN_MEMBER_LEASES_MAX 16

/* A version that shards keep, or are asked to keep. */
struct coord_held_version {
    struct coord_held_version *next; /* in the job's list */
    struct cairn_version version;
    uint64_t number;             /* number of the version in messages to the shards */
    uint64_t asked_ms;           /* while `asking`: when the shards were asked */
    struct coord_gather *gather; /* borrowed, while `asking` */
    bool asking, again;
};

struct coord_lease {
    struct coord_lease *next;        /* in the job's list */
    struct coord_member *member;     /* borrowed: the lease ends before the member is freed */
    struct coord_held_version *held; /* borrowed from the job; NULL: the lease WAITS */
    struct cairn_version version;    /* {0, 0}, while the lease WAITS: the newest version */
    uint32_t request;                /* id of the LeaseTake; 0: already answered */
    uint64_t key;                    /* key of the LeaseTake that began the lease */
    uint64_t ttl_ms;                 /* the time that was last asked for */
    uint64_t ends_ms;                /* coord_now_ms: when the lease ends; 0: not granted yet */
    bool asked;                      /* true: the shards are being asked to keep the version */
};

/* A job's leases. */
struct coord_leases {
    struct coord_lease *list;        /* owned */
    struct coord_held_version *held; /* owned: the versions that are leased */
};

/* Called when rounds may continue: takes the leases that wait. Not to be called during an event of the
 * core. */
void coord_leases_advance(struct coord_job *job);
/* Called when the newest version was published again, in the layout in force, so that the shards that
 * joined in between have this version, too. If the version is leased, asks these shards to keep it before
 * another round opens. */
void coord_leases_republished(struct coord_job *job);
/* Ends the leases whose time is over. */
void coord_leases_tick(struct coord_job *job);
/* Returns true if the member waits for a lease. In that case `out` says which shards have not answered. */
bool coord_leases_waiting(const struct coord_member *member, struct sentence *out);
/* Fails the waiting lease requests of the member. */
void coord_leases_fail(struct coord_member *member, cairn_status status, const char *text);
/* The member is being freed: ends its leases. */
void coord_leases_forget(struct coord_member *member);

/* ==== writes ==== */

/* Members that write between two steps. RoundOpened answers the request later. */

/* A member's request to write. */
struct coord_write {
    uint32_t request;
    bool reserves; /* the request waits until reserved generations are durable */
};

/* ==== unheard ==== */

/* The shards that a worker, a reader or another shard does not hear over the data path, although both ends
 * reach this coordinator. Each end reports this in its heartbeats (Heartbeat.unheard). The reports are
 * shown in the log, in the events and in answers to operators. A path that both ends report is shown
 * once. */

#define CAIRN_CLUSTER_UNHEARD_MAX 16 /* the most shards that a heartbeat names */

/* The shards that a session does not hear. */
struct coord_unheard {
    struct {
        char name[CAIRN_NAME_MAX + 1]; /* name of a shard that is up */
        uint64_t since_ms;             /* when the shard was first reported, on the loop's clock */
    } list[CAIRN_CLUSTER_UNHEARD_MAX];
    size_t count;   /* at least 1 */
    char text[256]; /* the names, as far as they fit */
};

/* Notes the shards that the session does not hear, as its heartbeat reports them. */
void coord_unheard_take(struct coord_session *session, char *const *names, size_t count);
/* Returns the names of the shards that the session does not hear; "": the session does not report any. */
const char *coord_unheard_text(const struct coord_session *session);
/* Writes which shards of the job are not heard, and by which members and shards; empty: nobody reports
 * this. */
void coord_unheard_of_job(const struct coord_job *job, struct sentence *out);

#endif
