/* The part that a standby has in the rounds of a job: a round is sent to the standby too, and the owner's
 * reports wait for the standby's. */
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

void coord_mirror_forget_reports(struct coord_mirror *mirror)
{
    for (int kind = 0; kind < CAIRN_MIRROR_REPORTS; kind++) forget_waiting(&mirror->waiting[kind]);
    mirror->look.count = 0;
}

void coord_mirror_forget_audits(struct coord_mirror *mirror)
{
    mirror->look.count = 0;
    memset(mirror->audited, 0, sizeof mirror->audited);
}

/* True if the owner's report need not wait any longer. */
static bool may_pass(const struct coord_mirror *mirror, int kind, struct mirror_report report)
{
    return mirror_passes(&mirror->state, (enum mirror_report_kind)kind, report) &&
           !(kind == CAIRN_MIRROR_PUBLISHED && mirror->look.count != 0);
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
    log_info("job %s: round %" PRIu64 " was decided, and standby %s alone knows",
             mirror->job->spec.name, standbys->last->round, mirror->name);
    owners->last = standbys->last;
    standbys->last = theirs;
}

/* Hands the owner's report to the core. */
static void pass(struct coord_mirror *mirror, int kind)
{
    struct mirror_waiting waiting = mirror->waiting[kind];
    mirror->waiting[kind] = (struct mirror_waiting) { .bytes = NULL };
    const ProtobufCMessageDescriptor *type = message_type(report_types[kind]);
    ProtobufCMessage *message = message_unpack(type, waiting.bytes, waiting.byte_count);
    ProtobufCMessage *answer = NULL;
    if (kind == CAIRN_MIRROR_ANSWER && mirror->answer != NULL && mirror_takes_part(&mirror->state))
        answer = message_unpack(type, mirror->answer, mirror->answer_bytes);
    struct coord_job *job = mirror->job;
    const uint32_t shard = mirror->shard;
    free(waiting.bytes);
    if (message != NULL && answer != NULL)
        add_decision(mirror, (Cairn__Answer *)message, (Cairn__Answer *)answer);
    // without memory the report is lost, and the round ends at the step's deadline
    if (message != NULL && job->shards[shard].up)
        coord_part_message(job, shard, report_types[kind], message);
    message_free(message);
    message_free(answer);
}

void coord_mirror_pass_reports(struct coord_job *job, uint32_t shard)
{
    for (int kind = 0; kind < CAIRN_MIRROR_REPORTS; kind++) {
        struct coord_mirror *mirror = coord_mirror_find(job, shard);
        if (mirror == NULL || mirror->waiting[kind].bytes == NULL) continue;
        if (may_pass(mirror, kind, mirror->waiting[kind].report)) pass(mirror, kind);
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

/* Keeps the owner's report until the standby has reported the same. */
static void hold(struct coord_mirror *mirror, int kind, const struct wire_frame *frame,
                 struct mirror_report report)
{
    struct mirror_waiting *waiting = &mirror->waiting[kind];
    forget_waiting(waiting);
    waiting->bytes = malloc(frame->payload_bytes + 1);
    if (waiting->bytes == NULL) return; // the round ends at the step's deadline
    memcpy(waiting->bytes, frame->payload, frame->payload_bytes);
    waiting->byte_count = frame->payload_bytes;
    waiting->report = report;
    waiting->since_ms = coord_now_ms(mirror->job->cluster);
}

static void tell_sums(const struct coord_mirror *mirror, struct mirror_report report)
{
    Cairn__MirrorSums message = CAIRN__MIRROR_SUMS__INIT;
    message.job = mirror->job->id;
    message.epoch = report.epoch;
    message.round = report.round;
    coord_session_send(mirror->entry->session, CAIRN_MSG_MIRROR_SUMS, 0, &message.base);
}

static bool same_bytes(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

/* True if both have the same sum of squares, and as many elements that are not finite. The weights of the
 * members are the owner's alone. */
static bool same_sums(const Cairn__Reduced *a, const Cairn__Reduced *b)
{
    if (a->n_values != b->n_values) return false;
    for (size_t i = 0; i < a->n_values; i++) {
        if (a->values[i]->key != b->values[i]->key) return false;
        if (a->values[i]->key < 3 && !same_bytes(&a->values[i]->value, &b->values[i]->value))
            return false;
    }
    return true;
}

/* ---- audits ---- */

/* Both have the same bits, so the checksums of an audited version are the same, leaf by leaf. Where they
 * differ, the range is divided until it is one leaf, and both sides say whether that leaf has changed in
 * their memory since. */

static const char *side_name(const struct coord_mirror *mirror, int side)
{
    return side == CAIRN_AUDIT_OWNER ? coord_mirror_owner(mirror) : mirror->name;
}

/* Writes the digests to `out`, at most as many as there is room for. */
static void take_digests(struct audit_told *out, const uint64_t *digests, size_t count)
{
    out->count = (uint32_t)(count < CAIRN_AUDIT_RANGES ? count : CAIRN_AUDIT_RANGES);
    if (out->count > 0) memcpy(out->digests, digests, out->count * sizeof *digests);
}

/* Finds the first range in which both are known, and differ. */
static bool find_difference(const struct audit_told told[static CAIRN_AUDIT_SIDES], uint32_t *out)
{
    const struct audit_told *a = &told[CAIRN_AUDIT_OWNER], *b = &told[CAIRN_AUDIT_STANDBY];
    for (uint32_t i = 0; i < a->count && i < b->count; i++) {
        if (a->digests[i] == 0 || b->digests[i] == 0 || a->digests[i] == b->digests[i]) continue;
        *out = i;
        return true;
    }
    return false;
}

static void begin_look(struct coord_mirror *mirror, uint64_t first, uint64_t count)
{
    Cairn__AuditLook look = CAIRN__AUDIT_LOOK__INIT;
    memset(&mirror->look, 0, sizeof mirror->look);
    mirror->look.first = look.first = first;
    mirror->look.count = look.count = count;
    look.job = mirror->job->id;
    coord_session_send(mirror->job->shards[mirror->shard].entry->session, CAIRN_MSG_AUDIT_LOOK, 0,
                       &look.base);
    coord_session_send(mirror->entry->session, CAIRN_MSG_AUDIT_LOOK, 0, &look.base);
}

/* Looks into one of the ranges of a range. */
static void look_into(struct coord_mirror *mirror, uint64_t first, uint64_t count, uint32_t range)
{
    const uint64_t step = audit_range(count), from = range * step;
    if (from >= count) return; // more digests than there are ranges: a shard that is broken
    begin_look(mirror, first + from, count - from < step ? count - from : step);
}

/* Notes what one side has told of a version that it has published, and compares both. While it is looked for
 * what differs, the version is not committed. */
static void compare_audits(struct coord_mirror *mirror, int side, const Cairn__Published *published)
{
    struct audit_told *told = &mirror->audited[side];
    const struct audit_told *other = &mirror->audited[1 - side];
    uint32_t range;
    told->of = (struct mirror_report) { published->epoch, published->round };
    told->all = published->n_audit > 0 ? published->audited : 0;
    take_digests(told, published->audit, published->n_audit);
    const bool is_filled = mirror->state.stage == CAIRN_MIRROR_STORING ||
                           mirror->state.stage == CAIRN_MIRROR_IN_STEP;
    const bool are_same = told->of.epoch == other->of.epoch && told->of.round == other->of.round &&
                          told->all == other->all;
    if (!is_filled || mirror->entry == NULL || !mirror->job->shards[mirror->shard].up ||
        told->all == 0 || !are_same || mirror->look.count != 0 ||
        !find_difference(mirror->audited, &range))
        return;
    log_error("job %s: shard %s and its standby %s differ in the state that round %" PRIu64
              " made: one of the two has bad memory; looking where",
              mirror->job->spec.name, coord_mirror_owner(mirror), mirror->name, published->round);
    look_into(mirror, 0, told->all, range);
}

/* The leaf is known. A side of which the leaf changed in memory has stopped its part itself: the owner's
 * place is taken, or the mirror is over. Otherwise both are as their updates left them, and two copies do not
 * tell which of the updates was wrong. */
static void end_look(struct coord_mirror *mirror, const char *leaf)
{
    struct coord_job *job = mirror->job;
    const struct audit_told *told = mirror->look.told;
    const bool owner = told[CAIRN_AUDIT_OWNER].changed, standby = told[CAIRN_AUDIT_STANDBY].changed;
    struct sentence why;
    if (owner != standby)
        sentence_set(&why, "%s changed in the memory of shard %s", leaf,
                     side_name(mirror, owner ? CAIRN_AUDIT_OWNER : CAIRN_AUDIT_STANDBY));
    else
        sentence_set(
            &why,
            "%s differs between shard %s and its standby %s, and it cannot be known which "
            "of the two is wrong: test the memory of both hosts, and restore a snapshot if "
            "it is that of the shard",
            leaf, coord_mirror_owner(mirror), mirror->name);
    log_error("job %s: %s", job->spec.name, why.text);
    coord_event_note(job->cluster, CAIRN_EVENT_STOPPED, job->spec.name, NULL, "%s", why.text);
    // The owner's version is not committed: its standby, which has it, too, takes the place.
    if (owner && !standby) return;
    mirror->look.count = 0;
    coord_mirror_end(mirror, "%s", why.text);
}

void coord_mirror_looked(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__AuditLooked *looked = any;
    struct coord_job *job = coord_job_by_id(session->cluster, looked->job);
    struct coord_mirror *mirror = job != NULL ? job->loss.mirrors : NULL;
    uint32_t range;
    (void)request;
    if (session->entry == NULL) return;
    while (
        mirror != NULL && mirror->entry != session->entry &&
        (mirror->shard >= job->shard_count || job->shards[mirror->shard].entry != session->entry))
        mirror = mirror->next;
    if (mirror == NULL || mirror->look.count == 0 || mirror->entry == NULL ||
        mirror->look.first != looked->first || mirror->look.count != looked->count)
        return;
    struct audit_told *told = mirror->look.told;
    const int side = mirror->entry == session->entry ? CAIRN_AUDIT_STANDBY : CAIRN_AUDIT_OWNER;
    take_digests(&told[side], looked->digests, looked->n_digests);
    told[side].all = 1; // it has told
    told[side].changed = looked->changed;
    if (told[CAIRN_AUDIT_OWNER].all == 0 || told[CAIRN_AUDIT_STANDBY].all == 0) return;
    if (looked->count > 1 && find_difference(told, &range))
        look_into(mirror, looked->first, looked->count, range);
    else
        end_look(mirror, looked->leaf[0] != '\0' ? looked->leaf : "a part of the state");
}

/* ---- what both report ---- */

/* Compares the standby's sums with those of the owner that wait for it. */
static bool agrees(const struct coord_mirror *mirror, struct mirror_report report,
                   const ProtobufCMessage *message)
{
    const struct mirror_waiting *waiting = &mirror->waiting[CAIRN_MIRROR_REDUCED];
    if (waiting->bytes == NULL || waiting->report.epoch != report.epoch ||
        waiting->report.round != report.round)
        return true;
    Cairn__Reduced *owners = (Cairn__Reduced *)message_unpack(message_type(CAIRN_MSG_REDUCED),
                                                              waiting->bytes, waiting->byte_count);
    if (owners == NULL) return true;
    const bool same = same_sums(owners, (const Cairn__Reduced *)message);
    message_free(&owners->base);
    return same;
}

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
    const struct mirror_report report = report_of(kind, message);
    if (kind == CAIRN_MIRROR_REDUCED && !agrees(mirror, report, message)) {
        log_error("job %s: shard %s and its standby %s have other sums of round %" PRIu64
                  ": one of the two has bad memory, or is broken otherwise",
                  mirror->job->spec.name, coord_mirror_owner(mirror), mirror->name, report.round);
        coord_mirror_end(mirror, "its sums of round %" PRIu64 " were not those of the owner",
                         report.round);
        return;
    }
    if (kind == CAIRN_MIRROR_ANSWER) keep_answer(mirror, frame);
    mirror_hears(&mirror->state, (enum mirror_report_kind)kind, report);
    if (kind == CAIRN_MIRROR_PUBLISHED)
        compare_audits(mirror, CAIRN_AUDIT_STANDBY, (const Cairn__Published *)message);
    coord_mirror_pass_reports(mirror->job, mirror->shard);
}

/* Returns the mirror of the shard's part, if it has one. */
static struct coord_mirror *mirror_of(const struct coord_job *job,
                                      const struct coord_shard_entry *entry)
{
    for (struct coord_mirror *m = job->loss.mirrors; m != NULL; m = m->next)
        if (m->shard < job->shard_count && job->shards[m->shard].entry == entry &&
            job->shards[m->shard].up)
            return m;
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
    mirror = kind < CAIRN_MIRROR_REPORTS ? mirror_of(job, session->entry) : NULL;
    if (mirror == NULL) return false;
    const struct mirror_report report = report_of(kind, message);
    // The core takes no report of an epoch that is over, and no standby makes one: it would wait for nothing.
    if (job->core == NULL || report.epoch != round_epoch_of(job->core)) return false;
    if (kind == CAIRN_MIRROR_PUBLISHED)
        compare_audits(mirror, CAIRN_AUDIT_OWNER, (const Cairn__Published *)message);
    const bool passes = may_pass(mirror, kind, report);
    const bool is_refused = kind == CAIRN_MIRROR_ANSWER &&
                            ((const Cairn__Answer *)message)->refused;
    if (is_refused || (passes && kind != CAIRN_MIRROR_ANSWER)) return false;
    hold(mirror, kind, frame, report);
    if (passes) // an answer, to which the standby's may have to be added
        coord_mirror_pass_reports(job, mirror->shard);
    else if (kind == CAIRN_MIRROR_REDUCED && mirror_takes_part(&mirror->state) &&
             mirror->entry != NULL)
        tell_sums(mirror, report);
    return true;
}

/* ---- a round is sent ---- */

void coord_mirrors_send(const struct coord_job *job, uint16_t type, const ProtobufCMessage *message)
{
    for (const struct coord_mirror *m = job->loss.mirrors; m != NULL; m = m->next)
        if (mirror_takes_part(&m->state) && m->entry != NULL)
            coord_session_send(m->entry->session, type, 0, message);
}

/* Brings the standby's machine to where the owner's is: no round is open, and the last one is resolved, which
 * made the version. All rounds up to that one have ended. */
static void join_rounds(struct coord_mirror *mirror, uint64_t round, struct cairn_version version)
{
    struct coord_job *job = mirror->job;
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
    const struct round_machine *core = mirror->job->core;
    if (round_stage_of(core) == CAIRN_ROUND_STEADY)
        join_rounds(mirror, round_last(core)->round, round_version(core));
}

void coord_mirrors_fence(struct coord_job *job, const Cairn__Fence *fence)
{
    // reports of an epoch before count no more
    for (struct coord_mirror *m = job->loss.mirrors; m != NULL; m = m->next)
        coord_mirror_forget_reports(m);
    coord_mirrors_send(job, CAIRN_MSG_FENCE, &fence->base);
}

void coord_mirrors_open(struct coord_job *job, const struct round_action *action,
                        const Cairn__RoundOpen *owners)
{
    Cairn__RoundOpen open = CAIRN__ROUND_OPEN__INIT;
    struct coord_mirror *next;
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
    for (struct coord_mirror *m = job->loss.mirrors; m != NULL; m = next) {
        next = m->next;
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

bool coord_mirror_is_late(const struct coord_mirror *mirror)
{
    const uint64_t now_ms = coord_now_ms(mirror->job->cluster);
    const uint64_t lease_ms = (uint64_t)mirror->job->cluster->options->lease_timeout_ms;
    const struct coord_session *owner = mirror->job->shards[mirror->shard].entry->session;
    const uint64_t silent_ms = owner != NULL
                                   ? uv_now(mirror->job->cluster->loop) - owner->last_frame_ms
                                   : UINT64_MAX / 2;
    for (int kind = 0; kind < CAIRN_MIRROR_REPORTS; kind++)
        if (mirror->waiting[kind].bytes != NULL &&
            mirror_is_late(now_ms - mirror->waiting[kind].since_ms, silent_ms, lease_ms))
            return true;
    return false;
}
