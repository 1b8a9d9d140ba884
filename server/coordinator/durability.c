/* The durability of jobs: job.h has the picture. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/mirror.h"

#define JUDGE_MS 1000
#define SOON_MS  (60 * 1000) /* what is being made is expected to be there by then */
#define SAY_MS   (60 * 60 * 1000)

void coord_durability_take(struct coord_shard_entry *entry, const Cairn__ShardTiers *tiers)
{
    struct coord_told *told = &entry->told;
    told->has_keeper = tiers != NULL && tiers->keeper;
    told->had_keeper |= told->has_keeper;
    told->has_log = tiers != NULL && tiers->log;
    sentence_set(&told->log_lacks, "%s", tiers != NULL ? tiers->log_lacks : "");
    text_mend(told->log_lacks.text, "");
    told->log_was_empty = tiers != NULL && tiers->log_was_empty;
    told->awaited_count = 0;
    for (size_t i = 0; tiers != NULL && i < tiers->n_awaited && i < CAIRN_HELD_JOBS_MAX; i++)
        told->awaited[told->awaited_count++] = tiers->awaited[i];
}

/* ---- mirrors ---- */

/* True if both are lost together. */
static bool share_domain(const struct coord_shard_entry *a, const struct coord_shard_entry *b)
{
    const char *of_a = a->told.domain[0] != '\0' ? a->told.domain : a->host,
               *of_b = b->told.domain[0] != '\0' ? b->told.domain : b->host;
    return of_a[0] != '\0' && strcmp(of_a, of_b) == 0;
}

/* True if it is a standby of the owner: it names the owner, or a shard that has no part of the job any more,
 * because the owner took its place; or one whose place was taken by such a shard before. */
static bool stands_for(const struct coord_job *job, const struct coord_shard_entry *owner,
                       const struct coord_shard_entry *s)
{
    const struct coord_shard_entry *taker = owner;
    const char *named = owner->name;
    if (s->told.standby_of[0] == '\0') return false;
    for (int places = 0; places < 8; places++) { // two may be each other's standby
        if (strcmp(s->told.standby_of, named) == 0) return true;
        if (taker == NULL || taker->told.standby_of[0] == '\0') return false;
        named = taker->told.standby_of;
        taker = coord_shard_find(job->cluster, named);
        if (taker != NULL && coord_job_has_shard(job, taker)) return false;
    }
    return false;
}

static bool may_stand_by(const struct coord_job *job, const struct coord_shard_entry *owner,
                         const struct coord_shard_entry *s)
{
    return stands_for(job, owner, s) && coord_shard_stays(s) && !coord_shard_unfit(s) &&
           !coord_job_has_shard(job, s) && coord_mirror_at(job, s) == NULL &&
           s->told.stopped_incarnation != s->incarnation;
}

/* How little one loss takes with the standby: 0 is the best. Any is better than none, since a process may be
 * lost alone. other: the part's other standby; NULL: there is none. */
static int rank_standby(const struct coord_shard_entry *s, const struct coord_shard_entry *owner,
                        const struct coord_shard_entry *other)
{
    if (share_domain(s, owner)) return 2;
    return other != NULL && share_domain(s, other) ? 1 : 0;
}

struct coord_shard_entry *coord_mirrors_standby(const struct coord_job *job, uint32_t shard,
                                                int mirror)
{
    const struct coord_shard_entry *owner = job->shards[shard].entry;
    const struct coord_mirrors *all = coord_mirrors_find(job, shard);
    const struct coord_mirror *other = all != NULL ? &all->of[1 - mirror] : NULL;
    struct coord_shard_entry *best = NULL;
    for (struct coord_shard_entry *s = job->cluster->shards; s != NULL; s = s->next) {
        // the other mirror tries its standby again later
        if (!may_stand_by(job, owner, s) || (other != NULL && strcmp(other->name, s->name) == 0))
            continue;
        const struct coord_shard_entry *beside = other != NULL ? other->entry : NULL;
        if (best == NULL || rank_standby(s, owner, beside) < rank_standby(best, owner, beside))
            best = s;
    }
    return best;
}

static_assert(CAIRN_STANDBYS_MAX == 2, "a mirror has one other beside it");

struct coord_mirrored coord_mirrors_of(const struct coord_job *job, uint32_t shard, int mirror)
{
    const struct coord_mirrors *all = coord_mirrors_find(job, shard);
    const struct coord_mirror *m = all != NULL ? &all->of[mirror] : NULL;
    struct coord_mirrored mirrored = { .state = CAIRN_MIRRORED_NEVER, .standby = "", .why = "" };
    if (m == NULL || m->name[0] == '\0' || mirror_is_taking(&m->state)) return mirrored;
    mirrored.standby = m->name;
    mirrored.why = m->why.text;
    mirrored.state = m->state.stage == CAIRN_MIRROR_IN_STEP ? CAIRN_MIRRORED_NOW
                     : m->state.stage == CAIRN_MIRROR_NONE || m->state.stage == CAIRN_MIRROR_ENDING
                         ? CAIRN_MIRRORED_NOT
                         : CAIRN_MIRRORED_SOON;
    return mirrored;
}

/* True if each mirror of the part has its standby. */
static bool has_all(const struct coord_mirrors *all)
{
    for (int i = 0; i < CAIRN_STANDBYS_MAX; i++)
        if (all->of[i].entry == NULL) return false;
    return true;
}

void coord_mirrors_say_spare(const struct coord *cluster, const struct coord_shard_entry *entry,
                             struct sentence *out)
{
    for (const struct coord_job *job = cluster->jobs; job != NULL; job = job->next) {
        if (coord_mirror_at(job, entry) != NULL) continue;
        CAIRN_EACH_SHARD (job, i) {
            const struct coord_mirrors *all = coord_mirrors_find(job, i);
            const struct coord_shard_entry *owner = job->shards[i].entry;
            if (all == NULL || !stands_for(job, owner, entry) || !has_all(all)) continue;
            sentence_set(out,
                         "mirrors nothing of job %s: %s and %s mirror %s already, and a shard has "
                         "two standbys at most; it waits until one of them is lost",
                         job->spec.name, all->of[0].name, all->of[1].name, owner->name);
            return;
        }
    }
}

/* ---- what each part has ---- */

/* Returns what the shard told of the job's part. NULL: nothing yet. */
static const Cairn__MemoryTold *told_of(const struct coord_job *job,
                                        const struct coord_shard_entry *entry)
{
    for (size_t i = 0; i < entry->told.memory_count; i++)
        if (entry->told.memory[i].job == job->id) return &entry->told.memory[i];
    return NULL;
}

/* A shard tells with its heartbeats what it has, and a part is kept between two writes only. */
static void fill_process(struct safety_part *part, const struct coord_shard_entry *entry,
                         const Cairn__MemoryTold *told)
{
    struct safety_of *of = &part->of[CAIRN_SAFE_PROCESS];
    of->has = told != NULL && told->kept;
    const bool is_on_device = told != NULL && told->device > 0;
    of->may = of->is_coming = entry->told.has_keeper && !is_on_device;
    of->is_due = entry->told.had_keeper && told != NULL && !is_on_device;
}

/* Why the part has no log, after the shard's name; NULL: the usual reason, that there is no folder for it. */
static const char *why_no_log(const struct coord_shard_entry *entry, const struct coord_log *log,
                              bool is_heard)
{
    if (entry->told.log_lacks.text[0] != '\0') return entry->told.log_lacks.text;
    if (!is_heard) return "has not been heard yet since the coordinator started";
    if (!entry->told.has_log) return NULL;
    return log->is_told && log->why[0] != '\0' ? log->why : "has not said yet that it has its log";
}

static void fill_log(struct safety_part *part, const struct coord_job *job, uint32_t shard,
                     const Cairn__MemoryTold *told)
{
    const struct coord_shard_entry *entry = job->shards[shard].entry;
    const struct coord_log *log = &job->shards[shard].log;
    struct safety_of *of = &part->of[CAIRN_SAFE_LOG];
    of->has = told != NULL && told->logged;
    const bool is_heard = entry->session != NULL || told != NULL;
    of->may = entry->told.has_log;
    of->is_coming = !is_heard || (of->may && !log->failed);
    if (!of->has || !of->may) of->why = why_no_log(entry, log, is_heard);
}

/* True if the standby is lost together with the owner, from which it takes the place if only the owner's
 * process is lost. */
static bool is_beside(const struct coord_shard_entry *owner,
                      const struct coord_shard_entry *standby)
{
    return standby != NULL && share_domain(owner, standby);
}

/* The more of it, the safer is the part. */
static int worth_of(const struct coord_job *job, const struct coord_shard_entry *owner,
                    const struct coord_mirrored *m)
{
    if (m->state == CAIRN_MIRRORED_NEVER || m->state == CAIRN_MIRRORED_NOT) return (int)m->state;
    return (int)m->state +
           (is_beside(owner, coord_shard_find(job->cluster, m->standby)) ? 0 : CAIRN_MIRRORED_NOW);
}

/* A part is as safe as its best mirror makes it. */
static void fill_peer(struct safety_part *part, const struct coord_job *job, uint32_t shard)
{
    const struct coord_shard_entry *entry = job->shards[shard].entry;
    struct coord_mirrored best = coord_mirrors_of(job, shard, 0);
    struct safety_of *of = &part->of[CAIRN_SAFE_PEER];
    const struct coord_shard_entry *offered = coord_mirrors_standby(job, shard, 0);
    for (int i = 1; i < CAIRN_STANDBYS_MAX; i++) {
        const struct coord_mirrored m = coord_mirrors_of(job, shard, i);
        if (worth_of(job, entry, &m) > worth_of(job, entry, &best)) best = m;
        if (offered == NULL) offered = coord_mirrors_standby(job, shard, i);
    }
    const bool is_new = best.state == CAIRN_MIRRORED_NEVER;
    // a shard that is somebody's standby, and has a part, has taken the other's place
    const bool took = is_new && entry->told.standby_of[0] != '\0';
    const bool is_offered = offered != NULL, is_soon = best.state == CAIRN_MIRRORED_SOON,
               is_now = best.state == CAIRN_MIRRORED_NOW;
    of->is_due = !is_new || took || is_offered;
    if (best.state == CAIRN_MIRRORED_NOT)
        of->why = best.why;
    else if (took)
        of->why = "it took the place of the shard whose standby it was, and has no standby itself: "
                  "start another shard, with shard.standby_of = its name";
    if (is_beside(entry,
                  is_now || is_soon ? coord_shard_find(job->cluster, best.standby) : offered)) {
        of->why = "there is no second domain: its standby is on the same host, or has the same "
                  "shard.domain";
        return;
    }
    of->has = is_now;
    of->is_coming = is_soon || (is_new && is_offered);
    of->may = is_now || is_soon || is_offered;
    if (of->is_coming) of->why = "its standby is being filled";
}

/* Judges what all parts have. NULL as `parts_out`: there is no memory to judge. */
static struct safety_part *list_parts(const struct coord_job *job, size_t *count_out)
{
    struct safety_part *parts = calloc((size_t)job->entry_count + 1, sizeof *parts);
    *count_out = 0;
    if (parts == NULL) return NULL;
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_shard_entry *entry = job->shards[i].entry;
        const Cairn__MemoryTold *told = told_of(job, entry);
        struct safety_part *part = &parts[(*count_out)++];
        part->shard = entry->name;
        fill_process(part, entry, told);
        fill_peer(part, job, i);
        fill_log(part, job, i, told);
    }
    return parts;
}

cairn_status coord_durability_may(const struct coord_job *job, const struct job_spec_data *spec,
                                  struct sentence *why)
{
    size_t count;
    struct safety_part *parts = list_parts(job, &count);
    if (parts == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for the shards");
    const cairn_status status = safety_may(spec->policy.durability, parts, count, why);
    free(parts);
    return status;
}

/* A job that is lost, or not begun, says so otherwise. */
static bool is_judged(const struct coord_job *job)
{
    return job->state == CAIRN_CLUSTER_JOB_RUNNING && job->initialized;
}

struct safety coord_durability_of(const struct coord_job *job)
{
    size_t count;
    struct safety_part *parts = list_parts(job, &count);
    struct safety safety = { .asked = job->spec.policy.durability };
    if (parts != NULL) safety = safety_judge(safety.asked, parts, count);
    free(parts);
    if (is_judged(job)) return safety;
    safety.lacking = 0;
    safety.why.text[0] = '\0';
    return safety;
}

/* ---- who is told ---- */

static void say_safe(struct coord_job *job, const struct safety *safety)
{
    if (job->loss.unsafe.said_ms > 0) {
        log_info("job %s has the durability again that it asks for: it has %s", job->spec.name,
                 safety_text(safety->has));
        coord_event_note(job->cluster, CAIRN_EVENT_SAFE, job->spec.name, NULL, "it has %s",
                         safety_text(safety->has));
    }
    job->loss.unsafe = (struct coord_unsafe) { .next_ms = job->loss.unsafe.next_ms };
}

void coord_durability_tick(struct coord_job *job)
{
    struct coord_unsafe *unsafe = &job->loss.unsafe;
    const uint64_t now_ms = coord_now_ms(job->cluster);
    if (now_ms < unsafe->next_ms || !is_judged(job)) return;
    unsafe->next_ms = now_ms + JUDGE_MS;
    const struct safety safety = coord_durability_of(job);
    if (safety.lacking == 0) {
        say_safe(job, &safety);
        return;
    }
    if (unsafe->since_ms == 0) unsafe->since_ms = now_ms + 1;
    const bool is_new = unsafe->said_ms == 0 || safety.lacking > unsafe->lacking;
    const bool waits = safety.is_coming && now_ms + 1 - unsafe->since_ms < SOON_MS;
    if (waits || (!is_new && now_ms + 1 - unsafe->said_ms < SAY_MS)) return;
    if (is_new)
        coord_event_note(job->cluster, CAIRN_EVENT_DEGRADED, job->spec.name, NULL, "%s",
                         safety.why.text);
    unsafe->said_ms = now_ms + 1;
    unsafe->lacking = safety.lacking;
    const char *asked = capability_name(CAIRN_CAPABILITY_DURABILITY, (int)safety.asked);
    log_warn("job %s is less safe than it asks for (%s), and has %s: %s", job->spec.name, asked,
             safety_text(safety.has), safety.why.text);
}
