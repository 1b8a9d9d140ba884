/* Requests of an operator to a coordinator. Each request uses a connection of its own and
 * introduces itself as an operator, whatever else the process is. The `cairn` commands use this,
 * and so do the calls of cairn.h that concern the cluster's jobs. Caller's thread; nothing is
 * printed. */
#ifndef CAIRN_CLIENT_ADMIN_H
#define CAIRN_CLIENT_ADMIN_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/text.h"
#include "proto/secure/secure.h"
#include "proto/wire/wire.h"

struct admin {
    /* the caller's, borrowed */
    const char *endpoint;   /* "host:port" or "/path" */
    const char *name;       /* the caller's name in the coordinator's log */
    const char *build;      /* the version string that Hello reports; NULL: CAIRN_VERSION */
    const char *token_file; /* for TCP; NULL: where token_find looks */
    const char *advice;     /* follows "... cannot be reached: WHY; is it running" */
    int timeout_ms;         /* the timeout of one call */
    /* The job of a requested snapshot or digest: while admin_call waits, it also asks for whom this
     * job waits. NULL: another request */
    const char *cut_of;
    /* Reports for whom the request waits; `is_late` is true after the first report. May be NULL, like
     * `ends`. */
    void (*on_awaited)(void *context, const Cairn__Awaited *awaited, bool is_late);
    bool (*ends)(void *context); /* true: the call must stop waiting (CAIRN_ERR_CLOSED) */
    void *context;
    /* for admin.c only */
    int fd;
    struct channel *channel; /* NULL: a Unix socket */
    struct byte_queue arrived, plain, wire;
    uint64_t deadline_ms;
    /* the last report for whom the request waits; "": no report yet */
    struct sentence awaited;
};

/* Connects, says Hello, sends the request and returns its reply of `reply_type` (freed by the
 * caller with message_free). `pages`: NULL, or zeroed to receive the Pages that follow the reply;
 * the caller releases them on CAIRN_OK. */
cairn_status admin_call(struct admin *admin, uint16_t type, const ProtobufCMessage *message,
                        uint16_t reply_type, ProtobufCMessage **reply_out, struct paged *pages,
                        struct sentence *why) CAIRN_MUST_CHECK;

/* ---- what replies say ---- */
typedef void admin_passed_fn(const Cairn__SnapshotStatus *snapshot, const char *what);
/* Returns the snapshot that a restore of "latest" takes; NULL if there is none. `on_passed_over` (may
 * be NULL) is called for each damaged snapshot that is newer than the returned one. */
const Cairn__SnapshotStatus *admin_latest(const Cairn__SnapshotList *list,
                                          admin_passed_fn *on_passed_over);
/* Writes who has the job open: "2 workers and 1 reader", "nobody". */
void admin_members(const Cairn__ReplacedJob *replaced, struct sentence *out);
/* Returns true if the planned restore would replace a job that has something to lose. `out` then says
 * what would be lost: the job, the job's step and who has the job open; and what would remain: the step
 * of the snapshot. */
bool admin_replaces(const Cairn__SnapshotStatus *plan, struct sentence *out);

#endif
