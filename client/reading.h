/* Reads what the message Attached brings: the spec that the servers have, and the layout. A million
 * tensors take a second, so many are read by a thread of their own, while other jobs of the session go
 * on; a few are read at once.
 *
 *   cairn_reading_begin ─► a thread reads ─► is over (the loop thread is kicked) ─► loop/attach.c takes it
 *
 * The job's spec and the pages stay as they are until the reading is freed. Loop thread. */
#ifndef CAIRN_CLIENT_READING_H
#define CAIRN_CLIENT_READING_H

#include <pthread.h>
#include <stdatomic.h>

#include "client/body.h"
#include "proto/base/sentence.h"
#include "proto/spec/spec.h"
#include "proto/wire/messages.h"

struct job;

struct reading {
    const struct job *job;
    pthread_t thread;
    bool has_thread, first, wants_body;
    atomic_bool is_over; /* all that follows is there */
    /* of the spec. Not CAIRN_OK: `why` says it */
    cairn_status spec_status;
    struct cairn_sentence why;
    bool tells_clip_norm; /* clip_norm is the one in force */
    double clip_norm;
    bool takes_spec;                 /* `spec` is to become the job's */
    struct cairn_job_spec_data spec; /* owned */
    /* of the layout, unless the spec failed */
    cairn_status layout_status;
    struct cairn_layout *layout; /* owned; NULL: `body` has it */
    struct body *body;           /* owned: of a job that has none yet; else NULL */
};

/* All pages are here: job->attachment.reading is there, and perhaps over. CAIRN_ERR_NO_MEMORY. */
cairn_status cairn_reading_begin(struct job *job) CAIRN_MUST_CHECK;
/* A layout of tensors of the spec, off the wire: the caller's. CAIRN_ERR_MALFORMED, CAIRN_ERR_PROTOCOL,
 * CAIRN_ERR_NO_MEMORY. Any thread. */
cairn_status cairn_layout_of_pages(const struct cairn_job_spec_data *spec,
                                   const struct cairn_paged *pages,
                                   struct cairn_layout **layout_out) CAIRN_MUST_CHECK;
/* Waits until it is over. */
void cairn_reading_await(struct reading *reading);
/* The same, and frees what nobody took of it. NULL is fine. */
void cairn_reading_free(struct reading *reading);

#endif
