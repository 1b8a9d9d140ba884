/* Shared by both daemons: their configuration, and their life as processes. */
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

/* A daemon's configuration. One table of options serves to judge the file, to print the sample and to fill
 * in the values, so that code, file and docs cannot drift.
 *
 * The file is INI: [section], key = value, comments by # or ;. Unknown sections and keys, keys given twice,
 * wrong units and impossible values are refused, each with file, line, value and what is allowed. Units are
 * required: 64MiB, 250ms; a bare 0 is allowed. The command line (--set section.key=value) overrides the
 * file. Start-up only, one thread. */

enum option_type {
    CAIRN_OPTION_STRING,    /* char *, owned by the configuration; never NULL after _finish */
    CAIRN_OPTION_PATH,      /* char *, absolute, or relative to the working folder; not empty */
    CAIRN_OPTION_ADDRESS,   /* char *, "host:port", "[v6]:port", "/path"; empty if its default is */
    CAIRN_OPTION_ADDRESSES, /* char *, several to listen on, separated by blanks; may be empty */
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
    size_t offset;            /* of the value in the daemon's struct of values */
    const char *default_text; /* as in the file; NULL: must be given; "" is an empty string */
    int64_t min;              /* for numbers, in the type's unit: bytes, ms or thousandths */
    int64_t max;
    const char *doc; /* for the printed sample: full sentences, one line each */
};

#define CAIRN_CONFIG_OPTIONS_MAX 64

struct config {
    /* borrowed */
    const struct config_option *options; /* [option_count] */
    size_t option_count;                 /* at most CAIRN_CONFIG_OPTIONS_MAX */
    void *values;                        /* the daemon's struct */
    /* 0 = not given; else its line in the file; -1 = given on the command line */
    int given[CAIRN_CONFIG_OPTIONS_MAX];
};

/* Fills in the defaults (which must be valid: asserted). `values` must be zeroed before. */
void config_init(struct config *config, const struct config_option *options, size_t option_count,
                 void *values);
/* Frees the strings in `values`. */
void config_release(struct config *config);

/* Reads a file. CAIRN_ERR_CONFIG with "file:line: ..."; CAIRN_ERR_IO if it cannot be read. */
CAIRN_MUST_CHECK cairn_status config_read(struct config *config, const char *path,
                                          struct sentence *why);
/* Applies one override, "section.key=value". */
CAIRN_MUST_CHECK cairn_status config_set(struct config *config, const char *assignment,
                                         struct sentence *why);
/* Checks, after file and overrides, that every option without a default was given. */
CAIRN_MUST_CHECK cairn_status config_finish(const struct config *config, struct sentence *why);

/* Prints a sample file: every option with its doc, range and default, commented out. */
void config_print(const struct config *config, FILE *out);

/* ==== notify ==== */

/* Reports the daemon's state to systemd (sd_notify(3)): sends datagrams to $NOTIFY_SOCKET itself, because
 * libsystemd brings a dozen libraries for these few lines. Without a supervisor all calls do nothing. A
 * failed report is not an error of the daemon. Any thread. */

/* Send READY=1 with a status line; STOPPING=1; STATUS=...; WATCHDOG=1. Each returns true if a supervisor
 * received the message. */
bool notify_ready(const char *status);
bool notify_stopping(void);
bool notify_status(const char *status);

/* The longest time between two WATCHDOG=1 that the supervisor allows; 0 if it does not watch this process.
 * Send one at half that time. */
uint64_t notify_watchdog_ms(void);

/* ==== yield ==== */

/* For a thread that works beside trainers and lets them go first. */

/* Gives the calling thread the lowest CPU and I/O priority that still gets some of both. */
void thread_yield(void);
/* Gives the calling thread, which is in a hurry, the normal CPU priority again, if the system allows that
 * (LimitNICE, CAP_SYS_NICE). */
void thread_press(void);

/* ==== host lock ==== */

/* A lock that all daemons of a host share, whichever users run them. It is an flock of a folder that always
 * exists, so no file has to be made, owned or cleaned up. The kernel releases the lock when the process
 * ends, however it ends. Daemons that see different folders (containers) do not exclude each other. */

#define CAIRN_HOST_LOCK_PATH "/dev/shm" /* anybody can open it, in every distribution */

/* Takes the lock. Waits at most `timeout_ms`, and ends the wait when *canceled is set (CAIRN_ERR_CANCELED).
 * CAIRN_ERR_BUSY names the process that holds it. CAIRN_ERR_IO: the folder cannot be opened. Blocking; any
 * thread. Release it with close(*fd_out). */
CAIRN_MUST_CHECK cairn_status host_lock_take(const char *path, int timeout_ms,
                                             const atomic_bool *canceled, int *fd_out,
                                             struct sentence *why);

/* ==== headroom ==== */

/* How much memory this process may still take before the kernel kills some process for it.
 *
 * A page above a control group's limit does not fail the call that wanted it: the kernel kills a process.
 * So the headroom is read first. It is the least of the memory that the host has available and, for the
 * process's control group and each group above it, of the limit minus the memory in use there. Page cache
 * that was not used lately (inactive_file) does not count as in use: the kernel drops it when memory is
 * needed. Both versions of control groups are read, v2 (memory.max) and v1 (memory.limit_in_bytes),
 * wherever they are mounted. A container sees only the groups that are mounted into it.
 *
 * Blocking (reads kernel files, a fraction of a millisecond); any thread. */

struct headroom {
    uint64_t available_bytes;
    uint64_t limit_bytes; /* all memory of `by`, in use or not */
    char by[256];         /* what limits most: "the host's RAM", or a control group's folder */
    uint64_t most_bytes;  /* the lowest limit of all, with nothing in use */
};

/* `root` is the folder that contains proc and sys, "" except in a test. CAIRN_ERR_IO: there is no
 * proc/meminfo. A control group that cannot be read is ignored. */
CAIRN_MUST_CHECK cairn_status headroom_read(const char *root, struct headroom *room_out,
                                            struct sentence *why);

/* CAIRN_ERR_NO_MEMORY if the headroom is less than the bytes plus the kernel's memory to manage them.
 * `what` begins the sentence. */
CAIRN_MUST_CHECK cairn_status headroom_judge(const struct headroom *room, uint64_t bytes,
                                             const char *what, struct sentence *why);

/* ==== daemon ==== */

/* Shared by both daemons: the command line, signals, reporting "ready", and a clean end.
 *
 *   static struct shard_values values;                              (zeroed)
 *   struct daemon daemon;
 *   int exit_code;
 *   if (!daemon_begin(&daemon, &spec, argc, argv, &exit_code)) return exit_code;
 *   ... open listener, threads ...                      on error: daemon_fail(&daemon, &why)
 *   daemon_ready(&daemon, listener_address(listener));
 *   return daemon_run(&daemon);             runs the loop until nothing is open, then cleans
 *
 * SIGTERM and SIGINT call on_stop once, on the loop: close what you opened, then call daemon_stop. A
 * second signal ends the process at once (crash-only: that is safe). SIGHUP is noted in the log; SIGUSR1
 * switches the log's level to debug, and the next SIGUSR1 switches it back; SIGPIPE and SIGXFSZ are
 * ignored. Loop thread only. */

struct daemon;

struct daemon_spec {
    const char *name;                    /* "cairn-shard" */
    const char *purpose;                 /* one sentence for --help */
    const char *build;                   /* "0.1.0+g1a2b3c4d5e6f"; NULL: the version alone */
    const struct config_option *options; /* [option_count] */
    size_t option_count;
    void *values; /* the daemon fills it in; zeroed by the caller */
    /* Judges rules across several values; returns CAIRN_ERR_CONFIG for a bad configuration. May be NULL. */
    cairn_status (*judge)(const void *values, struct sentence *why);
    /* Called after `judge`, only for --check-config: reports what is wrong on this host now and would make
     * a start wait. May be NULL. */
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
    const char *log_name;   /* also of argv, or NULL */
    uv_signal_t signals[CAIRN_DAEMON_SIGNALS];
    uv_timer_t watchdog;
    bool stopping;
    bool is_announced; /* this process wrote the ready file */
    int exit_code;
};

/* Reads the command line and the configuration:
 *   --config FILE  --set section.key=value  --check-config  --print-config  --ready-file PATH
 *   --log-level error|warn|info|debug  --log-name NAME  --help  --version
 * Returns true if the daemon is to run: the loop and signals are set up, and `values` is filled in. Returns
 * false if main is to return *exit_code_out: 0 after --help and the like, 2 after a sentence on stderr if
 * the command line or the file is bad. */
bool daemon_begin(struct daemon *daemon, const struct daemon_spec *spec, int argc, char **argv,
                  int *exit_code_out);

/* Sets up the log from the configuration, with `name` unless --log-name gives another. Call it
 * right after daemon_begin. */
void daemon_log(const struct daemon *daemon, const char *name, const struct log_options *options);

/* Reports that the daemon serves: logs `msg=ready address=... port=...`, writes the address and a newline
 * to the --ready-file (all or nothing), and notifies the supervisor. */
CAIRN_MUST_CHECK cairn_status daemon_ready(struct daemon *daemon, const char *address,
                                           struct sentence *why);

/* Closes the daemon's own handles, so that the loop ends when your handles are closed too. Safe to call
 * again. `exit_code` is what daemon_run returns (the first nonzero one wins). */
void daemon_stop(struct daemon *daemon, int exit_code);

/* Runs the loop to its end, removes the ready file, frees the configuration and the loop. */
int daemon_run(struct daemon *daemon);

/* Reports a failed start-up: logs the sentence, and stops the daemon. Then close what was opened and
 * `return daemon_run(daemon);`, which returns the status's exit code. */
void daemon_fail(struct daemon *daemon, cairn_status status, const struct sentence *why);

/* ==== pool ==== */

/* Threads that do a daemon's file work, and a shard's arithmetic, so that the loop never waits for either.
 *
 * A task is a number of items, which any of the pool's threads run in any order. When the last item has
 * run, `done` is called on the loop's thread, and the task belongs to its owner again. Tasks begin in the
 * order of submission: with one thread, one after the other. The queue is a list through the tasks
 * themselves: it allocates no memory, and is bounded by the owners' tasks.
 *
 * The threads block all signals but SIGBUS. */

#define CAIRN_POOL_THREADS_MAX 64

struct pool;

/* Embedded in the object that the task works on. */
struct task {
    /* set by the owner, constant while the task is with the pool */
    /* `thread` is the thread's index, or the thread count for the loop's thread, within submit. */
    void (*run)(struct task *task, uint32_t item, uint32_t thread);
    void (*done)(struct task *task); /* loop thread */
    uint32_t item_count;             /* 0: done follows at once */
    /* The task is done faster than a thread is woken, so it runs within submit. Do not set this for code
     * that may meet a SIGBUS. */
    bool is_small;
    bool ends_items; /* `run` itself ends its item, by pool_end; not with is_small */
    /* private to the pool */
    STAILQ_ENTRY(task) next;
    uint32_t items_taken, items_ended;
};

/* Starts the threads. `name` (at most 15 bytes) is their name in ps. Each thread first calls `begin` (may
 * be NULL). CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status pool_open(uv_loop_t *loop, const char *name, uint32_t thread_count,
                                        void (*begin)(void), struct pool **pool_out,
                                        struct sentence *why);
/* Lets running items end, joins the threads, and closes the pool's handle; on_closed (may be NULL) is
 * called later by the loop. No task's `done` is called any more: all tasks belong to their owners at
 * once. */
void pool_close(struct pool *pool, void (*on_closed)(void *context), void *context);
/* Like pool_close, for a pool of one thread whose item may hang: waits for that item at most `most_ms`.
 * Returns false if the item still runs; then the pool's memory is never freed. */
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

/* Called within `run`, on a thread of the pool: takes the next items, of any tasks, to do them together
 * with the current item. Returns how many it took, at most `max`; pool_end ends them. Only in a pool where
 * all tasks are done in the same way. */
uint32_t pool_take(struct pool *pool, struct pool_item *items_out, uint32_t max);
/* The same, but takes nothing while a thread is idle: that thread takes the next items itself. */
uint32_t pool_take_ahead(struct pool *pool, struct pool_item *items_out, uint32_t max);
void pool_end(struct pool *pool, const struct pool_item *items, uint32_t count);

/* ==== durable ==== */

/* Small files that survive a crash, and the folder a daemon keeps them in.
 *
 * durable_write replaces a file as a whole: write PATH.new, fsync, close, rename over PATH,
 * fsync the folder. After a crash at any point PATH holds the old bytes or the new ones. A failed
 * fsync fails the write: it is never tried again on the same file (the kernel may have dropped the
 * pages). Sentences name the step that failed. Blocking; any thread, one writer per path. */

/* Writes with mode 0600. CAIRN_ERR_NO_SPACE, CAIRN_ERR_IO: PATH is unchanged and PATH.new is gone. (PATH
 * may hold the new bytes, but not durably, only if the very last step, the fsync of the folder, fails.) */
CAIRN_MUST_CHECK cairn_status durable_write(const char *path, const void *bytes, size_t byte_count,
                                            struct sentence *why);

/* The same for a file that must not exist yet. CAIRN_ERR_EXISTS: PATH exists and is left as it is. An
 * existing PATH.new is left as it is, too, and gives CAIRN_ERR_IO. */
CAIRN_MUST_CHECK cairn_status durable_create(const char *path, const void *bytes, size_t byte_count,
                                             struct sentence *why);

/* Makes the folder and its missing parents with that mode, whatever the umask, and makes all of them
 * durable in their parents. A folder that exists is left as it is. */
CAIRN_MUST_CHECK cairn_status durable_folder(const char *path, mode_t mode, struct sentence *why);

/* Makes the daemon's data folder if needed, checks by writing that it is a writable folder, and locks it:
 * two daemons never share one. The lock file PATH/lock holds the pid; the lock ends with the process,
 * however it ends. CAIRN_ERR_BUSY names the pid of the other process; CAIRN_ERR_IO says what to change. */
CAIRN_MUST_CHECK cairn_status durable_lock(const char *folder, int *lock_fd_out,
                                           struct sentence *why);
void durable_unlock(int lock_fd);

/* ==== storage watch ==== */

/* Checks the storage of the snapshots on a thread of its own. The storage may hang; then the daemon keeps
 * serving, reports the hang, and can end without that thread. The storage is checked when its folder is set
 * and when something in the folder has failed, and then again until no fault is found. Loop thread. */

struct storage_look;

struct storage_watch {
    /* the owner sets these before it opens the watch */
    /* Runs on the watch's thread, and may hang: judges whether the folder has the token and whether the
     * owner may use the folder, and says what an operator must do. */
    cairn_status (*judge)(const char *path, uint64_t token, const struct storage_owner *owner,
                          struct sentence *why);
    void (*on_said)(struct storage_watch *watch); /* `said` has changed */
    void *context;
    struct storage_owner owner; /* each look copies it; after a change call storage_watch_doubt */

    struct sentence said; /* the fault; empty: none, or not known yet */

    /* private */
    uv_loop_t *loop;
    struct pool *thread; /* owned */
    char *path;          /* owned; NULL: not set */
    uint64_t token;
    struct storage_look *look; /* owned; by the thread while is_looking */
    uint64_t since_ms;         /* when the last look began, or ended, by the loop's clock */
    bool is_looking;
};

CAIRN_MUST_CHECK cairn_status storage_watch_open(struct storage_watch *watch, uv_loop_t *loop,
                                                 struct sentence *why);
/* Closes the thread; the loop calls on_closed(context) later. Returns false if nothing was open; then
 * on_closed is not called. */
bool storage_watch_close(struct storage_watch *watch, void (*on_closed)(void *context),
                         void *context);
/* Frees what the watch holds; call it after on_closed. */
void storage_watch_release(struct storage_watch *watch);

/* Sets the folder and its token. Path "" or token 0: there is nothing to check. */
void storage_watch_told(struct storage_watch *watch, const char *path, uint64_t token);
/* Checks the folder again, because something in it has failed. */
void storage_watch_doubt(struct storage_watch *watch);
/* Checks the folder again if that is due, or reports that the storage hangs. Call this from time to
 * time. */
void storage_watch_tick(struct storage_watch *watch);

#endif
