/* The work of a cut that another thread does: the content root from the digests, and the
 * manifest. */
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/base/log.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cut.h"
#include "server/coordinator/cut/digests.h"
#include "server/coordinator/snapshot/keep.h"
#include "server/coordinator/trust/keys.h"

/* Removes the files of a snapshot that was begun. If some cannot be removed, they have no
 * manifest, so nobody lists them, and the snapshot stays noted as begun until they are gone
 * (keep.h). */
static cairn_status remove_begun(const struct cairn_cluster_cut *cut)
{
    struct cairn_snapshot_removed removed;
    struct cairn_sentence why;
    const char *root = cut->work.cluster->storage.path, *job = cut->manifest.spec.name;
    const cairn_status status = cairn_snapshot_remove(root, job, cut->id, &removed, &why);
    if (status != CAIRN_OK && status != CAIRN_ERR_NOT_FOUND)
        cairn_log_warn("what snapshot %s of job %s has written stays for now: %s", cut->id, job,
                       why.text);
    return status == CAIRN_ERR_NOT_FOUND ? CAIRN_OK : status;
}

void cairn_cluster_cut_make_folder(struct cairn_cluster_work *work)
{
    struct cairn_cluster_cut *cut = (struct cairn_cluster_cut *)work;
    cut->folder_status = cairn_cluster_storage_seen(work->cluster, &cut->folder_why);
    if (cut->folder_status != CAIRN_OK) return;
    cut->folder_status = cairn_snapshot_folder_make(
        work->cluster->storage.path, cut->manifest.spec.name, cut->version.generation,
        cut->version.step, cut->id, &cut->folder, &cut->folder_why);
    if (cut->folder_status == CAIRN_OK)
        cut->folder_status = cairn_snapshot_begun_set(work->cluster->storage.path,
                                                      cut->manifest.spec.name, cut->id, cut->job_id,
                                                      &cut->folder_why);
}

/* Whoever waits for the snapshot finds that `latest` names it: files and headers are as the
 * manifest has them, read back from the storage. The scrub reads all of it later, and takes
 * `latest` off a damaged one. If `latest` cannot be set, the log says so, and the next snapshot
 * that is verified sets it. */
static void note(const struct cairn_cluster_cut *cut)
{
    struct cairn_snapshot snapshot;
    struct cairn_sentence why;
    cairn_status status = cairn_snapshot_open(cut->folder, &snapshot, &why);
    if (status == CAIRN_OK) {
        cairn_snapshot_close(&snapshot);
        status = cairn_cluster_snapshot_note_latest(cut->work.cluster, cut->manifest.spec.name,
                                                    cut->id, &why);
    }
    if (status != CAIRN_OK)
        cairn_log_warn("snapshot %s of job %s is committed, and `latest` does not name it: %s",
                       cut->id, cut->manifest.spec.name, why.text);
}

void cairn_cluster_cut_work(struct cairn_cluster_work *work)
{
    struct cairn_cluster_cut *cut = (struct cairn_cluster_cut *)work;
    struct cairn_manifest *m = &cut->manifest;
    struct cairn_hash root;
    if (cut->status == CAIRN_OK)
        cut->status = cairn_cluster_content_root(m, &cut->digests, &root, &m->loss_scale,
                                                 &cut->why);
    if (cut->status == CAIRN_OK) memcpy(m->content_root, root.byte, sizeof m->content_root);
    if (cut->status == CAIRN_OK && cairn_cluster_note_missed(m) != CAIRN_OK)
        cut->status = cairn_fail(&cut->why, CAIRN_ERR_NO_MEMORY, "no memory for the manifest");
    if (cut->status == CAIRN_OK && cut->is_snapshot)
        cut->status = cairn_manifest_commit_signed(
            cut->folder, m, cairn_cluster_keys_signer(work->cluster), &cut->why);
    if (cut->status == CAIRN_OK && cut->is_snapshot) note(cut);
    if (cut->folder != NULL && (cut->status == CAIRN_OK || remove_begun(cut) == CAIRN_OK))
        cairn_snapshot_begun_forget(work->cluster->storage.path, m->spec.name, cut->id);
}

void cairn_cluster_snapshot_nonfinite(const struct cairn_manifest *manifest,
                                      struct cairn_snapshot_view *view)
{
    cairn_results_list(&manifest->nonfinite, &manifest->spec, view->nonfinite);
    view->status.nonfinite = manifest->nonfinite.nonfinite;
    view->status.nonfinite_tensors = view->nonfinite;
}

void cairn_cluster_manifest_to_view(const struct cairn_manifest *manifest, const char *id,
                                    const char *folder, struct cairn_snapshot_view *view)
{
    Cairn__SnapshotStatus *out = &view->status;
    cairn__snapshot_status__init(out);
    cairn_cluster_snapshot_nonfinite(manifest, view);
    out->id = (char *)(uintptr_t)id;
    out->path = (char *)(uintptr_t)folder;
    out->job = manifest->spec.name;
    out->state = (char *)(uintptr_t) "committed";
    out->generation = manifest->generation;
    out->step = manifest->step;
    out->files = (uint32_t)manifest->file_count;
    for (size_t i = 0; i < manifest->file_count; i++) out->bytes += manifest->files[i].bytes;
    out->shards = manifest->shard_count;
    out->content_root.data = (uint8_t *)(uintptr_t)manifest->content_root;
    out->content_root.len = sizeof manifest->content_root;
    out->created_unix_ms = manifest->created_unix_s * 1000;
    out->periodic = manifest->periodic != 0;
}
