/* Pushing, and the tiles that a worker declares. */
#include "client/job.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/base.h"
#include "client/device.h"
#include "client/op.h"
#include "client/push.h"
#include "proto/spec/spec.h"

/* ==== batch ==== */

/* global_batch: the micro-batches of a step have numbers that do not depend on the workers present,
 * and the caller uses these numbers. Internally, and on the wire, a micro-batch is identified by
 * its index among this worker's own micro-batches. */

static cairn_status refuse_surplus(const struct job *job)
{
    const struct spec_batch *batch = &job->filling.batch;
    return client_fail(CAIRN_ERR_INVALID,
                       "this worker is surplus: job %s has global_batch = %u, and others of "
                       "lower rank have all of its micro-batches; commit, which waits for "
                       "the round's end, and begin the next one",
                       job->name, batch->total);
}

/* Lists the first numbers: "1, 4, 7", with ", ..." if there are more. */
static void list_own(const struct spec_batch *batch, struct sentence *out)
{
    const uint32_t count = batch_count(batch), shown = count < 4 ? count : 4;
    sentence_set(out, "%s", "");
    for (uint32_t i = 0; i < shown; i++)
        sentence_add(out, "%s%u", i > 0 ? ", " : "", batch_number(batch, i));
    if (shown < count) sentence_add(out, ", ...");
}

static cairn_status refuse_number(const struct job *job, uint32_t micro)
{
    struct sentence own;
    const struct spec_batch *batch = &job->filling.batch;
    list_own(batch, &own);
    return client_fail(CAIRN_ERR_INVALID,
                       "micro-batch %u of %u is not this worker's in this round: rank %u of "
                       "%u has %s",
                       micro, batch->total, batch->rank, batch->world, own.text);
}

bool batch_is_surplus(const struct job *job)
{
    return job->filling.batch.total > 0 && batch_count(&job->filling.batch) == 0;
}

cairn_status api_batch_place(struct job *job, const struct cairn_round *round, uint32_t *micro)
{
    if (job->spec.global_batch == 0) return CAIRN_OK;
    HOLD_LOCK(&job->session->lock);
    cairn_status status = api_judge_round(job, round);
    if (status == CAIRN_OK && batch_is_surplus(job))
        status = refuse_surplus(job);
    else if (status == CAIRN_OK && !batch_place(&job->filling.batch, *micro, micro))
        status = refuse_number(job, *micro);
    return status;
}

uint64_t cairn_micro_seed(const struct cairn_round *round, uint32_t micro)
{
    const size_t least = offsetof(struct cairn_round, global_batch) + sizeof round->global_batch;
    if (!struct_fits(round, least)) return 0;
    const uint64_t number = round->global_batch > 0 ? micro
                                                    : (uint64_t)micro * round->world + round->rank;
    return batch_seed(round->seed, round->index, number);
}

/* ==== push ==== */

/* Pushes: checks of the round and micro-batch, and the path that a gradient takes. */

cairn_status api_judge_begun(const struct job *job, const struct cairn_round *round)
{
    if (!struct_fits(round, CAIRN_API_ROUND_LEAST))
        return client_fail(CAIRN_ERR_INVALID, "round must be given, with its struct_size");
    if (round->round == 0)
        return client_fail(CAIRN_ERR_INVALID,
                           "no round is begun; call cairn_round_begin, and give what it filled in");
    if (round->job == job->member.number) return CAIRN_OK;
    return client_fail(CAIRN_ERR_STALE,
                       "round %" PRIu64 " was not begun on this handle of job %s; give what "
                       "cairn_round_begin filled in for it",
                       round->round, job->name);
}

cairn_status api_judge_round(const struct job *job, const struct cairn_round *round)
{
    CAIRN_TRY(api_judge_begun(job, round));
    const uint64_t number = round->round, step = round->step;
    if (number == job->filling.refused_round)
        return client_fail(job->filling.refused_status, "%s", job->filling.refused_why.text);
    if (number == job->filling.void_round && job->filling.void_why.text[0] != '\0')
        return client_fail(CAIRN_ERR_EPOCH_CHANGED,
                           "%s (step %" PRIu64 " was abandoned: begin the next round)",
                           job->filling.void_why.text, step);
    if (number <= job->filling.void_round)
        return client_fail(CAIRN_ERR_EPOCH_CHANGED,
                           "round %" PRIu64 " of step %" PRIu64
                           " was abandoned; begin the next one and compute again",
                           number, step);
    if (number != job->filling.round)
        return client_fail(CAIRN_ERR_STALE,
                           "round %" PRIu64 " is not the one that this worker has open; call "
                           "cairn_round_begin and give what it filled in",
                           number);
    if (job->filling.committed)
        return client_fail(
            CAIRN_ERR_STALE,
            "round %" PRIu64 " is committed; call cairn_round_begin for the next one", number);
    return CAIRN_OK;
}

/* Checks that `micro` is the micro-batch that is being filled. Under the lock. */
static cairn_status judge_micro(const struct job *job, uint32_t micro)
{
    if (job->filling.end_unsent)
        return client_fail(CAIRN_ERR_INVALID,
                           "the end of micro-batch %u could not be sent for lack of memory; repeat "
                           "the call that failed, cairn_micro_end or cairn_commit",
                           batch_number(&job->filling.batch, job->filling.micro - 1));
    if (micro != job->filling.micro)
        return client_fail(CAIRN_ERR_INVALID,
                           "this is micro-batch %u, but micro-batch %u is being filled; end that "
                           "with cairn_micro_end",
                           batch_number(&job->filling.batch, micro),
                           batch_number(&job->filling.batch, job->filling.micro));
    const bool is_bound = job->spec.stage < 2 ||
                          (job->spec.micro_batches > 1 && job->filling.batch.total == 0);
    if (is_bound && micro >= job->spec.micro_batches)
        return client_fail(
            CAIRN_ERR_INVALID,
            "micro-batch %u, counted from 0, is too many: job %s is of stage %u and declares "
            "micro_batches = %u; declare more in its spec, or none and take stage 2",
            micro, job->name, job->spec.stage, job->spec.micro_batches);
    return CAIRN_OK;
}

static cairn_status refuse_after_sums(const char *tensor)
{
    return client_fail(CAIRN_ERR_STALE,
                       "tensor %s: another thread commits the round, whose micro-batches are "
                       "added up; push before the commit, or in the next round",
                       tensor);
}

/* Checks that the tensor is not in the micro-batch that is being filled, and records the tensor in
 * the micro-batch; for CAIRN_API_NO_TENSOR, records the end of the micro-batch. Under the lock. */
static cairn_status note_filled(struct job *job, uint32_t micro, size_t tensor)
{
    CAIRN_TRY(judge_micro(job, micro));
    if (tensor == CAIRN_API_NO_TENSOR) {
        job->filling.micro++, job->filling.any = false;
        memset(job->filling.tensors, 0, job->spec.tensor_count);
        return CAIRN_OK;
    }
    if (job->sums.ended) return refuse_after_sums(job->spec.tensors[tensor].name);
    if (job->filling.tensors[tensor] != NOT_PUSHED)
        return client_fail(CAIRN_ERR_EXISTS,
                           "tensor %s was pushed in micro-batch %u already; add gradients "
                           "before pushing, or end the micro-batch",
                           job->spec.tensors[tensor].name,
                           batch_number(&job->filling.batch, micro));
    job->filling.tensors[tensor] = PUSHED;
    job->filling.any = true;
    job->filling.adding += accumulate_wanted(job);
    return CAIRN_OK;
}

void api_await_added(struct job *job)
{
    while (job->filling.adding > 0) pthread_cond_wait(&job->session->changed, &job->session->lock);
}

cairn_status api_judge_fill(struct job *job, const struct cairn_round *round, uint32_t micro,
                            size_t tensor)
{
    HOLD_LOCK(&job->session->lock);
    if (tensor == CAIRN_API_NO_TENSOR) api_await_added(job);
    cairn_status status = api_judge_round(job, round);
    if (status == CAIRN_OK) status = note_filled(job, micro, tensor);
    return status;
}

/* Refuses the gradient of a tensor that is frozen in this round. An amendment freezes a tensor or the
 * tensor's whole group; RoundOpened lists both. Under the lock. */
static cairn_status judge_thawed(const struct job *job, size_t tensor)
{
    const struct tensor_spec *t = &job->spec.tensors[tensor];
    const bool group_frozen = job->filling.frozen_groups[spec_find_group(&job->spec, t->group)];
    if (job->filling.frozen_tensors[tensor])
        return client_fail(CAIRN_ERR_REFUSED,
                           "tensor %s is frozen in this round and takes no gradient; skip "
                           "it, or have it unfrozen by cairn_job_amend",
                           t->name);
    if (!group_frozen) return CAIRN_OK;
    return client_fail(CAIRN_ERR_REFUSED,
                       "tensor %s: its group %s is frozen in this round and takes no "
                       "gradient; skip it, or have it unfrozen by cairn_job_amend",
                       t->name, t->group);
}

static cairn_status judge_frozen(struct job *job, size_t tensor)
{
    HOLD_LOCK(&job->session->lock);
    return judge_thawed(job, tensor);
}

/* ---- lists ---- */

/* Under the lock. */
static cairn_status fill_all(struct job *job, uint32_t micro, const size_t *tensors, size_t count,
                             size_t *wrong_out)
{
    const bool any = job->filling.any;
    cairn_status status = CAIRN_OK;
    size_t done = 0;
    for (; done < count && status == CAIRN_OK; done++) {
        status = judge_thawed(job, tensors[done]);
        if (status == CAIRN_OK) status = note_filled(job, micro, tensors[done]);
    }
    if (status == CAIRN_OK) return CAIRN_OK;
    *wrong_out = --done;
    job->filling.any = any;
    while (done-- > 0) {
        job->filling.tensors[tensors[done]] = NOT_PUSHED;
        job->filling.adding -= accumulate_wanted(job);
    }
    return status;
}

cairn_status api_fill_many(struct job *job, const struct cairn_round *round, uint32_t micro,
                           const size_t *tensors, size_t count, size_t *wrong_out)
{
    *wrong_out = count;
    HOLD_LOCK(&job->session->lock);
    cairn_status status = api_judge_round(job, round);
    if (status == CAIRN_OK) status = judge_micro(job, micro);
    if (status == CAIRN_OK) status = fill_all(job, micro, tensors, count, wrong_out);
    return status;
}

/* ---- aliases of boxes ---- */

/* Claims the portion in the micro-batch that is being filled. */
static cairn_status fill_part(struct job *job, const struct cairn_round *round,
                              const struct portion *portion, struct assembly **out)
{
    HOLD_LOCK(&job->session->lock);
    cairn_status status = api_judge_round(job, round);
    if (status == CAIRN_OK) status = judge_micro(job, portion->micro);
    if (status == CAIRN_OK && job->filling.tensors[portion->tensor] == PUSHED)
        status = client_fail(
            CAIRN_ERR_EXISTS,
            "tensor %s is a box of %s, all of which was pushed in micro-batch %u already",
            portion->name, job->spec.tensors[portion->tensor].name,
            batch_number(&job->filling.batch, portion->micro));
    if (status == CAIRN_OK && job->sums.ended) status = refuse_after_sums(portion->name);
    if (status == CAIRN_OK) status = assemble_claim(job, portion, out);
    if (status == CAIRN_OK) {
        job->filling.tensors[portion->tensor] = PUSHED_IN_PART;
        job->filling.any = true;
        job->filling.adding++;
    }
    return status;
}

/* Sends the assembly. On success the caller no longer owns the assembly: it is freed at once if its
 * values were added up, or else at the end of the push's operation. After a failure the caller
 * still owns the assembly. */
static cairn_status send_assembly(struct job *job, const struct cairn_round *round, uint32_t micro,
                                  struct assembly *assembly)
{
    struct command pattern = { .plane = 0 };
    assemble_pattern(assembly, &pattern);
    if (!accumulate_wanted(job)) return op_begin(job, CAIRN_CHUNK_PUSH, &pattern, NULL);
    const struct cairn_mem mem = assemble_mem(assembly);
    WITH_LOCK(&job->session->lock, job->filling.adding++);
    const cairn_status status = accumulate_add(job, round, micro, pattern.tensor, &pattern.piece,
                                               &mem);
    if (status == CAIRN_OK) assemble_free(assembly);
    return status;
}

/* Records the state of the tensor after a part was copied, or failed to be copied. */
static void end_part(struct job *job, const struct portion *portion, bool whole)
{
    HOLD_LOCK(&job->session->lock);
    if (portion->round == job->filling.round && portion->micro == job->filling.micro)
        job->filling.tensors[portion->tensor] = whole                          ? PUSHED
                                                : assemble_begun(job, portion) ? PUSHED_IN_PART
                                                                               : NOT_PUSHED;
    if (--job->filling.adding == 0) pthread_cond_broadcast(&job->session->changed);
}

static cairn_status push_brought(struct job *job, const struct cairn_round *round,
                                 struct portion *portion)
{
    struct assembly *assembly;
    bool whole = false;
    CAIRN_TRY(fill_part(job, round, portion, &assembly));
    cairn_status status = assemble_copy(assembly, portion, &whole);
    if (status == CAIRN_OK && whole) {
        status = send_assembly(job, round, portion->micro, assembly);
        if (status != CAIRN_OK) assemble_undo(assembly, portion); // the caller may try again
    }
    end_part(job, portion, status == CAIRN_OK && whole);
    return status;
}

static cairn_status push_part(struct job *job, const struct cairn_round *round,
                              struct portion *portion, const struct cairn_box *part,
                              const struct cairn_box *box, cairn_op **op_out)
{
    void *copy;
    struct op *op = NULL;
    CAIRN_TRY(api_judge_portion(job, part, box, portion));
    CAIRN_TRY(judge_frozen(job, portion->tensor));
    CAIRN_TRY(op_reserve(job, CAIRN_CHUNK_PUSH, op_out, &op));
    cairn_status status = api_bring(&portion->mem, &portion->piece, &copy);
    if (status == CAIRN_OK) {
        status = push_brought(job, round, portion);
        free(copy);
    }
    return op_settle(op, status, op_out);
}

cairn_status api_push_incomplete(struct job *job, const struct cairn_round *round, uint32_t micro)
{
    struct assembly *assembly;
    cairn_status status = CAIRN_OK;
    while (status == CAIRN_OK && (assembly = assemble_ended(job, round->round, micro)) != NULL) {
        status = send_assembly(job, round, micro, assembly);
        if (status != CAIRN_OK) assemble_put_back(assembly); // the call will be repeated
    }
    return status;
}

/* ---- push ---- */

/* A push of what this worker holds of a tensor. */
struct push {
    const struct cairn_round *round;
    uint32_t micro;
    size_t tensor;
    struct piece piece;
    struct cairn_mem mem;
};

/* Adds the gradient up in this process; memory of a card is copied to the host. */
static cairn_status push_sum(struct job *job, struct push *push, cairn_op **op_out)
{
    void *copy;
    struct op *op;
    CAIRN_TRY(op_reserve(job, CAIRN_CHUNK_PUSH, op_out, &op));
    cairn_status status = api_bring(&push->mem, &push->piece, &copy);
    if (status == CAIRN_OK) {
        status = api_judge_fill(job, push->round, push->micro, push->tensor);
        if (status == CAIRN_OK)
            status = accumulate_add(job, push->round, push->micro, push->tensor, &push->piece,
                                    &push->mem);
        free(copy);
    }
    return op_settle(op, status, op_out);
}

static cairn_status send_piece(struct job *job, const struct push *push, struct command *pattern,
                               cairn_op **op_out)
{
    CAIRN_TRY(api_judge_fill(job, push->round, push->micro, push->tensor));
    pattern->round = push->round->round;
    cairn_status status = op_begin(job, CAIRN_CHUNK_PUSH, pattern, op_out);
    if (status == CAIRN_OK) return CAIRN_OK;
    pthread_mutex_lock(&job->session->lock); // the caller may try again
    job->filling.tensors[push->tensor] = NOT_PUSHED;
    pthread_mutex_unlock(&job->session->lock);
    return status;
}

/* Sends the gradient from the caller's memory. */
static cairn_status push_piece(struct job *job, struct push *push, cairn_op **op_out)
{
    struct command pattern = { .tensor = (uint32_t)push->tensor,
                               .micro = push->micro,
                               .piece = push->piece };
    cairn_status status = api_prepare(&push->mem, false, &pattern);
    if (status == CAIRN_OK) status = send_piece(job, push, &pattern, op_out);
    if (status != CAIRN_OK) api_unprepare(&pattern);
    return status;
}

/* Judges the tensor and the dtype of a gradient: only a trained tensor takes a gradient. */
static cairn_status judge_gradient(const struct job *job, size_t index, const char *tensor,
                                   const struct cairn_mem *mem)
{
    if (job->spec.tensors[index].kind != CAIRN_TRAINED)
        return client_fail(
            CAIRN_ERR_INVALID, "tensor %s is not trained; it takes no gradient%s", tensor,
            job->spec.tensors[index].kind == CAIRN_BLOB
                ? ": a blob is changed by cairn_write_begin, cairn_put and cairn_write_end"
                : "");
    if (mem->dtype != CAIRN_F32 && mem->dtype != CAIRN_BF16)
        return api_refuse_dtype(tensor, mem, "CAIRN_F32 or CAIRN_BF16");
    return CAIRN_OK;
}

cairn_status api_judge_push(struct job *job, const char *tensor, const struct cairn_box *box,
                            const struct cairn_mem *given, size_t *tensor_out,
                            struct piece *piece_out, struct cairn_mem *mem_out)
{
    const struct cairn_box *part;
    CAIRN_TRY(api_judge_data(job, tensor, given, mem_out, tensor_out, &part));
    CAIRN_TRY(judge_gradient(job, *tensor_out, tensor, mem_out));
    if (part != NULL)
        return client_fail(CAIRN_ERR_UNSUPPORTED,
                           "this tensor is a box of %s: push it alone, with cairn_push",
                           job->spec.tensors[*tensor_out].name);
    return api_judge_own(job, *tensor_out, box, mem_out, piece_out);
}

cairn_status cairn_push(cairn_job *handle, const struct cairn_round *round, uint32_t micro,
                        const char *tensor, const struct cairn_box *box,
                        const struct cairn_mem *given, cairn_op **op_out)
{
    API_ENTER(job, handle);
    size_t index;
    struct cairn_mem mem;
    const struct cairn_box *part;
    CAIRN_TRY(api_judge_data(job, tensor, given, &mem, &index, &part));
    CAIRN_TRY(api_batch_place(job, round, &micro));
    CAIRN_TRY(judge_gradient(job, index, tensor, &mem));
    if (part != NULL) {
        struct portion portion = { .name = tensor,
                                   .kind = CAIRN_CHUNK_PUSH,
                                   .tensor = (uint32_t)index,
                                   .micro = micro,
                                   .round = round != NULL ? round->round : 0,
                                   .mem = mem };
        return push_part(job, round, &portion, part, box, op_out);
    }
    struct piece piece;
    CAIRN_TRY(api_judge_own(job, index, box, &mem, &piece));
    CAIRN_TRY(judge_frozen(job, index));
    struct push push = { round, micro, index, piece, mem };
    return accumulate_wanted(job) ? push_sum(job, &push, op_out) : push_piece(job, &push, op_out);
}

/* ==== tiles ==== */

/* cairn_tiles: the caller's list of boxes becomes a declaration, which is sent to the coordinator. */

static cairn_status judge_pair(enum combination_of of, const struct tensor_spec *tensor)
{
    const struct spec_refusal *refused = combination_refused(of, tensor);
    if (refused == NULL) return CAIRN_OK;
    return client_fail(refused->status, "the tile of tensor %s: %s", tensor->name, refused->why);
}

/* Adds one of the caller's boxes; a tensor without a box is held entirely. */
static cairn_status add_tile(const struct job *job, const void *from, struct tiles *tiles)
{
    struct cairn_tile tile;
    struct sentence why;
    if (!struct_copy_in(&tile, sizeof tile, sizeof tile, from) || tile.tensor == NULL)
        return client_fail(CAIRN_ERR_INVALID, "a tile must have its struct_size (%zu) and a tensor",
                           sizeof tile);
    size_t index = spec_find_tensor(&job->spec, tile.tensor);
    if (index == SIZE_MAX)
        return client_fail(CAIRN_ERR_NOT_FOUND, "job %s has no tensor %s", job->name, tile.tensor);
    CAIRN_TRY(judge_pair(CAIRN_COMBINATION_OF_TILED, &job->spec.tensors[index]));
    index = spec_target(&job->spec, index);
    const struct shape *shape = &job->spec.tensors[index].shape;
    cairn_status status = box_check(&tile.box, shape, &why);
    if (status != CAIRN_OK) return client_fail(status, "tensor %s: %s", tile.tensor, why.text);
    if (tiles_find(tiles, (uint32_t)index) != NULL)
        return client_fail(CAIRN_ERR_EXISTS, "tensor %s has a tile already; one box a tensor",
                           tile.tensor);
    if (box_is_whole(&tile.box, shape)) return CAIRN_OK;
    CAIRN_TRY(judge_pair(CAIRN_COMBINATION_OF_CUT, &job->spec.tensors[index]));
    status = tiles_set(tiles, (uint32_t)index, &tile.box);
    return status == CAIRN_OK ? status : client_fail(status, "out of memory for the tiles");
}

static cairn_status make_declared(const struct job *job, const struct cairn_tile *tiles,
                                  size_t tile_count, uint32_t world, struct declared **out)
{
    struct declared *declared = calloc(1, sizeof *declared);
    if (declared == NULL) return client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    declared->world = world;
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; status == CAIRN_OK && i < tile_count; i++)
        status = add_tile(job, struct_at(tiles, i), &declared->tiles);
    if (status == CAIRN_OK) {
        declared->hash = tiles_digest(&declared->tiles);
        declared->packed = packed_tiles(&declared->tiles);
        if (declared->packed == NULL)
            status = client_fail(CAIRN_ERR_NO_MEMORY, "out of memory for the tiles");
    }
    if (status != CAIRN_OK) {
        client_tiles_free(declared);
        return status;
    }
    *out = declared;
    return CAIRN_OK;
}

static cairn_status judge_tiles(const struct job *job, const struct cairn_tile *tiles,
                                size_t tile_count, uint32_t world, int timeout_ms)
{
    if (job->member.role != CAIRN_WORKER)
        return client_fail(CAIRN_ERR_REFUSED, "a reader holds no tiles");
    if ((tiles == NULL && tile_count > 0) || timeout_ms < 0)
        return client_fail(CAIRN_ERR_INVALID, "give tiles, and a timeout_ms of 0 or more");
    if (world > 0 && job->spec.global_batch > 0)
        return client_fail(CAIRN_ERR_REFUSED,
                           "job %s has global_batch = %u: its micro-batches are dealt to workers "
                           "that hold whole tensors, but with tiles a round is of certain ranks; "
                           "declare no tiles, or make the job without global_batch",
                           job->name, job->spec.global_batch);
    if (world == 0 && tile_count > 0)
        return client_fail(CAIRN_ERR_INVALID,
                           "world is 0, which says that there are no tiles, and %zu are given",
                           tile_count);
    if (world > 0 && world <= job->member.rank)
        return client_fail(CAIRN_ERR_INVALID,
                           "world is %u; it counts the ranks 0 to world - 1, and this is rank %u",
                           world, job->member.rank);
    return CAIRN_OK;
}

/* Offers a declaration; only one declaration waits at a time. The offer belongs to this call until
 * withdraw. Takes over `declared` in any case. */
static cairn_status offer(struct job *job, struct declared *declared)
{
    pthread_mutex_lock(&job->session->lock);
    const bool busy = job->tiles.declaring != NULL;
    if (!busy) {
        job->tiles.declaring = declared;
        job->tiles.declaring_holds = false;
    }
    pthread_mutex_unlock(&job->session->lock);
    if (!busy) return CAIRN_OK;
    client_tiles_free(declared);
    return client_fail(CAIRN_ERR_BUSY, "another thread declares tiles of job %s", job->name);
}

/* Ends the offer. Returns true if the declaration is in effect. */
static bool withdraw(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    const bool holds = job->tiles.declaring_holds;
    struct declared *unset = holds ? NULL : job->tiles.declaring;
    job->tiles.declaring = NULL;
    pthread_mutex_unlock(&job->session->lock);
    client_tiles_free(unset);
    return holds;
}

static cairn_status declare(struct job *job, struct declared *declared, uint64_t deadline_ms)
{
    ASK_CALL(call, "cairn_tiles", TILES_DECLARE, TILES_SET, .is_of_round = true);
    Cairn__TilesDeclare message = client_tiles_message(declared);
    CAIRN_TRY(offer(job, declared));
    cairn_status status = ask_coordinator(job, &call, &message.base, deadline_ms, NULL);
    return withdraw(job) ? CAIRN_OK : status; // the declaration may have taken effect just in time
}

cairn_status cairn_tiles(cairn_job *handle, const struct cairn_tile *tiles, size_t tile_count,
                         uint32_t world, int timeout_ms)
{
    API_ENTER(job, handle);
    const uint64_t deadline_ms = api_deadline(timeout_ms);
    struct declared *declared = NULL;
    CAIRN_TRY(judge_tiles(job, tiles, tile_count, world, timeout_ms));
    CAIRN_TRY(make_declared(job, tiles, tile_count, world, &declared));
    return declare(job, declared, deadline_ms);
}
