/* The content root of a restore, made anew: of the files, before a job that runs is given up for them; and
 * of what the shards have in memory, before the job is ready. The second tells of whatever was changed
 * between the checksums and the loading; both, of checksums that were changed with the files. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"
#include "proto/spec/planes.h"
#include "proto/store/snapshot_io.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/restore/restore.h"
#include "server/coordinator/snapshot/cut.h"
#include "server/coordinator/snapshot/digests.h"

#define PIECE_ELEMS ((uint64_t)1 << 20)

/* ---- on another thread ---- */

static cairn_status compare(struct cairn_cluster_restore *restore, const char *what)
{
    const struct cairn_manifest *m = &restore->manifest;
    struct cairn_hash root;
    double loss_scale;
    char has[2 * CAIRN_HASH_BYTES + 1], says[2 * CAIRN_HASH_BYTES + 1];
    const cairn_status status = cairn_cluster_content_root(m, &restore->digests, &root, &loss_scale,
                                                           &restore->why);
    if (status != CAIRN_OK) return status;
    if (memcmp(root.byte, m->content_root, sizeof root.byte) == 0) return CAIRN_OK;
    sodium_bin2hex(has, sizeof has, root.byte, sizeof root.byte);
    sodium_bin2hex(says, sizeof says, m->content_root, sizeof m->content_root);
    return cairn_fail(&restore->why, CAIRN_ERR_CHECKSUM,
                      "%s the content root %s, the manifest says %s: files or manifest were "
                      "changed since they were saved; use another snapshot",
                      what, has, says);
}

static cairn_status hash_plane(struct cairn_cluster_restore *restore,
                               struct cairn_snapshot *snapshot, uint32_t tensor,
                               enum cairn_plane plane, void *room)
{
    const struct cairn_job_spec_data *spec = &restore->manifest.spec;
    const struct cairn_geometry g = cairn_geometry_of(&spec->tensors[tensor].shape);
    const uint64_t leaves_a_piece = PIECE_ELEMS / CAIRN_LEAF_ELEMS;
    struct cairn_tree tree;
    cairn_tree_init(&tree, 0);
    while (tree.next_leaf < g.leaf_count) {
        uint64_t leaves = g.leaf_count - tree.next_leaf;
        if (leaves > leaves_a_piece) leaves = leaves_a_piece;
        const uint64_t first = cairn_leaf_first_elem(&g, tree.next_leaf);
        const uint64_t end = cairn_leaf_first_elem(&g, tree.next_leaf + leaves);
        const cairn_status status = cairn_snapshot_read(snapshot, tensor, (uint32_t)plane, first,
                                                        end - first, room, &restore->why);
        if (status != CAIRN_OK) return status;
        cairn_backend_hash_leaves(cairn_backend_host(), room,
                                  cairn_spec_plane_dtype(spec, tensor, (uint32_t)plane), &g, leaves,
                                  &tree);
    }
    return cairn_cluster_digests_add(&restore->digests, tensor, plane, &tree, &restore->why);
}

/* A plane of all tensors after the other: the tensors' order is that of the files of it. */
static cairn_status hash_files(struct cairn_cluster_restore *restore,
                               struct cairn_snapshot *snapshot, void *room)
{
    const struct cairn_job_spec_data *spec = &restore->manifest.spec;
    cairn_status status = CAIRN_OK;
    for (int p = 1; p < CAIRN_PLANE_COUNT; p++) {
        for (uint32_t t = 0; t < spec->tensor_count && status == CAIRN_OK; t++) {
            if (cairn_spec_planes(spec, t) & (1u << p))
                status = hash_plane(restore, snapshot, t, (enum cairn_plane)p, room);
        }
    }
    return status;
}

void cairn_cluster_restore_prove_files(struct cairn_cluster_work *work)
{
    struct cairn_cluster_restore *restore = (struct cairn_cluster_restore *)work;
    struct cairn_snapshot snapshot;
    void *room = malloc(PIECE_ELEMS * sizeof(float));
    restore->status = room == NULL ? cairn_fail(&restore->why, CAIRN_ERR_NO_MEMORY, "no memory")
                                   : cairn_snapshot_open(restore->folder, &snapshot, &restore->why);
    if (restore->status == CAIRN_OK) {
        restore->status = hash_files(restore, &snapshot, room);
        cairn_snapshot_close(&snapshot);
    }
    free(room);
    if (restore->status == CAIRN_OK) restore->status = compare(restore, "its files have");
    cairn_cluster_digests_release(&restore->digests);
}

void cairn_cluster_restore_prove_loaded(struct cairn_cluster_work *work)
{
    struct cairn_cluster_restore *restore = (struct cairn_cluster_restore *)work;
    if (restore->status == CAIRN_OK)
        restore->status = compare(restore, "what the shards have loaded has");
}

/* ---- on the loop ---- */

static cairn_status take_part(struct cairn_cluster_restore *restore,
                              const Cairn__SnapshotPart *part, struct cairn_sentence *why)
{
    const cairn_status status = cairn_cluster_part_failed(part, why);
    if (status != CAIRN_OK) return status;
    return cairn_cluster_digests_take(&restore->digests, restore->manifest.spec.tensor_count, part,
                                      why);
}

static void end_part(struct cairn_cluster_restore *restore, uint32_t shard, cairn_status status,
                     const char *name, const char *text)
{
    restore->parts[shard] = status == CAIRN_OK ? CAIRN_PART_IN : CAIRN_PART_NONE;
    if (status != CAIRN_OK && restore->status == CAIRN_OK)
        restore->status = cairn_fail(&restore->why, status, "%s: %s", name, text);
    cairn_cluster_restore_advance(restore);
}

bool cairn_cluster_restore_on_part(struct cairn_cluster_session *session,
                                   const Cairn__SnapshotPart *part)
{
    struct cairn_cluster_restore *r = session->cluster->restores;
    while (r != NULL && (r->parts == NULL || r->number != part->snapshot)) r = r->next;
    const struct cairn_cluster_job *job =
        r == NULL ? NULL : cairn_cluster_job_by_id(session->cluster, r->job_id);
    if (job == NULL) return r != NULL;
    CAIRN_EACH_SHARD (job, i) {
        struct cairn_sentence why = { "" };
        if (job->shards[i].seat != session->seat || !cairn_part_is_open(r->parts[i])) continue;
        const cairn_status status = take_part(r, part, &why);
        if (status == CAIRN_OK && part->more) {
            r->parts[i] = CAIRN_PART_BEGUN;
            cairn_cluster_part_next(session->seat, part);
        } else {
            end_part(r, i, status, session->seat->name, why.text);
        }
        break;
    }
    return true;
}

void cairn_cluster_restores_seat_gone(struct cairn_cluster *cluster,
                                      const struct cairn_cluster_seat *seat)
{
    for (struct cairn_cluster_restore *r = cluster->restores; r != NULL; r = r->next) {
        const struct cairn_cluster_job *job = cairn_cluster_job_by_id(cluster, r->job_id);
        for (uint32_t i = 0; r->parts != NULL && job != NULL && i < job->shard_count; i++)
            if (job->shards[i].seat == seat && cairn_part_is_open(r->parts[i]))
                end_part(r, i, CAIRN_ERR_CLOSED, seat->name,
                         "it went away before it told what it had loaded");
    }
}
