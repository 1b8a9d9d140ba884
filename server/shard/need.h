/* Computes how much of a shard's memory a job's part takes, by kind. The shard admits a job by
 * these numbers, and `cairn job plan` reports them beforehand. Pure; any thread. */
#ifndef CAIRN_SHARD_NEED_H
#define CAIRN_SHARD_NEED_H

#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"
#include "server/core/step.h"

struct form;

/* Bytes. */
struct memory_need {
    uint64_t state;     /* parameters, moments, and the sums of a round */
    uint64_t published; /* copies in the wire dtype: two, and one more for each leased version */
    uint64_t landing;   /* chunks in flight of the workers that have joined */
    uint64_t staging;   /* puts, writes, replies, snapshots, and a relay's buffers and cache */
    uint64_t tables;    /* the records about chunks, slots and tiles */
    uint64_t former;    /* former versions, to which the job can go back (part.h) */
    /* device memory, while all other kinds count host memory: the state on the device, with all
     * bytes of its planes, including bytes that no element uses (memory.h). If all state is on the
     * device, published copies are counted here, too, because they lie there a second time for
     * processes that use the device */
    uint64_t device;
};

struct need {
    struct memory_need memory;     /* what the job takes before a worker joins: `landing` is 0 */
    uint64_t landing_bytes;        /* what each worker adds to `landing` */
    uint64_t worker_staging_bytes; /* what each worker adds to `staging`: the reply that it keeps */
    /* the rest: the numbers from which the fields above are computed */
    struct step_config step;
    uint64_t wire_bytes; /* of a published copy */
    uint64_t host_from;  /* the local element from which on elements lie in host memory: memory.h */
    /* The addresses that are reserved for state that may arrive with other layouts: room_elems
     * local elements, and room_wire_bytes bytes of a published copy. Both are twice the size of the
     * complete job, because there are gaps between the parts that stay. Both are 0 for a job that
     * lies in both homes, because its layout does not change here, and room_elems is 0 for a job on
     * a device */
    uint64_t room_elems, room_wire_bytes;
    uint32_t slot_count, put_max;
    size_t slot_bytes, small_bytes, put_bytes, reply_bytes;
};

/* Computes the need of a job that at most member_max workers join at a time. spec_check must have
 * accepted the spec. forms_out is an array of map->extent_count forms, all 0, to be filled in;
 * NULL: the forms are not wanted. has_device says that the shard keeps state on a device.
 * CAIRN_ERR_UNSUPPORTED, CAIRN_ERR_INVALID: the spec asks for something that is not possible. */
CAIRN_MUST_CHECK cairn_status need_of(const struct job_spec_data *spec, const struct shard_map *map,
                                      uint32_t member_max, bool has_device, struct form *forms_out,
                                      struct need *need_out, struct sentence *why);

/* Parts of `former`: what an extent takes of a version, and what all versions take if one of them takes so
 * many bytes of state. */
uint64_t former_extent_bytes(const struct job_spec_data *spec, const struct local_extent *extent,
                             const struct form *form);
uint64_t former_bytes(const struct job_spec_data *spec, const struct shard_map *map,
                      uint64_t slot_bytes);

#endif
