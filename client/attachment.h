/* How a job stands with the coordinator: what it asks for when it attaches, and how far that came. The loop
 * attaches it (client/loop/attach.h). */
#ifndef CAIRN_CLIENT_ATTACHMENT_H
#define CAIRN_CLIENT_ATTACHMENT_H

#include "proto/wire/messages.h"

struct job;

enum job_state { JOB_DETACHED, JOB_ATTACHING, JOB_ATTACHED };

struct attachment {
    /* constant from open on */
    struct cairn_packed *spec_packed; /* held; NULL for a reader */
    uint64_t open_flags;              /* CAIRN_OPEN_* */
    uint32_t start_wait_ms;
    /* lock */
    /* workers that came together; after a round, those that were in it. 0: not said */
    uint32_t launch;
    bool attached_once;
    struct cairn_sentence put_off; /* why the coordinator will be asked again; else empty */
    uint64_t job; /* the coordinator's number of the job; changed by the loop thread only */
    /* loop thread */
    enum job_state state;
    uint32_t request; /* of the JobOpen that is under way */
    uint64_t at_ms;   /* the next attempt is not before */
    uint32_t delay_ms;
    /* CAIRN_OPEN_RESUME asks a second time for a job that was lost while its shards heard of it */
    bool lost_under_way;
    /* the newest epoch in which a round was opened, and of which store; 0: none was */
    uint64_t seen_epoch, seen_store;
    Cairn__Attached *reply; /* owned: its pages are coming */
    struct cairn_paged spec_pages, layout_pages;
    struct reading *reading;       /* owned: of these, when all are here */
    Cairn__LayoutChanged *changed; /* owned: likewise */
    /* owned: MISMATCH with its differences; NULL: none. Constant once the job has failed */
    Cairn__Error *refused;
    struct cairn_paged changed_pages;
};

/* Loop thread: the reply and its pages are done with, or void. */
void cairn_attachment_drop_pages(struct attachment *attachment);
/* Loop thread: likewise with a change of the layout. */
void cairn_attachment_drop_changed(struct attachment *attachment);
/* Loop thread: the job is not attached, and has to ask anew. */
void cairn_attachment_lost(struct job *job);
/* Any thread: why the job waits; "": it does not. Not under the lock. */
void cairn_attachment_put_off(struct job *job, const char *why);

#endif
