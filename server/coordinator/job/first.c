#include "server/coordinator/job/first.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/base/log.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"

#define LOOK_MS 5000 /* a storage that takes longer hangs */

struct cairn_cluster_first {
    struct cairn_cluster_work work;   /* first */
    struct cairn_cluster_first *next; /* of the cluster's list */
    char job[CAIRN_NAME_MAX + 1];
    uint64_t begun_ms;
    bool ended; /* `last` is known, or was given up */
    bool given_up;
    /* the thread's, until it has run */
    uint64_t last;
    cairn_status status;
    struct cairn_sentence why;
};

static void run(struct cairn_cluster_work *work)
{
    struct cairn_cluster_first *first = (struct cairn_cluster_first *)work;
    first->status = cairn_cluster_storage_seen(work->cluster, &first->why);
    if (first->status == CAIRN_OK)
        first->status = cairn_snapshot_last_generation(work->cluster->storage.path, first->job,
                                                       &first->last, &first->why);
}

static void say_unknown(const char *job, const char *why)
{
    cairn_log_warn(
        "job %s begins with generation 1, and snapshots of an older job of that name may "
        "lie there, which would count as its own: %s",
        job, why);
}

static void unlink_first(struct cairn_cluster_first *first)
{
    struct cairn_cluster_first **at = &first->work.cluster->firsts;
    while (*at != NULL && *at != first) at = &(*at)->next;
    if (*at == first) *at = first->next;
}

/* Whoever wants the job takes the number now; later another may lie there. */
static void done(struct cairn_cluster_work *work)
{
    struct cairn_cluster_first *first = (struct cairn_cluster_first *)work;
    if (!work->cluster->closing && !first->given_up) {
        first->ended = true;
        if (first->status != CAIRN_OK) say_unknown(first->job, first->why.text);
        if (first->status != CAIRN_OK) first->last = 0;
        cairn_cluster_openings_advance(work->cluster);
    }
    unlink_first(first);
    free(first);
}

static void begin(struct cairn_cluster *cluster, const char *job)
{
    struct cairn_cluster_first *first = calloc(1, sizeof *first);
    if (first == NULL) return;
    snprintf(first->job, sizeof first->job, "%s", job);
    first->work.run = run;
    first->work.done = done;
    first->begun_ms = cairn_cluster_now_ms(cluster);
    if (!cairn_cluster_work_start(&first->work, cluster, NULL, 0)) {
        free(first);
        return;
    }
    first->next = cluster->firsts;
    cluster->firsts = first;
}

bool cairn_cluster_first_generation(struct cairn_cluster *cluster, const char *job, uint64_t *out)
{
    const struct cairn_cluster_first *first = cluster->firsts;
    while (first != NULL && strcmp(first->job, job) != 0) first = first->next;
    if (first == NULL) {
        begin(cluster, job); // without memory: when they are looked at next
        return false;
    }
    if (!first->ended && !first->given_up) return false;
    *out = first->given_up ? 1 : first->last + 1;
    return true;
}

void cairn_cluster_first_tick(struct cairn_cluster *cluster)
{
    bool advance = false;
    for (struct cairn_cluster_first *f = cluster->firsts; f != NULL; f = f->next) {
        if (f->ended || f->given_up || cairn_cluster_now_ms(cluster) - f->begun_ms < LOOK_MS)
            continue;
        f->given_up = advance = true;
        say_unknown(f->job, "the storage of the snapshots does not answer");
    }
    if (advance) cairn_cluster_openings_advance(cluster);
}
