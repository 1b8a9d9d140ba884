#include "proto/fabric/flight.h"

#include <stdlib.h>

enum { NONE = UINT32_MAX };

static cairn_status grow(struct fabric_flights *flights)
{
    const uint32_t before = flights->capacity, after = before > 0 ? 2 * before : 32;
    struct fabric_flight *all = realloc(flights->all, after * sizeof *all);
    if (all == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t i = before; i < after; i++)
        all[i] = (struct fabric_flight) { .generation = 1,
                                          .next_free = i + 1 < after ? i + 1 : (uint32_t)NONE };
    flights->all = all;
    flights->capacity = after;
    flights->first_free = before;
    return CAIRN_OK;
}

/* Bounded by sends_max and by the pages of the staging area: there are never more at a time. */
cairn_status fabric_flight_begin(struct fabric_flights *flights, uint64_t *serial_out)
{
    if (flights->capacity == 0 || flights->first_free == NONE) {
        cairn_status status = grow(flights);
        if (status != CAIRN_OK) return status;
    }
    const uint32_t index = flights->first_free;
    struct fabric_flight *flight = &flights->all[index];
    flights->first_free = flight->next_free;
    *flight = (struct fabric_flight) { .generation = flight->generation, .is_used = true };
    *serial_out = (uint64_t)flight->generation << 32 | index;
    return CAIRN_OK;
}

struct fabric_flight *fabric_flight_find(struct fabric_flights *flights, uint64_t serial)
{
    const uint32_t index = (uint32_t)serial;
    if (index >= flights->capacity) return NULL;
    struct fabric_flight *flight = &flights->all[index];
    return flight->is_used && flight->generation == serial >> 32 ? flight : NULL;
}

void fabric_flight_end(struct fabric_flights *flights, struct fabric_flight *flight)
{
    flight->is_used = false;
    if (++flight->generation == 0) flight->generation = 1; // serial 0 is nobody's
    flight->next_free = flights->first_free;
    flights->first_free = (uint32_t)(flight - flights->all);
}
