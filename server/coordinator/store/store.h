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

struct cairn_stored_job {
    /* borrowed, in both directions, for the length of a call */
    const char *name;
    const uint8_t *spec; /* [spec_bytes], as cairn_spec_pack made it */
    size_t spec_bytes;
    const uint8_t *layout; /* [layout_bytes], proto/geometry/layout.h */
    size_t layout_bytes;
    /* [shard_count], names by index in the layout; "": a hole. Behind those of the layout: who joins */
    const char *const *shards;
    uint32_t shard_count;

    uint64_t id;
    uint64_t generation;
    uint64_t generation_reserved; /* a restore has begun to use numbers up to this one */
    uint64_t epoch;
    uint64_t round_reserved; /* round numbers up to this one may have been used */
    uint64_t base_step;      /* the step at which the generation began */
    struct cairn_origin origin;
    bool initialized;
    /* A change of layout needs these: the version that the job had when `layout` came into
     * force, and the layout in which that version is published, [layout_before_bytes], 0: in
     * `layout`. */
    uint64_t layout_at_generation, layout_at_step;
    const uint8_t *layout_before;
    size_t layout_before_bytes;
    /* [shard_count] of a re-sharding that is under way, 0: all goes off that shard. NULL: none is. */
    const double *weights;
    double pause; /* of that one */
};

/* Opens or makes FOLDER/coordinator.db and counts the incarnation up. The folder exists and is
 * locked (server/base/durable.h). CAIRN_ERR_CORRUPT: damaged, or not a database of Cairn;
 * CAIRN_ERR_VERSION: of another version, which is not read. */
cairn_status cairn_store_open(const char *folder, struct cairn_store **store_out,
                              struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_store_close(struct cairn_store *store); /* NULL is fine */

/* From 1, one more with every open. */
uint64_t cairn_store_incarnation(const struct cairn_store *store);
/* Random, not 0: made with the store, and anew by cairn_store_adopt. */
uint64_t cairn_store_identity(const struct cairn_store *store);
/* The token of the folder that snapshots were written to; 0: none was. Before the store's thread begins. */
uint64_t cairn_store_storage(const struct cairn_store *store);
cairn_status cairn_store_set_storage(struct cairn_store *store, uint64_t token,
                                     struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Rows written since open, but for events: for the test that rounds write none. */
uint64_t cairn_store_writes(const struct cairn_store *store);

/* Adds the job, or replaces the one of that id. CAIRN_ERR_EXISTS: another one has the name. */
cairn_status cairn_store_put_job(struct cairn_store *store, const struct cairn_stored_job *job,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Changes the epoch, the reserved rounds, the shards and all fields about layouts of a job that
 * is there. CAIRN_ERR_NOT_FOUND. */
cairn_status cairn_store_set_layout(struct cairn_store *store, const struct cairn_stored_job *job,
                                    struct cairn_sentence *why) CAIRN_MUST_CHECK;
cairn_status cairn_store_drop_job(struct cairn_store *store, uint64_t id,
                                  struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The last jobs that were dropped: what there is of them is a leftover of our own. Returns how many. */
#define CAIRN_STORE_DROPPED_MAX 4096
size_t cairn_store_dropped(const struct cairn_store *store,
                           uint64_t ids_out[CAIRN_STORE_DROPPED_MAX]);
/* CAIRN_ERR_NOT_FOUND: no such job. */
cairn_status cairn_store_set_epoch(struct cairn_store *store, uint64_t id, uint64_t epoch,
                                   uint64_t round_reserved,
                                   struct cairn_sentence *why) CAIRN_MUST_CHECK;
cairn_status cairn_store_set_initialized(struct cairn_store *store, uint64_t id,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;
cairn_status cairn_store_reserve_generation(struct cairn_store *store, uint64_t id,
                                            uint64_t generation,
                                            struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* ---- shards that leave by an operator's word (job/drain.h) ---- */

/* The shard is one of them from now on, or none. */
cairn_status cairn_store_set_leaving(struct cairn_store *store, const char *shard, bool leaves,
                                     struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Gives each name to `take`; stops at the first that it refuses and returns that status. */
typedef cairn_status (*cairn_stored_leaving_fn)(void *context, const char *shard,
                                                struct cairn_sentence *why);
cairn_status cairn_store_each_leaving(struct cairn_store *store, cairn_stored_leaving_fn take,
                                      void *context, struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* ---- the keys whose signatures are trusted (trust/keys.h) ---- */

struct cairn_stored_key {
    const char *
        line; /* of the public key, in base64; borrowed, in both directions, for the length of a call */
    bool is_own; /* this cluster's, now or before */
    uint64_t since_unix_s;
};
/* Adds it, or replaces the one of that line. */
cairn_status cairn_store_put_key(struct cairn_store *store, const struct cairn_stored_key *key,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;
cairn_status cairn_store_drop_key(struct cairn_store *store, const char *line,
                                  struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Gives every key to `take`, its own first; stops at the first that it refuses and returns that status. */
typedef cairn_status (*cairn_stored_key_fn)(void *context, const struct cairn_stored_key *key,
                                            struct cairn_sentence *why);
cairn_status cairn_store_each_key(struct cairn_store *store, cairn_stored_key_fn take,
                                  void *context, struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* ---- what shards hold, in place of a store that is lost ---- */

struct cairn_store_adoptees { /* borrowed for the length of a call */
    const struct cairn_stored_job *jobs;
    size_t job_count;
    const struct cairn_stored_key *keys;
    size_t key_count;
    uint64_t incarnation; /* the highest that they have seen */
};
/* All at once: adds or replaces the jobs and keys, takes a new identity and an incarnation that is above
 * theirs and the present one. CAIRN_ERR_EXISTS: as cairn_store_put_job. */
cairn_status cairn_store_adopt(struct cairn_store *store,
                               const struct cairn_store_adoptees *adoptees,
                               struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* ---- events (events.h) ---- */

#define CAIRN_STORE_EVENTS_MAX 4096 /* the newest, by their numbers */
struct cairn_stored_event {
    uint64_t number, unix_ms;
    const char *kind, *job, *who,
        *text; /* borrowed, in both directions, for the length of a call */
};
/* Adds events. They survive the end of the process, but not yet the loss of power: the next
 * commit of anything else brings that. If a number is there already, the new event replaces the
 * old one. */
cairn_status cairn_store_add_events(struct cairn_store *store,
                                    const struct cairn_stored_event *events, size_t count,
                                    struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Gives every event to `take`, by number; stops at the first that it refuses and returns that status. */
typedef cairn_status (*cairn_stored_event_fn)(void *context, const struct cairn_stored_event *event,
                                              struct cairn_sentence *why);
cairn_status cairn_store_each_event(struct cairn_store *store, cairn_stored_event_fn take,
                                    void *context, struct cairn_sentence *why) CAIRN_MUST_CHECK;

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

/* Gives every job to `take`, by name; stops at the first that it refuses and returns that status. */
typedef cairn_status (*cairn_stored_job_fn)(void *context, const struct cairn_stored_job *job,
                                            struct cairn_sentence *why);
cairn_status cairn_store_each_job(struct cairn_store *store, cairn_stored_job_fn take,
                                  void *context, struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
