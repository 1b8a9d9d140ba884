/* Numbers as bytes, the least first, as they stand in messages and files. Pure. */
#ifndef CAIRN_BASE_LITTLE_ENDIAN_H
#define CAIRN_BASE_LITTLE_ENDIAN_H

#include <stddef.h>
#include <stdint.h>

/* The low `bytes` of the value, 8 at most. */
static inline void cairn_le_put(uint8_t *out, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> (8 * i));
}

static inline uint64_t cairn_le_get(const uint8_t *in, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t)in[i] << (8 * i);
    return value;
}

#endif
