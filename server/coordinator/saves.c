#include <malloc.h>
#include <sodium.h>
#include <stdlib.h>

#include "server/coordinator/cluster.h"
#include "server/core/holes.h"

struct coord_save {
    struct task task;
    struct coord_save *next; /* of the cluster's list */
    struct coord_saved saved;
    cluster_saved_fn then;
    /* owned */
    void *rows; /* [row_count] */
    size_t row_count;
    struct stored_shard *shards;  /* the shards of a job's row */
    struct stored_tenant *tenant; /* the tenant of a job's row */
    char begun[2 * CAIRN_INIT_DIGEST_BYTES + 1];
    struct packed *held[3]; /* held: large data to which the row points */
    struct sentence why;
    uint64_t store_writes; /* rows that the store had written when the save was done */
};

/* ---- on the store's thread ---- */

static void run_save(struct task *task, uint32_t item, uint32_t thread)
{
    struct coord_save *save = (struct coord_save *)task;
    struct coord_store *store = save->saved.cluster->store;
    (void)item;
    (void)thread;
    save->saved.status = store_write(store, save->saved.change, save->rows, save->row_count,
                                     &save->why);
    save->store_writes = store_rows_written(store);
}

/* ---- on the loop ---- */

static void free_save(struct coord_save *save)
{
    if (save->rows != NULL) sodium_memzero(save->rows, malloc_usable_size(save->rows)); // secrets
    free(save->rows);
    free(save->shards);
    free(save->tenant);
    for (size_t i = 0; i < 3; i++) packed_release(save->held[i]);
    free(save);
}

static void on_saved(struct task *task)
{
    struct coord_save *save = (struct coord_save *)task;
    struct coord *cluster = save->saved.cluster;
    struct coord_save **at = &cluster->saves.list;
    while (*at != save) at = &(*at)->next;
    *at = save->next;
    cluster->saves.rows_written = save->store_writes;
    if (!cluster->closing) save->then(&save->saved);
    free_save(save);
}

/* Returns a new save that belongs to no job yet and has not begun. Returns NULL if there is no memory. */
static struct coord_save *save_new(struct coord *cluster, enum store_change change,
                                   const void *rows, size_t row_count, uint64_t number,
                                   cluster_saved_fn then)
{
    struct coord_save *save = calloc(1, sizeof *save);
    if (save == NULL) return NULL;
    save->task = (struct task) { .run = run_save, .done = on_saved, .item_count = 1 };
    save->saved = (struct coord_saved) { cluster, 0, change, number, CAIRN_OK, save->why.text };
    save->then = then;
    save->rows = store_copy(change, rows, row_count);
    save->row_count = row_count;
    if (save->rows != NULL) return save;
    free_save(save);
    return NULL;
}

/* Starts the save. If `save` is NULL, there was no memory for it. */
static cairn_status save_start(struct coord_save *save, struct sentence *why)
{
    if (save == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    struct coord *cluster = save->saved.cluster;
    save->next = cluster->saves.list;
    cluster->saves.list = save;
    pool_submit(cluster->saves.pool, &save->task);
    return CAIRN_OK;
}

cairn_status coord_save(struct coord *cluster, enum store_change change, const void *rows,
                        size_t count, uint64_t number, cluster_saved_fn then, struct sentence *why)
{
    return save_start(save_new(cluster, change, rows, count, number, then), why);
}

/* Copies the names of the job's shards and of the joining shards ("" for holes), and their weights.
 * Returns NULL if there is no memory. */
static struct stored_shard *copy_shards(const struct coord_job *job, uint32_t count)
{
    const struct layout *next = job->layouts.storing ? job->layouts.next : NULL;
    struct stored_shard *shards = calloc((size_t)count + 1, sizeof *shards);
    if (shards == NULL) return NULL;
    for (uint32_t i = 0; i < count; i++) {
        const struct coord_joiner *joiner = i < job->shard_count
                                                ? NULL
                                                : &job->reshard.joiners[i - job->shard_count];
        const struct coord_shard_entry *entry = joiner != NULL ? joiner->entry
                                                               : job->shards[i].entry;
        const bool is_hole = entry == NULL ||
                             (next != NULL && i < next->shard_count &&
                              layout_is_hole(job->layouts.next_gone, next->shard_count, i));
        shards[i].name = is_hole ? "" : entry->name;
        shards[i].weight = joiner != NULL ? joiner->weight : job->shards[i].weight;
    }
    struct stored_shard *copies = store_copy(CAIRN_STORE_SHARDS, shards, count);
    free(shards);
    return copies;
}

static const uint8_t *hold_packed(struct packed **held, struct packed *packed, size_t *bytes_out)
{
    if (packed == NULL) return NULL;
    *held = packed_hold(packed);
    *bytes_out = packed->size;
    return packed->bytes;
}

/* Fills in the layout in force. If the next layout is being stored, fills in the next layout,
 * because it cannot be taken back any more. Returns false if there is no memory. */
static bool fill_layout(const struct coord_job *job, struct coord_save *save)
{
    const struct coord_layouts *l = &job->layouts;
    struct stored_job *row = save->rows;
    struct cairn_version at = l->at;
    struct packed *layout = job->planned.layout, *before = l->before;
    uint32_t before_shards;
    if (l->storing) {
        at = round_version(job->core);
        layout = l->next_packed;
        before = coord_job_before_next(job, at, &before_shards);
    }
    row->layout = hold_packed(&save->held[0], layout, &row->layout_bytes);
    row->layout_before = hold_packed(&save->held[1], before, &row->layout_before_bytes);
    row->layout_at_generation = at.generation;
    row->layout_at_step = at.step;
    row->shard_count = job->shard_count + job->reshard.joiner_count;
    row->shards = save->shards = copy_shards(job, row->shard_count);
    row->weighed = job->reshard.running;
    row->pause = job->reshard.pace.pause;
    return row->shards != NULL;
}

cairn_status coord_save_job(struct coord_job *job, enum store_change change, struct packed *spec,
                            uint64_t number, cluster_saved_fn then, struct sentence *why)
{
    const struct stored_job scalars = { .name = job->spec.name,
                                        .id = job->id,
                                        .generation = job->generation,
                                        .generation_reserved = job->reserved.generation,
                                        .epoch = job->epoch,
                                        .round_reserved = job->reserved.round,
                                        .base_step = job->base_step,
                                        .origin = job->origin,
                                        .turns = job->turns,
                                        .initialized = job->initialized };
    const struct stored_tenant tenant = coord_tenant_row(job);
    struct coord_save *save = save_new(job->cluster, change, &scalars, 1, number, then);
    if (save == NULL) return save_start(NULL, why);
    struct stored_job *row = save->rows;
    save->saved.job = job->id;
    if (job->init.source.known)
        sodium_bin2hex(save->begun, sizeof save->begun, job->init.source.bytes,
                       sizeof job->init.source.bytes);
    row->begun = save->begun; // "": it is not known any more
    if (change == CAIRN_STORE_INITIALIZED) row->initialized = true;
    if (change == CAIRN_STORE_GENERATION) row->generation_reserved = number;
    if (change == CAIRN_STORE_JOB)
        row->spec = hold_packed(&save->held[2], spec != NULL ? spec : job->planned.spec,
                                &row->spec_bytes);
    if (change == CAIRN_STORE_JOB)
        row->tenant = save->tenant = store_copy(CAIRN_STORE_TENANT, &tenant, 1);
    if ((change == CAIRN_STORE_JOB && row->tenant == NULL) ||
        ((change == CAIRN_STORE_JOB || change == CAIRN_STORE_LAYOUT) && !fill_layout(job, save))) {
        free_save(save);
        return save_start(NULL, why);
    }
    if (change == CAIRN_STORE_JOB) job->stored = true;
    return save_start(save, why);
}

bool coord_saving(const struct coord_job *job)
{
    const struct coord_save *save = job->cluster->saves.list;
    while (save != NULL && save->saved.job != job->id) save = save->next;
    return save != NULL;
}

cairn_status coord_saves_open(struct coord *cluster, struct sentence *why)
{
    return pool_open(cluster->loop, "cairn-store", 1, NULL, &cluster->saves.pool, why);
}

void coord_saves_close(struct coord *cluster, void (*on_closed)(void *context), void *context)
{
    if (cluster->saves.pool != NULL) pool_close(cluster->saves.pool, on_closed, context);
    while (cluster->saves.list != NULL) {
        struct coord_save *save = cluster->saves.list;
        cluster->saves.list = save->next;
        free_save(save);
    }
}
