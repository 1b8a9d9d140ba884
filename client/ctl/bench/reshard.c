/* cairn bench reshard: moves the job of one worker from `from` shards to `to` shards and back, in the
 * bench's own cluster. At rest, the bench alternates the move with a memcpy of the same number of bytes by
 * all cores. It reports how fast state arrives, according to the receiving shards, and how long the
 * complete move takes. During training, the bench reports how much longer the longest step is than the
 * median before the move. Steps then have a backward of 200 ms, which sleeps in one series and computes on
 * every core in the other. The bench also measures a snapshot and its restore over the same shards, and
 * torch.save and load if Python has torch. */
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/torch_load.h"
#include "client/ctl/bench/bench.h"
#include "proto/plan/plan.h"

/* ==== copy ==== */

/* The reference for the bench of moves: memcpy of the same number of bytes, by one thread or by one thread
 * per core. The destination is memory that was written before, or fresh memory. */

#define THREADS_MAX 64

/* The part of the areas that one thread copies. */
struct part {
    pthread_t thread;
    char *to;
    const char *from;
    size_t bytes;
};

static char *map_area(size_t bytes)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

static void *copy_copy(void *context)
{
    struct part *part = context;
    memcpy(part->to, part->from, part->bytes);
    __asm__ volatile("" : : "r"(part->to) : "memory"); // forces the compiler to keep the copy
    return NULL;
}

/* Copies one area to another by threads, and returns GB/s; 0 after printing the error. */
static double copy_areas(char *to, const char *from, size_t bytes, uint32_t threads)
{
    struct part parts[THREADS_MAX];
    uint32_t begun = 0;
    const double begin = bench_now();
    for (; begun < threads; begun++) {
        struct part *part = &parts[begun];
        const size_t at = bytes / threads * begun;
        *part = (struct part) {
            .to = to + at,
            .from = from + at,
            .bytes = begun + 1 < threads ? bytes / threads : bytes - at,
        };
        if (pthread_create(&part->thread, NULL, copy_copy, part) != 0) break;
    }
    for (uint32_t i = 0; i < begun; i++) pthread_join(parts[i].thread, NULL);
    if (begun == threads) return (double)bytes * 1e-9 / (bench_now() - begin);
    (void)ctl_fail(CAIRN_ERR_NO_MEMORY, "no thread");
    return 0;
}

/* Returns GB/s; 0 after printing the error. `is_fresh`: the destination's pages are allocated
 * during the copy; else the destination was written before. */
static double bench_copy(size_t bytes, uint32_t threads, bool is_fresh)
{
    char *to = map_area(bytes), *from = map_area(bytes);
    double speed = 0;
    if (to != NULL && from != NULL) {
        memset(from, 1, bytes);
        if (!is_fresh) memset(to, 1, bytes);
        speed = copy_areas(to, from, bytes, threads < THREADS_MAX ? threads : THREADS_MAX);
    } else {
        (void)ctl_fail(CAIRN_ERR_NO_MEMORY, "out of memory to copy %s", ctl_bytes(2 * bytes));
    }
    if (to != NULL) munmap(to, bytes);
    if (from != NULL) munmap(from, bytes);
    return speed;
}

/* ==== move ==== */

/* Moves the bench's job and observes the move on a thread of its own, so that the bench can order steps. */

/* The measured figures of one move. */
struct bench_move {
    double seconds; /* from the request until the coordinator reports the move as done */
    double moved_bytes, least_bytes, slices;
    /* state_bytes: the bytes that shards received. state_s: the time for these bytes, summed over
     * slices */
    double state_bytes, state_s;
    /* the times until the slices were ready (prepare_s), in force (cut_s) and complete (waited_s),
     * each summed over all slices */
    double prepare_s, cut_s, waited_s;
    /* the maximum, over all shards, of peak bytes / (bytes owned before or after the move + a
     * slice) */
    double memory;
};

struct bench_mover {
    /* the caller sets task.b and the next four fields before it starts the thread */
    struct bench_task task;
    uint32_t first, last; /* the shards from "shard-FIRST" to "shard-LAST" */
    bool adds;            /* true: the shards join; false: they are drained */
    /* the move starts only when, according to the coordinator, nobody trains the job */
    bool rests;
    /* Used by the thread */
    uint64_t peaks[1 + CTL_SHARDS_MAX]; /* peak bytes of the shards, by number */
    struct bench_move move;
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
static ProtobufCMessage *ask_reshard(struct bench_mover *m, uint32_t op)
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
static int check_move(struct bench_mover *m, const Cairn__ReshardTold *told)
{
    const Cairn__ReshardJob *job = told->n_jobs == 1 ? told->jobs[0] : NULL;
    if (job != NULL && strcmp(job->state, "moving") == 0) return 1;
    if (job == NULL || strcmp(job->state, "done") != 0) {
        (void)ctl_fail(CAIRN_ERR_REFUSED, "the move of job %s: %s", m->task.b->model.job,
                       job != NULL ? job->text : "it is not known");
        return -1;
    }
    m->move.moved_bytes = (double)job->moved_bytes;
    m->move.least_bytes = (double)job->least_bytes;
    m->move.slices = job->slice;
    m->move.state_bytes = (double)job->state_bytes;
    m->move.state_s = (double)job->state_us * 1e-6;
    m->move.prepare_s = (double)job->prepare_us * 1e-6;
    m->move.cut_s = (double)job->cut_us * 1e-6;
    m->move.waited_s = (double)job->move_us * 1e-6;
    return 0;
}

static int step_move(struct bench_mover *m, uint32_t op)
{
    ProtobufCMessage *reply = ask_reshard(m, op);
    if (reply == NULL) return -1;
    const int goes_on = check_move(m, (const Cairn__ReshardTold *)reply);
    message_free(reply);
    return goes_on;
}

/* Waits until nobody trains the job. Returns false after printing the error if a request failed. */
static bool await_rest(struct bench_mover *m)
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

static double memory_of(const struct bench_mover *m, const uint64_t *before, const uint64_t *after)
{
    const double slice = m->move.slices > 0 ? m->move.moved_bytes / m->move.slices : 0;
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
    struct bench_mover *m = (struct bench_mover *)task;
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
    m->move.seconds = bench_now() - begin;
    look_at_memory(m->task.b->local, after);
    m->move.memory = memory_of(m, before, after);
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
    struct bench_mover mover;
    uint32_t from, to;
    bool is_there;                /* the job is on `to` shards */
    struct bench_move last, rest; /* last: the last move. rest: the sum of the moves at rest */
    uint32_t rests;               /* the number of moves at rest */
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
    b->mover = (struct bench_mover) { .task = { .b = &b->plan.b, .run = run_move },
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
    b->last = b->mover.move;
    b->is_there = !b->is_there;
    b->moved += b->last.moved_bytes;
    b->least += b->last.least_bytes;
    if (b->last.memory > b->memory) b->memory = b->last.memory;
    return true;
}

static void add_rest(struct reshard_bench *b)
{
    const struct bench_move *last = &b->last;
    struct bench_move *rest = &b->rest;
    b->rests++;
    rest->seconds += last->seconds;
    rest->slices += last->slices;
    rest->state_bytes += last->state_bytes;
    rest->state_s += last->state_s;
    rest->prepare_s += last->prepare_s;
    rest->cut_s += last->cut_s;
    rest->waited_s += last->waited_s;
}

/* Moves the job at rest and returns GB/s. */
static double move_at_rest(void *bench)
{
    struct reshard_bench *b = bench;
    if (!begin_move(b, true) || !end_move(b)) return 0;
    add_rest(b);
    return b->last.state_bytes * 1e-9 / b->last.state_s;
}

static double copy_reshard(void *bench)
{
    struct reshard_bench *b = bench;
    return bench_copy((size_t)b->last.state_bytes, bench_core_count(), false);
}

/* Returns the median of several copies. Returns 0 after printing the error if one of them failed. */
static double copy_otherwise(struct reshard_bench *b, uint32_t threads, bool is_fresh)
{
    double values[COPIES];
    for (int i = 0; i < COPIES; i++) {
        values[i] = bench_copy((size_t)b->last.state_bytes, threads, is_fresh);
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
    const struct bench_move *rest = &b->rest;
    const double n = b->rests, moving_s = rest->state_s / n, all_s = rest->seconds / n;
    BENCH_PARTS(&b->plan.b, { "state_bytes", rest->state_bytes / n },
                { "slices", rest->slices / n }, { "all_s", all_s }, { "coming_s", moving_s },
                { "fixed_s", all_s - moving_s }, { "fixed_prepare_s", rest->prepare_s / n },
                { "fixed_cut_over_s", rest->cut_s / n },
                { "fixed_while_it_comes_s", (rest->waited_s - rest->state_s) / n },
                { "fixed_join_publish_leave_s",
                  (rest->seconds - rest->prepare_s - rest->cut_s - rest->waited_s) / n });
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
        const uint32_t threads = kinds[i].by_all ? bench_core_count() : 1;
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
    for (uint32_t s = b->from; s < b->to && done < 0; s++) done = local_shard_add(b->plan.b.local);
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
    .close = bench_step_release,
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
    double rss_bytes;
};

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

/* This runs in the child process. Returns 0 if the plan was made. */
static int plan_layout(const struct layout_bench *l)
{
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
    return plan_make(&request, &layout, NULL) == CAIRN_OK ? 0 : 1;
}

static double run_plan(void *bench)
{
    struct layout_bench *l = bench;
    const double begin = bench_now();
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) _exit(plan_layout(l));
    struct rusage usage = { 0 };
    int status = 1;
    if (child < 0 || wait4(child, &status, 0, &usage) != child || status != 0) {
        ctl_fail(CAIRN_ERR_INVALID,
                 "%" PRIu64 " parameters in %u tensors on %u shards cannot be planned: too many "
                 "parameters, or too little memory",
                 l->params, l->tensors, l->b.ctl->shards);
        return 0;
    }
    const double rss_bytes = (double)usage.ru_maxrss * 1024;
    if (rss_bytes > l->rss_bytes) l->rss_bytes = rss_bytes;
    return bench_now() - begin;
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
    BENCH_PARTS(&l->b, { "rss_bytes", l->rss_bytes });
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
