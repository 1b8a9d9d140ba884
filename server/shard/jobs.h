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

/* Which generations of a job are held. JobCreate makes a generation, in place of an older one or in
 * addition to it. JobSwitch says which of two generations serves. JobDrop ends all generations, including
 * those that were still to be made. Loop thread. */

enum { CAIRN_CREATE_SPEC, CAIRN_CREATE_LAYOUT }; /* the parts of a JobCreate that arrive in pages */

/* ==== members ==== */

/* How members join, connect, are lost and leave. Loop thread. */

/* Adds or replaces a member and begins to connect. */
CAIRN_MUST_CHECK cairn_status members_join(struct shard_job *job, const Cairn__MemberJoin *message,
                                           struct sentence *why);
void members_leave(struct shard_job *job, uint64_t number);
/* Call when a message of the member arrived: connects the member if it is not connected. */
void member_heard(struct shard_member *member);

/* Handles the member's HELLO on its connection `connection`: the member counts as heard, and is greeted.
 * The core is told even if the member was connected before, because the member may have lost a GRANT. */
void member_hello(struct shard_member *member, uint64_t connection);

/* ==== own ==== */

/* The collector of the own part, and the actions of its core. Loop thread. */

CAIRN_MUST_CHECK cairn_status own_open(struct shard_job *job, const struct step_config *config,
                                       const Cairn__JobCreate *message, struct sentence *why);
/* Passes the event to the core, then does the core's actions and all that follows from them. Do not call it
 * during these actions. */
void own_step(struct shard_job *job, const struct step_event *event);
/* shard->up->settle */
void own_settle(struct shard_job *job);

/* ==== open ==== */

/* Complete jobs: their layout, their memory on the device, and their end. Loop thread. */

/* Decodes a layout of the job's tensors; the caller owns it. CAIRN_ERR_MALFORMED, CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status shard_job_layout(const struct shard_job *job,
                                               const struct paged *bytes,
                                               struct layout **layout_out, struct sentence *why);
/* Checks that the device has this much memory left, with staging for its streams. CAIRN_ERR_NO_MEMORY, with
 * the numbers, including host_bytes; CAIRN_ERR_IO: the device failed. Without a device, device_bytes is
 * 0. */
CAIRN_MUST_CHECK cairn_status shard_job_judge_device(const struct shard_job *job,
                                                     uint64_t device_bytes, uint64_t host_bytes,
                                                     struct sentence *why);
/* The bytes that the job takes of the device, including bytes that no element uses. With `all`, every
 * published copy counts that is to be on the device; without, only those that are there now. */
uint64_t shard_job_device_bytes(const struct shard_job *job, bool all);
/* The number of folds that keeps every home busy in which this map has chunks. */
uint32_t shard_job_folds_wanted(const struct shard_job *job, const struct shard_map *map,
                                uint64_t host_from);
/* Makes the job LEAVING: its members are cut, and it is freed when nothing refers to it, perhaps at
 * once. */
void shard_job_leave(struct shard_job *job);
/* Frees the job, whatever is in flight; the fabric and the pools must be closed before. */
void shard_job_free(struct shard_job *job);

/* ==== switch ==== */

/* Changes the layout in force: a job continues with another view (collect.h), in place.
 *
 *   a fresh job      shard_view_open ─► need: taken by the caller ─► _number
 *   another layout   shard_view_next ─► memory for arriving state is taken (shard_view_reserve), and
 *                    filled by the caller ─► shard_job_switch
 *
 * State that stays keeps its place in the planes, and is not touched. Loop thread. */

/* Makes a view of `layout` as shard `index` of it; its chunks have no numbers yet. If no view is made,
 * closes `layout`. *need_out is the memory that a job with that view takes. `member_max`: as for need_of.
 * CAIRN_ERR_INVALID, CAIRN_ERR_UNSUPPORTED, CAIRN_ERR_NO_MEMORY: with `why`. */
CAIRN_MUST_CHECK cairn_status shard_view_open(const struct shard_job *job, struct layout *layout,
                                              uint32_t index, uint32_t member_max,
                                              struct shard_view **view_out, struct need *need_out,
                                              struct sentence *why);
/* Numbers the view's chunks. This takes memory that depends on the job's shapes, so that memory must be
 * admitted before. */
CAIRN_MUST_CHECK cairn_status shard_view_number(struct shard_view *view,
                                                const struct job_spec_data *spec,
                                                struct sentence *why);

/* For a job with state on a device: gives the view its places on the device, and takes memory for the
 * extents that `before` (NULL: no view) lacks. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status shard_view_place(struct shard_job *job, struct shard_view *view,
                                               const struct shard_view *before,
                                               struct sentence *why);

/* Makes a complete view of another layout, and reserves addresses for the extents that arrive with it. On a
 * device it takes the memory of these extents, too; shard_views_keep gives this memory back if the view
 * does not come into force. `layout` is closed if no view is made. `before` is the view in force, or the
 * view before that while its state is still on this shard. Extents of `before` that the new view has too
 * keep their places. A new extent lies where neither of these views has anything. The same holds for a part
 * of a blob that does not begin with the blob; the caller copies such a part (move.c). CAIRN_ERR_INVALID:
 * an extent that is only partly in `before`; CAIRN_ERR_UNSUPPORTED: state in both homes;
 * CAIRN_ERR_NO_MEMORY: with `why`. */
CAIRN_MUST_CHECK cairn_status shard_view_next(struct shard_job *job, struct layout *layout,
                                              uint32_t index, const struct shard_view *before,
                                              struct shard_view **view_out, struct sentence *why);
/* True if no work on sums, planes or published copies is under way or queued, and none will begin before a
 * round opens. */
bool shard_job_rests(const struct shard_job *job);
/* Makes the job continue with that view, and counts the reference. On CAIRN_ERR_BUSY (the job does not
 * rest) and CAIRN_ERR_NO_MEMORY the job continues as before. Its relays end. If the view needs more
 * published copies and tables (view->memory), the caller must have taken their bytes
 * from the budget before the call, together with the bytes of the incoming state. If the view needs less,
 * this call gives back the difference. Pages of outgoing state stay until shard_view_give. */
CAIRN_MUST_CHECK cairn_status shard_job_switch(struct shard_job *job, struct shard_view *view,
                                               struct sentence *why);

/* ==== update ==== */

/* The arithmetic of a round after the round's folds: reduce, update, first publish. Loop thread. */

/* The work that the core asks for. */
void pass_reduce(struct shard_job *job);
void pass_update(struct shard_job *job, const struct decision *decision);
/* SEALING: publishes the parameters as version {job's generation, core's step}; then the job is SERVING. */
void pass_seal(struct shard_job *job);
/* Writes the newest version once more, by the view in force. `done` is called afterwards, except when the
 * job is stopped or leaves. CAIRN_ERR_BUSY: a version is being made. */
CAIRN_MUST_CHECK cairn_status pass_republish(struct shard_job *job,
                                             void (*done)(struct shard_job *job),
                                             struct sentence *why);

/* ==== report ==== */

/* A report of a shard about a version: the digests of the state and the files that the shard wrote. The
 * report is gathered on the files thread, then sent as SnapshotParts, a batch at a time. Each further batch
 * is sent when the coordinator has taken the previous batch, so no queue has to hold all batches. */

/* The code that gathers a report owns it until it is sent. */

/* NULL: no memory. */
struct report *report_new(struct shard_job *job, uint64_t snapshot);
void report_free(struct report *report); /* NULL is fine */

/* ---- any thread, one at a time ---- */
/* Adds the digests of the leaves of a plane that were pushed to the tree. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status report_add_tree(struct report *report, uint32_t tensor,
                                              enum plane plane, const struct hash_tree *tree,
                                              struct sentence *why);
/* Hashes `leaves` leaves, whose elements lie dense at `plane`, with a work in `works`. Then pushes their
 * hashes to the tree as the next leaves. Returns as works_run. */
#define CAIRN_REPORT_LEAVES ((uint64_t)1024) /* at most */
CAIRN_MUST_CHECK cairn_status report_leaves(struct works *works, const void *plane,
                                            cairn_dtype dtype, const struct geometry *geometry,
                                            uint64_t leaves, struct hash_tree *tree,
                                            struct sentence *why);
CAIRN_MUST_CHECK cairn_status report_add_file(struct report *report, const char *path,
                                              uint64_t bytes, uint8_t *sums, struct sentence *why);
/* The path "model/shard-..." of the i-th file, in the order of addition; NULL after the last. */
const char *report_file_at(const struct report *report, size_t i);

/* ---- the loop's thread ---- */
/* Keeps the payload of the last decision, which is sent with the report. */
CAIRN_MUST_CHECK cairn_status report_keep_payload(struct report *report, struct sentence *why);
/* Sends the report for this version, or the failure if the status is not CAIRN_OK. Takes over the
 * report. */
void report_send(struct report *report, struct cairn_version version, cairn_status status,
                 const struct sentence *why);
/* Drops the reports: the job leaves, the session ended, or another report is asked for. */
void reports_drop(struct shard_job *job);

/* ==== extend ==== */

/* A generation of a job, made from the generation that serves. The new generation is a second job of the
 * same number, and `staged`: only handlers.c sees it until JobSwitch says which of the two jobs stays. */

/* LOADING: copies the tensors that the serving job `from` has, and makes the other tensors.
 * CAIRN_ERR_INVALID: a tensor lies elsewhere than before, or is new and has no initializer.
 * CAIRN_ERR_NOT_READY: `from` is not at the job's step, or changed meanwhile (then the job's load ends with
 * this status). CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status extend_begin(struct shard_job *job, struct shard_job *from,
                                           struct sentence *why);

#endif
