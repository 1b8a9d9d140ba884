/* Loaders fill the state of a job that is LOADING: from a snapshot (restore.c), from weights and
 * initializers (origin.c), or from the generation that serves (extend.c). put.c afterwards takes
 * what is left for members to put. */
#ifndef CAIRN_SHARD_STATE_LOAD_H
#define CAIRN_SHARD_STATE_LOAD_H

#include <stdatomic.h>

#include "proto/spec/spec.h"
#include "server/shard/base/compute.h"
#include "server/shard/memory/reserve.h"
#include "server/shard/memory/taken.h"

struct cairn_shard_job;

struct cairn_loader_part {
    struct cairn_run run;        /* first */
    struct cairn_loader *loader; /* borrowed: the one that it is in */
};

/* One of these at work; the first field of the struct that restore.c, origin.c or extend.c allocates. */
struct cairn_loader {
    struct cairn_task task;                      /* on the files thread */
    struct cairn_loader_part device, host;       /* on the planes, each in one home */
    uint32_t parts_left;                         /* under way */
    struct cairn_shard_job *job;                 /* borrowed; busy until cairn_loader_end */
    void (*filled)(struct cairn_loader *loader); /* of cairn_loader_fill */
    bool puts_follow; /* the job is INITIALIZING then, and not sealed yet */
    atomic_bool canceled;
    cairn_status status; /* the result */
    struct cairn_sentence why;
    /* Frees what the struct owns beside itself; NULL: nothing. */
    void (*release)(struct cairn_loader *loader);
};

/* A job's. */
struct cairn_load {
    char *path;      /* owned: the snapshot; "": none */
    bool joins;      /* the part owns nothing yet: nothing fills it, and it serves at once */
    uint64_t digest; /* the SnapshotPart that tells digests of what was read; 0: nobody asks */
    struct cairn_request asked; /* the JobCreate, or a JobSeal: answered when the state is there */
    struct cairn_loader *at_work; /* owned */
    /* A snapshot is read while the pages of the state are made: both have to end. */
    bool begun, pages_there, loaded;
    struct cairn_taken taken;
};

/* The loader, zero but for what its file has set, begins to work for the job. */
void cairn_loader_begin(struct cairn_loader *loader, struct cairn_shard_job *job);
/* In the home of each chunk, its `describe`, whose `run` is cairn_loader_of's. */
void cairn_loader_fill(struct cairn_loader *loader,
                       bool (*describe)(struct cairn_run *run, uint32_t chunk, uint32_t stage,
                                        struct cairn_works *works),
                       void (*done)(struct cairn_loader *loader));
struct cairn_loader *cairn_loader_of(struct cairn_run *run);
/* It has ended, with loader->status: it is freed, and shard->up->loaded goes on with the job. Perhaps the job
 * is freed, too. */
void cairn_loader_end(struct cairn_loader *loader);
/* The job leaves: the loader ends soon. */
void cairn_load_cancel(struct cairn_shard_job *job);
void cairn_load_release(struct cairn_shard_job *job);

/* Fills a chunk of param by the tensor's initializer. Any thread. */
void cairn_load_init_chunk(struct cairn_works *works, const struct cairn_shard_job *job,
                           uint64_t chunk);

/* The elements of one can be taken over as the other's: both have one shape and one master dtype. */
bool cairn_load_same_form(const struct cairn_tensor_spec *a, const struct cairn_tensor_spec *b);

#endif
