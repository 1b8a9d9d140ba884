/* Makes jobs of what the shards hold. A generation of a job is whole if each part of its layout
 * is on a shard that is here, and all agree; the newest generation that is whole is the job. See
 * adopt.c. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/coordinator/base/job.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/member/seats.h"
#include "server/coordinator/restore/adopt_private.h"
#include "server/coordinator/store/store.h"

bool cairn_cluster_adoption_knows(const struct cairn_cluster_seat *seat)
{
    return seat->session != NULL && seat->parts_asked != 0 && seat->parts_told == seat->parts_asked;
}

static bool is_silent(const struct cairn_cluster_seat *seat)
{
    return seat->parts_asked != 0 && !cairn_cluster_adoption_knows(seat);
}

static cairn_status list_silent(struct cairn_cluster_adoption *adoption)
{
    size_t count = 0;
    for (struct cairn_cluster_seat *s = adoption->cluster->seats; s != NULL; s = s->next)
        count += is_silent(s);
    adoption->silent = calloc(count + 1, sizeof *adoption->silent);
    if (adoption->silent == NULL) return CAIRN_ERR_NO_MEMORY;
    for (struct cairn_cluster_seat *s = adoption->cluster->seats; s != NULL; s = s->next) {
        if (!is_silent(s)) continue;
        adoption->silent[adoption->silent_count++] = s->name;
        s->parts_asked = 0; // what it says from now on is too late for this adoption
    }
    return CAIRN_OK;
}

static void add_silent(const struct cairn_cluster_adoption *adoption, struct cairn_sentence *out)
{
    for (size_t i = 0; i < adoption->silent_count; i++)
        cairn_sentence_add(out, "%s%s",
                           i == 0 ? "; these shards do not say what they hold: " : ", ",
                           adoption->silent[i]);
}

void cairn_cluster_adoption_missing(const struct cairn_cluster_adoption *adoption,
                                    const struct cairn_cluster_adoptee *job, uint32_t index,
                                    struct cairn_sentence *out)
{
    cairn_sentence_set(out, "part %" PRIu32 " of %" PRIu32 " is on no shard that is here",
                       index + 1, job->shard_count);
    add_silent(adoption, out);
}

/* Parts of one job on all shards that are here, and say what they hold. */
typedef void (*part_fn)(struct cairn_cluster_adoptee *job, struct cairn_cluster_seat *seat,
                        Cairn__HeldJob *part);
static void each_part(struct cairn_cluster *cluster, struct cairn_cluster_adoptee *job,
                      part_fn take)
{
    for (struct cairn_cluster_seat *s = cluster->seats; s != NULL; s = s->next)
        for (size_t i = 0; cairn_cluster_adoption_knows(s) && i < s->parts->n_held; i++)
            if (s->parts->held[i]->job == job->id) take(job, s, s->parts->held[i]);
}

static void take_marks(struct cairn_cluster_adoptee *job, struct cairn_cluster_seat *seat,
                       Cairn__HeldJob *part)
{
    const struct cairn_marks seen = cairn_cluster_held_marks(part);
    (void)seat;
    cairn_marks_add(&job->marks, &seen);
    if (part->version_generation > job->marks.generation)
        job->marks.generation = part->version_generation;
}

static void refuse(struct cairn_cluster_adoptee *job, const char *text, const char *shard)
{
    if (job->refused.text[0] == '\0') cairn_sentence_set(&job->refused, "%s: %s", shard, text);
}

/* ---- one generation ---- */

static void begin_with(struct cairn_cluster_adoptee *job, struct cairn_cluster_seat *seat,
                       Cairn__HeldJob *part)
{
    job->best = part;
    job->from = seat;
    job->base_step = part->base_step;
    job->version_generation = part->version_generation;
    job->step = job->lowest_step = part->version_step;
    job->shard_count = part->shard_count < CAIRN_SEATS_MAX ? part->shard_count : CAIRN_SEATS_MAX;
}

/* Chooses the newest layout that is in force anywhere: a fence went out with it, so that all of
 * its shards had it. Among the shards that go by it, the one with the newest spec is asked for
 * both layout and spec. */
static void take_layout(struct cairn_cluster_adoptee *job, struct cairn_cluster_seat *seat,
                        Cairn__HeldJob *part)
{
    const Cairn__HeldJob *best = job->best;
    if (part->generation != job->generation) return;
    if (best == NULL || part->layout_version > best->layout_version ||
        (part->layout_version == best->layout_version && part->revision > best->revision))
        begin_with(job, seat, part);
}

/* It goes by the layout that was chosen, or will when it is fenced with it. */
static bool has_layout(const struct cairn_cluster_adoptee *job, const Cairn__HeldJob *part)
{
    const Cairn__HeldJob *best = job->best;
    if (part->layout_hash == best->layout_hash && part->shard_count == job->shard_count)
        return true;
    return part->next_layout_version != 0 && part->next_layout_version == best->layout_version &&
           part->next_layout_hash == best->layout_hash;
}

static void take_part(struct cairn_cluster_adoptee *job, struct cairn_cluster_seat *seat,
                      Cairn__HeldJob *part)
{
    if (part->generation != job->generation) return;
    const Cairn__HeldJob *best = job->best;
    // The job went on without it.
    if (part->layout_version < best->layout_version && !has_layout(job, part)) return;
    const bool same_spec = part->spec_hash.len == best->spec_hash.len &&
                           memcmp(part->spec_hash.data, best->spec_hash.data,
                                  part->spec_hash.len) == 0;
    if (part->version_step > job->step) job->step = part->version_step;
    if (part->version_step < job->lowest_step) job->lowest_step = part->version_step;
    if (!part->serving)
        refuse(job, "its part was never complete", seat->name);
    else if (!has_layout(job, part) || part->shard_index >= job->shard_count ||
             part->base_step != job->base_step)
        refuse(job, "its part is of another layout", seat->name);
    else if (part->revision == best->revision && !same_spec)
        refuse(job, "it has another spec of the same revision", seat->name);
    else if (job->step - job->lowest_step > 1)
        refuse(job, "its part is more than one step apart from the others", seat->name);
    else if (job->shards[part->shard_index].name != NULL)
        refuse(job, "another shard holds the same part", seat->name);
    else
        job->shards[part->shard_index].name = seat->name;
    if (part->version_generation > job->version_generation)
        job->version_generation = part->version_generation;
}

/* Is it whole? Nothing is left of the one that was judged before it. */
static void judge_generation(struct cairn_cluster_adoption *adoption,
                             struct cairn_cluster_adoptee *job)
{
    struct cairn_cluster *cluster = adoption->cluster;
    memset(job->shards, 0, job->shard_count * sizeof *job->shards);
    job->best = NULL;
    job->shard_count = 0;
    job->refused.text[0] = '\0';
    each_part(cluster, job, take_layout);
    if (job->best != NULL) each_part(cluster, job, take_part);
    if (job->shard_count == 0) {
        refuse(job, "no part of it was ever finished", job->name);
        add_silent(adoption, &job->refused);
    }
    // A layout that followed others may have holes; they are judged when the layout is here.
    const bool may_have_holes = job->best != NULL && job->best->layout_version > 1;
    for (uint32_t i = 0; i < job->shard_count && job->refused.text[0] == '\0'; i++)
        if (job->shards[i].name == NULL && !may_have_holes)
            cairn_cluster_adoption_missing(adoption, job, i, &job->refused);
}

static void take_newer(struct cairn_cluster_adoptee *job, struct cairn_cluster_seat *seat,
                       Cairn__HeldJob *part)
{
    (void)seat;
    if (part->generation < job->below && part->generation > job->generation)
        job->generation = part->generation;
}

/* The newest of those that are older than this one; false: there is none. */
static bool go_back(struct cairn_cluster *cluster, struct cairn_cluster_adoptee *job)
{
    job->below = job->generation;
    job->generation = 0;
    each_part(cluster, job, take_newer);
    return job->generation != 0;
}

/* The newest that is whole, whether the shards were told to switch to it or not. An amendment is answered
 * when every shard has made it and the store has it; the first shard drops the old part after that. So an
 * amendment that was answered is whole here, and one that was not may take effect. If none is whole the
 * newest says why. */
static void choose_generation(struct cairn_cluster_adoption *adoption,
                              struct cairn_cluster_adoptee *job)
{
    uint64_t newest = 0;
    job->generation = UINT64_MAX;
    while (go_back(adoption->cluster, job)) {
        if (newest == 0) newest = job->generation;
        judge_generation(adoption, job);
        if (job->refused.text[0] == '\0') return;
    }
    job->generation = newest;
    judge_generation(adoption, job);
}

/* ---- one job ---- */

/* Names once: in the store, and among those before. */
static void judge_name(struct cairn_cluster_adoption *adoption, struct cairn_cluster_adoptee *job)
{
    const struct cairn_cluster_job *other = cairn_cluster_job_find(adoption->cluster, job->name);
    bool twice = other != NULL && other->id != job->id;
    for (const struct cairn_cluster_adoptee *j = adoption->jobs; j < job; j++)
        twice |= j->refused.text[0] == '\0' && strcmp(j->name, job->name) == 0;
    if (twice) refuse(job, "there is another job of that name", job->name);
}

/* Our store knows it, too. */
static void judge_known(struct cairn_cluster_adoptee *job, const struct cairn_cluster_job *known)
{
    const struct cairn_marks ours = cairn_cluster_job_marks(known);
    cairn_marks_add(&job->marks, &ours);
    if (known->generation > job->generation)
        refuse(job, "the store has a newer generation of it", job->name);
    if (known->snapshots.cut != NULL || known->extension.body != NULL ||
        known->amends.amending != NULL || known->state == CAIRN_CLUSTER_JOB_CREATING)
        refuse(job, "it is being saved, amended or made: adopt again when that has ended",
               job->name);
}

static void judge_job(struct cairn_cluster_adoption *adoption, struct cairn_cluster_adoptee *job)
{
    const struct cairn_cluster_job *known = cairn_cluster_job_by_id(adoption->cluster, job->id);
    each_part(adoption->cluster, job, take_marks);
    choose_generation(adoption, job);
    if (known != NULL) judge_known(job, known);
    judge_name(adoption, job);
    // Each incarnation may have skipped a block of which no shard heard a round.
    cairn_marks_above(&job->marks, (adoption->incarnation + 1) * CAIRN_ROUND_BLOCK);
}

static void take_incarnations(struct cairn_cluster_adoption *adoption)
{
    adoption->incarnation = cairn_store_meta(adoption->cluster->store)->incarnation;
    for (const struct cairn_cluster_seat *s = adoption->cluster->seats; s != NULL; s = s->next)
        if (s->seen.incarnation > adoption->incarnation)
            adoption->incarnation = s->seen.incarnation;
}

/* A job of which somebody holds a part that we do not act on. */
static bool is_part_of(const struct cairn_cluster_adoption *adoption, uint64_t job)
{
    for (size_t i = 0; i < adoption->job_count; i++)
        if (adoption->jobs[i].id == job) return adoption->jobs[i].refused.text[0] == '\0';
    return false;
}

/* Shards that hold a part of what is adopted have kept the keys by which its snapshots are trusted, and know
 * whose store it was of. */
static void take_heritage(struct cairn_cluster_adoption *adoption)
{
    const uint64_t own = adoption->cluster->identity.id.store;
    bool is_one = true;
    for (struct cairn_cluster_seat *s = adoption->cluster->seats; s != NULL; s = s->next) {
        bool holds = false;
        for (size_t i = 0; cairn_cluster_adoption_knows(s) && i < s->parts->n_held; i++)
            holds = holds || is_part_of(adoption, s->parts->held[i]->job);
        if (!holds) continue;
        adoption->key_count = cairn_cluster_keys_unknown(adoption->cluster, s->parts->keys,
                                                         adoption->keys, adoption->key_count);
        if (s->seen.store == own || s->seen.store == 0) continue;
        is_one = is_one && (adoption->former == 0 || adoption->former == s->seen.store);
        adoption->former = s->seen.store;
    }
    if (!is_one) adoption->former = 0;
}

cairn_status cairn_cluster_adoption_plan(struct cairn_cluster_adoption *adoption)
{
    struct cairn_cluster_strangers strangers;
    if (list_silent(adoption) != CAIRN_OK) return CAIRN_ERR_NO_MEMORY;
    if (!cairn_cluster_strangers_init(&strangers, adoption->cluster)) return CAIRN_ERR_NO_MEMORY;
    adoption->jobs = calloc(strangers.count + 1, sizeof *adoption->jobs);
    cairn_status status = adoption->jobs == NULL ? CAIRN_ERR_NO_MEMORY : CAIRN_OK;
    for (size_t i = 0; i < strangers.count && status == CAIRN_OK; i++) {
        const Cairn__HeldJob *part = strangers.list[i]->part;
        size_t at = 0;
        while (at < adoption->job_count && adoption->jobs[at].id != part->job) at++;
        if (at < adoption->job_count) continue;
        adoption->jobs[at].id = part->job;
        adoption->jobs[at].name = strdup(part->name);
        adoption->jobs[at].shards = calloc(CAIRN_SEATS_MAX, sizeof *adoption->jobs[at].shards);
        adoption->job_count++;
        if (adoption->jobs[at].name == NULL || adoption->jobs[at].shards == NULL)
            status = CAIRN_ERR_NO_MEMORY;
    }
    cairn_cluster_strangers_release(&strangers);
    take_incarnations(adoption);
    for (size_t i = 0; i < adoption->job_count && status == CAIRN_OK; i++)
        judge_job(adoption, &adoption->jobs[i]);
    if (status == CAIRN_OK) take_heritage(adoption);
    return status;
}
