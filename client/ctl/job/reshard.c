/* cairn reshard plan | apply | status | cancel, cairn member drain */
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

#define DRAIN_TIMEOUT_MS 600000

/* The lists lie here, since a message only points at them. */
struct question {
    Cairn__ReshardAsk ask;
    Cairn__ShardWeight weights[CTL_NAMES_MAX], *weight_list[CTL_NAMES_MAX];
    char *add[CTL_NAMES_MAX], *drain[CTL_NAMES_MAX];
};

static void copy_names(const struct ctl_names *names, char **out)
{
    for (size_t i = 0; i < names->count; i++) out[i] = (char *)(uintptr_t)names->names[i];
}

/* -1: go on; else the exit status. */
static int name_jobs(const struct ctl *ctl, Cairn__ReshardAsk *ask, bool optional)
{
    if (ctl->argc == 1 && ctl->reshard.all)
        return cairn_ctl_usage_fail(ctl, "a job is named, and --all: give one of them");
    if (ctl->argc == 0 && !ctl->reshard.all && !optional)
        return cairn_ctl_usage_fail(ctl, "name a job, or give --all");
    ask->all = ctl->argc == 0;
    if (ctl->argc == 1) ask->job = ctl->argv[0];
    return -1;
}

static int fill(const struct ctl *ctl, struct question *q, uint32_t op)
{
    const struct ctl_reshard *r = &ctl->reshard;
    cairn__reshard_ask__init(&q->ask);
    q->ask.op = op;
    q->ask.shards = ctl->shards;
    q->ask.pause = r->pause;
    copy_names(&r->add, q->add);
    copy_names(&r->drain, q->drain);
    q->ask.add = q->add;
    q->ask.n_add = r->add.count;
    q->ask.drain = q->drain;
    q->ask.n_drain = r->drain.count;
    for (size_t i = 0; i < r->weight.count; i++) {
        cairn__shard_weight__init(&q->weights[i]);
        q->weights[i].name = (char *)(uintptr_t)r->weight.names[i];
        q->weights[i].weight = r->weight.weights[i];
        q->weight_list[i] = &q->weights[i];
    }
    q->ask.weights = q->weight_list;
    q->ask.n_weights = r->weight.count;
    return name_jobs(ctl, &q->ask, op == CAIRN_RESHARD_STATUS);
}

/* -1: go on. */
static int ask(struct ctl *ctl, const Cairn__ReshardAsk *message, ProtobufCMessage **told_out)
{
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_RESHARD_ASK, &message->base,
                                               CAIRN_MSG_RESHARD_TOLD, told_out);
    return called == CAIRN_OK ? -1 : cairn_status_exit((int)called);
}

static bool is_refused(const Cairn__ReshardJob *job)
{
    return strcmp(job->state, "refused") == 0;
}

static void print_plans(const struct ctl *ctl, const Cairn__ReshardTold *told)
{
    size_t printed = 0;
    for (size_t i = 0; i < told->n_jobs; i++) {
        if (is_refused(told->jobs[i])) continue;
        if (printed++ > 0) printf("\n");
        cairn_ctl_reshard_print(ctl, told->jobs[i]);
    }
}

/* The exit status, of the job that did worst: what failed is said by its text. */
static int say_ends(const Cairn__ReshardTold *told)
{
    int worst = 0;
    for (size_t i = 0; i < told->n_jobs; i++) {
        const Cairn__ReshardJob *job = told->jobs[i];
        if (strcmp(job->state, "canceled") == 0)
            worst = cairn_ctl_fail(CAIRN_ERR_CANCELED, "job %s: %s", job->name, job->text);
        else if (strcmp(job->state, "failed") == 0 || is_refused(job))
            worst = cairn_ctl_fail(CAIRN_ERR_REFUSED, "job %s: %s", job->name, job->text);
    }
    return worst;
}

/* Asks, and shows the answer, as JSON or by `print`, and what is wrong with it, by `judge`. */
static int tell(struct ctl *ctl, uint32_t op,
                void (*print)(const struct ctl *ctl, const Cairn__ReshardTold *told),
                int (*judge)(const Cairn__ReshardTold *told))
{
    struct question q;
    ProtobufCMessage *reply;
    int done = fill(ctl, &q, op);
    if (done < 0) done = ask(ctl, &q.ask, &reply);
    if (done >= 0) return done;
    const Cairn__ReshardTold *told = (const Cairn__ReshardTold *)reply;
    if (ctl->json)
        cairn_ctl_print_json(cairn_ctl_reshard_json(told));
    else
        print(ctl, told);
    done = judge == NULL ? 0 : judge(told);
    cairn_message_free(reply);
    return done;
}

static void print_canceled(const struct ctl *ctl, const Cairn__ReshardTold *told)
{
    for (size_t i = 0; i < told->n_jobs && !ctl->quiet; i++) {
        if (is_refused(told->jobs[i])) continue;
        cairn_ctl_line("canceled", "job %s, which ends after slice %u of %u; %s have moved",
                       told->jobs[i]->name, told->jobs[i]->slice, told->jobs[i]->slices,
                       cairn_ctl_bytes(told->jobs[i]->moved_bytes));
    }
}

/* Canceling for all jobs ends the re-shardings that are under way; it fails only if there is
 * none. */
static int judge_canceled(const Cairn__ReshardTold *told)
{
    size_t refused = 0;
    while (refused < told->n_jobs && is_refused(told->jobs[refused])) refused++;
    if (refused < told->n_jobs) return 0;
    return cairn_ctl_fail(CAIRN_ERR_NOT_FOUND,
                          "no re-sharding is under way: there is nothing to cancel");
}

int cairn_ctl_reshard_plan(struct ctl *ctl)
{
    return tell(ctl, CAIRN_RESHARD_PLAN, print_plans, say_ends);
}

int cairn_ctl_reshard_status(struct ctl *ctl)
{
    return tell(ctl, CAIRN_RESHARD_STATUS, cairn_ctl_reshard_list, NULL);
}

int cairn_ctl_reshard_cancel(struct ctl *ctl)
{
    return tell(ctl, CAIRN_RESHARD_CANCEL, print_canceled, judge_canceled);
}

/* ---- apply ---- */

/* A job for which it could not begin is shown as that, and not as what it was before. */
static void keep_refused(Cairn__ReshardTold *begun, Cairn__ReshardTold *ended)
{
    for (size_t b = 0; b < begun->n_jobs; b++)
        for (size_t e = 0; e < ended->n_jobs; e++) {
            Cairn__ReshardJob *refused = begun->jobs[b];
            if (!is_refused(refused) || strcmp(refused->name, ended->jobs[e]->name) != 0) continue;
            begun->jobs[b] = ended->jobs[e];
            ended->jobs[e] = refused;
            break;
        }
}

/* For a single job the plan is shown first; its hash then makes sure that this plan is applied, or
 * none. -1: go on. */
static int show_plan(struct ctl *ctl, struct question *q)
{
    ProtobufCMessage *reply;
    if (q->ask.all) return -1;
    q->ask.op = CAIRN_RESHARD_PLAN;
    const int done = ask(ctl, &q->ask, &reply);
    if (done >= 0) return done;
    const Cairn__ReshardTold *told = (const Cairn__ReshardTold *)reply;
    if (told->n_jobs == 1) q->ask.layout_hash = told->jobs[0]->layout_hash;
    if (!ctl->json && !ctl->quiet) {
        print_plans(ctl, told);
        printf("\n");
        fflush(stdout);
    }
    cairn_message_free(reply);
    q->ask.op = CAIRN_RESHARD_APPLY;
    return -1;
}

int cairn_ctl_reshard_apply(struct ctl *ctl)
{
    struct question q;
    ProtobufCMessage *begun, *ended;
    int done = fill(ctl, &q, CAIRN_RESHARD_APPLY);
    if (done < 0) done = show_plan(ctl, &q);
    if (done < 0) done = ask(ctl, &q.ask, &begun);
    if (done >= 0) return done;
    const char *which = q.ask.all ? "--all" : q.ask.job;
    cairn_ctl_on_interrupt(
        "\ncairn: it goes on: `cairn reshard status%s%s` says how far it is, `cairn reshard "
        "cancel %s` ends it after the slice that moves\n",
        q.ask.all ? "" : " ", q.ask.all ? "" : which, which);
    q.ask.op = CAIRN_RESHARD_STATUS;
    done = cairn_ctl_reshard_wait(ctl, &q.ask, &ended);
    if (done < 0) {
        Cairn__ReshardTold *told = (Cairn__ReshardTold *)ended;
        keep_refused((Cairn__ReshardTold *)begun, told);
        if (ctl->json)
            cairn_ctl_print_json(cairn_ctl_reshard_json(told));
        else if (!ctl->quiet)
            cairn_ctl_reshard_list(ctl, told);
        done = say_ends(told);
        cairn_message_free(ended);
    }
    cairn_message_free(begun);
    return done;
}

/* ---- a whole shard ---- */

int cairn_ctl_member_drain(struct ctl *ctl)
{
    Cairn__MemberDrain drain = CAIRN__MEMBER_DRAIN__INIT;
    ProtobufCMessage *reply;
    drain.name = ctl->argv[0];
    drain.wait = true;
    if (ctl->timeout_ms == 0) ctl->timeout_ms = DRAIN_TIMEOUT_MS;
    cairn_ctl_on_interrupt(
        "\ncairn: it goes on: `cairn reshard status` says how far it is, `cairn reshard "
        "cancel --all` ends it\n");
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_MEMBER_DRAIN, &drain.base,
                                               CAIRN_MSG_DONE, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    if (ctl->json)
        cairn_ctl_print_json(json_pack("{s:s}", "drained", drain.name));
    else if (!ctl->quiet)
        cairn_ctl_line("drained", "%s, which ends, and is known no more", drain.name);
    cairn_message_free(reply);
    return 0;
}
