/* The contents of a snapshot: the digests of its parts, its content root, and how its manifest is shown. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/optimizer.h"
#include "server/coordinator/snapshot.h"

/* ==== digests ==== */

void coord_digests_release(struct coord_digests *digests)
{
    free(digests->list);
    *digests = (struct coord_digests) { 0 };
}

static cairn_status make_room(struct coord_digests *digests, size_t more, struct sentence *why)
{
    if (more > CAIRN_DIGESTS_MAX - digests->count)
        return fail_with(why, CAIRN_ERR_PROTOCOL, "too many digests");
    const size_t need = digests->count + more;
    if (need <= digests->capacity) return CAIRN_OK;
    const size_t capacity = 2 * digests->capacity > need ? 2 * digests->capacity : need;
    struct coord_digest *grown = realloc(digests->list, capacity * sizeof *grown);
    if (grown == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for digests");
    digests->list = grown;
    digests->capacity = capacity;
    return CAIRN_OK;
}

cairn_status coord_digests_take(struct coord_digests *digests, size_t tensor_count,
                                const Cairn__SnapshotPart *part, struct sentence *why)
{
    CAIRN_TRY(make_room(digests, part->n_digests, why));
    for (size_t i = 0; i < part->n_digests; i++) {
        const Cairn__DigestNode *d = part->digests[i];
        if (d->tensor >= tensor_count || d->plane >= CAIRN_PLANE_COUNT ||
            d->hash.len != CAIRN_HASH_BYTES)
            return fail_with(why, CAIRN_ERR_PROTOCOL, "a digest of no tensor of this job");
        struct coord_digest *to = &digests->list[digests->count++];
        *to = (struct coord_digest) { d->tensor, d->plane, { d->level, d->index, { { 0 } } } };
        memcpy(to->node.hash.byte, d->hash.data, CAIRN_HASH_BYTES);
    }
    return CAIRN_OK;
}

cairn_status coord_digests_add(struct coord_digests *digests, uint32_t tensor, enum plane plane,
                               const struct hash_tree *tree, struct sentence *why)
{
    const cairn_status status = make_room(digests, tree->node_count, why);
    for (uint32_t i = 0; status == CAIRN_OK && i < tree->node_count; i++)
        digests->list[digests->count++] = (struct coord_digest) { tensor, (uint32_t)plane,
                                                                  tree->node[i] };
    return status;
}

/* ---- the root ---- */

static int by_place(const void *a, const void *b)
{
    const struct coord_digest *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    if (x->plane != y->plane) return x->plane < y->plane ? -1 : 1;
    return 0;
}

/* The root of one plane from its run of nodes, which begins at *at; moves *at behind it. */
static cairn_status plane_root(const struct job_spec_data *spec,
                               const struct coord_digests *digests, uint32_t tensor, int plane,
                               size_t *at, struct tree_node *room, struct plane_digest *out)
{
    const struct tensor_spec *t = &spec->tensors[tensor];
    const struct geometry g = geometry_of(&t->shape);
    size_t count = 0;
    while (*at < digests->count && digests->list[*at].tensor == tensor &&
           digests->list[*at].plane == (uint32_t)plane)
        room[count++] = digests->list[(*at)++].node;
    struct hash root;
    CAIRN_TRY(tree_combine(room, count, g.leaf_count, &root));
    out->tensor = t->name;
    out->plane = (enum plane)plane;
    digest_plane_root(t->name, out->plane, spec_plane_dtype(spec, tensor, (uint32_t)plane),
                      &t->shape, g.leaf_count, &root, &out->root);
    return CAIRN_OK;
}

static cairn_status all_planes(const struct job_spec_data *spec,
                               const struct coord_digests *digests, struct plane_digest *planes,
                               struct tree_node *room, size_t *count_out, struct sentence *why)
{
    size_t at = 0, count = 0;
    for (uint32_t i = 0; i < spec->tensor_count; i++) {
        const uint32_t stored = spec_planes(spec, i);
        for (int p = 1; p < CAIRN_PLANE_COUNT; p++) {
            if (!(stored & (1u << p))) continue;
            if (plane_root(spec, digests, i, p, &at, room, &planes[count]) != CAIRN_OK)
                return fail_with(why, CAIRN_ERR_PROTOCOL,
                                 "the shards' digests of %s, plane %s, are not the whole of it",
                                 spec->tensors[i].name, plane_name(p));
            count++;
        }
    }
    *count_out = count;
    if (at == digests->count) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_PROTOCOL, "a shard sent digests of no plane");
}

/* With the learning rate that the payload has of a driven one. */
static cairn_status fill_groups(const struct manifest *m, const struct payload *head,
                                struct group_digest *groups, struct sentence *why)
{
    const struct job_spec_data *spec = &m->spec;
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < spec->group_count && status == CAIRN_OK; i++) {
        groups[i].name = spec->groups[i].name;
        status = group_hyper_of_spec(&spec->groups[i], &groups[i].hyper, NULL);
        if (spec->groups[i].schedule.kind == CAIRN_SCHEDULE_DRIVEN && i < head->driven_count)
            groups[i].hyper.lr = payload_driven(m->payload, head, (uint32_t)i);
    }
    return status == CAIRN_OK ? CAIRN_OK
                              : fail_with(why, status, "a group of the spec is not valid");
}

/* The digests from which the content root is computed. */
struct parts {
    /* owned */
    struct plane_digest *planes;
    struct group_digest *groups;
    struct missed_digest *missed; /* [tensor_count] */
    struct tree_node *room;
};

static bool parts_open(struct parts *parts, const struct job_spec_data *spec, size_t digest_count)
{
    *parts = (struct parts) {
        .planes = calloc(spec->tensor_count * CAIRN_PLANE_COUNT + 1, sizeof *parts->planes),
        .groups = calloc(spec->group_count + 1, sizeof *parts->groups),
        .missed = calloc(spec->tensor_count + 1, sizeof *parts->missed),
        .room = calloc(digest_count + 1, sizeof *parts->room),
    };
    return parts->planes != NULL && parts->groups != NULL && parts->missed != NULL &&
           parts->room != NULL;
}

/* Trained tensors that have missed steps, in the spec's order, which is that of their names; room: one for
 * each tensor. Returns how many. */
static size_t fill_missed(const struct job_spec_data *spec, const struct missed *missed,
                          struct missed_digest *room)
{
    size_t count = 0;
    for (size_t t = 0; missed->size > 0 && t < spec->tensor_count; t++) {
        if (spec->tensors[t].kind != CAIRN_TRAINED) continue;
        const uint64_t steps = missed_steps(missed, (uint32_t)t);
        if (steps > 0) room[count++] = (struct missed_digest) { spec->tensors[t].name, steps };
    }
    return count;
}

/* Group names and the hyper-parameters the core uses; loss scale, client state and what tensors have missed
 * as in the payload. */
static cairn_status join_digests(const struct manifest *m, const struct parts *parts,
                                 size_t plane_count, struct hash *root_out, double *loss_scale_out,
                                 struct sentence *why)
{
    const struct job_spec_data *spec = &m->spec;
    struct payload head = { .loss_scale = spec->loss_scale, .state_bytes = 0 };
    if (m->payload_bytes > 0 && payload_decode(m->payload, m->payload_bytes, &head) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_PROTOCOL, "the payload of the last decision is none");
    CAIRN_TRY(fill_groups(m, &head, parts->groups, why));
    struct content content = { .step = m->step,
                               .groups = parts->groups,
                               .group_count = spec->group_count,
                               .loss_scale = head.loss_scale,
                               .missed = parts->missed };
    content.missed_count = fill_missed(spec, &head.missed, parts->missed);
    uint8_t schedules[32];
    if (spec_schedules_hash(spec, schedules)) {
        content.schedule = schedules;
        content.schedule_bytes = sizeof schedules;
    }
    bytes_hash(head.state_bytes > 0 ? head.state : (const uint8_t *)"", head.state_bytes,
               &content.client_state);
    cairn_status status = digest_content_root(parts->planes, plane_count, &content, root_out);
    *loss_scale_out = head.loss_scale;
    if (status == CAIRN_OK) return CAIRN_OK;
    return fail_with(why, status, "the content root: %s", status_text((int)status));
}

cairn_status coord_content_root(const struct manifest *manifest, struct coord_digests *digests,
                                struct hash *root_out, double *loss_scale_out, struct sentence *why)
{
    const struct job_spec_data *spec = &manifest->spec;
    struct parts parts;
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    size_t count = 0;
    if (parts_open(&parts, spec, digests->count)) {
        if (digests->count > 0)
            qsort(digests->list, digests->count, sizeof *digests->list, by_place);
        status = all_planes(spec, digests, parts.planes, parts.room, &count, why);
        if (status == CAIRN_OK)
            status = join_digests(manifest, &parts, count, root_out, loss_scale_out, why);
    } else {
        sentence_set(why, "out of memory for the content root");
    }
    free(parts.planes);
    free(parts.groups);
    free(parts.missed);
    free(parts.room);
    return status;
}

cairn_status coord_note_missed(struct manifest *m)
{
    struct payload head;
    if (m->payload_bytes == 0 || payload_decode(m->payload, m->payload_bytes, &head) != CAIRN_OK ||
        head.missed.size == 0)
        return CAIRN_OK; // what is malformed the content root says
    bool any = false;
    uint64_t *steps = calloc(m->spec.tensor_count + 1, sizeof *steps);
    if (steps == NULL) return CAIRN_ERR_NO_MEMORY;
    for (size_t t = 0; t < m->spec.tensor_count; t++) {
        if (m->spec.tensors[t].kind != CAIRN_TRAINED) continue;
        steps[t] = missed_steps(&head.missed, (uint32_t)t);
        any = any || steps[t] > 0;
    }
    free(m->steps_missed);
    m->steps_missed = any ? steps : NULL;
    if (!any) free(steps);
    return CAIRN_OK;
}

/* ==== a manifest, shown ==== */

/* Says what of the saved version is not finite. */
void coord_nonfinite_to_view(const struct manifest *manifest, struct snapshot_view *view)
{
    results_list(&manifest->nonfinite, &manifest->spec, view->nonfinite);
    view->status.nonfinite = manifest->nonfinite.nonfinite;
    view->status.nonfinite_tensors = view->nonfinite;
}

void coord_manifest_to_view(const struct manifest *manifest, const char *id, const char *folder,
                            struct snapshot_view *view)
{
    Cairn__SnapshotStatus *out = &view->status;
    cairn__snapshot_status__init(out);
    coord_nonfinite_to_view(manifest, view);
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
