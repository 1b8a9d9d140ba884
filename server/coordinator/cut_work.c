/* What a cut does on another thread: the content root from the digests, and the manifest. */
#include <ftw.h>
#include <stdio.h>
#include <string.h>

#include "proto/wire/snapshot_io.h"
#include "server/coordinator/cut.h"
#include "server/coordinator/cuts.h"

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void cairn_cluster_folder_remove(const char *path)
{
    // A folder that stays has no manifest: nobody lists it.
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void cairn_cluster_cut_make_folder(struct cairn_cluster_work *work)
{
    struct cairn_cluster_cut *cut = (struct cairn_cluster_cut *)work;
    cut->folder_status = cairn_snapshot_folder_make(cut->root, cut->manifest.spec.name,
                                                    cut->version.generation, cut->version.step,
                                                    cut->id, &cut->folder, &cut->folder_why);
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
    if (cut->status == CAIRN_OK && cut->is_snapshot)
        cut->status = cairn_manifest_commit(cut->folder, m, &cut->why);
    if (cut->status != CAIRN_OK && cut->folder != NULL) cairn_cluster_folder_remove(cut->folder);
}

void cairn_cluster_manifest_to_status(const struct cairn_manifest *manifest, const char *id,
                                      const char *folder, Cairn__SnapshotStatus *out)
{
    cairn__snapshot_status__init(out);
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
