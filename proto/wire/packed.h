/* Packed bytes that several hold: a job's spec, its layout, a list of tiles. They never change; the last
 * hold frees them. Any thread. */
#ifndef CAIRN_WIRE_PACKED_H
#define CAIRN_WIRE_PACKED_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"
#include "proto/wire/tiles.h"

struct cairn_packed {
    atomic_uint holds;
    size_t size;          /* bytes */
    const uint8_t *bytes; /* owned */
};

/* Takes malloc'ed bytes, which are freed also where this fails; held once. NULL: no memory, or `bytes` is. */
struct cairn_packed *cairn_packed_take(uint8_t *bytes, size_t size);
/* The same of a copy, which the caller's bytes may be gone after. */
struct cairn_packed *cairn_packed_copy(const uint8_t *bytes, size_t size);
struct cairn_packed *cairn_packed_spec(const struct cairn_job_spec_data *spec);
struct cairn_packed *cairn_packed_layout(const struct cairn_layout *layout);
struct cairn_packed *cairn_packed_tiles(const struct cairn_tiles *tiles);
struct cairn_packed *cairn_packed_hold(struct cairn_packed *packed);
void cairn_packed_release(struct cairn_packed *packed); /* NULL is fine */

#endif
