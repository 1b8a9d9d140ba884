/* Says for whom a job waits. Handles the pauses of workers that are at work on something else, the
 * shards that are not heard, and the worker that is slower than the others. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/cluster.h"

#define PAUSE_MAX_MS 86400000

/* ---- pauses ---- */

/* Handles and answers Pause, which begins or ends a pause. */
static void on_pause(struct coord_member *member, uint32_t request, const void *any)
{
    const Cairn__Pause *pause = any;
    struct coord_job *job = member->job;
    struct coord_session *session = member->session;
    const uint32_t ms = pause->at_most_ms;
    struct sentence why;
    cairn_status status = CAIRN_OK;
    if (ms > PAUSE_MAX_MS)
        status = fail_with(&why, CAIRN_ERR_INVALID, "a pause lasts a day at most");
    else if (ms > 0)
        status = text_check("a pause's purpose", pause->what, CAIRN_MEMBER_PAUSE_BYTES - 1, &why);
    if (status != CAIRN_OK) {
        coord_session_error(session, request, status, why.text);
        return;
    }
    member->pause.ends_ms = ms > 0 ? coord_now_ms(job->cluster) + ms : 0;
    strncpy(member->pause.what, pause->what, sizeof member->pause.what - 1);
    const struct round_event event = { .kind = CAIRN_ROUND_WORKER_PAUSE,
                                       .member = member->id,
                                       .wait_ms = ms };
    coord_session_done(session, request);
    coord_job_event(job, &event);
}

void coord_job_keep_pauses(struct coord_job *job)
{
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (m->pause.ends_ms <= job->members.pause.ends_ms) continue;
        job->members.pause.ends_ms = m->pause.ends_ms;
        memcpy(job->members.pause.what, m->pause.what, sizeof job->members.pause.what);
    }
}

static uint64_t until_ms(const struct coord *cluster, uint64_t ends_ms)
{
    const uint64_t now_ms = coord_now_ms(cluster);
    return ends_ms > now_ms ? ends_ms - now_ms : 0;
}

static uint64_t left_ms(const struct coord_member *member)
{
    return until_ms(member->session->cluster, member->pause.ends_ms);
}

/* A worker may have been in a pause when it was expelled for a restore. Returns for how long this
 * pause still lasts. Returns 0 if no worker is missing, because then the worker is back. */
static uint64_t absent_left_ms(const struct coord_job *job)
{
    const bool is_missing = job->core != NULL && !coord_job_dead(job) &&
                            round_worker_count(job->core) < job->spec.workers_min;
    return is_missing ? until_ms(job->cluster, job->members.pause.ends_ms) : 0;
}

/* Before the first round, the longest pause counts, because it is not known for which of the
 * workers the job waits. */
uint64_t coord_job_paused_ms(const struct coord_job *job)
{
    struct sentence text;
    uint64_t most_ms = 0;
    if (job->core == NULL || coord_job_dead(job) || !coord_job_shards_up(job)) return 0;
    if (absent_left_ms(job) > 0) return absent_left_ms(job);
    if (job->initialized && !coord_tiles_waiting(job, &text)) return round_paused_ms(job->core);
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (left_ms(m) > most_ms) most_ms = left_ms(m);
    return most_ms;
}

static uint64_t least_ms(uint64_t left, uint64_t right)
{
    return left < right ? left : right;
}

uint64_t coord_job_still_ms(const struct coord_job *job)
{
    const uint64_t now_ms = coord_now_ms(job->cluster);
    uint64_t still_ms = 0; // time since the first of the present workers attached
    const bool is_parked = coord_stage(job, CAIRN_OPERATION_PARK) != CAIRN_STAGE_NONE;
    if (job->core == NULL || is_parked || coord_job_paused_ms(job) > 0) return 0;
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->role == CAIRN_ROLE_WIRE_WORKER && m->phase == CAIRN_MEMBER_ATTACHED &&
            now_ms - m->attached_ms > still_ms)
            still_ms = now_ms - m->attached_ms;
    if (job->rounds.has_stepped) still_ms = least_ms(still_ms, now_ms - job->rounds.stepped_ms);
    if (job->park.opened_ms > 0) still_ms = least_ms(still_ms, now_ms - job->park.opened_ms);
    return still_ms;
}

/* ---- for whom it waits ---- */

/* Adds the name of a worker or shard, because people do not know numbers. Returns false if no
 * worker has that rank. */
static bool add_name(const void *context, bool is_shard, uint32_t number, struct sentence *out)
{
    const struct coord_job *job = context;
    const struct coord_member *worker = NULL;
    if (is_shard) {
        const char *standby = coord_mirrors_awaited(job, number);
        if (standby != NULL) sentence_add(out, "standby %s of ", standby);
        sentence_add(out, "shard %s", job->shards[number].entry->name);
        return true;
    }
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        if (m->role == CAIRN_ROLE_WIRE_WORKER && m->rank == number) worker = m;
    if (worker == NULL) return false;
    sentence_add(out, "worker %s of rank %" PRIu32, worker->session->name, number);
    if (left_ms(worker) > 0)
        sentence_add(out, ", which is %s, for %" PRIu64 " s more at most", worker->pause.what,
                     (left_ms(worker) + 999) / 1000);
    return true;
}

/* True if another process, which holds parts, has asked for the shard's name in the time of one
 * lease. */
static bool is_claimed(const struct coord *cluster, const struct coord_shard_entry *entry)
{
    const uint64_t recent_ms = (uint64_t)cluster->options->lease_timeout_ms;
    return entry->claim.claimed_ms != 0 &&
           coord_now_ms(cluster) - entry->claim.claimed_ms < recent_ms;
}

/* Says what the job waits for when a shard came back without its part. */
static void say_part(const struct coord_job *job, uint32_t shard, struct sentence *out)
{
    const struct coord_shard_entry *entry = job->shards[shard].entry;
    const char *sitter = peer_name(entry->session->peer);
    if (coord_logs_awaits(job, entry)) {
        const char *waits = job->shards[shard].log.waits;
        sentence_set(out, "the part of shard %s, which is made again from its log and waits for %s",
                     entry->name,
                     waits[0] != '\0' ? waits : "the snapshot on which the log stands");
        return;
    }
    sentence_set(out, "the part of shard %s: the one at %s came without it", entry->name, sitter);
    if (!is_claimed(job->cluster, entry)) return;
    sentence_add(
        out,
        ", and holds parts of other jobs; the one at %s has it and waits for the name: end the one "
        "at %s and this job goes on, or restore a snapshot of this job and end the other",
        entry->claim.claimant, sitter);
}

/* Adds that a worker was lost, if the job waits for a lost worker or is halted by a loss. */
static void add_lost(const struct coord_job *job, struct sentence *out)
{
    if (round_waits_for_lost(job->core) || round_halted_of_loss(job->core))
        sentence_add(out, "; %s", job->halts.lost.text);
}

void coord_job_waiting(const struct coord_job *job, struct sentence *out)
{
    const struct round_names names = { add_name, job };
    out->text[0] = '\0';
    if (job->state == CAIRN_CLUSTER_JOB_LOST) {
        sentence_set(out, "job %s, which is %s", job->spec.name, job->loss.why.text);
        return;
    }
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_job_shard *s = &job->shards[i];
        if (coord_shard_obeys(s->entry) && s->missed_ms == 0) continue;
        if (!coord_shard_obeys(s->entry))
            sentence_set(out, "shard %s (%s)", s->entry->name,
                         s->entry->session == NULL ? "it is away"
                                                   : coord_shard_standing_text(s->entry));
        else
            say_part(job, i, out);
        return;
    }
    const bool saving = coord_saving(job);
    const bool makes = (coord_operations_hold(job) & CAIRN_HOLD_MEMBERS) != 0;
    if (saving && (makes || job->init.seal.is_begun)) {
        sentence_set(out, "the store's disk");
    } else if (coord_operations_waiting(job, out) || coord_tiles_waiting(job, out)) {
        // The function that returned true has said for whom the job waits.
    } else if (!job->initialized) {
        sentence_set(out, spec_initializes_itself(&job->spec)
                              ? "the shards to publish the initial state"
                              : "the initial state, from the worker of rank 0");
    } else if (job->rounds.persist_waits) {
        sentence_set(out, "the store's disk");
    } else if (!coord_logs_waiting(job, out)) {
        round_waiting(job->core, &names, out);
        add_lost(job, out);
        if (out->text[0] != '\0' && absent_left_ms(job) > 0)
            sentence_add(out,
                         ", of whom one was %s when the job was restored, for %" PRIu64
                         " s more at most",
                         job->members.pause.what, (absent_left_ms(job) + 999) / 1000);
        if (saving) sentence_add(out, "%sthe store's disk", out->text[0] != '\0' ? ", " : "");
    }
}

/* ==== unheard ==== */

/* Returns the index of the name in the list, or the list's count if the list does not have the
 * name. A NULL list is an empty list. */
static size_t find_unheard(const struct coord_unheard *unheard, const char *name)
{
    size_t i = 0;
    while (unheard != NULL && i < unheard->count && strcmp(unheard->list[i].name, name) != 0) i++;
    return i;
}

static bool hears_not(const struct coord_unheard *unheard, const char *name)
{
    return unheard != NULL && find_unheard(unheard, name) < unheard->count;
}

/* Returns the shard's session. Returns NULL if the shard is away. Nobody need be told that nothing
 * arrives from such a shard. */
static const struct coord_session *session_of(const struct coord *cluster, const char *name)
{
    const struct coord_shard_entry *entry = coord_shard_find(cluster, name);
    return entry != NULL ? entry->session : NULL;
}

/* Makes a list of the named shards that are up. Returns NULL if there are none, or if there is no
 * memory. */
static struct coord_unheard *make_unheard(const struct coord_session *session, char *const *names,
                                          size_t count)
{
    const struct coord_unheard *was = session->unheard;
    struct coord_unheard *now = calloc(1, sizeof *now);
    size_t length = 0;
    for (size_t i = 0; now != NULL && i < count && now->count < CAIRN_CLUSTER_UNHEARD_MAX; i++) {
        if (session_of(session->cluster, names[i]) == NULL || hears_not(now, names[i])) continue;
        snprintf(now->list[now->count].name, sizeof now->list[now->count].name, "%s", names[i]);
        now->list[now->count].since_ms = hears_not(was, names[i])
                                             ? was->list[find_unheard(was, names[i])].since_ms
                                             : uv_now(session->cluster->loop);
        const int added = snprintf(now->text + length, sizeof now->text - length, "%s%s",
                                   now->count > 0 ? ", " : "", names[i]);
        if (added > 0 && length + (size_t)added < sizeof now->text) length += (size_t)added;
        now->text[length] = '\0';
        now->count++;
    }
    if (now == NULL || now->count > 0) return now;
    free(now);
    return NULL;
}

/* True if the session is a shard's, and the shard `name` already reports that it does not hear this
 * shard. */
static bool is_said(const struct coord_session *session, const char *name)
{
    const struct coord_session *other = session_of(session->cluster, name);
    return session->role == CAIRN_ROLE_WIRE_SHARD && other != NULL &&
           hears_not(other->unheard, session->name);
}

static void note_unheard(const struct coord_session *session, enum coord_event_kind kind,
                         const char *text)
{
    char who[CAIRN_NAME_MAX + 16];
    const char *job = session->member_count == 1 ? session->members->job_name : NULL;
    snprintf(who, sizeof who, "%s %s", role_name(session->role), session->name);
    coord_event_note(session->cluster, kind, job, who, "%s", text);
}

/* Names the shards of `list` that are not in `other`, and sets *since_ms_out to the earliest time
 * at which one of them was reported. Leaves out shards that report in turn that they do not hear
 * this session. The names are for one sentence and one event, however many shards a network cut
 * affects. Returns false if there are no such shards. */
static bool name_changed(const struct coord_session *session, const struct coord_unheard *list,
                         const struct coord_unheard *other, struct sentence *out,
                         uint64_t *since_ms_out)
{
    size_t named = 0;
    out->text[0] = '\0';
    *since_ms_out = UINT64_MAX;
    for (size_t i = 0; list != NULL && i < list->count; i++) {
        const char *name = list->list[i].name;
        if (hears_not(other, name) || is_said(session, name) ||
            session_of(session->cluster, name) == NULL)
            continue;
        sentence_add(out, "%s%s", named++ > 0 ? ", " : "", name);
        if (list->list[i].since_ms < *since_ms_out) *since_ms_out = list->list[i].since_ms;
    }
    return named > 0;
}

static void note_begun(const struct coord_session *session, const struct coord_unheard *was)
{
    struct sentence names, text;
    uint64_t since_ms;
    if (!name_changed(session, session->unheard, was, &names, &since_ms)) return;
    sentence_set(&text,
                 "hears nothing from %s over the data path, though both reach this coordinator: "
                 "look for a firewall or a cut between them, in both directions",
                 names.text);
    log_warn("%s %s", session->name, text.text);
    note_unheard(session, CAIRN_EVENT_PATH_CUT, text.text);
}

static void note_ended(const struct coord_session *session, const struct coord_unheard *was)
{
    struct sentence names, text;
    uint64_t since_ms;
    if (!name_changed(session, was, session->unheard, &names, &since_ms)) return;
    sentence_set(&text,
                 "hears %s over the data path again, or awaits nothing of it any more, after "
                 "%" PRIu64 " s",
                 names.text, (uv_now(session->cluster->loop) - since_ms) / 1000);
    log_info("%s %s", session->name, text.text);
    note_unheard(session, CAIRN_EVENT_PATH_WHOLE, text.text);
}

void coord_unheard_take(struct coord_session *session, char *const *names, size_t count)
{
    struct coord_unheard *was = session->unheard;
    if (count == 0 && was == NULL) return;
    session->unheard = make_unheard(session, names, count);
    note_begun(session, was);
    note_ended(session, was);
    free(was);
}

const char *coord_unheard_text(const struct coord_session *session)
{
    return session->unheard != NULL ? session->unheard->text : "";
}

static void add_unheard(const struct coord_job *job, const struct coord_session *session,
                        struct sentence *out)
{
    const struct coord_unheard *unheard = session != NULL ? session->unheard : NULL;
    size_t named = 0;
    for (size_t i = 0; unheard != NULL && i < unheard->count; i++) {
        const char *name = unheard->list[i].name;
        const struct coord_shard_entry *entry = coord_shard_find(job->cluster, name);
        if (entry == NULL || entry->session == NULL || !coord_job_has_shard(job, entry)) continue;
        if (named++ > 0)
            sentence_add(out, ", %s", name);
        else
            sentence_add(out, "%s%s %s hears nothing from %s", out->text[0] != '\0' ? "; " : "",
                         role_name(session->role), session->name, name);
    }
}

void coord_unheard_of_job(const struct coord_job *job, struct sentence *out)
{
    out->text[0] = '\0';
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job)
        add_unheard(job, m->session, out);
    CAIRN_EACH_SHARD (job, i) add_unheard(job, job->shards[i].entry->session, out);
}

/* ==== straggler ==== */

#define SLOWER_FACTOR 2
#define SLOWER_US     1000
#define OPEN_MS       1000
#define ASK_MS        1000   /* the time between two questions to the shards */
#define SAY_MS        60000  /* the time between two log lines */
#define SAY_AGAIN_MS  300000 /* the time between two log lines about the same worker and phase */

static const char *const phase_names[CAIRN_TIMES_PHASES] = { "compute", "push", "wait", "fetch" };
/* Texts for the log line, which say for each phase what a late worker has not done yet. */
static const char *const late_signs[CAIRN_TIMES_PHASES] = {
    [CAIRN_PHASE_COMPUTE] = "has pushed nothing yet",
    [CAIRN_PHASE_PUSH] = "has not pushed all of it",
    [CAIRN_PHASE_FETCH] = "has not begun it yet",
};

static const char *const flight_signs[CAIRN_TIMES_PHASES] = {
    [CAIRN_PHASE_PUSH] = "has pushed, and nothing of it has arrived",
    [CAIRN_PHASE_FETCH] = "fetches, and not all of it has arrived",
};
#define LOOK "look at its link to the shards"

/* ---- the last steps ---- */

/* True if the phase is repeated for each micro-batch. */
static bool is_by_micro(enum phase phase)
{
    return phase == CAIRN_PHASE_COMPUTE || phase == CAIRN_PHASE_PUSH;
}

/* Returns the time that a phase takes in a whole step, if one pass of the phase takes `us`. */
static uint64_t in_step(const struct straggler_sample *sample, enum phase phase, uint32_t us)
{
    return is_by_micro(phase) ? (uint64_t)us * sample->micros : us;
}

static uint32_t sum_of(const struct straggler_sample *sample)
{
    uint64_t sum = 0;
    for (size_t p = 0; p < CAIRN_TIMES_PHASES; p++)
        sum += in_step(sample, (enum phase)p, sample->us[p]);
    return sum < UINT32_MAX ? (uint32_t)sum : UINT32_MAX;
}

/* Returns the median of a phase over all samples that have times, without the sample `but`. If
 * `phase` is CAIRN_TIMES_PHASES, returns the median of the sums of all phases. Returns UINT32_MAX
 * if there is no other sample. */
static uint32_t middle_of_others(const struct straggler_sample *samples, size_t count, size_t but,
                                 size_t phase, uint32_t *scratch)
{
    size_t others = 0;
    for (size_t i = 0; i < count; i++) {
        if (i == but || !samples[i].told) continue;
        scratch[others++] = phase < CAIRN_TIMES_PHASES ? samples[i].us[phase] : sum_of(&samples[i]);
    }
    return others > 0 ? times_median(scratch, others) : UINT32_MAX;
}

/* Finds the worker that takes longest in a phase. Returns false if no worker takes clearly longer
 * than the others. */
static bool find_in(const struct straggler_sample *samples, size_t count, enum phase phase,
                    uint32_t *scratch, struct straggler_found *out)
{
    size_t most = count;
    for (size_t i = 0; i < count; i++) {
        if (!samples[i].told) continue;
        if (most == count || samples[i].us[phase] > samples[most].us[phase]) most = i;
    }
    if (most == count) return false;
    const uint32_t others_us = middle_of_others(samples, count, most, phase, scratch);
    const uint32_t step_us = middle_of_others(samples, count, most, CAIRN_TIMES_PHASES, scratch);
    const uint32_t us = samples[most].us[phase];
    if (us <= others_us || (uint64_t)us <= SLOWER_FACTOR * (uint64_t)others_us) return false;
    const uint64_t longer_us = in_step(&samples[most], phase, us - others_us);
    *out = (struct straggler_found) { most, phase, us, others_us, longer_us };
    return longer_us > SLOWER_US && longer_us > step_us / 10;
}

/* Finds the worker whose push holds the others up. A push may be long only because it waits for
 * other workers, since contributions are added in the order of ranks. A worker that itself holds
 * the others up waits less after its push than the others do. */
static bool find_in_push(const struct straggler_sample *samples, size_t count, uint32_t *scratch,
                         struct straggler_found *out)
{
    if (!find_in(samples, count, CAIRN_PHASE_PUSH, scratch, out)) return false;
    const uint32_t others_us = middle_of_others(samples, count, out->index, CAIRN_PHASE_WAIT,
                                                scratch);
    return 2 * (uint64_t)samples[out->index].us[CAIRN_PHASE_WAIT] < others_us;
}

bool straggler_find(const struct straggler_sample *samples, size_t count, uint32_t *scratch,
                    struct straggler_found *out)
{
    struct straggler_found compute, fetch;
    const bool in_compute = find_in(samples, count, CAIRN_PHASE_COMPUTE, scratch, &compute);
    const bool in_fetch = find_in(samples, count, CAIRN_PHASE_FETCH, scratch, &fetch);
    if (!in_compute && !in_fetch) return find_in_push(samples, count, scratch, out);
    const bool more = !in_compute || (in_fetch && fetch.longer_us > compute.longer_us);
    *out = more ? fetch : compute;
    return true;
}

/* ---- what is known of a job ---- */

/* The workers of a job that are judged, each with its times. */
struct sampled {
    const struct coord_member **members; /* [count] */
    struct straggler_sample *samples;    /* [count] */
    uint32_t *scratch;                   /* [count] */
    size_t count;
};

/* Takes samples of the job's workers. Returns false if there is no memory. The caller frees the
 * arrays of `all` in any case. */
static bool sample_job(const struct coord_job *job, struct sampled *all)
{
    const size_t most = (size_t)job->members.count + 1;
    *all = (struct sampled) { calloc(most, sizeof *all->members),
                              calloc(most, sizeof *all->samples),
                              calloc(most, sizeof *all->scratch), 0 };
    if (all->members == NULL || all->samples == NULL || all->scratch == NULL) return false;
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (!(m->role == CAIRN_ROLE_WIRE_WORKER && m->phase == CAIRN_MEMBER_ATTACHED)) continue;
        struct straggler_sample *of = &all->samples[all->count];
        of->micros = m->times.micros > 0 ? m->times.micros : 1;
        of->told = step_ring_recent(&m->times, CAIRN_STRAGGLER_STEPS, of->us);
        all->members[all->count++] = m;
    }
    return true;
}

/* ---- the open round ---- */

void coord_straggler_opened(struct coord_job *job, uint64_t round, bool write)
{
    struct coord_straggler *s = &job->rounds.straggler;
    s->round = write ? 0 : round;
    s->opened_ms = coord_now_ms(job->cluster);
    s->asked_ms = 0;
    s->answered = true;
    s->lack_count = 0;
}

/* A lack says that a shard lacks something of a member. Returns the index of the member's lack, or
 * lack_count if no shard has reported one. */
static uint32_t find_lack(const struct coord_straggler *s, uint64_t member)
{
    uint32_t i = 0;
    while (i < s->lack_count && s->lacks[i].member != member) i++;
    return i;
}

static void note_lack(struct coord_straggler *s, uint64_t member, bool begun)
{
    const uint32_t at = find_lack(s, member);
    if (at == CAIRN_STRAGGLER_LACKS) return;
    if (at == s->lack_count) s->lacks[s->lack_count++] = (struct straggler_lack) { member, false };
    s->lacks[at].begun |= begun;
}

void coord_straggler_lacks(struct coord_job *job, const Cairn__Lacks *lacks)
{
    struct coord_straggler *s = &job->rounds.straggler;
    if (lacks->round != s->round) return;
    if (!s->answered) s->lack_count = 0;
    s->answered = true;
    for (size_t i = 0; i < lacks->n_members; i++)
        note_lack(s, lacks->members[i],
                  (lacks->flags[i] & CAIRN_LACK_ARRIVED) != 0 || lacks->micros[i] > 0);
}

/* Asks the shards what they lack of the workers in the open round. The answers say whether
 * something of the late workers is in flight, and, if all workers have committed, whose
 * contributions have not arrived. */
static void ask_shards(struct coord_job *job)
{
    struct coord_straggler *s = &job->rounds.straggler;
    const uint64_t now_ms = coord_now_ms(job->cluster);
    if (s->asked_ms != 0 && now_ms - s->asked_ms < ASK_MS) return;
    s->asked_ms = now_ms;
    s->answered = false; // the previous answers count until the new ones arrive
    Cairn__LacksGet get = CAIRN__LACKS_GET__INIT;
    get.job = job->id;
    get.epoch = round_epoch_of(job->core);
    get.round = s->round;
    coord_job_send_all(job, CAIRN_MSG_LACKS_GET, &get.base);
}

static bool has_committed(const struct coord_member *m, uint64_t round)
{
    for (uint32_t i = 0; i < m->commits.count; i++)
        if (m->commits.list[i].round == round) return true;
    return false;
}

/* True if the round waits for the worker and the worker has not said that it is at work on something
 * else. */
static bool is_late(const struct coord_job *job, const struct coord_member *m)
{
    const struct coord_straggler *s = &job->rounds.straggler;
    if (m->pause.ends_ms > coord_now_ms(job->cluster)) return false;
    if (has_committed(m, s->round) && find_lack(s, m->id) == s->lack_count) return false;
    return round_contributes(job->core, m->id);
}

/* True if the worker has said that a push or a fetch is in flight. The worker can do nothing before
 * this has arrived. */
static bool is_in_flight(const struct coord_member *m, enum phase *phase_out)
{
    *phase_out = (m->in_flight & CAIRN_FLIES_FETCH) != 0 ? CAIRN_PHASE_FETCH : CAIRN_PHASE_PUSH;
    return m->in_flight != 0;
}

static void find_phase(struct coord_straggler *s, const struct coord_member *m)
{
    const uint32_t lack = find_lack(s, m->id);
    s->flies = false;
    if (lack < s->lack_count && (s->lacks[lack].begun || has_committed(m, s->round)))
        s->phase = CAIRN_PHASE_PUSH;
    else if (!(s->flies = is_in_flight(m, &s->phase)))
        s->phase = m->opened_round == s->round ? CAIRN_PHASE_COMPUTE : CAIRN_PHASE_FETCH;
}

/* Finds the straggler of the open round, if the round has waited too long. Returns false if there
 * is none. There is none if the round waits for more than half of its workers. */
static bool judge_open(struct coord_job *job, struct sampled *all)
{
    struct coord_straggler *s = &job->rounds.straggler;
    const uint64_t now_ms = coord_now_ms(job->cluster);
    const bool open = round_stage_of(job->core) == CAIRN_ROUND_OPEN;
    if (s->round == 0 || !open || now_ms - s->opened_ms < OPEN_MS) return false;
    const uint64_t waited_ms = now_ms - s->opened_ms;
    size_t late = 0, first = all->count;
    for (size_t i = 0; i < all->count; i++) {
        if (!is_late(job, all->members[i])) continue;
        late++;
        if (first == all->count || all->members[i]->rank < all->members[first]->rank) first = i;
    }
    if (2 * late > all->count) return false;
    const uint32_t step_us = middle_of_others(all->samples, all->count, first, CAIRN_TIMES_PHASES,
                                              all->scratch);
    if (step_us == UINT32_MAX || waited_ms * 1000 < SLOWER_FACTOR * (uint64_t)step_us) return false;
    const bool is_new = s->asked_ms == 0;
    ask_shards(job);
    if (is_new || late == 0) return false;
    s->member = all->members[first]->id;
    find_phase(s, all->members[first]);
    s->others = (uint32_t)late - 1;
    s->waited_ms = waited_ms;
    s->us = all->samples[first].us[s->phase];
    s->others_us = middle_of_others(all->samples, all->count, first, s->phase, all->scratch);
    return true;
}

static bool judge_steps(struct coord_job *job, struct sampled *all)
{
    struct coord_straggler *s = &job->rounds.straggler;
    struct straggler_found found;
    if (!straggler_find(all->samples, all->count, all->scratch, &found)) return false;
    s->member = all->members[found.index]->id;
    s->phase = found.phase;
    s->flies = false;
    s->others = 0;
    s->waited_ms = 0;
    s->us = found.us;
    s->others_us = found.others_us;
    return true;
}

/* ---- what is said ---- */

static void say_straggler(const struct coord_straggler *s, const struct coord_member *m,
                          struct sentence *out)
{
    const char *phase = phase_names[s->phase];
    const bool by_micro = m->job->spec.global_batch > 0 && is_by_micro(s->phase);
    sentence_set(out, "worker %s (rank %" PRIu32 ")", m->session->name, m->rank);
    if (s->waited_ms > 0) {
        if (s->others > 0) sentence_add(out, " and %" PRIu32 " more", s->others);
        sentence_add(out, ", for %.1f s in the open round: it %s (%s", (double)s->waited_ms / 1000,
                     (s->flies ? flight_signs : late_signs)[s->phase], phase);
        if (s->others_us != UINT32_MAX)
            sentence_add(out, "; the others take %.1f ms%s", (double)s->others_us / 1000,
                         by_micro ? " a micro-batch" : "");
        sentence_add(out, ")%s", s->flies ? ": " LOOK : "");
        return;
    }
    sentence_add(out,
                 ", by its %s: %.1f ms a %s, and the others take %.1f ms (medians of the "
                 "last %d steps)",
                 phase, (double)s->us / 1000, by_micro ? "micro-batch" : "step",
                 (double)s->others_us / 1000, CAIRN_STRAGGLER_STEPS);
    if (s->phase != CAIRN_PHASE_COMPUTE) sentence_add(out, ": " LOOK);
}

static void tell_log(struct coord_job *job)
{
    struct coord_straggler *s = &job->rounds.straggler;
    const struct coord_member *m = coord_job_member(job, s->member);
    const uint64_t now_ms = coord_now_ms(job->cluster);
    const bool same = s->said_member == s->member && s->said_phase == s->phase;
    struct sentence text;
    if (m == NULL) return;
    if (s->said_member != 0 && now_ms - s->said_ms < (same ? SAY_AGAIN_MS : SAY_MS)) return;
    s->said_member = s->member;
    s->said_phase = s->phase;
    s->said_ms = now_ms;
    say_straggler(s, m, &text);
    log_warn("job %s is held up by %s", job->spec.name, text.text);
}

void coord_straggler_tick(struct coord_job *job)
{
    struct sampled all;
    job->rounds.straggler.member = 0;
    if (job->core == NULL || coord_job_dead(job) || job->members.count < 2) return;
    if (sample_job(job, &all) && (judge_open(job, &all) || judge_steps(job, &all))) tell_log(job);
    free(all.members);
    free(all.samples);
    free(all.scratch);
}

void coord_straggler_show(const struct coord_job *job, struct coord_answer *answer,
                          Cairn__JobStatus *status)
{
    const struct coord_straggler *s = &job->rounds.straggler;
    const struct coord_member *m = job->members.list;
    while (m != NULL && m->id != s->member) m = m->next_of_job;
    if (s->member == 0 || m == NULL) return;
    struct sentence text;
    Cairn__Straggler *told = coord_answer_bytes(answer, sizeof *told);
    if (told == NULL) return;
    cairn__straggler__init(told);
    say_straggler(s, m, &text);
    told->name = m->session->name;
    told->rank = m->rank;
    told->phase = wire_text(phase_names[s->phase]);
    told->us = s->us;
    told->others_us = s->others_us != UINT32_MAX ? s->others_us : 0;
    told->waited_ms = s->waited_ms;
    told->text = coord_answer_text(answer, "%s", text.text);
    status->straggler = told;
}

/* ==== messages ==== */

const struct coord_row coord_waiting_rows[] = {
    { CAIRN_MSG_PAUSE, CAIRN_FROM_WORKER, .by_member = on_pause },
    { 0 },
};
