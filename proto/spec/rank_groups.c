#include "proto/spec/rank_groups.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

cairn_status cairn_rank_groups_init(struct cairn_rank_groups *groups, uint32_t rank_count,
                                    uint32_t group_count)
{
    *groups = (struct cairn_rank_groups) { .rank_count = rank_count, .group_count = group_count };
    if (rank_count == 0 && group_count == 0) return CAIRN_OK;
    groups->ranks = calloc((size_t)rank_count + 1, sizeof *groups->ranks);
    groups->ends = calloc((size_t)group_count + 1, sizeof *groups->ends);
    if (groups->ranks != NULL && groups->ends != NULL) return CAIRN_OK;
    cairn_rank_groups_release(groups);
    return CAIRN_ERR_NO_MEMORY;
}

void cairn_rank_groups_release(struct cairn_rank_groups *groups)
{
    free(groups->ranks);
    free(groups->ends);
    *groups = (struct cairn_rank_groups) { NULL, NULL, 0, 0 };
}

cairn_status cairn_rank_groups_copy(const struct cairn_rank_groups *groups,
                                    struct cairn_rank_groups *copy_out)
{
    struct cairn_rank_groups copy;
    const cairn_status status = cairn_rank_groups_init(&copy, groups->rank_count,
                                                       groups->group_count);
    if (status != CAIRN_OK) return status;
    if (copy.rank_count > 0)
        memcpy(copy.ranks, groups->ranks, copy.rank_count * sizeof *copy.ranks);
    if (copy.group_count > 0) memcpy(copy.ends, groups->ends, copy.group_count * sizeof *copy.ends);
    *copy_out = copy;
    return CAIRN_OK;
}

bool cairn_rank_groups_equal(const struct cairn_rank_groups *a, const struct cairn_rank_groups *b)
{
    if (a->rank_count != b->rank_count || a->group_count != b->group_count) return false;
    if (a->group_count == 0) return true;
    return memcmp(a->ranks, b->ranks, a->rank_count * sizeof *a->ranks) == 0 &&
           memcmp(a->ends, b->ends, a->group_count * sizeof *a->ends) == 0;
}

const uint32_t *cairn_rank_groups_at(const struct cairn_rank_groups *groups, uint32_t group,
                                     uint32_t *count_out)
{
    const uint32_t first = group == 0 ? 0 : groups->ends[group - 1];
    *count_out = groups->ends[group] - first;
    return groups->ranks + first;
}

static int by_rank(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* No rank stands in two groups. */
static bool ranks_differ(const struct cairn_rank_groups *groups)
{
    struct cairn_rank_groups sorted;
    if (cairn_rank_groups_copy(groups, &sorted) != CAIRN_OK) return false;
    bool differ = true;
    if (sorted.rank_count > 1)
        qsort(sorted.ranks, sorted.rank_count, sizeof *sorted.ranks, by_rank);
    for (uint32_t i = 1; i < sorted.rank_count; i++)
        differ &= sorted.ranks[i - 1] != sorted.ranks[i];
    cairn_rank_groups_release(&sorted);
    return differ;
}

bool cairn_rank_groups_ok(const struct cairn_rank_groups *groups)
{
    uint32_t first = 0;
    for (uint32_t g = 0; g < groups->group_count; g++) {
        const uint32_t end = groups->ends[g];
        if (end <= first || end > groups->rank_count) return false;
        for (uint32_t i = first + 1; i < end; i++)
            if (groups->ranks[i - 1] >= groups->ranks[i]) return false;
        const uint32_t before = g < 2 ? 0 : groups->ends[g - 2];
        if (g > 0 && groups->ranks[before] >= groups->ranks[first]) return false;
        first = end;
    }
    return first == groups->rank_count && ranks_differ(groups);
}

void cairn_ranks_add_text(const uint32_t *ranks, size_t rank_count, struct cairn_sentence *out)
{
    for (size_t i = 0; i < rank_count;) {
        size_t last = i;
        while (last + 1 < rank_count && ranks[last + 1] == ranks[last] + 1) last++;
        cairn_sentence_add(out, "%s%" PRIu32, i > 0 ? "," : "", ranks[i]);
        if (last > i) cairn_sentence_add(out, "-%" PRIu32, ranks[last]);
        i = last + 1;
    }
}
