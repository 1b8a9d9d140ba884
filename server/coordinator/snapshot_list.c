/* The snapshots in the store folder, read on another thread. Only committed ones have a manifest. */
#include <stdlib.h>
#include <string.h>

#include "proto/wire/snapshot_io.h"
#include "server/coordinator/cut.h"
#include "server/coordinator/requests.h"

#define SNAPSHOTS_MAX 1000 /* in one answer: the newest */

struct found {
    char *id, *folder; /* owned */
    struct cairn_manifest manifest;
};

struct listing {
    struct cairn_cluster_work work;
    cairn_status status;
    struct cairn_sentence why;
    const char *root;                /* the cluster's */
    cairn_cluster_found_fn on_found; /* NULL: a session asks */
    void *context;
    /* owned */
    char *job;           /* NULL = of all */
    char *id;            /* one alone; NULL = list */
    struct found *found; /* [count] */
    size_t count;
};

static void release_found(struct found *found)
{
    free(found->id);
    free(found->folder);
    cairn_manifest_release(&found->manifest);
}

static void free_listing(struct listing *listing)
{
    for (size_t i = 0; i < listing->count; i++) release_found(&listing->found[i]);
    free(listing->found);
    free(listing->job);
    free(listing->id);
    free(listing);
}

/* The newest first: by when they were taken, to the second, then by version. */
static int newer_first(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    const struct cairn_manifest *m = &x->manifest, *n = &y->manifest;
    if (m->created_unix_s != n->created_unix_s)
        return m->created_unix_s > n->created_unix_s ? -1 : 1;
    if (m->generation != n->generation) return m->generation > n->generation ? -1 : 1;
    if (m->step != n->step) return m->step > n->step ? -1 : 1;
    return strcmp(y->id, x->id);
}

static void drop_oldest(struct listing *listing)
{
    struct found *oldest = listing->found;
    for (size_t i = 1; i < listing->count; i++)
        if (newer_first(&listing->found[i], oldest) > 0) oldest = &listing->found[i];
    release_found(oldest);
    *oldest = listing->found[--listing->count];
}

/* A manifest that cannot be read is not listed: show and restore say what is wrong with it. */
static void on_snapshot(void *context, const char *job, const char *id, const char *folder)
{
    struct listing *listing = context;
    (void)job;
    if (listing->id != NULL && strcmp(listing->id, id) != 0) return;
    struct found *f = &listing->found[listing->count];
    struct cairn_sentence why;
    cairn_manifest_init(&f->manifest);
    const cairn_status status = cairn_manifest_load(folder, &f->manifest, &why);
    if (status != CAIRN_OK) {
        if (listing->id != NULL) {
            listing->status = status;
            listing->why = why;
        }
        return;
    }
    f->id = strdup(id);
    f->folder = strdup(folder);
    if (f->id == NULL || f->folder == NULL) {
        release_found(f);
        listing->status = cairn_fail(&listing->why, CAIRN_ERR_NO_MEMORY, "no memory");
        return;
    }
    if (++listing->count > SNAPSHOTS_MAX) drop_oldest(listing);
}

static void read_store(struct cairn_cluster_work *work)
{
    struct listing *listing = (struct listing *)work;
    listing->found = calloc(SNAPSHOTS_MAX + 1, sizeof *listing->found);
    if (listing->found == NULL) {
        listing->status = cairn_fail(&listing->why, CAIRN_ERR_NO_MEMORY, "no memory");
        return;
    }
    struct cairn_sentence why;
    const cairn_status status = cairn_snapshot_list(listing->root, listing->job, on_snapshot,
                                                    listing, &why);
    qsort(listing->found, listing->count, sizeof *listing->found, newer_first);
    if (status == CAIRN_OK || listing->status != CAIRN_OK) return;
    listing->status = status;
    listing->why = why;
}

/* A job that was never here and has left no snapshots: a mistyped name, most likely. */
static bool is_unknown(const struct listing *listing)
{
    return listing->job != NULL && listing->count == 0 &&
           cairn_cluster_job_find(listing->work.cluster, listing->job) == NULL;
}

static void send_list(struct listing *listing)
{
    struct cairn_sentence why;
    if (is_unknown(listing)) {
        cairn_sentence_set(&why, "there is no job %s and no snapshot of one; `cairn job list`",
                           listing->job);
        cairn_cluster_session_error(listing->work.session, listing->work.request,
                                    CAIRN_ERR_NOT_FOUND, why.text);
        return;
    }
    Cairn__SnapshotStatus *statuses = calloc(listing->count + 1, sizeof *statuses);
    Cairn__SnapshotStatus **list = calloc(listing->count + 1, sizeof *list);
    if (statuses != NULL && list != NULL) {
        for (size_t i = 0; i < listing->count; i++) {
            const struct found *f = &listing->found[i];
            cairn_cluster_manifest_to_status(&f->manifest, f->id, f->folder, &statuses[i]);
            list[i] = &statuses[i];
        }
        Cairn__SnapshotList message = CAIRN__SNAPSHOT_LIST__INIT;
        message.snapshots = list;
        message.n_snapshots = listing->count;
        cairn_cluster_session_send(listing->work.session, CAIRN_MSG_SNAPSHOT_LIST,
                                   listing->work.request, &message.base);
    } else {
        cairn_cluster_session_error(listing->work.session, listing->work.request,
                                    CAIRN_ERR_NO_MEMORY, "no memory");
    }
    free(statuses);
    free(list);
}

static void send_one(struct listing *listing)
{
    Cairn__SnapshotStatus status;
    struct cairn_sentence why;
    if (listing->count == 0) {
        cairn_sentence_set(&why,
                           "there is no committed snapshot %s of job %s; `cairn snapshot list`",
                           listing->id, listing->job);
        cairn_cluster_session_error(listing->work.session, listing->work.request,
                                    CAIRN_ERR_NOT_FOUND, why.text);
        return;
    }
    cairn_cluster_manifest_to_status(&listing->found->manifest, listing->found->id,
                                     listing->found->folder, &status);
    cairn_cluster_session_send(listing->work.session, CAIRN_MSG_SNAPSHOT_STATUS,
                               listing->work.request, &status.base);
}

static void give_found(struct listing *listing)
{
    char **folders = calloc(listing->count + 1, sizeof *folders);
    if (folders == NULL) {
        listing->on_found(listing->context, CAIRN_ERR_NO_MEMORY, "no memory", NULL, 0);
        return;
    }
    for (size_t i = 0; i < listing->count; i++) {
        folders[i] = listing->found[i].folder;
        listing->found[i].folder = NULL; // moves
    }
    listing->on_found(listing->context, listing->status, listing->why.text, folders,
                      listing->count);
}

static void on_read(struct cairn_cluster_work *work)
{
    struct listing *listing = (struct listing *)work;
    if (listing->on_found != NULL) {
        give_found(listing);
    } else if (work->session != NULL) {
        if (listing->status != CAIRN_OK) {
            cairn_cluster_session_error(work->session, work->request, listing->status,
                                        listing->why.text);
        } else if (listing->id != NULL) {
            send_one(listing);
        } else {
            send_list(listing);
        }
    }
    free_listing(listing);
}

/* NULL: no memory. */
static struct listing *new_listing(struct cairn_cluster *cluster, const char *job, const char *id)
{
    struct listing *listing = calloc(1, sizeof *listing);
    if (listing == NULL) return NULL;
    listing->root = cluster->snapshots_path;
    listing->work.run = read_store;
    listing->work.done = on_read;
    if (job != NULL) listing->job = strdup(job);
    if (id != NULL) listing->id = strdup(id);
    if ((listing->job != NULL) == (job != NULL) && (listing->id != NULL) == (id != NULL))
        return listing;
    free_listing(listing);
    return NULL;
}

static bool start(struct listing *listing, struct cairn_cluster *cluster,
                  struct cairn_cluster_session *session, uint32_t request)
{
    if (listing == NULL) return false;
    if (cairn_cluster_work_start(&listing->work, cluster, session, request)) return true;
    free_listing(listing);
    return false;
}

bool cairn_cluster_snapshots_find(struct cairn_cluster *cluster, const char *job,
                                  cairn_cluster_found_fn found, void *context)
{
    struct listing *listing = new_listing(cluster, job, NULL);
    if (listing == NULL) return false;
    listing->on_found = found;
    listing->context = context;
    return start(listing, cluster, NULL, 0);
}

static void begin(struct cairn_cluster_session *session, uint32_t request, const char *job,
                  const char *id)
{
    if (start(new_listing(session->cluster, job, id), session->cluster, session, request)) return;
    cairn_cluster_session_error(session, request, CAIRN_ERR_BUSY,
                                "too many requests wait on this connection");
}

void cairn_cluster_snapshots_list(struct cairn_cluster_session *session, uint32_t request,
                                  const char *job)
{
    if (*job != '\0' && !cairn_job_name_ok(job)) {
        struct cairn_sentence why;
        cairn_sentence_set(&why, "\"%.100s\" is not a name of a job; `cairn job list`", job);
        cairn_cluster_session_error(session, request, CAIRN_ERR_INVALID, why.text);
        return;
    }
    begin(session, request, *job == '\0' ? NULL : job, NULL);
}

void cairn_cluster_snapshots_show(struct cairn_cluster_session *session, uint32_t request,
                                  const char *job, const char *id)
{
    uint64_t generation, step;
    const bool job_ok = cairn_job_name_ok(job);
    if (!job_ok || !cairn_snapshot_id_parse(id, &generation, &step)) {
        struct cairn_sentence why;
        cairn_sentence_set(&why, "\"%.100s\" is not %s; `cairn snapshot list` prints jobs and ids",
                           job_ok ? id : job, job_ok ? "an id of a snapshot" : "a name of a job");
        cairn_cluster_session_error(session, request, CAIRN_ERR_INVALID, why.text);
        return;
    }
    begin(session, request, job, id);
}
