/* The coordinator's state on disk, and with store_shared.c the only module that uses SQLite.
 *
 * The store has the identity of the store, the incarnation of the coordinator, and the jobs, each with its
 * spec, layout, shards, generation, epoch and a reserved block of round numbers. It also has the ids of the
 * last jobs that were dropped, because a shard that was away then still has its part; the token of the
 * folder that snapshots were written to (below); the shards that an operator drains; the keys whose
 * signatures are trusted; who may connect, and by which keys (roster.h); and the last events. No round
 * writes anything: a new coordinator asks the shards for everything else (server/core/round.h). A job is
 * written when each of its shards holds its part, so every job in the store has existed.
 *
 * The store is one file, FOLDER/coordinator.db, with WAL and synchronous=FULL: a change whose call returned
 * CAIRN_OK survives the loss of power. Every call is one transaction, and a call that fails changes
 * nothing. Only one thread at a time may call. Each call blocks until the disk has the commit (store.c).
 * Epochs, reserved numbers and `initialized` only grow: if a row that was copied earlier is written, they
 * are not lowered. Errors: CAIRN_ERR_IO, CAIRN_ERR_NO_SPACE, CAIRN_ERR_CORRUPT. */
#ifndef CAIRN_COORDINATOR_STORE_H
#define CAIRN_COORDINATOR_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/text.h"
#include "proto/snapshot/snapshot.h"
#include "server/base/daemon.h"
#include "server/coordinator/base.h"
#include "server/core/line.h"

struct sqlite3;

/* ==== keys ==== */

/* The key with which this cluster signs its snapshots, and the keys whose signatures it trusts.
 *
 * The secret key is FOLDER/cluster.key, mode 0600, in the store's folder. It is made at the first start,
 * and is durable before anything is signed. A copy of the store (`cairn cluster backup`) has the secret
 * key, too. If such a copy is put back without cluster.key, that file is made from the copy. The trusted
 * public keys are in the store: this cluster's own keys, former ones included, and the keys of other
 * clusters that an operator trusts. Shards are told these keys, and keep them with their state. A store
 * that adopts the state trusts the keys from then on. A new secret key is made if neither the file nor the
 * store has one. Snapshots that an old key signed stay trusted. Loop thread only, except for the ring of
 * coord_keys_ring, which is a copy. */

#define CAIRN_KEY_FILE "cluster.key"

/* Reads the file of the key, or makes it. Must be called when the store and the events are open, and before
 * the store's thread begins. Blocks. CAIRN_ERR_CONFIG: the file holds no key, or other users may read
 * it. */
cairn_status coord_keys_open(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
void coord_keys_close(struct coord *cluster);
/* Returns the key that signs. The key does not change while the cluster is open, so any thread may use
 * it. */
const struct secret_key *coord_keys_signer(const struct coord *cluster);
/* Copies the keys that are trusted now, so that another thread can use them. */
void coord_keys_ring(const struct coord *cluster, struct key_ring *out);

/* ---- the keys that shards keep ---- */
struct trusted_key {
    struct public_key key;
    bool is_own; /* true: the key is or was this cluster's own */
    uint64_t since_unix_s;
};
/* The trusted keys as a message. The message borrows from this struct, so it is valid as long as the struct
 * exists. */
struct keys_message {
    Cairn__Keys keys;
    Cairn__Key *list[CAIRN_KEYS_MAX], views[CAIRN_KEYS_MAX];
    char ids[CAIRN_KEYS_MAX][CAIRN_KEY_NAME_BYTES], lines[CAIRN_KEYS_MAX][CAIRN_KEY_LINE_BYTES];
};
void coord_keys_fill(const struct coord *cluster, struct keys_message *room);
/* Does the same for the keys of `list`. */
void coord_keys_fill_list(const struct coord *cluster, const struct trusted_key *list, size_t count,
                          struct keys_message *room);
/* Adds to `list` the keys in `kept`, which are those of a shard, that this cluster does not trust. Returns
 * the list's new length. */
size_t coord_keys_unknown(struct coord *cluster, const Cairn__Keys *kept,
                          struct trusted_key list[CAIRN_KEYS_MAX], size_t count);
/* Called when the keys of `list` are in the store: this cluster trusts them from now on. */
void coord_keys_adopted(struct coord *cluster, const struct trusted_key *list, size_t count);
/* True: a key is being written to the store. */
bool coord_keys_are_changing(const struct coord *cluster);

/* ==== store ==== */

struct coord_store;

/* the most dropped jobs that the store keeps, which are the last ones */
#define CAIRN_STORE_DROPPED_MAX 4096
/* the most events that the store keeps, which are those with the highest numbers; the same for the audit
 * log */
#define CAIRN_STORE_EVENTS_MAX 4096
#define CAIRN_STORE_CURVES_MAX 2

/* Texts and bytes in rows are borrowed for the length of a call, whether the row is written or read. */

/* ---- a shared store ----
 *
 * Several coordinators can have one store, of which one at a time is the leader (lead.h). The leader's rows
 * are in memory, in the same tables of SQLite, and durable at a `backing`: as a picture of the store,
 * followed by the changes since then, each as SQLite's session extension gives it. A change is committed in
 * memory when the backing has it. */

/* Keeps the rows of a shared store. Each function blocks; any thread, one at a time. */
struct backing {
    const char *name; /* for sentences: "etcd://127.0.0.1:2379/cairn" */
    /* Passes the newest picture, then each change after it, in order, to `take`, which borrows the bytes.
     * Passes nothing if the backing is new. CAIRN_ERR_CORRUPT, CAIRN_ERR_MISMATCH: the rows are damaged, or
     * not this cluster's. */
    cairn_status (*load)(struct backing *backing,
                         cairn_status (*take)(void *context, const uint8_t *bytes,
                                              size_t byte_count, struct sentence *why),
                         void *context, struct sentence *why);
    /* Makes one more change durable, all of it or nothing. CAIRN_ERR_UNREACHABLE: this process does not lead
     * any more, and whether the change was made is not known. */
    cairn_status (*append)(struct backing *backing, const uint8_t *bytes, size_t byte_count,
                           struct sentence *why);
    /* Makes a picture take the place of everything, all of it or nothing. CAIRN_ERR_UNREACHABLE: as above. */
    cairn_status (*replace)(struct backing *backing, const uint8_t *bytes, size_t byte_count,
                            struct sentence *why);
};

/* The store's link to its backing (store_shared.c). */
struct shared;
/* Loads all rows into a new database in memory. A new backing gives an empty database. On an error, too, both
 * results are the caller's to close, if they are set. */
cairn_status shared_open(struct backing *backing, struct sqlite3 **db_out,
                         struct shared **shared_out, struct sentence *why) CAIRN_MUST_CHECK;
void shared_close(struct shared *shared); /* before the database; NULL is fine */
/* Watches the rows from now on, within a transaction. */
cairn_status shared_begin(struct shared *shared, struct sentence *why) CAIRN_MUST_CHECK;
/* Stops to watch them: the next picture must have their changes. */
void shared_leave(struct shared *shared);
/* Makes durable all that has changed, if `status` is CAIRN_OK, and stops to watch. Returns the status by
 * which the transaction ends. */
cairn_status shared_end(struct shared *shared, cairn_status status,
                        struct sentence *why) CAIRN_MUST_CHECK;
/* True: there are so many bytes of changes that a picture should take their place. */
bool shared_is_long(const struct shared *shared);
cairn_status shared_replace(struct shared *shared, const uint8_t *picture, size_t picture_bytes,
                            struct sentence *why) CAIRN_MUST_CHECK;

/* ---- the rows ---- */

struct stored_meta {
    uint64_t zero; /* always 0, because there is only one row */
    /* the coordinator's incarnation, which is 1 at first, and grows by 1 whenever the store is opened */
    uint64_t incarnation;
    /* the store's identity: a random number, never 0, made with the store and anew by store_adopt */
    uint64_t identity;
    /* the token of the folder that snapshots were written to; 0: no snapshot was written */
    uint64_t storage;
};

struct stored_shard {
    uint64_t job, place;
    const char *name; /* "": a hole */
    double weight;    /* weight of the shard in a re-sharding; 0: everything moves off the shard */
};

/* whose a job is, and who made it: see struct coord_tenant (tenants.h). A text that is NULL counts as "" */
struct stored_tenant {
    uint64_t job;
    const char *owner, *shared, *shared_read, *made_by, *made_from;
    uint64_t made_unix_s;
};

/* the digest of the initial state that a worker put, in hexadecimal; "": it is not known */
struct stored_begun {
    uint64_t job;
    const char *digest;
};

struct stored_turn {
    uint64_t job, place;
    struct origin origin;
};

struct stored_job {
    uint64_t id;
    const char *name;
    const uint8_t *spec; /* [spec_bytes]: the spec as spec_pack packed it */
    size_t spec_bytes;
    const uint8_t *layout; /* [layout_bytes]: the packed layout (proto/geometry/layout.h) */
    size_t layout_bytes;
    uint64_t generation;
    uint64_t generation_reserved; /* a restore may have used generations up to this one */
    uint64_t epoch;
    uint64_t round_reserved; /* round numbers up to this one may have been used */
    uint64_t base_step;      /* the step at which the generation began */
    bool initialized;
    struct origin origin;
    struct turns turns; /* written and read together with the job */
    /* The next fields are for a change of layout. layout_at_...: the job's version when `layout` came into
     * force. layout_before: [layout_before_bytes]: the layout in which that version is published; NULL: it
     * is published in `layout`. */
    uint64_t layout_at_generation, layout_at_step;
    const uint8_t *layout_before;
    size_t layout_before_bytes;
    /* [shard_count]: the shards by index in the layout, followed by the shards that join. Their fields
     * `job` and `place` are ignored, because this row and the index give both. */
    const struct stored_shard *shards;
    uint32_t shard_count;
    bool weighed; /* true: a re-sharding is under way, so the shards have weights */
    double pause; /* the pause of the re-sharding under way */
    const struct stored_tenant *tenant; /* its field `job` is ignored; NULL: not known */
    const char
        *begun; /* digest of the initial state that a worker put, in hexadecimal; NULL: not known */
};

/* a dropped job: if shards still hold parts of it, these are leftovers of our own */
struct stored_dropped {
    uint64_t place, job;
};

struct stored_leaving { /* a shard that an operator drains (reshard.h) */
    const char *shard;
};

struct stored_key {   /* a key whose signatures are trusted (above) */
    const char *line; /* the public key, as a line of base64 */
    bool is_own;      /* true: the key is or was this cluster's own */
    uint64_t since_unix_s;
};

/* The next three are the roster's (roster.h), which alone knows what their values mean. Keys and secrets are
 * hexadecimal. */
struct stored_token {
    uint64_t id;
    const char *name, *owner, *jobs, *secret, *pin;
    uint64_t roles, created_unix_s, not_after_unix_s, grace_until_unix_s, revoked_unix_s,
        seen_unix_s;
};

struct stored_curve { /* a key of the coordinator */
    uint64_t number;  /* the higher, the newer */
    const char *secret;
    uint64_t since_unix_s;
};

struct stored_node { /* the public key by which a shard's name is known */
    const char *shard, *key;
    uint64_t token; /* the id of the token that it came with */
    uint64_t since_unix_s;
};

struct stored_mirror { /* a standby that is in step with a shard's part of a job */
    const char *part;  /* the job's id and the shard's index, as text */
    uint64_t job, generation, layout, place; /* layout: its version */
    const char *shard;                       /* the standby */
    uint64_t incarnation;
};

struct stored_event { /* see the section "events" below */
    uint64_t place; /* in its ring; of the first ring it is the number, and the store has it once */
    uint64_t number, unix_ms;
    const char *kind, *job, *who, *text;
};

/* Opens or makes FOLDER/coordinator.db, and adds 1 to the incarnation. A file that an older program made gets
 * the tables that it lacks. The folder must exist, and be locked
 * (server/base/daemon.h). If there is a `backing` (below), that has the rows, and not the folder.
 * CAIRN_ERR_CORRUPT: the file is damaged, or not a database of Cairn.
 * CAIRN_ERR_VERSION: the version of the file is another one, which cannot be read. */
cairn_status store_open(const char *folder, struct backing *backing, struct coord_store **store_out,
                        struct sentence *why) CAIRN_MUST_CHECK;
void store_close(struct coord_store *store); /* NULL is fine */

/* Returns the meta row as it was at the start, or at the last adoption. */
const struct stored_meta *store_meta(const struct coord_store *store);
/* Returns how many rows, events excepted, were written since the store was opened. A test uses this to show
 * that rounds write no rows. */
uint64_t store_rows_written(const struct coord_store *store);

/* ---- rows ----
 * For each kind of row, a table in store.c describes the columns, and where each column is in the row's
 * struct. The same few functions can thus create, write, copy and read all kinds. */

enum store_kind {
    CAIRN_STORED_META,    /* struct stored_meta: one row */
    CAIRN_STORED_JOBS,    /* struct stored_job, by name, each with its shards */
    CAIRN_STORED_SHARDS,  /* struct stored_shard: written and read together with the job */
    CAIRN_STORED_DROPPED, /* struct stored_dropped, the oldest first */
    CAIRN_STORED_LEAVING, /* struct stored_leaving */
    CAIRN_STORED_KEYS,    /* struct stored_key, the cluster's own keys first */
    CAIRN_STORED_EVENTS,  /* struct stored_event, by number */
    CAIRN_STORED_TOKENS,  /* struct stored_token, by name, and of a name the oldest first */
    CAIRN_STORED_CURVES,  /* struct stored_curve, the oldest first */
    CAIRN_STORED_NODES,   /* struct stored_node, by shard */
    CAIRN_STORED_AUDIT,   /* struct stored_event, by number: the audit log */
    CAIRN_STORED_TENANTS, /* struct stored_tenant: written and read together with the job */
    CAIRN_STORED_BEGUN,   /* struct stored_begun: the same */
    /* struct stored_event, by place: the events and the entries that are kept apart */
    CAIRN_STORED_EVENTS_APART,
    CAIRN_STORED_AUDIT_APART,
    CAIRN_STORED_MIRRORS, /* struct stored_mirror, by part */
    CAIRN_STORED_TURNS,   /* struct stored_turn: written and read together with the job */
    CAIRN_STORED_KINDS
};

/* The kinds of changes; each is made in one transaction. CAIRN_ERR_NOT_FOUND: the job is not in the
 * store. */
enum store_change {
    /* adds the job, or replaces the job that has its id. CAIRN_ERR_EXISTS: another job has the name */
    CAIRN_STORE_JOB,
    /* writes the job's epoch, reserved rounds, shards, and all fields about layouts */
    CAIRN_STORE_LAYOUT,
    CAIRN_STORE_EPOCH,       /* writes the job's epoch and reserved rounds */
    CAIRN_STORE_INITIALIZED, /* writes the job's `initialized`, and `begun` */
    CAIRN_STORE_GENERATION,  /* writes the job's generation_reserved */
    CAIRN_STORE_JOB_DROP,    /* deletes the job with this id, and adds it to the dropped jobs */
    CAIRN_STORE_STORAGE,     /* writes `storage` of the meta row */
    CAIRN_STORE_LEAVE,       /* adds the shard to the shards that leave */
    CAIRN_STORE_STAY,        /* removes the shard from the shards that leave */
    CAIRN_STORE_KEY,         /* adds the key, or replaces the key with the same line */
    CAIRN_STORE_KEY_DROP,    /* deletes the key with this line */
    /* Adds events, or replaces the events with the same numbers. Events survive the end of the process.
     * They survive the loss of power only after another kind of change has been committed. */
    CAIRN_STORE_EVENTS,
    CAIRN_STORE_AUDIT,        /* the same for entries of the audit log */
    CAIRN_STORE_EVENTS_APART, /* the same for those that are kept apart */
    CAIRN_STORE_AUDIT_APART,
    /* adds tokens, or replaces those with their ids; deletes those that are there and get no secret */
    CAIRN_STORE_TOKEN,
    CAIRN_STORE_SEEN,  /* writes `seen_unix_s` of tokens */
    CAIRN_STORE_CURVE, /* adds a key, and deletes all but the newest CAIRN_STORE_CURVES_MAX */
    CAIRN_STORE_NODE,
    CAIRN_STORE_NODE_DROP,
    CAIRN_STORE_TENANT, /* writes whose the job is */
    CAIRN_STORE_BEGUN,  /* writes with what initial state the job began */
    CAIRN_STORE_MIRROR, /* adds the mirror of the part, or replaces it */
    CAIRN_STORE_MIRROR_DROP,
    /* the next kinds are used by the store itself */
    CAIRN_STORE_START,
    CAIRN_STORE_SHARDS,
    CAIRN_STORE_SHARDS_DROP,
    CAIRN_STORE_TURNS,
    CAIRN_STORE_TURNS_DROP,
    CAIRN_STORE_CHANGES
};

/* Writes `count` rows, in one transaction. A job's shards are written with the job. */
cairn_status store_write(struct coord_store *store, enum store_change change, const void *rows,
                         size_t count, struct sentence *why) CAIRN_MUST_CHECK;
/* Copies the rows of a change into one block, which the caller frees. The block has copies of the texts,
 * but not of the bytes and shards to which jobs point. Returns NULL if there is no memory. */
void *store_copy(enum store_change change, const void *rows, size_t count);
/* Passes every row of a kind to `take`, which borrows the row. Stops at the first row for which `take`
 * fails, and returns the status of `take`. */
typedef cairn_status (*stored_fn)(void *context, const void *row, struct sentence *why);
cairn_status store_each(struct coord_store *store, enum store_kind kind, stored_fn take,
                        void *context, struct sentence *why) CAIRN_MUST_CHECK;

/* ---- a lost store, made anew from what shards hold ---- */

struct store_adoptees { /* borrowed for the length of a call */
    const struct stored_job *jobs;
    size_t job_count;
    const struct stored_key *keys;
    size_t key_count;
    uint64_t incarnation; /* the highest incarnation that the shards have seen */
};
/* In one transaction, adds or replaces the jobs and keys, makes a new identity, and sets an incarnation
 * that is higher than the present one and than every one that shards have seen. CAIRN_ERR_EXISTS: as for
 * CAIRN_STORE_JOB. */
cairn_status store_adopt(struct coord_store *store, const struct store_adoptees *adoptees,
                         struct sentence *why) CAIRN_MUST_CHECK;

/* Makes a picture of the store: the bytes of a file that can be opened as a store. *bytes_out is malloc'd,
 * and belongs to the caller. The file has everything that is in this store now, and the signer.
 * CAIRN_ERR_NO_MEMORY. */
cairn_status store_picture(const struct coord_store *store, uint8_t **bytes_out,
                           size_t *byte_count_out, struct sentence *why) CAIRN_MUST_CHECK;
/* Returns the signer, which is the text of the key that signs snapshots. Every picture has the signer. In
 * use, the key is in a file of its own, so a store has the signer only if it was put back from a picture.
 * CAIRN_ERR_NOT_FOUND: the store has no signer. */
cairn_status store_signer(const struct coord_store *store, char text_out[CAIRN_KEY_TEXT_BYTES],
                          struct sentence *why) CAIRN_MUST_CHECK;
/* Sets the signer that pictures get. If the store itself has a signer, removes it, because the key is in
 * its own file now. */
cairn_status store_set_signer(struct coord_store *store, const char *text,
                              struct sentence *why) CAIRN_MUST_CHECK;

/* ==== saves ==== */

/* The store's writes run on a thread of their own, one after the other, in the order in which they were
 * requested. The loop thus never waits for the disk. If a caller must wait until a write is durable, it
 * continues in the write's `then`.
 *
 * Each function copies the rows that it writes. `then` is called on the loop, but not if the cluster is
 * closed before. CAIRN_ERR_NO_MEMORY: nothing was begun. */

/* The cluster's saves. */
struct coord_saves {
    struct pool *pool;         /* owned: the store's thread */
    struct coord_save *list;   /* owned: the saves under way */
    struct coord_steps *steps; /* borrowed: the operations that wait for the disk (operations.h) */
    uint64_t rows_written;     /* rows written by finished saves */
    int lock_fd;               /* owned: the lock of the store's folder; -1: none */
};

/* The outcome of a save. */
struct coord_saved {
    struct coord *cluster;
    /* id of the job, which may be dropped or replaced by now; 0: the save belongs to no job */
    uint64_t job;
    enum store_change change;
    uint64_t number; /* a number that the caller chose, to tell its saves of that change apart */
    cairn_status status;
    const char *why;
};
typedef void (*cluster_saved_fn)(const struct coord_saved *saved);

/* Writes rows that belong to no job, as store_write does. */
cairn_status coord_save(struct coord *cluster, enum store_change change, const void *rows,
                        size_t count, uint64_t number, cluster_saved_fn then,
                        struct sentence *why) CAIRN_MUST_CHECK;
/* Makes a change of the job's row, and writes the values that the job has now. Exceptions are the values
 * that the job takes only when they are durable: the spec, which is `spec` (NULL: the job's own),
 * `initialized` in INITIALIZED, and in GENERATION the reserved generations, which are those up to
 * `number`. */
cairn_status coord_save_job(struct coord_job *job, enum store_change change, struct packed *spec,
                            uint64_t number, cluster_saved_fn then,
                            struct sentence *why) CAIRN_MUST_CHECK;
/* Returns true if a change of the job is being written to the store. */
bool coord_saving(const struct coord_job *job);
cairn_status coord_saves_open(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
/* Waits for the save that runs, and drops all others. Calls on_closed at the end, if the saves were
 * open. */
void coord_saves_close(struct coord *cluster, void (*on_closed)(void *context), void *context);

/* ==== events ==== */

/* The cluster's events: which shards and members joined, left, moved or were put out, when and why. `cairn
 * cluster events` shows them. The newest CAIRN_STORE_EVENTS_MAX events are in memory, and as many of those
 * that only an admin causes, apart from them. They are also written to the store, a moment later, so that a
 * new incarnation of the coordinator has them. Their commit does not wait for the disk, so the last events
 * before a loss of power may be missing. Loop thread only. */

/* kind | its name */
#define CAIRN_EVENTS(X)                                                                         \
    X(STARTED, "started") /* the coordinator */                                                 \
    X(UP, "up")           /* a new process of a shard */                                        \
    X(BACK, "back")       /* a shard's process whose connection was lost */                     \
    X(AWAY, "away")                                                                             \
    X(CLAIMED, "claimed")     /* another process of the shard's name waits */                   \
    X(FORGOTTEN, "forgotten") /* an operator forgot a shard */                                  \
    X(ATTACHED, "attached")   /* a worker or reader, to a job */                                \
    X(LEFT, "left")           /* a worker or reader, by itself */                               \
    X(LOST, "lost")           /* a worker or reader, without saying so */                       \
    X(PUT_OUT, "put-out")                                                                       \
    X(FENCED, "fenced") /* another process took the member's place */                           \
    X(EPOCH, "epoch")   /* a new epoch of a job, and why */                                     \
    X(CREATED, "job-created")                                                                   \
    X(AMENDED, "job-amended")                                                                   \
    X(HALTED, "job-halted")                                                                     \
    X(JOB_LOST, "job-lost")                                                                     \
    X(RESTORED, "job-restored")                                                                 \
    X(ROLLED_BACK, "job-rolled-back")                                                           \
    X(DROPPED, "job-dropped")                                                                   \
    X(PARKED, "job-parked")                                                                     \
    X(UNPARKED, "job-unparked")                                                                 \
    X(SNAPSHOT, "snapshot-committed")                                                           \
    X(SNAPSHOT_FAILED, "snapshot-failed")                                                       \
    X(RESHARD, "reshard-begun")                                                                 \
    X(RESHARD_ENDED, "reshard-ended")                                                           \
    X(SHARD_JOINED, "shard-joined")                                                             \
    X(SHARD_LEFT, "shard-left")                                                                 \
    X(DRAIN, "drain-begun")                                                                     \
    X(DRAINED, "drain-ended")                                                                   \
    X(PATH_CUT, "path-cut") /* a data path, reported by the end that does not hear the other */ \
    X(PATH_WHOLE, "path-whole")                                                                 \
    X(KEY, "key") /* a key is trusted, is no longer trusted, or was made anew */                \
    X(DAMAGED, "snapshot-damaged")                                                              \
    X(ASKED, "asked")           /* an operator's request that changes something */              \
    X(STORAGE, "storage-taken") /* the snapshots' folder was another cluster's */               \
    X(MIRRORED, "mirrored")     /* a standby is in step with a shard */                         \
    X(TAKEN, "place-taken")     /* a standby has the place of a lost shard */                   \
    X(STOPPED, "part-stopped")  /* a shard has stopped its part of a job, and does no more */   \
    X(DEGRADED, "degraded")     /* a job has less durability than it asks for */                \
    X(SAFE, "safe-again")       /* it has all that it asks for */                               \
    X(CLOCK, "clock-jumped")    /* the wall clock of the coordinator's host */

enum coord_event_kind {
#define X(kind, name) CAIRN_EVENT_##kind,
    CAIRN_EVENTS(X)
#undef X
        CAIRN_EVENT_KINDS
};

/* Where the events of a log are: those of admins apart, so that nothing that any token can cause, such as
 * attaching, dropping and being refused, pushes them out. */
enum { CAIRN_EVENTS_OF_ALL, CAIRN_EVENTS_APART, CAIRN_EVENT_RINGS };

/* Keeps the newest CAIRN_STORE_EVENTS_MAX of them. */
struct event_ring {
    enum store_kind kind;       /* of the rows in the store */
    enum store_change change;   /* that writes them */
    struct stored_event **list; /* owned: [CAIRN_STORE_EVENTS_MAX], by place */
    uint64_t first, next;       /* place of the oldest event, and of the next new one */
    uint64_t saved; /* events at lower places are in the store, or being written to it */
    bool saving;
    bool failed; /* true: the last write failed, which was logged */
};

/* The events that this process has in memory; the entries of the audit log are such events, too. */
struct coord_events {
    struct event_ring rings[CAIRN_EVENT_RINGS];
    uint64_t next;  /* number of the next new event; the numbers are those of the log */
    uint64_t began; /* number of the first event of this process */
};

/* Notes an event that happened now. `job` is the job's name. `who` is a text such as "worker w3 (rank 2)"
 * or "shard s1". Each of the two may be NULL. The formatted sentence gives the cause. All arguments are
 * copied. */
void coord_event_note(struct coord *cluster, enum coord_event_kind kind, const char *job,
                      const char *who, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Notes an event of the shard with that name. */
void coord_event_note_shard(struct coord *cluster, enum coord_event_kind kind, const char *job,
                            const char *name, const char *text);
/* Reads the events and the audit log of former incarnations of the coordinator. Must be called before the
 * store's thread begins. */
cairn_status coord_events_open(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
/* Sends new events to the store. */
void coord_events_tick(struct coord *cluster);
/* Writes new events. Must be called when the store's thread has ended, and the store is still open. */
void coord_events_close(struct coord *cluster);
/* Returns the time of the newest event, as the wall clock showed it then; 0: there is no event. */
uint64_t coord_events_last_ms(const struct coord *cluster);
/* Writes who created the job, such as "worker w3", as the newest event CREATED of that name says; "": there
 * is no such event. */
void coord_events_maker(const struct coord *cluster, const char *job, struct sentence *out);
/* Faults, counted from the events. shards: how often a shard of the cluster went away. workers: how often a
 * worker of the job was lost. */
struct event_faults {
    uint64_t shards, workers;
    /* the time over which faults were counted: since the job was created, or since the oldest event */
    uint64_t observed_ms;
};
void coord_events_faults(const struct coord *cluster, const char *job, struct event_faults *out);

/* ==== audit ==== */

/* The audit log: what admins did, and what was refused to whom, with the time, the identity, the address,
 * the request and its outcome: an entry when it is begun, and another one when its work has ended.
 * `cairn cluster audit` shows it. It is kept as the events are,
 * CAIRN_STORE_EVENTS_MAX entries apart from theirs, so it has a bound, and no event takes an entry away.
 * Nothing is refused because an entry cannot be written: a full disk is logged, and the entry is written
 * later.
 *
 * A peer may ask, and be refused, again and again. A refusal that was noted is counted from then on, and the
 * count is noted after CAIRN_REFUSALS_MS; if it goes on, after twice that time, and so on up to
 * CAIRN_REFUSALS_MS_MAX. So are the requests of one who is no admin, after the first CAIRN_ASKED_FIRST in
 * CAIRN_REFUSALS_MS_MAX; those that are counted are no events either. So one identity makes at most some
 * fifty entries in an hour, unless it is an admin. Loop thread only. */

#define CAIRN_REFUSALS_MAX    256 /* what is counted apart; all else is counted together */
#define CAIRN_REFUSALS_EACH   4   /* kinds of refusals of one identity that are counted apart */
#define CAIRN_ASKED_FIRST     16
#define CAIRN_REFUSALS_MS     10000
#define CAIRN_REFUSALS_MS_MAX (60 * 60 * 1000)

/* All that is counted; the last place is for the others. */
struct coord_refusals {
    struct coord_refusal {
        const char *kind;        /* of the entries: "refused" or "begun" */
        int ring;                /* of the entries */
        char who[160], what[64]; /* who "": a free place */
        uint64_t began_ms;       /* when the place was taken, on the loop's clock */
        uint64_t since_ms;       /* when it was noted */
        uint64_t wait_ms;        /* how long it is counted from then on */
        uint64_t more;           /* how often it happened since then */
        uint32_t noted;          /* how many were noted in full */
    } list[CAIRN_REFUSALS_MAX + 1];
};

struct coord_audit {
    struct coord_events log;
    struct coord_refusals refusals;
    struct coord_asked *asking; /* the request that is being handled; NULL: none */
};

/* Notes that something (`what`: "connect", "key add") was refused to somebody. False: it is only counted. */
bool coord_audit_refused(struct coord *cluster, const char *who, const char *what, const char *why);
/* Does the same for a peer, with its identity and address. */
void coord_audit_refused_peer(struct coord *cluster, const struct peer *peer, const char *what,
                              const char *why);

/* ==== storage ==== */

/* The folder of the snapshots, known by its token (proto/store/storage.h). The store remembers the token as
 * soon as something is in the folder. If the storage is not mounted, the path leads to another folder.
 * Nothing may be written to that folder, and no snapshot may be reported as missing from it. A folder
 * belongs to one cluster, and names the identity of that cluster's store. Nothing is written to another
 * cluster's folder, unless the folder is taken (snapshots.foreign), or the other cluster's jobs are adopted
 * (coord_storage_adopted). Complaints about the folder are in storage.watch.said. As long as the token is
 * not found, the folder is checked again and again. */

/* The cluster's folder of snapshots. */
struct coord_storage {
    /* owned: an absolute path. Neither `path` nor `token` changes while the cluster is open */
    char *path;
    uint64_t token;  /* the token in the folder; 0: none */
    bool remembered; /* true: the store has the token, or the token is being written */
    /* the identities of stores whose folder is ours; any thread may read them */
    _Atomic uint64_t store, former;
    struct storage_watch watch;
};

/* Sets `path` and `token`. If the store remembers no token, makes the folder and the token. Must be called
 * after the store is open, and may block. */
cairn_status coord_storage_open(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
/* Checks that the folder has the token, and is ours. Blocks: call it on another thread than the loop's.
 * CAIRN_ERR_IO: the folder is not there, or does not have the token. CAIRN_ERR_REFUSED: the folder is
 * another cluster's. */
cairn_status coord_storage_seen(const struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
/* Notes that the store has a new identity, and has adopted the jobs of the store `former`, so that a folder
 * of `former` is ours, too. */
void coord_storage_adopted(struct coord *cluster, uint64_t former);
/* Called when a snapshot begins in the folder: makes the store remember the folder's token. */
void coord_storage_used(struct coord *cluster);

/* ==== backup ==== */

/* A backup: a copy of the store, made at an operator's request. */

/* Called when the cluster is closed, after its threads have ended. */
void coord_backup_close(struct coord *cluster);

#endif
