/* Copies a snapshot from one storage to another, byte for byte: files first, then the signature,
 * then the manifest, so that a crash leaves nothing that is a snapshot. Each block is judged by the
 * manifest's checksums before it is written.
 *
 * All functions block; call them from any thread. Statuses as in snapshot_io.h. */
#ifndef CAIRN_SNAPSHOT_IO_COPY_H
#define CAIRN_SNAPSHOT_IO_COPY_H

#include "proto/snapshot_io/snapshot_io.h"

struct cairn_snapshot_copy {
    /* Before each block, and at the end; `done` of all files' bytes were read and judged. False: give it up.
     * NULL: none. */
    bool (*progress)(void *context, uint64_t done);
    void *context;
};
/* Copies the snapshot, opened, to <root>/<its job>/<its id>; `root` must exist. *folder_out is malloc'd, the
 * caller's, set on success. CAIRN_ERR_EXISTS: that folder is there, whole or begun. CAIRN_ERR_CANCELED. On
 * failure what was written is removed. */
cairn_status cairn_snapshot_copy(struct cairn_snapshot *snapshot, const char *root,
                                 const struct cairn_snapshot_copy *copy, char **folder_out,
                                 struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
