/* Memory of ours that peers read by themselves: a region of the owner is registered when the first peer
 * is told of it, and until it is dropped and nothing of it is being read.
 *
 * UCX registers a map of our own that cannot be written to: nothing that a peer does, and nothing
 * that UCX asks of a card beyond what we ask of UCX, makes memory of ours writable from outside.
 * Where a card wants more than such a map can give (EFAULT of ibv_reg_mr), peers are not told of
 * the region: its payloads are sent whole, for as long as it is there. The owner is told so once
 * (on_refused), with the reason.
 *
 * Over TCP UCX emulates reads: our own progress copies out of the address that a request names,
 * without looking whether it is still registered (UCX 1.13). A request that is late, from a peer
 * whose connection to us is not the one that we lost, must not end this process: so the address
 * stays, and gives zeros (a "grave", which costs addresses only). Such a reader gets bytes that do
 * not match its checksum, and none that are the owner's. */
#include "proto/base/machine.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <uct/api/uct.h>

#include "proto/base/text.h"
#include "proto/fabric/backend.h"
#include "proto/fabric/ucx.h"

/* Then the oldest goes. A process may have some 65,000 maps. */
#define GRAVES_BYTES_MAX (UINT64_C(1) << 40) /* of addresses */
#define GRAVES_MAX       4096

/* -- registering -------------------------------------------------------------------------------- */

/* Never to be written by others: UCX may ask its card for more all the same (1.13 does of verbs). */
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

/* NULL, or why not. */
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

/* Tells of the first memory only, as other memory is likely to be refused for the same reason. */
static void tell_unregistered(struct ucx_fabric *ucx, size_t bytes, const char *reason)
{
    if (ucx->has_told_unregistered) return;
    ucx->has_told_unregistered = true;
    ucx_refuse(
        ucx, ucx->node,
        "%zu bytes of memory cannot be registered to be read one-sidedly: %s. What lies there is "
        "sent whole, at the cost of a copy on both hosts, and of other memory this is not said "
        "again (is the limit of locked memory, ulimit -l, too low? does the card refuse memory "
        "that it may not write? then fabric.one_sided = off, or "
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

struct ucx_share *ucx_share_of(struct ucx_region *region)
{
    struct ucx_fabric *ucx = ucx_of(region->common.fabric);
    const size_t bytes = region->common.bytes;
    uint16_t slot;
    if (region->share != NULL || region->is_refused) return region->share;
    region->is_refused = true; // until it is one
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

/* Nothing of the memory is kept by it, only its addresses. */
static void bury(struct ucx_fabric *ucx, void *view, size_t bytes)
{
    struct ucx_grave *grave = malloc(sizeof *grave);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(view, bytes, PROT_READ, flags, -1, 0) == MAP_FAILED || grave == NULL) {
        free(grave); // the map stays until the process ends: without memory there is no better
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

void ucx_share_release(struct ucx_fabric *ucx, struct ucx_share *share)
{
    if (--share->references == 0) close_share(ucx, share);
}

static void take_back(struct ucx_link *link, const struct ucx_share *share)
{
    const uint16_t slot = share->slot;
    if (slot >= link->told_count || link->told[slot] != share->generation) return;
    const struct ucx_frame_gone frame = {
        .head = ucx_frame_head(UCX_FRAME_REGION_GONE, link->ucx->node),
        .generation = share->generation,
        .slot = slot,
    };
    link->told[slot] = 0;
    const cairn_status status = ucx_control_send(link, &frame, sizeof frame, NULL, 0);
    (void)status; // the next REGION of this slot says it, too
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

void ucx_shares_close(struct ucx_fabric *ucx)
{
    for (uint32_t i = 0; i < ucx->common.region_count; i++) // a callback may still drop them
        ((struct ucx_region *)ucx->common.regions[i])->share = NULL;
    while (!LIST_EMPTY(&ucx->shares)) close_share(ucx, LIST_FIRST(&ucx->shares));
}

void ucx_graves_close(struct ucx_fabric *ucx)
{
    while (!STAILQ_EMPTY(&ucx->graves)) unmap_oldest(ucx);
}

/* ==== ucx far ==== */

/* Receives into memory that is not read soon (fabric_receive_far), over TCP.
 *
 * UCX reads a rendezvous from its socket into a segment and copies that into the buffer. Left to itself it
 * brings each line of the buffer into the cache first, where the checksum is the only one to read it. A
 * datatype of our own makes that copy ours: the checksum reads the segment, which is in the cache, and the
 * copy goes around it. Into 64 MiB that is a third more goodput than UCX's copy and a pass over the buffer,
 * and a sixth more than UCX's copy without one (raw loop of active messages, 1 MiB each).
 *
 * Only over TCP: a network that could write the buffer itself would be kept from it by such a datatype. */

struct ucx_far {
    LIST_ENTRY(ucx_far) link; /* fabric->fars or fabric->fars_spare */
    struct ucx_fabric *ucx;
    struct fabric_op *op;
    uint8_t *buffer;      /* [op->payload_bytes], on loan */
    struct checksum *sum; /* owned: of the first `at` bytes */
    size_t at;            /* SIZE_MAX: something came out of turn */
};

/* -- the datatype: one element is a whole payload ----------------------------------------------- */

static void *start_unpack(void *context, void *far, size_t count)
{
    (void)context, (void)count;
    return far;
}

static ucs_status_t unpack(void *state, size_t offset, const void *bytes, size_t count)
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

static void finish(void *state)
{
    (void)state; // on_received follows
}

/* Nothing of it is ever sent. */
static void *start_pack(void *context, const void *buffer, size_t count)
{
    (void)context, (void)buffer, (void)count;
    abort();
}

static size_t packed_size(void *state)
{
    return ((const struct ucx_far *)state)->op->payload_bytes;
}

static size_t pack(void *state, size_t offset, void *bytes, size_t room)
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
        .pack = pack,
        .unpack = unpack,
        .finish = finish,
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

/* ==== ucx device ==== */

/* Whether memory of cards goes to peers from where it lies. Three have to do their part: the card,
 * whose memory network cards may reach (GPUDirect RDMA); UCX, of which Debian's builds have nothing
 * for CUDA; and the network card, whose driver registers such memory, by a module of NVIDIA's
 * (nvidia_peermem) or as a dma-buf. If any of them cannot, the memory goes through the host, which
 * is said with the reason.
 *
 * UCX is asked, not guessed at: for CUDA a context that is opened for the question; for the network card its
 * memory domain, which UCX's lower interface (uct) describes. */

/* -- UCX's part --------------------------------------------------------------------------------- */

static bool has_cuda(const struct fabric_options *options, struct sentence *why)
{
    ucp_context_attr_t attr = { .field_mask = UCP_ATTR_FIELD_MEMORY_TYPES };
    ucp_context_h context;
    if (ucx_context_open(options, true, &context, why) != CAIRN_OK) return false;
    const bool is_known = ucp_context_query(context, &attr) == UCS_OK;
    ucp_cleanup(context);
    if (is_known && (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0) return true;
    sentence_set(why, "UCX %s of this system was built without CUDA", ucp_get_version_string());
    return false;
}

/* -- the network card's ------------------------------------------------------------------------- */

enum takes { IS_NO_SUCH_CARD, TAKES_NOT, TAKES };

/* Whether the driver registers memory of cards: by a module of NVIDIA's, whose file UCX looks for,
 * or as a dma-buf. */
static bool registers(const uct_md_attr_t *attr, bool has_dma_buf)
{
#if UCP_API_VERSION >= UCP_VERSION(1, 14)
    if (has_dma_buf && (attr->cap.flags & UCT_MD_FLAG_REG_DMABUF) != 0) return true;
#else
    (void)has_dma_buf;
#endif
    return (attr->cap.reg_mem_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}

static enum takes ask_domain(uct_component_h component, const char *domain, bool has_dma_buf)
{
    uct_md_config_t *config;
    uct_md_attr_t attr;
    uct_md_h md;
    if (uct_md_config_read(component, NULL, NULL, &config) != UCS_OK) return TAKES_NOT;
    ucs_status_t status = uct_md_open(component, domain, config, &md);
    uct_config_release(config);
    if (status != UCS_OK) return TAKES_NOT;
    status = uct_md_query(md, &attr);
    uct_md_close(md);
    return status == UCS_OK && registers(&attr, has_dma_buf) ? TAKES : TAKES_NOT;
}

/* UCX calls the memory domain of an RDMA card as the card: "mlx5_0". */
static enum takes ask_component(uct_component_h component, const char *card, bool has_dma_buf)
{
    uct_component_attr_t attr = { .field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT };
    if (uct_component_query(component, &attr) != UCS_OK || attr.md_resource_count == 0)
        return IS_NO_SUCH_CARD;
    uct_md_resource_desc_t domains[attr.md_resource_count];
    attr.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
    attr.md_resources = domains;
    if (uct_component_query(component, &attr) != UCS_OK) return IS_NO_SUCH_CARD;
    for (unsigned i = 0; i < attr.md_resource_count; i++)
        if (strcmp(domains[i].md_name, card) == 0) return ask_domain(component, card, has_dma_buf);
    return IS_NO_SUCH_CARD;
}

static enum takes ask_card(const char *card, bool has_dma_buf)
{
    uct_component_h *components;
    unsigned count;
    enum takes takes = IS_NO_SUCH_CARD;
    if (uct_query_components(&components, &count) != UCS_OK) return takes;
    for (unsigned i = 0; i < count && takes == IS_NO_SUCH_CARD; i++)
        takes = ask_component(components[i], card, has_dma_buf);
    uct_release_component_list(components);
    return takes;
}

/* True: among `devices` (such as "mlx5_0:1,eth1") is an RDMA card, and all RDMA cards take memory
 * of cards. */
static bool ask_cards(const char *devices, bool has_dma_buf, struct sentence *why)
{
    bool any = false;
    for (const char *at = devices; *at != '\0'; at += *at == ',') {
        char card[UCT_MD_NAME_MAX];
        const size_t length = strcspn(at, ",");
        const size_t name = strcspn(at, ":,");
        snprintf(card, sizeof card, "%.*s", (int)name, at);
        at += length;
        const enum takes takes = ask_card(card, has_dma_buf);
        if (takes == TAKES_NOT) {
            sentence_set(why,
                         "%s registers no memory of a GPU: load nvidia_peermem, or drivers "
                         "that know dma-buf on both sides",
                         card);
            return false;
        }
        any = any || takes == TAKES;
    }
    sentence_set(why,
                 any ? "%s reaches the GPU's memory by itself (GPUDirect RDMA)"
                     : "there is no RDMA card among the devices %s",
                 devices);
    return any;
}

/* -- all of it ---------------------------------------------------------------------------------- */

bool ucx_device_decide(const struct fabric_options *options, struct sentence *why)
{
    const char *no = NULL;
    if (options->device_memory == CAIRN_DEVICE_MEMORY_HOST)
        no = "device_memory is host";
    else if (options->device == NULL)
        no = "there is no card";
    if (no == NULL && !has_cuda(options, why)) return false;
    if (no == NULL && options->device_memory == CAIRN_DEVICE_MEMORY_DEVICE) {
        sentence_set(why, "device_memory is device, and UCX %s has CUDA", ucp_get_version_string());
        return true;
    }
    if (no == NULL && !options->device->is_reached)
        no = "the driver says that no network card reaches the GPU's memory (GPUDirect RDMA)";
    if (no == NULL && strcmp(ucx_transports(options), "tcp") == 0)
        no = "transports are tcp, which goes through host memory in any case; rc,tcp does not";
    if (no == NULL) {
        if (!ask_cards(ucx_devices(options), options->device->has_dma_buf, why)) return false;
        if (SENDS_BY_HANDLE) return true;
        no = "this build of Cairn was made with a UCX before 1.14: build it with the one it runs "
             "with";
    }
    sentence_set(why, "%s", no);
    return false;
}

/* -- registered memory -------------------------------------------------------------------------- */

/* As a rendezvous has it: the receiver reads what is sent, or the sender writes where it is to land. Nothing
 * that is only sent can be written. */
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

/* Registers the memory when something goes there first: as long as nobody of another host has to do with it,
 * it costs nothing. Memory that UCX refuses to register is not sent or received into by its address, since
 * UCX may still know other memory there: it stays, and goes through the host from then on. */
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
    for (uint32_t i = 0; i < ucx->common.region_count; i++) { // a callback may still drop them
        struct ucx_region *region = (struct ucx_region *)ucx->common.regions[i];
        region->sent = region->landed = NULL;
    }
    while (!LIST_EMPTY(&ucx->cards)) close_card(ucx, LIST_FIRST(&ucx->cards));
}
