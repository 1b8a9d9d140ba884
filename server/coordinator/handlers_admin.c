/* Answers the command line: shards, jobs, snapshots. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/log.h"
#include "server/coordinator/asked.h"
#include "server/coordinator/base/job.h"
#include "server/coordinator/base/member.h"
#include "server/coordinator/base/seat.h"
#include "server/coordinator/base/session.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cuts.h"
#include "server/coordinator/cut/list.h"
#include "server/coordinator/handlers.h"
#include "server/coordinator/job/bytes.h"
#include "server/coordinator/job/drain.h"
#include "server/coordinator/job/drop.h"
#include "server/coordinator/member/unheard.h"
#include "server/coordinator/restore/adopt.h"
#include "server/coordinator/restore/restore.h"
#include "server/coordinator/round/groups.h"
#include "server/coordinator/seating.h"
#include "server/coordinator/snapshot/advise.h"
#include "server/coordinator/snapshot/find.h"
#include "server/coordinator/snapshot/keep.h"
#include "server/coordinator/store/backup.h"
#include "server/coordinator/store/events.h"
#include "server/coordinator/trust/keys.h"

/* ---- shards ---- */

static void on_shard_forget(struct cairn_cluster_session *session, uint32_t request,
                            const Cairn__ShardForget *forget)
{
    struct cairn_sentence why;
    const cairn_status status = cairn_cluster_seat_forget(session->cluster, forget->name, &why);
    if (status == CAIRN_OK)
        cairn_cluster_session_done(session, request);
    else
        cairn_cluster_session_error(session, request, status, why.text);
}

/* ---- jobs ---- */

#define FROZEN_SHOWN 16
#define LEASES_SHOWN 64

/* A status message with what it borrows. */
struct job_view {
    Cairn__JobStatus status;
    Cairn__JobSpec spec;
    struct cairn_sentence awaited, saving, gradient, moving, loss, path_cut;
    char layout_hash[2 * CAIRN_LAYOUT_HASH_BYTES + 1];
    Cairn__GroupSpec *groups; /* owned */
    Cairn__GroupSpec **list;  /* owned */
    char *frozen[FROZEN_SHOWN];
    Cairn__LeaseStatus leases[LEASES_SHOWN];
    Cairn__LeaseStatus *lease_list[LEASES_SHOWN];
    struct cairn_bytes_view bytes;
    struct cairn_memory_view memory;
    struct cairn_times_view times;
    struct cairn_groups_view reduce_groups;
    struct cairn_straggler_view straggler;
    char nonfinite[CAIRN_RESULTS_BYTES];
};

static void fill_rounds(struct job_view *view, const struct cairn_cluster_job *job)
{
    Cairn__JobStatus *s = &view->status;
    s->loss_scale = job->spec.loss_scale;
    if (job->core == NULL) return;
    struct cairn_payload head;
    const struct cairn_round_counts counts = cairn_round_counts_of(job->core);
    const struct cairn_decision *last = cairn_round_last(job->core);
    s->epoch = cairn_round_epoch(job->core);
    s->round = cairn_round_open_round(job->core);
    s->workers = cairn_round_worker_count(job->core);
    s->steps_applied = counts.applied;
    s->rounds_skipped = counts.skipped;
    s->skips = cairn_round_skips(job->core).all;
    s->skips_in_row = cairn_round_skips(job->core).in_row;
    s->rounds_abandoned = counts.abandoned;
    s->loss_scale = cairn_round_loss_scale(job->core);
    s->nonfinite = cairn_cluster_halts_nonfinite(job, view->nonfinite);
    s->nonfinite_tensors = view->nonfinite;
    if (last->payload_bytes > 0 &&
        cairn_payload_decode(last->payload, last->payload_bytes, &head) == CAIRN_OK) {
        s->last_grad_norm = head.grad_norm;
        if (!head.finite) {
            const struct cairn_results gradients = cairn_cluster_halts_gradients(job, last->round);
            cairn_results_gradient(&gradients, &job->spec, &view->gradient);
            s->gradient = view->gradient.text;
        }
        s->client_state_bytes = head.state_bytes;
    }
}

static void fill_shards(struct job_view *view, const struct cairn_cluster_job *job)
{
    Cairn__JobStatus *s = &view->status;
    const Cairn__BytesTold *all = cairn_cluster_bytes_of(job, &view->bytes);
    s->bytes = view->bytes.list;
    s->n_bytes = view->bytes.count;
    s->pushed_bytes = all->pushed_shared + all->pushed_carried + all->put;
    s->fetched_bytes = all->fetched_shared + all->fetched_carried;
    s->shards = job->seat_count;
    CAIRN_EACH_SHARD (job, i) s->shards_told += job->shards[i].seat->has_stats;
    cairn_cluster_memory_of(job, &view->memory);
    s->memory = view->memory.list;
    s->n_memory = view->memory.count;
    s->state_bytes = view->memory.sum;
}

static void list_frozen(struct job_view *view, const struct cairn_job_spec_data *spec)
{
    Cairn__JobStatus *s = &view->status;
    s->frozen_tensors = view->frozen;
    for (size_t i = 0; i < spec->tensor_count; i++) {
        if (!spec->tensors[i].frozen) continue;
        s->frozen_tensor_count++;
        if (s->n_frozen_tensors < FROZEN_SHOWN)
            view->frozen[s->n_frozen_tensors++] = spec->tensors[i].name;
    }
}

/* Shows the leases that are granted; others still wait. */
static void fill_leases(struct job_view *view, const struct cairn_cluster_job *job)
{
    Cairn__JobStatus *s = &view->status;
    const uint64_t now_ms = cairn_cluster_now_ms(job->cluster);
    s->leases = view->lease_list;
    for (const struct cairn_cluster_lease *l = job->leases.list; l != NULL; l = l->next) {
        if (l->ends_ms == 0 || s->n_leases == LEASES_SHOWN) continue;
        Cairn__LeaseStatus *out = &view->leases[s->n_leases];
        cairn__lease_status__init(out);
        out->generation = l->version.generation;
        out->step = l->version.step;
        out->holder = l->member->session->name;
        out->role = l->member->role;
        out->left_ms = l->ends_ms > now_ms ? l->ends_ms - now_ms : 0;
        view->lease_list[s->n_leases++] = out;
    }
}

static bool view_init(struct job_view *view, const struct cairn_cluster_job *job)
{
    const struct cairn_job_spec_data *spec = &job->spec;
    Cairn__JobStatus *s = &view->status;
    cairn__job_status__init(s);
    view->groups = calloc(spec->group_count + 1, sizeof *view->groups);
    view->list = calloc(spec->group_count + 1, sizeof *view->list);
    if (view->groups == NULL || view->list == NULL) return false;
    const struct cairn_version version = cairn_cluster_job_version(job);
    cairn_cluster_job_waiting(job, &view->awaited);
    for (int i = 0; i < CAIRN_LAYOUT_HASH_BYTES; i++) {
        snprintf(&view->layout_hash[2 * i], 3, "%02x", job->layout->hash[i]);
    }
    for (size_t i = 0; i < spec->group_count; i++) {
        cairn_group_to_message(&spec->groups[i], &view->groups[i]);
        view->groups[i].lr_now = job->core != NULL ? cairn_round_lr(job->core, (uint32_t)i)
                                                   : spec->groups[i].lr;
        view->list[i] = &view->groups[i];
    }
    for (size_t i = 0; i < spec->tensor_count; i++) {
        const bool is_blob = spec->tensors[i].kind == CAIRN_BLOB;
        *(is_blob ? &s->blob_bytes : &s->elems) += job->layout->geometry[i].elems;
        s->blobs += is_blob;
    }
    s->name = spec->name;
    s->state = (char *)(uintptr_t)cairn_cluster_job_state_name(job);
    s->generation = version.generation;
    s->step = version.step;
    s->version_unknown = job->version_unknown;
    s->awaited = view->awaited.text;
    if (job->state == CAIRN_CLUSTER_JOB_LOST) s->loss = (char *)(uintptr_t)job->loss.why.text;
    s->put_out = (char *)(uintptr_t)job->rounds.put_out.text;
    s->stepped = job->rounds.has_stepped;
    if (s->stepped) s->stepped_ms_ago = cairn_cluster_now_ms(job->cluster) - job->rounds.stepped_ms;
    s->still_ms = cairn_cluster_job_still_ms(job);
    s->snapshot_failed = (char *)(uintptr_t)job->snapshots.failed.text;
    s->passed_over = (char *)(uintptr_t)job->snapshots.passed_over.text;
    cairn_cluster_cut_show(job, &view->saving);
    s->saving = view->saving.text;
    cairn_cluster_reshard_show(job, &view->moving);
    s->moving = view->moving.text;
    cairn_cluster_unheard_of_job(job, &view->path_cut);
    s->path_cut = view->path_cut.text;
    s->restores = version.step > job->base_step ? 0 : job->loss.recovery.restores;
    s->workers_min = spec->workers_min;
    s->workers_max = spec->workers_max;
    s->tensors = spec->tensor_count;
    s->groups = view->list;
    s->n_groups = spec->group_count;
    s->layout_hash = view->layout_hash;
    s->heaviest_over_mean = job->planned.heaviest_over_mean;
    s->extents = job->layout != NULL ? job->layout->extent_count : 0;
    s->pieces = job->layout != NULL ? cairn_layout_pieces(job->layout) : 0;
    cairn_spec_to_message(spec, &view->spec);
    s->spec = &view->spec;
    list_frozen(view, spec);
    fill_rounds(view, job);
    fill_shards(view, job);
    fill_leases(view, job);
    cairn_cluster_groups_show(job, &view->reduce_groups, s);
    cairn_cluster_straggler_show(job, &view->straggler, s);
    return true;
}

static void view_release(struct job_view *view)
{
    free(view->groups);
    free(view->list);
    cairn_cluster_memory_release(&view->memory);
    cairn_cluster_times_release(&view->times);
}

#define BRIEF_CHARS 160

/* Keeps what a job is and whom it waits for; `job show` has the rest. So the list fits a frame
 * even with the most jobs that there may be. */
static void shorten(struct job_view *view)
{
    Cairn__JobStatus *s = &view->status;
    s->n_groups = s->n_memory = s->n_leases = s->n_frozen_tensors = 0;
    view->awaited = cairn_sentence_brief(view->awaited.text, BRIEF_CHARS);
    view->loss = cairn_sentence_brief(s->loss, BRIEF_CHARS);
    s->loss = view->loss.text;
    view->path_cut = cairn_sentence_brief(view->path_cut.text, BRIEF_CHARS);
    view->saving.text[0] = view->moving.text[0] = '\0';
    if (s->snapshot_failed[0] != '\0')
        s->snapshot_failed = (char *)(uintptr_t) "`cairn job show` has why";
    s->put_out = s->passed_over = s->nonfinite_tensors = s->gradient = (char *)(uintptr_t) "";
    s->straggler = NULL;
}

static void on_job_list(struct cairn_cluster_session *session, uint32_t request)
{
    size_t count = 0;
    for (struct cairn_cluster_job *j = session->cluster->jobs; j != NULL; j = j->next) count++;
    struct job_view *views = calloc(count + 1, sizeof *views);
    Cairn__JobStatus **list = calloc(count + 1, sizeof *list);
    bool whole = views != NULL && list != NULL;
    size_t n = 0;
    for (struct cairn_cluster_job *j = session->cluster->jobs; whole && j != NULL;
         j = j->next, n++) {
        whole = view_init(&views[n], j);
        if (!whole) break;
        views[n].status.n_bytes = 0; // `job show` has them
        views[n].status.n_reduce_groups = 0;
        list[n] = &views[n].status;
    }
    if (whole) {
        Cairn__JobList jobs = CAIRN__JOB_LIST__INIT;
        jobs.jobs = list;
        jobs.n_jobs = count;
        const bool is_large = cairn__job_list__get_packed_size(&jobs) >
                              CAIRN_FRAME_BYTES_MAX - CAIRN_FRAME_HEADER_BYTES;
        for (size_t i = 0; is_large && i < count; i++) shorten(&views[i]);
        cairn_cluster_session_send(session, CAIRN_MSG_JOB_LIST, request, &jobs.base);
    } else {
        cairn_cluster_session_error(session, request, CAIRN_ERR_NO_MEMORY, "no memory");
    }
    for (size_t i = 0; views != NULL && i < count; i++) view_release(&views[i]);
    free(views);
    free(list);
}

/* NULL: answered that there is none. */
static struct cairn_cluster_job *job_or_error(struct cairn_cluster_session *session,
                                              uint32_t request, const char *name)
{
    struct cairn_cluster_job *job = cairn_cluster_job_find(session->cluster, name);
    struct cairn_sentence why;
    if (job != NULL) return job;
    cairn_sentence_set(&why, "there is no job \"%s\"; `cairn job list` shows those there are",
                       name);
    cairn_cluster_session_error(session, request, CAIRN_ERR_NOT_FOUND, why.text);
    return NULL;
}

static void on_job_show(struct cairn_cluster_session *session, uint32_t request,
                        const Cairn__JobShow *show)
{
    struct cairn_cluster_job *job = job_or_error(session, request, show->name);
    struct job_view view = { .groups = NULL };
    if (job == NULL) return;
    if (view_init(&view, job) &&
        (!show->times || cairn_cluster_times_show(job, &view.times, &view.status))) {
        cairn_cluster_session_send(session, CAIRN_MSG_JOB_STATUS, request, &view.status.base);
    } else {
        cairn_cluster_session_error(session, request, CAIRN_ERR_NO_MEMORY, "no memory");
    }
    view_release(&view);
}

static void on_job_spec(struct cairn_cluster_session *session, uint32_t request, const char *name)
{
    const struct cairn_cluster_job *job = job_or_error(session, request, name);
    if (job == NULL) return;
    Cairn__JobSpecTold told = CAIRN__JOB_SPEC_TOLD__INIT;
    told.spec_bytes = job->planned.spec->size;
    told.workers_max = (uint32_t)session->cluster->options->workers_max;
    told.shards = job->seat_count;
    cairn_cluster_session_send(session, CAIRN_MSG_JOB_SPEC_TOLD, request, &told.base);
    cairn_cluster_session_pages(session, request, CAIRN_PAGE_SPEC, job->planned.spec);
}

static void begin_cut(struct cairn_cluster_session *session, uint32_t request, const char *name,
                      bool is_snapshot, bool wait)
{
    struct cairn_cluster_job *job = job_or_error(session, request, name);
    struct cairn_sentence why;
    if (job == NULL) return;
    const cairn_status status = cairn_cluster_cut_begin(job, is_snapshot, session, request, wait,
                                                        &why);
    if (status != CAIRN_OK) cairn_cluster_session_error(session, request, status, why.text);
}

static void cancel_cut(struct cairn_cluster_session *session, uint32_t request,
                       const Cairn__SnapshotCancel *cancel)
{
    struct cairn_cluster_job *job = job_or_error(session, request, cancel->job);
    struct cairn_sentence why;
    if (job == NULL) return;
    const cairn_status status = cairn_cluster_cut_cancel(job, cancel->id, session, request, &why);
    if (status != CAIRN_OK) cairn_cluster_session_error(session, request, status, why.text);
}

static void on_who_is_awaited(struct cairn_cluster_session *session, uint32_t request,
                              const Cairn__WhoIsAwaited *message)
{
    struct cairn_cluster_job *job = message->name[0] != '\0'
                                        ? cairn_cluster_job_find(session->cluster, message->name)
                                        : cairn_cluster_job_by_id(session->cluster, message->job);
    struct cairn_sentence text = { "" };
    Cairn__Awaited awaited = CAIRN__AWAITED__INIT;
    if (job != NULL && message->cut)
        awaited.away = cairn_cluster_cut_waiting(job, &text);
    else if (job != NULL)
        cairn_cluster_job_waiting(job, &text);
    awaited.text = text.text;
    cairn_cluster_session_send(session, CAIRN_MSG_AWAITED, request, &awaited.base);
}

/* These read nothing but names of their message. */
static bool handle_snapshot(struct cairn_cluster_session *session, const struct cairn_frame *frame,
                            const ProtobufCMessage *message)
{
    const uint32_t request = frame->request;
    switch (frame->type) {
    case CAIRN_MSG_SNAPSHOT_CREATE: {
        const Cairn__SnapshotCreate *create = (const Cairn__SnapshotCreate *)message;
        begin_cut(session, request, create->job, true, create->wait);
        return true;
    }
    case CAIRN_MSG_SNAPSHOT_CANCEL:
        cancel_cut(session, request, (const Cairn__SnapshotCancel *)message);
        return true;
    case CAIRN_MSG_SNAPSHOT_LIST_GET:
        cairn_cluster_snapshots_list(session, request,
                                     ((const Cairn__SnapshotListGet *)message)->job);
        return true;
    case CAIRN_MSG_SNAPSHOT_SHOW: {
        const Cairn__SnapshotShow *show = (const Cairn__SnapshotShow *)message;
        cairn_cluster_snapshots_show(session, request, show->job, show->id);
        return true;
    }
    case CAIRN_MSG_SNAPSHOT_REMOVE:
        cairn_cluster_snapshot_remove(session, request, (const Cairn__SnapshotRemove *)message);
        return true;
    case CAIRN_MSG_SNAPSHOT_PRUNE:
        cairn_cluster_snapshot_prune(session, request, (const Cairn__SnapshotPrune *)message);
        return true;
    case CAIRN_MSG_SNAPSHOT_ADVISE:
        cairn_cluster_snapshot_advise(session, request, (const Cairn__SnapshotAdvise *)message);
        return true;
    case CAIRN_MSG_SNAPSHOT_TAG:
        cairn_cluster_snapshot_tag(session, request, (const Cairn__SnapshotTag *)message);
        return true;
    case CAIRN_MSG_SNAPSHOT_RESTORE:
        cairn_cluster_restore_begin(session, request, (const Cairn__SnapshotRestore *)message);
        return true;
    default: return false;
    }
}

bool cairn_cluster_handle_admin(struct cairn_cluster_session *session,
                                const struct cairn_frame *frame, const ProtobufCMessage *message)
{
    const uint32_t request = frame->request;
    if (frame->type == CAIRN_MSG_HEARTBEAT) return true;
    if (request == 0) return false;
    cairn_cluster_asked_note(session, frame, message);
    switch (frame->type) {
    case CAIRN_MSG_CLUSTER_STATUS_GET: cairn_cluster_status_answer(session, request); return true;
    case CAIRN_MSG_CLUSTER_ADOPT:
        cairn_cluster_adopt(session, request, (const Cairn__ClusterAdopt *)message);
        return true;
    case CAIRN_MSG_CLUSTER_FORGET:
        cairn_cluster_forget(session, request, (const Cairn__ClusterForget *)message);
        return true;
    case CAIRN_MSG_CLUSTER_BACKUP:
        cairn_cluster_backup_begin(session, request, (const Cairn__ClusterBackup *)message);
        return true;
    case CAIRN_MSG_KEYS_GET: cairn_cluster_keys_answer(session, request); return true;
    case CAIRN_MSG_KEY_TRUST:
        cairn_cluster_key_trust(session, request, (const Cairn__KeyTrust *)message);
        return true;
    case CAIRN_MSG_SHARD_FORGET:
        on_shard_forget(session, request, (const Cairn__ShardForget *)message);
        return true;
    case CAIRN_MSG_EVENTS_GET:
        cairn_cluster_events_answer(session, request, (const Cairn__EventsGet *)message);
        return true;
    case CAIRN_MSG_RESHARD_ASK:
        cairn_cluster_reshard_ask(session, request, (const Cairn__ReshardAsk *)message);
        return true;
    case CAIRN_MSG_MEMBER_DRAIN:
        cairn_cluster_member_drain(session, request, (const Cairn__MemberDrain *)message);
        return true;
    case CAIRN_MSG_JOB_LIST_GET: on_job_list(session, request); return true;
    case CAIRN_MSG_JOB_SHOW:
        on_job_show(session, request, (const Cairn__JobShow *)message);
        return true;
    case CAIRN_MSG_JOB_SPEC_GET:
        on_job_spec(session, request, ((const Cairn__JobSpecGet *)message)->name);
        return true;
    case CAIRN_MSG_JOB_AMEND:
        cairn_cluster_job_amend_by_name(session, request, (const Cairn__JobAmend *)message);
        return true;
    case CAIRN_MSG_JOB_REMOVE:
        cairn_cluster_job_remove(session, request, (const Cairn__JobRemove *)message);
        return true;
    case CAIRN_MSG_JOB_PARK:
        cairn_cluster_job_park(session, request, (const Cairn__JobPark *)message);
        return true;
    case CAIRN_MSG_JOB_DIGEST_GET:
        begin_cut(session, request, ((const Cairn__JobDigestGet *)message)->name, false, true);
        return true;
    case CAIRN_MSG_WHO_IS_AWAITED:
        on_who_is_awaited(session, request, (const Cairn__WhoIsAwaited *)message);
        return true;
    default: return handle_snapshot(session, frame, message);
    }
}
