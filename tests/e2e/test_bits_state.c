/* The state behind the bits: where it comes from, what can be read of it, and that a snapshot of it
 * trains on to the same end on any number of shards. */
#include "proto/snapshot/snapshot.h"
#include "tests/e2e/crew.h"
#include "tests/e2e/scene.h"

static void train_to(const char *endpoint, uint64_t until_step, uint32_t skipped)
{
    crew_train_quietly(
        &(struct crew) { .job = &bits_job, .endpoint = endpoint, .until_step = until_step },
        skipped);
}

TEST(a_reader_gets_every_plane_bit_for_bit_and_frozen_ones_as_they_were_put)
{
    struct crew_reference ref;
    start(3);
    train_to(cluster.address, 20, 1);
    crew_reference_open(&ref, &bits_job, (struct crew_mesh) { 0 });
    crew_reference_run(&ref, 20);
    crew_check(cluster.address, NULL, &ref, CREW_WHOLE_TENSORS);
    const float *fixed = ref.tensor[5].plane[CAIRN_PLANE_PARAM];
    for (uint64_t i = 0; i < crew_elems(&bits_job, 5); i++)
        ck_assert(fixed[i] == crew_initial(5, i));
    crew_reference_close(&ref);
}

TEST(the_initial_state_is_what_rank_0_put_and_others_are_compared_with_it)
{
    struct cairn_tensor tensors[CREW_TENSORS_MAX];
    const struct cairn_job_spec spec = crew_spec(&bits_job, tensors, (struct crew_mesh) { 0 }, 1);
    float value = 1;
    const struct cairn_mem mem = trainer_mem(&value, CAIRN_F32);
    char root[65];
    start(2);
    session = trainer_session(cluster.address, NULL);
    job = trainer_open(session, BITS_JOB, &spec);
    good(cairn_put(job, "bias", "param", NULL, &mem, NULL)); // only hashed
    leave();
    train_to(cluster.address, 0, 0);
    bits_root_at(0, root);
    crew_check_root(cluster.address, &bits_job, root);
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
    crew_check_root(other.address, &bits_job, root);
    train_to(other.address, BITS_STEPS, step <= BITS_NAN_STEP ? 1 : 0);
    crew_check_root(other.address, &bits_job, BITS_GOLDEN_ROOT);
    cluster_stop(&other);
}

TEST(a_snapshot_of_3_shards_trains_on_alike_on_5_and_on_2)
{
    char id[CLUSTER_WORD_BYTES];
    uint64_t step;
    start(3);
    train_to(cluster.address, 30, 1);
    create_snapshot(id, &step);
    ck_assert_uint_eq(step, 30);
    restore_and_finish(5, id, step);
    restore_and_finish(2, id, step);
}

TEST(a_snapshot_taken_while_training_goes_on_is_of_one_step)
{
    struct crew_run run;
    char id[CLUSTER_WORD_BYTES];
    uint64_t step;
    start(3);
    crew_start(&run, &(struct crew) { .job = &bits_job,
                                      .endpoint = cluster.address,
                                      .until_step = BITS_STEPS,
                                      .shuffle = 7 });
    crew_await(&run, 5);
    create_snapshot(id, &step);
    crew_join(&run);
    ck_assert_uint_ge(step, 5);
    crew_check_root(cluster.address, &bits_job, BITS_GOLDEN_ROOT);
    restore_and_finish(1, id, step);
}

SUITE(60, .tear_down = stop);
