/* Workers and readers of jobs: how they join at the shards, what they hear, how they leave. */
#ifndef CAIRN_COORDINATOR_MEMBERS_H
#define CAIRN_COORDINATOR_MEMBERS_H

#include "proto/base/text.h"
#include "proto/fabric/fabric.h"
#include "server/coordinator/base.h"
#include "server/core/decision.h"
#include "server/core/standing.h"

/* ==== waiting ==== */

/* For whom a job waits, in words; and pauses, of workers that said that they are at work on something
 * else. */

#define CAIRN_MEMBER_PAUSE_BYTES 64

struct coord_pause {
    uint64_t ends_ms; /* coord_now_ms; 0: there is none */
    char what[CAIRN_MEMBER_PAUSE_BYTES];
};

/* For whom the job waits, and for what; empty: for nobody. */
void coord_job_waiting(const struct coord_job *job, struct sentence *out);
/* All whom the job awaits pause, for so long at most; 0: it awaits somebody else, too. */
uint64_t coord_job_paused_ms(const struct coord_job *job);
/* For how long the job has applied no round though it was to: JobStatus.still_ms. */
uint64_t coord_job_still_ms(const struct coord_job *job);
/* The job's members are put out for a restore: who pauses is waited for in the restored job, too. */
void coord_job_keep_pauses(struct coord_job *job);
/* Pause, or the end of one: answered. */
void coord_member_pause(struct coord_member *member, uint32_t request, const Cairn__Pause *pause);

/* ==== members ==== */

#define CAIRN_MEMBER_BUCKETS 512 /* of a job's index of its members; their ids are random */

/* A job's members. */
struct coord_job_members {
    struct coord_member *list;                        /* by next_of_job */
    struct coord_member *by_id[CAIRN_MEMBER_BUCKETS]; /* by next_of_bucket */
    uint32_t count;
    uint64_t read_bytes;               /* of members that have left, in this generation */
    struct cairn_version version_sent; /* readers were told that it is there */
    /* the longest of those who were put out for a restore, and come back */
    struct coord_pause pause;
    struct coord_relapse *relapses; /* owned: [relapse_count] */
    uint32_t relapse_count;
    uint64_t attaches; /* so far, of readers as well */
};

/* The member left the job by itself: tells the core and the shards, and frees it. */
void coord_member_leave(struct coord_member *member, const char *reason);
/* The same of one that is gone without a word. */
void coord_member_lost(struct coord_member *member, const char *reason);
/* Expels the member, and tells the core: the round goes on without it. */
void coord_member_put_out(struct coord_member *member, cairn_status status, const char *text);
/* A shard cannot read what the member pushed: expels the member; the open round is done again without it. */
void coord_member_fault(struct coord_job *job, uint64_t id, const char *text);
/* The member may not go on: its requests fail with this status, and the shards drop it. One that was attached
 * gets an Error of its own, and its connection is closed. Frees the member. The core knows already. */
void coord_member_expel(struct coord_member *member, cairn_status status, const char *text);
/* Frees what a member that is on its way in has of the spec it came with. */
void coord_member_forget_spec(struct coord_member *member);
/* Frees the member and tells nobody. */
void coord_member_free(struct coord_member *member);
/* Sends MemberJoin to all shards of the job; Attached follows when all of them know the member. */
void coord_member_tell_shards(struct coord_member *member);
/* Attaches the members whom all shards know, once the job's version is known. */
void coord_members_attach(struct coord_job *job);
/* A shard of the job is back: it is told of all members. */
void coord_members_tell_shard(struct coord_job *job, uint32_t shard);
/* A shard of the job is gone: it knows no member. */
void coord_members_forget_shard(struct coord_job *job, uint32_t shard);

/* ==== entries ==== */

/* Shards by name: who sits there, and who may (server/core/standing.h). */

#define CAIRN_SHARD_ENTRIES_MAX 4096 /* shards that are known by name */

uint32_t coord_shards_up(const struct coord *cluster);
/* Counts the shards that may be given part of a job of this spec (NULL: of any job). With `storing`, only
 * those without a storage complaint. */
uint32_t coord_shards_staying(const struct coord *cluster, const struct job_spec_data *spec,
                              bool storing);
/* NULL: there is none of that name. */
struct coord_shard_entry *coord_shard_find(const struct coord *cluster, const char *name);
/* Makes it if need be; NULL: no memory, or CAIRN_SHARD_ENTRIES_MAX. */
struct coord_shard_entry *coord_shard_get(struct coord *cluster, const char *name);
void coord_shard_free(struct coord_shard_entry *entry);

/* ==== relapse ==== */

/* Puts off a worker that fails right after each attach. Every attach and every loss voids the open
 * round, so nobody else comes to a step while that goes on. A worker that was lost again and again
 * before it ended a round is let in later each time, while others of the job do end rounds. A
 * worker that ends a round begins anew.
 *
 * A process that failed comes back as another process, and perhaps as another rank, so it is
 * known by its host. Losses of all workers of a host count together; workers that are lost
 * together count once. The losses of a rank are counted, too, on whichever host it was. A host
 * that did not fail is not put off for what another host did in that rank, unless the rank has
 * failed on several hosts. Where the host is not known, the rank alone counts. */

#define CAIRN_RELAPSE_FREE   2     /* so often in a row it may be lost for nothing */
#define CAIRN_RELAPSE_MAX_MS 60000 /* it is put off for so long at most */

/* A round has ended with it. */
void coord_relapse_over(struct coord_member *member);
/* Returns for how long a worker that wants in is put off from now on; 0: it is not. */
uint64_t coord_relapse_wait_ms(struct coord_job *job, const struct coord_member *member);
/* Says what a worker that is put off waits for. */
void coord_relapse_waiting(struct coord_job *job, const struct coord_member *member,
                           struct sentence *out);
void coord_relapses_release(struct coord_job *job);

/* ==== layouts ==== */

/* The layouts of a job by version: the one in force, the one in which the newest version is
 * published while that is an older one, and the one that comes next. Also tells members of
 * layouts. */

struct stored_job;

/* A job's layouts. All is owned, or held. */
struct coord_layouts {
    /* The job's version when the layout in force came; 0.0: it is the job's first. */
    struct cairn_version at;
    /* In which that version is published, and its shards; NULL: in the one in force. */
    struct packed *before;
    uint32_t before_shards;
    /* The next one; NULL: none is on its way. */
    struct layout *next;
    struct packed *next_packed;
    uint8_t *next_gone; /* [(next->shard_count + 7) / 8] bits: holes of it */
    /* The next one is on its way to the store: there is no way back. */
    bool storing;
};

/* The layout before the one in force, of a row that has one. CAIRN_ERR_MALFORMED, CAIRN_ERR_NO_MEMORY. */
cairn_status coord_layouts_load(struct coord_job *job,
                                const struct stored_job *row) CAIRN_MUST_CHECK;
void coord_layouts_release(struct coord_job *job);
/* Nothing comes next any more. */
void coord_layouts_drop_next(struct coord_job *job);
/* The next layout is the one in force, as of that version; shards that left it are holes now, without a word
 * to them. Members are not told. Nothing is allocated: it is durable. Gives the layout that was in force, the
 * caller's. */
struct layout *coord_layouts_take_next(struct coord_job *job, struct cairn_version now);
/* The newest version is published in the layout in force. */
void coord_layouts_published(struct coord_job *job);
/* The newest version is published in an older layout: that is what a member begins with. */
bool coord_layouts_behind(const struct coord_job *job);

/* True: the newest version is published in an older layout, and part of it is fetched from that
 * shard. */
bool coord_layouts_serves(const struct coord_job *job, uint32_t shard);

/* LayoutChanged to all who are attached. */
void coord_members_layout_changed(struct coord_job *job);

/* ==== commits ==== */

/* Who waits to hear how a round ended. */

/* Threads of one member wait side by side: one trains, one writes, and several may wait for one
 * round. If there are more than this, the oldest is answered that it is one too many: most
 * likely its thread has given up, which nobody tells us. */
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
/* To all who wait for that round; false: nobody does. */
bool coord_commits_answer(struct coord_member *member, const Cairn__RoundResult *result);

/* ==== version waits ==== */

/* Who waits for a version, or for the client state of the newest. */

/* Threads of one member wait side by side. Waits whose time is over make room, and are not
 * answered. */
enum { CAIRN_MEMBER_WAITS_MAX = 8 };
struct coord_version_wait {
    uint32_t request;
    bool state; /* the client state; else a version at least as new */
    struct cairn_version wanted;
    uint64_t ends_ms; /* of uv_now: when the thread gives up; 0: it did not say */
};

/* A member's waits: [count], oldest first; one too many only while it is judged. */
struct coord_version_waits {
    struct coord_version_wait list[CAIRN_MEMBER_WAITS_MAX + 1];
    uint32_t count;
};

/* Answers it when it can. CAIRN_ERR_BUSY, to the peer: as many wait already. */
void coord_member_version_wait(struct coord_member *member, uint32_t request,
                               const Cairn__VersionWait *message);
/* Answers the waits whose version is there. */
void coord_members_answer_versions(struct coord_job *job);
/* After an event of the core: if the version is another one than they were told. */
void coord_members_tell_version(struct coord_job *job);
/* The newest version and its client state to those who asked for it, if it is known now. */
void coord_members_answer_states(struct coord_job *job);

/* ==== standing ==== */

/* The standing of a shard: whether what it holds is ours to act on (server/core/standing.h). Parts of another
 * store, and parts whose job our store is behind of, are strange. */

/* The cluster's identity, by which shards know us. */
struct coord_identity {
    struct coordinator_id id; /* of this process, and of its store */
    uint64_t *dropped;        /* owned: [dropped_count], the oldest first */
    size_t dropped_count;
};

/* Fills cluster->identity of the store. CAIRN_ERR_NO_MEMORY. */
cairn_status coord_standing_open(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
/* The job is in the store no more. */
void coord_dropped_add(struct coord *cluster, uint64_t job);
/* It is here, and what it holds is ours to act on. */
bool coord_shard_obeys(const struct coord_shard_entry *entry);
/* Its device has failed, and nothing may come to that (server/shard/shard.h). */
bool coord_shard_unfit(const struct coord_shard_entry *entry);
/* It listens on no network, so that of other hosts nobody reaches it, and shards of other hosts are here: a
 * part of a job there would stop whoever trains elsewhere. */
bool coord_shard_apart(const struct coord_shard_entry *entry);
#define CAIRN_SHARD_APART_TEXT                                                                    \
    "listens on no network, and shards of other hosts are here: it gets no part of a job before " \
    "fabric.device is set there"
/* And it does not leave: it may get a part of a job. */
bool coord_shard_stays(const struct coord_shard_entry *entry);
/* One of this spec: it is not apart, and nothing would lie on a device that has failed. NULL: of any job. */
bool coord_shard_fits(const struct coord_shard_entry *entry, const struct job_spec_data *spec);
/* Notes what the Hello says; false, and logged: we must not act on what it holds. */
bool coord_shard_judge_hello(struct coord *cluster, struct coord_shard_entry *entry,
                             const Cairn__Hello *hello);
/* "it holds state of another store": of one that does not obey. */
const char *coord_shard_standing_text(const struct coord_shard_entry *entry);
void coord_shard_forget_parts(struct coord_shard_entry *entry);
/* A frame of HeldJobs, the answer to a question if it has a request. False: not as it should be. */
bool coord_shard_take_held(struct coord_session *session,
                           const struct wire_frame *frame) CAIRN_MUST_CHECK;
/* Leftovers of our own on it: of jobs that were never finished here, or were dropped, or restored onto other
 * shards, while it was away. */
void coord_shard_clean(struct coord *cluster, struct coord_shard_entry *entry,
                       const Cairn__Hello *hello);
/* The marks of a job that a shard has seen, and those that our store knows, to be compared. */
struct marks coord_held_marks(const Cairn__HeldJob *held);
struct marks coord_job_marks(const struct coord_job *job);
/* A job of that name, which is not ours, is held by somebody, or may be: `why` says what to do. */
bool coord_job_is_strange(const struct coord *cluster, const char *name, struct sentence *why);
/* Parts that we do not act on; they borrow from the entries. */
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

/* A job's tiles: who holds which boxes of the tensors. */
struct coord_tiles {
    uint32_t world;                   /* the ranks 0, ..., world - 1 declare; 0: no tiles */
    struct coord_tile_list **of_rank; /* owned: [world]; NULL: not declared */
    struct coord_tile_list *lists;    /* owned: the different ones */
    bool known;                       /* this incarnation was told, by a worker or a shard */
    bool telling; /* shards may know of tiles: every worker's are told, also that it has none */
    bool covered; /* the lists of all ranks make up the tensors */
    bool changed; /* members came or went in an event of the core */
};

/* The gate of a job's rounds, as the core knows it (tiles.c). */
struct coord_gate {
    bool shut;
    uint32_t world;
};

/* The tiles that a shard's part of a job is told. */
struct coord_part_tiles {
    size_t unanswered_bytes; /* of MemberTiles on their way to the shard */
    /* the shard is told of this member's tiles next, unless it knows them */
    struct coord_member *next;
};

/* A member's tiles, and which shards know them. */
struct coord_member_tiles {
    /* [shard_count]: which shards know its tiles; borrowed of member->known_to */
    uint8_t *known_to;
    uint32_t knowing;   /* shards that know them */
    uint32_t serial;    /* counts what is told of them */
    uint32_t request;   /* TilesDeclare: its pages arrive, or it waits for TilesSet */
    uint32_t world;     /* of that TilesDeclare */
    struct paged pages; /* owned; while arriving */
    bool arriving, declared;
};

void coord_tiles_declare(struct coord_member *member, uint32_t request,
                         const Cairn__TilesDeclare *message);
void coord_tiles_page(struct coord_session *session, uint32_t request, const Cairn__Page *page);
/* The worker asks for a round. One that declared no tiles, when nobody is left who did, ends them. */
void coord_tiles_begins(struct coord_member *member);
/* A shard says that it knows tiles of so many ranks; 0: of none. */
void coord_tiles_heard(struct coord_job *job, uint32_t world);
/* Something changed: tells shards of tiles, judges the cover, then opens or shuts the core's gate. During an
 * event of the core: after it. */
void coord_gate_update(struct coord_job *job);
/* A shard, or a member that leaves the job's list, is not told of any more. */
void coord_tiles_shard_gone(struct coord_member *m, uint32_t shard);

/* False: a round may open, for all that tiles are concerned. Else `out` says who is missing. */
bool coord_tiles_waiting(const struct coord_job *job, struct sentence *out);
void coord_tiles_release(struct coord_job *job);

/* ==== leases ==== */

/* Leases: versions that members want kept for longer than training keeps them.
 *
 *   LeaseTake → a lease of the member (WAITS until no epoch is changing) → its version is KEPT:
 *   LeaseKeep to all shards → all said Done → Leased. One refused: the others are told to end it, Error.
 *
 * All leases of a version are one for the shards: kept for the longest of them, ended with the last. The word
 * travels on the channels that decisions travel on, so it comes between the same two of them on every shard.
 *
 * Asked for again, a lease is renewed, and never made shorter. It ends when the member drops it, leaves or is
 * expelled, or when its time is over; nothing of it is durable. Shards end by themselves what they have not
 * been told of for its time and a quarter of it. */

#define CAIRN_MEMBER_LEASES_MAX 16

/* A version that shards keep, or are asked to. */
struct coord_held_version {
    struct coord_held_version *next; /* of the job's */
    struct cairn_version version;
    uint64_t number;             /* for the shards */
    uint64_t asked_ms;           /* when they were asked last; while `asking` */
    struct coord_gather *gather; /* borrowed, while `asking` */
    bool asking, again;
};

struct coord_lease {
    struct coord_lease *next;        /* of the job's */
    struct coord_member *member;     /* borrowed: goes before it */
    struct coord_held_version *held; /* borrowed of the job; NULL: WAITS */
    struct cairn_version version;    /* while it WAITS, {0, 0}: the newest */
    uint32_t request;                /* LeaseTake; 0: answered */
    uint64_t key;                    /* of the LeaseTake that began it */
    uint64_t ttl_ms;                 /* that was asked for last */
    uint64_t ends_ms;                /* of coord_now_ms; 0: not granted yet */
    bool asked;                      /* the shards are being asked for it */
};

/* A job's leases. */
struct coord_leases {
    struct coord_lease *list;        /* owned */
    struct coord_held_version *held; /* owned; the versions of them */
};

/* A request; answered here or later. */
void coord_lease_take(struct coord_member *member, uint32_t request,
                      const Cairn__LeaseTake *message);
void coord_lease_drop(struct coord_member *member, const Cairn__LeaseDrop *message);
/* Rounds may go on: leases that wait are taken. Not during an event of the core. */
void coord_leases_advance(struct coord_job *job);
/* The newest version was published once more, in the layout in force: shards that joined since have it, too,
 * and are asked to keep it where it is leased, before another round opens. */
void coord_leases_republished(struct coord_job *job);
/* Ends the leases whose time is over. */
void coord_leases_tick(struct coord_job *job);
/* True: the member waits for a lease, and `out` says for which shards. */
bool coord_leases_waiting(const struct coord_member *member, struct sentence *out);
/* The requests of the member that wait fail. */
void coord_leases_fail(struct coord_member *member, cairn_status status, const char *text);
/* The member goes: its leases end. */
void coord_leases_forget(struct coord_member *member);

/* ==== writes ==== */

/* Writes at a step boundary. Answered by RoundOpened, later. */

/* A member's request to write. */
struct coord_write {
    uint32_t request;
    bool reserves; /* the request waits for generations that are durable */
};

void coord_member_write(struct coord_member *member, uint32_t request);

/* ==== unheard ==== */

/* Whom a worker, a reader or a shard does not hear over the data path, though both reach this coordinator.
 * Each says so in its heartbeats (Heartbeat.unheard): it is in the log, an event, and in what an operator
 * asks for. Where both ends say it, it is said once. */

#define CAIRN_CLUSTER_UNHEARD_MAX 16 /* that a heartbeat names */

/* The shards that a session does not hear. */
struct coord_unheard {
    struct {
        char name[CAIRN_NAME_MAX + 1]; /* of a shard that is up */
        uint64_t since_ms;             /* of the loop's clock: it was told */
    } list[CAIRN_CLUSTER_UNHEARD_MAX];
    size_t count;   /* at least 1 */
    char text[256]; /* the names, as far as they fit */
};

/* The session's heartbeat names these shards. */
void coord_unheard_take(struct coord_session *session, char *const *names, size_t count);
/* Their names; "": it hears all of whom it awaits something. */
const char *coord_unheard_text(const struct coord_session *session);
/* Who of the job does not hear which of its shards; empty: nobody says so. */
void coord_unheard_of_job(const struct coord_job *job, struct sentence *out);

#endif
