/* A cluster whose daemons stop at points of their logs (tests/support/points/point.h), and the elastic job in
 * it with two workers: what happens to a member at each point of a re-sharding. */
#ifndef CAIRN_E2E_ELASTIC_POINTS_H
#define CAIRN_E2E_ELASTIC_POINTS_H

#include "tests/e2e/elastic_worker.h"
#include "tests/e2e/scene.h"

enum { POINTS_WORKERS = 2, POINTS_LEASE_MS = 1000 };

struct points {
    struct elastic_shared *shared;
    struct point *point;
    const struct elastic_model *model;
    pid_t workers[POINTS_WORKERS]; /* 0: there is none */
    char path[CAIRN_SCRATCH_BYTES];
};

/* So many shards, and workers that train without an end; the job's first snapshot is there. `library`:
 * what is preloaded. */
void points_start(struct points *p, const char *library, int shards);
/* The same, each shard under a keeper. */
void points_start_kept(struct points *p, const char *library, int shards);
/* Every worker is here, trains up to a step that is a multiple of 100, and ends well. Returns that step. */
uint64_t points_end_training(struct points *p);
void points_start_worker(struct points *p, uint32_t rank);
void points_stop(struct points *p);

/* The next daemon that says it stops behind it. Where it does not within the wait, the test fails. */
void points_arm(struct points *p, const char *text);
pid_t points_await_stop(struct points *p);

/* Until workers have ended so many rounds more; no worker ends meanwhile. */
void points_train(struct points *p, uint64_t rounds);
/* `cairn LINE` in the background, its output in cairn.log. */
pid_t points_ask(const char *line);
/* What `cairn job show -o json` says has this text. */
bool points_shows(struct points *p, const char *text);
/* No re-sharding is under way. */
bool points_stands_still(struct points *p);
/* The job's content root, as all shards have it; by the name of its step, that of an undisturbed run. */
void points_root(struct points *p, char root_out[CLUSTER_WORD_BYTES]);
void points_calm_root(uint64_t step, char root_out[CLUSTER_WORD_BYTES]);

void points_pause(int ms);

#endif
