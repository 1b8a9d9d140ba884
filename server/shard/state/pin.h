/* Snapshots and digests of a version. Loop thread, unless it says otherwise. */
#ifndef CAIRN_SHARD_STATE_PIN_H
#define CAIRN_SHARD_STATE_PIN_H

#include <stdatomic.h>

#include "proto/wire/messages.h"

struct cairn_pin;
struct cairn_report;
struct cairn_shard;
struct cairn_shard_job;
struct cairn_staging;
struct cairn_works;

enum { CAIRN_SHARD_PINS_MAX = 4 }; /* snapshots and digests of a job at a time */

/* The pins of a job, and what is told of them. */
struct cairn_pins {
    struct cairn_pin *list;       /* owned */
    struct cairn_report *reports; /* owned: being sent */
    /* Borrowed: [saving_count] into which the UPDATE at hand saves what it overwrites; constant during it. */
    struct cairn_staging *saving[CAIRN_SHARD_PINS_MAX];
    uint32_t saving_count;
    atomic_bool updating;    /* an UPDATE\'s pass is under way: it needs the memory\'s bandwidth */
    _Atomic uint64_t passes; /* of UPDATEs that have begun, ever */
    uint64_t step_us;        /* what a step takes while none is there, smoothed; 0: not known */
    uint64_t last_us;        /* when the last UPDATE was published; 0: none was */
};

/* Makes the staging of one that is soon to begin; answers when its pages are there. */
void cairn_pin_prepare(struct cairn_shard_job *job, uint32_t request,
                       const Cairn__PinPrepare *message);
/* Gives back the staging of the pins that have not begun: the planes are about to lie elsewhere. */
void cairn_pins_unprepare(struct cairn_shard_job *job);
void cairn_pin_begin(struct cairn_shard_job *job, const Cairn__Pin *message);
/* Where it is to be written, if anywhere. */
void cairn_pin_folder(struct cairn_shard_job *job, const Cairn__PinFolder *message);
/* The session ended: no folder comes any more to those that wait for one. */
void cairn_pin_session_ended(struct cairn_shard_job *job);
/* The pass of an UPDATE is about to begin; it is published: begins the pins that waited. */
void cairn_pins_updating(struct cairn_shard_job *job);
void cairn_pin_updated(struct cairn_shard_job *job);
/* Any thread, in the pass of an UPDATE: as cairn_staging_save, for all pins. */
void cairn_pins_save(const struct cairn_shard_job *job, struct cairn_works *works, uint64_t chunk);
/* How far those of all jobs are. */
#define CAIRN_PINS_TOLD_MAX 256 /* that a heartbeat tells of */
struct cairn_pins_list {
    size_t count;
    Cairn__PinTold told[CAIRN_PINS_TOLD_MAX];
    Cairn__PinTold *pointers[CAIRN_PINS_TOLD_MAX];
};
void cairn_pins_list(const struct cairn_shard *shard, struct cairn_pins_list *out);
/* Somebody waits for their end: they are written as fast as it goes. */
void cairn_pins_hurry(const struct cairn_shard_job *job);
/* None looks at the planes any more: those that were given up may hang in storage still. */
bool cairn_pins_rest(const struct cairn_shard_job *job);
/* The job leaves, or others wait no longer: what runs on the snapshots thread ends soon. */
void cairn_pin_cancel(struct cairn_shard_job *job);
void cairn_pin_release(struct cairn_shard_job *job);

#endif
