/* Pushes: drives the push machine of the open round. What is for an owner goes over the connection of
 * the shard that granted: its own, or that of a relay of this host (chunk.h, "Relays"). Loop thread. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/session.h"

#define GRANT_MAX_MS 300 /* that a fetch waits, after the coordinator's word, for a shard's */

/* ---- by whom ---- */

static struct shard_link *carrier_of(struct shard_link *owner)
{
    return owner->carrier != NULL ? owner->carrier : owner;
}

/* In MICRO_END and COMMIT: whom it is for, where a relay is told. */
static uint32_t mark_of(const struct shard_link *owner)
{
    return owner->relayed ? owner->index + 1 : 0;
}

/* The owners that a connection may be for: its own, and of one that relays any: [*first_out, end). */
static uint32_t owners_of(const struct shard_link *link, uint32_t *first_out)
{
    *first_out = link->relays ? 0 : link->index;
    return link->relays ? link->job->shard_count : link->index + 1;
}

/* ---- actions ---- */

static void send_chunk(struct job *job, const struct cairn_push_action *action)
{
    struct part *part = cairn_part_of_cookie(job, action->cookie);
    assert(part != NULL &&
           part->kind == CAIRN_CHUNK_PUSH); // the machine has it: it is not released
    struct cairn_chunk_header header = {
        .epoch = job->push_epoch,
        .round = job->push_round,
        .micro = action->micro,
        .request = action->request,
    };
    struct shard_link *carrier = carrier_of(&job->shards[action->shard]);
    cairn_status status = cairn_part_send(part, carrier->index, &header);
    // Whatever refuses it, a new connection sends it again.
    if (status != CAIRN_OK) cairn_link_restart(carrier);
}

/* The list of absent tensors, on loan to the fabric. */
struct note {
    struct shard_link *link;
    uint32_t tensors[];
};

static void on_note_sent(void *arg, cairn_status status)
{
    struct note *note = arg;
    (void)status;
    note->link->on_loan--;
    free(note);
}

/* Trained tensors of this shard that were not pushed in the micro-batch, ascending. */
static size_t list_absent(const struct job *job, const struct shard_link *link, uint32_t micro,
                          uint32_t *out)
{
    size_t count = 0;
    for (size_t i = 0; i < link->map.extent_count; i++) {
        const uint32_t tensor = link->map.extents[i].tensor;
        if (job->pushed[micro][tensor] || job->spec.tensors[tensor].kind != CAIRN_TRAINED) continue;
        if (count == 0 || out[count - 1] != tensor) out[count++] = tensor;
    }
    return count;
}

static void send_micro_end(struct job *job, const struct cairn_push_action *action)
{
    const struct shard_link *owner = &job->shards[action->shard];
    struct shard_link *link = carrier_of(&job->shards[action->shard]);
    struct note *note = malloc(sizeof *note + (owner->map.extent_count + 1) * sizeof(uint32_t));
    if (note == NULL) {
        cairn_link_restart(link); // as if it were lost: it is sent again
        return;
    }
    note->link = link;
    const size_t count = list_absent(job, owner, action->micro, note->tensors);
    struct cairn_chunk_header header = {
        .kind = CAIRN_CHUNK_MICRO_END,
        .epoch = job->push_epoch,
        .round = job->push_round,
        .micro = action->micro,
        .tensor = mark_of(owner),
        .value = action->sent,
    };
    link->on_loan++;
    cairn_status status = cairn_link_send(link, &header, count > 0 ? note->tensors : NULL,
                                          count * sizeof(uint32_t), on_note_sent, note);
    if (status == CAIRN_OK) return;
    on_note_sent(note, status);
    cairn_link_restart(link);
}

static void send_commit(struct job *job, const struct cairn_push_action *action)
{
    struct shard_link *owner = &job->shards[action->shard], *carrier = carrier_of(owner);
    struct cairn_chunk_header header = {
        .kind = CAIRN_CHUNK_COMMIT,
        .epoch = job->push_epoch,
        .round = job->push_round,
        .micro = action->micro,
        .tensor = mark_of(owner),
        .value = action->weight,
    };
    cairn_status status = cairn_link_send(carrier, &header, NULL, 0, NULL, NULL);
    if (status != CAIRN_OK) cairn_link_restart(carrier);
}

static void release(struct job *job, const struct cairn_push_action *action)
{
    struct part *part = cairn_part_of_cookie(job, action->cookie);
    if (part != NULL) cairn_part_end(part, action->status);
}

/* Does what the machine said, and empties the list. */
static void act(struct job *job)
{
    for (size_t i = 0; i < job->actions.count; i++) {
        const struct cairn_push_action *action = &job->actions.list[i];
        switch (action->kind) {
        case CAIRN_PUSH_SEND_CHUNK: send_chunk(job, action); break;
        case CAIRN_PUSH_SEND_MICRO_END: send_micro_end(job, action); break;
        case CAIRN_PUSH_SEND_COMMIT: send_commit(job, action); break;
        case CAIRN_PUSH_RELEASED: release(job, action); break;
        case CAIRN_PUSH_VOID: break; // how the round ended is the coordinator's to say
        }
    }
    job->actions.count = 0;
}

/* ---- the machine's life ---- */

static void forget_micros(struct job *job)
{
    for (uint32_t i = 0; i < job->micro_count; i++) free(job->pushed[i]);
    free(job->pushed);
    job->pushed = NULL;
    job->micro_count = 0;
}

void cairn_client_round_drop(struct job *job, cairn_status status)
{
    if (job->push == NULL) return;
    job->push = NULL;
    for (uint32_t i = 0; i < job->part_count; i++) {
        struct part *part = job->parts[i];
        if (part->op != NULL && part->kind == CAIRN_CHUNK_PUSH) cairn_part_end(part, status);
    }
    forget_micros(job);
}

static cairn_status make_machine(struct job *job)
{
    uint64_t chunks = 0;
    for (uint32_t i = 0; i < job->shard_count; i++) chunks += job->shards[i].map.chunk_count;
    // Two micro-batches: one being answered, one being filled. More is stalled, not refused.
    const uint64_t queue = 2 * chunks + 4 * (uint64_t)job->shard_count;
    if (queue > UINT32_MAX) return CAIRN_ERR_NO_MEMORY;
    const struct cairn_push_config config = { .shard_count = job->shard_count,
                                              .queue_max = (uint32_t)queue };
    const size_t bytes = cairn_push_bytes(&config), capacity = cairn_push_actions_max(&config);
    if (bytes == 0) return CAIRN_ERR_NO_MEMORY;
    if (job->push_memory == NULL) job->push_memory = malloc(bytes); // the layout never changes
    if (job->actions.list == NULL) job->actions.list = calloc(capacity, sizeof *job->actions.list);
    if (job->push_memory == NULL || job->actions.list == NULL) return CAIRN_ERR_NO_MEMORY;
    job->actions.capacity = capacity;
    job->actions.count = 0;
    job->push = cairn_push_init(job->push_memory, &config);
    return CAIRN_OK;
}

void cairn_client_round_on_opened(struct job *job, const Cairn__RoundOpened *opened)
{
    if (job->push != NULL && job->push_round == opened->round) return;
    cairn_client_round_drop(job, CAIRN_ERR_EPOCH_CHANGED);
    cairn_status status = make_machine(job);
    if (status != CAIRN_OK) {
        cairn_job_fail(job, status, "out of memory for a round of this job");
        return;
    }
    job->push_round = opened->round;
    job->push_epoch = opened->epoch;
    for (uint32_t i = 0; i < job->shard_count; i++) {
        job->shards[i].carrier = NULL;
        job->shards[i].relayed = false;
        job->shards[i].granted_by_ms = cairn_client_now_ms() + GRANT_MAX_MS;
        cairn_client_round_on_grant(&job->shards[i]);
    }
}

void cairn_client_round_on_grant(struct shard_link *owner)
{
    struct job *job = owner->job;
    const struct cairn_chunk_header *grant = &owner->grant;
    if (job->push == NULL || grant->kind == 0 || grant->round != job->push_round) return;
    const uint32_t window = grant->value >= 1 && grant->value <= 1024 ? (uint32_t)grant->value : 1;
    owner->carrier = cairn_link_granter(owner);
    owner->relayed = grant->tensor != 0;
    cairn_push_on_grant(job->push, owner->index, grant->request, window, &job->actions);
    act(job);
    // It may be an older one that a HELLO has overtaken.
    cairn_push_on_hello(job->push, owner->index, owner->carrier->way, &job->actions);
    act(job);
}

/* Of an owner that has not granted it is not known yet whose ways count. */
void cairn_client_round_on_hello(struct shard_link *link, uint64_t way)
{
    struct job *job = link->job;
    uint32_t i;
    if (job->push == NULL) return;
    for (const uint32_t end = owners_of(link, &i); i < end; i++) {
        if (job->shards[i].carrier != link) continue;
        cairn_push_on_hello(job->push, i, way, &job->actions);
        act(job);
    }
}

/* Whoever has granted for others may have granted for one that we have not heard of. */
bool cairn_client_round_waits(const struct shard_link *link)
{
    const struct job *job = link->job;
    uint32_t i;
    if (job->push == NULL) return false;
    for (const uint32_t end = owners_of(link, &i); i < end; i++) {
        const struct shard_link *carrier = job->shards[i].carrier;
        if ((carrier == NULL || carrier == link) && cairn_push_waits(job->push, i)) return true;
    }
    return false;
}

static void lose_owner(struct shard_link *owner, const struct shard_link *link)
{
    struct job *job = owner->job;
    const bool was_its = carrier_of(owner) == link;
    if (cairn_link_granter(owner) == link) owner->grant = (struct cairn_chunk_header) { 0 };
    if (!was_its) return;
    owner->carrier = NULL;
    owner->relayed = false;
    if (job->push == NULL) return;
    cairn_push_on_lost(job->push, owner->index, &job->actions);
    act(job);
}

void cairn_client_round_lost(struct shard_link *link)
{
    uint32_t i;
    for (const uint32_t end = owners_of(link, &i); i < end; i++)
        lose_owner(&link->job->shards[i], link);
}

void cairn_client_round_on_answer(struct shard_link *link, const struct cairn_chunk_header *h)
{
    struct job *job = link->job;
    if (job->push == NULL || h->round != job->push_round) return;
    if (h->kind == CAIRN_CHUNK_MICRO_ACK)
        cairn_push_on_micro_ack(job->push, link->index, h->micro, &job->actions);
    else if (h->kind == CAIRN_CHUNK_ACK)
        cairn_push_on_ack(job->push, link->index, h->request, &job->actions);
    else
        cairn_push_on_refuse(job->push, link->index, h->request,
                             h->value <= CAIRN_ERR_INTERNAL ? (cairn_status)h->value
                                                            : CAIRN_ERR_PROTOCOL,
                             &job->actions);
    act(job);
}

/* Who asked late hears of a version that is not the newest any more. */
static void note_version(struct job *job, struct cairn_version version)
{
    const bool newer = version.generation > job->newest.generation ||
                       (version.generation == job->newest.generation &&
                        version.step > job->newest.step);
    if (newer) job->newest = version;
}

void cairn_client_round_on_result(struct job *job, const Cairn__RoundResult *result)
{
    struct session *s = job->session;
    const bool is_void = result->status == CAIRN_ERR_EPOCH_CHANGED;
    pthread_mutex_lock(&s->lock);
    if (is_void && result->round > job->void_round) job->void_round = result->round;
    if (!is_void) note_version(job, (struct cairn_version) { result->generation, result->step });
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (job->push == NULL || job->push_round > result->round) return;
    if (!is_void && job->push_round == result->round) {
        cairn_push_on_result(job->push, &job->actions);
        act(job);
    }
    cairn_client_round_drop(job, is_void ? CAIRN_ERR_EPOCH_CHANGED : CAIRN_OK);
}

/* ---- commands ---- */

static bool round_is_over(const struct command *command)
{
    const struct job *job = command->job;
    return job->push == NULL || job->push_round != command->round || cairn_push_voided(job->push);
}

/* The list of what was pushed in `micro`, made when it is first named. */
static uint8_t *pushed_in(struct job *job, uint32_t micro)
{
    if (micro < job->micro_count) return job->pushed[micro];
    if (micro != job->micro_count)
        return NULL; // a round told twice: nothing of ours aborts its host
    uint8_t **lists = realloc(job->pushed, (micro + 1) * sizeof *lists);
    if (lists == NULL) return NULL;
    job->pushed = lists;
    lists[micro] = calloc(job->spec.tensor_count + 1, 1);
    if (lists[micro] != NULL) job->micro_count++;
    return lists[micro];
}

static bool end_push(struct command *command, cairn_status status, const char *why)
{
    cairn_op_part_end(command->op, status, why);
    return true;
}

bool cairn_client_round_push_run(struct command *command)
{
    struct job *job = command->job;
    uint32_t shard;
    uint64_t chunk;
    if (cairn_command_refused(command)) return true;
    if (round_is_over(command)) return end_push(command, CAIRN_ERR_EPOCH_CHANGED, NULL);
    uint8_t *pushed = pushed_in(job, command->micro);
    if (pushed == NULL) return end_push(command, CAIRN_ERR_NO_MEMORY, NULL);
    pushed[command->tensor] = 1;
    for (; cairn_command_chunk(command, &shard, &chunk); command->next_chunk++) {
        struct part *part = cairn_part_new(job, command, shard, chunk);
        if (part == NULL) { // half a tensor is neither pushed nor absent: the round could not end
            cairn_job_fail(job, CAIRN_ERR_NO_MEMORY, "out of memory in the middle of a push");
            return end_push(command, CAIRN_ERR_NO_MEMORY, NULL);
        }
        cairn_status status = cairn_push_chunk(job->push, shard, command->micro, (uint32_t)chunk,
                                               cairn_part_cookie(part), &job->actions);
        if (status != CAIRN_OK) cairn_part_undo(part);
        if (status == CAIRN_ERR_BUSY) return false;
        if (status != CAIRN_OK) return end_push(command, status, NULL);
        act(job);
    }
    return end_push(command, CAIRN_OK, NULL);
}

bool cairn_client_round_micro_end_run(struct command *command)
{
    struct job *job = command->job;
    if (round_is_over(command)) return true;
    if (pushed_in(job, command->micro) == NULL) {
        cairn_job_fail(job, CAIRN_ERR_NO_MEMORY, "out of memory at the end of a micro-batch");
        return true;
    }
    cairn_status status = cairn_push_micro_end(job->push, command->micro, &job->actions);
    act(job);
    return status != CAIRN_ERR_BUSY;
}

bool cairn_client_round_commit_run(struct command *command)
{
    struct job *job = command->job;
    if (round_is_over(command)) return true;
    cairn_status status = cairn_push_commit(job->push, command->weight, &job->actions);
    act(job);
    return status != CAIRN_ERR_BUSY;
}
