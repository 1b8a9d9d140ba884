/* Stages 0 and 1: gradients of several micro-batches, added up by the client. Caller's threads; not under the
 * lock unless it says so. Between micro-batches no thread is still adding: whoever ends one waits. */
#ifndef CAIRN_CLIENT_PUSH_ACCUMULATE_H
#define CAIRN_CLIENT_PUSH_ACCUMULATE_H

#include <cairn.h>

#include "client/base/piece.h"

struct assembly;
struct job;
struct sum;

struct sums {
    struct sum *of;              /* owned: [tensor_count]; NULL: nothing was added up */
    bool ended;                  /* lock: the sums of this round are sent, or about to be */
    struct assembly *assemblies; /* lock; owned: tensors of which parts are missing (assemble.h) */
};

bool cairn_accumulate_wanted(const struct job *job);
/* Under the lock, when no push is open or adding: nothing is added up yet. */
void cairn_accumulate_new_round(struct job *job);
/* Adds a gradient, whose memory is the caller's again on return. filling.adding was counted up under the
 * lock, and is counted down by this call in any case. */
cairn_status cairn_accumulate_add(struct job *job, const struct cairn_round *round, uint32_t micro,
                                  size_t tensor, const struct piece *piece,
                                  const struct cairn_mem *mem) CAIRN_MUST_CHECK;
/* Counts one of filling.adding down that is not added after all: it may be tried again. */
void cairn_accumulate_skip(struct job *job, size_t tensor);
/* Pushes the sums that are not pushed yet; the end of micro-batch 0 is the caller's to send behind it. */
cairn_status cairn_accumulate_send(struct job *job,
                                   const struct cairn_round *round) CAIRN_MUST_CHECK;
void cairn_accumulate_release(struct job *job);

#endif
