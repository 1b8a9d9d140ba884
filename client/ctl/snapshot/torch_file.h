/* Files of torch, planned: a file of torch.save, which torch.load(weights_only=True) reads, with or without
 * mmap, and a folder of torch.distributed.checkpoint, which dcp.load(checkpoint_id=...) reads.
 *
 *   zip, stored, not compressed: checkpoint/data.pkl, byteorder, data/0, data/1, ..., version
 *   data.pkl   a pickle of protocol 2: {"model": {name: tensor}, "optimizer": {"state": {n: {"step",
 *              "exp_avg", "exp_avg_sq" | "momentum_buffer"}}, "param_groups": [{"lr", ..., "params": [n],
 *              "param_names": [name]}]}, "step": n}; a tensor is what _rebuild_tensor_v2 makes of a storage
 *   data/n     the elements, little endian, from a multiple of 64 bytes on
 *
 * Numbered are the parameters that are trained, group by group as cairn.from_torch names them, in a group in
 * the order in which the job's maker listed them (cairn_tensor_spec.order): the torch optimizer's, or the
 * model's. Aliases are what they are in torch: tensors of one storage.
 *
 *   folder     __0_0.distcp: an archive like that of each tensor, with data/0, and of each option of a group,
 *              one behind the other; .metadata: a pickle of torch's Metadata, by which a key is found, each
 *              tensor one chunk. Keys are those of get_state_dict: model.<name>, optim.state.<name>.exp_avg,
 *              optim.param_groups.<n>.lr, ...; an alias of all of a tensor is a key of the same archive
 *
 * Buffers that are kept as their bytes (buffers.h) are tensors of their kind in both.
 *
 * The plan is entries of the snapshot's writer: planes, and pieces of text between them. Sums of what is
 * written (the format has CRC-32) are filled into the text behind it, so memory is that of the text. */
#ifndef CAIRN_CTL_SNAPSHOT_TORCH_FILE_H
#define CAIRN_CTL_SNAPSHOT_TORCH_FILE_H

#include "client/ctl/snapshot/buffers.h"
#include "proto/snapshot/manifest.h"
#include "proto/snapshot/snapshot_file.h"

#define CTL_TORCH_FILE_NAME       "checkpoint.pt"
#define CTL_TORCH_FOLDER_FILE     "__0_0.distcp"
#define CTL_TORCH_FOLDER_METADATA ".metadata"

struct ctl_torch_file; /* the text, and what is summed */

struct ctl_torch_wish {
    cairn_dtype dtype;   /* of the model's tensors */
    uint32_t step_plane; /* of an entry: torch's count of steps, one f32 */
    const struct ctl_buffer *buffers;
};

/* True: the entry is text, not a plane. */
bool cairn_ctl_torch_is_text(const struct cairn_safetensors_entry *entry);
/* Adds all entries to an empty file, whose path is set. The manifest must outlive the plan.
 * CAIRN_ERR_NO_MEMORY; CAIRN_ERR_NOT_FOUND: there is nothing to write. */
cairn_status cairn_ctl_torch_plan(const struct cairn_manifest *manifest,
                                  const struct ctl_torch_wish *wish,
                                  struct cairn_snapshot_file *file,
                                  struct ctl_torch_file **out) CAIRN_MUST_CHECK;
/* The same for a folder: plans its one file, and gives the bytes of .metadata, malloc'd. */
cairn_status cairn_ctl_torch_folder_plan(const struct cairn_manifest *manifest,
                                         const struct ctl_torch_wish *wish,
                                         struct cairn_snapshot_file *file,
                                         struct ctl_torch_file **out, char **metadata_out,
                                         size_t *metadata_bytes_out) CAIRN_MUST_CHECK;
/* Bytes [first, first + count) of the text. All planes before it were passed. */
void cairn_ctl_torch_text(const struct ctl_torch_file *t, uint64_t first, uint64_t count, void *to);
/* The next bytes of this entry, which is a plane: in order, each once. */
void cairn_ctl_torch_pass(struct ctl_torch_file *t, const struct cairn_safetensors_entry *entry,
                          const void *from, uint64_t bytes);
void cairn_ctl_torch_free(struct ctl_torch_file *t);

#endif
