/* Handles the parts of jobs when shards connect and disconnect. A shard that reconnects is judged
 * by the parts that it reports, and a part that is missing for too long makes its job LOST. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/link/link.h"
#include "server/coordinator/cluster.h"

/* ---- shards come and go ---- */

/* The parts that a shard reports; borrowed. */
struct held {
    Cairn__HeldJob *const *list;
    size_t count;
};

/* Returns the shard's part of the job that has the layout of our store, either in force or
 * prepared. Returns NULL if the shard has no such part. */
static const Cairn__HeldJob *part_of(const struct coord_job *job, const struct held *held)
{
    const struct seat_part wanted = { .job = job->id,
                                      .generation = job->generation,
                                      .layout_hash = layout_number(job->layout) };
    for (size_t i = 0; i < held->count; i++) {
        const Cairn__HeldJob *part = held->list[i];
        const struct seat_part seen[] = {
            { part->job, part->generation, part->layout_hash },
            // this layout comes into force with a fence
            { part->job, part->generation, part->next_layout_hash },
        };
        if (seat_has(&wanted, seen, part->next_layout_version != 0 ? 2 : 1)) return part;
    }
    return NULL;
}

/* Says in which respect our store is older than this shard's report. Returns NULL if the store is
 * not older. If no coordinator has told the shard that its generation is durable, the generation
 * counts only if it is above all generations that we have begun ourselves. */
static const char *behind_in(const struct coord_job *job, const struct held *held)
{
    const struct marks ours = coord_job_marks(job);
    for (size_t i = 0; i < held->count; i++) {
        struct marks seen = coord_held_marks(held->list[i]);
        if (held->list[i]->job != job->id || held->list[i]->staged) continue;
        const bool begun = held->list[i]->unsettled && seen.generation <= job->reserved.generation;
        if (begun) seen.generation = seen.revision = 0;
        const char *what = marks_behind(&ours, &seen);
        if (what != NULL) return what;
    }
    return NULL;
}

/* Finds generations of the job on the shard that are not the store's, because an amendment may have
 * been made or given up while the shard, or the coordinator, was away. If all of these are older,
 * they are dropped at once. A newer generation is dropped by settle_all, after all shards have
 * shown that the store is not an older copy. */
static void settle_generations(const struct coord_job *job, uint32_t shard, const struct held *held)
{
    struct coord_job_shard *s = &job->shards[shard];
    bool older = false;
    s->newer = false;
    for (size_t i = 0; i < held->count; i++) {
        if (held->list[i]->job != job->id) continue;
        older |= held->list[i]->generation < job->generation;
        s->newer |= held->list[i]->generation > job->generation;
    }
    if (older && !s->newer) coord_job_send_switch(job, s->entry, job->generation);
}

/* Drops an uninitialized job, which has nothing to lose. The job is created anew when a worker opens it
 * again. */
static void start_over(struct coord_job *job, const struct coord_shard_entry *entry)
{
    struct sentence why;
    sentence_set(&why,
                 "shard %s restarted before job %s was initialized; open the job and put the "
                 "initial state again",
                 entry->name, job->spec.name);
    log_fields(CAIRN_LOG_WARN,
               CAIRN_FIELDS({ "job", job->spec.name, 0 }, { "shard", entry->name, 0 }), "%s",
               why.text);
    while (job->members.list != NULL)
        coord_member_expel(job->members.list, CAIRN_ERR_REOPEN, why.text);
    coord_job_drop(job);
}

/* True if every shard of the job has reported what it holds, and no shard holds anything that is
 * newer than our store. Then destructive actions are safe. */
static bool all_here(const struct coord_job *job)
{
    CAIRN_EACH_SHARD (job, i)
        if (!coord_shard_obeys(job->shards[i].entry)) return false;
    return true;
}

/* ---- parts that are missed ----
 *
 * If a shard connects without its part of a job, its process is a new one. The old process, which
 * had the part, may have ended, and then the part is lost. Or the old process is only stopped, or
 * cut off, and will return. So the job first waits for the part. After a while the job is LOST,
 * until the part is back or the job is restored. */

/* Returns for how long the job waits for a part. If the process closed its connection, it has
 * ended, or it reconnects at once. If the process became silent, it may return within a lease. */
static uint64_t patience_ms(const struct coord *cluster, const struct coord_shard_entry *entry)
{
    const struct coord_options *options = cluster->options;
    return (uint64_t)(entry->ended ? options->heartbeat_ms : options->lease_timeout_ms);
}

/* Returns true if the part comes when something else does: a log that the shard could not read, with the
 * next process, or the snapshot on which its log stands. */
static bool part_may_come(const struct coord_job *job, const struct coord_shard_entry *entry)
{
    const bool lacks_log = entry->told.log_lacks.text[0] != '\0';
    return (lacks_log || coord_logs_awaits(job, entry)) && coord_logs_wanted(job);
}

static void miss_part(struct coord_job *job, uint32_t shard)
{
    struct coord_job_shard *s = &job->shards[shard];
    const bool may_come = part_may_come(job, s->entry), is_new = s->missed_ms == 0;
    if (!is_new && may_come == s->part_may_come) return;
    if (is_new) s->missed_ms = coord_now_ms(job->cluster) + 1; // never 0
    s->part_may_come = may_come;
    s->patience_ms = patience_ms(job->cluster, s->entry);
    const uint64_t log_ms = coord_logs_loss_wait_ms(job);
    if (may_come && log_ms > s->patience_ms) s->patience_ms = log_ms;
    if (!is_new) {
        log_warn("job %s: shard %s %s", job->spec.name, s->entry->name,
                 may_come ? "makes its part of it again from its log, and is waited for"
                          : "does not wait for its part of it any more: its log cannot be used");
        return;
    }
    log_warn("job %s waits: shard %s restarted without its part of it%s", job->spec.name,
             s->entry->name,
             coord_logs_awaits(job, s->entry)
                 ? ", which it makes again from its log when the log's snapshot is there"
                 : "");
    coord_snapshot_part_missed(job, shard);
}

/* Takes the slice back if a shard that had nothing before the slice stays away, or if such a shard
 * connected without its part while the layout was being stored. Returns true if a slice is being
 * taken back. */
static bool give_up_fresh(struct coord_job *job)
{
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_shard_entry *entry = job->shards[i].entry;
        if (job->shards[i].up || job->shards[i].lost) continue;
        const uint64_t away_ms = coord_now_ms(job->cluster) - entry->gone_ms;
        const bool is_gone = entry->session == NULL && away_ms >= patience_ms(job->cluster, entry);
        if (!is_gone && job->shards[i].missed_ms == 0) continue;
        if (coord_slice_shard_lost(job, i)) return true;
    }
    return false;
}

/* True if the shard was lost in a slice that is still being taken back. Then nothing that the shard holds
 * counts any more. */
static bool is_left_out(const struct coord_job *job, uint32_t shard)
{
    const struct coord_reshard *r = &job->reshard;
    return job->shards[shard].lost && r->move != NULL && move_stage_of(r->move) != CAIRN_MOVE_REST;
}

/* Sends ShardsChanged to all attached members. */
static void tell_shards_changed(struct coord_job *job)
{
    struct coord_shard_infos infos;
    if (!coord_shard_infos_init(&infos, job, job->layout->shard_count)) return;
    Cairn__ShardsChanged message = CAIRN__SHARDS_CHANGED__INIT;
    message.job = job->id;
    message.shards = infos.list;
    message.n_shards = infos.count;
    for (struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        if (m->phase != CAIRN_MEMBER_ATTACHED) continue;
        coord_session_send(m->session, CAIRN_MSG_SHARDS_CHANGED, 0, &message.base);
    }
    coord_shard_infos_release(&infos);
}

/* Tells members that a shard stays away. From a shard that is there they expect an answer, and a member that
 * has never heard the shard takes silence for a fault of the network. Whoever only lost a connection is back
 * sooner. */
static void tell_who_is_away(struct coord_job *job)
{
    const uint64_t now_ms = uv_now(job->cluster->loop);
    bool is_news = false;
    CAIRN_EACH_SHARD (job, i) {
        struct coord_job_shard *s = &job->shards[i];
        const bool stays_away = s->entry->session == NULL && s->address_sent != 0 &&
                                now_ms - s->entry->since_ms >= CAIRN_LINK_SILENT_MS / 2;
        is_news = is_news || (stays_away && !s->is_told_away);
        s->is_told_away = s->is_told_away || stays_away;
    }
    if (is_news) tell_shards_changed(job);
}

/* The job has waited long enough for a part. */
static void lose_missed(struct coord_job *job, uint32_t shard)
{
    const struct coord_job_shard *s = &job->shards[shard];
    struct sentence logs = { "" };
    if (coord_logs_awaits(job, s->entry)) {
        coord_job_lose(job, true,
                       "%s restarted, and has waited for %" PRIu64
                       " s for %s (the job goes on when that is there)",
                       s->entry->name, s->patience_ms / 1000,
                       s->log.waits[0] != '\0' ? s->log.waits : "the snapshot of its log");
        return;
    }
    coord_logs_lost(job, shard, &logs);
    coord_job_lose(job, true,
                   "%s restarted without its part, and the process that had it is not back (if "
                   "that one still runs, stopped or cut off, the job goes on when it is back)%s",
                   s->entry->name, logs.text);
}

void coord_job_parts_tick(struct coord_job *job)
{
    const uint64_t now_ms = coord_now_ms(job->cluster);
    if (job->state == CAIRN_CLUSTER_JOB_RUNNING && give_up_fresh(job)) return;
    if (job->state == CAIRN_CLUSTER_JOB_RUNNING) coord_slice_tick(job);
    tell_who_is_away(job);
    if (job->state != CAIRN_CLUSTER_JOB_RUNNING || !all_here(job)) return;
    CAIRN_EACH_SHARD (job, i) {
        const struct coord_job_shard *s = &job->shards[i];
        if (s->missed_ms == 0 || now_ms < s->missed_ms + s->patience_ms) continue;
        if (is_left_out(job, i)) continue; // the other shards have all that this shard had
        if (coord_mirrors_may_take(job, i)) continue;
        lose_missed(job, i);
        return;
    }
}

/* Notes that the shard has its part again. If no other part is missing, the job is no longer
 * LOST. */
static void find_part(struct coord_job *job, uint32_t shard)
{
    if (job->shards[shard].missed_ms == 0) return;
    job->shards[shard].missed_ms = 0;
    log_info("job %s: shard %s is back with its part", job->spec.name,
             job->shards[shard].entry->name);
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].missed_ms != 0 && !is_left_out(job, i)) return;
    }
    if (job->state == CAIRN_CLUSTER_JOB_LOST) job->state = CAIRN_CLUSTER_JOB_RUNNING;
    job->loss.may_return = false;
}

/* Called when all shards of the job are connected. Drops the newer generations that shards hold. If
 * a part of an uninitialized job is missing, starts the job over, and returns true: the job is
 * gone. */
static bool settle_all(struct coord_job *job)
{
    CAIRN_EACH_SHARD (job, i) {
        struct coord_job_shard *s = &job->shards[i];
        if (s->missed_ms != 0 && !job->initialized) {
            start_over(job, s->entry);
            return true;
        }
        // all are told when it is stored: the job may be this newer one by then
        const struct coord_step *extends = job->amends.extension.steps.at;
        const bool is_stored = extends != NULL && extends->kind == CAIRN_STEP_STORE;
        if (s->newer && !is_stored) coord_job_send_switch(job, s->entry, job->generation);
        s->newer = false;
    }
    return false;
}

/* Tells the other shards where that shard is, which is the only one of the message. */
static void tell_others(struct coord_job *job, uint32_t shard, const Cairn__ShardsChanged *message)
{
    CAIRN_EACH_SHARD (job, i)
        if (i != shard && job->shards[i].up)
            coord_session_send(job->shards[i].entry->session, CAIRN_MSG_SHARDS_CHANGED, 0,
                               &message->base);
}

/* In a slice shards take state from each other. So the shard that came is told where the others are, and
 * the others where that one is, if its process may be another one than when the slice began. */
static void tell_shards(struct coord_job *job, uint32_t shard, const Cairn__ShardsChanged *message,
                        bool may_have_moved)
{
    if (job->reshard.move == NULL || move_stage_of(job->reshard.move) == CAIRN_MOVE_REST) return;
    coord_session_send(job->shards[shard].entry->session, CAIRN_MSG_SHARDS_CHANGED, 0,
                       &message->base);
    for (size_t i = 0; i < message->n_shards && may_have_moved; i++) {
        Cairn__ShardsChanged one = *message;
        if (message->shards[i]->index != shard) continue;
        one.shards = &message->shards[i];
        one.n_shards = 1;
        tell_others(job, shard, &one);
    }
}

/* Tells where a shard is that came. */
static void tell_shard_came(struct coord_job *job, uint32_t shard)
{
    struct coord_shard_infos infos;
    const bool was_known = job->shards[shard].address_sent != 0,
               has_moved = coord_job_shard_moved(&job->shards[shard]);
    if (has_moved || !was_known) coord_reshard_publish_anew(job);
    if (has_moved) tell_shards_changed(job);
    if (!coord_shard_infos_init(&infos, job, job->layout->shard_count)) return;
    Cairn__ShardsChanged message = CAIRN__SHARDS_CHANGED__INIT;
    message.job = job->id;
    message.shards = infos.list;
    message.n_shards = infos.count;
    tell_shards(job, shard, &message, has_moved || !was_known);
    coord_shard_infos_release(&infos);
}

static void shard_up(struct coord_job *job, uint32_t shard, const struct held *held)
{
    struct coord_job_shard *s = &job->shards[shard];
    coord_logs_shard_up(job, shard);
    if (job->state == CAIRN_CLUSTER_JOB_CREATING || job->loss.behind) return;
    if (coord_mirrors_is_taking(job, shard)) return;
    const char *behind = behind_in(job, held);
    if (behind != NULL) coord_job_behind(job, "shard", s->entry->name, behind);
    if (coord_job_dead(job)) return;
    const Cairn__HeldJob *part = part_of(job, held);
    if (part == NULL && coord_slice_shard_lost(job, shard)) return;
    // when the slice is taken back, the shard drops what it has
    if (is_left_out(job, shard)) return;
    if (part == NULL) {
        miss_part(job, shard);
    } else {
        find_part(job, shard);
        settle_generations(job, shard, held);
    }
    if (all_here(job) && settle_all(job)) return;
    if (part == NULL) return;
    coord_operations_shard_up(job, part);
    s->revision = part->revision;
    s->up = true;
    coord_slice_prepared(job, shard, part->next_layout_version);
    coord_terms_tell(job, shard, !part->unsettled);
    coord_members_tell_shard(job, shard);
    tell_shard_came(job, shard);
    coord_mirrors_owner_up(job, shard);
    coord_gate_update(job); // the messages about members come first, on the same connection
    const struct round_event up = { .kind = CAIRN_ROUND_SHARD_UP, .shard = shard };
    coord_job_event(job, &up);
    coord_job_try_seal(job);
}

/* Called for a shard on which the job has no part, as far as our store knows. If the shard has seen
 * a later epoch of the job than our store, our store is an older copy. Then parts that are missing
 * on the shards of our store have moved, and are not lost. */
static void judge_stranger(struct coord_job *job, const struct coord_shard_entry *entry,
                           const struct held *held)
{
    for (size_t i = 0; i < held->count; i++) {
        const Cairn__HeldJob *part = held->list[i];
        // If a generation was never finished, nobody knows whether its epoch was ever durable.
        const bool is_begun = part->unsettled && part->generation > job->generation;
        if (part->job == job->id && !part->staged && !is_begun)
            coord_job_seen(job, "shard", entry->name, part->epoch);
    }
}

void coord_jobs_shard_up(struct coord *cluster, struct coord_shard_entry *entry,
                         Cairn__HeldJob *const *held, size_t held_count)
{
    const struct held list = { held, held_count };
    struct coord_job *job = cluster->jobs;
    while (job != NULL) {
        struct coord_job *next = job->next;
        if (!coord_job_has_shard(job, entry)) judge_stranger(job, entry, &list);
        CAIRN_EACH_SHARD (job, i) {
            if (job->shards[i].entry != entry) continue;
            shard_up(job, i, &list);
            break; // a shard occurs in a layout only once
        }
        job = next;
    }
}

void coord_job_shard_has(struct coord_job *job, const struct coord_shard_entry *entry,
                         Cairn__HeldJob *part)
{
    Cairn__HeldJob *const list[] = { part };
    const struct held held = { list, part != NULL ? 1 : 0 };
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].entry != entry || job->shards[i].up) continue;
        shard_up(job, i, &held);
        return;
    }
}

static void shard_down(struct coord_job *job, uint32_t shard)
{
    struct coord_job_shard *s = &job->shards[shard];
    s->newer = false;
    s->revision = 0;
    coord_members_forget_shard(job, shard);
    coord_groups_shard_gone(job, shard);
    coord_gate_update(job);
    if (!s->up) return;
    s->up = false;
    coord_mirrors_owner_down(job, shard);
    sentence_set(&job->rounds.epoch_reason, "shard %s was away", s->entry->name);
    if (job->core != NULL) {
        const struct round_event down = { .kind = CAIRN_ROUND_SHARD_DOWN, .shard = shard };
        coord_job_event(job, &down);
    }
    coord_operations_shard_down(job, shard);
}

void coord_jobs_shard_down(struct coord *cluster, struct coord_shard_entry *entry)
{
    coord_mirrors_standby_down(cluster, entry);
    for (struct coord_job *job = cluster->jobs; job != NULL; job = job->next) {
        CAIRN_EACH_SHARD (job, i) {
            if (job->shards[i].entry != entry) continue;
            shard_down(job, i);
            // a shard occurs in a layout only once, and the shard may have left the layout by now
            break;
        }
    }
}

/* ==== act ==== */

/* Carries out the actions of a job's core, in their order: tells shards and workers, pins snapshots,
 * fences workers. */

/* ---- to the shards ---- */

static void send_fence(struct coord_job *job, const struct round_action *action)
{
    Cairn__Fence fence = CAIRN__FENCE__INIT;
    fence.job = job->id;
    fence.epoch = action->epoch;
    fence.layout = action->layout;
    log_info("job %s: epoch %" PRIu64 ", because %s", job->spec.name, action->epoch,
             job->rounds.epoch_why.text);
    coord_mirrors_fence(job, &fence);
    coord_job_send_all(job, CAIRN_MSG_FENCE, &fence.base);
}

static void send_resolve(struct coord_job *job, const struct round_action *action)
{
    Cairn__Decision decision;
    Cairn__Resolve resolve = CAIRN__RESOLVE__INIT;
    coord_decision_to_message(action->decision, &decision);
    resolve.job = job->id;
    resolve.epoch = action->epoch;
    resolve.round = action->round;
    resolve.decision = &decision;
    coord_mirrors_send(job, CAIRN_MSG_RESOLVE, &resolve.base);
    coord_job_send_all(job, CAIRN_MSG_RESOLVE, &resolve.base);
}

/* Lists the groups that are frozen in the open round, and returns their number. */
static size_t list_frozen(const struct coord_job *job, uint32_t frozen[CAIRN_SPEC_GROUPS_MAX])
{
    const bool *flags = round_terms_of(job->core)->frozen;
    size_t count = 0;
    for (uint32_t g = 0; g < job->spec.group_count; g++) {
        if (flags[g]) frozen[count++] = g;
    }
    return count;
}

/* Returns the terms of the open round. If no round is open, returns the terms of the last round. */
static const struct coord_terms *terms_in_force(const struct coord_job *job)
{
    const struct coord_terms *terms = job->rounds.terms;
    while (terms->core.groups != round_terms_of(job->core)->groups) terms = terms->older;
    return terms;
}

static void send_open(struct coord_job *job, const struct round_action *action)
{
    uint32_t frozen[CAIRN_SPEC_GROUPS_MAX];
    Cairn__RoundOpen open = CAIRN__ROUND_OPEN__INIT;
    open.frozen = frozen;
    open.n_frozen = list_frozen(job, frozen);
    open.frozen_tensors = terms_in_force(job)->frozen_tensors;
    open.n_frozen_tensors = terms_in_force(job)->frozen_tensor_count;
    open.job = job->id;
    open.epoch = action->epoch;
    open.round = action->round;
    open.generation = action->version.generation;
    open.step = action->version.step;
    open.members = (uint64_t *)(uintptr_t)action->members;
    open.n_members = action->member_count;
    open.write = action->write;
    coord_straggler_opened(job, action->round, action->write);
    log_debug("job %s: round %" PRIu64 " of step %" PRIu64 " open for %" PRIu32 " workers",
              job->spec.name, action->round, action->version.step, action->member_count);
    coord_mirrors_open(job, action, &open);
    if (action->write ||
        !coord_groups_open(job, action->round, action->members, action->member_count)) {
        coord_job_send_all(job, CAIRN_MSG_ROUND_OPEN, &open.base);
        return;
    }
    CAIRN_EACH_SHARD (job, i) {
        if (!job->shards[i].up || !coord_job_in_force(job, i)) continue;
        coord_groups_fill(job, i, &open);
        coord_session_send(job->shards[i].entry->session, CAIRN_MSG_ROUND_OPEN, 0, &open.base);
    }
}

static void send_decide(struct coord_job *job, const struct round_action *action)
{
    Cairn__Decision decision;
    Cairn__Decide decide = CAIRN__DECIDE__INIT;
    coord_decision_to_message(action->decision, &decision);
    if (decision.kind == CAIRN_DECISION_APPLY) {
        coord_groups_stepped(job);
        job->rounds.has_stepped = true;
        job->rounds.stepped_ms = coord_now_ms(job->cluster);
    }
    decide.job = job->id;
    decide.epoch = action->epoch;
    decide.decision = &decision;
    log_debug("job %s: round %" PRIu64 " decided: %s", job->spec.name, decision.round,
              decision.kind == CAIRN_DECISION_APPLY   ? "apply"
              : decision.kind == CAIRN_DECISION_WRITE ? "write"
                                                      : "skip");
    coord_mirrors_send(job, CAIRN_MSG_DECIDE, &decide.base);
    coord_job_send_all(job, CAIRN_MSG_DECIDE, &decide.base);
    if (decision.kind == CAIRN_DECISION_SKIP) coord_halts_skipped(job, action->decision);
    if (decision.kind == CAIRN_DECISION_APPLY) coord_terms_applied(job);
}

/* ---- to the workers ---- */

static void send_opened(struct coord_job *job, const struct round_action *action)
{
    struct coord_member *member = coord_job_member(job, action->member);
    uint32_t frozen[CAIRN_SPEC_GROUPS_MAX];
    if (member == NULL) return;
    uint32_t *request = action->write ? &member->write.request : &member->begin_request;
    member->opened_round = action->round;
    if (!action->write)
        member->times.micros = batch_count(
            &(struct spec_batch) { job->spec.global_batch, action->rank, action->world });
    if (*request == 0) return; // the worker asks again after a reconnect
    Cairn__RoundOpened opened = CAIRN__ROUND_OPENED__INIT;
    opened.job = job->id;
    opened.epoch = action->epoch;
    opened.round = action->round;
    opened.generation = action->version.generation;
    opened.step = action->version.step;
    opened.rank = action->rank;
    opened.world = action->world;
    opened.loss_scale = action->loss_scale;
    opened.skips = action->skips;
    opened.micro_batches = job->spec.micro_batches;
    opened.revision = round_terms_of(job->core)->revision;
    opened.clip_norm = round_terms_of(job->core)->clip_norm;
    opened.frozen = frozen;
    opened.n_frozen = list_frozen(job, frozen);
    opened.frozen_tensors = terms_in_force(job)->frozen_tensors;
    opened.n_frozen_tensors = terms_in_force(job)->frozen_tensor_count;
    coord_session_send(member->session, CAIRN_MSG_ROUND_OPENED, *request, &opened.base);
    *request = 0;
}

static void refuse_begin(struct coord_job *job, const struct round_action *action)
{
    struct coord_member *member = coord_job_member(job, action->member);
    struct sentence text;
    if (member == NULL || member->begin_request == 0) return; // asks again after a reconnect
    coord_halts_why(job, &text);
    coord_session_error(member->session, member->begin_request, CAIRN_ERR_HALTED, text.text);
    member->begin_request = 0;
}

/* Says which gradients of the round were not finite. If the round failed because of them, `text`
 * says so. */
static void fill_gradients(const struct coord_job *job, const struct round_action *action,
                           Cairn__RoundResult *result, struct sentence *text,
                           char tensors[static CAIRN_RESULTS_BYTES])
{
    const struct results gradients = coord_halts_gradients(job, action->round);
    results_list(&gradients, &job->spec, tensors);
    result->nonfinite = gradients.nonfinite;
    result->nonfinite_tensors = tensors;
    if (action->status != CAIRN_ERR_NONFINITE) return;
    results_gradient(&gradients, &job->spec, text);
    sentence_set(
        text,
        "round %" PRIu64
        ": %s and the job's policy is to fail; nothing was applied; to find the worker, look at "
        "the loss of each, and at its gradients before they are pushed",
        action->round, text->text);
}

static void fill_result(const struct coord_job *job, const struct round_action *action,
                        Cairn__RoundResult *result, struct sentence *text,
                        char tensors[static CAIRN_RESULTS_BYTES])
{
    struct payload head = { .clip_scale = 1 };
    const struct decision *decision = action->decision;
    text->text[0] = '\0';
    result->job = job->id;
    result->round = action->round;
    result->status = (int32_t)action->status;
    result->generation = action->version.generation;
    result->step = action->version.step;
    result->text = text->text;
    if (action->why != NULL) {
        sentence_set(text, "round %" PRIu64 ": %s; the job is at step %" PRIu64 " now",
                     action->round, action->why, action->version.step);
        return;
    }
    if (action->status == CAIRN_ERR_EPOCH_CHANGED) {
        sentence_set(text, "round %" PRIu64 " is void: %s; recompute the step", action->round,
                     job->rounds.epoch_why.text);
        return;
    }
    if (decision == NULL || decision->payload_bytes == 0) return;
    if (payload_decode(decision->payload, decision->payload_bytes, &head) != CAIRN_OK) return;
    result->applied = decision->kind != CAIRN_DECISION_SKIP;
    result->finite = head.finite;
    result->grad_norm = head.grad_norm;
    result->clip_scale = head.clip_scale;
    result->lr = head.lr;
    result->skips = head.skips.all;
    // If this decision made the present version, the results that the shards last reported belong
    // to this version.
    if (action->decision->kind == CAIRN_DECISION_APPLY &&
        version_compare(action->version, round_version(job->core)) == 0) {
        result->nonfinite = coord_halts_nonfinite(job, tensors);
        result->nonfinite_tensors = tensors;
    }
    if (!head.finite) fill_gradients(job, action, result, text, tensors);
}

static void send_result(struct coord_job *job, const struct round_action *action)
{
    struct coord_member *member = coord_job_member(job, action->member);
    if (member == NULL) return;
    if (action->status != CAIRN_ERR_EPOCH_CHANGED) coord_relapse_over(member);
    Cairn__RoundResult result = CAIRN__ROUND_RESULT__INIT;
    struct sentence text;
    char tensors[CAIRN_RESULTS_BYTES];
    fill_result(job, action, &result, &text, tensors);
    if (coord_commits_answer(member, &result)) return;
    // No request of the worker waits for the result. The worker is told only that a round is void;
    // for any other result it asks again.
    if (action->status != CAIRN_ERR_EPOCH_CHANGED) return;
    coord_session_send(member->session, CAIRN_MSG_ROUND_RESULT, 0, &result.base);
}

static const char *name_of_rank(const struct coord_job *job, const struct coord_member *other)
{
    for (const struct coord_member *m = job->members.list; m != NULL; m = m->next_of_job) {
        const bool worker = m->role == CAIRN_ROLE_WIRE_WORKER;
        if (m != other && worker && m->rank == other->rank && m->phase == CAIRN_MEMBER_ATTACHED)
            return m->session->name;
    }
    return "another worker";
}

/* Says why a worker is put out at the step's deadline. */
static void say_late(const struct coord_job *job, const struct round_action *action,
                     struct sentence *out)
{
    if (action->world == 0) {
        sentence_set(out, "round %" PRIu64 " was not ended", action->round);
    } else {
        sentence_set(out, "shard %s", job->shards[action->shard].entry->name);
        if (action->world > 1) sentence_add(out, " and %" PRIu32 " more", action->world - 1);
        sentence_add(out, " did not get all that it contributes to round %" PRIu64, action->round);
    }
    sentence_add(out,
                 " within round.step_deadline (%" PRId64 " ms); close the job and open it again",
                 job->cluster->options->step_deadline_ms);
}

/* Logs a shard that is late. No worker is to blame, so the round continues. */
static void say_late_shard(const struct coord_job *job, const struct round_action *action)
{
    log_warn("job %s: shard %s holds round %" PRIu64 " up: after round.step_deadline (%" PRId64
             " ms) it lacks something of %" PRIu32
             " workers, of which the other shards have all; look at it, and at its network",
             job->spec.name, job->shards[action->shard].entry->name, action->round,
             job->cluster->options->step_deadline_ms, action->world);
}

static void ask_lacks(struct coord_job *job, const struct round_action *action)
{
    Cairn__LacksGet get = CAIRN__LACKS_GET__INIT;
    get.job = job->id;
    get.epoch = action->epoch;
    get.round = action->round;
    coord_job_send_all(job, CAIRN_MSG_LACKS_GET, &get.base);
}

static void fence_worker(struct coord_job *job, const struct round_action *action)
{
    struct coord_member *member = coord_job_member(job, action->member);
    struct sentence text;
    if (member == NULL) return;
    cairn_status status = CAIRN_ERR_FENCED;
    // the worker's place is free, so the worker may reopen the job
    if (action->status == CAIRN_ERR_TIMEOUT) {
        status = CAIRN_ERR_REOPEN;
        say_late(job, action, &text);
        sentence_set(&job->rounds.epoch_reason, "worker %s (rank %" PRIu32 ") was put out: %s",
                     member->session->name, member->rank, text.text);
        job->rounds.put_out = job->rounds.epoch_reason;
        coord_halts_lost(job, member, text.text);
    } else if (action->status == CAIRN_ERR_BUSY) {
        status = CAIRN_ERR_BUSY;
        sentence_set(&text, "job %s has round.workers_max workers (%" PRId64 ")", job->spec.name,
                     job->cluster->options->workers_max);
    } else {
        const char *newer = name_of_rank(job, member);
        sentence_set(
            &text,
            "this worker lost its place: %s attached as rank %" PRIu32
            " of job %s, too; end this one, or if both are to work, give each a rank of its own",
            newer, member->rank, job->spec.name);
        sentence_set(&job->rounds.epoch_reason, "%s took the place of %s (rank %" PRIu32 ")", newer,
                     member->session->name, member->rank);
    }
    coord_member_expel(member, status, text.text);
}

/* ---- one event ---- */

static void act_on_core(struct coord_job *job, const struct round_action *action)
{
    switch (action->kind) {
    case CAIRN_ROUND_PERSIST: break; // round.c handles this action
    case CAIRN_ROUND_FENCE: send_fence(job, action); break;
    case CAIRN_ROUND_RESOLVE: send_resolve(job, action); break;
    case CAIRN_ROUND_OPEN_SEND: send_open(job, action); break;
    case CAIRN_ROUND_DECIDE: send_decide(job, action); break;
    case CAIRN_ROUND_PIN_SEND: coord_snapshot_on_pin(job, action->snapshot, action->version); break;
    case CAIRN_ROUND_ASK_LACKS: ask_lacks(job, action); break;
    case CAIRN_ROUND_SHARD_LATE: say_late_shard(job, action); break;
    case CAIRN_ROUND_WORKER_OPENED: send_opened(job, action); break;
    case CAIRN_ROUND_WORKER_RESULT: send_result(job, action); break;
    case CAIRN_ROUND_WORKER_FENCE: fence_worker(job, action); break;
    case CAIRN_ROUND_WORKER_REFUSED: refuse_begin(job, action); break;
    case CAIRN_ROUND_BEHIND:
        coord_job_behind(job, "shard", job->shards[action->shard].entry->name, "epoch");
        break;
    case CAIRN_ROUND_FAIL:
        coord_job_lose(job, false, "%s: %s", job->shards[action->shard].entry->name, action->why);
        break;
    }
}

static void after_core_event(struct coord_job *job)
{
    if (job->tiles.changed) coord_gate_update(job);
    if (!job->rounds.heard && round_stage_of(job->core) >= CAIRN_ROUND_STEADY) {
        job->rounds.heard = true;
        job->version_unknown = false;
        coord_members_attach(job);
    }
    coord_halts_advance(job);
    coord_members_answer_states(job);
    coord_members_tell_version(job);
    coord_leases_advance(job);
    if (coord_pace_advance(job)) coord_operations_stepped(job);
    coord_operations_advance(job);
}

const struct coord_callbacks coord_job_callbacks = {
    .act = act_on_core,
    .in_force = coord_slice_in_force,
    .after = after_core_event,
    .lost = coord_operations_lost,
};
