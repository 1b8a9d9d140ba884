/* A job may halt for rounds that are skipped, and for results that are not finite: see halts.c. */
#ifndef CAIRN_COORDINATOR_ROUND_HALTS_H
#define CAIRN_COORDINATOR_ROUND_HALTS_H

#include "proto/spec/results.h"
#include "server/base/log.h"
#include "server/coordinator/base/names.h"
#include "server/core/decision.h"

/* The halts of a job that the log was told of. */
struct cairn_cluster_halts {
    struct cairn_log_limit skips_limit, results_limit;
    struct cairn_version said;  /* it was looked at the results of this one */
    struct cairn_sentence lost; /* the worker that was lost last, and how; empty: none was */
    bool loss_said;
};

/* The results that a shard told of its part of a job. */
struct cairn_cluster_part_results {
    struct cairn_results published; /* of the version that the shard published last */
    struct cairn_results gradients; /* of gradients_round, whose sums it told last */
    uint64_t gradients_round;       /* 0: it has told none */
};

/* Takes a shard's report of the version that it has published; asked again, a shard reports the
 * same again. */
void cairn_cluster_halts_take(struct cairn_cluster_job *job, uint32_t shard,
                              const Cairn__Published *message);
/* Takes the manifest's report of the version that is restored, before the shards report: as in
 * the manifest, shard 0 reports for all. */
void cairn_cluster_halts_restored(struct cairn_cluster_job *job, const struct cairn_results *saved);
/* Elements of the newest version with a result that is not finite, and their tensors
 * (proto/spec/results.h). */
uint64_t cairn_cluster_halts_nonfinite(const struct cairn_cluster_job *job,
                                       char tensors_out[static CAIRN_RESULTS_BYTES]);
/* The same of a job that is damaged by them: of one with init_nonfinite_ok, none. */
struct cairn_results cairn_cluster_halts_damage(const struct cairn_cluster_job *job);
/* Takes a shard's report that so many elements of the sums of a round are not finite. */
void cairn_cluster_halts_reduced(struct cairn_cluster_job *job, uint32_t shard,
                                 const Cairn__Reduced *message, uint64_t nonfinite);
/* The gradients of that round that are not finite, as far as shards told this coordinator. */
struct cairn_results cairn_cluster_halts_gradients(const struct cairn_cluster_job *job,
                                                   uint64_t round);
/* The member is lost: who it is, and why, for what is said of it. Before the core hears of it. */
void cairn_cluster_halts_lost(struct cairn_cluster_job *job,
                              const struct cairn_cluster_member *member, const char *why);
/* Behind who is awaited: that a worker was lost, if somebody waits for that. */
void cairn_cluster_halts_add_lost(const struct cairn_cluster_job *job, struct cairn_sentence *out);
/* After each event of the core: of a new version that has some, the log says so. */
void cairn_cluster_halts_advance(struct cairn_cluster_job *job);
/* The log hears of a skip for want of finite gradients. One that lowers the loss scale is the way things
 * go. */
void cairn_cluster_halts_skipped(struct cairn_cluster_job *job, const struct cairn_decision *skip);
/* Says why no round opens, to whoever asks for one, and to the log. The job's core must be
 * halted. */
void cairn_cluster_halts_why(const struct cairn_cluster_job *job, struct cairn_sentence *out);

#endif
