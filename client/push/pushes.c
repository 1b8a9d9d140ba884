/* Pushes of the open round. Every message for an owner goes over the connection of the shard that
 * granted: the owner's own, or that of a relay of this host (chunk.h, "Relays"). Loop thread. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/device/card.h"
#include "client/job.h"
#include "client/op.h"
#include "client/push/fail.h"
#include "client/push/stage.h"

#define GRANT_MAX_MS 300  /* longest wait for a GRANT after RoundOpened */
#define STARVED_MS   5000 /* that a command waits for memory */

/* ---- by whom ---- */

static struct shard_link *carrier_of(struct shard_link *owner)
{
    return owner->carrier != NULL ? owner->carrier : owner;
}

/* The owners that a connection may be for: its own, and of one that relays any: [*first_out, end). */
static uint32_t owners_of(const struct shard_link *link, uint32_t *first_out)
{
    *first_out = link->relays ? 0 : link->index;
    return link->relays ? link->job->shards.count : link->index + 1;
}

struct shard_link *cairn_pushes_granter(struct shard_link *owner)
{
    const struct cairn_chunk_header *grant = &owner->grant;
    return grant->kind == 0 || grant->tensor == 0 ? owner
                                                  : owner->job->shards.links[grant->tensor - 1];
}

/* ---- hands of the pusher ---- */

static struct job *job_of(const struct cairn_pusher *pusher)
{
    return (struct job *)((char *)pusher - offsetof(struct job, pushing.pusher));
}

static struct cairn_chunk_link *link_to(struct cairn_pusher *pusher, uint32_t shard)
{
    return &carrier_of(job_of(pusher)->shards.links[shard])->conn;
}

static void link_failed(struct cairn_pusher *pusher, struct cairn_chunk_link *link)
{
    (void)pusher;
    cairn_chunk_link_restart(link);
}

static cairn_status send_chunk(struct cairn_pusher *pusher, const struct cairn_push_action *action,
                               struct cairn_chunk_header *header)
{
    struct job *job = job_of(pusher);
    struct parcel *parcel = cairn_parcel_of_request(job, action->cookie);
    assert(parcel != NULL && parcel->kind == CAIRN_CHUNK_PUSH); // it is not released yet
    return cairn_parcel_send(parcel, carrier_of(job->shards.links[action->shard])->index, header);
}

static uint32_t mark(const struct cairn_pusher *pusher, uint32_t shard)
{
    const struct shard_link *owner = job_of(pusher)->shards.links[shard];
    return owner->relayed ? owner->index + 1 : 0;
}

static size_t absent_max(const struct cairn_pusher *pusher, uint32_t shard)
{
    return job_of(pusher)->pushing.body->parts[shard].map.extent_count;
}

static size_t list_absent(const struct cairn_pusher *pusher, uint32_t shard, uint32_t micro,
                          uint32_t *out)
{
    const struct job *job = job_of(pusher);
    const struct cairn_shard_map *map = &job->pushing.body->parts[shard].map;
    size_t count = 0;
    for (size_t i = 0; i < map->extent_count; i++) {
        const uint32_t tensor = map->extents[i].tensor;
        if (job->pushing.pushed[micro][tensor] || job->spec.tensors[tensor].kind != CAIRN_TRAINED)
            continue;
        if (count == 0 || out[count - 1] != tensor) out[count++] = tensor;
    }
    return count;
}

static void release(struct cairn_pusher *pusher, const struct cairn_push_action *action)
{
    struct parcel *parcel = cairn_parcel_of_request(job_of(pusher), action->cookie);
    if (parcel != NULL) cairn_parcel_end(parcel, action->status);
}

static void say_refused(const struct job *job, const struct cairn_push_action *action,
                        struct cairn_sentence *out)
{
    const char *shard = job->shards.links[action->shard]->name;
    if (action->status == CAIRN_ERR_INVALID) // a commit's: nothing else is refused so
        cairn_sentence_set(out,
                           "the weights of all workers come to more than 2^53 with this worker's "
                           "%llu; commit smaller ones",
                           (unsigned long long)job->filling.weight);
    else
        cairn_sentence_set(out, "shard %s refused what this worker sent: %s", shard,
                           cairn_status_text((int)action->status));
    cairn_sentence_add(out, "; round %llu is given up, for all workers",
                       (unsigned long long)job->pushing.pusher.round);
}

/* STALE and FENCED follow from what the coordinator has said, or says. Anything else it does not know, and
 * the shard waits for what it refused: so the round is given up, and the worker's calls in it say why. */
static void refused(struct cairn_pusher *pusher, const struct cairn_push_action *action)
{
    struct job *job = job_of(pusher);
    if (action->status == CAIRN_ERR_STALE || action->status == CAIRN_ERR_FENCED) return;
    pthread_mutex_lock(&job->session->lock);
    job->filling.refused_round = pusher->round;
    job->filling.refused_status = action->status;
    say_refused(job, action, &job->filling.refused_why);
    pthread_mutex_unlock(&job->session->lock);
    job->pushing.gives_up = pusher->round;
    cairn_session_kick(job->session);
}

static const struct cairn_pusher_hands hands = {
    .link = link_to,
    .link_failed = link_failed,
    .send_chunk = send_chunk,
    .mark = mark,
    .absent_max = absent_max,
    .absent = list_absent,
    .released = release,
    .refused = refused,
};

/* ---- the machine's life ---- */

static void forget_micros(struct job *job)
{
    for (uint32_t i = 0; i < job->pushing.micro_count; i++) free(job->pushing.pushed[i]);
    free(job->pushing.pushed);
    job->pushing.pushed = NULL;
    job->pushing.micro_count = 0;
}

void cairn_pushes_drop(struct job *job, cairn_status status)
{
    if (job->pushing.pusher.push == NULL) return;
    cairn_pusher_end(&job->pushing.pusher);
    for (uint32_t i = 0; i < job->parcels.count; i++) {
        struct parcel *parcel = job->parcels.all[i];
        if (parcel->op != NULL && parcel->kind == CAIRN_CHUNK_PUSH)
            cairn_parcel_end(parcel, status);
    }
    forget_micros(job);
}

void cairn_pushes_release(struct job *job)
{
    cairn_pusher_close(&job->pushing.pusher);
    cairn_body_put(job->pushing.body);
    job->pushing.body = NULL;
}

/* For the newest body, which is of the layout that the round has. */
static cairn_status open_pusher(struct job *job)
{
    uint64_t chunks = 0;
    struct body *body = job->bodies;
    if (job->pushing.body == body) return CAIRN_OK;
    cairn_pushes_release(job);
    for (uint32_t i = 0; i < body->layout->shard_count; i++)
        chunks += body->parts[i].map.chunk_count;
    // Two micro-batches: one being answered, one being filled. More is stalled, not refused.
    const uint64_t queue = 2 * chunks + 4 * (uint64_t)body->layout->shard_count;
    if (queue > UINT32_MAX) return CAIRN_ERR_NO_MEMORY;
    const struct cairn_push_config config = { .shard_count = body->layout->shard_count,
                                              .queue_max = (uint32_t)queue };
    const cairn_status status = cairn_pusher_open(&job->pushing.pusher, &hands, &config);
    if (status == CAIRN_OK) job->pushing.body = cairn_body_get(body);
    return status;
}

cairn_status cairn_pushes_on_opened(struct job *job, const Cairn__RoundOpened *opened)
{
    if (job->pushing.pusher.push != NULL && job->pushing.pusher.round == opened->round)
        return CAIRN_OK;
    cairn_pushes_drop(job, CAIRN_ERR_EPOCH_CHANGED);
    job->attachment.seen_epoch = opened->epoch;
    job->attachment.seen_store = job->session->control.store;
    if (opened->rank >= opened->world) { // surplus: no shard grants it anything
        cairn_pushes_release(job);
        return CAIRN_OK;
    }
    cairn_status status = open_pusher(job);
    if (status != CAIRN_OK) return status;
    cairn_pusher_begin(&job->pushing.pusher, opened->epoch, opened->round);
    for (uint32_t i = 0; i < job->pushing.body->layout->shard_count; i++)
        if (job->pushing.body->parts[i].absent) cairn_pusher_absent(&job->pushing.pusher, i);
    for (uint32_t i = 0; i < job->shards.count; i++) {
        job->shards.links[i]->carrier = NULL;
        job->shards.links[i]->relayed = false;
        job->shards.links[i]->grant_deadline_ms = cairn_client_now_ms() + GRANT_MAX_MS;
        cairn_pushes_on_grant(job->shards.links[i]);
    }
    return CAIRN_OK;
}

void cairn_pushes_on_grant(struct shard_link *owner)
{
    struct job *job = owner->job;
    const struct cairn_chunk_header *grant = &owner->grant;
    if (job->pushing.pusher.push == NULL || grant->kind == 0 ||
        grant->round != job->pushing.pusher.round)
        return;
    owner->carrier = cairn_pushes_granter(owner);
    owner->relayed = grant->tensor != 0;
    cairn_pusher_on_grant(&job->pushing.pusher, owner->index, grant, owner->carrier->conn.way);
}

/* Tells the pusher of the HELLO for each owner that is reached over `link`. Until an owner has
 * granted, we do not know through which link it will be reached, so it is left out. */
void cairn_pushes_on_hello(struct shard_link *link, uint64_t way)
{
    struct job *job = link->job;
    uint32_t i;
    for (const uint32_t end = owners_of(link, &i); i < end; i++) {
        if (job->shards.links[i]->carrier == link)
            cairn_pusher_on_hello(&job->pushing.pusher, i, way);
    }
}

/* Whoever has granted for others may have granted for one that we have not heard of. */
bool cairn_pushes_waits(const struct shard_link *link)
{
    const struct job *job = link->job;
    uint32_t i;
    if (job->pushing.pusher.push == NULL) return false;
    for (const uint32_t end = owners_of(link, &i); i < end; i++) {
        const struct shard_link *carrier = job->shards.links[i]->carrier;
        if ((carrier == NULL || carrier == link) && cairn_pusher_waits(&job->pushing.pusher, i))
            return true;
    }
    return false;
}

static void lose_owner(struct shard_link *owner, const struct shard_link *link)
{
    struct job *job = owner->job;
    const bool was_its = carrier_of(owner) == link;
    if (cairn_pushes_granter(owner) == link) owner->grant = (struct cairn_chunk_header) { 0 };
    if (!was_its) return;
    owner->carrier = NULL;
    owner->relayed = false;
    cairn_pusher_on_lost(&job->pushing.pusher, owner->index);
}

void cairn_pushes_lost(struct shard_link *link)
{
    uint32_t i;
    for (const uint32_t end = owners_of(link, &i); i < end; i++)
        lose_owner(link->job->shards.links[i], link);
}

/* Who asked late hears of a version that is not the newest any more. */
static void note_version(struct job *job, struct cairn_version version)
{
    if (cairn_version_compare(version, job->known.newest) > 0) job->known.newest = version;
}

void cairn_pushes_on_result(struct job *job, const Cairn__RoundResult *result)
{
    struct session *s = job->session;
    const bool is_void = result->status == CAIRN_ERR_EPOCH_CHANGED;
    pthread_mutex_lock(&s->lock);
    if (is_void && result->round >= job->filling.void_round) {
        job->filling.void_round = result->round;
        cairn_sentence_set(&job->filling.void_why, "%s", result->text);
    }
    if (!is_void) note_version(job, (struct cairn_version) { result->generation, result->step });
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (job->pushing.pusher.push == NULL || job->pushing.pusher.round > result->round) return;
    if (!is_void && job->pushing.pusher.round == result->round)
        cairn_pusher_resolved(&job->pushing.pusher);
    cairn_pushes_drop(job, is_void ? CAIRN_ERR_EPOCH_CHANGED : CAIRN_OK);
}

/* ---- commands ---- */

/* The result of cutting a target: all of it is cut, the rest is cut later, or the command is
 * over. */
enum cut { CUT_WHOLE, CUT_LATER, CUT_ENDED };

static bool round_is_over(const struct command *command)
{
    const struct job *job = command->job;
    return job->pushing.pusher.push == NULL || job->pushing.pusher.round != command->round ||
           cairn_push_voided(job->pushing.pusher.push);
}

/* No memory for the command: it is run again with the next turn, from where it stood. A push that is half cut
 * is neither pushed nor absent, so when memory stays away the job fails, for this worker. True: it has. */
static bool starve(struct command *command, const char *doing)
{
    const uint64_t now_ms = cairn_client_now_ms();
    if (command->starved_ms == 0) command->starved_ms = now_ms;
    if (now_ms - command->starved_ms < STARVED_MS) return false;
    struct cairn_sentence why;
    cairn_sentence_set(&why, "out of memory %s, for %d s; close the job, and open it again", doing,
                       STARVED_MS / 1000);
    cairn_job_fail(command->job, CAIRN_ERR_NO_MEMORY, why.text);
    if (command->op != NULL) cairn_op_let_go(command->op, CAIRN_ERR_NO_MEMORY, why.text);
    return true;
}

/* The list of what was pushed in `micro`, made when it is first named. */
static uint8_t *pushed_in(struct job *job, uint32_t micro)
{
    if (micro < job->pushing.micro_count) return job->pushing.pushed[micro];
    if (micro != job->pushing.micro_count)
        return NULL; // a round told twice: nothing of ours aborts its host
    uint8_t **lists = realloc(job->pushing.pushed, (micro + 1) * sizeof *lists);
    if (lists == NULL) return NULL;
    job->pushing.pushed = lists;
    lists[micro] = calloc(job->spec.tensor_count + 1, 1);
    if (lists[micro] != NULL) job->pushing.micro_count++;
    return lists[micro];
}

static bool end_push(struct command *command, cairn_status status, const char *why)
{
    cairn_op_let_go(command->op, status, why);
    return true;
}

/* Whether the card has written what is pushed. If the card's work failed there is no gradient, and
 * the tensor can be neither pushed nor absent: so the job fails for this worker, whose context has
 * failed as well. */
static enum card_state state_of(struct command *command)
{
    struct cairn_sentence why;
    if (command->event == NULL) return CARD_DONE;
    const enum card_state state = cairn_card_event_state(command->event, &why);
    if (state == CARD_FAILED) cairn_job_fail(command->job, CAIRN_ERR_IO, why.text);
    if (state == CARD_WAITS) command->job->awaits_stream = true;
    if (state != CARD_DONE) return state;
    cairn_card_event_free(command->event);
    command->event = NULL;
    return CARD_DONE;
}

/* A chunk that is cut, and where the command stood before. */
struct cut_chunk {
    struct parcel *parcel;
    struct cairn_push_chunk chunk;
    uint32_t shard;
    size_t next_extent;
    uint64_t next_chunk;
    const struct cairn_local_extent *local;
};

/* Where a shard may read the parcel's bytes. Small chunks have a window of their own, and small
 * host memory is copied into the message; memory of a card that is pushed by a list is copied, and
 * the copy is sent. */
static enum cairn_push_lies lies(const struct command *command, const struct parcel *parcel)
{
    const struct op *op = command->op;
    const void *lent = op->lents != NULL ? op->lents[op->lent_count - 1 - command->targets_left]
                                         : op->lent;
    const struct cairn_fabric_peer *peer =
        carrier_of(command->job->shards.links[parcel->shard])->conn.peer;
    if (command->target->card == NULL) {
        const bool is_shown = lent != NULL && parcel->bytes != NULL &&
                              parcel->byte_count > CAIRN_CHUNK_SMALL;
        return is_shown ? CAIRN_PUSH_LIES_HOST : CAIRN_PUSH_LIES_APART;
    }
    const bool is_shown = op->lent != NULL && peer != NULL && parcel->bytes != NULL &&
                          strcmp(cairn_fabric_payload_path(peer, parcel->bytes, parcel->byte_count),
                                 "device") == 0;
    return is_shown ? CAIRN_PUSH_LIES_CARD : CAIRN_PUSH_LIES_APART;
}

/* Cuts the next, at most `max`; fewer: there are no more, or no memory (*starves_out). Nothing is copied
 * ahead for a pusher that is full: it would be thrown away, and copied again at each turn. */
static size_t cut_some(struct command *command, struct cut_chunk *cuts, size_t max,
                       bool *starves_out)
{
    uint32_t shard;
    uint64_t chunk;
    size_t count = 0;
    *starves_out = false;
    while (count < max && cairn_command_chunk(command, &shard, &chunk)) {
        struct parcel *parcel = cairn_parcel_new(command->job, command, shard, chunk);
        *starves_out = parcel == NULL;
        if (parcel == NULL) break;
        cuts[count++] = (struct cut_chunk) {
            .parcel = parcel,
            .chunk = { .chunk = (uint32_t)chunk,
                       .is_small = parcel->byte_count <= CAIRN_CHUNK_SMALL,
                       .lies = lies(command, parcel),
                       .cookie = cairn_chunk_request_number(&parcel->request) },
            .shard = shard,
            .next_extent = command->next_extent,
            .next_chunk = command->next_chunk++,
            .local = command->local,
        };
        if (command->is_held_up) continue;
        cairn_stage_queue(parcel);
        cairn_stage_fill(command->job->shards.links[shard]);
    }
    return count;
}

/* The pusher has no room for the i-th: it and those behind it are cut again later. */
static void uncut(struct command *command, const struct cut_chunk *cuts, size_t i, size_t count)
{
    command->next_extent = cuts[i].next_extent;
    command->next_chunk = cuts[i].next_chunk;
    command->local = cuts[i].local;
    while (count > i) cairn_parcel_undo(cuts[--count].parcel);
}

/* Cuts the rest of a target into parcels, some at a time; those that have to be copied before they
 * are sent are queued for the copy as they are cut. */
static enum cut cut_target(struct command *command)
{
    struct job *job = command->job;
    struct cut_chunk cuts[CAIRN_STAGE_AHEAD];
    bool starves = false;
    job->pushing.pushed[command->micro][command->target->tensor] = 1;
    for (size_t count; !starves;) {
        count = cut_some(command, cuts, command->is_held_up ? 1 : CAIRN_STAGE_AHEAD, &starves);
        if (count == 0) break;
        command->starved_ms = 0;
        for (size_t i = 0; i < count; i++) {
            const cairn_status status = cairn_pusher_chunk(&job->pushing.pusher, cuts[i].shard,
                                                           command->micro, cuts[i].chunk);
            command->is_held_up = status == CAIRN_ERR_BUSY;
            if (status == CAIRN_OK) continue;
            uncut(command, cuts, i, count);
            if (status == CAIRN_ERR_BUSY) return CUT_LATER;
            end_push(command, status, NULL);
            return CUT_ENDED;
        }
    }
    if (!starves) return CUT_WHOLE;
    return starve(command, "in the middle of a push") ? CUT_ENDED : CUT_LATER;
}

bool cairn_pushes_run(struct command *command)
{
    struct job *job = command->job;
    if (cairn_command_refused(command)) return true;
    if (round_is_over(command)) return end_push(command, CAIRN_ERR_EPOCH_CHANGED, NULL);
    const enum card_state state = state_of(command);
    if (state == CARD_WAITS) return false;
    if (state == CARD_FAILED) return end_push(command, CAIRN_ERR_IO, job->failure.why.text);
    if (command->body == NULL) command->body = cairn_body_get(job->pushing.body);
    if (pushed_in(job, command->micro) == NULL) return starve(command, "for a push");
    enum cut cut;
    do {
        cut = cut_target(command);
    } while (cut == CUT_WHOLE && cairn_command_next(command));
    return cut == CUT_WHOLE ? end_push(command, CAIRN_OK, NULL) : cut == CUT_ENDED;
}

bool cairn_pushes_micro_end_run(struct command *command)
{
    struct job *job = command->job;
    if (round_is_over(command)) return true;
    if (pushed_in(job, command->micro) == NULL)
        return starve(command, "at the end of a micro-batch");
    cairn_status status = cairn_pusher_micro_end(&job->pushing.pusher, command->micro);
    return status != CAIRN_ERR_BUSY;
}

bool cairn_pushes_commit_run(struct command *command)
{
    struct job *job = command->job;
    if (round_is_over(command)) return true;
    cairn_status status = cairn_pusher_commit(&job->pushing.pusher, command->weight);
    return status != CAIRN_ERR_BUSY;
}
