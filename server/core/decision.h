/* The decision that ends a round, and its payload. The coordinator's core and the shards' cores exchange
 * decisions.
 *
 * A decision is made once, by the coordinator, and every shard keeps it until the next decision. From the
 * kept decision a new coordinator learns what the old coordinator decided. So the payload carries
 * everything about the round that a worker may still ask. It also carries the part of the job's state that
 * is on no disk: the loss scale, the client state, the learning rates that the trainer gave, and the number
 * of steps that each tensor missed.
 *
 * Pure; no allocation. */
#ifndef CAIRN_CORE_DECISION_H
#define CAIRN_CORE_DECISION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/geometry/tensor.h"
#include "proto/spec/scalars.h"

/* ==== missed ==== */

/* The steps that tensors missed, as a payload encodes them.
 *
 * A tensor's own count of updates is the job's step minus the steps that the tensor missed. A tensor misses
 * a step because it is frozen, because it was added later, or because nobody had a gradient for it. The
 * bias corrections of the tensor, and the first step of SGD, use that count. If no tensor of a job has
 * missed a step, this part of the payload is empty.
 *
 *   u32 class_count, u32 run_count                                  little-endian
 *   class  u64 steps, u32 group, u32 flags, u32 neg_step_size, u32 sqrt_bc2
 *   run    u32 tensor, u32 class
 *
 * A class holds what tensors of one group that missed the same number of steps have in common. A run begins
 * at the tensor with this index in the job's list, and ends where the next run begins. The tensors in a run
 * of class 0 have missed nothing. Class 1 is the first class in the list. Tensors that are not trained may
 * be in any run; for them the class means nothing.
 *
 * Pure; no allocation. */

/* The most runs that fit into a control frame (proto/wire/wire.h) together with everything else. */
#define CAIRN_MISSED_RUNS_MAX    24576
#define CAIRN_MISSED_HEAD_BYTES  8
#define CAIRN_MISSED_CLASS_BYTES 24
#define CAIRN_MISSED_RUN_BYTES   8
/* For a job with this many tensors: the most runs, which is also the most classes, and the bytes of the
 * encoding. */
#define CAIRN_MISSED_RUNS(tensors) \
    ((tensors) < CAIRN_MISSED_RUNS_MAX ? (size_t)(tensors) : (size_t)CAIRN_MISSED_RUNS_MAX)
#define CAIRN_MISSED_BYTES(tensors) \
    (CAIRN_MISSED_HEAD_BYTES +      \
     CAIRN_MISSED_RUNS(tensors) * (CAIRN_MISSED_CLASS_BYTES + CAIRN_MISSED_RUN_BYTES))

enum missed_flag {
    /* the class missed this step, too: the update leaves the tensors of the class alone */
    CAIRN_MISSED_THIS = 1,
    /* this is the tensors' first step, by their own count (CAIRN_SCALAR_FIRST_STEP) */
    CAIRN_MISSED_FIRST = 2
};

struct missed_class {
    uint64_t steps; /* the number of steps missed, this step included; at least 1 */
    uint32_t group;
    uint32_t flags; /* enum missed_flag */
    /* The scalars, as fp32 bits, with which this step updates the class. The other scalars are the
     * group's. */
    uint32_t neg_step_size, sqrt_bc2;
};

/* The part of a payload that holds the missed steps; borrowed. All 0: nothing was missed. */
struct missed {
    const uint8_t *bytes;
    size_t size;
};

/* Checks the encoding that begins at `bytes`, and returns it. Bytes may follow the encoding.
 * CAIRN_ERR_MALFORMED. */
cairn_status missed_decode(const uint8_t *bytes, size_t bytes_len,
                           struct missed *missed_out) CAIRN_MUST_CHECK;
uint32_t missed_class_count(const struct missed *missed);
struct missed_class missed_class_at(const struct missed *missed, uint32_t c);
#define CAIRN_MISSED_NONE UINT32_MAX
/* The class of a trained tensor; CAIRN_MISSED_NONE: the tensor has missed nothing. */
uint32_t missed_class_of(const struct missed *missed, uint32_t tensor);
/* The number of steps that a trained tensor has missed. */
uint64_t missed_steps(const struct missed *missed, uint32_t tensor);
/* The scalars with which the class is updated: the group's, except those that depend on the count of
 * updates. */
struct group_scalars missed_scalars(const struct missed_class *class_,
                                    const struct group_scalars *group);

/* Writes the missed steps, tensor by tensor, in the order of the job's list. */
#define CAIRN_MISSED_CACHE 256
struct missed_writer {
    uint8_t *out; /* [CAIRN_MISSED_BYTES(tensors)] borrowed */
    uint32_t room, class_count, run_count, run_class;
    /* there was not enough room: what was written is invalid */
    bool is_full;
    uint32_t cache[CAIRN_MISSED_CACHE]; /* numbers of classes, by the hash of the class; 0: none */
};
void missed_begin(struct missed_writer *writer, uint8_t *out, size_t tensors);
/* Adds the next trained tensor. `this_step`: the tensor misses this step, too. If `steps` is 0 the tensor
 * has missed nothing, and `group` and `this_step` mean nothing. */
void missed_put(struct missed_writer *writer, uint32_t tensor, uint64_t steps, uint32_t group,
                bool this_step);
/* Ends and returns the encoding. All 0: nothing was missed. */
struct missed missed_end(struct missed_writer *writer);
/* Sets the scalars of a class, before missed_end. `scalars`: of an update at the tensors' own count. */
void missed_set(struct missed_writer *writer, uint32_t c, const struct group_scalars *scalars);
struct missed_class missed_written(const struct missed_writer *writer, uint32_t c);

/* ==== decision ==== */

/* The numbers are sent on the wire (control.proto, Decision.kind). */
enum decision_kind {
    CAIRN_DECISION_NONE = 0,    /* no round of this job has been decided yet */
    CAIRN_DECISION_APPLY = 1,   /* update with these scalars */
    CAIRN_DECISION_SKIP = 2,    /* the round is used up, and only the job's state changes */
    CAIRN_DECISION_ABANDON = 3, /* the round is void; sent only to workers, and never kept */
    /* the planes that the round's only worker wrote take effect, as the next generation */
    CAIRN_DECISION_WRITE = 4
};

struct decision {
    enum decision_kind kind;
    /* 0: the decision belongs to no round (a fresh or a restored job) */
    uint64_t round;
    struct cairn_version version_after; /* SKIP, NONE: the present version */
    const uint8_t *payload;             /* [payload_bytes] borrowed; struct payload describes it */
    size_t payload_bytes;               /* 0: none */
};

/* Rounds that ended with SKIP. */
struct skips {
    /* the number of all skips of the job; step + all is the number of rounds that used up a batch */
    uint64_t all;
    /* The number of skips, since something was applied or written, in which the loss scale was already at
     * its least or was fixed. Only skips under the terms of `revision` count. */
    uint32_t in_row;
    uint64_t revision; /* 0 if in_row is 0 */
};

/* The contents of a payload, except the scalars of the groups. */
struct payload {
    /* norm of the mean gradient, before the clip; NaN if the round was not finite */
    double grad_norm;
    double clip_scale;    /* 1: not clipped */
    double lr;            /* the first group's learning rate */
    double loss_scale;    /* the loss scale of the rounds that follow */
    uint32_t good_rounds; /* rounds applied in a row since the loss scale last changed */
    bool finite;
    bool fail; /* the round was not finite, and by the job's policy its workers get an error */
    struct skips skips;   /* the skips until now, this round included */
    uint32_t group_count; /* groups with scalars; 0 for SKIP, WRITE and NONE */
    /* [driven_count] the learning rates of driven groups with which the version was made. NULL in a decoded
     * payload: there payload_driven returns them. */
    const double *driven;
    /* the number of all groups of the job, driven or not; 0: no group is driven */
    uint32_t driven_count;
    /* The steps that tensors have missed, this step included. In a decoded payload they are borrowed from
     * its bytes. */
    struct missed missed;
    /* [state_bytes] the client state for the version after the decision; 0 bytes: there is none. After
     * decoding, it is borrowed from the payload's bytes. For encoding, it may lie in `out`. */
    const uint8_t *state;
    size_t state_bytes;
};

#define CAIRN_PAYLOAD_HEAD_BYTES 48
#define CAIRN_PAYLOAD_BYTES(group_count) \
    (CAIRN_PAYLOAD_HEAD_BYTES + (size_t)(group_count)*CAIRN_GROUP_SCALARS_BYTES)

#define CAIRN_PAYLOAD_SKIPS_BYTES 20
/* The bytes of a count and of a learning rate for each group; 0 if no group is driven. */
#define CAIRN_PAYLOAD_DRIVEN_BYTES(count) ((count) > 0 ? 4 + 8 * (size_t)(count) : 0)
/* The largest payload that a decision can have, in a job with these numbers of groups and tensors. */
#define CAIRN_PAYLOAD_MAX(group_count, tensor_count, state_max)     \
    (CAIRN_PAYLOAD_BYTES(group_count) + CAIRN_PAYLOAD_SKIPS_BYTES + \
     CAIRN_PAYLOAD_DRIVEN_BYTES(group_count) +                      \
     ((tensor_count) > 0 ? CAIRN_MISSED_BYTES(tensor_count) : 0) + (size_t)(state_max))

/* Writes a payload, and returns the number of bytes, at most CAIRN_PAYLOAD_MAX(groups of the job, tensors
 * of the job, head->state_bytes). The parts are, in this order: the head, the groups in the spec's order,
 * the skips, the learning rates of driven groups, the missed steps, and the client state. Every part after
 * the groups may be missing. */
size_t payload_encode(const struct payload *head, const struct group_scalars *groups, uint8_t *out);
/* Writes to `out` the payload at `bytes`, with `missed` instead of its missed steps; `head` is the decoded
 * payload. Returns the number of bytes written, at most missed->size more than the payload had. */
size_t payload_with_missed(const void *bytes, const struct payload *head,
                           const struct missed *missed, uint8_t *out);
/* CAIRN_ERR_MALFORMED: a length that does not fit, an unknown flag, or a part that is not valid. */
cairn_status payload_decode(const void *bytes, size_t bytes_len,
                            struct payload *head_out) CAIRN_MUST_CHECK;
/* Replaces the loss scale in a payload, and sets good_rounds to 0. */
void payload_set_loss_scale(uint8_t *bytes, double loss_scale);
/* Decodes the scalars of group `group` < group_count. payload_decode has accepted the payload. */
cairn_status payload_group(const void *bytes, size_t bytes_len, uint32_t group,
                           struct group_scalars *scalars_out) CAIRN_MUST_CHECK;
/* Returns the learning rate of group `i` < driven_count; `head` is the decoded payload. The rate means
 * nothing if the group is not driven. */
double payload_driven(const void *bytes, const struct payload *head, uint32_t i);

#endif
