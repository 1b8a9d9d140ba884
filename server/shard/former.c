/* Former versions: what an update overwrites is saved first, so that the job can go back (part.h). */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/decision.h"
#include "server/shard/jobs.h"
#include "server/shard/part.h"
#include "server/shard/shard.h"

/* After so many updates without a change of the layout, room is made anew: a re-sharding comes in slices, and
 * the memory is better used by what moves. */
#define UPDATES_BEFORE 8
/* After so many more it is tried again, if there was no memory. */
#define UPDATES_AGAIN 1000

/* ---- the room ---- */

static uint32_t versions_max(const struct shard_job *job)
{
    return (uint32_t)job->spec.policy.keep_versions;
}

static uint64_t slot_bytes_of(const struct shard_job *job)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < job->view->table.map.extent_count; i++)
        bytes += former_extent_bytes(&job->spec, &job->view->table.map.extents[i],
                                     &job->view->forms[i]);
    return bytes;
}

/* Fills in where each chunk begins in a slot. */
static void place_chunks(struct former *former, const struct shard_job *job)
{
    const struct shard_map *map = &job->view->table.map;
    uint64_t at = 0;
    for (uint64_t c = 0; c < map->chunk_count; c++) {
        const uint32_t extent = job->view->table.extent_of[c];
        const struct form *form = &job->view->forms[extent];
        const uint64_t elems = shard_map_chunk(map, c).elem_count;
        const bool is_saved = former_extent_bytes(&job->spec, &map->extents[extent], form) > 0;
        former->at[c] = at;
        for (int p = 0; is_saved && p < CAIRN_PLANE_COUNT; p++)
            if (form_stores(form, p))
                at += ALIGN_UP(form_bytes(form, (enum plane)p, elems), CAIRN_FORMER_LINE);
    }
    former->at[map->chunk_count] = at;
    assert(at <= former->slot_bytes);
}

cairn_status former_open(struct shard_job *job, struct sentence *why)
{
    struct former *former = &job->former;
    const struct shard_map *map = &job->view->table.map;
    const size_t chunks = (size_t)map->chunk_count;
    const uint32_t max = versions_max(job);
    former->room = CAIRN_ARENA_NONE;
    former->slots = calloc(max + 1, sizeof *former->slots);
    former->at = calloc(chunks + 1, sizeof *former->at);
    former->payload = malloc(shard_payload_max(job) + 1);
    bool have = former->slots != NULL && former->at != NULL && former->payload != NULL;
    for (uint32_t i = 0; have && i < max; i++) {
        former->slots[i].has = calloc(chunks + 1, sizeof *former->slots[i].has);
        former->slots[i].payload = malloc(shard_payload_max(job) + 1);
        have = former->slots[i].has != NULL && former->slots[i].payload != NULL;
    }
    if (!have) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for former versions");
    former->slot_bytes = ALIGN_UP(slot_bytes_of(job), CAIRN_FORMER_LINE);
    place_chunks(former, job);
    CAIRN_TRY(arena_open_scratch("former", max * former->slot_bytes, &former->room, why));
    former->of = job->view;
    return CAIRN_OK;
}

void former_close(struct former *former, uint32_t max)
{
    for (uint32_t i = 0; former->slots != NULL && i < max; i++) {
        free(former->slots[i].has);
        free(former->slots[i].payload);
    }
    free(former->slots);
    free(former->at);
    free(former->payload);
    *former = (struct former) { .of = NULL };
}

/* True if updates save what they overwrite. */
static bool is_open(const struct shard_job *job)
{
    return job->former.of != NULL && job->former.of == job->view && !job->former.is_making;
}

/* Gives the memory back, and with it all versions. */
static void drop_room(struct shard_job *job)
{
    const uint64_t bytes = job->memory.former;
    arena_release(job->shard, &job->former.room);
    former_close(&job->former, versions_max(job));
    job->memory.former = 0;
    if (bytes > 0) release_bytes(job->shard, bytes, NULL);
}

/* ---- made anew, after a change of the layout ---- */

static cairn_status add_room(struct reserve *reserve, struct shard_job *job)
{
    return reserve_add(reserve, &job->former.room, 0, job->former.room.bytes);
}

static void on_room(const struct reserve_request *request, cairn_status status,
                    const struct sentence *why)
{
    struct shard_job *job = request->job;
    struct former *former = &job->former;
    former->is_making = false;
    if (status != CAIRN_OK)
        log_limited(&former->said, CAIRN_LOG_WARN,
                    "job %s: no former version is kept here, though keep_versions is %u: %s",
                    job->spec.name, versions_max(job), why->text);
    if (status == CAIRN_OK && former->of == job->view) return;
    drop_room(job);
    job->former.updates = 0;
}

static cairn_status make_room(struct shard_job *job, struct sentence *why)
{
    const struct reserve_request request = {
        .job = job, .what = "former versions", .prepare = add_room, .done = on_room
    };
    const uint64_t bytes = former_bytes(&job->spec, &job->view->table.map, slot_bytes_of(job));
    CAIRN_TRY(shard_job_take(job, &job->memory.former, bytes, "keeping former versions", why));
    cairn_status status = former_open(job, why);
    if (status == CAIRN_OK) status = reserve_begin(&request, why);
    job->former.is_making = status == CAIRN_OK;
    if (status != CAIRN_OK) drop_room(job);
    return status;
}

/* Makes room if there is none for the layout in force, and the layout rests. */
static void want_room(struct shard_job *job)
{
    struct former *former = &job->former;
    const bool is_changing = job->move.next != NULL || job->move.now != NULL;
    struct sentence why;
    if (versions_max(job) == 0 || job->planes.host_from != 0 || former->is_making ||
        former->of == job->view || is_changing || ++former->updates < UPDATES_BEFORE)
        return;
    if (make_room(job, &why) == CAIRN_OK) return;
    log_limited(&former->said, CAIRN_LOG_WARN,
                "job %s: no former version is kept here, though keep_versions is %u: %s",
                job->spec.name, versions_max(job), why.text);
    former->updates = -UPDATES_AGAIN;
}

void former_switch(struct shard_job *job)
{
    struct former *former = &job->former;
    former->count = former->first = 0;
    former->updates = 0;
    if (former->of == NULL) return;
    if (former->is_making)
        former->of = NULL; // on_room drops it
    else
        drop_room(job);
}

/* ---- an update ---- */

static struct former_slot *slot_at(const struct shard_job *job, uint32_t i)
{
    return &job->former.slots[(job->former.first + i) % versions_max(job)];
}

void former_note(struct shard_job *job)
{
    const struct decision *last = step_last(job->collector.step);
    if (!is_open(job) || job->pass.updating) return;
    job->former.payload_bytes = last->payload_bytes;
    if (last->payload_bytes > 0) memcpy(job->former.payload, last->payload, last->payload_bytes);
    job->former.is_noted = true;
}

void former_begin(struct shard_job *job)
{
    struct former *former = &job->former;
    former->saving = NULL;
    atomic_store(&former->misses, false);
    if (!is_open(job)) return;
    if (!former->is_noted) { // a version without its scalars is none, nor is one before it then
        former->count = 0;
        return;
    }
    former->is_noted = false;
    if (former->count == versions_max(job)) {
        former->first = (former->first + 1) % versions_max(job);
        former->count--;
    }
    struct former_slot *slot = slot_at(job, former->count);
    memset(slot->has, 0, (size_t)job->view->table.map.chunk_count * sizeof *slot->has);
    slot->version = step_version(job->collector.step);
    slot->results = job->pass.results;
    slot->payload_bytes = former->payload_bytes;
    memcpy(slot->payload, former->payload, former->payload_bytes);
    former->saving = slot;
}

void former_save(struct shard_job *job, struct works *works, uint32_t chunk)
{
    struct former *former = &job->former;
    struct former_slot *slot = former->saving;
    if (slot == NULL) return;
    const struct shard_view *view = job->view;
    const uint32_t extent = view->table.extent_of[chunk];
    const struct chunk_place place = shard_map_chunk(&view->table.map, chunk);
    const uint64_t number = (uint64_t)(slot - former->slots);
    uint8_t *at = former->room.base + number * former->slot_bytes + former->at[chunk];
    if (former->at[chunk] == former->at[chunk + 1]) { // no slot has room for it
        atomic_store(&former->misses, true);
        return;
    }
    for (int p = 0; p < CAIRN_PLANE_COUNT; p++) {
        if (!form_stores(&view->forms[extent], p)) continue;
        const size_t bytes = (size_t)form_bytes(&view->forms[extent], (enum plane)p,
                                                place.elem_count);
        works_copy(works, at, planes_at(&job->planes, (enum plane)p, extent, place.local_elem),
                   bytes);
        at += ALIGN_UP(bytes, CAIRN_FORMER_LINE);
    }
    works_flush(works);
    if (works_now(works)->status != CAIRN_OK) atomic_store(&former->misses, true);
    slot->has[chunk] = true;
}

void former_end(struct shard_job *job)
{
    struct former *former = &job->former;
    if (former->saving != NULL) former->count++;
    former->saving = NULL;
    if (atomic_load(&former->misses)) former->count = 0;
    want_room(job);
}

/* ---- back ---- */

static void list_versions(const struct shard_job *job, struct sentence *out)
{
    const uint32_t count = is_open(job) ? job->former.count : 0;
    for (uint32_t i = 0; i < count; i++)
        sentence_add(out, "%s%" PRIu64 ":%" PRIu64, i > 0 ? ", " : "",
                     slot_at(job, i)->version.generation, slot_at(job, i)->version.step);
    if (count == 0) sentence_add(out, "none");
}

cairn_status former_find(const struct shard_job *job, struct cairn_version version,
                         uint32_t *index_out, struct sentence *why)
{
    for (uint32_t i = 0; is_open(job) && i < job->former.count; i++) {
        if (version_compare(slot_at(job, i)->version, version) != 0) continue;
        *index_out = i;
        return CAIRN_OK;
    }
    sentence_set(why, "shard %s has version %" PRIu64 ":%" PRIu64 " of job %s no more; it has ",
                 job->shard->name, version.generation, version.step, job->spec.name);
    list_versions(job, why);
    return CAIRN_ERR_VERSION_GONE;
}

cairn_status former_give_payload(const struct shard_job *job, uint32_t index,
                                 Cairn__JobCreate *create)
{
    const struct former_slot *slot = slot_at(job, index);
    Cairn__Decision *last = malloc(sizeof *last);
    uint8_t *payload = malloc(slot->payload_bytes + 1);
    if (last == NULL || payload == NULL) {
        free(last);
        free(payload);
        return CAIRN_ERR_NO_MEMORY;
    }
    memcpy(payload, slot->payload, slot->payload_bytes);
    cairn__decision__init(last);
    last->payload = (ProtobufCBinaryData) { slot->payload_bytes, payload };
    create->last = last;
    return CAIRN_OK;
}

struct results former_results(const struct shard_job *job, uint32_t index)
{
    return slot_at(job, index)->results;
}

const uint8_t *former_chunk(const struct shard_job *job, uint32_t index, uint64_t chunk)
{
    const struct former *former = &job->former;
    for (uint32_t i = index; i < former->count; i++) {
        const struct former_slot *slot = slot_at(job, i);
        if (slot->has[chunk])
            return former->room.base + (uint64_t)(slot - former->slots) * former->slot_bytes +
                   former->at[chunk];
    }
    return NULL;
}

/* True if both parts have the same chunks, by the same numbers. */
static bool has_same_chunks(const struct shard_map *a, const struct shard_map *b)
{
    bool same = a->chunk_count == b->chunk_count && a->extent_count == b->extent_count;
    for (size_t i = 0; same && i < a->extent_count; i++) {
        const struct local_extent *x = &a->extents[i], *y = &b->extents[i];
        same = x->tensor == y->tensor && x->first_leaf == y->first_leaf &&
               x->elem_count == y->elem_count && x->first_chunk == y->first_chunk &&
               x->chunk_count == y->chunk_count;
    }
    return same;
}

void former_hand_over(struct shard_job *from, struct shard_job *to)
{
    uint32_t index;
    struct sentence unsaid;
    to->former.updates = UPDATES_BEFORE; // else it gets room with its next update
    const bool goes = from != NULL && is_open(from) && to->former.of == NULL &&
                      !to->former.is_making && versions_max(from) == versions_max(to) &&
                      has_same_chunks(&from->view->table.map, &to->view->table.map) &&
                      former_find(from, to->load.back_to, &index, &unsaid) == CAIRN_OK;
    if (!goes) return;
    to->former = from->former;
    to->former.of = to->view;
    to->former.count = index;
    to->former.is_noted = false;
    to->memory.former = from->memory.former;
    from->former = (struct former) { .of = NULL };
    from->memory.former = 0;
}

static void add_told(const struct shard_job *job, struct cairn_version version,
                     struct former_told *out)
{
    Cairn__FormerTold *told = &out->told[out->count];
    out->pointers[out->count++] = told;
    cairn__former_told__init(told);
    told->job = job->number;
    told->generation = version.generation;
    told->step = version.step;
}

void former_list(const struct shard_daemon *shard, struct former_told *out)
{
    bool any = true;
    out->count = 0;
    for (uint32_t age = 0; any; age++) { // the newest of each job, then the next ones
        any = false;
        for (const struct shard_job *job = shard->jobs; job != NULL; job = job->next) {
            const bool is_told = !job->staged && job->state == CAIRN_JOB_SERVING && is_open(job);
            const uint32_t count = is_told ? job->former.count : 0;
            if (age >= count) continue;
            if (out->count == CAIRN_FORMER_TOLD_MAX) return;
            add_told(job, slot_at(job, count - 1 - age)->version, out);
            any = true;
        }
    }
}
