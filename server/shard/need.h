/* How much of its shard's memory a job's part takes, by kind. The shard admits a job by this, and `cairn
 * job plan` reports it beforehand. Pure; any thread. */
#ifndef CAIRN_SHARD_NEED_H
#define CAIRN_SHARD_NEED_H

#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"
#include "server/core/step.h"

struct form;

/* Bytes. */
struct memory_need {
    uint64_t state;     /* parameters, moments, and the sums of a round */
    uint64_t published; /* copies in the wire dtype: two, and one for each leased version */
    uint64_t landing;   /* for the workers that have joined: their chunks in flight */
    uint64_t staging;   /* puts, writes, replies, snapshots, and a relay's buffers and cache */
    uint64_t tables;    /* the records about chunks, slots and tiles */
    /* of a device's memory: the state on the device, with all bytes of its planes, including bytes that no
     * element uses (memory.h). If all state is on the device, also the published copies a second time, for
     * processes that use the device. All other kinds count host memory */
    uint64_t device;
};

struct need {
    struct memory_need memory;     /* before anyone joins: landing is 0 */
    uint64_t landing_bytes;        /* added by each worker, .. */
    uint64_t worker_staging_bytes; /* .. and added for the reply that each worker keeps */
    /* the numbers from which the above are computed */
    struct step_config step;
    uint64_t wire_bytes; /* of a published copy */
    uint64_t host_from;  /* local elements from here on lie in host memory: memory.h */
    /* Addresses for state that may arrive with other layouts: local elements, and bytes of a published
     * copy. This is twice the complete job, because there are gaps between the parts that stay. They are 0
     * for what is on a device, and for a job that lies in both homes, because that job does not change its
     * layout here */
    uint64_t room_elems, room_wire_bytes;
    uint32_t slot_count, put_max;
    size_t slot_bytes, small_bytes, put_bytes, reply_bytes;
};

/* Computes the need of a job to which at most member_max workers are joined at a time. spec_check must have
 * accepted the spec. forms_out: [map->extent_count], zeroed; NULL: not wanted. has_device: the shard's
 * state lies on a device. CAIRN_ERR_UNSUPPORTED, CAIRN_ERR_INVALID: the spec asks for something that is not
 * possible. */
CAIRN_MUST_CHECK cairn_status need_of(const struct job_spec_data *spec, const struct shard_map *map,
                                      uint32_t member_max, bool has_device, struct form *forms_out,
                                      struct need *need_out, struct sentence *why);

#endif
