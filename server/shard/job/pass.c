#include "server/shard/job/pass.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/shard.h"

/* A pass over so few takes some 10 us; a thread to be woken, and to wake the loop, takes as long. */
#define SMALL_ELEMS 16384
/* From here on nothing of a pass is in a cache when the next one comes to it, by measurement. */
#define FAR_ELEMS ((uint64_t)4 << 20)

void cairn_pass_divide(struct cairn_shard_job *job)
{
    struct cairn_pass *pass = &job->pass;
    const struct cairn_shard_map *map = &pass->table->map;
    const uint64_t device_end = cairn_planes_device_end(&job->planes);
    uint32_t chunk = 0, trained = 0;
    while (chunk < map->chunk_count && cairn_shard_map_chunk(map, chunk).local_elem < device_end)
        chunk++;
    while (trained < pass->table->trained_count && pass->table->trained[trained] < chunk) trained++;
    pass->host.first = chunk;
    pass->host.trained_first = trained;
}

static void open_parts(struct cairn_shard_job *job)
{
    struct cairn_pass *pass = &job->pass;
    pass->device = pass->host = (struct cairn_pass_part) { .job = job };
    if (job->planes.host_from > 0)
        pass->device.sums = calloc(cairn_compute_lanes(&job->shard->device),
                                   sizeof *pass->device.sums);
    pass->host.sums = calloc(cairn_compute_lanes(&job->shard->host), sizeof *pass->host.sums);
    cairn_pass_divide(job);
}

cairn_status cairn_pass_tables_open(const struct cairn_chunk_table *table,
                                    struct cairn_pass_tables *tables_out)
{
    const size_t trained = table->trained_count;
    struct cairn_pass_tables tables = {
        .table = table,
        .zero = calloc(trained + 1, sizeof *tables.zero),
        .chunk_sums = calloc(trained + 1, sizeof *tables.chunk_sums),
        .summed = calloc(trained + 1, sizeof *tables.summed),
    };
    if (tables.zero == NULL || tables.chunk_sums == NULL || tables.summed == NULL) {
        cairn_pass_tables_close(&tables);
        return CAIRN_ERR_NO_MEMORY;
    }
    *tables_out = tables;
    return CAIRN_OK;
}

void cairn_pass_tables_close(struct cairn_pass_tables *tables)
{
    free(tables->zero);
    free(tables->chunk_sums);
    free(tables->summed);
}

static void take_tables(struct cairn_shard_job *job, struct cairn_pass_tables *tables)
{
    struct cairn_pass *pass = &job->pass;
    const struct cairn_shard_map *map = &tables->table->map;
    pass->table = tables->table;
    pass->is_small = map->elem_count <= SMALL_ELEMS && job->planes.host_from == 0;
    pass->is_far = map->elem_count >= FAR_ELEMS;
    pass->zero = tables->zero;
    pass->chunk_sums = tables->chunk_sums;
    pass->summed = tables->summed;
    *tables = (struct cairn_pass_tables) { .table = NULL };
}

void cairn_pass_switch(struct cairn_shard_job *job, struct cairn_pass_tables *tables)
{
    struct cairn_pass *pass = &job->pass;
    struct cairn_pass_tables before = { pass->table, pass->zero, pass->summed, pass->chunk_sums };
    take_tables(job, tables);
    cairn_pass_tables_close(&before);
    cairn_pass_divide(job);
}

cairn_status cairn_pass_open(struct cairn_shard_job *job, const struct cairn_chunk_table *table)
{
    struct cairn_pass *pass = &job->pass;
    struct cairn_pass_tables tables;
    if (cairn_pass_tables_open(table, &tables) != CAIRN_OK) return CAIRN_ERR_NO_MEMORY;
    take_tables(job, &tables);
    open_parts(job);
    pass->scalars = calloc(job->spec.group_count + CAIRN_MISSED_RUNS(job->spec.tensor_count) + 1,
                           sizeof *pass->scalars);
    const bool leaves = job->spec.missing_gradients == CAIRN_MISSING_LEAVE;
    const size_t tensors = leaves ? job->spec.tensor_count : 0;
    pass->untouched_tensors = calloc(tensors + 1, sizeof *pass->untouched_tensors);
    pass->untouched_elems = calloc(tensors + 1, sizeof *pass->untouched_elems);
    const bool have = pass->scalars != NULL && pass->untouched_tensors != NULL &&
                      pass->untouched_elems != NULL && pass->host.sums != NULL &&
                      (job->planes.host_from == 0 || pass->device.sums != NULL);
    return have ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

void cairn_pass_close(struct cairn_shard_job *job)
{
    free(job->pass.zero);
    free(job->pass.device.sums);
    free(job->pass.host.sums);
    free(job->pass.chunk_sums);
    free(job->pass.summed);
    free(job->pass.scalars);
    free(job->pass.untouched_tensors);
    free(job->pass.untouched_elems);
}

/* ---- items ---- */

struct cairn_shard_job *cairn_pass_job(const struct cairn_run *run)
{
    return ((const struct cairn_pass_part *)run)->job;
}

uint32_t cairn_pass_trained(const struct cairn_run *run, uint32_t item)
{
    const struct cairn_pass_part *part = (const struct cairn_pass_part *)run;
    return item < part->trained_count ? part->trained_first + item : CAIRN_PASS_NOT_TRAINED;
}

uint32_t cairn_pass_chunk(const struct cairn_run *run, uint32_t item)
{
    const struct cairn_pass_part *part = (const struct cairn_pass_part *)run;
    const uint32_t trained = cairn_pass_trained(run, item);
    return trained != CAIRN_PASS_NOT_TRAINED ? part->job->pass.table->trained[trained]
                                             : part->first + (item - part->trained_count);
}

/* ---- the parts ---- */

/* One that failed has stopped the job: nothing of it is told or published. */
static void part_done(struct cairn_run *run)
{
    struct cairn_shard_job *job = cairn_pass_job(run);
    const bool is_last = --job->pass.parts_left == 0;
    job->pass.failed = cairn_shard_job_run_failed(job, run) || job->pass.failed;
    if (is_last && !job->pass.failed) job->pass.kind->done(job);
    cairn_shard_job_idle(job);
}

static void clear_sums(struct cairn_pass_part *part, const struct cairn_compute *compute)
{
    if (part->sums != NULL)
        memset(part->sums, 0, cairn_compute_lanes(compute) * sizeof *part->sums);
}

static void submit_part(struct cairn_pass_part *part, struct cairn_compute *compute,
                        uint32_t item_count)
{
    const struct cairn_pass *pass = &part->job->pass;
    part->run = (struct cairn_run) {
        .task.is_small = pass->is_small,
        .compute = compute,
        .item_count = item_count,
        .describe = pass->kind->describe,
        .conclude = pass->kind->conclude,
        .done = part_done,
    };
    cairn_shard_job_busy(part->job);
    cairn_compute_submit(&part->run);
}

void cairn_pass_submit(struct cairn_shard_job *job, bool trained, bool all,
                       const struct cairn_pass_kind *kind)
{
    struct cairn_pass *pass = &job->pass;
    struct cairn_pass_part *device = &pass->device, *host = &pass->host;
    const uint32_t chunks = (uint32_t)pass->table->map.chunk_count;
    device->trained_count = trained ? host->trained_first : 0;
    host->trained_count = trained ? pass->table->trained_count - host->trained_first : 0;
    const uint32_t on_device = device->trained_count + (all ? host->first : 0);
    const uint32_t on_host = host->trained_count + (all ? chunks - host->first : 0);
    const bool takes_host = on_host > 0 || on_device == 0;
    clear_sums(device, &job->shard->device);
    clear_sums(host, &job->shard->host);
    pass->kind = kind;
    pass->failed = false;
    pass->parts_left = (on_device > 0 ? 1u : 0u) + (takes_host ? 1u : 0u);
    if (on_device > 0) submit_part(device, &job->shard->device, on_device);
    if (takes_host) submit_part(host, &job->shard->host, on_host);
}

static void add_part(struct cairn_step_sums *sums, const struct cairn_pass_part *part,
                     const struct cairn_compute *compute)
{
    for (uint32_t i = 0; part->sums != NULL && i < cairn_compute_lanes(compute); i++) {
        const cairn_status status = cairn_exact_add(&sums->sum_squares, &part->sums[i].sum_squares);
        assert(status == CAIRN_OK); // 2^74 leaves would fit
        (void)status;
        sums->nonfinite += part->sums[i].nonfinite;
    }
}

struct cairn_step_sums cairn_pass_sums(const struct cairn_shard_job *job)
{
    struct cairn_step_sums sums = { 0 };
    add_part(&sums, &job->pass.device, &job->shard->device);
    add_part(&sums, &job->pass.host, &job->shard->host);
    return sums;
}
