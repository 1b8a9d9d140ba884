/* A file of torch.save, planned: what torch.load(weights_only=True) reads, with or without mmap.
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
 * The plan is entries of the snapshot's writer: planes, and pieces of text between them. Sums of what is
 * written (the format has CRC-32) are filled into the text behind it, so memory is that of the text. */
#ifndef CAIRN_CTL_SNAPSHOT_TORCH_FILE_H
#define CAIRN_CTL_SNAPSHOT_TORCH_FILE_H

#include "proto/snapshot/manifest.h"
#include "proto/snapshot/snapshot_file.h"

#define CTL_TORCH_FILE_NAME "checkpoint.pt"

struct ctl_torch_file; /* the text, and what is summed */

/* The entry is text, no plane. */
bool cairn_ctl_torch_is_text(const struct cairn_safetensors_entry *entry);
/* Adds the entries of all of it to an empty file, whose path is set. `dtype`: of the model's tensors.
 * CAIRN_ERR_NO_MEMORY; CAIRN_ERR_NOT_FOUND: there is nothing to write. Of a manifest that outlives it. */
cairn_status cairn_ctl_torch_plan(const struct cairn_manifest *manifest, cairn_dtype dtype,
                                  uint32_t step_plane, struct cairn_snapshot_file *file,
                                  struct ctl_torch_file **out) CAIRN_MUST_CHECK;
/* Bytes [first, first + count) of the text. All planes before it were passed. */
void cairn_ctl_torch_text(const struct ctl_torch_file *t, uint64_t first, uint64_t count, void *to);
/* The next bytes of this entry, which is a plane: in order, each once. */
void cairn_ctl_torch_pass(struct ctl_torch_file *t, const struct cairn_safetensors_entry *entry,
                          const void *from, uint64_t bytes);
void cairn_ctl_torch_free(struct ctl_torch_file *t);

#endif
