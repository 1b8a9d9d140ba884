/* Loading: this shard's part of a snapshot, read into the state and hashed on the way: each thread reads,
 * copies and hashes what it takes (proto/snapshot_io/sweep.h), while it is in the cache. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "proto/snapshot_io/sweep.h"
#include "proto/spec/planes.h"
#include "server/shard/shard.h"
#include "server/shard/state/report.h"
#include "server/shard/state/restore.h"

struct cairn_restore {
    struct cairn_loader loader;  /* first */
    struct cairn_report *report; /* owned until it is sent; NULL: nobody wants to know */
    struct cairn_results results;
    struct cairn_sweep_ranges ranges; /* owned; `place`: the extent */
    pthread_mutex_t mutex;            /* of the report */
    pthread_mutex_t device;           /* of the device's list of the files thread */
    struct cairn_works host[CAIRN_SWEEP_THREADS];
};

/* ---- what is read ---- */

/* Leaves of an extent, up to where another home begins. Returns where that is: of the extent. */
static uint64_t add_home(struct cairn_restore *restore, struct cairn_sweep_range *range,
                         uint64_t from, size_t elem_bytes)
{
    const struct cairn_shard_job *job = restore->loader.job;
    const size_t number = (size_t)range->place;
    const struct cairn_local_extent *extent = &job->view->table.map.extents[number];
    const struct cairn_geometry *geometry = &job->view->layout->geometry[extent->tensor];
    const uint64_t to = from + cairn_planes_dense(&job->planes, number, extent->local_elem + from);
    const uint64_t end = to == extent->elem_count
                             ? extent->first_leaf + extent->leaf_count
                             : cairn_leaf_of_elem(geometry, extent->first_elem + to);
    range->first_leaf = cairn_leaf_of_elem(geometry, extent->first_elem + from);
    range->leaf_count = end - range->first_leaf;
    restore->loader.status = cairn_sweep_ranges_add(&restore->ranges, geometry, elem_bytes, range,
                                                    &restore->loader.why);
    return to;
}

/* Adds the ranges of the planes that an extent keeps. The snapshot may list its tensors in another
 * order: they are found by name. */
static void add_extent(struct cairn_restore *restore, const struct cairn_snapshot *snapshot,
                       size_t number)
{
    const struct cairn_shard_job *job = restore->loader.job;
    const struct cairn_local_extent *extent = &job->view->table.map.extents[number];
    const struct cairn_tensor_spec *wanted = &job->spec.tensors[extent->tensor];
    const struct cairn_job_spec_data *spec = &snapshot->manifest.spec;
    const size_t tensor = cairn_spec_find_tensor(spec, wanted->name);
    if (tensor == SIZE_MAX || !cairn_load_same_form(wanted, &spec->tensors[tensor])) {
        restore->loader.status = cairn_fail(
            &restore->loader.why, CAIRN_ERR_MISMATCH,
            "snapshot %s has no tensor %s of the job's shape and master dtype", job->load.path,
            wanted->name);
        return;
    }
    for (enum cairn_plane p = 0; p < CAIRN_PLANES; p++) {
        struct cairn_sweep_range range = { .tensor = (uint32_t)tensor,
                                           .plane = (uint32_t)p,
                                           .place = number };
        if (!cairn_form_stores(&job->view->forms[number], (int)p)) continue;
        const size_t elem_bytes = cairn_dtype_bytes(
            (int)cairn_spec_plane_dtype(spec, range.tensor, range.plane));
        for (uint64_t at = 0; at < extent->elem_count && restore->loader.status == CAIRN_OK;)
            at = add_home(restore, &range, at, elem_bytes);
    }
}

/* ---- reading it, on several threads ---- */

static cairn_status hash_range(struct cairn_restore *restore, struct cairn_works *works,
                               const struct cairn_sweep_range *range, const void *at,
                               struct cairn_sentence *why)
{
    const struct cairn_shard_job *job = restore->loader.job;
    const size_t number = (size_t)range->place;
    const uint32_t tensor = job->view->table.map.extents[number].tensor;
    struct cairn_tree tree;
    cairn_tree_init(&tree, range->first_leaf);
    cairn_status status = cairn_report_leaves(
        works, at, cairn_form_dtype(&job->view->forms[number], (enum cairn_plane)range->plane),
        &job->view->layout->geometry[tensor], range->leaf_count, &tree, why);
    if (status != CAIRN_OK) return status;
    pthread_mutex_lock(&restore->mutex);
    status = cairn_report_add_tree(restore->report, tensor, (enum cairn_plane)range->plane, &tree,
                                   why);
    pthread_mutex_unlock(&restore->mutex);
    return status;
}

static size_t bytes_of(const struct cairn_restore *restore, const struct cairn_sweep_range *range)
{
    const struct cairn_form *form = &restore->loader.job->view->forms[range->place];
    return (size_t)range->elem_count *
           cairn_dtype_bytes((int)cairn_form_dtype(form, (enum cairn_plane)range->plane));
}

static void *place_of(const struct cairn_restore *restore, const struct cairn_sweep_range *range)
{
    const struct cairn_shard_job *job = restore->loader.job;
    const struct cairn_local_extent *extent = &job->view->table.map.extents[range->place];
    return cairn_planes_at(&job->planes, (enum cairn_plane)range->plane, (size_t)range->place,
                           extent->local_elem + (range->first_elem - extent->first_elem));
}

static bool on_device(const struct cairn_restore *restore, const struct cairn_sweep_range *range)
{
    const struct cairn_shard_job *job = restore->loader.job;
    const struct cairn_local_extent *extent = &job->view->table.map.extents[range->place];
    return extent->local_elem + (range->first_elem - extent->first_elem) <
           cairn_planes_device_end(&job->planes);
}

/* It is read while the pages of host memory are made. False: the job leaves. */
static bool await_pages(const struct cairn_restore *restore, const struct cairn_sweep_range *range)
{
    return on_device(restore, range) ||
           cairn_taken_await(&restore->loader.job->load.taken, place_of(restore, range),
                             bytes_of(restore, range));
}

static cairn_status put_range(struct cairn_restore *restore, struct cairn_works *works,
                              const struct cairn_sweep_range *range, const void *elems,
                              struct cairn_sentence *why)
{
    const size_t bytes = bytes_of(restore, range);
    void *at = place_of(restore, range);
    if (!await_pages(restore, range))
        return cairn_fail(why, CAIRN_ERR_CANCELED, "the job was dropped");
    memcpy(cairn_works_put(works, at, bytes), elems, bytes);
    const cairn_status status = cairn_works_run(works, why);
    return status == CAIRN_OK ? hash_range(restore, works, range, at, why) : status;
}

/* Hashed where it stands then. A device has one list for all the threads. */
static cairn_status take_range(void *context, uint32_t thread,
                               const struct cairn_sweep_range *range, const void *elems,
                               struct cairn_sentence *why)
{
    struct cairn_restore *restore = context;
    if (!on_device(restore, range))
        return put_range(restore, &restore->host[thread], range, elems, why);
    pthread_mutex_lock(&restore->device);
    const cairn_status status = put_range(
        restore, cairn_compute_files(&restore->loader.job->shard->device), range, elems, why);
    pthread_mutex_unlock(&restore->device);
    return status;
}

static cairn_status read_hashed(struct cairn_restore *restore,
                                const struct cairn_snapshot *snapshot)
{
    struct cairn_shard_job *job = restore->loader.job;
    const struct cairn_sweep sweep = { .snapshot = snapshot,
                                       .take = take_range,
                                       .context = restore,
                                       .canceled = &restore->loader.canceled };
    cairn_status status = CAIRN_OK;
    uint32_t opened = 0;
    while (opened < CAIRN_SWEEP_THREADS && status == CAIRN_OK)
        status = cairn_works_open(&restore->host[opened++], job->shard->host.home, 1, 1,
                                  &restore->loader.why);
    if (status == CAIRN_OK)
        status = cairn_snapshot_sweep(&sweep, &restore->ranges, &restore->loader.why);
    while (opened > 0) cairn_works_close(&restore->host[--opened]);
    return status;
}

/* Nobody compares hashes of it: the checksums of its blocks judge it. */
static cairn_status read_judged(struct cairn_restore *restore, struct cairn_snapshot *snapshot)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < restore->ranges.count && status == CAIRN_OK; i++) {
        const struct cairn_sweep_range *range = &restore->ranges.list[i];
        struct cairn_shard *shard = restore->loader.job->shard;
        struct cairn_works *works = cairn_compute_files(on_device(restore, range) ? &shard->device
                                                                                  : &shard->host);
        if (atomic_load(&restore->loader.canceled) || !await_pages(restore, range))
            return cairn_fail(&restore->loader.why, CAIRN_ERR_CANCELED, "the job was dropped");
        void *piece = cairn_works_put(works, place_of(restore, range), bytes_of(restore, range));
        status = cairn_snapshot_read(snapshot, range->tensor, range->plane, range->first_elem,
                                     range->elem_count, piece, &restore->loader.why);
        const cairn_status run = cairn_works_run(works, &restore->loader.why);
        if (status == CAIRN_OK) status = run;
    }
    return status;
}

static void read_all(struct cairn_restore *restore, struct cairn_snapshot *snapshot)
{
    struct cairn_loader *loader = &restore->loader;
    for (size_t i = 0; i < loader->job->view->table.map.extent_count; i++)
        if (loader->status == CAIRN_OK) add_extent(restore, snapshot, i);
    if (loader->status != CAIRN_OK) return;
    loader->status = restore->report != NULL ? read_hashed(restore, snapshot)
                                             : read_judged(restore, snapshot);
}

/* The non-finite values that the snapshot's manifest lists are still there. One shard tells of
 * them, for all. */
static struct cairn_results results_of(const struct cairn_shard_job *job,
                                       const struct cairn_manifest *m)
{
    struct cairn_results results = { 0 };
    if (job->view->table.map.shard != 0) return results;
    for (uint32_t i = 0; i < m->nonfinite.tensor_count; i++) {
        const char *name = m->spec.tensors[m->nonfinite.tensors[i].tensor].name;
        cairn_results_add(&results, (uint32_t)cairn_spec_find_tensor(&job->spec, name),
                          m->nonfinite.tensors[i].elems);
    }
    results.nonfinite = m->nonfinite.nonfinite;
    return results;
}

static void run_restore(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    struct cairn_restore *restore = (struct cairn_restore *)task;
    struct cairn_snapshot snapshot;
    restore->loader.status = cairn_snapshot_open(restore->loader.job->load.path, &snapshot,
                                                 &restore->loader.why);
    if (restore->loader.status != CAIRN_OK) return;
    read_all(restore, &snapshot);
    restore->results = results_of(restore->loader.job, &snapshot.manifest);
    cairn_snapshot_close(&snapshot);
}

static void restore_done(struct cairn_task *task)
{
    struct cairn_restore *restore = (struct cairn_restore *)task;
    struct cairn_shard_job *job = restore->loader.job;
    const cairn_status status = restore->loader.status;
    if (job->state == CAIRN_JOB_LOADING && status == CAIRN_OK) {
        cairn_log_info("job %s: loaded %s", job->spec.name, job->load.path);
        if (restore->report != NULL)
            cairn_report_send(restore->report, cairn_step_version(job->collector.step), CAIRN_OK,
                              NULL);
        restore->report = NULL;
        job->pass.results = restore->results;
    } else if (job->state == CAIRN_JOB_LOADING) {
        cairn_log_error("job %s: cannot load %s: %s", job->spec.name, job->load.path,
                        restore->loader.why.text);
        if (status == CAIRN_ERR_NOT_FOUND || status == CAIRN_ERR_IO)
            cairn_storage_watch_doubt(&job->shard->storage);
    }
    cairn_loader_end(&restore->loader);
}

static void release(struct cairn_loader *loader)
{
    struct cairn_restore *restore = (struct cairn_restore *)loader;
    cairn_report_free(restore->report);
    cairn_sweep_ranges_release(&restore->ranges);
    pthread_mutex_destroy(&restore->mutex);
    pthread_mutex_destroy(&restore->device);
}

cairn_status cairn_restore_begin(struct cairn_shard_job *job, struct cairn_sentence *why)
{
    struct cairn_restore *restore = calloc(1, sizeof *restore);
    const uint64_t digest = job->load.digest;
    struct cairn_report *report = digest != 0 ? cairn_report_new(job, digest) : NULL;
    if (restore == NULL || (digest != 0 && report == NULL)) {
        free(restore);
        cairn_report_free(report);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to load a snapshot");
    }
    restore->report = report;
    pthread_mutex_init(&restore->mutex, NULL);
    pthread_mutex_init(&restore->device, NULL);
    restore->loader.release = release;
    restore->loader.task =
        (struct cairn_task) { .run = run_restore, .done = restore_done, .item_count = 1 };
    cairn_loader_begin(&restore->loader, job);
    cairn_pool_submit(job->shard->files, &restore->loader.task);
    return CAIRN_OK;
}
