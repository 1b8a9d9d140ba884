/* Units: cairn_prefetch, cairn_map, cairn_map_device, cairn_unmap. */
#include <stdlib.h>

#include "client/api/api.h"
#include "client/base/handle.h"
#include "client/base/struct.h"
#include "client/base/units.h"
#include "client/device/card.h"
#include "client/op.h"
#include "client/push/transfer.h"

/* ---- fetching ---- */

static void on_fetched(void *block, cairn_status status, const char *why)
{
    cairn_cache_fetched(block, status, why);
}

/* Starts the fetches that fill a pending block. Called once for each block, by the call that made
 * it. */
static void begin(struct block *block)
{
    for (size_t i = 0; i < block->shape.count; i++) {
        const struct unit_tensor *tensor = &block->shape.tensors[i];
        const struct command pattern = { .tensor = tensor->fetched,
                                         .plane = CAIRN_PLANE_WIRE,
                                         .dtype = (uint8_t)tensor->dtype,
                                         .ptr = block->memory + tensor->at,
                                         .card = block->card,
                                         .piece = tensor->piece,
                                         .version = block->version,
                                         .on_done = on_fetched,
                                         .context = block };
        const cairn_status status = cairn_op_begin(block->job, CAIRN_CHUNK_FETCH,
                                                   cairn_transfer_run, &pattern, NULL);
        if (status != CAIRN_OK) cairn_cache_fetched(block, status, cairn_error());
    }
    cairn_cache_fetched(block, CAIRN_OK, NULL);
}

/* ---- the calls ---- */

static cairn_status find_unit(struct job *job, const char *name, size_t *unit_out)
{
    pthread_mutex_lock(&job->session->lock);
    const bool has_cache = job->cache != NULL;
    pthread_mutex_unlock(&job->session->lock);
    cairn_status status = has_cache ? CAIRN_OK : cairn_cache_open(job);
    if (status != CAIRN_OK) return status;
    if (name == NULL) return cairn_client_fail(CAIRN_ERR_INVALID, "a unit's name is NULL");
    *unit_out = cairn_units_find(job->cache->units, name);
    return *unit_out != SIZE_MAX
               ? CAIRN_OK
               : cairn_client_fail(CAIRN_ERR_NOT_FOUND, "job %s has no unit %s", job->name, name);
}

/* A hint: what has no room, or no memory, is left to cairn_map. */
static void prefetch_unit(struct job *job, struct cairn_version version, size_t unit, uint64_t call)
{
    struct unit_shape shape;
    if (cairn_cache_shape(job, unit, &shape) != CAIRN_OK) return;
    struct block *made = cairn_cache_want(job, version, &shape, call);
    free(shape.tensors);
    if (made != NULL) begin(made);
}

static cairn_status prefetch_inside(struct job *job, struct cairn_version version,
                                    const char *const *names, size_t name_count)
{
    size_t unit;
    if (names == NULL && name_count > 0)
        return cairn_client_fail(CAIRN_ERR_INVALID, "units is NULL");
    for (size_t i = 0; i < name_count; i++) {
        const cairn_status status = find_unit(job, names[i], &unit);
        if (status != CAIRN_OK) return status;
    }
    if (name_count == 0) return CAIRN_OK;
    const uint64_t call = cairn_cache_new_call(job, version);
    for (size_t i = 0; i < name_count; i++)
        prefetch_unit(job, version, cairn_units_find(job->cache->units, names[i]), call);
    return CAIRN_OK;
}

cairn_status cairn_prefetch(cairn_job *handle, struct cairn_version version,
                            const char *const *units, size_t unit_count)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = prefetch_inside(job, version, units, unit_count);
    return cairn_api_leave(handle, status);
}

/* With the unit's shape known and the arguments judged. */
static cairn_status map_shape(struct job *job, struct cairn_version version, struct card *card,
                              struct unit_shape *shape, struct cairn_view *views, cairn_op **op_out)
{
    struct op *op = cairn_op_new(job, CAIRN_CHUNK_FETCH, true);
    if (op == NULL)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY,
                                 "out of memory, or too many operations are open");
    void *handle = op->handle;
    struct block *made;
    const cairn_status status = cairn_cache_lend(job, version, card, shape, op, views, &made);
    if (made != NULL) begin(made);
    if (status == CAIRN_OK) {
        *op_out = handle;
    } else {
        cairn_op_let_go(op, status, cairn_error());
        (void)cairn_handle_close(CAIRN_HANDLE_OP, handle);
    }
    return status;
}

static cairn_status map_inside(struct job *job, struct cairn_version version, const char *name,
                               struct card *card, struct cairn_view *views, size_t *count,
                               cairn_op **op_out)
{
    size_t unit, need;
    if (count == NULL || op_out == NULL)
        return cairn_client_fail(CAIRN_ERR_INVALID, "view_count and op_out must be given");
    cairn_status status = find_unit(job, name, &unit);
    if (status != CAIRN_OK) return status;
    (void)cairn_units_tensors(job->cache->units, unit, &need);
    if (views == NULL || *count < need) {
        const size_t given = views != NULL ? *count : 0;
        *count = need;
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "unit %s has %zu tensors, and there is room for %zu views", name,
                                 need, given);
    }
    if (!cairn_struct_fits(views, sizeof *views))
        return cairn_client_fail(CAIRN_ERR_INVALID, "views[0].struct_size must be %zu",
                                 sizeof *views);
    struct unit_shape shape;
    status = cairn_cache_shape(job, unit, &shape);
    if (status != CAIRN_OK) return status;
    status = map_shape(job, version, card, &shape, views, op_out);
    free(shape.tensors);
    if (status == CAIRN_OK) *count = need;
    return status;
}

cairn_status cairn_map(cairn_job *handle, struct cairn_version version, const char *unit,
                       struct cairn_view *views, size_t *view_count, cairn_op **op_out)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK)
        status = map_inside(job, version, unit, NULL, views, view_count, op_out);
    return cairn_api_leave(handle, status);
}

cairn_status cairn_map_device(cairn_job *handle, struct cairn_version version, const char *unit,
                              int device, struct cairn_view *views, size_t *view_count,
                              cairn_op **op_out)
{
    struct job *job = cairn_api_job(handle);
    struct card *card = NULL;
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = cairn_card_of_device(device, "device", &card);
    if (status == CAIRN_OK)
        status = map_inside(job, version, unit, card, views, view_count, op_out);
    return cairn_api_leave(handle, status);
}

/* Waits until the work that is queued on `stream` is done, since it may still read the mapped
 * memory. */
static cairn_status await_stream(struct card *card, void *stream)
{
    struct card_event *event;
    if (card == NULL && stream != NULL)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "this view is of the host, and no stream reads it: stream must be "
                                 "NULL");
    if (card == NULL) return CAIRN_OK;
    cairn_status status = cairn_card_mark(card, stream, &event);
    if (status == CAIRN_OK) {
        status = cairn_card_event_wait(event);
        cairn_card_event_free(event);
    }
    return status;
}

static cairn_status unmap_inside(struct job *job, const struct cairn_view *view, void *stream)
{
    if (!cairn_struct_fits(view, sizeof *view))
        return cairn_client_fail(CAIRN_ERR_INVALID, "view must be one that cairn_map gave");
    pthread_mutex_lock(&job->session->lock);
    struct card *card = cairn_cache_card(job, view->loan);
    pthread_mutex_unlock(&job->session->lock);
    cairn_status status = await_stream(card, stream);
    if (status != CAIRN_OK) return status;
    pthread_mutex_lock(&job->session->lock);
    status = cairn_cache_give_back(job, view->loan);
    pthread_mutex_unlock(&job->session->lock);
    if (status == CAIRN_ERR_VERSION_GONE)
        return cairn_client_fail(
            status,
            "a later version took the place of this one while it was mapped: what was read may be "
            "of both; map the newest version and compute again, or lease versions first");
    return status == CAIRN_OK
               ? status
               : cairn_client_fail(
                     CAIRN_ERR_INVALID,
                     "this view is not on loan: it was unmapped before, or its operation failed");
}

cairn_status cairn_unmap(cairn_job *handle, const struct cairn_view *view, void *stream)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    return cairn_api_leave(handle, unmap_inside(job, view, stream));
}
