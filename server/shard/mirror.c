#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/shard/jobs.h"
#include "server/shard/move.h"
#include "server/shard/shard.h"

/* How many chunks are on their way at a time. More of them keep a faster network busy, and delay an update
 * for longer. */
enum { SLOTS = 12 };

/* A chunk that is asked for. */
struct slot {
    struct neighbour_fetch fetch;
    bool is_asked;
    enum plane plane; /* CAIRN_PLANE_SUM: the sums of `round` */
    uint32_t chunk;   /* of the map */
    uint64_t round;
    struct cairn_version version; /* of a chunk of state: when it was asked for */
};

/* The planes of a chunk, as bits 1u << plane. An update makes all of them anew out of all of them, so a chunk
 * is filled when all have come at one version. */
struct filling {
    uint8_t asked, here;
};

enum fill {
    FILLING,
    FILLED,   /* all chunks are here, and the published copy has yet to be made of them */
    COPYING,  /* it is being made */
    COMPLETE, /* the coordinator was told */
};

struct mirror {
    struct neighbours neighbours; /* first: the owner alone */
    struct neighbour owner;
    LIST_ENTRY(mirror) leaving;
    struct slot slots[SLOTS];
    /* the sums of this round are fetched; 0: of none */
    uint64_t epoch, round;
    /* as many trained chunks were asked for, and have arrived */
    uint32_t sums_next, sums_here;
    /* the round of the last MirrorSums, which begins when the chunks of the round before have ended */
    uint64_t wanted_epoch, wanted_round;
    enum fill fill;
    struct filling *chunks; /* owned: [chunk_count], by the map's number */
    /* all chunks below the first are filled; nothing was asked for of those from the second on */
    uint32_t chunks_here, chunks_asked;
};

static const struct neighbour_kind owner_kind;

static struct mirror *mirror_of(const struct neighbour_fetch *fetch)
{
    return (struct mirror *)fetch->neighbour->all;
}

static struct slot *slot_of(const struct neighbour_fetch *fetch)
{
    return (struct slot *)((char *)(uintptr_t)fetch - offsetof(struct slot, fetch));
}

static bool is_of_sums(const struct slot *slot)
{
    return slot->plane == CAIRN_PLANE_SUM;
}

static uint32_t count_asked(const struct mirror *mirror, bool sums)
{
    uint32_t count = 0;
    for (int i = 0; i < SLOTS; i++)
        count += mirror->slots[i].is_asked && is_of_sums(&mirror->slots[i]) == sums;
    return count;
}

/* ---- asking ---- */

static void ask(struct mirror *mirror, struct slot *slot)
{
    struct shard_job *job = mirror->neighbours.job;
    // from here on the chunk may arrive, in part or damaged too, where checksums are known
    if (!is_of_sums(slot)) audit_forget(job);
    slot->is_asked = true;
    slot->version = step_version(job->collector.step);
    slot->fetch.request.serial++;
    slot->fetch.request.damaged = 0;
    asker_ask(&mirror->owner.asker, &slot->fetch.request);
}

static struct slot *find_free(struct mirror *mirror)
{
    for (int i = 0; i < SLOTS; i++)
        if (!mirror->slots[i].is_asked) return &mirror->slots[i];
    return NULL;
}

static void ask_sums(struct mirror *mirror)
{
    const struct chunk_table *table = mirror->neighbours.job->pass.table;
    struct slot *slot;
    while (mirror->sums_next < table->trained_count && (slot = find_free(mirror)) != NULL) {
        slot->plane = CAIRN_PLANE_SUM;
        slot->chunk = table->trained[mirror->sums_next++];
        slot->round = mirror->round;
        ask(mirror, slot);
    }
}

/* Returns the planes of the chunk that are state. */
static uint8_t planes_of(const struct mirror *mirror, uint32_t chunk)
{
    const struct shard_view *view = mirror->neighbours.job->view;
    const struct form *form = &view->forms[view->table.extent_of[chunk]];
    unsigned planes = 0;
    for (int p = 0; p < CAIRN_PLANES; p++)
        if (form_stores(form, p)) planes |= 1u << p;
    return (uint8_t)planes;
}

static void note_filled(struct mirror *mirror)
{
    while (mirror->chunks_here < mirror->neighbours.job->view->table.map.chunk_count &&
           mirror->chunks[mirror->chunks_here].here == planes_of(mirror, mirror->chunks_here))
        mirror->chunks_here++;
    if (mirror->chunks_asked < mirror->chunks_here) mirror->chunks_asked = mirror->chunks_here;
}

/* Finds a plane of a chunk to ask for. Returns false if all were asked for. */
static bool next_state(struct mirror *mirror, struct slot *slot)
{
    const uint64_t count = mirror->neighbours.job->view->table.map.chunk_count;
    for (uint32_t c = mirror->chunks_here; c < count; c++) {
        struct filling *chunk = &mirror->chunks[c];
        const unsigned left = planes_of(mirror, c) & ~(unsigned)chunk->asked;
        if (left == 0) continue;
        const int plane = __builtin_ctz(left);
        chunk->asked = (uint8_t)(chunk->asked | 1u << plane);
        if (mirror->chunks_asked <= c) mirror->chunks_asked = c + 1;
        slot->plane = (enum plane)plane;
        slot->chunk = c;
        slot->round = 0;
        return true;
    }
    return false;
}

/* The chunk is not asked for any more, and did not come. */
static void put_off(struct mirror *mirror, struct slot *slot)
{
    slot->is_asked = false;
    if (is_of_sums(slot)) return;
    struct filling *chunk = &mirror->chunks[slot->chunk];
    chunk->asked = (uint8_t)(chunk->asked & ~(1u << slot->plane));
}

/* An update begins: what came of a chunk is of no use without the rest of it. */
static void forget_pieces(struct mirror *mirror)
{
    for (uint32_t c = mirror->chunks_here; c < mirror->chunks_asked; c++)
        if (mirror->chunks[c].here != planes_of(mirror, c))
            mirror->chunks[c] = (struct filling) { 0, 0 };
}

/* True if no update is near, so that the planes may change otherwise. */
static bool is_at_rest(const struct shard_job *job)
{
    const enum step_phase phase = step_phase_of(job->collector.step);
    return job->state == CAIRN_JOB_SERVING && !job->pass.updating &&
           (phase == CAIRN_STEP_IDLE || phase == CAIRN_STEP_COLLECTING);
}

static bool may_fill(const struct mirror *mirror)
{
    return mirror->fill == FILLING && mirror->round == 0 && is_at_rest(mirror->neighbours.job);
}

static void copies_made(struct shard_job *job)
{
    struct mirror *mirror = job->mirrors.now;
    if (mirror == NULL) return;
    Cairn__MirrorFilled filled = CAIRN__MIRROR_FILLED__INIT;
    filled.job = job->number;
    filled.member = mirror->neighbours.number;
    mirror->fill = COMPLETE;
    log_info("job %s: mirrors all that shard %s has", job->spec.name, mirror->owner.name);
    session_send(job->shard, CAIRN_MSG_MIRROR_FILLED, 0, &filled.base);
}

/* Makes the published copy of the planes, which have changed without an update. */
static void make_copies(struct mirror *mirror)
{
    struct shard_job *job = mirror->neighbours.job;
    struct sentence why;
    if (!is_at_rest(job)) return;
    mirror->fill = COPYING;
    if (pass_republish(job, copies_made, &why) != CAIRN_OK) {
        mirror->fill = FILLED; // a later tick
        return;
    }
    // The copies that updates made lack what was not here yet, and one of them may be of this version.
    published_void(job);
}

static void ask_state(struct mirror *mirror)
{
    struct slot *slot;
    while ((slot = find_free(mirror)) != NULL && next_state(mirror, slot)) ask(mirror, slot);
    note_filled(mirror);
    if (mirror->chunks_here < mirror->neighbours.job->view->table.map.chunk_count) return;
    mirror->fill = FILLED;
    make_copies(mirror);
}

static void begin_sums(struct mirror *mirror);

static void feed(struct mirror *mirror)
{
    // what the former owner was asked for may still arrive, in the places of what is asked for now
    if (!LIST_EMPTY(&mirror->neighbours.job->mirrors.leaving)) return;
    begin_sums(mirror);
    if (mirror->neighbours.is_leaving) return; // the round had no sums, and the job was stopped
    if (mirror->round != 0) ask_sums(mirror);
    if (may_fill(mirror)) ask_state(mirror);
    asker_pump(&mirror->owner.asker);
}

/* ---- the sums of a round ---- */

/* Tells the machine that its one member has contributed. No chunk came, so the machine asks for sums of
 * zeros; but the plane of sums has the owner's. */
static void end_sums(struct mirror *mirror)
{
    struct shard_job *job = mirror->neighbours.job;
    struct step_event event = { .kind = CAIRN_STEP_MICRO_END,
                                .member = mirror->neighbours.number,
                                .epoch = mirror->epoch,
                                .round = mirror->round,
                                .absent = job->pass.table->trained_count };
    const bool is_open = step_phase_of(job->collector.step) == CAIRN_STEP_COLLECTING &&
                         step_round_of(job->collector.step) == mirror->round;
    mirror->round = 0;
    if (!is_open) return; // the round is void
    memset(job->pass.summed, 0, job->pass.table->trained_count * sizeof *job->pass.summed);
    own_step(job, &event);
    event.kind = CAIRN_STEP_COMMIT;
    event.absent = 0;
    event.weight = 1;
    own_step(job, &event);
}

static void sums_came(struct mirror *mirror, const struct slot *slot)
{
    if (slot->round != mirror->round) return;
    mirror->sums_here++;
    if (mirror->sums_here == mirror->neighbours.job->pass.table->trained_count) end_sums(mirror);
}

/* Begins with the round of the last MirrorSums, unless chunks of a round before may still arrive: these would
 * overwrite those of this round. */
static void begin_sums(struct mirror *mirror)
{
    const struct shard_job *job = mirror->neighbours.job;
    if (mirror->wanted_round == 0 || count_asked(mirror, true) > 0) return;
    mirror->epoch = mirror->wanted_epoch;
    mirror->round = mirror->wanted_round;
    mirror->wanted_round = 0;
    mirror->sums_next = mirror->sums_here = 0;
    if (job->pass.table->trained_count == 0) end_sums(mirror);
}

static void on_sums(struct shard_job *job, const void *body)
{
    const Cairn__MirrorSums *message = body;
    struct mirror *mirror = job->mirrors.now;
    if (mirror == NULL) return; // its place was taken
    mirror->round = 0;
    mirror->wanted_epoch = message->epoch;
    mirror->wanted_round = message->round;
    neighbours_busy(&mirror->neighbours);
    feed(mirror);
    neighbours_idle(&mirror->neighbours);
    shard_wake(job->shard);
}

/* ---- the owner's answers ---- */

static void describe_chunk(const struct neighbour_fetch *fetch, struct chunk_header *header)
{
    const struct slot *slot = slot_of(fetch);
    const struct shard_job *job = fetch->neighbour->all->job;
    const struct chunk_place place = shard_map_chunk(&job->view->table.map, slot->chunk);
    const struct form *form = &job->view->forms[job->view->table.extent_of[slot->chunk]];
    const bool sums = is_of_sums(slot);
    header->plane = (uint8_t)(sums ? CAIRN_PLANE_PARAM : slot->plane);
    header->round = slot->round;
    header->tensor = place.tensor;
    header->first_leaf = place.first_leaf;
    header->leaf_count = (uint32_t)place.leaf_count;
    header->generation = slot->version.generation;
    header->step = slot->version.step;
    header->dtype = (uint8_t)(sums ? CAIRN_F32 : form_dtype(form, slot->plane));
    header->payload_bytes = sums ? place.elem_count * sizeof(float)
                                 : form_bytes(form, slot->plane, place.elem_count);
}

static void *place_of_chunk(struct neighbour_fetch *fetch)
{
    const struct slot *slot = slot_of(fetch);
    const struct shard_job *job = fetch->neighbour->all->job;
    const struct chunk_place place = shard_map_chunk(&job->view->table.map, slot->chunk);
    return planes_at(&job->planes, slot->plane, job->view->table.extent_of[slot->chunk],
                     place.local_elem);
}

/* An update may have waited for the chunk. */
static void slot_ended(const struct mirror *mirror)
{
    struct shard_job *job = mirror->neighbours.job;
    if (job->pass.update_waits && count_asked(mirror, false) == 0)
        shard_tell(job, SHARD_COPIES_ENDED);
}

static void chunk_came(struct neighbour_fetch *fetch)
{
    struct mirror *mirror = mirror_of(fetch);
    struct slot *slot = slot_of(fetch);
    const bool sums = is_of_sums(slot);
    slot->is_asked = false;
    if (!sums) {
        struct filling *chunk = &mirror->chunks[slot->chunk];
        chunk->here = (uint8_t)(chunk->here | 1u << slot->plane);
        note_filled(mirror);
    }
    slot_ended(mirror);
    if (sums) sums_came(mirror, slot);
    feed(mirror);
}

/* The owner has another version, or its round is void: what is wanted now follows from the coordinator's next
 * message. */
static void chunk_refused(struct neighbour_fetch *fetch, uint64_t status)
{
    struct mirror *mirror = mirror_of(fetch);
    struct slot *slot = slot_of(fetch);
    if (is_of_sums(slot) && slot->round == mirror->round) mirror->round = 0;
    log_debug("job %s: shard %s does not give what is to be mirrored: %s",
              mirror->neighbours.job->spec.name, mirror->owner.name, status_text((int)status));
    put_off(mirror, slot);
    slot_ended(mirror);
    shard_wake(mirror->neighbours.job->shard);
}

static void owner_down(struct neighbour *neighbour, cairn_status why)
{
    log_info("job %s: lost shard %s, which is mirrored here: %s; connecting again",
             neighbour->all->job->spec.name, neighbour->name, status_text((int)why));
}

static void owner_starved(struct neighbour *neighbour)
{
    log_warn("job %s: out of memory to ask shard %s, which is mirrored here: raise the limits of "
             "this process (ulimit -v, memory.max, vm.max_map_count)",
             neighbour->all->job->spec.name, neighbour->name);
}

/* ---- begin and end ---- */

static void mirror_free(struct mirror *mirror)
{
    neighbour_close(&mirror->owner);
    free(mirror->chunks);
    free(mirror);
}

/* Answers a MirrorOf that ends the mirror, when nothing of the owner's can arrive any more. */
static void answer_ended(struct shard_job *job)
{
    if (LIST_EMPTY(&job->mirrors.leaving) && job->mirrors.ending.session != 0)
        session_answer(job->shard, &job->mirrors.ending, CAIRN_OK, NULL);
}

static void free_left(struct neighbours *all)
{
    struct mirror *mirror = (struct mirror *)all;
    struct shard_job *job = all->job;
    LIST_REMOVE(mirror, leaving);
    mirror_free(mirror);
    answer_ended(job);
    if (job->pass.update_waits && job->state == CAIRN_JOB_SERVING)
        shard_tell(job, SHARD_COPIES_ENDED);
}

static const struct neighbour_kind owner_kind = {
    .is_far = true,
    .purpose = "mirror",
    .describe = describe_chunk,
    .place = place_of_chunk,
    .came = chunk_came,
    .refused = chunk_refused,
    .down = owner_down,
    .starved = owner_starved,
    .free = free_left,
};

static void end_mirror(struct shard_job *job)
{
    struct mirror *mirror = job->mirrors.now;
    if (mirror == NULL) return;
    job->mirrors.now = NULL;
    LIST_INSERT_HEAD(&job->mirrors.leaving, mirror, leaving);
    neighbours_end(&mirror->neighbours);
}

static void free_mirrors(struct shard_job *job)
{
    struct mirror *mirror;
    end_mirror(job);
    while ((mirror = LIST_FIRST(&job->mirrors.leaving)) != NULL) {
        LIST_REMOVE(mirror, leaving);
        mirror_free(mirror);
    }
}

static cairn_status begin_mirror(struct shard_job *job, const Cairn__MirrorOf *message,
                                 enum fill fill, struct sentence *why)
{
    struct mirror *mirror = calloc(1, sizeof *mirror);
    struct filling *chunks = calloc(job->view->table.map.chunk_count + 1, sizeof *chunks);
    if (mirror == NULL || chunks == NULL) {
        free(mirror);
        free(chunks);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to mirror a part");
    }
    mirror->chunks = chunks;
    mirror->neighbours = (struct neighbours) { .kind = &owner_kind,
                                               .job = job,
                                               .number = message->member,
                                               .token = message->token,
                                               .first = &mirror->owner,
                                               .stride = sizeof mirror->owner,
                                               .count = 1 };
    mirror->fill = fill;
    for (uint32_t i = 0; i < SLOTS; i++) {
        mirror->slots[i].fetch.neighbour = &mirror->owner;
        mirror->slots[i].fetch.request.index = i;
    }
    const cairn_status status = neighbour_open(&mirror->neighbours, &mirror->owner, message->owner,
                                               why);
    if (status != CAIRN_OK) {
        mirror_free(mirror);
        return status;
    }
    job->mirrors.now = mirror;
    neighbours_begin(&mirror->neighbours);
    return CAIRN_OK;
}

/* The owner, or its next process, which has what the one before had: what was filled stays filled. */
static void on_mirror_of(struct shard_job *job, struct request asked, const void *body)
{
    const Cairn__MirrorOf *message = body;
    const struct mirror *before = job->mirrors.now;
    const bool is_complete = before != NULL && before->fill == COMPLETE;
    struct sentence why;
    end_mirror(job);
    if (message->member == 0) {
        if (job->mirrors.is_mirror)
            log_info("job %s: this shard has the place of the one that it mirrored",
                     job->spec.name);
        job->mirrors.is_mirror = false;
        job->mirrors.ending = asked;
        answer_ended(job);
        kept_begin(job);
        return;
    }
    cairn_status status = CAIRN_ERR_UNSUPPORTED;
    if (message->owner == NULL || planes_device_end(&job->planes) > 0)
        sentence_set(&why, "a mirror lies in host memory: compute.backend = host");
    else
        status = begin_mirror(job, message, is_complete ? COMPLETE : FILLING, &why);
    session_answer(job->shard, &asked, status, &why);
    shard_wake(job->shard);
}

/* ---- what the others see of it ---- */

bool mirror_has_sums(const struct shard_job *job)
{
    return job->mirrors.now != NULL;
}

bool mirror_is_receiving(struct shard_job *job)
{
    struct mirror *mirror = job->mirrors.now;
    // a chunk of a former owner may still arrive
    if (!LIST_EMPTY(&job->mirrors.leaving)) return true;
    if (mirror == NULL) return false;
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &mirror->slots[i];
        if (!slot->is_asked || is_of_sums(slot) ||
            slot->fetch.request.state != CAIRN_REQUEST_WAITING)
            continue;
        asker_drop(&mirror->owner.asker, &slot->fetch.request);
        put_off(mirror, slot);
    }
    if (count_asked(mirror, false) > 0) return true;
    if (mirror->fill == FILLING) forget_pieces(mirror);
    return false;
}

void mirror_go_on(struct shard_job *job)
{
    if (job->mirrors.now != NULL && !job->mirrors.now->neighbours.is_leaving)
        shard_wake(job->shard);
}

static bool tick_mirror(struct shard_job *job, uint64_t now_ms)
{
    struct mirror *mirror = job->mirrors.now;
    if (mirror == NULL || job->state != CAIRN_JOB_SERVING) return false;
    neighbours_busy(&mirror->neighbours);
    (void)neighbour_tick(&mirror->owner, now_ms);
    if (mirror->fill == FILLED) make_copies(mirror);
    feed(mirror);
    neighbours_idle(&mirror->neighbours);
    return true; // only a tick connects again, and asks again for what was put off
}

static const struct shard_message messages[] = {
    { CAIRN_MSG_MIRROR_OF, .ask_job = on_mirror_of },
    { CAIRN_MSG_MIRROR_SUMS, .on_job = on_sums },
    { 0 },
};
const struct shard_module mirror_module = {
    .messages = messages,
    .on = { [SHARD_JOB_STOPS] = end_mirror, [SHARD_JOB_FREED] = free_mirrors },
    .tick = tick_mirror,
};
