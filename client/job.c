/* Opening and closing a job: what the caller says becomes a spec, and the loop thread attaches. */
#include "client/job.h"

#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "client/layouts.h"
#include "client/device.h"
#include "client/loop.h"
#include "client/op.h"
#include "client/push.h"
#include "client/read.h"
#include "client/session.h"
#include "proto/spec/spec.h"

static void filling_release(struct filling *filling);
static bool filling_init(struct filling *filling, const struct job_spec_data *spec);

void job_ref(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    job->refs++;
    pthread_mutex_unlock(&job->session->lock);
}

void job_unref(struct job *job)
{
    if (job == NULL) return;
    struct session *s = job->session;
    pthread_mutex_lock(&s->lock);
    const uint32_t left = --job->refs;
    pthread_mutex_unlock(&s->lock);
    if (left == 0) job->on_last_unref(job);
}

void job_note_clip_norm(struct job *job, double clip_norm)
{
    pthread_mutex_lock(&job->session->lock);
    job->known.clip_norm = clip_norm;
    pthread_mutex_unlock(&job->session->lock);
}

/* ==== job ==== */

#define CLOSE_MS 1000

static void free_job(struct job *job)
{
    struct session *s = job->session;
    parcels_release(&job->parcels);
    packed_release(job->attachment.spec_packed);
    cairn__error__free_unpacked(job->attachment.refused, NULL); // NULL is fine
    client_tiles_free(job->tiles.declared);
    filling_release(&job->filling);
    free(job->puts.notes);
    write_release(job);
    assemble_release(job);
    accumulate_release(job);
    cache_release(job);
    free(job->name);
    spec_release(&job->spec);
    free(job);
    session_unref(s);
}

static void on_handle_free(void *object)
{
    job_unref(object);
}

/* ---- the spec ---- */

static cairn_status fill_spec(struct job *job, const struct cairn_job_spec *from)
{
    cairn_status status = spec_set_name(&job->spec, job->name);
    if (status != CAIRN_OK) return client_fail(status, "the job's name is not valid");
    status = client_spec_fill(from, &job->spec, &job->attachment.open_flags);
    if (status != CAIRN_OK) return status;
    job->member.rank = from->rank;
    status = client_spec_launch(from, &job->attachment.launch, &job->attachment.start_wait_ms);
    if (status != CAIRN_OK) return status;
    job->attachment.spec_packed = packed_spec(&job->spec);
    return job->attachment.spec_packed != NULL
               ? CAIRN_OK
               : client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the job's spec");
}

/* ---- open ---- */

/* Not 0, which a round has that no job began. */
static uint32_t next_number(void)
{
    static atomic_uint_least32_t last;
    const uint32_t number = atomic_fetch_add(&last, 1) + 1;
    return number != 0 ? number : atomic_fetch_add(&last, 1) + 1;
}

static struct job *new_job(struct session *s, const char *name, cairn_role role)
{
    struct job *job = calloc(1, sizeof *job);
    if (job == NULL) return NULL;
    job->session = s;
    job->on_last_unref = free_job;
    job->member.role = role;
    job->member.number = next_number();
    job->refs = 1;
    TAILQ_INIT(&job->landed.parcels);
    spec_init(&job->spec);
    randombytes_buf(&job->member.id, sizeof job->member.id);
    randombytes_buf(&job->member.token, sizeof job->member.token);
    if (job->member.id == 0) job->member.id = 1;
    pthread_mutex_lock(&s->lock);
    s->refs++;
    pthread_mutex_unlock(&s->lock);
    job->name = strdup(name);
    if (job->name == NULL) {
        free_job(job);
        return NULL;
    }
    return job;
}

/* Hands the job to the loop thread, which attaches it. */
static cairn_status begin_attach(struct job *job)
{
    struct command *command = calloc(1, sizeof *command);
    if (command == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    command->run = attach_list_run;
    command->job = job;
    job_ref(job);
    session_command(job->session, command);
    return CAIRN_OK;
}

static struct sentence awaited_text(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    const struct sentence put_off = job->attachment.put_off;
    pthread_mutex_unlock(&job->session->lock);
    return put_off.text[0] != '\0' ? put_off : ask_opening_awaits(job);
}

/* Sleeps until the job is attached, or fails, or the time is over. */
static void sleep_for_attach(struct job *job, uint64_t deadline_ms)
{
    struct session *s = job->session;
    struct patience patience = client_patience(job, deadline_ms);
    for (;;) {
        const uint64_t until_ms = client_says_at(&patience, deadline_ms);
        pthread_mutex_lock(&s->lock);
        bool waits = true;
        while ((waits = !job->attachment.attached_once && job->failure.status == CAIRN_OK &&
                        !s->ended) &&
               session_sleep(s, until_ms)) {}
        pthread_mutex_unlock(&s->lock);
        if (!waits || client_now_ms() >= deadline_ms) return;
        client_say_wait(&patience, awaited_text(job).text);
    }
}

static cairn_status await_attach(struct job *job, uint64_t deadline_ms)
{
    struct session *s = job->session;
    sleep_for_attach(job, deadline_ms);
    pthread_mutex_lock(&s->lock);
    const bool ended = s->ended;
    const bool attached = job->attachment.attached_once;
    const cairn_status failed = job->failure.status;
    const struct sentence why = job->failure.why;
    pthread_mutex_unlock(&s->lock);
    if (failed != CAIRN_OK) {
        const cairn_status status = client_fail(failed, "%s", why.text);
        const Cairn__Error *refused = job->attachment.refused;
        for (size_t i = 0; refused != NULL && i < refused->n_differences; i++)
            client_differ(refused->differences[i]);
        return status;
    }
    if (ended) return client_fail(CAIRN_ERR_CLOSED, "the session was closed");
    if (attached) return CAIRN_OK;
    return client_fail(CAIRN_ERR_TIMEOUT, "cairn_job_open timed out: %s%s", awaited_text(job).text,
                       job->member.role == CAIRN_WORKER
                           ? "; where there was no such job it may be made all the same: "
                             "open it again to go on, which does no harm, or drop it "
                             "(`cairn job drop`)"
                           : "");
}

/* Ends what the loop thread has of the job; bounded, since a stopped fabric keeps loans. */
static void leave_job(struct job *job)
{
    struct session *s = job->session;
    const uint64_t deadline_ms = client_now_ms() + CLOSE_MS;
    job->closing = true;
    session_kick(s);
    pthread_mutex_lock(&s->lock);
    while (!job->closed && !s->ended && session_sleep(s, deadline_ms)) {}
    pthread_mutex_unlock(&s->lock);
}

static cairn_status open_inside(struct job *job, const struct cairn_job_spec *spec, int timeout_ms)
{
    const uint64_t deadline_ms = client_now_ms() + (uint64_t)timeout_ms;
    cairn_status status = spec != NULL ? fill_spec(job, spec) : CAIRN_OK;
    if (status == CAIRN_OK) status = begin_attach(job);
    if (status != CAIRN_OK) return status;
    status = await_attach(job, deadline_ms);
    if (status == CAIRN_OK && !filling_init(&job->filling, &job->spec))
        status = client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    if (status == CAIRN_OK) {
        job_ref(job); // before the handle can be closed by anyone
        void *handle = handle_open(CAIRN_HANDLE_JOB, job, on_handle_free);
        pthread_mutex_lock(&job->session->lock); // cairn_close looks for it
        job->handle = handle;
        pthread_mutex_unlock(&job->session->lock);
        if (handle == NULL) {
            job_unref(job);
            status = client_fail(CAIRN_ERR_NO_MEMORY, "too many handles are open");
        }
    }
    if (status != CAIRN_OK) leave_job(job);
    return status;
}

/* A control connection speaks for one member of a job. */
static bool is_open(struct session *s, const char *name)
{
    bool found = false;
    pthread_mutex_lock(&s->lock);
    for (const struct job *job = s->jobs; job != NULL && !found; job = job->next)
        found = !job->closing && strcmp(job->name, name) == 0;
    pthread_mutex_unlock(&s->lock);
    return found;
}

cairn_status cairn_job_open(cairn *session, const char *name, const struct cairn_job_spec *spec,
                            cairn_role role, int timeout_ms, cairn_job **out)
{
    CAIRN_TRY(api_judge_call("out", out, timeout_ms));
    if (!job_name_ok(name))
        return client_fail(CAIRN_ERR_INVALID,
                           "the job's name is \"%.300s\"; allowed: 1 to 255 bytes of "
                           "[A-Za-z0-9._-], not beginning with '.' or '-'",
                           name != NULL ? name : "");
    if (role != CAIRN_WORKER && role != CAIRN_READER)
        return client_fail(CAIRN_ERR_INVALID,
                           "role is %d; CAIRN_WORKER (1) and CAIRN_READER (2) are allowed",
                           (int)role);
    if ((role == CAIRN_READER) != (spec == NULL))
        return client_fail(CAIRN_ERR_INVALID, "a worker gives a spec, a reader gives none");
    struct session *s = handle_get(CAIRN_HANDLE_SESSION, session);
    if (s == NULL) return handle_fail(session, "session");
    if (is_open(s, name)) {
        handle_put(session);
        return client_fail(CAIRN_ERR_EXISTS,
                           "job %s is open in this session; a second worker or reader of it "
                           "needs a session of its own",
                           name);
    }
    struct job *job = new_job(s, name, role);
    cairn_status status = job != NULL ? open_inside(job, spec, timeout_ms)
                                      : client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    if (status == CAIRN_OK) *out = job->handle;
    job_unref(job);
    handle_put(session);
    return status;
}

void cairn_job_close(cairn_job *handle)
{
    struct job *job = handle_get(CAIRN_HANDLE_JOB, handle);
    if (job == NULL) return;
    if (handle_close(CAIRN_HANDLE_JOB, handle)) leave_job(job);
    handle_put(handle);
}

cairn_status cairn_job_stats(cairn_job *handle, struct cairn_stats *out)
{
    struct job *job = handle_get(CAIRN_HANDLE_JOB, handle);
    if (job == NULL) return handle_fail(handle, "job");
    cairn_status status = CAIRN_OK;
    struct cairn_stats stats;
    if (!struct_fits(out, offsetof(struct cairn_stats, accumulated_bytes))) {
        status = client_fail(CAIRN_ERR_INVALID, "out must be given, its struct_size be %zu",
                             sizeof *out);
    } else {
        pthread_mutex_lock(&job->session->lock);
        stats = job->stats;
        pthread_mutex_unlock(&job->session->lock);
        struct_copy_out(out, &stats, sizeof stats);
    }
    handle_put(handle);
    return status;
}

/* ==== bring ==== */

/* Memory of a GPU that the client itself has to read: initial state, which it hashes; gradients that it adds
 * up, or of which some lie apart. It comes to host memory first. */

static cairn_status copy_from_card(struct card *card, const struct cairn_mem *mem, size_t bytes,
                                   void *copy)
{
    struct card_event *event;
    struct sentence why;
    CAIRN_TRY(card_mark(card, mem->stream, &event));
    cairn_status status = card_event_wait(event);
    card_event_free(event);
    if (status != CAIRN_OK) return status;
    status = card_copy(card, copy, mem->ptr, bytes, CARD_TO_HOST, &why);
    if (status == CAIRN_OK) return status;
    return client_fail(status, "GPU %d: %s", card_number(card), why.text);
}

cairn_status api_bring(struct cairn_mem *mem, const struct piece *piece, void **copy_out)
{
    struct card *card;
    *copy_out = NULL;
    cairn_status status = api_card(mem, &card);
    if (status != CAIRN_OK || card == NULL) return status;
    const size_t bytes = strides_span(&piece->strides, box_element_count(&piece->box),
                                      dtype_size((int)mem->dtype));
    void *copy = malloc(bytes > 0 ? bytes : 1);
    if (copy == NULL)
        return client_fail(CAIRN_ERR_NO_MEMORY,
                           "no host memory for %zu bytes of GPU %d, which pass the host here",
                           bytes, card_number(card));
    status = copy_from_card(card, mem, bytes, copy);
    if (status != CAIRN_OK) {
        free(copy);
        return status;
    }
    mem->ptr = *copy_out = copy;
    mem->device = 0;
    mem->stream = NULL;
    return CAIRN_OK;
}

/* ==== attachment ==== */

void attachment_put_off(struct job *job, const char *why)
{
    pthread_mutex_lock(&job->session->lock);
    sentence_set(&job->attachment.put_off, "%s", why);
    pthread_mutex_unlock(&job->session->lock);
}

void attachment_drop_pages(struct attachment *attachment)
{
    reading_free(attachment->reading);
    attachment->reading = NULL;
    paged_release(&attachment->spec_pages);
    paged_release(&attachment->layout_pages);
    message_free((ProtobufCMessage *)attachment->reply);
    attachment->reply = NULL;
}

void attachment_drop_changed(struct attachment *attachment)
{
    paged_release(&attachment->changed_pages);
    message_free((ProtobufCMessage *)attachment->changed);
    attachment->changed = NULL;
}

void attachment_lost(struct job *job)
{
    attachment_drop_pages(&job->attachment);
    attachment_drop_changed(&job->attachment);
    attachment_put_off(job, "");
    job->tiles.request = 0;
    job->attachment.state = JOB_DETACHED;
}

/* ==== layout ==== */

/* A version may be read until so many are newer; or longer, by who knows of somebody's lease: layouts have as
 * many extents in all. */
#define KEPT_STEPS   2
#define KEPT_EXTENTS ((size_t)1 << 17)

static void free_served(struct served_layout *served)
{
    for (uint32_t i = 0; i < served->layout->shard_count; i++) {
        shard_map_release(&served->parts[i].map);
        free(served->parts[i].published_at);
    }
    layout_close(served->layout);
    free(served);
}

cairn_status served_layout_open(const struct job_spec_data *spec, struct layout *layout,
                                struct cairn_version since, struct served_layout **out)
{
    struct served_layout *served = calloc(1, sizeof *served +
                                                 layout->shard_count * sizeof served->parts[0]);
    cairn_status status = served != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
    uint32_t count = 0;
    for (; status == CAIRN_OK && count < layout->shard_count; count++)
        status = shard_map_init(&served->parts[count].map, layout, count, spec->chunk_leaves);
    if (status != CAIRN_OK) {
        for (uint32_t i = 0; served != NULL && i < count; i++)
            shard_map_release(&served->parts[i].map);
        free(served);
        return status;
    }
    served->layout = layout;
    served->since = since;
    served->refs = 1;
    *out = served;
    return CAIRN_OK;
}

struct served_layout *served_layout_get(struct served_layout *served)
{
    served->refs++;
    return served;
}

void served_layout_put(struct served_layout *served)
{
    if (served != NULL && --served->refs == 0) free_served(served);
}

/* ---- those of a job ---- */

void served_layouts_add(struct job *job, struct served_layout *served)
{
    pthread_mutex_lock(&job->session->lock);
    served->older = job->served;
    job->served = served;
    pthread_mutex_unlock(&job->session->lock);
}

void served_layouts_serve_since(struct job *job, struct served_layout *served,
                                struct cairn_version since)
{
    pthread_mutex_lock(&job->session->lock);
    served->since = since;
    served->found = false;
    pthread_mutex_unlock(&job->session->lock);
}

static struct served_layout *unlink_served(struct served_layout **link)
{
    struct served_layout *served = *link;
    *link = served->older;
    served->older = NULL;
    return served;
}

static bool are_too_much(const struct job *job)
{
    size_t extents = 0;
    for (const struct served_layout *served = job->served; served != NULL; served = served->older)
        extents += served->layout->extent_count;
    return extents > KEPT_EXTENTS;
}

/* Nothing that the layout would serve is read any more, once `newer` serves what comes. Under the lock. */
static bool is_outlived(const struct job *job, const struct served_layout *served,
                        const struct served_layout *newer)
{
    const struct cairn_version newest = job->known.newest, since = newer->since;
    if (version_compare(since, served->since) <= 0) return true; // it serves no version
    if (!are_too_much(job)) return false;
    if (job->leased.until_ms > client_now_ms() && version_compare(job->leased.oldest, since) < 0)
        return false;
    return newest.generation > since.generation ||
           (newest.generation == since.generation && newest.step >= since.step &&
            newest.step - since.step >= KEPT_STEPS);
}

/* The oldest; one that is in use stays. NULL: there is none. Under the lock. */
static struct served_layout **find_outlived(struct job *job)
{
    struct served_layout **found = NULL;
    for (struct served_layout *newer = job->served; newer->older != NULL; newer = newer->older)
        if (newer->older->refs == 1 && is_outlived(job, newer->older, newer)) found = &newer->older;
    return found;
}

bool served_layouts_trim(struct job *job)
{
    bool any = false;
    while (job->served != NULL && job->served->older != NULL) {
        pthread_mutex_lock(&job->session->lock);
        struct served_layout **link = find_outlived(job);
        struct served_layout *served = link != NULL ? unlink_served(link) : NULL;
        pthread_mutex_unlock(&job->session->lock);
        if (served == NULL) break;
        served_layout_put(served);
        any = true;
    }
    return any;
}

void served_layouts_release(struct job *job)
{
    while (job->served != NULL) {
        pthread_mutex_lock(&job->session->lock);
        struct served_layout *served = unlink_served(&job->served);
        pthread_mutex_unlock(&job->session->lock);
        served_layout_put(served);
    }
}

struct served_layout *served_layout_of_version(const struct job *job, struct cairn_version version)
{
    struct served_layout *served = job->served;
    while (served->older != NULL && version_compare(served->since, version) > 0)
        served = served->older;
    return served;
}

struct served_layout *served_layout_of_number(const struct job *job, uint64_t layout)
{
    struct served_layout *served = job->served;
    while (served != NULL && served->layout->version != layout) served = served->older;
    return served;
}

bool served_layouts_left_by(const struct job *job, uint32_t shard)
{
    const struct served_layout *newest = job->served;
    return newest != NULL && shard < newest->layout->shard_count && newest->parts[shard].absent;
}

bool served_layouts_need(const struct job *job, uint32_t shard)
{
    const struct served_layout *served = job->served;
    if (served == NULL) return false;
    if (shard < served->layout->shard_count && !served->parts[shard].absent) return true;
    for (served = served->older; served != NULL; served = served->older)
        if (shard < served->layout->shard_count && served->parts[shard].map.extent_count > 0)
            return true;
    return false;
}

/* ==== pieces ==== */

#define PIECE_LEAST ((size_t)64 << 10)
#define AREA_BYTES  ((size_t)16 << 20) /* taken at a time, or four pieces */
#define PIECES_MAX  32                 /* of an area */

#define CARDS_AGAIN_MS 60000

struct staging_area {
    struct staging_area *next;
    struct card *card;
    bool on_card;
    bool may_pin, is_pinned; /* may_pin: nobody has tried */
    uint8_t *base;           /* memory of the session */
    size_t piece_bytes;
    uint32_t count, used; /* taken: bits */
};

static size_t piece_size(size_t bytes)
{
    size_t size = PIECE_LEAST;
    while (size < bytes) size *= 2;
    return size;
}

static uint32_t piece_count(size_t piece_bytes)
{
    if (piece_bytes >= AREA_BYTES / 4) return 4;
    return AREA_BYTES / piece_bytes < PIECES_MAX ? (uint32_t)(AREA_BYTES / piece_bytes)
                                                 : PIECES_MAX;
}

static bool has_free(const struct staging_area *area)
{
    return area->used != (uint32_t)((UINT64_C(1) << area->count) - 1);
}

static struct staging_area *find_area(struct session *s, const struct card *card, bool on_card,
                                      size_t piece_bytes)
{
    struct staging_area *area = s->staging_areas;
    while (area != NULL && (area->card != card || area->on_card != on_card ||
                            area->piece_bytes != piece_bytes || !has_free(area)))
        area = area->next;
    return area;
}

/* Frees an area on a card that no shard can be shown: pushing from there needs shards to map it,
 * and it cannot replace host memory. The reason may be the driver, for good, or a lack of
 * descriptors, for a while: so cards are tried again later, and the reason is told only once. */
static void refuse_cards(struct session *s, const void *base)
{
    if (s->staging_on_host_ms == 0)
        session_say(s, "memory of the GPU cannot be shown to other processes (the driver "
                       "exports none, or no descriptor is left): what is pushed from it "
                       "passes the host, until it can be");
    s->staging_on_host_ms = client_now_ms() + CARDS_AGAIN_MS;
    if (memory_free(s, base) != CAIRN_OK) return; // then it goes with the session
}

/* Between card_change_begin and _end, or of the host. */
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
    memory_show(s); // so that it goes by reference from the first piece on
    if (on_card && !memory_is_shown(s, base)) {
        refuse_cards(s, base);
        free(area);
        return NULL;
    }
    area->base = base;
    area->next = s->staging_areas;
    s->staging_areas = area;
    return area;
}

static struct staging_area *open_on_card(struct session *s, struct card *card, size_t piece_bytes)
{
    if (!card_change_begin()) return NULL;
    struct staging_area *area = open_area(s, card, true, piece_bytes);
    card_change_end();
    return area;
}

/* As soon as that keeps no stream waiting and no copy is under way: copies are slower until then. */
static void pin_area(struct staging_area *area)
{
    if (!area->may_pin || area->used != 0 || !card_change_begin()) return;
    area->may_pin = false;
    area->is_pinned = card_pin(area->card, area->base, area->count * area->piece_bytes);
    card_change_end();
}

cairn_status staging_acquire(struct session *s, struct card *card, bool on_card, size_t bytes,
                             struct staged *out)
{
    const size_t piece_bytes = piece_size(bytes);
    if (client_now_ms() < s->staging_on_host_ms) on_card = false;
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

void staging_return(struct staged *staged)
{
    struct staging_area *area = staged->area;
    const size_t piece = (size_t)(staged->at - area->base) / area->piece_bytes;
    area->used &= ~(UINT32_C(1) << piece);
    *staged = (struct staged) { 0 };
}

void staging_close(struct session *s)
{
    while (s->staging_areas != NULL) {
        struct staging_area *area = s->staging_areas;
        s->staging_areas = area->next;
        if (area->is_pinned) card_unpin(area->card, area->base);
        free(area);
    }
}

/* ==== tiles ==== */

void client_tiles_free(struct declared *declared)
{
    if (declared == NULL) return;
    tiles_release(&declared->tiles);
    packed_release(declared->packed);
    free(declared);
}

bool client_tiles_hold(const struct job *job)
{
    return job->tiles.declared != NULL && job->tiles.declared->world > 0;
}

struct piece client_tiles_own(struct job *job, size_t tensor)
{
    const struct shape *shape = &job->spec.tensors[tensor].shape;
    struct piece piece = { .box = box_of_shape(shape),
                           .whole = true,
                           .tile = CAIRN_TILE_WHOLE,
                           .table_hash = CAIRN_TABLE_HASH_WHOLE };
    pthread_mutex_lock(&job->session->lock);
    if (job->tiles.declared != NULL) {
        const struct cairn_box *box = tiles_find(&job->tiles.declared->tiles, (uint32_t)tensor);
        piece.table_hash = job->tiles.declared->hash;
        if (box != NULL) {
            piece.box = *box;
            piece.whole = false;
            piece.tile = CAIRN_TILE_OWN;
        }
    }
    pthread_mutex_unlock(&job->session->lock);
    return piece;
}

Cairn__TilesDeclare client_tiles_message(const struct declared *declared)
{
    Cairn__TilesDeclare message = CAIRN__TILES_DECLARE__INIT;
    message.world = declared->world;
    message.tiles_bytes = declared->packed->size;
    return message;
}

/* ==== filling ==== */

/* False: out of memory; to be released all the same. */
static bool filling_init(struct filling *filling, const struct job_spec_data *spec)
{
    filling->tensors = calloc(spec->tensor_count + 1, sizeof *filling->tensors);
    filling->frozen_tensors = calloc(spec->tensor_count + 1, sizeof *filling->frozen_tensors);
    filling->frozen_groups = calloc(spec->group_count + 1, sizeof *filling->frozen_groups);
    filling->rates = calloc(spec->group_count + 1, sizeof *filling->rates);
    if (filling->tensors == NULL || filling->frozen_tensors == NULL ||
        filling->frozen_groups == NULL || filling->rates == NULL)
        return false;
    filling->had_last = true; // before its first round it brings what it begins with
    for (size_t g = 0; g < spec->group_count; g++) filling->rates[g] = (double)NAN;
    return true;
}

static void filling_release(struct filling *filling)
{
    free(filling->tensors);
    free(filling->frozen_tensors);
    free(filling->frozen_groups);
    free(filling->rates);
}
