/* Reads a snapshot for a restore on another thread, before anything is touched: manifest,
 * signature, files. If it is damaged and may give way, the next older snapshot is read. */
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/base/log.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/restore/restore.h"

/* A snapshot is read before it is loaded only if a file has one checksum over all of it, since
 * somebody has to read all of it then, or if the snapshot may give way to another. Otherwise the
 * shards hash what they load, or, where a job is given up for the snapshot, the files are proved
 * first: the content root tells of every bit. Checksums are then asked only to find whose fault
 * a damage is. */
static bool has_whole_sums(const struct cairn_manifest *m)
{
    for (size_t i = 0; i < m->file_count; i++)
        if (m->files[i].is_whole) return true;
    return false;
}

cairn_status cairn_cluster_restore_judge_signature(const struct cairn_cluster_restore *restore,
                                                   const struct cairn_manifest *manifest,
                                                   const char *folder, struct cairn_sentence *why)
{
    struct cairn_sentence said = { "" };
    const cairn_status status = cairn_manifest_accept(manifest, &restore->ring, restore->waiver,
                                                      &said);
    return status == CAIRN_OK ? CAIRN_OK : cairn_fail(why, status, "%s: %s", folder, said.text);
}

/* Of restore->folder; which is then without links. */
static void check_folder(struct cairn_cluster_restore *restore)
{
    struct cairn_snapshot snapshot;
    char *folder;
    restore->status =
        cairn_storage_of(restore->folder)->resolve(restore->folder, &folder, &restore->why);
    if (restore->status != CAIRN_OK) return;
    free(restore->folder);
    restore->folder = folder;
    restore->status = cairn_snapshot_open(restore->folder, &snapshot, &restore->why);
    if (restore->status != CAIRN_OK) return;
    restore->status = cairn_cluster_restore_judge_signature(restore, &snapshot.manifest,
                                                            restore->folder, &restore->why);
    const bool is_read = restore->fallback || has_whole_sums(&snapshot.manifest);
    if (restore->status == CAIRN_OK && !restore->plan && is_read)
        restore->status = cairn_snapshot_verify(&snapshot, NULL, &restore->why);
    if (restore->status == CAIRN_OK) {
        restore->manifest = snapshot.manifest; // moves
        cairn_manifest_init(&snapshot.manifest);
    }
    cairn_snapshot_close(&snapshot);
}

static void check_in_turn(struct cairn_cluster_restore *restore)
{
    do check_folder(restore);
    while (restore->status != CAIRN_OK && cairn_cluster_restore_fall_back(restore));
}

void cairn_cluster_restore_prove(struct cairn_cluster_work *work)
{
    struct cairn_cluster_restore *restore = (struct cairn_cluster_restore *)work;
    while (restore->status == CAIRN_OK) {
        cairn_cluster_restore_prove_files(work);
        if (restore->status == CAIRN_OK || !cairn_cluster_restore_fall_back(restore)) return;
        cairn_manifest_release(&restore->manifest);
        check_in_turn(restore);
    }
}

/* Looks at the other snapshots in the folder of the job to be made. If they cannot be listed,
 * the new generation follows the manifest's alone. */
static void look_around(struct cairn_cluster_restore *restore)
{
    const char *root = restore->cluster->storage.path;
    const char *job = cairn_cluster_restore_job_name(restore);
    const char *id = strrchr(restore->folder, '/');
    struct cairn_sentence why;
    if (cairn_snapshot_last_generation(root, job, &restore->last_generation, &why) != CAIRN_OK)
        cairn_log_warn("which generations of job %s there were is not known: %s", job, why.text);
    restore->is_its_own = id != NULL && strcmp(restore->manifest.spec.name, job) == 0 &&
                          cairn_snapshot_committed(root, job, id + 1, &why) == CAIRN_OK;
}

void cairn_cluster_restore_check(struct cairn_cluster_work *work)
{
    struct cairn_cluster_restore *restore = (struct cairn_cluster_restore *)work;
    if (restore->is_stored)
        restore->status = cairn_cluster_storage_seen(restore->cluster, &restore->why);
    if (restore->folder == NULL) cairn_cluster_restore_find_latest(restore);
    if (restore->status == CAIRN_OK) check_in_turn(restore);
    if (restore->status == CAIRN_OK) look_around(restore);
}

void cairn_cluster_restore_warn(const struct cairn_cluster_restore *restore)
{
    struct cairn_sentence what;
    if (cairn_manifest_trust(&restore->manifest, &restore->ring, &what) != CAIRN_TRUST_SIGNED)
        cairn_log_warn("%s is restored, and is %s", restore->folder, what.text);
    if (restore->manifest.unsealed)
        cairn_log_warn("the manifest of %s is of a former version, without a hash over itself: "
                       "whether it was changed cannot be told but by its content root",
                       restore->folder);
}
