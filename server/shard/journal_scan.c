/* The logs of a shard, and the search for those that a process before left: journal.h has the picture. */
#include <dirent.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/durable.h"
#include "server/shard/journal.h"
#include "server/shard/kept.h"
#include "server/shard/shard.h"

/* While log.path cannot be used, that is said so often. */
#define SAY_EACH_S 60
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
        journal_resumed_go(shard, from);
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

/* ==== what is told ==== */

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
    if (journal->read_by != NULL && journal->read_by->back.begun) {
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
            journal_resumed_tell(job->journal.from, &out[count++]);
        else if (!job->staged && job->journal.wanted)
            tell(job, &out[count++]);
    return count + journals_awaiting_tell(shard, out + count, CAIRN_SHARD_JOBS_MAX - count);
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

int journals_close(struct shard_daemon *shard, void (*on_closed)(void *context), void *context)
{
    struct shard_journals *all = &shard->journals;
    if (all->pool == NULL) return 0;
    pool_close(all->pool, on_closed, context);
    all->pool = NULL;
    return 1 + journals_looks_close(shard, on_closed, context);
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
