/* What a cut does on another thread: the content root from the digests, and the manifest. */
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/wire/optimizer.h"
#include "proto/wire/snapshot_io.h"
#include "server/coordinator/cut.h"

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

static int by_place(const void *a, const void *b)
{
    const struct cairn_cluster_cut_node *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    if (x->plane != y->plane) return x->plane < y->plane ? -1 : 1;
    return 0;
}

/* The root of one plane from its run of nodes, which begins at *at; moves *at behind it. */
static cairn_status plane_root(const struct cairn_cluster_cut *cut, uint32_t tensor, int plane,
                               size_t *at, struct cairn_tree_node *room,
                               struct cairn_plane_digest *out)
{
    const struct cairn_tensor_spec *t = &cut->manifest.spec.tensors[tensor];
    const struct cairn_geometry g = cairn_geometry_of(&t->shape);
    size_t count = 0;
    while (*at < cut->node_count && cut->nodes[*at].tensor == tensor &&
           cut->nodes[*at].plane == (uint32_t)plane) {
        room[count++] = cut->nodes[(*at)++].node;
    }
    struct cairn_hash root;
    const cairn_status status = cairn_tree_combine(room, count, g.leaf_count, &root);
    if (status != CAIRN_OK) return status;
    out->tensor = t->name;
    out->plane = (enum cairn_plane)plane;
    cairn_plane_root(t->name, out->plane,
                     cairn_snapshot_dtype(&cut->manifest.spec, tensor, (uint32_t)plane), &t->shape,
                     g.leaf_count, &root, &out->root);
    return CAIRN_OK;
}

static cairn_status all_planes(struct cairn_cluster_cut *cut, struct cairn_plane_digest *planes,
                               struct cairn_tree_node *room, size_t *count_out)
{
    const struct cairn_job_spec_data *spec = &cut->manifest.spec;
    size_t at = 0, count = 0;
    for (uint32_t i = 0; i < spec->tensor_count; i++) {
        const uint32_t stored = cairn_snapshot_planes(spec, i);
        for (int p = 1; p < CAIRN_PLANE_COUNT; p++) {
            if (!(stored & (1u << p))) continue;
            const cairn_status status = plane_root(cut, i, p, &at, room, &planes[count]);
            if (status != CAIRN_OK) {
                return cairn_fail(&cut->why, CAIRN_ERR_PROTOCOL,
                                  "the shards' digests of %s, plane %s, are not the whole of it",
                                  spec->tensors[i].name, cairn_plane_name(p));
            }
            count++;
        }
    }
    *count_out = count;
    if (at == cut->node_count) return CAIRN_OK;
    return cairn_fail(&cut->why, CAIRN_ERR_PROTOCOL, "a shard sent digests of no plane");
}

/* Group names and the hyper-parameters the core uses; loss scale and client state as the payload has them. */
static cairn_status content_root(struct cairn_cluster_cut *cut, struct cairn_plane_digest *planes,
                                 size_t plane_count, struct cairn_group_digest *groups)
{
    struct cairn_manifest *m = &cut->manifest;
    const struct cairn_job_spec_data *spec = &m->spec;
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < spec->group_count && status == CAIRN_OK; i++) {
        groups[i].name = spec->groups[i].name;
        status = cairn_group_hyper_of_spec(&spec->groups[i], &groups[i].hyper, NULL);
    }
    if (status != CAIRN_OK)
        return cairn_fail(&cut->why, status, "a group of the spec is not valid");
    struct cairn_payload head = { .state_bytes = 0 };
    m->loss_scale = spec->loss_scale;
    if (m->payload_bytes > 0) {
        if (cairn_payload_decode(m->payload, m->payload_bytes, &head) != CAIRN_OK) {
            return cairn_fail(&cut->why, CAIRN_ERR_PROTOCOL, "a shard sent a payload that is none");
        }
        m->loss_scale = head.loss_scale;
    }
    struct cairn_content content = { .step = cut->version.step,
                                     .groups = groups,
                                     .group_count = spec->group_count,
                                     .loss_scale = m->loss_scale };
    uint8_t schedules[32];
    if (cairn_spec_schedules_hash(spec, schedules)) {
        content.schedule = schedules;
        content.schedule_bytes = sizeof schedules;
    }
    cairn_bytes_hash(head.state_bytes > 0 ? head.state : (const uint8_t *)"", head.state_bytes,
                     &content.client_state);
    struct cairn_hash root;
    status = cairn_content_root(planes, plane_count, &content, &root);
    if (status != CAIRN_OK) {
        return cairn_fail(&cut->why, status, "the content root: %s",
                          cairn_status_text((int)status));
    }
    memcpy(m->content_root, root.byte, sizeof m->content_root);
    return CAIRN_OK;
}

static cairn_status make_root(struct cairn_cluster_cut *cut)
{
    const struct cairn_job_spec_data *spec = &cut->manifest.spec;
    struct cairn_plane_digest *planes = calloc(spec->tensor_count * CAIRN_PLANE_COUNT + 1,
                                               sizeof *planes);
    struct cairn_group_digest *groups = calloc(spec->group_count + 1, sizeof *groups);
    struct cairn_tree_node *room = calloc(cut->node_count + 1, sizeof *room);
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    size_t count = 0;
    if (planes != NULL && groups != NULL && room != NULL) {
        if (cut->node_count > 0) {
            qsort(cut->nodes, cut->node_count, sizeof *cut->nodes, by_place);
        }
        status = all_planes(cut, planes, room, &count);
        if (status == CAIRN_OK) status = content_root(cut, planes, count, groups);
    } else {
        cairn_sentence_set(&cut->why, "no memory for the content root");
    }
    free(planes);
    free(groups);
    free(room);
    return status;
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
    if (cut->status == CAIRN_OK) cut->status = make_root(cut);
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
}
