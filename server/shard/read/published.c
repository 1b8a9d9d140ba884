/* The published copies of a job: see published.h. */
#include "server/shard/read/published.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/geometry/published.h"
#include "server/shard/read/bring.h"
#include "server/shard/read/copies.h"
#include "server/shard/read/mutant.h"
#include "server/shard/shard.h"

cairn_status cairn_published_open(struct cairn_shard_job *job, struct cairn_sentence *why)
{
    cairn_status status = cairn_copy_open(job, 0, why);
    if (status == CAIRN_OK) status = cairn_copy_open(job, 1, why);
    return status;
}

void cairn_published_close(struct cairn_shard_job *job)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++)
        cairn_copy_close(job, &job->versions.copies[i]);
}

/* The readable copy of the version whose layout is the last one before layout_end; NULL: none. */
static const struct cairn_published *find(const struct cairn_shard_job *job,
                                          struct cairn_version version, uint64_t layout_end)
{
    const struct cairn_published *best = NULL;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        const struct cairn_published *copy = &job->versions.copies[i];
        if (!copy->readable || cairn_version_compare(copy->version, version) != 0) continue;
        if (copy->view->layout->version >= layout_end) continue;
        if (best == NULL || copy->view->layout->version > best->view->layout->version) best = copy;
    }
    return best;
}

const struct cairn_published *cairn_published_find(const struct cairn_shard_job *job,
                                                   struct cairn_version version)
{
    return find(job, version, UINT64_MAX);
}

const struct cairn_published *cairn_published_find_before(const struct cairn_shard_job *job,
                                                          const struct cairn_published *later)
{
    return find(job, later->version, later->view->layout->version);
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

void cairn_published_forget(struct cairn_published *copy, uint64_t chunk)
{
    copy->checksums[chunk] = 0; // made when it is asked for
    if (!MUTANT(2)) copy->brought[chunk] = CAIRN_BROUGHT_NOT;
}

size_t cairn_published_bytes(const struct cairn_published *copy, uint64_t chunk)
{
    const struct cairn_shard_view *view = copy->view;
    const cairn_dtype wire = view->forms[view->table.extent_of[chunk]].wire;
    return (size_t)cairn_shard_map_chunk(&view->table.map, chunk).elem_count *
           cairn_dtype_bytes((int)wire);
}

void cairn_published_fill(struct cairn_works *works, const struct cairn_published *copy,
                          uint64_t chunk)
{
    const uint64_t elem = cairn_shard_map_chunk(&copy->view->table.map, chunk).local_elem;
    cairn_works_copy(works, cairn_published_host_at(copy, chunk, elem),
                     cairn_published_at(copy, chunk, elem), cairn_published_bytes(copy, chunk));
}

/* True if the copy is kept for a lease. If a leased version has two copies, that of the later
 * layout is kept. */
static bool is_leased(const struct cairn_shard_job *job, const struct cairn_published *copy)
{
    return copy->readable && cairn_shard_is_leased(job, copy->version) &&
           cairn_published_find(job, copy->version) == copy;
}

/* Nobody would miss it: not the newest, not leased, not being written. */
static bool is_spare(const struct cairn_shard_job *job, uint32_t index)
{
    const struct cairn_published *copy = &job->versions.copies[index];
    if (!cairn_copy_is_there(copy) || index == job->versions.newest ||
        index == job->versions.writing)
        return false;
    return !is_leased(job, copy);
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

/* It reads published copies in host memory without asking: of this host, and with no card or another one.
 * Shards that ask for others map nothing. */
static bool maps_host(const struct cairn_member *member, const uint8_t *uuid)
{
    return member->peer != NULL && !member->is_relay && !member->is_mover &&
           strcmp(cairn_fabric_peer_path(member->peer), "mapped") == 0 &&
           !cairn_fabric_peer_imports(member->peer, uuid);
}

/* All of what is written to the copy next. */
static bool goes_to_host(const struct cairn_shard_job *job, const struct cairn_published *copy)
{
    const uint8_t *uuid = cairn_home_info(job->compute->home)->uuid;
    if (copy->device.base == NULL) return true;
    for (size_t i = 0; i < job->members.capacity; i++)
        if (job->members.list[i] != NULL && maps_host(job->members.list[i], uuid)) return true;
    return false;
}

/* True if no version since has changed the parameters that the copy has; writes of moments do not
 * change them. */
static bool holds_params(const struct cairn_shard_job *job, const struct cairn_published *copy)
{
    return job->versions.knows_param && copy->readable && !copy->stale && copy->view == job->view &&
           cairn_version_compare(copy->version, job->versions.param) >= 0;
}

void cairn_published_begin(struct cairn_shard_job *job)
{
    const uint32_t index = oldest_spare(job);
    assert(job->versions.writing == CAIRN_PUBLISHED_NONE && index < CAIRN_SHARD_PUBLISHED_MAX);
    struct cairn_published *copy = &job->versions.copies[index];
    const bool on_host = goes_to_host(job, copy);
    job->versions.writing = index;
    copy->holds_params = holds_params(job, copy) && (copy->on_host || !on_host);
    copy->readable = false;
    copy->on_host = on_host;
    cairn_published_write_begin(cairn_copy_head(copy));
}

cairn_status cairn_published_ready(struct cairn_shard_job *job, struct cairn_sentence *why)
{
    return cairn_copy_follow(job, &job->versions.copies[job->versions.writing], why);
}

static void is_written(struct cairn_published *copy, struct cairn_version version)
{
    cairn_published_write_end(cairn_copy_head(copy), version, cairn_copy_sides(copy));
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

void cairn_published_seal_begin(struct cairn_shard_job *job)
{
    job->versions.copies[0].on_host = goes_to_host(job, &job->versions.copies[0]);
}

void cairn_published_seal_end(struct cairn_shard_job *job, struct cairn_version version)
{
    job->versions.newest = 0;
    is_written(&job->versions.copies[0], version);
    cairn_published_note_params(job);
}

void cairn_published_note_params(struct cairn_shard_job *job)
{
    job->versions.param = job->versions.copies[job->versions.newest].version;
    job->versions.knows_param = true;
}

void cairn_published_forget_params(struct cairn_shard_job *job)
{
    job->versions.knows_param = false;
}

/* ---- copies for leases ---- */

/* How many versions are leased: each of them has a copy beyond the two. */
static uint32_t leased_count(const struct cairn_shard_job *job)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        const struct cairn_published *copy = &job->versions.copies[i];
        count += is_leased(job, copy);
    }
    return count;
}

cairn_status cairn_published_add(struct cairn_shard_job *job, const char *what,
                                 struct cairn_sentence *why)
{
    const uint64_t bytes = cairn_copy_bytes(job);
    uint32_t index = 0;
    while (index < CAIRN_SHARD_PUBLISHED_MAX && cairn_copy_is_there(&job->versions.copies[index]))
        index++;
    if (index == CAIRN_SHARD_PUBLISHED_MAX)
        return cairn_fail(why, CAIRN_ERR_BUSY,
                          "%d versions of job %s are leased already, the most there can be: wait "
                          "until one of these leases ends, or share its version",
                          CAIRN_LEASED_VERSIONS_MAX, job->spec.name);
    cairn_status status = cairn_shard_job_take(job, &job->memory.published, bytes, what, why);
    if (status != CAIRN_OK) return status;
    status = cairn_copy_open(job, index, why);
    if (status != CAIRN_OK) {
        cairn_shard_job_give(job, &job->memory.published, bytes);
        return status;
    }
    job->versions.leased_bytes += bytes;
    job->memory.device += cairn_copy_device_bytes(&job->versions.copies[index]);
    job->versions.copies[index].stale = true; // it has no frozen tensors yet
    return CAIRN_OK;
}

/* Gives back the budget of a copy for a lease. Copies took it by the view of their time, so sizes
 * may differ from the present one: the last copy gives back whatever is left. */
static void give_leased(struct cairn_shard_job *job)
{
    uint64_t bytes = cairn_copy_bytes(job);
    const bool is_last = cairn_copy_count(job) <= CAIRN_COPIES_ALWAYS;
    if (is_last || bytes > job->versions.leased_bytes) bytes = job->versions.leased_bytes;
    job->versions.leased_bytes -= bytes;
    cairn_shard_job_give(job, &job->memory.published, bytes);
}

void cairn_published_trim(struct cairn_shard_job *job)
{
    if (job->park.is_under_way) return; // it copies them; when it has ended
    while (cairn_copy_count(job) > CAIRN_COPIES_ALWAYS + leased_count(job)) {
        const uint32_t index = oldest_spare(job);
        assert(index < CAIRN_SHARD_PUBLISHED_MAX); // of three that nobody leased, two are in use
        if (job->versions.copies[index].sends > 0) return; // when they end
        job->memory.device -= cairn_copy_device_bytes(&job->versions.copies[index]);
        cairn_copy_close(job, &job->versions.copies[index]);
        give_leased(job); // at once: the next lease takes them
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
