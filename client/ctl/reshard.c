/* cairn reshard plan | apply | status | cancel */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

/* All of a re-sharding: the moves from shard to shard, and the expected or measured times. The number of
 * pieces in a fresh layout is known only if the plan was compared with a fresh layout. A plan that must
 * move only the minimum is not compared with a fresh layout. */
#define RESHARD_PAGE                                                                       \
    "job|{name}\n"                                                                         \
    "state|{state}[: {text}]\n"                                                            \
    "shards|{shards_before}, then {shards_after}\n"                                        \
    "moves|{all_bytes/bytes} in {slices} slice{slices/plural}; the least that levels the " \
    "shards is {least_bytes/bytes}\n"                                                      \
    "|{all_bytes-least_bytes/bytes?} more than the least, since {?afresh}{afresh} "        \
    "tensor{afresh/plural} "                                                               \
    "would lie in too many pieces\n"                                                       \
    "moved|{moved_bytes/bytes?}\n"                                                         \
    "heaviest shard|{heaviest_before/%.2f} of the mean, then {heaviest_after/%.2f}\n"      \
    "pieces|{pieces_before} of its tensors on shards, then {pieces_after?}[; a fresh "     \
    "layout has {pieces_fresh}]\n"                                                         \
    "expected|{expected_s/%.1f?} s\n"                                                      \
    "longest step|{expected_pause_s/%.3f?} s longer (expected)\n"                          \
    "took|{elapsed_ms/1000%.1f?} s\n"                                                      \
    "longest step|{worst_step/longer%.1f?} % longer than the median before\n"              \
    "{?pairs}\n"                                                                           \
    "#pairs?"

/* ==== reshard wait ==== */

/* Waits for a re-sharding. On a terminal a bar shows the progress; without a terminal each tenth of the
 * work gets a line. */

enum { ASK_EVERY_MS = 200, BAR = 30, AWAY_MAX = 300 /* tries: a minute */ };

struct progress {
    bool is_terminal, is_drawn;
    unsigned tenths; /* the tenths that are already printed */
};

/* The totals of all jobs. */
struct sum {
    uint64_t moved, all, elapsed_ms;
    uint32_t moving;
    const Cairn__ReshardJob *one; /* a job that is moving */
};

static struct sum sum_of(const Cairn__ReshardTold *told)
{
    struct sum sum = { 0 };
    for (size_t i = 0; i < told->n_jobs; i++) {
        const Cairn__ReshardJob *job = told->jobs[i];
        sum.moved += job->moved_bytes;
        sum.all += job->all_bytes;
        if (job->elapsed_ms > sum.elapsed_ms) sum.elapsed_ms = job->elapsed_ms;
        if (strcmp(job->state, "moving") != 0) continue;
        sum.moving++;
        sum.one = job;
    }
    return sum;
}

static void draw_bar(struct progress *p, const struct sum *sum, double part)
{
    char bar[BAR + 1];
    const int full = (int)(part * BAR);
    for (int i = 0; i < BAR; i++) bar[i] = i < full ? '#' : '.';
    bar[BAR] = '\0';
    fprintf(stderr, "\r\033[K[%s] %3.0f %%  %s of %s, slice %u of %u, %.0f s", bar, part * 100,
            ctl_bytes(sum->moved), ctl_bytes(sum->all), sum->one->slice, sum->one->slices,
            (double)sum->elapsed_ms / 1e3);
    fflush(stderr);
    p->is_drawn = true;
}

static void show_progress(struct progress *p, const struct sum *sum)
{
    const double part = sum->all > 0 && sum->moved < sum->all
                            ? (double)sum->moved / (double)sum->all
                            : 1;
    if (sum->one == NULL) return;
    if (p->is_terminal) {
        draw_bar(p, sum, part);
        return;
    }
    const unsigned tenths = (unsigned)(part * 10);
    if (tenths <= p->tenths) return;
    p->tenths = tenths;
    fprintf(stderr, "cairn: %.0f %%: %s of %s, slice %u of %u\n", part * 100, ctl_bytes(sum->moved),
            ctl_bytes(sum->all), sum->one->slice, sum->one->slices);
}

/* Asks again if the coordinator was reached before and is unreachable now, as during a restart. -1:
 * continue. */
static int ask_again(struct ctl *ctl, const Cairn__ReshardAsk *ask, ProtobufCMessage **told_out)
{
    for (int tries = 0;; tries++) {
        ctl->call.tries_again = tries < AWAY_MAX;
        const cairn_status called = ctl_call(ctl, CAIRN_MSG_RESHARD_ASK, &ask->base,
                                             CAIRN_MSG_RESHARD_TOLD, told_out);
        if (called == CAIRN_OK) return -1;
        if (called != CAIRN_ERR_UNREACHABLE || !ctl->call.tries_again)
            return status_exit((int)called);
        poll(NULL, 0, ASK_EVERY_MS);
    }
}

/* Polls until no job is moving, and shows the progress on stderr. *told_out, which the caller
 * frees, has the final states. -1: continue; else the exit status. */
static int reshard_wait(struct ctl *ctl, const Cairn__ReshardAsk *ask, ProtobufCMessage **told_out)
{
    struct progress progress = { .is_terminal = isatty(STDERR_FILENO) == 1 };
    for (;;) {
        const int done = ask_again(ctl, ask, told_out);
        if (done >= 0) return done;
        const struct sum sum = sum_of((const Cairn__ReshardTold *)*told_out);
        if (!ctl->quiet) show_progress(&progress, &sum);
        if (sum.moving == 0) break;
        message_free(*told_out);
        poll(NULL, 0, ASK_EVERY_MS);
    }
    if (progress.is_drawn) fprintf(stderr, "\r\033[K");
    return -1;
}

/* ==== reshard ==== */

/* The lists of a request, which only points to them. */
static struct lists {
    Cairn__ShardWeight weights[CTL_NAMES_MAX], *weight_list[CTL_NAMES_MAX];
    char *add[CTL_NAMES_MAX], *drain[CTL_NAMES_MAX];
} lists;

static void copy_names(const struct ctl_names *names, char **out)
{
    for (size_t i = 0; i < names->count; i++) out[i] = wire_text(names->names[i]);
}

/* Returns -1 to continue, else the exit status. */
static int name_jobs(const struct ctl *ctl, Cairn__ReshardAsk *ask, bool optional)
{
    if (ctl->argc == 1 && ctl_is_given(ctl, "all"))
        return ctl_usage_fail(ctl, "give a job or --all, not both");
    if (ctl->argc == 0 && !ctl_is_given(ctl, "all") && !optional)
        return ctl_usage_fail(ctl, "name a job, or give --all");
    ask->all = ctl->argc == 0;
    if (ctl->argc == 1) ask->job = ctl->argv[0];
    return -1;
}

/* Fills in the request of the command, which is called as one of these. -1: continue. */
static int fill_ask(struct ctl *ctl, void *request)
{
    static const char *const ops[] = { [CAIRN_RESHARD_PLAN] = "plan",
                                       [CAIRN_RESHARD_APPLY] = "apply",
                                       [CAIRN_RESHARD_STATUS] = "status",
                                       [CAIRN_RESHARD_CANCEL] = "cancel" };
    Cairn__ReshardAsk *ask = request;
    const struct ctl_reshard *r = &ctl->reshard;
    while (strcmp(ops[ask->op], ctl->row->verb) != 0) ask->op++;
    ask->shards = ctl->shards;
    ask->pause = r->pause;
    copy_names(&r->add, lists.add);
    copy_names(&r->drain, lists.drain);
    ask->add = lists.add;
    ask->n_add = r->add.count;
    ask->drain = lists.drain;
    ask->n_drain = r->drain.count;
    for (size_t i = 0; i < r->weight.count; i++) {
        cairn__shard_weight__init(&lists.weights[i]);
        lists.weights[i].name = wire_text(r->weight.names[i]);
        lists.weights[i].weight = r->weight.weights[i];
        lists.weight_list[i] = &lists.weights[i];
    }
    ask->weights = lists.weight_list;
    ask->n_weights = r->weight.count;
    return name_jobs(ctl, ask, ask->op == CAIRN_RESHARD_STATUS);
}

/* Returns -1 to continue, else the exit status. */
static int ask_reshard(struct ctl *ctl, const Cairn__ReshardAsk *message,
                       ProtobufCMessage **told_out)
{
    const cairn_status called = ctl_call(ctl, CAIRN_MSG_RESHARD_ASK, &message->base,
                                         CAIRN_MSG_RESHARD_TOLD, told_out);
    return called == CAIRN_OK ? -1 : status_exit((int)called);
}

static bool is_refused(const Cairn__ReshardJob *job)
{
    return strcmp(job->state, "refused") == 0;
}

static void print_plans(const Cairn__ReshardTold *told)
{
    size_t printed = 0;
    for (size_t i = 0; i < told->n_jobs; i++) {
        if (is_refused(told->jobs[i])) continue;
        if (printed++ > 0) printf("\n");
        ctl_page(told->jobs[i], RESHARD_PAGE);
    }
}

/* Returns the exit status of the worst job. Prints each failure with the text that the job
 * reports. */
static int say_ends(const Cairn__ReshardTold *told)
{
    int worst = 0;
    for (size_t i = 0; i < told->n_jobs; i++) {
        const Cairn__ReshardJob *job = told->jobs[i];
        if (strcmp(job->state, "canceled") == 0)
            worst = ctl_fail(CAIRN_ERR_CANCELED, "job %s: %s", job->name, job->text);
        else if (strcmp(job->state, "failed") == 0 || is_refused(job))
            worst = ctl_fail(CAIRN_ERR_REFUSED, "job %s: %s", job->name, job->text);
    }
    return worst;
}

static int end_plan(struct ctl *ctl, const void *told)
{
    if (!ctl->json) print_plans(told);
    return say_ends(told);
}

/* A cancel for all jobs ends the running re-shardings. The command fails only if no re-sharding is
 * running. */
static int check_canceled(struct ctl *ctl, const void *reply)
{
    const Cairn__ReshardTold *told = reply;
    size_t refused = 0;
    (void)ctl;
    while (refused < told->n_jobs && is_refused(told->jobs[refused])) refused++;
    if (refused < told->n_jobs) return 0;
    return ctl_fail(CAIRN_ERR_NOT_FOUND, "no re-sharding is under way: there is nothing to cancel");
}

const struct ctl_question
    ctl_reshard_plan = { CTL_ASKS(RESHARD_ASK, reshard_ask, RESHARD_TOLD), .fill = "",
                         .fill_by = fill_ask, .after = end_plan },
    ctl_reshard_status = { CTL_ASKS(RESHARD_ASK, reshard_ask, RESHARD_TOLD), .fill = "",
                           .fill_by = fill_ask, .page = "#jobs", .quiet = "#jobs" },
    ctl_reshard_cancel = { CTL_ASKS(RESHARD_ASK, reshard_ask, RESHARD_TOLD), .fill = "",
                           .fill_by = fill_ask,
                           .page = "*jobs canceled|{!state=refused}job {name}: its move ends after "
                                   "slice {slice} of {slices}; {moved_bytes/bytes} have moved",
                           .after = check_canceled };

/* ---- apply ---- */

/* If the re-sharding of a job could not begin, shows the job as refused, not in its earlier state. */
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

/* For a single job the plan is shown first. The plan's hash then ensures that only this plan is applied.
 * -1: continue. */
static int show_plan(struct ctl *ctl, Cairn__ReshardAsk *ask)
{
    ProtobufCMessage *reply;
    if (ask->all) return -1;
    ask->op = CAIRN_RESHARD_PLAN;
    const int done = ask_reshard(ctl, ask, &reply);
    if (done >= 0) return done;
    const Cairn__ReshardTold *told = (const Cairn__ReshardTold *)reply;
    if (told->n_jobs == 1) ask->layout_hash = told->jobs[0]->layout_hash;
    if (!ctl->json && !ctl->quiet) {
        print_plans(told);
        printf("\n");
        fflush(stdout);
    }
    message_free(reply);
    ask->op = CAIRN_RESHARD_APPLY;
    return -1;
}

static int run_reshard_apply(struct ctl *ctl)
{
    Cairn__ReshardAsk ask = CAIRN__RESHARD_ASK__INIT;
    ProtobufCMessage *begun, *ended;
    int done = fill_ask(ctl, &ask);
    if (done < 0) done = show_plan(ctl, &ask);
    if (done < 0) done = ask_reshard(ctl, &ask, &begun);
    if (done >= 0) return done;
    const char *which = ask.all ? "--all" : ask.job;
    ctl_on_interrupt("\ncairn: the move goes on: `cairn reshard status%s%s` says how far it is, "
                     "`cairn reshard cancel %s` ends it after the current slice\n",
                     ask.all ? "" : " ", ask.all ? "" : which, which);
    ask.op = CAIRN_RESHARD_STATUS;
    done = reshard_wait(ctl, &ask, &ended);
    if (done < 0) {
        Cairn__ReshardTold *told = (Cairn__ReshardTold *)ended;
        keep_refused((Cairn__ReshardTold *)begun, told);
        if (ctl->json)
            ctl_print_json(ctl_json(told));
        else if (!ctl->quiet)
            ctl_page(told, "#jobs");
        done = say_ends(told);
        message_free(ended);
    }
    message_free(begun);
    return done;
}

const struct ctl_question ctl_reshard_apply = { .run = run_reshard_apply };
