/* The two jobs whose every bit is known, and their crew: the workers that train them through libcairn, as
 * threads of this process or as processes, and the same training in plain sight, which a cluster is held
 * against.
 *
 *   crew_train(&(struct crew) { .job = &bits_job, .endpoint = cluster.address, .until_step = BITS_STEPS });
 *   crew_check_root(cluster.address, &bits_job, BITS_GOLDEN_ROOT);
 *
 * `bits_job` has every awkward shape, and two workers, each with all of it. 50 updates of it have one content
 * root whatever the shards, threads, fabric, order, compiler or faults. `tiles_job` has a tensor for each way
 * to be cut, and ranks in a mesh of tensor (tp) and data (dp) parallelism. Anyone can compute the gradients
 * of both, element by element, from (step, rank, micro-batch, tensor) and the published parameters. Nothing
 * here uses the product's arithmetic of boxes. */
#ifndef CAIRN_E2E_CREW_H
#define CAIRN_E2E_CREW_H

#include <check.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <cairn.h>

#include "proto/geometry/tensor.h"
#include "tests/support/cluster.h"
#include "tests/support/mem.h"
#include "tests/support/reference.h"

/* If this changes, the result of training changes: a new format of section 4 of the design, never a
 * side effect. */
#define BITS_GOLDEN_ROOT "1fc6261c04bdeae6efdbc8c0176b690c709b01947a1cbd4f9859ad6a1f9a4e49"
#define BITS_JOB         "bits"
#define CREW_CLIP_NORM   0.75
#define CREW_LOSS_SCALE  8.0
#define CREW_WAIT_MS     30000 /* for any one call */
enum { BITS_TENSORS = 10, BITS_STEPS = 50, BITS_NAN_STEP = 17, TILES_TENSORS = 14 };
enum { CREW_GROUPS = 3, CREW_TENSORS_MAX = 14, CREW_MICROS_MAX = 3, CREW_RANKS_MAX = 16 };

/* ---- a job ---- */

enum crew_cut {
    CREW_WHOLE,      /* every rank holds all of it */
    CREW_TP,         /* cut along `dim` by the place in tp; replicas in dp */
    CREW_TP_THEN_DP, /* the tp-local piece is cut along the same dimension by the place in dp */
    CREW_EXPERT /* whole on the ranks of one place in tp, nothing elsewhere; `dim`: which expert */
};

struct crew_tensor {
    const char *name, *group; /* group NULL: frozen */
    cairn_dtype wire;
    struct shape shape;
    enum crew_cut cut;
    uint32_t dim;
};

/* Rank r stands at tp place r % tp and dp place r / tp. */
struct crew_mesh {
    uint32_t tp, dp;
    uint32_t stage; /* CAIRN_STAGE(…); 0: of stage 2 */
};

struct crew_job {
    const char *name;
    struct crew_tensor *tensors; /* by name, bytewise: the order that digest_content_root wants */
    int tensor_count;
    uint32_t workers;       /* of a job without tiles; 0: it has tiles, and a mesh */
    uint32_t micro_batches; /* of its spec */
    uint32_t chunk_leaves;
    uint64_t nan_step; /* where a gradient of rank 1 is none, once; CREW_NO_STEP */
    /* What a rank contributes at a step (counted from 0). The weight is cairn_commit's. */
    uint32_t (*micros)(uint64_t step, uint32_t rank);
    uint64_t (*weight)(struct crew_mesh mesh, uint64_t step, uint32_t rank);
    bool (*touches)(uint64_t step, uint32_t rank, uint32_t micro, int tensor); /* if it holds any */
};
#define CREW_NO_STEP UINT64_MAX

/* A test that changes these tables does so before anything is opened. */
extern struct crew_tensor bits_tensors[BITS_TENSORS], tiles_tensors[TILES_TENSORS];
extern struct cairn_group crew_groups[CREW_GROUPS]; /* by name; of both jobs */
/* From now on two of the groups have an average, and their jobs another root than the golden one. */
void crew_keep_averages(void);
extern const struct crew_job bits_job, tiles_job;

/* Of how many ranks the job is. */
uint32_t crew_world(const struct crew_job *job, struct crew_mesh mesh);
/* The spec points into static memory; `tensors` is the caller's. */
struct cairn_job_spec crew_spec(const struct crew_job *job,
                                struct cairn_tensor tensors[CREW_TENSORS_MAX],
                                struct crew_mesh mesh, uint32_t rank);
/* What the rank holds. Sizes are those of torch.chunk: the last pieces are smaller, or empty. */
struct cairn_box crew_box(const struct crew_job *job, struct crew_mesh mesh, int tensor,
                          uint32_t rank);
uint64_t crew_elems(const struct crew_job *job, int tensor);
uint64_t crew_box_elems(const struct cairn_box *box);
/* Where the k-th element of the dense box stands in the tensor. */
uint64_t crew_index(const struct crew_job *job, int tensor, const struct cairn_box *box,
                    uint64_t k);
/* The value of an element before the first step. */
float crew_initial(int tensor, uint64_t index);
bool crew_touches(const struct crew_job *job, struct crew_mesh mesh, uint64_t step, uint32_t rank,
                  uint32_t micro, int tensor);
cairn_dtype crew_push_dtype(uint32_t rank, int tensor);

/* A contribution: of what, and of which elements. */
struct crew_gradient {
    const struct crew_job *job;
    uint64_t step;
    uint32_t rank, micro;
    int tensor;
    const struct cairn_box *box;
    double loss_scale;
    bool with_nan; /* one element of tensor 0 is none */
};
/* Its elements, times the loss scale, in crew_push_dtype. wire: [elements of the box] the published copy of
 * them, in the tensor's wire dtype. */
void crew_gradient(const struct crew_gradient *of, const void *wire, void *out);

/* ---- the same training in plain sight: one process, whole tensors, no cluster ---- */

struct crew_reference {
    const struct crew_job *job;
    struct crew_mesh mesh;
    uint64_t step; /* updates applied */
    double loss_scale;
    uint32_t clipped; /* of the updates */
    struct reference_tensor tensor[CREW_TENSORS_MAX];
};

void crew_reference_open(struct crew_reference *ref, const struct crew_job *job,
                         struct crew_mesh mesh);
void crew_reference_close(struct crew_reference *ref);
/* Trains on to that step; the job's nan_step is tried once with a gradient that is none. */
void crew_reference_run(struct crew_reference *ref, uint64_t until_step);
/* At nan_step: that gradient alone, whose round is skipped. */
void crew_reference_skip(struct crew_reference *ref);
void crew_reference_root(const struct crew_reference *ref, char hex_out[65]);
/* The root of a job without a mesh at that step. */
void crew_reference_at(const struct crew_job *job, uint64_t step, char hex_out[65]);

/* ---- workers ---- */

/* What the workers of a run have in common: all of it but the job is zero by default. */
struct crew {
    const struct crew_job *job;
    const char *endpoint;
    struct fabric_hub *hub; /* NULL: ucx */
    struct crew_mesh mesh;
    uint64_t until_step;
    uint32_t window;  /* 0: 8 */
    uint64_t shuffle; /* not 0: a seed; tensors in another order each time, with delays */
    double offload_fraction;
    bool allocated;   /* pushes out of memory of cairn_alloc, not of malloc */
    bool rank_0_puts; /* everything; else each rank puts what it holds. Without tiles: always */
    uint64_t die_at;  /* not 0: in the middle of this step's round the last rank dies */
    bool
        comes_again; /* it does so by leaving its session, and comes with another; else by SIGKILL */
};

struct crew_run;
struct crew_worker {
    struct crew crew;
    uint32_t rank;
    /* results */
    uint32_t skipped, void_rounds;
    char error[1024]; /* "": it went well */
    /* private */
    struct crew_run *run; /* NULL: of no run */
};

/* All of them as threads of this process. */
struct crew_run {
    struct crew_worker worker[CREW_RANKS_MAX];
    pthread_t thread[CREW_RANKS_MAX];
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t step; /* the newest that one of them saw */
    uint32_t worker_count, ended;
};
void crew_start(struct crew_run *run, const struct crew *crew);
/* Until a step as new was applied; fails the test if a worker ends before. */
void crew_await(struct crew_run *run, uint64_t step);
/* Until all have ended; fails the test if one of them did badly. */
void crew_join(struct crew_run *run);
/* From the start to the end. */
void crew_train(const struct crew *crew);
/* The same, undisturbed: no round is void, and so many are skipped. */
void crew_train_quietly(const struct crew *crew, uint32_t skipped);

/* All of them as processes, the programs of this test; one is killed in mid-round, at that step, and started
 * again. All train to their end. */
void crew_kill_in_mid_round(const struct cluster *cluster, const struct crew *crew, uint32_t rank,
                            uint64_t step);
/* `main` of a test that calls it: of a worker, or of the suite. The crew is the one that is killed. */
int crew_main(int argc, char **argv, struct crew crew);

/* A session that ends with the caller's cairn_close; fails the test. hub as in struct crew. */
cairn *crew_session(const char *endpoint, struct fabric_hub *hub);

/* ---- what a cluster has, against the reference ---- */

/* The content root, as `cairn job digest` of the coordinator at `endpoint` prints it; it is this one. */
void crew_root(const char *endpoint, const struct crew_job *job, char hex_out[65]);
void crew_check_root(const char *endpoint, const struct crew_job *job, const char *root);
/* The reference's root of the bits job at a step. */
void bits_root_at(uint64_t step, char hex_out[65]);
/* The digest is the reference's at that step; at BITS_NAN_STEP before the round that is skipped there, or
 * behind it, where the loss scale is another one. */
void bits_check_root_at(const char *endpoint, uint64_t step);

enum crew_reading { CREW_WHOLE_TENSORS, CREW_IN_BOXES };
/* A reader finds every plane of every tensor as the reference has it: whole, and CREW_IN_BOXES of a tiling
 * that is nobody's, too. */
void crew_check(const char *endpoint, struct fabric_hub *hub, const struct crew_reference *ref,
                enum crew_reading reading);
/* The same, of the crew's job and mesh at its last step. */
void crew_check_state(const struct crew *crew, enum crew_reading reading);

#endif
