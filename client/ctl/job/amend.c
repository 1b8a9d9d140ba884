/* cairn job amend: what may change about a job while it trains. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "proto/spec/capability.h"
#include "proto/spec/schedule.h"

static cairn_status show(struct ctl *ctl, ProtobufCMessage **reply_out)
{
    Cairn__JobShow message = CAIRN__JOB_SHOW__INIT;
    message.name = ctl->argv[0];
    return cairn_ctl_call(ctl, CAIRN_MSG_JOB_SHOW, &message.base, CAIRN_MSG_JOB_STATUS, reply_out);
}

/* The groups as they are, but for their lr. -1: go on. */
static int fill_groups(const struct ctl *ctl, const Cairn__JobStatus *job, Cairn__JobAmend *amend)
{
    for (size_t i = 0; i < job->n_groups; i++) {
        Cairn__GroupSpec *group = job->groups[i];
        if (ctl->group != NULL && strcmp(group->name, ctl->group) != 0) continue;
        if (group->schedule == CAIRN_SCHEDULE_DRIVEN)
            return cairn_ctl_fail(CAIRN_ERR_UNSUPPORTED,
                                  "group %s is driven: its lr is the trainer's, and comes with "
                                  "each commit; name another with --group",
                                  group->name);
        group->lr = ctl->lr;
        amend->groups[amend->n_groups++] = group;
    }
    if (amend->n_groups > 0) return -1;
    return cairn_ctl_fail(CAIRN_ERR_NOT_FOUND,
                          "job %s has no group %s; `cairn job show %s` has them", job->name,
                          ctl->group != NULL ? ctl->group : "at all", job->name);
}

/* More workers than are attached: the job does what was asked, and the operator may not see that it waits. */
static void say_who_lacks(struct ctl *ctl)
{
    ProtobufCMessage *reply;
    if (show(ctl, &reply) != CAIRN_OK) return;
    const Cairn__JobStatus *job = (const Cairn__JobStatus *)reply;
    if (job->workers > 0 && job->workers < job->workers_min)
        cairn_ctl_line("waits", "for %u more: a round opens with %u workers, attached: %u",
                       job->workers_min - job->workers, job->workers_min, job->workers);
    cairn_message_free(reply);
}

static int print(struct ctl *ctl, uint64_t revision)
{
    if (ctl->json)
        return cairn_ctl_print_json(
            json_pack("{s:s, s:I}", "job", ctl->argv[0], "revision", (json_int_t)revision));
    if (ctl->quiet) {
        printf("%llu\n", (unsigned long long)revision);
    } else {
        cairn_ctl_line("amended", "%s", ctl->argv[0]);
        cairn_ctl_line("revision", "%llu", (unsigned long long)revision);
        if (ctl->workers_max > 0) say_who_lacks(ctl);
    }
    return 0;
}

cairn_status cairn_ctl_amend(struct ctl *ctl, Cairn__JobAmend *amend, uint64_t *revision_out)
{
    ProtobufCMessage *reply;
    randombytes_buf(&amend->key, sizeof amend->key);
    amend->key |= 1; // not 0
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_JOB_AMEND, &amend->base,
                                               CAIRN_MSG_JOB_AMENDED, &reply);
    if (called != CAIRN_OK) return called;
    *revision_out = ((const Cairn__JobAmended *)reply)->revision;
    cairn_message_free(reply);
    return CAIRN_OK;
}

static int send(struct ctl *ctl, Cairn__JobAmend *amend)
{
    uint64_t revision;
    const cairn_status called = cairn_ctl_amend(ctl, amend, &revision);
    return called == CAIRN_OK ? print(ctl, revision) : cairn_status_exit((int)called);
}

static bool changes_snapshots(const struct ctl_rules *given)
{
    return given->has_every || given->has_keep_last;
}

static bool changes_rules(const struct ctl_rules *given)
{
    return given->has_every || given->has_keep_every || given->has_keep_within ||
           given->has_max_bytes || given->staging != NULL || given->has_durable_within ||
           given->has_fallback || given->has_scrub_every;
}

static bool changes_policy(const struct ctl *ctl)
{
    return changes_snapshots(&ctl->rules) || changes_rules(&ctl->rules) ||
           ctl->on_shard_loss != NULL || ctl->shard_loss_wait_s > 0 ||
           ctl->on_worker_loss != NULL || ctl->worker_loss_wait_s > 0;
}

/* Options that are not given leave their field as it is; if periodic snapshots end, their rules are
 * cleared, too. */
static void fill_snapshots(const struct ctl *ctl, const Cairn__JobSpec *now, Cairn__JobAmend *amend)
{
    const struct ctl_rules *given = &ctl->rules;
    const bool ends = given->has_every && given->every == 0 && given->every_s == 0;
    amend->set_snapshots = changes_snapshots(given);
    amend->snapshot_every = given->has_every ? given->every : now->snapshot_every;
    amend->snapshot_keep = given->has_keep_last ? given->keep_last : ends ? 0 : now->snapshot_keep;
    amend->set_snapshot_rules = changes_rules(given);
    amend->snapshot_every_s = given->has_every ? given->every_s : now->snapshot_every_s;
    amend->snapshot_keep_every = given->has_keep_every ? given->keep_every
                                 : ends                ? 0
                                                       : now->snapshot_keep_every;
    amend->snapshot_keep_within_s = given->has_keep_within ? given->keep_within_s
                                    : ends                 ? 0
                                                           : now->snapshot_keep_within_s;
    amend->snapshot_max_bytes = given->has_max_bytes ? given->max_bytes
                                : ends               ? 0
                                                     : now->snapshot_max_bytes;
    amend->snapshot_durable_within_s = given->has_durable_within ? given->durable_within_s
                                                                 : now->snapshot_durable_within_s;
    amend->snapshot_fallback = given->has_fallback ? given->fallback : now->snapshot_fallback;
    amend->snapshot_scrub_every_s = given->has_scrub_every ? given->scrub_every_s
                                                           : now->snapshot_scrub_every_s;
}

/* -1: go on. */
static int fill_staging(const struct ctl *ctl, const Cairn__JobSpec *now, Cairn__JobAmend *amend)
{
    const char *asked = ctl->rules.staging;
    const int value = asked != NULL ? cairn_capability_value(CAIRN_CAPABILITY_STAGING, asked)
                                    : (int)now->snapshot_staging;
    if (value < 0)
        return cairn_ctl_fail(CAIRN_ERR_INVALID,
                              "--snapshot-staging %s: state and small are allowed", asked);
    amend->snapshot_staging = (uint32_t)value;
    return -1;
}

/* As above. -1: go on. */
static int fill_shard_loss(const struct ctl *ctl, const Cairn__JobSpec *now, Cairn__JobAmend *amend)
{
    amend->set_shard_loss = ctl->on_shard_loss != NULL || ctl->shard_loss_wait_s > 0;
    const int asked = ctl->on_shard_loss == NULL
                          ? (int)now->on_shard_loss
                          : cairn_capability_value(CAIRN_CAPABILITY_SHARD_LOSS, ctl->on_shard_loss);
    if (asked < 0)
        return cairn_ctl_fail(CAIRN_ERR_INVALID,
                              "--on-shard-loss %s: wait and restore-latest are allowed",
                              ctl->on_shard_loss);
    amend->on_shard_loss = (uint32_t)asked;
    if (ctl->shard_loss_wait_s > 0)
        amend->shard_loss_wait_s = ctl->shard_loss_wait_s;
    else if (amend->on_shard_loss != CAIRN_SHARD_LOSS_WAIT)
        amend->shard_loss_wait_s = now->shard_loss_wait_s;
    return -1;
}

static int fill_worker_loss(const struct ctl *ctl, const Cairn__JobSpec *now,
                            Cairn__JobAmend *amend)
{
    amend->set_worker_loss = ctl->on_worker_loss != NULL || ctl->worker_loss_wait_s > 0;
    const int asked = ctl->on_worker_loss == NULL
                          ? (int)now->on_worker_loss
                          : cairn_capability_value(CAIRN_CAPABILITY_WORKER_LOSS,
                                                   ctl->on_worker_loss);
    if (asked < 0)
        return cairn_ctl_fail(CAIRN_ERR_INVALID,
                              "--on-worker-loss %s: redo, wait and fail are allowed",
                              ctl->on_worker_loss);
    amend->on_worker_loss = (uint32_t)asked;
    if (ctl->worker_loss_wait_s > 0)
        amend->worker_loss_wait_s = ctl->worker_loss_wait_s;
    else if (amend->on_worker_loss == CAIRN_WORKER_LOSS_WAIT)
        amend->worker_loss_wait_s = now->worker_loss_wait_s;
    return -1;
}

/* Fills the amendment from the job as it is now; its revision makes the coordinator refuse it if
 * somebody has amended the job since. -1: go on. */
static int fill(const struct ctl *ctl, const Cairn__JobStatus *job, Cairn__JobAmend *amend)
{
    if (job->spec == NULL)
        return cairn_ctl_fail(CAIRN_ERR_PROTOCOL, "the coordinator does not say what job %s is",
                              job->name);
    amend->revision = job->spec->revision;
    if (ctl->has_lr) {
        const int done = fill_groups(ctl, job, amend);
        if (done >= 0) return done;
    }
    fill_snapshots(ctl, job->spec, amend);
    int done = fill_staging(ctl, job->spec, amend);
    if (done < 0) done = fill_shard_loss(ctl, job->spec, amend);
    return done >= 0 ? done : fill_worker_loss(ctl, job->spec, amend);
}

static int amend_as_shown(struct ctl *ctl, Cairn__JobAmend *amend)
{
    ProtobufCMessage *reply;
    const cairn_status called = show(ctl, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__JobStatus *job = (const Cairn__JobStatus *)reply;
    Cairn__GroupSpec **groups = calloc(job->n_groups + 1, sizeof(Cairn__GroupSpec *));
    amend->groups = groups;
    int done = groups != NULL ? fill(ctl, job, amend)
                              : cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    if (done < 0) done = send(ctl, amend);
    free(groups);
    cairn_message_free(reply);
    return done;
}

int cairn_ctl_job_amend(struct ctl *ctl)
{
    Cairn__JobAmend amend = CAIRN__JOB_AMEND__INIT;
    const bool as_shown = ctl->has_lr || changes_policy(ctl);
    if (!as_shown && !ctl->has_clip_norm && ctl->workers_max == 0 && ctl->set.count == 0)
        return cairn_ctl_usage_fail(ctl, "it changes nothing: give what is to be another");
    if (ctl->group != NULL && !ctl->has_lr)
        return cairn_ctl_usage_fail(ctl, "--group is of --lr, which is not given");
    amend.name = ctl->argv[0];
    amend.workers_min = ctl->workers_min;
    amend.workers_max = ctl->workers_max;
    amend.set_clip_norm = ctl->has_clip_norm;
    amend.clip_norm = ctl->clip_norm;
    amend.settings = ctl->set.list;
    amend.n_settings = ctl->set.count;
    return as_shown ? amend_as_shown(ctl, &amend) : send(ctl, &amend);
}
