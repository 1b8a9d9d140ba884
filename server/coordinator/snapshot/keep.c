#include "server/coordinator/snapshot/keep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/base/log.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/base/works.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/snapshot/retention.h"

/* The snapshots of a job are looked at on another thread, and those go that nothing keeps. */
struct keeping {
    struct cairn_cluster_work work;
    uint64_t number;            /* of the job; 0: it is not in the cluster, and nothing goes */
    struct cairn_origin origin; /* of the job */
    struct cairn_retention_rules rules;
    struct cairn_retention_clock clock; /* when it was begun */
    bool is_plan;                       /* nothing goes, but is said */
    cairn_status status;
    struct cairn_sentence why;
    /* owned */
    char *job;
    struct cairn_cluster_found found;
    struct cairn_snapshot_words words;
    struct cairn_retention_item *items; /* [found.count] */
};

static void free_keeping(struct keeping *keeping)
{
    cairn_cluster_found_release(&keeping->found);
    cairn_snapshot_words_release(&keeping->words);
    free(keeping->items);
    free(keeping->job);
    free(keeping);
}

/* ---- on another thread ---- */

static bool has_tag(const struct cairn_snapshot_words *words, const char *id)
{
    for (size_t i = 0; i < words->tag_count; i++)
        if (strcmp(words->tags[i].id, id) == 0) return true;
    return false;
}

/* A periodic one says whose it is; of one that somebody asked for nobody needs to know. A job that was
 * dropped and restored has another number, and what it goes back on is its past all the same: it says where
 * it was restored from, and what lies before that on the way is its own. Where a job says nothing of its
 * past, only what has its number is. */
static bool is_others(const struct keeping *keeping, const struct cairn_found_snapshot *f)
{
    const uint64_t of = f->manifest.periodic;
    if (of == 0 || of == keeping->number) return false;
    return keeping->number == 0 || keeping->origin.generation == 0 || f->is_left;
}

static struct cairn_retention_item item_of(const struct keeping *keeping,
                                           const struct cairn_found_snapshot *f)
{
    const struct cairn_manifest *m = &f->manifest;
    const struct cairn_snapshot_check *check = cairn_snapshot_words_check(&keeping->words,
                                                                          f->place.id);
    struct cairn_retention_item item = { .created_unix_s = m->created_unix_s, .step = m->step };
    for (size_t i = 0; i < m->file_count; i++) item.bytes += m->files[i].bytes;
    item.is_others = is_others(keeping, f);
    item.is_periodic = m->periodic != 0 && !item.is_others;
    item.is_tagged = has_tag(&keeping->words, f->place.id);
    item.is_latest = strcmp(keeping->words.latest, f->place.id) == 0;
    item.is_damaged = m->nonfinite.nonfinite > 0 || (check != NULL && !check->is_good);
    item.is_left = f->is_left;
    item.is_verified = check != NULL && check->is_good;
    return item;
}

static void run(struct cairn_cluster_work *work)
{
    struct keeping *k = (struct keeping *)work;
    k->status = cairn_cluster_find_snapshots(work->cluster, k->job, NULL, &k->found, &k->why);
    if (k->status == CAIRN_OK)
        k->status = cairn_snapshot_words_load(work->cluster->storage.path, k->job, &k->words,
                                              &k->why);
    if (k->status != CAIRN_OK) return;
    if (k->number != 0) cairn_find_line(&k->found, &k->origin);
    k->items = calloc(k->found.count + 1, sizeof *k->items);
    if (k->items == NULL) {
        k->status = cairn_fail(&k->why, CAIRN_ERR_NO_MEMORY, "no memory");
        return;
    }
    for (size_t i = 0; i < k->found.count; i++) k->items[i] = item_of(k, &k->found.list[i]);
    cairn_retention_judge(&k->rules, &k->clock, k->items, k->found.count);
}

/* ---- on the loop ---- */

static bool is_committed(const struct keeping *k, const char *id)
{
    for (size_t i = 0; i < k->found.count; i++)
        if (strcmp(k->found.list[i].place.id, id) == 0) return true;
    return false;
}

/* Begun for this very job and not committed, or not any more; and nobody writes one now. */
static bool is_left(const struct keeping *k, const struct cairn_snapshot_begun *begun)
{
    const struct cairn_cluster_job *job = cairn_cluster_job_by_id(k->work.cluster, k->number);
    return job != NULL && job->snapshots.cut == NULL && begun->job == k->number &&
           !is_committed(k, begun->id) && k->found.count < CAIRN_FOUND_MAX;
}

static void remove_them(const struct keeping *k)
{
    struct cairn_cluster *cluster = k->work.cluster;
    for (size_t i = 0; i < k->found.count; i++)
        if (cairn_retention_goes(k->items[i].fate))
            cairn_cluster_snapshot_retire(cluster, k->job, k->found.list[i].place.id,
                                          CAIRN_REMOVAL_RETIRED);
    for (size_t i = 0; i < k->words.begun_count; i++)
        if (is_left(k, &k->words.begun[i]))
            cairn_cluster_snapshot_retire(cluster, k->job, k->words.begun[i].id,
                                          CAIRN_REMOVAL_LEFT);
}

static void answer(const struct keeping *k)
{
    Cairn__SnapshotPruned message = CAIRN__SNAPSHOT_PRUNED__INIT;
    const size_t most = k->found.count + k->words.begun_count + 1;
    Cairn__SnapshotFate *fates = calloc(most, sizeof *fates);
    Cairn__SnapshotFate **list = calloc(most, sizeof *list);
    for (size_t i = 0; fates != NULL && list != NULL && i < most - 1; i++) {
        Cairn__SnapshotFate *fate = &fates[message.n_fates];
        const bool is_found = i < k->found.count;
        cairn__snapshot_fate__init(fate);
        if (is_found) {
            fate->id = k->found.list[i].place.id;
            fate->step = k->items[i].step;
            fate->bytes = k->items[i].bytes;
            fate->created_unix_ms = k->items[i].created_unix_s * 1000;
            fate->goes = cairn_retention_goes(k->items[i].fate);
            fate->reason = (char *)(uintptr_t)cairn_retention_reason(k->items[i].fate);
        } else {
            const struct cairn_snapshot_begun *begun = &k->words.begun[i - k->found.count];
            if (!is_left(k, begun)) continue;
            fate->id = (char *)(uintptr_t)begun->id;
            fate->goes = true;
            fate->reason = (char *)(uintptr_t) "a crash left it: half made, or half removed";
        }
        list[message.n_fates++] = fate;
    }
    message.fates = list;
    if (fates != NULL && list != NULL)
        cairn_cluster_session_send(k->work.session, CAIRN_MSG_SNAPSHOT_PRUNED, k->work.request,
                                   &message.base);
    else
        cairn_cluster_session_error(k->work.session, k->work.request, CAIRN_ERR_NO_MEMORY,
                                    "no memory");
    free(fates);
    free(list);
}

static void on_judged(struct cairn_cluster_work *work)
{
    struct keeping *k = (struct keeping *)work;
    if (k->status != CAIRN_OK) {
        cairn_log_warn("all snapshots of job %s stay: %s", k->job, k->why.text);
        if (work->session != NULL)
            cairn_cluster_session_error(work->session, work->request, k->status, k->why.text);
    } else {
        if (work->session != NULL) answer(k);
        if (!k->is_plan && !work->cluster->closing) remove_them(k);
    }
    free_keeping(k);
}

static struct keeping *new_keeping(struct cairn_cluster *cluster, const char *job)
{
    const struct cairn_cluster_job *known = cairn_cluster_job_find(cluster, job);
    struct keeping *k = calloc(1, sizeof *k);
    if (k == NULL || (k->job = strdup(job)) == NULL) {
        free(k);
        return NULL;
    }
    cairn_cluster_clock_look(cluster);
    k->clock = (struct cairn_retention_clock) { cairn_wall_unix_s(),
                                                cairn_wall_sound_s(&cluster->clock.wall) };
    k->work.cluster = cluster;
    k->work.run = run;
    k->work.done = on_judged;
    if (known == NULL) return k;
    const struct cairn_policy *policy = &known->spec.policy;
    k->number = known->id;
    k->origin = known->origin;
    k->rules = (struct cairn_retention_rules) { .keep_last = policy->snapshot_keep,
                                                .keep_every = policy->snapshot_keep_every,
                                                .keep_within_s = policy->snapshot_keep_within_s,
                                                .max_bytes = policy->snapshot_max_bytes };
    return k;
}

void cairn_cluster_snapshot_keep(struct cairn_cluster *cluster, const char *job)
{
    struct keeping *k = new_keeping(cluster, job);
    if (k == NULL) return; // the next one does it
    if (!cairn_cluster_work_start(&k->work, cluster, NULL, 0)) free_keeping(k);
}

void cairn_cluster_snapshot_prune(struct cairn_cluster_session *session, uint32_t request,
                                  const Cairn__SnapshotPrune *message)
{
    struct cairn_sentence why;
    if (!cairn_job_name_ok(message->job)) {
        cairn_sentence_set(&why, "\"%.100s\" is not a name of a job; `cairn job list`",
                           message->job);
        cairn_cluster_session_error(session, request, CAIRN_ERR_INVALID, why.text);
        return;
    }
    struct keeping *k = new_keeping(session->cluster, message->job);
    if (k != NULL) {
        k->is_plan = message->plan;
        if (message->has_rules)
            k->rules = (struct cairn_retention_rules) { .keep_last = message->keep_last,
                                                        .keep_every = message->keep_every,
                                                        .keep_within_s = message->keep_within_s,
                                                        .max_bytes = message->max_bytes };
        if (cairn_cluster_work_start(&k->work, session->cluster, session, request)) return;
        free_keeping(k);
    }
    cairn_cluster_session_error(session, request, CAIRN_ERR_BUSY,
                                "too many requests wait on this connection");
}
