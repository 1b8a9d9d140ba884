/* Workers and readers of jobs: how they join at the shards, what they are told, how they leave. */
#ifndef CAIRN_COORDINATOR_MEMBERS_H
#define CAIRN_COORDINATOR_MEMBERS_H

#include "proto/base/text.h"
#include "proto/fabric/fabric.h"
#include "server/coordinator/base.h"
#include "server/core/decision.h"
#include "server/core/standing.h"

/* ==== waiting ==== */

/* Says in words for which members a job waits. Also keeps the pauses of workers that are busy with
 * something else and said so. */

#define CAIRN_MEMBER_PAUSE_BYTES 64

struct coord_pause {
    uint64_t ends_ms; /* coord_now_ms; 0: no pause */
    char what[CAIRN_MEMBER_PAUSE_BYTES];
};

/* Writes for whom the job waits, and for what; empty: for nobody. */
void coord_job_waiting(const struct coord_job *job, struct sentence *out);
/* Returns the longest time for which the job may still be paused, if every worker that it awaits pauses.
 * Returns 0 if the job also awaits a worker that does not pause. */
uint64_t coord_job_paused_ms(const struct coord_job *job);
/* Returns JobStatus.still_ms: for how long the job has applied no round although it should have applied
 * one. */
uint64_t coord_job_still_ms(const struct coord_job *job);
/* The job's members are put out for a restore: keeps their longest pause, because the restored job waits
 * for it, too. */
void coord_job_keep_pauses(struct coord_job *job);
/* Handles and answers Pause, the beginning or the end of a pause. */
void coord_member_pause(struct coord_member *member, uint32_t request, const Cairn__Pause *pause);

/* ==== members ==== */

#define CAIRN_MEMBER_BUCKETS 512 /* buckets of a job's index of its members, whose ids are random */

/* A job's members. */
struct coord_job_members {
    struct coord_member *list;                        /* linked by next_of_job */
    struct coord_member *by_id[CAIRN_MEMBER_BUCKETS]; /* linked by next_of_bucket */
    uint32_t count;
    uint64_t read_bytes; /* bytes read by members that have left, in this generation */
    struct cairn_version version_sent; /* the version that readers were last told of */
    /* the longest pause of the members that were put out for a restore and are to return */
    struct coord_pause pause;
    struct coord_relapse *relapses; /* owned: [relapse_count] */
    uint32_t relapse_count;
    uint64_t attaches; /* number of attaches so far, readers included */
};

/* The member left the job by itself: tells the core and the shards, and frees the member. */
void coord_member_leave(struct coord_member *member, const char *reason);
/* Does the same for a member that is gone and had not said that it leaves. */
void coord_member_lost(struct coord_member *member, const char *reason);
/* Expels the member, and tells the core: the round continues without it. */
void coord_member_put_out(struct coord_member *member, cairn_status status, const char *text);
/* A shard cannot read what the member pushed: expels the member. The open round is repeated without the
 * member. */
void coord_member_fault(struct coord_job *job, uint64_t id, const char *text);
/* Expels a member that may not continue: its requests fail with this status, and the shards drop it. An
 * attached member is also sent an Error. Its connection is closed unless it has other jobs open. Frees the
 * member. The core must have been told already. */
void coord_member_expel(struct coord_member *member, cairn_status status, const char *text);
/* Frees what a joining member still holds of the spec that it brought. */
void coord_member_forget_spec(struct coord_member *member);
/* Frees the member and tells nobody. */
void coord_member_free(struct coord_member *member);
/* Sends MemberJoin to all shards of the job; Attached follows when all of them know the member. */
void coord_member_tell_shards(struct coord_member *member);
/* Attaches the members that all shards know, once the job's version is known. */
void coord_members_attach(struct coord_job *job);
/* A shard of the job is back: tells it of all members. */
void coord_members_tell_shard(struct coord_job *job, uint32_t shard);
/* A shard of the job is gone: notes that it knows no member. */
void coord_members_forget_shard(struct coord_job *job, uint32_t shard);

/* ==== entries ==== */

/* The entries of shards, by name: which process has an entry, and which process may have it
 * (server/core/standing.h). */

#define CAIRN_SHARD_ENTRIES_MAX 4096 /* the most shards that are known by name */

uint32_t coord_shards_up(const struct coord *cluster);
/* Counts the shards that may be given part of a job of this spec (NULL: of any job). With `storing`, counts
 * only shards without a storage complaint. */
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
 * rounds. When a worker ends a round, its count starts again at 0.
 *
 * A process that failed returns as another process, and perhaps as another rank, so losses are counted by
 * host. Losses of all workers of a host count together; workers that are lost together count once. The
 * losses of a rank are also counted, over all hosts on which the rank ran. A host that did not fail is put
 * off for a rank's failures elsewhere only if the rank has failed on several hosts. Where the host is not
 * known, the rank alone counts. */

#define CAIRN_RELAPSE_FREE   2     /* losses in a row before it is put off */
#define CAIRN_RELAPSE_MAX_MS 60000 /* the longest time that it is put off */

/* The member has ended a round: clears its losses. */
void coord_relapse_over(struct coord_member *member);
/* Returns for how long from now a worker that wants to join is put off, or 0 if it is not put off. */
uint64_t coord_relapse_wait_ms(struct coord_job *job, const struct coord_member *member);
/* Says what a worker that is put off waits for. */
void coord_relapse_waiting(struct coord_job *job, const struct coord_member *member,
                           struct sentence *out);
void coord_relapses_release(struct coord_job *job);

/* ==== layouts ==== */

/* The layouts of a job: the layout in force, the older layout (if any) in which the newest version is still
 * published, and the next layout. Also tells members about layouts. */

struct stored_job;

/* A job's layouts. All pointers are owned, or held. */
struct coord_layouts {
    /* The job's version when the layout in force took effect; 0.0: it is the job's first. */
    struct cairn_version at;
    /* The layout in which that version is published, and its number of shards; NULL: the layout in
     * force. */
    struct packed *before;
    uint32_t before_shards;
    /* The next layout; NULL: none is being prepared. */
    struct layout *next;
    struct packed *next_packed;
    uint8_t *next_gone; /* [(next->shard_count + 7) / 8] bits: its holes */
    /* The next layout is being written to the store, and can no longer be given up. */
    bool storing;
};

/* Loads the layout that preceded the layout in force, from a row that has it. CAIRN_ERR_MALFORMED,
 * CAIRN_ERR_NO_MEMORY. */
cairn_status coord_layouts_load(struct coord_job *job,
                                const struct stored_job *row) CAIRN_MUST_CHECK;
void coord_layouts_release(struct coord_job *job);
/* Drops the next layout. */
void coord_layouts_drop_next(struct coord_job *job);
/* Puts the next layout in force as of the version `now`. Shards that are not in it become holes. Shards and
 * members are not told. Nothing is allocated, because the layout is durable already. Returns the layout
 * that was in force, which the caller owns. */
struct layout *coord_layouts_take_next(struct coord_job *job, struct cairn_version now);
/* Notes that the newest version is published in the layout in force. */
void coord_layouts_published(struct coord_job *job);
/* Returns true if the newest version is published in an older layout. A new member begins with that
 * layout. */
bool coord_layouts_behind(const struct coord_job *job);

/* Returns true if the newest version is published in an older layout, and part of the version is fetched
 * from that shard. */
bool coord_layouts_serves(const struct coord_job *job, uint32_t shard);

/* Sends LayoutChanged to all attached members. */
void coord_members_layout_changed(struct coord_job *job);

/* ==== commits ==== */

/* Members that wait for the result of a round. */

/* Several threads of one member may wait at the same time: one trains, one writes, and several may wait for
 * one round. If more than this wait, the oldest wait is answered with an error. Most likely its thread has
 * given up, which is not reported to us. */
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

/* Several threads of one member may wait at the same time. Expired waits are removed to make room, and get
 * no answer. */
enum { CAIRN_MEMBER_WAITS_MAX = 8 };
struct coord_version_wait {
    uint32_t request;
    /* true: the thread waits for the client state; false: for a version at least as new as `wanted` */
    bool state;
    struct cairn_version wanted;
    uint64_t ends_ms; /* when the thread gives up, on the clock of uv_now; 0: it did not say */
};

/* A member's waits: [count], oldest first; the extra place is used only while a new wait is judged. */
struct coord_version_waits {
    struct coord_version_wait list[CAIRN_MEMBER_WAITS_MAX + 1];
    uint32_t count;
};

/* Answers the wait as soon as possible. CAIRN_ERR_BUSY, to the peer: CAIRN_MEMBER_WAITS_MAX wait
 * already. */
void coord_member_version_wait(struct coord_member *member, uint32_t request,
                               const Cairn__VersionWait *message);
/* Answers the waits whose version has been reached. */
void coord_members_answer_versions(struct coord_job *job);
/* Called after an event of the core: tells members the version, if it differs from what they were told. */
void coord_members_tell_version(struct coord_job *job);
/* Sends the newest version and its client state to the members that asked for the state, if the state is
 * known now. */
void coord_members_answer_states(struct coord_job *job);

/* ==== standing ==== */

/* The standing of a shard: whether we may act on the parts that it holds (server/core/standing.h). Parts of
 * another store are strange. Parts that are newer than our store's record of their job are strange, too. */

/* The cluster's identity, by which shards know us. */
struct coord_identity {
    struct coordinator_id id; /* identifies this process and its store */
    uint64_t *dropped;        /* owned: [dropped_count], ids of dropped jobs, the oldest first */
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
/* True: the shard obeys and does not leave, so it may get a part of a job. */
bool coord_shard_stays(const struct coord_shard_entry *entry);
/* True: the shard may get a part of a job of this spec (NULL: of any job): the shard stays, is not apart,
 * and would put nothing on a device that has failed. */
bool coord_shard_fits(const struct coord_shard_entry *entry, const struct job_spec_data *spec);
/* Notes what the Hello says. If we must not act on what the shard holds, logs this and returns false. */
bool coord_shard_judge_hello(struct coord *cluster, struct coord_shard_entry *entry,
                             const Cairn__Hello *hello);
/* Says why a shard does not obey, such as "it holds state of another store". */
const char *coord_shard_standing_text(const struct coord_shard_entry *entry);
void coord_shard_forget_parts(struct coord_shard_entry *entry);
/* Takes a frame of HeldJobs. The frame answers a question if it has a request id. Returns false if the
 * frame is malformed. */
bool coord_shard_take_held(struct coord_session *session,
                           const struct wire_frame *frame) CAIRN_MUST_CHECK;
/* Cleans our own leftovers from the shard: parts of jobs whose creation was never finished here, and parts
 * of jobs that were dropped, or restored onto other shards, while the shard was away. */
void coord_shard_clean(struct coord *cluster, struct coord_shard_entry *entry,
                       const Cairn__Hello *hello);
/* The marks of a job, to be compared: the marks that a shard has seen, and the marks that our store
 * knows. */
struct marks coord_held_marks(const Cairn__HeldJob *held);
struct marks coord_job_marks(const struct coord_job *job);
/* Returns true if a shard holds, or may hold, a job of that name that is not ours. `why` says what to
 * do. */
bool coord_job_is_strange(const struct coord *cluster, const char *name, struct sentence *why);
/* The parts on which we do not act. Their texts are borrowed from the entries. */
struct coord_strangers {
    Cairn__StrangePart **list; /* [count] */
    size_t count;
    /* owned */
    Cairn__StrangePart *parts;
    struct sentence *texts;
};
bool coord_strangers_init(struct coord_strangers *strangers, const struct coord *cluster);
void coord_strangers_release(struct coord_strangers *strangers);

/* ==== tiles ==== */

/* Tiles: the boxes of tensors that each rank holds (tiles.c says how they are kept; TilesDeclare in
 * control.proto). */

/* A job's tiles: which rank holds which boxes of the tensors. */
struct coord_tiles {
    uint32_t world;                   /* the ranks 0, ..., world - 1 declare tiles; 0: no tiles */
    struct coord_tile_list **of_rank; /* owned: [world]; NULL: not declared */
    struct coord_tile_list *lists;    /* owned: the distinct lists */
    /* true: a worker or a shard has told this incarnation of the coordinator about the tiles */
    bool known;
    /* true: shards may know of tiles, so they are told the tiles of each worker, even if it has none */
    bool telling;
    bool covered; /* the lists of all ranks together cover the tensors */
    bool changed; /* true: members joined or left during an event of the core */
};

/* The gate of a job's rounds, as the core knows it (tiles.c). */
struct coord_gate {
    bool shut;
    uint32_t world;
};

/* How much of a job's tiles has been sent to a shard. */
struct coord_part_tiles {
    size_t unanswered_bytes; /* bytes of MemberTiles that the shard has not answered */
    /* the member whose tiles are sent to the shard next, unless the shard knows them */
    struct coord_member *next;
};

/* A member's tiles, and which shards know them. */
struct coord_member_tiles {
    /* [shard_count]: which shards know the member's tiles; borrowed from member->known_to */
    uint8_t *known_to;
    uint32_t knowing; /* number of shards that know them */
    /* incremented when sent tiles are forgotten; answers with an older number are stale */
    uint32_t serial;
    /* id of the TilesDeclare whose pages are arriving, or that waits for TilesSet */
    uint32_t request;
    uint32_t world;     /* from that TilesDeclare */
    struct paged pages; /* owned; while arriving */
    bool arriving, declared;
};

void coord_tiles_declare(struct coord_member *member, uint32_t request,
                         const Cairn__TilesDeclare *message);
void coord_tiles_page(struct coord_session *session, uint32_t request, const Cairn__Page *page);
/* The worker asks for a round. If the worker declared no tiles, and no remaining member declared any, the
 * job's tiles end. */
void coord_tiles_begins(struct coord_member *member);
/* A shard says that it knows tiles for `world` ranks; 0: it knows no tiles. */
void coord_tiles_heard(struct coord_job *job, uint32_t world);
/* Called after any change: tells shards of tiles, judges the cover, then opens or shuts the core's gate. If
 * this is called during an event of the core, all of this is done after the event. */
void coord_gate_update(struct coord_job *job);
/* The shard is gone: it no longer knows the member's tiles. */
void coord_tiles_shard_gone(struct coord_member *m, uint32_t shard);

/* Returns true if a round cannot open because of tiles; `out` then says which members are missing. */
bool coord_tiles_waiting(const struct coord_job *job, struct sentence *out);
void coord_tiles_release(struct coord_job *job);

/* ==== leases ==== */

/* Leases: versions that members want kept for longer than training keeps them.
 *
 *   LeaseTake → a lease of the member (WAITS until no epoch is changing) → its version is KEPT:
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
    uint64_t number;             /* its number for the shards */
    uint64_t asked_ms;           /* when shards were last asked; while `asking` */
    struct coord_gather *gather; /* borrowed, while `asking` */
    bool asking, again;
};

struct coord_lease {
    struct coord_lease *next;        /* in the job's list */
    struct coord_member *member;     /* borrowed: the lease ends before the member is freed */
    struct coord_held_version *held; /* borrowed from the job; NULL: the lease WAITS */
    struct cairn_version version;    /* while the lease WAITS, {0, 0} means the newest version */
    uint32_t request;                /* id of its LeaseTake; 0: already answered */
    uint64_t key;                    /* key of the LeaseTake that began it */
    uint64_t ttl_ms;                 /* the duration that was last asked for */
    uint64_t ends_ms;                /* on the clock of coord_now_ms; 0: not granted yet */
    bool asked;                      /* the shards are being asked for it */
};

/* A job's leases. */
struct coord_leases {
    struct coord_lease *list;        /* owned */
    struct coord_held_version *held; /* owned; the leased versions */
};

/* Handles LeaseTake. The answer is sent at once or later. */
void coord_lease_take(struct coord_member *member, uint32_t request,
                      const Cairn__LeaseTake *message);
void coord_lease_drop(struct coord_member *member, const Cairn__LeaseDrop *message);
/* Rounds may continue: takes the leases that wait. Not to be called during an event of the core. */
void coord_leases_advance(struct coord_job *job);
/* The newest version was published again, in the layout in force, so shards that have joined since have it,
 * too. If the version is leased, asks these shards to keep it before another round opens. */
void coord_leases_republished(struct coord_job *job);
/* Ends the leases whose time is over. */
void coord_leases_tick(struct coord_job *job);
/* Returns true if the member waits for a lease. `out` then says for which shards. */
bool coord_leases_waiting(const struct coord_member *member, struct sentence *out);
/* Fails the waiting lease requests of the member. */
void coord_leases_fail(struct coord_member *member, cairn_status status, const char *text);
/* The member is being freed: ends its leases. */
void coord_leases_forget(struct coord_member *member);

/* ==== writes ==== */

/* Writes at a step boundary. RoundOpened answers the request later. */

/* A member's request to write. */
struct coord_write {
    uint32_t request;
    bool reserves; /* the request waits until reserved generations are durable */
};

void coord_member_write(struct coord_member *member, uint32_t request);

/* ==== unheard ==== */

/* The shards that a worker, a reader or another shard does not hear over the data path, although both ends
 * reach this coordinator. Each end reports this in its heartbeats (Heartbeat.unheard). The log, the events
 * and the answers to operators show the report. If both ends report the same path, it is shown once. */

#define CAIRN_CLUSTER_UNHEARD_MAX 16 /* the most shards that a heartbeat names */

/* The shards that a session does not hear. */
struct coord_unheard {
    struct {
        char name[CAIRN_NAME_MAX + 1]; /* name of a shard that is up */
        uint64_t since_ms;             /* when it was first reported, on the loop's clock */
    } list[CAIRN_CLUSTER_UNHEARD_MAX];
    size_t count;   /* at least 1 */
    char text[256]; /* the names, as far as they fit */
};

/* Takes the shards that the session's heartbeat names as unheard. */
void coord_unheard_take(struct coord_session *session, char *const *names, size_t count);
/* Returns the names of the shards that the session does not hear; "": the session hears every shard from
 * which it awaits something. */
const char *coord_unheard_text(const struct coord_session *session);
/* Writes which members and shards do not hear which of the job's shards; empty: nobody reports this. */
void coord_unheard_of_job(const struct coord_job *job, struct sentence *out);

#endif
