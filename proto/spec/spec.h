/* The job spec: a worker declares it, the coordinator stores it and a snapshot carries it. Plain data.
 *
 * Everyone indexes a job's tensors in one order, the canonical one: bytewise by tensor name
 * (spec_canonicalize), whatever order a worker lists them in. Groups are sorted the same way.
 * A spec from an untrusted peer is filled under the count limits below, canonicalized, then checked by
 * spec_check; nothing else reads a spec that was not checked.
 *
 * Pure: no input or output. A spec owns its memory; many threads may read it, or one may change it.
 * Strings are UTF-8, NUL-terminated, at most CAIRN_NAME_MAX bytes. */
#ifndef CAIRN_SPEC_SPEC_H
#define CAIRN_SPEC_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/geometry/tensor.h"
#include "proto/spec/scalars.h"

/* ==== schedule ==== */

/* Learning-rate schedules: the coordinator computes them before each decision. Pure, and only + - * /, so
 * that every host gets the same bits (libm's cos differs between hosts).
 *
 *   k    the step of the round: the updates that were applied before it, from 0. The update of that
 *        round makes version k + 1. It is torch's `last_epoch` and Hugging Face's `current_step`
 *   b    lr of the group            m    lr_min, an absolute lr, at most b
 *   W    warmup_steps               T    total_steps          D    decay_steps
 *
 *   body(k)
 *     constant  b
 *     linear    m + (b - m) * (T - k) / (T - W)                      for k < T, then m
 *     cosine    m + (b - m) * (1 + cos(pi * (k - W) / (T - W))) / 2  for k < T, then m
 *     wsd       b for k < T - D (stable), then m + (b - m) * (T - k) / D for k < T, then m
 *     table     b * factor, linear between the points (step, factor); the first point's factor before
 *               it, the last one's after it. Steps of points are k, counted from the job's beginning
 *     driven    the lr that the trainer gives with each commit (the caller's b); no warm-up
 *   lr(k) = body(k) for k >= W, and in the warm-up before it body(W) * k / W: from 0 in the first round.
 *
 * Sources: Hugging Face transformers, optimization.py: get_constant_schedule_with_warmup,
 * get_linear_schedule_with_warmup (m = 0), get_cosine_schedule_with_warmup (m = 0, num_cycles 0.5; that one
 * rises again after T, while ours stays at m), get_wsd_schedule (decay_type linear, min_lr_ratio m / b, T =
 * warm-up + stable + decay); torch.optim.lr_scheduler: CosineAnnealingLR (W = 0, T_max = T, eta_min = m),
 * LambdaLR. Golden values of these functions: tests/golden/schedule_golden.h. */

#define CAIRN_SCHEDULE_POINTS_MAX 1024
#define CAIRN_SCHEDULE_STEPS_MAX  ((uint64_t)1 << 53) /* steps are exact as doubles */

#ifndef CAIRN_SCHEDULE_DEFINED /* cairn.h, which includes no header of ours, repeats these (tested) */
#define CAIRN_SCHEDULE_DEFINED
typedef enum cairn_schedule_kind {
    CAIRN_SCHEDULE_CONSTANT = 0,
    CAIRN_SCHEDULE_LINEAR = 1,
    CAIRN_SCHEDULE_COSINE = 2,
    CAIRN_SCHEDULE_WSD = 3,
    CAIRN_SCHEDULE_TABLE = 4,
    CAIRN_SCHEDULE_DRIVEN = 5
} cairn_schedule_kind;
struct cairn_schedule_point {
    uint64_t step;
    double factor; /* of the group's lr */
};
typedef enum cairn_ema_schedule { CAIRN_EMA_CONSTANT = 0, CAIRN_EMA_WARMUP = 1 } cairn_ema_schedule;
#endif

/* All zero: always the group's lr. Fields that a kind does not use are 0. */
struct schedule {
    cairn_schedule_kind kind;
    uint64_t warmup_steps; /* every kind but driven */
    uint64_t total_steps;  /* linear, cosine: > warmup_steps; wsd: >= warmup + decay steps */
    uint64_t decay_steps;  /* wsd: at least 1 */
    double lr_min;         /* linear, cosine, wsd */
    const struct cairn_schedule_point *points; /* table: [point_count], steps ascending; borrowed */
    size_t point_count;
};

/* "constant", "linear", ...; "?" for a number that is not a kind. */
const char *schedule_name(int kind);
/* Returns the kind with that name; -1 if there is none. */
int schedule_number(const char *name);

/* CAIRN_ERR_INVALID: a value is out of its range, or is set although the kind does not use it. `why` (may
 * be NULL) begins with `group`, and names the field, the value and what is allowed. */
cairn_status schedule_check(const struct schedule *schedule, double lr, const char *group,
                            struct sentence *why) CAIRN_MUST_CHECK;

/* The learning rate of the round of step `step` (k above) for a group of `lr`. The schedule must have
 * passed the check. Each operation rounds once, in the order written above. */
double schedule_lr(const struct schedule *schedule, double lr, uint64_t step);

/* cos(pi * x) for 0 <= x <= 1: Taylor polynomials of cos and sin on [-pi/4, pi/4] after using the
 * symmetries (exactly: x is reduced before it is multiplied by pi). Absolute error below 4e-16. */
double cos_pi(double x);

/* ==== ema ==== */

/* The shards of a group with `ema` = d above 0 keep an exponential moving average of each of its tensors, as
 * one more plane. It begins as the parameters, and an update that changes the parameters p ends with
 *
 *   ema = decay(k) * ema + (1 - decay(k)) * p         k: the step of the round, as of a learning rate
 *
 *   constant  0 for k = 0, then d
 *   warmup    0 for k = 0, then min(d, (1 + k) / (10 + k))
 *
 * So the first update of a job makes the average the parameters, as torch's AveragedModel does when
 * update_parameters is called for the first time. A tensor that a step leaves alone (it is frozen, or nobody
 * had a gradient for it) keeps its average as it keeps its parameters, and so does every tensor in a round
 * that is skipped or abandoned. A write between steps changes an average only if it puts one.
 *
 * Sources: torch.optim.swa_utils.get_ema_multi_avg_fn (constant); Hugging Face diffusers, EMAModel.get_decay
 * with the defaults, and timm's warm-up (warmup). */

/* decay(k) of the round of step k = `step`, in [0, ema]. Each operation rounds once, in double. */
double ema_decay(cairn_ema_schedule schedule, double ema, uint64_t step);

/* ==== batch ==== */

/* A step has `total` micro-batches, however many workers there are (global_batch). They are dealt to the
 * workers: the worker of rank r among W has the numbers r, r + W, r + 2 W, ... below the total. The j-th of
 * these is the worker's micro-batch j on the wire, and a shard folds in the order of (micro-batch, rank),
 * which is the order of the numbers for any W. So the bits of a step do not depend on how many workers
 * computed it. A worker whose rank is the total or more has no micro-batch: it is surplus.
 *
 * Pure; no floating point. */

struct spec_batch {
    uint32_t total; /* 0: the job has no total, each worker has micro-batches of its own */
    uint32_t rank;  /* dense, among the contributors; a surplus worker's: at least `world` */
    uint32_t world; /* contributors, at least 1 */
};

/* Returns how many of the step's micro-batches are the rank's. */
uint32_t batch_count(const struct spec_batch *batch);
/* Returns the number, in the step, of the rank's micro-batch `place`; without a total, `place` itself. */
uint32_t batch_number(const struct spec_batch *batch, uint32_t place);
/* The inverse of batch_number; false: no micro-batch of this rank has the number. */
bool batch_place(const struct spec_batch *batch, uint32_t number, uint32_t *place_out);

/* The seed of micro-batch `number` of the batch `index` (steps and skips before it), below 2^63:
 * with splitmix64's mix(x), mix(mix(mix(seed) ^ index) ^ number) >> 1. Everyone computes the same seed,
 * also when computing it again. */
uint64_t batch_seed(uint64_t seed, uint64_t index, uint64_t number);

/* ==== without ==== */

/* The features that a shard's build or host lacks. A lacking feature is no error and causes no warning, but
 * an operator who wonders about the speed wants to know about it. The lacking features are logged once when
 * the shard starts, and `cairn cluster status` shows them. Pure. */

enum spec_without { /* bits of Hello.without */
                    CAIRN_WITHOUT_RDMA = 1u << 0,
                    CAIRN_WITHOUT_GPU = 1u << 1,
                    CAIRN_WITHOUT_AVX512 = 1u << 2,
};
#define CAIRN_WITHOUT_COUNT 3

/* Returns the name of the bit 1 << index: "RDMA". */
const char *without_name(uint32_t index);
/* Writes "RDMA (no card in /sys/class/infiniband), GPU (...)"; empty if nothing is lacking. */
void without_print(uint32_t without, struct sentence *out);

/* ==== rank groups ==== */

/* The reduce groups of a round: each group has the ranks whose contributions were added up together before
 * they entered the total sum. The result depends on the groups, so they are recorded. Each rank of a round
 * is in one group; ranks ascend in a group, and groups ascend by their least rank: this is the order of the
 * sum. Without groups, each rank counts as a group of its own.
 *
 * Pure. A struct owns its lists. */

struct rank_groups {
    /* owned: freed by rank_groups_release */
    uint32_t *ranks; /* [rank_count] group after group */
    uint32_t *ends;  /* [group_count] for each group the index in ranks after its last rank */
    uint32_t rank_count, group_count;
};

/* Allocates lists of these lengths; the caller fills them in. CAIRN_ERR_NO_MEMORY: nothing is owned. */
cairn_status rank_groups_init(struct rank_groups *groups, uint32_t rank_count,
                              uint32_t group_count) CAIRN_MUST_CHECK;
/* Frees the lists: no groups are left. */
void rank_groups_release(struct rank_groups *groups);
/* `copy_out` is set only on success. CAIRN_ERR_NO_MEMORY. */
cairn_status rank_groups_copy(const struct rank_groups *groups,
                              struct rank_groups *copy_out) CAIRN_MUST_CHECK;
bool rank_groups_equal(const struct rank_groups *a, const struct rank_groups *b);
/* Returns the ranks of a group. */
const uint32_t *rank_groups_at(const struct rank_groups *groups, uint32_t group,
                               uint32_t *count_out);
/* True if the groups are as described at the top of this section. */
bool rank_groups_ok(const struct rank_groups *groups);
/* Adds "0-3,5". */
void ranks_add_text(const uint32_t *ranks, size_t rank_count, struct sentence *out);

/* ==== spec ==== */

#define CAIRN_SPEC_TENSORS_MAX      1000000
#define CAIRN_SPEC_GROUPS_MAX       1024
#define CAIRN_SPEC_ELEMS_MAX        ((uint64_t)1 << 48) /* of all tensors together */
#define CAIRN_SPEC_WORKERS_MAX      65536
#define CAIRN_SPEC_CHUNK_LEAVES_MAX 256 /* 4 MiB of f32: CAIRN_CHUNK_PAYLOAD_MAX */
#define CAIRN_SPEC_SPREAD_MAX       65536
#define CAIRN_SPEC_WINDOW_MAX       1024
#define CAIRN_SPEC_SCALE_MAX \
    0x1p64 /* of a loss scale; the least is its inverse. Beyond them, fp32 does not hold a gradient */
#define CAIRN_SPEC_HYPER_MAX        1e18 /* hyper-parameters, as below; betas: below 1 */
#define CAIRN_SPEC_MICRO_MAX        65536
#define CAIRN_SPEC_WEIGHT_MAX       ((uint64_t)1 << 53) /* of all workers together: exact in a double */
#define CAIRN_SPEC_SEED_MAX         (((uint64_t)1 << 53) - 1) /* exact in JSON and in a double */
#define CAIRN_SPEC_PATH_MAX         1023 /* bytes of init_from, without the terminating NUL */
#define CAIRN_SPEC_CLIENT_STATE_MAX 65536
#define CAIRN_SPEC_SKIPS_DEFAULT    100                 /* skips_max */
#define CAIRN_SPEC_EVERY_MAX        ((uint64_t)1 << 48) /* snapshot_every */
#define CAIRN_SPEC_KEEP_MAX         1000                /* snapshot_keep: as many as are listed */
#define CAIRN_SPEC_VERSIONS_MAX     64                  /* keep_versions */
#define CAIRN_SPEC_SNAPSHOT_S_MAX   (366 * 86400)       /* snapshot_every_s, _scrub_every_s */
#define CAIRN_SPEC_WITHIN_S_MAX     (10 * 366 * 86400)  /* snapshot_keep_within_s */
#define CAIRN_SPEC_DURABLE_S        60    /* of a snapshot, if the policy gives none */
#define CAIRN_SPEC_PREPARE_S_MAX    20    /* at most a third of the durable time, too */
#define CAIRN_SPEC_DURABLE_S_MAX    86400 /* snapshot_durable_within_s */
#define CAIRN_SPEC_KEEP_BYTES_MAX   ((uint64_t)1 << 60) /* snapshot_max_bytes */
#define CAIRN_SPEC_LOSS_WAIT_S      300                 /* shard_loss_wait_s, worker_loss_wait_s */
#define CAIRN_SPEC_LOSS_WAIT_MAX_S  (30 * 86400)
#define CAIRN_SPEC_LEAVE_MAX        24576 /* tensors, with missing_gradients LEAVE */
#define CAIRN_SPEC_MADE_MAX         64    /* settings by which the job was made from snapshots */
#define CAIRN_SPEC_FORMER_MAX       64    /* hashes that a spec had before its amendments */

/* The effect of a non-finite gradient on its round: SKIP changes nothing and continues, FAIL reports
 * CAIRN_ERR_NONFINITE to every worker. After an update whose results are not finite, SKIP reports them, and
 * FAIL halts the job. */
#ifndef CAIRN_NONFINITE_DEFINED /* cairn.h, which includes no header of ours, repeats these numbers */
#define CAIRN_NONFINITE_DEFINED
typedef enum cairn_nonfinite { CAIRN_NONFINITE_SKIP = 1, CAIRN_NONFINITE_FAIL = 2 } cairn_nonfinite;
#endif

/* A FIXED loss scale never changes. A DYNAMIC one is halved when a round is skipped and doubled after
 * growth_steps rounds in a row were applied, within its bounds. */
#ifndef CAIRN_LOSS_SCALE_DEFINED
#define CAIRN_LOSS_SCALE_DEFINED
typedef enum cairn_loss_scale {
    CAIRN_LOSS_SCALE_DEFAULT = 0, /* DYNAMIC if the scale is above 1, else FIXED */
    CAIRN_LOSS_SCALE_FIXED = 1,
    CAIRN_LOSS_SCALE_DYNAMIC = 2
} cairn_loss_scale;
#endif

/* In which memory the planes of an element lie on a shard that has a device. An update works in one
 * memory. */
#ifndef CAIRN_TIERS_DEFINED
#define CAIRN_TIERS_DEFINED
typedef enum cairn_tiers {
    CAIRN_TIERS_TOGETHER = 0,
    CAIRN_TIERS_MOMENTS_ON_HOST = 1,
    CAIRN_TIERS_PARAM_ON_HOST = 2
} cairn_tiers;
#endif

/* Where contributions are added up before they reach the shard that owns them. HOST: if the host of several
 * workers has a shard, this shard first adds up their contributions, in the order of their ranks. The sums
 * of the groups are then added in the order of the groups' least ranks (server/coordinator/round.h). The
 * result depends on the choice. */
#ifndef CAIRN_GROUPS_DEFINED
#define CAIRN_GROUPS_DEFINED
typedef enum cairn_reduce_groups {
    CAIRN_GROUPS_NONE = 0, /* nowhere */
    CAIRN_GROUPS_HOST = 1
} cairn_reduce_groups;
#endif

/* The coordinator's reaction when a shard has lost its part of the job. */
#ifndef CAIRN_SHARD_LOSS_DEFINED
#define CAIRN_SHARD_LOSS_DEFINED
typedef enum cairn_shard_loss {
    CAIRN_SHARD_LOSS_WAIT = 0, /* it waits for the part to return, or for an operator */
    CAIRN_SHARD_LOSS_RESTORE_LATEST = 1
} cairn_shard_loss;
#endif

/* How much of a snapshot's old values may wait for the disk while updates go on. */
#ifndef CAIRN_SNAPSHOT_STAGING_DEFINED
#define CAIRN_SNAPSHOT_STAGING_DEFINED
typedef enum cairn_snapshot_staging {
    CAIRN_SNAPSHOT_STAGING_STATE = 0, /* as much as the state has: no update waits for the disk */
    CAIRN_SNAPSHOT_STAGING_SMALL = 1  /* little: an update that finds the staging full waits */
} cairn_snapshot_staging;
#endif

/* The coordinator's reaction when a worker was lost: the worker disappeared without leaving the job, or was
 * expelled. */
#ifndef CAIRN_WORKER_LOSS_DEFINED
#define CAIRN_WORKER_LOSS_DEFINED
typedef enum cairn_worker_loss {
    CAIRN_WORKER_LOSS_REDO = 0, /* the round is done again at once by the workers that are left */
    CAIRN_WORKER_LOSS_WAIT = 1, /* for as many workers as before, worker_loss_wait_s at most */
    CAIRN_WORKER_LOSS_FAIL = 2  /* no round opens until somebody acts */
} cairn_worker_loss;
#endif

/* The losses that cost a job no step. server/core/safety.h judges whether a job has what it asks for. */
#ifndef CAIRN_DURABILITY_DEFINED
#define CAIRN_DURABILITY_DEFINED
typedef enum cairn_durability {
    CAIRN_DURABILITY_DEFAULT = 0, /* whatever the cluster offers without a log */
    CAIRN_DURABILITY_PROCESS = 1, /* the end of a process of a shard */
    CAIRN_DURABILITY_PEER = 2,    /* the loss of a shard's host: a standby */
    CAIRN_DURABILITY_LOG = 3, /* the end of all: each round's sums are on disk before it counts */
    CAIRN_DURABILITY_LOG_PEER = 4
} cairn_durability;
#endif

/* How a round treats a trained tensor to which nobody contributed. */
#ifndef CAIRN_MISSING_DEFINED
#define CAIRN_MISSING_DEFINED
typedef enum cairn_missing {
    CAIRN_MISSING_ZERO =
        0, /* a gradient of zeros: moments fade, the decay is applied, the step counts */
    CAIRN_MISSING_LEAVE = 1 /* no gradient: the tensor and its count of updates stay as they are */
} cairn_missing;
#endif

/* How the shards make a tensor's initial parameters (the details: proto/spec/spec.h). */
#ifndef CAIRN_INIT_DEFINED
#define CAIRN_INIT_DEFINED
typedef enum cairn_init_kind {
    CAIRN_INIT_NONE = 0, /* a worker puts them */
    CAIRN_INIT_ZEROS = 1,
    CAIRN_INIT_ONES = 2,
    CAIRN_INIT_CONSTANT = 3, /* a */
    CAIRN_INIT_UNIFORM = 4,  /* from a to b, a below b */
    CAIRN_INIT_NORMAL = 5    /* mean a, standard deviation b */
} cairn_init_kind;
struct cairn_init {
    cairn_init_kind kind;
    double a, b;
    uint64_t seed; /* UNIFORM, NORMAL; below 2^63 */
};
#endif

struct tensor_spec {
    /* owned by the spec that the tensor belongs to */
    char *name;
    char *unit;  /* tensors of a unit are fetched together */
    char *group; /* of a trained tensor: the name of a group; "" in other kinds */
    /* NULL: not an alias. Otherwise this tensor is another name of the tensor `alias_of`, or of a box of
     * it; `alias_of` itself is no alias. An alias has no state, so kind is FROZEN and shape [0]; wire is
     * the target's */
    char *alias_of;
    struct cairn_box *alias_box; /* a box of the target; NULL = all of it */

    /* BLOB: opaque bytes that are put, fetched, written and saved as they are: rank 1, wire and master U8,
     * no init, no alias. Nothing else is U8 */
    cairn_kind kind;
    cairn_dtype wire, reduce, master;
    struct shape shape;
    bool whole;  /* placement: false = cut by rows, true = all of it on one shard */
    bool frozen; /* a trained tensor, frozen by an amendment: as struct group_spec's */
    struct cairn_init init;
    /* For a trained tensor: how many of the spec's first_step steps did not update it. A worker that opens
     * the job later leaves this field out, and so does the job's own spec. The field is part of the hash,
     * but of no manifest */
    uint64_t steps_missed;
    /* The tensor's place, from 1, in the list of the worker that made the job: torch's optimizers
     * number parameters in that order, and a canonical spec is sorted. 0: not known. The place does
     * not define the job: hash and diff leave it out */
    uint32_t order;
};

/* Hyper-parameters shared by the trained tensors that name the group. Fields that the optimizer
 * does not use are still checked, so leave them at the defaults, as group_default() returns
 * them. */
struct group_spec {
    char *name;      /* owned by the spec that the group belongs to */
    char *optimizer; /* owned; "adamw", "adam", "sgd" */
    double lr, beta1, beta2, eps, weight_decay, momentum;
    bool nesterov;
    double ema; /* the decay of the average of the parameters; 0: there is no average */
    cairn_ema_schedule ema_schedule;
    /* set by an amendment: the group's tensors keep their values, and take no gradient. A worker
     * cannot declare it, so hash and diff leave it out */
    bool frozen;
    struct schedule schedule; /* of lr; the points are owned by the spec */
};

/* The rules by which the coordinator acts for the job without a request: see snapshot.h and restore.h in
 * server/coordinator. Amendable. spec_fields.h describes each of them. */
struct policy {
    uint64_t snapshot_every, snapshot_keep;
    cairn_shard_loss on_shard_loss;
    uint32_t shard_loss_wait_s;
    cairn_worker_loss on_worker_loss;
    uint32_t worker_loss_wait_s;
    uint64_t snapshot_keep_every, snapshot_max_bytes;
    uint32_t snapshot_every_s, snapshot_keep_within_s;
    uint32_t snapshot_durable_within_s, snapshot_scrub_every_s;
    uint64_t audit_every, keep_versions;
    cairn_durability durability;
    cairn_snapshot_staging snapshot_staging;
    bool snapshot_fallback;
};

/* A setting by which a job was made from a snapshot; the struct owns the strings. */
struct spec_made {
    char *key, *was, *is;
};

struct job_spec_data {
    /* owned: freed by spec_release */
    char *name; /* also the name of a folder: [A-Za-z0-9._-], not starting with '.' or '-' */
    struct tensor_spec *tensors; /* [tensor_count] */
    struct group_spec *groups;   /* [group_count] */
    /* [former_count] hashes of this spec before its amendments; the first is from the job's creation. Not
     * part of hash and diff */
    uint8_t (*former)[32];
    struct spec_made *made; /* [made_count], the oldest first. Not part of hash and diff */

    /* owned: the weights that the shards begin with (proto/safetensors/safetensors.h) */
    char *init_from; /* an absolute path on the shards' hosts; NULL: none */
    /* the weights of a tensor NAME may also have the key PREFIX + NAME; NULL: no prefix */
    char *init_prefix;

    size_t tensor_count, tensor_capacity;
    size_t group_count, group_capacity;
    size_t former_count, made_count;

    /* The scalars; spec_fields.h describes each of them. 0 stands for some defaults until the spec is
     * canonicalized, and fields of the loss scale that its policy does not use stay 0 */
    double clip_norm, loss_scale, loss_scale_min, loss_scale_max;
    cairn_loss_scale loss_scale_policy;
    uint32_t loss_scale_growth_steps;
    cairn_nonfinite on_nonfinite;
    /* 0: one shard holds all of the state; a client adds up micro-batches and pushes once. 1: the state is
     * cut over the shards; a client pushes once, too. 2: every micro-batch is pushed. 3: as 2, and a client
     * gives fetched units back after use */
    uint32_t stage;
    uint32_t micro_batches; /* of each worker in a round: 1 to CAIRN_SPEC_MICRO_MAX */
    uint32_t workers_min, workers_max;
    uint32_t chunk_leaves; /* leaves in a full chunk; 64 = 1 MiB of f32 */
    uint32_t spread, window;
    bool init_nonfinite_ok, init_extra_ok;
    uint32_t client_state_max, skips_max, global_batch;
    cairn_reduce_groups reduce_groups;
    double offload_fraction;
    cairn_tiers tiers;
    uint64_t first_step, buffers_every, seed;
    cairn_missing missing_gradients;
    struct policy policy;

    uint64_t revision;  /* counted by the coordinator; not part of hash and diff */
    uint64_t amend_key; /* of the last amendment; 0: none. Not part of hash, diff and manifest */
};

/* Makes a spec without tensors and groups, with name NULL and defaults (stage 2). Allocates nothing. */
void spec_init(struct job_spec_data *spec);
/* Frees what the spec owns and leaves it as spec_init does. */
void spec_release(struct job_spec_data *spec);
/* Makes a deep copy; this call initializes `copy_out`, and sets it only on success. CAIRN_ERR_NO_MEMORY. */
cairn_status spec_copy(const struct job_spec_data *spec,
                       struct job_spec_data *copy_out) CAIRN_MUST_CHECK;
/* Copies the string in. CAIRN_ERR_NO_MEMORY. */
cairn_status spec_set_name(struct job_spec_data *spec, const char *name) CAIRN_MUST_CHECK;
/* Copies both in; NULL and "" are none. CAIRN_ERR_NO_MEMORY. */
cairn_status spec_set_init_from(struct job_spec_data *spec, const char *path,
                                const char *prefix) CAIRN_MUST_CHECK;
/* Appends a copy of *tensor, strings and box included; a NULL unit becomes the tensor's name, a NULL group
 * "". The tensor is not checked here. CAIRN_ERR_INVALID: too many tensors, or a string is NULL or longer
 * than CAIRN_NAME_MAX. CAIRN_ERR_NO_MEMORY. After a failure the spec is as before. */
cairn_status spec_add_tensor(struct job_spec_data *spec,
                             const struct tensor_spec *tensor) CAIRN_MUST_CHECK;
/* The same for a group; its schedule's points are copied, CAIRN_ERR_INVALID if there are too many. */
cairn_status spec_add_group(struct job_spec_data *spec,
                            const struct group_spec *group) CAIRN_MUST_CHECK;
/* Replaces everything in the group except its name, its optimizer and `frozen` by copies from `from`.
 * Errors as spec_add_group; the values are not checked. */
cairn_status spec_set_group(struct job_spec_data *spec, size_t group,
                            const struct group_spec *from) CAIRN_MUST_CHECK;
/* lr 1e-3, beta 0.9 and 0.999, eps 1e-8, weight_decay, momentum and ema 0, constant; name and optimizer
 * NULL. */
struct group_spec group_default(void);
/* Adds a hash that the spec had before. If there are more than CAIRN_SPEC_FORMER_MAX, the oldest except the
 * very first is dropped. CAIRN_ERR_NO_MEMORY. */
cairn_status spec_add_former(struct job_spec_data *spec, const uint8_t hash[32]) CAIRN_MUST_CHECK;
/* Notes a setting by which the job was made from a snapshot. Over CAIRN_SPEC_MADE_MAX the oldest is
 * dropped. The strings are copied. */
cairn_status spec_add_made(struct job_spec_data *spec, const char *key, const char *was,
                           const char *is) CAIRN_MUST_CHECK;
/* True if the hash is one that the spec had before an amendment. */
bool spec_was(const struct job_spec_data *spec, const uint8_t hash[32]);

/* Sorts tensors and groups bytewise by name: afterwards an index means the same to everyone. Replaces 0 by
 * the default in the loss scale's policy, micro_batches, skips_max and shard_loss_wait_s. */
void spec_canonicalize(struct job_spec_data *spec);
/* Returns the index of the tensor or group with that name in a canonical spec; SIZE_MAX: none has it. */
size_t spec_find_tensor(const struct job_spec_data *spec, const char *name);
size_t spec_find_group(const struct job_spec_data *spec, const char *name);

/* How many seconds a snapshot during training may take. policy_durable_within_s: from its cut until it is
 * durable. policy_prepare_within_s: before the cut, while shards make memory for the snapshot. */
uint32_t policy_durable_within_s(const struct policy *policy);
uint32_t policy_prepare_within_s(const struct policy *policy);
bool policy_same(const struct policy *a, const struct policy *b);

/* Checks a spec against everything that this header promises; the order of tensors does not matter: names
 * (UTF-8, no control characters, unique), groups (known, used by a trained tensor), optimizers (one of
 * `optimizers`, a NULL-terminated list), schedules, aliases, ranges, shapes, counts, and what this version
 * supports (below). CAIRN_ERR_INVALID or CAIRN_ERR_UNSUPPORTED; `why` (may be NULL) names the field, the
 * value and what is allowed. CAIRN_ERR_NO_MEMORY. */
cairn_status spec_check(const struct job_spec_data *spec, const char *const *optimizers,
                        struct sentence *why) CAIRN_MUST_CHECK;
/* Refuses values that a rule cannot use; call it for a checked spec that is new or amended. Specs that an
 * older version of Cairn stored are not checked again, and stay in use. CAIRN_ERR_INVALID with a
 * sentence. */
cairn_status spec_check_usable(const struct job_spec_data *spec,
                               struct sentence *why) CAIRN_MUST_CHECK;
/* Returns the tensor of which `tensor` is another name, or `tensor` itself if it is no alias; the spec must
 * be checked and canonical. */
size_t spec_target(const struct job_spec_data *spec, size_t tensor);
/* True if the shards make the tensor's initial state, so that no worker puts it. Never true for a blob. */
bool spec_has_origin(const struct job_spec_data *spec, size_t tensor);
/* True if every tensor that has elements gets its state from the shards: the job initializes itself. */
bool spec_initializes_itself(const struct job_spec_data *spec);
/* True if a job (and so a folder) may have that name. */
bool job_name_ok(const char *name);

/* BLAKE2b-256 over everything that a worker declares of a job, except its name (a snapshot may be restored
 * under another one); revision, former, amend_key and frozen are left out, too. The hash is the same
 * for any order of tensors and groups. The spec must be checked. CAIRN_ERR_NO_MEMORY. */
cairn_status spec_hash(const struct job_spec_data *spec, uint8_t hash_out[32]) CAIRN_MUST_CHECK;

/* The number of a job's workers may change from one launch to the next: a spec that wants exactly n
 * workers fits a job whose bounds allow n. Returns a copy of the spec: in that case with the bounds of the
 * job, otherwise with the spec's own bounds. The copy borrows from both specs, and must not be released. */
struct job_spec_data spec_with_workers(const struct job_spec_data *spec,
                                       const struct job_spec_data *job);
/* True if a worker with that spec belongs to the job: the spec is the job's, or one that the job had before
 * an amendment. The spec may lack the settings by which the job was made from a snapshot since. */
bool spec_joins(const struct job_spec_data *spec, const struct job_spec_data *job) CAIRN_MUST_CHECK;
/* Notes in `next` the settings that differ from those of `was`, the spec it was made from.
 * CAIRN_ERR_NO_MEMORY. */
cairn_status spec_note_made(struct job_spec_data *next,
                            const struct job_spec_data *was) CAIRN_MUST_CHECK;
/* Adds the spec's current hash to its former ones, before an amendment. CAIRN_ERR_NO_MEMORY. */
cairn_status spec_note_former(struct job_spec_data *spec) CAIRN_MUST_CHECK;

/* The part of a content root (proto/snapshot/digest_tree.h) that describes the learning rates: a hash over
 * the names, schedules and `frozen` of the groups, sorted, the names of the frozen tensors, and the averages
 * of the groups that have one. False if all schedules are constant, nothing is frozen and no group has an
 * average: then the root has no such part. */
bool spec_schedules_hash(const struct job_spec_data *spec, uint8_t hash_out[32]);

/* How a field of an existing job, with its moments and its step, can be changed. */
enum spec_change {
    CAIRN_SPEC_NEXT_ROUND, /* by an amendment: the next round that opens uses it, no handle is affected */
    CAIRN_SPEC_REOPENED, /* by an amendment that makes a new generation: every handle is opened again */
    /* by a new job made from a snapshot, since the state lies or adds up differently */
    CAIRN_SPEC_CREATED,
    CAIRN_SPEC_NEVER /* not at all: the field tells how the job began */
};

enum spec_object { CAIRN_SPEC_OF_JOB, CAIRN_SPEC_OF_GROUP, CAIRN_SPEC_OF_TENSOR };

/* One difference between two specs, as data. */
struct spec_difference {
    enum spec_object object;
    const char *name;  /* of the object; NULL: the names of the two jobs differ */
    const char *field; /* "shape", "lr"; NULL: only one side has the object */
    uint32_t point;    /* of `points`: the index, from 1, of the first point that differs; else 0 */
    /* The field's two values in words. NULL: the side lacks the object, or (steps_missed) keeps no
     * value. Without a field, the side that has the object says its name. */
    const char *here, *there;
    /* The setting that turns the servers' value into the one here, and how. If no setting turns the
     * servers' value into the one here, key is NULL and change is NEVER. If the value is no short text,
     * only `value` is NULL. */
    const char *key, *value;
    enum spec_change change;
};

/* Writes the difference as a sentence, in which the two sides are called `here` and `there`: "tensor
 * fc1.weight: shape [512,784] here, [256,784] on the servers". */
#define CAIRN_DIFFERENCE_TEXT_MAX (3 * CAIRN_SPEC_PATH_MAX) /* two paths, a name and some words */
void difference_text(const struct spec_difference *difference, const char *here, const char *there,
                     char out[static CAIRN_DIFFERENCE_TEXT_MAX]);

/* Lists how `here` (a worker's spec) differs from `there` (the servers'). At most `most` differences are
 * passed to `sink`, borrowed for the call. Returns the number of differences, 0 = the same. Both specs are
 * canonical; allocates nothing. `sink` may be NULL if `most` is 0. */
typedef void (*difference_fn)(void *context, const struct spec_difference *difference);
size_t spec_diff(const struct job_spec_data *here, const struct job_spec_data *there, size_t most,
                 difference_fn sink, void *context);

/* ==== capability ==== */

/* The capabilities of this version: one row for every choice that a job's spec offers, and for choices
 * that cannot be combined. The check of specs reads the table, `cairn capabilities` prints it, and a test
 * (e2e.capabilities) tries each row's choice. A supported choice must have a visible effect, and an
 * unsupported one must be refused when a worker attaches: no choice is ignored silently.
 *
 * Pure; static memory. */

enum capability_field {
    CAIRN_CAPABILITY_KIND, /* of a tensor; cairn_kind */
    CAIRN_CAPABILITY_WIRE, /* cairn_dtype of what is fetched; u8: only for blobs, and their only one */
    CAIRN_CAPABILITY_REDUCE,
    CAIRN_CAPABILITY_MASTER,
    CAIRN_CAPABILITY_PLACE, /* 0 rows, 1 whole */
    CAIRN_CAPABILITY_INIT,  /* cairn_init_kind */
    /* 0 no alias, 1 alias of a whole tensor, 2 alias of a box that is fetched, 3 alias of a box that is
     * pushed */
    CAIRN_CAPABILITY_ALIAS,
    CAIRN_CAPABILITY_SCHEDULE,    /* of a group; cairn_schedule_kind */
    CAIRN_CAPABILITY_EMA,         /* of a group; cairn_ema_schedule */
    CAIRN_CAPABILITY_STAGE,       /* of the job */
    CAIRN_CAPABILITY_LOSS_SCALE,  /* cairn_loss_scale */
    CAIRN_CAPABILITY_NONFINITE,   /* cairn_nonfinite */
    CAIRN_CAPABILITY_GROUPS,      /* cairn_reduce_groups */
    CAIRN_CAPABILITY_SHARD_LOSS,  /* cairn_shard_loss */
    CAIRN_CAPABILITY_WORKER_LOSS, /* cairn_worker_loss */
    CAIRN_CAPABILITY_STAGING,     /* cairn_snapshot_staging */
    CAIRN_CAPABILITY_DURABILITY,  /* cairn_durability */
    CAIRN_CAPABILITY_TIERS,   /* cairn_tiers: which planes may lie apart from those on a device */
    CAIRN_CAPABILITY_MISSING, /* cairn_missing */
    CAIRN_CAPABILITY_COMBINATION, /* spec_combination */
    CAIRN_CAPABILITY_FIELD_COUNT
};

/* Choices that are supported, but not together: the rows of COMBINATIONS in spec_check.c, which describe
 * each refused pair in full. */
enum spec_combination {
    CAIRN_COMBINATION_GROUPS_TILES, /* reduce_groups host, and workers that declare tiles */
    CAIRN_COMBINATION_PARTS_TILES,  /* a tile of an alias of a box */
    CAIRN_COMBINATION_BLOB_TILE,
    CAIRN_COMBINATION_BLOB_INIT,
    CAIRN_COMBINATION_BLOB_ALIAS,
    CAIRN_COMBINATION_NUMBERS_U8, /* u8 for a tensor that is no blob */
};

struct capability {
    enum capability_field field;
    int value;
    const char *value_name;
    bool supported;
    /* what is done in place of a choice that is not supported but accepted; NULL: the choice is refused */
    const char *instead;
};

/* Says which tensor's properties are checked for a combination. */
enum combination_of {
    CAIRN_COMBINATION_OF_TENSOR, /* a tensor of the spec that is no alias */
    CAIRN_COMBINATION_OF_TARGET, /* the tensor that an alias names */
    CAIRN_COMBINATION_OF_TILED, /* the tensor of which a tile is declared, under the name given there */
    CAIRN_COMBINATION_OF_CUT,  /* the target of that name, if the tile is only a part */
    CAIRN_COMBINATION_OF_NONE, /* no tensor: the choice is accepted, see `instead` */
};
struct tensor_spec;
struct spec_refusal {
    enum combination_of of;
    bool (*has)(const struct tensor_spec *tensor);
    cairn_status status;
    const char *why; /* the end of a sentence that begins with the tensor's name */
};

/* The row that refuses the tensor; NULL: none. Static memory. */
const struct spec_refusal *combination_refused(enum combination_of of,
                                               const struct tensor_spec *tensor);

/* All rows, by field. */
const struct capability *capability_table(size_t *count_out);
/* The name as in cairn.h: "on_nonfinite". */
const char *capability_field_name(enum capability_field field);
/* The name of a value: "bf16"; "?" if the field has no such value. */
const char *capability_name(enum capability_field field, int value);
/* The value with that name; -1 if there is none. */
int capability_value(enum capability_field field, const char *name);
/* CAIRN_ERR_INVALID: the field has no such value. CAIRN_ERR_UNSUPPORTED: the value exists, but this version
 * does not support it. `why` (may be NULL) begins with `subject` ("tensor \"x\": "), and names the field,
 * the value and all supported values. */
cairn_status capability_check(enum capability_field field, int64_t value, const char *subject,
                              struct sentence *why) CAIRN_MUST_CHECK;

/* ==== results ==== */

/* Counts elements that are not finite, by tensor. After an update with finite gradients such elements may
 * be in a parameter, in a moment (the square of a large gradient is infinite, and its parameter never moves
 * again), or in the published copy (bf16 overflows before fp32). In a round that is skipped the non-finite
 * elements are in the summed gradients. Shards count elements, the coordinator adds up their counts. Pure;
 * any thread. */

#define CAIRN_RESULTS_TENSORS 8   /* how many tensors are listed by name */
#define CAIRN_RESULTS_BYTES   512 /* of the list as text; a name has at most 255 */

struct results {
    uint64_t nonfinite; /* elements, of all tensors */
    uint32_t tensor_count;
    struct {
        uint32_t tensor; /* index in the job's list */
        uint64_t elems;
    } tensors[CAIRN_RESULTS_TENSORS]; /* [tensor_count], ascending: the first that have any */
};

/* Adds `elems` elements of that tensor that are not finite. */
void results_add(struct results *results, uint32_t tensor, uint64_t elems);
/* Adds all of `more`, which may count elements of more tensors than it lists. */
void results_join(struct results *results, const struct results *more);
/* Lists the tensors that have non-finite elements, each with the number of these elements, such as
 * "a.weight (3), b (9) and others". No name is cut. The text is "" if all elements are finite. */
void results_list(const struct results *results, const struct job_spec_data *spec,
                  char out[static CAIRN_RESULTS_BYTES]);
/* Describes gradients that are not finite, as far as they are known: "the gradient of a.weight (3),
 * b (9) and others is not finite (14 elements)", "a gradient is not finite". */
void results_gradient(const struct results *results, const struct job_spec_data *spec,
                      struct sentence *out);

/* ==== planes ==== */

/* The planes that a job has for each of its tensors, and their dtypes: shards hold them, a
 * snapshot stores them and a digest is made from them. All planes and their names: proto/geometry/tensor.h.
 * Pure. */

/* Bits 1u << CAIRN_PLANE_... of the planes that a tensor has: the master, those that the optimizer of its
 * group keeps, and the average; 0 if it has no elements. The spec must be checked. */
uint32_t spec_planes(const struct job_spec_data *spec, size_t tensor);
/* The dtype of such a plane's elements: the master's for a param, f32 for planes that an optimizer
 * keeps. */
cairn_dtype spec_plane_dtype(const struct job_spec_data *spec, size_t tensor, uint32_t plane);

/* ==== initializer ==== */

/* Makes initial values from a seed, on the shards that keep them, so that nobody has to hold a whole model
 * to begin a job.
 *
 *   element i of a tensor = f(kind, a, b, seed, the tensor's name, i)
 *
 * An element depends on nothing else: any cut into shards, chunks or threads gives the same bits, and a
 * tensor keeps its values when other tensors are added to the model. i counts row-major in the whole
 * tensor.
 *
 *   key    first 8 bytes, little-endian, of BLAKE2b-256("cairn initializer 1" | seed, 8 bytes LE | name)
 *   words  Philox4x32-10 (Salmon et al., SC'11) of the counter {low and high half of i / 2, 0, 0}: two
 *          elements a block, the even one has words 0 and 1, the odd one 2 and 3
 *   u      (w + 1/2) / 2^52 in double, exact and never 0 or 1: w = the first word's 32 bits over the upper
 *          20 of the second
 *   z      the inverse of the normal distribution at u: AS 241, PPND16 (Wichura 1988), with the logarithm
 *          of scalars.h, fdlibm's series; every operation is IEEE double and rounds once, no libm
 *   UNIFORM  (float)(a + (b - a)·u): in [a, b]        NORMAL  (float)(a + b·z): mean a, deviation b
 *
 * Pure; any thread. Any change here changes the initial models, so a change needs a new name in the key. */

/* The source from which init_elems, or a device, makes a tensor's elements. The init must be
 * checked, and not NONE. */
struct init_source init_source_of(const struct cairn_init *init, const char *tensor);
/* Writes elements [first_elem, first_elem + elem_count) of the tensor. */
void init_elems(const struct init_source *source, uint64_t first_elem, uint64_t elem_count,
                float *out);

/* ==== optimizer ==== */

/* The registry of optimizers: the name of each optimizer, the planes that it keeps, its hyper-parameters,
 * and how its scalars are computed. The kernels are in gpu/ under the same ids; a test walks this table, so
 * that a new optimizer without a kernel or golden values fails the build's tests.
 *
 * Ids are sent over the wire and stored in snapshots: never reused, never changed. Pure. */

enum optimizer_id {
    CAIRN_OPTIMIZER_ADAMW = 1,
    CAIRN_OPTIMIZER_ADAM = 2,
    CAIRN_OPTIMIZER_SGD = 3,
    CAIRN_OPTIMIZER_COUNT = 4 /* one more than the last */
};

/* One hyper-parameter: min <= value <= max, or value < max if max_open. */
struct hyper_info {
    const char *name;    /* "lr", "beta1", ... : the field of struct group_hyper */
    size_t offset_bytes; /* of the double in struct group_hyper */
    double value_default, min, max;
    bool max_open;
    bool is_switch; /* 0 or 1 */
    bool divides;   /* the rule divides by it: if it is 0 in fp32, a gradient of 0 gives NaN */
};

struct optimizer_kind {
    uint32_t id;
    const char *name; /* "adamw" */
    const struct hyper_info *hypers;
    size_t hyper_count;
    /* the planes beside param and wire, as bits 1u << CAIRN_PLANE_...; they depend on the hyper-parameters,
     * because SGD without momentum keeps nothing */
    uint32_t (*planes)(const struct group_hyper *hyper);
    /* fills all fields of *out except optimizer and grad_scale; *out is zero before; step counts from 1 */
    void (*scalars)(const struct group_hyper *hyper, uint64_t step, struct group_scalars *out);
};

/* NULL if there is none with that id or name. Static memory. */
const struct optimizer_kind *optimizer_by_id(uint32_t id);
const struct optimizer_kind *optimizer_by_name(const char *name);

/* The names, ended by NULL: for spec_check. Static memory. */
const char *const *optimizer_names(void);

/* NULL: the optimizer (which may be NULL) has no hyper-parameter with that name. Static memory. */
const struct hyper_info *optimizer_hyper(const struct optimizer_kind *optimizer, const char *name);

/* Takes the hyper-parameters from a spec's group; hyper-parameters that its optimizer does not use become
 * 0. CAIRN_ERR_INVALID as group_hyper_check. */
cairn_status group_hyper_of_spec(const struct group_spec *group, struct group_hyper *out,
                                 const char **field_out) CAIRN_MUST_CHECK;
/* CAIRN_ERR_INVALID: the group sets a field that its optimizer does not use to something other than 0 or
 * the default (group_default), so the value would be ignored; *field_out names the field. */
cairn_status group_spec_unused(const struct group_spec *group,
                               const char **field_out) CAIRN_MUST_CHECK;
/* CAIRN_ERR_INVALID: the optimizer is unknown, a value is out of its range or NaN, or a value that the
 * optimizer does not use is not 0. *field_out (unless NULL) then names the field: static memory. */
cairn_status group_hyper_check(const struct group_hyper *hyper,
                               const char **field_out) CAIRN_MUST_CHECK;
/* Bits 1u << CAIRN_PLANE_... of the planes the shards keep for a trained tensor of this group beside
 * param and wire, the average included. The hyper-parameters must pass the check. */
uint32_t optimizer_planes(const struct group_hyper *hyper);

/* ==== settings ==== */

/* A field of a spec given as two words, KEY and VALUE, for an existing job: `cairn job amend --set`, `cairn
 * job create --from --set`, cairn_amend's settings, m.amend(stage=3). All of them use the same check.
 *
 *   stage, micro_batches, …        a scalar of the job: a row of spec_fields.h
 *   GROUP.lr, GROUP.schedule, …    a hyper-parameter of a group, or of its schedule
 *   GROUP.points                   the points of a schedule: "0:1,9:0.5"
 *   wire                           the dtype in which all tensors except blobs are fetched
 *   TENSOR.wire                    the dtype in which this one tensor is fetched
 *
 * A VALUE is a number, a word ("skip", "cosine", "bf16"), yes or no. Pure. */

struct spec_field; /* spec_fields.h */

#define CAIRN_SETTINGS_MAX 1024 /* of one request by name */
/* the most settings of one message: those by name, and the fields of struct cairn_amend */
#define CAIRN_SETTINGS_SENT_MAX (CAIRN_SETTINGS_MAX + 32)

/* Sets the field that `key` names in a copy of an existing job's spec; after a failure the copy is
 * half changed. Rules between two fields are checked afterwards, by spec_canonicalize and
 * spec_check. *change_out tells how the job gets the new value. CAIRN_ERR_NOT_FOUND: no such field, group
 * or tensor; `why` lists the fields that exist. CAIRN_ERR_INVALID, CAIRN_ERR_UNSUPPORTED: `why` names the
 * field, the value and what is allowed. CAIRN_ERR_NO_MEMORY. */
cairn_status spec_set(struct job_spec_data *spec, const char *key, const char *value,
                      enum spec_change *change_out, struct sentence *why) CAIRN_MUST_CHECK;
/* How a job gets from one value of a scalar to another: as the scalar's row says, except that two changes
 * need a new job (CREATED): from or to stage 0, in which one shard holds all of the state, and from or to
 * ema 0, without which a group keeps no average. */
enum spec_change spec_change_of(const struct spec_field *field, uint64_t was_bits, uint64_t bits);

/* Writes the value of a field as spec_set reads it: "3", "0.1", "skip", "yes". */
#define CAIRN_SETTING_TEXT_MAX 63
void spec_setting_text(const struct spec_field *field, const void *from,
                       char text_out[static CAIRN_SETTING_TEXT_MAX + 1]);

#endif
