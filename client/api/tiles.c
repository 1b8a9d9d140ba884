/* cairn_tiles: the caller's list of boxes becomes a declaration, which is told to the coordinator. */
#include <stdlib.h>

#include "client/api/api.h"
#include "client/ask.h"
#include "client/base/struct.h"
#include "proto/spec/capability.h"

static cairn_status judge_pair(enum cairn_combination_of of, const struct cairn_tensor_spec *tensor)
{
    const struct cairn_refusal *refused = cairn_combination_refused(of, tensor);
    if (refused == NULL) return CAIRN_OK;
    return cairn_client_fail(refused->status, "the tile of tensor %s: %s", tensor->name,
                             refused->why);
}

/* Adds one of the caller's boxes; the whole tensor is what holds without. */
static cairn_status add_tile(const struct job *job, const void *from, struct cairn_tiles *tiles)
{
    struct cairn_tile tile;
    struct cairn_sentence why;
    if (!cairn_struct_take(&tile, sizeof tile, sizeof tile, from) || tile.tensor == NULL)
        return cairn_client_fail(
            CAIRN_ERR_INVALID, "a tile must have its struct_size (%zu) and a tensor", sizeof tile);
    size_t index = cairn_spec_find_tensor(&job->spec, tile.tensor);
    if (index == SIZE_MAX)
        return cairn_client_fail(CAIRN_ERR_NOT_FOUND, "job %s has no tensor %s", job->name,
                                 tile.tensor);
    cairn_status status = judge_pair(CAIRN_COMBINATION_OF_TILED, &job->spec.tensors[index]);
    if (status != CAIRN_OK) return status;
    index = cairn_spec_target(&job->spec, index);
    const struct cairn_shape *shape = &job->spec.tensors[index].shape;
    status = cairn_box_check(&tile.box, shape, &why);
    if (status != CAIRN_OK)
        return cairn_client_fail(status, "tensor %s: %s", tile.tensor, why.text);
    if (cairn_tiles_find(tiles, (uint32_t)index) != NULL)
        return cairn_client_fail(CAIRN_ERR_EXISTS, "tensor %s has a tile already; one box a tensor",
                                 tile.tensor);
    if (cairn_box_is_whole(&tile.box, shape)) return CAIRN_OK;
    status = judge_pair(CAIRN_COMBINATION_OF_CUT, &job->spec.tensors[index]);
    if (status != CAIRN_OK) return status;
    status = cairn_tiles_set(tiles, (uint32_t)index, &tile.box);
    return status == CAIRN_OK ? status : cairn_client_fail(status, "out of memory for the tiles");
}

static cairn_status make_declared(const struct job *job, const struct cairn_tile *tiles,
                                  size_t tile_count, uint32_t world, struct declared **out)
{
    struct declared *declared = calloc(1, sizeof *declared);
    if (declared == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    declared->world = world;
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; status == CAIRN_OK && i < tile_count; i++)
        status = add_tile(job, cairn_struct_at(tiles, i), &declared->tiles);
    if (status == CAIRN_OK) {
        declared->hash = cairn_tiles_hash(&declared->tiles);
        declared->packed = cairn_packed_tiles(&declared->tiles);
        if (declared->packed == NULL)
            status = cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the tiles");
    }
    if (status != CAIRN_OK) {
        cairn_client_tiles_free(declared);
        return status;
    }
    *out = declared;
    return CAIRN_OK;
}

static cairn_status judge(const struct job *job, const struct cairn_tile *tiles, size_t tile_count,
                          uint32_t world, int timeout_ms)
{
    if (job->member.role != CAIRN_WORKER)
        return cairn_client_fail(CAIRN_ERR_REFUSED, "a reader holds no tiles");
    if ((tiles == NULL && tile_count > 0) || timeout_ms < 0)
        return cairn_client_fail(CAIRN_ERR_INVALID, "tiles must be given, timeout_ms be 0 or more");
    if (world > 0 && job->spec.global_batch > 0)
        return cairn_client_fail(
            CAIRN_ERR_REFUSED,
            "job %s has global_batch = %u: its micro-batches are dealt to workers that hold whole "
            "tensors, and with tiles a round is of certain ranks; declare none, or make the job "
            "without global_batch",
            job->name, job->spec.global_batch);
    if (world == 0 && tile_count > 0)
        return cairn_client_fail(
            CAIRN_ERR_INVALID, "world is 0, which says that there are no tiles, and %zu are given",
            tile_count);
    if (world > 0 && world <= job->member.rank)
        return cairn_client_fail(
            CAIRN_ERR_INVALID,
            "world is %u; it counts the ranks 0 to world - 1, and this is rank %u", world,
            job->member.rank);
    return CAIRN_OK;
}

/* One declaration at a time waits; it is the call's until withdraw. Takes it in any case. */
static cairn_status offer(struct job *job, struct declared *declared)
{
    pthread_mutex_lock(&job->session->lock);
    const bool busy = job->tiles.declaring != NULL;
    if (!busy) {
        job->tiles.declaring = declared;
        job->tiles.declaring_holds = false;
    }
    pthread_mutex_unlock(&job->session->lock);
    if (!busy) return CAIRN_OK;
    cairn_client_tiles_free(declared);
    return cairn_client_fail(CAIRN_ERR_BUSY, "another thread declares tiles of job %s", job->name);
}

/* True: it holds. */
static bool withdraw(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    const bool holds = job->tiles.declaring_holds;
    struct declared *unset = holds ? NULL : job->tiles.declaring;
    job->tiles.declaring = NULL;
    pthread_mutex_unlock(&job->session->lock);
    cairn_client_tiles_free(unset);
    return holds;
}

static cairn_status declare(struct job *job, struct declared *declared, uint64_t deadline_ms)
{
    Cairn__TilesDeclare message = cairn_client_tiles_message(declared);
    cairn_status status = offer(job, declared);
    if (status != CAIRN_OK) return status;
    status = cairn_ask(job, CAIRN_MSG_TILES_DECLARE, &message.base, CAIRN_MSG_TILES_SET,
                       deadline_ms, NULL);
    return withdraw(job) ? CAIRN_OK : status; // it may hold just when the time was up
}

cairn_status cairn_tiles(cairn_job *handle, const struct cairn_tile *tiles, size_t tile_count,
                         uint32_t world, int timeout_ms)
{
    const uint64_t deadline_ms = cairn_api_deadline(timeout_ms);
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    struct declared *declared = NULL;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = judge(job, tiles, tile_count, world, timeout_ms);
    if (status == CAIRN_OK) status = make_declared(job, tiles, tile_count, world, &declared);
    if (status == CAIRN_OK) status = declare(job, declared, deadline_ms);
    return cairn_api_leave(handle, status);
}
