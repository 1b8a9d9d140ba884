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

/* ==== arena ==== */

/* A large array of a shard. Its addresses are reserved as a whole, its pages when they are taken
 * (below) or touched. State and the copies that members map lie in a home's segments
 * (gpu/gpu.h); in the host's home these are memfds, so that a supervisor can hold them for a
 * restarted daemon. Landing slots and staging are anonymous. An arena in a device's home has no
 * pages of the host. The shard's budget counts an arena at its full size, touched or not. Any
 * thread may use an arena; only the loop thread shares it, and the thread that opened it closes
 * it. */

struct arena {
    uint8_t *base; /* owned; at the beginning of a line, zero at first; NULL if bytes is 0 */
    size_t bytes;
    size_t begin; /* bytes of the mapping before it: proto/fabric/backend.h */
    /* owned; all 0: anonymous. In a device's home, base is an address there */
    struct home_memory memory;
    struct arena_shown *shown; /* owned: [segments]; NULL: nobody maps it */
    struct home *pins_for;     /* borrowed: whose device copies it by itself; NULL: none */
};

/* An arena of nothing: may be closed. */
#define CAIRN_ARENA_NONE ((struct arena) { .base = NULL })

/* `label` names the memfds in /proc; `stream`: what it is to the loops of an update; it may get room_bytes
 * later. CAIRN_ERR_NO_MEMORY says how much it wanted. */
CAIRN_MUST_CHECK cairn_status arena_open_state(const char *label, uint64_t bytes,
                                               uint64_t room_bytes, enum update_stream stream,
                                               struct arena *arena_out, struct sentence *why);
/* Opens an arena that may be shared. It begins where its first segment begins: `begin` is 0. */
CAIRN_MUST_CHECK cairn_status arena_open_shared(struct home *home, const char *label,
                                                uint64_t bytes, struct arena *arena_out,
                                                struct sentence *why);
/* The same in the host's memory, and it may get room_bytes later. */
CAIRN_MUST_CHECK cairn_status arena_open_shared_room(const char *label, uint64_t bytes,
                                                     uint64_t room_bytes, struct arena *arena_out,
                                                     struct sentence *why);
/* Other bytes, of one that was opened with room: what it has stays, but as home_memory_resize says. Its
 * new bytes have no pages yet, but for whole segments of what a device copies: these are pinned again. It is
 * not shared. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status arena_resize(struct arena *arena, const char *label, uint64_t bytes,
                                           struct sentence *why);
CAIRN_MUST_CHECK cairn_status arena_open_scratch(const char *label, uint64_t bytes,
                                                 struct arena *arena_out, struct sentence *why);
/* Opens an arena in a home that is not the host's: all of it has memory at once, and the host may
 * not follow its addresses. */
CAIRN_MUST_CHECK cairn_status arena_open_home(struct home *home, const char *label, uint64_t bytes,
                                              struct arena *arena_out, struct sentence *why);
/* Makes the pages of these bytes, so that to touch them is never the end of the process: large ones if the
 * kernel has them (proto/base/machine.h), where a whole one is wanted. 0.1 ms a MiB. Nobody else uses the
 * bytes meanwhile. CAIRN_ERR_NO_MEMORY: not all; past a control group's limit the kernel kills instead, so
 * see that there is room (server/base/daemon.h). Any thread, several at a time. */
CAIRN_MUST_CHECK cairn_status arena_make_pages(const struct arena *arena, uint64_t from,
                                               uint64_t bytes);
/* From now on a device's home copies from and to the arena: what arena_pin is told of is
 * pinned until it is given back. */
void arena_pins_for(struct arena *arena, struct home *home);
/* Pins bytes that were taken; does nothing if no device copies them. Not CAIRN_OK: their copies are
 * slower, as `why` says, but right. Any thread, several at a time. */
CAIRN_MUST_CHECK cairn_status arena_pin(const struct arena *arena, uint64_t from, uint64_t bytes,
                                        struct sentence *why);
/* Gives back pages of a scratch arena to the system: from the first page that begins within these
 * bytes to the last page that they touch. Nobody may use these bytes, or the rest of the last page.
 * It takes 0.2 ms a MiB. */
void arena_give(const struct arena *arena, uint64_t from, uint64_t bytes);
/* Gives back a whole segment of an arena that is not scratch. Nobody uses its addresses any more,
 * and it is not shown any more. Processes that have mapped it keep it. */
void arena_give_segment(struct arena *arena, uint64_t segment);

/* Members of this host may map it, a region a segment, and nobody but this process writes to it; false: they
 * may not, and what is in it is sent to them. `note` says what it is, but for which segment; NULL: nothing
 * does. */
bool arena_share(struct arena *arena, struct fabric *fabric, const struct published_note *note);
void arena_show(const struct arena *arena, struct fabric_peer *peer);
/* Safe to call again. `fabric_is_closed`: it has dropped its regions. */
void arena_unshare(struct arena *arena, bool fabric_is_closed);
/* Unmaps and closes what is not shared any more; the arena becomes CAIRN_ARENA_NONE. Safe to call again. */
void arena_close(struct arena *arena);

/* ==== budget ==== */

/* Bytes that a shard may use for state, landing, staging and replies: counted when they are promised, touched
 * or not. Loop thread. */

struct budget {
    uint64_t limit_bytes, used_bytes;
};
/* CAIRN_ERR_NO_MEMORY, with the numbers, if `bytes` more are over the limit; then nothing is taken. */
CAIRN_MUST_CHECK cairn_status budget_take(struct budget *budget, uint64_t bytes, const char *what,
                                          struct sentence *why);
void budget_give(struct budget *budget, uint64_t bytes);

/* Takes of the shard's budget, counted under `kind`, which is one of job->memory's; as budget_take. And
 * gives it back: what is not given back goes with the job. */
CAIRN_MUST_CHECK cairn_status shard_job_take(struct shard_job *job, uint64_t *kind, uint64_t bytes,
                                             const char *what, struct sentence *why);
void shard_job_give(struct shard_job *job, uint64_t *kind, uint64_t bytes);

/* ==== reserve ==== */

/* Memory that a job takes for long: admitted first, then its pages are really made, on threads of their own,
 * so that a job never dies of them later, and heartbeats go on meanwhile.
 *
 *   reserve_begin ─► waits for its turn on this shard ─► prepare: which bytes of which arenas
 *       ─► the host's lock; is there room? (server/base/daemon.h) ─► pages ─► done, the lock is free
 *
 * The shards of a host do this one at a time: what one was admitted for is in use before the next looks.
 * Loop thread; the job is kept (busy) until `done`. */

struct reserve;

/* A shard's memory. */
struct shard_memory {
    char *lock, *host_root; /* owned: as of shard_options */
    struct budget budget;
    struct pool *pool;        /* owned: makes pages */
    struct pool *toucher;     /* owned: makes those that nobody waits for, and gives way */
    struct reserve *reserves; /* what takes memory, one at a time */
    struct pool *releaser;    /* owned */
    LIST_HEAD(, arena_release) releases; /* what is being unmapped: memory.c */
    uv_timer_t give_timer;   /* the next turn of the loop, while given_bytes > 0: members.c */
    uint64_t given_bytes;    /* landing pages that this turn gave back */
    uint64_t give_max_bytes; /* of a turn; CAIRN_GIVE_MAX_BYTES */
};

/* A request for memory, by one job. The callbacks run on the loop thread, except for `took`, and
 * for `prepare` if prepares_on_thread. */
struct reserve_request {
    struct shard_job *job; /* borrowed */
    const char *what;      /* "the state": static; the job's name follows it in a refusal */
    /* Its turn came: adds what it needs, or nothing. CAIRN_ERR_NO_MEMORY */
    cairn_status (*prepare)(struct reserve *reserve, struct shard_job *job);
    /* `prepare` runs on a thread: what it reads does not change, and may be a million extents */
    bool prepares_on_thread;
    /* There is room for it, and pages begin to be made; `done` follows. May be NULL. */
    void (*judged)(const struct reserve_request *request);
    /* So many bytes have their pages now. Any thread. May be NULL. */
    void (*took)(struct shard_job *job, const void *at, uint64_t bytes);
    /* CAIRN_ERR_NO_MEMORY, with the numbers; CAIRN_ERR_BUSY: another process kept the lock;
     * CAIRN_ERR_CANCELED: the job leaves. Then nothing may be counted on. Once; not after the shard was
     * closed. */
    void (*done)(const struct reserve_request *request, cairn_status status,
                 const struct sentence *why);
    /* for `done`, if it wants them */
    uint64_t member;
    struct request answer;
};

/* CAIRN_ERR_NO_MEMORY: not begun. */
CAIRN_MUST_CHECK cairn_status reserve_begin(const struct reserve_request *request,
                                            struct sentence *why);
/* Within `prepare`: these bytes of an arena, which stays as it is until `done`. Neighbours become one. */
CAIRN_MUST_CHECK cairn_status reserve_add(struct reserve *reserve, const struct arena *arena,
                                          uint64_t from, uint64_t bytes);
/* Bytes of shared memory that nobody uses any more. */
struct shared_span {
    void *at; /* at the beginning of a page */
    size_t bytes;
};
/* The pages of these go back to the system, when what was asked for before is made: who asks later may have
 * the same places. Takes the list, malloc'ed memory. They stay if there is no memory to do it. */
void reserve_give(struct shard_job *job, struct shared_span *spans, size_t span_count);
/* The job leaves: its `done` follows soon. */
void reserve_cancel(struct shard_job *job);
/* Before the shard's pool is closed, and after it. */
void reserves_stop(struct shard_daemon *shard);
void reserves_free(struct shard_daemon *shard);

/* ==== plane ==== */

/* The planes of a job's part: parameters, the optimizer's moments and the sums of a round. One
 * table (memory.c) says what each plane is, and code that handles planes walks all of them by
 * number: another plane is one more line of the table.
 *
 *   local elements   0 ......... host_from ......... local_end
 *                    on a device │ in host memory
 *
 * All planes of an element lie in one home: an update works in one. Elements are touched by works of their
 * home (base.h), by any thread; the thread that opens planes closes them. */

struct area;
struct area_place;

/* The sums of the round at hand have no number on the wire. */
#define CAIRN_PLANE_SUM CAIRN_PLANE_COUNT
#define CAIRN_PLANES    (CAIRN_PLANE_SUM + 1)

/* The form of an extent of the job here, as the kernels see it: numbered as map.extents. */
struct form {
    bool trained;
    cairn_dtype wire, master; /* f32; a blob's is u8, both */
    uint32_t group;           /* of a trained tensor, in the spec's groups */
    uint32_t planes;          /* bits 1u << CAIRN_PLANE_...: those that the extent keeps */
    uint64_t wire_byte;       /* where the extent's first element stands in a published copy */
};

/* The plane is state: snapshots store it, and members fetch and write it. Any number may be asked. */
bool plane_is_state(int plane);
bool form_keeps(const struct form *form, enum plane plane);
/* The extent keeps the plane, and the plane is state. Any number may be asked. */
bool form_stores(const struct form *form, int plane);
cairn_dtype form_dtype(const struct form *form, enum plane plane);
/* The bytes of so many elements of the extent; 0: the extent does not keep the plane. */
uint64_t form_bytes(const struct form *form, enum plane plane, uint64_t elems);

/* In host memory a plane stands by local element, a word of 4 bytes each: a blob's bytes stand dense where
 * its extent begins, and the rest of its words is never touched, as words of extents that do not keep it.
 * On a device what is not touched is taken, too: there the extents that keep a plane stand one behind the
 * other, each at a multiple of CAIRN_PLANE_ALIGN (below). A plane that no extent keeps is empty. */
struct state_planes {
    const struct shard_map *map;     /* borrowed */
    const struct form *forms;        /* borrowed: [map->extent_count] */
    const struct area_place *places; /* borrowed: the same; NULL: no device */
    uint64_t host_from; /* at the beginning of a chunk; 0: no device; CAIRN_PLANES_ALL: all on it */
    uint64_t room_elems; /* local elements that there are addresses for in host memory, at least */
    bool parked;         /* what stands before host_from is in host memory for now: reshard.h */
    struct arena host[CAIRN_PLANES]; /* owned; for memory.c alone */
    struct area *areas; /* owned; for memory.c and switch.c alone: what stands before host_from */
};
#define CAIRN_PLANES_ALL UINT64_MAX

#define CAIRN_PLANE_ALIGN 512u
/* Memory of a device is taken in multiples of this, since cards give it in such units. */
#define CAIRN_PLANE_UNIT_BYTES ((uint64_t)2 << 20)
static inline uint64_t plane_units(uint64_t bytes)
{
    return (bytes + CAIRN_PLANE_UNIT_BYTES - 1) / CAIRN_PLANE_UNIT_BYTES * CAIRN_PLANE_UNIT_BYTES;
}

/* Where an extent's part on a device begins in a plane that has *end_bytes so far; adds it to them. */
uint64_t plane_place(const struct form *form, enum plane plane, uint64_t elems,
                     uint64_t *end_bytes);
/* How many elements of an extent lie before a local element. */
uint64_t extent_before(const struct local_extent *extent, uint64_t local_elem);

/* Up to which element they lie on a device now. */
uint64_t planes_device_end(const struct state_planes *planes);

/* Opens a job's planes in host memory, all 0: elements from host_from on, which may later grow to
 * room_elems local elements. On CAIRN_ERR_NO_MEMORY `planes` is to be closed all the same. */
CAIRN_MUST_CHECK cairn_status planes_open(struct state_planes *planes, const struct shard_map *map,
                                          const struct form *forms, uint64_t host_from,
                                          uint64_t room_elems, struct sentence *why);
/* The same on another thread. */
void planes_release(struct state_planes *planes, struct shard_daemon *shard);
/* Within `prepare` of a reserve: all that the extents keep in host memory, without the gaps between. */
CAIRN_MUST_CHECK cairn_status planes_reserve(const struct state_planes *planes,
                                             struct reserve *reserve);
/* Addresses for what another map of the same shard has, too: none of it has pages, none of what is there
 * moves. Planes in host memory alone. CAIRN_ERR_NO_MEMORY: some may have got theirs. */
CAIRN_MUST_CHECK cairn_status planes_grow(struct state_planes *planes, const struct shard_map *map,
                                          const struct form *forms, struct sentence *why);
/* Within `prepare` of a reserve: of a plane in host memory, what so many elements take from a local one on;
 * `first`: the local element at which their extent begins, whose form it is. */
CAIRN_MUST_CHECK cairn_status planes_reserve_elems(const struct state_planes *planes,
                                                   enum plane plane, const struct form *form,
                                                   uint64_t first, uint64_t local_elem,
                                                   uint64_t elems, struct reserve *reserve);
/* The bytes of state that the extents keep. */
uint64_t planes_state_bytes(const struct state_planes *planes);
/* Where a local element of an extent stands, in its home. NULL: the extent does not keep the plane. */
void *planes_at(const struct state_planes *planes, enum plane plane, size_t extent,
                uint64_t local_elem);
/* The same of an extent that begins at local element `first`, of the map or of another one. */
void *planes_home_at(const struct state_planes *planes, const struct form *form,
                     const struct area_place *place, enum plane plane, uint64_t first,
                     uint64_t local_elem);
/* The same in host memory. */
void *planes_host_at(const struct state_planes *planes, const struct form *form, enum plane plane,
                     uint64_t first, uint64_t local_elem);
/* So many elements of the extent, from that one on, stand dense there, in form_dtype: up to the
 * extent's end, or to host_from. A chunk's always do. */
uint64_t planes_dense(const struct state_planes *planes, size_t extent, uint64_t local_elem);
/* Copies elements within an extent, of each plane of the state that both extents keep. */
void planes_copy(struct works *works, const struct state_planes *to, size_t to_extent,
                 uint64_t to_elem, const struct state_planes *from, size_t from_extent,
                 uint64_t from_elem, uint64_t elems);

/* ==== area ==== */

/* Areas: the parts of a job's planes that lie on a device. One area is taken for the extents that
 * the job has when it is made, and one for the extents that come with each later layout; extents
 * that stay keep their places. In an area plane follows plane, and in a plane the extents that keep
 * it stand one behind the other. A segment of an area in which nothing is left goes back to the
 * device, and the area goes with its last segment.
 *
 * Places are as constant as the view that has them (collect.h): any thread may follow them.
 * All else: loop thread. */

struct area_segment {
    bool is_gone; /* it went back to the device */
    bool in_use;  /* of place_mark */
};

struct area {
    struct area *next;             /* in planes.areas */
    uint32_t refs;                 /* of that list, and of places */
    struct arena arena;            /* owned */
    struct arena to;               /* owned: where it goes, on its way: reshard.h */
    struct area_segment *segments; /* owned: of the arena */
};

/* Where an extent's part on a device stands. */
struct area_place {
    struct area *area;         /* counted; NULL: nothing of it lies on a device */
    uint64_t at[CAIRN_PLANES]; /* bytes, of the area; of planes that it keeps */
};

/* One more, at 0. CAIRN_ERR_NO_MEMORY, CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status area_add(struct state_planes *planes, struct home *device,
                                       uint64_t bytes, struct area **area_out,
                                       struct sentence *why);
/* Counts one less; NULL is fine. */
void area_unref(struct area *area);
/* Gives back what nothing is in that is marked: places of so many elements each. Nothing works on it. */
void areas_unmark(struct state_planes *planes);
void place_mark(const struct area_place *place, const struct form *form, uint64_t elems);
void areas_trim(struct state_planes *planes, struct shard_daemon *shard);
/* The bytes that the areas take of the device, with the bytes that no element uses. */
uint64_t areas_bytes(const struct state_planes *planes);

/* ==== release ==== */

/* Memory goes back to the system on another thread. Loop thread. */

/* The arena becomes CAIRN_ARENA_NONE: nobody touches that memory any more. */
void arena_release(struct shard_daemon *shard, struct arena *arena);
/* `free_it` frees `what` on that thread: nobody else knows of it any more. */
void release_by(struct shard_daemon *shard, void (*free_it)(void *what), void *what);
/* When all that were released before are unmapped, the budget has the bytes again, and the request (may be
 * NULL) is answered. */
void release_bytes(struct shard_daemon *shard, uint64_t budget_bytes,
                   const struct request *request);
/* With the shard, behind its pools. */
void release_close(struct shard_daemon *shard);

/* ==== made pages ==== */

/* The pages that a reserve (above) makes: which of them are there already, for those who fill some
 * while others are still being made. */

struct made_pages_span {
    uintptr_t at, end;
};

struct made_pages {
    pthread_mutex_t mutex; /* of all that follows */
    pthread_cond_t changed;
    struct made_pages_span *list; /* owned: none touches another */
    size_t count, capacity;
    bool is_over, all; /* no more of them come; all are there */
};

void made_pages_open(struct made_pages *made);
void made_pages_close(struct made_pages *made);
/* These are there. Any thread. */
void made_pages_add(struct made_pages *made, const void *at, uint64_t bytes);
/* No more come: `all` are there, or it was given up. The first end holds. Any thread. */
void made_pages_end(struct made_pages *made, bool all);
/* Until these are there. False: they will not be. Any thread. */
bool made_pages_await(struct made_pages *made, const void *at, uint64_t bytes);

#endif
