#include "tests/support/reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void reference_must(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "the reference fails: %s\n", what);
    abort();
}

void *reference_zeros(uint64_t elems)
{
    void *memory = calloc(elems + 1, sizeof(float));
    reference_must(memory != NULL, "memory");
    return memory;
}

/* splitmix64's last lines over a counter. */
float reference_noise(uint64_t seed, uint64_t elem)
{
    uint64_t z = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) + elem * UINT64_C(0xd1342543de82ef95);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (float)((int)((z ^ (z >> 31)) & 0xffff) - 0x8000) / 32768.0f;
}

struct group_hyper reference_hyper(const struct cairn_group *group)
{
    const bool sgd = strcmp(group->optimizer, "sgd") == 0;
    return (struct group_hyper) {
        .optimizer = optimizer_by_name(group->optimizer)->id,
        .lr = group->lr,
        .beta1 = sgd ? 0 : group->beta1,
        .beta2 = sgd ? 0 : group->beta2,
        .eps = sgd ? 0 : group->eps,
        .weight_decay = group->weight_decay,
        .momentum = sgd ? group->momentum : 0,
        .nesterov = group->nesterov ? 1 : 0,
        .ema = group->ema,
        .ema_schedule = group->ema_schedule,
    };
}

void reference_open(struct reference_tensor *tensor, const char *name, const struct shape *shape,
                    cairn_dtype wire_dtype, float *param)
{
    *tensor = (struct reference_tensor) { .name = name,
                                          .wire_dtype = wire_dtype,
                                          .geometry = geometry_of(shape),
                                          .shape = *shape,
                                          .plane[CAIRN_PLANE_PARAM] = param };
    tensor->wire = reference_zeros(tensor->geometry.elems);
    tensor->sum = reference_zeros(tensor->geometry.elems);
    backend_host()->convert(tensor->wire, wire_dtype, param, CAIRN_F32, tensor->geometry.elems);
}

void reference_close(struct reference_tensor *tensor)
{
    for (int p = 0; p < CAIRN_PLANE_COUNT; p++) free(tensor->plane[p]);
    free(tensor->wire);
    free(tensor->sum);
    *tensor = (struct reference_tensor) { .name = NULL };
}

void reference_train(struct reference_tensor *tensor, const struct group_hyper *hyper,
                     uint64_t step)
{
    tensor->missed = step;
    const uint32_t planes = optimizer_planes(hyper);
    for (int p = CAIRN_PLANE_EXP_AVG; p < CAIRN_PLANE_COUNT; p++)
        if ((planes & 1u << p) != 0) tensor->plane[p] = reference_zeros(tensor->geometry.elems);
    if (tensor->plane[CAIRN_PLANE_EMA] != NULL)
        memcpy(tensor->plane[CAIRN_PLANE_EMA], tensor->plane[CAIRN_PLANE_PARAM],
               tensor->geometry.elems * sizeof(float));
}

void reference_measure(const struct reference_tensor *tensor, struct sums *sums)
{
    backend_host()->sum_leaves(tensor->sum, &tensor->geometry, 0, tensor->geometry.leaf_count,
                               sums);
}

void reference_update(struct reference_tensor *tensor, const struct group_hyper *hyper,
                      uint64_t step, uint32_t grad_scale)
{
    struct group_scalars scalars;
    reference_must(group_scalars_of(hyper, step - tensor->missed, grad_scale, &scalars) == CAIRN_OK,
                   "group_scalars_of");
    if (hyper->ema > 0) // by the job's step, as a learning rate
        scalars.ema_weight = f32_bits(
            (float)(1 - ema_decay((cairn_ema_schedule)hyper->ema_schedule, hyper->ema, step - 1)));
    const struct update update = {
        .grad = tensor->sum,
        .param = tensor->plane[CAIRN_PLANE_PARAM],
        .exp_avg = tensor->plane[CAIRN_PLANE_EXP_AVG],
        .exp_avg_sq = tensor->plane[CAIRN_PLANE_EXP_AVG_SQ],
        .ema = tensor->plane[CAIRN_PLANE_EMA],
        .wire = tensor->wire,
        .wire_dtype = tensor->wire_dtype,
        .elems = tensor->geometry.elems,
    };
    backend_host()->update[hyper->optimizer](&update, &scalars);
}

static void digest_plane(const struct reference_tensor *tensor, int plane, struct plane_digest *out)
{
    const uint64_t leaf_count = tensor->geometry.leaf_count;
    struct hash_tree tree;
    struct hash root;
    tree_init(&tree, 0);
    backend_hash_leaves(backend_host(), tensor->plane[plane], CAIRN_F32, &tensor->geometry,
                        leaf_count, &tree);
    reference_must(digest_tree_root(&tree, leaf_count, &root) == CAIRN_OK, "tree_root");
    out->tensor = tensor->name;
    out->plane = (enum plane)plane;
    digest_plane_root(tensor->name, out->plane, CAIRN_F32, &tensor->shape, leaf_count, &root,
                      &out->root);
}

size_t reference_digest(const struct reference_tensor *tensor,
                        struct plane_digest out[CAIRN_PLANE_COUNT])
{
    size_t count = 0;
    for (int p = CAIRN_PLANE_PARAM; p < CAIRN_PLANE_COUNT; p++)
        if (tensor->plane[p] != NULL && tensor->geometry.elems > 0)
            digest_plane(tensor, p, &out[count++]);
    return count;
}

size_t reference_missed(const struct reference_tensor *tensor, struct missed_digest *list,
                        size_t count)
{
    if (tensor->missed == 0) return count;
    list[count] = (struct missed_digest) { tensor->name, tensor->missed };
    return count + 1;
}

void reference_root(struct plane_digest *planes, size_t plane_count, struct content *content,
                    char hex_out[65])
{
    struct hash root;
    bytes_hash("", 0, &content->client_state);
    reference_must(digest_content_root(planes, plane_count, content, &root) == CAIRN_OK,
                   "content_root");
    for (int i = 0; i < CAIRN_HASH_BYTES; i++) snprintf(hex_out + 2 * i, 3, "%02x", root.byte[i]);
}
