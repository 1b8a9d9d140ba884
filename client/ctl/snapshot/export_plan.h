/* Plans an export: which files it has, with which tensors. Pure.
 *
 *   hf    model.safetensors, or, where that would be too large,
 *         model-00001-of-00002.safetensors, ..., model.safetensors.index.json
 *         As transformers writes it: whole tensors, one after the other; __metadata__ has "format", and for
 *         each alias of a whole tensor its name, and that of the tensor, which is stored once (as
 *         safetensors.torch.save_model does).
 *   dcp   __0_0.distcp, .metadata: a folder of torch.distributed.checkpoint     torch_file.h
 *   torch checkpoint.pt, as torch.save writes it                                the same
 *
 * Blobs, which are no numbers, are left out, but for buffers that are kept as their bytes (buffers.h); so are
 * the aliases of hf, and in dcp those of a part of a tensor. */
#ifndef CAIRN_CTL_SNAPSHOT_EXPORT_PLAN_H
#define CAIRN_CTL_SNAPSHOT_EXPORT_PLAN_H

#include <stdbool.h>

#include "client/ctl/snapshot/torch_file.h"

#define CTL_EXPORT_INDEX_NAME "model.safetensors.index.json"
#define CTL_EXPORT_PLANE_STEP 0 /* of an entry: torch's count of steps, one f32 */

struct ctl_export_wish {
    bool is_dcp, is_torch; /* neither: hf */
    const struct ctl_buffer *buffers;
    cairn_dtype dtype;       /* of the model's tensors: CAIRN_F32 or CAIRN_BF16 */
    uint64_t file_bytes_max; /* of tensors in a file, but for one that is larger by itself */
};

struct ctl_export_plan {
    struct cairn_snapshot_file *files; /* owned */
    size_t file_count, file_capacity;
    char *index; /* owned; what is to stand beside the files; NULL: nothing */
    const char *index_name;
    size_t index_bytes;
    struct ctl_torch_file *torch; /* owned; NULL of hf */
    uint64_t data_bytes;          /* of all tensors */
    size_t tensors;               /* of the model; and what is left out: */
    size_t blobs, aliases;
};

/* Plans the export of the snapshot with this manifest, which must outlive the plan.
 * CAIRN_ERR_NO_MEMORY; CAIRN_ERR_NOT_FOUND: there is nothing to export. Release the plan only on
 * CAIRN_OK. */
cairn_status cairn_ctl_export_plan_make(const struct cairn_manifest *manifest,
                                        const struct ctl_export_wish *wish,
                                        struct ctl_export_plan *plan_out) CAIRN_MUST_CHECK;
void cairn_ctl_export_plan_release(struct ctl_export_plan *plan);

#endif
