/* Shards come and go: who has which seat (member/seats.h), and who hears of it. */
#ifndef CAIRN_COORDINATOR_SEATING_H
#define CAIRN_COORDINATOR_SEATING_H

#include "server/coordinator/base/names.h"

/* May the shard that says this Hello have its seat? CAIRN_OK: nobody has it now. CAIRN_ERR_BUSY: it is to
 * come again. CAIRN_ERR_FENCED: its process is to end. */
cairn_status cairn_cluster_seat_claim(struct cairn_cluster *cluster, struct cairn_peer *peer,
                                      const Cairn__Hello *hello,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* It has it: the jobs hear of it. False: no place, or no memory. */
bool cairn_cluster_seat_take(struct cairn_cluster_session *session, const Cairn__Hello *hello);
/* The session is gone, for that reason. */
void cairn_cluster_seat_leave(struct cairn_cluster_session *session, cairn_status status,
                              const char *why);
/* Forgets a shard that is gone for good, because an operator says so. CAIRN_ERR_BUSY: it is
 * here, or a job has a part on it. */
cairn_status cairn_cluster_seat_forget(struct cairn_cluster *cluster, const char *name,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Who was asked and is silent loses its seat. */
void cairn_cluster_seats_tick(struct cairn_cluster *cluster);

#endif
