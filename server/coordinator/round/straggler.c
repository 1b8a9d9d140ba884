#include "server/coordinator/round/straggler.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"

#define SLOWER_FACTOR 2
#define SLOWER_US     1000
#define OPEN_MS       1000
#define ASK_MS        1000   /* from one question to the shards to the next */
#define SAY_MS        60000  /* from one line to the next, */
#define SAY_AGAIN_MS  300000 /* which is of the same worker and phase */

static const char *const phase_names[CAIRN_TIMES_PHASES] = { "compute", "push", "wait", "fetch" };
/* For each phase: what a late worker has not done yet. Used in the log line. */
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

/* The phase is gone through for each micro-batch. */
static bool is_by_micro(enum cairn_phase phase)
{
    return phase == CAIRN_PHASE_COMPUTE || phase == CAIRN_PHASE_PUSH;
}

/* The time that a phase takes in a whole step, if one pass of it takes `us`. */
static uint64_t in_step(const struct cairn_straggler_sample *sample, enum cairn_phase phase,
                        uint32_t us)
{
    return is_by_micro(phase) ? (uint64_t)us * sample->micros : us;
}

static uint32_t sum_of(const struct cairn_straggler_sample *sample)
{
    uint64_t sum = 0;
    for (size_t p = 0; p < CAIRN_TIMES_PHASES; p++)
        sum += in_step(sample, (enum cairn_phase)p, sample->us[p]);
    return sum < UINT32_MAX ? (uint32_t)sum : UINT32_MAX;
}

/* The middle of all that tell but one; phase CAIRN_TIMES_PHASES: of all phases together. */
static uint32_t middle(const struct cairn_straggler_sample *samples, size_t count, size_t but,
                       size_t phase, uint32_t *scratch)
{
    size_t others = 0;
    for (size_t i = 0; i < count; i++) {
        if (i == but || !samples[i].told) continue;
        scratch[others++] = phase < CAIRN_TIMES_PHASES ? samples[i].us[phase] : sum_of(&samples[i]);
    }
    return others > 0 ? cairn_times_median(scratch, others) : UINT32_MAX;
}

/* Who takes longest in a phase, if that is clear; false: it is not. */
static bool find_in(const struct cairn_straggler_sample *samples, size_t count,
                    enum cairn_phase phase, uint32_t *scratch, struct cairn_straggler_found *out)
{
    size_t most = count;
    for (size_t i = 0; i < count; i++) {
        if (!samples[i].told) continue;
        if (most == count || samples[i].us[phase] > samples[most].us[phase]) most = i;
    }
    if (most == count) return false;
    const uint32_t others_us = middle(samples, count, most, phase, scratch);
    const uint32_t step_us = middle(samples, count, most, CAIRN_TIMES_PHASES, scratch);
    const uint32_t us = samples[most].us[phase];
    if (us <= others_us || (uint64_t)us <= SLOWER_FACTOR * (uint64_t)others_us) return false;
    const uint64_t longer_us = in_step(&samples[most], phase, us - others_us);
    *out = (struct cairn_straggler_found) { most, phase, us, others_us, longer_us };
    return longer_us > SLOWER_US && longer_us > step_us / 10;
}

/* A push waits for others, too: contributions are added by rank. Who holds them up waits less than they do
 * when it is over. */
static bool find_in_push(const struct cairn_straggler_sample *samples, size_t count,
                         uint32_t *scratch, struct cairn_straggler_found *out)
{
    if (!find_in(samples, count, CAIRN_PHASE_PUSH, scratch, out)) return false;
    const uint32_t others_us = middle(samples, count, out->index, CAIRN_PHASE_WAIT, scratch);
    return 2 * (uint64_t)samples[out->index].us[CAIRN_PHASE_WAIT] < others_us;
}

bool cairn_straggler_find(const struct cairn_straggler_sample *samples, size_t count,
                          uint32_t *scratch, struct cairn_straggler_found *out)
{
    struct cairn_straggler_found compute, fetch;
    const bool in_compute = find_in(samples, count, CAIRN_PHASE_COMPUTE, scratch, &compute);
    const bool in_fetch = find_in(samples, count, CAIRN_PHASE_FETCH, scratch, &fetch);
    if (!in_compute && !in_fetch) return find_in_push(samples, count, scratch, out);
    const bool more = !in_compute || (in_fetch && fetch.longer_us > compute.longer_us);
    *out = more ? fetch : compute;
    return true;
}

/* ---- what is known of a job ---- */

static bool is_worker(const struct cairn_cluster_member *m)
{
    return m->role == CAIRN_ROLE_WIRE_WORKER && m->phase == CAIRN_MEMBER_ATTACHED;
}

/* The workers of a job that are judged, each with its times. */
struct sampled {
    const struct cairn_cluster_member **members; /* [count] */
    struct cairn_straggler_sample *samples;      /* [count] */
    uint32_t *scratch;                           /* [count] */
    size_t count;
};

static void sampled_release(struct sampled *all)
{
    free(all->members);
    free(all->samples);
    free(all->scratch);
}

/* False: no memory; release it in any case. */
static bool sample(const struct cairn_cluster_job *job, struct sampled *all)
{
    const size_t most = (size_t)job->members.count + 1;
    *all = (struct sampled) { calloc(most, sizeof *all->members),
                              calloc(most, sizeof *all->samples),
                              calloc(most, sizeof *all->scratch), 0 };
    if (all->members == NULL || all->samples == NULL || all->scratch == NULL) return false;
    for (const struct cairn_cluster_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (!is_worker(m)) continue;
        struct cairn_straggler_sample *of = &all->samples[all->count];
        of->micros = m->times.micros > 0 ? m->times.micros : 1;
        of->told = cairn_step_ring_recent(&m->times, CAIRN_STRAGGLER_STEPS, of->us);
        all->members[all->count++] = m;
    }
    return true;
}

/* ---- the open round ---- */

void cairn_cluster_straggler_opened(struct cairn_cluster_job *job, uint64_t round, bool write)
{
    struct cairn_cluster_straggler *s = &job->straggler;
    s->round = write ? 0 : round;
    s->opened_ms = cairn_cluster_now_ms(job->cluster);
    s->asked_ms = 0;
    s->answered = true;
    s->lack_count = 0;
}

/* The index of the member's lack; lack_count if no shard said that it lacks something of the
 * member. */
static uint32_t find_lack(const struct cairn_cluster_straggler *s, uint64_t member)
{
    uint32_t i = 0;
    while (i < s->lack_count && s->lacks[i].member != member) i++;
    return i;
}

static void note_lack(struct cairn_cluster_straggler *s, uint64_t member, bool begun)
{
    const uint32_t at = find_lack(s, member);
    if (at == CAIRN_STRAGGLER_LACKS) return;
    if (at == s->lack_count)
        s->lacks[s->lack_count++] = (struct cairn_straggler_lack) { member, false };
    s->lacks[at].begun |= begun;
}

void cairn_cluster_straggler_lacks(struct cairn_cluster_job *job, const Cairn__Lacks *lacks)
{
    struct cairn_cluster_straggler *s = &job->straggler;
    if (lacks->round != s->round) return;
    if (!s->answered) s->lack_count = 0;
    s->answered = true;
    for (size_t i = 0; i < lacks->n_members; i++)
        note_lack(s, lacks->members[i],
                  (lacks->flags[i] & CAIRN_LACK_ARRIVED) != 0 || lacks->micros[i] > 0);
}

/* So that it is known whether something of those who are late is on its way, and of whom, where all have
 * committed, it is not there. */
static void ask_shards(struct cairn_cluster_job *job)
{
    struct cairn_cluster_straggler *s = &job->straggler;
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster);
    if (s->asked_ms != 0 && now_ms - s->asked_ms < ASK_MS) return;
    s->asked_ms = now_ms;
    s->answered = false; // until then the last answers count
    Cairn__LacksGet get = CAIRN__LACKS_GET__INIT;
    get.job = job->id;
    get.epoch = cairn_round_epoch(job->core);
    get.round = s->round;
    cairn_cluster_job_send_all(job, CAIRN_MSG_LACKS_GET, &get.base);
}

static bool has_committed(const struct cairn_cluster_member *m, uint64_t round)
{
    for (uint32_t i = 0; i < m->commits.count; i++)
        if (m->commits.list[i].round == round) return true;
    return false;
}

/* The round waits for it, and it has not said that it is at work on something else. */
static bool is_late(const struct cairn_cluster_job *job, const struct cairn_cluster_member *m)
{
    const struct cairn_cluster_straggler *s = &job->straggler;
    if (m->pause.ends_ms > cairn_cluster_now_ms(job->cluster)) return false;
    if (has_committed(m, s->round) && find_lack(s, m->id) == s->lack_count) return false;
    return cairn_round_contributes(job->core, m->id);
}

/* True if the worker said that something of its own is on its way: it can do nothing before that
 * has come. */
static bool flies(const struct cairn_cluster_member *m, enum cairn_phase *phase_out)
{
    *phase_out = (m->in_flight & CAIRN_FLIES_FETCH) != 0 ? CAIRN_PHASE_FETCH : CAIRN_PHASE_PUSH;
    return m->in_flight != 0;
}

static void find_phase(struct cairn_cluster_straggler *s, const struct cairn_cluster_member *m)
{
    const uint32_t lack = find_lack(s, m->id);
    s->flies = false;
    if (lack < s->lack_count && (s->lacks[lack].begun || has_committed(m, s->round)))
        s->phase = CAIRN_PHASE_PUSH;
    else if (!(s->flies = flies(m, &s->phase)))
        s->phase = m->opened_round == s->round ? CAIRN_PHASE_COMPUTE : CAIRN_PHASE_FETCH;
}

/* Finds the workers for which the open round waits. False also if they are more than half of its
 * workers: then none of them is the straggler. */
static bool judge_open(struct cairn_cluster_job *job, struct sampled *all)
{
    struct cairn_cluster_straggler *s = &job->straggler;
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster);
    const bool open = cairn_round_stage_of(job->core) == CAIRN_ROUND_OPEN;
    if (s->round == 0 || !open || now_ms - s->opened_ms < OPEN_MS) return false;
    const uint64_t waited_ms = now_ms - s->opened_ms;
    size_t late = 0, first = all->count;
    for (size_t i = 0; i < all->count; i++) {
        if (!is_late(job, all->members[i])) continue;
        late++;
        if (first == all->count || all->members[i]->rank < all->members[first]->rank) first = i;
    }
    if (2 * late > all->count) return false;
    const uint32_t step_us = middle(all->samples, all->count, first, CAIRN_TIMES_PHASES,
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
    s->others_us = middle(all->samples, all->count, first, s->phase, all->scratch);
    return true;
}

static bool judge_steps(struct cairn_cluster_job *job, struct sampled *all)
{
    struct cairn_cluster_straggler *s = &job->straggler;
    struct cairn_straggler_found found;
    if (!cairn_straggler_find(all->samples, all->count, all->scratch, &found)) return false;
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

static void say(const struct cairn_cluster_straggler *s, const struct cairn_cluster_member *m,
                struct cairn_sentence *out)
{
    const char *phase = phase_names[s->phase];
    const bool by_micro = m->job->spec.global_batch > 0 && is_by_micro(s->phase);
    cairn_sentence_set(out, "worker %s (rank %" PRIu32 ")", m->session->name, m->rank);
    if (s->waited_ms > 0) {
        if (s->others > 0) cairn_sentence_add(out, " and %" PRIu32 " more", s->others);
        cairn_sentence_add(out, ", for %.1f s in the open round: it %s (%s",
                           (double)s->waited_ms / 1000,
                           (s->flies ? flight_signs : late_signs)[s->phase], phase);
        if (s->others_us != UINT32_MAX)
            cairn_sentence_add(out, "; the others take %.1f ms%s", (double)s->others_us / 1000,
                               by_micro ? " a micro-batch" : "");
        cairn_sentence_add(out, ")%s", s->flies ? ": " LOOK : "");
        return;
    }
    cairn_sentence_add(out,
                       ", by its %s: %.1f ms a %s, and the others take %.1f ms (medians of the "
                       "last %d steps)",
                       phase, (double)s->us / 1000, by_micro ? "micro-batch" : "step",
                       (double)s->others_us / 1000, CAIRN_STRAGGLER_STEPS);
    if (s->phase != CAIRN_PHASE_COMPUTE) cairn_sentence_add(out, ": " LOOK);
}

static void tell_log(struct cairn_cluster_job *job)
{
    struct cairn_cluster_straggler *s = &job->straggler;
    const struct cairn_cluster_member *m = cairn_cluster_job_member(job, s->member);
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster);
    const bool same = s->said_member == s->member && s->said_phase == s->phase;
    struct cairn_sentence text;
    if (m == NULL) return;
    if (s->said_member != 0 && now_ms - s->said_ms < (same ? SAY_AGAIN_MS : SAY_MS)) return;
    s->said_member = s->member;
    s->said_phase = s->phase;
    s->said_ms = now_ms;
    say(s, m, &text);
    cairn_log_warn("job %s is held up by %s", job->spec.name, text.text);
}

void cairn_cluster_straggler_tick(struct cairn_cluster_job *job)
{
    struct sampled all;
    job->straggler.member = 0;
    if (job->core == NULL || cairn_cluster_job_dead(job) || job->members.count < 2) return;
    if (sample(job, &all) && (judge_open(job, &all) || judge_steps(job, &all))) tell_log(job);
    sampled_release(&all);
}

void cairn_cluster_straggler_show(const struct cairn_cluster_job *job,
                                  struct cairn_straggler_view *view, Cairn__JobStatus *status)
{
    const struct cairn_cluster_straggler *s = &job->straggler;
    const struct cairn_cluster_member *m = job->members.list;
    while (m != NULL && m->id != s->member) m = m->next_of_job;
    if (s->member == 0 || m == NULL) return;
    cairn__straggler__init(&view->told);
    say(s, m, &view->text);
    view->told.name = m->session->name;
    view->told.rank = m->rank;
    view->told.phase = (char *)(uintptr_t)phase_names[s->phase];
    view->told.us = s->us;
    view->told.others_us = s->others_us != UINT32_MAX ? s->others_us : 0;
    view->told.waited_ms = s->waited_ms;
    view->told.text = view->text.text;
    status->straggler = &view->told;
}
