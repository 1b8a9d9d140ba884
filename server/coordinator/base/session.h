/* A connection that said a good Hello, and what is sent on it. */
#ifndef CAIRN_COORDINATOR_BASE_SESSION_H
#define CAIRN_COORDINATOR_BASE_SESSION_H

#include "server/coordinator/base/names.h"

#define CAIRN_SESSION_MEMBERS_MAX 64 /* jobs that one connection has open */
#define CAIRN_SESSION_PAGED_MAX   4  /* specs that are on their way on one connection */

struct cairn_cluster_session {
    struct cairn_cluster_session *next; /* of the cluster's list */
    struct cairn_cluster *cluster;
    struct cairn_peer *peer; /* borrowed from the listener */
    uint32_t role;           /* enum cairn_role_wire */
    char *name;              /* owned */
    char *version;           /* owned: of its build, as it said it */
    uint64_t incarnation;
    uint32_t without;        /* of a shard: bits of enum cairn_without */
    Cairn__Home *home;       /* owned: of a shard that tells; or NULL */
    uint8_t *fabric_address; /* owned: [fabric_address_bytes] */
    size_t fabric_address_bytes;
    uint64_t last_frame_ms, since_ms;     /* of the loop's clock */
    struct cairn_cluster_member *members; /* by next_of_session */
    Cairn__Hello *hello;             /* owned: of a shard that has not said all of it; or NULL */
    struct cairn_cluster_seat *seat; /* of a shard, while it holds it */
    uint32_t member_count;           /* jobs that it has open */
    uint32_t wait_count;             /* answers that it waits for (works.h) */
    uint32_t unanswered;             /* of an admin: requests without an answer so far */
    struct cairn_cluster_unheard *unheard; /* owned: whom it does not hear; NULL: nobody */
    bool closing;                          /* was asked to go: its frames are dropped */
};

/* Each does nothing without a session. One that cannot be sent to is being closed, and goes by itself. */
void cairn_cluster_session_send(struct cairn_cluster_session *session, uint16_t type,
                                uint32_t request, const ProtobufCMessage *message);
void cairn_cluster_session_error(struct cairn_cluster_session *session, uint32_t request,
                                 cairn_status status, const char *text);
/* Unasked: the session's member of the job has its place no more. */
void cairn_cluster_session_expelled(struct cairn_cluster_session *session, uint64_t job,
                                    cairn_status status, const char *text);
void cairn_cluster_session_done(struct cairn_cluster_session *session, uint32_t request);
/* Holds the bytes and sends them as Pages. */
void cairn_cluster_session_pages(struct cairn_cluster_session *session, uint32_t request,
                                 enum cairn_page_what what, struct cairn_packed *packed);

#endif
