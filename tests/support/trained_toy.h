/* What most tests of the coordinator begin with: a fake cluster of two shards, the job "toy" of one worker,
 * an admin, and what those ask. One of a program; everything is on the test's thread. */
#ifndef CAIRN_SUPPORT_TRAINED_TOY_H
#define CAIRN_SUPPORT_TRAINED_TOY_H

#include "tests/support/fake_cluster.h"

extern struct fake_cluster fake;
extern struct fake_peer w, admin; /* closed, until one of these opens them */
extern uint64_t job;

/* ---- fixtures ---- */
/* No shard is up yet. */
void open_fake(void);
/* The job is at step 1; both peers are there. */
void open_trained(void);
/* A tick of 10 ms and heartbeats of 20: so long a part of a shard that ended may be missed. */
void tick_fast(void);
/* open_trained and tick_fast. */
void open_ticking(void);
void close_fake(void);

/* ---- the worker ---- */
struct fake_peer worker(const char *name);
/* The shards come, and `w`, named "w0": the job is ready for rounds. */
void start_job(void);
/* The same, and it is at step 1. */
void start_trained(void);
/* `w` is a new connection, which has asked for nothing. */
void come_again(const char *name);
/* The same, "w0", which is attached to the job again. */
void attach_again(void);
/* A whole round of `w`; the step after it. */
uint64_t train(void);

/* The worker has these settings amended, which is answered: amend_job(1, "clip_norm=%d", 2) */
#define amend_job(revision, ...)                                                                  \
    fake_expect_amended(                                                                          \
        &w, fake_ask_amend(&w, (Cairn__JobAmend) { .job = job, .key = (revision) }, __VA_ARGS__), \
        (revision))

/* ---- the admin ---- */
struct coord_job *toy(void);
/* Stopped and started again; `admin` is a new connection. */
void restart_coordinator(void);
/* While steps go on, until it holds nothing and was told to end. */
void drain_shard(uint32_t shard);
uint32_t ask_snapshot(struct fake_peer *peer, bool wait);
Cairn__SnapshotStatus *expect_snapshot(uint32_t request);
/* Waits until it is committed. */
Cairn__SnapshotStatus *take_snapshot(void);
Cairn__SnapshotList *list_snapshots(void);
uint32_t ask_digest(struct fake_peer *peer);
/* By name and id, or by a path; "": not given. */
uint32_t ask_restore(const char *name, const char *id, const char *path);
/* Damages a snapshot: the last byte of its first file is another one. */
void flip_last_byte(const char *folder);
/* How many the job has, whole or not. */
size_t snapshot_folders(void);
uint32_t ask_show(const char *name);
Cairn__JobStatus *show_job(const char *name);
uint32_t ask_drop(const char *name, bool force);
/* The job, by force. */
void drop(void);

#endif
