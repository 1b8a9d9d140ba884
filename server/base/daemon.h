/* Both daemons share this: their configuration, and their life as processes. */
#ifndef CAIRN_BASE_DAEMON_H
#define CAIRN_BASE_DAEMON_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/queue.h>
#include <sys/types.h>
#include <uv.h>

#include "proto/base/text.h"
#include "proto/store/storage.h"
#include "server/base/log.h"

/* ==== configuration ==== */

/* A daemon's configuration: one table of options, from which the file is judged, the sample is
 * printed and the values are filled in, so that code, file and docs cannot drift.
 *
 * The file is INI: [section], key = value, comments by # or ;. Unknown sections and keys, keys given
 * twice, wrong units and impossible values are refused, each with file, line, value and what is
 * allowed. Units are required: 64MiB, 250ms; a bare 0 is allowed. The command line
 * (--set section.key=value) overrides the file. Start-up only, one thread. */

enum option_type {
    CAIRN_OPTION_STRING,  /* char *, owned by the configuration; never NULL after _finish */
    CAIRN_OPTION_PATH,    /* char *, absolute, or relative to the working folder; not empty */
    CAIRN_OPTION_ADDRESS, /* char *, "host:port", "[v6]:port" or "/path"; empty if its default is */
    CAIRN_OPTION_ADDRESSES, /* char *, several to listen on, blanks between; may be empty */
    CAIRN_OPTION_BOOL,      /* bool: yes no true false on off */
    CAIRN_OPTION_INT,       /* int64_t */
    CAIRN_OPTION_BYTES,     /* int64_t, bytes: B KiB MiB GiB TiB */
    CAIRN_OPTION_DURATION,  /* int64_t, ms: ms s min h */
    CAIRN_OPTION_FACTOR,    /* int64_t, thousandths: 1.1, no unit */
};

/* One row of a table. */
struct config_option {
    const char *section;
    const char *key;
    enum option_type type;
    size_t offset;            /* of the value, in the daemon's struct of values */
    const char *default_text; /* as in the file; NULL: must be given; "" is an empty string */
    int64_t min;              /* of numbers, in bytes, ms or thousandths where it has those */
    int64_t max;
    const char *doc; /* for the printed sample: full sentences, one line each */
};

#define CAIRN_CONFIG_OPTIONS_MAX 64

struct config {
    /* borrowed */
    const struct config_option *options; /* [option_count] */
    size_t option_count;                 /* at most CAIRN_CONFIG_OPTIONS_MAX */
    void *values;                        /* the daemon's struct */
    /* 0 = not given; a line of the file; -1 = on the command line */
    int given[CAIRN_CONFIG_OPTIONS_MAX];
};

/* Fills in the defaults (which must be valid: asserted). `values` must be zeroed before. */
void config_init(struct config *config, const struct config_option *options, size_t option_count,
                 void *values);
/* Frees the strings in `values`. */
void config_release(struct config *config);

/* Reads a file. CAIRN_ERR_CONFIG with "file:line: ..."; CAIRN_ERR_IO: it cannot be read. */
CAIRN_MUST_CHECK cairn_status config_read(struct config *config, const char *path,
                                          struct sentence *why);
/* One override, "section.key=value". */
CAIRN_MUST_CHECK cairn_status config_set(struct config *config, const char *assignment,
                                         struct sentence *why);
/* After file and overrides: everything that has no default was given. */
CAIRN_MUST_CHECK cairn_status config_finish(const struct config *config, struct sentence *why);

/* Prints a sample file: every option with its doc, range and default, commented out. */
void config_print(const struct config *config, FILE *out);

/* ==== config value ==== */

/* One value of the configuration: from its text, judged by its row of the table, and back. Pure. */

/* ==== daemon ==== */

/* Both daemons share this: the command line, signals, saying "ready", and a clean end.
 *
 *   static struct shard_values values;                              (zeroed)
 *   struct daemon daemon;
 *   int exit_code;
 *   if (!daemon_begin(&daemon, &spec, argc, argv, &exit_code)) return exit_code;
 *   ... open listener, threads ...                      on error: daemon_fail(&daemon, &why)
 *   daemon_ready(&daemon, listener_address(listener));
 *   return daemon_run(&daemon);             runs the loop until nothing is open, then cleans
 *
 * SIGTERM and SIGINT call on_stop once, on the loop: close what you opened, then
 * daemon_stop. A second signal ends the process at once (crash-only: that is safe). SIGHUP is
 * noted in the log; SIGUSR1 changes its level to debug, and back; SIGPIPE and SIGXFSZ are ignored. Loop
 * thread only. */

/* ==== notify ==== */

/* Tells systemd how the daemon is (sd_notify(3)): datagrams to $NOTIFY_SOCKET, by hand, because
 * libsystemd brings a dozen libraries for these few lines. Without a supervisor all calls do
 * nothing. A failure to tell is not an error of the daemon. Any thread. */

/* READY=1 with a status line; STOPPING=1; STATUS=...; WATCHDOG=1. True if a supervisor was told. */
bool notify_ready(const char *status);
bool notify_stopping(void);
bool notify_status(const char *status);

/* How often the supervisor wants WATCHDOG=1 at least; 0 = it does not watch this process. Ping at
 * half of it. */
uint64_t notify_watchdog_ms(void);

/* ==== yield ==== */

/* A thread that works beside trainers and lets them go first. */

/* The thread that calls, the lowest priority of CPU and of I/O that still gets some. */
void thread_yield(void);
/* It is in a hurry: as others of CPU again, where the system gives leave to come back (LimitNICE,
 * CAP_SYS_NICE). */
void thread_press(void);

/* ==== host lock ==== */

/* A lock that all daemons of a host share, whoever runs them: an flock of a folder that is there anyhow, so
 * that there is nothing to make, to own or to clean up. It goes with the process, however it ends. Daemons
 * that see different folders (containers) do not exclude each other. */

#define CAIRN_HOST_LOCK_PATH "/dev/shm" /* anybody can open it, in every distribution */

/* Waits for it, at most `timeout_ms`, and not once *canceled is set (CAIRN_ERR_CANCELED). CAIRN_ERR_BUSY
 * names the process that holds it. CAIRN_ERR_IO: it cannot be opened. Blocking; any thread. Given back by
 * close(*fd_out). */
CAIRN_MUST_CHECK cairn_status host_lock_take(const char *path, int timeout_ms,
                                             const atomic_bool *canceled, int *fd_out,
                                             struct sentence *why);

/* ==== headroom ==== */

/* How much memory this process may still take before the kernel kills somebody for it.
 *
 * A page past a control group's limit is no error of the call that wanted it: the kernel ends a process. So
 * the room is read before. It is the least of what the host has available and, for the process's control
 * group and each one above it, of the limit less what is in use there. Page cache that was not used lately
 * (inactive_file) is not in use: it goes when memory is wanted. Both kinds of control groups are read, v2
 * (memory.max) and v1 (memory.limit_in_bytes), wherever they are mounted. A container sees only the
 * groups that are mounted into it.
 *
 * Blocking (files of the kernel, a fraction of a millisecond); any thread. */

struct headroom {
    uint64_t available_bytes;
    uint64_t limit_bytes; /* what `by` has, in use or not */
    char by[256];         /* what leaves least: "the host's RAM", or a folder of a control group */
    uint64_t most_bytes;  /* the least limit of all, with nothing in use */
};

/* `root`: the folder in which proc and sys are, "" unless in a test. CAIRN_ERR_IO: there is no proc/meminfo;
 * a control group that cannot be read is none. */
CAIRN_MUST_CHECK cairn_status headroom_read(const char *root, struct headroom *room_out,
                                            struct sentence *why);

/* CAIRN_ERR_NO_MEMORY if the room has less than the bytes and what the kernel needs to keep them; `what`
 * begins the sentence. */
CAIRN_MUST_CHECK cairn_status headroom_judge(const struct headroom *room, uint64_t bytes,
                                             const char *what, struct sentence *why);

/* ==== daemon ==== */

struct daemon;

struct daemon_spec {
    const char *name;                    /* "cairn-shard" */
    const char *purpose;                 /* one sentence for --help */
    const char *build;                   /* "0.1.0+g1a2b3c4d5e6f"; NULL: the version alone */
    const struct config_option *options; /* [option_count] */
    size_t option_count;
    void *values; /* filled in; zeroed by the caller */
    /* Judges what single values cannot tell; CAIRN_ERR_CONFIG is a bad configuration. May be NULL. */
    cairn_status (*judge)(const void *values, struct sentence *why);
    /* Behind that, for --check-config alone: what is not well now, and a start waits for. May be NULL. */
    cairn_status (*judge_now)(const void *values, struct sentence *why);
    void (*on_stop)(struct daemon *daemon, void *context);
    void *context;
};

#define CAIRN_DAEMON_SIGNALS 4

struct daemon {
    uv_loop_t loop;
    struct config config;
    /* private */
    struct daemon_spec spec;
    const char *ready_file; /* of argv, or NULL */
    const char *log_name;   /* the same */
    uv_signal_t signals[CAIRN_DAEMON_SIGNALS];
    uv_timer_t watchdog;
    bool stopping;
    bool is_announced; /* the ready file is ours */
    int exit_code;
};

/* Reads the command line and the configuration:
 *   --config FILE  --set section.key=value  --check-config  --print-config  --ready-file PATH
 *   --log-level error|warn|info|debug  --log-name NAME  --help  --version
 * True: go on, with the loop and signals set up and `values` filled in. False: return
 * *exit_code_out from main (0 after --help and the like, 2 for a bad line or file, with a sentence
 * on stderr). */
bool daemon_begin(struct daemon *daemon, const struct daemon_spec *spec, int argc, char **argv,
                  int *exit_code_out);

/* The log as the configuration says, in the name of `name` unless --log-name says another. Right after
 * begin. */
void daemon_log(const struct daemon *daemon, const char *name, const struct log_options *options);

/* The daemon serves: logs `msg=ready address=... port=...`, writes the address and a newline to the
 * --ready-file (whole or not at all), tells the supervisor. */
CAIRN_MUST_CHECK cairn_status daemon_ready(struct daemon *daemon, const char *address,
                                           struct sentence *why);

/* Ends the daemon's own handles, so that the loop ends when yours are closed too. Safe to call
 * again. `exit_code` is what daemon_run returns (the first one that is not 0 wins). */
void daemon_stop(struct daemon *daemon, int exit_code);

/* Runs the loop to its end, removes the ready file, frees the configuration and the loop. */
int daemon_run(struct daemon *daemon);

/* Start-up failed: logs the sentence, and calls for a stop. Follow it with closing what was opened
 * and `return daemon_run(daemon);`, which returns the status's exit code. */
void daemon_fail(struct daemon *daemon, cairn_status status, const struct sentence *why);

/* ==== pool ==== */

/* Threads that do a daemon's file work, and a shard's arithmetic, so that the loop never waits for either.
 *
 * A task is a number of items, run in any order by any of the pool's threads; when the last has
 * run, `done` is called on the loop's thread, and the task is its owner's again. Tasks begin in the
 * order of submission: with one thread, one after the other. The queue is a list through the tasks
 * themselves: it takes no memory, and is bounded by the tasks that their owners have.
 *
 * The threads block all signals but SIGBUS. */

#define CAIRN_POOL_THREADS_MAX 64

struct pool;

/* Embedded in what the task works on. */
struct task {
    /* the owner's, constant while the task is with the pool */
    /* `thread` is below the thread count, or that: the loop's, within submit. */
    void (*run)(struct task *task, uint32_t item, uint32_t thread);
    void (*done)(struct task *task); /* loop thread */
    uint32_t item_count;             /* 0: done follows at once */
    /* Quicker done than told to a thread: run within submit. Not for what may meet a SIGBUS. */
    bool is_small;
    bool ends_items; /* `run` itself ends its item, by pool_end; not of what is small */
    /* private to the pool */
    STAILQ_ENTRY(task) next;
    uint32_t items_taken, items_ended;
};

/* Starts the threads. `name` (at most 15 bytes) is what they are called in ps; `begin` (may be NULL) is the
 * first that each of them does. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status pool_open(uv_loop_t *loop, const char *name, uint32_t thread_count,
                                        void (*begin)(void), struct pool **pool_out,
                                        struct sentence *why);
/* Lets the items that run end, joins the threads, and closes its handle; on_closed (may be NULL)
 * follows from the loop. No task's `done` is called any more: tasks are their owners' at once. */
void pool_close(struct pool *pool, void (*on_closed)(void *context), void *context);
/* The same for a pool of one thread whose item may hang: it is waited for so long at most. False: it still
 * runs, on memory that is its own from here on, for ever. */
bool pool_close_within(struct pool *pool, uint32_t most_ms, void (*on_closed)(void *context),
                       void *context);

/* Gives a task to the threads; loop thread. */
void pool_submit(struct pool *pool, struct task *task);
uint32_t pool_thread_count(const struct pool *pool);

/* An item of a task. */
struct pool_item {
    struct task *task;
    uint32_t item;
};

/* Within `run`, on a thread of the pool: takes what is next, of whichever tasks, to be done together with
 * what is at hand. Returns how many there were, at most `max`; pool_end ends them. Only in a pool where
 * every task is done in one way. */
uint32_t pool_take(struct pool *pool, struct pool_item *items_out, uint32_t max);
/* The same, but nothing while a thread is idle, which takes what is next itself. */
uint32_t pool_take_ahead(struct pool *pool, struct pool_item *items_out, uint32_t max);
void pool_end(struct pool *pool, const struct pool_item *items, uint32_t count);

/* ==== durable ==== */

/* Small files that survive a crash, and the folder a daemon keeps them in.
 *
 * durable_write replaces a file as a whole: write PATH.new, fsync, close, rename over PATH,
 * fsync the folder. After a crash at any point PATH holds the old bytes or the new ones. A failed
 * fsync fails the write: it is never tried again on the same file (the kernel may have dropped the
 * pages). Sentences name the step that failed. Blocking; any thread, one writer per path. */

/* Mode 0600. CAIRN_ERR_NO_SPACE, CAIRN_ERR_IO: PATH is unchanged and PATH.new is gone. (Only if the
 * very last step, the fsync of the folder, failed may PATH hold the new bytes, undurably.) */
CAIRN_MUST_CHECK cairn_status durable_write(const char *path, const void *bytes, size_t byte_count,
                                            struct sentence *why);

/* The same of a file that is not there yet. CAIRN_ERR_EXISTS: it is, and stays as it is; so does a PATH.new
 * that is there, which is CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status durable_create(const char *path, const void *bytes, size_t byte_count,
                                             struct sentence *why);

/* Makes the folder and its missing parents with that mode, whatever the umask; all are durable in their
 * parents after it. One that exists is left as it is. */
CAIRN_MUST_CHECK cairn_status durable_folder(const char *path, mode_t mode, struct sentence *why);

/* Makes the daemon's data folder if need be, checks that it is a folder that can be written (by
 * writing), and locks it: two daemons never share one. The lock file PATH/lock holds the pid and
 * goes with the process, however it ends. CAIRN_ERR_BUSY names the pid of the other;
 * CAIRN_ERR_IO says what to change. */
CAIRN_MUST_CHECK cairn_status durable_lock(const char *folder, int *lock_fd_out,
                                           struct sentence *why);
void durable_unlock(int lock_fd);

/* ==== storage watch ==== */

/* The storage of the snapshots, looked at on a thread of its own: it may hang, and then the daemon serves
 * on, says so, and ends without it. It is looked at when it is told, when something in it has failed, and
 * again until it is right. Loop thread. */

struct storage_look;

struct storage_watch {
    /* the owner's, before it is opened */
    /* On the thread, may hang: is the folder the one that has the token, may the owner use it, and what is to
     * be done? */
    cairn_status (*judge)(const char *path, uint64_t token, const struct storage_owner *owner,
                          struct sentence *why);
    void (*on_said)(struct storage_watch *watch); /* `said` is another one now */
    void *context;
    struct storage_owner owner; /* a look has that of when it begins; storage_watch_doubt */

    struct sentence said; /* what is wrong; empty: nothing, or it is not known yet */

    /* private */
    uv_loop_t *loop;
    struct pool *thread; /* owned */
    char *path;          /* owned; NULL: not told */
    uint64_t token;
    struct storage_look *look; /* owned; while is_looking the thread's */
    uint64_t since_ms;         /* of the loop's clock: when it was begun, or ended */
    bool is_looking;
};

CAIRN_MUST_CHECK cairn_status storage_watch_open(struct storage_watch *watch, uv_loop_t *loop,
                                                 struct sentence *why);
/* Closes the thread; on_closed(context) follows from the loop. False: nothing was open, and
 * on_closed does not come. */
bool storage_watch_close(struct storage_watch *watch, void (*on_closed)(void *context),
                         void *context);
/* Frees what the watch holds; call it after on_closed. */
void storage_watch_release(struct storage_watch *watch);

/* This is the folder, and its token. Path "" or token 0: there is nothing to look at. */
void storage_watch_told(struct storage_watch *watch, const char *path, uint64_t token);
/* Something in it has failed: looks whether it is still there. */
void storage_watch_doubt(struct storage_watch *watch);
/* From time to time: looks again, or says that it hangs. */
void storage_watch_tick(struct storage_watch *watch);

#endif
