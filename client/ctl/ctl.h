/* The subcommands of the CLI share this interface. A command uses one connection and one thread, and
 * blocks. */
#ifndef CAIRN_CLIENT_CTL_CTL_H
#define CAIRN_CLIENT_CTL_CTL_H

#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "proto/base/text.h"
#include "proto/spec/spec.h"
#include "proto/wire/wire.h"

#define CTL_SHARDS_MAX  64  /* the most shards of cairn local */
#define CTL_NAMES_MAX   256 /* the most values of an option that may be repeated */
#define CTL_OPTIONS_MAX 128

/* ==== the command line ==== */

/* The values of options, by subject. An option that takes no value needs no field: ctl_is_given has it. */

/* The rules of `snapshot prune`. */
struct ctl_rules {
    uint64_t keep_last;  /* snapshots */
    uint64_t keep_every; /* steps */
    uint64_t max_bytes;
    uint32_t keep_within_s;
};

/* 0: not given. */
struct ctl_times {
    uint64_t since_unix_ms;
    uint32_t mtbf_s, snapshot_age_s;
    double every_s; /* --watch, --every */
};

/* NULL: not given. The subcommand validates the values. */
struct ctl_restoring {
    const char *job, *as;         /* the new name */
    struct cairn_version back_to; /* --to-version; generation 0: any */
};

struct ctl_verifying {
    double subset;   /* --read-data-subset: a fraction, at most 1; 0: not given */
    const char *key; /* NULL: not given */
};

/* The files of `cairn local`; NULL: not given. */
struct ctl_local {
    const char *endpoint_file, *keep, *import;
};

/* The options of a bench; 0 and NULL mean "not given": the bench's default applies. */
struct ctl_bench {
    uint64_t params, chunk;
    uint32_t workers, threads, tensors, global_batch;
    double seconds;
    const char *wire;     /* "f32" or "bf16" */
    const char *timeline; /* a file */
    const char *read;     /* "fetch" or "map" */
    double backward_ms;
    const char *backend;    /* "host" or "cuda" */
    const char *device;     /* for cuda: the number or UUID of the card */
    bool has_device_memory; /* --memory device */
    /* The part of the bench to run. The bench validates this field. It also validates ctl.path, which names
     * the data path. */
    const char *only;
    const char *folder; /* --dir */
    const char *tier;   /* "process", "peer" or "log" */
    uint32_t kills;
    bool is_planned;
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
    bool ema;
};

/* The settings given by --set KEY=VALUE, or by options of their own, in the form that a request carries. */
struct ctl_settings {
    Cairn__Setting *list[CTL_NAMES_MAX];
    Cairn__Setting room[CTL_NAMES_MAX];
    char values[CTL_NAMES_MAX]
               [CAIRN_SETTING_TEXT_MAX + 1]; /* the values that are not words of the command line */
    size_t count;
};
struct ctl_names {
    const char *names[CTL_NAMES_MAX];
    double weights[CTL_NAMES_MAX]; /* the values of --weight */
    size_t count;
};

/* The terms of `job amend`. */
struct ctl_terms {
    uint32_t workers_min, workers_max; /* 0: not given */
    double lr;
    const char *group; /* NULL: not given */
    struct ctl_settings set;
};

/* The options of `key add` and the like; NULL and 0: not given. */
struct ctl_key {
    const char *roles, *owner, *jobs;
    uint64_t until_unix_ms;
    uint32_t grace_s;
};

/* The options of a re-sharding: the members that a job is spread over. */
struct ctl_reshard {
    struct ctl_names add, drain, weight;
    double pause; /* a fraction of a step; 0: not given */
};

/* The part of the command line that has been read. */
struct ctl_reading {
    char **line;                 /* owned; the line as it was given */
    ptrdiff_t noun_at;           /* the place of the command's noun in `line` */
    bool given[CTL_OPTIONS_MAX]; /* indexed by row of the option table */
};

/* How the coordinator is asked. */
struct ctl_call {
    int timeout_ms; /* 0: not given */
    /* True: the caller retries, so a coordinator that is unreachable or late is not reported */
    bool tries_again;
    /* receives the error for the caller; NULL: the error is printed on stderr */
    struct sentence *failed;
    /* cut_of: the job of a requested snapshot or digest. awaited_said: the command has already
     * printed whom this job waits for */
    const char *cut_of;
    bool awaited_said;
};

struct ctl_program;
struct ctl_row;

struct ctl {
    const char *endpoint; /* "host:port" */
    const char *token_file;
    bool json, no_headers, quiet, yes, watch;
    const char *path;        /* --path; NULL: not given */
    const char *path_before; /* the first of two --path options; `path` has the second */
    const char *from, *to;   /* NULL: not given. The subcommand validates them */
    uint32_t shards;         /* 0: not given */
    struct ctl_times times;
    struct ctl_rules rules;
    struct ctl_restoring restore;
    struct ctl_verifying verify;
    struct ctl_local local;
    struct ctl_bench bench;
    struct ctl_plan plan;
    struct ctl_export export;
    struct ctl_reshard reshard;
    struct ctl_terms terms;
    struct ctl_key key;
    int argc; /* the arguments after the verb */
    char **argv;
    const struct ctl_program *program;
    const struct ctl_row *row; /* the command */
    char words[64];            /* the words that name the command, for messages: "job list" */
    struct ctl_reading reading;
    struct ctl_call call;
};

/* A subcommand, or a part of one. Returns the exit status. */
typedef int ctl_command(struct ctl *ctl);

/* Connects, says Hello, sends one request and returns its reply of `reply_type` (the caller frees the
 * reply with message_free). On failure the error message is printed, and the exit status is status_exit
 * of the returned status. */
cairn_status ctl_call(struct ctl *ctl, uint16_t type, const ProtobufCMessage *message,
                      uint16_t reply_type, ProtobufCMessage **reply_out) CAIRN_MUST_CHECK;
/* Like ctl_call, for a reply that continues in Page messages. The call zeroes `pages` first; on CAIRN_OK
 * the caller releases `pages`. */
cairn_status ctl_call_paged(struct ctl *ctl, uint16_t type, const ProtobufCMessage *message,
                            uint16_t reply_type, ProtobufCMessage **reply_out,
                            struct paged *pages) CAIRN_MUST_CHECK;

/* ---- output.c ---- */
/* Prints the error on stderr, with its stable code, and returns the exit status. */
int ctl_fail(cairn_status status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- options.c ---- */
/* True if any of these options, which blanks or commas divide, was given: "keep-last keep-every". */
bool ctl_is_given(const struct ctl *ctl, const char *options);
/* Adds a setting of the field of a spec, with its value in `from`, to ctl->terms.set. -1: continue; else the
 * exit status: there are too many settings. */
int ctl_set_field(struct ctl *ctl, const char *option, const char *name,
                  const struct job_spec_data *from);
/* Returns the value of an option that is a whole number, or a time in seconds. */
uint64_t ctl_option_number(const struct ctl *ctl, const char *option);
/* Prints a usage error; the message ends with "; see cairn job list --help". */
int ctl_usage_fail(const struct ctl *ctl, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Reads a number from 1 to max; the suffix K, M, G or T multiplies by powers of a thousand. -1:
 * continue; else the exit status. */
int ctl_parse_number(const char *name, const char *text, uint32_t max, uint32_t *out);
/* Checks that the option's text is one of the words of `choices`, "f32|bf16". *number_out: its number,
 * from 0. -1: continue; else the exit status. */
int ctl_parse_choice(const char *option, const char *choices, const char *text,
                     uint64_t *number_out);

/* Reads "2h" (ms, s, m, h, d before now) or RFC 3339, "2026-11-24T14:00:00Z". */
bool ctl_since(const char *text, uint64_t now_ms, uint64_t *unix_ms_out);

/* ---- ask.c ---- */
/* Asks whether `what`, called `name`, may be deleted. -1: continue; else the exit status. */
int ctl_confirm(const struct ctl *ctl, const char *what, const char *name);

/* Makes the path absolute; an error names the path by `what`. -1: continue; else the exit status. */
int ctl_absolute(const char *what, const char *path, char out[static PATH_MAX]);

/* ==== output ==== */

/* A table of messages: columns are as wide as their widest cell. `columns` has a line "HEADER|FIELD" for
 * each, where FIELD is a field or a text (output.c has the syntax). */
struct ctl_table;
struct ctl_table *ctl_table_open(const char *columns);
/* Adds a row for each message; `messages` is an array of pointers to the messages. */
void ctl_table_rows(struct ctl_table *table, const void *messages, size_t count);
/* Prints the table (with headers unless --no-headers was given) and frees it. */
void ctl_table_close(struct ctl_table *table, const struct ctl *ctl);

/* The appearance of a message: a row of a table in shapes.c. */
struct ctl_shape {
    const ProtobufCMessageDescriptor *of; /* NULL ends the table */
    const char *json;                     /* fields; NULL: none */
    /* Adds what `json` cannot say, and returns the object, or another one in its place; NULL: nothing */
    json_t *(*add)(json_t *object, const void *message);
    const char *columns; /* of a table of these messages, as ctl_table_open takes them */
};
/* A value that is worked out from a message, and used as a field of this name. One function is set. */
struct ctl_computed {
    const ProtobufCMessageDescriptor *of;
    const char *name; /* NULL ends the table */
    uint64_t (*number)(const void *message);
    void (*text)(const void *message, FILE *to);
};
extern const struct ctl_shape ctl_shapes[];
extern const struct ctl_computed ctl_computed[];

/* Returns a message as a new object, as the message's row in shapes.c says; null for NULL. */
json_t *ctl_json(const void *message);
/* Adds the named fields of the message. */
void ctl_json_add(json_t *object, const void *message, const char *fields);

/* Returns a field of the message as a number; 1 for a text that is not empty, and for a message. */
uint64_t ctl_number(const void *message, const char *field);
/* Returns a text with fields of the message (output.c has the syntax), which the caller frees; NULL: the
 * text is left out. */
char *ctl_text_of(const void *message, const char *text);
/* Prints a page of lines, texts and tables about the message (output.c has the syntax). */
void ctl_page(const void *message, const char *page);
/* ---- messages of a command's own: client/ctl/shown.proto ---- */
/* Each is freed by message_free, with its texts, which therefore are copies. These functions end the program
 * if there is no memory. */
void *ctl_message(const ProtobufCMessageDescriptor *type);
char *ctl_copy(const char *text);
/* Appends a message, or a text, to a list of the message, which owns it from then on. */
void ctl_append(void *message, const char *list, void *element);
void *ctl_add(void *message, const char *list); /* a new message */
/* Prints the message: as JSON, as the page, or, with -q, as `quiet`; NULL: nothing. */
void ctl_show(const struct ctl *ctl, const void *message, const char *page, const char *quiet);

/* Says whose options and arguments pages show. */
void ctl_output_begin(const struct ctl *ctl);

/* Parts of pages: the version of a job; the tensors with non-finite elements of a job or a snapshot; a
 * snapshot. */
#define CTL_VERSION                                            \
    "[{!version_unknown}generation {generation}, step {step}]" \
    "[{?version_unknown}unknown: not all shards have told it]"
#define CTL_DAMAGED_LINE                                                          \
    "damaged|the last update left a non-finite result in {nonfinite?} elements: " \
    "{nonfinite_tensors}"
#define CTL_SNAPSHOT_LINES                                      \
    "snapshot|{id}\n"                                           \
    "job|{job}\n"                                               \
    "state|{state}\n"                                           \
    "version|generation {generation}, step {step}\n"            \
    "size|{bytes/bytes} in {files?} files of {shards} shards\n" \
    "content root|{content_root?}\n"                            \
    "created|{created_unix_ms/time?}\n"                         \
    "periodic|{?periodic}yes\n"                                 \
    "signature|{signature?}\n" CTL_DAMAGED_LINE "\n"            \
    "path|{path?}"

/* ==== commands ==== */

/* The work of a command. Most commands only send a request and print the reply. In a request, and in what is
 * printed, a field that is NULL, 0 or false leaves its part out. */
struct ctl_question {
    ctl_command *run; /* does all of it, and nothing below is set; NULL: the coordinator is asked */
    uint16_t type, reply_type; /* CAIRN_MSG_ */
    const ProtobufCMessageDescriptor *request;
    /* The request's fields that are not 0, each in one of these forms. "FIELD=@0": argument 0, if
     * given. "FIELD=/0": argument 0 as an absolute path. "FIELD=@force": true if --force was given;
     * for an option that is a number, the number. "FIELD=@a,b": true if --a or --b was given.
     * "FIELD=!yes": true if --yes was not given. "FIELD=1": true. */
    const char *fill;
    /* Fills in the rest of the request. -1: continue; else the exit status. */
    int (*fill_by)(struct ctl *ctl, void *request);
    int timeout_ms; /* used if no timeout is given */
    bool awaits;    /* prints whom the job named by argument 0 waits for */
    /* The kind of thing that this command deletes, after asking for confirmation; the last argument names
     * the thing */
    const char *confirm;
    const char *farewell; /* printed when the command is interrupted */
    /* Shows the reply in another way, and returns the exit status. -1: it is shown as the rest says. */
    int (*show)(struct ctl *ctl, const void *reply);
    const char *page, *quiet; /* what is printed; with -q `quiet` */
    bool quiet_hides_all;     /* with -q nothing is printed, even as JSON */
    json_t *(*json)(struct ctl *ctl, const void *reply);
    /* Used if `json` is NULL: fields of the reply in JSON, and values of the command line, such as
     * "KEY=@0" and "KEY=@yes". "* FIELDS": besides those of the reply's type. NULL: just those. */
    const char *fields;
    /* Called after the reply was printed: returns the exit status, and prints the reason if the
     * status is not 0. NULL: the exit status is 0. */
    int (*after)(struct ctl *ctl, const void *reply);
};
#define CTL_ASKS(type_, message, reply)                                    \
    .type = CAIRN_MSG_##type_, .request = &cairn__##message##__descriptor, \
    .reply_type = CAIRN_MSG_##reply
/* Sends the request and prints the reply. Returns the exit status. */
int ctl_ask(struct ctl *ctl, const struct ctl_question *question);

/* The commands that have functions, each in the file of its subject. */
extern const struct ctl_question ctl_local, ctl_env, ctl_capabilities, ctl_cluster_status,
    ctl_cluster_events, ctl_cluster_audit, ctl_cluster_adopt, ctl_cluster_init, ctl_key_show,
    ctl_key_trust, ctl_key_add, ctl_key_revoke, ctl_key_rotate, ctl_reshard_plan, ctl_reshard_apply,
    ctl_reshard_status, ctl_reshard_cancel, ctl_job_list, ctl_job_show, ctl_job_check, ctl_job_top,
    ctl_job_plan, ctl_job_amend, ctl_job_durability, ctl_job_rollback, ctl_job_create,
    ctl_snapshot_create, ctl_snapshot_list, ctl_snapshot_show, ctl_snapshot_copy, ctl_snapshot_diff,
    ctl_snapshot_export, ctl_snapshot_verify, ctl_snapshot_restore;

/* A command: a row of a table, which a row without a noun ends. */
struct ctl_row {
    const char *noun, *verb; /* verb "": the noun alone */
    const char *arguments;   /* usage; the options that it names are those of the command */
    const char *help;
    int min_args, max_args;
    const char *takes;                   /* the options that usage does not name */
    const struct ctl_question *question; /* NULL: the program cairn-NOUN runs the command */
};
enum { CTL_ANY_ARGS = 1 << 20 };
extern const struct ctl_row ctl_bench_rows[]; /* the commands of cairn-bench */

/* A program that carries out command lines. */
struct ctl_program {
    const char *build; /* the version that the program reports: "0.1.0+g1a2b3c4d5e6f" */
    /* the tables of the program's commands; NULL ends the list */
    const struct ctl_row *const *tables;
    /* the noun of all commands, which the command line then leaves out; NULL: the line has the
     * noun */
    const char *noun;
    ctl_command *run; /* carries out rows without a question */
};
/* Carries out the line of main(), and returns the exit status. */
int ctl_main(int argc, char **argv, const struct ctl_program *program);

/* Prints a "name: value" line about one thing. */
void ctl_line(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints the object with schema_version and returns 0. Takes ownership of the object. */
int ctl_print_json(json_t *object);
/* Returns the time as "2026-11-24T14:00:00Z"; "" for 0, which means never. The text is in static
 * memory, valid until the second call after this one. */
const char *ctl_time(uint64_t unix_ms);
/* Returns the size as "12.3 MiB". The text is in static memory, valid until the fourth call after
 * this one. */
const char *ctl_bytes(uint64_t bytes);

/* ---- snapshot.c ---- */
#define CTL_SNAPSHOT_TIMEOUT_MS 600000 /* used if no timeout is given */
/* ---- shapes.c: the memory that a job uses on its shards; one entry per shard ---- */
#define CTL_MEMORY_SUM \
    "state+published+landing+staging+tables+former" /* of all kinds in host memory */
void ctl_job_memory_print(const struct ctl *ctl, Cairn__MemoryTold *const *shards, size_t count);

/* ---- output.c ---- */
/* Makes SIGINT and SIGTERM end the command immediately, with exit status 130 and this line on
 * stderr. */
void ctl_on_interrupt(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Calls `run` every ctl->every_s seconds until SIGINT or SIGTERM. On a terminal the new output
 * overwrites the old; elsewhere an empty line separates them. ctl_watch also ends when `run` fails,
 * unless the coordinator was reached before and is unreachable now. */
int ctl_watch(struct ctl *ctl, ctl_command *run);

/* Grows an array to hold `needed` elements; `array` points to the array pointer. False: no memory. */
bool ctl_grow(void *array, size_t *capacity, size_t needed, size_t elem_bytes);

/* ==== progress ==== */

/* The progress of long work, on stderr: a bar on a terminal, else a line every 10 seconds; nothing with
 * -q. */

/* Updated by one thread at a time. */
struct ctl_progress {
    const char *what; /* "exported"; borrowed */
    uint64_t total;   /* bytes */
    uint64_t begun_ms, said_ms;
    bool silent, on_terminal;
    bool line_open; /* the bar is shown on the terminal */
};

void ctl_progress_begin(struct ctl_progress *progress, const struct ctl *ctl, const char *what,
                        uint64_t total_bytes);
/* Reports that done_bytes are done. The call is cheap: it reads the clock, and prints at most ten times a
 * second. */
void ctl_progress_at(struct ctl_progress *progress, uint64_t done_bytes);
/* Removes the bar from the terminal. */
void ctl_progress_end(struct ctl_progress *progress);

/* ==== plan spec ==== */

/* Builds the spec of a job from a user's files: JSON with its tensors, the folder of a snapshot, or
 * weights. */

/* `path` is a folder with a manifest or with .safetensors, a .safetensors file, or JSON. `*out` is set on
 * success only. */
cairn_status ctl_plan_spec(const char *path, struct job_spec_data *out,
                           struct sentence *why) CAIRN_MUST_CHECK;

/* ==== local ==== */

/* cairn local: a cluster in the foreground.
 *
 * The command has one thread and no loop. Every relevant signal, SIGCHLD included, is blocked and
 * received by sigtimedwait, so that no code runs in a handler. The command waits for, signals and
 * kills only children that it started, by process id; no other process can have that id until the
 * child is reaped. The daemons run in process groups of their own, so Ctrl-C reaches only the
 * command. Their working directory is the folder, so their configurations need no absolute
 * paths. */

enum { LOCAL_COORDINATOR, LOCAL_SHARD, LOCAL_PROGRAMS };

struct local_daemon {
    char name[24]; /* the name of the daemon's configuration, log and ready file: "shard-1" */
    /* The daemon, or the keeper that runs it, and the process group that both are in; 0: no process of the
     * group is left */
    pid_t pid;
    int standby_of; /* the number of the shard whose standby it is; 0: it is none */
};

struct local {
    const struct ctl *ctl; /* borrowed */
    sigset_t signals;      /* blocked here, taken by local_signal */
    sigset_t old_signals;  /* the mask to restore in children */
    bool is_blocked;       /* `signals` are blocked */
    char programs[LOCAL_PROGRAMS][PATH_MAX];
    char folder[PATH_MAX]; /* "": none */
    bool is_temporary;     /* the folder is removed at the end */
    char import[PATH_MAX]; /* import.folders of the shards; "": none */
    bool is_announced;     /* this command wrote the endpoint file */
    char endpoint[288];
    char socket[PATH_MAX + 32]; /* the socket that the coordinator will listen on */
    /* A folder that was created for the socket because `folder`'s name is too long or has unusual
     * characters; else "" */
    char socket_folder[64];
    struct local_daemon daemons[1 + CTL_SHARDS_MAX]; /* [daemon_count], the coordinator first */
    int daemon_count;
    bool is_debug; /* the daemons log each round */
    /* Shards run with --keep, so that their state outlives a crash: then `pid` is the keeper's, and
     * local_shard_process finds the shard's */
    bool is_kept;
    bool has_logs;    /* shards have a folder for logs of jobs (log.path) */
    uint32_t threads; /* compute threads of a shard; 0: the shard's share of the cores */
    const char *backend, *device; /* compute.backend and .device of the shards; NULL: not set */
};

/* Runs `body` while a cluster of ctl->shards shards is up. If ctl->endpoint is set, the body uses
 * the cluster at that endpoint instead. The body finds its cluster's endpoint in CAIRN_ENDPOINT.
 * Returns the body's exit status. The caller sets local->ctl and the fields after daemon_count; the
 * rest of `local` is 0 or left over from an earlier cluster. */
int local_run(struct local *local, int (*body)(struct local *local, void *context), void *context);

/* Adds one more shard to the running cluster, whose configuration does not include that shard: a shard as any
 * other, or the standby of the shard of that number (0: none). -1: continue; else the exit status. */
int local_shard_add(struct local *local, int standby_of);
/* Returns the process of a shard, which is not that of its keeper. 0: it is between two processes. */
pid_t local_shard_process(const struct local *local, int shard);
/* Ends a shard as its host ends: by SIGKILL, and its keeper with it. */
void local_shard_kill(struct local *local, int shard);
/* Starts a shard that was ended, and does not wait until it is ready. -1: continue; else the exit status. */
int local_shard_start(struct local *local, int shard, int standby_of);

/* Waits for a signal of local->signals and returns it; 0: none came. timeout_ms -1: no limit. *is_key_out:
 * the signal came from the terminal, so the body's command received it, too. */
int local_signal(const struct local *local, int timeout_ms, bool *is_key_out);

/* Finds a program beside this one, then in PATH; `why` lists the locations searched. */
bool local_find_program(const char *name, char path_out[PATH_MAX], struct sentence *why);

/* Prints, for each daemon that has ended, how it ended, and the last lines of its log. Returns the
 * number of these daemons. */
int local_daemons_reap(struct local *local);
/* Sends SIGTERM to all daemons, and SIGKILL to the remaining ones after 10 s or at the next signal. */
void local_daemons_stop(struct local *local);

/* Forks, for a body that has processes of its own. The child has the signal mask that this program
 * was started with, and dies with this program. -1, with the error printed: fork failed. */
pid_t local_fork(struct local *local);

#endif
