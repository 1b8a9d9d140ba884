/* Finds the blobs of a snapshot that are tensors of a kind that the servers do not compute with:
 * integers, bools, float64, complex64. The Python client keeps such buffers of a model as their
 * bytes, and lists them in the blob CTL_BUFFERS_BLOB, in safetensors' words: {"<name>": {"dtype":
 * "I64", "shape": [..]}, ...}. Also has the kinds of numbers that an export writes, as each format
 * calls them. */
#ifndef CAIRN_CTL_SNAPSHOT_BUFFERS_H
#define CAIRN_CTL_SNAPSHOT_BUFFERS_H

#include "proto/snapshot_io/snapshot_io.h"

#define CTL_BUFFERS_BLOB "cairn.buffers"

struct ctl_number_type {
    const char *safetensors, *torch, *storage; /* "I64", "int64", "LongStorage" */
    uint32_t bytes;                            /* of one */
};
/* The entry for CAIRN_F32 or CAIRN_BF16. */
const struct ctl_number_type *cairn_ctl_number_type(cairn_dtype dtype);

/* A tensor's bytes as numbers. */
struct ctl_buffer {
    const struct ctl_number_type *type; /* NULL: it is not listed */
    struct cairn_shape shape;
};

/* Gives *out, malloc'd: one entry for each tensor of the snapshot's spec. A blob stays a blob if
 * the list gives it another size than it has, or a kind that the table does not have.
 * CAIRN_ERR_NO_MEMORY, and the errors of cairn_snapshot_read. */
cairn_status cairn_ctl_buffers_read(struct cairn_snapshot *snapshot, struct ctl_buffer **out,
                                    struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
