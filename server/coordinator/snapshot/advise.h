/* How often a job should take a snapshot: `cairn snapshot advise`.
 *
 * The answer is Young's rule (J. W. Young, "A first order approximation to the optimum
 * checkpoint interval", Communications of the ACM 17(9), 1974): the loss, as snapshots' cost and
 * as steps that are done again after a fault, is least at an interval of sqrt(2 * MTBF * cost).
 * The rule holds while the cost is small against the MTBF. The cost is measured (cut/cost.h),
 * and so is the time between faults (the cluster's events), unless it is given. */
#ifndef CAIRN_COORDINATOR_SNAPSHOT_ADVISE_H
#define CAIRN_COORDINATOR_SNAPSHOT_ADVISE_H

#include "server/coordinator/base/names.h"

struct cairn_advise_given {
    double mtbf_s;  /* mean time between faults */
    double cost_s;  /* of a snapshot, in time of training; 0: it was not to be seen */
    double write_s; /* from its begin until it is committed: no more often than that */
    double step_s;  /* 0: not known */
};
struct cairn_advise_found {
    uint32_t interval_s;     /* at least 1, at most CAIRN_SPEC_SNAPSHOT_S_MAX */
    uint64_t interval_steps; /* at least 1; 0: not known */
    bool by_write;           /* Young's would be shorter than a snapshot takes */
};
/* Pure. */
struct cairn_advise_found cairn_advise(const struct cairn_advise_given *given);

/* CAIRN_ERR_NOT_FOUND: there is no such job. Loop thread. */
void cairn_cluster_snapshot_advise(struct cairn_cluster_session *session, uint32_t request,
                                   const Cairn__SnapshotAdvise *message);

#endif
