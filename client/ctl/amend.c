/* cairn job amend: what may change about a job while it trains. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"
#include "proto/wire/schedule.h"

static cairn_status show(struct ctl *ctl, ProtobufCMessage **reply_out)
{
    Cairn__JobShow message = CAIRN__JOB_SHOW__INIT;
    message.name = ctl->argv[0];
    return cairn_ctl_call(ctl, CAIRN_MSG_JOB_SHOW, &message.base, CAIRN_MSG_JOB_STATUS, reply_out);
}

/* The groups as they are, but for their lr; nobody may have amended them since. -1: go on. */
static int fill_groups(const struct ctl *ctl, const Cairn__JobStatus *job, Cairn__JobAmend *amend)
{
    amend->revision = job->spec != NULL ? job->spec->revision : 0;
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

static int print(const struct ctl *ctl, uint64_t revision)
{
    if (ctl->json)
        return cairn_ctl_print_json(
            json_pack("{s:s, s:I}", "job", ctl->argv[0], "revision", (json_int_t)revision));
    if (ctl->quiet) {
        printf("%llu\n", (unsigned long long)revision);
    } else {
        cairn_ctl_line("amended", "%s", ctl->argv[0]);
        cairn_ctl_line("revision", "%llu", (unsigned long long)revision);
    }
    return 0;
}

static int send(struct ctl *ctl, Cairn__JobAmend *amend)
{
    ProtobufCMessage *reply;
    randombytes_buf(&amend->key, sizeof amend->key);
    amend->key |= 1; // not 0
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_JOB_AMEND, &amend->base,
                                               CAIRN_MSG_JOB_AMENDED, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const int done = print(ctl, ((const Cairn__JobAmended *)reply)->revision);
    cairn_message_free(reply);
    return done;
}

static int amend_groups(struct ctl *ctl, Cairn__JobAmend *amend)
{
    ProtobufCMessage *reply;
    const cairn_status called = show(ctl, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    const Cairn__JobStatus *job = (const Cairn__JobStatus *)reply;
    Cairn__GroupSpec **groups = calloc(job->n_groups + 1, sizeof(Cairn__GroupSpec *));
    amend->groups = groups;
    int done = groups != NULL ? fill_groups(ctl, job, amend)
                              : cairn_ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    if (done < 0) done = send(ctl, amend);
    free(groups);
    cairn_message_free(reply);
    return done;
}

int cairn_ctl_job_amend(struct ctl *ctl)
{
    Cairn__JobAmend amend = CAIRN__JOB_AMEND__INIT;
    if (!ctl->has_lr && !ctl->has_clip_norm && ctl->workers_max == 0)
        return cairn_ctl_usage_fail(ctl, "it changes nothing: --workers, --lr and --clip-norm do");
    if (ctl->group != NULL && !ctl->has_lr)
        return cairn_ctl_usage_fail(ctl, "--group is of --lr, which is not given");
    amend.name = ctl->argv[0];
    amend.workers_min = ctl->workers_min;
    amend.workers_max = ctl->workers_max;
    amend.set_clip_norm = ctl->has_clip_norm;
    amend.clip_norm = ctl->clip_norm;
    return ctl->has_lr ? amend_groups(ctl, &amend) : send(ctl, &amend);
}
