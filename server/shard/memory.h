#ifndef CAIRN_SHARD_MEMORY_H
#define CAIRN_SHARD_MEMORY_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#include "gpu/gpu.h"
#include "proto/base/text.h"
#include "proto/fabric/backend.h"
#include "proto/fabric/fabric.h"
#include "proto/geometry/layout.h"
#include "proto/geometry/tensor.h"
#include "server/shard/base.h"
#include "server/shard/need.h"

/* ==== arena ==== */

/* A large array of a shard. Its addresses are reserved all at once; its pages are made when they are taken
 * (below) or touched. State and the copies that members map lie in a home's segments (gpu/gpu.h); in the
 * host's home these are memfds, so that a supervisor can hold them for a restarted daemon. Landing slots
 * and staging are anonymous. An arena in a device's home has no pages in host memory. The shard's budget
 * counts an arena at its full size, touched or not. Any thread may use an arena. Only the loop thread
 * shares an arena, and only the thread that opened an arena closes it. */

struct arena {
    uint8_t *base; /* owned; at the beginning of a line, zero at first; NULL if bytes is 0 */
    size_t bytes;
    size_t begin; /* bytes of the mapping before `base`: proto/fabric/backend.h */
    /* owned; all 0: anonymous. In a device's home, base is an address there */
    struct home_memory memory;
    struct arena_shown *shown; /* owned: [segments]; NULL: no process maps the arena */
    /* borrowed: its device copies from and to the arena by itself; NULL: none */
    struct home *pins_for;
};

/* An empty arena, which may be closed. */
#define CAIRN_ARENA_NONE ((struct arena) { .base = NULL })

/* `label` names the memfds in /proc; `stream`: how the loops of an update use the arena. The arena may be
 * resized up to room_bytes later. CAIRN_ERR_NO_MEMORY says how much was wanted. */
CAIRN_MUST_CHECK cairn_status arena_open_state(const char *label, uint64_t bytes,
                                               uint64_t room_bytes, enum update_stream stream,
                                               struct arena *arena_out, struct sentence *why);
/* Opens an arena that may be shared. It begins where its first segment begins: `begin` is 0. */
CAIRN_MUST_CHECK cairn_status arena_open_shared(struct home *home, const char *label,
                                                uint64_t bytes, struct arena *arena_out,
                                                struct sentence *why);
/* Opens such an arena in the host's memory. It may be resized up to room_bytes later. */
CAIRN_MUST_CHECK cairn_status arena_open_shared_room(const char *label, uint64_t bytes,
                                                     uint64_t room_bytes, struct arena *arena_out,
                                                     struct sentence *why);
/* Resizes an arena that was opened with room_bytes. The contents stay, as home_memory_resize says. The new
 * bytes have no pages yet, except complete segments that a device copies: these are pinned again. The arena
 * must not be shared. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status arena_resize(struct arena *arena, const char *label, uint64_t bytes,
                                           struct sentence *why);
CAIRN_MUST_CHECK cairn_status arena_open_scratch(const char *label, uint64_t bytes,
                                                 struct arena *arena_out, struct sentence *why);
/* Opens an arena in a home other than the host's: it gets all its memory at once, and the host may not
 * dereference its addresses. */
CAIRN_MUST_CHECK cairn_status arena_open_home(struct home *home, const char *label, uint64_t bytes,
                                              struct arena *arena_out, struct sentence *why);
/* Makes the pages of these bytes, so that touching them never ends the process: large pages if the kernel
 * has them (proto/base/machine.h), wherever a complete large page is wanted. Making pages takes 0.1 ms per
 * MiB. Nobody else may use the bytes meanwhile. CAIRN_ERR_NO_MEMORY: some pages are missing; past a control
 * group's limit the kernel kills the process instead, so check first that there is room
 * (server/base/daemon.h). Any thread, several at a time. */
CAIRN_MUST_CHECK cairn_status arena_make_pages(const struct arena *arena, uint64_t from,
                                               uint64_t bytes);
/* Notes that from now on a device's home copies from and to the arena. Bytes passed to arena_pin are then
 * pinned until they are given back. */
void arena_pins_for(struct arena *arena, struct home *home);
/* Pins bytes that were taken; does nothing if no device copies them. Not CAIRN_OK: copies of these bytes
 * are slower, as `why` says, but correct. Any thread, several at a time. */
CAIRN_MUST_CHECK cairn_status arena_pin(const struct arena *arena, uint64_t from, uint64_t bytes,
                                        struct sentence *why);
/* Gives back pages of a scratch arena to the system: from the first page that begins within these bytes to
 * the last page that they touch. Nobody may use these bytes, or the rest of the last page. This takes 0.2
 * ms per MiB. */
void arena_give(const struct arena *arena, uint64_t from, uint64_t bytes);
/* Gives back one segment of an arena that is not scratch. Nobody may use the segment's addresses any
 * longer, and the segment is no longer shown. Processes that have mapped the segment keep it. */
void arena_give_segment(struct arena *arena, uint64_t segment);

/* Lets members of this host map the arena, a region for each segment; only this process writes to it.
 * False: the members may not map the arena, and are sent its contents instead. `note` describes the arena,
 * except for the segment number; NULL: no description. */
bool arena_share(struct arena *arena, struct fabric *fabric, const struct published_note *note);
void arena_show(const struct arena *arena, struct fabric_peer *peer);
/* Safe to call again. `fabric_is_closed`: the fabric has dropped its regions already. */
void arena_unshare(struct arena *arena, bool fabric_is_closed);
/* Unmaps and closes the arena, which must not be shared any longer; it becomes CAIRN_ARENA_NONE. Safe to
 * call again. */
void arena_close(struct arena *arena);

/* ==== budget ==== */

/* Bytes that a shard may use for state, landing, staging and replies. Bytes count from when they are
 * promised, touched or not. Loop thread. */

struct budget {
    uint64_t limit_bytes, used_bytes;
};
/* Takes bytes of the budget. If `bytes` more would exceed the limit, takes nothing and returns
 * CAIRN_ERR_NO_MEMORY, with the numbers. */
CAIRN_MUST_CHECK cairn_status budget_take(struct budget *budget, uint64_t bytes, const char *what,
                                          struct sentence *why);
void budget_give(struct budget *budget, uint64_t bytes);

/* The sum of all kinds that lie in host memory. */
uint64_t memory_sum(const struct memory_need *memory);
/* Takes bytes of the shard's budget, and counts them under `kind`, which points to a field of job->memory.
 * Returns as budget_take. shard_job_give gives the bytes back. The end of the job gives back the rest. */
CAIRN_MUST_CHECK cairn_status shard_job_take(struct shard_job *job, uint64_t *kind, uint64_t bytes,
                                             const char *what, struct sentence *why);
void shard_job_give(struct shard_job *job, uint64_t *kind, uint64_t bytes);
/* The same for all kinds that lie in host memory: takes all of these bytes, or none. */
CAIRN_MUST_CHECK cairn_status shard_job_take_all(struct shard_job *job,
                                                 const struct memory_need *bytes, const char *what,
                                                 struct sentence *why);
void shard_job_give_all(struct shard_job *job, const struct memory_need *bytes);
/* Returns by how much `next` is more than `now`, for each of these kinds; 0 for a kind that is not more. */
struct memory_need memory_beyond(const struct memory_need *next, const struct memory_need *now);

/* ==== reserve ==== */

/* Memory that a job takes for long. The memory is admitted first; then special threads make its pages. So a
 * missing page never ends the job later, and heartbeats continue meanwhile.
 *
 *   reserve_begin ─► waits for its turn on this shard ─► prepare: which bytes of which arenas
 *       ─► the host's lock; is there room? (server/base/daemon.h) ─► pages ─► done, the lock is free
 *
 * The shards of a host do this one at a time: the memory admitted for one shard is in use before the next
 * shard looks for room. Loop thread. The job is kept (busy) until `done`. */

struct reserve;

/* A shard's memory. */
struct shard_memory {
    char *lock, *host_root; /* owned: as in shard_options */
    struct budget budget;
    uint64_t relay_cache_bytes; /* of the budget, the most for each job's relay */
    struct pool *pool;          /* owned: makes pages */
    struct pool *toucher;       /* owned: makes the pages that nobody waits for, at low priority */
    struct reserve *reserves;   /* the requests for memory, one at a time */
    struct pool *releaser;      /* owned */
    LIST_HEAD(, arena_release) releases; /* memory that is being unmapped: memory.c */
    uv_timer_t give_timer;   /* for the next loop iteration, while given_bytes > 0: members.c */
    uint64_t given_bytes;    /* landing pages that this iteration gave back */
    uint64_t give_max_bytes; /* for each iteration; CAIRN_GIVE_MAX_BYTES */
};

/* A request for memory, by one job. The callbacks run on the loop thread, except for `took`, and
 * for `prepare` if prepares_on_thread. */
struct reserve_request {
    struct shard_job *job; /* borrowed */
    const char *what;      /* "the state": static; the job's name follows it in a refusal */
    /* Called when it is the request's turn: adds the bytes that the request needs, or none.
     * CAIRN_ERR_NO_MEMORY. */
    cairn_status (*prepare)(struct reserve *reserve, struct shard_job *job);
    /* `prepare` runs on a thread, because it may read a million extents. The data that it reads does not
     * change. */
    bool prepares_on_thread;
    /* Called when there is room for the bytes, before their pages are made; `done` follows. May be NULL. */
    void (*judged)(const struct reserve_request *request);
    /* Called when `bytes` bytes at `at` have their pages. Any thread. May be NULL. */
    void (*took)(struct shard_job *job, const void *at, uint64_t bytes);
    /* CAIRN_ERR_NO_MEMORY, with the numbers; CAIRN_ERR_BUSY: another process kept the lock;
     * CAIRN_ERR_CANCELED: the job leaves. Then none of the memory may be relied on. Called once, but not
     * after the shard was closed. */
    void (*done)(const struct reserve_request *request, cairn_status status,
                 const struct sentence *why);
    /* for the use of `done` */
    uint64_t member;
    struct request answer;
};

/* CAIRN_ERR_NO_MEMORY: the reserve has not begun. */
CAIRN_MUST_CHECK cairn_status reserve_begin(const struct reserve_request *request,
                                            struct sentence *why);
/* Call within `prepare`: adds these bytes of an arena, which must not change until `done`. Neighbouring
 * ranges are merged. */
CAIRN_MUST_CHECK cairn_status reserve_add(struct reserve *reserve, const struct arena *arena,
                                          uint64_t from, uint64_t bytes);
/* Bytes of shared memory that nobody uses any longer. */
struct shared_span {
    void *at; /* at the beginning of a page */
    size_t bytes;
};
/* Gives the pages of these spans back to the system once all earlier requests have their pages. Later
 * requests may get the same addresses. Takes ownership of the malloc'ed list. If there is no memory to do
 * this, the pages stay. */
void reserve_give(struct shard_job *job, struct shared_span *spans, size_t span_count);
/* Call it after the shard's pool is closed. */
void reserves_free(struct shard_daemon *shard);

/* ==== plane ==== */

/* The planes of a job's part: parameters, the optimizer's moments and the sums of a round. One table
 * (memory.c) defines each plane, and code that handles planes walks all planes by number. So a new plane
 * needs only one more line of the table.
 *
 *   local elements   0 ......... host_from ......... local_end
 *                    on a device │ in host memory
 *
 * All planes of an element lie in one home, because an update works in one home. Works of that home
 * (base.h) access the elements, on any thread. The thread that opens planes closes them. */

struct area;
struct area_place;

/* The sums of the current round have no number on the wire. */
#define CAIRN_PLANE_SUM CAIRN_PLANE_COUNT
#define CAIRN_PLANES    (CAIRN_PLANE_SUM + 1)

/* The form of an extent on this shard, as the kernels see it; numbered as map.extents. */
struct form {
    bool trained;
    cairn_dtype wire, master; /* f32; for a blob both are u8 */
    uint32_t group;           /* of a trained tensor, in the spec's groups */
    uint32_t planes;          /* bits 1u << CAIRN_PLANE_...: the planes that the extent keeps */
    uint64_t wire_byte;       /* the offset of the extent's first element in a published copy */
};

/* True if the plane is state: snapshots store it, and members fetch and write it. Accepts any number. */
bool plane_is_state(int plane);
bool form_keeps(const struct form *form, enum plane plane);
/* True if the extent keeps the plane, and the plane is state. Accepts any number. */
bool form_stores(const struct form *form, int plane);
cairn_dtype form_dtype(const struct form *form, enum plane plane);
/* The bytes of `elems` elements of the extent; 0: the extent does not keep the plane. */
uint64_t form_bytes(const struct form *form, enum plane plane, uint64_t elems);

/* In host memory a plane is indexed by local element, a word of 4 bytes each. A blob's bytes lie dense from
 * where its extent begins, and the blob's other words are never touched. The words of extents that do not
 * keep the plane are never touched either. On a device untouched memory would be taken, too. So on a device
 * the extents that keep a plane are packed one after the other, each at a multiple of CAIRN_PLANE_ALIGN
 * (below). A plane that no extent keeps is empty. */
struct state_planes {
    const struct shard_map *map;     /* borrowed */
    const struct form *forms;        /* borrowed: [map->extent_count] */
    const struct area_place *places; /* borrowed: likewise; NULL: no device */
    /* at the beginning of a chunk; 0: no device; CAIRN_PLANES_ALL: all elements lie on the device */
    uint64_t host_from;
    uint64_t room_elems; /* local elements that have addresses in host memory, at least */
    bool parked;         /* the elements before host_from lie in host memory for now: reshard.h */
    struct arena host[CAIRN_PLANES]; /* owned; only memory.c uses them */
    /* owned: the elements before host_from; only memory.c and switch.c use them */
    struct area *areas;
};
#define CAIRN_PLANES_ALL UINT64_MAX

#define CAIRN_PLANE_ALIGN 512u
/* Memory of a device is taken in multiples of this, because cards allocate it in such units. */
#define CAIRN_PLANE_UNIT_BYTES ((uint64_t)2 << 20)
static inline uint64_t plane_units(uint64_t bytes)
{
    return (bytes + CAIRN_PLANE_UNIT_BYTES - 1) / CAIRN_PLANE_UNIT_BYTES * CAIRN_PLANE_UNIT_BYTES;
}

/* Returns where an extent's part on a device begins in a plane that has *end_bytes bytes so far, and adds
 * the part to *end_bytes. */
uint64_t plane_place(const struct form *form, enum plane plane, uint64_t elems,
                     uint64_t *end_bytes);
/* How many elements of an extent lie before a local element. */
uint64_t extent_before(const struct local_extent *extent, uint64_t local_elem);

/* Returns the end of the local elements that lie on a device now. */
uint64_t planes_device_end(const struct state_planes *planes);

/* Opens a job's planes in host memory, all 0: elements from host_from on, which may later grow to
 * room_elems local elements. On CAIRN_ERR_NO_MEMORY close `planes` all the same. */
CAIRN_MUST_CHECK cairn_status planes_open(struct state_planes *planes, const struct shard_map *map,
                                          const struct form *forms, uint64_t host_from,
                                          uint64_t room_elems, struct sentence *why);
/* Closes the planes on another thread. */
void planes_release(struct state_planes *planes, struct shard_daemon *shard);
/* Call within `prepare` of a reserve: adds all that the extents keep in host memory, without the gaps
 * between them. */
CAIRN_MUST_CHECK cairn_status planes_reserve(const struct state_planes *planes,
                                             struct reserve *reserve);
/* Adds addresses for the elements of another map of the same shard: the new ones have no pages, and the
 * existing ones do not move. Only for planes in host memory. CAIRN_ERR_NO_MEMORY: some planes may have
 * grown. */
CAIRN_MUST_CHECK cairn_status planes_grow(struct state_planes *planes, const struct shard_map *map,
                                          const struct form *forms, struct sentence *why);
/* Call within `prepare` of a reserve: adds the memory of `elems` elements from local_elem on, in a plane in
 * host memory. `first`: the local element at which their extent begins; `form` is that extent's. */
CAIRN_MUST_CHECK cairn_status planes_reserve_elems(const struct state_planes *planes,
                                                   enum plane plane, const struct form *form,
                                                   uint64_t first, uint64_t local_elem,
                                                   uint64_t elems, struct reserve *reserve);
/* Returns the bytes of state that the extents keep. */
uint64_t planes_state_bytes(const struct state_planes *planes);
/* Returns the address of a local element of an extent, in its home. NULL: the extent does not keep the
 * plane. */
void *planes_at(const struct state_planes *planes, enum plane plane, size_t extent,
                uint64_t local_elem);
/* Returns the same for an extent that begins at local element `first`, of this map or of another one. */
void *planes_home_at(const struct state_planes *planes, const struct form *form,
                     const struct area_place *place, enum plane plane, uint64_t first,
                     uint64_t local_elem);
/* Returns the same in host memory. */
void *planes_host_at(const struct state_planes *planes, const struct form *form, enum plane plane,
                     uint64_t first, uint64_t local_elem);
/* Returns how many elements of the extent lie dense from local_elem on, in form_dtype: up to the extent's
 * end, or to host_from. A chunk's elements always lie dense. */
uint64_t planes_dense(const struct state_planes *planes, size_t extent, uint64_t local_elem);
/* Copies elements within an extent, of each plane of the state that both extents keep. */
void planes_copy(struct works *works, const struct state_planes *to, size_t to_extent,
                 uint64_t to_elem, const struct state_planes *from, size_t from_extent,
                 uint64_t from_elem, uint64_t elems);

/* ==== area ==== */

/* Areas: the parts of a job's planes that lie on a device. One area is taken for the extents that the job
 * has when it is made, and one area for the new extents of each later layout. Extents that stay keep their
 * places. In an area the planes are consecutive, and in a plane the extents that keep it are consecutive. A
 * segment of an area that is no longer used is given back to the device, and the area is freed with its
 * last segment.
 *
 * A place does not change, just as the view that has it does not (collect.h). So any thread may use a
 * place. Everything else: loop thread. */

struct area_segment {
    bool is_gone; /* it was given back to the device */
    bool in_use;  /* for place_mark */
};

struct area {
    struct area *next;             /* in planes.areas */
    uint32_t refs;                 /* by that list, and by places */
    struct arena arena;            /* owned */
    struct arena to;               /* owned: the memory to which it is being moved: reshard.h */
    struct area_segment *segments; /* owned: of the arena */
};

/* Where an extent's part on a device lies. */
struct area_place {
    struct area *area;         /* counted; NULL: nothing of the extent lies on a device */
    uint64_t at[CAIRN_PLANES]; /* byte offsets in the area, for the planes that the extent keeps */
};

/* Adds an area, all 0. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status area_add(struct state_planes *planes, struct home *device,
                                       uint64_t bytes, struct area **area_out,
                                       struct sentence *why);
/* Drops a reference; NULL is fine. */
void area_unref(struct area *area);
/* place_mark marks a place of `elems` elements, and areas_trim gives back the segments without a marked
 * place. No work on the areas may be under way. */
void areas_unmark(struct state_planes *planes);
void place_mark(const struct area_place *place, const struct form *form, uint64_t elems);
void areas_trim(struct state_planes *planes, struct shard_daemon *shard);
/* The bytes that the areas take of the device, including bytes that no element uses. */
uint64_t areas_bytes(const struct state_planes *planes);

/* ==== release ==== */

/* Gives memory back to the system on another thread. Loop thread. */

/* The arena becomes CAIRN_ARENA_NONE: nobody may touch its memory any longer. */
void arena_release(struct shard_daemon *shard, struct arena *arena);
/* Calls `free_it` on the other thread to free `what`, which nobody else may use any longer. */
void release_by(struct shard_daemon *shard, void (*free_it)(void *what), void *what);
/* Waits, without blocking, until all memory released before is unmapped; then gives the bytes back to the
 * budget, and answers the request (may be NULL). */
void release_bytes(struct shard_daemon *shard, uint64_t budget_bytes,
                   const struct request *request);
/* Call when the shard closes, after its pools. */
void release_close(struct shard_daemon *shard);

/* ==== made pages ==== */

/* Which pages of a reserve (above) exist already. Threads use this to fill some pages while other pages are
 * still being made. */

struct made_pages_span {
    uintptr_t at, end;
};

struct made_pages {
    pthread_mutex_t mutex; /* guards all fields below */
    pthread_cond_t changed;
    struct made_pages_span *list; /* owned: no two spans touch */
    size_t count, capacity;
    bool is_over, all; /* is_over: no more pages will be made; all: every page was made */
};

void made_pages_open(struct made_pages *made);
void made_pages_close(struct made_pages *made);
/* Notes that these pages exist. Any thread. */
void made_pages_add(struct made_pages *made, const void *at, uint64_t bytes);
/* Notes that no more pages will be made. `all`: every page exists; otherwise the reserve was given up. Only
 * the first call has an effect. Any thread. */
void made_pages_end(struct made_pages *made, bool all);
/* Waits until these pages exist. False: they will not be made. Any thread. */
bool made_pages_await(struct made_pages *made, const void *at, uint64_t bytes);

#endif
