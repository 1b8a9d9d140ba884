/* Several coordinators, their store in etcd, and which of them leads. The rules are the daemons'
 * (core/lead.h); etcd is simulated: conditional transactions, leases that end by its own clock, answers that
 * are lost though the request was carried out, requests that arrive late, times without a quorum. Rows are
 * changes with numbers, as in coordinator/lead.c: a leader reads all of them, and writes the next one.
 *
 * sim->coordinator is the newest process that has led; sim->former, a leader before it that does not know
 * yet. The former one goes on with what comes to it: it has the place of sim->coordinator until it has acted.
 *
 * What has to hold: never two that may write; no change that an operator heard was made is missing, and none
 * that he heard was not made is there; a change is written once; one leads soon after the last fault. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/lead.h"
#include "tests/sim/sim.h"

#define CANDIDATES_MAX 3
#define REQUESTS_MAX   512 /* that are remembered */
#define CHANGES_MAX    4096
#define LEASES_MAX     64    /* that are alive at a time */
#define AGAIN          MS(2) /* between two attempts to write */
#define BOUND(lease)   (4 * (lease))

enum request_kind { ASK, READ, WRITE };

struct request { /* to etcd */
    enum request_kind kind;
    uint32_t from;
    uint64_t serial; /* of the candidate's thread that waits for it */
    struct lead_order order;
    int64_t made;
    uint64_t number, change; /* WRITE: the number of the row, and who it is */
    struct store rows;
    bool is_refused; /* etcd is full */
    struct lead_answer answer;
    bool is_leader;
};

enum opening { CLOSED, READING, COUNTING, OPEN };

struct candidate { /* a coordinator's process */
    bool alive;
    uint64_t paused_until, cut_until;
    struct lead_term term;
    uint64_t asks; /* serial of the thread that renews the lease */
    /* the store's: */
    enum opening opening;
    uint64_t writes;         /* serial of the thread that writes */
    uint64_t next;           /* number of the next change */
    bool is_busy;            /* a change is being written */
    uint64_t change, note;   /* that change; note: it is an operator's, by a bit; 0: it is not */
    struct store view, rows; /* all rows as this process knows them; and with the change */
    bool may_be_done;
};

struct lease {
    int64_t id; /* 0: it has ended */
    uint64_t ends;
};

struct sim_leads {
    uint32_t count;
    struct candidate of[CANDIDATES_MAX];
    struct request requests[REQUESTS_MAX];
    uint64_t request_count, change_count;
    /* etcd */
    uint64_t down_until;
    int64_t revision, made, key_lease,
        lease_count; /* made: when the leader's key was; 0: there is none */
    struct lease leases[LEASES_MAX];
    struct store rows;
    uint64_t next, change[CHANGES_MAX]; /* by number */
    uint64_t done, undone;              /* bits of notes: so the operator heard */
    uint64_t note_count;
    uint64_t quiet_since; /* nothing has disturbed since then; 0: it does */
};

static void go(struct sim *sim, uint32_t i);
static void attempt(struct sim *sim, uint32_t i);

struct sim_leads *leads_open(void)
{
    return calloc(1, sizeof(struct sim_leads));
}

static uint64_t now_ms(const struct sim *sim)
{
    return sim->now / 1000;
}

/* ---- who may write ---- */

static void check_one(struct sim *sim)
{
    const struct sim_leads *leads = sim->leads;
    uint32_t count = 0;
    for (uint32_t i = 0; i < leads->count; i++)
        count += leads->of[i].alive && lead_may_write(&leads->of[i].term, now_ms(sim));
    if (count > 1) sim_fail(sim, "two coordinators may write to one store");
}

static void disturb(struct sim *sim, uint64_t until)
{
    if (until > sim->leads->quiet_since) sim->leads->quiet_since = until;
}

/* ---- etcd ---- */

static void end_leases(struct sim *sim)
{
    struct sim_leads *leads = sim->leads;
    if (sim->now < leads->down_until) return; // nobody can end one without a quorum
    for (uint32_t i = 0; i < LEASES_MAX; i++) {
        struct lease *lease = &leads->leases[i];
        if (lease->id == 0 || sim->now < lease->ends) continue;
        if (leads->key_lease == lease->id) leads->made = leads->key_lease = 0;
        lease->id = 0;
    }
}

/* NULL: it has ended. */
static struct lease *lease_of(struct sim *sim, int64_t id)
{
    struct lease *lease = &sim->leads->leases[id % LEASES_MAX];
    return id != 0 && lease->id == id ? lease : NULL;
}

static void answer_ask(struct sim *sim, struct request *r)
{
    struct sim_leads *leads = sim->leads;
    const uint64_t ends = sim->now + MS(sim->scenario.store_lease_ms);
    struct lease *lease = lease_of(sim, r->order.lease);
    switch (r->order.kind) {
    case CAIRN_LEAD_LOOK: r->answer.is_led = leads->made != 0; break;
    case CAIRN_LEAD_GRANT:
        r->answer.lease = ++leads->lease_count;
        leads->leases[r->answer.lease % LEASES_MAX] = (struct lease) { r->answer.lease, ends };
        break;
    case CAIRN_LEAD_MAKE:
        if (leads->made != 0 || lease == NULL) break;
        r->answer.made = leads->made = ++leads->revision;
        leads->key_lease = lease->id;
        break;
    case CAIRN_LEAD_RENEW:
        r->answer.is_alive = lease != NULL;
        if (lease != NULL) lease->ends = ends;
        break;
    case CAIRN_LEAD_DROP:
        if (lease != NULL) lease->ends = sim->now;
        end_leases(sim);
        break;
    case CAIRN_LEAD_REST: break;
    }
}

static void answer_write(struct sim *sim, struct request *r)
{
    struct sim_leads *leads = sim->leads;
    r->is_refused = !sim->healed && rng_chance(&sim->fault, sim->scenario.refused_write);
    if (r->is_refused) return;
    r->is_leader = leads->made != 0 && leads->made == r->made;
    if (!r->is_leader) sim->seen[SEEN_lead_stale]++;
    if (!r->is_leader || sim->failed) return;
    if (r->number > leads->next || r->number >= CHANGES_MAX) {
        sim_fail(sim, "change %" PRIu64 " is written, and the one before it is missing", r->number);
    } else if (r->number < leads->next) {
        if (leads->change[r->number] != r->change)
            sim_fail(sim, "change %" PRIu64 " is written twice, by two that say other things",
                     r->number);
        sim->seen[SEEN_lead_twice]++;
    } else {
        leads->change[leads->next++] = r->change;
        leads->rows = r->rows;
    }
}

static struct request *request_at(const struct sim *sim, uint64_t id)
{
    return &sim->leads->requests[id % REQUESTS_MAX];
}

/* It arrives. */
static void on_request(struct sim *sim, uint64_t id)
{
    struct sim_leads *leads = sim->leads;
    struct request *r = request_at(sim, id);
    const double delay = sim->scenario.control_delay;
    if (sim->now < leads->down_until || sim->now < leads->of[r->from].cut_until) return;
    end_leases(sim);
    if (r->kind == ASK) answer_ask(sim, r);
    if (r->kind == WRITE) answer_write(sim, r);
    if (r->kind == READ) {
        r->rows = leads->rows;
        r->number = leads->next;
    }
    r->answer.is_known = true;
    if (!sim->healed && rng_chance(&sim->fault, sim->scenario.lost_answer)) {
        sim->seen[SEEN_lead_lost]++;
        return;
    }
    sim_at(sim, rng_exponential(&sim->schedule, delay), E_ETCD_ANSWERS, r->from, r->kind, id);
}

/* Sends a request; it is answered, or else it was not in time. */
static struct request *send(struct sim *sim, uint32_t i, enum request_kind kind, uint64_t serial)
{
    struct sim_leads *leads = sim->leads;
    const uint64_t id = leads->request_count++;
    struct request *r = request_at(sim, id);
    const bool is_late = !sim->healed && rng_chance(&sim->fault, sim->scenario.lost_answer);
    const double delay = is_late ? 20000 : sim->scenario.control_delay;
    *r = (struct request) { .kind = kind, .from = i, .serial = serial };
    sim_at(sim, rng_exponential(&sim->schedule, delay), E_ETCD, i, kind, id);
    sim_at(sim, MS(leads->of[i].term.lease_ms / 4), E_ETCD_SILENT, i, kind, id);
    return r;
}

/* ---- the process ---- */

static bool is_current(const struct sim *sim, uint32_t i)
{
    return sim->coordinator.alive && sim->coordinator.candidate == i;
}

static bool is_former(const struct sim *sim, uint32_t i)
{
    return sim->former->alive && sim->former->candidate == i;
}

static void swap(struct sim *sim)
{
    struct coordinator other = *sim->former;
    uint32_t known = 0;
    for (uint32_t s = 0; s < SHARDS_MAX; s++) {
        known |= (uint32_t)sim->shards[s].known_up << s;
        sim->shards[s].known_up = (sim->former_knows >> s & 1) != 0;
    }
    *sim->former = sim->coordinator;
    sim->coordinator = other;
    sim->former_knows = known;
}

bool lead_is_former(const struct sim *sim)
{
    return sim->scenario.coordinators > 0 &&
           sim->leads->rows.incarnation > sim->coordinator.store.incarnation;
}

/* The process lets go of those that are connected to it. */
static void end_former(struct sim *sim)
{
    if (!sim->former->alive) return;
    swap(sim);
    coordinator_leave(sim);
    swap(sim);
}

/* Its store is closed. */
static void close_store(struct sim *sim, uint32_t i)
{
    struct candidate *c = &sim->leads->of[i];
    c->opening = CLOSED;
    c->writes++;
    c->is_busy = false;
    if (is_current(sim, i))
        coordinator_leave(sim);
    else if (is_former(sim, i))
        end_former(sim);
    lead_released(&c->term);
}

static void hurry(struct sim *sim, uint32_t i)
{
    struct candidate *c = &sim->leads->of[i];
    const bool rests = c->term.stage == CAIRN_LEAD_LEADS || c->term.stage == CAIRN_LEAD_LED;
    if (rests) sim_at(sim, 0, E_LEAD, i, 0, c->asks);
}

static void open_store(struct sim *sim, uint32_t i)
{
    struct candidate *c = &sim->leads->of[i];
    c->opening = READING;
    send(sim, i, READ, ++c->writes);
}

static void swap_memory(struct sim *sim)
{
    void *round = sim->round_memory, *move = sim->move_memory;
    sim->round_memory = sim->round_spare;
    sim->move_memory = sim->move_spare;
    sim->round_spare = round;
    sim->move_spare = move;
}

/* Another one that has led may be there still. Or this one has counted itself, was stopped until the next one
 * led, and knows nothing of that. */
static void begin_to_lead(struct sim *sim, uint32_t i)
{
    struct candidate *c = &sim->leads->of[i];
    const bool has_other = sim->coordinator.alive,
               is_late = has_other && sim->coordinator.store.incarnation > c->view.incarnation;
    c->opening = OPEN;
    if (has_other) {
        end_former(sim);
        sim->seen[is_late ? SEEN_lead_late : SEEN_lead_former]++;
        sim->former_knows = 0;
        swap(sim);
        swap_memory(sim);
    }
    sim->coordinator.persisting = false;
    sim->coordinator.candidate = i;
    sim->coordinator.store = c->view;
    sim->seen[SEEN_lead_leads]++;
    coordinator_start(sim);
    if (!is_late) return;
    swap(sim);
    swap_memory(sim);
}

static void hears(struct sim *sim, uint32_t i, const struct lead_answer *answer)
{
    struct candidate *c = &sim->leads->of[i];
    const enum lead_stage before = c->term.stage;
    c->asks++;
    lead_hears(&c->term, answer, now_ms(sim));
    sim_trace(sim, "candidate", i, before, c->term.stage);
    check_one(sim);
    if (before == CAIRN_LEAD_MAKES && c->term.stage == CAIRN_LEAD_LEADS) open_store(sim, i);
    if (before == CAIRN_LEAD_RENEWS && c->term.stage == CAIRN_LEAD_LED) {
        sim->seen[SEEN_lead_led]++;
        close_store(sim, i);
    }
    go(sim, i);
}

static void go(struct sim *sim, uint32_t i)
{
    struct candidate *c = &sim->leads->of[i];
    const struct lead_order order = lead_next(&c->term, now_ms(sim));
    if (order.kind == CAIRN_LEAD_REST)
        sim_at(sim, MS(order.rest_ms), E_LEAD, i, 0, c->asks);
    else
        send(sim, i, ASK, c->asks)->order = order;
}

/* ---- changes ---- */

static void begin_change(struct sim *sim, uint32_t i, const struct store *rows, uint64_t note)
{
    struct candidate *c = &sim->leads->of[i];
    c->is_busy = true;
    c->change = ++sim->leads->change_count;
    c->note = note;
    c->rows = *rows;
    c->rows.notes |= note;
    c->may_be_done = false;
    c->writes++;
    attempt(sim, i);
}

static void tell_operator(struct sim *sim, uint32_t i, enum lead_verdict verdict)
{
    struct sim_leads *leads = sim->leads;
    if (verdict == CAIRN_LEAD_WRITTEN) leads->done |= leads->of[i].note;
    if (verdict == CAIRN_LEAD_REFUSED) leads->undone |= leads->of[i].note;
}

static void ended(struct sim *sim, uint32_t i, enum lead_verdict verdict)
{
    struct candidate *c = &sim->leads->of[i];
    const bool is_note = c->note != 0;
    c->is_busy = false;
    tell_operator(sim, i, verdict);
    if (verdict == CAIRN_LEAD_ENDS) {
        sim->seen[SEEN_lead_unknown]++;
        lead_ends(&c->term);
        hurry(sim, i);
        return;
    }
    if (verdict == CAIRN_LEAD_WRITTEN) {
        c->next++;
        c->view = c->rows;
    }
    if (c->opening == COUNTING && verdict == CAIRN_LEAD_WRITTEN) {
        begin_to_lead(sim, i);
        return;
    }
    if (c->opening == COUNTING) { // refused: it cannot open its store, and lets others lead
        close_store(sim, i);
        hurry(sim, i);
        return;
    }
    struct coordinator *process = is_current(sim, i)  ? &sim->coordinator
                                  : is_former(sim, i) ? sim->former
                                                      : NULL;
    if (process == NULL || c->opening != OPEN) return;
    const bool is_persisted = !is_note && verdict == CAIRN_LEAD_WRITTEN &&
                              c->rows.epoch == process->persist_epoch;
    if (process->persisting && is_persisted)
        sim_at(sim, 0, E_PERSISTED, 0, 0, process->incarnation);
    else if (process->persisting)
        sim_at(sim, AGAIN, E_WRITE_AGAIN, i, 0, c->writes);
}

static void judge(struct sim *sim, uint32_t i, const struct lead_written *written)
{
    struct candidate *c = &sim->leads->of[i];
    const enum lead_verdict verdict = lead_judge(&c->term, written, now_ms(sim));
    if (verdict == CAIRN_LEAD_AGAIN)
        sim_at(sim, AGAIN, E_WRITE_AGAIN, i, 0, c->writes);
    else
        ended(sim, i, verdict);
}

static void attempt(struct sim *sim, uint32_t i)
{
    struct candidate *c = &sim->leads->of[i];
    if (!lead_may_write(&c->term, now_ms(sim))) {
        judge(sim, i, &(struct lead_written) { .is_unreachable = true });
        return;
    }
    struct request *r = send(sim, i, WRITE, ++c->writes);
    r->made = c->term.made;
    r->number = c->next;
    r->change = c->change;
    r->rows = c->rows;
}

void lead_persist(struct sim *sim)
{
    struct coordinator *process = &sim->coordinator;
    struct candidate *c = &sim->leads->of[process->candidate];
    if (c->is_busy || c->opening != OPEN) return; // it follows
    struct store rows = c->view;
    rows.epoch = process->persist_epoch;
    rows.reserved = process->persist_reserved;
    rows.layout = process->persist_layout;
    begin_change(sim, process->candidate, &rows, 0);
}

/* An operator wants a change, of whoever believes that it leads. */
static void on_note(struct sim *sim)
{
    struct sim_leads *leads = sim->leads;
    sim_at(sim, rng_exponential(&sim->schedule, 15000), E_NOTE, 0, 0, 0);
    const uint32_t i = (uint32_t)rng_below(&sim->schedule, leads->count);
    struct candidate *c = &leads->of[i];
    if (!c->alive || c->paused_until > sim->now || c->is_busy || c->opening != OPEN) return;
    if (leads->note_count == 64 || (!is_current(sim, i) && !is_former(sim, i))) return;
    const struct store rows = c->view;
    begin_change(sim, i, &rows, 1ull << leads->note_count++);
}

/* ---- answers ---- */

static void on_read(struct sim *sim, uint32_t i, const struct request *r)
{
    struct candidate *c = &sim->leads->of[i];
    if (!r->answer.is_known && lead_may_write(&c->term, now_ms(sim))) {
        send(sim, i, READ, ++c->writes);
        return;
    }
    if (!r->answer.is_known) {
        close_store(sim, i);
        hurry(sim, i);
        return;
    }
    struct store rows = r->rows;
    rows.incarnation++;
    c->opening = COUNTING;
    c->next = r->number;
    begin_change(sim, i, &rows, 0);
}

static void on_write(struct sim *sim, uint32_t i, const struct request *r)
{
    struct candidate *c = &sim->leads->of[i];
    const bool is_answered = r->answer.is_known && !r->is_refused;
    c->may_be_done = c->may_be_done || !r->answer.is_known;
    c->writes++;
    judge(sim, i,
          &(struct lead_written) { .is_answered = is_answered,
                                   .is_leader = is_answered && r->is_leader,
                                   .is_unreachable = !r->answer.is_known,
                                   .may_be_done = c->may_be_done });
}

static void on_answer(struct sim *sim, const struct event *event, bool is_silent)
{
    struct candidate *c = &sim->leads->of[event->a];
    struct request r = *request_at(sim, event->conn);
    if (r.from != event->a || !c->alive) return;
    if (r.serial != (r.kind == ASK ? c->asks : c->writes)) return; // too late
    if (is_silent) {
        r.answer = (struct lead_answer) { .is_known = false };
        r.is_refused = r.is_leader = false;
    }
    if (r.kind == ASK) hears(sim, event->a, &r.answer);
    if (r.kind == READ) on_read(sim, event->a, &r);
    if (r.kind == WRITE) on_write(sim, event->a, &r);
}

static void start_candidate(struct sim *sim, uint32_t i)
{
    struct candidate *c = &sim->leads->of[i];
    if (c->alive) return;
    const uint64_t asks = c->asks + 1, writes = c->writes + 1;
    *c = (struct candidate) { .alive = true,
                              .term = { .lease_ms = sim->scenario.store_lease_ms },
                              .asks = asks,
                              .writes = writes };
    go(sim, i);
}

static void on_write_again(struct sim *sim, uint32_t i)
{
    const struct candidate *c = &sim->leads->of[i];
    if (c->is_busy) {
        attempt(sim, i);
    } else if (is_current(sim, i) && sim->coordinator.persisting) {
        lead_persist(sim);
    } else if (is_former(sim, i) && sim->former->persisting) {
        swap(sim);
        lead_persist(sim);
        swap(sim);
    }
}

/* One leads soon; and what operators heard is so. */
static void check_rows(struct sim *sim)
{
    const struct sim_leads *leads = sim->leads;
    const uint64_t bound = BOUND(MS(sim->scenario.store_lease_ms));
    if (sim->healed && sim->now > leads->quiet_since + bound && !sim->coordinator.alive)
        sim_fail(sim, "no coordinator leads, %" PRIu64 " ms after the last fault", bound / 1000);
    if ((leads->done & ~leads->rows.notes) != 0)
        sim_fail(sim, "a change that an operator heard was made is missing");
    if ((leads->undone & leads->rows.notes) != 0)
        sim_fail(sim, "a change that an operator heard was not made is there");
}

void lead_event(struct sim *sim, const struct event *event)
{
    struct sim_leads *leads = sim->leads;
    check_rows(sim);
    if (event->kind == E_ETCD) {
        on_request(sim, event->conn);
        return;
    }
    if (event->kind == E_NOTE) {
        on_note(sim);
        return;
    }
    struct candidate *c = &leads->of[event->a];
    switch (event->kind) {
    case E_COORDINATOR_START: start_candidate(sim, event->a); return;
    case E_LEAD:
        if (c->alive && event->conn == c->asks) hears(sim, event->a, &(struct lead_answer) { 0 });
        return;
    case E_ETCD_ANSWERS: on_answer(sim, event, false); return;
    case E_ETCD_SILENT: on_answer(sim, event, true); return;
    case E_WRITE_AGAIN:
        if (c->alive && event->conn == c->writes) on_write_again(sim, event->a);
        return;
    default: return;
    }
}

/* ---- what comes to a process ---- */

static bool is_paused(const struct sim *sim, uint32_t i)
{
    return sim->leads->of[i].paused_until > sim->now;
}

/* To which process the event comes; 0: to none in particular. */
static uint64_t process_of(const struct sim *sim, const struct event *event)
{
    switch (event->kind) {
    case E_COORDINATOR_FROM_SHARD: return sim->shards[event->b].control.to;
    case E_COORDINATOR_FROM_WORKER: return sim->procs[event->b].control.to;
    case E_SHARD_DOWN: return sim->shards[event->a].control.to;
    case E_PERSISTED:
    case E_AMEND:
    case E_TICK: return event->conn;
    case E_LEASE:
    case E_PROBE_ENDS: return sim->coordinator.incarnation;
    default: return 0;
    }
}

bool lead_defers(struct sim *sim, struct event *event)
{
    if (sim->scenario.coordinators == 0) return false;
    uint64_t until = 0;
    const uint64_t process = process_of(sim, event);
    if (process != 0) {
        if (sim->coordinator.alive && process == sim->coordinator.incarnation)
            until = sim->leads->of[sim->coordinator.candidate].paused_until;
        else if (sim->former->alive && process == sim->former->incarnation)
            until = sim->leads->of[sim->former->candidate].paused_until;
    } else if (event->kind == E_LEAD || event->kind == E_ETCD_ANSWERS ||
               event->kind == E_ETCD_SILENT || event->kind == E_WRITE_AGAIN) {
        until = sim->leads->of[event->a].paused_until;
    }
    if (until <= sim->now) return false;
    sim_at(sim, until - sim->now, event->kind, event->a, event->b, event->conn)->message =
        event->message;
    event->message = NULL;
    return true;
}

bool lead_dispatch(struct sim *sim, const struct event *event)
{
    if (sim->scenario.coordinators == 0) return false;
    const uint64_t process = process_of(sim, event);
    if (process == 0 || (sim->coordinator.alive && process == sim->coordinator.incarnation))
        return false;
    const bool is_its = sim->former->alive && process == sim->former->incarnation &&
                        event->kind != E_AMEND;
    if (!is_its) return true;
    sim->seen[SEEN_lead_acts]++;
    swap(sim);
    coordinator_event(sim, event);
    swap(sim);
    return true;
}

/* Whom a shard or a worker finds: the leader, or one that believes that it is. 0: nobody. */
uint64_t lead_found(struct sim *sim)
{
    const struct coordinator *c = &sim->coordinator, *former = sim->former;
    if (sim->scenario.coordinators == 0) return c->alive ? c->incarnation : 0;
    const bool finds_former = former->alive && !is_paused(sim, former->candidate) &&
                              rng_chance(&sim->schedule, 0.3);
    if (finds_former) return former->incarnation;
    return c->alive && !is_paused(sim, c->candidate) ? c->incarnation : 0;
}

/* A peer has not heard its coordinator for too long. */
void lead_missed(struct sim *sim, const struct event *event)
{
    const bool is_shard = event->a != NOBODY;
    struct link *link = is_shard ? &sim->shards[event->a].control : &sim->procs[event->b].control;
    const struct coordinator *c = sim->coordinator.incarnation == link->to ? &sim->coordinator
                                                                           : sim->former;
    if (!link->up || link->id != event->conn || !is_paused(sim, c->candidate)) return;
    if (is_shard)
        shard_link_break(sim, event->a, NOTICE);
    else
        process_link_break(sim, event->b);
}

/* ---- faults ---- */

void lead_dies(struct sim *sim)
{
    const uint32_t i = sim->coordinator.candidate;
    struct candidate *c = &sim->leads->of[i];
    c->alive = false;
    c->asks++;
    c->writes++;
    disturb(sim, sim->now + MS(30));
    sim_at(sim, rng_exponential(&sim->schedule, 5000), E_COORDINATOR_START, i, 0, 0);
}

static void stop(struct sim *sim, uint32_t i, uint64_t for_us)
{
    struct candidate *c = &sim->leads->of[i];
    if (!c->alive || c->paused_until > sim->now) return;
    sim->seen[SEEN_lead_paused] += is_current(sim, i);
    c->paused_until = sim->now + for_us;
    disturb(sim, c->paused_until);
    const struct coordinator *process = is_current(sim, i)  ? &sim->coordinator
                                        : is_former(sim, i) ? sim->former
                                                            : NULL;
    if (process == NULL) return;
    for (uint32_t s = 0; s < sim->shard_count; s++)
        if (sim->shards[s].control.up && sim->shards[s].control.to == process->incarnation)
            sim_at(sim, LEASE / 2 + rng_exponential(&sim->schedule, LEASE), E_LEAD_MISSED, s, 0,
                   sim->shards[s].control.id);
    for (uint32_t p = 0; p < PROCS_MAX; p++)
        if (sim->procs[p].control.up && sim->procs[p].control.to == process->incarnation)
            sim_at(sim, LEASE / 2 + rng_exponential(&sim->schedule, LEASE), E_LEAD_MISSED, NOBODY,
                   p, sim->procs[p].control.id);
}

void lead_fault(struct sim *sim)
{
    struct sim_leads *leads = sim->leads;
    const uint64_t lease_us = MS(sim->scenario.store_lease_ms),
                   for_us = rng_exponential(&sim->fault, 1.5 * (double)lease_us);
    const bool is_leader = sim->coordinator.alive && rng_chance(&sim->fault, 0.7);
    const uint32_t i = is_leader ? sim->coordinator.candidate
                                 : (uint32_t)rng_below(&sim->fault, leads->count);
    const uint64_t kind = rng_below(&sim->fault, 5);
    // Mostly one after the other, or nobody leads for long.
    if (leads->quiet_since > sim->now && !rng_chance(&sim->fault, 0.2)) return;
    sim_trace(sim, "lead fault", kind, i, for_us);
    if (kind <= 1) stop(sim, i, for_us);
    if (kind == 2 || kind == 3) {
        sim->seen[SEEN_lead_cut]++;
        leads->of[i].cut_until = sim->now + for_us;
        disturb(sim, leads->of[i].cut_until);
    }
    if (kind == 4) {
        sim->seen[SEEN_lead_down]++;
        leads->down_until = sim->now + for_us;
        disturb(sim, leads->down_until);
        for (uint32_t k = 0; k < LEASES_MAX; k++) // a new quorum gives each lease its whole time
            leads->leases[k].ends = leads->down_until + lease_us;
    }
}

void lead_healed(struct sim *sim)
{
    disturb(sim, sim->now);
}

void lead_start(struct sim *sim)
{
    struct sim_leads *leads = sim->leads;
    memset(leads, 0, sizeof *leads);
    sim->former->alive = false;
    leads->count = sim->scenario.coordinators;
    leads->rows = sim->coordinator.store;
    for (uint32_t i = 0; i < leads->count; i++)
        sim_at(sim, rng_exponential(&sim->schedule, 3000), E_COORDINATOR_START, i, 0, 0);
    sim_at(sim, rng_exponential(&sim->schedule, 15000), E_NOTE, 0, 0, 0);
}
