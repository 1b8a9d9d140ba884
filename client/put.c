/* The initial state: its puts, and its end. */
#include "client/job.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "client/op.h"
#include "client/push.h"

/* ==== puts ==== */

/* Records what a worker has put of the initial state.
 *
 * When a worker puts a tensor, the part that this worker holds is hashed by BLAKE2b-256 over name,
 * dtype, shape and bytes. At cairn_init_done the hashes, in the canonical order of the tensors, are
 * combined into one digest of everything that this rank has put. Rank 0 sends its digest and its
 * state. Any other rank that puts sends only its digest, and no tensors; the coordinator reports a
 * digest that differs from rank 0's digest. With tiles, all ranks put, and the coordinator compares
 * the hashes of ranks that hold the same box. */

enum { DIGEST_BYTES = CAIRN_PUTS_DIGEST_BYTES };

static uint8_t bit_of(int plane)
{
    return (uint8_t)(1u << plane);
}

static void hash_number(crypto_generichash_state *state, uint64_t value)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(value >> 8 * i);
    crypto_generichash_update(state, bytes, sizeof bytes);
}

/* Hashes the elements in row-major order, with any strides. */
static void hash_elems(crypto_generichash_state *state, const struct strides *strides,
                       const struct cairn_mem *mem, uint64_t elems)
{
    enum { AT_ONCE = 2048 };
    const size_t elem_bytes = dtype_size((int)mem->dtype);
    double some[AT_ONCE];
    if (!strides->given && elems > 0)
        crypto_generichash_update(state, mem->ptr, elems * elem_bytes);
    for (uint64_t at = 0, count; strides->given && at < elems; at += count) {
        count = elems - at < AT_ONCE ? elems - at : AT_ONCE;
        strides_gather(strides, mem->ptr, elem_bytes, at, count, some);
        crypto_generichash_update(state, (const uint8_t *)some, count * elem_bytes);
    }
}

static void hash_tensor(const struct tensor_spec *tensor, const struct strides *strides,
                        const struct cairn_mem *mem, uint64_t elems,
                        uint8_t digest_out[DIGEST_BYTES])
{
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, DIGEST_BYTES);
    hash_number(&state, strlen(tensor->name));
    crypto_generichash_update(&state, (const uint8_t *)tensor->name, strlen(tensor->name));
    hash_number(&state, (uint64_t)mem->dtype);
    hash_number(&state, tensor->shape.rank);
    for (uint32_t d = 0; d < tensor->shape.rank; d++) hash_number(&state, tensor->shape.dim[d]);
    hash_elems(&state, strides, mem, elems);
    crypto_generichash_final(&state, digest_out, DIGEST_BYTES);
}

/* Computes the digest of all tensors that were hashed. Returns the number of these tensors. */
static size_t puts_digest(struct job *job, uint8_t digest_out[DIGEST_BYTES])
{
    crypto_generichash_state state;
    size_t count = 0;
    crypto_generichash_init(&state, NULL, 0, DIGEST_BYTES);
    pthread_mutex_lock(&job->session->lock);
    for (size_t i = 0; job->puts.notes != NULL && i < job->spec.tensor_count; i++) {
        if (!job->puts.notes[i].known) continue;
        crypto_generichash_update(&state, job->puts.notes[i].digest, DIGEST_BYTES);
        count++;
    }
    pthread_mutex_unlock(&job->session->lock);
    crypto_generichash_final(&state, digest_out, DIGEST_BYTES);
    return count;
}

/* Under the lock: true if every tensor was hashed that a worker brings. The digest of a part of them would
 * differ from the source's in any case. */
static bool puts_whole(const struct job *job)
{
    for (size_t i = 0; i < job->spec.tensor_count; i++)
        if (job->spec.tensors[i].alias_of == NULL && !spec_has_origin(&job->spec, i) &&
            (job->puts.notes == NULL || !job->puts.notes[i].known))
            return false;
    return true;
}

/* Returns the first bytes of the digest of every tensor of the job, for InitDone.held; the bytes are 0
 * for a tensor that was not hashed. The caller frees the result. NULL: no memory, or the job has more
 * tensors than fit into a message. */
static uint8_t *puts_held(struct job *job)
{
    enum { HELD = CAIRN_PUTS_HELD_BYTES };
    const size_t count = job->spec.tensor_count;
    if (count > CAIRN_PAGE_BYTES / HELD) return NULL;
    uint8_t *held = calloc(count + 1, HELD);
    HOLD_LOCK(&job->session->lock);
    for (size_t i = 0; held != NULL && job->puts.notes != NULL && i < count; i++)
        if (job->puts.notes[i].known) memcpy(held + i * HELD, job->puts.notes[i].digest, HELD);
    return held;
}

/* Under the lock: returns true if a put failed, and its plane was not put again since. */
static bool puts_any_failed(const struct job *job)
{
    for (size_t i = 0; job->puts.notes != NULL && i < job->spec.tensor_count; i++)
        if (job->puts.notes[i].failed != 0) return true;
    return false;
}

/* Under the lock: reserves the plane for this call's put; CAIRN_ERR_EXISTS: the plane was put
 * before. */
static cairn_status puts_claim(struct job *job, size_t tensor, int plane)
{
    if (job->puts.notes == NULL)
        job->puts.notes = calloc(job->spec.tensor_count + 1, sizeof *job->puts.notes);
    if (job->puts.notes == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    struct put_note *note = &job->puts.notes[tensor];
    const bool had = (note->put & bit_of(plane)) != 0;
    note->put |= bit_of(plane);
    job->puts.has_moments |= plane != CAIRN_PLANE_PARAM;
    note->failed &= (uint8_t)~bit_of(plane);
    return had ? client_fail(CAIRN_ERR_EXISTS, "tensor %s, %s, was put already; each is put once",
                             job->spec.tensors[tensor].name, plane_name(plane))
               : CAIRN_OK;
}

/* Hashes an entire parameter that was claimed. CAIRN_ERR_INVALID: the parameter's memory extends
 * beyond a region of cairn_alloc. */
static cairn_status puts_hash(struct job *job, size_t tensor, const struct piece *piece,
                              const struct cairn_mem *mem)
{
    const struct tensor_spec *spec = &job->spec.tensors[tensor];
    const uint64_t elems = box_element_count(&piece->box);
    const size_t bytes = strides_span(&piece->strides, elems, dtype_size((int)mem->dtype));
    uint8_t digest[DIGEST_BYTES];
    const void *region;
    CAIRN_TRY(memory_lend(job->session, mem->ptr, bytes, NULL, &region));
    hash_tensor(spec, &piece->strides, mem, elems, digest);
    memory_return(job->session, region);
    HOLD_LOCK(&job->session->lock);
    memcpy(job->puts.notes[tensor].digest, digest, sizeof digest);
    job->puts.notes[tensor].known = true;
    return CAIRN_OK;
}

/* Under the lock: returns true if the job has tiles. */
static bool client_tiles_hold(const struct job *job)
{
    return job->tiles.declared != NULL && job->tiles.declared->world > 0;
}

/* Processes the coordinator's answer to InitDone: the job is initialized, or all tensors may be put
 * again. */
static void puts_end(struct job *job, cairn_status status)
{
    HOLD_LOCK(&job->session->lock);
    if (status == CAIRN_OK) job->known.initialized = true;
    // A shard may have been lost with its part; all tensors may then be put again. If replicas have
    // other values, these can be corrected, too, but rank 0's values are those of the job.
    const bool again = status == CAIRN_ERR_NOT_READY ||
                       (status == CAIRN_ERR_MISMATCH && client_tiles_hold(job));
    // what was compared was not put, and is compared once
    const bool forgets = again || (status == CAIRN_OK && job->puts.compares);
    if (forgets) job->puts.compares = false;
    for (size_t i = 0; forgets && job->puts.notes != NULL && i < job->spec.tensor_count; i++)
        job->puts.notes[i].put = 0, job->puts.notes[i].known = false;
}

/* Adds "; this worker has not put 11 tensors: a, b, ...", with as many names as fit. */
static void add_missing(const struct job *job, struct sentence *out)
{
    struct sentence names = { "" };
    size_t missing = 0;
    for (size_t i = 0; i < job->spec.tensor_count; i++) {
        const struct tensor_spec *t = &job->spec.tensors[i];
        const struct put_note *note = job->puts.notes != NULL ? &job->puts.notes[i] : NULL;
        if (t->alias_of != NULL || spec_has_origin(&job->spec, i) ||
            (note != NULL && (note->put & bit_of(CAIRN_PLANE_PARAM)) != 0))
            continue;
        sentence_add(&names, "%s%s", missing++ > 0 ? ", " : "", t->name);
    }
    if (missing == 0) return;
    sentence_add(out, "; this worker has not put %zu tensor%s: %s", missing, missing > 1 ? "s" : "",
                 names.text);
}

/* Adds to this thread's sentence what this worker did not put. This must come before puts_end,
 * which resets the record of the puts. If the initial state is incomplete, adds everything that
 * rank 0 has left out. If only `count` tensors were put, adds their number, because this is the
 * usual reason for a mismatch. */
static cairn_status puts_explain(struct job *job, cairn_status status, size_t count)
{
    struct sentence why;
    sentence_set(&why, "%s", cairn_error());
    if (status == CAIRN_ERR_NOT_READY) {
        pthread_mutex_lock(&job->session->lock);
        if (job->member.rank == 0 && !client_tiles_hold(job)) add_missing(job, &why);
        pthread_mutex_unlock(&job->session->lock);
        return client_fail(status, "%s", why.text);
    }
    if (status != CAIRN_ERR_MISMATCH || count == 0 || count == job->spec.tensor_count)
        return status;
    return client_fail(status, "%s (this rank put %zu of the job's %zu tensors)", why.text, count,
                       job->spec.tensor_count);
}

/* ==== put ==== */

static bool has_tiles(struct job *job)
{
    HOLD_LOCK(&job->session->lock);
    return client_tiles_hold(job);
}

/* Returns true if this rank's puts are the job's state. With tiles, each rank puts the parts that
 * it holds. Without tiles, rank 0 puts everything, and the puts of other ranks are compared with
 * rank 0's puts. */
static bool is_source(struct job *job)
{
    HOLD_LOCK(&job->session->lock);
    const bool has_tiles = client_tiles_hold(job);
    return job->member.rank == 0 || has_tiles;
}

/* Refuses puts of the initial state if the job has this state already; the values of other ranks
 * are still compared before the first update. */
static cairn_status judge_state(struct job *job)
{
    const bool source = is_source(job);
    HOLD_LOCK(&job->session->lock);
    const bool initialized = job->known.initialized && (source || job->known.newest.step > 0);
    return initialized ? client_fail(CAIRN_ERR_EXISTS, "job %s has its state already; put nothing",
                                     job->name)
                       : CAIRN_OK;
}

/* Validates the box of a put. A worker may put the box that it holds; rank 0 may also put the whole
 * tensor, if the caller gives the whole box. */
static cairn_status judge_put_box(struct job *job, size_t tensor, const struct cairn_box *box,
                                  const struct cairn_mem *mem, struct piece *piece_out)
{
    const struct shape *shape = &job->spec.tensors[tensor].shape;
    if (job->member.rank == 0 && box != NULL && box_is_whole(box, shape))
        return api_judge_box(job, tensor, box, mem, piece_out);
    return api_judge_own(job, tensor, box, mem, piece_out);
}

/* Hashes a parameter whose put is refused, because the job has its state already: cairn_init_done then has
 * the coordinator compare what this worker would have put. If it cannot be hashed, that is no error, for
 * nothing is put. */
static void compare_refused(struct job *job, struct command *pattern, const struct cairn_box *box,
                            struct cairn_mem *mem)
{
    struct piece *piece = &pattern->piece;
    if (pattern->plane != CAIRN_PLANE_PARAM || has_tiles(job) ||
        judge_put_box(job, pattern->tensor, box, mem, piece) != CAIRN_OK || !piece->whole ||
        api_prepare(mem, true, pattern) != CAIRN_OK)
        return;
    pthread_mutex_lock(&job->session->lock);
    if (job->puts.notes == NULL)
        job->puts.notes = calloc(job->spec.tensor_count + 1, sizeof *job->puts.notes);
    const bool has_notes = job->puts.notes != NULL;
    job->puts.compares = job->puts.compares || has_notes;
    pthread_mutex_unlock(&job->session->lock);
    if (has_notes) (void)!puts_hash(job, pattern->tensor, piece, mem);
    free(pattern->owned);
}

/* Sends the values of the source rank; the values of other ranks are only hashed. Moments come from
 * only one source, so there is nothing to compare. *sent_out is true if the memory is on loan. */
static cairn_status put_claimed(struct job *job, const struct command *pattern,
                                const struct cairn_mem *mem, cairn_op **op_out, bool *sent_out)
{
    const bool source = is_source(job);
    const struct piece own = client_tiles_own(job, pattern->tensor);
    const bool compared = pattern->plane == CAIRN_PLANE_PARAM &&
                          box_equal(&own.box, &pattern->piece.box);
    cairn_status status = compared ? puts_hash(job, pattern->tensor, &pattern->piece, mem)
                                   : CAIRN_OK;
    if (status == CAIRN_OK)
        status = source ? op_begin(job, CAIRN_CHUNK_PUT, pattern, op_out)
                        : op_finished(job, CAIRN_CHUNK_PUT, op_out);
    *sent_out = status == CAIRN_OK && source;
    if (status == CAIRN_OK) return CAIRN_OK;
    HOLD_LOCK(&job->session->lock);
    puts_failed(job, pattern->tensor, pattern->plane);
    return status;
}

/* Under the lock: claims the portion. The first part of a tensor also claims the tensor, so that
 * the tensor cannot be put whole. */
static cairn_status claim_part(struct job *job, const struct portion *portion,
                               struct assembly **out)
{
    const bool begun = assemble_begun(job, portion);
    CAIRN_TRY(begun ? CAIRN_OK : puts_claim(job, portion->tensor, CAIRN_PLANE_PARAM));
    cairn_status status = assemble_claim(job, portion, out);
    if (status != CAIRN_OK && !begun) puts_unclaim(job, portion->tensor, CAIRN_PLANE_PARAM);
    return status;
}

/* Called when all elements of the tensor are present: puts it like a tensor that was put whole. */
static cairn_status put_assembled(struct job *job, struct assembly *assembly)
{
    struct command pattern = { .plane = CAIRN_PLANE_PARAM };
    bool sent;
    const struct cairn_mem mem = assemble_mem(assembly);
    assemble_pattern(assembly, &pattern);
    const cairn_status status = put_claimed(job, &pattern, &mem, NULL, &sent);
    if (!sent) assemble_free(assembly); // nothing was sent, so all parts must be put again
    return status;
}

static cairn_status put_brought(struct job *job, struct portion *portion)
{
    struct assembly *assembly;
    bool whole = false;
    cairn_status status;
    status = WITH_LOCK(&job->session->lock, claim_part(job, portion, &assembly));
    if (status != CAIRN_OK) return status;
    status = assemble_copy(assembly, portion, &whole);
    if (status != CAIRN_OK) {
        pthread_mutex_lock(&job->session->lock);
        if (!assemble_begun(job, portion)) puts_unclaim(job, portion->tensor, CAIRN_PLANE_PARAM);
        pthread_mutex_unlock(&job->session->lock);
    }
    return status == CAIRN_OK && whole ? put_assembled(job, assembly) : status;
}

static cairn_status put_part(struct job *job, struct portion *portion, const struct cairn_box *part,
                             const struct cairn_box *box, cairn_op **op_out)
{
    void *copy;
    struct op *op = NULL;
    CAIRN_TRY(api_judge_portion(job, part, box, portion));
    CAIRN_TRY(op_reserve(job, CAIRN_CHUNK_PUT, op_out, &op));
    cairn_status status = api_bring(&portion->mem, &portion->piece, &copy);
    if (status == CAIRN_OK) {
        status = put_brought(job, portion);
        free(copy);
    }
    return op_settle(op, status, op_out);
}

/* Refuses parts of moments, which can only be put whole. */
static cairn_status judge_part(const struct job *job, const struct command *pattern, bool is_part)
{
    if (!is_part || pattern->plane == CAIRN_PLANE_PARAM) return CAIRN_OK;
    return client_fail(CAIRN_ERR_UNSUPPORTED,
                       "tensor %s: moments are put whole; cairn_write_begin writes parts of "
                       "them, when there is a state",
                       job->spec.tensors[pattern->tensor].name);
}

static cairn_status put_whole(struct job *job, struct command *pattern, const struct cairn_box *box,
                              struct cairn_mem *mem, cairn_op **op_out)
{
    bool sent = false;
    CAIRN_TRY(judge_put_box(job, pattern->tensor, box, mem, &pattern->piece));
    CAIRN_TRY(judge_part(job, pattern, !pattern->piece.whole));
    CAIRN_TRY(api_prepare(mem, true, pattern)); // nothing is left to undo
    cairn_status status = WITH_LOCK(&job->session->lock,
                                    puts_claim(job, pattern->tensor, pattern->plane));
    if (status == CAIRN_OK) status = put_claimed(job, pattern, mem, op_out, &sent);
    if (!sent) free(pattern->owned);
    return status;
}

/* Refuses to put a momentum that SGD's first update would overwrite: this update begins the
 * momentum. */
static cairn_status judge_momentum(const struct job *job, size_t tensor, int plane)
{
    const struct job_spec_data *spec = &job->spec;
    const size_t group = spec_find_group(spec, spec->tensors[tensor].group);
    if (plane != CAIRN_PLANE_EXP_AVG || spec->first_step > 0 || group == SIZE_MAX ||
        strcmp(spec->groups[group].optimizer, "sgd") != 0)
        return CAIRN_OK;
    return client_fail(
        CAIRN_ERR_INVALID,
        "tensor %s: momentum is put, but the job begins at step 0, where the update begins SGD's "
        "momentum anew; set first_step to the steps that its run has made",
        spec->tensors[tensor].name);
}

cairn_status cairn_put(cairn_job *handle, const char *tensor, const char *plane,
                       const struct cairn_box *box, const struct cairn_mem *given,
                       cairn_op **op_out)
{
    API_ENTER(job, handle);
    size_t index;
    struct cairn_mem mem;
    const struct cairn_box *part;
    if (job->member.role != CAIRN_WORKER)
        return client_fail(CAIRN_ERR_REFUSED, "a reader cannot put");
    const uint64_t write = api_write_round(job);
    if (write != 0) return api_write_put(job, write, tensor, plane, box, given, op_out);
    CAIRN_TRY(api_judge_data(job, tensor, given, &mem, &index, &part));
    int number;
    CAIRN_TRY(api_judge_state(job, index, plane, &number));
    CAIRN_TRY(judge_momentum(job, index, number));
    if (number != CAIRN_PLANE_PARAM && job->member.rank != 0)
        return client_fail(CAIRN_ERR_REFUSED, "tensor %s: rank 0 puts moments, this is rank %u",
                           job->spec.tensors[index].name, job->member.rank);
    CAIRN_TRY(api_judge_dtype(job, index, number, &mem));
    if (spec_has_origin(&job->spec, index))
        return client_fail(CAIRN_ERR_EXISTS,
                           "tensor %s has its initial state from %s; do not put it", tensor,
                           job->spec.init_from != NULL ? job->spec.init_from : "its initializer");
    struct command pattern = { .tensor = (uint32_t)index, .plane = (uint8_t)number };
    CAIRN_TRY(judge_part(job, &pattern, part != NULL));
    const cairn_status free_to_put = judge_state(job);
    if (free_to_put != CAIRN_OK && part == NULL) {
        compare_refused(job, &pattern, box, &mem);
        return judge_state(job); // this thread's sentence says so again
    }
    CAIRN_TRY(free_to_put);
    if (part != NULL) {
        struct portion portion = {
            .name = tensor, .kind = CAIRN_CHUNK_PUT, .tensor = (uint32_t)index, .mem = mem
        };
        return put_part(job, &portion, part, box, op_out);
    }
    return put_whole(job, &pattern, box, &mem, op_out);
}

/* Tells the trainer what the coordinator says, and frees the reply. */
static void hear_done(const struct job *job, ProtobufCMessage *reply)
{
    const Cairn__Done *done = (const Cairn__Done *)reply;
    if (done->notice[0] != '\0') session_tell(job->session, job->name, done->notice);
    message_free(reply);
}

cairn_status cairn_init_done(cairn_job *handle, const uint8_t *given, int timeout_ms)
{
    ASK_CALL(call, "cairn_init_done", INIT_DONE, DONE, .is_of_round = true);
    API_ENTER(job, handle);
    if (job->member.role != CAIRN_WORKER)
        return client_fail(CAIRN_ERR_REFUSED, "a reader does not take part in the initial state");
    CAIRN_TRY(api_judge_call(NULL, NULL, timeout_ms));
    const uint64_t deadline_ms = api_deadline(timeout_ms);
    cairn_status status = assemble_judge_put(job);
    if (status == CAIRN_OK) status = api_await_none(job, &job->puts.open, "puts", deadline_ms);
    if (status != CAIRN_OK) return status;
    pthread_mutex_lock(&job->session->lock);
    const bool initialized = job->known.initialized, has_tiles = client_tiles_hold(job);
    const bool has_moments = job->puts.has_moments, compares = job->puts.compares;
    const bool is_whole = puts_whole(job);
    // The failure stays until that tensor is put again. Otherwise the job would be sealed with
    // other values.
    if (!puts_any_failed(job)) job->puts.status = CAIRN_OK;
    const cairn_status put = job->puts.status;
    const struct sentence why = job->puts.why;
    pthread_mutex_unlock(&job->session->lock);
    if (put != CAIRN_OK)
        return client_fail(put, "a put failed: %s; put that tensor again", why.text);
    uint8_t digest[CAIRN_PUTS_DIGEST_BYTES];
    const size_t hashed = !compares || is_whole ? puts_digest(job, digest) : 0;
    if (initialized && (hashed == 0 || has_tiles) && given == NULL) return CAIRN_OK;
    Cairn__InitDone message = CAIRN__INIT_DONE__INIT;
    message.source = job->member.rank == 0 || has_tiles;
    message.moments = has_moments;
    message.compares = compares;
    message.digest.data = digest;
    message.digest.len = hashed > 0 && !has_tiles ? sizeof digest : 0;
    message.given.data = (uint8_t *)(uintptr_t)given;
    message.given.len = given != NULL ? sizeof digest : 0;
    uint8_t *held = has_tiles ? puts_held(job) : NULL;
    message.held.data = held;
    message.held.len = held != NULL ? job->spec.tensor_count * CAIRN_PUTS_HELD_BYTES : 0;
    ProtobufCMessage *reply;
    status = ask_coordinator(job, &call, &message.base, deadline_ms, &reply);
    free(held);
    if (status != CAIRN_OK) status = puts_explain(job, status, hashed);
    puts_end(job, status);
    if (status == CAIRN_OK) hear_done(job, reply);
    return status;
}
