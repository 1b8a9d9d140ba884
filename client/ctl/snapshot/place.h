/* Where a snapshot is that a command reads by itself: `JOB ID`, of which the coordinator is asked, or `--path
 * FOLDER`, for which there need be none. */
#ifndef CAIRN_CTL_SNAPSHOT_PLACE_H
#define CAIRN_CTL_SNAPSHOT_PLACE_H

#include "client/ctl/ctl.h"
#include "proto/snapshot_io/snapshot_io.h"

/* All functions: -1: go on; else the exit status, and what is wrong was said. */

/* The id of the job's newest snapshot that is not damaged. */
int cairn_ctl_snapshot_latest(struct ctl *ctl, const char *job,
                              char id_out[CAIRN_SNAPSHOT_ID_BYTES]);
/* The folder of the job's snapshot of that id, or "latest". */
int cairn_ctl_place_ask(struct ctl *ctl, const char *job, const char *id,
                        char folder_out[static PATH_MAX]);
/* Finds the folder that the command line names, by its two arguments or by --path. Anything else is
 * a usage error. */
int cairn_ctl_place_find(struct ctl *ctl, char folder_out[static PATH_MAX]);
/* Says what was wrong with the folder, and returns the exit status. */
int cairn_ctl_place_fail(const char *folder, cairn_status status, const struct cairn_sentence *why);
/* Opens the snapshot (headers only); the caller closes it. If the folder cannot be seen from this
 * host, the sentence says so. */
int cairn_ctl_place_open(const char *folder, struct cairn_snapshot *snapshot_out);

/* ---- key.c: whose signatures are judged ---- */
struct cairn_public_key;
struct cairn_key_ring;
/* A key, or the file that has it. */
int cairn_ctl_key_read(const char *given, struct cairn_public_key *out);
/* The keys that the coordinator trusts. */
int cairn_ctl_key_ring(struct ctl *ctl, struct cairn_key_ring *out);

#endif
