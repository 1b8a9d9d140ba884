/* Messages that arrived by reference. Their payload is read from the peer's memory into a buffer that the
 * owner chooses, at a time that the owner chooses. After the read, or when the message is dropped, the peer
 * is told (RELEASE) that it may reuse the memory. If a read fails, its buffer is undefined and its message
 * is lost, as after a receive whose sender died. A read that succeeds returns the current bytes of the
 * memory. The memory belongs to the peer, which may have reused it because it lost us without our
 * knowledge. So every receiver checks the checksum and the version in the message's header, which tell
 * whether the bytes are the intended ones (proto/wire/wire.h). */
#include "proto/fabric/ucx.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/base/machine.h"
#include "proto/base/text.h"
#include "proto/fabric/backend.h"

/* -- the peer's memory -------------------------------------------------------------------------- */

static void remote_release(struct ucx_remote *remote)
{
    if (--remote->references > 0) return;
    ucp_rkey_destroy(remote->key);
    free(remote);
}

static struct ucx_remote *remote_of(const struct ucx_link *link, uint16_t slot, uint32_t generation)
{
    struct ucx_remote *remote = slot < link->region_count ? link->regions[slot] : NULL;
    return remote != NULL && remote->generation == generation ? remote : NULL;
}

/* UCX reads lengths from the key without knowing where the key ends, so zeros follow the key. */
static ucs_status_t unpack_key(struct ucx_link *link, const void *key, size_t bytes,
                               ucp_rkey_h *out)
{
    struct ucx_fabric *ucx = link->ucx;
    memset(ucx->key_room, 0, sizeof ucx->key_room);
    memcpy(ucx->key_room, key, bytes);
    return ucp_ep_rkey_unpack(link->ep, ucx->key_room, out);
}

/* Reports that a frame of a peer was refused. */
__attribute__((format(printf, 3, 4))) static void
tell_refused(struct ucx_fabric *ucx, uint64_t node, const char *format, ...)
{
    const struct fabric_options *options = &ucx->common.options;
    char text[CAIRN_SENTENCE_BYTES], what[CAIRN_SENTENCE_BYTES];
    va_list arguments;
    if (options->on_refused == NULL) return;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    snprintf(text, sizeof text, "one-sided reads, node %016" PRIx64 ": %.600s", node, what);
    options->on_refused(options->on_message_arg, text);
}

/* A region that cannot be read is not kept: references to the region are declined, and the payloads are
 * sent in messages. */
static void ucx_on_region(struct ucx_link *link, const struct ucx_frame_region *frame,
                          const void *key)
{
    struct ucx_fabric *ucx = link->ucx;
    if (!link->may_read || remote_of(link, frame->slot, frame->generation) != NULL) return;
    if (frame->bytes > ucx->common.options.mapped_max ||
        fabric_hash(key, frame->key_bytes) != frame->key_checksum) {
        tell_refused(ucx, link->node,
                     "region %u of %" PRIu64 " bytes: it is over %" PRIu64
                     ", or its key is damaged; what this "
                     "node has is sent whole from now on",
                     frame->slot, frame->bytes, ucx->common.options.mapped_max);
        link->may_read = false;
        return;
    }
    struct ucx_remote *remote = calloc(1, sizeof *remote);
    if (remote == NULL || !fabric_slots_reserve(&link->regions, &link->region_count, frame->slot,
                                                sizeof(*link->regions))) {
        free(remote);
        return;
    }
    const ucs_status_t status = unpack_key(link, key, frame->key_bytes, &remote->key);
    if (status != UCS_OK) {
        tell_refused(ucx, link->node,
                     "region %u: its key of %u bytes does not unpack (%s); what this node has is "
                     "sent whole from now on; do both ends have the same UCX and transports?",
                     frame->slot, frame->key_bytes, ucs_status_string(status));
        link->may_read = false;
        free(remote);
        return;
    }
    remote->references = 1;
    remote->address = frame->address;
    remote->bytes = frame->bytes;
    remote->generation = frame->generation;
    if (link->regions[frame->slot] != NULL) remote_release(link->regions[frame->slot]);
    link->regions[frame->slot] = remote;
}

static void ucx_on_region_gone(struct ucx_link *link, const struct ucx_frame_gone *frame)
{
    struct ucx_remote *remote = remote_of(link, frame->slot, frame->generation);
    if (remote == NULL) return;
    link->regions[frame->slot] = NULL;
    remote_release(remote);
}

/* -- messages ----------------------------------------------------------------------------------- */

static void answer_reference(struct ucx_link *link, enum ucx_frame_kind kind, uint64_t serial,
                             enum ucx_decline why)
{
    const struct ucx_frame_release frame = {
        .head = ucx_frame_head(kind, link->ucx->node),
        .serial = serial,
        .why = kind == UCX_FRAME_DECLINE ? why : 0,
    };
    const cairn_status status = ucx_control_send(link, &frame, sizeof frame, NULL, 0);
    (void)status; // if this failed, the endpoint is lost, and our next endpoint releases everything
}

static void release_reference(struct ucx_link *link, uint64_t serial)
{
    if (link != NULL) answer_reference(link, UCX_FRAME_RELEASE, serial, 0);
}

/* True if the payload lies inside the region. The test subtracts, so that no number from a stranger
 * overflows. */
static bool is_inside(const struct ucx_remote *remote, const struct ucx_frame_reference *frame)
{
    return frame->offset < remote->bytes && frame->payload_bytes <= remote->bytes - frame->offset;
}

static void ucx_on_reference(struct ucx_link *link, const struct ucx_frame_reference *frame,
                             const void *header)
{
    struct fabric *fabric = &link->ucx->common;
    struct ucx_remote *remote = remote_of(link, frame->slot, frame->generation);
    struct ucx_message *message = NULL;
    if (remote == NULL || !link->may_read) {
        answer_reference(link, UCX_FRAME_DECLINE, frame->serial,
                         link->may_read ? UCX_DECLINE_UNKNOWN : UCX_DECLINE_CANNOT);
        return;
    }
    if (!is_inside(remote, frame)) {
        fabric->stats.messages_refused++;
        tell_refused(ucx_of(fabric), link->node,
                     "a message refers to %u bytes at %" PRIu64 " of region %u, which has %" PRIu64
                     "; what this node has is sent whole from now on; is it of the same version?",
                     frame->payload_bytes, frame->offset, frame->slot, remote->bytes);
        link->may_read = false;
        answer_reference(link, UCX_FRAME_DECLINE, frame->serial, UCX_DECLINE_CANNOT);
        return;
    }
    if (fabric_judge(fabric, frame->header_bytes, frame->payload_bytes))
        message = (struct ucx_message *)fabric_message_new(fabric, frame->payload_bytes);
    if (message == NULL) {
        release_reference(link, frame->serial);
        return;
    }
    message->region = remote;
    remote->references++;
    message->by = link;
    message->serial = frame->serial;
    message->offset = frame->offset;
    LIST_INSERT_HEAD(&link->referred, message, entry);
    fabric_offer(fabric, header, frame->header_bytes, frame->payload_bytes, &message->common);
}

static void let_go(struct ucx_message *message)
{
    if (message->by != NULL) LIST_REMOVE(message, entry);
    message->by = NULL;
}

void ucx_read_drop(struct ucx_message *message)
{
    release_reference(message->by, message->serial);
    let_go(message);
    remote_release(message->region);
}

/* -- reads -------------------------------------------------------------------------------------- */

/* Ends a read that is in no list any more. */
static void end_read(struct ucx_read *read, cairn_status status)
{
    if (status == CAIRN_OK) read->op->fabric->stats.bytes_read += read->op->payload_bytes;
    fabric_op_done(read->op, status);
    release_reference(read->by, read->serial);
    remote_release(read->region);
    free(read);
}

static void pump(struct ucx_fabric *ucx);

static void on_ucx_read(void *request, ucs_status_t status, void *arg)
{
    struct ucx_read *read = arg;
    struct ucx_fabric *ucx = ucx_of(read->op->fabric);
    LIST_REMOVE(read, link);
    ucx->reads_now--;
    end_read(read, ucx_status(status));
    ucp_request_free(request);
    pump(ucx);
}

static void start_read(struct ucx_fabric *ucx, struct ucx_read *read)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_ucx_read,
        .user_data = read,
    };
    ucs_status_ptr_t request = ucp_get_nbx(read->by->ep, read->buffer, read->op->payload_bytes,
                                           read->region->address + read->offset, read->region->key,
                                           &param);
    if (UCS_PTR_IS_PTR(request)) {
        LIST_INSERT_HEAD(&ucx->reads, read, link);
        ucx->reads_now++;
    } else {
        end_read(read, ucx_status(UCS_PTR_STATUS(request)));
    }
}

/* Starts reads, a bounded number at a time, in the order in which they were requested. */
static void pump(struct ucx_fabric *ucx)
{
    while (ucx->reads_now < UCX_READS_MAX && !STAILQ_EMPTY(&ucx->reads_later)) {
        struct ucx_read *read = STAILQ_FIRST(&ucx->reads_later);
        STAILQ_REMOVE_HEAD(&ucx->reads_later, later);
        start_read(ucx, read);
    }
}

void ucx_read_receive(struct ucx_message *message, struct fabric_op *op, void *buffer)
{
    struct ucx_fabric *ucx = ucx_of(op->fabric);
    struct ucx_link *link = message->by;
    struct ucx_read *read = malloc(sizeof *read);
    let_go(message);
    op->by = link != NULL ? link->ep : NULL;
    if (read == NULL) {
        release_reference(link, message->serial);
        remote_release(message->region);
        fabric_op_done(op, CAIRN_ERR_NO_MEMORY);
        return;
    }
    *read = (struct ucx_read) { .op = op,
                                .by = link,
                                .region = message->region,
                                .buffer = buffer,
                                .serial = message->serial,
                                .offset = message->offset };
    if (link == NULL) {
        end_read(read, CAIRN_ERR_CLOSED);
        return;
    }
    STAILQ_INSERT_TAIL(&ucx->reads_later, read, later);
    pump(ucx);
}

/* -- the end ------------------------------------------------------------------------------------ */

/* Drops the waiting reads without telling the peer. */
static void give_up_waiting(struct ucx_fabric *ucx, const struct ucx_link *link)
{
    struct ucx_read *read = STAILQ_FIRST(&ucx->reads_later), *next;
    for (; read != NULL; read = next) {
        next = STAILQ_NEXT(read, later);
        if (read->by != link) continue;
        STAILQ_REMOVE(&ucx->reads_later, read, ucx_read, later);
        read->by = NULL;
        end_read(read, CAIRN_ERR_CLOSED);
    }
}

/* Called when the link is being closed: forgets the regions that the peer showed. Reads in flight end by
 * themselves. */
static void ucx_forget_remotes(struct ucx_link *link)
{
    struct ucx_fabric *ucx = link->ucx;
    struct ucx_read *read;
    give_up_waiting(ucx, link);
    LIST_FOREACH (read, &ucx->reads, link)
        if (read->by == link) read->by = NULL;
    while (!LIST_EMPTY(&link->referred)) let_go(LIST_FIRST(&link->referred));
    for (uint32_t slot = 0; slot < link->region_count; slot++)
        if (link->regions[slot] != NULL) remote_release(link->regions[slot]);
    free(link->regions);
    link->regions = NULL;
    link->region_count = 0;
}

static void ucx_reads_end_stop(struct ucx_fabric *ucx)
{
    while (!LIST_EMPTY(&ucx->reads)) {
        struct ucx_read *read = LIST_FIRST(&ucx->reads);
        LIST_REMOVE(read, link);
        free(read);
    }
}

/* ==== ucx share ==== */

/* Memory of ours that peers read by themselves. A region of the owner is registered when the first peer is
 * told of the region. The region stays registered until it is dropped and no peer is reading it.
 *
 * We give UCX a second, read-only map of the memory to register. So our memory cannot be written from
 * outside, neither by a peer's request nor if UCX asks the network card for more rights than we requested.
 * If a network card wants more rights than such a map can give (EFAULT of ibv_reg_mr), peers are not told
 * of the region: as long as the region exists, its payloads are sent in messages. The owner is told once
 * (on_refused), with the reason.
 *
 * Over TCP UCX emulates reads: our own progress copies from the address that a request names, without
 * checking whether the address is still registered (UCX 1.13). We may have lost our connection to a peer
 * that has another connection to us. A late request on that other connection must not end this process. So
 * the address stays mapped, and reads as zeros (a "grave", which costs addresses only). Such a reader gets
 * zeros, which do not match the message's checksum, and no bytes of the owner's. */

/* Beyond these limits the oldest grave is unmapped. A process may have some 65,000 maps. */
#define GRAVES_BYTES_MAX (UINT64_C(1) << 40) /* of addresses */
#define GRAVES_MAX       4096

/* -- registering -------------------------------------------------------------------------------- */

/* Registers memory that others must never write. UCX may ask the network card for more rights all the same
 * (1.13 does with verbs). */
static ucs_status_t register_memory(struct ucx_fabric *ucx, struct ucx_share *share, void *address)
{
    const ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_PROT | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = address,
        .length = share->bytes,
        .prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_REMOTE_READ,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_t status = ucp_mem_map(ucx->context, &params, &share->memory);
    if (status != UCS_OK) return status;
    status = ucp_rkey_pack(ucx->context, share->memory, &share->key, &share->key_bytes);
    if (status == UCS_OK && share->key_bytes <= UCX_FRAME_KEY_MAX) return UCS_OK;
    if (status == UCS_OK) ucp_rkey_buffer_release(share->key);
    ucp_mem_unmap(ucx->context, share->memory);
    return UCS_ERR_UNSUPPORTED;
}

/* Returns NULL, or the reason of the failure. */
static const char *open_share(struct ucx_fabric *ucx, struct ucx_share *share, int fd)
{
    void *view = pages_map(share->bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd);
    if (view == MAP_FAILED) return strerror(errno);
    share->view = view;
    const ucs_status_t status = register_memory(ucx, share, view);
    if (status == UCS_OK) return NULL;
    munmap(view, share->bytes);
    return ucs_status_string(status);
}

/* Reports only the first refused memory, since other memory is likely to be refused for the same reason. */
static void tell_unregistered(struct ucx_fabric *ucx, size_t bytes, const char *reason)
{
    if (ucx->has_told_unregistered) return;
    ucx->has_told_unregistered = true;
    tell_refused(
        ucx, ucx->node,
        "%zu bytes of memory cannot be registered to be read one-sidedly: %s. What lies "
        "there is sent whole, at the cost of a copy on both hosts; this is said only once, "
        "also for other memory (is the limit of locked memory, ulimit -l, too low? If the "
        "card refuses memory that it may not write, fabric.one_sided = off, or "
        "CAIRN_FABRIC_ONE_SIDED=off of a trainer, spares the attempts)",
        bytes, reason);
}

static bool find_slot(const struct ucx_fabric *ucx, uint16_t *slot_out)
{
    for (uint16_t slot = 0; slot < UCX_FRAME_SLOTS; slot++) {
        if (ucx->slots[slot] != NULL) continue;
        *slot_out = slot;
        return true;
    }
    return false;
}

/* Returns NULL if the region cannot be registered; the registration is not tried again. */
static struct ucx_share *ucx_share_of(struct ucx_region *region)
{
    struct ucx_fabric *ucx = ucx_of(region->common.fabric);
    const size_t bytes = region->common.bytes;
    uint16_t slot;
    if (region->share != NULL || region->is_refused) return region->share;
    region->is_refused = true; // until the region is registered
    const bool has_slot = find_slot(ucx, &slot);
    struct ucx_share *share = has_slot ? calloc(1, sizeof *share) : NULL;
    if (share == NULL) {
        tell_unregistered(ucx, bytes, has_slot ? "out of memory" : "too many regions are");
        return NULL;
    }
    share->references = 1;
    share->base = region->common.base;
    share->bytes = bytes;
    share->slot = slot;
    if (++ucx->generations == 0) ucx->generations = 1;
    share->generation = ucx->generations;
    const char *reason = open_share(ucx, share, region->common.fd);
    if (reason != NULL) {
        tell_unregistered(ucx, bytes, reason);
        free(share);
        return NULL;
    }
    region->is_refused = false;
    LIST_INSERT_HEAD(&ucx->shares, share, link);
    return region->share = ucx->slots[slot] = share;
}

/* -- the end ------------------------------------------------------------------------------------ */

static void unmap_oldest(struct ucx_fabric *ucx)
{
    struct ucx_grave *grave = STAILQ_FIRST(&ucx->graves);
    STAILQ_REMOVE_HEAD(&ucx->graves, link);
    ucx->grave_bytes -= grave->bytes;
    ucx->grave_count--;
    munmap(grave->view, grave->bytes);
    free(grave);
}

/* Keeps the addresses of the memory mapped, but none of its content. */
static void bury(struct ucx_fabric *ucx, void *view, size_t bytes)
{
    struct ucx_grave *grave = malloc(sizeof *grave);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(view, bytes, PROT_READ, flags, -1, 0) == MAP_FAILED || grave == NULL) {
        free(grave); // the map stays until the process ends: there is no memory
        return;
    }
    *grave = (struct ucx_grave) { .view = view, .bytes = bytes };
    STAILQ_INSERT_TAIL(&ucx->graves, grave, link);
    ucx->grave_bytes += bytes;
    ucx->grave_count++;
    while ((ucx->grave_bytes > GRAVES_BYTES_MAX || ucx->grave_count > GRAVES_MAX) &&
           STAILQ_FIRST(&ucx->graves) != grave)
        unmap_oldest(ucx);
}

static void close_share(struct ucx_fabric *ucx, struct ucx_share *share)
{
    ucp_rkey_buffer_release(share->key);
    ucp_mem_unmap(ucx->context, share->memory);
    bury(ucx, share->view, share->bytes);
    LIST_REMOVE(share, link);
    free(share);
}

static void ucx_share_release(struct ucx_fabric *ucx, struct ucx_share *share)
{
    if (--share->references == 0) close_share(ucx, share);
}

static void take_back(struct ucx_link *link, const struct ucx_share *share)
{
    const uint16_t slot = share->slot;
    if (slot >= link->shown_count || link->shown[slot] != share->generation) return;
    const struct ucx_frame_gone frame = {
        .head = ucx_frame_head(UCX_FRAME_REGION_GONE, link->ucx->node),
        .generation = share->generation,
        .slot = slot,
    };
    link->shown[slot] = 0;
    const cairn_status status = ucx_control_send(link, &frame, sizeof frame, NULL, 0);
    (void)status; // if this fails, the next REGION of this slot tells the peer the same
}

void ucx_region_drop(struct fabric_region *common)
{
    struct ucx_region *region = (struct ucx_region *)common;
    struct ucx_fabric *ucx = ucx_of(common->fabric);
    struct ucx_share *share = region->share;
    ucx_card_region_drop(region);
    if (share == NULL) return;
    struct ucx_link *link;
    for (size_t i = 0; i < UCX_NODES; i++)
        LIST_FOREACH (link, &ucx->links[i], entry)
            if (!link->is_lost) take_back(link, share);
    ucx->slots[share->slot] = NULL;
    region->share = NULL;
    ucx_share_release(ucx, share);
}

/* ==== ucx refer ==== */

/* Messages by reference: the payload stays in place, its receiver reads it, and RELEASE runs on_sent.
 * A receiver that cannot read declines, and gets the payload like that of any other message. */

bool ucx_may_refer(const struct ucx_link *link, size_t bytes)
{
    return link->reads && bytes >= link->ucx->refer_min;
}

static cairn_status show_share(struct ucx_link *link, const struct ucx_share *share)
{
    if (!fabric_slots_reserve(&link->shown, &link->shown_count, share->slot, sizeof *link->shown))
        return CAIRN_ERR_NO_MEMORY;
    if (link->shown[share->slot] == share->generation) return CAIRN_OK;
    const struct ucx_frame_region frame = {
        .head = ucx_frame_head(UCX_FRAME_REGION, link->ucx->node),
        .address = (uintptr_t)share->view,
        .bytes = share->bytes,
        .key_checksum = fabric_hash(share->key, share->key_bytes),
        .generation = share->generation,
        .slot = share->slot,
        .key_bytes = (uint16_t)share->key_bytes,
    };
    cairn_status status = ucx_control_send(link, &frame, sizeof frame, share->key,
                                           share->key_bytes);
    if (status == CAIRN_OK) link->shown[share->slot] = share->generation;
    return status;
}

static cairn_status send_reference(struct ucx_link *link, struct fabric_op *op, const void *payload,
                                   struct ucx_share *share)
{
    struct ucx_frame_reference frame = {
        .head = ucx_frame_head(UCX_FRAME_REFERENCE, link->ucx->node),
        .offset = (uint64_t)((const uint8_t *)payload - share->base),
        .payload_bytes = (uint32_t)op->payload_bytes,
        .generation = share->generation,
        .slot = share->slot,
        .header_bytes = (uint16_t)op->header_bytes,
    };
    CAIRN_TRY(fabric_flight_begin(&link->flights, &frame.serial));
    cairn_status status = ucx_control_send(link, &frame, sizeof frame, op->header,
                                           op->header_bytes);
    struct fabric_flight *flight = fabric_flight_find(&link->flights, frame.serial);
    if (status != CAIRN_OK) {
        fabric_flight_end(&link->flights, flight);
        return status;
    }
    flight->op = op;
    flight->payload = payload;
    flight->share = share;
    share->references++;
    return CAIRN_OK;
}

cairn_status ucx_refer(struct ucx_link *link, struct fabric_op *op, const void *payload)
{
    struct fabric_region *region = fabric_region_find(&link->ucx->common, payload,
                                                      op->payload_bytes);
    struct ucx_share *share = region != NULL ? ucx_share_of((struct ucx_region *)region) : NULL;
    if (share == NULL) return CAIRN_ERR_UNSUPPORTED;
    cairn_status status = show_share(link, share);
    if (status == CAIRN_OK) status = send_reference(link, op, payload, share);
    if (status == CAIRN_OK) link->ucx->common.stats.references_sent++;
    return status;
}

/* -- answers ------------------------------------------------------------------------------------ */

static void end_flight(struct ucx_link *link, struct fabric_flight *flight)
{
    ucx_share_release(link->ucx, flight->share);
    fabric_flight_end(&link->flights, flight);
}

static void ucx_on_release(struct ucx_link *link, const struct ucx_frame_release *frame)
{
    struct fabric_flight *flight = fabric_flight_find(&link->flights, frame->serial);
    if (flight == NULL) return; // a serial of an earlier endpoint
    fabric_op_done(flight->op, CAIRN_OK);
    end_flight(link, flight);
}

static void ucx_on_decline(struct ucx_link *link, const struct ucx_frame_release *frame)
{
    struct fabric_flight *flight = fabric_flight_find(&link->flights, frame->serial);
    if (flight == NULL) return;
    struct fabric_op *op = flight->op;
    const void *payload = flight->payload;
    link->ucx->common.stats.references_declined++;
    if (frame->why == UCX_DECLINE_CANNOT)
        link->reads = false; // until the node says HELLO again
    else if (flight->share->slot < link->shown_count)
        link->shown[flight->share->slot] = 0;
    end_flight(link, flight);
    const cairn_status status = ucx_send_whole(link, op, payload);
    if (status != CAIRN_OK) fabric_op_done(op, status);
}

/* The reader may still be reading a payload; then it may get bytes that do not match the message's
 * checksum. */
void ucx_forget_references(struct ucx_link *link, const struct fabric_peer *handle)
{
    for (uint32_t i = 0; i < link->flights.capacity; i++) {
        struct fabric_flight *flight = &link->flights.all[i];
        if (!flight->is_used || (handle != NULL && flight->op->to != handle)) continue;
        fabric_op_done(flight->op, CAIRN_ERR_CLOSED);
        end_flight(link, flight);
    }
}

static void ucx_forget_reader(struct ucx_link *link)
{
    ucx_forget_references(link, NULL);
    free(link->flights.all);
    free(link->shown);
    link->flights = (struct fabric_flights) { 0 };
    link->shown = NULL;
    link->shown_count = 0;
    link->reads = false;
}

/* ==== ucx one sided ==== */

/* One-sided reads. This part decides whether the peers of an endpoint read each other's memory, and has the
 * frames by which the peers agree on that (ucx.h). Nothing here moves a payload. We read a peer's memory if
 * the owner requires that (options.one_sided is "on", for tests: over TCP UCX emulates the reads). We also
 * do so if the owner leaves the choice to us and the endpoint has lanes whose network card reads by itself.
 * UCX reports the lanes of each endpoint. */

enum { CONTROL_ID = 8 }; /* an id of active messages; the others are in ucx_link.c */
enum { SETTLE_TURNS = 200, SETTLE_TURN_US = 500 };

/* TCP has no lanes that read, so over TCP alone UCX need not be opened for reads, and no frame need be
 * sent. */
bool ucx_one_sided_is_possible(const struct fabric_options *options)
{
    const char *transports = options->transports;
    if (options->one_sided != CAIRN_ONE_SIDED_AUTO) return options->one_sided == CAIRN_ONE_SIDED_ON;
    return transports != NULL && transports[0] != '\0' && strcmp(transports, "tcp") != 0;
}

/* -- lanes -------------------------------------------------------------------------------------- */

#if UCP_API_VERSION >= UCP_VERSION(1, 14)

/* UCX reports the transports of an endpoint, but not the uses of its lanes. A native transport that UCX
 * chose can read. */
static bool has_native_lanes(ucp_ep_h ep)
{
    ucp_transport_entry_t entries[16];
    ucp_ep_attr_t attr = {
        .field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS,
        .transports = { .entries = entries,
                        .num_entries = sizeof entries / sizeof *entries,
                        .entry_size = sizeof *entries },
    };
    if (ucp_ep_query(ep, &attr) != UCS_OK) return false;
    for (unsigned i = 0; i < attr.transports.num_entries; i++)
        if (ucx_transport_is_native(entries[i].transport_name)) return true;
    return false;
}

#else

static bool has_native_lanes(ucp_ep_h ep)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (stream == NULL) return false;
    ucp_ep_print_info(ep, stream);
    const bool is_native = fclose(stream) == 0 && ucx_lanes_are_native(text);
    free(text);
    return is_native;
}

#endif

/* -- frames out --------------------------------------------------------------------------------- */

static void control_free(struct ucx_control *control)
{
    if (control->by != NULL) control->by->controls--;
    LIST_REMOVE(control, link);
    free(control);
}

static void on_control_sent(void *request, ucs_status_t status, void *arg)
{
    (void)status; // a lost frame is a lost endpoint, which on_ucx_down reports
    control_free(arg);
    ucp_request_free(request);
}

static bool is_of_reads(enum ucx_frame_kind kind)
{
    return kind != UCX_FRAME_BYE && kind != UCX_FRAME_PORT && kind != UCX_FRAME_PROOF;
}

static enum ucx_frame_kind kind_of(const void *frame)
{
    return (enum ucx_frame_kind)((const struct ucx_frame_head *)frame)->kind;
}

/* UCX tells the receiver by which of the receiver's endpoints a frame arrived (REPLY), and drops the frame
 * if that endpoint is closed. BYE and PORT must arrive in any case. */
cairn_status ucx_control_send(struct ucx_link *link, const void *frame, size_t frame_bytes,
                              const void *rest, size_t rest_bytes)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = on_control_sent,
    };
    struct ucx_fabric *ucx = link->ucx;
    if (link->controls >= UCX_CONTROLS_MAX) { // the peer takes nothing, and our queue only grows
        ucx_link_end(link, true);
        return CAIRN_ERR_BUSY;
    }
    struct ucx_control *control = malloc(sizeof *control + frame_bytes + rest_bytes);
    if (control == NULL) return CAIRN_ERR_NO_MEMORY;
    memcpy(control->bytes, frame, frame_bytes);
    if (rest_bytes > 0) memcpy(control->bytes + frame_bytes, rest, rest_bytes);
    control->by = link;
    link->controls++;
    LIST_INSERT_HEAD(&ucx->controls, control, link);
    ucp_request_param_t own = param;
    own.user_data = control;
    if (is_of_reads(kind_of(frame)) || kind_of(frame) == UCX_FRAME_PROOF)
        own.flags |= UCP_AM_SEND_FLAG_REPLY;
    ucs_status_ptr_t request = ucp_am_send_nbx(link->ep, CONTROL_ID, control->bytes,
                                               frame_bytes + rest_bytes, NULL, 0, &own);
    if (UCS_PTR_IS_PTR(request)) return CAIRN_OK;
    control_free(control);
    return ucx_status(UCS_PTR_STATUS(request));
}

static void say_hello(struct ucx_link *link, bool asks)
{
    const struct ucx_frame_hello hello = {
        .head = ucx_frame_head(UCX_FRAME_HELLO, link->ucx->node),
        .endpoint = link->endpoint,
        .oldest = link->endpoint, // all earlier endpoints are closed
        .reads = link->may_read,
        .asks = asks,
    };
    const cairn_status status = ucx_control_send(link, &hello, sizeof hello, NULL, 0);
    (void)status; // without HELLO payloads are sent in messages
}

void ucx_say_bye(struct ucx_link *link)
{
    const struct ucx_frame_hello bye = {
        .head = ucx_frame_head(UCX_FRAME_BYE, link->ucx->node),
        .endpoint = link->endpoint,
    };
    const cairn_status status = ucx_control_send(link, &bye, sizeof bye, NULL, 0);
    (void)status; // without BYE the next HELLO reports the end, or UCX's keepalive does
}

void ucx_say_port(struct ucx_link *link)
{
    const struct ucx_frame_port frame = {
        .head = ucx_frame_head(UCX_FRAME_PORT, link->ucx->node),
        .port = ntohs(link->made),
    };
    link->has_said_port = true;
    const cairn_status status = ucx_control_send(link, &frame, sizeof frame, NULL, 0);
    (void)status; // without PORT the node asks us to end a link
    const struct ucx_frame_head proof = ucx_frame_head(UCX_FRAME_PROOF, link->ucx->node);
    if (status == CAIRN_OK) (void)!ucx_control_send(link, &proof, sizeof proof, NULL, 0);
}

/* -- frames in ---------------------------------------------------------------------------------- */

/* A HELLO from a newer endpoint says that the endpoint with which ours was paired is gone. `link` is NULL
 * if the frame did not arrive by an endpoint that we made. */
static void on_hello(struct ucx_fabric *ucx, struct ucx_link *link,
                     const struct ucx_frame_hello *hello)
{
    struct ucx_link *living = ucx_link_find(ucx, hello->head.from);
    if (living != NULL && living->paired != 0 && living->paired < hello->oldest)
        ucx_link_end(living, true);
    // not by our endpoint, or overtaken by a newer HELLO
    if (link == NULL || hello->endpoint < link->paired) return;
    link->paired = hello->endpoint;
    link->reads = hello->reads != 0;
    if (hello->asks != 0) say_hello(link, false);
}

static void on_bye(struct ucx_fabric *ucx, const struct ucx_frame_hello *bye)
{
    struct ucx_link *living = ucx_link_find(ucx, bye->head.from);
    if (living != NULL && (living->paired == 0 || living->paired == bye->endpoint))
        ucx_link_end(living, true);
}

static void on_port(struct ucx_fabric *ucx, const struct ucx_frame_port *port)
{
    struct ucx_link *living = ucx_link_find(ucx, port->head.from);
    ucx_hear(ucx, port->head.from)->port = htons(port->port);
    ucx_link_await_proof(ucx, port->head.from);
    if (living != NULL && port->port == 0 && living->made != 0) ucx_say_port(living);
}

static void on_proof(struct ucx_fabric *ucx, uint64_t node, ucp_ep_h ep)
{
    struct ucx_heard *heard = ucx_hear(ucx, node);
    heard->ep = ep;
    heard->proof_by_ms = 0;
}

/* A frame about reads belongs to the link by whose endpoint the frame arrived. */
static void take_frame(struct ucx_fabric *ucx, ucp_ep_h ep, enum ucx_frame_kind kind,
                       const union ucx_frame *frame, const void *rest)
{
    struct ucx_link *link = ucx_link_find(ucx, frame->head.from);
    if (link != NULL && link->ep != ep) link = NULL;
    if (is_of_reads(kind) && !ucx->common.is_one_sided) return;
    if (is_of_reads(kind) && kind != UCX_FRAME_HELLO && link == NULL) return;
    switch (kind) {
    case UCX_FRAME_HELLO: on_hello(ucx, link, &frame->hello); break;
    case UCX_FRAME_BYE: on_bye(ucx, &frame->hello); break;
    case UCX_FRAME_PORT: on_port(ucx, &frame->port); break;
    case UCX_FRAME_PROOF: on_proof(ucx, frame->head.from, ep); break;
    case UCX_FRAME_REGION: ucx_on_region(link, &frame->region, rest); break;
    case UCX_FRAME_REGION_GONE: ucx_on_region_gone(link, &frame->gone); break;
    case UCX_FRAME_REFERENCE: ucx_on_reference(link, &frame->reference, rest); break;
    case UCX_FRAME_RELEASE: ucx_on_release(link, &frame->release); break;
    case UCX_FRAME_DECLINE: ucx_on_decline(link, &frame->release); break;
    case UCX_FRAME_MALFORMED: break;
    }
}

static ucs_status_t on_control(void *arg, const void *header, size_t header_bytes, void *data,
                               size_t payload_bytes, const ucp_am_recv_param_t *param)
{
    struct ucx_fabric *ucx = arg;
    union ucx_frame frame;
    size_t size;
    (void)data;
    if (ucx->common.is_closing) return UCS_OK;
    const enum ucx_frame_kind kind = ucx_frame_judge(header, header_bytes, &frame, &size);
    if (kind == UCX_FRAME_MALFORMED || payload_bytes != 0) {
        ucx->common.stats.messages_refused++;
        tell_refused(ucx, 0, "%zu bytes are no valid frame; is a peer of another version?",
                     header_bytes);
        return UCS_OK;
    }
    const bool has_ep = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
    take_frame(ucx, has_ep ? param->reply_ep : NULL, kind, &frame, (const uint8_t *)header + size);
    return UCS_OK;
}

/* Always called: without a handler UCX would log every frame of a peer with other settings. */
ucs_status_t ucx_one_sided_listen(struct ucx_fabric *ucx)
{
    return ucx_listen_to(ucx, CONTROL_ID, UCP_AM_FLAG_WHOLE_MSG, on_control);
}

/* -- peers arrive and leave --------------------------------------------------------------------- */

void ucx_meet(struct ucx_link *link)
{
    struct ucx_fabric *ucx = link->ucx;
    const bool is_forced = ucx->common.options.one_sided == CAIRN_ONE_SIDED_ON;
    LIST_INIT(&link->referred);
    link->endpoint = ++ucx->endpoints;
    const bool asks = ucx->common.takes_device || (ucx->common.is_one_sided && !is_forced);
    const bool is_native = asks && has_native_lanes(link->ep);
    link->is_native = is_native || ucx->common.options.device_memory == CAIRN_DEVICE_MEMORY_DEVICE;
    if (!ucx->common.is_one_sided) return;
    link->may_read = is_forced || is_native;
    say_hello(link, true);
}

void ucx_part(struct ucx_link *link)
{
    struct ucx_fabric *ucx = link->ucx;
    ucx_forget_remotes(link);
    if (ucx->common.is_one_sided && !link->is_down && link->end_by_ms == 0) ucx_say_bye(link);
    ucx_forget_reader(link);
    struct ucx_control *control;
    LIST_FOREACH (control, &ucx->controls, link)
        if (control->by == link) control->by = NULL;
}

void ucx_one_sided_begin_stop(struct ucx_fabric *ucx)
{
    struct ucx_read *read;
    if (!ucx->common.is_one_sided) return;
    LIST_FOREACH (read, &ucx->reads, link) remote_release(read->region);
    for (uint32_t i = 0; i < ucx->common.region_count; i++) // a callback may still drop regions
        ((struct ucx_region *)ucx->common.regions[i])->share = NULL;
    while (!LIST_EMPTY(&ucx->shares)) close_share(ucx, LIST_FIRST(&ucx->shares));
}

/* Another node's first request for an answer may have arrived just now. UCX 1.13 aborts a process that
 * destroys its worker before the answer to such a request is sent; so this function waits, for a bounded
 * time. */
void ucx_one_sided_settle(struct ucx_fabric *ucx)
{
    const ucp_request_param_t param = { .op_attr_mask = 0 };
    if (!ucx->common.is_one_sided) return;
    ucs_status_ptr_t request = ucp_worker_flush_nbx(ucx->worker, &param);
    if (!UCS_PTR_IS_PTR(request)) return;
    for (int turn = 0; turn < SETTLE_TURNS;) {
        if (ucp_request_check_status(request) != UCS_INPROGRESS) break;
        if (ucp_worker_progress(ucx->worker) != 0) continue;
        usleep(SETTLE_TURN_US);
        turn++;
    }
    ucp_request_free(request);
}

void ucx_one_sided_end_stop(struct ucx_fabric *ucx)
{
    while (!LIST_EMPTY(&ucx->controls)) control_free(LIST_FIRST(&ucx->controls));
    if (!ucx->common.is_one_sided) return;
    ucx_reads_end_stop(ucx);
    while (!STAILQ_EMPTY(&ucx->graves)) unmap_oldest(ucx);
}

/* -- shown -------------------------------------------------------------------------------------- */

static const char path[] = "one-sided";

const char *ucx_message_path(const struct fabric_message *message)
{
    const bool is_read = ((const struct ucx_message *)message)->region != NULL;
    return is_read ? path : message->fabric->backend->kind;
}

const char *ucx_payload_path(const struct fabric_peer *common, const void *payload, size_t bytes)
{
    const struct ucx_link *link = ((const struct ucx_peer *)common)->link;
    if (link == NULL || !ucx_may_refer(link, bytes)) return common->fabric->backend->kind;
    const struct ucx_region *region = (const struct ucx_region *)fabric_region_find(common->fabric,
                                                                                    payload, bytes);
    return region != NULL && !region->is_refused ? path : common->fabric->backend->kind;
}
