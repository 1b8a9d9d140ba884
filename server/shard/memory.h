#ifndef CAIRN_SHARD_MEMORY_H
#define CAIRN_SHARD_MEMORY_H

#include <assert.h>
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

/* An arena is a large array of a shard. All its addresses are reserved when it is opened; its pages
 * are made by arena_make_pages, or when they are touched. State, and copies that members map, lie
 * in segments of a home (gpu/gpu.h). In the host's home these segments are memfds, so that a
 * supervisor can hold them for a restarted daemon. Landing slots and staging are anonymous memory.
 * An arena in a device's home has no pages in host memory. The shard's budget counts an arena at
 * its full size, touched or not. Any thread may use an arena. Only the loop thread shares an arena,
 * and only the thread that opened an arena closes it. */

struct arena {
    /* owned; begins at a cache line, and its bytes are 0 at first; NULL if `bytes` is 0 */
    uint8_t *base;
    size_t bytes;
    size_t begin; /* bytes of the mapping before `base`: proto/fabric/backend.h */
    /* owned; all 0: the arena is anonymous. In a device's home `base` is an address of the
     * device */
    struct home_memory memory;
    struct arena_shown *shown; /* owned: one for each segment; NULL: the arena is not shared */
    /* borrowed: the home whose device copies from and to the arena by itself; NULL: none */
    struct home *pins_for;
};

/* An empty arena, which may be closed. */
#define CAIRN_ARENA_NONE ((struct arena) { .base = NULL })

/* Opens an arena for a plane of state. `label` names the memfds in /proc. `stream` is the role that
 * the arena has in an update. The arena may be resized up to room_bytes later. On
 * CAIRN_ERR_NO_MEMORY `why` says how much was wanted. */
CAIRN_MUST_CHECK cairn_status arena_open_state(const char *label, uint64_t bytes,
                                               uint64_t room_bytes, enum update_stream stream,
                                               struct arena *arena_out, struct sentence *why);
/* Opens an arena that may be shared. The arena begins where its first segment begins, so its
 * `begin` is 0. */
CAIRN_MUST_CHECK cairn_status arena_open_shared(struct home *home, const char *label,
                                                uint64_t bytes, struct arena *arena_out,
                                                struct sentence *why);
/* Opens an arena that may be shared, in host memory. The arena may be resized up to room_bytes
 * later. */
CAIRN_MUST_CHECK cairn_status arena_open_shared_room(const char *label, uint64_t bytes,
                                                     uint64_t room_bytes, struct arena *arena_out,
                                                     struct sentence *why);
/* Resizes an arena that was opened with room_bytes. Its contents stay as home_memory_resize says.
 * New bytes have no pages yet; only complete segments that a device copies get pages, because they
 * are pinned here. The arena must not be shared. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status arena_resize(struct arena *arena, const char *label, uint64_t bytes,
                                           struct sentence *why);
CAIRN_MUST_CHECK cairn_status arena_open_scratch(const char *label, uint64_t bytes,
                                                 struct arena *arena_out, struct sentence *why);
/* Opens an arena in a home other than the host's. The arena gets all its memory in this call, and
 * the host may not dereference its addresses. */
CAIRN_MUST_CHECK cairn_status arena_open_home(struct home *home, const char *label, uint64_t bytes,
                                              struct arena *arena_out, struct sentence *why);
/* Makes the pages of these bytes, so that touching the bytes never ends the process. Where a
 * complete large page fits and the kernel has one, a large page is made (proto/base/machine.h).
 * Making pages takes 0.1 ms per MiB. Nobody else may use the bytes meanwhile. On
 * CAIRN_ERR_NO_MEMORY some pages are missing. If a control group's limit is exceeded, the kernel
 * kills the process instead; so the caller first checks that there is room (server/base/daemon.h).
 * Any thread, several at a time. */
CAIRN_MUST_CHECK cairn_status arena_make_pages(const struct arena *arena, uint64_t from,
                                               uint64_t bytes);
/* Notes that the device of `home` will copy from and to the arena. After this call, bytes that are
 * passed to arena_pin are pinned until they are given back. */
void arena_pins_for(struct arena *arena, struct home *home);
/* Pins bytes that have their pages; does nothing if no device copies them. If the status is not
 * CAIRN_OK, copies of these bytes are slower but correct, and `why` tells the reason. Any thread,
 * several at a time. */
CAIRN_MUST_CHECK cairn_status arena_pin(const struct arena *arena, uint64_t from, uint64_t bytes,
                                        struct sentence *why);
/* Gives pages of a scratch arena back to the system: all pages from the first that begins within
 * these bytes to the last that these bytes touch. Nobody may use these bytes, or the rest of the
 * last page. Giving back takes 0.2 ms per MiB. */
void arena_give(const struct arena *arena, uint64_t from, uint64_t bytes);
/* Gives back one segment of an arena that is not scratch. Nobody may use the segment's addresses
 * any longer, and the segment is no longer shown. Processes that have mapped the segment keep its
 * memory. */
void arena_give_segment(struct arena *arena, uint64_t segment);

/* Makes regions of the arena's segments, which members of this host may then map; only this process
 * writes to the arena. Returns false if the members cannot map the arena, and have to be sent its
 * contents. `note` describes the arena to the members, in all but the segment number; NULL: no
 * description. */
bool arena_share(struct arena *arena, struct fabric *fabric, const struct published_note *note);
void arena_show(const struct arena *arena, struct fabric_peer *peer);
/* Undoes arena_share; may be called again. If fabric_is_closed is true, the fabric has dropped the
 * regions already. */
void arena_unshare(struct arena *arena, bool fabric_is_closed);
/* Unmaps and closes the arena, which must not be shared any longer. The arena becomes
 * CAIRN_ARENA_NONE, so it may be closed again. */
void arena_close(struct arena *arena);

/* ==== budget ==== */

/* Admission, all in admit.c: nothing relies on memory that was not admitted.
 *
 *                   estimate        admit                     take              give back
 *   a job           need_of    ─►   admit_part           ─►   reserve_begin  ─► release_bytes
 *   a worker             └─────►    slots_count          ─►   slots_begin    ─► admit_left
 *   another layout  need_of    ─►   shard_job_take_all   ─►   reserve_begin  ─► shard_job_give_all,
 *                                                                             reserve_give
 *   anything else                   shard_job_take       ─►   malloc, arenas ─► shard_job_give
 *
 * The budget counts bytes from `admit` to `give back`; job->memory has them by kind. */

/* The bytes that a shard may use for state, landing, staging and replies. Bytes count as used from
 * the moment when they are promised, even before they are touched. Loop thread. */

struct budget {
    uint64_t limit_bytes, used_bytes;
};
/* Takes `bytes` from the budget. If the budget does not have so many left, takes nothing and
 * returns CAIRN_ERR_NO_MEMORY; `why` then has the numbers. */
CAIRN_MUST_CHECK cairn_status budget_take(struct budget *budget, uint64_t bytes, const char *what,
                                          struct sentence *why);
static inline void budget_give(struct budget *budget, uint64_t bytes)
{
    assert(bytes <= budget->used_bytes);
    budget->used_bytes -= bytes;
}

/* Returns the sum of all kinds that lie in host memory: all but `device`. */
uint64_t memory_sum(const struct memory_need *memory);
/* Takes bytes from the shard's budget, and counts them under `kind`, which points to a field of
 * job->memory. Returns what budget_take returns. shard_job_give gives bytes back. When the job
 * ends, all bytes that it still has are given back. */
CAIRN_MUST_CHECK cairn_status shard_job_take(struct shard_job *job, uint64_t *kind, uint64_t bytes,
                                             const char *what, struct sentence *why);
void shard_job_give(struct shard_job *job, uint64_t *kind, uint64_t bytes);
/* Like shard_job_take, but returns the memory, not zeroed; NULL: the budget or the host has
 * none, and `why` says so. counted_free gives both back; NULL is fine. */
void *counted_malloc(struct shard_job *job, uint64_t *kind, size_t bytes, const char *what,
                     struct sentence *why);
void counted_free(struct shard_job *job, uint64_t *kind, void *memory, size_t bytes);
/* Takes the bytes of all kinds that lie in host memory, as shard_job_take does for one kind. Takes
 * all of them, or none. */
CAIRN_MUST_CHECK cairn_status shard_job_take_all(struct shard_job *job,
                                                 const struct memory_need *bytes, const char *what,
                                                 struct sentence *why);
void shard_job_give_all(struct shard_job *job, const struct memory_need *bytes);
/* Returns, for each kind that lies in host memory, by how much `next` exceeds `now`; 0 for a kind
 * that does not exceed it. */
struct memory_need memory_beyond(const struct memory_need *next, const struct memory_need *now);

/* ==== reserve ==== */

/* A reserve takes memory that a job keeps for a long time. The memory is admitted first; then
 * separate threads make its pages. So a missing page never ends the process later, and heartbeats
 * continue while pages are made.
 *
 *   reserve_begin ─► waits for its turn on this shard ─► prepare: which bytes of which arenas
 *       ─► the host's lock; is there room? (server/base/daemon.h) ─► pages ─► done, the lock is free
 *
 * Only one shard of a host at a time is between the lock and `done`. So the memory that was
 * admitted for one shard is in use before the next shard looks for room. Loop thread. The job is
 * busy, and so not freed, until `done`. */

struct reserve;

/* A shard's memory. */
struct shard_memory {
    char *lock, *host_root; /* owned: memory_lock and host_root of struct shard_options */
    struct budget budget;
    uint64_t relay_cache_bytes; /* the part of the budget that the relay of each job may use */
    struct pool *pool;          /* owned: makes pages */
    struct pool *toucher;       /* owned: makes pages for which nobody waits, at low priority */
    struct reserve *reserves;   /* the requests for memory; one is worked on at a time */
    struct pool *releaser;      /* owned */
    LIST_HEAD(, arena_release) releases; /* memory that is being released: memory.c */
    uv_timer_t give_timer;   /* runs at the next loop iteration, if given_bytes > 0: admit.c */
    uint64_t given_bytes;    /* bytes of landing pages that this loop iteration has given back */
    uint64_t give_max_bytes; /* the limit of given_bytes: CAIRN_GIVE_MAX_BYTES */
};

/* A request for memory, by one job. The callbacks run on the loop thread, except for `took`, and
 * for `prepare` if prepares_on_thread. */
struct reserve_request {
    struct shard_job *job; /* borrowed */
    /* what the memory is for, for example "the state"; static. A refusal has this text and the
     * job's name */
    const char *what;
    /* Called when it is the request's turn. Adds the bytes that the request needs (reserve_add);
     * may add none. CAIRN_ERR_NO_MEMORY. */
    cairn_status (*prepare)(struct reserve *reserve, struct shard_job *job);
    /* `prepare` is called on another thread, because it may read a million extents. This is
     * possible only if the data that `prepare` reads does not change. */
    bool prepares_on_thread;
    /* Called when there is room for the bytes, before their pages are made. `done` is called later.
     * May be NULL. */
    void (*judged)(const struct reserve_request *request);
    /* Called when `bytes` bytes at `at` have their pages. Any thread. May be NULL. */
    void (*took)(struct shard_job *job, const void *at, uint64_t bytes);
    /* Called at the end, once; not called after the shard was closed. CAIRN_ERR_NO_MEMORY: there
     * was no room, and `why` has the numbers. CAIRN_ERR_BUSY: another process kept the lock.
     * CAIRN_ERR_CANCELED: the job leaves. If the status is not CAIRN_OK, none of the memory may be
     * relied on. */
    void (*done)(const struct reserve_request *request, cairn_status status,
                 const struct sentence *why);
    /* not used here, but by `done` */
    uint64_t member;
    struct request answer;
};

/* Begins the reserve. On CAIRN_ERR_NO_MEMORY nothing has begun, and `done` is not called. */
CAIRN_MUST_CHECK cairn_status reserve_begin(const struct reserve_request *request,
                                            struct sentence *why);
/* Adds these bytes of an arena to the reserve; neighbouring ranges are merged. Call it within
 * `prepare`. The arena must not change until `done`. */
CAIRN_MUST_CHECK cairn_status reserve_add(struct reserve *reserve, const struct arena *arena,
                                          uint64_t from, uint64_t bytes);
/* Bytes of shared memory that nobody uses any longer. */
struct shared_span {
    void *at; /* at the beginning of a page */
    size_t bytes;
};
/* Gives the pages of these spans back to the system, after all earlier requests have got their
 * pages. Later requests may get the same addresses. Takes ownership of `spans`, which was
 * malloc'ed. If there is no memory for the request, the pages are not given back. */
void reserve_give(struct shard_job *job, struct shared_span *spans, size_t span_count);
/* Frees all requests. Call it after the pool of struct shard_memory is closed. */
void reserves_free(struct shard_daemon *shard);

/* ==== plane ==== */

/* The planes of a job's part: parameters, the optimizer's moments and the sums of a round. A table
 * in memory.c defines the planes, one in each line. Code that handles planes goes through all of
 * them by number, so a new plane needs only one more line.
 *
 *   local elements   0 ......... host_from ......... local_end
 *                    on a device │ in host memory
 *
 * All planes of an element lie in one home, because an update works in one home. The elements are
 * accessed by works of that home (base.h), on any thread. The thread that opens planes also closes
 * them. */

struct area;
struct area_place;

/* The plane of the current round's sums. Only here it has a number, and not on the wire. */
#define CAIRN_PLANE_SUM CAIRN_PLANE_COUNT
#define CAIRN_PLANES    (CAIRN_PLANE_SUM + 1)

/* The form in which the kernels see an extent of this shard. Forms have the numbers of
 * map.extents. */
struct form {
    bool trained;
    /* wire: the dtype in published copies; master: of the parameters, f32. For a blob both are
     * u8 */
    cairn_dtype wire, master;
    uint32_t group;     /* if trained: the index in the spec's groups */
    uint32_t planes;    /* bits 1u << CAIRN_PLANE_...: the planes that the extent keeps */
    uint64_t wire_byte; /* the offset of the extent's first element in a published copy */
};

/* True if the plane is state: snapshots store the plane, and members fetch and write it. Any number
 * may be passed. */
bool plane_is_state(int plane);
bool form_keeps(const struct form *form, enum plane plane);
/* True if the extent keeps the plane, and the plane is state. Any number may be passed as
 * `plane`. */
bool form_stores(const struct form *form, int plane);
cairn_dtype form_dtype(const struct form *form, enum plane plane);
/* Returns the bytes that `elems` elements of the extent take in the plane; 0 if the extent does not
 * keep the plane. */
uint64_t form_bytes(const struct form *form, enum plane plane, uint64_t elems);

/* In host memory a plane has a word of 4 bytes for each local element. The bytes of a blob lie
 * dense from the beginning of the blob's extent, and the extent's other words are never touched.
 * The words of extents that do not keep the plane are never touched either, so they take no memory.
 * On a device even untouched memory is taken. So on a device the extents that keep a plane are
 * packed one after the other, each at a multiple of CAIRN_PLANE_ALIGN (below). A plane that no
 * extent keeps is empty. */
struct state_planes {
    const struct shard_map *map; /* borrowed */
    const struct form *forms;    /* borrowed: [map->extent_count] */
    /* borrowed: [map->extent_count] places on the device; NULL: no state lies on a device */
    const struct area_place *places;
    /* local elements from here on lie in host memory; a chunk begins here. 0: no element lies on a
     * device; CAIRN_PLANES_ALL: all elements lie on the device */
    uint64_t host_from;
    uint64_t room_elems; /* how many local elements, at least, have addresses in host memory */
    /* the job is parked, so the elements before host_from lie in host memory, too (part.h) */
    bool parked;
    struct arena host[CAIRN_PLANES]; /* owned; only memory.c uses these arenas */
    /* owned: memory for the elements before host_from; only memory.c and switch.c use the areas */
    struct area *areas;
};
#define CAIRN_PLANES_ALL UINT64_MAX

#define CAIRN_PLANE_ALIGN 512u
/* The memory that state takes on a device is counted in multiples of this, because cards allocate
 * memory in such units. */
#define CAIRN_PLANE_UNIT_BYTES ((uint64_t)2 << 20)
static inline uint64_t plane_units(uint64_t bytes)
{
    return (bytes + CAIRN_PLANE_UNIT_BYTES - 1) / CAIRN_PLANE_UNIT_BYTES * CAIRN_PLANE_UNIT_BYTES;
}

/* Places an extent's part on a device at the end of a plane. *end_bytes is the size of the plane
 * before the call, and its size with the part afterwards. Returns where the part begins in the
 * plane. */
uint64_t plane_place(const struct form *form, enum plane plane, uint64_t elems,
                     uint64_t *end_bytes);
/* Returns how many elements of an extent lie before a local element. */
uint64_t extent_before(const struct local_extent *extent, uint64_t local_elem);

/* Returns the end of the local elements that lie on a device now. */
uint64_t planes_device_end(const struct state_planes *planes);

/* Opens a job's planes in host memory, all 0, for the elements from host_from on. The planes may
 * later grow to room_elems local elements. After CAIRN_ERR_NO_MEMORY close `planes`, too. */
CAIRN_MUST_CHECK cairn_status planes_open(struct state_planes *planes, const struct shard_map *map,
                                          const struct form *forms, uint64_t host_from,
                                          uint64_t room_elems, struct sentence *why);
/* Begins planes of which no memory is open. planes_adopt then opens one plane after the other,
 * out of the segments of a process that has ended: fds is [planes_segments]. Takes over the
 * descriptors, even on failure. `bytes`: as arena.bytes was. CAIRN_ERR_IO, CAIRN_ERR_NO_MEMORY. */
void planes_init(struct state_planes *planes, const struct shard_map *map, const struct form *forms,
                 uint64_t host_from, uint64_t room_elems);
uint64_t planes_segments(enum plane plane, uint64_t bytes);
CAIRN_MUST_CHECK cairn_status planes_adopt(struct state_planes *planes, enum plane plane,
                                           const int *fds, uint64_t bytes, struct sentence *why);
/* Closes the planes on another thread. */
void planes_release(struct state_planes *planes, struct shard_daemon *shard);
/* Adds to the reserve all that the extents keep in host memory, without the gaps between extents.
 * Call it within `prepare` of the reserve. */
CAIRN_MUST_CHECK cairn_status planes_reserve(const struct state_planes *planes,
                                             struct reserve *reserve);
/* Adds addresses for the elements of another map of the same shard. New elements have no pages yet,
 * and existing elements do not move. All planes must lie in host memory. After CAIRN_ERR_NO_MEMORY
 * some planes may have grown. */
CAIRN_MUST_CHECK cairn_status planes_grow(struct state_planes *planes, const struct shard_map *map,
                                          const struct form *forms, struct sentence *why);
/* Adds to the reserve the memory of `elems` elements from local_elem on, in a plane in host memory.
 * Call it within `prepare` of the reserve. The elements belong to an extent that begins at local
 * element `first` and has the form `form`. */
CAIRN_MUST_CHECK cairn_status planes_reserve_elems(const struct state_planes *planes,
                                                   enum plane plane, const struct form *form,
                                                   uint64_t first, uint64_t local_elem,
                                                   uint64_t elems, struct reserve *reserve);
/* Returns the bytes of state that the extents keep. */
uint64_t planes_state_bytes(const struct state_planes *planes);
/* Returns the address of a local element of an extent, in the element's home. NULL: the extent does
 * not keep the plane. */
void *planes_at(const struct state_planes *planes, enum plane plane, size_t extent,
                uint64_t local_elem);
/* Returns what planes_at returns, for an extent of this map or of another map. The extent begins at
 * local element `first`. */
void *planes_home_at(const struct state_planes *planes, const struct form *form,
                     const struct area_place *place, enum plane plane, uint64_t first,
                     uint64_t local_elem);
/* Returns what planes_home_at returns for an element in host memory. */
void *planes_host_at(const struct state_planes *planes, const struct form *form, enum plane plane,
                     uint64_t first, uint64_t local_elem);
/* Returns how many elements of the extent lie one after the other from local_elem on: up to the end
 * of the extent, or up to host_from. The elements of a chunk always lie one after the other. */
uint64_t planes_dense(const struct state_planes *planes, size_t extent, uint64_t local_elem);
/* Adds copies of elements of one extent to elements of another, in every plane of state that both
 * extents keep. */
void planes_copy(struct works *works, const struct state_planes *to, size_t to_extent,
                 uint64_t to_elem, const struct state_planes *from, size_t from_extent,
                 uint64_t from_elem, uint64_t elems);

/* ==== area ==== */

/* Areas hold the parts of a job's planes that lie on a device. One area is taken for the extents
 * that the job has when it is made, and one more area for the new extents of each later layout.
 * Extents that stay keep their places. In an area the planes follow each other, and in a plane the
 * extents that keep the plane follow each other. When a segment of an area is no longer used, the
 * segment is given back to the device. The area is freed with its last segment.
 *
 * A place does not change, because the view that has the place does not change (collect.h). So any
 * thread may use a place. Everything else is used on the loop thread. */

struct area_segment {
    bool is_gone; /* the segment was given back to the device */
    bool in_use;  /* marked by place_mark */
};

struct area {
    struct area *next;  /* in planes.areas */
    uint32_t refs;      /* references from the list planes.areas, and from places */
    struct arena arena; /* owned */
    struct arena to;    /* owned: the memory to which the area is being moved (park, part.h) */
    struct area_segment *segments; /* owned: one for each segment of `arena` */
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
/* areas_unmark removes all marks. place_mark marks the segments of a place of `elems` elements.
 * areas_trim gives back the segments that are not marked. No work on the areas may be under way. */
void areas_unmark(struct state_planes *planes);
void place_mark(const struct area_place *place, const struct form *form, uint64_t elems);
void areas_trim(struct state_planes *planes, struct shard_daemon *shard);
/* Returns the bytes of device memory that the areas take, including bytes that no element uses. */
uint64_t areas_bytes(const struct state_planes *planes);

/* ==== release ==== */

/* Gives memory back to the system. The work is done on another thread; these functions are called
 * on the loop thread. */

/* Releases the arena, whose memory nobody may touch any longer. The arena becomes
 * CAIRN_ARENA_NONE. */
void arena_release(struct shard_daemon *shard, struct arena *arena);
/* Calls `free_it` on the releasing thread to free `what`, which nobody else may use any longer. */
void release_by(struct shard_daemon *shard, void (*free_it)(void *what), void *what);
/* Gives the bytes back to the budget, and answers the request (may be NULL), when all memory that
 * was released before is unmapped. Does not block. */
void release_bytes(struct shard_daemon *shard, uint64_t budget_bytes,
                   const struct request *request);
/* Releases what is left. Call it when the shard closes, after its pools are closed. */
void release_close(struct shard_daemon *shard);

/* ==== made pages ==== */

/* Notes which pages of a reserve (above) exist already. Threads fill these pages while other pages
 * are still being made. */

struct made_pages_span {
    uintptr_t at, end;
};

struct made_pages {
    pthread_mutex_t mutex; /* guards all fields below */
    pthread_cond_t changed;
    struct made_pages_span *list; /* owned: no two spans touch */
    size_t count, capacity;
    bool is_over, all; /* is_over: no more pages will be made; all: every page exists */
};

void made_pages_open(struct made_pages *made);
void made_pages_close(struct made_pages *made);
/* Notes that these pages exist. Any thread. */
void made_pages_add(struct made_pages *made, const void *at, uint64_t bytes);
/* Notes that no more pages will be made. If `all` is true, every page exists; otherwise the reserve
 * was given up. Only the first call has an effect on `all`. Any thread. */
void made_pages_end(struct made_pages *made, bool all);
/* Waits until these pages exist. Returns false if they will not be made. Any thread. */
bool made_pages_await(struct made_pages *made, const void *at, uint64_t bytes);

#endif
