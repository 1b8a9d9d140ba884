/* The options of the command line, for the files that read them. */
#ifndef CAIRN_CLIENT_CTL_OPTIONS_H
#define CAIRN_CLIENT_CTL_OPTIONS_H

#include <getopt.h>

#include "client/ctl/ctl.h"

enum {
    OPT_ENDPOINT = 256,
    OPT_TIMEOUT,
    OPT_NO_HEADERS,
    OPT_WAIT,
    OPT_YES,
    OPT_FORCE,
    OPT_JOB,
    OPT_PATH,
    OPT_SHARDS,
    OPT_ENDPOINT_FILE,
    OPT_KEEP,
    OPT_IMPORT,
    OPT_SECONDS,
    OPT_PARAMS,
    OPT_WORKERS,
    OPT_THREADS,
    OPT_TENSORS,
    OPT_WIRE,
    OPT_ONLY,
    OPT_BACKEND,
    OPT_DEVICE,
    OPT_STAGE,
    OPT_OFFLOAD,
    OPT_MEMORY,
    OPT_GLOBAL_BATCH,
    OPT_TIMELINE,
    OPT_BACKWARD,
    OPT_READ,
    OPT_CHUNK,
    OPT_WATCH,
    OPT_CHECK,
    OPT_SNAPSHOT_AGE,
    OPT_EVERY,
    OPT_ONCE,
    OPT_LR,
    OPT_GROUP,
    OPT_CLIP_NORM,
    OPT_SNAPSHOT_EVERY,
    OPT_SNAPSHOT_KEEP,
    OPT_SNAPSHOT_KEEP_EVERY,
    OPT_SNAPSHOT_KEEP_WITHIN,
    OPT_SNAPSHOT_MAX_BYTES,
    OPT_SNAPSHOT_STAGING,
    OPT_SNAPSHOT_DURABLE_WITHIN,
    OPT_SNAPSHOT_FALLBACK,
    OPT_SNAPSHOT_SCRUB_EVERY,
    OPT_KEEP_LAST,
    OPT_KEEP_EVERY,
    OPT_KEEP_WITHIN,
    OPT_MAX_BYTES,
    OPT_DRY_RUN,
    OPT_DELETE,
    OPT_MTBF,
    OPT_ON_SHARD_LOSS,
    OPT_SHARD_LOSS_WAIT,
    OPT_ALL,
    OPT_ADD,
    OPT_DRAIN,
    OPT_WEIGHT,
    OPT_PAUSE,
    OPT_SINCE,
    OPT_ON_WORKER_LOSS,
    OPT_WORKER_LOSS_WAIT,
    OPT_FROM,
    OPT_AS,
    OPT_SET,
    OPT_TO,
    OPT_FORMAT,
    OPT_DTYPE,
    OPT_MAX_FILE,
    OPT_STATS,
    OPT_DIR,
    OPT_ALLOW_UNSIGNED,
    OPT_ALLOW_UNTRUSTED,
    OPT_FALLBACK,
    OPT_QUICK,
    OPT_READ_DATA_SUBSET,
    OPT_KEY,
    OPT_HELP,
    OPT_VERSION
};

/* options_table.c */
struct ctl_option {
    struct option option;
    uint64_t kind; /* CTL_TAKES_*; 0: of every subcommand */
    const char *shown, *help;
};
extern const struct ctl_option ctl_options[];
extern const size_t ctl_option_count;

/* Each takes the options of one matter; optarg is the value. -1: go on; else the exit status. */
int ctl_take_bench(struct ctl *ctl, int option);

/* ---- options.c; the same; some are declared in ctl.h ---- */
int ctl_parse_seconds(const char *name, const char *text, double *out);
int ctl_parse_milliseconds(const char *name, const char *text, double *out);
/* 1 to max, with K, M, G or T for thousands of it. */
int ctl_parse_count(const char *name, const char *text, uint64_t max, uint64_t *out);
int ctl_parse_real(const char *name, const char *text, double *out);

/* ---- options_table.c; the same ---- */
int ctl_parse_name(struct ctl_names *names, const char *option, const char *text);
/* "NAME=W", cut at its last "=": the name is borrowed. */
int ctl_parse_weight(struct ctl_names *names, char *text);
/* "KEY=VALUE", cut at its first "=": both are borrowed. */
int ctl_parse_setting(struct ctl_settings *settings, char *text);
/* "10%", up to `most` of them; as a part of 1. */
int ctl_parse_percent(const char *name, const char *text, double most, double *out);

#endif
