/* A shard while the layout of the job changes: it prepares a layout, goes over to it when a fence brings it
 * and nothing is in flight, takes the state of what is new to it from the shards that owned that before, and
 * keeps what it gave until all are whole. Its copies of versions show what it owned when it wrote them. */
#include <inttypes.h>
#include <string.h>

#include "tests/sim/sim.h"

static bool has_bit(uint32_t bits, uint32_t chunk)
{
    return (bits >> chunk & 1) != 0;
}

static void say(struct sim *sim, uint32_t shard, enum message_kind kind, uint32_t layout,
                cairn_status status)
{
    const struct message message = { .kind = kind, .layout = layout, .status = status };
    sim_send_control(sim, &shard_at(sim, shard)->control, 0, E_COORDINATOR_FROM_SHARD, 0, shard,
                     &message);
}

/* ---- copies of versions ---- */

/* Into the older of its two. */
static void write_copy(struct sim *sim, uint32_t shard, struct cairn_version version)
{
    struct sim_shard *s = shard_at(sim, shard);
    s->newest_copy ^= 1;
    struct sim_copy *copy = &s->copies[s->newest_copy];
    copy->version = version;
    copy->layout = s->layout;
    copy->chunks = 0;
    for (uint32_t i = 0; i < s->layout->count[PLACE(shard)]; i++) {
        const uint32_t chunk = s->layout->chunk[PLACE(shard)][i];
        copy->chunks |= 1u << chunk;
        memcpy(copy->param[chunk], s->param[chunk], sizeof copy->param[chunk]);
    }
}

/* Once: the other copy is of the layout before, and clients may not have heard yet. */
void take_publish(struct sim *sim, uint32_t shard)
{
    const struct sim_shard *s = shard_at(sim, shard);
    const struct cairn_version version = step_version(s->core);
    const struct sim_copy *newest = &s->copies[s->newest_copy];
    if (version_compare(newest->version, version) == 0 && newest->layout == s->layout) return;
    write_copy(sim, shard, version);
}

void take_updated(struct sim *sim, uint32_t shard)
{
    struct sim_shard *s = shard_at(sim, shard);
    if (s->lacks != 0) sim_fail(sim, "shard %u updates what it has not", shard);
    for (uint32_t i = 0; i < s->layout->count[PLACE(shard)]; i++)
        s->state_at[s->layout->chunk[PLACE(shard)][i]] = s->updating.version_after;
    write_copy(sim, shard, s->updating.version_after);
    if (s->publish_asked) say(sim, shard, M_PUBLISHED_ANEW, s->layout->id, CAIRN_OK);
    s->publish_asked = false;
}

/* Both copies may be of the newest version, when it was not published anew everywhere before the layout
 * changed again: the one that clients fetch stays. */
static void keep_copy(struct sim_shard *s, const struct sim_layout *served)
{
    const struct sim_copy *newest = &s->copies[s->newest_copy];
    const struct sim_copy *other = &s->copies[s->newest_copy ^ 1];
    const bool same = version_compare(newest->version, other->version) == 0;
    if (same && newest->layout != s->layout && other->layout == served) s->newest_copy ^= 1;
}

static void on_publish(struct sim *sim, uint32_t shard, const struct message *message)
{
    struct sim_shard *s = shard_at(sim, shard);
    if (s->layout->id != message->layout || s->lacks != 0) return;
    s->publish_asked = step_phase_of(s->core) == CAIRN_STEP_UPDATING;
    if (s->publish_asked) return;
    keep_copy(s, &sim->layouts[message->sent]);
    take_publish(sim, shard);
    say(sim, shard, M_PUBLISHED_ANEW, s->layout->id, CAIRN_OK);
}

static const struct sim_copy *find_copy(const struct sim_shard *s, uint32_t chunk,
                                        struct cairn_version version)
{
    for (uint32_t i = 0; i < 2; i++)
        if (has_bit(s->copies[i].chunks, chunk) &&
            version_compare(s->copies[i].version, version) == 0)
            return &s->copies[i];
    return NULL;
}

void take_fetch(struct sim *sim, const struct sim_layout *layout, uint32_t chunk,
                struct cairn_version version)
{
    const struct oracle *o = &sim->oracle;
    const struct cairn_version newest = { o->generation, o->step };
    const struct sim_shard *s = &sim->shards[layout->owner[chunk]];
    if (version_compare(version, newest) != 0) return; // the round is over
    if (standby_is_awaited(sim, layout->owner[chunk])) return;
    if (layout != o->layout) sim->seen[SEEN_fetched_before]++;
    const struct sim_copy *copy = s->alive ? find_copy(s, chunk, version) : NULL;
    if (copy == NULL)
        sim_fail(sim,
                 "shard %u has no copy of chunk %u at step %" PRIu64 "; layout %" PRIu64 " says so",
                 layout->owner[chunk], chunk, version.step, layout->number);
    else if (memcmp(copy->param[chunk], o->param[chunk],
                    sim->scenario.elems[chunk] * sizeof(float)) != 0)
        sim_fail(sim, "shard %u gives other bits of chunk %u than those of step %" PRIu64,
                 layout->owner[chunk], chunk, version.step);
}

/* ---- before the layout is in force ---- */

static void on_join(struct sim *sim, uint32_t shard, const struct message *message)
{
    struct sim_shard *s = shard_at(sim, shard);
    if (s->core != NULL && step_phase_of(s->core) != CAIRN_STEP_JOINING) return;
    s->layout = &sim->layouts[message->layout];
    s->prepared = s->next = s->before = NULL;
    s->awaits_settled = false;
    s->joining = true;
    struct step_config config = sim_step_config(sim, s->layout, shard);
    config.joins = true;
    s->core = step_init(sim->step_memory[s->core_place][s->room], &config,
                        (struct cairn_version) { 1, 0 }, NULL);
    s->noted_of = NULL;
    if (sim->scenario.hosts > 0) relay_start(sim, shard);
}

static void on_prepare(struct sim *sim, uint32_t shard, const struct message *message)
{
    struct sim_shard *s = shard_at(sim, shard);
    const struct sim_layout *layout = &sim->layouts[message->layout];
    if (s->core == NULL || layout->number <= s->layout->number) return;
    const bool stays = memcmp(layout->owner, s->layout->owner, sizeof layout->owner) == 0;
    if (s->prepared != NULL && s->unfenced && !stays) { // the fence to come may bring that one
        say(sim, shard, M_PREPARED, layout->id, CAIRN_ERR_BUSY);
        return;
    }
    const bool refuses = !sim->healed && !layout->back && rng_chance(&sim->fault, 0.03);
    s->prepared = refuses ? NULL : layout;
    s->prepared_by = s->obeyed.process;
    say(sim, shard, M_PREPARED, layout->id, refuses ? CAIRN_ERR_NO_MEMORY : CAIRN_OK);
}

static void on_unprepare(struct sim *sim, uint32_t shard, const struct message *message)
{
    struct sim_shard *s = shard_at(sim, shard);
    if (s->prepared == NULL || s->prepared->id != message->layout || s->next != NULL) return;
    s->prepared = NULL;
}

/* ---- the fence that brings it ---- */

/* Every chunk stays where it is: a round that it is prepared for, too. */
static void take_number(struct sim *sim, uint32_t shard)
{
    struct sim_shard *s = shard_at(sim, shard);
    const struct sim_layout *before = s->layout, *layout = s->prepared;
    if (memcmp(before->owner, layout->owner, sizeof layout->owner) != 0 || s->lacks != 0)
        sim_fail(sim, "shard %u goes over to a layout that has more than one shard less", shard);
    oracle_recut(sim, shard, layout);
    s->layout = sim->relays[shard].layout = layout;
    s->prepared = s->next = NULL;
    for (uint32_t i = 0; i < 2; i++)
        if (s->copies[i].layout == before) s->copies[i].layout = layout;
}

void take_fence(struct sim *sim, uint32_t shard, const struct message *message)
{
    struct sim_shard *s = shard_at(sim, shard);
    if (message->epoch <= step_epoch(s->core)) return; // it is refused
    if (message->layout == s->layout->number) {
        // What another coordinator had it prepare never came into force. This one's may.
        if (s->prepared_by != s->obeyed.process) s->prepared = NULL;
        s->next = NULL;
        return;
    }
    if (s->prepared == NULL || s->prepared->number != message->layout) {
        sim_fail(sim, "shard %u is fenced with layout %u, which it is not prepared for", shard,
                 message->layout);
        return;
    }
    // One that died before its last layout was settled goes over from the one before.
    const bool stays = memcmp(s->prepared->owner, s->layout->owner, sizeof s->layout->owner) == 0;
    if (s->prepared->empty && stays) {
        take_number(sim, shard);
        return;
    }
    s->next = s->prepared;
    const enum step_phase phase = step_phase_of(s->core);
    const bool at_rest = phase == CAIRN_STEP_IDLE || phase == CAIRN_STEP_DRAINING ||
                         phase == CAIRN_STEP_JOINING;
    if (!at_rest && !s->next->back)
        sim_fail(sim, "another layout comes while shard %u has a round open", shard);
    if (!relay_idle(sim, shard) || phase == CAIRN_STEP_DRAINING) sim->seen[SEEN_recut_drains]++;
}

void take_hold(struct sim *sim, uint32_t shard, const struct message *answer)
{
    struct message *held = &shard_at(sim, shard)->held;
    *held = *answer;
    if (answer->decision.payload_bytes > 0)
        memcpy(held->payload, answer->decision.payload, answer->decision.payload_bytes);
}

static bool may_go_over(const struct sim *sim, uint32_t shard)
{
    const struct sim_shard *s = shard_at(sim, shard);
    const enum step_phase phase = step_phase_of(s->core);
    const bool given_up = phase == CAIRN_STEP_REDUCED && s->next->back;
    return (phase == CAIRN_STEP_IDLE || phase == CAIRN_STEP_JOINING || given_up) &&
           relay_idle(sim, shard);
}

/* What is new to it; what it gave once, and nobody forgot, is not. */
static void find_lacks(struct sim *sim, uint32_t shard)
{
    struct sim_shard *s = shard_at(sim, shard);
    const struct cairn_version version = step_version(s->core);
    s->lacks = 0;
    for (uint32_t i = 0; i < s->layout->count[PLACE(shard)]; i++) {
        const uint32_t chunk = s->layout->chunk[PLACE(shard)][i];
        if (has_bit(s->has, chunk) && version_compare(s->state_at[chunk], version) == 0) continue;
        s->lacks |= 1u << chunk;
        s->has &= ~(1u << chunk);
    }
    if (s->lacks != 0 && s->layout->back)
        sim_fail(
            sim,
            "shard %u lacks what it had before a slice that was taken back (%x of %x, step %" PRIu64
            ")",
            shard, s->lacks, s->has, version.step);
}

void take_advance(struct sim *sim, uint32_t shard)
{
    struct sim_shard *s = shard_at(sim, shard);
    if (s->next == NULL || !may_go_over(sim, shard)) return;
    const struct step_config config = sim_step_config(sim, s->next, shard);
    oracle_recut(sim, shard, s->next);
    s->before = s->layout;
    s->layout = s->next;
    if (s->prepared == s->next)
        s->prepared = NULL; // it may have prepared yet another one meanwhile
    s->next = NULL;
    s->core_place ^= 1;
    s->core = step_init_from(sim->step_memory[s->core_place][s->room], &config, s->core);
    s->noted_of = NULL;
    relay_recut(sim, shard);
    s->take_conn++;
    s->taking = s->publish_asked = false;
    find_lacks(sim, shard);
    const struct step_event lacks = { .kind = CAIRN_STEP_LACKS_STATE };
    s->awaits_settled = shard_is_keeping(sim) && !s->layout->back;
    if (s->lacks != 0 || s->awaits_settled) shard_core_event(sim, shard, &lacks);
    s->held.decision.payload = s->held.payload;
    sim_send_control(sim, &s->control, 0, E_COORDINATOR_FROM_SHARD, 0, shard, &s->held);
}

/* ---- what moves ---- */

static void take_all(struct sim *sim, uint32_t shard)
{
    struct sim_shard *s = shard_at(sim, shard);
    for (uint32_t c = 0; c < sim->scenario.chunks; c++)
        if (has_bit(s->lacks, c))
            sim_at(sim, rng_exponential(&sim->schedule, 4 * sim->scenario.fabric_delay), E_TAKEN,
                   shard, c, s->take_conn);
}

void take_resolved(struct sim *sim, uint32_t shard)
{
    struct sim_shard *s = shard_at(sim, shard);
    if (s->lacks == 0) {
        if (s->layout->before != NULL) say(sim, shard, M_MOVED, s->layout->id, CAIRN_OK);
        return;
    }
    if (s->taking) return;
    s->taking = true;
    take_all(sim, shard);
}

void take_break(struct sim *sim, uint32_t shard)
{
    sim_at(sim, rng_exponential(&sim->schedule, 2000), E_TAKE_AGAIN, shard, 0,
           ++shard_at(sim, shard)->take_conn);
}

static void whole(struct sim *sim, uint32_t shard)
{
    struct sim_shard *s = shard_at(sim, shard);
    const struct step_event event = { .kind = CAIRN_STEP_WHOLE };
    const bool waited = step_phase_of(s->core) == CAIRN_STEP_REDUCING;
    say(sim, shard, M_MOVED, s->layout->id, CAIRN_OK);
    if (!s->awaits_settled) shard_core_event(sim, shard, &event);
    if (waited && step_phase_of(s->core) == CAIRN_STEP_REDUCED) sim->seen[SEEN_taken_round]++;
}

/* The state of one chunk is read from whoever owned it. */
static void taken(struct sim *sim, uint32_t shard, uint32_t chunk)
{
    struct sim_shard *s = shard_at(sim, shard);
    const uint32_t owner = s->layout->before->owner[chunk];
    const struct sim_shard *from = &sim->shards[owner];
    const struct cairn_version version = step_version(s->core);
    if (!from->alive || !has_bit(from->has, chunk) ||
        version_compare(from->state_at[chunk], version) != 0) {
        sim_fail(sim, "shard %u takes chunk %u at step %" PRIu64 " from shard %u, which has it not",
                 shard, chunk, version.step, owner);
        return;
    }
    memcpy(s->param[chunk], from->param[chunk], sizeof s->param[chunk]);
    memcpy(s->m[chunk], from->m[chunk], sizeof s->m[chunk]);
    memcpy(s->v[chunk], from->v[chunk], sizeof s->v[chunk]);
    s->state_at[chunk] = version;
    s->has |= 1u << chunk;
    s->lacks &= ~(1u << chunk);
    sim->seen[SEEN_taken]++;
    if (s->lacks == 0) whole(sim, shard);
}

void take_event(struct sim *sim, const struct event *event)
{
    struct sim_shard *s = shard_at(sim, event->a);
    if (!s->alive || event->conn != s->take_conn || !s->taking) return;
    if (event->kind == E_TAKE_AGAIN) {
        sim->seen[SEEN_taken_again] += s->lacks != 0;
        take_all(sim, event->a);
    } else if (has_bit(s->lacks, event->b)) {
        taken(sim, event->a, event->b);
    }
}

/* Everybody is whole: what is not its own any more is forgotten. */
static void on_settled(struct sim *sim, uint32_t shard, const struct message *message)
{
    struct sim_shard *s = shard_at(sim, shard);
    if (s->core == NULL || s->layout->id != message->layout) return;
    if (s->lacks != 0) sim_fail(sim, "a slice is settled, and shard %u lacks state", shard);
    for (uint32_t c = 0; c < sim->scenario.chunks; c++) {
        if (s->layout->owner[c] == PLACE(shard) || !has_bit(s->has, c)) continue;
        s->has &= ~(1u << c);
        memset(s->param[c], 0x5a, sizeof s->param[c]);
        memset(s->m[c], 0x5a, sizeof s->m[c]);
        memset(s->v[c], 0x5a, sizeof s->v[c]);
    }
    const struct step_event whole = { .kind = CAIRN_STEP_WHOLE };
    const bool waited = s->awaits_settled;
    s->before = NULL;
    s->awaits_settled = false;
    if (waited) shard_core_event(sim, shard, &whole);
}

bool take_some_are_lost(const struct sim *sim)
{
    for (uint32_t i = sim->scenario.shards; i < sim->shard_count; i++)
        if (!sim->shards[i].alive && layout_has(sim->oracle.layout, i)) return true;
    return false;
}

bool take_may_die(const struct sim *sim, uint32_t shard)
{
    const struct sim_shard *s = shard_at(sim, shard);
    // nor two faults in the other order, of which the first may not be known yet
    const struct move *move = sim->coordinator.move; // NULL: no coordinator has led yet
    if (move == NULL || move_stage_of(move) == CAIRN_MOVE_LOST) return false;
    if (take_some_are_lost(sim)) return false;
    return !s->joining && (s->before == NULL || (s->awaits_settled && s->prepared == NULL));
}

void take_dies(struct sim *sim, uint32_t shard)
{
    struct sim_shard *s = shard_at(sim, shard);
    sim->seen[SEEN_kept_prepared] += s->prepared != NULL;
    s->next = NULL; // the fence comes again
    s->prepared_by = 0;
    s->taking = s->publish_asked = false;
    s->take_conn++;
    if (s->before == NULL) return;
    sim->seen[s->lacks != 0 ? SEEN_kept_taking : SEEN_kept_unsettled]++;
    for (uint32_t c = 0; c < sim->scenario.chunks && s->lacks != 0; c++)
        if (s->before->owner[c] != PLACE(shard)) s->has &= ~(1u << c); // it is asked for again
    s->lacks = 0;
    s->prepared = s->layout;
    s->layout = s->before;
    s->before = NULL;
    s->awaits_settled = false;
}

void take_message(struct sim *sim, uint32_t shard, const struct message *message)
{
    switch (message->kind) {
    case M_JOIN: on_join(sim, shard, message); return;
    case M_PREPARE: on_prepare(sim, shard, message); return;
    case M_UNPREPARE: on_unprepare(sim, shard, message); return;
    case M_SETTLED: on_settled(sim, shard, message); return;
    case M_PUBLISH: on_publish(sim, shard, message); return;
    case M_LEAVE:
        sim->seen[SEEN_left]++;
        shard_end(sim, shard);
        return;
    default: sim_fail(sim, "a shard got message %d", (int)message->kind); return;
    }
}

/* ---- its process ---- */

/* Somebody else has what was decided last, or begins to do it: what is nowhere but on a shard that dies was
 * never decided, and the reference cannot go back. */
static bool known_elsewhere(const struct sim *sim, uint32_t shard)
{
    const struct oracle *o = &sim->oracle;
    for (uint32_t s = 0; s < sim->shard_count; s++) {
        const struct sim_shard *other = &sim->shards[s];
        if (s == shard || !other->alive || other->core == NULL || !layout_has(o->layout, s))
            continue;
        if (other->executed == o->ledger_count || step_phase_of(other->core) == CAIRN_STEP_UPDATING)
            return true;
    }
    return false;
}

bool take_is_fresh(const struct sim *sim, uint32_t shard)
{
    const struct sim_shard *s = shard_at(sim, shard);
    // Two faults of one slice, one of them with its memory, are not survived.
    for (uint32_t i = 0; i < sim->shard_count; i++)
        if (sim->shards[i].unfenced && sim->shards[i].prepared != NULL) return false;
    if (s->core == NULL || step_phase_of(s->core) == CAIRN_STEP_JOINING) return true;
    if (sim->oracle.settled->count[shard] > 0) return false;
    if (s->copies[0].chunks != 0 || s->copies[1].chunks != 0)
        return false; // it may serve a version
    const bool owns = s->layout->count[PLACE(shard)] > 0 ||
                      sim->oracle.layout->count[PLACE(shard)] > 0;
    return (!owns || s->lacks != 0) && known_elsewhere(sim, shard);
}

void shard_join(struct sim *sim)
{
    const uint32_t shard = sim->shard_count++;
    shard_at(sim, shard)->alive = true;
    sim_at(sim, rng_exponential(&sim->schedule, 500), E_CONTROL_RECONNECT, shard, NOBODY, 0);
}

void shard_end(struct sim *sim, uint32_t shard)
{
    sim_trace(sim, "shard ends", shard, 0, 0);
    shard_at(sim, shard)->alive = false;
    shard_link_break(sim, shard, NOTICE);
    for (uint32_t p = 0; p < PROCS_MAX; p++) fabric_break(sim, shard, p);
    for (uint32_t s = 0; s < sim->scenario.room && sim->scenario.hosts > 0; s++) {
        relay_break(sim, s, shard);
        relay_break(sim, shard, s);
    }
}
