/* The declarations that the files of safetensors.h share. */
#ifndef CAIRN_SAFETENSORS_SAFETENSORS_PRIVATE_H
#define CAIRN_SAFETENSORS_SAFETENSORS_PRIVATE_H

#include "proto/safetensors/safetensors.h"

/* The files in a folder of Hugging Face: one with all weights, or the index that says which file
 * has which. */
#define CAIRN_WEIGHTS_WHOLE "model.safetensors"
#define CAIRN_WEIGHTS_INDEX "model.safetensors.index.json"

/* Opens the allowed folder that w->path is in; returns the rest of the path, or NULL, and why. */
const char *weights_enter_root(const char *roots, struct weights *w,
                               struct sentence *why) CAIRN_MUST_CHECK;
/* Opens a file or folder at a path beneath the allowed one, and says what it is. */
cairn_status weights_open_beneath(const struct weights *w, const char *path, int *fd_out,
                                  struct stat *info_out, struct sentence *why) CAIRN_MUST_CHECK;
/* Reads all of [offset, offset + count), or says why not. */
cairn_status weights_pread(int fd, const char *path, void *out, size_t count, uint64_t offset,
                           struct sentence *why) CAIRN_MUST_CHECK;

#endif
