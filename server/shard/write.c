/* Writes at a step boundary: in a round of its own a worker puts chunks of planes, or boxes of them. They are
 * kept beside the state, each chunk in memory of its own which begins as the state is, and take effect
 * together by the decision WRITE; a write that ends otherwise is forgotten. What readers have is never
 * touched: the new values go with the next version. */
#include <stdlib.h>
#include <string.h>

#include "server/shard/shard.h"

enum { PLANES = 3 };

struct cairn_write {
    uint64_t round, member;
    uint64_t budget_bytes;
    uint8_t **staged[PLANES]; /* owned: [map.chunk_count] each; NULL: as it was */
};

static int plane_index(uint8_t plane)
{
    return plane == CAIRN_PLANE_PARAM        ? 0
           : plane == CAIRN_PLANE_EXP_AVG    ? 1
           : plane == CAIRN_PLANE_EXP_AVG_SQ ? 2
                                             : -1;
}

void cairn_write_close(struct cairn_shard_job *job)
{
    struct cairn_write *write = job->write;
    if (write == NULL) return;
    job->write = NULL;
    for (int p = 0; p < PLANES; p++) {
        for (uint64_t c = 0; write->staged[p] != NULL && c < job->map.chunk_count; c++)
            free(write->staged[p][c]);
        free(write->staged[p]);
    }
    cairn_shard_job_give(job, &job->memory.staging, write->budget_bytes);
    free(write);
    cairn_put_end(job);
}

void cairn_write_open(struct cairn_shard_job *job, uint64_t round, uint64_t member)
{
    struct cairn_sentence why;
    const size_t count = (size_t)job->map.chunk_count + 1;
    const uint64_t bytes = sizeof(struct cairn_write) + PLANES * count * sizeof(uint8_t *);
    cairn_write_close(job);
    cairn_status status = cairn_put_open_buffers(job, &why);
    if (status == CAIRN_OK)
        status = cairn_shard_job_take(job, &job->memory.staging, bytes, "a write", &why);
    if (status != CAIRN_OK) {
        cairn_log_warn("job %s: no write here: %s", job->spec.name, why.text);
        return; // its puts are refused, and so it is given up
    }
    struct cairn_write *write = calloc(1, sizeof *write);
    if (write == NULL) {
        cairn_shard_job_give(job, &job->memory.staging, bytes);
        return;
    }
    *write = (struct cairn_write) { .round = round, .member = member, .budget_bytes = bytes };
    for (int p = 0; p < PLANES; p++) write->staged[p] = calloc(count, sizeof(uint8_t *));
    job->write = write;
    if (write->staged[0] == NULL || write->staged[1] == NULL || write->staged[2] == NULL)
        cairn_write_close(job);
}

cairn_status cairn_write_judge(const struct cairn_member *member,
                               const struct cairn_chunk_header *header, struct cairn_put *out,
                               struct cairn_sentence *why)
{
    const struct cairn_shard_job *job = member->job;
    const bool open = cairn_write_is(job, header) &&
                      cairn_step_phase_of(job->step) == CAIRN_STEP_COLLECTING;
    // The writer may hear of its write before this shard does: it asks again.
    if (!open && header->round > cairn_step_round_seen(job->step))
        return cairn_fail(why, CAIRN_ERR_BUSY, "a write of that round has not begun here");
    if (!open) return cairn_fail(why, CAIRN_ERR_STALE, "no write of this round is open");
    cairn_status status = cairn_put_judge_chunk(job, header, out, why);
    if (status != CAIRN_OK) return status;
    const cairn_dtype dtype = cairn_put_dtype(job, out);
    if (plane_index(header->plane) < 0 || header->dtype != dtype) {
        return cairn_fail(why, CAIRN_ERR_MALFORMED,
                          "tensor %s, plane %u in %s: param and moments are written, in %s",
                          job->spec.tensors[header->tensor].name, header->plane,
                          cairn_dtype_name(header->dtype), cairn_dtype_name((int)dtype));
    }
    if (!cairn_part_keeps(&job->parts[job->chunk_part[out->chunk]], header->plane)) {
        return cairn_fail(why, CAIRN_ERR_NOT_FOUND, "tensor %s keeps no %s",
                          job->spec.tensors[header->tensor].name, cairn_plane_name(header->plane));
    }
    out->piece = (struct cairn_piece) { .count = out->place.elem_count };
    if (header->tile == CAIRN_TILE_BOX) return CAIRN_OK; // the box says how long it is
    return cairn_put_judge_payload(header, out, why);
}

bool cairn_write_is(const struct cairn_shard_job *job, const struct cairn_chunk_header *header)
{
    return job->write != NULL && job->write->round == header->round &&
           job->write->member == header->member;
}

static const struct cairn_arena *arena_of(const struct cairn_shard_job *job, int plane)
{
    const struct cairn_arena *const arenas[PLANES] = { &job->param, &job->exp_avg,
                                                       &job->exp_avg_sq };
    return arenas[plane];
}

/* Where the chunk of a plane is kept, made with what the state has. */
static cairn_status stage(struct cairn_shard_job *job, const struct cairn_put *put, uint8_t **out,
                          struct cairn_sentence *why)
{
    struct cairn_write *write = job->write;
    const int plane = plane_index(put->header.plane);
    const uint32_t part = job->chunk_part[put->chunk];
    uint8_t **staged = &write->staged[plane][put->chunk];
    const size_t byte_count = (size_t)put->place.elem_count * cairn_dtype_bytes(put->header.dtype);
    if (*staged == NULL) {
        cairn_status status = cairn_shard_job_take(job, &job->memory.staging, byte_count, "a write",
                                                   why);
        if (status != CAIRN_OK) return status;
        *staged = malloc(byte_count + 1);
        if (*staged == NULL) {
            cairn_shard_job_give(job, &job->memory.staging, byte_count);
            return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a write");
        }
        write->budget_bytes += byte_count;
        // No round updates it meanwhile: this one is the write.
        memcpy(*staged,
               arena_of(job, plane)->base +
                   cairn_shard_job_plane_byte(job, part, put->place.local_elem),
               byte_count);
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

void cairn_write_apply(const struct cairn_shard_job *job, uint64_t chunk,
                       const struct cairn_chunk_place *place)
{
    const uint32_t part = job->chunk_part[chunk];
    for (int p = 0; job->write != NULL && p < PLANES; p++) {
        const uint8_t *staged = job->write->staged[p][chunk];
        if (staged != NULL)
            memcpy(arena_of(job, p)->base +
                       cairn_shard_job_plane_byte(job, part, place->local_elem),
                   staged,
                   (size_t)place->elem_count * cairn_dtype_bytes((int)job->parts[part].master));
    }
}

void cairn_write_resolved(struct cairn_shard_job *job, uint64_t round)
{
    if (job->write != NULL && !job->updating && round != job->write->round) cairn_write_close(job);
}
