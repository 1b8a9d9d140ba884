/* Which steps passed tensors by, as a payload has it.
 *
 * A tensor's own count of updates is the job's step less the steps that it missed: because it was
 * frozen, or came later, or because nobody had a gradient for it. Its bias corrections, and SGD's
 * first step, go by that count. If the tensors of a job have missed nothing, this part of its
 * payloads is empty.
 *
 *   u32 class_count, u32 run_count                                  little-endian
 *   class  u64 steps, u32 group, u32 flags, u32 neg_step_size, u32 sqrt_bc2
 *   run    u32 tensor, u32 class
 *
 * A class holds what is common to tensors of one group that missed the same number of steps. A run
 * begins at a tensor, by its index in the job's list, and goes on to the next run. A run of class 0
 * has missed nothing; class c is the (c - 1)-th of the list. Tensors that are not trained may be in
 * any run; it means nothing for them.
 *
 * Pure; no allocation. */
#ifndef CAIRN_CORE_MISSED_H
#define CAIRN_CORE_MISSED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/spec/scalars.h"

/* The most runs that fit a frame of control (proto/wire/frame.h) beside all else. */
#define CAIRN_MISSED_RUNS_MAX    24576
#define CAIRN_MISSED_HEAD_BYTES  8
#define CAIRN_MISSED_CLASS_BYTES 24
#define CAIRN_MISSED_RUN_BYTES   8
/* The most runs, and classes, of a job of so many tensors, and their bytes. */
#define CAIRN_MISSED_RUNS(tensors) \
    ((tensors) < CAIRN_MISSED_RUNS_MAX ? (size_t)(tensors) : (size_t)CAIRN_MISSED_RUNS_MAX)
#define CAIRN_MISSED_BYTES(tensors) \
    (CAIRN_MISSED_HEAD_BYTES +      \
     CAIRN_MISSED_RUNS(tensors) * (CAIRN_MISSED_CLASS_BYTES + CAIRN_MISSED_RUN_BYTES))

enum cairn_missed_flag {
    CAIRN_MISSED_THIS = 1, /* the decided step, too: the update leaves its tensors alone */
    CAIRN_MISSED_FIRST = 2 /* CAIRN_SCALAR_FIRST_STEP, as the tensors' own count says */
};

struct cairn_missed_class {
    uint64_t steps; /* missed, after the decision; at least 1 */
    uint32_t group;
    uint32_t flags; /* enum cairn_missed_flag */
    /* fp32 bits, of an update of these tensors: all other scalars are the group's */
    uint32_t neg_step_size, sqrt_bc2;
};

/* The part of a payload that says what was missed; borrowed. All 0: nothing was missed. */
struct cairn_missed {
    const uint8_t *bytes;
    size_t size;
};

/* Judges what begins at `bytes` and takes it; the rest is another's. CAIRN_ERR_MALFORMED. */
cairn_status cairn_missed_decode(const uint8_t *bytes, size_t bytes_len,
                                 struct cairn_missed *missed_out) CAIRN_MUST_CHECK;
uint32_t cairn_missed_class_count(const struct cairn_missed *missed);
struct cairn_missed_class cairn_missed_class_at(const struct cairn_missed *missed, uint32_t c);
#define CAIRN_MISSED_NONE UINT32_MAX
/* The class of a trained tensor; CAIRN_MISSED_NONE: it has missed nothing. */
uint32_t cairn_missed_class_of(const struct cairn_missed *missed, uint32_t tensor);
/* How many steps a trained tensor has missed. */
uint64_t cairn_missed_steps(const struct cairn_missed *missed, uint32_t tensor);
/* The scalars of an update of the class: those of its group, but for what goes by the count. */
struct cairn_group_scalars cairn_missed_scalars(const struct cairn_missed_class *class_,
                                                const struct cairn_group_scalars *group);

/* Writes one, tensor by tensor, in the order of the job's list. */
#define CAIRN_MISSED_CACHE 256
struct cairn_missed_writer {
    uint8_t *out; /* borrowed: CAIRN_MISSED_BYTES(tensors) */
    uint32_t room, class_count, run_count, run_class;
    bool is_full;                       /* there is no room: nothing of it counts */
    uint32_t cache[CAIRN_MISSED_CACHE]; /* a class by its hash; 0: none */
};
void cairn_missed_begin(struct cairn_missed_writer *writer, uint8_t *out, size_t tensors);
/* The next tensor that is trained. `steps` 0: it has missed nothing, and all else means nothing. */
void cairn_missed_put(struct cairn_missed_writer *writer, uint32_t tensor, uint64_t steps,
                      uint32_t group, bool this_step);
/* Ends the list, and returns it. All 0: nothing was missed. */
struct cairn_missed cairn_missed_end(struct cairn_missed_writer *writer);
/* Before the end: sets the scalars of a class by those of an update at the tensors' own count. */
void cairn_missed_set(struct cairn_missed_writer *writer, uint32_t c,
                      const struct cairn_group_scalars *scalars);
struct cairn_missed_class cairn_missed_written(const struct cairn_missed_writer *writer,
                                               uint32_t c);

#endif
