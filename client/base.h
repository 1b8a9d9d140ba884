#ifndef CAIRN_CLIENT_BASE_H
#define CAIRN_CLIENT_BASE_H

#include <cairn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"

/* ==== strides ==== */

/* The caller's memory where it is not dense: element (i0, i1, ...) of a piece lies i0 * stride[0] +
 * i1 * stride[1] + ... elements behind the pointer. The wire knows dense pieces only: what is sent is
 * gathered, what came is scattered, a chunk at a time. Pure. */

struct strides {
    bool given; /* false: dense, row-major, and the rest says nothing */
    /* The piece's dimensions, joined where that moves no element: at least one, none of 1
     * element. */
    uint32_t rank;
    uint64_t extent[8], stride[8]; /* elements */
};

/* Judges a caller's strides for memory of this box; all 0, or those that a dense box has, are not `given`.
 * CAIRN_ERR_INVALID: one is negative, or they reach further than addresses do. */
cairn_status strides_judge(const int64_t stride[8], const struct cairn_box *box, size_t elem_bytes,
                           struct strides *out, struct sentence *why) CAIRN_MUST_CHECK;
/* False unless it is sure that no two elements share memory: along the dimensions by ascending stride, each
 * steps over all of those before. */
bool strides_apart(const struct strides *strides);
/* Bytes from the first element to behind the last one, of a piece that has `elems`. */
size_t strides_span(const struct strides *strides, uint64_t elems, size_t elem_bytes);

/* Elements [first, first + count) of the piece in row-major order, from the caller's memory (`base` is
 * element 0) to dense `out`, and back. `strides` are given. */
void strides_gather(const struct strides *strides, const void *base, size_t elem_bytes,
                    uint64_t first, uint64_t count, void *out);
void strides_scatter(const struct strides *strides, void *base, size_t elem_bytes, uint64_t first,
                     uint64_t count, const void *in);

/* ==== piece ==== */

/* The piece of a tensor that a put, push or fetch is about. */

struct piece {
    struct cairn_box box;
    bool whole;             /* the box is the tensor */
    uint8_t tile;           /* enum chunk_tile */
    uint64_t table_hash;    /* of the declaration of tiles that the piece was made by */
    struct strides strides; /* of the memory that it is put from, pushed from or fetched to */
};

/* ==== clock ==== */

/* The monotonic clock, which every deadline of the library is told in. */

uint64_t client_now_us(void);
uint64_t client_now_ms(void);

/* ==== error ==== */

/* This thread's last sentence, which cairn_error returns. */

/* Returns `status`, so that a function ends with `return client_fail(...)`. */
cairn_status client_fail(cairn_status status, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds a field in which the caller's spec differs from the job's. The rows are kept with the
 * sentence until the next failure. `row` is copied; a row that does not fit is left out. */
void client_differ(const Cairn__Difference *row);

/* ==== fork ==== */

/* Sockets whose end has to be that of this process. Any thread. */

/* From now on a process that is forked from this one closes its copy of `fd` at once. Without memory it keeps
 * it, and the peer learns of this process's death by the lease. */
void fork_watch(const void *owner, int fd);
/* The owner's sockets are closed, or about to be. */
void fork_forget(const void *owner);

/* ==== handle ==== */

/* Handles: what the caller holds instead of our pointers, so that a closed, wrong or foreign one is an
 * error and never undefined behaviour.
 *
 * A handle is a number in a pointer's clothes: a slot of one table of the process and the slot's
 * generation. Looking it up counts a reference, so that an object is freed only when the last call
 * that uses it is over, whichever thread closes it. Any thread; one lock, held for a few instructions.
 *
 * A handle is of the process that opened it: in a forked one, which has neither the thread nor the locks of
 * what it names, it is no handle. */

enum handle_kind {
    CAIRN_HANDLE_SESSION = 1,
    CAIRN_HANDLE_JOB = 2,
    CAIRN_HANDLE_OP = 3,
    CAIRN_HANDLE_LIST = 4
};

typedef void (*handle_free_fn)(void *object);

/* A new handle for `object`, with one reference that handle_close gives back; `release` runs when
 * the last one is. NULL: out of memory, or 2^20 handles are open. */
void *handle_open(enum handle_kind kind, void *object, handle_free_fn release);
/* The object, with one more reference; NULL for a handle that is closed, not one of this kind, not ours, or
 * of another process. */
void *handle_get(enum handle_kind kind, const void *handle);
/* One reference more of an object that the caller has one of, be the handle still open or not. */
void handle_hold(const void *handle);
/* Gives a reference of handle_get or _hold back. */
void handle_put(const void *handle);
/* No more handle_get; gives the first reference back. False: it was not open. */
int handle_close(enum handle_kind kind, const void *handle);
/* Why there was none: CAIRN_ERR_HANDLE and this thread's sentence. `what`: "session". */
cairn_status handle_fail(const void *handle, const char *what);

/* ==== struct ==== */

/* Structs that grow. A caller that was compiled with an older cairn.h, or loaded a newer one than this
 * library, differs in struct_size only at the end: what the older one lacks is 0 = the default, and
 * what this library does not know must be 0, or it would be ignored in silence. */

/* Copies a caller's struct, which begins with its struct_size, into ours of `bytes`. False: from is NULL, its
 * size is below least_bytes (the struct of the first release) or absurd, or a part that we do not
 * know is not 0. */
bool struct_copy_in(void *to, size_t bytes, size_t least_bytes, const void *from);
/* True if *out, the caller's, says a size of at least least_bytes. */
bool struct_fits(const void *out, size_t least_bytes);
/* Gives ours to the caller: as much as its struct_size has room for, which stays; the rest of it is 0. */
void struct_copy_out(void *out, const void *from, size_t bytes);
/* The caller's i-th struct of an array: the first one's struct_size is the distance of all. */
const void *struct_at(const void *first, size_t i);

/* ==== spec ==== */

/* Turns the spec that a caller gives of a job into the spec that goes over the wire. */

/* Fills `spec` (initialized, with its name set) from *from: applies defaults, assigns groups by
 * pattern, resolves aliases, makes it canonical and judges it. A failure sets this thread's error
 * sentence; `spec` is then the caller's to release. */
cairn_status client_spec_fill(const struct cairn_job_spec *from, struct job_spec_data *spec,
                              uint64_t *open_flags_out) CAIRN_MUST_CHECK;
/* How many workers *from says start together with this one, and how long to wait for them, with its
 * default. */
cairn_status client_spec_launch(const struct cairn_job_spec *from, uint32_t *world_out,
                                uint32_t *start_wait_ms_out) CAIRN_MUST_CHECK;
/* One group as the wire has it; strings and points stay the caller's. */
struct group_spec client_group_of(const struct cairn_group *g);

/* ==== step times ==== */

/* How long each phase of a worker's step took, from one commit to the next. The coordinator is told
 * with the commit. Under the session's lock, any thread. */

enum step_phase_times {
    CAIRN_TIME_COMPUTE, /* whatever is none of the others */
    CAIRN_TIME_PUSH,    /* calls waited until shards had added up what was pushed */
    CAIRN_TIME_WAIT,    /* for the end of a round and for the next one */
    CAIRN_TIME_FETCH,   /* for parameters */
    CAIRN_TIMES
};

struct step_times {
    uint64_t committed_round, committed_us; /* since then */
    uint64_t pushed_us;                     /* when nothing was left to be pushed, last */
    uint64_t us[CAIRN_TIMES];
    uint32_t reported[CAIRN_TIMES]; /* of the step before */
};

/* A call waited for it, from then until now. */
void step_times_waited(struct step_times *times, enum step_phase_times phase, uint64_t from_us);
/* A call of commit returns, which began then: it waited for its pushes first, then for the round's end. */
void step_times_ended(struct step_times *times, uint64_t from_us);
/* The round is about to be committed: `out`, which borrows `times`, is for the coordinator. False: there
 * is no step before, or the round was committed already. */
bool step_times_commit(struct step_times *times, uint64_t round, Cairn__StepTimes *out);

#endif
