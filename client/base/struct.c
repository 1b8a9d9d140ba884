#include "client/base/struct.h"

#include <string.h>

#define SIZE_MAX_SANE 65536 /* a struct_size beyond it was never set */

static size_t size_of(const void *caller)
{
    size_t size;
    memcpy(&size, caller, sizeof size);
    return size;
}

bool cairn_struct_fits(const void *out, size_t least_bytes)
{
    return out != NULL && size_of(out) >= least_bytes && size_of(out) <= SIZE_MAX_SANE;
}

bool cairn_struct_take(void *to, size_t bytes, size_t least_bytes, const void *from)
{
    if (!cairn_struct_fits(from, least_bytes)) return false;
    const size_t size = size_of(from);
    const unsigned char *byte = from;
    for (size_t i = bytes; i < size; i++)
        if (byte[i] != 0) return false;
    memset(to, 0, bytes);
    memcpy(to, from, size < bytes ? size : bytes);
    memcpy(to, &bytes, sizeof bytes);
    return true;
}

bool cairn_struct_is_zero(const void *reserved, size_t bytes)
{
    const unsigned char *byte = reserved;
    for (size_t i = 0; i < bytes; i++)
        if (byte[i] != 0) return false;
    return true;
}

void cairn_struct_give(void *out, const void *from, size_t bytes)
{
    const size_t size = size_of(out);
    memset(out, 0, size);
    memcpy(out, from, size < bytes ? size : bytes);
    memcpy(out, &size, sizeof size);
}

const void *cairn_struct_at(const void *first, size_t i)
{
    return (const unsigned char *)first + i * size_of(first);
}
