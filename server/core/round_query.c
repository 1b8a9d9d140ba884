/* Answers questions about the coordinator's round machine. */
#include "server/core/round_state.h"

enum cairn_round_stage cairn_round_stage_of(const struct cairn_round *core)
{
    return core->stage;
}

uint64_t cairn_round_epoch(const struct cairn_round *core)
{
    return core->epoch;
}

uint64_t cairn_round_open_round(const struct cairn_round *core)
{
    return core->open_round;
}

struct cairn_version cairn_round_version(const struct cairn_round *core)
{
    return core->version;
}

double cairn_round_loss_scale(const struct cairn_round *core)
{
    return core->loss_scale;
}

struct cairn_skips cairn_round_skips(const struct cairn_round *core)
{
    return core->skips;
}

const struct cairn_decision *cairn_round_last(const struct cairn_round *core)
{
    return &core->last;
}

bool cairn_round_client_state(const struct cairn_round *core, const uint8_t **state_out,
                              size_t *state_bytes_out)
{
    const bool resolved = core->stage == CAIRN_ROUND_STEADY || core->stage == CAIRN_ROUND_OPEN;
    struct cairn_payload head = { .state_bytes = 0 };
    if (!resolved || !core->ready) return false;
    const bool has = core->last.payload_bytes > 0;
    if (has &&
        cairn_payload_decode(core->last.payload, core->last.payload_bytes, &head) != CAIRN_OK)
        return false;
    *state_out = head.state;
    *state_bytes_out = head.state_bytes;
    return true;
}

const struct cairn_round_terms *cairn_round_terms_of(const struct cairn_round *core)
{
    return &core->config.terms;
}

double cairn_round_lr(const struct cairn_round *core, uint32_t group)
{
    return cairn_round_group_lr(&core->terms_newest, core->driven, group, core->version.step);
}

bool cairn_round_takes_driven(const struct cairn_round *core, uint64_t member, uint64_t round)
{
    return core->driven_count > 0 && core->stage == CAIRN_ROUND_OPEN && !core->writing &&
           round == core->open_round && cairn_round_contributes(core, member);
}

bool cairn_round_pin_pending(const struct cairn_round *core)
{
    return core->pin_pending;
}

uint32_t cairn_round_worker_count(const struct cairn_round *core)
{
    return core->worker_count;
}

bool cairn_round_contributes(const struct cairn_round *core, uint64_t member)
{
    for (uint32_t i = 0; i < core->worker_count; i++)
        if (core->workers[i].id == member) return core->workers[i].contributor;
    return false;
}

uint64_t cairn_round_paused_ms(const struct cairn_round *core)
{
    uint64_t most_ms = 0;
    if (core->stage != CAIRN_ROUND_OPEN || core->need_epoch) return 0; // it ends without them
    for (uint32_t i = 0; i < core->worker_count; i++) {
        const struct worker *worker = &core->workers[i];
        if (!worker->contributor || worker->committed || worker->paused_ms <= core->now_ms)
            continue;
        const uint64_t left_ms = worker->paused_ms - core->now_ms;
        if (left_ms > most_ms) most_ms = left_ms;
    }
    return most_ms;
}

bool cairn_round_waits_for_silent(const struct cairn_round *core)
{
    const bool summed = core->reduced_count == core->serving;
    if (core->stage != CAIRN_ROUND_OPEN || core->need_epoch || summed) return false;
    if (core->late_round == core->open_round) return false; // a shard is who lacks something
    for (uint32_t i = 0; i < core->worker_count; i++) {
        const struct worker *worker = &core->workers[i];
        if (worker->contributor && !worker->committed && worker->paused_ms <= core->now_ms)
            return true;
    }
    return false;
}

struct cairn_round_counts cairn_round_counts_of(const struct cairn_round *core)
{
    return core->counts;
}

/* ---- who is awaited ---- */

/* A list on its way into a sentence: "shard 2 (what it has not done), shard 3 (...)". */
struct listing {
    const struct cairn_round_names *names;
    struct cairn_sentence *out;
    bool any;
};

static void begin_entry(struct listing *listing, bool is_shard, uint32_t number)
{
    const struct cairn_round_names *names = listing->names;
    if (listing->any) cairn_sentence_add(listing->out, ", ");
    listing->any = true;
    if (names != NULL && names->add(names->context, is_shard, number, listing->out)) return;
    cairn_sentence_add(listing->out, "%s %u", is_shard ? "shard" : "worker of rank",
                       (unsigned)number);
}

static void list_shard(struct listing *listing, uint32_t shard, const char *what)
{
    begin_entry(listing, true, shard);
    cairn_sentence_add(listing->out, " (%s)", what);
}

static void list_shards(const struct cairn_round *core, struct listing *listing)
{
    for (uint32_t s = 0; s < core->config.shard_count; s++) {
        const struct shard *shard = &core->shards[s];
        if (shard->gone) continue;
        if (!shard->up)
            list_shard(listing, s, "not connected");
        else if (core->stage == CAIRN_ROUND_FENCING && !shard->answered)
            list_shard(listing, s, "has not answered the fence");
        else if (core->stage == CAIRN_ROUND_RESOLVING && !shard->published)
            list_shard(listing, s, "has not resolved the round");
        else if (core->stage == CAIRN_ROUND_DECIDED && !shard->published)
            list_shard(listing, s, "has not published the update");
    }
}

static void list_worker(const struct cairn_round *core, struct listing *listing, uint32_t rank,
                        bool summed)
{
    const unsigned long long round = core->open_round;
    begin_entry(listing, false, rank);
    if (summed && core->config.client_state_max > 0)
        cairn_sentence_add(listing->out, " (its client state of round %llu)", round);
    else if (core->writing)
        cairn_sentence_add(listing->out, " (has not ended its write)");
    else
        cairn_sentence_add(listing->out, " (has not committed round %llu)", round);
}

static void list_open_round(const struct cairn_round *core, struct listing *listing)
{
    const unsigned long long round = core->open_round;
    if (core->late_round == core->open_round) {
        begin_entry(listing, true, core->late_shard);
        cairn_sentence_add(listing->out, " (lacks something of %u of %u workers in round %llu)",
                           (unsigned)core->late_lacks, (unsigned)core->world, round);
        return;
    }
    const bool summed = core->reduced_count == core->serving;
    for (uint32_t i = 0; i < core->worker_count; i++) {
        const struct worker *worker = &core->workers[i];
        if (!worker->contributor || worker->committed) continue;
        if (summed && worker->dense != 0) continue; // it has; only what it asks is on its way
        list_worker(core, listing, worker->rank, summed);
    }
    if (listing->any) return;
    for (uint32_t s = 0; s < core->config.shard_count; s++) {
        if (core->shards[s].gone || core->shards[s].reduced) continue;
        begin_entry(listing, true, s);
        cairn_sentence_add(listing->out, " (has not summed round %llu)", round);
    }
}

/* Says that workers are awaited that were started together with the ones that are there. */
static void wait_for_start(const struct cairn_round *core, struct cairn_sentence *out)
{
    const uint32_t world = cairn_round_start_world(core);
    uint64_t until_ms = UINT64_MAX;
    if (core->worker_count >= world) return;
    for (uint32_t i = 0; i < core->worker_count; i++)
        if (core->workers[i].start_ms < until_ms) until_ms = core->workers[i].start_ms;
    cairn_sentence_set(
        out, "%u more worker%s of this launch (%u of %u attached; without them in %llu s)",
        (unsigned)(world - core->worker_count), world - core->worker_count == 1 ? "" : "s",
        (unsigned)core->worker_count, (unsigned)world,
        (unsigned long long)(until_ms - core->now_ms + 999) / 1000);
}

static void wait_for_least(const struct cairn_round *core, struct cairn_sentence *out)
{
    const uint32_t least = core->terms_newest.workers_min, missing = least - core->worker_count;
    cairn_sentence_set(out,
                       "%u more worker%s (%u of %u attached): start %s, or have the job take fewer "
                       "(`cairn job amend JOB --workers MIN:MAX`)",
                       (unsigned)missing, missing == 1 ? "" : "s", (unsigned)core->worker_count,
                       (unsigned)least, missing == 1 ? "it" : "them");
}

void cairn_round_waiting(const struct cairn_round *core, const struct cairn_round_names *names,
                         struct cairn_sentence *out)
{
    struct listing listing = { names, out, false };
    cairn_sentence_set(out, "%s", "");
    list_shards(core, &listing);
    if (listing.any) return;
    if (core->persisting)
        cairn_sentence_set(out, "the store's disk (epoch %llu)", (unsigned long long)core->epoch);
    else if (core->stage == CAIRN_ROUND_OPEN)
        list_open_round(core, &listing);
    else if (core->stage == CAIRN_ROUND_STEADY && !core->ready)
        cairn_sentence_set(out, "the initial state of the job");
    else if (core->stage == CAIRN_ROUND_STEADY && cairn_round_halted_of_results(core))
        cairn_sentence_set(
            out, "a restore or a write (results of the update to step %llu are not finite)",
            (unsigned long long)core->version.step);
    else if (core->stage == CAIRN_ROUND_STEADY && cairn_round_halted_of_loss(core))
        cairn_sentence_set(out, "an amendment or a restore (a worker was lost, and on_worker_loss "
                                "is fail)");
    else if (core->stage == CAIRN_ROUND_STEADY && cairn_round_halted(core))
        cairn_sentence_set(out,
                           "an amendment or a restore (%u rounds in a row were skipped, their "
                           "gradients not finite, and the loss scale is at its least)",
                           (unsigned)core->skips.in_row);
    else if (core->stage == CAIRN_ROUND_STEADY &&
             core->worker_count < core->terms_newest.workers_min)
        wait_for_least(core, out);
    else if (core->stage == CAIRN_ROUND_STEADY && cairn_round_waits_for_lost(core))
        cairn_round_say_lost(core, out);
    else if (core->stage == CAIRN_ROUND_STEADY)
        wait_for_start(core, out);
}
