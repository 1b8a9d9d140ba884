/* Waiting for a worker that lives, and said that it is at work on something else: no call of a round fails
 * for that. */
#ifndef CAIRN_CLIENT_PAUSE_H
#define CAIRN_CLIENT_PAUSE_H

#include "client/session.h"

/* Of one call that waits. */
struct patience {
    struct job *job;
    uint64_t span_ms; /* that its caller gave it */
    uint64_t say_ms;  /* the next line for people */
    bool paused;      /* so it was when it was asked last */
};
struct patience cairn_client_patience(struct job *job, uint64_t deadline_ms);
/* The call's time is over, and that is for whom it waits (NULL: nobody says). True: it waits on, until
 * *deadline_ms, and asks again then. */
bool cairn_client_waits_on(struct patience *p, const Cairn__Awaited *awaited,
                           uint64_t *deadline_ms);

/* Loop thread, attached: tells of the pause of this worker, if it is in one. */
void cairn_client_pause_again(struct job *job);

#endif
