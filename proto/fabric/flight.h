/* Flights, by serial: payloads that a peer has been told of and has not released yet. A serial is
 * an index and a generation: finding it takes one look, and a serial that a peer made up, or says
 * twice, is not found. Private to proto/fabric.
 *
 * A pointer to a flight holds until the next begin. All zero: an empty table; free(flights->all) at its
 * end. */
#ifndef CAIRN_FABRIC_FLIGHT_H
#define CAIRN_FABRIC_FLIGHT_H

#include "proto/fabric/backend.h"

struct ucx_share;

struct fabric_pages { /* of the staging area of "mapped" */
    uint32_t arena, first, count;
};

struct fabric_flight {
    struct fabric_op *op;      /* by reference; NULL: a copy of ours, or its peer was closed */
    struct fabric_pages pages; /* mapped; count 0: by reference */
    bool is_written;           /* mapped: the frame is told */
    const void *payload;       /* ucx: to be sent whole, if the peer cannot read it */
    struct ucx_share *share;   /* ucx: that it lies in, with a reference */
    uint32_t generation;       /* in the serial, so that an old one means nothing */
    uint32_t next_free;        /* while it is free */
    bool is_used;
};

struct fabric_flights {
    struct fabric_flight *all; /* [capacity], owned */
    uint32_t capacity, first_free;
};

CAIRN_MUST_CHECK cairn_status fabric_flight_begin(struct fabric_flights *flights,
                                                  uint64_t *serial_out);
/* NULL: no flight of now has this serial. */
struct fabric_flight *fabric_flight_find(struct fabric_flights *flights, uint64_t serial);
void fabric_flight_end(struct fabric_flights *flights, struct fabric_flight *flight);

#endif
