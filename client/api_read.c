#include <inttypes.h>
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "client/device.h"
#include "client/job.h"
#include "client/op.h"
#include "client/push.h"
#include "client/read.h"
#include "proto/geometry/layout.h"
#include "proto/plan/plan.h"
#include "proto/spec/optimizer.h"
#include "proto/spec/spec_fields.h"

/* ==== read ==== */

/* The calls that read: fetch, the newest version, its client state, snapshots. */

cairn_status api_plane_of(const char *plane, int *number_out)
{
    *number_out = plane_number(plane != NULL ? plane : "wire");
    if (*number_out != 0) return CAIRN_OK;
    return client_fail(CAIRN_ERR_NOT_FOUND,
                       "there is no plane \"%s\"; planes are \"wire\", \"param\", "
                       "\"exp_avg\" (the momentum of sgd, too) and \"exp_avg_sq\"",
                       plane);
}

cairn_status api_judge_fetch(struct job *job, const char *tensor, int plane,
                             const struct cairn_box *box, const struct cairn_mem *given,
                             size_t *tensor_out, struct piece *piece_out, struct cairn_mem *mem_out)
{
    struct cairn_box of_target;
    cairn_status status = api_judge_boxed(job, tensor, given, mem_out, tensor_out, &box,
                                          &of_target);
    if (status == CAIRN_OK) status = api_judge_plane(job, *tensor_out, plane);
    if (status == CAIRN_OK) status = api_judge_dtype(job, *tensor_out, plane, mem_out);
    if (status == CAIRN_OK) status = api_judge_box(job, *tensor_out, box, mem_out, piece_out);
    if (status != CAIRN_OK) return status;
    if (!strides_apart(&piece_out->strides))
        return client_fail(CAIRN_ERR_INVALID,
                           "tensor %s: with these mem.stride elements may share memory; "
                           "nothing can be fetched there",
                           tensor);
    if (mem_out->device <= 0 || !piece_out->strides.given) return CAIRN_OK;
    return client_fail(CAIRN_ERR_UNSUPPORTED,
                       "tensor %s: memory of GPU %d with mem.stride is not written to: "
                       "fetch into dense memory, and copy it from there",
                       tensor, mem_out->device - CAIRN_GPU(0));
}

static cairn_status fetch_inside(struct job *job, struct cairn_version version, const char *tensor,
                                 const char *plane, const struct cairn_box *box,
                                 const struct cairn_mem *given, cairn_op **op_out)
{
    size_t index;
    int number;
    struct cairn_mem mem;
    struct command pattern = { .version = version };
    cairn_status status = api_plane_of(plane, &number);
    if (status == CAIRN_OK)
        status = api_judge_fetch(job, tensor, number, box, given, &index, &pattern.piece, &mem);
    if (status == CAIRN_OK) status = api_card(&mem, &pattern.card);
    if (status != CAIRN_OK) return status;
    pattern.tensor = (uint32_t)index;
    pattern.plane = (uint8_t)number;
    pattern.dtype = (uint8_t)mem.dtype;
    pattern.ptr = mem.ptr;
    if (pattern.card != NULL) status = card_mark(pattern.card, mem.stream, &pattern.event);
    if (status == CAIRN_OK)
        status = op_begin(job, CAIRN_CHUNK_FETCH, transfer_run, &pattern, op_out);
    if (status != CAIRN_OK) card_event_free(pattern.event);
    return status;
}

cairn_status cairn_fetch(cairn_job *handle, struct cairn_version version, const char *tensor,
                         const char *plane, const struct cairn_box *box,
                         const struct cairn_mem *mem, cairn_op **op_out)
{
    if (op_out == NULL)
        return client_fail(CAIRN_ERR_INVALID,
                           "op_out is NULL: nothing else says when a fetch is done");
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK) status = fetch_inside(job, version, tensor, plane, box, mem, op_out);
    return api_leave(handle, status);
}

static cairn_status wait_version(struct job *job, Cairn__VersionWait *message, int timeout_ms,
                                 Cairn__VersionReady **ready_out)
{
    message->timeout_ms = (uint32_t)timeout_ms;
    return ask_coordinator(job, CAIRN_MSG_VERSION_WAIT, &message->base, CAIRN_MSG_VERSION_READY,
                           api_deadline(timeout_ms), (ProtobufCMessage **)ready_out);
}

cairn_status cairn_version_wait(cairn_job *handle, struct cairn_version at_least, int timeout_ms,
                                struct cairn_version *out)
{
    Cairn__VersionReady *ready;
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK) status = api_judge_call("out", out, timeout_ms);
    if (status == CAIRN_OK) {
        Cairn__VersionWait message = CAIRN__VERSION_WAIT__INIT;
        message.generation = at_least.generation;
        message.step = at_least.step;
        status = wait_version(job, &message, timeout_ms, &ready);
    }
    if (status == CAIRN_OK) {
        *out = (struct cairn_version) { ready->generation, ready->step };
        message_free(&ready->base);
        pthread_mutex_lock(&job->session->lock);
        job->known.initialized = true;
        job->known.newest = *out;
        pthread_mutex_unlock(&job->session->lock);
    }
    return api_leave(handle, status);
}

static cairn_status give_state(const Cairn__VersionReady *ready, void *buffer, size_t capacity,
                               size_t *bytes_out, struct cairn_version *version_out)
{
    *bytes_out = ready->client_state.len;
    if (ready->client_state.len > capacity)
        return client_fail(CAIRN_ERR_INVALID,
                           "the client state has %zu bytes, there is room for %zu",
                           ready->client_state.len, capacity);
    if (ready->client_state.len > 0)
        memcpy(buffer, ready->client_state.data, ready->client_state.len);
    if (version_out != NULL)
        *version_out = (struct cairn_version) { ready->generation, ready->step };
    return CAIRN_OK;
}

cairn_status cairn_client_state(cairn_job *handle, void *buffer, size_t capacity, int timeout_ms,
                                size_t *bytes_out, struct cairn_version *version_out)
{
    Cairn__VersionReady *ready;
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK) status = api_judge_call("bytes_out", bytes_out, timeout_ms);
    if (status == CAIRN_OK && buffer == NULL && capacity > 0)
        status = client_fail(CAIRN_ERR_INVALID,
                             "buffer is NULL, and capacity %zu; NULL goes with 0", capacity);
    if (status == CAIRN_OK) {
        Cairn__VersionWait message = CAIRN__VERSION_WAIT__INIT;
        message.client_state = true;
        status = wait_version(job, &message, timeout_ms, &ready);
    }
    if (status == CAIRN_OK) {
        status = give_state(ready, buffer, capacity, bytes_out, version_out);
        message_free(&ready->base);
    }
    return api_leave(handle, status);
}

cairn_status cairn_snapshot(cairn_job *handle, uint32_t flags, int timeout_ms, char id_out[64])
{
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK) status = api_judge_call("id_out", id_out, timeout_ms);
    if (status == CAIRN_OK && (flags & ~CAIRN_SNAPSHOT_WAIT) != 0)
        status = client_fail(CAIRN_ERR_INVALID, "flags is %u; allowed: 0, CAIRN_SNAPSHOT_WAIT (1)",
                             flags);
    if (status == CAIRN_OK) {
        Cairn__SnapshotCreate message = CAIRN__SNAPSHOT_CREATE__INIT;
        message.job = job->name;
        message.wait = (flags & CAIRN_SNAPSHOT_WAIT) != 0;
        ProtobufCMessage *reply;
        status = ask_coordinator(job, CAIRN_MSG_SNAPSHOT_CREATE, &message.base,
                                 CAIRN_MSG_SNAPSHOT_STATUS, api_deadline(timeout_ms), &reply);
        if (status == CAIRN_OK) {
            const Cairn__SnapshotStatus *snapshot = (const Cairn__SnapshotStatus *)reply;
            strncpy(id_out, snapshot->id, 63);
            id_out[63] = 0;
            message_free(reply);
        }
    }
    return api_leave(handle, status);
}

/* ==== map ==== */

/* Units: cairn_prefetch, cairn_map, cairn_map_device, cairn_unmap. */

/* ---- fetching ---- */

static void on_fetched(void *block, cairn_status status, const char *why)
{
    cache_fetched(block, status, why);
}

/* Starts the fetches that fill a pending block. Called once for each block, by the call that made
 * it. */
static void begin_block(struct block *block)
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
        const cairn_status status = op_begin(block->job, CAIRN_CHUNK_FETCH, transfer_run, &pattern,
                                             NULL);
        if (status != CAIRN_OK) cache_fetched(block, status, cairn_error());
    }
    cache_fetched(block, CAIRN_OK, NULL);
}

/* ---- the calls ---- */

static cairn_status find_unit(struct job *job, const char *name, size_t *unit_out)
{
    pthread_mutex_lock(&job->session->lock);
    const bool has_cache = job->cache != NULL;
    pthread_mutex_unlock(&job->session->lock);
    CAIRN_TRY(has_cache ? CAIRN_OK : cache_open(job));
    if (name == NULL) return client_fail(CAIRN_ERR_INVALID, "a unit's name is NULL");
    *unit_out = units_find(job->cache->units, name);
    return *unit_out != SIZE_MAX
               ? CAIRN_OK
               : client_fail(CAIRN_ERR_NOT_FOUND, "job %s has no unit %s", job->name, name);
}

/* A hint: what has no room, or no memory, is left to cairn_map. */
static void prefetch_unit(struct job *job, struct cairn_version version, size_t unit, uint64_t call)
{
    struct unit_shape shape;
    if (cache_shape(job, unit, &shape) != CAIRN_OK) return;
    struct block *made = cache_want(job, version, &shape, call);
    free(shape.tensors);
    if (made != NULL) begin_block(made);
}

static cairn_status prefetch_inside(struct job *job, struct cairn_version version,
                                    const char *const *names, size_t name_count)
{
    size_t unit;
    if (names == NULL && name_count > 0) return client_fail(CAIRN_ERR_INVALID, "units is NULL");
    for (size_t i = 0; i < name_count; i++) CAIRN_TRY(find_unit(job, names[i], &unit));
    if (name_count == 0) return CAIRN_OK;
    const uint64_t call = cache_new_call(job, version);
    for (size_t i = 0; i < name_count; i++)
        prefetch_unit(job, version, units_find(job->cache->units, names[i]), call);
    return CAIRN_OK;
}

cairn_status cairn_prefetch(cairn_job *handle, struct cairn_version version,
                            const char *const *units, size_t unit_count)
{
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK) status = prefetch_inside(job, version, units, unit_count);
    return api_leave(handle, status);
}

/* With the unit's shape known and the arguments judged. */
static cairn_status map_shape(struct job *job, struct cairn_version version, struct card *card,
                              struct unit_shape *shape, struct cairn_view *views, cairn_op **op_out)
{
    struct op *op = op_create(job, CAIRN_CHUNK_FETCH, true);
    if (op == NULL)
        return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory, or too many operations are open");
    void *handle = op->handle;
    struct block *made;
    const cairn_status status = cache_lend(job, version, card, shape, op, views, &made);
    if (made != NULL) begin_block(made);
    if (status == CAIRN_OK) {
        *op_out = handle;
    } else {
        op_let_go(op, status, cairn_error());
        (void)handle_close(CAIRN_HANDLE_OP, handle);
    }
    return status;
}

static cairn_status map_inside(struct job *job, struct cairn_version version, const char *name,
                               struct card *card, struct cairn_view *views, size_t *count,
                               cairn_op **op_out)
{
    size_t unit, need;
    if (count == NULL || op_out == NULL)
        return client_fail(CAIRN_ERR_INVALID, "view_count and op_out must be given");
    cairn_status status = find_unit(job, name, &unit);
    if (status != CAIRN_OK) return status;
    (void)units_tensors(job->cache->units, unit, &need);
    if (views == NULL || *count < need) {
        const size_t given = views != NULL ? *count : 0;
        *count = need;
        return client_fail(CAIRN_ERR_INVALID,
                           "unit %s has %zu tensors, and there is room for %zu views", name, need,
                           given);
    }
    if (!struct_fits(views, sizeof *views))
        return client_fail(CAIRN_ERR_INVALID, "views[0].struct_size must be %zu", sizeof *views);
    struct unit_shape shape;
    status = cache_shape(job, unit, &shape);
    if (status != CAIRN_OK) return status;
    status = map_shape(job, version, card, &shape, views, op_out);
    free(shape.tensors);
    if (status == CAIRN_OK) *count = need;
    return status;
}

cairn_status cairn_map(cairn_job *handle, struct cairn_version version, const char *unit,
                       struct cairn_view *views, size_t *view_count, cairn_op **op_out)
{
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK)
        status = map_inside(job, version, unit, NULL, views, view_count, op_out);
    return api_leave(handle, status);
}

cairn_status cairn_map_device(cairn_job *handle, struct cairn_version version, const char *unit,
                              int device, struct cairn_view *views, size_t *view_count,
                              cairn_op **op_out)
{
    struct job *job = api_job(handle);
    struct card *card = NULL;
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK) status = card_of_device(device, "device", &card);
    if (status == CAIRN_OK)
        status = map_inside(job, version, unit, card, views, view_count, op_out);
    return api_leave(handle, status);
}

/* Waits until the work that is queued on `stream` is done, since it may still read the mapped
 * memory. */
static cairn_status await_stream(struct card *card, void *stream)
{
    struct card_event *event;
    if (card == NULL && stream != NULL)
        return client_fail(CAIRN_ERR_INVALID,
                           "this view is of the host, and no stream reads it: stream must be "
                           "NULL");
    if (card == NULL) return CAIRN_OK;
    cairn_status status = card_mark(card, stream, &event);
    if (status == CAIRN_OK) {
        status = card_event_wait(event);
        card_event_free(event);
    }
    return status;
}

static cairn_status unmap_inside(struct job *job, const struct cairn_view *view, void *stream)
{
    if (!struct_fits(view, sizeof *view))
        return client_fail(CAIRN_ERR_INVALID, "view must be one that cairn_map gave");
    pthread_mutex_lock(&job->session->lock);
    struct card *card = cache_card(job, view->loan);
    pthread_mutex_unlock(&job->session->lock);
    CAIRN_TRY(await_stream(card, stream));
    pthread_mutex_lock(&job->session->lock);
    cairn_status status = cache_give_back(job, view->loan);
    pthread_mutex_unlock(&job->session->lock);
    if (status == CAIRN_ERR_VERSION_GONE)
        return client_fail(
            status,
            "a later version took the place of this one while it was mapped: what was read may be "
            "of both; map the newest version and compute again, or lease versions first");
    return status == CAIRN_OK
               ? status
               : client_fail(
                     CAIRN_ERR_INVALID,
                     "this view is not on loan: it was unmapped before, or its operation failed");
}

cairn_status cairn_unmap(cairn_job *handle, const struct cairn_view *view, void *stream)
{
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    return api_leave(handle, unmap_inside(job, view, stream));
}

/* ==== reading ==== */

#define SMALL_BYTES 32768 /* of pages: read sooner than a thread has begun */

/* ---- the spec ---- */

/* Compares the names, and what an amendment may change of a tensor: its kind, its wire dtype, and
 * whether it is an alias. */
static bool same_tensors(const struct job_spec_data *a, const struct job_spec_data *b)
{
    if (a->tensor_count != b->tensor_count) return false;
    for (size_t i = 0; i < a->tensor_count; i++) {
        const struct tensor_spec *x = &a->tensors[i], *y = &b->tensors[i];
        if (strcmp(x->name, y->name) != 0 || x->kind != y->kind || x->wire != y->wire ||
            (x->alias_of == NULL) != (y->alias_of == NULL))
            return false;
    }
    return true;
}

/* True if the terms are equal that must not change as long as a handle is open. */
static bool same_terms(const struct job_spec_data *a, const struct job_spec_data *b)
{
    for (size_t i = 0; i < spec_fields.count; i++) {
        const struct spec_field *field = &spec_fields.fields[i];
        if (field->change != CAIRN_SPEC_NEXT_ROUND &&
            spec_field_bits(field, a) != spec_field_bits(field, b))
            return false;
    }
    return true;
}

/* The servers' spec is byte for byte what this worker sent. Most are, and reading a million tensors again
 * would take seconds, and the memory of another spec. */
static bool is_what_was_sent(const struct job *job)
{
    const struct packed *sent = job->attachment.spec_packed;
    const struct paged *came = &job->attachment.spec_pages;
    return sent != NULL && sent->size == came->have_bytes &&
           memcmp(sent->bytes, came->bytes, sent->size) == 0;
}

static cairn_status judge_spec(struct reading *reading)
{
    const struct job *job = reading->job;
    const struct job_spec_data *spec = &reading->spec;
    if (!(reading->first && job->member.role == CAIRN_READER) && !spec_joins(&job->spec, spec)) {
        sentence_set(&reading->why, "job %s is another one now (%zu differences); open it again",
                     job->name, spec_diff(&job->spec, spec, 0, NULL, NULL));
        return CAIRN_ERR_MISMATCH;
    }
    reading->tells_clip_norm = true;
    reading->clip_norm = spec->clip_norm;
    reading->takes_spec = reading->first;
    if (reading->first || (same_tensors(&job->spec, spec) && same_terms(&job->spec, spec)))
        return CAIRN_OK;
    sentence_set(&reading->why,
                 "job %s was amended, revision %" PRIu64 ": its tensors or terms are others now; "
                 "close it and open it again, with the spec as it was or as it is",
                 job->name, spec->revision);
    return CAIRN_ERR_REOPEN;
}

/* The first time the spec of the servers is taken: a reader has none, and a worker's may be that of before
 * an amendment. It stays what it was at a later attach: with other tensors, nothing that this member knows
 * of the job holds any more. */
static cairn_status read_spec(struct reading *reading)
{
    const struct job *job = reading->job;
    if (reading->first && is_what_was_sent(job)) {
        reading->tells_clip_norm = true;
        reading->clip_norm = job->spec.clip_norm;
        return CAIRN_OK;
    }
    const cairn_status status = spec_unpack(job->attachment.spec_pages.bytes,
                                            job->attachment.spec_pages.have_bytes,
                                            optimizer_names(), &reading->spec, &reading->why);
    if (status == CAIRN_OK) return judge_spec(reading);
    spec_init(&reading->spec);
    return status;
}

/* ---- the layout ---- */

cairn_status layout_of_pages(const struct job_spec_data *spec, const struct paged *pages,
                             struct layout **layout_out)
{
    struct layout *layout;
    CAIRN_TRY(plan_job_decode(spec, pages->bytes, pages->have_bytes, &layout));
    if (layout->shard_count > CAIRN_CLIENT_SHARDS_MAX) {
        layout_close(layout);
        return CAIRN_ERR_PROTOCOL;
    }
    *layout_out = layout;
    return CAIRN_OK;
}

static cairn_status read_layout(struct reading *reading)
{
    const struct job *job = reading->job;
    const struct paged *pages = &job->attachment.layout_pages;
    const struct job_spec_data *spec = reading->takes_spec ? &reading->spec : &job->spec;
    const struct cairn_version none = { 0, 0 };
    cairn_status status = layout_of_pages(spec, pages, &reading->layout);
    if (status != CAIRN_OK || !reading->wants_served) return status;
    status = served_layout_open(spec, reading->layout, none, &reading->served);
    if (status == CAIRN_OK) reading->layout = NULL;
    return status;
}

/* ---- both ---- */

static void *run(void *arg)
{
    struct reading *reading = arg;
    reading->spec_status = read_spec(reading);
    if (reading->spec_status == CAIRN_OK) reading->layout_status = read_layout(reading);
    atomic_store(&reading->is_over, true);
    if (reading->has_thread) session_kick(reading->job->session);
    return NULL;
}

cairn_status reading_begin(struct job *job)
{
    const struct attachment *attachment = &job->attachment;
    const uint64_t bytes = attachment->spec_pages.have_bytes + attachment->layout_pages.have_bytes;
    struct reading *reading = calloc(1, sizeof *reading);
    if (reading == NULL) return CAIRN_ERR_NO_MEMORY;
    spec_init(&reading->spec);
    reading->job = job;
    reading->first = !attachment->attached_once;
    reading->wants_served = job->served == NULL;
    reading->has_thread = bytes > SMALL_BYTES;
    job->attachment.reading = reading;
    if (reading->has_thread && pthread_create(&reading->thread, NULL, run, reading) == 0)
        return CAIRN_OK;
    reading->has_thread = false;
    run(reading);
    return CAIRN_OK;
}

void reading_await(struct reading *reading)
{
    if (reading->has_thread) pthread_join(reading->thread, NULL);
    reading->has_thread = false;
}

void reading_free(struct reading *reading)
{
    if (reading == NULL) return;
    reading_await(reading);
    spec_release(&reading->spec);
    if (reading->layout != NULL) layout_close(reading->layout);
    served_layout_put(reading->served);
    free(reading);
}

/* ==== published view ==== */

/* A copy that something here is of. */
struct source {
    struct published *copy;
    uint64_t sequence;
};

struct published_view {
    struct job *job;              /* borrowed */
    struct served_layout *served; /* borrowed; that serves the version, while it is opened */
    struct cairn_version version;
    enum published_side side;
    struct source *sources; /* owned: [shard_count]; copy NULL: nothing is of that shard */
    uint32_t shard_count;
    const uint8_t **at;       /* owned: [count] */
    struct stitch **stitches; /* owned: [count], each on loan; NULL: the tensor is one shard's */
    size_t count;
};

const uint8_t *published_view_at(const struct published_view *view, size_t i)
{
    assert(i < view->count);
    return view->at[i];
}

bool published_view_whole(const struct published_view *view)
{
    for (uint32_t i = 0; i < view->shard_count; i++) {
        const struct source *source = &view->sources[i];
        if (source->copy == NULL) continue;
        const struct published_head *head = source->copy->head; // NULL: the session is closed
        if (head == NULL || !published_read_end(head, source->sequence)) return false;
    }
    return true;
}

void published_view_close(struct published_view *view)
{
    if (view == NULL) return;
    for (size_t i = 0; i < view->count; i++) stitch_put(view->job, view->stitches[i]);
    for (uint32_t i = 0; i < view->shard_count; i++)
        if (view->sources[i].copy != NULL) mapped_unuse(view->sources[i].copy);
    free(view->sources);
    free(view->at);
    free(view->stitches);
    free(view);
}

/* The shard's copy; the same one for all of the view. */
static struct published *copy_of(struct published_view *view, uint32_t shard)
{
    struct source *source = &view->sources[shard];
    if (source->copy == NULL) {
        source->copy = mapped_find(view->job, view->served, shard, view->version, view->side,
                                   &source->sequence);
        if (source->copy != NULL) source->copy->uses++;
    }
    return source->copy;
}

/* Where an extent of the layout lies in its shard's copy; NULL: it is not here. */
static struct published *locate(struct published_view *view, const struct extent *extent,
                                uint64_t *at_out, const struct local_extent **local_out)
{
    struct published *copy = copy_of(view, extent->shard);
    if (copy == NULL) return NULL;
    const struct served_part *part = &view->served->parts[extent->shard];
    const struct geometry *g = &view->served->layout->geometry[extent->tensor];
    const struct local_extent *local = shard_map_find(&part->map, extent->tensor,
                                                      quantum_first_leaf(g, extent->first_quantum));
    assert(local != NULL); // map and extents are of one layout
    *at_out = part->published_at[local - part->map.extents];
    *local_out = local;
    return copy;
}

/* Where each part of a tensor lies, to be freed; NULL: some of it is not here. */
static struct stitch_run *find_runs(struct published_view *view, const struct extent *extents,
                                    size_t extent_count, size_t elem_bytes)
{
    struct stitch_run *runs = calloc(extent_count, sizeof *runs);
    for (size_t e = 0; runs != NULL && e < extent_count; e++) {
        const struct local_extent *local;
        uint64_t at;
        struct published *copy = locate(view, &extents[e], &at, &local);
        if (copy == NULL) {
            free(runs);
            return NULL;
        }
        runs[e] = (struct stitch_run) { .copy = copy,
                                        .sequence = view->sources[extents[e].shard].sequence,
                                        .at = at,
                                        .from = local->first_elem * elem_bytes,
                                        .end = (local->first_elem + local->elem_count) *
                                               elem_bytes };
    }
    return runs;
}

static bool stitch(struct published_view *view, size_t i, const struct extent *extents,
                   size_t extent_count, size_t elem_bytes)
{
    struct stitch_run *runs = find_runs(view, extents, extent_count, elem_bytes);
    if (runs != NULL)
        view->stitches[i] = stitch_get(view->job, extents[0].tensor, runs, extent_count);
    free(runs);
    if (view->stitches[i] == NULL) return false;
    view->at[i] = stitch_base(view->stitches[i]);
    return true;
}

static bool view_tensor(struct published_view *view, size_t i, uint32_t tensor)
{
    static const uint8_t nothing[1] __attribute__((aligned(64)));
    size_t extent_count;
    const struct extent *extents = layout_tensor_extents(view->served->layout, tensor,
                                                         &extent_count);
    const size_t elem_bytes = dtype_size((int)view->job->spec.tensors[tensor].wire);
    if (extent_count == 0) { // of no elements
        view->at[i] = nothing;
        return true;
    }
    if (extent_count > 1)
        return view->side == CAIRN_PUBLISHED_HOST &&
               stitch(view, i, extents, extent_count, elem_bytes);
    const struct local_extent *local;
    uint64_t at;
    const struct published *copy = locate(view, &extents[0], &at, &local);
    if (copy == NULL) return false;
    view->at[i] = (view->side == CAIRN_PUBLISHED_HOST ? copy->base : copy->on_card) + at;
    return true;
}

struct published_view *published_view_open(struct job *job, struct cairn_version version,
                                           enum published_side side, const uint32_t *tensors,
                                           size_t count)
{
    if (job->session->published == NULL || job->served == NULL) return NULL;
    struct published_view *view = calloc(1, sizeof *view);
    if (view == NULL) return NULL;
    view->job = job;
    view->version = version;
    view->side = side;
    view->served = served_layout_of_version(job, version);
    const uint32_t shard_count = view->served->layout->shard_count;
    view->sources = calloc(shard_count, sizeof *view->sources);
    view->at = calloc(count + 1, sizeof *view->at);
    view->stitches = calloc(count + 1, sizeof(struct stitch *));
    bool all = view->sources != NULL && view->at != NULL && view->stitches != NULL;
    if (all) view->shard_count = shard_count;
    if (all) view->count = count;
    for (size_t i = 0; all && i < count; i++) all = view_tensor(view, i, tensors[i]);
    if (all && published_view_whole(view)) return view;
    published_view_close(view);
    return NULL;
}

/* ---- copies on the card ---- */

bool published_view_has_card(const struct job *job, const struct card *card)
{
    const struct fabric_device *table = card_imports_table(job->session->imports);
    return table != NULL && memcmp(table->uuids[0], card_uuid(card), 16) == 0;
}

static bool copy_runs(const struct stitch_run *runs, size_t count, struct card *card, uint8_t *to)
{
    struct sentence why;
    bool whole = true;
    uint64_t last = 0;
    for (size_t i = 0, bytes; whole && i < count; i++) {
        uint64_t copy;
        bytes = (size_t)(runs[i].end - runs[i].from);
        whole = card_copy_begin(card, to + runs[i].from, runs[i].copy->on_card + runs[i].at, bytes,
                                CARD_WITHIN, &copy, &why) == CAIRN_OK;
        if (whole && copy != 0) last = copy;
    }
    return card_copy_wait(card, last, &why) == CAIRN_OK && whole;
}

bool published_view_copy(struct job *job, struct cairn_version version, uint32_t tensor,
                         struct card *card, void *to)
{
    struct session *s = job->session;
    size_t count;
    struct stitch_run *runs = NULL;
    if (!published_view_has_card(job, card)) return false;
    pthread_mutex_lock(&s->lock);
    struct published_view *view = published_view_open(job, version, CAIRN_PUBLISHED_DEVICE, NULL,
                                                      0);
    if (view != NULL) {
        const struct extent *extents = layout_tensor_extents(view->served->layout, tensor, &count);
        if (count > 0)
            runs = find_runs(view, extents, count, dtype_size((int)job->spec.tensors[tensor].wire));
    }
    pthread_mutex_unlock(&s->lock);
    bool whole = runs != NULL && copy_runs(runs, count, card, to);
    pthread_mutex_lock(&s->lock);
    whole = whole && published_view_whole(view);
    published_view_close(view);
    pthread_mutex_unlock(&s->lock);
    free(runs);
    return whole;
}
