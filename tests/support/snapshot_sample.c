#include "tests/support/snapshot_sample.h"

#include <check.h>
#include <stdint.h>
#include <string.h>

static char *borrowed(const char *text)
{
    return (char *)(uintptr_t)text; // the spec copies it
}

struct cairn_job_spec_data cairn_sample_spec(const char *optimizer)
{
    struct cairn_job_spec_data spec;
    cairn_spec_init(&spec);
    ck_assert_int_eq(cairn_spec_set_name(&spec, "job"), CAIRN_OK);
    struct cairn_group_spec g = cairn_group_default();
    g.name = borrowed("all");
    g.optimizer = borrowed(optimizer);
    ck_assert_int_eq(cairn_spec_add_group(&spec, &g), CAIRN_OK);
    return spec;
}

void cairn_sample_tensor(struct cairn_job_spec_data *spec, const char *name, cairn_kind kind,
                         struct cairn_shape shape)
{
    const cairn_dtype dtype = kind == CAIRN_BLOB ? CAIRN_U8 : CAIRN_F32;
    const struct cairn_tensor_spec t = { .name = borrowed(name),
                                         .group = borrowed("all"),
                                         .kind = kind,
                                         .wire = dtype,
                                         .reduce = CAIRN_F32,
                                         .master = dtype,
                                         .shape = shape };
    ck_assert_int_eq(cairn_spec_add_tensor(spec, &t), CAIRN_OK);
}

uint32_t cairn_sample_value(uint32_t tensor, uint32_t plane, uint64_t elem)
{
    uint32_t x = tensor * 1000003u + plane * 10007u + (uint32_t)elem;
    x = x * 2654435761u + 12345u;
    return x >> 9 | 0x3f800000u;
}

cairn_status cairn_sample_fill(void *context, const struct cairn_safetensors_entry *entry,
                               uint64_t first_elem, uint64_t elem_count, void *to,
                               struct cairn_sentence *why)
{
    const size_t size = cairn_dtype_bytes((int)entry->dtype);
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

void cairn_sample_write(const char *folder, const struct cairn_job_spec_data *spec, uint32_t shard,
                        const struct cairn_sample_ranges *owned, struct cairn_manifest *manifest)
{
    struct cairn_snapshot_plan plan;
    ck_assert_int_eq(cairn_snapshot_plan_make(spec, shard, owned->at, owned->count, &plan),
                     CAIRN_OK);
    for (size_t i = 0; i < plan.file_count; i++) {
        uint8_t sums[64 * CAIRN_SNAPSHOT_SUM_BYTES];
        struct cairn_sentence why = { "" };
        ck_assert_uint_le(cairn_snapshot_block_count(plan.files[i].file_bytes), 64);
        cairn_status status = cairn_snapshot_write_file(folder, &plan.files[i], cairn_sample_fill,
                                                        NULL, sums, &why);
        ck_assert_msg(status == CAIRN_OK, "%s", why.text);
        status = cairn_manifest_add_file(manifest, plan.files[i].path, plan.files[i].file_bytes,
                                         sums, false);
        ck_assert_int_eq(status, CAIRN_OK);
    }
    cairn_snapshot_plan_release(&plan);
}
