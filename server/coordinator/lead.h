/* A shared store, and which one of its coordinators leads.
 *
 * Several coordinators may have one store in etcd (store.url). One at a time leads: it has the key
 * PREFIX/leader, which etcd deletes when the leader's lease was not renewed for store.lease. The others
 * stand by. They open no store, and serve nobody; each tries to make the key as soon as it is gone. Every
 * write of the leader is a transaction that compares the revision at which the leader's key was made, so a
 * former leader that wakes up writes nothing; and shards obey no coordinator that is older than the newest
 * which they know (server/core/standing.h). A leader whose lease was not confirmed in time steps down, and
 * stands by. server/core/lead.h decides all that.
 *
 *   PREFIX/leader      the leader's name; it lives as long as the lease
 *   PREFIX/head        JSON: the format, the cluster's name, the number of the picture, of the next change
 *   PREFIX/image/N     picture N of the store (store.h)
 *   PREFIX/log/N       change N
 *
 * Pictures and changes are cut into pieces of CAIRN_PIECE_BYTES, because etcd takes no request over 1.5 MiB.
 * All but the first are at KEY/I. The first one, which begins with their number in eight hexadecimal digits,
 * is written last: without it there is nothing. */
#ifndef CAIRN_COORDINATOR_LEAD_H
#define CAIRN_COORDINATOR_LEAD_H

#include <jansson.h>

#include "server/coordinator/cluster.h"

/* ==== etcd ==== */

/* Requests to etcd, by the JSON gateway of its third version (etcd 3.4 or newer), with libcurl. */

#define CAIRN_ETCD_ENDPOINTS_MAX 8
#define CAIRN_ETCD_PREFIX_BYTES  128
#define CAIRN_PIECE_BYTES        ((size_t)512 << 10)

/* A connection to whichever endpoint answers. One thread at a time. */
struct etcd {
    char name[CAIRN_ADDRESS_TEXT_BYTES * 2]; /* for sentences */
    char prefix[CAIRN_ETCD_PREFIX_BYTES];    /* "/cairn" */
    bool is_secure;
    struct stream_address endpoints[CAIRN_ETCD_ENDPOINTS_MAX];
    size_t endpoint_count, endpoint; /* endpoint: the one that answered last */
    const char *ca;                  /* borrowed; "": the system's */
    char user[128], password[256];   /* "": none */
    char token[1024];                /* that etcd gave for them; "": none yet */
    /* a request was sent, and whether it was carried out is not known. Its user sets this to false */
    bool may_be_made;
    void *curl; /* owned; NULL: no request was made */
};

/* Reads the options, and the file of the password; asks nobody. CAIRN_ERR_CONFIG; this is also the answer
 * of a build without libcurl. */
cairn_status etcd_init(struct etcd *etcd, const struct coord_options *options,
                       struct sentence *why) CAIRN_MUST_CHECK;
void etcd_release(struct etcd *etcd);
/* Asks each endpoint in turn, for at most timeout_ms each. Steals `request`. *answer_out belongs to the
 * caller. Blocks. CAIRN_ERR_UNREACHABLE: none of them answered, or etcd has no quorum; the request may have
 * been carried out. CAIRN_ERR_NO_SPACE: etcd is full. CAIRN_ERR_REFUSED: the user, or TLS. CAIRN_ERR_IO:
 * anything else. */
cairn_status etcd_ask(struct etcd *etcd, const char *path, json_t *request, long timeout_ms,
                      json_t **answer_out, struct sentence *why) CAIRN_MUST_CHECK;

/* ==== lead ==== */

struct lead;

enum lead_change {
    CAIRN_LEADS, /* this process leads from now on: open the store */
    CAIRN_LED,   /* it does not any more: close the store, then call lead_release */
};
typedef void (*lead_fn)(enum lead_change change, void *context);

/* Stands by, on a thread of its own; on_change is called on the loop. */
cairn_status lead_open(const struct coord_options *options, uv_loop_t *loop, lead_fn on_change,
                       void *context, struct lead **lead_out,
                       struct sentence *why) CAIRN_MUST_CHECK;
/* Says why this process does not lead: "stands by: ... leads", or what etcd answers. */
void lead_why(struct lead *lead, struct sentence *out);
/* Returns the place of the leader's rows. */
struct backing *lead_backing(struct lead *lead);
/* The store is closed: lets another coordinator lead, and stands by. */
void lead_release(struct lead *lead);
/* Ends the thread, which lets another coordinator lead at once if this one did. Blocks for a moment. The
 * store must be closed. NULL is fine. */
void lead_close(struct lead *lead);

#endif
