/* Whom a worker, a reader or a shard does not hear over the data path, though both reach this coordinator.
 * Each says so in its heartbeats (Heartbeat.unheard): it is in the log, an event, and in what an operator
 * asks for. Where both ends say it, it is said once. */
#ifndef CAIRN_COORDINATOR_MEMBER_UNHEARD_H
#define CAIRN_COORDINATOR_MEMBER_UNHEARD_H

#include "server/coordinator/base/names.h"

#define CAIRN_CLUSTER_UNHEARD_MAX 16 /* that a heartbeat names */

/* The shards that a session does not hear. */
struct cairn_cluster_unheard {
    struct {
        char name[CAIRN_NAME_MAX + 1]; /* of a shard that is up */
        uint64_t since_ms;             /* of the loop's clock: it was told */
    } list[CAIRN_CLUSTER_UNHEARD_MAX];
    size_t count;   /* at least 1 */
    char text[256]; /* the names, as far as they fit */
};

/* The session's heartbeat names these shards. */
void cairn_cluster_unheard_told(struct cairn_cluster_session *session, char *const *names,
                                size_t count);
/* Their names; "": it hears all of whom it awaits something. */
const char *cairn_cluster_unheard_text(const struct cairn_cluster_session *session);
/* Who of the job does not hear which of its shards; empty: nobody says so. */
void cairn_cluster_unheard_of_job(const struct cairn_cluster_job *job, struct cairn_sentence *out);

#endif
