/* Waiting: no call is silent about it for long, and none of a round fails for a worker that lives, and said
 * that it is at work on something else. */
#ifndef CAIRN_CLIENT_WAIT_H
#define CAIRN_CLIENT_WAIT_H

#include "proto/wire/messages.h"

struct job;

/* This worker is at work on something else (cairn_pause). */
struct pause {
    uint64_t ends_ms; /* 0: it is not */
    uint32_t
        request; /* loop thread: of the Pause that was repeated to a new coordinator; 0: of none */
    char what[64];
};

/* Which shards have not answered: a caller's thread asks, the loop thread tells. */
struct awaited {
    bool asked, told;
    struct cairn_sentence text;
};

/* The patience of one call that waits. */
struct patience {
    struct job *job;
    uint64_t span_ms; /* that its caller gave it */
    uint64_t say_ms;  /* the next line for people */
    bool said;        /* a line was told */
    bool paused;      /* so it was when it was asked last */
};
struct patience cairn_client_patience(struct job *job, uint64_t deadline_ms);
/* Until when the call sleeps: its deadline, or before it a moment to say for whom it waits. */
uint64_t cairn_client_says_at(const struct patience *p, uint64_t deadline_ms);
/* Not under the lock. It waits on: `text` is what its error would say. */
void cairn_client_say_wait(struct patience *p, const char *text);
/* The call's time is over, and that is for whom it waits (NULL: nobody says). True: it waits on, until
 * *deadline_ms, and asks again then. */
bool cairn_client_waits_on(struct patience *p, const Cairn__Awaited *awaited,
                           uint64_t *deadline_ms);
/* The beginning of the error of a call of the job that timed out: names the link that is silent and
 * ends in "; ", or is empty if no link is. Not under the lock. */
void cairn_client_silence(struct job *job, struct cairn_sentence *out);

#endif
