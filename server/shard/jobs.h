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

/* Which generations of a job are held: JobCreate makes one, in the place of an older one or beside it,
 * JobSwitch says which of two serves, JobDrop ends all, and what
 * was to be made. Loop thread. */

enum { CAIRN_CREATE_SPEC, CAIRN_CREATE_LAYOUT }; /* what of a JobCreate comes in pages */

/* Owns the message. */
void create_on_message(struct shard_daemon *shard, uint32_t request, Cairn__JobCreate *message);
void create_on_switch(struct shard_daemon *shard, const Cairn__JobSwitch *message);
void create_on_drop(struct shard_daemon *shard, uint32_t request, const Cairn__JobDrop *message);
/* Memory, or what was held of a job, was given back: creates that waited for it go on, if nothing more is on
 * its way back. */
void create_on_memory_back(struct shard_daemon *shard);

/* ==== held ==== */

/* Which parts a shard holds, and of which store; and what a coordinator needs to adopt them. */

/* Counts the parts that are held. If there are none, any coordinator is obeyed. */
size_t held_jobs_count(const struct shard_daemon *shard);
/* Fills Hello's list, of at most CAIRN_SHARD_JOBS_MAX; returns how many. */
size_t held_jobs_list(const struct shard_daemon *shard, Cairn__HeldJob *out, bool full);
/* A coordinator says who it is: notes whether it is obeyed. */
void held_judge(struct shard_daemon *shard, const char *cluster);
/* The keys that a coordinator trusts; NULL: it tells of none. They are kept if that one is obeyed, for who
 * adopts what is held. */
void held_keys(struct shard_daemon *shard, const Cairn__Keys *keys);
void held_keys_release(struct shard_daemon *shard);
/* Handles the messages that a coordinator may send even if it is not obeyed, and refuses all others
 * of such a coordinator. False: the message is left to the caller. */
bool held_on_message(struct shard_daemon *shard, const struct wire_frame *frame,
                     const ProtobufCMessage *message);

/* ==== members ==== */

/* Members join, connect, are lost and leave. Loop thread. */

/* Adds or replaces a member and begins to connect. */
CAIRN_MUST_CHECK cairn_status members_join(struct shard_job *job, const Cairn__MemberJoin *message,
                                           struct sentence *why);
void members_leave(struct shard_job *job, uint64_t number);
/* Removes the members that the coordinator has not named in this session: they left while it was
 * away. */
void members_release(struct shard_job *job);
/* A message of the member came: connects the member if it is not connected. */
void member_heard(struct shard_member *member);

/* The member's HELLO, of its connection of that number: the member is heard, and greeted. The core is told
 * even of a member that was connected: it may have lost a GRANT. */
void member_hello(struct shard_member *member, uint64_t connection);

/* ==== own ==== */

/* The collector of the own part, and what its core asks for. Loop thread. */

CAIRN_MUST_CHECK cairn_status own_open(struct shard_job *job, const struct step_config *config,
                                       const Cairn__JobCreate *message, struct sentence *why);
/* Tells the core and does its actions, and what follows from them. Not while it does them. */
void own_step(struct shard_job *job, const struct step_event *event);
/* shard->up->settle */
void own_settle(struct shard_job *job);

/* ==== open ==== */

/* A job as a whole. Loop thread. */

/* Makes a job, which the shard does not know yet, from a create whose spec and layout are complete.
 * Any thread, since a million tensors take seconds. CAIRN_ERR_MALFORMED, _INVALID, _UNSUPPORTED:
 * the spec or the layout is wrong; CAIRN_ERR_NO_MEMORY. */

/* A layout of the job's tensors off the wire, which is the caller's. CAIRN_ERR_MALFORMED,
 * CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status shard_job_layout(const struct shard_job *job,
                                               const struct paged *bytes,
                                               struct layout **layout_out, struct sentence *why);
/* Is there so much of the device's memory, and staging for its streams beside it? CAIRN_ERR_NO_MEMORY, with
 * the numbers, of which host_bytes is one; CAIRN_ERR_IO: the device failed. Without a device: 0 bytes. */
CAIRN_MUST_CHECK cairn_status shard_job_judge_device(const struct shard_job *job,
                                                     uint64_t device_bytes, uint64_t host_bytes,
                                                     struct sentence *why);
/* The bytes that the job takes of the device, with the bytes that no element uses. `all` counts
 * every published copy that is to be there, else only those that are. */
uint64_t shard_job_device_bytes(const struct shard_job *job, bool all);
/* Folds that keep all homes at work that a part of this map has chunks in. */
uint32_t shard_job_folds_wanted(const struct shard_job *job, const struct shard_map *map,
                                uint64_t host_from);
/* Makes it LEAVING: members are cut, and it is freed when nothing refers to it, perhaps at once. */
void shard_job_leave(struct shard_job *job);
/* Frees it whatever is in flight: the fabric and the pools are closed. */
void shard_job_free(struct shard_job *job);

/* Of shard->up: `unused` frees a job that is LEAVING; `fault`. */
void shard_job_unused(struct shard_job *job);
void shard_job_stop(struct shard_job *job, const char *why);

/* ==== switch ==== */

/* The layout in force changes: a job goes on in another view (collect.h), in place.
 *
 *   a fresh job      shard_view_open ─► need: taken by the caller ─► _number
 *   another layout   shard_view_next ─► what comes is taken (shard_view_reserve) and filled by
 *                    the caller ─► shard_job_switch
 *
 * State that stays keeps its place in the planes, and is not touched. Loop thread. */

/* A view of `layout`, which is closed if there is none, as shard `index` of it; its chunks have no numbers
 * yet. *need_out: what a job of that view takes. `member_max`: as of need_of. CAIRN_ERR_INVALID,
 * CAIRN_ERR_UNSUPPORTED, CAIRN_ERR_NO_MEMORY: with `why`. */
CAIRN_MUST_CHECK cairn_status shard_view_open(const struct shard_job *job, struct layout *layout,
                                              uint32_t index, uint32_t member_max,
                                              struct shard_view **view_out, struct need *need_out,
                                              struct sentence *why);
/* Numbers its chunks: memory as large as the job's shapes say, so what it takes is admitted before. */
CAIRN_MUST_CHECK cairn_status shard_view_number(struct shard_view *view,
                                                const struct job_spec_data *spec,
                                                struct sentence *why);

/* Gives the view of a job with state on a device its places there, and takes memory for what `before` (NULL:
 * nothing was) has not. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status shard_view_place(struct shard_job *job, struct shard_view *view,
                                               const struct shard_view *before,
                                               struct sentence *why);

/* Makes a whole view of another layout, and reserves addresses for the extents that come with it;
 * on a device it takes their memory too, which shard_views_keep gives back if the view does
 * not come into force. `layout` is closed if no view is made. `before`: the view whose places the
 * extents that it has too keep: the view in force, or the one before that while its state is still
 * here. A new extent lies where neither of these views has anything. So does a part of a blob that
 * does not begin with the blob; the caller copies it (move.c). CAIRN_ERR_INVALID: an extent
 * that is only partly in `before`; CAIRN_ERR_UNSUPPORTED: state in both homes; CAIRN_ERR_NO_MEMORY:
 * with `why`. */
CAIRN_MUST_CHECK cairn_status shard_view_next(struct shard_job *job, struct layout *layout,
                                              uint32_t index, const struct shard_view *before,
                                              struct shard_view **view_out, struct sentence *why);
/* Nothing works on sums, planes or published copies, or is on its way to them, and nothing will before a
 * round opens. */
bool shard_job_rests(const struct shard_job *job);
/* Makes the job go on in that view, which it counts. On CAIRN_ERR_BUSY (it does not rest) and
 * CAIRN_ERR_NO_MEMORY it goes on as it was. Its relays end. If the view needs more published copies
 * and tables (view->published_bytes, table_bytes), the caller has taken them from the budget
 * before, together with the incoming state; if it needs less, the difference goes back here. Pages
 * of outgoing state stay: shard_view_give. */
CAIRN_MUST_CHECK cairn_status shard_job_switch(struct shard_job *job, struct shard_view *view,
                                               struct sentence *why);

/* ==== update ==== */

/* The arithmetic of a round behind its folds: reduce, update, first publish. Loop thread. */

/* The work that the core asks for. */
void pass_reduce(struct shard_job *job);
void pass_update(struct shard_job *job, const struct decision *decision);
/* Sends out of a published copy have ended: an update that waits for them may begin. */
void pass_copies_ended(struct shard_job *job);
/* SEALING: publishes param as `generation, step of the core`, then SERVING. */
void pass_seal(struct shard_job *job);
/* The newest version is written once more, by the view in force; `done` follows, unless the job is stopped or
 * leaves. CAIRN_ERR_BUSY: a version is being made. */
CAIRN_MUST_CHECK cairn_status pass_republish(struct shard_job *job,
                                             void (*done)(struct shard_job *job),
                                             struct sentence *why);

/* ==== report ==== */

/* A report: what a shard tells of a version, the digests of its state and the files that it wrote.
 * It is gathered on the files thread, then sent as SnapshotParts, a batch at a time. Each further
 * batch is sent when the coordinator has taken the one before, so no queue has to hold all of
 * them. */

/* Owned by who gathers it, until it is sent. */

/* NULL: no memory. */
struct report *report_new(struct shard_job *job, uint64_t snapshot);
void report_free(struct report *report); /* NULL is fine */

/* ---- any thread, one at a time ---- */
/* Adds the digests of the leaves of a plane that were pushed to the tree. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status report_add_tree(struct report *report, uint32_t tensor,
                                              enum plane plane, const struct hash_tree *tree,
                                              struct sentence *why);
/* Hashes so many leaves, whose elements stand dense at `plane`, by a work of `works`, and pushes
 * their hashes to the tree, whose next leaves they are. Returns as works_run. */
#define CAIRN_REPORT_LEAVES ((uint64_t)1024) /* at most */
CAIRN_MUST_CHECK cairn_status report_leaves(struct works *works, const void *plane,
                                            cairn_dtype dtype, const struct geometry *geometry,
                                            uint64_t leaves, struct hash_tree *tree,
                                            struct sentence *why);
CAIRN_MUST_CHECK cairn_status report_add_file(struct report *report, const char *path,
                                              uint64_t bytes, uint8_t *sums, struct sentence *why);
/* "model/shard-...", in the order in which they were added; NULL behind the last. */
const char *report_file_at(const struct report *report, size_t i);

/* ---- the loop's thread ---- */
/* The payload of the last decision, which goes with it. */
CAIRN_MUST_CHECK cairn_status report_keep_payload(struct report *report, struct sentence *why);
/* Sends it, of this version, or that it failed; takes it over. */
void report_send(struct report *report, struct cairn_version version, cairn_status status,
                 const struct sentence *why);
/* The coordinator has taken the last batch. */
void report_next(struct shard_job *job, uint64_t snapshot);
/* Nobody waits for them any more: the job leaves, the session ended, or another one is asked for. */
void reports_drop(struct shard_job *job);

/* ==== extend ==== */

/* A generation of a job, made of the one that serves. It is a second job of the same number, `staged`: seen
 * by handlers.c alone, until JobSwitch says which of the two stays. */

/* LOADING: copies what `from`, which serves, has of the job's tensors, and makes the rest. CAIRN_ERR_INVALID:
 * a tensor stands elsewhere than it did, or is new and has no initializer. CAIRN_ERR_NOT_READY: `from` is not
 * at the job's step, or (the job's load ends so) changed meanwhile. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status extend_begin(struct shard_job *job, struct shard_job *from,
                                           struct sentence *why);

#endif
