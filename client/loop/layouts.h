/* Which layouts a job has, and where its shards are: what Attached, LayoutChanged and ShardsChanged say of
 * that. Loop thread. */
#ifndef CAIRN_CLIENT_LOOP_LAYOUTS_H
#define CAIRN_CLIENT_LOOP_LAYOUTS_H

#include "proto/base/sentence.h"
#include "proto/wire/messages.h"

struct job;
struct reading;

/* The layout of the newest version, as `reading` read it, and the shards, as the job's attachment has them.
 * CAIRN_ERR_ROLLED_BACK: it was restored onto other shards. The sentence is set where it is not the caller's
 * "not a layout". */
cairn_status cairn_layouts_attached(struct job *job, struct reading *reading,
                                    struct cairn_sentence *why) CAIRN_MUST_CHECK;
/* The job is attached, by what came: connects, and goes on by it with what is under way. */
void cairn_layouts_apply(struct job *job);
/* Applies the message, which is the function's to free. The job fails if the message does not fit
 * it. */
void cairn_layouts_on_changed(struct job *job, Cairn__LayoutChanged *message);
/* A page of the LayoutChanged before it; of no request. */
void cairn_layouts_on_page(struct job *job, const Cairn__Page *page);
void cairn_layouts_on_shards(struct job *job, const Cairn__ShardsChanged *message);
/* Each turn: bodies by which nothing is fetched any more go, and connections to shards that left the job. */
void cairn_layouts_trim(struct job *job);

#endif
