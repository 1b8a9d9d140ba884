/* The state behind the bits: where it comes from, what can be read of it, and that a snapshot of it
 * trains on to the same end on any number of shards. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/snapshot.h"
#include "tests/e2e/bits_check.h"
#include "tests/support/suite.h"
#include "tests/support/trainer.h"

/* ---- a session of the test's own ---- */

static cairn_job *open_job(const char *address, cairn **session_out,
                           const struct cairn_job_spec *spec)
{
    cairn_job *job;
    *session_out = trainer_session(address, NULL);
    const cairn_role role = spec != NULL ? CAIRN_WORKER : CAIRN_READER;
    good(cairn_job_open(*session_out, BITS_JOB, spec, role, BITS_WAIT_MS, &job));
    return job;
}

static void check_plane(cairn_job *job, int tensor, const char *plane, cairn_dtype dtype,
                        const void *expected)
{
    struct cairn_version newest;
    const size_t bytes = bits_elems(tensor) * dtype_size((int)dtype);
    void *got = malloc(bytes + 1);
    good(cairn_version_wait(job, (struct cairn_version) { 0, 0 }, BITS_WAIT_MS, &newest));
    trainer_fetch(job, newest, bits_tensors[tensor].name, plane, dtype, got);
    ck_assert_msg(memcmp(got, expected, bytes) == 0, "%s of %s has other bits", plane,
                  bits_tensors[tensor].name);
    free(got);
}

static void check_all_planes(cairn_job *job, const struct bits_reference *ref)
{
    for (int t = 0; t < BITS_TENSORS; t++) {
        check_plane(job, t, "wire", bits_tensors[t].wire, ref->tensor[t].wire);
        for (int p = 1; p < CAIRN_PLANE_COUNT; p++)
            if (ref->tensor[t].plane[p] != NULL)
                check_plane(job, t, plane_name(p), CAIRN_F32, ref->tensor[t].plane[p]);
    }
}

TEST(a_reader_gets_every_plane_bit_for_bit_and_frozen_ones_as_they_were_put)
{
    struct cluster cluster;
    struct bits_reference ref;
    cairn *session;
    cluster_start(&cluster, 3, NULL);
    bits_train_quietly((struct bits_worker) { .until_step = 20 }, cluster.address, 1);
    bits_reference_open(&ref);
    bits_reference_run(&ref, 20);
    cairn_job *job = open_job(cluster.address, &session, NULL);
    check_all_planes(job, &ref);
    const float *fixed = ref.tensor[5].plane[CAIRN_PLANE_PARAM];
    for (uint64_t i = 0; i < bits_elems(5); i++) ck_assert(fixed[i] == bits_initial(5, i));
    cairn_close(session);
    bits_reference_close(&ref);
    cluster_stop(&cluster);
}

TEST(the_initial_state_is_what_rank_0_put_and_others_are_compared_with_it)
{
    struct cluster cluster;
    struct cairn_tensor tensors[BITS_TENSORS];
    const struct cairn_job_spec spec = bits_spec(tensors, 1, 8);
    float value = 1;
    const struct cairn_mem mem = trainer_mem(&value, CAIRN_F32);
    char root[65];
    cairn *session;
    cluster_start(&cluster, 2, NULL);
    cairn_job *job = open_job(cluster.address, &session, &spec);
    good(cairn_put(job, "bias", "param", NULL, &mem, NULL)); // only hashed
    cairn_close(session);
    bits_train_quietly((struct bits_worker) { .until_step = 0 }, cluster.address, 0);
    bits_root_at(0, root);
    bits_check_root(cluster.address, root);
    cluster_stop(&cluster);
}

/* ---- snapshots ---- */

static void create_snapshot(const struct cluster *cluster, char id_out[64], uint64_t *step_out)
{
    static struct cluster_said said;
    uint64_t generation;
    cluster_cli(cluster, &said, "snapshot", "create", BITS_JOB, "--wait", "-q", NULL);
    ck_assert_msg(said.status == 0, "%s", said.err);
    said.out[strcspn(said.out, "\n")] = 0;
    snprintf(id_out, 64, "%.63s", said.out);
    ck_assert_msg(snapshot_id_parse(id_out, &generation, step_out), "id %s", id_out);
}

/* A new cluster of so many shards restores it, shows the same root, and trains to the same end. */
static void restore_and_finish(int shards, const char *snapshots_path, const char *id,
                               uint64_t step)
{
    struct cluster cluster;
    char root[65];
    cluster_start(&cluster, shards, &(struct cluster_options) { .snapshots_path = snapshots_path });
    cluster_says(&cluster, 0, "", "snapshot", "restore", BITS_JOB, id, "--yes", "--allow-untrusted",
                 NULL);
    bits_root_at(step, root);
    bits_check_root(cluster.address, root);
    bits_train_quietly((struct bits_worker) { .until_step = BITS_STEPS }, cluster.address,
                       step <= BITS_NAN_STEP ? 1 : 0);
    bits_check_root(cluster.address, BITS_GOLDEN_ROOT);
    cluster_stop(&cluster);
}

TEST(a_snapshot_of_3_shards_trains_on_alike_on_5_and_on_2)
{
    struct cluster cluster;
    char id[64];
    uint64_t step;
    cluster_start(&cluster, 3, NULL);
    bits_train_quietly((struct bits_worker) { .until_step = 30 }, cluster.address, 1);
    create_snapshot(&cluster, id, &step);
    ck_assert_uint_eq(step, 30);
    restore_and_finish(5, cluster.snapshots_path, id, step);
    restore_and_finish(2, cluster.snapshots_path, id, step);
    cluster_stop(&cluster);
}

TEST(a_snapshot_taken_while_training_goes_on_is_of_one_step)
{
    struct cluster cluster;
    struct bits_run run;
    char id[64];
    uint64_t step;
    cluster_start(&cluster, 3, NULL);
    bits_run_start(&run,
                   &(struct bits_worker) {
                       .endpoint = cluster.address, .until_step = BITS_STEPS, .shuffle = 7 },
                   BITS_WORKERS);
    bits_run_await(&run, 5);
    create_snapshot(&cluster, id, &step);
    bits_run_join(&run);
    ck_assert_uint_ge(step, 5);
    bits_check_root(cluster.address, BITS_GOLDEN_ROOT);
    restore_and_finish(1, cluster.snapshots_path, id, step);
    cluster_stop(&cluster);
}

SUITE(60);
