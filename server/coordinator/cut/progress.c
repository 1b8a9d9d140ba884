/* How far a cut is: what shards tell of it with their heartbeats. */
#include <inttypes.h>

#include "server/coordinator/base/job.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/cut/cut.h"

static void take(struct cairn_cluster_job *job, const struct cairn_cluster_seat *seat,
                 const Cairn__PinTold *told)
{
    struct cairn_cluster_cut *cut = job->snapshots.cut;
    if (cut == NULL || cut->number != told->snapshot) return;
    CAIRN_EACH_SHARD (job, i) {
        if (job->shards[i].seat != seat) continue;
        // A shard that says more than can be is shown as one that is done.
        const uint64_t total = told->total_bytes < UINT64_MAX / 65536 ? told->total_bytes : 0;
        cut->progress[i] = (struct cairn_cut_progress) {
            .done_bytes = told->done_bytes < total ? told->done_bytes : total,
            .total_bytes = total,
            .waited_ms = told->waited_ms,
        };
    }
}

void cairn_cluster_cut_on_progress(struct cairn_cluster *cluster,
                                   const struct cairn_cluster_seat *seat,
                                   const Cairn__Heartbeat *message)
{
    for (size_t i = 0; i < message->n_pins; i++) {
        struct cairn_cluster_job *job = cairn_cluster_job_by_id(cluster, message->pins[i]->job);
        if (job != NULL) take(job, seat, message->pins[i]);
    }
}

bool cairn_cluster_cut_progress(const struct cairn_cluster_job *job, struct cairn_cut_progress *out)
{
    const struct cairn_cluster_cut *cut = job->snapshots.cut;
    *out = (struct cairn_cut_progress) { 0 };
    if (cut == NULL) return false;
    CAIRN_EACH_SHARD (job, i) {
        const struct cairn_cut_progress *of = &cut->progress[i];
        // Its part is in: it told last a little before that.
        out->done_bytes += cut->parts[i] == CAIRN_PART_IN ? of->total_bytes : of->done_bytes;
        out->total_bytes += of->total_bytes;
        if (of->waited_ms > out->waited_ms) out->waited_ms = of->waited_ms;
    }
    if (out->total_bytes == 0) return false;
    const uint64_t ms = uv_now(job->cluster->loop) - cut->begun_ms;
    out->bytes_per_s = (uint64_t)((double)out->done_bytes * 1000 / (double)(ms > 0 ? ms : 1));
    if (out->bytes_per_s > 0)
        out->left_s = (out->total_bytes - out->done_bytes + out->bytes_per_s - 1) /
                      out->bytes_per_s;
    return true;
}

void cairn_cluster_cut_add_progress(const struct cairn_cluster_job *job, struct cairn_sentence *out)
{
    struct cairn_cut_progress progress;
    if (!cairn_cluster_cut_progress(job, &progress)) return;
    cairn_sentence_add(out, "; %.1f of %.1f MB, %.1f MB/s", (double)progress.done_bytes / 1e6,
                       (double)progress.total_bytes / 1e6, (double)progress.bytes_per_s / 1e6);
    if (progress.bytes_per_s > 0) cairn_sentence_add(out, ", %" PRIu64 " s left", progress.left_s);
    if (progress.waited_ms > 0)
        cairn_sentence_add(out, ", updates waited %" PRIu64 " ms for its staging",
                           progress.waited_ms);
}

void cairn_cluster_cut_to_view(const struct cairn_cluster_cut *cut, const char *state,
                               struct cairn_snapshot_view *view)
{
    Cairn__SnapshotStatus *out = &view->status;
    cairn__snapshot_status__init(out);
    out->job = cut->job->spec.name;
    out->state = (char *)(uintptr_t)state;
    out->shards = cut->job->seat_count;
    out->periodic = cut->cause == CAIRN_CUT_PERIODIC;
    if (cut->stage == CAIRN_CUT_PINNING) return; // neither version nor manifest
    out->generation = cut->version.generation;
    out->step = cut->version.step;
    out->created_unix_ms = cut->manifest.created_unix_s * 1000;
    if (cut->status == CAIRN_OK) cairn_cluster_snapshot_nonfinite(&cut->manifest, view);
    if (cairn_cluster_cut_id(cut)[0] == '\0') return; // another thread makes the folder
    out->id = (char *)(uintptr_t)cut->id;
    out->path = cut->folder;
}

bool cairn_cluster_cut_running(const struct cairn_cluster_job *job,
                               struct cairn_snapshot_view *view)
{
    const struct cairn_cluster_cut *cut = job->snapshots.cut;
    struct cairn_cut_progress progress;
    if (cut == NULL || !cut->is_snapshot) return false;
    cairn_cluster_cut_to_view(cut, "running", view);
    if (!cairn_cluster_cut_progress(job, &progress)) return true;
    view->status.done_bytes = progress.done_bytes;
    view->status.total_bytes = progress.total_bytes;
    view->status.bytes_per_s = progress.bytes_per_s;
    view->status.left_s = progress.left_s;
    return true;
}
