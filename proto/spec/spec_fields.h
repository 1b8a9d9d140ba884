/* The scalars of a job's spec, one row each. The rows define the defaults, the check, the hash, the list of
 * differences, the message, the manifest, what `cairn job show` prints as JSON, what is taken from cairn.h,
 * and how a scalar changes in an existing job. Names, paths, tensors, the points of a schedule, and rules
 * between two fields are code.
 *
 * The order of the rows is the order of the hash: no row is ever moved, and a new row is the last, as
 * LATER. How to add one: proto/README.md. Pure; static memory. */
#ifndef CAIRN_SPEC_SPEC_FIELDS_H
#define CAIRN_SPEC_SPEC_FIELDS_H

#include <float.h>
#include <stddef.h>

#include "proto/base/text.h"
#include "proto/spec/spec.h"

enum spec_kind {
    CAIRN_SPEC_REAL,     /* double */
    CAIRN_SPEC_FRACTION, /* double, from 0 to below 1 */
    CAIRN_SPEC_COUNT,    /* uint32_t, uint64_t */
    CAIRN_SPEC_FLAG,     /* bool */
    CAIRN_SPEC_CHOICE,   /* an enum; the row's capability has the names of its values */
};

/* The part of the spec with which a scalar was introduced. It decides where the scalar is in a manifest and
 * in the hash; the parts follow each other there in this order. */
enum spec_part {
    CAIRN_SPEC_FIRST,   /* always in the hash and in every manifest, old ones included */
    CAIRN_SPEC_MICRO,   /* always in both; missing in older manifests */
    CAIRN_SPEC_SCALING, /* always in both; missing in older manifests */
    CAIRN_SPEC_LATER,   /* in both, under its name, unless it has its default */
    CAIRN_SPEC_POLICY,  /* as LATER, but hashed together. This part is closed: a new row is LATER */
    CAIRN_SPEC_ALL      /* no row has this part: it requests all parts, defaults included */
};

/* The allowed values: min, max, and the capability field that names them. */
#define CAIRN_SPEC_RANGE(min, max)   (min), (max), CAIRN_CAPABILITY_FIELD_COUNT
#define CAIRN_SPEC_BELOW_1           CAIRN_SPEC_RANGE(0, 1)
#define CAIRN_SPEC_LISTED(field)     0, UINT32_MAX, CAIRN_CAPABILITY_##field /* what spec.h lists */
#define CAIRN_SPEC_BY_CODE           CAIRN_SPEC_RANGE(0, 0) /* spec_check.c, spec.c check it */
#define CAIRN_SPEC_BY_CODE_OF(field) 0, 0, CAIRN_CAPABILITY_##field /* spec_check.c checks it */

/* name: in control.proto, a manifest, cairn.h, sentences | member: of struct job_spec_data | kind | what is
 * allowed | default | part | how it is taken from cairn.h: GIVEN under the same name, where 0 means the
 * default, or OTHERWISE (client/spec.c) | how it changes in an existing job */
#define CAIRN_SPEC_FIELDS(X)                                                                       \
    X(clip_norm, clip_norm, REAL, RANGE(0, DBL_MAX), 0, FIRST, GIVEN, NEXT_ROUND)                  \
    X(loss_scale, loss_scale, REAL, RANGE(1 / CAIRN_SPEC_SCALE_MAX, CAIRN_SPEC_SCALE_MAX), 1,      \
      FIRST, GIVEN, REOPENED)                                                                      \
    X(on_nonfinite, on_nonfinite, CHOICE, LISTED(NONFINITE), CAIRN_NONFINITE_SKIP, FIRST, GIVEN,   \
      REOPENED)                                                                                    \
    X(loss_scale_policy, loss_scale_policy, CHOICE, BY_CODE_OF(LOSS_SCALE), 0, SCALING, GIVEN,     \
      REOPENED)                                                                                    \
    X(loss_scale_growth_steps, loss_scale_growth_steps, COUNT, BY_CODE, 0, SCALING, GIVEN,         \
      REOPENED)                                                                                    \
    X(loss_scale_min, loss_scale_min, REAL, BY_CODE, 0, SCALING, GIVEN, REOPENED)                  \
    X(loss_scale_max, loss_scale_max, REAL, BY_CODE, 0, SCALING, GIVEN, REOPENED)                  \
    X(stage, stage, COUNT, LISTED(STAGE), 2, FIRST, OTHERWISE, REOPENED)                           \
    X(micro_batches, micro_batches, COUNT, RANGE(1, CAIRN_SPEC_MICRO_MAX), 1, MICRO, GIVEN,        \
      REOPENED)                                                                                    \
    X(workers_min, workers_min, COUNT, RANGE(1, CAIRN_SPEC_WORKERS_MAX), 1, FIRST, GIVEN,          \
      NEXT_ROUND)                                                                                  \
    X(chunk_leaves, chunk_leaves, COUNT, RANGE(1, CAIRN_SPEC_CHUNK_LEAVES_MAX), 64, FIRST, GIVEN,  \
      CREATED)                                                                                     \
    X(spread, spread, COUNT, RANGE(1, CAIRN_SPEC_SPREAD_MAX), 64, FIRST, OTHERWISE, CREATED)       \
    X(window, window, COUNT, RANGE(1, CAIRN_SPEC_WINDOW_MAX), 8, FIRST, GIVEN, REOPENED)           \
    X(client_state_max, client_state_max, COUNT, RANGE(0, CAIRN_SPEC_CLIENT_STATE_MAX), 0, LATER,  \
      GIVEN, REOPENED)                                                                             \
    X(init_nonfinite_ok, init_nonfinite_ok, FLAG, BY_CODE, false, LATER, GIVEN, NEVER)             \
    X(reduce_groups, reduce_groups, CHOICE, LISTED(GROUPS), CAIRN_GROUPS_NONE, LATER, GIVEN,       \
      CREATED)                                                                                     \
    X(skips_max, skips_max, COUNT, RANGE(1, UINT32_MAX), CAIRN_SPEC_SKIPS_DEFAULT, LATER,          \
      OTHERWISE, REOPENED)                                                                         \
    X(snapshot_every, policy.snapshot_every, COUNT, RANGE(0, CAIRN_SPEC_EVERY_MAX), 0, POLICY,     \
      GIVEN, NEXT_ROUND)                                                                           \
    X(snapshot_keep, policy.snapshot_keep, COUNT, RANGE(0, CAIRN_SPEC_KEEP_MAX), 0, POLICY, GIVEN, \
      NEXT_ROUND)                                                                                  \
    X(on_shard_loss, policy.on_shard_loss, CHOICE, LISTED(SHARD_LOSS), CAIRN_SHARD_LOSS_WAIT,      \
      POLICY, GIVEN, NEXT_ROUND)                                                                   \
    X(shard_loss_wait_s, policy.shard_loss_wait_s, COUNT, RANGE(1, CAIRN_SPEC_LOSS_WAIT_MAX_S),    \
      CAIRN_SPEC_LOSS_WAIT_S, POLICY, GIVEN, NEXT_ROUND)                                           \
    X(workers_max, workers_max, COUNT, RANGE(0, CAIRN_SPEC_WORKERS_MAX), 0, LATER, GIVEN,          \
      NEXT_ROUND)                                                                                  \
    X(offload_fraction, offload_fraction, REAL, RANGE(0, 1), 0, LATER, GIVEN, CREATED)             \
    X(tiers, tiers, CHOICE, LISTED(TIERS), CAIRN_TIERS_TOGETHER, LATER, GIVEN, CREATED)            \
    X(global_batch, global_batch, COUNT, RANGE(0, CAIRN_SPEC_MICRO_MAX), 0, LATER, OTHERWISE,      \
      REOPENED)                                                                                    \
    X(seed, seed, COUNT, RANGE(0, CAIRN_SPEC_SEED_MAX), 0, LATER, GIVEN, REOPENED)                 \
    X(on_worker_loss, policy.on_worker_loss, CHOICE, LISTED(WORKER_LOSS), CAIRN_WORKER_LOSS_REDO,  \
      LATER, GIVEN, NEXT_ROUND)                                                                    \
    X(worker_loss_wait_s, policy.worker_loss_wait_s, COUNT, RANGE(0, CAIRN_SPEC_LOSS_WAIT_MAX_S),  \
      0, LATER, GIVEN, NEXT_ROUND)                                                                 \
    X(snapshot_every_s, policy.snapshot_every_s, COUNT, RANGE(0, CAIRN_SPEC_SNAPSHOT_S_MAX), 0,    \
      LATER, GIVEN, NEXT_ROUND)                                                                    \
    X(snapshot_keep_every, policy.snapshot_keep_every, COUNT, RANGE(0, CAIRN_SPEC_EVERY_MAX), 0,   \
      LATER, GIVEN, NEXT_ROUND)                                                                    \
    X(snapshot_keep_within_s, policy.snapshot_keep_within_s, COUNT,                                \
      RANGE(0, CAIRN_SPEC_WITHIN_S_MAX), 0, LATER, GIVEN, NEXT_ROUND)                              \
    X(snapshot_max_bytes, policy.snapshot_max_bytes, COUNT, RANGE(0, CAIRN_SPEC_KEEP_BYTES_MAX),   \
      0, LATER, GIVEN, NEXT_ROUND)                                                                 \
    X(snapshot_staging, policy.snapshot_staging, CHOICE, LISTED(STAGING),                          \
      CAIRN_SNAPSHOT_STAGING_STATE, LATER, GIVEN, NEXT_ROUND)                                      \
    X(snapshot_durable_within_s, policy.snapshot_durable_within_s, COUNT,                          \
      RANGE(0, CAIRN_SPEC_DURABLE_S_MAX), 0, LATER, GIVEN, NEXT_ROUND)                             \
    X(snapshot_fallback, policy.snapshot_fallback, FLAG, BY_CODE, false, LATER, GIVEN, NEXT_ROUND) \
    X(snapshot_scrub_every_s, policy.snapshot_scrub_every_s, COUNT,                                \
      RANGE(0, CAIRN_SPEC_SNAPSHOT_S_MAX), 0, LATER, GIVEN, NEXT_ROUND)                            \
    X(first_step, first_step, COUNT, RANGE(0, CAIRN_SPEC_EVERY_MAX), 0, LATER, GIVEN, NEVER)       \
    X(missing_gradients, missing_gradients, CHOICE, LISTED(MISSING), CAIRN_MISSING_ZERO, LATER,    \
      GIVEN, REOPENED)                                                                             \
    X(init_extra_ok, init_extra_ok, FLAG, BY_CODE, false, LATER, GIVEN, NEVER)                     \
    X(buffers_every, buffers_every, COUNT, RANGE(0, CAIRN_SPEC_EVERY_MAX), 0, LATER, GIVEN, CREATED)

/* The fields of a group: name (the same in struct group_hyper) | kind | what is allowed |
 * default. */
#define CAIRN_GROUP_FIELDS(X)                                \
    X(lr, REAL, RANGE(0, CAIRN_SPEC_HYPER_MAX), 1e-3)        \
    X(beta1, FRACTION, BELOW_1, 0.9)                         \
    X(beta2, FRACTION, BELOW_1, 0.999)                       \
    X(eps, REAL, RANGE(0, CAIRN_SPEC_HYPER_MAX), 1e-8)       \
    X(weight_decay, REAL, RANGE(0, CAIRN_SPEC_HYPER_MAX), 0) \
    X(momentum, REAL, RANGE(0, CAIRN_SPEC_HYPER_MAX), 0)     \
    X(nesterov, FLAG, BY_CODE, false)

/* The fields of a group's schedule, checked by optimizer.c: name, the same everywhere | kind. */
#define CAIRN_SCHEDULE_FIELDS(X) \
    X(warmup_steps, COUNT)       \
    X(total_steps, COUNT)        \
    X(decay_steps, COUNT)        \
    X(lr_min, REAL)

struct spec_field {
    const char *name;
    size_t offset_bytes, bytes; /* in the struct */
    enum spec_kind kind;
    double min, max;                  /* max 0: checked by code */
    enum capability_field capability; /* CAIRN_CAPABILITY_FIELD_COUNT: none */
    double value_default;
    enum spec_part part;
    enum spec_change change;
};
struct spec_table {
    const struct spec_field *fields;
    size_t count;
};
extern const struct spec_table spec_fields;     /* of struct job_spec_data */
extern const struct spec_table group_fields;    /* of struct group_spec */
extern const struct spec_table schedule_fields; /* of struct schedule */

/* A field's value in a struct: the number itself, or the bits of a double. */
uint64_t spec_field_bits(const struct spec_field *field, const void *from);
double spec_field_number(const struct spec_field *field, const void *from);
void spec_field_set_bits(const struct spec_field *field, void *to, uint64_t bits);
void spec_field_set_number(const struct spec_field *field, void *to, double number);
bool spec_field_is_default(const struct spec_field *field, const void *from);

/* Checks one field. */
cairn_status spec_field_check(const struct spec_field *field, const void *from, const char *subject,
                              struct sentence *why) CAIRN_MUST_CHECK;
/* The field with that name; NULL: there is none. */
const struct spec_field *spec_field_find(const struct spec_table *table, const char *name,
                                         size_t name_bytes);
/* The same check for a number that is not a field, or for a field whose bounds come from another field. */
cairn_status spec_count_check(const char *subject, const char *name, uint64_t value, uint64_t min,
                              uint64_t max, struct sentence *why) CAIRN_MUST_CHECK;

#endif
