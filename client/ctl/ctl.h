/* The admin CLI: what its subcommands share. One command, one connection, one thread, blocking. */
#ifndef CAIRN_CTL_CTL_H
#define CAIRN_CTL_CTL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/wire/messages.h"
#include "proto/wire/sentence.h"

/* Of the JSON that `-o json` prints; grows when a field changes its meaning or goes. */
#define CAIRN_CTL_SCHEMA_VERSION 1

struct ctl {
    /* the command line */
    const char *endpoint; /* "host:port" */
    int timeout_ms;
    bool json, no_headers, quiet, wait;
    const char *job, *path; /* --job, --path; NULL: not given */
    int argc;               /* what follows the verb */
    char **argv;
    /* the connection */
    int fd;
    uint64_t deadline_ms;
};

/* Connects, says Hello, sends one request and gives its reply of `reply_type` (freed by the caller with
 * cairn_message_free). Failure: the sentence is printed; the exit status is cairn_status_exit of it. */
cairn_status cairn_ctl_call(struct ctl *ctl, uint16_t type, const ProtobufCMessage *message,
                            uint16_t reply_type, ProtobufCMessage **reply_out) CAIRN_MUST_CHECK;

/* Says what went wrong on stderr, with the stable code, and returns the exit status. */
int cairn_ctl_fail(cairn_status status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- output.c ---- */
/* A table: rows of cells, columns as wide as their widest cell. Cells are copied. */
struct ctl_table;
struct ctl_table *cairn_ctl_table_open(const char *const *headers, size_t column_count);
void cairn_ctl_table_cell(struct ctl_table *table, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Prints it (with headers unless told not to) and frees it. */
void cairn_ctl_table_close(struct ctl_table *table, const struct ctl *ctl);
/* "name: value" lines of one thing. */
void cairn_ctl_line(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints the object (taken) with schema_version, and returns 0. */
int cairn_ctl_print_json(json_t *object);
/* Lower-case hexadecimal; "" for no bytes. Static memory, valid until the call after next. */
const char *cairn_ctl_hex(ProtobufCBinaryData bytes);
/* "12.3 MiB". Static memory, valid until the fourth call after it. */
const char *cairn_ctl_bytes(uint64_t bytes);

/* ---- subcommands; each returns the exit status ---- */
int cairn_ctl_cluster_status(struct ctl *ctl);
int cairn_ctl_job_list(struct ctl *ctl);
int cairn_ctl_job_show(struct ctl *ctl);
int cairn_ctl_job_digest(struct ctl *ctl);
int cairn_ctl_snapshot_create(struct ctl *ctl);
int cairn_ctl_snapshot_list(struct ctl *ctl);
int cairn_ctl_snapshot_show(struct ctl *ctl);
int cairn_ctl_snapshot_restore(struct ctl *ctl);

#endif
