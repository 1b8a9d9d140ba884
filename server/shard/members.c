/* The connections to the members of a job.
 *
 * The shard connects to a member when the member joins. When the connection goes down, the shard
 * connects again on the member's next message. If the member was heard on the lost connection, the
 * shard also connects again after a short time. So a dead worker costs one try, and a worker that
 * is back is connected by its own HELLO. The shard waits this short time because UCX 1.13 aborts
 * when the other end is just dying (tcp_ep.c:478), and when both ends of a broken connection
 * connect again at the same time (tcp_cm.c:519). On every connection but the first the shard greets
 * the member. From this greeting the member learns that messages on the earlier connection may be
 * lost (proto/wire/wire.h). On the first connection the shard sends nothing before the member's own
 * HELLO, because UCX has problems if both ends begin to send at the same time. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/fabric/fabric.h"
#include "proto/snapshot/snapshot.h"
#include "server/shard/jobs.h"
#include "server/shard/part.h"
#include "server/shard/relay.h"
#include "server/shard/shard.h"

/* After this time a process that was killed has ended completely, and a process that lives has
 * already sent a message. */
#define AGAIN_MS 40

static void admit_member(struct shard_job *job, uint64_t member, struct request answer);

/* ---- connections ---- */

static void tell_core(struct shard_member *member, enum step_event_kind kind)
{
    if (member->role != CAIRN_ROLE_WIRE_WORKER) return;
    own_step(member->job, &(struct step_event) { .kind = kind, .member = member->number });
    relay_on_peer(member, kind);
}

static void on_down(void *arg, struct fabric_peer *peer, cairn_status why);

static void greet_member(struct shard_member *member)
{
    struct chunk_header hello = { .kind = CAIRN_CHUNK_HELLO,
                                  .request = member_way(member),
                                  .value = CAIRN_CHUNK_UNSUMMED };
    member_send(member, &hello);
}

static void say_unreachable(struct shard_member *member, cairn_status status)
{
    char here[CAIRN_PLACE_BYTES], there[CAIRN_PLACE_BYTES];
    size_t bytes;
    if (status == CAIRN_ERR_NO_MEMORY) {
        log_limited(
            &member->refusals, CAIRN_LOG_WARN,
            "out of memory to connect to %s of job %s: raise the limits of this process (ulimit "
            "-v, memory.max, vm.max_map_count); tried again when it speaks",
            member->name, member->job->spec.name);
        return;
    }
    const void *address = fabric_own_address(member->job->shard->fabric, &bytes);
    fabric_address_print_places(address, bytes, here);
    fabric_address_print_places(member->address, member->address_bytes, there);
    const bool is_networked = here[0] != '\0' && there[0] != '\0';
    log_limited(&member->refusals, CAIRN_LOG_WARN,
                "cannot reach %s of job %s, from here (%s) to it (%s): %s; if it runs, %s "
                "set fabric.device here and CAIRN_FABRIC_DEVICE there to devices of one "
                "network",
                member->name, member->job->spec.name, here[0] != '\0' ? here : "no network",
                there[0] != '\0' ? there : "no network", status_text((int)status),
                is_networked ? "look for a firewall on the way, in both directions, or"
                             : "and is on another host,");
}

static void connect_member(struct shard_member *member)
{
    assert(member->peer == NULL);
    member->heard = member->again = false;
    member->endpoint = ++member->job->shard->connects.made;
    const cairn_status status = fabric_connect_to(member->job->shard->fabric, member->address,
                                                  member->address_bytes, on_down, member,
                                                  &member->peer);
    if (status != CAIRN_OK) {
        member->peer = NULL;
        say_unreachable(member, status);
        return;
    }
    published_show(member);
}

/* Connects a member by a new endpoint. Then greets the member, so that it learns that messages on
 * the earlier endpoint may be lost. */
static void connect_again(struct shard_member *member)
{
    connect_member(member);
    if (member->peer == NULL) return;
    greet_member(member);
    tell_core(member, CAIRN_STEP_PEER_UP);
}

/* Closes the member's peer and tells the core. */
static void member_down(struct shard_member *member)
{
    if (member->peer == NULL) return;
    fabric_peer_close(member->peer);
    member->peer = NULL;
    member->cut = false;
    tell_core(member, CAIRN_STEP_PEER_DOWN);
}

/* Connects members whose connection went down and that have sent nothing since. This is the
 * function of the timer shard->connects.again. */
static void on_again(uv_timer_t *timer)
{
    const struct shard_daemon *shard = timer->data;
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next) {
        for (size_t i = 0; i < job->members.capacity; i++) {
            struct shard_member *member = job->members.list[i];
            if (member == NULL || !member->again) continue;
            member->again = false;
            if (member->peer == NULL) connect_again(member);
        }
    }
}

static void on_down(void *arg, struct fabric_peer *peer, cairn_status why)
{
    struct shard_member *member = arg;
    assert(peer == member->peer);
    (void)peer;
    log_info("%s of job %s is gone: %s", member->name, member->job->spec.name,
             status_text((int)why));
    const bool again = member->heard;
    member_down(member);
    if (!again) return;
    member->again = true;
    uv_timer_t *timer = &member->job->shard->connects.again;
    if (!uv_is_active((uv_handle_t *)timer)) uv_timer_start(timer, on_again, AGAIN_MS, 0);
}

void member_heard(struct shard_member *member)
{
    if (member->peer != NULL) {
        member->heard = true;
        return;
    }
    connect_again(member);
    member->heard = member->peer != NULL;
}

void member_hello(struct shard_member *member, uint64_t connection)
{
    const bool connected = member->peer != NULL;
    if (connection > member->connection) member->connection = (uint32_t)connection;
    member_heard(member);
    if (!connected) return; // connect_again has greeted the member and told the core
    greet_member(member);
    tell_core(member, CAIRN_STEP_PEER_UP);
}

/* ---- join and leave ---- */

static void member_free(struct shard_member *member)
{
    if (member->maps) published_left(member->job);
    tiles_forget(member);
    reply_forget(member);
    fabric_peer_close(member->peer);
    if (member->is_expected)
        fabric_forget(member->job->shard->fabric, member->address, member->address_bytes);
    free(member);
}

static cairn_status judge_join(const struct shard_job *job, const Cairn__MemberJoin *message,
                               struct sentence *why)
{
    if (message->role != CAIRN_ROLE_WIRE_WORKER && message->role != CAIRN_ROLE_WIRE_READER) {
        return fail_with(why, CAIRN_ERR_INVALID, "role %u is not worker or reader", message->role);
    }
    if (message->fabric_address.len > CAIRN_FABRIC_ADDRESS_MAX) {
        return fail_with(why, CAIRN_ERR_INVALID, "a fabric address of %zu bytes, at most %d",
                         message->fabric_address.len, CAIRN_FABRIC_ADDRESS_MAX);
    }
    if (job->members.count >= CAIRN_SHARD_MEMBERS_MAX) {
        return fail_with(why, CAIRN_ERR_BUSY, "job %s has %zu members, the most a shard takes",
                         job->spec.name, job->members.count);
    }
    return CAIRN_OK;
}

/* True if the member never left, and is only named again by a new coordinator. Such a member keeps
 * its connection, on which transfers continue. */
static bool is_here(struct shard_job *job, const Cairn__MemberJoin *message)
{
    struct shard_member *member = member_find(job, message->member);
    const bool same = member != NULL && member->peer != NULL && member->token == message->token &&
                      member->rank == message->rank && member->role == message->role &&
                      member->address_bytes == message->fabric_address.len &&
                      memcmp(member->address, message->fabric_address.data,
                             member->address_bytes) == 0;
    if (same) member->confirmed = job->shard->session.serial;
    return same;
}

cairn_status members_join(struct shard_job *job, const Cairn__MemberJoin *message,
                          struct sentence *why)
{
    CAIRN_TRY(judge_join(job, message, why));
    if (is_here(job, message)) return CAIRN_OK;
    const size_t bytes = message->fabric_address.len;
    struct shard_member *member = calloc(1, sizeof *member + bytes);
    if (member == NULL || members_make_room(job) != CAIRN_OK) {
        free(member);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a member");
    }
    member->job = job;
    member->tiles_hash = CAIRN_TABLE_HASH_WHOLE;
    struct shard_member *before = member_find(job, message->member);
    member->bytes.steps = job->bytes.steps;
    if (before != NULL) {
        tiles_move(before, member);
        if (before->role == message->role) reply_move(before, member);
        member->bytes = before->bytes;
    }
    members_leave(job, message->member); // the new member replaces an earlier one of this number
    member->number = message->member;
    member->token = message->token;
    member->confirmed = job->shard->session.serial;
    member->rank = message->rank;
    member->role = message->role;
    member->is_relay = message->relay;
    snprintf(member->name, sizeof member->name, "%s", message->name);
    member->address_bytes = bytes;
    if (bytes > 0) memcpy(member->address, message->fabric_address.data, bytes);
    // if it cannot be reached now, it may connect later
    member->is_expected = fabric_expect(job->shard->fabric, member->address, bytes) == CAIRN_OK;
    members_add(job, member);
    connect_member(member);
    if (member->peer != NULL) tell_core(member, CAIRN_STEP_PEER_UP);
    log_info("%s %s (rank %u) joined job %s", role_name(member->role), member->name, member->rank,
             job->spec.name);
    return CAIRN_OK;
}

void members_leave(struct shard_job *job, uint64_t number)
{
    struct shard_member *member = member_find(job, number);
    if (member == NULL) return;
    log_info("%s left job %s", member->name, job->spec.name);
    if (job_relay(job) != NULL) relay_fetch_forget(job_relay(job), number);
    member_down(member);
    members_take_out(job, member);
    member_free(member);
}

static void on_member_join(struct shard_job *job, struct request asked, const void *body)
{
    const Cairn__MemberJoin *message = body;
    struct sentence why;
    cairn_status status = members_join(job, message, &why);
    if (status == CAIRN_OK) {
        admit_member(job, message->member, asked);
        return;
    }
    log_warn("member %s of job %s refused: %s", message->name, job->spec.name, why.text);
    session_answer(job->shard, &asked, status, &why);
}

static void on_member_leave(struct shard_job *job, const void *message)
{
    const Cairn__MemberLeave *leave = message;
    members_leave(job, leave->member);
    if (leave->withdrawn) published_withdraw(job);
    admit_left(job);
}

/* Frees all members of a job that leaves or is freed. */
static void release_members(struct shard_job *job)
{
    for (size_t i = 0; i < job->members.capacity; i++) {
        if (job->members.list[i] == NULL) continue;
        // A closed fabric has freed the peers.
        if (job->shard->closing) {
            job->members.list[i]->peer = NULL;
            job->members.list[i]->is_expected = false;
        }
        member_free(job->members.list[i]);
    }
    free(job->members.list);
    job->members.list = NULL;
    job->members.count = job->members.capacity = 0;
}

static const struct shard_message messages[] = {
    { CAIRN_MSG_MEMBER_JOIN, .ask_job = on_member_join },
    { CAIRN_MSG_MEMBER_LEAVE, .on_job = on_member_leave },
    { 0 },
};
const struct shard_module member_module = {
    .messages = messages,
    .on = { [SHARD_JOB_LEAVES] = release_members, [SHARD_JOB_FREED] = release_members },
};

/* ==== own ==== */

/* The callbacks of the collector for the shard's own part. They decide where contributions land and
 * are added up, and carry out the actions of the collector's core that the collector does not carry
 * out itself. */

/* a fold is tiny if all its sources together have at most this many elements */
#define TINY_ELEMS 8192

/* ---- to the coordinator ---- */

/* The list of tensors for a message, and the entries to which the list points. */
struct told_tensors {
    Cairn__TensorElems elems[CAIRN_RESULTS_TENSORS], *list[CAIRN_RESULTS_TENSORS];
};

static Cairn__TensorElems **tell_tensors(struct told_tensors *told, const struct results *results)
{
    for (uint32_t i = 0; i < results->tensor_count; i++) {
        cairn__tensor_elems__init(&told->elems[i]);
        told->elems[i].tensor = results->tensors[i].tensor;
        told->elems[i].elems = results->tensors[i].elems;
        told->list[i] = &told->elems[i];
    }
    return told->list;
}

static void report_reduced(struct shard_job *job, const struct step_action *action)
{
    // the round is abandoned: see member_unreadable
    if (action->round == job->collector.spoiled_round) return;
    uint8_t squares[CAIRN_EXACT_BYTES], nonfinite[8], weight[8];
    exact_encode(&action->sums.sum_squares, squares);
    for (int i = 0; i < 8; i++) {
        nonfinite[i] = (uint8_t)(action->sums.nonfinite >> 8 * i);
        weight[i] = (uint8_t)(action->sums.weight >> 8 * i);
    }
    Cairn__ReducedValue values[3];
    Cairn__ReducedValue *list[3] = { &values[0], &values[1], &values[2] };
    for (int i = 0; i < 3; i++) {
        cairn__reduced_value__init(&values[i]);
        values[i].key = values[i].op = (uint32_t)i + 1;
    }
    values[0].value = (ProtobufCBinaryData) { sizeof squares, squares };
    values[1].value = (ProtobufCBinaryData) { sizeof nonfinite, nonfinite };
    values[2].value = (ProtobufCBinaryData) { sizeof weight, weight };
    Cairn__Reduced reduced = CAIRN__REDUCED__INIT;
    reduced.job = job->number;
    reduced.epoch = action->epoch;
    reduced.round = action->round;
    reduced.n_values = 3;
    reduced.values = list;
    struct told_tensors tensors;
    reduced.nonfinite_tensors = tell_tensors(&tensors, &job->pass.gradients);
    reduced.n_nonfinite_tensors = job->pass.gradients.tensor_count;
    reduced.untouched_tensors = job->pass.untouched_tensors;
    reduced.untouched_elems = job->pass.untouched_elems;
    reduced.n_untouched_tensors = reduced.n_untouched_elems = job->pass.untouched_count;
    session_send(job->shard, CAIRN_MSG_REDUCED, 0, &reduced.base);
}

/* Returns the microseconds between two times; 0 if one of the times was not reached. */
static uint32_t us_between(uint64_t from_us, uint64_t to_us)
{
    const uint64_t us = from_us != 0 && to_us > from_us ? to_us - from_us : 0;
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

/* Returns how many microseconds each phase of the round took that is being published. us_out[0]:
 * collecting, until the last contribution arrived. us_out[1]: folding and adding up. us_out[2]: the
 * update, which also writes the published copy. us_out[3]: publishing, which waits until nothing is
 * sent out of the copy to be written, and reports. */
static void times_phases(const struct shard_job *job, uint32_t us_out[4])
{
    const struct round_times *t = &job->pass.times;
    const uint64_t *us = t->action_us;
    const uint64_t granted = us[CAIRN_STEP_GRANT], reduced = us[CAIRN_STEP_REDUCED_REPORT];
    const uint64_t folding = t->folding_us != 0 ? t->folding_us : us[CAIRN_STEP_REDUCE];
    us_out[0] = us_between(granted, folding);
    us_out[1] = us_between(folding, reduced);
    us_out[2] = us_between(t->updating_us, t->updated_us);
    us_out[3] = us_between(us[CAIRN_STEP_UPDATE], t->updating_us) +
                us_between(t->updated_us, us[CAIRN_STEP_PUBLISHED_REPORT]);
}

void own_report_published(struct shard_job *job, const struct step_action *action)
{
    Cairn__Published published = CAIRN__PUBLISHED__INIT;
    published.job = job->number;
    published.epoch = action->epoch;
    published.round = action->round;
    published.generation = action->version.generation;
    published.step = action->version.step;
    uint32_t us[4];
    Cairn__StepTimes times = CAIRN__STEP_TIMES__INIT;
    times_phases(job, us);
    times.us = us;
    times.n_us = 4;
    // The times of a round are reported once. times.round is 0 if nothing was granted since.
    if (job->pass.times.round != 0 && action->round == job->pass.times.round)
        published.times = &times;
    job->pass.times.round = 0;
    struct told_tensors tensors;
    published.nonfinite = job->pass.results.nonfinite;
    published.nonfinite_tensors = tell_tensors(&tensors, &job->pass.results);
    published.n_nonfinite_tensors = job->pass.results.tensor_count;
    uint64_t digests[CAIRN_AUDIT_RANGES];
    published.audit = digests;
    published.audited = audit_digests(job, 0, UINT64_MAX, digests, &published.n_audit);
    session_send(job->shard, CAIRN_MSG_PUBLISHED, 0, &published.base);
}

static void send_answer(struct shard_job *job, const struct step_action *action)
{
    Cairn__Decision last = CAIRN__DECISION__INIT;
    last.kind = (uint32_t)action->decision->kind;
    last.round = action->decision->round;
    last.generation = action->decision->version_after.generation;
    last.step = action->decision->version_after.step;
    last.payload = (ProtobufCBinaryData) { action->decision->payload_bytes,
                                           (uint8_t *)action->decision->payload };
    Cairn__Answer answer = CAIRN__ANSWER__INIT;
    answer.job = job->number;
    answer.epoch = action->epoch;
    answer.phase = (uint32_t)action->phase;
    answer.open_round = action->round;
    answer.generation = action->version.generation;
    answer.step = action->version.step;
    answer.last = &last;
    answer.tiles_world = job->tiling.world;
    answer.refused = action->refused;
    session_send(job->shard, CAIRN_MSG_ANSWER, 0, &answer.base);
}

/* ---- callbacks ---- */

static bool takes_events(const struct collector *collector)
{
    const struct shard_job *job = collector->job;
    return job->state != CAIRN_JOB_FAULTED && job->state != CAIRN_JOB_LEAVING &&
           !job->shard->closing;
}

/* True if the action tells somebody how far the machine is, or begins to change the state. A round
 * that opens is noted, too, so that the next process knows whether a message is of a later one. */
static bool tells(const struct shard_job *job, enum step_action_kind kind)
{
    return kind == CAIRN_STEP_REDUCED_REPORT || kind == CAIRN_STEP_UPDATE ||
           kind == CAIRN_STEP_PUBLISHED_REPORT || kind == CAIRN_STEP_ANSWER ||
           (kind == CAIRN_STEP_GRANT && kept_lacks_round(job));
}

static void do_own_action(struct collector *collector, const struct step_action *action)
{
    struct shard_job *job = collector->job;
    times_note(job, action);
    if (action->kind == CAIRN_STEP_REDUCED_REPORT) kept_without_write(job);
    if (tells(job, action->kind)) kept_note(job);
    switch (action->kind) {
    // the REDUCE that follows writes the zeros
    case CAIRN_STEP_ZERO: job->pass.zero[action->chunk] = !mirror_has_sums(job); break;
    case CAIRN_STEP_REDUCE: pass_reduce(job); break;
    case CAIRN_STEP_UPDATE: pass_update(job, action->decision); break;
    case CAIRN_STEP_REDUCED_REPORT: report_reduced(job, action); break;
    case CAIRN_STEP_PUBLISHED_REPORT:
        if (!journal_takes_skip(job, action)) own_report_published(job, action);
        mirror_go_on(job);
        break;
    case CAIRN_STEP_ANSWER: send_answer(job, action); break;
    case CAIRN_STEP_FORWARD: // only a relay's core has these actions: relay.c
    case CAIRN_STEP_FORWARD_END:
    case CAIRN_STEP_FORWARD_COMMIT: assert(false); break;
    default: break; // the collector handles all other actions
    }
}

static void send_as_owner(const struct collector *collector, struct shard_member *member,
                          struct chunk_header *header)
{
    (void)collector;
    member_send(member, header);
}

static cairn_status judge_piece(const struct collector *collector,
                                const struct shard_member *member,
                                const struct chunk_header *header, const struct chunk_place *place,
                                struct chunk_piece *piece_out, struct sentence *why)
{
    (void)collector;
    return tiles_piece(member, header, place, piece_out, why);
}

static void *landing_slot(struct collector *collector, uint32_t slot)
{
    struct shard_job *job = collector->job;
    const uint64_t at = landing_at(&job->landing, slot);
    assert(collector->slots[slot].payload_bytes <= landing_at(&job->landing, slot + 1) - at);
    return job->landing.arena.base + at;
}

/* True if the fold takes only a microsecond or two on the loop thread. Waking another thread, and
 * then the loop, would take longer. */
static bool is_tiny(const struct fold *fold)
{
    const struct chunk_table *table = fold->collector->table;
    const uint64_t elems = chunk_table_place(table, fold->chunk).elem_count;
    return elems * fold->source_count <= TINY_ELEMS && compute_is_host(fold->run.compute);
}

static bool fold_place(struct fold *fold)
{
    struct shard_job *job = fold->collector->job;
    fold->run.task.is_small = (job->pass.is_small && !fold->viewed) || is_tiny(fold);
    if (fold->first) {
        job->pass.zero[fold->chunk] = false;
        tiles_begin_chunk(job, fold->collector->table->trained[fold->chunk]);
    }
    return true; // the plane of sums has a place for each chunk
}

/* Folds pieces of a chunk. The chunk's first fold makes the sum 0 before, so elements to which
 * nobody contributes are 0. */
static bool fold_pieces(const struct fold *fold, uint32_t stage, struct works *works,
                        uint32_t chunk, const struct chunk_place *place, float *acc)
{
    if (stage == 0 && fold->first) {
        struct home_work *work = works_add(works, CAIRN_WORK_ZERO);
        work->zero.at = acc;
        work->zero.bytes = (size_t)place->elem_count * sizeof *acc;
        return true;
    }
    tiles_fold(works, fold, chunk, place, acc);
    return fold->likely_last;
}

static void add_sums(const struct fold *fold, bool is_folded, struct works *works,
                     const struct chunk_place *place, float *acc)
{
    const struct shard_job *job = fold->collector->job;
    struct sums *sums = &job->pass.chunk_sums[fold->chunk];
    *sums = (struct sums) { 0 };
    works_add(works, CAIRN_WORK_FOLD_SUMS)->fold_sums = (struct leaf_fold) {
        .acc = acc,
        .sources = fold->sources,
        .source_count = is_folded ? 0 : fold->source_count,
        .first = fold->first,
        .far = job->pass.is_far,
        .geometry = &fold->collector->table->map.layout->geometry[place->tensor],
        .first_leaf = place->first_leaf,
        .leaf_count = place->leaf_count,
        .sums = sums,
    };
}

static bool fold_sources(const struct fold *fold, uint32_t stage, struct works *works)
{
    const struct shard_job *job = fold->collector->job;
    const struct chunk_table *table = fold->collector->table;
    const uint32_t chunk = table->trained[fold->chunk];
    const struct chunk_place place = chunk_table_place(table, fold->chunk);
    float *acc = planes_at(&job->planes, CAIRN_PLANE_SUM, table->extent_of[chunk],
                           place.local_elem);
    const bool tiled = fold->pieces[0].held != NULL;
    // the stage after the pieces, in which the sums are made
    const uint32_t last = fold->first ? 2 : 1;
    if (tiled && stage < last) return fold_pieces(fold, stage, works, chunk, &place, acc);
    if (fold->likely_last)
        add_sums(fold, tiled, works, &place, acc);
    else
        works_fold(works, acc, fold->sources, fold->source_count, fold->first,
                   (size_t)place.elem_count);
    return false;
}

static struct compute *home_of(const struct collector *collector, uint32_t chunk)
{
    return shard_job_home(collector->job, chunk_table_place(collector->table, chunk).local_elem);
}

static void fold_done(struct fold *fold)
{
    fold->collector->job->pass.summed[fold->chunk] = fold->likely_last;
}

static void no_page(struct collector *collector)
{
    const struct shard_job *job = collector->job;
    log_error("job %s: the host of shard %s has no page for a sum: it is out of memory, and "
              "round %" PRIu64 " cannot end; give it more, and have a worker attach again",
              job->spec.name, job->shard->name, collector->spoiled_round);
}

static void busy(struct collector *collector)
{
    shard_job_busy(collector->job);
}

static void idle(struct collector *collector)
{
    shard_job_idle(collector->job);
}

static const struct collector_callbacks own_part = {
    .takes_events = takes_events,
    .act = do_own_action,
    .send = send_as_owner,
    .judge_piece = judge_piece,
    .slot_memory = landing_slot,
    .compute = home_of,
    .fold_place = fold_place,
    .fold = fold_sources,
    .fold_done = fold_done,
    .no_page = no_page,
    .busy = busy,
    .idle = idle,
};

cairn_status own_open(struct shard_job *job, const struct step_config *config,
                      const Cairn__JobCreate *message, struct sentence *why)
{
    const Cairn__Decision *last = message->last;
    struct decision decision = { .kind = CAIRN_DECISION_NONE };
    if (last != NULL) {
        decision.payload = last->payload.data;
        decision.payload_bytes = last->payload.len;
    }
    struct step_kept kept = { .round = 0 };
    const bool is_logged = job->journal.from != NULL, goes_back = is_logged && job->staged;
    const bool continues = job->kept.from != NULL || (is_logged && !goes_back);
    if (is_logged) kept = journal_step_kept(job);
    if (job->kept.from != NULL) kept = kept_step(job);
    if (goes_back) {
        decision.payload = kept.last.payload;
        decision.payload_bytes = kept.last.payload_bytes;
    }
    const cairn_status status = collector_open(
        &job->collector, &(struct collector_options) {
                             .callbacks = &own_part,
                             .job = job,
                             .table = &job->view->table,
                             .shard_name = job->shard->name,
                             .step = config,
                             .version = { message->generation, message->step },
                             .last = last != NULL || goes_back ? &decision : NULL,
                             .kept = continues ? &kept : NULL,
                             .actions = &job->pass.actions,
                         });
    if (status == CAIRN_OK) return CAIRN_OK;
    return fail_with(why, status, "out of memory for the round machine of a job");
}

/* ---- what follows ---- */

/* Closes the connections that were cut. If more connections are cut meanwhile, own_settle calls
 * this function again, so that all members are looked through again. */
static void close_cut(struct shard_job *job)
{
    job->members.cut = false;
    for (size_t i = 0; i < job->members.capacity; i++) {
        struct shard_member *member = job->members.list[i];
        if (member != NULL && member->cut) member_down(member);
    }
}

void own_settle(struct shard_job *job)
{
    if (job->pass.settling || job->collector.stepping) return;
    job->pass.settling = true;
    while (job->collector.landed != NULL || job->members.cut) {
        collector_settle(&job->collector);
        if (job->members.cut) close_cut(job);
    }
    job->pass.settling = false;
    if (job->move.fence.epoch != 0) shard_tell(job, SHARD_JOB_MAY_REST);
    if (job->landing.extra) admit_left(job);
}

void own_step(struct shard_job *job, const struct step_event *event)
{
    if (event->decision != NULL) former_note(job);
    collector_step(&job->collector, event);
    own_settle(job);
}

/* ==== admission ==== */

static void on_slots_taken(const struct reserve_request *request, cairn_status status,
                           const struct sentence *why)
{
    struct shard_job *job = request->job;
    struct request answered = request->answer;
    const struct shard_member *member = member_find(job, request->member);
    if (status == CAIRN_OK && job->landing.asked > job->landing.made)
        job->landing.made = job->landing.asked;
    job->landing.asked = job->landing.made;
    if (status != CAIRN_OK && member != NULL) {
        log_warn("member %s of job %s refused: %s", member->name, job->spec.name, why->text);
        members_leave(job, request->member);
        job->landing.extra = true;
    }
    // gives back slots of this member, or of other members that left
    if (job->landing.extra) admit_left(job);
    session_answer(job->shard, &answered, status, why);
}

/* Takes the memory for a member that joined, and answers when all joined workers have their landing
 * slots. If there is no room, the member leaves. */
static void admit_member(struct shard_job *job, uint64_t member, struct request answer)
{
    const struct reserve_request request = {
        .job = job, .done = on_slots_taken, .member = member, .answer = answer
    };
    struct sentence why;
    bool waits = false;
    cairn_status status = slots_count(job, &why);
    if (status == CAIRN_OK) status = reply_keep(member_find(job, member), &why);
    if (status == CAIRN_OK) status = slots_begin(&request, &waits, &why);
    if (status == CAIRN_OK && waits) return;
    if (status != CAIRN_OK) {
        log_warn("a member of job %s refused: %s", job->spec.name, why.text);
        members_leave(job, member);
        admit_left(job);
    }
    session_answer(job->shard, &answer, status, &why);
}
