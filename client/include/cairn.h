/* cairn.h - the client of the Cairn parameter and optimizer-state server.
 *
 * The state of a training run lives in shard daemons. A trainer (a worker) opens a session with the
 * coordinator, attaches to a job, and then repeats: round_begin, fetch the parameters of the
 * round's version, push gradients, commit. The trainer owns nothing that its death could lose. The
 * state may move to other shards while the job runs (client/README.md, "Shards that come and go"); no
 * call fails because of such a move.
 *
 * Conventions. Handles are opaque and may be used from several threads at once; a closed or wrong
 * handle gives CAIRN_ERR_HANDLE. Strings and structs are copied before a call returns. A result named
 * *_out is set only on CAIRN_OK. Structs that may grow begin with struct_size. Set struct_size to
 * sizeof the struct, and set every field that you do not use to 0, which means the default (except
 * for a group's numbers: see below). A buffer that is given to put, push or fetch is on loan until
 * its operation completes (cairn_wait); if op_out is NULL, cairn_commit (pushes) or cairn_init_done
 * (puts) completes the operation. Timeouts are milliseconds, finite and not negative. A call that
 * ends with CAIRN_ERR_TIMEOUT has changed nothing, unless the call's comment says otherwise, and
 * cairn_error() names whom the call waited for. CAIRN_ERR_NO_MEMORY (memory, descriptors, threads)
 * changes nothing either: the same call may be repeated, within a round or a write too; if a job has
 * failed with this status, close the job and open it again. The library never aborts, forks, or
 * touches signals. If cairn_opts.on_wait is NULL, the library prints the texts that on_wait would
 * receive, and a line when a shard falls silent or is heard again. The library also prints one line
 * if it has no room to map the shards' memory, and copies that memory instead. Otherwise the library
 * prints nothing. The library owns one thread (two from the first cairn_stream_wait on) and one
 * descriptor to poll. A child of fork() must not use the library before exec(): in the child the
 * parent's handles give CAIRN_ERR_HANDLE, cairn_close and cairn_job_close ignore these handles, and
 * cairn_open may hang. UCX may run a thread as soon as UCX is loaded, and a lock of that thread
 * would stay held in the child; with UCX_VFS_ENABLE=n UCX starts no such thread. A signal handler
 * may call cairn_status_name and cairn_version. To end the wait of a thread, the handler can set a
 * flag that the thread checks between calls with short timeouts. Every other call takes locks and
 * allocates memory. While a thread is in a call or in on_wait, the thread must not be cancelled
 * (pthread_cancel), and must not leave by longjmp or a C++ exception: a lock would stay held, and
 * the session would hang. If your program cancels threads, put
 * pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, ...) around the calls.
 *
 * Names: a job's name has 1 to 255 bytes of [A-Za-z0-9._-] and does not begin with '.' or '-'; a name
 * of a tensor, unit or group has 1 to 255 bytes of UTF-8 without control characters. client/README.md,
 * "The arithmetic", has the formulas that an update computes: the optimizers, the mean, the norm and
 * the clip.
 *
 * The meaning of 0. 0 means the default in those fields of cairn_opts, cairn_tensor, cairn_mem and
 * cairn_job_spec whose comments say so, and for a cairn_group's name, pattern and schedule. For the
 * group's lr, beta1, beta2, eps, weight_decay and momentum 0 means 0, since most of these may be 0. A
 * group has to name its optimizer. So begin a group with CAIRN_GROUP_INIT and change the fields that
 * differ. With lr 0 nothing is learnt; an eps of 0 is refused for "adamw" and "adam", which divide by
 * eps.
 *
 * GPUs (client/README.md, "Memory of a GPU"): in every `device`, 0 is the host and CAIRN_GPU(n) is GPU
 * n, as CUDA_VISIBLE_DEVICES numbers the GPUs; anything else is CAIRN_ERR_INVALID.
 * CAIRN_ERR_UNSUPPORTED: there is no driver. CAIRN_ERR_INVALID: there is no such GPU, the memory or
 * the stream does not belong to that GPU (as far as the driver reports; for a destroyed stream the
 * driver may report nothing, or crash), or the stream is being captured into a CUDA graph.
 * CAIRN_ERR_IO: the GPU's context is gone. Captures of other streams go on during a call, except that
 * the default stream then counts as captured. */
#ifndef CAIRN_H
#define CAIRN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; cairn_version() gives that of the loaded library. */
#define CAIRN_VERSION_MAJOR 0
#define CAIRN_VERSION_MINOR 1
#define CAIRN_VERSION_PATCH 0
#define CAIRN_VERSION       "0.1.0"

#define CAIRN_EXPORT  __attribute__((visibility("default")))
#define CAIRN_CHECKED __attribute__((warn_unused_result))

/* Numbers are part of the interface and never change. */
#ifndef CAIRN_STATUS_DEFINED
#define CAIRN_STATUS_DEFINED
typedef enum cairn_status {
    CAIRN_OK = 0,
    CAIRN_ERR_INVALID = 1,        /* an argument is not valid */
    CAIRN_ERR_HANDLE = 2,         /* the handle is closed or does not come from this library */
    CAIRN_ERR_UNSUPPORTED = 3,    /* not supported by this version */
    CAIRN_ERR_TIMEOUT = 4,        /* the deadline passed; nothing was changed */
    CAIRN_ERR_BUSY = 5,           /* busy; try again later */
    CAIRN_ERR_NOT_FOUND = 6,      /* no such job, tensor, plane or snapshot */
    CAIRN_ERR_EXISTS = 7,         /* it exists already */
    CAIRN_ERR_NO_MEMORY = 8,      /* out of memory, descriptors or threads; over a limit */
    CAIRN_ERR_NO_SPACE = 9,       /* no space left on the storage */
    CAIRN_ERR_IO = 10,            /* reading or writing failed */
    CAIRN_ERR_CONFIG = 11,        /* the configuration is not valid */
    CAIRN_ERR_PROTOCOL = 20,      /* the peer broke the protocol */
    CAIRN_ERR_VERSION = 21,       /* the peer speaks another version of the protocol */
    CAIRN_ERR_MALFORMED = 22,     /* the message or file is malformed */
    CAIRN_ERR_STALE = 23,         /* belongs to a finished round or an older epoch; dropped */
    CAIRN_ERR_DUPLICATE = 24,     /* already received; dropped */
    CAIRN_ERR_CHECKSUM = 25,      /* a checksum does not match */
    CAIRN_ERR_CORRUPT = 26,       /* stored data is damaged or incomplete */
    CAIRN_ERR_VERSION_GONE = 27,  /* that version is no longer kept */
    CAIRN_ERR_CANCELED = 28,      /* canceled */
    CAIRN_ERR_EPOCH_CHANGED = 40, /* the membership changed; nothing was applied: recompute */
    CAIRN_ERR_NONFINITE = 41,     /* a gradient or an initial weight is not finite */
    CAIRN_ERR_MISMATCH = 60,      /* the job on the servers differs from this spec */
    CAIRN_ERR_FENCED = 61,        /* a newer member took this one's place */
    CAIRN_ERR_REFUSED = 62,       /* not allowed */
    CAIRN_ERR_NOT_READY = 63,     /* the job is not ready */
    CAIRN_ERR_JOB_LOST = 64,      /* a shard lost its part of the job; restore a snapshot */
    CAIRN_ERR_ROLLED_BACK = 65,   /* the job was restored from a snapshot; open it again */
    CAIRN_ERR_HALTED = 66,        /* the job is halted: no round opens until somebody acts */
    CAIRN_ERR_PLACE_TAKEN = 67,   /* another live process has this rank of the job */
    CAIRN_ERR_REOPEN = 68,        /* close the job and open it again: it was changed, or this worker
                                   * was expelled at the step's deadline */
    CAIRN_ERR_UNREACHABLE = 80,   /* the peer cannot be reached */
    CAIRN_ERR_CLOSED = 81,        /* the connection or session is closed */
    CAIRN_ERR_INTERNAL = 99       /* a fault in Cairn; please report it */
} cairn_status;
#endif

#ifndef CAIRN_TENSOR_TYPES_DEFINED
#define CAIRN_TENSOR_TYPES_DEFINED
typedef enum cairn_dtype {
    CAIRN_F32 = 1,
    CAIRN_BF16 = 2,
    CAIRN_F16 = 3,
    CAIRN_F64 = 4,
    CAIRN_U8 = 5 /* bytes: for a CAIRN_BLOB only */
} cairn_dtype;
typedef enum cairn_kind {
    CAIRN_TRAINED = 1,
    CAIRN_FROZEN = 2,
    CAIRN_BUFFER = 3,
    CAIRN_BLOB = 4
} cairn_kind;
/* A box in elements, per dimension. In every call that takes a box, NULL means the box that this worker
 * holds. Without cairn_tiles this box is the whole tensor; for an alias of a box it is the alias's
 * box. */
struct cairn_box {
    uint32_t rank;
    uint64_t start[8], extent[8];
};
struct cairn_version {
    uint64_t generation; /* grows by one with every new beginning of the job, such as a restore */
    uint64_t step;       /* updates applied; skipped rounds do not count */
};
#endif

#ifndef CAIRN_NONFINITE_DEFINED
#define CAIRN_NONFINITE_DEFINED
/* How a round with a non-finite gradient ends. SKIP changes nothing and the job goes on; FAIL reports
 * an error. cairn_result, or cairn_error(), lists the tensors. If all gradients are finite, but
 * results of the update are not (cairn_result.nonfinite), the update is kept. Then with SKIP the
 * result reports the tensors and the job goes on; with FAIL no further round opens
 * (CAIRN_ERR_HALTED), unless the job has init_nonfinite_ok. */
typedef enum cairn_nonfinite { CAIRN_NONFINITE_SKIP = 1, CAIRN_NONFINITE_FAIL = 2 } cairn_nonfinite;
#endif

#ifndef CAIRN_LOSS_SCALE_DEFINED
#define CAIRN_LOSS_SCALE_DEFINED
/* A FIXED loss scale never changes. A DYNAMIC loss scale is halved when a round is skipped, and
 * doubled after loss_scale_growth_steps applied rounds in a row, within its bounds. */
typedef enum cairn_loss_scale {
    CAIRN_LOSS_SCALE_DEFAULT = 0, /* DYNAMIC if loss_scale is above 1, else FIXED */
    CAIRN_LOSS_SCALE_FIXED = 1,
    CAIRN_LOSS_SCALE_DYNAMIC = 2
} cairn_loss_scale;
#endif

#ifndef CAIRN_SHARD_LOSS_DEFINED
#define CAIRN_SHARD_LOSS_DEFINED
/* How the job reacts when a shard has lost its part of the job: the shard returned without the part, or
 * has been away for longer than shard_loss_wait_s. WAIT: the job waits for the part, or for an
 * operator. RESTORE_LATEST: the coordinator restores the job's newest complete snapshot onto the
 * available shards, at most three times without an applied step in between; workers get
 * CAIRN_ERR_ROLLED_BACK. */
typedef enum cairn_shard_loss {
    CAIRN_SHARD_LOSS_WAIT = 0,
    CAIRN_SHARD_LOSS_RESTORE_LATEST = 1
} cairn_shard_loss;
#endif

#ifndef CAIRN_SNAPSHOT_STAGING_DEFINED
#define CAIRN_SNAPSHOT_STAGING_DEFINED
/* The room for old values while a snapshot is saved: a shard sets old values aside when an update is
 * about to overwrite them. STATE: the room suffices for all old values, and no update waits for the
 * disk. SMALL: a shard has little room, and an update waits while this room is full. */
typedef enum cairn_snapshot_staging {
    CAIRN_SNAPSHOT_STAGING_STATE = 0,
    CAIRN_SNAPSHOT_STAGING_SMALL = 1
} cairn_snapshot_staging;
#endif

#ifndef CAIRN_WORKER_LOSS_DEFINED
#define CAIRN_WORKER_LOSS_DEFINED
/* How the job reacts when a worker was lost: its process or its connection ended, its lease ran out,
 * or it was expelled. A worker that closes the job is not lost. The open round is void in any case
 * (CAIRN_ERR_EPOCH_CHANGED). REDO: the remaining workers repeat the round at once. WAIT: no round opens
 * until as many workers are attached as before the loss, or worker_loss_wait_s seconds have passed
 * since the loss, or the job is amended. FAIL: no round opens until the job is amended or restored, or
 * all its workers have left and others attach; cairn_round_begin gives CAIRN_ERR_HALTED, and names the
 * lost worker. */
typedef enum cairn_worker_loss {
    CAIRN_WORKER_LOSS_REDO = 0,
    CAIRN_WORKER_LOSS_WAIT = 1,
    CAIRN_WORKER_LOSS_FAIL = 2
} cairn_worker_loss;
#endif

#ifndef CAIRN_DURABILITY_DEFINED
#define CAIRN_DURABILITY_DEFINED
/* The losses that cost a job no step. DEFAULT: what the cluster offers; PROCESS: a shard's process ends;
 * PEER: its host is lost; LOG: all hosts are; LOG_PEER: both, PEER at once (deploy/README.md). */
typedef enum cairn_durability {
    CAIRN_DURABILITY_DEFAULT = 0,
    CAIRN_DURABILITY_PROCESS = 1,
    CAIRN_DURABILITY_PEER = 2,
    CAIRN_DURABILITY_LOG = 3,
    CAIRN_DURABILITY_LOG_PEER = 4
} cairn_durability;
#endif

#ifndef CAIRN_TIERS_DEFINED
#define CAIRN_TIERS_DEFINED
/* Where the planes of an element lie on a shard that has a GPU. An update works in one memory:
 * with TOGETHER the parameter, the moments and the sum of an element lie in the same memory, and
 * offload_fraction selects how many elements lie in host memory. The other values are refused. */
typedef enum cairn_tiers {
    CAIRN_TIERS_TOGETHER = 0,
    CAIRN_TIERS_MOMENTS_ON_HOST = 1,
    CAIRN_TIERS_PARAM_ON_HOST = 2
} cairn_tiers;
#endif

#ifndef CAIRN_GROUPS_DEFINED
#define CAIRN_GROUPS_DEFINED
/* Selects whether gradients are added up before they reach the shard that owns them. HOST: on a host
 * with two or more workers and a shard of the job, the shards of that host add up the gradients that
 * these workers push, and fetch the data of other hosts once for all of these workers. So the host
 * sends and fetches only as much as one worker would. A sum of floats depends on its order: the
 * gradients of a host are added up by rank, then the sums of the hosts by their lowest ranks. So the
 * bits of a step depend on which ranks share a host; `cairn job show` and the snapshots list the
 * ranks that shared a host. The same workers on the same hosts give the same bits, whatever the
 * number of shards there. */
typedef enum cairn_reduce_groups {
    CAIRN_GROUPS_NONE = 0, /* no sums on hosts: all gradients are added up by rank */
    CAIRN_GROUPS_HOST = 1
} cairn_reduce_groups;
#endif

#ifndef CAIRN_MISSING_DEFINED
#define CAIRN_MISSING_DEFINED
/* How a round treats a trained tensor to which no worker contributed. ZERO: the tensor's gradient is
 * zeros, so its moments fade, its weight decay continues and its count of updates grows. LEAVE: the
 * tensor and its moments stay unchanged, and the step does not count as one of the tensor's updates.
 * torch.optim does the same if a grad is None. If anybody pushed a part of a tensor, the tensor has a
 * gradient, with zeros where nobody pushed. */
typedef enum cairn_missing { CAIRN_MISSING_ZERO = 0, CAIRN_MISSING_LEAVE = 1 } cairn_missing;
#endif

#ifndef CAIRN_INIT_DEFINED
#define CAIRN_INIT_DEFINED
/* How the shards make a tensor's initial parameters: the same values for any number of shards. */
typedef enum cairn_init_kind {
    CAIRN_INIT_NONE = 0, /* a worker puts the tensor */
    CAIRN_INIT_ZEROS = 1,
    CAIRN_INIT_ONES = 2,
    CAIRN_INIT_CONSTANT = 3, /* a */
    CAIRN_INIT_UNIFORM = 4,  /* from a to b */
    CAIRN_INIT_NORMAL = 5    /* mean a, standard deviation b */
} cairn_init_kind;
struct cairn_init {
    cairn_init_kind kind;
    double a, b;
    uint64_t seed; /* UNIFORM, NORMAL; below 2^63 */
};
#endif

/* The learning rate of the round with step k (struct cairn_round.step, from 0), with b = lr, m =
 * lr_min, W = warmup_steps, T = total_steps, D = decay_steps. Before W the rate of every kind is
 * (value at W) * k / W. From T on the rate is m.
 *   CONSTANT  b
 *   LINEAR    m + (b - m) * (T - k) / (T - W)
 *   COSINE    m + (b - m) * (1 + cos(pi * (k - W) / (T - W))) / 2
 *   WSD       b while k < T - D, then m + (b - m) * (T - k) / D       warm-up, stable, decay
 *   TABLE     b * factor, linear between points by step; flat before the first, behind the last
 *   DRIVEN    what rank 0 of the round gives with its commit: cairn_group_lr; no warm-up
 * These are torch's LambdaLR and Hugging Face's get_*_schedule_with_warmup with k = last_epoch. The
 * coordinator computes the rates. A schedule has no state besides the step, so a restored job goes
 * on. */
#ifndef CAIRN_SCHEDULE_DEFINED
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
/* The decay of an average in the round with step k is 0 for k = 0, then cairn_group.ema (CONSTANT: torch's
 * AveragedModel), or min(ema, (1 + k) / (10 + k)) (WARMUP: diffusers' EMAModel). */
typedef enum cairn_ema_schedule { CAIRN_EMA_CONSTANT = 0, CAIRN_EMA_WARMUP = 1 } cairn_ema_schedule;
#endif

typedef enum cairn_placement {
    CAIRN_ROWS = 0, /* cut by rows over the shards */
    CAIRN_WHOLE = 1 /* all of it on one shard; refused by this version: CAIRN_ERR_UNSUPPORTED */
} cairn_placement;

typedef struct cairn_session cairn_session; /* a session with a cluster */
#ifndef __cplusplus
typedef cairn_session cairn; /* a short name; in C++ `cairn` may be a namespace */
#endif
typedef struct cairn_job cairn_job; /* a job of a session */
typedef struct cairn_op cairn_op;   /* an operation in progress */
typedef struct cairn_list
    cairn_list; /* tensors pushed or fetched together: cairn_push_list, cairn_fetch_list */

typedef enum cairn_role { CAIRN_WORKER = 1, CAIRN_READER = 2 } cairn_role;

/* A call that waits calls this function, in the thread of the call. The function must not call this
 * library. `text`, valid until the function returns, names whom and what the call waits for. If
 * paused_ms is above 0, a worker is in a pause (cairn_pause), and the call waits for that worker
 * beyond the call's own timeout, for at most paused_ms from now. Then the function is called
 * whenever the call's timeout has passed again, and every minute; if the function returns false, the
 * call ends with CAIRN_ERR_TIMEOUT. If paused_ms is 0, the function is called when the call has
 * waited for 5 s, and then every minute; `text` is the text that cairn_error() would have after a
 * CAIRN_ERR_TIMEOUT. The returned value is ignored then: the call waits until its own timeout.
 * cairn_job_open and cairn_init_done call the function, too, with paused_ms 0, before they return
 * from a job that is there with another spec or another initial state than this worker brings, and
 * goes on with its own: `text` has the job's step and what differs. */
typedef bool (*cairn_wait_fn)(void *context, const char *job, const char *text, int paused_ms);

/* A field that is not set is taken from the environment, or else from the default. If NULL is given
 * instead of the struct, every field is taken from the environment or the default. */
struct cairn_opts {
    size_t struct_size;
    /* The coordinator's address: "host:port", or the "/path" of its socket; of several coordinators, of which
     * one leads, all of their addresses, with commas. If NULL: CAIRN_ENDPOINT, then
     * cairn/coordinator.sock in $XDG_RUNTIME_DIR, else in /run */
    const char *endpoint;
    const char *name;       /* for logs and error texts; default "pid N on HOST" */
    int connect_timeout_ms; /* how long cairn_open tries; 0 = 10,000 */
    uint32_t reserved;      /* 0, like every reserved field; else CAIRN_ERR_INVALID */
    /* "auto", "mapped", "sealed", "stream", "ucx"; if NULL: CAIRN_FABRIC */
    const char *fabric;
    /* Network devices of the data path between hosts. If NULL: CAIRN_FABRIC_DEVICE, then the devices
     * of the routes to the shards (cairn_data_path) */
    const char *fabric_device;
    uint32_t prefetch_units; /* the window of cairn_prefetch for each job; 0 = 2 */
    uint32_t reserved_too;
    /* NULL: a call that waits prints a line a minute on standard error, and continues to wait */
    cairn_wait_fn on_wait;
    void *on_wait_context;
    /* CAIRN_GPU(n): this process computes on that GPU. Shards of this host whose state is on that
     * GPU share with this process the copies that they publish there, and do not copy them to host
     * memory if all members of a job read them on the GPU. CAIRN_ERR_UNSUPPORTED, CAIRN_ERR_INVALID:
     * as for cairn_alloc. 0: on no GPU */
    int device;
    uint32_t reserved_last;
    /* A file with the token that lets this process into the cluster; an endpoint of TCP needs one, a
     * socket needs none. It is a regular file of this user or of root that nobody else may read, and is
     * read again at each connection, so a token may be exchanged meanwhile. cairn-token in
     * $CREDENTIALS_DIRECTORY goes first, if there is one; if this is NULL, the file that CAIRN_TOKEN_FILE
     * names is taken */
    const char *token_file;
};

/* The launcher's description of this process. Rank is not identity: a restarted process has its
 * predecessor's rank, and after a change of membership the same work has another rank. Use this rank to
 * choose devices and files. Address the batch by cairn_round's rank and world. Store no state under
 * either rank. */
struct cairn_env {
    size_t struct_size;
    uint32_t rank, world; /* as the launcher sets them; without a launcher: 0, 1 */
    uint32_t local_rank;  /* among the processes of its node */
    uint32_t node_rank;
    uint64_t restarts; /* how often the launcher has restarted this process, as far as it tells */
    char launcher
        [16]; /* source of rank and world: "cairn", "torchrun", "slurm", "openmpi", "single" */
    char run_id[128];   /* "" if there is none */
    char endpoint[128]; /* the endpoint that cairn_open uses if its options have none */
};

struct cairn_tensor {
    size_t struct_size;
    const char *name; /* UTF-8, at most 255 bytes, unique in the job */
    const char *unit; /* tensors of one unit are fetched together; NULL = the tensor alone */
    /* the group of hyper-parameters; NULL = "default"; for trained tensors only */
    const char *group;
    cairn_dtype
        wire;      /* dtype of fetched values: CAIRN_F32 (or 0), CAIRN_BF16; of a blob CAIRN_U8 */
    uint32_t rank; /* 0 = a scalar */
    uint64_t shape[8];
    /* CAIRN_TRAINED (or 0). CAIRN_FROZEN and CAIRN_BUFFER are put, fetched and snapshotted, but
     * never optimized. CAIRN_BLOB is treated like these two, but has opaque bytes, not numbers: wire
     * and master are CAIRN_U8 (or 0), and rank is 1. A blob has no init and no alias, every worker
     * holds all of it, and it is put even if the other tensors come from init_from */
    cairn_kind kind;
    /* Makes this tensor another name of `alias_of`, or of a box of `alias_of`. `shape` is then the
     * target's, or the box's extents; an alias has no state, group or init of its own. With an alias
     * of the whole target every call acts on the target. With an alias of a box a fetch, and a put
     * in a write, act on that box. Initial puts and pushes of a box are copied (their operations
     * complete at once), and the target is sent when all of its boxes have been given; the target's
     * bits are the same as if one memory had held the whole target. The boxes of a target must have
     * no element in common (CAIRN_ERR_EXISTS) and be given in one dtype, and the target must not be
     * held in tiles. If only some of the boxes were pushed when a micro-batch ends, the other boxes
     * count as zeros. If no box was pushed, the target is absent from the micro-batch. */
    const char *alias_of;
    const struct cairn_box *alias_box; /* NULL = the whole target */
    cairn_dtype reduce, master;        /* CAIRN_F32 (or 0); master of a blob: CAIRN_U8 */
    cairn_placement place;             /* CAIRN_ROWS */
    struct cairn_init init;
    /* For a run that began elsewhere and continues here: how many of the cairn_job_spec.first_step
     * steps did not update this trained tensor, because the tensor was frozen or added later. The
     * tensor's own count of updates, which its bias corrections use, begins at first_step -
     * steps_missed; its moments are put. With steps_missed = first_step the tensor begins as a new
     * tensor. Workers that open the job later leave this field out, like first_step. */
    uint64_t steps_missed;
};

struct cairn_group {
    size_t struct_size;
    const char *name;      /* NULL = "default" */
    const char *optimizer; /* "adamw", "adam", "sgd" */
    /* 0 is not the default: begin with CAIRN_GROUP_INIT */
    double lr, beta1, beta2, eps, weight_decay, momentum;
    bool nesterov;
    uint8_t reserved[7]; /* 0 */
    /* Trained tensors that name no group belong to the first group in the list whose pattern matches their
     * name (fnmatch: "*.bias"), or to "default" if no pattern matches. A pattern that selects no
     * tensor is CAIRN_ERR_INVALID. NULL = only tensors that name the group. */
    const char *pattern;
    uint64_t warmup_steps, total_steps, decay_steps; /* see cairn_schedule_kind */
    double lr_min;
    const struct cairn_schedule_point *points; /* [point_count], at most 1024, steps ascending */
    size_t point_count;
    cairn_schedule_kind schedule;
    uint32_t reserved_last; /* 0 */
    /* Above 0 and below 1: the decay of the moving average of the parameters that the shards keep, as
     * the plane "ema" (client/README.md, "The arithmetic"). 0 = none */
    double ema;
    cairn_ema_schedule ema_schedule;
    uint32_t reserved_ema; /* 0 */
};
#define CAIRN_GROUP_INIT                                                                           \
    {                                                                                              \
        sizeof(struct cairn_group), NULL, "adamw", 1e-3, 0.9, 0.999, 1e-8, 0.0, 0.0, false,        \
            { 0, 0, 0, 0, 0, 0, 0 }, NULL, 0, 0, 0, 0.0, NULL, 0, CAIRN_SCHEDULE_CONSTANT, 0, 0.0, \
            CAIRN_EMA_CONSTANT, 0                                                                  \
    }

/* How much a worker keeps, adds up and pushes (stage n is written CAIRN_STAGE(n), so that 0 is the
 * default; any other number is CAIRN_ERR_INVALID).
 *   0  one shard holds all of the state; micro-batches are added up in fp32 and pushed once a round
 *   1  the state is cut over the shards; gradients are pushed once a round, as in stage 0
 *   2  every micro-batch is pushed
 *   3  the same as 2 for the servers and this library (cairn_map works at every stage); stage 3 says
 *      that the trainer keeps only a few units in memory, as the Python package does
 * With one micro-batch all stages give the same bits. With several micro-batches 0 and 1 give the same
 * bits, and 2 and 3 give the same bits. */
/* CAIRN_STAGE(n) is not the plain number n: a plain 1 could mean stage 0 or stage 1. */
#define CAIRN_STAGE(n) (0x100u + (n))

struct cairn_job_spec {
    size_t struct_size;
    const struct cairn_tensor *tensors; /* [tensor_count], in any order */
    size_t tensor_count;
    const struct cairn_group *groups; /* [group_count] */
    size_t group_count;
    uint32_t rank; /* this worker's rank; unique in the job: see open_flags */
    /* The next lines are made by tests/tree/spec_fields.py. */
    /* The fewest workers with which a round opens; 0 = 1 */
    uint32_t workers_min;
    /* Bound of the global gradient norm; 0 = none */
    double clip_norm;
    /* At the start of the job; 0 = 1 */
    double loss_scale;
    /* The effect of a gradient that is not finite on its round: CAIRN_NONFINITE_SKIP (the
     * default), or CAIRN_NONFINITE_FAIL */
    cairn_nonfinite on_nonfinite;
    /* Leaves of 4096 elements in a message; 0 = 64 */
    uint32_t chunk_leaves;
    /* Chunks in flight to each shard; 0 = 8. More may be in flight: up to 64 chunks of at most
     * 16 KiB, and as many chunks as keep a card busy if the shard reads their memory in place */
    uint32_t window;
    /* Bounds of CAIRN_LOSS_SCALE_DYNAMIC. 0 means 1 (or loss_scale, if that is below 1) for the
     * minimum, and loss_scale for the maximum */
    double loss_scale_min;
    /* See loss_scale_min */
    double loss_scale_max;
    /* 0 = CAIRN_LOSS_SCALE_DYNAMIC if loss_scale is above 1, else CAIRN_LOSS_SCALE_FIXED */
    cairn_loss_scale loss_scale_policy;
    /* With CAIRN_LOSS_SCALE_DYNAMIC: rounds until the scale is doubled; 0 = 2000 */
    uint32_t loss_scale_growth_steps;
    /* CAIRN_STAGE(0) to CAIRN_STAGE(3); 0 = CAIRN_STAGE(2) */
    uint32_t stage;
    /* The most micro-batches that each worker has in a round: a push into a later micro-batch is
     * CAIRN_ERR_INVALID. 0 = 1, or any number in stages 2 and 3, which add nothing up. With
     * global_batch leave this field 0 or 1 */
    uint32_t micro_batches;
    /* From here on by hand. */
    /* The weights that the shards begin with; each shard reads its own part. This is a .safetensors
     * file, a folder of Hugging Face, or the folder of a snapshot. The snapshot's optimizer state and
     * step are not read. The path is absolute, on the shards' hosts, in a folder that their
     * import.folders allows. Dtypes: F32, BF16, F16 and F64. Every tensor must be in the files, by its
     * name or by init_prefix + its name, or have an initializer (else CAIRN_ERR_MISMATCH). Trained and
     * frozen tensors must be finite as fp32, unless init_nonfinite_ok (else CAIRN_ERR_NONFINITE). Every
     * weight of these dtypes in the files must belong to a tensor, unless init_extra_ok (else
     * CAIRN_ERR_MISMATCH). cairn_error() has the list. NULL = none. */
    const char *init_from;
    const char *init_prefix; /* "model."; NULL = none */
    /* The next lines are made by tests/tree/spec_fields.py. */
    /* The most bytes of client state that cairn_commit may give; 0 = none; at most 65536 */
    uint32_t client_state_max;
    /* init_from may have weights that are NaN or infinite */
    bool init_nonfinite_ok;
    /* CAIRN_GROUPS_NONE, or CAIRN_GROUPS_HOST; there are no groups while the workers hold tiles
     * (cairn_tiles). No amendment changes it. */
    cairn_reduce_groups reduce_groups;
    /* The most rounds that may be skipped in a row with the loss scale at its minimum (or
     * fixed). After that no further round opens: cairn_round_begin says CAIRN_ERR_HALTED, until
     * the job is amended, written or restored. 0 = 100 */
    uint64_t skips_max;
    /* A periodic snapshot is taken of each version whose step is a multiple of snapshot_every,
     * so every run saves the same steps. 0 = none, or by time (snapshot_every_s). The newest
     * snapshot_keep periodic snapshots are retained (0 = all). A snapshot that somebody asked
     * for is never removed. If a periodic snapshot fails, the coordinator's log and `cairn job
     * show` say so, and training continues; the next periodic snapshot is tried at its own step.
     * No periodic snapshot is taken while results are not finite (cairn_result.nonfinite). */
    uint64_t snapshot_every;
    /* Only with snapshot_every or snapshot_every_s; 0 = all are retained */
    uint64_t snapshot_keep;
    /* The coordinator's reaction when a shard has lost its part: CAIRN_SHARD_LOSS_WAIT (the
     * default), or CAIRN_SHARD_LOSS_RESTORE_LATEST */
    cairn_shard_loss on_shard_loss;
    /* With CAIRN_SHARD_LOSS_RESTORE_LATEST: seconds; 0 = 300 */
    uint32_t shard_loss_wait_s;
    /* The most workers at a time: one more waits in cairn_job_open for a place, until
     * CAIRN_ERR_TIMEOUT. 0 = as many as the cluster's round.workers_max. If workers_min equals
     * workers_max (always n workers), the spec also matches a job whose bounds allow n, for
     * example in another launch after an amendment. */
    uint32_t workers_max;
    /* From here on by hand. */
    /* How many workers start together; not part of the job. The first round after all workers were
     * gone waits for this many workers, so that the first to arrive does not train alone, but for no
     * longer than start_wait_ms after one of these workers arrived. At most workers_max workers can
     * attach, so with a world above workers_max the round waits for all of start_wait_ms. 0 = wait
     * for workers_min workers only. After CAIRN_ERR_ROLLED_BACK give the world of the last round, so
     * that no round waits for workers that had left before. */
    uint32_t world;
    uint64_t start_wait_ms; /* with world; 0 = 30000 */
    /* How a worker opens the job; not part of the job. CAIRN_OPEN_RESUME: if the cluster has no such
     * job, or has lost it, the coordinator first restores the job's newest complete snapshot, once for
     * all workers that open it with this flag; without a snapshot the job is begun anew.
     * CAIRN_OPEN_MUST_EXIST: CAIRN_ERR_NOT_FOUND instead of beginning the job anew.
     * CAIRN_OPEN_MUST_NOT_EXIST: CAIRN_ERR_EXISTS if the job has taken a step, or is lost; so several
     * workers may begin a job with this flag. With any flags a job that differs from the spec gives
     * CAIRN_ERR_MISMATCH, restored or not.
     *   A rank belongs to one process. Another process that opens the job with this rank waits until
     * the first process is gone, for lease.timeout at most, and then gets CAIRN_ERR_PLACE_TAKEN.
     * cairn_job_open takes the place at once in three cases: with CAIRN_OPEN_TAKEOVER; in the session
     * that has the place; or if the launcher has restarted the process, so that the run id is the same
     * and the restart count is higher (struct cairn_env). The process that lost the place gets
     * CAIRN_ERR_FENCED, and has to exit. */
    uint64_t open_flags;
    /* The next lines are made by tests/tree/spec_fields.py. */
    /* The fraction of each shard's part of the job, 0 to 1, that lies in host memory; the rest
     * lies on a GPU. The part in host memory consists of whole chunks, at least this fraction.
     * The CPU updates these chunks while the GPU works on the rest, with the same bits at any
     * fraction. At 1 nothing of the job is on the GPU, and the job continues if the GPU fails.
     * If all state lies in host memory anyway, the fraction has no effect, and the log says so.
     * A restored job has the same fraction. */
    double offload_fraction;
    /* Where the planes of an element lie: CAIRN_TIERS_TOGETHER (the default); the others are
     * refused */
    cairn_tiers tiers;
    /* Elastic workers with the same bits: a step consists of this many micro-batches, numbered
     * from 0, whatever the number of workers (1 to 65536; 0 = none, each worker has its
     * micro_batches). struct cairn_round says which micro-batches are this worker's. Each
     * micro-batch is pushed separately, with its weight. The result of N steps then does not
     * depend on how many workers there were, nor on when they joined and left, if the gradients
     * of a micro-batch depend on nothing but the round's version, the micro-batch and its seed
     * (cairn_micro_seed). Learning rates and schedules depend on steps, so another number of
     * workers does not change them. If there are more workers than micro-batches, the surplus
     * workers are told so and stay idle; they take part when other workers leave. Needs stage 2
     * or 3, micro_batches 0 or 1, no reduce_groups, no tiles (else CAIRN_ERR_INVALID). An
     * amendment changes global_batch by its name (cairn_amend.settings), and the seed likewise. */
    uint64_t global_batch;
    /* For cairn_micro_seed; below 2^53 */
    uint64_t seed;
    /* The coordinator's reaction when a worker was lost: CAIRN_WORKER_LOSS_REDO (the default),
     * CAIRN_WORKER_LOSS_WAIT or CAIRN_WORKER_LOSS_FAIL */
    cairn_worker_loss on_worker_loss;
    /* With CAIRN_WORKER_LOSS_WAIT: seconds; 0 = 300 */
    uint32_t worker_loss_wait_s;
    /* Steps; 0 = no such rule. Rules that retain periodic snapshots beside the newest
     * snapshot_keep; any one rule is enough to retain a snapshot, and without a rule all are
     * retained. keep_every: the first snapshot in every interval of this many steps is retained
     * for good. max_bytes bounds all snapshots of the job together; above this bound the oldest
     * snapshots are removed, except those that keep_every or a tag retains. Snapshots that
     * somebody asked for or that have a tag are always retained, and so is the newest verified
     * one; a snapshot is removed only after a newer one was verified. Give these rules only with
     * snapshot_every or snapshot_every_s */
    uint64_t snapshot_keep_every;
    /* 0 = no bound */
    uint64_t snapshot_max_bytes;
    /* Used instead of snapshot_every: seconds from the start of one periodic snapshot to the
     * next, which is taken at the first step after these seconds */
    uint32_t snapshot_every_s;
    /* Seconds: retains all that are younger; 0 = no such rule */
    uint32_t snapshot_keep_within_s;
    /* Every snapshot is to be on disk so many seconds after its cut; 0 = no deadline */
    uint32_t snapshot_durable_within_s;
    /* Every snapshot is read again and checked; 0 = by command only */
    uint32_t snapshot_scrub_every_s;
    /* Room for what updates overwrite while a snapshot is written: CAIRN_SNAPSHOT_STAGING_STATE
     * (the default), or CAIRN_SNAPSHOT_STAGING_SMALL */
    cairn_snapshot_staging snapshot_staging;
    /* A restore that finds a snapshot damaged takes the newest good one before it */
    bool snapshot_fallback;
    /* For a run that began elsewhere and continues here: the step of the version that the job
     * begins with. Schedules and the optimizer's corrections continue from this step. The
     * moments are written (cairn_write_begin) before the first round. Workers that open the job
     * afterwards may leave this field out. */
    uint64_t first_step;
    /* The treatment of a trained tensor to which nobody pushed a gradient in a round:
     * CAIRN_MISSING_ZERO (the default), or CAIRN_MISSING_LEAVE, for jobs of at most 24,576
     * tensors */
    cairn_missing missing_gradients;
    /* init_from may have more weights than the job has tensors */
    bool init_extra_ok;
    /* If not 0, a worker of the job writes its buffers (cairn_write_begin) after each applied
     * step that is a multiple of this or of snapshot_every, before the next round: the periodic
     * snapshot of that step then saves the version that the write makes; without one, the next
     * version. 0: none */
    uint64_t buffers_every;
    /* Every so many steps all state is compared with its checksums (deploy/README.md) */
    uint64_t audit_every;
    /* The losses that cost no step; refused if the cluster lacks what that takes */
    cairn_durability durability;
    /* `cairn job rollback` goes back to any of so many last versions; shards keep them in host
     * memory, 12 bytes a parameter each with AdamW. At most 64; 0 = none */
    uint64_t keep_versions;
    /* From here on by hand. */
};
#define CAIRN_OPEN_MUST_EXIST     1
#define CAIRN_OPEN_RESUME         2
#define CAIRN_OPEN_MUST_NOT_EXIST 4
#define CAIRN_OPEN_TAKEOVER       8

/* The box of a tensor that a worker holds. An extent of 0: the worker holds nothing of the tensor. */
struct cairn_tile {
    size_t struct_size;
    const char *tensor;
    struct cairn_box box;
};

/* Memory of the whole tensor (or box). */
struct cairn_mem {
    size_t struct_size;
    void *ptr; /* the box's first element; put and push only read the memory */
    /* put: CAIRN_F32; push: CAIRN_F32 or CAIRN_BF16; fetch: the plane's dtype. A blob is CAIRN_U8, and
     * a box from 0 to the blob's end is refused if the blob has another length */
    cairn_dtype dtype;
    /* Elements from one index of a dimension to the next, as torch's tensor.stride(). All 0: dense,
     * row-major in the box. Strides are not negative, and in a fetch no two elements may share
     * memory (CAIRN_ERR_INVALID). Memory that is not dense is copied chunk by chunk as it is sent or
     * received (cairn_stats.packed_bytes). */
    int64_t stride[8];
    int device; /* 0 = host; CAIRN_GPU(n): memory of cairn_alloc or any other */
    /* The cudaStream_t that writes or reads the memory; NULL: the default stream. For host memory:
     * NULL */
    void *stream;
    /* The number of bytes at ptr; 0: not given. If it is given, put, push and fetch compare it with
     * what they would read or write (CAIRN_ERR_INVALID): dense memory must have exactly the box's
     * bytes, memory with strides must include at least the last element. Always give it: no other check
     * detects memory that was meant for another tensor, box or dtype than this call */
    size_t bytes;
};
/* In every `device` of this interface: 0 is the host. A plain number names no GPU, and is refused. */
#define CAIRN_GPU(n) ((n) + 0x100)

struct cairn_round {
    size_t struct_size;
    uint64_t round; /* from 1; never used twice in a job, not even after a void round */
    uint64_t step;  /* updates applied before this round, which makes step + 1 */
    uint64_t epoch; /* of the membership: grows by one when a member joins or leaves */
    struct cairn_version version; /* compute with this version */
    /* This worker's place among the round's contributors, 0 to world - 1, and the number of
     * contributors: address the batch by both. A surplus worker has a rank of world or more, and
     * contributes nothing */
    uint32_t rank, world;
    double loss_scale; /* multiply the loss by loss_scale before backward */
    uint64_t revision; /* of the spec: grows by one with every amendment */
    /* How many micro-batches this worker has. With global_batch the micro-batches are numbered over
     * all workers, and those of this worker are rank, rank + world, rank + 2 * world, ... below
     * global_batch; 0: this worker is surplus. A surplus worker commits like any other worker; its
     * commit waits for the round's end */
    uint32_t micro_batches;
    uint32_t job; /* the open job of this process that the round belongs to; other jobs refuse it */
    /* skips: how many rounds of the job were skipped before this one. index: the number of the
     * batch, which is step + skips. A skipped round leaves the step unchanged and uses up its batch;
     * a void round does not count, and its batch is repeated. */
    uint64_t skips, index;
    uint64_t seed;         /* the job's seed; see cairn_micro_seed */
    uint64_t global_batch; /* micro-batches of the step; 0: each worker has micro_batches */
};

struct cairn_result {
    size_t struct_size;
    uint64_t step;
    struct cairn_version version; /* after the round */
    double grad_norm;  /* L2, of the mean gradient of all trained tensors before the clip; or NaN */
    double clip_scale; /* the factor that clipping applied to the mean; 1: not clipped */
    double lr;         /* of the group whose name is first in bytewise order, in this round */
    bool applied;      /* false: skipped */
    bool finite;
    uint64_t skips, index; /* as of the round's end; index: the number of the next batch */
    /* If applied: the number of elements whose parameter, moment or published copy is not finite,
     * although the gradients were. If skipped: the number of elements whose gradient, summed over
     * the workers, is not finite. nonfinite_tensors lists the tensors and their numbers of such
     * elements, as "a.weight (3), b (9) and others". "": there are none, or the call was made too late,
     * because the version was no longer the newest, or the coordinator had restarted since the skip. */
    uint64_t nonfinite;
    char nonfinite_tensors[512];
};

struct cairn_stats {
    size_t struct_size;
    uint64_t pushed_bytes, fetched_bytes, put_bytes; /* payload, resent bytes included */
    uint64_t accumulated_bytes; /* memory of gradients that are added up, stages 0 and 1 */
    /* Memory of gathered units, prefetched or mapped, now and at its peak: at most window times the
     * largest unit, unless a map exceeds the window. */
    uint64_t mapped_bytes, mapped_bytes_peak;
    uint64_t maps, maps_prefetched, maps_over_window;
    uint64_t prefetches_dropped; /* for lack of room in the window, or of memory */
    /* Bytes of copies, now and at their peak. packed: chunks of memory with strides; assembled: tensors
     * given by aliases of boxes. */
    uint64_t packed_bytes, packed_bytes_peak, assembled_bytes, assembled_bytes_peak;
    uint64_t maps_lent; /* units mapped where shards of this host published them */
    /* The parts of pushed_bytes and fetched_bytes that went through memory which this process
     * shares with shards. A lent unit is counted when it is lent. */
    uint64_t shared_pushed_bytes, shared_fetched_bytes;
    /* the parts of the shared bytes that stayed on a card, and never passed through the host */
    uint64_t device_pushed_bytes, device_fetched_bytes;
};

/* A tensor of a unit that cairn_map gathered: dense, row-major, aligned to 64 bytes, read only. */
struct cairn_view {
    size_t struct_size;
    const char
        *tensor; /* owned by the library, like ptr: valid until cairn_unmap or cairn_job_close */
    const void *ptr;
    cairn_dtype dtype; /* the tensor's wire dtype */
    uint32_t rank;
    uint64_t shape[8]; /* of this worker's part (cairn_tiles), or of the whole tensor */
    uint64_t loan;     /* for cairn_unmap */
};

/* Reads CAIRN_ENDPOINT, and the first set of variables that is present: CAIRN_RANK CAIRN_WORLD
 * CAIRN_LOCAL_RANK CAIRN_RUN_ID, or the variables of torchrun, or those of Slurm, or those of Open MPI.
 * CAIRN_ERR_INVALID names a variable that cannot be read, its value and what is allowed, or names the
 * variable of rank or world that is missing. `cairn env` prints the result. */
CAIRN_EXPORT cairn_status cairn_env_read(struct cairn_env *out) CAIRN_CHECKED;
/* Connects to the coordinator; opts may be NULL. CAIRN_ERR_UNREACHABLE after connect_timeout_ms,
 * CAIRN_ERR_VERSION, CAIRN_ERR_INVALID; CAIRN_ERR_REFUSED: this user may not use the coordinator's
 * socket. A session outlives the coordinator: the session reconnects by itself, and calls wait for the
 * connection until their own deadline. */
CAIRN_EXPORT cairn_status cairn_open(const struct cairn_opts *opts,
                                     cairn_session **out) CAIRN_CHECKED;
/* Closes jobs that are open, fails operations in progress and every call that waits, and returns
 * loans; takes about a second at most, even if a shard or the coordinator is stopped. For GPU memory of
 * cairn_alloc the rule of cairn_free holds: no work that is still queued on a stream may touch that
 * memory. */
CAIRN_EXPORT void cairn_close(cairn_session *session);
/* Returns the name of a status, such as "CAIRN_ERR_BUSY", or "CAIRN_ERR_?" for a number that is no
 * cairn_status. The library owns the string, which is always valid; the function may be called
 * anywhere. */
CAIRN_EXPORT const char *cairn_status_name(int status);
/* Returns the version of the loaded library, such as "0.1.0"; CAIRN_VERSION is the version of the
 * header. The string is always valid. The function may be called anywhere, like cairn_status_name. */
CAIRN_EXPORT const char *cairn_version(void);
/* Returns this thread's last error: what failed, why, and what to do. The text is valid until the
 * thread's next call. Never NULL. */
CAIRN_EXPORT const char *cairn_error(void);
/* How the job can be changed to match a spec. */
typedef enum cairn_change {
    CAIRN_CHANGE_NEXT_ROUND = 0, /* an amendment, in force from the next round on */
    CAIRN_CHANGE_REOPENED = 1,   /* an amendment, after which every handle is opened again */
    /* `cairn job create NAME --from JOB/ID --set KEY=VALUE`: a new job made from its snapshot */
    CAIRN_CHANGE_CREATED = 2,
    /* no change is possible: give the values that the job has, or choose another name */
    CAIRN_CHANGE_NEVER = 3
} cairn_change;
/* One of the differences behind a CAIRN_ERR_MISMATCH of cairn_job_open. */
struct cairn_difference {
    size_t struct_size;
    const char *text; /* "job mnist: stage 3 here, 2 on the servers" */
    /* The setting (struct cairn_setting) that makes the job match the spec: "stage", "3". key NULL:
     * no setting makes the job match. value NULL: the value is not a short text (a schedule's
     * points, say) */
    const char *key, *value;
    cairn_change change;
    /* If a tensor differs: its name, the field in which it differs ("kind", "group", "wire dtype",
     * "shape"), and the value of that field on the servers; field "only here" or "only there": only
     * one side has the tensor. NULL: the difference is in the job or a group, or nothing more is
     * known */
    const char *tensor, *field, *there;
};
/* Gives the index-th difference of this thread's last error, if that error is CAIRN_ERR_MISMATCH of
 * cairn_job_open. As many differences as fit are kept, 64 at most. Strings are valid until the thread's
 * next call. CAIRN_ERR_NOT_FOUND: index is past the last difference; the thread's error does not
 * change. Set out->struct_size first. */
CAIRN_EXPORT cairn_status cairn_error_difference(size_t index,
                                                 struct cairn_difference *out) CAIRN_CHECKED;

/* Allocates shared memory, which shards of this host may map: whole pages of zeros, valid until
 * cairn_free or the end of cairn_close. The memory is allocated at once, not when it is touched, in
 * large pages if the kernel has them. The memory is lent to put, push or fetch like any other
 * memory; a range that extends beyond the memory's end is CAIRN_ERR_INVALID. CAIRN_ERR_NO_MEMORY:
 * not enough memory is free, or the process may not have that much. If the limit of a container is
 * exceeded, the kernel may kill a process of the container instead. device: 0 = host; CAIRN_GPU(n):
 * memory that shards on that GPU read in place, in units of 2 MiB. With some drivers this call, like
 * cairn_map_device, waits for the streams that wait on that GPU (cairn_stream_wait); the session
 * continues meanwhile. */
CAIRN_EXPORT cairn_status cairn_alloc(cairn_session *session, size_t bytes, int device,
                                      void **out) CAIRN_CHECKED;
/* Frees memory of cairn_alloc. CAIRN_ERR_BUSY: the memory is not freed, because an operation has it on
 * loan. CAIRN_ERR_INVALID: the memory does not come from cairn_alloc. When GPU memory is freed, no work
 * that is still queued on any stream may touch the memory. This call waits for no stream; the memory is
 * released when no stream waits. */
CAIRN_EXPORT cairn_status cairn_free(cairn_session *session, void *ptr) CAIRN_CHECKED;
/* Announces memory that pushes and fetches will use repeatedly. This version always returns
 * CAIRN_ERR_UNSUPPORTED: the memory is staged, and may be used without registration. */
CAIRN_EXPORT cairn_status cairn_register(cairn_session *session, void *ptr, size_t bytes,
                                         int device) CAIRN_CHECKED;
/* Ends a registration: the memory may be freed, and belongs to the caller alone again.
 * This version always returns CAIRN_ERR_INVALID: the memory is not registered. */
CAIRN_EXPORT cairn_status cairn_unregister(cairn_session *session, void *ptr) CAIRN_CHECKED;

/* cairn_detach_memory unmaps all memory that shards of this host share with this process, on GPUs too,
 * and cairn_attach_memory maps it again. This is for checkpoints (cuda-checkpoint): a process that maps
 * another process's GPU memory cannot be restored from a checkpoint. Memory of cairn_alloc stays:
 * free GPU memory before detach. Between the two calls nothing arrives from these shards, and calls
 * that need these shards wait. CAIRN_ERR_BUSY names what is open: a round that is not committed, an
 * operation, a mapped unit. Prefetched units are dropped. CAIRN_ERR_TIMEOUT: nothing has changed. */
CAIRN_EXPORT cairn_status cairn_detach_memory(cairn_session *session, int timeout_ms) CAIRN_CHECKED;
CAIRN_EXPORT cairn_status cairn_attach_memory(cairn_session *session, int timeout_ms) CAIRN_CHECKED;

/* Returns a borrowed descriptor that becomes readable when an operation completes (read 8 bytes to
 * clear it). -1: wrong handle. */
CAIRN_EXPORT int cairn_event_fd(const cairn_session *session);

/* Returns a text for logs that says how bulk data travels, as "auto; between hosts by 10.77.0.1 eth1
 * tcp, chosen by the routes to the shards". The text is constant, and borrowed until cairn_close. NULL:
 * wrong handle. */
CAIRN_EXPORT const char *cairn_data_path(const cairn_session *session);

/* Creates the job or attaches to it. WORKER: `spec` must equal the job's spec, else CAIRN_ERR_MISMATCH,
 * with the differences in cairn_error(). READER: spec NULL; CAIRN_ERR_NOT_FOUND if there is no such
 * job. Waits for the shards that the coordinator expects. CAIRN_ERR_EXISTS: the job is already open in
 * this session, and a session can be only one member of a job. CAIRN_ERR_REFUSED: 64 jobs are open in
 * this session. CAIRN_ERR_INVALID: the name or the spec is not valid, and the error gives field,
 * value and what is allowed; CAIRN_ERR_UNSUPPORTED; CAIRN_ERR_NO_MEMORY, CAIRN_ERR_NO_SPACE: the
 * shards have no room; CAIRN_ERR_NONFINITE, CAIRN_ERR_IO: init_from cannot be used;
 * CAIRN_ERR_JOB_LOST. CAIRN_ERR_PLACE_TAKEN, CAIRN_ERR_EXISTS: see open_flags. CAIRN_ERR_TIMEOUT:
 * nothing is open here; a job that did not exist may have been created, or may still be created,
 * with this spec. The call may be repeated, and then finds that job. */
CAIRN_EXPORT cairn_status cairn_job_open(cairn_session *session, const char *name,
                                         const struct cairn_job_spec *spec, cairn_role role,
                                         int timeout_ms, cairn_job **out) CAIRN_CHECKED;
/* The job as the servers have it. The library owns the strings, which are valid until
 * cairn_job_close. */
struct cairn_job_info {
    size_t struct_size;
    const char *name;
    size_t tensor_count, group_count;
    uint32_t rank, workers_min;
    /* clip_norm: of the last round, amendment or attach of this session; loss_scale: at the job's start */
    double clip_norm, loss_scale;
    cairn_nonfinite on_nonfinite;
    struct cairn_version newest; /* the newest version that this session knows of */
    bool initialized;
    uint32_t stage; /* CAIRN_STAGE(n) */
    uint32_t micro_batches;
    uint32_t client_state_max;
    cairn_reduce_groups reduce_groups;
    uint32_t workers_max; /* 0: as many as the cluster's round.workers_max */
    uint64_t global_batch, seed;
    uint64_t revision; /* how many amendments there were when this handle was opened */
    /* These fields are as of this session's first opening of the job. made_by: the worker that had
     * created the job ("worker trainer-4711"; "": not known). found: the job had taken steps by
     * then; found_step: its step */
    const char *made_by;
    uint64_t found_step;
    bool found;
};
CAIRN_EXPORT cairn_status cairn_job_describe(cairn_job *job,
                                             struct cairn_job_info *out) CAIRN_CHECKED;
/* Gives the index-th tensor, by name in bytewise order. CAIRN_ERR_NOT_FOUND: index is past the last
 * tensor. Set out->struct_size first. */
CAIRN_EXPORT cairn_status cairn_job_tensor(cairn_job *job, size_t index,
                                           struct cairn_tensor *out) CAIRN_CHECKED;
/* *has_out: the shards keep that plane of the tensor: "ema", of a group with an average.
 * CAIRN_ERR_NOT_FOUND: there is no such tensor, or no such plane of any. */
CAIRN_EXPORT cairn_status cairn_job_has_plane(cairn_job *job, const char *tensor, const char *plane,
                                              bool *has_out) CAIRN_CHECKED;
/* Leaves the job. A round that this worker has not committed is abandoned for the others. Operations in
 * progress fail with CAIRN_ERR_CANCELED, and must still be given to cairn_wait, which frees them. */
CAIRN_EXPORT void cairn_job_close(cairn_job *job);

/* Tensor parallelism: declares which boxes this worker holds; the ranks are 0 to world - 1. A tensor
 * that is not listed is held whole. Any two ranks must hold the same box (replicas) or boxes without a
 * common element, and all ranks together must hold every tensor; CAIRN_ERR_MISMATCH names the tensor,
 * the ranks, and the overlap or the hole. The call is collective: every worker makes the call after
 * opening the job, and the call returns when all workers have made it. CAIRN_ERR_TIMEOUT names the
 * workers that have not made it. All workers may make the call again between rounds, with other
 * boxes if needed; within a round the call is CAIRN_ERR_BUSY. Rounds then consist of exactly these
 * ranks; a worker that replaces a dead worker also declares its boxes. Every worker holds whole
 * tensors if the call was never made, or was last made with world 0. A job with global_batch has no
 * tiles: CAIRN_ERR_REFUSED. */
CAIRN_EXPORT cairn_status cairn_tiles(cairn_job *job, const struct cairn_tile *tiles,
                                      size_t tile_count, uint32_t world,
                                      int timeout_ms) CAIRN_CHECKED;

/* Makes `name` another name of `alias_of`, which must have the same shape, kind and wire dtype; the
 * state of `name` is dropped. */
struct cairn_tie {
    const char *name, *alias_of;
};
/* A field of the job's spec, in words: key "stage", value "3". Keys are the names of the scalars of
 * struct cairn_job_spec; "GROUP.lr" and the other hyper-parameters of a group, "GROUP.schedule"
 * ("cosine", say) and its numbers; "wire" ("f32", "bf16"), for all tensors but blobs, or
 * "TENSOR.wire". Values are numbers, the words that `cairn capabilities` lists, "yes" and "no". */
struct cairn_setting {
    const char *key, *value;
};
/* A change to a job while it trains: any worker of the job makes the change, and the change holds for
 * all workers. */
struct cairn_amend {
    size_t struct_size;
    /* The revision that the job must have (struct cairn_round), else CAIRN_ERR_STALE; 0 = any */
    uint64_t revision;
    /* The groups with these names get these hyper-parameters and schedules. The optimizer must stay the
     * same and keep the same state: SGD cannot gain or lose its momentum */
    const struct cairn_group *groups;
    size_t group_count;
    /* Groups whose tensors do not change from now on: the tensors get no gradient (cairn_push gives
     * CAIRN_ERR_REFUSED) and no decay, and do not count in the norm. Their state is kept */
    const char *const *freeze;
    size_t freeze_count;
    const char *const *unfreeze;
    size_t unfreeze_count;
    double clip_norm; /* used if set_clip_norm; 0 = no clipping */
    bool set_clip_norm;
    uint8_t reserved[7]; /* 0, like every reserved field; else CAIRN_ERR_INVALID */
    /* The same as freeze and unfreeze, for single trained tensors; whether their group is frozen
     * does not change */
    const char *const *freeze_tensors;
    size_t freeze_tensor_count;
    const char *const *unfreeze_tensors;
    size_t unfreeze_tensor_count;
    /* [unfreeze_tensor_count] or NULL: the group for each tensor that was declared CAIRN_FROZEN and is
     * trained from now on; the tensor's moments begin at 0. NULL: the job's only group, else
     * "default" */
    const char *const *unfreeze_tensor_groups;
    /* New tensors. Each needs an init, since no worker puts it; a trained tensor that names no group
     * joins "default". An alias is refused: add the tensor, and tie it (ties) */
    const struct cairn_tensor *add;
    size_t add_count;
    const struct cairn_tie *ties; /* done after add */
    size_t tie_count;
    uint64_t snapshot_every, snapshot_keep; /* used if set_snapshots; as in cairn_job_spec */
    cairn_shard_loss on_shard_loss;         /* used if set_shard_loss, as is shard_loss_wait_s */
    uint32_t shard_loss_wait_s;
    bool set_snapshots, set_shard_loss;
    uint8_t reserved_losses[2];
    /* Bounds of the number of workers, as in cairn_job_spec. The bounds take effect at once: if
     * workers_min is lowered, waiting workers continue without the missing workers. Attached workers
     * stay, so a workers_max below their number is CAIRN_ERR_BUSY. workers_min 0: both bounds stay
     * unchanged. */
    uint32_t workers_min, workers_max;
    cairn_worker_loss on_worker_loss; /* used if set_worker_loss, as is worker_loss_wait_s */
    uint32_t worker_loss_wait_s;
    bool set_worker_loss;
    uint8_t reserved_rules[3];
    /* all of these are used if set_snapshot_rules; as in struct cairn_job_spec */
    uint64_t snapshot_keep_every, snapshot_max_bytes;
    uint32_t snapshot_every_s, snapshot_keep_within_s, snapshot_durable_within_s,
        snapshot_scrub_every_s;
    cairn_snapshot_staging snapshot_staging;
    bool snapshot_fallback, set_snapshot_rules;
    uint8_t reserved_settings[2];
    /* Fields of the spec by their names, at most 1,024; they are changed last. cairn_job_amend makes a
     * new generation for stage (1, 2 and 3), micro_batches, global_batch, seed, wire, window,
     * client_state_max, on_nonfinite, skips_max, missing_gradients, and loss_scale (which begins anew)
     * with its policy and bounds. CAIRN_ERR_UNSUPPORTED: the field can be changed only in a new job
     * made from a snapshot (chunk_leaves, spread, reduce_groups, offload_fraction, buffers_every, stage
     * 0), and the error gives the `cairn job create` that makes that job; or the field says how the
     * job began, and can never be changed. CAIRN_ERR_INVALID names field, value and what is
     * allowed. */
    const struct cairn_setting *settings;
    size_t setting_count;
};
/* Amends the job at a step boundary: CAIRN_OK means that the amendment is durable and that the next
 * round that opens uses it; an open round ends under the terms that it began with. Workers may attach
 * with the spec from before the amendment or from after it. Schedules depend on the step of the job,
 * not on steps since the amendment. Bias corrections, and SGD's first momentum, depend on each tensor's
 * own count of updates, as in torch: a step in which the tensor was frozen does not count, and a tensor
 * that is added, or trained for the first time, begins with its own first update. An amendment is
 * refused as a whole or done as a whole: CAIRN_ERR_INVALID (also if more than 24,576 runs of
 * neighbouring tensors, in the order of names, would have counts of their own), CAIRN_ERR_NOT_FOUND (no
 * such group or tensor), CAIRN_ERR_EXISTS (a tensor of that name), CAIRN_ERR_UNSUPPORTED (another
 * optimizer), CAIRN_ERR_STALE.
 *   Tensors that are added, tied, or trained for the first time, and settings that need a new
 * generation (cairn_amend.settings), make a new version, (generation + 1, the same step), of the
 * state that the shards have. An open round of the caller is void (CAIRN_ERR_EPOCH_CHANGED); then
 * every handle of the job, the caller's too, gives CAIRN_ERR_REOPEN, because the job's tensors or
 * terms have changed: close the handle and open the job again. A worker with the spec from before
 * the amendment may continue with that spec, and may push and fetch the new tensors as well; the
 * worker contributes nothing to tensors that it does not push. A worker that lists the new tensors
 * may leave their init out. CAIRN_ERR_BUSY: a snapshot or digest is being taken.
 * CAIRN_ERR_NOT_READY: a shard is away. CAIRN_ERR_NO_MEMORY: a shard has no room for the old and the
 * new part together; the error gives the numbers. After these errors the job continues unchanged;
 * after CAIRN_ERR_TIMEOUT the job may still be amended. */
CAIRN_EXPORT cairn_status cairn_job_amend(cairn_job *job, const struct cairn_amend *amend,
                                          int timeout_ms) CAIRN_CHECKED;

/* Puts initial state: `plane` is "param", `box` is the box that this worker holds, or NULL, which means
 * the same. The worker of rank 0 may also put whole "exp_avg" and "exp_avg_sq" of trained tensors, in
 * CAIRN_F32, for example from a checkpoint. Moments that are not put are 0, and so are the moments from
 * a worker that was gone before its cairn_init_done. Without tiles the worker of rank 0 puts
 * everything. With tiles every worker puts what it holds (replicas put the same values: cairn_init_done
 * compares them), or rank 0 puts every tensor whole, giving the whole tensor's box. Each plane is put
 * once: CAIRN_ERR_EXISTS if it was put already, if the shards make it (init, init_from), or if the job
 * is already initialized; then a parameter is only hashed. A job is initialized without any put if the
 * shards make all of its tensors. Without tiles a worker of another rank may put the same tensors
 * before the first update: these tensors are not sent, but cairn_init_done compares them with the
 * tensors of rank 0; moments are not compared. The values are not checked: if one is NaN, the gradients
 * will not be finite, and rounds are skipped or fail, according to on_nonfinite. The call waits for no
 * shard and hashes the tensor; for a GPU's memory it waits for mem.stream, and copies the memory. */
CAIRN_EXPORT cairn_status cairn_put(cairn_job *job, const char *tensor, const char *plane,
                                    const struct cairn_box *box, const struct cairn_mem *mem,
                                    cairn_op **op_out) CAIRN_CHECKED;
/* Every worker calls cairn_init_done before its first round. The call waits for this worker's puts, and
 * then until the job is sealed. The job is sealed when rank 0 (with tiles: every worker) has reached
 * this call. The call returns at once if the job is initialized already, but for this: if this worker's
 * puts of all parameters were refused for that reason, and the job began with other bits, the trainer
 * is told so (cairn_wait_fn). CAIRN_ERR_NOT_READY names tensors that were not put: put them. Tensors
 * that were put before are kept, and may be put again only with the same values. CAIRN_ERR_EXISTS: the
 * values differ; use `cairn job drop` to begin anew. A put that failed makes this call fail, too, until
 * that tensor is put again. CAIRN_ERR_MISMATCH: this rank put other tensors, or other bits (BLAKE2b),
 * than rank 0. With tiles all ranks get the error, which names a tensor and two ranks that hold the
 * same box and put different bits; all ranks may put again. Beyond 32,768 tensors the bits are not
 * compared with tiles. `digest`: NULL, or 32 bytes of the caller that must be the same on all ranks
 * that give a digest. The coordinator compares the digests that it received, and does not keep them
 * over a restart. */
CAIRN_EXPORT cairn_status cairn_init_done(cairn_job *job, const uint8_t *digest,
                                          int timeout_ms) CAIRN_CHECKED;

/* Writes planes at a step boundary, outside the optimizer. cairn_write_begin waits for the open round
 * to end (a round that would wait for this worker is void). No round opens until cairn_write_end; other
 * workers wait in cairn_round_begin. Between the two calls cairn_put writes the planes "param",
 * "exp_avg", "exp_avg_sq" or "ema" of tensors of any kind, in CAIRN_F32, in any boxes that have no
 * element in common (else CAIRN_ERR_EXISTS). Box NULL is what this worker holds; if this is a tile,
 * mem.bytes must be given. Blobs are put whole, in CAIRN_U8. Elements that are not put keep their
 * values. With global_batch a buffer is put by the worker whose last round gave it the last
 * micro-batch, and must come from that micro-batch (CAIRN_ERR_REFUSED: another worker put it).
 * cairn_write_end makes one new version, (generation + 1, the same step), of everything that was
 * put, on all shards; fetches see either the old version or the new one. A writer that dies, fails a
 * put, or takes longer than the cluster's step_deadline has written nothing. Any worker may write
 * when it has no round open. cairn_write_begin: CAIRN_ERR_EXISTS, a write is open;
 * CAIRN_ERR_TIMEOUT, the request is withdrawn. cairn_write_end: CAIRN_ERR_EPOCH_CHANGED, nothing was
 * written, begin the write again; CAIRN_ERR_TIMEOUT, call cairn_write_end again. */
CAIRN_EXPORT cairn_status cairn_write_begin(cairn_job *job, int timeout_ms) CAIRN_CHECKED;
CAIRN_EXPORT cairn_status cairn_write_end(cairn_job *job, int timeout_ms,
                                          struct cairn_version *out) CAIRN_CHECKED;

/* Waits for the next round to open; if this worker has a round open, gives that round again.
 * CAIRN_ERR_TIMEOUT names what the call waited for (workers below workers_min, a shard that is away,
 * an open write, this worker's own included); CAIRN_ERR_NOT_READY: cairn_init_done was not called;
 * CAIRN_ERR_FENCED: another worker has this worker's rank now; CAIRN_ERR_JOB_LOST; CAIRN_ERR_HALTED:
 * skips_max rounds in a row were skipped, or the job's policy is to fail and the last update left
 * results that are not finite or a worker was lost; CAIRN_ERR_ROLLED_BACK, from every call with the
 * job's handle: the job was, or is being, restored from a snapshot. Close the handle and open the
 * job again, in the same session and with the same spec: cairn_job_open waits for the restore, and
 * the newest version (cairn_version_wait, cairn_client_state) says where the trainer continues. */
CAIRN_EXPORT cairn_status cairn_round_begin(cairn_job *job, int timeout_ms,
                                            struct cairn_round *out) CAIRN_CHECKED;
/* Returns a seed, below 2^63, for what is random in a micro-batch (dropout, the order of the rows). The
 * seed is a function of the job's seed, the round's index and the number of the micro-batch, so it is
 * the same on every worker, and when a void round is computed again. With global_batch `micro` is
 * itself the number of the micro-batch; else `micro` is the index among this worker's micro-batches,
 * and the number is micro * world + rank. With splitmix64's mix(x),
 *   x += 0x9e3779b97f4a7c15; x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
 *   x = (x ^ x >> 27) * 0x94d049bb133111eb; x ^ x >> 31
 * the seed is mix(mix(mix(seed) ^ index) ^ number) >> 1. The seed is 0 if `round` is not given, or
 * comes from an older cairn.h. */
CAIRN_EXPORT uint64_t cairn_micro_seed(const struct cairn_round *round, uint32_t micro);
/* Pushes the gradient of the part of a tensor that this worker holds (`box` NULL, or exactly that box),
 * for this round and micro-batch. The gradient is multiplied by the loss scale, and summed (not
 * averaged) over everything that the weight counts. A tensor is pushed once a micro-batch (else
 * CAIRN_ERR_EXISTS); micro-batches come in order, with global_batch by their numbers in the step
 * (CAIRN_ERR_INVALID: the micro-batch is another worker's). CAIRN_ERR_EPOCH_CHANGED: the round is void.
 * CAIRN_ERR_INVALID: no round is begun. CAIRN_ERR_STALE: the round is committed, or is not the open
 * one; call cairn_round_begin. In stages 0 and 1 with several micro-batches the call copies the
 * gradient, and the operation completes at once. A micro-batch beyond the job's micro_batches is
 * CAIRN_ERR_INVALID. The call does not wait for a shard.
 *   A GPU's memory is pushed with the contents that it has after all work that was queued on
 * mem.stream before the call. The call waits for the stream only if the host has to read the memory:
 * in stages 0 and 1 with several micro-batches, with strides, and for aliases of boxes. Everything
 * that is given later in the round is sent after this push. If the queued work fails, the job's
 * handle fails, too, with CAIRN_ERR_IO. */
CAIRN_EXPORT cairn_status cairn_push(cairn_job *job, const struct cairn_round *round,
                                     uint32_t micro, const char *tensor,
                                     const struct cairn_box *box, const struct cairn_mem *mem,
                                     cairn_op **op_out) CAIRN_CHECKED;
/* A list of many tensors is described one time, and then pushed or fetched as often as wanted, as
 * one operation, at the cost of a few microseconds a tensor. The description is copied, but the
 * tensors' memory is not: the memory must stay valid. A list is checked as a whole, when it is
 * described and again when it is posted: if one entry is wrong, no entry is sent, and cairn_error()
 * begins "entry 3 of the list (name): ". A list of pushes must not have a tensor twice
 * (CAIRN_ERR_EXISTS), nor an alias of a box (CAIRN_ERR_UNSUPPORTED). A list may be posted by several
 * threads, and posted again before its operation is over. */
struct cairn_part {
    size_t struct_size;
    const char *tensor;
    const struct cairn_box *box; /* as in cairn_push, cairn_fetch */
    struct cairn_mem mem;
};
CAIRN_EXPORT cairn_status cairn_push_list(cairn_job *job, const struct cairn_part *parts,
                                          size_t count, cairn_list **out) CAIRN_CHECKED;
CAIRN_EXPORT cairn_status cairn_fetch_list(cairn_job *job, const char *plane,
                                           const struct cairn_part *parts, size_t count,
                                           cairn_list **out) CAIRN_CHECKED;
/* Closes a list; operations that were posted with it go on. A list does not end with its job: after
 * the job's end, calls with the list give CAIRN_ERR_HANDLE. NULL is allowed. */
CAIRN_EXPORT void cairn_list_close(cairn_list *list);
/* These two calls push or fetch each tensor of the list, and fail, in the way of cairn_push and
 * cairn_fetch. For pushes op_out may be NULL; then the commit waits for the pushes. CAIRN_ERR_HANDLE
 * is also the error for a list of the other kind. If an entry fails, the operation has that entry's
 * status, and ends when all entries have ended. */
CAIRN_EXPORT cairn_status cairn_push_many(cairn_list *list, const struct cairn_round *round,
                                          uint32_t micro, cairn_op **op_out) CAIRN_CHECKED;
CAIRN_EXPORT cairn_status cairn_fetch_many(cairn_list *list, struct cairn_version version,
                                           cairn_op **op_out) CAIRN_CHECKED;
/* Ends micro-batch `micro`: tensors not pushed are absent from it. Fails as cairn_push does;
 * also gives CAIRN_ERR_INVALID if another micro-batch is being filled. */
CAIRN_EXPORT cairn_status cairn_micro_end(cairn_job *job, const struct cairn_round *round,
                                          uint32_t micro) CAIRN_CHECKED;
/* Commits this worker's part with an integer weight, ends the last micro-batch if it is not ended yet,
 * and waits for the round's end. Weight 0 means one for each micro-batch; CAIRN_WEIGHT_NONE means a
 * weight of zero, for a worker that counts tokens and has none. The sum of all contributions is divided
 * by the sum of all weights (and the loss scale): where several workers compute parts of one batch, as
 * in tensor parallelism, one of them counts the batch and the others give CAIRN_WEIGHT_NONE. A weight
 * is at most 2^53, and so is the sum of all workers' weights. CAIRN_ERR_INVALID: one weight exceeds
 * this bound (reported at once), or the sum does (reported to the worker that exceeded it, and the
 * round is void for all). CAIRN_OK: the update is applied and published (or skipped: out->applied), and
 * the buffers of all pushes are the caller's again. CAIRN_ERR_EPOCH_CHANGED: nothing was applied; call
 * round_begin again and recompute. CAIRN_ERR_TIMEOUT: the outcome is not known yet; call cairn_commit
 * again with the same round and weight to continue to wait. CAIRN_ERR_INVALID: the weight differs
 * from the one with which the round was committed; nothing changes. CAIRN_ERR_PROTOCOL,
 * CAIRN_ERR_MALFORMED: a shard refused this worker's data, and the round is given up.
 *   A commit without any push contributes zeros with the commit's weight, or leaves the tensors
 * unchanged, depending on cairn_job_spec.missing_gradients. With global_batch the weight is the sum
 * over this worker's micro-batches, and every one of these except the last must have been ended (else
 * CAIRN_ERR_INVALID); the weight of a surplus worker does not count. If all weights add up to 0, there
 * is no mean: nothing is applied (out->applied false, out->finite true), and the loss scale stays.
 *
 * client_state: bytes of the trainer's own (the data loader's position, a random state) that belong to
 * the version which this round makes. The bytes are in the version's snapshots and content root, and
 * are restored with the version. Rank 0 of the round gives the bytes, and gives the same bytes if it
 * calls again. Any worker may be rank 0, so with global_batch the bytes must depend on the step alone.
 * Bytes from another rank, or without client_state_max, are CAIRN_ERR_REFUSED; more bytes than
 * client_state_max are CAIRN_ERR_INVALID. NULL: the version has no client state. A skipped round and a
 * write keep the last client state. No round ends before its rank 0 has committed. The bytes are sent
 * to every shard, so keep them small. */
#define CAIRN_WEIGHT_NONE UINT64_MAX
CAIRN_EXPORT cairn_status cairn_commit(cairn_job *job, const struct cairn_round *round,
                                       uint64_t weight, const void *client_state,
                                       size_t state_bytes, int timeout_ms,
                                       struct cairn_result *out) CAIRN_CHECKED;

/* Begins a pause: this worker is at work on something else (an evaluation, say), for at_most_ms (a
 * day at most), in a round or between two. Until cairn_pause_end the other workers wait for this
 * worker, beyond the timeouts of their calls (cairn_opts.on_wait), and the step's deadline is
 * suspended for this worker alone (without a pause, a live process does not suspend it). After
 * at_most_ms the pause ends by itself, and the usual rules hold; a worker that dies in a pause is lost
 * like any other. `what`: "evaluating", 1 to 63 bytes of UTF-8 without control characters. A second
 * call replaces the earlier pause. */
CAIRN_EXPORT cairn_status cairn_pause(cairn_job *job, const char *what, int at_most_ms,
                                      int timeout_ms) CAIRN_CHECKED;
/* Ends the pause; CAIRN_OK, too, if there was none. */
CAIRN_EXPORT cairn_status cairn_pause_end(cairn_job *job, int timeout_ms) CAIRN_CHECKED;
/* Sets the learning rate of a group (NULL = "default") whose schedule is CAIRN_SCHEDULE_DRIVEN,
 * from the next cairn_commit on, until another rate is set. Every worker sets the rate before its
 * first commit (else that commit is CAIRN_ERR_INVALID). The rate comes from the worker's own
 * scheduler, which the worker advances when a round was applied (cairn_result.applied). The round's
 * rank 0 determines the rate, and all shards use the same double. The rate is kept with the version
 * as client_state is; a spec that begins with another lr is no mismatch. The call does not wait.
 * CAIRN_ERR_INVALID: the rate is not a number from 0 to 1e18; CAIRN_ERR_NOT_FOUND: no such group;
 * CAIRN_ERR_REFUSED: the group's schedule is not driven, or this is a reader. */
CAIRN_EXPORT cairn_status cairn_group_lr(cairn_job *job, const char *group,
                                         double lr) CAIRN_CHECKED;

/* Gives up a round that this worker has not committed, and stays in the job. Gradients that were
 * pushed cannot be taken back: the round is void for all workers, which repeat the step. CAIRN_OK:
 * the round is void, and the buffers of all pushes are the caller's again. CAIRN_ERR_STALE: the round
 * is committed, or not open. CAIRN_ERR_TIMEOUT: call again. A surplus worker has nothing to give up:
 * the round goes on. */
CAIRN_EXPORT cairn_status cairn_round_abandon(cairn_job *job, const struct cairn_round *round,
                                              int timeout_ms) CAIRN_CHECKED;

/* Reads a tensor or any box of it at a version, whichever workers hold it. `box` NULL is what this
 * worker holds: the whole tensor, or the worker's tile. If it is a tile, mem.bytes must give the tile's
 * size, else CAIRN_ERR_INVALID: a caller that expects the whole tensor would find the rest of its
 * memory unchanged. A worker that holds a tile reads the whole tensor by giving a box of the whole.
 * `mem` is the memory of the box. `plane`: "wire" (the published copy; NULL means "wire"), or, only
 * at the newest version, "param", "exp_avg", "exp_avg_sq" or "ema". The operation fails with
 * CAIRN_ERR_VERSION_GONE if the version is no longer kept, and with CAIRN_ERR_NOT_READY if it is not
 * published yet. op_out must be given, because only the operation says when the memory is filled.
 *   A GPU's memory must be dense (else CAIRN_ERR_UNSUPPORTED). The memory is written when all work
 * that was queued on mem.stream before the call is done. Whole tensors of the wire plane that the
 * shards publish on that GPU (cairn_opts.device) are copied on the GPU, without passing through the
 * host (cairn_stats.device_fetched_bytes); everything else is received in pinned host memory, chunk
 * by chunk, and copied from there.
 *
 * The newest version and the version before it are kept, so a round's own version stays until the
 * round after it ends, and training never waits for readers; other versions are kept while they are
 * leased. */
CAIRN_EXPORT cairn_status cairn_fetch(cairn_job *job, struct cairn_version version,
                                      const char *tensor, const char *plane,
                                      const struct cairn_box *box, const struct cairn_mem *mem,
                                      cairn_op **op_out) CAIRN_CHECKED;
/* Waits until the newest version is at_least or newer; {0, 0} gives the newest version at once.
 * CAIRN_ERR_BUSY: eight threads of this worker or reader are waiting already, here and in
 * cairn_client_state. */
CAIRN_EXPORT cairn_status cairn_version_wait(cairn_job *job, struct cairn_version at_least,
                                             int timeout_ms,
                                             struct cairn_version *out) CAIRN_CHECKED;
/* Leases a version of the published copies (plane "wire", cairn_map), so that the version stays
 * readable for a reader slower than two updates. The call leases `version`, or the newest version
 * for {0, 0}, for ttl_ms from now; *out is the leased version. A second call renews the lease: the
 * lease then ends ttl_ms after that call, or at its former end if that is later; a job handle has at
 * most one lease of a version. The library renews no lease: a reader that hangs must not hold
 * memory. All shards keep the version or none does: CAIRN_ERR_VERSION_GONE, CAIRN_ERR_NO_MEMORY (a
 * shard's memory.limit has no room for one copy more), CAIRN_ERR_BUSY (leases.versions_max, 4,
 * versions are leased), CAIRN_ERR_INVALID (over leases.ttl_max, 10 min). A lease ends with
 * cairn_lease_end, when its time is over, with the job handle, or with the connection to the
 * coordinator (renew it then: shards keep the version for a quarter of the time longer, unless its
 * room is needed). No update waits for a lease. */
CAIRN_EXPORT cairn_status cairn_lease(cairn_job *job, struct cairn_version version, int ttl_ms,
                                      int timeout_ms, struct cairn_version *out) CAIRN_CHECKED;
/* Ends a lease; CAIRN_OK, too, if there is none. CAIRN_ERR_TIMEOUT: the lease ends when its time is
 * over. */
CAIRN_EXPORT cairn_status cairn_lease_end(cairn_job *job, struct cairn_version version,
                                          int timeout_ms) CAIRN_CHECKED;

/* A trainer of stage 3 has only a few units in memory at a time: it fetches a unit, computes with it,
 * and gives the unit back.
 *
 * cairn_prefetch says that these units will be mapped soon. The call is a hint. The call begins to
 * gather the units that fit into the window (cairn_opts.prefetch_units); the oldest units in the
 * window that are not mapped make room. Units of an older version that are gathered but not mapped
 * are dropped. Give a unit's name as it stands in its tensors (cairn_tensor.unit); else
 * CAIRN_ERR_NOT_FOUND. */
CAIRN_EXPORT cairn_status cairn_prefetch(cairn_job *job, struct cairn_version version,
                                         const char *const *units, size_t unit_count) CAIRN_CHECKED;
/* Lends all tensors of a unit, gathered in the library's memory: `views` are filled at once, but the
 * data that the views point to is valid only when the operation is complete. Two maps of a unit at one
 * version share the same memory. *view_count: in, the room in `views`; out, the number of the unit's
 * tensors; CAIRN_ERR_INVALID if this is more than the room. The views are in bytewise order of the
 * tensors' names. Set views[0].struct_size. A map beyond the window is not refused, but counted
 * (cairn_stats.maps_over_window).
 *   Views are valid until cairn_unmap, or cairn_job_close. A view of the version that the worker's open
 * round uses keeps that version's values until the next cairn_round_begin. Views that shards of this
 * host lend (cairn_stats.maps_lent) are the shards' memory, without a lease. At another version such a
 * view keeps its values until a new version overwrites the values two updates later, or, with
 * cairn_lease, until the lease ends. After that, cairn_unmap says CAIRN_ERR_VERSION_GONE, and data
 * that was read since then may be of either version. Gathered views are the library's memory, and
 * always keep their values. The operation fails as an operation of cairn_fetch does; then nothing is
 * on loan. */
CAIRN_EXPORT cairn_status cairn_map(cairn_job *job, struct cairn_version version, const char *unit,
                                    struct cairn_view *views, size_t *view_count,
                                    cairn_op **op_out) CAIRN_CHECKED;
/* Like cairn_map, at addresses of a GPU (device: CAIRN_GPU(n); 0 is cairn_map): the views are where the
 * shards publish the unit on that GPU (cairn_opts.device) if each tensor of the unit lies on one shard.
 * Else the unit is gathered in memory of that GPU, and the views are there. No shard can keep this
 * process from writing to published memory; such a write spoils what this process and other processes
 * read until the next versions, but spoils no state. Units that cairn_prefetch gathered lie in host
 * memory, and are not used. */
CAIRN_EXPORT cairn_status cairn_map_device(cairn_job *job, struct cairn_version version,
                                           const char *unit, int device, struct cairn_view *views,
                                           size_t *view_count, cairn_op **op_out) CAIRN_CHECKED;
/* Ends one cairn_map; `view` is any one of the views that this cairn_map gave. The memory is freed when
 * no loan of it is left, unless the unit was prefetched again since. CAIRN_ERR_INVALID: the view is not
 * on loan. CAIRN_ERR_VERSION_GONE: the map was ended, but a later version had overwritten its memory
 * (this never happens in the round that uses the map's version). For views on a GPU the call waits
 * until all that is queued on `stream`, a cudaStream_t of that GPU, is done; for views on the host
 * `stream` is NULL. No work that is still queued on another stream may read the views, because the
 * memory may be freed or overwritten after this call. */
CAIRN_EXPORT cairn_status cairn_unmap(cairn_job *job, const struct cairn_view *view,
                                      void *stream) CAIRN_CHECKED;

/* Waits for an operation, returns its result, and frees the operation unless the result is
 * CAIRN_ERR_TIMEOUT. Two threads may wait for one operation: both get its result if both wait when it
 * ends; a thread that calls later gets CAIRN_ERR_HANDLE. */
CAIRN_EXPORT cairn_status cairn_wait(cairn_op *op, int timeout_ms) CAIRN_CHECKED;
/* Makes a stream wait for an operation: all work that is queued on `stream` after this call runs when
 * the operation is over. `stream` is a cudaStream_t of the thread's current GPU, or, if the thread has
 * none, of the operation's GPU. The stream does not show whether the operation succeeded; only
 * cairn_wait, which must still be called, says so. A stream continues after 60 s at the latest, or 1 s
 * after cairn_close began, even if a peer is dead or the driver hangs; the operation then has
 * CAIRN_ERR_CANCELED, or a worse status.
 *   Do not give the stream that the operation itself waits for, nor a stream on which the operation
 * depends through the hardware: streams of one priority share CUDA_DEVICE_MAX_CONNECTIONS queues (8;
 * some trainers set 1), and all work behind a wait in one of these queues waits, too. The library's own
 * copies have the greatest priority for that reason; a stream that a pushed gradient comes from should
 * have another priority than the stream that waits, or have nothing left to do.
 * CAIRN_ERR_UNSUPPORTED without CUDA. */
CAIRN_EXPORT cairn_status cairn_stream_wait(cairn_op *op, void *stream) CAIRN_CHECKED;

/* Waits until one of the operations is over, and returns the operation's result and frees it, as
 * cairn_wait does. All operations must be of one session. ops[i] may be NULL, and is then skipped.
 * *index_out: the index of that operation; user_out, unless NULL: the pointer that cairn_op_set_user
 * set for that operation. CAIRN_ERR_TIMEOUT: no operation is over. *index_out is `count` then, as
 * for every error of the call itself. If several operations are over, the call takes the first one
 * in the list, so rotate the list to treat all operations equally. */
CAIRN_EXPORT cairn_status cairn_wait_any(cairn_op *const *ops, size_t count, int timeout_ms,
                                         size_t *index_out, void **user_out) CAIRN_CHECKED;
/* Sets a pointer of the caller's own, for cairn_wait_any. */
CAIRN_EXPORT cairn_status cairn_op_set_user(cairn_op *op, void *user) CAIRN_CHECKED;
/* Cancels a fetch, or the fetch of a list, that is no longer wanted: the operation ends soon, with
 * CAIRN_ERR_CANCELED unless it was over already. If it is canceled, the contents of its memory are
 * undefined; the memory is on loan until cairn_wait, which must still be called, says that the
 * operation is over. CAIRN_ERR_UNSUPPORTED: the operation is something else (a push belongs to its
 * round: cairn_round_abandon). The call does not wait. */
CAIRN_EXPORT cairn_status cairn_cancel(cairn_op *op) CAIRN_CHECKED;

/* Gives the client state of the newest version, or, from cairn_round_begin to cairn_commit, of the
 * round's version. Readers may call this, too. *bytes_out: the number of bytes, 0 if the version has
 * none; also set if the call gives CAIRN_ERR_INVALID because the bytes exceed `capacity`. buffer may
 * be NULL with capacity 0, and version_out NULL. Waits while a round is ending. */
CAIRN_EXPORT cairn_status cairn_client_state(cairn_job *job, void *buffer, size_t capacity,
                                             int timeout_ms, size_t *bytes_out,
                                             struct cairn_version *version_out) CAIRN_CHECKED;

/* Saves the newest version; any worker or reader may call it. id_out: the snapshot's name, which
 * `cairn snapshot restore` takes. CAIRN_ERR_BUSY: another snapshot or digest is being taken, or an
 * amendment made. CAIRN_ERR_NOT_READY, CAIRN_ERR_JOB_LOST, CAIRN_ERR_IO: there is nothing to save, or a
 * shard cannot save its part. After CAIRN_ERR_TIMEOUT the snapshot continues: see `cairn snapshot
 * list`. */
/* the call returns when the snapshot is committed; without this flag, when it is begun */
#define CAIRN_SNAPSHOT_WAIT 1u
CAIRN_EXPORT cairn_status cairn_snapshot(cairn_job *job, uint32_t flags, int timeout_ms,
                                         char id_out[64]) CAIRN_CHECKED;

/* The cluster's jobs, open in this session or not. The calls do what `cairn job list`, `cairn job
 * drop` and `cairn snapshot restore` do, with the same rights, over a connection of their own to the
 * session's coordinator. These calls end with their timeout, or soon after cairn_close.
 * CAIRN_ERR_UNREACHABLE: the coordinator cannot be reached; these calls do not wait for it. */
struct cairn_job_entry {
    size_t struct_size;
    char name[256];
    char state[32];    /* "running", "lost", ...: as `cairn job list` has it */
    char awaited[512]; /* whom or what the job waits for; "": nothing */
    struct cairn_version version;
    bool version_known; /* false: the job's shards have not reported, so `version` means nothing */
    bool reserved[7];
    uint32_t workers, workers_min, shards, reserved_too;
    uint64_t tensors, elems, state_bytes;
};
/* Lists all jobs, by name. *entry_count: in, the room in `entries`; out, the number of jobs, with
 * CAIRN_ERR_INVALID if that is more than the room. Set entries[0].struct_size; entries may be NULL
 * with room 0. */
CAIRN_EXPORT cairn_status cairn_job_list(cairn_session *session, struct cairn_job_entry *entries,
                                         size_t *entry_count, int timeout_ms) CAIRN_CHECKED;
/* Removes the job from the cluster; the job's snapshots stay. CAIRN_ERR_NOT_FOUND. CAIRN_ERR_BUSY names
 * who has the job open, or the operation in progress on the job. CAIRN_DROP_FORCE expels the members,
 * and their calls then give CAIRN_ERR_CANCELED. After CAIRN_ERR_TIMEOUT the drop continues. */
#define CAIRN_DROP_FORCE 1u
CAIRN_EXPORT cairn_status cairn_job_drop(cairn_session *session, const char *name, uint32_t flags,
                                         int timeout_ms) CAIRN_CHECKED;
/* Makes the job from a snapshot: `snapshot` is the id of a snapshot of this job, "latest", or the
 * absolute path of a snapshot's folder on the coordinator's host (name NULL: the job name in the
 * snapshot). Workers open the job as usual; workers that had the job open get CAIRN_ERR_ROLLED_BACK.
 * CAIRN_ERR_EXISTS: the job exists, and would lose what it has learned since the snapshot;
 * CAIRN_RESTORE_REPLACE allows this loss. CAIRN_RESTORE_FALLBACK: if the snapshot is damaged, take
 * the newest good snapshot before it; CAIRN_RESTORE_UNSIGNED, CAIRN_RESTORE_UNTRUSTED: take a
 * snapshot without a signature, or one signed by a key that the cluster does not trust.
 * CAIRN_ERR_NOT_FOUND, CAIRN_ERR_CORRUPT. After CAIRN_ERR_TIMEOUT the restore continues. Both
 * results may be NULL: id_out, the snapshot that was restored, and version_out, the version that the
 * job has now. */
#define CAIRN_RESTORE_REPLACE   1u
#define CAIRN_RESTORE_FALLBACK  2u
#define CAIRN_RESTORE_UNSIGNED  4u
#define CAIRN_RESTORE_UNTRUSTED 8u
CAIRN_EXPORT cairn_status cairn_job_restore(cairn_session *session, const char *name,
                                            const char *snapshot, uint32_t flags, int timeout_ms,
                                            char id_out[64],
                                            struct cairn_version *version_out) CAIRN_CHECKED;

/* Takes the job back to a version that its shards keep (keep_versions) or have in logs. generation 0: the
 * newest version of that step. Workers and readers get CAIRN_ERR_ROLLED_BACK. version_out (may be NULL): the
 * version that the job has now. CAIRN_ERR_VERSION_GONE names those that there are; CAIRN_ERR_NO_MEMORY,
 * CAIRN_ERR_BUSY, CAIRN_ERR_NOT_READY: the job goes on. After CAIRN_ERR_TIMEOUT the request continues. */
CAIRN_EXPORT cairn_status cairn_job_rollback(cairn_session *session, const char *name,
                                             struct cairn_version version, int timeout_ms,
                                             struct cairn_version *version_out) CAIRN_CHECKED;

/* Gives what this handle has sent and fetched since it was opened, and what it holds now. Set
 * out->struct_size (else CAIRN_ERR_INVALID). */
CAIRN_EXPORT cairn_status cairn_job_stats(cairn_job *job, struct cairn_stats *out) CAIRN_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
