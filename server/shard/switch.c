#include "server/shard/jobs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/memory.h"
#include "server/shard/part.h"
#include "server/shard/read.h"
#include "server/shard/relay.h"
#include "server/shard/shard.h"

/* ---- a view ---- */

/* The maps of two views whose extents keep their places; all fields are NULL for a new job. */
struct places {
    const struct shard_map *before, *beside;
    const bool *dense; /* which tensors are blobs: an argument of shard_map_init_from */
};

static cairn_status make_map(const struct shard_job *job, uint32_t index,
                             const struct places *places, struct shard_view *view,
                             struct sentence *why)
{
    if (index >= view->layout->shard_count)
        return fail_with(why, CAIRN_ERR_INVALID, "shard index %u of a layout of %u shards", index,
                         view->layout->shard_count);
    struct shard_map *map = &view->table.map;
    const uint32_t leaves = job->spec.chunk_leaves;
    const cairn_status status = places->before == NULL
                                    ? shard_map_init(map, view->layout, index, leaves)
                                    : shard_map_init_from(map, view->layout, index, leaves,
                                                          places->before, places->beside,
                                                          places->dense);
    if (status == CAIRN_ERR_INVALID)
        return fail_with(why, status,
                         "layout %" PRIu64
                         " joins what lies apart on shard %s, or cannot be cut in "
                         "chunks of %u leaves",
                         view->layout->version, job->shard->name, leaves);
    if (status != CAIRN_OK) return fail_with(why, status, "out of memory for the map of a job");
    if (map->chunk_count >= UINT32_MAX)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "%" PRIu64 " chunks on one shard: raise chunk_leaves or add shards",
                         map->chunk_count);
    return CAIRN_OK;
}

static cairn_status make_forms(const struct shard_job *job, uint32_t member_max,
                               struct shard_view *view, struct need *need, struct sentence *why)
{
    view->forms = calloc(view->table.map.extent_count + 1, sizeof *view->forms);
    if (view->forms == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a job");
    CAIRN_TRY(need_of(&job->spec, &view->table.map, member_max, job->shard->device.home != NULL,
                      view->forms, need, why));
    view->wire_bytes = need->wire_bytes;
    view->memory.published = need->memory.published;
    view->memory.tables = need->memory.tables;
    return CAIRN_OK;
}

static cairn_status open_view(const struct shard_job *job, struct layout *layout, uint32_t index,
                              uint32_t member_max, const struct places *places,
                              struct shard_view **view_out, struct need *need_out,
                              struct sentence *why)
{
    struct shard_view *view = calloc(1, sizeof *view);
    if (view == NULL) {
        layout_close(layout);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a layout");
    }
    view->refs = 1;
    view->layout = layout;
    cairn_status status = make_map(job, index, places, view, why);
    if (status == CAIRN_OK) status = make_forms(job, member_max, view, need_out, why);
    if (status == CAIRN_OK)
        *view_out = view;
    else
        shard_view_unref(view);
    return status;
}

cairn_status shard_view_open(const struct shard_job *job, struct layout *layout, uint32_t index,
                             uint32_t member_max, struct shard_view **view_out,
                             struct need *need_out, struct sentence *why)
{
    const struct places none = { .before = NULL };
    return open_view(job, layout, index, member_max, &none, view_out, need_out, why);
}

cairn_status shard_view_number(struct shard_view *view, const struct job_spec_data *spec,
                               struct sentence *why)
{
    const cairn_status status = chunk_table_number(&view->table, spec);
    if (status == CAIRN_OK) return CAIRN_OK;
    return fail_with(why, status, "out of memory for the chunks of a job");
}

/* ---- the next one ---- */

/* Judges whether the device has room for an area of `bytes` bytes, in which state arrives, and for
 * the additional bytes of published copies. */
static cairn_status judge_area(const struct shard_job *job, const struct shard_view *view,
                               uint64_t bytes, struct sentence *why)
{
    const uint64_t copies = 2 * plane_units(view->wire_bytes),
                   there = published_device_bytes(job, false);
    return shard_job_judge_device(job, plane_units(bytes) + (copies > there ? copies - there : 0),
                                  0, why);
}

cairn_status shard_view_place(struct shard_job *job, struct shard_view *view,
                              const struct shard_view *before, struct sentence *why)
{
    uint64_t bytes;
    if (shard_view_places_open(view, before, job->planes.host_from, &bytes) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the places of planes");
    cairn_status status = CAIRN_OK;
    if (before != NULL && bytes > 0) status = judge_area(job, view, bytes, why);
    if (status == CAIRN_OK)
        status = shard_view_area_add(view, &job->planes, job->shard->device.home, bytes, why);
    if (before != NULL) job->memory.device = shard_job_device_bytes(job, false);
    return status;
}

static cairn_status make_whole(struct shard_job *job, struct shard_view *view,
                               const struct shard_view *before, struct sentence *why)
{
    const uint64_t end = view->table.map.local_end;
    const bool on_host = job->planes.host_from == 0;
    if (on_host && end > job->planes.room_elems)
        return fail_with(why, CAIRN_ERR_NO_MEMORY,
                         "the part of job %s on shard %s lies too far apart: %" PRIu64
                         " elements, but there are addresses for %" PRIu64
                         "; restore a snapshot to join it",
                         job->spec.name, job->shard->name, end, job->planes.room_elems);
    CAIRN_TRY(shard_view_number(view, &job->spec, why));
    return on_host ? planes_grow(&job->planes, &view->table.map, view->forms, why)
                   : shard_view_place(job, view, before, why);
}

/* Lists for each tensor whether it is a blob. The bytes of a blob lie dense, so a part of a blob's
 * extent does not lie where its local elements say (memory.h). The caller frees the list. */
static bool *list_dense(const struct job_spec_data *spec)
{
    bool *dense = calloc(spec->tensor_count + 1, sizeof *dense);
    for (size_t t = 0; dense != NULL && t < spec->tensor_count; t++)
        dense[t] = spec->tensors[t].kind == CAIRN_BLOB;
    return dense;
}

cairn_status shard_view_next(struct shard_job *job, struct layout *layout, uint32_t index,
                             const struct shard_view *before, struct shard_view **view_out,
                             struct sentence *why)
{
    struct shard_view *view;
    struct need need;
    if (job->planes.host_from != 0 && job->planes.host_from != CAIRN_PLANES_ALL) {
        layout_close(layout);
        return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                         "state of job %s lies partly on a device of shard %s, where no layout "
                         "changes: restore a snapshot onto the shards that are wanted",
                         job->spec.name, job->shard->name);
    }
    bool *dense = list_dense(&job->spec);
    if (dense == NULL) {
        layout_close(layout);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a layout");
    }
    const struct places places = { &before->table.map, &job->view->table.map, dense };
    cairn_status status = open_view(job, layout, index, shard_job_member_max(job), &places, &view,
                                    &need, why);
    free(dense);
    if (status != CAIRN_OK) return status;
    status = make_whole(job, view, before, why);
    if (status == CAIRN_OK)
        *view_out = view;
    else
        shard_view_unref(view);
    return status;
}

/* ---- the switch ---- */

/* The tables for the new view. They are made before anything changes, so that a lack of memory
 * changes nothing. */
struct ready {
    struct step_config step;
    struct collector_tables collector;
    struct pass_tables pass;
    uint8_t *holds;
    uint16_t *have;
};

bool shard_job_rests(const struct shard_job *job)
{
    const enum step_phase phase = step_phase_of(job->collector.step);
    const bool is_saved = !pins_rest(job) || !LIST_EMPTY(&job->pins.reports);
    return (phase == CAIRN_STEP_IDLE || phase == CAIRN_STEP_JOINING) && tiles_rest(job) &&
           !job->pass.updating && job->pass.parts_left == 0 && job->pass.republished == NULL &&
           !is_saved && !job->park.is_under_way && job->puts.write == NULL;
}

static cairn_status judge_park(const struct shard_job *job, struct sentence *why)
{
    if (job->state == CAIRN_JOB_SERVING && shard_job_rests(job)) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_BUSY, "job %s is at work on shard %s: its layout cannot change",
                     job->spec.name, job->shard->name);
}

static void ready_close(struct shard_job *job, struct ready *ready)
{
    if (ready->holds != NULL) tiles_unready(job, ready->holds);
    collector_tables_close(&ready->collector);
    pass_tables_close(&ready->pass);
    free(ready->have);
}

static cairn_status make_ready(struct shard_job *job, const struct shard_view *view,
                               struct ready *ready, struct sentence *why)
{
    const struct chunk_table *table = &view->table;
    ready->step = (struct step_config) {
        .chunk_count = table->trained_count,
        .window = job->landing.window,
        .small = job->landing.small,
        .in_place = job->landing.in_place,
        .member_max = shard_job_member_max(job),
        .payload_bytes_max = shard_payload_max(job),
        .folds_wanted = shard_job_folds_wanted(job, &table->map, job->planes.host_from),
    };
    ready->have = calloc((size_t)table->map.chunk_count + 1, sizeof *ready->have);
    cairn_status status = ready->have != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
    if (status == CAIRN_OK)
        status = collector_tables_open(&job->collector, &ready->step, table, &ready->collector);
    if (status == CAIRN_OK) status = pass_tables_open(table, &ready->pass);
    if (status == CAIRN_OK) return tiles_ready(job, table, &ready->holds, why);
    return fail_with(why, status, "out of memory for the chunks of layout %" PRIu64 " of job %s",
                     view->layout->version, job->spec.name);
}

cairn_status shard_job_switch(struct shard_job *job, struct shard_view *view, struct sentence *why)
{
    struct ready ready = { .have = NULL };
    cairn_status status = judge_park(job, why);
    if (status == CAIRN_OK) status = make_ready(job, view, &ready, why);
    if (status != CAIRN_OK) {
        ready_close(job, &ready);
        return status;
    }
    struct shard_view *before = job->view;
    const struct memory_need less = memory_beyond(&before->memory, &view->memory);
    relay_leave(job);
    audit_switch(job, view);
    journal_leaves_layout(job);
    former_switch(job);
    shard_job_give_all(job, &less);
    job->view = shard_view_ref(view);
    job->planes.map = &view->table.map;
    job->planes.forms = view->forms;
    job->planes.places = view->places;
    free(job->puts.have);
    job->puts.have = ready.have;
    collector_switch(&job->collector, &ready.step, &ready.collector);
    pass_switch(job, &ready.pass);
    tiles_switch(job, &view->table, ready.holds);
    published_forget_params(job);
    shard_view_unref(before);
    return CAIRN_OK;
}

/* ==== park ==== */

#define PIECE_BYTES ((uint64_t)4 << 20) /* how many bytes one item copies */

/* Resumes the work that waited until the job was parked, or taken back to the device. */
static void go_on(struct shard_job *job)
{
    job->park.is_under_way = false;
    if (job->state != CAIRN_JOB_SERVING) return;
    published_trim(job); // drops copies for leases that have ended meanwhile
    fetch_deferred(job);
}

static void end_park(struct shard_job *job, cairn_status status, const struct sentence *why)
{
    go_on(job);
    if (status != CAIRN_OK)
        log_warn("job %s is not %s: %s", job->spec.name,
                 job->park.to_host ? "parked" : "taken back to the device", why->text);
    session_answer(job->shard, &job->park.asked, status, why);
}

/* Ends a park, or a move back to the device, that has failed. The job stays where it was. */
static void give_up(struct shard_job *job, cairn_status status, const struct sentence *why)
{
    for (struct area *area = job->planes.areas; area != NULL; area = area->next)
        arena_release(job->shard, &area->to);
    if (job->park.to_host) {
        shard_job_give(job, &job->memory.state, job->park.host_bytes);
        job->park.host_bytes = 0;
    } else {
        published_park(job);
    }
    end_park(job, status, why);
}

/* ---- the copies ---- */

static struct shard_job *job_of(const struct work_run *run)
{
    return (struct shard_job *)((char *)(uintptr_t)run - offsetof(struct shard_job, park.copy));
}

static uint32_t piece_count(uint64_t bytes)
{
    return (uint32_t)((bytes + PIECE_BYTES - 1) / PIECE_BYTES);
}

/* Finds the n-th array that moves. The first arrays are the areas of planes, the further arrays are
 * published copies. Returns false if there is no n-th array. *area_out is NULL for a published
 * copy. */
static bool move_of(const struct shard_job *job, uint32_t n, struct published_move *out,
                    const struct area **area_out)
{
    const struct area *area = job->planes.areas;
    while (area != NULL && n > 0) {
        area = area->next;
        n--;
    }
    *area_out = area;
    if (area == NULL) return published_move(job, job->park.to_host, n, out);
    *out = (struct published_move) { area->to.base, area->arena.base, area->to.bytes };
    return true;
}

static uint32_t all_pieces(const struct shard_job *job)
{
    struct published_move move;
    const struct area *area;
    uint32_t pieces = 0;
    for (uint32_t n = 0; move_of(job, n, &move, &area); n++) pieces += piece_count(move.bytes);
    return pieces;
}

/* True if the segment of the area in which `at` lies was given back to the device. */
static bool area_is_gone(const struct area *area, uint64_t at)
{
    return area->segments[at / CAIRN_SEGMENT_BYTES].is_gone;
}

static bool describe(struct work_run *run, uint32_t item, uint32_t stage, struct works *works)
{
    const struct shard_job *job = job_of(run);
    struct published_move move;
    const struct area *area;
    (void)stage;
    for (uint32_t n = 0; move_of(job, n, &move, &area); n++) {
        const uint32_t pieces = piece_count(move.bytes);
        if (item >= pieces) {
            item -= pieces;
            continue;
        }
        const uint64_t at = item * PIECE_BYTES, left = move.bytes - at;
        if (area != NULL && area_is_gone(area, at)) return false;
        works_copy(works, (uint8_t *)move.to + at, (const uint8_t *)move.from + at,
                   (size_t)(left < PIECE_BYTES ? left : PIECE_BYTES));
        return false;
    }
    return false;
}

/* Gives back again the segments that had been given back before the park, because the areas were
 * made anew on the device with all their segments. */
static void areas_give_gone(struct state_planes *planes)
{
    for (struct area *area = planes->areas; area != NULL; area = area->next)
        for (uint64_t s = 0; s < memory_segments(area->arena.bytes); s++)
            if (area->segments[s].is_gone) arena_give_segment(&area->arena, s);
}

/* Ends a park, or a move back to the device, that has succeeded. From now on the planes lie where
 * they were copied to. The memory in which they lay before is given back; after that the request is
 * answered. */
static void settle_park(struct shard_job *job)
{
    struct shard_daemon *shard = job->shard;
    const uint64_t host_bytes = job->park.to_host ? 0 : job->park.host_bytes;
    for (struct area *area = job->planes.areas; area != NULL; area = area->next) {
        arena_release(shard, &area->arena);
        area->arena = area->to;
        area->to = CAIRN_ARENA_NONE;
    }
    if (!job->park.to_host) areas_give_gone(&job->planes);
    job->planes.parked = job->park.is_parked = job->park.to_host;
    job->compute = job->park.to_host ? &shard->host : &shard->device;
    (job->park.to_host ? published_park : published_unpark)(job);
    pass_divide(job);
    job->memory.device = job->park.to_host ? 0 : shard_job_device_bytes(job, false);
    job->memory.state -= host_bytes;
    job->park.host_bytes -= host_bytes;
    go_on(job);
    log_info("job %s is %s", job->spec.name,
             job->park.to_host ? "parked: its state lies in host memory" : "back on its device");
    release_bytes(shard, host_bytes, &job->park.asked);
}

static void planes_copied(struct work_run *run)
{
    struct shard_job *job = job_of(run);
    struct sentence why = { "the job is being dropped" };
    if (run->status != CAIRN_OK) {
        // The copies have not written to the memory in which the state lies. So the state is lost
        // only if it lies on a device that has failed. If it was being copied back to the device,
        // it is still complete in host memory.
        if (job->park.to_host && home_has_failed(run->compute->home))
            (void)shard_job_run_failed(job, run);
        compute_why(run->compute, &why);
        give_up(job, run->status, &why);
    } else if (job->state != CAIRN_JOB_SERVING) {
        give_up(job, CAIRN_ERR_CANCELED, &why);
    } else {
        settle_park(job);
    }
    shard_job_idle(job);
}

static void copy_planes(struct shard_job *job)
{
    job->park.copy = (struct work_run) { .compute = &job->shard->device,
                                         .item_count = all_pieces(job),
                                         .describe = describe,
                                         .done = planes_copied };
    shard_job_busy(job);
    compute_submit(&job->park.copy);
}

/* ---- to the host ---- */

static cairn_status add_room(struct reserve *reserve, struct shard_job *job)
{
    cairn_status status = CAIRN_OK;
    for (const struct area *area = job->planes.areas; area != NULL; area = area->next)
        for (uint64_t at = 0; at < area->to.bytes && status == CAIRN_OK;
             at += CAIRN_SEGMENT_BYTES) {
            if (!area_is_gone(area, at))
                status = reserve_add(reserve, &area->to, at,
                                     segment_bytes(area->to.bytes, at / CAIRN_SEGMENT_BYTES));
        }
    return status;
}

static void on_room(const struct reserve_request *request, cairn_status status,
                    const struct sentence *why)
{
    if (status == CAIRN_OK)
        copy_planes(request->job);
    else
        give_up(request->job, status, why);
}

static void park_part(struct shard_job *job)
{
    const struct reserve_request request = {
        .job = job, .what = "the parked state", .prepare = add_room, .done = on_room
    };
    const uint64_t bytes = areas_bytes(&job->planes);
    char what[CAIRN_NAME_MAX + 32];
    struct sentence why;
    snprintf(what, sizeof what, "job %s, parked,", job->spec.name);
    cairn_status status = shard_job_take(job, &job->memory.state, bytes, what, &why);
    if (status != CAIRN_OK) {
        end_park(job, status, &why);
        return;
    }
    job->park.host_bytes = bytes;
    for (struct area *area = job->planes.areas; area != NULL && status == CAIRN_OK;
         area = area->next) {
        status = arena_open_scratch("parked", area->arena.bytes, &area->to, &why);
        // the device copies to and from this memory
        arena_pins_for(&area->to, job->shard->device.home);
    }
    if (status == CAIRN_OK) status = reserve_begin(&request, &why);
    if (status != CAIRN_OK) give_up(job, status, &why);
}

/* ---- and back ---- */

static void unpark_part(struct shard_job *job)
{
    struct sentence why;
    cairn_status status = shard_job_judge_device(job, shard_job_device_bytes(job, true), 0, &why);
    for (struct area *area = job->planes.areas; area != NULL && status == CAIRN_OK;
         area = area->next)
        status = arena_open_home(job->shard->device.home, "unparked", area->arena.bytes, &area->to,
                                 &why);
    if (status == CAIRN_OK) status = published_open_device(job, &why);
    if (status == CAIRN_OK)
        copy_planes(job);
    else
        give_up(job, status, &why);
}

/* ---- asked ---- */

/* True if nothing works on the planes, and no work on them will begin by itself. */
static bool rests(const struct shard_job *job)
{
    // A snapshot reads planes where they lie, so planes on a device must not move meanwhile.
    const bool saves = job->planes.host_from != 0 && !LIST_EMPTY(&job->pins.list);
    return step_phase_of(job->collector.step) == CAIRN_STEP_IDLE &&
           step_slots_used(job->collector.step) == 0 && !job->pass.updating &&
           job->pass.parts_left == 0 && !bring_works(job) && !saves && job->puts.write == NULL &&
           job->move.next == NULL && job->move.now == NULL;
}

/* Replaces the request that waits, because the coordinator asks again. The new request is answered
 * at the end. */
static void take_over(struct shard_job *job, struct request asked)
{
    struct sentence why;
    sentence_set(&why, "it was asked for again");
    session_answer(job->shard, &job->park.asked, CAIRN_ERR_CANCELED, &why);
    job->park.asked = asked;
}

/* Handles a PartPark: parks the job, or takes it back to the device, and answers when this is done.
 * If nothing has to be moved, answers immediately. If the same move is under way already, the
 * answer comes at its end. CAIRN_ERR_NOT_READY: the job does not serve. CAIRN_ERR_BUSY: the job is
 * at work, or moves the other way; the coordinator may ask again. CAIRN_ERR_NO_MEMORY: the job
 * stays where it is, and the answer has the numbers. CAIRN_ERR_IO: the device has failed. */
static void on_park(struct shard_job *job, struct request asked, const void *body)
{
    const Cairn__PartPark *message = body;
    struct sentence why;
    cairn_status status = CAIRN_OK;
    if (job->park.is_under_way && job->park.to_host == message->parked) {
        take_over(job, asked);
        return;
    }
    pins_unprepare(job);
    if (job->state != CAIRN_JOB_SERVING)
        status = fail_with(&why, CAIRN_ERR_NOT_READY, "the job has no version yet");
    else if (job->park.is_under_way)
        status = fail_with(&why, CAIRN_ERR_BUSY, "it moves the other way; ask again");
    else if (!rests(job) || job->versions.direct_sends > 0)
        status = fail_with(&why, CAIRN_ERR_BUSY, "it is at work on the job; ask again");
    if (status != CAIRN_OK) pins_hurry(job);
    const bool is_so = job->planes.host_from == 0 || message->parked == job->planes.parked;
    if (status == CAIRN_OK && is_so) job->park.is_parked = message->parked;
    if (status != CAIRN_OK || is_so) {
        session_answer(job->shard, &asked, status, &why);
        return;
    }
    job->park.is_under_way = true;
    job->park.to_host = message->parked;
    job->park.asked = asked;
    (message->parked ? park_part : unpark_part)(job);
}

const struct shard_module park_module = {
    .messages = (const struct shard_message[]) { { CAIRN_MSG_PART_PARK, .ask_job = on_park },
                                                 { 0 } },
};

/* ---- what a job takes of a device ---- */

uint32_t shard_job_folds_wanted(const struct shard_job *job, const struct shard_map *map,
                                uint64_t host_from)
{
    uint32_t wanted = 0;
    if (host_from > 0) wanted += compute_items_wanted(&job->shard->device);
    if (host_from < map->elem_count || wanted == 0)
        wanted += compute_items_wanted(&job->shard->host);
    return wanted;
}

uint64_t shard_job_device_bytes(const struct shard_job *job, bool all)
{
    return areas_bytes(&job->planes) + published_device_bytes(job, all);
}
