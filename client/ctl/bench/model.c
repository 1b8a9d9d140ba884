#include "client/ctl/bench/model.h"

#include <stdlib.h>
#include <string.h>

bool cairn_bench_is_ok(cairn_status status)
{
    if (status != CAIRN_OK)
        (void)cairn_ctl_fail(status, "a worker of the bench: %s", cairn_error());
    return status == CAIRN_OK;
}

bool cairn_bench_is_path(const char *name)
{
    static const char *const paths[] = { "auto", "mapped", "ucx" };
    for (size_t i = 0; name != NULL && i < sizeof paths / sizeof *paths; i++)
        if (strcmp(name, paths[i]) == 0) return true;
    return name == NULL;
}

void cairn_bench_model_cut(struct cairn_bench_model *model, uint64_t params)
{
    const uint64_t row_elems = (uint64_t)model->tensors * CAIRN_BENCH_COLUMNS;
    model->rows = params / row_elems + (params % row_elems != 0);
}

static cairn_status open_job(struct cairn_bench_member *member,
                             const struct cairn_bench_model *model,
                             const struct cairn_bench_worker *worker)
{
    struct cairn_tensor *tensors = calloc(model->tensors, sizeof *tensors);
    const struct cairn_init zeros = { .kind = CAIRN_INIT_ZEROS };
    const struct cairn_init normal = { .kind = CAIRN_INIT_NORMAL, .b = 0.02, .seed = 1 };
    const struct cairn_init init = model->begins_random ? normal : zeros;
    if (tensors == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < model->tensors; i++) {
        snprintf(member->names[i], sizeof member->names[i], "w%04u", i % CAIRN_BENCH_TENSORS_MAX);
        tensors[i] = (struct cairn_tensor) { .struct_size = sizeof tensors[i],
                                             .name = member->names[i],
                                             .wire = model->wire,
                                             .rank = 2,
                                             .shape = { model->rows, CAIRN_BENCH_COLUMNS },
                                             .init = init };
    }
    const struct cairn_group group = CAIRN_GROUP_INIT;
    const struct cairn_job_spec spec = { .struct_size = sizeof spec,
                                         .tensors = tensors,
                                         .tensor_count = model->tensors,
                                         .groups = &group,
                                         .group_count = 1,
                                         .rank = worker->rank,
                                         .workers_min = worker->world,
                                         .global_batch = model->batch,
                                         .micro_batches = model->added,
                                         .snapshot_durable_within_s = model->durable_s,
                                         .stage = model->added > 0 ? CAIRN_STAGE(1) : 0 };
    const cairn_status status = cairn_job_open(member->session, model->job, &spec, CAIRN_WORKER,
                                               CAIRN_BENCH_CALL_MS, &member->job);
    free(tensors);
    return status;
}

bool cairn_bench_member_join(struct cairn_bench_member *member,
                             const struct cairn_bench_model *model,
                             const struct cairn_bench_worker *worker)
{
    cairn_status status = open_job(member, model, worker);
    if (status == CAIRN_OK) status = cairn_init_done(member->job, NULL, CAIRN_BENCH_CALL_MS);
    return cairn_bench_is_ok(status);
}

bool cairn_bench_member_open(struct cairn_bench_member *member,
                             const struct cairn_bench_model *model,
                             const struct cairn_bench_worker *worker)
{
    const struct cairn_opts opts = { .struct_size = sizeof opts, .device = model->device };
    const cairn_status status = cairn_open(&opts, &member->session);
    return cairn_bench_is_ok(status) && cairn_bench_member_join(member, model, worker);
}
