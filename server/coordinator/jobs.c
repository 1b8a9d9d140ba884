/* This file creates jobs, loads them after a start, gives them to other owners, and drops them. */
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/plan/plan.h"
#include "server/coordinator/cluster.h"

static void free_body(void *arg)
{
    struct coord_job *job = arg;
    spec_release(&job->spec);
    layout_close(job->layout);
    packed_release(job->planned.spec);
    packed_release(job->planned.layout);
    free(job->planned.shard_bytes);
    free(job->shards);
    free(job->init.payload);
    free(job);
}

void coord_job_free(struct coord_job *job)
{
    coord_waiters_fail(&job->sharing.waiters, CAIRN_ERR_NOT_FOUND,
                       "the job is gone, or another one now");
    while (job->members.list != NULL) coord_member_free(job->members.list);
    coord_relapses_release(job);
    coord_job_core_close(job);
    coord_groups_free(job);
    coord_mirrors_free(job);
    coord_tiles_release(job);
    (void)coord_steps_cancel(&job->init.seal);
    coord_operations_release(job);
    coord_free_by(job->cluster, free_body, job,
                  job->planned.spec != NULL ? job->planned.spec->size : 0);
}

/* ---- the shards of a new one ---- */

/* For each shard, adds up how many bytes of state the layouts of other jobs put on it, whether or
 * not the bytes are there yet. Returns false if there is no memory. */
static bool weigh_entries(const struct coord_job *job)
{
    for (struct coord_shard_entry *s = job->cluster->shards; s != NULL; s = s->next)
        s->planned_bytes = 0;
    for (struct coord_job *j = job->cluster->jobs; j != NULL; j = j->next) {
        if (strcmp(j->spec.name, job->spec.name) == 0) continue; // a restore replaces j
        const uint64_t *bytes = coord_job_shard_bytes(j);
        if (bytes == NULL) return false;
        for (uint32_t i = 0; i < j->layout->shard_count; i++)
            if (bytes[i] > 0) j->shards[i].entry->planned_bytes += bytes[i];
    }
    return true;
}

/* True if shard `a` is a better choice than `b`. A shard that may get a part of the job is better
 * than one that may not. If both may, or neither, a shard that can save and load snapshots is
 * better. If this does not decide either, the shard with fewer planned bytes is better. */
static bool is_better(const struct coord_shard_entry *a, const struct coord_shard_entry *b,
                      const struct job_spec_data *spec)
{
    const bool a_fits = coord_shard_fits(a, spec), b_fits = coord_shard_fits(b, spec);
    if (a_fits != b_fits) return a_fits;
    const bool a_sees = a->storage.text[0] == '\0', b_sees = b->storage.text[0] == '\0';
    return a_sees != b_sees ? a_sees : a->planned_bytes < b->planned_bytes;
}

/* Chooses the shards of a job that is being planned, among the shards that are up. Takes the best
 * shards by is_better, and among equally good shards the first by name. A new job is placed even on
 * an unfit shard if no better one is left. The unfit shard then refuses the job and gives the
 * reason. A job that is being restored waits for a fit shard instead. CAIRN_ERR_NOT_READY: there
 * are too few shards. CAIRN_ERR_NO_MEMORY. */
static cairn_status choose_shards(struct coord_job *job, uint32_t shard_count, bool restores)
{
    struct coord_shard_entry *entries[CAIRN_SHARD_ENTRIES_MAX];
    uint32_t count = 0;
    if (!coord_job_shards_init(job, shard_count + CAIRN_JOB_JOINS_MAX) || !weigh_entries(job))
        return CAIRN_ERR_NO_MEMORY;
    for (struct coord_shard_entry *s = job->cluster->shards; s != NULL; s = s->next) {
        const bool takes = restores ? coord_shard_fits(s, &job->spec)
                                    : coord_shard_stays(s) && !coord_shard_apart(s) &&
                                          !coord_shard_is_standby(job->cluster, s);
        if (!takes || count == CAIRN_SHARD_ENTRIES_MAX) continue;
        uint32_t place = count++;
        for (; place > 0 && is_better(s, entries[place - 1], &job->spec); place--)
            entries[place] = entries[place - 1];
        entries[place] = s;
    }
    for (uint32_t i = 0; i < shard_count && i < count; i++) coord_job_set_shard(job, i, entries[i]);
    return count >= shard_count ? CAIRN_OK : CAIRN_ERR_NOT_READY;
}

/* ---- making one ---- */

static cairn_status plan_layout(struct coord_job *job, uint32_t shard_count)
{
    struct plan_report report;
    CAIRN_TRY(plan_job(&job->spec, shard_count, &job->layout, &report));
    job->planned.heaviest_over_mean = report.heaviest_over_mean;
    job->planned.layout = packed_layout(job->layout);
    return job->planned.layout != NULL && coord_job_shard_bytes(job) != NULL ? CAIRN_OK
                                                                             : CAIRN_ERR_NO_MEMORY;
}

static uint32_t count_wanted(struct coord *cluster, const struct job_spec_data *spec,
                             const char *name, bool all)
{
    const struct coord_job *before = coord_job_find(cluster, name);
    const uint32_t least = before == NULL ? (uint32_t)cluster->options->shards
                                          : coord_recovery_shards(before);
    const uint32_t here = coord_shards_staying(cluster, spec, true);
    return all && here > least ? here : least;
}

/* Makes the job begin at the step that the spec gives as first_step. The spec without first_step
 * counts as a former spec of the job, so that later openers need not give first_step. */
static cairn_status begin_at_first_step(struct coord_job *job)
{
    uint8_t hash[32];
    const uint64_t first_step = job->spec.first_step;
    if (first_step == 0) return CAIRN_OK;
    job->base_step = first_step;
    job->spec.first_step = 0;
    const cairn_status status = spec_hash(&job->spec, hash);
    job->spec.first_step = first_step;
    return status != CAIRN_OK || spec_was(&job->spec, hash) ? status
                                                            : spec_add_former(&job->spec, hash);
}

static struct coord_job *new_job(struct coord *cluster)
{
    struct coord_job *job = calloc(1, sizeof *job);
    if (job == NULL) return NULL;
    job->cluster = cluster;
    job->state = CAIRN_CLUSTER_JOB_CREATING;
    job->generation = 1;
    spec_init(&job->spec);
    randombytes_buf(&job->id, sizeof job->id);
    job->id |= 1; // the id is never 0
    return job;
}

/* Plans a job from its spec, except for the choice of its shards. Planning takes long for many
 * tensors, so this function may run on any thread. */
static cairn_status plan_draft(struct coord_job *job, uint32_t shard_count, struct sentence *why)
{
    CAIRN_TRY(coord_missed_begin(&job->spec, &job->init.payload, &job->init.payload_bytes, why));
    cairn_status status = begin_at_first_step(job);
    if (status == CAIRN_OK) {
        job->planned.spec = packed_spec(&job->spec);
        if (job->planned.spec == NULL) status = CAIRN_ERR_NO_MEMORY;
    }
    if (status == CAIRN_OK) status = plan_layout(job, shard_count);
    if (status == CAIRN_OK) {
        status = coord_terms_make(&job->spec, &job->rounds.terms, why);
        if (status != CAIRN_OK) return status;
    }
    if (status != CAIRN_OK)
        return fail_with(why, status, "planning job %s: %s", job->spec.name,
                         status_text((int)status));
    return coord_judge_packed(job->spec.name, job->planned.layout, why);
}

/* Chooses the job's shards. CAIRN_ERR_NOT_READY: some shards have left meanwhile. */
static cairn_status place_job(struct coord_job *job, uint32_t shard_count, bool restores,
                              struct sentence *why)
{
    const cairn_status status = choose_shards(job, shard_count, restores);
    if (status == CAIRN_ERR_NOT_READY) {
        const uint32_t up = coord_shards_up(job->cluster),
                       fit = coord_shards_staying(job->cluster, &job->spec, false);
        sentence_set(why, "%" PRIu32 " shards are needed, %" PRIu32 " are up", shard_count, up);
        if (fit < up)
            sentence_add(why,
                         ", of which %" PRIu32 " can take a part of the job: `cairn "
                         "cluster status` says what is with the others",
                         fit);
        return status;
    }
    return status == CAIRN_OK ? status : fail_with(why, status, "out of memory to plan a job");
}

bool coord_draft_open(struct coord_draft *draft, struct coord *cluster,
                      const struct job_spec_data *spec)
{
    draft->job = new_job(cluster);
    draft->shard_count = count_wanted(cluster, spec, spec->name, true);
    return draft->job != NULL;
}

cairn_status coord_draft_plan(struct coord_draft *draft, const struct job_spec_data *spec,
                              struct sentence *why)
{
    const cairn_status status = spec_copy(spec, &draft->job->spec);
    if (status != CAIRN_OK)
        return fail_with(why, status, "planning job %s: %s", spec->name, status_text((int)status));
    draft->shard_count = plan_job_shards(spec, draft->shard_count);
    return plan_draft(draft->job, draft->shard_count, why);
}

cairn_status coord_draft_take(struct coord_draft *draft, struct coord_job **job_out,
                              struct sentence *why)
{
    CAIRN_TRY(place_job(draft->job, draft->shard_count, true, why));
    *job_out = draft->job;
    draft->job = NULL;
    return CAIRN_OK;
}

void coord_draft_close(struct coord_draft *draft)
{
    if (draft->job != NULL) coord_job_free(draft->job);
    draft->job = NULL;
}

/* ---- the steps of a creation ---- */

/* A thread plans the job, the shards make room, and the store records the job. */
struct coord_creation {
    struct coord_steps steps;
    struct coord_planning planning; /* in the cluster's list, while the job is planned */
    char *name;                     /* owned */
    struct packed *packed;          /* held */
    /* owned while it is planned; after that it is in the cluster's list, and owns the creation */
    struct coord_job *job;
    bool is_linked; /* true: the job is in the cluster's list */
    uint32_t shard_count;
};

static void end_planning(struct coord_creation *creation)
{
    struct coord_planning **at = &creation->steps.cluster->openings.planned;
    while (*at != NULL && *at != &creation->planning) at = &(*at)->next;
    if (*at != NULL) *at = creation->planning.next;
}

static void free_creation(struct coord_creation *creation)
{
    end_planning(creation);
    if (creation->is_linked)
        creation->job->making = NULL;
    else if (creation->job != NULL)
        coord_job_free(creation->job);
    packed_release(creation->packed);
    free(creation->name);
    free(creation);
}

static size_t packed_bytes(const struct coord_steps *steps)
{
    return ((const struct coord_creation *)steps)->packed->size;
}

static cairn_status plan_creation(struct coord_steps *steps, struct sentence *why)
{
    struct coord_creation *creation = (struct coord_creation *)steps;
    const struct packed *packed = creation->packed;
    struct job_spec_data spec;
    CAIRN_TRY(spec_unpack(packed->bytes, packed->size, optimizer_names(), &spec, why));
    creation->job->spec = spec;
    creation->shard_count = plan_job_shards(&spec, creation->shard_count);
    return plan_draft(creation->job, creation->shard_count, why);
}

static cairn_status place_planned(struct coord_steps *steps, cairn_status status,
                                  struct sentence *why)
{
    struct coord_creation *creation = (struct coord_creation *)steps;
    end_planning(creation);
    if (coord_job_find(steps->cluster, creation->name) != NULL)
        return fail_with(why, CAIRN_ERR_EXISTS, "job %s is there already", creation->name);
    if (status == CAIRN_OK) {
        const struct quota more = { .bytes = coord_job_state_bytes(creation->job) };
        status = coord_quota_judge(steps->cluster, creation->job->tenant.owner, &more, why);
    }
    if (status == CAIRN_OK) status = place_job(creation->job, creation->shard_count, false, why);
    return status == CAIRN_OK ? coord_durability_may(creation->job, &creation->job->spec, why)
                              : status;
}

/* Asks the shards to make room for the job. */
static cairn_status ask_for_room(struct coord_steps *steps, struct sentence *why)
{
    struct coord_creation *creation = (struct coord_creation *)steps;
    struct coord_job *job = creation->job;
    const struct decision last = { .kind = CAIRN_DECISION_NONE,
                                   .version_after = { job->generation, job->base_step },
                                   .payload = job->init.payload,
                                   .payload_bytes = job->init.payload_bytes };
    const struct coord_create load = { .version = last.version_after,
                                       .last = last.payload_bytes > 0 ? &last : NULL };
    (void)why;
    coord_job_send_create(job, &load, steps->gather);
    coord_job_link(job);
    job->making = steps;
    creation->is_linked = true;
    coord_openings_advance(steps->cluster);
    return CAIRN_OK;
}

static cairn_status judge_room(struct coord_steps *steps, cairn_status status, struct sentence *why)
{
    const struct coord_job *job = ((struct coord_creation *)steps)->job;
    if (status == CAIRN_OK) return coord_job_judge_shards(job, why);
    const struct sentence text = *why;
    return fail_with(why, status, "job %s was not created: %s", job->spec.name, text.text);
}

static cairn_status save_created(struct coord_steps *steps, struct sentence *why)
{
    struct coord_creation *creation = (struct coord_creation *)steps;
    return coord_steps_save(steps, creation->job, CAIRN_STORE_JOB, NULL, 0, why);
}

/* A stored job begins if its shards are still the same processes. */
static cairn_status open_created(struct coord_steps *steps, struct sentence *why)
{
    struct coord_job *job = ((struct coord_creation *)steps)->job;
    CAIRN_TRY(coord_job_judge_shards(job, why));
    job->state = CAIRN_CLUSTER_JOB_INITIALIZING;
    return coord_job_core_open(job, why);
}

static void note_created(struct coord_steps *steps)
{
    struct coord_creation *creation = (struct coord_creation *)steps;
    struct coord_job *job = creation->job;
    job->making = NULL;
    coord_terms_tell_all(job);
    // A job that initializes itself is sealed as soon as its shards are up.
    job->init.seal_wanted = spec_initializes_itself(&job->spec);
    coord_job_try_seal(job);
    log_info("job %s created: %zu tensors over %" PRIu32 " shards, heaviest/mean %.3f",
             job->spec.name, job->spec.tensor_count, job->layout->shard_count,
             job->planned.heaviest_over_mean);
    coord_event_note(job->cluster, CAIRN_EVENT_CREATED, job->spec.name, job->tenant.made_by,
                     "%zu tensors over %" PRIu32 " shards", job->spec.tensor_count,
                     job->layout->shard_count);
    free_creation(creation);
    coord_openings_advance(job->cluster);
}

/* If a shard has disconnected, the openers wait for the next shard. */
static void fail_creation(struct coord_steps *steps, cairn_status status, const char *text)
{
    struct coord_creation *creation = (struct coord_creation *)steps;
    struct coord *cluster = steps->cluster;
    struct coord_job *job = creation->is_linked ? creation->job : NULL;
    const bool is_wanted = job != NULL ? status != CAIRN_ERR_CLOSED
                                       : coord_job_find(cluster, creation->name) == NULL &&
                                             coord_shards_up(cluster) >= creation->shard_count;
    if (job != NULL)
        log_fields(CAIRN_LOG_WARN, CAIRN_FIELDS({ "job", job->spec.name, 0 }), "%s", text);
    if (is_wanted) coord_job_openers_fail(cluster, creation->name, status, text);
    free_creation(creation);
    if (job != NULL)
        coord_job_drop(job);
    else
        coord_openings_advance(cluster);
}

static void release_creation(struct coord_steps *steps)
{
    free_creation((struct coord_creation *)steps);
}

static const struct coord_step creation_steps[] = {
    { CAIRN_STEP_THREAD, .bytes = packed_bytes, .run = plan_creation, .end = place_planned },
    { CAIRN_STEP_ASK, CAIRN_STAGE_MAKING, .begin = ask_for_room, .end = judge_room },
    { CAIRN_STEP_STORE, CAIRN_STAGE_MAKING, .begin = save_created },
    { CAIRN_STEP_DO, .begin = open_created },
    { .kind = CAIRN_STEP_LAST },
};

static const struct coord_operation_plan creation_plan = { creation_steps, .done = note_created,
                                                           .failed = fail_creation,
                                                           .release = release_creation };

static cairn_status begin_creation(struct coord *cluster, const char *name, uint64_t generation,
                                   struct packed *packed, const struct coord_tenant *maker)
{
    struct coord_creation *creation = calloc(1, sizeof *creation);
    if (creation == NULL) return CAIRN_ERR_NO_MEMORY;
    coord_steps_start(&creation->steps, &creation_plan, cluster, NULL);
    creation->packed = packed_hold(packed);
    creation->name = strdup(name);
    creation->job = new_job(cluster);
    creation->shard_count = count_wanted(cluster, NULL, name, false);
    if (creation->name == NULL || creation->job == NULL) {
        free_creation(creation);
        return CAIRN_ERR_NO_MEMORY;
    }
    creation->job->tenant = *maker;
    creation->job->generation = generation;
    if (generation > 1) creation->job->origin = (struct origin) { generation, { 0, 0 } };
    creation->planning = (struct coord_planning) { cluster->openings.planned, creation->name,
                                                   creation->job->tenant.owner };
    cluster->openings.planned = &creation->planning;
    coord_steps_advance(&creation->steps);
    return CAIRN_OK;
}

cairn_status coord_job_create(struct coord *cluster, const struct job_spec_data *spec,
                              uint64_t generation, struct packed *packed,
                              const struct coord_tenant *maker, struct sentence *why)
{
    CAIRN_TRY(spec_check_usable(spec, why));
    size_t count = 0;
    for (const struct coord_job *j = cluster->jobs; j != NULL; j = j->next) count++;
    for (const struct coord_planning *p = cluster->openings.planned; p != NULL; p = p->next)
        count++;
    if (count >= CAIRN_JOBS_MAX)
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "there are %zu jobs, the most allowed; `cairn job drop` takes one away",
                         count);
    CAIRN_TRY(coord_quota_judge(cluster, maker->owner, &(struct quota) { .jobs = 1 }, why));
    const cairn_status status = begin_creation(cluster, spec->name, generation, packed, maker);
    return status == CAIRN_OK ? status : fail_with(why, status, "the coordinator is out of memory");
}

/* ---- as an operation ---- */

static struct coord_steps *steps_of_creation(struct coord_job *job)
{
    return job->making != NULL && job->making->plan == &creation_plan ? job->making : NULL;
}

static bool creation_waiting(const struct coord_job *job, struct sentence *out)
{
    if (coord_stage(job, CAIRN_OPERATION_MAKE) == CAIRN_STAGE_NONE) return false;
    sentence_set(out, "the shards to %s",
                 job->spec.init_from != NULL ? "read its weights" : "make room");
    return true;
}

const struct coord_operation coord_making = {
    .steps = steps_of_creation,
    .being = "created",
    .waiting = creation_waiting,
    .until = "until the job is made",
};

/* ---- what the store knows ---- */

/* Fills in the shards of the layout. After them, fills in the shards that join by a re-sharding. */
static cairn_status fill_entries(struct coord_job *job, const struct stored_job *row,
                                 struct sentence *why)
{
    struct coord_reshard *reshard = &job->reshard;
    reshard->running = row->weighed;
    coord_reshard_pace_begin(&reshard->pace, row->pause, 0);
    reshard->progress.state = reshard->running ? CAIRN_RESHARD_MOVING : CAIRN_RESHARD_NONE;
    reshard->joiners = calloc((size_t)row->shard_count + 1, sizeof *reshard->joiners);
    if (reshard->joiners == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < row->shard_count; i++) {
        const bool is_hole = row->shards[i].name[0] == '\0';
        const double weight = row->shards[i].weight;
        struct coord_shard_entry *entry = is_hole
                                              ? NULL
                                              : coord_shard_get(job->cluster, row->shards[i].name);
        if (entry == NULL && !is_hole) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
        if (i >= job->layout->shard_count) {
            if (entry != NULL && reshard->running)
                reshard->joiners[reshard->joiner_count++] = (struct coord_joiner) { entry, weight };
            continue;
        }
        coord_job_set_shard(job, i, entry);
        job->shards[i].weight = weight;
    }
    return CAIRN_OK;
}

/* Loads from the row the layout that preceded the layout in force. */
static cairn_status load_layout_before(struct coord_job *job, const struct stored_job *row)
{
    struct layout *before;
    CAIRN_TRY(plan_job_decode(&job->spec, row->layout_before, row->layout_before_bytes, &before));
    job->layouts.before = packed_copy(row->layout_before, row->layout_before_bytes);
    job->layouts.before_shards = before->shard_count;
    // The slice under way can be taken back only to the layout with which the slice began. The
    // layout `before` may be older than that layout.
    if (before->version + 1 == job->layout->version)
        job->reshard.prior = before;
    else
        layout_close(before);
    return job->layouts.before != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

static cairn_status fill_job(struct coord_job *job, const struct stored_job *row,
                             struct sentence *why)
{
    struct sentence reason = { "" };
    cairn_status status = spec_unpack(row->spec, row->spec_bytes, optimizer_names(), &job->spec,
                                      &reason);
    if (status != CAIRN_OK)
        return fail_with(why, status, "the stored spec of job %s: %s", row->name, reason.text);
    job->planned.spec = packed_copy(row->spec, row->spec_bytes);
    job->planned.layout = packed_copy(row->layout, row->layout_bytes);
    status = CAIRN_ERR_NO_MEMORY;
    if (job->planned.spec != NULL && job->planned.layout != NULL &&
        coord_job_shards_init(job, row->shard_count + CAIRN_JOB_JOINS_MAX))
        status = plan_job_decode(&job->spec, row->layout, row->layout_bytes, &job->layout);
    if (status == CAIRN_OK && row->layout_before_bytes > 0) status = load_layout_before(job, row);
    if (status != CAIRN_OK)
        return fail_with(why, status, "the stored layout of job %s: %s", row->name,
                         status_text((int)status));
    job->layouts.at = (struct cairn_version) { row->layout_at_generation, row->layout_at_step };
    if (job->layout->shard_count > row->shard_count)
        return fail_with(why, CAIRN_ERR_CORRUPT,
                         "job %s is stored with %" PRIu32 " shards and a layout of %" PRIu32,
                         row->name, row->shard_count, job->layout->shard_count);
    return fill_entries(job, row, why);
}

/* Takes whose the job is from the store; NULL: it does not know, so the job has no owner. */
static void load_tenant(struct coord_tenant *tenant, const struct stored_tenant *row)
{
    if (row == NULL) return;
    snprintf(tenant->owner, sizeof tenant->owner, "%s", row->owner);
    snprintf(tenant->shared, sizeof tenant->shared, "%s", row->shared);
    snprintf(tenant->shared_read, sizeof tenant->shared_read, "%s", row->shared_read);
    snprintf(tenant->made_by, sizeof tenant->made_by, "%s", row->made_by);
    snprintf(tenant->made_from, sizeof tenant->made_from, "%s", row->made_from);
    tenant->made_unix_s = row->made_unix_s;
}

static void load_begun(struct init_digest *digest, const char *hex)
{
    digest->known = hex != NULL && strlen(hex) == 2 * sizeof digest->bytes &&
                    sodium_hex2bin(digest->bytes, sizeof digest->bytes, hex, strlen(hex), NULL,
                                   NULL, NULL) == 0;
}

cairn_status coord_job_load(struct coord *cluster, const struct stored_job *row,
                            struct sentence *why)
{
    struct coord_job *job = calloc(1, sizeof *job);
    if (job == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    spec_init(&job->spec);
    job->cluster = cluster;
    job->id = row->id;
    job->generation = row->generation;
    job->reserved.generation = row->generation_reserved;
    job->epoch = row->epoch;
    job->reserved.round = row->round_reserved;
    job->base_step = row->base_step;
    job->origin = row->origin;
    job->turns = row->turns;
    load_tenant(&job->tenant, row->tenant);
    load_begun(&job->init.source, row->begun);
    job->initialized = row->initialized;
    job->version_unknown = row->initialized;
    job->stored = true;
    job->state = row->initialized ? CAIRN_CLUSTER_JOB_RUNNING : CAIRN_CLUSTER_JOB_INITIALIZING;
    sentence_set(&job->rounds.epoch_reason, "the coordinator was started again");
    cairn_status status = fill_job(job, row, why);
    if (status == CAIRN_OK) status = coord_groups_doubt(job);
    if (status == CAIRN_OK) status = coord_job_core_open(job, why);
    if (status != CAIRN_OK) {
        coord_job_free(job);
        return status;
    }
    job->init.seal_wanted = !job->initialized && spec_initializes_itself(&job->spec);
    coord_job_link(job);
    log_info("job %s: generation %" PRIu64 ", epoch %" PRIu64 ", waiting for %" PRIu32 " shard%s",
             job->spec.name, job->generation, job->epoch, job->entry_count,
             job->entry_count == 1 ? "" : "s");
    return CAIRN_OK;
}

static cairn_status load_job(void *context, const void *row, struct sentence *why)
{
    return coord_job_load(context, row, why);
}

cairn_status coord_jobs_load(struct coord *cluster, struct sentence *why)
{
    return store_each(cluster->store, CAIRN_STORED_JOBS, load_job, cluster, why);
}

/* ==== drop ==== */

/* A job is dropped because an operator asks for this, or because it was never finished. The job is first
 * deleted from the store, then dropped on its shards. */

#define NAMED_MAX 4 /* the most members that a refusal names */

/* A job being dropped, with the answer that is sent when the shards have freed its memory. */
struct coord_drop {
    struct coord_steps steps;
    struct coord_waiters waiter;
    struct coord_drop *next; /* in the cluster's list */
    Cairn__JobRemoved removed;
    uint64_t job;  /* the job's id */
    bool is_asked; /* true: an operator asks for it */
    bool is_gone;  /* true: the coordinator has forgotten the job */
    /* owned */
    char *name;
    char **away; /* [removed.n_away]: names of the job's shards that are away */
};

static void free_drop(struct coord_drop *drop)
{
    struct coord_drop **at = &drop->steps.cluster->under_way.drops;
    struct coord_job *job = coord_job_by_id(drop->steps.cluster, drop->job);
    if (job != NULL && job->making == &drop->steps) job->making = NULL;
    (void)coord_steps_cancel(&drop->steps);
    while (*at != NULL && *at != drop) at = &(*at)->next;
    if (*at == drop) *at = drop->next;
    coord_waiters_release(&drop->waiter);
    for (size_t i = 0; i < drop->removed.n_away; i++) free(drop->away[i]);
    free(drop->away);
    free(drop->name);
    free(drop);
}

void coord_drops_close(struct coord *cluster)
{
    while (cluster->under_way.drops != NULL) free_drop(cluster->under_way.drops);
}

/* ---- may it be? ---- */

static cairn_status refuse_members(const struct coord_job *job, struct sentence *why)
{
    uint32_t named = 0;
    sentence_set(why, "job %s is in use: ", job->spec.name);
    for (const struct coord_member *m = job->members.list; m != NULL && named < NAMED_MAX;
         m = m->next_of_job)
        sentence_add(why, "%s%s %.60s", named++ == 0 ? "" : ", ", role_name(m->role),
                     m->session->name);
    if (job->members.count > named)
        sentence_add(why, " and %" PRIu32 " more", job->members.count - named);
    sentence_add(why, "; end them, or force it (--force, CAIRN_DROP_FORCE)");
    return CAIRN_ERR_BUSY;
}

static cairn_status judge_drop(struct coord_job *job, bool force, struct sentence *why)
{
    if (force && job->snapshots.running != NULL)
        coord_snapshot_abort(job, "the job is to be dropped");
    CAIRN_TRY(coord_operation_judge(job, CAIRN_OPERATION_DROP, why));
    if (job->loss.behind)
        return fail_with(why, CAIRN_ERR_NOT_READY, "job %s is %s", job->spec.name,
                         job->loss.why.text);
    if (job->members.list != NULL && !force) return refuse_members(job, why);
    return CAIRN_OK;
}

/* ---- the steps ---- */

static cairn_status delete_job(struct coord_steps *steps, struct sentence *why)
{
    struct coord_job *job = coord_job_by_id(steps->cluster, ((struct coord_drop *)steps)->job);
    return coord_steps_save(steps, job, CAIRN_STORE_JOB_DROP, NULL, 0, why);
}

static bool is_stored(const struct coord_steps *steps)
{
    const uint64_t id = ((const struct coord_drop *)steps)->job;
    const struct coord_job *job = coord_job_by_id(steps->cluster, id);
    return job != NULL && job->stored;
}

/* An unfinished job is dropped on its shards even if the store keeps it. */
static cairn_status judge_deleted(struct coord_steps *steps, cairn_status status,
                                  struct sentence *why)
{
    struct coord_drop *drop = (struct coord_drop *)steps;
    if (status == CAIRN_OK || status == CAIRN_ERR_NOT_FOUND) {
        coord_dropped_add(steps->cluster, drop->job);
        return CAIRN_OK;
    }
    if (drop->is_asked) return status;
    log_error("job %s: %s", drop->name, why->text);
    return CAIRN_OK;
}

/* The job is gone, whatever the shards answer: tells them to drop their parts. */
static cairn_status drop_parts(struct coord_steps *steps, struct sentence *why)
{
    struct coord_drop *drop = (struct coord_drop *)steps;
    struct coord *cluster = steps->cluster;
    struct coord_job *job = coord_job_by_id(cluster, drop->job);
    Cairn__JobDrop message = CAIRN__JOB_DROP__INIT;
    message.job = drop->job;
    if (job == NULL) return fail_with(why, CAIRN_ERR_NOT_FOUND, "the job is another one now");
    if (drop->is_asked) {
        log_info("job %s is dropped at step %" PRIu64, drop->name, drop->removed.step);
        coord_event_note(cluster, CAIRN_EVENT_DROPPED, drop->name, NULL, "at step %" PRIu64,
                         drop->removed.step);
    }
    CAIRN_EACH_SHARD (job, i) {
        struct coord_shard_entry *entry = job->shards[i].entry;
        if (!coord_shard_obeys(entry)) {
            char *name = strdup(entry->name);
            if (name != NULL) drop->away[drop->removed.n_away++] = name;
            continue;
        }
        if (coord_gather_send(steps->gather, entry, CAIRN_MSG_JOB_DROP, &message.base) != 0)
            drop->removed.shards++;
    }
    drop->is_gone = true;
    job->making = NULL;
    coord_job_unlink(job);
    coord_job_free(job);
    coord_openings_advance(cluster);
    return CAIRN_OK;
}

/* A shard whose connection was lost meanwhile drops its part later. */
static cairn_status answer_dropped(struct coord_steps *steps, cairn_status status,
                                   struct sentence *why)
{
    struct coord_drop *drop = (struct coord_drop *)steps;
    if (!drop->is_gone) return status;
    if (status != CAIRN_OK) log_warn("job %s was dropped, but: %s", drop->name, why->text);
    drop->removed.note = wire_text(status == CAIRN_OK ? "" : why->text);
    coord_waiters_answer(&drop->waiter, CAIRN_MSG_JOB_REMOVED, &drop->removed.base);
    return CAIRN_OK;
}

static void release_drop(struct coord_steps *steps)
{
    free_drop((struct coord_drop *)steps);
}

/* The job could not be deleted: it is LOST, and a restarted coordinator still has it. */
static void fail_drop(struct coord_steps *steps, cairn_status status, const char *text)
{
    struct coord_drop *drop = (struct coord_drop *)steps;
    struct coord_job *job = coord_job_by_id(steps->cluster, drop->job);
    (void)status;
    coord_waiters_fail(&drop->waiter, CAIRN_ERR_IO, text);
    free_drop(drop);
    if (job != NULL) coord_job_lose(job, false, "dropping it failed (%s); drop it again", text);
}

enum drop_step { WAITS_FOR_REST, DELETES };

static const struct coord_step drop_steps[] = {
    // until begin_drop has ended what the job was at
    [WAITS_FOR_REST] = { .kind = CAIRN_STEP_WAIT, .stage = CAIRN_STAGE_DROPPING },
    [DELETES] = { CAIRN_STEP_STORE, CAIRN_STAGE_DROPPING, .is_needed = is_stored,
                  .begin = delete_job, .end = judge_deleted },
    { CAIRN_STEP_ASK, .begin = drop_parts, .end = answer_dropped },
    { .kind = CAIRN_STEP_LAST },
};

static const struct coord_operation_plan drop_plan = { drop_steps, .done = release_drop,
                                                       .failed = fail_drop,
                                                       .release = release_drop };

/* ---- it is ---- */

static struct coord_drop *new_drop(const struct coord_job *job, bool is_asked)
{
    struct coord_drop *drop = calloc(1, sizeof *drop);
    if (drop == NULL) return NULL;
    const struct cairn_version version = coord_job_version(job);
    coord_steps_start(&drop->steps, &drop_plan, job->cluster, NULL);
    drop->job = job->id;
    drop->is_asked = is_asked;
    drop->next = job->cluster->under_way.drops;
    job->cluster->under_way.drops = drop;
    cairn__job_removed__init(&drop->removed);
    drop->name = strdup(job->spec.name);
    drop->away = calloc(job->entry_count + 1, sizeof *drop->away);
    if (drop->name == NULL || drop->away == NULL) {
        free_drop(drop);
        return NULL;
    }
    drop->removed.name = drop->name;
    drop->removed.away = drop->away;
    drop->removed.generation = version.generation;
    drop->removed.step = version.step;
    drop->removed.version_unknown = job->version_unknown;
    return drop;
}

/* Begins the drop: the job does nothing any more. */
static void begin_drop(struct coord_drop *drop, struct coord_job *job)
{
    job->state = CAIRN_CLUSTER_JOB_CREATING;
    job->making = &drop->steps;
    (void)coord_steps_cancel(&job->init.seal);
    coord_reshard_end(job, CAIRN_RESHARD_FAILED, "the job is dropped");
    coord_job_core_close(job);
    coord_reshard_close(job);
    coord_steps_go(&drop->steps, DELETES, false);
    coord_steps_advance(&drop->steps);
}

void coord_job_drop(struct coord_job *job)
{
    struct coord_drop *drop = new_drop(job, false);
    if (drop != NULL)
        begin_drop(drop, job);
    else
        coord_job_lose(job, false, "out of memory to drop it; drop it again");
}

/* Expels the members of a job that is dropped, and refuses the openers that wait for it. */
static void put_out(struct coord_job *job)
{
    struct sentence text;
    sentence_set(&text, "job %s was dropped by an operator", job->spec.name);
    while (job->members.list != NULL)
        coord_member_expel(job->members.list, CAIRN_ERR_CANCELED, text.text);
    coord_job_openers_fail(job->cluster, job->spec.name, CAIRN_ERR_CANCELED, text.text);
}

static cairn_status on_job_remove(struct coord_session *session, uint32_t request, const void *any,
                                  struct sentence *why)
{
    const Cairn__JobRemove *message = any;
    struct coord_job *job = coord_job_named(session->cluster, message->name, why);
    if (job == NULL) return CAIRN_ERR_NOT_FOUND;
    CAIRN_TRY(judge_drop(job, message->force, why));
    struct coord_drop *drop = new_drop(job, true);
    if (drop == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    const cairn_status status = coord_waiters_add(&drop->waiter, session, request, why);
    if (status != CAIRN_OK) {
        free_drop(drop);
        return status;
    }
    put_out(job);
    begin_drop(drop, job);
    return CAIRN_OK;
}

/* ---- as an operation ---- */

static struct coord_steps *steps_of_drop(struct coord_job *job)
{
    return job->making != NULL && job->making->plan == &drop_plan ? job->making : NULL;
}

const struct coord_operation coord_dropping = {
    .steps = steps_of_drop,
    .being = "dropped",
    .until = "until the job is dropped",
};

/* ==== share ==== */

/* Gives a job to another owner, or shares it with others. */

static cairn_status judge_owners(const Cairn__JobShare *share, struct sentence *why)
{
    const char *at = share->owners;
    if (share->owner && (!access_owner_ok(at, strlen(at), false)))
        return fail_with(why, CAIRN_ERR_INVALID,
                         "\"%.100s\" is no owner: `cairn job show` and `cairn key list` show those "
                         "there are, such as team-a or uid:1000",
                         at);
    if (strlen(at) >= CAIRN_SHARED_BYTES)
        return fail_with(why, CAIRN_ERR_INVALID, "a list of owners has at most %d characters",
                         CAIRN_SHARED_BYTES - 1);
    while (*at != '\0' && !share->owner) {
        const size_t length = strcspn(at, ",");
        if (!access_owner_ok(at, length, true))
            return fail_with(why, CAIRN_ERR_INVALID,
                             "\"%.100s\" is no list of owners: give names separated by ',', with * "
                             "for any text, or \"\" for nobody",
                             share->owners);
        at += length;
        at += *at == ',';
    }
    return CAIRN_OK;
}

/* Puts out the members that may not use the job any more. Some that may not may have left before. */
static void put_out_strangers(struct coord_job *job)
{
    struct coord_member *m = job->members.list;
    while (m != NULL) {
        struct sentence why;
        if (coord_judge_opener(m->session, job, m->role == CAIRN_ROLE_WIRE_WORKER, &why) ==
            CAIRN_OK) {
            m = m->next_of_job;
            continue;
        }
        coord_member_put_out(m, CAIRN_ERR_REFUSED, why.text);
        m = job->members.list; // others may have gone with it
    }
    coord_members_withdraw(job);
}

/* The change of a job's tenant is not stored: takes it back. */
static void refuse_shared(struct coord_job *job, cairn_status status, const char *why)
{
    job->sharing.is_storing = false;
    job->tenant = job->sharing.former;
    log_error("whose job %s is was not written, and stays as it was: %s", job->spec.name, why);
    coord_waiters_fail(&job->sharing.waiters, status, why);
    put_out_strangers(job);
}

static void on_share_saved(const struct coord_saved *saved)
{
    struct coord_job *job = coord_job_by_id(saved->cluster, saved->number);
    if (job == NULL) return; // whoever freed it has answered
    if (!job->sharing.is_storing)
        return; // a restore has made the job anew, with the tenant that it had
    job->sharing.is_storing = false;
    if (saved->status != CAIRN_OK) {
        refuse_shared(job, saved->status, saved->why);
        return;
    }
    Cairn__JobShared message = CAIRN__JOB_SHARED__INIT;
    message.name = job->spec.name;
    message.owner = job->tenant.owner;
    message.shared = job->tenant.shared;
    message.shared_read = job->tenant.shared_read;
    coord_waiters_answer(&job->sharing.waiters, CAIRN_MSG_JOB_SHARED, &message.base);
}

static cairn_status on_job_share(struct coord_session *session, uint32_t request, const void *any,
                                 struct sentence *why)
{
    const Cairn__JobShare *share = any;
    struct coord_job *job = coord_job_named(session->cluster, share->name, why);
    if (job == NULL) return CAIRN_ERR_NOT_FOUND;
    struct coord_tenant *tenant = &job->tenant;
    if (share->owner && !access_role(coord_who(session), CAIRN_MAY_ADMIN))
        return fail_with(
            why, CAIRN_ERR_REFUSED,
            "only an admin gives a job to another owner; `cairn job share` lets others "
            "use it");
    CAIRN_TRY(judge_owners(share, why));
    if (!job->stored || job->making != NULL || job->sharing.is_storing)
        return fail_with(why, CAIRN_ERR_NOT_READY,
                         "job %s is being made, dropped or shared: ask again", job->spec.name);
    CAIRN_TRY(coord_waiters_add(&job->sharing.waiters, session, request, why));
    job->sharing.former = *tenant;
    job->sharing.is_storing = true;
    if (share->owner)
        snprintf(tenant->owner, sizeof tenant->owner, "%s", share->owners);
    else if (share->read)
        snprintf(tenant->shared_read, sizeof tenant->shared_read, "%s", share->owners);
    else
        snprintf(tenant->shared, sizeof tenant->shared, "%s", share->owners);
    const struct stored_tenant row = coord_tenant_row(job);
    const cairn_status status = coord_save(session->cluster, CAIRN_STORE_TENANT, &row, 1, job->id,
                                           on_share_saved, why);
    if (status != CAIRN_OK) {
        refuse_shared(job, status, why->text);
        return CAIRN_OK;
    }
    log_info("job %s belongs to %s now, and is shared with \"%s\", to be read by \"%s\"",
             job->spec.name, tenant->owner[0] != '\0' ? tenant->owner : "nobody", tenant->shared,
             tenant->shared_read);
    put_out_strangers(job);
    coord_openings_advance(session->cluster);
    return CAIRN_OK;
}

/* ==== messages ==== */

const struct coord_row coord_jobs_rows[] = {
    { CAIRN_MSG_JOB_SHARE, CAIRN_FROM_ADMIN, .asks = on_job_share, .verb = "job share",
      .job = "name", .wants = CAIRN_ACCESS_OWN },
    { CAIRN_MSG_JOB_REMOVE, CAIRN_FROM_ADMIN, .asks = on_job_remove, .verb = "job drop",
      .awaits = CAIRN_AWAITS_REPORTS, .job = "name", .wants = CAIRN_ACCESS_OWN },
    { 0 },
};
