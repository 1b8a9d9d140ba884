/* Which of a job's snapshots stay, and why: pure, by the rules of its policy (proto/spec/spec.h).
 *
 * A periodic snapshot of the job stays that any of keep_last, keep_every and keep_within names; without these
 * rules all do. While the snapshots of the job together have more than max_bytes, the oldest goes that
 * keep_every does not name. Whatever the rules say these stay:
 *   - what is not the job's, though it has its name, what somebody asked for, and what has a tag
 *   - the newest verified one, what `latest` names, and all that no newer verified one stands for
 *
 * Which is newer the caller says, by version. The wall clock is asked for keep_within alone, and can only
 * keep one for longer: a snapshot whose time lies in the future, or before that of an older one, is as young
 * as the next newer one; and while a jump of the clock is younger than keep_within, nothing goes by age. */
#ifndef CAIRN_COORDINATOR_SNAPSHOT_RETENTION_H
#define CAIRN_COORDINATOR_SNAPSHOT_RETENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CAIRN_RETENTION_SKEW_S 60 /* so far in the future a snapshot may be: hosts differ */

struct cairn_retention_clock {
    uint64_t now_unix_s;
    uint64_t sound_s; /* since it jumped (server/base/wall.h); UINT64_MAX: it did not */
};

/* 0: no such rule. */
struct cairn_retention_rules {
    uint64_t keep_last, keep_every, keep_within_s, max_bytes;
};

enum cairn_retention_fate {
    CAIRN_RETENTION_LAST,   /* of the newest keep_last */
    CAIRN_RETENTION_EVERY,  /* the first of keep_every steps */
    CAIRN_RETENTION_WITHIN, /* younger than keep_within_s */
    CAIRN_RETENTION_NO_RULE,
    CAIRN_RETENTION_OTHERS, /* another job's of the name */
    CAIRN_RETENTION_ASKED,
    CAIRN_RETENTION_TAGGED,
    CAIRN_RETENTION_LATEST,
    CAIRN_RETENTION_VERIFIED, /* the newest that is */
    CAIRN_RETENTION_NEEDED,   /* no newer one is verified */
    CAIRN_RETENTION_CLOCK,    /* how old it is cannot be told: the clock has jumped */
    CAIRN_RETENTION_GOES,     /* no rule names it */
    CAIRN_RETENTION_TOO_MUCH  /* goes: over max_bytes */
};

struct cairn_retention_item {
    uint64_t created_unix_s, step, bytes;
    bool is_periodic; /* of this very job */
    bool is_others;
    bool is_tagged, is_latest;
    bool is_verified;
    bool is_damaged; /* it counts for no rule */
    bool is_left;    /* the job turned away from it: none of the others goes for it */
    enum cairn_retention_fate fate; /* out */
};

/* The newest is the first. At most 1,000: it takes the cube of their number where all
 * times are odd, and their square else. */
void cairn_retention_judge(const struct cairn_retention_rules *rules,
                           const struct cairn_retention_clock *clock,
                           struct cairn_retention_item *items, size_t count);
static inline bool cairn_retention_goes(enum cairn_retention_fate fate)
{
    return fate >= CAIRN_RETENTION_GOES;
}
/* "of the newest kept", for people. */
const char *cairn_retention_reason(enum cairn_retention_fate fate);

#endif
