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

/* The part of the spec with which a scalar was introduced. The part decides where the scalar is in a manifest
 * and in the hash, in which the parts follow each other in this order. */
enum spec_part {
    CAIRN_SPEC_FIRST,   /* in every hash and in every manifest, old ones included */
    CAIRN_SPEC_MICRO,   /* in every hash, and in every manifest but older ones */
    CAIRN_SPEC_SCALING, /* in every hash, and in every manifest but older ones */
    CAIRN_SPEC_LATER,   /* in hash and manifest, under its name, unless at its default */
    CAIRN_SPEC_POLICY,  /* as LATER, but hashed together. This part is closed: new rows are LATER */
    CAIRN_SPEC_ALL      /* of no row: a caller asks for all parts, defaults included */
};

/* The allowed values: min, max, and the capability field that names them. */
#define CAIRN_SPEC_RANGE(min, max)   (min), (max), CAIRN_CAPABILITY_FIELD_COUNT
#define CAIRN_SPEC_BELOW_1           CAIRN_SPEC_RANGE(0, 1)
#define CAIRN_SPEC_LISTED(field)     0, UINT32_MAX, CAIRN_CAPABILITY_##field /* what spec.h lists */
#define CAIRN_SPEC_BY_CODE           CAIRN_SPEC_RANGE(0, 0) /* spec_check.c, spec.c check it */
#define CAIRN_SPEC_BY_CODE_OF(field) 0, 0, CAIRN_CAPABILITY_##field /* spec_check.c checks it */

/* name: in control.proto, a manifest, cairn.h, sentences | member: of struct job_spec_data | kind | what is
 * allowed | default | part | how client/spec.c takes the scalar from cairn.h: GIVEN under the same
 * name, where 0 means the default, or OTHERWISE | how the scalar changes in a job that exists */
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
    X(buffers_every, buffers_every, COUNT, RANGE(0, CAIRN_SPEC_EVERY_MAX), 0, LATER, GIVEN,        \
      CREATED)                                                                                     \
    X(audit_every, policy.audit_every, COUNT, RANGE(0, CAIRN_SPEC_EVERY_MAX), 0, LATER, GIVEN,     \
      NEXT_ROUND)                                                                                  \
    X(durability, policy.durability, CHOICE, LISTED(DURABILITY), CAIRN_DURABILITY_DEFAULT, LATER,  \
      GIVEN, NEXT_ROUND)                                                                           \
    X(keep_versions, policy.keep_versions, COUNT, RANGE(0, CAIRN_SPEC_VERSIONS_MAX), 0, LATER,     \
      GIVEN, REOPENED)

/* The same fields for people and for other languages, in the order of struct cairn_job_spec: a new row
 * is the last. tests/tree/spec_fields.py makes every other place of a field from the two tables.
 *
 * name | number in the message JobSpec | the field that an amendment gives with this one; "": none |
 * option of `cairn job amend`, its value and its help; "": only --set | comment in cairn.h and in Python */
#define CAIRN_SPEC_WORDS(X)                                                                      \
    X(workers_min, 8, "", "", "", "", "The fewest workers with which a round opens; 0 = 1")      \
    X(clip_norm, 4, "", "clip-norm", "X", "limit of the global gradient norm; 0: no limit",      \
      "Bound of the global gradient norm; 0 = none")                                             \
    X(loss_scale, 5, "", "", "", "", "At the start of the job; 0 = 1")                           \
    X(on_nonfinite, 6, "", "", "", "",                                                           \
      "The effect of a gradient that is not finite on its round: CAIRN_NONFINITE_SKIP (the "     \
      "default), or CAIRN_NONFINITE_FAIL")                                                       \
    X(chunk_leaves, 9, "", "", "", "", "Leaves of 4096 elements in a message; 0 = 64")           \
    X(window, 11, "", "", "", "",                                                                \
      "Chunks in flight to each shard; 0 = 8. More may be in flight: up to 64 chunks of at "     \
      "most 16 KiB, and as many chunks as keep a card busy if the shard reads their memory "     \
      "in place")                                                                                \
    X(loss_scale_min, 15, "", "", "", "",                                                        \
      "Bounds of CAIRN_LOSS_SCALE_DYNAMIC. 0 means 1 (or loss_scale, if that is below 1) "       \
      "for the minimum, and loss_scale for the maximum")                                         \
    X(loss_scale_max, 16, "", "", "", "", "See loss_scale_min")                                  \
    X(loss_scale_policy, 13, "", "", "", "",                                                     \
      "0 = CAIRN_LOSS_SCALE_DYNAMIC if loss_scale is above 1, else CAIRN_LOSS_SCALE_FIXED")      \
    X(loss_scale_growth_steps, 14, "", "", "", "",                                               \
      "With CAIRN_LOSS_SCALE_DYNAMIC: rounds until the scale is doubled; 0 = 2000")              \
    X(stage, 7, "", "", "", "", "CAIRN_STAGE(0) to CAIRN_STAGE(3); 0 = CAIRN_STAGE(2)")          \
    X(micro_batches, 17, "", "", "", "",                                                         \
      "The most micro-batches that each worker has in a round: a push into a later "             \
      "micro-batch is CAIRN_ERR_INVALID. 0 = 1, or any number in stages 2 and 3, which add "     \
      "nothing up. With global_batch leave this field 0 or 1")                                   \
    X(spread, 10, "", "", "", "", "A unit lies on at most this many shards")                     \
    X(client_state_max, 30, "", "", "", "",                                                      \
      "The most bytes of client state that cairn_commit may give; 0 = none; at most 65536")      \
    X(init_nonfinite_ok, 31, "", "", "", "",                                                     \
      "init_from may have weights that are NaN or infinite")                                     \
    X(reduce_groups, 32, "", "", "", "",                                                         \
      "CAIRN_GROUPS_NONE, or CAIRN_GROUPS_HOST; there are no groups while the workers hold "     \
      "tiles (cairn_tiles). No amendment changes it.")                                           \
    X(skips_max, 33, "", "", "", "",                                                             \
      "The most rounds that may be skipped in a row with the loss scale at its minimum (or "     \
      "fixed). After that no further round opens: cairn_round_begin says CAIRN_ERR_HALTED, "     \
      "until the job is amended, written or restored. 0 = 100")                                  \
    X(snapshot_every, 60, "", "snapshot-every", "N|TIME",                                        \
      "from one periodic snapshot to the next: steps (500), or a time (10min); 0: none",         \
      "A periodic snapshot is taken of each version whose step is a multiple of "                \
      "snapshot_every, so every run saves the same steps. 0 = none, or by time "                 \
      "(snapshot_every_s). The newest snapshot_keep periodic snapshots are retained (0 = "       \
      "all). A snapshot that somebody asked for is never removed. If a periodic snapshot "       \
      "fails, the coordinator's log and `cairn job show` say so, and training continues; "       \
      "the next periodic snapshot is tried at its own step. No periodic snapshot is taken "      \
      "while results are not finite (cairn_result.nonfinite).")                                  \
    X(snapshot_keep, 61, "snapshot_every", "snapshot-keep", "N",                                 \
      "the newest N of them stay; 0: no such rule. Any rule keeps one; without a rule all "      \
      "stay",                                                                                    \
      "Only with snapshot_every or snapshot_every_s; 0 = all are retained")                      \
    X(on_shard_loss, 62, "", "on-shard-loss", "wait|restore-latest",                             \
      "what the job does when a shard has lost its part",                                        \
      "The coordinator's reaction when a shard has lost its part: CAIRN_SHARD_LOSS_WAIT "        \
      "(the default), or CAIRN_SHARD_LOSS_RESTORE_LATEST")                                       \
    X(shard_loss_wait_s, 63, "on_shard_loss", "shard-loss-wait", "SECONDS",                      \
      "how long a shard may be away before that (300)",                                          \
      "With CAIRN_SHARD_LOSS_RESTORE_LATEST: seconds; 0 = 300")                                  \
    X(workers_max, 64, "", "", "", "",                                                           \
      "The most workers at a time: one more waits in cairn_job_open for a place, until "         \
      "CAIRN_ERR_TIMEOUT. 0 = as many as the cluster's round.workers_max. If workers_min "       \
      "equals workers_max (always n workers), the spec also matches a job whose bounds "         \
      "allow n, for example in another launch after an amendment.")                              \
    X(offload_fraction, 65, "", "", "", "",                                                      \
      "The fraction of each shard's part of the job, 0 to 1, that lies in host memory; the "     \
      "rest lies on a GPU. The part in host memory consists of whole chunks, at least this "     \
      "fraction. The CPU updates these chunks while the GPU works on the rest, with the same "   \
      "bits at any fraction. At 1 nothing of the job is on the GPU, and the job continues if "   \
      "the GPU fails. If all state lies in host memory anyway, the fraction has no effect, and " \
      "the log says so. A restored job has the same fraction.")                                  \
    X(tiers, 66, "", "", "", "",                                                                 \
      "Where the planes of an element lie: CAIRN_TIERS_TOGETHER (the default); the others "      \
      "are refused")                                                                             \
    X(global_batch, 67, "", "", "", "",                                                          \
      "Elastic workers with the same bits: a step consists of this many micro-batches, "         \
      "numbered from 0, whatever the number of workers (1 to 65536; 0 = none, each worker "      \
      "has its micro_batches). struct cairn_round says which micro-batches are this "            \
      "worker's. Each micro-batch is pushed separately, with its weight. The result of N "       \
      "steps then does not depend on how many workers there were, nor on when they joined "      \
      "and left, if the gradients of a micro-batch depend on nothing but the round's "           \
      "version, the micro-batch and its seed (cairn_micro_seed). Learning rates and "            \
      "schedules depend on steps, so another number of workers does not change them. If "        \
      "there are more workers than micro-batches, the surplus workers are told so and stay "     \
      "idle; they take part when other workers leave. Needs stage 2 or 3, micro_batches 0 "      \
      "or 1, no reduce_groups, no tiles (else CAIRN_ERR_INVALID). An amendment changes "         \
      "global_batch by its name (cairn_amend.settings), and the seed likewise.")                 \
    X(seed, 70, "", "", "", "", "For cairn_micro_seed; below 2^53")                              \
    X(on_worker_loss, 68, "", "on-worker-loss", "redo|wait|fail",                                \
      "what the job does when a worker was lost",                                                \
      "The coordinator's reaction when a worker was lost: CAIRN_WORKER_LOSS_REDO (the "          \
      "default), CAIRN_WORKER_LOSS_WAIT or CAIRN_WORKER_LOSS_FAIL")                              \
    X(worker_loss_wait_s, 69, "on_worker_loss", "worker-loss-wait", "SECONDS",                   \
      "how long to wait for another one (300)", "With CAIRN_WORKER_LOSS_WAIT: seconds; 0 = 300") \
    X(snapshot_keep_every, 72, "", "snapshot-keep-every", "N",                                   \
      "the first of every N steps stays for good; 0: no such rule",                              \
      "Steps; 0 = no such rule. Rules that retain periodic snapshots beside the newest "         \
      "snapshot_keep; any one rule "                                                             \
      "is enough to retain a snapshot, and without a rule all are retained. keep_every: the "    \
      "first snapshot in every interval of this many steps is retained for good. max_bytes "     \
      "bounds all snapshots of the job together; above this bound the oldest snapshots are "     \
      "removed, except those that keep_every or a tag retains. Snapshots that somebody "         \
      "asked for or that have a tag are always retained, and so is the newest verified one; "    \
      "a snapshot is removed only after a newer one was verified. Give these rules only "        \
      "with snapshot_every or snapshot_every_s")                                                 \
    X(snapshot_max_bytes, 74, "", "snapshot-max-bytes", "N",                                     \
      "limit of all the job's snapshots; over it the oldest go (500G); 0: no limit",             \
      "0 = no bound")                                                                            \
    X(snapshot_every_s, 71, "", "", "", "",                                                      \
      "Used instead of snapshot_every: seconds from the start of one periodic snapshot to "      \
      "the next, which is taken at the first step after these seconds")                          \
    X(snapshot_keep_within_s, 73, "", "snapshot-keep-within", "TIME",                            \
      "all younger than that stay (36h; s, min, h, d); 0: no such rule",                         \
      "Seconds: retains all that are younger; 0 = no such rule")                                 \
    X(snapshot_durable_within_s, 76, "", "snapshot-durable-within", "TIME",                      \
      "a snapshot is to be on disk by then; 0: no deadline",                                     \
      "Every snapshot is to be on disk so many seconds after its cut; 0 = no deadline")          \
    X(snapshot_scrub_every_s, 78, "", "snapshot-scrub-every", "TIME",                            \
      "every snapshot is read again and checked (7d); 0: by command only",                       \
      "Every snapshot is read again and checked; 0 = by command only")                           \
    X(snapshot_staging, 75, "", "snapshot-staging", "state|small",                               \
      "room for what updates overwrite while a snapshot is written",                             \
      "Room for what updates overwrite while a snapshot is written: "                            \
      "CAIRN_SNAPSHOT_STAGING_STATE (the default), or CAIRN_SNAPSHOT_STAGING_SMALL")             \
    X(snapshot_fallback, 77, "", "snapshot-fallback", "yes|no",                                  \
      "a restore that finds a snapshot damaged takes the newest good one before it",             \
      "A restore that finds a snapshot damaged takes the newest good one before it")             \
    X(first_step, 79, "", "", "", "",                                                            \
      "For a run that began elsewhere and continues here: the step of the version that the "     \
      "job begins with. Schedules and the optimizer's corrections continue from this step. "     \
      "The moments are written (cairn_write_begin) before the first round. Workers that "        \
      "open the job afterwards may leave this field out.")                                       \
    X(missing_gradients, 90, "", "", "", "",                                                     \
      "The treatment of a trained tensor to which nobody pushed a gradient in a round: "         \
      "CAIRN_MISSING_ZERO (the default), or CAIRN_MISSING_LEAVE, for jobs of at most 24,576 "    \
      "tensors")                                                                                 \
    X(init_extra_ok, 80, "", "", "", "",                                                         \
      "init_from may have more weights than the job has tensors")                                \
    X(buffers_every, 91, "", "", "", "",                                                         \
      "If not 0, a worker of the job writes its buffers (cairn_write_begin) after each "         \
      "applied step that is a multiple of this or of snapshot_every, before the next round: "    \
      "the periodic snapshot of that step then saves the version that the write makes; "         \
      "without one, the next version. 0: none")                                                  \
    X(audit_every, 97, "", "audit-every", "N",                                                   \
      "every N steps all state is compared with its checksums; 0: never",                        \
      "Every so many steps all state is compared with its checksums (deploy/README.md)")         \
    X(durability, 98, "", "", "", "",                                                            \
      "The losses that cost no step; refused if the cluster lacks what that takes")              \
    X(keep_versions, 99, "", "keep-versions", "K",                                               \
      "the last K versions can be gone back to (`job rollback`); each takes memory; 0: none",    \
      "`cairn job rollback` goes back to any of so many last versions; shards keep them in "     \
      "host memory, 12 bytes a parameter each with AdamW. At most 64; 0 = none")

/* The fields of a group: name (the same in struct group_hyper) | kind | what is allowed | default |
 * part: FIRST or LATER. */
#define CAIRN_GROUP_FIELDS(X)                                       \
    X(lr, REAL, RANGE(0, CAIRN_SPEC_HYPER_MAX), 1e-3, FIRST)        \
    X(beta1, FRACTION, BELOW_1, 0.9, FIRST)                         \
    X(beta2, FRACTION, BELOW_1, 0.999, FIRST)                       \
    X(eps, REAL, RANGE(0, CAIRN_SPEC_HYPER_MAX), 1e-8, FIRST)       \
    X(weight_decay, REAL, RANGE(0, CAIRN_SPEC_HYPER_MAX), 0, FIRST) \
    X(momentum, REAL, RANGE(0, CAIRN_SPEC_HYPER_MAX), 0, FIRST)     \
    X(nesterov, FLAG, BY_CODE, false, FIRST)                        \
    X(ema, FRACTION, BELOW_1, 0, LATER)                             \
    X(ema_schedule, CHOICE, LISTED(EMA), CAIRN_EMA_CONSTANT, LATER)

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

/* The value of a field in a struct: the number itself, or the bits of a double. */
uint64_t spec_field_bits(const struct spec_field *field, const void *from);
double spec_field_number(const struct spec_field *field, const void *from);
void spec_field_set_bits(const struct spec_field *field, void *to, uint64_t bits);
void spec_field_set_number(const struct spec_field *field, void *to, double number);
bool spec_field_is_default(const struct spec_field *field, const void *from);

/* Checks one field by its row. */
cairn_status spec_field_check(const struct spec_field *field, const void *from, const char *subject,
                              struct sentence *why) CAIRN_MUST_CHECK;
/* Returns the field with that name; NULL: none has it. */
const struct spec_field *spec_field_find(const struct spec_table *table, const char *name,
                                         size_t name_bytes);
/* Checks a number that is not a field, or a field whose bounds come from another field. */
cairn_status spec_count_check(const char *subject, const char *name, uint64_t value, uint64_t min,
                              uint64_t max, struct sentence *why) CAIRN_MUST_CHECK;

#endif
