#ifndef CAIRN_COORDINATOR_BASE_H
#define CAIRN_COORDINATOR_BASE_H

#include <stdbool.h>
#include <sys/queue.h>
#include <uv.h>

#include "proto/base/text.h"
#include "proto/fabric/fabric.h"
#include "proto/wire/wire.h"
#include "server/base/listener.h"
#include "server/base/log.h"
#include "server/core/standing.h"

/* ==== names ==== */

/* Every header of the coordinator needs these: its structs by name, messages, and sentences. */

struct coord;             /* cluster.h */
struct coord_shard_entry; /* below */
struct coord_job;         /* job.h */

/* ==== those who wait ==== */

/* A request that waits for a snapshot, a restore, an amendment ...; it goes with its session. */
struct coord_waiter {
    LIST_ENTRY(coord_waiter) of_list, of_session;
    struct coord_session *session;
    uint32_t request;
};

LIST_HEAD(coord_waiters, coord_waiter);

/* False: the session waits for too much. */
bool coord_waiters_add(struct coord_waiters *list, struct coord_session *session, uint32_t request);
/* Who still waits when the coordinator stops: the connections end, that is answer enough. */
void coord_waiters_release(struct coord_waiters *list);
/* Answers all of the list, which is empty then. */
void coord_waiters_answer(struct coord_waiters *list, uint16_t type,
                          const ProtobufCMessage *message);
void coord_waiters_fail(struct coord_waiters *list, cairn_status status, const char *text);
/* All of `from` wait in `to`, which is empty. */
void coord_waiters_move(struct coord_waiters *from, struct coord_waiters *to);
/* The session goes: nobody waits with it. */
void coord_waiters_forget(struct coord_session *session);

/* ==== calls ==== */

/* Questions to shards. A gather is one question to several shards and one answer, when all have answered. A
 * shard that goes away fails its calls with CAIRN_ERR_CLOSED. */

/* An id for a request of ours, also of one whose answer nobody waits for. Never 0. */
uint32_t coord_request_new(struct coord *cluster);
/* `status` is CAIRN_OK if all said Done, else the first failure; `why` says whose. */
typedef void (*cluster_gather_fn)(void *context, cairn_status status, const char *why);
/* A question to nobody yet: coord_gather_ask adds shards, coord_gather_start waits for them.
 * NULL: no memory. */
struct coord_gather *coord_gather_open(struct coord *cluster, cluster_gather_fn on_done,
                                       void *context);
/* The same about a job: on_done comes only if the job is still there and the coordinator does not close.
 * on_done gets a copy of `about`, valid until it returns; NULL, 0: there is nothing but the job. */
typedef void (*cluster_job_gather_fn)(struct coord_job *job, const void *about, cairn_status status,
                                      const char *why);
struct coord_gather *coord_gather_open_job(const struct coord_job *job,
                                           cluster_job_gather_fn on_done, const void *about,
                                           size_t about_bytes);
/* The id with which the caller sends the request to that entry. 0: no memory, or the entry is away; the
 * gather fails then. */
uint32_t coord_gather_ask(struct coord_gather *gather, struct coord_shard_entry *entry);
/* The same, and sends it: a message whose frames are this one alone. */
uint32_t coord_gather_send(struct coord_gather *gather, struct coord_shard_entry *entry,
                           uint16_t type, const ProtobufCMessage *message);
/* All were asked: on_done comes when all have answered, and at once if nobody is left to answer. */
void coord_gather_start(struct coord_gather *gather);
/* Adds the names of those that have not answered: "s1, s3". */
void coord_gather_awaited(const struct coord_gather *gather, struct sentence *out);
/* A shard answers a request of ours. */
void coord_calls_reply(struct coord_shard_entry *entry, uint32_t request, cairn_status status,
                       const char *text);
/* The shard is gone: its calls fail. Nobody asks it anything in here. */
void coord_calls_shard_gone(struct coord_shard_entry *entry);

/* ==== entry ==== */

/* The entry of a shard. */

TAILQ_HEAD(cluster_calls, coord_call); /* of base.c */

/* A shard, known by its name. */
struct coord_shard_entry {
    struct coord_shard_entry *next; /* of the cluster's list, by name */
    char *name;                     /* owned */
    struct coord_session *session;  /* NULL = away */
    struct cluster_calls calls;     /* what it was asked and has not answered, oldest first */
    uint64_t incarnation;
    struct seat_part *held; /* owned, [held_count]: what it came with, in force and prepared */
    size_t held_count;
    enum seat_probe probe; /* of who sits there, for another process of this name */
    uint64_t asked_ms;     /* coord_now_ms: the probe */
    char claimant[64];     /* where a process is that holds parts, too, and waits; .. */
    uint64_t claimed_ms;   /* .. when it came last; 0: never */
    struct log_limit claims;
    bool ended;        /* its last connection was closed at its end: most likely with its process */
    uint64_t since_ms; /* of the loop's clock: when it came or went */
    uint64_t gone_ms;  /* coord_now_ms: when it went; while we are stopped nobody is away */
    uint8_t *fabric_address; /* owned, [fabric_address_bytes]; the last one it had */
    size_t fabric_address_bytes;
    /* by that address: other hosts reach it; or its own host alone, by memory. Neither: it does not say */
    bool is_networked, is_mapped;
    bool apart_said;                    /* coord_shard_apart, in the log */
    char host[CAIRN_FABRIC_HOST_BYTES]; /* where it is; empty: it does not say */
    Cairn__ShardStats stats;            /* of its last Heartbeat, if has_stats */
    bool has_stats;
    /* why it cannot save snapshots; empty: it can, or has not said */
    struct sentence storage;
    Cairn__BytesTold *bytes; /* owned, [bytes_count]: of the same Heartbeat */
    size_t bytes_count;
    Cairn__MemoryTold *memory; /* owned, [memory_count]: likewise */
    size_t memory_count;
    /* of its session: may we act on what it holds, and what that is (standing.c) */
    struct coordinator_id seen;
    enum standing standing;
    Cairn__HeldJobs *parts; /* owned; NULL: it has not told yet, or holds nothing */
    bool parts_awaited; /* it holds jobs that are not known here, and has not told their names */
    /* the question of an adoption for them (0: it was away then), and the one that they answer (0: none) */
    uint32_t parts_asked, parts_answered;
    uint64_t memory_bytes; /* that it may use for state; 0: it does not say */
    bool leaving;          /* its jobs go to others, and it gets no part of any */
    struct sentence unfit; /* its device failed: what becomes of what else it holds */
    struct {
        struct coord_waiters waiters; /* owned: who asked for it */
        struct coord_waiters begun;   /* owned: who is told when the store has it */
        uint32_t
            stored; /* by an operator's word, and in the store or on its way: its number; 0: not */
        uint32_t request; /* the shard's own; 0: none */
        /* coord_now_ms: nothing moves any more from then on, and it is given up; 0: never */
        uint64_t saves_ms, ends_ms;
        bool is_unfit;       /* nobody asked: its device failed. It ends by itself */
        uint64_t again_ms;   /* coord_now_ms: what could not be is not tried before */
        bool is_over;        /* it holds nothing, and was told to end */
        bool is_saving;      /* it cannot be brought to hold nothing, and ends: snapshot.h */
        cairn_status status; /* then: why not */
        struct sentence why; /* and of an unfit one: what of its jobs cannot move */
    } drain;
    uint64_t planned_bytes; /* of jobs.c, while it chooses the shards of a job */
};

/* ==== session ==== */

/* A connection that said a good Hello, and what is sent on it. */

#define CAIRN_SESSION_MEMBERS_MAX 64 /* jobs that one connection has open */
#define CAIRN_SESSION_PAGED_MAX   4  /* specs that are on their way on one connection */

struct coord_session {
    struct coord_session *next; /* of the cluster's list */
    struct coord *cluster;
    struct peer *peer; /* borrowed from the listener */
    uint32_t role;     /* enum role_wire */
    char *name;        /* owned */
    char *version;     /* owned: of its build, as it said it */
    uint64_t incarnation;
    uint32_t without;        /* of a shard: bits of enum spec_without */
    Cairn__Home *home;       /* owned: of a shard that tells; or NULL */
    uint8_t *fabric_address; /* owned: [fabric_address_bytes] */
    size_t fabric_address_bytes;
    uint64_t last_frame_ms, since_ms; /* of the loop's clock */
    struct coord_member *members;     /* by next_of_session */
    Cairn__Hello *hello;              /* owned: of a shard that has not said all of it; or NULL */
    struct coord_shard_entry *entry;  /* of a shard, while it holds it */
    uint32_t member_count;            /* jobs that it has open */
    uint32_t wait_count;              /* answers that it waits for (above) */
    uint32_t unanswered;              /* of an admin: requests without an answer so far */
    struct coord_waiters waiters;     /* owned: by of_session */
    struct coord_unheard *unheard;    /* owned: whom it does not hear; NULL: nobody */
    bool closing;                     /* was asked to go: its frames are dropped */
};

/* Each does nothing without a session. One that cannot be sent to is being closed, and goes by itself. */
void coord_session_send(struct coord_session *session, uint16_t type, uint32_t request,
                        const ProtobufCMessage *message);
void coord_session_error(struct coord_session *session, uint32_t request, cairn_status status,
                         const char *text);
void coord_session_done(struct coord_session *session, uint32_t request);
/* Holds the bytes and sends them as Pages. */
void coord_session_pages(struct coord_session *session, uint32_t request, enum page_what what,
                         struct packed *packed);

/* ==== works ==== */

/* Work that blocks, on libuv's threads, and the sessions that wait for its outcome. Writes to
 * the store do not come here (store.h), so that a hung folder of snapshots does not hold
 * them up. */

#define CAIRN_SESSION_WAITS_MAX 16 /* answers that one connection waits for */

/* Work for one of libuv's threads; the first member of what it works on. */
struct coord_work {
    uv_work_t req;
    struct coord_work *next; /* of the cluster's list */
    struct coord *cluster;
    struct coord_session *session; /* who is answered; NULL: nobody, or it went */
    uint32_t request;
    void (*run)(struct coord_work *work);  /* on another thread */
    void (*done)(struct coord_work *work); /* on the loop; frees it */
};

/* False if the session waits for too much, or there is no thread: nothing was begun. */
bool coord_work_start(struct coord_work *work, struct coord *cluster, struct coord_session *session,
                      uint32_t request);
/* The same of work on so many bytes; on few it is done at once, sooner than a thread is told of it: `done`
 * has run then. */
bool coord_work_do(struct coord_work *work, struct coord *cluster, struct coord_session *session,
                   uint32_t request, size_t bytes);
/* `free_it` frees `what`, of which nobody else knows, and which was made of so many bytes: likewise. */
void coord_free_by(struct coord *cluster, void (*free_it)(void *what), void *what, size_t bytes);

/* ==== sessions ==== */

/* Connections: Hello, frames, leases. */

void coord_session_on_frame(struct peer *peer, const struct wire_frame *frame, void *context);
void coord_session_on_gone(struct peer *peer, cairn_status status, const char *why, void *context);
/* Handles the requests that came early and need not wait any more (cluster.h). */
void coord_sessions_take_early(struct coord *cluster);
void coord_sessions_tick(struct coord *cluster, uint64_t now_ms, uint64_t away_ms);

/* ==== arrivals ==== */

/* Shards come and go: who has which entry (members.h), and who hears of it. */

/* The session is gone, for that reason. */
void coord_shard_leave(struct coord_session *session, cairn_status status, const char *why);
/* One that went and that nobody needs is forgotten, so that passing strangers leave nothing. */
void coord_shard_drop_unused(struct coord *cluster, struct coord_shard_entry *entry);
/* Forgets a shard that is gone for good, because an operator says so. CAIRN_ERR_BUSY: it is
 * here, or a job has a part on it. */
cairn_status coord_shard_forget(struct coord *cluster, const char *name,
                                struct sentence *why) CAIRN_MUST_CHECK;
/* Who was asked and is silent loses its entry. */
void coord_shards_tick(struct coord *cluster);

/* ==== handlers ==== */

/* Judged frames of each role. Each returns false if the role may not say that. */

bool coord_handle_worker(struct coord_session *session, const struct wire_frame *frame,
                         const ProtobufCMessage *message);
bool coord_handle_shard(struct coord_session *session, const struct wire_frame *frame,
                        const ProtobufCMessage *message);
bool coord_handle_admin(struct coord_session *session, const struct wire_frame *frame,
                        const ProtobufCMessage *message);
/* status.c */
void coord_status_answer(struct coord_session *session, uint32_t request);
void coord_job_list_answer(struct coord_session *session, uint32_t request);
void coord_job_show_answer(struct coord_session *session, uint32_t request,
                           const Cairn__JobShow *show);

/* ==== asked ==== */

/* Every operator's action has its who, from where, when and what: in the log, and in the events. */

/* Notes a request of an admin, if it is one that changes something: as the command line calls it, with all
 * that it was given, as far as that fits, and how much more there is. */
void coord_asked_note(const struct coord_session *session, const struct wire_frame *frame,
                      const ProtobufCMessage *message);

#endif
