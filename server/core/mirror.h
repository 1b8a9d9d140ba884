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
 * A part may have several standbys, and each a machine of its own: all of what is said above holds of each of
 * them, so each one that is in step may take the place. One of them does, and the others are in step with
 * it as they were with the owner that is lost: they are told of it as of an owner that is back.
 *
 * The store counts as saying so from the moment at which it is asked to, until the moment at which it has
 * answered that it does not. A new coordinator begins in NONE, with what its store says.
 *
 * Pure; no allocation. */
#ifndef CAIRN_CORE_MIRROR_H
#define CAIRN_CORE_MIRROR_H

#include <stdbool.h>
#include <stdint.h>

enum { CAIRN_STANDBYS_MAX = 2 }; /* of a part */

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
    bool has_standby;    /* the process is connected, and has its part */
    bool has_owner;      /* the owner is connected, and has its part */
    bool owner_is_empty; /* the owner is connected, and its part is lost */
    /* the owner is connected, and about to be there; or another standby is getting its place */
    bool owner_comes;
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
/* True if the owner's report may be acted upon, as far as this standby is concerned. */
bool mirror_passes(const struct mirror_state *mirror, enum mirror_report_kind kind,
                   struct mirror_report owner);
/* True if it may be acted upon: as far as each standby of the part is concerned. */
bool mirrors_pass(const struct mirror_state *const mirrors[static CAIRN_STANDBYS_MAX],
                  enum mirror_report_kind kind, struct mirror_report owner);

/* Copies of one leaf, made by updates, are not the same: returns the number of the one that alone differs
 * from all others, which are the same. -1: the digests do not tell which is wrong, as those of two copies
 * never do. 0 is the digest of a copy that is not known, and has no say. */
int mirror_outvoted(const uint64_t *digests, int count);

#endif
