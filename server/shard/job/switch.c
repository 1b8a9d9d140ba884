#include "server/shard/job/switch.h"

#include <stdlib.h>

#include "server/shard/shard.h"

/* ---- a view ---- */

static cairn_status make_map(const struct cairn_shard_job *job, uint32_t index,
                             struct cairn_shard_view *view, struct cairn_sentence *why)
{
    if (index >= view->layout->shard_count)
        return cairn_fail(why, CAIRN_ERR_INVALID, "shard index %u of a layout of %u shards", index,
                          view->layout->shard_count);
    struct cairn_shard_map *map = &view->table.map;
    const cairn_status status = cairn_shard_map_init(map, view->layout, index,
                                                     job->spec.chunk_leaves);
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
    if (status == CAIRN_OK) view->wire_bytes = need->wire_bytes;
    return status;
}

cairn_status cairn_shard_view_open(const struct cairn_shard_job *job, struct cairn_layout *layout,
                                   uint32_t index, uint32_t member_max,
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
    cairn_status status = make_map(job, index, view, why);
    if (status == CAIRN_OK) status = make_forms(job, member_max, view, need_out, why);
    if (status == CAIRN_OK)
        *view_out = view;
    else
        cairn_shard_view_unref(view);
    return status;
}

cairn_status cairn_shard_view_number(struct cairn_shard_view *view,
                                     const struct cairn_job_spec_data *spec,
                                     struct cairn_sentence *why)
{
    const cairn_status status = cairn_chunk_table_number(&view->table, spec);
    if (status == CAIRN_OK) return CAIRN_OK;
    return cairn_fail(why, status, "no memory for the chunks of a job");
}
