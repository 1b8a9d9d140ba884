/* Snapshots and digests of a version. Loop thread. */
#ifndef CAIRN_SHARD_STATE_PIN_H
#define CAIRN_SHARD_STATE_PIN_H

#include "proto/wire/messages.h"

struct cairn_pin;
struct cairn_report;
struct cairn_shard_job;

enum { CAIRN_SHARD_PINS_MAX = 4 }; /* snapshots and digests of a job at a time */

/* The pins of a job, and what is told of them. */
struct cairn_pins {
    struct cairn_pin *list; /* owned */
    uint32_t copying;       /* how many copy the state on the compute pool: no UPDATE meanwhile */
    struct cairn_report *reports; /* owned: being sent */
};

void cairn_pin_begin(struct cairn_shard_job *job, const Cairn__Pin *message);
/* Where the copy is to be written, if anywhere. */
void cairn_pin_folder(struct cairn_shard_job *job, const Cairn__PinFolder *message);
/* The session ended: no folder comes any more to those that wait for one. */
void cairn_pin_session_ended(struct cairn_shard_job *job);
/* UPDATED: begins the copies that waited. */
void cairn_pin_updated(struct cairn_shard_job *job);
/* The job leaves: what runs on the files thread ends soon. */
void cairn_pin_cancel(struct cairn_shard_job *job);
void cairn_pin_release(struct cairn_shard_job *job);

#endif
