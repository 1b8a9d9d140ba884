/* The core of a job (server/core/round.h) decides its rounds and epochs: it is told what happens, and its
 * hands do what it says. */
#ifndef CAIRN_COORDINATOR_ROUND_CORE_H
#define CAIRN_COORDINATOR_ROUND_CORE_H

#include "server/base/log.h"
#include "server/coordinator/base/names.h"
#include "server/core/round.h"

struct cairn_cluster_terms;
struct cairn_decision;

/* Who does what a core says: job/act.c. */
struct cairn_cluster_hands {
    void (*act)(struct cairn_cluster_job *job, const struct cairn_round_action *action);
    /* The core goes by the next layout: it is durable. Before what the event asks for is done. */
    void (*in_force)(struct cairn_cluster_job *job);
    /* An event is over, and the core may be entered again. */
    void (*after)(struct cairn_cluster_job *job);
};

/* A job's core, and the state around it. */
struct cairn_cluster_rounds {
    /* owned */
    void *core_memory;
    struct cairn_round_actions actions;
    /* of the spec, the newest first; made with the plan, or with the core. NULL: neither is there */
    struct cairn_cluster_terms *terms;
    /* borrowed */
    const struct cairn_cluster_hands *hands;

    bool in_event;       /* the core is not entered twice */
    bool heard;          /* the shards have told this core the job's version */
    bool persist_waits;  /* the core waits until epoch and reserved.round are durable */
    bool persist_failed; /* they are to be stored again, by the tick */
    struct cairn_log_limit persist_failures;
    /* Why the next epoch will begin, set by whoever brings it about; empty: nobody has. */
    struct cairn_sentence epoch_reason;
    struct cairn_sentence epoch_why; /* why the present one began, for logs and workers */
    struct cairn_sentence put_out;   /* who was, last, at the step's deadline; for status */
    bool has_stepped;                /* a round was applied, */
    uint64_t stepped_ms;             /* cairn_cluster_now_ms: then; for status */
};

/* Makes the job's core, and tells it which of its shards are up. */
cairn_status cairn_cluster_core_open(struct cairn_cluster_job *job,
                                     const struct cairn_cluster_hands *hands,
                                     struct cairn_sentence *why) CAIRN_MUST_CHECK;
void cairn_cluster_job_core_close(struct cairn_cluster_job *job);
/* Not from within an event. */
void cairn_cluster_job_event(struct cairn_cluster_job *job, const struct cairn_round_event *event);
/* Tells the core the time, and stores again what could not be stored. */
void cairn_cluster_job_tick(struct cairn_cluster_job *job, uint64_t now_ms);
void cairn_cluster_decision_to_message(const struct cairn_decision *decision, Cairn__Decision *out);
/* Borrows the payload. CAIRN_ERR_MALFORMED. */
cairn_status cairn_cluster_decision_of_message(const Cairn__Decision *message,
                                               struct cairn_decision *out) CAIRN_MUST_CHECK;

#endif
