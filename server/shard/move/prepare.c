/* PartPrepare: the view of the next layout, the memory for what comes with it, and those who will ask for
 * what goes; all beside what the job goes by, so that it can be forgotten. */
#include "server/shard/move/prepare.h"

#include <stdio.h>
#include <stdlib.h>

#include "server/shard/base/arriving.h"
#include "server/shard/job/members.h"
#include "server/shard/job/open.h"
#include "server/shard/job/switch.h"
#include "server/shard/move/part.h"
#include "server/shard/move/shift.h"

static const struct cairn_arriving_kind kind;

static const Cairn__PartPrepare *message_of(const struct cairn_arriving *arriving)
{
    return (const Cairn__PartPrepare *)arriving->message;
}

/* ---- judging ---- */

static cairn_status judge(struct cairn_shard_job *job, const Cairn__PartPrepare *message,
                          struct cairn_sentence *why)
{
    const uint64_t in_force = job->view->layout->version;
    if (job->state != CAIRN_JOB_SERVING)
        return cairn_fail(why, CAIRN_ERR_NOT_READY, "job %s has no version yet", job->spec.name);
    cairn_pins_unprepare(job);
    cairn_pins_hurry(job);
    if (job->park.is_under_way || job->planes.parked || job->pins.list != NULL)
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "the state of job %s is being moved or saved here: ask again",
                          job->spec.name);
    // One that goes back may follow another one that never came into force here.
    if (message->layout <= in_force)
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "layout %llu of job %s does not follow layout %llu, which is in force",
                          (unsigned long long)message->layout, job->spec.name,
                          (unsigned long long)in_force);
    return CAIRN_OK;
}

/* Extents that were cut stay cut: each is a part of one of before. */
static bool same_owners(const struct cairn_layout *layout, const struct cairn_layout *before)
{
    for (size_t i = 0; i < layout->extent_count; i++) {
        const struct cairn_extent *extent = &layout->extents[i];
        const struct cairn_geometry *geometry = &layout->geometry[extent->tensor];
        const struct cairn_extent *was = cairn_layout_find(
            before, extent->tensor, cairn_quantum_first_leaf(geometry, extent->first_quantum));
        if (was == NULL || was->shard != extent->shard ||
            extent->first_quantum + extent->quantum_count > was->first_quantum + was->quantum_count)
            return false;
    }
    return true;
}

/* While what came or went is not settled, the one way is back: to the owners of before; and from there on
 * nowhere else. */
static cairn_status judge_table(const struct cairn_shard_job *job, uint64_t wanted,
                                const struct cairn_layout *layout, struct cairn_sentence *why)
{
    if (layout->version != wanted)
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "the pages are of layout %llu",
                          (unsigned long long)layout->version);
    const struct cairn_shard_view *kept = cairn_move_kept(job);
    if (job->move.now == NULL ||
        same_owners(layout, kept != NULL ? kept->layout : job->view->layout))
        return CAIRN_OK;
    return cairn_fail(why, CAIRN_ERR_NOT_READY,
                      "layout %llu of job %s is not settled: another one does not begin before",
                      (unsigned long long)job->view->layout->version, job->spec.name);
}

/* ---- what it takes ---- */

static const Cairn__Mover *mover_of(const Cairn__PartPrepare *message)
{
    for (size_t i = 0; i < message->n_movers; i++)
        if (message->movers[i]->shard == message->shard_index) return message->movers[i];
    return NULL;
}

static uint64_t more(uint64_t next, uint64_t now)
{
    return next > now ? next - now : 0;
}

/* All of it, or nothing. */
static cairn_status take_budget(struct cairn_shard_job *job, struct cairn_move_part *part,
                                uint64_t room, uint64_t staging, struct cairn_sentence *why)
{
    char what[CAIRN_NAME_MAX + 64];
    const uint64_t published = more(part->view->published_bytes, job->view->published_bytes),
                   tables = more(part->view->table_bytes, job->view->table_bytes);
    snprintf(what, sizeof what, "what comes of job %s with layout %llu", job->spec.name,
             (unsigned long long)part->view->layout->version);
    const uint64_t shifted = cairn_shift_bytes(job, part->view, cairn_move_kept(job));
    const cairn_status status = cairn_budget_take(
        &job->shard->memory.budget, room + shifted + staging + published + tables, what, why);
    if (status != CAIRN_OK) return status;
    job->memory.state += (part->room = room) + (part->shifted = shifted);
    job->memory.staging += part->staging = staging;
    job->memory.published += part->published = published;
    job->memory.tables += part->tables = tables;
    return CAIRN_OK;
}

/* The layout does not come into force: what is its alone is given back. */
static void give_budget(struct cairn_shard_job *job, const struct cairn_move_part *part)
{
    cairn_shard_job_give(job, &job->memory.state, part->room + part->shifted);
    cairn_shard_job_give(job, &job->memory.published, part->published);
    cairn_shard_job_give(job, &job->memory.tables, part->tables);
}

static cairn_status open_take(struct cairn_shard_job *job, struct cairn_move_part *part,
                              const Cairn__PartPrepare *message, struct cairn_sentence *why)
{
    const Cairn__Mover *mover = mover_of(message);
    struct cairn_lots lots;
    if (cairn_lots_list(job->view, part->view, cairn_move_kept(job), &lots) != CAIRN_OK)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to take state");
    part->comes = lots.bytes;
    if (lots.count == 0) return take_budget(job, part, 0, 0, why);
    if (mover == NULL) {
        cairn_lots_release(&lots);
        return cairn_fail(why, CAIRN_ERR_MALFORMED,
                          "state comes to shard %s, and it was not told as whom it may ask",
                          job->shard->name);
    }
    const cairn_status status = take_budget(job, part,
                                            cairn_move_bytes_beyond(job, part->view, job->view),
                                            cairn_take_staging_bytes(job, &lots), why);
    if (status != CAIRN_OK) {
        cairn_lots_release(&lots);
        return status;
    }
    return cairn_take_open(job, part->view, &lots, mover, message->shards, message->n_shards,
                           &part->take, why);
}

/* ---- those who will ask ---- */

/* Something of what we give may be the mover's. */
static cairn_status let_in(struct cairn_shard_job *job, struct cairn_move_part *part,
                           const Cairn__Mover *mover, struct cairn_sentence *why)
{
    Cairn__MemberJoin join = CAIRN__MEMBER_JOIN__INIT;
    join.job = job->number;
    join.member = mover->member;
    join.token = mover->token;
    join.role = CAIRN_ROLE_WIRE_READER;
    join.name = mover->name;
    join.fabric_address = mover->fabric_address;
    cairn_status status = cairn_member_join(job, &join, why);
    if (status != CAIRN_OK) return status;
    part->movers[part->mover_count++] = mover->member;
    struct cairn_member *member = cairn_member_find(job, mover->member);
    member->is_mover = true;
    return cairn_reply_keep(member, why);
}

static cairn_status let_all_in(struct cairn_shard_job *job, struct cairn_move_part *part,
                               const Cairn__PartPrepare *message, struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    if (message->n_movers == 0) return CAIRN_OK;
    part->movers = calloc(message->n_movers, sizeof *part->movers);
    if (part->movers == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for those who take state");
    for (size_t i = 0; i < message->n_movers && status == CAIRN_OK; i++)
        if (message->movers[i]->shard != message->shard_index)
            status = let_in(job, part, message->movers[i], why);
    return status;
}

/* ---- from beginning to end ---- */

void cairn_move_go_on(struct cairn_shard *shard, uint64_t job)
{
    for (struct cairn_arriving *a = shard->arriving, *next; a != NULL; a = next) {
        next = a->next;
        if (a->kind != &kind || !cairn_arriving_whole(a) || message_of(a)->job != job) continue;
        kind.whole(shard, a);
        return;
    }
}

/* Forgets the prepared layout and gives back what it took. Only a layout that comes into force
 * leaves that to the job: cairn_move_on_fence. */
static void forget(struct cairn_shard_job *job)
{
    struct cairn_move_part *part = job->move.next;
    struct cairn_sentence why;
    job->move.next = NULL;
    cairn_sentence_set(&why, "layout %llu is not wanted any more",
                       (unsigned long long)part->view->layout->version);
    cairn_session_answer(job->shard, &part->asked, CAIRN_ERR_CANCELED, &why);
    if (part->room > 0) cairn_shard_view_give(job, part->view);
    give_budget(job, part);
    cairn_move_part_drop(job, part);
    cairn_move_trim(job);
}

void cairn_move_forget(struct cairn_shard_job *job)
{
    if (job->move.next == NULL) return;
    job->move.next->is_unwanted = true;
    if (job->move.next->is_ready) forget(job); // else when its pages are made
}

static cairn_status add_room(struct cairn_reserve *reserve, struct cairn_shard_job *job)
{
    const struct cairn_move_part *part = job->move.next;
    cairn_status status = cairn_shift_reserve(job, part->view, cairn_move_kept(job), reserve);
    if (part->take == NULL) return status; // nothing comes
    if (status == CAIRN_OK) status = cairn_shard_view_reserve(job, part->view, reserve);
    return status == CAIRN_OK ? cairn_take_reserve(part->take, reserve) : status;
}

static void on_room(const struct cairn_reserve_request *request, cairn_status status,
                    const struct cairn_sentence *why)
{
    struct cairn_shard_job *job = request->job;
    struct cairn_shard *shard = job->shard;
    struct cairn_move_part *part = job->move.next;
    if (part == NULL) return; // the job leaves
    part->is_ready = true;
    if (status != CAIRN_OK) {
        cairn_log_warn("layout %llu of job %s is refused: %s",
                       (unsigned long long)part->view->layout->version, job->spec.name, why->text);
        cairn_session_answer(shard, &part->asked, status, why);
        part->is_unwanted = true;
    }
    if (part->is_unwanted) {
        const uint64_t number = job->number;
        forget(job);
        cairn_move_go_on(shard, number);
        return;
    }
    cairn_log_info("job %s: layout %llu is prepared: %llu bytes of state come, and %zu shards take",
                   job->spec.name, (unsigned long long)part->view->layout->version,
                   (unsigned long long)part->comes, part->mover_count);
    cairn_session_answer(shard, &part->asked, CAIRN_OK, NULL);
}

static cairn_status fill(struct cairn_shard_job *job, struct cairn_move_part *part,
                         const struct cairn_arriving *arriving, struct cairn_sentence *why)
{
    const Cairn__PartPrepare *message = message_of(arriving);
    const struct cairn_reserve_request request = {
        .job = job, .what = "what comes with a layout", .prepare = add_room, .done = on_room
    };
    struct cairn_layout *layout;
    cairn_status status = cairn_shard_job_layout(job, &arriving->paged[0], &layout, why);
    if (status != CAIRN_OK) return status;
    status = judge_table(job, message->layout, layout, why);
    if (status != CAIRN_OK) {
        cairn_layout_close(layout);
        return status;
    }
    const struct cairn_shard_view *kept = cairn_move_kept(job);
    status = cairn_shard_view_next(job, layout, message->shard_index,
                                   kept != NULL ? kept : job->view, &part->view, why);
    if (status == CAIRN_OK) status = open_take(job, part, message, why);
    if (status == CAIRN_OK) status = let_all_in(job, part, message, why);
    return status == CAIRN_OK ? cairn_reserve_begin(&request, why) : status;
}

static cairn_status begin(struct cairn_shard_job *job, const struct cairn_arriving *arriving,
                          struct cairn_sentence *why)
{
    struct cairn_move_part *part = calloc(1, sizeof *part);
    if (part == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a layout");
    cairn_log_debug("job %s: layout %llu is to be prepared", job->spec.name,
                    (unsigned long long)message_of(arriving)->layout);
    part->session = job->shard->session.serial;
    job->move.next = part;
    const cairn_status status = fill(job, part, arriving, why);
    if (status == CAIRN_OK) {
        part->asked = cairn_session_request(job->shard, arriving->request);
        return CAIRN_OK;
    }
    job->move.next = NULL;
    give_budget(job, part);
    cairn_move_part_drop(job, part);
    cairn_move_trim(job);
    return status;
}

static void whole(struct cairn_shard *shard, struct cairn_arriving *arriving)
{
    struct cairn_shard_job *job = cairn_shard_job_find(shard, message_of(arriving)->job);
    struct cairn_sentence why;
    cairn_status status = CAIRN_ERR_NOT_FOUND;
    cairn_sentence_set(&why, "shard %s does not hold that job", shard->name);
    if (job != NULL) status = judge(job, message_of(arriving), &why);
    // It goes on when that is settled, or the Fence that drains a round is through.
    if (status == CAIRN_OK && (job->move.is_settling || job->move.fence.epoch != 0)) return;
    if (status == CAIRN_OK && job->move.next != NULL) {
        cairn_move_forget(job); // who asks may be others than those that were told before
        if (job->move.next != NULL) return; // it goes on when that is forgotten
    }
    if (status == CAIRN_OK) status = begin(job, arriving, &why);
    if (status == CAIRN_OK)
        cairn_arriving_drop(shard, arriving); // on_room answers
    else
        cairn_arriving_end(shard, arriving, status, &why);
}

static const struct cairn_arriving_kind kind = {
    .name = "a layout",
    .what = { CAIRN_PAGE_LAYOUT },
    .whole = whole,
};

void cairn_move_on_prepare(struct cairn_shard *shard, uint32_t request, Cairn__PartPrepare *message)
{
    const uint64_t bytes[CAIRN_ARRIVING_PAGED] = { message->layout_bytes };
    cairn_arriving_begin(shard, &kind, request, &message->base, bytes);
}

/* Ends the PartPrepares of that layout that still wait. */
static void end_waiting(struct cairn_shard *shard, const Cairn__PartUnprepare *message)
{
    struct cairn_sentence why;
    cairn_sentence_set(&why, "layout %llu is not wanted any more",
                       (unsigned long long)message->layout);
    for (struct cairn_arriving *a = shard->arriving, *next; a != NULL; a = next) {
        next = a->next;
        if (a->kind == &kind && message_of(a)->job == message->job &&
            message_of(a)->layout == message->layout)
            cairn_arriving_end(shard, a, CAIRN_ERR_CANCELED, &why);
    }
}

void cairn_move_on_unprepare(struct cairn_shard_job *job, const Cairn__PartUnprepare *message)
{
    const struct cairn_move_part *part = job->move.next;
    end_waiting(job->shard, message);
    if (part != NULL && part->view->layout->version == message->layout) cairn_move_forget(job);
}
