#ifndef CAIRN_CLIENT_BASE_H
#define CAIRN_CLIENT_BASE_H

#include <cairn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/machine.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"

/* ==== strides ==== */

/* The caller's memory where it is not dense: element (i0, i1, ...) of a piece is at i0 * stride[0]
 * + i1 * stride[1] + ... elements from the pointer. Only dense pieces are sent over the wire: each
 * chunk is gathered before it is sent and scattered after it is received. Pure. */

struct strides {
    bool given; /* false: dense, row-major; the other fields are unused */
    /* The piece's dimensions, merged where merging moves no element: at least one, none of size 1. */
    uint32_t rank;
    uint64_t extent[8], stride[8]; /* elements */
};

/* Validates a caller's strides for memory of this box; strides that are all 0, or equal to those of
 * a dense box, are not `given`. CAIRN_ERR_INVALID: a stride is negative, or the strides exceed the
 * address range. */
cairn_status strides_judge(const int64_t stride[8], const struct cairn_box *box, size_t elem_bytes,
                           struct strides *out, struct sentence *why) CAIRN_MUST_CHECK;
/* Returns true only if no two elements can share memory: in order of ascending stride, each
 * dimension steps over the extent of all smaller ones. */
bool strides_apart(const struct strides *strides);
/* Returns the bytes from the first element to the end of the last one, for a piece of `elems`
 * elements. */
size_t strides_span(const struct strides *strides, uint64_t elems, size_t elem_bytes);

/* strides_gather copies elements [first, first + count) of the piece, in row-major order, from the
 * caller's memory (`base` is element 0) to dense `out`; strides_scatter copies them from dense `in` to
 * the caller's memory. `strides` must be `given`. */
void strides_gather(const struct strides *strides, const void *base, size_t elem_bytes,
                    uint64_t first, uint64_t count, void *out);
void strides_scatter(const struct strides *strides, void *base, size_t elem_bytes, uint64_t first,
                     uint64_t count, const void *in);

/* ==== piece ==== */

/* The piece of a tensor that a put, push or fetch transfers. */

struct piece {
    struct cairn_box box;
    bool whole;             /* the box is the entire tensor */
    uint8_t tile;           /* enum chunk_tile */
    uint64_t table_hash;    /* the hash of the tile declaration that the piece was made from */
    struct strides strides; /* the strides of the caller's memory */
};

/* ==== error ==== */

/* This thread's last sentence, which cairn_error returns. */

/* Returns `status`, so that a function ends with `return client_fail(...)`. */
cairn_status client_fail(cairn_status status, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds a copy of `row`, which names a field in which the caller's spec differs from the job's. This
 * thread's sentence keeps its rows until the thread's next failure; a row that does not fit is left
 * out. */
void client_differ(const Cairn__Difference *row);

/* ==== fork ==== */

/* Sockets that must close when this process ends. Any thread. */

/* From now on, a process that is forked from this one closes its copy of `fd` at once. If memory
 * runs out, the child keeps its copy, and the peer learns of this process's death only when the
 * lease expires. */
void fork_watch(const void *owner, int fd);
/* Called before one of the sockets is closed, while its owner keeps others. */
void fork_forget_socket(const void *owner, int fd);
/* Called when the owner's sockets are closed, or about to be closed. */
void fork_forget(const void *owner);

/* ==== handle ==== */

/* Handles, which the caller holds instead of pointers to the library's objects, so that the use of
 * a closed, wrong or foreign handle is an error and never undefined behaviour.
 *
 * A handle is a number stored as a pointer: a slot in a table of the process, and the slot's
 * generation. Looking a handle up counts a reference, so that an object is freed only when the last
 * call that uses it is over, whichever thread closes it. Any thread; one lock, held for a few
 * instructions.
 *
 * A handle belongs to the process that opened it. In a forked process it is not valid, because the
 * thread and the locks of its object do not exist there. */

enum handle_kind {
    CAIRN_HANDLE_SESSION = 1,
    CAIRN_HANDLE_JOB = 2,
    CAIRN_HANDLE_OP = 3,
    CAIRN_HANDLE_LIST = 4
};

typedef void (*handle_free_fn)(void *object);

/* Opens a handle for `object`, with one reference that handle_close releases; `release` runs when
 * the last reference is released. NULL: out of memory, or 2^20 handles are open. */
void *handle_open(enum handle_kind kind, void *object, handle_free_fn release);
/* Returns the object, with one more reference; NULL for a handle that is closed, of another kind,
 * not from this library, or of another process. */
void *handle_get(enum handle_kind kind, const void *handle);
/* Adds a reference to an object that the caller already has a reference to, whether or not the
 * handle is still open. */
void handle_hold(const void *handle);
/* Releases a reference that handle_get or handle_hold added. */
void handle_put(const void *handle);
/* Makes later handle_get calls fail, and releases the first reference. False: the handle was not
 * open. */
int handle_close(enum handle_kind kind, const void *handle);
/* Reports why handle_get failed: returns CAIRN_ERR_HANDLE and sets this thread's sentence. `what`:
 * "session". */
cairn_status handle_fail(const void *handle, const char *what);

/* ==== struct ==== */

/* Structs that grow. A caller that was compiled with an older cairn.h, or with a newer one than
 * this library, has a struct that differs only at its end. Fields that an older caller lacks are 0,
 * which is the default; fields that this library does not know must be 0, because the library would
 * ignore any other value in silence. */

/* Copies a caller's struct, which begins with its struct_size, into our struct, which has `bytes`
 * bytes. False: `from` is NULL, its size is below least_bytes (the struct of the first release) or
 * absurd, or a field that this library does not know is not 0. */
bool struct_copy_in(void *to, size_t bytes, size_t least_bytes, const void *from);
/* Returns true if the caller's struct *out has a struct_size of at least least_bytes. */
bool struct_fits(const void *out, size_t least_bytes);
/* Copies our struct to the caller's, up to the caller's struct_size, which is preserved; the
 * remaining bytes become 0. */
void struct_copy_out(void *out, const void *from, size_t bytes);
/* Returns the caller's i-th struct of an array; the struct_size of the first struct is the stride
 * of the array. */
const void *struct_at(const void *first, size_t i);

/* ==== spec ==== */

/* Converts a caller's job spec into the spec that is sent over the wire. */

/* Fills `spec` (initialized, with its name set) from *from: applies defaults, assigns groups by
 * pattern, resolves aliases, makes the spec canonical and validates it. A failure sets this
 * thread's error sentence; the caller must then release `spec`. */
cairn_status client_spec_fill(const struct cairn_job_spec *from, struct job_spec_data *spec,
                              uint64_t *open_flags_out) CAIRN_MUST_CHECK;
/* Reads from *from how many workers start together with this one, and how long to wait for them;
 * applies the defaults. */
cairn_status client_spec_launch(const struct cairn_job_spec *from, uint32_t *world_out,
                                uint32_t *start_wait_ms_out) CAIRN_MUST_CHECK;
/* Returns one group in its wire form; strings and points stay the caller's. */
struct group_spec client_group_of(const struct cairn_group *g);

/* ==== step times ==== */

/* How long each phase of a worker's step took, from one commit to the next. The commit reports the
 * times to the coordinator. Under the session's lock, any thread. */

enum step_phase_times {
    CAIRN_TIME_COMPUTE, /* the rest: time outside all other phases */
    CAIRN_TIME_PUSH,    /* waits until shards had added up the pushed gradients */
    CAIRN_TIME_WAIT,    /* waits for the end of a round and for the next round */
    CAIRN_TIME_FETCH,   /* waits for parameters */
    CAIRN_TIMES
};

struct step_times {
    /* the round and the time of the last commit, where the measurement began */
    uint64_t committed_round, committed_us;
    uint64_t pushed_us; /* the time at which the last push was complete */
    uint64_t us[CAIRN_TIMES];
    uint32_t reported[CAIRN_TIMES]; /* the times of the previous step, reported by its commit */
};

/* Records that a call waited for this phase from from_us until now. */
void step_times_waited(struct step_times *times, enum step_phase_times phase, uint64_t from_us);
/* Records that a commit call that began at from_us returns: it waited for its pushes, then for the
 * end of the round. */
void step_times_ended(struct step_times *times, uint64_t from_us);
/* Called when the round is about to be committed: fills in `out`, which borrows from `times`, for
 * the coordinator. False: there is no previous step, or the round was already committed. */
bool step_times_commit(struct step_times *times, uint64_t round, Cairn__StepTimes *out);

#endif
