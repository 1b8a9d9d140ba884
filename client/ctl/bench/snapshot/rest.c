/* A job at rest: a snapshot of it, against a file of as many bytes and torch.save; and its restore, onto the
 * same shards and onto one more, with nothing of it in the page cache. */
#include "client/ctl/bench/snapshot/snapshot.h"
#include "client/ctl/bench/snapshot/torch.h"

/* ---- writing ---- */

static double write_once(void *context)
{
    struct snapshot_bench *b = context;
    if (!cairn_bench_save_remove(&b->saver)) return 0;
    const double seconds = cairn_bench_save(&b->saver);
    return seconds > 0 ? (double)b->saver.bytes * 1e-9 / seconds : 0;
}

double snapshot_write_raw(void *context)
{
    struct snapshot_bench *b = context;
    return cairn_bench_disk_write(&b->disk, snapshot_bytes(b));
}

/* The job's first version, and nobody who trains it. */
static bool make_job(struct snapshot_bench *b)
{
    const bool is_made = snapshot_crew_start(b);
    cairn_bench_crew_stop(&b->crew);
    return is_made;
}

static int add_torch(struct snapshot_bench *b)
{
    struct cairn_bench_torch torch;
    if (!cairn_bench_torch_measure(b->local, snapshot_elems(b), b->workers, &torch)) return 1;
    if (torch.save_s > 0) {
        const double speed = (double)snapshot_bytes(b) * 1e-9 / torch.save_s;
        snapshot_set(b, "torch_save_GB/s", speed);
        snapshot_set(b, "write_over_torch_save", b->result->value.median / speed);
    }
    if (torch.async_s > 0)
        snapshot_set(b, "dcp_async_save_GB/s", (double)snapshot_bytes(b) * 1e-9 / torch.async_s);
    return -1;
}

bool snapshot_make(struct snapshot_bench *b)
{
    return b->saver.id[0] != '\0' || (make_job(b) && cairn_bench_save(&b->saver) > 0);
}

int snapshot_write(struct snapshot_bench *b)
{
    if (!make_job(b)) return 1;
    const int done = cairn_bench_alternate(b->result, 0.001, write_once, snapshot_write_raw, b);
    return done < 0 ? add_torch(b) : done;
}

/* ---- reading ---- */

/* The job is as it is: one that lives is given up only for files that were proven before. */
static double read_over_job(struct snapshot_bench *b)
{
    cairn_bench_save_make_cold(&b->saver);
    b->saver.restores = true;
    const double seconds = cairn_bench_save(&b->saver);
    b->saver.restores = false;
    return seconds > 0 ? (double)b->saver.bytes * 1e-9 / seconds : 0;
}

/* There is no such job. */
static double read_once(void *context)
{
    struct snapshot_bench *b = context;
    return cairn_bench_save_drop_job(&b->saver) ? read_over_job(b) : 0;
}

static double read_raw(void *context)
{
    struct snapshot_bench *b = context;
    return cairn_bench_disk_read(&b->disk, snapshot_bytes(b));
}

/* In place of the job, once; and onto a shard more than it was written by. */
static int read_otherwise(struct snapshot_bench *b)
{
    double values[SNAPSHOT_RUNS];
    const double replacing = read_over_job(b);
    if (!(replacing > 0)) return 1;
    snapshot_set(b, "read_replacing_a_job_GB/s", replacing);
    const int done = cairn_local_shard_add(b->local);
    if (done >= 0) return done;
    for (int i = 0; i < SNAPSHOT_RUNS; i++)
        if (!((values[i] = read_once(b)) > 0)) return 1;
    const double speed = cairn_bench_spread_of(values, SNAPSHOT_RUNS).median;
    snapshot_set(b, "read_by_one_shard_more_GB/s", speed);
    snapshot_set(b, "read_by_one_shard_more_ratio", speed / b->result->reference.median);
    return -1;
}

int snapshot_read(struct snapshot_bench *b)
{
    if (!snapshot_make(b)) return 1;
    const int done = cairn_bench_alternate(b->result, 0.001, read_once, read_raw, b);
    return done < 0 ? read_otherwise(b) : done;
}
