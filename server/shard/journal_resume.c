/* The parts that the search found in logs (journal_scan.c): each is made again at once, or awaits the
 * snapshot on which its log stands. journal.h has the picture. */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "proto/snapshot/snapshot.h"
#include "proto/store/storage.h"
#include "server/shard/journal.h"
#include "server/shard/kept.h"
#include "server/shard/shard.h"

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
    if (from->wait.promised_bytes > 0)
        budget_give(&from->shard->memory.budget, from->wait.promised_bytes);
    from->wait.promised_bytes = 0;
}

void journal_resumed_free(struct journal_resumed *from)
{
    if (from == NULL) return;
    end_promise(from);
    struct shard_job *serves = from->back.serves;
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

static void run_look(struct task *task, uint32_t item, uint32_t thread)
{
    struct journal_resumed *from = journal_resumed_of(task);
    uint64_t bytes;
    (void)item;
    (void)thread;
    from->status = storage_of(from->base.path)
                       ->stat(from->base.path, CAIRN_MANIFEST_NAME, &bytes, &from->wait.looked);
}

/* The shard connects when it has looked for the last base once. */
static void let_connect(struct journal_resumed *from)
{
    struct shard_daemon *shard = from->shard;
    if (!from->wait.holds) return;
    from->wait.holds = false;
    if (--shard->kept.pending == 0) shard->up->resumed(shard);
}

#define WAITS "waits for "

static void say_away(struct journal_resumed *from, const char *why)
{
    const bool is_news = from->wait.waits.text[0] == '\0';
    sentence_set(&from->wait.waits, WAITS "the snapshot on which its log stands, %s: %s",
                 sentence_brief(from->base.path, 110).text, sentence_brief(why, 80).text);
    if (is_news)
        log_warn("the part of job %s %s; the shard serves its other jobs, and looks for the "
                 "snapshot each second",
                 from->part->name, from->wait.waits.text);
    let_connect(from);
}

static void note_failure(struct journal_resumed *from, const struct sentence *why)
{
    const bool is_first = from->wait.failures == 0;
    from->wait.again_ms = uv_now(from->shard->loop) +
                          ((uint64_t)LOOK_EACH_MS << from->wait.failures);
    if (from->wait.failures < DOUBLINGS) from->wait.failures++;
    sentence_set(&from->wait.waits, WAITS "memory for its job: %s",
                 sentence_brief(why->text, 190).text);
    if (is_first)
        log_warn("the part of job %s %s; this is tried again, less often each time",
                 from->part->name, from->wait.waits.text);
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
    return from->wait.is_void || is_held(from->shard, from->part->job);
}

static void run_end(struct task *task, uint32_t item, uint32_t thread)
{
    struct journal_resumed *from = journal_resumed_of(task);
    (void)item;
    (void)thread;
    from->status = journal_end(from->folder, &from->wait.looked);
}

static void stop_looking(struct journal_resumed *from)
{
    unlink_from(from);
    pool_close(from->wait.looks, NULL, NULL);
    from->wait.looks = NULL;
}

static void end_done(struct task *task)
{
    struct journal_resumed *from = journal_resumed_of(task);
    if (from->status != CAIRN_OK)
        log_error("the log of job %s, which was dropped or restored, could not be removed: %s; "
                  "remove %s by hand",
                  from->part->name, from->wait.looked.text, from->folder);
    stop_looking(from);
    journal_resumed_free(from);
}

static void end_log(struct journal_resumed *from)
{
    from->wait.is_looking = from->wait.is_void = true;
    from->task = (struct task) { .run = run_end, .done = end_done, .item_count = 1 };
    pool_submit(from->wait.looks, &from->task);
    let_connect(from);
}

static void look_done(struct task *task)
{
    struct journal_resumed *from = journal_resumed_of(task);
    struct shard_daemon *shard = from->shard;
    const bool connects = from->wait.holds;
    from->wait.is_looking = false;
    if (is_over(from)) {
        end_log(from);
        return;
    }
    if (from->status != CAIRN_OK) {
        say_away(from, from->wait.looked.text);
        return;
    }
    if (from->wait.waits.text[0] != '\0')
        log_info("job %s: the snapshot on which its log stands is there now", from->part->name);
    sentence_set(&from->wait.waits, WAITS "its updates to be done again");
    stop_looking(from);
    end_promise(from);                        // its job takes the memory
    shard->kept.pending += !from->wait.holds; // until it is known whether a part can be made
    from->wait.holds = false;
    const bool is_news = resume(shard, from) || connects;
    if (--shard->kept.pending == 0 && is_news) shard->up->resumed(shard);
}

static void look(struct journal_resumed *from)
{
    from->wait.is_looking = true;
    from->task = (struct task) { .run = run_look, .done = look_done, .item_count = 1 };
    pool_submit(from->wait.looks, &from->task);
}

/* A shard without the part has room for others, and they would take it. So memory is promised to the part
 * also while it is awaited: what it lacks, as far as that is there. A part of another store than the one that
 * the shard obeys may be awaited for ever, and gets none. */
static void promise(struct journal_resumed *from)
{
    struct shard_daemon *shard = from->shard;
    struct budget *budget = &shard->memory.budget;
    const uint64_t store = shard->session.seen.store;
    const struct kept_create create = create_of(from);
    struct sentence why;
    if (store != 0 && store != journal_last(from)->seen.store) {
        end_promise(from);
        return;
    }
    if (from->wait.is_void || from->wait.yields) return;
    if (from->wait.need_bytes == 0 &&
        shard->up->resume_bytes(shard, &create, &from->wait.need_bytes, &why) != CAIRN_OK)
        return; // and the part cannot be made, either
    const uint64_t lacks = from->wait.need_bytes - from->wait.promised_bytes,
                   left = budget->limit_bytes - budget->used_bytes,
                   bytes = lacks < left ? lacks : left;
    if (bytes > 0 && budget_take(budget, bytes, "a part that is awaited", &why) == CAIRN_OK)
        from->wait.promised_bytes += bytes;
}

static void on_timer(uv_timer_t *timer)
{
    struct shard_daemon *shard = timer->data;
    struct journal_resumed *next;
    for (struct journal_resumed *from = shard->journals.awaiting; from != NULL; from = next) {
        next = from->next;
        if (from->wait.is_looking && !from->wait.is_void)
            say_away(from, "its storage does not answer");
        else if (!from->wait.is_looking && is_over(from))
            end_log(from);
        else if (!from->wait.is_looking && uv_now(shard->loop) >= from->wait.again_ms)
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
    if (pool_open(shard->loop, "cairn-log-base", 1, NULL, &from->wait.looks, &why) != CAIRN_OK) {
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
    from->wait.holds = true;
    shard->kept.pending++;
    look(from);
}

void journal_resumed_go(struct shard_daemon *shard, struct journal_resumed *from)
{
    if (from->why.text[0] == '\0' && !is_held(shard, from->part->job))
        begin_look(shard, from);
    else
        (void)resume(shard, from);
}

int journals_looks_close(struct shard_daemon *shard, void (*on_closed)(void *context),
                         void *context)
{
    int handles = 0;
    for (struct journal_resumed **at = &shard->journals.awaiting; *at != NULL;) {
        struct journal_resumed *from = *at;
        const bool has_ended = pool_close_within(from->wait.looks, HANGS_MS, on_closed, context);
        handles++;
        from->wait.looks = NULL;
        if (has_ended)
            at = &from->next;
        else
            *at = from->next; // its thread may still write there
    }
    return handles;
}

/* ==== its job is dropped, or made otherwise ==== */

void journals_drop(struct shard_daemon *shard, uint64_t job)
{
    journals_yield(shard, job);
    for (struct journal_resumed *from = shard->journals.awaiting; from != NULL; from = from->next)
        from->wait.is_void |= from->part->job == job;
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
            from->wait.yields = true;
            end_promise(from);
        }
}

uint64_t journals_promised(const struct shard_daemon *shard)
{
    uint64_t bytes = 0;
    for (const struct journal_resumed *from = shard->journals.awaiting; from != NULL;
         from = from->next)
        bytes += from->wait.promised_bytes;
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

void journal_resumed_tell(const struct journal_resumed *from, Cairn__LogTold *out)
{
    cairn__log_told__init(out);
    out->job = from->part->job;
    out->base_generation = from->base.version.generation;
    out->base_step = from->base.version.step;
    out->why = wire_text(from->wait.waits.text);
    if (from->wait.waits.text[0] != '\0') out->waits = out->why + sizeof WAITS - 1;
}

size_t journals_awaiting_tell(const struct shard_daemon *shard, Cairn__LogTold *out, size_t most)
{
    size_t count = 0;
    for (const struct journal_resumed *from = shard->journals.awaiting;
         from != NULL && count < most; from = from->next)
        if (!is_over(from)) journal_resumed_tell(from, &out[count++]);
    return count;
}
