/* Prints the state of a job's reduce groups for `cairn job show`. */
#ifndef CAIRN_CTL_JOB_GROUPS_H
#define CAIRN_CTL_JOB_GROUPS_H

#include "client/ctl/ctl.h"

/* Adds the keys reduce_groups, reduce_group_count and reduce_groups_off, for a job whose spec wants
 * groups. */
void cairn_ctl_groups_json(const Cairn__JobStatus *j, json_t *object);
/* "reduce groups: 2 (ranks 0-3 by shard s0; ranks 4-7 by shards s1, s2)", one line. */
void cairn_ctl_groups_print(const Cairn__JobStatus *j);

#endif
