/* A fetch asks for a chunk of a plane at an exact version, or for the part of the chunk that lies
 * in a box.
 *
 * The wire plane can be read at every version that is kept (read.h): the newest version, the
 * version before it, and the leased versions. The other planes can be read only at the newest
 * version. A fetch of these other planes waits while they are being updated.
 *
 * A version that lies on a card is sent directly from the card (goes_directly), or from host
 * memory. If it is sent from host memory, its chunks are copied there when they are asked for
 * (read.h).
 *
 * Published chunks are sent to workers directly out of their published copy (`in_copy`). Without
 * leases a copy is overwritten two updates later, but never while chunks of it are being sent. If a
 * worker stops, the round waits until the coordinator makes the worker leave. Then the worker's
 * endpoint is cut, and nothing is being sent to the worker any longer. Nobody waits for readers,
 * and a reader that stops pins the memory that is being sent to it. So everything that is sent to
 * readers is first copied into the reply. Planes other than the wire plane, and parts of chunks,
 * are also copied into the reply. A member has at most CAIRN_SHARD_REPLIES_MAX replies, so a member
 * that stops pins no more than these. State is sent directly out of the planes to a shard that
 * takes it over, because nothing changes this state before the move is settled. */
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/mutant.h"
#include "server/shard/read.h"
#include "server/shard/shard.h"

/* ==== reply ==== */

/* ---- memory ---- */

static struct reply *reply_new(struct shard_job *job, struct sentence *why)
{
    struct reply *reply = counted_malloc(job, &job->memory.staging,
                                         reply_memory_bytes(job->replies.bytes), "a reply", why);
    if (reply == NULL) return NULL;
    reply->job = job;
    reply->is_kept = reply->is_used = false;
    return reply;
}

static void reply_free(struct reply *reply)
{
    struct shard_job *job = reply->job;
    counted_free(job, &job->memory.staging, reply, reply_memory_bytes(job->replies.bytes));
}

/* ---- those that workers keep ---- */

static bool keeps_one(const struct shard_member *member)
{
    return member->role == CAIRN_ROLE_WIRE_WORKER || member->is_mover;
}

/* Returns how many members should keep a reply but have none. *one_out is one of these members, or
 * NULL. */
static uint32_t count_without(const struct shard_job *job, struct shard_member **one_out)
{
    uint32_t count = 0;
    *one_out = NULL;
    for (size_t i = 0; i < job->members.capacity; i++) {
        struct shard_member *member = job->members.list[i];
        if (member == NULL || !keeps_one(member) || member->kept != NULL) continue;
        *one_out = member;
        count++;
    }
    return count;
}

cairn_status reply_keep(struct shard_member *member, struct sentence *why)
{
    const struct shard_job *job = member->job;
    struct shard_member *one;
    if (!keeps_one(member) || member->kept != NULL) return CAIRN_OK;
    member->kept = reply_new(member->job, why);
    if (member->kept != NULL) member->kept->is_kept = true;
    return count_without(job, &one) <= job->replies.away ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

void reply_move(struct shard_member *from, struct shard_member *to)
{
    to->kept = from->kept;
    from->kept = NULL;
}

void reply_forget(struct shard_member *member)
{
    struct reply *reply = member->kept;
    member->kept = NULL;
    if (reply == NULL) return;
    if (reply->is_used)
        member->job->replies.away++;
    else
        reply_free(reply);
}

/* Passes the reply of a worker that left on to a member that should keep a reply but has none; if
 * there is no such member, frees the reply. */
static void hand_over(struct reply *reply)
{
    struct shard_job *job = reply->job;
    struct shard_member *without;
    assert(job->replies.away > 0);
    job->replies.away--;
    if (count_without(job, &without) == 0)
        reply_free(reply);
    else
        without->kept = reply;
}

/* ---- fetches ---- */

/* Logs that there is no room for one more reply. This is logged only once until there is room
 * again. */
static void say_short(const struct shard_member *member, const char *why)
{
    struct shard_job *job = member->job;
    if (!job->replies.is_short)
        log_warn("job %s: a fetch of %s waits, as others will: %s; meanwhile %s", job->spec.name,
                 member->name, why,
                 member->kept != NULL ? "each worker is sent a chunk at a time"
                                      : "it is sent nothing, and workers a chunk at a time");
    job->replies.is_short = true;
}

static struct reply *reply_another(const struct shard_member *member)
{
    struct sentence why;
    struct reply *reply = reply_new(member->job, &why);
    if (reply == NULL)
        say_short(member, why.text);
    else
        member->job->replies.is_short = false;
    return reply;
}

static struct reply *find_free(struct shard_member *member)
{
    struct shard_job *job = member->job;
    struct reply *reply = job->replies.free;
    if (member->kept != NULL && !member->kept->is_used) return member->kept;
    if (reply != NULL) job->replies.free = reply->next;
    return reply;
}

/* Opens a reply for a fetch of the member. Returns NULL if no reply is free now. If memory.limit is
 * the reason, this is logged. */
static struct reply *reply_open(struct shard_member *member, const struct chunk_header *header)
{
    if (member->replies >= CAIRN_SHARD_REPLIES_MAX) return NULL;
    struct reply *reply = find_free(member);
    if (reply == NULL) reply = reply_another(member);
    if (reply == NULL) return NULL;
    reply->header = *header;
    reply->boxed = reply->is_given = false;
    reply->is_used = true;
    member->replies++;
    return reply;
}

/* Ends the use of a reply by a fetch, however the fetch ended. */
static void reply_end(struct reply *reply)
{
    struct shard_job *job = reply->job;
    struct shard_member *member = member_find(job, reply->header.member);
    if (member != NULL && member->replies > 0) member->replies--;
    reply->is_used = false;
    if (!reply->is_kept) {
        reply->next = job->replies.free;
        job->replies.free = reply;
    } else if (member == NULL || member->kept != reply) {
        hand_over(reply);
    }
}

/* Drops fetches whose chunks were being copied to host memory. The shard closes and the threads
 * have ended, so fetch_brought will not be called. */
static void bring_drop(struct shard_job *job)
{
    while (job->replies.coming != NULL) {
        struct reply *reply = job->replies.coming;
        job->replies.coming = reply->next;
        reply_end(reply);
    }
}

/* Frees the replies of a job that leaves. Replies that are still being sent are freed by a later
 * call, when they have been sent. */
static void release_replies(struct shard_job *job)
{
    if (job->shard->closing) bring_drop(job);
    while (job->replies.deferred != NULL) {
        struct reply *reply = job->replies.deferred;
        job->replies.deferred = reply->next;
        reply_end(reply);
    }
    while (job->replies.free != NULL) {
        struct reply *reply = job->replies.free;
        job->replies.free = reply->next;
        reply_free(reply);
    }
}

const struct shard_module fetch_module = {
    .on = { [SHARD_JOB_LEAVES] = release_replies, [SHARD_JOB_FREED] = release_replies },
};

/* ==== fetch ==== */

/* The memory that a fetch reads. */
struct source {
    /* where the chunk lies: in host memory of a published copy, or in the home of the planes */
    const uint8_t *bytes;
    size_t byte_count;
    cairn_dtype dtype;
    /* borrowed: the checksum of the whole chunk, 0 until it is first needed; NULL: no checksum is
     * kept */
    uint64_t *checksum;
    /* the copy to which the chunk belongs; NULL: the chunk is state */
    const struct published_copy *published;
    uint64_t chunk; /* the chunk's number in the copy */
    /* the chunk in the copy's memory on the card; NULL: it is not there, or a park is about to
     * remove it */
    const uint8_t *on_card;
    /* the state is given to another shard, so it does not change while it is being sent:
     * job->move */
    bool is_given;
    /* the extent of the view in force that has the state; NULL: the state is read by the view
     * before, or this is no state */
    const struct local_extent *extent;
};

/* The chunk that a fetch asks for, and the view by which the chunk is read. A published version is
 * read by the view of its copy. State is read by the view in force or, while a move is not settled,
 * by the view before that. */
struct place {
    const struct published_copy *published; /* NULL: the chunk is state */
    const struct shard_view *view;
    uint64_t chunk;
    struct chunk_place at;
};

static void bring_chunk(struct reply *reply, const struct published_copy *copy, uint64_t chunk);

static bool find_chunk(const struct chunk_header *header, struct place *place)
{
    const struct shard_map *map = &place->view->table.map;
    if (shard_map_chunk_number(map, header->tensor, header->first_leaf, header->leaf_count,
                               &place->chunk) != CAIRN_OK)
        return false;
    place->at = shard_map_chunk(map, place->chunk);
    return true;
}

/* Finds a chunk of state. Movers ask by the earlier view, and so do members that do not know the
 * new layout yet. */
static cairn_status find_state(const struct shard_member *member, const struct chunk_header *header,
                               struct place *place)
{
    const struct shard_job *job = member->job;
    if (member->is_mover && job->move.before == NULL)
        return CAIRN_ERR_NOT_READY; // the Fence has not arrived yet
    place->view = job->view;
    if (!member->is_mover && find_chunk(header, place)) return CAIRN_OK;
    place->view = job->move.before;
    return place->view != NULL && find_chunk(header, place) ? CAIRN_OK : CAIRN_ERR_MALFORMED;
}

static cairn_status find_place(const struct shard_member *member, const struct chunk_header *header,
                               struct place *place_out)
{
    const struct shard_job *job = member->job;
    const struct cairn_version version = { header->generation, header->step };
    struct place place = { .published = NULL };
    *place_out = place;
    if (job->state != CAIRN_JOB_SERVING) return CAIRN_ERR_NOT_READY;
    if (header->plane != CAIRN_PLANE_WIRE) return find_state(member, header, place_out);
    place.published = published_find(job, version);
    if (place.published == NULL) return published_missing(job, version);
    for (; place.published != NULL; // a member may know only an earlier layout
         place.published = published_find_before(job, place.published)) {
        place.view = place.published->view;
        *place_out = place;
        if (find_chunk(header, place_out)) return CAIRN_OK;
    }
    return CAIRN_ERR_MALFORMED;
}

/* True if the copy has the chunk in host memory. Chunks of frozen tensors always are there, because
 * updates skip these tensors. */
static bool bring_has(const struct published_copy *copy, uint64_t chunk)
{
    const struct shard_view *view = copy->view;
    return copy->on_host || !view->forms[view->table.extent_of[chunk]].trained ||
           copy->brought[chunk] == CAIRN_BROUGHT;
}

/* Judges a fetch of a published version. While the job is being parked or taken back, no chunk is
 * copied to host memory for a fetch. So the fetch has to wait (CAIRN_ERR_BUSY) if its chunk is not
 * in host memory. */
static cairn_status judge_wire(const struct shard_job *job, const struct place *place,
                               struct source *source_out)
{
    const struct published_copy *published = place->published;
    const struct shard_view *view = place->view;
    const cairn_dtype dtype = view->forms[view->table.extent_of[place->chunk]].wire;
    if (job->park.is_under_way && !bring_has(published, place->chunk)) return CAIRN_ERR_BUSY;
    *source_out = (struct source) {
        .bytes = published_host_at(published, place->chunk, place->at.local_elem),
        .byte_count = (size_t)place->at.elem_count * dtype_size((int)dtype),
        .dtype = dtype,
        .checksum = &published->checksums[place->chunk],
        .published = published,
        .chunk = place->chunk,
    };
    // a park removes the side on the card
    if (published->device.base != NULL && !job->park.is_under_way)
        source_out->on_card = copy_chunk_at(published, place->chunk, place->at.local_elem);
    return CAIRN_OK;
}

/* True if the state of this chunk has not arrived from another shard yet. */
static bool is_to_come(const struct shard_job *job, const struct place *place)
{
    return place->view == job->view && job->move.now != NULL && job->move.now->receiver != NULL &&
           shard_map_find(&job->move.before->table.map, place->at.tensor, place->at.first_leaf) ==
               NULL;
}

/* Judges a fetch of state. While a mover still takes state from this shard, no update has begun
 * since the layout came into force. So that state has not changed. */
static cairn_status judge_state(const struct shard_member *member,
                                const struct chunk_header *header, const struct place *place,
                                struct source *source_out)
{
    const struct shard_job *job = member->job;
    const uint32_t extent = place->view->table.extent_of[place->chunk];
    const struct form *form = &place->view->forms[extent];
    if (!form_stores(form, header->plane)) return CAIRN_ERR_NOT_FOUND;
    const cairn_dtype dtype = form_dtype(form, header->plane);
    if (job->pass.updating || is_to_come(job, place)) return CAIRN_ERR_BUSY;
    const struct cairn_version wanted = { header->generation, header->step };
    if (version_compare(job->versions.copies[job->versions.newest].version, wanted) != 0)
        return published_missing(job, wanted);
    *source_out = (struct source) {
        .bytes = shard_view_at(place->view, &job->planes, header->plane, extent,
                               place->at.local_elem), // state that is given stays where it was
        .byte_count = (size_t)place->at.elem_count * dtype_size((int)dtype),
        .dtype = dtype,
        .is_given = member->is_mover && compute_is_host(job->compute),
        .extent = place->view == job->view ? &place->view->table.map.extents[extent] : NULL,
    };
    return CAIRN_OK;
}

/* Judges a fetch of the sums of a round. They stay as they are while the shard is prepared for the
 * round, and are gone afterwards. Only a member that is a shard gets them: a standby is let in as
 * relays are. */
static cairn_status judge_sums(const struct shard_member *member, const struct chunk_header *header,
                               struct source *source_out)
{
    const struct shard_job *job = member->job;
    const struct step_machine *step = job->collector.step;
    struct place place = { .view = job->view };
    if (job->state != CAIRN_JOB_SERVING || step_phase_of(step) != CAIRN_STEP_REDUCED ||
        step_round_of(step) != header->round)
        return CAIRN_ERR_NOT_READY;
    if (!find_chunk(header, &place)) return CAIRN_ERR_MALFORMED;
    const uint32_t extent = place.view->table.extent_of[place.chunk];
    if (!place.view->forms[extent].trained) return CAIRN_ERR_NOT_FOUND;
    *source_out = (struct source) {
        .bytes = planes_at(&job->planes, CAIRN_PLANE_SUM, extent, place.at.local_elem),
        .byte_count = (size_t)place.at.elem_count * sizeof(float),
        .dtype = CAIRN_F32,
        .is_given = compute_is_host(job->compute),
    };
    return CAIRN_OK;
}

/* Finds what the fetch is to read, without side effects. CAIRN_ERR_BUSY: the fetch has to wait,
 * because an update, a park or a move is under way. */
static cairn_status judge_fetch(const struct shard_member *member,
                                const struct chunk_header *header, struct source *source_out)
{
    struct place place;
    if (member->is_relay && header->round != 0) return judge_sums(member, header, source_out);
    CAIRN_TRY(find_place(member, header, &place));
    return place.published != NULL ? judge_wire(member->job, &place, source_out)
                                   : judge_state(member, header, &place, source_out);
}

/* ---- boxes ---- */

/* Sets the part of the chunk that is asked for. If this is the whole chunk, the reply is not
 * boxed. */
static cairn_status set_box(struct reply *reply, const struct cairn_box *box,
                            const struct chunk_place *place)
{
    const struct shape *shape = &reply->job->spec.tensors[place->tensor].shape;
    if (box_check(box, shape, NULL) != CAIRN_OK) return CAIRN_ERR_MALFORMED;
    const uint64_t count = box_before(box, shape, place->first_elem + place->elem_count) -
                           box_before(box, shape, place->first_elem);
    if (count == 0) return CAIRN_ERR_MALFORMED;
    reply->boxed = count < place->elem_count;
    reply->box = *box;
    return CAIRN_OK;
}

/* Finds the part of the chunk that the fetch asks for. If the fetch is of a box, the box was
 * received into box_bytes. Any other fetch asks for a tile that the member has declared, or for the
 * whole chunk. */
static cairn_status find_box(const struct shard_member *member, struct reply *reply)
{
    const struct chunk_header *header = &reply->header;
    struct place place;
    cairn_status status = find_place(member, header, &place);
    if (status != CAIRN_OK) return status;
    if (header->tile == CAIRN_TILE_BOX) {
        struct cairn_box box;
        status = box_decode(reply->box_bytes, (size_t)header->payload_bytes, &box);
        return status == CAIRN_OK ? set_box(reply, &box, &place.at) : status;
    }
    struct chunk_piece piece;
    status = tiles_piece(member, header, &place.at, &piece, NULL);
    if (status != CAIRN_OK || piece.held == NULL) return status;
    return set_box(reply, &piece.held->box, &place.at);
}

/* Packs those elements of the chunk that lie in the box into the reply. Returns their size in
 * bytes. */
static size_t pack_box(struct reply *reply, struct works *works, const struct source *source)
{
    const struct chunk_header *header = &reply->header;
    const struct shard_job *job = reply->job;
    const size_t elem_bytes = dtype_size((int)source->dtype);
    const struct geometry *geometry = &job->view->layout->geometry[header->tensor];
    const struct works_box of = {
        .box = &reply->box,
        .shape = &job->spec.tensors[header->tensor].shape,
        .first_elem = leaf_start(geometry, header->first_leaf),
        .elem_count = source->byte_count / elem_bytes,
        .elem_bytes = elem_bytes,
    };
    return works_pack(works, &of, reply->bytes, source->bytes);
}

/* ---- replies ---- */

/* Ends a use of a published copy: a send out of the copy, or the transfer of one of its chunks to
 * host memory. A copy that has no uses may be overwritten or closed. */
static void published_return(struct shard_job *job, const struct published_copy *copy)
{
    assert(copy->sends > 0);
    if (--job->versions.copies[copy - job->versions.copies].sends > 0) return;
    if (job->state != CAIRN_JOB_SERVING) return;
    if (job->shard->closing) return; // the threads have ended, so no waiting reply may begin
    published_trim(job);
    shard_tell(job, SHARD_COPIES_ENDED);
}

static void on_sent(void *arg, cairn_status status)
{
    struct reply *reply = arg;
    struct shard_job *job = reply->job;
    if (status == CAIRN_OK && !reply->is_given)
        bytes_fetched(job, reply->header.member, reply->header.payload_bytes, reply->path);
    if (reply->is_given) job->move.sends--;
    if (reply->is_direct) job->versions.direct_sends--;
    if (reply->in_copy != NULL) published_return(job, reply->in_copy);
    reply_end(reply);
    shard_job_idle(job);
}

/* Returns the checksum of the bytes that are sent. The first fetch of a chunk makes the chunk's
 * checksum. The update does not make it, because no chunk is fetched by members that map the
 * version. A chunk that was copied from a card has its checksum already. */
static uint64_t checksum_of(const struct reply *reply, const struct source *source,
                            const uint8_t *payload, size_t byte_count)
{
    const bool is_kept = source->checksum != NULL && !reply->boxed;
    if (is_kept && *source->checksum != 0) return *source->checksum;
    const uint64_t checksum = chunk_checksum(payload, byte_count);
    if (is_kept) *source->checksum = checksum;
    return checksum;
}

/* Compares a whole chunk of state that was copied into the reply with its checksums, so that no change that
 * nothing wrote gets to a standby. CAIRN_ERR_CHECKSUM: it differs. */
static cairn_status audit_copied(const struct reply *reply, const struct source *source,
                                 struct sentence *why)
{
    const struct shard_job *job = reply->job;
    const struct chunk_header *header = &reply->header;
    if (source->extent == NULL || reply->boxed) return CAIRN_OK;
    return audit_judge(job, &job->audit.checks,
                       (size_t)(source->extent - job->view->table.map.extents),
                       (enum plane)header->plane, header->first_leaf, header->leaf_count,
                       reply->bytes, dtype_size((int)source->dtype), why);
}

/* Copies the chunk, or the part of it that is asked for, into the reply. *byte_count_out is the
 * size of what was copied. */
static cairn_status copy_data(struct reply *reply, const struct source *source,
                              size_t *byte_count_out)
{
    struct shard_job *job = reply->job;
    struct works *works = compute_loop(job->compute);
    struct sentence why;
    *byte_count_out = source->byte_count;
    if (reply->boxed)
        *byte_count_out = pack_box(reply, works, source);
    else
        works_copy(works, reply->bytes, source->bytes, source->byte_count);
    cairn_status status = works_run(works, &why);
    if (status == CAIRN_OK) status = audit_copied(reply, source, &why);
    // A fetch only reads, so a lack of memory for a fetch does not harm the job.
    if (status != CAIRN_ERR_NO_MEMORY) (void)shard_job_failed(job, status, &why);
    return status;
}

/* True if the payload is sent directly out of the published copy, not out of the reply's own
 * memory. */
static bool is_sent_in_copy(const struct shard_member *member, const struct reply *reply)
{
    return member->role == CAIRN_ROLE_WIRE_WORKER && !reply->boxed;
}

/* True if the chunk is sent directly from the card to a worker of another host. Then the chunk need
 * not be in host memory. */
static bool goes_directly(const struct shard_member *member, const struct reply *reply,
                          const struct source *source)
{
    return source->on_card != NULL && is_sent_in_copy(member, reply) &&
           (reply->header.value & CAIRN_CHUNK_UNSUMMED) != 0 && member->peer != NULL &&
           strcmp(fabric_payload_path(member->peer, source->on_card, source->byte_count),
                  CAIRN_FABRIC_PATH_DIRECT) == 0;
}

/* Returns the address from which the payload is sent, and notes in the reply how it is sent. */
static const uint8_t *find_payload(const struct shard_member *member, struct reply *reply,
                                   const struct source *source)
{
    reply->is_direct = goes_directly(member, reply, source);
    reply->in_copy = is_sent_in_copy(member, reply) ? source->published : NULL;
    reply->is_given = source->is_given && !reply->boxed;
    if (reply->is_direct) return source->on_card;
    return reply->in_copy != NULL || reply->is_given ? source->bytes : reply->bytes;
}

static void published_lend(struct shard_job *job, const struct published_copy *copy)
{
    job->versions.copies[copy - job->versions.copies].sends++;
}

static void send_data(struct shard_member *member, struct reply *reply, const struct source *source)
{
    struct shard_job *job = reply->job;
    assert(source->byte_count <= job->replies.bytes);
    size_t byte_count = source->byte_count;
    const uint8_t *payload = find_payload(member, reply, source);
    const bool is_in_place = reply->in_copy != NULL || reply->is_given;
    struct chunk_header *header = &reply->header;
    if (!is_in_place && copy_data(reply, source, &byte_count) != CAIRN_OK) {
        member_refuse(member, header, CAIRN_ERR_NOT_READY);
        reply_end(reply);
        return;
    }
    header->kind = CAIRN_CHUNK_DATA;
    header->tile = job->view->table.map.shard;
    header->dtype = (uint8_t)source->dtype;
    header->payload_bytes = byte_count;
    header->value = reply->is_direct ? CAIRN_CHUNK_UNSUMMED : 0;
    header->checksum = reply->is_direct ? 0 : checksum_of(reply, source, payload, byte_count);
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    chunk_encode(header, bytes);
    cairn_status status = CAIRN_ERR_CLOSED;
    // before the send, which may end within fabric_send
    if (reply->in_copy != NULL) published_lend(job, reply->in_copy);
    if (member->peer != NULL) {
        reply->path = bytes_path_of(fabric_payload_path(member->peer, payload, byte_count));
        status = fabric_send(member->peer, bytes, sizeof bytes, payload, byte_count, on_sent,
                             reply);
    }
    if (status == CAIRN_OK) {
        job->move.sends += reply->is_given;
        job->versions.direct_sends += reply->is_direct;
        shard_job_busy(job);
        return;
    }
    reply->is_given = reply->is_direct = false;
    if (reply->in_copy != NULL) published_return(job, reply->in_copy);
    header->dtype = 0;
    member_refuse(member, header, CAIRN_ERR_BUSY);
    reply_end(reply);
}

/* Answers the fetch, has the fetch's chunk brought, defers the fetch, or refuses it. */
static void answer_fetch(struct shard_member *member, struct reply *reply)
{
    struct shard_job *job = reply->job;
    struct source source = { .byte_count = 0 };
    cairn_status status = judge_fetch(member, &reply->header, &source);
    const bool is_there = source.published == NULL || bring_has(source.published, source.chunk) ||
                          goes_directly(member, reply, &source);
    if (status == CAIRN_OK && is_there) {
        send_data(member, reply, &source);
    } else if (status == CAIRN_OK) {
        bring_chunk(reply, source.published, source.chunk);
    } else if (status == CAIRN_ERR_BUSY) {
        reply->next = job->replies.deferred;
        job->replies.deferred = reply;
    } else {
        member_refuse(member, &reply->header, status);
        reply_end(reply);
    }
}

/* Begins a fetch whose request has been received in full. */
static void begin_fetch(struct shard_member *member, struct reply *reply)
{
    const cairn_status status = find_box(member, reply);
    if (status == CAIRN_OK) {
        answer_fetch(member, reply);
        return;
    }
    member_refuse(member, &reply->header, status);
    reply_end(reply);
}

static void on_box(void *arg, cairn_status status)
{
    struct reply *reply = arg;
    struct shard_job *job = reply->job;
    const struct chunk_header *header = &reply->header;
    struct shard_member *member = member_find(job, header->member);
    const size_t bytes = (size_t)header->payload_bytes;
    if (status != CAIRN_OK || member == NULL) {
        reply_end(reply);
    } else if (chunk_checksum(reply->box_bytes, bytes) != header->checksum) {
        member_refuse(member, header, CAIRN_ERR_CHECKSUM);
        reply_end(reply);
    } else {
        begin_fetch(member, reply);
    }
    shard_job_settle(job);
    shard_job_idle(job);
}

static void receive_box(struct shard_member *member, struct reply *reply,
                        struct fabric_message *message)
{
    if (fabric_receive(message, reply->box_bytes, sizeof reply->box_bytes, on_box, reply) ==
        CAIRN_OK) {
        shard_job_busy(reply->job);
        return;
    }
    fabric_drop(message);
    member_refuse(member, &reply->header, CAIRN_ERR_BUSY);
    reply_end(reply);
}

void fetch_on_message(struct shard_member *member, const struct chunk_header *header,
                      struct fabric_message *message)
{
    struct shard_job *job = member->job;
    struct reply *reply = reply_open(member, header);
    if (reply == NULL) {
        fabric_drop(message);
        member_refuse(member, header, CAIRN_ERR_BUSY);
        return;
    }
    if (message != NULL)
        receive_box(member, reply, message);
    else
        begin_fetch(member, reply);
    shard_job_settle(job);
}

void fetch_deferred(struct shard_job *job)
{
    struct reply *waiting = job->replies.deferred;
    job->replies.deferred = NULL;
    while (waiting != NULL) {
        struct reply *reply = waiting;
        waiting = reply->next;
        struct shard_member *member = member_find(job, reply->header.member);
        if (member == NULL)
            reply_end(reply);
        else
            answer_fetch(member, reply);
    }
    shard_job_settle(job);
}

/* Answers a fetch whose chunk was to be brought to host memory (read.h). If `status` is not
 * CAIRN_OK, the chunk is not there. The version may no longer be readable for new fetches, but the
 * copy still has it until this call ends. */
static void fetch_brought(struct reply *reply, cairn_status status)
{
    const struct shard_job *job = reply->job;
    struct shard_member *member = member_find(job, reply->header.member);
    const struct shard_view *view = reply->from->view;
    const struct place place = { reply->from, view, reply->chunk,
                                 shard_map_chunk(&view->table.map, reply->chunk) };
    struct source source;
    if (status == CAIRN_OK && job->state != CAIRN_JOB_SERVING) status = CAIRN_ERR_NOT_READY;
    if (status == CAIRN_OK) status = judge_wire(job, &place, &source);
    if (status == CAIRN_OK && member != NULL) {
        send_data(member, reply, &source);
        return;
    }
    // A lack of memory passes, so the member is told to ask again (BUSY). Any other failure is
    // NOT_READY.
    const cairn_status why = status == CAIRN_ERR_NO_MEMORY ? CAIRN_ERR_BUSY : CAIRN_ERR_NOT_READY;
    if (member != NULL) member_refuse(member, &reply->header, why);
    reply_end(reply);
}

/* ==== bring ==== */

bool bring_works(const struct shard_job *job)
{
    return job->replies.coming != NULL;
}

static struct reply *reply_of(const struct work_run *run)
{
    return (struct reply *)((char *)(uintptr_t)run - offsetof(struct reply, bring));
}

static bool describe(struct work_run *run, uint32_t item, uint32_t stage, struct works *works)
{
    const struct reply *reply = reply_of(run);
    (void)item, (void)stage;
    published_fill(works, reply->from, reply->chunk);
    return false;
}

/* Makes the chunk's checksum if the whole chunk is to be sent. On this thread the loop thread is
 * not delayed. Nobody reads the checksum before the chunk is noted as brought. */
static void conclude(struct work_run *run, uint32_t item, uint32_t thread)
{
    const struct reply *reply = reply_of(run);
    const struct published_copy *copy = reply->from;
    (void)item, (void)thread;
    if (reply->boxed) return;
    const struct chunk_place place = shard_map_chunk(&copy->view->table.map, reply->chunk);
    copy->checksums[reply->chunk] = chunk_checksum(
        published_host_at(copy, reply->chunk, place.local_elem),
        copy_chunk_bytes(copy, reply->chunk));
}

/* Takes one of the replies that wait for the chunk out of the list. Returns NULL if no reply waits
 * for it. */
static struct reply *take_one(struct shard_job *job, const struct published_copy *copy,
                              uint64_t chunk)
{
    struct reply **link = &job->replies.coming;
    while (*link != NULL && ((*link)->from != copy || (*link)->chunk != chunk))
        link = &(*link)->next;
    struct reply *reply = *link;
    if (reply != NULL) *link = reply->next;
    return reply;
}

static void chunk_brought(struct work_run *run)
{
    const struct reply *first = reply_of(run);
    struct shard_job *job = first->job;
    const struct published_copy *copy = first->from;
    const uint64_t chunk = first->chunk;
    const cairn_status status = run->status;
    struct reply *reply;
    copy->brought[chunk] = status == CAIRN_OK ? CAIRN_BROUGHT : CAIRN_BROUGHT_NOT;
    // A fetch only reads, so a lack of memory for a fetch does not harm the job.
    if (status != CAIRN_ERR_NO_MEMORY) (void)shard_job_run_failed(job, run);
    while ((reply = take_one(job, copy, chunk)) != NULL) fetch_brought(reply, status);
    published_return(job, copy); // last, because by now the sends out of the copy are counted
    shard_job_settle(job);
    shard_job_idle(job);
}

/* Makes the reply wait until the chunk is in host memory, and begins to copy the chunk there,
 * unless this is under way already. fetch_brought is called at the end. */
static void bring_chunk(struct reply *reply, const struct published_copy *copy, uint64_t chunk)
{
    struct shard_job *job = reply->job;
    assert(!bring_has(copy, chunk) && copy->device.base != NULL);
    reply->from = copy;
    reply->chunk = chunk;
    reply->next = job->replies.coming;
    job->replies.coming = reply;
    if (copy->brought[chunk] == CAIRN_BROUGHT_COMING) return;
    copy->brought[chunk] = READ_MUTANT(1) ? CAIRN_BROUGHT : CAIRN_BROUGHT_COMING;
    reply->bring = (struct work_run) {
        .compute = job->compute,
        .item_count = 1,
        .describe = describe,
        .conclude = conclude,
        .done = chunk_brought,
    };
    published_lend(job, copy);
    shard_job_busy(job);
    compute_submit(&reply->bring);
}
