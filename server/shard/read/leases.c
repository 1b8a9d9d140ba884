/* Leases on published versions: see leases.h. */
#include "server/shard/read/leases.h"

#include <stdio.h>

#include "server/base/log.h"
#include "server/shard/shard.h"

bool cairn_shard_is_leased(const struct cairn_shard_job *job, struct cairn_version version)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_LEASES_MAX; i++) {
        const struct cairn_shard_lease *lease = &job->versions.leases[i];
        if (lease->number != 0 && cairn_version_compare(lease->version, version) == 0) return true;
    }
    return false;
}

static struct cairn_shard_lease *find_lease(struct cairn_shard_job *job, uint64_t number)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_LEASES_MAX; i++)
        if (job->versions.leases[i].number == number) return &job->versions.leases[i];
    return NULL;
}

/* A coordinator before this one asked for it, and this one knows nothing of it. */
static bool is_orphan(const struct cairn_shard_job *job, const struct cairn_shard_lease *lease)
{
    return lease->number != 0 && lease->coordinator != job->shard->session.coordinator.incarnation;
}

/* Ends all leases of an earlier coordinator, except on `wanted`. Returns false if none was
 * ended. */
static bool end_orphans(struct cairn_shard_job *job, struct cairn_version wanted)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < CAIRN_SHARD_LEASES_MAX; i++) {
        struct cairn_shard_lease *lease = &job->versions.leases[i];
        if (!is_orphan(job, lease) || cairn_version_compare(lease->version, wanted) == 0) continue;
        *lease = (struct cairn_shard_lease) { .number = 0 };
        count++;
    }
    if (count == 0) return false;
    cairn_log_info("job %s: %u leases of a coordinator before this one have ended, to make room",
                   job->spec.name, count);
    cairn_published_trim(job);
    return true;
}

static void on_end(uv_timer_t *timer);

/* Sets the timer to the next end. */
static void set_timer(struct cairn_shard *shard)
{
    const uint64_t now_ms = uv_now(shard->loop);
    uint64_t first_ms = UINT64_MAX;
    for (struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next) {
        for (uint32_t i = 0; i < CAIRN_SHARD_LEASES_MAX; i++) {
            const struct cairn_shard_lease *lease = &job->versions.leases[i];
            if (lease->number != 0 && lease->ends_ms < first_ms) first_ms = lease->ends_ms;
        }
    }
    if (first_ms == UINT64_MAX)
        uv_timer_stop(&shard->lease_timer);
    else
        uv_timer_start(&shard->lease_timer, on_end, first_ms > now_ms ? first_ms - now_ms : 0, 0);
}

/* Judged as a whole before anything is taken. */
static cairn_status judge_keep(struct cairn_shard_job *job, const Cairn__LeaseKeep *message,
                               struct cairn_sentence *why)
{
    const struct cairn_version wanted = { message->generation, message->step };
    if (message->lease == 0 || message->ttl_ms == 0 || message->ttl_ms > CAIRN_SHARD_LEASE_MS_MAX)
        return cairn_fail(why, CAIRN_ERR_INVALID, "a lease of %u ms: 1 to %d are allowed",
                          message->ttl_ms, CAIRN_SHARD_LEASE_MS_MAX);
    if (job->state != CAIRN_JOB_SERVING)
        return cairn_fail(why, CAIRN_ERR_NOT_READY, "job %s has no version yet", job->spec.name);
    if (cairn_published_find(job, wanted) != NULL) return CAIRN_OK;
    const struct cairn_version newest = job->versions.copies[job->versions.newest].version;
    const cairn_status status = cairn_published_missing(job, wanted);
    return cairn_fail(why, status, "version %llu.%llu of job %s is %s, the newest is %llu.%llu",
                      (unsigned long long)wanted.generation, (unsigned long long)wanted.step,
                      job->spec.name,
                      status == CAIRN_ERR_NOT_READY ? "not published yet" : "not kept any more",
                      (unsigned long long)newest.generation, (unsigned long long)newest.step);
}

static cairn_status add_copy(struct cairn_shard_job *job, struct cairn_version wanted,
                             struct cairn_sentence *why)
{
    char what[CAIRN_NAME_MAX + 96];
    snprintf(what, sizeof what, "a lease of version %llu.%llu of job %s",
             (unsigned long long)wanted.generation, (unsigned long long)wanted.step,
             job->spec.name);
    return cairn_published_add(job, what, why);
}

/* In the place of one of an earlier coordinator, if there is no other. */
static cairn_status begin_lease(struct cairn_shard_job *job, const Cairn__LeaseKeep *message,
                                struct cairn_shard_lease **out, struct cairn_sentence *why)
{
    const struct cairn_version wanted = { message->generation, message->step };
    struct cairn_shard_lease *lease = find_lease(job, 0);
    cairn_status status = CAIRN_OK;
    for (uint32_t i = 0; lease == NULL && i < CAIRN_SHARD_LEASES_MAX; i++)
        if (is_orphan(job, &job->versions.leases[i]) &&
            cairn_version_compare(job->versions.leases[i].version, wanted) == 0)
            lease = &job->versions.leases[i];
    if (lease == NULL)
        return cairn_fail(
            why, CAIRN_ERR_BUSY,
            "%d leases of job %s are held already: end one, or wait for one to run out",
            CAIRN_SHARD_LEASES_MAX, job->spec.name);
    if (!cairn_shard_is_leased(job, wanted)) status = add_copy(job, wanted, why);
    if (status != CAIRN_OK) return status;
    *lease = (struct cairn_shard_lease) { .number = message->lease, .version = wanted };
    *out = lease;
    return CAIRN_OK;
}

cairn_status cairn_shard_lease_keep(struct cairn_shard_job *job, const Cairn__LeaseKeep *message,
                                    struct cairn_sentence *why)
{
    const struct cairn_version wanted = { message->generation, message->step };
    cairn_status status = judge_keep(job, message, why);
    if (status != CAIRN_OK) return status;
    struct cairn_shard_lease *lease = find_lease(job, message->lease);
    if (lease != NULL && cairn_version_compare(lease->version, wanted) != 0)
        return cairn_fail(why, CAIRN_ERR_EXISTS, "that lease is of another version");
    if (lease == NULL) status = begin_lease(job, message, &lease, why);
    if (status != CAIRN_OK && end_orphans(job, wanted))
        status = begin_lease(job, message, &lease, why);
    if (status != CAIRN_OK) return status;
    lease->coordinator = job->shard->session.coordinator.incarnation;
    lease->ends_ms = uv_now(job->shard->loop) + message->ttl_ms + message->ttl_ms / 4;
    set_timer(job->shard);
    return CAIRN_OK;
}

void cairn_shard_lease_end(struct cairn_shard_job *job, uint64_t number)
{
    struct cairn_shard_lease *lease = number != 0 ? find_lease(job, number) : NULL;
    if (lease == NULL) return;
    *lease = (struct cairn_shard_lease) { .number = 0 };
    cairn_published_trim(job);
    set_timer(job->shard);
}

static void expire(struct cairn_shard_job *job, uint64_t now_ms)
{
    for (uint32_t i = 0; i < CAIRN_SHARD_LEASES_MAX; i++) {
        struct cairn_shard_lease *lease = &job->versions.leases[i];
        if (lease->number == 0 || lease->ends_ms > now_ms) continue;
        cairn_log_info("job %s: version %llu.%llu is leased no more: the coordinator has not said "
                       "so for longer than the lease",
                       job->spec.name, (unsigned long long)lease->version.generation,
                       (unsigned long long)lease->version.step);
        *lease = (struct cairn_shard_lease) { .number = 0 };
        cairn_published_trim(job);
    }
}

/* Ends the leases that the coordinator has not renewed in time, and so has forgotten. */
static void on_end(uv_timer_t *timer)
{
    struct cairn_shard *shard = timer->data;
    for (struct cairn_shard_job *job = shard->jobs; job != NULL; job = job->next)
        expire(job, uv_now(shard->loop));
    set_timer(shard);
}
