/* Snapshots and digests: a version is pinned, and then hashed and written while training goes on.
 *
 *   PinPrepare ─► staging is made, and its pages ─► Done: so that no update has to make them
 *   Pin ─► waits for the UPDATE at hand ─► the version stands (staging.h): updates save what they overwrite
 *       ─► waits for PinFolder, unless it is a digest ─► read, hash, write (pin_write.h) ─► SnapshotPart
 *
 * What is saved is staging, counted by the budget: where there is no room, the pin fails and training goes
 * on. A failed pin leaves no files. */
#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/shard.h"
#include "server/shard/state/pin.h"
#include "server/shard/state/pin_write.h"
#include "server/shard/state/report.h"

struct cairn_pin {
    struct cairn_task task;      /* on the snapshots thread */
    struct cairn_shard_job *job; /* borrowed */
    struct cairn_pin *next;
    uint64_t snapshot;
    bool is_prepared;           /* its staging is there, or is being made, and no Pin came yet */
    struct cairn_request asked; /* the PinPrepare, until it is answered */
    bool waits;                 /* for the UPDATE at hand */
    bool writes;                /* files: where, PinFolder says */
    bool stands;                /* the version does, and the task was not submitted yet */
    uint32_t tasks; /* under way: one that makes the pages of the staging, and that one */
    bool ended;     /* it was told: staging is freed when the UPDATE at hand is published */
    atomic_bool canceled;
    struct cairn_version version;

    /* owned */
    char *path; /* NULL: a digest, or not told yet */
    struct cairn_staging staging;
    uint64_t staging_budget;
    struct cairn_pace pace;

    /* the result */
    struct cairn_report *report; /* owned, until it is sent */
    cairn_status status;
    struct cairn_sentence why;
};

/* ---- the end ---- */

static void pin_free(struct cairn_pin *pin)
{
    struct cairn_pin **link = &pin->job->pins.list;
    while (*link != pin) link = &(*link)->next;
    *link = pin->next;
    cairn_staging_close(&pin->staging);
    cairn_shard_job_give(pin->job, &pin->job->memory.staging, pin->staging_budget);
    free(pin->path);
    cairn_report_free(pin->report);
    free(pin);
}

void cairn_pin_release(struct cairn_shard_job *job)
{
    job->pins.saving_count = 0;
    while (job->pins.list != NULL) pin_free(job->pins.list);
}

static bool is_saved_into(const struct cairn_pin *pin)
{
    const struct cairn_pins *pins = &pin->job->pins;
    uint32_t i = 0;
    while (i < pins->saving_count && pins->saving[i] != &pin->staging) i++;
    return i < pins->saving_count;
}

/* Nobody uses it any more. */
static void free_if_ended(struct cairn_pin *pin)
{
    if (pin->ended && pin->tasks == 0 && !is_saved_into(pin)) pin_free(pin);
}

static void say_waited(const struct cairn_pin *pin)
{
    const uint64_t ms = atomic_load(&pin->staging.waited_us) / 1000;
    if (pin->staging.job == NULL || ms == 0) return;
    cairn_log_warn(
        "job %s: updates waited %llu ms, of all threads together, for the small staging of the "
        "snapshot at step %llu: snapshot_staging = state has room for all of it",
        pin->job->spec.name, (unsigned long long)ms, (unsigned long long)pin->version.step);
}

/* Tells, and is freed: its staging, too, before all of it is told. */
static void report(struct cairn_pin *pin)
{
    struct cairn_report *told = pin->report;
    pin->report = NULL;
    if (pin->status == CAIRN_ERR_IO) cairn_storage_watch_doubt(&pin->job->shard->storage);
    if (pin->status != CAIRN_OK)
        cairn_log_error("snapshot of job %s at step %llu failed here: %s", pin->job->spec.name,
                        (unsigned long long)pin->version.step, pin->why.text);
    say_waited(pin);
    cairn_report_send(told, pin->version, pin->status, &pin->why);
    cairn_staging_cancel(&pin->staging);
    pin->ended = true;
    free_if_ended(pin);
}

/* ---- prepared ---- */

/* No Pin comes any more to one that has not begun. */
static void unprepare(struct cairn_pin *pin)
{
    pin->is_prepared = false;
    pin->ended = true;
    cairn_staging_cancel(&pin->staging);
    if (pin->tasks == 0) pin_free(pin);
}

void cairn_pins_unprepare(struct cairn_shard_job *job)
{
    struct cairn_pin *next;
    for (struct cairn_pin *pin = job->pins.list; pin != NULL; pin = next) {
        next = pin->next;
        if (pin->is_prepared) unprepare(pin);
    }
}

/* ---- on the snapshots thread ---- */

static void run_write(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    struct cairn_pin *pin = (struct cairn_pin *)task;
    const struct cairn_pin_write write = { .staging = &pin->staging,
                                           .pace = &pin->pace,
                                           .report = pin->report,
                                           .path = pin->writes ? pin->path : NULL };
    (void)item;
    (void)thread;
    pin->status = atomic_load(&pin->canceled)
                      ? cairn_fail(&pin->why, CAIRN_ERR_CANCELED, "it was given up")
                      : cairn_pin_write(&write, &pin->why);
}

/* Called at the end of each of a pin's two tasks: the one that ends last reports. */
static void task_done(struct cairn_pin *pin)
{
    struct cairn_shard_job *job = pin->job;
    if (--pin->tasks == 0 && pin->ended)
        pin_free(pin); // it was prepared in vain
    else if (pin->tasks == 0 && !pin->is_prepared && !pin->waits)
        report(pin);
    cairn_shard_job_idle(job);
}

static void write_done(struct cairn_task *task)
{
    struct cairn_pin *pin = (struct cairn_pin *)task;
    cairn_staging_cancel(&pin->staging); // all of it was read
    task_done(pin);
}

/* To the snapshots thread, when the folder is there, too, or nobody wants it any more. */
static void go_on(struct cairn_pin *pin)
{
    const bool told = !pin->writes || pin->path != NULL || atomic_load(&pin->canceled);
    if (!pin->stands || !told) return;
    pin->task = (struct cairn_task) { .run = run_write, .done = write_done, .item_count = 1 };
    cairn_pool_submit(pin->job->shard->snapshots, &pin->task);
    pin->stands = false; // once
}

static void give_up(struct cairn_pin *pin)
{
    atomic_store(&pin->canceled, true);
    cairn_staging_cancel(&pin->staging);
    go_on(pin);
}

void cairn_pin_folder(struct cairn_shard_job *job, const Cairn__PinFolder *message)
{
    struct cairn_pin *pin = job->pins.list;
    while (pin != NULL && (pin->snapshot != message->snapshot || pin->ended)) pin = pin->next;
    if (pin == NULL) return;
    const bool given_up = message->path[0] == '\0';
    if (pin->is_prepared) {
        if (given_up) unprepare(pin);
        return;
    }
    if (!given_up && pin->writes && pin->path == NULL) pin->path = strdup(message->path);
    if (given_up || (pin->writes && pin->path == NULL))
        give_up(pin);
    else
        go_on(pin);
}

void cairn_pin_session_ended(struct cairn_shard_job *job)
{
    cairn_pins_unprepare(job);
    for (struct cairn_pin *pin = job->pins.list; pin != NULL; pin = pin->next)
        if (pin->writes && pin->path == NULL && !pin->ended) give_up(pin);
}

void cairn_pin_cancel(struct cairn_shard_job *job)
{
    cairn_pins_unprepare(job);
    for (struct cairn_pin *pin = job->pins.list; pin != NULL; pin = pin->next)
        if (!pin->ended) give_up(pin);
}

bool cairn_pins_rest(const struct cairn_shard_job *job)
{
    const struct cairn_pin *pin = job->pins.list;
    while (pin != NULL && (pin->ended || cairn_staging_is_quiet(&pin->staging))) pin = pin->next;
    return pin == NULL;
}

void cairn_pins_hurry(const struct cairn_shard_job *job)
{
    for (struct cairn_pin *pin = job->pins.list; pin != NULL; pin = pin->next)
        atomic_store(&pin->pace.hurry, true);
}

static void list_pin(const struct cairn_pin *pin, struct cairn_pins_list *out)
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

void cairn_pins_list(const struct cairn_shard *shard, struct cairn_pins_list *out)
{
    out->count = 0;
    for (const struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next)
        for (const struct cairn_pin *pin = job->pins.list; pin != NULL; pin = pin->next)
            list_pin(pin, out);
}

/* ---- the version stands ---- */

static void on_touched(void *context)
{
    struct cairn_pin *pin = context;
    if (pin->asked.number != 0) cairn_session_answer(pin->job->shard, &pin->asked, CAIRN_OK, NULL);
    task_done(pin);
}

static void begin_touch(struct cairn_pin *pin)
{
    pin->tasks++;
    cairn_shard_job_busy(pin->job);
    cairn_staging_touch(&pin->staging, on_touched, pin);
}

static cairn_status take_staging(struct cairn_pin *pin)
{
    struct cairn_shard_job *job = pin->job;
    const uint64_t bytes = cairn_staging_bytes(job, job->spec.policy.snapshot_staging);
    cairn_status status = cairn_shard_job_take(job, &job->memory.staging, bytes,
                                               "the staging of a snapshot", &pin->why);
    if (status != CAIRN_OK) return status;
    pin->staging_budget = bytes;
    return cairn_staging_open(&pin->staging, job, bytes, &pin->why);
}

static void set_pace(struct cairn_pin *pin)
{
    const struct cairn_shard_job *job = pin->job;
    const uint64_t within_s = cairn_policy_durable_within_s(&job->spec.policy);
    cairn_pace_init(&pin->pace, cairn_planes_state_bytes(&job->planes), job->pins.step_us,
                    job->pins.last_us, uv_hrtime() / 1000 + within_s * 1000000);
}

/* No UPDATE is under way: the state is of one version. */
static void stand(struct cairn_pin *pin)
{
    struct cairn_shard_job *job = pin->job;
    pin->waits = false;
    pin->version = job->versions.copies[job->versions.newest].version;
    const bool is_ready = pin->staging.job != NULL;
    assert(!is_ready || pin->staging.view == job->view); // else cairn_pins_unprepare came before
    if (!is_ready) pin->status = take_staging(pin);
    if (pin->status == CAIRN_OK) pin->status = cairn_report_keep_payload(pin->report, &pin->why);
    if (pin->status != CAIRN_OK) {
        report(pin);
        return;
    }
    set_pace(pin);
    pin->tasks++; // the writer's, from here on
    cairn_shard_job_busy(job);
    if (!is_ready) begin_touch(pin);
    pin->stands = true;
    go_on(pin);
}

/* ---- updates ---- */

void cairn_pins_updating(struct cairn_shard_job *job)
{
    struct cairn_pins *pins = &job->pins;
    atomic_fetch_add(&pins->passes, 1);
    atomic_store(&pins->updating, true);
    pins->saving_count = 0;
    for (struct cairn_pin *pin = pins->list; pin != NULL; pin = pin->next)
        if (!pin->is_prepared && !pin->waits && !pin->ended)
            pins->saving[pins->saving_count++] = &pin->staging;
}

void cairn_pins_save(const struct cairn_shard_job *job, struct cairn_works *works, uint64_t chunk)
{
    for (uint32_t i = 0; i < job->pins.saving_count; i++)
        cairn_staging_save(job->pins.saving[i], works, chunk);
}

/* None is read, or will be: what is prepared holds no step up. */
static bool is_free(const struct cairn_pins *pins)
{
    const struct cairn_pin *pin = pins->list;
    while (pin != NULL && (pin->is_prepared || pin->ended)) pin = pin->next;
    return pin == NULL;
}

/* Notes how long a step takes: learns it while nothing is pinned, and else paces the pins by it. */
static void note_step(struct cairn_pins *pins)
{
    const uint64_t now = uv_hrtime() / 1000, took = pins->last_us == 0 ? 0 : now - pins->last_us;
    pins->last_us = now;
    if (took == 0) return;
    if (is_free(pins)) pins->step_us = pins->step_us == 0 ? took : (7 * pins->step_us + took) / 8;
    for (struct cairn_pin *pin = pins->list; pin != NULL; pin = pin->next)
        if (!pin->is_prepared && !pin->waits && !pin->ended) cairn_pace_step(&pin->pace, took, now);
}

void cairn_pin_updated(struct cairn_shard_job *job)
{
    struct cairn_pin *next;
    atomic_store(&job->pins.updating, false);
    note_step(&job->pins);
    job->pins.saving_count = 0;
    for (struct cairn_pin *pin = job->pins.list; pin != NULL; pin = next) {
        next = pin->next;
        if (pin->waits && job->state == CAIRN_JOB_SERVING)
            stand(pin);
        else
            free_if_ended(pin);
    }
}

/* ---- asked for ---- */

static void refuse(struct cairn_shard_job *job, const Cairn__Pin *message, cairn_status status,
                   const char *text)
{
    Cairn__SnapshotPart part = CAIRN__SNAPSHOT_PART__INIT;
    part.job = job->number;
    part.snapshot = message->snapshot;
    part.status = (int32_t)status;
    part.text = (char *)text;
    cairn_session_send(job->shard, CAIRN_MSG_SNAPSHOT_PART, 0, &part.base);
}

/* CAIRN_OK: one more may be pinned. */
static cairn_status judge(const struct cairn_shard_job *job, struct cairn_sentence *why)
{
    size_t count = 0;
    for (struct cairn_pin *other = job->pins.list; other != NULL; other = other->next) count++;
    if (job->state != CAIRN_JOB_SERVING)
        return cairn_fail(why, CAIRN_ERR_NOT_READY, "the job has no version yet");
    if (job->park.is_under_way)
        return cairn_fail(why, CAIRN_ERR_BUSY, "its state is being parked, or comes back");
    if (count >= CAIRN_SHARD_PINS_MAX)
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "as many snapshots are being written as a shard takes");
    return CAIRN_OK;
}

static struct cairn_pin *pin_new(struct cairn_shard_job *job, uint64_t snapshot,
                                 struct cairn_sentence *why)
{
    struct cairn_pin *pin = calloc(1, sizeof *pin);
    struct cairn_report *told = cairn_report_new(job, snapshot);
    if (pin == NULL || told == NULL) {
        free(pin);
        cairn_report_free(told);
        (void)cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for a snapshot");
        return NULL;
    }
    pin->job = job;
    pin->snapshot = snapshot;
    pin->report = told;
    pin->next = job->pins.list;
    job->pins.list = pin;
    return pin;
}

void cairn_pin_prepare(struct cairn_shard_job *job, uint32_t request,
                       const Cairn__PinPrepare *message)
{
    struct cairn_request asked = cairn_session_request(job->shard, request);
    struct cairn_sentence why;
    cairn_status status = judge(job, &why);
    struct cairn_pin *pin = status == CAIRN_OK ? pin_new(job, message->snapshot, &why) : NULL;
    if (status == CAIRN_OK && pin == NULL) status = CAIRN_ERR_NO_MEMORY;
    if (pin != NULL) {
        status = take_staging(pin);
        why = pin->why;
    }
    if (status != CAIRN_OK) {
        if (pin != NULL) pin_free(pin);
        cairn_session_answer(job->shard, &asked, status, &why);
        return;
    }
    pin->is_prepared = true;
    pin->asked = asked;
    begin_touch(pin);
}

static struct cairn_pin *prepared_of(const struct cairn_shard_job *job, uint64_t snapshot)
{
    struct cairn_pin *pin = job->pins.list;
    while (pin != NULL && !(pin->is_prepared && pin->snapshot == snapshot)) pin = pin->next;
    return pin;
}

void cairn_pin_begin(struct cairn_shard_job *job, const Cairn__Pin *message)
{
    struct cairn_sentence why;
    struct cairn_pin *pin = prepared_of(job, message->snapshot);
    cairn_status status = pin == NULL ? judge(job, &why) : CAIRN_OK;
    if (status == CAIRN_OK)
        cairn_reports_drop(job); // a coordinator that asks for another one waits for these no more
    if (status == CAIRN_OK && pin == NULL) {
        pin = pin_new(job, message->snapshot, &why);
        if (pin == NULL) status = CAIRN_ERR_NO_MEMORY;
    }
    if (status != CAIRN_OK) {
        refuse(job, message, status, why.text);
        return;
    }
    pin->is_prepared = false;
    pin->writes = message->files;
    // Decided already: the version is the one after it.
    if (job->pass.updating)
        pin->waits = true;
    else
        stand(pin);
}
