/* What becomes of snapshots that are committed: which one `latest` names, which have a tag, which stay.
 *
 * `latest` names the newest that is whole, of finite results. One that was read and found good (scrub.h) is
 * noted so (proto/store/snapshot_word.h); then those go that no rule of the job keeps (retention.h), each on
 * a thread of its own (remove.c), and what a coordinator that died has begun of this job and not committed.
 * Where the folder is not the one that snapshots were written to, a tag cannot be read, or the clock went
 * back, nothing goes. Training waits for none of it. */
#ifndef CAIRN_COORDINATOR_SNAPSHOT_KEEP_H
#define CAIRN_COORDINATOR_SNAPSHOT_KEEP_H

#include "proto/store/snapshot_word.h"
#include "server/coordinator/base/names.h"
#include "server/coordinator/snapshot/find.h"

/* It is committed, and its files are there with their sizes and headers: `latest` names it, if it is newer,
 * so that whoever waited for it restores it. Blocks, as the next one: another thread than the loop's; one
 * word is written at a time. */
cairn_status cairn_cluster_snapshot_note_latest(const struct cairn_cluster *cluster,
                                                const char *job, const char *id,
                                                struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* All of it was read, and is good. */
cairn_status cairn_cluster_snapshot_note_good(const struct cairn_cluster *cluster, const char *job,
                                              const char *id,
                                              struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* One of the job was noted as good, on the loop: removes what may go now. */
void cairn_cluster_snapshot_keep(struct cairn_cluster *cluster, const char *job);

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
