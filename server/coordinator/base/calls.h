/* Questions to shards. A gather is one question to several shards and one answer, when all have answered. A
 * shard that goes away fails its calls with CAIRN_ERR_CLOSED. */
#ifndef CAIRN_COORDINATOR_BASE_CALLS_H
#define CAIRN_COORDINATOR_BASE_CALLS_H

#include "server/coordinator/base/names.h"

/* An id for a request of ours, also of one whose answer nobody waits for. Never 0. */
uint32_t cairn_cluster_request_new(struct cairn_cluster *cluster);
/* `status` is CAIRN_OK if all said Done, else the first failure; `why` says whose. */
typedef void (*cairn_cluster_gather_fn)(void *context, cairn_status status, const char *why);
/* A question to nobody yet: cairn_cluster_gather_ask adds shards, cairn_cluster_gather_start waits for them.
 * NULL: no memory. */
struct cairn_cluster_gather *cairn_cluster_gather_open(struct cairn_cluster *cluster,
                                                       cairn_cluster_gather_fn on_done,
                                                       void *context);
/* The same about a job: on_done comes only if the job is still there and the coordinator does not close.
 * on_done gets a copy of `about`, valid until it returns; NULL, 0: there is nothing but the job. */
typedef void (*cairn_cluster_job_gather_fn)(struct cairn_cluster_job *job, const void *about,
                                            cairn_status status, const char *why);
struct cairn_cluster_gather *cairn_cluster_gather_open_job(const struct cairn_cluster_job *job,
                                                           cairn_cluster_job_gather_fn on_done,
                                                           const void *about, size_t about_bytes);
/* The id with which the caller sends the request to that seat. 0: no memory, or the seat is away; the gather
 * fails then. */
uint32_t cairn_cluster_gather_ask(struct cairn_cluster_gather *gather,
                                  struct cairn_cluster_seat *seat);
/* The same, and sends it: a message whose frames are this one alone. */
uint32_t cairn_cluster_gather_send(struct cairn_cluster_gather *gather,
                                   struct cairn_cluster_seat *seat, uint16_t type,
                                   const ProtobufCMessage *message);
/* All were asked: on_done comes when all have answered, and at once if nobody is left to answer. */
void cairn_cluster_gather_start(struct cairn_cluster_gather *gather);
/* Adds the names of those that have not answered: "s1, s3". */
void cairn_cluster_gather_awaited(const struct cairn_cluster_gather *gather,
                                  struct cairn_sentence *out);
/* A shard answers a request of ours. */
void cairn_cluster_calls_reply(struct cairn_cluster_seat *seat, uint32_t request,
                               cairn_status status, const char *text);
/* The shard is gone: its calls fail. Nobody asks it anything in here. */
void cairn_cluster_calls_seat_gone(struct cairn_cluster_seat *seat);

#endif
