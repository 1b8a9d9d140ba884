/* Opening and closing a shard. */
#include "server/shard/base/arriving.h"
#include "server/shard/connection.h"
#include "server/shard/device.h"
#include "server/shard/job/admit.h"
#include "server/shard/job/create.h"
#include "server/shard/job/held.h"
#include "server/shard/job/open.h"
#include "server/shard/job/own.h"
#include "server/shard/job/update.h"
#include "server/shard/landing.h"
#include "server/shard/move/force.h"
#include "server/shard/move/give.h"
#include "server/shard/shard.h"
#include "server/shard/without.h"

#include "proto/fabric/where.h"
#include "proto/link/chunk_link.h"
#include "server/base/yield.h"
#include "server/base/guard.h"
#include "server/base/host_lock.h"
#include "server/shard/state/pin_write.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define HELD_MAX       (1u << 18) /* messages: a window of each worker, read where it lies */
#define MEMORY_THREADS 4          /* make pages: from there on the kernel is what takes the time */

/* Every step of closing ends here; the last one frees the shard. */
static void handle_closed(struct cairn_shard *shard)
{
    assert(shard->end.handles > 0);
    if (--shard->end.handles > 0) return;
    void (*on_closed)(void *context) = shard->end.on_closed;
    void *context = shard->end.context;
    cairn_held_keys_release(shard);
    free(shard->name);
    free(shard->import_folders);
    free(shard->memory.lock);
    free(shard->memory.host_root);
    cairn_storage_watch_release(&shard->storage);
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

static void free_jobs(struct cairn_shard *shard)
{
    while (shard->jobs != NULL) cairn_shard_job_free(shard->jobs);
}

void cairn_shard_close(struct cairn_shard *shard, void (*on_closed)(void *context), void *context)
{
    assert(!shard->closing);
    shard->closing = true;
    shard->end.on_closed = on_closed;
    shard->end.context = context;
    shard->end.handles = 1;
    cairn_arriving_drop_all(shard);
    for (struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next) {
        cairn_pin_cancel(job);
        cairn_load_cancel(job);
    }
    if (shard->session.timer.data != NULL) {
        // The stream frees itself in its on_close, which still reads the shard: wait for both.
        shard->end.handles += 1 + (shard->session.stream != NULL);
        cairn_connection_close(shard, on_timer_closed);
    }
    uv_timer_t *const timers[] = { &shard->connects.again, &shard->lease_timer,
                                   &shard->relay_timer,    &shard->memory.give_timer,
                                   &shard->drain.timer,    &shard->move_timer };
    for (size_t i = 0; i < sizeof timers / sizeof *timers; i++) {
        if (timers[i]->data == NULL) continue;
        shard->end.handles++;
        uv_close((uv_handle_t *)timers[i], on_timer_closed);
    }
    if (shard->poll.fabric != NULL) {
        shard->end.handles++;
        cairn_fabric_poll_close(&shard->poll, on_part_closed, shard);
    }
    // First: their threads may be reading the memory of workers.
    if (cairn_compute_stop(&shard->device, on_part_closed, shard)) shard->end.handles++;
    if (cairn_compute_stop(&shard->host, on_part_closed, shard)) shard->end.handles++;
    cairn_fabric_close(shard->fabric); // every loan ends here
    if (shard->files != NULL) {
        shard->end.handles++;
        cairn_pool_close(shard->files, on_part_closed, shard);
    }
    if (shard->snapshots != NULL) {
        shard->end.handles++;
        cairn_pool_close(shard->snapshots, on_part_closed, shard);
    }
    if (cairn_storage_watch_close(&shard->storage, on_part_closed, shard)) shard->end.handles++;
    cairn_reserves_stop(shard);
    if (shard->memory.pool != NULL) {
        shard->end.handles++;
        cairn_pool_close(shard->memory.pool, on_part_closed, shard);
    }
    cairn_reserves_free(shard);
    cairn_arriving_release(shard);
    if (shard->memory.toucher != NULL) {
        shard->end.handles++;
        cairn_pool_close(shard->memory.toucher, on_part_closed, shard);
    }
    if (shard->memory.releaser != NULL) {
        shard->end.handles++;
        cairn_pool_close(shard->memory.releaser, on_part_closed, shard);
    }
    cairn_release_close(shard);
    free_jobs(shard);
    cairn_compute_close(&shard->device);
    cairn_compute_close(&shard->host);
    handle_closed(shard);
}

void cairn_shard_stream_closed(struct cairn_shard *shard)
{
    handle_closed(shard);
}

static void on_refused(void *arg, const char *what)
{
    struct cairn_shard *shard = arg;
    cairn_log_limited(&shard->fabric_refusals, CAIRN_LOG_WARN, "%s", what);
}

static cairn_status open_fabric(struct cairn_shard *shard,
                                const struct cairn_shard_options *options,
                                struct cairn_sentence *why)
{
    const struct cairn_fabric_options fabric_options = {
        .on_message = cairn_landing_on_message,
        .on_message_arg = shard,
        .max_payload = CAIRN_CHUNK_PAYLOAD_MAX,
        .held_max = HELD_MAX,
        .sends_max = HELD_MAX,
        .net_devices = options->fabric_device,
        .port_range = options->fabric_port_range,
        .host = options->fabric_host,
        .transports = options->fabric_transports,
        .one_sided = options->fabric_one_sided,
        .device_memory = options->fabric_device_memory,
        .on_refused = on_refused,
        .device = shard->imports.uuid_count > 0 ? &shard->imports : NULL,
        .hub = options->hub,
    };
    cairn_status status = cairn_fabric_open(options->fabric_kind, &fabric_options, &shard->fabric,
                                            why);
    if (status != CAIRN_OK) return status;
    status = cairn_fabric_poll_init(&shard->poll, shard->loop, shard->fabric, 0);
    if (status != CAIRN_OK) {
        shard->poll.fabric = NULL;
        return cairn_fail(why, status, "cannot watch the fabric: %s",
                          cairn_status_text((int)status));
    }
    struct cairn_sentence without;
    cairn_without_print(shard->without, &without);
    char places[CAIRN_PLACE_BYTES];
    size_t bytes;
    const void *address = cairn_fabric_address(shard->fabric, &bytes);
    cairn_fabric_address_print_places(address, bytes, places);
    cairn_log_info("fabric: %s", cairn_fabric_describe(shard->fabric));
    cairn_log_info("data from other hosts %s%s", places[0] != '\0' ? "comes to " : "does not come",
                   places);
    cairn_device_say_way(shard);
    if (without.text[0] != '\0') cairn_log_info("without %s", without.text);
    return CAIRN_OK;
}

static const struct cairn_shard_up up = {
    .unused = cairn_shard_job_unused,
    .fault = cairn_shard_job_stop,
    .settle = cairn_own_settle,
    .loaded = cairn_admit_loaded,
    .copies_ended = cairn_pass_copies_ended,
    .rests = cairn_move_rests,
    .moves_end = cairn_move_leave,
    .moves_free = cairn_move_release,
    .memory_back = cairn_create_on_memory_back,
};

static cairn_status open_parts(struct cairn_shard *shard, const struct cairn_shard_options *options,
                               struct cairn_sentence *why)
{
    cairn_status status = cairn_compute_open(&shard->host, shard->loop, cairn_home_host(),
                                             "cairn-compute", options->compute_threads, why);
    if (status == CAIRN_OK) status = cairn_device_open(shard, options, why);
    shard->without = cairn_shard_find_without(shard->device.home != NULL);
    if (status == CAIRN_OK)
        status = cairn_pool_open(shard->loop, "cairn-files", 1, NULL, &shard->files, why);
    if (status == CAIRN_OK)
        status = cairn_pool_open(shard->loop, "cairn-snapshot", 1, cairn_thread_yield,
                                 &shard->snapshots, why);
    if (status == CAIRN_OK)
        status = cairn_pool_open(shard->loop, "cairn-memory", MEMORY_THREADS, NULL,
                                 &shard->memory.pool, why);
    if (status == CAIRN_OK)
        status = cairn_pool_open(shard->loop, "cairn-touch", 1, cairn_thread_yield,
                                 &shard->memory.toucher, why);
    if (status == CAIRN_OK)
        status = cairn_pool_open(shard->loop, "cairn-release", 1, NULL, &shard->memory.releaser,
                                 why);
    if (status == CAIRN_OK) status = cairn_shard_storage_open(shard, why);
    if (status == CAIRN_OK) status = open_fabric(shard, options, why);
    if (status == CAIRN_OK) status = cairn_connection_open(shard, options->coordinator, why);
    return status;
}

cairn_status cairn_shard_open(uv_loop_t *loop, const struct cairn_shard_options *options,
                              struct cairn_shard **shard_out, struct cairn_sentence *why)
{
    struct cairn_shard *shard = calloc(1, sizeof *shard);
    if (shard == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a shard");
    shard->loop = loop;
    shard->up = &up;
    uv_timer_init(loop, &shard->connects.again);
    shard->connects.again.data = shard;
    uv_timer_init(loop, &shard->lease_timer);
    shard->lease_timer.data = shard;
    uv_timer_init(loop, &shard->relay_timer);
    shard->relay_timer.data = shard;
    uv_timer_init(loop, &shard->memory.give_timer);
    shard->memory.give_timer.data = shard;
    uv_timer_init(loop, &shard->move_timer);
    shard->move_timer.data = shard;
    uv_timer_init(loop, &shard->drain.timer);
    shard->drain.timer.data = shard;
    shard->memory.give_max_bytes = CAIRN_GIVE_MAX_BYTES;
    shard->memory.budget.limit_bytes = options->memory_bytes;
    shard->relay_cache_bytes = options->relay_cache_bytes;
    shard->unheard_ms = CAIRN_LINK_SILENT_MS;
    shard->events.on_ready = options->on_ready;
    shard->events.on_fenced = options->on_fenced;
    shard->events.on_drained = options->on_drained;
    shard->events.on_unfit = options->on_unfit;
    shard->events.context = options->context;
    cairn__shard_stats__init(&shard->stats);
    shard->build = options->build != NULL ? options->build : CAIRN_VERSION;
    shard->name = strdup(options->name);
    shard->import_folders = strdup(options->import_folders != NULL ? options->import_folders : "");
    shard->memory.lock = strdup(options->memory_lock != NULL ? options->memory_lock
                                                             : CAIRN_HOST_LOCK_PATH);
    shard->memory.host_root = strdup(options->host_root != NULL ? options->host_root : "");
    cairn_status status = cairn_guard_install();
    ssize_t got = getrandom(&shard->incarnation, sizeof shard->incarnation, 0);
    if (shard->name == NULL || shard->import_folders == NULL || shard->memory.lock == NULL ||
        shard->memory.host_root == NULL || got != (ssize_t)sizeof shard->incarnation) {
        status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory or no random numbers");
    }
    if (status == CAIRN_OK) status = open_parts(shard, options, why);
    if (status != CAIRN_OK) {
        cairn_shard_close(shard, NULL, NULL);
        return status;
    }
    *shard_out = shard;
    return CAIRN_OK;
}
