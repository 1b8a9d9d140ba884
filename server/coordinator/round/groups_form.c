/* Who is grouped with whom, and which relay serves which owner: plain data in, plain data out. */
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/round/groups.h"

/* A worker or a shard on its host. */
struct place {
    const char *host;
    uint32_t index;
    bool is_shard;
};

/* By host; the workers of a host, by rank, before its shards, by index. */
static int by_host(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    const int order = strcmp(x->host, y->host);
    if (order != 0) return order;
    if (x->is_shard != y->is_shard) return x->is_shard ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

static size_t add_places(struct place *places, size_t at, const char *const *hosts, uint32_t count,
                         bool is_shard)
{
    for (uint32_t i = 0; i < count; i++) {
        if (hosts[i][0] == '\0') continue;
        places[at++] = (struct place) { hosts[i], i, is_shard };
    }
    return at;
}

/* The places of one host: [first, shards) are its workers, [shards, end) its shards. */
struct run {
    size_t first, shards, end;
};

static struct run run_at(const struct place *places, size_t count, size_t first)
{
    struct run run = { first, first, first };
    while (run.end < count && strcmp(places[run.end].host, places[first].host) == 0) {
        if (!places[run.end].is_shard) run.shards++;
        run.end++;
    }
    return run;
}

/* Which place of the sorted list begins the host of each worker that is grouped; else NO_RUN. */
#define NO_RUN SIZE_MAX
static void mark_runs(const struct place *places, size_t count, size_t *run_of, uint32_t workers)
{
    for (uint32_t w = 0; w < workers; w++) run_of[w] = NO_RUN;
    for (size_t i = 0; i < count;) {
        const struct run run = run_at(places, count, i);
        const bool grouped = run.shards - run.first >= 2 && run.end > run.shards;
        for (size_t p = run.first; grouped && p < run.shards; p++)
            run_of[places[p].index] = run.first;
        i = run.end;
    }
}

static void add_group(struct cairn_groups_plan *plan, uint32_t worker)
{
    plan->first[plan->group_count] = worker;
    plan->group_of[worker] = plan->group_count++;
}

/* Workers come by rank, so a group gets its number from its least. */
static void number_groups(struct cairn_groups_plan *plan, const struct place *places, size_t count,
                          const size_t *run_of)
{
    for (uint32_t w = 0; w < plan->worker_count; w++) {
        if (run_of[w] != NO_RUN && places[run_of[w]].index != w) {
            plan->group_of[w] = plan->group_of[places[run_of[w]].index];
            continue;
        }
        add_group(plan, w);
        if (run_of[w] != NO_RUN) {
            const struct run run = run_at(places, count, run_of[w]);
            for (size_t p = run.shards; p < run.end; p++)
                plan->relays[plan->relay_count++] = places[p].index;
        }
        plan->ends[plan->group_count - 1] = plan->relay_count;
    }
}

cairn_status cairn_groups_plan_make(const char *const *worker_hosts, uint32_t worker_count,
                                    const char *const *shard_hosts, uint32_t shard_count,
                                    struct cairn_groups_plan *plan_out)
{
    struct cairn_groups_plan plan = {
        .group_of = calloc((size_t)worker_count + 1, sizeof *plan.group_of),
        .first = calloc((size_t)worker_count + 1, sizeof *plan.first),
        .relays = calloc((size_t)shard_count + 1, sizeof *plan.relays),
        .ends = calloc((size_t)worker_count + 1, sizeof *plan.ends),
        .worker_count = worker_count,
    };
    struct place *places = calloc((size_t)worker_count + shard_count + 1, sizeof *places);
    size_t *run_of = calloc((size_t)worker_count + 1, sizeof *run_of);
    const bool room = plan.group_of != NULL && plan.first != NULL && plan.relays != NULL &&
                      plan.ends != NULL && places != NULL && run_of != NULL;
    if (room) {
        size_t count = add_places(places, 0, worker_hosts, worker_count, false);
        count = add_places(places, count, shard_hosts, shard_count, true);
        qsort(places, count, sizeof *places, by_host);
        mark_runs(places, count, run_of, worker_count);
        number_groups(&plan, places, count, run_of);
        *plan_out = plan;
    } else {
        cairn_groups_plan_release(&plan);
    }
    free(places);
    free(run_of);
    return room ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

void cairn_groups_plan_release(struct cairn_groups_plan *plan)
{
    free(plan->group_of);
    free(plan->first);
    free(plan->relays);
    free(plan->ends);
    *plan = (struct cairn_groups_plan) { .group_of = NULL };
}

static bool same(const uint32_t *a, const uint32_t *b, uint32_t count)
{
    return count == 0 || memcmp(a, b, count * sizeof *a) == 0;
}

bool cairn_groups_plan_equal(const struct cairn_groups_plan *a, const struct cairn_groups_plan *b)
{
    return a->worker_count == b->worker_count && a->group_count == b->group_count &&
           a->relay_count == b->relay_count && same(a->group_of, b->group_of, a->worker_count) &&
           same(a->relays, b->relays, a->relay_count) && same(a->ends, b->ends, a->group_count);
}

uint32_t cairn_groups_relay_of(const struct cairn_groups_plan *plan, uint32_t group, uint32_t owner)
{
    const uint32_t first = group == 0 ? 0 : plan->ends[group - 1];
    const uint32_t count = plan->ends[group] - first;
    if (count == 0) return CAIRN_GROUPS_ALONE;
    for (uint32_t i = 0; i < count; i++)
        if (plan->relays[first + i] == owner) return first + i;
    return first + owner % count;
}
