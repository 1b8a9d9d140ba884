/* A model for benches of rounds: equal matrices, updated by AdamW, and a worker's
 * place in its job. In a worker's process; what fails is said. */
#ifndef CAIRN_CTL_BENCH_MODEL_H
#define CAIRN_CTL_BENCH_MODEL_H

#include <cairn.h>

#include "client/ctl/bench/crew.h"

#define CAIRN_BENCH_COLUMNS     1024
#define CAIRN_BENCH_TENSORS_MAX 8192
#define CAIRN_BENCH_CALL_MS     60000

struct cairn_bench_model {
    char job[64];
    uint32_t tensors;
    uint64_t rows; /* of CAIRN_BENCH_COLUMNS, of each tensor */
    cairn_dtype wire;
    bool begins_random; /* normal, where the others begin as zeros */
    int device;         /* of cairn_opts: where workers compute; 0: on no card */
    uint32_t batch;     /* global_batch of the job; 0: none */
    uint32_t durable_s; /* snapshot_durable_within_s of the job; 0: none */
    uint32_t added;     /* micro-batches that each worker adds up, and pushes once; 0: none */
};
/* How many elements a tensor has. */
static inline size_t cairn_bench_model_elems(const struct cairn_bench_model *model)
{
    return (size_t)model->rows * CAIRN_BENCH_COLUMNS;
}

/* Cuts so many parameters, or some more, into its equal tensors. */
void cairn_bench_model_cut(struct cairn_bench_model *model, uint64_t params);

struct cairn_bench_member {
    cairn *session;
    cairn_job *job;
    char names[CAIRN_BENCH_TENSORS_MAX][12]; /* [tensors] */
};
/* Opens the job in a session that is open, or goes on with it; false, and said. */
bool cairn_bench_member_join(struct cairn_bench_member *member,
                             const struct cairn_bench_model *model,
                             const struct cairn_bench_worker *worker);
/* The same, in a session of its own. */
bool cairn_bench_member_open(struct cairn_bench_member *member,
                             const struct cairn_bench_model *model,
                             const struct cairn_bench_worker *worker);
/* True for CAIRN_OK; else false, and this thread's error is said. */
bool cairn_bench_is_ok(cairn_status status);

/* A way that --path may name (NULL: none); by CAIRN_FABRIC it is told to the library. */
bool cairn_bench_is_path(const char *name);

#endif
