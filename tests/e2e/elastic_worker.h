/* Workers of the elastic job as processes of their own, which may be stopped and killed: every gradient
 * depends on every parameter that was fetched, on the step and on the micro-batch, so that a wrong bit
 * anywhere is in the content root a step later. */
#ifndef CAIRN_E2E_ELASTIC_WORKER_H
#define CAIRN_E2E_ELASTIC_WORKER_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include <cairn.h>

#include "tests/support/cluster.h"

enum { ELASTIC_BATCH = 5, ELASTIC_WAIT_MS = 30000, ELASTIC_MODELS = 2, ELASTIC_RANKS = 8 };

struct elastic_model {
    const char *name;
    const struct cairn_tensor *tensors; /* [count] */
    size_t count;
};
/* A perceptron for Fashion-MNIST; a transformer of two blocks. */
extern const struct elastic_model elastic_models[ELASTIC_MODELS];
extern const struct elastic_model elastic_mixer; /* small, for what is done many times */

/* In memory that all processes share. */
struct elastic_shared {
    _Atomic uint64_t until;  /* the last step */
    _Atomic uint64_t step;   /* the newest that a worker saw */
    _Atomic uint64_t rounds; /* that workers saw the end of */
    _Atomic uint64_t voided;
    _Atomic uint64_t rolled_back;  /* workers that heard that the job goes on from a snapshot */
    _Atomic uint64_t acknowledged; /* the highest step of which a worker heard that it is done */
    _Atomic uint64_t twice;        /* steps that were done although they had been acknowledged */
    _Atomic pid_t pids[ELASTIC_RANKS]; /* 0: not begun */
};
struct elastic_shared *elastic_share(void);

/* Forks a worker, which trains until shared->until; opens the job again where another worker got its place,
 * or the job was rolled back. Its exit status: 0, or 1, and it has said why. Dies with the thread that calls
 * this; no session may be open in this process. */
pid_t elastic_start(const char *address, const struct elastic_model *model, uint32_t rank,
                    struct elastic_shared *shared);
/* The same on a host, a network namespace; NULL: this one. */
pid_t elastic_start_on(const char *netns, const char *address, const struct elastic_model *model,
                       uint32_t rank, struct elastic_shared *shared);
/* The one worker of most scenes, rank 0: it trains until `until`; so many more steps are
 * waited for; it ends by itself, and the job's content root is asked for. */
struct elastic_run {
    const struct elastic_model *model;
    struct elastic_shared *shared;
    pid_t worker;
};
struct elastic_run elastic_begin(const struct elastic_model *model, uint64_t until);
void elastic_await(const struct elastic_run *run, uint64_t more_steps);
/* Until so many steps from now; the last one. */
uint64_t elastic_bound(const struct elastic_run *run, uint64_t more_steps);
void elastic_end(struct elastic_run *run, char root_out[CLUSTER_WORD_BYTES]);

/* Forks a worker that adds a tensor to the job, to which nobody contributes, and leaves. Its exit status
 * likewise. */
pid_t elastic_extend(const char *address, const struct elastic_model *model);

#endif
