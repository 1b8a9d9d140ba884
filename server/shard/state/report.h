/* A report: what a shard tells of a version, the digests of its state and the files that it wrote.
 * It is gathered on the files thread, then sent as SnapshotParts, a batch at a time. Each further
 * batch is sent when the coordinator has taken the one before, so no queue has to hold all of
 * them. */
#ifndef CAIRN_SHARD_STATE_REPORT_H
#define CAIRN_SHARD_STATE_REPORT_H

#include "server/shard/shard.h"

/* Owned by who gathers it, until it is sent. */
struct cairn_report;

/* NULL: no memory. */
struct cairn_report *cairn_report_new(struct cairn_shard_job *job, uint64_t snapshot);
void cairn_report_free(struct cairn_report *report); /* NULL is fine */

/* ---- any thread, one at a time ---- */
/* Adds the digests of the leaves of a plane that were pushed to the tree. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_report_add_tree(struct cairn_report *report, uint32_t tensor,
                                                    enum cairn_plane plane,
                                                    const struct cairn_tree *tree,
                                                    struct cairn_sentence *why);
/* Hashes so many leaves, whose elements stand dense at `plane`, by a work of `works`, and pushes
 * their hashes to the tree, whose next leaves they are. Returns as cairn_works_run. */
#define CAIRN_REPORT_LEAVES ((uint64_t)1024) /* at most */
CAIRN_MUST_CHECK cairn_status cairn_report_leaves(struct cairn_works *works, const void *plane,
                                                  cairn_dtype dtype,
                                                  const struct cairn_geometry *geometry,
                                                  uint64_t leaves, struct cairn_tree *tree,
                                                  struct cairn_sentence *why);
CAIRN_MUST_CHECK cairn_status cairn_report_add_file(struct cairn_report *report, const char *path,
                                                    uint64_t bytes, uint8_t *sums,
                                                    struct cairn_sentence *why);
/* "model/shard-...", in the order in which they were added; NULL behind the last. */
const char *cairn_report_file(const struct cairn_report *report, size_t i);

/* ---- the loop's thread ---- */
/* The payload of the last decision, which goes with it. */
CAIRN_MUST_CHECK cairn_status cairn_report_keep_payload(struct cairn_report *report,
                                                        struct cairn_sentence *why);
/* Sends it, of this version, or that it failed; takes it over. */
void cairn_report_send(struct cairn_report *report, struct cairn_version version,
                       cairn_status status, const struct cairn_sentence *why);
/* The coordinator has taken the last batch. */
void cairn_report_next(struct cairn_shard_job *job, uint64_t snapshot);
/* Nobody waits for them any more: the job leaves, the session ended, or another one is asked for. */
void cairn_reports_drop(struct cairn_shard_job *job);

#endif
