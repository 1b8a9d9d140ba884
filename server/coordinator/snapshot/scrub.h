/* Reads snapshots again, so that damage is known before anybody needs them: each when it has been
 * committed, and then as often as the job's snapshot_scrub_every_s says. One snapshot at a time is
 * read, past the page cache, on a thread of its own that yields to all others and works no more
 * than half of the time.
 *
 * Each result stands in checks/ID beside the snapshots (proto/snapshot_io/word.h), so that a
 * coordinator that starts again knows when each was read last; damage is an event and a line of
 * the log. Loop thread only. */
#ifndef CAIRN_COORDINATOR_SNAPSHOT_SCRUB_H
#define CAIRN_COORDINATOR_SNAPSHOT_SCRUB_H

#include "server/coordinator/base/names.h"

struct cairn_cluster_scrub;

cairn_status cairn_cluster_scrub_open(struct cairn_cluster *cluster,
                                      struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* Gives up what is being read, and waits for its thread a moment; on_closed follows if it was open. */
void cairn_cluster_scrub_close(struct cairn_cluster *cluster, void (*on_closed)(void *context),
                               void *context);
/* Frees it; with the cluster, whose handles are closed. False: its thread hangs in the storage, and may read
 * the cluster's `storage` when it comes back: that stays, until the process ends. */
bool cairn_cluster_scrub_free(struct cairn_cluster *cluster) CAIRN_MUST_CHECK;
/* The snapshot of the job is to be read, before those whose time has come. More than 64 at a time are left to
 * these. */
void cairn_cluster_scrub_want(struct cairn_cluster *cluster, const char *job, const char *id);
/* Begins the next one, if there is one. */
void cairn_cluster_scrub_tick(struct cairn_cluster *cluster);

#endif
