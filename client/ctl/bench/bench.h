/* cairn bench: what this machine, or this cluster, makes of Cairn's work, beside a reference that is
 * measured in the same run. One bench a file; it has a row among the subcommands (client/ctl/main.c) that
 * says which options it takes, and its function below.
 *
 * A bench makes its memory, hands two functions to bench_alternate, which calls them by turns, and
 * prints the result. Speeds of one machine differ by half from one minute to the next; ratios of runs that
 * alternate do not, so it is the ratio that counts.
 *
 * In JSON: bench, value, unit, reference, reference_name, ratio: the medians; value_min, value_max and
 * so on; runs; params: what was done, as numbers and words; parts: other figures of the same runs, by
 * name; machine. One thread prints; a bench may have threads of its own. */
#ifndef CAIRN_CLIENT_CTL_BENCH_BENCH_H
#define CAIRN_CLIENT_CTL_BENCH_BENCH_H

#include <cairn.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "client/ctl/local.h"
#include "proto/snapshot/snapshot.h"

/* ==== times ==== */

/* How far the shards of a cluster of the bench's own got with each round, and when: out of their logs, which
 * say it at level debug (server/shard/update.c). */

/* Times: microseconds of CLOCK_MONOTONIC; 0: it did not come to that. */
struct bench_times {
    uint64_t round;
    uint64_t grant, receive, fold; /* the first of each */
    uint64_t reduce, reduced;      /* everything is in and folded; the sums are known */
    uint64_t update, published;    /* the decision is here; the new version is readable */
    /* Counters of the shard's device, since it was opened: launches of kernels, bytes copied to it
     * and from it */
    uint64_t launches, in_bytes, out_bytes;
};

/* Reads the log of shard-`number`, from 1. *out is freed by the caller; rounds ascend. False: there is
 * none. */
bool bench_times_read(const struct local *local, int number, struct bench_times **out,
                      size_t *count_out);

/* ==== timeline ==== */

/* Writes what happened when in one step, as a trace that browsers draw (chrome://tracing,
 * ui.perfetto.dev): JSON, one event ("ph": "X") a span, a process a worker or shard. */

enum bench_span_kind { /* the row a span is drawn in */
                       CAIRN_BENCH_SPAN_NONE = 0,
                       CAIRN_BENCH_SPAN_BACKWARD,
                       CAIRN_BENCH_SPAN_CAST,
                       CAIRN_BENCH_SPAN_PUSH, /* from the call to the last acknowledgement */
                       CAIRN_BENCH_SPAN_COMMIT,
                       CAIRN_BENCH_SPAN_FETCH,
                       CAIRN_BENCH_SPAN_USE /* of a unit that is read as stage 3 does */
};

/* Seconds of CLOCK_MONOTONIC. */
struct bench_span {
    double begin, end;
    uint32_t kind, tensor;
};

/* The steps of some workers: spans [workers][spans_each], kind NONE: not used; rounds [workers], which the
 * steps are of. */
struct bench_trace {
    const struct bench_span *spans;
    const uint64_t *rounds;
    uint32_t workers, spans_each;
};

/* Writes the file; of the shards, too, if they are the bench's own. False, and said. */
bool bench_timeline_write(const struct bench_trace *trace, const struct local *local,
                          const char *path);
/* How much of the time in which a push was under way a backward was, too, of all workers; 0 to 1. */
double bench_timeline_overlap(const struct bench_trace *trace);
/* How much of the time in which a tensor was fetched another one was used, of all workers; 0 to 1. */
double bench_timeline_ahead(const struct bench_trace *trace);

/* ==== crew ==== */

/* The workers of a bench of rounds: processes of their own, each with a session, which do what the bench
 * says, all at a time, and report how long it took.
 *
 *   bench (cairn)   ── order ──►  worker 0, worker 1, ...    pipes; an order is a word and a number
 *                   ◄── report ─
 *
 * A worker that fails has said why; the bench then ends the others. Workers die with the bench. */

#define CAIRN_BENCH_WORKERS_MAX 64
#define CAIRN_BENCH_FIGURES     8

struct bench_order {
    uint32_t word; /* the bench's; never 0 */
    uint32_t count;
};

struct bench_report {
    double figures[CAIRN_BENCH_FIGURES]; /* the bench's; figures[0] is above 0 */
};

/* A worker's end, in its process. */
struct bench_worker {
    uint32_t rank, world;
    int orders_fd, reports_fd;
    const void *plan; /* the bench's */
};
/* The next order; false: there is none any more. */
bool bench_worker_next(const struct bench_worker *worker, struct bench_order *order_out);
/* Order 0, the first, is "ready": answered so by every worker when it is. */
bool bench_worker_report(const struct bench_worker *worker, const struct bench_report *report);

/* A signal from outside, or a daemon that ended, which is said: the bench is over. Each is told of once. */
bool bench_is_interrupted(struct local *local);

struct bench_crew {
    struct local *local; /* borrowed */
    uint32_t count;
    pid_t pids[CAIRN_BENCH_WORKERS_MAX];
    int orders_fds[CAIRN_BENCH_WORKERS_MAX], reports_fds[CAIRN_BENCH_WORKERS_MAX];
};

/* Starts `count` workers, each of which runs `run` to its exit status, and waits for the first report of
 * each. False, and said: one of them failed; stop is still needed. */
bool bench_crew_start(struct bench_crew *crew, struct local *local, uint32_t count,
                      int (*run)(const struct bench_worker *worker), const void *plan);
/* All do it at a time. reports_out [count]. False, and said: one failed, a daemon ended or a signal came. */
bool bench_crew_do(struct bench_crew *crew, struct bench_order order,
                   struct bench_report *reports_out);
/* They end: by themselves, or killed after a second. */
void bench_crew_stop(struct bench_crew *crew);

/* ==== model ==== */

/* A model for benches of rounds: equal matrices, updated by AdamW, and a worker's
 * place in its job. In a worker's process; what fails is said. */

#define CAIRN_BENCH_COLUMNS     1024
#define CAIRN_BENCH_TENSORS_MAX 8192
#define CAIRN_BENCH_CALL_MS     60000

struct bench_model {
    char job[64];
    uint32_t tensors;
    uint64_t rows; /* of CAIRN_BENCH_COLUMNS, of each tensor */
    cairn_dtype wire;
    bool begins_random; /* normal, where the others begin as zeros */
    int device;         /* of cairn_opts: where workers compute; 0: on no card */
    uint32_t batch;     /* global_batch of the job; 0: none */
    uint32_t durable_s; /* snapshot_durable_within_s of the job; 0: none */
    uint32_t added;     /* micro-batches that each worker adds up, and pushes once; 0: none */
};
/* How many elements a tensor has. */
static inline size_t bench_model_elems(const struct bench_model *model)
{
    return (size_t)model->rows * CAIRN_BENCH_COLUMNS;
}

/* Cuts so many parameters, or some more, into its equal tensors. */
void bench_model_cut(struct bench_model *model, uint64_t params);

struct bench_member {
    cairn *session;
    cairn_job *job;
    char names[CAIRN_BENCH_TENSORS_MAX][12]; /* [tensors] */
};
/* Opens the job in a session that is open, or goes on with it; false, and said. */
bool bench_member_join(struct bench_member *member, const struct bench_model *model,
                       const struct bench_worker *worker);
/* The same, in a session of its own. */
bool bench_member_open(struct bench_member *member, const struct bench_model *model,
                       const struct bench_worker *worker);
/* True for CAIRN_OK; else false, and this thread's error is said. */
bool bench_is_ok(cairn_status status);

/* A way that --path may name (NULL: none); by CAIRN_FABRIC it is told to the library. */
bool bench_is_path(const char *name);

/* ==== card ==== */

/* Memory of a card and of processes, for benches. One thread. */

/* Bytes of the card that nobody has taken now; its device as of home_open_cuda. A process of its own
 * asks: a context is not inherited by those that a bench forks afterwards, and what it takes itself is the
 * same each time. False, and said on stderr: there is no such card. */
bool bench_card_free(const char *device, uint64_t *bytes_out);
/* Bytes of host memory that a process has now, what it shares included; 0: there is no such process. */
uint64_t bench_process_bytes(pid_t pid);
/* The most that it had since it began, or since forget. */
uint64_t bench_process_peak(pid_t pid);
void bench_process_peak_forget(pid_t pid);

/* ==== idle ==== */

/* Measures how much processor the daemons of the bench's own cluster use while nothing happens:
 * processor time of all threads, in nanoseconds, so a loaded machine does not change the figure. */

#define CAIRN_BENCH_IDLE_LIMIT 0.5 /* percent of a core, a daemon */

/* Processor time of a process so far, in seconds: of all its threads, including those that have
 * ended; below 0: the process is gone. */
double bench_used_s(pid_t pid);
/* Lets `seconds` go by and gives the percentage of one core that the busiest daemon has used.
 * Workers that are attached keep still meanwhile. False, and said: a daemon ended, or a signal
 * came. */
bool bench_idle(struct local *local, double seconds, double *percent_out);

/* ==== bench ==== */

#define CAIRN_BENCH_RUNS_MIN 5   /* of subject and reference each, however long they take */
#define CAIRN_BENCH_RUNS_MAX 501 /* an odd number has a middle */

struct bench_spread {
    double median, min, max;
};

struct bench_result {
    /* filled in by the bench; borrowed */
    const char *bench;          /* "update" */
    const char *unit;           /* "GB/s", "s": of value and reference */
    const char *reference_name; /* "in-place update of 6 streams" */
    bool less_is_better;        /* of the unit: a time */
    /* owned: freed by bench_print */
    json_t *params; /* an object, or NULL */
    json_t *parts;  /* an object of numbers "update_GB/s": ..., or NULL */
    /* filled in by bench_alternate or by the bench. The ratio is of runs that followed each other, and
     * above 1 where the subject is better than the reference, whatever the unit. */
    struct bench_spread value, reference, ratio;
    uint32_t runs;
};

/* One run: its figure, in the result's unit, above 0. Anything else: it failed and has said why. */
typedef double (*bench_fn)(void *context);

/* Calls subject and reference by turns, once each unmeasured, then for `seconds` (0: 5) but at least
 * CAIRN_BENCH_RUNS_MIN times. -1: go on; else the exit status: a run failed. */
int bench_alternate(struct bench_result *result, double seconds, bench_fn subject,
                    bench_fn reference, void *context);
/* Median, least and greatest of values[count], count >= 1; puts them in order. */
struct bench_spread bench_spread_of(double *values, uint32_t count);
/* Prints it as ctl asks, releases what it owns, and returns 0. */
int bench_print(struct bench_result *result, const struct ctl *ctl);

/* Seconds of a clock; of one that does not jump. */
double bench_clock(clockid_t clock);
double bench_now(void);
/* Cores that this process may use, and the memory that is available now. */
uint32_t bench_core_count(void);
uint64_t bench_memory_bytes(void);

/* ---- the benches; each returns the exit status ---- */
int bench_update(struct ctl *ctl);
int bench_layout(struct ctl *ctl);
int bench_latency(struct ctl *ctl);
int bench_tensors(struct ctl *ctl);
int bench_open(struct ctl *ctl);
int bench_fabric(struct ctl *ctl);
int bench_step(struct ctl *ctl);
int bench_map(struct ctl *ctl);
int bench_reshard(struct ctl *ctl);
int bench_snapshot(struct ctl *ctl);

/* ==== ends ==== */

/* The two ends of a bench of the fabric: this process as the worker, a child as the shard, which do with a
 * chunk what the client library and a shard do with it on its way, and nothing else.
 *
 *   push:  worker  checksum, PUSH ──►  shard  receive into a slot, checksum, ACK
 *          (to a peer that maps: no checksum; it reads all of it where it lies)
 *   fetch: worker  FETCH ──►  shard  copy of what is published, its checksum as kept, DATA ──►
 *          worker  receive around the caches, checksum on the way
 *          (to a peer that maps: straight from what is published)
 *
 * Headers of 128 bytes, CAIRN_BENCH_WINDOW chunks under way, each end one libuv loop that sleeps when there
 * is nothing to do. The child ends with the worker's end, or with this process. */

#define CAIRN_BENCH_WINDOW 8
#define CAIRN_BENCH_AREA_BYTES \
    ((size_t)64 << 20) /* what is pushed, and what is published, again and again */

/* Bits: work that is left out, to see what it costs. */
enum bench_less {
    CAIRN_BENCH_UNCHECKED = 1, /* no checksum is made or compared */
    CAIRN_BENCH_ONE_CHUNK =
        2 /* one chunk again and again instead of the area: what the caches keep */
};

struct bench_ends;

/* ==== reference ==== */

/* The reference that the fabric is measured against: the same bytes by the shortest way there
 * is. */

/* GB/s; 0: it failed, and that was said. */

/* ucx_perftest -t ucp_am_bw -E sleep -e: two processes that send one buffer into one other, with the fabric's
 * settings, and sleep as it does. (With -E poll it is faster where both have an idle core, and many times
 * slower where they have not. -e: endpoints with the error handling that Cairn's have, without which a dead
 * peer is never noticed; without -e it is 1.4 times as fast, over another lane.) */
bool bench_perftest_is_there(void);
double bench_perftest(size_t chunk_bytes, uint64_t chunks);
/* write() and read() over loopback, two processes. */
double bench_raw_tcp(size_t chunk_bytes, uint64_t chunks);
/* memcpy of one area to another, each of `area_bytes`. */
double bench_memcpy(size_t area_bytes, size_t chunk_bytes, uint64_t chunks);

/* ==== step ==== */

/* cairn bench step: what its parts share. The bench (step.c) orders, workers (worker.c) do it. */

#define STEP_SPANS_EACH(tensors) \
    (6 * (tensors) + 2) /* cast, push, two fetches and two uses of each; backward, commit */

/* A step whose backward sleeps; a copy; a step that adds up in the worker; one whose backward computes on
 * every core. */
enum { STEP_ORDER_STEP = 1, STEP_ORDER_COPY = 2, STEP_ORDER_ADDED = 3, STEP_ORDER_BUSY = 4 };
/* The figures of a worker's report: seconds; bytes of this step, by the library's own count. */
enum {
    STEP_FIGURE_ALL,
    STEP_FIGURE_PUSH, /* round_begin, backward, casts, pushes that left or wait */
    STEP_FIGURE_COMMIT,
    STEP_FIGURE_FETCH, /* or, unit by unit, what of the first was waiting for them */
    STEP_FIGURE_PUSHED_BYTES,
    STEP_FIGURE_FETCHED_BYTES,
    STEP_FIGURE_HOST_BYTES, /* of both: what passed the host */
    STEP_FIGURES
};

/* How the parameters are read: all of them behind the commit, copied or lent (and one byte of each page is
 * read), or unit by unit, in a forward and a backward (step.c). */
enum step_read { STEP_READ_FETCH, STEP_READ_MAP, STEP_READ_UNITS };

struct step_plan {
    struct bench_model model;
    double backward_seconds; /* 0: all gradients are there at once */
    bool is_traced;
    enum step_read read;
    int card; /* gradients and parameters lie on that one, by cairn_alloc; -1: in host memory */
    const char *device; /* the same, as --device says it; borrowed */
    /* shared with the workers: [workers][STEP_SPANS_EACH(tensors)], [workers]; of the last step */
    struct bench_span *spans;
    uint64_t *rounds;
};

/* Maps what workers share with the bench, which has filled in the rest. False, and said: no memory. */
bool bench_step_plan_share(struct step_plan *plan, uint32_t workers);
void bench_step_plan_release(struct step_plan *plan, uint32_t workers);

int bench_step_work(const struct bench_worker *worker);

/* ==== worker ==== */

/* A worker of the bench of a step, in its process: what worker.c and step.c share. */

/* A unit that was asked for, and is not known to be there. */
struct step_asked {
    cairn_op *op; /* NULL: there is none */
    uint32_t tensor;
    double begin;
};

struct step_worker {
    const struct step_plan *plan;
    uint32_t rank;
    struct bench_member member;
    struct bench_member added; /* of a batch: the job to which it pushes sums; same session */
    size_t elems, elem_bytes;  /* of a tensor; of an element on the wire */
    float *made;               /* [tensors * elems]: what backward gives; NULL: `grads` are that */
    char *grads,
        *params; /* [tensors * elems], of the wire's type; plan->card >= 0: not to be followed */
    struct step_card *card; /* owned: of plan->card; NULL: all is in host memory */
    cairn_op *ops[CAIRN_BENCH_TENSORS_MAX];
    struct cairn_view views[CAIRN_BENCH_TENSORS_MAX];
    uint32_t lent;            /* views, by a step that reads all at its end */
    struct step_asked asked;  /* by one that reads unit by unit */
    bool is_busy;             /* the backward of this step computes */
    double waited;            /* seconds of this step, for units that were not there */
    struct bench_span *spans; /* [STEP_SPANS_EACH] of the plan, from span_count on free */
    uint32_t span_count;
    int acks[2]; /* a pipe to the thread that waits for acknowledgements: tensors in order */
    bool acks_ok;
};

/* A span that ends now; only of a traced step. */
struct bench_span *step_add_span(struct step_worker *w, enum bench_span_kind kind, uint32_t tensor,
                                 double begin);
void step_sleep_until(double seconds);
/* ---- worker.c ---- */
void step_compute_until(double seconds);
/* A look at each page of a tensor, so that to have it there is in the time. */
void step_look_at(const struct step_worker *w, const struct cairn_view *view);
/* The gradient of tensor i is ready: its cast, if it needs one, and its push. */
cairn_status step_push_one(struct step_worker *w, const struct cairn_round *round, uint32_t i);

/* The figures of bytes: what came to the library's counts from `before` to `after`. */
void step_count_bytes(const struct cairn_stats *before, const struct cairn_stats *after,
                      struct bench_report *report);
struct cairn_mem step_tensor_of(const struct step_worker *w, char *memory, uint32_t tensor);
/* All parameters of that job. */
cairn_status step_fetch_all(struct step_worker *w, const struct bench_member *member,
                            struct cairn_version version);

/* ---- step.c ---- */
/* The second job, and gradients as the wire has them. False, and said. */
bool step_batch_open(struct step_worker *w, const struct bench_worker *worker);
/* A step of all micro-batches, of `member` or of `added`. False, and said. */
bool step_batch_run(struct step_worker *w, const struct bench_member *member,
                    struct bench_report *report);

/* Memory on the card for gradients and parameters. The gradients are what the parameters of the job are,
 * which begin as random numbers: nothing here writes to a card by itself. False, and said. */
bool step_card_take(struct step_worker *w);
/* Copies the bytes of all gradients on the card so many times. Seconds; 0, and said: it failed. */
double step_card_copy(struct step_worker *w, int copies);

/* Forward and backward of the round's version, unit by unit, with all pushes. */
cairn_status step_units_run(struct step_worker *w, const struct cairn_round *round);

/* ==== shards ==== */

/* Reports what the shards of a step do, and how much memory shards and workers take, in a cluster
 * of the bench's own. */

/* Adds to `parts` the medians over all rounds but the first of what a shard's phases took, and of what its
 * device did: launches, bytes copied to it and from it; and the memory that a shard and a worker have now, in
 * bytes. With several shards, or workers, each figure is the greatest. */
void step_shards_report(const struct local *local, const struct bench_crew *crew, json_t *parts);

/* ==== disk ==== */

/* The reference for the bench of snapshots: one file of as many bytes, written from its begin to
 * its end and synced, and read, or both, by direct I/O of large blocks, several in flight. The
 * files have no name, so nothing of them stays. */

#define CAIRN_BENCH_DISK_BLOCK_BYTES ((size_t)8 << 20)
#define CAIRN_BENCH_DISK_THREADS     4

struct bench_disk {
    struct local *local; /* borrowed; the file is in its folder */
    bool
        is_buffered; /* the file system refuses direct I/O: then through the page cache, and synced */
    /* owned: by the first read, until close */
    int fd; /* 0: none */
    uint64_t bytes;
};

/* GB/s of the file's bytes, which are not in the page cache; as above. The first time it is written. */
double bench_disk_read(struct bench_disk *disk, uint64_t bytes);
/* The same of a file that is read and, by the same threads, written to another, until all is on the disk. */
double bench_disk_copy(struct bench_disk *disk, uint64_t bytes);

/* ==== saver ==== */

/* A snapshot of the bench's job, asked for or by the job's own rule, or its restore, by a thread of its own,
 * so that the bench may order steps meanwhile, or be interrupted. */

struct bench_saver {
    /* the caller's, before begin */
    struct local *local;
    const char *job;
    bool restores; /* the snapshot that was taken last, else it takes one */
    /* 0: it asks for the snapshot; else the job takes it, at the next step that this divides */
    uint64_t every;
    /* of the last one; valid after end */
    char id[CAIRN_SNAPSHOT_ID_BYTES]; /* "": there is none */
    char path[PATH_MAX];              /* its folder */
    double begin, end;                /* bench_now: asked or begun, committed or restored */
    uint64_t bytes;
    /* the thread's */
    struct ctl ctl;
    pthread_t thread;
    bool is_ok; /* it has said so where it is not */
    atomic_bool is_over;
};

/* False, and said: there is no thread. */
bool bench_save_begin(struct bench_saver *saver);
/* Waits for its end; false: it failed, and has said why, or a signal came. With `gives_up` the daemons are
 * stopped, which ends it. */
bool bench_save_end(struct bench_saver *saver, bool gives_up);
/* Both. Seconds; 0: it failed. */
double bench_save(struct bench_saver *saver);
/* Removes the snapshot that was taken last, if there is one. False, and said. */
bool bench_save_remove(struct bench_saver *saver);
/* Drops the job, as if the cluster had lost it; its snapshots stay. False, and said. */
bool bench_save_drop_job(struct bench_saver *saver);
/* Drops the bytes that were written for the snapshot from the page cache. */
void bench_save_make_cold(const struct bench_saver *saver);

/* ==== figures ==== */

/* Computes from the times of steps how much a snapshot slows them down: pure. Times are seconds of
 * bench_now. */

struct bench_interval {
    double *steps; /* owned by who has the interval: [count], each above 0 */
    uint32_t count, capacity;
    double begin;                        /* when the first step began */
    double snapshot_begin, snapshot_end; /* 0: there was none */
    uint64_t shard_bytes[64];            /* the most that shard i had resident; 0: no such shard */
};

struct bench_slowdown {
    uint32_t steps;                 /* without, or with, whichever are fewer */
    double mean_without, mean_with; /* of all steps */
    double slowdown;                /* (with - without) / without */
    double median;                  /* of the steps without */
    double worst_without, worst_with;
    double worst_over_median; /* of those with */
    double worst_added;       /* worst_with - median */
    double memory_added;      /* of the shard that is worst: bytes at most with - without */
};

/* Compares pairs[pair_count] of intervals that followed each other, [0] without and [1] with a
 * snapshot; every interval has steps, whose order stays. False: there is no memory. */
bool bench_slowdown_of(const struct bench_interval (*pairs)[2], uint32_t pair_count,
                       struct bench_slowdown *out);
/* Adds one more step. False: there is no memory. */
bool bench_interval_add(struct bench_interval *interval, double seconds);

/* ==== torch ==== */

/* Measures how long PyTorch takes to save as many bytes, on the same disk and in the same run. */

struct bench_torch {
    double save_s; /* torch.save and fsync of all, by one process; 0: there is no torch */
    double
        stall_s; /* so long async_save of torch.distributed.checkpoint holds its callers up; 0: none */
    double async_s; /* until it has written all */
};

/* Saves `elems` of f32 of parameters, and as many of both moments. torch.save by one process, the
 * median of three; async_save by `workers` processes at a time, each of which has its part (the
 * second time, which finds its memory). python3 is that of PATH, else /usr/bin/python3. If python3
 * or a module is missing, that is said. False: a signal came. */
bool bench_torch_measure(struct local *local, uint64_t elems, uint32_t workers,
                         struct bench_torch *out);

/* ==== snapshot ==== */

/* cairn bench snapshot: what its parts share. Each part is in a file of its own, and runs in a cluster of the
 * bench's own whose folder is in --dir, so everything that is written lies there and goes with it. */

#define SNAPSHOT_RUNS 5 /* of each, where they are not timed by --seconds */

struct snapshot_bench {
    const struct ctl *ctl;
    struct local *local;         /* of the part that runs */
    struct bench_result *result; /* of the same */
    json_t *parts;               /* figures of all parts */
    double seconds;              /* of an interval */
    struct step_plan plan;
    uint32_t workers;
    struct bench_crew crew;
    struct bench_disk disk;
    struct bench_saver saver;
    uint64_t steps; /* that the job has made */
    double stall_s; /* of async_save of the same state; 0: not measured */
};

/* How many elements the job has, and bytes a snapshot of it. */
uint64_t snapshot_elems(const struct snapshot_bench *b);
uint64_t snapshot_bytes(const struct snapshot_bench *b);
/* Starts the workers, which make a first step. False, and said: one of them failed;
 * bench_crew_stop is needed. */
bool snapshot_crew_start(struct snapshot_bench *b);
/* A step of all workers. Seconds of the slowest; 0, and said. */
double snapshot_step(struct snapshot_bench *b, uint32_t word);
void snapshot_set(struct snapshot_bench *b, const char *name, double value);

/* A job at rest, and a snapshot of it, if there is none yet. False, and said. */
bool snapshot_make(struct snapshot_bench *b);
/* GB/s of as many bytes as a snapshot has, to the disk as it is; `context` is the bench. 0, and said. */
double snapshot_write_raw(void *context);

/* The parts, in a cluster that is up. -1: go on; else the exit status. */
int snapshot_write(struct snapshot_bench *b);
int snapshot_bench_read(struct snapshot_bench *b);
int snapshot_interval(struct snapshot_bench *b);
int snapshot_export(struct snapshot_bench *b);
int snapshot_import(struct snapshot_bench *b);
int snapshot_manifest(struct snapshot_bench *b);

#endif
