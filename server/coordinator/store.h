/* The coordinator's state on disk, and the only module that uses SQLite.
 *
 * These are durable: the identity of the store, the incarnation of the coordinator, the jobs with their
 * spec, layout, shards and generation, and per job an epoch and a reserved block of round numbers; the
 * numbers of the last jobs that were dropped, since a shard that was away at that time still has its part;
 * the token of the folder that snapshots were written to (below); the shards that an operator drains; the
 * keys whose signatures are trusted; and the last events. Nothing is written per round: a new coordinator
 * asks the shards for everything else (server/core/round.h). A job is written once every shard of it holds
 * its part, so a job in the store is one that did exist.
 *
 * The store is one file, FOLDER/coordinator.db, with WAL and synchronous=FULL: a change whose call returned
 * CAIRN_OK survives the loss of power. Every call is one transaction; a call that fails changes nothing.
 * Only one thread at a time may call: each call blocks for one commit, as long as the disk takes (store.c).
 * Epochs, reserved numbers and `initialized` only grow: writing a row that was copied earlier does not
 * lower them. Errors: CAIRN_ERR_IO, CAIRN_ERR_NO_SPACE, CAIRN_ERR_CORRUPT. */
#ifndef CAIRN_COORDINATOR_STORE_H
#define CAIRN_COORDINATOR_STORE_H

#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/text.h"
#include "proto/snapshot/snapshot.h"
#include "server/base/daemon.h"
#include "server/coordinator/base.h"

/* ==== keys ==== */

/* The key with which this cluster signs its snapshots, and the keys whose signatures it trusts.
 *
 * The secret key is FOLDER/cluster.key, mode 0600, in the store's folder. It is made at the first start,
 * and durable before anything is signed. A copy of the store (`cairn cluster backup`) has the secret key,
 * too: if a copy is put back without the file, the file is made from the copy. The trusted public keys are
 * in the store: this cluster's own keys, former ones included, and the keys of other clusters that an
 * operator trusts. Shards are told of these keys, and keep them with their state: a store that adopts the
 * state trusts the keys from then on. A store gets a new key if it has none, neither in the file nor in
 * itself. Snapshots that the old key signed stay trusted. Loop thread only, except for the ring, which is a
 * copy. */

#define CAIRN_KEY_FILE "cluster.key"

/* Reads the key's file, or makes it; called after the store and the events are open, before the store's
 * thread begins. Blocks. CAIRN_ERR_CONFIG: the file holds no key, or other users may read it. */
cairn_status coord_keys_open(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
void coord_keys_close(struct coord *cluster);
/* Returns the key that signs; constant while the cluster is open: any thread. */
const struct secret_key *coord_keys_signer(const struct coord *cluster);
/* Copies the keys that are trusted now, for another thread. */
void coord_keys_ring(const struct coord *cluster, struct key_ring *out);

/* ---- what shards keep ---- */
struct trusted_key {
    struct public_key key;
    bool is_own; /* this cluster's, now or before */
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
/* Does the same for the keys of a list. */
void coord_keys_fill_list(const struct coord *cluster, const struct trusted_key *list, size_t count,
                          struct keys_message *room);
/* Adds to the list those keys that a shard has kept and this cluster does not trust. Returns the list's new
 * length. */
size_t coord_keys_unknown(struct coord *cluster, const Cairn__Keys *kept,
                          struct trusted_key list[CAIRN_KEYS_MAX], size_t count);
/* The keys of the list are in the store now. */
void coord_keys_adopted(struct coord *cluster, const struct trusted_key *list, size_t count);
/* True: a key is being written to the store. */
bool coord_keys_are_changing(const struct coord *cluster);

/* ---- what an admin asks ---- */
void coord_keys_answer(struct coord_session *session, uint32_t request);
void coord_key_trust(struct coord_session *session, uint32_t request,
                     const Cairn__KeyTrust *message);

/* ==== store ==== */

struct coord_store;

#define CAIRN_STORE_DROPPED_MAX 4096 /* the most dropped jobs that are kept, the last ones */
#define CAIRN_STORE_EVENTS_MAX  4096 /* the most events that are kept, the newest by number */

/* Texts and bytes are borrowed, in both directions, for the length of a call. */

struct stored_meta {
    uint64_t zero;        /* always 0: there is one row */
    uint64_t incarnation; /* the coordinator's incarnation: 1 at first, one more with every open */
    /* the store's identity: random, not 0; made with the store, and made anew by store_adopt */
    uint64_t identity;
    /* the token of the folder that snapshots were written to; 0: none were written */
    uint64_t storage;
};

struct stored_shard {
    uint64_t job, place;
    const char *name; /* "": a hole */
    double weight;    /* weight in a re-sharding; 0: everything moves off that shard */
};

struct stored_job {
    uint64_t id;
    const char *name;
    const uint8_t *spec; /* [spec_bytes], as spec_pack made it */
    size_t spec_bytes;
    const uint8_t *layout; /* [layout_bytes], proto/geometry/layout.h */
    size_t layout_bytes;
    uint64_t generation;
    uint64_t generation_reserved; /* a restore may have used generations up to this one */
    uint64_t epoch;
    uint64_t round_reserved; /* round numbers up to this one may have been used */
    uint64_t base_step;      /* the step at which the generation began */
    bool initialized;
    struct origin origin;
    /* The next fields are for a change of layout: the version that the job had when `layout` came into
     * force, and the layout in which that version is published, [layout_before_bytes]; NULL: the version is
     * published in `layout`. */
    uint64_t layout_at_generation, layout_at_step;
    const uint8_t *layout_before;
    size_t layout_before_bytes;
    /* [shard_count], by index in the layout; the shards that join follow the shards of the layout. Their
     * fields `job` and `place` are ignored: they follow from this row and the index. */
    const struct stored_shard *shards;
    uint32_t shard_count;
    bool weighed; /* a re-sharding is under way: the shards have weights */
    double pause; /* the pause of that re-sharding */
};

/* a dropped job: parts of it that shards still hold are leftovers of our own */
struct stored_dropped {
    uint64_t place, job;
};

struct stored_leaving { /* a shard that leaves because an operator asked for it (reshard.h) */
    const char *shard;
};

struct stored_key {   /* a key whose signatures are trusted (above) */
    const char *line; /* line of the public key, in base64 */
    bool is_own;      /* this cluster's, now or before */
    uint64_t since_unix_s;
};

struct stored_event { /* see events, below */
    uint64_t number, unix_ms;
    const char *kind, *job, *who, *text;
};

/* Opens or makes FOLDER/coordinator.db and counts the incarnation up. The folder exists and is locked
 * (server/base/daemon.h). CAIRN_ERR_CORRUPT: the file is damaged, or not a database of Cairn.
 * CAIRN_ERR_VERSION: the file has another version, which cannot be read. */
cairn_status store_open(const char *folder, struct coord_store **store_out,
                        struct sentence *why) CAIRN_MUST_CHECK;
void store_close(struct coord_store *store); /* NULL is fine */

/* Returns the meta row as it was at the start, or at the last adoption. */
const struct stored_meta *store_meta(const struct coord_store *store);
/* Counts the rows written since the store was opened, except events. Used by the test that rounds write no
 * rows. */
uint64_t store_rows_written(const struct coord_store *store);

/* ---- rows ----
 * For each kind of row a table (store.c) describes the columns and their places in the row's struct, so
 * that the same few functions create, write, copy and read all kinds. */

enum store_kind {
    CAIRN_STORED_META,    /* struct stored_meta: one row */
    CAIRN_STORED_JOBS,    /* struct stored_job, by name, with their shards */
    CAIRN_STORED_SHARDS,  /* struct stored_shard; shards are written and read with their job */
    CAIRN_STORED_DROPPED, /* struct stored_dropped, the oldest first */
    CAIRN_STORED_LEAVING, /* struct stored_leaving */
    CAIRN_STORED_KEYS,    /* struct stored_key, the cluster's own first */
    CAIRN_STORED_EVENTS,  /* struct stored_event, by number */
    CAIRN_STORED_KINDS
};

/* The kinds of changes; each is made in one transaction. CAIRN_ERR_NOT_FOUND: the job is not in the
 * store. */
enum store_change {
    /* adds the job, or replaces the one with that id. CAIRN_ERR_EXISTS: another job has the name */
    CAIRN_STORE_JOB,
    CAIRN_STORE_LAYOUT,      /* writes its epoch, reserved rounds, shards, and all about layouts */
    CAIRN_STORE_EPOCH,       /* writes its epoch and reserved rounds */
    CAIRN_STORE_INITIALIZED, /* writes its `initialized` */
    CAIRN_STORE_GENERATION,  /* writes its generation_reserved */
    CAIRN_STORE_JOB_DROP,    /* deletes the job by its id, and adds it to the dropped ones */
    CAIRN_STORE_STORAGE,     /* writes the storage of the meta row */
    CAIRN_STORE_LEAVE,       /* adds the shard to those that leave */
    CAIRN_STORE_STAY,        /* removes the shard from those that leave */
    CAIRN_STORE_KEY,         /* adds the key, or replaces the one with that line */
    CAIRN_STORE_KEY_DROP,    /* deletes the key by its line */
    /* Adds events, or replaces those with their numbers. Events survive the end of the process. They
     * survive the loss of power only once some other change has been committed after them. */
    CAIRN_STORE_EVENTS,
    /* used by the store itself */
    CAIRN_STORE_START,
    CAIRN_STORE_SHARDS,
    CAIRN_STORE_SHARDS_DROP,
    CAIRN_STORE_CHANGES
};

/* Writes `count` rows, in one transaction. A job's shards are written with the job. */
cairn_status store_write(struct coord_store *store, enum store_change change, const void *rows,
                         size_t count, struct sentence *why) CAIRN_MUST_CHECK;
/* Copies rows for such a change into one block, which the caller frees. Texts are copied, too; the bytes
 * and shards that jobs point to are not. Returns NULL if there is no memory. */
void *store_copy(enum store_change change, const void *rows, size_t count);
/* Passes every row of a kind to `take`, which borrows the row. Stops at the first row that `take` refuses,
 * and returns the status that `take` returned. */
typedef cairn_status (*stored_fn)(void *context, const void *row, struct sentence *why);
cairn_status store_each(struct coord_store *store, enum store_kind kind, stored_fn take,
                        void *context, struct sentence *why) CAIRN_MUST_CHECK;

/* ---- what shards hold, in place of a store that is lost ---- */

struct store_adoptees { /* borrowed for the length of a call */
    const struct stored_job *jobs;
    size_t job_count;
    const struct stored_key *keys;
    size_t key_count;
    uint64_t incarnation; /* the highest incarnation that the shards have seen */
};
/* In one transaction: adds or replaces the jobs and keys, takes a new identity, and takes an incarnation
 * above the shards' and above the present one. CAIRN_ERR_EXISTS: as for CAIRN_STORE_JOB. */
cairn_status store_adopt(struct coord_store *store, const struct store_adoptees *adoptees,
                         struct sentence *why) CAIRN_MUST_CHECK;

/* Returns the bytes (malloc'd, the caller's) of a file that can be opened as a store. The file has
 * everything that is in this store now, and the signer. CAIRN_ERR_NO_MEMORY. */
cairn_status store_picture(const struct coord_store *store, uint8_t **bytes_out,
                           size_t *byte_count_out, struct sentence *why) CAIRN_MUST_CHECK;
/* Returns the text of the key that signs snapshots. Pictures have this text. A store in use keeps it in a
 * separate file, so only a store that was put back from a picture has the text. CAIRN_ERR_NOT_FOUND: the
 * store has no such text. */
cairn_status store_signer(const struct coord_store *store, char text_out[CAIRN_KEY_TEXT_BYTES],
                          struct sentence *why) CAIRN_MUST_CHECK;
/* Sets the signer for pictures. Removes any signer from the store itself, because the signer is in its own
 * file now. */
cairn_status store_set_signer(struct coord_store *store, const char *text,
                              struct sentence *why) CAIRN_MUST_CHECK;

/* ==== private ==== */

/* The open database, for the source files of the store alone. */

struct coord_store {
    /* owned */
    sqlite3 *db;
    char *path;
    char signer[CAIRN_KEY_TEXT_BYTES]; /* the signer that pictures get; empty: none */
    struct stored_meta meta;
    uint64_t opening_changes; /* rows that store_open itself wrote */
    uint64_t event_changes;   /* rows of events that were written or deleted */
};

cairn_status store_run(const struct coord_store *store, const char *sql, struct sentence *why);
cairn_status store_prepare(const struct coord_store *store, const char *sql, sqlite3_stmt **out,
                           struct sentence *why);
/* SQLite's numbers are signed; ours are stored as the same 64 bits. */
static inline void store_bind_u64(sqlite3_stmt *s, int at, uint64_t value)
{
    sqlite3_bind_int64(s, at, (sqlite3_int64)value);
}

/* ==== saves ==== */

/* The store's writes: they run on a thread of their own, one after the other, in the order in which they
 * are requested. The loop thus never waits for the disk. A caller that needs a write to be durable
 * continues in the write's `then`.
 *
 * Each function copies the rows that it writes. `then` is called on the loop, unless the cluster is closed
 * before. CAIRN_ERR_NO_MEMORY: nothing was begun. */

/* The cluster's saves. */
struct coord_saves {
    struct pool *pool;       /* owned: the store's thread */
    struct coord_save *list; /* owned: the saves under way */
    uint64_t rows_written;   /* rows written by finished saves */
};

/* The outcome of a save. */
struct coord_saved {
    struct coord *cluster;
    /* id of the job, which may have been dropped or replaced meanwhile; 0: the save belongs to no job */
    uint64_t job;
    uint64_t number; /* the caller's number, by which the caller tells its saves apart */
    cairn_status status;
    const char *why;
};
typedef void (*cluster_saved_fn)(const struct coord_saved *saved);

/* Writes rows that belong to no job, as store_write does. */
cairn_status coord_save(struct coord *cluster, enum store_change change, const void *rows,
                        size_t count, uint64_t number, cluster_saved_fn then,
                        struct sentence *why) CAIRN_MUST_CHECK;
/* Makes such a change of a job's row, with the values that the job has now. The exceptions are values that
 * take effect only when they are durable: spec (NULL: the job's own), INITIALIZED, and GENERATION, which
 * reserves generations up to `number`. */
cairn_status coord_save_job(struct coord_job *job, enum store_change change, struct packed *spec,
                            uint64_t number, cluster_saved_fn then,
                            struct sentence *why) CAIRN_MUST_CHECK;
/* Returns true if a change of the job is being written to the store. */
bool coord_saving(const struct coord_job *job);
cairn_status coord_saves_open(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
/* Waits for the save that runs; the others are dropped. on_closed is called if the saves were open. */
void coord_saves_close(struct coord *cluster, void (*on_closed)(void *context), void *context);

/* ==== events ==== */

/* The cluster's events: which shards and members joined, left, moved or were put out, with time and cause,
 * for `cairn cluster events`. The newest CAIRN_STORE_EVENTS_MAX events are in memory and, a moment later,
 * in the store, so that a new incarnation has them, too. Nobody waits until events are stored: their commit
 * does not wait for the disk, and the last events before a loss of power may be missing. Loop thread
 * only. */

/* kind | its name */
#define CAIRN_EVENTS(X)                                                                         \
    X(STARTED, "started") /* the coordinator */                                                 \
    X(UP, "up")           /* a shard's process that was not there before */                     \
    X(BACK, "back")       /* a shard whose connection was lost */                               \
    X(AWAY, "away")                                                                             \
    X(CLAIMED, "claimed")     /* a second process of its name connected, and waits */           \
    X(FORGOTTEN, "forgotten") /* a shard, by an operator */                                     \
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
    X(CLOCK, "clock-jumped")    /* the wall clock of the coordinator's host */

enum coord_event_kind {
#define X(kind, name) CAIRN_EVENT_##kind,
    CAIRN_EVENTS(X)
#undef X
        CAIRN_EVENT_KINDS
};

/* The events that this process has in memory. */
struct coord_events {
    struct stored_event **ring; /* owned: [CAIRN_STORE_EVENTS_MAX], by number */
    uint64_t first, next;       /* numbers of the oldest event, and of the next one */
    uint64_t began;             /* the first number that this process gave to an event */
    uint64_t saved; /* events with lower numbers are in the store, or being written to it */
    bool saving;
    bool failed; /* the last write failed, which was logged */
};

/* Notes an event that happened now. job: the job's name. who: such as "worker w3 (rank 2)" or "shard s1".
 * Either may be NULL: none. The formatted sentence tells the cause. The function copies all its
 * arguments. */
void coord_event_note(struct coord *cluster, enum coord_event_kind kind, const char *job,
                      const char *who, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Notes an event of the shard of that name. */
void coord_event_note_shard(struct coord *cluster, enum coord_event_kind kind, const char *job,
                            const char *name, const char *text);
/* Reads the events of former incarnations; called before the store's thread begins. */
cairn_status coord_events_open(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
/* Sends new events to the store. */
void coord_events_tick(struct coord *cluster);
/* Writes new events; called when the store's thread has ended, and the store is still open. */
void coord_events_close(struct coord *cluster);
/* Returns when the newest event was noted, by the wall clock at that time; 0: there is no event. */
uint64_t coord_events_last_ms(const struct coord *cluster);
/* Writes who created the job, such as "worker w3", from the newest event of the job's creation; "": there
 * is no such event any more. */
void coord_events_maker(const struct coord *cluster, const char *job, struct sentence *out);
/* Faults counted from the events: shards of the cluster that went away, workers of the job that were
 * lost. */
struct event_faults {
    uint64_t shards, workers;
    uint64_t observed_ms; /* time since the job was created, or since the oldest event */
};
void coord_events_faults(const struct coord *cluster, const char *job, struct event_faults *out);
void coord_events_answer(struct coord_session *session, uint32_t request,
                         const Cairn__EventsGet *get);

/* ==== storage ==== */

/* The folder of the snapshots, known by its token (proto/store/storage.h). The store remembers the token
 * once something is in the folder. If the storage is not mounted, the path leads to another folder: nothing
 * may be written there, and no snapshot may be reported as missing from it. A folder belongs to one
 * cluster, by the identity of its store. Nothing is written to another cluster's folder until the folder is
 * taken (snapshots.foreign), or that cluster's jobs are adopted (coord_storage_adopted). Complaints about
 * the folder are in storage.watch.said. The folder is checked again until the token is found. */

/* The cluster's folder of snapshots. */
struct coord_storage {
    char *path;      /* owned: absolute; path and token are constant while the cluster is open */
    uint64_t token;  /* the token in the folder; 0: none */
    bool remembered; /* true: the store has the token, or the token is being written */
    /* the store identities by which the folder is ours: any thread */
    _Atomic uint64_t store, former;
    struct storage_watch watch;
};

/* Sets path and token; makes the folder and its token if the store remembers none. Called after the store
 * is open; may block. */
cairn_status coord_storage_open(struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
/* Checks that the folder has the token, and is ours. Blocks: call it on another thread than the loop's.
 * CAIRN_ERR_IO; CAIRN_ERR_REFUSED: the folder is another cluster's. */
cairn_status coord_storage_seen(const struct coord *cluster, struct sentence *why) CAIRN_MUST_CHECK;
/* Notes that the store has a new identity and has taken over the jobs of the store `former`: a folder of
 * that store is ours, too. */
void coord_storage_adopted(struct coord *cluster, uint64_t former);
/* A snapshot begins in the folder: makes the store remember the folder's token. */
void coord_storage_used(struct coord *cluster);

/* ==== backup ==== */

/* A copy of the store, made because an operator asks for a backup. */

void coord_backup_begin(struct coord_session *session, uint32_t request,
                        const Cairn__ClusterBackup *message);
/* Called when the cluster is closed, after its threads have ended. */
void coord_backup_close(struct coord *cluster);

#endif
