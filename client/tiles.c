/* Tiles: what this worker holds of each tensor. The caller's list becomes a declaration; it holds from
 * the coordinator's word that those of all ranks fit together, and is made again whenever the job is
 * attached again. */
#include <stdlib.h>

#include "client/api.h"
#include "client/handle.h"
#include "client/struct.h"

void cairn_client_tiles_free(struct declared *declared)
{
    if (declared == NULL) return;
    cairn_tiles_release(&declared->tiles);
    cairn_packed_release(declared->packed);
    free(declared);
}

bool cairn_client_tiles_hold(const struct job *job)
{
    return job->declared != NULL && job->declared->world > 0;
}

struct piece cairn_client_tiles_own(struct job *job, size_t tensor)
{
    const struct cairn_shape *shape = &job->spec.tensors[tensor].shape;
    struct piece piece = { .box = cairn_box_of_shape(shape),
                           .whole = true,
                           .tile = CAIRN_TILE_WHOLE,
                           .table_hash = CAIRN_TABLE_HASH_WHOLE };
    pthread_mutex_lock(&job->session->lock);
    if (job->declared != NULL) {
        const struct cairn_box *box = cairn_tiles_find(&job->declared->tiles, (uint32_t)tensor);
        piece.table_hash = job->declared->hash;
        if (box != NULL) {
            piece.box = *box;
            piece.whole = false;
            piece.tile = CAIRN_TILE_OWN;
        }
    }
    pthread_mutex_unlock(&job->session->lock);
    return piece;
}

/* ---- loop thread ---- */

static Cairn__TilesDeclare message_of(const struct declared *declared)
{
    Cairn__TilesDeclare message = CAIRN__TILES_DECLARE__INIT;
    message.world = declared->world;
    message.tiles_bytes = declared->packed->size;
    return message;
}

void cairn_client_tiles_again(struct job *job)
{
    const struct declared *declared = job->declared; // changed by this thread only
    if (declared == NULL || declared->world == 0) return;
    Cairn__TilesDeclare message = message_of(declared);
    message.job = job->id;
    job->tiles_request = ++job->session->next_request;
    cairn_control_send(job->session, CAIRN_MSG_TILES_DECLARE, job->tiles_request, &message.base);
    cairn_control_send_pages(job->session, job->tiles_request, CAIRN_PAGE_TILES, declared->packed);
}

/* Is it the reply to the call that waits now? Under the lock. */
static bool is_awaited(const struct job *job, uint32_t request)
{
    const struct ask *ask = job->session->asks;
    while (ask != NULL && (ask->job != job || ask->type != CAIRN_MSG_TILES_DECLARE))
        ask = ask->next;
    return ask != NULL && ask->request == request;
}

void cairn_client_tiles_on_set(struct job *job, uint32_t request)
{
    if (request == job->tiles_request) {
        job->tiles_request = 0;
        return;
    }
    struct declared *former = NULL;
    pthread_mutex_lock(&job->session->lock);
    if (is_awaited(job, request)) {
        former = job->declared;
        job->declared = job->declaring;
        job->declaring_holds = true;
    }
    pthread_mutex_unlock(&job->session->lock);
    cairn_client_tiles_free(former);
}

bool cairn_client_tiles_on_error(struct session *s, uint32_t request, cairn_status status,
                                 const char *text)
{
    struct job *job = s->jobs;
    while (job != NULL && job->tiles_request != request) job = job->next;
    if (job == NULL) return false;
    job->tiles_request = 0;
    cairn_job_fail(job, status, text);
    return true;
}

/* ---- the call ---- */

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
    if (job->spec.tensors[index].alias_box != NULL)
        return cairn_client_fail(
            CAIRN_ERR_UNSUPPORTED,
            "tensor %s is an alias of a box of %s; declare what is held of that", tile.tensor,
            job->spec.tensors[index].alias_of);
    index = cairn_spec_target(&job->spec, index);
    const struct cairn_shape *shape = &job->spec.tensors[index].shape;
    cairn_status status = cairn_box_check(&tile.box, shape, &why);
    if (status != CAIRN_OK)
        return cairn_client_fail(status, "tensor %s: %s", tile.tensor, why.text);
    if (cairn_tiles_find(tiles, (uint32_t)index) != NULL)
        return cairn_client_fail(CAIRN_ERR_EXISTS, "tensor %s has a tile already; one box a tensor",
                                 tile.tensor);
    if (cairn_box_is_whole(&tile.box, shape)) return CAIRN_OK;
    if (job->spec.tensors[index].kind == CAIRN_BLOB)
        return cairn_client_fail(
            CAIRN_ERR_INVALID,
            "tensor %s: a blob is held whole by every worker; list no tile of it", tile.tensor);
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
    if (job->role != CAIRN_WORKER)
        return cairn_client_fail(CAIRN_ERR_REFUSED, "a reader holds no tiles");
    if ((tiles == NULL && tile_count > 0) || timeout_ms < 0)
        return cairn_client_fail(CAIRN_ERR_INVALID, "tiles must be given, timeout_ms be 0 or more");
    if (world == 0 && tile_count > 0)
        return cairn_client_fail(
            CAIRN_ERR_INVALID, "world is 0, which says that there are no tiles, and %zu are given",
            tile_count);
    if (world > 0 && world <= job->rank)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "world is %u; it counts the ranks 0 to world - 1, and this is "
                                 "rank %u",
                                 world, job->rank);
    return CAIRN_OK;
}

/* One declaration at a time waits; it is the call's until withdraw. Takes it in any case. */
static cairn_status offer(struct job *job, struct declared *declared)
{
    pthread_mutex_lock(&job->session->lock);
    const bool busy = job->declaring != NULL;
    if (!busy) {
        job->declaring = declared;
        job->declaring_holds = false;
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
    const bool holds = job->declaring_holds;
    struct declared *unset = holds ? NULL : job->declaring;
    job->declaring = NULL;
    pthread_mutex_unlock(&job->session->lock);
    cairn_client_tiles_free(unset);
    return holds;
}

static cairn_status declare(struct job *job, struct declared *declared, uint64_t deadline_ms)
{
    const Cairn__TilesDeclare message = message_of(declared);
    cairn_status status = offer(job, declared);
    if (status != CAIRN_OK) return status;
    ProtobufCMessage *reply;
    status = cairn_control_ask(job->session, job, CAIRN_MSG_TILES_DECLARE, &message.base,
                               CAIRN_MSG_TILES_SET, deadline_ms, &reply);
    if (status == CAIRN_OK) cairn_message_free(reply);
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
    cairn_handle_put(handle);
    return status;
}
