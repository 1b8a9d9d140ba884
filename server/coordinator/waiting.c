/* For whom a job waits, in words, and which of them said that they are at work on something else. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/cluster.h"
#include "server/coordinator/saves.h"
#include "server/coordinator/standing.h"

#define PAUSE_MAX_MS 86400000

/* ---- pauses ---- */

/* It goes into logs, and into the errors of others. */
static bool is_printable(const char *text)
{
    const size_t length = strlen(text);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f) return false;
    return length >= 1 && length < CAIRN_MEMBER_PAUSE_BYTES;
}

void cairn_cluster_member_pause(struct cairn_cluster_member *member, uint32_t request,
                                const Cairn__Pause *pause)
{
    struct cairn_cluster_job *job = member->job;
    struct cairn_cluster_session *session = member->session;
    const uint32_t ms = pause->at_most_ms;
    if (ms > PAUSE_MAX_MS || (ms > 0 && !is_printable(pause->what))) {
        cairn_cluster_session_error(session, request, CAIRN_ERR_INVALID,
                                    "a pause is of a day at most, and says what for in 1 to 63 "
                                    "printable bytes");
        return;
    }
    member->pause_ends_ms = ms > 0 ? cairn_cluster_now_ms(job->cluster) + ms : 0;
    strncpy(member->pause, pause->what, sizeof member->pause - 1);
    const struct cairn_round_event event = { .kind = CAIRN_ROUND_WORKER_PAUSE,
                                             .member = member->id,
                                             .wait_ms = ms };
    cairn_cluster_session_done(session, request);
    cairn_cluster_job_event(job, &event);
}

void cairn_cluster_job_keep_pauses(struct cairn_cluster_job *job)
{
    for (const struct cairn_cluster_member *m = job->members; m != NULL; m = m->next_of_job) {
        if (m->pause_ends_ms <= job->pause_ends_ms) continue;
        job->pause_ends_ms = m->pause_ends_ms;
        memcpy(job->pause, m->pause, sizeof job->pause);
    }
}

static uint64_t until_ms(const struct cairn_cluster *cluster, uint64_t ends_ms)
{
    const uint64_t now_ms = cairn_cluster_now_ms(cluster);
    return ends_ms > now_ms ? ends_ms - now_ms : 0;
}

static uint64_t left_ms(const struct cairn_cluster_member *member)
{
    return until_ms(member->session->cluster, member->pause_ends_ms);
}

/* Of who was put out: while a worker is missing, that may be the one. */
static uint64_t absent_left_ms(const struct cairn_cluster_job *job)
{
    const bool is_missing = job->core != NULL && !cairn_cluster_job_dead(job) &&
                            cairn_round_worker_count(job->core) < job->spec.workers_min;
    return is_missing ? until_ms(job->cluster, job->pause_ends_ms) : 0;
}

/* Before the first round it is not asked whom each step of it waits for. */
uint64_t cairn_cluster_job_paused_ms(const struct cairn_cluster_job *job)
{
    struct cairn_sentence text;
    uint64_t most_ms = 0;
    if (job->core == NULL || cairn_cluster_job_dead(job)) return 0;
    for (uint32_t i = 0; i < job->layout->shard_count; i++)
        if (!job->shards[i].up) return 0;
    if (absent_left_ms(job) > 0) return absent_left_ms(job);
    if (job->initialized && !cairn_cluster_tiles_waiting(job, &text))
        return cairn_round_paused_ms(job->core);
    for (const struct cairn_cluster_member *m = job->members; m != NULL; m = m->next_of_job)
        if (left_ms(m) > most_ms) most_ms = left_ms(m);
    return most_ms;
}

/* ---- for whom it waits ---- */

/* The core says "shard 2" and "worker of rank 1"; people know names. */
static void add_name(const struct cairn_cluster_job *job, bool is_shard, unsigned long number,
                     struct cairn_sentence *out)
{
    const struct cairn_cluster_member *worker = NULL;
    const char *name = NULL;
    if (is_shard && number < job->layout->shard_count) name = job->shards[number].seat->name;
    for (const struct cairn_cluster_member *m = job->members; m != NULL && !is_shard;
         m = m->next_of_job) {
        if (m->role == CAIRN_ROLE_WIRE_WORKER && m->rank == number) worker = m;
    }
    if (worker != NULL) name = worker->session->name;
    if (name == NULL) {
        cairn_sentence_add(out, "%s %lu", is_shard ? "shard" : "worker of rank", number);
    } else if (is_shard) {
        cairn_sentence_add(out, "shard %s", name);
    } else {
        cairn_sentence_add(out, "worker %s of rank %lu", name, number);
        if (left_ms(worker) > 0)
            cairn_sentence_add(out, ", which is %s, for %" PRIu64 " s more at most", worker->pause,
                               (left_ms(worker) + 999) / 1000);
    }
}

static void put_names(const struct cairn_cluster_job *job, const char *text,
                      struct cairn_sentence *out)
{
    static const char shard[] = "shard ", worker[] = "worker of rank ";
    out->text[0] = '\0';
    while (*text != '\0') {
        const bool is_shard = strncmp(text, shard, sizeof shard - 1) == 0;
        const bool is_worker = strncmp(text, worker, sizeof worker - 1) == 0;
        const char *number = text + (is_shard ? sizeof shard : sizeof worker) - 1;
        if ((is_shard || is_worker) && *number >= '0' && *number <= '9') {
            char *end;
            add_name(job, is_shard, strtoul(number, &end, 10), out);
            text = end;
        } else {
            cairn_sentence_add(out, "%c", *text++);
        }
    }
}

void cairn_cluster_job_waiting(const struct cairn_cluster_job *job, struct cairn_sentence *out)
{
    struct cairn_sentence core = { "" };
    out->text[0] = '\0';
    if (job->state == CAIRN_CLUSTER_JOB_LOST) {
        cairn_sentence_set(out, "%s", job->lost.text);
        return;
    }
    for (uint32_t i = 0; i < job->layout->shard_count; i++) {
        const struct cairn_cluster_job_shard *s = &job->shards[i];
        if (cairn_cluster_seat_obeys(s->seat) && s->missed_ms == 0) continue;
        if (!cairn_cluster_seat_obeys(s->seat))
            cairn_sentence_set(out, "shard %s (%s)", s->seat->name,
                               s->seat->session == NULL
                                   ? "it is away"
                                   : cairn_cluster_seat_standing_text(s->seat));
        else
            cairn_cluster_part_waiting(job, i, out);
        return;
    }
    const bool saving = cairn_cluster_saving(job);
    const bool making = cairn_cluster_extend_making(job);
    if (saving && (job->state == CAIRN_CLUSTER_JOB_CREATING || making || job->seal_running)) {
        cairn_sentence_set(out, "the store's disk");
    } else if (job->state == CAIRN_CLUSTER_JOB_CREATING) {
        cairn_sentence_set(out, "the shards to %s",
                           job->restoring                ? "load the snapshot"
                           : job->spec.init_from != NULL ? "read its weights"
                                                         : "make room");
    } else if (making) {
        cairn_sentence_set(out, "the shards to amend the job");
    } else if (cairn_cluster_tiles_waiting(job, out)) {
        // it says whom
    } else if (!job->initialized) {
        cairn_sentence_set(out, cairn_spec_initializes_itself(&job->spec)
                                    ? "the shards to publish the initial state"
                                    : "the initial state, from the worker of rank 0");
    } else if (job->persist_waits) {
        cairn_sentence_set(out, "the store's disk");
    } else {
        cairn_round_waiting(job->core, &core);
        put_names(job, core.text, out);
        if (out->text[0] != '\0' && absent_left_ms(job) > 0)
            cairn_sentence_add(out,
                               ", of whom one was %s when the job was restored, for %" PRIu64
                               " s more at most",
                               job->pause, (absent_left_ms(job) + 999) / 1000);
        if (saving) cairn_sentence_add(out, "%sthe store's disk", out->text[0] != '\0' ? ", " : "");
    }
}
