/* The logs of a shard, and the search for those that a process before left: journal.h has the picture. */
#include <assert.h>
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/durable.h"
#include "proto/snapshot/snapshot.h"
#include "proto/store/storage.h"
#include "server/shard/journal.h"
#include "server/shard/kept.h"
#include "server/shard/shard.h"

/* While log.path cannot be used, that is said so often. */
#define SAY_EACH_S 60
/* So often the base of each log is looked for. The shard connects after the first of these times at the
 * latest. */
#define LOOK_EACH_MS 1000
/* If memory lacks for a job, that is tried again after that time; after each further failure that time
 * doubles, but so often at most. */
#define DOUBLINGS 5
/* At its end a shard waits so long for a look that hangs. */
#define HANGS_MS 100

struct journal_resumed *journal_resumed_new(void)
{
    struct journal_resumed *from = calloc(1, sizeof *from);
    if (from == NULL) return NULL;
    from->fd = -1;
    pthread_mutex_init(&from->lock, NULL);
    return from;
}

static void end_promise(struct journal_resumed *from)
{
    if (from->promised_bytes > 0) budget_give(&from->shard->memory.budget, from->promised_bytes);
    from->promised_bytes = 0;
}

void journal_resumed_free(struct journal_resumed *from)
{
    if (from == NULL) return;
    end_promise(from);
    struct shard_job *serves = from->serves;
    if (serves != NULL) serves->journal.read_by = NULL;
    if (from->fd >= 0) close(from->fd);
    journal_plan_release(&from->plan);
    journal_entries_release(&from->entries);
    free(from->part);
    free(from->base.path);
    free(from->folder);
    pthread_mutex_destroy(&from->lock);
    free(from);
    if (serves != NULL) shard_job_idle(serves);
}

/* ==== the search, on the files thread ==== */

struct journal_scan {
    struct task task; /* first */
    struct shard_daemon *shard;
    struct journal_resumed *found; /* owned */
    char *awaits;                  /* owned: log.path, if it could not be used yet; NULL: it can */
    int lock_fd;                   /* owned: of the folder that was awaited; -1: none */
    bool is_empty;                 /* no log is there, whole or not */
    atomic_bool canceled;
};

/* Reads the sums of a round that is prepared: if they are not whole, they were cut off, and the round was not
 * reported. */
static cairn_status check_round(struct journal_resumed *from, struct sentence *why)
{
    const struct journal_entry *entry = &from->entries.list[from->plan.round];
    const int fd = journal_segment_open(from->folder, entry->head.segment, why);
    if (fd < 0) return CAIRN_ERR_IO;
    cairn_status status = CAIRN_OK;
    for (uint64_t c = 0; c < entry->head.chunk_count && status == CAIRN_OK; c++) {
        const struct journal_chunk *chunk = &journal_entry_chunks(entry)[c];
        void *sums = malloc((size_t)chunk->bytes + 1);
        status = sums != NULL ? journal_read_chunk(fd, entry, chunk, sums, why)
                              : fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read a log");
        free(sums);
    }
    close(fd);
    return status;
}

static cairn_status make_plan(struct journal_resumed *from, struct sentence *why)
{
    const struct cairn_version first = from->entries.list[0].head.outcome.version;
    CAIRN_TRY(journal_plan_make(&from->entries, journal_has_base(from) ? from->base.version : first,
                                NULL, &from->plan, why));
    if (from->plan.step.phase != CAIRN_STEP_REDUCED) return CAIRN_OK;
    cairn_status status = check_round(from, why);
    if (status != CAIRN_ERR_CHECKSUM || from->plan.round != from->plan.last) return status;
    journal_plan_drop_round(&from->entries, &from->plan);
    return CAIRN_OK;
}

static cairn_status read_journal(struct journal_resumed *from, struct sentence *why)
{
    CAIRN_TRY(journal_read(from->folder, from->part->log, &from->entries, why));
    const cairn_status based = journal_base_read(from->folder, from->part->log, &from->base, why);
    if (based != CAIRN_OK && based != CAIRN_ERR_NOT_FOUND) return based;
    CAIRN_TRY(make_plan(from, why));
    if (journal_has_base(from)) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NOT_FOUND, "it had no snapshot to stand on yet");
}

/* Reads one journal; NULL: it is none. */
static struct journal_resumed *look_at(const struct journal_scan *scan, const char *name)
{
    struct journal_resumed *from = journal_resumed_new();
    struct sentence why;
    if (from == NULL) return NULL;
    from->shard = scan->shard;
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    sentence_set(&why, "out of memory");
    if (asprintf(&from->folder, "%s/%s", scan->shard->journals.folder, name) < 0)
        from->folder = NULL;
    else
        status = journal_part_read(from->folder, &from->part, &why);
    if (status == CAIRN_ERR_NOT_FOUND) { // it was ended
        (void)!journal_end(from->folder, &why);
    } else if (status != CAIRN_OK) {
        log_error("the log in %s cannot be used: %s", from->folder != NULL ? from->folder : name,
                  why.text);
    }
    if (status != CAIRN_OK) {
        journal_resumed_free(from);
        return NULL;
    }
    if (read_journal(from, &why) != CAIRN_OK) from->why = why;
    return from;
}

/* Locks the shard's folder, which is in log.path and is made. */
static cairn_status open_folder(const char *log_path, const char *folder, int *lock_fd_out,
                                struct sentence *why)
{
    struct stat is;
    struct sentence said;
    if (stat(log_path, &is) != 0 || !S_ISDIR(is.st_mode))
        return fail_with(
            why, CAIRN_ERR_IO,
            "has log.path = %.300s, which is no folder: the logs of jobs with durability = "
            "log lie there, on a disk of its host",
            log_path);
    const cairn_status status = durable_lock(folder, lock_fd_out, &said);
    if (status == CAIRN_OK) return CAIRN_OK;
    return fail_with(why, status, "cannot use its log.path: %s",
                     sentence_brief(said.text, 700).text);
}

/* Waits until the folder can be used, because its disk may be mounted later than this host starts, and a
 * shard that connects without the parts in it loses them. False: the shard ends. */
static bool await_folder(struct journal_scan *scan)
{
    struct sentence why;
    for (unsigned s = 0; !atomic_load(&scan->canceled); s++) {
        if (open_folder(scan->awaits, scan->shard->journals.folder, &scan->lock_fd, &why) ==
            CAIRN_OK) {
            log_info("log.path = %s can be used now: this shard goes on", scan->awaits);
            return true;
        }
        if (s % SAY_EACH_S == 0)
            log_error("this shard %s; it does not connect before it can read the logs that may be "
                      "there: mount the disk, or start the shard without log.path, which gives "
                      "the steps in the logs up",
                      why.text);
        sleep(1);
    }
    return false;
}

static void run_scan(struct task *task, uint32_t item, uint32_t thread)
{
    struct journal_scan *scan = (struct journal_scan *)task;
    const struct dirent *name;
    (void)item;
    (void)thread;
    if (scan->awaits != NULL && !await_folder(scan)) return;
    DIR *names = opendir(scan->shard->journals.folder);
    scan->is_empty = names != NULL;
    while (names != NULL && !atomic_load(&scan->canceled) && (name = readdir(names)) != NULL) {
        if (strlen(name->d_name) != 33 || name->d_name[16] != '-') continue;
        scan->is_empty = false;
        struct journal_resumed *from = look_at(scan, name->d_name);
        if (from == NULL) continue;
        from->next = scan->found;
        scan->found = from;
    }
    if (names != NULL) closedir(names);
}

/* ==== a part, and the job that is made of it ==== */

struct journal_part *journal_part_of(const struct shard_job *job)
{
    struct packed *spec = packed_spec(&job->spec), *layout = packed_layout(job->view->layout);
    struct journal_part *part = NULL;
    const size_t amended = job->terms.amended.have_bytes;
    size_t bytes = sizeof *part + amended;
    if (spec != NULL && layout != NULL) {
        bytes += spec->size + layout->size;
        part = calloc(1, bytes);
    }
    if (part != NULL) {
        const struct shard_map *map = &job->view->table.map;
        *part = (struct journal_part) { .bytes = bytes,
                                        .log = job->journal.log,
                                        .store = job->shard->session.seen.store,
                                        .job = job->number,
                                        .generation = job->generation,
                                        .base_step = job->base_step,
                                        .layout = job->view->layout->version,
                                        .revision = job->terms.revision,
                                        .state_bytes = job->memory.state,
                                        .shard_index = map->shard,
                                        .member_max = shard_job_member_max(job),
                                        .spec_bytes = spec->size,
                                        .amended_bytes = amended,
                                        .layout_bytes = layout->size };
        snprintf(part->build, sizeof part->build, "%s", job->shard->build);
        snprintf(part->name, sizeof part->name, "%s", job->spec.name);
        snprintf(part->shard, sizeof part->shard, "%s", job->shard->name);
        kept_terms_write(job, spec, layout, (uint8_t *)(part + 1));
        journal_part_seal(part);
    }
    packed_release(spec);
    packed_release(layout);
    return part;
}

static struct kept_create create_of(const struct journal_resumed *from)
{
    const struct journal_part *part = from->part;
    struct kept_create create = kept_create_of(&(struct kept_terms) {
        (const uint8_t *)(part + 1), part->spec_bytes, part->amended_bytes, part->layout_bytes });
    create.message.job = part->job;
    create.message.generation = part->generation;
    create.message.step = part->base_step;
    create.message.shard_index = part->shard_index;
    create.message.member_max = part->member_max;
    create.message.snapshot_path = from->base.path;
    return create;
}

static cairn_status try_resume(struct shard_daemon *shard, struct journal_resumed *from,
                               struct sentence *why)
{
    struct coordinator_session *session = &shard->session;
    if (from->why.text[0] != '\0')
        return fail_with(why, CAIRN_ERR_CORRUPT, "%.900s", from->why.text);
    const struct coordinator_id seen = journal_last(from)->seen;
    if (session->seen.store != 0 && session->seen.store != seen.store)
        return fail_with(why, CAIRN_ERR_MISMATCH,
                         "it belongs to store %016" PRIx64
                         ", and this shard obeys the coordinator of store %016" PRIx64
                         " (it stays there, and is read again when the shard is started again)",
                         seen.store, session->seen.store);
    const struct kept_create create = create_of(from);
    const struct cairn_version version = from->plan.step.version;
    log_info("job %s: its part is made again from its log, from the snapshot of step %" PRIu64
             " on, by %zu updates to step %" PRIu64,
             from->part->name, from->base.version.step, from->plan.count, version.step);
    CAIRN_TRY(shard->up->resume(shard, &create, NULL, from, why));
    if (seen.incarnation >= session->seen.incarnation) session->seen = seen;
    return CAIRN_OK;
}

static bool is_held(const struct shard_daemon *shard, uint64_t number)
{
    const struct shard_job *job = shard->jobs;
    while (job != NULL && job->number != number) job = job->next;
    return job != NULL;
}

static bool await_base(struct shard_daemon *shard, struct journal_resumed *from);
static void note_failure(struct journal_resumed *from, const struct sentence *why);

/* False: the part is awaited again. */
static bool resume(struct shard_daemon *shard, struct journal_resumed *from)
{
    struct sentence why;
    if (is_held(shard, from->part->job)) { // a keeper had it, and its state is newer
        from->next = shard->journals.found;
        shard->journals.found = from;
        return true;
    }
    const cairn_status status = try_resume(shard, from, &why);
    if (status == CAIRN_OK) return true;
    if (status == CAIRN_ERR_NO_MEMORY) {
        note_failure(from, &why);
        if (await_base(shard, from)) return false;
    }
    log_error(
        "the log of job %s in %s cannot be used: %s; the job is restored from a snapshot by its "
        "on_shard_loss, or by `cairn snapshot restore`",
        from->part->name, from->folder, why.text);
    journal_resumed_free(from);
    return true;
}

/* ==== bases that are not there yet ==== */

/* At a start the storage of snapshots may come later than this host, and jobs that need nothing from it do
 * not wait. So each log's base is looked for, on a thread of its own, because storage may hang. If it is not
 * there, or no answer comes in time, the shard connects without the part, and says for what the part waits.
 * It looks each second, and connects anew when the part is there. If memory lacks for the job, the part is
 * awaited as before. Nobody gives a part up here: the coordinator decides how long a job waits for it. */

static struct journal_resumed *from_of(struct task *task)
{
    return (struct journal_resumed *)((char *)task - offsetof(struct journal_resumed, task));
}

static void run_look(struct task *task, uint32_t item, uint32_t thread)
{
    struct journal_resumed *from = from_of(task);
    uint64_t bytes;
    (void)item;
    (void)thread;
    from->status = storage_of(from->base.path)
                       ->stat(from->base.path, CAIRN_MANIFEST_NAME, &bytes, &from->looked);
}

/* The shard connects when it has looked for the last base once. */
static void let_connect(struct journal_resumed *from)
{
    struct shard_daemon *shard = from->shard;
    if (!from->holds) return;
    from->holds = false;
    if (--shard->kept.pending == 0) shard->up->resumed(shard);
}

#define WAITS "waits for "

static void say_away(struct journal_resumed *from, const char *why)
{
    const bool is_news = from->waits.text[0] == '\0';
    sentence_set(&from->waits, WAITS "the snapshot on which its log stands, %s: %s",
                 sentence_brief(from->base.path, 110).text, sentence_brief(why, 80).text);
    if (is_news)
        log_warn("the part of job %s %s; the shard serves its other jobs, and looks for the "
                 "snapshot each second",
                 from->part->name, from->waits.text);
    let_connect(from);
}

static void note_failure(struct journal_resumed *from, const struct sentence *why)
{
    const bool is_first = from->failures == 0;
    from->again_ms = uv_now(from->shard->loop) + ((uint64_t)LOOK_EACH_MS << from->failures);
    if (from->failures < DOUBLINGS) from->failures++;
    sentence_set(&from->waits, WAITS "memory for its job: %s", sentence_brief(why->text, 190).text);
    if (is_first)
        log_warn("the part of job %s %s; this is tried again, less often each time",
                 from->part->name, from->waits.text);
}

static void unlink_from(struct journal_resumed *from)
{
    struct journal_resumed **at = &from->shard->journals.awaiting;
    while (*at != from) at = &(*at)->next;
    *at = from->next;
    from->next = NULL;
}

/* True if nobody wants the part any more: its job was dropped, or restored. */
static bool is_over(const struct journal_resumed *from)
{
    return from->is_void || is_held(from->shard, from->part->job);
}

static void run_end(struct task *task, uint32_t item, uint32_t thread)
{
    struct journal_resumed *from = from_of(task);
    (void)item;
    (void)thread;
    from->status = journal_end(from->folder, &from->looked);
}

static void stop_looking(struct journal_resumed *from)
{
    unlink_from(from);
    pool_close(from->looks, NULL, NULL);
    from->looks = NULL;
}

static void end_done(struct task *task)
{
    struct journal_resumed *from = from_of(task);
    if (from->status != CAIRN_OK)
        log_error("the log of job %s, which was dropped or restored, could not be removed: %s; "
                  "remove %s by hand",
                  from->part->name, from->looked.text, from->folder);
    stop_looking(from);
    journal_resumed_free(from);
}

static void end_log(struct journal_resumed *from)
{
    from->is_looking = from->is_void = true;
    from->task = (struct task) { .run = run_end, .done = end_done, .item_count = 1 };
    pool_submit(from->looks, &from->task);
    let_connect(from);
}

static void look_done(struct task *task)
{
    struct journal_resumed *from = from_of(task);
    struct shard_daemon *shard = from->shard;
    const bool connects = from->holds;
    from->is_looking = false;
    if (is_over(from)) {
        end_log(from);
        return;
    }
    if (from->status != CAIRN_OK) {
        say_away(from, from->looked.text);
        return;
    }
    if (from->waits.text[0] != '\0')
        log_info("job %s: the snapshot on which its log stands is there now", from->part->name);
    sentence_set(&from->waits, WAITS "its updates to be done again");
    stop_looking(from);
    end_promise(from);                   // its job takes the memory
    shard->kept.pending += !from->holds; // until it is known whether a part can be made
    from->holds = false;
    const bool is_news = resume(shard, from) || connects;
    if (--shard->kept.pending == 0 && is_news) shard->up->resumed(shard);
}

static void look(struct journal_resumed *from)
{
    from->is_looking = true;
    from->task = (struct task) { .run = run_look, .done = look_done, .item_count = 1 };
    pool_submit(from->looks, &from->task);
}

/* A shard without the part has room for others, and they would take it. So memory is promised to the part
 * also while it is awaited: what it lacks, as far as that is there. A part of another store than the one that
 * the shard obeys may be awaited for ever, and gets none. */
static void promise(struct journal_resumed *from)
{
    struct shard_daemon *shard = from->shard;
    const uint64_t store = shard->session.seen.store;
    if (store != 0 && store != journal_last(from)->seen.store) {
        end_promise(from);
        return;
    }
    struct budget *budget = &shard->memory.budget;
    struct sentence why;
    const struct kept_create create = create_of(from);
    if (from->is_void || from->yields) return;
    if (from->need_bytes == 0 &&
        shard->up->resume_bytes(shard, &create, &from->need_bytes, &why) != CAIRN_OK)
        return; // and the part cannot be made, either
    const uint64_t lacks = from->need_bytes - from->promised_bytes,
                   left = budget->limit_bytes > budget->used_bytes
                              ? budget->limit_bytes - budget->used_bytes
                              : 0,
                   bytes = lacks < left ? lacks : left;
    budget->used_bytes += bytes;
    from->promised_bytes += bytes;
}

static void on_timer(uv_timer_t *timer)
{
    struct shard_daemon *shard = timer->data;
    struct journal_resumed *next;
    for (struct journal_resumed *from = shard->journals.awaiting; from != NULL; from = next) {
        next = from->next;
        if (from->is_looking && !from->is_void)
            say_away(from, "its storage does not answer");
        else if (!from->is_looking && is_over(from))
            end_log(from);
        else if (!from->is_looking && uv_now(shard->loop) >= from->again_ms)
            look(from);
        if (!is_over(from)) promise(from);
    }
    if (shard->journals.awaiting == NULL) uv_timer_stop(timer);
}

/* Beside a part of the same store, the part whose base is away counts, too. Alone it decides nothing: its
 * store may be gone. */
static void take_seen(struct shard_daemon *shard, const struct journal_resumed *from)
{
    const struct coordinator_id seen = journal_last(from)->seen;
    struct coordinator_id *ours = &shard->session.seen;
    if (ours->store == seen.store && ours->incarnation < seen.incarnation) *ours = seen;
}

/* From now on the base is looked for each second. False: it cannot be looked for. */
static bool await_base(struct shard_daemon *shard, struct journal_resumed *from)
{
    struct sentence why;
    if (pool_open(shard->loop, "cairn-log-base", 1, NULL, &from->looks, &why) != CAIRN_OK) {
        log_warn("job %s: nobody looks whether the snapshot on which its log stands is there: %s",
                 from->part->name, why.text);
        return false;
    }
    take_seen(shard, from);
    from->next = shard->journals.awaiting;
    shard->journals.awaiting = from;
    promise(from);
    if (!uv_is_active((const uv_handle_t *)&shard->journals.timer))
        uv_timer_start(&shard->journals.timer, on_timer, LOOK_EACH_MS, LOOK_EACH_MS);
    return true;
}

/* The shard does not connect before it has looked for the base once. */
static void begin_look(struct shard_daemon *shard, struct journal_resumed *from)
{
    if (!await_base(shard, from)) {
        (void)resume(shard, from); // the load says so
        return;
    }
    from->holds = true;
    shard->kept.pending++;
    look(from);
}

/* ==== the search ends ==== */

static void scan_done(struct task *task)
{
    struct journal_scan *scan = (struct journal_scan *)task;
    struct shard_daemon *shard = scan->shard;
    struct journal_resumed *found = scan->found;
    shard->journals.scan = NULL;
    if (scan->lock_fd >= 0) shard->journals.lock_fd = scan->lock_fd;
    shard->journals.was_empty = scan->is_empty;
    free(scan->awaits);
    free(scan);
    while (found != NULL) {
        struct journal_resumed *from = found;
        found = from->next;
        if (from->why.text[0] == '\0' && !is_held(shard, from->part->job))
            begin_look(shard, from);
        else
            (void)resume(shard, from);
    }
    // jobs that serve already, because a keeper had them
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        if (job->state == CAIRN_JOB_SERVING) shard_tell(job, SHARD_JOB_CHANGED);
    if (--shard->kept.pending == 0) shard->up->resumed(shard);
}

/* `awaits`: log.path, if it cannot be used yet, else NULL. */
static cairn_status begin_scan(struct shard_daemon *shard, const char *awaits, struct sentence *why)
{
    struct journal_scan *scan = calloc(1, sizeof *scan);
    if (scan != NULL && awaits != NULL) scan->awaits = strdup(awaits);
    if (scan == NULL || (awaits != NULL && scan->awaits == NULL)) {
        free(scan);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to look for logs");
    }
    scan->lock_fd = -1;
    scan->shard = shard;
    scan->task = (struct task) { .run = run_scan, .done = scan_done, .item_count = 1 };
    shard->journals.scan = scan;
    shard->kept.pending++;
    pool_submit(shard->files, &scan->task);
    return CAIRN_OK;
}

void journal_scan_cancel(struct shard_daemon *shard)
{
    if (shard->journals.scan != NULL) atomic_store(&shard->journals.scan->canceled, true);
}

static void free_found(struct journal_resumed *list)
{
    while (list != NULL) {
        struct journal_resumed *from = list;
        list = from->next;
        journal_resumed_free(from);
    }
}

static void free_scan(struct shard_daemon *shard)
{
    struct journal_scan *scan = shard->journals.scan;
    if (scan != NULL) {
        free_found(scan->found);
        if (scan->lock_fd >= 0) durable_unlock(scan->lock_fd);
        free(scan->awaits);
    }
    free(scan);
    shard->journals.scan = NULL;
    free_found(shard->journals.found);
    free_found(shard->journals.awaiting);
    shard->journals.found = shard->journals.awaiting = NULL;
}

bool journal_is_scanning(const struct shard_daemon *shard)
{
    return shard->journals.scan != NULL;
}

/* True if the entries come to the state that the job has, or to the round whose update made it. */
static bool is_of(const struct journal_resumed *from, const struct shard_job *job)
{
    const struct step_machine *step = job->collector.step;
    const struct decision *last = step_last(step);
    const struct cairn_version version = step_version(step);
    const struct step_kept *plan = &from->plan.step;
    if (from->part->job != job->number || from->part->generation != job->generation ||
        from->part->layout != job->view->layout->version || from->entries.count == 0 ||
        (from->why.text[0] != '\0' && journal_has_base(from)))
        return false;
    if (version_compare(plan->version, version) == 0) return true;
    return plan->phase == CAIRN_STEP_REDUCED && last->kind == CAIRN_DECISION_APPLY &&
           last->round == plan->round && version_compare(last->version_after, version) == 0;
}

struct journal_resumed *journal_find(struct shard_daemon *shard, struct shard_job *job,
                                     bool *is_of_job)
{
    struct journal_resumed *from = job->journal.from, **at = &shard->journals.found;
    job->journal.from = NULL;
    *is_of_job = from != NULL;
    if (from != NULL) return from;
    while (*at != NULL && (*at)->part->job != job->number) at = &(*at)->next;
    from = *at;
    if (from == NULL) return NULL;
    *at = from->next;
    *is_of_job = is_of(from, job);
    return from;
}

void journals_drop(struct shard_daemon *shard, uint64_t job)
{
    journals_yield(shard, job);
    for (struct journal_resumed *from = shard->journals.awaiting; from != NULL; from = from->next)
        from->is_void |= from->part->job == job;
}

void journals_say_strange(const struct shard_daemon *shard, uint64_t store)
{
    for (const struct journal_resumed *from = shard->journals.awaiting; from != NULL;
         from = from->next) {
        const uint64_t its = journal_last(from)->seen.store;
        if (its != store && !is_over(from))
            log_warn("the log of job %s, which waits for its snapshot, belongs to store %016" PRIx64
                     ", and this shard obeys store %016" PRIx64
                     " now: the log stays in %s, and is used when the shard is started again "
                     "with the coordinator of its store",
                     from->part->name, its, store, from->folder);
    }
}

void journals_yield(struct shard_daemon *shard, uint64_t job)
{
    for (struct journal_resumed *from = shard->journals.awaiting; from != NULL; from = from->next)
        if (from->part->job == job) {
            from->yields = true;
            end_promise(from);
        }
}

uint64_t journals_promised(const struct shard_daemon *shard)
{
    uint64_t bytes = 0;
    for (const struct journal_resumed *from = shard->journals.awaiting; from != NULL;
         from = from->next)
        bytes += from->promised_bytes;
    return bytes;
}

/* ==== what is told ==== */

size_t journals_awaited(const struct shard_daemon *shard, uint64_t *jobs_out)
{
    size_t count = 0;
    for (const struct journal_resumed *from = shard->journals.awaiting;
         from != NULL && count < CAIRN_SHARD_JOBS_MAX; from = from->next)
        if (!is_over(from)) jobs_out[count++] = from->part->job;
    for (const struct shard_job *job = shard->jobs; job != NULL && count < CAIRN_SHARD_JOBS_MAX;
         job = job->next)
        if (job->kept.is_pending && job->journal.from != NULL) jobs_out[count++] = job->number;
    return count;
}

static void tell_awaiting(const struct journal_resumed *from, Cairn__LogTold *out)
{
    cairn__log_told__init(out);
    out->job = from->part->job;
    out->base_generation = from->base.version.generation;
    out->base_step = from->base.version.step;
    out->why = wire_text(from->waits.text);
    if (from->waits.text[0] != '\0') out->waits = out->why + sizeof WAITS - 1;
}

bool journal_is_based(const struct shard_job *job)
{
    const struct job_journal *journal = &job->journal;
    return journal->is_open && journal->is_based && (journal->wants & JOURNAL_WANT_END) == 0;
}

static void tell(const struct shard_job *job, Cairn__LogTold *out)
{
    const struct job_journal *journal = &job->journal;
    const uint64_t bytes = journal_bytes(journal);
    cairn__log_told__init(out);
    out->job = job->number;
    out->base_generation = journal->is_based ? journal->base.generation : 0;
    out->base_step = journal->is_based ? journal->base.step : 0;
    out->is_based = journal_is_based(job);
    out->wants = journal->is_open && !journal->end_fails &&
                 (!journal->is_based || journal->lacks_room || bytes > journal->budget_bytes / 2);
    out->bytes = bytes;
    out->budget_bytes = journal->budget_bytes;
    if (journal->is_open && journal->segment_count > 0) {
        out->first_generation = journal->segments[0].first.generation;
        out->first_step = journal->segments[0].first.step;
    }
    if (journal->read_by != NULL && journal->read_by->replays) {
        out->again_done = journal->read_by->at;
        out->again_total = journal->read_by->plan.count;
    }
    out->failed = uv_now(job->shard->loop) < journal->retry_ms;
    out->why = wire_text(journal->why.text);
    out->waits = wire_text(journal->waits.text);
}

size_t journals_tell(const struct shard_daemon *shard, Cairn__LogTold *out)
{
    size_t count = 0;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        if (!job->staged && job->journal.from != NULL)
            tell_awaiting(job->journal.from, &out[count++]);
        else if (!job->staged && job->journal.wanted)
            tell(job, &out[count++]);
    for (const struct journal_resumed *from = shard->journals.awaiting;
         from != NULL && count < CAIRN_SHARD_JOBS_MAX; from = from->next)
        if (!is_over(from)) tell_awaiting(from, &out[count++]);
    return count;
}

/* ==== the shard ==== */

static cairn_status open_threads(struct shard_daemon *shard, struct sentence *why)
{
    struct shard_journals *all = &shard->journals;
    for (size_t i = 0; i < JOURNAL_THREADS; i++) {
        all->blocks[i] = io_block_new((size_t)JOURNAL_RUN_BYTES);
        if (all->blocks[i] == NULL)
            return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for logs");
    }
    return pool_open(shard->loop, "cairn-log", JOURNAL_THREADS, NULL, &all->pool, why);
}

cairn_status journals_open(struct shard_daemon *shard, const struct shard_options *options,
                           struct sentence *why)
{
    struct shard_journals *all = &shard->journals;
    all->budget_bytes = options->log_budget;
    if (options->log_path == NULL || options->log_path[0] == '\0') return CAIRN_OK;
    if (asprintf(&all->folder, "%s/%s", options->log_path, options->name) < 0) {
        all->folder = NULL;
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a log");
    }
    struct sentence lacks;
    const bool is_usable = open_folder(options->log_path, all->folder, &all->lock_fd, &lacks) ==
                           CAIRN_OK;
    if (!is_usable && shard->jobs != NULL) { // they go on from what the keeper has
        all->lacks = lacks;
        log_error("this shard %s", lacks.text);
        return CAIRN_OK;
    }
    CAIRN_TRY(open_threads(shard, why));
    return begin_scan(shard, is_usable ? NULL : options->log_path, why);
}

/* Ends the looks for bases. Returns how often on_closed is called. */
static int close_looks(struct shard_daemon *shard, void (*on_closed)(void *context), void *context)
{
    int handles = 0;
    for (struct journal_resumed **at = &shard->journals.awaiting; *at != NULL;) {
        struct journal_resumed *from = *at;
        const bool has_ended = pool_close_within(from->looks, HANGS_MS, on_closed, context);
        handles++;
        from->looks = NULL;
        if (has_ended)
            at = &from->next;
        else
            *at = from->next; // its thread may still write there
    }
    return handles;
}

int journals_close(struct shard_daemon *shard, void (*on_closed)(void *context), void *context)
{
    struct shard_journals *all = &shard->journals;
    if (all->pool == NULL) return 0;
    pool_close(all->pool, on_closed, context);
    all->pool = NULL;
    return 1 + close_looks(shard, on_closed, context);
}

void journals_release(struct shard_daemon *shard)
{
    struct shard_journals *all = &shard->journals;
    free_scan(shard);
    for (size_t i = 0; i < JOURNAL_THREADS; i++)
        if (all->blocks[i] != NULL) io_block_free(all->blocks[i], (size_t)JOURNAL_RUN_BYTES);
    if (all->lock_fd > 0) durable_unlock(all->lock_fd);
    free(all->folder);
}
