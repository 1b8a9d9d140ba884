/* global_batch: a step's micro-batches have numbers, whoever is there, and the caller speaks of them by
 * these. Inside, and on the wire, one is its place among this worker's own. */
#include "client/api/api.h"
#include "client/base/struct.h"
#include "proto/spec/batch.h"

static cairn_status refuse_surplus(const struct job *job)
{
    const struct cairn_batch *batch = &job->filling.batch;
    return cairn_client_fail(CAIRN_ERR_INVALID,
                             "this worker is surplus: job %s has global_batch = %u, and others of "
                             "lower rank have all of its micro-batches; commit, which waits for "
                             "the round's end, and begin the next one",
                             job->name, batch->total);
}

/* "1, 4, 7": the first ones, and that there are more. */
static void list_own(const struct cairn_batch *batch, struct cairn_sentence *out)
{
    const uint32_t count = cairn_batch_count(batch), shown = count < 4 ? count : 4;
    cairn_sentence_set(out, "%s", "");
    for (uint32_t i = 0; i < shown; i++)
        cairn_sentence_add(out, "%s%u", i > 0 ? ", " : "", cairn_batch_number(batch, i));
    if (shown < count) cairn_sentence_add(out, ", ...");
}

static cairn_status refuse_number(const struct job *job, uint32_t micro)
{
    struct cairn_sentence own;
    const struct cairn_batch *batch = &job->filling.batch;
    list_own(batch, &own);
    return cairn_client_fail(CAIRN_ERR_INVALID,
                             "micro-batch %u of %u is not this worker's in this round: rank %u of "
                             "%u has %s",
                             micro, batch->total, batch->rank, batch->world, own.text);
}

bool cairn_batch_is_surplus(const struct job *job)
{
    return job->filling.batch.total > 0 && cairn_batch_count(&job->filling.batch) == 0;
}

cairn_status cairn_api_batch_place(struct job *job, const struct cairn_round *round,
                                   uint32_t *micro)
{
    if (job->spec.global_batch == 0) return CAIRN_OK;
    if (!cairn_struct_fits(round, CAIRN_API_ROUND_LEAST))
        return cairn_client_fail(CAIRN_ERR_INVALID, "round must be given, with its struct_size");
    pthread_mutex_lock(&job->session->lock);
    cairn_status status = cairn_api_judge_round(job, round);
    if (status == CAIRN_OK && cairn_batch_is_surplus(job))
        status = refuse_surplus(job);
    else if (status == CAIRN_OK && !cairn_batch_place(&job->filling.batch, *micro, micro))
        status = refuse_number(job, *micro);
    pthread_mutex_unlock(&job->session->lock);
    return status;
}

cairn_status cairn_batch_judge_commit(const struct job *job, bool *is_open)
{
    const struct cairn_batch *batch = &job->filling.batch;
    const uint32_t own = cairn_batch_count(batch), micro = job->filling.micro;
    if (batch->total == 0) return CAIRN_OK;
    *is_open = micro < own;
    if (micro + 1 >= own) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_INVALID,
                             "micro-batch %u of %u is not ended, nor are the %u of this worker "
                             "behind it: every step has all of them; end each with "
                             "cairn_micro_end, also one without gradients, or give the round up "
                             "with cairn_round_abandon",
                             cairn_batch_number(batch, micro), batch->total, own - micro - 1);
}

cairn_status cairn_api_batch_judge_buffer(struct job *job, size_t tensor)
{
    const struct cairn_tensor_spec *t = &job->spec.tensors[tensor];
    if (job->spec.global_batch == 0 || t->kind != CAIRN_BUFFER) return CAIRN_OK;
    pthread_mutex_lock(&job->session->lock);
    const bool may = job->filling.had_last;
    pthread_mutex_unlock(&job->session->lock);
    if (may) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_REFUSED,
                             "tensor %s is a buffer, and job %s has global_batch = %u: the worker "
                             "of micro-batch %u of the last round writes it, so that the bits do "
                             "not depend on how many workers there are; this one had others",
                             t->name, job->name, job->spec.global_batch,
                             job->spec.global_batch - 1);
}

uint64_t cairn_micro_seed(const struct cairn_round *round, uint32_t micro)
{
    const size_t least = offsetof(struct cairn_round, global_batch) + sizeof round->global_batch;
    if (!cairn_struct_fits(round, least)) return 0;
    const uint64_t number = round->global_batch > 0 ? micro
                                                    : (uint64_t)micro * round->world + round->rank;
    return cairn_batch_seed(round->seed, round->index, number);
}
