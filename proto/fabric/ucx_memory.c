/* Payload memory that UCX alone handles badly: receives around the caches, and memory of cards. */
#include "proto/fabric/ucx.h"

#include <stdlib.h>
#include <string.h>

/* ==== ucx far ==== */

/* Receives into memory that is not read soon (fabric_receive_far), over TCP.
 *
 * UCX reads a rendezvous from its socket into a segment, and copies the segment into the buffer. UCX's own
 * copy brings each line of the buffer into the cache first, although only the checksum reads the line
 * there. With a datatype of our own we make the copy ourselves: the checksum reads the segment, which is in
 * the cache, and the copy bypasses the cache. Into 64 MiB this gives a third more goodput than UCX's copy
 * with the checksum's pass over the buffer, and a sixth more than UCX's copy without that pass (raw loop of
 * active messages, 1 MiB each).
 *
 * We do this only over TCP: if a network can write the buffer by itself, such a datatype would keep the
 * network from doing so. */

struct ucx_far {
    LIST_ENTRY(ucx_far) link; /* fabric->fars or fabric->fars_spare */
    struct ucx_fabric *ucx;
    struct fabric_op *op;
    uint8_t *buffer;      /* [op->payload_bytes], on loan */
    struct checksum *sum; /* owned: the checksum of the first `at` bytes */
    size_t at;            /* SIZE_MAX: data arrived out of order */
};

/* -- the datatype: one element is a complete payload -------------------------------------------- */

static void *start_unpack(void *context, void *far, size_t count)
{
    (void)context, (void)count;
    return far;
}

static ucs_status_t far_unpack(void *state, size_t offset, const void *bytes, size_t count)
{
    struct ucx_far *far = state;
    const size_t all = far->op->payload_bytes;
    if (offset > all || count > all - offset) return UCS_ERR_MESSAGE_TRUNCATED;
    if (offset == far->at) {
        checksum_add(far->sum, bytes, count);
        far->at += count;
    } else {
        far->at = SIZE_MAX;
    }
    far_copy(far->buffer + offset, bytes, count);
    return UCS_OK;
}

static void far_finish(void *state)
{
    (void)state; // on_received follows
}

/* The datatype is never used to send. */
static void *start_pack(void *context, const void *buffer, size_t count)
{
    (void)context, (void)buffer, (void)count;
    abort();
}

static size_t packed_size(void *state)
{
    return ((const struct ucx_far *)state)->op->payload_bytes;
}

static size_t far_pack(void *state, size_t offset, void *bytes, size_t room)
{
    (void)state, (void)offset, (void)bytes, (void)room;
    abort();
}

bool ucx_far_open(struct ucx_fabric *ucx, const struct fabric_options *options)
{
    const ucp_generic_dt_ops_t ops = {
        .start_pack = start_pack,
        .start_unpack = start_unpack,
        .packed_size = packed_size,
        .pack = far_pack,
        .unpack = far_unpack,
        .finish = far_finish,
    };
    const char *transports = options->transports;
    const bool is_tcp = transports == NULL || transports[0] == '\0' ||
                        strcmp(transports, "tcp") == 0;
    ucx->has_far_type = is_tcp && ucp_dt_create_generic(&ops, NULL, &ucx->far_type) == UCS_OK;
    return ucx->has_far_type;
}

static void far_free(struct ucx_far *far)
{
    LIST_REMOVE(far, link);
    checksum_free(far->sum);
    free(far);
}

void ucx_far_close(struct ucx_fabric *ucx)
{
    while (!LIST_EMPTY(&ucx->fars)) far_free(LIST_FIRST(&ucx->fars));
    while (!LIST_EMPTY(&ucx->fars_spare)) far_free(LIST_FIRST(&ucx->fars_spare));
    if (ucx->has_far_type) ucp_dt_destroy(ucx->far_type);
    ucx->has_far_type = false;
}

/* -- receives ----------------------------------------------------------------------------------- */

static struct ucx_far *far_new(struct ucx_fabric *ucx)
{
    struct ucx_far *far = LIST_FIRST(&ucx->fars_spare);
    if (far != NULL) {
        LIST_REMOVE(far, link);
    } else {
        far = calloc(1, sizeof *far);
        if (far != NULL) far->sum = checksum_new();
        if (far == NULL || far->sum == NULL) {
            free(far);
            return NULL;
        }
    }
    LIST_INSERT_HEAD(&ucx->fars, far, link);
    far->ucx = ucx;
    far->at = 0;
    checksum_begin(far->sum);
    return far;
}

static void far_done(struct ucx_far *far, ucs_status_t status)
{
    struct fabric_op *op = far->op;
    op->is_summed = far->at == op->payload_bytes;
    if (op->is_summed) *op->checksum_out = checksum_end(far->sum);
    LIST_REMOVE(far, link);
    LIST_INSERT_HEAD(&far->ucx->fars_spare, far, link);
    fabric_op_done(op, ucx_status(status));
}

static void on_received(void *request, ucs_status_t status, size_t length, void *arg)
{
    (void)length;
    far_done(arg, status);
    ucp_request_free(request);
}

bool ucx_far_receive(struct ucx_fabric *ucx, void *descriptor, struct fabric_op *op, void *buffer)
{
    if (!ucx->has_far_type || op->checksum_out == NULL || op->payload_bytes < UCX_FAR_MIN)
        return false;
    struct ucx_far *far = far_new(ucx);
    if (far == NULL) return false;
    far->op = op;
    far->buffer = buffer;
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_DATATYPE,
        .cb.recv_am = on_received,
        .user_data = far,
        .datatype = ucx->far_type,
    };
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(ucx->worker, descriptor, far, 1, &param);
    if (!UCS_PTR_IS_PTR(request)) far_done(far, UCS_PTR_STATUS(request));
    return true;
}

/* ==== ucx card ==== */

/* -- registered memory -------------------------------------------------------------------------- */

/* Registers memory for a rendezvous: the receiver reads the sent memory, or the sender writes the memory
 * where the payload lands. Memory that is only sent is not registered to be written. */
static struct ucx_card *register_card(struct ucx_fabric *ucx, const struct fabric_region *region,
                                      bool lands)
{
    const unsigned reads = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_REMOTE_READ;
    const unsigned writes = UCP_MEM_MAP_PROT_LOCAL_WRITE | UCP_MEM_MAP_PROT_REMOTE_WRITE;
    const ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_PROT | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = (void *)(uintptr_t)region->base,
        .length = region->bytes,
        .prot = lands ? reads | writes : reads,
        .memory_type = UCS_MEMORY_TYPE_CUDA,
    };
    struct ucx_card *card = calloc(1, sizeof *card);
    if (card == NULL || ucp_mem_map(ucx->context, &params, &card->memory) != UCS_OK) {
        free(card);
        return NULL;
    }
    card->references = 1;
    LIST_INSERT_HEAD(&ucx->cards, card, link);
    return card;
}

static void close_card(struct ucx_fabric *ucx, struct ucx_card *card)
{
    ucp_mem_unmap(ucx->context, card->memory);
    LIST_REMOVE(card, link);
    free(card);
}

/* Registers the memory at the first send or receive over the network: as long as no peer on another host
 * uses the memory, registering costs nothing. If UCX refuses to register the memory, we neither send from
 * nor receive into the memory by its address, since UCX may take the address for memory that was there
 * before. From then on payloads in this memory are copied through the host. */
struct ucx_card *ucx_card_hold(struct ucx_fabric *ucx, const struct fabric_op *op,
                               const void *payload)
{
    struct ucx_region *region = (struct ucx_region *)fabric_region_find(&ucx->common, payload,
                                                                        op->payload_bytes);
    if (!SENDS_BY_HANDLE || region == NULL) return NULL;
    struct ucx_card **card = op->is_send ? &region->sent : &region->landed;
    if (*card == NULL) *card = register_card(ucx, &region->common, !op->is_send);
    if (*card == NULL) region->common.is_unregistered = true;
    if (*card != NULL) (*card)->references++;
    return *card;
}

void ucx_card_retire(struct ucx_fabric *ucx, const struct ucx_card *card)
{
    for (uint32_t i = 0; card != NULL && i < ucx->common.region_count; i++) {
        struct ucx_region *region = (struct ucx_region *)ucx->common.regions[i];
        struct ucx_card **kept = region->sent == card     ? &region->sent
                                 : region->landed == card ? &region->landed
                                                          : NULL;
        if (kept == NULL) continue;
        ucx_card_release(ucx, *kept);
        *kept = NULL;
        return;
    }
}

void ucx_card_name(const struct ucx_card *card, ucp_request_param_t *param)
{
    if (card == NULL) return;
#if SENDS_BY_HANDLE
    param->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param->memh = card->memory;
#else
    (void)param;
#endif
}

void ucx_card_release(struct ucx_fabric *ucx, struct ucx_card *card)
{
    if (card != NULL && --card->references == 0) close_card(ucx, card);
}

void ucx_card_region_drop(struct ucx_region *region)
{
    struct ucx_fabric *ucx = ucx_of(region->common.fabric);
    ucx_card_release(ucx, region->sent);
    ucx_card_release(ucx, region->landed);
    region->sent = region->landed = NULL;
}

void ucx_cards_close(struct ucx_fabric *ucx)
{
    for (uint32_t i = 0; i < ucx->common.region_count; i++) { // a callback may still drop regions
        struct ucx_region *region = (struct ucx_region *)ucx->common.regions[i];
        region->sent = region->landed = NULL;
    }
    while (!LIST_EMPTY(&ucx->cards)) close_card(ucx, LIST_FIRST(&ucx->cards));
}
