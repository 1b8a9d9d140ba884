/* cairn-bench, which `cairn bench` runs: measures Cairn's work on this machine or this cluster,
 * beside a reference that is measured in the same run. A bench is a row (struct bench_row), which
 * has the bench's defaults and functions. The functions open the measured subject, run subject and
 * reference once, and report other figures. One harness (bench.c) does the rest: the options, the
 * cluster, the workers, the alternating runs, the medians, the printing. The speed of one machine
 * varies by half from one minute to the next, while the ratio of alternating runs stays the same.
 * So only the ratio counts.
 *
 * The JSON has bench, unit and reference_name; value, reference and ratio, which are medians; the
 * extremes of these, such as value_min and value_max; runs; params (the parameters of the runs, as
 * numbers and words); parts (other figures of the same runs, by name); machine. One thread prints;
 * a bench may have threads of its own. The program ends after one bench, so that a bench gives no
 * memory back. */
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

/* ==== processes and threads ==== */

/* A process of the bench, whose standard output the bench reads. It dies with the bench. */
struct bench_child {
    pid_t pid; /* 0: none */
    int out_fd;
};
/* Starts a process that exits with the result of `run`. `local`: the bench's cluster; NULL: none. Returns
 * false after printing the error if no process could be started. */
bool bench_child_start(struct bench_child *child, struct local *local, int (*run)(void *own),
                       void *own);
/* For `run`: executes a program, whose input and errors are /dev/null. */
int bench_child_become(const char *program, char *const *arguments);
/* Reads the child's output to its end. 1: `text` has all of it; 0: the output was too long, or did not end
 * within limit_ms (-1: no limit); -1: the bench is over (bench_is_interrupted). */
int bench_child_read(const struct bench_child *child, struct local *local, int limit_ms, char *text,
                     size_t text_bytes);
/* Sends the signal (0: none), and waits until the child has ended. Returns the exit status; -1: a signal
 * ended the child. */
int bench_child_end(struct bench_child *child, int signal_number);
/* Reads the two numbers that the child prints, and ends the child. 1: there are two numbers; 0: there are
 * not; -1 as for bench_child_read. */
int bench_child_numbers(struct bench_child *child, struct local *local,
                        double numbers_out[static 2]);

/* Returns true if the bench is over, because a signal came from outside or a daemon ended. A
 * message reports each such event once. */
bool bench_is_interrupted(struct local *local);

#define BENCH_THREADS_MAX 64
/* Calls `run` with the numbers from 0 to count - 1, at most BENCH_THREADS_MAX, each on a thread, of which
 * this thread is number 0. Returns 0 when all have ended; else why a thread could not be started, as errno:
 * then the threads before it have run. */
int bench_threads_run(uint32_t count, void (*run)(void *own, uint32_t number), void *own);

/* ==== workers ==== */

/* The workers of a bench of rounds: separate processes, each with a session. They all execute an order of
 * the bench at the same time, and report how long the order took.
 *
 *   bench (cairn)   ── order ──►  worker 0, worker 1, ...    sockets; an order is a word and a number
 *                   ◄── report ─
 *
 * A worker that fails prints the error first; the bench then ends the other workers. Workers die with the
 * bench. */

#define BENCH_WORKERS_MAX 64
#define BENCH_FIGURES     10

struct bench_order {
    uint32_t word; /* defined by the bench; never 0 */
    uint32_t count;
};

struct bench_report {
    double figures[BENCH_FIGURES]; /* defined by the bench; figures[0] is above 0 */
};

/* The worker's end, in the worker's process. */
struct bench_worker {
    uint32_t rank, world;
    int fd;
    const void *bench; /* the bench's state, as it was when the worker started */
};
/* Sends a report. Every worker sends the first one, whose figures have no meaning, as soon as it is
 * ready. */
bool bench_worker_report(const struct bench_worker *worker, const struct bench_report *report);
struct bench_member;
/* Executes orders by `obey` until there are no more, and then closes the member's session. `obey`
 * returns false after printing an error. Returns the exit status. */
int bench_serve(const struct bench_worker *worker, struct bench_member *member,
                bool (*obey)(void *own, const struct bench_order *order,
                             struct bench_report *report),
                void *own);

/* ==== model ==== */

/* A model for benches of rounds (equal matrices, updated by AdamW) and a worker's membership in the
 * model's job. These functions are called in a worker's process, and print their errors. */

#define BENCH_COLUMNS     1024
#define BENCH_TENSORS_MAX 8192
#define BENCH_CALL_MS     60000

struct bench_model {
    char job[64];
    const char *endpoint; /* of the cluster that has the job; NULL: the one of the environment */
    uint32_t tensors;
    uint64_t rows; /* each tensor has `rows` rows of BENCH_COLUMNS */
    cairn_dtype wire;
    bool begins_random; /* normally distributed initial values; otherwise zeros */
    int device;         /* cairn_opts.device: where workers compute; 0: on no card */
    uint32_t batch;     /* global_batch of the job; 0: none */
    uint32_t durable_s; /* snapshot_durable_within_s of the job; 0: none */
    bool is_logged;     /* durability of the job: log */
    uint32_t added;     /* micro-batches that each worker sums before one push; 0: none */
};
/* The number of elements of a tensor, and its bytes on the wire. */
static inline size_t bench_model_elems(const struct bench_model *model)
{
    return (size_t)model->rows * BENCH_COLUMNS;
}
static inline size_t bench_model_bytes(const struct bench_model *model)
{
    return bench_model_elems(model) * (model->wire == CAIRN_F32 ? 4 : 2);
}
static inline uint64_t bench_model_params(const struct bench_model *model)
{
    return model->tensors * (uint64_t)bench_model_elems(model);
}
static inline const char *bench_wire_name(cairn_dtype wire)
{
    return wire == CAIRN_F32 ? "f32" : "bf16";
}

/* Sets the shape of the equal tensors so that they have `params` parameters, or slightly more. */
void bench_model_cut(struct bench_model *model, uint64_t params);

struct bench_member {
    cairn *session;
    cairn_job *job;
    char names[BENCH_TENSORS_MAX][12]; /* [tensors] */
};
/* Opens the job, or continues it, in a session that is already open. Returns false after printing the error
 * if this failed. */
bool bench_member_join(struct bench_member *member, const struct bench_model *model,
                       const struct bench_worker *worker);
/* Like bench_member_join, but opens a session of its own. */
bool bench_member_open(struct bench_member *member, const struct bench_model *model,
                       const struct bench_worker *worker);
/* Returns true for CAIRN_OK; else prints this thread's error and returns false. */
bool bench_is_ok(cairn_status status);

/* Returns the memory of tensor i, of the wire's type; all tensors lie one after the other. */
struct cairn_mem bench_mem_of(const struct bench_model *model, char *memory, uint32_t i);
/* Push or fetch every tensor, each by a call of its own. `ops` receives [tensors] operations. */
cairn_status bench_push_each(const struct bench_member *member, const struct bench_model *model,
                             const struct cairn_round *round, uint32_t micro, char *memory);
cairn_status bench_fetch_each(const struct bench_member *member, const struct bench_model *model,
                              struct cairn_version version, char *memory, cairn_op **ops);

/* The first figures of a report about a step, in seconds; a bench may have more. */
enum {
    BENCH_FIGURE_ALL,
    BENCH_FIGURE_PUSH, /* round_begin, and everything before the commit */
    BENCH_FIGURE_COMMIT,
    BENCH_FIGURE_FETCH,
    BENCH_STEP_FIGURES
};
/* A step of a job: first the round is begun, then `push` does all work before the commit, and
 * `fetch` all work after the commit; NULL: there is no such work. */
struct bench_step {
    cairn_job *job;
    uint32_t micros; /* as for cairn_commit */
    cairn_status (*push)(void *own, const struct cairn_round *round);
    cairn_status (*fetch)(void *own, struct cairn_version version);
    void *own;
    /* the times (bench_now) of the beginning, and of the ends of cairn_round_begin, push, commit and
     * fetch */
    double at[5];
    struct cairn_round round;
    struct cairn_version version; /* that the step made */
};
/* Runs the step. */
cairn_status bench_step_do(struct bench_step *step);
/* Runs the step, and sets the report's first figures. Returns false after printing the error. */
bool bench_step_run(struct bench_step *step, struct bench_report *report);

/* ==== bench ==== */

#define BENCH_RUNS_MIN 5 /* runs of the subject and runs of the reference, however long they take */
#define BENCH_RUNS_MAX 501 /* odd, so that the median is one of the runs */

struct bench_spread {
    double median, min, max;
};

/* How safe the shards of the bench's own cluster are. They survive nothing; the end of their process, by a
 * keeper; the end of their host, by a standby; that of all hosts at once, by logs. */
enum bench_tier { BENCH_TIER_NONE, BENCH_TIER_PROCESS, BENCH_TIER_PEER, BENCH_TIER_LOG };

struct bench_result {
    const char *unit;           /* the unit of value and reference: "GB/s", "s" */
    const char *reference_name; /* "in-place update of 6 streams" */
    bool less_is_better;        /* the unit is a time */
    /* The ratio is computed from consecutive runs. Whatever the unit, a ratio above 1 means that the subject
     * is better than the reference. */
    struct bench_spread value, reference, ratio;
    uint32_t runs; /* 0: the bench had nothing to measure */
};

/* Does one run and returns its figure, in the result's unit, above 0. Any other value means that the run
 * failed, after printing the error. The run may set bench.figures. */
typedef double bench_fn(void *bench);
/* A stage of a bench. -1: continue; else the exit status, after printing the error. */
typedef int bench_stage(void *bench);

/* A figure of every run, whose median becomes a part. */
struct bench_column {
    const char *name; /* NULL: the list ends */
    int figure;
    const char *ratio_name; /* the part for the median over the result's reference; NULL: none */
};

/* A bench. Its functions get the bench's state, which begins with a struct bench. NULL in place of
 * a function: nothing to do. */
struct bench_row {
    const char *name; /* the verb */
    const char *unit, *reference_name;
    bool less_is_better;
    bool in_cluster;  /* runs in a cluster: one of its own, or the cluster at --endpoint */
    bool logs_rounds; /* the bench's shards log their rounds, for bench.times */
    size_t bytes;     /* the size of the state, which is zero at first */
    /* the parameters that the result shows, of the parameters that the harness knows: "params
     * tensors shards" */
    const char *params_told;
    const struct bench_column *columns; /* of the subject's runs */
    /* the defaults where the command line gives no value; 0: the bench makes its own model */
    uint32_t shards, workers, tensors;
    uint64_t params;
    cairn_dtype wire;
    double seconds; /* the time of the alternating runs; 0: as --seconds says */
    /* The stages, in this order. The workers are there from `begin` to `report`. */
    bench_stage *all;     /* replaces all stages below, in a bench that consists of rows */
    bench_stage *prepare; /* judges the options, makes the model */
    bench_stage *open;    /* in the cluster, before the workers */
    /* runs in a worker's process; NULL: there are no workers */
    int (*work)(const struct bench_worker *worker);
    bench_stage *begin;
    bench_fn *run, *reference;
    bench_stage *report; /* adds to `parts` and `params` */
    bench_stage *again;  /* with workers of a second cluster, whose shards log their rounds */
};
extern const struct bench_row bench_update, bench_layout, bench_latency, bench_fabric, bench_step,
    bench_tensors, bench_open, bench_reshard, bench_snapshot, bench_map, bench_recover;

/* The times at which a round reached its phases on a shard of the bench's own cluster. They are read
 * from the shards' logs, which record these times at level debug (server/shard/update.c). Times are
 * microseconds of CLOCK_MONOTONIC; 0: the round did not reach that phase. */
struct bench_times {
    uint32_t shard; /* from 1 */
    uint64_t round;
    uint64_t grant, receive, fold; /* when the first grant, receipt and fold happened */
    /* reduce: all contributions are received and folded. reduced: the sums are known */
    uint64_t reduce, reduced;
    /* update: the decision has arrived. published: the new version is readable */
    uint64_t update, published;
    /* Counters of the shard's device since it was opened. launches: kernel launches. in_bytes:
     * bytes copied to the device. out_bytes: bytes copied from the device */
    uint64_t launches, in_bytes, out_bytes;
};

/* Returns the seconds between two of these times; 0 if one of them is missing. */
static inline double bench_between_s(uint64_t from_us, uint64_t to_us)
{
    return from_us != 0 && to_us > from_us ? (double)(to_us - from_us) * 1e-6 : 0;
}

/* The figures of every run of the subject, or of the reference. */
struct bench_series {
    uint32_t count; /* the first entry belongs to the run that is not measured */
    double values[BENCH_FIGURES][BENCH_RUNS_MAX + 1];
};
enum { BENCH_SUBJECT, BENCH_REFERENCE, BENCH_SIDES };

struct bench {
    const struct bench_row *row;
    struct ctl *ctl;
    struct local *local; /* NULL: the bench is in no cluster */
    bool logs_rounds;
    enum bench_tier tier; /* as --tier says; `prepare` may change it */
    /* The reference runs in a cluster of its own, without the tier: `beside`, which is up from `open` on */
    bool is_compared;
    struct local *beside;
    uint32_t runs_wanted; /* the number of measured runs; 0: as the time allows */
    struct bench_result result;
    json_t *params, *parts; /* objects, owned */
    struct bench_model model;
    uint32_t workers;
    struct {
        uint32_t count;
        pid_t pids[BENCH_WORKERS_MAX];
        int fds[BENCH_WORKERS_MAX];
    } crew;
    /* the figures of this run: of the last order, the greatest of all workers, unless the bench changes
     * them */
    double figures[BENCH_FIGURES];
    struct bench_series series[BENCH_SIDES];
    /* The rounds that the shards logged, by shard, then in ascending order; for `report`, and for `again`
     * after bench_times_read. Empty if the cluster is not the bench's own. */
    struct bench_times *times;
    size_t time_count;
};

/* Runs the bench that the line names, for main(). */
ctl_command bench_run;
/* Carries out the row, up to its last stage; `bench` is the state. -1: continue. */
bench_stage bench_measure;

/* Has all workers execute the order at the same time, and sets bench.figures. Returns the first of them. If
 * a worker failed, a daemon ended or a signal came, prints the error and returns 0. */
double bench_order(struct bench *b, uint32_t word, uint32_t count);
/* The same in two halves, for a bench that has to do something meanwhile. */
bool bench_order_begin(struct bench *b, uint32_t word, uint32_t count);
double bench_order_end(struct bench *b);
/* Starts and ends the workers, for a bench that does so itself: each calls `run` and exits with its result.
 * bench_crew_start returns false after printing the error; bench_crew_stop is needed even then. */
bool bench_crew_start(struct bench *b, int (*run)(const struct bench_worker *worker));
void bench_crew_stop(struct bench *b);

/* Calls subject and reference alternately. The first call of each is not measured. The measured
 * calls last `seconds` (0: 5), with at least BENCH_RUNS_MIN of each. Returns -1 to continue, or the
 * exit status if a run failed. */
int bench_alternate(struct bench *b, struct bench_result *result, double seconds, bench_fn *subject,
                    bench_fn *reference);
/* Returns the median, minimum and maximum of values[count], count >= 1; sorts the values. */
struct bench_spread bench_spread_of(double *values, uint32_t count);
/* Reads bench.times again. */
void bench_times_read(struct bench *b);

/* Adds figures to `parts`; a name of NULL ends the list. */
struct bench_figure {
    const char *name;
    double value;
};
void bench_add_parts(struct bench *b, const struct bench_figure *figures);
#define BENCH_PARTS(b, ...) \
    bench_add_parts(b, (const struct bench_figure[]) { __VA_ARGS__, { .name = NULL } })
/* Returns the median of a figure over the measured runs of one side. */
double bench_median(struct bench *b, int side, int figure);
/* Adds the medians of the columns over the runs of one side; `prefix` is put before their names. */
void bench_add_columns(struct bench *b, int side, const char *prefix,
                       const struct bench_column *columns);
/* Adds a number of bytes, or another whole number, to `parts`. */
void bench_add_count(struct bench *b, const char *name, uint64_t count);
/* Adds the fields of `more` to `params`, and frees `more`; fields that `params` already has stay as
 * they are. Returns -1. */
int bench_add_params(struct bench *b, json_t *more);

/* Rejects too many workers or tensors, and an unknown --path. -1: continue. */
int bench_check(const struct ctl *ctl, uint32_t workers, uint32_t tensors);
/* Rejects --device without --backend cuda. -1: continue. */
int bench_check_device(const struct ctl *ctl);
/* Checks that this much memory is available. `what`: "" or " of memory"; `fewer`: the options that
 * reduce it. -1: continue. */
int bench_check_memory(uint64_t needed_bytes, const char *what, const char *fewer);
/* True if --backend names a card. */
bool bench_is_on_card(const struct ctl *ctl);

/* Return the time in seconds: bench_clock by the given clock, bench_now by a clock that does not jump. */
double bench_clock(clockid_t clock);
double bench_now(void);
/* Returns the processor time, in seconds, that all threads of a process have used since it began,
 * ended threads included. Below 0: the process has ended. */
double bench_used_s(pid_t pid);
/* Returns the bytes of host memory that a process uses now, shared memory included; 0: there is no
 * such process. */
uint64_t bench_process_bytes(pid_t pid);
/* Returns the peak of bench_process_bytes since the process began, or since the last call. */
uint64_t bench_process_peak(pid_t pid);
/* Return the number of cores that this process may use, and the memory that is available now. */
uint32_t bench_core_count(void);
uint64_t bench_memory_bytes(void);

/* How memory of the bench is mapped: in small pages, in large pages if there are any, or zeroed and shared
 * with the processes that the bench starts later. */
enum bench_pages { BENCH_SMALL, BENCH_LARGE, BENCH_SHARED };
/* Returns NULL after printing the error if there is no memory. */
void *bench_memory_map(size_t bytes, enum bench_pages pages);
/* Opens a socket of this host that listens at a free port; -1: no socket could be opened. */
int bench_listen(uint16_t *port_out);
/* Opens both ends of a TCP connection over loopback. False: an end could not be opened, and is
 * -1. */
bool bench_connect_self(int ends[static 2]);

/* ==== step ==== */

/* The declarations that the parts of cairn bench step share. The bench (step.c) sends orders; workers
 * (worker.c) execute them, also those of other benches of steps. */

enum bench_span_kind { /* the row that a span is drawn in */
                       BENCH_SPAN_NONE = 0,
                       BENCH_SPAN_BACKWARD,
                       BENCH_SPAN_CAST,
                       BENCH_SPAN_PUSH, /* from the call to the last acknowledgement */
                       BENCH_SPAN_COMMIT,
                       BENCH_SPAN_FETCH,
                       BENCH_SPAN_USE /* the use of a unit, with STEP_READ_UNITS */
};

/* Times are seconds of CLOCK_MONOTONIC. */
struct bench_span {
    double begin, end;
    uint32_t kind, tensor;
};

#define STEP_SPANS_EACH(tensors) \
    (6 * (tensors) + 2) /* cast, push, two fetches and two uses of each; backward, commit */

/* The orders of a worker. STEP: a step whose backward sleeps. COPY: a copy. ADDED: a step that
 * accumulates in the worker. BUSY: a step whose backward computes on every core. BESIDE: a step in the
 * cluster without the tier. */
enum {
    STEP_ORDER_STEP = 1,
    STEP_ORDER_COPY = 2,
    STEP_ORDER_ADDED = 3,
    STEP_ORDER_BUSY = 4,
    STEP_ORDER_BESIDE = 5
};
/* The further figures of a worker's report. The BYTES figures are the bytes of this step as the
 * library counts them. For a traced step, the bench sets OVERLAP, the fraction of the push time
 * within the backward, and AHEAD, the fraction of the fetch time within uses of other tensors. With
 * STEP_READ_UNITS, BENCH_FIGURE_FETCH includes the waits for units before the commit. */
enum {
    STEP_FIGURE_PUSHED_BYTES = BENCH_STEP_FIGURES,
    STEP_FIGURE_FETCHED_BYTES,
    STEP_FIGURE_HOST_BYTES, /* the bytes of both directions that passed through the host */
    STEP_FIGURE_OVERLAP,
    STEP_FIGURE_AHEAD,
    STEP_FIGURE_CPU /* with a tier: processor time of all shards and standbys */
};
_Static_assert(STEP_FIGURE_CPU < BENCH_FIGURES, "a report has room for it");

/* How the parameters are read: all of them after the commit, copied or mapped (then one byte of each page
 * is read), or unit by unit, in a forward and a backward pass (step.c). */
enum step_read { STEP_READ_FETCH, STEP_READ_MAP, STEP_READ_UNITS };

/* The beginning of the state of each bench whose workers execute these orders. */
struct step_plan {
    struct bench b;
    double backward_seconds; /* 0: all gradients are available immediately */
    bool is_traced;
    enum step_read read;
    /* the card that has the gradients and parameters, by cairn_alloc; -1: host memory has them */
    int card;
    const char *device; /* the same card, as given to --device; borrowed */
    /* Memory shared with the workers, about the last step: spans is
     * [workers][STEP_SPANS_EACH(tensors)], rounds is [workers]. */
    struct bench_span *spans;
    uint64_t *rounds;
};

/* Maps the memory that workers share with the bench; the bench has filled in the other fields. -1:
 * continue. */
int bench_step_share(struct step_plan *plan);

int bench_step_work(const struct bench_worker *worker);

/* ==== saver ==== */

/* Work on a thread of its own, so that meanwhile the bench can order steps or be interrupted. */
struct bench_task {
    const struct bench *b;                /* borrowed */
    bool (*run)(struct bench_task *task); /* false: the error was printed */
    struct ctl ctl; /* the thread's own, whose calls go to the bench's cluster */
    pthread_t thread;
    bool is_ok;
    atomic_bool is_over;
};
/* Starts the thread. Returns false after printing the error if no thread could be started. */
bool bench_task_begin(struct bench_task *task);
/* Waits for the thread to end, and returns the result of `run`. */
bool bench_task_end(struct bench_task *task);

/* Takes a snapshot of the bench's job, or restores the snapshot. */

struct bench_saver {
    /* the caller sets task.b and the next field before bench_save_begin */
    struct bench_task task;
    bool restores; /* true: restores the last snapshot that was taken; false: takes one */
    /* The last snapshot; valid after end */
    char id[CAIRN_SNAPSHOT_ID_BYTES]; /* "": none */
    char path[PATH_MAX];              /* the folder of the snapshot */
    /* begin: bench_now at the request or the start. end: bench_now when the snapshot is committed or the
     * state restored */
    double begin, end;
    uint64_t bytes;
};

/* Starts the thread. Returns false after printing the error if no thread could be started. */
bool bench_save_begin(struct bench_saver *saver);
/* Waits for the thread to end. Returns false if the operation failed (the error was printed) or a signal
 * came. With `gives_up` the daemons are stopped, which ends the operation. */
bool bench_save_end(struct bench_saver *saver, bool gives_up);
/* Calls bench_save_begin and bench_save_end. Returns the seconds of the operation; 0 if it failed. */
double bench_save(struct bench_saver *saver);
/* Removes the last snapshot that was taken, if there is one. Returns false after printing the error if this
 * failed. */
bool bench_save_remove(struct bench_saver *saver);
/* Drops the job, as if the cluster had lost it; its snapshots remain. Returns false after printing the
 * error if this failed. */
bool bench_save_drop_job(struct bench_saver *saver);
/* Drops the bytes that were written for the snapshot from the page cache. */
void bench_save_make_cold(const struct bench_saver *saver);

/* ==== disk ==== */

/* The raw rate of the disk that has the cluster's folder, for a file of that size. */
struct bench_disk {
    const struct bench *b; /* borrowed */
    uint64_t bytes;
    bool is_buffered; /* the disk refuses direct I/O: raw files use the page cache, and sync */
    int raw_fd; /* the file to read; 0: none yet. The caller closes it, if it wants another one */
};
/* Each returns GB/s: up to the moment when all bytes are on the disk; of a file that is not in the page
 * cache, and that the first call writes; of reading this file and writing another one at the same time. 0
 * after printing the error if the pass failed, and if a signal came. */
double bench_disk_write(struct bench_disk *disk);
double bench_disk_read(struct bench_disk *disk);
double bench_disk_copy(struct bench_disk *disk);

/* ==== tier ==== */

/* The words of --tier; NULL: none. */
const char *bench_tier_name(enum bench_tier tier);
enum bench_tier bench_tier_of(const char *name);
/* Gives each shard what the tier needs: a standby, whose number is the shard's and the number of shards
 * together. -1: continue. */
int bench_tier_open(struct bench *b);
/* Has the workers execute the order again and again, until the whole job is safe at the tier. Returns false
 * after printing the error. */
bool bench_tier_await(struct bench *b, uint32_t word);
/* Executes an order, with STEP_FIGURE_CPU of that cluster's shards. */
double bench_tier_order(struct bench *b, uint32_t word, const struct local *cluster);
/* Adds to `parts` what the tier costs, against `beside`. -1: continue. */
int bench_tier_report(struct bench *b);
/* The GB/s at which as many bytes go by memcpy or raw TCP, whichever a path of that name is measured by
 * (NULL: the path of one host); for the sealed path, by the cipher, if that is slower. 0 after printing the
 * error. */
double bench_fabric_limit(const char *path, uint64_t bytes);

/* ==== figures ==== */

/* Computes from the times of steps how much a snapshot slows the steps down. Pure. Times are
 * seconds of bench_now. */

struct bench_interval {
    double *steps; /* owned by the interval's owner: [count], each above 0 */
    uint32_t count, capacity;
    double begin;                        /* when the first step began */
    double snapshot_begin, snapshot_end; /* 0: there was no snapshot */
    uint64_t shard_bytes[64];            /* the peak resident bytes of shard i; 0: no such shard */
};

struct bench_slowdown {
    /* the number of steps without a snapshot or the number of steps with one, whichever is
     * smaller */
    uint32_t steps;
    double mean_without, mean_with; /* the means of all steps */
    double slowdown;                /* (mean_with - mean_without) / mean_without */
    double median;                  /* the median of the steps without a snapshot */
    double worst_without, worst_with;
    double worst_over_median; /* for the steps with a snapshot */
    double worst_added;       /* worst_with - median */
    /* the largest growth of a shard, which is its peak bytes with a snapshot minus its peak bytes
     * without */
    double memory_added;
};

/* Compares pairs[pair_count] of consecutive intervals, [0] without and [1] with a snapshot; every
 * interval has steps, whose order is not changed. False: no memory. */
bool bench_slowdown_of(const struct bench_interval (*pairs)[2], uint32_t pair_count,
                       struct bench_slowdown *out);
/* Adds one more step. False: no memory. */
bool bench_interval_add(struct bench_interval *interval, double seconds);

/* ==== torch ==== */

/* Measures how long PyTorch takes to save the same number of bytes, on the same disk and in the same
 * run. */

/* Runs a script in `count` processes at the same time; each receives a folder, `elems`, `count` and its own
 * index, and prints two numbers. numbers_out has the maximum of each number over the processes. 1: the
 * numbers are valid; 0: they are not valid; -1: a signal came. */
int bench_torch_run(struct local *local, const char *script, uint64_t elems, uint32_t count,
                    double numbers_out[static 2]);

#endif
