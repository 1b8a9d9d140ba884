/* Workers that open a job so that its newest snapshot is restored where the job is not there, on real
 * daemons. */
#include <pthread.h>
#include <stdlib.h>

#include "tests/e2e/scene.h"

enum { ELEMS = 5000 };

static cairn_status try(uint32_t rank, uint32_t workers_min, uint64_t open_flags, struct trainer *t)
{
    t->session = trainer_session(cluster.address, NULL);
    return cairn_job_open(
        t->session, "tiny",
        &TINY(ELEMS, .rank = rank, .workers_min = workers_min, .open_flags = open_flags)->spec,
        CAIRN_WORKER, CLUSTER_WAIT_MS, &t->job);
}

/* The step at which it comes in. */
static uint64_t come(uint32_t rank, uint32_t workers_min, struct trainer *t)
{
    good(try(rank, workers_min, CAIRN_OPEN_RESUME, t));
    good(cairn_init_done(t->job, NULL, CLUSTER_WAIT_MS));
    return newest(t->job).step;
}

TEST(without_job_and_snapshots_it_begins_anew_unless_it_must_exist)
{
    struct trainer t;
    start(1);
    for (uint64_t resume = 0; resume <= CAIRN_OPEN_RESUME; resume += CAIRN_OPEN_RESUME) {
        fails(try(0, 1, resume | CAIRN_OPEN_MUST_EXIST, &t), CAIRN_ERR_NOT_FOUND,
              "there is no job tiny");
        cairn_close(t.session);
    }
    ck_assert_int_eq(try(0, 1, 16, &t), CAIRN_ERR_INVALID);
    cairn_close(t.session);
    ck_assert_uint_eq(come(0, 1, &t), 0);
    tiny_step(t.job);
    cairn_close(t.session);
    good(try(0, 1, CAIRN_OPEN_MUST_EXIST, &t)); // it is there now, and is not restored
    cairn_close(t.session);
    ck_assert_uint_eq(come(0, 1, &t), 1);
    cairn_close(t.session);
}

struct arrival {
    uint32_t rank;
    uint64_t step;
    struct trainer t;
};

static void *arrive(void *context)
{
    struct arrival *a = context;
    a->step = come(a->rank, 3, &a->t);
    return NULL;
}

TEST(a_dropped_job_and_a_lost_one_are_restored_once_for_all_who_come)
{
    struct arrival all[3];
    pthread_t threads[3];
    char id[128];
    start(2);
    for (uint32_t i = 0; i < 3; i++) {
        all[i] = (struct arrival) { i, 9, { NULL, NULL, NULL } };
        all[i].step = come(i, 3, &all[i].t);
    }
    for (int lost = 0; lost < 2; lost++) {
        word_of(id, "snapshot create -q tiny --wait");
        for (int i = 0; i < 3; i++) cairn_close(all[i].t.session);
        if (lost)
            restart_shard(1);
        else
            says(0, "", "job drop tiny --yes");
        for (int i = 0; i < 3; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, arrive, &all[i]), 0);
        for (int i = 0; i < 3; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        for (int i = 0; i < 3; i++) ck_assert_uint_eq(all[i].step, 0);
        ck_assert_int_eq(logged("coordinator.log", "job tiny restored from"), lost + 1);
    }
    for (int i = 0; i < 3; i++) cairn_close(all[i].t.session);
}

static void damage(const char *id)
{
    char command[2 * CAIRN_SCRATCH_BYTES + 300];
    snprintf(command, sizeof command,
             "f=$(find '%s/tiny/%s' -type f -size +4k | head -1) && printf x | "
             "dd of=\"$f\" bs=1 seek=5000 conv=notrunc status=none",
             cluster.snapshots_path, id);
    ck_assert_int_eq(system(command), 0);
}

TEST(a_damaged_snapshot_gives_way_to_the_one_before_and_without_a_whole_one_nothing_begins)
{
    struct trainer t;
    char first[128], second[128];
    start(1);
    come(0, 1, &t);
    tiny_step(t.job);
    word_of(first, "snapshot create -q tiny --wait");
    tiny_step(t.job);
    word_of(second, "snapshot create -q tiny --wait");
    cairn_close(t.session);
    says(0, "", "job drop tiny --yes");
    damage(second);
    ck_assert_uint_eq(come(0, 1, &t), 1);
    cairn_close(t.session);
    says(0, "", "job drop tiny --yes");
    damage(first);
    fails(try(0, 1, CAIRN_OPEN_RESUME, &t), CAIRN_ERR_CORRUPT,
          "none of the 2 snapshots of job tiny");
    cairn_close(t.session);
    ask("job show tiny");
    ck_assert_int_ne(said.status, 0);
}

TEST(a_coordinator_that_starts_before_the_storage_is_mounted_begins_no_job_anew)
{
    static const char *const other = "is not the one that snapshots were written to";
    struct trainer t;
    char id[128];
    start(1);
    come(0, 1, &t);
    tiny_step(t.job);
    word_of(id, "snapshot create -q tiny --wait");
    cairn_close(t.session);
    says(0, "", "job drop tiny --yes");
    kill_coordinator();
    const char *aside = in_folder("aside");
    ck_assert_int_eq(rename(cluster.snapshots_path, aside), 0);
    restart_coordinator();
    await_said(other, "cluster status");
    await_said("no snapshot can be saved: shard shard-0", "cluster status"); // it looks for itself
    fails(try(0, 1, CAIRN_OPEN_RESUME, &t), CAIRN_ERR_IO, other);
    cairn_close(t.session);
    ck_assert_int_eq(rename(aside, cluster.snapshots_path), 0); // nobody has made it meanwhile
    await_unsaid("no snapshot can be saved", "cluster status");
    ck_assert_uint_eq(come(0, 1, &t), 1);
    word_of(id, "snapshot create -q tiny --wait");
    cairn_close(t.session);
}

SUITE(90, .tear_down = stop);
