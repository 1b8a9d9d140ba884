/* A snapshot of the bench's job, asked for or by the job's own rule, or its restore, by a thread of its own,
 * so that the bench may order steps meanwhile, or be interrupted. */
#ifndef CAIRN_CTL_BENCH_SNAPSHOT_SAVER_H
#define CAIRN_CTL_BENCH_SNAPSHOT_SAVER_H

#include <pthread.h>
#include <stdatomic.h>

#include "client/ctl/local/local.h"
#include "proto/snapshot/snapshot_file.h"

struct cairn_bench_saver {
    /* the caller's, before begin */
    struct local *local;
    const char *job;
    bool restores; /* the snapshot that was taken last, else it takes one */
    /* 0: it asks for the snapshot; else the job takes it, at the next step that this divides */
    uint64_t every;
    /* of the last one; valid after end */
    char id[CAIRN_SNAPSHOT_ID_BYTES]; /* "": there is none */
    char path[PATH_MAX];              /* its folder */
    double begin, end;                /* cairn_bench_now: asked or begun, committed or restored */
    uint64_t bytes;
    /* the thread's */
    struct ctl ctl;
    pthread_t thread;
    bool is_ok; /* it has said so where it is not */
    atomic_bool is_over;
};

/* False, and said: there is no thread. */
bool cairn_bench_save_begin(struct cairn_bench_saver *saver);
/* Waits for its end; false: it failed, and has said why, or a signal came. With `gives_up` the daemons are
 * stopped, which ends it. */
bool cairn_bench_save_end(struct cairn_bench_saver *saver, bool gives_up);
/* Both. Seconds; 0: it failed. */
double cairn_bench_save(struct cairn_bench_saver *saver);
/* Removes the snapshot that was taken last, if there is one. False, and said. */
bool cairn_bench_save_remove(struct cairn_bench_saver *saver);
/* Drops the job, as if the cluster had lost it; its snapshots stay. False, and said. */
bool cairn_bench_save_drop_job(struct cairn_bench_saver *saver);
/* Drops the bytes that were written for the snapshot from the page cache. */
void cairn_bench_save_make_cold(const struct cairn_bench_saver *saver);

#endif
