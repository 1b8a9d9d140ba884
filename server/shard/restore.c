/* Loading: this shard's part of a snapshot, read on the files thread into the state. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/snapshot_io.h"
#include "server/shard/report.h"
#include "server/shard/shard.h"

struct cairn_restore {
    struct cairn_task task;
    struct cairn_shard_job *job; /* borrowed */
    char *path;                  /* owned */
    struct cairn_report *report; /* owned until it is sent; NULL: nobody wants to know */
    atomic_bool canceled;
    cairn_status status; /* the result */
    struct cairn_sentence why;
};

static cairn_status read_plane(struct cairn_restore *restore, struct cairn_snapshot *snapshot,
                               uint32_t tensor, enum cairn_plane plane,
                               const struct cairn_local_extent *extent, uint8_t *to)
{
    const size_t elem_bytes = cairn_dtype_bytes(
        (int)cairn_snapshot_dtype(&snapshot->manifest.spec, tensor, (uint32_t)plane));
    cairn_status status = CAIRN_OK;
    for (uint64_t at = 0; status == CAIRN_OK && at < extent->elem_count;
         at += CAIRN_SNAPSHOT_PIECE_ELEMS) {
        uint64_t elems = extent->elem_count - at;
        if (elems > CAIRN_SNAPSHOT_PIECE_ELEMS) elems = CAIRN_SNAPSHOT_PIECE_ELEMS;
        if (atomic_load(&restore->canceled))
            return cairn_fail(&restore->why, CAIRN_ERR_CANCELED, "the job was dropped");
        status = cairn_snapshot_read(snapshot, tensor, plane, extent->first_elem + at, elems,
                                     to + at * elem_bytes, &restore->why);
    }
    return status;
}

static bool same_form(const struct cairn_tensor_spec *a, const struct cairn_tensor_spec *b)
{
    return a->shape.rank == b->shape.rank && a->master == b->master &&
           memcmp(a->shape.dim, b->shape.dim, a->shape.rank * sizeof *a->shape.dim) == 0;
}

static const uint8_t *loaded_at(const void *job, enum cairn_plane plane, size_t extent,
                                uint64_t local_elem)
{
    return cairn_shard_job_at(job, plane, (uint32_t)extent, local_elem);
}

/* A plane of one extent. The snapshot may list its tensors otherwise: they are found by name. */
static cairn_status read_extent(struct cairn_restore *restore, struct cairn_snapshot *snapshot,
                                size_t number, enum cairn_plane plane)
{
    const struct cairn_shard_job *job = restore->job;
    const struct cairn_local_extent *extent = &job->map.extents[number];
    const struct cairn_tensor_spec *wanted = &job->spec.tensors[extent->tensor];
    const size_t tensor = cairn_spec_find_tensor(&snapshot->manifest.spec, wanted->name);
    if (tensor == SIZE_MAX || !same_form(wanted, &snapshot->manifest.spec.tensors[tensor])) {
        return cairn_fail(&restore->why, CAIRN_ERR_MISMATCH,
                          "snapshot %s has no tensor %s of the job's shape and master dtype",
                          restore->path, wanted->name);
    }
    if (!cairn_part_keeps(&job->parts[number], plane)) return CAIRN_OK;
    return read_plane(restore, snapshot, (uint32_t)tensor, plane, extent,
                      cairn_shard_job_at(job, plane, (uint32_t)number, extent->local_elem));
}

/* A plane after the other: each has files of its own. */
static cairn_status read_all(struct cairn_restore *restore, struct cairn_snapshot *snapshot)
{
    cairn_status status = CAIRN_OK;
    for (size_t p = 0; p < CAIRN_STATE_PLANES; p++) {
        for (size_t i = 0; i < restore->job->map.extent_count && status == CAIRN_OK; i++)
            status = read_extent(restore, snapshot, i, cairn_state_planes[p]);
    }
    return status;
}

static cairn_status hash_all(struct cairn_restore *restore)
{
    const struct cairn_shard_job *job = restore->job;
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < job->map.extent_count && status == CAIRN_OK; i++)
        status = cairn_report_hash(restore->report, i, loaded_at, job, &restore->canceled,
                                   &restore->why);
    return status;
}

static void run_restore(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    struct cairn_restore *restore = (struct cairn_restore *)task;
    struct cairn_snapshot snapshot;
    restore->status = cairn_snapshot_open(restore->path, &snapshot, &restore->why);
    if (restore->status != CAIRN_OK) return;
    restore->status = read_all(restore, &snapshot);
    if (restore->status == CAIRN_OK && restore->report != NULL) restore->status = hash_all(restore);
    cairn_snapshot_close(&snapshot);
}

static void restore_done(struct cairn_task *task)
{
    struct cairn_restore *restore = (struct cairn_restore *)task;
    struct cairn_shard_job *job = restore->job;
    if (job->state == CAIRN_JOB_LOADING && restore->status == CAIRN_OK) {
        cairn_log_info("job %s: loaded %s", job->spec.name, restore->path);
        if (restore->report != NULL)
            cairn_report_send(restore->report, cairn_step_version(job->step), CAIRN_OK, NULL);
        restore->report = NULL;
        cairn_round_seal(job);
    } else if (job->state == CAIRN_JOB_LOADING) {
        cairn_log_error("job %s: cannot load %s: %s", job->spec.name, restore->path,
                        restore->why.text);
        cairn_session_answer(job->shard, &job->creating, restore->status, &restore->why);
        cairn_shard_job_leave(job);
    }
    cairn_shard_job_idle(job);
}

cairn_status cairn_restore_begin(struct cairn_shard_job *job, const char *path, uint64_t digest,
                                 struct cairn_sentence *why)
{
    struct cairn_restore *restore = calloc(1, sizeof *restore);
    char *copy = strdup(path);
    struct cairn_report *report = digest != 0 ? cairn_report_new(job, digest) : NULL;
    if (restore == NULL || copy == NULL || (digest != 0 && report == NULL)) {
        free(restore);
        free(copy);
        cairn_report_free(report);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to load a snapshot");
    }
    restore->job = job;
    restore->path = copy;
    restore->report = report;
    restore->task =
        (struct cairn_task) { .run = run_restore, .done = restore_done, .item_count = 1 };
    job->restore = restore;
    job->state = CAIRN_JOB_LOADING;
    cairn_shard_job_busy(job);
    cairn_pool_submit(job->shard->files, &restore->task);
    return CAIRN_OK;
}

void cairn_restore_cancel(struct cairn_shard_job *job)
{
    if (job->restore != NULL) atomic_store(&job->restore->canceled, true);
}

void cairn_restore_release(struct cairn_shard_job *job)
{
    if (job->restore == NULL) return;
    cairn_report_free(job->restore->report);
    free(job->restore->path);
    free(job->restore);
    job->restore = NULL;
}
