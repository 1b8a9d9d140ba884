#ifndef CAIRN_SHARD_KEPT_H
#define CAIRN_SHARD_KEPT_H

#include "gpu/gpu.h"
#include "server/base/keeper.h"
#include "server/core/step.h"
#include "server/shard/collect.h"
#include "server/shard/kept_file.h"
#include "server/shard/memory.h"
#include "server/shard/need.h"

/* The state of a job's part outlives the process, if a keeper holds its descriptors
 * (base/keeper.h).
 *
 *   segments   the memfds of the planes, sums included, as they are
 *   record     what the part is: spec, layout, places. A new edition whenever that changes
 *   next       the layout that is prepared, with the PartPrepare that brought it
 *   ledger     how far the part is: the machine's last outcome, and how far each update is. Written in every
 *              round, in place
 *
 *   serving ─► kept_begin ─► kept_note, before anybody is told of a step ─► kept_end
 *      ▲            │  dies at any instruction
 *      │            ▼
 *      └── the next process: kept_open ─► a job is made ─► the update that was cut off is ended
 *
 * Kept is what only this part has: the parameters, the moments, and the sums of a round that was
 * reported as reduced. Everything else comes again: members from the coordinator, contributions
 * from workers, who compute a round again that was not prepared; published copies are written
 * anew. A part that has state on a device is not kept. Loop thread, except where it says so.
 *
 * A layout that comes into force is kept as prepared until it is settled: the next process is at
 * the version of the Fence, in the layout before, whose state nobody has touched; the Fence comes
 * again, and what was to come is asked for again. If all of it was here, `next` says so, since the
 * senders may have forgotten it. For this a kept part is not REDUCED in a layout before it is
 * settled. A part is not kept while its layout is taken back (core/move.h).
 *
 * A generation that is staged is kept beside the one that serves: the coordinator makes it the job when all
 * shards have said that they have it, and no shard may lose it after that. */

/* The part that a job has here, as it is kept. */
struct job_kept {
    uint32_t
        part; /* the number of the part in the names of its descriptors; 0: nothing was stored */
    /* the newest edition that was made of record or ledger, and of prepared layouts */
    uint32_t edition, nexts;
    uint32_t record; /* the edition of the record that the keeper has; 0: none */
    bool is_stored;  /* the keeper has record and ledger, so the part is kept now */
    bool is_due;     /* another edition is to be made when the update under way has ended */
    uint64_t segments[CAIRN_PLANES];    /* so many segments of each plane were stored */
    struct kept_ledger *ledger;         /* owned: mapped; NULL: none */
    const struct shard_view *ledger_of; /* never read: the view with which the ledger was made */
    struct kept_next *next; /* owned: mapped: the layout that is prepared; NULL: none is kept */
    /* The threads of the update under way read where its marks go, and its round. Borrowed:
     * the ledger, even if the part is kept no more; NULL: the update makes no marks */
    struct kept_ledger *marked;
    uint64_t stamp;
    struct kept_part *from; /* owned: what the part is being resumed from; NULL: it is not */
    bool is_pending;        /* the shard does not connect before the part serves again */
    bool was_kept; /* the machine continues that of another process, so there is no READY */
    uint64_t
        over; /* rounds up to this one are over, whether the process before noted them or not */
};

/* A shard stores its parts with its keeper, and resumes those that it was handed. */
struct shard_view;
struct shard_kept {
    uint32_t parts;   /* the highest number of a part */
    uint32_t pending; /* how many parts are being resumed */
    struct log_limit said;
};

struct shard_options;
/* Takes what the keeper handed over, and begins to resume the parts that it has. Takes ownership
 * of options->kept. A part that cannot be resumed is logged with the reason, and forgotten; one of
 * which the shard died is set aside (kept_aside.h). */
void kept_open(struct shard_daemon *shard, const struct shard_options *options);

/* Has the part kept as it is now. Call it when the part serves, and whenever its spec, its
 * layout or its memory has changed. Without a keeper, or if the part cannot be kept, this does
 * nothing. */
void kept_begin(struct shard_job *job);

/* ---- another layout ---- */

/* Has the prepared layout kept, or the part not kept. Called before anybody is told that the
 * layout is prepared. */
void kept_prepared(struct shard_job *job);
/* The prepared layout is not wanted any more; or the layout in force has its number now. */
void kept_unprepared(struct shard_job *job);
/* All state that comes with the layout in force is in the planes. Called before anybody is told. */
void kept_is_whole(struct shard_job *job);
/* True if the layout in force, which was just entered, has to be settled before the part is
 * REDUCED. */
bool kept_awaits_settled(const struct shard_job *job);
/* True if the extents of a view of the prepared layout lie where those of the process before lay. */
bool kept_has_places(const struct shard_job *job, const struct shard_view *view);
/* The keeper lets go of the prepared layout, if it has one. */
void kept_forget_next(struct shard_job *job);

/* ---- how far it is ---- */

/* The round that is about to be reported as reduced may be a write, whose values are of this process
 * alone: the next one could not put them into the state. So the part is not kept until the write is
 * over. */
void kept_without_write(struct shard_job *job);
/* Notes how far the machine is. Called before anybody is told of it, and before an update
 * begins. */
void kept_note(struct shard_job *job);
/* True if the newest round that began here was not noted. */
bool kept_lacks_round(const struct shard_job *job);
/* An update begins. Called after kept_note. */
void kept_marks(struct shard_job *job);
/* Sets the fields of an update of a chunk by which another process could end it. Any thread.
 * `trained` is the core's number of the chunk; `lane`: struct works. */
void kept_update(const struct shard_job *job, uint32_t trained, uint32_t lane,
                 struct update_work *work);
/* True if the chunk's update by the last decision is ended. Any thread. */
bool kept_has_ended(const struct shard_job *job, uint32_t trained);

/* How far the machine is. */
struct kept_outcome kept_outcome_of(const struct shard_job *job);

/* ---- a part that is resumed ---- */

/* The message that the part was made by, as far as it is known; borrowed from the kept part. */
struct kept_create {
    Cairn__JobCreate message;
    struct paged spec, layout;
};
/* The bytes of the spec, the amended spec and the layout, as they lie one behind the other. */
struct kept_terms {
    const uint8_t *bytes; /* borrowed */
    uint64_t spec_bytes, amended_bytes, layout_bytes;
};
/* Makes the message, which borrows the terms; the caller fills in the rest. */
struct kept_create kept_create_of(const struct kept_terms *terms);
/* Writes the terms of the job, whose newest ones are `spec` and `layout` but for an amended spec. */
void kept_terms_write(const struct shard_job *job, const struct packed *spec,
                      const struct packed *layout, uint8_t *at);
/* The job is made from the part: kept_take_part ─► the other functions ─► kept_is_pending ─►
 * kept_resumed; or, if it cannot be made, kept_leave_part: the part stays the caller's. */
void kept_take_part(struct shard_job *job, struct kept_part *part);
void kept_leave_part(struct shard_job *job);
void kept_is_pending(struct shard_job *job);
/* Gives the extents of a fresh view their places in the planes, and the job its amended terms.
 * CAIRN_ERR_MALFORMED, CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status kept_place(struct shard_job *job, struct sentence *why);
/* Opens the planes out of the segments. CAIRN_ERR_IO, CAIRN_ERR_NO_MEMORY,
 * CAIRN_ERR_UNSUPPORTED. */
CAIRN_MUST_CHECK cairn_status kept_open_planes(struct shard_job *job, const struct need *need,
                                               struct sentence *why);
/* The job has the amended spec that a process before had; `bytes` are copied. CAIRN_ERR_MALFORMED,
 * CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status kept_take_amended(struct shard_job *job, bool settled,
                                                uint64_t revision, const uint8_t *bytes,
                                                size_t count, struct sentence *why);
/* The round machine continues from there. */
struct step_kept kept_step(const struct shard_job *job);
/* Takes the ledger over, and the tensors and groups that the kept round leaves alone.
 * *was_cut_out: an update was cut off, which the caller ends. CAIRN_ERR_MALFORMED: the ledger is
 * of other chunks. */
CAIRN_MUST_CHECK cairn_status kept_take(struct shard_job *job, bool *was_cut_out,
                                        struct sentence *why);
/* The undo of the i-th lane of the process that ended, and the core's number of the chunk to
 * which it belongs; NULL: there is no further lane, or (is_of false) the lane's last update was
 * not cut off. */
struct update_undo *kept_undo(const struct shard_job *job, uint32_t lane, bool *is_of,
                              uint32_t *trained_out);
/* Has the layout that was prepared prepared by `prepare`, or says why that fails. If `is_whole`, all
 * that comes with the layout is in the planes. */
typedef cairn_status kept_prepare_fn(struct shard_job *job, const Cairn__PartPrepare *message,
                                     const struct paged *layout, bool is_whole,
                                     struct sentence *why);
void kept_prepare_next(struct shard_job *job, kept_prepare_fn *prepare);
/* The part serves again; or the layout that was prepared is prepared again, or cannot be. */
void kept_resumed(struct shard_job *job);

#endif
