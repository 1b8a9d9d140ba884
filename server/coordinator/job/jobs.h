/* Jobs are made, found again after a start, and dropped. */
#ifndef CAIRN_COORDINATOR_JOB_JOBS_H
#define CAIRN_COORDINATOR_JOB_JOBS_H

#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/names.h"
#include "server/core/decision.h"

struct cairn_stored_job;

#define CAIRN_JOBS_MAX 1024

/* A row of the store becomes a job; or all rows do. */
cairn_status cairn_cluster_job_load(struct cairn_cluster *cluster,
                                    const struct cairn_stored_job *row, struct cairn_sentence *why);
cairn_status cairn_cluster_jobs_load(struct cairn_cluster *cluster, struct cairn_sentence *why);
/* Begins to make the job that `packed` is the spec of: a thread plans it, the shards make room,
 * and it is stored. Members that wait for the job then hear of it. `generation` is explained in
 * job/first.h; `maker` is the session that wants the job. CAIRN_ERR_REFUSED,
 * CAIRN_ERR_UNSUPPORTED, CAIRN_ERR_NO_MEMORY: nothing was begun. */
CAIRN_MUST_CHECK cairn_status cairn_cluster_job_create(
    struct cairn_cluster *cluster, const struct cairn_job_spec_data *spec, uint64_t generation,
    struct cairn_packed *packed, const char *maker, struct cairn_sentence *why);
/* A thread plans a job of that name. */
bool cairn_cluster_job_planning(const struct cairn_cluster *cluster, const char *name);
/* Takes the job out of the store, then frees it here and on its shards; until then it is CREATING. Its
 * members must be gone. */
void cairn_cluster_job_drop(struct cairn_cluster_job *job);
void cairn_cluster_job_free(struct cairn_cluster_job *job);
/* A spec or a layout that nobody could take is refused before it is stored: CAIRN_ERR_INVALID. */
CAIRN_MUST_CHECK cairn_status cairn_cluster_judge_packed(const char *job,
                                                         const struct cairn_packed *packed,
                                                         struct cairn_sentence *why);
/* A job that nobody knows yet, over as many shards as `shards` of the configuration says, and as many more as
 * are here and see the snapshots. */
struct cairn_cluster_draft {
    struct cairn_cluster_job *job; /* owned; NULL: there is none */
    uint32_t shard_count;
};
/* Opens a draft of a job that is to be restored, over all shards that fit. False: no memory. */
bool cairn_cluster_draft_open(struct cairn_cluster_draft *draft, struct cairn_cluster *cluster,
                              const struct cairn_job_spec_data *spec);
/* Spec and layout. Any thread: a million tensors take seconds. */
cairn_status cairn_cluster_draft_plan(struct cairn_cluster_draft *draft,
                                      const struct cairn_job_spec_data *spec,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Its shards: the job is the caller's. CAIRN_ERR_NOT_READY: there are not so many, or not any more. */
cairn_status cairn_cluster_draft_take(struct cairn_cluster_draft *draft,
                                      struct cairn_cluster_job **job_out,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_cluster_draft_close(struct cairn_cluster_draft *draft);
/* The fields of a JobCreate message. */
struct cairn_cluster_job_load {
    bool extend; /* made of the part that the shard has */
    bool joins;  /* a part that owns nothing, of a job that goes on */
    const char *snapshot_path;
    uint64_t digest; /* of a SnapshotPart of what was loaded; 0: none is wanted */
    struct cairn_version version;
    const struct cairn_decision *last; /* may be NULL */
};
/* JobCreate and its pages to all shards of the job. Asks them with the gather, which the caller starts. */
void cairn_cluster_job_send_create(struct cairn_cluster_job *job,
                                   const struct cairn_cluster_job_load *load,
                                   struct cairn_cluster_gather *gather);
/* The same to one shard, of that index and in that layout. */
void cairn_cluster_job_ask_create(const struct cairn_cluster_job *job,
                                  const struct cairn_cluster_job_load *load, uint32_t shard,
                                  struct cairn_cluster_seat *seat, struct cairn_packed *layout,
                                  struct cairn_cluster_gather *gather);
/* All shards have made their part: is each still the process that did? CAIRN_ERR_CLOSED: `why` says which is
 * not. */
cairn_status cairn_cluster_job_judge_shards(const struct cairn_cluster_job *job,
                                            struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* act.c: cairn_cluster_core_open with the hands that do what it says. */
cairn_status cairn_cluster_job_core_open(struct cairn_cluster_job *job,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
