/* Chaos between hosts: any member is cut off from all others, for a moment or beyond its lease, while shards,
 * coordinator and workers die and the job's shards change. CAIRN_TEST_LONG=1: 1,000 faults. Hosts are network
 * namespaces, which need root. */
#include <stdlib.h>

#include "tests/e2e/elastic_storm.h"
#include "tests/support/netns.h"
#include "tests/support/suite.h"

enum { FAULTS = 40, FAULTS_LONG = 1000 };

TEST(whoever_is_cut_off_no_step_is_lost_and_no_bit_changes)
{
    storm_run(&(struct storm_plan) {
        .name = "cuts",
        .tier = STORM_PROCESS,
        .model = &elastic_mixer,
        .seed = 1,
        .faults = getenv("CAIRN_TEST_LONG") != NULL ? FAULTS_LONG : FAULTS,
        .shards = 3,
        .shards_max = 5,
        .weight = { [STORM_CHANGE] = 2,
                    [STORM_WORKER] = 2,
                    [STORM_SHARD] = 3,
                    [STORM_COORDINATOR] = 1,
                    [STORM_CUT] = 10,
                    [STORM_CUT_LONG] = 3 },
    });
}

SUITE(getenv("CAIRN_TEST_LONG") != NULL ? 3600 : 120);

int main(void)
{
    return netns_suite_main(storm_hosts_make, storm_hosts_drop);
}
