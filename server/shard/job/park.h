/* Parking: moves a job's planes from a device to host memory, and back, for programs that want the
 * device to themselves between two phases.
 *
 *   PartPark ─► host memory is admitted (reserve.h) ─► copies ─► the device's memory goes back ─► Done
 *   the other way ─► the device's memory is judged and taken ─► copies ─► the host's goes back ─► Done
 *
 * The coordinator opens no round while a job is parked. Its planes then lie in host memory:
 * fetches, snapshots, digests and leases go on from there, and a device that fails does not affect
 * it. Loop thread. */
#ifndef CAIRN_SHARD_JOB_PARK_H
#define CAIRN_SHARD_JOB_PARK_H

#include "proto/wire/messages.h"
#include "server/shard/base/compute.h"
#include "server/shard/base/session.h"
#include "server/shard/memory/plane.h"

struct cairn_shard_job;

struct cairn_park {
    /* a coordinator has parked the job, whether its planes are moved already or not; the next
     * coordinator hears of it, and of a move under way, before it opens a round */
    bool is_parked;
    bool is_under_way, to_host; /* to_host: of the move at hand */
    struct cairn_request asked; /* its PartPark */
    struct cairn_run copy;      /* of areas to where they go: memory/area.h */
    uint64_t host_bytes;        /* of memory.state, while it is parked */
};

/* Parks the job, or brings it back, and answers when that is done: at once if nothing of the job is
 * on a device, and at the end of a move to the same place that is under way, whoever began it.
 * CAIRN_ERR_NOT_READY; CAIRN_ERR_BUSY: the job is at work, or moves the other way, and is to be
 * asked again; CAIRN_ERR_NO_MEMORY: it stays where it is, with the numbers; CAIRN_ERR_IO: the
 * device failed. */
void cairn_park_on_message(struct cairn_shard_job *job, uint32_t request,
                           const Cairn__PartPark *message);
#endif
