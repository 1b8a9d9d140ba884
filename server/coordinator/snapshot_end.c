#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/snapshot.h"
#include "proto/spec/spec.h"
#include "server/base/log.h"
#include "server/coordinator/base.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/job.h"
#include "server/coordinator/round.h"
#include "server/coordinator/snapshot.h"
#include "server/coordinator/store.h"
#include "server/core/decision.h"

/* ==== end ==== */

/* How snapshots end: answered; failed; given up, by themselves or by an operator's word. See snapshot.h.
 *
 * One that fails is given up on every shard, and ends when they have said so. Nobody is waited for without
 * an end: a shard that is away before anything is pinned, or that does not answer once the snapshot has
 * failed (its disk hangs), has a lease to come back; for a snapshot that cannot end holds up restores and
 * amendments. */

static void periodic_ended(const struct coord_snapshot *snapshot);

void coord_snapshot_free(struct coord_snapshot *snapshot)
{
    if (snapshot->job != NULL && snapshot->job->snapshots.running == snapshot)
        snapshot->job->snapshots.running = NULL;
    coord_waiters_release(&snapshot->now.at_begin);
    coord_waiters_release(&snapshot->now.at_end);
    coord_waiters_release(&snapshot->next.at_begin);
    coord_waiters_release(&snapshot->next.at_end);
    coord_waiters_release(&snapshot->at_cancel);
    manifest_release(&snapshot->manifest);
    free(snapshot->folder);
    free(snapshot->parts);
    free(snapshot->progress);
    coord_digests_release(&snapshot->digests);
    free(snapshot);
}

const char *coord_snapshot_id(const struct coord_snapshot *snapshot)
{
    return snapshot->making_folder ? "" : snapshot->id; // the other thread writes it
}

bool coord_snapshot_takes(const struct coord_job *job, const char *id)
{
    const struct coord_snapshot *snapshot = job->snapshots.running;
    return snapshot != NULL && strcmp(coord_snapshot_id(snapshot), id) == 0;
}

void coord_snapshot_tell_folder(const struct coord_snapshot *snapshot, const char *path)
{
    Cairn__PinFolder message = CAIRN__PIN_FOLDER__INIT;
    message.job = snapshot->job->id;
    message.snapshot = snapshot->number;
    message.path = wire_text(path);
    CAIRN_EACH_SHARD (snapshot->job, i) {
        const struct coord_shard_entry *entry = snapshot->job->shards[i].entry;
        const bool is_prepared = snapshot->stage == CAIRN_SNAPSHOT_PINNING &&
                                 entry->session != NULL;
        if (part_is_open(snapshot->parts[i]) || is_prepared)
            coord_session_send(entry->session, CAIRN_MSG_PIN_FOLDER, 0, &message.base);
    }
}

void coord_snapshot_fail(struct coord_snapshot *snapshot, cairn_status status, const char *name,
                         const char *text)
{
    if (snapshot->status != CAIRN_OK) return;
    snapshot->status = status == CAIRN_OK ? CAIRN_ERR_INTERNAL : status;
    sentence_set(&snapshot->why, "%s%s%s", name, *name == '\0' ? "" : ": ", text);
    if (snapshot->stage != CAIRN_SNAPSHOT_WORKING)
        coord_snapshot_tell_folder(snapshot, ""); // of no use now
}

/* ---- the end ---- */

static void answer_snapshot(struct coord_snapshot *snapshot)
{
    struct manifest *m = &snapshot->manifest;
    if (!snapshot->has_files) {
        Cairn__JobDigest digest = CAIRN__JOB_DIGEST__INIT;
        digest.generation = snapshot->version.generation;
        digest.step = snapshot->version.step;
        digest.root.data = m->content_root;
        digest.root.len = sizeof m->content_root;
        coord_waiters_answer(&snapshot->now.at_end, CAIRN_MSG_JOB_DIGEST, &digest.base);
        return;
    }
    struct snapshot_view view;
    const Cairn__SnapshotStatus *status = &view.status;
    coord_manifest_to_view(m, snapshot->id, snapshot->folder, &view);
    snapshot->job->snapshots.passed_over.text[0] = '\0';
    log_info("snapshot %s of job %s committed: %" PRIu32 " files, %" PRIu64 " bytes, %" PRIu64
             " ms",
             snapshot->id, snapshot->job->spec.name, status->files, status->bytes,
             uv_now(snapshot->work.cluster->loop) - snapshot->begun_ms);
    coord_scrub_want(snapshot->work.cluster, snapshot->job->spec.name, snapshot->id);
    coord_event_note(snapshot->work.cluster, CAIRN_EVENT_SNAPSHOT, snapshot->job->spec.name, NULL,
                     "%s of step %" PRIu64, snapshot->id, snapshot->version.step);
    coord_waiters_answer(&snapshot->now.at_end, CAIRN_MSG_SNAPSHOT_STATUS, &status->base);
}

static void answer_failed(struct coord_snapshot *snapshot)
{
    Cairn__SnapshotCanceled canceled = CAIRN__SNAPSHOT_CANCELED__INIT;
    log_warn("%s of job %s failed: %s", snapshot->has_files ? "snapshot" : "digest",
             snapshot->job->spec.name, snapshot->why.text);
    if (snapshot->has_files)
        coord_event_note(snapshot->work.cluster, CAIRN_EVENT_SNAPSHOT_FAILED,
                         snapshot->job->spec.name, NULL, "%s", snapshot->why.text);
    coord_waiters_fail(&snapshot->now.at_begin, snapshot->status, snapshot->why.text);
    coord_waiters_fail(&snapshot->now.at_end, snapshot->status, snapshot->why.text);
    canceled.job = snapshot->job->spec.name;
    canceled.id = snapshot->id;
    canceled.digest = !snapshot->has_files;
    coord_waiters_answer(&snapshot->at_cancel, CAIRN_MSG_SNAPSHOT_CANCELED, &canceled.base);
}

static void finish_snapshot(struct coord_snapshot *snapshot)
{
    if (snapshot->status == CAIRN_OK)
        answer_snapshot(snapshot);
    else
        answer_failed(snapshot);
    struct coord_job *job = snapshot->job;
    const struct coord_snapshot_waiters next = snapshot->next;
    snapshot->next = (struct coord_snapshot_waiters) { NULL, NULL };
    coord_cost_ended(snapshot);
    if (snapshot->cause == CAIRN_SNAPSHOT_PERIODIC) periodic_ended(snapshot);
    if (snapshot->cause == CAIRN_SNAPSHOT_PARTING) coord_parting_snapshot_ended(snapshot);
    coord_snapshot_free(snapshot);
    coord_snapshot_follow(job, next);
}

static void on_worked(struct coord_work *work)
{
    struct coord_snapshot *snapshot = (struct coord_snapshot *)work;
    if (work->cluster->closing || snapshot->job == NULL)
        coord_snapshot_free(snapshot);
    else
        finish_snapshot(snapshot);
}

void coord_snapshot_advance(struct coord_snapshot *snapshot)
{
    if (snapshot->stage != CAIRN_SNAPSHOT_PINNED || snapshot->making_folder) return;
    CAIRN_EACH_SHARD (snapshot->job, i) {
        if (part_is_open(snapshot->parts[i])) return;
    }
    snapshot->stage = CAIRN_SNAPSHOT_WORKING;
    snapshot->work.run = coord_snapshot_work;
    snapshot->work.done = on_worked;
    if (coord_work_start(&snapshot->work, snapshot->job->cluster, NULL, 0)) return;
    coord_snapshot_fail(snapshot, CAIRN_ERR_NO_MEMORY, "", "no thread for the snapshot");
    finish_snapshot(snapshot);
}

/* ---- given up ---- */

void coord_snapshot_shard_gone(struct coord_job *job, uint32_t shard)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    coord_snapshot_unprepare(job); // it has no memory any more
    if (snapshot == NULL || snapshot->stage != CAIRN_SNAPSHOT_PINNED) return;
    if (!part_is_open(snapshot->parts[shard])) return;
    snapshot->parts[shard] = CAIRN_PART_NONE;
    coord_snapshot_fail(snapshot, CAIRN_ERR_CLOSED, job->shards[shard].entry->name,
                        "it went away while writing");
    coord_snapshot_advance(snapshot);
}

/* It has failed, and ends now, whoever has not answered: what these have written is in no manifest. */
static void end_now(struct coord_snapshot *snapshot)
{
    if (snapshot->stage == CAIRN_SNAPSHOT_PINNING) {
        finish_snapshot(snapshot);
        return;
    }
    memset(snapshot->parts, CAIRN_PART_NONE, snapshot->job->shard_count);
    coord_snapshot_advance(snapshot);
}

void coord_snapshot_abort(struct coord_job *job, const char *reason)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL) return;
    coord_waiters_fail(&snapshot->next.at_begin, CAIRN_ERR_CANCELED, reason);
    coord_waiters_fail(&snapshot->next.at_end, CAIRN_ERR_CANCELED, reason);
    if (snapshot->stage == CAIRN_SNAPSHOT_WORKING) return;
    coord_snapshot_fail(snapshot, CAIRN_ERR_CANCELED, "", reason);
    end_now(snapshot);
}

/* Its thread may be at work on it: that ends it, then, alone. */
void coord_snapshot_orphan(struct coord_job *job, const char *reason)
{
    coord_snapshot_abort(job, reason);
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL) return;
    struct coord_waiter **const waiters[] = { &snapshot->now.at_begin, &snapshot->now.at_end,
                                              &snapshot->at_cancel };
    for (size_t i = 0; i < sizeof waiters / sizeof *waiters; i++)
        coord_waiters_fail(waiters[i], CAIRN_ERR_CANCELED, reason);
    snapshot->job = NULL;
    job->snapshots.running = NULL;
}

void coord_snapshot_part_missed(struct coord_job *job, uint32_t shard)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL || snapshot->stage != CAIRN_SNAPSHOT_PINNING) return;
    coord_snapshot_fail(snapshot, CAIRN_ERR_CLOSED, job->shards[shard].entry->name,
                        "it restarted without its part");
    end_now(snapshot);
}

/* The first shard that may never do what the snapshot waits for; NULL: all is as it should be. */
static const struct coord_shard_entry *stuck_at(const struct coord_snapshot *snapshot)
{
    CAIRN_EACH_SHARD (snapshot->job, i) {
        const struct coord_job_shard *s = &snapshot->job->shards[i];
        const bool stuck = snapshot->stage == CAIRN_SNAPSHOT_PINNING
                               ? !s->up
                               : snapshot->status != CAIRN_OK && part_is_open(snapshot->parts[i]);
        if (stuck) return s->entry;
    }
    return NULL;
}

/* A shard was not heard for half a lease: it is away, or hangs. */
static bool is_any_silent(const struct coord_job *job)
{
    const uint64_t now_ms = coord_now_ms(job->cluster);
    const uint64_t most_ms = (uint64_t)job->cluster->options->lease_timeout_ms / 2;
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_session *session = job->shards[i].entry->session;
        if (session == NULL || now_ms - session->last_frame_ms >= most_ms) return true;
    }
    return false;
}

/* Shards that make memory beside training are waited for, one that is silent is not: the others begin. */
static void end_preparing(struct coord_job *job)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL || snapshot->is_ready) return;
    const uint64_t most_ms = 1000 * (uint64_t)policy_prepare_within_s(&job->spec.policy);
    snapshot->is_ready = is_any_silent(job) ||
                         uv_now(job->cluster->loop) - snapshot->begun_ms >= most_ms;
}

void coord_snapshot_tick(struct coord_job *job)
{
    coord_snapshot_look_behind(job);
    end_preparing(job);
    coord_snapshot_resume(job, coord_pace_nears_step(job));
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL || snapshot->stage == CAIRN_SNAPSHOT_WORKING) return;
    const struct coord_shard_entry *entry = stuck_at(snapshot);
    const uint64_t now_ms = coord_now_ms(job->cluster);
    const uint64_t patience_ms = (uint64_t)job->cluster->options->lease_timeout_ms;
    if (entry == NULL || snapshot->stuck_ms == 0) {
        snapshot->stuck_ms = entry != NULL ? now_ms + 1 : 0; // not 0
        return;
    }
    if (now_ms < snapshot->stuck_ms + patience_ms) return;
    struct sentence text;
    sentence_set(&text, "it is away for longer than lease.timeout, %" PRIu64 " ms", patience_ms);
    coord_snapshot_fail(snapshot, CAIRN_ERR_CLOSED, entry->name, text.text);
    end_now(snapshot);
}

/* ---- by an operator's word ---- */

cairn_status coord_snapshot_cancel(struct coord_job *job, const char *id,
                                   struct coord_session *session, uint32_t request,
                                   struct sentence *why)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "no snapshot or digest of job %s is being taken",
                         job->spec.name);
    if (*id != '\0' && strcmp(coord_snapshot_id(snapshot), id) != 0)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "no snapshot %.100s of job %s is being taken",
                         id, job->spec.name);
    if (snapshot->stage == CAIRN_SNAPSHOT_WORKING)
        return fail_with(why, CAIRN_ERR_BUSY,
                         "no shard is at work any more: it waits for the disk of snapshots.path "
                         "alone, and then ends");
    if (!coord_waiters_add(&snapshot->at_cancel, session, request))
        return fail_with(why, CAIRN_ERR_BUSY, "too many requests wait on this connection");
    coord_snapshot_fail(snapshot, CAIRN_ERR_CANCELED, "",
                        "an operator gave it up (`cairn snapshot cancel`)");
    if (snapshot->stage == CAIRN_SNAPSHOT_PINNING) finish_snapshot(snapshot);
    return CAIRN_OK;
}

/* ---- nobody waits any more ---- */

void coord_snapshot_forget(struct coord_job *job, const struct coord_session *session)
{
    if (job->snapshots.running == NULL) return;
    coord_waiters_forget(&job->snapshots.running->now.at_begin, session);
    coord_waiters_forget(&job->snapshots.running->now.at_end, session);
    coord_waiters_forget(&job->snapshots.running->next.at_begin, session);
    coord_waiters_forget(&job->snapshots.running->next.at_end, session);
    coord_waiters_forget(&job->snapshots.running->at_cancel, session);
}

/* With the cluster: nobody is told, a folder without a manifest is no snapshot. */
void coord_snapshot_close(struct coord_job *job)
{
    if (job->snapshots.running != NULL) coord_snapshot_free(job->snapshots.running);
}

/* ==== digests ==== */

void coord_digests_release(struct coord_digests *digests)
{
    free(digests->list);
    *digests = (struct coord_digests) { 0 };
}

static cairn_status make_room(struct coord_digests *digests, size_t more, struct sentence *why)
{
    if (more > CAIRN_DIGESTS_MAX - digests->count)
        return fail_with(why, CAIRN_ERR_PROTOCOL, "too many digests");
    const size_t need = digests->count + more;
    if (need <= digests->capacity) return CAIRN_OK;
    const size_t capacity = 2 * digests->capacity > need ? 2 * digests->capacity : need;
    struct coord_digest *grown = realloc(digests->list, capacity * sizeof *grown);
    if (grown == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for digests");
    digests->list = grown;
    digests->capacity = capacity;
    return CAIRN_OK;
}

cairn_status coord_digests_take(struct coord_digests *digests, size_t tensor_count,
                                const Cairn__SnapshotPart *part, struct sentence *why)
{
    CAIRN_TRY(make_room(digests, part->n_digests, why));
    for (size_t i = 0; i < part->n_digests; i++) {
        const Cairn__DigestNode *d = part->digests[i];
        if (d->tensor >= tensor_count || d->plane >= CAIRN_PLANE_COUNT ||
            d->hash.len != CAIRN_HASH_BYTES)
            return fail_with(why, CAIRN_ERR_PROTOCOL, "a digest of no tensor of this job");
        struct coord_digest *to = &digests->list[digests->count++];
        *to = (struct coord_digest) { d->tensor, d->plane, { d->level, d->index, { { 0 } } } };
        memcpy(to->node.hash.byte, d->hash.data, CAIRN_HASH_BYTES);
    }
    return CAIRN_OK;
}

cairn_status coord_digests_add(struct coord_digests *digests, uint32_t tensor, enum plane plane,
                               const struct hash_tree *tree, struct sentence *why)
{
    const cairn_status status = make_room(digests, tree->node_count, why);
    for (uint32_t i = 0; status == CAIRN_OK && i < tree->node_count; i++)
        digests->list[digests->count++] = (struct coord_digest) { tensor, (uint32_t)plane,
                                                                  tree->node[i] };
    return status;
}

/* ---- the root ---- */

static int by_place(const void *a, const void *b)
{
    const struct coord_digest *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    if (x->plane != y->plane) return x->plane < y->plane ? -1 : 1;
    return 0;
}

/* The root of one plane from its run of nodes, which begins at *at; moves *at behind it. */
static cairn_status plane_root(const struct job_spec_data *spec,
                               const struct coord_digests *digests, uint32_t tensor, int plane,
                               size_t *at, struct tree_node *room, struct plane_digest *out)
{
    const struct tensor_spec *t = &spec->tensors[tensor];
    const struct geometry g = geometry_of(&t->shape);
    size_t count = 0;
    while (*at < digests->count && digests->list[*at].tensor == tensor &&
           digests->list[*at].plane == (uint32_t)plane) {
        room[count++] = digests->list[(*at)++].node;
    }
    struct hash root;
    CAIRN_TRY(tree_combine(room, count, g.leaf_count, &root));
    out->tensor = t->name;
    out->plane = (enum plane)plane;
    digest_plane_root(t->name, out->plane, spec_plane_dtype(spec, tensor, (uint32_t)plane),
                      &t->shape, g.leaf_count, &root, &out->root);
    return CAIRN_OK;
}

static cairn_status all_planes(const struct job_spec_data *spec,
                               const struct coord_digests *digests, struct plane_digest *planes,
                               struct tree_node *room, size_t *count_out, struct sentence *why)
{
    size_t at = 0, count = 0;
    for (uint32_t i = 0; i < spec->tensor_count; i++) {
        const uint32_t stored = spec_planes(spec, i);
        for (int p = 1; p < CAIRN_PLANE_COUNT; p++) {
            if (!(stored & (1u << p))) continue;
            if (plane_root(spec, digests, i, p, &at, room, &planes[count]) != CAIRN_OK)
                return fail_with(why, CAIRN_ERR_PROTOCOL,
                                 "the shards' digests of %s, plane %s, are not the whole of it",
                                 spec->tensors[i].name, plane_name(p));
            count++;
        }
    }
    *count_out = count;
    if (at == digests->count) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_PROTOCOL, "a shard sent digests of no plane");
}

/* With the learning rate that the payload has of a driven one. */
static cairn_status fill_groups(const struct manifest *m, const struct payload *head,
                                struct group_digest *groups, struct sentence *why)
{
    const struct job_spec_data *spec = &m->spec;
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < spec->group_count && status == CAIRN_OK; i++) {
        groups[i].name = spec->groups[i].name;
        status = group_hyper_of_spec(&spec->groups[i], &groups[i].hyper, NULL);
        if (spec->groups[i].schedule.kind == CAIRN_SCHEDULE_DRIVEN && i < head->driven_count)
            groups[i].hyper.lr = payload_driven(m->payload, head, (uint32_t)i);
    }
    return status == CAIRN_OK ? CAIRN_OK
                              : fail_with(why, status, "a group of the spec is not valid");
}

/* The digests from which the content root is computed. */
struct parts {
    /* owned */
    struct plane_digest *planes;
    struct group_digest *groups;
    struct missed_digest *missed; /* [tensor_count] */
    struct tree_node *room;
};

static bool parts_open(struct parts *parts, const struct job_spec_data *spec, size_t digest_count)
{
    *parts = (struct parts) {
        .planes = calloc(spec->tensor_count * CAIRN_PLANE_COUNT + 1, sizeof *parts->planes),
        .groups = calloc(spec->group_count + 1, sizeof *parts->groups),
        .missed = calloc(spec->tensor_count + 1, sizeof *parts->missed),
        .room = calloc(digest_count + 1, sizeof *parts->room),
    };
    return parts->planes != NULL && parts->groups != NULL && parts->missed != NULL &&
           parts->room != NULL;
}

static void parts_close(struct parts *parts)
{
    free(parts->planes);
    free(parts->groups);
    free(parts->missed);
    free(parts->room);
}

/* Trained tensors that have missed steps, in the spec's order, which is that of their names; room: one for
 * each tensor. Returns how many. */
static size_t fill_missed(const struct job_spec_data *spec, const struct missed *missed,
                          struct missed_digest *room)
{
    size_t count = 0;
    for (size_t t = 0; missed->size > 0 && t < spec->tensor_count; t++) {
        if (spec->tensors[t].kind != CAIRN_TRAINED) continue;
        const uint64_t steps = missed_steps(missed, (uint32_t)t);
        if (steps > 0) room[count++] = (struct missed_digest) { spec->tensors[t].name, steps };
    }
    return count;
}

/* Group names and the hyper-parameters the core uses; loss scale, client state and what tensors have missed
 * as in the payload. */
static cairn_status join_digests(const struct manifest *m, const struct parts *parts,
                                 size_t plane_count, struct hash *root_out, double *loss_scale_out,
                                 struct sentence *why)
{
    const struct job_spec_data *spec = &m->spec;
    struct payload head = { .loss_scale = spec->loss_scale, .state_bytes = 0 };
    if (m->payload_bytes > 0 && payload_decode(m->payload, m->payload_bytes, &head) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_PROTOCOL, "the payload of the last decision is none");
    CAIRN_TRY(fill_groups(m, &head, parts->groups, why));
    struct content content = { .step = m->step,
                               .groups = parts->groups,
                               .group_count = spec->group_count,
                               .loss_scale = head.loss_scale,
                               .missed = parts->missed };
    content.missed_count = fill_missed(spec, &head.missed, parts->missed);
    uint8_t schedules[32];
    if (spec_schedules_hash(spec, schedules)) {
        content.schedule = schedules;
        content.schedule_bytes = sizeof schedules;
    }
    bytes_hash(head.state_bytes > 0 ? head.state : (const uint8_t *)"", head.state_bytes,
               &content.client_state);
    cairn_status status = digest_content_root(parts->planes, plane_count, &content, root_out);
    *loss_scale_out = head.loss_scale;
    if (status == CAIRN_OK) return CAIRN_OK;
    return fail_with(why, status, "the content root: %s", status_text((int)status));
}

cairn_status coord_content_root(const struct manifest *manifest, struct coord_digests *digests,
                                struct hash *root_out, double *loss_scale_out, struct sentence *why)
{
    const struct job_spec_data *spec = &manifest->spec;
    struct parts parts;
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    size_t count = 0;
    if (parts_open(&parts, spec, digests->count)) {
        if (digests->count > 0)
            qsort(digests->list, digests->count, sizeof *digests->list, by_place);
        status = all_planes(spec, digests, parts.planes, parts.room, &count, why);
        if (status == CAIRN_OK)
            status = join_digests(manifest, &parts, count, root_out, loss_scale_out, why);
    } else {
        sentence_set(why, "out of memory for the content root");
    }
    parts_close(&parts);
    return status;
}

cairn_status coord_note_missed(struct manifest *m)
{
    struct payload head;
    if (m->payload_bytes == 0 || payload_decode(m->payload, m->payload_bytes, &head) != CAIRN_OK ||
        head.missed.size == 0)
        return CAIRN_OK; // what is malformed the content root says
    bool any = false;
    uint64_t *steps = calloc(m->spec.tensor_count + 1, sizeof *steps);
    if (steps == NULL) return CAIRN_ERR_NO_MEMORY;
    for (size_t t = 0; t < m->spec.tensor_count; t++) {
        if (m->spec.tensors[t].kind != CAIRN_TRAINED) continue;
        steps[t] = missed_steps(&head.missed, (uint32_t)t);
        any = any || steps[t] > 0;
    }
    free(m->steps_missed);
    m->steps_missed = any ? steps : NULL;
    if (!any) free(steps);
    return CAIRN_OK;
}

/* ==== periodic ==== */

static void say_failed(struct coord_job *job, uint64_t step, const char *why)
{
    const uint64_t every = job->spec.policy.snapshot_every;
    sentence_set(&job->snapshots.failed, "of step %" PRIu64 ": %s", step,
                 sentence_brief(why, 600).text);
    if (job->spec.policy.snapshot_every_s > 0)
        sentence_add(&job->snapshots.failed, "; the next one is due in %" PRIu32 " s",
                     job->spec.policy.snapshot_every_s);
    if (every > 0)
        sentence_add(&job->snapshots.failed, "; the next one is due at step %" PRIu64,
                     step - step % every + every);
    log_warn("job %s: no periodic snapshot %s", job->spec.name, job->snapshots.failed.text);
}

/* One of it would make a good one go. Said once. */
static const char damaged[] =
    "none is taken while the job is damaged: restore it, or write the tensors that are not finite";

static void say_damaged(struct coord_job *job)
{
    if (strcmp(job->snapshots.failed.text, damaged) == 0) return;
    sentence_set(&job->snapshots.failed, "%s", damaged);
    log_warn("job %s: no periodic snapshot: %s", job->spec.name, damaged);
}

/* A snapshot is due by steps, or by the time since the last one was due. After a start that time
 * counts from the first step that is seen. */
static bool is_due(struct coord_job *job, uint64_t step)
{
    const struct policy *policy = &job->spec.policy;
    const uint64_t now_ms = coord_now_ms(job->cluster) + 1; // not 0
    const uint64_t since_ms = job->snapshots.due_ms;
    if (policy->snapshot_every_s == 0) {
        job->snapshots.due_ms = 0;
        return policy->snapshot_every > 0 && step % policy->snapshot_every == 0;
    }
    const bool due = since_ms != 0 &&
                     now_ms - since_ms >= 1000 * (uint64_t)policy->snapshot_every_s;
    if (since_ms == 0 || due) job->snapshots.due_ms = now_ms;
    return due;
}

/* The version that is to be saved, and not only its step, is there: of a job with buffers_every the write
 * that follows a due step makes it, or, if none has come, the next step. */
static bool is_to_be_saved(struct coord_job *job, struct cairn_version was,
                           struct cairn_version now)
{
    const bool was_due = job->snapshots.awaits_write;
    const bool is_written = now.generation == was.generation + 1 && now.step == was.step;
    const bool is_stepped = now.generation == was.generation && now.step > was.step;
    if (!is_stepped && !is_written) return false;
    job->snapshots.awaits_write = false;
    if (is_written) return was_due;
    const uint64_t every = job->spec.policy.snapshot_every;
    const bool due = is_due(job, now.step);
    if (!due && !was_due && every > 0) coord_snapshot_prepare_ahead(job, every - now.step % every);
    if (due && !was_due && job->spec.buffers_every > 0) job->snapshots.awaits_write = true;
    return was_due || (due && job->spec.buffers_every == 0);
}

/* Only a step that is applied while we look on: not one that a restore, or a start, begins with. */
void coord_periodic_advance(struct coord_job *job)
{
    const struct cairn_version was = job->snapshots.stepped, now = coord_job_version(job);
    struct sentence why;
    if (!job->rounds.heard || job->version_unknown) return;
    if (version_compare(now, was) == 0) return;
    job->snapshots.stepped = now;
    const bool is_damaged = coord_halts_damage(job).nonfinite > 0;
    if (!is_damaged && strcmp(job->snapshots.failed.text, damaged) == 0)
        job->snapshots.failed.text[0] = '\0';
    if (!is_to_be_saved(job, was, now)) return;
    if (is_damaged)
        say_damaged(job);
    else if (coord_snapshot_begin_unasked(job, CAIRN_SNAPSHOT_PERIODIC, &why) != CAIRN_OK)
        say_failed(job, now.step, why.text);
}

/* The snapshot is one, and has ended, well or not. */
static void periodic_ended(const struct coord_snapshot *snapshot)
{
    struct coord_job *job = snapshot->job;
    if (snapshot->status == CAIRN_ERR_NONFINITE) {
        say_damaged(job);
        return;
    }
    if (snapshot->status != CAIRN_OK) {
        const bool is_pinned = snapshot->stage != CAIRN_SNAPSHOT_PINNING;
        say_failed(job, is_pinned ? snapshot->version.step : coord_job_version(job).step,
                   snapshot->why.text);
        return;
    }
    job->snapshots.failed.text[0] = '\0';
}
