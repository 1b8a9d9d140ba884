/* Shards by name: who sits there, and who may (server/core/seat.h). */
#ifndef CAIRN_COORDINATOR_MEMBER_SEATS_H
#define CAIRN_COORDINATOR_MEMBER_SEATS_H

#include "server/coordinator/base/names.h"

#define CAIRN_SEATS_MAX 4096 /* shards that are known by name */

uint32_t cairn_cluster_seats_up(const struct cairn_cluster *cluster);
/* Counts the shards that may be given part of a job of this spec (NULL: of any job). With `storing`, only
 * those without a storage complaint. */
uint32_t cairn_cluster_seats_staying(const struct cairn_cluster *cluster,
                                     const struct cairn_job_spec_data *spec, bool storing);
/* NULL: there is none of that name. */
struct cairn_cluster_seat *cairn_cluster_seat_find(const struct cairn_cluster *cluster,
                                                   const char *name);
/* Makes it if need be; NULL: no memory, or CAIRN_SEATS_MAX. */
struct cairn_cluster_seat *cairn_cluster_seat_get(struct cairn_cluster *cluster, const char *name);
void cairn_cluster_seat_free(struct cairn_cluster_seat *seat);
/* Another process, which holds parts, asked for it within the last lease. */
bool cairn_cluster_seat_claimed(const struct cairn_cluster *cluster,
                                const struct cairn_cluster_seat *seat);

#endif
