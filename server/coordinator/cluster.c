/* The coordinator as a whole: how it opens, ticks and closes. */
#include "server/coordinator/cluster.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/restore.h"
#include "server/coordinator/roster.h"

const char *coord_address(const struct coord *cluster)
{
    return listener_address(cluster->listener);
}

uint64_t coord_store_writes(const struct coord *cluster)
{
    return cluster->saves.rows_written;
}

/* ---- time ---- */

/* Doubts the wall clock if it is behind the time of the last stored event, or far ahead of that
 * time. An earlier process has noted this event, perhaps by another clock. */
static void clock_open(struct coord *cluster)
{
    const uint64_t most_off_s = 86400, now_s = wall_unix_s(),
                   last_s = coord_events_last_ms(cluster) / 1000;
    coord_clock_look(cluster);
    if (last_s == 0 || (now_s + CAIRN_WALL_SKEW_S >= last_s && now_s < last_s + most_off_s)) return;
    wall_doubt(&cluster->clock.wall);
    if (now_s < last_s) {
        char back[CAIRN_WALL_JUMP_BYTES];
        wall_jump_text(-(int64_t)(last_s - now_s), back);
        log_warn("the clock of this host is behind the last event that was noted, %s", back);
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct coord *cluster = timer->data;
    const uint64_t now_ms = uv_now(cluster->loop);
    // A late tick shows that this process was stopped. Leases and deadlines do not advance for the
    // time of the stop.
    const uint64_t passed_ms = now_ms - cluster->clock.last_tick_ms;
    const uint64_t late_ms = CAIRN_LATE_TICKS * coord_tick_ms(cluster);
    const bool late = passed_ms > late_ms;
    cluster->clock.last_tick_ms = now_ms;
    if (late) cluster->clock.stopped_ms += passed_ms - late_ms;
    coord_clock_look(cluster);
    coord_sessions_tick(cluster, now_ms, late ? passed_ms : 0);
    coord_shards_tick(cluster);
    storage_watch_tick(&cluster->storage.watch);
    coord_adopt_tick(cluster);
    coord_roster_tick(cluster);
    coord_events_tick(cluster);
    coord_scrub_tick(cluster);
    coord_openings_tick(cluster);
    for (struct coord_job *job = cluster->jobs; job != NULL; job = job->next) {
        coord_job_tick(job, coord_now_ms(cluster));
        coord_leases_tick(job);
        coord_job_parts_tick(job);
        coord_mirrors_tick(job);
        coord_durability_tick(job);
        coord_logs_tick(job);
        coord_operations_tick(job);
        if (coord_recovery_tick(job)) coord_openings_advance(cluster);
        coord_straggler_tick(job);
    }
    coord_sessions_take_early(cluster);
    coord_drains_tick(cluster);
    coord_reshard_spread(cluster);
}

/* ---- closing ---- */

static void free_cluster(struct coord *cluster)
{
    coord_restores_close(cluster);
    coord_resumes_close(cluster);
    coord_drops_close(cluster);
    coord_reshard_asked_close(cluster);
    while (cluster->jobs != NULL) {
        struct coord_job *job = cluster->jobs;
        cluster->jobs = job->next;
        coord_job_free(job);
    }
    while (cluster->shards != NULL) {
        struct coord_shard_entry *entry = cluster->shards;
        cluster->shards = entry->next;
        coord_shard_free(entry);
    }
    coord_events_close(cluster);
    coord_keys_close(cluster);
    coord_roster_close(cluster);
    const bool is_unread = coord_scrub_free(cluster);
    store_close(cluster->store);
    if (cluster->saves.lock_fd >= 0) durable_unlock(cluster->saves.lock_fd);
    if (is_unread) free(cluster->storage.path);
    storage_watch_release(&cluster->storage.watch);
    coord_adopt_close(cluster);
    coord_backup_close(cluster);
    free(cluster->identity.dropped);
    quotas_release(&cluster->tenants.quotas);
    if (is_unread) free(cluster);
}

static void close_step(struct coord *cluster)
{
    if (cluster->ending.handles_open > 0 || cluster->under_way.works != NULL) return;
    void (*on_closed)(void *) = cluster->ending.on_closed;
    void *context = cluster->ending.context;
    free_cluster(cluster);
    if (on_closed != NULL) on_closed(context);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct coord *cluster = handle->data;
    cluster->ending.handles_open--;
    close_step(cluster);
}

static void on_part_closed(void *context)
{
    struct coord *cluster = context;
    cluster->ending.handles_open--;
    close_step(cluster);
}

void coord_close(struct coord *cluster, void (*on_closed)(void *context), void *context)
{
    if (cluster->closing) return;
    cluster->closing = true;
    cluster->ending.on_closed = on_closed;
    cluster->ending.context = context;
    uv_close((uv_handle_t *)&cluster->clock.tick, on_timer_closed);
    listener_close(cluster->listener, on_part_closed);
    coord_saves_close(cluster, on_part_closed, cluster);
    coord_scrub_close(cluster, on_part_closed, cluster);
    storage_watch_close(&cluster->storage.watch, on_part_closed, cluster);
}

/* ---- opening ---- */

static cairn_status open_folders(struct coord *cluster, struct sentence *why)
{
    const struct coord_options *options = cluster->options;
    cairn_status status = durable_lock(options->store_path, &cluster->saves.lock_fd, why);
    if (status != CAIRN_OK) {
        cluster->saves.lock_fd = -1;
        return status;
    }
    status = store_open(options->store_path, options->backing, &cluster->store, why);
    if (status == CAIRN_OK) status = coord_events_open(cluster, why);
    if (status == CAIRN_OK) status = coord_keys_open(cluster, why);
    if (status == CAIRN_OK) status = coord_roster_open(cluster, why);
    if (status == CAIRN_OK) status = coord_storage_open(cluster, why);
    return status == CAIRN_OK ? coord_standing_open(cluster, why) : status;
}

/* Judges the options, and reads the rules of access and the quotas from them. Release the quotas. */
static cairn_status read_options(const struct coord_options *options,
                                 struct access_rules *rules_out, struct coord_quotas *quotas_out,
                                 struct sentence *why)
{
    if (options->lease_timeout_ms < 2 * options->heartbeat_ms)
        return fail_with(why, CAIRN_ERR_CONFIG,
                         "lease.timeout (%" PRId64
                         " ms) must be at least twice lease.heartbeat (%" PRId64 " ms)",
                         options->lease_timeout_ms, options->heartbeat_ms);
    if (options->shards_min > options->shards)
        return fail_with(why, CAIRN_ERR_CONFIG,
                         "cluster.shards_min (%" PRId64
                         ") must not be above cluster.shards (%" PRId64 ")",
                         options->shards_min, options->shards);
    if (options->reshard != NULL && strcmp(options->reshard, "manual") != 0 &&
        strcmp(options->reshard, "on_join") != 0)
        return fail_with(why, CAIRN_ERR_CONFIG, "reshard.policy is \"%s\": give manual or on_join",
                         options->reshard);
    if (options->snapshots_trust != NULL && strcmp(options->snapshots_trust, "signed") != 0 &&
        strcmp(options->snapshots_trust, "any") != 0)
        return fail_with(why, CAIRN_ERR_CONFIG, "snapshots.trust is \"%s\": give signed or any",
                         options->snapshots_trust);
    CAIRN_TRY(quotas_read(options->quota_others, options->quota_owners, quotas_out, why));
    cairn_status status = access_rules_read(options->admin_group, options->socket_roles, rules_out,
                                            why);
    if (status == CAIRN_OK) status = listener_judge(&options->network, why);
    if (status != CAIRN_OK) quotas_release(quotas_out);
    return status;
}

cairn_status coord_options_judge(const struct coord_options *options, struct sentence *why)
{
    struct access_rules rules;
    struct coord_quotas quotas;
    CAIRN_TRY(read_options(options, &rules, &quotas, why));
    quotas_release(&quotas);
    return CAIRN_OK;
}

/* Reads what is stored, and listens. */
static cairn_status open_parts(struct coord *cluster, struct sentence *why)
{
    static const struct listener_events events = { .local = coord_session_local,
                                                   .find = coord_roster_find,
                                                   .identify = coord_roster_identify,
                                                   .on_frame = coord_session_on_frame,
                                                   .on_gone = coord_session_on_gone };
    const struct coord_options *options = cluster->options;
    cairn_status status = open_folders(cluster, why);
    if (status == CAIRN_OK) clock_open(cluster);
    if (status == CAIRN_OK) status = coord_jobs_load(cluster, why);
    if (status == CAIRN_OK) status = coord_mirrors_load(cluster, why);
    if (status == CAIRN_OK) status = coord_drains_load(cluster, why);
    if (status == CAIRN_OK) status = coord_saves_open(cluster, why);
    if (status == CAIRN_OK) status = coord_scrub_open(cluster, why);
    if (status != CAIRN_OK) return status;
    return listener_open(cluster->loop, &options->network, CAIRN_MSG_HELLO, CAIRN_MSG_MAX, &events,
                         cluster, &cluster->listener, why);
}

cairn_status coord_open(const struct coord_options *options, uv_loop_t *loop,
                        struct coord **cluster_out, struct sentence *why)
{
    struct access_rules rules;
    struct coord_quotas quotas;
    CAIRN_TRY(read_options(options, &rules, &quotas, why));
    struct coord *cluster = calloc(1, sizeof *cluster);
    if (cluster == NULL || sodium_init() < 0) {
        free(cluster);
        quotas_release(&quotas);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    }
    cluster->options = options;
    cluster->rules = rules;
    cluster->tenants.quotas = quotas;
    cluster->loop = loop;
    cluster->saves.lock_fd = -1;
    cluster->ending.step = close_step;
    cluster->put_out = coord_session_put_out;
    cluster->callbacks = &coord_job_callbacks;
    cluster->clock.started_ms = cluster->clock.last_tick_ms = uv_now(loop);
    const cairn_status status = open_parts(cluster, why);
    if (status != CAIRN_OK) {
        coord_saves_close(cluster, NULL, NULL);
        coord_scrub_close(cluster, NULL, NULL);
        storage_watch_close(&cluster->storage.watch, NULL, NULL);
        free_cluster(cluster);
        return status;
    }
    uv_timer_init(loop, &cluster->clock.tick);
    cluster->clock.tick.data = cluster;
    uv_timer_start(&cluster->clock.tick, on_tick, coord_tick_ms(cluster), coord_tick_ms(cluster));
    cluster->ending.handles_open = 5;
    log_info("cluster %s, incarnation %" PRIu64 ", waits for %" PRId64 " shard%s", options->name,
             store_meta(cluster->store)->incarnation, options->shards,
             options->shards == 1 ? "" : "s");
    coord_event_note(cluster, CAIRN_EVENT_STARTED, NULL, NULL,
                     "the coordinator of cluster %s, incarnation %" PRIu64, options->name,
                     store_meta(cluster->store)->incarnation);
    *cluster_out = cluster;
    return CAIRN_OK;
}
