#include "proto/spec/batch.h"

uint32_t cairn_batch_count(const struct cairn_batch *batch)
{
    if (batch->rank >= batch->total) return 0;
    return (batch->total - batch->rank - 1) / batch->world + 1;
}

uint32_t cairn_batch_number(const struct cairn_batch *batch, uint32_t place)
{
    return batch->total == 0 ? place : batch->rank + place * batch->world;
}

bool cairn_batch_place(const struct cairn_batch *batch, uint32_t number, uint32_t *place_out)
{
    if (batch->total > 0) {
        const bool is_own = number < batch->total && batch->rank < batch->world &&
                            number % batch->world == batch->rank;
        if (!is_own) return false;
        number /= batch->world;
    }
    *place_out = number;
    return true;
}

/* Steele, Lea, Flood, "Fast splittable pseudorandom number generators": one step of it. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

uint64_t cairn_batch_seed(uint64_t seed, uint64_t index, uint64_t number)
{
    return mix(mix(mix(seed) ^ index) ^ number) >> 1;
}
