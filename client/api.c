/* What the calls of a job have in common: each checks its arguments, hands the work to the loop thread, and
 * waits. */
#include <stdlib.h>
#include <string.h>

#include "client/api.h"
#include "client/handle.h"
#include "client/memory.h"
#include "client/struct.h"

/* ---- what the calls have in common ---- */

struct job *cairn_api_job(const cairn_job *handle)
{
    struct job *job = cairn_handle_get(CAIRN_HANDLE_JOB, handle);
    if (job == NULL) cairn_client_fail(CAIRN_ERR_HANDLE, "not an open job");
    return job;
}

uint64_t cairn_api_deadline(int timeout_ms)
{
    return cairn_client_now_ms() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0);
}

cairn_status cairn_api_await_none(struct job *job, const uint64_t *open, const char *what,
                                  uint64_t deadline_ms)
{
    struct session *s = job->session;
    pthread_mutex_lock(&s->lock);
    while (*open > 0 && cairn_session_sleep(s, deadline_ms)) {}
    const uint64_t left = *open;
    pthread_mutex_unlock(&s->lock);
    if (left == 0) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_TIMEOUT, "%llu %s of job %s still wait for shards",
                             (unsigned long long)left, what, job->name);
}

/* Of a caller's that may be older: without strides, on the host. */
static cairn_status take_mem(const struct cairn_mem *given, struct cairn_mem *out)
{
    struct cairn_mem mem;
    if (!cairn_struct_take(&mem, sizeof mem, offsetof(struct cairn_mem, stride), given))
        return cairn_client_fail(CAIRN_ERR_INVALID, "mem.struct_size is %zu, this library's is %zu",
                                 given->struct_size, sizeof mem);
    if (mem.device < -1)
        return cairn_client_fail(CAIRN_ERR_INVALID, "mem.device is %d; allowed: 0 = host",
                                 mem.device);
    if (mem.device > 0 || mem.stream != NULL)
        return cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                                 "this build of the library has no CUDA: mem.device is %d, "
                                 "mem.stream %p; give 0 and NULL, for host memory",
                                 mem.device, mem.stream);
    *out = mem;
    return CAIRN_OK;
}

cairn_status cairn_api_judge_data(const struct job *job, const char *name,
                                  const struct cairn_mem *given, struct cairn_mem *mem_out,
                                  size_t *tensor_out, const struct cairn_box **part_out)
{
    if (name == NULL || given == NULL)
        return cairn_client_fail(CAIRN_ERR_INVALID, "tensor and mem must be given");
    const cairn_status status = take_mem(given, mem_out);
    if (status != CAIRN_OK) return status;
    const size_t tensor = cairn_spec_find_tensor(&job->spec, name);
    if (tensor == SIZE_MAX)
        return cairn_client_fail(CAIRN_ERR_NOT_FOUND, "job %s has no tensor %s", job->name, name);
    const struct cairn_box *part = job->spec.tensors[tensor].alias_box;
    *part_out = part;
    *tensor_out = cairn_spec_target(&job->spec, tensor);
    return CAIRN_OK;
}

cairn_status cairn_api_judge_part(const char *name, const struct cairn_box *part,
                                  const struct cairn_box *box, struct cairn_box *box_out)
{
    struct cairn_shape shape = { .rank = part->rank };
    struct cairn_sentence why;
    struct cairn_box whole = *part;
    memcpy(shape.dim, part->extent, sizeof shape.dim);
    cairn_status status = box != NULL ? cairn_box_check(box, &shape, &why) : CAIRN_OK;
    if (status != CAIRN_OK) return cairn_client_fail(status, "tensor %s: %s", name, why.text);
    for (uint32_t d = 0; box != NULL && d < box->rank; d++) {
        whole.start[d] += box->start[d];
        whole.extent[d] = box->extent[d];
    }
    *box_out = whole;
    return CAIRN_OK;
}

cairn_status cairn_api_judge_boxed(const struct job *job, const char *name,
                                   const struct cairn_mem *given, struct cairn_mem *mem_out,
                                   size_t *tensor_out, const struct cairn_box **box,
                                   struct cairn_box *room)
{
    const struct cairn_box *part;
    cairn_status status = cairn_api_judge_data(job, name, given, mem_out, tensor_out, &part);
    if (status != CAIRN_OK || part == NULL) return status;
    status = cairn_api_judge_part(name, part, *box, room);
    if (status == CAIRN_OK) *box = room;
    return status;
}

/* Where the piece lies. */
static cairn_status judge_place(const struct job *job, size_t tensor, const struct cairn_mem *mem,
                                struct piece *piece)
{
    const char *name = job->spec.tensors[tensor].name;
    struct cairn_sentence why;
    if (mem->ptr == NULL && cairn_box_elems(&piece->box) != 0)
        return cairn_client_fail(CAIRN_ERR_INVALID, "tensor %s: mem.ptr is NULL", name);
    const cairn_status status = cairn_strides_judge(
        mem->stride, &piece->box, cairn_dtype_bytes((int)mem->dtype), &piece->strides, &why);
    if (status == CAIRN_OK) return status;
    return cairn_client_fail(status, "tensor %s: %s", name, why.text);
}

static cairn_status judge_within(const struct cairn_tensor_spec *tensor,
                                 const struct cairn_box *box)
{
    struct cairn_sentence why;
    const cairn_status status = cairn_box_check(box, &tensor->shape, &why);
    if (status == CAIRN_OK) return status;
    return cairn_client_fail(status, "tensor %s: %s", tensor->name, why.text);
}

cairn_status cairn_api_judge_own(struct job *job, size_t tensor, const struct cairn_box *box,
                                 const struct cairn_mem *mem, struct piece *piece_out)
{
    const struct cairn_tensor_spec *spec = &job->spec.tensors[tensor];
    struct piece piece = cairn_client_tiles_own(job, tensor);
    char given[CAIRN_BOX_TEXT_BYTES], own[CAIRN_BOX_TEXT_BYTES];
    cairn_status status = box != NULL ? judge_within(spec, box) : CAIRN_OK;
    if (status != CAIRN_OK) return status;
    if (!piece.whole && cairn_box_elems(&piece.box) == 0)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "tensor %s: this worker holds nothing of it, as it said in "
                                 "cairn_tiles",
                                 spec->name);
    if (box != NULL && !cairn_box_equal(box, &piece.box))
        return cairn_client_fail(
            CAIRN_ERR_INVALID, "tensor %s: the box given is %s, what this worker holds is %s%s",
            spec->name, cairn_box_text(box, given), cairn_box_text(&piece.box, own),
            piece.whole ? "; declare what it holds by cairn_tiles" : "");
    status = judge_place(job, tensor, mem, &piece);
    if (status == CAIRN_OK) *piece_out = piece;
    return status;
}

cairn_status cairn_api_judge_box(struct job *job, size_t tensor, const struct cairn_box *box,
                                 const struct cairn_mem *mem, struct piece *piece_out)
{
    const struct cairn_tensor_spec *spec = &job->spec.tensors[tensor];
    struct piece piece = cairn_client_tiles_own(job, tensor);
    cairn_status status = box != NULL ? judge_within(spec, box) : CAIRN_OK;
    if (status != CAIRN_OK) return status;
    piece.box = box != NULL ? *box : cairn_box_of_shape(&spec->shape);
    piece.whole = cairn_box_is_whole(&piece.box, &spec->shape);
    piece.tile = piece.whole ? CAIRN_TILE_WHOLE : CAIRN_TILE_BOX;
    status = judge_place(job, tensor, mem, &piece);
    if (status == CAIRN_OK) *piece_out = piece;
    return status;
}

cairn_status cairn_api_refuse_dtype(const char *tensor, const struct cairn_mem *mem,
                                    const char *allowed)
{
    return cairn_client_fail(CAIRN_ERR_INVALID,
                             "tensor %s: mem.dtype is %d (%s); %s is allowed here", tensor,
                             (int)mem->dtype, cairn_dtype_name((int)mem->dtype), allowed);
}

cairn_status cairn_api_check(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    const cairn_status failed = job->failed;
    const struct cairn_sentence why = job->failed_why;
    pthread_mutex_unlock(&job->session->lock);
    return failed == CAIRN_OK ? CAIRN_OK : cairn_client_fail(failed, "%s", why.text);
}

struct command *cairn_api_command(struct job *job, bool (*run)(struct command *))
{
    struct command *command = calloc(1, sizeof *command);
    if (command == NULL) return NULL;
    command->run = run;
    command->job = job;
    cairn_job_ref(job);
    return command;
}

cairn_status cairn_api_finished(struct job *job, uint8_t kind, cairn_op **op_out)
{
    if (op_out == NULL) return CAIRN_OK; // nobody would ask
    struct op *op = cairn_op_new(job, kind, true);
    if (op == NULL)
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY,
                                 "out of memory, or too many operations are open");
    void *handle = op->handle;
    cairn_op_part_end(op, CAIRN_OK, NULL); // it has no part but its own
    *op_out = handle;
    return CAIRN_OK;
}

cairn_status cairn_api_begin(struct job *job, uint8_t kind, bool (*run)(struct command *),
                             const struct command *pattern, cairn_op **op_out)
{
    const void *lent;
    const size_t bytes = cairn_strides_span(&pattern->piece.strides,
                                            cairn_box_elems(&pattern->piece.box),
                                            cairn_dtype_bytes(pattern->dtype));
    cairn_status status = cairn_memory_lend(job->session, pattern->ptr, bytes, &lent);
    if (status != CAIRN_OK) return status;
    struct command *command = cairn_api_command(job, run);
    struct op *op = command != NULL ? cairn_op_new(job, kind, op_out != NULL) : NULL;
    if (op == NULL) {
        cairn_memory_return(job->session, lent);
        if (command != NULL) cairn_job_unref(job);
        free(command);
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY,
                                 "out of memory, or too many operations are open");
    }
    void *handle = op->handle;
    if (pattern->piece.tile == CAIRN_TILE_BOX)
        op->box_bytes = cairn_box_encode(&pattern->piece.box, op->box);
    op->tensor = pattern->tensor;
    op->lent = lent;
    op->ptr = pattern->ptr;
    op->strides = pattern->piece.strides;
    op->on_done = pattern->on_done;
    op->context = pattern->context;
    command->op = op;
    command->tensor = pattern->tensor;
    command->micro = pattern->micro;
    command->plane = pattern->plane;
    command->dtype = pattern->dtype;
    command->ptr = pattern->ptr;
    command->piece = pattern->piece;
    command->round = pattern->round;
    command->version = pattern->version;
    cairn_session_command(job->session, command);
    if (op_out != NULL) *op_out = handle;
    return CAIRN_OK;
}
