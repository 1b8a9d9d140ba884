#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "client/device.h"
#include "client/job.h"
#include "client/op.h"
#include "client/push.h"
#include "proto/spec/optimizer.h"
#include "proto/spec/spec.h"

/* ==== push ==== */

/* Pushes: which round and micro-batch they are of, and where they go. */

static cairn_status api_refuse_dtype(const char *tensor, const struct cairn_mem *mem,
                                     const char *allowed);

cairn_status api_judge_begun(const struct job *job, const struct cairn_round *round)
{
    if (round->round == 0)
        return client_fail(CAIRN_ERR_INVALID,
                           "no round is begun; call cairn_round_begin, and give what it filled in");
    if (round->job == job->member.number) return CAIRN_OK;
    return client_fail(CAIRN_ERR_STALE,
                       "round %" PRIu64 " was not begun on this handle of job %s; give what "
                       "cairn_round_begin filled in for it",
                       round->round, job->name);
}

cairn_status api_judge_round(const struct job *job, const struct cairn_round *round)
{
    const uint64_t number = round->round, step = round->step;
    CAIRN_TRY(api_judge_begun(job, round));
    if (number == job->filling.refused_round)
        return client_fail(job->filling.refused_status, "%s", job->filling.refused_why.text);
    if (number == job->filling.void_round && job->filling.void_why.text[0] != '\0')
        return client_fail(CAIRN_ERR_EPOCH_CHANGED,
                           "%s (step %" PRIu64 " was abandoned: begin the next round)",
                           job->filling.void_why.text, step);
    if (number <= job->filling.void_round)
        return client_fail(CAIRN_ERR_EPOCH_CHANGED,
                           "round %" PRIu64 " of step %" PRIu64
                           " was abandoned; begin the next one and compute again",
                           number, step);
    if (number != job->filling.round)
        return client_fail(CAIRN_ERR_STALE,
                           "round %" PRIu64 " is not the one that this worker has open; call "
                           "cairn_round_begin and give what it filled in",
                           number);
    if (job->filling.committed)
        return client_fail(
            CAIRN_ERR_STALE,
            "round %" PRIu64 " is committed; call cairn_round_begin for the next one", number);
    return CAIRN_OK;
}

/* Is `micro` the micro-batch that is being filled? Under the lock. */
static cairn_status judge_micro(const struct job *job, uint32_t micro)
{
    if (job->filling.end_unsent)
        return client_fail(CAIRN_ERR_INVALID,
                           "the end of micro-batch %u could not be told for lack of memory; "
                           "call again what failed, cairn_micro_end or cairn_commit",
                           batch_number(&job->filling.batch, job->filling.micro - 1));
    if (micro != job->filling.micro)
        return client_fail(
            CAIRN_ERR_INVALID,
            "this is micro-batch %u, micro-batch %u is being filled; end it with cairn_micro_end",
            batch_number(&job->filling.batch, micro),
            batch_number(&job->filling.batch, job->filling.micro));
    const bool is_bound = job->spec.stage < 2 ||
                          (job->spec.micro_batches > 1 && job->filling.batch.total == 0);
    if (is_bound && micro >= job->spec.micro_batches)
        return client_fail(CAIRN_ERR_INVALID,
                           "micro-batch %u: job %s is of stage %u and declares micro_batches "
                           "= %u, counted from 0; declare more in its spec, or none and take "
                           "stage 2",
                           micro, job->name, job->spec.stage, job->spec.micro_batches);
    return CAIRN_OK;
}

static cairn_status refuse_after_sums(const char *tensor)
{
    return client_fail(CAIRN_ERR_STALE,
                       "tensor %s: another thread commits the round, whose micro-batches are "
                       "added up; push before the commit, or in the next round",
                       tensor);
}

/* Is the tensor not yet in the micro-batch that is being filled? Notes it, or, CAIRN_API_NO_TENSOR, the end
 * of the micro-batch. Under the lock. */
static cairn_status note_filled(struct job *job, uint32_t micro, size_t tensor)
{
    CAIRN_TRY(judge_micro(job, micro));
    if (tensor == CAIRN_API_NO_TENSOR) {
        job->filling.micro++, job->filling.any = false;
        memset(job->filling.tensors, 0, job->spec.tensor_count);
        return CAIRN_OK;
    }
    if (job->sums.ended) return refuse_after_sums(job->spec.tensors[tensor].name);
    if (job->filling.tensors[tensor] != NOT_PUSHED)
        return client_fail(CAIRN_ERR_EXISTS,
                           "tensor %s was pushed in micro-batch %u already; add gradients "
                           "before pushing, or end the micro-batch",
                           job->spec.tensors[tensor].name,
                           batch_number(&job->filling.batch, micro));
    job->filling.tensors[tensor] = PUSHED;
    job->filling.any = true;
    job->filling.adding += accumulate_wanted(job);
    return CAIRN_OK;
}

void api_await_added(struct job *job)
{
    while (job->filling.adding > 0) pthread_cond_wait(&job->session->changed, &job->session->lock);
}

cairn_status api_judge_fill(struct job *job, const struct cairn_round *round, uint32_t micro,
                            size_t tensor)
{
    if (!struct_fits(round, CAIRN_API_ROUND_LEAST))
        return client_fail(CAIRN_ERR_INVALID, "round must be given, with its struct_size");
    pthread_mutex_lock(&job->session->lock);
    if (tensor == CAIRN_API_NO_TENSOR) api_await_added(job);
    cairn_status status = api_judge_round(job, round);
    if (status == CAIRN_OK) status = note_filled(job, micro, tensor);
    pthread_mutex_unlock(&job->session->lock);
    return status;
}

/* Refuses the gradient of a tensor that is frozen in this round. An amendment freezes a tensor or
 * its whole group; RoundOpened says which. Under the lock. */
static cairn_status judge_thawed(const struct job *job, size_t tensor)
{
    const struct tensor_spec *t = &job->spec.tensors[tensor];
    const bool group_frozen = job->filling.frozen_groups[spec_find_group(&job->spec, t->group)];
    if (job->filling.frozen_tensors[tensor])
        return client_fail(CAIRN_ERR_REFUSED,
                           "tensor %s is frozen in this round and takes no gradient; skip "
                           "it, or have it unfrozen by cairn_job_amend",
                           t->name);
    if (!group_frozen) return CAIRN_OK;
    return client_fail(CAIRN_ERR_REFUSED,
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
        if (status == CAIRN_OK) status = note_filled(job, micro, tensors[done]);
    }
    if (status == CAIRN_OK) return CAIRN_OK;
    *wrong_out = --done;
    job->filling.any = any;
    while (done-- > 0) {
        job->filling.tensors[tensors[done]] = NOT_PUSHED;
        job->filling.adding -= accumulate_wanted(job);
    }
    return status;
}

cairn_status api_fill_many(struct job *job, const struct cairn_round *round, uint32_t micro,
                           const size_t *tensors, size_t count, size_t *wrong_out)
{
    *wrong_out = count;
    if (!struct_fits(round, CAIRN_API_ROUND_LEAST))
        return client_fail(CAIRN_ERR_INVALID, "round must be given, with its struct_size");
    pthread_mutex_lock(&job->session->lock);
    cairn_status status = api_judge_round(job, round);
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
    if (!struct_fits(round, CAIRN_API_ROUND_LEAST))
        return client_fail(CAIRN_ERR_INVALID, "round must be given, with its struct_size");
    pthread_mutex_lock(&job->session->lock);
    cairn_status status = api_judge_round(job, round);
    if (status == CAIRN_OK) status = judge_micro(job, portion->micro);
    if (status == CAIRN_OK && job->filling.tensors[portion->tensor] == PUSHED)
        status = client_fail(
            CAIRN_ERR_EXISTS,
            "tensor %s is a box of %s, all of which was pushed in micro-batch %u already",
            portion->name, job->spec.tensors[portion->tensor].name,
            batch_number(&job->filling.batch, portion->micro));
    if (status == CAIRN_OK && job->sums.ended) status = refuse_after_sums(portion->name);
    if (status == CAIRN_OK) status = assemble_claim(job, portion, out);
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
    assemble_pattern(assembly, &pattern);
    if (!accumulate_wanted(job)) return op_begin(job, CAIRN_CHUNK_PUSH, pushes_run, &pattern, NULL);
    const struct cairn_mem mem = assemble_mem(assembly);
    pthread_mutex_lock(&job->session->lock);
    job->filling.adding++;
    pthread_mutex_unlock(&job->session->lock);
    const cairn_status status = accumulate_add(job, round, micro, pattern.tensor, &pattern.piece,
                                               &mem);
    if (status == CAIRN_OK) assemble_free(assembly);
    return status;
}

/* Copied, or not: how the tensor stands. */
static void end_part(struct job *job, const struct portion *portion, bool whole)
{
    pthread_mutex_lock(&job->session->lock);
    if (portion->round == job->filling.round && portion->micro == job->filling.micro)
        job->filling.tensors[portion->tensor] = whole                          ? PUSHED
                                                : assemble_begun(job, portion) ? PUSHED_IN_PART
                                                                               : NOT_PUSHED;
    if (--job->filling.adding == 0) pthread_cond_broadcast(&job->session->changed);
    pthread_mutex_unlock(&job->session->lock);
}

static cairn_status push_brought(struct job *job, const struct cairn_round *round,
                                 struct portion *portion)
{
    struct assembly *assembly;
    bool whole = false;
    CAIRN_TRY(fill_part(job, round, portion, &assembly));
    cairn_status status = assemble_copy(assembly, portion, &whole);
    if (status == CAIRN_OK && whole) {
        status = send_assembly(job, round, portion->micro, assembly);
        if (status != CAIRN_OK) assemble_undo(assembly, portion); // it may be tried again
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
    cairn_status status = api_judge_portion(job, part, box, portion);
    if (status == CAIRN_OK) status = judge_frozen(job, portion->tensor);
    if (status == CAIRN_OK) status = op_reserve(job, CAIRN_CHUNK_PUSH, op_out, &op);
    if (status != CAIRN_OK) return status;
    status = api_bring(&portion->mem, &portion->piece, &copy);
    if (status == CAIRN_OK) {
        status = push_brought(job, round, portion);
        free(copy);
    }
    return op_settle(op, status, op_out);
}

cairn_status api_push_incomplete(struct job *job, const struct cairn_round *round, uint32_t micro)
{
    struct assembly *assembly;
    cairn_status status = CAIRN_OK;
    while (status == CAIRN_OK && (assembly = assemble_ended(job, round->round, micro)) != NULL) {
        status = send_assembly(job, round, micro, assembly);
        if (status != CAIRN_OK) assemble_put_back(assembly); // the call is made again
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
    CAIRN_TRY(op_reserve(job, CAIRN_CHUNK_PUSH, op_out, &op));
    cairn_status status = api_bring(&push->mem, &push->piece, &copy);
    if (status == CAIRN_OK) {
        status = api_judge_fill(job, push->round, push->micro, push->tensor);
        if (status == CAIRN_OK)
            status = accumulate_add(job, push->round, push->micro, push->tensor, &push->piece,
                                    &push->mem);
        free(copy);
    }
    return op_settle(op, status, op_out);
}

static cairn_status send_piece(struct job *job, const struct push *push, struct command *pattern,
                               cairn_op **op_out)
{
    CAIRN_TRY(api_judge_fill(job, push->round, push->micro, push->tensor));
    pattern->round = push->round->round;
    cairn_status status = op_begin(job, CAIRN_CHUNK_PUSH, pushes_run, pattern, op_out);
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
    if (push->piece.strides.given) status = api_bring(&push->mem, &push->piece, &pattern.owned);
    if (status == CAIRN_OK) status = api_card(&push->mem, &pattern.card);
    if (status == CAIRN_OK && pattern.card != NULL)
        status = card_mark(pattern.card, push->mem.stream, &pattern.event);
    pattern.ptr = push->mem.ptr;
    if (status == CAIRN_OK) status = send_piece(job, push, &pattern, op_out);
    if (status == CAIRN_OK) return CAIRN_OK;
    card_event_free(pattern.event);
    free(pattern.owned);
    return status;
}

/* Judges the tensor and the dtype of a gradient: only a trained tensor takes one. */
static cairn_status judge_gradient(const struct job *job, size_t index, const char *tensor,
                                   const struct cairn_mem *mem)
{
    if (job->spec.tensors[index].kind != CAIRN_TRAINED)
        return client_fail(
            CAIRN_ERR_INVALID, "tensor %s is not trained; it takes no gradient%s", tensor,
            job->spec.tensors[index].kind == CAIRN_BLOB
                ? ": a blob is changed by cairn_write_begin, cairn_put and cairn_write_end"
                : "");
    if (mem->dtype != CAIRN_F32 && mem->dtype != CAIRN_BF16)
        return api_refuse_dtype(tensor, mem, "CAIRN_F32 or CAIRN_BF16");
    return CAIRN_OK;
}

cairn_status api_judge_push(struct job *job, const char *tensor, const struct cairn_box *box,
                            const struct cairn_mem *given, size_t *tensor_out,
                            struct piece *piece_out, struct cairn_mem *mem_out)
{
    const struct cairn_box *part;
    cairn_status status = api_judge_data(job, tensor, given, mem_out, tensor_out, &part);
    if (status == CAIRN_OK) status = judge_gradient(job, *tensor_out, tensor, mem_out);
    if (status == CAIRN_OK && part != NULL)
        status = client_fail(CAIRN_ERR_UNSUPPORTED,
                             "it is a box of %s: push it by itself, with cairn_push",
                             job->spec.tensors[*tensor_out].name);
    if (status != CAIRN_OK) return status;
    return api_judge_own(job, *tensor_out, box, mem_out, piece_out);
}

static cairn_status push_inside(struct job *job, const struct cairn_round *round, uint32_t micro,
                                const char *tensor, const struct cairn_box *box,
                                const struct cairn_mem *given, cairn_op **op_out)
{
    size_t index;
    struct cairn_mem mem;
    const struct cairn_box *part;
    cairn_status status = api_judge_data(job, tensor, given, &mem, &index, &part);
    if (status == CAIRN_OK) status = api_batch_place(job, round, &micro);
    if (status != CAIRN_OK) return status;
    CAIRN_TRY(judge_gradient(job, index, tensor, &mem));
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
    status = api_judge_own(job, index, box, &mem, &piece);
    if (status == CAIRN_OK) status = judge_frozen(job, index);
    if (status != CAIRN_OK) return status;
    struct push push = { round, micro, index, piece, mem };
    return accumulate_wanted(job) ? push_sum(job, &push, op_out) : push_piece(job, &push, op_out);
}
cairn_status cairn_push(cairn_job *handle, const struct cairn_round *round, uint32_t micro,
                        const char *tensor, const struct cairn_box *box,
                        const struct cairn_mem *mem, cairn_op **op_out)
{
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK) status = push_inside(job, round, micro, tensor, box, mem, op_out);
    return api_leave(handle, status);
}

/* ==== judge ==== */

/* Copies the caller's cairn_mem and judges it. A caller that was compiled before `stride` and what
 * follows it sees them as 0: dense, on the host. */
static cairn_status copy_mem(const struct cairn_mem *given, struct cairn_mem *out)
{
    struct cairn_mem mem;
    if (!struct_copy_in(&mem, sizeof mem, offsetof(struct cairn_mem, stride), given))
        return client_fail(CAIRN_ERR_INVALID, "mem.struct_size is %zu, this library's is %zu",
                           given->struct_size, sizeof mem);
    struct card *card;
    CAIRN_TRY(api_card(&mem, &card));
    if (card == NULL && mem.stream != NULL)
        return client_fail(CAIRN_ERR_INVALID,
                           "mem.stream is %p, and mem.device %d, the host: only what a GPU "
                           "writes is ordered by a stream; give NULL",
                           mem.stream, mem.device);
    *out = mem;
    return CAIRN_OK;
}

cairn_status api_card(const struct cairn_mem *mem, struct card **card_out)
{
    return card_of_device(mem->device, "mem.device", card_out);
}

cairn_status api_judge_data(const struct job *job, const char *name, const struct cairn_mem *given,
                            struct cairn_mem *mem_out, size_t *tensor_out,
                            const struct cairn_box **part_out)
{
    if (name == NULL || given == NULL)
        return client_fail(CAIRN_ERR_INVALID, "tensor and mem must be given");
    CAIRN_TRY(copy_mem(given, mem_out));
    const size_t tensor = spec_find_tensor(&job->spec, name);
    if (tensor == SIZE_MAX)
        return client_fail(
            CAIRN_ERR_NOT_FOUND,
            "job %s has no tensor %s; cairn_job_tensor lists its %zu, as does `cairn job show %s`",
            job->name, name, job->spec.tensor_count, job->name);
    const struct cairn_box *part = job->spec.tensors[tensor].alias_box;
    *part_out = part;
    *tensor_out = spec_target(&job->spec, tensor);
    return CAIRN_OK;
}

static cairn_status judge_part(const char *name, const struct cairn_box *part,
                               const struct cairn_box *box, struct cairn_box *box_out)
{
    struct shape shape = { .rank = part->rank };
    struct sentence why;
    struct cairn_box whole = *part;
    memcpy(shape.dim, part->extent, sizeof shape.dim);
    cairn_status status = box != NULL ? box_check(box, &shape, &why) : CAIRN_OK;
    if (status != CAIRN_OK) return client_fail(status, "tensor %s: %s", name, why.text);
    for (uint32_t d = 0; box != NULL && d < box->rank; d++) {
        whole.start[d] += box->start[d];
        whole.extent[d] = box->extent[d];
    }
    *box_out = whole;
    return CAIRN_OK;
}

cairn_status api_judge_boxed(const struct job *job, const char *name, const struct cairn_mem *given,
                             struct cairn_mem *mem_out, size_t *tensor_out,
                             const struct cairn_box **box, struct cairn_box *room)
{
    const struct cairn_box *part;
    cairn_status status = api_judge_data(job, name, given, mem_out, tensor_out, &part);
    if (status != CAIRN_OK || part == NULL) return status;
    status = judge_part(name, part, *box, room);
    if (status == CAIRN_OK) *box = room;
    return status;
}

/* As many bytes as the caller says: no more are touched, and of dense memory no fewer, since it would be
 * memory of something else. */
static cairn_status judge_bytes(const char *name, const struct cairn_mem *mem,
                                const struct piece *piece, size_t elem_bytes)
{
    char box[CAIRN_BOX_TEXT_BYTES];
    const size_t needed = strides_span(&piece->strides, box_element_count(&piece->box), elem_bytes);
    if (mem->bytes == 0 || mem->bytes == needed) return CAIRN_OK;
    if (piece->strides.given && mem->bytes > needed) return CAIRN_OK;
    return client_fail(CAIRN_ERR_INVALID,
                       "tensor %s: mem.bytes is %zu, and %s in %s%s has %zu: give memory of "
                       "that box, or the box that the memory is of",
                       name, mem->bytes, box_text(&piece->box, box), dtype_label((int)mem->dtype),
                       piece->strides.given ? " with these mem.stride" : "", needed);
}

/* Where the piece lies. */
static cairn_status judge_place(const struct job *job, size_t tensor, const struct cairn_mem *mem,
                                struct piece *piece)
{
    const char *name = job->spec.tensors[tensor].name;
    struct sentence why;
    if (mem->ptr == NULL && box_element_count(&piece->box) != 0)
        return client_fail(CAIRN_ERR_INVALID, "tensor %s: mem.ptr is NULL", name);
    struct card *card;
    const size_t elem_bytes = dtype_size((int)mem->dtype);
    cairn_status status = strides_judge(mem->stride, &piece->box, elem_bytes, &piece->strides,
                                        &why);
    if (status != CAIRN_OK) return client_fail(status, "tensor %s: %s", name, why.text);
    status = judge_bytes(name, mem, piece, elem_bytes);
    if (status == CAIRN_OK) status = api_card(mem, &card);
    if (status != CAIRN_OK || card == NULL) return status;
    return card_judge(card, mem->ptr,
                      strides_span(&piece->strides, box_element_count(&piece->box), elem_bytes));
}

static cairn_status judge_within(const struct tensor_spec *tensor, const struct cairn_box *box)
{
    struct sentence why;
    const cairn_status status = box_check(box, &tensor->shape, &why);
    if (status == CAIRN_OK) return status;
    return client_fail(status, "tensor %s: %s", tensor->name, why.text);
}

static bool holds_nothing(const struct piece *own)
{
    return !own->whole && box_element_count(&own->box) == 0;
}

static cairn_status refuse_nothing(const char *name)
{
    return client_fail(CAIRN_ERR_INVALID,
                       "tensor %s: this worker holds nothing of it, as it said in cairn_tiles",
                       name);
}

cairn_status api_judge_own(struct job *job, size_t tensor, const struct cairn_box *box,
                           const struct cairn_mem *mem, struct piece *piece_out)
{
    const struct tensor_spec *spec = &job->spec.tensors[tensor];
    struct piece piece = client_tiles_own(job, tensor);
    char given[CAIRN_BOX_TEXT_BYTES], own[CAIRN_BOX_TEXT_BYTES];
    CAIRN_TRY(box != NULL ? judge_within(spec, box) : CAIRN_OK);
    if (holds_nothing(&piece)) return refuse_nothing(spec->name);
    if (box != NULL && !box_equal(box, &piece.box))
        return client_fail(CAIRN_ERR_INVALID,
                           "tensor %s: the box given is %s, what this worker holds is %s%s",
                           spec->name, box_text(box, given), box_text(&piece.box, own),
                           piece.whole ? "; declare what it holds by cairn_tiles" : "");
    cairn_status status = judge_place(job, tensor, mem, &piece);
    if (status == CAIRN_OK) *piece_out = piece;
    return status;
}

/* Without a box it is what this worker holds. Somebody who thinks of the whole tensor gives memory of that,
 * and would not see that less was read or written: so the memory's size has to tell. */
static cairn_status judge_held(const struct tensor_spec *tensor, const struct piece *own,
                               const struct cairn_mem *mem)
{
    char box[CAIRN_BOX_TEXT_BYTES], whole[CAIRN_BOX_TEXT_BYTES];
    const struct cairn_box all = box_of_shape(&tensor->shape);
    if (holds_nothing(own)) return refuse_nothing(tensor->name);
    if (own->whole || mem->bytes != 0) return CAIRN_OK;
    return client_fail(CAIRN_ERR_INVALID,
                       "tensor %s: without a box it is what this worker holds, %s of %s, and "
                       "mem.bytes does not say that the memory is of that; set it, or give "
                       "the box that is meant",
                       tensor->name, box_text(&own->box, box), box_text(&all, whole));
}

cairn_status api_judge_box(struct job *job, size_t tensor, const struct cairn_box *box,
                           const struct cairn_mem *mem, struct piece *piece_out)
{
    const struct tensor_spec *spec = &job->spec.tensors[tensor];
    struct piece piece = client_tiles_own(job, tensor);
    CAIRN_TRY(box != NULL ? judge_within(spec, box) : judge_held(spec, &piece, mem));
    if (box != NULL) piece.box = *box;
    piece.whole = box_is_whole(&piece.box, &spec->shape);
    piece.tile = piece.whole ? CAIRN_TILE_WHOLE : CAIRN_TILE_BOX;
    cairn_status status = judge_place(job, tensor, mem, &piece);
    if (status == CAIRN_OK) *piece_out = piece;
    return status;
}

/* Returns CAIRN_ERR_INVALID. */
static cairn_status api_refuse_dtype(const char *tensor, const struct cairn_mem *mem,
                                     const char *allowed)
{
    return client_fail(CAIRN_ERR_INVALID, "tensor %s: mem.dtype is %d (%s); %s is allowed here",
                       tensor, (int)mem->dtype, dtype_label((int)mem->dtype), allowed);
}

/* ---- a part of a tensor ---- */

cairn_status api_judge_portion(struct job *job, const struct cairn_box *part,
                               const struct cairn_box *box, struct portion *portion)
{
    const char *target = job->spec.tensors[portion->tensor].name;
    struct cairn_box given;
    CAIRN_TRY(judge_part(portion->name, part, box, &given));
    if (!box_equal(&given, part))
        return client_fail(CAIRN_ERR_INVALID,
                           "tensor %s is a box of %s, and goes whole: give NULL for its box",
                           portion->name, target);
    portion->whole = client_tiles_own(job, portion->tensor);
    if (!portion->whole.whole)
        return client_fail(CAIRN_ERR_UNSUPPORTED,
                           "tensor %s is a box of %s, of which this worker holds a tile: put "
                           "and push %s, as the tile has it",
                           portion->name, target, target);
    return api_judge_box(job, portion->tensor, part, &portion->mem, &portion->piece);
}

/* ---- planes ---- */

static cairn_status refuse_kind(const struct tensor_spec *t, const char *plane)
{
    return client_fail(CAIRN_ERR_NOT_FOUND,
                       "tensor %s is a %s: it is not optimized and has no plane %s", t->name,
                       t->kind == CAIRN_BUFFER ? "buffer"
                       : t->kind == CAIRN_BLOB ? "blob"
                                               : "frozen tensor",
                       plane);
}

cairn_status api_judge_plane(const struct job *job, size_t tensor, int plane)
{
    const struct tensor_spec *t = &job->spec.tensors[tensor];
    struct group_hyper hyper;
    if (plane == CAIRN_PLANE_PARAM || plane == CAIRN_PLANE_WIRE) return CAIRN_OK;
    if (t->kind != CAIRN_TRAINED) return refuse_kind(t, plane_name(plane));
    const size_t group = spec_find_group(&job->spec, t->group);
    // A spec that was judged has it; the shards judge again.
    if (group == SIZE_MAX ||
        group_hyper_of_spec(&job->spec.groups[group], &hyper, NULL) != CAIRN_OK ||
        (optimizer_planes(&hyper) & 1u << plane) != 0)
        return CAIRN_OK;
    return client_fail(CAIRN_ERR_NOT_FOUND,
                       "tensor %s has no plane %s: optimizer %s of its group %s, with these "
                       "hyper-parameters, keeps none",
                       t->name, plane_name(plane), job->spec.groups[group].optimizer, t->group);
}

cairn_status api_judge_state(const struct job *job, size_t tensor, const char *plane,
                             int *number_out)
{
    *number_out = plane != NULL ? plane_number(plane) : 0;
    if (*number_out != CAIRN_PLANE_PARAM && *number_out != CAIRN_PLANE_EXP_AVG &&
        *number_out != CAIRN_PLANE_EXP_AVG_SQ)
        return client_fail(CAIRN_ERR_UNSUPPORTED,
                           "tensor %s: \"param\", \"exp_avg\" and \"exp_avg_sq\" are put",
                           job->spec.tensors[tensor].name);
    return api_judge_plane(job, tensor, *number_out);
}

static cairn_dtype job_plane_dtype(const struct job *job, size_t tensor, int plane)
{
    const struct tensor_spec *t = &job->spec.tensors[tensor];
    return plane == CAIRN_PLANE_WIRE ? t->wire : plane == CAIRN_PLANE_PARAM ? t->master : CAIRN_F32;
}

static const char *dtype_text(cairn_dtype dtype)
{
    return dtype == CAIRN_F32    ? "CAIRN_F32"
           : dtype == CAIRN_BF16 ? "CAIRN_BF16"
           : dtype == CAIRN_U8   ? "CAIRN_U8"
                                 : dtype_label((int)dtype);
}

cairn_status api_judge_dtype(const struct job *job, size_t tensor, int plane,
                             const struct cairn_mem *mem)
{
    const cairn_dtype dtype = job_plane_dtype(job, tensor, plane);
    if (mem->dtype == dtype) return CAIRN_OK;
    return api_refuse_dtype(job->spec.tensors[tensor].name, mem, dtype_text(dtype));
}

/* ==== tiles ==== */

/* cairn_tiles: the caller's list of boxes becomes a declaration, which is told to the coordinator. */

static cairn_status judge_pair(enum combination_of of, const struct tensor_spec *tensor)
{
    const struct spec_refusal *refused = combination_refused(of, tensor);
    if (refused == NULL) return CAIRN_OK;
    return client_fail(refused->status, "the tile of tensor %s: %s", tensor->name, refused->why);
}

/* Adds one of the caller's boxes; the whole tensor is what holds without. */
static cairn_status add_tile(const struct job *job, const void *from, struct cairn_tiles *tiles)
{
    struct cairn_tile tile;
    struct sentence why;
    if (!struct_copy_in(&tile, sizeof tile, sizeof tile, from) || tile.tensor == NULL)
        return client_fail(CAIRN_ERR_INVALID, "a tile must have its struct_size (%zu) and a tensor",
                           sizeof tile);
    size_t index = spec_find_tensor(&job->spec, tile.tensor);
    if (index == SIZE_MAX)
        return client_fail(CAIRN_ERR_NOT_FOUND, "job %s has no tensor %s", job->name, tile.tensor);
    CAIRN_TRY(judge_pair(CAIRN_COMBINATION_OF_TILED, &job->spec.tensors[index]));
    index = spec_target(&job->spec, index);
    const struct shape *shape = &job->spec.tensors[index].shape;
    cairn_status status = box_check(&tile.box, shape, &why);
    if (status != CAIRN_OK) return client_fail(status, "tensor %s: %s", tile.tensor, why.text);
    if (tiles_find(tiles, (uint32_t)index) != NULL)
        return client_fail(CAIRN_ERR_EXISTS, "tensor %s has a tile already; one box a tensor",
                           tile.tensor);
    if (box_is_whole(&tile.box, shape)) return CAIRN_OK;
    CAIRN_TRY(judge_pair(CAIRN_COMBINATION_OF_CUT, &job->spec.tensors[index]));
    status = tiles_set(tiles, (uint32_t)index, &tile.box);
    return status == CAIRN_OK ? status : client_fail(status, "out of memory for the tiles");
}

static cairn_status make_declared(const struct job *job, const struct cairn_tile *tiles,
                                  size_t tile_count, uint32_t world, struct declared **out)
{
    struct declared *declared = calloc(1, sizeof *declared);
    if (declared == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    declared->world = world;
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; status == CAIRN_OK && i < tile_count; i++)
        status = add_tile(job, struct_at(tiles, i), &declared->tiles);
    if (status == CAIRN_OK) {
        declared->hash = tiles_digest(&declared->tiles);
        declared->packed = packed_tiles(&declared->tiles);
        if (declared->packed == NULL)
            status = client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the tiles");
    }
    if (status != CAIRN_OK) {
        client_tiles_free(declared);
        return status;
    }
    *out = declared;
    return CAIRN_OK;
}

static cairn_status judge_tiles(const struct job *job, const struct cairn_tile *tiles,
                                size_t tile_count, uint32_t world, int timeout_ms)
{
    if (job->member.role != CAIRN_WORKER)
        return client_fail(CAIRN_ERR_REFUSED, "a reader holds no tiles");
    if ((tiles == NULL && tile_count > 0) || timeout_ms < 0)
        return client_fail(CAIRN_ERR_INVALID, "tiles must be given, timeout_ms be 0 or more");
    if (world > 0 && job->spec.global_batch > 0)
        return client_fail(
            CAIRN_ERR_REFUSED,
            "job %s has global_batch = %u: its micro-batches are dealt to workers that hold whole "
            "tensors, and with tiles a round is of certain ranks; declare none, or make the job "
            "without global_batch",
            job->name, job->spec.global_batch);
    if (world == 0 && tile_count > 0)
        return client_fail(CAIRN_ERR_INVALID,
                           "world is 0, which says that there are no tiles, and %zu are given",
                           tile_count);
    if (world > 0 && world <= job->member.rank)
        return client_fail(CAIRN_ERR_INVALID,
                           "world is %u; it counts the ranks 0 to world - 1, and this is rank %u",
                           world, job->member.rank);
    return CAIRN_OK;
}

/* One declaration at a time waits; it is the call's until withdraw. Takes it in any case. */
static cairn_status offer(struct job *job, struct declared *declared)
{
    pthread_mutex_lock(&job->session->lock);
    const bool busy = job->tiles.declaring != NULL;
    if (!busy) {
        job->tiles.declaring = declared;
        job->tiles.declaring_holds = false;
    }
    pthread_mutex_unlock(&job->session->lock);
    if (!busy) return CAIRN_OK;
    client_tiles_free(declared);
    return client_fail(CAIRN_ERR_BUSY, "another thread declares tiles of job %s", job->name);
}

/* True: it holds. */
static bool withdraw(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    const bool holds = job->tiles.declaring_holds;
    struct declared *unset = holds ? NULL : job->tiles.declaring;
    job->tiles.declaring = NULL;
    pthread_mutex_unlock(&job->session->lock);
    client_tiles_free(unset);
    return holds;
}

static cairn_status declare(struct job *job, struct declared *declared, uint64_t deadline_ms)
{
    Cairn__TilesDeclare message = client_tiles_message(declared);
    CAIRN_TRY(offer(job, declared));
    cairn_status status = ask_coordinator(job, CAIRN_MSG_TILES_DECLARE, &message.base,
                                          CAIRN_MSG_TILES_SET, deadline_ms, NULL);
    return withdraw(job) ? CAIRN_OK : status; // it may hold just when the time was up
}

cairn_status cairn_tiles(cairn_job *handle, const struct cairn_tile *tiles, size_t tile_count,
                         uint32_t world, int timeout_ms)
{
    const uint64_t deadline_ms = api_deadline(timeout_ms);
    struct job *job = api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    struct declared *declared = NULL;
    cairn_status status = api_check(job);
    if (status == CAIRN_OK) status = judge_tiles(job, tiles, tile_count, world, timeout_ms);
    if (status == CAIRN_OK) status = make_declared(job, tiles, tile_count, world, &declared);
    if (status == CAIRN_OK) status = declare(job, declared, deadline_ms);
    return api_leave(handle, status);
}
