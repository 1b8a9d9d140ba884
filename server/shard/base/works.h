/* A list of work that is being made for a home (gpu/home.h), by one thread at a time. It is run when it is
 * full, and by cairn_works_run. The works of one list are done in any order: a work that must come after
 * others is added after cairn_works_run, or in a run's next stage (compute.h).
 *
 * The host reads and writes what lies in a home by get, put and edit: where it lies if the host may follow
 * the address, else in scratch, between copies. Whatever fails in between is told by cairn_works_run.
 *
 * Where the home takes two lists, one is made while the other is under way (cairn_works_send). Then the works
 * of both are done in any order. */
#ifndef CAIRN_SHARD_BASE_WORKS_H
#define CAIRN_SHARD_BASE_WORKS_H

#include <stdatomic.h>

#include "gpu/home.h"
#include "proto/geometry/box.h"
#include "server/core/step.h"

/* The most bytes that get, put and edit take: more than the largest chunk has. */
#define CAIRN_WORKS_SCRATCH_BYTES ((size_t)16 << 20)

/* The works that the home is given at a time; a list stays unchanged until they are done. */
struct cairn_works_list {
    /* owned */
    struct cairn_work *works;                            /* [capacity] */
    struct cairn_source (*sources)[CAIRN_STEP_FOLD_MAX]; /* [capacity] */
    uint8_t *scratch; /* [CAIRN_WORKS_SCRATCH_BYTES], pages of its own; NULL if in_place */
    bool is_pinned;   /* once it is used, if it can be */
    uint32_t count;
    size_t scratch_used;
    bool is_under_way; /* begun, and not finished */
    /* since the last cairn_works_run or _await */
    cairn_status status;
    const void *failed_at; /* where a guarded work met a missing page; NULL: nowhere */
    struct cairn_sentence why;
};

#define CAIRN_WORKS_LISTS 2

struct cairn_works {
    struct cairn_home_stream *stream; /* owned */
    struct cairn_home *home;          /* borrowed */
    bool in_place;                    /* the host may follow addresses of the home */
    /* Works read memory that other processes may have taken pages of; of a home that is the host only. */
    bool is_guarded;
    struct cairn_works_list lists[CAIRN_WORKS_LISTS]; /* [list_count] */
    uint32_t list_count, capacity;
    uint32_t first,
        sent; /* of the lists that were sent: which is the first, and how many there are */
    atomic_bool is_begun; /* the stream has its staging */
};

/* items: of how many a list is made; lists: 1, or as many as are sent at a time. CAIRN_ERR_NO_MEMORY, or as
 * cairn_home_stream_open: close it. */
CAIRN_MUST_CHECK cairn_status cairn_works_open(struct cairn_works *works, struct cairn_home *home,
                                               uint32_t items, uint32_t lists,
                                               struct cairn_sentence *why);
/* Takes what lists are staged in, so that none lacks it when it runs. As cairn_home_stream_begin. */
CAIRN_MUST_CHECK cairn_status cairn_works_begin(struct cairn_works *works,
                                                struct cairn_sentence *why);
/* Also of what is all 0. */
void cairn_works_close(struct cairn_works *works);

/* One more, all else 0. */
struct cairn_work *cairn_works_add(struct cairn_works *works, enum cairn_work_kind kind);
void cairn_works_copy(struct cairn_works *works, void *to, const void *from, size_t bytes);
/* The part that a box has of the elements [first_elem, first_elem + elem_count) of a tensor.
 * `range` begins with first_elem; `packed` holds only the elements of the box, one behind another.
 * One of the two lies in the home, or neither. Packing and unpacking return the bytes of
 * `packed`. */
struct cairn_works_box {
    const struct cairn_box *box;
    const struct cairn_shape *shape;
    uint64_t first_elem, elem_count;
    size_t elem_bytes;
};
size_t cairn_works_pack(struct cairn_works *works, const struct cairn_works_box *of, void *packed,
                        const void *range);
size_t cairn_works_unpack(struct cairn_works *works, const struct cairn_works_box *of, void *range,
                          const void *packed);
/* A fold of sources [count] that the list keeps. */
void cairn_works_fold(struct cairn_works *works, float *acc, const struct cairn_source *sources,
                      uint32_t count, bool first, size_t elems);

/* The bytes at an address of the home, to read: until the next call. */
const void *cairn_works_get(struct cairn_works *works, const void *at, size_t bytes);
/* Where to write now what is at the address when the list has run. */
void *cairn_works_put(struct cairn_works *works, void *at, size_t bytes);
/* Does what is in the list; it is empty then. Not OK: of what was added since the last call nothing may be
 * used. */
cairn_status cairn_works_run(struct cairn_works *works, struct cairn_sentence *why);
/* The same, but what failed is told by the next call. */
void cairn_works_flush(struct cairn_works *works);

/* Begins the list; works that are added from now on go into the next one. A home takes only so many
 * lists: the caller awaits the first before it sends one more. */
void cairn_works_send(struct cairn_works *works);
/* Waits for the list that was sent first, and returns as cairn_works_run does. */
cairn_status cairn_works_await(struct cairn_works *works, struct cairn_sentence *why);
/* The list that is being made, with what became of it so far. */
const struct cairn_works_list *cairn_works_now(const struct cairn_works *works);

#endif
