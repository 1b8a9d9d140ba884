/* The CLI: what its subcommands share. One command, one connection, one thread, blocking. */
#ifndef CAIRN_CLIENT_CTL_CTL_H
#define CAIRN_CLIENT_CTL_CTL_H

#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "proto/base/text.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"

/* Version of the JSON that `-o json` prints; grows when a field changes its meaning or goes. */
#define CTL_SCHEMA_VERSION 1
#define CTL_SHARDS_MAX     64  /* of cairn local */
#define CTL_NAMES_MAX      256 /* of an option that is given again and again */
#define CTL_OPTIONS_MAX    128

/* Which snapshots are taken and stay. */
struct ctl_rules {
    bool by_time;        /* --snapshot-every 10min: every_s */
    bool fallback;       /* --snapshot-fallback yes */
    const char *staging; /* NULL: not given */
    uint64_t every;      /* steps */
    uint64_t keep_last;  /* snapshots */
    uint64_t keep_every; /* steps */
    uint64_t max_bytes;
    uint32_t every_s, keep_within_s, durable_within_s, scrub_every_s;
    bool dry_run;
};

/* The options of a bench; 0 and NULL: not given, the bench's default. */
struct ctl_bench {
    uint64_t params, chunk;
    uint32_t workers, threads, tensors, global_batch;
    double seconds;
    const char *wire;     /* "f32" or "bf16" */
    const char *timeline; /* the file */
    const char *read;     /* "fetch" or "map" */
    double backward_ms;
    const char *backend;    /* "host" or "cuda" */
    const char *device;     /* of cuda: its number or UUID */
    bool has_device_memory; /* --memory device */
    /* a part of the bench; the bench judges it, and ctl.path: the way of the data */
    const char *only;
    const char *folder; /* --dir */
};

/* Values that `job plan` takes instead of those in the spec. */
struct ctl_plan {
    uint32_t stage;
    double offload;
};

/* The options of `snapshot export`; NULL and 0: not given. */
struct ctl_export {
    const char *format; /* "hf" or "dcp" */
    const char *dtype;  /* "f32" or "bf16" */
    uint64_t file_bytes_max;
    bool stats; /* of `snapshot show` */
};

/* --set KEY=VALUE, as a request has them. */
struct ctl_settings {
    Cairn__Setting *list[CTL_NAMES_MAX];
    Cairn__Setting room[CTL_NAMES_MAX];
    size_t count;
};

struct ctl_names {
    const char *names[CTL_NAMES_MAX];
    double weights[CTL_NAMES_MAX]; /* of --weight */
    size_t count;
};

/* The options of a re-sharding: over which members a job is spread. */
struct ctl_reshard {
    bool all;
    struct ctl_names add, drain, weight;
    double pause; /* a part of a step; 0: not given */
};

struct ctl {
    /* the command line */
    const char *endpoint; /* "host:port" */
    int timeout_ms;
    bool allow_unsigned, allow_untrusted, fallback;
    bool quick;      /* --quick */
    double subset;   /* --read-data-subset: a part of 1; 0: not given */
    const char *key; /* --key; NULL: not given */
    bool json, no_headers, quiet, wait, yes, force, watch, once;
    bool deletes;            /* --delete */
    double every_s;          /* --watch, --every; 0: not given */
    const char *job, *path;  /* --job, --path; NULL: not given */
    const char *path_before; /* of two --path the first; the last is path */
    /* --from, --to, --as; NULL: not given. Judged by the subcommand */
    const char *from, *to, *as;
    const char *group; /* --group; the same */
    double lr, clip_norm;
    struct ctl_rules rules;
    uint64_t since_unix_ms;            /* --since; 0: not given */
    const char *on_shard_loss;         /* --on-shard-loss; NULL: not given */
    uint32_t shard_loss_wait_s;        /* --shard-loss-wait; 0: not given */
    const char *on_worker_loss;        /* --on-worker-loss; NULL: not given */
    uint32_t worker_loss_wait_s;       /* --worker-loss-wait; 0: not given */
    uint32_t workers_min, workers_max; /* --workers; 0: not given */
    uint32_t shards;                   /* --shards; 0: not given */
    uint32_t mtbf_s;                   /* --mtbf; 0: not given */
    const char *endpoint_file, *keep, *import;
    struct ctl_bench bench;
    struct ctl_plan plan;
    struct ctl_export export;
    struct ctl_reshard reshard;
    struct ctl_settings set;
    int argc; /* what follows the verb */
    char **argv;
    const char *build;       /* what this program calls itself: "0.1.0+g1a2b3c4d5e6f" */
    bool check;              /* --check */
    uint32_t snapshot_age_s; /* --snapshot-age; 0: not given */
    /* the line as far as it is read */
    bool help;
    bool given[CTL_OPTIONS_MAX]; /* by the table of options */
    char words[64];              /* "job list": for what is said of the line */
    /* the connection */
    bool tries_again; /* who calls: that a coordinator cannot be reached, or is late, is not said */
    struct sentence *failed; /* who calls says itself why it failed; NULL: standard error has it */
    /* For a snapshot or digest: its job; and whether it was said already for whom it waits. */
    const char *cut_of;
    bool awaited_said;
};

/* A subcommand, or a part of one: returns the exit status. */
typedef int ctl_command(struct ctl *ctl);

/* Connects, says Hello, sends one request and gives its reply of `reply_type` (freed by the caller with
 * message_free). Failure: the sentence is printed; the exit status is status_exit of it. */
cairn_status ctl_call(struct ctl *ctl, uint16_t type, const ProtobufCMessage *message,
                      uint16_t reply_type, ProtobufCMessage **reply_out) CAIRN_MUST_CHECK;
/* Like ctl_call, for a reply that goes on in Page messages. `pages` is zeroed before; on
 * CAIRN_OK the caller releases it. */
cairn_status ctl_call_paged(struct ctl *ctl, uint16_t type, const ProtobufCMessage *message,
                            uint16_t reply_type, ProtobufCMessage **reply_out,
                            struct paged *pages) CAIRN_MUST_CHECK;

/* ---- job.c ---- */
/* An amendment, with a key of its own. *revision_out: that the job has then. As ctl_call. */
cairn_status ctl_amend(struct ctl *ctl, Cairn__JobAmend *amend,
                       uint64_t *revision_out) CAIRN_MUST_CHECK;

/* ---- output.c ---- */
/* Says what went wrong on stderr, with the stable code, and returns the exit status. */
int ctl_fail(cairn_status status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- options.c ---- */
/* Reads options up to the next word of the line, or with `all` everywhere in it; ctl->argv then begins
 * with what is no option. -1: go on; else the exit status. */
int ctl_options_read(struct ctl *ctl, bool all);
/* `takes`: the kinds of options that a subcommand takes, or several do: "endpoint timeout terms". */
/* Refuses what was given and the subcommand does not take; as above. */
int ctl_options_check(const struct ctl *ctl, const char *takes);
/* Prints what is taken, a line each. */
void ctl_options_print(FILE *out, const char *takes);
bool ctl_takes(const char *takes, const char *kind);
/* Is any of these options given? "keep-last keep-every" */
bool ctl_is_given(const struct ctl *ctl, const char *options);
/* "; see cairn job list --help" */
int ctl_usage_fail(const struct ctl *ctl, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* 1 to max, with K, M, G or T for thousands of it. -1: go on; else the exit status. */
int ctl_parse_number(const char *name, const char *text, uint32_t max, uint32_t *out);

/* ---- cluster.c ---- */
/* Reads "2h" (ms, s, m, h, d before now) or RFC 3339, "2026-11-24T14:00:00Z". */
bool ctl_since(const char *text, uint64_t now_ms, uint64_t *unix_ms_out);

/* ---- output.c ---- */
/* May `what` go, which is called `name`? -1: go on; else the exit status. */
int ctl_confirm(const struct ctl *ctl, const char *what, const char *name);

/* Makes the path that was given as `what` absolute. -1: go on; else the exit status. */
int ctl_absolute(const char *what, const char *path, char out[static PATH_MAX]);

/* A table: rows of cells, columns as wide as their widest cell. Cells are copied. */
struct ctl_table;
struct ctl_table *ctl_table_open(const char *const *headers, size_t column_count);
void ctl_table_cell(struct ctl_table *table, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Prints it (with headers unless told not to) and frees it. */
void ctl_table_close(struct ctl_table *table, const struct ctl *ctl);

/* A table of messages: a column is a field (output.c has the words for one), or what a function adds. */
struct ctl_column {
    const char *header, *field;
    void (*add)(struct ctl_table *table, const void *message); /* one cell; NULL: the field */
};
struct ctl_table *ctl_table_of(const struct ctl_column *columns, size_t column_count);
/* `messages` is an array of pointers to them. */
void ctl_table_rows(struct ctl_table *table, const void *messages, size_t count);
void ctl_table_print(const struct ctl *ctl, const struct ctl_column *columns, size_t column_count,
                     const void *messages, size_t count);
#define CTL_COLUMNS(columns) (columns), sizeof(columns) / sizeof *(columns)

/* A message as a new object, by its row in output.c; null for NULL. */
json_t *ctl_json(const void *message);
/* Adds these fields of the message. */
void ctl_json_add(json_t *object, const void *message, const char *fields);

/* A command that only asks and prints; NULL, 0 and false leave a thing out. */
struct ctl_question {
    uint16_t type, reply_type; /* CAIRN_MSG_ */
    const ProtobufCMessageDescriptor *request;
    /* The request's fields that are not 0: "FIELD=@0", an argument, if there is one; "FIELD=@force", is
     * that option given? "FIELD=!yes", is it not? "FIELD=1", true. */
    const char *fill;
    int timeout_ms;       /* if none is given */
    bool awaits;          /* it says for whom the job waits that argument 0 names */
    const char *confirm;  /* it asks before this goes, which the last argument names */
    const char *farewell; /* it says this when it is interrupted */
    void (*print)(struct ctl *ctl, const void *reply);
    bool is_quiet_too; /* it prints something with -q, too */
    json_t *(*json)(struct ctl *ctl, const void *reply);
    /* Without json: fields of the reply, and of the line "KEY=@0", "KEY=@yes"; NULL: as ctl_json has it. */
    const char *fields;
};
#define CTL_QUESTION(type_, message, fill_, reply, ...)                                       \
    {                                                                                         \
        .type = CAIRN_MSG_##type_, .request = &cairn__##message##__descriptor, .fill = fill_, \
        .reply_type = CAIRN_MSG_##reply, __VA_ARGS__                                          \
    }
/* Asks and prints; the exit status. */
int ctl_ask(struct ctl *ctl, const struct ctl_question *question);
/* The same with a request that is filled already. */
int ctl_ask_by(struct ctl *ctl, const struct ctl_question *question, const void *request);

/* "name: value" lines of one thing. */
void ctl_line(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ctl_version_line(const char *name, uint64_t generation, uint64_t step, bool unknown);
/* Prints the object (taken) with schema_version, and returns 0. */
int ctl_print_json(json_t *object);
/* Lower-case hexadecimal; "" for no bytes. Static memory, valid until the call after next. */
const char *ctl_hex(ProtobufCBinaryData bytes);
/* "2026-11-24T14:00:00Z"; "": never. Static memory, valid until the second call after it. */
const char *ctl_time(uint64_t unix_ms);
/* "12.3 MiB". Static memory, valid until the fourth call after it. */
const char *ctl_bytes(uint64_t bytes);

/* ---- snapshot.c ---- */
#define CTL_SNAPSHOT_TIMEOUT_MS 600000 /* if none is given */
void ctl_snapshot_print(const Cairn__SnapshotStatus *snapshot);
/* The line "damaged" of a job or a snapshot: elements that are not finite, and their tensors. */
void ctl_damaged_line(uint64_t nonfinite, const char *tensors);
/* On stderr: a snapshot with such elements "is passed over", say. */
void ctl_warn_damaged(const Cairn__SnapshotStatus *snapshot, const char *what);

/* ---- job.c: what it takes of its shards; an entry a shard ---- */
uint64_t ctl_job_memory_sum(const Cairn__MemoryTold *memory); /* of all kinds */
json_t *ctl_job_memory_json(Cairn__MemoryTold *const *shards, size_t count);
void ctl_job_memory_print(const struct ctl *ctl, Cairn__MemoryTold *const *shards, size_t count);

/* ---- output.c ---- */
/* From now on SIGINT and SIGTERM end the command (130), at once, with this line on stderr. */
void ctl_on_interrupt(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Runs it every ctl->every_s seconds until SIGINT or SIGTERM, over what it printed before on a terminal,
 * an empty line between elsewhere; or until it fails, but for a coordinator that was there and cannot be
 * reached. */
int ctl_watch(struct ctl *ctl, ctl_command *run);

/* ---- cluster.c ---- */
/* Prints to stderr, if there are any, the parts that shards hold and that are not acted on. */
void ctl_say_strangers(struct ctl *ctl);

ctl_command ctl_cluster_events, ctl_cluster_status, ctl_job_check, ctl_cluster_adopt,
    ctl_cluster_backup, ctl_key_show, ctl_key_trust, ctl_key_untrust, ctl_reshard_plan,
    ctl_reshard_apply, ctl_reshard_status, ctl_reshard_cancel, ctl_job_plan, ctl_job_top,
    ctl_job_amend, ctl_snapshot_show, ctl_snapshot_copy, ctl_snapshot_diff, ctl_snapshot_export,
    ctl_snapshot_verify, ctl_snapshot_restore, ctl_job_create, ctl_snapshot_prune,
    ctl_snapshot_advise, ctl_env, ctl_capabilities, ctl_local;
extern const struct ctl_question ctl_cluster_forget, ctl_shard_forget, ctl_job_list, ctl_job_show,
    ctl_job_digest, ctl_job_drop, ctl_job_park, ctl_job_unpark, ctl_snapshot_rm,
    ctl_snapshot_create, ctl_snapshot_cancel, ctl_snapshot_list, ctl_snapshot_tag, ctl_member_drain,
    ctl_key_list;

/* Makes room for `needed` elements in an array that `array` points to the pointer of. False: no memory. */
bool ctl_grow(void *array, size_t *capacity, size_t needed, size_t elem_bytes);

/* ==== progress ==== */

/* How far long work is, on stderr: a bar on a terminal, else a line every 10 seconds; nothing with -q. */

/* Told by one thread at a time. */
struct ctl_progress {
    const char *what; /* "exported"; borrowed */
    uint64_t total;   /* bytes */
    uint64_t begun_ms, said_ms;
    bool silent, on_terminal;
    bool line_open; /* the bar is on the terminal */
};

void ctl_progress_begin(struct ctl_progress *progress, const struct ctl *ctl, const char *what,
                        uint64_t total_bytes);
/* So many bytes are done. Cheap: it looks at the clock, and says something ten times a second at most. */
void ctl_progress_at(struct ctl_progress *progress, uint64_t done_bytes);
/* Takes the bar away. */
void ctl_progress_end(struct ctl_progress *progress);

/* ==== plan spec ==== */

/* The spec of a job out of what a user has: JSON with its tensors, the folder of a snapshot, or weights. */

/* `path` is a folder with a manifest or with .safetensors, a .safetensors file, or JSON. `*out` is set on
 * success only. */
cairn_status ctl_plan_spec(const char *path, struct job_spec_data *out,
                           struct sentence *why) CAIRN_MUST_CHECK;

/* ==== local ==== */

/* cairn local: a cluster in the foreground.
 *
 * One thread, no loop: every signal that matters is blocked and taken with sigtimedwait, SIGCHLD
 * included, so nothing runs in a handler. Only children that were started here are waited for,
 * signaled or killed, by their id; nobody else can have that id while they are not reaped. The
 * daemons are in process groups of their own, so Ctrl-C reaches the command alone, and in the
 * folder, so their configurations need no absolute paths. */

enum { LOCAL_COORDINATOR, LOCAL_SHARD, LOCAL_PROGRAMS };

struct local_daemon {
    char name[24]; /* "shard-1": of its configuration, log and ready file */
    pid_t pid;     /* 0: it does not run */
};

struct local {
    const struct ctl *ctl; /* borrowed */
    sigset_t signals;      /* blocked here, taken by local_signal */
    sigset_t old_signals;  /* of the children */
    bool is_blocked;       /* they are */
    char programs[LOCAL_PROGRAMS][PATH_MAX];
    char folder[PATH_MAX]; /* "": there is none */
    bool is_temporary;     /* removed in the end */
    char import[PATH_MAX]; /* import.folders of the shards; "": none */
    bool is_announced;     /* the endpoint file is ours */
    char endpoint[288];
    char socket[PATH_MAX + 32]; /* what the coordinator shall listen on */
    /* made for it where `folder` has too long a name, or an odd one; else "" */
    char socket_folder[64];
    struct local_daemon daemons[1 + CTL_SHARDS_MAX]; /* [daemon_count], the coordinator first */
    int daemon_count;
    bool is_debug;                /* the daemons log each round */
    uint32_t threads;             /* compute threads of a shard; 0: its share of the cores */
    const char *backend, *device; /* compute.backend and .device of the shards; NULL: not said */
};

/* Runs `body` while a cluster of ctl->shards is up, or, with ctl->endpoint, against the cluster
 * there; CAIRN_ENDPOINT tells the body where it is. The exit status is the body's. The caller sets
 * local->ctl and the fields behind daemon_count; the rest of `local` is 0 or left over from a
 * cluster before. */
int local_run(struct local *local, int (*body)(struct local *local, void *context), void *context);

/* Adds one more shard to the running cluster, which was not made for it. -1: go on; else the exit
 * status. */
int local_shard_add(struct local *local);

/* Waits for a signal of local->signals; 0: none came. timeout_ms -1: for ever. *is_key_out: it came from
 * the terminal, so the command has it, too. */
int local_signal(const struct local *local, int timeout_ms, bool *is_key_out);

/* Says of each daemon that ended how it did, with the end of its log. How many there were. */
int local_daemons_reap(struct local *local);
/* SIGTERM to all, SIGKILL to what is left 10 s or a signal later. */
void local_daemons_stop(struct local *local);

/* fork, for a body that has processes of its own: the child has the signals that this program was started
 * with, and dies with it. -1: and said. */
pid_t local_fork(struct local *local);

#endif
