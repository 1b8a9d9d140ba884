/* Many workers and shards at one coordinator: all of them join, declare their tiles, and come back to a new
 * coordinator, each within a lease. In this process; what the scripted shards and workers take counts, too.
 * With CAIRN_TEST_LONG 1,024 workers and 256 shards, else a sixteenth of the work. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "tests/support/fake_cluster.h"
#include "tests/support/pages.h"
#include "tests/support/suite.h"

enum { WORKERS_MAX = 1024 };
enum { TENSORS = 64, COLUMNS = 1024 };
#define LEASE_S 10.0 /* lease_timeout's default */

static struct fake_cluster fake;
static uint32_t worker_count, shard_count;
static struct fake_peer workers[WORKERS_MAX];
static struct job_spec_data spec;
static uint64_t job;

/* TENSORS weights in units of their own: each is spread over 16 shards, every shard has a part. */
static void make_spec(void)
{
    struct job_spec_data toy = fake_spec(worker_count);
    struct tensor_spec t = toy.tensors[1];
    spec = fake_spec(worker_count);
    t.shape = (struct shape) { .rank = 2, .dim = { 1024, COLUMNS } };
    for (int i = 0; i < TENSORS; i++) {
        char name[32];
        snprintf(name, sizeof name, "block%02d.weight", i);
        t.name = t.unit = name;
        ck_assert_int_eq(spec_add_tensor(&spec, &t), CAIRN_OK);
    }
    spec_canonicalize(&spec);
    spec_release(&toy);
}

static void set_up(void)
{
    struct rlimit files;
    const bool is_long = getenv("CAIRN_TEST_LONG") != NULL;
    worker_count = is_long ? WORKERS_MAX : WORKERS_MAX / 4;
    shard_count = is_long ? 256 : 64;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
    fake_open(&fake, shard_count);
    fake_coordinator_stop(&fake);
    fake.options.workers_max = worker_count;
    fake.options.network.connections_max = 2 * (worker_count + shard_count);
    fake_coordinator_start(&fake);
    fake_shards_up(&fake, shard_count);
    make_spec();
}
static void tear_down(void)
{
    for (uint32_t i = 0; i < worker_count; i++) fake_peer_close(&workers[i]);
    spec_release(&spec);
    fake_close(&fake);
}

/* Of this process's processor time, so that what else runs on the machine does not count. */
static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Every worker opens the job, and hears that it is attached. */
static void attach_all(void)
{
    static uint32_t request[WORKERS_MAX];
    for (uint32_t i = 0; i < worker_count; i++) {
        workers[i] = fake_connect(&fake, CAIRN_ROLE_WIRE_WORKER, "trainer");
        request[i] = fake_job_open(&workers[i], &spec, 1000 + i, i);
    }
    for (uint32_t i = 0; i < worker_count; i++) {
        Cairn__Attached *attached = fake_hear(&workers[i], Attached, request[i]);
        job = attached->job;
    }
}

/* Its columns of every weight; the bias it holds whole. */
static uint32_t declare_columns(struct fake_peer *peer, uint32_t rank)
{
    struct tiles tiles = { 0 };
    uint8_t *bytes;
    size_t size;
    for (uint32_t t = 0; t < spec.tensor_count; t++) {
        const struct shape *shape = &spec.tensors[t].shape;
        if (shape->rank != 2) continue;
        const uint64_t width = shape->dim[1] / worker_count;
        const struct cairn_box box = { 2, { 0, rank * width }, { shape->dim[0], width } };
        ck_assert_int_eq(tiles_set(&tiles, t, &box), CAIRN_OK);
    }
    ck_assert_int_eq(tiles_pack(&tiles, &bytes, &size), CAIRN_OK);
    const uint32_t request = fake_ask(peer, TilesDeclare, .job = job, .world = worker_count,
                                      .tiles_bytes = size);
    pages_each(CAIRN_PAGE_TILES, bytes, size, fake_send_page, peer);
    free(bytes);
    tiles_release(&tiles);
    return request;
}

/* Every rank declares, and hears that all have. */
static void declare_all(void)
{
    static uint32_t request[WORKERS_MAX];
    for (uint32_t i = 0; i < worker_count; i++) request[i] = declare_columns(&workers[i], i);
    for (uint32_t i = 0; i < worker_count; i++) fake_hear(&workers[i], TilesSet, request[i]);
}

static void expect_within_a_lease(const char *what, double since_s)
{
    const double took_s = now_s() - since_s;
    printf("note: %u workers x %u shards %s in %.2f s of processor time\n", worker_count,
           shard_count, what, took_s);
    ck_assert_double_lt(took_s, LEASE_S);
}

TEST(all_attach_and_come_back_within_a_lease)
{
    double begin_s = now_s();
    attach_all();
    expect_within_a_lease("attached", begin_s);
    begin_s = now_s();
    declare_all();
    expect_within_a_lease("declared tiles", begin_s);
    fake_coordinator_stop(&fake);
    for (uint32_t i = 0; i < worker_count; i++) fake_peer_close(&workers[i]);
    fake_coordinator_start(&fake);
    begin_s = now_s();
    fake_shards_up(&fake, shard_count);
    attach_all();
    declare_all();
    expect_within_a_lease("came back to a new coordinator, with tiles", begin_s);
}

SUITE(200, set_up, tear_down);
