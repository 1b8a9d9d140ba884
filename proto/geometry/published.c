#include "proto/geometry/published.h"

#include <assert.h>
#include <string.h>

/* ThreadSanitizer knows no fences; its builds run on x86 only, where the one below compiles to nothing,
 * and the other is implied by the exchange. */
#if defined(__SANITIZE_THREAD__)
#define TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TSAN 1
#endif
#endif
#ifdef TSAN
#define FENCE(order)
#else
#define FENCE(order) atomic_thread_fence(order)
#endif

static_assert(sizeof(struct cairn_published_head) <= CAIRN_PUBLISHED_PAGE_BYTES, "one page");
static_assert(offsetof(struct cairn_published_head, sequence) == 32, "shared between processes");
static_assert(offsetof(struct cairn_published_head, sides) == 56, "shared between processes");
static_assert(sizeof(struct cairn_published_note) == 48, "shared between processes");
static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "an atomic in shared memory has no lock of a process");

#define ALIGN_BYTES ((uint64_t)64)

uint64_t cairn_published_place(const struct cairn_shard_map *map, size_t extent, size_t elem_bytes,
                               uint64_t *end)
{
    const struct cairn_local_extent *e = &map->extents[extent];
    const uint64_t page = CAIRN_PUBLISHED_PAGE_BYTES;
    const bool whole = e->elem_count == map->layout->geometry[e->tensor].elems;
    uint64_t at = (*end + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    if (!whole) at += (e->first_elem * elem_bytes - at) % page; // unsigned: the distance upwards
    *end = at + e->elem_count * elem_bytes;
    return at;
}

void cairn_published_head_init(struct cairn_published_head *head, const struct cairn_shard_map *map,
                               uint64_t job, uint64_t bytes)
{
    head->magic = CAIRN_PUBLISHED_MAGIC;
    head->shard = map->shard;
    head->job = job;
    memcpy(&head->layout_hash, map->layout->hash, sizeof head->layout_hash);
    head->bytes = bytes;
    atomic_store_explicit(&head->sequence, 1, memory_order_release);
}

void cairn_published_set_copy(struct cairn_published_head *head, uint32_t copy)
{
    atomic_store_explicit(&head->copy, copy, memory_order_release);
}

void cairn_published_write_begin(struct cairn_published_head *head)
{
    const uint64_t sequence = atomic_load_explicit(&head->sequence, memory_order_relaxed);
    (void)atomic_exchange(&head->sequence, sequence | 1);
    FENCE(memory_order_release); // the mark is seen before anything of the new version
}

void cairn_published_write_end(struct cairn_published_head *head, struct cairn_version version,
                               uint32_t sides)
{
    const uint64_t sequence = atomic_load_explicit(&head->sequence, memory_order_relaxed);
    assert(sequence % 2 == 1);
    atomic_store_explicit(&head->generation, version.generation, memory_order_relaxed);
    atomic_store_explicit(&head->step, version.step, memory_order_relaxed);
    atomic_store_explicit(&head->sides, sides, memory_order_relaxed);
    atomic_store_explicit(&head->sequence, sequence + 1, memory_order_release);
}

void cairn_published_set_sides(struct cairn_published_head *head, uint32_t sides)
{
    atomic_store_explicit(&head->sides, sides, memory_order_release); // behind what they have
}

bool cairn_published_read_begin(const struct cairn_published_head *head, uint32_t copy,
                                struct cairn_version version, enum cairn_published_side side,
                                uint64_t *sequence_out)
{
    const uint64_t sequence = atomic_load_explicit(&head->sequence, memory_order_acquire);
    if (sequence % 2 == 1) return false;
    // Behind the sequence: a version that was written to new regions comes with their number.
    if (atomic_load_explicit(&head->copy, memory_order_relaxed) != copy) return false;
    if (atomic_load_explicit(&head->generation, memory_order_relaxed) != version.generation ||
        atomic_load_explicit(&head->step, memory_order_relaxed) != version.step ||
        (atomic_load_explicit(&head->sides, memory_order_acquire) & (uint32_t)side) == 0)
        return false;
    *sequence_out = sequence;
    return true;
}

bool cairn_published_read_end(const struct cairn_published_head *head, uint64_t sequence)
{
    FENCE(memory_order_acquire); // what was read comes before this look
    return atomic_load_explicit(&head->sequence, memory_order_acquire) == sequence;
}
