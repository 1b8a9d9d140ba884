/* A new folder with files that is there whole or not at all: all is written into DIR.tmp, which becomes DIR
 * at the end. Who is killed leaves DIR.tmp; the next one for DIR removes it. A lock on it, which dies with
 * its holder, tells what was left from what is being written.
 *
 * A folder on this host, or mounted here: no location of storage.h. */
#ifndef CAIRN_CTL_SNAPSHOT_MADE_FOLDER_H
#define CAIRN_CTL_SNAPSHOT_MADE_FOLDER_H

#include <limits.h>
#include <stdbool.h>

#include "proto/base/sentence.h"
#include "proto/base/status.h"

struct ctl_made_folder {
    char path[PATH_MAX]; /* absolute; DIR */
    char temp[PATH_MAX]; /* DIR.tmp: write here */
    int fd;              /* owned; of temp, locked */
    bool cleaned;        /* what a killed one had left was there, and is removed */
};

/* CAIRN_ERR_EXISTS: DIR is there. CAIRN_ERR_BUSY: another one writes it. CAIRN_ERR_REFUSED: DIR.tmp is
 * there, and has what an export does not write. CAIRN_ERR_IO, CAIRN_ERR_NO_SPACE. */
cairn_status cairn_ctl_made_folder_begin(const char *path, struct ctl_made_folder *out,
                                         struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* `status` is that of the writing, whose files are durable: DIR is there, durably, or DIR.tmp is gone. Closes
 * it. */
cairn_status cairn_ctl_made_folder_end(struct ctl_made_folder *folder, cairn_status status,
                                       struct cairn_sentence *why) CAIRN_MUST_CHECK;

#endif
