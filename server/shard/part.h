#ifndef CAIRN_SHARD_PART_H
#define CAIRN_SHARD_PART_H

#include <stdatomic.h>

#include "gpu/gpu.h"
#include "proto/snapshot/digest_tree.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"
#include "server/base/log.h"
#include "server/core/step.h"
#include "server/shard/base.h"
#include "server/shard/collect.h"
#include "server/shard/memory.h"

/* ==== times ==== */

/* The times at which a round reached its phases. Loop thread. */

/* Times in microseconds of CLOCK_MONOTONIC; 0: not reached yet. */
struct round_times {
    uint64_t round;
    uint64_t action_us[CAIRN_STEP_FAULT + 1]; /* when the first action of each kind was done */
    /* folding_us: when the last FOLD was done; updating_us and updated_us: when the pass of the
     * UPDATE began and ended */
    uint64_t folding_us, updating_us, updated_us;
};

/* Notes the time of an action. Called just before the action is done. */
void times_note(struct shard_job *job, const struct step_action *action);

/* ==== terms ==== */

/* The terms of a job are the job's spec as the coordinator's store has it. Loop thread. */

struct terms {
    bool settled;      /* a coordinator has confirmed that this generation is in its store */
    uint64_t revision; /* the revision of the newest spec that the shard received */
    /* owned: the bytes of the newest spec; no bytes if job->spec is the newest */
    struct paged amended;
    struct hash digest; /* of the bytes of the newest spec, as they were received */
};
/* The newest terms have this policy: audits and the journal follow it. */
void terms_want(struct shard_job *job, const struct policy *policy);

/* ==== pass ==== */

/* A pass does the same work for each of a job's chunks, in the home where the chunk lies. If a job
 * has chunks on a device and in host memory, the pass has a part in each home; the two parts run at
 * the same time. Loop thread, except for `describe`, `conclude` and the functions that they
 * call. */

/* The functions in which kinds of passes differ. `describe` and `conclude` are those of struct
 * work_run. */
struct pass_kind {
    bool (*describe)(struct work_run *run, uint32_t item, uint32_t stage, struct works *works);
    void (*conclude)(struct work_run *run, uint32_t item, uint32_t thread);
    void (*done)(struct shard_job *job); /* called at the end of the pass, unless the pass failed */
};

/* The part of a pass that is done in one home. Its first items are trained chunks of that home. The
 * items after these go over all chunks of that home, by the map's numbers. */
struct pass_part {
    struct work_run run; /* first */
    struct shard_job *job;
    /* owned: [lanes of run.compute] the sums that each thread made in the current pass */
    struct sums *sums;
    /* the home's first chunk: trained_first by the core's number, `first` by the map's number */
    uint32_t trained_first, first;
    uint32_t trained_count; /* how many of the items are trained chunks, in the current pass */
};

/* The data of a job's passes. REDUCE, UPDATE and the first publish are passes over the chunks of
 * this shard; only one pass runs at a time. Arrays of [trained_count] are indexed by the core's
 * number of a chunk. */
struct job_pass {
    struct pass_part device, host;   /* the two parts of the current pass */
    uint32_t parts_left;             /* under way */
    bool failed;                     /* a part of the current pass failed */
    const struct pass_kind *kind;    /* the kind of the current pass */
    const struct chunk_table *table; /* borrowed: the chunks over which passes run */
    struct step_actions actions; /* owned: the list of actions for the collector of the own part */
    struct round_times times;    /* the times of the current round, or of the last round */
    bool is_small;               /* a pass takes no longer than waking another thread would take */
    bool is_far; /* the planes do not fit into the caches, so kernels may write around the caches */
    bool *zero; /* owned: [trained_count] true: nobody contributed to the chunk, so its sum is +0 */
    /* owned: [trained_count] the sums over each chunk. The chunk's last fold makes them, or else
     * REDUCE. UPDATE then replaces `nonfinite` by the number of nonfinite values that it makes in
     * the chunk */
    struct sums *chunk_sums;
    /* owned: [trained_count] true: the chunk's last fold has made chunk_sums, and they are still
     * valid */
    bool *summed;
    /* owned: the scalars of the current UPDATE: [spec.group_count] for the groups, then one for
     * each class of `missed` */
    struct group_scalars *scalars;
    /* borrowed: points into the decision, which the core keeps until the next decision */
    struct missed missed;
    struct cairn_version version_next; /* the version that the current UPDATE makes */
    struct results gradients; /* the nonfinite values that the last REDUCE found, by tensor */
    /* owned: both [spec.tensor_count], set by REDUCE if tensors without gradients are left alone:
     * the tensors that have chunks to which nobody contributed, and for each of these tensors the
     * number of elements in such chunks of this shard */
    uint32_t *untouched_tensors;
    uint64_t *untouched_elems;
    uint32_t untouched_count;
    /* the nonfinite values that the last UPDATE made, by tensor; a write makes none */
    struct results results;
    struct log_limit results_said;
    /* called when pass_republish has written the newest version once more; NULL: pass_republish is
     * not at work */
    void (*republished)(struct shard_job *job);
    bool reduce_waits; /* REDUCE waits for the end of pass_republish */
    bool updating;     /* an UPDATE was decided, and is not published yet */
    /* the UPDATE (or pass_republish) waits until nothing is sent out of the copy that it will
     * write */
    bool update_waits;
    bool update_writes; /* the UPDATE belongs to a write */
    bool settling;      /* shard_job_settle is running */
};

/* Called when the job is opened. After CAIRN_ERR_NO_MEMORY call pass_close, too. */
CAIRN_MUST_CHECK cairn_status pass_open(struct shard_job *job, const struct chunk_table *table);
void pass_close(struct shard_job *job);
/* The arrays of struct job_pass that are indexed by chunk, made for another table. */
struct pass_tables {
    const struct chunk_table *table; /* borrowed */
    bool *zero, *summed;             /* owned */
    struct sums *chunk_sums;         /* owned */
};
/* Makes the arrays for a table. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status pass_tables_open(const struct chunk_table *table,
                                               struct pass_tables *tables_out);
/* Frees the arrays. Also accepts tables that are all 0. */
void pass_tables_close(struct pass_tables *tables);
/* Makes later passes run over the chunks of these tables. No pass may be under way. Takes ownership
 * of the tables. */
void pass_switch(struct shard_job *job, struct pass_tables *tables);

/* Finds which chunks belong to which home. Call it when planes have been moved. No pass may be
 * under way. */
void pass_divide(struct shard_job *job);

/* Stands for the core's number of a chunk if the item of a run is one of those that go over all
 * chunks. */
#define CAIRN_PASS_NOT_TRAINED UINT32_MAX

/* ==== audit ==== */

/* Finds state that changed in memory although nothing wrote it (a flipped bit, a stray write).
 *
 *   UPDATE to a step that is a multiple of audit_every, seal, write
 *       ─► a checksum of each leaf of each plane of state, while the leaf is in the caches
 *   the next UPDATE ─► each leaf is compared before it is overwritten (gpu/gpu.h)
 *   a snapshot of that version ─► each leaf that is read is compared
 *   a fetch of state, as a standby's ─► each leaf is compared before it is sent
 *
 * So such a version is audited as a whole, by those who read it anyway: an audit needs no bandwidth
 * and no turn of its own, and a leaf that differs is found before anything is made of it. The next
 * UPDATE takes in what flipped in a version without checksums, and nobody can tell any more: with
 * audit_every = 1 there is no such version.
 *
 * Frozen tensors and groups, and blobs, which an UPDATE does not read, keep their checksums and are
 * read for the audit alone: one leaf of CAIRN_AUDIT_TURNS in each audit, and the next ones in the
 * next audit.
 *
 * Not covered are the sums of a round and published copies, which live for one step; state that a
 * shard gives to another one with another layout, which is sent as it lies there; state between its
 * arrival, or the start of this process, and its first checksum; and state on a device, for which
 * audit_every is refused. A standby that is being filled has no checksums. Checksums are no part of
 * what is kept (kept.h). */

#define CAIRN_AUDIT_TURNS 16u

/* The checksums of a part in one layout. */
struct audit_checks {
    const struct shard_map *map; /* borrowed */
    /* owned: [map->extent_count + 1] how many leaves the extents before have; NULL: there are no
     * checksums */
    uint64_t *before;
    /* owned: [map->leaf_count] for each plane of state; NULL: no extent keeps the plane. 0: the
     * checksum is not known */
    uint64_t *of[CAIRN_PLANE_COUNT];
};

struct audit {
    uint64_t every; /* audit_every of the newest terms; 0: no audits */
    struct audit_checks checks;
    uint64_t counted_bytes; /* of `checks`, in job->memory.tables */
    /* Constant while an UPDATE is under way. takes: the version that it makes gets checksums. turns:
     * the UPDATE compares every turns-th leaf that it does not overwrite, from `turn` on; 0: none */
    bool takes;
    uint64_t turns, turn;
    /* the UPDATE came upon a leaf without a checksum, so its audit compared less than its turn has */
    _Atomic bool lacks;
    uint64_t count; /* of the audits until now */
    /* the step of the last audit of each turn that compared all that the turn has; 0: none yet */
    uint64_t steps[CAIRN_AUDIT_TURNS];
    struct check_found found;
    struct log_limit said;
};

/* The newest terms want audits every so many steps. They begin with the next UPDATE. */
void audit_want(struct shard_job *job, uint64_t every);
/* An UPDATE is about to begin; or the seal of a part (is_seal), which makes the first checksums. */
void audit_begin(struct shard_job *job, bool is_seal);
/* The part gets another view, which takes the checksums of the leaves that stay. */
void audit_switch(struct shard_job *job, const struct shard_view *next);
/* State was written otherwise than by an UPDATE, and none is under way: no checksum is known any
 * more. */
void audit_forget(struct shard_job *job);
/* The UPDATE, or a write, has ended. Returns true if state was found that nothing wrote: then the
 * job is stopped, with a reason that says where. */
bool audit_end(struct shard_job *job);
/* Returns how many checksums the part has, and writes the digests of `count` of them from the `first` on
 * (Published.audit) to `out`, whose number is *digests_out. 0: there are none of the newest version. */
uint64_t audit_digests(const struct shard_job *job, uint64_t first, uint64_t count,
                       uint64_t out[static CAIRN_AUDIT_RANGES], size_t *digests_out);
/* The step since which every leaf was compared at least once; 0: they were not yet. A leaf that only got its
 * checksum was not compared. */
uint64_t audit_since(const struct shard_job *job);

/* ---- any thread, while the UPDATE is under way ---- */

/* Fills in the checksums of the update of a chunk. */
void audit_update(struct shard_job *job, uint32_t chunk, const struct chunk_place *place,
                  struct update_checks *out);
/* Compares the chunk's leaves whose turn it is; those without a checksum get one. */
void audit_compare(struct shard_job *job, uint32_t chunk);
/* Makes the checksums of a chunk that was written. */
void audit_take(struct shard_job *job, uint32_t chunk);

/* ---- a pinned version ---- */

/* Copies the checksums for a pin, whose view is in force. Without audits, or without memory, the
 * copy has none. */
void audit_copy(struct shard_job *job, struct audit_checks *out);
void audit_checks_close(struct audit_checks *checks);
/* Compares `leaves` leaves of an extent's plane, from this leaf of the tensor on, that were read to
 * `bytes`. CAIRN_ERR_CHECKSUM: `why` says which leaf differs. Any thread. */
CAIRN_MUST_CHECK cairn_status audit_judge(const struct shard_job *job,
                                          const struct audit_checks *checks, size_t extent,
                                          enum plane plane, uint64_t first_leaf, uint64_t leaves,
                                          const uint8_t *bytes, size_t elem_bytes,
                                          struct sentence *why);

/* ==== former ==== */

/* Former versions, to which the job can go back: as many as keep_versions says.
 *
 *   UPDATE or write of version v ─► the slot of v gets each chunk that is overwritten, as it is at v; the
 *       slot is that of the oldest version, when all are in use
 *   back to v (JobCreate.back) ─► another generation is made beside this one (jobs.h, extend). A chunk is as
 *       in the slot of v, else as in that of the version after v, and so on; at last as it is now
 *   JobSwitch ─► the new generation takes over the slots of the versions before v
 *
 * A slot has room for trained tensors and buffers. Others are changed by writes only, and after such a write
 * there is no former version. The slots are of the layout in force: another one begins with none, and gets
 * its room a few updates later. They end with the process. A standby has slots of its own, since it makes
 * the same updates. State on a device has no former versions, and keep_versions is refused for it. Loop
 * thread, except where it says so. */

struct former_slot {
    struct cairn_version version;
    bool *has;        /* owned: [map.chunk_count] the slot has the chunk */
    uint8_t *payload; /* owned: of the last decision at this version */
    size_t payload_bytes;
    struct results results;
};

struct former {
    const struct shard_view *of; /* never read: the view of the slots; NULL: there are none */
    struct arena room;           /* owned: the slots, of slot_bytes each */
    uint64_t slot_bytes;
    uint64_t *at; /* owned: [map.chunk_count + 1] where a chunk begins in a slot */
    /* owned: [keep_versions], of which `count` from `first` on have a version, the oldest first */
    struct former_slot *slots;
    uint32_t first, count;
    struct former_slot
        *saving;        /* borrowed: the slot of the UPDATE under way; NULL: nothing is saved */
    atomic_bool misses; /* that UPDATE overwrites what no slot has room for */
    bool is_making;     /* the pages of the room are being made */
    int32_t updates;    /* how many there were since the layout changed, or there was no memory */
    uint8_t *payload;   /* owned: of the last decision at the newest version */
    size_t payload_bytes;
    bool is_noted; /* the payload is there; not so if the slots were made after the decision */
    struct log_limit said;
};

#define CAIRN_FORMER_LINE 64u /* what is saved begins at multiples of this */

/* Makes the slots, whose pages the caller makes. `former_close` frees all but the room. Any thread.
 * CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status former_open(struct shard_job *job, struct sentence *why);
void former_close(struct former *former, uint32_t max);
/* The part gets another view. */
void former_switch(struct shard_job *job);
/* A decision is about to be given to the machine, which forgets the one before. */
void former_note(struct shard_job *job);
/* An UPDATE or a write is about to begin; or has ended, and its version is published. */
void former_begin(struct shard_job *job);
void former_end(struct shard_job *job);
/* Saves a chunk. Call it before adding works that overwrite any part of the chunk. Runs all works in the
 * list. Any thread, in the pass of an UPDATE. */
void former_save(struct shard_job *job, struct works *works, uint32_t chunk);

/* Finds a version, whose index is valid until the next UPDATE. CAIRN_ERR_VERSION_GONE: `why` lists those
 * that there are. */
CAIRN_MUST_CHECK cairn_status former_find(const struct shard_job *job, struct cairn_version version,
                                          uint32_t *index_out, struct sentence *why);
/* Gives the message the payload of that version. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status former_give_payload(const struct shard_job *job, uint32_t index,
                                                  Cairn__JobCreate *create);
struct results former_results(const struct shard_job *job, uint32_t index);
/* Returns the planes of state of a chunk at that version, one after the other, each at a multiple of
 * CAIRN_FORMER_LINE; NULL: the chunk is as it was. Any thread, while no UPDATE is under way. */
const uint8_t *former_chunk(const struct shard_job *job, uint32_t index, uint64_t chunk);
/* `to` serves from now on, which was made from a former version of `from` (NULL: that one is gone): takes
 * over those before it. */
void former_hand_over(struct shard_job *from, struct shard_job *to);

/* The former versions of all jobs, for a heartbeat: the newest of each job, if there are too many. */
struct former_told {
    size_t count;
    Cairn__FormerTold told[CAIRN_FORMER_TOLD_MAX];
    Cairn__FormerTold *pointers[CAIRN_FORMER_TOLD_MAX];
};
void former_list(const struct shard_daemon *shard, struct former_told *out);

/* ==== park ==== */

/* Parking moves a job's planes from a device to host memory, and back. This serves programs that
 * need the whole device between two phases of training.
 *
 *   PartPark ─► host memory is admitted (memory.h) ─► copies ─► the device's memory is given back ─► Done
 *   and back ─► the device's memory is judged and taken ─► copies ─► the host's is given back ─► Done
 *
 * The coordinator opens no round while a job is parked. The planes of a parked job lie in host
 * memory, so fetches, snapshots, digests and leases continue from there, and a failure of the
 * device does not affect the job. Loop thread. */

struct park {
    /* a coordinator has parked the job, which may have nothing on a device. The next coordinator is
     * told whether a job is parked, or being moved, before it opens a round */
    bool is_parked;
    /* is_under_way: planes are being moved; to_host: to host memory, not back */
    bool is_under_way, to_host;
    struct request asked; /* the PartPark that the current move will answer */
    struct work_run copy; /* copies areas (memory.h) and published copies to their destination */
    uint64_t host_bytes;  /* the bytes that the parked planes take of memory.state */
};

/* ==== admit ==== */

/* Takes memory before anything relies on it. Loop thread. */

/* The slots in which a job's chunks land. Each worker has slots for chunks of any size, then slots
 * for small chunks, then slots without memory, for payloads that are read in place. */
struct job_landing {
    struct arena arena; /* the slots of one worker, then the slots of the next worker */
    /* window: how many slots each worker has; small and in_place: how many of these are for small
     * chunks, and how many have no memory */
    uint32_t window, small, in_place;
    size_t slot_bytes, small_bytes;
    uint32_t counted; /* how many slots the budget counts; enough for the present workers */
    uint32_t made;    /* how many slots have their pages */
    uint32_t asked;   /* how many slots will have pages when the current reserve is done */
    bool extra;       /* slots are counted for more workers than are present: see admit_left */
};

/* Returns where the slot begins in the arena. For the number after the last slot, this is the end
 * of the last slot. */
uint64_t landing_at(const struct job_landing *landing, uint32_t slot);

/* Checks that the device has device_bytes free, in addition to the staging that its streams will
 * still take. Without a device, device_bytes must be 0. CAIRN_ERR_NO_MEMORY: `why` has the numbers,
 * including host_bytes, the host memory that the job needs, too. CAIRN_ERR_IO: the device
 * failed. */
CAIRN_MUST_CHECK cairn_status shard_job_judge_device(const struct shard_job *job,
                                                     uint64_t device_bytes, uint64_t host_bytes,
                                                     struct sentence *why);
/* Takes the job's own memory from the budget. The job is refused if there is no room for the workers
 * that a round needs to open; `why` then says how it would fit. The memory that each worker adds is taken
 * when the worker joins. */
CAIRN_MUST_CHECK cairn_status admit_part(struct shard_job *job, const struct need *need,
                                         struct sentence *why);
/* Returns the bytes that the budget must have, at least: the job's own memory, and the memory for
 * the least number of workers with which a round can open. */
uint64_t admit_least_bytes(const struct shard_job *job, const struct need *need);
/* The landing slots of all workers that have joined: slots_count takes them from the budget, and
 * slots_begin has their pages made. *waits_out: pages are lacking, and the request's `done` is called when
 * they are made: job->landing.asked slots. */
CAIRN_MUST_CHECK cairn_status slots_count(struct shard_job *job, struct sentence *why);
CAIRN_MUST_CHECK cairn_status slots_begin(const struct reserve_request *request, bool *waits_out,
                                          struct sentence *why);
/* Gives back the landing slots of workers that have left, if no round uses these slots. Gives back
 * at most CAIRN_GIVE_MAX_BYTES in one loop iteration. Until all these slots are given back,
 * job->landing.extra is set, and this function is called again. Call it when workers may have
 * left. */
void admit_left(struct shard_job *job);
/* Without large pages the kernel takes 0.4 s to take back a GiB, so it takes 25 ms for this many
 * bytes. */
#define CAIRN_GIVE_MAX_BYTES ((uint64_t)64 << 20)

#endif
