/* Fetches: a chunk of a plane at an exact version.
 *
 * The wire plane is read at the newest version or the one before, which an update overwrites; the
 * other planes at the newest only, and while they are being updated a fetch of them waits. Data is
 * copied to a buffer of its own before it is sent, because a peer that stops reading pins what is
 * sent to it, and published memory must never be pinned. A member has at most
 * CAIRN_SHARD_REPLIES_MAX of them, so a stopped one pins no more than these. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/shard.h"

/* What a fetch reads. */
struct source {
    const void *bytes;
    size_t byte_count;
    cairn_dtype dtype;
    uint64_t checksum; /* if checksum_known */
    bool checksum_known;
};

static bool same_version(struct cairn_version a, uint64_t generation, uint64_t step)
{
    return a.generation == generation && a.step == step;
}

/* Not here: not yet, or no longer. */
static cairn_status not_kept(const struct cairn_shard_job *job,
                             const struct cairn_chunk_header *header)
{
    const struct cairn_version newest = job->published[job->newest].version;
    const bool later = header->generation != newest.generation
                           ? header->generation > newest.generation
                           : header->step > newest.step;
    return later ? CAIRN_ERR_NOT_READY : CAIRN_ERR_VERSION_GONE;
}

static cairn_status judge_wire(const struct cairn_shard_job *job,
                               const struct cairn_chunk_header *header, uint64_t chunk,
                               const struct cairn_chunk_place *place, struct source *source_out)
{
    for (uint32_t i = 0; i < 2; i++) {
        const struct cairn_published *published = &job->published[i];
        if (!published->readable) continue;
        if (!same_version(published->version, header->generation, header->step)) continue;
        const uint32_t part = job->chunk_part[chunk];
        const size_t elem_bytes = cairn_dtype_bytes((int)job->parts[part].wire);
        const uint64_t elems = place->local_elem - job->map.extents[part].local_elem;
        *source_out = (struct source) {
            .bytes = published->wire.base + job->parts[part].wire_byte + elems * elem_bytes,
            .byte_count = (size_t)place->elem_count * elem_bytes,
            .dtype = job->parts[part].wire,
            .checksum = published->checksums[chunk],
            .checksum_known = true,
        };
        return CAIRN_OK;
    }
    return not_kept(job, header);
}

static cairn_status judge_state(const struct cairn_shard_job *job,
                                const struct cairn_chunk_header *header, uint64_t chunk,
                                const struct cairn_chunk_place *place, struct source *source_out)
{
    const struct cairn_arena *arena = header->plane == CAIRN_PLANE_PARAM     ? &job->param
                                      : header->plane == CAIRN_PLANE_EXP_AVG ? &job->exp_avg
                                                                             : &job->exp_avg_sq;
    const uint32_t kept = 1u << CAIRN_PLANE_PARAM | job->parts[job->chunk_part[chunk]].planes;
    if ((kept & 1u << header->plane) == 0) return CAIRN_ERR_NOT_FOUND;
    if (job->updating) return CAIRN_ERR_BUSY;
    if (!same_version(job->published[job->newest].version, header->generation, header->step))
        return not_kept(job, header);
    *source_out = (struct source) {
        .bytes = (const float *)arena->base + place->local_elem,
        .byte_count = (size_t)place->elem_count * sizeof(float),
        .dtype = CAIRN_F32,
    };
    return CAIRN_OK;
}

/* What to read, judged without side effects. CAIRN_ERR_BUSY: it is being updated, wait. */
static cairn_status judge_fetch(const struct cairn_shard_job *job,
                                const struct cairn_chunk_header *header, struct source *source_out)
{
    if (job->state != CAIRN_JOB_SERVING) return CAIRN_ERR_NOT_READY;
    uint64_t chunk;
    cairn_status status = cairn_shard_map_chunk_number(
        &job->map, header->tensor, header->first_leaf, header->leaf_count, &chunk);
    if (status != CAIRN_OK) return CAIRN_ERR_MALFORMED;
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->map, chunk);
    switch (header->plane) {
    case CAIRN_PLANE_WIRE: return judge_wire(job, header, chunk, &place, source_out);
    case CAIRN_PLANE_PARAM:
    case CAIRN_PLANE_EXP_AVG:
    case CAIRN_PLANE_EXP_AVG_SQ: return judge_state(job, header, chunk, &place, source_out);
    default: return CAIRN_ERR_NOT_FOUND;
    }
}

/* ---- replies ---- */

static struct cairn_reply *reply_open(struct cairn_shard_job *job)
{
    struct cairn_reply *reply = job->replies_free;
    if (reply != NULL) {
        job->replies_free = reply->next;
        return reply;
    }
    const size_t bytes = sizeof *reply + job->reply_bytes;
    if (cairn_budget_take(&job->shard->budget, bytes, "a reply", NULL) != CAIRN_OK) return NULL;
    reply = malloc(bytes);
    if (reply == NULL) {
        cairn_budget_give(&job->shard->budget, bytes);
        return NULL;
    }
    reply->job = job;
    job->budget_bytes += bytes;
    return reply;
}

/* The fetch is over, however it ended. */
static void reply_end(struct cairn_reply *reply)
{
    struct cairn_shard_job *job = reply->job;
    struct cairn_member *member = cairn_member_find(job, reply->header.member);
    if (member != NULL && member->replies > 0) member->replies--;
    reply->next = job->replies_free;
    job->replies_free = reply;
}

static void on_sent(void *arg, cairn_status status)
{
    struct cairn_reply *reply = arg;
    struct cairn_shard_job *job = reply->job;
    if (status == CAIRN_OK) job->shard->stats.fetched_bytes += reply->header.payload_bytes;
    reply_end(reply);
    cairn_shard_job_idle(job);
}

static void send_data(struct cairn_member *member, struct cairn_reply *reply,
                      const struct source *source)
{
    struct cairn_shard_job *job = reply->job;
    assert(source->byte_count <= job->reply_bytes);
    memcpy(reply->bytes, source->bytes, source->byte_count);
    struct cairn_chunk_header *header = &reply->header;
    header->kind = CAIRN_CHUNK_DATA;
    header->tile = job->map.shard;
    header->dtype = (uint8_t)source->dtype;
    header->payload_bytes = source->byte_count;
    header->checksum = source->checksum_known
                           ? source->checksum
                           : cairn_chunk_checksum(reply->bytes, source->byte_count);
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    cairn_chunk_encode(header, bytes);
    cairn_status status = CAIRN_ERR_CLOSED;
    if (member->peer != NULL) {
        status = cairn_fabric_send(member->peer, bytes, sizeof bytes, reply->bytes,
                                   source->byte_count, on_sent, reply);
    }
    if (status == CAIRN_OK) {
        cairn_shard_job_busy(job);
        return;
    }
    header->dtype = 0;
    cairn_member_refuse(member, header, CAIRN_ERR_BUSY);
    reply_end(reply);
}

/* Answers, or defers, or refuses. */
static void answer(struct cairn_member *member, struct cairn_reply *reply)
{
    struct cairn_shard_job *job = reply->job;
    struct source source;
    cairn_status status = judge_fetch(job, &reply->header, &source);
    if (status == CAIRN_OK) {
        send_data(member, reply, &source);
    } else if (status == CAIRN_ERR_BUSY) {
        reply->next = job->deferred;
        job->deferred = reply;
    } else {
        cairn_member_refuse(member, &reply->header, status);
        reply_end(reply);
    }
}

void cairn_fetch_on_message(struct cairn_member *member, const struct cairn_chunk_header *header)
{
    struct cairn_shard_job *job = member->job;
    struct cairn_reply *reply = NULL;
    if (member->replies < CAIRN_SHARD_REPLIES_MAX) reply = reply_open(job);
    if (reply == NULL) {
        cairn_member_refuse(member, header, CAIRN_ERR_BUSY);
        return;
    }
    reply->header = *header;
    member->replies++;
    answer(member, reply);
    cairn_shard_job_settle(job);
}

void cairn_fetch_deferred(struct cairn_shard_job *job)
{
    struct cairn_reply *waiting = job->deferred;
    job->deferred = NULL;
    while (waiting != NULL) {
        struct cairn_reply *reply = waiting;
        waiting = reply->next;
        struct cairn_member *member = cairn_member_find(job, reply->header.member);
        if (member == NULL)
            reply_end(reply);
        else
            answer(member, reply);
    }
    cairn_shard_job_settle(job);
}

/* Those that are being sent come back to the free list, and are freed by a later call. */
void cairn_fetch_release(struct cairn_shard_job *job)
{
    while (job->deferred != NULL) {
        struct cairn_reply *reply = job->deferred;
        job->deferred = reply->next;
        reply->next = job->replies_free;
        job->replies_free = reply;
    }
    while (job->replies_free != NULL) {
        struct cairn_reply *reply = job->replies_free;
        job->replies_free = reply->next;
        free(reply);
    }
}
