/* A job's layouts: how they are read and served; this worker's tiles; and the state of the job's
 * attachment. */
#include "client/layouts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "client/job.h"
#include "client/read.h"
#include "client/session.h"
#include "proto/geometry/layout.h"
#include "proto/plan/plan.h"
#include "proto/spec/spec.h"
#include "proto/spec/spec_fields.h"

/* ==== layout ==== */

/* A version may be read until KEPT_STEPS newer versions exist, and longer by a member that knows of
 * another member's lease. So outlived layouts are kept as long as all layouts together have at most
 * KEPT_EXTENTS extents. */
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
    HOLD_LOCK(&job->session->lock);
    served->older = job->served;
    job->served = served;
}

void served_layouts_serve_since(struct job *job, struct served_layout *served,
                                struct cairn_version since)
{
    HOLD_LOCK(&job->session->lock);
    served->since = since;
    served->found = false;
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

/* Returns true if no version that `served` serves is read any more; `newer` serves the later versions.
 * Under the lock. */
static bool is_outlived(const struct job *job, const struct served_layout *served,
                        const struct served_layout *newer)
{
    const struct cairn_version newest = job->known.newest, since = newer->since;
    if (version_compare(since, served->since) <= 0) return true; // `served` serves no version
    if (!are_too_much(job)) return false;
    if (job->leased.until_ms > monotonic_ms() && version_compare(job->leased.oldest, since) < 0)
        return false;
    return newest.generation > since.generation ||
           (newest.generation == since.generation && newest.step >= since.step &&
            newest.step - since.step >= KEPT_STEPS);
}

/* Returns the oldest outlived layout that is not in use; NULL: none. Under the lock. */
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
        struct served_layout *served = WITH_LOCK(&job->session->lock, unlink_served(&job->served));
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

bool served_layouts_left_by(const struct job *job, uint32_t shard)
{
    const struct served_layout *newest = job->served;
    return newest != NULL && shard < newest->layout->shard_count && newest->parts[shard].absent;
}

/* ==== tiles ==== */

void client_tiles_free(struct declared *declared)
{
    if (declared == NULL) return;
    tiles_release(&declared->tiles);
    packed_release(declared->packed);
    free(declared);
}

struct piece client_tiles_own(struct job *job, size_t tensor)
{
    const struct shape *shape = &job->spec.tensors[tensor].shape;
    struct piece piece = { .box = box_of_shape(shape),
                           .whole = true,
                           .tile = CAIRN_TILE_WHOLE,
                           .table_hash = CAIRN_TABLE_HASH_WHOLE };
    HOLD_LOCK(&job->session->lock);
    if (job->tiles.declared != NULL) {
        const struct cairn_box *box = tiles_find(&job->tiles.declared->tiles, (uint32_t)tensor);
        piece.table_hash = job->tiles.declared->hash;
        if (box != NULL) {
            piece.box = *box;
            piece.whole = false;
            piece.tile = CAIRN_TILE_OWN;
        }
    }
    return piece;
}

Cairn__TilesDeclare client_tiles_message(const struct declared *declared)
{
    Cairn__TilesDeclare message = CAIRN__TILES_DECLARE__INIT;
    message.world = declared->world;
    message.tiles_bytes = declared->packed->size;
    return message;
}

/* ==== reading ==== */

#define SMALL_BYTES 32768 /* pages of this size take less time to read than a thread to start */

/* ---- the spec ---- */

/* Compares the tensors' names, and those of their properties that an amendment may change: the
 * kind, the wire dtype, and whether the tensor is an alias. */
static bool same_tensors(const struct job_spec_data *a, const struct job_spec_data *b)
{
    if (a->tensor_count != b->tensor_count) return false;
    for (size_t i = 0; i < a->tensor_count; i++) {
        const struct tensor_spec *x = &a->tensors[i], *y = &b->tensors[i];
        if (strcmp(x->name, y->name) != 0 || x->kind != y->kind || x->wire != y->wire ||
            (x->alias_of == NULL) != (y->alias_of == NULL))
            return false;
    }
    return true;
}

/* Returns true if the terms that must not change while a handle is open are equal. */
static bool same_terms(const struct job_spec_data *a, const struct job_spec_data *b)
{
    for (size_t i = 0; i < spec_fields.count; i++) {
        const struct spec_field *field = &spec_fields.fields[i];
        if (field->change != CAIRN_SPEC_NEXT_ROUND &&
            spec_field_bits(field, a) != spec_field_bits(field, b))
            return false;
    }
    return true;
}

/* Returns true if the servers' spec is byte for byte the spec that this worker sent. Usually the two
 * are equal, and reading a million tensors again would take seconds, and memory for another spec. */
static bool is_what_was_sent(const struct job *job)
{
    const struct packed *sent = job->attachment.spec_packed;
    const struct paged *came = &job->attachment.parts[CAIRN_PART_SPEC];
    return sent != NULL && sent->size == came->have_bytes &&
           memcmp(sent->bytes, came->bytes, sent->size) == 0;
}

static cairn_status judge_spec(struct reading *reading)
{
    const struct job *job = reading->job;
    const struct job_spec_data *spec = &reading->spec;
    if (!(reading->first && job->member.role == CAIRN_READER) && !spec_joins(&job->spec, spec)) {
        return fail_with(&reading->why, CAIRN_ERR_MISMATCH,
                         "job %s is another one now (%zu differences); open it again", job->name,
                         spec_diff(&job->spec, spec, 0, NULL, NULL));
    }
    reading->tells_clip_norm = true;
    reading->clip_norm = spec->clip_norm;
    reading->takes_spec = reading->first;
    if (reading->first || (same_tensors(&job->spec, spec) && same_terms(&job->spec, spec)))
        return CAIRN_OK;
    return fail_with(&reading->why, CAIRN_ERR_REOPEN,
                     "job %s was amended, revision %" PRIu64
                     ": its tensors or terms have changed; close it and open it again, with the "
                     "old spec or the new one",
                     job->name, spec->revision);
}

/* Reads the servers' spec. The first attach takes this spec over: a reader has no spec, and a
 * worker's spec may be older than an amendment. A later attach keeps the job's spec: if the tensors
 * were different, nothing that this member knows of the job would apply any more. */
static cairn_status read_spec(struct reading *reading)
{
    const struct job *job = reading->job;
    if (reading->first && is_what_was_sent(job)) {
        reading->tells_clip_norm = true;
        reading->clip_norm = job->spec.clip_norm;
        return CAIRN_OK;
    }
    const struct paged *came = &job->attachment.parts[CAIRN_PART_SPEC];
    const cairn_status status = spec_unpack(came->bytes, came->have_bytes, optimizer_names(),
                                            &reading->spec, &reading->why);
    if (status == CAIRN_OK) return judge_spec(reading);
    spec_init(&reading->spec);
    return status;
}

/* ---- the layout ---- */

cairn_status layout_of_pages(const struct job_spec_data *spec, const struct paged *pages,
                             struct layout **layout_out)
{
    struct layout *layout;
    CAIRN_TRY(plan_job_decode(spec, pages->bytes, pages->have_bytes, &layout));
    if (layout->shard_count > CAIRN_CLIENT_SHARDS_MAX) {
        layout_close(layout);
        return CAIRN_ERR_PROTOCOL;
    }
    *layout_out = layout;
    return CAIRN_OK;
}

static cairn_status read_layout(struct reading *reading)
{
    const struct job *job = reading->job;
    const struct paged *pages = &job->attachment.parts[CAIRN_PART_LAYOUT];
    const struct job_spec_data *spec = reading->takes_spec ? &reading->spec : &job->spec;
    const struct cairn_version none = { 0, 0 };
    cairn_status status = layout_of_pages(spec, pages, &reading->layout);
    if (status != CAIRN_OK || !reading->wants_served) return status;
    status = served_layout_open(spec, reading->layout, none, &reading->served);
    if (status == CAIRN_OK) reading->layout = NULL;
    return status;
}

/* ---- both ---- */

static void *run(void *arg)
{
    struct reading *reading = arg;
    reading->spec_status = read_spec(reading);
    if (reading->spec_status == CAIRN_OK) reading->layout_status = read_layout(reading);
    atomic_store(&reading->is_over, true);
    if (reading->has_thread) session_kick(reading->job->session);
    return NULL;
}

cairn_status reading_begin(struct job *job)
{
    const struct attachment *attachment = &job->attachment;
    const struct paged *parts = attachment->parts;
    const uint64_t bytes = parts[CAIRN_PART_SPEC].have_bytes + parts[CAIRN_PART_LAYOUT].have_bytes;
    struct reading *reading = calloc(1, sizeof *reading);
    if (reading == NULL) return CAIRN_ERR_NO_MEMORY;
    spec_init(&reading->spec);
    reading->job = job;
    reading->first = !attachment->attached_once;
    reading->wants_served = job->served == NULL;
    reading->has_thread = bytes > SMALL_BYTES;
    job->attachment.reading = reading;
    if (reading->has_thread && pthread_create(&reading->thread, NULL, run, reading) == 0)
        return CAIRN_OK;
    reading->has_thread = false;
    run(reading);
    return CAIRN_OK;
}

void reading_await(struct reading *reading)
{
    if (reading->has_thread) pthread_join(reading->thread, NULL);
    reading->has_thread = false;
}

/* Waits until the reading is over, and frees the results that nobody took over. NULL is fine. */
static void reading_free(struct reading *reading)
{
    if (reading == NULL) return;
    reading_await(reading);
    spec_release(&reading->spec);
    if (reading->layout != NULL) layout_close(reading->layout);
    served_layout_put(reading->served);
    free(reading);
}

/* ==== attachment ==== */

void attachment_put_off(struct job *job, const char *why)
{
    HOLD_LOCK(&job->session->lock);
    sentence_set(&job->attachment.put_off, "%s", why);
}

void attachment_drop_pages(struct attachment *attachment)
{
    reading_free(attachment->reading);
    attachment->reading = NULL;
    paged_release(attachment->parts, CAIRN_PARTS);
    message_free((ProtobufCMessage *)attachment->reply);
    attachment->reply = NULL;
}

void attachment_drop_changed(struct attachment *attachment)
{
    paged_release(&attachment->changed_part, 1);
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
