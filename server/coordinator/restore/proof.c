/* The content root of a restore, made anew: of the files, before a job that runs is given up for them; and
 * of what the shards have in memory, before the job is ready. Each tells of every bit of the state that is
 * not as it was saved, also where checksums were changed with the files; the second, of what was changed
 * since the first. Where it is another one the checksums of the blocks tell which is damaged. */
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"
#include "proto/snapshot_io/sweep.h"
#include "proto/spec/planes.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cut.h"
#include "server/coordinator/cut/digests.h"
#include "server/coordinator/restore/restore.h"

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

/* The hashes of files that are being read, by several threads. */
struct proof {
    struct cairn_cluster_restore *restore;
    pthread_mutex_t mutex; /* of its digests */
};

static cairn_status hash_range(void *context, uint32_t thread,
                               const struct cairn_sweep_range *range, const void *elems,
                               struct cairn_sentence *why)
{
    struct proof *proof = context;
    const struct cairn_job_spec_data *spec = &proof->restore->manifest.spec;
    const struct cairn_geometry g = cairn_geometry_of(&spec->tensors[range->tensor].shape);
    struct cairn_tree tree;
    (void)thread;
    cairn_tree_init(&tree, range->first_leaf);
    cairn_backend_hash_leaves(cairn_backend_host(), elems,
                              cairn_spec_plane_dtype(spec, range->tensor, range->plane), &g,
                              range->leaf_count, &tree);
    pthread_mutex_lock(&proof->mutex);
    const cairn_status status = cairn_cluster_digests_add(
        &proof->restore->digests, range->tensor, (enum cairn_plane)range->plane, &tree, why);
    pthread_mutex_unlock(&proof->mutex);
    return status;
}

/* All that the files hold. */
static cairn_status add_all(const struct cairn_job_spec_data *spec,
                            struct cairn_sweep_ranges *ranges, struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    for (uint32_t t = 0; t < spec->tensor_count; t++) {
        const struct cairn_geometry g = cairn_geometry_of(&spec->tensors[t].shape);
        for (uint32_t p = 1; p < CAIRN_PLANE_COUNT && status == CAIRN_OK; p++) {
            const struct cairn_sweep_range whole = { .tensor = t,
                                                     .plane = p,
                                                     .leaf_count = g.leaf_count };
            if (cairn_spec_planes(spec, t) & (1u << p))
                status = cairn_sweep_ranges_add(
                    ranges, &g, cairn_dtype_bytes((int)cairn_spec_plane_dtype(spec, t, p)), &whole,
                    why);
        }
    }
    return status;
}

static cairn_status hash_files(struct cairn_cluster_restore *restore,
                               const struct cairn_snapshot *snapshot)
{
    struct proof proof = { .restore = restore };
    struct cairn_sweep_ranges ranges = { 0 };
    const struct cairn_sweep sweep = { .snapshot = snapshot,
                                       .take = hash_range,
                                       .context = &proof };
    pthread_mutex_init(&proof.mutex, NULL);
    cairn_status status = add_all(&restore->manifest.spec, &ranges, &restore->why);
    if (status == CAIRN_OK) status = cairn_snapshot_sweep(&sweep, &ranges, &restore->why);
    cairn_sweep_ranges_release(&ranges);
    pthread_mutex_destroy(&proof.mutex);
    return status;
}

/* The content root is another one: which file and block are to blame, if it is they. */
static void find_damage(struct cairn_cluster_restore *restore)
{
    struct cairn_snapshot snapshot;
    struct cairn_sentence why;
    cairn_status status = cairn_snapshot_open(restore->folder, &snapshot, &why);
    if (status == CAIRN_OK) {
        status = cairn_snapshot_verify(&snapshot, NULL, &why);
        cairn_snapshot_close(&snapshot);
    }
    if (!cairn_cluster_restore_is_damage(status)) return;
    restore->status = status;
    restore->why = why;
}

static void judge(struct cairn_cluster_restore *restore, const char *what)
{
    if (restore->status != CAIRN_OK) return;
    restore->status = compare(restore, what);
    if (restore->status == CAIRN_ERR_CHECKSUM) find_damage(restore);
}

void cairn_cluster_restore_prove_files(struct cairn_cluster_work *work)
{
    struct cairn_cluster_restore *restore = (struct cairn_cluster_restore *)work;
    struct cairn_snapshot snapshot;
    restore->status = cairn_snapshot_open(restore->folder, &snapshot, &restore->why);
    if (restore->status == CAIRN_OK) {
        restore->status = hash_files(restore, &snapshot);
        cairn_snapshot_close(&snapshot);
    }
    judge(restore, "its files have");
    cairn_cluster_digests_release(&restore->digests);
}

void cairn_cluster_restore_prove_loaded(struct cairn_cluster_work *work)
{
    struct cairn_cluster_restore *restore = (struct cairn_cluster_restore *)work;
    judge(restore, "what the shards have loaded has");
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
