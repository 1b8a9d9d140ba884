#include "server/coordinator/round/times.h"

#include <stdlib.h>

#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"

/* Phases of a worker: it computes and fetches by itself, but a push waits for others, too, since
 * contributions are added by rank. */
enum { COMPUTE = 0, PUSH = 1, FETCH = 3 };
/* Others wait for whoever takes so much longer than the middle of them. */
#define SLOWER_FACTOR 1.2
#define SLOWER_US     1000

void cairn_step_ring_take(struct cairn_step_ring *ring, const Cairn__StepTimes *told)
{
    if (told == NULL || told->n_us == 0) return;
    for (size_t p = 0; p < CAIRN_TIMES_PHASES; p++)
        ring->us[ring->next][p] = p < told->n_us ? told->us[p] : 0;
    ring->dealt[ring->next] = ring->micros > 0 ? ring->micros : 1;
    ring->next = (ring->next + 1) % CAIRN_TIMES_STEPS;
    if (ring->count < CAIRN_TIMES_STEPS) ring->count++;
    ring->has_memory = told->memory != NULL;
    if (!ring->has_memory) return;
    cairn__worker_memory__init(&ring->memory);
    ring->memory.shared = told->memory->shared;
    ring->memory.sums = told->memory->sums;
    ring->memory.units = told->memory->units;
    ring->memory.copies = told->memory->copies;
}

static int compare(const void *left, const void *right)
{
    const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

uint32_t cairn_times_median(uint32_t *values, size_t count)
{
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

static uint32_t sum_of(const uint32_t us[CAIRN_TIMES_PHASES])
{
    uint64_t sum = 0;
    for (size_t p = 0; p < CAIRN_TIMES_PHASES; p++) sum += us[p];
    return sum < UINT32_MAX ? (uint32_t)sum : UINT32_MAX;
}

bool cairn_step_ring_medians(const struct cairn_step_ring *ring, Cairn__StepTimes *out,
                             uint32_t us[CAIRN_TIMES_PHASES])
{
    uint32_t values[CAIRN_TIMES_STEPS];
    cairn__step_times__init(out);
    if (ring->count == 0) return false;
    for (size_t p = 0; p < CAIRN_TIMES_PHASES; p++) {
        for (uint32_t i = 0; i < ring->count; i++) values[i] = ring->us[i][p];
        us[p] = cairn_times_median(values, ring->count);
    }
    for (uint32_t i = 0; i < ring->count; i++) values[i] = sum_of(ring->us[i]);
    out->step_us = cairn_times_median(values, ring->count);
    out->steps = ring->count;
    out->us = us;
    out->n_us = CAIRN_TIMES_PHASES;
    return true;
}

bool cairn_step_ring_recent(const struct cairn_step_ring *ring, uint32_t steps,
                            uint32_t us[CAIRN_TIMES_PHASES])
{
    uint32_t values[CAIRN_TIMES_STEPS];
    const uint32_t count = ring->count < steps ? ring->count : steps;
    if (2 * ring->count < steps) return false;
    for (size_t p = 0; p < CAIRN_TIMES_PHASES; p++) {
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t at = (ring->next + CAIRN_TIMES_STEPS - 1 - i) % CAIRN_TIMES_STEPS;
            values[i] = ring->us[at][p] / (p == COMPUTE || p == PUSH ? ring->dealt[at] : 1);
        }
        us[p] = cairn_times_median(values, count);
    }
    return true;
}

/* ---- for those who ask ---- */

struct cairn_times_entry {
    Cairn__StepTimes told; /* its memory is the member's */
    uint32_t us[CAIRN_TIMES_PHASES];
};

static int by_rank(const void *left, const void *right)
{
    const struct cairn_times_entry *a = left, *b = right;
    return (a->told.number > b->told.number) - (a->told.number < b->told.number);
}

static size_t list_workers(const struct cairn_cluster_job *job, struct cairn_times_entry *entries)
{
    size_t count = 0;
    for (struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        struct cairn_times_entry *entry = &entries[count];
        if (m->role != CAIRN_ROLE_WIRE_WORKER || m->phase != CAIRN_MEMBER_ATTACHED) continue;
        cairn_step_ring_medians(&m->times, &entry->told, entry->us);
        entry->told.number = m->rank;
        entry->told.name = m->session->name;
        if (m->times.has_memory) entry->told.memory = &m->times.memory;
        count++;
    }
    qsort(entries, count, sizeof *entries, by_rank);
    for (size_t i = 0; i < count; i++) entries[i].told.us = entries[i].us; // they moved
    return count;
}

static size_t list_shards(const struct cairn_cluster_job *job, struct cairn_times_entry *entries)
{
    size_t count = 0;
    CAIRN_EACH_SHARD (job, s) {
        struct cairn_times_entry *entry = &entries[count++];
        cairn_step_ring_medians(&job->shards[s].times, &entry->told, entry->us);
        entry->told.of_shard = true;
        entry->told.number = s;
        entry->told.name = job->shards[s].seat->name;
    }
    return count;
}

/* The time for which others wait: a worker's computing and fetching, and all that a shard does
 * but collecting. */
static uint32_t own_us(const struct cairn_times_entry *entry)
{
    const uint32_t *us = entry->us;
    if (!entry->told.of_shard) return us[COMPUTE] + us[FETCH];
    return us[1] + us[2] + us[3];
}

/* Marks the slowest of several entries, all workers or all shards, if it clearly is. `values`
 * has room for one number each. */
static void mark_slowest(struct cairn_times_entry *entries, size_t count, uint32_t *values)
{
    size_t slowest = 0, others = 0;
    for (size_t i = 1; i < count; i++)
        if (own_us(&entries[i]) > own_us(&entries[slowest])) slowest = i;
    for (size_t i = 0; i < count; i++)
        if (i != slowest && entries[i].told.steps > 0) values[others++] = own_us(&entries[i]);
    if (others == 0) return;
    const double middle = cairn_times_median(values, others), own = own_us(&entries[slowest]);
    entries[slowest].told.slowest = own > SLOWER_FACTOR * middle && own > middle + SLOWER_US;
}

bool cairn_cluster_times_show(const struct cairn_cluster_job *job, struct cairn_times_view *view,
                              Cairn__JobStatus *status)
{
    const size_t most = job->members.count + (size_t)job->seat_count + 1;
    uint32_t *values = calloc(most, sizeof *values);
    view->entries = calloc(most, sizeof *view->entries);
    view->list = calloc(most, sizeof *view->list);
    const bool have = values != NULL && view->entries != NULL && view->list != NULL;
    if (have) {
        const size_t workers = list_workers(job, view->entries);
        const size_t shards = list_shards(job, view->entries + workers);
        mark_slowest(view->entries, workers, values);
        mark_slowest(view->entries + workers, shards, values);
        for (size_t i = 0; i < workers + shards; i++) view->list[i] = &view->entries[i].told;
        status->times = view->list;
        status->n_times = workers + shards;
    }
    free(values);
    return have;
}

void cairn_cluster_times_release(struct cairn_times_view *view)
{
    free(view->entries);
    free(view->list);
}
