/* The memory of published copies, and the sides that they have: see copies.h. */
#include "server/shard/read/copies.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/geometry/published.h"
#include "server/shard/shard.h"

#define SETTLED_WRITES 8 /* in one view: then the layout is taken to stay */
/* The bytes that a copy keeps for each chunk: its checksum, and whether it was brought. */
#define CHUNK_BYTES (sizeof(uint64_t) + sizeof(uint8_t))

static const struct cairn_published NO_COPY = { .head = { .base = NULL } };

bool cairn_copy_is_there(const struct cairn_published *copy)
{
    return copy->checksums != NULL;
}

uint64_t cairn_copy_device_bytes(const struct cairn_published *copy)
{
    return cairn_plane_units(copy->device.bytes);
}

/* The bytes of the budget that one more copy takes. */
uint64_t cairn_copy_bytes(const struct cairn_shard_job *job)
{
    return CAIRN_PUBLISHED_PAGE_BYTES + job->view->wire_bytes +
           (job->view->table.map.chunk_count + 1) * CHUNK_BYTES;
}

struct cairn_published_head *cairn_copy_head(const struct cairn_published *copy)
{
    return (struct cairn_published_head *)copy->head.base;
}

static void show(const struct cairn_published *copy, struct cairn_member *member)
{
    if (!cairn_copy_is_there(copy) || member->peer == NULL) return;
    cairn_arena_show(&copy->head, member->peer);
    cairn_arena_show(&copy->wire, member->peer);
    cairn_arena_show(&copy->device, member->peer);
}

/* Members of this host may map it, and nobody but this process writes to it. */
static void share_copy(struct cairn_shard_job *job, struct cairn_published *copy)
{
    const uint32_t count = (uint32_t)cairn_segments(copy->wire.bytes);
    struct cairn_published_note note = { .magic = CAIRN_PUBLISHED_MAGIC,
                                         .shard = job->view->table.map.shard,
                                         .job = job->number,
                                         .incarnation = job->shard->incarnation,
                                         .copy = ++job->shard->copies_made,
                                         .segment_count = count,
                                         .side = CAIRN_PUBLISHED_HOST };
    memcpy(&note.layout_hash, copy->view->layout->hash, sizeof note.layout_hash);
    bool all = cairn_arena_share(&copy->wire, job->shard->fabric, &note);
    note.segment = count;
    all = all && cairn_arena_share(&copy->head, job->shard->fabric, &note);
    note.segment = 0;
    note.side = CAIRN_PUBLISHED_DEVICE;
    cairn_published_set_copy(cairn_copy_head(copy), note.copy);
    all = all && cairn_arena_share(&copy->device, job->shard->fabric, &note);
    if (!all) {
        cairn_arena_unshare(&copy->head, false);
        cairn_arena_unshare(&copy->wire, false);
        cairn_log_warn("job %s: a published copy cannot be shared with this host: it is sent",
                       job->spec.name);
        return;
    }
    for (size_t i = 0; i < job->members.capacity; i++)
        if (job->members.list[i] != NULL) show(copy, job->members.list[i]);
}

void cairn_published_show(struct cairn_member *member)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++)
        show(&member->job->versions.copies[i], member);
}

/* In /proc. */
struct label {
    char text[32];
};

static struct label label_of(const struct cairn_shard_job *job, const struct cairn_published *copy,
                             const char *what)
{
    struct label label;
    snprintf(label.text, sizeof label.text, "cairn-%s-%u", what,
             (unsigned)(copy - job->versions.copies));
    return label;
}

static cairn_status open_head(const struct cairn_shard_job *job, struct cairn_published *copy,
                              struct cairn_sentence *why)
{
    const struct label label = label_of(job, copy, "head");
    const cairn_status status = cairn_arena_open_shared(
        cairn_home_host(), label.text, CAIRN_PUBLISHED_PAGE_BYTES, &copy->head, why);
    if (status != CAIRN_OK || cairn_arena_take(&copy->head, 0, copy->head.bytes) == CAIRN_OK)
        return status;
    return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the head of a version");
}

/* The last segment of a copy keeps the pages of the largest view that the copy had (gpu/home.h), so
 * that no step of a move pays for new ones. True if the segment is to be made anew to give the
 * excess back: no other view has followed for a while, and the excess is not small beside the
 * copy. */
static bool is_too_large(const struct cairn_published *copy)
{
    const uint64_t bytes = copy->wire.bytes, last = bytes % CAIRN_SEGMENT_BYTES;
    const uint64_t room = last > 0 ? CAIRN_SEGMENT_BYTES - last : 0,
                   beyond = copy->most_bytes - bytes;
    return copy->settled >= SETTLED_WRITES && (beyond < room ? beyond : room) > bytes / 16;
}

/* Gives back the last segment of a copy; the segments before it stay. */
static void give_last_segment(const struct cairn_shard_job *job, struct cairn_published *copy,
                              const char *label)
{
    const uint64_t full = copy->wire.bytes / CAIRN_SEGMENT_BYTES * CAIRN_SEGMENT_BYTES;
    struct cairn_sentence why;
    if (full == 0 || cairn_arena_resize(&copy->wire, label, full, &why) != CAIRN_OK)
        cairn_release(job->shard, &copy->wire);
    copy->most_bytes = copy->wire.bytes;
}

/* The bytes that the job's view wants; what there are stay, where that is possible. */
static cairn_status size_wire(const struct cairn_shard_job *job, struct cairn_published *copy,
                              struct cairn_sentence *why)
{
    const struct label label = label_of(job, copy, "wire");
    const uint64_t bytes = job->view->wire_bytes;
    if (is_too_large(copy)) give_last_segment(job, copy, label.text);
    if (bytes == 0) cairn_release(job->shard, &copy->wire);
    copy->settled = 0;
    if (copy->wire.base != NULL) {
        if (bytes > copy->most_bytes) copy->most_bytes = bytes;
        return cairn_arena_resize(&copy->wire, label.text, bytes, why);
    }
    copy->most_bytes = bytes;
    const cairn_status status = cairn_arena_open_shared_room(
        label.text, bytes, job->versions.room_bytes, &copy->wire, why);
    if (status == CAIRN_OK) cairn_arena_pins_for(&copy->wire, job->compute->home);
    return status;
}

/* If all of the job lies on the device: processes that use the card read it there. */
static bool has_device_side(const struct cairn_shard_job *job)
{
    const struct cairn_home *home = job->shard->device.home;
    return home != NULL && cairn_home_info(home)->exports &&
           job->planes.host_from == CAIRN_PLANES_ALL;
}

static cairn_status open_device(struct cairn_shard_job *job, struct cairn_published *copy,
                                uint64_t wire_bytes, struct cairn_sentence *why)
{
    if (!has_device_side(job)) return CAIRN_OK;
    return cairn_arena_open_shared(job->shard->device.home, "published", wire_bytes, &copy->device,
                                   why);
}

uint32_t cairn_copy_count(const struct cairn_shard_job *job)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++)
        count += cairn_copy_is_there(&job->versions.copies[i]);
    return count;
}

/* Beside what the streams of the device may still take for themselves. */
static bool has_room(const struct cairn_shard_job *job, uint64_t bytes)
{
    const uint64_t staging = cairn_compute_staging_left(&job->shard->device);
    const uint64_t free_bytes = cairn_home_free_bytes(job->shard->device.home);
    return staging <= free_bytes && bytes <= free_bytes - staging;
}

/* Opens the device's side of the `count`-th copy. Copies beyond the first two are for leases, and
 * do without that side if there is no room. */
static cairn_status open_side(struct cairn_shard_job *job, struct cairn_published *copy,
                              uint32_t count, uint64_t wire_bytes, struct cairn_sentence *why)
{
    const bool may_lack = count > CAIRN_COPIES_ALWAYS;
    if (may_lack && has_device_side(job) && !has_room(job, cairn_plane_units(wire_bytes)))
        return CAIRN_OK;
    const cairn_status status = open_device(job, copy, wire_bytes, why);
    return may_lack && status == CAIRN_ERR_NO_MEMORY ? CAIRN_OK : status;
}

/* Makes the records of the copy's chunks: no checksum is known yet, and no chunk was brought. */
static cairn_status open_chunks(const struct cairn_shard_job *job, struct cairn_published *copy,
                                struct cairn_sentence *why)
{
    const size_t count = (size_t)job->view->table.map.chunk_count + 1;
    uint64_t *checksums = calloc(count, sizeof *checksums);
    uint8_t *brought = calloc(count, sizeof *brought);
    if (checksums == NULL || brought == NULL) {
        free(checksums);
        free(brought);
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the checksums of a version");
    }
    free(copy->checksums);
    free(copy->brought);
    copy->checksums = checksums;
    copy->brought = brought;
    return CAIRN_OK;
}

cairn_status cairn_copy_open(struct cairn_shard_job *job, uint32_t index,
                             struct cairn_sentence *why)
{
    struct cairn_published *copy = &job->versions.copies[index];
    const uint64_t wire_bytes = job->view->wire_bytes;
    *copy = NO_COPY;
    cairn_status status = open_chunks(job, copy, why);
    if (status != CAIRN_OK) return status;
    copy->view = cairn_shard_view_ref(job->view);
    status = open_head(job, copy, why);
    if (status == CAIRN_OK) status = size_wire(job, copy, why);
    if (status == CAIRN_OK && !job->planes.parked && !job->park.is_under_way)
        status = open_side(job, copy, cairn_copy_count(job), wire_bytes, why);
    if (status == CAIRN_OK) {
        cairn_published_head_init(cairn_copy_head(copy), &copy->view->table.map, job->number,
                                  wire_bytes);
        share_copy(job, copy);
        return CAIRN_OK;
    }
    cairn_arena_close(&copy->head);
    cairn_arena_close(&copy->wire);
    free(copy->checksums);
    free(copy->brought);
    cairn_shard_view_unref(copy->view);
    *copy = NO_COPY;
    return status;
}

void cairn_copy_close(const struct cairn_shard_job *job, struct cairn_published *copy)
{
    if (!cairn_copy_is_there(copy)) return;
    // Whoever has it mapped sees that it is no version any more.
    if (copy->head.base != NULL) cairn_published_write_begin(cairn_copy_head(copy));
    cairn_release(job->shard, &copy->head);
    cairn_release(job->shard, &copy->wire);
    cairn_release(job->shard, &copy->device);
    free(copy->checksums);
    free(copy->brought);
    cairn_shard_view_unref(copy->view);
    *copy = NO_COPY;
}

/* Its side on the device, for the job's view. Where there is no room it goes on without. */
static cairn_status follow_device(struct cairn_shard_job *job, struct cairn_published *copy,
                                  struct cairn_sentence *why)
{
    if (job->planes.parked) return CAIRN_OK;
    job->memory.device -= cairn_copy_device_bytes(copy);
    cairn_arena_unshare(&copy->device, false);
    cairn_arena_close(&copy->device);
    const uint64_t bytes = job->view->wire_bytes;
    if (!has_device_side(job) || has_room(job, cairn_plane_units(bytes))) {
        const cairn_status status = open_device(job, copy, bytes, why);
        if (status != CAIRN_OK && status != CAIRN_ERR_NO_MEMORY) return status;
    }
    job->memory.device += cairn_copy_device_bytes(copy);
    copy->on_host = copy->on_host || copy->device.base == NULL;
    return CAIRN_OK;
}

cairn_status cairn_copy_follow(struct cairn_shard_job *job, struct cairn_published *copy,
                               struct cairn_sentence *why)
{
    if (copy->view == job->view) {
        copy->settled++;
        if (!is_too_large(copy)) return CAIRN_OK;
    }
    cairn_status status = open_chunks(job, copy, why);
    if (status != CAIRN_OK) return status;
    copy->readable = copy->holds_params = false;
    copy->stale = true;
    // Whoever has it mapped keeps the old head, which says for good that it is no version.
    cairn_published_write_begin(cairn_copy_head(copy));
    cairn_arena_unshare(&copy->head, false);
    cairn_arena_unshare(&copy->wire, false);
    cairn_arena_close(&copy->head);
    status = size_wire(job, copy, why);
    if (status == CAIRN_OK) status = follow_device(job, copy, why);
    if (status == CAIRN_OK) status = open_head(job, copy, why);
    if (status != CAIRN_OK) return status;
    cairn_shard_view_unref(copy->view);
    copy->view = cairn_shard_view_ref(job->view);
    cairn_published_head_init(cairn_copy_head(copy), &copy->view->table.map, job->number,
                              copy->view->wire_bytes);
    share_copy(job, copy);
    return CAIRN_OK;
}

uint32_t cairn_copy_sides(const struct cairn_published *copy)
{
    return (copy->on_host ? CAIRN_PUBLISHED_HOST : 0u) |
           (copy->device.base != NULL ? CAIRN_PUBLISHED_DEVICE : 0u);
}

/* ---- parked, and back ---- */

bool cairn_published_move(const struct cairn_shard_job *job, bool to_host, uint32_t n,
                          struct cairn_published_move *move_out)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        const struct cairn_published *copy = &job->versions.copies[i];
        if (copy->device.base == NULL || (to_host && (copy->on_host || !copy->readable))) continue;
        if (n-- > 0) continue;
        *move_out = to_host ? (struct cairn_published_move) { copy->wire.base, copy->device.base,
                                                              copy->wire.bytes }
                            : (struct cairn_published_move) { copy->device.base, copy->wire.base,
                                                              copy->wire.bytes };
        return true;
    }
    return false;
}

uint64_t cairn_published_device_bytes(const struct cairn_shard_job *job, bool all)
{
    uint64_t bytes = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        const struct cairn_published *copy = &job->versions.copies[i];
        count += cairn_copy_is_there(copy);
        if (!all)
            bytes += cairn_copy_device_bytes(copy);
        else if (cairn_copy_is_there(copy) && count <= CAIRN_COPIES_ALWAYS && has_device_side(job))
            bytes += cairn_plane_units(copy->wire.bytes);
    }
    return bytes;
}

cairn_status cairn_published_open_device(struct cairn_shard_job *job, struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    uint32_t count = 0;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX && status == CAIRN_OK; i++) {
        struct cairn_published *copy = &job->versions.copies[i];
        if (cairn_copy_is_there(copy))
            status = open_side(job, copy, ++count, copy->wire.bytes, why);
    }
    return status;
}

/* Whoever has a side mapped keeps that, and what was read of it; nobody begins to read one that is gone. */
static void tell_sides(const struct cairn_published *copy)
{
    if (copy->readable) cairn_published_set_sides(cairn_copy_head(copy), cairn_copy_sides(copy));
}

void cairn_published_park(struct cairn_shard_job *job)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        struct cairn_published *copy = &job->versions.copies[i];
        if (copy->device.base == NULL) continue;
        cairn_arena_unshare(&copy->device, false);
        cairn_release(job->shard, &copy->device);
        copy->on_host = true;
        tell_sides(copy);
    }
}

void cairn_published_unpark(struct cairn_shard_job *job)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        struct cairn_published *copy = &job->versions.copies[i];
        if (copy->device.base == NULL) continue;
        cairn_arena_unshare(&copy->head, false);
        cairn_arena_unshare(&copy->wire, false);
        share_copy(job, copy); // under another number: with the new side
        tell_sides(copy);
    }
}
