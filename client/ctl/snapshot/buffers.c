#include "client/ctl/snapshot/buffers.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define LIST_BYTES_MAX (UINT64_C(256) << 20)

static const struct ctl_number_type types[] = {
    { "F32", "float32", "FloatStorage", 4 },  { "BF16", "bfloat16", "BFloat16Storage", 2 },
    { "F64", "float64", "DoubleStorage", 8 }, { "I64", "int64", "LongStorage", 8 },
    { "I32", "int32", "IntStorage", 4 },      { "I16", "int16", "ShortStorage", 2 },
    { "I8", "int8", "CharStorage", 1 },       { "U8", "uint8", "ByteStorage", 1 },
    { "BOOL", "bool", "BoolStorage", 1 },     { "C64", "complex64", "ComplexFloatStorage", 8 },
};

const struct ctl_number_type *cairn_ctl_number_type(cairn_dtype dtype)
{
    return &types[dtype == CAIRN_BF16 ? 1 : 0];
}

/* The type and shape that the list gives for the buffer, if they make as many bytes as it has; else
 * type NULL. */
static struct ctl_buffer listed(const json_t *entry, uint64_t bytes)
{
    struct ctl_buffer b = { .type = NULL };
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape");
    const size_t rank = json_array_size(shape);
    if (dtype == NULL || !json_is_array(shape) || rank > CAIRN_RANK_MAX) return b;
    b.shape.rank = (uint32_t)rank;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].safetensors, dtype) == 0) b.type = &types[i];
    uint64_t counted = b.type != NULL ? b.type->bytes : 0;
    bool fits = b.type != NULL;
    for (size_t d = 0; d < rank && fits; d++) {
        const json_int_t dim = json_integer_value(json_array_get(shape, d));
        fits = dim >= 0 && !__builtin_mul_overflow(counted, (uint64_t)dim, &counted);
        b.shape.dim[d] = (uint64_t)dim;
    }
    return fits && counted == bytes ? b : (struct ctl_buffer) { .type = NULL };
}

/* The blob's JSON, the caller's; NULL: there is none that can be read as that. */
static cairn_status read_list(struct cairn_snapshot *snapshot, json_t **out,
                              struct cairn_sentence *why)
{
    const struct cairn_job_spec_data *spec = &snapshot->manifest.spec;
    const size_t at = cairn_spec_find_tensor(spec, CTL_BUFFERS_BLOB);
    *out = NULL;
    if (at >= spec->tensor_count || spec->tensors[at].kind != CAIRN_BLOB ||
        spec->tensors[at].shape.dim[0] > LIST_BYTES_MAX)
        return CAIRN_OK;
    const size_t bytes = (size_t)spec->tensors[at].shape.dim[0];
    char *text = malloc(bytes + 1);
    if (text == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    const cairn_status status = cairn_snapshot_read(snapshot, (uint32_t)at, CAIRN_PLANE_PARAM, 0,
                                                    bytes, text, why);
    if (status == CAIRN_OK) *out = json_loadb(text, bytes, 0, NULL);
    free(text);
    return status;
}

cairn_status cairn_ctl_buffers_read(struct cairn_snapshot *snapshot, struct ctl_buffer **out,
                                    struct cairn_sentence *why)
{
    const struct cairn_job_spec_data *spec = &snapshot->manifest.spec;
    json_t *list = NULL;
    struct ctl_buffer *buffers = calloc(spec->tensor_count + 1, sizeof *buffers);
    if (buffers == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    const cairn_status status = read_list(snapshot, &list, why);
    for (size_t i = 0; i < spec->tensor_count && list != NULL; i++)
        if (spec->tensors[i].kind == CAIRN_BLOB)
            buffers[i] = listed(json_object_get(list, spec->tensors[i].name),
                                spec->tensors[i].shape.dim[0]);
    json_decref(list);
    if (status == CAIRN_OK)
        *out = buffers;
    else
        free(buffers);
    return status;
}
