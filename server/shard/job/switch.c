#include "server/shard/job/switch.h"

#include <stdlib.h>

#include "server/shard/job/open.h"
#include "server/shard/relay/relay.h"
#include "server/shard/shard.h"

/* ---- a view ---- */

/* Views of before, whose places are kept; all NULL: a fresh job. */
struct places {
    const struct cairn_shard_map *before, *beside;
    const bool *dense; /* of cairn_shard_map_init_from: blobs */
};

static cairn_status make_map(const struct cairn_shard_job *job, uint32_t index,
                             const struct places *places, struct cairn_shard_view *view,
                             struct cairn_sentence *why)
{
    if (index >= view->layout->shard_count)
        return cairn_fail(why, CAIRN_ERR_INVALID, "shard index %u of a layout of %u shards", index,
                          view->layout->shard_count);
    struct cairn_shard_map *map = &view->table.map;
    const uint32_t leaves = job->spec.chunk_leaves;
    const cairn_status status = places->before == NULL
                                    ? cairn_shard_map_init(map, view->layout, index, leaves)
                                    : cairn_shard_map_init_from(map, view->layout, index, leaves,
                                                                places->before, places->beside,
                                                                places->dense);
    if (status == CAIRN_ERR_INVALID)
        return cairn_fail(why, status,
                          "layout %llu joins what lies apart on shard %s, or cannot be cut in "
                          "chunks of %u leaves",
                          (unsigned long long)view->layout->version, job->shard->name, leaves);
    if (status != CAIRN_OK) return cairn_fail(why, status, "no memory for the map of a job");
    if (map->chunk_count >= UINT32_MAX)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "%llu chunks on one shard: raise chunk_leaves or add shards",
                          (unsigned long long)map->chunk_count);
    return CAIRN_OK;
}

static cairn_status make_forms(const struct cairn_shard_job *job, uint32_t member_max,
                               struct cairn_shard_view *view, struct cairn_need *need,
                               struct cairn_sentence *why)
{
    view->forms = calloc(view->table.map.extent_count + 1, sizeof *view->forms);
    if (view->forms == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a job");
    const cairn_status status = cairn_need_of(&job->spec, &view->table.map, member_max,
                                              job->shard->device.home != NULL, view->forms, need,
                                              why);
    if (status != CAIRN_OK) return status;
    view->wire_bytes = need->wire_bytes;
    view->published_bytes = need->memory.published;
    view->table_bytes = need->memory.tables;
    return CAIRN_OK;
}

static cairn_status open_view(const struct cairn_shard_job *job, struct cairn_layout *layout,
                              uint32_t index, uint32_t member_max, const struct places *places,
                              struct cairn_shard_view **view_out, struct cairn_need *need_out,
                              struct cairn_sentence *why)
{
    struct cairn_shard_view *view = calloc(1, sizeof *view);
    if (view == NULL) {
        cairn_layout_close(layout);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a layout");
    }
    view->refs = 1;
    view->layout = layout;
    cairn_status status = make_map(job, index, places, view, why);
    if (status == CAIRN_OK) status = make_forms(job, member_max, view, need_out, why);
    if (status == CAIRN_OK)
        *view_out = view;
    else
        cairn_shard_view_unref(view);
    return status;
}

cairn_status cairn_shard_view_open(const struct cairn_shard_job *job, struct cairn_layout *layout,
                                   uint32_t index, uint32_t member_max,
                                   struct cairn_shard_view **view_out, struct cairn_need *need_out,
                                   struct cairn_sentence *why)
{
    const struct places none = { .before = NULL };
    return open_view(job, layout, index, member_max, &none, view_out, need_out, why);
}

cairn_status cairn_shard_view_number(struct cairn_shard_view *view,
                                     const struct cairn_job_spec_data *spec,
                                     struct cairn_sentence *why)
{
    const cairn_status status = cairn_chunk_table_number(&view->table, spec);
    if (status == CAIRN_OK) return CAIRN_OK;
    return cairn_fail(why, status, "no memory for the chunks of a job");
}

/* ---- the next one ---- */

static uint32_t member_max_of(const struct cairn_shard_job *job)
{
    return job->collector.slot_count / job->landing.window;
}

/* Beside an area for what comes, room for what copies will take more. */
static cairn_status judge_area(const struct cairn_shard_job *job,
                               const struct cairn_shard_view *view, uint64_t bytes,
                               struct cairn_sentence *why)
{
    const uint64_t copies = 2 * cairn_plane_units(view->wire_bytes),
                   there = cairn_published_device_bytes(job, false);
    return cairn_shard_job_judge_device(
        job, cairn_plane_units(bytes) + (copies > there ? copies - there : 0), 0, why);
}

cairn_status cairn_shard_view_place(struct cairn_shard_job *job, struct cairn_shard_view *view,
                                    const struct cairn_shard_view *before,
                                    struct cairn_sentence *why)
{
    uint64_t bytes;
    if (cairn_shard_view_places_open(view, before, job->planes.host_from, &bytes) != CAIRN_OK)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the places of planes");
    cairn_status status = CAIRN_OK;
    if (before != NULL && bytes > 0) status = judge_area(job, view, bytes, why);
    if (status == CAIRN_OK)
        status = cairn_shard_view_area_add(view, &job->planes, job->shard->device.home, bytes, why);
    if (before != NULL) job->memory.device = cairn_shard_job_device_bytes(job, false);
    return status;
}

static cairn_status make_whole(struct cairn_shard_job *job, struct cairn_shard_view *view,
                               const struct cairn_shard_view *before, struct cairn_sentence *why)
{
    const uint64_t end = view->table.map.local_end;
    const bool on_host = job->planes.host_from == 0;
    if (on_host && end > job->planes.room_elems)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY,
                          "what job %s has on shard %s lies too far apart: %llu elements, and "
                          "there are addresses for %llu; restore a snapshot to join it",
                          job->spec.name, job->shard->name, (unsigned long long)end,
                          (unsigned long long)job->planes.room_elems);
    const cairn_status status = cairn_shard_view_number(view, &job->spec, why);
    if (status != CAIRN_OK) return status;
    return on_host ? cairn_planes_grow(&job->planes, &view->table.map, view->forms, why)
                   : cairn_shard_view_place(job, view, before, why);
}

/* By tensor: the bytes of an extent stand dense, so a part of one lies elsewhere than its local elements say
 * (memory/plane.h). Malloc'ed. */
static bool *list_dense(const struct cairn_job_spec_data *spec)
{
    bool *dense = calloc(spec->tensor_count + 1, sizeof *dense);
    for (size_t t = 0; dense != NULL && t < spec->tensor_count; t++)
        dense[t] = spec->tensors[t].kind == CAIRN_BLOB;
    return dense;
}

cairn_status cairn_shard_view_next(struct cairn_shard_job *job, struct cairn_layout *layout,
                                   uint32_t index, const struct cairn_shard_view *before,
                                   struct cairn_shard_view **view_out, struct cairn_sentence *why)
{
    struct cairn_shard_view *view;
    struct cairn_need need;
    if (job->planes.host_from != 0 && job->planes.host_from != CAIRN_PLANES_ALL) {
        cairn_layout_close(layout);
        return cairn_fail(why, CAIRN_ERR_UNSUPPORTED,
                          "state of job %s lies partly on a device of shard %s, where no layout "
                          "changes: restore a snapshot onto the shards that are wanted",
                          job->spec.name, job->shard->name);
    }
    bool *dense = list_dense(&job->spec);
    if (dense == NULL) {
        cairn_layout_close(layout);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a layout");
    }
    const struct places places = { &before->table.map, &job->view->table.map, dense };
    cairn_status status = open_view(job, layout, index, member_max_of(job), &places, &view, &need,
                                    why);
    free(dense);
    if (status != CAIRN_OK) return status;
    status = make_whole(job, view, before, why);
    if (status == CAIRN_OK)
        *view_out = view;
    else
        cairn_shard_view_unref(view);
    return status;
}

/* ---- the switch ---- */

/* Tables for the new view. They are made before anything changes, so that a lack of memory changes
 * nothing. */
struct ready {
    struct cairn_step_config step;
    struct cairn_collector_tables collector;
    struct cairn_pass_tables pass;
    uint8_t *holds, *have;
};

bool cairn_shard_job_rests(const struct cairn_shard_job *job)
{
    const enum cairn_step_phase phase = cairn_step_phase_of(job->collector.step);
    const bool is_saved = !cairn_pins_rest(job) || job->pins.reports != NULL;
    return (phase == CAIRN_STEP_IDLE || phase == CAIRN_STEP_JOINING) && cairn_tiles_rest(job) &&
           !job->pass.updating && job->pass.parts_left == 0 && job->pass.republished == NULL &&
           !is_saved && !job->park.is_under_way && job->puts.write == NULL;
}

static cairn_status judge(const struct cairn_shard_job *job, struct cairn_sentence *why)
{
    if (job->state == CAIRN_JOB_SERVING && cairn_shard_job_rests(job)) return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_BUSY,
                      "job %s is at work on shard %s: its layout cannot change", job->spec.name,
                      job->shard->name);
}

static void ready_close(struct cairn_shard_job *job, struct ready *ready)
{
    if (ready->holds != NULL) cairn_tiles_unready(job, ready->holds);
    cairn_collector_tables_close(&ready->collector);
    cairn_pass_tables_close(&ready->pass);
    free(ready->have);
}

static cairn_status make_ready(struct cairn_shard_job *job, const struct cairn_shard_view *view,
                               struct ready *ready, struct cairn_sentence *why)
{
    const struct cairn_chunk_table *table = &view->table;
    ready->step = (struct cairn_step_config) {
        .chunk_count = table->trained_count,
        .window = job->landing.window,
        .small = job->landing.small,
        .in_place = job->landing.in_place,
        .member_max = member_max_of(job),
        .payload_bytes_max = cairn_shard_payload_max(job),
        .folds_wanted = cairn_shard_job_folds_wanted(job, &table->map, job->planes.host_from),
    };
    ready->have = calloc((size_t)table->map.chunk_count + 1, 1);
    cairn_status status = ready->have != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
    if (status == CAIRN_OK)
        status = cairn_collector_tables_open(&job->collector, &ready->step, table,
                                             &ready->collector);
    if (status == CAIRN_OK) status = cairn_pass_tables_open(table, &ready->pass);
    if (status == CAIRN_OK) return cairn_tiles_ready(job, table, &ready->holds, why);
    return cairn_fail(why, status, "no memory for the chunks of layout %llu of job %s",
                      (unsigned long long)view->layout->version, job->spec.name);
}

static uint64_t less(uint64_t now, uint64_t next)
{
    return now > next ? now - next : 0;
}

static void give_less(struct cairn_shard_job *job, const struct cairn_shard_view *view)
{
    const uint64_t published = less(job->view->published_bytes, view->published_bytes);
    const uint64_t tables = less(job->view->table_bytes, view->table_bytes);
    cairn_shard_job_give(job, &job->memory.published, published);
    cairn_shard_job_give(job, &job->memory.tables, tables);
}

cairn_status cairn_shard_job_switch(struct cairn_shard_job *job, struct cairn_shard_view *view,
                                    struct cairn_sentence *why)
{
    struct ready ready = { .have = NULL };
    cairn_status status = judge(job, why);
    if (status == CAIRN_OK) status = make_ready(job, view, &ready, why);
    if (status != CAIRN_OK) {
        ready_close(job, &ready);
        return status;
    }
    struct cairn_shard_view *before = job->view;
    cairn_relay_leave(job);
    give_less(job, view);
    job->view = cairn_shard_view_ref(view);
    job->planes.map = &view->table.map;
    job->planes.forms = view->forms;
    job->planes.places = view->places;
    free(job->puts.have);
    job->puts.have = ready.have;
    cairn_collector_switch(&job->collector, &ready.step, &ready.collector);
    cairn_pass_switch(job, &ready.pass);
    cairn_tiles_switch(job, &view->table, ready.holds);
    cairn_published_forget_params(job);
    cairn_shard_view_unref(before);
    return CAIRN_OK;
}
