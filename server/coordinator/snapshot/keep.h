/* The fate of committed snapshots: which one `latest` names, which have a tag, which stay.
 *
 * `latest` names the newest snapshot that is whole and has finite results. It does so from the
 * commit on, when the headers have been read again, until all of the snapshot is read and found
 * damaged; then `latest` goes back to the newest that is verified. A snapshot that was read and
 * found good (scrub.h) is noted so (proto/snapshot_io/word.h). Then snapshots that no rule of the
 * job keeps (retention.h) are removed, each on a thread of its own (remove.c), and so are the
 * leftovers of a coordinator that died: snapshots of this job that it had begun and not committed,
 * or begun to remove.
 *
 * Nothing is removed if the folder is not the one that snapshots were written to, or if a tag
 * cannot be read. Training waits for none of this. */
#ifndef CAIRN_COORDINATOR_SNAPSHOT_KEEP_H
#define CAIRN_COORDINATOR_SNAPSHOT_KEEP_H

#include "proto/snapshot_io/snapshot_io.h"
#include "proto/snapshot_io/word.h"
#include "server/coordinator/base/names.h"
#include "server/coordinator/snapshot/find.h"

/* It is committed, and its files are there with their sizes and headers: `latest` names it, if it is newer,
 * so that whoever waited for it restores it. Blocks, as the next one: another thread than the loop's; one
 * word is written at a time. */
cairn_status cairn_cluster_snapshot_note_latest(const struct cairn_cluster *cluster,
                                                const char *job, const char *id,
                                                struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* All of it was read, and is good, or damaged. CAIRN_ERR_NOT_FOUND: it is gone meanwhile, which is no damage;
 * nothing is noted. */
cairn_status cairn_cluster_snapshot_note_check(const struct cairn_cluster *cluster, const char *job,
                                               const char *id, bool is_good,
                                               struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* One of the job was noted as good, on the loop: removes what may go now. */
void cairn_cluster_snapshot_keep(struct cairn_cluster *cluster, const char *job);

/* Why a snapshot goes, by which is judged whether it may, as things are when it does. */
enum cairn_removal_cause {
    CAIRN_REMOVAL_ASKED,  /* not one with a tag, nor the only verified one */
    CAIRN_REMOVAL_FORCED, /* its tags go with it */
    CAIRN_REMOVAL_RETIRED, /* nothing keeps it: nor one with a tag, and while another one is verified */
    CAIRN_REMOVAL_LEFT /* begun, or begun to be removed, by one who died: not if it is committed */
};
/* The first of a removal: if it may go (CAIRN_ERR_REFUSED: it may not) it is no snapshot any more, and
 * `latest` is off it; its files are still there. Whoever asks next does not count on it. Blocks; another
 * thread than the loop's. */
cairn_status cairn_cluster_snapshot_release(const struct cairn_cluster *cluster, const char *job,
                                            const char *id, enum cairn_removal_cause cause,
                                            struct cairn_snapshot_removed *removed_out,
                                            struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* remove.c; on the loop: one that is not wanted any more; if it cannot be removed now (it is being
 * restored), it stays. */
void cairn_cluster_snapshot_retire(struct cairn_cluster *cluster, const char *job, const char *id,
                                   enum cairn_removal_cause cause);
/* Around what is read and then decided by tags: nothing is released meanwhile. Blocks. */
void cairn_cluster_snapshot_words_lock(void);
void cairn_cluster_snapshot_words_unlock(void);

/* ---- what an admin asks ---- */

void cairn_cluster_snapshot_prune(struct cairn_cluster_session *session, uint32_t request,
                                  const Cairn__SnapshotPrune *message);
void cairn_cluster_snapshot_tag(struct cairn_cluster_session *session, uint32_t request,
                                const Cairn__SnapshotTag *message);

#endif
