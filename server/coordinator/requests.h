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

/* The folders of a job's committed snapshots, the newest first, for `found` on the loop, which owns them.
 * False: no thread, or no memory for it. */
typedef void (*cairn_cluster_found_fn)(void *context, cairn_status status, const char *why,
                                       char **folders, size_t count);
bool cairn_cluster_snapshots_find(struct cairn_cluster *cluster, const char *job,
                                  cairn_cluster_found_fn found, void *context);

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
/* The folder of a snapshot is being removed. */
bool cairn_cluster_snapshot_removing(const struct cairn_cluster *cluster, const char *folder);

/* restore.c, restore_proof.c */
void cairn_cluster_restore_begin(struct cairn_cluster_session *session, uint32_t request,
                                 const Cairn__SnapshotRestore *message);
/* The same without an admin: of a job that is not there, or lost (else CAIRN_ERR_EXISTS). `ended` hears of
 * the end, unless the cluster closes before. Not CAIRN_OK: nothing was begun. */
typedef void (*cairn_cluster_restored_fn)(struct cairn_cluster *cluster, const char *job,
                                          cairn_status status, const char *why);
cairn_status cairn_cluster_restore_resume(struct cairn_cluster *cluster, const char *job,
                                          const char *folder, cairn_cluster_restored_fn ended,
                                          struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_cluster_restores_forget(struct cairn_cluster *cluster,
                                   const struct cairn_cluster_session *session);
/* With the cluster: nobody is told. */
void cairn_cluster_restores_close(struct cairn_cluster *cluster);
/* True: it is of what a restore has loaded. */
bool cairn_cluster_restore_on_part(struct cairn_cluster_session *session,
                                   const Cairn__SnapshotPart *part);
void cairn_cluster_restores_shard_gone(struct cairn_cluster_job *job, uint32_t shard);

#endif
