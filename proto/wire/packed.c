#include "proto/wire/packed.h"

#include <stdlib.h>
#include <string.h>

#include "proto/wire/messages.h"

struct cairn_packed *cairn_packed_take(uint8_t *bytes, size_t size)
{
    struct cairn_packed *packed = bytes != NULL ? malloc(sizeof *packed) : NULL;
    if (packed == NULL) {
        free(bytes);
        return NULL;
    }
    atomic_init(&packed->holds, 1);
    packed->size = size;
    packed->bytes = bytes;
    return packed;
}

struct cairn_packed *cairn_packed_copy(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size + 1);
    if (copy != NULL && size > 0) memcpy(copy, bytes, size);
    return cairn_packed_take(copy, size);
}

struct cairn_packed *cairn_packed_spec(const struct cairn_job_spec_data *spec)
{
    uint8_t *bytes;
    size_t size;
    return cairn_spec_pack(spec, &bytes, &size) == CAIRN_OK ? cairn_packed_take(bytes, size) : NULL;
}

struct cairn_packed *cairn_packed_tiles(const struct cairn_tiles *tiles)
{
    uint8_t *bytes;
    size_t size;
    return cairn_tiles_pack(tiles, &bytes, &size) == CAIRN_OK ? cairn_packed_take(bytes, size)
                                                              : NULL;
}

struct cairn_packed *cairn_packed_layout(const struct cairn_layout *layout)
{
    const size_t size = cairn_layout_encoded_bytes(layout);
    uint8_t *bytes = malloc(size);
    if (bytes != NULL) cairn_layout_encode(layout, bytes);
    return cairn_packed_take(bytes, size);
}

struct cairn_packed *cairn_packed_hold(struct cairn_packed *packed)
{
    atomic_fetch_add_explicit(&packed->holds, 1, memory_order_relaxed);
    return packed;
}

void cairn_packed_release(struct cairn_packed *packed)
{
    if (packed == NULL || atomic_fetch_sub_explicit(&packed->holds, 1, memory_order_acq_rel) > 1)
        return;
    free((void *)(uintptr_t)packed->bytes);
    free(packed);
}
