/* Notes what a worker has put of the initial state.
 *
 * Every put of what the worker holds is hashed as it comes, BLAKE2b-256 over name, dtype, shape and
 * bytes; at cairn_init_done the hashes, in the canonical order of the tensors, give one digest of
 * what this rank has put. Rank 0's digest goes with its state. If another rank puts too, only its
 * digest travels, none of its tensors; the coordinator reports a digest that differs from rank 0's.
 * With tiles all ranks put, and the coordinator compares the hashes of ranks that hold the same
 * box. */
#include "client/puts.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "client/job.h"

enum { DIGEST_BYTES = CAIRN_PUTS_DIGEST_BYTES };

struct put_note {
    /* bits 1 << plane */
    uint8_t put;    /* whole, and it did not fail */
    uint8_t failed; /* and was not put again since: nothing may be sealed without it */
    bool known;     /* the digest, of the parameter */
    uint8_t digest[DIGEST_BYTES];
};

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

/* The elements in row-major order, however they lie. */
static void hash_elems(crypto_generichash_state *state, const struct strides *strides,
                       const struct cairn_mem *mem, uint64_t elems)
{
    enum { AT_ONCE = 2048 };
    const size_t elem_bytes = cairn_dtype_bytes((int)mem->dtype);
    double some[AT_ONCE];
    if (!strides->given && elems > 0)
        crypto_generichash_update(state, mem->ptr, elems * elem_bytes);
    for (uint64_t at = 0, count; strides->given && at < elems; at += count) {
        count = elems - at < AT_ONCE ? elems - at : AT_ONCE;
        cairn_strides_gather(strides, mem->ptr, elem_bytes, at, count, some);
        crypto_generichash_update(state, (const uint8_t *)some, count * elem_bytes);
    }
}

static void hash_tensor(const struct cairn_tensor_spec *tensor, const struct strides *strides,
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

size_t cairn_puts_digest(struct job *job, uint8_t digest_out[DIGEST_BYTES])
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

uint8_t *cairn_puts_held(struct job *job)
{
    enum { HELD = CAIRN_PUTS_HELD_BYTES };
    const size_t count = job->spec.tensor_count;
    if (count > CAIRN_PAGE_BYTES / HELD) return NULL;
    uint8_t *held = calloc(count + 1, HELD);
    pthread_mutex_lock(&job->session->lock);
    for (size_t i = 0; held != NULL && job->puts.notes != NULL && i < count; i++)
        if (job->puts.notes[i].known) memcpy(held + i * HELD, job->puts.notes[i].digest, HELD);
    pthread_mutex_unlock(&job->session->lock);
    return held;
}

void cairn_puts_unclaim(struct job *job, size_t tensor, int plane)
{
    struct put_note *note = &job->puts.notes[tensor];
    note->put &= (uint8_t)~bit_of(plane);
    if (plane == CAIRN_PLANE_PARAM) note->known = false;
}

void cairn_puts_failed(struct job *job, size_t tensor, int plane)
{
    if (job->puts.notes == NULL) return;
    cairn_puts_unclaim(job, tensor, plane);
    if (!job->known.initialized) job->puts.notes[tensor].failed |= bit_of(plane);
}

bool cairn_puts_any_failed(const struct job *job)
{
    for (size_t i = 0; job->puts.notes != NULL && i < job->spec.tensor_count; i++)
        if (job->puts.notes[i].failed != 0) return true;
    return false;
}

cairn_status cairn_puts_claim(struct job *job, size_t tensor, int plane)
{
    if (job->puts.notes == NULL)
        job->puts.notes = calloc(job->spec.tensor_count + 1, sizeof *job->puts.notes);
    if (job->puts.notes == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    struct put_note *note = &job->puts.notes[tensor];
    const bool had = (note->put & bit_of(plane)) != 0;
    note->put |= bit_of(plane);
    job->puts.has_moments |= plane != CAIRN_PLANE_PARAM;
    note->failed &= (uint8_t)~bit_of(plane);
    return had ? cairn_client_fail(CAIRN_ERR_EXISTS,
                                   "tensor %s, %s, was put already; each is put once",
                                   job->spec.tensors[tensor].name, cairn_plane_name(plane))
               : CAIRN_OK;
}

cairn_status cairn_puts_hash(struct job *job, size_t tensor, const struct piece *piece,
                             const struct cairn_mem *mem)
{
    const struct cairn_tensor_spec *spec = &job->spec.tensors[tensor];
    const uint64_t elems = cairn_box_elems(&piece->box);
    const size_t bytes = cairn_strides_span(&piece->strides, elems,
                                            cairn_dtype_bytes((int)mem->dtype));
    uint8_t digest[DIGEST_BYTES];
    const void *lent;
    const cairn_status status = cairn_memory_lend(job->session, mem->ptr, bytes, NULL, &lent);
    if (status != CAIRN_OK) return status;
    hash_tensor(spec, &piece->strides, mem, elems, digest);
    cairn_memory_return(job->session, lent);
    pthread_mutex_lock(&job->session->lock);
    memcpy(job->puts.notes[tensor].digest, digest, sizeof digest);
    job->puts.notes[tensor].known = true;
    pthread_mutex_unlock(&job->session->lock);
    return CAIRN_OK;
}

void cairn_puts_end(struct job *job, cairn_status status)
{
    pthread_mutex_lock(&job->session->lock);
    if (status == CAIRN_OK) job->known.initialized = true;
    // A shard may have been lost with its part: all may be put again. Other values of replicas can be mended,
    // too; those of rank 0 are what the job has.
    const bool again = status == CAIRN_ERR_NOT_READY ||
                       (status == CAIRN_ERR_MISMATCH && cairn_client_tiles_hold(job));
    for (size_t i = 0; again && job->puts.notes != NULL && i < job->spec.tensor_count; i++)
        job->puts.notes[i].put = 0, job->puts.notes[i].known = false;
    pthread_mutex_unlock(&job->session->lock);
}

/* "; this worker has not put 11 tensors: a, b, ...": as many names as there is room for. */
static void add_missing(const struct job *job, struct cairn_sentence *out)
{
    struct cairn_sentence names = { "" };
    size_t missing = 0;
    for (size_t i = 0; i < job->spec.tensor_count; i++) {
        const struct cairn_tensor_spec *t = &job->spec.tensors[i];
        const struct put_note *note = job->puts.notes != NULL ? &job->puts.notes[i] : NULL;
        if (t->alias_of != NULL || cairn_spec_has_origin(&job->spec, i) ||
            (note != NULL && (note->put & bit_of(CAIRN_PLANE_PARAM)) != 0))
            continue;
        cairn_sentence_add(&names, "%s%s", missing++ > 0 ? ", " : "", t->name);
    }
    if (missing == 0) return;
    cairn_sentence_add(out, "; this worker has not put %zu tensor%s: %s", missing,
                       missing > 1 ? "s" : "", names.text);
}

cairn_status cairn_puts_explain(struct job *job, cairn_status status, size_t count)
{
    struct cairn_sentence why;
    cairn_sentence_set(&why, "%s", cairn_error());
    if (status == CAIRN_ERR_NOT_READY) {
        pthread_mutex_lock(&job->session->lock);
        if (job->member.rank == 0 && !cairn_client_tiles_hold(job)) add_missing(job, &why);
        pthread_mutex_unlock(&job->session->lock);
        return cairn_client_fail(status, "%s", why.text);
    }
    if (status != CAIRN_ERR_MISMATCH || count == 0 || count == job->spec.tensor_count)
        return status;
    return cairn_client_fail(status, "%s (this rank put %zu of the job's %zu tensors)", why.text,
                             count, job->spec.tensor_count);
}
