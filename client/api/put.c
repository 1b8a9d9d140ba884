/* The initial state: what is put, and its end. */
#include <stdlib.h>
#include <string.h>

#include "client/api/judge.h"
#include "client/ask.h"
#include "client/op.h"
#include "client/push/assemble.h"
#include "client/push/transfer.h"

/* With tiles each rank puts what it holds, without them rank 0 everything; what other ranks then put is
 * compared with it. */
static bool is_source(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    const bool has_tiles = cairn_client_tiles_hold(job);
    pthread_mutex_unlock(&job->session->lock);
    return job->member.rank == 0 || has_tiles;
}

/* A job that has its state takes no more of it; what other ranks have is still compared before the first
 * update. */
static cairn_status judge_state(struct job *job)
{
    const bool source = is_source(job);
    pthread_mutex_lock(&job->session->lock);
    const bool initialized = job->known.initialized && (source || job->known.newest.step > 0);
    pthread_mutex_unlock(&job->session->lock);
    return initialized
               ? cairn_client_fail(CAIRN_ERR_EXISTS,
                                   "job %s has its state already; nothing is to be put", job->name)
               : CAIRN_OK;
}

/* Judges the box of a put. A worker may put the box that it holds; rank 0 may also put the whole
 * tensor, if the caller names the whole box. */
static cairn_status judge_put_box(struct job *job, size_t tensor, const struct cairn_box *box,
                                  const struct cairn_mem *mem, struct piece *piece_out)
{
    const struct cairn_shape *shape = &job->spec.tensors[tensor].shape;
    if (job->member.rank == 0 && box != NULL && cairn_box_is_whole(box, shape))
        return cairn_api_judge_box(job, tensor, box, mem, piece_out);
    return cairn_api_judge_own(job, tensor, box, mem, piece_out);
}

/* The source's travels, what others have is only hashed: of moments there is one source, and nothing to
 * compare. *sent_out: the memory is on loan. */
static cairn_status put_claimed(struct job *job, const struct command *pattern,
                                const struct cairn_mem *mem, cairn_op **op_out, bool *sent_out)
{
    const bool source = is_source(job);
    const struct piece own = cairn_client_tiles_own(job, pattern->tensor);
    const bool compared = pattern->plane == CAIRN_PLANE_PARAM &&
                          cairn_box_equal(&own.box, &pattern->piece.box);
    cairn_status status = compared ? cairn_puts_hash(job, pattern->tensor, &pattern->piece, mem)
                                   : CAIRN_OK;
    if (status == CAIRN_OK)
        status = source ? cairn_op_begin(job, CAIRN_CHUNK_PUT, cairn_transfer_run, pattern, op_out)
                        : cairn_op_finished(job, CAIRN_CHUNK_PUT, op_out);
    *sent_out = status == CAIRN_OK && source;
    if (status == CAIRN_OK) return CAIRN_OK;
    pthread_mutex_lock(&job->session->lock);
    cairn_puts_failed(job, pattern->tensor, pattern->plane);
    pthread_mutex_unlock(&job->session->lock);
    return status;
}

/* Under the lock; the first part of a tensor takes that, too, from being put whole. */
static cairn_status claim_part(struct job *job, const struct portion *portion,
                               struct assembly **out)
{
    const bool begun = cairn_assemble_begun(job, portion);
    cairn_status status = begun ? CAIRN_OK
                                : cairn_puts_claim(job, portion->tensor, CAIRN_PLANE_PARAM);
    if (status != CAIRN_OK) return status;
    status = cairn_assemble_claim(job, portion, out);
    if (status != CAIRN_OK && !begun) cairn_puts_unclaim(job, portion->tensor, CAIRN_PLANE_PARAM);
    return status;
}

/* All of the tensor is here: it goes like one that was put whole. */
static cairn_status put_assembled(struct job *job, struct assembly *assembly)
{
    struct command pattern = { .plane = CAIRN_PLANE_PARAM };
    bool sent;
    const struct cairn_mem mem = cairn_assemble_mem(assembly);
    cairn_assemble_pattern(assembly, &pattern);
    const cairn_status status = put_claimed(job, &pattern, &mem, NULL, &sent);
    if (!sent) cairn_assemble_free(assembly); // failed, all its parts are to be put again
    return status;
}

static cairn_status put_brought(struct job *job, struct portion *portion)
{
    struct assembly *assembly;
    bool whole = false;
    cairn_status status;
    pthread_mutex_lock(&job->session->lock);
    status = claim_part(job, portion, &assembly);
    pthread_mutex_unlock(&job->session->lock);
    if (status != CAIRN_OK) return status;
    status = cairn_assemble_copy(assembly, portion, &whole);
    if (status != CAIRN_OK) {
        pthread_mutex_lock(&job->session->lock);
        if (!cairn_assemble_begun(job, portion))
            cairn_puts_unclaim(job, portion->tensor, CAIRN_PLANE_PARAM);
        pthread_mutex_unlock(&job->session->lock);
    }
    return status == CAIRN_OK && whole ? put_assembled(job, assembly) : status;
}

static cairn_status put_part(struct job *job, struct portion *portion, const struct cairn_box *part,
                             const struct cairn_box *box, cairn_op **op_out)
{
    void *copy;
    struct op *op = NULL;
    cairn_status status = cairn_api_judge_portion(job, part, box, portion);
    if (status == CAIRN_OK) status = cairn_op_reserve(job, CAIRN_CHUNK_PUT, op_out, &op);
    if (status != CAIRN_OK) return status;
    status = cairn_api_bring(&portion->mem, &portion->piece, &copy);
    if (status == CAIRN_OK) {
        status = put_brought(job, portion);
        free(copy);
    }
    return cairn_op_settle(op, status, op_out);
}

/* Moments are the one source's. */
static cairn_status judge_source(const struct job *job, size_t tensor, int plane)
{
    if (plane == CAIRN_PLANE_PARAM || job->member.rank == 0) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_REFUSED, "tensor %s: rank 0 puts moments, this is rank %u",
                             job->spec.tensors[tensor].name, job->member.rank);
}

/* And whole. */
static cairn_status judge_part(const struct job *job, const struct command *pattern, bool is_part)
{
    if (!is_part || pattern->plane == CAIRN_PLANE_PARAM) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                             "tensor %s: moments are put whole; cairn_write_begin writes parts of "
                             "them, when there is a state",
                             job->spec.tensors[pattern->tensor].name);
}

static cairn_status put_whole(struct job *job, struct command *pattern, const struct cairn_box *box,
                              struct cairn_mem *mem, cairn_op **op_out)
{
    bool sent = false;
    cairn_status status = judge_put_box(job, pattern->tensor, box, mem, &pattern->piece);
    if (status == CAIRN_OK) status = judge_part(job, pattern, !pattern->piece.whole);
    if (status == CAIRN_OK) status = cairn_api_bring(mem, &pattern->piece, &pattern->owned);
    if (status != CAIRN_OK) return status;
    pattern->ptr = mem->ptr;
    pthread_mutex_lock(&job->session->lock);
    status = cairn_puts_claim(job, pattern->tensor, pattern->plane);
    pthread_mutex_unlock(&job->session->lock);
    if (status == CAIRN_OK) status = put_claimed(job, pattern, mem, op_out, &sent);
    if (!sent) free(pattern->owned);
    return status;
}

/* The first update of SGD begins its momentum: what was put would be thrown away. */
static cairn_status judge_momentum(const struct job *job, size_t tensor, int plane)
{
    const struct cairn_job_spec_data *spec = &job->spec;
    const size_t group = cairn_spec_find_group(spec, spec->tensors[tensor].group);
    if (plane != CAIRN_PLANE_EXP_AVG || spec->first_step > 0 || group == SIZE_MAX ||
        strcmp(spec->groups[group].optimizer, "sgd") != 0)
        return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_INVALID,
                             "tensor %s: momentum is put, and the job begins at step 0, whose "
                             "update begins SGD's momentum anew; say first_step, the steps that "
                             "its run has made",
                             spec->tensors[tensor].name);
}

static cairn_status put_inside(struct job *job, const char *tensor, const char *plane,
                               const struct cairn_box *box, const struct cairn_mem *given,
                               cairn_op **op_out)
{
    size_t index;
    struct cairn_mem mem;
    const struct cairn_box *part;
    if (job->member.role != CAIRN_WORKER)
        return cairn_client_fail(CAIRN_ERR_REFUSED, "a reader cannot put");
    const uint64_t write = cairn_api_write_round(job);
    if (write != 0) return cairn_api_write_put(job, write, tensor, plane, box, given, op_out);
    cairn_status status = cairn_api_judge_data(job, tensor, given, &mem, &index, &part);
    if (status != CAIRN_OK) return status;
    int number;
    status = cairn_api_judge_state(job, index, plane, &number);
    if (status == CAIRN_OK) status = judge_momentum(job, index, number);
    if (status == CAIRN_OK) status = judge_source(job, index, number);
    if (status == CAIRN_OK) status = cairn_api_judge_dtype(job, index, number, &mem);
    if (status != CAIRN_OK) return status;
    if (cairn_spec_has_origin(&job->spec, index))
        return cairn_client_fail(
            CAIRN_ERR_EXISTS, "tensor %s has its initial state from %s; nothing is to be put",
            tensor, job->spec.init_from != NULL ? job->spec.init_from : "its initializer");
    struct command pattern = { .tensor = (uint32_t)index,
                               .plane = (uint8_t)number,
                               .dtype = (uint8_t)mem.dtype,
                               .ptr = mem.ptr };
    status = judge_part(job, &pattern, part != NULL);
    if (status == CAIRN_OK) status = judge_state(job);
    if (status != CAIRN_OK) return status;
    if (part != NULL) {
        struct portion portion = {
            .name = tensor, .kind = CAIRN_CHUNK_PUT, .tensor = (uint32_t)index, .mem = mem
        };
        return put_part(job, &portion, part, box, op_out);
    }
    return put_whole(job, &pattern, box, &mem, op_out);
}

cairn_status cairn_put(cairn_job *handle, const char *tensor, const char *plane,
                       const struct cairn_box *box, const struct cairn_mem *mem, cairn_op **op_out)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = put_inside(job, tensor, plane, box, mem, op_out);
    return cairn_api_leave(handle, status);
}

static cairn_status init_done_inside(struct job *job, const uint8_t *given, uint64_t deadline_ms)
{
    cairn_status status = cairn_assemble_judge_put(job);
    if (status == CAIRN_OK)
        status = cairn_api_await_none(job, &job->puts.open, "puts", deadline_ms);
    if (status != CAIRN_OK) return status;
    pthread_mutex_lock(&job->session->lock);
    const bool initialized = job->known.initialized, has_tiles = cairn_client_tiles_hold(job);
    const bool has_moments = job->puts.has_moments;
    // Until that tensor is put again: without it the job would be sealed with other values.
    if (!cairn_puts_any_failed(job)) job->puts.status = CAIRN_OK;
    const cairn_status put = job->puts.status;
    const struct cairn_sentence why = job->puts.why;
    pthread_mutex_unlock(&job->session->lock);
    if (put != CAIRN_OK)
        return cairn_client_fail(put, "a put failed: %s; put that tensor again", why.text);
    uint8_t digest[CAIRN_PUTS_DIGEST_BYTES];
    const size_t hashed = cairn_puts_digest(job, digest);
    if (initialized && (hashed == 0 || has_tiles) && given == NULL) return CAIRN_OK;
    Cairn__InitDone message = CAIRN__INIT_DONE__INIT;
    message.source = job->member.rank == 0 || has_tiles;
    message.moments = has_moments;
    message.digest.data = digest;
    message.digest.len = hashed > 0 && !has_tiles ? sizeof digest : 0;
    message.given.data = (uint8_t *)(uintptr_t)given;
    message.given.len = given != NULL ? sizeof digest : 0;
    uint8_t *held = has_tiles ? cairn_puts_held(job) : NULL;
    message.held.data = held;
    message.held.len = held != NULL ? job->spec.tensor_count * CAIRN_PUTS_HELD_BYTES : 0;
    status = cairn_ask(job, CAIRN_MSG_INIT_DONE, &message.base, CAIRN_MSG_DONE, deadline_ms, NULL);
    free(held);
    if (status != CAIRN_OK) status = cairn_puts_explain(job, status, hashed);
    cairn_puts_end(job, status);
    return status;
}

cairn_status cairn_init_done(cairn_job *handle, const uint8_t *digest, int timeout_ms)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK && job->member.role != CAIRN_WORKER)
        status = cairn_client_fail(CAIRN_ERR_REFUSED,
                                   "a reader does not take part in the initial state");
    if (status == CAIRN_OK) status = cairn_api_judge_call(NULL, NULL, timeout_ms);
    if (status == CAIRN_OK) status = init_done_inside(job, digest, cairn_api_deadline(timeout_ms));
    return cairn_api_leave(handle, status);
}
