/* Whether memory of cards goes to peers from where it lies. Three have to do their part: the card,
 * whose memory network cards may reach (GPUDirect RDMA); UCX, of which Debian's builds have nothing
 * for CUDA; and the network card, whose driver registers such memory, by a module of NVIDIA's
 * (nvidia_peermem) or as a dma-buf. If any of them cannot, the memory goes through the host, which
 * is said with the reason.
 *
 * UCX is asked, not guessed at: for CUDA a context that is opened for the question; for the network card its
 * memory domain, which UCX's lower interface (uct) describes. */
#include "proto/fabric/ucx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uct/api/uct.h>

/* From 1.14 on a send names the handle of what it sends. Left to itself UCX registers memory when it is sent
 * first, and keeps that by address: of a card it may not hear that other memory lies there since. */
#if UCP_API_VERSION >= UCP_VERSION(1, 14)
#define SENDS_BY_HANDLE 1
#else
#define SENDS_BY_HANDLE 0
#endif

/* -- UCX's part --------------------------------------------------------------------------------- */

static bool has_cuda(const struct cairn_fabric_options *options)
{
    ucp_context_attr_t attr = { .field_mask = UCP_ATTR_FIELD_MEMORY_TYPES };
    struct cairn_sentence unused;
    ucp_context_h context;
    if (ucx_context_open(options, true, &context, &unused) != CAIRN_OK) return false;
    const bool is_known = ucp_context_query(context, &attr) == UCS_OK;
    ucp_cleanup(context);
    return is_known && (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
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
static bool ask_cards(const char *devices, bool has_dma_buf, struct cairn_sentence *why)
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
            cairn_sentence_set(why,
                               "%s registers no memory of a GPU: load nvidia_peermem, or drivers "
                               "that know dma-buf on both sides",
                               card);
            return false;
        }
        any = any || takes == TAKES;
    }
    cairn_sentence_set(why,
                       any ? "%s reaches the GPU's memory by itself (GPUDirect RDMA)"
                           : "there is no RDMA card among the devices %s",
                       devices);
    return any;
}

/* -- all of it ---------------------------------------------------------------------------------- */

bool ucx_device_decide(const struct cairn_fabric_options *options, struct cairn_sentence *why)
{
    const char *no = NULL;
    if (options->device_memory == CAIRN_DEVICE_MEMORY_HOST)
        no = "device_memory is host";
    else if (options->device == NULL)
        no = "there is no card";
    if (no == NULL && !has_cuda(options)) {
        cairn_sentence_set(why, "UCX %s of this system was built without CUDA",
                           ucp_get_version_string());
        return false;
    }
    if (no == NULL && options->device_memory == CAIRN_DEVICE_MEMORY_DEVICE) {
        cairn_sentence_set(why, "device_memory is device, and UCX %s has CUDA",
                           ucp_get_version_string());
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
    cairn_sentence_set(why, "%s", no);
    return false;
}

/* -- registered memory -------------------------------------------------------------------------- */

/* As a rendezvous has it: the receiver reads what is sent, or the sender writes where it is to land. Nothing
 * that is only sent can be written. */
static struct ucx_card *register_card(struct ucx_fabric *ucx,
                                      const struct cairn_fabric_region *region, bool lands)
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

/* When something goes there first: where nobody of another host has to do with it, it costs nothing. */
struct ucx_card *ucx_card_hold(struct ucx_fabric *ucx, const struct fabric_op *op,
                               const void *payload)
{
    struct ucx_region *region = (struct ucx_region *)fabric_region_find(&ucx->common, payload,
                                                                        op->payload_bytes);
    if (!SENDS_BY_HANDLE || region == NULL || region->is_refused) return NULL;
    struct ucx_card **card = op->is_send ? &region->sent : &region->landed;
    if (*card == NULL) *card = register_card(ucx, &region->common, !op->is_send);
    region->is_refused = *card == NULL;
    if (*card != NULL) (*card)->references++;
    return *card;
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
