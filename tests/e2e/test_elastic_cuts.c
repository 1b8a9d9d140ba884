/* Chaos between hosts: any member is cut off from all others, for a moment or beyond its lease, while shards,
 * coordinator and workers die and the job's shards change. CAIRN_TEST_LONG=1: 1,250 faults. Hosts are network
 * namespaces, which need root. */
#include <stdlib.h>

#include "tests/e2e/elastic_storm.h"
#include "tests/support/netns.h"
#include "tests/support/suite.h"

enum { LONGER = 25 /* times as many faults */ };

static const struct storm_plan plans[] = {
    { .name = "cuts",
      .tier = STORM_PROCESS,
      .faults = 30,
      .shards = 3,
      .shards_max = 5,
      .weight = { [STORM_CHANGE] = 3,
                  [STORM_WORKER] = 2,
                  [STORM_SHARD] = 3,
                  [STORM_COORDINATOR] = 1,
                  [STORM_CUT] = 9,
                  [STORM_CUT_LONG] = 2 } },
    { .name = "cuts-of-peers",
      .tier = STORM_PEER,
      .faults = 20,
      .shards = 2,
      .shards_max = 3,
      .weight = { [STORM_CHANGE] = 1,
                  [STORM_WORKER] = 1,
                  [STORM_SHARD] = 2,
                  [STORM_COORDINATOR] = 1,
                  [STORM_CUT] = 3,
                  [STORM_CUT_LONG] = 2 } },
};

TEST_EACH(whoever_is_cut_off_no_step_is_lost_and_no_bit_changes, 0, sizeof plans / sizeof *plans)
{
    struct storm_plan plan = plans[_i];
    if (!storm_is_wanted(&plan)) return;
    plan.model = &elastic_mixer;
    plan.seed = 1;
    if (getenv("CAIRN_TEST_LONG") != NULL) plan.faults *= LONGER;
    storm_run(&plan);
}

SUITE(getenv("CAIRN_TEST_LONG") != NULL ? 3600 : 120);

int main(void)
{
    return netns_suite_main(storm_hosts_make, storm_hosts_drop);
}
