#include "tests/support/trained_toy.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
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
    job = fake_attach(&w, 10, 0, 1);
    fake_init(&w, job);
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

void attach_again(void)
{
    come_again("w0");
    ck_assert_uint_eq(fake_attach(&w, 10, 0, 1), job);
}

uint64_t train(void)
{
    return fake_step(&w, job);
}

/* ---- the admin ---- */

struct coord_job *toy(void)
{
    return coord_job_find(fake.cluster, "toy");
}

void restart_coordinator(void)
{
    fake_coordinator_restart(&fake);
    fake_peer_close(&admin);
    admin = fake_connect(&fake, CAIRN_ROLE_WIRE_ADMIN, "ctl");
}

void drain_shard(uint32_t shard)
{
    const uint32_t request = fake_ask(&admin, MemberDrain, .name = fake.shards[shard].name,
                                      .wait = true);
    for (int i = 0; i < 50 && !fake.shards[shard].move.is_ended; i++) {
        train();
        fake_pumps(&fake, 20);
    }
    ck_assert(fake.shards[shard].move.is_ended);
    fake_hear(&admin, Done, request);
}

uint32_t ask_snapshot(struct fake_peer *peer, bool wait)
{
    return fake_ask(peer, SnapshotCreate, .job = "toy", .wait = wait);
}

Cairn__SnapshotStatus *expect_snapshot(uint32_t request)
{
    return fake_hear(&admin, SnapshotStatus, request);
}

Cairn__SnapshotStatus *take_snapshot(void)
{
    return expect_snapshot(ask_snapshot(&admin, true));
}

Cairn__SnapshotList *list_snapshots(void)
{
    const uint32_t request = fake_ask(&admin, SnapshotListGet, .job = "toy");
    return fake_hear(&admin, SnapshotList, request);
}

uint32_t ask_digest(struct fake_peer *peer)
{
    return fake_ask(peer, JobDigestGet, .name = "toy");
}

uint32_t ask_restore(const char *name, const char *id, const char *path)
{
    return fake_ask(&admin, SnapshotRestore, .job = wire_text(name), .id = wire_text(id),
                    .path = wire_text(path));
}

void flip_last_byte(const char *folder)
{
    struct manifest m;
    char path[4200];
    ck_assert_int_eq(manifest_load(folder, &m, NULL), CAIRN_OK);
    snprintf(path, sizeof path, "%s/%s", folder, m.files[0].path);
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, -1, SEEK_END), 0);
    const int last = fgetc(file);
    ck_assert_int_eq(fseek(file, -1, SEEK_END), 0);
    ck_assert_int_eq(fputc(last ^ 1, file), last ^ 1);
    ck_assert_int_eq(fclose(file), 0);
    manifest_release(&m);
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
    return fake_ask(&admin, JobShow, .name = wire_text(name));
}

Cairn__JobStatus *show_job(const char *name)
{
    return fake_hear(&admin, JobStatus, ask_show(name));
}

uint32_t ask_drop(const char *name, bool force)
{
    return fake_ask(&admin, JobRemove, .name = wire_text(name), .force = force);
}

void drop(void)
{
    fake_hear(&admin, JobRemoved, ask_drop("toy", true));
}
