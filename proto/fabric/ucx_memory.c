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
#include "proto/base/pages.h"
#include "proto/fabric/ucx.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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
    void *view = cairn_pages_map(share->bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd);
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
        tell_unregistered(ucx, bytes, has_slot ? "no memory" : "too many regions are");
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

void ucx_region_drop(struct cairn_fabric_region *common)
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
