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

/* ==== crew ==== */

/* The workers of a bench of rounds: processes of their own, each with a session, which do what the bench
 * says, all at a time, and report how long it took.
 *
 *   bench (cairn)   ── order ──►  worker 0, worker 1, ...    pipes; an order is a word and a number
 *                   ◄── report ─
 *
 * A worker that fails has said why; the bench then ends the others. Workers die with the bench. */

#define BENCH_WORKERS_MAX 64
#define BENCH_FIGURES     8

struct bench_order {
    uint32_t word; /* the bench's; never 0 */
    uint32_t count;
};

struct bench_report {
    double figures[BENCH_FIGURES]; /* the bench's; figures[0] is above 0 */
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
    pid_t pids[BENCH_WORKERS_MAX];
    int orders_fds[BENCH_WORKERS_MAX], reports_fds[BENCH_WORKERS_MAX];
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

#define BENCH_COLUMNS     1024
#define BENCH_TENSORS_MAX 8192
#define BENCH_CALL_MS     60000

struct bench_model {
    char job[64];
    uint32_t tensors;
    uint64_t rows; /* of BENCH_COLUMNS, of each tensor */
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
    return (size_t)model->rows * BENCH_COLUMNS;
}

/* Cuts so many parameters, or some more, into its equal tensors. */
void bench_model_cut(struct bench_model *model, uint64_t params);

struct bench_member {
    cairn *session;
    cairn_job *job;
    char names[BENCH_TENSORS_MAX][12]; /* [tensors] */
};
/* Opens the job in a session that is open, or goes on with it; false, and said. */
bool bench_member_join(struct bench_member *member, const struct bench_model *model,
                       const struct bench_worker *worker);
/* The same, in a session of its own. */
bool bench_member_open(struct bench_member *member, const struct bench_model *model,
                       const struct bench_worker *worker);
/* True for CAIRN_OK; else false, and this thread's error is said. */
bool bench_is_ok(cairn_status status);

/* ==== bench ==== */

#define BENCH_RUNS_MIN 5   /* of subject and reference each, however long they take */
#define BENCH_RUNS_MAX 501 /* an odd number has a middle */

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
 * BENCH_RUNS_MIN times. -1: go on; else the exit status: a run failed. */
int bench_alternate(struct bench_result *result, double seconds, bench_fn subject,
                    bench_fn reference, void *context);
/* Median, least and greatest of values[count], count >= 1; puts them in order. */
struct bench_spread bench_spread_of(double *values, uint32_t count);
/* Prints it as ctl asks, releases what it owns, and returns 0. */
int bench_print(struct bench_result *result, const struct ctl *ctl);

/* Refuses too many workers or tensors, and a --path that is none. -1: go on. */
int bench_check(const struct ctl *ctl, uint32_t workers, uint32_t tensors);
/* Is there so much memory? `what`: "" or " of memory"; `fewer`: the options that make it less. -1: go on. */
int bench_check_memory(uint64_t needed_bytes, const char *what, const char *fewer);
/* A figure of the slowest worker. */
double bench_greatest(const struct bench_report *reports, uint32_t count, int figure);

/* Seconds of a clock; of one that does not jump. */
double bench_clock(clockid_t clock);
double bench_now(void);
/* Processor time of a process so far, in seconds: of all its threads, including those that have
 * ended; below 0: the process is gone. */
double bench_used_s(pid_t pid);
/* Bytes of host memory that a process has now, what it shares included; 0: there is no such process. */
uint64_t bench_process_bytes(pid_t pid);
/* The most that it had since it began, or since forget. */
uint64_t bench_process_peak(pid_t pid);
void bench_process_peak_forget(pid_t pid);
/* Cores that this process may use, and the memory that is available now. */
uint32_t bench_core_count(void);
uint64_t bench_memory_bytes(void);

ctl_command bench_update, bench_layout, bench_latency, bench_tensors, bench_open, bench_fabric,
    bench_step, bench_map, bench_reshard, bench_snapshot;

/* ==== step ==== */

enum bench_span_kind { /* the row a span is drawn in */
                       BENCH_SPAN_NONE = 0,
                       BENCH_SPAN_BACKWARD,
                       BENCH_SPAN_CAST,
                       BENCH_SPAN_PUSH, /* from the call to the last acknowledgement */
                       BENCH_SPAN_COMMIT,
                       BENCH_SPAN_FETCH,
                       BENCH_SPAN_USE /* of a unit that is read as stage 3 does */
};

/* Seconds of CLOCK_MONOTONIC. */
struct bench_span {
    double begin, end;
    uint32_t kind, tensor;
};

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

/* ==== disk ==== */

/* The reference for the bench of snapshots: one file of as many bytes, written from its begin to
 * its end and synced, and read, or both, by direct I/O of large blocks, several in flight. The
 * files have no name, so nothing of them stays. */

#define BENCH_DISK_BLOCK_BYTES ((size_t)8 << 20)
#define BENCH_DISK_THREADS     4

struct bench_disk {
    struct local *local; /* borrowed; the file is in its folder */
    bool
        is_buffered; /* the file system refuses direct I/O: then through the page cache, and synced */
    /* owned: by the first read, until close */
    int fd; /* 0: none */
    uint64_t bytes;
};

/* GB/s until all is on the disk; 0, and said: it failed, or a signal came. */
double bench_disk_write(struct bench_disk *disk, uint64_t bytes);
/* GB/s of the file's bytes, which are not in the page cache; as above. The first time it is written. */
double bench_disk_read(struct bench_disk *disk, uint64_t bytes);
/* The same of a file that is read and, by the same threads, written to another, until all is on the disk. */
double bench_disk_copy(struct bench_disk *disk, uint64_t bytes);

void bench_disk_close(struct bench_disk *disk);

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

/* Runs a script in `count` processes at a time; each is given a folder, `elems`, `count` and its
 * own index, and prints two numbers. Gives the greatest of each. 1: they are there; 0: not; -1: a
 * signal came. */
int bench_torch_run(struct local *local, const char *script, uint64_t elems, uint32_t count,
                    double numbers_out[static 2]);

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

#endif
