/* A job goes from 2 shards to 5 and back, and from 1 worker to 4, while every member is stopped for moments
 * and workers are killed, all at random. The job has the content root of a run of one worker on one shard
 * that nobody disturbed. CAIRN_TEST_LONG=1: 1,000 changes of each model. */
#include <stdlib.h>

#include "tests/e2e/elastic_storm.h"
#include "tests/support/suite.h"

enum { FAULTS = 20, FAULTS_LONG = 3000 /* of which a third are changes */ };

TEST_EACH(whatever_changes_the_bits_are_those_of_an_undisturbed_run, 0, ELASTIC_MODELS)
{
    storm_run(&(struct storm_plan) {
        .name = elastic_models[_i].name,
        .model = &elastic_models[_i],
        .seed = 3,
        .faults = getenv("CAIRN_TEST_LONG") != NULL ? FAULTS_LONG : FAULTS,
        .shards = 2,
        .shards_max = 5,
        .weight = { [STORM_CHANGE] = 1, [STORM_WORKER] = 1, [STORM_STOP] = 1 },
        .is_quiet = true,
    });
}

SUITE(getenv("CAIRN_TEST_LONG") != NULL ? 7200 : 120);
