/* The parts that both daemons share: the configuration, and the life of the process. */
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

#include "proto/base/durable.h"
#include "proto/base/text.h"
#include "proto/store/storage.h"
#include "server/base/log.h"

/* ==== configuration ==== */

/* A daemon's configuration. One table of options is used to judge the file, to print the sample and to fill
 * in the values, so that these three always agree.
 *
 * The file is in INI format, with [section], key = value, and comments that begin with # or ;. Unknown
 * sections and keys, most keys given twice, wrong units and impossible values are refused; the error names
 * the file, the line, the value and what is allowed. Numbers need their unit (64MiB, 250ms), except 0. The
 * command line (--set section.key=value) overrides the file. Only for start-up, on one thread. */

enum option_type {
    CAIRN_OPTION_STRING, /* char *, owned by the configuration; never NULL after config_finish */
    /* char *: the key may be given several times, and the value has a line for each. The command line
     * replaces what the file has */
    CAIRN_OPTION_LINES,
    CAIRN_OPTION_PATH, /* char *, absolute, or relative to the working folder; not empty */
    /* char *, "host:port", "[v6]:port", "/path"; may be empty if the default is empty */
    CAIRN_OPTION_ENDPOINTS, /* the same, several with commas between them */
    CAIRN_OPTION_ADDRESSES, /* char *, addresses to listen on, separated by blanks; may be empty */
    CAIRN_OPTION_BOOL,      /* bool: yes no true false on off */
    CAIRN_OPTION_INT,       /* int64_t */
    CAIRN_OPTION_BYTES,     /* int64_t, in bytes; units B KiB MiB GiB TiB */
    CAIRN_OPTION_DURATION,  /* int64_t, in ms; units ms s min h */
    CAIRN_OPTION_FACTOR,    /* int64_t, in thousandths; written without a unit, as 1.1 */
};

/* One row of a table. */
struct config_option {
    const char *section;
    const char *key;
    enum option_type type;
    size_t offset;            /* where the value lies in the daemon's struct of values */
    const char *default_text; /* as in the file; NULL: the option must be given */
    int64_t min;              /* min, max: the range of a number, in bytes, ms or thousandths */
    int64_t max;
    const char *doc; /* for the printed sample: full sentences, in one line */
};

#define CAIRN_CONFIG_OPTIONS_MAX 64

struct config {
    /* borrowed */
    const struct config_option *options; /* [option_count] */
    size_t option_count;                 /* at most CAIRN_CONFIG_OPTIONS_MAX */
    void *values;                        /* the daemon's struct */
    /* for each option: 0 = not given, -1 = given on the command line, else the line in the file */
    int given[CAIRN_CONFIG_OPTIONS_MAX];
    bool lacks_memory; /* for a default: config_finish says so */
};

/* Fills in the defaults, and asserts that they are valid. The caller has zeroed `values`. */
void config_init(struct config *config, const struct config_option *options, size_t option_count,
                 void *values);
/* Frees the strings in `values`. */
void config_release(struct config *config);

/* Reads a file. CAIRN_ERR_CONFIG: the file is wrong, and the sentence begins with "file:line: ".
 * CAIRN_ERR_IO: the file cannot be read. */
CAIRN_MUST_CHECK cairn_status config_read(struct config *config, const char *path,
                                          struct sentence *why);
/* Applies one override, "section.key=value". */
CAIRN_MUST_CHECK cairn_status config_set(struct config *config, const char *assignment,
                                         struct sentence *why);
/* Checks, after file and overrides, that every option without a default was given. CAIRN_ERR_NO_MEMORY: a
 * default is missing. */
CAIRN_MUST_CHECK cairn_status config_finish(const struct config *config, struct sentence *why);

/* Reads a number as an option of that type (CAIRN_OPTION_INT, _BYTES, _DURATION) is written. Returns NULL on
 * success, otherwise the error. */
const char *config_read_number(const char *text, enum option_type type, int64_t *number_out);

/* Prints a sample file: every option with its doc, range and default, commented out. */
void config_print(const struct config *config, FILE *out);

/* ==== notify ==== */

/* Reports the daemon's state to systemd, as sd_notify(3) does. This code sends the datagrams to
 * $NOTIFY_SOCKET itself, because libsystemd would bring a dozen libraries for these few lines. Without a
 * supervisor the calls do nothing. A failed report is not an error of the daemon. Any thread. */

/* notify_ready sends READY=1 and a status line, notify_stopping sends STOPPING=1, and notify_status sends
 * STATUS=. They return true if a supervisor got the message. */
bool notify_ready(const char *status);
bool notify_stopping(void);
bool notify_status(const char *status);

/* Sends this text as it is, and hands the supervisor a duplicate of the descriptor `fd`, unless that is -1.
 * Waits at most timeout_ms for room in its socket. Returns 0, or an errno: EDESTADDRREQ if there is no
 * supervisor, ECONNREFUSED or ENOENT if it is gone. An empty text is not sent, but the answer is the same. */
int notify_send(const char *state, int fd, int timeout_ms);
/* The value of an environment variable of a supervisor; 0 if it is no number. */
uint64_t notify_number(const char *variable);

/* The longest time that the supervisor allows between two WATCHDOG=1; 0 if it does not watch this process.
 * The daemon sends WATCHDOG=1 twice in that time. */
uint64_t notify_watchdog_ms(void);

/* ==== yield ==== */

/* For a thread that works beside trainers, and must not slow them down. */

/* Gives the calling thread low priorities for CPU and I/O: the lowest with which it still gets some of
 * either. */
void thread_yield(void);
/* Gives the calling thread the normal CPU priority again, because it is in a hurry now. The system may
 * forbid this (LimitNICE, CAP_SYS_NICE). */
void thread_press(void);

/* ==== host lock ==== */

/* A lock that only one daemon of a host can hold, whichever users run the daemons. The lock is an flock of
 * a folder that always exists, so no file has to be made, owned or cleaned up. The kernel releases the lock
 * when the process ends for whatever reason. Daemons that see different folders (in containers) do not
 * exclude each other. */

#define CAIRN_HOST_LOCK_PATH "/dev/shm" /* in every distribution anybody can open this folder */

/* Takes the lock; close(*fd_out) releases it. CAIRN_ERR_BUSY: after `timeout_ms` another process, which the
 * sentence names, still holds the lock. CAIRN_ERR_CANCELED: *canceled was set during the wait.
 * CAIRN_ERR_IO: the folder cannot be opened or locked. Blocking; any thread. */
CAIRN_MUST_CHECK cairn_status host_lock_take(const char *path, int timeout_ms,
                                             const atomic_bool *canceled, int *fd_out,
                                             struct sentence *why);

/* ==== headroom ==== */

/* The headroom is the memory that this process may still take before the kernel kills a process.
 *
 * When a page is above a control group's limit, no call fails: the kernel kills a process. So a daemon
 * reads the headroom before it takes memory. The host has some memory available, and the process's control
 * group and each group above it have a limit, of which a part is in use. The least of these rests is the
 * headroom. Page cache that was not used lately (inactive_file) does not count as in use, because the
 * kernel drops it when memory is needed. Both versions of control groups are read, v2 (memory.max) and v1
 * (memory.limit_in_bytes), wherever they are mounted. A container sees only the groups that are mounted
 * into the container.
 *
 * Blocking (reads kernel files, a fraction of a millisecond); any thread. */

struct headroom {
    uint64_t available_bytes;
    uint64_t limit_bytes; /* the limit of `by`: memory in use and available memory together */
    /* the one that limits: "the host's RAM", or the folder of a control group */
    char by[256];
    uint64_t most_bytes; /* the lowest of all limits: what there would be with nothing in use */
};

/* `root` is the folder that contains proc and the mounts; it is "" except in a test. CAIRN_ERR_IO: there is
 * no proc/meminfo. A control group that cannot be read is ignored. */
CAIRN_MUST_CHECK cairn_status headroom_read(const char *root, struct headroom *room_out,
                                            struct sentence *why);

/* CAIRN_ERR_NO_MEMORY: the headroom is less than the bytes and the memory that the kernel needs to manage
 * them. The sentence begins with `what`. */
CAIRN_MUST_CHECK cairn_status headroom_judge(const struct headroom *room, uint64_t bytes,
                                             const char *what, struct sentence *why);

/* ==== daemon ==== */

/* The frame of both daemons: the command line, signals, the report "ready", and a clean end.
 *
 *   static struct shard_values values;                              (zeroed)
 *   struct daemon daemon;
 *   int exit_code;
 *   if (!daemon_begin(&daemon, &spec, argc, argv, &exit_code)) return exit_code;
 *   ... open listener, threads ...                      on error: daemon_fail(&daemon, &why)
 *   daemon_ready(&daemon, listener_address(listener));
 *   return daemon_run(&daemon);             runs the loop until nothing is open, then cleans
 *
 * The first SIGTERM or SIGINT calls on_stop, on the loop. There the daemon closes what it opened, and then
 * calls daemon_stop. A second signal ends the process at once, which is safe because a daemon survives any
 * crash. SIGHUP only makes a line in the log. SIGUSR1 switches the log's level to debug, and the next
 * SIGUSR1 switches the level back. SIGPIPE and SIGXFSZ are ignored. Loop thread only. */

struct daemon;

struct daemon_spec {
    const char *name;                    /* "cairn-shard" */
    const char *purpose;                 /* one sentence for --help */
    const char *more_usage;              /* lines of --help about what main does itself, or NULL */
    const char *build;                   /* "0.1.0+g1a2b3c4d5e6f"; NULL: the version alone */
    const struct config_option *options; /* [option_count] */
    size_t option_count;
    /* the daemon's struct of values, zeroed by the caller; the configuration fills it in */
    void *values;
    /* Judges rules that concern several values. Returns CAIRN_ERR_CONFIG if the configuration is bad. May
     * be NULL. */
    cairn_status (*judge)(const void *values, struct sentence *why);
    /* Called after `judge`, and only for --check-config: reports what is wrong on this host now, although
     * it would only make a start wait. May be NULL. */
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
    const char *ready_file; /* from argv, or NULL */
    const char *log_name;   /* from argv, or NULL */
    uv_signal_t signals[CAIRN_DAEMON_SIGNALS];
    uv_timer_t watchdog;
    uv_work_t first_work;
    bool stopping;
    bool is_announced; /* this process wrote the ready file */
    bool is_traceable; /* from argv */
    int exit_code;
};

/* Opens each of the descriptors 0 to 2 that is closed, because otherwise the next files or sockets would
 * get these numbers. Then the log might be written to a socket; and libuv refuses to close descriptors with
 * these numbers. daemon_begin does this first. */
void daemon_hold_standard_descriptors(void);

/* Reads the command line and the configuration:
 *   --config FILE  --set section.key=value  --check-config  --print-config  --ready-file PATH
 *   --log-level error|warn|info|debug  --log-name NAME  --traceable  --help  --version
 * Returns true if the daemon is to run; then the loop and the signals are set up, and `values` is filled
 * in. Returns false if main is to return *exit_code_out: 0 after --help and the like; otherwise something
 * is wrong, a sentence on stderr says what, and the code is 2 for the command line or the file. */
bool daemon_begin(struct daemon *daemon, const struct daemon_spec *spec, int argc, char **argv,
                  int *exit_code_out);

/* Sets up the log from the configuration, with `name` unless --log-name gives another name. Call right
 * after daemon_begin. */
void daemon_log(const struct daemon *daemon, const char *name, const struct log_options *options);

/* Hides the memory and the descriptors of this process from other processes of its user. */
void daemon_hide(void);

/* Gives up what the daemon does not need (proto/store/confine.h): no other process of its user may look into
 * its memory, where keys are, and it starts no program, unless `may_execute`. Call right after
 * daemon_log. */
void daemon_confine(struct daemon *daemon, bool may_execute);

/* Reports that the daemon serves. Writes the address and a newline to the --ready-file, all or nothing,
 * logs `msg=ready address=... port=...`, and notifies the supervisor. */
CAIRN_MUST_CHECK cairn_status daemon_ready(struct daemon *daemon, const char *address,
                                           struct sentence *why);

/* Reports that the daemon is well, and waits until it is its turn to serve: daemon_ready follows then. */
void daemon_stand_by(struct daemon *daemon);

/* Closes the daemon's own handles, so that the loop ends when the caller's handles are closed, too. May be
 * called again. daemon_run returns the first `exit_code` that is not 0. */
void daemon_stop(struct daemon *daemon, int exit_code);

/* Runs the loop until no handle is open, then removes the ready file, and frees the loop and the
 * configuration. */
int daemon_run(struct daemon *daemon);

/* Reports a failed start-up: logs the sentence, and stops the daemon. Then the caller closes what it
 * opened, and does `return daemon_run(daemon);`, which returns the exit code of `status`. */
void daemon_fail(struct daemon *daemon, cairn_status status, const struct sentence *why);

/* ==== pool ==== */

/* A pool of threads, which do a daemon's file work or a shard's arithmetic, so that the loop never waits
 * for either.
 *
 * A task consists of items, which any thread of the pool may run, in any order. When all items have ended,
 * `done` is called on the loop's thread, and the task belongs to its owner again. Tasks begin in the order
 * in which they are submitted; with one thread, a task begins after the previous one ended. The queue is a
 * list through the tasks themselves, so it allocates no memory, and is as long as the owners have tasks.
 *
 * The threads block signals as thread_start says (proto/base/machine.h). */

#define CAIRN_POOL_THREADS_MAX 64

struct pool;

/* Embedded in the object that the task works on. */
struct task {
    /* set by the owner, constant while the task is with the pool */
    /* Runs one item. `thread` is the index of the pool's thread; in pool_submit, on the loop's thread, it
     * is the number of threads. */
    void (*run)(struct task *task, uint32_t item, uint32_t thread);
    void (*done)(struct task *task); /* loop thread */
    uint32_t item_count;             /* 0: `done` follows at once */
    /* pool_submit itself runs the task, because that takes less time than to wake a thread. Not for code
     * that may meet a SIGBUS. */
    bool is_small;
    bool ends_items; /* `run` sees to it that its item is ended by pool_end; not with is_small */
    /* private to the pool */
    STAILQ_ENTRY(task) next;
    uint32_t items_taken, items_ended;
};

/* Starts the threads. `name`, of at most 15 bytes, is their name in ps. Each thread first calls `begin`, if
 * that is not NULL. CAIRN_ERR_NO_MEMORY. */
CAIRN_MUST_CHECK cairn_status pool_open(uv_loop_t *loop, const char *name, uint32_t thread_count,
                                        void (*begin)(void), struct pool **pool_out,
                                        struct sentence *why);
/* Lets running items end, joins the threads, and closes the pool's handle. The loop calls on_closed later,
 * if it is not NULL. No `done` is called any more: all tasks belong to their owners when pool_close
 * returns. */
void pool_close(struct pool *pool, void (*on_closed)(void *context), void *context);
/* Like pool_close, but for a pool of one thread whose item may hang. Waits at most `most_ms` for the item.
 * Returns false if the item still runs then; in this case the pool's memory is never freed. */
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

/* Takes at most `max` further items, of any tasks, and returns their number. A `run` calls this on its
 * thread of the pool, to do these items together with its own; pool_end ends them. Only for a pool whose
 * tasks all do the same kind of work. */
uint32_t pool_take(struct pool *pool, struct pool_item *items_out, uint32_t max);
/* Does the same as pool_take, but takes nothing while a thread of the pool is idle, because the idle thread
 * takes the next items itself. */
uint32_t pool_take_ahead(struct pool *pool, struct pool_item *items_out, uint32_t max);
void pool_end(struct pool *pool, const struct pool_item *items, uint32_t count);

/* ==== guard ==== */

/* For reading shared memory that another process made. If the host cannot supply a page of it (because
 * memory is used up, or a control group is at its limit), the reading thread gets a SIGBUS. This must not
 * end the daemon.
 *
 * Any thread, if it does not block SIGBUS. At a SIGBUS, guarded code is left in the middle of an
 * instruction. So guarded code must not take locks or allocate memory, and whatever it was writing is
 * undefined afterwards. */

/* Installs the SIGBUS handler for the process, once. A SIGBUS outside of guarded code still ends the
 * process. CAIRN_ERR_INTERNAL: the system refused the handler. */
CAIRN_MUST_CHECK cairn_status guard_install(void);

/* Runs run(arg). Returns NULL if `run` finished; otherwise the address at which `run` met a SIGBUS. */
CAIRN_MUST_CHECK const void *guard_run(void (*run)(void *arg), void *arg);

/* ==== storage watch ==== */

/* Checks the storage of the snapshots, on a thread of its own because the storage may hang. Then the daemon
 * goes on serving, reports the hang, and can end without that thread. The storage is checked when its
 * folder is set, and when something in the folder has failed. As long as a check finds a fault, another
 * check follows. Loop thread. */

struct storage_look;

struct storage_watch {
    /* the owner sets these before it opens the watch */
    /* Judges whether the folder has the token, and whether the owner may use the folder; the sentence says
     * what an operator must do. Runs on the watch's thread, and may hang. */
    cairn_status (*judge)(const char *path, uint64_t token, const struct storage_owner *owner,
                          struct sentence *why);
    void (*on_said)(struct storage_watch *watch); /* `said` has changed */
    void *context;
    /* each check copies `owner`; after a change call storage_watch_doubt */
    struct storage_owner owner;

    struct sentence said; /* the fault; empty: there is none, or none is known yet */

    /* private */
    uv_loop_t *loop;
    struct pool *thread; /* owned */
    char *path;          /* owned; NULL: not set */
    uint64_t token;
    struct storage_look *look; /* owned; while is_looking the thread owns it */
    /* when the last check began, or if it is over, ended; by the loop's clock */
    uint64_t since_ms;
    bool is_looking;
};

CAIRN_MUST_CHECK cairn_status storage_watch_open(struct storage_watch *watch, uv_loop_t *loop,
                                                 struct sentence *why);
/* Closes the watch; the loop calls on_closed(context) later. Returns false if the watch was not open; then
 * on_closed is not called. */
bool storage_watch_close(struct storage_watch *watch, void (*on_closed)(void *context),
                         void *context);
/* Frees what the watch owns. Call after on_closed. */
void storage_watch_release(struct storage_watch *watch);

/* Sets the folder and its token. Path "" or token 0: there is nothing to check. */
void storage_watch_told(struct storage_watch *watch, const char *path, uint64_t token);
/* Checks the folder again, because something in it has failed. */
void storage_watch_doubt(struct storage_watch *watch);
/* Checks the folder again if a check is due, or reports that the storage hangs. Call this from time to
 * time. */
void storage_watch_tick(struct storage_watch *watch);

#endif
