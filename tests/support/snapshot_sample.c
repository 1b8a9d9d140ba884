#include "tests/support/snapshot_sample.h"

#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job_spec_data cairn_sample_spec(const char *optimizer)
{
    struct job_spec_data spec;
    spec_init(&spec);
    ck_assert_int_eq(spec_set_name(&spec, "job"), CAIRN_OK);
    struct group_spec g = group_default();
    g.name = wire_text("all");
    g.optimizer = wire_text(optimizer);
    ck_assert_int_eq(spec_add_group(&spec, &g), CAIRN_OK);
    return spec;
}

void cairn_sample_tensor(struct job_spec_data *spec, const char *name, cairn_kind kind,
                         struct shape shape)
{
    const cairn_dtype dtype = kind == CAIRN_BLOB ? CAIRN_U8 : CAIRN_F32;
    const struct tensor_spec t = { .name = wire_text(name),
                                   .group = wire_text("all"),
                                   .kind = kind,
                                   .wire = dtype,
                                   .reduce = CAIRN_F32,
                                   .master = dtype,
                                   .shape = shape };
    ck_assert_int_eq(spec_add_tensor(spec, &t), CAIRN_OK);
}

struct cairn_sample_poke cairn_sample_poke;

uint32_t cairn_sample_value(uint32_t tensor, uint32_t plane, uint64_t elem)
{
    const struct cairn_sample_poke *p = &cairn_sample_poke;
    if (p->set && p->tensor == tensor && p->plane == plane && p->elem == elem) return p->bits;
    uint32_t x = tensor * 1000003u + plane * 10007u + (uint32_t)elem;
    x = x * 2654435761u + 12345u;
    return x >> 9 | 0x3f800000u;
}

cairn_status cairn_sample_fill(void *context, const struct safetensors_entry *entry,
                               uint64_t first_elem, uint64_t elem_count, void *to,
                               struct sentence *why)
{
    const size_t size = dtype_size((int)entry->dtype);
    (void)context;
    (void)why;
    ck_assert_uint_le(elem_count * size, CAIRN_SNAPSHOT_BLOCK_BYTES);
    for (uint64_t i = 0; i < elem_count; i++) {
        const uint32_t value = cairn_sample_value(entry->tensor, entry->plane, first_elem + i);
        memcpy((uint8_t *)to + i * size, &value,
               size); // little endian: a blob's byte is the lowest
    }
    return CAIRN_OK;
}

void cairn_sample_write(const char *folder, const struct job_spec_data *spec, uint32_t shard,
                        const struct cairn_sample_ranges *owned, struct manifest *manifest)
{
    struct snapshot_plan plan;
    ck_assert_int_eq(snapshot_plan_make(spec, shard, owned->at, owned->count, &plan), CAIRN_OK);
    for (size_t i = 0; i < plan.file_count; i++) {
        uint8_t sums[128 * CAIRN_SNAPSHOT_SUM_BYTES];
        struct sentence why = { "" };
        ck_assert_uint_le(snapshot_block_count(plan.files[i].file_bytes), 128);
        cairn_status status = snapshot_write_file(folder, &plan.files[i], cairn_sample_fill, NULL,
                                                  sums, &why);
        ck_assert_msg(status == CAIRN_OK, "%s", why.text);
        status = manifest_add_file(manifest, plan.files[i].path, plan.files[i].file_bytes, sums,
                                   false);
        ck_assert_int_eq(status, CAIRN_OK);
    }
    snapshot_plan_release(&plan);
}

struct job_spec_data cairn_sample_vectors(const char *optimizer, const char *names, uint64_t elems)
{
    struct job_spec_data spec = cairn_sample_spec(optimizer);
    for (; *names != '\0'; names++) {
        const char name[] = { *names, '\0' };
        cairn_sample_tensor(&spec, name, CAIRN_TRAINED, (struct shape) { 1, { elems } });
    }
    return spec;
}

void cairn_sample_begin(struct cairn_sample_making *s, const char *root, struct job_spec_data spec)
{
    struct sentence why = { "" };
    *s = (struct cairn_sample_making) { .spec = spec };
    manifest_init(&s->manifest);
    ck_assert_int_eq(spec_copy(&s->spec, &s->manifest.spec), CAIRN_OK);
    ck_assert_msg(snapshot_folder_make(root, "job", 1, 1, s->id, &s->folder, &why) == CAIRN_OK,
                  "%s", why.text);
}

void cairn_sample_put(struct cairn_sample_making *s, uint32_t shard, struct snapshot_range range)
{
    const struct cairn_sample_ranges owned = { .at = { range }, .count = 1 };
    cairn_sample_write(s->folder, &s->spec, shard, &owned, &s->manifest);
}

void cairn_sample_commit(struct cairn_sample_making *s)
{
    struct sentence why = { "" };
    ck_assert_msg(manifest_commit(s->folder, &s->manifest, &why) == CAIRN_OK, "%s", why.text);
}

void cairn_sample_end(struct cairn_sample_making *s)
{
    manifest_release(&s->manifest);
    spec_release(&s->spec);
    free(s->folder);
}

const char *cairn_sample_path(const struct cairn_sample_making *s, const char *name)
{
    static char path[400];
    snprintf(path, sizeof path, "%s/%s", s->folder, name);
    return path;
}

static void count_one(void *context, const char *job, const char *id, const char *folder)
{
    (void)job, (void)id, (void)folder;
    ++*(size_t *)context;
}

size_t cairn_sample_count(const char *root, const char *job)
{
    size_t count = 0;
    ck_assert_int_eq(snapshot_list(root, job, count_one, &count, NULL), CAIRN_OK);
    return count;
}

char *cairn_sample_snapshot(const char *root, const struct job_spec_data *spec, uint64_t step)
{
    static struct cairn_sample_ranges owned[2];
    struct manifest manifest;
    char id[CAIRN_SNAPSHOT_ID_BYTES], *folder = NULL;
    struct sentence why = { "" };
    owned[0].count = owned[1].count = 0;
    manifest_init(&manifest);
    manifest.generation = 1;
    manifest.step = step;
    manifest.shard_count = 2;
    ck_assert_int_eq(spec_copy(spec, &manifest.spec), CAIRN_OK);
    for (uint32_t t = 0; t < spec->tensor_count; t++) {
        const struct geometry g = geometry_of(&spec->tensors[t].shape);
        if (g.elems == 0) continue;
        const uint64_t last = g.row_count > 1 && spec->tensors[t].kind != CAIRN_BLOB ? g.row_elems
                                                                                     : 0;
        owned[0].at[owned[0].count++] = (struct snapshot_range) { t, 0, g.elems - last };
        if (last > 0)
            owned[1].at[owned[1].count++] = (struct snapshot_range) { t, g.elems - last, last };
    }
    ck_assert_int_eq(snapshot_folder_make(root, spec->name, 1, step, id, &folder, NULL), CAIRN_OK);
    for (uint32_t s = 0; s < 2; s++) cairn_sample_write(folder, spec, s, &owned[s], &manifest);
    const cairn_status status = manifest_commit(folder, &manifest, &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
    manifest_release(&manifest);
    return folder;
}

cairn_status snapshot_write_file(const char *folder, const struct snapshot_file *file,
                                 snapshot_fill_fn fill, void *context, uint8_t *sums_out,
                                 struct sentence *why)
{
    const struct snapshot_input source = { .fill = fill, .context = context };
    struct snapshot_writer *writer;
    CAIRN_TRY(snapshot_writer_open(1, &writer, why));
    cairn_status status = snapshot_writer_put(writer, folder, file, &source, sums_out, why);
    snapshot_writer_close(writer);
    return status;
}
