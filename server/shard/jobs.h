#ifndef CAIRN_SHARD_JOBS_H
#define CAIRN_SHARD_JOBS_H

#include "proto/wire/wire.h"
#include "server/core/step.h"
#include "server/shard/base.h"
#include "server/shard/collect.h"
#include "server/shard/need.h"
#include "server/shard/part.h"
#include "server/shard/shard.h"

/* ==== create ==== */

/* Which generations of a job this shard holds. JobCreate makes a generation, which replaces an
 * older generation or is held beside it. JobSwitch says which of two generations serves. JobDrop
 * ends all generations, including those that were not made yet. Loop thread. */

enum { CAIRN_CREATE_SPEC, CAIRN_CREATE_LAYOUT }; /* the parts of a JobCreate that arrive in pages */

/* ==== members ==== */

/* How members join, connect, are lost and leave. Loop thread. */

/* Adds or replaces a member and begins to connect. */
CAIRN_MUST_CHECK cairn_status members_join(struct shard_job *job, const Cairn__MemberJoin *message,
                                           struct sentence *why);
void members_leave(struct shard_job *job, uint64_t number);
/* Notes that a message of the member arrived, and connects the member if it is not connected. */
void member_heard(struct shard_member *member);

/* Handles the member's HELLO; `connection` is the number that the member gave its connection. The
 * member counts as heard, and is greeted. The core is told even if the member was connected before,
 * because the member may have lost a GRANT. */
void member_hello(struct shard_member *member, uint64_t connection);

/* ==== own ==== */

/* The collector of the shard's own part, and the actions of this collector's core. Loop thread. */

CAIRN_MUST_CHECK cairn_status own_open(struct shard_job *job, const struct step_config *config,
                                       const Cairn__JobCreate *message, struct sentence *why);
/* Passes the event to the core of the own part, then does the core's actions and all that follows
 * from these actions. May not be called during these actions. */
void own_step(struct shard_job *job, const struct step_event *event);
/* Tells the coordinator what a PUBLISHED_REPORT says. */
void own_report_published(struct shard_job *job, const struct step_action *action);
/* The function behind shard->up->settle: shard_job_settle in base.h. */
void own_settle(struct shard_job *job);

/* ==== open ==== */

/* Jobs as a whole: their layout, their memory on the device, and their end. Loop thread. */

/* Decodes a layout of the job's tensors. The caller owns *layout_out. CAIRN_ERR_MALFORMED,
 * CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status shard_job_layout(const struct shard_job *job,
                                               const struct paged *bytes,
                                               struct layout **layout_out, struct sentence *why);
/* Returns the bytes of device memory that the job takes, including bytes that no element uses. If
 * `all` is true, the published copies that every job has count, even if they are not on the device
 * now; otherwise only the copies that are on the device now count. */
uint64_t shard_job_device_bytes(const struct shard_job *job, bool all);
/* Returns how many folds at a time keep all homes busy in which this map has chunks. */
uint32_t shard_job_folds_wanted(const struct shard_job *job, const struct shard_map *map,
                                uint64_t host_from);
/* Makes the job LEAVING: its members leave, and its work is canceled. The job is freed when nothing
 * refers to the job, perhaps before this call returns. */
void shard_job_leave(struct shard_job *job);
/* Frees the job, whatever is in flight. The fabric and the pools must be closed. */
void shard_job_free(struct shard_job *job);

/* ==== switch ==== */

/* Changes the layout in force: the job continues with another view (collect.h), and its planes are
 * not opened anew.
 *
 *   a fresh job      shard_view_open ─► need: taken by the caller ─► _number
 *   another layout   shard_view_next ─► memory for arriving state is taken (shard_view_reserve), and
 *                    filled by the caller ─► shard_job_switch
 *
 * State that stays keeps its place in the planes, and is not touched. Loop thread. */

/* Makes a view of `layout` for the shard that has `index` in this layout. The view's chunks have no
 * numbers yet. Takes over `layout`, even on failure. *need_out is the memory that a job with this
 * view takes; `member_max` is that of need_of. CAIRN_ERR_INVALID, CAIRN_ERR_UNSUPPORTED,
 * CAIRN_ERR_NO_MEMORY: with `why`. */
CAIRN_MUST_CHECK cairn_status shard_view_open(const struct shard_job *job, struct layout *layout,
                                              uint32_t index, uint32_t member_max,
                                              struct shard_view **view_out, struct need *need_out,
                                              struct sentence *why);
/* Numbers the view's chunks. How much memory this takes depends on the job's shapes, so the memory
 * must be admitted before. */
CAIRN_MUST_CHECK cairn_status shard_view_number(struct shard_view *view,
                                                const struct job_spec_data *spec,
                                                struct sentence *why);

/* Gives the view its places on the device, and takes memory for the extents that `before` lacks;
 * `before` may be NULL. Only for a job with state on a device. CAIRN_ERR_NO_MEMORY,
 * CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status shard_view_place(struct shard_job *job, struct shard_view *view,
                                               const struct shard_view *before,
                                               struct sentence *why);

/* Makes a complete view of another layout, and reserves addresses for the extents that arrive with
 * this view. On a device the memory of these extents is taken, too; if the view does not come into
 * force, shard_views_keep gives this memory back. Takes over `layout`, even on failure. `before` is
 * the view in force, or the view before the view in force, while the state of that view is still on
 * this shard. Extents that are also in `before` keep their places. A new extent gets a place where
 * neither `before` nor the view in force has anything. A part of a blob that does not begin with
 * the blob gets such a place, too, and the caller copies this part (move.c). CAIRN_ERR_INVALID: an
 * extent is only partly in `before`. CAIRN_ERR_UNSUPPORTED: the job has state in both homes.
 * CAIRN_ERR_NO_MEMORY: with `why`. */
CAIRN_MUST_CHECK cairn_status shard_view_next(struct shard_job *job, struct layout *layout,
                                              uint32_t index, const struct shard_view *before,
                                              struct shard_view **view_out, struct sentence *why);
/* True if no work on sums, planes or published copies is under way or queued, and no such work will
 * begin before a round opens. */
bool shard_job_rests(const struct shard_job *job);
/* Makes the job continue with this view, and adds a reference to the view. The job's relays end. On
 * CAIRN_ERR_BUSY (the job does not rest) and CAIRN_ERR_NO_MEMORY the job continues as before. If
 * the view needs more memory for published copies and tables (view->memory) than the view before
 * it, the caller must have taken these bytes from the budget, together with the bytes of incoming
 * state. If the view needs less, this call gives back the difference. Pages of outgoing state stay
 * until shard_view_give. */
CAIRN_MUST_CHECK cairn_status shard_job_switch(struct shard_job *job, struct shard_view *view,
                                               struct sentence *why);

/* ==== update ==== */

/* The arithmetic of a round after its folds: reduce and update; and the first publish of a job.
 * Loop thread. */

/* These two do the REDUCE and the UPDATE of the core. */
void pass_reduce(struct shard_job *job);
void pass_update(struct shard_job *job, const struct decision *decision);
/* Ends the update that was cut off when the process before died, if there was one, and then does
 * what pass_seal does. CAIRN_ERR_MALFORMED. */
CAIRN_MUST_CHECK cairn_status pass_resume(struct shard_job *job, struct sentence *why);
/* Does an update again: the sums are in their plane, and the copies are not shown yet. Then
 * journal_replayed is called. CAIRN_ERR_MALFORMED: it is no decision on this job. */
CAIRN_MUST_CHECK cairn_status pass_replay(struct shard_job *job, const struct decision *decision,
                                          struct sentence *why);
/* Makes the job SEALING: publishes the parameters as the core's version. Then the job is
 * SERVING. */
void pass_seal(struct shard_job *job);
/* Writes the newest version a second time, by the view in force. `done` is called afterwards,
 * unless the job is stopped or leaves. CAIRN_ERR_BUSY: a version is being made. */
CAIRN_MUST_CHECK cairn_status pass_republish(struct shard_job *job,
                                             void (*done)(struct shard_job *job),
                                             struct sentence *why);

/* ==== report ==== */

/* A report tells the coordinator about a version: the digests of its state, and the files that the
 * shard wrote. The report is gathered on another thread, then sent as SnapshotParts, one batch at a
 * time. Each further batch is sent when the coordinator has taken the batch before it, so no queue
 * has to hold all batches. */

/* The code that gathers a report owns the report until report_send. */

/* Returns NULL if there is no memory. `snapshot` is the number in the SnapshotParts. */
struct report *report_new(struct shard_job *job, uint64_t snapshot);
void report_free(struct report *report); /* NULL is fine */

/* ---- any thread, one at a time ---- */
/* Adds the digests in a tree, to which leaves of the plane were pushed. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status report_add_tree(struct report *report, uint32_t tensor,
                                              enum plane plane, const struct hash_tree *tree,
                                              struct sentence *why);
/* Hashes `leaves` leaves, whose elements lie one after the other from the address `plane` on. This
 * is a work in `works`, which are run. Then pushes the hashes to the tree as the next leaves.
 * Returns the status of works_run. */
#define CAIRN_REPORT_LEAVES ((uint64_t)1024) /* the most leaves of one call */
CAIRN_MUST_CHECK cairn_status report_leaves(struct works *works, const void *plane,
                                            cairn_dtype dtype, const struct geometry *geometry,
                                            uint64_t leaves, struct hash_tree *tree,
                                            struct sentence *why);
CAIRN_MUST_CHECK cairn_status report_add_file(struct report *report, const char *path,
                                              uint64_t bytes, uint8_t *sums, struct sentence *why);
/* Returns the path ("model/shard-...") of the i-th file that was added; NULL after the last
 * file. */
const char *report_file_at(const struct report *report, size_t i);

/* ---- the loop's thread ---- */
/* Keeps a copy of the last decision's payload, to be sent with the report. */
CAIRN_MUST_CHECK cairn_status report_keep_payload(struct report *report, struct sentence *why);
/* Sends the report about this version; if the status is not CAIRN_OK, sends the failure instead.
 * Takes over the report. */
void report_send(struct report *report, struct cairn_version version, cairn_status status,
                 const struct sentence *why);
/* Drops the reports that are being sent. Called when the job is freed, the session has ended, or a
 * new pin is asked for. */
void reports_drop(struct shard_job *job);

/* ==== extend ==== */

/* Makes a generation of a job from the generation that serves. The new generation is a second
 * struct shard_job of the same number. It is `staged`, and shard_job_find does not find it, until
 * JobSwitch says which of the two jobs stays. */

/* Makes the state of `job`, which becomes LOADING: copies the tensors that the serving job `from`
 * has, and makes the other tensors by their initializers. CAIRN_ERR_INVALID: a tensor lies
 * elsewhere than before, or is new and has no initializer. CAIRN_ERR_NOT_READY: `from` is not at
 * the job's step. If `from` changes meanwhile, the load ends with CAIRN_ERR_NOT_READY.
 * CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status extend_begin(struct shard_job *job, struct shard_job *from,
                                           struct sentence *why);

#endif
