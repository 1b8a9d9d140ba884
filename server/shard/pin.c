/* Snapshots and digests: a version is pinned, and then hashed and written while training continues.
 *
 *   PinPrepare ─► the staging and its pages are made, so that no update has to make them ─► Done
 *   Pin ─► waits for the UPDATE at hand ─► the version is fixed (state.h): updates save what they overwrite
 *       ─► waits for PinFolder, unless it is a digest ─► read, hash, write (state.h) ─► SnapshotPart
 *
 * The pieces that updates save lie in the staging, which the budget counts. If there is no room for
 * the staging, the pin fails and training continues. A failed pin leaves no files. */
#include <inttypes.h>
#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot_io/snapshot_io.h"
#include "server/base/daemon.h"
#include "server/shard/jobs.h"
#include "server/shard/shard.h"
#include "server/shard/state.h"

struct pin {
    struct task task;      /* the task on the snapshots thread */
    struct shard_job *job; /* borrowed */
    LIST_ENTRY(pin) link;  /* in the job's list */
    uint64_t snapshot;
    /* a PinPrepare has arrived, so the staging is made or being made; the Pin has not arrived
     * yet */
    bool is_prepared;
    struct request asked; /* the PinPrepare, if it is not answered yet */
    bool waits;           /* the pin waits for the end of the UPDATE that is under way */
    bool writes;          /* the pin writes files into the folder that PinFolder names */
    bool stands;          /* the version is fixed, and `task` is not submitted yet */
    /* how many of two tasks are under way: `task`, and the one that makes the staging's pages */
    uint32_t tasks;
    /* the end was reported; the pin is freed when no UPDATE saves into its staging any longer */
    bool ended;
    atomic_bool canceled;
    struct cairn_version version;

    /* owned */
    char *path; /* NULL: the pin is a digest, or PinFolder has not arrived yet */
    struct staging staging;
    uint64_t staging_budget;
    struct pace pace;
    struct audit_checks checks; /* of the version */

    /* the result */
    struct report *report; /* owned, until it is sent */
    cairn_status status;
    struct sentence why;
};

/* ---- the end ---- */

static void pin_free(struct pin *pin)
{
    LIST_REMOVE(pin, link);
    staging_close(&pin->staging);
    audit_checks_close(&pin->checks);
    shard_job_give(pin->job, &pin->job->memory.staging, pin->staging_budget);
    free(pin->path);
    report_free(pin->report);
    free(pin);
}

static void release_pins(struct shard_job *job)
{
    job->pins.saving_count = 0;
    while (!LIST_EMPTY(&job->pins.list)) pin_free(LIST_FIRST(&job->pins.list));
}

static bool is_saved_into(const struct pin *pin)
{
    const struct pins *pins = &pin->job->pins;
    uint32_t i = 0;
    while (i < pins->saving_count && pins->saving[i] != &pin->staging) i++;
    return i < pins->saving_count;
}

/* Frees the pin if it has ended and nothing uses it any longer. */
static void free_if_ended(struct pin *pin)
{
    if (pin->ended && pin->tasks == 0 && !is_saved_into(pin)) pin_free(pin);
}

static void say_waited(const struct pin *pin)
{
    const uint64_t ms = atomic_load(&pin->staging.waited_us) / 1000;
    if (pin->staging.job == NULL || ms == 0) return;
    log_warn("job %s: updates waited %" PRIu64
             " ms (all threads together) for the small staging of the snapshot at step %" PRIu64
             ": set snapshot_staging = state to have room for all of it",
             pin->job->spec.name, ms, pin->version.step);
}

/* Reports the end of the pin, and frees the pin as soon as nothing uses it. The report may exist
 * longer, because it is sent in several batches. */
static void report_pin(struct pin *pin)
{
    struct report *told = pin->report;
    pin->report = NULL;
    if (pin->status == CAIRN_ERR_IO) storage_watch_doubt(&pin->job->shard->storage);
    if (pin->status != CAIRN_OK)
        log_error("snapshot of job %s at step %" PRIu64 " failed here: %s", pin->job->spec.name,
                  pin->version.step, pin->why.text);
    say_waited(pin);
    const bool is_damaged = pin->status == CAIRN_ERR_CHECKSUM;
    const struct sentence damage = pin->why;
    struct shard_job *job = pin->job;
    report_send(told, pin->version, pin->status, &pin->why);
    staging_cancel(&pin->staging);
    pin->ended = true;
    free_if_ended(pin);
    if (is_damaged) shard_job_fault(job, damage.text); // nothing may be computed from that state
}

/* ---- prepared ---- */

/* Ends a prepared pin whose Pin will not arrive any more. */
static void unprepare_pin(struct pin *pin)
{
    pin->is_prepared = false;
    pin->ended = true;
    staging_cancel(&pin->staging);
    if (pin->tasks == 0) pin_free(pin);
}

void pins_unprepare(struct shard_job *job)
{
    struct pin *next;
    for (struct pin *pin = LIST_FIRST(&job->pins.list); pin != NULL; pin = next) {
        next = LIST_NEXT(pin, link);
        if (pin->is_prepared) unprepare_pin(pin);
    }
}

static cairn_status write_pin(struct pin *pin, struct sentence *why);

/* ---- on the snapshots thread ---- */

static void run_write(struct task *task, uint32_t item, uint32_t thread)
{
    struct pin *pin = (struct pin *)task;
    (void)item;
    (void)thread;
    pin->status = atomic_load(&pin->canceled)
                      ? fail_with(&pin->why, CAIRN_ERR_CANCELED, "it was given up")
                      : write_pin(pin, &pin->why);
}

/* Called at the end of each of the two tasks of a pin. The task that ends last reports the pin. */
static void task_done(struct pin *pin)
{
    struct shard_job *job = pin->job;
    if (--pin->tasks == 0 && pin->ended)
        pin_free(pin); // the pin was prepared in vain
    else if (pin->tasks == 0 && !pin->is_prepared && !pin->waits)
        report_pin(pin);
    shard_job_idle(job);
}

static void write_done(struct task *task)
{
    struct pin *pin = (struct pin *)task;
    staging_cancel(&pin->staging); // the version was read, or will not be read any more
    task_done(pin);
}

/* Passes a pin whose version is fixed to the snapshots thread, if the pin's folder is known, or is
 * not needed, or the pin was given up. */
static void go_on(struct pin *pin)
{
    const bool told = !pin->writes || pin->path != NULL || atomic_load(&pin->canceled);
    if (!pin->stands || !told) return;
    pin->task = (struct task) { .run = run_write, .done = write_done, .item_count = 1 };
    pool_submit(pin->job->shard->snapshots, &pin->task);
    pin->stands = false; // the task is submitted only once
}

static void give_up(struct pin *pin)
{
    atomic_store(&pin->canceled, true);
    staging_cancel(&pin->staging);
    go_on(pin);
}

/* Handles a PinFolder. It names the pin's folder or, if the path is empty, gives the pin up. */
static void on_folder(struct shard_job *job, const void *body)
{
    const Cairn__PinFolder *message = body;
    struct pin *pin = LIST_FIRST(&job->pins.list);
    while (pin != NULL && (pin->snapshot != message->snapshot || pin->ended))
        pin = LIST_NEXT(pin, link);
    if (pin == NULL) return;
    const bool given_up = message->path[0] == '\0';
    if (pin->is_prepared) {
        if (given_up) unprepare_pin(pin);
        return;
    }
    if (!given_up && pin->writes && pin->path == NULL) pin->path = strdup(message->path);
    if (given_up || (pin->writes && pin->path == NULL))
        give_up(pin);
    else
        go_on(pin);
}

/* Gives up the pins that wait for their folder, which will not be named any more. */
static void on_session_ended(struct shard_job *job)
{
    pins_unprepare(job);
    for (struct pin *pin = LIST_FIRST(&job->pins.list); pin != NULL; pin = LIST_NEXT(pin, link))
        if (pin->writes && pin->path == NULL && !pin->ended) give_up(pin);
}

void pin_cancel(struct shard_job *job)
{
    pins_unprepare(job);
    for (struct pin *pin = LIST_FIRST(&job->pins.list); pin != NULL; pin = LIST_NEXT(pin, link))
        if (!pin->ended) give_up(pin);
}

/* True if the planes may move, because the staging was canceled and its reader does not read the
 * planes. The reader may still be blocked in a call to the storage. */
static bool staging_is_quiet(const struct staging *staging)
{
    // `canceled` must be read first: a reader that begins after that sees the cancel.
    return staging->job != NULL && atomic_load(&staging->canceled) &&
           !atomic_load(&staging->reading);
}

bool pins_rest(const struct shard_job *job)
{
    const struct pin *pin = LIST_FIRST(&job->pins.list);
    while (pin != NULL && (pin->ended || staging_is_quiet(&pin->staging)))
        pin = LIST_NEXT(pin, link);
    return pin == NULL;
}

void pins_hurry(const struct shard_job *job)
{
    for (struct pin *pin = LIST_FIRST(&job->pins.list); pin != NULL; pin = LIST_NEXT(pin, link))
        atomic_store(&pin->pace.hurry, true);
}

static void list_pin(const struct pin *pin, struct pins_list *out)
{
    if (pin->waits || pin->ended || out->count == CAIRN_PINS_TOLD_MAX) return;
    Cairn__PinTold *told = &out->told[out->count];
    cairn__pin_told__init(told);
    told->job = pin->job->number;
    told->snapshot = pin->snapshot;
    told->done_bytes = atomic_load(&pin->pace.done_bytes);
    told->total_bytes = pin->pace.total_bytes;
    told->waited_ms = atomic_load(&pin->staging.waited_us) / 1000;
    out->pointers[out->count++] = told;
}

void pins_list(const struct shard_daemon *shard, struct pins_list *out)
{
    out->count = 0;
    for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        for (struct pin *pin = LIST_FIRST(&job->pins.list); pin != NULL; pin = LIST_NEXT(pin, link))
            list_pin(pin, out);
}

/* ---- the version stands ---- */

static void on_touched(void *context)
{
    struct pin *pin = context;
    if (pin->asked.number != 0) session_answer(pin->job->shard, &pin->asked, CAIRN_OK, NULL);
    task_done(pin);
}

static void begin_touch(struct pin *pin)
{
    pin->tasks++;
    shard_job_busy(pin->job);
    staging_touch(&pin->staging, on_touched, pin);
}

static cairn_status take_staging(struct pin *pin)
{
    struct shard_job *job = pin->job;
    const uint64_t bytes = staging_bytes(job, job->spec.policy.snapshot_staging);
    CAIRN_TRY(
        shard_job_take(job, &job->memory.staging, bytes, "the staging of a snapshot", &pin->why));
    pin->staging_budget = bytes;
    return staging_open(&pin->staging, job, bytes, &pin->why);
}

/* Fixes the version of the pin. All state has the same version, because no UPDATE is under way. */
static void pin_stands(struct pin *pin)
{
    struct shard_job *job = pin->job;
    pin->waits = false;
    pin->version = job->versions.copies[job->versions.newest].version;
    const bool is_ready = pin->staging.job != NULL;
    // when the view changes, pins_unprepare is called
    assert(!is_ready || pin->staging.view == job->view);
    if (!is_ready) pin->status = take_staging(pin);
    if (pin->status == CAIRN_OK) pin->status = report_keep_payload(pin->report, &pin->why);
    if (pin->status != CAIRN_OK) {
        report_pin(pin);
        return;
    }
    const uint64_t within_s = policy_durable_within_s(&job->spec.policy);
    pace_init(&pin->pace, planes_state_bytes(&job->planes), job->pins.step_us, job->pins.last_us,
              uv_hrtime() / 1000 + within_s * 1000000);
    audit_copy(job, &pin->checks);
    pin->tasks++; // counts `task`, which go_on submits
    shard_job_busy(job);
    if (!is_ready) begin_touch(pin);
    pin->stands = true;
    go_on(pin);
}

/* ---- updates ---- */

void pins_updating(struct shard_job *job)
{
    struct pins *pins = &job->pins;
    atomic_fetch_add(&pins->passes, 1);
    atomic_store(&pins->updating, true);
    pins->saving_count = 0;
    for (struct pin *pin = LIST_FIRST(&pins->list); pin != NULL; pin = LIST_NEXT(pin, link))
        if (!pin->is_prepared && !pin->waits && !pin->ended)
            pins->saving[pins->saving_count++] = &pin->staging;
}

void pins_save(const struct shard_job *job, struct works *works, uint64_t chunk)
{
    for (uint32_t i = 0; i < job->pins.saving_count; i++)
        staging_save(job->pins.saving[i], works, chunk);
}

/* True if no pin can delay a step. A pin that is only prepared delays no step. */
static bool is_free(const struct pins *pins)
{
    const struct pin *pin = LIST_FIRST(&pins->list);
    while (pin != NULL && (pin->is_prepared || pin->ended)) pin = LIST_NEXT(pin, link);
    return pin == NULL;
}

/* Notes how long the step took that has just ended. If no pin can have delayed the step, the step's
 * time changes the usual time (step_us). The pace of each pin is set by the step's time. */
static void note_step(struct pins *pins)
{
    const uint64_t now = uv_hrtime() / 1000, took = pins->last_us == 0 ? 0 : now - pins->last_us;
    pins->last_us = now;
    if (took == 0) return;
    if (is_free(pins)) pins->step_us = pins->step_us == 0 ? took : (7 * pins->step_us + took) / 8;
    for (struct pin *pin = LIST_FIRST(&pins->list); pin != NULL; pin = LIST_NEXT(pin, link))
        if (!pin->is_prepared && !pin->waits && !pin->ended) pace_step(&pin->pace, took, now);
}

void pin_updated(struct shard_job *job)
{
    struct pin *next;
    atomic_store(&job->pins.updating, false);
    note_step(&job->pins);
    job->pins.saving_count = 0;
    for (struct pin *pin = LIST_FIRST(&job->pins.list); pin != NULL; pin = next) {
        next = LIST_NEXT(pin, link);
        if (pin->waits && job->state == CAIRN_JOB_SERVING)
            pin_stands(pin);
        else
            free_if_ended(pin);
    }
}

/* ---- asked for ---- */

static void refuse_pin(struct shard_job *job, const Cairn__Pin *message, cairn_status status,
                       const char *text)
{
    Cairn__SnapshotPart part = CAIRN__SNAPSHOT_PART__INIT;
    part.job = job->number;
    part.snapshot = message->snapshot;
    part.status = (int32_t)status;
    part.text = (char *)text;
    session_send(job->shard, CAIRN_MSG_SNAPSHOT_PART, 0, &part.base);
}

/* Returns CAIRN_OK if one more version may be pinned. */
static cairn_status judge_pin(const struct shard_job *job, struct sentence *why)
{
    size_t count = 0;
    for (struct pin *other = LIST_FIRST(&job->pins.list); other != NULL;
         other = LIST_NEXT(other, link))
        count++;
    if (job->state != CAIRN_JOB_SERVING)
        return fail_with(why, CAIRN_ERR_NOT_READY, "the job has no version yet");
    if (job->park.is_under_way)
        return fail_with(why, CAIRN_ERR_BUSY, "its state is being parked, or comes back");
    if (count >= CAIRN_SHARD_PINS_MAX)
        return fail_with(why, CAIRN_ERR_BUSY,
                         "this shard already writes as many snapshots as it can");
    return CAIRN_OK;
}

static struct pin *pin_new(struct shard_job *job, uint64_t snapshot, struct sentence *why)
{
    struct pin *pin = calloc(1, sizeof *pin);
    struct report *told = report_new(job, snapshot);
    if (pin == NULL || told == NULL) {
        free(pin);
        report_free(told);
        (void)fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for a snapshot");
        return NULL;
    }
    pin->job = job;
    pin->snapshot = snapshot;
    pin->report = told;
    LIST_INSERT_HEAD(&job->pins.list, pin, link);
    return pin;
}

/* Handles a PinPrepare: makes the staging of a pin that will begin soon. Answers when the staging's
 * pages are made. */
static void on_prepare(struct shard_job *job, struct request asked, const void *body)
{
    const Cairn__PinPrepare *message = body;
    struct sentence why;
    cairn_status status = judge_pin(job, &why);
    struct pin *pin = status == CAIRN_OK ? pin_new(job, message->snapshot, &why) : NULL;
    if (status == CAIRN_OK && pin == NULL) status = CAIRN_ERR_NO_MEMORY;
    if (pin != NULL) {
        status = take_staging(pin);
        why = pin->why;
    }
    if (status != CAIRN_OK) {
        if (pin != NULL) pin_free(pin);
        session_answer(job->shard, &asked, status, &why);
        return;
    }
    pin->is_prepared = true;
    pin->asked = asked;
    begin_touch(pin);
}

static struct pin *prepared_of(const struct shard_job *job, uint64_t snapshot)
{
    struct pin *pin = LIST_FIRST(&job->pins.list);
    while (pin != NULL && !(pin->is_prepared && pin->snapshot == snapshot))
        pin = LIST_NEXT(pin, link);
    return pin;
}

static void on_pin(struct shard_job *job, const void *body)
{
    const Cairn__Pin *message = body;
    struct sentence why;
    struct pin *pin = prepared_of(job, message->snapshot);
    cairn_status status = pin == NULL ? judge_pin(job, &why) : CAIRN_OK;
    if (status == CAIRN_OK)
        // a coordinator that asks for another pin no longer waits for earlier reports
        reports_drop(job);
    if (status == CAIRN_OK && pin == NULL) {
        pin = pin_new(job, message->snapshot, &why);
        if (pin == NULL) status = CAIRN_ERR_NO_MEMORY;
    }
    if (status != CAIRN_OK) {
        refuse_pin(job, message, status, why.text);
        return;
    }
    pin->is_prepared = false;
    pin->writes = message->files;
    // If an UPDATE is decided already, the pin gets the version after this UPDATE.
    if (job->pass.updating)
        pin->waits = true;
    else
        pin_stands(pin);
}

static const struct shard_message messages[] = { { CAIRN_MSG_PIN, .on_job = on_pin },
                                                 { CAIRN_MSG_PIN_PREPARE, .ask_job = on_prepare },
                                                 { CAIRN_MSG_PIN_FOLDER, .on_job = on_folder },
                                                 { 0 } };
const struct shard_module pin_module = {
    .messages = messages,
    .on = { [SHARD_JOB_CANCELS] = pin_cancel,
            [SHARD_JOB_FREED] = release_pins,
            [SHARD_SESSION_ENDED] = on_session_ended },
};

/* ==== pin write ==== */

#define PIECE_ELEMS ((uint64_t)1 << 20) /* how many elements are read at a time for a digest */
#define HASH_LEAVES ((uint64_t)256)     /* how many leaves one work hashes */

/* A plane of an extent, read from its beginning to its end. */
struct plane_at {
    size_t extent; /* the extent's number in the map */
    enum plane plane;
    uint64_t elem; /* the next element to read, counted in the extent */
    struct hash_tree tree;
    /* how many elements of the next leaf are in `carry`, because that leaf is not complete */
    uint64_t carry_elems;
};

/* A plane of which a later file has more. This happens if an extent is cut into several boxes, and
 * each file has one of the boxes. */
struct plane_later {
    struct plane_later *next;
    struct plane_at at;
    uint8_t carry[]; /* [at.carry_elems] elements */
};

struct writing {
    struct pin *of;
    const struct shard_job *job;
    const struct shard_view *view;
    bool presses;
    struct plane_at at;
    struct plane_later *later; /* owned */
    uint8_t carry[CAIRN_LEAF_ELEMS * sizeof(double)];
};

static const struct local_extent *extent_of(const struct writing *w)
{
    return &w->view->table.map.extents[w->at.extent];
}

static size_t elem_bytes(const struct writing *w)
{
    return dtype_size((int)form_dtype(&w->view->forms[w->at.extent], w->at.plane));
}

/* Puts the current plane aside, if it was not read to its end, because a later file has more of
 * it. */
static cairn_status put_aside(struct writing *w, struct sentence *why)
{
    if (w->at.elem == 0 || w->at.elem == extent_of(w)->elem_count) return CAIRN_OK;
    const size_t bytes = (size_t)w->at.carry_elems * elem_bytes(w);
    struct plane_later *later = malloc(sizeof *later + bytes);
    if (later == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to write");
    *later = (struct plane_later) { .next = w->later, .at = w->at };
    memcpy(later->carry, w->carry, bytes);
    w->later = later;
    return CAIRN_OK;
}

static void take_up(struct writing *w, size_t extent, enum plane plane)
{
    struct plane_later **link = &w->later;
    while ((*link)->at.extent != extent || (*link)->at.plane != plane) link = &(*link)->next;
    struct plane_later *later = *link;
    *link = later->next;
    w->at = later->at;
    memcpy(w->carry, later->carry, (size_t)w->at.carry_elems * elem_bytes(w));
    free(later);
}

static void begin_plane(struct writing *w, size_t extent, enum plane plane)
{
    w->at = (struct plane_at) { .extent = extent, .plane = plane };
    tree_init(&w->at.tree, extent_of(w)->first_leaf);
}

/* ---- hashing ---- */

/* Returns the element at which a leaf begins, counted in the extent. For the leaf after the last
 * leaf, this is the end of the extent. */
static uint64_t leaf_elem(const struct writing *w, uint64_t leaf)
{
    const struct local_extent *extent = extent_of(w);
    if (leaf >= extent->first_leaf + extent->leaf_count) return extent->elem_count;
    return leaf_start(&w->view->layout->geometry[extent->tensor], leaf) - extent->first_elem;
}

/* Hashes the next `leaves` leaves, which lie at `bytes`. */
static cairn_status hash_leaves(struct writing *w, const uint8_t *bytes, uint64_t leaves,
                                struct sentence *why)
{
    CAIRN_TRY(audit_judge(w->job, &w->of->checks, w->at.extent, w->at.plane, w->at.tree.next_leaf,
                          leaves, bytes, elem_bytes(w), why));
    return report_leaves(compute_snapshots(&w->job->shard->host), bytes,
                         form_dtype(&w->view->forms[w->at.extent], w->at.plane),
                         &w->view->layout->geometry[extent_of(w)->tensor], leaves, &w->at.tree,
                         why);
}

/* Returns how many leaves, from the next leaf on, end at or before element `to`; at most
 * HASH_LEAVES. */
static uint64_t whole_leaves(const struct writing *w, uint64_t to)
{
    const struct local_extent *extent = extent_of(w);
    const uint64_t end = to == extent->elem_count
                             ? extent->first_leaf + extent->leaf_count
                             : leaf_of_elem(&w->view->layout->geometry[extent->tensor],
                                            extent->first_elem + to);
    const uint64_t leaves = end - w->at.tree.next_leaf;
    return leaves < HASH_LEAVES ? leaves : HASH_LEAVES;
}

/* Hashes some of the elements from w->at.elem on. If their leaf is not complete, puts the elements
 * into w->carry for a later call. Returns how many elements were hashed or carried. */
static uint64_t hash_some(struct writing *w, const uint8_t *bytes, uint64_t elems,
                          cairn_status *status, struct sentence *why)
{
    const uint64_t from = w->at.elem, end = leaf_elem(w, w->at.tree.next_leaf + 1);
    if (w->at.carry_elems == 0 && end <= from + elems) {
        const uint64_t leaves = whole_leaves(w, from + elems);
        *status = hash_leaves(w, bytes, leaves, why);
        return leaf_elem(w, w->at.tree.next_leaf) - from;
    }
    const size_t size = elem_bytes(w);
    const uint64_t some = end - from < elems ? end - from : elems;
    memcpy(w->carry + w->at.carry_elems * size, bytes, (size_t)some * size);
    w->at.carry_elems += some;
    if (from + some < end) return some;
    w->at.carry_elems = 0;
    *status = hash_leaves(w, w->carry, 1, why);
    return some;
}

static cairn_status hash_part(struct writing *w, const uint8_t *bytes, uint64_t elems,
                              struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    while (elems > 0 && status == CAIRN_OK) {
        const uint64_t some = hash_some(w, bytes, elems, &status, why);
        bytes += some * elem_bytes(w);
        w->at.elem += some;
        elems -= some;
    }
    if (status != CAIRN_OK || w->at.elem < extent_of(w)->elem_count) return status;
    return report_add_tree(w->of->report, extent_of(w)->tensor, w->at.plane, &w->at.tree, why);
}

/* ---- reading ---- */

/* Makes this thread stop giving way to other threads while the deadline presses. */
static void press_pace(struct writing *w)
{
    const bool presses = pace_presses(&w->of->pace, uv_hrtime() / 1000);
    if (presses != w->presses) (presses ? thread_press : thread_yield)();
    w->presses = presses;
}

/* Waits until `bytes` more bytes may be written. */
static cairn_status rest_after(struct writing *w, uint64_t bytes, struct sentence *why)
{
    struct staging *staging = &w->of->staging;
    cairn_status status;
    while ((status = staging_check(staging, why)) == CAIRN_OK) {
        if (atomic_load(&staging->waiting) > 0) atomic_store(&w->of->pace.hurry, true);
        press_pace(w);
        const uint64_t us = pace_rest_us(&w->of->pace, bytes, uv_hrtime() / 1000);
        if (us == 0) return CAIRN_OK;
        usleep((useconds_t)us);
    }
    return status;
}

/* Returns the chunk that has this element of the current extent. */
static uint64_t chunk_at(const struct writing *w, uint64_t elem)
{
    const struct local_extent *extent = extent_of(w);
    const uint64_t leaf = leaf_of_elem(&w->view->layout->geometry[extent->tensor],
                                       extent->first_elem + elem);
    return extent->first_chunk + (leaf - extent->first_leaf) / w->view->table.map.chunk_leaves;
}

/* Reads the next elements of the plane into `to`, and hashes them. */
static cairn_status read_plane(struct writing *w, uint64_t elems, uint8_t *to, struct sentence *why)
{
    const struct local_extent *extent = extent_of(w);
    cairn_status status = rest_after(w, elems * elem_bytes(w), why);
    for (uint64_t done = 0; done < elems && status == CAIRN_OK;) {
        const uint64_t elem = w->at.elem + done, chunk = chunk_at(w, elem);
        const struct chunk_place place = shard_map_chunk(&w->view->table.map, chunk);
        const uint64_t first = extent->first_elem + elem - place.first_elem;
        const uint64_t left = place.elem_count - first,
                       some = left < elems - done ? left : elems - done;
        assert(first < place.elem_count);
        struct compute *home = shard_job_home(w->job, place.local_elem);
        status = staging_read(&w->of->staging, compute_snapshots(home), chunk, w->at.plane, first,
                              some, some == left, to + done * elem_bytes(w), why);
        done += some;
    }
    return status == CAIRN_OK ? hash_part(w, to, elems, why) : status;
}

/* Reads the elements from first_elem on, up to the end of their extent, but at most elem_count.
 * *done_out is how many were read. */
static cairn_status give_of_extent(struct writing *w, const struct safetensors_entry *entry,
                                   uint64_t first_elem, uint64_t elem_count, uint8_t *to,
                                   uint64_t *done_out, struct sentence *why)
{
    const struct shard_map *map = &w->view->table.map;
    const struct local_extent *extent = shard_map_find(
        map, entry->tensor, leaf_of_elem(&w->view->layout->geometry[entry->tensor], first_elem));
    assert(extent != NULL);
    const size_t number = (size_t)(extent - map->extents);
    const enum plane plane = (enum plane)entry->plane;
    const bool begins = first_elem == extent->first_elem;
    const uint64_t left = extent->first_elem + extent->elem_count - first_elem;
    if (begins || number != w->at.extent || plane != w->at.plane) {
        CAIRN_TRY(put_aside(w, why));
        if (begins)
            begin_plane(w, number, plane);
        else
            take_up(w, number, plane);
    }
    assert(extent == extent_of(w) && first_elem == extent->first_elem + w->at.elem);
    *done_out = elem_count < left ? elem_count : left;
    return read_plane(w, *done_out, to, why);
}

/* A snapshot_fill_fn: reads elements for a box of a file. Such a box is a complete extent, or one
 * of several boxes into which an extent is cut, or several extents that follow each other. */
static cairn_status give_bytes(void *context, const struct safetensors_entry *entry,
                               uint64_t first_elem, uint64_t elem_count, void *to,
                               struct sentence *why)
{
    struct writing *w = context;
    uint8_t *at = to;
    cairn_status status = CAIRN_OK;
    for (uint64_t some = 0; elem_count > 0 && status == CAIRN_OK; elem_count -= some) {
        status = give_of_extent(w, entry, first_elem, elem_count, at, &some, why);
        first_elem += some;
        at += some * elem_bytes(w);
    }
    return status;
}

/* ---- the files ---- */

static void remove_files(const struct pin *of)
{
    const char *file;
    for (size_t i = 0; (file = report_file_at(of->report, i)) != NULL; i++) {
        uint64_t bytes;
        (void)storage_of(of->path)->remove(of->path, file, false, &bytes, NULL);
    }
}

static cairn_status write_file(struct writing *w, struct snapshot_writer *writer,
                               const struct snapshot_file *file, struct sentence *why)
{
    const struct snapshot_input source = { .fill = give_bytes, .context = w };
    uint8_t *sums = malloc((size_t)snapshot_block_count(file->file_bytes) *
                           CAIRN_SNAPSHOT_SUM_BYTES);
    if (sums == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to write");
    const cairn_status status = snapshot_writer_put(writer, w->of->path, file, &source, sums, why);
    if (status == CAIRN_OK)
        return report_add_file(w->of->report, file->path, file->file_bytes, sums, why);
    free(sums);
    return status;
}

static cairn_status write_planned(struct writing *w, const struct snapshot_plan *plan,
                                  struct sentence *why)
{
    struct snapshot_writer *writer;
    cairn_status status = snapshot_writer_open(0, &writer, why);
    if (status != CAIRN_OK) return status;
    for (size_t i = 0; i < plan->file_count && status == CAIRN_OK; i++)
        status = write_file(w, writer, &plan->files[i], why);
    if (status == CAIRN_OK && snapshot_writer_buffered(writer))
        log_info("the storage of %s refuses direct writes: they go through the page cache",
                 w->of->path);
    snapshot_writer_close(writer);
    if (status != CAIRN_OK) remove_files(w->of);
    return status;
}

static cairn_status write_files(struct writing *w, struct sentence *why)
{
    const struct shard_map *map = &w->view->table.map;
    struct snapshot_range *ranges = calloc(map->extent_count + 1, sizeof *ranges);
    struct snapshot_plan plan = { 0 };
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    for (size_t i = 0; ranges != NULL && i < map->extent_count; i++) {
        const struct local_extent *extent = &map->extents[i];
        ranges[i] = (struct snapshot_range) { .tensor = extent->tensor,
                                              .first_elem = extent->first_elem,
                                              .elem_count = extent->elem_count };
    }
    if (ranges != NULL)
        status = snapshot_plan_make(&w->job->spec, map->shard, ranges, map->extent_count, &plan);
    free(ranges);
    if (status != CAIRN_OK) return fail_with(why, status, "out of memory to plan the files");
    status = write_planned(w, &plan, why);
    snapshot_plan_release(&plan);
    return status;
}

/* ---- digests alone ---- */

static cairn_status digest_plane(struct writing *w, size_t extent, enum plane plane,
                                 uint8_t *buffer, struct sentence *why)
{
    const uint64_t elems = w->view->table.map.extents[extent].elem_count;
    cairn_status status = CAIRN_OK;
    begin_plane(w, extent, plane);
    while (w->at.elem < elems && status == CAIRN_OK) {
        const uint64_t left = elems - w->at.elem;
        status = read_plane(w, left < PIECE_ELEMS ? left : PIECE_ELEMS, buffer, why);
    }
    return status;
}

static cairn_status digest_all(struct writing *w, struct sentence *why)
{
    const struct shard_map *map = &w->view->table.map;
    uint8_t *buffer = malloc(PIECE_ELEMS * sizeof(float));
    cairn_status status = CAIRN_OK;
    if (buffer == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read the state");
    for (size_t i = 0; i < map->extent_count; i++)
        for (enum plane p = 0; p < CAIRN_PLANES && status == CAIRN_OK; p++)
            if (form_stores(&w->view->forms[i], (int)p))
                status = digest_plane(w, i, p, buffer, why);
    free(buffer);
    return status;
}

/* Makes the digests of the version and, if the pin writes files, the files. If the status is not
 * CAIRN_OK, no files are left. The statuses are CAIRN_ERR_CANCELED and those of snapshot_writer_put
 * and staging_read. */
static cairn_status write_pin(struct pin *pin, struct sentence *why)
{
    struct writing *w = calloc(1, sizeof *w);
    if (w == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to read the state");
    w->of = pin;
    w->job = pin->staging.job;
    w->view = pin->staging.view;
    if (!pace_is_free(&pin->pace, uv_hrtime() / 1000))
        staging_save_ahead(&pin->staging, &pin->pace);
    const cairn_status status = pin->writes ? write_files(w, why) : digest_all(w, why);
    for (struct plane_later *later; (later = w->later) != NULL; free(later)) w->later = later->next;
    if (w->presses) thread_yield();
    free(w);
    return status;
}
