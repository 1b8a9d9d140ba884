/* Halts: what the coordinator knows and says of a job that halts, or comes near it. The round
 * machine decides (server/core/round_skips.c). */
#include "server/coordinator/round/halts.h"

#include <inttypes.h>

#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/store/events.h"

/* ---- what shards tell ---- */

static struct cairn_results read_told(const struct cairn_cluster_job *job,
                                      Cairn__TensorElems *const *tensors, size_t count,
                                      uint64_t nonfinite)
{
    struct cairn_results told = { 0 };
    for (size_t i = 0; i < count; i++) {
        if (tensors[i]->tensor < job->spec.tensor_count)
            cairn_results_add(&told, tensors[i]->tensor, tensors[i]->elems);
    }
    told.nonfinite = nonfinite; // also of those that it does not name
    return told;
}

void cairn_cluster_halts_take(struct cairn_cluster_job *job, uint32_t shard,
                              const Cairn__Published *message)
{
    job->shards[shard].results.published = read_told(
        job, message->nonfinite_tensors, message->n_nonfinite_tensors, message->nonfinite);
}

void cairn_cluster_halts_restored(struct cairn_cluster_job *job, const struct cairn_results *saved)
{
    job->shards[0].results.published = *saved;
}

void cairn_cluster_halts_reduced(struct cairn_cluster_job *job, uint32_t shard,
                                 const Cairn__Reduced *message, uint64_t nonfinite)
{
    job->shards[shard].results.gradients = read_told(job, message->nonfinite_tensors,
                                                     message->n_nonfinite_tensors, nonfinite);
    job->shards[shard].results.gradients_round = message->round;
}

/* ---- results that are not finite ---- */

static struct cairn_results join_results(const struct cairn_cluster_job *job)
{
    struct cairn_results all = { 0 };
    CAIRN_EACH_SHARD (job, i) cairn_results_join(&all, &job->shards[i].results.published);
    return all;
}

uint64_t cairn_cluster_halts_nonfinite(const struct cairn_cluster_job *job,
                                       char tensors_out[static CAIRN_RESULTS_BYTES])
{
    const struct cairn_results all = join_results(job);
    cairn_results_list(&all, &job->spec, tensors_out);
    return all.nonfinite;
}

struct cairn_results cairn_cluster_halts_damage(const struct cairn_cluster_job *job)
{
    return job->spec.init_nonfinite_ok ? (struct cairn_results) { 0 } : join_results(job);
}

static void say_halted(struct cairn_cluster_job *job, const struct cairn_sentence *text)
{
    cairn_log_fields(CAIRN_LOG_ERROR, CAIRN_FIELDS({ "job", job->spec.name, 0 }), "%s", text->text);
    cairn_cluster_event_note(job->cluster, CAIRN_EVENT_HALTED, job->spec.name, NULL, "%s",
                             text->text);
}

static void log_loss(struct cairn_cluster_job *job)
{
    struct cairn_sentence text;
    const bool halted = cairn_round_halted_of_loss(job->core);
    if (halted == job->halts.loss_said) return;
    job->halts.loss_said = halted;
    if (!halted) return;
    cairn_cluster_halts_why(job, &text);
    say_halted(job, &text);
}

void cairn_cluster_halts_advance(struct cairn_cluster_job *job)
{
    if (job->core == NULL || cairn_cluster_job_dead(job)) return;
    log_loss(job);
    const enum cairn_round_stage stage = cairn_round_stage_of(job->core);
    if (stage != CAIRN_ROUND_STEADY && stage != CAIRN_ROUND_OPEN) return;
    const struct cairn_version now = cairn_round_version(job->core);
    struct cairn_version *said = &job->halts.said;
    if (cairn_version_compare(now, *said) == 0) return;
    *said = now;
    char tensors[CAIRN_RESULTS_BYTES];
    struct cairn_sentence text;
    const uint64_t nonfinite = cairn_cluster_halts_nonfinite(job, tensors);
    if (nonfinite == 0) return;
    if (cairn_round_halted_of_results(job->core)) {
        cairn_cluster_halts_why(job, &text);
        say_halted(job, &text);
        return;
    }
    cairn_log_limited(&job->halts.results_limit, CAIRN_LOG_WARN,
                      "job %s: of %" PRIu64
                      " elements a result is not finite after the update to step %" PRIu64 ": %s",
                      job->spec.name, nonfinite, now.step, tensors);
}

/* ---- lost workers ---- */

void cairn_cluster_halts_lost(struct cairn_cluster_job *job,
                              const struct cairn_cluster_member *member, const char *why)
{
    cairn_sentence_set(&job->halts.lost, "worker %s (rank %" PRIu32 ") was lost: %s",
                       member->session->name, member->rank, why);
}

void cairn_cluster_halts_add_lost(const struct cairn_cluster_job *job, struct cairn_sentence *out)
{
    if (cairn_round_waits_for_lost(job->core) || cairn_round_halted_of_loss(job->core))
        cairn_sentence_add(out, "; %s", job->halts.lost.text);
}

static void say_halted_of_loss(const struct cairn_cluster_job *job, struct cairn_sentence *out)
{
    cairn_sentence_set(out,
                       "job %s is halted at step %" PRIu64
                       ": %s, and on_worker_loss is fail; no round opens until the job is amended "
                       "(`cairn job amend %s --on-worker-loss redo` goes on with those who are "
                       "left), restored, or all its workers have ended and others begin",
                       job->spec.name, cairn_round_version(job->core).step, job->halts.lost.text,
                       job->spec.name);
}

/* ---- skips ---- */

struct cairn_results cairn_cluster_halts_gradients(const struct cairn_cluster_job *job,
                                                   uint64_t round)
{
    struct cairn_results all = { 0 };
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].results.gradients_round == round)
            cairn_results_join(&all, &job->shards[i].results.gradients);
    }
    return all;
}

static void add_damage(const struct cairn_cluster_job *job, const struct cairn_results *damage,
                       const char *update, struct cairn_sentence *out)
{
    char tensors[CAIRN_RESULTS_BYTES];
    cairn_results_list(damage, &job->spec, tensors);
    cairn_sentence_add(out,
                       "of %" PRIu64
                       " elements a result of the %s is not finite: %s; no round opens until the "
                       "job is restored from a snapshot, or these planes are written",
                       damage->nonfinite, update, tensors);
}

/* Says why rounds were skipped, and how that ends: no amendment mends what is damaged already. */
static void add_cause(const struct cairn_cluster_job *job, struct cairn_sentence *out)
{
    const struct cairn_results damage = cairn_cluster_halts_damage(job);
    if (damage.nonfinite > 0) {
        cairn_sentence_add(out, "; ");
        add_damage(job, &damage, "last update", out);
        return;
    }
    const struct cairn_results gradients = cairn_cluster_halts_gradients(
        job, cairn_round_last(job->core)->round);
    struct cairn_sentence of_last;
    cairn_results_gradient(&gradients, &job->spec, &of_last);
    if (gradients.nonfinite > 0) cairn_sentence_add(out, "; in the last one %s", of_last.text);
    cairn_sentence_add(
        out, "; no round opens until it is amended (a lower lr, say), or restored from a snapshot");
}

void cairn_cluster_halts_why(const struct cairn_cluster_job *job, struct cairn_sentence *out)
{
    if (cairn_round_halted_of_results(job->core)) {
        const struct cairn_results damage = join_results(job);
        cairn_sentence_set(out, "job %s is halted at step %" PRIu64 ": ", job->spec.name,
                           cairn_round_version(job->core).step);
        add_damage(job, &damage, "update", out);
        return;
    }
    if (cairn_round_halted_of_loss(job->core)) {
        say_halted_of_loss(job, out);
        return;
    }
    cairn_sentence_set(out,
                       "job %s is halted at step %" PRIu64 ": %" PRIu32
                       " rounds in a row were skipped, because gradients were not finite, and the "
                       "loss scale is at its least (skips_max is %" PRIu32 ")",
                       job->spec.name, cairn_round_version(job->core).step,
                       cairn_round_skips(job->core).in_row, job->spec.skips_max);
    add_cause(job, out);
}

void cairn_cluster_halts_skipped(struct cairn_cluster_job *job, const struct cairn_decision *skip)
{
    struct cairn_payload head;
    struct cairn_sentence text;
    const cairn_status status = cairn_payload_decode(skip->payload, skip->payload_bytes, &head);
    if (status != CAIRN_OK || head.finite || head.skips.in_row == 0) return;
    if (cairn_round_halted(job->core)) {
        cairn_cluster_halts_why(job, &text);
        say_halted(job, &text);
        return;
    }
    const struct cairn_results gradients = cairn_cluster_halts_gradients(job, skip->round);
    cairn_results_gradient(&gradients, &job->spec, &text);
    cairn_log_limited(&job->halts.skips_limit, CAIRN_LOG_WARN,
                      "job %s: round %" PRIu64 " of step %" PRIu64
                      " is skipped, because %s: %" PRIu32 " in a row, %" PRIu64 " so far",
                      job->spec.name, skip->round, skip->version_after.step, text.text,
                      head.skips.in_row, head.skips.all);
}
