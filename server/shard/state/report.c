#include "server/shard/state/report.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/snapshot/snapshot_file.h"

#define BATCH_BYTES \
    ((size_t)512 << 10) /* of a SnapshotPart, but for one entry or the payload alone */

struct report_file {
    char path[CAIRN_SNAPSHOT_PATH_BYTES];
    uint64_t bytes;
    uint8_t *sums; /* owned: of its blocks */
    uint64_t block_count, blocks_told;
};

struct report_digest {
    uint32_t tensor, plane;
    struct cairn_tree_node node;
};

struct cairn_report {
    struct cairn_report *next;   /* of the job's, while it is sent */
    struct cairn_shard_job *job; /* borrowed */
    uint64_t snapshot;
    struct cairn_version version;
    /* owned */
    struct report_file *files;
    struct report_digest *digests;
    uint8_t *payload; /* NULL once it is sent */
    size_t file_count, file_capacity, digest_count, digest_capacity, payload_bytes;
    size_t files_told, digests_told;
};

struct cairn_report *cairn_report_new(struct cairn_shard_job *job, uint64_t snapshot)
{
    struct cairn_report *report = calloc(1, sizeof *report);
    if (report == NULL) return NULL;
    report->job = job;
    report->snapshot = snapshot;
    return report;
}

void cairn_report_free(struct cairn_report *report)
{
    if (report == NULL) return;
    for (size_t i = 0; i < report->file_count; i++) free(report->files[i].sums);
    free(report->files);
    free(report->digests);
    free(report->payload);
    free(report);
}

/* ---- gathering ---- */

cairn_status cairn_report_add_tree(struct cairn_report *report, uint32_t tensor,
                                   enum cairn_plane plane, const struct cairn_tree *tree,
                                   struct cairn_sentence *why)
{
    if (report->digest_count + tree->node_count > report->digest_capacity) {
        const size_t capacity = 2 * report->digest_capacity + CAIRN_TREE_NODES_MAX + 2;
        struct report_digest *grown = realloc(report->digests, capacity * sizeof *grown);
        if (grown == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to hash");
        report->digests = grown;
        report->digest_capacity = capacity;
    }
    for (uint32_t i = 0; i < tree->node_count; i++) {
        report->digests[report->digest_count++] =
            (struct report_digest) { .tensor = tensor, .plane = plane, .node = tree->node[i] };
    }
    return CAIRN_OK;
}

cairn_status cairn_report_leaves(struct cairn_works *works, const void *plane, cairn_dtype dtype,
                                 const struct cairn_geometry *geometry, uint64_t leaves,
                                 struct cairn_tree *tree, struct cairn_sentence *why)
{
    struct cairn_hash hashes[CAIRN_REPORT_LEAVES];
    assert(leaves <= CAIRN_REPORT_LEAVES);
    struct cairn_work *work = cairn_works_add(works, CAIRN_WORK_HASH);
    work->hash.plane = plane;
    work->hash.dtype = dtype;
    work->hash.geometry = geometry;
    work->hash.first_leaf = tree->next_leaf;
    work->hash.leaf_count = leaves;
    work->hash.hashes = hashes;
    const cairn_status status = cairn_works_run(works, why);
    for (uint64_t i = 0; status == CAIRN_OK && i < leaves; i++)
        cairn_tree_push_leaf(tree, &hashes[i]);
    return status;
}

cairn_status cairn_report_add_file(struct cairn_report *report, const char *path, uint64_t bytes,
                                   uint8_t *sums, struct cairn_sentence *why)
{
    if (report->file_count == report->file_capacity) {
        const size_t capacity = 2 * report->file_capacity + 8;
        struct report_file *grown = realloc(report->files, capacity * sizeof *grown);
        if (grown == NULL) {
            free(sums);
            return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory to write");
        }
        report->files = grown;
        report->file_capacity = capacity;
    }
    struct report_file *file = &report->files[report->file_count++];
    *file = (struct report_file) { .bytes = bytes,
                                   .sums = sums,
                                   .block_count = cairn_snapshot_block_count(bytes) };
    strncpy(file->path, path, sizeof file->path - 1);
    return CAIRN_OK;
}

const char *cairn_report_file(const struct cairn_report *report, size_t i)
{
    return i < report->file_count ? report->files[i].path : NULL;
}

cairn_status cairn_report_keep_payload(struct cairn_report *report, struct cairn_sentence *why)
{
    const struct cairn_decision *last = cairn_step_last(report->job->collector.step);
    report->payload = malloc(last->payload_bytes + 1);
    if (report->payload == NULL) return cairn_fail(why, CAIRN_ERR_NO_MEMORY, "no memory");
    if (last->payload_bytes > 0) memcpy(report->payload, last->payload, last->payload_bytes);
    report->payload_bytes = last->payload_bytes;
    return CAIRN_OK;
}

/* ---- sending ---- */

/* Orders digests by tensor, plane and leaf, since files are written in another order. */
static int digest_order(const void *a, const void *b)
{
    const struct report_digest *x = a, *y = b;
    const uint64_t x_leaf = x->node.index << x->node.level, y_leaf = y->node.index << y->node.level;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    if (x->plane != y->plane) return x->plane < y->plane ? -1 : 1;
    return x_leaf < y_leaf ? -1 : x_leaf > y_leaf;
}

static Cairn__SnapshotPart message_of(const struct cairn_report *report)
{
    Cairn__SnapshotPart part = CAIRN__SNAPSHOT_PART__INIT;
    part.job = report->job->number;
    part.snapshot = report->snapshot;
    part.generation = report->version.generation;
    part.step = report->version.step;
    return part;
}

static void send_failure(const struct cairn_report *report, cairn_status status, const char *why)
{
    Cairn__SnapshotPart part = message_of(report);
    part.status = (int32_t)status;
    part.text = (char *)(uintptr_t)why;
    cairn_session_send(report->job->shard, CAIRN_MSG_SNAPSHOT_PART, 0, &part.base);
}

struct batch {
    Cairn__SnapshotFile *files;
    Cairn__DigestNode *digests;
    void **list; /* of the files, then of the digests */
    size_t bytes;
};

#define ENTRIES_MAX \
    (BATCH_BYTES / 32) /* no entry is shorter: each has a hash of 16 bytes and its frame */

/* The bytes of block sums that one message has of a file: a file of very many blocks takes several
 * messages. */
#define SUMS_BYTES (BATCH_BYTES / 2)

static size_t fill_files(struct cairn_report *report, struct batch *batch)
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

static size_t fill_digests(struct cairn_report *report, struct batch *batch, size_t at)
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

static bool is_told(const struct cairn_report *report)
{
    return report->files_told == report->file_count && report->digests_told == report->digest_count;
}

/* The payload goes with the first. False if there is no memory for the lists. */
static bool send_batch(struct cairn_report *report)
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
        cairn_session_send(report->job->shard, CAIRN_MSG_SNAPSHOT_PART, 0, &part.base);
        free(report->payload);
        report->payload = NULL;
        report->payload_bytes = 0;
    }
    free(batch.files);
    free(batch.digests);
    free(batch.list);
    return have;
}

/* Frees it unless more of it is to come. */
static void send_some(struct cairn_report *report)
{
    struct cairn_report **link = &report->job->pins.reports;
    const bool sent = send_batch(report);
    if (!sent) send_failure(report, CAIRN_ERR_NO_MEMORY, "no memory for the list of digests");
    if (sent && !is_told(report)) return;
    while (*link != report) link = &(*link)->next;
    *link = report->next;
    cairn_report_free(report);
}

void cairn_report_send(struct cairn_report *report, struct cairn_version version,
                       cairn_status status, const struct cairn_sentence *why)
{
    report->version = version;
    if (status != CAIRN_OK) {
        send_failure(report, status, why->text);
        cairn_report_free(report);
        return;
    }
    if (report->digest_count > 0)
        qsort(report->digests, report->digest_count, sizeof *report->digests, digest_order);
    report->next = report->job->pins.reports;
    report->job->pins.reports = report;
    send_some(report);
}

void cairn_report_next(struct cairn_shard_job *job, uint64_t snapshot)
{
    struct cairn_report *report = job->pins.reports;
    while (report != NULL && report->snapshot != snapshot) report = report->next;
    if (report != NULL) send_some(report);
}

void cairn_reports_drop(struct cairn_shard_job *job)
{
    while (job->pins.reports != NULL) {
        struct cairn_report *report = job->pins.reports;
        job->pins.reports = report->next;
        cairn_report_free(report);
    }
}
