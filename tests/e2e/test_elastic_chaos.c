/* Chaos: every member of a cluster is killed and stopped at random times, in each tier, while the job's
 * shards change. No step that was acknowledged is lost or done twice, nothing hangs, and the content root
 * is the one of a run that nobody disturbed. CAIRN_TEST_LONG=1: 5,000 faults. */
#include <stdlib.h>

#include "tests/e2e/elastic_storm.h"
#include "tests/support/suite.h"
#include "tests/support/test_backend.h"

enum { LONGER = 25 /* times as many faults */ };

static const struct storm_plan plans[] = {
    { .name = "process",
      .tier = STORM_PROCESS,
      .faults = 70,
      .shards = 3,
      .shards_max = 5,
      .weight = { [STORM_CHANGE] = 4,
                  [STORM_WORKER] = 4,
                  [STORM_STOP] = 4,
                  [STORM_STOP_LONG] = 1,
                  [STORM_SHARD] = 8,
                  [STORM_COORDINATOR] = 4,
                  [STORM_BOTH] = 3,
                  [STORM_EXCHANGE] = 2,
                  [STORM_KEEPER] = 1,
                  [STORM_SNAPSHOT] = 1 } },
    { .name = "peer",
      .tier = STORM_PEER,
      .faults = 50,
      .shards = 3,
      .shards_max = 4,
      .weight = { [STORM_CHANGE] = 2,
                  [STORM_WORKER] = 4,
                  [STORM_STOP] = 4,
                  [STORM_STOP_LONG] = 1,
                  [STORM_SHARD] = 10,
                  [STORM_COORDINATOR] = 4,
                  [STORM_SNAPSHOT] = 1 } },
    { .name = "log",
      .tier = STORM_LOG,
      .faults = 20,
      .shards = 3,
      .shards_max = 5,
      .weight = { [STORM_CHANGE] = 2,
                  [STORM_WORKER] = 3,
                  [STORM_STOP] = 3,
                  [STORM_STOP_LONG] = 1,
                  [STORM_SHARD] = 7,
                  [STORM_COORDINATOR] = 3,
                  [STORM_BOTH] = 2,
                  [STORM_POWER] = 2,
                  [STORM_SNAPSHOT] = 1 } },
    { .name = "volatile",
      .tier = STORM_VOLATILE,
      .faults = 30,
      .shards = 3,
      .shards_max = 5,
      .weight = { [STORM_CHANGE] = 3,
                  [STORM_WORKER] = 4,
                  [STORM_STOP] = 4,
                  [STORM_STOP_LONG] = 1,
                  [STORM_SHARD] = 6,
                  [STORM_COORDINATOR] = 3,
                  [STORM_BOTH] = 2,
                  [STORM_SNAPSHOT] = 4 } },
};

/* A part on a device is neither kept nor mirrored. */
static bool is_possible(const struct storm_plan *plan)
{
    const bool is_host = getenv("CAIRN_TEST_BACKENDS") == NULL &&
                         strcmp(cairn_test_backend(), "host") == 0;
    return storm_is_wanted(plan) && (is_host || plan->tier == STORM_VOLATILE);
}

TEST_EACH(whoever_dies_or_is_stopped_no_step_is_lost_and_no_bit_changes, 0,
          sizeof plans / sizeof *plans)
{
    struct storm_plan plan = plans[_i];
    if (!is_possible(&plan)) return;
    plan.model = &elastic_mixer;
    plan.seed = 1;
    if (getenv("CAIRN_TEST_LONG") != NULL) plan.faults *= LONGER;
    storm_run(&plan);
}

SUITE(getenv("CAIRN_TEST_LONG") != NULL ? 7200 : 240);
