#include "server/coordinator/round.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <uv.h>

#include "server/coordinator/cluster.h"

/* ==== core ==== */

/* The core of a job: opens it over the job's shards, tells it what happens, and makes its epochs durable.
 * Callbacks (parts.c) carry out the core's other actions. */

/* ---- a core ---- */

static struct round_config core_config(const struct coord_job *job, const uint8_t *gone)
{
    const struct coord_options *options = job->cluster->options;
    const struct job_spec_data *spec = &job->spec;
    return (struct round_config) {
        .shard_count = job->layout->shard_count,
        .shard_max = job->shard_room,
        .gone = gone,
        .member_max = (uint32_t)options->workers_max,
        .contributors_max = spec->global_batch,
        .step_deadline_ms = (uint64_t)options->step_deadline_ms,
        .terms = job->rounds.terms->core,
        .group_count = (uint32_t)spec->group_count,
        .tensor_count = (uint32_t)spec->tensor_count,
        .leaves_untouched = spec->missing_gradients == CAIRN_MISSING_LEAVE,
        .client_state_max = spec->client_state_max,
        .scaling = { .start = spec->loss_scale,
                     .dynamic = spec->loss_scale_policy == CAIRN_LOSS_SCALE_DYNAMIC,
                     .min = spec->loss_scale_min,
                     .max = spec->loss_scale_max,
                     .growth_rounds = spec->loss_scale_growth_steps },
        .fail_nonfinite = spec->on_nonfinite == CAIRN_NONFINITE_FAIL,
        // If the job may begin with weights that are not finite, its results are not finite from
        // the beginning, so such results do not halt the job.
        .halt_nonfinite = spec->on_nonfinite == CAIRN_NONFINITE_FAIL && !spec->init_nonfinite_ok,
        .skips_max = spec->skips_max,
        .epoch = job->epoch,
        .round_reserved = job->reserved.round,
        .layout = job->layout->version,
        .layout_at = job->layouts.at,
    };
}

/* Tells the core of the shards that are up. These are the shards whose present process has made its
 * part of the job. */
static void announce_shards(struct coord_job *job)
{
    CAIRN_EACH_SHARD (job, i) {
        struct coord_job_shard *s = &job->shards[i];
        if (s->incarnation == 0 || s->entry->session == NULL) continue;
        if (s->entry->incarnation != s->incarnation) continue;
        s->up = true;
        (void)coord_job_shard_moved(s);
        const struct round_event up = { .kind = CAIRN_ROUND_SHARD_UP, .shard = i };
        coord_job_event(job, &up);
    }
}

/* Allocates the core's memory, and makes the core in it. */
static cairn_status make_core(struct coord_job *job, const uint8_t *gone, struct sentence *why)
{
    const struct round_config config = core_config(job, gone);
    const size_t bytes = round_bytes(&config);
    if (bytes == 0)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "job %s: workers_min %" PRIu32
                         " does not go with round.workers_max %" PRId64,
                         job->spec.name, job->spec.workers_min, job->cluster->options->workers_max);
    job->rounds.actions.capacity = round_actions_max(&config);
    job->rounds.actions.list = calloc(job->rounds.actions.capacity,
                                      sizeof *job->rounds.actions.list);
    job->rounds.core_memory = malloc(bytes);
    if (job->rounds.actions.list == NULL || job->rounds.core_memory == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the rounds of job %s",
                         job->spec.name);
    job->core = round_init(job->rounds.core_memory, &config);
    return CAIRN_OK;
}

cairn_status coord_core_open(struct coord_job *job, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    if (job->rounds.terms == NULL) status = coord_terms_make(&job->spec, &job->rounds.terms, why);
    if (status != CAIRN_OK) return status;
    uint8_t *gone = coord_holes(job, job->layout->shard_count);
    if (gone == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    status = make_core(job, gone, why);
    free(gone);
    if (status != CAIRN_OK) return status;
    job->rounds.heard = false;
    // The core's clock starts here. Otherwise a deadline that is set before the first tick would be
    // over at that tick.
    coord_job_tick(job, coord_now_ms(job->cluster));
    if (job->initialized) {
        const struct round_event ready = { .kind = CAIRN_ROUND_READY,
                                           .version = { job->generation, job->base_step } };
        coord_job_event(job, &ready);
    }
    announce_shards(job);
    return CAIRN_OK;
}

void coord_job_core_close(struct coord_job *job)
{
    job->core = NULL;
    free(job->rounds.core_memory);
    free(job->rounds.actions.list);
    coord_terms_free(job->rounds.terms);
    job->rounds.core_memory = NULL;
    job->rounds.actions.list = NULL;
    job->rounds.terms = NULL;
}

/* ---- the disk ---- */

static void persist_again(struct coord_job *job, const char *why)
{
    job->rounds.persist_failed = true;
    log_limited(&job->rounds.persist_failures, CAIRN_LOG_ERROR,
                "job %s waits: epoch %" PRIu64 " cannot be stored: %s", job->spec.name, job->epoch,
                why); // while the disk is full, every tick comes here
}

static void on_persisted(const struct coord_saved *saved)
{
    struct coord_job *job = coord_job_by_id(saved->cluster, saved->job);
    if (job == NULL || job->epoch != saved->number) return; // a later epoch is being stored
    if (saved->status != CAIRN_OK) {
        persist_again(job, saved->why);
        return;
    }
    job->rounds.persist_waits = false;
    if (job->layouts.storing)
        log_debug("job %s: layout %" PRIu64 " is in the store", job->spec.name,
                  job->layouts.next->version);
    const struct round_event done = { .kind = CAIRN_ROUND_PERSISTED, .epoch = job->epoch };
    coord_job_event(job, &done);
}

static void persist_epoch(struct coord_job *job)
{
    struct sentence why;
    job->rounds.persist_waits = true;
    job->rounds.persist_failed = false;
    const cairn_status status = coord_save_job(
        job, job->layouts.storing ? CAIRN_STORE_LAYOUT : CAIRN_STORE_EPOCH, NULL, job->epoch,
        on_persisted, &why);
    if (status != CAIRN_OK) persist_again(job, why.text);
}

/* Begins the epoch that the core wants to be stored. If nobody has given a reason for it, the epoch
 * is the job's first one, or it reserves a new block of round numbers. */
static void begin_epoch(struct coord_job *job, const struct round_action *action)
{
    const bool is_used_up = action->round_reserved == job->reserved.round + CAIRN_ROUND_BLOCK;
    if (job->rounds.epoch_reason.text[0] == '\0')
        sentence_set(&job->rounds.epoch_reason, "%s",
                     is_used_up ? "its round numbers are used up" : "the job begins");
    job->rounds.epoch_why = job->rounds.epoch_reason;
    job->rounds.epoch_reason.text[0] = '\0';
    coord_event_note(job->cluster, CAIRN_EVENT_EPOCH, job->spec.name, NULL,
                     "%" PRIu64 ", because %s", action->epoch, job->rounds.epoch_why.text);
    job->epoch = action->epoch;
    job->reserved.round = action->round_reserved;
    job->layouts.storing = action->layout != job->layout->version;
    persist_epoch(job);
}

/* ---- one event ---- */

void coord_job_event(struct coord_job *job, const struct round_event *event)
{
    if (job->core == NULL || coord_job_dead(job)) return;
    assert(!job->rounds.in_event);
    job->rounds.in_event = true;
    job->rounds.actions.count = 0;
    round_on_event(job->core, event, &job->rounds.actions);
    // The next layout is taken over here, and not with the fence. The fence does not always come at
    // once, because it may have to wait for a shard that has disconnected and may never return.
    if (round_layout_of(job->core) != job->layout->version) job->cluster->callbacks->in_force(job);
    for (size_t i = 0; i < job->rounds.actions.count && !coord_job_dead(job); i++) {
        const struct round_action *action = &job->rounds.actions.list[i];
        if (action->kind == CAIRN_ROUND_PERSIST)
            begin_epoch(job, action);
        else
            job->cluster->callbacks->act(job, action);
    }
    job->rounds.in_event = false;
    job->cluster->callbacks->after(job);
}

void coord_job_tick(struct coord_job *job, uint64_t now_ms)
{
    const struct round_event tick = { .kind = CAIRN_ROUND_TICK, .now_ms = now_ms };
    coord_job_event(job, &tick);
    if (job->core != NULL && !coord_job_dead(job) && job->rounds.persist_failed) persist_epoch(job);
}

/* ==== halts ==== */

/* Halts: what the coordinator knows and says about a job that halts, or that is close to a halt. The
 * round machine decides (server/core/round_decide.c). */

/* ---- what shards tell ---- */

static struct results read_told(const struct coord_job *job, Cairn__TensorElems *const *tensors,
                                size_t count, uint64_t nonfinite)
{
    struct results told = { 0 };
    for (size_t i = 0; i < count; i++) {
        if (tensors[i]->tensor < job->spec.tensor_count)
            results_add(&told, tensors[i]->tensor, tensors[i]->elems);
    }
    told.nonfinite = nonfinite; // this number includes the tensors that the shard does not name
    return told;
}

void coord_halts_take(struct coord_job *job, uint32_t shard, const Cairn__Published *message)
{
    job->shards[shard].results.published = read_told(
        job, message->nonfinite_tensors, message->n_nonfinite_tensors, message->nonfinite);
}

void coord_halts_reduced(struct coord_job *job, uint32_t shard, const Cairn__Reduced *message,
                         uint64_t nonfinite)
{
    job->shards[shard].results.gradients = read_told(job, message->nonfinite_tensors,
                                                     message->n_nonfinite_tensors, nonfinite);
    job->shards[shard].results.gradients_round = message->round;
}

/* ---- results that are not finite ---- */

static struct results join_results(const struct coord_job *job)
{
    struct results all = { 0 };
    CAIRN_EACH_SHARD (job, i) results_join(&all, &job->shards[i].results.published);
    return all;
}

uint64_t coord_halts_nonfinite(const struct coord_job *job,
                               char tensors_out[static CAIRN_RESULTS_BYTES])
{
    const struct results all = join_results(job);
    results_list(&all, &job->spec, tensors_out);
    return all.nonfinite;
}

struct results coord_halts_damage(const struct coord_job *job)
{
    return job->spec.init_nonfinite_ok ? (struct results) { 0 } : join_results(job);
}

static void say_halted(struct coord_job *job, const struct sentence *text)
{
    log_fields(CAIRN_LOG_ERROR, CAIRN_FIELDS({ "job", job->spec.name, 0 }), "%s", text->text);
    coord_event_note(job->cluster, CAIRN_EVENT_HALTED, job->spec.name, NULL, "%s", text->text);
}

static void log_loss(struct coord_job *job)
{
    struct sentence text;
    const bool halted = round_halted_of_loss(job->core);
    if (halted == job->halts.loss_said) return;
    job->halts.loss_said = halted;
    if (!halted) return;
    coord_halts_why(job, &text);
    say_halted(job, &text);
}

void coord_halts_advance(struct coord_job *job)
{
    if (job->core == NULL || coord_job_dead(job)) return;
    log_loss(job);
    const enum round_stage stage = round_stage_of(job->core);
    if (stage != CAIRN_ROUND_STEADY && stage != CAIRN_ROUND_OPEN) return;
    const struct cairn_version now = round_version(job->core);
    struct cairn_version *said = &job->halts.said;
    if (version_compare(now, *said) == 0) return;
    *said = now;
    char tensors[CAIRN_RESULTS_BYTES];
    struct sentence text;
    const uint64_t nonfinite = coord_halts_nonfinite(job, tensors);
    if (nonfinite == 0) return;
    if (round_halted_of_results(job->core)) {
        coord_halts_why(job, &text);
        say_halted(job, &text);
        return;
    }
    log_limited(&job->halts.results_limit, CAIRN_LOG_WARN,
                "job %s: %" PRIu64
                " elements have a non-finite result after the update to step %" PRIu64 ": %s",
                job->spec.name, nonfinite, now.step, tensors);
}

/* ---- lost workers ---- */

void coord_halts_lost(struct coord_job *job, const struct coord_member *member, const char *why)
{
    sentence_set(&job->halts.lost, "worker %s (rank %" PRIu32 ") was lost: %s",
                 member->session->name, member->rank, why);
}

/* ---- skips ---- */

struct results coord_halts_gradients(const struct coord_job *job, uint64_t round)
{
    struct results all = { 0 };
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].results.gradients_round == round)
            results_join(&all, &job->shards[i].results.gradients);
    }
    return all;
}

static void add_damage(const struct coord_job *job, const struct results *damage,
                       const char *update, struct sentence *out)
{
    char tensors[CAIRN_RESULTS_BYTES];
    results_list(damage, &job->spec, tensors);
    sentence_add(out,
                 "%" PRIu64
                 " elements have a non-finite result of the %s: %s; no round opens until the job "
                 "is restored from a snapshot, or these planes are written",
                 damage->nonfinite, update, tensors);
}

/* Says why rounds were skipped, and how the halt ends. No amendment repairs what is damaged already. */
static void add_cause(const struct coord_job *job, struct sentence *out)
{
    const struct results damage = coord_halts_damage(job);
    if (damage.nonfinite > 0) {
        sentence_add(out, "; ");
        add_damage(job, &damage, "last update", out);
        return;
    }
    const struct results gradients = coord_halts_gradients(job, round_last(job->core)->round);
    struct sentence of_last;
    results_gradient(&gradients, &job->spec, &of_last);
    if (gradients.nonfinite > 0) sentence_add(out, "; in the last one %s", of_last.text);
    sentence_add(
        out,
        "; no round opens until the job is amended (a lower lr, say), or restored from a snapshot");
}

void coord_halts_why(const struct coord_job *job, struct sentence *out)
{
    if (round_halted_of_results(job->core)) {
        const struct results damage = join_results(job);
        sentence_set(out, "job %s is halted at step %" PRIu64 ": ", job->spec.name,
                     round_version(job->core).step);
        add_damage(job, &damage, "update", out);
        return;
    }
    if (round_halted_of_loss(job->core)) {
        sentence_set(out,
                     "job %s is halted at step %" PRIu64
                     ": %s, and on_worker_loss is fail; no round opens until the job is amended "
                     "(`cairn job amend %s --on-worker-loss redo` goes on with those who are "
                     "left), restored, or all its workers have ended and others begin",
                     job->spec.name, round_version(job->core).step, job->halts.lost.text,
                     job->spec.name);
        return;
    }
    sentence_set(out,
                 "job %s is halted at step %" PRIu64 ": %" PRIu32
                 " rounds in a row were skipped, because gradients were not finite, and the "
                 "loss scale is at its least (skips_max is %" PRIu32 ")",
                 job->spec.name, round_version(job->core).step, round_skips(job->core).in_row,
                 job->spec.skips_max);
    add_cause(job, out);
}

void coord_halts_skipped(struct coord_job *job, const struct decision *skip)
{
    struct payload head;
    struct sentence text;
    const cairn_status status = payload_decode(skip->payload, skip->payload_bytes, &head);
    if (status != CAIRN_OK || head.finite || head.skips.in_row == 0) return;
    if (round_halted(job->core)) {
        coord_halts_why(job, &text);
        say_halted(job, &text);
        return;
    }
    const struct results gradients = coord_halts_gradients(job, skip->round);
    results_gradient(&gradients, &job->spec, &text);
    log_limited(&job->halts.skips_limit, CAIRN_LOG_WARN,
                "job %s: round %" PRIu64 " of step %" PRIu64 " is skipped, because %s: %" PRIu32
                " in a row, %" PRIu64 " so far",
                job->spec.name, skip->round, skip->version_after.step, text.text, head.skips.in_row,
                head.skips.all);
}

/* ==== pace ==== */

#define RESTS_US 1000000 /* a time without steps counts as rest only if it is longer */
#define NEAR_US  1000000 /* if the median step is longer, no step counts as near */

static uint64_t now_us(void)
{
    return uv_hrtime() / 1000;
}

void coord_pace_note(struct coord_pace *pace, uint32_t us)
{
    pace->last_us = us;
    pace->us[pace->next] = us;
    pace->next = (pace->next + 1) % CAIRN_PACE_STEPS;
    if (pace->count < CAIRN_PACE_STEPS) pace->count++;
}

bool coord_pace_advance(struct coord_job *job)
{
    struct coord_pace *pace = &job->rounds.pace;
    const struct cairn_version now = coord_job_version(job);
    if (version_compare(now, pace->seen) == 0) return false;
    const bool is_step = pace->seen_us != 0 && now.generation == pace->seen.generation &&
                         now.step == pace->seen.step + 1;
    const uint64_t at_us = now_us(), us = at_us - pace->seen_us;
    pace->seen = now;
    pace->seen_us = at_us;
    if (!is_step) return false;
    coord_pace_note(pace, us < UINT32_MAX ? (uint32_t)us : UINT32_MAX);
    return true;
}

static int compare_us(const void *left, const void *right)
{
    const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

uint32_t coord_pace_median(const struct coord_pace *pace)
{
    uint32_t sorted[CAIRN_PACE_STEPS];
    if (pace->count == 0) return 0;
    for (uint32_t i = 0; i < pace->count; i++) sorted[i] = pace->us[i];
    qsort(sorted, pace->count, sizeof *sorted, compare_us);
    return sorted[pace->count / 2];
}

bool coord_pace_rests(const struct coord_job *job)
{
    if (job->core == NULL || round_worker_count(job->core) == 0) return true;
    const uint64_t quiet_us = now_us() - job->rounds.pace.seen_us;
    return quiet_us > RESTS_US && quiet_us > 3 * (uint64_t)coord_pace_median(&job->rounds.pace);
}

bool coord_pace_nears_step(const struct coord_job *job)
{
    const uint64_t median_us = coord_pace_median(&job->rounds.pace);
    return median_us <= NEAR_US && now_us() - job->rounds.pace.seen_us < 2 * median_us &&
           !coord_pace_rests(job);
}

/* ==== times ==== */

/* Phases of a worker's step. COMPUTE and FETCH take only the worker's own time. PUSH also has the
 * time for which a push waits for other workers, because contributions are added in the order of
 * ranks. */
enum { COMPUTE = 0, PUSH = 1, FETCH = 3 };
/* A member is called the slowest if its time is longer than the median of the other members by more
 * than this factor, and by more than this number of microseconds. */
#define SLOWER_FACTOR 1.2
#define SLOWER_US     1000

void step_ring_take(struct step_ring *ring, const Cairn__StepTimes *told)
{
    if (told == NULL || told->n_us == 0) return;
    for (size_t p = 0; p < CAIRN_TIMES_PHASES; p++)
        ring->us[ring->next][p] = p < told->n_us ? told->us[p] : 0;
    ring->dealt[ring->next] = ring->micros > 0 ? ring->micros : 1;
    ring->next = (ring->next + 1) % CAIRN_TIMES_STEPS;
    if (ring->count < CAIRN_TIMES_STEPS) ring->count++;
    ring->has_memory = told->memory != NULL;
    if (!ring->has_memory) return;
    cairn__worker_memory__init(&ring->memory);
    ring->memory.shared = told->memory->shared;
    ring->memory.sums = told->memory->sums;
    ring->memory.units = told->memory->units;
    ring->memory.copies = told->memory->copies;
}

uint32_t times_median(uint32_t *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_us);
    return values[count / 2];
}

static uint32_t sum_of(const uint32_t us[CAIRN_TIMES_PHASES])
{
    uint64_t sum = 0;
    for (size_t p = 0; p < CAIRN_TIMES_PHASES; p++) sum += us[p];
    return sum < UINT32_MAX ? (uint32_t)sum : UINT32_MAX;
}

bool step_ring_medians(const struct step_ring *ring, Cairn__StepTimes *out,
                       uint32_t us[CAIRN_TIMES_PHASES])
{
    uint32_t values[CAIRN_TIMES_STEPS];
    cairn__step_times__init(out);
    if (ring->count == 0) return false;
    for (size_t p = 0; p < CAIRN_TIMES_PHASES; p++) {
        for (uint32_t i = 0; i < ring->count; i++) values[i] = ring->us[i][p];
        us[p] = times_median(values, ring->count);
    }
    for (uint32_t i = 0; i < ring->count; i++) values[i] = sum_of(ring->us[i]);
    out->step_us = times_median(values, ring->count);
    out->steps = ring->count;
    out->us = us;
    out->n_us = CAIRN_TIMES_PHASES;
    return true;
}

bool step_ring_recent(const struct step_ring *ring, uint32_t steps, uint32_t us[CAIRN_TIMES_PHASES])
{
    uint32_t values[CAIRN_TIMES_STEPS];
    const uint32_t count = ring->count < steps ? ring->count : steps;
    if (2 * ring->count < steps) return false;
    for (size_t p = 0; p < CAIRN_TIMES_PHASES; p++) {
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t at = (ring->next + CAIRN_TIMES_STEPS - 1 - i) % CAIRN_TIMES_STEPS;
            values[i] = ring->us[at][p] / (p == COMPUTE || p == PUSH ? ring->dealt[at] : 1);
        }
        us[p] = times_median(values, count);
    }
    return true;
}

/* ---- for those who ask ---- */

struct times_entry {
    Cairn__StepTimes told; /* told.memory is borrowed from the member */
    uint32_t us[CAIRN_TIMES_PHASES];
};

static int by_rank(const void *left, const void *right)
{
    const struct times_entry *a = left, *b = right;
    return (a->told.number > b->told.number) - (a->told.number < b->told.number);
}

static size_t list_workers(const struct coord_job *job, struct times_entry *entries)
{
    size_t count = 0;
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        struct times_entry *entry = &entries[count];
        if (m->role != CAIRN_ROLE_WIRE_WORKER || m->phase != CAIRN_MEMBER_ATTACHED) continue;
        step_ring_medians(&m->times, &entry->told, entry->us);
        entry->told.number = m->rank;
        entry->told.name = m->session->name;
        if (m->times.has_memory) entry->told.memory = &m->times.memory;
        count++;
    }
    qsort(entries, count, sizeof *entries, by_rank);
    // the sort has moved the entries
    for (size_t i = 0; i < count; i++) entries[i].told.us = entries[i].us;
    return count;
}

static size_t list_shards(const struct coord_job *job, struct times_entry *entries)
{
    size_t count = 0;
    CAIRN_EACH_SHARD (job, s) {
        struct times_entry *entry = &entries[count++];
        step_ring_medians(&job->shards[s].times, &entry->told, entry->us);
        entry->told.of_shard = true;
        entry->told.number = s;
        entry->told.name = job->shards[s].entry->name;
    }
    return count;
}

/* Returns the part of a member's time for which the others wait. For a worker this is computing and
 * fetching. For a shard it is every phase except collecting. */
static uint32_t own_us(const struct times_entry *entry)
{
    const uint32_t *us = entry->us;
    if (!entry->told.of_shard) return us[COMPUTE] + us[FETCH];
    return us[1] + us[2] + us[3];
}

/* Marks the slowest entry, if one entry is clearly slower than the others. Either all entries are
 * workers, or all are shards. `values` has room for one number for each entry. */
static void mark_slowest(struct times_entry *entries, size_t count, uint32_t *values)
{
    size_t slowest = 0, others = 0;
    for (size_t i = 1; i < count; i++)
        if (own_us(&entries[i]) > own_us(&entries[slowest])) slowest = i;
    for (size_t i = 0; i < count; i++)
        if (i != slowest && entries[i].told.steps > 0) values[others++] = own_us(&entries[i]);
    if (others == 0) return;
    const double middle = times_median(values, others), own = own_us(&entries[slowest]);
    entries[slowest].told.slowest = own > SLOWER_FACTOR * middle && own > middle + SLOWER_US;
}

void coord_times_show(const struct coord_job *job, struct coord_answer *answer,
                      Cairn__JobStatus *status)
{
    const size_t most = job->members.count + (size_t)job->entry_count + 1;
    uint32_t *values = coord_answer_bytes(answer, most * sizeof *values);
    struct times_entry *entries = coord_answer_bytes(answer, most * sizeof *entries);
    status->times = coord_answer_bytes(answer, most * sizeof *status->times);
    if (values == NULL || entries == NULL || status->times == NULL) return;
    const size_t workers = list_workers(job, entries);
    const size_t shards = list_shards(job, entries + workers);
    mark_slowest(entries, workers, values);
    mark_slowest(entries + workers, shards, values);
    status->n_times = workers + shards;
    for (size_t i = 0; i < status->n_times; i++) status->times[i] = &entries[i].told;
}
