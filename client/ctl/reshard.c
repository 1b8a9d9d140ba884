/* cairn reshard plan | apply | status | cancel, cairn member drain */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

#define DRAIN_TIMEOUT_MS 600000

/* ==== reshard print ==== */

/* Prints a re-sharding: before it starts, while it runs, and after it ends. */

static double seconds(uint64_t ms)
{
    return (double)ms / 1e3;
}

static double percent_longer(double ratio)
{
    return (ratio - 1) * 100;
}

/* ---- for people ---- */

/* The number of pieces in a fresh layout is known only if the plan was compared with a fresh layout. A plan
 * that was asked to move only the minimum is not compared with one. */
static void print_pieces(const Cairn__ReshardJob *job)
{
    char fresh[64] = "";
    if (job->pieces_fresh > 0)
        snprintf(fresh, sizeof fresh, "; a fresh layout has %" PRIu64, job->pieces_fresh);
    ctl_line("pieces", "%" PRIu64 " of its tensors on shards, then %" PRIu64 "%s",
             job->pieces_before, job->pieces_after, fresh);
}

static void print_pairs(const struct ctl *ctl, const Cairn__ReshardJob *job)
{
    static const struct ctl_column columns[] = { { "FROM", "from", NULL },
                                                 { "TO", "to", NULL },
                                                 { "BYTES", "bytes/bytes", NULL } };
    if (job->n_pairs == 0) return;
    printf("\n");
    ctl_table_print(ctl, CTL_COLUMNS(columns), job->pairs, job->n_pairs);
}

/* Prints all of a re-sharding: the moves from shard to shard, and the expected or measured times. */
static void reshard_print(const struct ctl *ctl, const Cairn__ReshardJob *job)
{
    ctl_line("job", "%s", job->name);
    ctl_line("state", "%s%s%s", job->state, job->text[0] != '\0' ? ": " : "", job->text);
    ctl_line("shards", "%u, then %u", job->shards_before, job->shards_after);
    ctl_line("moves", "%s in %u slice%s; the least that levels the shards is %s",
             ctl_bytes(job->all_bytes), job->slices, job->slices == 1 ? "" : "s",
             ctl_bytes(job->least_bytes));
    if (job->afresh > 0 && job->all_bytes > job->least_bytes)
        ctl_line("", "%s more than the least, since %u tensor%s would lie in too many pieces",
                 ctl_bytes(job->all_bytes - job->least_bytes), job->afresh,
                 job->afresh == 1 ? "" : "s");
    if (job->moved_bytes > 0) ctl_line("moved", "%s", ctl_bytes(job->moved_bytes));
    ctl_line("heaviest shard", "%.2f of the mean, then %.2f", job->heaviest_before,
             job->heaviest_after);
    if (job->pieces_after > 0) print_pieces(job);
    if (job->expected_s > 0) ctl_line("expected", "%.1f s", job->expected_s);
    if (job->expected_pause_s > 0)
        ctl_line("longest step", "%.3f s longer (expected)", job->expected_pause_s);
    if (job->elapsed_ms > 0) ctl_line("took", "%.1f s", seconds(job->elapsed_ms));
    if (job->worst_step > 0)
        ctl_line("longest step", "%.1f %% longer than the median before",
                 percent_longer(job->worst_step));
    print_pairs(ctl, job);
}

static void add_slice(struct ctl_table *table, const void *message)
{
    const Cairn__ReshardJob *job = message;
    ctl_table_cell(table, "%u of %u", job->slice, job->slices);
}

static void add_time(struct ctl_table *table, const void *message)
{
    ctl_table_cell(table, "%.1f s", seconds(((const Cairn__ReshardJob *)message)->elapsed_ms));
}

static void add_longest(struct ctl_table *table, const void *message)
{
    const Cairn__ReshardJob *job = message;
    if (job->worst_step > 0)
        ctl_table_cell(table, "%+.1f %%", percent_longer(job->worst_step));
    else
        ctl_table_cell(table, "-");
}

/* Prints the progress of the re-shardings, one line each. */
static void reshard_list(const struct ctl *ctl, const Cairn__ReshardTold *told)
{
    static const struct ctl_column columns[] = {
        { "JOB", "name", NULL },
        { "STATE", "state", NULL },
        { "SLICE", NULL, add_slice },
        { "MOVED", "moved_bytes/bytes", NULL },
        { "OF", "all_bytes/bytes", NULL },
        { "FOR", NULL, add_time },
        { "LONGEST STEP", NULL, add_longest },
        { "", "text", NULL },
    };
    ctl_table_print(ctl, CTL_COLUMNS(columns), told->jobs, told->n_jobs);
}

/* ==== reshard wait ==== */

/* Waits for a re-sharding. On a terminal a bar shows the progress; without a terminal each tenth of the
 * work gets a line. */

enum { ASK_EVERY_MS = 200, BAR = 30, AWAY_MAX = 300 /* tries: a minute */ };

struct progress {
    bool is_terminal, is_drawn;
    unsigned tenths; /* already printed */
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
        ctl->tries_again = tries < AWAY_MAX;
        const cairn_status called = ctl_call(ctl, CAIRN_MSG_RESHARD_ASK, &ask->base,
                                             CAIRN_MSG_RESHARD_TOLD, told_out);
        if (called == CAIRN_OK) return -1;
        if (called != CAIRN_ERR_UNREACHABLE || !ctl->tries_again) return status_exit((int)called);
        poll(NULL, 0, ASK_EVERY_MS);
    }
}

/* Polls until no job is moving, and shows the progress on stderr; *told_out has the final states, and
 * the caller frees it. -1: continue; else the exit status. */
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

/* A request with its lists: the message only points to the lists, which are stored here. */
struct question {
    Cairn__ReshardAsk ask;
    Cairn__ShardWeight weights[CTL_NAMES_MAX], *weight_list[CTL_NAMES_MAX];
    char *add[CTL_NAMES_MAX], *drain[CTL_NAMES_MAX];
};

static void copy_names(const struct ctl_names *names, char **out)
{
    for (size_t i = 0; i < names->count; i++) out[i] = wire_text(names->names[i]);
}

/* -1: continue; else the exit status. */
static int name_jobs(const struct ctl *ctl, Cairn__ReshardAsk *ask, bool optional)
{
    if (ctl->argc == 1 && ctl->reshard.all)
        return ctl_usage_fail(ctl, "give a job or --all, not both");
    if (ctl->argc == 0 && !ctl->reshard.all && !optional)
        return ctl_usage_fail(ctl, "name a job, or give --all");
    ask->all = ctl->argc == 0;
    if (ctl->argc == 1) ask->job = ctl->argv[0];
    return -1;
}

static int fill_question(const struct ctl *ctl, struct question *q, uint32_t op)
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
        q->weights[i].name = wire_text(r->weight.names[i]);
        q->weights[i].weight = r->weight.weights[i];
        q->weight_list[i] = &q->weights[i];
    }
    q->ask.weights = q->weight_list;
    q->ask.n_weights = r->weight.count;
    return name_jobs(ctl, &q->ask, op == CAIRN_RESHARD_STATUS);
}

/* -1: continue. */
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

static void print_plans(const struct ctl *ctl, const Cairn__ReshardTold *told)
{
    size_t printed = 0;
    for (size_t i = 0; i < told->n_jobs; i++) {
        if (is_refused(told->jobs[i])) continue;
        if (printed++ > 0) printf("\n");
        reshard_print(ctl, told->jobs[i]);
    }
}

/* Returns the exit status that belongs to the worst job; a failure is printed with the text that the job
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

/* Sends the request and shows the answer, as JSON or by `print`; `check` reports what is wrong with the
 * answer. */
static int ask_and_show(struct ctl *ctl, uint32_t op,
                        void (*print)(const struct ctl *ctl, const Cairn__ReshardTold *told),
                        int (*check)(const Cairn__ReshardTold *told))
{
    struct question q;
    ProtobufCMessage *reply;
    int done = fill_question(ctl, &q, op);
    if (done < 0) done = ask_reshard(ctl, &q.ask, &reply);
    if (done >= 0) return done;
    const Cairn__ReshardTold *told = (const Cairn__ReshardTold *)reply;
    if (ctl->json)
        ctl_print_json(ctl_json(told));
    else
        print(ctl, told);
    done = check == NULL ? 0 : check(told);
    message_free(reply);
    return done;
}

static void print_canceled(const struct ctl *ctl, const Cairn__ReshardTold *told)
{
    for (size_t i = 0; i < told->n_jobs && !ctl->quiet; i++) {
        if (is_refused(told->jobs[i])) continue;
        ctl_line("canceled", "job %s: its move ends after slice %u of %u; %s have moved",
                 told->jobs[i]->name, told->jobs[i]->slice, told->jobs[i]->slices,
                 ctl_bytes(told->jobs[i]->moved_bytes));
    }
}

/* A cancel for all jobs ends the running re-shardings. The command fails only if no re-sharding is
 * running. */
static int check_canceled(const Cairn__ReshardTold *told)
{
    size_t refused = 0;
    while (refused < told->n_jobs && is_refused(told->jobs[refused])) refused++;
    if (refused < told->n_jobs) return 0;
    return ctl_fail(CAIRN_ERR_NOT_FOUND, "no re-sharding is under way: there is nothing to cancel");
}

static int run_reshard_plan(struct ctl *ctl)
{
    return ask_and_show(ctl, CAIRN_RESHARD_PLAN, print_plans, say_ends);
}

static int run_reshard_status(struct ctl *ctl)
{
    return ask_and_show(ctl, CAIRN_RESHARD_STATUS, reshard_list, NULL);
}

static int run_reshard_cancel(struct ctl *ctl)
{
    return ask_and_show(ctl, CAIRN_RESHARD_CANCEL, print_canceled, check_canceled);
}

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
static int show_plan(struct ctl *ctl, struct question *q)
{
    ProtobufCMessage *reply;
    if (q->ask.all) return -1;
    q->ask.op = CAIRN_RESHARD_PLAN;
    const int done = ask_reshard(ctl, &q->ask, &reply);
    if (done >= 0) return done;
    const Cairn__ReshardTold *told = (const Cairn__ReshardTold *)reply;
    if (told->n_jobs == 1) q->ask.layout_hash = told->jobs[0]->layout_hash;
    if (!ctl->json && !ctl->quiet) {
        print_plans(ctl, told);
        printf("\n");
        fflush(stdout);
    }
    message_free(reply);
    q->ask.op = CAIRN_RESHARD_APPLY;
    return -1;
}

static int run_reshard_apply(struct ctl *ctl)
{
    struct question q;
    ProtobufCMessage *begun, *ended;
    int done = fill_question(ctl, &q, CAIRN_RESHARD_APPLY);
    if (done < 0) done = show_plan(ctl, &q);
    if (done < 0) done = ask_reshard(ctl, &q.ask, &begun);
    if (done >= 0) return done;
    const char *which = q.ask.all ? "--all" : q.ask.job;
    ctl_on_interrupt("\ncairn: the move goes on: `cairn reshard status%s%s` says how far it is, "
                     "`cairn reshard cancel %s` ends it after the current slice\n",
                     q.ask.all ? "" : " ", q.ask.all ? "" : which, which);
    q.ask.op = CAIRN_RESHARD_STATUS;
    done = reshard_wait(ctl, &q.ask, &ended);
    if (done < 0) {
        Cairn__ReshardTold *told = (Cairn__ReshardTold *)ended;
        keep_refused((Cairn__ReshardTold *)begun, told);
        if (ctl->json)
            ctl_print_json(ctl_json(told));
        else if (!ctl->quiet)
            reshard_list(ctl, told);
        done = say_ends(told);
        message_free(ended);
    }
    message_free(begun);
    return done;
}

/* ---- a complete shard ---- */

static void print_drained(struct ctl *ctl, const void *reply)
{
    (void)reply;
    ctl_line("drained", "%s, which ends and is forgotten", ctl->argv[0]);
}

static const struct ctl_question member_drain_question = CTL_QUESTION(
    MEMBER_DRAIN, member_drain, "name=@0 wait=1", DONE, .timeout_ms = DRAIN_TIMEOUT_MS,
    .farewell = "\ncairn: the drain goes on: `cairn reshard status` says how far it is, `cairn "
                "reshard cancel --all` ends it\n",
    .print = print_drained, .fields = "drained=@0");

/* ==== commands ==== */

#define RESHARDS CTL_ASKS "no-headers shards all reshard "

const struct ctl_row ctl_reshard_rows[] = {
    { "member", "drain", "NAME",
      "move all that a shard holds to the others while jobs train; then it ends, and is forgotten",
      1, 1, CTL_ASKS "quiet ", CTL_ASK(member_drain_question) },
    { "reshard", "plan",
      "JOB|--all [--shards N] [--add NAME]... [--drain NAME]... [--weight NAME=W]...",
      "what would move from where to where, how long it would take, and what a step would feel", 0,
      1, RESHARDS, CTL_RUN(run_reshard_plan) },
    { "reshard", "apply",
      "JOB|--all [--shards N] [--add NAME]... [--drain NAME]... [--weight NAME=W]... [--pause P%]",
      "spread a job over other shards while it trains, and wait for the end", 0, 1,
      RESHARDS "quiet pause ", CTL_RUN(run_reshard_apply) },
    { "reshard", "status", "[JOB]", "how far the move is, or how the last ended", 0, 1,
      CTL_ASKS "no-headers watch ", CTL_RUN(run_reshard_status) },
    { "reshard", "cancel", "JOB|--all",
      "end the move after the current slice: what has moved stays where it is", 0, 1,
      CTL_ASKS "quiet all ", CTL_RUN(run_reshard_cancel) },
    { .noun = NULL },
};
