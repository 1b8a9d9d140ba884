/* Decides which of several coordinators leads, and whether it may still write (coordinator/lead.h has the
 * picture of the store that they share).
 *
 *           LOOK: nobody leads    GRANT          MAKE: made
 *    STANDS_BY ──────────► GRANTS ─────► MAKES ─────────────► LEADS ◄──► RENEWS
 *     ▲      ▲                │ fails      │ fails              │ │        │ the lease has ended
 *     │      └────────────────┴─ REST ◄─ DROP                   │ released │
 *     │                                                         │          ▼
 *     └──────────────── REST ◄── DROP ◄─────────────────────────┴───────  LED (until it is released)
 *
 * The key of the leader lives as long as a lease, which the store ends by its own clock. This process counts
 * the lease from before it asked for it, or for its renewal. So it stops to count on the lease before the
 * store gives the key to somebody else, if both clocks go at the same pace. No more depends on clocks: a
 * write is a transaction of the store, which compares when the writer's key was made.
 *
 * A request whose answer was lost may have been carried out. If it made the key, the key ends with its lease,
 * which is dropped. If it was a write, it is tried again: it is the same write. If nobody can tell what
 * became of it, this process steps down, since its rows may differ from those in the store.
 *
 * One order at a time: the caller carries it out and says what came of it. Pure; no allocation. */
#ifndef CAIRN_CORE_LEAD_H
#define CAIRN_CORE_LEAD_H

#include <stdbool.h>
#include <stdint.h>

enum lead_stage {
    CAIRN_LEAD_STANDS_BY = 0,
    CAIRN_LEAD_GRANTS, /* nobody leads: it asks for a lease */
    CAIRN_LEAD_MAKES,  /* it tries to make the key, which ends with the lease */
    CAIRN_LEAD_FAILED, /* the key is not made, or nobody knows: the lease is dropped */
    CAIRN_LEAD_WAITS,  /* before it looks again */
    CAIRN_LEAD_LEADS,  /* before it renews the lease */
    CAIRN_LEAD_RENEWS,
    CAIRN_LEAD_LED,      /* the lease has ended, and the store is open still */
    CAIRN_LEAD_DROPS,    /* the store is closed: others may lead */
    CAIRN_LEAD_RECOVERS, /* others may do what this process could not */
};

struct lead_term {
    uint64_t lease_ms; /* constant */
    enum lead_stage stage;
    bool is_released;    /* the store is closed, or never was opened */
    int64_t lease, made; /* the id of the lease; when the key was made */
    uint64_t began_ms,
        until_ms; /* of the request under way; when the lease ends, as this process knows */
};

enum lead_order_kind {
    CAIRN_LEAD_LOOK,  /* look whether the key is there */
    CAIRN_LEAD_GRANT, /* ask for a lease */
    CAIRN_LEAD_MAKE,  /* make the key with the lease, if it is not there */
    CAIRN_LEAD_RENEW, /* renew the lease */
    CAIRN_LEAD_DROP,  /* end the lease, and the key with it */
    /* wait so long, or until lead_ends or lead_release was called */
    CAIRN_LEAD_REST
};
struct lead_order {
    enum lead_order_kind kind;
    int64_t lease;
    uint64_t rest_ms;
};

/* The answer of the store. */
struct lead_answer {
    bool is_known; /* it has answered; else what was asked may have been done */
    bool is_led;   /* LOOK: the key is there */
    int64_t lease; /* GRANT */
    int64_t made;  /* MAKE: when the key was made; 0: it was there */
    bool is_alive; /* RENEW: the lease is renewed; else it has ended */
};

/* Returns what is to be done now. */
struct lead_order lead_next(struct lead_term *term, uint64_t now_ms);
/* Takes what came of the last order; the answer to a REST says nothing. */
void lead_hears(struct lead_term *term, const struct lead_answer *answer, uint64_t now_ms);

/* True if this process has the key, as far as it knows; the store may be open. */
static inline bool lead_leads(const struct lead_term *term)
{
    return term->stage == CAIRN_LEAD_LEADS || term->stage == CAIRN_LEAD_RENEWS;
}
/* True if there may be a lease of this process, which it drops when it ends. */
static inline bool lead_has_lease(const struct lead_term *term)
{
    return lead_leads(term) || term->stage == CAIRN_LEAD_MAKES ||
           term->stage == CAIRN_LEAD_FAILED || term->stage == CAIRN_LEAD_LED ||
           term->stage == CAIRN_LEAD_DROPS;
}
bool lead_may_write(const struct lead_term *term, uint64_t now_ms);
/* A write has found that another one leads, or that nobody can say so. */
void lead_ends(struct lead_term *term);
/* The store is closed. */
void lead_released(struct lead_term *term);

/* The outcome of an attempt to write. */
struct lead_written {
    bool is_answered;    /* the store has answered */
    bool is_leader;      /* .. that this process leads, and the write is done */
    bool is_unreachable; /* there was no answer, and another attempt may have one */
    bool may_be_done;    /* this attempt, or one before it, may have been carried out */
};
enum lead_verdict {
    CAIRN_LEAD_WRITTEN,
    CAIRN_LEAD_AGAIN,   /* the same write is tried again */
    CAIRN_LEAD_REFUSED, /* nothing was written, and this process goes on */
    CAIRN_LEAD_ENDS     /* lead_ends: this process steps down */
};
enum lead_verdict lead_judge(const struct lead_term *term, const struct lead_written *written,
                             uint64_t now_ms);

#endif
