/* What becomes of snapshots that are committed: which one `latest` names, which have a tag, which stay.
 *
 * One that was read and found good is noted so (proto/store/snapshot_word.h); the newest such, of finite
 * results, is `latest`. Then those go that no rule of the job keeps (retention.h), each on a thread of its
 * own (remove.c); and what a coordinator that died has begun of this job and not committed. Where the folder
 * is not the one that snapshots were written to, a tag cannot be read, or the clock went back, nothing goes.
 * Training waits for none of it. */
#ifndef CAIRN_COORDINATOR_SNAPSHOT_KEEP_H
#define CAIRN_COORDINATOR_SNAPSHOT_KEEP_H

#include "proto/store/snapshot_word.h"
#include "server/coordinator/base/names.h"
#include "server/coordinator/snapshot/find.h"

/* Another thread has read all of it, and it is good: notes that, moves `latest`, and removes what may go. */
void cairn_cluster_snapshot_verified(struct cairn_cluster *cluster, const char *job,
                                     const char *id);
/* The first half of it, on that other thread; blocks. One word is written at a time. */
cairn_status cairn_cluster_snapshot_note_good(const struct cairn_cluster *cluster, const char *job,
                                              const char *id,
                                              struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* A snapshot of the job was committed, and noted so: removes what may go now. */
void cairn_cluster_snapshot_keep(struct cairn_cluster_job *job);

/* May the snapshot be removed? CAIRN_ERR_REFUSED: it has a tag, or is the only verified one; the tags go with
 * one that is removed by `force`. Moves `latest` off it. Blocks; another thread than the loop's. */
cairn_status cairn_cluster_snapshot_release(const struct cairn_cluster *cluster, const char *job,
                                            const char *id, bool force,
                                            struct cairn_sentence *why) CAIRN_MUST_CHECK;

/* ---- what an admin asks ---- */

void cairn_cluster_snapshot_prune(struct cairn_cluster_session *session, uint32_t request,
                                  const Cairn__SnapshotPrune *message);
void cairn_cluster_snapshot_tag(struct cairn_cluster_session *session, uint32_t request,
                                const Cairn__SnapshotTag *message);

#endif
