/* The core of a job: opened over its shards, told what happens, and its epochs made durable. Its
 * other actions are carried out by its hands (job/act.c). */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/round/terms.h"
#include "server/coordinator/store/events.h"

void cairn_cluster_decision_to_message(const struct cairn_decision *decision, Cairn__Decision *out)
{
    cairn__decision__init(out);
    if (decision == NULL) return;
    out->kind = decision->kind;
    out->round = decision->round;
    out->generation = decision->version_after.generation;
    out->step = decision->version_after.step;
    out->payload.data = (uint8_t *)(uintptr_t)decision->payload;
    out->payload.len = decision->payload_bytes;
}

cairn_status cairn_cluster_decision_of_message(const Cairn__Decision *message,
                                               struct cairn_decision *out)
{
    struct cairn_payload head;
    if (message->kind > CAIRN_DECISION_WRITE) return CAIRN_ERR_MALFORMED;
    if (message->payload.len > 0 &&
        cairn_payload_decode(message->payload.data, message->payload.len, &head) != CAIRN_OK) {
        return CAIRN_ERR_MALFORMED;
    }
    *out = (struct cairn_decision) { .kind = (enum cairn_decision_kind)message->kind,
                                     .round = message->round,
                                     .version_after = { message->generation, message->step },
                                     .payload = message->payload.data,
                                     .payload_bytes = message->payload.len };
    return CAIRN_OK;
}

/* ---- a core ---- */

static struct cairn_round_config core_config(const struct cairn_cluster_job *job,
                                             const uint8_t *gone)
{
    const struct cairn_cluster_options *options = job->cluster->options;
    const struct cairn_job_spec_data *spec = &job->spec;
    return (struct cairn_round_config) {
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
        // Who begins with weights that are not finite has results that are none.
        .halt_nonfinite = spec->on_nonfinite == CAIRN_NONFINITE_FAIL && !spec->init_nonfinite_ok,
        .skips_max = spec->skips_max,
        .epoch = job->epoch,
        .round_reserved = job->reserved.round,
        .layout = job->layout->version,
        .layout_at = job->layouts.at,
    };
}

/* Shards that took their part and are still the same process. */
static void announce_shards(struct cairn_cluster_job *job)
{
    CAIRN_EACH_SHARD (job, i) {
        struct cairn_cluster_job_shard *s = &job->shards[i];
        if (s->incarnation == 0 || s->seat->session == NULL) continue;
        if (s->seat->incarnation != s->incarnation) continue;
        s->up = true;
        (void)cairn_cluster_job_shard_moved(s);
        const struct cairn_round_event up = { .kind = CAIRN_ROUND_SHARD_UP, .shard = i };
        cairn_cluster_job_event(job, &up);
    }
}

/* Its memory, and the machine in it. */
static cairn_status make_core(struct cairn_cluster_job *job, const uint8_t *gone,
                              struct cairn_sentence *why)
{
    const struct cairn_round_config config = core_config(job, gone);
    const size_t bytes = cairn_round_bytes(&config);
    if (bytes == 0) {
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "job %s: workers_min %" PRIu32 " does not go with round.workers_max %" PRId64,
            job->spec.name, job->spec.workers_min, job->cluster->options->workers_max);
    }
    job->rounds.actions.capacity = cairn_round_actions_max(&config);
    job->rounds.actions.list = calloc(job->rounds.actions.capacity,
                                      sizeof *job->rounds.actions.list);
    job->rounds.core_memory = malloc(bytes);
    if (job->rounds.actions.list == NULL || job->rounds.core_memory == NULL) {
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the rounds of job %s",
                          job->spec.name);
    }
    job->core = cairn_round_init(job->rounds.core_memory, &config);
    return CAIRN_OK;
}

cairn_status cairn_cluster_core_open(struct cairn_cluster_job *job,
                                     const struct cairn_cluster_hands *hands,
                                     struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    if (job->rounds.terms == NULL)
        status = cairn_cluster_terms_make(&job->spec, &job->rounds.terms, why);
    if (status != CAIRN_OK) return status;
    uint8_t *gone = cairn_cluster_holes(job, job->layout->shard_count);
    if (gone == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    status = make_core(job, gone, why);
    free(gone);
    if (status != CAIRN_OK) return status;
    job->rounds.hands = hands;
    job->rounds.heard = false;
    // The core's clock starts here: a deadline set before its first tick would have passed at once.
    cairn_cluster_job_tick(job, cairn_cluster_now_ms(job->cluster));
    if (job->initialized) {
        const struct cairn_round_event ready = { .kind = CAIRN_ROUND_READY,
                                                 .version = { job->generation, job->base_step } };
        cairn_cluster_job_event(job, &ready);
    }
    announce_shards(job);
    return CAIRN_OK;
}

void cairn_cluster_job_core_close(struct cairn_cluster_job *job)
{
    job->core = NULL;
    free(job->rounds.core_memory);
    free(job->rounds.actions.list);
    cairn_cluster_terms_free(job->rounds.terms);
    job->rounds.core_memory = NULL;
    job->rounds.actions.list = NULL;
    job->rounds.terms = NULL;
}

/* ---- the disk ---- */

static void persist_again(struct cairn_cluster_job *job, const char *why)
{
    job->rounds.persist_failed = true;
    cairn_log_limited(&job->rounds.persist_failures, CAIRN_LOG_ERROR,
                      "job %s waits: epoch %" PRIu64 " cannot be stored: %s", job->spec.name,
                      job->epoch, why); // with every tick while the disk is full
}

static void on_persisted(const struct cairn_cluster_saved *saved)
{
    struct cairn_cluster_job *job = cairn_cluster_job_by_id(saved->cluster, saved->job);
    if (job == NULL || job->epoch != saved->number) return; // a later one is on its way
    if (saved->status != CAIRN_OK) {
        persist_again(job, saved->why);
        return;
    }
    job->rounds.persist_waits = false;
    if (job->layouts.storing)
        cairn_log_debug("job %s: layout %" PRIu64 " is in the store", job->spec.name,
                        job->layouts.next->version);
    const struct cairn_round_event done = { .kind = CAIRN_ROUND_PERSISTED, .epoch = job->epoch };
    cairn_cluster_job_event(job, &done);
}

static void persist(struct cairn_cluster_job *job)
{
    struct cairn_sentence why;
    job->rounds.persist_waits = true;
    job->rounds.persist_failed = false;
    const cairn_status status = cairn_cluster_save_job(
        job, job->layouts.storing ? CAIRN_STORE_LAYOUT : CAIRN_STORE_EPOCH, NULL, job->epoch,
        on_persisted, &why);
    if (status != CAIRN_OK) persist_again(job, why.text);
}

/* An epoch for which nobody gave a reason is the job's first, or takes a new block of round numbers. */
static void begin_epoch(struct cairn_cluster_job *job, const struct cairn_round_action *action)
{
    const bool is_used_up = action->round_reserved == job->reserved.round + CAIRN_ROUND_BLOCK;
    if (job->rounds.epoch_reason.text[0] == '\0')
        cairn_sentence_set(&job->rounds.epoch_reason, "%s",
                           is_used_up ? "its round numbers are used up" : "the job begins");
    job->rounds.epoch_why = job->rounds.epoch_reason;
    job->rounds.epoch_reason.text[0] = '\0';
    cairn_cluster_event_note(job->cluster, CAIRN_EVENT_EPOCH, job->spec.name, NULL,
                             "%" PRIu64 ", because %s", action->epoch, job->rounds.epoch_why.text);
    job->epoch = action->epoch;
    job->reserved.round = action->round_reserved;
    job->layouts.storing = action->layout != job->layout->version;
    persist(job);
}

/* ---- one event ---- */

void cairn_cluster_job_event(struct cairn_cluster_job *job, const struct cairn_round_event *event)
{
    if (job->core == NULL || cairn_cluster_job_dead(job)) return;
    assert(!job->rounds.in_event);
    job->rounds.in_event = true;
    job->rounds.actions.count = 0;
    cairn_round_on_event(job->core, event, &job->rounds.actions);
    // No fence may follow at once: a shard that went away meanwhile may never be back.
    if (cairn_round_layout(job->core) != job->layout->version) job->rounds.hands->in_force(job);
    for (size_t i = 0; i < job->rounds.actions.count && !cairn_cluster_job_dead(job); i++) {
        const struct cairn_round_action *action = &job->rounds.actions.list[i];
        if (action->kind == CAIRN_ROUND_PERSIST)
            begin_epoch(job, action);
        else
            job->rounds.hands->act(job, action);
    }
    job->rounds.in_event = false;
    job->rounds.hands->after(job);
}

void cairn_cluster_job_tick(struct cairn_cluster_job *job, uint64_t now_ms)
{
    const struct cairn_round_event tick = { .kind = CAIRN_ROUND_TICK, .now_ms = now_ms };
    cairn_cluster_job_event(job, &tick);
    if (job->core != NULL && !cairn_cluster_job_dead(job) && job->rounds.persist_failed)
        persist(job);
}
