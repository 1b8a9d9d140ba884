#include "server/shard/job/park.h"

#include <string.h>

#include "server/shard/job/open.h"
#include "server/shard/memory/area.h"
#include "server/shard/read/bring.h"
#include "server/shard/read/fetch.h"
#include "server/shard/shard.h"

#define PIECE_BYTES ((uint64_t)4 << 20) /* of a plane, an item */

static void forget_places(struct cairn_shard_job *job)
{
    for (struct cairn_area *area = job->planes.areas; area != NULL; area = area->next)
        cairn_release(job->shard, &area->to);
}

/* Resumes the work that waited for the job to be parked, or taken back to the device. */
static void go_on(struct cairn_shard_job *job)
{
    job->park.is_under_way = false;
    if (job->state != CAIRN_JOB_SERVING) return;
    cairn_published_trim(job); // of leases that ended
    cairn_fetch_deferred(job);
}

static void end(struct cairn_shard_job *job, cairn_status status, const struct cairn_sentence *why)
{
    go_on(job);
    if (status != CAIRN_OK)
        cairn_log_warn("job %s is not %s: %s", job->spec.name,
                       job->park.to_host ? "parked" : "taken back to the device", why->text);
    cairn_session_answer(job->shard, &job->park.asked, status, why);
}

/* It stays where it was. */
static void give_up(struct cairn_shard_job *job, cairn_status status,
                    const struct cairn_sentence *why)
{
    forget_places(job);
    if (job->park.to_host) {
        cairn_shard_job_give(job, &job->memory.state, job->park.host_bytes);
        job->park.host_bytes = 0;
    } else {
        cairn_published_park(job);
    }
    end(job, status, why);
}

/* ---- the copies ---- */

static struct cairn_shard_job *job_of(const struct cairn_run *run)
{
    return (struct cairn_shard_job *)((char *)(uintptr_t)run -
                                      offsetof(struct cairn_shard_job, park.copy));
}

static uint32_t piece_count(uint64_t bytes)
{
    return (uint32_t)((bytes + PIECE_BYTES - 1) / PIECE_BYTES);
}

/* The n-th array that moves: areas of planes, then published copies. False: there are no more. *area_out:
 * NULL, of a copy. */
static bool move_of(const struct cairn_shard_job *job, uint32_t n, struct cairn_published_move *out,
                    const struct cairn_area **area_out)
{
    const struct cairn_area *area = job->planes.areas;
    while (area != NULL && n > 0) {
        area = area->next;
        n--;
    }
    *area_out = area;
    if (area == NULL) return cairn_published_move(job, job->park.to_host, n, out);
    *out = (struct cairn_published_move) { area->to.base, area->arena.base, area->to.bytes };
    return true;
}

static uint32_t all_pieces(const struct cairn_shard_job *job)
{
    struct cairn_published_move move;
    const struct cairn_area *area;
    uint32_t pieces = 0;
    for (uint32_t n = 0; move_of(job, n, &move, &area); n++) pieces += piece_count(move.bytes);
    return pieces;
}

static bool describe(struct cairn_run *run, uint32_t item, uint32_t stage,
                     struct cairn_works *works)
{
    const struct cairn_shard_job *job = job_of(run);
    struct cairn_published_move move;
    const struct cairn_area *area;
    (void)stage;
    for (uint32_t n = 0; move_of(job, n, &move, &area); n++) {
        const uint32_t pieces = piece_count(move.bytes);
        if (item >= pieces) {
            item -= pieces;
            continue;
        }
        const uint64_t at = item * PIECE_BYTES, left = move.bytes - at;
        if (area != NULL && cairn_area_is_gone(area, at)) return false;
        cairn_works_copy(works, (uint8_t *)move.to + at, (const uint8_t *)move.from + at,
                         (size_t)(left < PIECE_BYTES ? left : PIECE_BYTES));
        return false;
    }
    return false;
}

/* Ends a move: the planes lie where they were copied to. The memory in which they lay is given
 * back, and only then is the request answered. */
static void settle(struct cairn_shard_job *job)
{
    struct cairn_shard *shard = job->shard;
    const uint64_t host_bytes = job->park.to_host ? 0 : job->park.host_bytes;
    for (struct cairn_area *area = job->planes.areas; area != NULL; area = area->next) {
        cairn_release(shard, &area->arena);
        area->arena = area->to;
        area->to = CAIRN_ARENA_NONE;
    }
    if (!job->park.to_host) cairn_areas_give_gone(&job->planes);
    job->planes.parked = job->park.is_parked = job->park.to_host;
    job->compute = job->park.to_host ? &shard->host : &shard->device;
    (job->park.to_host ? cairn_published_park : cairn_published_unpark)(job);
    cairn_pass_divide(job);
    job->memory.device = job->park.to_host ? 0 : cairn_shard_job_device_bytes(job, false);
    job->memory.state -= host_bytes;
    job->park.host_bytes -= host_bytes;
    go_on(job);
    cairn_log_info("job %s is %s", job->spec.name,
                   job->park.to_host ? "parked: its state lies in host memory"
                                     : "back on its device");
    cairn_release_bytes(shard, host_bytes, &job->park.asked);
}

static void copied(struct cairn_run *run)
{
    struct cairn_shard_job *job = job_of(run);
    struct cairn_sentence why = { "the job is being dropped" };
    if (run->status != CAIRN_OK) {
        // Nothing was written where it lay: it is suspect only if that is a device that failed. On its way
        // back nothing of it was there: all is in host memory still.
        if (job->park.to_host && cairn_home_has_failed(run->compute->home))
            (void)cairn_shard_job_run_failed(job, run);
        cairn_compute_why(run->compute, &why);
        give_up(job, run->status, &why);
    } else if (job->state != CAIRN_JOB_SERVING) {
        give_up(job, CAIRN_ERR_CANCELED, &why);
    } else {
        settle(job);
    }
    cairn_shard_job_idle(job);
}

static void copy(struct cairn_shard_job *job)
{
    job->park.copy = (struct cairn_run) { .compute = &job->shard->device,
                                          .item_count = all_pieces(job),
                                          .describe = describe,
                                          .done = copied };
    cairn_shard_job_busy(job);
    cairn_compute_submit(&job->park.copy);
}

/* ---- to the host ---- */

static cairn_status add_room(struct cairn_reserve *reserve, struct cairn_shard_job *job)
{
    cairn_status status = CAIRN_OK;
    for (const struct cairn_area *area = job->planes.areas; area != NULL; area = area->next)
        for (uint64_t at = 0; at < area->to.bytes && status == CAIRN_OK;
             at += CAIRN_SEGMENT_BYTES) {
            if (!cairn_area_is_gone(area, at))
                status = cairn_reserve_add(
                    reserve, &area->to, at,
                    cairn_segment_bytes(area->to.bytes, at / CAIRN_SEGMENT_BYTES));
        }
    return status;
}

static void on_room(const struct cairn_reserve_request *request, cairn_status status,
                    const struct cairn_sentence *why)
{
    if (status == CAIRN_OK)
        copy(request->job);
    else
        give_up(request->job, status, why);
}

static void park(struct cairn_shard_job *job)
{
    const struct cairn_reserve_request request = {
        .job = job, .what = "the parked state", .prepare = add_room, .done = on_room
    };
    const uint64_t bytes = cairn_areas_bytes(&job->planes);
    char what[CAIRN_NAME_MAX + 32];
    struct cairn_sentence why;
    snprintf(what, sizeof what, "job %s, parked,", job->spec.name);
    cairn_status status = cairn_shard_job_take(job, &job->memory.state, bytes, what, &why);
    if (status != CAIRN_OK) {
        end(job, status, &why);
        return;
    }
    job->park.host_bytes = bytes;
    for (struct cairn_area *area = job->planes.areas; area != NULL && status == CAIRN_OK;
         area = area->next) {
        status = cairn_arena_open_scratch("parked", area->arena.bytes, &area->to, &why);
        cairn_arena_pins_for(&area->to, job->shard->device.home); // it copies it twice
    }
    if (status == CAIRN_OK) status = cairn_reserve_begin(&request, &why);
    if (status != CAIRN_OK) give_up(job, status, &why);
}

/* ---- and back ---- */

static void unpark(struct cairn_shard_job *job)
{
    struct cairn_sentence why;
    cairn_status status = cairn_shard_job_judge_device(job, cairn_shard_job_device_bytes(job, true),
                                                       0, &why);
    for (struct cairn_area *area = job->planes.areas; area != NULL && status == CAIRN_OK;
         area = area->next)
        status = cairn_arena_open_home(job->shard->device.home, "unparked", area->arena.bytes,
                                       &area->to, &why);
    if (status == CAIRN_OK) status = cairn_published_open_device(job, &why);
    if (status == CAIRN_OK)
        copy(job);
    else
        give_up(job, status, &why);
}

/* ---- asked ---- */

/* Nothing works on the planes, and nothing will before it is told. */
static bool rests(const struct cairn_shard_job *job)
{
    // A snapshot reads planes where they lie: those of the device are about to move.
    const bool saves = job->planes.host_from != 0 && job->pins.list != NULL;
    return cairn_step_phase_of(job->collector.step) == CAIRN_STEP_IDLE &&
           cairn_step_slots_used(job->collector.step) == 0 && !job->pass.updating &&
           job->pass.parts_left == 0 && !cairn_bring_works(job) && !saves &&
           job->puts.write == NULL && job->move.next == NULL && job->move.now == NULL;
}

/* The coordinator that asked first went away meanwhile: this one is answered at the end. */
static void take_over(struct cairn_shard_job *job, struct cairn_request asked)
{
    struct cairn_sentence why;
    cairn_sentence_set(&why, "it was asked for again");
    cairn_session_answer(job->shard, &job->park.asked, CAIRN_ERR_CANCELED, &why);
    job->park.asked = asked;
}

void cairn_park_on_message(struct cairn_shard_job *job, uint32_t request,
                           const Cairn__PartPark *message)
{
    struct cairn_request asked = cairn_session_request(job->shard, request);
    struct cairn_sentence why;
    cairn_status status = CAIRN_OK;
    if (job->park.is_under_way && job->park.to_host == message->parked) {
        take_over(job, asked);
        return;
    }
    cairn_pins_unprepare(job);
    if (job->state != CAIRN_JOB_SERVING)
        status = cairn_fail(&why, CAIRN_ERR_NOT_READY, "the job has no version yet");
    else if (job->park.is_under_way)
        status = cairn_fail(&why, CAIRN_ERR_BUSY, "it moves the other way; ask again");
    else if (!rests(job) || job->versions.direct_sends > 0)
        status = cairn_fail(&why, CAIRN_ERR_BUSY, "it is at work on the job; ask again");
    if (status != CAIRN_OK) cairn_pins_hurry(job);
    const bool is_so = job->planes.host_from == 0 || message->parked == job->planes.parked;
    if (status == CAIRN_OK && is_so) job->park.is_parked = message->parked;
    if (status != CAIRN_OK || is_so) {
        cairn_session_answer(job->shard, &asked, status, &why);
        return;
    }
    job->park.is_under_way = true;
    job->park.to_host = message->parked;
    job->park.asked = asked;
    (message->parked ? park : unpark)(job);
}
