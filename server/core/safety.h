/* Judges how safe a job is, part by part, against what it asks for (cairn_durability). A job has a tier if
 * each of its parts has it. A job that asks for nothing gets what the cluster offers, and is degraded if it
 * loses what it had.
 *
 * Pure; no allocation. */
#ifndef CAIRN_CORE_SAFETY_H
#define CAIRN_CORE_SAFETY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/spec/spec.h"

enum safety_tier {
    CAIRN_SAFE_PROCESS, /* a keeper holds the part, which outlives its process */
    CAIRN_SAFE_PEER,    /* a standby is in step with it */
    CAIRN_SAFE_LOG,     /* the sums of each round are on its disk before the round counts */
    CAIRN_SAFE_TIERS
};

/* One tier of one part. */
struct safety_of {
    bool has;
    bool may;    /* the tier can be had: there is a keeper, a standby, a folder for the log */
    bool is_due; /* a job that asks for nothing is to have it, since it is offered, or was before */
    bool is_coming; /* it is being made */
    /* why the part lacks it: a clause after "shard NAME ", of PEER after "shard NAME is not mirrored: ".
     * NULL: the usual one */
    const char *why;
};
struct safety_part {
    const char *shard;
    struct safety_of of[CAIRN_SAFE_TIERS];
};

struct safety {
    cairn_durability asked;
    unsigned has; /* 1 << tier: what all parts have */
    /* tiers of parts that are asked for, or due, and are not there; 0: it is not degraded */
    uint32_t lacking;
    bool is_coming;      /* all that lacks is being made */
    struct sentence why; /* if any lacks: which, of which shards, and what to do */
};

/* True if standbys are used for a job that asks for that. */
bool safety_mirrors(cairn_durability asked);
/* True if the rounds of a job that asks for that are logged. */
bool safety_logs(cairn_durability asked);
struct safety safety_judge(cairn_durability asked, const struct safety_part *parts, size_t count);
/* Refuses, with CAIRN_ERR_UNSUPPORTED, what cannot be had, and names which shards lack what. */
cairn_status safety_may(cairn_durability asked, const struct safety_part *parts, size_t count,
                        struct sentence *why) CAIRN_MUST_CHECK;
/* "process+peer", "none" */
const char *safety_text(unsigned has);

#endif
