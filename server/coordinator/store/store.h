/* The coordinator's state on disk, and the only door to SQLite.
 *
 * These are durable: the identity of the store, the incarnation of the coordinator, the jobs with
 * their spec, layout, shards and generation, and per job an epoch and a reserved block of round
 * numbers; the numbers of the last jobs that were dropped, since a shard that was away then has its
 * part still; the token of the folder that snapshots were written to (storage.h); the shards that
 * an operator sends away; the keys whose signatures are trusted; and the last events. Nothing is
 * written per round: the shards' answers are the rest of the memory (server/core/round.h). A job is
 * written once every shard of it holds its part, so a job in the store is one that did exist.
 *
 * One file, FOLDER/coordinator.db, WAL, synchronous=FULL: a call that returned CAIRN_OK survives the
 * loss of power. Every call is one transaction; one that fails changed nothing. One thread at a time: each
 * call blocks for one commit, as long as the disk takes (saves.c). Epochs, reserved numbers and
 * `initialized` only grow: a row that was copied before one of them grew does not take it back. Errors:
 * CAIRN_ERR_IO, CAIRN_ERR_NO_SPACE, CAIRN_ERR_CORRUPT. */
#ifndef CAIRN_COORDINATOR_STORE_STORE_H
#define CAIRN_COORDINATOR_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/sentence.h"
#include "proto/snapshot/manifest.h"
#include "proto/snapshot/minisig.h"

struct cairn_store;

#define CAIRN_STORE_DROPPED_MAX 4096 /* the last that were */
#define CAIRN_STORE_EVENTS_MAX  4096 /* the newest, by their numbers */

/* Texts and bytes are borrowed, in both directions, for the length of a call. */

struct cairn_stored_meta {
    uint64_t zero;        /* 0: there is one row */
    uint64_t incarnation; /* of the coordinator: from 1, one more with every open */
    uint64_t
        identity;     /* of the store: random, not 0; made with it, and anew by cairn_store_adopt */
    uint64_t storage; /* the token of the folder that snapshots were written to; 0: none was */
};

struct cairn_stored_shard {
    uint64_t job, place;
    const char *name; /* "": a hole */
    double weight;    /* of a re-sharding; 0: all goes off that shard */
};

struct cairn_stored_job {
    uint64_t id;
    const char *name;
    const uint8_t *spec; /* [spec_bytes], as cairn_spec_pack made it */
    size_t spec_bytes;
    const uint8_t *layout; /* [layout_bytes], proto/geometry/layout.h */
    size_t layout_bytes;
    uint64_t generation;
    uint64_t generation_reserved; /* a restore has begun to use numbers up to this one */
    uint64_t epoch;
    uint64_t round_reserved; /* round numbers up to this one may have been used */
    uint64_t base_step;      /* the step at which the generation began */
    bool initialized;
    struct cairn_origin origin;
    /* A change of layout needs these: the version that the job had when `layout` came into
     * force, and the layout in which that version is published, [layout_before_bytes], NULL: in
     * `layout`. */
    uint64_t layout_at_generation, layout_at_step;
    const uint8_t *layout_before;
    size_t layout_before_bytes;
    /* [shard_count], by index in the layout. Behind those of the layout: who joins. Each is of this job and
     * of its place, whatever it says. */
    const struct cairn_stored_shard *shards;
    uint32_t shard_count;
    bool weighed; /* a re-sharding is under way: the shards have weights */
    double pause; /* of that one */
};

struct cairn_stored_dropped { /* what there is of the job is a leftover of our own */
    uint64_t place, job;
};

struct cairn_stored_leaving { /* by an operator's word (job/drain.h) */
    const char *shard;
};

struct cairn_stored_key { /* whose signatures are trusted (trust/keys.h) */
    const char *line;     /* of the public key, in base64 */
    bool is_own;          /* this cluster's, now or before */
    uint64_t since_unix_s;
};

struct cairn_stored_event { /* events.h */
    uint64_t number, unix_ms;
    const char *kind, *job, *who, *text;
};

/* Opens or makes FOLDER/coordinator.db and counts the incarnation up. The folder exists and is
 * locked (server/base/durable.h). CAIRN_ERR_CORRUPT: damaged, or not a database of Cairn;
 * CAIRN_ERR_VERSION: of another version, which is not read. */
cairn_status cairn_store_open(const char *folder, struct cairn_store **store_out,
                              struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_store_close(struct cairn_store *store); /* NULL is fine */

/* As it was at the start, or at the last adoption. */
const struct cairn_stored_meta *cairn_store_meta(const struct cairn_store *store);
/* Rows written since open, but for events: for the test that rounds write none. */
uint64_t cairn_store_writes(const struct cairn_store *store);

/* ---- rows ----
 * A table says of each kind which columns there are and where they lie in the row's struct (store.c): it is
 * made, written, copied and read back by the same few functions. */

enum cairn_store_kind {
    CAIRN_STORED_META,    /* struct cairn_stored_meta: one row */
    CAIRN_STORED_JOBS,    /* struct cairn_stored_job, by name, with their shards */
    CAIRN_STORED_SHARDS,  /* struct cairn_stored_shard: written and read with their job */
    CAIRN_STORED_DROPPED, /* struct cairn_stored_dropped, the oldest first */
    CAIRN_STORED_LEAVING, /* struct cairn_stored_leaving */
    CAIRN_STORED_KEYS,    /* struct cairn_stored_key, the cluster's own first */
    CAIRN_STORED_EVENTS,  /* struct cairn_stored_event, by number */
    CAIRN_STORED_KINDS
};

/* The changes that are made at once. CAIRN_ERR_NOT_FOUND: of a job that is not there. */
enum cairn_store_change {
    CAIRN_STORE_JOB, /* adds the job, or replaces the one of that id. CAIRN_ERR_EXISTS: another one has the
                        name */
    CAIRN_STORE_LAYOUT,      /* its epoch, reserved rounds, shards, and all about layouts */
    CAIRN_STORE_EPOCH,       /* its epoch and reserved rounds */
    CAIRN_STORE_INITIALIZED, /* its `initialized` */
    CAIRN_STORE_GENERATION,  /* its generation_reserved */
    CAIRN_STORE_JOB_DROP,    /* takes it away by its id; it is one of the dropped from now on */
    CAIRN_STORE_STORAGE,     /* the storage of the meta row */
    CAIRN_STORE_LEAVE,       /* the shard is one that leaves */
    CAIRN_STORE_STAY,        /* and not any more */
    CAIRN_STORE_KEY,         /* adds the key, or replaces the one of that line */
    CAIRN_STORE_KEY_DROP,    /* takes it away by its line */
    /* Adds events, or replaces those of their numbers. They survive the end of the process, but not yet the
     * loss of power: the next commit of anything else brings that. */
    CAIRN_STORE_EVENTS,
    /* the store's own */
    CAIRN_STORE_START,
    CAIRN_STORE_SHARDS,
    CAIRN_STORE_SHARDS_DROP,
    CAIRN_STORE_CHANGES
};

/* Writes `count` rows, in one transaction. A job's shards are written with it. */
cairn_status cairn_store_write(struct cairn_store *store, enum cairn_store_change change,
                               const void *rows, size_t count,
                               struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* A copy of rows for such a change, with their texts, but for the bytes and shards that jobs point to: one
 * block, the caller's to free. NULL: no memory. */
void *cairn_store_copy(enum cairn_store_change change, const void *rows, size_t count);
/* Gives every row of a kind to `take`, which borrows it; stops at the first that it refuses and returns that
 * status. */
typedef cairn_status (*cairn_stored_fn)(void *context, const void *row, struct cairn_sentence *why);
cairn_status cairn_store_each(struct cairn_store *store, enum cairn_store_kind kind,
                              cairn_stored_fn take, void *context,
                              struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* ---- what shards hold, in place of a store that is lost ---- */

struct cairn_store_adoptees { /* borrowed for the length of a call */
    const struct cairn_stored_job *jobs;
    size_t job_count;
    const struct cairn_stored_key *keys;
    size_t key_count;
    uint64_t incarnation; /* the highest that they have seen */
};
/* All at once: adds or replaces the jobs and keys, takes a new identity and an incarnation that is above
 * theirs and the present one. CAIRN_ERR_EXISTS: as CAIRN_STORE_JOB. */
cairn_status cairn_store_adopt(struct cairn_store *store,
                               const struct cairn_store_adoptees *adoptees,
                               struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* The bytes of a file (malloc'd, the caller's) that opens as a store with everything that is in this one now,
 * and with the signer. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_store_picture(const struct cairn_store *store, uint8_t **bytes_out,
                                 size_t *byte_count_out,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The text of the key that signs snapshots, which is in pictures and, while a store is in use, in a file
 * beside it. This store was put back from a picture, and has one since then. CAIRN_ERR_NOT_FOUND: it has
 * none. */
cairn_status cairn_store_signer(const struct cairn_store *store,
                                char text_out[CAIRN_KEY_TEXT_BYTES],
                                struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Puts this signer into pictures. A signer that the store itself has is removed: it is in its
 * own file now. */
cairn_status cairn_store_set_signer(struct cairn_store *store, const char *text,
                                    struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
