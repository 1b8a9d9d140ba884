/* What a peer has been told of and has not released yet. A serial is an index and a generation: finding it is
 * one look, and one that a peer made up, or says twice, is none. */
#include "proto/fabric/mapped.h"

#include <stdlib.h>

enum { NONE = UINT32_MAX };

static cairn_status grow(struct mapped_flights *flights)
{
    const uint32_t before = flights->capacity, after = before > 0 ? 2 * before : 32;
    struct mapped_flight *all = realloc(flights->all, after * sizeof *all);
    if (all == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t i = before; i < after; i++)
        all[i] = (struct mapped_flight) { .generation = 1,
                                          .next_free = i + 1 < after ? i + 1 : (uint32_t)NONE };
    flights->all = all;
    flights->capacity = after;
    flights->first_free = before;
    return CAIRN_OK;
}

/* Bounded by sends_max and by the pages of the staging area: there are never more at a time. */
cairn_status mapped_flight_begin(struct mapped_flights *flights, uint64_t *serial_out)
{
    if (flights->capacity == 0 || flights->first_free == NONE) {
        cairn_status status = grow(flights);
        if (status != CAIRN_OK) return status;
    }
    const uint32_t index = flights->first_free;
    struct mapped_flight *flight = &flights->all[index];
    flights->first_free = flight->next_free;
    *flight = (struct mapped_flight) { .generation = flight->generation, .is_used = true };
    *serial_out = (uint64_t)flight->generation << 32 | index;
    return CAIRN_OK;
}

struct mapped_flight *mapped_flight_find(struct mapped_flights *flights, uint64_t serial)
{
    const uint32_t index = (uint32_t)serial;
    if (index >= flights->capacity) return NULL;
    struct mapped_flight *flight = &flights->all[index];
    return flight->is_used && flight->generation == serial >> 32 ? flight : NULL;
}

void mapped_flight_end(struct mapped_flights *flights, struct mapped_flight *flight)
{
    flight->is_used = false;
    if (++flight->generation == 0) flight->generation = 1; // serial 0 is nobody's
    flight->next_free = flights->first_free;
    flights->first_free = (uint32_t)(flight - flights->all);
}
