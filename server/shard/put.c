/* Puts: the initial state, which workers put chunk by chunk while the job is INITIALIZING. Further
 * sections have writes at a step boundary, and initial state that nobody puts. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "proto/spec/scalars.h"
#include "server/shard/shard.h"
#include "server/shard/state.h"

static cairn_status write_judge(const struct shard_member *member,
                                const struct chunk_header *header, struct chunk_put *out,
                                struct sentence *why);
static cairn_status write_take(struct shard_job *job, const struct chunk_put *put,
                               const uint8_t *bytes, struct sentence *why);
static bool write_is(const struct shard_job *job, const struct chunk_header *header);

/* Finds the chunk that a PUT names, and sets out->chunk and out->place. CAIRN_ERR_MALFORMED: the
 * chunk is not on this shard. */
static cairn_status put_judge_chunk(const struct shard_job *job, const struct chunk_header *header,
                                    struct chunk_put *out, struct sentence *why)
{
    if (shard_map_chunk_number(&job->view->table.map, header->tensor, header->first_leaf,
                               header->leaf_count, &out->chunk) != CAIRN_OK) {
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "tensor %u, leaves %" PRIu64 " + %u: not a chunk here", header->tensor,
                         header->first_leaf, header->leaf_count);
    }
    out->place = shard_map_chunk(&job->view->table.map, out->chunk);
    return CAIRN_OK;
}

/* Returns CAIRN_ERR_MALFORMED if the payload does not have the size of put->piece in the header's
 * dtype. */
static cairn_status put_judge_payload(const struct chunk_header *header,
                                      const struct chunk_put *put, struct sentence *why)
{
    const uint64_t bytes = put->piece.count * dtype_size(header->dtype);
    if (header->payload_bytes == bytes) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_MALFORMED,
                     "tensor %u: a payload of %" PRIu64 " bytes, not %" PRIu64, header->tensor,
                     header->payload_bytes, bytes);
}

/* Judges the plane that is put. CAIRN_ERR_MALFORMED: the plane is not state, or the chunk's dtype
 * is not the header's. CAIRN_ERR_NOT_FOUND: the chunk does not keep the plane. */
static cairn_status put_judge_plane(const struct shard_job *job, const struct chunk_header *header,
                                    const struct chunk_put *put, struct sentence *why)
{
    const char *name = job->spec.tensors[header->tensor].name;
    const struct form *form = &job->view->forms[job->view->table.extent_of[put->chunk]];
    const cairn_dtype dtype = job->view->forms[job->view->table.extent_of[put->chunk]].master;
    if (!plane_is_state(header->plane) || header->dtype != dtype)
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "tensor %s, plane %u in %s: put only param, moments and ema, in %s", name,
                         header->plane, dtype_label(header->dtype), dtype_label((int)dtype));
    if (!form_keeps(form, header->plane))
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "tensor %s keeps no %s", name,
                         plane_name(header->plane));
    return CAIRN_OK;
}

/* True if the member may put the plane. Only rank 0 may put moments. */
static bool may_put(const struct shard_member *member, int plane)
{
    return plane == CAIRN_PLANE_PARAM || member->rank == 0;
}

/* Judges a PUT, without side effects. On CAIRN_OK out->chunk, out->place and out->piece are set. */
static cairn_status judge_put(const struct shard_member *member, const struct chunk_header *header,
                              struct chunk_put *out, struct sentence *why)
{
    const struct shard_job *job = member->job;
    if (job->state == CAIRN_JOB_LOADING) {
        return fail_with(why, CAIRN_ERR_NOT_READY, "its state is being read or made");
    }
    if (job->state == CAIRN_JOB_SERVING && header->round != 0)
        return write_judge(member, header, out, why);
    if (job->state == CAIRN_JOB_SERVING)
        return fail_with(why, CAIRN_ERR_EXISTS,
                         "its initial state is complete here, with other values");
    if (job->state != CAIRN_JOB_INITIALIZING) {
        return fail_with(why, CAIRN_ERR_STALE, "its initial state is complete");
    }
    if (header->tile == CAIRN_TILE_BOX)
        return fail_with(why, CAIRN_ERR_MALFORMED, "a box of an initial state");
    CAIRN_TRY(put_judge_chunk(job, header, out, why));
    CAIRN_TRY(put_judge_plane(job, header, out, why));
    if (header->plane != CAIRN_PLANE_PARAM && header->tile != CAIRN_TILE_WHOLE)
        return fail_with(why, CAIRN_ERR_MALFORMED, "a part of moments of an initial state");
    if (!may_put(member, header->plane))
        return fail_with(why, CAIRN_ERR_REFUSED, "rank 0 puts moments, this is rank %u",
                         member->rank);
    if (spec_has_origin(&job->spec, header->tensor)) {
        return fail_with(why, CAIRN_ERR_EXISTS,
                         "tensor %s has its initial state from the job's spec",
                         job->spec.tensors[header->tensor].name);
    }
    cairn_status status = tiles_piece(member, header, &out->place, &out->piece, why);
    return status == CAIRN_OK ? put_judge_payload(header, out, why) : status;
}

static uint8_t *buffer_of(const struct shard_job *job, const struct chunk_put *put)
{
    return job->puts.arena.base + (size_t)(put - job->puts.list) * job->puts.bytes;
}

/* Closes the buffers if they are no longer needed, because the initial state is complete, no write
 * is open, and nothing is being received into the buffers. */
static void close_buffers(struct shard_job *job)
{
    if (job->state == CAIRN_JOB_INITIALIZING || job->puts.write != NULL) return;
    for (uint32_t i = 0; i < job->puts.max; i++) {
        if (job->puts.list[i].job != NULL) return;
    }
    arena_release(job->shard, &job->puts.arena);
}

/* Opens the buffers again for a write. CAIRN_ERR_NO_MEMORY. */
static cairn_status put_open_buffers(struct shard_job *job, struct sentence *why)
{
    // the budget counts the buffers from the time when the job was made
    if (job->puts.arena.base != NULL) return CAIRN_OK;
    return arena_open_scratch("puts", (uint64_t)job->puts.max * job->puts.bytes, &job->puts.arena,
                              why);
}

static void acknowledge(struct shard_member *member, const struct chunk_header *header)
{
    struct chunk_header ack = *header;
    ack.kind = CAIRN_CHUNK_ACK;
    ack.payload_bytes = ack.checksum = 0;
    member_send(member, &ack);
}

static void *state_of(const struct shard_job *job, const struct chunk_put *put)
{
    return planes_at(&job->planes, put->header.plane, job->view->table.extent_of[put->chunk],
                     put->place.local_elem);
}

#define MOMENTS                                                                   \
    (CAIRN_PUT_HAS(CAIRN_PLANE_EXP_AVG) | CAIRN_PUT_HAS(CAIRN_PLANE_EXP_AVG_SQ) | \
     CAIRN_PUT_HAS(CAIRN_PLANE_EMA))

/* Makes the moments count that this member puts. If another member's moments counted before, they
 * are now stale. */
static void count_moments(struct shard_job *job, uint64_t member)
{
    if (job->puts.moments_of == member) return;
    job->puts.moments_of = member;
    for (uint64_t c = 0; c < job->view->table.map.chunk_count; c++) {
        const unsigned stale = job->puts.have[c] & MOMENTS;
        job->puts.have[c] = (uint16_t)((job->puts.have[c] ^ stale) | stale
                                                                         << CAIRN_PUT_STALE_SHIFT);
    }
}

static void note_put(struct shard_job *job, const struct chunk_put *put)
{
    uint16_t *have = &job->puts.have[put->chunk];
    const unsigned plane = put->header.plane;
    if (plane == CAIRN_PLANE_PARAM) {
        *have = (uint16_t)(*have | CAIRN_PUT_HAS(plane));
        return;
    }
    count_moments(job, put->header.member);
    *have = (uint16_t)((*have & ~CAIRN_PUT_STALE(plane)) | CAIRN_PUT_HAS(plane));
}

/* Judges the second seal of a job, which is needed if another shard's part was missing at the first
 * seal. The moments of the first seal are in the state already. So the member whose moments count
 * now must have put the same moments, else CAIRN_ERR_EXISTS. */
static cairn_status judge_again(const struct shard_job *job, struct sentence *why)
{
    uint64_t c = 0;
    while (c < job->view->table.map.chunk_count &&
           (job->puts.have[c] & MOMENTS << CAIRN_PUT_STALE_SHIFT) == 0)
        c++;
    if (c == job->view->table.map.chunk_count) return CAIRN_OK;
    const uint32_t tensor = job->view->table.map.extents[job->view->table.extent_of[c]].tensor;
    return fail_with(
        why, CAIRN_ERR_EXISTS,
        "shard %s has its initial state already, with moments of %s: put them, too, or "
        "drop the job and begin anew",
        job->shard->name, job->spec.tensors[tensor].name);
}

/* Returns CAIRN_OK if every chunk was put. On CAIRN_ERR_NOT_READY `why` names the tensors that are
 * missing. */
static cairn_status puts_are_whole(const struct shard_job *job, struct sentence *why)
{
    size_t missing = 0;
    uint32_t last = UINT32_MAX;
    struct sentence names = { "" };
    for (uint64_t c = 0; c < job->view->table.map.chunk_count; c++) {
        const uint32_t tensor = job->view->table.map.extents[job->view->table.extent_of[c]].tensor;
        const bool is_put = (job->puts.have[c] & CAIRN_PUT_HAS(CAIRN_PLANE_PARAM)) != 0;
        if (tensor == last || is_put || tiles_put_whole(job, c)) continue;
        last = tensor;
        if (++missing <= 5)
            sentence_add(&names, "%s%s", missing > 1 ? ", " : "", job->spec.tensors[tensor].name);
    }
    if (missing == 0) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NOT_READY,
                     "shard %s has no whole initial state of %zu tensors: %s%s; put them first",
                     job->shard->name, missing, names.text, missing > 5 ? ", ..." : "");
}

cairn_status put_judge_seal(struct shard_job *job, uint64_t moments_of, struct sentence *why)
{
    const bool is_put = job->state == CAIRN_JOB_INITIALIZING,
               serves = job->state == CAIRN_JOB_SERVING;
    cairn_status status = CAIRN_OK;
    if (job->load.at_work != NULL && job->load.at_work->puts_follow)
        status = fail_with(why, CAIRN_ERR_NOT_READY, "its initial state is being made");
    if (is_put) status = puts_are_whole(job, why);
    // If the seal is refused, the member's moments do not count yet, because another member may be
    // putting its own.
    if (status == CAIRN_OK && (is_put || serves)) count_moments(job, moments_of);
    return serves ? judge_again(job, why) : status;
}

const struct shard_module put_module = { .on = { [SHARD_JOB_FREED] = write_close } };

/* True if a sealed chunk is put again with the same values; then the chunk counts as put. A member
 * puts chunks again if another shard's part was missing after this shard's part had been sealed.
 * Whether the values are the same is judged by the checksum of the whole chunk. */
static bool is_sealed_alike(const struct shard_member *member, const struct chunk_header *header)
{
    struct shard_job *job = member->job;
    struct chunk_put put = { .header = *header };
    if (job->state != CAIRN_JOB_SERVING || header->round != 0 ||
        step_version(job->collector.step).step != job->base_step ||
        header->tile != CAIRN_TILE_WHOLE || !may_put(member, header->plane) ||
        put_judge_chunk(job, header, &put, NULL) != CAIRN_OK ||
        put_judge_plane(job, header, &put, NULL) != CAIRN_OK)
        return false;
    const size_t bytes = (size_t)put.place.elem_count * dtype_size(header->dtype);
    if (header->payload_bytes != bytes) return false;
    struct works *works = compute_loop(job->compute);
    const void *had = works_get(works, state_of(job, &put), bytes);
    const bool is_alike = header->checksum == chunk_checksum(had, bytes);
    if (works_run(works, NULL) != CAIRN_OK || !is_alike) return false;
    note_put(job, &put);
    return true;
}

/* Keeps the values that were put. The values are kept in the state or, if they belong to a write,
 * in separate memory. */
static cairn_status keep_put(struct chunk_put *put, struct sentence *why)
{
    struct shard_job *job = put->job;
    struct works *works = compute_loop(job->compute);
    const uint8_t *bytes = buffer_of(job, put);
    if (job->state == CAIRN_JOB_SERVING) return write_take(job, put, bytes, why);
    if (put->piece.count == put->place.elem_count) {
        works_copy(works, state_of(job, put), bytes, (size_t)put->header.payload_bytes);
        note_put(job, put);
    } else {
        tiles_put(job, put->chunk, &put->piece, &put->place, (const float *)bytes);
    }
    const cairn_status status = works_run(works, why);
    (void)shard_job_failed(job, status, why);
    return status;
}

static void bytes_put(struct shard_job *job, uint64_t member, uint64_t bytes)
{
    struct shard_member *m = member_find(job, member);
    job->shard->stats.pushed_bytes += bytes;
    job->bytes.put += bytes;
    if (m != NULL) m->bytes.put += bytes;
}

/* Keeps a payload that has been received, if it is still wanted. */
static void finish_put(struct chunk_put *put, struct shard_member *member)
{
    struct shard_job *job = put->job;
    struct sentence why;
    const size_t bytes = (size_t)put->header.payload_bytes;
    if (job->state != CAIRN_JOB_INITIALIZING && !write_is(job, &put->header)) {
        sentence_set(&why, "its initial state is complete, or the write is over");
        member_refuse_why(member, &put->header, CAIRN_ERR_STALE, why.text);
        return;
    }
    if (chunk_checksum(buffer_of(job, put), bytes) != put->header.checksum) {
        sentence_set(&why, "its checksum does not match");
        member_refuse_why(member, &put->header, CAIRN_ERR_CHECKSUM, why.text);
        return;
    }
    const cairn_status status = keep_put(put, &why);
    if (status != CAIRN_OK) {
        member_refuse_why(member, &put->header, status, why.text);
        return;
    }
    bytes_put(job, put->header.member, bytes);
    acknowledge(member, &put->header);
}

static void on_received(void *arg, cairn_status status)
{
    struct chunk_put *put = arg;
    struct shard_job *job = put->job;
    struct shard_member *member = member_find(job, put->header.member);
    if (status == CAIRN_OK && member != NULL) finish_put(put, member);
    put->job = NULL;
    close_buffers(job);
    shard_job_settle(job);
    shard_job_idle(job);
}

static struct chunk_put *find_free(struct shard_job *job)
{
    for (uint32_t i = 0; i < job->puts.max; i++) {
        if (job->puts.list[i].job == NULL) return &job->puts.list[i];
    }
    return NULL;
}

void put_on_message(struct shard_member *member, const struct chunk_header *header,
                    struct fabric_message *message)
{
    struct shard_job *job = member->job;
    struct sentence why;
    struct chunk_put judged = { .job = job, .header = *header };
    if (is_sealed_alike(member, header)) {
        acknowledge(member, header);
        fabric_drop(message);
        return;
    }
    struct chunk_put *put = find_free(job);
    cairn_status status = judge_put(member, header, &judged, &why);
    if (status == CAIRN_OK && put == NULL)
        status = fail_with(&why, CAIRN_ERR_BUSY, "%u puts are being received", job->puts.max);
    if (status == CAIRN_OK) {
        status = fabric_receive(message, buffer_of(job, put), job->puts.bytes, on_received, put);
        if (status != CAIRN_OK)
            status = fail_with(&why, CAIRN_ERR_BUSY, "out of memory to receive it");
    }
    if (status != CAIRN_OK) {
        member_refuse_why(member, header, status, why.text);
        fabric_drop(message);
        return;
    }
    *put = judged;
    shard_job_busy(job);
}

void job_puts_end(struct shard_job *job)
{
    close_buffers(job);
}

/* ==== write ==== */

/* A write changes state at a step boundary. In a round that is opened for the write, a worker puts
 * chunks of planes, or boxes of chunks. Each such chunk is kept in separate memory. If a box is
 * put, the rest of its chunk is copied from the state. All chunks take effect together by the
 * decision WRITE; a write that ends otherwise is forgotten. Published copies that readers have do
 * not change, because the new values appear in the next version. */

struct write {
    uint64_t round, member;
    uint64_t budget_bytes;
    bool has_param;
    /* owned: [map.chunk_count][CAIRN_PLANE_COUNT] the new values; NULL: nothing was put */
    uint8_t *staged[];
};

static uint8_t **staged_of(struct write *write, uint64_t chunk, int plane)
{
    return &write->staged[chunk * CAIRN_PLANE_COUNT + (unsigned)plane];
}

void write_close(struct shard_job *job)
{
    struct write *write = job->puts.write;
    if (write == NULL) return;
    job->puts.write = NULL;
    for (uint64_t c = 0; c < job->view->table.map.chunk_count; c++)
        for (int p = 0; p < CAIRN_PLANE_COUNT; p++) free(*staged_of(write, c, p));
    shard_job_give(job, &job->memory.staging, write->budget_bytes);
    free(write);
    job_puts_end(job);
}

void write_open(struct shard_job *job, uint64_t round, uint64_t member)
{
    struct sentence why;
    const size_t count = (size_t)job->view->table.map.chunk_count * CAIRN_PLANE_COUNT;
    const size_t bytes = sizeof(struct write) + count * sizeof(uint8_t *);
    write_close(job);
    struct write *write = NULL;
    if (put_open_buffers(job, &why) == CAIRN_OK)
        write = counted_malloc(job, &job->memory.staging, bytes, "a write", &why);
    if (write == NULL) {
        log_warn("job %s: no write here: %s", job->spec.name, why.text);
        return; // the write's puts are refused, so the worker gives the write up
    }
    memset(write, 0, bytes);
    write->round = round;
    write->member = member;
    write->budget_bytes = bytes;
    job->puts.write = write;
}

/* Judges a PUT to a job that serves, without side effects. Sets out->chunk, out->place and
 * out->piece. If the payload has a box, the piece is the whole chunk. */
static cairn_status write_judge(const struct shard_member *member,
                                const struct chunk_header *header, struct chunk_put *out,
                                struct sentence *why)
{
    const struct shard_job *job = member->job;
    const bool open = write_is(job, header) &&
                      step_phase_of(job->collector.step) == CAIRN_STEP_COLLECTING;
    // The writer may know of its write before this shard does. Then the writer has to try again.
    if (!open && header->round > step_round_seen(job->collector.step) &&
        header->round > job->kept.over)
        return fail_with(why, CAIRN_ERR_BUSY, "a write of that round has not begun here");
    if (!open) return fail_with(why, CAIRN_ERR_STALE, "no write of this round is open");
    // If a box is put, the rest of the chunk is copied from the state, which has not arrived yet.
    if (header->tile == CAIRN_TILE_BOX && job->move.now != NULL && job->move.now->receiver != NULL)
        return fail_with(why, CAIRN_ERR_BUSY, "state comes to this shard: wait for it");
    CAIRN_TRY(put_judge_chunk(job, header, out, why));
    CAIRN_TRY(put_judge_plane(job, header, out, why));
    out->piece = (struct chunk_piece) { .count = out->place.elem_count };
    // the length of the payload depends on the box: read_box
    if (header->tile == CAIRN_TILE_BOX) return CAIRN_OK;
    return put_judge_payload(header, out, why);
}

/* True if the message belongs to the open write. */
static bool write_is(const struct shard_job *job, const struct chunk_header *header)
{
    return job->puts.write != NULL && job->puts.write->round == header->round &&
           job->puts.write->member == header->member;
}

/* Copies the state of a chunk to `to`. The state does not change meanwhile, because the open round
 * is that of the write. */
static cairn_status copy_state(struct shard_job *job, const struct chunk_put *put, uint32_t extent,
                               uint8_t *to, size_t byte_count, struct sentence *why)
{
    struct works *works = compute_loop(job->compute);
    works_copy(works, to, planes_at(&job->planes, put->header.plane, extent, put->place.local_elem),
               byte_count);
    const cairn_status status = works_run(works, why);
    (void)shard_job_failed(job, status, why);
    return status;
}

/* Finds the memory in which the write keeps a plane of the chunk, or takes such memory. New memory
 * is first filled with the values of the state, unless the whole chunk is put. */
static cairn_status stage(struct shard_job *job, const struct chunk_put *put, uint8_t **out,
                          struct sentence *why)
{
    const bool is_whole = put->header.tile != CAIRN_TILE_BOX;
    struct write *write = job->puts.write;
    const uint32_t extent = job->view->table.extent_of[put->chunk];
    uint8_t **staged = staged_of(write, put->chunk, put->header.plane);
    const size_t byte_count = (size_t)put->place.elem_count * dtype_size(put->header.dtype);
    if (*staged == NULL) {
        uint8_t *bytes = counted_malloc(job, &job->memory.staging, byte_count, "a write", why);
        if (bytes == NULL) return CAIRN_ERR_NO_MEMORY;
        const cairn_status status = is_whole ? CAIRN_OK
                                             : copy_state(job, put, extent, bytes, byte_count, why);
        if (status != CAIRN_OK) {
            counted_free(job, &job->memory.staging, bytes, byte_count);
            return status;
        }
        write->budget_bytes += byte_count;
        write->has_param |= put->header.plane == CAIRN_PLANE_PARAM;
        *staged = bytes;
    }
    *out = *staged;
    return CAIRN_OK;
}

/* Reads the box that precedes the elements in the payload. *head_out is the size of the encoded box
 * in bytes. */
static cairn_status read_box(const struct shard_job *job, const struct chunk_put *put,
                             const uint8_t *bytes, struct cairn_box *out, size_t *head_out,
                             struct sentence *why)
{
    const struct shape *shape = &job->spec.tensors[put->header.tensor].shape;
    const size_t head = 4 + 16 * (size_t)shape->rank, payload = (size_t)put->header.payload_bytes;
    struct cairn_box box;
    if (payload <= head || box_decode(bytes, head, &box) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_MALFORMED, "tensor %u: no box before its elements",
                         put->header.tensor);
    if (box_check(&box, shape, why) != CAIRN_OK) return CAIRN_ERR_MALFORMED;
    const uint64_t first = put->place.first_elem;
    const uint64_t count = box_before(&box, shape, first + put->place.elem_count) -
                           box_before(&box, shape, first);
    if (payload - head != count * dtype_size(put->header.dtype))
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "tensor %u: %zu bytes of elements, its box has %" PRIu64 " there",
                         put->header.tensor, payload - head, count);
    *out = box;
    *head_out = head;
    return CAIRN_OK;
}

static cairn_status take_box(struct shard_job *job, const struct chunk_put *put,
                             const uint8_t *bytes, struct sentence *why)
{
    struct cairn_box box;
    size_t head = 0;
    const size_t elem_bytes = dtype_size(put->header.dtype);
    uint8_t *staged;
    cairn_status status = read_box(job, put, bytes, &box, &head, why);
    if (status == CAIRN_OK) status = stage(job, put, &staged, why);
    if (status != CAIRN_OK) return status;
    struct box_runs runs;
    uint64_t elem, box_elem, run;
    const uint8_t *from = bytes + head;
    box_runs_begin(&runs, &box, &job->spec.tensors[put->header.tensor].shape, put->place.first_elem,
                   put->place.elem_count);
    for (; box_runs_next(&runs, &elem, &box_elem, &run); from += run * elem_bytes)
        memcpy(staged + (elem - put->place.first_elem) * elem_bytes, from,
               (size_t)run * elem_bytes);
    return CAIRN_OK;
}

/* Keeps a chunk, or a box of a chunk, in the memory of the write. CAIRN_ERR_NO_MEMORY,
 * CAIRN_ERR_MALFORMED. */
static cairn_status write_take(struct shard_job *job, const struct chunk_put *put,
                               const uint8_t *bytes, struct sentence *why)
{
    uint8_t *staged;
    if (put->header.tile == CAIRN_TILE_BOX) return take_box(job, put, bytes, why);
    const cairn_status status = stage(job, put, &staged, why);
    if (status == CAIRN_OK) memcpy(staged, bytes, (size_t)put->header.payload_bytes);
    return status;
}

bool write_has(const struct shard_job *job, uint64_t chunk)
{
    for (int p = 0; job->puts.write != NULL && p < CAIRN_PLANE_COUNT; p++)
        if (*staged_of(job->puts.write, chunk, p) != NULL) return true;
    return false;
}

const void *write_apply(struct works *works, const struct shard_job *job, uint64_t chunk,
                        const struct chunk_place *place)
{
    const uint32_t extent = job->view->table.extent_of[chunk];
    for (enum plane p = 0; job->puts.write != NULL && p < CAIRN_PLANE_COUNT; p++) {
        const uint8_t *staged = *staged_of(job->puts.write, chunk, (int)p);
        if (staged != NULL)
            works_copy(works, planes_at(&job->planes, p, extent, place->local_elem), staged,
                       (size_t)form_bytes(&job->view->forms[extent], p, place->elem_count));
    }
    return job->puts.write == NULL ? NULL : *staged_of(job->puts.write, chunk, CAIRN_PLANE_PARAM);
}

bool write_has_param(const struct shard_job *job)
{
    return job->puts.write != NULL && job->puts.write->has_param;
}

void write_resolved(struct shard_job *job, uint64_t round)
{
    if (job->puts.write != NULL && !job->pass.updating && round != job->puts.write->round)
        write_close(job);
}

/* ==== origin ==== */

/* Initial state that nobody puts comes from two sources. The first source is the weights that the
 * job names (init_from). Each shard reads its own ranges of the weights on the files thread. The
 * second source is the initializers of tensors that the weights do not have. Works fill the planes
 * by these initializers, with one item for each chunk. State that comes from neither source must be
 * put (above). */

#define PIECE_ELEMS ((uint64_t)1 << 20)

struct weights_loader {
    struct loader loader; /* first */
    struct sentence extra;
    struct odd {
        uint32_t tensor; /* the tensor that is being counted */
        /* count: how many elements of that tensor are NaN or infinite; first_elem: the first of
         * them */
        uint64_t count, first_elem;
        size_t tensor_count;   /* how many tensors had such elements */
        struct sentence lines; /* a line about each of the first of these tensors */
    } odd;
};

/* ---- weights, on the files thread ---- */

/* Ends the counting in a tensor, and adds the line about it. */
static void end_odd(struct weights_loader *origin)
{
    struct odd *odd = &origin->odd;
    if (odd->count > 0 && ++odd->tensor_count <= CAIRN_WEIGHTS_NAMES_MAX)
        sentence_add(&odd->lines, "\n%s: %" PRIu64 ", the first is element %" PRIu64,
                     origin->loader.job->spec.tensors[odd->tensor].name, odd->count,
                     odd->first_elem);
    odd->count = 0;
}

static bool is_odd(float value)
{
    return (f32_bits(value) & 0x7f800000u) == 0x7f800000u;
}

/* Counts elements that are NaN or infinite. Buffers are left out, because a mask may contain
 * infinities. */
static void count_odd(struct weights_loader *origin, uint32_t tensor, uint64_t first_elem,
                      const float *values, uint64_t elems)
{
    struct odd *odd = &origin->odd;
    const struct job_spec_data *spec = &origin->loader.job->spec;
    uint64_t count = 0;
    if (spec->init_nonfinite_ok || spec->tensors[tensor].kind == CAIRN_BUFFER) return;
    if (tensor != odd->tensor) end_odd(origin);
    odd->tensor = tensor;
    for (uint64_t i = 0; i < elems; i++) count += is_odd(values[i]);
    if (odd->count == 0 && count > 0) {
        odd->first_elem = first_elem;
        while (!is_odd(*values++)) odd->first_elem++;
    }
    odd->count += count;
}

/* Refuses weights that have elements that are NaN or infinite. Each shard reports such elements in
 * its own ranges. */
static cairn_status refuse_odd(struct weights_loader *origin)
{
    const struct odd *odd = &origin->odd;
    if (odd->tensor_count == 0) return CAIRN_OK;
    sentence_set(&origin->loader.why,
                 "%s has elements that are NaN or infinite as fp32, in %zu tensors of what "
                 "shard %s reads; correct it, or say init_nonfinite_ok:%s",
                 origin->loader.job->spec.init_from, odd->tensor_count,
                 origin->loader.job->shard->name, odd->lines.text);
    if (odd->tensor_count > CAIRN_WEIGHTS_NAMES_MAX)
        sentence_add(&origin->loader.why, "\nand %zu more",
                     odd->tensor_count - CAIRN_WEIGHTS_NAMES_MAX);
    return CAIRN_ERR_NONFINITE;
}

static cairn_status read_extent(struct weights_loader *origin, struct weights *weights,
                                const struct weight *weight, const struct local_extent *extent)
{
    const struct shard_job *job = origin->loader.job;
    struct works *works = compute_files(job->compute);
    const size_t number = (size_t)(extent - job->view->table.map.extents);
    uint64_t elems;
    for (uint64_t at = 0; at < extent->elem_count; at += elems) {
        elems = planes_dense(&job->planes, number, extent->local_elem + at);
        if (elems > PIECE_ELEMS) elems = PIECE_ELEMS;
        if (atomic_load(&origin->loader.canceled))
            return fail_with(&origin->loader.why, CAIRN_ERR_CANCELED, "the job was dropped");
        float *piece = works_put(
            works, planes_at(&job->planes, CAIRN_PLANE_PARAM, number, extent->local_elem + at),
            (size_t)elems * sizeof *piece);
        cairn_status status = weights_read(weights, weight, extent->first_elem + at, elems, piece,
                                           &origin->loader.why);
        if (status == CAIRN_OK)
            count_odd(origin, extent->tensor, extent->first_elem + at, piece, elems);
        const cairn_status run = works_run(works, &origin->loader.why);
        if (status == CAIRN_OK) status = run;
        if (status != CAIRN_OK) return status;
    }
    for (uint64_t c = 0; c < extent->chunk_count; c++)
        job->puts.have[extent->first_chunk + c] = CAIRN_PUT_HAS(CAIRN_PLANE_PARAM);
    return CAIRN_OK;
}

static cairn_status read_weights(struct weights_loader *origin, struct weights *weights)
{
    const struct shard_job *job = origin->loader.job;
    const struct weight **from = calloc(job->spec.tensor_count + 1, sizeof *from);
    if (from == NULL) return fail_with(&origin->loader.why, CAIRN_ERR_NO_MEMORY, "out of memory");
    cairn_status status = weights_match(weights, &job->spec, job->spec.init_prefix, from,
                                        &origin->extra, &origin->loader.why);
    for (size_t i = 0; status == CAIRN_OK && i < job->view->table.map.extent_count; i++) {
        const struct local_extent *extent = &job->view->table.map.extents[i];
        if (from[extent->tensor] != NULL)
            status = read_extent(origin, weights, from[extent->tensor], extent);
    }
    free(from);
    end_odd(origin);
    return status == CAIRN_OK ? refuse_odd(origin) : status;
}

static void read_files(void *loader)
{
    struct weights_loader *origin = loader;
    const struct shard_job *job = origin->loader.job;
    struct weights weights;
    origin->loader.status = snapshot_weights_open(job->shard->import_folders, job->spec.init_from,
                                                  &weights, &origin->loader.why);
    if (origin->loader.status != CAIRN_OK) return;
    origin->loader.status = read_weights(origin, &weights);
    weights_close(&weights);
}

static void run_files(struct task *task, uint32_t item, uint32_t thread)
{
    struct loader *loader = (struct loader *)task;
    struct confine confine;
    (void)item;
    (void)thread;
    confine_begin(&confine);
    confine_read_each(&confine, loader->job->shard->import_folders);
    loader_read(loader, &confine, read_files);
}

/* ---- initializers, on the compute threads ---- */

static bool describe(struct work_run *run, uint32_t chunk, uint32_t stage, struct works *works)
{
    struct loader *loader = loader_of(run);
    const struct shard_job *job = loader->job;
    const uint32_t tensor = job->view->table.map.extents[job->view->table.extent_of[chunk]].tensor;
    (void)stage;
    if (job->puts.have[chunk] != 0 || atomic_load(&loader->canceled) ||
        job->spec.tensors[tensor].init.kind == CAIRN_INIT_NONE)
        return false;
    load_init_chunk(works, job, chunk);
    job->puts.have[chunk] = CAIRN_PUT_HAS(CAIRN_PLANE_PARAM);
    return false;
}

static void files_done(struct task *task)
{
    struct weights_loader *origin = (struct weights_loader *)task;
    struct shard_job *job = origin->loader.job;
    if (origin->loader.status == CAIRN_OK) {
        if (job->view->table.map.shard == 0 &&
            origin->extra.text[0] != '\0') { // the text is the same on every shard
            log_info("job %s: %s has %s", job->spec.name, job->spec.init_from, origin->extra.text);
        }
        log_info("job %s: loaded %s", job->spec.name, job->spec.init_from);
        loader_fill(&origin->loader, describe, loader_end);
        return;
    }
    if (job->state == CAIRN_JOB_LOADING)
        log_error("job %s: %s", job->spec.name, origin->loader.why.text);
    loader_end(&origin->loader);
}

/* ---- begin ---- */

cairn_status origin_begin(struct shard_job *job, struct sentence *why)
{
    struct weights_loader *origin = calloc(1, sizeof *origin);
    if (origin == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to make initial state");
    origin->loader.puts_follow = true;
    loader_begin(&origin->loader, job);
    if (job->spec.init_from == NULL) {
        loader_fill(&origin->loader, describe, loader_end);
        return CAIRN_OK;
    }
    origin->loader.task = (struct task) { .run = run_files, .done = files_done, .item_count = 1 };
    pool_submit(job->shard->files, &origin->loader.task);
    return CAIRN_OK;
}
