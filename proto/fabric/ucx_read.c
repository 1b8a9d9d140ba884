/* Messages that came by reference: their payload is read out of the peer's memory into the buffer that
 * the owner chooses, when it chooses, and the peer is told (RELEASE) that the memory is its own again:
 * after the read, or when the message is dropped.
 *
 * A read that fails leaves its buffer undefined and its message lost, as a receive does whose sender
 * died. One that ends well has read what lay there: whether that is what was meant is said by the
 * checksum and the version in the message's header, which whoever receives it checks
 * (proto/wire/chunk.h): memory of others, which they may have got back because they lost us and we did
 * not know. */
#include "proto/fabric/ucx.h"

#include <stdlib.h>
#include <string.h>

/* -- what the peer has -------------------------------------------------------------------------- */

static void told_release(struct ucx_told *told)
{
    if (--told->references > 0) return;
    ucp_rkey_destroy(told->key);
    free(told);
}

static struct ucx_told *told_of(const struct ucx_link *link, uint16_t slot, uint32_t generation)
{
    struct ucx_told *told = slot < link->region_count ? link->regions[slot] : NULL;
    return told != NULL && told->generation == generation ? told : NULL;
}

static bool make_slot(struct ucx_link *link, uint16_t slot)
{
    if (slot < link->region_count) return true;
    const uint32_t count = 2u * slot + 16 < UCX_FRAME_SLOTS ? 2u * slot + 16
                                                            : (uint32_t)UCX_FRAME_SLOTS;
    struct ucx_told **regions = realloc(link->regions, count * sizeof(*regions));
    if (regions == NULL) return false;
    memset(regions + link->region_count, 0, (count - link->region_count) * sizeof(*regions));
    link->regions = regions;
    link->region_count = count;
    return true;
}

/* UCX reads lengths out of the key without knowing where it ends: behind it are zeros. */
static ucs_status_t unpack(struct ucx_link *link, const void *key, size_t bytes, ucp_rkey_h *out)
{
    struct ucx_fabric *ucx = link->ucx;
    memset(ucx->key_room, 0, sizeof ucx->key_room);
    memcpy(ucx->key_room, key, bytes);
    return ucp_ep_rkey_unpack(link->ep, ucx->key_room, out);
}

/* A region that cannot be read is not kept: references to it are declined, and the payloads come
 * whole. */
void ucx_on_region(struct ucx_link *link, const struct ucx_frame_region *frame, const void *key)
{
    struct ucx_fabric *ucx = link->ucx;
    if (!link->may_read || told_of(link, frame->slot, frame->generation) != NULL) return;
    if (frame->bytes > ucx->common.options.mapped_max ||
        fabric_hash(key, frame->key_bytes) != frame->key_checksum) {
        ucx_refuse(ucx, link->node,
                   "region %u of %llu bytes: it is over %llu, or its key is damaged; what this "
                   "node has is sent whole from now on",
                   frame->slot, (unsigned long long)frame->bytes,
                   (unsigned long long)ucx->common.options.mapped_max);
        link->may_read = false;
        return;
    }
    struct ucx_told *told = calloc(1, sizeof *told);
    if (told == NULL || !make_slot(link, frame->slot)) {
        free(told);
        return;
    }
    const ucs_status_t status = unpack(link, key, frame->key_bytes, &told->key);
    if (status != UCS_OK) {
        ucx_refuse(ucx, link->node,
                   "region %u: its key of %u bytes does not unpack (%s); what this node has is "
                   "sent whole from now on; do both ends have the same UCX and transports?",
                   frame->slot, frame->key_bytes, ucs_status_string(status));
        link->may_read = false;
        free(told);
        return;
    }
    told->references = 1;
    told->address = frame->address;
    told->bytes = frame->bytes;
    told->generation = frame->generation;
    if (link->regions[frame->slot] != NULL) told_release(link->regions[frame->slot]);
    link->regions[frame->slot] = told;
}

void ucx_on_region_gone(struct ucx_link *link, const struct ucx_frame_gone *frame)
{
    struct ucx_told *told = told_of(link, frame->slot, frame->generation);
    if (told == NULL) return;
    link->regions[frame->slot] = NULL;
    told_release(told);
}

/* -- messages ----------------------------------------------------------------------------------- */

static void answer(struct ucx_link *link, enum ucx_frame_kind kind, uint64_t serial,
                   enum ucx_decline why)
{
    const struct ucx_frame_release frame = {
        .head = ucx_frame_head(kind, link->ucx->node),
        .serial = serial,
        .why = kind == UCX_FRAME_DECLINE ? why : 0,
    };
    const cairn_status status = ucx_control_send(link, &frame, sizeof frame, NULL, 0);
    (void)status; // the endpoint is lost: our next one lets go of everything
}

static void release(struct ucx_link *link, uint64_t serial)
{
    if (link != NULL) answer(link, UCX_FRAME_RELEASE, serial, 0);
}

/* True: the payload lies inside the region. Subtracts, so that no number of a stranger
 * overflows. */
static bool is_inside(const struct ucx_told *told, const struct ucx_frame_reference *frame)
{
    return frame->offset < told->bytes && frame->payload_bytes <= told->bytes - frame->offset;
}

void ucx_on_reference(struct ucx_link *link, const struct ucx_frame_reference *frame,
                      const void *header)
{
    struct cairn_fabric *fabric = &link->ucx->common;
    struct ucx_told *told = told_of(link, frame->slot, frame->generation);
    struct ucx_message *message = NULL;
    if (told == NULL || !link->may_read) {
        answer(link, UCX_FRAME_DECLINE, frame->serial,
               link->may_read ? UCX_DECLINE_UNKNOWN : UCX_DECLINE_CANNOT);
        return;
    }
    if (!is_inside(told, frame)) {
        fabric->stats.messages_refused++;
        ucx_refuse(ucx_of(fabric), link->node,
                   "a message of %u bytes at %llu of region %u, which has %llu; what this node has "
                   "is sent whole from now on; is it of the same version?",
                   frame->payload_bytes, (unsigned long long)frame->offset, frame->slot,
                   (unsigned long long)told->bytes);
        link->may_read = false;
        answer(link, UCX_FRAME_DECLINE, frame->serial, UCX_DECLINE_CANNOT);
        return;
    }
    if (fabric_judge(fabric, frame->header_bytes, frame->payload_bytes))
        message = (struct ucx_message *)fabric_message_new(fabric, frame->payload_bytes);
    if (message == NULL) {
        release(link, frame->serial);
        return;
    }
    message->region = told;
    told->references++;
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
    release(message->by, message->serial);
    let_go(message);
    told_release(message->region);
}

/* -- reads -------------------------------------------------------------------------------------- */

/* It is in no list any more. */
static void end_read(struct ucx_read *read, cairn_status status)
{
    if (status == CAIRN_OK) read->op->fabric->stats.bytes_read += read->op->payload_bytes;
    fabric_op_done(read->op, status);
    release(read->by, read->serial);
    told_release(read->region);
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

/* A bounded number at a time, in the order in which they were asked for. */
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
        release(link, message->serial);
        told_release(message->region);
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

/* Nothing is told to the peer. */
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

void ucx_forget_told(struct ucx_link *link)
{
    struct ucx_fabric *ucx = link->ucx;
    struct ucx_read *read;
    give_up_waiting(ucx, link);
    LIST_FOREACH (read, &ucx->reads, link)
        if (read->by == link) read->by = NULL;
    while (!LIST_EMPTY(&link->referred)) let_go(LIST_FIRST(&link->referred));
    for (uint32_t slot = 0; slot < link->region_count; slot++)
        if (link->regions[slot] != NULL) told_release(link->regions[slot]);
    free(link->regions);
    link->regions = NULL;
    link->region_count = 0;
}

/* Releases the keys of reads that have not ended by themselves, while the worker is still there. */
void ucx_reads_begin_stop(struct ucx_fabric *ucx)
{
    struct ucx_read *read;
    LIST_FOREACH (read, &ucx->reads, link) told_release(read->region);
}

void ucx_reads_end_stop(struct ucx_fabric *ucx)
{
    while (!LIST_EMPTY(&ucx->reads)) {
        struct ucx_read *read = LIST_FIRST(&ucx->reads);
        LIST_REMOVE(read, link);
        free(read);
    }
}
