/* Pushes: which round and micro-batch they are of, and where they go. */
#include <stdlib.h>
#include <string.h>

#include "client/api/judge.h"
#include "client/api/list.h"
#include "client/base/struct.h"
#include "client/device/card.h"
#include "client/op.h"
#include "client/push/assemble.h"

cairn_status cairn_api_judge_begun(const struct job *job, const struct cairn_round *round)
{
    if (round->round == 0)
        return cairn_client_fail(
            CAIRN_ERR_INVALID,
            "no round is begun; call cairn_round_begin, and give what it filled in");
    if (round->job == job->member.number) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_STALE,
                             "round %llu was not begun on this handle of job %s; give what "
                             "cairn_round_begin filled in for it",
                             (unsigned long long)round->round, job->name);
}

cairn_status cairn_api_judge_round(const struct job *job, const struct cairn_round *round)
{
    const unsigned long long number = round->round, step = round->step;
    const cairn_status status = cairn_api_judge_begun(job, round);
    if (status != CAIRN_OK) return status;
    if (number == job->filling.refused_round)
        return cairn_client_fail(job->filling.refused_status, "%s", job->filling.refused_why.text);
    if (number == job->filling.void_round && job->filling.void_why.text[0] != '\0')
        return cairn_client_fail(CAIRN_ERR_EPOCH_CHANGED,
                                 "%s (step %llu was abandoned: begin the next round)",
                                 job->filling.void_why.text, step);
    if (number <= job->filling.void_round)
        return cairn_client_fail(
            CAIRN_ERR_EPOCH_CHANGED,
            "round %llu of step %llu was abandoned; begin the next one and compute again", number,
            step);
    if (number != job->filling.round)
        return cairn_client_fail(CAIRN_ERR_STALE,
                                 "round %llu is not the one that this worker has open; call "
                                 "cairn_round_begin and give what it filled in",
                                 number);
    if (job->filling.committed)
        return cairn_client_fail(CAIRN_ERR_STALE,
                                 "round %llu is committed; call cairn_round_begin for the next one",
                                 number);
    return CAIRN_OK;
}

/* Is `micro` the micro-batch that is being filled? Under the lock. */
static cairn_status judge_micro(const struct job *job, uint32_t micro)
{
    if (job->filling.end_unsent)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "the end of micro-batch %u could not be told for lack of memory; "
                                 "call again what failed, cairn_micro_end or cairn_commit",
                                 cairn_batch_number(&job->filling.batch, job->filling.micro - 1));
    if (micro != job->filling.micro)
        return cairn_client_fail(
            CAIRN_ERR_INVALID,
            "this is micro-batch %u, micro-batch %u is being filled; end it with cairn_micro_end",
            cairn_batch_number(&job->filling.batch, micro),
            cairn_batch_number(&job->filling.batch, job->filling.micro));
    const bool is_bound = job->spec.stage < 2 ||
                          (job->spec.micro_batches > 1 && job->filling.batch.total == 0);
    if (is_bound && micro >= job->spec.micro_batches)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "micro-batch %u: job %s is of stage %u and declares micro_batches "
                                 "= %u, counted from 0; declare more in its spec, or none and take "
                                 "stage 2",
                                 micro, job->name, job->spec.stage, job->spec.micro_batches);
    return CAIRN_OK;
}

static cairn_status refuse_after_sums(const char *tensor)
{
    return cairn_client_fail(CAIRN_ERR_STALE,
                             "tensor %s: another thread commits the round, whose micro-batches are "
                             "added up; push before the commit, or in the next round",
                             tensor);
}

/* Is the tensor not yet in the micro-batch that is being filled? Notes it, or, CAIRN_API_NO_TENSOR, the end
 * of the micro-batch. Under the lock. */
static cairn_status fill(struct job *job, uint32_t micro, size_t tensor)
{
    const cairn_status status = judge_micro(job, micro);
    if (status != CAIRN_OK) return status;
    if (tensor == CAIRN_API_NO_TENSOR) {
        job->filling.micro++, job->filling.any = false;
        memset(job->filling.tensors, 0, job->spec.tensor_count);
        return CAIRN_OK;
    }
    if (job->sums.ended) return refuse_after_sums(job->spec.tensors[tensor].name);
    if (job->filling.tensors[tensor] != NOT_PUSHED)
        return cairn_client_fail(CAIRN_ERR_EXISTS,
                                 "tensor %s was pushed in micro-batch %u already; add gradients "
                                 "before pushing, or end the micro-batch",
                                 job->spec.tensors[tensor].name,
                                 cairn_batch_number(&job->filling.batch, micro));
    job->filling.tensors[tensor] = PUSHED;
    job->filling.any = true;
    job->filling.adding += cairn_accumulate_wanted(job);
    return CAIRN_OK;
}

void cairn_api_await_added(struct job *job)
{
    while (job->filling.adding > 0) pthread_cond_wait(&job->session->changed, &job->session->lock);
}

cairn_status cairn_api_judge_fill(struct job *job, const struct cairn_round *round, uint32_t micro,
                                  size_t tensor)
{
    if (!cairn_struct_fits(round, CAIRN_API_ROUND_LEAST))
        return cairn_client_fail(CAIRN_ERR_INVALID, "round must be given, with its struct_size");
    pthread_mutex_lock(&job->session->lock);
    if (tensor == CAIRN_API_NO_TENSOR) cairn_api_await_added(job);
    cairn_status status = cairn_api_judge_round(job, round);
    if (status == CAIRN_OK) status = fill(job, micro, tensor);
    pthread_mutex_unlock(&job->session->lock);
    return status;
}

/* Refuses the gradient of a tensor that is frozen in this round. An amendment freezes a tensor or
 * its whole group; RoundOpened says which. Under the lock. */
static cairn_status judge_thawed(const struct job *job, size_t tensor)
{
    const struct cairn_tensor_spec *t = &job->spec.tensors[tensor];
    const bool group_frozen =
        job->filling.frozen_groups[cairn_spec_find_group(&job->spec, t->group)];
    if (job->filling.frozen_tensors[tensor])
        return cairn_client_fail(CAIRN_ERR_REFUSED,
                                 "tensor %s is frozen in this round and takes no gradient; skip "
                                 "it, or have it unfrozen by cairn_job_amend",
                                 t->name);
    if (!group_frozen) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_REFUSED,
                             "tensor %s: its group %s is frozen in this round and takes no "
                             "gradient; skip it, or have it unfrozen by cairn_job_amend",
                             t->name, t->group);
}

static cairn_status judge_frozen(struct job *job, size_t tensor)
{
    pthread_mutex_lock(&job->session->lock);
    const cairn_status status = judge_thawed(job, tensor);
    pthread_mutex_unlock(&job->session->lock);
    return status;
}

/* ---- lists ---- */

/* Under the lock. */
static cairn_status fill_all(struct job *job, uint32_t micro, const size_t *tensors, size_t count,
                             size_t *wrong_out)
{
    const bool any = job->filling.any;
    cairn_status status = CAIRN_OK;
    size_t done = 0;
    for (; done < count && status == CAIRN_OK; done++) {
        status = judge_thawed(job, tensors[done]);
        if (status == CAIRN_OK) status = fill(job, micro, tensors[done]);
    }
    if (status == CAIRN_OK) return CAIRN_OK;
    *wrong_out = --done;
    job->filling.any = any;
    while (done-- > 0) {
        job->filling.tensors[tensors[done]] = NOT_PUSHED;
        job->filling.adding -= cairn_accumulate_wanted(job);
    }
    return status;
}

cairn_status cairn_api_fill_many(struct job *job, const struct cairn_round *round, uint32_t micro,
                                 const size_t *tensors, size_t count, size_t *wrong_out)
{
    *wrong_out = count;
    if (!cairn_struct_fits(round, CAIRN_API_ROUND_LEAST))
        return cairn_client_fail(CAIRN_ERR_INVALID, "round must be given, with its struct_size");
    pthread_mutex_lock(&job->session->lock);
    cairn_status status = cairn_api_judge_round(job, round);
    if (status == CAIRN_OK) status = judge_micro(job, micro);
    if (status == CAIRN_OK) status = fill_all(job, micro, tensors, count, wrong_out);
    pthread_mutex_unlock(&job->session->lock);
    return status;
}

/* ---- aliases of boxes ---- */

/* Its place in the micro-batch that is being filled. */
static cairn_status fill_part(struct job *job, const struct cairn_round *round,
                              const struct portion *portion, struct assembly **out)
{
    if (!cairn_struct_fits(round, CAIRN_API_ROUND_LEAST))
        return cairn_client_fail(CAIRN_ERR_INVALID, "round must be given, with its struct_size");
    pthread_mutex_lock(&job->session->lock);
    cairn_status status = cairn_api_judge_round(job, round);
    if (status == CAIRN_OK) status = judge_micro(job, portion->micro);
    if (status == CAIRN_OK && job->filling.tensors[portion->tensor] == PUSHED)
        status = cairn_client_fail(
            CAIRN_ERR_EXISTS,
            "tensor %s is a box of %s, all of which was pushed in micro-batch %u already",
            portion->name, job->spec.tensors[portion->tensor].name,
            cairn_batch_number(&job->filling.batch, portion->micro));
    if (status == CAIRN_OK && job->sums.ended) status = refuse_after_sums(portion->name);
    if (status == CAIRN_OK) status = cairn_assemble_claim(job, portion, out);
    if (status == CAIRN_OK) {
        job->filling.tensors[portion->tensor] = PUSHED_IN_PART;
        job->filling.any = true;
        job->filling.adding++;
    }
    pthread_mutex_unlock(&job->session->lock);
    return status;
}

/* The assembly is on loan, or freed, if it was sent. */
static cairn_status send_assembly(struct job *job, const struct cairn_round *round, uint32_t micro,
                                  struct assembly *assembly)
{
    struct command pattern = { .plane = 0 };
    cairn_assemble_pattern(assembly, &pattern);
    if (!cairn_accumulate_wanted(job))
        return cairn_op_begin(job, CAIRN_CHUNK_PUSH, cairn_pushes_run, &pattern, NULL);
    const struct cairn_mem mem = cairn_assemble_mem(assembly);
    pthread_mutex_lock(&job->session->lock);
    job->filling.adding++;
    pthread_mutex_unlock(&job->session->lock);
    const cairn_status status = cairn_accumulate_add(job, round, micro, pattern.tensor,
                                                     &pattern.piece, &mem);
    if (status == CAIRN_OK) cairn_assemble_free(assembly);
    return status;
}

/* Copied, or not: how the tensor stands. */
static void end_part(struct job *job, const struct portion *portion, bool whole)
{
    pthread_mutex_lock(&job->session->lock);
    if (portion->round == job->filling.round && portion->micro == job->filling.micro)
        job->filling.tensors[portion->tensor] = whole ? PUSHED
                                                : cairn_assemble_begun(job, portion)
                                                    ? PUSHED_IN_PART
                                                    : NOT_PUSHED;
    if (--job->filling.adding == 0) pthread_cond_broadcast(&job->session->changed);
    pthread_mutex_unlock(&job->session->lock);
}

static cairn_status push_brought(struct job *job, const struct cairn_round *round,
                                 struct portion *portion)
{
    struct assembly *assembly;
    bool whole = false;
    cairn_status status = fill_part(job, round, portion, &assembly);
    if (status != CAIRN_OK) return status;
    status = cairn_assemble_copy(assembly, portion, &whole);
    if (status == CAIRN_OK && whole) {
        status = send_assembly(job, round, portion->micro, assembly);
        if (status != CAIRN_OK) cairn_assemble_undo(assembly, portion); // it may be tried again
    }
    end_part(job, portion, status == CAIRN_OK && whole);
    return status;
}

static cairn_status push_part(struct job *job, const struct cairn_round *round,
                              struct portion *portion, const struct cairn_box *part,
                              const struct cairn_box *box, cairn_op **op_out)
{
    void *copy;
    struct op *op = NULL;
    cairn_status status = cairn_api_judge_portion(job, part, box, portion);
    if (status == CAIRN_OK) status = judge_frozen(job, portion->tensor);
    if (status == CAIRN_OK) status = cairn_op_reserve(job, CAIRN_CHUNK_PUSH, op_out, &op);
    if (status != CAIRN_OK) return status;
    status = cairn_api_bring(&portion->mem, &portion->piece, &copy);
    if (status == CAIRN_OK) {
        status = push_brought(job, round, portion);
        free(copy);
    }
    return cairn_op_settle(op, status, op_out);
}

cairn_status cairn_api_push_incomplete(struct job *job, const struct cairn_round *round,
                                       uint32_t micro)
{
    struct assembly *assembly;
    cairn_status status = CAIRN_OK;
    while (status == CAIRN_OK &&
           (assembly = cairn_assemble_ended(job, round->round, micro)) != NULL) {
        status = send_assembly(job, round, micro, assembly);
        if (status != CAIRN_OK) cairn_assemble_put_back(assembly); // the call is made again
    }
    return status;
}

/* ---- push ---- */

/* A push of what this worker holds of a tensor. */
struct push {
    const struct cairn_round *round;
    uint32_t micro;
    size_t tensor;
    struct piece piece;
    struct cairn_mem mem;
};

/* Added up here: what is on a card comes to the host. */
static cairn_status push_sum(struct job *job, struct push *push, cairn_op **op_out)
{
    void *copy;
    struct op *op;
    cairn_status status = cairn_op_reserve(job, CAIRN_CHUNK_PUSH, op_out, &op);
    if (status != CAIRN_OK) return status;
    status = cairn_api_bring(&push->mem, &push->piece, &copy);
    if (status == CAIRN_OK) {
        status = cairn_api_judge_fill(job, push->round, push->micro, push->tensor);
        if (status == CAIRN_OK)
            status = cairn_accumulate_add(job, push->round, push->micro, push->tensor, &push->piece,
                                          &push->mem);
        free(copy);
    }
    return cairn_op_settle(op, status, op_out);
}

static cairn_status send_piece(struct job *job, const struct push *push, struct command *pattern,
                               cairn_op **op_out)
{
    cairn_status status = cairn_api_judge_fill(job, push->round, push->micro, push->tensor);
    if (status != CAIRN_OK) return status;
    pattern->round = push->round->round;
    status = cairn_op_begin(job, CAIRN_CHUNK_PUSH, cairn_pushes_run, pattern, op_out);
    if (status == CAIRN_OK) return CAIRN_OK;
    pthread_mutex_lock(&job->session->lock); // it may be tried again
    job->filling.tensors[push->tensor] = NOT_PUSHED;
    pthread_mutex_unlock(&job->session->lock);
    return status;
}

/* From where it lies: what is on a card and dense, when its stream is so far; if it is not dense, it comes to
 * the host. */
static cairn_status push_piece(struct job *job, struct push *push, cairn_op **op_out)
{
    struct command pattern = { .tensor = (uint32_t)push->tensor,
                               .micro = push->micro,
                               .dtype = (uint8_t)push->mem.dtype,
                               .piece = push->piece };
    cairn_status status = CAIRN_OK;
    if (push->piece.strides.given)
        status = cairn_api_bring(&push->mem, &push->piece, &pattern.owned);
    if (status == CAIRN_OK) status = cairn_api_card(&push->mem, &pattern.card);
    if (status == CAIRN_OK && pattern.card != NULL)
        status = cairn_card_mark(pattern.card, push->mem.stream, &pattern.event);
    pattern.ptr = push->mem.ptr;
    if (status == CAIRN_OK) status = send_piece(job, push, &pattern, op_out);
    if (status == CAIRN_OK) return CAIRN_OK;
    cairn_card_event_free(pattern.event);
    free(pattern.owned);
    return status;
}

/* Judges the tensor and the dtype of a gradient: only a trained tensor takes one. */
static cairn_status judge_gradient(const struct job *job, size_t index, const char *tensor,
                                   const struct cairn_mem *mem)
{
    if (job->spec.tensors[index].kind != CAIRN_TRAINED)
        return cairn_client_fail(
            CAIRN_ERR_INVALID, "tensor %s is not trained; it takes no gradient%s", tensor,
            job->spec.tensors[index].kind == CAIRN_BLOB
                ? ": a blob is changed by cairn_write_begin, cairn_put and cairn_write_end"
                : "");
    if (mem->dtype != CAIRN_F32 && mem->dtype != CAIRN_BF16)
        return cairn_api_refuse_dtype(tensor, mem, "CAIRN_F32 or CAIRN_BF16");
    return CAIRN_OK;
}

cairn_status cairn_api_judge_push(struct job *job, const char *tensor, const struct cairn_box *box,
                                  const struct cairn_mem *given, size_t *tensor_out,
                                  struct piece *piece_out, struct cairn_mem *mem_out)
{
    const struct cairn_box *part;
    cairn_status status = cairn_api_judge_data(job, tensor, given, mem_out, tensor_out, &part);
    if (status == CAIRN_OK) status = judge_gradient(job, *tensor_out, tensor, mem_out);
    if (status == CAIRN_OK && part != NULL)
        status = cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                                   "it is a box of %s: push it by itself, with cairn_push",
                                   job->spec.tensors[*tensor_out].name);
    if (status != CAIRN_OK) return status;
    return cairn_api_judge_own(job, *tensor_out, box, mem_out, piece_out);
}

static cairn_status push_inside(struct job *job, const struct cairn_round *round, uint32_t micro,
                                const char *tensor, const struct cairn_box *box,
                                const struct cairn_mem *given, cairn_op **op_out)
{
    size_t index;
    struct cairn_mem mem;
    const struct cairn_box *part;
    cairn_status status = cairn_api_judge_data(job, tensor, given, &mem, &index, &part);
    if (status == CAIRN_OK) status = cairn_api_batch_place(job, round, &micro);
    if (status != CAIRN_OK) return status;
    status = judge_gradient(job, index, tensor, &mem);
    if (status != CAIRN_OK) return status;
    if (part != NULL) {
        struct portion portion = { .name = tensor,
                                   .kind = CAIRN_CHUNK_PUSH,
                                   .tensor = (uint32_t)index,
                                   .micro = micro,
                                   .round = round != NULL ? round->round : 0,
                                   .mem = mem };
        return push_part(job, round, &portion, part, box, op_out);
    }
    struct piece piece;
    status = cairn_api_judge_own(job, index, box, &mem, &piece);
    if (status == CAIRN_OK) status = judge_frozen(job, index);
    if (status != CAIRN_OK) return status;
    struct push push = { round, micro, index, piece, mem };
    return cairn_accumulate_wanted(job) ? push_sum(job, &push, op_out)
                                        : push_piece(job, &push, op_out);
}
cairn_status cairn_push(cairn_job *handle, const struct cairn_round *round, uint32_t micro,
                        const char *tensor, const struct cairn_box *box,
                        const struct cairn_mem *mem, cairn_op **op_out)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = push_inside(job, round, micro, tensor, box, mem, op_out);
    return cairn_api_leave(handle, status);
}
