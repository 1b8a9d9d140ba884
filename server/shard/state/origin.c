/* Where initial state comes from when nobody puts it: first from the weights that the job names
 * (init_from), which are read on the files thread, each shard its own ranges; then, for tensors
 * that these do not have, from the initializers, by works on the planes, one item for each chunk.
 * State that neither gives has to be put: put.c. */
#include <stdatomic.h>
#include <stdlib.h>

#include "proto/snapshot_io/weights.h"
#include "proto/spec/scalars.h"
#include "server/shard/shard.h"
#include "server/shard/state/origin.h"

#define PIECE_ELEMS ((uint64_t)1 << 20)

struct weights_loader {
    struct cairn_loader loader; /* first */
    struct cairn_sentence extra;
    struct odd {
        uint32_t tensor;             /* at hand */
        uint64_t count, first_elem;  /* of it: elements that are NaN or infinite */
        size_t tensor_count;         /* that had some */
        struct cairn_sentence lines; /* of the first of these */
    } odd;
};

bool cairn_origin_wanted(const struct cairn_shard_job *job)
{
    if (job->spec.init_from != NULL) return true;
    for (size_t i = 0; i < job->view->table.map.extent_count; i++) {
        const uint32_t tensor = job->view->table.map.extents[i].tensor;
        if (job->spec.tensors[tensor].init.kind != CAIRN_INIT_NONE) return true;
    }
    return false;
}

/* ---- weights, on the files thread ---- */

/* Adds the line about the tensor that was being counted. */
static void end_odd(struct weights_loader *origin)
{
    struct odd *odd = &origin->odd;
    if (odd->count > 0 && ++odd->tensor_count <= CAIRN_WEIGHTS_NAMES_MAX)
        cairn_sentence_add(&odd->lines, "\n%s: %llu, the first is element %llu",
                           origin->loader.job->spec.tensors[odd->tensor].name,
                           (unsigned long long)odd->count, (unsigned long long)odd->first_elem);
    odd->count = 0;
}

static bool is_odd(float value)
{
    return (cairn_f32_bits(value) & 0x7f800000u) == 0x7f800000u;
}

/* A buffer may well hold infinities: masks do. */
static void count_odd(struct weights_loader *origin, uint32_t tensor, uint64_t first_elem,
                      const float *values, uint64_t elems)
{
    struct odd *odd = &origin->odd;
    const struct cairn_job_spec_data *spec = &origin->loader.job->spec;
    uint64_t count = 0;
    if (spec->init_nonfinite_ok || spec->tensors[tensor].kind == CAIRN_BUFFER) return;
    if (tensor != odd->tensor) end_odd(origin);
    odd->tensor = tensor;
    for (uint64_t i = 0; i < elems; i++) count += is_odd(values[i]);
    if (odd->count == 0 && count > 0) {
        odd->first_elem = first_elem;
        while (!is_odd(*values++)) odd->first_elem++;
    }
    odd->count += count;
}

/* Each shard says it of what it reads. */
static cairn_status refuse_odd(struct weights_loader *origin)
{
    const struct odd *odd = &origin->odd;
    if (odd->tensor_count == 0) return CAIRN_OK;
    cairn_sentence_set(&origin->loader.why,
                       "%s has elements that are NaN or infinite as fp32, in %zu tensors of what "
                       "shard %s reads; correct it, or say init_nonfinite_ok:%s",
                       origin->loader.job->spec.init_from, odd->tensor_count,
                       origin->loader.job->shard->name, odd->lines.text);
    if (odd->tensor_count > CAIRN_WEIGHTS_NAMES_MAX)
        cairn_sentence_add(&origin->loader.why, "\nand %zu more",
                           odd->tensor_count - CAIRN_WEIGHTS_NAMES_MAX);
    return CAIRN_ERR_NONFINITE;
}

static cairn_status read_extent(struct weights_loader *origin, struct cairn_weights *weights,
                                const struct cairn_weight *weight,
                                const struct cairn_local_extent *extent)
{
    const struct cairn_shard_job *job = origin->loader.job;
    struct cairn_works *works = cairn_compute_files(job->compute);
    const size_t number = (size_t)(extent - job->view->table.map.extents);
    uint64_t elems;
    for (uint64_t at = 0; at < extent->elem_count; at += elems) {
        elems = cairn_planes_dense(&job->planes, number, extent->local_elem + at);
        if (elems > PIECE_ELEMS) elems = PIECE_ELEMS;
        if (atomic_load(&origin->loader.canceled))
            return cairn_fail(&origin->loader.why, CAIRN_ERR_CANCELED, "the job was dropped");
        float *piece = cairn_works_put(
            works,
            cairn_planes_at(&job->planes, CAIRN_PLANE_PARAM, number, extent->local_elem + at),
            (size_t)elems * sizeof *piece);
        cairn_status status = cairn_weights_read(weights, weight, extent->first_elem + at, elems,
                                                 piece, &origin->loader.why);
        if (status == CAIRN_OK)
            count_odd(origin, extent->tensor, extent->first_elem + at, piece, elems);
        const cairn_status run = cairn_works_run(works, &origin->loader.why);
        if (status == CAIRN_OK) status = run;
        if (status != CAIRN_OK) return status;
    }
    for (uint64_t c = 0; c < extent->chunk_count; c++)
        job->puts.have[extent->first_chunk + c] = CAIRN_PUT_HAS(CAIRN_PLANE_PARAM);
    return CAIRN_OK;
}

static cairn_status read_weights(struct weights_loader *origin, struct cairn_weights *weights)
{
    const struct cairn_shard_job *job = origin->loader.job;
    const struct cairn_weight **from = calloc(job->spec.tensor_count + 1, sizeof *from);
    if (from == NULL) return cairn_fail(&origin->loader.why, CAIRN_ERR_NO_MEMORY, "no memory");
    cairn_status status = cairn_weights_match(weights, &job->spec, job->spec.init_prefix, from,
                                              &origin->extra, &origin->loader.why);
    for (size_t i = 0; status == CAIRN_OK && i < job->view->table.map.extent_count; i++) {
        const struct cairn_local_extent *extent = &job->view->table.map.extents[i];
        if (from[extent->tensor] != NULL)
            status = read_extent(origin, weights, from[extent->tensor], extent);
    }
    free(from);
    end_odd(origin);
    return status == CAIRN_OK ? refuse_odd(origin) : status;
}

static void run_files(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    struct weights_loader *origin = (struct weights_loader *)task;
    const struct cairn_shard_job *job = origin->loader.job;
    struct cairn_weights weights;
    origin->loader.status = cairn_snapshot_weights_open(
        job->shard->import_folders, job->spec.init_from, &weights, &origin->loader.why);
    if (origin->loader.status != CAIRN_OK) return;
    origin->loader.status = read_weights(origin, &weights);
    cairn_weights_close(&weights);
}

/* ---- initializers, on the compute threads ---- */

static bool describe(struct cairn_run *run, uint32_t chunk, uint32_t stage,
                     struct cairn_works *works)
{
    struct cairn_loader *loader = cairn_loader_of(run);
    const struct cairn_shard_job *job = loader->job;
    const uint32_t tensor = job->view->table.map.extents[job->view->table.extent_of[chunk]].tensor;
    (void)stage;
    if (job->puts.have[chunk] != 0 || atomic_load(&loader->canceled) ||
        job->spec.tensors[tensor].init.kind == CAIRN_INIT_NONE)
        return false;
    cairn_load_init_chunk(works, job, chunk);
    job->puts.have[chunk] = CAIRN_PUT_HAS(CAIRN_PLANE_PARAM);
    return false;
}

static void files_done(struct cairn_task *task)
{
    struct weights_loader *origin = (struct weights_loader *)task;
    struct cairn_shard_job *job = origin->loader.job;
    if (origin->loader.status == CAIRN_OK) {
        if (job->view->table.map.shard == 0 &&
            origin->extra.text[0] != '\0') { // the same on every shard
            cairn_log_info("job %s: %s has %s", job->spec.name, job->spec.init_from,
                           origin->extra.text);
        }
        cairn_log_info("job %s: loaded %s", job->spec.name, job->spec.init_from);
        cairn_loader_fill(&origin->loader, describe, cairn_loader_end);
        return;
    }
    if (job->state == CAIRN_JOB_LOADING)
        cairn_log_error("job %s: %s", job->spec.name, origin->loader.why.text);
    cairn_loader_end(&origin->loader);
}

/* ---- begin ---- */

cairn_status cairn_origin_begin(struct cairn_shard_job *job, struct cairn_sentence *why)
{
    struct weights_loader *origin = calloc(1, sizeof *origin);
    if (origin == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to make initial state");
    origin->loader.puts_follow = true;
    cairn_loader_begin(&origin->loader, job);
    if (job->spec.init_from == NULL) {
        cairn_loader_fill(&origin->loader, describe, cairn_loader_end);
        return CAIRN_OK;
    }
    origin->loader.task =
        (struct cairn_task) { .run = run_files, .done = files_done, .item_count = 1 };
    cairn_pool_submit(job->shard->files, &origin->loader.task);
    return CAIRN_OK;
}
