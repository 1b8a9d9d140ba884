/* A job in training while its members die, are stopped and cut off, and its shards change. A plan says what
 * may happen and how often, and a seed what does: when, to whom and for how long. In the end the job has
 * the content root of a run of one worker on one shard that nobody disturbed.
 *
 * storm_run(&(struct storm_plan) { .name = "process", .tier = STORM_PROCESS, ... });
 *
 * Each run prints its seed, and writes what it does into schedule.log in the cluster's folder, which stays
 * if the test fails. CAIRN_STORM_SEED=N is another seed, CAIRN_STORM_FAULTS=N another number of faults,
 * CAIRN_STORM_PLAN=NAME runs that plan alone. CAIRN_STORM_LOG is the daemons' log level. */
#ifndef CAIRN_E2E_ELASTIC_STORM_H
#define CAIRN_E2E_ELASTIC_STORM_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/e2e/elastic_worker.h"

enum { STORM_WORKERS = 4, STORM_HOSTS = 8 };

/* What outlives what. A fault that the tier does not survive happens in none but STORM_VOLATILE, which goes
 * on from a snapshot. */
enum storm_tier {
    STORM_VOLATILE,
    STORM_PROCESS, /* each shard has a keeper */
    STORM_PEER,    /* each shard has a standby, but for the one that comes and goes */
    STORM_LOG, /* each shard has a log, and dies only while that is in force: not while a layout changes */
};

enum storm_kind {
    STORM_CHANGE,      /* a shard more or less; what happens next happens meanwhile */
    STORM_WORKER,      /* a worker comes, or is killed; one stays */
    STORM_STOP,        /* any member, for less than its lease */
    STORM_STOP_LONG,   /* for longer */
    STORM_SHARD,       /* the process of a shard; of a standby; in STORM_PEER of an owner */
    STORM_COORDINATOR, /* ends, and comes back a moment later */
    STORM_BOTH,        /* a shard and the coordinator at once */
    STORM_POWER,       /* all shards and the coordinator at once; in STORM_LOG alone */
    STORM_EXCHANGE,    /* the process of a shard gives way to another one of its program */
    STORM_KEEPER,      /* ends; its shard hands its part over, and begins anew */
    STORM_SNAPSHOT,    /* is asked for, and not waited for */
    STORM_CUT,         /* any member is not heard, for less than its lease */
    STORM_CUT_LONG,    /* for longer */
    STORM_KINDS
};

struct storm_plan {
    const char *name;
    enum storm_tier tier;
    const struct elastic_model *model;
    uint64_t seed;
    unsigned faults;
    int shards, shards_max; /* at the start, which is the least; the most that own a part */
    unsigned weight[STORM_KINDS];
    bool is_quiet; /* no daemon dies, so none has anything to warn of */
};

void storm_run(const struct storm_plan *plan);
/* The plan is wanted by the environment. */
bool storm_is_wanted(const struct storm_plan *plan);

/* Makes hosts of which each member has its own, with a switch between: storm_run uses them from then on.
 * False: not here. */
bool storm_hosts_make(void);
void storm_hosts_drop(void);

#endif
