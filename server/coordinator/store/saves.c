#include "server/coordinator/store/saves.h"

#include <stdlib.h>
#include <string.h>

#include "server/base/pool.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/store/private.h"
#include "server/coordinator/store/store.h"
#include "server/core/holes.h"

struct cairn_cluster_save {
    struct cairn_task task;
    struct cairn_cluster_save *next; /* of the cluster's list */
    struct cairn_cluster_saved saved;
    cairn_cluster_saved_fn then;
    cairn_status (*write)(struct cairn_store *store, const struct cairn_cluster_save *save,
                          struct cairn_sentence *why);
    struct cairn_stored_job row; /* what `write` wants of it; a whole one owns its names */
    struct cairn_packed *spec, *layout, *before; /* held: what a whole one points to */
    struct cairn_stored_event *events; /* owned: [event_count], with their texts behind them */
    size_t event_count;
    struct cairn_stored_key key; /* its line is row.name */
    struct cairn_sentence why;
    uint64_t store_writes; /* of the store when it was done */
};

/* ---- on the store's thread ---- */

static cairn_status write_epoch(struct cairn_store *store, const struct cairn_cluster_save *save,
                                struct cairn_sentence *why)
{
    return cairn_store_set_epoch(store, save->row.id, save->row.epoch, save->row.round_reserved,
                                 why);
}
static cairn_status write_initialized(struct cairn_store *store,
                                      const struct cairn_cluster_save *save,
                                      struct cairn_sentence *why)
{
    return cairn_store_set_initialized(store, save->row.id, why);
}
static cairn_status write_generation(struct cairn_store *store,
                                     const struct cairn_cluster_save *save,
                                     struct cairn_sentence *why)
{
    return cairn_store_reserve_generation(store, save->row.id, save->row.generation_reserved, why);
}
static cairn_status write_dropped(struct cairn_store *store, const struct cairn_cluster_save *save,
                                  struct cairn_sentence *why)
{
    return cairn_store_drop_job(store, save->row.id, why);
}

static cairn_status write_job(struct cairn_store *store, const struct cairn_cluster_save *save,
                              struct cairn_sentence *why)
{
    return cairn_store_put_job(store, &save->row, why);
}
static cairn_status write_layout(struct cairn_store *store, const struct cairn_cluster_save *save,
                                 struct cairn_sentence *why)
{
    return cairn_store_set_layout(store, &save->row, why);
}
static cairn_status write_storage(struct cairn_store *store, const struct cairn_cluster_save *save,
                                  struct cairn_sentence *why)
{
    return cairn_store_set_storage(store, save->saved.number, why);
}
static cairn_status write_leaving(struct cairn_store *store, const struct cairn_cluster_save *save,
                                  struct cairn_sentence *why)
{
    return cairn_store_set_leaving(store, save->row.name, save->saved.number != 0, why);
}
static cairn_status write_key(struct cairn_store *store, const struct cairn_cluster_save *save,
                              struct cairn_sentence *why)
{
    return save->saved.number != 0 ? cairn_store_put_key(store, &save->key, why)
                                   : cairn_store_drop_key(store, save->key.line, why);
}
static cairn_status write_events(struct cairn_store *store, const struct cairn_cluster_save *save,
                                 struct cairn_sentence *why)
{
    return cairn_store_add_events(store, save->events, save->event_count, why);
}

static void run_save(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    struct cairn_cluster_save *save = (struct cairn_cluster_save *)task;
    struct cairn_store *store = save->saved.cluster->store;
    (void)item;
    (void)thread;
    save->saved.status = save->write(store, save, &save->why);
    save->store_writes = cairn_store_writes(store);
}

/* ---- on the loop ---- */

static void free_save(struct cairn_cluster_save *save)
{
    for (uint32_t i = 0; save->row.shards != NULL && i < save->row.shard_count; i++)
        free((char *)(uintptr_t)save->row.shards[i]);
    free((char **)(uintptr_t)save->row.shards);
    free((char *)(uintptr_t)save->row.name);
    cairn_packed_release(save->spec);
    cairn_packed_release(save->layout);
    free(save->events);
    cairn_packed_release(save->before);
    free((double *)(uintptr_t)save->row.weights);
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

/* job: its id; 0: it is of none. */
static struct cairn_cluster_save *save_new(struct cairn_cluster *cluster, uint64_t job,
                                           uint64_t number, cairn_cluster_saved_fn then)
{
    struct cairn_cluster_save *save = calloc(1, sizeof *save);
    if (save == NULL) return NULL;
    save->task = (struct cairn_task) { .run = run_save, .done = on_saved, .item_count = 1 };
    save->saved = (struct cairn_cluster_saved) { cluster, job, number, CAIRN_OK, save->why.text };
    save->then = then;
    save->row.id = job;
    return save;
}

static cairn_status save_start(struct cairn_cluster_save *save)
{
    struct cairn_cluster *cluster = save->saved.cluster;
    save->next = cluster->saves.list;
    cluster->saves.list = save;
    cairn_pool_submit(cluster->saves.pool, &save->task);
    return CAIRN_OK;
}

static cairn_status fail_memory(struct cairn_sentence *why)
{
    return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
}

cairn_status cairn_cluster_save_epoch(const struct cairn_cluster_job *job,
                                      cairn_cluster_saved_fn then, struct cairn_sentence *why)
{
    struct cairn_cluster_save *save = save_new(job->cluster, job->id, job->epoch, then);
    if (save == NULL) return fail_memory(why);
    save->write = write_epoch;
    save->row.epoch = job->epoch;
    save->row.round_reserved = job->reserved.round;
    return save_start(save);
}

cairn_status cairn_cluster_save_initialized(const struct cairn_cluster_job *job,
                                            cairn_cluster_saved_fn then, struct cairn_sentence *why)
{
    struct cairn_cluster_save *save = save_new(job->cluster, job->id, 0, then);
    if (save == NULL) return fail_memory(why);
    save->write = write_initialized;
    return save_start(save);
}

cairn_status cairn_cluster_save_generation(const struct cairn_cluster_job *job, uint64_t generation,
                                           cairn_cluster_saved_fn then, struct cairn_sentence *why)
{
    struct cairn_cluster_save *save = save_new(job->cluster, job->id, generation, then);
    if (save == NULL) return fail_memory(why);
    save->write = write_generation;
    save->row.generation_reserved = generation;
    return save_start(save);
}

cairn_status cairn_cluster_save_dropped(const struct cairn_cluster_job *job,
                                        cairn_cluster_saved_fn then, struct cairn_sentence *why)
{
    struct cairn_cluster_save *save = save_new(job->cluster, job->id, 0, then);
    if (save == NULL) return fail_memory(why);
    save->write = write_dropped;
    return save_start(save);
}

/* The names of the job's shards and of those that are to join, "" for holes, and their weights. False: no
 * memory, and what there is is freed with the row. */
static bool fill_shards(const struct cairn_cluster_job *job, struct cairn_stored_job *row)
{
    const struct cairn_cluster_reshard *reshard = &job->reshard;
    const uint32_t count = job->shard_count + reshard->joiner_count;
    char **names = calloc((size_t)count + 1, sizeof *names);
    double *weights = reshard->running ? calloc((size_t)count + 1, sizeof *weights) : NULL;
    const struct cairn_layout *next = job->layouts.storing ? job->layouts.next : NULL;
    row->shards = (const char *const *)names;
    row->shard_count = count;
    row->weights = weights;
    if (names == NULL || (reshard->running && weights == NULL)) return false;
    for (uint32_t i = 0; i < count; i++) {
        const struct cairn_cluster_joiner *joiner = i < job->shard_count
                                                        ? NULL
                                                        : &reshard->joiners[i - job->shard_count];
        const struct cairn_cluster_seat *seat = joiner != NULL ? joiner->seat : job->shards[i].seat;
        const bool is_hole = seat == NULL ||
                             (next != NULL && i < next->shard_count &&
                              cairn_is_hole(job->layouts.next_gone, next->shard_count, i));
        if ((names[i] = strdup(is_hole ? "" : seat->name)) == NULL) return false;
        if (weights != NULL) weights[i] = joiner != NULL ? joiner->weight : job->shards[i].weight;
    }
    return true;
}

/* The layout that is in force, or on its way to be: once that is to be written nothing takes it back. */
static void fill_layout(const struct cairn_cluster_job *job, struct cairn_cluster_save *save)
{
    const struct cairn_cluster_layouts *l = &job->layouts;
    struct cairn_version at = l->at;
    struct cairn_packed *layout = job->planned.layout, *before = l->before;
    uint32_t before_shards;
    if (l->storing) {
        at = cairn_round_version(job->core);
        layout = l->next_packed;
        before = cairn_cluster_job_before_next(job, at, &before_shards);
    }
    save->layout = cairn_packed_hold(layout);
    save->row.layout = layout->bytes;
    save->row.layout_bytes = layout->size;
    save->row.layout_at_generation = at.generation;
    save->row.layout_at_step = at.step;
    save->row.pause = job->reshard.pace.pause;
    if (before == NULL) return;
    save->before = cairn_packed_hold(before);
    save->row.layout_before = before->bytes;
    save->row.layout_before_bytes = before->size;
}

/* A whole one. NULL: no memory. */
static struct cairn_cluster_save *row_new(const struct cairn_cluster_job *job,
                                          struct cairn_packed *spec, uint64_t number,
                                          cairn_cluster_saved_fn then)
{
    struct cairn_cluster_save *save = save_new(job->cluster, job->id, number, then);
    if (save == NULL) return NULL;
    save->spec = cairn_packed_hold(spec);
    save->row = (struct cairn_stored_job) { .name = strdup(job->spec.name),
                                            .spec = spec->bytes,
                                            .spec_bytes = spec->size,
                                            .id = job->id,
                                            .generation = job->generation,
                                            .generation_reserved = job->reserved.generation,
                                            .epoch = job->epoch,
                                            .round_reserved = job->reserved.round,
                                            .base_step = job->base_step,
                                            .origin = job->origin,
                                            .initialized = job->initialized };
    fill_layout(job, save);
    if (fill_shards(job, &save->row) && save->row.name != NULL) return save;
    free_save(save);
    return NULL;
}

cairn_status cairn_cluster_save_job(struct cairn_cluster_job *job, struct cairn_packed *spec,
                                    uint64_t number, cairn_cluster_saved_fn then,
                                    struct cairn_sentence *why)
{
    struct cairn_cluster_save *save = row_new(job, spec, number, then);
    if (save == NULL) return fail_memory(why);
    save->write = write_job;
    job->stored = true;
    return save_start(save);
}

cairn_status cairn_cluster_save_layout(const struct cairn_cluster_job *job, uint64_t number,
                                       cairn_cluster_saved_fn then, struct cairn_sentence *why)
{
    struct cairn_cluster_save *save = row_new(job, job->planned.spec, number, then);
    if (save == NULL) return fail_memory(why);
    save->write = write_layout;
    return save_start(save);
}

cairn_status cairn_cluster_save_storage(struct cairn_cluster *cluster, cairn_cluster_saved_fn then,
                                        struct cairn_sentence *why)
{
    struct cairn_cluster_save *save = save_new(cluster, 0, cluster->storage.token, then);
    if (save == NULL) return fail_memory(why);
    save->write = write_storage;
    return save_start(save);
}

/* Makes a save that is of no job, with a copy of `name` as row.name. NULL: no memory. */
static struct cairn_cluster_save *named_new(struct cairn_cluster *cluster, const char *name,
                                            uint64_t number, cairn_cluster_saved_fn then)
{
    struct cairn_cluster_save *save = save_new(cluster, 0, number, then);
    if (save == NULL) return NULL;
    save->row.name = strdup(name);
    if (save->row.name != NULL) return save;
    free_save(save);
    return NULL;
}

cairn_status cairn_cluster_save_leaving(struct cairn_cluster *cluster, const char *shard,
                                        uint64_t number, cairn_cluster_saved_fn then,
                                        struct cairn_sentence *why)
{
    struct cairn_cluster_save *save = named_new(cluster, shard, number, then);
    if (save == NULL) return fail_memory(why);
    save->write = write_leaving;
    return save_start(save);
}

cairn_status cairn_cluster_save_key(struct cairn_cluster *cluster,
                                    const struct cairn_stored_key *key, bool trusted,
                                    cairn_cluster_saved_fn then, struct cairn_sentence *why)
{
    struct cairn_cluster_save *save = named_new(cluster, key->line, trusted, then);
    if (save == NULL) return fail_memory(why);
    save->key = *key;
    save->key.line = save->row.name;
    save->write = write_key;
    return save_start(save);
}

/* In one block; NULL: no memory. */
static struct cairn_stored_event *copy_events(const struct cairn_stored_event *events, size_t count)
{
    size_t bytes = count * sizeof *events;
    for (size_t i = 0; i < count; i++)
        bytes += strlen(events[i].kind) + strlen(events[i].job) + strlen(events[i].who) +
                 strlen(events[i].text) + 4;
    struct cairn_stored_event *copies = malloc(bytes);
    char *at = (char *)(copies + count);
    for (size_t i = 0; copies != NULL && i < count; i++) {
        const char **const texts[] = { &copies[i].kind, &copies[i].job, &copies[i].who,
                                       &copies[i].text };
        copies[i] = events[i];
        for (size_t k = 0; k < 4; k++) {
            const char *from = *texts[k];
            *texts[k] = at;
            at = stpcpy(at, from) + 1;
        }
    }
    return copies;
}

cairn_status cairn_cluster_save_events(struct cairn_cluster *cluster,
                                       const struct cairn_stored_event *events, size_t count,
                                       cairn_cluster_saved_fn then, struct cairn_sentence *why)
{
    struct cairn_cluster_save *save = save_new(cluster, 0, events[count - 1].number + 1, then);
    if (save == NULL) return fail_memory(why);
    save->events = copy_events(events, count);
    save->event_count = count;
    if (save->events == NULL) {
        free_save(save);
        return fail_memory(why);
    }
    save->write = write_events;
    return save_start(save);
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
