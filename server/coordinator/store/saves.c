#include "server/coordinator/store/saves.h"

#include <stdlib.h>

#include "server/base/pool.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/store/store.h"
#include "server/core/holes.h"

struct cairn_cluster_save {
    struct cairn_task task;
    struct cairn_cluster_save *next; /* of the cluster's list */
    struct cairn_cluster_saved saved;
    cairn_cluster_saved_fn then;
    enum cairn_store_change change;
    /* owned */
    void *rows; /* [row_count] */
    size_t row_count;
    struct cairn_stored_shard *shards; /* those of a job's row */
    struct cairn_packed *held[3];      /* what it points to besides: it may be large */
    struct cairn_sentence why;
    uint64_t store_writes; /* of the store when it was done */
};

/* ---- on the store's thread ---- */

static void run_save(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    struct cairn_cluster_save *save = (struct cairn_cluster_save *)task;
    struct cairn_store *store = save->saved.cluster->store;
    (void)item;
    (void)thread;
    save->saved.status = cairn_store_write(store, save->change, save->rows, save->row_count,
                                           &save->why);
    save->store_writes = cairn_store_writes(store);
}

/* ---- on the loop ---- */

static void free_save(struct cairn_cluster_save *save)
{
    free(save->rows);
    free(save->shards);
    for (size_t i = 0; i < 3; i++) cairn_packed_release(save->held[i]);
    free(save);
}

static void on_saved(struct cairn_task *task)
{
    struct cairn_cluster_save *save = (struct cairn_cluster_save *)task;
    struct cairn_cluster *cluster = save->saved.cluster;
    struct cairn_cluster_save **at = &cluster->saves.list;
    while (*at != save) at = &(*at)->next;
    *at = save->next;
    cluster->saves.rows_written = save->store_writes;
    if (!cluster->closing) save->then(&save->saved);
    free_save(save);
}

/* It is of no job yet, and not begun. NULL: no memory. */
static struct cairn_cluster_save *save_new(struct cairn_cluster *cluster,
                                           enum cairn_store_change change, const void *rows,
                                           size_t row_count, uint64_t number,
                                           cairn_cluster_saved_fn then)
{
    struct cairn_cluster_save *save = calloc(1, sizeof *save);
    if (save == NULL) return NULL;
    save->task = (struct cairn_task) { .run = run_save, .done = on_saved, .item_count = 1 };
    save->saved = (struct cairn_cluster_saved) { cluster, 0, number, CAIRN_OK, save->why.text };
    save->then = then;
    save->change = change;
    save->rows = cairn_store_copy(change, rows, row_count);
    save->row_count = row_count;
    if (save->rows != NULL) return save;
    free_save(save);
    return NULL;
}

/* NULL: there was no memory for it. */
static cairn_status save_start(struct cairn_cluster_save *save, struct cairn_sentence *why)
{
    if (save == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    struct cairn_cluster *cluster = save->saved.cluster;
    save->next = cluster->saves.list;
    cluster->saves.list = save;
    cairn_pool_submit(cluster->saves.pool, &save->task);
    return CAIRN_OK;
}

cairn_status cairn_cluster_save(struct cairn_cluster *cluster, enum cairn_store_change change,
                                const void *rows, size_t count, uint64_t number,
                                cairn_cluster_saved_fn then, struct cairn_sentence *why)
{
    return save_start(save_new(cluster, change, rows, count, number, then), why);
}

/* Copies the names of the job's shards and of those that are to join, "" for holes, and their weights.
 * NULL: no memory. */
static struct cairn_stored_shard *copy_shards(const struct cairn_cluster_job *job, uint32_t count)
{
    const struct cairn_layout *next = job->layouts.storing ? job->layouts.next : NULL;
    struct cairn_stored_shard *shards = calloc((size_t)count + 1, sizeof *shards);
    if (shards == NULL) return NULL;
    for (uint32_t i = 0; i < count; i++) {
        const struct cairn_cluster_joiner *joiner =
            i < job->shard_count ? NULL : &job->reshard.joiners[i - job->shard_count];
        const struct cairn_cluster_seat *seat = joiner != NULL ? joiner->seat : job->shards[i].seat;
        const bool is_hole = seat == NULL ||
                             (next != NULL && i < next->shard_count &&
                              cairn_is_hole(job->layouts.next_gone, next->shard_count, i));
        shards[i].name = is_hole ? "" : seat->name;
        shards[i].weight = joiner != NULL ? joiner->weight : job->shards[i].weight;
    }
    struct cairn_stored_shard *copies = cairn_store_copy(CAIRN_STORE_SHARDS, shards, count);
    free(shards);
    return copies;
}

static const uint8_t *hold(struct cairn_packed **held, struct cairn_packed *packed,
                           size_t *bytes_out)
{
    if (packed == NULL) return NULL;
    *held = cairn_packed_hold(packed);
    *bytes_out = packed->size;
    return packed->bytes;
}

/* The layout that is in force, or on its way to be: once that is to be written nothing takes it back.
 * False: no memory. */
static bool fill_layout(const struct cairn_cluster_job *job, struct cairn_cluster_save *save)
{
    const struct cairn_cluster_layouts *l = &job->layouts;
    struct cairn_stored_job *row = save->rows;
    struct cairn_version at = l->at;
    struct cairn_packed *layout = job->planned.layout, *before = l->before;
    uint32_t before_shards;
    if (l->storing) {
        at = cairn_round_version(job->core);
        layout = l->next_packed;
        before = cairn_cluster_job_before_next(job, at, &before_shards);
    }
    row->layout = hold(&save->held[0], layout, &row->layout_bytes);
    row->layout_before = hold(&save->held[1], before, &row->layout_before_bytes);
    row->layout_at_generation = at.generation;
    row->layout_at_step = at.step;
    row->shard_count = job->shard_count + job->reshard.joiner_count;
    row->shards = save->shards = copy_shards(job, row->shard_count);
    row->weighed = job->reshard.running;
    row->pause = job->reshard.pace.pause;
    return row->shards != NULL;
}

cairn_status cairn_cluster_save_job(struct cairn_cluster_job *job, enum cairn_store_change change,
                                    struct cairn_packed *spec, uint64_t number,
                                    cairn_cluster_saved_fn then, struct cairn_sentence *why)
{
    const struct cairn_stored_job scalars = { .name = job->spec.name,
                                              .id = job->id,
                                              .generation = job->generation,
                                              .generation_reserved = job->reserved.generation,
                                              .epoch = job->epoch,
                                              .round_reserved = job->reserved.round,
                                              .base_step = job->base_step,
                                              .origin = job->origin,
                                              .initialized = job->initialized };
    struct cairn_cluster_save *save = save_new(job->cluster, change, &scalars, 1, number, then);
    if (save == NULL) return save_start(NULL, why);
    struct cairn_stored_job *row = save->rows;
    save->saved.job = job->id;
    if (change == CAIRN_STORE_INITIALIZED) row->initialized = true;
    if (change == CAIRN_STORE_GENERATION) row->generation_reserved = number;
    if (change == CAIRN_STORE_JOB)
        row->spec = hold(&save->held[2], spec != NULL ? spec : job->planned.spec, &row->spec_bytes);
    if ((change == CAIRN_STORE_JOB || change == CAIRN_STORE_LAYOUT) && !fill_layout(job, save)) {
        free_save(save);
        return save_start(NULL, why);
    }
    if (change == CAIRN_STORE_JOB) job->stored = true;
    return save_start(save, why);
}

bool cairn_cluster_saving(const struct cairn_cluster_job *job)
{
    const struct cairn_cluster_save *save = job->cluster->saves.list;
    while (save != NULL && save->saved.job != job->id) save = save->next;
    return save != NULL;
}

cairn_status cairn_cluster_saves_open(struct cairn_cluster *cluster, struct cairn_sentence *why)
{
    return cairn_pool_open(cluster->loop, "cairn-store", 1, NULL, &cluster->saves.pool, why);
}

void cairn_cluster_saves_close(struct cairn_cluster *cluster, void (*on_closed)(void *context),
                               void *context)
{
    if (cluster->saves.pool != NULL) cairn_pool_close(cluster->saves.pool, on_closed, context);
    while (cluster->saves.list != NULL) {
        struct cairn_cluster_save *save = cluster->saves.list;
        cluster->saves.list = save->next;
        free_save(save);
    }
}
