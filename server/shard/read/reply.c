#include "server/shard/read/reply.h"

#include <assert.h>
#include <stdlib.h>

#include "server/shard/read/bring.h"
#include "server/shard/shard.h"

/* ---- memory ---- */

static struct cairn_reply *reply_new(struct cairn_shard_job *job, struct cairn_sentence *why)
{
    const size_t bytes = cairn_reply_bytes(job->replies.bytes);
    if (cairn_shard_job_take(job, &job->memory.staging, bytes, "a reply", why) != CAIRN_OK)
        return NULL;
    struct cairn_reply *reply = malloc(bytes);
    if (reply == NULL) {
        cairn_shard_job_give(job, &job->memory.staging, bytes);
        cairn_sentence_set(why, "no memory for a reply");
        return NULL;
    }
    reply->job = job;
    reply->is_kept = reply->is_used = false;
    return reply;
}

static void reply_free(struct cairn_reply *reply)
{
    struct cairn_shard_job *job = reply->job;
    cairn_shard_job_give(job, &job->memory.staging, cairn_reply_bytes(job->replies.bytes));
    free(reply);
}

/* ---- those that workers keep ---- */

static bool keeps_one(const struct cairn_member *member)
{
    return member->role == CAIRN_ROLE_WIRE_WORKER || member->is_mover;
}

/* Counts the members that should keep a reply and keep none; *one_out: one of them, or NULL. */
static uint32_t count_without(const struct cairn_shard_job *job, struct cairn_member **one_out)
{
    uint32_t count = 0;
    *one_out = NULL;
    for (size_t i = 0; i < job->members.capacity; i++) {
        struct cairn_member *member = job->members.list[i];
        if (member == NULL || !keeps_one(member) || member->kept != NULL) continue;
        *one_out = member;
        count++;
    }
    return count;
}

cairn_status cairn_reply_keep(struct cairn_member *member, struct cairn_sentence *why)
{
    const struct cairn_shard_job *job = member->job;
    struct cairn_member *one;
    if (!keeps_one(member) || member->kept != NULL) return CAIRN_OK;
    member->kept = reply_new(member->job, why);
    if (member->kept != NULL) member->kept->is_kept = true;
    return count_without(job, &one) <= job->replies.away ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

void cairn_reply_move(struct cairn_member *from, struct cairn_member *to)
{
    to->kept = from->kept;
    from->kept = NULL;
}

void cairn_reply_forget(struct cairn_member *member)
{
    struct cairn_reply *reply = member->kept;
    member->kept = NULL;
    if (reply == NULL) return;
    if (reply->is_used)
        member->job->replies.away++;
    else
        reply_free(reply);
}

/* Its worker left: another one that came meanwhile may have none. */
static void hand_over(struct cairn_reply *reply)
{
    struct cairn_shard_job *job = reply->job;
    struct cairn_member *without;
    assert(job->replies.away > 0);
    job->replies.away--;
    if (count_without(job, &without) == 0)
        reply_free(reply);
    else
        without->kept = reply;
}

/* ---- fetches ---- */

/* Once, until there was room for one more. */
static void say_short(const struct cairn_member *member, const char *why)
{
    struct cairn_shard_job *job = member->job;
    if (!job->replies.is_short)
        cairn_log_warn("job %s: a fetch of %s waits, as others will: %s; meanwhile %s",
                       job->spec.name, member->name, why,
                       member->kept != NULL ? "each worker is sent a chunk at a time"
                                            : "it is sent nothing, and workers a chunk at a time");
    job->replies.is_short = true;
}

static struct cairn_reply *reply_another(const struct cairn_member *member)
{
    struct cairn_sentence why;
    struct cairn_reply *reply = reply_new(member->job, &why);
    if (reply == NULL)
        say_short(member, why.text);
    else
        member->job->replies.is_short = false;
    return reply;
}

static struct cairn_reply *find_free(struct cairn_member *member)
{
    struct cairn_shard_job *job = member->job;
    struct cairn_reply *reply = job->replies.free;
    if (member->kept != NULL && !member->kept->is_used) return member->kept;
    if (reply != NULL) job->replies.free = reply->next;
    return reply;
}

struct cairn_reply *cairn_reply_open(struct cairn_member *member,
                                     const struct cairn_chunk_header *header)
{
    if (member->replies >= CAIRN_SHARD_REPLIES_MAX) return NULL;
    struct cairn_reply *reply = find_free(member);
    if (reply == NULL) reply = reply_another(member);
    if (reply == NULL) return NULL;
    reply->header = *header;
    reply->boxed = reply->is_given = false;
    reply->is_used = true;
    member->replies++;
    return reply;
}

void cairn_reply_end(struct cairn_reply *reply)
{
    struct cairn_shard_job *job = reply->job;
    struct cairn_member *member = cairn_member_find(job, reply->header.member);
    if (member != NULL && member->replies > 0) member->replies--;
    reply->is_used = false;
    if (!reply->is_kept) {
        reply->next = job->replies.free;
        job->replies.free = reply;
    } else if (member == NULL || member->kept != reply) {
        hand_over(reply);
    }
}

void cairn_replies_release(struct cairn_shard_job *job)
{
    if (job->shard->closing) cairn_bring_drop(job);
    while (job->replies.deferred != NULL) {
        struct cairn_reply *reply = job->replies.deferred;
        job->replies.deferred = reply->next;
        cairn_reply_end(reply);
    }
    while (job->replies.free != NULL) {
        struct cairn_reply *reply = job->replies.free;
        job->replies.free = reply->next;
        reply_free(reply);
    }
}
