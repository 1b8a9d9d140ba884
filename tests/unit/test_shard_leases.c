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
    model_check(&then[step], &scene, CAIRN_PLANE_WIRE, 1, step);
}

static void check_gone(uint64_t step)
{
    struct chunk_header fetch = scene_fetch_header(&scene, 1, 0, CAIRN_PLANE_WIRE, 1, step);
    ck_assert_int_eq(scene_nak(&scene, &fetch, NULL, 0), CAIRN_ERR_VERSION_GONE);
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
    model_serve(&now, &scene, "mem", 2);
    model_copy(&then[0], &now);
    check_wire(0); // the buffers of replies are there from now on
    job = scene.shard->jobs;
    used_before = scene.shard->memory.budget.used_bytes;
    copy_bytes = job->versions.copies[0].head.bytes + job->versions.copies[0].wire.bytes +
                 (job->view->table.map.chunk_count + 1) * (sizeof(uint64_t) + 1);
}

static void leave(void)
{
    for (int i = 0; i < MODELS; i++) model_close(&then[i]);
    model_leave(&now, &scene);
}

static void keep_for(uint64_t lease, uint64_t generation, uint64_t step, uint32_t ttl_ms)
{
    scene_tell(&scene, 40, LeaseKeep, .job = SCENE_JOB, .lease = lease, .generation = generation,
               .step = step, .ttl_ms = ttl_ms);
}

static void keep(uint64_t lease, uint64_t step)
{
    keep_for(lease, 1, step, LONG_MS);
    scene_done(&scene, 40);
}

static void keep_refused(uint64_t lease, uint64_t step, cairn_status status, const char *word)
{
    keep_for(lease, 1, step, LONG_MS);
    scene_refused(&scene, 40, status, word);
}

static void end(uint64_t lease)
{
    scene_tell(&scene, 0, LeaseEnd, .job = SCENE_JOB, .lease = lease);
    scene_settle(&scene);
}

static void check_copies(uint64_t more)
{
    ck_assert_uint_eq(scene.shard->memory.budget.used_bytes, used_before + more * copy_bytes);
}

TEST(a_leased_version_stays_bit_for_bit_while_training_goes_on)
{
    train_to(1);
    keep(7, 0); // the one before the newest
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
    keep_refused(7, 0, CAIRN_ERR_NO_MEMORY, "memory.limit");
    check_copies(0);
    train_to(2);
    check_gone(0);
    check_wire(2);
}

TEST(leases_of_one_version_share_one_copy)
{
    keep(7, 0);
    keep(8, 0);
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
        keep(10 + step, step); // the newest
    }
    check_copies(CAIRN_LEASED_VERSIONS_MAX);
    train_to(CAIRN_LEASED_VERSIONS_MAX + 2);
    keep_refused(99, at, CAIRN_ERR_BUSY, "leased already");
    for (uint64_t step = 0; step <= at; step++)
        if (step != CAIRN_LEASED_VERSIONS_MAX) check_wire(step);
    check_gone(CAIRN_LEASED_VERSIONS_MAX);
    end(11);
    check_gone(1);
    check_copies(CAIRN_LEASED_VERSIONS_MAX - 1);
    keep(99, at);
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
        keep(10 + step, step);
    }
    train_to(at + 2);
    scene.shard->session.coordinator.incarnation++;
    keep(20, 1); // renewed: nothing has to go
    check_copies(CAIRN_LEASED_VERSIONS_MAX);
    check_wire(0);
    keep(21, at);
    check_copies(2);
    check_gone(0);
    check_gone(2);
    check_wire(1);
    scene.shard->session.coordinator.incarnation++;
    scene.shard->memory.budget.limit_bytes = scene.shard->memory.budget.used_bytes;
    train_to(at + 2);
    keep(22, at); // the memory is theirs, too
    check_copies(1);
    check_gone(1);
    scene.shard->memory.budget.limit_bytes = scene.shard->memory.budget.used_bytes;
    keep_refused(23, at - 1, CAIRN_ERR_NO_MEMORY, "memory.limit");
    for (uint64_t n = 30; n < 29 + CAIRN_SHARD_LEASES_MAX; n++) keep(n, at);
    keep_refused(99, at, CAIRN_ERR_BUSY, "held already");
    scene.shard->session.coordinator.incarnation++;
    keep(99, at); // in the place of one of this version
    check_copies(1);
}

TEST(a_lease_that_the_coordinator_forgot_ends_by_the_shards_own_clock)
{
    keep(7, 0);
    keep_for(8, 1, 0, 50);
    scene_done(&scene, 40);
    train_to(2);
    scene_until(&scene, job->versions.leases[1].number == 0);
    check_wire(0); // 7 keeps it
    keep_for(7, 1, 0, 50);
    scene_done(&scene, 40); // repeated: for shorter
    scene_until(&scene, job->versions.leases[0].number == 0);
    check_gone(0);
    check_copies(0);
}

TEST(what_is_not_kept_cannot_be_leased)
{
    static const struct {
        uint64_t lease, generation, step;
        uint32_t ttl_ms;
        cairn_status status;
        const char *word;
    } refused[] = {
        { 7, 1, 0, LONG_MS, CAIRN_ERR_VERSION_GONE, "not kept any more" },
        { 7, 1, 3, LONG_MS, CAIRN_ERR_NOT_READY, "not published yet" },
        { 7, 2, 0, LONG_MS, CAIRN_ERR_NOT_READY, "not published yet" },
        { 7, 1, 2, 0, CAIRN_ERR_INVALID, "are allowed" },
        { 0, 1, 2, LONG_MS, CAIRN_ERR_INVALID, "are allowed" },
    };
    train_to(2);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        keep_for(refused[i].lease, refused[i].generation, refused[i].step, refused[i].ttl_ms);
        scene_refused(&scene, 40, refused[i].status, refused[i].word);
    }
    check_copies(0);
    keep(7, 2);
    keep_refused(7, 1, CAIRN_ERR_EXISTS, "another version");
    for (uint64_t n = 8; n < 7 + CAIRN_SHARD_LEASES_MAX; n++) keep(n, 2);
    keep_refused(99, 2, CAIRN_ERR_BUSY, "held already");
    check_copies(1);
}

TEST(a_job_that_is_dropped_gives_leased_copies_back)
{
    keep_for(7, 1, 0, 50);
    scene_done(&scene, 40);
    train_to(1);
    scene_drop(&scene);
    scene_until(&scene,
                !uv_is_active((uv_handle_t *)&scene.shard->lease_timer)); // it finds nothing
}

SUITE(30, serve, leave);
