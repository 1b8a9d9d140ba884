/* Snapshots and digests: a version is pinned, copied, and then hashed and written while training goes on.
 *
 *   Pin ─► waits for the UPDATE at hand ─► copy (compute pool; an UPDATE waits for it)
 *       ─► waits for PinFolder, unless it is a digest ─► hash, write (files thread) ─► SnapshotPart
 *
 * The copy is staging, counted by the budget: where it does not fit, the pin fails and training
 * goes on. A failed pin leaves no files. */
#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "proto/store/snapshot_io.h"
#include "server/shard/shard.h"
#include "server/shard/state/pin.h"
#include "server/shard/state/report.h"

struct cairn_pin {
    struct cairn_task task;      /* the work on files */
    struct cairn_run copy;       /* before it */
    struct cairn_shard_job *job; /* borrowed */
    struct cairn_pin *next;
    uint64_t snapshot;
    bool waits;  /* for the UPDATE at hand */
    bool writes; /* files: where, PinFolder says */
    bool copied;
    atomic_bool canceled;
    struct cairn_version version;

    /* owned */
    char *path;                  /* NULL: a digest, or not told yet */
    struct cairn_planes staging; /* the state, copied */
    uint64_t staging_budget;

    /* the result */
    struct cairn_report *report; /* owned, until it is sent */
    cairn_status status;
    struct cairn_sentence why;
};

/* ---- the end ---- */

static void pin_free(struct cairn_pin *pin)
{
    struct cairn_pin **link = &pin->job->pins.list;
    while (*link != pin) link = &(*link)->next;
    *link = pin->next;
    cairn_planes_close(&pin->staging);
    cairn_shard_job_give(pin->job, &pin->job->memory.staging, pin->staging_budget);
    free(pin->path);
    cairn_report_free(pin->report);
    free(pin);
}

void cairn_pin_release(struct cairn_shard_job *job)
{
    while (job->pins.list != NULL) pin_free(job->pins.list);
}

/* Tells, and is freed: its staging, too, before all of it is told. */
static void report(struct cairn_pin *pin)
{
    struct cairn_report *told = pin->report;
    pin->report = NULL;
    if (pin->status == CAIRN_ERR_IO) cairn_storage_watch_doubt(&pin->job->shard->storage);
    if (pin->status != CAIRN_OK)
        cairn_log_error("snapshot of job %s at step %llu failed here: %s", pin->job->spec.name,
                        (unsigned long long)pin->version.step, pin->why.text);
    cairn_report_send(told, pin->version, pin->status, &pin->why);
    pin_free(pin);
}

/* ---- on the files thread ---- */

/* cairn_snapshot_fill_fn: a box of a file lies within one extent. */
static cairn_status give_bytes(void *context, const struct cairn_safetensors_entry *entry,
                               uint64_t first_elem, uint64_t elem_count, void *to,
                               struct cairn_sentence *why)
{
    const struct cairn_pin *pin = context;
    const struct cairn_geometry *geometry = &pin->job->view->layout->geometry[entry->tensor];
    if (atomic_load(&pin->canceled)) return cairn_fail(why, CAIRN_ERR_CANCELED, "it was given up");
    const struct cairn_local_extent *extent = cairn_shard_map_find(
        &pin->job->view->table.map, entry->tensor, cairn_leaf_of_elem(geometry, first_elem));
    assert(extent != NULL && first_elem >= extent->first_elem);
    const uint64_t at = first_elem - extent->first_elem;
    assert(elem_count <= extent->elem_count - at);
    memcpy(to,
           cairn_planes_at(&pin->staging, (enum cairn_plane)entry->plane,
                           (size_t)(extent - pin->job->view->table.map.extents),
                           extent->local_elem + at),
           (size_t)elem_count * cairn_dtype_bytes((int)entry->dtype));
    return CAIRN_OK;
}

static void remove_files(const struct cairn_pin *pin)
{
    const char *file;
    for (size_t i = 0; (file = cairn_report_file(pin->report, i)) != NULL; i++) {
        uint64_t bytes;
        (void)cairn_storage_of(pin->path)->remove(pin->path, file, false, &bytes, NULL);
    }
}

static cairn_status write_file(struct cairn_pin *pin, struct cairn_snapshot_writer *writer,
                               const struct cairn_snapshot_file *file)
{
    const struct cairn_snapshot_source source = { .fill = give_bytes, .context = pin };
    uint8_t *sums = malloc((size_t)cairn_snapshot_block_count(file->file_bytes) *
                           CAIRN_SNAPSHOT_SUM_BYTES);
    if (sums == NULL) return cairn_fail(&pin->why, CAIRN_ERR_NO_MEMORY, "no memory to write");
    const cairn_status status = cairn_snapshot_writer_put(writer, pin->path, file, &source, sums,
                                                          &pin->why);
    if (status == CAIRN_OK)
        return cairn_report_add_file(pin->report, file->path, file->file_bytes, sums, &pin->why);
    free(sums);
    return status;
}

static cairn_status write_planned(struct cairn_pin *pin, const struct cairn_snapshot_plan *plan)
{
    struct cairn_snapshot_writer *writer;
    cairn_status status = cairn_snapshot_writer_open(0, &writer, &pin->why);
    if (status != CAIRN_OK) return status;
    for (size_t i = 0; i < plan->file_count && status == CAIRN_OK; i++)
        status = write_file(pin, writer, &plan->files[i]);
    if (status == CAIRN_OK && cairn_snapshot_writer_buffered(writer))
        cairn_log_info("the storage of %s refuses direct writes: they go through the page cache",
                       pin->path);
    cairn_snapshot_writer_close(writer);
    if (status != CAIRN_OK) remove_files(pin);
    return status;
}

static cairn_status write_all(struct cairn_pin *pin)
{
    const struct cairn_shard_map *map = &pin->job->view->table.map;
    struct cairn_snapshot_range *ranges = calloc(map->extent_count + 1, sizeof *ranges);
    struct cairn_snapshot_plan plan = { 0 };
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    for (size_t i = 0; ranges != NULL && i < map->extent_count; i++) {
        const struct cairn_local_extent *extent = &map->extents[i];
        ranges[i] = (struct cairn_snapshot_range) { .tensor = extent->tensor,
                                                    .first_elem = extent->first_elem,
                                                    .elem_count = extent->elem_count };
    }
    if (ranges != NULL) {
        status = cairn_snapshot_plan_make(&pin->job->spec, map->shard, ranges, map->extent_count,
                                          &plan);
    }
    free(ranges);
    if (status != CAIRN_OK) return cairn_fail(&pin->why, status, "no memory to plan the files");
    status = write_planned(pin, &plan);
    cairn_snapshot_plan_release(&plan);
    return status;
}

static void run_files(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    struct cairn_pin *pin = (struct cairn_pin *)task;
    pin->status = cairn_report_hash(pin->report, &pin->staging, &pin->canceled, &pin->why);
    if (pin->status == CAIRN_OK && pin->writes) pin->status = write_all(pin);
    cairn_planes_close(&pin->staging); // here, since it takes 0.2 s a GiB
}

static void files_done(struct cairn_task *task)
{
    struct cairn_pin *pin = (struct cairn_pin *)task;
    struct cairn_shard_job *job = pin->job;
    report(pin);
    cairn_shard_job_idle(job);
}

/* To the files thread, when both the copy and the folder are there, or nobody wants them any more. */
static void go_on(struct cairn_pin *pin)
{
    const bool told = !pin->writes || pin->path != NULL || atomic_load(&pin->canceled);
    if (!pin->copied || !told) return;
    pin->task = (struct cairn_task) { .run = run_files, .done = files_done, .item_count = 1 };
    cairn_pool_submit(pin->job->shard->files, &pin->task);
    pin->copied = false; // once
}

void cairn_pin_folder(struct cairn_shard_job *job, const Cairn__PinFolder *message)
{
    struct cairn_pin *pin = job->pins.list;
    while (pin != NULL && pin->snapshot != message->snapshot) pin = pin->next;
    if (pin == NULL) return;
    const bool given_up = message->path[0] == '\0';
    if (!given_up && pin->writes && pin->path == NULL) pin->path = strdup(message->path);
    if (given_up || (pin->writes && pin->path == NULL)) atomic_store(&pin->canceled, true);
    go_on(pin);
}

void cairn_pin_session_ended(struct cairn_shard_job *job)
{
    for (struct cairn_pin *pin = job->pins.list; pin != NULL; pin = pin->next) {
        if (!pin->writes || pin->path != NULL) continue;
        atomic_store(&pin->canceled, true);
        go_on(pin);
    }
}

void cairn_pin_cancel(struct cairn_shard_job *job)
{
    for (struct cairn_pin *pin = job->pins.list; pin != NULL; pin = pin->next) {
        atomic_store(&pin->canceled, true);
        go_on(pin);
    }
}

/* ---- the copy ---- */

static struct cairn_pin *pin_of(struct cairn_run *run)
{
    return (struct cairn_pin *)((char *)run - offsetof(struct cairn_pin, copy));
}

static bool describe_copy(struct cairn_run *run, uint32_t item, uint32_t stage,
                          struct cairn_works *works)
{
    const struct cairn_pin *pin = pin_of(run);
    (void)stage;
    const struct cairn_shard_job *job = pin->job;
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->view->table.map, item);
    const uint32_t extent = job->view->table.extent_of[item];
    cairn_planes_copy(works, &pin->staging, extent, place.local_elem, &job->planes, extent,
                      place.local_elem, place.elem_count);
    return false;
}

static void copy_done(struct cairn_run *run)
{
    struct cairn_pin *pin = pin_of(run);
    struct cairn_shard_job *job = pin->job;
    job->pins.copying--;
    if (cairn_shard_job_run_failed(job, run)) {
        pin->status = run->status;
        cairn_compute_why(run->compute, &pin->why);
        report(pin);
        cairn_shard_job_idle(job);
        return;
    }
    pin->copied = true;
    go_on(pin);
    if (job->state == CAIRN_JOB_SERVING) job->shard->up->copies_ended(job);
}

static cairn_status take_staging(struct cairn_pin *pin)
{
    struct cairn_shard_job *job = pin->job;
    const uint64_t bytes = cairn_planes_state_bytes(&job->planes);
    cairn_status status = cairn_shard_job_take(job, &job->memory.staging, bytes,
                                               "the staging of a snapshot", &pin->why);
    if (status != CAIRN_OK) return status;
    pin->staging_budget = bytes;
    return cairn_planes_open_copy(&pin->staging, &job->planes, &pin->why);
}

/* No UPDATE is under way: the state is of one version. */
static void begin_copy(struct cairn_pin *pin)
{
    struct cairn_shard_job *job = pin->job;
    pin->waits = false;
    pin->version = job->versions.copies[job->versions.newest].version;
    pin->status = take_staging(pin);
    if (pin->status == CAIRN_OK) pin->status = cairn_report_keep_payload(pin->report, &pin->why);
    if (pin->status != CAIRN_OK) {
        report(pin);
        return;
    }
    job->pins.copying++;
    cairn_shard_job_busy(job);
    pin->copy = (struct cairn_run) { .compute = job->compute,
                                     .item_count = (uint32_t)job->view->table.map.chunk_count,
                                     .describe = describe_copy,
                                     .done = copy_done };
    cairn_compute_submit(&pin->copy);
}

void cairn_pin_updated(struct cairn_shard_job *job)
{
    struct cairn_pin *next;
    for (struct cairn_pin *pin = job->pins.list; pin != NULL; pin = next) {
        next = pin->next;
        if (pin->waits && job->state == CAIRN_JOB_SERVING) begin_copy(pin);
    }
}

static void refuse(struct cairn_shard_job *job, const Cairn__Pin *message, cairn_status status,
                   const char *text)
{
    Cairn__SnapshotPart part = CAIRN__SNAPSHOT_PART__INIT;
    part.job = job->number;
    part.snapshot = message->snapshot;
    part.status = (int32_t)status;
    part.text = (char *)text;
    cairn_session_send(job->shard, CAIRN_MSG_SNAPSHOT_PART, 0, &part.base);
}

void cairn_pin_begin(struct cairn_shard_job *job, const Cairn__Pin *message)
{
    size_t count = 0;
    for (struct cairn_pin *other = job->pins.list; other != NULL; other = other->next) count++;
    if (job->state != CAIRN_JOB_SERVING) {
        refuse(job, message, CAIRN_ERR_NOT_READY, "the job has no version yet");
        return;
    }
    if (job->park.is_under_way) {
        refuse(job, message, CAIRN_ERR_BUSY, "its state is being parked, or comes back");
        return;
    }
    if (count >= CAIRN_SHARD_PINS_MAX) {
        refuse(job, message, CAIRN_ERR_BUSY,
               "as many snapshots are being written as a shard takes");
        return;
    }
    cairn_reports_drop(job); // a coordinator that asks for another one waits for these no more
    struct cairn_pin *pin = calloc(1, sizeof *pin);
    struct cairn_report *told = cairn_report_new(job, message->snapshot);
    if (pin == NULL || told == NULL) {
        free(pin);
        cairn_report_free(told);
        refuse(job, message, CAIRN_ERR_NO_MEMORY, "no memory for a snapshot");
        return;
    }
    pin->job = job;
    pin->snapshot = message->snapshot;
    pin->writes = message->files;
    pin->report = told;
    pin->next = job->pins.list;
    job->pins.list = pin;
    // Decided already: the version is the one after it, even where its UPDATE waits for a copy.
    if (job->pass.updating)
        pin->waits = true;
    else
        begin_copy(pin);
}
