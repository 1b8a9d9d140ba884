/* What a job has on a device, taken to host memory, and back: for programs that want the device to themselves
 * between two phases.
 *
 *   PartPark ─► host memory is admitted (reserve.h) ─► copies ─► the device's memory goes back ─► Done
 *   the other way ─► the device's memory is judged and taken ─► copies ─► the host's goes back ─► Done
 *
 * The coordinator opens no round while it is so. A parked job is one whose planes lie in host memory: what is
 * asked of it (fetches, snapshots, digests, leases) goes on there, and a device that fails does not touch it.
 * Loop thread. */
#ifndef CAIRN_SHARD_JOB_PARK_H
#define CAIRN_SHARD_JOB_PARK_H

#include "proto/wire/messages.h"
#include "server/shard/base/compute.h"
#include "server/shard/base/session.h"
#include "server/shard/memory/plane.h"

struct cairn_shard_job;

struct cairn_park {
    /* By the word of a coordinator; moved or not. The next one hears of it, and of a move under way, before
     * it opens a round. */
    bool is_parked;
    bool is_under_way, to_host; /* to_host: of the move at hand */
    struct cairn_request asked; /* its PartPark */
    struct cairn_run copy;      /* of areas to where they go: memory/area.h */
    uint64_t host_bytes;        /* of memory.state, while it is parked */
};

/* Answers when it is done, at once where nothing of it is on a device; of a move that is under way to there,
 * at its end, whoever began it. CAIRN_ERR_NOT_READY; CAIRN_ERR_BUSY: it is at work, or moves the other way,
 * and is to be asked again; CAIRN_ERR_NO_MEMORY: it stays where it is, with the numbers; CAIRN_ERR_IO: the
 * device failed. */
void cairn_park_on_message(struct cairn_shard_job *job, uint32_t request,
                           const Cairn__PartPark *message);
#endif
