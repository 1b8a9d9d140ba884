#include "server/shard/move.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/base.h"
#include "server/shard/jobs.h"
#include "server/shard/memory.h"
#include "server/shard/shard.h"
#include "server/shard/read.h"
#include "server/shard/relay.h"
#include "server/shard/state.h"

/* ==== prepare ==== */

/* A PartPrepare makes the view of the next layout, takes the memory for the state that this shard
 * will receive, and makes members of the shards that will take state from here. The layout in force
 * does not change, so the prepared layout can still be forgotten. */

static const struct arriving_kind kind;

static uint64_t shift_bytes(const struct shard_job *job, const struct shard_view *next,
                            const struct shard_view *retained);
static uint64_t move_bytes_beyond(const struct shard_job *job, const struct shard_view *view,
                                  const struct shard_view *beside);
static cairn_status shift_reserve(const struct shard_job *job, const struct shard_view *next,
                                  const struct shard_view *retained, struct reserve *reserve);
static void may_rest(struct shard_job *job);

static const Cairn__PartPrepare *message_of(const struct arriving *arriving)
{
    return (const Cairn__PartPrepare *)arriving->message;
}

/* ---- judging ---- */

static cairn_status judge_prepare(struct shard_job *job, const Cairn__PartPrepare *message,
                                  struct sentence *why)
{
    const uint64_t in_force = job->view->layout->version;
    if (job->state != CAIRN_JOB_SERVING)
        return fail_with(why, CAIRN_ERR_NOT_READY, "job %s has no version yet", job->spec.name);
    pins_unprepare(job);
    pins_hurry(job);
    if (job->park.is_under_way || job->planes.parked || !LIST_EMPTY(&job->pins.list))
        return fail_with(why, CAIRN_ERR_BUSY,
                         "the state of job %s is being moved or saved here: ask again",
                         job->spec.name);
    // The number may be higher by more than 1, because a layout in between may never have come into
    // force here.
    if (message->layout <= in_force)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "layout %" PRIu64 " of job %s does not follow layout %" PRIu64
                         ", which is in force",
                         message->layout, job->spec.name, in_force);
    return CAIRN_OK;
}

/* True if each extent of `layout` lies within an extent of `before` that has the same owner. */
static bool same_owners(const struct layout *layout, const struct layout *before)
{
    for (size_t i = 0; i < layout->extent_count; i++) {
        const struct extent *extent = &layout->extents[i];
        const struct geometry *geometry = &layout->geometry[extent->tensor];
        const struct extent *was = layout_find(before, extent->tensor,
                                               quantum_first_leaf(geometry, extent->first_quantum));
        if (was == NULL || was->shard != extent->shard ||
            extent->first_quantum + extent->quantum_count > was->first_quantum + was->quantum_count)
            return false;
    }
    return true;
}

/* Returns the view before the view in force, while the state of that earlier view is still here and
 * need not be received again. Returns NULL if the layout in force is settled, or if it took an
 * unsettled layout back. */
static const struct shard_view *move_retained(const struct shard_job *job)
{
    return job->move.now != NULL && !job->move.now->is_back ? job->move.before : NULL;
}

/* Judges the layout that arrived in the pages. While the layout in force is not settled, the next
 * layout must have the same owners as the layout before the one in force. If the layout in force is
 * itself such a step back, the next layout must have the same owners as the layout in force. */
static cairn_status judge_table(const struct shard_job *job, uint64_t wanted,
                                const struct layout *layout, struct sentence *why)
{
    if (layout->version != wanted)
        return fail_with(why, CAIRN_ERR_MALFORMED, "the pages are of layout %" PRIu64,
                         layout->version);
    const struct shard_view *retained = move_retained(job);
    if (job->move.now == NULL ||
        same_owners(layout, retained != NULL ? retained->layout : job->view->layout))
        return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NOT_READY,
                     "layout %" PRIu64 " of job %s is not settled yet: no other layout can begin",
                     job->view->layout->version, job->spec.name);
}

/* ---- what it takes ---- */

static const Cairn__Mover *mover_of(const Cairn__PartPrepare *message)
{
    for (size_t i = 0; i < message->n_movers; i++)
        if (message->movers[i]->shard == message->shard_index) return message->movers[i];
    return NULL;
}

/* Takes all bytes that the change needs from the budget, or none. */
static cairn_status take_budget(struct shard_job *job, struct move_part *part, uint64_t room,
                                uint64_t staging, struct sentence *why)
{
    char what[CAIRN_NAME_MAX + 64];
    struct memory_need need = memory_beyond(&part->view->memory, &job->view->memory);
    snprintf(what, sizeof what, "incoming state of job %s in layout %" PRIu64, job->spec.name,
             part->view->layout->version);
    part->shifted = shift_bytes(job, part->view, move_retained(job));
    need.state = room + part->shifted;
    need.staging = staging;
    CAIRN_TRY(shard_job_take_all(job, &need, what, why));
    part->taken = need;
    return CAIRN_OK;
}

static cairn_status open_receiver(struct shard_job *job, struct move_part *part,
                                  const Cairn__PartPrepare *message, struct sentence *why)
{
    const Cairn__Mover *mover = mover_of(message);
    struct state_pieces pieces;
    if (pieces_list(job->view, part->view, move_retained(job), &pieces) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to take state");
    part->comes = part->is_whole ? 0 : pieces.bytes;
    if (pieces.count == 0) return take_budget(job, part, 0, 0, why);
    if (part->is_whole) {
        pieces_release(&pieces);
        return take_budget(job, part, move_bytes_beyond(job, part->view, job->view), 0, why);
    }
    if (mover == NULL) {
        pieces_release(&pieces);
        return fail_with(why, CAIRN_ERR_MALFORMED,
                         "shard %s is to take state, but was not told as whom to ask for it",
                         job->shard->name);
    }
    const cairn_status status = take_budget(job, part,
                                            move_bytes_beyond(job, part->view, job->view),
                                            receiver_staging_bytes(job, &pieces), why);
    if (status != CAIRN_OK) {
        pieces_release(&pieces);
        return status;
    }
    return receiver_open(job, part->view, &pieces, mover, message->shards, message->n_shards,
                         &part->receiver, why);
}

/* ---- those who will ask ---- */

/* Makes a mover a member of the job. The mover may take some of the state that this shard gives. */
static cairn_status let_in(struct shard_job *job, struct move_part *part, const Cairn__Mover *mover,
                           struct sentence *why)
{
    Cairn__MemberJoin join = CAIRN__MEMBER_JOIN__INIT;
    join.job = job->number;
    join.member = mover->member;
    join.token = mover->token;
    join.role = CAIRN_ROLE_WIRE_READER;
    join.name = mover->name;
    join.fabric_address = mover->fabric_address;
    CAIRN_TRY(members_join(job, &join, why));
    part->movers[part->mover_count++] = mover->member;
    struct shard_member *member = member_find(job, mover->member);
    member->is_mover = true;
    return reply_keep(member, why);
}

static cairn_status let_all_in(struct shard_job *job, struct move_part *part,
                               const Cairn__PartPrepare *message, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    if (message->n_movers == 0) return CAIRN_OK;
    part->movers = calloc(message->n_movers, sizeof *part->movers);
    if (part->movers == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for those who take state");
    for (size_t i = 0; i < message->n_movers && status == CAIRN_OK; i++)
        if (message->movers[i]->shard != message->shard_index)
            status = let_in(job, part, message->movers[i], why);
    return status;
}

/* ---- shards that have come to other addresses ---- */

/* Lets a mover in anew that has another address. */
static void let_in_again(struct shard_job *job, const struct shard_member *mover,
                         const Cairn__ShardInfo *info)
{
    Cairn__MemberJoin join = CAIRN__MEMBER_JOIN__INIT;
    struct sentence why;
    char name[CAIRN_NAME_MAX + 1];
    snprintf(name, sizeof name, "%s", mover->name);
    join.job = job->number;
    join.member = mover->number;
    join.token = mover->token;
    join.role = CAIRN_ROLE_WIRE_READER;
    join.name = name;
    join.fabric_address = info->fabric_address;
    cairn_status status = members_join(job, &join, &why);
    struct shard_member *member = member_find(job, join.member);
    if (status == CAIRN_OK && member == mover) return; // it is still there
    if (member != NULL) member->is_mover = true;
    if (status == CAIRN_OK && member != NULL) status = reply_keep(member, &why);
    if (status != CAIRN_OK)
        log_error("job %s: shard %s, which takes state from here, is not let in: %s",
                  job->spec.name, name, why.text);
}

static void note_address(struct shard_job *job, const struct move_part *part,
                         const Cairn__ShardInfo *info)
{
    if (part == NULL || info->fabric_address.len == 0) return;
    for (size_t i = 0; i < part->mover_count; i++) {
        const struct shard_member *mover = member_find(job, part->movers[i]);
        if (mover != NULL && strcmp(mover->name, info->name) == 0) let_in_again(job, mover, info);
    }
    for (uint32_t i = 0; part->receiver != NULL && i < part->receiver->neighbours.count; i++) {
        struct neighbour *sender = neighbours_at(&part->receiver->neighbours, i);
        if (strcmp(sender->name, info->name) == 0) neighbour_move(sender, info);
    }
}

/* Processes of shards are new ones: state comes from there, or goes there, at other addresses. */
static void on_shards_changed(struct shard_job *job, const void *body)
{
    const Cairn__ShardsChanged *message = body;
    for (size_t i = 0; i < message->n_shards; i++) {
        note_address(job, job->move.next, message->shards[i]);
        note_address(job, job->move.now, message->shards[i]);
    }
}

/* ---- from beginning to end ---- */

/* Resumes a PartPrepare of the job that waits, if there is one. It waited until the layout was
 * settled, a Fence was done, or the layout that was prepared before was forgotten. */
static void move_go_on(struct shard_daemon *shard, uint64_t job)
{
    for (struct arriving *a = TAILQ_FIRST(&shard->arriving), *next; a != NULL; a = next) {
        next = TAILQ_NEXT(a, link);
        if (a->kind != &kind || !arriving_whole(a) || message_of(a)->job != job) continue;
        kind.whole(shard, a);
        return;
    }
}

/* Frees a change of the layout; `part` may be NULL. The movers of the change leave, its receiver
 * leaves, and the bytes that were taken for it are given back to the budget. */
static void move_part_drop(struct shard_job *job, struct move_part *part)
{
    if (part == NULL) return;
    const bool ends = job->shard->closing || job->state == CAIRN_JOB_LEAVING;
    for (size_t i = 0; i < part->mover_count && !ends; i++) members_leave(job, part->movers[i]);
    if (job->shard->closing && part->receiver != NULL)
        receiver_free(part->receiver);
    else
        receiver_leave(part->receiver);
    shard_job_give_all(job, &part->taken);
    shard_view_unref(part->view);
    packed_release(part->message);
    free(part->movers);
    free(part);
}

/* Gives back the device memory that none of these views uses: the view in force, the prepared view
 * and, while the layout is not settled, the view before the view in force. */
static void move_trim(struct shard_job *job)
{
    const struct move *move = &job->move;
    const struct shard_view *views[] = { job->view, move->before,
                                         move->next != NULL ? move->next->view : NULL };
    // While a receiver is leaving, state may still arrive at places that were given up. A later
    // call tries again.
    if (job->planes.host_from == 0 || !LIST_EMPTY(&move->leaving) || job->shard->closing) return;
    shard_views_keep(views, sizeof views / sizeof *views, &job->planes, job->shard);
    job->memory.device = shard_job_device_bytes(job, false);
}

/* Forgets the prepared layout, which is ready, and gives back the memory that it took. (When a
 * prepared layout comes into force, the job keeps this memory: enter_prepared.) */
static void forget_prepared(struct shard_job *job)
{
    struct move_part *part = job->move.next;
    struct sentence why;
    job->move.next = NULL;
    sentence_set(&why, "layout %" PRIu64 " is not wanted any more", part->view->layout->version);
    session_answer(job->shard, &part->asked, CAIRN_ERR_CANCELED, &why);
    if (part->taken.state > part->shifted) shard_view_give(job, part->view);
    move_part_drop(job, part);
    move_trim(job);
    kept_unprepared(job);
    kept_resumed(job);
}

/* Forgets the prepared layout, now or as soon as it is ready. It does not come into force. */
static void move_forget(struct shard_job *job)
{
    if (job->move.next == NULL) return;
    job->move.next->is_unwanted = true;
    if (job->move.next->is_ready) forget_prepared(job); // else on_room forgets the layout
}

static cairn_status add_room(struct reserve *reserve, struct shard_job *job)
{
    const struct move_part *part = job->move.next;
    cairn_status status = shift_reserve(job, part->view, move_retained(job), reserve);
    if (part->receiver == NULL) return status; // no state is to be received
    if (status == CAIRN_OK) status = shard_view_reserve(job, part->view, reserve);
    return status == CAIRN_OK
               ? reserve_add(reserve, &part->receiver->staging, 0, part->receiver->staging.bytes)
               : status;
}

static void on_room(const struct reserve_request *request, cairn_status status,
                    const struct sentence *why)
{
    struct shard_job *job = request->job;
    struct shard_daemon *shard = job->shard;
    struct move_part *part = job->move.next;
    if (part == NULL) return; // the job is leaving
    part->is_ready = true;
    if (status != CAIRN_OK) {
        log_warn("layout %" PRIu64 " of job %s is refused: %s", part->view->layout->version,
                 job->spec.name, why->text);
        session_answer(shard, &part->asked, status, why);
        part->is_unwanted = true;
    }
    if (part->is_unwanted) {
        const uint64_t number = job->number;
        forget_prepared(job);
        move_go_on(shard, number);
        return;
    }
    log_info("job %s: layout %" PRIu64 " is prepared: %" PRIu64
             " bytes come in, and %zu shards take from here",
             job->spec.name, part->view->layout->version, part->comes, part->mover_count);
    kept_prepared(job); // from now on the layout may come into force
    kept_resumed(job);
    session_answer(shard, &part->asked, CAIRN_OK, NULL);
}

static cairn_status fill_part(struct shard_job *job, struct move_part *part,
                              const Cairn__PartPrepare *message, const struct paged *pages,
                              struct sentence *why)
{
    const struct reserve_request request = {
        .job = job, .what = "the state for a layout", .prepare = add_room, .done = on_room
    };
    struct layout *layout;
    CAIRN_TRY(shard_job_layout(job, pages, &layout, why));
    cairn_status status = judge_table(job, message->layout, layout, why);
    if (status != CAIRN_OK) {
        layout_close(layout);
        return status;
    }
    const struct shard_view *retained = move_retained(job);
    status = shard_view_next(job, layout, message->shard_index,
                             retained != NULL ? retained : job->view, &part->view, why);
    if (status == CAIRN_OK && part->is_whole && !kept_has_places(job, part->view))
        status = fail_with(why, CAIRN_ERR_MISMATCH,
                           "this build puts what came with it elsewhere in memory");
    if (status == CAIRN_OK) status = open_receiver(job, part, message, why);
    if (status == CAIRN_OK) status = let_all_in(job, part, message, why);
    return status == CAIRN_OK ? reserve_begin(&request, why) : status;
}

static struct packed *pack(const Cairn__PartPrepare *message)
{
    const size_t bytes = cairn__part_prepare__get_packed_size(message);
    uint8_t *packed = malloc(bytes + 1);
    if (packed != NULL) (void)cairn__part_prepare__pack(message, packed);
    return packed_take(packed, bytes);
}

static cairn_status begin_prepare(struct shard_job *job, const Cairn__PartPrepare *message,
                                  const struct paged *pages, bool is_whole, struct sentence *why)
{
    struct move_part *part = calloc(1, sizeof *part);
    if (part == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a layout");
    log_debug("job %s: layout %" PRIu64 " is to be prepared", job->spec.name, message->layout);
    part->session = job->shard->session.serial;
    part->message = pack(message);
    part->is_whole = is_whole;
    job->move.next = part;
    const cairn_status status = fill_part(job, part, message, pages, why);
    if (status == CAIRN_OK) return CAIRN_OK;
    job->move.next = NULL;
    move_part_drop(job, part);
    move_trim(job);
    return status;
}

static cairn_status prepare_again(struct shard_job *job, const Cairn__PartPrepare *message,
                                  const struct paged *layout, bool is_whole, struct sentence *why)
{
    CAIRN_TRY(begin_prepare(job, message, layout, is_whole, why));
    job->move.next->session = 0; // of an earlier session than any of this process
    return CAIRN_OK;
}

static void resume_prepared(struct shard_job *job)
{
    kept_prepare_next(job, prepare_again);
}

/* A layout that a process before had prepared may be in force already, with a Fence that comes again.
 * So no other layout is prepared before a Fence comes, but one in which all stays where it is. */
static cairn_status judge_resumed(const struct shard_job *job, const struct paged *pages,
                                  struct sentence *why)
{
    const struct move_part *next = job->move.next;
    struct layout *layout;
    if (next == NULL || next->session != 0) return CAIRN_OK;
    CAIRN_TRY(shard_job_layout(job, pages, &layout, why));
    const bool stays = same_owners(layout, job->view->layout);
    layout_close(layout);
    if (stays) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_BUSY,
                     "shard %s has just started, and waits for the Fence that may bring layout "
                     "%" PRIu64 " of job %s: ask again",
                     job->shard->name, next->view->layout->version, job->spec.name);
}

static void prepare_is_whole(struct shard_daemon *shard, struct arriving *arriving)
{
    struct shard_job *job = shard_job_find(shard, message_of(arriving)->job);
    struct sentence why;
    cairn_status status = CAIRN_ERR_NOT_FOUND;
    sentence_set(&why, "shard %s does not hold that job", shard->name);
    if (job != NULL) status = judge_prepare(job, message_of(arriving), &why);
    if (status == CAIRN_OK) status = judge_resumed(job, &arriving->paged[0], &why);
    // The PartPrepare waits until the layout is settled, or until the Fence that drains a round is
    // done.
    if (status == CAIRN_OK && (job->move.is_settling || job->move.fence.epoch != 0)) return;
    if (status == CAIRN_OK && job->move.next != NULL) {
        move_forget(job); // even if it is the same layout, because the movers may differ
        // the PartPrepare waits until the prepared layout is forgotten
        if (job->move.next != NULL) return;
    }
    if (status == CAIRN_OK)
        status = begin_prepare(job, message_of(arriving), &arriving->paged[0], false, &why);
    if (status != CAIRN_OK) {
        arriving_end(shard, arriving, status, &why);
        return;
    }
    job->move.next->asked = session_request(shard, arriving->request);
    arriving_drop(shard, arriving); // on_room answers
}

/* PartPrepare. The answer is Done when the memory for arriving state is taken; otherwise it is
 * Error, and nothing has changed. */
static const struct arriving_kind kind = {
    .name = "a layout",
    .what = { CAIRN_PAGE_LAYOUT },
    .bytes_at = { offsetof(Cairn__PartPrepare, layout_bytes) },
    .whole = prepare_is_whole,
};

/* Ends the PartPrepares that still wait and have the layout that the message names. */
static void end_waiting(struct shard_daemon *shard, const Cairn__PartUnprepare *message)
{
    struct sentence why;
    sentence_set(&why, "layout %" PRIu64 " is not wanted any more", message->layout);
    for (struct arriving *a = TAILQ_FIRST(&shard->arriving), *next; a != NULL; a = next) {
        next = TAILQ_NEXT(a, link);
        if (a->kind == &kind && message_of(a)->job == message->job &&
            message_of(a)->layout == message->layout)
            arriving_end(shard, a, CAIRN_ERR_CANCELED, &why);
    }
}

static void on_unprepare(struct shard_job *job, const void *body)
{
    const Cairn__PartUnprepare *message = body;
    const struct move_part *part = job->move.next;
    end_waiting(job->shard, message);
    if (part != NULL && part->view->layout->version == message->layout) move_forget(job);
}

/* ==== part ==== */

/* ---- bytes ---- */

struct sum {
    const struct shard_view *view;
    uint64_t bytes;
};

static void add_run_part(void *context, const struct shard_view_run *run)
{
    struct sum *sum = context;
    for (enum plane p = 0; p < CAIRN_PLANES; p++)
        sum->bytes += form_bytes(&sum->view->forms[run->extent], p, run->elem_count);
}

/* Returns how many bytes of planes in host memory belong to elements that `view` has and `beside`
 * does not have. */
static uint64_t move_bytes_beyond(const struct shard_job *job, const struct shard_view *view,
                                  const struct shard_view *beside)
{
    struct sum sum = { .view = view };
    if (job->planes.host_from == 0) shard_view_beyond(view, beside, add_run_part, &sum);
    return sum.bytes;
}

/* ---- time ---- */

/* Gives back the memory of what was given away: nobody asks for it any more. */
static void forget_given(struct shard_job *job, const struct shard_view *before,
                         const struct move_part *now)
{
    const uint64_t bytes = move_bytes_beyond(job, before, job->view);
    if (bytes > 0) shard_view_give(job, before);
    shard_job_give(job, &job->memory.state, bytes + now->shifted);
    log_info("job %s: layout %" PRIu64 " is settled: %" PRIu64 " bytes of host memory are freed",
             job->spec.name, now->view->layout->version, bytes);
}

/* Ends the change `now` after a PartSettled, as soon as no given state is being sent any more. */
static void move_settle(struct shard_job *job)
{
    struct move *move = &job->move;
    struct move_part *now = move->now;
    struct shard_view *before = move->before;
    // If state is still being sent from here, or still arrives at places that were given up, a
    // later tick tries again.
    if (move->sends > 0 || !LIST_EMPTY(&move->leaving)) return;
    const bool was_awaited = now->awaits_settled;
    move->before = NULL;
    move->now = NULL;
    move->is_settling = false;
    kept_begin(job); // before anything of the state before is touched
    forget_given(job, before, now);
    shard_view_unref(before);
    move_part_drop(job, now);
    move_trim(job);
    if (was_awaited) own_step(job, &(struct step_event) { .kind = CAIRN_STEP_WHOLE });
    move_go_on(job->shard, job->number);
}

static bool tick_move(struct shard_job *job, uint64_t now_ms)
{
    bool waits = false;
    if (job->state != CAIRN_JOB_SERVING) return false;
    if (job->move.now != NULL && job->move.now->receiver != NULL)
        waits = receiver_tick(job->move.now->receiver, now_ms);
    may_rest(job);
    if (job->move.is_settling) move_settle(job);
    return waits || job->move.is_settling || job->move.fence.epoch != 0;
}

/* ==== shift ==== */

/* An extent that shifts: its state is on this shard, and must be copied to other local elements. */
struct shift {
    const struct form *form; /* the form does not change */
    const struct local_extent *extent, *was;
};

static const struct local_extent *find_extent(const struct shard_view *view,
                                              const struct local_extent *extent)
{
    return view == NULL ? NULL
                        : shard_map_find(&view->table.map, extent->tensor, extent->first_leaf);
}

/* Finds the first extent that shifts, from number *number on, and sets *number to the number after
 * it. Returns false if no further extent shifts. */
static bool find_shift(const struct shard_job *job, const struct shard_view *next,
                       const struct shard_view *retained, size_t *number, struct shift *out)
{
    if (job->planes.host_from > 0) return false; // on a device extents keep their places
    while (*number < next->table.map.extent_count) {
        const size_t i = (*number)++;
        const struct local_extent *extent = &next->table.map.extents[i];
        const struct local_extent *was = find_extent(job->view, extent);
        if (was == NULL) was = find_extent(retained, extent);
        if (was == NULL) continue; // the extent's state is received from another shard
        if (was->local_elem + (extent->first_elem - was->first_elem) == extent->local_elem)
            continue;
        *out = (struct shift) { &next->forms[i], extent, was };
        return true;
    }
    return false;
}

/* Returns the bytes of all state that shifts if `next` comes into force; `retained` may be NULL. */
static uint64_t shift_bytes(const struct shard_job *job, const struct shard_view *next,
                            const struct shard_view *retained)
{
    struct shift shift;
    uint64_t bytes = 0;
    for (size_t number = 0; find_shift(job, next, retained, &number, &shift);)
        for (enum plane p = 0; p < CAIRN_PLANES; p++)
            bytes += form_bytes(shift.form, p, shift.extent->elem_count);
    return bytes;
}

/* Adds the places to which state shifts to the reserve. Call it within `prepare` of the reserve. */
static cairn_status shift_reserve(const struct shard_job *job, const struct shard_view *next,
                                  const struct shard_view *retained, struct reserve *reserve)
{
    struct shift shift;
    cairn_status status = CAIRN_OK;
    for (size_t number = 0; find_shift(job, next, retained, &number, &shift);) {
        const uint64_t first = shift.extent->local_elem;
        for (enum plane p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++)
            status = planes_reserve_elems(&job->planes, p, shift.form, first, first,
                                          shift.extent->elem_count, reserve);
    }
    return status;
}

/* Copies the state that shifts, before the job uses `next`. After a failure the job must not use
 * `next`. */
static cairn_status shift_copy(struct shard_job *job, const struct shard_view *next,
                               const struct shard_view *retained, struct sentence *why)
{
    struct works *works = compute_loop(&job->shard->host);
    struct shift shift;
    for (size_t number = 0; find_shift(job, next, retained, &number, &shift);) {
        const uint64_t first = shift.extent->local_elem, was = shift.was->local_elem,
                       skipped = shift.extent->first_elem - shift.was->first_elem;
        for (int p = 0; p < CAIRN_PLANES; p++) {
            if (!form_stores(shift.form, p)) continue;
            const enum plane plane = (enum plane)p;
            works_copy(works, planes_host_at(&job->planes, shift.form, plane, first, first),
                       planes_host_at(&job->planes, shift.form, plane, was, was + skipped),
                       (size_t)form_bytes(shift.form, plane, shift.extent->elem_count));
        }
    }
    return works_run(works, why);
}

/* ==== force ==== */

#define PINS_MS 30000 /* how long a Fence waits for snapshots, in milliseconds */

static uint64_t version_of(const struct move_part *part)
{
    return part->view->layout->version;
}

/* ---- it is whole ---- */

static void tell_moved(struct shard_job *job)
{
    const struct move_part *now = job->move.now;
    Cairn__PartMoved moved = CAIRN__PART_MOVED__INIT;
    moved.job = job->number;
    moved.layout = job->view->layout->version;
    moved.bytes = now != NULL ? now->moved_bytes : 0;
    moved.us = now != NULL ? now->moved_us : 0;
    session_send(job->shard, CAIRN_MSG_PART_MOVED, 0, &moved.base);
    log_debug("job %s: layout %" PRIu64 ": the coordinator is told that all is here",
              job->spec.name, moved.layout);
}

static void on_taken(struct receiver *receiver)
{
    struct shard_job *job = receiver->job;
    struct move_part *now = job->move.now;
    now->moved_bytes = receiver->pieces.bytes;
    now->moved_us = receiver->us;
    log_info("job %s: layout %" PRIu64 ": all that comes is here: %" PRIu64 " bytes in %" PRIu64
             " us",
             job->spec.name, version_of(now), now->moved_bytes, now->moved_us);
    now->receiver = NULL;
    shard_job_give_all(job, &now->taken); // what is left of it: the staging
    now->taken = (struct memory_need) { 0 };
    receiver_leave(receiver);
    published_forget_params(job);
    kept_is_whole(job);
    tell_moved(job);
    if (!now->awaits_settled) own_step(job, &(struct step_event) { .kind = CAIRN_STEP_WHOLE });
    fetch_deferred(job);
}

/* Notes the job's version in a part that joined. The part has no elements, so it has this version
 * without receiving anything. */
static void note_version(struct shard_job *job)
{
    struct published_copy *newest = &job->versions.copies[job->versions.newest];
    const struct cairn_version version = step_version(job->collector.step);
    if (newest->view->table.map.elem_count == 0 && version_compare(newest->version, version) < 0)
        newest->version = version;
}

void move_on_resolve(struct shard_job *job, uint64_t epoch)
{
    struct move_part *now = job->move.now;
    if (job->load.joins) note_version(job);
    const bool may_have_moved = job->move.has_moved || job->load.joins || job->kept.was_kept;
    if (!may_have_moved || job->state != CAIRN_JOB_SERVING ||
        epoch != step_epoch(job->collector.step) || job->move.fence.epoch != 0)
        return;
    if (now == NULL || now->receiver == NULL) {
        tell_moved(job);
    } else if (!now->receiver->neighbours.is_begun) {
        log_debug("job %s: layout %" PRIu64 ": what comes is asked for", job->spec.name,
                  version_of(now));
        receiver_begin(now->receiver, step_version(job->collector.step), on_taken);
        shard_wake(job->shard);
    }
}

/* ---- it comes into force ---- */

static void enter_prepared(struct shard_job *job)
{
    struct move *move = &job->move;
    struct move_part *part = move->next;
    struct shard_view *before = shard_view_ref(job->view);
    const uint64_t epoch = move->fence.epoch;
    struct sentence why;
    move->fence.epoch = 0;
    cairn_status status = shift_copy(job, part->view, move_retained(job), &why);
    if (status == CAIRN_OK) status = shard_job_switch(job, part->view, &why);
    if (status != CAIRN_OK) {
        shard_view_unref(before);
        shard_job_fault(job, why.text);
        return;
    }
    // the rest now belongs to the job
    part->taken = (struct memory_need) { .staging = part->taken.staging };
    part->is_back = move->now != NULL;
    move_part_drop(job, move->now); // the change that was taken back, if any
    shard_view_unref(move->before);
    move->next = NULL;
    move->now = part;
    move->before = before;
    move->has_moved = true;
    move->is_settling = false;
    log_info("job %s: layout %" PRIu64 " is in force from epoch %" PRIu64 ": %" PRIu64
             " elements here, and %" PRIu64 " "
             "bytes are to come",
             job->spec.name, version_of(part), epoch, job->view->table.map.elem_count, part->comes);
    part->awaits_settled = kept_awaits_settled(job);
    if (part->receiver == NULL) kept_is_whole(job);
    if (part->receiver != NULL || part->awaits_settled)
        own_step(job, &(struct step_event) { .kind = CAIRN_STEP_LACKS_STATE });
    own_step(job, &(struct step_event) { .kind = CAIRN_STEP_FENCE, .epoch = epoch });
    relay_on_fence(job, epoch);
    move_go_on(job->shard, job->number); // a PartPrepare may have waited for this
}

/* True if the prepared layout differs from the layout in force only by its number. */
static bool is_renamed(const struct shard_job *job)
{
    const struct move_part *next = job->move.next;
    return next->receiver == NULL && layout_same(job->view->layout, next->view->layout);
}

/* Gives the layout in force the number of the prepared layout. Nothing moves, and a round that is
 * open, prepared or being applied continues. */
static void rename_layout(struct shard_job *job)
{
    job->view->layout->version = version_of(job->move.next);
    job->move.has_moved = true;
    journal_leaves_layout(job); // its head has the number
    relay_leave(job);
    move_forget(job);
    log_info("job %s: layout %" PRIu64 " is in force, and all stays where it is", job->spec.name,
             job->view->layout->version);
}

/* True if a Fence may bring `layout` into force; if not, `why` tells the reason. */
static bool judge_force(const struct shard_job *job, uint64_t layout, struct sentence *why)
{
    const struct move_part *next = job->move.next;
    const enum step_phase phase = step_phase_of(job->collector.step);
    if (next == NULL || !next->is_ready || version_of(next) != layout) {
        sentence_set(why,
                     "a Fence brings layout %" PRIu64 ", and layout %" PRIu64
                     " is in force here, with %s "
                     "prepared",
                     layout, job->view->layout->version, next == NULL ? "none" : "another one");
        return false;
    }
    if (is_renamed(job)) return true;
    if (phase == CAIRN_STEP_IDLE || phase == CAIRN_STEP_JOINING || phase == CAIRN_STEP_DRAINING)
        return true;
    // If the layout in force is not settled, the prepared layout takes it back, and waits for no
    // round.
    if (job->move.now != NULL && phase != CAIRN_STEP_UPDATING) return true;
    sentence_set(why, "a Fence brings layout %" PRIu64 " while a round is open", layout);
    return false;
}

/* Handles a Fence that does not bring the prepared layout into force, because only a member has
 * joined or left. The prepared layout stays, unless it was prepared in an earlier session. Then it
 * is forgotten, because the coordinator may have withdrawn it in a message that was lost. */
static void keep_or_forget(struct shard_job *job)
{
    const struct move_part *next = job->move.next;
    if (next != NULL && next->session != job->shard->session.serial) move_forget(job);
}

bool move_on_fence(struct shard_job *job, uint64_t epoch, uint64_t layout)
{
    struct sentence why;
    job->move.fence.epoch = 0; // this Fence replaces a Fence that waits
    if (job->state != CAIRN_JOB_SERVING) return false;
    if (layout == 0 || layout == job->view->layout->version) {
        keep_or_forget(job);
        return false;
    }
    if (!judge_force(job, layout, &why)) {
        shard_job_fault(job, why.text);
        return true;
    }
    log_debug("job %s: a Fence brings layout %" PRIu64, job->spec.name, layout);
    if (is_renamed(job)) {
        rename_layout(job);
        return false;
    }
    job->move.fence.epoch = epoch;
    job->move.fence.since_ms = uv_now(job->shard->loop);
    pins_unprepare(job);
    pins_hurry(job);  // the Fence waits for the pins
    write_close(job); // the write belongs to a round that is void
    own_step(job, &(struct step_event) { .kind = CAIRN_STEP_GIVE_UP });
    may_rest(job);
    if (job->move.fence.epoch != 0) shard_wake(job->shard);
    return true;
}

/* Brings the prepared layout into force, if a Fence waits for this and the collector now rests. */
static void may_rest(struct shard_job *job)
{
    if (job->move.fence.epoch != 0 && !pins_rest(job) &&
        uv_now(job->shard->loop) - job->move.fence.since_ms > PINS_MS)
        pin_cancel(job); // training continues, whatever the storage does
    if (job->move.fence.epoch != 0 && job->state == CAIRN_JOB_SERVING && shard_job_rests(job))
        enter_prepared(job);
}

/* ==== give ==== */

/* ---- what was given is forgotten ---- */

static void on_settled(struct shard_job *job, const void *body)
{
    const Cairn__PartSettled *message = body;
    struct move_part *now = job->move.now;
    // the layout is settled already
    if (now == NULL || now->view->layout->version != message->layout) return;
    if (now->receiver != NULL) {
        session_refuse(
            job->shard, CAIRN_ERR_PROTOCOL,
            "layout %" PRIu64
            " of job %s is said to be settled, but shard %s does not have all of its state",
            message->layout, job->spec.name, job->shard->name);
        return;
    }
    // When the movers leave, sends to them end.
    for (size_t i = 0; i < now->mover_count; i++) members_leave(job, now->movers[i]);
    now->mover_count = 0;
    job->move.is_settling = true;
    move_settle(job);
    if (job->move.is_settling) shard_wake(job->shard);
}

/* ---- the newest version, by the layout in force ---- */

static void on_published(struct shard_job *job)
{
    session_answer(job->shard, &job->move.publishing, CAIRN_OK, NULL);
}

/* Handles a PartPublish. Answers when the newest version can be fetched by the layout in force. */
static void on_publish(struct shard_job *job, struct request asked, const void *body)
{
    const Cairn__PartPublish *message = body;
    struct sentence why;
    cairn_status status = CAIRN_OK;
    log_debug("job %s: layout %" PRIu64 ": the newest version is to be published in it",
              job->spec.name, message->layout);
    if (job->state != CAIRN_JOB_SERVING || message->layout != job->view->layout->version)
        status = fail_with(&why, CAIRN_ERR_NOT_READY,
                           "layout %" PRIu64 " of job %s is not in force here", message->layout,
                           job->spec.name);
    else if (job->move.now != NULL && job->move.now->receiver != NULL)
        status = fail_with(&why, CAIRN_ERR_NOT_READY, "state of job %s is still to come",
                           job->spec.name);
    else if (step_phase_of(job->collector.step) != CAIRN_STEP_IDLE)
        status = fail_with(&why, CAIRN_ERR_BUSY, "a round of job %s is open", job->spec.name);
    if (status == CAIRN_OK && job->versions.copies[job->versions.newest].view != job->view) {
        if (job->move.publishing.session == 0) status = pass_republish(job, on_published, &why);
        if (status == CAIRN_OK) { // pass_republish has begun, or is at work for an earlier request
            job->move.publishing = asked;
            return;
        }
    }
    session_answer(job->shard, &asked, status, &why);
}

/* ---- the end ---- */

static void end_moves(struct shard_job *job)
{
    if (job->move.now != NULL) {
        receiver_leave(job->move.now->receiver);
        job->move.now->receiver = NULL;
    }
    job->move.fence.epoch = 0;
    move_forget(job);
}

static void receiver_free_leaving(struct shard_job *job)
{
    struct receiver *receiver;
    while ((receiver = LIST_FIRST(&job->move.leaving)) != NULL) {
        LIST_REMOVE(receiver, leaving);
        receiver_free(receiver);
    }
}

static void free_moves(struct shard_job *job)
{
    struct move *move = &job->move;
    receiver_free_leaving(job);
    move_part_drop(job, move->next);
    move_part_drop(job, move->now);
    shard_view_unref(move->before);
    *move = (struct move) { .next = NULL };
}

/* Forgets a Fence that waits, because the session has ended. The layout in force, which the next
 * Hello reports, stays. */
static void forget_fence(struct shard_job *job)
{
    job->move.fence.epoch = 0;
}

static const struct shard_message messages[] = {
    { CAIRN_MSG_PART_PREPARE, .pages = &kind },
    { CAIRN_MSG_PART_UNPREPARE, .on_job = on_unprepare },
    { CAIRN_MSG_PART_SETTLED, .on_job = on_settled },
    { CAIRN_MSG_SHARDS_CHANGED, .on_job = on_shards_changed },
    { CAIRN_MSG_PART_PUBLISH, .ask_job = on_publish },
    { 0 },
};
const struct shard_module move_module = {
    .messages = messages,
    .on = { [SHARD_JOB_STOPS] = end_moves,
            [SHARD_JOB_FREED] = free_moves,
            [SHARD_JOB_MAY_REST] = may_rest,
            [SHARD_JOB_RESUMES] = resume_prepared,
            [SHARD_SESSION_ENDED] = forget_fence },
    .tick = tick_move,
};
