/* A job as a whole. Loop thread. */
#ifndef CAIRN_SHARD_JOB_OPEN_H
#define CAIRN_SHARD_JOB_OPEN_H

#include "proto/wire/messages.h"

struct cairn_layout;
struct cairn_shard_map;
struct cairn_shard;
struct cairn_shard_job;

/* Makes a job, which the shard does not know yet, from a create whose spec and layout are complete.
 * Any thread, since a million tensors take seconds. CAIRN_ERR_MALFORMED, _INVALID, _UNSUPPORTED:
 * the spec or the layout is wrong; CAIRN_ERR_NO_MEMORY. */
struct cairn_shard_draft;
CAIRN_MUST_CHECK cairn_status cairn_shard_draft_open(struct cairn_shard *shard,
                                                     const Cairn__JobCreate *message,
                                                     const struct cairn_paged *spec,
                                                     const struct cairn_paged *layout,
                                                     struct cairn_shard_draft **draft_out,
                                                     struct cairn_sentence *why);
/* Gives back what was admitted. */
void cairn_shard_draft_close(struct cairn_shard_draft *draft);
bool cairn_shard_draft_has_layout(const struct cairn_shard_draft *draft,
                                  const struct cairn_layout *layout);
/* Judges the create, and counts the job's memory, which is the draft's until it is opened or closed.
 * CAIRN_ERR_NO_MEMORY: it does not fit, with the numbers; CAIRN_ERR_INVALID. */
CAIRN_MUST_CHECK cairn_status cairn_shard_draft_admit(struct cairn_shard_draft *draft,
                                                      const Cairn__JobCreate *message,
                                                      struct cairn_sentence *why);
/* The tables of a draft that was admitted; any thread. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_shard_draft_make(struct cairn_shard_draft *draft,
                                                     const Cairn__JobCreate *message,
                                                     struct cairn_sentence *why);
bool cairn_shard_draft_is_made(const struct cairn_shard_draft *draft);
/* Takes the draft, which is made: the job is one of the shard's. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO: nothing
 * is held. */
CAIRN_MUST_CHECK cairn_status cairn_shard_job_open(struct cairn_shard *shard,
                                                   struct cairn_shard_draft *draft,
                                                   struct cairn_shard_job **job_out,
                                                   struct cairn_sentence *why);
/* A layout of the job's tensors off the wire, which is the caller's. CAIRN_ERR_MALFORMED,
 * CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_shard_job_layout(const struct cairn_shard_job *job,
                                                     const struct cairn_paged *bytes,
                                                     struct cairn_layout **layout_out,
                                                     struct cairn_sentence *why);
/* Is there so much of the device's memory, and staging for its streams beside it? CAIRN_ERR_NO_MEMORY, with
 * the numbers, of which host_bytes is one; CAIRN_ERR_IO: the device failed. Without a device: 0 bytes. */
CAIRN_MUST_CHECK cairn_status cairn_shard_job_judge_device(const struct cairn_shard_job *job,
                                                           uint64_t device_bytes,
                                                           uint64_t host_bytes,
                                                           struct cairn_sentence *why);
/* The bytes that the job takes of the device, with the bytes that no element uses. `all` counts
 * every published copy that is to be there, else only those that are. */
uint64_t cairn_shard_job_device_bytes(const struct cairn_shard_job *job, bool all);
/* Folds that keep all homes at work that a part of this map has chunks in. */
uint32_t cairn_shard_job_folds_wanted(const struct cairn_shard_job *job,
                                      const struct cairn_shard_map *map, uint64_t host_from);
/* Makes it LEAVING: members are cut, and it is freed when nothing refers to it, perhaps at once. */
void cairn_shard_job_leave(struct cairn_shard_job *job);
/* Frees it whatever is in flight: the fabric and the pools are closed. */
void cairn_shard_job_free(struct cairn_shard_job *job);

/* Of shard->up: `unused` frees a job that is LEAVING; `fault`. */
void cairn_shard_job_unused(struct cairn_shard_job *job);
void cairn_shard_job_stop(struct cairn_shard_job *job, const char *why);

#endif
