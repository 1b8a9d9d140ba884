/* The initial state, put chunk by chunk by one declared worker while the job is INITIALIZING. */
#include <assert.h>
#include <string.h>

#include "server/shard/shard.h"
#include "server/shard/state/write.h"

static void refuse(struct cairn_member *member, const struct cairn_chunk_header *header,
                   cairn_status status, const struct cairn_sentence *why)
{
    cairn_member_note_refusal(member, header, why->text);
    cairn_member_refuse(member, header, status);
}

cairn_status cairn_put_judge_chunk(const struct cairn_shard_job *job,
                                   const struct cairn_chunk_header *header, struct cairn_put *out,
                                   struct cairn_sentence *why)
{
    if (cairn_shard_map_chunk_number(&job->view->table.map, header->tensor, header->first_leaf,
                                     header->leaf_count, &out->chunk) != CAIRN_OK) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "tensor %u, leaves %llu + %u: not a chunk here",
                          header->tensor, (unsigned long long)header->first_leaf,
                          header->leaf_count);
    }
    out->place = cairn_shard_map_chunk(&job->view->table.map, out->chunk);
    return CAIRN_OK;
}

cairn_dtype cairn_put_dtype(const struct cairn_shard_job *job, const struct cairn_put *put)
{
    return job->view->forms[job->view->table.extent_of[put->chunk]].master;
}

cairn_status cairn_put_judge_payload(const struct cairn_chunk_header *header,
                                     const struct cairn_put *put, struct cairn_sentence *why)
{
    const uint64_t bytes = put->piece.count * cairn_dtype_bytes(header->dtype);
    if (header->payload_bytes == bytes) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_MALFORMED, "tensor %u: a payload of %llu bytes, not %llu",
                      header->tensor, (unsigned long long)header->payload_bytes,
                      (unsigned long long)bytes);
}

cairn_status cairn_put_judge_plane(const struct cairn_shard_job *job,
                                   const struct cairn_chunk_header *header,
                                   const struct cairn_put *put, struct cairn_sentence *why)
{
    const char *name = job->spec.tensors[header->tensor].name;
    const struct cairn_form *form = &job->view->forms[job->view->table.extent_of[put->chunk]];
    const cairn_dtype dtype = cairn_put_dtype(job, put);
    if (!cairn_plane_is_state(header->plane) || header->dtype != dtype)
        return cairn_fail(
            why, CAIRN_ERR_MALFORMED, "tensor %s, plane %u in %s: param and moments are put, in %s",
            name, header->plane, cairn_dtype_name(header->dtype), cairn_dtype_name((int)dtype));
    if (!cairn_form_keeps(form, header->plane))
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "tensor %s keeps no %s", name,
                          cairn_plane_name(header->plane));
    return CAIRN_OK;
}

/* Moments have one source. */
static bool may_put(const struct cairn_member *member, int plane)
{
    return plane == CAIRN_PLANE_PARAM || member->rank == 0;
}

/* Judged without side effects. On success chunk, place and piece of *out are set. */
static cairn_status judge_put(const struct cairn_member *member,
                              const struct cairn_chunk_header *header, struct cairn_put *out,
                              struct cairn_sentence *why)
{
    const struct cairn_shard_job *job = member->job;
    if (job->state == CAIRN_JOB_LOADING) {
        return cairn_fail(why, CAIRN_ERR_NOT_READY, "its state is being read or made");
    }
    if (job->state == CAIRN_JOB_SERVING && header->round != 0)
        return cairn_write_judge(member, header, out, why);
    if (job->state == CAIRN_JOB_SERVING)
        return cairn_fail(why, CAIRN_ERR_EXISTS,
                          "its initial state is complete here, with other values");
    if (job->state != CAIRN_JOB_INITIALIZING) {
        return cairn_fail(why, CAIRN_ERR_STALE, "its initial state is complete");
    }
    if (header->tile == CAIRN_TILE_BOX)
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "a box of an initial state");
    cairn_status status = cairn_put_judge_chunk(job, header, out, why);
    if (status != CAIRN_OK) return status;
    status = cairn_put_judge_plane(job, header, out, why);
    if (status != CAIRN_OK) return status;
    if (header->plane != CAIRN_PLANE_PARAM && header->tile != CAIRN_TILE_WHOLE)
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "a part of moments of an initial state");
    if (!may_put(member, header->plane))
        return cairn_fail(why, CAIRN_ERR_REFUSED, "rank 0 puts moments, this is rank %u",
                          member->rank);
    if (cairn_spec_has_origin(&job->spec, header->tensor)) {
        return cairn_fail(why, CAIRN_ERR_EXISTS,
                          "tensor %s has its initial state from the job's spec",
                          job->spec.tensors[header->tensor].name);
    }
    status = cairn_tiles_piece(member, header, &out->place, &out->piece, why);
    return status == CAIRN_OK ? cairn_put_judge_payload(header, out, why) : status;
}

static uint8_t *buffer_of(const struct cairn_shard_job *job, const struct cairn_put *put)
{
    return job->puts.arena.base + (size_t)(put - job->puts.list) * job->puts.bytes;
}

/* The buffers are needed no more once the job serves and nothing lands in them. */
static void close_buffers(struct cairn_shard_job *job)
{
    if (job->state == CAIRN_JOB_INITIALIZING || job->puts.write != NULL) return;
    for (uint32_t i = 0; i < job->puts.max; i++) {
        if (job->puts.list[i].job != NULL) return;
    }
    cairn_release(job->shard, &job->puts.arena);
}

cairn_status cairn_put_open_buffers(struct cairn_shard_job *job, struct cairn_sentence *why)
{
    if (job->puts.arena.base != NULL) return CAIRN_OK; // counted since the job was made
    return cairn_arena_open_scratch("puts", (uint64_t)job->puts.max * job->puts.bytes,
                                    &job->puts.arena, why);
}

static void acknowledge(struct cairn_member *member, const struct cairn_chunk_header *header)
{
    struct cairn_chunk_header ack = *header;
    ack.kind = CAIRN_CHUNK_ACK;
    ack.payload_bytes = ack.checksum = 0;
    cairn_member_send(member, &ack);
}

static void *state_of(const struct cairn_shard_job *job, const struct cairn_put *put)
{
    return cairn_planes_at(&job->planes, put->header.plane, job->view->table.extent_of[put->chunk],
                           put->place.local_elem);
}

#define MOMENTS (CAIRN_PUT_HAS(CAIRN_PLANE_EXP_AVG) | CAIRN_PUT_HAS(CAIRN_PLANE_EXP_AVG_SQ))

void cairn_put_count_moments(struct cairn_shard_job *job, uint64_t member)
{
    if (job->puts.moments_of == member) return;
    job->puts.moments_of = member;
    for (uint64_t c = 0; c < job->view->table.map.chunk_count; c++) {
        const unsigned stale = job->puts.have[c] & MOMENTS;
        job->puts.have[c] = (uint8_t)((job->puts.have[c] ^ stale) | stale << CAIRN_PUT_STALE_SHIFT);
    }
}

static void note_put(struct cairn_shard_job *job, const struct cairn_put *put)
{
    uint8_t *have = &job->puts.have[put->chunk];
    const unsigned plane = put->header.plane;
    if (plane == CAIRN_PLANE_PARAM) {
        *have = (uint8_t)(*have | CAIRN_PUT_HAS(plane));
        return;
    }
    cairn_put_count_moments(job, put->header.member);
    *have = (uint8_t)((*have & ~CAIRN_PUT_STALE(plane)) | CAIRN_PUT_HAS(plane));
}

cairn_status cairn_put_judge_again(const struct cairn_shard_job *job, struct cairn_sentence *why)
{
    uint64_t c = 0;
    while (c < job->view->table.map.chunk_count &&
           (job->puts.have[c] & MOMENTS << CAIRN_PUT_STALE_SHIFT) == 0)
        c++;
    if (c == job->view->table.map.chunk_count) return CAIRN_OK;
    const uint32_t tensor = job->view->table.map.extents[job->view->table.extent_of[c]].tensor;
    return cairn_fail(
        why, CAIRN_ERR_EXISTS,
        "shard %s has its initial state already, with moments of %s: put them, too, or "
        "drop the job and begin anew",
        job->shard->name, job->spec.tensors[tensor].name);
}

/* Put again after another shard's part was found missing, when this one's was sealed already: the same values
 * are as good as put; of a whole chunk its checksum tells. */
static bool is_sealed_alike(const struct cairn_member *member,
                            const struct cairn_chunk_header *header)
{
    struct cairn_shard_job *job = member->job;
    struct cairn_put put = { .header = *header };
    if (job->state != CAIRN_JOB_SERVING || header->round != 0 ||
        cairn_step_version(job->collector.step).step != job->base_step ||
        header->tile != CAIRN_TILE_WHOLE || !may_put(member, header->plane) ||
        cairn_put_judge_chunk(job, header, &put, NULL) != CAIRN_OK ||
        cairn_put_judge_plane(job, header, &put, NULL) != CAIRN_OK)
        return false;
    const size_t bytes = (size_t)put.place.elem_count * cairn_dtype_bytes(header->dtype);
    if (header->payload_bytes != bytes) return false;
    struct cairn_works *works = cairn_compute_loop(job->compute);
    const void *had = cairn_works_get(works, state_of(job, &put), bytes);
    const bool is_alike = header->checksum == cairn_chunk_checksum(had, bytes);
    if (cairn_works_run(works, NULL) != CAIRN_OK || !is_alike) return false;
    note_put(job, &put);
    return true;
}

/* Into the state, or beside it. */
static cairn_status keep(struct cairn_put *put, struct cairn_sentence *why)
{
    struct cairn_shard_job *job = put->job;
    struct cairn_works *works = cairn_compute_loop(job->compute);
    const uint8_t *bytes = buffer_of(job, put);
    if (job->state == CAIRN_JOB_SERVING) return cairn_write_take(job, put, bytes, why);
    if (put->piece.count == put->place.elem_count) {
        cairn_works_copy(works, state_of(job, put), bytes, (size_t)put->header.payload_bytes);
        note_put(job, put);
    } else {
        cairn_tiles_put(job, put->chunk, &put->piece, &put->place, (const float *)bytes);
    }
    const cairn_status status = cairn_works_run(works, why);
    (void)cairn_shard_job_failed(job, status, why);
    return status;
}

/* The payload is whole: into the state, unless it is not wanted any more. */
static void take(struct cairn_put *put, struct cairn_member *member)
{
    struct cairn_shard_job *job = put->job;
    struct cairn_sentence why;
    const size_t bytes = (size_t)put->header.payload_bytes;
    if (job->state != CAIRN_JOB_INITIALIZING && !cairn_write_is(job, &put->header)) {
        cairn_sentence_set(&why, "its initial state is complete, or the write is over");
        refuse(member, &put->header, CAIRN_ERR_STALE, &why);
        return;
    }
    if (cairn_chunk_checksum(buffer_of(job, put), bytes) != put->header.checksum) {
        cairn_sentence_set(&why, "its checksum does not match");
        refuse(member, &put->header, CAIRN_ERR_CHECKSUM, &why);
        return;
    }
    const cairn_status status = keep(put, &why);
    if (status != CAIRN_OK) {
        refuse(member, &put->header, status, &why);
        return;
    }
    cairn_bytes_put(job, put->header.member, bytes);
    acknowledge(member, &put->header);
}

static void on_received(void *arg, cairn_status status)
{
    struct cairn_put *put = arg;
    struct cairn_shard_job *job = put->job;
    struct cairn_member *member = cairn_member_find(job, put->header.member);
    if (status == CAIRN_OK && member != NULL) take(put, member);
    put->job = NULL;
    close_buffers(job);
    cairn_shard_job_settle(job);
    cairn_shard_job_idle(job);
}

static struct cairn_put *find_free(struct cairn_shard_job *job)
{
    for (uint32_t i = 0; i < job->puts.max; i++) {
        if (job->puts.list[i].job == NULL) return &job->puts.list[i];
    }
    return NULL;
}

void cairn_put_on_message(struct cairn_member *member, const struct cairn_chunk_header *header,
                          struct cairn_fabric_message *message)
{
    struct cairn_shard_job *job = member->job;
    struct cairn_sentence why;
    struct cairn_put judged = { .job = job, .header = *header };
    if (is_sealed_alike(member, header)) {
        acknowledge(member, header);
        cairn_fabric_drop(message);
        return;
    }
    struct cairn_put *put = find_free(job);
    cairn_status status = judge_put(member, header, &judged, &why);
    if (status == CAIRN_OK && put == NULL)
        status = cairn_fail(&why, CAIRN_ERR_BUSY, "%u puts are being received", job->puts.max);
    if (status == CAIRN_OK) {
        status = cairn_fabric_receive(message, buffer_of(job, put), job->puts.bytes, on_received,
                                      put);
        if (status != CAIRN_OK)
            status = cairn_fail(&why, CAIRN_ERR_BUSY, "no memory to receive it");
    }
    if (status != CAIRN_OK) {
        refuse(member, header, status, &why);
        cairn_fabric_drop(message);
        return;
    }
    *put = judged;
    cairn_shard_job_busy(job);
}

cairn_status cairn_put_whole(const struct cairn_shard_job *job, struct cairn_sentence *why)
{
    size_t missing = 0;
    uint32_t last = UINT32_MAX;
    struct cairn_sentence names = { "" };
    for (uint64_t c = 0; c < job->view->table.map.chunk_count; c++) {
        const uint32_t tensor = job->view->table.map.extents[job->view->table.extent_of[c]].tensor;
        const bool is_put = (job->puts.have[c] & CAIRN_PUT_HAS(CAIRN_PLANE_PARAM)) != 0;
        if (tensor == last || is_put || cairn_tiles_put_whole(job, c)) continue;
        last = tensor;
        if (++missing <= 5)
            cairn_sentence_add(&names, "%s%s", missing > 1 ? ", " : "",
                               job->spec.tensors[tensor].name);
    }
    if (missing == 0) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_NOT_READY,
                      "shard %s has no whole initial state of %zu tensors: %s%s; put them first",
                      job->shard->name, missing, names.text, missing > 5 ? ", ..." : "");
}

void cairn_put_end(struct cairn_shard_job *job)
{
    close_buffers(job);
}
