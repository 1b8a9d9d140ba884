#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/cluster.h"
#include "server/coordinator/restore.h"

/* ==== asker ==== */

/* Who asks for something about snapshots of a job's name. Their manifests say whose they are; the job of that
 * name, if there is one, was judged already. */
struct snapshot_asker {
    bool is_judged; /* false: nobody asks, or an admin */
    bool has_job;   /* true: there is a job of the name, which belongs to `owner` */
    char owner[CAIRN_OWNER_BYTES];
    enum access_kind kind;
    struct identity who;
};

static struct snapshot_asker asker_of(const struct coord_session *session, const char *job,
                                      enum access_kind kind)
{
    const struct identity *who = coord_who(session);
    const struct coord_job *live = coord_job_find(session->cluster, job);
    struct snapshot_asker asker = { .is_judged = !access_role(who, CAIRN_MAY_ADMIN),
                                    .has_job = live != NULL,
                                    .kind = kind,
                                    .who = *who };
    if (live != NULL) snprintf(asker.owner, sizeof asker.owner, "%s", live->tenant.owner);
    return asker;
}

/* Judges whether the asker may do it to a snapshot whose manifest says this owner. */
static cairn_status judge_owned(const struct snapshot_asker *asker, const char *job,
                                const char *owner, struct sentence *why)
{
    if (asker->has_job && coord_owner_is_jobs(owner, asker->owner)) return CAIRN_OK;
    return coord_owner_judge_access(&asker->who, job, owner, asker->kind, why);
}

/* Judges the asker by the snapshot `id`; NULL, or a snapshot without a manifest: by the name. A damaged
 * one goes with the job that is there. Without a job nobody knows whose it is, and only an admin passes.
 * Blocks. The errors of coord_job_judge_access, and CAIRN_ERR_NOT_READY. */
static cairn_status judge_asker(const struct coord *cluster, const struct snapshot_asker *asker,
                                const char *job, const char *id, struct sentence *why)
{
    char owner[CAIRN_OWNER_BYTES];
    struct sentence said = { "" }, others;
    if (!asker->is_judged) return CAIRN_OK;
    cairn_status status = CAIRN_ERR_NOT_FOUND;
    if (id != NULL) status = coord_snapshot_owner(cluster, job, id, owner, &said);
    if (coord_restore_is_damage(status) && asker->has_job) return CAIRN_OK;
    if (status == CAIRN_ERR_NOT_FOUND)
        status = coord_snapshot_owner(cluster, job, NULL, owner, &said);
    if (status == CAIRN_OK) return judge_owned(asker, job, owner, why);
    // whose a damaged one is is not known, and whoever has nothing of the name does not hear that it is there
    if (coord_restore_is_damage(status) &&
        coord_snapshot_owner(cluster, job, NULL, owner, &others) == CAIRN_OK)
        CAIRN_TRY(judge_owned(asker, job, owner, why));
    if (status == CAIRN_ERR_NOT_FOUND) return CAIRN_OK; // there is nothing to do anything to
    return fail_with(why, CAIRN_ERR_NOT_READY,
                     "whose the snapshots of job %s are is not known: %s; ask again when that is "
                     "mended, or ask an admin to do it",
                     job, sentence_brief(said.text, 300).text);
}

/* ==== remove ==== */

/* Removes a snapshot on another thread, because an operator asks for it, or because a sweep found
 * that nothing keeps the snapshot. */

struct coord_removal {
    struct coord_work work;
    struct coord_removal *next; /* of the cluster's list */
    struct snapshot_removed removed;
    struct snapshot_asker asker;
    enum removal_cause cause;
    uint64_t number; /* the job's number; 0: the job is not in the cluster */
    char id[CAIRN_SNAPSHOT_ID_BYTES];
    char *job, *folder; /* owned */
};

static void free_removal(struct coord_work *work)
{
    struct coord_removal *removal = (struct coord_removal *)work;
    struct coord_removal **at = &removal->work.cluster->under_way.removals;
    while (*at != NULL && *at != removal) at = &(*at)->next;
    if (*at == removal) *at = removal->next;
    free(removal->job);
    free(removal->folder);
    free(removal);
}

/* Notes that the removal has begun, so that the remaining files can be found if the coordinator
 * dies before all files are gone. If there is no space to write this note, the removal continues,
 * because the removal makes space. */
static void note_begun(const struct coord_removal *removal, const char *root)
{
    struct sentence why;
    if (removal->number == 0 || removal->cause == CAIRN_REMOVAL_LEFT) return;
    if (snapshot_begun_set(root, removal->job, removal->id, removal->number, &why) != CAIRN_OK)
        log_warn("snapshot %s of job %s: if this coordinator ends before it is removed, files "
                 "of it stay: %s",
                 removal->id, removal->job, why.text);
}

static void run_removal(struct coord_work *work)
{
    struct coord_removal *removal = (struct coord_removal *)work;
    struct snapshot_removed first = { 0 };
    const char *root = work->cluster->storage.path;
    work->status = coord_storage_seen(work->cluster, &work->why);
    if (work->status == CAIRN_OK)
        work->status = judge_asker(work->cluster, &removal->asker, removal->job, removal->id,
                                   &work->why);
    if (work->status != CAIRN_OK) return;
    note_begun(removal, root);
    work->status = coord_snapshot_release(work->cluster, removal->job, removal->id, removal->cause,
                                          &first, &work->why);
    if (work->status == CAIRN_ERR_REFUSED)
        // the snapshot is committed, and stays
        snapshot_begun_forget(root, removal->job, removal->id);
    if (work->status != CAIRN_OK) return;
    work->status = snapshot_remove(root, removal->job, removal->id, &removal->removed, &work->why);
    removal->removed.files += first.files;
    removal->removed.bytes += first.bytes;
    if (work->status != CAIRN_OK && work->status != CAIRN_ERR_NOT_FOUND) return;
    snapshot_check_forget(root, removal->job, removal->id);
    snapshot_begun_forget(root, removal->job, removal->id);
}

/* No log is told any more to stand on a snapshot that is gone. */
static void forget_newest(const struct coord_removal *removal)
{
    struct coord_job *job = coord_job_by_id(removal->work.cluster, removal->number);
    if (job == NULL || job->snapshots.newest_folder == NULL ||
        strcmp(job->snapshots.newest_folder, removal->folder) != 0)
        return;
    free(job->snapshots.newest_folder);
    job->snapshots.newest_folder = NULL;
}

static void on_removed(struct coord_work *work)
{
    const struct coord_removal *removal = (struct coord_removal *)work;
    forget_newest(removal);
    Cairn__SnapshotRemoved message = CAIRN__SNAPSHOT_REMOVED__INIT;
    message.id = wire_text(removal->id);
    message.job = removal->job;
    message.files = removal->removed.files;
    message.bytes = removal->removed.bytes;
    if (work->status == CAIRN_OK)
        log_info("snapshot %s of job %s is removed", removal->id, removal->job);
    else
        log_warn("snapshot %s of job %s: %s", removal->id, removal->job, work->why.text);
    coord_work_answer(work, CAIRN_MSG_SNAPSHOT_REMOVED, &message.base);
}

bool coord_snapshot_removing(const struct coord *cluster, const char *folder)
{
    const struct coord_removal *r = cluster->under_way.removals;
    while (r != NULL && strcmp(r->folder, folder) != 0) r = r->next;
    return r != NULL;
}

/* True if the restore reads that folder of the job, or may still choose it. While the restore's
 * thread looks for a snapshot, the restore may choose any snapshot of the job. */
static bool restore_reads(const struct coord_restore *restore, const char *job, const char *folder)
{
    if (strcmp(restore->asked, folder) == 0) return true;
    if (restore->checked) return strcmp(restore->folder, folder) == 0;
    const bool chooses = restore->fallback || restore->asked[0] == '\0';
    return chooses && strcmp(restore->job_name, job) == 0;
}

/* True if the job is taking the snapshot with that id now. */
static bool takes_snapshot(const struct coord_job *job, const char *id)
{
    const struct coord_snapshot *snapshot = job->snapshots.running;
    return snapshot != NULL && strcmp(coord_snapshot_id(snapshot), id) == 0;
}

/* Refuses to remove a snapshot on which a log stands, as the shards say with their heartbeats. */
static cairn_status judge_logs(const struct coord_job *job, const char *id, struct sentence *why)
{
    struct cairn_version version;
    if (job == NULL || !coord_logs_wanted(job) ||
        !snapshot_id_parse(id, &version.generation, &version.step))
        return CAIRN_OK;
    const char *name = job->spec.name;
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_log *log = &job->shards[i].log;
        const char *shard = job->shards[i].entry->name;
        if (!log->is_told)
            return fail_with(why, CAIRN_ERR_BUSY,
                             "shard %s has not said yet on which snapshot its log of job %s "
                             "stands: ask again when it is up; --force removes snapshot %s all "
                             "the same",
                             shard, name, id);
        if (log->base.generation != 0 && version_compare(log->base, version) == 0)
            return fail_with(why, CAIRN_ERR_REFUSED,
                             "the log of job %s at shard %s stands on snapshot %s, and brings "
                             "nothing back without it: ask again when it stands on a newer one "
                             "(`cairn snapshot create %s`); --force removes it all the same",
                             name, shard, id, name);
    }
    return CAIRN_OK;
}

/* Refuses the removal while somebody writes, restores or removes the same snapshot. */
static cairn_status judge_removal(const struct coord *cluster, const char *job, const char *id,
                                  const char *folder, struct sentence *why)
{
    for (const struct coord_job *j = cluster->jobs; j != NULL; j = j->next) {
        if (strcmp(j->spec.name, job) == 0 && takes_snapshot(j, id))
            return fail_with(why, CAIRN_ERR_BUSY, "snapshot %s of job %s is being written", id,
                             job);
    }
    for (const struct coord_restore *r = cluster->under_way.restores; r != NULL; r = r->next) {
        if (restore_reads(r, job, folder))
            return fail_with(
                why, CAIRN_ERR_BUSY,
                "snapshot %s of job %s is being restored: ask again when that has ended", id, job);
    }
    if (coord_snapshot_removing(cluster, folder))
        return fail_with(why, CAIRN_ERR_BUSY, "snapshot %s of job %s is being removed", id, job);
    return CAIRN_OK;
}

/* Begins to remove the snapshot, on another thread. If `session` is NULL, nobody is answered. */
static cairn_status begin_removal(struct coord *cluster, struct coord_session *session,
                                  uint32_t request, const char *job, const char *id,
                                  enum removal_cause cause, struct sentence *why)
{
    const struct coord_job *known = coord_job_find(cluster, job);
    char *folder;
    if (asprintf(&folder, "%s/%s/%s", cluster->storage.path, job, id) < 0)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    cairn_status status = judge_removal(cluster, job, id, folder, why);
    if (status == CAIRN_OK && (cause == CAIRN_REMOVAL_ASKED || cause == CAIRN_REMOVAL_RETIRED))
        status = judge_logs(known, id, why);
    struct coord_removal *removal = status == CAIRN_OK ? calloc(1, sizeof *removal) : NULL;
    char *name = status == CAIRN_OK ? strdup(job) : NULL;
    if (status == CAIRN_OK && (removal == NULL || name == NULL))
        status = fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    if (status != CAIRN_OK) {
        free(removal);
        free(name);
        free(folder);
        return status;
    }
    removal->work.cluster = cluster;
    removal->work.run = run_removal;
    removal->work.done = on_removed;
    removal->work.free_it = free_removal;
    removal->cause = cause;
    if (session != NULL) removal->asker = asker_of(session, job, CAIRN_ACCESS_OWN);
    removal->number = known != NULL ? known->id : 0;
    removal->job = name;
    removal->folder = folder;
    strncpy(removal->id, id, sizeof removal->id - 1); // `id` was parsed before
    removal->next = cluster->under_way.removals;
    cluster->under_way.removals = removal;
    if (coord_work_start(&removal->work, cluster, session, request)) return CAIRN_OK;
    free_removal(&removal->work);
    return fail_with(why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
}

/* Refuses a request that does not name a job and a snapshot. */
static cairn_status judge_name(const char *job, const char *id, struct sentence *why)
{
    uint64_t generation, step;
    if (job_name_ok(job) && snapshot_id_parse(id, &generation, &step)) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "\"%.100s\", \"%.100s\" are not a job's name and a snapshot's id; `cairn "
                     "snapshot list` prints them",
                     job, id);
}

static cairn_status on_snapshot_remove(struct coord_session *session, uint32_t request,
                                       const void *any, struct sentence *why)
{
    const Cairn__SnapshotRemove *message = any;
    CAIRN_TRY(judge_name(message->job, message->id, why));
    return begin_removal(session->cluster, session, request, message->job, message->id,
                         message->force ? CAIRN_REMOVAL_FORCED : CAIRN_REMOVAL_ASKED, why);
}

/* Begins to remove a snapshot that a sweep has judged. If this is not possible now, for example
 * because the snapshot is being restored, the snapshot stays until a later sweep. */
static void snapshot_retire(struct coord *cluster, const char *job, const char *id,
                            enum removal_cause cause)
{
    struct sentence why;
    if (begin_removal(cluster, NULL, 0, job, id, cause, &why) == CAIRN_OK) return;
    log_info("the old periodic snapshot %s of job %s stays until the next one: %s", id, job,
             why.text);
}

/* ==== sweep ==== */

/* A sweep over the snapshots of a job. Another thread judges the snapshots, and then those that
 * nothing keeps are removed. */
struct keeping {
    struct coord_work work;
    uint64_t number;      /* the job's number; 0: the job is not in the cluster */
    struct origin origin; /* the job's origin */
    struct turns turns;   /* the job's turns before it */
    struct retention_rules rules;
    struct retention_clock clock; /* at the start of the sweep */
    bool is_plan;                 /* true: the sweep only reports what it would remove */
    struct snapshot_asker asker;
    /* as in struct coord_snapshots */
    struct cairn_version for_logs[CAIRN_FOR_LOGS_MAX];
    bool is_base_unknown; /* a shard has not said yet on which snapshot its log stands */
    size_t base_count;
    /* owned */
    struct cairn_version *bases; /* [base_count]: on which logs of the job stand */
    char *job;
    struct coord_found found;
    struct snapshot_words words;
    struct retention_item *items; /* [found.count] */
};

static void free_keeping(struct coord_work *work)
{
    struct keeping *keeping = (struct keeping *)work;
    coord_found_release(&keeping->found);
    snapshot_words_release(&keeping->words);
    free(keeping->items);
    free(keeping->bases);
    free(keeping->job);
    free(keeping);
}

/* ---- on another thread ---- */

/* Loads the job's snapshots and their words. The caller always releases `found` and `words`. */
static cairn_status look_at_snapshots(const struct coord *cluster, const char *job,
                                      struct coord_found *found, struct snapshot_words *words,
                                      struct sentence *why)
{
    *words = (struct snapshot_words) { .latest = "" };
    cairn_status status = coord_find_snapshots(cluster, job, NULL, found, why);
    if (status == CAIRN_OK) status = coord_snapshot_words(cluster, job, words, why);
    return status;
}

static const struct found_snapshot *is_listed(const struct coord_found *found, const char *id)
{
    for (size_t i = 0; i < found->count; i++)
        if (strcmp(found->list[i].place.id, id) == 0) return &found->list[i];
    return NULL;
}

/* Returns a tag of the snapshot, or NULL. */
static const struct snapshot_tag *tag_of(const struct snapshot_words *words, const char *id)
{
    for (size_t i = 0; i < words->tag_count; i++)
        if (strcmp(words->tags[i].id, id) == 0) return &words->tags[i];
    return NULL;
}

/* True if the snapshot is periodic and belongs to another job of the same name. The manifest of a
 * periodic snapshot has the number of the job that took it. A snapshot that somebody asked for has
 * no such number, because its owner does not matter. A job that was dropped and restored has
 * another number, but it also owns the snapshots that it continues. The job's origin says from
 * where the job was restored, and the snapshots that lead there belong to the job. A job without an
 * origin owns only the snapshots that have its number. */
static bool is_others(const struct keeping *keeping, const struct found_snapshot *f)
{
    const uint64_t of = f->manifest.periodic;
    if (of == 0 || of == keeping->number) return false;
    return keeping->number == 0 || keeping->origin.generation == 0 || f->is_left;
}

/* True if who asks for the sweep may not remove the snapshot. */
static bool is_anothers(const struct keeping *keeping, const struct manifest *m)
{
    struct sentence ignored;
    return keeping->asker.is_judged &&
           judge_owned(&keeping->asker, keeping->job, m->owner != NULL ? m->owner : "", &ignored) !=
               CAIRN_OK;
}

static bool has_version(const struct cairn_version *list, size_t count, const struct manifest *m)
{
    const struct cairn_version version = { m->generation, m->step };
    for (size_t i = 0; i < count; i++)
        if (version_compare(list[i], version) == 0) return true;
    return false;
}

static struct retention_item item_of(const struct keeping *keeping, const struct found_snapshot *f)
{
    const struct manifest *m = &f->manifest;
    const struct snapshot_check *check = snapshot_words_check(&keeping->words, f->place.id);
    struct retention_item item = { .created_unix_s = m->created_unix_s, .step = m->step };
    for (size_t i = 0; i < m->file_count; i++) item.bytes += m->files[i].bytes;
    item.is_others = is_others(keeping, f) || is_anothers(keeping, m);
    item.is_periodic = m->periodic != 0 && !item.is_others;
    item.is_tagged = tag_of(&keeping->words, f->place.id) != NULL;
    item.is_latest = strcmp(keeping->words.latest, f->place.id) == 0;
    item.is_damaged = m->nonfinite.nonfinite > 0 || (check != NULL && !check->is_good);
    item.is_left = f->is_left;
    item.is_base = keeping->is_base_unknown || has_version(keeping->bases, keeping->base_count, m);
    item.is_for_log = item.is_periodic && has_version(keeping->for_logs, CAIRN_FOR_LOGS_MAX, m);
    item.is_verified = check != NULL && check->is_good;
    return item;
}

static void run_sweep(struct coord_work *work)
{
    struct keeping *k = (struct keeping *)work;
    work->status = judge_asker(work->cluster, &k->asker, k->job, NULL, &work->why);
    if (work->status == CAIRN_OK)
        work->status = look_at_snapshots(work->cluster, k->job, &k->found, &k->words, &work->why);
    if (work->status != CAIRN_OK) return;
    if (k->number != 0) find_line(&k->found, &k->origin, &k->turns);
    k->items = calloc(k->found.count + 1, sizeof *k->items);
    if (k->items == NULL) {
        work->status = fail_with(&work->why, CAIRN_ERR_NO_MEMORY, "out of memory");
        return;
    }
    for (size_t i = 0; i < k->found.count; i++) k->items[i] = item_of(k, &k->found.list[i]);
    retention_judge(&k->rules, &k->clock, k->items, k->found.count);
}

/* ---- on the loop ---- */

/* True if a crash has left the snapshot behind: it was begun for this very job, it is not committed
 * now, and the job is not taking any snapshot. */
static bool is_left(const struct keeping *k, const struct snapshot_begun *begun)
{
    const struct coord_job *job = coord_job_by_id(k->work.cluster, k->number);
    return job != NULL && job->snapshots.running == NULL && begun->job == k->number &&
           is_listed(&k->found, begun->id) == NULL && k->found.count < CAIRN_FOUND_MAX;
}

static void remove_them(const struct keeping *k)
{
    struct coord *cluster = k->work.cluster;
    for (size_t i = 0; i < k->found.count; i++)
        if (retention_goes(k->items[i].fate))
            snapshot_retire(cluster, k->job, k->found.list[i].place.id, CAIRN_REMOVAL_RETIRED);
    for (size_t i = 0; i < k->words.begun_count; i++)
        if (is_left(k, &k->words.begun[i]))
            snapshot_retire(cluster, k->job, k->words.begun[i].id, CAIRN_REMOVAL_LEFT);
}

static void answer_keeping(const struct keeping *k)
{
    struct coord_answer answer = { 0 };
    Cairn__SnapshotPruned message = CAIRN__SNAPSHOT_PRUNED__INIT;
    for (size_t i = 0; i < k->found.count; i++) {
        Cairn__SnapshotFate *fate = coord_answer_add(&answer, &message.base, "fates");
        if (fate == NULL) break;
        fate->id = k->found.list[i].place.id;
        fate->step = k->items[i].step;
        fate->bytes = k->items[i].bytes;
        fate->created_unix_ms = k->items[i].created_unix_s * 1000;
        fate->goes = retention_goes(k->items[i].fate);
        fate->reason = wire_text(retention_reason(k->items[i].fate));
    }
    for (size_t i = 0; i < k->words.begun_count; i++) {
        if (!is_left(k, &k->words.begun[i])) continue;
        Cairn__SnapshotFate *fate = coord_answer_add(&answer, &message.base, "fates");
        if (fate == NULL) break;
        fate->id = k->words.begun[i].id;
        fate->goes = true;
        fate->reason = wire_text("a crash left it: half made, or half removed");
    }
    coord_answer_send(&answer, k->work.session, k->work.request, CAIRN_MSG_SNAPSHOT_PRUNED,
                      &message.base);
}

static void on_judged(struct coord_work *work)
{
    const struct keeping *k = (struct keeping *)work;
    if (work->status != CAIRN_OK) {
        log_warn("all snapshots of job %s stay: %s", k->job, work->why.text);
        coord_work_answer(work, 0, NULL);
        return;
    }
    if (work->session != NULL) answer_keeping(k);
    if (!k->is_plan && !work->cluster->closing) remove_them(k);
}

/* Lists on which snapshots logs stand. False: no memory. */
static bool list_bases(struct keeping *k, const struct coord_job *job)
{
    memcpy(k->for_logs, job->snapshots.for_logs, sizeof k->for_logs);
    if (!coord_logs_wanted(job)) return true;
    k->bases = calloc((size_t)job->entry_count + 1, sizeof *k->bases);
    if (k->bases == NULL) return false;
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_log *log = &job->shards[i].log;
        k->is_base_unknown = k->is_base_unknown || !log->is_told;
        if (log->base.generation != 0) k->bases[k->base_count++] = log->base;
    }
    return true;
}

static struct keeping *new_keeping(struct coord *cluster, const char *job)
{
    const struct coord_job *known = coord_job_find(cluster, job);
    struct keeping *k = calloc(1, sizeof *k);
    if (k == NULL || (k->job = strdup(job)) == NULL || (known != NULL && !list_bases(k, known))) {
        if (k != NULL) free(k->job);
        free(k);
        return NULL;
    }
    coord_clock_look(cluster);
    k->clock = (struct retention_clock) { wall_unix_s(), wall_sound_s(&cluster->clock.wall) };
    k->work.cluster = cluster;
    k->work.run = run_sweep;
    k->work.done = on_judged;
    k->work.free_it = free_keeping;
    if (known == NULL) return k;
    const struct policy *policy = &known->spec.policy;
    k->number = known->id;
    k->origin = known->origin;
    k->turns = known->turns;
    k->rules = (struct retention_rules) { .keep_last = policy->snapshot_keep,
                                          .keep_every = policy->snapshot_keep_every,
                                          .keep_within_s = policy->snapshot_keep_within_s,
                                          .max_bytes = policy->snapshot_max_bytes };
    return k;
}

void coord_snapshot_keep(struct coord *cluster, const char *job)
{
    struct keeping *k = new_keeping(cluster, job);
    if (k == NULL) return; // a later sweep does the same work
    if (!coord_work_start(&k->work, cluster, NULL, 0)) free_keeping(&k->work);
}

static cairn_status on_snapshot_prune(struct coord_session *session, uint32_t request,
                                      const void *any, struct sentence *why)
{
    const Cairn__SnapshotPrune *message = any;
    if (!job_name_ok(message->job))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "\"%.100s\" is not a name of a job; see `cairn job list`", message->job);
    struct keeping *k = new_keeping(session->cluster, message->job);
    if (k != NULL) k->is_plan = message->plan;
    if (k != NULL) k->asker = asker_of(session, message->job, CAIRN_ACCESS_OWN);
    if (k != NULL && message->has_rules)
        k->rules = (struct retention_rules) { .keep_last = message->keep_last,
                                              .keep_every = message->keep_every,
                                              .keep_within_s = message->keep_within_s,
                                              .max_bytes = message->max_bytes };
    coord_work_ask(k != NULL ? &k->work : NULL, session, request);
    return CAIRN_OK;
}

/* ==== keep words ==== */

/* The words about a job's snapshots say which snapshots were verified, which one is the latest, and
 * which ones have tags. Other threads than the loop's write these words. */

static pthread_mutex_t one_writer = PTHREAD_MUTEX_INITIALIZER; // guards the words

void coord_snapshot_words_lock(void)
{
    pthread_mutex_lock(&one_writer);
}

void coord_snapshot_words_unlock(void)
{
    pthread_mutex_unlock(&one_writer);
}

/* True if all elements of the saved version are finite. */
static bool is_finite(const struct found_snapshot *found)
{
    return found->manifest.nonfinite.nonfinite == 0;
}

/* True if the snapshot was read and found good, and is_finite holds. */
static bool is_sound(const struct found_snapshot *found, const struct snapshot_words *words)
{
    const struct snapshot_check *check = snapshot_words_check(words, found->place.id);
    return check != NULL && check->is_good && is_finite(found);
}

/* True if nobody has read the snapshot yet, and is_finite holds. */
static bool is_unread(const struct found_snapshot *found, const struct snapshot_words *words)
{
    return snapshot_words_check(words, found->place.id) == NULL && is_finite(found);
}

/* Returns the id of the newest snapshot of the job's line for which `is_so` holds. The snapshot
 * with the id `but` is not considered. Returns NULL if there is no such snapshot. */
static const char *
newest(const struct coord_found *found, const struct snapshot_words *words, const char *but,
       bool (*is_so)(const struct found_snapshot *found, const struct snapshot_words *words))
{
    for (size_t i = 0; i < found->count; i++) {
        const char *id = found->list[i].place.id;
        if (strcmp(id, but) != 0 && !found->list[i].is_left && is_so(&found->list[i], words))
            return id;
    }
    return NULL;
}

/* Makes `latest` name the snapshot `id`, if this snapshot is newer than the one that `latest` names
 * now. An older snapshot is also taken if the snapshot that `latest` names no longer exists, or if
 * the job has turned away from that snapshot. */
static cairn_status move_latest(const struct coord *cluster, const char *job, const char *id,
                                struct sentence *why)
{
    struct coord_found found = { .list = NULL };
    struct snapshot_words words;
    cairn_status status = look_at_snapshots(cluster, job, &found, &words, why);
    const struct found_snapshot *mine = is_listed(&found, id),
                                *latest = is_listed(&found, words.latest);
    const bool may = mine != NULL && !mine->is_left && is_finite(mine);
    const bool stays = may && latest != NULL && !latest->is_left &&
                       !snapshot_place_behind(&latest->place, &mine->place);
    if (status == CAIRN_OK && may && !stays)
        status = snapshot_latest_set(cluster->storage.path, job, id, why);
    snapshot_words_release(&words);
    coord_found_release(&found);
    return status;
}

/* If `latest` names the damaged snapshot `id`, makes it name the newest sound snapshot. If no
 * snapshot is sound, `latest` names the newest one that nobody has read since its commit. If there
 * is no such snapshot either, `latest` is removed. */
static cairn_status leave_damaged(const struct coord *cluster, const char *job, const char *id,
                                  struct sentence *why)
{
    const char *root = cluster->storage.path;
    struct coord_found found = { .list = NULL };
    struct snapshot_words words;
    cairn_status status = look_at_snapshots(cluster, job, &found, &words, why);
    if (status == CAIRN_OK && strcmp(words.latest, id) == 0) {
        const char *next = newest(&found, &words, id, is_sound);
        if (next == NULL) next = newest(&found, &words, id, is_unread);
        status = next != NULL ? snapshot_latest_set(root, job, next, why)
                              : snapshot_latest_remove(root, job, why);
        if (status == CAIRN_OK)
            log_error("`latest` of job %s named snapshot %s, which is damaged; it names %s now",
                      job, id, next != NULL ? next : "none: no other one is whole");
    }
    snapshot_words_release(&words);
    coord_found_release(&found);
    return status;
}

cairn_status coord_snapshot_note_latest(const struct coord *cluster, const char *job,
                                        const char *id, struct sentence *why)
{
    pthread_mutex_lock(&one_writer);
    cairn_status status = coord_storage_seen(cluster, why);
    if (status == CAIRN_OK) status = move_latest(cluster, job, id, why);
    pthread_mutex_unlock(&one_writer);
    return status;
}

cairn_status coord_snapshot_note_check(const struct coord *cluster, const char *job, const char *id,
                                       bool is_good, struct sentence *why)
{
    const char *root = cluster->storage.path;
    struct snapshot_check check = { .is_good = is_good, .unix_s = wall_unix_s() };
    strncpy(check.id, id, sizeof check.id - 1);
    pthread_mutex_lock(&one_writer); // nobody removes the snapshot meanwhile
    cairn_status status = coord_storage_seen(cluster, why);
    if (status == CAIRN_OK) status = snapshot_committed(root, job, id, why);
    if (status == CAIRN_OK) status = snapshot_check_set(root, job, &check, why);
    if (status == CAIRN_OK)
        status = is_good ? move_latest(cluster, job, id, why)
                         : leave_damaged(cluster, job, id, why);
    pthread_mutex_unlock(&one_writer);
    return status;
}

/* Refuses to remove a snapshot that has a tag, or that is the only sound snapshot of the job. If no
 * snapshot is sound, allows only a removal that an operator asks for. Nothing else forbids a
 * removal. */
static cairn_status judge_release(const struct coord_found *found,
                                  const struct snapshot_words *words, const char *job,
                                  const char *id, enum removal_cause cause, struct sentence *why)
{
    const struct found_snapshot *it = is_listed(found, id);
    const struct snapshot_tag *tag = tag_of(words, id);
    if (tag != NULL)
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "snapshot %s of job %s has the tag %s: `cairn snapshot tag %s %s %s "
                         "--delete` takes it off, --force removes it all the same",
                         id, job, tag->name, job, id, tag->name);
    if (it == NULL || newest(found, words, id, is_sound) != NULL) return CAIRN_OK;
    if (is_sound(it, words))
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "snapshot %s is the only verified one of job %s: --force removes it "
                         "all the same",
                         id, job);
    return cause == CAIRN_REMOVAL_ASKED
               ? CAIRN_OK
               : fail_with(why, CAIRN_ERR_REFUSED, "no other one is verified any more");
}

/* Refuses the removal of a leftover that was committed after all. The list of snapshots does not
 * show this, because it leaves out a committed snapshot whose manifest cannot be read. */
static cairn_status judge_left(const char *root, const char *job, const char *id,
                               struct sentence *why)
{
    struct sentence said;
    const cairn_status status = snapshot_committed(root, job, id, &said);
    if (status == CAIRN_ERR_NOT_FOUND) return CAIRN_OK;
    if (status == CAIRN_OK) return fail_with(why, CAIRN_ERR_REFUSED, "it was committed");
    return fail_with(why, status, "%s", said.text);
}

cairn_status coord_snapshot_release(const struct coord *cluster, const char *job, const char *id,
                                    enum removal_cause cause, struct snapshot_removed *removed_out,
                                    struct sentence *why)
{
    const char *root = cluster->storage.path;
    struct coord_found found = { .list = NULL };
    struct snapshot_words words = { .latest = "" };
    pthread_mutex_lock(&one_writer);
    cairn_status status = look_at_snapshots(cluster, job, &found, &words, why);
    if (status == CAIRN_OK && cause == CAIRN_REMOVAL_LEFT)
        status = judge_left(root, job, id, why);
    else if (status == CAIRN_OK && cause != CAIRN_REMOVAL_FORCED)
        status = judge_release(&found, &words, job, id, cause, why);
    if (status == CAIRN_OK && is_listed(&found, id) != NULL) // before any word about it is removed
        status = snapshot_removable(root, job, id, why);
    const char *latest = status == CAIRN_OK ? newest(&found, &words, id, is_sound) : NULL;
    if (latest != NULL && strcmp(words.latest, id) == 0)
        status = snapshot_latest_set(root, job, latest, why);
    for (size_t i = 0; i < words.tag_count && status == CAIRN_OK; i++)
        if (strcmp(words.tags[i].id, id) == 0)
            status = snapshot_tag_remove(root, job, words.tags[i].name, why);
    if (status == CAIRN_OK) status = snapshot_uncommit(root, job, id, removed_out, why);
    pthread_mutex_unlock(&one_writer);
    snapshot_words_release(&words);
    coord_found_release(&found);
    return status;
}

/* ==== retention ==== */

const char *retention_reason(enum retention_fate fate)
{
    switch (fate) {
    case CAIRN_RETENTION_LAST: return "one of the newest that are kept";
    case CAIRN_RETENTION_EVERY: return "the first in its span of steps, kept for good";
    case CAIRN_RETENTION_WITHIN: return "young enough";
    case CAIRN_RETENTION_NO_RULE: return "no rule removes any";
    case CAIRN_RETENTION_OTHERS: return "taken of another job of the name";
    case CAIRN_RETENTION_ASKED: return "somebody asked for it";
    case CAIRN_RETENTION_TAGGED: return "it has a tag";
    case CAIRN_RETENTION_BASE: return "a log of the job stands on it";
    case CAIRN_RETENTION_LATEST: return "it is the latest";
    case CAIRN_RETENTION_VERIFIED: return "the newest verified one";
    case CAIRN_RETENTION_NEEDED: return "no newer one is verified";
    case CAIRN_RETENTION_CLOCK: return "its age cannot be told: the clock jumped";
    case CAIRN_RETENTION_GOES: return "no rule keeps it";
    case CAIRN_RETENTION_TOO_MUCH: return "together they are too large";
    }
    return "?";
}

/* True if keep_last and keep_every count the snapshot: a periodic one of the job, undamaged, and not taken
 * for a log alone. */
static bool counts_for_rules(const struct retention_item *item)
{
    return item->is_periodic && !item->is_others && !item->is_damaged && !item->is_for_log;
}

static bool is_first_of_steps(const struct retention_rules *rules,
                              const struct retention_item *items, size_t count, size_t i)
{
    const uint64_t every = rules->keep_every, bucket = every > 0 ? items[i].step / every : 0;
    if (bucket == 0 || !counts_for_rules(&items[i])) return false;
    for (size_t k = 0; k < count; k++) {
        if (k == i || !counts_for_rules(&items[k]) || items[k].step / every != bucket) continue;
        // After a restore two snapshots may have the same step. Then the older one is kept.
        if (items[k].step < items[i].step || (items[k].step == items[i].step && k > i))
            return false;
    }
    return true;
}

/* True if the snapshot's time cannot be right: it lies in the future, or before the time of
 * an older snapshot. */
static bool is_odd(const struct retention_item *items, size_t count, size_t i, uint64_t latest_s)
{
    if (items[i].created_unix_s > latest_s) return true;
    for (size_t k = i + 1; k < count; k++)
        if (!items[k].is_others && items[k].created_unix_s <= latest_s &&
            items[k].created_unix_s > items[i].created_unix_s)
            return true;
    return false;
}

/* Returns a lower bound of a snapshot's age. A snapshot with an odd time counts as being as old as
 * the next newer snapshot whose time is not odd. */
static uint64_t age_s(const struct retention_clock *clock, const struct retention_item *items,
                      size_t count, size_t i)
{
    const uint64_t latest_s = clock->now_unix_s + CAIRN_RETENTION_SKEW_S;
    while (i < count && is_odd(items, count, i, latest_s)) i = i > 0 ? i - 1 : count;
    if (i == count || items[i].created_unix_s > clock->now_unix_s) return 0;
    return clock->now_unix_s - items[i].created_unix_s;
}

/* Returns the fate of a snapshot by the rules alone. `newer` is the number of newer snapshots that
 * count. */
static enum retention_fate by_rules(const struct retention_rules *rules,
                                    const struct retention_clock *clock,
                                    const struct retention_item *items, size_t count, size_t i,
                                    uint64_t newer)
{
    if (items[i].is_for_log) return CAIRN_RETENTION_GOES;
    if (is_first_of_steps(rules, items, count, i)) return CAIRN_RETENTION_EVERY;
    if (rules->keep_last == 0 && rules->keep_every == 0 && rules->keep_within_s == 0)
        return CAIRN_RETENTION_NO_RULE;
    if (counts_for_rules(&items[i]) && newer < rules->keep_last) return CAIRN_RETENTION_LAST;
    if (age_s(clock, items, count, i) < rules->keep_within_s) return CAIRN_RETENTION_WITHIN;
    return clock->sound_s < rules->keep_within_s ? CAIRN_RETENTION_CLOCK : CAIRN_RETENTION_GOES;
}

/* Returns the reason to keep a snapshot whatever the rules say, or CAIRN_RETENTION_GOES if there is
 * no such reason. */
static enum retention_fate by_right(const struct retention_item *item, bool has_verified)
{
    if (item->is_others) return CAIRN_RETENTION_OTHERS;
    if (item->is_tagged) return CAIRN_RETENTION_TAGGED;
    if (item->is_base) return CAIRN_RETENTION_BASE;
    if (!item->is_periodic) return CAIRN_RETENTION_ASKED;
    if (item->is_latest) return CAIRN_RETENTION_LATEST;
    if (!has_verified) return item->is_verified ? CAIRN_RETENTION_VERIFIED : CAIRN_RETENTION_NEEDED;
    return CAIRN_RETENTION_GOES;
}

void retention_judge(const struct retention_rules *rules, const struct retention_clock *clock,
                     struct retention_item *items, size_t count)
{
    // any_verified and any_newer also consider snapshots from which the job has turned away.
    bool has_verified = false, any_verified = false;
    uint64_t newer = 0, any_newer = 0;
    for (size_t i = 0; i < count; i++) {
        struct retention_item *item = &items[i];
        item->fate = by_right(item, item->is_left ? any_verified : has_verified);
        if (item->fate == CAIRN_RETENTION_GOES)
            item->fate = by_rules(rules, clock, items, count, i, item->is_left ? any_newer : newer);
        any_newer += counts_for_rules(item);
        newer += counts_for_rules(item) && !item->is_left;
        const bool stands = item->is_verified && !item->is_others && !item->is_damaged;
        any_verified = any_verified || stands;
        has_verified = has_verified || (stands && !item->is_left);
    }
    // While the snapshots that stay exceed max_bytes together, marks more of them to go, the oldest
    // first. Skips snapshots that are kept because of keep_every, or by right.
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        if (!items[i].is_others && !retention_goes(items[i].fate)) bytes += items[i].bytes;
    for (size_t i = count; i-- > 0 && rules->max_bytes > 0 && bytes > rules->max_bytes;) {
        if (items[i].fate != CAIRN_RETENTION_LAST && items[i].fate != CAIRN_RETENTION_WITHIN &&
            items[i].fate != CAIRN_RETENTION_CLOCK && items[i].fate != CAIRN_RETENTION_NO_RULE)
            continue;
        items[i].fate = CAIRN_RETENTION_TOO_MUCH;
        bytes -= items[i].bytes;
    }
}

/* ==== tag ==== */

/* Gives a snapshot a tag, or takes a tag off, on another thread, at an admin's request. */

struct tagging {
    struct coord_work work;
    bool is_removal;
    struct snapshot_asker asker;
    char job[CAIRN_NAME_MAX + 1], id[CAIRN_SNAPSHOT_ID_BYTES], name[CAIRN_SNAPSHOT_TAG_BYTES];
};

/* Returns the tag of that name, or NULL if no snapshot has such a tag. */
static const struct snapshot_tag *find_tag(const struct snapshot_words *words, const char *name)
{
    for (size_t i = 0; i < words->tag_count; i++)
        if (strcmp(words->tags[i].name, name) == 0) return &words->tags[i];
    return NULL;
}

static cairn_status take_off(const struct tagging *t, const struct snapshot_words *words,
                             struct sentence *why)
{
    const struct snapshot_tag *tag = find_tag(words, t->name);
    if (tag == NULL || strcmp(tag->id, t->id) != 0)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "snapshot %s of job %s has no tag %s", t->id,
                         t->job, t->name);
    return snapshot_tag_remove(t->work.cluster->storage.path, t->job, t->name, why);
}

/* Puts the tag on the snapshot, which must exist. If another snapshot has the tag, the tag moves to
 * this one, as `snapshot list` then shows. */
static cairn_status put_on(const struct tagging *t, const struct snapshot_words *words,
                           struct sentence *why)
{
    struct coord_found found = { .list = NULL };
    const struct snapshot_tag *tag = find_tag(words, t->name);
    if (tag == NULL && words->tag_count >= CAIRN_SNAPSHOT_WORDS_MAX)
        return fail_with(why, CAIRN_ERR_REFUSED, "job %s has %d tags, the most allowed: remove one",
                         t->job, CAIRN_SNAPSHOT_WORDS_MAX);
    cairn_status status = coord_find_snapshots(t->work.cluster, t->job, t->id, &found, why);
    if (status == CAIRN_OK && found.count == 0)
        status = fail_with(why, CAIRN_ERR_NOT_FOUND,
                           "there is no committed snapshot %s of job %s; see `cairn snapshot list`",
                           t->id, t->job);
    coord_found_release(&found);
    return status == CAIRN_OK
               ? snapshot_tag_set(t->work.cluster->storage.path, t->job, t->name, t->id, why)
               : status;
}

static void run_tag(struct coord_work *work)
{
    struct tagging *t = (struct tagging *)work;
    struct snapshot_words words = { .latest = "" };
    coord_snapshot_words_lock();
    work->status = coord_storage_seen(work->cluster, &work->why);
    if (work->status == CAIRN_OK)
        work->status = judge_asker(work->cluster, &t->asker, t->job, t->id, &work->why);
    if (work->status == CAIRN_OK)
        work->status = coord_snapshot_words(work->cluster, t->job, &words, &work->why);
    if (work->status == CAIRN_OK)
        work->status = (t->is_removal ? take_off : put_on)(t, &words, &work->why);
    coord_snapshot_words_unlock();
    snapshot_words_release(&words);
}

static void on_tagged(struct coord_work *work)
{
    struct tagging *t = (struct tagging *)work;
    Cairn__SnapshotTagged message = CAIRN__SNAPSHOT_TAGGED__INIT;
    message.job = t->job;
    message.id = t->id;
    message.name = t->name;
    if (work->status == CAIRN_OK)
        log_info("snapshot %s of job %s: tag %s is %s", t->id, t->job, t->name,
                 t->is_removal ? "off" : "on");
    coord_work_answer(work, CAIRN_MSG_SNAPSHOT_TAGGED, &message.base);
}

static cairn_status judge_tag(const Cairn__SnapshotTag *message, struct sentence *why)
{
    CAIRN_TRY(judge_name(message->job, message->id, why));
    if (!snapshot_tag_ok(message->name))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "\"%.100s\" is no tag: allowed are 1 to %d of A-Z a-z 0-9 . _ -, but not "
                         ". or - first, nor latest, nor an id, nor .tmp at the end",
                         message->name, CAIRN_SNAPSHOT_TAG_BYTES - 1);
    return CAIRN_OK;
}

static cairn_status on_snapshot_tag(struct coord_session *session, uint32_t request,
                                    const void *any, struct sentence *why)
{
    const Cairn__SnapshotTag *message = any;
    CAIRN_TRY(judge_tag(message, why));
    struct tagging *t = calloc(1, sizeof *t);
    if (t != NULL) {
        t->work.run = run_tag;
        t->work.done = on_tagged;
        t->work.free_it = coord_work_free;
        t->is_removal = message->remove;
        t->asker = asker_of(session, message->job, CAIRN_ACCESS_WRITE);
        snprintf(t->job, sizeof t->job, "%s", message->job);
        snprintf(t->id, sizeof t->id, "%s", message->id);
        snprintf(t->name, sizeof t->name, "%s", message->name);
    }
    coord_work_ask(t != NULL ? &t->work : NULL, session, request);
    return CAIRN_OK;
}

/* ==== messages ==== */

const struct coord_row coord_keep_rows[] = {
    { CAIRN_MSG_SNAPSHOT_REMOVE, CAIRN_FROM_ADMIN, .asks = on_snapshot_remove,
      .verb = "snapshot rm", .job = "job", .wants = CAIRN_ACCESS_OWN },
    { CAIRN_MSG_SNAPSHOT_PRUNE, CAIRN_FROM_ADMIN, .asks = on_snapshot_prune,
      .verb = "snapshot prune", .job = "job", .wants = CAIRN_ACCESS_OWN },
    { CAIRN_MSG_SNAPSHOT_TAG, CAIRN_FROM_ADMIN, .asks = on_snapshot_tag, .verb = "snapshot tag",
      .job = "job", .wants = CAIRN_ACCESS_WRITE },
    { 0 },
};
