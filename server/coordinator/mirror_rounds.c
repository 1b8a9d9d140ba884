/* The part that standbys have in the rounds of a job: a round is sent to a standby too, and the owner's
 * reports wait for those of all its standbys. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/mirror.h"

static const uint16_t report_types[CAIRN_MIRROR_REPORTS] = { CAIRN_MSG_ANSWER, CAIRN_MSG_REDUCED,
                                                             CAIRN_MSG_PUBLISHED };

/* ---- reports that wait ---- */

static void forget_waiting(struct mirror_waiting *waiting)
{
    free(waiting->bytes);
    *waiting = (struct mirror_waiting) { .bytes = NULL };
}

void coord_mirrors_forget_reports(struct coord_mirrors *all)
{
    for (int kind = 0; kind < CAIRN_MIRROR_REPORTS; kind++) forget_waiting(&all->waiting[kind]);
    all->look.count = 0;
}

/* True if the owner's report need not wait any longer. */
static bool may_pass(const struct coord_mirrors *all, int kind, struct mirror_report report)
{
    const struct mirror_state *const states[CAIRN_STANDBYS_MAX] = { &all->of[0].state,
                                                                    &all->of[1].state };
    return mirrors_pass(states, (enum mirror_report_kind)kind, report) &&
           !(kind == CAIRN_MIRROR_PUBLISHED && all->look.count != 0);
}

/* The decision may have reached the standby alone, which has carried it out. The owner, which is prepared for
 * that round, then counts as having answered with it. */
static void add_decision(const struct coord_mirror *mirror, Cairn__Answer *owners,
                         Cairn__Answer *standbys)
{
    Cairn__Decision *theirs = owners->last;
    const bool is_known = theirs != NULL && standbys->last != NULL &&
                          standbys->epoch == owners->epoch;
    if (!is_known || !mirror_knows_more(standbys->last->round, theirs->round)) return;
    log_info("job %s: round %" PRIu64 " was decided, and standby %s knows, and its owner does not",
             mirror->all->job->spec.name, standbys->last->round, mirror->name);
    owners->last = standbys->last;
    standbys->last = theirs;
}

/* Returns the standby's last answer to a Fence. NULL: none is known that counts. */
static ProtobufCMessage *answer_of(const struct coord_mirror *mirror)
{
    if (mirror->answer == NULL || !mirror_takes_part(&mirror->state)) return NULL;
    return message_unpack(message_type(CAIRN_MSG_ANSWER), mirror->answer, mirror->answer_bytes);
}

/* Hands the owner's report to the core: an answer with what its standbys know. */
static void pass(struct coord_mirrors *all, int kind)
{
    struct mirror_waiting waiting = all->waiting[kind];
    all->waiting[kind] = (struct mirror_waiting) { .bytes = NULL };
    ProtobufCMessage *message = message_unpack(message_type(report_types[kind]), waiting.bytes,
                                               waiting.byte_count);
    ProtobufCMessage *answers[CAIRN_STANDBYS_MAX] = { NULL };
    struct coord_job *job = all->job;
    const uint32_t shard = all->shard;
    free(waiting.bytes);
    for (int i = 0; i < CAIRN_STANDBYS_MAX && kind == CAIRN_MIRROR_ANSWER; i++) {
        answers[i] = answer_of(&all->of[i]);
        if (message != NULL && answers[i] != NULL)
            add_decision(&all->of[i], (Cairn__Answer *)message, (Cairn__Answer *)answers[i]);
    }
    // without memory the report is lost, and the round ends at the step's deadline
    if (message != NULL && job->shards[shard].up)
        coord_part_message(job, shard, report_types[kind], message);
    message_free(message);
    for (int i = 0; i < CAIRN_STANDBYS_MAX; i++) message_free(answers[i]);
}

void coord_mirrors_pass_reports(struct coord_job *job, uint32_t shard)
{
    for (int kind = 0; kind < CAIRN_MIRROR_REPORTS; kind++) {
        struct coord_mirrors *all = coord_mirrors_find(job, shard);
        if (all == NULL || all->waiting[kind].bytes == NULL) continue;
        if (kind == CAIRN_MIRROR_REDUCED && !coord_mirrors_judge_sums(all))
            forget_waiting(&all->waiting[kind]);
        all = coord_mirrors_find(job, shard); // a mirror may have ended
        if (all != NULL && all->waiting[kind].bytes != NULL &&
            may_pass(all, kind, all->waiting[kind].report))
            pass(all, kind);
    }
}

static struct mirror_report report_of(int kind, const ProtobufCMessage *message)
{
    if (kind == CAIRN_MIRROR_ANSWER)
        return (struct mirror_report) { ((const Cairn__Answer *)message)->epoch, 0 };
    if (kind == CAIRN_MIRROR_REDUCED) {
        const Cairn__Reduced *reduced = (const Cairn__Reduced *)message;
        return (struct mirror_report) { reduced->epoch, reduced->round };
    }
    const Cairn__Published *published = (const Cairn__Published *)message;
    return (struct mirror_report) { published->epoch, published->round };
}

static int kind_of(uint16_t type)
{
    int kind = 0;
    while (kind < CAIRN_MIRROR_REPORTS && report_types[kind] != type) kind++;
    return kind;
}

/* Keeps the owner's report until its standbys have reported the same. */
static void hold(struct coord_mirrors *all, int kind, const struct wire_frame *frame,
                 struct mirror_report report)
{
    struct mirror_waiting *waiting = &all->waiting[kind];
    forget_waiting(waiting);
    waiting->bytes = malloc(frame->payload_bytes + 1);
    if (waiting->bytes == NULL) return; // the round ends at the step's deadline
    memcpy(waiting->bytes, frame->payload, frame->payload_bytes);
    waiting->byte_count = frame->payload_bytes;
    waiting->report = report;
    waiting->since_ms = coord_now_ms(all->job->cluster);
}

/* Tells the standbys that the owner has the sums of the round. */
static void tell_sums(const struct coord_mirrors *all, struct mirror_report report)
{
    Cairn__MirrorSums message = CAIRN__MIRROR_SUMS__INIT;
    message.job = all->job->id;
    message.epoch = report.epoch;
    message.round = report.round;
    for (const struct coord_mirror *m = all->of; m < all->of + CAIRN_STANDBYS_MAX; m++)
        if (mirror_takes_part(&m->state) && m->entry != NULL)
            coord_session_send(m->entry->session, CAIRN_MSG_MIRROR_SUMS, 0, &message.base);
}

/* ---- what both report ---- */

/* Keeps what the standby answers, until the owner has answered. */
static void keep_answer(struct coord_mirror *mirror, const struct wire_frame *frame)
{
    free(mirror->answer);
    mirror->answer = malloc(frame->payload_bytes + 1);
    mirror->answer_bytes = 0;
    if (mirror->answer == NULL)
        return; // a decision that it alone knows of is forgotten, and its part stops
    memcpy(mirror->answer, frame->payload, frame->payload_bytes);
    mirror->answer_bytes = frame->payload_bytes;
}

static void take_standbys(struct coord_mirror *mirror, int kind, const struct wire_frame *frame,
                          const ProtobufCMessage *message)
{
    struct coord_mirrors *all = mirror->all;
    const struct mirror_report report = report_of(kind, message);
    if (kind == CAIRN_MIRROR_ANSWER) keep_answer(mirror, frame);
    if (kind == CAIRN_MIRROR_REDUCED)
        mirror->sums = coord_mirrors_sums((const Cairn__Reduced *)message);
    else
        mirror_hears(&mirror->state, (enum mirror_report_kind)kind, report);
    if (kind == CAIRN_MIRROR_PUBLISHED)
        coord_mirrors_take_audit(all, (int)(CAIRN_AUDIT_STANDBYS + (mirror - all->of)),
                                 (const Cairn__Published *)message);
    coord_mirrors_pass_reports(all->job, all->shard);
}

/* Returns the mirrors of the shard's part, if it has some. */
static struct coord_mirrors *mirrors_of(const struct coord_job *job,
                                        const struct coord_shard_entry *entry)
{
    for (struct coord_mirrors *all = job->loss.mirrors; all != NULL; all = all->next)
        if (all->shard < job->shard_count && job->shards[all->shard].entry == entry &&
            job->shards[all->shard].up)
            return all;
    return NULL;
}

bool coord_mirrors_take(struct coord_session *session, const struct wire_frame *frame,
                        const ProtobufCMessage *message)
{
    const uint64_t *number = message_job((ProtobufCMessage *)(uintptr_t)message);
    struct coord_job *job = number != NULL ? coord_job_by_id(session->cluster, *number) : NULL;
    const int kind = kind_of(frame->type);
    if (job == NULL || job->loss.mirrors == NULL || session->entry == NULL) return false;
    struct coord_mirror *mirror = coord_mirror_at(job, session->entry);
    if (mirror != NULL && mirror->state.stage != CAIRN_MIRROR_TAKING &&
        !coord_job_has_shard(job, session->entry)) {
        if (kind < CAIRN_MIRROR_REPORTS && mirror_takes_part(&mirror->state))
            take_standbys(mirror, kind, frame, message);
        return true; // the core knows nothing of it
    }
    struct coord_mirrors *all = kind < CAIRN_MIRROR_REPORTS ? mirrors_of(job, session->entry)
                                                            : NULL;
    if (all == NULL) return false;
    const struct mirror_report report = report_of(kind, message);
    // The core takes no report of an epoch that is over, and no standby makes one: it would wait for nothing.
    if (job->core == NULL || report.epoch != round_epoch_of(job->core)) return false;
    if (kind == CAIRN_MIRROR_PUBLISHED)
        coord_mirrors_take_audit(all, CAIRN_AUDIT_OWNER, (const Cairn__Published *)message);
    const bool passes = may_pass(all, kind, report);
    const bool is_refused = kind == CAIRN_MIRROR_ANSWER &&
                            ((const Cairn__Answer *)message)->refused;
    if (is_refused || (passes && kind != CAIRN_MIRROR_ANSWER)) return false;
    hold(all, kind, frame, report);
    if (kind == CAIRN_MIRROR_REDUCED) {
        all->sums = coord_mirrors_sums((const Cairn__Reduced *)message);
        tell_sums(all, report);
    }
    // to an answer those of standbys may have to be added; of sums the standbys may have told before
    if (passes || kind == CAIRN_MIRROR_REDUCED) coord_mirrors_pass_reports(job, all->shard);
    return true;
}

/* ---- a round is sent ---- */

void coord_mirrors_send(const struct coord_job *job, uint16_t type, const ProtobufCMessage *message)
{
    CAIRN_EACH_MIRROR (job, all, m)
        if (mirror_takes_part(&m->state) && m->entry != NULL)
            coord_session_send(m->entry->session, type, 0, message);
}

/* Brings the standby's machine to where the owner's is: no round is open, and the last one is resolved, which
 * made the version. All rounds up to that one have ended. */
static void join_rounds(struct coord_mirror *mirror, uint64_t round, struct cairn_version version)
{
    struct coord_job *job = mirror->all->job;
    const struct decision *last = round_last(job->core);
    Cairn__Fence fence = CAIRN__FENCE__INIT;
    Cairn__Resolve resolve = CAIRN__RESOLVE__INIT;
    Cairn__Decision decision;
    const struct mirror_view view = coord_mirror_view(mirror);
    if (version_compare(last->version_after, version) != 0) return; // at a later round
    if (mirror_on(&mirror->state, CAIRN_MIRROR_ON_OPENS, &view) != CAIRN_MIRROR_DO_JOIN) return;
    coord_decision_to_message(last, &decision);
    fence.job = resolve.job = job->id;
    fence.epoch = resolve.epoch = round_epoch_of(job->core);
    resolve.round = round;
    resolve.decision = &decision;
    coord_session_send(mirror->entry->session, CAIRN_MSG_FENCE, 0, &fence.base);
    coord_session_send(mirror->entry->session, CAIRN_MSG_RESOLVE, 0, &resolve.base);
}

void coord_mirror_join_at_rest(struct coord_mirror *mirror)
{
    const struct round_machine *core = mirror->all->job->core;
    if (round_stage_of(core) == CAIRN_ROUND_STEADY)
        join_rounds(mirror, round_last(core)->round, round_version(core));
}

void coord_mirrors_fence(struct coord_job *job, const Cairn__Fence *fence)
{
    // reports of an epoch before count no more
    for (struct coord_mirrors *all = job->loss.mirrors; all != NULL; all = all->next)
        coord_mirrors_forget_reports(all);
    coord_mirrors_send(job, CAIRN_MSG_FENCE, &fence->base);
}

void coord_mirrors_open(struct coord_job *job, const struct round_action *action,
                        const Cairn__RoundOpen *owners)
{
    Cairn__RoundOpen open = CAIRN__ROUND_OPEN__INIT;
    open.job = owners->job;
    open.epoch = owners->epoch;
    open.round = owners->round;
    open.generation = owners->generation;
    open.step = owners->step;
    open.frozen = owners->frozen;
    open.n_frozen = owners->n_frozen;
    open.frozen_tensors = owners->frozen_tensors;
    open.n_frozen_tensors = owners->n_frozen_tensors;
    open.n_members = 1;
    CAIRN_EACH_MIRROR (job, all, m) {
        if (m->state.stage == CAIRN_MIRROR_READY && m->entry != NULL)
            join_rounds(m, action->round - 1, action->version);
        if (!mirror_takes_part(&m->state) || m->entry == NULL) continue;
        if (action->write) {
            coord_mirror_end(m, "a member writes into the job's state");
            continue;
        }
        open.members = &m->member;
        coord_session_send(m->entry->session, CAIRN_MSG_ROUND_OPEN, 0, &open.base);
    }
}

/* True if the owner's report waits for this standby. A standby with other sums than the owner's has told of
 * them, and the other standby is awaited. */
static bool is_awaited(const struct coord_mirror *mirror, int kind, struct mirror_report report)
{
    return !mirror_passes(&mirror->state, (enum mirror_report_kind)kind, report) &&
           !(kind == CAIRN_MIRROR_REDUCED && coord_mirror_told_sums(mirror));
}

const char *coord_mirrors_awaited(const struct coord_job *job, uint32_t shard)
{
    const struct coord_mirrors *all = coord_mirrors_find(job, shard);
    for (int kind = 0; all != NULL && kind < CAIRN_MIRROR_REPORTS; kind++) {
        const struct mirror_waiting *waiting = &all->waiting[kind];
        for (int i = 0; i < CAIRN_STANDBYS_MAX && waiting->bytes != NULL; i++)
            if (mirror_takes_part(&all->of[i].state) &&
                is_awaited(&all->of[i], kind, waiting->report))
                return all->of[i].name;
    }
    return NULL;
}

bool coord_mirror_is_late(const struct coord_mirror *mirror)
{
    const struct coord_mirrors *all = mirror->all;
    const struct coord *cluster = all->job->cluster;
    const uint64_t now_ms = coord_now_ms(cluster);
    const uint64_t lease_ms = (uint64_t)cluster->options->lease_timeout_ms;
    const struct coord_session *owner = all->job->shards[all->shard].entry->session;
    const uint64_t silent_ms = owner != NULL ? uv_now(cluster->loop) - owner->last_frame_ms
                                             : UINT64_MAX / 2;
    for (int kind = 0; kind < CAIRN_MIRROR_REPORTS; kind++) {
        const struct mirror_waiting *waiting = &all->waiting[kind];
        const bool looks = kind == CAIRN_MIRROR_PUBLISHED && all->look.count != 0;
        if (waiting->bytes != NULL && (looks || is_awaited(mirror, kind, waiting->report)) &&
            mirror_is_late(now_ms - waiting->since_ms, silent_ms, lease_ms))
            return true;
    }
    return false;
}
