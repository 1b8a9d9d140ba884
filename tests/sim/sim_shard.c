/* The shard's daemon: slots, sums and state in memory; receives, folds, sums and updates that take time. */
#include <string.h>

#include "tests/sim/sim.h"

static void do_event(struct sim *sim, uint32_t shard, const struct step_event *event,
                     const struct message *message);

void shard_start(struct sim *sim, uint32_t shard)
{
    struct sim_shard *s = shard_at(sim, shard);
    s->alive = true;
    s->layout = &sim->layouts[0];
    const struct step_config config = sim_step_config(sim, s->layout, shard);
    s->core = step_init(sim->step_memory[0][s->room], &config, (struct cairn_version) { 1, 0 },
                        NULL);
    s->noted_of = NULL;
    take_publish(sim, shard);
    log_start(sim, shard);
    sim_at(sim, rng_exponential(&sim->schedule, 500), E_CONTROL_RECONNECT, shard, NOBODY, 0);
}

void shard_connect(struct sim *sim, uint32_t shard)
{
    struct link *link = &shard_at(sim, shard)->control;
    if (link->up || !shard_at(sim, shard)->alive) return;
    if (sim->now < shard_at(sim, shard)->cut_until && !sim->healed) {
        sim_at(sim, shard_at(sim, shard)->cut_until - sim->now, E_CONTROL_RECONNECT, shard, NOBODY,
               0);
        return;
    }
    const uint64_t found = lead_found(sim);
    if (found == 0) {
        sim_at(sim, rng_exponential(&sim->schedule, 2000), E_CONTROL_RECONNECT, shard, NOBODY, 0);
        return;
    }
    link->id++;
    link->up = true;
    link->to = found;
    link->arrives[0] = link->arrives[1] = sim->now;
    struct sim_shard *s = shard_at(sim, shard);
    s->next = NULL; // what it says now has to stay true: who hears it says again what is in force
    struct message hello = { .kind = M_SHARD_HELLO, .member = s->life, .unknown = s->core != NULL };
    if (s->core != NULL && s->layout->before != NULL) { // and whether it is whole in it
        hello.layout = s->layout->id;
        hello.weight = s->lacks == 0;
    }
    sim_send_control(sim, link, 0, E_COORDINATOR_FROM_SHARD, 0, shard, &hello);
}

/* ---- arithmetic ---- */

/* The chunk of the model. */
static uint32_t chunk_of(const struct sim_shard *s, uint32_t local)
{
    return s->layout->chunk[PLACE(s->id)][local];
}

static uint32_t chunk_count(const struct sim_shard *s)
{
    return s->layout->count[PLACE(s->id)];
}

static void fold(struct sim *sim, struct sim_shard *s, uint32_t chunk)
{
    const struct step_action *action = &s->folds[chunk];
    struct fold_source sources[CAIRN_STEP_FOLD_MAX];
    for (uint32_t i = 0; i < action->count; i++) {
        sources[i] = (struct fold_source) { s->slots[action->slots[i]], CAIRN_F32 };
        landing_folded(sim, s->id, &s->landing[action->slots[i]]);
    }
    s->summed[chunk] = action->likely_last;
    if (!action->likely_last) {
        backend_host()->fold(s->acc[chunk], sources, action->count, action->first,
                             sim->scenario.elems[chunk_of(s, chunk)]);
        return;
    }
    const struct geometry g = chunk_geometry(sim, chunk_of(s, chunk));
    s->chunk_sums[chunk] = (struct sums) { 0 };
    backend_host()->fold_leaves(&(struct leaf_fold) { .acc = s->acc[chunk],
                                                      .sources = sources,
                                                      .source_count = action->count,
                                                      .first = action->first,
                                                      .geometry = &g,
                                                      .leaf_count = g.leaf_count,
                                                      .sums = &s->chunk_sums[chunk] });
}

/* The leaves of a chunk, or what its last fold made of them on the way. */
static void sum_chunk(struct sim *sim, struct sim_shard *s, uint32_t c, struct sums *sums)
{
    const struct geometry g = chunk_geometry(sim, chunk_of(s, c));
    if (!s->summed[c]) {
        backend_host()->sum_leaves(s->acc[c], &g, 0, g.leaf_count, sums);
        return;
    }
    if (exact_add(&sums->sum_squares, &s->chunk_sums[c].sum_squares) != CAIRN_OK)
        sim_fail(sim, "sums overflow");
    sums->nonfinite += s->chunk_sums[c].nonfinite;
}

static void sum(struct sim *sim, struct sim_shard *s, struct step_sums *out)
{
    struct sums sums;
    memset(&sums, 0, sizeof sums);
    for (uint32_t c = 0; c < chunk_count(s); c++) sum_chunk(sim, s, c, &sums);
    memset(out, 0, sizeof *out);
    out->sum_squares = sums.sum_squares;
    out->nonfinite = sums.nonfinite;
}

/* What the update of the chunk is made with; false: it is left alone. */
static bool read_scalars(struct sim *sim, const struct sim_shard *s, uint32_t chunk,
                         struct group_scalars *out)
{
    const uint32_t tensor = tensor_of(chunk);
    struct payload head;
    if (payload_decode(s->updating.payload, s->updating.payload_bytes, &head) != CAIRN_OK ||
        payload_group(s->updating.payload, s->updating.payload_bytes, tensor % GROUPS, out) !=
            CAIRN_OK) {
        sim_fail(sim, "the scalars of group %u are malformed", tensor % GROUPS);
        return false;
    }
    const uint32_t c = missed_class_of(&head.missed, tensor);
    if (c == CAIRN_MISSED_NONE) return true;
    const struct missed_class missed = missed_class_at(&head.missed, c);
    *out = missed_scalars(&missed, out);
    return (missed.flags & CAIRN_MISSED_THIS) == 0;
}

static void update(struct sim *sim, struct sim_shard *s)
{
    if (s->updating.kind == CAIRN_DECISION_WRITE) {
        for (uint32_t c = 0; c < chunk_count(s); c++) {
            const uint32_t chunk = chunk_of(s, c);
            (void)truth_write(sim, s->updating.round, chunk, s->param[chunk], s->m[chunk]);
        }
        return;
    }
    for (uint32_t c = 0; c < chunk_count(s); c++) {
        struct group_scalars scalars;
        const uint32_t chunk = chunk_of(s, c);
        if (!read_scalars(sim, s, chunk, &scalars)) continue;
        const struct update run = { .grad = s->acc[c],
                                    .param = s->param[chunk],
                                    .exp_avg = s->m[chunk],
                                    .exp_avg_sq = s->v[chunk],
                                    .elems = sim->scenario.elems[chunk] };
        backend_host()->update[scalars.optimizer](&run, &scalars);
    }
}

/* ---- what the core says ---- */

static void to_member(struct sim *sim, uint32_t shard, enum message_kind kind,
                      const struct step_action *action)
{
    struct message message = peer_answer(kind, action, shard, false);
    peer_send(sim, shard, &message);
}

static void refuse(struct sim *sim, uint32_t shard, const struct step_action *action,
                   const struct message *message)
{
    struct message answer = peer_answer(M_REFUSE, action, shard, false);
    if (action->status == CAIRN_ERR_BUSY) { // which is said of the message at once
        answer.in_place = message->in_place;
        answer.unreadable = message->unreadable;
        sim->seen[SEEN_unreadable] += message->unreadable;
    }
    peer_send(sim, shard, &answer);
}

/* Chunk by chunk: a tensor may be there twice. */
static void put_untouched(const struct sim *sim, const struct sim_shard *s, struct message *message)
{
    for (uint32_t c = 0; c < chunk_count(s); c++) {
        const uint32_t chunk = chunk_of(s, c);
        if (!s->untouched[c]) continue;
        message->untouched[message->untouched_count++] = (struct round_untouched) {
            .elems = sim->scenario.elems[chunk], .tensor = tensor_of(chunk)
        };
    }
}

static void to_coordinator(struct sim *sim, uint32_t shard, enum message_kind kind,
                           const struct step_action *action)
{
    struct message message = { .kind = kind,
                               .epoch = action->epoch,
                               .round = action->round,
                               .phase = action->phase,
                               .version = action->version,
                               .refused = action->refused,
                               .sums = action->sums };
    if (action->decision != NULL) message.decision = *action->decision;
    if (kind == M_REDUCED && sim->scenario.leaves_untouched)
        put_untouched(sim, shard_at(sim, shard), &message);
    if (kind == M_ANSWER && shard_at(sim, shard)->next != NULL && !action->refused) {
        take_hold(sim, shard, &message);
        return;
    }
    sim_send_control(sim, &shard_at(sim, shard)->control, 0, E_COORDINATOR_FROM_SHARD, 0, shard,
                     &message);
}

void shard_begin_update(struct sim *sim, uint32_t shard, const struct decision *decision)
{
    struct sim_shard *s = shard_at(sim, shard);
    oracle_executes(sim, shard, decision);
    standby_updates(sim, shard);
    s->updating = *decision;
    memcpy(s->updating_payload, decision->payload, decision->payload_bytes);
    s->updating.payload = s->updating_payload;
    sim_at(sim, rng_exponential(&sim->schedule, sim->scenario.work_delay), E_UPDATED, shard, 0, 0);
}

/* A skip has no work; the oracle hears of it when the shard says that it is done. */
static void see_skip(struct sim *sim, uint32_t shard)
{
    const struct decision *last = step_last(shard_at(sim, shard)->core);
    const struct oracle *o = &sim->oracle;
    if (shard_at(sim, shard)->joining) {
        shard_at(sim, shard)->joining = false;
        oracle_joins(sim, shard, last);
    }
    const uint32_t executed = shard_at(sim, shard)->executed;
    const bool known = (executed > 0 && o->ledger[executed - 1].round == last->round) ||
                       (last->round != 0 && shard_at(sim, shard)->standby.ahead == last->round);
    if (last->kind != CAIRN_DECISION_SKIP || known) return;
    oracle_executes(sim, shard, last);
    oracle_compare(sim, shard);
}

void shard_report_published(struct sim *sim, uint32_t shard, const struct step_action *action)
{
    see_skip(sim, shard);
    to_coordinator(sim, shard, M_PUBLISHED, action);
}

/* Into the slot's memory; or it stays where it is, and is there. */
static void receive(struct sim *sim, uint32_t shard, const struct step_action *action,
                    const struct message *message)
{
    struct sim_shard *s = shard_at(sim, shard);
    const struct step_config config = sim_step_config(sim, s->layout, shard);
    struct landing *landing = &s->landing[action->slot];
    const double delay = sim->scenario.receive_delay;
    *landing = landing_of(sim, shard, chunk_of(s, action->chunk), message);
    landing->in_place = action->slot % config.window >= config.window - config.in_place;
    if (landing->in_place != (message->in_place && !message->unreadable))
        sim_fail(sim, "shard %u has %s for chunk %u", shard,
                 landing->in_place ? "out of memory" : "memory too many", landing->chunk);
    if (landing->in_place) landing_view(sim, shard, landing, s->slots[action->slot]);
    sim_at(sim, landing->in_place ? 0 : rng_exponential(&sim->schedule, delay), E_LANDED, shard,
           action->slot, 0);
}

/* As kept_note of server/shard/kept.h. */
static void note(struct sim_shard *s)
{
    s->noted = step_keep(s->core);
    s->noted_of = s->core;
    if (s->noted.last.payload_bytes > 0)
        memcpy(s->noted_payload, s->noted.last.payload, s->noted.last.payload_bytes);
    s->noted.last.payload = s->noted_payload;
}

static bool tells(enum step_action_kind kind)
{
    return kind == CAIRN_STEP_REDUCED_REPORT || kind == CAIRN_STEP_UPDATE ||
           kind == CAIRN_STEP_PUBLISHED_REPORT || kind == CAIRN_STEP_ANSWER;
}

static void do_action(struct sim *sim, uint32_t shard, const struct step_action *action,
                      const struct message *message)
{
    struct sim_shard *s = shard_at(sim, shard);
    if (tells(action->kind)) note(s);
    const uint64_t work = rng_exponential(&sim->schedule, sim->scenario.work_delay);
    sim_trace(sim, step_action_name(action->kind), shard, action->round,
              (uint64_t)action->chunk << 32 | action->micro);
    switch (action->kind) {
    case CAIRN_STEP_GRANT: to_member(sim, shard, M_GRANT, action); return;
    case CAIRN_STEP_ACK: to_member(sim, shard, M_ACK, action); return;
    case CAIRN_STEP_MICRO_ACK: to_member(sim, shard, M_MICRO_ACK, action); return;
    case CAIRN_STEP_REFUSE:
        if (action->status == CAIRN_ERR_STALE) sim->seen[SEEN_refused_stale]++;
        if (action->status == CAIRN_ERR_FENCED) sim->seen[SEEN_refused_fenced]++;
        if (action->status == CAIRN_ERR_CHECKSUM) sim->seen[SEEN_refused_checksum]++;
        refuse(sim, shard, action, message);
        return;
    case CAIRN_STEP_RECEIVE: receive(sim, shard, action, message); return;
    case CAIRN_STEP_DISCARD: return;
    case CAIRN_STEP_FOLD:
        if (action->count > 1) sim->seen[SEEN_fold_many]++;
        s->folds[action->chunk] = *action;
        s->untouched[action->chunk] = false;
        sim_at(sim, work, E_FOLDED, shard, action->chunk, 0);
        return;
    case CAIRN_STEP_ZERO:
        if (s->standby.on) return; // it has the owner's
        sim->seen[SEEN_zero]++;
        memset(s->acc[action->chunk], 0, sizeof s->acc[action->chunk]);
        s->summed[action->chunk] = false;
        s->untouched[action->chunk] = true;
        return;
    case CAIRN_STEP_REDUCE: sim_at(sim, work, E_SUMMED, shard, 0, 0); return;
    case CAIRN_STEP_UPDATE:
        if (!log_takes_update(sim, shard, action->decision))
            shard_begin_update(sim, shard, action->decision);
        return;
    case CAIRN_STEP_REDUCED_REPORT: to_coordinator(sim, shard, M_REDUCED, action); return;
    case CAIRN_STEP_PUBLISHED_REPORT:
        if (!log_takes_skip(sim, shard, action)) shard_report_published(sim, shard, action);
        return;
    case CAIRN_STEP_ANSWER: to_coordinator(sim, shard, M_ANSWER, action); return;
    case CAIRN_STEP_FORWARD:
    case CAIRN_STEP_FORWARD_END:
    case CAIRN_STEP_FORWARD_COMMIT:
        sim_fail(sim, "shard %u forwards, and is no relay", shard);
        return;
    case CAIRN_STEP_FAULT: sim_fail(sim, "shard %u stops: %s", shard, action->why); return;
    }
}

/* ---- what was rare ---- */

static void see_chunk(struct sim *sim, const struct step_actions *actions)
{
    if (actions->count == 0 || actions->list[0].kind != CAIRN_STEP_DISCARD) return;
    if (actions->count == 1) sim->seen[SEEN_duplicate_waiting]++;
    if (actions->count > 1 && actions->list[1].kind == CAIRN_STEP_ACK)
        sim->seen[SEEN_duplicate_folded]++;
}

static void see_before(struct sim *sim, const struct sim_shard *s, const struct step_event *event)
{
    const enum step_phase phase = step_phase_of(s->core);
    if (event->kind == CAIRN_STEP_FENCE && phase == CAIRN_STEP_UPDATING)
        sim->seen[SEEN_carried_updating]++;
    if (event->kind == CAIRN_STEP_OPEN && phase == CAIRN_STEP_DRAINING)
        sim->seen[SEEN_open_pending]++;
    if (event->kind != CAIRN_STEP_MICRO_END && event->kind != CAIRN_STEP_COMMIT) return;
    if (event->round != step_round_of(s->core)) return;
    struct step_waiting waiting[PROCS_MAX];
    const size_t count = step_waiting(s->core, waiting, PROCS_MAX);
    for (size_t i = 0; i < count && i < PROCS_MAX; i++) {
        if (waiting[i].member != event->member) continue;
        const bool here = waiting[i].micro == event->micro;
        if (event->kind == CAIRN_STEP_MICRO_END && here && waiting[i].arrived < event->sent)
            sim->seen[SEEN_end_overtook]++;
        if (event->kind == CAIRN_STEP_COMMIT && here && !waiting[i].ended)
            sim->seen[SEEN_commit_overtook]++;
    }
}

/* A fold of what a member of a lower rank might still have to be waited for, if it held the chunk. */
static void see_fold(struct sim *sim, const struct sim_shard *s, const struct step_action *fold)
{
    const uint32_t slot = fold->slots[0], chunk = s->landing[slot].chunk;
    struct step_waiting waiting[PROCS_MAX];
    const size_t count = step_waiting(s->core, waiting, PROCS_MAX);
    for (size_t i = 0; i < count && waiting[i].member != s->landing[slot].member; i++) {
        if (waiting[i].ended || waiting[i].micro > s->landing[slot].micro) continue;
        if (!oracle_holds(sim, step_round_of(s->core), waiting[i].member, chunk))
            sim->seen[SEEN_unheld]++;
    }
}

static void see_after(struct sim *sim, const struct sim_shard *s, const struct step_event *event,
                      enum step_phase before, const struct step_actions *actions)
{
    const enum step_phase phase = step_phase_of(s->core);
    if (event->kind == CAIRN_STEP_CHUNK) see_chunk(sim, actions);
    for (size_t i = 0; i < actions->count; i++)
        if (actions->list[i].kind == CAIRN_STEP_FOLD) see_fold(sim, s, &actions->list[i]);
    if (event->kind == CAIRN_STEP_FENCE && phase == CAIRN_STEP_DRAINING &&
        before != CAIRN_STEP_DRAINING)
        sim->seen[SEEN_drained]++;
    if (event->kind == CAIRN_STEP_RESOLVE && before == CAIRN_STEP_REDUCED) {
        const bool kept = step_round_of(s->core) != 0;
        if (phase == CAIRN_STEP_UPDATING)
            sim->seen[step_last(s->core)->kind == CAIRN_DECISION_WRITE ? SEEN_carried_write
                                                                       : SEEN_carried_apply]++;
        else
            sim->seen[kept ? SEEN_carried_skip : SEEN_prepared_void]++;
    }
    if (event->kind == CAIRN_STEP_PEER_UP && actions->count == 0 &&
        phase == CAIRN_STEP_COLLECTING && step_slots_used(s->core) > 0)
        sim->seen[SEEN_regrant_delayed]++;
}

static void do_event(struct sim *sim, uint32_t shard, const struct step_event *event,
                     const struct message *message)
{
    struct sim_shard *s = shard_at(sim, shard);
    const struct step_config config = sim_step_config(sim, s->layout, shard);
    struct step_actions actions = { sim->step_list, 0, step_actions_max(&config) };
    const enum step_phase before = step_phase_of(s->core);
    see_before(sim, s, event);
    step_on_event(s->core, event, &actions);
    see_after(sim, s, event, before, &actions);
    for (size_t i = 0; i < actions.count; i++) do_action(sim, shard, &actions.list[i], message);
}

/* ---- what comes in ---- */

void shard_core_event(struct sim *sim, uint32_t shard, const struct step_event *event)
{
    do_event(sim, shard, event, NULL);
}

void core_lacks(const struct step_machine *core, bool relayed, struct message *out)
{
    struct step_waiting waiting[PROCS_MAX];
    const size_t count = step_waiting(core, waiting, PROCS_MAX);
    for (size_t i = 0; i < count; i++)
        out->lacks[out->lack_count++] = (struct round_lack) { .member = waiting[i].member,
                                                              .micro = waiting[i].micro,
                                                              .waits = waiting[i].waits,
                                                              .relayed = relayed };
}

static void tell_lacks(struct sim *sim, uint32_t shard, const struct message *message)
{
    struct sim_shard *s = shard_at(sim, shard);
    struct message lacks = { .kind = M_LACKS, .epoch = message->epoch, .round = message->round };
    if (step_round_of(s->core) == message->round) core_lacks(s->core, false, &lacks);
    relay_lacks(sim, shard, message->round, &lacks);
    sim_send_control(sim, &s->control, 0, E_COORDINATOR_FROM_SHARD, 0, shard, &lacks);
}

static void of_seat(struct sim *sim, uint32_t shard, const struct message *message)
{
    const struct message alive = { .kind = M_ALIVE };
    if (message->kind == M_PROBE)
        sim_send_control(sim, &shard_at(sim, shard)->control, 0, E_COORDINATOR_FROM_SHARD, 0, shard,
                         &alive);
    else
        shard_link_break(sim, shard, NOTICE); // it connects again
}

/* True if the message was meant for the process before. It was sent before the coordinator heard of this
 * one, to which it says a fence before anything else; the connection's number tells that to the real ones. */
static bool is_of_the_dead(struct sim_shard *s, const struct message *message)
{
    if (message->kind == M_FENCE) s->unfenced = false;
    return s->unfenced && (message->kind == M_RESOLVE || message->kind == M_OPEN ||
                           message->kind == M_DECIDE || message->kind == M_PIN);
}

static void from_coordinator(struct sim *sim, uint32_t shard, const struct message *message)
{
    uint8_t holds[HOLDS_MAX];
    struct step_event event = { .epoch = message->epoch,
                                .round = message->round,
                                .version = message->version,
                                .decision = &message->decision,
                                .members = message->members,
                                .member_count = message->member_count };
    if (message->kind >= M_MIRROR_MAKE) {
        standby_message(sim, shard, message);
        return;
    }
    if (sim->scenario.standbys && shard_at(sim, shard)->core == NULL &&
        PLACE(shard) < sim->scenario.shards)
        return; // it has no part
    if (message->kind >= M_JOIN) {
        take_message(sim, shard, message);
        return;
    }
    if (is_of_the_dead(shard_at(sim, shard), message)) return;
    store_heard(sim, shard, message);
    switch (message->kind) {
    case M_FENCE:
        event.kind = CAIRN_STEP_FENCE;
        if (shard < OTHER) take_fence(sim, shard, message);
        break;
    case M_RESOLVE: event.kind = CAIRN_STEP_RESOLVE; break;
    case M_OPEN:
        event.kind = CAIRN_STEP_OPEN;
        if (shard >= OTHER) break; // its one member holds all
        event.holds = fill_holds(sim, shard_at(sim, shard)->layout, shard, message->round,
                                 message->members, message->member_count, holds);
        break;
    case M_DECIDE: event.kind = CAIRN_STEP_DECIDE; break;
    case M_PIN: oracle_pinned(sim, shard, message); return;
    case M_ASK_LACKS: tell_lacks(sim, shard, message); return;
    case M_PROBE:
    case M_COME_AGAIN:
    case M_END: of_seat(sim, shard, message); return;
    default: sim_fail(sim, "a shard got message %d", (int)message->kind); return;
    }
    do_event(sim, shard, &event, message);
    relay_from_coordinator(sim, shard, message);
    if (message->kind == M_RESOLVE) take_resolved(sim, shard);
}

/* The list of what a micro-batch has nothing of was damaged on its way: the end is to be sent again. */
static bool end_is_damaged(struct sim *sim, uint32_t shard, const struct message *message)
{
    if (message->kind != M_MICRO_END || sim->healed) return false;
    if (!rng_chance(&sim->fault, sim->scenario.corrupt)) return false;
    struct message nak = { .kind = M_REFUSE,
                           .status = CAIRN_ERR_CHECKSUM,
                           .epoch = message->epoch,
                           .round = message->round,
                           .member = message->member,
                           .micro = message->micro,
                           .chunk = CAIRN_STEP_NO_CHUNK,
                           .owner = message->owner,
                           .relayed = message->relayed };
    sim->seen[SEEN_end_damaged]++;
    peer_send(sim, shard, &nak);
    return true;
}

static void from_worker(struct sim *sim, uint32_t shard, const struct event *in)
{
    const struct message *message = in->message;
    if (message->kind == M_HELLO) {
        peer_hello(sim, shard, in->b, message->member, in->conn);
        return;
    }
    const struct peer *peer = &shard_at(sim, shard)->peers[in->b];
    if (!peer->up || peer->conn != in->conn) {
        // It overtook the connection's HELLO: a fabric delivers nothing before that.
        sim_fail(sim, "shard %u got a message of a peer that it does not know", shard);
        return;
    }
    if (shard_at(sim, shard)->core == NULL && sim->scenario.standbys) return;
    if (end_is_damaged(sim, shard, message)) return;
    if (message->relayed) {
        relay_from_worker(sim, shard, in);
        return;
    }
    struct step_event event = peer_event_of(message, in->order);
    event.is_readable = message->in_place && peer_reads(sim, shard, in);
    in->message->unreadable = message->in_place && !event.is_readable;
    do_event(sim, shard, &event, message);
}

/* Somebody who is no contributor, or was never a member, says anything at all: it may change nothing. */
/* A coordinator whose store is an older copy fences: it hears what the shard has seen, and that is all. */
static void stale_fence(struct sim *sim, uint32_t shard)
{
    struct step_machine *core = shard_at(sim, shard)->core;
    const struct step_config config = sim_step_config(sim, shard_at(sim, shard)->layout, shard);
    struct step_actions actions = { sim->step_list, 0, step_actions_max(&config) };
    const uint64_t epoch = step_epoch(core);
    const struct step_event event = { .kind = CAIRN_STEP_FENCE,
                                      .epoch = epoch - rng_below(&sim->fault, 2) };
    if (epoch == 0) return;
    step_on_event(core, &event, &actions);
    const bool told = actions.count == 1 && actions.list[0].kind == CAIRN_STEP_ANSWER &&
                      actions.list[0].refused && actions.list[0].epoch == epoch;
    if (!told) sim_fail(sim, "shard %u obeyed a fence that it was past", shard);
    sim->seen[SEEN_stale_fence]++;
}

void shard_garbage(struct sim *sim, uint32_t shard)
{
    if (shard_at(sim, shard)->core == NULL) return;
    if (rng_chance(&sim->fault, 0.2)) {
        stale_fence(sim, shard);
        return;
    }
    static const enum step_event_kind kinds[] = { CAIRN_STEP_CHUNK, CAIRN_STEP_MICRO_END,
                                                  CAIRN_STEP_COMMIT };
    struct rng *rng = &sim->fault;
    const struct step_machine *core = shard_at(sim, shard)->core;
    const struct step_event event = {
        .kind = kinds[rng_below(rng, 3)],
        .epoch = step_epoch(core) + rng_below(rng, 3) - 1,
        .round = step_round_of(core) + (rng_chance(rng, 0.3) ? rng_below(rng, 3) - 1 : 0),
        .member = rng_below(rng, 1000) * 16 + 15, // no process has such a number
        .micro = (uint32_t)rng_below(rng, 3),
        .chunk = (uint32_t)rng_below(rng, CHUNKS_MAX),
        .sent = (uint32_t)rng_below(rng, CHUNKS_MAX),
        .weight = rng_next(rng),
    };
    const enum step_phase phase = step_phase_of(core);
    const uint32_t used = step_slots_used(core);
    do_event(sim, shard, &event, NULL);
    if (step_phase_of(core) != phase || step_slots_used(core) != used)
        sim_fail(sim, "shard %u did something for a stranger", shard);
    relay_garbage(sim, shard, &event);
}

/* ---- it dies under a keeper ---- */

bool shard_is_keeping(const struct sim *sim)
{
    return sim->scenario.weight[15] > 0 && sim->scenario.hosts == 0; // a relay would die, too
}

/* True if its memory is enough to go on with: server/shard/kept.h. */
static bool is_kept(const struct sim *sim, const struct sim_shard *s)
{
    if (s->core == NULL || !shard_is_keeping(sim) || s->standby.on) return false;
    const struct step_kept kept = s->noted_of == s->core ? s->noted : step_keep(s->core);
    if (kept.phase == CAIRN_STEP_UPDATING && kept.last.kind == CAIRN_DECISION_WRITE) return false;
    return kept.phase != CAIRN_STEP_JOINING && take_may_die(sim, s->id);
}

static void see_kept(struct sim *sim, const struct sim_shard *s, const struct step_kept *kept)
{
    const enum step_phase phase = step_phase_of(s->core);
    if (kept->phase == CAIRN_STEP_UPDATING)
        sim->seen[SEEN_kept_cut]++;
    else if (kept->phase == CAIRN_STEP_REDUCED)
        sim->seen[SEEN_kept_reduced]++;
    else
        sim->seen[phase == CAIRN_STEP_IDLE ? SEEN_kept_idle : SEEN_kept_void]++;
}

void shard_dies(struct sim *sim, uint32_t shard)
{
    struct sim_shard *s = shard_at(sim, shard);
    sim_forget_work(sim, shard);
    for (uint32_t p = 0; p < PROCS_MAX; p++) fabric_break(sim, shard, p);
    memset(s->peers, 0, sizeof s->peers);
    s->endpoints = 0;
}

void shard_comes_again(struct sim *sim, uint32_t shard, const struct step_kept *kept)
{
    struct sim_shard *s = shard_at(sim, shard);
    const struct step_config config = sim_step_config(sim, s->layout, shard);
    s->core_place = 1 - s->core_place;
    s->core = step_init_kept(sim->step_memory[s->core_place][s->room], &config, kept);
    note(s);
    if (step_epoch(s->core) != kept->epoch || step_round_seen(s->core) != kept->round_seen)
        sim_fail(sim, "shard %u would obey a coordinator that it is past", shard);
    shard_link_break(sim, shard, NOTICE);
    s->unfenced = true;
    s->life = ++sim->starts;
    s->control.drains_until = 0; // what came over it died with the process
}

void shard_update_again(struct sim *sim, uint32_t shard, const struct decision *decision)
{
    struct sim_shard *s = shard_at(sim, shard);
    s->updating = *decision;
    update(sim, s);
    take_updated(sim, shard);
}

void shard_kill_kept(struct sim *sim, uint32_t shard)
{
    struct sim_shard *s = shard_at(sim, shard);
    uint8_t payload[PAYLOAD_MAX];
    if (!is_kept(sim, s)) return;
    if (s->noted_of != s->core) note(s);
    struct step_kept kept = s->noted;
    if (kept.last.payload_bytes > 0) memcpy(payload, kept.last.payload, kept.last.payload_bytes);
    kept.last.payload = payload;
    sim_trace(sim, "shard dies, and is kept", shard, kept.phase, kept.round);
    see_kept(sim, s, &kept);
    shard_dies(sim, shard);
    if (kept.phase == CAIRN_STEP_UPDATING) {
        s->publish_asked = false; // the answer goes nowhere
        update(sim, s);
        oracle_compare(sim, shard);
        take_updated(sim, shard);
    }
    take_dies(sim, shard);
    shard_comes_again(sim, shard, &kept);
}

static void landed(struct sim *sim, uint32_t shard, uint32_t slot)
{
    struct sim_shard *s = shard_at(sim, shard);
    const struct step_event event = {
        .kind = CAIRN_STEP_LANDED,
        .slot = slot,
        .status = landing_read(sim, shard, &s->landing[slot], s->slots[slot]),
    };
    do_event(sim, shard, &event, NULL);
}

static void do_shard_event(struct sim *sim, const struct event *in)
{
    struct sim_shard *s = shard_at(sim, in->a);
    struct step_event event = { .chunk = in->b };
    struct step_sums sums;
    switch (in->kind) {
    case E_SHARD_FROM_COORDINATOR: from_coordinator(sim, in->a, in->message); return;
    case E_SHARD_FROM_WORKER: from_worker(sim, in->a, in); return;
    case E_LANDED: landed(sim, in->a, in->b); return;
    case E_LOGGED:
    case E_LOG_BASE: log_event(sim, in); return;
    case E_ENDPOINT_DOWN: peer_endpoint_down(sim, in->a, in->b, in->conn); return;
    case E_PEER_DOWN: peer_down(sim, in->a, in->b, in->conn); return;
    case E_RELAY_LANDED:
    case E_RELAY_FOLDED: relay_work_event(sim, in); return;
    case E_RELAY_TICK: relay_tick(sim, in->a); return;
    case E_FOLDED:
        fold(sim, s, in->b);
        event.kind = CAIRN_STEP_FOLDED;
        break;
    case E_SUMMED:
        sum(sim, s, &sums);
        if (log_takes_round(sim, in->a, &sums)) return;
        event.kind = CAIRN_STEP_SUMMED;
        event.sums = &sums;
        break;
    case E_UPDATED:
        update(sim, s);
        oracle_compare(sim, in->a);
        take_updated(sim, in->a);
        event.kind = CAIRN_STEP_UPDATED;
        break;
    default: return;
    }
    do_event(sim, in->a, &event, NULL);
    if (event.kind == CAIRN_STEP_UPDATED) {
        note(shard_at(sim, in->a));
        log_updated(sim, in->a);
    }
}

void shard_event(struct sim *sim, const struct event *in)
{
    if (!shard_at(sim, in->a)->alive) return;
    do_shard_event(sim, in);
    if (shard_at(sim, in->a)->next != NULL) take_advance(sim, in->a);
}
