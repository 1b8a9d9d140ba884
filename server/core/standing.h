/* Whether a coordinator may act on the state that a shard holds.
 *
 * With its state a shard keeps two identities: the store to which the state belongs, and the newest
 * coordinator that the shard has obeyed. A coordinator is identified by its incarnation and by a random
 * number of its process, because two processes can get the same incarnation from a store that was copied
 * back. The shard does not obey the coordinator of another store, an older coordinator, or a second process
 * of the same incarnation.
 *
 * A store can also be an older copy for a single job. Then one of the job's numbers in the store
 * (generation, epoch, revision, round) is lower than the number that a shard has seen. The coordinator of
 * such a store does nothing with the job until an operator adopts what the shards hold. This makes a store
 * with a new identity, and with numbers above everything that the shards have seen.
 *
 * Coordinators, shards and the simulator use these functions to judge. The functions are pure, and allocate
 * nothing. */
#ifndef CAIRN_CORE_STANDING_H
#define CAIRN_CORE_STANDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/spec/spec.h"

/* ==== seat ==== */

/* Decides which process may have a shard's name. A shard is identified by its name, and a shard's process
 * by its incarnation, a number that is new with every start. If two processes have one name, either this is
 * a mistake (a unit started twice, a host that was cloned, a container whose predecessor lives on), or one
 * of them was wrongly believed dead. Neither process has the state that is in the memory of the other. So
 * these rules hold:
 *
 *  - a process that answers keeps its seat; a newcomer can take the seat only from a silent process;
 *  - as an exception, a newcomer that holds state takes the seat from a process that holds none;
 *  - a process is told to end only if it holds no state that a job may want.
 *
 * Pure; no allocation. */

/* The state of the question to the process that has the seat. */
enum seat_probe {
    CAIRN_SEAT_UNASKED = 0,
    CAIRN_SEAT_ASKED,
    CAIRN_SEAT_ANSWERED, /* counts for the next newcomer only, and is UNASKED afterwards */
    CAIRN_SEAT_SILENT    /* the process was asked, and has not answered for the time of a lease */
};

struct seat_claim {
    bool taken; /* the session of some process has the seat */
    bool same;  /* the newcomer is the process that has the seat, on another connection */
    /* the newcomer holds state that a job may want: its generation is the job's or a later one, or the job
     * is unknown here */
    bool newcomer_holds;
    bool sitter_holds; /* the process that has the seat holds such state */
    enum seat_probe probe;
};

enum seat_verdict {
    /* the newcomer gets the seat; the connection of the process that had the seat is ended without a
     * message */
    CAIRN_SEAT_TAKES,
    /* the newcomer gets the seat; the process that had the seat holds nothing, and is told to end */
    CAIRN_SEAT_RELIEVES,
    CAIRN_SEAT_PROBES, /* the process that has the seat is asked; the newcomer tries again later */
    /* the process that has the seat has yet to answer; the newcomer tries again later */
    CAIRN_SEAT_WAITS,
    /* both processes hold state; the newcomer tries again, until an operator chooses */
    CAIRN_SEAT_STANDS,
    CAIRN_SEAT_ENDS, /* the newcomer is told to end */
};

enum seat_verdict seat_judge(const struct seat_claim *claim);

/* A part of a job's state that a shard holds or should hold. */
struct seat_part {
    uint64_t job, generation, layout_hash;
};
/* True if the part is among those in `held` [held_count]. */
bool seat_has(const struct seat_part *part, const struct seat_part *held, size_t held_count);

/* ==== mirror ==== */

/* Decides how the mirror of a part goes on, and when a standby takes the place of the shard that it mirrors,
 * its owner.
 *
 *           BEGIN         MADE          PAIRED       OPENS          FILLED          SAVED
 *    NONE ────────► MAKING ────► JOINING ────► READY ────► FILLING ────────► STORING ────► IN_STEP
 *     ▲ ▲                                                                      TICK │ the owner is lost
 *     │ └── DROPPED ── ENDING ◄── END, if the store says that it is in step         ▼
 *     └──────────────────────────────── PLACED ───────────────────────────────── TAKING
 *
 * The store says for each part whether a standby is in step: which process, and of which shard. While it
 * says so, no round is decided before the standby has the owner's sums, and none is committed before the
 * standby has carried out the decision (mirror_passes). So the standby has all that anybody was told of, and
 * may take the owner's place. If the standby is lost, the store is told first, and only then does the owner
 * go on alone: a standby that is not in step never takes a place. The store is told so, too, if the owner is
 * there and the coordinator cannot know whether the standby took part, because the coordinator is new.
 *
 * The store counts as saying so from the moment at which it is asked to, until the moment at which it has
 * answered that it does not. A new coordinator begins in NONE, with what its store says.
 *
 * Pure; no allocation. */

enum mirror_stage {
    /* There is no mirror. If the store says that there is, the standby alone may have the part, or the store
     * has yet to be told otherwise. */
    CAIRN_MIRROR_NONE = 0,
    CAIRN_MIRROR_MAKING,  /* the standby makes its part */
    CAIRN_MIRROR_JOINING, /* the owner and the standby are told of each other */
    CAIRN_MIRROR_READY,   /* the standby takes part from the next round on */
    CAIRN_MIRROR_FILLING, /* it takes part, and lacks some of the state */
    CAIRN_MIRROR_STORING, /* it is filled, and the store is told that it is in step */
    CAIRN_MIRROR_IN_STEP,
    CAIRN_MIRROR_TAKING, /* the store is told that it is the owner */
    CAIRN_MIRROR_ENDING  /* the store is told that it is not in step */
};

/* The owner's reports that wait for the standby's. */
enum mirror_report_kind {
    CAIRN_MIRROR_ANSWER, /* to a FENCE. A decision may have reached the standby, and not the owner */
    CAIRN_MIRROR_REDUCED,
    CAIRN_MIRROR_PUBLISHED,
    CAIRN_MIRROR_REPORTS
};

struct mirror_report {
    uint64_t epoch, round; /* ANSWER: round 0 */
};

struct mirror_state {
    enum mirror_stage stage;
    bool is_stored; /* the store says that the standby is in step, or may say so */
    struct mirror_report heard[CAIRN_MIRROR_REPORTS]; /* the standby's last ones */
};

/* The coordinator's view of a part, its owner and its standby. */
struct mirror_view {
    /* the standby's part has the generation and the layout of the job */
    bool fits;
    bool has_standby;     /* the process is connected, and has its part */
    bool has_owner;       /* the owner is connected, and has its part */
    bool owner_is_empty;  /* the owner is connected, and its part is lost */
    bool may_mirror;      /* the job has a shape that a standby can have, and keeps it for now */
    bool may_take;        /* shards of the job may be replaced now */
    uint64_t away_ms;     /* for how long the owner has not been connected */
    uint64_t patience_ms; /* how long it may be away, because its next process may have its part */
};

enum mirror_event {
    /* a standby is asked for: only in NONE, if the store does not say that one is in step */
    CAIRN_MIRROR_ON_BEGIN,
    CAIRN_MIRROR_ON_MADE,   /* it has made its part */
    CAIRN_MIRROR_ON_PAIRED, /* the owner and the standby know of each other */
    /* no round is open, and the version is that of the last outcome, which the standby can be told */
    CAIRN_MIRROR_ON_OPENS,
    CAIRN_MIRROR_ON_FILLED, /* the standby has all that the owner has */
    /* the store has answered the last STORE order */
    CAIRN_MIRROR_ON_SAVED,
    CAIRN_MIRROR_ON_NOT_SAVED,
    CAIRN_MIRROR_ON_END, /* the standby is of no use any more, for a reason that the caller knows */
    /* the view is of after the loss or the return */
    CAIRN_MIRROR_ON_STANDBY_LOST,
    CAIRN_MIRROR_ON_OWNER_LOST,
    CAIRN_MIRROR_ON_OWNER_BACK,
    CAIRN_MIRROR_ON_TICK
};

/* The caller's task. In every case it looks afterwards which reports pass (mirror_passes). */
enum mirror_order {
    CAIRN_MIRROR_DO_NOTHING,
    CAIRN_MIRROR_DO_PAIR, /* tell the owner and the standby of each other → ON_PAIRED */
    /* bring the standby to the last outcome, and send it every round from now on */
    CAIRN_MIRROR_DO_JOIN,
    CAIRN_MIRROR_DO_STORE, /* tell the store that the standby is in step → ON_SAVED or ON_NOT_SAVED */
    /* The mirror has ended: tell the owner, and tell the standby to drop its part, as far as they are there.
     * The owner goes on alone. */
    CAIRN_MIRROR_DO_END,
    /* Tell both the same, and tell the store that the standby is not in step → ON_SAVED or ON_NOT_SAVED. The
     * owner's reports wait until then. */
    CAIRN_MIRROR_DO_UNSTORE,
    CAIRN_MIRROR_DO_GO_ALONE, /* the store says so: the owner goes on alone */
    /* the former owner has no part of the job any more: drop what it has; and tell the store that the standby
     * is the owner → ON_SAVED or ON_NOT_SAVED */
    CAIRN_MIRROR_DO_TAKE,
    CAIRN_MIRROR_DO_TAKE_AGAIN, /* tell the store again, after ON_NOT_SAVED */
    /* The standby is the owner, as any other, and the mirror is gone. */
    CAIRN_MIRROR_DO_OWN
};

/* Takes one event. An event of another stage changes nothing. */
enum mirror_order mirror_on(struct mirror_state *mirror, enum mirror_event event,
                            const struct mirror_view *view);

/* True if the standby is sent every round. */
bool mirror_takes_part(const struct mirror_state *mirror);
/* True if the process that the store names may come back, and be the standby. */
bool mirror_expects(const struct mirror_state *mirror, const struct mirror_view *view);
/* True if the store is being told who has the place. Until it has answered, the shard that has the place in
 * the caller's memory is not the owner. */
bool mirror_is_taking(const struct mirror_state *mirror);

enum mirror_verdict {
    CAIRN_MIRROR_STAYS,
    /* the standby is of no use; if the store says that it is in step, the store is told otherwise */
    CAIRN_MIRROR_ENDS,
    CAIRN_MIRROR_TAKES /* the standby is the owner from now on; the store is told first */
};
enum mirror_verdict mirror_judge(const struct mirror_state *mirror, const struct mirror_view *view);

/* Notes a report of the standby. */
void mirror_hears(struct mirror_state *mirror, enum mirror_report_kind kind,
                  struct mirror_report standby);
/* True if the standby has the newer one of the last decisions that both have answered with: the owner, which
 * is prepared for it, is taken to have answered with the standby's. Both are given by their rounds. */
bool mirror_knows_more(uint64_t standby_round, uint64_t owner_round);
/* True if the standby has not reported for too long what the owner has. waiting_ms: for how long the owner's
 * report has waited; silent_ms: for how long the owner has not been heard. From an owner that is not heard,
 * the standby has no sums to fetch, and is about to replace it. */
bool mirror_is_late(uint64_t waiting_ms, uint64_t silent_ms, uint64_t lease_ms);
/* True if the owner's report may be acted upon. */
bool mirror_passes(const struct mirror_state *mirror, enum mirror_report_kind kind,
                   struct mirror_report owner);

/* ==== durability ==== */

/* Judges how safe a job is, part by part, against what it asks for (cairn_durability). A job has a tier if
 * each of its parts has it. A job that asks for nothing gets what the cluster offers, and is degraded if it
 * loses what it had.
 *
 * Pure; no allocation. */

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
struct safety safety_judge(cairn_durability asked, const struct safety_part *parts, size_t count);
/* Refuses, with CAIRN_ERR_UNSUPPORTED, what cannot be had, and names which shards lack what. */
cairn_status safety_may(cairn_durability asked, const struct safety_part *parts, size_t count,
                        struct sentence *why) CAIRN_MUST_CHECK;
/* "process+peer", "none" */
const char *safety_text(unsigned has);

/* ==== standing ==== */

/* The identity of a coordinator: of the present one, or of the newest that a shard has obeyed. */
struct coordinator_id {
    /* 0 (only in what a shard keeps): the shard holds nothing, and obeys any coordinator */
    uint64_t store;
    uint64_t incarnation, process;
};

enum standing {
    CAIRN_STANDING_GOOD,
    CAIRN_STANDING_FOREIGN, /* the state belongs to another store */
    /* the store is the same, but the shard has obeyed a newer coordinator, or another process of this
     * incarnation */
    CAIRN_STANDING_SUPERSEDED
};

enum standing standing_of(const struct coordinator_id *coordinator,
                          const struct coordinator_id *seen);

/* The highest numbers of a job that a shard has seen, or that a store knows of. */
struct marks {
    uint64_t generation;
    uint64_t epoch;
    uint64_t revision; /* the revision of the spec */
    /* In a shard's marks: the highest round seen. In a store's marks: its coordinators opened no round with
     * this number or a higher one; 0 = they may have opened any. */
    uint64_t round;
};

/* Returns NULL if the store is not behind. Otherwise returns the number in which the store is behind:
 * "generation", "epoch", "revision" or "round". */
const char *marks_behind(const struct marks *store, const struct marks *seen);

/* These two functions make the marks with which a rebuilt store begins. marks_add raises `all`, which is
 * zero before the first call, to what one more shard has seen. After the last shard, marks_above raises the
 * round above any number that may have been used: beyond the rounds that a shard has seen, `round_block`
 * more numbers may have been used, a CAIRN_ROUND_BLOCK for each incarnation. */
void marks_add(struct marks *all, const struct marks *seen);
void marks_above(struct marks *all, uint64_t round_block);

#endif
