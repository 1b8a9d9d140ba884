/* A shard that makes initial state itself: from initializers, from weights, and from both with puts. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/spec.h"
#include "tests/support/scratch.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"
#include "tests/support/weights_sample.h"
#include "tests/support/init.h"

static struct scene scene;
static char folder[CAIRN_SCRATCH_BYTES], path[256];

static void make_folder(void)
{
    cairn_scratch_make(folder);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    scene_open(&scene, "mem", 2, 0);
    free(scene.shard->import_folders);
    scene.shard->import_folders = strdup(folder);
}

static void remove_folder(void)
{
    scene_close(&scene);
    cairn_scratch_remove(folder);
}

static void set_init(uint32_t tensor, cairn_init_kind kind)
{
    const bool random = kind == CAIRN_INIT_UNIFORM || kind == CAIRN_INIT_NORMAL;
    scene.spec.tensors[tensor].init = (struct cairn_init) {
        .kind = kind, .a = random ? -1 : 0, .b = random ? 1 : 0, .seed = random ? 17 : 0
    };
}

static void init_from(const char *where, const char *prefix)
{
    ck_assert_int_eq(spec_set_init_from(&scene.spec, where, prefix), CAIRN_OK);
}

static void create(void)
{
    scene_make(&scene, 1);
    scene_join(&scene, 1, CAIRN_ROLE_WIRE_WORKER);
}

/* The create is refused, and nothing is held of it: the same number may come again. */
static void check_refused(cairn_status status, const char *word)
{
    scene_create(&scene, 3, 1, 0, "");
    scene_refused(&scene, 3, status, word);
    scene_settle(&scene);
    ck_assert_ptr_null(scene.shard->jobs);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, 0);
}

/* What an element should be: value(tensor, elem). */
static void check_param(float (*value)(uint32_t tensor, uint64_t elem))
{
    for (uint64_t c = 0; c < scene.map.chunk_count; c++) {
        const struct chunk_place place = shard_map_chunk(&scene.map, c);
        const float *got = scene_param(&scene, c);
        for (uint64_t i = 0; i < place.elem_count; i++)
            ck_assert(got[i] == value(place.tensor, place.first_elem + i));
    }
}

static float initialized(uint32_t tensor, uint64_t elem)
{
    float value;
    init_fill(&scene.spec.tensors[tensor].init, scene.spec.tensors[tensor].name, elem, 1, &value);
    return value;
}

static float counted(uint32_t tensor, uint64_t elem)
{
    return (float)(tensor * 100000 + elem);
}

static uint32_t spoiled; // bits 1u << T_...: tensors that are not finite in the file
static float value_in_file(uint32_t tensor, uint64_t elem)
{
    const bool odd = (spoiled & 1u << tensor) != 0;
    if (odd && tensor == T_BIAS && elem >= 7) return -INFINITY; // 3 of its 10
    if (odd && tensor == T_EMB && elem == 11999) return NAN;    // the last one
    return counted(tensor, elem);
}

static float initialized_bias(uint32_t tensor, uint64_t elem)
{
    return tensor == T_BIAS ? initialized(tensor, elem) : counted(tensor, elem);
}

static float initialized_but_frozen(uint32_t tensor, uint64_t elem)
{
    return tensor == T_FROZEN ? scene_initial(tensor, elem) : initialized(tensor, elem);
}

/* All tensors but `without`, each element counted. The names in the file have a prefix. */
static void write_weights(const char *prefix, uint32_t without)
{
    struct sample_weight weights[TENSORS];
    char keys[TENSORS][64];
    size_t count = 0;
    for (uint32_t t = 0; t < TENSORS; t++) {
        const struct tensor_spec *tensor = &scene.spec.tensors[t];
        const uint64_t elems = geometry_of(&tensor->shape).elems;
        if (t == without) continue;
        float *values = malloc((size_t)elems * sizeof *values);
        for (uint64_t i = 0; i < elems; i++) values[i] = value_in_file(t, i);
        snprintf(keys[t], sizeof keys[t], "%s%s", prefix, tensor->name);
        weights[count] = (struct sample_weight) { .key = keys[t],
                                                  .dtype = "F32",
                                                  .rank = tensor->shape.rank,
                                                  .bytes = values,
                                                  .byte_count = (size_t)elems * sizeof *values };
        memcpy(weights[count++].shape, tensor->shape.dim, sizeof weights->shape);
    }
    sample_weights_write(path, weights, count);
    for (size_t i = 0; i < count; i++) free((void *)(uintptr_t)weights[i].bytes);
}

TEST(a_job_of_initializers_needs_no_put)
{
    set_init(T_BIAS, CAIRN_INIT_ONES);
    set_init(T_EMB, CAIRN_INIT_NORMAL);
    set_init(T_FROZEN, CAIRN_INIT_UNIFORM);
    set_init(T_WEIGHT, CAIRN_INIT_NORMAL);
    create();
    check_param(initialized);
    scene_seal(&scene);
    check_param(initialized);
}

TEST(what_has_no_initializer_is_put_and_what_has_one_is_not)
{
    set_init(T_BIAS, CAIRN_INIT_ZEROS);
    set_init(T_EMB, CAIRN_INIT_NORMAL);
    set_init(T_WEIGHT, CAIRN_INIT_NORMAL);
    create();
    scene_tell(&scene, 8, JobSeal, .job = SCENE_JOB);
    scene_refused(&scene, 8, CAIRN_ERR_NOT_READY, scene.spec.tensors[T_FROZEN].name);
    for (uint64_t c = 0; c < scene.map.chunk_count; c++) {
        static float values[SCENE_CHUNK_LEAVES * CAIRN_LEAF_ELEMS];
        const struct chunk_place place = shard_map_chunk(&scene.map, c);
        struct chunk_header put = scene_chunk_header(&scene, CAIRN_CHUNK_PUT, 1, c);
        for (uint64_t i = 0; i < place.elem_count; i++)
            values[i] = scene_initial(place.tensor, place.first_elem + i);
        scene_send(&scene, &put, values, (size_t)place.elem_count * sizeof *values);
        if (place.tensor == T_FROZEN)
            scene_note(&scene, CAIRN_CHUNK_ACK);
        else
            ck_assert_uint_eq(scene_note(&scene, CAIRN_CHUNK_NAK)->header.value, CAIRN_ERR_EXISTS);
    }
    scene_seal(&scene);
    check_param(initialized_but_frozen);
}

TEST(weights_come_first_and_initializers_fill_what_they_lack)
{
    set_init(T_BIAS, CAIRN_INIT_UNIFORM);
    set_init(T_EMB, CAIRN_INIT_NORMAL); // the file has it: not used
    write_weights("model.", T_BIAS);
    init_from(folder, "model.");
    create();
    check_param(initialized_bias);
    scene_seal(&scene);
}

TEST(weights_that_do_not_fit_leave_nothing_behind)
{
    write_weights("", T_WEIGHT);
    init_from(path, NULL);
    check_refused(CAIRN_ERR_MISMATCH, "weight is missing");
    init_from("/etc/passwd", NULL);
    check_refused(CAIRN_ERR_REFUSED, "import.folders");
    write_weights("", TENSORS);
    init_from(path, NULL);
    create();
    check_param(counted);
}

TEST(weights_that_are_not_finite_are_listed_unless_the_job_takes_them)
{
    spoiled = 1u << T_BIAS | 1u << T_EMB;
    write_weights("", TENSORS);
    init_from(path, NULL);
    check_refused(CAIRN_ERR_NONFINITE, "NaN or infinite as fp32, in 2 tensors of what shard s0");
    check_refused(CAIRN_ERR_NONFINITE, "\nbias: 3, the first is element 7\nemb: 1, the first is "
                                       "element 11999");
    scene.spec.init_nonfinite_ok = true;
    create();
    ck_assert(isinf(scene_param(&scene, 0)[7])); // bias
    scene_seal(&scene);
}

TEST(a_buffer_may_begin_with_infinities)
{
    spoiled = 1u << T_BIAS;
    write_weights("", TENSORS);
    init_from(path, NULL);
    scene.spec.tensors[T_BIAS].kind = CAIRN_BUFFER;
    scene.spec.tensors[T_BIAS].group[0] = '\0';
    create();
    check_param(value_in_file);
    scene_seal(&scene);
}

TEST(a_job_that_is_dropped_while_its_state_is_made_is_forgotten)
{
    write_weights("", TENSORS);
    init_from(path, NULL);
    scene_create(&scene, 3, 1, 0, "");
    scene_tell(&scene, 4, JobDrop, .job = SCENE_JOB);
    while (scene_hear(&scene, CAIRN_MSG_DONE).request != 4) {}
    scene_settle(&scene);
    ck_assert_ptr_null(scene.shard->jobs);
}

SUITE(30, make_folder, remove_folder);
