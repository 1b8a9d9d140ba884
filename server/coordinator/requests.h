/* What an admin asks for, each in a file of its own; but for the status, it is answered later. */
#ifndef CAIRN_COORDINATOR_REQUESTS_H
#define CAIRN_COORDINATOR_REQUESTS_H

#include "server/coordinator/cluster.h"

/* cluster_status.c */
void cairn_cluster_status_answer(struct cairn_cluster_session *session, uint32_t request);

/* snapshot_list.c */
void cairn_cluster_snapshots_list(struct cairn_cluster_session *session, uint32_t request,
                                  const char *job);
void cairn_cluster_snapshots_show(struct cairn_cluster_session *session, uint32_t request,
                                  const char *job, const char *id);

/* resume.c */
/* Looks for snapshots of the job, and restores the newest that is whole, if that is not under way; then those
 * who wait for it go on (cairn_cluster_openers_resumed). False: no memory. */
bool cairn_cluster_resume_begin(struct cairn_cluster *cluster, const char *job);
bool cairn_cluster_resuming(const struct cairn_cluster *cluster, const char *job);
/* With the cluster, whose threads have ended: nobody is told. */
void cairn_cluster_resumes_close(struct cairn_cluster *cluster);

/* drop.c */
void cairn_cluster_job_remove(struct cairn_cluster_session *session, uint32_t request,
                              const Cairn__JobRemove *message);
void cairn_cluster_drops_forget(struct cairn_cluster *cluster,
                                const struct cairn_cluster_session *session);
/* Behind the sessions and the saves: nothing comes back to those that are left. */
void cairn_cluster_drops_close(struct cairn_cluster *cluster);

/* backup.c */
void cairn_cluster_backup_begin(struct cairn_cluster_session *session, uint32_t request,
                                const Cairn__ClusterBackup *message);
void cairn_cluster_backup_forget(struct cairn_cluster *cluster,
                                 const struct cairn_cluster_session *session);
/* With the cluster, whose threads have ended. */
void cairn_cluster_backup_close(struct cairn_cluster *cluster);

/* snapshot_remove.c */
void cairn_cluster_snapshot_remove(struct cairn_cluster_session *session, uint32_t request,
                                   const Cairn__SnapshotRemove *message);
/* One that is not wanted any more; if it cannot be removed now (it is being restored), it stays. */
void cairn_cluster_snapshot_retire(struct cairn_cluster *cluster, const char *job, const char *id);
/* The folder of a snapshot is being removed. */
bool cairn_cluster_snapshot_removing(const struct cairn_cluster *cluster, const char *folder);

/* restore.c, restore_proof.c */
void cairn_cluster_restore_begin(struct cairn_cluster_session *session, uint32_t request,
                                 const Cairn__SnapshotRestore *message);
/* Without an admin: the newest snapshot of the job but `skip`. of_job: of this one, which is lost (else
 * CAIRN_ERR_CANCELED), and none that is ahead of it: that is of another job that had the name; 0: of any of
 * that name that is lost, or of none (else CAIRN_ERR_EXISTS). A lost one keeps its policy and its workers'
 * bounds. `ended` hears of the end, once, unless the cluster closes before. False: it was not begun. */
struct cairn_cluster_restore;
typedef void (*cairn_cluster_restored_fn)(const struct cairn_cluster_restore *restore,
                                          cairn_status status, const char *text);
bool cairn_cluster_restore_latest(struct cairn_cluster *cluster, const char *job, uint64_t of_job,
                                  size_t skip, cairn_cluster_restored_fn ended);
/* The snapshot is to blame: the one before it may be whole. */
bool cairn_cluster_restore_is_damage(cairn_status status);
void cairn_cluster_restores_forget(struct cairn_cluster *cluster,
                                   const struct cairn_cluster_session *session);
/* With the cluster: nobody is told. */
void cairn_cluster_restores_close(struct cairn_cluster *cluster);
/* True: it is of what a restore has loaded. */
bool cairn_cluster_restore_on_part(struct cairn_cluster_session *session,
                                   const Cairn__SnapshotPart *part);
void cairn_cluster_restores_shard_gone(struct cairn_cluster_job *job, uint32_t shard);

#endif
