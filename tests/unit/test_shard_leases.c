/* Leases at a shard: a version that is leased stays as it was published while training goes on over it, for
 * the memory of one copy, which comes back; and no update ever waits. */
#include <check.h>
#include <string.h>

#include "tests/support/shard_model.h"
#include "tests/support/shard_scene.h"
#include "tests/support/suite.h"

enum { LONG_MS = 60000, MODELS = CAIRN_LEASED_VERSIONS_MAX + 4 };

static struct scene scene;
static struct model now, then[MODELS]; /* then[s]: as it was at step s */
static uint64_t at;                    /* the step of `now` */
static struct shard_job *job;
static uint64_t used_before, copy_bytes;

static void check_wire(uint64_t step)
{
    for (uint64_t c = 0; c < scene.map.chunk_count; c++) {
        const struct chunk_place place = shard_map_chunk(&scene.map, c);
        struct chunk_header fetch = scene_chunk_header(&scene, CAIRN_CHUNK_FETCH, 1, c);
        size_t bytes;
        const void *wanted = model_bytes(&then[step], CAIRN_PLANE_WIRE, &place, &bytes);
        fetch.plane = CAIRN_PLANE_WIRE;
        fetch.generation = 1;
        fetch.step = step;
        scene_send(&scene, &fetch, NULL, 0);
        const struct scene_note *data = scene_note(&scene, CAIRN_CHUNK_DATA);
        ck_assert_uint_eq(data->header.payload_bytes, bytes);
        ck_assert_mem_eq(data->payload, wanted, bytes);
    }
}

static void check_gone(uint64_t step)
{
    struct chunk_header fetch = scene_chunk_header(&scene, CAIRN_CHUNK_FETCH, 1, 0);
    fetch.plane = CAIRN_PLANE_WIRE;
    fetch.generation = 1;
    fetch.step = step;
    scene_send(&scene, &fetch, NULL, 0);
    ck_assert_int_eq((int)scene_note(&scene, CAIRN_CHUNK_NAK)->header.value,
                     CAIRN_ERR_VERSION_GONE);
}

static void train_to(uint64_t step)
{
    for (; at < step; at++) {
        model_round(&now, &scene, at + 1, at);
        model_copy(&then[at + 1], &now);
    }
}

static void serve(void)
{
    scene_open(&scene, "mem", 2, 0);
    scene_serve(&scene, 2, 1);
    model_open(&now, &scene);
    at = 0;
    model_copy(&then[0], &now);
    check_wire(0); // the buffers of replies are there from now on
    job = scene.shard->jobs;
    used_before = scene.shard->memory.budget.used_bytes;
    copy_bytes = job->versions.copies[0].head.bytes + job->versions.copies[0].wire.bytes +
                 (job->view->table.map.chunk_count + 1) * (sizeof(uint64_t) + 1);
}

static void leave(void)
{
    model_close(&now);
    for (int i = 0; i < MODELS; i++) model_close(&then[i]);
    scene_close(&scene);
}

/* CAIRN_OK: Done; else the Error, which has the word. */
static cairn_status keep(uint64_t lease, uint64_t generation, uint64_t step, uint32_t ttl_ms,
                         const char *word)
{
    Cairn__LeaseKeep message = CAIRN__LEASE_KEEP__INIT;
    message.job = SCENE_JOB;
    message.lease = lease;
    message.generation = generation;
    message.step = step;
    message.ttl_ms = ttl_ms;
    scene_say(&scene, CAIRN_MSG_LEASE_KEEP, 40, &message.base);
    if (word == NULL) {
        ck_assert_uint_eq(scene_hear(&scene, CAIRN_MSG_DONE).request, 40);
        return CAIRN_OK;
    }
    const Cairn__Error *error = (const Cairn__Error *)scene_hear(&scene, CAIRN_MSG_ERROR).message;
    ck_assert_msg(strstr(error->text, word) != NULL, "%s", error->text);
    return (cairn_status)error->status;
}

static void end(uint64_t lease)
{
    Cairn__LeaseEnd message = CAIRN__LEASE_END__INIT;
    message.job = SCENE_JOB;
    message.lease = lease;
    scene_say(&scene, CAIRN_MSG_LEASE_END, 0, &message.base);
    scene_settle(&scene);
}

static void check_copies(uint64_t more)
{
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, used_before + more * copy_bytes);
}

TEST(a_leased_version_stays_bit_for_bit_while_training_goes_on)
{
    train_to(1);
    ck_assert_int_eq(keep(7, 1, 0, LONG_MS, NULL), CAIRN_OK); // the one before the newest
    check_copies(1);
    for (uint64_t step = 2; step < MODELS; step++) {
        train_to(step);
        check_wire(0);
        check_wire(step); // in the copy that the lease made, too: with its frozen tensors
        check_wire(step - 1);
    }
    end(7);
    check_copies(0);
    check_gone(0);
    check_wire(MODELS - 1);
    check_wire(MODELS - 2);
}

TEST(a_lease_that_does_not_fit_is_refused_with_the_numbers)
{
    scene.shard->memory.budget.limit_bytes = used_before + copy_bytes - 1;
    ck_assert_int_eq(keep(7, 1, 0, LONG_MS, "memory.limit"), CAIRN_ERR_NO_MEMORY);
    check_copies(0);
    train_to(2);
    check_gone(0);
    check_wire(2);
}

TEST(leases_of_one_version_share_one_copy)
{
    ck_assert_int_eq(keep(7, 1, 0, LONG_MS, NULL), CAIRN_OK);
    ck_assert_int_eq(keep(8, 1, 0, LONG_MS, NULL), CAIRN_OK);
    check_copies(1);
    train_to(3);
    end(7);
    check_copies(1);
    check_wire(0);
    end(7); // again, or one that is unknown: nothing
    end(99);
    check_wire(0);
    end(8);
    check_copies(0);
    check_gone(0);
}

TEST(as_many_versions_as_there_may_be_are_leased_and_updates_go_on)
{
    for (uint64_t step = 0; step < CAIRN_LEASED_VERSIONS_MAX; step++) {
        train_to(step);
        ck_assert_int_eq(keep(10 + step, 1, step, LONG_MS, NULL), CAIRN_OK); // the newest
    }
    check_copies(CAIRN_LEASED_VERSIONS_MAX);
    train_to(CAIRN_LEASED_VERSIONS_MAX + 2);
    ck_assert_int_eq(keep(99, 1, at, LONG_MS, "leased already"), CAIRN_ERR_BUSY);
    for (uint64_t step = 0; step <= at; step++)
        if (step != CAIRN_LEASED_VERSIONS_MAX) check_wire(step);
    check_gone(CAIRN_LEASED_VERSIONS_MAX);
    end(11);
    check_gone(1);
    check_copies(CAIRN_LEASED_VERSIONS_MAX - 1);
    ck_assert_int_eq(keep(99, 1, at, LONG_MS, NULL), CAIRN_OK);
    train_to(at + 1);
    check_wire(at - 1);
    for (uint64_t step = 0; step < CAIRN_LEASED_VERSIONS_MAX; step++) end(10 + step);
    end(99);
    check_copies(0);
}

TEST(leases_of_a_coordinator_before_this_one_make_room_for_what_it_asks_for)
{
    for (uint64_t step = 0; step < CAIRN_LEASED_VERSIONS_MAX; step++) {
        train_to(step);
        ck_assert_int_eq(keep(10 + step, 1, step, LONG_MS, NULL), CAIRN_OK);
    }
    train_to(at + 2);
    scene.shard->session.coordinator.incarnation++;
    ck_assert_int_eq(keep(20, 1, 1, LONG_MS, NULL), CAIRN_OK); // renewed: nothing has to go
    check_copies(CAIRN_LEASED_VERSIONS_MAX);
    check_wire(0);
    ck_assert_int_eq(keep(21, 1, at, LONG_MS, NULL), CAIRN_OK);
    check_copies(2);
    check_gone(0);
    check_gone(2);
    check_wire(1);
    scene.shard->session.coordinator.incarnation++;
    scene.shard->memory.budget.limit_bytes = scene.shard->memory.budget.used_bytes;
    train_to(at + 2);
    ck_assert_int_eq(keep(22, 1, at, LONG_MS, NULL), CAIRN_OK); // the memory is theirs, too
    check_copies(1);
    check_gone(1);
    scene.shard->memory.budget.limit_bytes = scene.shard->memory.budget.used_bytes;
    ck_assert_int_eq(keep(23, 1, at - 1, LONG_MS, "memory.limit"), CAIRN_ERR_NO_MEMORY);
    for (uint64_t n = 30; n < 29 + CAIRN_SHARD_LEASES_MAX; n++)
        ck_assert_int_eq(keep(n, 1, at, LONG_MS, NULL), CAIRN_OK);
    ck_assert_int_eq(keep(99, 1, at, LONG_MS, "held already"), CAIRN_ERR_BUSY);
    scene.shard->session.coordinator.incarnation++;
    ck_assert_int_eq(keep(99, 1, at, LONG_MS, NULL),
                     CAIRN_OK); // in the place of one of this version
    check_copies(1);
}

TEST(a_lease_that_the_coordinator_forgot_ends_by_the_shards_own_clock)
{
    ck_assert_int_eq(keep(7, 1, 0, LONG_MS, NULL), CAIRN_OK);
    ck_assert_int_eq(keep(8, 1, 0, 50, NULL), CAIRN_OK);
    train_to(2);
    while (job->versions.leases[1].number != 0) uv_run(&scene.loop, UV_RUN_ONCE);
    check_wire(0);                                       // 7 keeps it
    ck_assert_int_eq(keep(7, 1, 0, 50, NULL), CAIRN_OK); // repeated: for shorter
    while (job->versions.leases[0].number != 0) uv_run(&scene.loop, UV_RUN_ONCE);
    check_gone(0);
    check_copies(0);
}

TEST(what_is_not_kept_cannot_be_leased)
{
    train_to(2);
    ck_assert_int_eq(keep(7, 1, 0, LONG_MS, "not kept any more"), CAIRN_ERR_VERSION_GONE);
    ck_assert_int_eq(keep(7, 1, 3, LONG_MS, "not published yet"), CAIRN_ERR_NOT_READY);
    ck_assert_int_eq(keep(7, 2, 0, LONG_MS, "not published yet"), CAIRN_ERR_NOT_READY);
    ck_assert_int_eq(keep(7, 1, 2, 0, "are allowed"), CAIRN_ERR_INVALID);
    ck_assert_int_eq(keep(0, 1, 2, LONG_MS, "are allowed"), CAIRN_ERR_INVALID);
    check_copies(0);
    ck_assert_int_eq(keep(7, 1, 2, LONG_MS, NULL), CAIRN_OK);
    ck_assert_int_eq(keep(7, 1, 1, LONG_MS, "another version"), CAIRN_ERR_EXISTS);
    for (uint64_t n = 8; n < 7 + CAIRN_SHARD_LEASES_MAX; n++)
        ck_assert_int_eq(keep(n, 1, 2, LONG_MS, NULL), CAIRN_OK);
    ck_assert_int_eq(keep(99, 1, 2, LONG_MS, "held already"), CAIRN_ERR_BUSY);
    check_copies(1);
}

TEST(a_job_that_is_dropped_gives_leased_copies_back)
{
    ck_assert_int_eq(keep(7, 1, 0, 50, NULL), CAIRN_OK);
    train_to(1);
    Cairn__JobDrop drop = CAIRN__JOB_DROP__INIT;
    drop.job = SCENE_JOB;
    scene_say(&scene, CAIRN_MSG_JOB_DROP, 9, &drop.base);
    ck_assert_uint_eq(scene_hear(&scene, CAIRN_MSG_DONE).request, 9);
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, 0);
    while (uv_is_active((uv_handle_t *)&scene.shard->lease_timer)) // it finds nothing
        uv_run(&scene.loop, UV_RUN_ONCE);
}

SUITE(30, serve, leave);
