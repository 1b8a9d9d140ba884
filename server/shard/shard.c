/* Opening and closing a shard. */
#include "server/shard/shard.h"

#include <inttypes.h>
#include <assert.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "gpu/gpu.h"
#include "proto/fabric/fabric.h"
#include "proto/store/storage.h"
#include "server/base/daemon.h"
#include "server/shard/jobs.h"

/* the most messages at a time: a window of each worker, read where they lie */
#define HELD_MAX (1u << 18)
/* how many threads make pages; with more threads the kernel would be the bottleneck */
#define MEMORY_THREADS 4

static cairn_status device_open(struct shard_daemon *shard, const struct shard_options *options,
                                struct sentence *why);
static uint32_t find_without(bool has_device);
static cairn_status storage_open(struct shard_daemon *shard, struct sentence *why);

/* Called when one of the things that are being closed is closed. The last call frees the shard. */
static void handle_closed(struct shard_daemon *shard)
{
    assert(shard->end.handles > 0);
    if (--shard->end.handles > 0) return;
    void (*on_closed)(void *context) = shard->end.on_closed;
    void *context = shard->end.context;
    held_keys_release(shard);
    entrance_wipe(&shard->session.entrance);
    free(shard->session.token_file);
    free(shard->session.token_fallback);
    free(shard->name);
    free(shard->import_folders);
    free(shard->standby_of);
    free(shard->domain);
    free(shard->memory.lock);
    free(shard->memory.host_root);
    storage_watch_release(&shard->storage);
    journals_release(shard);
    free(shard);
    if (on_closed != NULL) on_closed(context);
}

static void on_timer_closed(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

static void on_part_closed(void *context)
{
    handle_closed(context);
}

/* The timers that live as long as the shard. */
#define TIMERS 6
static uv_timer_t *timer_of(struct shard_daemon *shard, size_t i)
{
    uv_timer_t *const timers[TIMERS] = { &shard->connects.again, &shard->lease_timer,
                                         &shard->tick_timer,     &shard->memory.give_timer,
                                         &shard->drain.timer,    &shard->journals.timer };
    return timers[i];
}

void shard_close(struct shard_daemon *shard, void (*on_closed)(void *context), void *context)
{
    assert(!shard->closing);
    shard->closing = true;
    shard->end = (struct shard_end) { 1, handle_closed, on_closed, context };
    arriving_drop_all(shard);
    journal_scan_cancel(shard);
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        shard_tell(job, SHARD_JOB_CANCELS);
    if (shard->session.timer.data != NULL) {
        // The stream frees itself in its on_close, which still reads the shard. So the shard is
        // freed after both the timer and the stream are closed.
        shard->end.handles += 1 + (shard->session.stream != NULL);
        connection_close(shard, on_timer_closed);
    }
    for (size_t i = 0; i < TIMERS; i++) {
        shard->end.handles++;
        uv_close((uv_handle_t *)timer_of(shard, i), on_timer_closed);
    }
    if (shard->links.poll.fabric != NULL) {
        shard->end.handles++;
        fabric_poll_close(&shard->links.poll, on_part_closed, shard);
    }
    // These are stopped before the fabric is closed, because their threads may be reading memory of
    // workers.
    if (compute_stop(&shard->device, on_part_closed, shard)) shard->end.handles++;
    if (compute_stop(&shard->host, on_part_closed, shard)) shard->end.handles++;
    fabric_close(shard->fabric); // ends all loans to the fabric
    if (shard->files != NULL) {
        shard->end.handles++;
        pool_close(shard->files, on_part_closed, shard);
    }
    if (shard->snapshots != NULL) {
        shard->end.handles++;
        pool_close(shard->snapshots, on_part_closed, shard);
    }
    shard->end.handles += journals_close(shard, on_part_closed, shard);
    if (storage_watch_close(&shard->storage, on_part_closed, shard)) shard->end.handles++;
    if (shard->memory.pool != NULL) {
        shard->end.handles++;
        pool_close(shard->memory.pool, on_part_closed, shard);
    }
    reserves_free(shard);
    arriving_release(shard);
    if (shard->memory.toucher != NULL) {
        shard->end.handles++;
        pool_close(shard->memory.toucher, on_part_closed, shard);
    }
    if (shard->memory.releaser != NULL) {
        shard->end.handles++;
        pool_close(shard->memory.releaser, on_part_closed, shard);
    }
    release_close(shard);
    while (shard->jobs != NULL) shard_job_free(shard->jobs);
    compute_close(&shard->device);
    compute_close(&shard->host);
    handle_closed(shard);
}

static void on_refused(void *arg, const char *what)
{
    struct shard_daemon *shard = arg;
    log_limited(&shard->links.refusals, CAIRN_LOG_WARN, "%s", what);
}

/* Logs how data on the device is sent to other hosts. Call it after the fabric was opened. */
static void device_say_way(const struct shard_daemon *shard)
{
    const char *why;
    const bool is_direct = device_goes_directly(shard, &why);
    if (shard->device.home == NULL) return;
    log_info("data on the card goes to other hosts %s: %s",
             is_direct ? "from there" : "through host memory", why);
}

static cairn_status open_fabric(struct shard_daemon *shard, const struct shard_options *options,
                                struct sentence *why)
{
    const struct fabric_options fabric_options = {
        .on_message = landing_on_message,
        .on_message_arg = shard,
        .max_payload = CAIRN_CHUNK_PAYLOAD_MAX,
        .held_max = HELD_MAX,
        .sends_max = HELD_MAX,
        .net_devices = options->fabric_device,
        .port_range = options->fabric_port_range,
        .host = options->fabric_host,
        .transports = options->fabric_transports,
        .ways = options->fabric_ways,
        .is_strict = true,
        .one_sided = options->fabric_one_sided,
        .device_memory = options->fabric_device_memory,
        .on_refused = on_refused,
        .device = shard->links.imports.uuid_count > 0 ? &shard->links.imports : NULL,
        .hub = options->hub,
    };
    CAIRN_TRY(fabric_open(options->fabric_kind, &fabric_options, &shard->fabric, why));
    cairn_status status = fabric_poll_init(&shard->links.poll, shard->loop, shard->fabric, 0);
    if (status != CAIRN_OK) {
        shard->links.poll.fabric = NULL;
        return fail_with(why, status, "cannot watch the fabric: %s", status_text((int)status));
    }
    struct sentence without;
    without_print(shard->without, &without);
    char places[CAIRN_PLACE_BYTES];
    size_t bytes;
    const void *address = fabric_own_address(shard->fabric, &bytes);
    fabric_address_print_places(address, bytes, places);
    log_info("fabric: %s", fabric_describe(shard->fabric));
    log_info("data from other hosts %s%s", places[0] != '\0' ? "comes to " : "does not come",
             places);
    device_say_way(shard);
    if (without.text[0] != '\0') log_info("without %s", without.text);
    return CAIRN_OK;
}

const struct shard_module *const shard_modules[] = {
    &session_module, &held_module,   &create_module,    &round_module,       &relay_module,
    &move_module,    &mirror_module, &park_module,      &reserve_module,     &restore_module,
    &pin_module,     &put_module,    &tile_module,      &update_module,      &terms_module,
    &member_module,  &fetch_module,  &published_module, &kept_resume_module, &kept_module,
    &journal_module, &audit_module,
};
const size_t shard_module_count = sizeof shard_modules / sizeof *shard_modules;

static cairn_status open_parts(struct shard_daemon *shard, const struct shard_options *options,
                               struct sentence *why)
{
    cairn_status status = compute_open(&shard->host, shard->loop, home_host(), "cairn-compute",
                                       options->compute_threads, why);
    if (status == CAIRN_OK) status = device_open(shard, options, why);
    shard->without = find_without(shard->device.home != NULL);
    if (status == CAIRN_OK)
        status = pool_open(shard->loop, "cairn-files", 1, NULL, &shard->files, why);
    if (status == CAIRN_OK)
        status = pool_open(shard->loop, "cairn-snapshot", 1, thread_yield, &shard->snapshots, why);
    if (status == CAIRN_OK)
        status = pool_open(shard->loop, "cairn-memory", MEMORY_THREADS, NULL, &shard->memory.pool,
                           why);
    if (status == CAIRN_OK)
        status = pool_open(shard->loop, "cairn-touch", 1, thread_yield, &shard->memory.toucher,
                           why);
    if (status == CAIRN_OK)
        status = pool_open(shard->loop, "cairn-release", 1, NULL, &shard->memory.releaser, why);
    if (status == CAIRN_OK) status = storage_open(shard, why);
    if (status == CAIRN_OK) status = open_fabric(shard, options, why);
    if (status == CAIRN_OK) status = connection_open(shard, options, why);
    if (status != CAIRN_OK) return status;
    kept_open(shard, options);
    CAIRN_TRY(journals_open(shard, options, why));
    if (shard->kept.pending == 0) connection_begin(shard);
    return CAIRN_OK;
}

cairn_status shard_open(uv_loop_t *loop, const struct shard_options *options,
                        struct shard_daemon **shard_out, struct sentence *why)
{
    struct shard_daemon *shard = calloc(1, sizeof *shard);
    if (shard == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a shard");
    shard->loop = loop;
    shard->up = &shard_job_up;
    TAILQ_INIT(&shard->arriving);
    TAILQ_INIT(&shard->arriving_dropped);
    for (size_t i = 0; i < TIMERS; i++) {
        uv_timer_init(loop, timer_of(shard, i));
        timer_of(shard, i)->data = shard;
    }
    shard->memory.give_max_bytes = CAIRN_GIVE_MAX_BYTES;
    shard->memory.budget.limit_bytes = options->memory_bytes;
    shard->memory.relay_cache_bytes = options->relay_cache_bytes;
    shard->session.unheard_ms = CAIRN_LINK_SILENT_MS;
    shard->events = options->events;
    cairn__shard_stats__init(&shard->stats);
    shard->build = options->build != NULL ? options->build : CAIRN_VERSION;
    shard->name = strdup(options->name);
    shard->import_folders = strdup(options->import_folders != NULL ? options->import_folders : "");
    shard->memory.lock = strdup(options->memory_lock != NULL ? options->memory_lock
                                                             : CAIRN_HOST_LOCK_PATH);
    shard->memory.host_root = strdup(options->host_root != NULL ? options->host_root : "");
    cairn_status status = guard_install();
    ssize_t got = getrandom(&shard->incarnation, sizeof shard->incarnation, 0);
    shard->standby_of = strdup(options->standby_of != NULL ? options->standby_of : "");
    shard->domain = strdup(options->domain != NULL ? options->domain : "");
    if (shard->name == NULL || shard->import_folders == NULL || shard->standby_of == NULL ||
        shard->domain == NULL || shard->memory.lock == NULL || shard->memory.host_root == NULL ||
        got != (ssize_t)sizeof shard->incarnation) {
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory or no random numbers");
    }
    if (status == CAIRN_OK) status = open_parts(shard, options, why);
    if (status != CAIRN_OK) {
        shard_close(shard, NULL, NULL);
        return status;
    }
    *shard_out = shard;
    return CAIRN_OK;
}

/* ==== storage ==== */

static cairn_status check_storage(const char *path, uint64_t token,
                                  const struct storage_owner *owner, struct sentence *why)
{
    (void)owner; // the coordinator has judged the owner already
    const cairn_status status = storage_check(path, token, why);
    if (status != CAIRN_OK)
        sentence_add(why,
                     "; mount the coordinator's snapshots.path at that path, for the same user");
    return status;
}

static void on_said(struct storage_watch *watch)
{
    if (watch->said.text[0] != '\0')
        log_warn("no snapshot can be saved by this shard: %s", watch->said.text);
    else
        log_info("snapshots go to %s", watch->path);
    connection_beat(watch->context);
}

static cairn_status storage_open(struct shard_daemon *shard, struct sentence *why)
{
    shard->storage =
        (struct storage_watch) { .judge = check_storage, .on_said = on_said, .context = shard };
    return storage_watch_open(&shard->storage, shard->loop, why);
}

/* ==== without ==== */

/* Finds the optional features that this build or this host lacks. */

static bool has_card(void)
{
    DIR *folder = opendir("/sys/class/infiniband");
    bool found = false;
    for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;)
        found |= entry->d_name[0] != '.';
    if (folder != NULL) closedir(folder);
    return found;
}

/* Returns the optional features that this build or this host lacks, as bits of enum spec_without.
 * Reads /sys. */
static uint32_t find_without(bool has_device)
{
    uint32_t without = 0;
    if (!has_card()) without |= CAIRN_WITHOUT_RDMA;
    if (!has_device) without |= CAIRN_WITHOUT_GPU;
    if (strcmp(backend_host()->isa, "avx512") != 0) without |= CAIRN_WITHOUT_AVX512;
    return without;
}

/* ==== device ==== */

/* The threads of the device put lists of works together, and copy payloads from workers' memory to
 * memory that a device can read. With so many threads, copies and kernels run at the same time. */
#define DEVICE_THREADS 4

/* ---- memory of the card that workers show ---- */

static cairn_status import(void *context, const struct fabric_offer *offer, int fd,
                           void **address_out, struct sentence *why)
{
    const struct shard_daemon *shard = context;
    const void *address;
    const cairn_status status = home_import(shard->device.home, fd, offer->bytes, &address, why);
    if (status == CAIRN_OK) *address_out = (void *)(uintptr_t)address;
    return status;
}

static void release(void *context, void *address, uint64_t bytes)
{
    const struct shard_daemon *shard = context;
    home_import_release(shard->device.home, address, bytes);
}

static cairn_status copy(void *context, void *to_host, const void *from_device, size_t bytes)
{
    const struct shard_daemon *shard = context;
    struct works *works = compute_loop(&shard->device);
    struct sentence why;
    works_copy(works, to_host, from_device, bytes);
    return works_run(works, &why);
}

static void offer_imports(struct shard_daemon *shard)
{
    const struct home_info *info = home_info(shard->device.home);
    if (!info->exports) return;
    shard->links.imports = (struct fabric_device) { .uuid_count = 1,
                                                    .is_reached = info->is_reached,
                                                    .has_dma_buf = info->has_dma_buf,
                                                    .context = shard,
                                                    .import = import,
                                                    .release = release,
                                                    .copy = copy };
    memcpy(shard->links.imports.uuids[0], info->uuid, sizeof shard->links.imports.uuids[0]);
    for (uint32_t i = 0; i < info->peer_count; i++)
        memcpy(shard->links.imports.uuids[shard->links.imports.uuid_count++], info->peer_uuids[i],
               sizeof shard->links.imports.uuids[0]);
}

/* ---- the device ---- */

static cairn_status open_home(struct shard_daemon *shard, const char *device, struct sentence *why)
{
    struct home *home;
    const bool is_named = device != NULL && device[0] != '\0';
    CAIRN_TRY(home_open_cuda(is_named ? device : NULL, &home, why));
    cairn_status status = compute_open(&shard->device, shard->loop, home, "cairn-device",
                                       DEVICE_THREADS, why);
    // Nothing of the device may stay open, because jobs use a device that is open. No thread of the
    // device runs, because threads are opened last.
    if (status != CAIRN_OK) compute_close(&shard->device);
    return status;
}

static void say(struct shard_daemon *shard)
{
    const struct home_info *info = home_info(shard->device.home);
    log_info("state lies on %s (%s), which has %" PRIu64 " bytes, %" PRIu64
             " of them taken by this process's context "
             "and by others; %u streams stage in up to %" PRIu64
             " of what is free, and in as many of host "
             "memory, pinned",
             info->device, info->driver, info->total_bytes, info->taken_bytes,
             compute_lanes(&shard->device), compute_staging_left(&shard->device));
    if (info->numa_node != CAIRN_NUMA_NONE)
        log_info("%s is next to NUMA node %d: its threads run there, and pinned memory is of "
                 "there",
                 info->device, info->numa_node);
    if (info->warning[0] != '\0') log_warn("%s: %s", info->device, info->warning);
}

/* Opens the device for which the options ask. Logs where state lies and, if it lies in host memory,
 * why. If there is no device and the backend is `auto`, the shard continues with host memory.
 * CAIRN_ERR_NOT_FOUND, CAIRN_ERR_UNSUPPORTED, CAIRN_ERR_NO_MEMORY: the backend is `cuda`, and no
 * device is available. */
static cairn_status device_open(struct shard_daemon *shard, const struct shard_options *options,
                                struct sentence *why)
{
    const char *backend = options->backend != NULL ? options->backend : "host";
    struct sentence reason = { "compute.backend is host" };
    cairn_status status = CAIRN_ERR_NOT_FOUND;
    if (strcmp(backend, "host") != 0) status = open_home(shard, options->device, &reason);
    if (status == CAIRN_OK) {
        say(shard);
        offer_imports(shard);
        return CAIRN_OK;
    }
    if (strcmp(backend, "cuda") == 0)
        return fail_with(why, status, "compute.backend = cuda: %s", reason.text);
    const char *host = home_info(shard->host.home)->device;
    if (strcmp(backend, "host") == 0 || status == CAIRN_ERR_NOT_FOUND)
        log_info("state lies in host memory (%s): %s", host, reason.text);
    else // there may be a device, but it is not used
        log_warn("state lies in host memory (%s): %s", host, reason.text);
    shard->no_device = reason;
    return CAIRN_OK;
}
