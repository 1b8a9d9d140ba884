/* For whom a job waits, in words, and which of them said that they are at work on something else. */
#include <inttypes.h>
#include <string.h>

#include "proto/base/text.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/member/seats.h"

#define PAUSE_MAX_MS 86400000

/* ---- pauses ---- */

void cairn_cluster_member_pause(struct cairn_cluster_member *member, uint32_t request,
                                const Cairn__Pause *pause)
{
    struct cairn_cluster_job *job = member->job;
    struct cairn_cluster_session *session = member->session;
    const uint32_t ms = pause->at_most_ms;
    struct cairn_sentence why;
    cairn_status status = CAIRN_OK;
    if (ms > PAUSE_MAX_MS)
        status = cairn_fail(&why, CAIRN_ERR_INVALID, "a pause is of a day at most");
    else if (ms > 0)
        status = cairn_text_check("what a pause is for", pause->what, CAIRN_MEMBER_PAUSE_BYTES - 1,
                                  &why);
    if (status != CAIRN_OK) {
        cairn_cluster_session_error(session, request, status, why.text);
        return;
    }
    member->pause.ends_ms = ms > 0 ? cairn_cluster_now_ms(job->cluster) + ms : 0;
    strncpy(member->pause.what, pause->what, sizeof member->pause.what - 1);
    const struct cairn_round_event event = { .kind = CAIRN_ROUND_WORKER_PAUSE,
                                             .member = member->id,
                                             .wait_ms = ms };
    cairn_cluster_session_done(session, request);
    cairn_cluster_job_event(job, &event);
}

void cairn_cluster_job_keep_pauses(struct cairn_cluster_job *job)
{
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (m->pause.ends_ms <= job->members.pause.ends_ms) continue;
        job->members.pause.ends_ms = m->pause.ends_ms;
        memcpy(job->members.pause.what, m->pause.what, sizeof job->members.pause.what);
    }
}

static uint64_t until_ms(const struct cairn_cluster *cluster, uint64_t ends_ms)
{
    const uint64_t now_ms = cairn_cluster_now_ms(cluster);
    return ends_ms > now_ms ? ends_ms - now_ms : 0;
}

static uint64_t left_ms(const struct cairn_cluster_member *member)
{
    return until_ms(member->session->cluster, member->pause.ends_ms);
}

/* How long a worker that was put out for a restore may still take: while a worker is missing,
 * that may be the one. */
static uint64_t absent_left_ms(const struct cairn_cluster_job *job)
{
    const bool is_missing = job->core != NULL && !cairn_cluster_job_dead(job) &&
                            cairn_round_worker_count(job->core) < job->spec.workers_min;
    return is_missing ? until_ms(job->cluster, job->members.pause.ends_ms) : 0;
}

/* Before the first round it is not asked whom each step of it waits for. */
uint64_t cairn_cluster_job_paused_ms(const struct cairn_cluster_job *job)
{
    struct cairn_sentence text;
    uint64_t most_ms = 0;
    if (job->core == NULL || cairn_cluster_job_dead(job) || !cairn_cluster_job_shards_up(job))
        return 0;
    if (absent_left_ms(job) > 0) return absent_left_ms(job);
    if (job->initialized && !cairn_cluster_tiles_waiting(job, &text))
        return cairn_round_paused_ms(job->core);
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (left_ms(m) > most_ms) most_ms = left_ms(m);
    return most_ms;
}

static uint64_t least(uint64_t left, uint64_t right)
{
    return left < right ? left : right;
}

uint64_t cairn_cluster_job_still_ms(const struct cairn_cluster_job *job)
{
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster);
    uint64_t still_ms = 0; // since the first of the workers that are there
    if (job->core == NULL || job->park.shut || cairn_cluster_job_paused_ms(job) > 0) return 0;
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->role == CAIRN_ROLE_WIRE_WORKER && m->phase == CAIRN_MEMBER_ATTACHED &&
            now_ms - m->attached_ms > still_ms)
            still_ms = now_ms - m->attached_ms;
    if (job->rounds.has_stepped) still_ms = least(still_ms, now_ms - job->rounds.stepped_ms);
    if (job->park.opened_ms > 0) still_ms = least(still_ms, now_ms - job->park.opened_ms);
    return still_ms;
}

bool cairn_cluster_job_waits_for_silent(const struct cairn_cluster_job *job)
{
    return job->core != NULL && !cairn_cluster_job_dead(job) && job->initialized &&
           cairn_cluster_job_shards_up(job) && cairn_round_waits_for_silent(job->core);
}

/* ---- for whom it waits ---- */

/* People know names. False: nobody of that number is there. */
static bool add_name(const void *context, bool is_shard, uint32_t number,
                     struct cairn_sentence *out)
{
    const struct cairn_cluster_job *job = context;
    const struct cairn_cluster_member *worker = NULL;
    if (is_shard) {
        cairn_sentence_add(out, "shard %s", job->shards[number].seat->name);
        return true;
    }
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->role == CAIRN_ROLE_WIRE_WORKER && m->rank == number) worker = m;
    if (worker == NULL) return false;
    cairn_sentence_add(out, "worker %s of rank %" PRIu32, worker->session->name, number);
    if (left_ms(worker) > 0)
        cairn_sentence_add(out, ", which is %s, for %" PRIu64 " s more at most", worker->pause.what,
                           (left_ms(worker) + 999) / 1000);
    return true;
}

/* Says what the job waits for when a shard came back without its part. */
static void say_part(const struct cairn_cluster_job *job, uint32_t shard,
                     struct cairn_sentence *out)
{
    const struct cairn_cluster_seat *seat = job->shards[shard].seat;
    const char *sitter = cairn_peer_name(seat->session->peer);
    cairn_sentence_set(out, "the part of shard %s: the one at %s came without it", seat->name,
                       sitter);
    if (!cairn_cluster_seat_claimed(job->cluster, seat)) return;
    cairn_sentence_add(
        out,
        ", and holds parts of other jobs; the one at %s has it and waits for the name: end the one "
        "at %s and this job goes on, or restore a snapshot of this job and end the other",
        seat->claimant, sitter);
}

void cairn_cluster_job_waiting(const struct cairn_cluster_job *job, struct cairn_sentence *out)
{
    const struct cairn_round_names names = { add_name, job };
    out->text[0] = '\0';
    if (job->state == CAIRN_CLUSTER_JOB_LOST) {
        cairn_sentence_set(out, "job %s, which is %s", job->spec.name, job->loss.why.text);
        return;
    }
    CAIRN_EACH_SHARD (job, i) {
        const struct cairn_cluster_job_shard *s = &job->shards[i];
        if (cairn_cluster_seat_obeys(s->seat) && s->missed_ms == 0) continue;
        if (!cairn_cluster_seat_obeys(s->seat))
            cairn_sentence_set(out, "shard %s (%s)", s->seat->name,
                               s->seat->session == NULL
                                   ? "it is away"
                                   : cairn_cluster_seat_standing_text(s->seat));
        else
            say_part(job, i, out);
        return;
    }
    const bool saving = cairn_cluster_saving(job);
    const bool making = job->extension.making;
    if (saving && (job->state == CAIRN_CLUSTER_JOB_CREATING || making || job->init.seal_running)) {
        cairn_sentence_set(out, "the store's disk");
    } else if (job->state == CAIRN_CLUSTER_JOB_CREATING) {
        cairn_sentence_set(out, "the shards to %s",
                           job->restoring                ? "load the snapshot"
                           : job->spec.init_from != NULL ? "read its weights"
                                                         : "make room");
    } else if (making) {
        cairn_sentence_set(out, "the shards to amend the job");
    } else if (job->park.asking) {
        cairn_sentence_set(out, "the shards to move its state");
    } else if (job->park.shut && job->park.settled) {
        cairn_sentence_set(out, "`cairn job unpark %s`: job %s is parked", job->spec.name,
                           job->spec.name);
    } else if (cairn_cluster_tiles_waiting(job, out)) {
        // it says whom
    } else if (!job->initialized) {
        cairn_sentence_set(out, cairn_spec_initializes_itself(&job->spec)
                                    ? "the shards to publish the initial state"
                                    : "the initial state, from the worker of rank 0");
    } else if (job->rounds.persist_waits) {
        cairn_sentence_set(out, "the store's disk");
    } else {
        cairn_round_waiting(job->core, &names, out);
        cairn_cluster_halts_add_lost(job, out);
        if (out->text[0] != '\0' && absent_left_ms(job) > 0)
            cairn_sentence_add(out,
                               ", of whom one was %s when the job was restored, for %" PRIu64
                               " s more at most",
                               job->members.pause.what, (absent_left_ms(job) + 999) / 1000);
        if (saving) cairn_sentence_add(out, "%sthe store's disk", out->text[0] != '\0' ? ", " : "");
    }
}
