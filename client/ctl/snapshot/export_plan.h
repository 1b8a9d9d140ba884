/* What an export consists of: which files, with which tensors. Pure.
 *
 *   hf    model.safetensors, or, where that would be too large,
 *         model-00001-of-00002.safetensors, ..., model.safetensors.index.json
 *         As transformers writes it: whole tensors, one after the other; __metadata__ has "format", and for
 *         each alias of a whole tensor its name, and that of the tensor, which is stored once (as
 *         safetensors.torch.save_model does).
 *   dcp   model/model-00001-of-00002.safetensors, ...    and model.safetensors.index.json where there are
 *   more
 *         optim/model-00001-of-00001.safetensors, ...    likewise
 *         As PyTorch's HuggingFaceStorageReader reads it. Keys in optim/ are torch's:
 *         state.<name>.exp_avg, .exp_avg_sq, .step (f32); of SGD state.<name>.momentum_buffer.
 *
 *   torch checkpoint.pt, as torch.save writes it: torch_file.h
 *
 * Blobs, which are no numbers, and aliases are left out. */
#ifndef CAIRN_CTL_SNAPSHOT_EXPORT_PLAN_H
#define CAIRN_CTL_SNAPSHOT_EXPORT_PLAN_H

#include <stdbool.h>

#include "client/ctl/snapshot/torch_file.h"

#define CTL_EXPORT_INDEX_NAME "model.safetensors.index.json"
#define CTL_EXPORT_PLANE_STEP 0 /* of an entry: torch's count of steps, one f32 */

struct ctl_export_wish {
    bool is_dcp, is_torch;   /* neither: hf */
    cairn_dtype dtype;       /* of the model's tensors: CAIRN_F32 or CAIRN_BF16 */
    uint64_t file_bytes_max; /* of tensors in a file, but for one that is larger by itself */
};

struct ctl_export_file {
    struct cairn_snapshot_file file;
    size_t part; /* index of its folder */
};
/* A folder of it: all of hf; "model" and "optim" of dcp. */
struct ctl_export_part {
    const char *folder; /* "": the export's own */
    size_t file_count;
    uint64_t data_bytes;
    char *index; /* owned; the JSON that is to stand beside its files; NULL: none */
    size_t index_bytes;
};
struct ctl_export_plan {
    struct ctl_export_file *files; /* owned */
    size_t file_count, file_capacity;
    struct ctl_export_part parts[2];
    size_t part_count;
    struct ctl_torch_file *torch; /* owned; NULL unless the wish is torch */
    uint64_t data_bytes;          /* of all tensors */
    size_t tensors;               /* of the model; and what is left out: */
    size_t blobs, aliases;
};

/* Of the manifest of a snapshot, which outlives it. CAIRN_ERR_NO_MEMORY; CAIRN_ERR_NOT_FOUND: there is
 * nothing to export. Release it only if it is CAIRN_OK. */
cairn_status cairn_ctl_export_plan_make(const struct cairn_manifest *manifest,
                                        const struct ctl_export_wish *wish,
                                        struct ctl_export_plan *plan_out) CAIRN_MUST_CHECK;
void cairn_ctl_export_plan_release(struct ctl_export_plan *plan);

#endif
