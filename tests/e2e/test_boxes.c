/* Tensors whose rows are so long that a shard's part of them is several boxes, which lie in a file each,
 * with other tensors between: a snapshot has them whole, and restored onto other shards they have the same
 * content root. */
#include <stdio.h>

#include "tests/support/suite.h"
#include "tests/support/trainer.h"

enum { WAIT_MS = 20000 };

/* Rows of more than 2^20 elements are cut. */
static cairn_job *open_job(cairn *session)
{
    static const struct cairn_init normal = { CAIRN_INIT_NORMAL, 0, 1, 7 };
    const struct cairn_tensor tensors[] = {
        { .struct_size = sizeof *tensors,
          .name = "a",
          .rank = 2,
          .shape = { 3, 1200007 },
          .init = normal },
        { .struct_size = sizeof *tensors,
          .name = "b",
          .rank = 1,
          .shape = { 5000 },
          .init = normal },
        { .struct_size = sizeof *tensors,
          .name = "z",
          .rank = 2,
          .shape = { 5, 1100001 },
          .init = normal },
    };
    const struct cairn_job_spec spec = TRAINER_SPEC(tensors, 3);
    return trainer_ready(session, "boxes", &spec);
}

TEST(parts_of_several_boxes_are_saved_whole_and_restored_onto_other_shards)
{
    struct cluster three, two;
    char before[65], id[64], path[512];
    cluster_start(&three, 3, NULL);
    cairn *session = trainer_session(three.address, NULL);
    cairn_job *job = open_job(session);
    good(cairn_snapshot(job, CAIRN_SNAPSHOT_WAIT, WAIT_MS, id));
    trainer_digest(&three, "boxes", before);
    cairn_job_close(job);
    cairn_close(session);
    snprintf(path, sizeof path, "%s/boxes/%s", three.snapshots_path, id);
    cluster_start(&two, 2, NULL);
    cluster_says(&two, 0, "", "snapshot", "restore", "--path", path, "--yes", "--allow-untrusted",
                 NULL);
    trainer_expect_digest(&two, "boxes", before);
    cluster_stop(&two);
    cluster_stop(&three);
}

SUITE(100);
