/* Loading: this shard's part of a snapshot, read on the files thread into the state. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec/planes.h"
#include "proto/store/snapshot_io.h"
#include "server/shard/shard.h"
#include "server/shard/state/report.h"
#include "server/shard/state/restore.h"

#define PIECE_ELEMS ((uint64_t)1 << 20)

struct cairn_restore {
    struct cairn_loader loader;  /* first */
    struct cairn_report *report; /* owned until it is sent; NULL: nobody wants to know */
    struct cairn_results results;
};

/* A plane of an extent, and its digests on the way, while the next blocks are read. */
static cairn_status read_plane(struct cairn_restore *restore, struct cairn_snapshot *snapshot,
                               uint32_t tensor, enum cairn_plane plane, size_t number)
{
    const struct cairn_shard_job *job = restore->loader.job;
    const struct cairn_local_extent *extent = &job->view->table.map.extents[number];
    struct cairn_works *works = cairn_compute_files(job->compute);
    const size_t elem_bytes = cairn_dtype_bytes(
        (int)cairn_spec_plane_dtype(&snapshot->manifest.spec, tensor, (uint32_t)plane));
    struct cairn_plane_hash hash;
    cairn_status status = CAIRN_OK;
    uint64_t elems;
    cairn_plane_hash_begin(&hash, restore->report, &job->planes, number, plane);
    for (uint64_t at = 0; status == CAIRN_OK && at < extent->elem_count; at += elems) {
        elems = cairn_planes_dense(&job->planes, number, extent->local_elem + at);
        if (elems > PIECE_ELEMS) elems = PIECE_ELEMS;
        if (atomic_load(&restore->loader.canceled))
            return cairn_fail(&restore->loader.why, CAIRN_ERR_CANCELED, "the job was dropped");
        void *piece = cairn_works_put(
            works, cairn_planes_at(&job->planes, plane, number, extent->local_elem + at),
            (size_t)elems * elem_bytes);
        status = cairn_snapshot_read(snapshot, tensor, plane, extent->first_elem + at, elems, piece,
                                     &restore->loader.why);
        const cairn_status run = cairn_works_run(works, &restore->loader.why);
        if (status == CAIRN_OK) status = run;
        if (status == CAIRN_OK && restore->report != NULL)
            status = cairn_plane_hash_to(&hash, at + elems, &restore->loader.canceled,
                                         &restore->loader.why);
    }
    if (status == CAIRN_OK && restore->report != NULL)
        status = cairn_plane_hash_end(&hash, &restore->loader.why);
    return status;
}

/* A plane of one extent. The snapshot may list its tensors otherwise: they are found by name. */
static cairn_status read_extent(struct cairn_restore *restore, struct cairn_snapshot *snapshot,
                                size_t number, enum cairn_plane plane)
{
    const struct cairn_shard_job *job = restore->loader.job;
    const struct cairn_local_extent *extent = &job->view->table.map.extents[number];
    const struct cairn_tensor_spec *wanted = &job->spec.tensors[extent->tensor];
    const size_t tensor = cairn_spec_find_tensor(&snapshot->manifest.spec, wanted->name);
    if (tensor == SIZE_MAX ||
        !cairn_load_same_form(wanted, &snapshot->manifest.spec.tensors[tensor])) {
        return cairn_fail(&restore->loader.why, CAIRN_ERR_MISMATCH,
                          "snapshot %s has no tensor %s of the job's shape and master dtype",
                          restore->loader.job->load.path, wanted->name);
    }
    if (!cairn_form_keeps(&job->view->forms[number], plane)) return CAIRN_OK;
    return read_plane(restore, snapshot, (uint32_t)tensor, plane, number);
}

/* In the order of the files, which are read ahead: all parameters, then all that the optimizer has of a
 * tensor. */
static cairn_status read_all(struct cairn_restore *restore, struct cairn_snapshot *snapshot)
{
    const size_t count = restore->loader.job->view->table.map.extent_count;
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < count && status == CAIRN_OK; i++)
        status = read_extent(restore, snapshot, i, CAIRN_PLANE_PARAM);
    for (size_t i = 0; i < count; i++)
        for (enum cairn_plane p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++)
            if (cairn_plane_is_state((int)p) && p != CAIRN_PLANE_PARAM)
                status = read_extent(restore, snapshot, i, p);
    return status;
}

/* What was not finite is not: one shard tells of it, for all. */
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
    restore->loader.status = read_all(restore, &snapshot);
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
    cairn_report_free(((struct cairn_restore *)loader)->report);
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
    restore->loader.release = release;
    restore->loader.task =
        (struct cairn_task) { .run = run_restore, .done = restore_done, .item_count = 1 };
    cairn_loader_begin(&restore->loader, job);
    cairn_pool_submit(job->shard->files, &restore->loader.task);
    return CAIRN_OK;
}
