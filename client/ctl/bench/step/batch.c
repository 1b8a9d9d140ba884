/* cairn bench step --global-batch: a step of K micro-batches that the workers deal, each pushed for itself,
 * and beside it the same micro-batches in a job of stage 1, where each worker adds its own up and pushes the
 * sums once. Both push the same gradients, which are as the wire has them before the clock starts. */
#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/step/worker.h"
#include "gpu/gpu.h"

bool step_batch_open(struct step_worker *w, const struct cairn_bench_worker *worker)
{
    struct cairn_bench_model model = w->plan->model;
    snprintf(model.job, sizeof model.job, "%.50s.added", w->plan->model.job);
    model.added = (model.batch + worker->world - 1) / worker->world;
    model.batch = 0;
    w->added.session = w->member.session;
    if (w->made != NULL)
        cairn_backend_host()->convert(w->grads, CAIRN_BF16, w->made, CAIRN_F32,
                                      model.tensors * w->elems);
    return cairn_bench_member_join(&w->added, &model, worker);
}

static cairn_status push_micro(struct step_worker *w, const struct cairn_bench_member *member,
                               const struct cairn_round *round, uint32_t micro)
{
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; i < w->plan->model.tensors && status == CAIRN_OK; i++) {
        const struct cairn_mem grad = step_tensor_of(w, w->grads, i);
        status = cairn_push(member->job, round, micro, member->names[i], NULL, &grad, NULL);
    }
    return status == CAIRN_OK ? cairn_micro_end(member->job, round, micro) : status;
}

/* Where they are added up each worker counts its own. */
static cairn_status push_batch(struct step_worker *w, const struct cairn_bench_member *member,
                               const struct cairn_round *round)
{
    cairn_status status = CAIRN_OK;
    uint32_t own = 0;
    for (uint32_t k = round->rank; k < w->plan->model.batch && status == CAIRN_OK;
         k += round->world, own++)
        status = push_micro(w, member, round, member == &w->added ? own : k);
    return status;
}

bool step_batch_run(struct step_worker *w, const struct cairn_bench_member *member,
                    struct cairn_bench_report *report)
{
    struct cairn_round round = { .struct_size = sizeof round };
    struct cairn_result result = { .struct_size = sizeof result };
    struct cairn_stats before = { .struct_size = sizeof before }, after = before;
    cairn_status status = cairn_job_stats(member->job, &before);
    const double t0 = cairn_bench_now();
    if (status == CAIRN_OK) status = cairn_round_begin(member->job, CAIRN_BENCH_CALL_MS, &round);
    if (status == CAIRN_OK) status = push_batch(w, member, &round);
    const double t1 = cairn_bench_now();
    if (status == CAIRN_OK)
        status = cairn_commit(member->job, &round, 0, NULL, 0, CAIRN_BENCH_CALL_MS, &result);
    const double t2 = cairn_bench_now();
    if (status == CAIRN_OK) status = step_fetch_all(w, member, result.version);
    const double t3 = cairn_bench_now();
    if (status == CAIRN_OK) status = cairn_job_stats(member->job, &after);
    *report = (struct cairn_bench_report) { .figures = { [STEP_FIGURE_ALL] = t3 - t0,
                                                         [STEP_FIGURE_PUSH] = t1 - t0,
                                                         [STEP_FIGURE_COMMIT] = t2 - t1,
                                                         [STEP_FIGURE_FETCH] = t3 - t2 } };
    step_count_bytes(&before, &after, report);
    return cairn_bench_is_ok(status);
}
