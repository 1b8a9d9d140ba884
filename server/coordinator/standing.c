/* Shards may hold parts on which we do not act. These are parts of another store, parts of no
 * store, and parts of a job whose state in our store is older. Such a part is dropped automatically
 * only if it is provably a leftover of our own. The other parts are listed, and an operator can
 * have them adopted (adopt.c) or forgotten. */
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/cluster.h"

#define PARTS_MAX 1024 /* the most parts shown in a status */

void coord_dropped_add(struct coord *cluster, uint64_t job)
{
    if (cluster->identity.dropped_count == CAIRN_STORE_DROPPED_MAX) {
        cluster->identity.dropped_count--;
        memmove(cluster->identity.dropped, cluster->identity.dropped + 1,
                cluster->identity.dropped_count * sizeof *cluster->identity.dropped);
    }
    cluster->identity.dropped[cluster->identity.dropped_count++] = job;
}

static cairn_status load_dropped(void *context, const void *row, struct sentence *why)
{
    (void)why;
    coord_dropped_add(context, ((const struct stored_dropped *)row)->job);
    return CAIRN_OK;
}

cairn_status coord_standing_open(struct coord *cluster, struct sentence *why)
{
    cluster->identity.id = (struct coordinator_id) {
        .store = store_meta(cluster->store)->identity,
        .incarnation = store_meta(cluster->store)->incarnation,
    };
    randombytes_buf(&cluster->identity.id.process, sizeof cluster->identity.id.process);
    cluster->identity.dropped = calloc(CAIRN_STORE_DROPPED_MAX, sizeof *cluster->identity.dropped);
    if (cluster->identity.dropped == NULL)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    return store_each(cluster->store, CAIRN_STORED_DROPPED, load_dropped, cluster, why);
}

static bool was_dropped(const struct coord *cluster, uint64_t job)
{
    for (size_t i = 0; i < cluster->identity.dropped_count; i++)
        if (cluster->identity.dropped[i] == job) return true;
    return false;
}

bool coord_shard_obeys(const struct coord_shard_entry *entry)
{
    return entry->session != NULL && entry->standing == CAIRN_STANDING_GOOD;
}

bool coord_shard_unfit(const struct coord_shard_entry *entry)
{
    const struct coord_session *session = entry->session;
    return session != NULL && session->home != NULL && session->home->failed[0] != '\0';
}

bool coord_shard_stays(const struct coord_shard_entry *entry)
{
    return coord_shard_obeys(entry) && !entry->leaving;
}

bool coord_shard_apart(const struct coord_shard_entry *entry)
{
    if (entry->session == NULL || !entry->is_mapped) return false;
    for (const struct coord_shard_entry *s = entry->session->cluster->shards; s != NULL;
         s = s->next)
        if (s->is_networked && coord_shard_stays(s) && strcmp(s->host, entry->host) != 0)
            return true;
    return false;
}

bool coord_shard_fits(const struct coord_shard_entry *entry, const struct job_spec_data *spec)
{
    const bool uses_device = spec == NULL || spec->offload_fraction < 1;
    return coord_shard_stays(entry) && !(uses_device && coord_shard_unfit(entry)) &&
           !coord_shard_apart(entry) && !coord_shard_is_standby(entry->session->cluster, entry);
}

const char *coord_shard_standing_text(const struct coord_shard_entry *entry)
{
    return entry->standing == CAIRN_STANDING_FOREIGN
               ? "it holds state of another store; `cairn cluster status` lists it, `cairn cluster "
                 "adopt` takes it"
               : "it has obeyed a newer coordinator: this one's store is an older copy; `cairn "
                 "cluster adopt` takes what the shards hold";
}

bool coord_shard_judge_hello(struct coord *cluster, struct coord_shard_entry *entry,
                             const Cairn__Hello *hello)
{
    const struct coordinator_id ours = cluster->identity.id;
    entry->seen = (struct coordinator_id) { hello->store, hello->coordinator_incarnation,
                                            hello->coordinator_process };
    entry->standing = standing_of(&ours, &entry->seen);
    if (hello->store == 0 && hello->n_held > 0) entry->standing = CAIRN_STANDING_FOREIGN;
    for (size_t i = 0; i < hello->n_held; i++)
        entry->parts_awaited |= coord_job_by_id(cluster, hello->held[i]->job) == NULL;
    if (entry->standing == CAIRN_STANDING_GOOD) return true;
    log_warn("shard %s is not used: %s (store %016" PRIx64 ", start %" PRIu64
             "; here it is store %016" PRIx64 ", start %" PRIu64 ")",
             entry->name, coord_shard_standing_text(entry), entry->seen.store,
             entry->seen.incarnation, ours.store, ours.incarnation);
    return false;
}

void coord_shard_forget_parts(struct coord_shard_entry *entry)
{
    if (entry->parts != NULL) message_free(&entry->parts->base);
    entry->parts = NULL;
    entry->parts_awaited = false;
    entry->parts_answered = 0;
}

bool coord_shard_take_held(struct coord_session *session, const struct wire_frame *frame)
{
    struct coord_shard_entry *entry = session->entry;
    if (entry == NULL) return true;
    Cairn__HeldJobs *held = (Cairn__HeldJobs *)message_unpack(&cairn__held_jobs__descriptor,
                                                              frame->payload, frame->payload_bytes);
    if (held == NULL) return false;
    for (size_t i = 0; i < held->n_held; i++) {
        if (held->n_held <= CAIRN_HELD_JOBS_MAX && job_name_ok(held->held[i]->name)) continue;
        message_free(&held->base);
        return false;
    }
    // If nobody asked for this list, it is newer than the list that was asked for. So the last
    // request stays answered.
    const uint32_t told = frame->request != 0 ? frame->request : entry->parts_answered;
    coord_shard_forget_parts(entry);
    entry->parts = held;
    entry->parts_answered = told;
    coord_calls_reply(entry, frame->request, CAIRN_OK, "");
    return true;
}

/* True if the shard's part is no longer of use: the job was restored onto other shards while this
 * shard was away, or was moved off this shard. If the shard has seen a higher epoch or generation
 * than our store, the part may still be of use. */
static bool was_left_behind(const struct coord_job *job, const struct coord_shard_entry *entry,
                            const Cairn__HeldJob *held)
{
    const bool is_older = held->generation <= job->generation && held->epoch <= job->epoch;
    return job->state == CAIRN_CLUSTER_JOB_RUNNING && is_older &&
           !coord_job_has_shard(job, entry) && !coord_mirrors_has(job, entry);
}

void coord_shard_clean(struct coord *cluster, struct coord_shard_entry *entry,
                       const Cairn__Hello *hello)
{
    for (size_t i = 0; i < hello->n_held; i++) {
        const Cairn__HeldJob *held = hello->held[i];
        const struct coord_job *job = coord_job_by_id(cluster, held->job);
        if (job != NULL && was_left_behind(job, entry, held)) {
            log_info("shard %s holds generation %" PRIu64
                     " of job %s, which is on other shards now: dropped",
                     entry->name, held->generation, job->spec.name);
            coord_job_send_drop(cluster, entry, held->job);
        }
        if (job != NULL) continue;
        const bool dropped = was_dropped(cluster, held->job);
        if (dropped || held->unsettled) {
            log_info("shard %s holds job %016" PRIx64 ", which %s here: dropped", entry->name,
                     held->job, dropped ? "was dropped" : "was never finished");
            coord_job_send_drop(cluster, entry, held->job);
        } else {
            log_warn("shard %s holds job %016" PRIx64
                     ", which this store does not know; `cairn cluster status` lists it",
                     entry->name, held->job);
        }
    }
    // a part that is made again from its log later
    for (size_t i = 0; i < entry->told.awaited_count; i++)
        if (coord_job_by_id(cluster, entry->told.awaited[i]) == NULL &&
            was_dropped(cluster, entry->told.awaited[i]))
            coord_job_send_drop(cluster, entry, entry->told.awaited[i]);
}

struct marks coord_held_marks(const Cairn__HeldJob *held)
{
    return (struct marks) { held->generation, held->epoch, held->revision, held->round };
}

struct marks coord_job_marks(const struct coord_job *job)
{
    return (struct marks) { job->generation, job->epoch, job->spec.revision, job->reserved.round };
}

/* ---- strangers ---- */

/* True if we do not act on the part; `why` gives the reason. */
static bool is_strange(const struct coord_shard_entry *entry, const Cairn__HeldJob *part,
                       struct sentence *why)
{
    const struct coord *cluster = entry->session->cluster;
    if (entry->standing != CAIRN_STANDING_GOOD) {
        sentence_set(why, "%s",
                     entry->standing == CAIRN_STANDING_FOREIGN
                         ? "of another store"
                         : "of this store, by a newer coordinator");
        return true;
    }
    const struct coord_job *job = coord_job_by_id(cluster, part->job);
    const bool leftover = part->unsettled || was_dropped(cluster, part->job);
    if (job == NULL && leftover) return false; // the leftover is being dropped
    if (job == NULL) {
        sentence_set(why, "of no job that this store knows");
        return true;
    }
    if (job->loss.behind) sentence_set(why, "newer than this store");
    return job->loss.behind;
}

bool coord_job_is_strange(const struct coord *cluster, const char *name, struct sentence *why)
{
    struct sentence strange;
    size_t count = 0;
    for (const struct coord_shard_entry *s = cluster->shards; s != NULL; s = s->next) {
        if (s->session == NULL) continue;
        if (s->parts_awaited) {
            sentence_set(why, "waiting to hear what shard %s holds", s->name);
            return true;
        }
        for (size_t i = 0; s->parts != NULL && i < s->parts->n_held; i++) {
            const Cairn__HeldJob *part = s->parts->held[i];
            if (strcmp(part->name, name) != 0 || !is_strange(s, part, &strange)) continue;
            if (count++ == 0)
                sentence_set(why, "job %s is held by shards, but %s: ", name, strange.text);
            if (count <= 8) sentence_add(why, "%s%s", count > 1 ? ", " : "", s->name);
        }
    }
    if (count == 0) return false;
    sentence_add(why,
                 "%s; give the coordinator its own store.path back, or take the job with "
                 "`cairn cluster adopt`, or drop it with `cairn cluster forget %s`",
                 count > 8 ? ", ..." : "", name);
    return true;
}

void coord_strangers_add(const struct coord *cluster, struct coord_answer *answer,
                         ProtobufCMessage *to, const char *field)
{
    struct sentence why;
    size_t count = 0;
    for (const struct coord_shard_entry *s = cluster->shards; s != NULL; s = s->next) {
        const bool is_known = s->session != NULL && s->parts != NULL;
        for (size_t i = 0; is_known && i < s->parts->n_held && count < PARTS_MAX; i++) {
            if (!is_strange(s, s->parts->held[i], &why)) continue;
            Cairn__StrangePart *out = coord_answer_add(answer, to, field);
            if (out == NULL) return;
            out->shard = s->name;
            out->part = s->parts->held[i];
            out->why = coord_answer_text(answer, "%s", why.text);
            count++;
        }
    }
}

/* ==== entries ==== */

/* Finds shards by name, whether connected or away. */

uint32_t coord_shards_up(const struct coord *cluster)
{
    uint32_t count = 0;
    for (const struct coord_shard_entry *s = cluster->shards; s != NULL; s = s->next)
        count += coord_shard_obeys(s) && !coord_shard_is_standby(cluster, s);
    return count;
}

uint32_t coord_shards_staying(const struct coord *cluster, const struct job_spec_data *spec,
                              bool storing)
{
    uint32_t count = 0;
    for (const struct coord_shard_entry *s = cluster->shards; s != NULL; s = s->next)
        count += coord_shard_fits(s, spec) && (!storing || s->storage.text[0] == '\0');
    return count;
}

struct coord_shard_entry *coord_shard_find(const struct coord *cluster, const char *name)
{
    struct coord_shard_entry *entry = cluster->shards;
    while (entry != NULL && strcmp(entry->name, name) != 0) entry = entry->next;
    return entry;
}

struct coord_shard_entry *coord_shard_get(struct coord *cluster, const char *name)
{
    size_t count = 0;
    struct coord_shard_entry **at = &cluster->shards;
    for (; *at != NULL && strcmp((*at)->name, name) < 0; at = &(*at)->next) count++;
    if (*at != NULL && strcmp((*at)->name, name) == 0) return *at;
    for (const struct coord_shard_entry *s = *at; s != NULL; s = s->next) count++;
    if (count >= CAIRN_SHARD_ENTRIES_MAX) return NULL;
    struct coord_shard_entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL || (entry->name = strdup(name)) == NULL) {
        free(entry);
        return NULL;
    }
    cairn__shard_stats__init(&entry->told.stats);
    TAILQ_INIT(&entry->calls);
    entry->since_ms = uv_now(cluster->loop);
    entry->gone_ms = coord_now_ms(cluster);
    entry->next = *at;
    *at = entry;
    return entry;
}

void coord_shard_free(struct coord_shard_entry *entry)
{
    coord_shard_forget_parts(entry);
    coord_waiters_release(&entry->drain.waiters);
    coord_waiters_release(&entry->drain.begun);
    free(entry->fabric_address);
    free(entry->told.bytes);
    free(entry->told.memory);
    free(entry->told.former);
    free(entry->held);
    free(entry->name);
    free(entry);
}

/* ==== shards that are gone for good ==== */

/* Returns a job that has a part on the shard, or NULL if there is none. */
static const struct coord_job *user_of(const struct coord *cluster,
                                       const struct coord_shard_entry *entry)
{
    const struct coord_job *job = cluster->jobs;
    while (job != NULL && !coord_job_has_shard(job, entry)) job = job->next;
    return job;
}

/* True if an entry may be in use although no job in the list has it. A restore whose job is not
 * linked yet may use the entry, and an adoption may use the entry's name. */
static bool unknown_uses(const struct coord *cluster)
{
    return cluster->under_way.restores != NULL || cluster->under_way.adoption != NULL;
}

static void remove_entry(struct coord *cluster, struct coord_shard_entry *entry)
{
    struct coord_shard_entry **at = &cluster->shards;
    while (*at != entry) at = &(*at)->next;
    *at = entry->next;
    coord_shard_free(entry);
}

void coord_shard_drop_unused(struct coord *cluster, struct coord_shard_entry *entry)
{
    if (entry->session != NULL || user_of(cluster, entry) != NULL || unknown_uses(cluster)) return;
    remove_entry(cluster, entry);
}

cairn_status coord_shard_forget(struct coord *cluster, const char *name, struct sentence *why)
{
    struct coord_shard_entry *entry = coord_shard_find(cluster, name);
    if (entry == NULL)
        return fail_with(why, CAIRN_ERR_NOT_FOUND,
                         "there is no shard %.128s; `cairn cluster status`", name);
    if (entry->session != NULL)
        return fail_with(why, CAIRN_ERR_BUSY,
                         "shard %s is connected from %s: end its process first", name,
                         peer_name(entry->session->peer));
    const struct coord_job *job = user_of(cluster, entry);
    if (job != NULL)
        return fail_with(why, CAIRN_ERR_BUSY,
                         "job %s has a part on shard %s: restore it over other shards (`cairn "
                         "snapshot restore`) or drop it (`cairn job drop %s`) first",
                         job->spec.name, name, job->spec.name);
    if (unknown_uses(cluster))
        return fail_with(why, CAIRN_ERR_BUSY,
                         "a snapshot is being restored, or the shards' state adopted: ask again "
                         "when that has ended");
    log_info("shard %s was forgotten by an operator", name);
    coord_event_note_shard(cluster, CAIRN_EVENT_FORGOTTEN, NULL, name, "by an operator");
    remove_entry(cluster, entry);
    return CAIRN_OK;
}
