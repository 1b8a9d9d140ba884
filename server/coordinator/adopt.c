/* Rebuilds a store from the shards. Each shard reports what it holds. The jobs that are complete
 * and consistent are written to the store in one transaction. This transaction also gives the store
 * a new identity, and gives each job marks (generation, epoch, round) that are not below those that
 * the shards have seen. The shards keep the new identity and connect anew. Then the jobs continue
 * as after a start of the coordinator. Each job is judged by itself. A refused job does not keep
 * other jobs from being adopted. A silent shard affects only the jobs that have a part on it. */
#include "server/coordinator/restore.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan.h"
#include "proto/spec/spec.h"
#include "server/coordinator/cluster.h"

#define ADOPT_TIMEOUT_MS 20000 /* how long an adoption waits for a shard */

static bool adoption_knows(const struct coord_shard_entry *entry);
static cairn_status find_adoptees(struct coord_adoption *adoption);

enum { ASKS_FOR_LIST, ASKS_FOR_PART, PREPARES_ROWS, WRITES, IS_OVER };

static void free_adoption(struct coord_adoption *adoption)
{
    adoption->steps.cluster->under_way.adoption = NULL;
    (void)coord_steps_cancel(&adoption->steps);
    coord_waiters_release(&adoption->waiter);
    for (size_t i = 0; i < adoption->job_count; i++) {
        paged_release(adoption->jobs[i].parts, CAIRN_PARTS);
        free(adoption->jobs[i].name);
        free(adoption->jobs[i].shards);
    }
    free(adoption->jobs);
    free(adoption->silent);
    free(adoption->rows);
    free(adoption);
}

static void fail_adoption(struct coord_steps *steps, cairn_status status, const char *text)
{
    struct coord_adoption *adoption = (struct coord_adoption *)steps;
    log_warn("nothing was adopted: %s", text);
    coord_waiters_fail(&adoption->waiter, status, text);
    free_adoption(adoption);
}

/* Answers with a list of all jobs, which says of each refused job why. */
static void done_adoption(struct coord_steps *steps)
{
    struct coord_adoption *adoption = (struct coord_adoption *)steps;
    struct coord *cluster = steps->cluster;
    const bool was_written = !adoption->plan && adoption->row_count > 0;
    Cairn__ClusterAdopted message = CAIRN__CLUSTER_ADOPTED__INIT;
    Cairn__AdoptedJob *jobs = calloc(adoption->job_count + 1, sizeof *jobs);
    Cairn__AdoptedJob **list = calloc(adoption->job_count + 1, sizeof *list);
    if (jobs == NULL || list == NULL) {
        free(jobs);
        free(list);
        fail_adoption(steps, CAIRN_ERR_NO_MEMORY, "out of memory");
        return;
    }
    for (size_t i = 0; i < adoption->job_count; i++) {
        struct coord_adoptee *job = &adoption->jobs[i];
        cairn__adopted_job__init(&jobs[i]);
        jobs[i].name = job->name;
        jobs[i].job = job->id;
        jobs[i].generation = job->version_generation;
        jobs[i].step = job->step;
        jobs[i].shards = job->shard_count;
        jobs[i].refused = job->refused.text;
        list[i] = &jobs[i];
    }
    message.jobs = list;
    message.n_jobs = adoption->job_count;
    message.store = cluster->identity.id.store;
    message.silent = adoption->silent;
    message.n_silent = adoption->silent_count;
    struct keys_message keys;
    coord_keys_fill_list(cluster, adoption->keys, adoption->key_count, &keys);
    message.keys = &keys.keys;
    coord_waiters_answer(&adoption->waiter, CAIRN_MSG_CLUSTER_ADOPTED, &message.base);
    free(jobs);
    free(list);
    free_adoption(adoption);
    if (was_written) coord_openings_advance(cluster);
}

static void release_adoption(struct coord_steps *steps)
{
    free_adoption((struct coord_adoption *)steps);
}

/* ---- questions to the shards ---- */

static uint32_t ask_for_parts(struct coord_adoption *adoption, struct coord_shard_entry *entry,
                              uint64_t job, uint64_t generation)
{
    Cairn__PartGet get = CAIRN__PART_GET__INIT;
    get.job = job;
    get.generation = generation;
    return coord_gather_send(adoption->steps.gather, entry, CAIRN_MSG_PART_GET, &get.base);
}

/* ---- their specs and layouts ---- */

static struct coord_adoptee *find_request(struct coord_session *session, uint32_t request)
{
    struct coord_adoption *adoption = session->cluster->under_way.adoption;
    for (size_t i = 0; adoption != NULL && i < adoption->job_count; i++) {
        struct coord_adoptee *job = &adoption->jobs[i];
        if (job->request == request && request != 0 && job->from == session->entry) return job;
    }
    return NULL;
}

/* Ends the request for the job's part: no further page of the part is taken. */
static void end_part(struct coord_adoptee *job, cairn_status status, const char *why)
{
    const uint32_t request = job->request;
    job->request = 0;
    coord_calls_reply(job->from, request, status, why);
}

/* on_part_told takes a shard's Part, and on_page takes each Page of that part. */
static void on_part_told(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__Part *part = any;
    struct coord_adoptee *job = find_request(session, request);
    if (job == NULL) return;
    paged_release(job->parts, CAIRN_PARTS);
    if (part->spec_bytes == 0 || part->layout_bytes == 0 ||
        paged_init_job(job->parts, part->spec_bytes, part->layout_bytes) != CAIRN_OK)
        end_part(job, CAIRN_ERR_MALFORMED, "it sent a part without a spec or a layout");
}

static void on_page(struct coord_session *session, uint32_t request, const void *any)
{
    const Cairn__Page *page = any;
    struct coord_adoption *adoption = session->cluster->under_way.adoption;
    struct coord_adoptee *job = find_request(session, request);
    if (job == NULL) return;
    if (paged_add(job->parts, CAIRN_PARTS, page) != CAIRN_OK) {
        end_part(job, CAIRN_ERR_PROTOCOL, "the pages of its part do not follow each other");
        return;
    }
    adoption->began_ms = coord_now_ms(
        adoption->steps.cluster); // the shard gets another full timeout
    if (paged_whole(job->parts, CAIRN_PARTS)) end_part(job, CAIRN_OK, "");
}

/* Finds the next job that is not refused, from the job on that was last asked for. */
static size_t next_to_ask(const struct coord_adoption *adoption)
{
    size_t i = adoption->asked_count;
    while (i < adoption->job_count && adoption->jobs[i].refused.text[0] != '\0') i++;
    return i;
}

static bool lacks_part(const struct coord_steps *steps)
{
    const struct coord_adoption *adoption = (const struct coord_adoption *)steps;
    return next_to_ask(adoption) < adoption->job_count;
}

/* Asks for one part after another, because a shard makes a copy of each part that it sends. */
static cairn_status ask_for_next(struct coord_steps *steps, struct sentence *why)
{
    struct coord_adoption *adoption = (struct coord_adoption *)steps;
    struct coord_adoptee *job = &adoption->jobs[next_to_ask(adoption)];
    (void)why;
    adoption->asked_count = (size_t)(job - adoption->jobs) + 1;
    adoption->began_ms = coord_now_ms(steps->cluster);
    job->request = ask_for_parts(adoption, job->from, job->id, job->generation);
    return CAIRN_OK;
}

/* The shard that was last asked for a part does not answer. Refuses the job of that part, and all
 * later jobs whose part is to come from the same shard. */
static void refuse_silent(struct coord_adoption *adoption)
{
    const size_t asked = adoption->asked_count - 1;
    const struct coord_shard_entry *silent = adoption->jobs[asked].from;
    for (size_t i = asked; i < adoption->job_count; i++) {
        struct coord_adoptee *job = &adoption->jobs[i];
        job->request = 0;
        if (job->from == silent && job->refused.text[0] == '\0')
            sentence_set(&job->refused, "shard %s does not send its part", silent->name);
    }
}

static cairn_status judge_part(struct coord_steps *steps, cairn_status status, struct sentence *why)
{
    struct coord_adoption *adoption = (struct coord_adoption *)steps;
    struct coord_adoptee *job = &adoption->jobs[adoption->asked_count - 1];
    if (status == CAIRN_ERR_TIMEOUT) {
        refuse_silent(adoption);
    } else if (status != CAIRN_OK) {
        job->request = 0;
        sentence_set(&job->refused, "%s", why->text); // `why` names the shard
    }
    coord_steps_go(steps, ASKS_FOR_PART, false);
    return CAIRN_OK;
}

static cairn_status ask_for_list(struct coord_steps *steps, struct sentence *why)
{
    struct coord_adoption *adoption = (struct coord_adoption *)steps;
    (void)why;
    adoption->began_ms = coord_now_ms(steps->cluster);
    for (struct coord_shard_entry *s = steps->cluster->shards; s != NULL; s = s->next)
        // job 0: all parts
        s->parts_asked = s->session != NULL ? ask_for_parts(adoption, s, 0, 0) : 0;
    return CAIRN_OK;
}

/* Continues with the reports of those shards that have answered. Fails if no shard has answered. */
static cairn_status judge_list(struct coord_steps *steps, cairn_status status, struct sentence *why)
{
    struct coord_adoption *adoption = (struct coord_adoption *)steps;
    size_t whole = 0;
    for (struct coord_shard_entry *s = steps->cluster->shards; s != NULL; s = s->next)
        if (adoption_knows(s)) status = CAIRN_OK;
    if (status != CAIRN_OK) return status;
    if (find_adoptees(adoption) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < adoption->silent_count; i++)
        log_warn("shard %s does not say what it holds, and counts as away", adoption->silent[i]);
    for (size_t i = 0; i < adoption->job_count; i++)
        whole += adoption->jobs[i].refused.text[0] == '\0';
    if (whole == 0) coord_steps_go(steps, IS_OVER, false);
    return CAIRN_OK;
}

void coord_adopt_tick(struct coord *cluster)
{
    struct coord_adoption *adoption = cluster->under_way.adoption;
    struct sentence why;
    if (adoption == NULL || adoption->steps.gather == NULL ||
        coord_now_ms(cluster) - adoption->began_ms < ADOPT_TIMEOUT_MS)
        return;
    sentence_set(&why, "adopt again; these shards do not say what they hold: ");
    coord_gather_awaited(adoption->steps.gather, &why);
    coord_steps_give_question_up(&adoption->steps, CAIRN_ERR_TIMEOUT, why.text);
}

void coord_adopt_close(struct coord *cluster)
{
    if (cluster->under_way.adoption != NULL) free_adoption(cluster->under_way.adoption);
}

/* ==== adopt plan ==== */

/* Makes jobs from what the shards hold. A generation of a job is complete if each part of the
 * generation's layout is on a connected shard, and all these parts agree. A job is adopted in its
 * newest complete generation. */

/* True if the shard has answered this adoption. */
static bool adoption_knows(const struct coord_shard_entry *entry)
{
    return entry->session != NULL && entry->parts_asked != 0 &&
           entry->parts_answered == entry->parts_asked;
}

static bool is_silent(const struct coord_shard_entry *entry)
{
    return entry->parts_asked != 0 && !adoption_knows(entry);
}

static cairn_status list_silent(struct coord_adoption *adoption)
{
    size_t count = 0;
    for (struct coord_shard_entry *s = adoption->steps.cluster->shards; s != NULL; s = s->next)
        count += is_silent(s);
    adoption->silent = calloc(count + 1, sizeof *adoption->silent);
    if (adoption->silent == NULL) return CAIRN_ERR_NO_MEMORY;
    for (struct coord_shard_entry *s = adoption->steps.cluster->shards; s != NULL; s = s->next) {
        if (!is_silent(s)) continue;
        adoption->silent[adoption->silent_count++] = s->name;
        s->parts_asked = 0; // an answer that comes now is too late
    }
    return CAIRN_OK;
}

static void add_silent(const struct coord_adoption *adoption, struct sentence *out)
{
    for (size_t i = 0; i < adoption->silent_count; i++)
        sentence_add(out, "%s%s", i == 0 ? "; these shards do not say what they hold: " : ", ",
                     adoption->silent[i]);
}

/* Reports that no shard has part `index` of the job, and which silent shards may have this part. */
static void adoption_missing(const struct coord_adoption *adoption, const struct coord_adoptee *job,
                             uint32_t index, struct sentence *out)
{
    sentence_set(out, "part %" PRIu32 " of %" PRIu32 " is on no connected shard", index + 1,
                 job->shard_count);
    add_silent(adoption, out);
}

/* Calls `take` for each part of the job that the connected shards have reported. */
typedef void (*part_fn)(struct coord_adoptee *job, struct coord_shard_entry *entry,
                        Cairn__HeldJob *part);
static void each_part(struct coord *cluster, struct coord_adoptee *job, part_fn take)
{
    for (struct coord_shard_entry *s = cluster->shards; s != NULL; s = s->next)
        for (size_t i = 0; adoption_knows(s) && i < s->parts->n_held; i++)
            if (s->parts->held[i]->job == job->id && !s->parts->held[i]->mirror)
                take(job, s, s->parts->held[i]);
}

static void take_marks(struct coord_adoptee *job, struct coord_shard_entry *entry,
                       Cairn__HeldJob *part)
{
    const struct marks seen = coord_held_marks(part);
    (void)entry;
    marks_add(&job->marks, &seen);
    if (part->version_generation > job->marks.generation)
        job->marks.generation = part->version_generation;
}

static void refuse_adoptee(struct coord_adoptee *job, const char *text, const char *shard)
{
    if (job->refused.text[0] == '\0') sentence_set(&job->refused, "%s: %s", shard, text);
}

/* ---- one generation ---- */

static void begin_with(struct coord_adoptee *job, struct coord_shard_entry *entry,
                       Cairn__HeldJob *part)
{
    job->best = part;
    job->from = entry;
    job->base_step = part->base_step;
    job->version_generation = part->version_generation;
    job->step = job->lowest_step = part->version_step;
    job->shard_count = part->shard_count < CAIRN_SHARD_ENTRIES_MAX ? part->shard_count
                                                                   : CAIRN_SHARD_ENTRIES_MAX;
}

/* Chooses the newest layout that is in force on any shard. Every shard of this layout has at least
 * prepared it, because a layout is put in force only after that. If several shards use the layout,
 * the shard with the newest spec among them is asked for both the layout and the spec. */
static void take_layout(struct coord_adoptee *job, struct coord_shard_entry *entry,
                        Cairn__HeldJob *part)
{
    const Cairn__HeldJob *best = job->best;
    if (part->generation != job->generation) return;
    if (best == NULL || part->layout_version > best->layout_version ||
        (part->layout_version == best->layout_version && part->revision > best->revision))
        begin_with(job, entry, part);
}

/* True if the part uses the chosen layout, or has prepared this layout and will use it from the
 * next fence on. */
static bool has_layout(const struct coord_adoptee *job, const Cairn__HeldJob *part)
{
    const Cairn__HeldJob *best = job->best;
    if (part->layout_hash == best->layout_hash && part->shard_count == job->shard_count)
        return true;
    return part->next_layout_version != 0 && part->next_layout_version == best->layout_version &&
           part->next_layout_hash == best->layout_hash;
}

static void take_part(struct coord_adoptee *job, struct coord_shard_entry *entry,
                      Cairn__HeldJob *part)
{
    if (part->generation != job->generation) return;
    const Cairn__HeldJob *best = job->best;
    // The job changed to the chosen layout without this part.
    if (part->layout_version < best->layout_version && !has_layout(job, part)) return;
    const bool same_spec = part->spec_hash.len == best->spec_hash.len &&
                           memcmp(part->spec_hash.data, best->spec_hash.data,
                                  part->spec_hash.len) == 0;
    if (part->version_step > job->step) job->step = part->version_step;
    if (part->version_step < job->lowest_step) job->lowest_step = part->version_step;
    if (!part->serving)
        refuse_adoptee(job, "its part was never complete", entry->name);
    else if (!has_layout(job, part) || part->shard_index >= job->shard_count ||
             part->base_step != job->base_step)
        refuse_adoptee(job, "its part is of another layout", entry->name);
    else if (part->revision == best->revision && !same_spec)
        refuse_adoptee(job, "it has another spec of the same revision", entry->name);
    else if (job->step - job->lowest_step > 1)
        refuse_adoptee(job, "its part is more than one step apart from the others", entry->name);
    else if (job->shards[part->shard_index].name != NULL)
        refuse_adoptee(job, "another shard holds the same part", entry->name);
    else
        job->shards[part->shard_index].name = entry->name;
    if (part->version_generation > job->version_generation)
        job->version_generation = part->version_generation;
}

/* Judges whether job->generation is complete. First clears what was noted in `job` when another
 * generation was judged. */
static void judge_generation(struct coord_adoption *adoption, struct coord_adoptee *job)
{
    struct coord *cluster = adoption->steps.cluster;
    memset(job->shards, 0, job->shard_count * sizeof *job->shards);
    job->best = NULL;
    job->shard_count = 0;
    job->refused.text[0] = '\0';
    each_part(cluster, job, take_layout);
    if (job->best != NULL) each_part(cluster, job, take_part);
    if (job->shard_count == 0) {
        refuse_adoptee(job, "no part of it was ever finished", job->name);
        add_silent(adoption, &job->refused);
    }
    // A layout that is not the job's first may have holes. judge_layout distinguishes holes from
    // missing parts when the layout has arrived.
    const bool may_have_holes = job->best != NULL && job->best->layout_version > 1;
    for (uint32_t i = 0; i < job->shard_count && job->refused.text[0] == '\0'; i++)
        if (job->shards[i].name == NULL && !may_have_holes)
            adoption_missing(adoption, job, i, &job->refused);
}

static void take_newer(struct coord_adoptee *job, struct coord_shard_entry *entry,
                       Cairn__HeldJob *part)
{
    (void)entry;
    if (part->generation < job->below && part->generation > job->generation)
        job->generation = part->generation;
}

/* Goes back from job->generation to the next older generation that a shard holds. Returns false if
 * there is no older one. */
static bool go_back(struct coord *cluster, struct coord_adoptee *job)
{
    job->below = job->generation;
    job->generation = 0;
    each_part(cluster, job, take_newer);
    return job->generation != 0;
}

/* Chooses the newest complete generation, even if the shards were not yet told to switch to it. An
 * amendment that makes a new generation is answered when every shard has made its new part and the
 * store has the amendment. No shard drops its old part before that. So the new generation of an
 * answered amendment is complete here. An amendment that was not answered may take effect, too. If
 * no generation is complete, the job is refused, for the reason found for its newest generation. */
static void choose_generation(struct coord_adoption *adoption, struct coord_adoptee *job)
{
    uint64_t newest = 0;
    job->generation = UINT64_MAX;
    while (go_back(adoption->steps.cluster, job)) {
        if (newest == 0) newest = job->generation;
        judge_generation(adoption, job);
        if (job->refused.text[0] == '\0') return;
    }
    job->generation = newest;
    judge_generation(adoption, job);
}

/* ---- one job ---- */

/* Judges a job that our store knows, too. */
static void judge_known(struct coord_adoptee *job, const struct coord_job *known)
{
    const struct marks ours = coord_job_marks(known);
    marks_add(&job->marks, &ours);
    if (known->generation > job->generation)
        refuse_adoptee(job, "the store has a newer generation of it", job->name);
    struct sentence why;
    if (coord_operation_judge(known, CAIRN_OPERATION_ADOPT, &why) != CAIRN_OK)
        refuse_adoptee(job, "it is being saved, amended or made: adopt again when that has ended",
                       job->name);
}

static void judge_job(struct coord_adoption *adoption, struct coord_adoptee *job)
{
    const struct coord_job *known = coord_job_by_id(adoption->steps.cluster, job->id);
    each_part(adoption->steps.cluster, job, take_marks);
    choose_generation(adoption, job);
    if (known != NULL) judge_known(job, known);
    // No other job may have the job's name, neither in the store nor among the adopted jobs before
    // this one.
    const struct coord_job *other = coord_job_find(adoption->steps.cluster, job->name);
    bool twice = other != NULL && other->id != job->id;
    for (const struct coord_adoptee *j = adoption->jobs; j < job; j++)
        twice |= j->refused.text[0] == '\0' && strcmp(j->name, job->name) == 0;
    if (twice) refuse_adoptee(job, "there is another job of that name", job->name);
    // Each incarnation of the coordinator may have reserved a block of round numbers, without any
    // shard having seen one of them.
    marks_above(&job->marks, (adoption->incarnation + 1) * CAIRN_ROUND_BLOCK);
}

/* True if the job was found and not refused, so that it is to be adopted. */
static bool is_part_of(const struct coord_adoption *adoption, uint64_t job)
{
    for (size_t i = 0; i < adoption->job_count; i++)
        if (adoption->jobs[i].id == job) return adoption->jobs[i].refused.text[0] == '\0';
    return false;
}

/* Takes the trusted keys and the identity of the former store from the shards that hold a part of
 * an adopted job. These shards have kept the keys by which the job's snapshots are trusted, and
 * know the store to which the job belonged. If the shards name several stores, none of these stores
 * counts as the former one. */
static void take_heritage(struct coord_adoption *adoption)
{
    const uint64_t own = adoption->steps.cluster->identity.id.store;
    bool is_one = true;
    for (struct coord_shard_entry *s = adoption->steps.cluster->shards; s != NULL; s = s->next) {
        bool holds = false;
        for (size_t i = 0; adoption_knows(s) && i < s->parts->n_held; i++)
            holds = holds || is_part_of(adoption, s->parts->held[i]->job);
        if (!holds) continue;
        adoption->key_count = coord_keys_unknown(adoption->steps.cluster, s->parts->keys,
                                                 adoption->keys, adoption->key_count);
        if (s->seen.store == own || s->seen.store == 0) continue;
        is_one = is_one && (adoption->former == 0 || adoption->former == s->seen.store);
        adoption->former = s->seen.store;
    }
    if (!is_one) adoption->former = 0;
}

/* Finds the jobs on the connected shards, and notes each as complete or refused. A shard that does
 * not report what it holds is treated like a shard that is away, and is listed as silent. */
static cairn_status find_adoptees(struct coord_adoption *adoption)
{
    struct coord_answer memory = { 0 };
    Cairn__ClusterForgotten strangers = CAIRN__CLUSTER_FORGOTTEN__INIT; // for its list of parts
    if (list_silent(adoption) != CAIRN_OK) return CAIRN_ERR_NO_MEMORY;
    coord_strangers_add(adoption->steps.cluster, &memory, &strangers.base, "parts");
    adoption->jobs = calloc(strangers.n_parts + 1, sizeof *adoption->jobs);
    cairn_status status = memory.failed || adoption->jobs == NULL ? CAIRN_ERR_NO_MEMORY : CAIRN_OK;
    for (size_t i = 0; i < strangers.n_parts && status == CAIRN_OK; i++) {
        const Cairn__HeldJob *part = strangers.parts[i]->part;
        size_t at = 0;
        while (at < adoption->job_count && adoption->jobs[at].id != part->job) at++;
        if (at < adoption->job_count) continue;
        adoption->jobs[at].id = part->job;
        adoption->jobs[at].name = strdup(part->name);
        adoption->jobs[at].shards = calloc(CAIRN_SHARD_ENTRIES_MAX,
                                           sizeof *adoption->jobs[at].shards);
        adoption->job_count++;
        if (adoption->jobs[at].name == NULL || adoption->jobs[at].shards == NULL)
            status = CAIRN_ERR_NO_MEMORY;
    }
    coord_answer_release(&memory);
    adoption->incarnation = store_meta(adoption->steps.cluster->store)->incarnation;
    for (const struct coord_shard_entry *s = adoption->steps.cluster->shards; s != NULL;
         s = s->next)
        if (s->seen.incarnation > adoption->incarnation)
            adoption->incarnation = s->seen.incarnation;
    for (size_t i = 0; i < adoption->job_count && status == CAIRN_OK; i++)
        judge_job(adoption, &adoption->jobs[i]);
    if (status == CAIRN_OK) take_heritage(adoption);
    return status;
}

/* ==== adopt write ==== */

/* Writes adopted jobs into the store in one transaction, on the store's thread. Afterwards the
 * coordinator loads the jobs from the store, as after a start, and tells the shards the store's new
 * identity, which they keep. */

static cairn_status write_adopted(struct coord_steps *steps, struct sentence *why)
{
    const struct coord_adoption *adoption = (struct coord_adoption *)steps;
    struct stored_key keys[CAIRN_KEYS_MAX];
    char lines[CAIRN_KEYS_MAX][CAIRN_KEY_LINE_BYTES];
    for (size_t i = 0; i < adoption->key_count; i++) {
        const struct trusted_key *key = &adoption->keys[i];
        public_key_line(&key->key, lines[i]);
        keys[i] = (struct stored_key) { lines[i], key->is_own, key->since_unix_s };
    }
    const struct store_adoptees adoptees = { .jobs = adoption->rows,
                                             .job_count = adoption->row_count,
                                             .keys = keys,
                                             .key_count = adoption->key_count,
                                             .incarnation = adoption->incarnation };
    return store_adopt(steps->cluster->store, &adoptees, why);
}

/* Loads the job from its row in the store, in place of what the coordinator knew about the job
 * before. The job's members are disconnected, and connect again. */
static void reload_job(struct coord *cluster, const struct stored_job *row)
{
    struct coord_job *old = coord_job_by_id(cluster, row->id);
    const struct coord_tenant none = { .owner = "" }, tenant = old != NULL ? old->tenant : none;
    struct sentence why;
    while (old != NULL && old->members.list != NULL) {
        struct coord_session *session = old->members.list->session;
        coord_member_free(old->members.list);
        if (session->closing) continue;
        session->closing = true;
        peer_finish(session->peer, CAIRN_ERR_CLOSED, "job %s was adopted", row->name);
    }
    if (old != NULL) {
        coord_snapshot_orphan(old, "it was adopted");
        coord_job_unlink(old);
        coord_job_free(old);
    }
    const cairn_status status = coord_job_load(cluster, row, &why);
    struct coord_job *job = coord_job_by_id(cluster, row->id);
    if (job != NULL) job->tenant = tenant; // the store has kept it, if it had it
    if (job != NULL && tenant.owner[0] == '\0')
        log_warn(
            "job %s is an admin's for now, because shards do not know whose a job is: `cairn job "
            "chown` gives it an owner",
            row->name);
    if (status != CAIRN_OK)
        log_error("job %s is in the store, but was not loaded: %s; start again", row->name,
                  why.text);
}

/* Disconnects every shard, so that it connects anew. A shard that has answered is first told the
 * new identity, which it keeps. A silent shard is not told, because nobody has looked at its parts,
 * which may be newer than the adopted parts. Such a shard still belongs to its former store, like a
 * shard that is away. */
static void tell_shards(struct coord *cluster)
{
    Cairn__StoreAdopted adopted = CAIRN__STORE_ADOPTED__INIT;
    adopted.store = cluster->identity.id.store;
    adopted.incarnation = cluster->identity.id.incarnation;
    for (struct coord_shard_entry *s = cluster->shards; s != NULL; s = s->next) {
        if (s->session == NULL || s->session->closing) continue;
        if (adoption_knows(s))
            coord_session_send(s->session, CAIRN_MSG_STORE_ADOPTED, 0, &adopted.base);
        s->session->closing = true;
        peer_finish(s->session->peer, CAIRN_ERR_CLOSED, "the store was rebuilt");
    }
}

static cairn_status take_adopted(struct coord_steps *steps, cairn_status status,
                                 struct sentence *why)
{
    struct coord_adoption *adoption = (struct coord_adoption *)steps;
    struct coord *cluster = steps->cluster;
    (void)why;
    if (status != CAIRN_OK) return status;
    if (adoption->former == 0) adoption->former = cluster->identity.id.store;
    cluster->identity.id.store = store_meta(cluster->store)->identity;
    cluster->identity.id.incarnation = store_meta(cluster->store)->incarnation;
    log_warn("%zu jobs were adopted: this is store %016" PRIx64 " (start %" PRIu64
             ") now, and these shards obey no other",
             adoption->row_count, cluster->identity.id.store, cluster->identity.id.incarnation);
    coord_keys_adopted(cluster, adoption->keys, adoption->key_count);
    coord_storage_adopted(cluster, adoption->former);
    for (size_t i = 0; i < adoption->row_count; i++) reload_job(cluster, &adoption->rows[i]);
    tell_shards(cluster);
    return CAIRN_OK;
}

/* Judges whether the layout that was received is a layout of the spec's tensors, and whether a
 * shard was found for each part of this layout, except for holes. */
static cairn_status judge_layout(const struct coord_adoption *adoption,
                                 const struct coord_adoptee *job, const struct job_spec_data *spec,
                                 struct sentence *why)
{
    struct layout *layout = NULL;
    const struct paged *pages = &job->parts[CAIRN_PART_LAYOUT];
    cairn_status status = plan_job_decode(spec, pages->bytes, pages->have_bytes, &layout);
    if (status == CAIRN_OK && layout->shard_count != job->shard_count) status = CAIRN_ERR_MISMATCH;
    for (uint32_t i = 0; status == CAIRN_OK && i < job->shard_count; i++)
        if (job->shards[i].name == NULL && layout_owns(layout, i)) {
            status = CAIRN_ERR_NOT_FOUND;
            adoption_missing(adoption, job, i, why);
        }
    layout_close(layout);
    if (status == CAIRN_ERR_NOT_FOUND) return status;
    if (status == CAIRN_OK) return CAIRN_OK;
    return fail_with(why, status, "job %s: shard %s sent a layout that does not fit its spec: %s",
                     job->name, job->from->name, status_text((int)status));
}

/* Judges whether the pages hold a spec and a layout that match the job as the shards have reported
 * it. */
static cairn_status judge_pages(const struct coord_adoption *adoption,
                                const struct coord_adoptee *job, struct sentence *why)
{
    struct job_spec_data spec;
    if (job->request != 0)
        return fail_with(why, CAIRN_ERR_PROTOCOL, "job %s: shard %s answered without its part",
                         job->name, job->from->name);
    const struct paged *pages = &job->parts[CAIRN_PART_SPEC];
    cairn_status status = spec_unpack(pages->bytes, pages->have_bytes, optimizer_names(), &spec,
                                      why);
    if (status != CAIRN_OK) return status;
    if (strcmp(spec.name, job->name) != 0)
        status = fail_with(why, CAIRN_ERR_MISMATCH, "job %s: its spec is of job %s", job->name,
                           spec.name);
    if (status == CAIRN_OK) status = judge_layout(adoption, job, &spec, why);
    spec_release(&spec);
    return status;
}

/* Judges the pages, and makes the rows of the jobs that are adopted. */
static cairn_status prepare_rows(struct coord_steps *steps, struct sentence *why)
{
    struct coord_adoption *adoption = (struct coord_adoption *)steps;
    if (coord_keys_are_changing(steps->cluster))
        return fail_with(why, CAIRN_ERR_BUSY, "a key is being trusted or untrusted: adopt again");
    adoption->rows = calloc(adoption->job_count + 1, sizeof *adoption->rows);
    if (adoption->rows == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < adoption->job_count; i++) {
        struct coord_adoptee *job = &adoption->jobs[i];
        struct sentence refused = { "out of memory" };
        if (job->refused.text[0] != '\0') continue;
        if (judge_pages(adoption, job, &refused) != CAIRN_OK) {
            job->refused = refused;
            continue;
        }
        for (uint32_t s = 0; s < job->shard_count; s++)
            if (job->shards[s].name == NULL) job->shards[s].name = ""; // a hole
        adoption->rows[adoption->row_count++] =
            (struct stored_job) { .name = job->name,
                                  .spec = job->parts[CAIRN_PART_SPEC].bytes,
                                  .spec_bytes = job->parts[CAIRN_PART_SPEC].have_bytes,
                                  .layout = job->parts[CAIRN_PART_LAYOUT].bytes,
                                  .layout_bytes = job->parts[CAIRN_PART_LAYOUT].have_bytes,
                                  .shards = job->shards,
                                  .shard_count = job->shard_count,
                                  .id = job->id,
                                  .generation = job->generation,
                                  .generation_reserved = job->marks.generation,
                                  .epoch = job->marks.epoch,
                                  .round_reserved = job->marks.round,
                                  .base_step = job->base_step,
                                  .initialized = true };
    }
    return CAIRN_OK;
}

static bool is_to_be_written(const struct coord_steps *steps)
{
    const struct coord_adoption *adoption = (const struct coord_adoption *)steps;
    return !adoption->plan && adoption->row_count > 0;
}

/* ==== adoption ==== */

static const struct coord_step adoption_steps[] = {
    [ASKS_FOR_LIST] = { CAIRN_STEP_ASK, .begin = ask_for_list, .end = judge_list },
    [ASKS_FOR_PART] = { CAIRN_STEP_ASK, .is_needed = lacks_part, .begin = ask_for_next,
                        .end = judge_part },
    [PREPARES_ROWS] = { CAIRN_STEP_DO, .begin = prepare_rows },
    [WRITES] = { CAIRN_STEP_STORE, .is_needed = is_to_be_written, .run = write_adopted,
                 .end = take_adopted },
    [IS_OVER] = { .kind = CAIRN_STEP_LAST },
};

static const struct coord_operation_plan adoption_plan = { adoption_steps, .done = done_adoption,
                                                           .failed = fail_adoption,
                                                           .release = release_adoption };

/* A job that is adopted is made anew as soon as the store has it. */
const struct coord_operation coord_adopting = { .being = "adopted" };

/* Begins an adoption. If the message says `plan`, the adoption only finds out which jobs can be
 * adopted. The session is answered at the end. */
static cairn_status on_cluster_adopt(struct coord_session *session, uint32_t request,
                                     const void *any, struct sentence *why)
{
    const Cairn__ClusterAdopt *message = any;
    struct coord *cluster = session->cluster;
    struct coord_adoption *adoption = cluster->under_way.adoption != NULL
                                          ? NULL
                                          : calloc(1, sizeof *adoption);
    if (adoption == NULL)
        return fail_with(why, CAIRN_ERR_BUSY,
                         "the shards are being adopted already, or there is no memory");
    coord_steps_start(&adoption->steps, &adoption_plan, cluster, NULL);
    adoption->plan = message->plan;
    cluster->under_way.adoption = adoption;
    const cairn_status status = coord_waiters_add(&adoption->waiter, session, request, why);
    if (status == CAIRN_OK)
        coord_steps_advance(&adoption->steps);
    else
        free_adoption(adoption);
    return status;
}

/* ==== messages ==== */

const struct coord_row coord_adopt_rows[] = {
    { CAIRN_MSG_CLUSTER_ADOPT, CAIRN_FROM_ADMIN, .asks = on_cluster_adopt, .verb = "cluster adopt",
      .awaits = CAIRN_AWAITS_ALL_SHARDS },
    { CAIRN_MSG_PART, CAIRN_FROM_SHARD, .by_session = on_part_told },
    { CAIRN_MSG_PAGE, CAIRN_FROM_SHARD, .by_session = on_page },
    { 0 },
};
