/* The layouts of a job by version: the one in force, the one in which the newest version is
 * published while that is an older one, and the one that comes next. Also tells members of
 * layouts. */
#ifndef CAIRN_COORDINATOR_MEMBER_LAYOUTS_H
#define CAIRN_COORDINATOR_MEMBER_LAYOUTS_H

#include "server/coordinator/base/names.h"
#include "server/core/decision.h"

struct cairn_layout;
struct cairn_layout_tensor;
struct cairn_stored_job;

/* A job's layouts. All is owned, or held. */
struct cairn_cluster_layouts {
    /* The job's version when the layout in force came; 0.0: it is the job's first. */
    struct cairn_version at;
    /* In which that version is published, and its shards; NULL: in the one in force. */
    struct cairn_packed *before;
    uint32_t before_shards;
    /* The next one; NULL: none is on its way. */
    struct cairn_layout *next;
    struct cairn_packed *next_packed;
    uint8_t *next_gone; /* [(next->shard_count + 7) / 8] bits: holes of it */
    /* The next one is on its way to the store: there is no way back. */
    bool storing;
};

/* The layout before the one in force, of a row that has one. CAIRN_ERR_MALFORMED, CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_cluster_layouts_load(struct cairn_cluster_job *job,
                                        const struct cairn_stored_job *row) CAIRN_MUST_CHECK;
void cairn_cluster_layouts_release(struct cairn_cluster_job *job);
/* Nothing comes next any more. */
void cairn_cluster_layouts_drop_next(struct cairn_cluster_job *job);
/* The next layout is the one in force, as of that version; shards that left it are holes now, without a word
 * to them. Members are not told. Nothing is allocated: it is durable. Gives the layout that was in force, the
 * caller's. */
struct cairn_layout *cairn_cluster_layouts_take_next(struct cairn_cluster_job *job,
                                                     struct cairn_version now);
/* The newest version is published in the layout in force. */
void cairn_cluster_layouts_published(struct cairn_cluster_job *job);
/* The newest version is published in an older layout: that is what a member begins with. */
bool cairn_cluster_layouts_behind(const struct cairn_cluster_job *job);

/* True: the newest version is published in an older layout, and part of it is fetched from that
 * shard. */
bool cairn_cluster_layouts_serves(const struct cairn_cluster_job *job, uint32_t shard);

/* LayoutChanged to one, or to all who are attached. */
void cairn_cluster_member_layout_changed(struct cairn_cluster_member *member);
void cairn_cluster_members_layout_changed(struct cairn_cluster_job *job);

#endif
