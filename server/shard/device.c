#include "server/shard/device.h"

#include <string.h>

/* They put lists together and bring what workers have in memory to where a device can take it; so many keep
 * copies and kernels beside each other. */
#define DEVICE_THREADS 4

bool cairn_device_backend_ok(const char *backend)
{
    return strcmp(backend, "host") == 0 || strcmp(backend, "cuda") == 0 ||
           strcmp(backend, "auto") == 0;
}

/* ---- memory of the card that workers show ---- */

static cairn_status import(void *context, const struct cairn_fabric_offer *offer, int fd,
                           void **address_out, struct cairn_sentence *why)
{
    const struct cairn_shard *shard = context;
    const void *address;
    const cairn_status status = cairn_home_import(shard->device.home, fd, offer->bytes, &address,
                                                  why);
    if (status == CAIRN_OK) *address_out = (void *)(uintptr_t)address;
    return status;
}

static void release(void *context, void *address, uint64_t bytes)
{
    const struct cairn_shard *shard = context;
    cairn_home_import_release(shard->device.home, address, bytes);
}

static cairn_status copy(void *context, void *to_host, const void *from_device, size_t bytes)
{
    const struct cairn_shard *shard = context;
    struct cairn_works *works = cairn_compute_loop(&shard->device);
    struct cairn_sentence why;
    cairn_works_copy(works, to_host, from_device, bytes);
    return cairn_works_run(works, &why);
}

static void offer_imports(struct cairn_shard *shard)
{
    const struct cairn_home_info *info = cairn_home_info(shard->device.home);
    if (!info->exports) return;
    shard->imports = (struct cairn_fabric_device) { .uuid_count = 1,
                                                    .is_reached = info->is_reached,
                                                    .has_dma_buf = info->has_dma_buf,
                                                    .context = shard,
                                                    .import = import,
                                                    .release = release,
                                                    .copy = copy };
    memcpy(shard->imports.uuids[0], info->uuid, sizeof shard->imports.uuids[0]);
    for (uint32_t i = 0; i < info->peer_count; i++)
        memcpy(shard->imports.uuids[shard->imports.uuid_count++], info->peer_uuids[i],
               sizeof shard->imports.uuids[0]);
}

/* ---- the device ---- */

static cairn_status open_home(struct cairn_shard *shard, const char *device,
                              struct cairn_sentence *why)
{
    struct cairn_home *home;
    const bool is_named = device != NULL && device[0] != '\0';
    cairn_status status = cairn_home_open_cuda(is_named ? device : NULL, &home, why);
    if (status != CAIRN_OK) return status;
    status = cairn_compute_open(&shard->device, shard->loop, home, "cairn-device", DEVICE_THREADS,
                                why);
    // No thread of it runs: they are opened last. Jobs go to what is there, so nothing may stay.
    if (status != CAIRN_OK) cairn_compute_close(&shard->device);
    return status;
}

static void say(struct cairn_shard *shard)
{
    const struct cairn_home_info *info = cairn_home_info(shard->device.home);
    cairn_log_info(
        "state lies on %s (%s), which has %llu bytes, %llu of them taken by this process's context "
        "and by others; %u streams stage in up to %llu of what is free, and in as many of host "
        "memory, pinned",
        info->device, info->driver, (unsigned long long)info->total_bytes,
        (unsigned long long)info->taken_bytes, cairn_compute_lanes(&shard->device),
        (unsigned long long)cairn_compute_staging_left(&shard->device));
    if (info->numa_node != CAIRN_NUMA_NONE)
        cairn_log_info("%s is next to NUMA node %d: its threads run there, and pinned memory is of "
                       "there",
                       info->device, info->numa_node);
    if (info->warning[0] != '\0') cairn_log_warn("%s: %s", info->device, info->warning);
}

cairn_status cairn_device_open(struct cairn_shard *shard, const struct cairn_shard_options *options,
                               struct cairn_sentence *why)
{
    const char *backend = options->backend != NULL ? options->backend : "host";
    struct cairn_sentence reason = { "compute.backend is host" };
    cairn_status status = CAIRN_ERR_NOT_FOUND;
    if (strcmp(backend, "host") != 0) status = open_home(shard, options->device, &reason);
    if (status == CAIRN_OK) {
        say(shard);
        offer_imports(shard);
        return CAIRN_OK;
    }
    if (strcmp(backend, "cuda") == 0)
        return cairn_fail(why, status, "compute.backend = cuda: %s", reason.text);
    const char *host = cairn_home_info(shard->host.home)->device;
    if (strcmp(backend, "host") == 0 || status == CAIRN_ERR_NOT_FOUND)
        cairn_log_info("state lies in host memory (%s): %s", host, reason.text);
    else // there may be a device, and nobody uses it
        cairn_log_warn("state lies in host memory (%s): %s", host, reason.text);
    shard->no_device = reason;
    return CAIRN_OK;
}

static bool goes_directly(const struct cairn_shard *shard, const char **why_out)
{
    *why_out = "no state of this shard lies on a card";
    if (shard->device.home == NULL) return false;
    *why_out = "the card has no memory that others may map (cuMemCreate with POSIX handles)";
    if (shard->imports.uuid_count == 0) return false;
    return cairn_fabric_takes_device(shard->fabric, why_out);
}

void cairn_device_say_way(const struct cairn_shard *shard)
{
    const char *why;
    const bool is_direct = goes_directly(shard, &why);
    if (shard->device.home == NULL) return;
    cairn_log_info("what lies on the card goes to other hosts %s: %s",
                   is_direct ? "from there" : "through host memory", why);
}

void cairn_device_tell(struct cairn_shard *shard, Cairn__Home *out)
{
    struct cairn_home *home = shard->device.home != NULL ? shard->device.home : shard->host.home;
    struct cairn_home_info *info = (struct cairn_home_info *)(uintptr_t)cairn_home_info(home);
    cairn__home__init(out);
    out->backend = (char *)(uintptr_t)info->backend;
    out->device = info->device;
    out->driver = info->driver;
    out->total_bytes = info->total_bytes;
    out->taken_bytes = info->taken_bytes;
    out->warning = info->warning;
    out->why = shard->no_device.text;
    const char *way_why;
    out->device_memory = goes_directly(shard, &way_why) ? (char *)(uintptr_t) "device"
                                                        : (char *)(uintptr_t) "host";
    out->device_memory_why = (char *)(uintptr_t)way_why;
    const char *failure = cairn_home_failure(home);
    if (failure != NULL) out->failed = (char *)(uintptr_t)failure;
}

void cairn_device_count(const struct cairn_shard *shard, Cairn__ShardStats *stats)
{
    if (shard->device.home == NULL) return;
    const struct cairn_home_use use = cairn_home_use(shard->device.home);
    stats->launches = use.launches;
    stats->in_bytes = use.bytes_in;
    stats->out_bytes = use.bytes_out;
    stats->pinned_bytes = use.pinned_bytes;
    stats->unpinned_bytes = use.unpinned_bytes;
}
