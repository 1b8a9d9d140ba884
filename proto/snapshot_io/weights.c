#include "proto/snapshot_io/weights.h"

#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "proto/spec/planes.h"

struct snapshot_source {
    struct cairn_weights_source source; /* first */
    struct cairn_snapshot snapshot;
};

static cairn_status read_source(struct cairn_weights_source *source,
                                const struct cairn_weight *weight, uint64_t first_elem,
                                uint64_t elem_count, float *out, struct cairn_sentence *why)
{
    struct snapshot_source *s = (struct snapshot_source *)source;
    return cairn_snapshot_read(&s->snapshot, weight->entry->tensor, CAIRN_PLANE_PARAM, first_elem,
                               elem_count, out, why);
}

static void close_source(struct cairn_weights_source *source)
{
    cairn_snapshot_close(&((struct snapshot_source *)source)->snapshot);
    free(source);
}

/* Lists each tensor that has state of its own, in fp32. False: no memory. */
static bool list_entries(const struct cairn_job_spec_data *spec,
                         struct cairn_safetensors *header_out)
{
    header_out->entries = calloc(spec->tensor_count + 1, sizeof *header_out->entries);
    if (header_out->entries == NULL) return false;
    for (size_t i = 0; i < spec->tensor_count; i++) {
        const struct cairn_tensor_spec *tensor = &spec->tensors[i];
        if (tensor->alias_of != NULL ||
            cairn_spec_plane_dtype(spec, i, CAIRN_PLANE_PARAM) != CAIRN_F32)
            continue;
        struct cairn_safetensors_entry *e = &header_out->entries[header_out->entry_count];
        *e = (struct cairn_safetensors_entry) { .key = strdup(tensor->name),
                                                .dtype_name = "F32",
                                                .dtype = CAIRN_F32,
                                                .box.rank = tensor->shape.rank,
                                                .tensor = (uint32_t)i };
        if (e->key == NULL) return false;
        memcpy(e->box.extent, tensor->shape.dim, tensor->shape.rank * sizeof *e->box.extent);
        header_out->entry_count++;
    }
    return true;
}

static cairn_status open_snapshot(const char *path, const char *folder, struct cairn_weights *out,
                                  struct cairn_sentence *why)
{
    struct snapshot_source *s = calloc(1, sizeof *s);
    if (s == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    s->source = (struct cairn_weights_source) { read_source, close_source };
    const cairn_status status = cairn_snapshot_open(folder, &s->snapshot, why);
    if (status != CAIRN_OK) {
        free(s);
        return status;
    }
    struct cairn_safetensors header = { .entries = NULL };
    if (list_entries(&s->snapshot.manifest.spec, &header))
        return cairn_weights_of(path, &s->source, &header, out, why);
    cairn_safetensors_release(&header);
    close_source(&s->source);
    return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the tensors of %s", path);
}

cairn_status cairn_snapshot_weights_open(const char *roots, const char *path,
                                         struct cairn_weights *out, struct cairn_sentence *why)
{
    char *folder;
    cairn_status status = cairn_weights_folder_with(roots, path, CAIRN_MANIFEST_NAME, &folder, why);
    if (status != CAIRN_OK) return status;
    if (folder == NULL) return cairn_weights_open(roots, path, out, why);
    status = open_snapshot(path, folder, out, why);
    free(folder);
    return status;
}
