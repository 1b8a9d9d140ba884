/* cairn job list | show | amend; top and plan have separate files */
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "proto/spec/spec.h"

/* ==== list, show ==== */

/* The periodic snapshots that stay. */
#define KEPT_SNAPSHOTS                                                   \
    "[, the newest {snapshot_keep}]"                                     \
    "[, the first of every {snapshot_keep_every} steps]"                 \
    "[, those of the last {snapshot_keep_within_s/span}]"                \
    "[{!snapshot_keep,snapshot_keep_every,snapshot_keep_within_s}, all]" \
    " are kept[, at most {snapshot_max_bytes/bytes} of all]\n"

/* With global_batch, the number of micro-batches in a round counts those of all workers together. */
#define SPEC_PAGE                                                                                 \
    "*spec stage|{stage}: {stage/word}; [{?global_batch}{global_batch} "                          \
    "micro-batch{global_batch/es} a round, dealt to the workers that there are]"                  \
    "[{!global_batch}{micro_batches} micro-batch{micro_batches/es} a round]\n"                    \
    "*spec clip norm|{clip_norm/%g?}\n"                                                           \
    "*spec offload|{offload_fraction/%g?} of the state in host memory, where a shard has a GPU\n" \
    "*spec not finite|{on_nonfinite/word}\n"                                                      \
    "*spec snapshots|every {snapshot_every?} step{snapshot_every/plural}" KEPT_SNAPSHOTS          \
    "*spec snapshots|{!snapshot_every}every {snapshot_every_s/span?}" KEPT_SNAPSHOTS              \
    "*spec staging|{snapshot_staging/word}\n"                                                     \
    "*spec durable within|{snapshot_durable_within_s/span?}\n"                                    \
    "*spec scrubbed every|{snapshot_scrub_every_s/span?}\n"                                       \
    "*spec audited|every {audit_every?} step{audit_every/plural}\n"                               \
    "*spec keeps|the last {keep_versions?} version{keep_versions/plural}, to go back to\n"        \
    "*spec fallback|{?snapshot_fallback}a damaged snapshot: the newest good one before it\n"      \
    "*spec on shard loss|{on_shard_loss/word}[{?on_shard_loss}, when it is away for "             \
    "{shard_loss_wait_s} s or comes back empty]\n"                                                \
    "*spec on worker loss|{on_worker_loss/word}[, for {worker_wait} s at most]\n"                 \
    "*spec amended|{revision?} time{revision/plural}\n"

#define GROUPS_PAGE                                                                              \
    "*groups group|{name}: {optimizer} lr {lr/%g} betas {beta1/%g} {beta2/%g} eps {eps/%g} "     \
    "weight_decay {weight_decay/%g} momentum {momentum/%g}[{?nesterov} nesterov]"                \
    "[{?ema} ema {ema/%g}[{?ema_schedule} {ema_schedule/word}]]"                                 \
    "[{?frozen}, frozen][{?schedule,warmup_steps}{:}  {schedule/word}[ warm-up {warmup_steps}]"  \
    "[ total {total_steps}][ decay {decay_steps}][ {points/2%.0f} points][ to {lr_min/%g}]; lr " \
    "of the [{?schedule/word=driven}last][{!schedule/word=driven}next] round {lr_now/%g}]\n"

#define BYTES_PAGE                                                                          \
    "*bytes!untold   [{?of_worker}worker {rank}][{!of_worker}by way]|"                      \
    "pushed {pushed_shared/bytes} shared, {pushed_carried/bytes} carried; fetched "         \
    "{fetched_shared/bytes}, {fetched_carried/bytes}"                                       \
    "[{?pushed_one_sided,fetched_one_sided}{:}of the carried, read one-sidedly: pushed "    \
    "{pushed_one_sided/bytes}, fetched {fetched_one_sided/bytes}]"                          \
    "[{?pushed_direct,fetched_direct}{:}of the carried, right from a card: pushed "         \
    "{pushed_direct/bytes}, fetched {fetched_direct/bytes}]"                                \
    "[{?pushed_device,fetched_device}{:}of the shared, from and to a card, past the host: " \
    "pushed {pushed_device/bytes}, fetched {fetched_device/bytes}]"                         \
    "[{:}a step, of {steps?}: pushed {pushed_a_step/bytes}, fetched {fetched_a_step/bytes}]\n"

static int print_memory(struct ctl *ctl, const void *reply)
{
    const Cairn__JobStatus *j = reply;
    if (ctl->json || ctl_number(j, "untold") || j->n_memory == 0) return 0;
    printf("\n");
    ctl_job_memory_print(ctl, j->memory, j->n_memory);
    return 0;
}

#define JOB_PAGE                                                                                  \
    "job|{name}\n"                                                                                \
    "state|{state}\n"                                                                             \
    "owner|{owner?}[; shared with {shared}][; to be read by {shared_read}]\n"                     \
    "owner|{!owner}not known: the job is an admin's until one gives it to somebody (`cairn job "  \
    "chown`)\n"                                                                                   \
    "made|by {made_by?}, {made_unix_ms/instant}, from {made_from}\n"                              \
    "version|" CTL_VERSION "\n"                                                                   \
    "epoch, round|{epoch}, {round}\n"                                                             \
    "waits for|{awaited?}\n"                                                                      \
    "data path|cut: {path_cut?}\n"                                                                \
    "held up by|{?straggler}{straggler.text}\n" CTL_DAMAGED_LINE "\n"                             \
    "last round|skipped: {gradient?}\n"                                                           \
    "put out|{put_out?}\n"                                                                        \
    "last step|{?stepped}{stepped_ms_ago/1000%.1f} s ago\n"                                       \
    "no snapshot|{snapshot_failed?}\n"                                                            \
    "saving|{saving?}\n"                                                                          \
    "passed over|{passed_over?}\n"                                                                \
    "restored|{restores?} time{restores/plural} by itself since a step was applied\n"             \
    "workers|{workers} attached, at least {workers_min}[, at most {workers_max}]"                 \
    "[{?spec.global_batch}{?workers>spec.global_batch}; {workers-spec.global_batch} without "     \
    "a micro-batch idle]\n"                                                                       \
    "shards|{shards}[, heaviest/mean {heaviest_over_mean/%.3f}], layout {layout_hash}\n"          \
    "pieces|{pieces} of its tensors on shards, in {extents?} extents\n"                           \
    "tensors|{tensors}, {elems} elements, memory: "                                               \
    "[{!untold}{state_bytes/bytes}][{?untold}unknown]\n"                                          \
    "|{blobs?} of them blobs, {blob_bytes} bytes\n"                                               \
    "durability|{!untold}{durability}[{?spec.durability}; {spec.durability/word} is asked for]"   \
    "[; {parts_kept} of {shards} shard{shards/plural} may crash or be exchanged, and lose "       \
    "nothing]"                                                                                    \
    "[{?durability=none}; a shard whose process ends loses its part]\n"                           \
    "degraded|{unsafe?}\n"                                                                        \
    "going back|{going_back?}\n"                                                                  \
    "audits|all of the state was compared since step {audited_since?}\n"                          \
    "peer|{mirrors?}\n" SPEC_PAGE GROUPS_PAGE                                                     \
    "frozen tensors|{frozen_tensors?}[{:}and {frozen_tensor_count-frozen_tensors} more]\n"        \
    "reduce groups|{?spec.reduce_groups}{?reduce_group_count}{reduce_group_count} "               \
    "({groups_of_round})\n"                                                                       \
    "reduce groups|{?spec.reduce_groups}{!reduce_group_count}none[: {reduce_groups_off}]"         \
    "[{!reduce_groups_off} yet]\n"                                                                \
    "loss scale|{!version_unknown}{loss_scale/%g}, [{!spec.loss_scale_policy/word=dynamic}fixed]" \
    "[{?spec.loss_scale_policy/word=dynamic}dynamic from {spec.loss_scale_min/%g} to "            \
    "{spec.loss_scale_max/%g}, "                                                                  \
    "doubled after {spec.loss_scale_growth_steps} rounds]\n"                                      \
    "client state|{!version_unknown}{?spec.client_state_max}{client_state_bytes} bytes, at "      \
    "most {spec.client_state_max}\n"                                                              \
    "*leases lease|generation {generation}, step {step}: {role/role} {holder}, "                  \
    "{left_ms/1000%.1f} s left\n"                                                                 \
    "gradient norm|{!version_unknown}{last_grad_norm/%g}\n"                                       \
    "pushed, fetched|[{!untold}{pushed_bytes/bytes}, {fetched_bytes/bytes}]"                      \
    "[{?untold}unknown, unknown]\n" BYTES_PAGE                                                    \
    "rounds|{steps_applied} applied, {rounds_skipped} skipped, {rounds_abandoned} abandoned "     \
    "since the coordinator started\n"                                                             \
    "skipped|{skips?} in all; the next batch is number {step+skips}\n"                            \
    "|{?spec}{?skips_in_row}{skips_in_row} in a row with the loss scale at its least, at most "   \
    "{spec.skips_max}"

const struct ctl_question ctl_job_show = { CTL_ASKS(JOB_SHOW, job_show, JOB_STATUS),
                                           .fill = "name=@0", .page = JOB_PAGE,
                                           .after = print_memory };

/* ==== amend ==== */

/* cairn job amend: changes a job's settings while it trains. */

static cairn_status ask_job(struct ctl *ctl, ProtobufCMessage **reply_out)
{
    Cairn__JobShow message = CAIRN__JOB_SHOW__INIT;
    message.name = ctl->argv[0];
    return ctl_call(ctl, CAIRN_MSG_JOB_SHOW, &message.base, CAIRN_MSG_JOB_STATUS, reply_out);
}

/* Copies the groups and changes only their lr. -1: continue. */
static int fill_groups(const struct ctl *ctl, const Cairn__JobStatus *job, Cairn__JobAmend *amend)
{
    for (size_t i = 0; i < job->n_groups; i++) {
        Cairn__GroupSpec *group = job->groups[i];
        if (ctl->terms.group != NULL && strcmp(group->name, ctl->terms.group) != 0) continue;
        if (group->schedule == CAIRN_SCHEDULE_DRIVEN)
            return ctl_fail(CAIRN_ERR_UNSUPPORTED,
                            "group %s is driven: the trainer sets its lr with each commit; name "
                            "another group with --group",
                            group->name);
        group->lr = ctl->terms.lr;
        amend->groups[amend->n_groups++] = group;
    }
    if (amend->n_groups > 0) return -1;
    return ctl_fail(CAIRN_ERR_NOT_FOUND, "job %s has no group %s; `cairn job show %s` has them",
                    job->name, ctl->terms.group != NULL ? ctl->terms.group : "at all", job->name);
}

/* Warns if fewer workers are attached than required: the job was amended, but the operator may not notice
 * that the job waits. */
static int say_who_lacks(struct ctl *ctl, const void *amended)
{
    ProtobufCMessage *reply;
    (void)amended;
    if (ctl->json || ctl->quiet || ctl->terms.workers_max == 0) return 0;
    if (ask_job(ctl, &reply) != CAIRN_OK) return 0;
    const Cairn__JobStatus *job = (const Cairn__JobStatus *)reply;
    if (job->workers > 0 && job->workers < job->workers_min)
        ctl_line("waits", "for %u more: a round opens with %u workers, attached: %u",
                 job->workers_min - job->workers, job->workers_min, job->workers);
    message_free(reply);
    return 0;
}

/* Returns true if the last setting of the field `key` has this value. */
static bool gives(const struct ctl *ctl, const char *key, const char *value)
{
    for (size_t i = ctl->terms.set.count; i-- > 0;)
        if (strcmp(ctl->terms.set.list[i]->key, key) == 0)
            return strcmp(ctl->terms.set.list[i]->value, value) == 0;
    return false;
}

/* Puts the fields' defaults before all other settings, so that the given values take precedence. -1:
 * continue. */
static int reset(struct ctl *ctl, const char *names)
{
    struct ctl_settings *settings = &ctl->terms.set;
    struct job_spec_data plain; // owns nothing
    char words[96], *rest = words;
    spec_init(&plain);
    snprintf(words, sizeof words, "%s", names);
    for (char *name; (name = strsep(&rest, " ")) != NULL;) {
        const int done = ctl_set_field(ctl, "set", name, &plain);
        if (done >= 0) return done;
        Cairn__Setting *last = settings->list[settings->count - 1];
        memmove(&settings->list[1], &settings->list[0], (settings->count - 1) * sizeof last);
        settings->list[0] = last;
    }
    return -1;
}

/* Resets the fields that have no effect any more if the values of the options apply. -1: continue. */
static int reset_unused(struct ctl *ctl)
{
    int done = -1;
    if (ctl_is_given(ctl, "snapshot-every") && gives(ctl, "snapshot_every", "0") &&
        gives(ctl, "snapshot_every_s", "0"))
        done = reset(ctl, "snapshot_keep snapshot_keep_every snapshot_keep_within_s "
                          "snapshot_max_bytes");
    if (done < 0 && ctl_is_given(ctl, "on-shard-loss") && gives(ctl, "on_shard_loss", "wait"))
        done = reset(ctl, "shard_loss_wait_s");
    if (done < 0 && ctl_is_given(ctl, "on-worker-loss") && !gives(ctl, "on_worker_loss", "wait"))
        done = reset(ctl, "worker_loss_wait_s");
    return done;
}

/* Fills the amendment of learning rates from the job's current groups. The job's revision makes the
 * coordinator refuse the amendment if the job was amended in the meantime. */
static int fill_rates(struct ctl *ctl, Cairn__JobAmend *amend)
{
    static ProtobufCMessage *reply; // the request points into it until the command ends
    const cairn_status called = ask_job(ctl, &reply);
    if (called != CAIRN_OK) return status_exit((int)called);
    const Cairn__JobStatus *job = (const Cairn__JobStatus *)reply;
    if (job->spec == NULL)
        return ctl_fail(CAIRN_ERR_PROTOCOL, "the coordinator does not say what job %s is",
                        job->name);
    amend->groups = job->groups; // those that change move to its front
    amend->revision = job->spec->revision;
    return fill_groups(ctl, job, amend);
}

static int fill_amend(struct ctl *ctl, void *request)
{
    Cairn__JobAmend *amend = request;
    struct job_spec_data bounds; // owns nothing
    const bool has_lr = ctl_is_given(ctl, "lr");
    spec_init(&bounds);
    bounds.workers_min = ctl->terms.workers_min;
    bounds.workers_max = ctl->terms.workers_max;
    if (!has_lr && ctl->terms.workers_max == 0 && ctl->terms.set.count == 0)
        return ctl_usage_fail(ctl, "nothing would change: give an option to amend");
    if (ctl->terms.group != NULL && !has_lr)
        return ctl_usage_fail(ctl, "--group goes with --lr: give that, too");
    int done = reset_unused(ctl);
    if (done < 0 && ctl->terms.workers_max > 0) {
        done = ctl_set_field(ctl, "set", "workers_min", &bounds);
        if (done < 0) done = ctl_set_field(ctl, "set", "workers_max", &bounds);
    }
    if (done >= 0) return done;
    randombytes_buf(&amend->key, sizeof amend->key);
    amend->key |= 1; // never 0
    amend->settings = ctl->terms.set.list;
    amend->n_settings = ctl->terms.set.count;
    return has_lr ? fill_rates(ctl, amend) : -1;
}

const struct ctl_question ctl_job_amend = { CTL_ASKS(JOB_AMEND, job_amend, JOB_AMENDED),
                                            .fill = "name=@0",
                                            .fill_by = fill_amend,
                                            .quiet = "{revision}",
                                            .page = "amended|{@0}\n"
                                                    "revision|{revision}",
                                            .fields = "job=@0 revision",
                                            .after = say_who_lacks };

/* ==== durability ==== */

/* cairn job durability: an amendment of that field alone, which says what the job has then. */

static int fill_durability(struct ctl *ctl, void *request)
{
    Cairn__JobAmend *amend = request;
    struct job_spec_data spec; // owns nothing
    const int tier = capability_value(CAIRN_CAPABILITY_DURABILITY, ctl->argv[1]);
    spec_init(&spec);
    if (tier < 0)
        return ctl_usage_fail(ctl,
                              "there is no durability \"%s\": default, process, peer, log and "
                              "log+peer are allowed",
                              ctl->argv[1]);
    spec.policy.durability = (cairn_durability)tier;
    const int done = ctl_set_field(ctl, "TIER", "durability", &spec);
    if (done >= 0) return done;
    randombytes_buf(&amend->key, sizeof amend->key);
    amend->key |= 1; // never 0
    amend->settings = ctl->terms.set.list;
    amend->n_settings = ctl->terms.set.count;
    return -1;
}

static int say_durability(struct ctl *ctl, const void *amended)
{
    ProtobufCMessage *reply;
    (void)amended;
    if (ctl->json || ctl->quiet || ask_job(ctl, &reply) != CAIRN_OK) return 0;
    ctl_show(ctl, reply, "has|{durability}\ndegraded|{unsafe?}", NULL);
    message_free(reply);
    return 0;
}

const struct ctl_question ctl_job_durability = { CTL_ASKS(JOB_AMEND, job_amend, JOB_AMENDED),
                                                 .fill = "name=@0",
                                                 .fill_by = fill_durability,
                                                 .quiet = "{revision}",
                                                 .page = "job|{@0}\n"
                                                         "durability|{@1}\n"
                                                         "revision|{revision}",
                                                 .fields = "job=@0 durability=@1 revision",
                                                 .after = say_durability };

/* ==== rollback ==== */

/* cairn job rollback: takes a job back to a former version, or lists those that there are. */

static int fill_rollback(struct ctl *ctl, void *request)
{
    Cairn__JobRollback *message = request;
    char what[96];
    message->lists = !ctl_is_given(ctl, "to-version");
    message->generation = ctl->restore.back_to.generation;
    message->step = ctl->restore.back_to.step;
    if (message->lists) return -1;
    snprintf(what, sizeof what, "What the job has trained since step %" PRIu64, message->step);
    return ctl_confirm(ctl, what, message->name);
}

const struct ctl_question ctl_job_rollback = {
    CTL_ASKS(JOB_ROLLBACK, job_rollback, JOB_ROLLED_BACK),
    .fill = "name=@0",
    .fill_by = fill_rollback,
    .timeout_ms = CTL_SNAPSHOT_TIMEOUT_MS,
    .page =
        "[{?@to-version}taken back][{!@to-version}job]|{name}\n"
        "[{?@to-version}goes on from][{!@to-version}is at]|generation {generation}, step {step}\n"
        "keeps|{!@to-version}the last {keep_versions?} version{keep_versions/plural}\n"
        "keeps|{!@to-version}{!keep_versions}{!by_log}no former version: `cairn job amend {name} "
        "--keep-versions K`\n"
        "by its log|{?by_log}can go back to each step from {by_log.from_step} to {by_log.to_step} "
        "of generation {by_log.generation}\n"
        "*former can go back to|generation {generation}, step {step}\n"
        "note|{note?}",
    .quiet = "*former {generation}:{step}",
};
