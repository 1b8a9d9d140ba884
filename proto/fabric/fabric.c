/* The functions that all fabrics have in common. backend.h describes the division of work. */
#include "proto/fabric/backend.h"

#include <assert.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "proto/wire/wire.h"

static const struct fabric_backend *const backends[] = { &fabric_auto, &fabric_mapped,
                                                         &fabric_sealed, &fabric_stream,
                                                         &fabric_ucx };

enum { COUNT_MAX = 1 << 20 }; /* the largest held_max and sends_max */
enum { PATIENCE_MIN_MS = 1000, PATIENCE_MAX_MS = 600000 };

static const struct fabric_backend *find_backend(const char *kind, const struct fabric_hub *hub)
{
    if (hub != NULL && strcmp(hub->backend->kind, kind) == 0) return hub->backend;
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (strcmp(backends[i]->kind, kind) == 0) return backends[i];
    return NULL;
}

static const char *const one_sided_names[] = { "auto", "on", "off" };
static const char *const device_memory_names[] = { "auto", "device", "host" };

/* Returns the index of `text` among `count` names, or `count` if `text` is none of the names. */
static unsigned find_name(const char *const *names, unsigned count, const char *text)
{
    unsigned i = 0;
    while (i < count && strcmp(text, names[i]) != 0) i++;
    return i;
}

const char *one_sided_name(enum one_sided value)
{
    return one_sided_names[value];
}

bool port_range_ok(const char *text)
{
    unsigned first, last;
    int end = 0;
    return strspn(text, "0123456789-") == strlen(text) &&
           sscanf(text, "%5u-%5u%n", &first, &last, &end) == 2 && text[end] == '\0' && first > 0 &&
           first <= last && last <= UINT16_MAX;
}

bool one_sided_parse(const char *text, enum one_sided *out)
{
    const unsigned count = sizeof one_sided_names / sizeof *one_sided_names;
    const unsigned i = find_name(one_sided_names, count, text);
    if (i < count) *out = (enum one_sided)i;
    return i < count;
}

bool device_memory_parse(const char *text, enum device_memory *out)
{
    const unsigned count = sizeof device_memory_names / sizeof *device_memory_names;
    const unsigned i = find_name(device_memory_names, count, text);
    if (i < count) *out = (enum device_memory)i;
    return i < count;
}

bool fabric_peer_takes_device(const struct fabric_peer *peer)
{
    const struct fabric_backend *backend = peer->fabric->backend;
    return peer->fabric->takes_device &&
           (backend->takes_device == NULL || backend->takes_device(peer));
}

/* True for memory of a card of options.device: the decision about device memory holds for these cards
 * only. */
static bool is_of_options(const struct fabric_region *region)
{
    const struct fabric_device *device = region->fabric->options.device;
    for (uint32_t i = 0; device != NULL && i < device->uuid_count; i++)
        if (memcmp(device->uuids[i], region->uuid, sizeof region->uuid) == 0) return true;
    return false;
}

/* True if a payload of the region is sent to the peer over the network directly from the card. */
static bool goes_directly(const struct fabric_peer *peer, const struct fabric_region *region,
                          size_t bytes)
{
    return fabric_peer_takes_device(peer) && bytes >= CAIRN_FABRIC_DIRECT_MIN &&
           !region->is_unregistered && is_of_options(region);
}

bool fabric_takes_device(const struct fabric *fabric, const char **why_out)
{
    *why_out = fabric->device_why.text;
    return fabric->takes_device;
}

cairn_status fabric_open(const char *kind, const struct fabric_options *options,
                         struct fabric **fabric_out, struct sentence *why)
{
    const struct fabric_backend *backend = find_backend(kind, options->hub);
    if (backend == NULL)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "no fabric '%s': use auto, mapped, sealed, stream or ucx", kind);
    struct fabric_options resolved = *options;
    if (resolved.max_payload == 0) resolved.max_payload = CAIRN_FABRIC_PAYLOAD_MAX;
    if (resolved.held_max == 0) resolved.held_max = 4096;
    if (resolved.sends_max == 0) resolved.sends_max = 4096;
    if (resolved.mapped_max == 0) resolved.mapped_max = UINT64_C(1) << 40;
    if (resolved.on_message == NULL || resolved.max_payload > UINT32_MAX ||
        resolved.held_max > COUNT_MAX || resolved.sends_max > COUNT_MAX ||
        (resolved.device != NULL && resolved.device->uuid_count > CAIRN_FABRIC_UUIDS_MAX))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "fabric %s: on_message missing, max_payload over 4 GiB, held_max or "
                         "sends_max over %d, or over %d cards",
                         kind, COUNT_MAX, CAIRN_FABRIC_UUIDS_MAX);
    if (resolved.host != NULL && !fabric_host_is_name(resolved.host))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "fabric %s: \"%.100s\" is no name of a host: 1 to %d visible characters",
                         kind, resolved.host, CAIRN_FABRIC_HOST_BYTES - 1);

    struct fabric *fabric = calloc(1, backend->fabric_bytes);
    if (fabric == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "fabric %s: out of memory", kind);
    fabric->spare_message = calloc(1, backend->message_bytes + 1); // auto's message_bytes is 0
    if (fabric->spare_message == NULL) {
        free(fabric);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "fabric %s: out of memory", kind);
    }
    fabric->backend = backend;
    fabric->options = resolved;
    fabric->event_fd = -1;
    sentence_set(&fabric->device_why,
                 "data of a card goes through host memory: there is no ucx here");
    LIST_INIT(&fabric->peers);
    LIST_INIT(&fabric->held);
    TAILQ_INIT(&fabric->flying);
    TAILQ_INIT(&fabric->done);
    TAILQ_INIT(&fabric->spare);
    TAILQ_INIT(&fabric->attention);

    cairn_status status = backend->start(fabric, &resolved, why);
    if (status != CAIRN_OK) {
        free(fabric->spare_message);
        free(fabric);
        return status;
    }
    fabric->options.transports = fabric->options.net_devices = fabric->options.port_range = NULL;
    fabric->options.socket_folder = fabric->options.host = NULL;
    *fabric_out = fabric;
    return CAIRN_OK;
}

/* -- peers -------------------------------------------------------------------------------------- */

cairn_status fabric_connect_to(struct fabric *fabric, const void *address, size_t bytes,
                               fabric_down_fn *on_down, void *arg, struct fabric_peer **peer_out)
{
    if (fabric->is_closing) return CAIRN_ERR_CLOSED;
    if (fabric->backend->connect_inside != NULL)
        return fabric->backend->connect_inside(fabric, address, bytes, on_down, arg, peer_out);
    size_t raw_bytes;
    const void *raw = fabric_open_address(fabric, address, bytes, &raw_bytes);
    if (raw == NULL) return CAIRN_ERR_MALFORMED;
    struct fabric_peer *peer = calloc(1, fabric->backend->peer_bytes);
    if (peer == NULL) return CAIRN_ERR_NO_MEMORY;
    peer->fabric = fabric;
    peer->on_down = on_down;
    peer->arg = arg;
    cairn_status status = fabric->backend->connect(peer, raw, raw_bytes);
    if (status != CAIRN_OK) {
        free(peer);
        return status;
    }
    LIST_INSERT_HEAD(&fabric->peers, peer, link);
    fabric->stats.peers_now++;
    *peer_out = peer;
    return CAIRN_OK;
}

cairn_status fabric_expect(struct fabric *fabric, const void *address, size_t bytes)
{
    if (fabric->backend->expect == NULL || fabric->is_closing) return CAIRN_OK;
    return fabric->backend->expect(fabric, address, bytes, true);
}

void fabric_forget(struct fabric *fabric, const void *address, size_t bytes)
{
    if (fabric->backend->expect == NULL || fabric->is_closing) return;
    cairn_status status = fabric->backend->expect(fabric, address, bytes, false);
    (void)status; // to expect less takes no memory
}

/* Backends must not lose an endpoint inside their own callbacks, so lost and closed peers are queued
 * here until fabric_deliver. */
static void attend(struct fabric_peer *peer)
{
    if (peer->is_queued) return;
    peer->is_queued = true;
    TAILQ_INSERT_TAIL(&peer->fabric->attention, peer, attention);
}

void fabric_peer_lost(struct fabric_peer *peer, cairn_status why)
{
    if (peer->is_down) return;
    peer->is_down = true;
    peer->why = why;
    attend(peer);
}

void fabric_peer_close(struct fabric_peer *peer)
{
    if (peer == NULL || peer->is_closed) return;
    peer->is_closed = true;
    peer->fabric->stats.peers_now--;
    attend(peer);
}

static void cut_peer(struct fabric_peer *peer)
{
    if (peer->is_cut) return;
    peer->is_cut = true;
    peer->is_down = true;
    peer->fabric->backend->disconnect(peer);
}

static void see_to_peer(struct fabric_peer *peer)
{
    struct fabric *fabric = peer->fabric;
    TAILQ_REMOVE(&fabric->attention, peer, attention);
    peer->is_queued = false;
    cut_peer(peer);
    if (peer->is_closed) {
        LIST_REMOVE(peer, link);
        free(peer);
    } else if (!peer->is_told) {
        peer->is_told = true;
        fabric->stats.peers_down++;
        if (peer->on_down != NULL) peer->on_down(peer->arg, peer, peer->why);
    }
}

/* -- operations --------------------------------------------------------------------------------- */

static struct fabric_op *op_new(struct fabric *fabric, bool is_send, size_t payload_bytes,
                                fabric_done_fn *on_done, void *arg)
{
    struct fabric_op *op = TAILQ_FIRST(&fabric->spare);
    if (op != NULL)
        TAILQ_REMOVE(&fabric->spare, op, link);
    else if ((op = malloc(sizeof *op)) == NULL)
        return NULL;
    op->fabric = fabric;
    op->is_send = is_send;
    op->is_done = false;
    op->is_device = false;
    op->payload_bytes = payload_bytes;
    op->on_done = on_done;
    op->arg = arg;
    op->header_bytes = 0;
    op->is_summed = false;
    op->checksum_out = NULL;
    op->held = NULL;
    op->by = NULL;
    op->to = NULL;
    op->due_ms = 0;
    TAILQ_INSERT_TAIL(&fabric->flying, op, link);
    *(is_send ? &fabric->stats.sends_now : &fabric->stats.receives_now) += 1;
    return op;
}

static void op_retire(struct fabric_op *op, struct fabric_ops *from)
{
    struct fabric *fabric = op->fabric;
    TAILQ_REMOVE(from, op, link);
    *(op->is_send ? &fabric->stats.sends_now : &fabric->stats.receives_now) -= 1;
    TAILQ_INSERT_HEAD(&fabric->spare, op, link);
}

void fabric_op_done(struct fabric_op *op, cairn_status status)
{
    assert(!op->is_done);
    op->is_done = true;
    op->status = status;
    TAILQ_REMOVE(&op->fabric->flying, op, link);
    TAILQ_INSERT_TAIL(&op->fabric->done, op, link);
}

static void tell_done(struct fabric_op *op)
{
    struct fabric *fabric = op->fabric;
    fabric_done_fn *on_done = op->on_done;
    void *arg = op->arg;
    cairn_status status = op->status;
    if (!op->is_send && status == CAIRN_OK) fabric->stats.bytes_received += op->payload_bytes;
    if (op->checksum_out != NULL && !op->is_summed && status == CAIRN_OK)
        *op->checksum_out = chunk_checksum(op->buffer, op->payload_bytes);
    op_retire(op, &fabric->done); // first: the callback may send again, and can reuse this op
    if (on_done != NULL) on_done(arg, status);
}

static bool fabric_region_goes(const struct fabric_peer *peer, const void *payload, size_t bytes,
                               const struct fabric_region **device_out);

cairn_status fabric_send(struct fabric_peer *peer, const void *header, size_t header_bytes,
                         const void *payload, size_t payload_bytes, fabric_done_fn *on_sent,
                         void *arg)
{
    struct fabric *fabric = peer->fabric;
    if (header_bytes == 0 || header_bytes > CAIRN_FABRIC_HEADER_MAX) return CAIRN_ERR_INVALID;
    if (payload_bytes > fabric->options.max_payload) return CAIRN_ERR_INVALID;
    if (payload_bytes > 0 && (payload == NULL || on_sent == NULL)) return CAIRN_ERR_INVALID;
    if (peer->is_down || peer->is_closed || fabric->is_closing) return CAIRN_ERR_CLOSED;
    const struct fabric_region *device;
    if (!fabric_region_goes(peer, payload, payload_bytes, &device)) return CAIRN_ERR_UNSUPPORTED;
    if (fabric->stats.sends_now >= fabric->options.sends_max) return CAIRN_ERR_BUSY;

    struct fabric_op *op = op_new(fabric, true, payload_bytes, on_sent, arg);
    if (op == NULL) return CAIRN_ERR_NO_MEMORY;
    memcpy(op->header, header, header_bytes);
    op->header_bytes = header_bytes;
    op->is_device = device != NULL;
    cairn_status status = fabric->backend->send(peer, op, payload);
    if (status != CAIRN_OK) {
        op_retire(op, &fabric->flying);
        return status;
    }
    fabric->stats.messages_sent++;
    fabric->stats.bytes_sent += payload_bytes;
    return CAIRN_OK;
}

/* -- messages ----------------------------------------------------------------------------------- */

bool fabric_judge(struct fabric *fabric, size_t header_bytes, size_t payload_bytes)
{
    const struct fabric_stats *now = &fabric->stats;
    if (!fabric->is_closing && header_bytes > 0 && header_bytes <= CAIRN_FABRIC_HEADER_MAX &&
        payload_bytes <= fabric->options.max_payload &&
        (payload_bytes == 0 || now->held_now + now->receives_now < fabric->options.held_max))
        return true;
    fabric->stats.messages_refused++;
    return false;
}

struct fabric_message *fabric_message_new(struct fabric *fabric, size_t payload_bytes)
{
    struct fabric_message *message = calloc(1, fabric->backend->message_bytes);
    if (message == NULL) { // UCX does not tell a sender that its message was lost
        message = fabric->spare_message;
        fabric->spare_message = NULL;
    }
    if (message == NULL) {
        fabric->stats.messages_refused++;
        return NULL;
    }
    message->fabric = fabric;
    message->payload_bytes = payload_bytes;
    LIST_INSERT_HEAD(&fabric->held, message, link);
    fabric->stats.held_now++;
    return message;
}

static void held_free(struct fabric_message *message)
{
    struct fabric *fabric = message->fabric;
    LIST_REMOVE(message, link);
    fabric->stats.held_now--;
    if (fabric->spare_message != NULL) {
        free(message);
        return;
    }
    memset(message, 0, fabric->backend->message_bytes);
    fabric->spare_message = message;
}

void fabric_offer(struct fabric *fabric, const void *header, size_t header_bytes,
                  size_t payload_bytes, struct fabric_message *message)
{
    fabric->stats.messages_received++;
    fabric->options.on_message(fabric->options.on_message_arg, header, header_bytes, payload_bytes,
                               message);
}

/* True for an address of a card, which no host code may dereference. */
static bool is_of_card(const struct fabric *fabric, const void *buffer)
{
    if (fabric->device_region_count == 0) return false;
    const struct fabric_region *region = fabric_region_find(fabric, buffer, 1);
    return region != NULL && region->is_device;
}

static bool lands(const struct fabric_message *message, const void *buffer)
{
    const struct fabric *fabric = message->fabric;
    const struct fabric_region *region = fabric_region_find(fabric, buffer, message->payload_bytes);
    return fabric->takes_device && fabric->backend->lands != NULL && region != NULL &&
           !region->is_unregistered && is_of_options(region) && fabric->backend->lands(message);
}

static cairn_status receive(struct fabric_message *message, void *buffer, size_t capacity,
                            uint64_t *checksum_out, fabric_done_fn *on_received, void *arg)
{
    struct fabric *fabric = message->fabric;
    const bool is_device = is_of_card(fabric, buffer);
    if (capacity < message->payload_bytes || on_received == NULL) return CAIRN_ERR_INVALID;
    if (message->is_gone) return CAIRN_ERR_CLOSED;
    if (is_device && (checksum_out != NULL || !lands(message, buffer)))
        return CAIRN_ERR_UNSUPPORTED;
    struct fabric_op *op = op_new(fabric, false, message->payload_bytes, on_received, arg);
    if (op == NULL) return CAIRN_ERR_NO_MEMORY;
    op->checksum_out = checksum_out;
    op->buffer = buffer;
    op->is_device = is_device;
    fabric->backend->receive(message, op, buffer);
    held_free(message);
    return CAIRN_OK;
}

cairn_status fabric_receive(struct fabric_message *message, void *buffer, size_t capacity,
                            fabric_done_fn *on_received, void *arg)
{
    return receive(message, buffer, capacity, NULL, on_received, arg);
}

cairn_status fabric_receive_far(struct fabric_message *message, void *buffer, size_t capacity,
                                uint64_t *checksum_out, fabric_done_fn *on_received, void *arg)
{
    return receive(message, buffer, capacity, checksum_out, on_received, arg);
}

void fabric_drop(struct fabric_message *message)
{
    if (message == NULL || message->is_gone) return;
    message->fabric->stats.messages_dropped++;
    message->fabric->backend->drop(message);
    held_free(message);
}

const void *fabric_message_view(const struct fabric_message *message)
{
    const struct fabric_backend *backend = message->fabric->backend;
    return backend->view != NULL && !message->is_gone ? backend->view(message) : NULL;
}

bool fabric_peer_is_starved(const struct fabric_peer *peer)
{
    const struct fabric_backend *backend = peer->fabric->backend;
    return backend->is_starved != NULL && backend->is_starved(peer);
}

const char *fabric_peer_path(const struct fabric_peer *peer)
{
    return peer->fabric->backend->kind;
}

const char *fabric_message_path(const struct fabric_message *message)
{
    const struct fabric_backend *backend = message->fabric->backend;
    return backend->message_path != NULL ? backend->message_path(message) : backend->kind;
}

const char *fabric_payload_path(const struct fabric_peer *peer, const void *payload, size_t bytes)
{
    const struct fabric_backend *backend = peer->fabric->backend;
    const struct fabric_region *device;
    const bool goes = fabric_region_goes(peer, payload, bytes, &device);
    if (device != NULL && !goes) return "";
    if (device != NULL) return peer->fabric->takes_device ? CAIRN_FABRIC_PATH_DIRECT : "device";
    return backend->payload_path != NULL ? backend->payload_path(peer, payload, bytes)
                                         : backend->kind;
}

void fabric_set_patience(struct fabric *fabric, uint32_t ms)
{
    const uint32_t bounded_ms = ms < PATIENCE_MIN_MS   ? PATIENCE_MIN_MS
                                : ms > PATIENCE_MAX_MS ? PATIENCE_MAX_MS
                                                       : ms;
    if (fabric->backend->set_patience != NULL) fabric->backend->set_patience(fabric, bounded_ms);
}

void fabric_hold_off(struct fabric *fabric, bool is_off)
{
    if (fabric->backend->hold_off != NULL) fabric->backend->hold_off(fabric, is_off);
}

/* -- driving ------------------------------------------------------------------------------------ */

/* Runs only the callbacks that are queued now: a callback that queues another each time must not keep us
 * here for ever. */
unsigned fabric_deliver(struct fabric *fabric)
{
    unsigned count = 0;
    struct fabric_peer *last_peer = TAILQ_LAST(&fabric->attention, fabric_attention);
    struct fabric_op *last_op = TAILQ_LAST(&fabric->done, fabric_ops);
    for (bool more = last_peer != NULL; more; count++) {
        struct fabric_peer *peer = TAILQ_FIRST(&fabric->attention);
        more = peer != last_peer;
        see_to_peer(peer);
    }
    for (bool more = last_op != NULL; more; count++) {
        struct fabric_op *op = TAILQ_FIRST(&fabric->done);
        more = op != last_op;
        tell_done(op);
    }
    return count;
}

unsigned fabric_progress(struct fabric *fabric)
{
    assert(!fabric->is_inside);
    fabric->is_inside = true;
    unsigned count = fabric_deliver(fabric);
    count += fabric->backend->progress(fabric);
    count += fabric_deliver(fabric);
    fabric->is_inside = false;
    return count;
}

cairn_status fabric_arm(struct fabric *fabric)
{
    if (!TAILQ_EMPTY(&fabric->attention) || !TAILQ_EMPTY(&fabric->done)) return CAIRN_ERR_BUSY;
    return fabric->backend->arm(fabric);
}

int fabric_event_fd(const struct fabric *fabric)
{
    return fabric->event_fd;
}

void fabric_stats(const struct fabric *fabric, struct fabric_stats *stats_out)
{
    *stats_out = fabric->stats;
    if (fabric->backend->stats != NULL) fabric->backend->stats(fabric, stats_out);
}

const char *fabric_describe(const struct fabric *fabric)
{
    return fabric->describe;
}

/* -- the end ------------------------------------------------------------------------------------ */

static void fabric_free_regions(struct fabric *fabric);

static void free_objects(struct fabric *fabric)
{
    while (!LIST_EMPTY(&fabric->held)) held_free(LIST_FIRST(&fabric->held));
    while (!LIST_EMPTY(&fabric->peers)) {
        struct fabric_peer *peer = LIST_FIRST(&fabric->peers);
        LIST_REMOVE(peer, link);
        free(peer);
    }
    fabric_free_regions(fabric);
    while (!TAILQ_EMPTY(&fabric->spare)) {
        struct fabric_op *op = TAILQ_FIRST(&fabric->spare);
        TAILQ_REMOVE(&fabric->spare, op, link);
        free(op);
    }
}

void fabric_close(struct fabric *fabric)
{
    if (fabric == NULL) return;
    assert(!fabric->is_inside);
    fabric->is_inside = true;
    fabric->is_closing = true; // from here on nothing new is sent or received
    struct fabric_message *message;
    LIST_FOREACH (message, &fabric->held, link) {
        fabric->backend->drop(message);
        message->is_gone = true; // a callback below may still refer to the message
    }
    struct fabric_peer *peer;
    LIST_FOREACH (peer, &fabric->peers, link) cut_peer(peer);
    fabric->backend->stop(fabric);
    while (!TAILQ_EMPTY(&fabric->flying))
        fabric_op_done(TAILQ_FIRST(&fabric->flying), CAIRN_ERR_CLOSED);
    while (!TAILQ_EMPTY(&fabric->done)) tell_done(TAILQ_FIRST(&fabric->done));
    assert(fabric->stats.sends_now == 0 && fabric->stats.receives_now == 0);
    free_objects(fabric);
    free(fabric->spare_message);
    free(fabric);
}

/* ==== region ==== */

/* Regions: shared memory of ours that peers on this host may map. Common to all fabrics; fabrics
 * that cannot map only keep the object. */

/* F_GET_SEALS fails except on memfds and on files of tmpfs, and a file of tmpfs cannot get these seals. */
cairn_status fabric_judge_memory(int fd, uint64_t bytes)
{
    struct stat file;
    struct statfs system;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals == -1 || (seals & CAIRN_FABRIC_SEALS) != CAIRN_FABRIC_SEALS) return CAIRN_ERR_INVALID;
    if (fstat(fd, &file) != 0 || fstatfs(fd, &system) != 0) return CAIRN_ERR_INVALID;
    if (bytes == 0 || bytes > (uint64_t)file.st_size) return CAIRN_ERR_INVALID;
    // The pool of huge pages may be empty when a page is first touched, which would raise SIGBUS.
    return system.f_type == HUGETLBFS_MAGIC ? CAIRN_ERR_INVALID : CAIRN_OK;
}

/* -- by address --------------------------------------------------------------------------------- */

/* Returns how many regions begin at or before this address. */
static uint32_t rank_of(const struct fabric *fabric, const void *address)
{
    uint32_t low = 0, high = fabric->region_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if ((uintptr_t)fabric->regions[middle]->base <= (uintptr_t)address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct fabric_region *fabric_region_find(const struct fabric *fabric, const void *memory,
                                         size_t bytes)
{
    const uint32_t rank = rank_of(fabric, memory);
    if (rank == 0) return NULL;
    struct fabric_region *region = fabric->regions[rank - 1];
    const size_t offset = (uintptr_t)memory - (uintptr_t)region->base;
    const bool is_inside = offset < region->bytes && bytes <= region->bytes - offset;
    return is_inside ? region : NULL;
}

/* If two regions had the same address, chance would decide to which region a payload belongs. */
static bool region_overlaps(const struct fabric *fabric, const void *base, size_t bytes)
{
    const uint32_t rank = rank_of(fabric, base);
    const struct fabric_region *before = rank > 0 ? fabric->regions[rank - 1] : NULL;
    const struct fabric_region *behind = NULL;
    if (rank < fabric->region_count) behind = fabric->regions[rank];
    if (before != NULL && (uintptr_t)base - (uintptr_t)before->base < before->bytes) return true;
    return behind != NULL && (uintptr_t)behind->base - (uintptr_t)base < bytes;
}

static bool regions_make_room(struct fabric *fabric)
{
    if (fabric->region_count < fabric->region_capacity) return true;
    const uint32_t capacity = 2 * fabric->region_capacity + 16;
    struct fabric_region **regions = realloc(fabric->regions, capacity * sizeof *regions);
    if (regions == NULL) return false;
    fabric->regions = regions;
    fabric->region_capacity = capacity;
    return true;
}

static void regions_put_in(struct fabric *fabric, struct fabric_region *region)
{
    const uint32_t rank = rank_of(fabric, region->base);
    memmove(fabric->regions + rank + 1, fabric->regions + rank,
            (fabric->region_count - rank) * sizeof(*fabric->regions));
    fabric->regions[rank] = region;
    fabric->region_count++;
}

static void regions_take_out(struct fabric *fabric, const struct fabric_region *region)
{
    const uint32_t rank = rank_of(fabric, region->base) - 1;
    assert(fabric->regions[rank] == region);
    fabric->region_count--;
    memmove(fabric->regions + rank, fabric->regions + rank + 1,
            (fabric->region_count - rank) * sizeof(*fabric->regions));
}

/* -- the calls ---------------------------------------------------------------------------------- */

static cairn_status judge_common(const struct fabric *fabric, const struct fabric_region *wanted,
                                 const void *note)
{
    if (wanted->base == NULL || wanted->bytes == 0) return CAIRN_ERR_INVALID;
    if (wanted->note_bytes > CAIRN_FABRIC_NOTE_MAX) return CAIRN_ERR_INVALID;
    if (wanted->note_bytes > 0 && note == NULL) return CAIRN_ERR_INVALID;
    return region_overlaps(fabric, wanted->base, wanted->bytes) ? CAIRN_ERR_INVALID : CAIRN_OK;
}

/* If the backend imports no memory of cards, the region is recorded all the same, so that we know which
 * addresses not to read. */
static cairn_status tell_backend(struct fabric_region *region)
{
    const struct fabric_backend *backend = region->fabric->backend;
    const bool has_cards = backend->imports != NULL || backend->connect_inside != NULL;
    if (backend->region_add == NULL || (region->is_device && !has_cards)) return CAIRN_OK;
    return backend->region_add(region);
}

static cairn_status region_add(struct fabric *fabric, const struct fabric_region *wanted,
                               const void *note, struct fabric_region **region_out)
{
    const size_t own_bytes = fabric->backend->region_bytes;
    if (!regions_make_room(fabric)) return CAIRN_ERR_NO_MEMORY;
    struct fabric_region *region = calloc(1, own_bytes > 0 ? own_bytes : sizeof *region);
    if (region == NULL) return CAIRN_ERR_NO_MEMORY;
    *region = *wanted;
    region->fabric = fabric;
    if (wanted->note_bytes > 0) memcpy(region->note, note, wanted->note_bytes);
    const cairn_status status = tell_backend(region);
    if (status != CAIRN_OK) {
        free(region);
        return status;
    }
    regions_put_in(fabric, region);
    fabric->device_region_count += region->is_device;
    *region_out = region;
    return CAIRN_OK;
}

cairn_status fabric_region_add(struct fabric *fabric, const void *base, size_t bytes, int fd,
                               const void *note, size_t note_bytes,
                               struct fabric_region **region_out)
{
    const struct fabric_region wanted = {
        .base = base, .bytes = bytes, .fd = fd, .note_bytes = note_bytes
    };
    cairn_status status = judge_common(fabric, &wanted, note);
    if (status == CAIRN_OK) status = fabric_judge_memory(fd, bytes);
    return status == CAIRN_OK ? region_add(fabric, &wanted, note, region_out) : status;
}

cairn_status fabric_region_add_device(struct fabric *fabric, const void *base, size_t bytes, int fd,
                                      const uint8_t *uuid, const void *note, size_t note_bytes,
                                      struct fabric_region **region_out)
{
    struct fabric_region wanted = {
        .base = base, .bytes = bytes, .fd = fd, .is_device = true, .note_bytes = note_bytes
    };
    if (fd < 0 || uuid == NULL) return CAIRN_ERR_INVALID;
    memcpy(wanted.uuid, uuid, sizeof wanted.uuid);
    const cairn_status status = judge_common(fabric, &wanted, note);
    return status == CAIRN_OK ? region_add(fabric, &wanted, note, region_out) : status;
}

bool fabric_peer_imports(const struct fabric_peer *peer, const uint8_t *uuid)
{
    const struct fabric_backend *backend = peer->fabric->backend;
    return backend->imports != NULL && backend->imports(peer, uuid);
}

/* Returns false if the payload is memory of a card that this peer does not take. *device_out is the region
 * if the payload is memory of a card, else NULL. */
static bool fabric_region_goes(const struct fabric_peer *peer, const void *payload, size_t bytes,
                               const struct fabric_region **device_out)
{
    *device_out = NULL;
    if (peer->fabric->device_region_count == 0 || bytes == 0) return true;
    const struct fabric_region *region = fabric_region_find(peer->fabric, payload, 1);
    if (region == NULL || !region->is_device) return true;
    *device_out = region;
    return bytes <= region->bytes - (size_t)((const uint8_t *)payload - region->base) &&
           (goes_directly(peer, region, bytes) || fabric_peer_imports(peer, region->uuid));
}

cairn_status fabric_region_show(struct fabric_region *region, struct fabric_peer *peer)
{
    if (peer->is_down || peer->is_closed || peer->fabric->is_closing) return CAIRN_ERR_CLOSED;
    const struct fabric_backend *backend = region->fabric->backend;
    if (backend->region_show == NULL) return CAIRN_OK;
    return backend->region_show(region, peer);
}

void fabric_region_drop(struct fabric_region *region)
{
    if (region == NULL) return;
    regions_take_out(region->fabric, region);
    region->fabric->device_region_count -= region->is_device;
    if (region->fabric->backend->region_drop != NULL) region->fabric->backend->region_drop(region);
    free(region);
}

/* Frees, at the end, the regions that the owner did not drop. */
static void fabric_free_regions(struct fabric *fabric)
{
    for (uint32_t i = 0; i < fabric->region_count; i++) free(fabric->regions[i]);
    free(fabric->regions);
    fabric->regions = NULL;
    fabric->region_count = fabric->region_capacity = 0;
}

/* ==== flight ==== */

enum { NONE = UINT32_MAX };

static cairn_status flights_grow(struct fabric_flights *flights)
{
    const uint32_t before = flights->capacity, after = before > 0 ? 2 * before : 32;
    struct fabric_flight *all = realloc(flights->all, after * sizeof *all);
    if (all == NULL) return CAIRN_ERR_NO_MEMORY;
    for (uint32_t i = before; i < after; i++)
        all[i] = (struct fabric_flight) { .generation = 1,
                                          .next_free = i + 1 < after ? i + 1 : (uint32_t)NONE };
    flights->all = all;
    flights->capacity = after;
    flights->first_free = before;
    return CAIRN_OK;
}

bool fabric_slots_reserve(void *slots, uint32_t *count, uint16_t slot, size_t elem_bytes)
{
    uint8_t *elems;
    if (slot < *count) return true;
    const uint32_t doubled = 2u * slot + 16,
                   wanted = doubled < CAIRN_FABRIC_SLOTS_MAX ? doubled : CAIRN_FABRIC_SLOTS_MAX;
    memcpy(&elems, slots, sizeof elems);
    if ((elems = realloc(elems, wanted * elem_bytes)) == NULL) return false;
    memset(elems + *count * elem_bytes, 0, (wanted - *count) * elem_bytes);
    memcpy(slots, &elems, sizeof elems);
    *count = wanted;
    return true;
}

/* The table is bounded: sends_max and the pages of the staging area limit the flights at any moment. */
cairn_status fabric_flight_begin(struct fabric_flights *flights, uint64_t *serial_out)
{
    if (flights->capacity == 0 || flights->first_free == NONE) CAIRN_TRY(flights_grow(flights));
    const uint32_t index = flights->first_free;
    struct fabric_flight *flight = &flights->all[index];
    flights->first_free = flight->next_free;
    *flight = (struct fabric_flight) { .generation = flight->generation, .is_used = true };
    *serial_out = (uint64_t)flight->generation << 32 | index;
    return CAIRN_OK;
}

struct fabric_flight *fabric_flight_find(struct fabric_flights *flights, uint64_t serial)
{
    const uint32_t index = (uint32_t)serial;
    if (index >= flights->capacity) return NULL;
    struct fabric_flight *flight = &flights->all[index];
    return flight->is_used && flight->generation == serial >> 32 ? flight : NULL;
}

void fabric_flight_end(struct fabric_flights *flights, struct fabric_flight *flight)
{
    flight->is_used = false;
    if (++flight->generation == 0) flight->generation = 1; // serial 0 belongs to no flight
    flight->next_free = flights->first_free;
    flights->first_free = (uint32_t)(flight - flights->all);
}

/* ==== far copy ==== */

#if defined(__SSE2__)
#include <emmintrin.h>

#define LINE CAIRN_LINE_BYTES
/* The number of streams read at a time: a core keeps more lines under way in several streams than in one
 * stream. */
#define STREAMS     ((size_t)4)
#define AHEAD_BYTES 2048 /* how far ahead: the hardware prefetches only up to the page's end */

static void stream_line(uint8_t *to, const uint8_t *from)
{
    __builtin_prefetch(from + AHEAD_BYTES); // beyond the end a prefetch has no effect
    const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
    const __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
    const __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));
    _mm_stream_si128((__m128i *)(void *)to, a);
    _mm_stream_si128((__m128i *)(void *)(to + 16), b);
    _mm_stream_si128((__m128i *)(void *)(to + 32), c);
    _mm_stream_si128((__m128i *)(void *)(to + 48), d);
}

void far_copy(void *to, const void *from, size_t bytes)
{
    uint8_t *out = to;
    const uint8_t *in = from;
    const size_t odd = (LINE - (uintptr_t)out % LINE) % LINE, before = odd < bytes ? odd : bytes;
    const size_t each = stagger_cut(bytes - before, STREAMS);
    memcpy(out, in, before);
    for (size_t at = before; at < before + each; at += LINE)
        for (size_t s = 0; s < STREAMS; s++) stream_line(out + at + s * each, in + at + s * each);
    size_t done = before + STREAMS * each;
    for (; bytes - done >= LINE; done += LINE) stream_line(out + done, in + done);
    memcpy(out + done, in + done, bytes - done);
    _mm_sfence(); // a thread that is told of the copy then sees the copied bytes
}
#else
void far_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif
