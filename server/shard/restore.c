/* Loads a snapshot: reads this shard's part of the snapshot into the state, and hashes the part at
 * the same time. Each thread reads, copies and hashes the ranges that it takes
 * (proto/snapshot_io/snapshot_io.h), while the bytes of a range are in the cache. */
#include <inttypes.h>
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/snapshot.h"
#include "proto/snapshot_io/snapshot_io.h"
#include "proto/spec/spec.h"
#include "server/shard/jobs.h"
#include "server/shard/shard.h"
#include "server/shard/state.h"

struct restore {
    struct loader loader;  /* first */
    struct report *report; /* owned until it is sent; NULL: nobody wants digests */
    struct results results;
    struct sweep_ranges ranges; /* owned; `place` is the number of an extent */
    pthread_mutex_t mutex;      /* guards the report */
    pthread_mutex_t device;     /* guards the list of works of the files thread on the device */
    struct works host[CAIRN_SWEEP_THREADS];
};

/* ---- what is read ---- */

/* Adds the leaves of an extent from element `from` up to the element where the other home begins,
 * or up to the end of the extent. Returns the element after them. Elements are counted in the
 * extent. */
static uint64_t add_home(struct restore *restore, struct sweep_range *range, uint64_t from,
                         size_t elem_bytes)
{
    const struct shard_job *job = restore->loader.job;
    const size_t number = (size_t)range->place;
    const struct local_extent *extent = &job->view->table.map.extents[number];
    const struct geometry *geometry = &job->view->layout->geometry[extent->tensor];
    const uint64_t to = from + planes_dense(&job->planes, number, extent->local_elem + from);
    const uint64_t end = to == extent->elem_count ? extent->first_leaf + extent->leaf_count
                                                  : leaf_of_elem(geometry, extent->first_elem + to);
    range->first_leaf = leaf_of_elem(geometry, extent->first_elem + from);
    range->leaf_count = end - range->first_leaf;
    restore->loader.status = sweep_ranges_add(&restore->ranges, geometry, elem_bytes, range,
                                              &restore->loader.why);
    return to;
}

/* True if one tensor can take over the elements of the other, because both have the same shape and
 * the same master dtype. */
static bool is_same_form(const struct tensor_spec *a, const struct tensor_spec *b)
{
    return a->shape.rank == b->shape.rank && a->master == b->master &&
           memcmp(a->shape.dim, b->shape.dim, a->shape.rank * sizeof *a->shape.dim) == 0;
}

/* Notes that the average of an extent comes with the snapshot. False: the snapshot is from before
 * the job had an average, which begins with the parameters when the job is sealed. */
static bool note_average(const struct shard_job *job, size_t number,
                         const struct job_spec_data *spec, size_t tensor)
{
    const struct local_extent *extent = &job->view->table.map.extents[number];
    if ((spec_planes(spec, tensor) & 1u << CAIRN_PLANE_EMA) == 0) return false;
    for (uint64_t c = 0; c < extent->chunk_count; c++)
        job->puts.have[extent->first_chunk + c] |= CAIRN_PUT_AVERAGED;
    return true;
}

/* Adds the ranges of all planes of state that an extent keeps. The extent's tensor is found by
 * name, because the snapshot may list the tensors in another order. */
static void add_extent(struct restore *restore, const struct snapshot *snapshot, size_t number)
{
    const struct shard_job *job = restore->loader.job;
    const struct local_extent *extent = &job->view->table.map.extents[number];
    const struct tensor_spec *wanted = &job->spec.tensors[extent->tensor];
    const struct job_spec_data *spec = &snapshot->manifest.spec;
    const size_t tensor = spec_find_tensor(spec, wanted->name);
    if (tensor == SIZE_MAX || !is_same_form(wanted, &spec->tensors[tensor])) {
        restore->loader.status = fail_with(
            &restore->loader.why, CAIRN_ERR_MISMATCH,
            "snapshot %s has no tensor %s of the job's shape and master dtype", job->load.path,
            wanted->name);
        return;
    }
    for (enum plane p = 0; p < CAIRN_PLANES; p++) {
        struct sweep_range range = { .tensor = (uint32_t)tensor,
                                     .plane = (uint32_t)p,
                                     .place = number };
        if (!form_stores(&job->view->forms[number], (int)p)) continue;
        if (p == CAIRN_PLANE_EMA && !note_average(job, number, spec, tensor)) continue;
        const size_t elem_bytes = dtype_size(
            (int)spec_plane_dtype(spec, range.tensor, range.plane));
        for (uint64_t at = 0; at < extent->elem_count && restore->loader.status == CAIRN_OK;)
            at = add_home(restore, &range, at, elem_bytes);
    }
}

/* ---- reading it, on several threads ---- */

static cairn_status hash_range(struct restore *restore, struct works *works,
                               const struct sweep_range *range, const void *at,
                               struct sentence *why)
{
    const struct shard_job *job = restore->loader.job;
    const size_t number = (size_t)range->place;
    const uint32_t tensor = job->view->table.map.extents[number].tensor;
    struct hash_tree tree;
    tree_init(&tree, range->first_leaf);
    CAIRN_TRY(report_leaves(works, at,
                            form_dtype(&job->view->forms[number], (enum plane)range->plane),
                            &job->view->layout->geometry[tensor], range->leaf_count, &tree, why));
    HOLD_LOCK(&restore->mutex);
    return report_add_tree(restore->report, tensor, (enum plane)range->plane, &tree, why);
}

static size_t bytes_of(const struct restore *restore, const struct sweep_range *range)
{
    const struct form *form = &restore->loader.job->view->forms[range->place];
    return (size_t)range->elem_count * dtype_size((int)form_dtype(form, (enum plane)range->plane));
}

static void *place_of(const struct restore *restore, const struct sweep_range *range)
{
    const struct shard_job *job = restore->loader.job;
    const struct local_extent *extent = &job->view->table.map.extents[range->place];
    return planes_at(&job->planes, (enum plane)range->plane, (size_t)range->place,
                     extent->local_elem + (range->first_elem - extent->first_elem));
}

static bool on_device(const struct restore *restore, const struct sweep_range *range)
{
    const struct shard_job *job = restore->loader.job;
    const struct local_extent *extent = &job->view->table.map.extents[range->place];
    return extent->local_elem + (range->first_elem - extent->first_elem) <
           planes_device_end(&job->planes);
}

/* Waits until the pages of the range are made, because pages of host memory are still being made
 * while the snapshot is read. Returns false if the pages will never be made because the job is
 * leaving. */
static bool await_pages(const struct restore *restore, const struct sweep_range *range)
{
    return on_device(restore, range) ||
           made_pages_await(&restore->loader.job->load.made, place_of(restore, range),
                            bytes_of(restore, range));
}

static cairn_status put_range(struct restore *restore, struct works *works,
                              const struct sweep_range *range, const void *elems,
                              struct sentence *why)
{
    const size_t bytes = bytes_of(restore, range);
    void *at = place_of(restore, range);
    if (!await_pages(restore, range))
        return fail_with(why, CAIRN_ERR_CANCELED, "the job was dropped");
    memcpy(works_put(works, at, bytes), elems, bytes);
    const cairn_status status = works_run(works, why);
    return status == CAIRN_OK ? hash_range(restore, works, range, at, why) : status;
}

/* Puts a range into the state, and hashes the range there. All threads share one list of works on a
 * device. */
static cairn_status take_range(void *context, uint32_t thread, const struct sweep_range *range,
                               const void *elems, struct sentence *why)
{
    struct restore *restore = context;
    if (!on_device(restore, range))
        return put_range(restore, &restore->host[thread], range, elems, why);
    HOLD_LOCK(&restore->device);
    return put_range(restore, compute_files(&restore->loader.job->shard->device), range, elems,
                     why);
}

static cairn_status read_hashed(struct restore *restore, const struct snapshot *snapshot)
{
    struct shard_job *job = restore->loader.job;
    const struct sweep sweep = { .snapshot = snapshot,
                                 .take = take_range,
                                 .context = restore,
                                 .canceled = &restore->loader.canceled };
    cairn_status status = CAIRN_OK;
    uint32_t opened = 0;
    while (opened < CAIRN_SWEEP_THREADS && status == CAIRN_OK)
        status = works_open(&restore->host[opened++], job->shard->host.home, 1, 1,
                            &restore->loader.why);
    if (status == CAIRN_OK) status = snapshot_sweep(&sweep, &restore->ranges, &restore->loader.why);
    while (opened > 0) works_close(&restore->host[--opened]);
    return status;
}

/* Reads the snapshot without hashing it, because nobody wants digests, and the checksums of the
 * blocks show whether the snapshot is intact. */
static cairn_status read_judged(struct restore *restore, struct snapshot *snapshot)
{
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < restore->ranges.count && status == CAIRN_OK; i++) {
        const struct sweep_range *range = &restore->ranges.list[i];
        struct shard_daemon *shard = restore->loader.job->shard;
        struct works *works = compute_files(on_device(restore, range) ? &shard->device
                                                                      : &shard->host);
        if (atomic_load(&restore->loader.canceled) || !await_pages(restore, range))
            return fail_with(&restore->loader.why, CAIRN_ERR_CANCELED, "the job was dropped");
        void *piece = works_put(works, place_of(restore, range), bytes_of(restore, range));
        status = snapshot_read(snapshot, range->tensor, range->plane, range->first_elem,
                               range->elem_count, piece, &restore->loader.why);
        const cairn_status run = works_run(works, &restore->loader.why);
        if (status == CAIRN_OK) status = run;
    }
    return status;
}

static void read_all(struct restore *restore, struct snapshot *snapshot)
{
    struct loader *loader = &restore->loader;
    for (size_t i = 0; i < loader->job->view->table.map.extent_count; i++)
        if (loader->status == CAIRN_OK) add_extent(restore, snapshot, i);
    if (loader->status != CAIRN_OK) return;
    loader->status = restore->report != NULL ? read_hashed(restore, snapshot)
                                             : read_judged(restore, snapshot);
}

/* Returns the non-finite values that the snapshot's manifest lists, which are still in the state.
 * Shard 0 reports them for all shards; other shards return none. */
static struct results results_of(const struct shard_job *job, const struct manifest *m)
{
    struct results results = { 0 };
    if (job->view->table.map.shard != 0) return results;
    for (uint32_t i = 0; i < m->nonfinite.tensor_count; i++) {
        const char *name = m->spec.tensors[m->nonfinite.tensors[i].tensor].name;
        results_add(&results, (uint32_t)spec_find_tensor(&job->spec, name),
                    m->nonfinite.tensors[i].elems);
    }
    results.nonfinite = m->nonfinite.nonfinite;
    return results;
}

/* A part that is made from its log begins with the snapshot on which the log stands, and no other. */
static cairn_status judge_base(const struct shard_job *job, const struct manifest *m,
                               struct sentence *why)
{
    const struct journal_resumed *from = job->journal.from;
    if (from == NULL) return CAIRN_OK;
    const cairn_status status = journal_base_judge(
        &from->base, (struct cairn_version) { m->generation, m->step }, m->content_root, why);
    // while a job goes back its shard serves, and the next start would bring nothing
    if (status != CAIRN_OK && from->back.to.generation == 0)
        sentence_add(why, ", and start this shard again");
    return status;
}

static void read_snapshot(void *loader)
{
    struct restore *restore = loader;
    struct snapshot snapshot;
    restore->loader.status = snapshot_open(restore->loader.job->load.path, &snapshot,
                                           &restore->loader.why);
    if (restore->loader.status != CAIRN_OK) return;
    restore->loader.status = judge_base(restore->loader.job, &snapshot.manifest,
                                        &restore->loader.why);
    if (restore->loader.status == CAIRN_OK) read_all(restore, &snapshot);
    restore->results = results_of(restore->loader.job, &snapshot.manifest);
    snapshot_close(&snapshot);
}

static void run_restore(struct task *task, uint32_t item, uint32_t thread)
{
    struct loader *loader = (struct loader *)task;
    struct confine confine;
    (void)item;
    (void)thread;
    confine_begin(&confine);
    confine_read(&confine, loader->job->load.path);
    loader_read(loader, &confine, read_snapshot);
}

static void restore_done(struct task *task)
{
    struct restore *restore = (struct restore *)task;
    struct shard_job *job = restore->loader.job;
    const cairn_status status = restore->loader.status;
    if (job->state == CAIRN_JOB_LOADING && status == CAIRN_OK) {
        log_info("job %s: loaded %s", job->spec.name, job->load.path);
        if (restore->report != NULL)
            report_send(restore->report, step_version(job->collector.step), CAIRN_OK, NULL);
        restore->report = NULL;
        job->pass.results = restore->results;
    } else if (job->state == CAIRN_JOB_LOADING) {
        log_error("job %s: cannot load %s: %s", job->spec.name, job->load.path,
                  restore->loader.why.text);
        if (status == CAIRN_ERR_NOT_FOUND || status == CAIRN_ERR_IO)
            storage_watch_doubt(&job->shard->storage);
    }
    loader_end(&restore->loader);
}

static void release(struct loader *loader)
{
    struct restore *restore = (struct restore *)loader;
    report_free(restore->report);
    sweep_ranges_release(&restore->ranges);
    pthread_mutex_destroy(&restore->mutex);
    pthread_mutex_destroy(&restore->device);
}

cairn_status restore_begin(struct shard_job *job, struct sentence *why)
{
    struct restore *restore = calloc(1, sizeof *restore);
    const uint64_t digest = job->load.digest;
    struct report *report = digest != 0 ? report_new(job, digest) : NULL;
    if (restore == NULL || (digest != 0 && report == NULL)) {
        free(restore);
        report_free(report);
        return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to load a snapshot");
    }
    restore->report = report;
    pthread_mutex_init(&restore->mutex, NULL);
    pthread_mutex_init(&restore->device, NULL);
    restore->loader.release = release;
    restore->loader.task =
        (struct task) { .run = run_restore, .done = restore_done, .item_count = 1 };
    loader_begin(&restore->loader, job);
    pool_submit(job->shard->files, &restore->loader.task);
    return CAIRN_OK;
}

/* ==== report ==== */

#define BATCH_BYTES \
    ((size_t)512 << 10) /* the size of a SnapshotPart, unless an entry or the payload is larger */

struct report_file {
    char path[CAIRN_SNAPSHOT_PATH_BYTES];
    uint64_t bytes;
    uint8_t *sums; /* owned: the checksums of the file's blocks */
    uint64_t block_count, blocks_told;
};

struct report_digest {
    uint32_t tensor, plane;
    struct tree_node node;
};

struct report {
    LIST_ENTRY(report) link; /* in the job's list, while the report is being sent */
    struct shard_job *job;   /* borrowed */
    uint64_t snapshot;
    struct cairn_version version;
    /* owned */
    struct report_file *files;
    struct report_digest *digests;
    uint8_t *payload; /* NULL after it was sent */
    size_t file_count, file_capacity, digest_count, digest_capacity, payload_bytes;
    size_t files_told, digests_told;
};

struct report *report_new(struct shard_job *job, uint64_t snapshot)
{
    struct report *report = calloc(1, sizeof *report);
    if (report == NULL) return NULL;
    report->job = job;
    report->snapshot = snapshot;
    return report;
}

void report_free(struct report *report)
{
    if (report == NULL) return;
    for (size_t i = 0; i < report->file_count; i++) free(report->files[i].sums);
    free(report->files);
    free(report->digests);
    free(report->payload);
    free(report);
}

/* ---- gathering ---- */

cairn_status report_add_tree(struct report *report, uint32_t tensor, enum plane plane,
                             const struct hash_tree *tree, struct sentence *why)
{
    if (report->digest_count + tree->node_count > report->digest_capacity) {
        const size_t capacity = 2 * report->digest_capacity + CAIRN_TREE_NODES_MAX + 2;
        struct report_digest *grown = realloc(report->digests, capacity * sizeof *grown);
        if (grown == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to hash");
        report->digests = grown;
        report->digest_capacity = capacity;
    }
    for (uint32_t i = 0; i < tree->node_count; i++) {
        report->digests[report->digest_count++] =
            (struct report_digest) { .tensor = tensor, .plane = plane, .node = tree->node[i] };
    }
    return CAIRN_OK;
}

cairn_status report_leaves(struct works *works, const void *plane, cairn_dtype dtype,
                           const struct geometry *geometry, uint64_t leaves, struct hash_tree *tree,
                           struct sentence *why)
{
    struct hash hashes[CAIRN_REPORT_LEAVES];
    assert(leaves <= CAIRN_REPORT_LEAVES);
    struct home_work *work = works_add(works, CAIRN_WORK_HASH);
    work->hash.plane = plane;
    work->hash.dtype = dtype;
    work->hash.geometry = geometry;
    work->hash.first_leaf = tree->next_leaf;
    work->hash.leaf_count = leaves;
    work->hash.hashes = hashes;
    const cairn_status status = works_run(works, why);
    for (uint64_t i = 0; status == CAIRN_OK && i < leaves; i++) tree_push_leaf(tree, &hashes[i]);
    return status;
}

cairn_status report_add_file(struct report *report, const char *path, uint64_t bytes, uint8_t *sums,
                             struct sentence *why)
{
    if (report->file_count == report->file_capacity) {
        const size_t capacity = 2 * report->file_capacity + 8;
        struct report_file *grown = realloc(report->files, capacity * sizeof *grown);
        if (grown == NULL) {
            free(sums);
            return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to write");
        }
        report->files = grown;
        report->file_capacity = capacity;
    }
    struct report_file *file = &report->files[report->file_count++];
    *file = (struct report_file) { .bytes = bytes,
                                   .sums = sums,
                                   .block_count = snapshot_block_count(bytes) };
    strncpy(file->path, path, sizeof file->path - 1);
    return CAIRN_OK;
}

const char *report_file_at(const struct report *report, size_t i)
{
    return i < report->file_count ? report->files[i].path : NULL;
}

cairn_status report_keep_payload(struct report *report, struct sentence *why)
{
    const struct decision *last = step_last(report->job->collector.step);
    report->payload = malloc(last->payload_bytes + 1);
    if (report->payload == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory");
    if (last->payload_bytes > 0) memcpy(report->payload, last->payload, last->payload_bytes);
    report->payload_bytes = last->payload_bytes;
    return CAIRN_OK;
}

/* ---- sending ---- */

/* Orders digests by tensor, plane and leaf. They were added in the order of the files. */
static int digest_order(const void *a, const void *b)
{
    const struct report_digest *x = a, *y = b;
    const uint64_t x_leaf = x->node.index << x->node.level, y_leaf = y->node.index << y->node.level;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    if (x->plane != y->plane) return x->plane < y->plane ? -1 : 1;
    return x_leaf < y_leaf ? -1 : x_leaf > y_leaf;
}

static Cairn__SnapshotPart message_of(const struct report *report)
{
    Cairn__SnapshotPart part = CAIRN__SNAPSHOT_PART__INIT;
    part.job = report->job->number;
    part.snapshot = report->snapshot;
    part.generation = report->version.generation;
    part.step = report->version.step;
    return part;
}

static void send_failure(const struct report *report, cairn_status status, const char *why)
{
    Cairn__SnapshotPart part = message_of(report);
    part.status = (int32_t)status;
    part.text = wire_text(why);
    session_send(report->job->shard, CAIRN_MSG_SNAPSHOT_PART, 0, &part.base);
}

struct batch {
    Cairn__SnapshotFile *files;
    Cairn__DigestNode *digests;
    void **list; /* pointers to the files, then to the digests */
    size_t bytes;
};

#define ENTRIES_MAX (BATCH_BYTES / 32) /* an entry takes at least so many bytes */

/* The most bytes of block sums of a file in one message. A file with very many blocks takes several
 * messages. */
#define SUMS_BYTES (BATCH_BYTES / 2)

static size_t fill_files(struct report *report, struct batch *batch)
{
    size_t count = 0;
    while (report->files_told < report->file_count && batch->bytes < BATCH_BYTES &&
           count < ENTRIES_MAX) {
        struct report_file *from = &report->files[report->files_told];
        const uint64_t most = SUMS_BYTES / CAIRN_SNAPSHOT_SUM_BYTES;
        const uint64_t left = from->block_count - from->blocks_told;
        const uint64_t blocks = left < most ? left : most;
        Cairn__SnapshotFile *file = &batch->files[count];
        cairn__snapshot_file__init(file);
        file->path = from->path;
        file->bytes = from->bytes;
        file->first_block = from->blocks_told;
        file->sums = (ProtobufCBinaryData) { (size_t)blocks * CAIRN_SNAPSHOT_SUM_BYTES,
                                             from->sums +
                                                 from->blocks_told * CAIRN_SNAPSHOT_SUM_BYTES };
        from->blocks_told += blocks;
        report->files_told += from->blocks_told == from->block_count;
        batch->bytes += cairn__snapshot_file__get_packed_size(file) + 4;
        batch->list[count++] = file;
    }
    return count;
}

static size_t fill_digests(struct report *report, struct batch *batch, size_t at)
{
    size_t count = 0;
    while (report->digests_told < report->digest_count && batch->bytes < BATCH_BYTES &&
           at + count < ENTRIES_MAX) {
        struct report_digest *from = &report->digests[report->digests_told++];
        Cairn__DigestNode *digest = &batch->digests[count];
        cairn__digest_node__init(digest);
        digest->tensor = from->tensor;
        digest->plane = from->plane;
        digest->level = from->node.level;
        digest->index = from->node.index;
        digest->hash = (ProtobufCBinaryData) { CAIRN_HASH_BYTES, from->node.hash.byte };
        batch->bytes += cairn__digest_node__get_packed_size(digest) + 4;
        batch->list[at + count++] = digest;
    }
    return count;
}

static bool is_told(const struct report *report)
{
    return report->files_told == report->file_count && report->digests_told == report->digest_count;
}

/* Sends one batch. The first batch also has the payload. Returns false if there is no memory for
 * the lists. */
static bool send_batch(struct report *report)
{
    struct batch batch = { .files = calloc(ENTRIES_MAX, sizeof *batch.files),
                           .digests = calloc(ENTRIES_MAX, sizeof *batch.digests),
                           .list = calloc(ENTRIES_MAX, sizeof *batch.list),
                           .bytes = report->payload_bytes };
    const bool have = batch.files != NULL && batch.digests != NULL && batch.list != NULL;
    if (have) {
        Cairn__SnapshotPart part = message_of(report);
        part.payload = (ProtobufCBinaryData) { report->payload_bytes, report->payload };
        part.n_files = fill_files(report, &batch);
        part.files = (Cairn__SnapshotFile **)batch.list;
        part.n_digests = fill_digests(report, &batch, part.n_files);
        part.digests = (Cairn__DigestNode **)(batch.list + part.n_files);
        part.more = !is_told(report);
        session_send(report->job->shard, CAIRN_MSG_SNAPSHOT_PART, 0, &part.base);
        free(report->payload);
        report->payload = NULL;
        report->payload_bytes = 0;
    }
    free(batch.files);
    free(batch.digests);
    free(batch.list);
    return have;
}

/* Sends one batch. Frees the report if this was the last batch, or if there was no memory. */
static void send_some(struct report *report)
{
    const bool sent = send_batch(report);
    if (!sent) send_failure(report, CAIRN_ERR_NO_MEMORY, "out of memory for the list of digests");
    if (sent && !is_told(report)) return;
    LIST_REMOVE(report, link);
    report_free(report);
}

void report_send(struct report *report, struct cairn_version version, cairn_status status,
                 const struct sentence *why)
{
    report->version = version;
    if (status != CAIRN_OK) {
        send_failure(report, status, why->text);
        report_free(report);
        return;
    }
    if (report->digest_count > 0)
        qsort(report->digests, report->digest_count, sizeof *report->digests, digest_order);
    LIST_INSERT_HEAD(&report->job->pins.reports, report, link);
    send_some(report);
}

/* Sends the next batch, because the coordinator has taken the batch before it. */
static void on_next(struct shard_job *job, const void *message)
{
    const uint64_t snapshot = ((const Cairn__SnapshotPartNext *)message)->snapshot;
    struct report *report;
    LIST_FOREACH (report, &job->pins.reports, link)
        if (report->snapshot == snapshot) break;
    if (report != NULL) send_some(report);
}

void reports_drop(struct shard_job *job)
{
    struct report *report;
    while ((report = LIST_FIRST(&job->pins.reports)) != NULL) {
        LIST_REMOVE(report, link);
        report_free(report);
    }
}

/* ==== extend ==== */

/* Makes a generation of a job from the generation that serves. Tensors that both generations have
 * are copied, new tensors are filled by their initializers, and moments that did not exist before
 * are 0. This is done by works on the planes, with one item for each chunk.
 *
 * The layout of a tensor that stays does not change (proto/plan/plan.h). So each extent is either
 * copied from one extent of the old generation, or belongs to a new tensor. The coordinator opens
 * no round meanwhile. If the version changes nevertheless, extend_done notices this. */

#define NEW UINT32_MAX
#define NOW UINT32_MAX

struct extend {
    struct loader loader;         /* first */
    struct shard_job *from;       /* borrowed; it is busy, and so not freed, during the extend */
    struct cairn_version version; /* the version of `from` */
    uint32_t former; /* the index of its former version that is made; NOW: the version of `from` */
    /* [job->view->table.map.extent_count] for each extent an extent of `from`, or NEW */
    uint32_t source[];
};

/* Finds the extent of `from` that has the elements of the job's extent i. */
static cairn_status find_source(struct extend *extend, size_t i, struct sentence *why)
{
    const struct shard_job *job = extend->loader.job, *from = extend->from;
    const struct local_extent *extent = &job->view->table.map.extents[i];
    const struct tensor_spec *tensor = &job->spec.tensors[extent->tensor];
    const size_t was = spec_find_tensor(&from->spec, tensor->name);
    extend->source[i] = NEW;
    if (was == SIZE_MAX && tensor->init.kind != CAIRN_INIT_NONE) return CAIRN_OK;
    if (was == SIZE_MAX)
        return fail_with(why, CAIRN_ERR_INVALID, "tensor %s is new and has no initializer",
                         tensor->name);
    const struct local_extent *old = shard_map_find(&from->view->table.map, (uint32_t)was,
                                                    extent->first_leaf);
    if (old == NULL || old->first_elem != extent->first_elem ||
        old->elem_count != extent->elem_count || !is_same_form(tensor, &from->spec.tensors[was]))
        return fail_with(why, CAIRN_ERR_INVALID, "tensor %s is not where it was: nothing is moved",
                         tensor->name);
    extend->source[i] = (uint32_t)(old - from->view->table.map.extents);
    return CAIRN_OK;
}

static bool at_version(const struct shard_job *from, const struct cairn_version *version)
{
    return from->state == CAIRN_JOB_SERVING && !from->pass.updating && !from->park.is_under_way &&
           version_compare(step_version(from->collector.step), *version) == 0;
}

static cairn_status judge_extend(struct extend *extend, struct sentence *why)
{
    const struct load *load = &extend->loader.job->load;
    const struct cairn_version next = step_version(extend->loader.job->collector.step);
    const struct cairn_version *now = &extend->version;
    extend->former = NOW;
    if (load->goes_back) CAIRN_TRY(former_find(extend->from, load->back_to, &extend->former, why));
    if (!at_version(extend->from, now) || (now->step != next.step && !load->goes_back) ||
        now->generation >= next.generation)
        return fail_with(why, CAIRN_ERR_NOT_READY,
                         "job %s is at version %" PRIu64 ".%" PRIu64
                         " here, or changing: not to be extended to %" PRIu64 ".%" PRIu64,
                         extend->loader.job->spec.name, now->generation, now->step, next.generation,
                         next.step);
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < extend->loader.job->view->table.map.extent_count && status == CAIRN_OK;
         i++)
        status = find_source(extend, i, why);
    return status;
}

/* ---- on the compute threads ---- */

static void copy_chunk(struct works *works, const struct extend *extend, uint32_t extent,
                       uint64_t local_elem, uint64_t elems)
{
    const struct shard_job *job = extend->loader.job, *from = extend->from;
    const uint32_t source = extend->source[extent];
    const uint64_t old_elem = from->view->table.map.extents[source].local_elem +
                              (local_elem - job->view->table.map.extents[extent].local_elem);
    planes_copy(works, &job->planes, extent, local_elem, &from->planes, source, old_elem, elems);
}

/* Copies a chunk out of a former version. False: the chunk is as it was. */
static bool copy_former(struct works *works, const struct extend *extend, uint32_t extent,
                        uint32_t chunk, const struct chunk_place *place)
{
    const struct shard_job *job = extend->loader.job, *from = extend->from;
    const struct local_extent *new = &job->view->table.map.extents[extent],
                              *old = &from->view->table.map.extents[extend->source[extent]];
    const uint64_t number = old->first_chunk + (chunk - new->first_chunk);
    const uint8_t *at = extend->former != NOW ? former_chunk(from, extend->former, number) : NULL;
    if (at == NULL) return false;
    for (int p = 0; p < CAIRN_PLANE_COUNT; p++) {
        if (!form_stores(&job->view->forms[extent], p)) continue;
        const size_t bytes = (size_t)form_bytes(&job->view->forms[extent], (enum plane)p,
                                                place->elem_count);
        works_copy(works, planes_at(&job->planes, (enum plane)p, extent, place->local_elem), at,
                   bytes);
        at += ALIGN_UP(bytes, CAIRN_FORMER_LINE);
    }
    return true;
}

static bool describe_chunk(struct work_run *run, uint32_t chunk, uint32_t stage,
                           struct works *works)
{
    const struct extend *extend = (struct extend *)loader_of(run);
    const struct shard_job *job = extend->loader.job;
    const uint32_t extent = job->view->table.extent_of[chunk];
    (void)stage;
    if (atomic_load(&extend->loader.canceled)) return false;
    const struct chunk_place place = shard_map_chunk(&job->view->table.map, chunk);
    if (extend->source[extent] == NEW)
        load_init_chunk(works, job, chunk);
    else if (!copy_former(works, extend, extent, chunk, &place))
        copy_chunk(works, extend, extent, place.local_elem, place.elem_count);
    if (extend->source[extent] != NEW &&
        form_keeps(&extend->from->view->forms[extend->source[extent]], CAIRN_PLANE_EMA))
        job->puts.have[chunk] |= CAIRN_PUT_AVERAGED; // else the average begins with the parameters
    return false;
}

/* ---- begin and end ---- */

static void extend_done(struct loader *loader)
{
    struct extend *extend = (struct extend *)loader;
    struct shard_job *from = extend->from;
    if (loader->status == CAIRN_OK && !at_version(from, &extend->version))
        extend->loader.status = fail_with(&extend->loader.why, CAIRN_ERR_NOT_READY,
                                          "job %s changed while it was extended", from->spec.name);
    if (loader->status == CAIRN_OK && extend->former != NOW)
        loader->job->pass.results = former_results(from, extend->former);
    loader_end(&extend->loader);
    shard_job_idle(from);
}

cairn_status extend_begin(struct shard_job *job, struct shard_job *from, struct sentence *why)
{
    if (from == NULL)
        return fail_with(why, CAIRN_ERR_NOT_FOUND, "shard %s holds no part of job %s to extend",
                         job->shard->name, job->spec.name);
    struct extend *extend = calloc(1, sizeof *extend + job->view->table.map.extent_count *
                                                           sizeof extend->source[0]);
    if (extend == NULL) return fail_with(why, CAIRN_ERR_NO_MEMORY, "out of memory to extend a job");
    extend->loader.job = job;
    extend->from = from;
    extend->version = step_version(from->collector.step);
    const cairn_status status = judge_extend(extend, why);
    if (status != CAIRN_OK) {
        free(extend);
        return status;
    }
    shard_job_busy(from);
    loader_begin(&extend->loader, job);
    loader_fill(&extend->loader, describe_chunk, extend_done);
    return CAIRN_OK;
}

/* ==== load ==== */

static void loader_free(struct loader *loader)
{
    if (loader->release != NULL) loader->release(loader);
    free(loader);
}

void loader_begin(struct loader *loader, struct shard_job *job)
{
    loader->job = job;
    job->load.at_work = loader;
    job->state = CAIRN_JOB_LOADING;
    shard_job_busy(job);
}

void loader_read(struct loader *loader, struct confine *confine, void (*read)(void *loader))
{
    struct sentence why;
    if (loader->job->shard->device.home != NULL) confine_use_devices(confine);
    const cairn_status status = confine_run(confine, read, loader, &why);
    if (status == CAIRN_OK) return;
    loader->status = status;
    loader->why = why;
}

struct loader *loader_of(struct work_run *run)
{
    return ((struct loader_part *)run)->loader;
}

static void part_done(struct work_run *run)
{
    struct loader *loader = loader_of(run);
    if (run->status != CAIRN_OK) {
        compute_why(run->compute, &loader->why);
        loader->status = run->status;
    }
    (void)shard_job_run_failed(loader->job, run);
    if (--loader->parts_left == 0) loader->filled(loader);
}

void loader_fill(struct loader *loader,
                 bool (*describe)(struct work_run *run, uint32_t chunk, uint32_t stage,
                                  struct works *works),
                 void (*done)(struct loader *loader))
{
    const struct shard_job *job = loader->job;
    const uint32_t cut = job->pass.host.first; // the chunks before `cut` lie on the device
    const struct work_run run = { .describe = describe, .done = part_done };
    loader->filled = done;
    loader->status = CAIRN_OK;
    loader->parts_left = cut > 0 ? 2 : 1;
    loader->device = (struct loader_part) { run, loader };
    loader->device.run.compute = &job->shard->device;
    loader->device.run.item_count = cut;
    loader->host = (struct loader_part) { run, loader };
    loader->host.run.compute = &job->shard->host;
    loader->host.run.item_count = (uint32_t)job->view->table.map.chunk_count - cut;
    loader->host.run.item_first = cut;
    if (cut > 0) compute_submit(&loader->device.run);
    compute_submit(&loader->host.run); // even if it has no items, so that its end is reported
}

void loader_end(struct loader *loader)
{
    struct shard_job *job = loader->job;
    const cairn_status status = loader->status;
    const struct sentence why = loader->why;
    const bool puts_follow = loader->puts_follow;
    job->load.at_work = NULL;
    loader_free(loader);
    if (job->state == CAIRN_JOB_LOADING) job->shard->up->loaded(job, status, &why, puts_follow);
    shard_job_idle(job);
}

static void cancel_load(struct shard_job *job)
{
    if (job->load.at_work != NULL) atomic_store(&job->load.at_work->canceled, true);
    made_pages_end(&job->load.made, false);
}

static void release_load(struct shard_job *job)
{
    reports_drop(job);
    if (job->load.at_work != NULL) loader_free(job->load.at_work);
    free(job->load.path);
    made_pages_close(&job->load.made);
}

const struct shard_module restore_module = {
    .messages = (const struct shard_message[]) { { CAIRN_MSG_SNAPSHOT_PART_NEXT,
                                                   .on_job = on_next },
                                                 { 0 } },
    .on = { [SHARD_JOB_CANCELS] = cancel_load,
            [SHARD_JOB_FREED] = release_load,
            [SHARD_SESSION_ENDED] = reports_drop },
};

void load_init_chunk(struct works *works, const struct shard_job *job, uint64_t chunk)
{
    const struct chunk_place place = shard_map_chunk(&job->view->table.map, chunk);
    const struct tensor_spec *tensor = &job->spec.tensors[place.tensor];
    float *param = planes_at(&job->planes, CAIRN_PLANE_PARAM, job->view->table.extent_of[chunk],
                             place.local_elem);
    struct home_work *work = works_add(works, CAIRN_WORK_INIT);
    work->init.out = param;
    work->init.source = init_source_of(&tensor->init, tensor->name);
    work->init.first_elem = place.first_elem;
    work->init.elems = (size_t)place.elem_count;
}
