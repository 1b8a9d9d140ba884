#include "server/shard/read/bring.h"

#include <assert.h>
#include <stddef.h>

#include "server/shard/read/fetch.h"
#include "server/shard/read/mutant.h"
#include "server/shard/shard.h"

/* Updates pass frozen tensors by, so these are always there. */
bool cairn_bring_has(const struct cairn_published *copy, uint64_t chunk)
{
    const struct cairn_shard_view *view = copy->view;
    return copy->on_host || !view->forms[view->table.extent_of[chunk]].trained ||
           copy->brought[chunk] == CAIRN_BROUGHT;
}

bool cairn_bring_works(const struct cairn_shard_job *job)
{
    return job->replies.coming != NULL;
}

static struct cairn_reply *reply_of(const struct cairn_run *run)
{
    return (struct cairn_reply *)((char *)(uintptr_t)run - offsetof(struct cairn_reply, bring));
}

static bool describe(struct cairn_run *run, uint32_t item, uint32_t stage,
                     struct cairn_works *works)
{
    const struct cairn_reply *reply = reply_of(run);
    (void)item, (void)stage;
    cairn_published_fill(works, reply->from, reply->chunk);
    return false;
}

/* Where it keeps no loop: of a chunk that is to be sent whole, and nobody looks for it before that. */
static void conclude(struct cairn_run *run, uint32_t item, uint32_t thread)
{
    const struct cairn_reply *reply = reply_of(run);
    const struct cairn_published *copy = reply->from;
    (void)item, (void)thread;
    if (reply->boxed) return;
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&copy->view->table.map,
                                                                 reply->chunk);
    copy->checksums[reply->chunk] = cairn_chunk_checksum(
        cairn_published_host_at(copy, reply->chunk, place.local_elem),
        cairn_published_bytes(copy, reply->chunk));
}

/* One of those that wait for the chunk, which does not any more; NULL: there is none. */
static struct cairn_reply *take_one(struct cairn_shard_job *job, const struct cairn_published *copy,
                                    uint64_t chunk)
{
    struct cairn_reply **link = &job->replies.coming;
    while (*link != NULL && ((*link)->from != copy || (*link)->chunk != chunk))
        link = &(*link)->next;
    struct cairn_reply *reply = *link;
    if (reply != NULL) *link = reply->next;
    return reply;
}

static void done(struct cairn_run *run)
{
    const struct cairn_reply *first = reply_of(run);
    struct cairn_shard_job *job = first->job;
    const struct cairn_published *copy = first->from;
    const uint64_t chunk = first->chunk;
    const cairn_status status = run->status;
    struct cairn_reply *reply;
    copy->brought[chunk] = status == CAIRN_OK ? CAIRN_BROUGHT : CAIRN_BROUGHT_NOT;
    // A fetch only reads: that there is no room for it now harms nobody else.
    if (status != CAIRN_ERR_NO_MEMORY) (void)cairn_shard_job_run_failed(job, run);
    while ((reply = take_one(job, copy, chunk)) != NULL) cairn_fetch_brought(reply, status);
    cairn_published_return(job, copy); // what is sent out of it is lent by now
    cairn_shard_job_settle(job);
    cairn_shard_job_idle(job);
}

void cairn_bring(struct cairn_reply *reply, const struct cairn_published *copy, uint64_t chunk)
{
    struct cairn_shard_job *job = reply->job;
    assert(!cairn_bring_has(copy, chunk) && copy->device.base != NULL);
    reply->from = copy;
    reply->chunk = chunk;
    reply->next = job->replies.coming;
    job->replies.coming = reply;
    if (copy->brought[chunk] == CAIRN_BROUGHT_COMING) return;
    copy->brought[chunk] = MUTANT(1) ? CAIRN_BROUGHT : CAIRN_BROUGHT_COMING;
    reply->bring = (struct cairn_run) {
        .compute = job->compute,
        .item_count = 1,
        .describe = describe,
        .conclude = conclude,
        .done = done,
    };
    cairn_published_lend(job, copy);
    cairn_shard_job_busy(job);
    cairn_compute_submit(&reply->bring);
}

void cairn_bring_drop(struct cairn_shard_job *job)
{
    while (job->replies.coming != NULL) {
        struct cairn_reply *reply = job->replies.coming;
        job->replies.coming = reply->next;
        cairn_reply_end(reply);
    }
}
