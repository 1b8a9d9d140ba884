/* The coordinator as a whole: opened, ticking, closed. */
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/durable.h"
#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/job/drain.h"
#include "server/coordinator/job/drop.h"
#include "server/coordinator/job/first.h"
#include "server/coordinator/job/jobs.h"
#include "server/coordinator/job/parts.h"
#include "server/coordinator/member/seats.h"
#include "server/coordinator/restore/adopt.h"
#include "server/coordinator/restore/recovery.h"
#include "server/coordinator/restore/restore.h"
#include "server/coordinator/restore/resume.h"
#include "server/coordinator/seating.h"
#include "server/coordinator/sessions.h"
#include "server/coordinator/snapshot/scrub.h"
#include "server/coordinator/store/backup.h"
#include "server/coordinator/store/store.h"
#include "server/coordinator/trust/keys.h"

const char *cairn_cluster_address(const struct cairn_cluster *cluster)
{
    return cairn_listener_address(cluster->listener);
}

uint64_t cairn_cluster_store_writes(const struct cairn_cluster *cluster)
{
    return cluster->saves.rows_written;
}

/* ---- time ---- */

static uint64_t tick_ms(const struct cairn_cluster *cluster)
{
    const uint64_t half = (uint64_t)cluster->options->heartbeat_ms / 2;
    return half < 10 ? 10 : half;
}

/* A tick that comes later says that we were stopped. */
static uint64_t late_ms(const struct cairn_cluster *cluster)
{
    return 4 * tick_ms(cluster);
}

/* Not past the time at which the next tick is late: what is longer is taken away by that tick, and what was
 * told before must not be ahead of what is told after. */
uint64_t cairn_cluster_now_ms(const struct cairn_cluster *cluster)
{
    const uint64_t now_ms = uv_now(cluster->loop);
    const uint64_t last_ms = cluster->clock.last_tick_ms + late_ms(cluster);
    return (now_ms < last_ms ? now_ms : last_ms) - cluster->clock.stopped_ms;
}

void cairn_cluster_clock_look(struct cairn_cluster *cluster)
{
    char jump[CAIRN_WALL_JUMP_BYTES];
    if (cairn_wall_watch(&cluster->clock.wall, jump))
        cairn_cluster_event_note(cluster, CAIRN_EVENT_CLOCK, NULL, NULL, "%s", jump);
}

/* The last event was noted by another process, perhaps by another clock. */
static void clock_open(struct cairn_cluster *cluster)
{
    const uint64_t most_off_s = 86400, now_s = cairn_wall_unix_s(),
                   last_s = cairn_cluster_events_last_ms(cluster) / 1000;
    cairn_cluster_clock_look(cluster);
    if (last_s == 0 || (now_s + CAIRN_WALL_SKEW_S >= last_s && now_s < last_s + most_off_s)) return;
    cairn_wall_doubt(&cluster->clock.wall);
    if (now_s < last_s) {
        char back[CAIRN_WALL_JUMP_BYTES];
        cairn_wall_jump_text(-(int64_t)(last_s - now_s), back);
        cairn_log_warn("the clock of this host is behind the last event that was noted, %s", back);
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct cairn_cluster *cluster = timer->data;
    const uint64_t now_ms = uv_now(cluster->loop);
    // While we were stopped nobody's lease or deadline ran.
    const uint64_t passed_ms = now_ms - cluster->clock.last_tick_ms;
    const bool late = passed_ms > late_ms(cluster);
    cluster->clock.last_tick_ms = now_ms;
    if (late) cluster->clock.stopped_ms += passed_ms - late_ms(cluster);
    cairn_cluster_clock_look(cluster);
    cairn_cluster_sessions_tick(cluster, now_ms, late ? passed_ms : 0);
    cairn_cluster_seats_tick(cluster);
    cairn_storage_watch_tick(&cluster->storage.watch);
    cairn_cluster_adopt_tick(cluster);
    cairn_cluster_events_tick(cluster);
    cairn_cluster_scrub_tick(cluster);
    cairn_cluster_first_tick(cluster);
    cairn_cluster_openings_tick(cluster);
    for (struct cairn_cluster_job *job = cluster->jobs; job != NULL; job = job->next) {
        cairn_cluster_job_tick(job, cairn_cluster_now_ms(cluster));
        cairn_cluster_leases_tick(job);
        cairn_cluster_job_parts_tick(job);
        cairn_cluster_park_advance(job);
        cairn_cluster_reshard_tick(job);
        cairn_cluster_cut_tick(job);
        cairn_cluster_recovery_tick(job);
        cairn_cluster_straggler_tick(job);
    }
    cairn_cluster_sessions_take_early(cluster);
    cairn_cluster_drains_tick(cluster);
    cairn_cluster_reshard_spread(cluster);
}

/* ---- closing ---- */

static void free_cluster(struct cairn_cluster *cluster)
{
    cairn_cluster_restores_close(cluster);
    cairn_cluster_resumes_close(cluster);
    cairn_cluster_drops_close(cluster);
    cairn_cluster_reshard_asked_close(cluster);
    while (cluster->jobs != NULL) {
        struct cairn_cluster_job *job = cluster->jobs;
        cluster->jobs = job->next;
        cairn_cluster_cut_close(job);
        cairn_cluster_job_free(job);
    }
    while (cluster->seats != NULL) {
        struct cairn_cluster_seat *seat = cluster->seats;
        cluster->seats = seat->next;
        cairn_cluster_seat_free(seat);
    }
    cairn_cluster_events_close(cluster);
    cairn_cluster_keys_close(cluster);
    const bool is_unread = cairn_cluster_scrub_free(cluster);
    cairn_store_close(cluster->store);
    if (cluster->lock_fd >= 0) cairn_durable_unlock(cluster->lock_fd);
    if (is_unread) free(cluster->storage.path);
    cairn_storage_watch_release(&cluster->storage.watch);
    cairn_cluster_adopt_close(cluster);
    cairn_cluster_backup_close(cluster);
    free(cluster->identity.dropped);
    if (is_unread) free(cluster);
}

void cairn_cluster_close_step(struct cairn_cluster *cluster)
{
    if (cluster->handles_open > 0 || cluster->works != NULL) return;
    void (*on_closed)(void *) = cluster->on_closed;
    void *context = cluster->on_closed_context;
    free_cluster(cluster);
    if (on_closed != NULL) on_closed(context);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct cairn_cluster *cluster = handle->data;
    cluster->handles_open--;
    cairn_cluster_close_step(cluster);
}

static void on_part_closed(void *context)
{
    struct cairn_cluster *cluster = context;
    cluster->handles_open--;
    cairn_cluster_close_step(cluster);
}

void cairn_cluster_close(struct cairn_cluster *cluster, void (*on_closed)(void *context),
                         void *context)
{
    if (cluster->closing) return;
    cluster->closing = true;
    cluster->on_closed = on_closed;
    cluster->on_closed_context = context;
    uv_close((uv_handle_t *)&cluster->clock.tick, on_timer_closed);
    cairn_listener_close(cluster->listener, on_part_closed);
    cairn_cluster_saves_close(cluster, on_part_closed, cluster);
    cairn_cluster_scrub_close(cluster, on_part_closed, cluster);
    cairn_storage_watch_close(&cluster->storage.watch, on_part_closed, cluster);
}

/* ---- opening ---- */

static cairn_status open_folders(struct cairn_cluster *cluster, struct cairn_sentence *why)
{
    const struct cairn_cluster_options *options = cluster->options;
    cairn_status status = cairn_durable_lock(options->store_path, &cluster->lock_fd, why);
    if (status != CAIRN_OK) {
        cluster->lock_fd = -1;
        return status;
    }
    status = cairn_store_open(options->store_path, &cluster->store, why);
    if (status == CAIRN_OK) status = cairn_cluster_events_open(cluster, why);
    if (status == CAIRN_OK) status = cairn_cluster_keys_open(cluster, why);
    if (status == CAIRN_OK) status = cairn_cluster_storage_open(cluster, why);
    return status == CAIRN_OK ? cairn_cluster_standing_open(cluster, why) : status;
}

cairn_status cairn_cluster_options_judge(const struct cairn_cluster_options *options,
                                         struct cairn_sentence *why)
{
    if (options->lease_timeout_ms < 2 * options->heartbeat_ms) {
        return cairn_fail(why, CAIRN_ERR_CONFIG,
                          "lease.timeout (%" PRId64
                          " ms) must be at least twice lease.heartbeat (%" PRId64 " ms)",
                          options->lease_timeout_ms, options->heartbeat_ms);
    }
    if (options->shards_min > options->shards)
        return cairn_fail(why, CAIRN_ERR_CONFIG,
                          "cluster.shards_min (%" PRId64
                          ") must not be above cluster.shards (%" PRId64 ")",
                          options->shards_min, options->shards);
    if (options->reshard != NULL && strcmp(options->reshard, "manual") != 0 &&
        strcmp(options->reshard, "on_join") != 0)
        return cairn_fail(why, CAIRN_ERR_CONFIG, "reshard.policy is \"%s\": give manual or on_join",
                          options->reshard);
    if (options->snapshots_trust != NULL && strcmp(options->snapshots_trust, "signed") != 0 &&
        strcmp(options->snapshots_trust, "any") != 0)
        return cairn_fail(why, CAIRN_ERR_CONFIG, "snapshots.trust is \"%s\": give signed or any",
                          options->snapshots_trust);
    return cairn_listener_judge(&options->network, why);
}

cairn_status cairn_cluster_open(const struct cairn_cluster_options *options, uv_loop_t *loop,
                                struct cairn_cluster **cluster_out, struct cairn_sentence *why)
{
    static const struct cairn_listener_events events = { .on_frame = cairn_cluster_session_on_frame,
                                                         .on_gone = cairn_cluster_session_on_gone };
    cairn_status status = cairn_cluster_options_judge(options, why);
    if (status != CAIRN_OK) return status;
    struct cairn_cluster *cluster = calloc(1, sizeof *cluster);
    if (cluster == NULL || sodium_init() < 0) {
        free(cluster);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    }
    cluster->options = options;
    cluster->loop = loop;
    cluster->lock_fd = -1;
    cluster->clock.started_ms = cluster->clock.last_tick_ms = uv_now(loop);
    status = open_folders(cluster, why);
    if (status == CAIRN_OK) clock_open(cluster);
    if (status == CAIRN_OK) status = cairn_cluster_jobs_load(cluster, why);
    if (status == CAIRN_OK) status = cairn_cluster_drains_load(cluster, why);
    if (status == CAIRN_OK) status = cairn_cluster_saves_open(cluster, why);
    if (status == CAIRN_OK) status = cairn_cluster_scrub_open(cluster, why);
    if (status == CAIRN_OK) {
        status = cairn_listener_open(loop, &options->network, CAIRN_MSG_HELLO, CAIRN_MSG_MAX,
                                     &events, cluster, &cluster->listener, why);
    }
    if (status != CAIRN_OK) {
        cairn_cluster_saves_close(cluster, NULL, NULL);
        cairn_cluster_scrub_close(cluster, NULL, NULL);
        cairn_storage_watch_close(&cluster->storage.watch, NULL, NULL);
        free_cluster(cluster);
        return status;
    }
    uv_timer_init(loop, &cluster->clock.tick);
    cluster->clock.tick.data = cluster;
    uv_timer_start(&cluster->clock.tick, on_tick, tick_ms(cluster), tick_ms(cluster));
    cluster->handles_open = 5;
    cairn_log_info("cluster %s, incarnation %" PRIu64 ", waits for %" PRId64 " shard%s",
                   options->name, cairn_store_meta(cluster->store)->incarnation, options->shards,
                   options->shards == 1 ? "" : "s");
    cairn_cluster_event_note(cluster, CAIRN_EVENT_STARTED, NULL, NULL,
                             "the coordinator of cluster %s, incarnation %" PRIu64, options->name,
                             cairn_store_meta(cluster->store)->incarnation);
    *cluster_out = cluster;
    return CAIRN_OK;
}
