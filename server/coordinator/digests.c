/* The contents of a snapshot: the digests of its parts and its content root. This file also tells what
 * becomes known of a snapshot: its manifest and its progress as status answers show them, how the snapshots
 * of a job ended, and what they cost the job. */
#include <inttypes.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "server/coordinator/cluster.h"

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
    if (array_reserve(&digests->list, digests->count, more, &digests->capacity,
                      sizeof *digests->list) == CAIRN_OK)
        return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory for digests");
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

/* Computes the root of one plane from the plane's nodes, which follow each other in the sorted
 * list. The first of these nodes is at *at, and *at is moved behind the last of them. */
static cairn_status plane_root(const struct job_spec_data *spec,
                               const struct coord_digests *digests, uint32_t tensor, int plane,
                               size_t *at, struct tree_node *room, struct plane_digest *out)
{
    const struct tensor_spec *t = &spec->tensors[tensor];
    const struct geometry g = geometry_of(&t->shape);
    size_t count = 0;
    while (*at < digests->count && digests->list[*at].tensor == tensor &&
           digests->list[*at].plane == (uint32_t)plane)
        room[count++] = digests->list[(*at)++].node;
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

/* Fills in the groups. A group with a driven schedule gets its learning rate from the payload. */
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

/* Lists the trained tensors that have missed steps, in the order of the spec, which sorts them by
 * name. `room` has one element for each tensor. Returns the number of tensors listed. */
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

/* Computes the content root from the digests. The names of groups and their hyper-parameters come
 * from the spec. The loss scale, the client state and the steps that tensors have missed come from
 * the payload, if there is one. */
static cairn_status join_digests(const struct manifest *m, const struct parts *parts,
                                 size_t plane_count, struct hash *root_out, double *loss_scale_out,
                                 struct sentence *why)
{
    const struct job_spec_data *spec = &m->spec;
    struct payload head = { .loss_scale = spec->loss_scale, .state_bytes = 0 };
    if (m->payload_bytes > 0 && payload_decode(m->payload, m->payload_bytes, &head) != CAIRN_OK)
        return fail_with(why, CAIRN_ERR_PROTOCOL, "the payload of the last decision is invalid");
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
    free(parts.planes);
    free(parts.groups);
    free(parts.missed);
    free(parts.room);
    return status;
}

cairn_status coord_note_missed(struct manifest *m)
{
    struct payload head;
    if (m->payload_bytes == 0 || payload_decode(m->payload, m->payload_bytes, &head) != CAIRN_OK ||
        head.missed.size == 0)
        return CAIRN_OK; // coord_content_root reports a malformed payload
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

/* ==== a manifest, shown ==== */

/* Shows which elements of the saved version are not finite. */
static void nonfinite_to_view(const struct manifest *manifest, struct snapshot_view *view)
{
    results_list(&manifest->nonfinite, &manifest->spec, view->nonfinite);
    view->status.nonfinite = manifest->nonfinite.nonfinite;
    view->status.nonfinite_tensors = view->nonfinite;
}

void coord_manifest_to_view(const struct manifest *manifest, const char *id, const char *folder,
                            struct snapshot_view *view)
{
    Cairn__SnapshotStatus *out = &view->status;
    cairn__snapshot_status__init(out);
    nonfinite_to_view(manifest, view);
    out->id = wire_text(id);
    out->path = wire_text(folder);
    out->job = manifest->spec.name;
    out->state = wire_text("committed");
    out->generation = manifest->generation;
    out->step = manifest->step;
    out->files = (uint32_t)manifest->file_count;
    for (size_t i = 0; i < manifest->file_count; i++) out->bytes += manifest->files[i].bytes;
    out->shards = manifest->shard_count;
    out->content_root.data = (uint8_t *)(uintptr_t)manifest->content_root;
    out->content_root.len = sizeof manifest->content_root;
    out->created_unix_ms = manifest->created_unix_s * 1000;
    out->periodic = manifest->periodic != 0;
}

/* ==== progress ==== */

/* The progress of a snapshot, as shards report it with their heartbeats. */

static void take_progress(struct coord_job *job, const struct coord_shard_entry *entry,
                          const Cairn__PinTold *told)
{
    struct coord_snapshot *snapshot = job->snapshots.running;
    if (snapshot == NULL || snapshot->number != told->snapshot) return;
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].entry != entry) continue;
        // If a shard reports an impossible total, it is shown as done.
        const uint64_t total = told->total_bytes < UINT64_MAX / 65536 ? told->total_bytes : 0;
        snapshot->progress[i] = (struct snapshot_progress) {
            .done_bytes = told->done_bytes < total ? told->done_bytes : total,
            .total_bytes = total,
            .waited_ms = told->waited_ms,
        };
    }
}

uint64_t coord_snapshot_number(void)
{
    uint64_t number;
    randombytes_buf(&number, sizeof number);
    return number | 1;
}

void coord_snapshot_on_progress(struct coord *cluster, const struct coord_shard_entry *entry,
                                const Cairn__Heartbeat *message)
{
    for (size_t i = 0; i < message->n_pins; i++) {
        struct coord_job *job = coord_job_by_id(cluster, message->pins[i]->job);
        if (job != NULL) take_progress(job, entry, message->pins[i]);
    }
}

bool coord_snapshot_progress(const struct coord_job *job, struct snapshot_progress *out)
{
    const struct coord_snapshot *snapshot = job->snapshots.running;
    *out = (struct snapshot_progress) { 0 };
    if (snapshot == NULL) return false;
    CAIRN_EACH_SHARD (job, i) {
        const struct snapshot_progress *of = &snapshot->progress[i];
        // If a shard's part has arrived, all its bytes are done, even if its last progress, which
        // is older, says less.
        out->done_bytes += snapshot->parts[i] == CAIRN_PART_IN ? of->total_bytes : of->done_bytes;
        out->total_bytes += of->total_bytes;
        if (of->waited_ms > out->waited_ms) out->waited_ms = of->waited_ms;
    }
    if (out->total_bytes == 0) return false;
    const uint64_t ms = uv_now(job->cluster->loop) - snapshot->begun_ms;
    out->bytes_per_s = (uint64_t)((double)out->done_bytes * 1000 / (double)(ms > 0 ? ms : 1));
    if (out->bytes_per_s > 0)
        out->left_s = (out->total_bytes - out->done_bytes + out->bytes_per_s - 1) /
                      out->bytes_per_s;
    return true;
}

/* Appends the progress to the sentence, for people: bytes, rate, seconds left. Appends nothing if no
 * shard has reported yet. */
static void add_snapshot_progress(const struct coord_job *job, struct sentence *out)
{
    struct snapshot_progress progress;
    if (!coord_snapshot_progress(job, &progress)) return;
    sentence_add(out, "; %.1f of %.1f MB, %.1f MB/s", (double)progress.done_bytes / 1e6,
                 (double)progress.total_bytes / 1e6, (double)progress.bytes_per_s / 1e6);
    if (progress.bytes_per_s > 0) sentence_add(out, ", %" PRIu64 " s left", progress.left_s);
    if (progress.waited_ms > 0)
        sentence_add(out, ", updates waited %" PRIu64 " ms for its staging", progress.waited_ms);
}

void coord_snapshot_to_view(const struct coord_snapshot *snapshot, const char *state,
                            struct snapshot_view *view)
{
    Cairn__SnapshotStatus *out = &view->status;
    cairn__snapshot_status__init(out);
    out->job = snapshot->job->spec.name;
    out->state = wire_text(state);
    out->shards = snapshot->job->entry_count;
    out->periodic = snapshot_cause_is_periodic(snapshot->cause);
    // the snapshot has no version and no manifest yet
    if (!snapshot->is_pinned) return;
    out->generation = snapshot->version.generation;
    out->step = snapshot->version.step;
    out->created_unix_ms = snapshot->manifest.created_unix_s * 1000;
    if (snapshot->status == CAIRN_OK) nonfinite_to_view(&snapshot->manifest, view);
    if (coord_snapshot_id(snapshot)[0] == '\0') return; // another thread is still making the folder
    out->id = wire_text(snapshot->id);
    out->path = snapshot->folder;
}

bool coord_snapshot_running(const struct coord_job *job, struct snapshot_view *view)
{
    const struct coord_snapshot *snapshot = job->snapshots.running;
    struct snapshot_progress progress;
    if (snapshot == NULL || !snapshot->has_files) return false;
    coord_snapshot_to_view(snapshot, "running", view);
    if (!coord_snapshot_progress(job, &progress)) return true;
    view->status.done_bytes = progress.done_bytes;
    view->status.total_bytes = progress.total_bytes;
    view->status.bytes_per_s = progress.bytes_per_s;
    view->status.left_s = progress.left_s;
    return true;
}

bool coord_snapshot_waiting(const struct coord_job *job, struct sentence *out)
{
    const struct coord_snapshot *snapshot = job->snapshots.running;
    const size_t step = snapshot != NULL ? coord_steps_at(&snapshot->steps) : CAIRN_SNAPSHOT_OVER;
    bool is_away = false;
    out->text[0] = '\0';
    if (snapshot == NULL || !snapshot->is_pinned) coord_job_waiting(job, out);
    if (step == CAIRN_SNAPSHOT_PREPARES && coord_job_shards_up(job))
        sentence_set(out, "the shards, which prepare memory for the snapshot");
    if (step == CAIRN_SNAPSHOT_MAKES_FOLDER) sentence_set(out, "the disk of snapshots.path");
    CAIRN_EACH_SHARD (job, i) {
        is_away |= job->shards[i].entry->session == NULL;
        if (snapshot == NULL || !part_is_open(snapshot->parts[i])) continue;
        sentence_add(out, "%sshard %s", out->text[0] != '\0' ? ", " : "",
                     job->shards[i].entry->name);
    }
    return is_away && out->text[0] != '\0';
}

void coord_snapshot_show(const struct coord_job *job, struct sentence *out)
{
    const struct coord_snapshot *snapshot = job->snapshots.running;
    struct sentence awaited;
    out->text[0] = '\0';
    if (snapshot == NULL) return;
    const char *id = coord_snapshot_id(snapshot);
    coord_snapshot_waiting(job, &awaited);
    sentence_set(out, "a %s%s%s, for %" PRIu64 " s", snapshot->has_files ? "snapshot" : "digest",
                 id[0] != '\0' ? " " : "", id,
                 (uv_now(job->cluster->loop) - snapshot->begun_ms) / 1000);
    add_snapshot_progress(job, out);
    if (awaited.text[0] != '\0') sentence_add(out, "; it waits for %s", awaited.text);
}

/* ==== how snapshots ended, and what they cost ==== */

/* How the snapshots of a job ended, how much they cost the job, and how often the job should take a
 * snapshot. */

/* ---- periodic and parting ones ---- */

void coord_periodic_failed(struct coord_job *job, uint64_t step, const char *why)
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

/* Tells the operator that a damaged job takes no periodic snapshot, because such a snapshot would
 * push out a good one. This is logged once for each damage. */
static const char damaged[] =
    "none is taken while the job is damaged: restore it, or write the tensors that are not finite";

void coord_periodic_undamaged(struct coord_job *job)
{
    if (strcmp(job->snapshots.failed.text, damaged) == 0) job->snapshots.failed.text[0] = '\0';
}

void coord_periodic_damaged(struct coord_job *job)
{
    if (strcmp(job->snapshots.failed.text, damaged) == 0) return;
    sentence_set(&job->snapshots.failed, "%s", damaged);
    log_warn("job %s: no periodic snapshot: %s", job->spec.name, damaged);
}

/* Called when a periodic snapshot has ended, successfully or not. */
static void note_periodic(const struct coord_snapshot *snapshot)
{
    struct coord_job *job = snapshot->job;
    if (snapshot->status == CAIRN_ERR_NONFINITE) {
        coord_periodic_damaged(job);
        return;
    }
    if (snapshot->status != CAIRN_OK) {
        const bool is_pinned = snapshot->is_pinned;
        coord_periodic_failed(job, is_pinned ? snapshot->version.step : coord_job_version(job).step,
                              snapshot->why.text);
        return;
    }
    job->snapshots.failed.text[0] = '\0';
}

void coord_parting_unsaved(struct coord_job *job, const char *why)
{
    sentence_set(&job->snapshots.parting.outcome,
                 "job %s has nothing durable left but older snapshots: %s", job->spec.name, why);
}

static void note_parting(const struct coord_snapshot *snapshot)
{
    struct coord_parting *p = &snapshot->job->snapshots.parting;
    p->state = CAIRN_PARTING_ENDED;
    p->is_saved = snapshot->status == CAIRN_OK;
    p->version = snapshot->version;
    if (p->is_saved)
        sentence_set(&p->outcome, "job %s is saved as snapshot %s of step %" PRIu64,
                     snapshot->job->spec.name, snapshot->id, snapshot->version.step);
    else
        coord_parting_unsaved(snapshot->job, snapshot->why.text);
}

/* ---- cost ---- */

static void begin_cost(struct coord_cost *cost, const struct coord_snapshot *snapshot)
{
    const bool comparable = cost->plain.count >= CAIRN_COST_STEPS;
    cost->is_counting = true;
    cost->has_ended = cost->is_committed = false;
    cost->number = snapshot->number;
    cost->extra_us = 0;
    cost->usual_us = comparable ? coord_pace_median(&cost->plain) : 0;
}

static uint32_t bounded_us(int64_t us)
{
    return us < 0 ? 0 : us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

/* Adds the cost of a snapshot that has ended to the list of costs. A snapshot is left out if it
 * failed, or if too few plain steps came before it for a comparison. */
static void conclude_cost(struct coord_cost *cost)
{
    cost->is_counting = false;
    if (!cost->is_committed || cost->usual_us == 0) return;
    cost->extras_us[cost->next] = bounded_us(cost->extra_us);
    cost->writes_us[cost->next] = bounded_us((int64_t)cost->write_us);
    cost->next = (cost->next + 1) % CAIRN_COST_SNAPSHOTS;
    if (cost->count < CAIRN_COST_SNAPSHOTS) cost->count++;
}

void coord_cost_note_step(struct coord_job *job)
{
    struct coord_cost *cost = &job->snapshots.cost;
    const struct coord_snapshot *snapshot = job->snapshots.running;
    const uint32_t us = job->rounds.pace.last_us;
    if (!cost->is_counting && snapshot != NULL && snapshot->has_files) begin_cost(cost, snapshot);
    if (cost->is_counting) {
        cost->extra_us += (int64_t)us - cost->usual_us;
        if (cost->has_ended) conclude_cost(cost);
    } else if (snapshot == NULL) { // steps during a digest are not counted
        coord_pace_note(&cost->plain, us);
    }
}

static void note_cost(const struct coord_snapshot *snapshot)
{
    struct coord_cost *cost = &snapshot->job->snapshots.cost;
    if (!snapshot->has_files) return;
    if (!cost->is_counting || cost->number != snapshot->number)
        begin_cost(cost, snapshot); // the snapshot began and ended within one step
    cost->has_ended = true;
    cost->is_committed = snapshot->status == CAIRN_OK;
    cost->write_us = 1000 * (uv_now(snapshot->job->cluster->loop) - snapshot->begun_ms);
}

void coord_snapshot_note_end(const struct coord_snapshot *snapshot)
{
    note_cost(snapshot);
    if (snapshot->cause == CAIRN_SNAPSHOT_PERIODIC) note_periodic(snapshot);
    if (snapshot->cause == CAIRN_SNAPSHOT_PARTING) note_parting(snapshot);
}

/* ---- advise ---- */

struct advise_found coord_advise(const struct advise_given *given)
{
    const double young_s = sqrt(2 * given->mtbf_s * given->cost_s);
    const bool by_write = !(young_s >= given->write_s);
    double interval_s = round(by_write ? given->write_s : young_s);
    if (!(interval_s >= 1)) interval_s = 1;
    if (interval_s > CAIRN_SPEC_SNAPSHOT_S_MAX) interval_s = CAIRN_SPEC_SNAPSHOT_S_MAX;
    struct advise_found found = { .interval_s = (uint32_t)interval_s, .by_write = by_write };
    if (given->step_s > 0) {
        const double steps = round(interval_s / given->step_s);
        found.interval_steps = steps < 1 ? 1 : (uint64_t)fmin(steps, 1e15);
    }
    return found;
}

static void fill_measured(struct coord_job *job, Cairn__SnapshotAdvice *out)
{
    const struct coord_cost *cost = &job->snapshots.cost;
    const uint32_t plain_us = coord_pace_median(&cost->plain);
    uint32_t extras_us[CAIRN_COST_SNAPSHOTS], writes_us[CAIRN_COST_SNAPSHOTS];
    out->step_us = plain_us > 0 ? plain_us : coord_pace_median(&job->rounds.pace);
    out->measured = cost->count;
    if (cost->count == 0) return;
    memcpy(extras_us, cost->extras_us, sizeof extras_us); // times_median() sorts in place
    memcpy(writes_us, cost->writes_us, sizeof writes_us);
    out->cost_us = times_median(extras_us, cost->count);
    out->write_us = times_median(writes_us, cost->count);
}

static void fill_faults(struct coord_job *job, uint64_t given_s, Cairn__SnapshotAdvice *out)
{
    struct event_faults faults;
    coord_events_faults(job->cluster, job->spec.name, &faults);
    const uint64_t count = faults.shards + faults.workers;
    out->shard_faults = faults.shards;
    out->worker_faults = faults.workers;
    out->observed_s = faults.observed_ms / 1000;
    out->mtbf_given = given_s > 0;
    out->mtbf_s = given_s;
    if (given_s == 0 && count > 0)
        out->mtbf_s = out->observed_s > count ? out->observed_s / count : 1;
}

static void judge_advice(Cairn__SnapshotAdvice *out, struct sentence *note)
{
    note->text[0] = '\0';
    if (out->measured == 0)
        sentence_set(note,
                     "no snapshot was measured yet since the coordinator started: a snapshot is "
                     "measured if at least %d steps came before it; take one while the job trains",
                     CAIRN_COST_STEPS);
    else if (out->mtbf_s == 0)
        sentence_set(note, "no fault was seen yet; say how often you expect one: --mtbf 7d");
    if (note->text[0] != '\0') return;
    const struct advise_given given = { .mtbf_s = (double)out->mtbf_s,
                                        .cost_s = (double)out->cost_us * 1e-6,
                                        .write_s = (double)out->write_us * 1e-6,
                                        .step_s = (double)out->step_us * 1e-6 };
    const struct advise_found found = coord_advise(&given);
    out->interval_s = found.interval_s;
    out->interval_steps = found.interval_steps;
    if (found.by_write)
        sentence_set(note, "as often as one can be written: Young's rule asks for more");
}

/* Answers the session with advice on how often the job should take snapshots, or with
 * CAIRN_ERR_NOT_FOUND if there is no such job. Loop thread only. */
static cairn_status on_snapshot_advise(struct coord_session *session, uint32_t request,
                                       const void *any, struct sentence *why)
{
    const Cairn__SnapshotAdvise *message = any;
    struct coord_job *job = coord_job_find(session->cluster, message->job);
    Cairn__SnapshotAdvice advice = CAIRN__SNAPSHOT_ADVICE__INIT;
    struct sentence note;
    if (job == NULL)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "there is no job %.100s; `cairn job list`",
                         message->job);
    advice.job = job->spec.name;
    advice.every = job->spec.policy.snapshot_every;
    advice.every_s = job->spec.policy.snapshot_every_s;
    fill_measured(job, &advice);
    fill_faults(job, message->mtbf_s, &advice);
    judge_advice(&advice, &note);
    advice.note = note.text;
    coord_session_send(session, CAIRN_MSG_SNAPSHOT_ADVICE, request, &advice.base);
    return CAIRN_OK;
}

/* ==== messages ==== */

const struct coord_row coord_digests_rows[] = {
    { CAIRN_MSG_SNAPSHOT_ADVISE, CAIRN_FROM_ADMIN, .asks = on_snapshot_advise, .job = "job",
      .wants = CAIRN_ACCESS_LOOK },
    { 0 },
};
