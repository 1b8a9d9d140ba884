#include "server/core/move.h"

#include <assert.h>
#include <string.h>

#include "server/core/holes.h"
#include "proto/base/mutant.h"

struct shard {
    bool gone;      /* the layout in force does not have this shard */
    bool gone_next; /* the slice's layout does not have this shard */
    bool prepared;
    bool moved;    /* the shard has reported MOVED in the layout in force */
    bool is_whole; /* the shard had all its state before the layout in force, which moved none */
};

/* In PREPARING and CUTTING the slice's layout is not in force yet, and `next` describes it. */
struct move {
    uint32_t shard_max;
    enum move_stage stage;
    uint64_t layout; /* the layout in force */
    bool lost;       /* a shard of the layout in force was lost before its slice was settled */
    struct {
        uint64_t layout;
        bool back, empty;
        bool lost; /* a shard of this layout was lost */
    } next;
    uint32_t lost_shard;
    struct shard *shards; /* [shard_max], behind this struct */
};

/* ---- memory ---- */

size_t move_bytes(const struct move_config *config)
{
    if (config->shard_max < 1 || config->shard_max > 1u << 24) return 0;
    if (config->shard_count < 1 || config->shard_count > config->shard_max) return 0;
    return sizeof(struct move) + config->shard_max * sizeof(struct shard);
}

struct move *move_init(void *memory, const struct move_config *config)
{
    const size_t bytes = move_bytes(config);
    assert(bytes > 0);
    memset(memory, 0, bytes);
    struct move *move = memory;
    move->shards = (struct shard *)(move + 1);
    move->shard_max = config->shard_max;
    move->layout = config->layout;
    move->stage = config->unsettled && !MUTANT(70) ? CAIRN_MOVE_MOVING : CAIRN_MOVE_REST;
    for (uint32_t s = 0; s < config->shard_max; s++) {
        move->shards[s].gone = layout_is_hole(config->gone, config->shard_count, s);
        move->shards[s].moved = !config->unsettled && !move->shards[s].gone;
    }
    return move;
}

/* ---- actions ---- */

static struct move_action *add_action(struct move_actions *actions, enum move_action_kind kind,
                                      uint64_t layout)
{
    assert(actions->count < actions->capacity);
    struct move_action *action = &actions->list[actions->count++];
    *action = (struct move_action) { .kind = kind, .layout = layout, .shard = CAIRN_MOVE_ALL };
    return action;
}

static void end_slice(uint64_t layout, cairn_status status, uint32_t shard,
                      struct move_actions *actions)
{
    struct move_action *action = add_action(actions, CAIRN_MOVE_ENDED, layout);
    action->status = status;
    action->shard = shard;
}

/* Ends a slice whose layout did not come into force. The layout in force stays. */
static void take_back(struct move *move, cairn_status status, uint32_t shard,
                      struct move_actions *actions)
{
    const uint64_t layout = move->next.layout;
    if (move->stage == CAIRN_MOVE_CUTTING) add_action(actions, CAIRN_MOVE_WITHDRAW, layout);
    add_action(actions, CAIRN_MOVE_UNPREPARE, layout);
    move->stage = move->lost ? CAIRN_MOVE_LOST : CAIRN_MOVE_REST;
    end_slice(layout, status, shard, actions);
}

/* Reports that the layout in force lost a shard, so its slice cannot be completed. */
static void lose_slice(struct move *move, struct move_actions *actions)
{
    move->stage = CAIRN_MOVE_LOST;
    end_slice(move->layout, CAIRN_ERR_JOB_LOST, move->lost_shard, actions);
}

/* ---- events ---- */

static void on_begin(struct move *move, const struct move_event *event,
                     struct move_actions *actions)
{
    assert(event->back ? move->stage == CAIRN_MOVE_LOST : move->stage == CAIRN_MOVE_REST);
    assert(event->back || !event->empty);
    assert(event->layout > move->layout && event->shard_count <= move->shard_max);
    move->stage = CAIRN_MOVE_PREPARING;
    move->next.layout = event->layout;
    move->next.back = event->back;
    move->next.empty = event->empty;
    move->next.lost = false;
    for (uint32_t s = 0; s < move->shard_max; s++) {
        move->shards[s].gone_next = layout_is_hole(event->gone, event->shard_count, s);
        move->shards[s].prepared = false;
    }
    add_action(actions, CAIRN_MOVE_PREPARE, event->layout);
}

static bool all_prepared(const struct move *move)
{
    if (MUTANT(69)) return true;
    for (uint32_t s = 0; s < move->shard_max; s++)
        if (!move->shards[s].gone_next && !move->shards[s].prepared) return false;
    return true;
}

static void on_prepared(struct move *move, const struct move_event *event,
                        struct move_actions *actions)
{
    if (move->stage != CAIRN_MOVE_PREPARING || event->layout != move->next.layout) return;
    if (event->status != CAIRN_OK) {
        take_back(move, event->status, event->shard, actions);
        return;
    }
    move->shards[event->shard].prepared = true;
    if (!all_prepared(move)) return;
    move->stage = CAIRN_MOVE_CUTTING;
    add_action(actions, CAIRN_MOVE_CUT_OVER, move->next.layout)->back = move->next.back;
}

static void on_in_force(struct move *move, const struct move_event *event,
                        struct move_actions *actions)
{
    if (move->stage != CAIRN_MOVE_CUTTING || event->layout != move->next.layout) return;
    move->stage = CAIRN_MOVE_MOVING;
    move->layout = move->next.layout;
    move->lost = move->next.lost;
    for (uint32_t s = 0; s < move->shard_max; s++) {
        move->shards[s].gone = move->shards[s].gone_next;
        move->shards[s].moved = false;
        move->shards[s].is_whole = move->next.empty && !move->shards[s].gone;
    }
    if (move->lost) lose_slice(move, actions);
}

static bool all_moved(const struct move *move)
{
    if (MUTANT(68)) return true;
    for (uint32_t s = 0; s < move->shard_max; s++)
        if (!move->shards[s].gone && !move->shards[s].moved) return false;
    return true;
}

static void on_moved(struct move *move, const struct move_event *event,
                     struct move_actions *actions)
{
    struct shard *shard = &move->shards[event->shard];
    if ((event->layout != move->layout && !MUTANT(71)) || shard->gone) return;
    shard->moved = true;
    if (move->stage != CAIRN_MOVE_MOVING) {
        // The shard does not know that the slice is settled, perhaps because the SETTLE was lost.
        if (!move->lost && !MUTANT(105))
            add_action(actions, CAIRN_MOVE_SETTLE, move->layout)->shard = event->shard;
        return;
    }
    if (!all_moved(move)) return;
    move->stage = CAIRN_MOVE_REST;
    add_action(actions, CAIRN_MOVE_SETTLE, move->layout);
    end_slice(move->layout, CAIRN_OK, CAIRN_MOVE_ALL, actions);
}

static bool may_take_back(const struct move *move, const struct move_event *event)
{
    return move->stage == CAIRN_MOVE_PREPARING ||
           (move->stage == CAIRN_MOVE_CUTTING && event->pending);
}

/* Handles the loss of a shard that had no settled state. */
static void on_shard_lost(struct move *move, uint32_t shard, struct move_actions *actions)
{
    // If the stage is CUTTING, the slice can no longer be taken back here.
    const bool cutting = move->stage == CAIRN_MOVE_CUTTING;
    if (cutting && !move->shards[shard].gone_next) {
        move->next.lost = true;
        move->lost_shard = shard;
    }
    if (cutting || move->stage == CAIRN_MOVE_LOST || move->shards[shard].gone) return;
    move->lost = true;
    move->lost_shard = shard;
    lose_slice(move, actions);
}

static void on_shard_gone(struct move *move, const struct move_event *event,
                          struct move_actions *actions)
{
    const struct shard *shard = &move->shards[event->shard];
    const bool is_lost = event->kind == CAIRN_MOVE_SHARD_LOST;
    const bool lasts = is_lost && !shard->gone; // the layout in force has lost the shard, too
    // If the slice leaves the shard out, the slice can go on without the shard. It is taken back all the
    // same if the layout in force has lost the shard, because that layout waits for it.
    const bool concerns = !shard->gone_next || (lasts && !move->next.back);
    if (may_take_back(move, event) && concerns) {
        move->lost = move->lost || lasts;
        take_back(move, lasts ? CAIRN_ERR_JOB_LOST : CAIRN_ERR_UNREACHABLE, event->shard, actions);
    } else if (is_lost && !may_take_back(move, event)) {
        on_shard_lost(move, event->shard, actions);
    }
}

void move_on_event(struct move *move, const struct move_event *event, struct move_actions *actions)
{
    assert(event->shard < move->shard_max);
    switch (event->kind) {
    case CAIRN_MOVE_BEGIN: on_begin(move, event, actions); return;
    case CAIRN_MOVE_PREPARED: on_prepared(move, event, actions); return;
    case CAIRN_MOVE_IN_FORCE: on_in_force(move, event, actions); return;
    case CAIRN_MOVE_MOVED: on_moved(move, event, actions); return;
    case CAIRN_MOVE_SHARD_DOWN:
    case CAIRN_MOVE_SHARD_LOST: on_shard_gone(move, event, actions); return;
    case CAIRN_MOVE_CANCEL:
        if (may_take_back(move, event))
            take_back(move, CAIRN_ERR_CANCELED, CAIRN_MOVE_ALL, actions);
        return;
    }
    assert(false && "an event of a kind that there is not");
}

/* ---- questions ---- */

enum move_stage move_stage_of(const struct move *move)
{
    return move->stage;
}

bool move_waits_for(const struct move *move, uint32_t shard)
{
    assert(shard < move->shard_max);
    const struct shard *s = &move->shards[shard];
    if (move->stage == CAIRN_MOVE_PREPARING) return !s->gone_next && !s->prepared;
    return move->stage == CAIRN_MOVE_MOVING && !s->gone && !s->moved;
}

bool move_has_moved(const struct move *move, uint32_t shard)
{
    assert(shard < move->shard_max);
    return move->shards[shard].moved || move->shards[shard].is_whole;
}
