#include "tests/support/shard_model.h"
#include "tests/support/snapshot_sample.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { MICROS = 2, MEMBERS = 2 };

static const cairn_dtype wire_of[TENSORS] = {
    [T_BIAS] = CAIRN_F32, [T_EMB] = CAIRN_F32, [T_FROZEN] = CAIRN_F32, [T_WEIGHT] = CAIRN_BF16
};
static const uint32_t group_of[TENSORS] = { [T_BIAS] = 0, [T_EMB] = 1, [T_WEIGHT] = 0 };

bool model_keeps(uint32_t tensor, int plane)
{
    if (plane == CAIRN_PLANE_EXP_AVG) return tensor != T_FROZEN;
    if (plane == CAIRN_PLANE_EXP_AVG_SQ || plane == CAIRN_PLANE_EMA)
        return tensor == T_BIAS || tensor == T_WEIGHT;
    return true;
}

float *model_plane(const struct model *model, int plane)
{
    return plane == CAIRN_PLANE_PARAM     ? model->param
           : plane == CAIRN_PLANE_EXP_AVG ? model->exp_avg
           : plane == CAIRN_PLANE_EMA     ? model->ema
                                          : model->exp_avg_sq;
}

const void *model_bytes(const struct model *model, int plane, const struct chunk_place *place,
                        size_t *bytes_out)
{
    const size_t elem_bytes = plane == CAIRN_PLANE_WIRE ? dtype_size((int)wire_of[place->tensor])
                                                        : 4;
    *bytes_out = place->elem_count * elem_bytes;
    if (plane != CAIRN_PLANE_WIRE) return model_plane(model, plane) + place->local_elem;
    const struct local_extent *extent = shard_map_find(&model->scene->map, place->tensor,
                                                       place->first_leaf);
    return model->wire + extent->local_elem * 4 +
           (place->local_elem - extent->local_elem) * elem_bytes;
}

void model_open(struct model *model, const struct scene *scene)
{
    const uint64_t elems = scene->map.elem_count;
    *model = (struct model) { .scene = scene };
    model->param = calloc(elems, sizeof(float));
    model->exp_avg = calloc(elems, sizeof(float));
    model->exp_avg_sq = calloc(elems, sizeof(float));
    model->ema = calloc(elems, sizeof(float));
    model->wire = calloc(elems, 4);
    for (size_t i = 0; i < scene->map.extent_count; i++) {
        const struct local_extent *extent = &scene->map.extents[i];
        float *param = model->param + extent->local_elem;
        for (uint64_t e = 0; e < extent->elem_count; e++)
            param[e] = scene_initial(extent->tensor, extent->first_elem + e);
        memcpy(model->ema + extent->local_elem, param, extent->elem_count * sizeof(float));
        backend_host()->convert(model->wire + extent->local_elem * 4, wire_of[extent->tensor],
                                param, CAIRN_F32, extent->elem_count);
    }
}

void model_close(struct model *model)
{
    free(model->param);
    free(model->exp_avg);
    free(model->exp_avg_sq);
    free(model->ema);
    free(model->wire);
    memset(model, 0, sizeof *model);
}

void model_serve(struct model *model, struct scene *scene, const char *kind, uint32_t threads)
{
    scene_open(scene, kind, threads, 0);
    scene_serve(scene, 2, 1);
    model_open(model, scene);
}

void model_leave(struct model *model, struct scene *scene)
{
    model_close(model);
    scene_close(scene);
}

static void *copied(const void *from, size_t bytes)
{
    void *to = malloc(bytes);
    memcpy(to, from, bytes);
    return to;
}

void model_copy(struct model *copy, const struct model *model)
{
    const size_t bytes = model->scene->map.elem_count * 4;
    if (copy->param != NULL && copy->scene == model->scene) model_close(copy);
    *copy = *model;
    copy->param = copied(model->param, bytes);
    copy->exp_avg = copied(model->exp_avg, bytes);
    copy->exp_avg_sq = copied(model->exp_avg_sq, bytes);
    copy->ema = copied(model->ema, bytes);
    copy->wire = copied(model->wire, bytes);
}

/* ---- what a shard has ---- */

void model_check_place(const struct model *model, struct scene *scene, enum plane plane,
                       const struct chunk_place *place, uint64_t generation, uint64_t step)
{
    size_t bytes;
    const void *wanted = model_bytes(model, (int)plane, place, &bytes);
    struct chunk_header fetch = scene_place_header(scene, CAIRN_CHUNK_FETCH, 1, place);
    fetch.plane = (uint8_t)plane;
    fetch.generation = generation;
    fetch.step = step;
    fetch.request = place->first_elem + 1;
    scene_send(scene, &fetch, NULL, 0);
    const struct scene_note *data = scene_note(scene, CAIRN_CHUNK_DATA);
    ck_assert_uint_eq(data->header.request, fetch.request);
    ck_assert_uint_eq(data->header.payload_bytes, bytes);
    ck_assert_uint_eq(data->header.checksum, chunk_checksum(data->payload, bytes));
    ck_assert_mem_eq(data->payload, wanted, bytes);
}

void model_check(const struct model *model, struct scene *scene, enum plane plane,
                 uint64_t generation, uint64_t step)
{
    const struct shard_map *map = &model->scene->map;
    for (uint64_t c = 0; c < map->chunk_count; c++) {
        const struct chunk_place place = shard_map_chunk(map, c);
        if (model_keeps(place.tensor, (int)plane))
            model_check_place(model, scene, plane, &place, generation, step);
    }
}

void model_check_part(const struct model *model, const Cairn__SnapshotPart *part, uint64_t step)
{
    const struct scene *scene = model->scene;
    size_t nodes = 0;
    ck_assert_msg(part->status == CAIRN_OK, "%s", part->text);
    ck_assert_uint_eq(part->step, step);
    for (size_t i = 0; i < scene->map.extent_count; i++) {
        const struct local_extent *extent = &scene->map.extents[i];
        for (int plane = CAIRN_PLANE_PARAM; plane < CAIRN_PLANE_COUNT; plane++) {
            if (plane == CAIRN_PLANE_WIRE || !model_keeps(extent->tensor, plane)) continue;
            struct hash_tree tree;
            tree_init(&tree, extent->first_leaf);
            backend_hash_leaves(backend_host(), model_plane(model, plane) + extent->local_elem,
                                CAIRN_F32, &scene->layout->geometry[extent->tensor],
                                extent->leaf_count, &tree);
            for (uint32_t n = 0; n < tree.node_count; n++, nodes++) {
                ck_assert_uint_lt(nodes, part->n_digests);
                const Cairn__DigestNode *digest = part->digests[nodes];
                ck_assert_uint_eq(digest->tensor, extent->tensor);
                ck_assert_int_eq((int)digest->plane, plane);
                ck_assert_uint_eq(digest->level, tree.node[n].level);
                ck_assert_uint_eq(digest->index, tree.node[n].index);
                ck_assert_mem_eq(digest->hash.data, tree.node[n].hash.byte, CAIRN_HASH_BYTES);
            }
        }
    }
    ck_assert_uint_eq(nodes, part->n_digests);
}

/* ---- gradients ---- */

static float gradient(uint64_t round, uint64_t member, uint32_t micro, uint32_t tensor,
                      uint64_t elem)
{
    const uint64_t seed = round * 7919 + member * 104729 + micro * 1299709 + tensor * 15485863;
    return (float)((elem * 2654435761u + seed) % 4001u) / 500.0f - 4.0f;
}

static bool touches(uint64_t member, uint32_t micro, uint32_t tensor)
{
    return tensor != T_FROZEN && !(member == 2 && micro == 1 && tensor == T_EMB);
}

static bool sends_bf16(uint64_t member, uint32_t tensor)
{
    return member == 2 && tensor == T_WEIGHT;
}

/* What a member sends of a run of elements: f32, or bf16 made from it. */
static void *make_payload(uint64_t round, uint64_t member, uint32_t micro, uint32_t tensor,
                          uint64_t first_elem, uint64_t elems)
{
    float *values = malloc(elems * sizeof *values);
    for (uint64_t i = 0; i < elems; i++)
        values[i] = gradient(round, member, micro, tensor, first_elem + i);
    if (!sends_bf16(member, tensor)) return values;
    void *narrow = malloc(elems * 2);
    backend_host()->convert(narrow, CAIRN_BF16, values, CAIRN_F32, elems);
    free(values);
    return narrow;
}

/* ---- the two workers ---- */

/* Not waited for: *payload_out is to be freed when all sends are over. */
static void send_chunk(struct scene *scene, uint64_t member, uint32_t micro, uint64_t chunk,
                       void **payload_out)
{
    const struct chunk_place place = shard_map_chunk(&scene->map, chunk);
    const bool bf16 = sends_bf16(member, place.tensor);
    struct chunk_header push = scene_chunk_header(scene, CAIRN_CHUNK_PUSH, member, chunk);
    push.micro = micro;
    push.dtype = bf16 ? CAIRN_BF16 : CAIRN_F32;
    *payload_out = make_payload(scene->round, member, micro, place.tensor, place.first_elem,
                                place.elem_count);
    scene_send(scene, &push, *payload_out, place.elem_count * (bf16 ? 2 : 4));
}

void model_push_chunk(struct scene *scene, uint64_t member, uint32_t micro, uint64_t chunk)
{
    void *payload;
    send_chunk(scene, member, micro, chunk, &payload);
    scene_sent(scene);
    free(payload);
}

static void end_micro(struct scene *scene, uint64_t member, uint32_t micro, uint32_t sent)
{
    static const uint32_t untouched[] = { T_EMB };
    struct chunk_header end = scene_header(scene, CAIRN_CHUNK_MICRO_END, member);
    end.micro = micro;
    end.value = sent;
    const bool all = touches(member, micro, T_EMB);
    scene_send(scene, &end, all ? NULL : untouched, all ? 0 : sizeof untouched);
}

/* One micro-batch of both: the second member's chunk comes before the first one's, which it waits for;
 * chunk 0 of the first comes twice. */
static void push_micro(struct scene *scene, uint32_t micro)
{
    uint32_t sent[MEMBERS + 1] = { 0 };
    for (uint64_t c = 0; c < scene->map.chunk_count; c++) {
        const struct chunk_place place = shard_map_chunk(&scene->map, c);
        void *payloads[MEMBERS + 1] = { NULL };
        unsigned acks = 0;
        for (uint64_t member = MEMBERS; member >= 1; member--) {
            if (!touches(member, micro, place.tensor)) continue;
            send_chunk(scene, member, micro, c, &payloads[member]);
            sent[member]++;
            acks++;
        }
        for (unsigned i = 0; i < acks; i++) scene_note(scene, CAIRN_CHUNK_ACK);
        scene_sent(scene);
        for (int i = 0; i <= MEMBERS; i++) free(payloads[i]);
        if (c == 0) {
            model_push_chunk(scene, 1, micro, c); // again: acknowledged, and not added
            scene_note(scene, CAIRN_CHUNK_ACK);
        }
    }
    for (uint64_t member = 1; member <= MEMBERS; member++)
        end_micro(scene, member, micro, sent[member]);
    for (int i = 0; i < MEMBERS; i++)
        ck_assert_uint_eq(scene_note(scene, CAIRN_CHUNK_MICRO_ACK)->header.micro, micro);
    scene_sent(scene);
}

void model_push_round(struct scene *scene, uint64_t round, uint64_t step)
{
    scene_round_open(scene, round, step, MEMBERS);
    for (int i = 0; i < MEMBERS; i++) {
        const struct scene_note *grant = scene_note(scene, CAIRN_CHUNK_GRANT);
        ck_assert_uint_eq(grant->header.round, round);
        ck_assert_uint_eq(grant->header.value, SCENE_WINDOW);
    }
    for (uint32_t micro = 0; micro < MICROS; micro++) push_micro(scene, micro);
    for (uint64_t member = 1; member <= MEMBERS; member++) {
        struct chunk_header commit = scene_header(scene, CAIRN_CHUNK_COMMIT, member);
        commit.micro = MICROS - 1;
        commit.value = member == 1 ? 3 : 5;
        scene_send(scene, &commit, NULL, 0);
    }
}

/* ---- the reference ---- */

/* The sum of one extent, in (micro, member) order; malloc'd. */
static float *fold_extent(uint64_t round, const struct local_extent *extent)
{
    float *acc = malloc(extent->elem_count * sizeof *acc);
    bool first = true;
    for (uint32_t micro = 0; micro < MICROS; micro++) {
        for (uint64_t member = 1; member <= MEMBERS; member++) {
            if (!touches(member, micro, extent->tensor)) continue;
            void *payload = make_payload(round, member, micro, extent->tensor, extent->first_elem,
                                         extent->elem_count);
            const struct fold_source source = { payload, sends_bf16(member, extent->tensor)
                                                             ? CAIRN_BF16
                                                             : CAIRN_F32 };
            backend_host()->fold(acc, &source, 1, first, extent->elem_count);
            first = false;
            free(payload);
        }
    }
    return acc;
}

static void sum_all(const struct scene *scene, uint64_t round, struct sums *sums)
{
    memset(sums, 0, sizeof *sums);
    for (size_t i = 0; i < scene->map.extent_count; i++) {
        const struct local_extent *extent = &scene->map.extents[i];
        if (extent->tensor == T_FROZEN) continue;
        float *acc = fold_extent(round, extent);
        backend_host()->sum_leaves(acc, &scene->layout->geometry[extent->tensor],
                                   extent->first_leaf, extent->leaf_count, sums);
        free(acc);
    }
}

static void update_all(struct model *model, uint64_t round, const struct group_scalars scalars[2])
{
    const struct shard_map *map = &model->scene->map;
    for (size_t i = 0; i < map->extent_count; i++) {
        const struct local_extent *extent = &map->extents[i];
        if (extent->tensor == T_FROZEN) continue;
        float *acc = fold_extent(round, extent);
        const bool adam = extent->tensor != T_EMB;
        const struct update update = {
            .grad = acc,
            .param = model->param + extent->local_elem,
            .exp_avg = model->exp_avg + extent->local_elem,
            .exp_avg_sq = adam ? model->exp_avg_sq + extent->local_elem : NULL,
            .ema = adam ? model->ema + extent->local_elem : NULL,
            .wire = model->wire + extent->local_elem * 4,
            .wire_dtype = wire_of[extent->tensor],
            .elems = extent->elem_count,
        };
        const struct group_scalars *s = &scalars[group_of[extent->tensor]];
        backend_host()->update[s->optimizer](&update, s);
        free(acc);
    }
}

static void make_scalars(const struct scene *scene, const struct sums *sums, uint64_t step,
                         struct group_scalars scalars[2])
{
    struct update_norm norm;
    ck_assert_int_eq(update_norm_of(&sums->sum_squares, 8, 1.0, 1.0, &norm), CAIRN_OK);
    for (int g = 0; g < 2; g++) {
        struct group_hyper hyper;
        ck_assert_int_eq(group_hyper_of_spec(&scene->spec.groups[g], &hyper, NULL), CAIRN_OK);
        ck_assert_int_eq(group_scalars_of(&hyper, step, norm.grad_scale, &scalars[g]), CAIRN_OK);
    }
}

void model_say_apply(struct scene *scene, uint64_t round, uint64_t step, uint16_t type,
                     const struct group_scalars scalars[2])
{
    const struct payload head = {
        .clip_scale = 1, .lr = 1e-3, .loss_scale = 1, .finite = true, .group_count = 2
    };
    uint8_t payload[CAIRN_PAYLOAD_BYTES(2)];
    payload_encode(&head, scalars, payload);
    Cairn__Decision apply = { .kind = CAIRN_DECISION_APPLY,
                              .round = round,
                              .generation = 1,
                              .step = step + 1,
                              .payload = { sizeof payload, payload } };
    scene_say_decision(scene, type, &apply);
}

void model_update(struct model *model, uint64_t round, uint64_t step,
                  struct group_scalars scalars_out[2])
{
    struct sums sums;
    sum_all(model->scene, round, &sums);
    make_scalars(model->scene, &sums, step + 1, scalars_out);
    update_all(model, round, scalars_out);
}

void model_apply(struct model *model, struct scene *scene, uint64_t round, uint64_t step,
                 uint16_t type)
{
    struct group_scalars scalars[2];
    model_update(model, round, step, scalars);
    model_say_apply(scene, round, step, type, scalars);
    const Cairn__Published *published = scene_heard(scene, Published);
    ck_assert_uint_eq(published->round, round);
    ck_assert_uint_eq(published->step, step + 1);
}

void model_round(struct model *model, struct scene *scene, uint64_t round, uint64_t step)
{
    model_push_round(scene, round, step);
    const Cairn__Reduced *reduced = scene_heard(scene, Reduced);
    struct sums sums;
    uint8_t squares[CAIRN_EXACT_BYTES];
    sum_all(scene, round, &sums);
    exact_encode(&sums.sum_squares, squares);
    ck_assert_uint_eq(reduced->round, round);
    ck_assert_uint_eq(reduced->n_values, 3);
    ck_assert_uint_eq(reduced->values[0]->value.len, sizeof squares);
    ck_assert_mem_eq(reduced->values[0]->value.data, squares, sizeof squares);
    ck_assert_uint_eq(reduced->values[1]->value.data[0], 0);
    ck_assert_uint_eq(reduced->values[2]->value.data[0], 8);
    model_apply(model, scene, round, step, CAIRN_MSG_DECIDE);
}

/* ---- snapshots ---- */

static cairn_status give_zeros(void *context, const struct safetensors_entry *entry,
                               uint64_t first_elem, uint64_t elem_count, void *to,
                               struct sentence *why)
{
    (void)context;
    (void)first_elem;
    (void)why;
    memset(to, 0, (size_t)elem_count * dtype_size((int)entry->dtype));
    return CAIRN_OK;
}

void model_write_rest(const struct scene *scene, const char *folder, struct manifest *manifest)
{
    struct shard_map map;
    struct snapshot_range ranges[TENSORS];
    struct snapshot_plan plan;
    struct sentence why;
    ck_assert_int_eq(shard_map_init(&map, scene->layout, 1, SCENE_CHUNK_LEAVES), CAIRN_OK);
    for (size_t i = 0; i < map.extent_count; i++)
        ranges[i] = (struct snapshot_range) { map.extents[i].tensor, map.extents[i].first_elem,
                                              map.extents[i].elem_count };
    ck_assert_int_eq(snapshot_plan_make(&scene->spec, 1, ranges, map.extent_count, &plan),
                     CAIRN_OK);
    for (size_t i = 0; i < plan.file_count; i++) {
        uint8_t sums[16];
        ck_assert_uint_le(snapshot_block_count(plan.files[i].file_bytes), 1);
        ck_assert_msg(snapshot_write_file(folder, &plan.files[i], give_zeros, NULL, sums, &why) ==
                          CAIRN_OK,
                      "%s", why.text);
        ck_assert_int_eq(
            manifest_add_file(manifest, plan.files[i].path, plan.files[i].file_bytes, sums, false),
            CAIRN_OK);
    }
    snapshot_plan_release(&plan);
    shard_map_release(&map);
}
