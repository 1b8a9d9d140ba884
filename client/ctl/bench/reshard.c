/* cairn bench reshard: moves the job of one worker from `from` shards to `to` shards and back, in the
 * bench's own cluster. At rest, the bench alternates the move with a memcpy of the same number of bytes by
 * all cores. It reports how fast state arrives, according to the receiving shards, and how long the
 * complete move takes. During training, the bench reports how much longer the longest step is than the
 * median before the move. Steps then have a backward of 200 ms, which sleeps in one series and computes on
 * every core in the other. The bench also measures a snapshot and its restore over the same shards, and
 * torch.save and load if Python has torch. */
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "bench/torch_load.h"
#include "client/ctl/bench/bench.h"
#include "proto/plan/plan.h"

/* ==== copy ==== */

/* The reference for the bench of moves: memcpy of the same number of bytes, by one thread or by one thread
 * per core. The destination is memory that was written before, or fresh memory. */

struct copying {
    char *to;
    const char *from;
    size_t bytes;
    uint32_t threads;
};

static void copy_part(void *own, uint32_t number)
{
    const struct copying *c = own;
    const size_t at = c->bytes / c->threads * number;
    const bool is_last = number + 1 == c->threads;
    memcpy(c->to + at, c->from + at, is_last ? c->bytes - at : c->bytes / c->threads);
    __asm__ volatile("" : : "r"(c->to) : "memory"); // forces the compiler to keep the copy
}

/* Returns GB/s; 0 after printing the error. `is_fresh`: the destination's pages are allocated
 * during the copy; else the destination was written before. */
static double copy_by(size_t bytes, uint32_t threads, bool is_fresh)
{
    struct copying c = { bench_memory_map(bytes, BENCH_SMALL), NULL, bytes, threads };
    char *from = c.to != NULL ? bench_memory_map(bytes, BENCH_SMALL) : NULL;
    if (from == NULL) return 0;
    memset(from, 1, bytes);
    c.from = from;
    if (!is_fresh) memset(c.to, 1, bytes);
    const double begin = bench_now();
    const int failed = bench_threads_run(threads, copy_part, &c);
    const double seconds = bench_now() - begin;
    munmap(c.to, bytes);
    munmap(from, bytes);
    if (failed == 0) return (double)bytes * 1e-9 / seconds;
    (void)ctl_fail(CAIRN_ERR_NO_MEMORY, "no thread");
    return 0;
}

static uint32_t all_cores(void)
{
    return bench_core_count() < BENCH_THREADS_MAX ? bench_core_count() : BENCH_THREADS_MAX;
}

/* ==== move ==== */

/* Moves the bench's job and observes the move on a thread of its own, so that the bench can order steps. */

/* The figures of one move, by number. The last ones are sums over all slices. */
enum {
    MOVE_SECONDS, /* from the request until the coordinator reports the move as done */
    MOVE_MOVED_BYTES,
    MOVE_LEAST_BYTES,
    MOVE_SLICES,
    /* the maximum, over all shards, of peak bytes / (bytes owned before or after the move + a
     * slice) */
    MOVE_MEMORY,
    MOVE_STATE_BYTES, /* the bytes that shards received */
    MOVE_STATE_S,     /* the time for these bytes */
    MOVE_PREPARE_S,   /* the time until the slices were ready */
    MOVE_CUT_S,       /* the time until they were in force */
    MOVE_WAITED_S,    /* the time until they were complete */
    MOVE_FIGURES
};

struct mover {
    /* the caller sets task.b and the next four fields before it starts the thread */
    struct bench_task task;
    uint32_t first, last; /* the shards from "shard-FIRST" to "shard-LAST" */
    bool adds;            /* true: the shards join; false: they are drained */
    /* the move starts only when, according to the coordinator, nobody trains the job */
    bool rests;
    /* Used by the thread */
    uint64_t peaks[1 + CTL_SHARDS_MAX]; /* peak bytes of the shards, by number */
    double move[MOVE_FIGURES];
};

#define LOOK_EVERY_MS 10

static void look_at_memory(const struct local *local, uint64_t *most)
{
    for (int i = 1; i < local->daemon_count; i++) {
        const uint64_t bytes = bench_process_bytes(local->daemons[i].pid);
        if (bytes > most[i]) most[i] = bytes;
    }
}

/* Returns the reply to one request. Returns NULL after printing the error if the request failed. */
static ProtobufCMessage *ask_reshard(struct mover *m, uint32_t op)
{
    char names[CTL_SHARDS_MAX][24], *list[CTL_SHARDS_MAX];
    Cairn__ReshardAsk message = CAIRN__RESHARD_ASK__INIT;
    ProtobufCMessage *reply;
    const size_t count = op == CAIRN_RESHARD_APPLY ? m->last - m->first + 1 : 0;
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "shard-%zu", m->first + i);
        list[i] = names[i];
    }
    message.job = wire_text(m->task.b->model.job);
    message.op = op;
    message.add = message.drain = list;
    message.n_add = m->adds ? count : 0;
    message.n_drain = m->adds ? 0 : count;
    const cairn_status called = ctl_call(&m->task.ctl, CAIRN_MSG_RESHARD_ASK, &message.base,
                                         CAIRN_MSG_RESHARD_TOLD, &reply);
    return called == CAIRN_OK ? reply : NULL;
}

/* Returns 1 if the move continues, 0 if the move is done, and -1 after printing the error if it failed. */
static int check_move(struct mover *m, const Cairn__ReshardTold *told)
{
    const Cairn__ReshardJob *job = told->n_jobs == 1 ? told->jobs[0] : NULL;
    if (job != NULL && strcmp(job->state, "moving") == 0) return 1;
    if (job == NULL || strcmp(job->state, "done") != 0) {
        (void)ctl_fail(CAIRN_ERR_REFUSED, "the move of job %s: %s", m->task.b->model.job,
                       job != NULL ? job->text : "it is not known");
        return -1;
    }
    const double figures[MOVE_FIGURES] = {
        [MOVE_MOVED_BYTES] = (double)job->moved_bytes,
        [MOVE_LEAST_BYTES] = (double)job->least_bytes,
        [MOVE_SLICES] = job->slice,
        [MOVE_STATE_BYTES] = (double)job->state_bytes,
        [MOVE_STATE_S] = (double)job->state_us * 1e-6,
        [MOVE_PREPARE_S] = (double)job->prepare_us * 1e-6,
        [MOVE_CUT_S] = (double)job->cut_us * 1e-6,
        [MOVE_WAITED_S] = (double)job->move_us * 1e-6,
    };
    memcpy(m->move, figures, sizeof figures);
    return 0;
}

static int step_move(struct mover *m, uint32_t op)
{
    ProtobufCMessage *reply = ask_reshard(m, op);
    if (reply == NULL) return -1;
    const int goes_on = check_move(m, (const Cairn__ReshardTold *)reply);
    message_free(reply);
    return goes_on;
}

/* Waits until nobody trains the job. Returns false after printing the error if a request failed. */
static bool await_rest(struct mover *m)
{
    for (bool rests = false; !rests;) {
        ProtobufCMessage *reply = ask_reshard(m, CAIRN_RESHARD_STATUS);
        if (reply == NULL) return false;
        const Cairn__ReshardTold *told = (const Cairn__ReshardTold *)reply;
        rests = told->n_jobs == 1 && told->jobs[0]->rests;
        message_free(reply);
        if (!rests) poll(NULL, 0, LOOK_EVERY_MS);
    }
    return true;
}

static double memory_of(const struct mover *m, const uint64_t *before, const uint64_t *after)
{
    const double slices = m->move[MOVE_SLICES];
    const double slice = slices > 0 ? m->move[MOVE_MOVED_BYTES] / slices : 0;
    double worst = 0;
    for (int i = 1; i < m->task.b->local->daemon_count; i++) {
        const double owned = (double)(before[i] > after[i] ? before[i] : after[i]);
        if (owned + slice > 0 && (double)m->peaks[i] / (owned + slice) > worst)
            worst = (double)m->peaks[i] / (owned + slice);
    }
    return worst;
}

static bool run_move(struct bench_task *task)
{
    struct mover *m = (struct mover *)task;
    uint64_t before[1 + CTL_SHARDS_MAX] = { 0 }, after[1 + CTL_SHARDS_MAX] = { 0 };
    int goes_on = m->rests && !await_rest(m) ? -1 : 1;
    look_at_memory(m->task.b->local, before);
    const double begin = bench_now();
    if (goes_on > 0) goes_on = step_move(m, CAIRN_RESHARD_APPLY);
    while (goes_on > 0) {
        look_at_memory(m->task.b->local, m->peaks);
        poll(NULL, 0, LOOK_EVERY_MS);
        goes_on = step_move(m, CAIRN_RESHARD_STATUS);
    }
    m->move[MOVE_SECONDS] = bench_now() - begin;
    look_at_memory(m->task.b->local, after);
    m->move[MOVE_MEMORY] = memory_of(m, before, after);
    return goes_on == 0;
}

/* ==== bench ==== */

#define RESHARD_PARAMS_DEFAULT 90000000u /* 1 GiB of state */
#define TENSORS_DEFAULT        32
#define FROM_DEFAULT           4
#define BACKWARD_S             0.2
#define STEPS_BEFORE           7
#define SHARD_BYTES            36 /* per element: its state, other shard memory, the bench's copies */
#define COPIES                 3 /* runs of each kind of copy other than the reference */

struct reshard_bench {
    struct step_plan plan;
    struct mover mover;
    uint32_t from, to;
    bool is_there;             /* the job is on `to` shards */
    double rest[MOVE_FIGURES]; /* the sums of the moves at rest */
    uint32_t rests;            /* the number of moves at rest */
    /* over all moves; `moved` and `least` are bytes, `memory` is the worst ratio */
    double moved, least, memory;
    /* seconds; [0]: with a backward that sleeps; [1]: with a backward that computes */
    double longest[2], median[2];
};

/* ---- a move ---- */

/* Starts the move to the other shards. Returns false after printing the error if no thread could be
 * started. */
static bool begin_move(struct reshard_bench *b, bool rests)
{
    const bool grows = b->from < b->to;
    b->mover = (struct mover) { .task = { .b = &b->plan.b, .run = run_move },
                                .first = (grows ? b->from : b->to) + 1,
                                .last = grows ? b->to : b->from,
                                .adds = grows != b->is_there,
                                .rests = rests };
    return bench_task_begin(&b->mover.task);
}

/* Waits for the move to end. Returns false after printing the error if the move failed. */
static bool end_move(struct reshard_bench *b)
{
    if (!bench_task_end(&b->mover.task)) return false;
    const double *move = b->mover.move;
    b->is_there = !b->is_there;
    b->moved += move[MOVE_MOVED_BYTES];
    b->least += move[MOVE_LEAST_BYTES];
    if (move[MOVE_MEMORY] > b->memory) b->memory = move[MOVE_MEMORY];
    return true;
}

/* Moves the job at rest and returns GB/s. */
static double move_at_rest(void *bench)
{
    struct reshard_bench *b = bench;
    if (!begin_move(b, true) || !end_move(b)) return 0;
    for (int f = 0; f < MOVE_FIGURES; f++) b->rest[f] += b->mover.move[f];
    b->rests++;
    return b->mover.move[MOVE_STATE_BYTES] * 1e-9 / b->mover.move[MOVE_STATE_S];
}

static double copy_reshard(void *bench)
{
    struct reshard_bench *b = bench;
    return copy_by((size_t)b->mover.move[MOVE_STATE_BYTES], all_cores(), false);
}

/* Returns the median of several copies. Returns 0 after printing the error if one of them failed. */
static double copy_otherwise(struct reshard_bench *b, uint32_t threads, bool is_fresh)
{
    double values[COPIES];
    for (int i = 0; i < COPIES; i++) {
        values[i] = copy_by((size_t)b->mover.move[MOVE_STATE_BYTES], threads, is_fresh);
        if (!(values[i] > 0)) return 0;
    }
    return bench_spread_of(values, COPIES).median;
}

/* ---- while it trains ---- */

static bool train_before(struct reshard_bench *b, uint32_t word, double *median_out)
{
    double values[STEPS_BEFORE];
    for (int i = 0; i < STEPS_BEFORE; i++)
        if (!((values[i] = bench_order(&b->plan.b, word, 1)) > 0)) return false;
    *median_out = bench_spread_of(values, STEPS_BEFORE).median;
    return true;
}

/* Moves the job to the other shards during steps, and back at rest. */
static bool measure_steps(struct reshard_bench *b, uint32_t word, double *median_out,
                          double *longest_out)
{
    double seconds = 1;
    *longest_out = 0;
    if (!train_before(b, word, median_out)) return false;
    if (!begin_move(b, false)) return false;
    do {
        seconds = bench_order(&b->plan.b, word, 1);
        if (seconds > *longest_out) *longest_out = seconds;
    } while (seconds > 0 && !atomic_load(&b->mover.task.is_over));
    return end_move(b) && seconds > 0 && move_at_rest(b) > 0;
}

/* ---- the alternatives to a move ---- */

/* Returns the seconds of a committed snapshot and of its restore together. Returns 0 after printing the
 * error if one of them failed. */
static double snapshot_and_restore(struct reshard_bench *b)
{
    struct bench_saver saver = { .task.b = &b->plan.b };
    const double made_s = bench_save(&saver);
    saver.restores = true;
    const double restored_s = made_s > 0 ? bench_save(&saver) : 0;
    return restored_s > 0 ? made_s + restored_s : 0;
}

/* Saves and loads the same state in one process; returns 0 after printing a message if this Python
 * has no torch. */
static double torch_save_and_load(const struct reshard_bench *b)
{
    const uint64_t elems = bench_model_params(&b->plan.b.model);
    double numbers[2] = { 0 };
    if (bench_torch_run(b->plan.b.local, torch_load, elems, 1, numbers) > 0) return numbers[0];
    fprintf(stderr, "skip: torch.save and load: python3 has no torch\n");
    return 0;
}

/* ---- the bench ---- */

static void report_rest(struct reshard_bench *b)
{
    double mean[MOVE_FIGURES];
    for (int f = 0; f < MOVE_FIGURES; f++) mean[f] = b->rest[f] / b->rests;
    const double before_s = mean[MOVE_PREPARE_S] + mean[MOVE_CUT_S] + mean[MOVE_WAITED_S];
    BENCH_PARTS(
        &b->plan.b, { "state_bytes", mean[MOVE_STATE_BYTES] }, { "slices", mean[MOVE_SLICES] },
        { "all_s", mean[MOVE_SECONDS] }, { "coming_s", mean[MOVE_STATE_S] },
        { "fixed_s", mean[MOVE_SECONDS] - mean[MOVE_STATE_S] },
        { "fixed_prepare_s", mean[MOVE_PREPARE_S] }, { "fixed_cut_over_s", mean[MOVE_CUT_S] },
        { "fixed_while_it_comes_s", mean[MOVE_WAITED_S] - mean[MOVE_STATE_S] },
        { "fixed_join_publish_leave_s", mean[MOVE_SECONDS] - before_s });
}

/* Returns false after printing the error if there is no memory. */
static bool report_copies(struct reshard_bench *b)
{
    static const struct {
        const char *name;
        bool by_all, is_fresh;
    } kinds[] = {
        { "memcpy_by_one_touched_GB/s", false, false },
        { "memcpy_by_one_fresh_GB/s", false, true },
        { "memcpy_by_all_cores_fresh_GB/s", true, true },
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const uint32_t threads = kinds[i].by_all ? all_cores() : 1;
        const double speed = copy_otherwise(b, threads, kinds[i].is_fresh);
        if (!(speed > 0)) return false;
        BENCH_PARTS(&b->plan.b, { kinds[i].name, speed });
    }
    return true;
}

static int report_reshard(void *bench)
{
    static const uint32_t words[2] = { STEP_ORDER_STEP, STEP_ORDER_BUSY };
    struct reshard_bench *b = bench;
    report_rest(b);
    if (!report_copies(b)) return 1;
    if (b->is_there && !(move_at_rest(b) > 0)) return 1;
    for (int i = 0; i < 2; i++)
        if (!measure_steps(b, words[i], &b->median[i], &b->longest[i])) return 1;
    const double snapshot_s = snapshot_and_restore(b);
    if (!(snapshot_s > 0)) return 1;
    BENCH_PARTS(bench, { "moved_over_least", b->least > 0 ? b->moved / b->least : 0 },
                { "memory_over_owned_and_slice", b->memory },
                { "longest_step_sleeping", b->longest[0] / b->median[0] },
                { "longest_step_computing", b->longest[1] / b->median[1] },
                { "snapshot_and_restore_s", snapshot_s });
    const double torch_s = torch_save_and_load(b);
    if (torch_s > 0) BENCH_PARTS(bench, { "torch_save_and_load_s", torch_s });
    return bench_add_params(bench, json_pack("{s:I, s:I, s:f}", "from", (json_int_t)b->from, "to",
                                             (json_int_t)b->to, "backward_ms", BACKWARD_S * 1e3));
}

/* ---- the row ---- */

/* Adds the shards that the job moves to, and creates a version to move. */
static int begin_reshard(void *bench)
{
    struct reshard_bench *b = bench;
    int done = -1;
    for (uint32_t s = b->from; s < b->to && done < 0; s++)
        done = local_shard_add(b->plan.b.local, 0);
    return done < 0 && !(bench_order(bench, STEP_ORDER_STEP, 1) > 0) ? 1 : done;
}

/* Returns the default number of parameters. If memory is short, prints a message and returns fewer. */
static uint64_t params_that_fit(void)
{
    const uint64_t fit = bench_memory_bytes() / 10 * 9 / SHARD_BYTES;
    if (fit >= RESHARD_PARAMS_DEFAULT) return RESHARD_PARAMS_DEFAULT;
    fprintf(stderr, "memory is short: %" PRIu64 " params instead of %u\n", fit,
            RESHARD_PARAMS_DEFAULT);
    return fit;
}

static int prepare_reshard(void *bench)
{
    struct reshard_bench *b = bench;
    struct ctl *ctl = b->plan.b.ctl;
    struct bench_model *model = &b->plan.b.model;
    int done = -1;
    b->from = FROM_DEFAULT;
    if (ctl->from != NULL) done = ctl_parse_number("from", ctl->from, CTL_SHARDS_MAX, &b->from);
    b->to = b->from + 1;
    if (done < 0 && ctl->to != NULL) done = ctl_parse_number("to", ctl->to, CTL_SHARDS_MAX, &b->to);
    if (done >= 0) return done;
    ctl->shards = b->from;
    if (ctl->bench.params == 0) bench_model_cut(model, params_that_fit());
    b->plan.backward_seconds = BACKWARD_S;
    b->plan.card = -1;
    if (b->from == b->to || b->to > CTL_SHARDS_MAX)
        return ctl_usage_fail(ctl, "--from %u --to %u: give two different numbers, 1 to %d",
                              b->from, b->to, CTL_SHARDS_MAX);
    done = bench_check_memory(bench_model_params(model) * SHARD_BYTES, "", "--params");
    return done >= 0 ? done : bench_step_share(&b->plan);
}

const struct bench_row bench_reshard = {
    .name = "reshard",
    .unit = "GB/s",
    .reference_name = "memcpy of as many bytes by all cores, to memory written before",
    .in_cluster = true,
    .bytes = sizeof(struct reshard_bench),
    .params_told = "params tensors threads wire",
    .workers = 1,
    .tensors = TENSORS_DEFAULT,
    .params = RESHARD_PARAMS_DEFAULT,
    .wire = CAIRN_BF16,
    .prepare = prepare_reshard,
    .work = bench_step_work,
    .begin = begin_reshard,
    .run = move_at_rest,
    .reference = copy_reshard,
    .report = report_reshard,
};

/* ==== layout ==== */

/* cairn bench layout: makes one plan. A separate process does this, so that the measured time and
 * memory are only those of the planner. The model resembles a language model: blocks of a few large
 * and many small tensors. */

#define BOUND_SECONDS          1.0
#define BOUND_BYTES            ((uint64_t)1 << 30)
#define UNIT_TENSORS           16 /* per block */
#define LARGE_OF_UNIT          7  /* attention and feed-forward; the others are norms and biases */
#define SMALL_ELEMS            ((uint64_t)8192)
#define NAME_BYTES             32
#define LAYOUT_PARAMS_DEFAULT  ((uint64_t)1000000000000)
#define LAYOUT_TENSORS_DEFAULT 100000

struct layout_bench {
    struct bench b;
    uint64_t params;
    uint32_t tensors;
};

enum { LAYOUT_FIGURE_SECONDS, LAYOUT_FIGURE_RSS };

/* Tensors have rows of 1024 elements. The parameters that are not in norms and biases are spread over the
 * large tensors. */
static struct shape shape_of(const struct layout_bench *l, uint32_t tensor)
{
    const uint32_t rest = l->tensors % UNIT_TENSORS;
    const uint32_t large = l->tensors / UNIT_TENSORS * LARGE_OF_UNIT +
                           (rest < LARGE_OF_UNIT ? rest : LARGE_OF_UNIT);
    const uint64_t small = (uint64_t)(l->tensors - large) * SMALL_ELEMS;
    const uint64_t left = l->params > small ? l->params - small : 0;
    if (tensor % UNIT_TENSORS >= LARGE_OF_UNIT)
        return (struct shape) { .rank = 1, .dim = { SMALL_ELEMS } };
    const uint64_t rows = left / large / 1024 + (tensor % UNIT_TENSORS) * 7;
    return (struct shape) { .rank = 2, .dim = { rows > 0 ? rows : 1, 1024 } };
}

/* This runs in the child process, and prints the seconds and the greatest memory. */
static int plan_layout(void *bench)
{
    const struct layout_bench *l = bench;
    const double begin = bench_now();
    const size_t count = l->tensors;
    struct layout_tensor *tensors = calloc(count, sizeof *tensors);
    char *names = malloc(count * 2 * NAME_BYTES);
    if (tensors == NULL || names == NULL) return 1;
    for (uint32_t t = 0; t < l->tensors; t++) {
        char *name = names + (size_t)t * 2 * NAME_BYTES, *unit = name + NAME_BYTES;
        snprintf(name, NAME_BYTES, "layers.%u.tensor.%u", t / UNIT_TENSORS, t % UNIT_TENSORS);
        snprintf(unit, NAME_BYTES, "layers.%u", t / UNIT_TENSORS);
        tensors[t] = (struct layout_tensor) {
            .name = name, .unit = unit, .shape = shape_of(l, t), .elem_bytes = 20
        };
    }
    const struct plan_request request = { .tensors = tensors,
                                          .tensor_count = l->tensors,
                                          .shard_count = l->b.ctl->shards };
    struct layout *layout = NULL;
    struct rusage usage;
    if (plan_make(&request, &layout, NULL) != CAIRN_OK) return 1;
    const double seconds = bench_now() - begin;
    getrusage(RUSAGE_SELF, &usage);
    printf("%.9g %.9g\n", seconds, (double)usage.ru_maxrss * 1024);
    return 0;
}

static double run_plan(void *bench)
{
    struct layout_bench *l = bench;
    struct bench_child child;
    if (bench_child_start(&child, NULL, plan_layout, l) &&
        bench_child_numbers(&child, NULL, l->b.figures) > 0)
        return l->b.figures[LAYOUT_FIGURE_SECONDS];
    ctl_fail(CAIRN_ERR_INVALID,
             "%" PRIu64 " parameters in %u tensors on %u shards cannot be planned: too many "
             "parameters, or too little memory",
             l->params, l->tensors, l->b.ctl->shards);
    return 0;
}

static double bound(void *bench)
{
    (void)bench;
    return BOUND_SECONDS;
}

static int prepare_layout(void *bench)
{
    struct layout_bench *l = bench;
    const struct ctl_bench *asked = &l->b.ctl->bench;
    l->params = asked->params > 0 ? asked->params : LAYOUT_PARAMS_DEFAULT;
    l->tensors = asked->tensors > 0 ? asked->tensors : LAYOUT_TENSORS_DEFAULT;
    return -1;
}

static int report_layout(void *bench)
{
    struct layout_bench *l = bench;
    const double *values = l->b.series[BENCH_SUBJECT].values[LAYOUT_FIGURE_RSS];
    double most = 0;
    for (uint32_t i = 0; i < l->b.series[BENCH_SUBJECT].count; i++)
        if (values[i] > most) most = values[i];
    BENCH_PARTS(&l->b, { "rss_bytes", most });
    bench_add_count(&l->b, "rss_bound_bytes", BOUND_BYTES);
    return bench_add_params(bench, json_pack("{s:I, s:I}", "params", (json_int_t)l->params,
                                             "tensors", (json_int_t)l->tensors));
}

const struct bench_row bench_layout = {
    .name = "layout",
    .unit = "s",
    .reference_name = "the bound",
    .less_is_better = true,
    .bytes = sizeof(struct layout_bench),
    .params_told = "shards",
    .shards = 10000,
    .prepare = prepare_layout,
    .run = run_plan,
    .reference = bound,
    .report = report_layout,
};
