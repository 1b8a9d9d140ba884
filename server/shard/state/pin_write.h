/* Reads a pinned version's bytes once, hashes and writes them, on one thread. */
#ifndef CAIRN_SHARD_STATE_PIN_WRITE_H
#define CAIRN_SHARD_STATE_PIN_WRITE_H

#include "server/shard/state/pace.h"
#include "server/shard/state/staging.h"

struct cairn_report;

struct cairn_pin_write {
    struct cairn_staging *staging; /* borrowed */
    struct cairn_pace *pace;       /* borrowed */
    struct cairn_report *report;   /* borrowed: digests and files are added */
    const char *path;              /* borrowed: the snapshot's folder; NULL: digests alone */
};

/* Digests of all of it; and files, if a folder is given: not CAIRN_OK: none are left. CAIRN_ERR_CANCELED, or
 * as cairn_snapshot_writer_put and cairn_staging_read. */
CAIRN_MUST_CHECK cairn_status cairn_pin_write(const struct cairn_pin_write *write,
                                              struct cairn_sentence *why);

#endif
