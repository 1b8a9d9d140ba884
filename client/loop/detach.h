/* Letting go of what shards show this process, and taking it again. */
#ifndef CAIRN_CLIENT_LOOP_DETACH_H
#define CAIRN_CLIENT_LOOP_DETACH_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/sentence.h"

struct session;

struct detachment {
    /* lock */
    bool is_asked, is_answered;
    bool wants_off; /* what is asked */
    cairn_status status;
    struct cairn_sentence why;
    /* loop thread */
    bool is_off;
};

/* Not under the lock. CAIRN_ERR_BUSY: something is open; CAIRN_ERR_TIMEOUT: it is attached as before. */
cairn_status cairn_detach_ask(struct session *s, bool wants_off,
                              uint64_t deadline_ms) CAIRN_MUST_CHECK;
/* Loop thread: a step towards what is asked. */
void cairn_detach_turn(struct session *s);

#endif
