/* Requests of an operator to a coordinator. Each request uses a connection of its own and
 * introduces itself as an operator, whatever else the process is. The `cairn` commands use this,
 * and so do the calls of cairn.h that concern the cluster's jobs. Caller's thread; nothing is
 * printed. */
#ifndef CAIRN_CLIENT_ADMIN_H
#define CAIRN_CLIENT_ADMIN_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/text.h"
#include "proto/wire/wire.h"

struct admin {
    /* the caller's, borrowed */
    const char *endpoint; /* "host:port" or "/path" */
    const char *name;     /* who asks: for the coordinator's log */
    const char *build;    /* what the program calls its build; NULL: the version alone */
    const char *advice;   /* behind "... cannot be reached: WHY; is it running" */
    int timeout_ms;       /* of one call */
    const char *
        cut_of; /* of a snapshot or digest: whose it is; meanwhile it is asked for whom that waits */
    /* For whom it waits; `is_late`: not the first answer. May be NULL, as `ends`. */
    void (*on_awaited)(void *context, const Cairn__Awaited *awaited, bool is_late);
    bool (*ends)(void *context); /* the call is not to wait any more: CAIRN_ERR_CLOSED */
    void *context;
    /* its own */
    int fd;
    uint64_t deadline_ms;
    struct sentence awaited; /* for whom it waited last; "": nobody said */
};

/* Connects, says Hello, sends the request and gives its reply of `reply_type` (freed by the caller with
 * message_free). `pages`: NULL, or zeroed, for the Pages behind the reply, the caller's to release on
 * CAIRN_OK. */
cairn_status admin_call(struct admin *admin, uint16_t type, const ProtobufCMessage *message,
                        uint16_t reply_type, ProtobufCMessage **reply_out, struct paged *pages,
                        struct sentence *why) CAIRN_MUST_CHECK;

/* ---- what replies say ---- */
typedef void admin_passed_fn(const Cairn__SnapshotStatus *snapshot, const char *what);
/* The one that is restored as "latest"; NULL: there is none. `on_passed_over` (may be NULL) hears of damaged
 * ones that are newer. */
const Cairn__SnapshotStatus *admin_latest(const Cairn__SnapshotList *list,
                                          admin_passed_fn *on_passed_over);
/* "2 workers and 1 reader", "nobody": who has the job open. */
void admin_members(const Cairn__ReplacedJob *replaced, struct sentence *out);
/* True if the planned restore would replace a job that has something to lose. `out` then says what
 * would be lost: the job, its step, who has it open, and the step of the snapshot, which stays. */
bool admin_replaces(const Cairn__SnapshotStatus *plan, struct sentence *out);

#endif
