/* Saves the state of a shard that ends before other shards hold it (job/drain.h): the
 * coordinator itself begins a snapshot of each of the shard's jobs, one for all shards that end
 * together. Training goes on meanwhile; steps after the snapshot are lost with the shard. */
#ifndef CAIRN_COORDINATOR_CUT_PARTING_H
#define CAIRN_COORDINATOR_CUT_PARTING_H

#include "server/coordinator/base/names.h"
#include "server/core/decision.h"

struct cairn_cluster_cut;

/* A job's parting snapshot. */
struct cairn_cluster_parting {
    enum {
        CAIRN_PARTING_NONE,
        CAIRN_PARTING_WANTED, /* what stands in its way passes by itself */
        CAIRN_PARTING_TAKEN,  /* the cut is under way */
        CAIRN_PARTING_ENDED,
    } state;
    bool is_saved;                 /* ENDED, and well: */
    struct cairn_version version;  /* as this one */
    struct cairn_sentence outcome; /* for people: saved as what, or why not */
};

/* One more shard of the job ends. If the job's present version was already saved for another
 * shard, no new snapshot is taken. */
void cairn_cluster_parting_want(struct cairn_cluster_job *job);
/* The next step. True: it has ended. */
bool cairn_cluster_parting_advance(struct cairn_cluster_job *job);
/* The cut is of one, and has ended, well or not. */
void cairn_cluster_parting_cut_ended(const struct cairn_cluster_cut *cut);

#endif
