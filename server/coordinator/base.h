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
#include "server/coordinator/access.h"
#include "server/core/standing.h"

/* ==== names ==== */

/* All headers of the coordinator name these structs. */

struct coord;             /* cluster.h */
struct coord_shard_entry; /* below */
struct coord_job;         /* job.h */

/* ==== those who wait ==== */

/* A request that waits for a snapshot, a restore, an amendment or the like. The waiter is freed when its
 * session ends, unless the audit log waits for the end, too. */
struct coord_waiter {
    LIST_ENTRY(coord_waiter) of_list, of_session;
    struct coord_session *session; /* NULL: nobody is answered */
    uint32_t request;
    struct coord_asked *asked; /* held; NULL: the audit log does not wait */
};

LIST_HEAD(coord_waiters, coord_waiter);

/* CAIRN_ERR_BUSY: the session waits for too many answers, or there is no memory. */
CAIRN_MUST_CHECK cairn_status coord_waiters_add(struct coord_waiters *list,
                                                struct coord_session *session, uint32_t request,
                                                struct sentence *why);
/* Has the audit log wait for the end of the request's work, which is when this list is answered. Call it
 * behind coord_waiters_add, which may refuse the request, if the request itself is answered earlier. */
void coord_waiters_note_end(struct coord_waiters *list, struct coord_session *session,
                            uint32_t request);
/* Called when the coordinator stops, or nobody can be answered: frees the waiters. */
void coord_waiters_release(struct coord_waiters *list);
/* Answers every waiter of the list, and empties the list. */
void coord_waiters_answer(struct coord_waiters *list, uint16_t type,
                          const ProtobufCMessage *message);
void coord_waiters_fail(struct coord_waiters *list, cairn_status status, const char *text);
/* Moves all waiters of `from` to `to`, which must be empty. */
void coord_waiters_move(struct coord_waiters *from, struct coord_waiters *to);
/* The session is ending: frees all its waiters. */
void coord_waiters_forget(struct coord_session *session);

/* ==== calls ==== */

/* Questions to shards. A gather is one question to several shards, with one result when all have answered.
 * When a shard's connection ends, all calls to this shard fail with CAIRN_ERR_CLOSED. */

/* Returns an id, never 0, for a request that this coordinator sends. The request needs an id even if nobody
 * waits for the answer. */
uint32_t coord_request_new(struct coord *cluster);
/* `status` is CAIRN_OK if all shards said Done, else the first failure. `why` says which shard failed, and
 * why. */
typedef void (*cluster_gather_fn)(void *context, cairn_status status, const char *why);
/* Opens a gather that asks no shard yet: coord_gather_ask adds shards, coord_gather_start waits for them.
 * NULL: no memory. */
struct coord_gather *coord_gather_open(struct coord *cluster, cluster_gather_fn on_done,
                                       void *context);
/* coord_gather_open_job does the same for a question about a job. on_done is then called only if the job
 * still exists and the coordinator is not closing. on_done gets a copy of `about`, valid until on_done
 * returns. `about` may be NULL, with about_bytes 0, if on_done needs nothing but the job. */
typedef void (*cluster_job_gather_fn)(struct coord_job *job, const void *about, cairn_status status,
                                      const char *why);
struct coord_gather *coord_gather_open_job(const struct coord_job *job,
                                           cluster_job_gather_fn on_done, const void *about,
                                           size_t about_bytes);
/* Returns the id with which the caller sends the request to that shard. Returns 0 if there is no memory or
 * the shard is away; the gather then fails. */
uint32_t coord_gather_ask(struct coord_gather *gather, struct coord_shard_entry *entry);
/* Adds the shard as coord_gather_ask does, and sends it `message` as the request, without pages. */
uint32_t coord_gather_send(struct coord_gather *gather, struct coord_shard_entry *entry,
                           uint16_t type, const ProtobufCMessage *message);
/* All shards were asked: on_done is called when all have answered, or at once if no answer is
 * outstanding. */
void coord_gather_start(struct coord_gather *gather);
/* Nobody wants the answers any more: on_done is not called. */
void coord_gather_drop(struct coord_gather *gather);
/* Adds the names of the shards that have not answered: "s1, s3". */
void coord_gather_awaited(const struct coord_gather *gather, struct sentence *out);
/* A shard has answered a request of ours: ends the call. */
void coord_calls_reply(struct coord_shard_entry *entry, uint32_t request, cairn_status status,
                       const char *text);
/* The shard's connection ended: its calls fail. The on_done of these calls must not ask this shard
 * anything. */
void coord_calls_shard_gone(struct coord_shard_entry *entry);

/* ==== entry ==== */

/* The entry of a shard. */

TAILQ_HEAD(cluster_calls, coord_call); /* defined in base.c */

/* How far the drain of a shard is. */
struct coord_shard_drain {
    /* owned: the requests that are answered when the drain has ended */
    struct coord_waiters waiters;
    /* owned: the requests that are answered as soon as the store has recorded the drain */
    struct coord_waiters begun;
    /* number of a drain that an operator asked for, while the store has it or is writing it; 0: no such
     * drain */
    uint32_t stored;
    uint32_t request; /* the shard's own request; 0: none */
    /* coord_now_ms; 0: never. saves_ms: when moving stops and the shard's jobs are saved instead.
     * ends_ms: when the drain is given up */
    uint64_t saves_ms, ends_ms;
    /* true: the drain began because the shard's device failed. Nobody asked for such a drain, and it
     * ends by itself */
    bool is_unfit;
    uint64_t again_ms; /* coord_now_ms: a failed attempt is not repeated before this time */
    bool is_over;      /* true: the shard holds nothing, and was told to end */
    /* true: the shard ends before its state can be moved, so its jobs are saved (snapshot.h) */
    bool is_saving;
    cairn_status status; /* if is_saving: why the shard cannot be emptied */
    /* `status` in words; for an unfit shard: which of its jobs cannot move */
    struct sentence why;
};

/* Another process that wants a shard's name. */
struct coord_claim {
    /* While another process of this name waits, the coordinator asks the shard's present process whether it
     * lives. The probe says how far this is. */
    enum seat_probe probe;
    uint64_t asked_ms; /* coord_now_ms: when the probe was sent */
    /* the address of another process that has this name, waits, and holds parts as well; .. */
    char claimant[64];
    uint64_t claimed_ms; /* .. when that process last connected; 0: never */
    struct log_limit limit;
};

/* A version to which a shard's part of a job can go back. */
struct former_version {
    uint64_t job;
    struct cairn_version version;
};

/* The figures of the shard's last Heartbeat. */
struct coord_told {
    Cairn__ShardStats stats; /* if has_stats */
    bool has_stats;
    Cairn__BytesTold *bytes; /* owned: [bytes_count] */
    size_t bytes_count;
    Cairn__MemoryTold *memory; /* owned: [memory_count] */
    size_t memory_count;
    struct former_version *former; /* owned: [former_count] to which its jobs can go back */
    size_t former_count;
    char standby_of[CAIRN_NAME_MAX + 1]; /* the shard that it mirrors; empty: it is no standby */
    char domain[CAIRN_NAME_MAX + 1]; /* it fails as a whole, with the host; empty: the host alone */
    /* the process that has stopped a part of a job, so that nothing is mirrored there; 0: none */
    uint64_t stopped_incarnation, stopped_job;
    bool has_keeper, has_log; /* ShardTiers */
    bool had_keeper;          /* at any time, as far as this coordinator knows */
    bool log_was_empty;       /* ShardTiers */
    struct sentence log_lacks;
    uint64_t awaited[CAIRN_HELD_JOBS_MAX]; /* jobs of whose parts it waits for the snapshots */
    size_t awaited_count;
};

/* A shard, known by its name. */
struct coord_shard_entry {
    struct coord_shard_entry *next; /* in the cluster's list, by name */
    char *name;                     /* owned */
    struct coord_session *session;  /* NULL = away */
    struct cluster_calls calls;     /* requests that the shard has not answered, the oldest first */
    uint64_t incarnation;
    /* owned: [held_count]: the parts that the shard's Hello reported. Each part has two entries, one for
     * its layout in force, one for its prepared layout */
    struct seat_part *held;
    size_t held_count;
    struct coord_claim claim;
    bool ended; /* the shard's side closed its last connection: its process has most likely ended */
    uint64_t since_ms; /* when the shard last connected or disconnected, on the loop's clock */
    /* coord_now_ms: when the shard disconnected; time in which the coordinator was stopped does not
     * count */
    uint64_t gone_ms;
    uint8_t *fabric_address; /* owned: [fabric_address_bytes]: the shard's last known address */
    size_t fabric_address_bytes;
    /* is_networked: other hosts reach the shard at that address. is_mapped: only processes of the shard's
     * own host reach the shard, through shared memory. If neither is set, the shard does not say how it is
     * reached. */
    bool is_networked, is_mapped;
    bool apart_said;                    /* the log has reported coord_shard_apart */
    char host[CAIRN_FABRIC_HOST_BYTES]; /* the shard's host; empty: not reported */
    /* why the shard cannot save snapshots; empty: it can, or has not reported */
    struct sentence storage;
    struct coord_told told;
    /* the next fields are about the shard's present session: which parts the shard holds, and whether we
     * may act on these parts (standing.c) */
    struct coordinator_id seen;
    enum standing standing;
    Cairn__HeldJobs *parts; /* owned; NULL: the shard has not reported its parts yet, or has none */
    /* true: the shard holds jobs that are not known here, and has not reported their names */
    bool parts_awaited;
    /* parts_asked: the request with which an adoption asked for the parts (0: the shard was away).
     * parts_answered: the request that `parts` answers (0: none) */
    uint32_t parts_asked, parts_answered;
    uint64_t memory_bytes; /* memory that the shard may use for state; 0: not reported */
    /* true: the shard leaves the cluster, so its parts move to other shards, and it gets no new part */
    bool leaving;
    /* if the shard's device failed: what happens to the state that the shard holds in host memory */
    struct sentence unfit;
    struct coord_shard_drain drain;
    uint64_t planned_bytes; /* used by jobs.c while it chooses the shards of a job */
};

/* ==== session ==== */

/* A connection whose Hello was accepted, and the messages that are sent on it. */

#define CAIRN_SESSION_MEMBERS_MAX 64 /* the most jobs that one connection may have open */
#define CAIRN_SESSION_PAGED_MAX   4  /* the most specs that may be arriving on one connection */

struct coord_session {
    struct coord_session *next; /* in the cluster's list */
    struct coord *cluster;
    struct peer *peer; /* borrowed from the listener */
    uint32_t role;     /* enum role_wire */
    char *name;        /* owned */
    char *version;     /* owned: the version of the peer's build, from Hello */
    uint64_t incarnation;
    uint32_t without;        /* shard only: bits of enum spec_without */
    Cairn__Home *home;       /* owned: where a shard keeps its state; NULL: not reported */
    uint8_t *fabric_address; /* owned: [fabric_address_bytes] */
    size_t fabric_address_bytes;
    uint64_t last_frame_ms, since_ms; /* on the loop's clock */
    struct coord_member *members;     /* linked by next_of_session */
    /* owned: a shard's Hello, until all its messages have arrived; else NULL */
    Cairn__Hello *hello;
    struct coord_shard_entry *entry; /* shard only, while the session has the entry */
    uint32_t member_count;           /* number of jobs that the session has open */
    uint32_t wait_count;             /* number of answers that the session waits for */
    uint32_t unanswered;             /* admin only: number of requests that have no answer yet */
    struct coord_waiters waiters;    /* owned: linked by of_session */
    struct coord_owner *owner;       /* whose share it has (tenants.h); NULL: none */
    uint64_t owner_number; /* the owner's, and no other's while this process lives; 0: none */
    struct coord_unheard *unheard; /* owned: the shards that the peer does not hear; NULL: none */
    /* true: the session is being closed, and its frames are dropped */
    bool closing;
    bool has_old_token; /* a shard whose token is replaced, which the log has said */
    /* an admin's command, or one that is put out to make room: it takes no owner's place (tenants.h) */
    bool is_apart;
};

/* Each of these functions does nothing if the session is NULL or closing. If sending fails, the session is
 * closed, and on_gone follows. */
void coord_session_send(struct coord_session *session, uint16_t type, uint32_t request,
                        const ProtobufCMessage *message);
void coord_session_error(struct coord_session *session, uint32_t request, cairn_status status,
                         const char *text);
void coord_session_done(struct coord_session *session, uint32_t request);
/* Holds `packed` until its bytes are sent. They are sent as Pages. */
void coord_session_pages(struct coord_session *session, uint32_t request, enum page_what what,
                         struct packed *packed);

/* ==== answers ==== */

/* An answer is a message that points to lists, other messages and texts. This memory holds all of them until
 * the answer is sent. So whoever fills in a part of an answer need not count beforehand, and frees nothing.
 * If there is no memory for a part, the part is left out, and coord_answer_send sends an error instead. */
struct coord_answer {
    struct answer_block *blocks; /* owned */
    bool failed;                 /* true: there was no memory for a part */
};

/* Returns zeros; NULL: no memory. */
void *coord_answer_bytes(struct coord_answer *answer, size_t bytes);
/* Returns a copy of the formatted text; "": no memory. */
char *coord_answer_text(struct coord_answer *answer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Adds a message, initialized, to the repeated field of that name of `to`. NULL: no memory. */
void *coord_answer_add(struct coord_answer *answer, ProtobufCMessage *to, const char *field);
/* Sends the message to which the parts belong, or the error, and releases the answer. */
void coord_answer_send(struct coord_answer *answer, struct coord_session *session, uint32_t request,
                       uint16_t type, const ProtobufCMessage *message);
void coord_answer_release(struct coord_answer *answer);

/* ==== works ==== */

/* Work that blocks, on libuv's threads, and the sessions that wait for its outcome. Writes to the store
 * have a thread of their own (store.h), so that a hung folder of snapshots does not delay them. */

#define CAIRN_SESSION_WAITS_MAX 16 /* the most answers that one connection may wait for */

/* Work for one of libuv's threads. It is the first member of the struct that has the data of the work. */
struct coord_work {
    uv_work_t req;
    struct coord_work *next; /* in the cluster's list */
    struct coord *cluster;
    uint64_t owner; /* number of the owner who asks for it (tenants.h); 0: none */
    bool waits;     /* true: enough works of the owner run */
    /* the session to answer; NULL: there is none, or the session has ended */
    struct coord_session *session;
    uint32_t request;
    struct coord_asked *asked; /* held; NULL: the audit log does not wait for the outcome */
    void (*run)(struct coord_work *work); /* runs on another thread */
    void (*done)(
        struct coord_work *work); /* called on the loop; frees the work, unless free_it is set */
    void (*free_it)(struct coord_work *work); /* NULL, or called after `done` */
    /* the outcome, if `run` sets it */
    cairn_status status;
    struct sentence why;
};

#define CAIRN_OWNER_WORKS_MAX \
    2 /* of libuv's four threads, those that works of one owner may take */

/* Returns false, and begins nothing, if the session waits for too many answers or no thread can take the
 * work. The work waits while its owner has CAIRN_OWNER_WORKS_MAX others. */
bool coord_work_start(struct coord_work *work, struct coord *cluster, struct coord_session *session,
                      uint32_t request);
/* coord_work_do does the same for work on `bytes` bytes. If `bytes` is small, the work is done at once,
 * because that is faster than handing it to a thread. In that case `done` has run before this function
 * returns. */
bool coord_work_do(struct coord_work *work, struct coord *cluster, struct coord_session *session,
                   uint32_t request, size_t bytes);
/* For work whose memory is the struct alone. */
void coord_work_free(struct coord_work *work);
/* Begins work, which has free_it, to answer the session's request. If the work cannot begin, frees it, and
 * answers that. `work` NULL: there was no memory for it. */
void coord_work_ask(struct coord_work *work, struct coord_session *session, uint32_t request);
/* Answers the session that waits for the work, if there is one: with the message if the work's status is
 * CAIRN_OK, else with the error. */
void coord_work_answer(const struct coord_work *work, uint16_t type,
                       const ProtobufCMessage *message);
/* Calls free_it(what), on another thread or at once, as coord_work_do decides by `bytes`. `bytes` is the
 * size of the data that `what` was made from. Nobody else may use `what`. */
void coord_free_by(struct coord *cluster, void (*free_it)(void *what), void *what, size_t bytes);

/* ==== sessions ==== */

/* Connections: Hello, frames, leases. */

void coord_session_on_frame(struct peer *peer, const struct wire_frame *frame, void *context);
/* Gives the roles of a user of this host. */
void coord_session_local(struct identity *identity, const gid_t *groups, size_t group_count,
                         void *context);
void coord_session_on_gone(struct peer *peer, cairn_status status, const char *why, void *context);
/* Handles the early requests that need not wait any longer (cluster.h). */
void coord_sessions_take_early(struct coord *cluster);
void coord_sessions_tick(struct coord *cluster, uint64_t now_ms, uint64_t away_ms);
/* Ends the session now: its members leave and its shard is away, whether the peer reads the reason or not. A
 * peer that is put out with CAIRN_ERR_BUSY comes again, and hears then whether there is room. */
void coord_session_put_out(struct coord_session *session, cairn_status status, const char *why);

/* ==== arrivals ==== */

/* Handles shards that connect and disconnect: decides which session has which entry (members.h), and tells
 * the others about each change. */

/* The shard's session has ended, for the reason given. */
void coord_shard_leave(struct coord_session *session, cairn_status status, const char *why);
/* Forgets a shard that is away, if nobody needs it. Shards that connected only briefly thus leave no
 * entry. */
void coord_shard_drop_unused(struct coord *cluster, struct coord_shard_entry *entry);
/* Forgets a shard that will not return, because an operator asked for this. CAIRN_ERR_BUSY: the shard is
 * connected, or a job has a part on it. */
cairn_status coord_shard_forget(struct coord *cluster, const char *name,
                                struct sentence *why) CAIRN_MUST_CHECK;
/* A process that was probed and does not answer loses its entry. */
void coord_shards_tick(struct coord *cluster);

/* ==== messages ==== */

/* Who may send a message, and what the sender must have. */
enum coord_sender {
    CAIRN_FROM_ADMIN = 1, /* a request of the command line */
    CAIRN_FROM_SHARD,     /* a shard, whatever it holds */
    CAIRN_FROM_PART, /* a shard that has a part of the message's job; from another one it is ignored */
    CAIRN_FROM_TRAINER, /* a worker or a reader, whether it is a member of the job or not */
    CAIRN_FROM_MEMBER,  /* a request of an attached worker or reader of the message's job */
    CAIRN_FROM_WORKER,  /* a request of an attached worker of the message's job */
};

/* Requests that wait until a coordinator that has just started can answer them. */
enum coord_awaits {
    CAIRN_AWAITS_NOTHING,
    CAIRN_AWAITS_REPORTS, /* the answer depends on what the shards of known jobs report */
    /* The answer depends on jobs that the store does not know. For such a job nobody knows which of its
     * shards have yet to connect. */
    CAIRN_AWAITS_ALL_SHARDS,
};

struct coord_member; /* job.h */

/* A message that may be sent to the coordinator, and the one function that handles it. `message` is the
 * message of that type, unpacked, and valid until the function returns. by_part and by_frame return false if
 * the message is malformed. */
struct coord_row {
    uint16_t type; /* 0: the end of a table */
    enum coord_sender from;
    void (*by_session)(struct coord_session *session, uint32_t request, const void *message);
    /* a request: any status but CAIRN_OK is sent as the answer, with `why` */
    cairn_status (*asks)(struct coord_session *session, uint32_t request, const void *message,
                         struct sentence *why);
    void (*by_member)(struct coord_member *member, uint32_t request, const void *message);
    bool (*by_part)(struct coord_job *job, uint32_t shard, const void *message);
    bool (*by_frame)(struct coord_session *session, const struct wire_frame *frame);
    bool is_notice; /* from trainers: the message is no request, and has no answer */
    enum coord_awaits awaits;
    /* from admins, for a request that changes something: its command line, for the log and the events */
    const char *verb;
    /* The roles (bits of enum secure_role) of which the sender's identity must have one; an admin may send
     * everything. 0: for a request of the command line with a verb, that of an admin; without one, that of
     * a monitor; else the roles that the sender's Hello needed. */
    uint32_t needs;
    /* the field of a request that has a job's name, for the log and the events too; NULL: the message names
     * no job, or does so by number */
    const char *job;
    /* how the request wants to use that job, by which it is judged whose job that is (tenants.h). NONE: its
     * roles alone judge it, so what is forgotten here is an admin's */
    enum access_kind wants;
};

/* Returns the name of the job that the message names by its row; "": it names none. */
const char *coord_row_job(const struct coord_row *row, const ProtobufCMessage *message);

/* Each file that handles messages has a table of them; messages.c lists the tables. */
extern const struct coord_row coord_adopt_rows[], coord_amend_rows[], coord_digests_rows[],
    coord_drain_rows[], coord_events_rows[], coord_jobs_rows[], coord_keep_rows[],
    coord_keys_rows[], coord_leases_rows[], coord_members_rows[], coord_openings_rows[],
    coord_park_rows[], coord_reshard_rows[], coord_reshard_asked_rows[], coord_restore_rows[],
    coord_roster_rows[], coord_status_rows[], coord_tenants_rows[], coord_tiles_rows[],
    coord_waiting_rows[], coord_mirror_rows[], coord_rollback_rows[];

/* Returns how long a request of the session has to wait after the coordinator has started. */
enum coord_awaits coord_message_awaits(const struct coord_session *session, uint16_t type);
/* Handles a checked frame. False: the session's role may not send such a message, or it is malformed. */
bool coord_handle_message(struct coord_session *session, const struct wire_frame *frame,
                          ProtobufCMessage *message);

/* ==== asked ==== */

/* For every operator's action the log and the events say who asked, from where, when, and for what. */

/* Returns the command line of a request that changes something; NULL: it changes nothing. */
const char *coord_asked_verb(const struct coord_row *row, const ProtobufCMessage *message);
/* A request that the audit log has noted as begun, while somebody holds it who knows how its work ends. */
struct coord_asked;

/* Notes a request of a command that changes something, and makes it the one that is being handled. NULL: it
 * is only counted (store.h), or there is no memory. The log names it as the command line does, by its
 * coord_asked_verb, and has as many of the arguments as fit. It says how many arguments were left out. */
struct coord_asked *coord_asked_note(const struct coord_session *session,
                                     const struct coord_row *row, const char *verb,
                                     const ProtobufCMessage *message, uint32_t request);
/* Notes in the audit log that the request was begun, or why it failed, and lets go of it; NULL is fine. */
void coord_asked_done(struct coord_asked *asked, cairn_status status, const char *why);
/* Returns the request, if it is the one that is being handled, and nobody has called coord_asked_hold_end for
 * it. The caller calls coord_asked_end once. NULL: it is not. */
struct coord_asked *coord_asked_hold(const struct coord_session *session, uint32_t request);
/* Does the same for the end of the request's work, so its answer is no end. */
struct coord_asked *coord_asked_hold_end(const struct coord_session *session, uint32_t request);
/* The holder's work has ended. When that of all holders has, the audit log says so, or what failed first.
 * NULL is fine. */
void coord_asked_end(struct coord_asked *asked, cairn_status status, const char *why);

#endif
