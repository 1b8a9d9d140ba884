/* A tensor that is put or pushed by its parts: aliases of boxes of it, such as the halves of a fused weight.
 *
 * The servers know the tensor only. So its parts are copied into one dense whole in the client's memory
 * (cairn_stats.assembled_bytes), and the whole is put or pushed when all of its elements are there:
 * contributions are folded in the same order with the same bits as one of the fused tensor. A micro-batch
 * that ends before that pushes zeros for what is missing; a tensor of which no part came is absent, as
 * ever. No element may come twice. Not for a worker that holds a tile of the tensor.
 *
 * Caller's threads. A part is claimed under the lock and copied without it; meanwhile filling.adding counts
 * it, for which the end of a micro-batch waits. */
#ifndef CAIRN_CLIENT_PUSH_ASSEMBLE_H
#define CAIRN_CLIENT_PUSH_ASSEMBLE_H

#include <cairn.h>

#include "client/base/piece.h"

struct command;
struct job;

/* A part that is put or pushed. */
struct portion {
    const char *name; /* the alias */
    uint8_t kind;     /* CAIRN_CHUNK_PUT, _PUSH */
    uint32_t tensor;  /* its target */
    uint32_t micro;   /* of a push, as round */
    uint64_t round;
    struct piece whole; /* of the target */
    struct piece piece; /* the box is the target's, the strides are the caller's memory's */
    struct cairn_mem mem;
};

struct assembly;

/* Under the lock: some of the tensor came, in this round and micro-batch, and not all. */
bool cairn_assemble_begun(const struct job *job, const struct portion *portion);
/* Under the lock: the place is this portion's; to be copied next. CAIRN_ERR_EXISTS: another one has
 * elements of it; CAIRN_ERR_INVALID: another one has another dtype; CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_assemble_claim(struct job *job, const struct portion *portion,
                                  struct assembly **out) CAIRN_MUST_CHECK;
/* Not under the lock. If nothing is missing now, *whole_out is true and the assembly the caller's, to be
 * sent or undone. Failed: as if the portion had not been claimed. CAIRN_ERR_EPOCH_CHANGED: it is of a void
 * round. */
cairn_status cairn_assemble_copy(struct assembly *assembly, const struct portion *portion,
                                 bool *whole_out) CAIRN_MUST_CHECK;
/* It could not be sent: as it was before the portion came. */
void cairn_assemble_undo(struct assembly *assembly, const struct portion *portion);
/* The next tensor of that micro-batch of which not all came; NULL: none is left. It is the caller's. */
struct assembly *cairn_assemble_ended(struct job *job, uint64_t round, uint32_t micro);

/* It could not be sent: it is given again by the next cairn_assemble_ended. */
void cairn_assemble_put_back(struct assembly *assembly);

/* Fills in what of a command an assembly is about, and has it freed when its operation is over. */
void cairn_assemble_pattern(struct assembly *assembly, struct command *pattern);
struct cairn_mem cairn_assemble_mem(const struct assembly *assembly);
void cairn_assemble_free(struct assembly *assembly);

/* Under the lock: another round begins, what was pushed of this one is void. */
void cairn_assemble_new_round(struct job *job);
/* CAIRN_ERR_NOT_READY names a tensor of which only parts were put. */
cairn_status cairn_assemble_judge_put(struct job *job) CAIRN_MUST_CHECK;
void cairn_assemble_release(struct job *job); /* with the job */

#endif
