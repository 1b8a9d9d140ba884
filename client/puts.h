/* Notes what this worker has put of the initial state, each tensor once, and gives the digest of
 * it. Caller's threads; not under the lock unless it says so. */
#ifndef CAIRN_CLIENT_PUTS_H
#define CAIRN_CLIENT_PUTS_H

#include <cairn.h>

#include "client/base/piece.h"

struct job;
struct put_note;

/* Under the lock. */
struct puts {
    struct put_note *notes; /* owned: [tensor_count]; NULL: nothing was put */
    uint64_t open;          /* puts that are not done */
    bool has_moments;       /* some were put, be it that all was to be put again since */
    cairn_status status;    /* the first failure of a put */
    struct cairn_sentence why;
};

#define CAIRN_PUTS_DIGEST_BYTES 32

/* Under the lock: the plane is this call's to put; CAIRN_ERR_EXISTS: it was put before. */
cairn_status cairn_puts_claim(struct job *job, size_t tensor, int plane) CAIRN_MUST_CHECK;
/* Under the lock: nothing of it was put after all. */
void cairn_puts_unclaim(struct job *job, size_t tensor, int plane);
/* Hashes the whole of a parameter that was claimed. CAIRN_ERR_INVALID: it reaches beyond memory of
 * cairn_alloc. */
cairn_status cairn_puts_hash(struct job *job, size_t tensor, const struct piece *piece,
                             const struct cairn_mem *mem) CAIRN_MUST_CHECK;
/* The digest of all tensors that were hashed. Returns how many there are. */
size_t cairn_puts_digest(struct job *job, uint8_t digest_out[CAIRN_PUTS_DIGEST_BYTES]);
/* The beginnings of the digests of every tensor of the job, as InitDone.held has them, to be freed; NULL: no
 * memory, nothing was put, or the job has more tensors than go into a message. */
#define CAIRN_PUTS_HELD_BYTES 8
uint8_t *cairn_puts_held(struct job *job);
/* Under the lock: a put failed: the plane may be put again. */
void cairn_puts_failed(struct job *job, size_t tensor, int plane);
/* Under the lock: a put failed, and its plane was not put again since. */
bool cairn_puts_any_failed(const struct job *job);
/* Takes the coordinator's answer to InitDone: the job is initialized, or all tensors may be put
 * again. */
void cairn_puts_end(struct job *job, cairn_status status);
/* Adds to this thread's sentence what this worker did not put, before cairn_puts_end forgets it: of an
 * initial state that is not whole all that rank 0 has left out; and that the rank put only `count` tensors,
 * the usual reason for a mismatch. */
cairn_status cairn_puts_explain(struct job *job, cairn_status status, size_t count);

#endif
