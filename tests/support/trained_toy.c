#include "tests/support/trained_toy.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/fake_shard.h"

struct fake_cluster fake;
struct fake_peer w = { .fd = -1 }, admin = { .fd = -1 };
uint64_t job;

/* ---- fixtures ---- */

void open_fake(void)
{
    fake_open(&fake, 2);
}

static void attach(void)
{
    job = fake_attach(&fake, &w, 10, 0, 1);
    fake_init(&fake, &w, job);
}

void open_trained(void)
{
    open_fake();
    fake_shards_up(&fake, 2);
    w = worker("w0");
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
    attach();
    ck_assert_uint_eq(train(), 1);
}

void tick_fast(void)
{
    fake.options.heartbeat_ms = 20;
    fake.cluster->clock.last_tick_ms = uv_now(
        fake.cluster->loop); // by a shorter tick the last one would be late
    uv_timer_set_repeat(&fake.cluster->clock.tick, 10);
    uv_timer_again(&fake.cluster->clock.tick);
}

void open_ticking(void)
{
    open_trained();
    tick_fast();
}

void close_fake(void)
{
    fake_peer_close(&w);
    fake_peer_close(&admin);
    fake_close(&fake);
}

/* ---- the worker ---- */

struct fake_peer worker(const char *name)
{
    return fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, name);
}

void start_job(void)
{
    fake_shards_up(&fake, 2);
    w = worker("w0");
    attach();
}

void start_trained(void)
{
    start_job();
    ck_assert_uint_eq(train(), 1);
}

void come_again(const char *name)
{
    fake_peer_close(&w);
    w = worker(name);
}

uint64_t train(void)
{
    return fake_step(&fake, &w, job);
}

/* ---- the admin ---- */

struct coord_job *toy(void)
{
    return coord_job_find(fake.cluster, "toy");
}

void restart_coordinator(void)
{
    fake_coordinator_stop(&fake);
    fake_coordinator_start(&fake);
    fake_peer_close(&admin);
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
}

void drain_shard(uint32_t shard)
{
    Cairn__MemberDrain message = CAIRN__MEMBER_DRAIN__INIT;
    message.name = fake.shards[shard].name;
    message.wait = true;
    const uint32_t request = fake_request(&admin, CAIRN_MSG_MEMBER_DRAIN, &message.base);
    for (int i = 0; i < 50 && !fake.shards[shard].move.is_ended; i++) {
        train();
        for (int k = 0; k < 20; k++) fake_pump(&fake);
    }
    ck_assert(fake.shards[shard].move.is_ended);
    message_free(fake_expect(&fake, &admin, CAIRN_MSG_DONE, request));
}

uint32_t ask_snapshot(struct fake_peer *peer, bool wait)
{
    Cairn__SnapshotCreate create = CAIRN__SNAPSHOT_CREATE__INIT;
    create.job = wire_text("toy");
    create.wait = wait;
    return fake_request(peer, CAIRN_MSG_SNAPSHOT_CREATE, &create.base);
}

Cairn__SnapshotStatus *expect_snapshot(uint32_t request)
{
    return fake_expect(&fake, &admin, CAIRN_MSG_SNAPSHOT_STATUS, request);
}

Cairn__SnapshotStatus *take_snapshot(void)
{
    return expect_snapshot(ask_snapshot(&admin, true));
}

Cairn__SnapshotList *list_snapshots(void)
{
    Cairn__SnapshotListGet get = CAIRN__SNAPSHOT_LIST_GET__INIT;
    get.job = wire_text("toy");
    const uint32_t request = fake_request(&admin, CAIRN_MSG_SNAPSHOT_LIST_GET, &get.base);
    return fake_expect(&fake, &admin, CAIRN_MSG_SNAPSHOT_LIST, request);
}

uint32_t ask_digest(struct fake_peer *peer)
{
    Cairn__JobDigestGet get = CAIRN__JOB_DIGEST_GET__INIT;
    get.name = wire_text("toy");
    return fake_request(peer, CAIRN_MSG_JOB_DIGEST_GET, &get.base);
}

uint32_t ask_restore(const char *name, const char *id, const char *path)
{
    Cairn__SnapshotRestore restore = CAIRN__SNAPSHOT_RESTORE__INIT;
    restore.job = wire_text(name);
    restore.id = wire_text(id);
    restore.path = wire_text(path);
    return fake_request(&admin, CAIRN_MSG_SNAPSHOT_RESTORE, &restore.base);
}

size_t snapshot_folders(void)
{
    char path[128];
    size_t count = 0;
    snprintf(path, sizeof path, "%s/toy", fake.snapshots);
    DIR *dir = opendir(path);
    if (dir == NULL) return 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        count += strncmp(e->d_name, "step-", 5) == 0;
    closedir(dir);
    return count;
}

uint32_t ask_show(const char *name)
{
    Cairn__JobShow show = CAIRN__JOB_SHOW__INIT;
    show.name = wire_text(name);
    return fake_request(&admin, CAIRN_MSG_JOB_SHOW, &show.base);
}

Cairn__JobStatus *show_job(const char *name)
{
    return fake_expect(&fake, &admin, CAIRN_MSG_JOB_STATUS, ask_show(name));
}

uint32_t ask_drop(const char *name, bool force)
{
    Cairn__JobRemove remove = CAIRN__JOB_REMOVE__INIT;
    remove.name = wire_text(name);
    remove.force = force;
    return fake_request(&admin, CAIRN_MSG_JOB_REMOVE, &remove.base);
}

void drop(void)
{
    const uint32_t request = ask_drop("toy", true);
    message_free(fake_expect(&fake, &admin, CAIRN_MSG_JOB_REMOVED, request));
}
