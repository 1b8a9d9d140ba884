/* Terms: what the core goes by of a spec, which an amendment may change between rounds. */
#ifndef CAIRN_COORDINATOR_ROUND_TERMS_H
#define CAIRN_COORDINATOR_ROUND_TERMS_H

#include "server/coordinator/base/names.h"
#include "server/core/round.h"

/* The parts of a spec that the core borrows. */
struct cairn_cluster_terms {
    struct cairn_cluster_terms *older; /* the core may still go by them */
    struct cairn_job_spec_data own;    /* owned: the groups, for their points */
    struct cairn_round_terms core;     /* its arrays are owned */
    uint32_t *frozen_tensors;          /* owned: [frozen_tensor_count], by index */
    size_t frozen_tensor_count;
    uint32_t *still; /* owned: [group_count], applied steps in a row with a learning rate of 0 */
};

/* Makes the terms of a spec that was judged. */
cairn_status cairn_cluster_terms_make(const struct cairn_job_spec_data *spec,
                                      struct cairn_cluster_terms **terms_out,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_cluster_terms_free(struct cairn_cluster_terms *terms); /* and the older; NULL is fine */
/* A round is being applied: warns, once, of a group that does not learn for long. */
void cairn_cluster_terms_applied(struct cairn_cluster_job *job);
/* The terms of the round that is open, or of the last one if none is. */
const struct cairn_cluster_terms *cairn_cluster_terms_in_force(const struct cairn_cluster_job *job);
/* The job takes them, and its core goes by them from the next round on. */
void cairn_cluster_terms_replace(struct cairn_cluster_job *job, struct cairn_cluster_terms *terms);

#endif
