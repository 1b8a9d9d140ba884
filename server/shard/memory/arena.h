/* A large array of a shard. Its addresses are reserved as a whole, its pages when they are taken
 * (reserve.h) or touched. State and the copies that members map lie in a home's segments
 * (gpu/home.h); in the host's home these are memfds, so that a supervisor can hold them for a
 * restarted daemon. Landing slots and staging are anonymous. An arena in a device's home has no
 * pages of the host. The shard's budget counts an arena at its full size, touched or not. Any
 * thread may use an arena; only the loop thread shares it, and the thread that opened it closes
 * it. */
#ifndef CAIRN_SHARD_MEMORY_ARENA_H
#define CAIRN_SHARD_MEMORY_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/sentence.h"
#include "gpu/home.h"
#include "proto/fabric/fabric.h"
#include "proto/fabric/stagger.h"
#include "proto/geometry/published.h"

struct cairn_arena {
    uint8_t *base; /* owned; at the beginning of a line, zero at first; NULL if bytes is 0 */
    size_t bytes;
    size_t begin; /* bytes of the mapping before it: proto/fabric/stagger.h */
    /* owned; all 0: anonymous. In a device's home, base is an address there */
    struct cairn_home_memory memory;
    struct cairn_arena_shown *shown; /* owned: [segments]; NULL: nobody maps it */
    struct cairn_home *pins_for;     /* borrowed: whose device copies it by itself; NULL: none */
};

/* An arena of nothing: may be closed. */
#define CAIRN_ARENA_NONE ((struct cairn_arena) { .base = NULL })

/* `label` names the memfds in /proc; `stream`: what it is to the loops of an update; it may get room_bytes
 * later. CAIRN_ERR_NO_MEMORY says how much it wanted. */
CAIRN_MUST_CHECK cairn_status cairn_arena_open_state(const char *label, uint64_t bytes,
                                                     uint64_t room_bytes,
                                                     enum cairn_update_stream stream,
                                                     struct cairn_arena *arena_out,
                                                     struct cairn_sentence *why);
/* Opens an arena that may be shared. It begins where its first segment begins: `begin` is 0. */
CAIRN_MUST_CHECK cairn_status cairn_arena_open_shared(struct cairn_home *home, const char *label,
                                                      uint64_t bytes, struct cairn_arena *arena_out,
                                                      struct cairn_sentence *why);
/* The same in the host's memory, and it may get room_bytes later. */
CAIRN_MUST_CHECK cairn_status cairn_arena_open_shared_room(const char *label, uint64_t bytes,
                                                           uint64_t room_bytes,
                                                           struct cairn_arena *arena_out,
                                                           struct cairn_sentence *why);
/* Other bytes, of one that was opened with room: what it has stays, but as cairn_home_memory_resize says. Its
 * new bytes have no pages yet, but for whole segments of what a device copies: these are pinned again. It is
 * not shared. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status cairn_arena_resize(struct cairn_arena *arena, const char *label,
                                                 uint64_t bytes, struct cairn_sentence *why);
CAIRN_MUST_CHECK cairn_status cairn_arena_open_scratch(const char *label, uint64_t bytes,
                                                       struct cairn_arena *arena_out,
                                                       struct cairn_sentence *why);
/* Opens an arena in a home that is not the host's: all of it has memory at once, and the host may
 * not follow its addresses. */
CAIRN_MUST_CHECK cairn_status cairn_arena_open_home(struct cairn_home *home, const char *label,
                                                    uint64_t bytes, struct cairn_arena *arena_out,
                                                    struct cairn_sentence *why);
/* Makes the pages of these bytes, so that to touch them is never the end of the process: large ones if the
 * kernel has them (proto/base/pages.h), where a whole one is wanted. 0.1 ms a MiB. Nobody else uses the
 * bytes meanwhile. CAIRN_ERR_NO_MEMORY: not all; past a control group's limit the kernel kills instead, so
 * see that there is room (server/base/headroom.h). Any thread, several at a time. */
CAIRN_MUST_CHECK cairn_status cairn_arena_take(const struct cairn_arena *arena, uint64_t from,
                                               uint64_t bytes);
/* From now on a device's home copies from and to the arena: what cairn_arena_pin is told of is
 * pinned until it is given back. */
void cairn_arena_pins_for(struct cairn_arena *arena, struct cairn_home *home);
/* Pins bytes that were taken; does nothing if no device copies them. Not CAIRN_OK: their copies are
 * slower, as `why` says, but right. Any thread, several at a time. */
CAIRN_MUST_CHECK cairn_status cairn_arena_pin(const struct cairn_arena *arena, uint64_t from,
                                              uint64_t bytes, struct cairn_sentence *why);
/* Gives back pages of a scratch arena to the system: from the first page that begins within these
 * bytes to the last page that they touch. Nobody may use these bytes, or the rest of the last page.
 * It takes 0.2 ms a MiB. */
void cairn_arena_give(const struct cairn_arena *arena, uint64_t from, uint64_t bytes);
/* Gives back a whole segment of an arena that is not scratch. Nobody uses its addresses any more,
 * and it is not shown any more. Processes that have mapped it keep it. */
void cairn_arena_give_segment(struct cairn_arena *arena, uint64_t segment);

/* Members of this host may map it, a region a segment, and nobody but this process writes to it; false: they
 * may not, and what is in it is sent to them. `note` says what it is, but for which segment; NULL: nothing
 * does. */
bool cairn_arena_share(struct cairn_arena *arena, struct cairn_fabric *fabric,
                       const struct cairn_published_note *note);
void cairn_arena_show(const struct cairn_arena *arena, struct cairn_fabric_peer *peer);
/* Safe to call again. `fabric_is_closed`: it has dropped its regions. */
void cairn_arena_unshare(struct cairn_arena *arena, bool fabric_is_closed);
/* Unmaps and closes what is not shared any more; the arena becomes CAIRN_ARENA_NONE. Safe to call again. */
void cairn_arena_close(struct cairn_arena *arena);

#endif
