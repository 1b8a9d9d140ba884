/* cairn bench snapshot: what its parts share. Each part is in a file of its own, and runs in a cluster of the
 * bench's own whose folder is in --dir, so everything that is written lies there and goes with it. */
#ifndef CAIRN_CTL_BENCH_SNAPSHOT_SNAPSHOT_H
#define CAIRN_CTL_BENCH_SNAPSHOT_SNAPSHOT_H

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/snapshot/disk.h"
#include "client/ctl/bench/snapshot/saver.h"
#include "client/ctl/bench/step/step.h"

#define SNAPSHOT_RUNS 5 /* of each, where they are not timed by --seconds */

struct snapshot_bench {
    const struct ctl *ctl;
    struct local *local;               /* of the part that runs */
    struct cairn_bench_result *result; /* of the same */
    json_t *parts;                     /* figures of all parts */
    double seconds;                    /* of an interval */
    struct step_plan plan;
    uint32_t workers;
    struct cairn_bench_crew crew;
    struct cairn_bench_disk disk;
    struct cairn_bench_saver saver;
    uint64_t steps; /* that the job has made */
    double stall_s; /* of async_save of the same state; 0: not measured */
};

/* How many elements the job has, and bytes a snapshot of it. */
uint64_t snapshot_elems(const struct snapshot_bench *b);
uint64_t snapshot_bytes(const struct snapshot_bench *b);
/* Starts the workers, which make a first step. False, and said: one of them failed; crew_stop is needed. */
bool snapshot_crew_start(struct snapshot_bench *b);
/* A step of all workers. Seconds of the slowest; 0, and said. */
double snapshot_step(struct snapshot_bench *b, uint32_t word);
void snapshot_set(struct snapshot_bench *b, const char *name, double value);

/* A job at rest, and a snapshot of it, if there is none yet. False, and said. */
bool snapshot_make(struct snapshot_bench *b);
/* GB/s of as many bytes as a snapshot has, to the disk as it is; `context` is the bench. 0, and said. */
double snapshot_write_raw(void *context);

/* The parts, in a cluster that is up. -1: go on; else the exit status. */
int snapshot_write(struct snapshot_bench *b);
int snapshot_read(struct snapshot_bench *b);
int snapshot_interval(struct snapshot_bench *b);
int snapshot_export(struct snapshot_bench *b);
int snapshot_import(struct snapshot_bench *b);
int snapshot_manifest(struct snapshot_bench *b);

#endif
