/* A job as one worker or reader has it. Each module's own state is one struct, declared in its header. */
#ifndef CAIRN_CLIENT_JOB_H
#define CAIRN_CLIENT_JOB_H

#include <stdatomic.h>

#include "client/api/write.h"
#include "client/attachment.h"
#include "client/body.h"
#include "client/base/step_times.h"
#include "client/filling.h"
#include "client/push/accumulate.h"
#include "client/push/parcel.h"
#include "client/push/pushes.h"
#include "client/puts.h"
#include "client/read/cache.h"
#include "client/read/mapped.h"
#include "client/read/stitch.h"
#include "client/session.h"
#include "client/shard_link.h"
#include "client/tiles.h"
#include "client/wait.h"
#include "proto/spec/spec.h"

/* Who this is, to the coordinator and the shards. */
struct member {
    uint64_t id, token;
    cairn_role role;
    uint32_t rank;
    uint32_t number; /* of the job in this process: the rounds that it begins have it */
};

/* Why every call fails from now on; CAIRN_OK: none does. */
struct failure {
    cairn_status status;
    struct cairn_sentence why;
};

/* The job's state as this client last heard of it. */
struct known_state {
    bool initialized;
    struct cairn_version newest;
    double clip_norm; /* amendments change it */
    /* when it was first attached; constant from then on */
    bool found; /* it had taken steps */
    uint64_t found_step;
    char made_by[CAIRN_NAME_MAX + 16];
};

/* The versions that this client asked the coordinator to keep. */
struct leased {
    struct cairn_version oldest; /* until then, by this process's clock; 0: nothing */
    uint64_t until_ms;
};

struct job {
    struct session *session; /* borrowed */
    struct job *next;        /* loop thread: the session's list */
    /* constant from open on */
    struct cairn_job_spec_data spec; /* canonical; the first attach sets it, a reader's wholly */
    char *name;
    struct member member;
    void *handle;
    void (*on_last_unref)(struct job *job); /* frees it */
    atomic_bool closing;

    /* lock */
    uint32_t refs; /* the handle, the session's list, ops */
    bool closed;
    struct failure failure; /* fenced, mismatch, lost, closed */
    struct known_state known;
    struct leased leased;
    struct cairn_stats stats;
    struct step_times times; /* of a worker */
    struct pause pause;      /* this worker's own */
    struct awaited awaited;  /* asked by a call that timed out */
    struct filling filling;
    struct writing writing;
    struct puts puts;

    /* lock and loop thread: their headers say which */
    struct attachment attachment;
    struct held_tiles tiles;
    struct sums sums;
    struct mapped_reads reads;
    struct stitches stitches;
    struct cache *cache; /* owned; NULL: no unit was asked for */
    struct body *bodies; /* owned: newest first; NULL: it was never attached */
    struct job_shards shards;

    /* loop thread */
    struct failure broken; /* of a card: the job fails with it at the next turn */
    /* a push waits for what is queued on its stream, and those behind it, too */
    bool awaits_stream;
    bool stalled; /* its first command could not go on: those behind it wait, other jobs' do not */
    struct parcel_table parcels;
    struct {
        TAILQ_HEAD(, parcel) parcels;
        uint32_t count;
    } landed; /* push/stage.c */
    struct pushing pushing;
    struct {
        uint64_t none_fetched_ms,
            none_pushed_ms; /* when nothing was in flight, last; 0: not looked */
    } flights;
};

void cairn_job_ref(struct job *job);   /* not under the lock */
void cairn_job_unref(struct job *job); /* frees it with the last one; not under the lock */
void cairn_job_note_clip_norm(struct job *job, double clip_norm); /* likewise */

#endif
