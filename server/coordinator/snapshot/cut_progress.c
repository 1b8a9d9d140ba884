/* How far a cut is: what shards tell of it with their heartbeats. */
#include <inttypes.h>

#include "server/coordinator/base/job.h"
#include "server/coordinator/cluster.h"
#include "server/coordinator/snapshot/cut.h"

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
