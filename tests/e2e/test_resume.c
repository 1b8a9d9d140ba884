/* Workers that open a job so that its newest snapshot is restored where the job is not there, on real
 * daemons. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/suite.h"
#include "tests/support/tiny_job.h"

enum { ELEMS = 5000 };

static cairn_status try(const struct cluster *cluster, uint32_t rank, uint32_t workers_min,
                        uint64_t open_flags, struct trainer *t)
{
    struct tiny_job tiny;
    tiny_describe(&tiny, ELEMS);
    tiny.spec.rank = rank;
    tiny.spec.workers_min = workers_min;
    tiny.spec.open_flags = open_flags;
    t->session = tiny_session(cluster, NULL);
    return cairn_job_open(t->session, "tiny", &tiny.spec, CAIRN_WORKER, CLUSTER_WAIT_MS, &t->job);
}

/* The step at which it comes in. */
static uint64_t attach(const struct cluster *cluster, uint32_t rank, uint32_t workers_min,
                       struct trainer *t)
{
    struct cairn_version version = { 0, 0 };
    good(try(cluster, rank, workers_min, CAIRN_OPEN_RESUME, t));
    good(cairn_init_done(t->job, NULL, CLUSTER_WAIT_MS));
    good(cairn_version_wait(t->job, version, CLUSTER_WAIT_MS, &version));
    return version.step;
}

static void say(const struct cluster *cluster, struct cluster_said *said, const char *a,
                const char *b, const char *c)
{
    cluster_cli(cluster, said, a, b, "tiny", c, NULL);
    ck_assert_msg(said->status == 0, "%s", said->err);
}

TEST(without_job_and_snapshots_it_begins_anew_unless_it_must_exist)
{
    struct cluster cluster;
    struct trainer t;
    cluster_start(&cluster, 1, NULL);
    for (uint64_t resume = 0; resume <= CAIRN_OPEN_RESUME; resume += CAIRN_OPEN_RESUME) {
        fails(try(&cluster, 0, 1, resume | CAIRN_OPEN_MUST_EXIST, &t), CAIRN_ERR_NOT_FOUND,
              "there is no job tiny");
        cairn_close(t.session);
    }
    ck_assert_int_eq(try(&cluster, 0, 1, 16, &t), CAIRN_ERR_INVALID);
    cairn_close(t.session);
    ck_assert_uint_eq(attach(&cluster, 0, 1, &t), 0);
    tiny_step(t.job);
    cairn_close(t.session);
    good(try(&cluster, 0, 1, CAIRN_OPEN_MUST_EXIST, &t)); // it is there now, and is not restored
    cairn_close(t.session);
    ck_assert_uint_eq(attach(&cluster, 0, 1, &t), 1);
    cairn_close(t.session);
    cluster_stop(&cluster);
}

struct arrival {
    const struct cluster *cluster;
    uint32_t rank;
    uint64_t step;
    struct trainer t;
};

static void *arrive(void *context)
{
    struct arrival *a = context;
    a->step = attach(a->cluster, a->rank, 3, &a->t);
    return NULL;
}

TEST(a_dropped_job_and_a_lost_one_are_restored_once_for_all_who_come)
{
    struct cluster cluster;
    struct cluster_said said;
    struct arrival all[3];
    pthread_t threads[3];
    char id[128];
    cluster_start(&cluster, 2, NULL);
    for (uint32_t i = 0; i < 3; i++) {
        all[i] = (struct arrival) { &cluster, i, 9, { NULL, NULL, NULL } };
        all[i].step = attach(&cluster, i, 3, &all[i].t);
    }
    for (int lost = 0; lost < 2; lost++) {
        cluster_word(&cluster, id, "snapshot", "create", "-q", "tiny", "--wait", NULL);
        for (int i = 0; i < 3; i++) cairn_close(all[i].t.session);
        if (lost) {
            cluster_kill_shard(&cluster, 1);
            cluster_restart_shard(&cluster, 1);
        } else {
            say(&cluster, &said, "job", "drop", "--yes");
        }
        for (int i = 0; i < 3; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, arrive, &all[i]), 0);
        for (int i = 0; i < 3; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        for (int i = 0; i < 3; i++) ck_assert_uint_eq(all[i].step, 0);
        ck_assert_int_eq(cluster_logged(&cluster, "coordinator.log", "job tiny restored from"),
                         lost + 1);
    }
    for (int i = 0; i < 3; i++) cairn_close(all[i].t.session);
    cluster_stop(&cluster);
}

static void damage(const struct cluster *cluster, const char *id)
{
    char command[2 * CAIRN_SCRATCH_BYTES + 300];
    snprintf(command, sizeof command,
             "f=$(find '%s/tiny/%s' -type f -size +4k | head -1) && printf x | "
             "dd of=\"$f\" bs=1 seek=5000 conv=notrunc status=none",
             cluster->snapshots_path, id);
    ck_assert_int_eq(system(command), 0);
}

TEST(a_damaged_snapshot_gives_way_to_the_one_before_and_without_a_whole_one_nothing_begins)
{
    struct cluster cluster;
    struct cluster_said said;
    struct trainer t;
    char first[128], second[128];
    cluster_start(&cluster, 1, NULL);
    attach(&cluster, 0, 1, &t);
    tiny_step(t.job);
    cluster_word(&cluster, first, "snapshot", "create", "-q", "tiny", "--wait", NULL);
    tiny_step(t.job);
    cluster_word(&cluster, second, "snapshot", "create", "-q", "tiny", "--wait", NULL);
    cairn_close(t.session);
    say(&cluster, &said, "job", "drop", "--yes");
    damage(&cluster, second);
    ck_assert_uint_eq(attach(&cluster, 0, 1, &t), 1);
    cairn_close(t.session);
    say(&cluster, &said, "job", "drop", "--yes");
    damage(&cluster, first);
    const cairn_status status = try(&cluster, 0, 1, CAIRN_OPEN_RESUME, &t);
    ck_assert_msg(status == CAIRN_ERR_CORRUPT, "%d: %s", (int)status, cairn_error());
    ck_assert_msg(strstr(cairn_error(), "none of the 2 snapshots of job tiny") != NULL, "%s",
                  cairn_error());
    cairn_close(t.session);
    cluster_cli(&cluster, &said, "job", "show", "tiny", NULL);
    ck_assert_int_ne(said.status, 0);
    cluster_stop(&cluster);
}

TEST(a_coordinator_that_starts_before_the_storage_is_mounted_begins_no_job_anew)
{
    static const char *const other = "is not the one that snapshots were written to";
    struct cluster cluster;
    struct cluster_said said;
    struct trainer t;
    char id[128], aside[CAIRN_SCRATCH_BYTES + 48];
    cluster_start(&cluster, 1, NULL);
    attach(&cluster, 0, 1, &t);
    tiny_step(t.job);
    cluster_word(&cluster, id, "snapshot", "create", "-q", "tiny", "--wait", NULL);
    cairn_close(t.session);
    say(&cluster, &said, "job", "drop", "--yes");
    cluster_kill_coordinator(&cluster);
    snprintf(aside, sizeof aside, "%s-aside", cluster.snapshots_path);
    ck_assert_int_eq(rename(cluster.snapshots_path, aside), 0);
    cluster_restart_coordinator(&cluster);
    cluster_await(&cluster, true, other, "cluster", "status", NULL);
    cluster_await(&cluster, true, "no snapshot can be saved: shard shard-0", "cluster", "status",
                  NULL); // it looks for itself
    fails(try(&cluster, 0, 1, CAIRN_OPEN_RESUME, &t), CAIRN_ERR_IO, other);
    cairn_close(t.session);
    ck_assert_int_eq(rename(aside, cluster.snapshots_path), 0); // nobody has made it meanwhile
    cluster_await(&cluster, false, "no snapshot can be saved", "cluster", "status", NULL);
    ck_assert_uint_eq(attach(&cluster, 0, 1, &t), 1);
    cluster_word(&cluster, id, "snapshot", "create", "-q", "tiny", "--wait", NULL);
    cairn_close(t.session);
    cluster_stop(&cluster);
}

SUITE(90);
