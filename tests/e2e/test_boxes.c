/* Tensors whose rows are so long that a shard's part of them is several boxes, which lie in a file each,
 * with other tensors between: a snapshot has them whole, and restored onto other shards they have the same
 * content root. */
#include "tests/e2e/scene.h"

/* Rows of more than 2^20 elements are cut. */
static const struct cairn_tensor tensors[] = {
    TRAINER_MATRIX("a", NULL, 3, 1200007, 7),
    TRAINER_MATRIX("b", NULL, 1, 5000, 7),
    TRAINER_MATRIX("z", NULL, 5, 1100001, 7),
};

TEST(parts_of_several_boxes_are_saved_whole_and_restored_onto_other_shards)
{
    struct cluster two;
    char before[65], id[64];
    start(3);
    join_spec("boxes", &(struct cairn_job_spec)TRAINER_SPEC(tensors, 3));
    good(cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, CLUSTER_WAIT_MS, id));
    bits(before);
    leave();
    cluster_start(&two, 2, NULL);
    cluster_says(&two, 0, "", "snapshot restore --path %s --yes --allow-untrusted",
                 snapshot_folder("boxes", id));
    trainer_expect_digest(&two, "boxes", before);
    cluster_stop(&two);
}

SUITE(100, .tear_down = stop);
