/* Writing planes at a step boundary. Caller's threads, not under the lock unless it says so. */
#ifndef CAIRN_CLIENT_API_WRITE_H
#define CAIRN_CLIENT_API_WRITE_H

#include <cairn.h>

#include "proto/base/status.h"

struct job;
struct written;

/* Under the lock. */
struct writing {
    struct cairn_round round; /* of the write that is open; round.round 0: none */
    struct written *boxes;    /* owned: what was put in it */
};

void cairn_write_release(struct job *job); /* with the job, or under the lock */
/* The round of the write that is open; 0 = none. */
uint64_t cairn_api_write_round(struct job *job);
/* Until no write of this worker is open, or it is void. CAIRN_ERR_TIMEOUT names it. */
cairn_status cairn_api_await_write(struct job *job, uint64_t deadline_ms) CAIRN_MUST_CHECK;
cairn_status cairn_api_write_put(struct job *job, uint64_t round, const char *tensor,
                                 const char *plane, const struct cairn_box *box,
                                 const struct cairn_mem *mem, cairn_op **op_out) CAIRN_MUST_CHECK;

#endif
