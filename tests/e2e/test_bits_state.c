/* The state behind the bits: where it comes from, what can be read of it, and that a snapshot of it
 * trains on to the same end on any number of shards. */
#include <stdlib.h>

#include "proto/snapshot/snapshot.h"
#include "tests/e2e/bits_check.h"
#include "tests/e2e/scene.h"

/* ---- a session of the test's own ---- */

static void open_job(const struct cairn_job_spec *spec)
{
    session = trainer_session(cluster.address, NULL);
    const cairn_role role = spec != NULL ? CAIRN_WORKER : CAIRN_READER;
    good(cairn_job_open(session, BITS_JOB, spec, role, BITS_WAIT_MS, &job));
}

static void check_plane(int tensor, const char *plane, cairn_dtype dtype, const void *expected)
{
    const size_t bytes = bits_elems(tensor) * dtype_size((int)dtype);
    void *got = malloc(bytes + 1);
    trainer_fetch(job, newest(job), bits_tensors[tensor].name, plane, dtype, got);
    ck_assert_msg(memcmp(got, expected, bytes) == 0, "%s of %s has other bits", plane,
                  bits_tensors[tensor].name);
    free(got);
}

static void check_all_planes(const struct bits_reference *ref)
{
    for (int t = 0; t < BITS_TENSORS; t++) {
        check_plane(t, "wire", bits_tensors[t].wire, ref->tensor[t].wire);
        for (int p = 1; p < CAIRN_PLANE_COUNT; p++)
            if (ref->tensor[t].plane[p] != NULL)
                check_plane(t, plane_name(p), CAIRN_F32, ref->tensor[t].plane[p]);
    }
}

TEST(a_reader_gets_every_plane_bit_for_bit_and_frozen_ones_as_they_were_put)
{
    struct bits_reference ref;
    start(3);
    bits_train_quietly((struct bits_worker) { .until_step = 20 }, cluster.address, 1);
    bits_reference_open(&ref);
    bits_reference_run(&ref, 20);
    open_job(NULL);
    check_all_planes(&ref);
    const float *fixed = ref.tensor[5].plane[CAIRN_PLANE_PARAM];
    for (uint64_t i = 0; i < bits_elems(5); i++) ck_assert(fixed[i] == bits_initial(5, i));
    bits_reference_close(&ref);
    stop();
}

TEST(the_initial_state_is_what_rank_0_put_and_others_are_compared_with_it)
{
    struct cairn_tensor tensors[BITS_TENSORS];
    const struct cairn_job_spec spec = bits_spec(tensors, 1, 8);
    float value = 1;
    const struct cairn_mem mem = trainer_mem(&value, CAIRN_F32);
    char root[65];
    start(2);
    open_job(&spec);
    good(cairn_put(job, "bias", "param", NULL, &mem, NULL)); // only hashed
    leave();
    bits_train_quietly((struct bits_worker) { .until_step = 0 }, cluster.address, 0);
    bits_root_at(0, root);
    bits_check_root(cluster.address, root);
    stop();
}

/* ---- snapshots ---- */

static void create_snapshot(char id_out[CLUSTER_WORD_BYTES], uint64_t *step_out)
{
    uint64_t generation;
    word_of(id_out, "snapshot create " BITS_JOB " --wait -q");
    ck_assert_msg(snapshot_id_parse(id_out, &generation, step_out), "id %s", id_out);
}

/* A new cluster of so many shards restores it, shows the same root, and trains to the same end. */
static void restore_and_finish(int shards, const char *id, uint64_t step)
{
    char root[65];
    struct cluster other;
    cluster_start(&other, shards,
                  &(struct cluster_options) { .snapshots_path = cluster.snapshots_path });
    cluster_says(&other, 0, "", "snapshot restore %s %s --yes --allow-untrusted", BITS_JOB, id);
    bits_root_at(step, root);
    bits_check_root(other.address, root);
    bits_train_quietly((struct bits_worker) { .until_step = BITS_STEPS }, other.address,
                       step <= BITS_NAN_STEP ? 1 : 0);
    bits_check_root(other.address, BITS_GOLDEN_ROOT);
    cluster_stop(&other);
}

TEST(a_snapshot_of_3_shards_trains_on_alike_on_5_and_on_2)
{
    char id[CLUSTER_WORD_BYTES];
    uint64_t step;
    start(3);
    bits_train_quietly((struct bits_worker) { .until_step = 30 }, cluster.address, 1);
    create_snapshot(id, &step);
    ck_assert_uint_eq(step, 30);
    restore_and_finish(5, id, step);
    restore_and_finish(2, id, step);
    stop();
}

TEST(a_snapshot_taken_while_training_goes_on_is_of_one_step)
{
    struct bits_run run;
    char id[CLUSTER_WORD_BYTES];
    uint64_t step;
    start(3);
    bits_run_start(&run,
                   &(struct bits_worker) {
                       .endpoint = cluster.address, .until_step = BITS_STEPS, .shuffle = 7 },
                   BITS_WORKERS);
    bits_run_await(&run, 5);
    create_snapshot(id, &step);
    bits_run_join(&run);
    ck_assert_uint_ge(step, 5);
    bits_check_root(cluster.address, BITS_GOLDEN_ROOT);
    restore_and_finish(1, id, step);
    stop();
}

SUITE(60);
