/* Handles what shards send: replies to questions, and reports for the cores of their jobs. */
#include <stdlib.h>
#include <string.h>

#include "proto/base/exact.h"
#include "proto/base/text.h"
#include "server/base/log.h"
#include "server/coordinator/base/calls.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/handlers.h"
#include "server/coordinator/job/bytes.h"
#include "server/coordinator/job/drain.h"
#include "server/coordinator/job/openings.h"
#include "server/coordinator/member/standing.h"
#include "server/coordinator/member/unheard.h"
#include "server/coordinator/restore/adopt.h"
#include "server/coordinator/restore/restore.h"

/* The job and the shard's place in it. NULL: it speaks of a job that is gone or not its own, which is
 * no fault: the job may have been dropped while it spoke. */
static struct cairn_cluster_job *place_of(struct cairn_cluster_session *session, uint64_t job_id,
                                          uint32_t *shard_out)
{
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(session->cluster, job_id);
    if (job == NULL || session->seat == NULL) return NULL;
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].seat != session->seat || !job->shards[i].up) continue;
        *shard_out = i;
        return job;
    }
    return NULL;
}

static bool read_u64(const Cairn__ReducedValue *value, uint64_t *out)
{
    if (value->value.len != 8) return false;
    *out = 0;
    for (int i = 7; i >= 0; i--) *out = *out << 8 | value->value.data[i];
    return true;
}

/* Each of the three keys once, with its operation. */
static bool read_sums(const Cairn__Reduced *message, struct cairn_step_sums *out)
{
    unsigned seen = 0;
    for (size_t i = 0; i < message->n_values; i++) {
        const Cairn__ReducedValue *v = message->values[i];
        if (v->key < 1 || v->key > 3 || v->op != v->key || (seen & 1u << v->key)) return false;
        seen |= 1u << v->key;
        if (v->key == 1) {
            if (v->value.len != CAIRN_EXACT_BYTES) return false;
            cairn_exact_decode(v->value.data, &out->sum_squares);
        } else if (!read_u64(v, v->key == 2 ? &out->nonfinite : &out->weight)) {
            return false;
        }
    }
    return seen == (1u << 1 | 1u << 2 | 1u << 3);
}

/* Malloc'ed; NULL: there is no memory. */
static struct cairn_round_untouched *read_untouched(const Cairn__Reduced *message)
{
    struct cairn_round_untouched *list = calloc(message->n_untouched_tensors + 1, sizeof *list);
    for (size_t i = 0; list != NULL && i < message->n_untouched_tensors; i++)
        list[i] = (struct cairn_round_untouched) { message->untouched_elems[i],
                                                   message->untouched_tensors[i] };
    return list;
}

static bool on_reduced(struct cairn_cluster_session *session, const Cairn__Reduced *message)
{
    struct cairn_step_sums sums;
    uint32_t shard;
    if (!read_sums(message, &sums) || message->n_untouched_tensors != message->n_untouched_elems)
        return false;
    struct cairn_cluster_job *job = place_of(session, message->job, &shard);
    if (job == NULL) return true;
    struct cairn_round_untouched *untouched = read_untouched(message);
    if (untouched == NULL) return false; // the shard says it again when it is back
    cairn_cluster_halts_reduced(job, shard, message, sums.nonfinite);
    const struct cairn_round_event event = { .kind = CAIRN_ROUND_REDUCED,
                                             .shard = shard,
                                             .epoch = message->epoch,
                                             .round = message->round,
                                             .sums = &sums,
                                             .untouched = untouched,
                                             .untouched_count =
                                                 (uint32_t)message->n_untouched_tensors };
    cairn_cluster_job_event(job, &event);
    free(untouched);
    return true;
}

static void on_published(struct cairn_cluster_session *session, const Cairn__Published *message)
{
    uint32_t shard;
    struct cairn_cluster_job *job = place_of(session, message->job, &shard);
    if (job == NULL) return;
    cairn_step_ring_take(&job->shards[shard].times, message->times);
    cairn_cluster_halts_take(job, shard, message);
    const struct cairn_round_event event = { .kind = CAIRN_ROUND_PUBLISHED,
                                             .shard = shard,
                                             .epoch = message->epoch,
                                             .round = message->round,
                                             .version = { message->generation, message->step },
                                             .nonfinite = message->nonfinite > 0 };
    cairn_cluster_job_event(job, &event);
}

static bool on_answer(struct cairn_cluster_session *session, const Cairn__Answer *message)
{
    struct cairn_decision last = { .kind = CAIRN_DECISION_NONE };
    uint32_t shard;
    if (message->phase > CAIRN_STEP_JOINING) return false;
    if (message->last != NULL &&
        cairn_cluster_decision_of_message(message->last, &last) != CAIRN_OK) {
        return false;
    }
    struct cairn_cluster_job *job = place_of(session, message->job, &shard);
    if (job == NULL) return true;
    cairn_cluster_tiles_heard(job, message->tiles_world);
    const struct cairn_round_event event = { .kind = CAIRN_ROUND_ANSWER,
                                             .shard = shard,
                                             .epoch = message->epoch,
                                             .refused = message->refused,
                                             .phase = (enum cairn_step_phase)message->phase,
                                             .round = message->open_round,
                                             .version = { message->generation, message->step },
                                             .decision = &last };
    cairn_cluster_job_event(job, &event);
    return true;
}

static bool on_lacks(struct cairn_cluster_session *session, const Cairn__Lacks *message)
{
    const size_t count = message->n_members;
    uint32_t shard;
    if (message->n_micros != count || message->n_flags != count) return false;
    struct cairn_cluster_job *job = place_of(session, message->job, &shard);
    struct cairn_round_lack *lacks = job == NULL ? NULL : calloc(count + 1, sizeof *lacks);
    if (lacks == NULL) return true; // without memory: it is asked again at the next deadline
    for (size_t i = 0; i < count; i++) {
        lacks[i] = (struct cairn_round_lack) {
            .member = message->members[i],
            .micro = message->micros[i],
            .waits = (message->flags[i] & CAIRN_LACK_WAITS) != 0,
            .relayed = (message->flags[i] & CAIRN_LACK_RELAYED) != 0,
        };
    }
    const struct cairn_round_event event = { .kind = CAIRN_ROUND_LACKS,
                                             .shard = shard,
                                             .epoch = message->epoch,
                                             .round = message->round,
                                             .lacks = lacks,
                                             .lack_count = (uint32_t)count };
    cairn_cluster_straggler_lacks(job, message);
    cairn_cluster_job_event(job, &event);
    free(lacks);
    return true;
}

static void on_part_moved(struct cairn_cluster_session *session, const Cairn__PartMoved *message)
{
    uint32_t shard;
    struct cairn_cluster_job *job = place_of(session, message->job, &shard);
    if (job != NULL) cairn_cluster_slice_moved(job, shard, message);
}

static void on_member_fault(struct cairn_cluster_session *session,
                            const Cairn__MemberFault *message)
{
    uint32_t shard;
    struct cairn_cluster_job *job = place_of(session, message->job, &shard);
    if (job != NULL) cairn_cluster_member_fault(job, message->member, message->text);
}

static void on_snapshot_part(struct cairn_cluster_session *session,
                             const Cairn__SnapshotPart *message)
{
    uint32_t shard;
    if (cairn_cluster_restore_on_part(session, message)) return;
    struct cairn_cluster_job *job = place_of(session, message->job, &shard);
    if (job != NULL) cairn_cluster_cut_on_part(job, shard, message);
}

/* A sentence of a shard goes into our log and to operators: one line. */
static void take_storage(struct cairn_cluster_seat *seat, const char *why)
{
    struct cairn_sentence said;
    cairn_sentence_set(&said, "%s", why);
    cairn_text_mend(said.text, "");
    if (strcmp(seat->storage.text, said.text) == 0) return;
    seat->storage = said;
    if (said.text[0] != '\0')
        cairn_log_warn("no snapshot can be saved: shard %s: %s", seat->name, said.text);
    else
        cairn_log_info("shard %s can save snapshots again", seat->name);
}

static void on_heartbeat(struct cairn_cluster_session *session, const Cairn__Heartbeat *message)
{
    if (session->seat == NULL) return;
    cairn_cluster_unheard_told(session, message->unheard, message->n_unheard);
    if (message->stats == NULL) return;
    session->seat->stats = *message->stats; // numbers only
    session->seat->has_stats = true;
    take_storage(session->seat, message->storage);
    cairn_cluster_bytes_take(session->seat, message);
    cairn_cluster_cut_on_progress(session->cluster, session->seat, message);
}

bool cairn_cluster_handle_shard(struct cairn_cluster_session *session,
                                const struct cairn_frame *frame, const ProtobufCMessage *message)
{
    const Cairn__Error *error = (const Cairn__Error *)message;
    switch (frame->type) {
    case CAIRN_MSG_HEARTBEAT: on_heartbeat(session, (const Cairn__Heartbeat *)message); return true;
    case CAIRN_MSG_DONE:
        cairn_cluster_calls_reply(session->seat, frame->request, CAIRN_OK, "");
        return true;
    case CAIRN_MSG_ERROR:
        cairn_cluster_calls_reply(session->seat, frame->request,
                                  cairn_status_known(error->status) && error->status != CAIRN_OK
                                      ? (cairn_status)error->status
                                      : CAIRN_ERR_INTERNAL,
                                  error->text);
        return true;
    case CAIRN_MSG_REDUCED: return on_reduced(session, (const Cairn__Reduced *)message);
    case CAIRN_MSG_ANSWER: return on_answer(session, (const Cairn__Answer *)message);
    case CAIRN_MSG_PUBLISHED: on_published(session, (const Cairn__Published *)message); return true;
    case CAIRN_MSG_PART_MOVED:
        on_part_moved(session, (const Cairn__PartMoved *)message);
        return true;
    case CAIRN_MSG_DRAIN_ME:
        cairn_cluster_drain_me(session, frame->request, (const Cairn__DrainMe *)message);
        return true;
    case CAIRN_MSG_LACKS: return on_lacks(session, (const Cairn__Lacks *)message);
    case CAIRN_MSG_MEMBER_FAULT:
        on_member_fault(session, (const Cairn__MemberFault *)message);
        return true;
    case CAIRN_MSG_SNAPSHOT_PART:
        on_snapshot_part(session, (const Cairn__SnapshotPart *)message);
        return true;
    case CAIRN_MSG_PART:
        cairn_cluster_adopt_on_part(session, frame->request, (const Cairn__Part *)message);
        return true;
    case CAIRN_MSG_PAGE:
        cairn_cluster_adopt_on_page(session, frame->request, (const Cairn__Page *)message);
        return true;
    case CAIRN_MSG_HELD_JOBS:
        if (!cairn_cluster_seat_held(session, frame)) return false;
        cairn_cluster_openings_advance(session->cluster);
        return true;
    default: return false;
    }
}
