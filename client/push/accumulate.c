/* Stages 0 and 1: the micro-batches of a round are added up here, in fp32 and in their order, and pushed
 * once, as micro-batch 0. With one micro-batch nothing is copied: the caller's memory is pushed.
 *
 * A sum is made when its tensor is first pushed, and kept as long as the job is open. In the last
 * micro-batch a tensor's sum is pushed as soon as it is complete; what the last one did not touch follows
 * at its end. A worker that commits with fewer micro-batches than the job declares pushes what it has. */
#include "client/push/accumulate.h"

#include <stdlib.h>
#include <string.h>

#include "client/job.h"
#include "client/op.h"

struct sum {
    /* owned */
    float *values; /* [elems] */
    size_t elems;
    struct piece piece; /* what of the tensor */
    bool any;           /* pushed in a micro-batch of this round */
    bool sent;
};

bool cairn_accumulate_wanted(const struct job *job)
{
    return job->spec.stage < 2 && job->spec.micro_batches > 1;
}

static uint32_t last_micro(const struct job *job)
{
    return job->spec.micro_batches - 1;
}

void cairn_accumulate_new_round(struct job *job)
{
    job->sums.ended = false;
    for (size_t i = 0; job->sums.of != NULL && i < job->spec.tensor_count; i++)
        job->sums.of[i].any = job->sums.of[i].sent = false;
}

void cairn_accumulate_release(struct job *job)
{
    for (size_t i = 0; job->sums.of != NULL && i < job->spec.tensor_count; i++)
        free(job->sums.of[i].values);
    free(job->sums.of);
}

/* ---- adding ---- */

static bool make_room(struct job *job, struct sum *sum, size_t elems)
{
    if (sum->values != NULL && sum->elems == elems) return true;
    float *values = realloc(sum->values, (elems > 0 ? elems : 1) * sizeof *values);
    if (values == NULL) return false;
    pthread_mutex_lock(&job->session->lock);
    job->stats.accumulated_bytes += elems * sizeof *values;
    job->stats.accumulated_bytes -= sum->elems * sizeof *values;
    pthread_mutex_unlock(&job->session->lock);
    sum->values = values;
    sum->elems = elems;
    return true;
}

static float of_bf16(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* sum: [elems] f32; gradient: [elems] f32 or bf16. The first one of a round is taken as it is: 0 + -0 is
 * not -0. */
static void add(float *restrict sum, const void *restrict gradient, size_t elems, cairn_dtype dtype,
                bool first)
{
    const float *wide = gradient;
    const uint16_t *narrow = gradient;
    if (elems == 0) return;
    if (dtype == CAIRN_F32 && first)
        memcpy(sum, wide, elems * sizeof *sum);
    else if (dtype == CAIRN_F32)
        for (size_t i = 0; i < elems; i++) sum[i] += wide[i];
    else if (first)
        for (size_t i = 0; i < elems; i++) sum[i] = of_bf16(narrow[i]);
    else
        for (size_t i = 0; i < elems; i++) sum[i] += of_bf16(narrow[i]);
}

/* The piece from the caller's memory: as it lies, or a few at a time. */
static void add_piece(struct sum *sum, const struct piece *piece, const struct cairn_mem *mem)
{
    enum { AT_ONCE = 4096 };
    float some[AT_ONCE];
    if (!piece->strides.given) {
        add(sum->values, mem->ptr, sum->elems, mem->dtype, !sum->any);
        return;
    }
    for (size_t at = 0, count; at < sum->elems; at += count) {
        count = sum->elems - at < AT_ONCE ? sum->elems - at : AT_ONCE;
        cairn_strides_gather(&piece->strides, mem->ptr, cairn_dtype_bytes((int)mem->dtype), at,
                             count, some);
        add(sum->values + at, some, count, mem->dtype, !sum->any);
    }
}

static struct sum *sum_of(struct job *job, size_t tensor)
{
    pthread_mutex_lock(&job->session->lock);
    if (job->sums.of == NULL)
        job->sums.of = calloc(job->spec.tensor_count + 1, sizeof *job->sums.of);
    struct sum *sum = job->sums.of != NULL ? &job->sums.of[tensor] : NULL;
    pthread_mutex_unlock(&job->session->lock);
    return sum;
}

static cairn_status send_sum(struct job *job, const struct cairn_round *round, size_t tensor)
{
    struct sum *sum = &job->sums.of[tensor];
    const struct command pattern = { .tensor = (uint32_t)tensor,
                                     .micro = 0,
                                     .dtype = CAIRN_F32,
                                     .ptr = (uint8_t *)sum->values,
                                     .piece = sum->piece,
                                     .round = round->round };
    cairn_status status = cairn_op_begin(job, CAIRN_CHUNK_PUSH, cairn_pushes_run, &pattern, NULL);
    if (status == CAIRN_OK) sum->sent = true;
    return status;
}

static cairn_status add_inside(struct job *job, const struct cairn_round *round, uint32_t micro,
                               size_t tensor, const struct piece *piece,
                               const struct cairn_mem *mem)
{
    const size_t elems = (size_t)cairn_box_elems(&piece->box);
    const void *lent;
    struct sum *sum = sum_of(job, tensor);
    if (sum == NULL || !make_room(job, sum, elems))
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY,
                                 "tensor %s: out of memory to add up micro-batches (stage %u)",
                                 job->spec.tensors[tensor].name, (unsigned)job->spec.stage);
    const size_t bytes = cairn_strides_span(&piece->strides, elems,
                                            cairn_dtype_bytes((int)mem->dtype));
    cairn_status status = cairn_memory_lend(job->session, mem->ptr, bytes, NULL, &lent);
    if (status != CAIRN_OK) return status;
    add_piece(sum, piece, mem);
    cairn_memory_return(job->session, lent);
    sum->piece = *piece;
    sum->piece.strides.given = false; // the sum is dense
    sum->any = true;
    // Out of memory for that is no harm yet: it is sent at the end of the micro-batch.
    if (micro == last_micro(job)) (void)send_sum(job, round, tensor);
    return CAIRN_OK;
}

cairn_status cairn_accumulate_add(struct job *job, const struct cairn_round *round, uint32_t micro,
                                  size_t tensor, const struct piece *piece,
                                  const struct cairn_mem *mem)
{
    cairn_status status = add_inside(job, round, micro, tensor, piece, mem);
    pthread_mutex_lock(&job->session->lock);
    if (status != CAIRN_OK) job->filling.tensors[tensor] = NOT_PUSHED; // it may be tried again
    if (--job->filling.adding == 0) pthread_cond_broadcast(&job->session->changed);
    pthread_mutex_unlock(&job->session->lock);
    return status;
}

void cairn_accumulate_skip(struct job *job, size_t tensor)
{
    pthread_mutex_lock(&job->session->lock);
    job->filling.tensors[tensor] = NOT_PUSHED;
    if (--job->filling.adding == 0) pthread_cond_broadcast(&job->session->changed);
    pthread_mutex_unlock(&job->session->lock);
}

/* ---- sending ---- */

cairn_status cairn_accumulate_send(struct job *job, const struct cairn_round *round)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; status == CAIRN_OK && job->sums.of != NULL && i < job->spec.tensor_count;
         i++)
        if (job->sums.of[i].any && !job->sums.of[i].sent) status = send_sum(job, round, i);
    return status;
}
