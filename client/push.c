#include "client/push.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/device.h"
#include "client/job.h"
#include "client/op.h"
#include "client/read.h"
#include "client/session.h"

/* ==== pushes ==== */

/* Pushes of the open round. Every message for an owner is sent over the connection of the shard
 * that granted the round: the owner's own, or that of a relay on this host (wire.h, "Relays"). Loop
 * thread. */

#define GRANT_MAX_MS 300  /* longest wait for a GRANT after RoundOpened */
#define STARVED_MS   5000 /* the longest time that a command waits for memory */

/* ---- by whom ---- */

static struct shard_link *carrier_of(struct shard_link *owner)
{
    return owner->carrier != NULL ? owner->carrier : owner;
}

/* Returns the range of owners that use a connection, [*first_out, end): the connection's own shard,
 * or any owner if the shard relays. */
static uint32_t owners_of(const struct shard_link *link, uint32_t *first_out)
{
    *first_out = link->relays ? 0 : link->index;
    return link->relays ? link->job->shards.count : link->index + 1;
}

struct shard_link *pushes_granter(struct shard_link *owner)
{
    const struct chunk_header *grant = &owner->grant;
    return grant->kind == 0 || grant->tensor == 0 ? owner
                                                  : owner->job->shards.links[grant->tensor - 1];
}

/* ---- the machine's actions ---- */

/* Lists the trained tensors of the owner that were not pushed in the micro-batch. */
static size_t list_absent(const struct shard_link *owner, uint32_t micro, uint32_t *out)
{
    const struct job *job = owner->job;
    const struct shard_map *map = &job->pushing.served->parts[owner->index].map;
    size_t count = 0;
    for (size_t i = 0; i < map->extent_count; i++) {
        const uint32_t tensor = map->extents[i].tensor;
        if (job->pushing.pushed[micro][tensor] || job->spec.tensors[tensor].kind != CAIRN_TRAINED)
            continue;
        if (count == 0 || out[count - 1] != tensor) out[count++] = tensor;
    }
    return count;
}

static cairn_status send_micro_end(const struct shard_link *owner, struct chunk_link *conn,
                                   struct chunk_header *header)
{
    const struct served_layout *served = owner->job->pushing.served;
    struct chunk_absent *absent = chunk_absent_new(conn,
                                                   served->parts[owner->index].map.extent_count);
    if (absent == NULL) return CAIRN_ERR_NO_MEMORY;
    return chunk_absent_send(absent, header, list_absent(owner, header->micro, absent->tensors));
}

/* Sends a chunk, an end or a commit. If the carrier refuses a send, for whatever reason, the
 * message is sent again over a new connection. */
static void send_pushed(struct job *job, const struct push_action *action)
{
    const struct shard_link *owner = job->shards.links[action->shard];
    struct shard_link *via = carrier_of(job->shards.links[action->shard]);
    struct chunk_header header = pusher_header(&job->pushing.pusher, action);
    cairn_status status;
    if (action->kind == CAIRN_PUSH_SEND_CHUNK) {
        struct parcel *parcel = parcel_of_request(job, action->cookie);
        // the parcel is not released yet
        assert(parcel != NULL && parcel->kind == CAIRN_CHUNK_PUSH);
        status = parcel_send(parcel, via->index, &header);
    } else {
        header.tensor = owner->relayed ? owner->index + 1 : 0;
        status = action->kind == CAIRN_PUSH_SEND_MICRO_END
                     ? send_micro_end(owner, &via->conn, &header)
                     : chunk_link_send(&via->conn, &header, NULL, 0, NULL, NULL);
    }
    if (status != CAIRN_OK) chunk_link_restart(&via->conn);
}

static void say_refused(const struct job *job, const struct push_action *action,
                        struct sentence *out)
{
    const char *shard = job->shards.links[action->shard]->name;
    if (action->status == CAIRN_ERR_INVALID) // only a commit is refused with this status
        sentence_set(out,
                     "the weights of all workers come to more than 2^53 with this worker's "
                     "%" PRIu64 "; commit smaller ones",
                     job->filling.weight);
    else
        sentence_set(out, "shard %s refused what this worker sent: %s", shard,
                     status_text((int)action->status));
    sentence_add(out, "; round %" PRIu64 " is given up, for all workers",
                 job->pushing.pusher.round);
}

/* The refusals STALE and FENCED follow from messages that the coordinator has sent or will send.
 * The coordinator does not know of any other refusal, and the shard waits for the data that it
 * refused. So the round is given up, and the worker's calls in the round report why. */
static void note_refused(struct job *job, const struct push_action *action)
{
    const uint64_t round = job->pushing.pusher.round;
    if (action->status == CAIRN_ERR_STALE || action->status == CAIRN_ERR_FENCED) return;
    pthread_mutex_lock(&job->session->lock);
    job->filling.refused_round = round;
    job->filling.refused_status = action->status;
    say_refused(job, action, &job->filling.refused_why);
    pthread_mutex_unlock(&job->session->lock);
    job->pushing.gives_up = round;
    session_kick(job->session);
}

/* Carries out the machine's actions. Called after each call of the machine. */
static void carry_out(struct job *job)
{
    struct push_actions *actions = &job->pushing.pusher.actions;
    for (size_t i = 0; i < actions->count; i++) {
        const struct push_action *action = &actions->list[i];
        struct parcel *parcel;
        switch (action->kind) {
        case CAIRN_PUSH_SEND_CHUNK:
        case CAIRN_PUSH_SEND_MICRO_END:
        case CAIRN_PUSH_SEND_COMMIT: send_pushed(job, action); break;
        case CAIRN_PUSH_RELEASED:
            parcel = parcel_of_request(job, action->cookie);
            if (parcel != NULL) parcel_end(parcel, action->status);
            break;
        case CAIRN_PUSH_VOID: note_refused(job, action); break;
        }
    }
    actions->count = 0;
}

/* ---- the machine's life ---- */

/* Ends every parcel of the push machine, and drops the machine. */
static void pushes_drop(struct job *job, cairn_status status)
{
    if (job->pushing.pusher.push == NULL) return;
    job->pushing.pusher.push = NULL;
    for (uint32_t i = 0; i < job->parcels.count; i++) {
        struct parcel *parcel = job->parcels.all[i];
        if (parcel->op != NULL && parcel->kind == CAIRN_CHUNK_PUSH) parcel_end(parcel, status);
    }
    for (uint32_t i = 0; i < job->pushing.micro_count; i++) free(job->pushing.pushed[i]);
    free(job->pushing.pushed);
    job->pushing.pushed = NULL;
    job->pushing.micro_count = 0;
}

void pushes_release(struct job *job)
{
    pusher_close(&job->pushing.pusher);
    served_layout_put(job->pushing.served);
    job->pushing.served = NULL;
}

/* Opens the pusher for the newest layout, which is the round's layout. */
static cairn_status open_pusher(struct job *job)
{
    uint64_t chunks = 0;
    struct served_layout *served = job->served;
    if (job->pushing.served == served) return CAIRN_OK;
    pushes_release(job);
    for (uint32_t i = 0; i < served->layout->shard_count; i++)
        chunks += served->parts[i].map.chunk_count;
    // The queue has room for two micro-batches: one that is being answered, and one that is being
    // filled. Further pushes are stalled, not refused.
    const uint64_t queue = 2 * chunks + 4 * (uint64_t)served->layout->shard_count;
    if (queue > UINT32_MAX) return CAIRN_ERR_NO_MEMORY;
    const struct push_config config = { .shard_count = served->layout->shard_count,
                                        .queue_max = (uint32_t)queue };
    const cairn_status status = pusher_open(&job->pushing.pusher, &config);
    if (status == CAIRN_OK) job->pushing.served = served_layout_get(served);
    return status;
}

static cairn_status on_opened(struct job *job, uint32_t request, ProtobufCMessage *message)
{
    const Cairn__RoundOpened *opened = (const Cairn__RoundOpened *)message;
    (void)request;
    if (job->pushing.pusher.push != NULL && job->pushing.pusher.round == opened->round)
        return CAIRN_OK;
    pushes_drop(job, CAIRN_ERR_EPOCH_CHANGED);
    job->attachment.seen_epoch = opened->epoch;
    job->attachment.seen_store = job->session->control.store;
    if (opened->rank >= opened->world) { // a surplus worker, to which no shard grants the round
        pushes_release(job);
        return CAIRN_OK;
    }
    CAIRN_TRY(open_pusher(job));
    pusher_begin(&job->pushing.pusher, opened->epoch, opened->round);
    for (uint32_t i = 0; i < job->pushing.served->layout->shard_count; i++)
        if (job->pushing.served->parts[i].absent) push_absent(job->pushing.pusher.push, i);
    for (uint32_t i = 0; i < job->shards.count; i++) {
        job->shards.links[i]->carrier = NULL;
        job->shards.links[i]->relayed = false;
        job->shards.links[i]->grant_deadline_ms = monotonic_ms() + GRANT_MAX_MS;
        pushes_on_grant(job->shards.links[i]);
    }
    return CAIRN_OK;
}

void pushes_on_grant(struct shard_link *owner)
{
    struct job *job = owner->job;
    struct pusher *pusher = &job->pushing.pusher;
    const struct chunk_header *grant = &owner->grant;
    if (!pusher_takes(pusher, grant)) return;
    owner->carrier = pushes_granter(owner);
    owner->relayed = grant->tensor != 0;
    push_on_grant(pusher->push, owner->index, grant->request,
                  grant_window(grant, chunk_link_shares(&owner->carrier->conn)), &pusher->actions);
    carry_out(job);
    // A HELLO may have overtaken the GRANT.
    push_on_hello(pusher->push, owner->index, owner->carrier->conn.way, &pusher->actions);
    carry_out(job);
}

/* Tells the machine of the HELLO for each owner that is reached over `link`. An owner that has not
 * granted yet is skipped, since the link to this owner is not known yet. */
void pushes_on_hello(struct shard_link *link, uint64_t way)
{
    struct job *job = link->job;
    struct pusher *pusher = &job->pushing.pusher;
    uint32_t i;
    for (const uint32_t end = owners_of(link, &i); i < end; i++) {
        if (job->shards.links[i]->carrier != link) continue;
        push_on_hello(pusher->push, i, way, &pusher->actions);
        carry_out(job);
    }
}

/* A shard that has granted for others may also have granted for an owner whose grant has not
 * arrived. */
bool pushes_waits(const struct shard_link *link)
{
    const struct job *job = link->job;
    uint32_t i;
    for (const uint32_t end = owners_of(link, &i); i < end; i++) {
        const struct shard_link *carrier = job->shards.links[i]->carrier;
        if ((carrier == NULL || carrier == link) && push_waits(job->pushing.pusher.push, i))
            return true;
    }
    return false;
}

static void lose_owner(struct shard_link *owner, const struct shard_link *link)
{
    struct pusher *pusher = &owner->job->pushing.pusher;
    const bool was_its = carrier_of(owner) == link;
    if (pushes_granter(owner) == link) owner->grant = (struct chunk_header) { 0 };
    if (!was_its) return;
    owner->carrier = NULL;
    owner->relayed = false;
    push_on_lost(pusher->push, owner->index, &pusher->actions);
    carry_out(owner->job);
}

void pushes_lost(struct shard_link *link)
{
    uint32_t i;
    for (const uint32_t end = owners_of(link, &i); i < end; i++)
        lose_owner(link->job->shards.links[i], link);
}

static cairn_status on_result(struct job *job, uint32_t request, ProtobufCMessage *message)
{
    const Cairn__RoundResult *result = (const Cairn__RoundResult *)message;
    struct session *s = job->session;
    (void)request;
    const bool is_void = result->status == CAIRN_ERR_EPOCH_CHANGED;
    pthread_mutex_lock(&s->lock);
    if (is_void && result->round >= job->filling.void_round) {
        job->filling.void_round = result->round;
        sentence_set(&job->filling.void_why, "%s", result->text);
    }
    const struct cairn_version version = { result->generation, result->step };
    // An answer to a late request names a version that is no longer the newest.
    if (!is_void && version_compare(version, job->known.newest) > 0) job->known.newest = version;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    struct pusher *pusher = &job->pushing.pusher;
    if (pusher->push == NULL || pusher->round > result->round) return CAIRN_OK;
    if (!is_void && pusher->round == result->round) {
        push_on_result(pusher->push, &pusher->actions);
        carry_out(job);
    }
    pushes_drop(job, is_void ? CAIRN_ERR_EPOCH_CHANGED : CAIRN_OK);
    return CAIRN_OK;
}

const struct message_row pushes_rows[] = {
    { .type = CAIRN_MSG_ROUND_OPENED, .handle = on_opened },
    { .type = CAIRN_MSG_ROUND_RESULT, .handle = on_result },
    { .type = 0 },
};

/* ---- commands ---- */

/* The result of cutting a target. WHOLE: the target is completely cut. LATER: the rest is cut
 * later. ENDED: the command is over. */
enum cut_pushes { CUT_WHOLE, CUT_LATER, CUT_ENDED };

static bool round_is_over(const struct command *command)
{
    const struct job *job = command->job;
    return job->pushing.pusher.push == NULL || job->pushing.pusher.round != command->round ||
           push_voided(job->pushing.pusher.push);
}

/* Handles a lack of memory: the command is run again in the next iteration, from the point that it
 * had reached. A push that is cut in part is neither pushed nor absent, so the job fails for this
 * worker if memory stays lacking. True: the job has failed. */
static bool starve_command(struct command *command, const char *doing)
{
    const uint64_t now_ms = monotonic_ms();
    if (command->starved_ms == 0) command->starved_ms = now_ms;
    if (now_ms - command->starved_ms < STARVED_MS) return false;
    struct sentence why;
    sentence_set(&why, "out of memory %s, for %d s; close the job, and open it again", doing,
                 STARVED_MS / 1000);
    job_fail(command->job, CAIRN_ERR_NO_MEMORY, why.text);
    if (command->op != NULL) op_let_go(command->op, CAIRN_ERR_NO_MEMORY, why.text);
    return true;
}

/* Returns the list of the tensors that were pushed in `micro`, created on first use. */
static uint8_t *pushed_in(struct job *job, uint32_t micro)
{
    if (micro < job->pushing.micro_count) return job->pushing.pushed[micro];
    if (micro != job->pushing.micro_count)
        return NULL; // the round was reported twice, which must not abort the host process
    uint8_t **lists = realloc(job->pushing.pushed, (micro + 1) * sizeof *lists);
    if (lists == NULL) return NULL;
    job->pushing.pushed = lists;
    lists[micro] = calloc(job->spec.tensor_count + 1, 1);
    if (lists[micro] != NULL) job->pushing.micro_count++;
    return lists[micro];
}

static bool end_command(struct command *command, cairn_status status, const char *why)
{
    op_let_go(command->op, status, why);
    return true;
}

/* Returns the state of the work that was queued on the command's stream before the command. This
 * work writes the data that a push reads, or reads the data that a fetch overwrites. `why` is set
 * if the work failed. */
static enum card_state state_of_stream(struct command *command, struct sentence *why)
{
    if (command->event == NULL) return CARD_DONE;
    const enum card_state state = card_event_state(command->event, why);
    if (state == CARD_WAITS) return state;
    card_event_free(command->event);
    command->event = NULL;
    return state;
}

/* A chunk that is cut, and the command's position before it. */
struct cut_chunk {
    struct parcel *parcel;
    struct push_chunk chunk;
    uint32_t shard;
    size_t next_extent;
    uint64_t next_chunk;
    const struct local_extent *local;
};

/* Returns where a shard may read the parcel's bytes. Small chunks have a window of their own, and
 * small host memory is copied into the message. A list copies memory of a card that it pushes, and
 * sends the copy. */
static enum push_lies where_lies(const struct command *command, const struct parcel *parcel)
{
    const struct op *op = command->op;
    const void *region = op->regions != NULL
                             ? op->regions[op->region_count - 1 - command->targets_left]
                             : op->region;
    const struct fabric_peer *peer =
        carrier_of(command->job->shards.links[parcel->shard])->conn.peer;
    if (command->target->card == NULL) {
        const bool is_shown = region != NULL && parcel->data.bytes != NULL &&
                              parcel->data.byte_count > CAIRN_CHUNK_SMALL;
        return is_shown ? CAIRN_PUSH_LIES_HOST : CAIRN_PUSH_LIES_APART;
    }
    const bool is_shown =
        op->region != NULL && peer != NULL && parcel->data.bytes != NULL &&
        strcmp(fabric_payload_path(peer, parcel->data.bytes, parcel->data.byte_count), "device") ==
            0;
    return is_shown ? CAIRN_PUSH_LIES_CARD : CAIRN_PUSH_LIES_APART;
}

/* Cuts the next chunks, at most `max`; fewer if no more are left, or if memory is lacking
 * (*starves_out). Nothing is copied ahead for a pusher that is full: the copies would be discarded
 * and repeated in each iteration. */
static size_t cut_some(struct command *command, struct cut_chunk *cuts, size_t max,
                       bool *starves_out)
{
    uint32_t shard;
    uint64_t chunk;
    size_t count = 0;
    *starves_out = false;
    while (count < max && command_chunk(command, &shard, &chunk)) {
        struct parcel *parcel = parcel_new(command->job, command, shard, chunk);
        *starves_out = parcel == NULL;
        if (parcel == NULL) break;
        cuts[count++] = (struct cut_chunk) {
            .parcel = parcel,
            .chunk = { .chunk = (uint32_t)chunk,
                       .is_small = parcel->data.byte_count <= CAIRN_CHUNK_SMALL,
                       .lies = where_lies(command, parcel),
                       .cookie = chunk_request_number(&parcel->request) },
            .shard = shard,
            .next_extent = command->next_extent,
            .next_chunk = command->next_chunk++,
            .local = command->local,
        };
        if (command->is_held_up) continue;
        stage_queue(parcel);
    }
    return count;
}

/* Undoes the cut of the i-th chunk and of all later chunks, for which the pusher has no room. These
 * chunks are cut again later. */
static void uncut(struct command *command, const struct cut_chunk *cuts, size_t i, size_t count)
{
    command->next_extent = cuts[i].next_extent;
    command->next_chunk = cuts[i].next_chunk;
    command->local = cuts[i].local;
    while (count > i) parcel_undo(cuts[--count].parcel);
}

/* Cuts the rest of a target into parcels, some at a time. Parcels that have to be copied before
 * they are sent are queued for the copy when they are cut. */
static enum cut_pushes cut_target(struct command *command)
{
    struct job *job = command->job;
    struct pusher *pusher = &job->pushing.pusher;
    struct cut_chunk cuts[CAIRN_STAGE_AHEAD];
    bool starves = false;
    job->pushing.pushed[command->micro][command->target->tensor] = 1;
    for (size_t count; !starves;) {
        count = cut_some(command, cuts, command->is_held_up ? 1 : CAIRN_STAGE_AHEAD, &starves);
        if (count == 0) break;
        command->starved_ms = 0;
        for (size_t i = 0; i < count; i++) {
            const cairn_status status = push_chunk(pusher->push, cuts[i].shard, command->micro,
                                                   cuts[i].chunk, &pusher->actions);
            carry_out(job);
            command->is_held_up = status == CAIRN_ERR_BUSY;
            if (status == CAIRN_OK) continue;
            uncut(command, cuts, i, count);
            if (status == CAIRN_ERR_BUSY) return CUT_LATER;
            end_command(command, status, NULL);
            return CUT_ENDED;
        }
    }
    if (!starves) return CUT_WHOLE;
    return starve_command(command, "in the middle of a push") ? CUT_ENDED : CUT_LATER;
}

/* Moves on to the command's next target; false: there is no next target. */
static bool command_next(struct command *command)
{
    if (command->targets_left == 0) return false;
    command->targets_left--;
    command->target++;
    command->next_extent = 0;
    command->next_chunk = 0;
    command->local = NULL;
    return true;
}

/* Ends the op and returns true if the job is closing or has failed. */
static bool command_refused(struct command *command)
{
    const struct failure *failure = &command->job->failure;
    if (failure->status != CAIRN_OK)
        return end_command(command, failure->status, failure->why.text);
    return command->job->closing && end_command(command, CAIRN_ERR_CANCELED, "the job is closed");
}

/* If the work that writes the gradient failed, there is no gradient, and the tensor can be neither pushed
 * nor absent. So the job fails for this worker; the context of its card has failed as well. */
bool pushes_run(struct command *command)
{
    struct job *job = command->job;
    struct sentence why;
    if (command_refused(command)) return true;
    if (round_is_over(command)) return end_command(command, CAIRN_ERR_EPOCH_CHANGED, NULL);
    const enum card_state state = state_of_stream(command, &why);
    if (state == CARD_WAITS) {
        job->turn.awaits_stream = true;
        return false;
    }
    if (state == CARD_FAILED) {
        job_fail(job, CAIRN_ERR_IO, why.text);
        return end_command(command, CAIRN_ERR_IO, job->failure.why.text);
    }
    if (command->served == NULL) command->served = served_layout_get(job->pushing.served);
    if (pushed_in(job, command->micro) == NULL) return starve_command(command, "for a push");
    enum cut_pushes cut;
    do {
        cut = cut_target(command);
    } while (cut == CUT_WHOLE && command_next(command));
    return cut == CUT_WHOLE ? end_command(command, CAIRN_OK, NULL) : cut == CUT_ENDED;
}

bool pushes_micro_end_run(struct command *command)
{
    struct job *job = command->job;
    if (round_is_over(command)) return true;
    if (pushed_in(job, command->micro) == NULL)
        return starve_command(command, "at the end of a micro-batch");
    struct pusher *pusher = &job->pushing.pusher;
    const cairn_status status = push_micro_end(pusher->push, command->micro, &pusher->actions);
    carry_out(job);
    return status != CAIRN_ERR_BUSY;
}

bool pushes_commit_run(struct command *command)
{
    struct job *job = command->job;
    if (round_is_over(command)) return true;
    struct pusher *pusher = &job->pushing.pusher;
    const cairn_status status = push_commit(pusher->push, command->weight, &pusher->actions);
    carry_out(job);
    return status != CAIRN_ERR_BUSY;
}

/* ==== transfer ==== */

/* Puts and fetches are cut into chunks, which the asker of each shard sends and resends. A shard of
 * this host may relay for a shard of another host (proto/wire/wire.h, "Relays"). Fetches are then
 * sent to the relay, and for data that the relay does not have, to the owner. Loop thread. */

#define COPIED_MAX ((size_t)8 << 20) /* bytes copied from mapped memory before other work runs */

/* Returns true if the chunk may be requested from a relay: it is a whole chunk of published
 * parameters, and this host shares no memory with the chunk's owner. */
static bool may_relay(const struct shard_link *owner, const struct parcel *parcel)
{
    return parcel->kind == CAIRN_CHUNK_FETCH && parcel->tile == CAIRN_TILE_WHOLE &&
           parcel->plane == CAIRN_PLANE_WIRE && !parcel->direct && !chunk_link_shares(&owner->conn);
}

/* Returns the shard to ask: a relay, unless it has reported that it does not relay this owner's
 * chunks. */
static struct shard_link *route(struct shard_link *owner, const struct parcel *parcel)
{
    struct shard_link *relay = pushes_granter(owner);
    if (relay == owner || owner->declined || !may_relay(owner, parcel)) return owner;
    return chunk_link_shares(&relay->conn) ? relay : owner;
}

/* Returns true if the fetch must wait for the round's GRANT, which names the relay and may arrive
 * after the coordinator's message. Without this wait, each worker of the host would fetch the
 * parameters of the first round from the owner. */
static bool awaits_grant(const struct shard_link *owner, const struct parcel *parcel)
{
    const struct job *job = owner->job;
    const bool is_known = owner->grant.kind != 0 && !owner->declined;
    if (job->spec.reduce_groups != CAIRN_GROUPS_HOST || job->pushing.pusher.push == NULL ||
        is_known)
        return false;
    return owner->grant.round != job->pushing.pusher.round && may_relay(owner, parcel) &&
           monotonic_ms() < owner->grant_deadline_ms;
}

cairn_status transfer_send(struct chunk_request *request)
{
    struct parcel *parcel = (struct parcel *)((char *)request - offsetof(struct parcel, request));
    struct shard_link *owner = parcel->job->shards.links[parcel->shard];
    // the fetch waits for the GRANT, or for the tick
    if (awaits_grant(owner, parcel)) return CAIRN_ERR_NOT_READY;
    struct shard_link *via = route(owner, parcel);
    // Before the shard's HELLO, it is not known which of its endpoints the shard will use to
    // answer.
    if (!chunk_link_is_up(&via->conn)) return CAIRN_ERR_CLOSED;
    // A late answer of the shard that was asked before must not count for this request.
    if (via->index != parcel->via) request->serial++;
    struct chunk_header header = { .request = chunk_request_number(request) };
    const cairn_status status = parcel_send(parcel, via->index, &header);
    if (status == CAIRN_OK) via->asked++;
    return status;
}

/* Serves a fetch from memory that this host has. */
static bool copy_here(struct parcel *parcel, struct served_layout *served, uint64_t chunk,
                      const struct piece *piece)
{
    if (parcel->kind != CAIRN_CHUNK_FETCH) return false;
    if (parcel->target->card != NULL && parcel_open(parcel) != CAIRN_OK) return false;
    if (!mapped_read(parcel, served, chunk, piece)) return false;
    WITH_LOCK(&parcel->job->session->lock, mapped_count(parcel->job, parcel->data.byte_count));
    parcel_arrived(parcel);
    return true;
}

/* Copies an entire tensor on the card that fetches it, if shards publish the tensor on that
 * card. */
static bool copy_on_card(struct command *command)
{
    struct job *job = command->job;
    const struct target *target = command->target;
    if (command->op->kind != CAIRN_CHUNK_FETCH || target->card == NULL || command->next_chunk > 0 ||
        command->plane != CAIRN_PLANE_WIRE || !target->piece.whole ||
        !published_view_copy(job, command->version, target->tensor, target->card, target->ptr))
        return false;
    const uint64_t bytes = box_element_count(&target->piece.box) * dtype_size(target->dtype);
    HOLD_LOCK(&job->session->lock);
    mapped_count(job, bytes);
    job->measured.stats.device_fetched_bytes += bytes;
    return true;
}

/* Cuts the rest of a target into parcels. CAIRN_ERR_BUSY: enough was copied in this iteration. */
static cairn_status cut_transfer(struct command *command, size_t *copied)
{
    struct job *job = command->job;
    uint32_t shard;
    uint64_t chunk;
    for (; command_chunk(command, &shard, &chunk); command->next_chunk++) {
        if (*copied >= COPIED_MAX) return CAIRN_ERR_BUSY;
        struct parcel *parcel = parcel_new(job, command, shard, chunk);
        if (parcel == NULL) return CAIRN_ERR_NO_MEMORY;
        if (copy_here(parcel, command->served, chunk, &command->target->piece))
            *copied += parcel->data.byte_count;
        else
            asker_ask(&job->shards.links[shard]->asker, &parcel->request);
    }
    return CAIRN_OK;
}

/* Returns true if the caller has canceled the op, or the list that it belongs to. */
static bool op_is_canceled(const struct op *op)
{
    return op->is_canceled || (op->of != NULL && op->of->is_canceled);
}

bool transfer_run(struct command *command)
{
    struct job *job = command->job;
    struct sentence why;
    if (command_refused(command)) return true;
    if (op_is_canceled(command->op)) return end_command(command, CAIRN_ERR_CANCELED, NULL);
    const enum card_state state = state_of_stream(command, &why);
    if (state == CARD_WAITS) return false;
    if (state == CARD_FAILED) return end_command(command, CAIRN_ERR_IO, why.text);
    if (copy_on_card(command)) return end_command(command, CAIRN_OK, NULL);
    if (command->served == NULL)
        command->served = served_layout_get(
            recut_layout(job, command->op->kind, command->plane, command->version));
    cairn_status status = CAIRN_OK;
    size_t copied = 0;
    do {
        status = cut_transfer(command, &copied);
    } while (status == CAIRN_OK && command_next(command));
    if (status == CAIRN_ERR_BUSY) { // meanwhile messages must be answered
        session_kick(job->session);
        return false;
    }
    askers_pump(job);
    return end_command(command, status, NULL);
}

/* Returns the parcel that was answered, which is no longer in flight; NULL: the answer is to an
 * earlier use of the parcel or from an earlier connection. */
static struct parcel *parcel_answered(struct shard_link *link, const struct chunk_header *h)
{
    struct parcel *parcel = parcel_of_request(link->job, h->request);
    if (parcel == NULL || parcel->shard != link->index ||
        !asker_answered(&link->asker, &parcel->request, h->request))
        return NULL;
    link->job->shards.links[parcel->via]->asked--;
    return parcel;
}

/* Asks the owner for a chunk that a relay refuses for good; returns true if the owner was asked.
 * NOT_FOUND: the relay does not relay this owner's chunks. */
static bool ask_owner(struct shard_link *owner, struct parcel *parcel, uint64_t status)
{
    if (parcel->via == owner->index || status == CAIRN_ERR_BUSY || status == CAIRN_ERR_CHECKSUM)
        return false;
    if (status == CAIRN_ERR_NOT_FOUND) owner->declined = true;
    parcel->direct = true;
    asker_ask(&owner->asker, &parcel->request);
    return true;
}

/* Handles a NAK. */
static void refused_transfer(struct shard_link *owner, struct parcel *parcel, uint64_t status)
{
    if (ask_owner(owner, parcel, status) || asker_again(&owner->asker, &parcel->request, status) ||
        recut_refused(parcel, status))
        return;
    const bool is_known = status <= CAIRN_ERR_INTERNAL && status_known((int)status) &&
                          status != CAIRN_OK;
    parcel_end(parcel, is_known ? (cairn_status)status : CAIRN_ERR_PROTOCOL);
}

static void transfer_answered(struct shard_link *link, const struct chunk_header *h)
{
    struct parcel *parcel = parcel_answered(link, h);
    if (parcel == NULL) return;
    if (h->kind == CAIRN_CHUNK_ACK)
        parcel_end(parcel, parcel->kind == CAIRN_CHUNK_PUT ? CAIRN_OK : CAIRN_ERR_PROTOCOL);
    else
        refused_transfer(link, parcel, h->value);
    asker_pump(&link->asker);
}

void pushes_on_answer(struct shard_link *owner, const struct chunk_header *h)
{
    struct pusher *pusher = &owner->job->pushing.pusher;
    // Answers to pushes carry the push machine's own numbers.
    if (h->kind != CAIRN_CHUNK_MICRO_ACK && (h->request & CAIRN_REQUEST_OF_ASKER) != 0) {
        transfer_answered(owner, h);
    } else if (pusher_takes(pusher, h)) {
        pusher_on_answer(pusher, owner->index, h);
        carry_out(owner->job);
    }
}

/* ---- data ---- */

static bool is_answer_to(const struct chunk_header *h, const struct parcel *parcel)
{
    return parcel->kind == CAIRN_CHUNK_FETCH && h->tensor == parcel->place.tensor &&
           h->first_leaf == parcel->place.first_leaf && h->leaf_count == parcel->place.leaf_count &&
           h->plane == parcel->plane && h->dtype == parcel->dtype &&
           h->payload_bytes == parcel->data.byte_count &&
           h->generation == parcel->version.generation && h->step == parcel->version.step;
}

void transfer_on_data(struct shard_link *link, const struct chunk_header *h,
                      struct fabric_message *message)
{
    struct parcel *parcel = parcel_answered(link, h);
    if (parcel == NULL || !is_answer_to(h, parcel)) {
        fabric_drop(message);
        if (parcel != NULL) parcel_end(parcel, CAIRN_ERR_PROTOCOL);
        return;
    }
    parcel_receive(parcel, h, message);
}

/* ---- losses ---- */

void transfer_lost(struct shard_link *link)
{
    struct job *job = link->job;
    for (uint32_t i = 0; i < job->parcels.count; i++) {
        struct parcel *parcel = job->parcels.all[i];
        if (parcel->via == link->index)
            asker_lost(&job->shards.links[parcel->shard]->asker, &parcel->request);
    }
    link->asked = 0;
}

void transfer_cancel(struct job *job)
{
    for (uint32_t i = 0; i < job->parcels.count; i++) {
        struct parcel *parcel = job->parcels.all[i];
        if (parcel->op == NULL || parcel->kind != CAIRN_CHUNK_FETCH || parcel->answered ||
            !op_is_canceled(parcel->op))
            continue;
        parcel_withdraw(parcel);
        parcel_end(parcel, CAIRN_ERR_CANCELED);
    }
    askers_pump(job);
}

/* Ends every put and fetch of the job with `status`. */
static void transfer_fail_all(struct job *job, cairn_status status)
{
    for (uint32_t i = 0; i < job->shards.count; i++) job->shards.links[i]->asked = 0;
    for (uint32_t i = 0; i < job->parcels.count; i++) {
        struct parcel *parcel = job->parcels.all[i];
        if (parcel->op == NULL || parcel->kind == CAIRN_CHUNK_PUSH) continue;
        asker_drop(&job->shards.links[parcel->shard]->asker, &parcel->request);
        parcel_end(parcel, status);
    }
}

/* ==== fail ==== */

void fail_calls(struct job *job, cairn_status status, const char *text)
{
    struct session *s = job->session;
    HOLD_LOCK(&s->lock);
    if (job->failure.status == CAIRN_OK) {
        job->failure.status = status;
        sentence_set(&job->failure.why, "%s", text);
    }
    pthread_cond_broadcast(&s->changed);
}

void fail_parcels(struct job *job, cairn_status status)
{
    attachment_lost(job);
    pushes_drop(job, status);
    transfer_fail_all(job, status);
}

void job_fail(struct job *job, cairn_status status, const char *text)
{
    fail_calls(job, status, text);
    fail_parcels(job, status);
    session_kick(job->session);
}
