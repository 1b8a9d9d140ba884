/* The published copies of a job: see published.h. */
#include "server/shard/read/published.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/geometry/published.h"
#include "server/shard/shard.h"

#define COPIES_ALWAYS 2 /* of every job; the others are for leases */

static const struct cairn_published NO_COPY = { .head = { .base = NULL } };

static bool is_there(const struct cairn_published *copy)
{
    return copy->checksums != NULL;
}

/* ---- copies ---- */

/* What so many bytes take of a device. */
static uint64_t units(uint64_t bytes)
{
    const uint64_t unit = CAIRN_PLANE_UNIT_BYTES;
    return (bytes + unit - 1) / unit * unit;
}

static uint64_t device_bytes(const struct cairn_published *copy)
{
    return units(copy->device.bytes);
}

/* Of the budget, for a copy more. */
static uint64_t copy_bytes(const struct cairn_shard_job *job)
{
    return CAIRN_PUBLISHED_PAGE_BYTES + job->versions.copies[job->versions.newest].wire.bytes +
           (job->view->table.map.chunk_count + 1) * sizeof(uint64_t);
}

static struct cairn_published_head *head_of(const struct cairn_published *copy)
{
    return (struct cairn_published_head *)copy->head.base;
}

static void show(const struct cairn_published *copy, struct cairn_member *member)
{
    if (!is_there(copy) || member->peer == NULL) return;
    cairn_arena_show(&copy->head, member->peer);
    cairn_arena_show(&copy->wire, member->peer);
    cairn_arena_show(&copy->device, member->peer);
}

/* Members of this host may map it, and nobody but this process writes to it. */
static void share_copy(struct cairn_shard_job *job, struct cairn_published *copy)
{
    const uint32_t count = (uint32_t)cairn_published_segments(copy->wire.bytes);
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
    cairn_published_set_copy(head_of(copy), note.copy);
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

static cairn_status open_host(struct cairn_published *copy, uint32_t index, uint64_t wire_bytes,
                              struct cairn_sentence *why)
{
    char label[32];
    struct cairn_home *host = cairn_home_host();
    snprintf(label, sizeof label, "cairn-head-%u", (unsigned)index);
    cairn_status status = cairn_arena_open_shared(host, label, CAIRN_PUBLISHED_PAGE_BYTES,
                                                  &copy->head, why);
    snprintf(label, sizeof label, "cairn-wire-%u", (unsigned)index);
    if (status == CAIRN_OK)
        status = cairn_arena_open_shared(host, label, wire_bytes, &copy->wire, why);
    if (status == CAIRN_OK && cairn_arena_take(&copy->head, 0, copy->head.bytes) != CAIRN_OK)
        status = cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the head of a version");
    return status;
}

/* If all of the job lies on the device: processes that use the card read it there. */
static bool has_device_side(const struct cairn_shard_job *job)
{
    const struct cairn_home *home = job->shard->device.home;
    return home != NULL && cairn_home_info(home)->exports &&
           job->planes.host_from == job->view->table.map.elem_count;
}

static cairn_status open_device(struct cairn_shard_job *job, struct cairn_published *copy,
                                uint64_t wire_bytes, struct cairn_sentence *why)
{
    if (!has_device_side(job)) return CAIRN_OK;
    return cairn_arena_open_shared(job->shard->device.home, "published", wire_bytes, &copy->device,
                                   why);
}

static uint32_t copy_count(const struct cairn_shard_job *job)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++)
        count += is_there(&job->versions.copies[i]);
    return count;
}

/* Beside what the streams of the device may still take for themselves. */
static bool has_room(const struct cairn_shard_job *job, uint64_t bytes)
{
    const uint64_t staging = cairn_compute_staging_left(&job->shard->device);
    const uint64_t free_bytes = cairn_home_free_bytes(job->shard->device.home);
    return staging <= free_bytes && bytes <= free_bytes - staging;
}

/* The `count`-th of the copies. Those beyond two are for leases: without the device's side, if there is no
 * room. */
static cairn_status open_side(struct cairn_shard_job *job, struct cairn_published *copy,
                              uint32_t count, uint64_t wire_bytes, struct cairn_sentence *why)
{
    const bool may_lack = count > COPIES_ALWAYS;
    if (may_lack && has_device_side(job) && !has_room(job, units(wire_bytes))) return CAIRN_OK;
    const cairn_status status = open_device(job, copy, wire_bytes, why);
    return may_lack && status == CAIRN_ERR_NO_MEMORY ? CAIRN_OK : status;
}

/* In the job's view. */
static cairn_status open_copy(struct cairn_shard_job *job, uint32_t index,
                              struct cairn_sentence *why)
{
    struct cairn_published *copy = &job->versions.copies[index];
    const uint64_t wire_bytes = job->view->wire_bytes;
    *copy = NO_COPY;
    copy->checksums = calloc((size_t)job->view->table.map.chunk_count + 1, sizeof *copy->checksums);
    if (copy->checksums == NULL)
        return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory for the checksums of a version");
    copy->view = cairn_shard_view_ref(job->view);
    cairn_status status = open_host(copy, index, wire_bytes, why);
    if (status == CAIRN_OK && !job->planes.parked && !job->park.is_under_way)
        status = open_side(job, copy, copy_count(job), wire_bytes, why);
    if (status == CAIRN_OK) {
        cairn_published_head_init(head_of(copy), &copy->view->table.map, job->number, wire_bytes);
        share_copy(job, copy);
        return CAIRN_OK;
    }
    cairn_arena_close(&copy->head);
    cairn_arena_close(&copy->wire);
    free(copy->checksums);
    cairn_shard_view_unref(copy->view);
    *copy = NO_COPY;
    return status;
}

static void close_copy(const struct cairn_shard_job *job, struct cairn_published *copy)
{
    if (!is_there(copy)) return;
    // Whoever has it mapped sees that it is no version any more.
    cairn_published_write_begin(head_of(copy));
    cairn_release(job->shard, &copy->head);
    cairn_release(job->shard, &copy->wire);
    cairn_release(job->shard, &copy->device);
    free(copy->checksums);
    cairn_shard_view_unref(copy->view);
    *copy = NO_COPY;
}

cairn_status cairn_published_open(struct cairn_shard_job *job, struct cairn_sentence *why)
{
    cairn_status status = open_copy(job, 0, why);
    if (status == CAIRN_OK) status = open_copy(job, 1, why);
    return status;
}

void cairn_published_close(struct cairn_shard_job *job)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++)
        close_copy(job, &job->versions.copies[i]);
}

const struct cairn_published *cairn_published_find(const struct cairn_shard_job *job,
                                                   struct cairn_version version)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        const struct cairn_published *copy = &job->versions.copies[i];
        if (copy->readable && cairn_version_compare(copy->version, version) == 0) return copy;
    }
    return NULL;
}

cairn_status cairn_published_missing(const struct cairn_shard_job *job,
                                     struct cairn_version version)
{
    return cairn_version_compare(job->versions.copies[job->versions.newest].version, version) < 0
               ? CAIRN_ERR_NOT_READY
               : CAIRN_ERR_VERSION_GONE;
}

static uint64_t offset_of(const struct cairn_shard_view *view, uint64_t chunk, uint64_t local_elem)
{
    const uint32_t extent = view->table.extent_of[chunk];
    const struct cairn_form *form = &view->forms[extent];
    const uint64_t elems = local_elem - view->table.map.extents[extent].local_elem;
    return form->wire_byte + elems * cairn_dtype_bytes((int)form->wire);
}

uint8_t *cairn_published_at(const struct cairn_published *copy, uint64_t chunk, uint64_t local_elem)
{
    uint8_t *base = copy->device.base != NULL ? copy->device.base : copy->wire.base;
    return base + offset_of(copy->view, chunk, local_elem);
}

uint8_t *cairn_published_host_at(const struct cairn_published *copy, uint64_t chunk,
                                 uint64_t local_elem)
{
    return copy->wire.base + offset_of(copy->view, chunk, local_elem);
}

/* Nobody would miss it: not the newest, not leased, not being written. */
static bool is_spare(const struct cairn_shard_job *job, uint32_t index)
{
    const struct cairn_published *copy = &job->versions.copies[index];
    if (!is_there(copy) || index == job->versions.newest || index == job->versions.writing)
        return false;
    return !copy->readable || !cairn_shard_is_leased(job, copy->version);
}

/* The spare copy of the oldest version, one that has none first; CAIRN_SHARD_PUBLISHED_MAX: none. */
static uint32_t oldest_spare(const struct cairn_shard_job *job)
{
    uint32_t best = CAIRN_SHARD_PUBLISHED_MAX;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        const struct cairn_published *copy = &job->versions.copies[i];
        if (!is_spare(job, i)) continue;
        if (!copy->readable) return i;
        if (best == CAIRN_SHARD_PUBLISHED_MAX ||
            cairn_version_compare(copy->version, job->versions.copies[best].version) < 0)
            best = i;
    }
    return best;
}

/* Somebody reads published copies in host memory, or may: who is of another host, or uses no card or another
 * one. */
static bool host_is_read(const struct cairn_shard_job *job)
{
    const uint8_t *uuid = cairn_home_info(job->compute->home)->uuid;
    for (size_t i = 0; i < job->members.capacity; i++) {
        const struct cairn_member *member = job->members.list[i];
        if (member != NULL &&
            (member->peer == NULL || !cairn_fabric_peer_imports(member->peer, uuid)))
            return true;
    }
    return false;
}

static uint32_t sides_of(const struct cairn_published *copy)
{
    return (copy->on_host ? CAIRN_PUBLISHED_HOST : 0u) |
           (copy->device.base != NULL ? CAIRN_PUBLISHED_DEVICE : 0u);
}

struct cairn_published *cairn_published_begin(struct cairn_shard_job *job, bool on_host)
{
    const uint32_t index = oldest_spare(job);
    assert(job->versions.writing == CAIRN_PUBLISHED_NONE && index < CAIRN_SHARD_PUBLISHED_MAX);
    struct cairn_published *copy = &job->versions.copies[index];
    job->versions.writing = index;
    copy->readable = false;
    copy->on_host = on_host || copy->device.base == NULL || host_is_read(job);
    cairn_published_write_begin(head_of(copy));
    return copy;
}

static void is_written(struct cairn_published *copy, struct cairn_version version)
{
    cairn_published_write_end(head_of(copy), version, sides_of(copy));
    copy->version = version;
    copy->readable = true;
}

void cairn_published_end(struct cairn_shard_job *job, struct cairn_version version,
                         bool frozen_changed)
{
    assert(job->versions.writing != CAIRN_PUBLISHED_NONE);
    for (uint32_t i = 0; frozen_changed && i < CAIRN_SHARD_PUBLISHED_MAX; i++)
        job->versions.copies[i].stale = true;
    job->versions.newest = job->versions.writing;
    job->versions.writing = CAIRN_PUBLISHED_NONE;
    is_written(&job->versions.copies[job->versions.newest], version);
    job->versions.copies[job->versions.newest].stale = false;
}

void cairn_published_seal(struct cairn_shard_job *job, struct cairn_version version)
{
    job->versions.newest = 0;
    job->versions.copies[0].on_host = true;
    is_written(&job->versions.copies[0], version);
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
        count += is_there(copy);
        if (!all)
            bytes += device_bytes(copy);
        else if (is_there(copy) && count <= COPIES_ALWAYS && has_device_side(job))
            bytes += units(copy->wire.bytes);
    }
    return bytes;
}

cairn_status cairn_published_open_device(struct cairn_shard_job *job, struct cairn_sentence *why)
{
    cairn_status status = CAIRN_OK;
    uint32_t count = 0;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX && status == CAIRN_OK; i++) {
        struct cairn_published *copy = &job->versions.copies[i];
        if (is_there(copy)) status = open_side(job, copy, ++count, copy->wire.bytes, why);
    }
    return status;
}

/* Whoever has a side mapped keeps that, and what was read of it; nobody begins to read one that is gone. */
static void tell_sides(const struct cairn_published *copy)
{
    if (copy->readable) cairn_published_set_sides(head_of(copy), sides_of(copy));
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

/* ---- copies for leases ---- */

/* How many versions are leased: each of them has a copy beyond the two. */
static uint32_t leased_count(const struct cairn_shard_job *job)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        const struct cairn_published *copy = &job->versions.copies[i];
        count += copy->readable && cairn_shard_is_leased(job, copy->version);
    }
    return count;
}

cairn_status cairn_published_add(struct cairn_shard_job *job, const char *what,
                                 struct cairn_sentence *why)
{
    const uint64_t bytes = copy_bytes(job);
    uint32_t index = 0;
    while (index < CAIRN_SHARD_PUBLISHED_MAX && is_there(&job->versions.copies[index])) index++;
    if (index == CAIRN_SHARD_PUBLISHED_MAX)
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "%d versions of job %s are leased already, the most there can be: wait "
                          "until one of these leases ends, or share its version",
                          CAIRN_LEASED_VERSIONS_MAX, job->spec.name);
    cairn_status status = cairn_shard_job_take(job, &job->memory.published, bytes, what, why);
    if (status != CAIRN_OK) return status;
    status = open_copy(job, index, why);
    if (status != CAIRN_OK) {
        cairn_shard_job_give(job, &job->memory.published, bytes);
        return status;
    }
    job->memory.device += device_bytes(&job->versions.copies[index]);
    job->versions.copies[index].stale = true; // it has no frozen tensors yet
    return CAIRN_OK;
}

void cairn_published_trim(struct cairn_shard_job *job)
{
    const uint64_t bytes = copy_bytes(job);
    if (job->park.is_under_way) return; // it copies them; when it has ended
    while (copy_count(job) > COPIES_ALWAYS + leased_count(job)) {
        const uint32_t index = oldest_spare(job);
        assert(index < CAIRN_SHARD_PUBLISHED_MAX); // of three that nobody leased, two are in use
        if (job->versions.copies[index].sends > 0) return; // when they end
        job->memory.device -= device_bytes(&job->versions.copies[index]);
        close_copy(job, &job->versions.copies[index]);
        // At once: the next lease takes them.
        cairn_shard_job_give(job, &job->memory.published, bytes);
    }
}

void cairn_published_lend(struct cairn_shard_job *job, const struct cairn_published *copy)
{
    job->versions.copies[copy - job->versions.copies].sends++;
}

void cairn_published_return(struct cairn_shard_job *job, const struct cairn_published *copy)
{
    assert(copy->sends > 0);
    if (--job->versions.copies[copy - job->versions.copies].sends > 0) return;
    if (job->state != CAIRN_JOB_SERVING) return;
    cairn_published_trim(job);
    job->shard->up->copies_ended(job);
}
