/* The search in arrays of structs that are sorted by a number. Pure. */
#ifndef CAIRN_BASE_LOWER_BOUND_H
#define CAIRN_BASE_LOWER_BOUND_H

#include <stddef.h>
#include <stdint.h>

/* The index of the first of array[count] whose number, the uint32_t at `key_at`, is not below `key`; count if
 * there is none. The array is sorted by that number. `size`: bytes of a struct. */
static inline size_t cairn_lower_bound(const void *array, size_t count, size_t size, size_t key_at,
                                       uint32_t key)
{
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (*(const uint32_t *)((const char *)array + middle * size + key_at) < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

#endif
