/* Parcels of chunks in progress: how operations are cut into parcels, the parcels' copies of a
 * card's memory, and the new cut when a layout changes. */
#include "client/push.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "client/device.h"
#include "client/job.h"
#include "client/layouts.h"
#include "client/op.h"
#include "client/session.h"
#include "proto/spec/spec.h"

/* ==== staging ==== */

#define PIECE_LEAST ((size_t)64 << 10)
#define AREA_BYTES  ((size_t)16 << 20) /* the size of an area, or four pieces if that is more */
#define PIECES_MAX  32                 /* the most pieces in an area */

#define CARDS_AGAIN_MS 60000

struct staging_area {
    struct staging_area *next;
    struct card *card;
    bool on_card;
    bool may_pin, is_pinned; /* may_pin: pinning was not tried yet */
    uint8_t *base;           /* memory of the session */
    size_t piece_bytes;
    uint32_t count, used; /* used: one bit for each piece that is taken */
};

static uint32_t piece_count(size_t piece_bytes)
{
    if (piece_bytes >= AREA_BYTES / 4) return 4;
    return AREA_BYTES / piece_bytes < PIECES_MAX ? (uint32_t)(AREA_BYTES / piece_bytes)
                                                 : PIECES_MAX;
}

static struct staging_area *find_area(struct session *s, const struct card *card, bool on_card,
                                      size_t piece_bytes)
{
    struct staging_area *area = s->staging.areas;
    while (area != NULL &&
           (area->card != card || area->on_card != on_card || area->piece_bytes != piece_bytes ||
            area->used == (uint32_t)((UINT64_C(1) << area->count) - 1)))
        area = area->next;
    return area;
}

/* Frees an area on a card if the area cannot be shown to shards. A push from the area requires that
 * shards map it, so the area cannot replace host memory. The reason may be the driver, which is
 * permanent, or a lack of descriptors, which is temporary. Therefore cards are tried again later,
 * and the reason is reported only once. */
static void refuse_cards(struct session *s, const void *base)
{
    if (s->staging.on_host_ms == 0)
        session_say(
            s, "memory of the GPU cannot be shown to other processes (the driver exports none, or "
               "no descriptor is left): pushes from it go through the host until it can be");
    s->staging.on_host_ms = monotonic_ms() + CARDS_AGAIN_MS;
    if (memory_free(s, base) != CAIRN_OK) return; // otherwise the area is freed with the session
}

/* Called between card_change_begin and _end, or for host memory. */
static struct staging_area *open_area(struct session *s, struct card *card, bool on_card,
                                      size_t piece_bytes)
{
    struct staging_area *area = calloc(1, sizeof *area);
    void *base;
    if (area == NULL) return NULL;
    *area = (struct staging_area) { .card = card,
                                    .on_card = on_card,
                                    .may_pin = !on_card,
                                    .piece_bytes = piece_bytes,
                                    .count = piece_count(piece_bytes) };
    const size_t bytes = area->count * piece_bytes;
    if (memory_allocate(s, bytes, on_card ? card : NULL, &base) != CAIRN_OK) {
        free(area);
        return NULL;
    }
    memory_show(s); // the area is then sent by reference from the first piece on
    if (on_card && !memory_is_shown(s, base)) {
        refuse_cards(s, base);
        free(area);
        return NULL;
    }
    area->base = base;
    area->next = s->staging.areas;
    s->staging.areas = area;
    return area;
}

static struct staging_area *open_on_card(struct session *s, struct card *card, size_t piece_bytes)
{
    if (!card_change_begin()) return NULL;
    struct staging_area *area = open_area(s, card, true, piece_bytes);
    card_change_end();
    return area;
}

/* Pins the area as soon as pinning delays no stream and no copy is in progress. Until then, copies are
 * slower. */
static void pin_area(struct staging_area *area)
{
    if (!area->may_pin || area->used != 0 || !card_change_begin()) return;
    area->may_pin = false;
    area->is_pinned = card_pin(area->card, area->base, area->count * area->piece_bytes);
    card_change_end();
}

/* Reserves `bytes`. on_card: on the card, if it has room; otherwise on the host.
 * CAIRN_ERR_NO_MEMORY. */
static cairn_status staging_acquire(struct session *s, struct card *card, bool on_card,
                                    size_t bytes, struct staged *out)
{
    size_t piece_bytes = PIECE_LEAST;
    while (piece_bytes < bytes) piece_bytes *= 2;
    if (monotonic_ms() < s->staging.on_host_ms) on_card = false;
    struct staging_area *area = find_area(s, card, on_card, piece_bytes);
    if (area == NULL)
        area = on_card ? open_on_card(s, card, piece_bytes)
                       : open_area(s, card, false, piece_bytes);
    if (area == NULL && on_card) return staging_acquire(s, card, false, bytes, out);
    if (area == NULL) return CAIRN_ERR_NO_MEMORY;
    pin_area(area);
    uint32_t piece = 0;
    while ((area->used >> piece & 1) != 0) piece++;
    area->used |= UINT32_C(1) << piece;
    *out = (struct staged) { area, area->base + piece * piece_bytes, area->on_card };
    return CAIRN_OK;
}

static void staging_return(struct staged *staged)
{
    struct staging_area *area = staged->area;
    const size_t piece = (size_t)(staged->at - area->base) / area->piece_bytes;
    area->used &= ~(UINT32_C(1) << piece);
    *staged = (struct staged) { 0 };
}

void stage_close_areas(struct session *s)
{
    while (s->staging.areas != NULL) {
        struct staging_area *area = s->staging.areas;
        s->staging.areas = area->next;
        if (area->is_pinned) card_unpin(area->card, area->base);
        free(area);
    }
}

/* ==== explain ==== */

/* Error sentences for chunks: what went wrong, where, and what to do. */

/* Explains why a version could not be read, and how to get a version that can be read. */
static void explain_version(const struct parcel *parcel, cairn_status status,
                            struct cairn_version newest, struct sentence *out)
{
    const char *tensor = parcel->job->spec.tensors[parcel->place.tensor].name;
    if (status == CAIRN_ERR_VERSION_GONE)
        sentence_set(
            out,
            "tensor %s: version %" PRIu64 ".%" PRIu64
            " is no longer kept; take the newest (cairn_version_wait) and read all of it anew",
            tensor, parcel->version.generation, parcel->version.step);
    else
        sentence_set(out,
                     "tensor %s: version %" PRIu64 ".%" PRIu64
                     " is not published yet, the newest that was heard of is %" PRIu64 ".%" PRIu64
                     "; cairn_version_wait waits for it",
                     tensor, parcel->version.generation, parcel->version.step, newest.generation,
                     newest.step);
}

/* Explains why a chunk failed, where, and what to do. Not under the lock. */
static void explain_parcel(const struct parcel *parcel, cairn_status status, struct sentence *out)
{
    struct job *job = parcel->job;
    pthread_mutex_lock(&job->session->lock);
    const bool initialized = job->known.initialized, failed = job->failure.status == status;
    const struct cairn_version newest = job->known.newest;
    if (failed) *out = job->failure.why;
    pthread_mutex_unlock(&job->session->lock);
    if (failed) return;
    const char *tensor = job->spec.tensors[parcel->place.tensor].name;
    if (parcel->kind == CAIRN_CHUNK_FETCH && status == CAIRN_ERR_NOT_READY && !initialized)
        sentence_set(
            out, "tensor %s: job %s has no state yet; rank 0 puts it (cairn_put, cairn_init_done)",
            tensor, job->name);
    else if (parcel->kind == CAIRN_CHUNK_FETCH &&
             (status == CAIRN_ERR_NOT_READY || status == CAIRN_ERR_VERSION_GONE))
        explain_version(parcel, status, newest, out);
    else if (parcel->kind == CAIRN_CHUNK_PUT && status == CAIRN_ERR_EXISTS && !initialized)
        sentence_set(out,
                     "tensor %s at shard %s: it was put with other values before; give "
                     "those, or drop the job (`cairn job drop %s`) to begin anew",
                     tensor, job->shards.links[parcel->shard]->name, job->name);
    else
        sentence_set(out, "tensor %s at shard %s: %s", tensor,
                     job->shards.links[parcel->shard]->name, status_text((int)status));
}

/* ==== parcel ==== */

static cairn_status stage_place(struct parcel *parcel, const struct shard_link *via);
static void stage_land(struct parcel *parcel);
static void stage_end(struct parcel *parcel);

static struct parcel *add_parcel(struct job *job)
{
    if (job->parcels.count == job->parcels.capacity) {
        const uint32_t capacity = job->parcels.capacity == 0 ? 64 : job->parcels.capacity * 2;
        struct parcel **parcels = realloc(job->parcels.all, capacity * sizeof(struct parcel *));
        if (parcels == NULL) return NULL;
        job->parcels.all = parcels;
        job->parcels.capacity = capacity;
    }
    struct parcel *parcel = calloc(1, sizeof *parcel);
    if (parcel == NULL) return NULL;
    parcel->job = job;
    parcel->request.index = job->parcels.count;
    job->parcels.all[job->parcels.count++] = parcel;
    return parcel;
}

static struct parcel *acquire_parcel(struct job *job)
{
    struct parcel *parcel = job->parcels.first_free;
    if (parcel == NULL) return add_parcel(job);
    job->parcels.first_free = parcel->next;
    // this parcel is taken next, and with thousands of parcels it is in no cache
    __builtin_prefetch(parcel->next, 1);
    return parcel;
}

/* Counts the elements of the piece before an element of the tensor. */
static uint64_t elems_before(const struct command *command, uint64_t elem)
{
    const struct target *target = command->target;
    if (target->piece.whole) return elem;
    const struct shape *shape = &command->job->spec.tensors[target->tensor].shape;
    return box_before(&target->piece.box, shape, elem);
}

struct parcel *parcel_new(struct job *job, const struct command *command, uint32_t shard,
                          uint64_t chunk)
{
    struct parcel *parcel = acquire_parcel(job);
    if (parcel == NULL) return NULL;
    const struct chunk_place place = shard_map_chunk(&command->served->parts[shard].map, chunk);
    const struct target *target = command->target;
    const size_t elem_bytes = dtype_size(target->dtype);
    const uint64_t first = elems_before(command, place.first_elem);
    const uint64_t end = elems_before(command, place.first_elem + place.elem_count);
    // A fetch for a card first receives the data in host memory, and then copies it to the card.
    const bool lands = target->card != NULL && command->op->kind == CAIRN_CHUNK_FETCH;
    // A put of a box sends the box before its elements, unless the box contains the entire chunk.
    const bool puts_box = command->op->kind == CAIRN_CHUNK_PUT &&
                          target->piece.tile == CAIRN_TILE_BOX;
    const bool boxed = puts_box && end - first < place.elem_count;
    *parcel = (struct parcel) {
        .job = job,
        .op = command->op,
        .target = target,
        .request = { .index = parcel->request.index, .serial = parcel->request.serial + 1 },
        .kind = command->op->kind,
        .plane = command->plane,
        .dtype = target->dtype,
        .tile = puts_box && !boxed ? CAIRN_TILE_WHOLE : target->piece.tile,
        .layout = command->served->layout->version,
        .shard = shard,
        .via = shard,
        .place = place,
        .table_hash = target->piece.table_hash,
        .data.bytes = target->piece.strides.given || boxed || lands
                          ? NULL
                          : target->ptr + first * elem_bytes,
        .data.head_bytes = boxed ? target->box_bytes : 0,
        .data.first = first,
        .data.byte_count = (end - first) * elem_bytes,
        .version = command->version,
        .round = command->round,
    };
    op_hold(parcel->op);
    return parcel;
}

/* ---- memory with strides ---- */

/* Adds `more` to the job's statistics of memory that parcels allocated, and subtracts `less`. */
static void parcel_count_packed(struct job *job, size_t more, size_t less)
{
    struct cairn_stats *stats = &job->measured.stats;
    HOLD_LOCK(&job->session->lock);
    stats->packed_bytes += more;
    stats->packed_bytes -= less;
    if (stats->packed_bytes > stats->packed_bytes_peak)
        stats->packed_bytes_peak = stats->packed_bytes;
}

static cairn_status open_landing(struct parcel *parcel)
{
    CAIRN_TRY(staging_acquire(parcel->job->session, parcel->target->card, false,
                              parcel->data.byte_count, &parcel->data.staged));
    parcel_count_packed(parcel->job, parcel->data.byte_count, 0);
    parcel->data.bytes = parcel->data.staged.at;
    return CAIRN_OK;
}

cairn_status parcel_open(struct parcel *parcel)
{
    if (parcel->data.bytes != NULL || parcel->data.byte_count == 0) return CAIRN_OK;
    if (parcel->target->card != NULL && parcel->kind == CAIRN_CHUNK_FETCH)
        return open_landing(parcel);
    parcel->data.packed = malloc(parcel->data.head_bytes + parcel->data.byte_count);
    if (parcel->data.packed == NULL) return CAIRN_ERR_NO_MEMORY;
    parcel->data.bytes = parcel->data.packed + parcel->data.head_bytes;
    parcel_count_packed(parcel->job, parcel->data.head_bytes + parcel->data.byte_count, 0);
    return CAIRN_OK;
}

/* Copies the payload into one contiguous buffer if it is not contiguous: memory with strides, a
 * payload after a box, or memory of a card. The copy is made only once, even if the parcel is sent
 * several times. */
static cairn_status pack_parcel(struct parcel *parcel, const struct shard_link *via)
{
    const struct target *target = parcel->target;
    const size_t elem_bytes = dtype_size(parcel->dtype);
    if (target->card != NULL && parcel->data.byte_count > 0) return stage_place(parcel, via);
    if (parcel->data.bytes != NULL) return CAIRN_OK;
    const cairn_status status = parcel_open(parcel);
    if (status != CAIRN_OK || parcel->data.packed == NULL) return status;
    memcpy(parcel->data.packed, target->box, parcel->data.head_bytes);
    if (target->piece.strides.given)
        strides_gather(&target->piece.strides, target->ptr, elem_bytes, parcel->data.first,
                       parcel->data.byte_count / elem_bytes, parcel->data.bytes);
    else
        memcpy(parcel->data.bytes, target->ptr + parcel->data.first * elem_bytes,
               parcel->data.byte_count);
    return CAIRN_OK;
}

void parcel_arrived(struct parcel *parcel)
{
    const struct target *target = parcel->target;
    const size_t elem_bytes = dtype_size(parcel->dtype);
    if (parcel->data.packed != NULL)
        strides_scatter(&target->piece.strides, target->ptr, elem_bytes, parcel->data.first,
                        parcel->data.byte_count / elem_bytes, parcel->data.packed);
    struct sentence why;
    if (parcel->data.lands)
        parcel_end(parcel, card_landed(target->card, &why));
    else if (parcel->data.staged.at != NULL)
        stage_land(parcel);
    else
        parcel_end(parcel, CAIRN_OK);
}

/* ---- the life of a parcel ---- */

static void free_parcel(struct parcel *parcel)
{
    if (parcel->data.packed != NULL)
        parcel_count_packed(parcel->job, 0, parcel->data.head_bytes + parcel->data.byte_count);
    free(parcel->data.packed);
    parcel->data.packed = NULL;
    stage_end(parcel);
    parcel->op = NULL;
    parcel->next = parcel->job->parcels.first_free;
    parcel->job->parcels.first_free = parcel;
}

void parcel_undo(struct parcel *parcel)
{
    struct op *op = parcel->op;
    free_parcel(parcel);
    op_let_go(op, CAIRN_OK, NULL);
}

struct parcel *parcel_of_request(const struct job *job, uint64_t number)
{
    const uint32_t index = (uint32_t)number;
    if (index >= job->parcels.count) return NULL;
    struct parcel *parcel = job->parcels.all[index];
    const bool is_its = parcel->op != NULL && chunk_request_number(&parcel->request) == number;
    return is_its ? parcel : NULL;
}

static void finish_parcel(struct parcel *parcel)
{
    if (!parcel->answered || parcel->on_loan > 0) return;
    struct op *op = parcel->op;
    const cairn_status status = parcel->status;
    struct sentence why;
    if (status != CAIRN_OK) explain_parcel(parcel, status, &why);
    free_parcel(parcel);
    op_let_go(op, status, status != CAIRN_OK ? why.text : NULL);
}

void parcel_end(struct parcel *parcel, cairn_status status)
{
    if (!parcel->answered) parcel->status = status;
    parcel->answered = true;
    finish_parcel(parcel);
}

static void loan_back(struct parcel *parcel)
{
    parcel->on_loan--;
    chunk_link_loan_back(&parcel->job->shards.links[parcel->via]->conn);
    finish_parcel(parcel);
}

static void on_sent(void *arg, cairn_status status)
{
    struct parcel *parcel = arg;
    // The shard's answer, or the loss of the link, decides the result.
    parcel->on_loan--;
    chunk_link_sent(&parcel->job->shards.links[parcel->via]->conn, status);
    finish_parcel(parcel);
}

/* Adds the parcel's bytes to the job's statistics; `shared`: the bytes were sent through memory
 * that both ends have. */
static void count_parcel(const struct parcel *parcel, bool shared)
{
    struct session *s = parcel->job->session;
    struct cairn_stats *stats = &parcel->job->measured.stats;
    HOLD_LOCK(&s->lock);
    if (parcel->kind == CAIRN_CHUNK_PUSH) stats->pushed_bytes += parcel->data.byte_count;
    if (parcel->kind == CAIRN_CHUNK_PUT) stats->put_bytes += parcel->data.byte_count;
    if (parcel->kind == CAIRN_CHUNK_FETCH) stats->fetched_bytes += parcel->data.byte_count;
    if (shared && parcel->kind == CAIRN_CHUNK_PUSH)
        stats->shared_pushed_bytes += parcel->data.byte_count;
    if (shared && parcel->data.on_card && parcel->kind == CAIRN_CHUNK_PUSH)
        stats->device_pushed_bytes += parcel->data.byte_count;
    if (shared && parcel->kind == CAIRN_CHUNK_FETCH)
        stats->shared_fetched_bytes += parcel->data.byte_count;
}

cairn_status parcel_send(struct parcel *parcel, uint32_t via, struct chunk_header *header)
{
    struct shard_link *link = parcel->job->shards.links[via];
    const bool is_fetch = parcel->kind == CAIRN_CHUNK_FETCH;
    // The link counts a payload that is sent over it, so no other link is used until every loan is
    // back.
    if (parcel->on_loan > 0 && via != parcel->via) return CAIRN_ERR_BUSY;
    const cairn_status opened = is_fetch ? CAIRN_OK : pack_parcel(parcel, link);
    if (opened != CAIRN_OK) {
        chunk_link_note_memory(&link->conn, opened,
                               parcel->data.head_bytes + parcel->data.byte_count);
        return opened;
    }
    parcel->via = via;
    const void *data = parcel->data.head_bytes > 0 ? parcel->data.packed : parcel->data.bytes;
    const void *payload = is_fetch ? parcel->target->box : data;
    const size_t payload_bytes = is_fetch ? parcel->target->box_bytes
                                          : parcel->data.head_bytes + parcel->data.byte_count;
    const bool has_payload = payload_bytes > 0;
    header->kind = parcel->kind;
    header->dtype = parcel->dtype;
    header->plane = parcel->plane;
    header->tile = parcel->tile;
    header->table_hash = parcel->table_hash;
    header->tensor = parcel->place.tensor;
    header->first_leaf = parcel->place.first_leaf;
    header->leaf_count = (uint32_t)parcel->place.leaf_count;
    // the round of a write, otherwise 0
    if (parcel->kind == CAIRN_CHUNK_PUT) header->round = parcel->round;
    if (is_fetch || parcel->data.is_unsummed) header->value |= CAIRN_CHUNK_UNSUMMED;
    header->generation = parcel->version.generation;
    header->step = parcel->version.step;
    CAIRN_TRY(chunk_link_send(&link->conn, header, has_payload ? payload : NULL, payload_bytes,
                              has_payload ? on_sent : NULL, parcel));
    if (has_payload) parcel->on_loan++; // the link counted this payload
    count_parcel(parcel, chunk_link_shares(&link->conn));
    return CAIRN_OK;
}

static void on_received(void *arg, cairn_status status)
{
    struct parcel *parcel = arg;
    struct shard_link *link = parcel->job->shards.links[parcel->shard];
    const bool lost = parcel->job->shards.links[parcel->via]->conn.lost;
    const bool whole = status == CAIRN_OK &&
                       (parcel->data.is_unsummed || parcel->came == parcel->checksum);
    if (parcel->answered) {
        // the entire job has failed
    } else if (whole) {
        parcel_arrived(parcel);
    } else if (lost) {
        asker_ask(&link->asker, &parcel->request);
    } else if (!asker_again(&link->asker, &parcel->request, CAIRN_ERR_CHECKSUM)) {
        parcel_end(parcel, CAIRN_ERR_CHECKSUM);
    }
    loan_back(parcel);
    asker_pump(&link->asker);
}

/* Receives the payload directly into the card's memory, if that is dense memory of cairn_alloc. A
 * payload with a checksum is received in host memory, where the checksum is compared.
 * CAIRN_ERR_UNSUPPORTED: the payload cannot be received directly. */
static cairn_status land(struct parcel *parcel, struct fabric_message *message)
{
    const struct target *target = parcel->target;
    uint8_t *at = target->ptr + parcel->data.first * dtype_size(parcel->dtype);
    if (!parcel->data.is_unsummed || target->card == NULL || parcel->op->region == NULL ||
        target->piece.strides.given || !card_lands(target->card) ||
        !memory_is_shown(parcel->job->session, parcel->op->region))
        return CAIRN_ERR_UNSUPPORTED;
    return fabric_receive(message, at, parcel->data.byte_count, on_received, parcel);
}

static cairn_status receive_to(struct parcel *parcel, struct fabric_message *message)
{
    cairn_status status = land(parcel, message);
    parcel->data.lands = status == CAIRN_OK;
    if (status != CAIRN_ERR_UNSUPPORTED) return status;
    status = parcel_open(parcel);
    return status != CAIRN_OK
               ? status
               : fabric_receive_far(message, parcel->data.bytes, parcel->data.byte_count,
                                    &parcel->came, on_received, parcel);
}

void parcel_receive(struct parcel *parcel, const struct chunk_header *header,
                    struct fabric_message *message)
{
    parcel->checksum = header->checksum;
    parcel->data.is_unsummed = (header->value & CAIRN_CHUNK_UNSUMMED) != 0;
    parcel->on_loan++;
    chunk_link_loan(&parcel->job->shards.links[parcel->via]->conn);
    const cairn_status status = receive_to(parcel, message);
    if (status == CAIRN_OK) return;
    fabric_drop(message);
    parcel_end(parcel, status);
    loan_back(parcel);
}

/* ---- cutting ---- */

static bool command_touches(const struct command *command, uint32_t shard, uint64_t chunk)
{
    if (command->target->piece.whole) return true;
    const struct shard_map *map = &command->served->parts[shard].map;
    const struct chunk_place place = shard_map_chunk(map, chunk);
    return elems_before(command, place.first_elem) <
           elems_before(command, place.first_elem + place.elem_count);
}

/* Returns the shard's extent that is the target's `next_extent`; NULL: no extent is left. */
static const struct local_extent *local_of(struct command *command, uint32_t *shard_out)
{
    const struct served_layout *served = command->served;
    const uint32_t tensor = command->target->tensor;
    size_t count;
    const struct extent *extent = layout_tensor_extents(served->layout, tensor, &count);
    if (command->next_extent >= count) return NULL;
    extent += command->next_extent;
    *shard_out = extent->shard;
    if (command->local == NULL)
        command->local = shard_map_find(
            &served->parts[extent->shard].map, tensor,
            quantum_first_leaf(&served->layout->geometry[tensor], extent->first_quantum));
    assert(command->local != NULL); // map and extents belong to one layout
    return command->local;
}

bool command_chunk(struct command *command, uint32_t *shard_out, uint64_t *chunk_out)
{
    const struct local_extent *local;
    while ((local = local_of(command, shard_out)) != NULL) {
        for (; command->next_chunk < local->chunk_count; command->next_chunk++) {
            *chunk_out = local->first_chunk + command->next_chunk;
            if (command_touches(command, *shard_out, *chunk_out)) return true;
        }
        command->next_extent++;
        command->next_chunk = 0;
        command->local = NULL;
    }
    return false;
}

/* ==== stage ==== */

static struct shard_link *owner_of(const struct parcel *parcel)
{
    return parcel->job->shards.links[parcel->shard];
}

static void unqueue(struct parcel *parcel)
{
    if (parcel->is_queued) TAILQ_REMOVE(&owner_of(parcel)->staging.queue, parcel, queued);
    parcel->is_queued = false;
}

static void unland(struct parcel *parcel)
{
    if (!parcel->is_landed) return;
    TAILQ_REMOVE(&parcel->job->parcels.landed, parcel, queued);
    parcel->job->parcels.landed_count--;
    parcel->op->landed--;
    parcel->is_landed = false;
}

static void count_sent(struct parcel *parcel)
{
    if (parcel->is_ahead) owner_of(parcel)->staging.ahead--;
    parcel->is_ahead = false;
}

static cairn_status await_copy(struct parcel *parcel, struct sentence *why)
{
    const uint64_t copy = parcel->data.copy;
    parcel->data.copy = 0;
    return card_copy_wait(parcel->target->card, copy, why);
}

/* Returns the staging piece when no copy between the piece and the caller's memory is in
 * progress. */
static void unstage(struct parcel *parcel)
{
    struct sentence why;
    if (parcel->data.staged.at == NULL) return;
    (void)await_copy(parcel, &why); // after a failure of the context, no copy is in progress
    count_sent(parcel);
    staging_return(&parcel->data.staged);
    parcel_count_packed(parcel->job, 0, parcel->data.byte_count);
}

/* Called when the parcel is over, whether it was sent or not: ends its staging, after any copy in
 * progress. */
static void stage_end(struct parcel *parcel)
{
    unqueue(parcel);
    unland(parcel);
    unstage(parcel);
}

/* ---- what is pushed ---- */

/* Sends from the caller's memory if the shard knows this memory and can read it there. Otherwise
 * begins a copy. The copy is on the card if the shard has that card or the network can read from
 * it, and otherwise in host memory. */
static cairn_status stage_parcel(struct parcel *parcel, const struct shard_link *via,
                                 struct sentence *why)
{
    const struct target *target = parcel->target;
    const struct fabric_peer *peer = via->conn.peer;
    uint8_t *own = target->ptr + parcel->data.first * dtype_size(parcel->dtype);
    const char *path = fabric_payload_path(peer, own, parcel->data.byte_count);
    // The parcel is sent over the network from the card's memory, whose checksum no processor has
    // computed.
    const bool is_direct = parcel->kind == CAIRN_CHUNK_PUSH && via->takes_unsummed &&
                           parcel->data.byte_count >= CAIRN_FABRIC_DIRECT_MIN &&
                           fabric_peer_takes_device(peer);
    const bool goes = strcmp(path, is_direct ? CAIRN_FABRIC_PATH_DIRECT : "device") == 0;
    parcel->data.is_unsummed = is_direct;
    if (parcel->op->region != NULL && goes) {
        unstage(parcel);
        parcel->data.bytes = own;
        parcel->data.on_card = true;
        return CAIRN_OK;
    }
    const bool on_card = is_direct || fabric_peer_imports(peer, card_uuid(target->card));
    // A copy that is in host memory suits every shard: the card may have had no room for a copy.
    if (parcel->data.staged.at != NULL && (on_card || !parcel->data.on_card)) {
        parcel->data.is_unsummed = is_direct && parcel->data.on_card;
        return CAIRN_OK;
    }
    unstage(parcel);
    CAIRN_TRY(staging_acquire(parcel->job->session, target->card, on_card, parcel->data.byte_count,
                              &parcel->data.staged));
    parcel_count_packed(parcel->job, parcel->data.byte_count, 0);
    parcel->data.bytes = parcel->data.staged.at;
    parcel->data.on_card = parcel->data.staged.on_card;
    parcel->data.is_unsummed = is_direct && parcel->data.on_card;
    return card_copy_begin(target->card, parcel->data.bytes, own, parcel->data.byte_count,
                           parcel->data.on_card ? CARD_WITHIN : CARD_TO_HOST, &parcel->data.copy,
                           why);
}

/* Begins to copy as many pushes queued for the owner as may be copied ahead. If the beginning of a
 * copy fails, this function does not report it: stage_place tries again when the parcel is sent,
 * and reports the error. */
static void stage_fill(struct shard_link *owner)
{
    const struct shard_link *carrier = owner->carrier != NULL ? owner->carrier : owner;
    struct parcel *parcel;
    while (carrier->conn.peer != NULL && owner->staging.ahead < CAIRN_STAGE_AHEAD &&
           (parcel = TAILQ_FIRST(&owner->staging.queue)) != NULL) {
        struct sentence why;
        unqueue(parcel);
        if (stage_parcel(parcel, carrier, &why) != CAIRN_OK) {
            unstage(parcel);
            return;
        }
        parcel->is_ahead = parcel->data.staged.at != NULL;
        owner->staging.ahead += parcel->is_ahead;
    }
}

void stage_queue(struct parcel *parcel)
{
    if (parcel->target->card != NULL && parcel->data.byte_count > 0) {
        TAILQ_INSERT_TAIL(&owner_of(parcel)->staging.queue, parcel, queued);
        parcel->is_queued = true;
    }
    stage_fill(owner_of(parcel));
}

/* Sets the parcel's bytes for that connection, either to the memory itself or to its copy, and
 * waits until the copy is complete. */
static cairn_status stage_place(struct parcel *parcel, const struct shard_link *via)
{
    struct sentence why = { "" };
    if (parcel->on_loan > 0) return CAIRN_OK; // the parcel is sent from where it was sent before
    if (via->conn.peer == NULL) return CAIRN_ERR_CLOSED;
    unqueue(parcel);
    cairn_status status = stage_parcel(parcel, via, &why);
    const bool is_begun = parcel->data.staged.at != NULL;
    if (status == CAIRN_OK) status = await_copy(parcel, &why);
    count_sent(parcel);
    if (status == CAIRN_OK) stage_fill(owner_of(parcel));
    // the failure is reported in the next iteration, since other work is in progress here
    else if (is_begun) {
        unstage(parcel); // the piece contains no gradient
        parcel->job->turn.broken = (struct failure) { status, why };
        session_kick(parcel->job->session);
    }
    return status;
}

/* ---- what is fetched ---- */

/* Ends all parcels that have landed; one wait covers all of their copies. */
static void end_landed(struct job *job)
{
    struct parcel *parcel;
    while ((parcel = TAILQ_FIRST(&job->parcels.landed)) != NULL) {
        struct sentence why;
        unland(parcel);
        parcel_end(parcel, await_copy(parcel, &why));
    }
}

/* Begins the copy of received bytes to a card's memory. The parcel ends when the copy is complete,
 * at the latest in stage_end_landed. */
static void stage_land(struct parcel *parcel)
{
    struct job *job = parcel->job;
    const struct target *target = parcel->target;
    uint8_t *to = target->ptr + parcel->data.first * dtype_size(parcel->dtype);
    struct sentence why;
    // The copies in progress began before this parcel arrived, so the wait is short.
    if (job->parcels.landed_count >= CAIRN_STAGE_AHEAD) end_landed(job);
    const cairn_status status = card_copy_begin(target->card, to, parcel->data.staged.at,
                                                parcel->data.byte_count, CARD_FROM_HOST,
                                                &parcel->data.copy, &why);
    if (status != CAIRN_OK) {
        parcel_end(parcel, status);
        return;
    }
    TAILQ_INSERT_TAIL(&job->parcels.landed, parcel, queued);
    job->parcels.landed_count++;
    parcel->op->landed++;
    parcel->is_landed = true;
}

void stage_end_landed(struct job *job)
{
    const struct parcel *parcel;
    TAILQ_FOREACH (parcel, &job->parcels.landed, queued)
        if (parcel->op->landed == parcel->op->holds) break;
    if (parcel != NULL) end_landed(job);
}

/* ==== recut ==== */

/* Chunks form a grid that restarts at each extent. So if a layout changes, requests that are not
 * answered yet are cut again by the layout that now applies. A new chunk may contain more than the
 * old chunk. This does no harm, because the elements in which two chunks overlap are the same in
 * both. */

#define WORD_MS 20000 /* the longest wait for the coordinator's message about a layout */

struct served_layout *recut_layout(const struct job *job, uint8_t kind, uint8_t plane,
                                   struct cairn_version version)
{
    const bool is_published = kind == CAIRN_CHUNK_FETCH && plane == CAIRN_PLANE_WIRE;
    return is_published ? served_layout_of_version(job, version) : job->served;
}

/* Rebuilds the fields of the parcel's command that are needed to cut the command by `served`. */
static struct command command_of(const struct parcel *parcel, struct served_layout *served)
{
    return (struct command) {
        .job = parcel->job,
        .op = parcel->op,
        .target = parcel->target,
        .plane = parcel->plane,
        .round = parcel->round,
        .version = parcel->version,
        .served = served,
    };
}

/* Asks for every chunk of the layout that shares a leaf with the old chunk. */
static cairn_status ask_anew(const struct command *command, const struct chunk_place *old)
{
    const struct served_layout *served = command->served;
    struct job *job = command->job;
    const uint64_t end = old->first_leaf + old->leaf_count;
    for (uint64_t leaf = old->first_leaf; leaf < end;) {
        const uint32_t shard = layout_find(served->layout, old->tensor, leaf)->shard;
        const struct shard_map *map = &served->parts[shard].map;
        const struct local_extent *extent = shard_map_find(map, old->tensor, leaf);
        const uint64_t chunk = extent->first_chunk +
                               (leaf - extent->first_leaf) / map->chunk_leaves;
        const struct chunk_place place = shard_map_chunk(map, chunk);
        leaf = place.first_leaf + place.leaf_count;
        if (!command_touches(command, shard, chunk)) continue;
        struct parcel *parcel = parcel_new(job, command, shard, chunk);
        if (parcel == NULL) return CAIRN_ERR_NO_MEMORY;
        asker_ask(&job->shards.links[shard]->asker, &parcel->request);
    }
    return CAIRN_OK;
}

void parcel_withdraw(struct parcel *parcel)
{
    struct job *job = parcel->job;
    if (parcel->request.state == CAIRN_REQUEST_SENT) job->shards.links[parcel->via]->asked--;
    asker_drop(&job->shards.links[parcel->shard]->asker, &parcel->request);
}

static void recut(struct parcel *parcel, struct served_layout *served)
{
    const struct command command = command_of(parcel, served);
    const struct chunk_place old = parcel->place;
    parcel_withdraw(parcel);
    parcel_end(parcel, ask_anew(&command, &old));
}

static struct served_layout *layout_in_force_of(const struct parcel *parcel)
{
    return recut_layout(parcel->job, parcel->kind, parcel->plane, parcel->version);
}

static bool is_asked(const struct parcel *parcel)
{
    return parcel->op != NULL && parcel->kind != CAIRN_CHUNK_PUSH &&
           parcel->request.state != CAIRN_REQUEST_IDLE;
}

void askers_pump(struct job *job)
{
    for (uint32_t i = 0; i < job->shards.count; i++) asker_pump(&job->shards.links[i]->asker);
}

void recut_all(struct job *job)
{
    const uint32_t count = job->parcels.count; // parcels that are added later use the new layout
    for (uint32_t i = 0; i < count; i++) {
        struct parcel *parcel = job->parcels.all[i];
        struct served_layout *served = is_asked(parcel) ? layout_in_force_of(parcel) : NULL;
        if (served != NULL && parcel->layout != served->layout->version) recut(parcel, served);
    }
    askers_pump(job);
}

/* Returns true if the layout may be wrong for versions published while this member was away: at
 * that time another layout, which was never reported to this member, may have served. */
static bool is_missed(const struct job *job, const struct served_layout *served)
{
    const struct served_layout *next = job->served;
    while (next != NULL && next->older != served) next = next->older;
    return next != NULL && next->found;
}

bool recut_refused(struct parcel *parcel, uint64_t status)
{
    struct job *job = parcel->job;
    struct served_layout *served = layout_in_force_of(parcel);
    const uint64_t now_ms = monotonic_ms();
    if (status != CAIRN_ERR_MALFORMED && status != CAIRN_ERR_NOT_FOUND) return false;
    if (parcel->layout != served->layout->version) {
        recut(parcel, served);
        askers_pump(job);
        return true;
    }
    if (status != CAIRN_ERR_MALFORMED) return false;
    if (is_missed(job, served)) {
        parcel_end(parcel, CAIRN_ERR_VERSION_GONE);
        return true;
    }
    if (parcel->word_by_ms == 0) parcel->word_by_ms = now_ms + WORD_MS;
    return now_ms < parcel->word_by_ms &&
           asker_again(&job->shards.links[parcel->shard]->asker, &parcel->request, CAIRN_ERR_BUSY);
}

void recut_gone(struct shard_link *link)
{
    struct job *job = link->job;
    for (uint32_t i = 0; i < job->parcels.count; i++) {
        struct parcel *parcel = job->parcels.all[i];
        if (!is_asked(parcel) || parcel->shard != link->index) continue;
        parcel_withdraw(parcel);
        parcel_end(parcel, CAIRN_ERR_VERSION_GONE);
    }
}
