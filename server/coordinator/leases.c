/* Leases of members on versions: see members.h. */

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>

#include "server/coordinator/cluster.h"

static uint64_t now_ms(const struct coord_job *job)
{
    return coord_now_ms(job->cluster);
}

/* ---- what there is ---- */

static struct coord_held_version *find_held_version(const struct coord_job *job,
                                                    struct cairn_version version)
{
    struct coord_held_version *held = job->leases.held;
    while (held != NULL && version_compare(held->version, version) != 0) held = held->next;
    return held;
}

static struct coord_held_version *held_version_of_number(const struct coord_job *job,
                                                         uint64_t number)
{
    struct coord_held_version *held = job->leases.held;
    while (held != NULL && held->number != number) held = held->next;
    return held;
}

/* Returns the member's lease of the version. If the version is {0, 0}, returns the member's lease
 * that waits for the newest version. */
static struct coord_lease *find_lease(const struct coord_member *member,
                                      struct cairn_version version)
{
    struct coord_lease *lease = member->job->leases.list;
    while (lease != NULL &&
           (lease->member != member || version_compare(lease->version, version) != 0))
        lease = lease->next;
    return lease;
}

static bool is_wanted(const struct coord_job *job, const struct coord_held_version *held)
{
    for (const struct coord_lease *l = job->leases.list; l != NULL; l = l->next)
        if (l->held == held) return true;
    return false;
}

/* Stops holding the version: the shards need not keep it any longer. If an answer about the version
 * is still in flight, this answer will be ignored. */
static void end_held_version(struct coord_job *job, struct coord_held_version *held)
{
    struct coord_held_version **at = &job->leases.held;
    while (*at != held) at = &(*at)->next;
    *at = held->next;
    Cairn__LeaseEnd end = CAIRN__LEASE_END__INIT;
    end.job = job->id;
    end.lease = held->number;
    CAIRN_EACH_SHARD (job, i) {
        if (job->cluster->closing) break;
        coord_session_send(job->shards[i].entry->session, CAIRN_MSG_LEASE_END, 0, &end.base);
    }
    free(held);
}

/* Ends a lease. If the lease's version has no other lease, stops holding the version. */
static void end_lease(struct coord_job *job, struct coord_lease *lease)
{
    struct coord_lease **at = &job->leases.list;
    while (*at != lease) at = &(*at)->next;
    *at = lease->next;
    struct coord_held_version *held = lease->held;
    free(lease);
    if (held != NULL && !is_wanted(job, held)) end_held_version(job, held);
}

static void fail_request(struct coord_lease *lease, cairn_status status, const char *text)
{
    if (lease->request != 0)
        coord_session_error(lease->member->session, lease->request, status, text);
    lease->request = 0;
}

/* ---- asking the shards ---- */

static void grant_lease(struct coord_job *job, struct coord_lease *lease)
{
    const struct coord_held_version *held = lease->held;
    if (lease->ends_ms == 0)
        log_info("%s %s leases version %" PRIu64 ".%" PRIu64 " of job %s for %" PRIu64 " ms",
                 role_name(lease->member->role), lease->member->session->name,
                 held->version.generation, held->version.step, job->spec.name, lease->ttl_ms);
    const uint64_t ends_ms = held->asked_ms + lease->ttl_ms;
    if (ends_ms > lease->ends_ms) lease->ends_ms = ends_ms; // renewing never shortens a lease
    if (lease->request == 0) return;
    Cairn__Leased leased = CAIRN__LEASED__INIT;
    leased.generation = held->version.generation;
    leased.step = held->version.step;
    leased.ttl_ms = (uint32_t)lease->ttl_ms;
    coord_session_send(lease->member->session, CAIRN_MSG_LEASED, lease->request, &leased.base);
    lease->request = 0;
}

static void ask_shards(struct coord_job *job, struct coord_held_version *held);

/* Called when keeping a version failed. A request for the version gets no lease. A lease that was
 * to be renewed stays as it was, unless the version is gone. May free `held`. */
static void refuse_leases(struct coord_job *job, const struct coord_held_version *held,
                          cairn_status status, const char *why)
{
    const bool gone = status == CAIRN_ERR_VERSION_GONE;
    const uint64_t number = held->number;
    struct coord_lease *next;
    for (struct coord_lease *l = job->leases.list; l != NULL; l = next) {
        next = l->next;
        if (l->held == NULL || l->held->number != number || (!l->asked && !gone)) continue;
        l->asked = false;
        fail_request(l, status, why);
        if (l->ends_ms == 0 || gone) end_lease(job, l);
    }
}

static void on_version_held(struct coord_job *job, const void *about, cairn_status status,
                            const char *why)
{
    const uint64_t number = *(const uint64_t *)about;
    struct coord_held_version *held = held_version_of_number(job, number);
    if (held == NULL) return; // the version is not held any more
    held->asking = false;
    if (status != CAIRN_OK) {
        refuse_leases(job, held, status, why);
    } else {
        for (struct coord_lease *l = job->leases.list; l != NULL; l = l->next) {
            if (l->held != held || !l->asked) continue;
            l->asked = false;
            grant_lease(job, l);
        }
    }
    held = held_version_of_number(job, number);
    if (held != NULL && held->again) ask_shards(job, held);
}

/* Returns for how many milliseconds from now the shards must keep the version: until the last of
 * its leases ends. */
static uint32_t longest_ms(const struct coord_job *job, const struct coord_held_version *held)
{
    uint64_t longest = 1;
    for (const struct coord_lease *l = job->leases.list; l != NULL; l = l->next) {
        if (l->held != held) continue;
        uint64_t left = l->request != 0 ? l->ttl_ms : 0;
        if (l->ends_ms > now_ms(job) && l->ends_ms - now_ms(job) > left)
            left = l->ends_ms - now_ms(job);
        if (left > longest) longest = left;
    }
    return (uint32_t)longest;
}

/* Returns false for a shard that is joining, or that joined after the version was published. Such a
 * shard has nothing of the version. */
static bool may_have(const struct coord_job *job, uint32_t shard, struct cairn_version version)
{
    return coord_job_in_force(job, shard) &&
           version_compare(version, job->shards[shard].joined_at) > 0;
}

static void ask_shards(struct coord_job *job, struct coord_held_version *held)
{
    struct coord_gather *gather = coord_gather_open_job(job, on_version_held, &held->number,
                                                        sizeof held->number);
    for (struct coord_lease *l = job->leases.list; l != NULL; l = l->next)
        if (l->held == held && l->request != 0) l->asked = true;
    if (gather == NULL) {
        refuse_leases(job, held, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
        return;
    }
    held->asking = true;
    held->gather = gather;
    held->again = false;
    held->asked_ms = now_ms(job);
    Cairn__LeaseKeep keep = CAIRN__LEASE_KEEP__INIT;
    keep.job = job->id;
    keep.lease = held->number;
    keep.generation = held->version.generation;
    keep.step = held->version.step;
    keep.ttl_ms = longest_ms(job, held);
    CAIRN_EACH_SHARD (job, i) {
        if (may_have(job, i, held->version))
            (void)coord_gather_send(gather, job->shards[i].entry, CAIRN_MSG_LEASE_KEEP, &keep.base);
    }
    coord_gather_start(gather);
}

void coord_leases_republished(struct coord_job *job)
{
    const struct cairn_version newest = coord_job_version(job);
    struct coord_held_version *held = find_held_version(job, newest);
    CAIRN_EACH_SHARD (job, i) {
        struct cairn_version *joined_at = &job->shards[i].joined_at;
        if (!coord_job_in_force(job, i) || may_have(job, i, newest)) continue;
        *joined_at = newest.step > 0 ? (struct cairn_version) { newest.generation, newest.step - 1 }
                                     : (struct cairn_version) { newest.generation - 1, UINT64_MAX };
    }
    if (held == NULL) return;
    if (held->asking)
        held->again = true;
    else
        ask_shards(job, held);
}

/* ---- taking ---- */

/* Returns the held version for the lease, and makes it if necessary. If too many versions are held,
 * or there is no memory, refuses the request, ends the lease, and returns NULL. */
static struct coord_held_version *keep_version(struct coord_job *job, struct coord_lease *lease)
{
    const int64_t most = job->cluster->options->lease_versions_max;
    struct coord_held_version *held = find_held_version(job, lease->version);
    int64_t count = 0;
    struct sentence why;
    if (held != NULL) return held;
    for (const struct coord_held_version *k = job->leases.held; k != NULL; k = k->next) count++;
    sentence_set(
        &why,
        "%" PRId64
        " versions of job %s are leased, and leases.versions_max of the coordinator is %" PRId64
        ": wait until a lease ends (`cairn job show` shows them), or share a version",
        count, job->spec.name, most);
    if (count < most) held = calloc(1, sizeof *held);
    if (held == NULL) {
        fail_request(lease, CAIRN_ERR_BUSY, why.text);
        end_lease(job, lease);
        return NULL;
    }
    held->version = lease->version;
    randombytes_buf(&held->number, sizeof held->number);
    held->number |= 1; // the number is never 0
    held->next = job->leases.held;
    job->leases.held = held;
    return held;
}

/* Gives the lease the newest version. If the member already has a lease of this version, ends the
 * given lease, and renews the other one. Returns the lease that remains. */
static struct coord_lease *choose_newest(struct coord_job *job, struct coord_lease *lease)
{
    const struct cairn_version newest = coord_job_version(job);
    struct coord_lease *held = find_lease(lease->member, newest);
    lease->version = newest;
    if (held == NULL) return lease;
    fail_request(held, CAIRN_ERR_BUSY, "this version was asked for again meanwhile");
    held->request = lease->request;
    held->ttl_ms = lease->ttl_ms;
    end_lease(job, lease);
    return held;
}

static void take_lease(struct coord_job *job, struct coord_lease *lease)
{
    if (lease->version.generation == 0 && lease->version.step == 0)
        lease = choose_newest(job, lease);
    if (lease->held == NULL) {
        struct coord_held_version *held = keep_version(job, lease);
        if (held == NULL) return;
        lease->held = held;
    }
    if (lease->held->asking)
        lease->held->again = true;
    else
        ask_shards(job, lease->held);
}

/* True if leases may be taken. Otherwise they wait, because a coordinator that has just started
 * does not know the newest version, and a shard that is away would not hear which version to
 * keep. */
static bool may_take(const struct coord_job *job)
{
    if (job->core == NULL || !job->initialized || job->state == CAIRN_CLUSTER_JOB_LOST ||
        !coord_job_shards_up(job))
        return false;
    const enum round_stage stage = round_stage_of(job->core);
    return stage >= CAIRN_ROUND_STEADY && stage != CAIRN_ROUND_FAILED;
}

void coord_leases_advance(struct coord_job *job)
{
    struct coord_lease *lease = job->leases.list;
    while (lease != NULL && may_take(job)) {
        if (lease->held != NULL) {
            lease = lease->next;
            continue;
        }
        take_lease(job, lease);
        lease = job->leases.list; // the list may have changed; taken leases are skipped
    }
}

static cairn_status judge_take(const struct coord_member *member, const Cairn__LeaseTake *message,
                               struct sentence *why)
{
    const struct coord_job *job = member->job;
    const int64_t most_ms = job->cluster->options->lease_ttl_max_ms;
    size_t count = 0;
    for (const struct coord_lease *l = job->leases.list; l != NULL; l = l->next)
        count += l->member == member;
    if (message->ttl_ms == 0 || message->ttl_ms > (uint64_t)most_ms)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "a lease of %" PRIu32
                         " ms: 1 to leases.ttl_max of the coordinator, %" PRId64
                         ", are allowed; renew it while it is needed",
                         message->ttl_ms, most_ms);
    if (!job->initialized)
        return fail_with(why, CAIRN_ERR_NOT_READY, "job %s has no version yet", job->spec.name);
    if (count >= CAIRN_MEMBER_LEASES_MAX)
        return fail_with(why, CAIRN_ERR_BUSY, "it has %zu leases already: end one", count);
    return CAIRN_OK;
}

/* Handles LeaseTake. The answer is sent at once or later. */
static void on_lease_take(struct coord_member *member, uint32_t request, const void *any)
{
    const Cairn__LeaseTake *message = any;
    struct coord_job *job = member->job;
    const struct cairn_version wanted = { message->generation, message->step };
    struct coord_lease *lease = find_lease(member, wanted);
    struct sentence why;
    cairn_status status = judge_take(member, message, &why);
    if (lease != NULL && lease->request != 0)
        status = fail_with(&why, CAIRN_ERR_BUSY, "this version is being leased already");
    if (status == CAIRN_OK && lease == NULL && (lease = calloc(1, sizeof *lease)) == NULL)
        status = fail_with(&why, CAIRN_ERR_NO_MEMORY, "the coordinator is out of memory");
    if (status != CAIRN_OK) {
        coord_session_error(member->session, request, status, why.text);
        return;
    }
    lease->request = request;
    lease->ttl_ms = message->ttl_ms;
    if (lease->member == NULL) { // a new lease
        lease->member = member;
        lease->version = wanted;
        lease->key = message->key;
        lease->next = job->leases.list;
        job->leases.list = lease;
        coord_leases_advance(job);
    } else if (lease->held != NULL) {
        take_lease(job, lease);
    }
}

/* ---- ending ---- */

static void drop_lease(struct coord_member *member, const Cairn__LeaseDrop *message)
{
    const struct cairn_version version = { message->generation, message->step };
    struct coord_lease *lease = member->job->leases.list;
    while (lease != NULL && (lease->member != member ||
                             (message->key != 0 ? lease->key != message->key
                                                : version_compare(lease->version, version) != 0)))
        lease = lease->next;
    if (lease == NULL) return;
    fail_request(lease, CAIRN_ERR_CANCELED, "the lease was ended");
    end_lease(member->job, lease);
}

void coord_leases_tick(struct coord_job *job)
{
    struct coord_lease *next;
    for (struct coord_lease *l = job->leases.list; l != NULL; l = next) {
        next = l->next;
        if (l->ends_ms == 0 || l->ends_ms > now_ms(job) || l->asked) continue;
        log_info("%s %s has not renewed its lease of version %" PRIu64 ".%" PRIu64 " of job %s",
                 role_name(l->member->role), l->member->session->name, l->version.generation,
                 l->version.step, job->spec.name);
        end_lease(job, l);
    }
}

bool coord_leases_waiting(const struct coord_member *member, struct sentence *out)
{
    for (const struct coord_lease *l = member->job->leases.list; l != NULL; l = l->next) {
        if (l->member != member || l->request == 0 || l->held == NULL || !l->held->asking) continue;
        sentence_set(out,
                     "the shards that have not said yet that they keep version %" PRIu64 ".%" PRIu64
                     ": ",
                     l->version.generation, l->version.step);
        coord_gather_awaited(l->held->gather, out);
        return true;
    }
    return false;
}

void coord_leases_fail(struct coord_member *member, cairn_status status, const char *text)
{
    for (struct coord_lease *l = member->job->leases.list; l != NULL; l = l->next)
        if (l->member == member) fail_request(l, status, text);
}

void coord_leases_forget(struct coord_member *member)
{
    struct coord_lease *next;
    for (struct coord_lease *l = member->job->leases.list; l != NULL; l = next) {
        next = l->next;
        if (l->member == member) end_lease(member->job, l);
    }
}

/* ==== writes ==== */

/* A write happens at a step boundary. A worker asks for a round of its own, in which this worker
 * puts planes (server/core/round.h says how such a round ends). The generation that the write
 * begins is made durable before the round can open, so that no restore takes the same number
 * again. */

/* how many generations beyond the needed ones are made durable at a time */
#define GENERATION_BLOCK 16

/* Returns the generation up to which generations must be durable. These are enough for all members
 * to begin a write before any of them is answered. */
static uint64_t generations_needed(const struct coord_job *job)
{
    uint64_t now = coord_job_version(job).generation;
    const bool known = round_stage_of(job->core) >= CAIRN_ROUND_STEADY;
    // Until the shards have reported, all reserved generations may have been used.
    if (!known && job->reserved.generation > now) now = job->reserved.generation;
    return now + 1 + job->members.count;
}

static void begin_write(struct coord_member *member)
{
    struct coord_job *job = member->job;
    member->write.reserves = false;
    if (round_stage_of(job->core) == CAIRN_ROUND_OPEN && round_contributes(job->core, member->id))
        sentence_set(&job->rounds.epoch_reason, "worker %s (rank %" PRIu32 ") writes",
                     member->session->name, member->rank);
    const struct round_event write = { .kind = CAIRN_ROUND_WORKER_WRITE, .member = member->id };
    coord_job_event(job, &write);
}

static void fail_write(struct coord_member *member, cairn_status status, const char *text)
{
    coord_session_error(member->session, member->write.request, status, text);
    member->write.request = 0;
    member->write.reserves = false;
}

static struct coord_member *find_reserving(const struct coord_job *job)
{
    struct coord_member *member = job->members.list;
    while (member != NULL && !member->write.reserves) member = member->next_of_job;
    return member;
}

static void on_reserved(const struct coord_saved *saved)
{
    struct coord_job *job = coord_job_by_id(saved->cluster, saved->job);
    struct coord_member *member;
    if (job == NULL) return;
    if (saved->status == CAIRN_OK && saved->number > job->reserved.generation)
        job->reserved.generation = saved->number;
    if (saved->number < job->reserved.asked) return; // a larger reservation is still being stored
    job->reserved.asked = 0;
    // An event may expel other members, so each search begins with the first member.
    while ((member = find_reserving(job)) != NULL) {
        if (saved->status == CAIRN_OK)
            begin_write(member);
        else
            fail_write(member, saved->status, saved->why);
    }
}

static void on_write_begin(struct coord_member *member, uint32_t request, const void *any)
{
    (void)any;
    struct coord_job *job = member->job;
    struct sentence why;
    member->write.request = request;
    if (!job->initialized) {
        sentence_set(&why, "job %s has no initial state yet: put it, do not write it",
                     job->spec.name);
        fail_write(member, CAIRN_ERR_NOT_READY, why.text);
        return;
    }
    const uint64_t needed = generations_needed(job);
    if (job->reserved.generation >= needed) {
        begin_write(member);
        return;
    }
    member->write.reserves = true;
    if (job->reserved.asked >= needed) return;
    const cairn_status status = coord_save_job(job, CAIRN_STORE_GENERATION, NULL,
                                               needed + GENERATION_BLOCK, on_reserved, &why);
    if (status == CAIRN_OK)
        job->reserved.asked = needed + GENERATION_BLOCK;
    else
        fail_write(member, status, why.text);
}

/* ==== messages ==== */

static void on_lease_drop(struct coord_member *member, uint32_t request, const void *any)
{
    struct coord_session *session = member->session; // the call below may remove the member
    drop_lease(member, any);
    coord_session_done(session, request);
}

const struct coord_row coord_leases_rows[] = {
    { CAIRN_MSG_WRITE_BEGIN, CAIRN_FROM_WORKER, .by_member = on_write_begin },
    { CAIRN_MSG_LEASE_DROP, CAIRN_FROM_MEMBER, .by_member = on_lease_drop },
    { CAIRN_MSG_LEASE_TAKE, CAIRN_FROM_MEMBER, .by_member = on_lease_take },
    { 0 },
};
