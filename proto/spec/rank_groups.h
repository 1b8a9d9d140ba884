/* The reduce groups of a round: which ranks' contributions were added up together before they came to the
 * sum. The result depends on them, so they are recorded. Each rank of a round is in one group; ranks ascend
 * in a group, and groups ascend by their least rank: this is the order of the sum. Without groups, each rank
 * counts as a group of its own.
 *
 * Pure. A struct owns its lists. */
#ifndef CAIRN_SPEC_RANK_GROUPS_H
#define CAIRN_SPEC_RANK_GROUPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/sentence.h"
#include "proto/base/status.h"

struct cairn_rank_groups {
    /* owned: freed by cairn_rank_groups_release */
    uint32_t *ranks; /* [rank_count] group behind group */
    uint32_t *ends;  /* [group_count] of each group in ranks, one behind its last */
    uint32_t rank_count, group_count;
};

/* Room for so many; they are filled in by the caller. CAIRN_ERR_NO_MEMORY: nothing is owned. */
cairn_status cairn_rank_groups_init(struct cairn_rank_groups *groups, uint32_t rank_count,
                                    uint32_t group_count) CAIRN_MUST_CHECK;
/* Frees the lists: no group any more. */
void cairn_rank_groups_release(struct cairn_rank_groups *groups);
/* `copy_out` is set only on success. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_rank_groups_copy(const struct cairn_rank_groups *groups,
                                    struct cairn_rank_groups *copy_out) CAIRN_MUST_CHECK;
bool cairn_rank_groups_equal(const struct cairn_rank_groups *a, const struct cairn_rank_groups *b);
/* The ranks of a group. */
const uint32_t *cairn_rank_groups_at(const struct cairn_rank_groups *groups, uint32_t group,
                                     uint32_t *count_out);
/* They are as the head of this page says. */
bool cairn_rank_groups_ok(const struct cairn_rank_groups *groups);
/* Adds "0-3,5". */
void cairn_ranks_add_text(const uint32_t *ranks, size_t rank_count, struct cairn_sentence *out);

#endif
