/* Periodic snapshots: of each version whose step is a multiple of the job's snapshot_every, or of the first
 * one when snapshot_every_s have passed since one was due, begun by the coordinator itself. In a job with
 * buffers_every the version is the one that a write makes after the step, which has the buffers, too.
 *
 * Which are periodic is in their manifests, with the number of the job, so that the count goes on after a
 * restart, and neither what somebody asked for nor what another job of the name has left is ever removed. Old
 * ones go when a newer one is committed, never before. One that fails, or is due while another cut runs, is
 * said, and the next is tried at its step. While results of the job are not finite (round/halts.h) none is
 * taken. Training waits for none of it. */
#ifndef CAIRN_COORDINATOR_CUT_PERIODIC_H
#define CAIRN_COORDINATOR_CUT_PERIODIC_H

#include "server/coordinator/base/names.h"
#include "server/coordinator/cut/cost.h"
#include "server/core/decision.h"

struct cairn_cluster_cut;

/* A job's snapshots: the one under way, and when the next is due. */
struct cairn_cluster_snapshots {
    struct cairn_cluster_cut *cut; /* a snapshot or a digest on its way; NULL: none is (cut.h) */
    struct cairn_version stepped;  /* the version at the last event */
    /* the number of the next cut, which shards were asked to prepare; 0: they were not */
    uint64_t ahead;
    bool awaits_write; /* buffers_every: a step was due, and the write after it is still to come */
    uint64_t due_ms;   /* snapshot_every_s: cairn_cluster_now_ms + 1 when one was due; 0: not yet */
    struct cairn_cluster_cost cost;
    struct cairn_sentence failed;      /* the last periodic one; empty: it did not; for status */
    struct cairn_sentence passed_over; /* restore/latest.c, until a snapshot is taken; for status */
};

/* The job may be at a step that is to be saved. */
void cairn_cluster_periodic_advance(struct cairn_cluster_job *job);
/* The cut is one, and has ended, well or not. */
void cairn_cluster_periodic_ended(const struct cairn_cluster_cut *cut);

#endif
