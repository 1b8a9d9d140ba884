/* A job as one worker or reader sees it. The state of each module is one struct, declared in the
 * module's header. */
#ifndef CAIRN_CLIENT_JOB_H
#define CAIRN_CLIENT_JOB_H

#include <cairn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "client/base.h"
#include "client/layouts.h"
#include "client/op.h"
#include "client/push.h"
#include "client/read.h"
#include "client/session.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/link/link.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"

/* ==== attachment ==== */

/* The state of a job's attachment to the coordinator: what the job requests when it attaches, and
 * how far attaching has come. The loop thread attaches the job (client/session.h). */

enum job_state { JOB_DETACHED, JOB_ATTACHING, JOB_ATTACHED };

struct attachment {
    /* constant from open on */
    struct packed *spec_packed; /* held; NULL for a reader */
    uint64_t open_flags;        /* CAIRN_OPEN_* */
    uint32_t start_wait_ms;
    /* lock */
    /* the number of workers that start together; after a round, the number of its members. 0:
     * unknown */
    uint32_t launch;
    bool attached_once;
    struct sentence put_off; /* why the coordinator will be asked again; otherwise empty */
    uint64_t job; /* the coordinator's number of the job; changed by the loop thread only */
    /* loop thread */
    enum job_state state;
    uint32_t request; /* the request number of the JobOpen in progress */
    uint64_t at_ms;   /* the earliest time of the next attempt */
    uint32_t delay_ms;
    /* with CAIRN_OPEN_RESUME, the job was lost while its shards were being told of the job, and the
     * client asked again; the client does this only once */
    bool lost_under_way;
    /* seen_epoch: the newest epoch in which a round was opened; 0: no round yet. seen_store: the
     * store of that epoch */
    uint64_t seen_epoch, seen_store;
    Cairn__Attached *reply;          /* owned: the reply whose pages are arriving */
    struct paged parts[CAIRN_PARTS]; /* the pages of the reply */
    struct reading *reading;         /* owned: reads these pages after all of them have arrived */
    Cairn__LayoutChanged *changed;   /* owned: a change of the layout whose pages are arriving */
    /* owned: the MISMATCH error with its differences; NULL: none. Constant after the job has
     * failed */
    Cairn__Error *refused;
    struct paged changed_part; /* the pages of `changed` */
};

/* Loop thread: frees the reply and its pages, which are processed or void. */
void attachment_drop_pages(struct attachment *attachment);
/* Loop thread: frees `changed` and its pages. */
void attachment_drop_changed(struct attachment *attachment);
/* Loop thread: called when the job is no longer attached, and must attach again. */
void attachment_lost(struct job *job);
/* Any thread: sets the reason why the job waits; "": the job does not wait. Not under the lock. */
void attachment_put_off(struct job *job, const char *why);

/* ==== filling ==== */

/* The round that the caller fills with gradients. The caller's API calls track the round here, so that
 * invalid calls are refused before anything is sent. Under the lock. */

struct filling {
    uint64_t round;
    /* the batch of the round, or of a write; a write's batch has no total */
    struct spec_batch batch;
    bool had_last;        /* in its last round, this worker had the last micro-batch of the batch */
    uint32_t micro;       /* the index of the micro-batch being filled, among this worker's */
    bool any;             /* something was pushed in this micro-batch */
    bool end_unsent;      /* the end of the previous micro-batch is recorded, but not sent yet */
    bool committed;       /* the round is committed */
    uint64_t weight;      /* the weight of the commit */
    uint8_t *tensors;     /* owned: [tensor_count], enum filled: the micro-batch's tensors */
    bool *frozen_tensors; /* owned: [tensor_count] tensors without a gradient in this round */
    bool *frozen_groups;  /* owned: [group_count] groups without a gradient in this round */
    double *rates;        /* owned: [group_count] of cairn_group_lr; NaN: not set yet */
    uint32_t adding;      /* pushes that are being added up or copied */
    uint64_t pushes_open; /* pushes that are not done: their buffers are on loan */
    uint64_t void_round;  /* the highest round known to be abandoned */
    struct sentence void_why; /* why that round was abandoned; "": no reason is known */
    /* refused_round: the round that this worker gave up because a shard refused its push; 0: none.
     * The next two fields say why */
    uint64_t refused_round;
    cairn_status refused_status;
    struct sentence refused_why;
};

enum filled { NOT_PUSHED = 0, PUSHED = 1, PUSHED_IN_PART = 2 };

/* ==== puts ==== */

/* Records what this worker has put of the initial state, each tensor once, and computes its digest.
 * Caller's threads; not under the lock unless a comment says so. */

#define CAIRN_PUTS_DIGEST_BYTES 32

struct put_note {
    /* `put` and `failed` have bits 1 << plane */
    uint8_t put; /* the plane was put completely, without failure */
    /* the plane's put failed, and the plane was not put again since: blocks the seal */
    uint8_t failed;
    bool known; /* the parameter's digest is known */
    uint8_t digest[CAIRN_PUTS_DIGEST_BYTES];
};

/* Under the lock. */
struct puts {
    struct put_note *notes; /* owned: [tensor_count]; NULL: nothing was put */
    uint64_t open;          /* puts that are not done */
    /* moments were put; stays true even if everything had to be put again since */
    bool has_moments;
    bool compares; /* puts were refused, because the job has its state, and hashed all the same */
    cairn_status status; /* the first failure of a put */
    struct sentence why;
};

/* How many first bytes of each tensor's digest InitDone.held has. */
#define CAIRN_PUTS_HELD_BYTES 8

/* Under the lock: undoes the claim of a plane that was not put in the end. */
void puts_unclaim(struct job *job, size_t tensor, int plane);
/* Under the lock: records that a put failed; the plane may be put again. */
void puts_failed(struct job *job, size_t tensor, int plane);

/* ==== shard link ==== */

/* The client's side of one shard. The struct describes the shard as the owner of the chunks that
 * the layouts assign to it (client/layouts.h), and the connection to the shard. A relay may act for
 * the owner (proto/wire/wire.h): pushes to the owner, and some fetches, then use the connection of
 * another link, which is called the owner's carrier. Loop thread, unless a comment says
 * otherwise. */

#define CAIRN_CLIENT_SHARDS_MAX 4096

struct shard_link {
    struct job *job;
    uint32_t index;
    /* the owner */
    char name[64];
    uint8_t *address; /* owned */
    size_t address_bytes;
    struct chunk_header grant;  /* the last GRANT; kind 0: no GRANT arrived on this connection */
    struct shard_link *carrier; /* receives the pushes of the open round; NULL: not granted */
    bool relayed;               /* MICRO_END and COMMIT to the carrier carry this owner's index */
    bool declined;              /* the granting relay cannot serve fetches of this owner's chunks */
    uint64_t grant_deadline_ms; /* until then, fetches wait for a GRANT that names the relay */
    struct asker asker;         /* for puts and fetches */
    struct {
        TAILQ_HEAD(, parcel) queue; /* pushes of a card's memory that are cut, and not copied yet */
        uint32_t ahead; /* the number of pushes that are copied or being copied, and not sent yet */
    } staging;          /* parcel.c */
    /* the connection */
    struct chunk_link conn;
    /* the number of unanswered puts and fetches that were sent over this connection */
    uint32_t asked;
    bool takes_unsummed; /* CAIRN_CHUNK_UNSUMMED of the shard's last HELLO */
    bool relays;         /* the shard has granted on behalf of other owners */
    bool reached;        /* something has ever been received from the shard */
    /* since when the shard is present and awaited, but not heard; 0: not checked yet */
    uint64_t unheard_since_ms;
    /* this process lacks the memory to send to the shard: shards.silence says so */
    bool starves;
    bool silent;        /* the shard was not heard for so long that shards.silence says so */
    uint64_t judged_ms; /* when the shard's silence was last checked */
};

/* The links of a job to its shards. A shard has the same number in all of the job's layouts. */
struct job_shards {
    /* loop thread */
    struct shard_link **links; /* owned, each: [count] */
    uint32_t count;
    /* lock: the text about a link on which nothing arrives any more, or on which nothing is sent
     * for lack of memory; empty if there is no such link */
    struct sentence silence;
};

/* ==== write ==== */

/* Writing planes at a step boundary. Caller's threads, not under the lock unless a comment says so. */

struct written;

/* Under the lock. */
struct writing {
    struct cairn_round round;   /* the round of the open write; round.round 0: none */
    LIST_HEAD(, written) boxes; /* owned: the boxes that were put in the open write */
};

void write_release(struct job *job); /* called when the job is released, or under the lock */

/* Returns the round of the open write; 0: none. */
uint64_t api_write_round(struct job *job);
/* Puts a box of a plane in the open write. */
cairn_status api_write_put(struct job *job, uint64_t round, const char *tensor, const char *plane,
                           const struct cairn_box *box, const struct cairn_mem *given,
                           cairn_op **op_out);

/* ==== job ==== */

/* This member's identity, for the coordinator and the shards. */
struct member {
    uint64_t id, token;
    cairn_role role;
    uint32_t rank;
    /* the number of the job in this process, which is part of the rounds that the job begins */
    uint32_t number;
};

/* Why every call fails from now on; CAIRN_OK: the job has not failed. */
struct failure {
    cairn_status status;
    struct sentence why;
};

/* The last state of the job that this client has heard of. */
struct known_state {
    bool initialized;
    struct cairn_version newest;
    double clip_norm; /* the clip norm in effect, which amendments change */
    /* as of the first attach; constant after it */
    bool found; /* the job had taken steps */
    uint64_t found_step;
    char made_by[CAIRN_NAME_MAX + 16];
    struct sentence notice; /* how the job differs from this worker's spec; "": it does not */
};

/* The versions that this client asked the coordinator to keep. */
struct leased {
    /* the oldest kept version. Versions are kept until until_ms, on this process's clock; 0: no
     * version is kept */
    struct cairn_version oldest;
    uint64_t until_ms;
};

/* The work that this client has done for the job, and how long its calls waited. */
struct measured {
    struct cairn_stats stats;
    struct step_times times; /* the phase times of a worker */
};

/* Notes of an iteration of the loop for the next one. */
struct job_turn {
    struct failure broken; /* a failure of a card, which fails the job in the next iteration */
    /* a push waits for the work on its stream, and the pushes after this one wait, too */
    bool awaits_stream;
    /* the job's first command could not proceed, so the later commands of this job wait */
    bool stalled;
    /* the last time that no fetch (none_fetched_ms) or no push (none_pushed_ms) was in flight;
     * 0: not checked */
    uint64_t none_fetched_ms, none_pushed_ms;
};

struct job {
    struct session *session; /* borrowed */
    struct job *next;        /* loop thread: the session's list */
    /* constant from open on */
    /* canonical. At the first attach, the servers' spec takes its place; a reader has no spec
     * before */
    struct job_spec_data spec;
    char *name;
    struct member member;
    void *handle;
    void (*on_last_unref)(struct job *job); /* frees the job */
    atomic_bool closing;

    /* lock */
    uint32_t refs; /* the handle, the session's list, ops */
    bool closed;
    struct failure failure; /* fenced, mismatch, lost, closed */
    struct known_state known;
    struct leased leased;
    struct measured measured;
    struct pause pause;     /* this worker's own */
    struct awaited awaited; /* requested by a call that timed out */
    struct filling filling;
    struct writing writing;
    struct puts puts;

    /* lock and loop thread: the header of each struct says which */
    struct attachment attachment;
    struct held_tiles tiles;
    struct push_sums sums;
    struct mapped_reads reads;
    struct stitches stitches;
    struct cache *cache;          /* owned; NULL: no unit was requested */
    struct served_layout *served; /* owned: newest first; NULL: the job was never attached */
    struct job_shards shards;

    /* loop thread */
    struct job_turn turn;
    struct parcel_table parcels;
    struct pushing pushing;
};

/* Under the lock: returns true if this worker has a write open that is not void. */
static inline bool job_is_writing(const struct job *job)
{
    return job->writing.round.round != 0 && job->writing.round.round > job->filling.void_round;
}

void job_ref(struct job *job);   /* not under the lock */
void job_unref(struct job *job); /* frees the job with the last reference; not under the lock */
void job_note_clip_norm(struct job *job, double clip_norm); /* not under the lock */

/* ==== api ==== */

/* The steps that all calls of a job share: look up the handle, judge the arguments, hand the work
 * to the loop thread. These functions run on the caller's threads; a failure sets the calling
 * thread's error sentence. */

/* Does the work of cairn_open. `hub`: NULL, or in tests the hub of the mem fabric, which is then
 * the data path. Not exported. */
cairn_status client_open(const struct cairn_opts *opts, struct fabric_hub *hub,
                         cairn **out) CAIRN_MUST_CHECK;

/* Returns the job of a handle, held until api_leave; NULL: the handle is not open. */
struct job *api_job(const cairn_job *handle);
void api_leave(struct job **job);
/* Begins a call of a job: declares `job`, looked up by the handle and held until the function
 * returns. The function fails if the handle is not valid. */
#define API_JOB(job, handle)                                               \
    __attribute__((cleanup(api_leave))) struct job *job = api_job(handle); \
    if (job == NULL) return CAIRN_ERR_HANDLE
/* Begins a call like API_JOB; the function also fails if the job has failed, with the job's
 * failure. */
#define API_ENTER(job, handle) \
    API_JOB(job, handle);      \
    CAIRN_TRY(api_check(job))
/* Begins a call of an operation: declares `op`, looked up by the handle and held until the function
 * returns. */
#define API_OP(op, handle)                                                                      \
    __attribute__((cleanup(api_leave_op))) struct op *op = handle_get(CAIRN_HANDLE_OP, handle); \
    if (op == NULL) return handle_fail(handle, "operation")
void api_leave_op(struct op **op);
/* Returns the deadline of a call whose timeout begins now, on the clock of monotonic_ms. */
uint64_t api_deadline(int timeout_ms);
/* Validates the arguments that most calls have. CAIRN_ERR_INVALID names the wrong argument.
 * `out_name` is the name of the caller's `out`; NULL if the call has none. */
cairn_status api_judge_call(const char *out_name, const void *out, int timeout_ms) CAIRN_MUST_CHECK;
/* Fails with the job's failure if the job has failed. */
cairn_status api_check(struct job *job) CAIRN_MUST_CHECK;
/* Sleeps until *open is 0, for example puts.open or filling.pushes_open; `what` names the open
 * operations. */
cairn_status api_await_none(struct job *job, const uint64_t *open, const char *what,
                            uint64_t deadline_ms) CAIRN_MUST_CHECK;
/* The sizes of these structs in the first release, which a caller may have been compiled with. */
#define CAIRN_API_ROUND_LEAST  offsetof(struct cairn_round, skips)
#define CAIRN_API_RESULT_LEAST offsetof(struct cairn_result, skips)

/* ---- api_push.c: which micro-batches of a step are this worker's (proto/spec/spec.h) ---- */
/* Converts the caller's number for a micro-batch of the open round into the index among this
 * worker's micro-batches. CAIRN_ERR_INVALID: the micro-batch belongs to another worker. Also fails
 * if the round has failed. */
cairn_status api_batch_place(struct job *job, const struct cairn_round *round,
                             uint32_t *micro) CAIRN_MUST_CHECK;

/* Under the lock: returns true if the open round has no micro-batch for this worker. */
bool batch_is_surplus(const struct job *job);

/* ---- api_push.c: pushes ---- */
/* Checks that this job began the round: rounds of two jobs may have the same number. */
cairn_status api_judge_begun(const struct job *job,
                             const struct cairn_round *round) CAIRN_MUST_CHECK;
/* Checks that this round is the worker's open round. Under the lock. */
cairn_status api_judge_round(const struct job *job,
                             const struct cairn_round *round) CAIRN_MUST_CHECK;
/* Under the lock. Sleeps until no thread is adding up or copying a push; such threads wait for
 * nothing. */
void api_await_added(struct job *job);
/* Checks that the round is open, that this micro-batch is being filled, and that the micro-batch
 * does not have the tensor yet; then records the tensor. With CAIRN_API_NO_TENSOR, records the end
 * of the micro-batch, and waits until every push is copied. */
#define CAIRN_API_NO_TENSOR SIZE_MAX
cairn_status api_judge_fill(struct job *job, const struct cairn_round *round, uint32_t micro,
                            size_t tensor) CAIRN_MUST_CHECK;
/* Pushes tensors of which only parts were pushed in the micro-batch that ended, with zeros for the
 * missing parts. */
cairn_status api_push_incomplete(struct job *job, const struct cairn_round *round,
                                 uint32_t micro) CAIRN_MUST_CHECK;

/* ==== judge ==== */

/* Validates what a caller passes for a tensor: name, memory, box, plane. Caller's threads; failures
 * set this thread's sentence. */

/* Finds the tensor and validates everything about the caller's memory that does not depend on the
 * box; *mem_out is that memory. For an alias, *tensor_out is the alias's target; for an alias of a
 * box, *part_out is also that box. NULL: the name stands for all of the tensor. */
cairn_status api_judge_data(const struct job *job, const char *name, const struct cairn_mem *given,
                            struct cairn_mem *mem_out, size_t *tensor_out,
                            const struct cairn_box **part_out) CAIRN_MUST_CHECK;
/* Like api_judge_data; if the name is an alias of a box, *box also becomes the box of the target,
 * stored in `room`. */
cairn_status api_judge_boxed(const struct job *job, const char *name, const struct cairn_mem *given,
                             struct cairn_mem *mem_out, size_t *tensor_out,
                             const struct cairn_box **box, struct cairn_box *room) CAIRN_MUST_CHECK;
/* Validates the box of a put or push, and the memory's pointer. The box must be exactly the part
 * that this worker holds; NULL stands for that part. */
cairn_status api_judge_own(struct job *job, size_t tensor, const struct cairn_box *box,
                           const struct cairn_mem *mem, struct piece *piece_out) CAIRN_MUST_CHECK;
/* Validates the box of a fetch or a write, and the memory's pointer. Any box is allowed; NULL
 * stands for the part that this worker holds, and mem->bytes must be given if that part is a
 * tile. */
cairn_status api_judge_box(struct job *job, size_t tensor, const struct cairn_box *box,
                           const struct cairn_mem *mem, struct piece *piece_out) CAIRN_MUST_CHECK;
/* Finds the plane of a put: *number_out (enum plane). CAIRN_ERR_UNSUPPORTED: the plane cannot be
 * put; otherwise fails like api_judge_plane. */
cairn_status api_judge_state(const struct job *job, size_t tensor, const char *plane,
                             int *number_out) CAIRN_MUST_CHECK;
/* Checks that the tensor has the plane (enum plane). CAIRN_ERR_NOT_FOUND says why the tensor has no
 * such plane. */
cairn_status api_judge_plane(const struct job *job, size_t tensor, int plane) CAIRN_MUST_CHECK;

/* Fails with CAIRN_ERR_INVALID, because `allowed` does not have the dtype of mem. */
cairn_status api_refuse_dtype(const char *tensor, const struct cairn_mem *mem,
                              const char *allowed) CAIRN_MUST_CHECK;
/* CAIRN_ERR_INVALID: mem does not have the dtype in which the plane of the tensor is put, written
 * and fetched. */
cairn_status api_judge_dtype(const struct job *job, size_t tensor, int plane,
                             const struct cairn_mem *mem) CAIRN_MUST_CHECK;
/* Sets whole and piece. CAIRN_ERR_INVALID: the box is not the entire box of the alias, or the
 * memory is not valid; CAIRN_ERR_UNSUPPORTED: this worker holds a tile of the target. */
cairn_status api_judge_portion(struct job *job, const struct cairn_box *part,
                               const struct cairn_box *box,
                               struct portion *portion) CAIRN_MUST_CHECK;

/* ---- memory of a GPU ---- */

/* Finds the card that mem.device names; *card_out NULL: the host. */
cairn_status api_card(const struct cairn_mem *mem, struct card **card_out) CAIRN_MUST_CHECK;
/* Waits until the work queued on mem->stream is done, then copies the memory of `piece` to the
 * host. `mem` must have been judged with that piece. On return *mem describes the host memory;
 * *copy_out is the caller's to free, NULL if the memory was on the host already. */
cairn_status api_bring(struct cairn_mem *mem, const struct piece *piece,
                       void **copy_out) CAIRN_MUST_CHECK;

/* Prepares the caller's memory for the operation of a pattern whose piece is set; sets the fields
 * of the pattern that describe the memory. Dense memory of a card is used in place, when the
 * caller's stream has reached this point. Memory of a card is first copied to the host if it has
 * strides, or if `brings` is true. Until the operation has begun, the caller must undo this by
 * api_unprepare, even after a failure. */
cairn_status api_prepare(struct cairn_mem *mem, bool brings,
                         struct command *pattern) CAIRN_MUST_CHECK;
void api_unprepare(struct command *pattern);

/* ==== list ==== */

/* Functions of the calls for single tensors (api_push.c, api_read.c) that the calls for lists
 * (lists.c) use too. The functions run on the caller's threads; a failure sets the calling thread's
 * error sentence. */

/* ---- api_push.c ---- */
/* Validates a push of all that this worker holds of a tensor. A box, if given, must be exactly that
 * part. CAIRN_ERR_UNSUPPORTED: the name is an alias of a box. */
cairn_status api_judge_push(struct job *job, const char *tensor, const struct cairn_box *box,
                            const struct cairn_mem *given, size_t *tensor_out,
                            struct piece *piece_out, struct cairn_mem *mem_out) CAIRN_MUST_CHECK;
/* Does the work of api_judge_fill for several tensors. Also checks that no tensor appears twice or
 * is frozen. Records either all tensors or none. *wrong_out: the index of the wrong tensor;
 * `count`: the failure concerns no single tensor. */
cairn_status api_fill_many(struct job *job, const struct cairn_round *round, uint32_t micro,
                           const size_t *tensors, size_t count, size_t *wrong_out) CAIRN_MUST_CHECK;

/* ---- api_read.c ---- */
/* Finds the number of a plane that is fetched; NULL means "wire". */
cairn_status api_plane_of(const char *plane, int *number_out) CAIRN_MUST_CHECK;
cairn_status api_judge_fetch(struct job *job, const char *tensor, int plane,
                             const struct cairn_box *box, const struct cairn_mem *given,
                             size_t *tensor_out, struct piece *piece_out,
                             struct cairn_mem *mem_out) CAIRN_MUST_CHECK;

#endif
