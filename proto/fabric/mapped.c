/* The mapped fabric connects peers of one host, which read each other's memory in place. Headers, small
 * payloads and descriptors travel over Unix sockets, one connection for each direction (UCX, too, has an
 * endpoint for each).
 *
 * A node listens under a random name of the abstract namespace. So no file stays behind, and no folder has
 * to be shared with processes that a daemon's PrivateTmp hides. The key in the address, and not a file's
 * mode, decides who may connect (mapped.h). A process that connects without proving that it knows the key
 * delays at most connections of its own user (mapped_flow.c). With options.socket_folder the socket is a
 * file in that folder, for containers that share a folder but no network namespace. */
#include "proto/fabric/mapped.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <inttypes.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/text.h"
#include "proto/base/machine.h"

enum { EVENTS_PER_PROGRESS = 32, ACCEPTS_PER_TURN = 16, BACKLOG = 4096 };

/* -- what epoll watches ------------------------------------------------------------------------- */

bool mapped_link_watch(struct mapped_fabric *fabric, struct mapped_link *link, uint32_t events)
{
    if (link->is_watched && link->events == events) return true;
    struct epoll_event event = { .events = events, .data.ptr = link };
    const int how = link->is_watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(fabric->common.event_fd, how, link->fd, &event) != 0) return false;
    link->is_watched = true;
    link->events = events;
    return true;
}

void mapped_link_unwatch(struct mapped_fabric *fabric, struct mapped_link *link)
{
    if (link->is_watched) epoll_ctl(fabric->common.event_fd, EPOLL_CTL_DEL, link->fd, NULL);
    link->is_watched = false;
}

void mapped_link_end(struct mapped_fabric *fabric, struct mapped_link *link)
{
    if (link->is_ended) return;
    mapped_link_unwatch(fabric, link);
    close(link->fd);
    link->fd = -1;
    link->is_ended = true;
    link->next = fabric->ended;
    fabric->ended = link;
}

static void free_ended(struct mapped_fabric *fabric)
{
    while (fabric->ended != NULL) {
        struct mapped_link *link = fabric->ended;
        fabric->ended = link->next;
        free(link); // `link` is the first member of the object around it
    }
}

/* -- strangers ---------------------------------------------------------------------------------- */

static void set_timer(struct mapped_fabric *fabric, bool is_ticking)
{
    const struct timespec second = { .tv_sec = is_ticking ? 1 : 0 };
    const struct itimerspec ticks = { .it_interval = second, .it_value = second };
    if (is_ticking == fabric->is_ticking) return;
    fabric->is_ticking = is_ticking;
    timerfd_settime(fabric->timer.fd, 0, &ticks, NULL);
}

static unsigned accept_some(struct mapped_fabric *fabric)
{
    unsigned count = 0;
    while (count < ACCEPTS_PER_TURN && !fabric->is_held_off &&
           fabric->stranger_count < MAPPED_STRANGERS_MAX &&
           fabric->in_count < MAPPED_CONNECTIONS_MAX) {
        int fd = accept4(fabric->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            // Out of descriptors or memory: no new attempt before the next tick.
            fabric->is_accepting = errno == EAGAIN || errno == ECONNABORTED || errno == EINTR;
            break;
        }
        mapped_in_accept(fabric, fd);
        count++;
    }
    return count;
}

static void drop_silent_strangers(struct mapped_fabric *fabric)
{
    const uint64_t now = monotonic_ms();
    struct mapped_in *in, *next;
    for (in = LIST_FIRST(&fabric->ins); in != NULL; in = next) {
        next = LIST_NEXT(in, entry);
        if (in->is_proven || in->is_over || now - in->since_ms < MAPPED_STRANGER_MS) continue;
        fabric->common.stats.connections_refused++;
        mapped_in_close(in);
    }
}

static unsigned on_timer(struct mapped_fabric *fabric)
{
    uint64_t ticks;
    if (read(fabric->timer.fd, &ticks, sizeof ticks) != sizeof ticks) return 0;
    fabric->is_accepting = true;
    drop_silent_strangers(fabric);
    return 1;
}

/* Decides whether more peers may connect, and runs the timer only while some connection still has to prove
 * itself. */
static void see_to_door(struct mapped_fabric *fabric)
{
    const bool is_open = fabric->is_accepting && !fabric->is_held_off &&
                         fabric->stranger_count < MAPPED_STRANGERS_MAX &&
                         fabric->in_count < MAPPED_CONNECTIONS_MAX;
    mapped_link_watch(fabric, &fabric->listener, is_open ? EPOLLIN : 0);
    set_timer(fabric, fabric->stranger_count + fabric->unknown_count > 0 || !fabric->is_accepting);
}

/* -- driving ------------------------------------------------------------------------------------ */

static unsigned serve(struct mapped_fabric *fabric, struct mapped_link *link, uint32_t events)
{
    if (link->is_ended) return 0; // an earlier event ended the link
    switch (link->kind) {
    case MAPPED_LISTENER: return accept_some(fabric);
    case MAPPED_TIMER: return on_timer(fabric);
    case MAPPED_IN: return mapped_in_on_event((struct mapped_in *)link, events);
    case MAPPED_OUT: return mapped_out_on_event((struct mapped_out *)link, events);
    }
    return 0;
}

static unsigned flush_releases(struct mapped_fabric *fabric)
{
    unsigned count = 0;
    for (; !TAILQ_EMPTY(&fabric->dirty); count++) mapped_in_flush(TAILQ_FIRST(&fabric->dirty));
    return count;
}

static unsigned write_fresh(struct mapped_fabric *fabric)
{
    unsigned count = 0;
    while (!TAILQ_EMPTY(&fabric->fresh)) count += mapped_out_write(TAILQ_FIRST(&fabric->fresh));
    return count;
}

static unsigned use_room(struct mapped_fabric *fabric)
{
    unsigned count = 0;
    struct mapped_out *out;
    if (!fabric->is_room) return 0;
    fabric->is_room = false;
    LIST_FOREACH (out, &fabric->outs, entry) count += mapped_out_stage_waiting(out);
    return count;
}

static unsigned send_away(struct mapped_fabric *fabric)
{
    unsigned count = 0;
    struct mapped_in *in, *next;
    for (in = LIST_FIRST(&fabric->ins); in != NULL && fabric->is_held_off; in = next) {
        next = LIST_NEXT(in, entry);
        if (in->is_over) continue;
        mapped_in_finish(in);
        count++;
    }
    return count;
}

static void mapped_hold_off(struct fabric *common, bool is_off)
{
    mapped_of(common)->is_held_off = is_off;
}

static unsigned mapped_progress(struct fabric *common)
{
    struct mapped_fabric *fabric = mapped_of(common);
    struct epoll_event events[EVENTS_PER_PROGRESS];
    unsigned count = flush_releases(fabric) + write_fresh(fabric);
    const int ready = epoll_wait(common->event_fd, events, EVENTS_PER_PROGRESS, 0);
    for (int i = 0; i < ready; i++) count += serve(fabric, events[i].data.ptr, events[i].events);
    count += flush_releases(fabric);
    count += use_room(fabric);
    count += send_away(fabric);
    count += write_fresh(fabric);
    see_to_door(fabric);
    free_ended(fabric);
    return count;
}

/* Data that waits for us in a socket keeps event_fd readable by itself, so such data is not checked
 * here. */
static cairn_status mapped_arm(struct fabric *common)
{
    const struct mapped_fabric *fabric = mapped_of(common);
    return TAILQ_EMPTY(&fabric->dirty) && TAILQ_EMPTY(&fabric->fresh) && !fabric->is_room
               ? CAIRN_OK
               : CAIRN_ERR_BUSY;
}

/* ==== mapped memory ==== */

/* The memory that we share with peers: regions of the owner, and the staging area, into which we copy
 * payloads that lie in no region.
 *
 * The staging area consists of up to four memfds, which are created when needed. Their pages are handed out
 * first fit, so that the pages that were read last are reused while they are in the cache. A peer that has
 * pages gets more only if it then has no more pages than were free before. So however many peers never
 * release their pages, the next peer finds some. */

/* -- shares ------------------------------------------------------------------------------------- */

/* `fd` still belongs to the caller. */
static struct mapped_share *share_new(int fd, uint64_t bytes, uint16_t slot)
{
    struct mapped_share *share = calloc(1, sizeof *share);
    if (share == NULL) return NULL;
    share->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (share->fd < 0) {
        free(share);
        return NULL;
    }
    share->references = 1;
    share->frame =
        (struct frame_region) { .head = frame_head(FRAME_REGION), .bytes = bytes, .slot = slot };
    return share;
}

void mapped_share_release(struct mapped_share *share)
{
    if (--share->references > 0) return;
    close(share->fd);
    free(share);
}

/* -- regions ------------------------------------------------------------------------------------ */

static cairn_status mapped_region_add(struct fabric_region *common)
{
    struct mapped_fabric *fabric = mapped_of(common->fabric);
    struct mapped_region *region = (struct mapped_region *)common;
    uint16_t slot = MAPPED_ARENAS;
    while (slot < FRAME_SLOTS && fabric->shares[slot] != NULL) slot++;
    if (slot == FRAME_SLOTS) return CAIRN_ERR_BUSY;
    struct mapped_share *share = share_new(common->fd, common->bytes, slot);
    if (share == NULL) return CAIRN_ERR_NO_MEMORY;
    share->frame.note_bytes = (uint32_t)common->note_bytes;
    memcpy(share->frame.note, common->note, sizeof common->note);
    if (common->is_device) share->frame.memory = FRAME_MEMORY_DEVICE;
    memcpy(share->frame.uuid, common->uuid, sizeof common->uuid); // zero for host memory
    region->share = fabric->shares[slot] = share;
    return CAIRN_OK;
}

static void mapped_region_drop(struct fabric_region *common)
{
    struct mapped_fabric *fabric = mapped_of(common->fabric);
    struct mapped_region *region = (struct mapped_region *)common;
    const uint16_t slot = region->share->frame.slot;
    struct mapped_out *out;
    LIST_FOREACH (out, &fabric->outs, entry) mapped_take_back(out, slot);
    fabric->shares[slot] = NULL;
    mapped_share_release(region->share);
}

/* -- the staging area --------------------------------------------------------------------------- */

/* The FUTURE_WRITE seal is set after our own map: from then on no other map can write. */
static cairn_status arena_open(struct mapped_fabric *fabric, uint16_t slot)
{
    struct mapped_arena *arena = &fabric->arenas[slot];
    const size_t bytes = (size_t)fabric->arena_pages * MAPPED_PAGE;
    int fd = memfd_create("cairn-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return CAIRN_ERR_NO_MEMORY;
    void *memory = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    arena->taken = calloc(fabric->arena_pages / 64, sizeof *arena->taken);
    if (memory != MAP_FAILED && arena->taken != NULL &&
        fcntl(fd, F_ADD_SEALS, CAIRN_FABRIC_SEALS) == 0)
        arena->share = share_new(fd, bytes, slot);
    close(fd);
    if (arena->share == NULL) goto err_unmap;
    arena->memory = memory;
    arena->share->frame.memory = FRAME_MEMORY_STAGING;
    fabric->shares[slot] = arena->share;
    return CAIRN_OK;
err_unmap:
    if (memory != MAP_FAILED) munmap(memory, bytes);
    free(arena->taken);
    arena->taken = NULL;
    return CAIRN_ERR_NO_MEMORY;
}

static bool is_taken(const struct mapped_arena *arena, uint32_t page)
{
    return (arena->taken[page / 64] >> page % 64 & 1) != 0;
}

static void mark_pages(struct mapped_arena *arena, uint32_t first, uint32_t count, bool taken)
{
    for (uint32_t page = first; page < first + count; page++) {
        assert(is_taken(arena, page) != taken);
        arena->taken[page / 64] ^= UINT64_C(1) << page % 64;
    }
}

static bool find_run(const struct mapped_fabric *fabric, const struct mapped_arena *arena,
                     uint32_t count, uint32_t *first_out)
{
    uint32_t run = 0;
    for (uint32_t page = 0; page < fabric->arena_pages; page++) {
        if (page % 64 == 0 && arena->taken[page / 64] == UINT64_MAX) {
            run = 0;
            page += 63;
            continue;
        }
        run = is_taken(arena, page) ? 0 : run + 1;
        if (run < count) continue;
        *first_out = page + 1 - count;
        return true;
    }
    return false;
}

static bool is_fair(const struct mapped_fabric *fabric, uint32_t own_pages, uint32_t count)
{
    const uint32_t all = MAPPED_ARENAS * fabric->arena_pages;
    return own_pages == 0 || own_pages + count <= all - fabric->staged_pages;
}

cairn_status mapped_stage(struct mapped_fabric *fabric, uint32_t own_pages, size_t bytes,
                          struct fabric_pages *pages_out)
{
    struct fabric_pages pages = { .count = (uint32_t)((bytes + MAPPED_PAGE - 1) / MAPPED_PAGE) };
    if (!is_fair(fabric, own_pages, pages.count)) return CAIRN_ERR_BUSY;
    for (; pages.arena < MAPPED_ARENAS; pages.arena++) {
        struct mapped_arena *arena = &fabric->arenas[pages.arena];
        if (arena->share == NULL && arena_open(fabric, (uint16_t)pages.arena) != CAIRN_OK)
            return fabric->staged_pages > 0 ? CAIRN_ERR_BUSY : CAIRN_ERR_NO_MEMORY;
        if (!find_run(fabric, arena, pages.count, &pages.first)) continue;
        mark_pages(arena, pages.first, pages.count, true);
        fabric->staged_pages += pages.count;
        *pages_out = pages;
        return CAIRN_OK;
    }
    return CAIRN_ERR_BUSY;
}

void mapped_unstage(struct mapped_fabric *fabric, struct fabric_pages pages)
{
    if (pages.count == 0) return;
    mark_pages(&fabric->arenas[pages.arena], pages.first, pages.count, false);
    fabric->staged_pages -= pages.count;
    fabric->is_room = true;
}

static void mapped_memory_close(struct mapped_fabric *fabric)
{
    for (uint32_t i = 0; i < MAPPED_ARENAS; i++) {
        struct mapped_arena *arena = &fabric->arenas[i];
        if (arena->share == NULL) continue;
        mapped_share_release(arena->share);
        munmap(arena->memory, (size_t)fabric->arena_pages * MAPPED_PAGE);
        free(arena->taken);
    }
    for (uint32_t i = 0; i < fabric->common.region_count; i++) // fabric.c frees the objects
        mapped_share_release(((struct mapped_region *)fabric->common.regions[i])->share);
}

/* ==== mapped mapping ==== */

/* Memory of peers is mapped here to be read, or is read by copies if there is no room to map it. A mapping
 * lives as long as its slot, a message or a holder refers to the mapping, so the end of the peer harms no
 * reader. Missing pages harm no reader either. The kernel would create a missing page for the reader, and
 * charge the page to the reader's control group, which may kill the reader for that. So only existing pages
 * are read, and seals keep these pages in place. */

/* Reports only the first memory that is not mapped, since the reason, a limit of this process, holds for
 * all later memory, too. */
static void tell_unmapped(struct mapped_fabric *fabric, uint64_t bytes, int why)
{
    const struct fabric_options *options = &fabric->common.options;
    struct sentence text;
    if (fabric->has_told_unmapped || options->on_refused == NULL) return;
    fabric->has_told_unmapped = true;
    sentence_set(&text,
                 "%" PRIu64 " bytes of memory that a process of this host showed cannot be "
                 "mapped here: %s; what lies there is read by copies, which is slower: raise "
                 "this process's limit of addresses (ulimit -v) or vm.max_map_count",
                 bytes, strerror(why));
    options->on_refused(options->on_message_arg, text.text);
}

/* If the result is OK, the descriptor belongs to the mapping. If this process's address space has no room,
 * the memory stays unmapped, and is read through the descriptor. */
static cairn_status map_host(struct fabric_mapping *mapping, struct mapped_fabric *fabric,
                             uint64_t bytes, int fd)
{
    if (fabric_judge_memory(fd, bytes) != CAIRN_OK) return CAIRN_ERR_REFUSED;
    void *memory = pages_map(bytes, PROT_READ, MAP_SHARED, fd);
    if (memory == MAP_FAILED) tell_unmapped(fabric, bytes, errno);
    struct stat file;
    mapping->memory = memory != MAP_FAILED ? memory : NULL;
    mapping->bytes = bytes;
    mapping->fd = fd;
    const bool is_whole = fstat(fd, &file) == 0 &&
                          (uint64_t)file.st_blocks * 512 >= (uint64_t)file.st_size;
    mapping->exists_to = is_whole ? bytes : 0;
    return CAIRN_OK;
}

bool mapped_mapping_copy(const struct fabric_mapping *mapping, uint64_t offset, void *to,
                         size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = pread(mapping->fd, (uint8_t *)to + done, bytes - done,
                                  (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

/* Looking for a hole costs time for every page up to it, so what was found once is not looked at again. */
bool mapped_mapping_has(struct fabric_mapping *mapping, uint64_t offset, size_t bytes)
{
    const uint64_t end = offset + bytes;
    if (offset >= mapping->exists_from && end <= mapping->exists_to) return true;
    const off_t found = lseek(mapping->fd, (off_t)offset, SEEK_HOLE);
    const uint64_t hole = (uint64_t)found;
    if (found < 0 || hole < end) return false;
    const bool is_beside = offset <= mapping->exists_to && hole >= mapping->exists_from;
    if (!is_beside || offset < mapping->exists_from) mapping->exists_from = offset;
    if (!is_beside || hole > mapping->exists_to) mapping->exists_to = hole;
    return true;
}

static void tell_refused(const struct fabric_options *options, const char *what_comes,
                         const char *why)
{
    struct sentence text;
    if (options->on_refused == NULL) return;
    sentence_set(&text, "memory of a card that a process of this host showed is %s: %s", what_comes,
                 why);
    options->on_refused(options->on_message_arg, text.text);
}

/* Called when memory of a card is valid, but there is no room for it here, or the card has failed. The
 * memory's owner is told once, and then sends the memory's content through the host. If the socket is full,
 * the owner is not told, and loses a connection with the next message from that memory. */
void mapped_import_none_of(struct mapped_in *in, const char *why)
{
    const struct frame_head head = frame_head(FRAME_NO_IMPORTS);
    in->imports_none = true;
    tell_refused(&in->fabric->common.options,
                 "not read in place, and goes through the host from now on", why);
    (void)frame_write_one(in->link.fd, &head, sizeof head, -1);
}

static bool mapped_cards_have(const struct mapped_cards *cards, const uint8_t *uuid);

/* Consumes the descriptor. */
static cairn_status import_device(struct fabric_mapping *mapping, struct mapped_in *in,
                                  const struct frame_region *frame, int fd)
{
    const struct mapped_fabric *fabric = in->fabric;
    const struct fabric_options *options = &fabric->common.options;
    const struct fabric_device *device = options->device;
    const struct fabric_offer offer = { .uuid = frame->uuid,
                                        .bytes = frame->bytes,
                                        .note = frame->note,
                                        .note_bytes = frame->note_bytes };
    struct sentence why = { "it is of a card whose memory is not imported here" };
    cairn_status status = CAIRN_ERR_REFUSED;
    mapping->fd = -1;
    if (mapped_cards_have(&fabric->cards, frame->uuid) && !in->imports_none)
        status = device->import(device->context, &offer, fd, &mapping->memory, &why);
    else
        close(fd);
    if (in->imports_none) return CAIRN_OK; // the peer showed the memory before it read NO_IMPORTS
    if (status == CAIRN_ERR_NO_MEMORY || status == CAIRN_ERR_IO) {
        mapped_import_none_of(in, why.text);
        return CAIRN_OK;
    }
    if (status != CAIRN_OK) {
        tell_refused(options, "refused, and its connection with it", why.text);
        return status;
    }
    mapping->bytes = frame->bytes;
    mapping->device = device;
    memcpy(mapping->uuid, frame->uuid, sizeof mapping->uuid);
    mapping->exists_to = mapping->bytes;
    return CAIRN_OK;
}

/* Afterwards the descriptor belongs to the mapping, or is consumed. */
static cairn_status map_shown(struct fabric_mapping *mapping, struct mapped_in *in,
                              const struct frame_region *frame, int fd)
{
    if (frame->memory == FRAME_MEMORY_DEVICE) return import_device(mapping, in, frame, fd);
    const cairn_status status = map_host(mapping, in->fabric, frame->bytes, fd);
    if (status != CAIRN_OK) close(fd);
    return status;
}

cairn_status mapped_mapping_open(struct mapped_in *in, const struct frame_region *frame, int fd,
                                 struct fabric_mapping **mapping_out)
{
    const struct fabric_options *options = &in->fabric->common.options;
    struct fabric_mapping *mapping = NULL;
    cairn_status status = CAIRN_ERR_REFUSED;
    if (frame->bytes > options->mapped_max - in->mapped_bytes) goto err_close;
    status = CAIRN_ERR_NO_MEMORY;
    if ((mapping = calloc(1, sizeof *mapping)) == NULL) goto err_close;
    if ((status = map_shown(mapping, in, frame, fd)) != CAIRN_OK) {
        free(mapping);
        return status;
    }
    mapping->references = 1;
    mapping->in = in;
    LIST_INSERT_HEAD(&in->all, mapping, entry);
    in->mapped_bytes += mapping->bytes;
    mapping->is_staging = frame->memory == FRAME_MEMORY_STAGING;
    mapping->note_bytes = frame->note_bytes;
    memcpy(mapping->note, frame->note, sizeof mapping->note);
    if (mapping->fd >= 0 && mapping->exists_to == mapping->bytes && mapping->memory != NULL) {
        close(mapping->fd);
        mapping->fd = -1;
    }
    *mapping_out = mapping;
    return CAIRN_OK;
err_close:
    close(fd);
    return status;
}

void mapped_mapping_end(struct fabric_mapping *mapping)
{
    const struct fabric_options *options = &mapping->in->fabric->common.options;
    if (mapping->is_shown && options->on_mapping_gone != NULL)
        options->on_mapping_gone(options->on_message_arg, mapping);
    fabric_mapping_release(mapping);
}

const void *fabric_mapping_memory(const struct fabric_mapping *mapping, size_t *bytes_out)
{
    *bytes_out = mapping->bytes;
    return mapping->memory;
}

const void *fabric_mapping_note(const struct fabric_mapping *mapping, size_t *note_bytes_out)
{
    *note_bytes_out = mapping->note_bytes;
    return mapping->note;
}

const uint8_t *fabric_mapping_uuid(const struct fabric_mapping *mapping)
{
    return mapping->device != NULL ? mapping->uuid : NULL;
}

void fabric_mapping_refuse(struct fabric_mapping *mapping, const char *why)
{
    struct mapped_in *in = mapping->in;
    if (in != NULL && !in->is_over && !in->imports_none) mapped_import_none_of(in, why);
}

void fabric_mapping_hold(struct fabric_mapping *mapping)
{
    mapping->references++;
}

void fabric_mapping_release(struct fabric_mapping *mapping)
{
    assert(mapping->references > 0);
    if (--mapping->references > 0) return;
    if (mapping->in != NULL) {
        LIST_REMOVE(mapping, entry);
        mapping->in->mapped_bytes -= mapping->bytes;
    }
    if (mapping->device != NULL)
        mapping->device->release(mapping->device->context, mapping->memory, mapping->bytes);
    else if (mapping->bytes > 0 && mapping->memory != NULL)
        munmap(mapping->memory, mapping->bytes);
    if (mapping->fd >= 0) close(mapping->fd);
    free(mapping);
}

/* ==== mapped node ==== */

/* -- opening and closing ------------------------------------------------------------------------ */

static bool name_socket(struct mapped_fabric *fabric, const char *folder, struct sockaddr_un *name)
{
    uint64_t random;
    char text[sizeof name->sun_path];
    frame_random(&random, sizeof random);
    const int length = snprintf(text, sizeof text, "%s%scairn-%d-%016" PRIx64 "%s",
                                folder != NULL ? folder : "", folder != NULL ? "/" : "@",
                                (int)getpid(), random, folder != NULL ? ".socket" : "");
    if (length < 0 || (size_t)length >= sizeof text) return false;
    *name = (struct sockaddr_un) { .sun_family = AF_UNIX };
    memcpy(name->sun_path, text, (size_t)length + 1);
    if (folder == NULL) name->sun_path[0] = '\0';
    snprintf(fabric->common.describe, sizeof fabric->common.describe,
             "mapped, host %s, socket %s, payloads to %zu bytes, at most %u held and %u sends in "
             "flight, %" PRIu64 " bytes mapped for a peer, memory of %u cards",
             fabric->host, text, fabric->common.options.max_payload,
             fabric->common.options.held_max, fabric->common.options.sends_max,
             fabric->common.options.mapped_max, (unsigned)fabric->cards.count);
    if (folder != NULL) memcpy(fabric->socket_path, text, (size_t)length + 1);
    return true;
}

/* Any user may connect to a socket file, too: the key decides, as with the abstract name. */
static cairn_status listen_at(struct mapped_fabric *fabric, const struct sockaddr_un *name,
                              uint32_t path_bytes)
{
    const socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + path_bytes);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return CAIRN_ERR_UNREACHABLE;
    fabric->listener.fd = fd;
    if (bind(fd, (const struct sockaddr *)name, bytes) != 0) {
        fabric->socket_path[0] = '\0';
        return CAIRN_ERR_UNREACHABLE;
    }
    if (fabric->socket_path[0] != '\0' && chmod(fabric->socket_path, 0666) != 0)
        return CAIRN_ERR_UNREACHABLE;
    return listen(fd, BACKLOG) == 0 ? CAIRN_OK : CAIRN_ERR_UNREACHABLE;
}

static bool read_boot(char boot_out[37])
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL) return false;
    const size_t count = fread(boot_out, 1, 36, file);
    fclose(file);
    boot_out[36] = '\0';
    return count == 36;
}

/* An abstract socket can be reached only within one network namespace; a socket file can be reached by all
 * processes that share its folder. */
static bool mapped_host_find(const struct fabric_options *options,
                             char host_out[CAIRN_FABRIC_HOST_BYTES])
{
    char boot[37];
    struct stat namespace = { 0 };
    memset(host_out, 0, CAIRN_FABRIC_HOST_BYTES);
    if (options->host != NULL) {
        snprintf(host_out, CAIRN_FABRIC_HOST_BYTES, "%s", options->host);
        return true;
    }
    if (!read_boot(boot)) return false;
    if (options->socket_folder != NULL) {
        snprintf(host_out, CAIRN_FABRIC_HOST_BYTES, "%s", boot);
        return true;
    }
    // A kernel without namespaces has one network. After another failure, a name without the namespace
    // would be a host that no peer is on.
    if (stat("/proc/self/ns/net", &namespace) != 0) {
        if (errno != ENOENT && errno != EACCES) return false;
        namespace.st_ino = 0;
    }
    snprintf(host_out, CAIRN_FABRIC_HOST_BYTES, "%s:%" PRIu64, boot, namespace.st_ino);
    return true;
}

static cairn_status open_socket(struct mapped_fabric *fabric, const struct fabric_options *options,
                                struct mapped_address *address_out, struct sentence *why)
{
    const char *folder = options->socket_folder;
    struct sockaddr_un name;
    struct mapped_address address = { .path_bytes = 0 };
    if (!mapped_host_find(options, fabric->host))
        return fail_with(why, CAIRN_ERR_UNSUPPORTED,
                         "fabric mapped: /proc/sys/kernel/random/boot_id or /proc/self/ns/net is "
                         "not readable, so "
                         "peers of this host cannot be told from others: name this host "
                         "(fabric.host, CAIRN_HOST)");
    if (!name_socket(fabric, folder, &name))
        return fail_with(
            why, CAIRN_ERR_INVALID,
            "fabric mapped: socket folder '%s' is too long: a socket's path has 107 bytes at most",
            folder);
    const size_t length = folder != NULL ? strlen(name.sun_path) + 1
                                         : 1 + strlen(name.sun_path + 1);
    address.path_bytes = (uint32_t)length;
    if (listen_at(fabric, &name, address.path_bytes) != CAIRN_OK)
        return fail_with(
            why, CAIRN_ERR_UNREACHABLE,
            "fabric mapped: cannot listen at %s%s: %m: may this process make Unix sockets there?",
            folder != NULL ? "" : "@", name.sun_path + (folder == NULL));
    memcpy(address.host, fabric->host, sizeof address.host);
    memcpy(address.path, name.sun_path, length);
    memcpy(address.key, fabric->key, sizeof address.key);
    address.cards = fabric->cards;
    *address_out = address;
    return CAIRN_OK;
}

static void close_own(struct mapped_fabric *fabric)
{
    checksum_free(fabric->sum);
    if (fabric->listener.fd >= 0) close(fabric->listener.fd);
    if (fabric->timer.fd >= 0) close(fabric->timer.fd);
    if (fabric->common.event_fd >= 0) close(fabric->common.event_fd);
    if (fabric->socket_path[0] != '\0') unlink(fabric->socket_path);
}

static cairn_status mapped_start(struct fabric *common, const struct fabric_options *options,
                                 struct sentence *why)
{
    struct mapped_fabric *fabric = mapped_of(common);
    struct mapped_address address;
    LIST_INIT(&fabric->ins);
    LIST_INIT(&fabric->outs);
    TAILQ_INIT(&fabric->dirty);
    TAILQ_INIT(&fabric->unknown);
    TAILQ_INIT(&fabric->fresh);
    TAILQ_INIT(&fabric->spare);
    fabric->listener = (struct mapped_link) { .kind = MAPPED_LISTENER, .fd = -1 };
    fabric->timer = (struct mapped_link) { .kind = MAPPED_TIMER, .fd = -1 };
    fabric->is_accepting = true;
    size_t bytes = fabric->common.options.max_payload;
    if (bytes < MAPPED_ARENA_BYTES) bytes = MAPPED_ARENA_BYTES;
    const size_t granule = 64 * MAPPED_PAGE; // complete words of bits
    fabric->arena_pages = (uint32_t)((bytes + granule - 1) / granule * 64);
    if (options->device != NULL) {
        fabric->cards.count = options->device->uuid_count;
        memcpy(fabric->cards.uuids, options->device->uuids, sizeof fabric->cards.uuids);
    }
    if (!frame_begin())
        return fail_with(why, CAIRN_ERR_INTERNAL, "fabric mapped: libsodium does not start");
    frame_random(fabric->key, sizeof fabric->key);
    cairn_status status = open_socket(fabric, options, &address, why);
    if (status != CAIRN_OK) goto err_close;
    fabric->sum = checksum_new();
    if (fabric->sum == NULL) {
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "fabric mapped: out of memory");
        goto err_close;
    }
    common->event_fd = epoll_create1(EPOLL_CLOEXEC);
    fabric->timer.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (common->event_fd < 0 || fabric->timer.fd < 0 ||
        !mapped_link_watch(fabric, &fabric->timer, EPOLLIN) ||
        !mapped_link_watch(fabric, &fabric->listener, EPOLLIN)) {
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "fabric mapped: no event descriptor: %m");
        goto err_close;
    }
    return fabric_set_address(common, &address, sizeof address);
err_close:
    close_own(fabric);
    return status;
}

static cairn_status mapped_connect(struct fabric_peer *peer, const void *address, size_t bytes);

static void mapped_disconnect(struct fabric_peer *peer);

static void mapped_stop(struct fabric *common)
{
    struct mapped_fabric *fabric = mapped_of(common);
    while (!LIST_EMPTY(&fabric->outs)) mapped_out_end(LIST_FIRST(&fabric->outs));
    while (!LIST_EMPTY(&fabric->ins)) mapped_in_close(LIST_FIRST(&fabric->ins));
    free_ended(fabric);
    while (!TAILQ_EMPTY(&fabric->spare)) {
        struct mapped_frame *frame = TAILQ_FIRST(&fabric->spare);
        TAILQ_REMOVE(&fabric->spare, frame, link);
        free(frame);
    }
    mapped_memory_close(fabric);
    close_own(fabric);
}

const struct fabric_backend fabric_mapped = {
    .kind = "mapped",
    .fabric_bytes = sizeof(struct mapped_fabric),
    .peer_bytes = sizeof(struct mapped_peer),
    .message_bytes = sizeof(struct mapped_message),
    .start = mapped_start,
    .stop = mapped_stop,
    .connect = mapped_connect,
    .disconnect = mapped_disconnect,
    .send = mapped_send,
    .receive = mapped_receive,
    .drop = mapped_drop,
    .progress = mapped_progress,
    .arm = mapped_arm,
    .view = mapped_view,
    .message_path = mapped_message_path,
    .region_bytes = sizeof(struct mapped_region),
    .region_add = mapped_region_add,
    .region_show = mapped_region_show,
    .region_drop = mapped_region_drop,
    .imports = mapped_imports,
    .hold_off = mapped_hold_off,
};

/* ==== mapped peer ==== */

/* How the connection to a peer of the mapped fabric begins and ends. */

static int connect_socket(const struct mapped_address *address)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    static_assert(sizeof to.sun_path == sizeof address->path, "as the kernel has it");
    memcpy(to.sun_path, address->path, address->path_bytes);
    const socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) +
                                        address->path_bytes);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (connect(fd, (const struct sockaddr *)&to, bytes) == 0) return fd;
    close(fd); // nobody listens, not allowed, or more than 4096 connect at this moment
    return -1;
}

static bool is_unwilling(const struct mapped_fabric *fabric, const uint8_t *key)
{
    for (uint32_t i = 0; i < fabric->unwilling.count && i < MAPPED_UNWILLING_MAX; i++)
        if (memcmp(fabric->unwilling.keys[i], key, FRAME_KEY_BYTES) == 0) return true;
    return false;
}

static cairn_status mapped_connect(struct fabric_peer *peer, const void *address, size_t bytes)
{
    struct mapped_fabric *fabric = mapped_of(peer->fabric);
    struct mapped_address to;
    if (bytes != sizeof to) return CAIRN_ERR_MALFORMED;
    memcpy(&to, address, sizeof to);
    if (to.path_bytes == 0 || to.path_bytes > sizeof to.path) return CAIRN_ERR_MALFORMED;
    if (to.cards.count > CAIRN_FABRIC_UUIDS_MAX) return CAIRN_ERR_MALFORMED;
    if (memcmp(fabric->host, to.host, sizeof fabric->host) != 0) return CAIRN_ERR_UNREACHABLE;
    struct mapped_out *out = calloc(1, sizeof *out);
    if (out == NULL) return CAIRN_ERR_NO_MEMORY;
    const int fd = connect_socket(&to);
    if (fd < 0) {
        free(out);
        return CAIRN_ERR_UNREACHABLE;
    }
    out->link = (struct mapped_link) { .kind = MAPPED_OUT, .fd = fd };
    if (!mapped_link_watch(fabric, &out->link, EPOLLIN)) {
        close(fd);
        free(out);
        return CAIRN_ERR_NO_MEMORY;
    }
    out->fabric = fabric;
    out->peer = peer;
    memcpy(out->key, to.key, sizeof out->key);
    if (!is_unwilling(fabric, to.key)) out->cards = to.cards;
    TAILQ_INIT(&out->queue);
    TAILQ_INIT(&out->waiting);
    LIST_INSERT_HEAD(&fabric->outs, out, entry);
    ((struct mapped_peer *)peer)->out = out;
    return CAIRN_OK;
}

static bool mapped_cards_have(const struct mapped_cards *cards, const uint8_t *uuid)
{
    for (uint32_t i = 0; i < cards->count; i++)
        if (memcmp(cards->uuids[i], uuid, sizeof cards->uuids[i]) == 0) return true;
    return false;
}

bool mapped_imports(const struct fabric_peer *peer, const uint8_t *uuid)
{
    const struct mapped_out *out = ((const struct mapped_peer *)peer)->out;
    return mapped_cards_have(&out->cards, uuid);
}

void mapped_import_none(struct mapped_out *out)
{
    struct mapped_fabric *fabric = out->fabric;
    out->cards.count = 0;
    if (is_unwilling(fabric, out->key)) return;
    const uint32_t at = fabric->unwilling.count++ % MAPPED_UNWILLING_MAX;
    memcpy(fabric->unwilling.keys[at], out->key, FRAME_KEY_BYTES);
}

static void end_frames(struct mapped_out *out, struct mapped_frames *frames)
{
    struct mapped_frame *frame;
    while ((frame = TAILQ_FIRST(frames)) != NULL) {
        TAILQ_REMOVE(frames, frame, link);
        struct fabric_flight *flight = NULL;
        if (frame->kind == FRAME_MESSAGE) {
            flight = fabric_flight_find(&out->flights, frame->message.serial);
            fabric_op_done(frame->op, CAIRN_ERR_CLOSED);
        }
        if (flight != NULL) {
            out->staged_pages -= flight->pages.count;
            mapped_unstage(out->fabric, flight->pages);
            fabric_flight_end(&out->flights, flight);
        }
        mapped_frame_put(out, frame);
    }
}

/* From now on the owner's buffers belong to the owner again. Copies that the peer may still read stay until
 * the peer has read them: the peer sees that nothing more follows, and releases the messages that it
 * holds. */
static void mapped_disconnect(struct fabric_peer *peer)
{
    struct mapped_out *out = ((struct mapped_peer *)peer)->out;
    mapped_out_write(out);
    end_frames(out, &out->queue);
    end_frames(out, &out->waiting);
    for (uint32_t i = 0; i < out->flights.capacity; i++) {
        struct fabric_flight *flight = &out->flights.all[i];
        if (!flight->is_used || flight->op == NULL) continue;
        fabric_op_done(flight->op, CAIRN_ERR_CLOSED);
        flight->op = NULL; // if this flight's release still arrives, nobody needs it
    }
    out->peer = NULL;
    if (out->is_lost || out->staged_written == 0) {
        mapped_out_end(out);
        return;
    }
    shutdown(out->link.fd, SHUT_WR);
    mapped_link_watch(out->fabric, &out->link, EPOLLIN);
}

void mapped_out_end(struct mapped_out *out)
{
    out->is_lost = true;
    for (uint32_t i = 0; i < out->flights.capacity; i++)
        if (out->flights.all[i].is_used) mapped_unstage(out->fabric, out->flights.all[i].pages);
    free(out->flights.all);
    out->flights = (struct fabric_flights) { 0 };
    if (out->is_fresh) TAILQ_REMOVE(&out->fabric->fresh, out, fresh);
    LIST_REMOVE(out, entry);
    mapped_link_end(out->fabric, &out->link);
}
