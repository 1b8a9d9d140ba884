/* A job as one worker or reader has it. Each module's own state is one struct, declared in its header. */
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

/* How a job stands with the coordinator: what it asks for when it attaches, and how far that came. The loop
 * attaches it (client/session.h). */

enum job_state { JOB_DETACHED, JOB_ATTACHING, JOB_ATTACHED };

struct attachment {
    /* constant from open on */
    struct packed *spec_packed; /* held; NULL for a reader */
    uint64_t open_flags;        /* CAIRN_OPEN_* */
    uint32_t start_wait_ms;
    /* lock */
    /* workers that came together; after a round, those that were in it. 0: not said */
    uint32_t launch;
    bool attached_once;
    struct sentence put_off; /* why the coordinator will be asked again; else empty */
    uint64_t job; /* the coordinator's number of the job; changed by the loop thread only */
    /* loop thread */
    enum job_state state;
    uint32_t request; /* of the JobOpen that is under way */
    uint64_t at_ms;   /* the next attempt is not before */
    uint32_t delay_ms;
    /* CAIRN_OPEN_RESUME asks a second time for a job that was lost while its shards heard of it */
    bool lost_under_way;
    /* the newest epoch in which a round was opened, and of which store; 0: none was */
    uint64_t seen_epoch, seen_store;
    Cairn__Attached *reply; /* owned: its pages are coming */
    struct paged spec_pages, layout_pages;
    struct reading *reading;       /* owned: of these, when all are here */
    Cairn__LayoutChanged *changed; /* owned: likewise */
    /* owned: MISMATCH with its differences; NULL: none. Constant once the job has failed */
    Cairn__Error *refused;
    struct paged changed_pages;
};

/* Loop thread: the reply and its pages are done with, or void. */
void attachment_drop_pages(struct attachment *attachment);
/* Loop thread: likewise with a change of the layout. */
void attachment_drop_changed(struct attachment *attachment);
/* Loop thread: the job is not attached, and has to ask anew. */
void attachment_lost(struct job *job);
/* Any thread: why the job waits; "": it does not. Not under the lock. */
void attachment_put_off(struct job *job, const char *why);

/* ==== filling ==== */

/* The round that the caller fills with gradients, as its calls see it: nonsense is refused before it travels.
 * Under the lock. */

struct filling {
    uint64_t round;
    struct spec_batch batch; /* of the round; of a write, too, without a total */
    bool had_last;    /* the last micro-batch of the batch was this worker's in its last round */
    uint32_t micro;   /* the micro-batch being filled: its place among this worker's */
    bool any;         /* something was pushed in it */
    bool end_unsent;  /* the end of the one before it is noted, and could not be told yet */
    bool committed;   /* the round is */
    uint64_t weight;  /* with which */
    uint8_t *tensors; /* owned: [tensor_count], enum filled: those of the micro-batch */
    bool *frozen_tensors;     /* owned: [tensor_count] that take no gradient in this round */
    bool *frozen_groups;      /* owned: [group_count], likewise */
    double *rates;            /* owned: [group_count] of cairn_group_lr; NaN: none was given yet */
    uint32_t adding;          /* pushes that are being added up, or copied */
    uint64_t pushes_open;     /* pushes that are not done: their buffers are on loan */
    uint64_t void_round;      /* the highest round known to be abandoned */
    struct sentence void_why; /* why; "" where nobody said */
    /* the round that this worker gave up since a shard refused its push, and why; 0: no refusal */
    uint64_t refused_round;
    cairn_status refused_status;
    struct sentence refused_why;
};

enum filled { NOT_PUSHED = 0, PUSHED = 1, PUSHED_IN_PART = 2 };

/* ==== puts ==== */

/* Notes what this worker has put of the initial state, each tensor once, and gives the digest of
 * it. Caller's threads; not under the lock unless it says so. */

#define CAIRN_PUTS_DIGEST_BYTES 32

struct put_note {
    /* bits 1 << plane */
    uint8_t put;    /* whole, and it did not fail */
    uint8_t failed; /* and was not put again since: nothing may be sealed without it */
    bool known;     /* the digest, of the parameter */
    uint8_t digest[CAIRN_PUTS_DIGEST_BYTES];
};

/* Under the lock. */
struct puts {
    struct put_note *notes; /* owned: [tensor_count]; NULL: nothing was put */
    uint64_t open;          /* puts that are not done */
    bool has_moments;       /* some were put, be it that all was to be put again since */
    cairn_status status;    /* the first failure of a put */
    struct sentence why;
};

/* The beginnings of the digests of every tensor of the job, as InitDone.held has them, to be freed; NULL: no
 * memory, nothing was put, or the job has more tensors than go into a message. */
#define CAIRN_PUTS_HELD_BYTES 8

/* Under the lock: nothing of it was put after all. */
void puts_unclaim(struct job *job, size_t tensor, int plane);
/* Under the lock: a put failed: the plane may be put again. */
void puts_failed(struct job *job, size_t tensor, int plane);

/* ==== shard link ==== */

/* A shard, as the owner of the chunks that the layouts give it (client/layouts.h), and the connection to
 * it. The two part where a relay speaks for the owner (proto/wire/wire.h): then what is pushed to the owner,
 * and some of what is fetched, goes over the connection of another link, its carrier. Loop thread, but for
 * what says otherwise. */

#define CAIRN_CLIENT_SHARDS_MAX 4096

struct shard_link {
    struct job *job;
    uint32_t index;
    /* the owner */
    char name[64];
    uint8_t *address; /* owned */
    size_t address_bytes;
    struct chunk_header grant;  /* the last one; kind 0: none on its connection */
    struct shard_link *carrier; /* takes what is pushed in the open round; NULL: not granted */
    bool relayed;               /* MICRO_END and COMMIT to the carrier have this owner's index */
    bool declined;              /* the relay that granted has no chunks of this owner to fetch */
    uint64_t grant_deadline_ms; /* until then, fetches wait for the GRANT that names the relay */
    struct asker asker;         /* for puts and fetches */
    struct {
        TAILQ_HEAD(, parcel) queue; /* of a card's memory: cut, and not copied yet */
        uint32_t ahead;             /* copied or being copied, and not sent yet */
    } staging;                      /* parcel.c */
    /* the connection */
    struct chunk_link conn;
    uint32_t asked;            /* puts and fetches that went over it and are unanswered */
    bool takes_unsummed;       /* CAIRN_CHUNK_UNSUMMED of its last HELLO */
    bool relays;               /* it has granted for others */
    bool reached;              /* something came from it, ever */
    uint64_t unheard_since_ms; /* there, awaited and not heard since; 0: not looked at yet */
    bool starves;       /* this process has no memory to send to it: shards.silence says so */
    bool silent;        /* for so long that shards.silence says so */
    uint64_t judged_ms; /* when that was last looked at */
};

/* The links of a job to its shards. A shard has the same number in all of the job's layouts. */
struct job_shards {
    /* loop thread */
    struct shard_link **links; /* owned, each: [count] */
    uint32_t count;
    /* lock: over which way nothing comes any more, or nothing goes for want of memory; else empty */
    struct sentence silence;
};

/* ==== write ==== */

/* Writing planes at a step boundary. Caller's threads, not under the lock unless it says so. */

struct written;

/* Under the lock. */
struct writing {
    struct cairn_round round;   /* of the write that is open; round.round 0: none */
    LIST_HEAD(, written) boxes; /* owned: what was put in it */
};

void write_release(struct job *job); /* with the job, or under the lock */

/* The round of the write that is open; 0: none. */
uint64_t api_write_round(struct job *job);
/* A put in that write. */
cairn_status api_write_put(struct job *job, uint64_t round, const char *tensor, const char *plane,
                           const struct cairn_box *box, const struct cairn_mem *given,
                           cairn_op **op_out);

/* ==== job ==== */

/* Who this is, to the coordinator and the shards. */
struct member {
    uint64_t id, token;
    cairn_role role;
    uint32_t rank;
    uint32_t number; /* of the job in this process: the rounds that it begins have it */
};

/* Why every call fails from now on; CAIRN_OK: none does. */
struct failure {
    cairn_status status;
    struct sentence why;
};

/* The job's state as this client last heard of it. */
struct known_state {
    bool initialized;
    struct cairn_version newest;
    double clip_norm; /* amendments change it */
    /* when it was first attached; constant from then on */
    bool found; /* it had taken steps */
    uint64_t found_step;
    char made_by[CAIRN_NAME_MAX + 16];
};

/* The versions that this client asked the coordinator to keep. */
struct leased {
    struct cairn_version oldest; /* until then, by this process's clock; 0: nothing */
    uint64_t until_ms;
};

struct job {
    struct session *session; /* borrowed */
    struct job *next;        /* loop thread: the session's list */
    /* constant from open on */
    struct job_spec_data spec; /* canonical; the first attach sets it, a reader's wholly */
    char *name;
    struct member member;
    void *handle;
    void (*on_last_unref)(struct job *job); /* frees it */
    atomic_bool closing;

    /* lock */
    uint32_t refs; /* the handle, the session's list, ops */
    bool closed;
    struct failure failure; /* fenced, mismatch, lost, closed */
    struct known_state known;
    struct leased leased;
    struct cairn_stats stats;
    struct step_times times; /* of a worker */
    struct pause pause;      /* this worker's own */
    struct awaited awaited;  /* asked by a call that timed out */
    struct filling filling;
    struct writing writing;
    struct puts puts;

    /* lock and loop thread: their headers say which */
    struct attachment attachment;
    struct held_tiles tiles;
    struct push_sums sums;
    struct mapped_reads reads;
    struct stitches stitches;
    struct cache *cache;          /* owned; NULL: no unit was asked for */
    struct served_layout *served; /* owned: newest first; NULL: it was never attached */
    struct job_shards shards;

    /* loop thread */
    struct failure broken; /* of a card: the job fails with it at the next turn */
    /* a push waits for what is queued on its stream, and those behind it, too */
    bool awaits_stream;
    bool stalled; /* its first command could not go on: those behind it wait, other jobs' do not */
    struct parcel_table parcels;
    struct {
        TAILQ_HEAD(, parcel) parcels;
        uint32_t count;
    } landed; /* parcel.c */
    struct pushing pushing;
    struct {
        uint64_t none_fetched_ms,
            none_pushed_ms; /* when nothing was in flight, last; 0: not looked */
    } flights;
};

/* Under the lock: a write of this worker's that nothing has voided yet. */
static inline bool job_is_writing(const struct job *job)
{
    return job->writing.round.round != 0 && job->writing.round.round > job->filling.void_round;
}

void job_ref(struct job *job);   /* not under the lock */
void job_unref(struct job *job); /* frees it with the last one; not under the lock */
void job_note_clip_norm(struct job *job, double clip_norm); /* likewise */

/* ==== api ==== */

/* The steps that all calls of a job share: look up the handle, judge the arguments, hand the work
 * to the loop thread. They run on the caller's threads; a failure sets the calling thread's error
 * sentence. */

/* cairn_open; with a hub (tests) the data path is the mem fabric. Not exported. */
cairn_status client_open(const struct cairn_opts *opts, struct fabric_hub *hub,
                         cairn **out) CAIRN_MUST_CHECK;

/* The job of a handle, until api_leave; NULL: it is not open. */
struct job *api_job(const cairn_job *handle);
void api_leave(struct job **job);
/* Begins a call of a job: declares `job`, that of the handle, until the function returns; the function fails
 * if the handle is none. */
#define API_JOB(job, handle)                                               \
    __attribute__((cleanup(api_leave))) struct job *job = api_job(handle); \
    if (job == NULL) return CAIRN_ERR_HANDLE
/* The same, and the function fails as the job has, if it has. */
#define API_ENTER(job, handle) \
    API_JOB(job, handle);      \
    CAIRN_TRY(api_check(job))
/* The deadline of a call whose timeout begins now, on the clock of client_now_ms. */
uint64_t api_deadline(int timeout_ms);
/* Judges the arguments that most calls have. CAIRN_ERR_INVALID names the one that is wrong.
 * `out_name` is the name of the caller's `out`; NULL if the call has none. */
cairn_status api_judge_call(const char *out_name, const void *out, int timeout_ms) CAIRN_MUST_CHECK;
/* Fails like the job has, if it has. */
cairn_status api_check(struct job *job) CAIRN_MUST_CHECK;
/* Sleeps until *open (puts.open, filling.pushes_open) is 0; `what` names them. */
cairn_status api_await_none(struct job *job, const uint64_t *open, const char *what,
                            uint64_t deadline_ms) CAIRN_MUST_CHECK;
/* The sizes of these structs in the first release: a caller may have been compiled with it. */
#define CAIRN_API_ROUND_LEAST  offsetof(struct cairn_round, skips)
#define CAIRN_API_RESULT_LEAST offsetof(struct cairn_result, skips)

/* ---- api_push.c: which micro-batches of a step are this worker's (proto/spec/spec.h) ---- */
/* The number that the caller has for a micro-batch of the open round becomes its place among this worker's.
 * CAIRN_ERR_INVALID: it is another's. Fails as the round does, too. */
cairn_status api_batch_place(struct job *job, const struct cairn_round *round,
                             uint32_t *micro) CAIRN_MUST_CHECK;

/* Under the lock: the open round has no micro-batch for this worker. */
bool batch_is_surplus(const struct job *job);

/* ---- api_push.c: pushes ---- */
/* Did this job begin it? Rounds of two jobs may have the same number. */
cairn_status api_judge_begun(const struct job *job,
                             const struct cairn_round *round) CAIRN_MUST_CHECK;
/* Is it the round that this worker has open? Under the lock. */
cairn_status api_judge_round(const struct job *job,
                             const struct cairn_round *round) CAIRN_MUST_CHECK;
/* Under the lock. Sleeps until no thread is adding up or copying a push; those wait for nothing. */
void api_await_added(struct job *job);
/* Is it, and its micro-batch, the one that is being filled, and the tensor not yet in it? Notes the tensor;
 * of CAIRN_API_NO_TENSOR the end of the micro-batch, for which it waits until all is copied. */
#define CAIRN_API_NO_TENSOR SIZE_MAX
cairn_status api_judge_fill(struct job *job, const struct cairn_round *round, uint32_t micro,
                            size_t tensor) CAIRN_MUST_CHECK;
/* Pushes tensors of which only parts came in the micro-batch that ended: zeros for the others. */
cairn_status api_push_incomplete(struct job *job, const struct cairn_round *round,
                                 uint32_t micro) CAIRN_MUST_CHECK;

/* ==== judge ==== */

/* Judging what a caller gives of a tensor: name, memory, box, plane. Caller's threads; failures set this
 * thread's sentence. */

/* Finds the tensor and judges what of the caller's memory does not depend on the box; *mem_out is that. An
 * alias gives its target; one of a box gives that box in *part_out (NULL = all of it). */
cairn_status api_judge_data(const struct job *job, const char *name, const struct cairn_mem *given,
                            struct cairn_mem *mem_out, size_t *tensor_out,
                            const struct cairn_box **part_out) CAIRN_MUST_CHECK;
/* The same, and *box becomes the box of the target, in `room`, if the name is an alias of a box. */
cairn_status api_judge_boxed(const struct job *job, const char *name, const struct cairn_mem *given,
                             struct cairn_mem *mem_out, size_t *tensor_out,
                             const struct cairn_box **box, struct cairn_box *room) CAIRN_MUST_CHECK;
/* Judges the box of a put or push, and the memory's pointer: NULL is what this worker holds, and nothing
 * else will do. */
cairn_status api_judge_own(struct job *job, size_t tensor, const struct cairn_box *box,
                           const struct cairn_mem *mem, struct piece *piece_out) CAIRN_MUST_CHECK;
/* Judges the box of a fetch or a write, and the memory's pointer: any box; NULL is what this worker holds,
 * and needs mem->bytes where that is a tile. */
cairn_status api_judge_box(struct job *job, size_t tensor, const struct cairn_box *box,
                           const struct cairn_mem *mem, struct piece *piece_out) CAIRN_MUST_CHECK;
/* A plane that is put: *number_out (enum plane). CAIRN_ERR_UNSUPPORTED: none of them; as
 * api_judge_plane. */
cairn_status api_judge_state(const struct job *job, size_t tensor, const char *plane,
                             int *number_out) CAIRN_MUST_CHECK;
/* CAIRN_ERR_NOT_FOUND says why the tensor has no such plane (enum plane). */
cairn_status api_judge_plane(const struct job *job, size_t tensor, int plane) CAIRN_MUST_CHECK;

/* CAIRN_ERR_INVALID: mem is in none of the dtypes `allowed`. */
cairn_status api_refuse_dtype(const char *tensor, const struct cairn_mem *mem,
                              const char *allowed) CAIRN_MUST_CHECK;
/* CAIRN_ERR_INVALID: mem is not in what the plane of the tensor is put, written and fetched in. */
cairn_status api_judge_dtype(const struct job *job, size_t tensor, int plane,
                             const struct cairn_mem *mem) CAIRN_MUST_CHECK;
/* Sets whole and piece. CAIRN_ERR_INVALID: the box is not the whole alias, or the memory cannot be;
 * CAIRN_ERR_UNSUPPORTED: this worker holds a tile of the target. */
cairn_status api_judge_portion(struct job *job, const struct cairn_box *part,
                               const struct cairn_box *box,
                               struct portion *portion) CAIRN_MUST_CHECK;

/* ---- memory of a GPU ---- */

/* The card of mem.device; *card_out NULL: the host. */
cairn_status api_card(const struct cairn_mem *mem, struct card **card_out) CAIRN_MUST_CHECK;
/* Waits until the work queued on mem->stream is done, then copies the memory of `piece` to the
 * host. `mem` must have been judged with that piece. On return *mem describes the host memory;
 * *copy_out is the caller's to free, NULL if the memory was on the host already. */
cairn_status api_bring(struct cairn_mem *mem, const struct piece *piece,
                       void **copy_out) CAIRN_MUST_CHECK;

/* ==== list ==== */

/* Functions of the calls for single tensors (api_push.c, api_read.c) that the calls for lists
 * (lists.c) use too. They run on the caller's threads; a failure sets the calling thread's
 * error sentence. */

/* ---- api_push.c ---- */
/* A push of all that this worker holds of a tensor, or of just that box. CAIRN_ERR_UNSUPPORTED: the name is
 * an alias of a box. */
cairn_status api_judge_push(struct job *job, const char *tensor, const struct cairn_box *box,
                            const struct cairn_mem *given, size_t *tensor_out,
                            struct piece *piece_out, struct cairn_mem *mem_out) CAIRN_MUST_CHECK;
/* api_judge_fill of several tensors, none twice, and that none is frozen: all are noted, or none is.
 * *wrong_out: which of them is wrong; `count`: it is none of them. */
cairn_status api_fill_many(struct job *job, const struct cairn_round *round, uint32_t micro,
                           const size_t *tensors, size_t count, size_t *wrong_out) CAIRN_MUST_CHECK;

/* ---- api_read.c ---- */
/* The number of a plane that is fetched; NULL: of "wire". */
cairn_status api_plane_of(const char *plane, int *number_out) CAIRN_MUST_CHECK;
cairn_status api_judge_fetch(struct job *job, const char *tensor, int plane,
                             const struct cairn_box *box, const struct cairn_mem *given,
                             size_t *tensor_out, struct piece *piece_out,
                             struct cairn_mem *mem_out) CAIRN_MUST_CHECK;

#endif
