/* The published copies of a job: see read.h. */
#include "server/shard/read.h"

#include <inttypes.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/geometry/layout.h"
#include "server/base/log.h"
#include "proto/base/mutant.h"
#include "server/shard/shard.h"

static cairn_status copy_open(struct shard_job *job, uint32_t index, struct sentence *why);
static void copy_close(const struct shard_job *job, struct published_copy *copy);
static cairn_status copy_follow(struct shard_job *job, struct published_copy *copy,
                                struct sentence *why);
static uint64_t copy_bytes(const struct shard_job *job);

cairn_status published_open(struct shard_job *job, struct sentence *why)
{
    CAIRN_TRY(copy_open(job, 0, why));
    return copy_open(job, 1, why);
}

void published_close(struct shard_job *job)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++)
        copy_close(job, &job->versions.copies[i]);
}

/* Returns the readable copy that has the version; of several, the one with the latest layout whose
 * number is below layout_end. Returns NULL if there is no such copy. */
static const struct published_copy *find_copy(const struct shard_job *job,
                                              struct cairn_version version, uint64_t layout_end)
{
    const struct published_copy *best = NULL;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        const struct published_copy *copy = &job->versions.copies[i];
        if (!copy->readable || version_compare(copy->version, version) != 0) continue;
        if (copy->view->layout->version >= layout_end) continue;
        if (best == NULL || copy->view->layout->version > best->view->layout->version) best = copy;
    }
    return best;
}

const struct published_copy *published_find(const struct shard_job *job,
                                            struct cairn_version version)
{
    return find_copy(job, version, UINT64_MAX);
}

const struct published_copy *published_find_before(const struct shard_job *job,
                                                   const struct published_copy *later)
{
    return find_copy(job, later->version, later->view->layout->version);
}

cairn_status published_missing(const struct shard_job *job, struct cairn_version version)
{
    return version_compare(job->versions.copies[job->versions.newest].version, version) < 0
               ? CAIRN_ERR_NOT_READY
               : CAIRN_ERR_VERSION_GONE;
}

static uint64_t offset_of(const struct shard_view *view, uint64_t chunk, uint64_t local_elem)
{
    const uint32_t extent = view->table.extent_of[chunk];
    const struct form *form = &view->forms[extent];
    const uint64_t elems = local_elem - view->table.map.extents[extent].local_elem;
    return form->wire_byte + elems * dtype_size((int)form->wire);
}

uint8_t *copy_chunk_at(const struct published_copy *copy, uint64_t chunk, uint64_t local_elem)
{
    uint8_t *base = copy->device.base != NULL ? copy->device.base : copy->wire.base;
    return base + offset_of(copy->view, chunk, local_elem);
}

uint8_t *published_host_at(const struct published_copy *copy, uint64_t chunk, uint64_t local_elem)
{
    return copy->wire.base + offset_of(copy->view, chunk, local_elem);
}

void published_forget(struct published_copy *copy, uint64_t chunk)
{
    copy->checksums[chunk] = 0; // the checksum is made again when it is needed
    if (!READ_MUTANT(2)) copy->brought[chunk] = CAIRN_BROUGHT_NOT;
}

size_t copy_chunk_bytes(const struct published_copy *copy, uint64_t chunk)
{
    const struct shard_view *view = copy->view;
    const cairn_dtype wire = view->forms[view->table.extent_of[chunk]].wire;
    return (size_t)shard_map_chunk(&view->table.map, chunk).elem_count * dtype_size((int)wire);
}

void published_fill(struct works *works, const struct published_copy *copy, uint64_t chunk)
{
    const uint64_t elem = shard_map_chunk(&copy->view->table.map, chunk).local_elem;
    works_copy(works, published_host_at(copy, chunk, elem), copy_chunk_at(copy, chunk, elem),
               copy_chunk_bytes(copy, chunk));
}

static bool shard_is_leased(const struct shard_job *job, struct cairn_version version)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_LEASES_MAX; i++) {
        const struct shard_lease *lease = &job->versions.leases[i];
        if (lease->number != 0 && version_compare(lease->version, version) == 0) return true;
    }
    return false;
}

/* True if the copy is kept for a lease. If two copies have a leased version, only the copy with the
 * later layout is kept. */
static bool is_leased(const struct shard_job *job, const struct published_copy *copy)
{
    return copy->readable && shard_is_leased(job, copy->version) &&
           published_find(job, copy->version) == copy;
}

static bool copy_is_there(const struct published_copy *copy)
{
    return copy->checksums != NULL;
}

/* True if nobody needs the copy, because it is neither the newest nor leased nor being written. */
static bool is_spare(const struct shard_job *job, uint32_t index)
{
    const struct published_copy *copy = &job->versions.copies[index];
    if (!copy_is_there(copy) || index == job->versions.newest || index == job->versions.writing)
        return false;
    return !is_leased(job, copy);
}

/* Returns the index of a spare copy that has no version or, if all have one, of the spare copy with
 * the oldest version. Returns CAIRN_SHARD_PUBLISHED_MAX if there is no spare copy. */
static uint32_t oldest_spare(const struct shard_job *job)
{
    uint32_t best = CAIRN_SHARD_PUBLISHED_MAX;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        const struct published_copy *copy = &job->versions.copies[i];
        if (!is_spare(job, i)) continue;
        if (!copy->readable) return i;
        if (best == CAIRN_SHARD_PUBLISHED_MAX ||
            version_compare(copy->version, job->versions.copies[best].version) < 0)
            best = i;
    }
    return best;
}

/* True if the member is connected, and is on this host. */
static bool is_mapped(const struct shard_member *member)
{
    return member->peer != NULL && strcmp(fabric_peer_path(member->peer), "mapped") == 0;
}

/* True if the member reads published copies in host memory, without fetching. Such a member is on
 * this host, and does not use the card `uuid`. Relays and movers are left out, because they always
 * fetch. */
static bool maps_host(const struct shard_member *member, const uint8_t *uuid)
{
    return is_mapped(member) && !member->is_relay && !member->is_mover &&
           !fabric_peer_imports(member->peer, uuid);
}

/* True if the version that is written to the copy next must be completely in host memory, too. */
static bool goes_to_host(const struct shard_job *job, const struct published_copy *copy)
{
    const uint8_t *uuid = home_info(job->compute->home)->uuid;
    if (copy->device.base == NULL) return true;
    for (size_t i = 0; i < job->members.capacity; i++)
        if (job->members.list[i] != NULL && maps_host(job->members.list[i], uuid)) return true;
    return false;
}

/* True if the parameters in the copy are still the newest, because no later version has changed
 * them. (A write of moments makes a version, but does not change parameters.) */
static bool holds_params(const struct shard_job *job, const struct published_copy *copy)
{
    return job->versions.knows_param && copy->readable && !copy->stale && copy->view == job->view &&
           version_compare(copy->version, job->versions.param) >= 0;
}

static struct published_head *copy_head(const struct published_copy *copy)
{
    return (struct published_head *)copy->head.base;
}

void published_begin(struct shard_job *job)
{
    const uint32_t index = oldest_spare(job);
    assert(job->versions.writing == CAIRN_PUBLISHED_NONE && index < CAIRN_SHARD_PUBLISHED_MAX);
    struct published_copy *copy = &job->versions.copies[index];
    const bool on_host = goes_to_host(job, copy);
    job->versions.writing = index;
    copy->holds_params = holds_params(job, copy) && (copy->on_host || !on_host);
    copy->readable = false;
    copy->on_host = on_host;
    published_write_begin(copy_head(copy));
}

void published_void(struct shard_job *job)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        struct published_copy *copy = &job->versions.copies[i];
        copy->stale = true;
        if (!copy->readable) continue;
        copy->readable = false;
        published_write_begin(copy_head(copy));
    }
}

cairn_status published_ready(struct shard_job *job, struct sentence *why)
{
    return copy_follow(job, &job->versions.copies[job->versions.writing], why);
}

/* Returns the sides in which the copy has its version, as bits of enum published_side. */
static uint32_t copy_sides(const struct published_copy *copy)
{
    return (copy->on_host ? CAIRN_PUBLISHED_HOST : 0u) |
           (copy->device.base != NULL ? CAIRN_PUBLISHED_DEVICE : 0u);
}

static void is_written(struct published_copy *copy, struct cairn_version version)
{
    published_write_end(copy_head(copy), version, copy_sides(copy));
    copy->version = version;
    copy->readable = true;
}

void published_end(struct shard_job *job, struct cairn_version version, bool frozen_changed)
{
    assert(job->versions.writing != CAIRN_PUBLISHED_NONE);
    for (uint32_t i = 0; frozen_changed && i < CAIRN_SHARD_PUBLISHED_MAX; i++)
        job->versions.copies[i].stale = true;
    job->versions.newest = job->versions.writing;
    job->versions.writing = CAIRN_PUBLISHED_NONE;
    is_written(&job->versions.copies[job->versions.newest], version);
    job->versions.copies[job->versions.newest].stale = false;
}

/* The frozen tensors of both copies are written with the first version. */
cairn_status published_seal_begin(struct shard_job *job, struct sentence *why)
{
    for (uint32_t i = 0; i < CAIRN_COPIES_ALWAYS; i++)
        if (job->versions.copies[i].withdrawn)
            CAIRN_TRY(copy_follow(job, &job->versions.copies[i], why));
    job->versions.copies[0].on_host = goes_to_host(job, &job->versions.copies[0]);
    return CAIRN_OK;
}

void published_seal_end(struct shard_job *job, struct cairn_version version)
{
    job->versions.newest = 0;
    is_written(&job->versions.copies[0], version);
    published_note_params(job);
}

void published_note_params(struct shard_job *job)
{
    job->versions.param = job->versions.copies[job->versions.newest].version;
    job->versions.knows_param = true;
}

void published_forget_params(struct shard_job *job)
{
    job->versions.knows_param = false;
}

/* ---- copies for leases ---- */

/* Returns how many versions are leased. */
static uint32_t leased_count(const struct shard_job *job)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        const struct published_copy *copy = &job->versions.copies[i];
        count += is_leased(job, copy);
    }
    return count;
}

/* Returns the bytes of device memory that the copy takes. */
static uint64_t copy_device_bytes(const struct published_copy *copy)
{
    return plane_units(copy->device.bytes);
}

/* Adds a copy, and takes its bytes from the budget. `what` says in words what the copy is for.
 * CAIRN_ERR_BUSY: the job already has as many copies as it may have. CAIRN_ERR_NO_MEMORY: `why` has
 * the numbers. */
static cairn_status published_add(struct shard_job *job, const char *what, struct sentence *why)
{
    const uint64_t bytes = copy_bytes(job);
    uint32_t index = 0;
    while (index < CAIRN_SHARD_PUBLISHED_MAX && copy_is_there(&job->versions.copies[index]))
        index++;
    if (index == CAIRN_SHARD_PUBLISHED_MAX)
        return fail_with(why, CAIRN_ERR_BUSY,
                         "%d versions of job %s are leased already, the most there can be: wait "
                         "until one of these leases ends, or share its version",
                         CAIRN_LEASED_VERSIONS_MAX, job->spec.name);
    cairn_status status = shard_job_take(job, &job->memory.published, bytes, what, why);
    if (status != CAIRN_OK) return status;
    status = copy_open(job, index, why);
    if (status != CAIRN_OK) {
        shard_job_give(job, &job->memory.published, bytes);
        return status;
    }
    job->versions.leased_bytes += bytes;
    job->memory.device += copy_device_bytes(&job->versions.copies[index]);
    job->versions.copies[index].stale = true; // the copy has no frozen tensors yet
    return CAIRN_OK;
}

/* Returns how many copies there are. */
static uint32_t copy_count(const struct shard_job *job)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++)
        count += copy_is_there(&job->versions.copies[i]);
    return count;
}

/* Gives the bytes of a copy for a lease back to the budget. Each copy took its bytes by the view
 * that was in force at that time, so these may differ from copy_bytes now. Therefore the last copy
 * for a lease gives back all bytes that are left. */
static void give_leased(struct shard_job *job)
{
    uint64_t bytes = copy_bytes(job);
    const bool is_last = copy_count(job) <= CAIRN_COPIES_ALWAYS;
    if (is_last || bytes > job->versions.leased_bytes) bytes = job->versions.leased_bytes;
    job->versions.leased_bytes -= bytes;
    shard_job_give(job, &job->memory.published, bytes);
}

void published_trim(struct shard_job *job)
{
    // the park copies the copies, which are trimmed when the park has ended
    if (job->park.is_under_way) return;
    while (copy_count(job) > CAIRN_COPIES_ALWAYS + leased_count(job)) {
        const uint32_t index = oldest_spare(job);
        // of three copies that are not leased, at most two are in use
        assert(index < CAIRN_SHARD_PUBLISHED_MAX);
        if (job->versions.copies[index].sends > 0) return; // the copy is dropped when the sends end
        job->memory.device -= copy_device_bytes(&job->versions.copies[index]);
        copy_close(job, &job->versions.copies[index]);
        give_leased(job); // now, so that the next lease has room
    }
}

/* ==== leases ==== */

/* The leases of published versions: see read.h. */

static struct shard_lease *find_lease(struct shard_job *job, uint64_t number)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_LEASES_MAX; i++)
        if (job->versions.leases[i].number == number) return &job->versions.leases[i];
    return NULL;
}

/* True if an earlier coordinator asked for the lease, and the present coordinator has not renewed
 * the lease. */
static bool is_orphan(const struct shard_job *job, const struct shard_lease *lease)
{
    return lease->number != 0 && lease->coordinator != job->shard->session.coordinator.incarnation;
}

/* Ends the leases of earlier coordinators, except leases of version `wanted`. Returns false if no
 * lease ended. */
static bool end_orphans(struct shard_job *job, struct cairn_version wanted)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < CAIRN_SHARD_LEASES_MAX; i++) {
        struct shard_lease *lease = &job->versions.leases[i];
        if (!is_orphan(job, lease) || version_compare(lease->version, wanted) == 0) continue;
        *lease = (struct shard_lease) { .number = 0 };
        count++;
    }
    if (count == 0) return false;
    log_info("job %s: %u leases of an earlier coordinator have ended, to make room", job->spec.name,
             count);
    published_trim(job);
    return true;
}

static void on_end(uv_timer_t *timer);

/* Sets the timer to the time at which the next lease ends. */
static void set_timer(struct shard_daemon *shard)
{
    const uint64_t now_ms = uv_now(shard->loop);
    uint64_t first_ms = UINT64_MAX;
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next) {
        for (uint32_t i = 0; i < CAIRN_SHARD_LEASES_MAX; i++) {
            const struct shard_lease *lease = &job->versions.leases[i];
            if (lease->number != 0 && lease->ends_ms < first_ms) first_ms = lease->ends_ms;
        }
    }
    if (first_ms == UINT64_MAX)
        uv_timer_stop(&shard->lease_timer);
    else
        uv_timer_start(&shard->lease_timer, on_end, first_ms > now_ms ? first_ms - now_ms : 0, 0);
}

/* Judges the message, before anything is taken for it. */
static cairn_status judge_keep(struct shard_job *job, const Cairn__LeaseKeep *message,
                               struct sentence *why)
{
    const struct cairn_version wanted = { message->generation, message->step };
    if (message->lease == 0 || message->ttl_ms == 0 || message->ttl_ms > CAIRN_SHARD_LEASE_MS_MAX)
        return fail_with(why, CAIRN_ERR_INVALID, "a lease of %u ms: 1 to %d are allowed",
                         message->ttl_ms, CAIRN_SHARD_LEASE_MS_MAX);
    if (job->state != CAIRN_JOB_SERVING)
        return fail_with(why, CAIRN_ERR_NOT_READY, "job %s has no version yet", job->spec.name);
    if (published_find(job, wanted) != NULL) return CAIRN_OK;
    const struct cairn_version newest = job->versions.copies[job->versions.newest].version;
    const cairn_status status = published_missing(job, wanted);
    return fail_with(why, status,
                     "version %" PRIu64 ".%" PRIu64 " of job %s is %s, the newest is %" PRIu64
                     ".%" PRIu64,
                     wanted.generation, wanted.step, job->spec.name,
                     status == CAIRN_ERR_NOT_READY ? "not published yet" : "not kept any more",
                     newest.generation, newest.step);
}

static cairn_status add_copy(struct shard_job *job, struct cairn_version wanted,
                             struct sentence *why)
{
    char what[CAIRN_NAME_MAX + 96];
    snprintf(what, sizeof what, "a lease of version %" PRIu64 ".%" PRIu64 " of job %s",
             wanted.generation, wanted.step, job->spec.name);
    return published_add(job, what, why);
}

/* Begins a lease. If no entry is free, the new lease replaces a lease of the same version that an
 * earlier coordinator asked for. */
static cairn_status begin_lease(struct shard_job *job, const Cairn__LeaseKeep *message,
                                struct shard_lease **out, struct sentence *why)
{
    const struct cairn_version wanted = { message->generation, message->step };
    struct shard_lease *lease = find_lease(job, 0);
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; lease == NULL && i < CAIRN_SHARD_LEASES_MAX; i++)
        if (is_orphan(job, &job->versions.leases[i]) &&
            version_compare(job->versions.leases[i].version, wanted) == 0)
            lease = &job->versions.leases[i];
    if (lease == NULL)
        return fail_with(
            why, CAIRN_ERR_BUSY,
            "%d leases of job %s are held already: end one, or wait for one to run out",
            CAIRN_SHARD_LEASES_MAX, job->spec.name);
    if (!shard_is_leased(job, wanted)) status = add_copy(job, wanted, why);
    if (status != CAIRN_OK) return status;
    *lease = (struct shard_lease) { .number = message->lease, .version = wanted };
    *out = lease;
    return CAIRN_OK;
}

/* Begins or renews a lease. CAIRN_ERR_VERSION_GONE, CAIRN_ERR_NOT_READY: the version is not kept
 * any more, or not published yet. CAIRN_ERR_BUSY: there are as many leases as there may be.
 * CAIRN_ERR_NO_MEMORY: `why` has the numbers. After an error no lease begins. */
static cairn_status keep_lease(struct shard_job *job, const Cairn__LeaseKeep *message,
                               struct sentence *why)
{
    const struct cairn_version wanted = { message->generation, message->step };
    cairn_status status = judge_keep(job, message, why);
    if (status != CAIRN_OK) return status;
    struct shard_lease *lease = find_lease(job, message->lease);
    if (lease != NULL && version_compare(lease->version, wanted) != 0)
        return fail_with(why, CAIRN_ERR_EXISTS, "that lease is of another version");
    if (lease == NULL) status = begin_lease(job, message, &lease, why);
    if (status != CAIRN_OK && end_orphans(job, wanted))
        status = begin_lease(job, message, &lease, why);
    if (status != CAIRN_OK) return status;
    lease->coordinator = job->shard->session.coordinator.incarnation;
    lease->ends_ms = uv_now(job->shard->loop) + message->ttl_ms + message->ttl_ms / 4;
    set_timer(job->shard);
    return CAIRN_OK;
}

static void on_lease_keep(struct shard_job *job, struct request asked, const void *message)
{
    struct sentence why;
    const cairn_status status = keep_lease(job, message, &why);
    session_answer(job->shard, &asked, status, &why);
}

static void on_lease_end(struct shard_job *job, const void *message)
{
    const uint64_t number = ((const Cairn__LeaseEnd *)message)->lease;
    struct shard_lease *lease = number != 0 ? find_lease(job, number) : NULL;
    if (lease == NULL) return;
    *lease = (struct shard_lease) { .number = 0 };
    published_trim(job);
    set_timer(job->shard);
}

static void expire_leases(struct shard_job *job, uint64_t now_ms)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_LEASES_MAX; i++) {
        struct shard_lease *lease = &job->versions.leases[i];
        if (lease->number == 0 || lease->ends_ms > now_ms) continue;
        log_info("job %s: version %" PRIu64 ".%" PRIu64
                 " is leased no more: the coordinator has not renewed the lease in time",
                 job->spec.name, lease->version.generation, lease->version.step);
        *lease = (struct shard_lease) { .number = 0 };
        published_trim(job);
    }
}

/* Ends the leases that the coordinator has not renewed in time. This is the function of
 * shard->lease_timer. */
static void on_end(uv_timer_t *timer)
{
    struct shard_daemon *shard = timer->data;
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        expire_leases(job, uv_now(shard->loop));
    set_timer(shard);
}

static const struct shard_message messages[] = { { CAIRN_MSG_LEASE_KEEP, .ask_job = on_lease_keep },
                                                 { CAIRN_MSG_LEASE_END, .on_job = on_lease_end },
                                                 { 0 } };
const struct shard_module published_module = {
    .messages = messages,
};

/* ==== copies ==== */

/* The memory of published copies, and their sides in host memory and on the device: see read.h. */

#define SETTLED_WRITES 8 /* after so many writes in one view, the view counts as stable */
/* The bytes that a copy keeps for each chunk: an entry of `checksums`, and one of `brought`. */
#define CHUNK_BYTES (sizeof(uint64_t) + sizeof(uint8_t))

static const struct published_copy NO_COPY = { .head = { .base = NULL } };

/* Returns how many bytes one more copy would take from the budget. */
static uint64_t copy_bytes(const struct shard_job *job)
{
    return CAIRN_PUBLISHED_PAGE_BYTES + job->view->wire_bytes +
           (job->view->table.map.chunk_count + 1) * CHUNK_BYTES;
}

static void show_copy(const struct published_copy *copy, struct shard_member *member)
{
    if (!copy_is_there(copy) || member->peer == NULL) return;
    arena_show(&copy->head, member->peer);
    arena_show(&copy->wire, member->peer);
    arena_show(&copy->device, member->peer);
}

/* Lets members of this host map the copy. Only this process writes to the copy. */
static void share_copy(struct shard_job *job, struct published_copy *copy)
{
    const uint32_t count = (uint32_t)memory_segments(copy->wire.bytes);
    struct published_note note = { .magic = CAIRN_PUBLISHED_MAGIC,
                                   .shard = job->view->table.map.shard,
                                   .job = job->number,
                                   .incarnation = job->shard->incarnation,
                                   .copy = ++job->shard->copies_made,
                                   .segment_count = count,
                                   .side = CAIRN_PUBLISHED_HOST };
    memcpy(&note.layout_hash, copy->view->layout->hash, sizeof note.layout_hash);
    bool all = arena_share(&copy->wire, job->shard->fabric, &note);
    note.segment = count;
    all = all && arena_share(&copy->head, job->shard->fabric, &note);
    note.segment = 0;
    note.side = CAIRN_PUBLISHED_DEVICE;
    published_set_copy(copy_head(copy), note.copy);
    all = all && arena_share(&copy->device, job->shard->fabric, &note);
    if (!all) {
        arena_unshare(&copy->head, false);
        arena_unshare(&copy->wire, false);
        log_warn("job %s: a published copy cannot be shared with this host, so it is sent",
                 job->spec.name);
        return;
    }
    for (size_t i = 0; i < job->members.capacity; i++)
        if (job->members.list[i] != NULL) show_copy(copy, job->members.list[i]);
}

void published_show(struct shard_member *member)
{
    if (is_mapped(member)) member->maps = true;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++)
        show_copy(&member->job->versions.copies[i], member);
}

void published_left(struct shard_job *job)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++)
        if (copy_is_there(&job->versions.copies[i])) job->versions.copies[i].left_with = true;
}

void published_withdraw(struct shard_job *job)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        struct published_copy *copy = &job->versions.copies[i];
        count += copy->left_with;
        copy->withdrawn = copy->withdrawn || copy->left_with;
        copy->left_with = false;
    }
    if (count == 0) return;
    log_info("job %s: %u published copies get new memory when they are written next, because a "
             "process of this host that may have mapped them may have lost the right to read them",
             job->spec.name, count);
}

/* The name of an arena's memory in /proc. */
struct label {
    char text[32];
};

static struct label label_of(const struct shard_job *job, const struct published_copy *copy,
                             const char *what)
{
    struct label label;
    snprintf(label.text, sizeof label.text, "cairn-%s-%u", what,
             (unsigned)(copy - job->versions.copies));
    return label;
}

static cairn_status open_head(const struct shard_job *job, struct published_copy *copy,
                              struct sentence *why)
{
    const struct label label = label_of(job, copy, "head");
    const cairn_status status = arena_open_shared(home_host(), label.text,
                                                  CAIRN_PUBLISHED_PAGE_BYTES, &copy->head, why);
    if (status != CAIRN_OK || arena_make_pages(&copy->head, 0, copy->head.bytes) == CAIRN_OK)
        return status;
    return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the head of a version");
}

/* Returns true if the last segment of `wire` should be made anew, to give back pages that are not
 * needed. The segment keeps the pages of the largest view that the copy had (gpu/gpu.h), so that
 * later changes of the layout need not make new pages. It is too large if the view has not changed
 * for a while, and the pages that are not needed are many compared with the copy. */
static bool is_too_large(const struct published_copy *copy)
{
    const uint64_t bytes = copy->wire.bytes, last = bytes % CAIRN_SEGMENT_BYTES;
    const uint64_t room = last > 0 ? CAIRN_SEGMENT_BYTES - last : 0,
                   beyond = copy->most_bytes - bytes;
    return copy->settled >= SETTLED_WRITES && (beyond < room ? beyond : room) > bytes / 16;
}

/* Gives back the last segment of `wire`. The segments before it stay. */
static void give_last_segment(const struct shard_job *job, struct published_copy *copy,
                              const char *label)
{
    const uint64_t full = copy->wire.bytes / CAIRN_SEGMENT_BYTES * CAIRN_SEGMENT_BYTES;
    struct sentence why;
    if (full == 0 || arena_resize(&copy->wire, label, full, &why) != CAIRN_OK)
        arena_release(job->shard, &copy->wire);
    copy->most_bytes = copy->wire.bytes;
}

/* Makes `wire` as large as the job's view needs. Its present pages are kept if possible. */
static cairn_status size_wire(const struct shard_job *job, struct published_copy *copy,
                              struct sentence *why)
{
    const struct label label = label_of(job, copy, "wire");
    const uint64_t bytes = job->view->wire_bytes;
    if (is_too_large(copy)) give_last_segment(job, copy, label.text);
    if (bytes == 0) arena_release(job->shard, &copy->wire);
    copy->settled = 0;
    if (copy->wire.base != NULL) {
        if (bytes > copy->most_bytes) copy->most_bytes = bytes;
        return arena_resize(&copy->wire, label.text, bytes, why);
    }
    copy->most_bytes = bytes;
    const cairn_status status = arena_open_shared_room(label.text, bytes, job->versions.room_bytes,
                                                       &copy->wire, why);
    if (status == CAIRN_OK) arena_pins_for(&copy->wire, job->compute->home);
    return status;
}

/* True if copies are to have a side on the device, which processes that use the card read. This is
 * so if the planes of the job all lie on the device, and other processes can map memory of the
 * device. */
static bool has_device_side(const struct shard_job *job)
{
    const struct home *home = job->shard->device.home;
    return home != NULL && home_info(home)->exports && job->planes.host_from == CAIRN_PLANES_ALL;
}

static cairn_status open_device(struct shard_job *job, struct published_copy *copy,
                                uint64_t wire_bytes, struct sentence *why)
{
    if (!has_device_side(job)) return CAIRN_OK;
    return arena_open_shared(job->shard->device.home, "published", wire_bytes, &copy->device, why);
}

/* True if the device has room for `bytes`, besides the memory that its streams may still take. */
static bool has_room(const struct shard_job *job, uint64_t bytes)
{
    const uint64_t staging = compute_staging_left(&job->shard->device);
    const uint64_t free_bytes = home_free_bytes(job->shard->device.home);
    return staging <= free_bytes && bytes <= free_bytes - staging;
}

/* Opens the side on the device for a copy, which is the `count`-th copy of the job. All copies but
 * the first two are for leases, and do without this side if there is no room. */
static cairn_status open_side(struct shard_job *job, struct published_copy *copy, uint32_t count,
                              uint64_t wire_bytes, struct sentence *why)
{
    const bool may_lack = count > CAIRN_COPIES_ALWAYS;
    if (may_lack && has_device_side(job) && !has_room(job, plane_units(wire_bytes)))
        return CAIRN_OK;
    const cairn_status status = open_device(job, copy, wire_bytes, why);
    return may_lack && status == CAIRN_ERR_NO_MEMORY ? CAIRN_OK : status;
}

/* Makes the arrays `checksums` and `brought` of the copy anew. No checksum is known yet, and no
 * chunk was brought to host memory. */
static cairn_status open_chunks(const struct shard_job *job, struct published_copy *copy,
                                struct sentence *why)
{
    const size_t count = (size_t)job->view->table.map.chunk_count + 1;
    uint64_t *checksums = calloc(count, sizeof *checksums);
    uint8_t *brought = calloc(count, sizeof *brought);
    if (checksums == NULL || brought == NULL) {
        free(checksums);
        free(brought);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the checksums of a version");
    }
    free(copy->checksums);
    free(copy->brought);
    copy->checksums = checksums;
    copy->brought = brought;
    return CAIRN_OK;
}

/* Opens a copy in the job's view. After CAIRN_ERR_NO_MEMORY or CAIRN_ERR_IO the copy does not
 * exist. */
static cairn_status copy_open(struct shard_job *job, uint32_t index, struct sentence *why)
{
    struct published_copy *copy = &job->versions.copies[index];
    const uint64_t wire_bytes = job->view->wire_bytes;
    *copy = NO_COPY;
    CAIRN_TRY(open_chunks(job, copy, why));
    copy->view = shard_view_ref(job->view);
    cairn_status status = open_head(job, copy, why);
    if (status == CAIRN_OK) status = size_wire(job, copy, why);
    if (status == CAIRN_OK && !job->planes.parked && !job->park.is_under_way)
        status = open_side(job, copy, copy_count(job), wire_bytes, why);
    if (status == CAIRN_OK) {
        published_head_init(copy_head(copy), &copy->view->table.map, job->number, wire_bytes);
        share_copy(job, copy);
        return CAIRN_OK;
    }
    arena_close(&copy->head);
    arena_close(&copy->wire);
    free(copy->checksums);
    free(copy->brought);
    shard_view_unref(copy->view);
    *copy = NO_COPY;
    return status;
}

static void copy_close(const struct shard_job *job, struct published_copy *copy)
{
    if (!copy_is_there(copy)) return;
    // A process that has mapped the copy then sees that the copy no longer has a version.
    if (copy->head.base != NULL) published_write_begin(copy_head(copy));
    arena_release(job->shard, &copy->head);
    arena_release(job->shard, &copy->wire);
    arena_release(job->shard, &copy->device);
    free(copy->checksums);
    free(copy->brought);
    shard_view_unref(copy->view);
    *copy = NO_COPY;
}

/* True if the host has room for the new memory of a copy that was withdrawn, besides the old memory,
 * which members may have mapped for a while. If there is no room, the copy is written where it
 * is, because the alternative would be to stop the job; the next write tries again. */
static bool has_room_anew(struct shard_job *job, const struct published_copy *copy)
{
    struct headroom room;
    struct sentence why;
    cairn_status status = headroom_read(job->shard->memory.host_root, &room, &why);
    if (status == CAIRN_OK)
        status = headroom_judge(&room, copy->wire.bytes, "new memory for a published copy", &why);
    if (status == CAIRN_OK) return true;
    log_limited(&job->versions.withdraw_refusals, CAIRN_LOG_WARN,
                "job %s: a process of this host that may have lost the right to read the job may "
                "still read its parameters: %s; end that process, or give this host more memory",
                job->spec.name, why.text);
    return false;
}

/* Makes the copy's side on the device anew, for the job's view. If there is no room, the copy has
 * no side on the device. */
static cairn_status follow_device(struct shard_job *job, struct published_copy *copy,
                                  struct sentence *why)
{
    if (job->planes.parked) return CAIRN_OK;
    job->memory.device -= copy_device_bytes(copy);
    arena_unshare(&copy->device, false);
    arena_close(&copy->device);
    const uint64_t bytes = job->view->wire_bytes;
    if (!has_device_side(job) || has_room(job, plane_units(bytes))) {
        const cairn_status status = open_device(job, copy, bytes, why);
        if (status != CAIRN_OK && status != CAIRN_ERR_NO_MEMORY) return status;
    }
    job->memory.device += copy_device_bytes(copy);
    copy->on_host = copy->on_host || copy->device.base == NULL;
    return CAIRN_OK;
}

/* Prepares a copy to be written in the job's view. If the copy's view changes, or is_too_large is
 * true, the copy's memory is made larger or smaller; if the copy was withdrawn, all its memory is
 * made anew. The copy is then shown anew under another number, and its old contents are lost. The
 * caller makes sure that nothing is being sent out of the copy. After CAIRN_ERR_NO_MEMORY the copy
 * may only be closed. */
static cairn_status copy_follow(struct shard_job *job, struct published_copy *copy,
                                struct sentence *why)
{
    const bool is_anew = copy->withdrawn && has_room_anew(job, copy);
    if (copy->view == job->view) {
        copy->settled++;
        if (!is_anew && !is_too_large(copy)) return CAIRN_OK;
    }
    CAIRN_TRY(open_chunks(job, copy, why));
    copy->readable = copy->holds_params = false;
    copy->stale = true;
    // A process that has mapped the copy keeps the old head, which from now on says that the copy
    // has no version.
    published_write_begin(copy_head(copy));
    arena_unshare(&copy->head, false);
    arena_unshare(&copy->wire, false);
    arena_close(&copy->head);
    if (is_anew) {
        arena_release(job->shard, &copy->wire);
        copy->withdrawn = copy->left_with = false;
    }
    cairn_status status = size_wire(job, copy, why);
    if (status == CAIRN_OK) status = follow_device(job, copy, why);
    if (status == CAIRN_OK) status = open_head(job, copy, why);
    if (status != CAIRN_OK) return status;
    shard_view_unref(copy->view);
    copy->view = shard_view_ref(job->view);
    published_head_init(copy_head(copy), &copy->view->table.map, job->number,
                        copy->view->wire_bytes);
    share_copy(job, copy);
    return CAIRN_OK;
}

/* ---- parked, and back ---- */

bool published_move(const struct shard_job *job, bool to_host, uint32_t n,
                    struct published_move *move_out)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        const struct published_copy *copy = &job->versions.copies[i];
        if (copy->device.base == NULL || (to_host && (copy->on_host || !copy->readable))) continue;
        if (n-- > 0) continue;
        *move_out =
            to_host
                ? (struct published_move) { copy->wire.base, copy->device.base, copy->wire.bytes }
                : (struct published_move) { copy->device.base, copy->wire.base, copy->wire.bytes };
        return true;
    }
    return false;
}

uint64_t published_device_bytes(const struct shard_job *job, bool all)
{
    uint64_t bytes = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        const struct published_copy *copy = &job->versions.copies[i];
        count += copy_is_there(copy);
        if (!all)
            bytes += copy_device_bytes(copy);
        else if (copy_is_there(copy) && count <= CAIRN_COPIES_ALWAYS && has_device_side(job))
            bytes += plane_units(copy->wire.bytes);
    }
    return bytes;
}

cairn_status published_open_device(struct shard_job *job, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    uint32_t count = 0;
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX && status == CAIRN_OK; i++) {
        struct published_copy *copy = &job->versions.copies[i];
        if (copy_is_there(copy)) status = open_side(job, copy, ++count, copy->wire.bytes, why);
    }
    return status;
}

/* Tells readers which sides the copy has, so that nobody begins to read a side that was removed. A
 * process that has mapped a side keeps this memory, and what it has read there stays right. */
static void tell_sides(const struct published_copy *copy)
{
    if (copy->readable) published_set_sides(copy_head(copy), copy_sides(copy));
}

void published_park(struct shard_job *job)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        struct published_copy *copy = &job->versions.copies[i];
        if (copy->device.base == NULL) continue;
        arena_unshare(&copy->device, false);
        arena_release(job->shard, &copy->device);
        copy->on_host = true;
        tell_sides(copy);
    }
}

void published_unpark(struct shard_job *job)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_PUBLISHED_MAX; i++) {
        struct published_copy *copy = &job->versions.copies[i];
        if (copy->device.base == NULL) continue;
        arena_unshare(&copy->head, false);
        arena_unshare(&copy->wire, false);
        share_copy(job, copy); // shows the copy under another number, with its new side
        tell_sides(copy);
    }
}
