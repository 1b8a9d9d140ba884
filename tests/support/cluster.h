/* A cluster of real daemons for one test: a coordinator and shards as child processes on this host, with
 * their data and the control socket in a folder of their own.
 *
 *   struct cluster cluster;
 *   cluster_start(&cluster, 3, NULL);
 *   ... cairn_open with .endpoint = cluster.address ...
 *   cluster_cli(&cluster, &said, "job digest -q %s", name);
 *   cluster_stop(&cluster);
 *
 * The programs are those of this build, or those in the folder that CAIRN_TEST_DAEMONS names.
 * Nothing outlives the test: each child is killed when the thread that started it ends, so call these
 * functions from the test's own thread. Every wait is bounded. What fails, fails the test (Check), and
 * then the folder stays, because the daemons' logs are in it; cluster_stop removes it. */
#ifndef CAIRN_SUPPORT_CLUSTER_H
#define CAIRN_SUPPORT_CLUSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "tests/support/scratch.h"

#define CLUSTER_SHARDS_MAX 8
#define CLUSTER_WAIT_MS    30000 /* for any one thing */
enum { CLUSTER_SETTINGS_MAX = 12 };

/* A list of settings where it is needed: .coordinator_set = SETTINGS("lease.heartbeat=100ms"). */
#define SETTINGS(...) ((const char *const[]) { __VA_ARGS__, NULL })

/* Zero is the default of each. Lists are of "section.key=value", ended by NULL. The first two are copied; the
 * others, and the strings of all, are borrowed until cluster_stop. */
struct cluster_options {
    const char *const *coordinator_set; /* default: a heartbeat of 100 ms */
    const char *const *shard_set;       /* of each shard; default: 1 compute thread, 256 MiB */
    const char *const *shard_hosts; /* [shard count] fabric.host of each; default: this host's */
    /* [shard count] network namespaces; the coordinator is in the first, unless in coordinator_netns.
     * Default: ours */
    const char *const *shard_netns;
    int shard_netns_count; /* so many, for shards that come later; 0: as many as there are at the start */
    const char *coordinator_netns;
    /* The programs of shard I begin with these words, ended by NULL, where they are there: "unshare", "-m" */
    const char *const *const *shard_within;
    const char *const *const *shard_each; /* of each shard, behind shard_set */
    const char *
        coordinator_ip; /* it listens there, too, on a port of its choice, and everybody comes by that port
                           with a token (CAIRN_TOKEN_FILE). Default: at a socket in the folder alone */
    const char *coordinator_name; /* with coordinator_ip: what everybody comes by instead of it */
    const char
        *other_socket; /* of a second coordinator, in the folder: everybody comes by both sockets */
    /* The shards and this process name their host, so that trainers reach them by mapped and by sealed;
     * default: by mapped alone */
    bool both_ways;
    /* Shards run with --keep: in `shards` are their keepers, which outlive a shard. The shard itself:
     * cluster_shard_process */
    bool shards_kept;
    const char *snapshots_path; /* default: "snapshots" in the folder */
    const char *log_level;      /* default: "info" */
};

struct cluster {
    char folder[CAIRN_SCRATCH_BYTES]; /* logs: coordinator.log, shard-0.log, ... */
    char snapshots_path[CAIRN_SCRATCH_BYTES + 32];
    char address[2 * CAIRN_SCRATCH_BYTES + 64]; /* of the coordinator; the same after a restart */
    char socket[CAIRN_SCRATCH_BYTES + 32]; /* the same as a path, also of one with coordinator_ip */
    char listens
        [96]; /* where it listens for TCP; a test that moves it writes another, then restarts it */
    struct cluster_options options;
    const char *settings[2][CLUSTER_SETTINGS_MAX + 1]; /* the coordinator's, the shards' */
    int shards_expected; /* cluster.shards: as many as it was started with */
    int shard_count;
    pid_t coordinator; /* 0: not running */
    pid_t shards[CLUSTER_SHARDS_MAX];
    char standby_of[CLUSTER_SHARDS_MAX]
                   [32]; /* the name of the shard that each mirrors; "": of none */
};

/* Returns when every daemon has said that it serves. options may be NULL. */
void cluster_start(struct cluster *cluster, int shard_count, const struct cluster_options *options);
/* SIGTERM to all that run; each must end with status 0 within the wait. Removes the folder. */
void cluster_stop(struct cluster *cluster);

/* SIGKILL, and reaped. Of a shard that is kept the keeper, too, as if its host ended. */
void cluster_kill_coordinator(struct cluster *cluster);
void cluster_kill_shard(struct cluster *cluster, int shard);
/* With shards_kept: the process of the shard, and its end by this signal, or by SIGUSR2 the exchange of its
 * program. Returns when its next process serves. */
pid_t cluster_shard_process(const struct cluster *cluster, int shard);
/* The same; 0: it is between two processes, or its keeper has ended. */
pid_t cluster_shard_child(const struct cluster *cluster, int shard);
void cluster_renew_shard(struct cluster *cluster, int shard, int signal);
/* Starts it again under its old name and, the coordinator, at its old address with its old data. */
void cluster_restart_coordinator(struct cluster *cluster);
void cluster_restart_shard(struct cluster *cluster, int shard);

/* A shard more, or a new process of a number whose own has ended: "shard-I". Of options it has what is the
 * same for all of them. */
void cluster_add_shard(struct cluster *cluster, int shard);
/* The same, of a standby of the shard `of`. */
void cluster_add_standby(struct cluster *cluster, int shard, int of);
/* It ends by itself, with status 0. */
void cluster_await_end_of_shard(struct cluster *cluster, int shard);

/* Bytes of memory that the process has resident (VmRSS). */
size_t cluster_resident_bytes(pid_t pid);

/* ---- children ---- */

/* What a program said. Text beyond the buffers is dropped. */
struct cluster_said {
    int status;          /* of its exit; 128 + N: killed by signal N */
    char out[64 * 1024]; /* ended by NUL */
    char err[8 * 1024];
};

/* Runs `cairn --endpoint ADDRESS COMMAND` to its end, where the coordinator is. The command is a format with
 * %s, %d and %%; spaces part its words, unless they are in '...' or in what is filled in. */
void cluster_cli(const struct cluster *cluster, struct cluster_said *said, const char *command, ...)
    __attribute__((format(printf, 3, 4)));

/* The same in two: in between the caller waits for `pid`, and reaps it. Its status, -1: it still runs. */
struct cluster_command {
    pid_t pid;
    int out_fd, err_fd;
    char name[64]; /* for whoever reads that it hangs */
};
void cluster_cli_begin(const struct cluster *cluster, struct cluster_command *command,
                       const char *words, ...) __attribute__((format(printf, 3, 4)));
/* The same of a text that comes from elsewhere: its words, and no conversions. */
void cluster_cli_begin_line(const struct cluster *cluster, struct cluster_command *command,
                            const char *line);
/* What it has printed by now, in static memory. */
const char *cluster_cli_printed(const struct cluster_command *command);
void cluster_cli_end(struct cluster_command *command, int status, struct cluster_said *said);

/* As cluster_cli; it ends with that status, and says that word. */
void cluster_says(const struct cluster *cluster, int status, const char *word, const char *command,
                  ...) __attribute__((format(printf, 4, 5)));

/* The same, again and again until it ends with status 0 and says that word, or, without it, says it not. */
void cluster_await(const struct cluster *cluster, bool is_said, const char *word,
                   const char *command, ...) __attribute__((format(printf, 4, 5)));

/* The same; it ends with status 0, and this is the first word that it says. */
enum { CLUSTER_WORD_BYTES = 128 };
void cluster_word(const struct cluster *cluster, char word_out[CLUSTER_WORD_BYTES],
                  const char *command, ...) __attribute__((format(printf, 3, 4)));

/* Lines with this text in a daemon's log: "coordinator.log", "shard-0.log". */
int cluster_logged(const struct cluster *cluster, const char *log, const char *text);

/* What is in a file, as far as 64 KiB go, in static memory; "": it is not there. cluster_log_text: one of the
 * folder. */
const char *cluster_text(const char *path);
const char *cluster_log_text(const struct cluster *cluster, const char *log);
/* Starts a program with its output appended to the file log_path. */
pid_t cluster_spawn(const char *const *argv, const char *log_path);
/* The same on a host, a network namespace (NULL: this one), with its output in that file of the folder. The
 * words are a format as of cluster_cli; the program of this test is called "self". */
pid_t cluster_run(const struct cluster *cluster, const char *netns, const char *log,
                  const char *words, ...) __attribute__((format(printf, 4, 5)));
/* Its exit as in cluster_said.status; -1: it still runs after timeout_ms. */
int cluster_wait(pid_t pid, int timeout_ms);
/* SIGKILL, and reaped. */
void cluster_kill(pid_t pid);
/* SIGSTOP to a process, whosever child; returns when none of its threads runs any more. kill() alone returns
 * while they still do, and what they should not have done is done. */
void cluster_freeze(pid_t pid);

#endif
