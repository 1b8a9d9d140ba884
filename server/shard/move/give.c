#include "server/shard/move/give.h"

#include "server/shard/job/members.h"
#include "server/shard/job/update.h"
#include "server/shard/move/part.h"

/* ---- what was given is forgotten ---- */

static void leave_movers(struct cairn_shard_job *job, struct cairn_move_part *part)
{
    for (size_t i = 0; i < part->mover_count; i++) cairn_member_leave(job, part->movers[i]);
    part->mover_count = 0;
}

void cairn_move_settle(struct cairn_shard_job *job)
{
    struct cairn_move *move = &job->move;
    struct cairn_move_part *now = move->now;
    // State is still being sent from here, or still comes to a place that was given up: a later
    // tick tries again.
    if (move->sends > 0 || move->leaving != NULL) return;
    const uint64_t bytes = cairn_move_bytes_beyond(job, move->before, job->view);
    if (bytes > 0) cairn_shard_view_give(job, move->before);
    cairn_shard_job_give(job, &job->memory.state, bytes + now->shifted);
    cairn_log_info("job %s: layout %llu is settled: %llu bytes of host memory went", job->spec.name,
                   (unsigned long long)now->view->layout->version, (unsigned long long)bytes);
    cairn_shard_view_unref(move->before);
    move->before = NULL;
    move->now = NULL;
    move->is_settling = false;
    cairn_move_part_drop(job, now);
    cairn_move_trim(job);
    cairn_move_go_on(job->shard, job->number);
}

void cairn_move_on_settled(struct cairn_shard_job *job, const Cairn__PartSettled *message)
{
    struct cairn_move_part *now = job->move.now;
    if (now == NULL || now->view->layout->version != message->layout) return; // it was, before
    if (now->take != NULL) {
        cairn_session_refuse(job->shard, CAIRN_ERR_PROTOCOL,
                             "layout %llu of job %s is said to be settled, and shard %s has not "
                             "all of its state",
                             (unsigned long long)message->layout, job->spec.name, job->shard->name);
        return;
    }
    leave_movers(job, now); // what is being sent to them ends
    job->move.is_settling = true;
    cairn_move_settle(job);
    if (job->move.is_settling) cairn_move_wake(job->shard);
}

/* ---- the newest version, by the layout in force ---- */

static void on_published(struct cairn_shard_job *job)
{
    cairn_session_answer(job->shard, &job->move.publishing, CAIRN_OK, NULL);
}

static bool is_published(const struct cairn_shard_job *job)
{
    return job->versions.copies[job->versions.newest].view == job->view;
}

void cairn_move_on_publish(struct cairn_shard_job *job, uint32_t request,
                           const Cairn__PartPublish *message)
{
    struct cairn_request asked = cairn_session_request(job->shard, request);
    struct cairn_sentence why;
    cairn_status status = CAIRN_OK;
    cairn_log_debug("job %s: layout %llu: the newest version is to be published in it",
                    job->spec.name, (unsigned long long)message->layout);
    if (job->state != CAIRN_JOB_SERVING || message->layout != job->view->layout->version)
        status = cairn_fail(&why, CAIRN_ERR_NOT_READY, "layout %llu of job %s is not in force here",
                            (unsigned long long)message->layout, job->spec.name);
    else if (job->move.now != NULL && job->move.now->take != NULL)
        status = cairn_fail(&why, CAIRN_ERR_NOT_READY, "state of job %s is still to come",
                            job->spec.name);
    else if (cairn_step_phase_of(job->collector.step) != CAIRN_STEP_IDLE)
        status = cairn_fail(&why, CAIRN_ERR_BUSY, "a round of job %s is open", job->spec.name);
    if (status == CAIRN_OK && !is_published(job)) {
        if (job->move.publishing.session == 0)
            status = cairn_pass_republish(job, on_published, &why);
        if (status == CAIRN_OK) { // or it is at work, and who asked before has given that up
            job->move.publishing = asked;
            return;
        }
    }
    cairn_session_answer(job->shard, &asked, status, &why);
}

/* ---- the end ---- */

void cairn_move_leave(struct cairn_shard_job *job)
{
    if (job->move.now != NULL) {
        cairn_take_leave(job->move.now->take);
        job->move.now->take = NULL;
    }
    job->move.fence.epoch = 0;
    cairn_move_forget(job);
}

void cairn_move_release(struct cairn_shard_job *job)
{
    struct cairn_move *move = &job->move;
    cairn_take_free_leaving(job);
    cairn_move_part_drop(job, move->next);
    cairn_move_part_drop(job, move->now);
    cairn_shard_view_unref(move->before);
    *move = (struct cairn_move) { .next = NULL };
}
