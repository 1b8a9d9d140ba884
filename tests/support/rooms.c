#include "tests/support/rooms.h"
#include "tests/support/test_backend.h"

#include <check.h>
#include <signal.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static void on_stop(uv_async_t *stop)
{
    struct rooms *rooms = stop->data;
    for (uint32_t i = 0; i < rooms->shard_count; i++) shard_close(rooms->shards[i], NULL, NULL);
    coord_close(rooms->cluster, NULL, NULL);
    uv_close((uv_handle_t *)stop, NULL);
}

static void on_ready(struct shard_daemon *shard, void *context)
{
    (void)shard;
    struct rooms *rooms = context;
    if (++rooms->shards_ready == rooms->shard_count) sem_post(&rooms->ready);
}

static void open_shard(struct rooms *rooms, uint32_t shard)
{
    char name[32];
    struct sentence why;
    snprintf(name, sizeof name, "shard-%u", shard);
    const struct shard_options options = { .name = name,
                                           .coordinator = rooms->address,
                                           .memory_bytes = 256 << 20,
                                           .memory_lock = rooms->folder,
                                           .compute_threads = rooms->compute_threads,
                                           .backend = cairn_test_backend(),
                                           .fabric_kind = "mem",
                                           .hub = rooms->hub,
                                           .events = { .on_ready = on_ready, .context = rooms } };
    const cairn_status status = shard_open(&rooms->loop, &options, &rooms->shards[shard], &why);
    ck_assert_msg(status == CAIRN_OK, "%s", why.text);
}

static void *rooms_thread(void *arg)
{
    struct rooms *rooms = arg;
    uv_run(&rooms->loop, UV_RUN_DEFAULT);
    return NULL;
}

static struct coord_options options_of(struct rooms *rooms)
{
    return (struct coord_options) {
        .name = wire_text("rooms"),
        .shards = rooms->shard_count,
        .store_path = rooms->store,
        .snapshots_path = rooms->snapshots,
        .network = { .listen = rooms->address,
                     .connections_max = 2 *
                                        (32 + rooms->workers_max), // an owner may have half of them
                     .half_open_max = 32,
                     .hello_timeout_ms = 5000,
                     .send_queue_bytes = 8 << 20 },
        .heartbeat_ms = 1000,
        .lease_timeout_ms = 10000,
        .workers_max = rooms->workers_max,
        .lease_ttl_max_ms = 600000,
        .lease_versions_max = CAIRN_LEASED_VERSIONS_MAX,
    };
}

static void open_inside(struct rooms *rooms, uint32_t shard_count, uint32_t workers_max,
                        const struct cairn_fabric_mem_options *fabric)
{
    struct sentence why;
    memset(rooms, 0, sizeof *rooms);
    rooms->shard_count = shard_count;
    rooms->compute_threads = 1;
    rooms->workers_max = workers_max;
    log_init("rooms", CAIRN_LOG_ERROR);
    cairn_scratch_make_quick(rooms->folder);
    snprintf(rooms->store, sizeof rooms->store, "%s/store", rooms->folder);
    snprintf(rooms->snapshots, sizeof rooms->snapshots, "%s/snapshots", rooms->folder);
    snprintf(rooms->address, sizeof rooms->address, "%s/socket", rooms->folder);
    rooms->options = options_of(rooms);
    sem_init(&rooms->ready, 0, 0);
    ck_assert_int_eq(cairn_fabric_mem_hub_open(fabric, &rooms->hub), CAIRN_OK);
    ck_assert_int_eq(uv_loop_init(&rooms->loop), 0);
    ck_assert_int_eq(uv_async_init(&rooms->loop, &rooms->stop, on_stop), 0);
    rooms->stop.data = rooms;
    ck_assert_msg(coord_open(&rooms->options, &rooms->loop, &rooms->cluster, &why) == CAIRN_OK,
                  "%s", why.text);
    for (uint32_t i = 0; i < shard_count; i++) open_shard(rooms, i);
    ck_assert_int_eq(pthread_create(&rooms->thread, NULL, rooms_thread, rooms), 0);
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 30;
    ck_assert_msg(sem_timedwait(&rooms->ready, &deadline) == 0, "the shards do not join");
}

/* The daemons ignore SIGPIPE; here only their threads do, so that one of the library's would be seen. */
void rooms_open_for(struct rooms *rooms, uint32_t shard_count, uint32_t workers_max,
                    const struct cairn_fabric_mem_options *fabric)
{
    sigset_t pipe, old;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &old);
    open_inside(rooms, shard_count, workers_max, fabric);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void rooms_open(struct rooms *rooms, uint32_t shard_count,
                const struct cairn_fabric_mem_options *fabric)
{
    rooms_open_for(rooms, shard_count, 32, fabric);
}

void rooms_close(struct rooms *rooms)
{
    uv_async_send(&rooms->stop);
    pthread_join(rooms->thread, NULL);
    ck_assert_int_eq(uv_loop_close(&rooms->loop), 0);
    cairn_fabric_mem_hub_close(rooms->hub);
    sem_destroy(&rooms->ready);
    cairn_scratch_remove(rooms->folder);
}
