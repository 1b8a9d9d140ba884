/* Both daemons share this: the command line, signals, saying "ready", and a clean end.
 *
 *   static struct shard_values values;                              (zeroed)
 *   struct cairn_daemon daemon;
 *   int exit_code;
 *   if (!cairn_daemon_begin(&daemon, &spec, argc, argv, &exit_code)) return exit_code;
 *   ... open listener, threads ...                      on error: cairn_daemon_fail(&daemon, &why)
 *   cairn_daemon_ready(&daemon, cairn_listener_address(listener));
 *   return cairn_daemon_run(&daemon);             runs the loop until nothing is open, then cleans
 *
 * SIGTERM and SIGINT call on_stop once, on the loop: close what you opened, then
 * cairn_daemon_stop. A second signal ends the process at once (crash-only: that is safe). SIGHUP is
 * noted in the log; SIGUSR1 changes its level to debug, and back; SIGPIPE and SIGXFSZ are ignored. Loop
 * thread only. */
#ifndef CAIRN_BASE_DAEMON_H
#define CAIRN_BASE_DAEMON_H

#include "server/base/config.h"
#include "server/base/log.h"

#include <uv.h>

struct cairn_daemon;

struct cairn_daemon_spec {
    const char *name;                   /* "cairn-shard" */
    const char *purpose;                /* one sentence for --help */
    const char *build;                  /* "0.1.0+g1a2b3c4d5e6f"; NULL: the version alone */
    const struct cairn_option *options; /* [option_count] */
    size_t option_count;
    void *values; /* filled in; zeroed by the caller */
    /* Judges what single values cannot tell; CAIRN_ERR_CONFIG is a bad configuration. May be NULL. */
    cairn_status (*judge)(const void *values, struct cairn_sentence *why);
    /* Behind that, for --check-config alone: what is not well now, and a start waits for. May be NULL. */
    cairn_status (*judge_now)(const void *values, struct cairn_sentence *why);
    void (*on_stop)(struct cairn_daemon *daemon, void *context);
    void *context;
};

#define CAIRN_DAEMON_SIGNALS 4

struct cairn_daemon {
    uv_loop_t loop;
    struct cairn_config config;
    /* private */
    struct cairn_daemon_spec spec;
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
bool cairn_daemon_begin(struct cairn_daemon *daemon, const struct cairn_daemon_spec *spec, int argc,
                        char **argv, int *exit_code_out);

/* The log as the configuration says, in the name of `name` unless --log-name says another. Right after
 * begin. */
void cairn_daemon_log(const struct cairn_daemon *daemon, const char *name,
                      const struct cairn_log_options *options);

/* The daemon serves: logs `msg=ready address=... port=...`, writes the address and a newline to the
 * --ready-file (whole or not at all), tells the supervisor. */
CAIRN_MUST_CHECK cairn_status cairn_daemon_ready(struct cairn_daemon *daemon, const char *address,
                                                 struct cairn_sentence *why);

/* Ends the daemon's own handles, so that the loop ends when yours are closed too. Safe to call
 * again. `exit_code` is what cairn_daemon_run returns (the first one that is not 0 wins). */
void cairn_daemon_stop(struct cairn_daemon *daemon, int exit_code);

/* Runs the loop to its end, removes the ready file, frees the configuration and the loop. */
int cairn_daemon_run(struct cairn_daemon *daemon);

/* Start-up failed: logs the sentence, and calls for a stop. Follow it with closing what was opened
 * and `return cairn_daemon_run(daemon);`, which returns the status's exit code. */
void cairn_daemon_fail(struct cairn_daemon *daemon, cairn_status status,
                       const struct cairn_sentence *why);

#endif
