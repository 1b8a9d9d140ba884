/* Snapshots and digests: a version is pinned, copied, and then hashed and written while training goes on.
 *
 *   Pin ─► waits for the UPDATE at hand ─► copy (compute pool; an UPDATE waits for it)
 *       ─► waits for PinFolder, unless it is a digest ─► hash, write (files thread) ─► SnapshotPart
 *
 * The copy is staging, counted by the budget: where it does not fit, the part fails and training
 * goes on. A failed part leaves no files. */
#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/wire/snapshot_io.h"
#include "server/shard/shard.h"

struct pin_file {
    char path[CAIRN_SNAPSHOT_PATH_BYTES];
    uint64_t bytes;
    uint8_t xxh3_128[16];
};

struct pin_digest {
    uint32_t tensor, plane;
    struct cairn_tree_node node;
};

struct cairn_pin {
    struct cairn_task task;      /* the copy, then the work on files */
    struct cairn_shard_job *job; /* borrowed */
    struct cairn_pin *next;
    uint64_t snapshot;
    bool waits;  /* for the UPDATE at hand */
    bool writes; /* files: where, PinFolder says */
    bool copied;
    atomic_bool canceled;
    struct cairn_version version;

    /* owned */
    char *path; /* NULL: a digest, or not told yet */
    struct cairn_arena
        staging; /* [planes][map.elem_count] words, as the state; what is not kept is never touched */
    uint64_t staging_budget;
    uint8_t *payload; /* of the last decision at that version */
    size_t payload_bytes;

    /* the result; owned */
    cairn_status status;
    struct cairn_sentence why;
    struct pin_file *files;
    size_t file_count;
    struct pin_digest *digests;
    size_t digest_count, digest_capacity;
};

static const enum cairn_plane planes_of_state[] = { CAIRN_PLANE_PARAM, CAIRN_PLANE_EXP_AVG,
                                                    CAIRN_PLANE_EXP_AVG_SQ };
#define STATE_PLANES (sizeof planes_of_state / sizeof *planes_of_state)

static bool keeps(const struct cairn_part *part, enum cairn_plane plane)
{
    return plane == CAIRN_PLANE_PARAM || (part->planes & 1u << plane) != 0;
}

static const struct cairn_arena *arena_of(const struct cairn_shard_job *job, enum cairn_plane plane)
{
    return plane == CAIRN_PLANE_PARAM     ? &job->param
           : plane == CAIRN_PLANE_EXP_AVG ? &job->exp_avg
                                          : &job->exp_avg_sq;
}

/* Where a local element of an extent's plane stands in staging. */
static uint8_t *staged(const struct cairn_pin *pin, enum cairn_plane plane, size_t extent,
                       uint64_t local_elem)
{
    size_t p = 0;
    while (planes_of_state[p] != plane) p++;
    return pin->staging.base + p * pin->job->map.elem_count * sizeof(float) +
           cairn_shard_job_plane_byte(pin->job, (uint32_t)extent, local_elem);
}

static cairn_dtype dtype_of(const struct cairn_part *part, enum cairn_plane plane)
{
    return plane == CAIRN_PLANE_PARAM ? part->master : CAIRN_F32;
}

/* ---- the end ---- */

static void pin_free(struct cairn_pin *pin)
{
    struct cairn_pin **link = &pin->job->pins;
    while (*link != pin) link = &(*link)->next;
    *link = pin->next;
    cairn_arena_close(&pin->staging);
    cairn_budget_give(&pin->job->shard->budget, pin->staging_budget);
    free(pin->path);
    free(pin->payload);
    free(pin->files);
    free(pin->digests);
    free(pin);
}

void cairn_pin_release(struct cairn_shard_job *job)
{
    while (job->pins != NULL) pin_free(job->pins);
}

static void send_part(struct cairn_shard *shard, const Cairn__SnapshotPart *part)
{
    Cairn__SnapshotPart failed = CAIRN__SNAPSHOT_PART__INIT;
    const size_t bytes = cairn__snapshot_part__get_packed_size(part);
    if (bytes <= CAIRN_FRAME_BYTES_MAX - CAIRN_FRAME_HEADER_BYTES) {
        cairn_session_send(shard, CAIRN_MSG_SNAPSHOT_PART, 0, &part->base);
        return;
    }
    struct cairn_sentence why;
    cairn_sentence_set(&why,
                       "%zu files and %zu digests take %zu bytes, a message at most %u: "
                       "use more shards",
                       part->n_files, part->n_digests, bytes, CAIRN_FRAME_BYTES_MAX);
    failed.job = part->job;
    failed.snapshot = part->snapshot;
    failed.status = CAIRN_ERR_UNSUPPORTED;
    failed.text = why.text;
    cairn_session_send(shard, CAIRN_MSG_SNAPSHOT_PART, 0, &failed.base);
}

/* A part with the lists of files and digests; false if there is no memory for the lists. */
static bool send_success(const struct cairn_pin *pin, Cairn__SnapshotPart *part)
{
    const size_t count = pin->file_count + pin->digest_count;
    Cairn__SnapshotFile *files = calloc(pin->file_count + 1, sizeof *files);
    Cairn__DigestNode *digests = calloc(pin->digest_count + 1, sizeof *digests);
    void **list = calloc(count + 1, sizeof *list);
    const bool have = files != NULL && digests != NULL && list != NULL;
    for (size_t i = 0; have && i < pin->file_count; i++) {
        cairn__snapshot_file__init(&files[i]);
        files[i].path = pin->files[i].path;
        files[i].bytes = pin->files[i].bytes;
        files[i].xxh3_128 = (ProtobufCBinaryData) { 16, pin->files[i].xxh3_128 };
        list[i] = &files[i];
    }
    for (size_t i = 0; have && i < pin->digest_count; i++) {
        struct pin_digest *digest = &pin->digests[i];
        cairn__digest_node__init(&digests[i]);
        digests[i].tensor = digest->tensor;
        digests[i].plane = digest->plane;
        digests[i].level = digest->node.level;
        digests[i].index = digest->node.index;
        digests[i].hash = (ProtobufCBinaryData) { CAIRN_HASH_BYTES, digest->node.hash.byte };
        list[pin->file_count + i] = &digests[i];
    }
    if (have) {
        part->n_files = pin->file_count;
        part->files = (Cairn__SnapshotFile **)list;
        part->n_digests = pin->digest_count;
        part->digests = (Cairn__DigestNode **)(list + pin->file_count);
        part->payload = (ProtobufCBinaryData) { pin->payload_bytes, pin->payload };
        send_part(pin->job->shard, part);
    }
    free(files);
    free(digests);
    free(list);
    return have;
}

static void report(struct cairn_pin *pin)
{
    struct cairn_shard_job *job = pin->job;
    Cairn__SnapshotPart part = CAIRN__SNAPSHOT_PART__INIT;
    part.job = job->number;
    part.snapshot = pin->snapshot;
    part.generation = pin->version.generation;
    part.step = pin->version.step;
    if (pin->status == CAIRN_OK) {
        if (send_success(pin, &part)) return;
        pin->status = cairn_fail(&pin->why, CAIRN_ERR_NO_MEMORY, "no memory for the list of files");
    }
    cairn_log_error("snapshot of job %s at step %llu failed here: %s", job->spec.name,
                    (unsigned long long)pin->version.step, pin->why.text);
    part.status = (int32_t)pin->status;
    part.text = pin->why.text;
    send_part(job->shard, &part);
}

/* ---- on the files thread ---- */

static cairn_status add_digests(struct cairn_pin *pin, uint32_t tensor, enum cairn_plane plane,
                                const struct cairn_tree *tree)
{
    if (pin->digest_count + tree->node_count > pin->digest_capacity) {
        const size_t capacity = 2 * pin->digest_capacity + CAIRN_TREE_NODES_MAX + 2;
        struct pin_digest *grown = realloc(pin->digests, capacity * sizeof *grown);
        if (grown == NULL) return cairn_fail(&pin->why, CAIRN_ERR_NO_MEMORY, "no memory to hash");
        pin->digests = grown;
        pin->digest_capacity = capacity;
    }
    for (uint32_t i = 0; i < tree->node_count; i++) {
        pin->digests[pin->digest_count++] =
            (struct pin_digest) { .tensor = tensor, .plane = plane, .node = tree->node[i] };
    }
    return CAIRN_OK;
}

/* One plane of one extent, in pieces so that a cancel is heard. */
static cairn_status hash_extent(struct cairn_pin *pin, size_t number, enum cairn_plane plane)
{
    const struct cairn_local_extent *extent = &pin->job->map.extents[number];
    const uint64_t leaves_a_piece = 1024;
    const struct cairn_geometry *geometry = &pin->job->layout->geometry[extent->tensor];
    struct cairn_tree tree;
    cairn_tree_init(&tree, extent->first_leaf);
    const uint64_t end = extent->first_leaf + extent->leaf_count;
    while (tree.next_leaf < end) {
        if (atomic_load(&pin->canceled))
            return cairn_fail(&pin->why, CAIRN_ERR_CANCELED, "it was given up");
        uint64_t leaves = end - tree.next_leaf;
        if (leaves > leaves_a_piece) leaves = leaves_a_piece;
        const uint64_t elem = cairn_leaf_first_elem(geometry, tree.next_leaf);
        pin->job->shard->backend->hash_leaves(
            staged(pin, plane, number, extent->local_elem + (elem - extent->first_elem)),
            dtype_of(&pin->job->parts[number], plane), geometry, leaves, &tree);
    }
    return add_digests(pin, extent->tensor, plane, &tree);
}

static cairn_status hash_all(struct cairn_pin *pin)
{
    const struct cairn_shard_job *job = pin->job;
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < job->map.extent_count; i++) {
        for (size_t p = 0; status == CAIRN_OK && p < STATE_PLANES; p++) {
            if (keeps(&job->parts[i], planes_of_state[p]))
                status = hash_extent(pin, i, planes_of_state[p]);
        }
    }
    return status;
}

/* cairn_snapshot_source_fn: a box of a file is a part of one extent. */
static cairn_status give_bytes(void *context, const struct cairn_safetensors_entry *entry,
                               uint64_t first_elem, uint64_t elem_count, const void **bytes_out,
                               struct cairn_sentence *why)
{
    const struct cairn_pin *pin = context;
    const struct cairn_geometry *geometry = &pin->job->layout->geometry[entry->tensor];
    if (atomic_load(&pin->canceled)) return cairn_fail(why, CAIRN_ERR_CANCELED, "it was given up");
    const struct cairn_local_extent *extent = cairn_shard_map_find(
        &pin->job->map, entry->tensor, cairn_leaf_of_elem(geometry, first_elem));
    assert(extent != NULL && first_elem >= extent->first_elem);
    const uint64_t at = first_elem - extent->first_elem;
    assert(elem_count <= extent->elem_count - at);
    *bytes_out = staged(pin, (enum cairn_plane)entry->plane,
                        (size_t)(extent - pin->job->map.extents), extent->local_elem + at);
    return CAIRN_OK;
}

static void remove_files(const struct cairn_pin *pin)
{
    for (size_t i = 0; i < pin->file_count; i++) {
        char path[4096];
        const int length = snprintf(path, sizeof path, "%s/%s", pin->path, pin->files[i].path);
        if (length > 0 && (size_t)length < sizeof path) unlink(path);
    }
}

static cairn_status write_planned(struct cairn_pin *pin, const struct cairn_snapshot_plan *plan)
{
    pin->files = calloc(plan->file_count + 1, sizeof *pin->files);
    if (pin->files == NULL) return cairn_fail(&pin->why, CAIRN_ERR_NO_MEMORY, "no memory to write");
    for (size_t i = 0; i < plan->file_count; i++) {
        struct pin_file *file = &pin->files[i];
        cairn_status status = cairn_snapshot_write_file(pin->path, &plan->files[i], give_bytes, pin,
                                                        file->xxh3_128, &pin->why);
        if (status != CAIRN_OK) {
            remove_files(pin);
            return status;
        }
        memcpy(file->path, plan->files[i].path, sizeof file->path);
        file->bytes = plan->files[i].file_bytes;
        pin->file_count++;
    }
    return CAIRN_OK;
}

static cairn_status write_all(struct cairn_pin *pin)
{
    const struct cairn_shard_map *map = &pin->job->map;
    struct cairn_snapshot_range *ranges = calloc(map->extent_count + 1, sizeof *ranges);
    struct cairn_snapshot_plan plan = { 0 };
    cairn_status status = CAIRN_ERR_NO_MEMORY;
    for (size_t i = 0; ranges != NULL && i < map->extent_count; i++) {
        const struct cairn_local_extent *extent = &map->extents[i];
        ranges[i] = (struct cairn_snapshot_range) { .tensor = extent->tensor,
                                                    .first_elem = extent->first_elem,
                                                    .elem_count = extent->elem_count };
    }
    if (ranges != NULL) {
        status = cairn_snapshot_plan_make(&pin->job->spec, map->shard, ranges, map->extent_count,
                                          &plan);
    }
    free(ranges);
    if (status != CAIRN_OK) return cairn_fail(&pin->why, status, "no memory to plan the files");
    status = write_planned(pin, &plan);
    cairn_snapshot_plan_release(&plan);
    return status;
}

static void run_files(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    struct cairn_pin *pin = (struct cairn_pin *)task;
    pin->status = hash_all(pin);
    if (pin->status == CAIRN_OK && pin->writes) pin->status = write_all(pin);
    cairn_arena_close(&pin->staging); // here, since it takes 0.2 s a GiB
}

static void files_done(struct cairn_task *task)
{
    struct cairn_pin *pin = (struct cairn_pin *)task;
    struct cairn_shard_job *job = pin->job;
    report(pin);
    pin_free(pin);
    cairn_shard_job_idle(job);
}

/* To the files thread, when both the copy and the folder are there, or nobody wants them any more. */
static void go_on(struct cairn_pin *pin)
{
    const bool told = !pin->writes || pin->path != NULL || atomic_load(&pin->canceled);
    if (!pin->copied || !told) return;
    pin->task = (struct cairn_task) { .run = run_files, .done = files_done, .item_count = 1 };
    cairn_pool_submit(pin->job->shard->files, &pin->task);
    pin->copied = false; // once
}

void cairn_pin_folder(struct cairn_shard_job *job, const Cairn__PinFolder *message)
{
    struct cairn_pin *pin = job->pins;
    while (pin != NULL && pin->snapshot != message->snapshot) pin = pin->next;
    if (pin == NULL || !pin->writes || pin->path != NULL) return;
    if (message->path[0] != '\0') pin->path = strdup(message->path);
    if (pin->path == NULL) atomic_store(&pin->canceled, true);
    go_on(pin);
}

void cairn_pin_session_ended(struct cairn_shard_job *job)
{
    for (struct cairn_pin *pin = job->pins; pin != NULL; pin = pin->next) {
        if (!pin->writes || pin->path != NULL) continue;
        atomic_store(&pin->canceled, true);
        go_on(pin);
    }
}

void cairn_pin_cancel(struct cairn_shard_job *job)
{
    for (struct cairn_pin *pin = job->pins; pin != NULL; pin = pin->next) {
        atomic_store(&pin->canceled, true);
        go_on(pin);
    }
}

/* ---- the copy ---- */

static void run_copy(struct cairn_task *task, uint32_t item, uint32_t thread)
{
    (void)thread;
    const struct cairn_pin *pin = (const struct cairn_pin *)task;
    const struct cairn_shard_job *job = pin->job;
    const struct cairn_chunk_place place = cairn_shard_map_chunk(&job->map, item);
    const uint32_t number = job->chunk_part[item];
    const struct cairn_part *part = &job->parts[number];
    for (size_t p = 0; p < STATE_PLANES; p++) {
        const enum cairn_plane plane = planes_of_state[p];
        if (!keeps(part, plane)) continue;
        memcpy(staged(pin, plane, number, place.local_elem),
               arena_of(job, plane)->base +
                   cairn_shard_job_plane_byte(job, number, place.local_elem),
               (size_t)place.elem_count * cairn_dtype_bytes((int)dtype_of(part, plane)));
    }
}

static void copy_done(struct cairn_task *task)
{
    struct cairn_pin *pin = (struct cairn_pin *)task;
    struct cairn_shard_job *job = pin->job;
    job->copies--;
    pin->copied = true;
    go_on(pin);
    if (job->state == CAIRN_JOB_SERVING) cairn_round_copies_ended(job);
}

static cairn_status take_staging(struct cairn_pin *pin)
{
    const struct cairn_shard_job *job = pin->job;
    uint64_t bytes = 0;
    for (size_t p = 0; p < STATE_PLANES; p++) bytes += job->plane_bytes[planes_of_state[p]];
    cairn_status status = cairn_budget_take(&job->shard->budget, bytes, "the staging of a snapshot",
                                            &pin->why);
    if (status != CAIRN_OK) return status;
    pin->staging_budget = bytes;
    return cairn_arena_open_scratch("staging", STATE_PLANES * job->map.elem_count * sizeof(float),
                                    &pin->staging, &pin->why);
}

static cairn_status keep_payload(struct cairn_pin *pin)
{
    const struct cairn_decision *last = cairn_step_last(pin->job->step);
    pin->payload = malloc(last->payload_bytes + 1);
    if (pin->payload == NULL) return cairn_fail(&pin->why, CAIRN_ERR_NO_MEMORY, "no memory");
    if (last->payload_bytes > 0) memcpy(pin->payload, last->payload, last->payload_bytes);
    pin->payload_bytes = last->payload_bytes;
    return CAIRN_OK;
}

/* No UPDATE is under way: the state is of one version. */
static void begin_copy(struct cairn_pin *pin)
{
    struct cairn_shard_job *job = pin->job;
    pin->waits = false;
    pin->version = job->published[job->newest].version;
    pin->status = take_staging(pin);
    if (pin->status == CAIRN_OK) pin->status = keep_payload(pin);
    if (pin->status != CAIRN_OK) {
        report(pin);
        pin_free(pin);
        return;
    }
    job->copies++;
    cairn_shard_job_busy(job);
    pin->task = (struct cairn_task) { .run = run_copy,
                                      .done = copy_done,
                                      .item_count = (uint32_t)job->map.chunk_count };
    cairn_pool_submit(job->shard->compute, &pin->task);
}

void cairn_pin_updated(struct cairn_shard_job *job)
{
    struct cairn_pin *next;
    for (struct cairn_pin *pin = job->pins; pin != NULL; pin = next) {
        next = pin->next;
        if (pin->waits && job->state == CAIRN_JOB_SERVING) begin_copy(pin);
    }
}

static void refuse(struct cairn_shard_job *job, const Cairn__Pin *message, cairn_status status,
                   const char *text)
{
    Cairn__SnapshotPart part = CAIRN__SNAPSHOT_PART__INIT;
    part.job = job->number;
    part.snapshot = message->snapshot;
    part.status = (int32_t)status;
    part.text = (char *)text;
    cairn_session_send(job->shard, CAIRN_MSG_SNAPSHOT_PART, 0, &part.base);
}

void cairn_pin_begin(struct cairn_shard_job *job, const Cairn__Pin *message)
{
    size_t count = 0;
    for (struct cairn_pin *other = job->pins; other != NULL; other = other->next) count++;
    if (job->state != CAIRN_JOB_SERVING) {
        refuse(job, message, CAIRN_ERR_NOT_READY, "the job has no version yet");
        return;
    }
    if (count >= CAIRN_SHARD_PINS_MAX) {
        refuse(job, message, CAIRN_ERR_BUSY,
               "as many snapshots are being written as a shard takes");
        return;
    }
    struct cairn_pin *pin = calloc(1, sizeof *pin);
    if (pin == NULL) {
        refuse(job, message, CAIRN_ERR_NO_MEMORY, "no memory for a snapshot");
        return;
    }
    pin->job = job;
    pin->snapshot = message->snapshot;
    pin->writes = message->files;
    pin->staging = CAIRN_ARENA_NONE;
    pin->next = job->pins;
    job->pins = pin;
    // Decided already: the version is the one after it, even where its UPDATE waits for a copy.
    if (job->updating)
        pin->waits = true;
    else
        begin_copy(pin);
}
