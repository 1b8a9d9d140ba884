/* How a round ends, and the payload of the decision. The coordinator's core and the shards' cores exchange
 * these payloads.
 *
 * A decision is made once, by the coordinator, and every shard keeps it until the next decision. A new
 * coordinator learns from the kept decision what the old coordinator decided. So the payload carries
 * everything that a worker may still ask about the round, and the part of the job's state that is on no
 * disk (the loss scale, the client state, the learning rates that the trainer gave, the number of steps
 * that each tensor missed).
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
 * a step because it is frozen, because it was added later, or because nobody had a gradient for it. Its
 * bias corrections, and SGD's first step, use that count. If the tensors of a job have missed nothing, this
 * part of its payloads is empty.
 *
 *   u32 class_count, u32 run_count                                  little-endian
 *   class  u64 steps, u32 group, u32 flags, u32 neg_step_size, u32 sqrt_bc2
 *   run    u32 tensor, u32 class
 *
 * A class holds what is common to tensors of one group that missed the same number of steps. A run begins
 * at a tensor, by its index in the job's list, and extends to the next run. Tensors in a run of class 0
 * have missed nothing; class c is the (c - 1)-th of the list. Tensors that are not trained may be in any
 * run; for them the class means nothing.
 *
 * Pure; no allocation. */

/* The most runs that fit into a control frame (proto/wire/wire.h) together with everything else. */
#define CAIRN_MISSED_RUNS_MAX    24576
#define CAIRN_MISSED_HEAD_BYTES  8
#define CAIRN_MISSED_CLASS_BYTES 24
#define CAIRN_MISSED_RUN_BYTES   8
/* The most runs, and classes, of a job with this many tensors, and their bytes. */
#define CAIRN_MISSED_RUNS(tensors) \
    ((tensors) < CAIRN_MISSED_RUNS_MAX ? (size_t)(tensors) : (size_t)CAIRN_MISSED_RUNS_MAX)
#define CAIRN_MISSED_BYTES(tensors) \
    (CAIRN_MISSED_HEAD_BYTES +      \
     CAIRN_MISSED_RUNS(tensors) * (CAIRN_MISSED_CLASS_BYTES + CAIRN_MISSED_RUN_BYTES))

enum missed_flag {
    /* the class missed the decided step, too: the update leaves its tensors alone */
    CAIRN_MISSED_THIS = 1,
    CAIRN_MISSED_FIRST = 2 /* CAIRN_SCALAR_FIRST_STEP, by the tensors' own count */
};

struct missed_class {
    uint64_t steps; /* the number of steps missed, counted after the decision; at least 1 */
    uint32_t group;
    uint32_t flags; /* enum missed_flag */
    /* fp32 bits, for an update of the class's tensors; all other scalars are the group's */
    uint32_t neg_step_size, sqrt_bc2;
};

/* The part of a payload that holds the missed steps; borrowed. All 0: nothing was missed. */
struct missed {
    const uint8_t *bytes;
    size_t size;
};

/* Checks the encoding that begins at `bytes`, and sets *missed_out to it. Bytes after the encoding belong
 * to other parts. CAIRN_ERR_MALFORMED. */
cairn_status missed_decode(const uint8_t *bytes, size_t bytes_len,
                           struct missed *missed_out) CAIRN_MUST_CHECK;
uint32_t missed_class_count(const struct missed *missed);
struct missed_class missed_class_at(const struct missed *missed, uint32_t c);
#define CAIRN_MISSED_NONE UINT32_MAX
/* The class of a trained tensor; CAIRN_MISSED_NONE: the tensor has missed nothing. */
uint32_t missed_class_of(const struct missed *missed, uint32_t tensor);
/* The number of steps that a trained tensor has missed. */
uint64_t missed_steps(const struct missed *missed, uint32_t tensor);
/* The scalars for an update of the class. They are the group's, except the scalars that depend on the
 * count. */
struct group_scalars missed_scalars(const struct missed_class *class_,
                                    const struct group_scalars *group);

/* Writes the missed steps, tensor by tensor, in the order of the job's list. */
#define CAIRN_MISSED_CACHE 256
struct missed_writer {
    uint8_t *out; /* borrowed: CAIRN_MISSED_BYTES(tensors) */
    uint32_t room, class_count, run_count, run_class;
    /* the room is used up: the list written so far is invalid */
    bool is_full;
    uint32_t cache[CAIRN_MISSED_CACHE]; /* class numbers by their hash; 0: none */
};
void missed_begin(struct missed_writer *writer, uint8_t *out, size_t tensors);
/* Adds the next trained tensor. `steps` 0: the tensor has missed nothing, and the other arguments mean
 * nothing. */
void missed_put(struct missed_writer *writer, uint32_t tensor, uint64_t steps, uint32_t group,
                bool this_step);
/* Ends the list, and returns the list. All 0: nothing was missed. */
struct missed missed_end(struct missed_writer *writer);
/* Call before missed_end: sets the scalars of a class from the scalars of an update at the tensors' own
 * count. */
void missed_set(struct missed_writer *writer, uint32_t c, const struct group_scalars *scalars);
struct missed_class missed_written(const struct missed_writer *writer, uint32_t c);

/* ==== decision ==== */

/* The numbers are sent on the wire (control.proto, Decision.kind). */
enum decision_kind {
    CAIRN_DECISION_NONE = 0,    /* no round of this job has been decided yet */
    CAIRN_DECISION_APPLY = 1,   /* update with these scalars */
    CAIRN_DECISION_SKIP = 2,    /* the round is used up, and only the job's state changes */
    CAIRN_DECISION_ABANDON = 3, /* the round is void: sent to workers only, never kept */
    /* WRITE: the data that the round's only worker put takes effect: generation + 1 */
    CAIRN_DECISION_WRITE = 4
};

struct decision {
    enum decision_kind kind;
    uint64_t round;                     /* 0: for no round (a fresh or a restored job) */
    struct cairn_version version_after; /* SKIP, NONE: the present version */
    const uint8_t *payload;             /* borrowed, [payload_bytes]; see struct payload */
    size_t payload_bytes;               /* 0: none */
};

/* Rounds that ended with SKIP. */
struct skips {
    /* all skips of the job, ever: step + all is the number of rounds that used up a batch */
    uint64_t all;
    /* The number of consecutive skipped rounds that found the loss scale at its least (or fixed) under the
     * terms of `revision`, with nothing applied or written between them. Under other terms the count begins
     * anew. */
    uint32_t in_row;
    uint64_t revision; /* 0 if in_row is 0 */
};

/* The contents of a payload, without the scalars of its groups. */
struct payload {
    double grad_norm;  /* of the mean gradient, before the clip; NaN if the round was not finite */
    double clip_scale; /* 1: not clipped */
    double lr;         /* of the first group */
    double loss_scale; /* for the rounds after this one */
    uint32_t good_rounds; /* rounds applied since the loss scale last changed */
    bool finite;
    bool fail; /* the round was not finite, and the job's policy is to tell the workers so */
    struct skips skips;   /* including this round */
    uint32_t group_count; /* of scalars; 0 with SKIP and NONE */
    /* [driven_count] the learning rates of driven groups with which the version was made. In a decoded
     * payload: NULL, see payload_driven. */
    const double *driven;
    uint32_t driven_count; /* all groups of the job, driven or not; 0: no group is driven */
    /* The steps that tensors have missed, counted after the decision. In a decoded payload: borrowed from
     * it. */
    struct missed missed;
    /* [state_bytes] the trainer's state for the version after the decision: opaque; 0 bytes: none. When
     * decoded, `state` is borrowed from the payload. For encoding it may lie in `out`. */
    const uint8_t *state;
    size_t state_bytes;
};

#define CAIRN_PAYLOAD_HEAD_BYTES 48
#define CAIRN_PAYLOAD_BYTES(group_count) \
    (CAIRN_PAYLOAD_HEAD_BYTES + (size_t)(group_count)*CAIRN_GROUP_SCALARS_BYTES)

#define CAIRN_PAYLOAD_SKIPS_BYTES 20
/* A count, and a learning rate for each group; 0 bytes if no group is driven. */
#define CAIRN_PAYLOAD_DRIVEN_BYTES(count) ((count) > 0 ? 4 + 8 * (size_t)(count) : 0)
/* The largest payload that a decision can have, in a job with these numbers of groups and tensors. */
#define CAIRN_PAYLOAD_MAX(group_count, tensor_count, state_max)     \
    (CAIRN_PAYLOAD_BYTES(group_count) + CAIRN_PAYLOAD_SKIPS_BYTES + \
     CAIRN_PAYLOAD_DRIVEN_BYTES(group_count) +                      \
     ((tensor_count) > 0 ? CAIRN_MISSED_BYTES(tensor_count) : 0) + (size_t)(state_max))

/* Writes at most CAIRN_PAYLOAD_MAX(groups of the job, its tensors, head->state_bytes) bytes, and returns
 * how many: the head, the groups in the spec's order, then if present the skips, the learning rates of
 * driven groups and the missed steps, and last the client state. */
size_t payload_encode(const struct payload *head, const struct group_scalars *groups, uint8_t *out);
/* Writes the payload of `head`, which was decoded from `bytes`, with `missed` instead of its missed steps.
 * Writes at most missed->size bytes more than `bytes` has, and returns how many bytes. */
size_t payload_with_missed(const void *bytes, const struct payload *head,
                           const struct missed *missed, uint8_t *out);
/* CAIRN_ERR_MALFORMED: a length that does not fit, an unknown flag. */
cairn_status payload_decode(const void *bytes, size_t bytes_len,
                            struct payload *head_out) CAIRN_MUST_CHECK;
/* Replaces the loss scale in such a payload. No round has been made with the new loss scale yet. */
void payload_set_loss_scale(uint8_t *bytes, double loss_scale);
/* The scalars of group `group` < group_count of a payload that payload_decode accepts. */
cairn_status payload_group(const void *bytes, size_t bytes_len, uint32_t group,
                           struct group_scalars *scalars_out) CAIRN_MUST_CHECK;
/* The learning rate in such a payload of group `i` < driven_count, if that group is driven. */
double payload_driven(const void *bytes, const struct payload *head, uint32_t i);

#endif
