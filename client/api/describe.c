/* cairn_job_describe and cairn_job_tensor tell whoever opened a job what the job is. Readers bring
 * no spec of their own, and trainers compare the job's spec with theirs. */
#include <string.h>

#include "client/api/api.h"
#include "client/base/struct.h"

static void fill_info(struct job *job, struct cairn_job_info *info)
{
    pthread_mutex_lock(&job->session->lock);
    *info = (struct cairn_job_info) {
        .struct_size = sizeof *info,
        .name = job->name,
        .tensor_count = job->spec.tensor_count,
        .group_count = job->spec.group_count,
        .rank = job->member.rank,
        .workers_min = job->spec.workers_min,
        .clip_norm = job->known.clip_norm,
        .loss_scale = job->spec.loss_scale,
        .on_nonfinite = job->spec.on_nonfinite,
        .newest = job->known.newest,
        .initialized = job->known.initialized,
        .stage = CAIRN_STAGE(job->spec.stage),
        .micro_batches = job->spec.micro_batches,
        .global_batch = job->spec.global_batch,
        .seed = job->spec.seed,
        .client_state_max = job->spec.client_state_max,
        .reduce_groups = job->spec.reduce_groups,
        .workers_max = job->spec.workers_max,
        .revision = job->spec.revision,
        .found = job->known.found,
        .found_step = job->known.found_step,
        .made_by = job->known.made_by,
    };
    pthread_mutex_unlock(&job->session->lock);
}

cairn_status cairn_job_describe(cairn_job *handle, struct cairn_job_info *out)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = CAIRN_OK;
    struct cairn_job_info info;
    const size_t least = offsetof(struct cairn_job_info, initialized) + sizeof info.initialized;
    if (!cairn_struct_fits(out, least)) {
        status = cairn_client_fail(CAIRN_ERR_INVALID,
                                   "out must be given, its struct_size at least %zu", least);
    } else {
        fill_info(job, &info);
        cairn_struct_give(out, &info, sizeof info);
    }
    return cairn_api_leave(handle, status);
}

/* An alias is described as its target, or as the box of it. */
static void fill_tensor(const struct cairn_job_spec_data *spec, size_t index,
                        struct cairn_tensor *out)
{
    const struct cairn_tensor_spec *t = &spec->tensors[index];
    const struct cairn_tensor_spec *target = &spec->tensors[cairn_spec_target(spec, index)];
    const struct cairn_box *box = t->alias_box;
    *out = (struct cairn_tensor) {
        .struct_size = sizeof *out,
        .name = t->name,
        .unit = t->unit,
        .group = t->group,
        .wire = t->wire,
        .rank = target->shape.rank,
        .kind = target->kind,
        .alias_of = t->alias_of,
        .alias_box = box,
        .reduce = t->reduce,
        .master = t->master,
        .place = t->whole ? CAIRN_WHOLE : CAIRN_ROWS,
        .init = t->init,
    };
    const uint64_t *dims = box != NULL ? box->extent : target->shape.dim;
    memcpy(out->shape, dims, target->shape.rank * sizeof dims[0]);
}

cairn_status cairn_job_tensor(cairn_job *handle, size_t index, struct cairn_tensor *out)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = CAIRN_OK;
    struct cairn_tensor tensor;
    if (!cairn_struct_fits(out, offsetof(struct cairn_tensor, kind) + sizeof out->kind)) {
        status = cairn_client_fail(CAIRN_ERR_INVALID, "out must be given with its struct_size");
    } else if (index >= job->spec.tensor_count) {
        status = cairn_client_fail(CAIRN_ERR_NOT_FOUND, "job %s has %zu tensors, there is no %zu",
                                   job->name, job->spec.tensor_count, index);
    } else {
        fill_tensor(&job->spec, index, &tensor);
        cairn_struct_give(out, &tensor, sizeof tensor);
    }
    return cairn_api_leave(handle, status);
}
