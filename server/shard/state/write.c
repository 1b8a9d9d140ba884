/* Writes at a step boundary: in a round of its own a worker puts chunks of planes, or boxes of
 * them. They are kept beside the state, each chunk in memory of its own, into which boxes are laid
 * over what the state has. They take effect together by the decision WRITE; a write that ends
 * otherwise is forgotten. Copies that readers have are never touched: the new values go with the
 * next version. */
#include <stdlib.h>
#include <string.h>

#include "server/shard/shard.h"
#include "server/shard/state/write.h"

struct cairn_write {
    uint64_t round, member;
    uint64_t budget_bytes;
    bool has_param;
    uint8_t *staged[]; /* owned: [map.chunk_count][CAIRN_PLANE_COUNT]; NULL: as it was */
};

static uint8_t **staged_of(struct cairn_write *write, uint64_t chunk, int plane)
{
    return &write->staged[chunk * CAIRN_PLANE_COUNT + (unsigned)plane];
}

void cairn_write_close(struct cairn_shard_job *job)
{
    struct cairn_write *write = job->puts.write;
    if (write == NULL) return;
    job->puts.write = NULL;
    for (uint64_t c = 0; c < job->view->table.map.chunk_count; c++)
        for (int p = 0; p < CAIRN_PLANE_COUNT; p++) free(*staged_of(write, c, p));
    cairn_shard_job_give(job, &job->memory.staging, write->budget_bytes);
    free(write);
    cairn_put_end(job);
}

void cairn_write_open(struct cairn_shard_job *job, uint64_t round, uint64_t member)
{
    struct cairn_sentence why;
    const size_t count = (size_t)job->view->table.map.chunk_count * CAIRN_PLANE_COUNT;
    const size_t bytes = sizeof(struct cairn_write) + count * sizeof(uint8_t *);
    cairn_write_close(job);
    cairn_status status = cairn_put_open_buffers(job, &why);
    if (status == CAIRN_OK)
        status = cairn_shard_job_take(job, &job->memory.staging, bytes, "a write", &why);
    if (status != CAIRN_OK) {
        cairn_log_warn("job %s: no write here: %s", job->spec.name, why.text);
        return; // its puts are refused, and so it is given up
    }
    struct cairn_write *write = calloc(1, bytes);
    if (write == NULL) {
        cairn_shard_job_give(job, &job->memory.staging, bytes);
        return;
    }
    write->round = round;
    write->member = member;
    write->budget_bytes = bytes;
    job->puts.write = write;
}

cairn_status cairn_write_judge(const struct cairn_member *member,
                               const struct cairn_chunk_header *header, struct cairn_put *out,
                               struct cairn_sentence *why)
{
    const struct cairn_shard_job *job = member->job;
    const bool open = cairn_write_is(job, header) &&
                      cairn_step_phase_of(job->collector.step) == CAIRN_STEP_COLLECTING;
    // The writer may hear of its write before this shard does: it asks again.
    if (!open && header->round > cairn_step_round_seen(job->collector.step))
        return cairn_fail(why, CAIRN_ERR_BUSY, "a write of that round has not begun here");
    if (!open) return cairn_fail(why, CAIRN_ERR_STALE, "no write of this round is open");
    // A chunk of which a box is put begins as the state is, and that state is not here yet.
    if (header->tile == CAIRN_TILE_BOX && job->move.now != NULL && job->move.now->take != NULL)
        return cairn_fail(why, CAIRN_ERR_BUSY, "state comes to this shard: wait for it");
    cairn_status status = cairn_put_judge_chunk(job, header, out, why);
    if (status != CAIRN_OK) return status;
    status = cairn_put_judge_plane(job, header, out, why);
    if (status != CAIRN_OK) return status;
    out->piece = (struct cairn_piece) { .count = out->place.elem_count };
    if (header->tile == CAIRN_TILE_BOX) return CAIRN_OK; // the box says how long it is
    return cairn_put_judge_payload(header, out, why);
}

bool cairn_write_is(const struct cairn_shard_job *job, const struct cairn_chunk_header *header)
{
    return job->puts.write != NULL && job->puts.write->round == header->round &&
           job->puts.write->member == header->member;
}

/* No round updates it meanwhile: this one is the write. */
static cairn_status copy_state(struct cairn_shard_job *job, const struct cairn_put *put,
                               uint32_t extent, uint8_t *to, size_t byte_count,
                               struct cairn_sentence *why)
{
    struct cairn_works *works = cairn_compute_loop(job->compute);
    cairn_works_copy(
        works, to, cairn_planes_at(&job->planes, put->header.plane, extent, put->place.local_elem),
        byte_count);
    const cairn_status status = cairn_works_run(works, why);
    (void)cairn_shard_job_failed(job, status, why);
    return status;
}

/* Where the chunk of a plane is kept; made with what the state has, unless the put is all of it. */
static cairn_status stage(struct cairn_shard_job *job, const struct cairn_put *put, uint8_t **out,
                          struct cairn_sentence *why)
{
    const bool is_whole = put->header.tile != CAIRN_TILE_BOX;
    struct cairn_write *write = job->puts.write;
    const uint32_t extent = job->view->table.extent_of[put->chunk];
    uint8_t **staged = staged_of(write, put->chunk, put->header.plane);
    const size_t byte_count = (size_t)put->place.elem_count * cairn_dtype_bytes(put->header.dtype);
    if (*staged == NULL) {
        cairn_status status = cairn_shard_job_take(job, &job->memory.staging, byte_count, "a write",
                                                   why);
        if (status != CAIRN_OK) return status;
        uint8_t *bytes = malloc(byte_count + 1);
        status = bytes == NULL ? cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a write")
                 : is_whole    ? CAIRN_OK
                               : copy_state(job, put, extent, bytes, byte_count, why);
        if (status != CAIRN_OK) {
            cairn_shard_job_give(job, &job->memory.staging, byte_count);
            free(bytes);
            return status;
        }
        write->budget_bytes += byte_count;
        write->has_param |= put->header.plane == CAIRN_PLANE_PARAM;
        *staged = bytes;
    }
    *out = *staged;
    return CAIRN_OK;
}

/* The box before the elements; *head_out is how many bytes it has. */
static cairn_status read_box(const struct cairn_shard_job *job, const struct cairn_put *put,
                             const uint8_t *bytes, struct cairn_box *out, size_t *head_out,
                             struct cairn_sentence *why)
{
    const struct cairn_shape *shape = &job->spec.tensors[put->header.tensor].shape;
    const size_t head = 4 + 16 * (size_t)shape->rank, payload = (size_t)put->header.payload_bytes;
    struct cairn_box box;
    if (payload <= head || cairn_box_decode(bytes, head, &box) != CAIRN_OK)
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "tensor %u: no box before its elements",
                          put->header.tensor);
    if (cairn_box_check(&box, shape, why) != CAIRN_OK) return CAIRN_ERR_MALFORMED;
    const uint64_t first = put->place.first_elem;
    const uint64_t count = cairn_box_before(&box, shape, first + put->place.elem_count) -
                           cairn_box_before(&box, shape, first);
    if (payload - head != count * cairn_dtype_bytes(put->header.dtype))
        return cairn_fail(why, CAIRN_ERR_MALFORMED,
                          "tensor %u: %zu bytes of elements, its box has %llu there",
                          put->header.tensor, payload - head, (unsigned long long)count);
    *out = box;
    *head_out = head;
    return CAIRN_OK;
}

static cairn_status take_box(struct cairn_shard_job *job, const struct cairn_put *put,
                             const uint8_t *bytes, struct cairn_sentence *why)
{
    struct cairn_box box;
    size_t head = 0;
    const size_t elem_bytes = cairn_dtype_bytes(put->header.dtype);
    uint8_t *staged;
    cairn_status status = read_box(job, put, bytes, &box, &head, why);
    if (status == CAIRN_OK) status = stage(job, put, &staged, why);
    if (status != CAIRN_OK) return status;
    struct cairn_box_runs runs;
    uint64_t elem, box_elem, run;
    const uint8_t *from = bytes + head;
    cairn_box_runs_begin(&runs, &box, &job->spec.tensors[put->header.tensor].shape,
                         put->place.first_elem, put->place.elem_count);
    for (; cairn_box_runs_next(&runs, &elem, &box_elem, &run); from += run * elem_bytes)
        memcpy(staged + (elem - put->place.first_elem) * elem_bytes, from,
               (size_t)run * elem_bytes);
    return CAIRN_OK;
}

cairn_status cairn_write_take(struct cairn_shard_job *job, const struct cairn_put *put,
                              const uint8_t *bytes, struct cairn_sentence *why)
{
    uint8_t *staged;
    if (put->header.tile == CAIRN_TILE_BOX) return take_box(job, put, bytes, why);
    const cairn_status status = stage(job, put, &staged, why);
    if (status == CAIRN_OK) memcpy(staged, bytes, (size_t)put->header.payload_bytes);
    return status;
}

bool cairn_write_has(const struct cairn_shard_job *job, uint64_t chunk)
{
    for (int p = 0; job->puts.write != NULL && p < CAIRN_PLANE_COUNT; p++)
        if (*staged_of(job->puts.write, chunk, p) != NULL) return true;
    return false;
}

const void *cairn_write_apply(struct cairn_works *works, const struct cairn_shard_job *job,
                              uint64_t chunk, const struct cairn_chunk_place *place)
{
    const uint32_t extent = job->view->table.extent_of[chunk];
    for (enum cairn_plane p = 0; job->puts.write != NULL && p < CAIRN_PLANE_COUNT; p++) {
        const uint8_t *staged = *staged_of(job->puts.write, chunk, (int)p);
        if (staged != NULL)
            cairn_works_copy(
                works, cairn_planes_at(&job->planes, p, extent, place->local_elem), staged,
                (size_t)cairn_form_bytes(&job->view->forms[extent], p, place->elem_count));
    }
    return job->puts.write == NULL ? NULL : *staged_of(job->puts.write, chunk, CAIRN_PLANE_PARAM);
}

bool cairn_write_has_param(const struct cairn_shard_job *job)
{
    return job->puts.write != NULL && job->puts.write->has_param;
}

void cairn_write_resolved(struct cairn_shard_job *job, uint64_t round)
{
    if (job->puts.write != NULL && !job->pass.updating && round != job->puts.write->round)
        cairn_write_close(job);
}
