/* The memory that a job takes on its shards, by kind. */
#include "client/ctl/ctl.h"

uint64_t cairn_ctl_job_memory_sum(const Cairn__MemoryTold *m)
{
    return m->state + m->published + m->landing + m->staging + m->tables;
}

static Cairn__MemoryTold all_of(Cairn__MemoryTold *const *shards, size_t count)
{
    Cairn__MemoryTold all = CAIRN__MEMORY_TOLD__INIT;
    for (size_t i = 0; i < count; i++) {
        all.state += shards[i]->state;
        all.published += shards[i]->published;
        all.landing += shards[i]->landing;
        all.staging += shards[i]->staging;
        all.tables += shards[i]->tables;
        all.device += shards[i]->device;
    }
    return all;
}

static json_t *kinds_json(const Cairn__MemoryTold *m)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "state", (json_int_t)m->state,
                     "published", (json_int_t)m->published, "landing", (json_int_t)m->landing,
                     "staging", (json_int_t)m->staging, "tables", (json_int_t)m->tables, "total",
                     (json_int_t)cairn_ctl_job_memory_sum(m), "device", (json_int_t)m->device);
}

json_t *cairn_ctl_job_memory_json(Cairn__MemoryTold *const *shards, size_t count)
{
    const Cairn__MemoryTold all = all_of(shards, count);
    json_t *object = kinds_json(&all), *list = json_array();
    for (size_t i = 0; i < count; i++) {
        json_t *entry = kinds_json(shards[i]);
        json_object_set_new(entry, "index", json_integer((json_int_t)shards[i]->shard_index));
        if (shards[i]->shard[0] != '\0')
            json_object_set_new(entry, "shard", json_string(shards[i]->shard));
        json_array_append_new(list, entry);
    }
    json_object_set_new(object, "shards", list);
    return object;
}

static void add_row(struct ctl_table *table, size_t columns, const char *name,
                    const Cairn__MemoryTold *m)
{
    const uint64_t bytes[] = { m->state,   m->published, m->landing,
                               m->staging, m->tables,    cairn_ctl_job_memory_sum(m),
                               m->device };
    cairn_ctl_table_cell(table, "%s", name);
    for (size_t i = 0; i < columns - 1; i++)
        cairn_ctl_table_cell(table, "%s", m->untold ? "-" : cairn_ctl_bytes(bytes[i]));
}

void cairn_ctl_job_memory_print(const struct ctl *ctl, Cairn__MemoryTold *const *shards,
                                size_t count)
{
    static const char *const headers[] = { "MEMORY OF", "STATE",  "PUBLISHED", "LANDING",
                                           "STAGING",   "TABLES", "TOTAL",     "ON DEVICE" };
    const Cairn__MemoryTold all = all_of(shards, count);
    const size_t columns = all.device > 0 ? 8 : 7;
    struct ctl_table *table = cairn_ctl_table_open(headers, columns);
    for (size_t i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "shard %u", shards[i]->shard_index);
        add_row(table, columns, shards[i]->shard[0] != '\0' ? shards[i]->shard : name, shards[i]);
    }
    if (count > 1) add_row(table, columns, "all", &all);
    cairn_ctl_table_close(table, ctl);
}
