/* Layouts: who owns which chunk. They are made here, and known by their place in sim->layouts to whoever was
 * given one: a shard, a coordinator, a worker each have one in force as far as they know. */
#include <string.h>

#include "tests/sim/sim.h"

struct sim_layout *layout_new(struct sim *sim, const struct sim_layout *before)
{
    if (sim->layout_count == LAYOUTS_MAX) return NULL;
    struct sim_layout *layout = &sim->layouts[sim->layout_count];
    if (before != NULL)
        *layout = *before;
    else
        memset(layout, 0, sizeof *layout);
    layout->id = sim->layout_count++;
    layout->before = before;
    layout->number++;
    layout->back = layout->empty = false;
    return layout;
}

void layout_index(const struct sim *sim, struct sim_layout *layout)
{
    memset(layout->count, 0, sizeof layout->count);
    for (uint32_t c = 0; c < sim->scenario.chunks; c++) {
        const uint32_t shard = layout->owner[c];
        layout->local[c] = layout->count[shard]++;
        layout->chunk[shard][layout->local[c]] = c;
    }
    layout->shard_count = 0;
    for (uint32_t s = 0; s < SHARDS_MAX; s++)
        if (layout_has(layout, s)) layout->shard_count = s + 1;
    if (layout->before != NULL && layout->shard_count < layout->before->shard_count)
        layout->shard_count = layout->before->shard_count;
}

bool layout_has(const struct sim_layout *layout, uint32_t shard)
{
    return (layout->shards >> shard & 1) != 0;
}

const struct sim_layout *layout_serves(const struct sim_layout *layout, struct cairn_version after,
                                       struct cairn_version version)
{
    return version_compare(version, after) > 0 ? layout : layout->published;
}
