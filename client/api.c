/* The calls of a job: each checks its arguments, hands the work to the loop thread, and waits. */
#include <stdlib.h>
#include <string.h>

#include "client/handle.h"
#include "client/session.h"

/* ---- what the calls have in common ---- */

/* The job of a handle, to be put back; NULL: this thread's sentence says so. */
static struct job *job_get(const cairn_job *handle)
{
    struct job *job = cairn_handle_get(CAIRN_HANDLE_JOB, handle);
    if (job == NULL) cairn_client_fail(CAIRN_ERR_HANDLE, "not an open job");
    return job;
}

static uint64_t deadline_of(int timeout_ms)
{
    return cairn_client_now_ms() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0);
}

/* Sleeps until nothing of that kind is on loan any more. */
static cairn_status await_none_open(struct job *job, const uint64_t *open, const char *what,
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

static uint64_t tensor_elems(const struct cairn_tensor_spec *tensor)
{
    return cairn_geometry_of(&tensor->shape).elems;
}

static bool box_is_whole(const struct cairn_box *box, const struct cairn_tensor_spec *tensor)
{
    if (box == NULL) return true;
    if (box->rank != tensor->shape.rank) return false;
    for (uint32_t d = 0; d < box->rank; d++)
        if (box->start[d] != 0 || box->extent[d] != tensor->shape.dim[d]) return false;
    return true;
}

/* Finds the tensor and judges box and memory. `dtype` is what is wanted; 0: f32 or bf16. */
static cairn_status judge_data(const struct job *job, const char *name, const struct cairn_box *box,
                               const struct cairn_mem *mem, size_t *tensor_out)
{
    if (name == NULL || mem == NULL)
        return cairn_client_fail(CAIRN_ERR_INVALID, "tensor and mem must be given");
    if (mem->struct_size != sizeof *mem)
        return cairn_client_fail(CAIRN_ERR_INVALID, "mem.struct_size is %zu, this library's is %zu",
                                 mem->struct_size, sizeof *mem);
    const size_t tensor = cairn_spec_find_tensor(&job->spec, name);
    if (tensor == SIZE_MAX)
        return cairn_client_fail(CAIRN_ERR_NOT_FOUND, "job %s has no tensor %s", job->name, name);
    if (!box_is_whole(box, &job->spec.tensors[tensor]))
        return cairn_client_fail(
            CAIRN_ERR_UNSUPPORTED,
            "tensor %s: a box that is not the whole tensor is not supported yet; give NULL", name);
    if (mem->ptr == NULL && tensor_elems(&job->spec.tensors[tensor]) > 0)
        return cairn_client_fail(CAIRN_ERR_INVALID, "tensor %s: mem.ptr is NULL", name);
    *tensor_out = tensor;
    return CAIRN_OK;
}

static cairn_status refuse_dtype(const char *tensor, const struct cairn_mem *mem,
                                 const char *allowed)
{
    return cairn_client_fail(CAIRN_ERR_INVALID,
                             "tensor %s: mem.dtype is %d (%s); %s is allowed here", tensor,
                             (int)mem->dtype, cairn_dtype_name((int)mem->dtype), allowed);
}

/* Fails like the job has, if it has. */
static cairn_status check_failed(struct job *job)
{
    pthread_mutex_lock(&job->session->lock);
    const cairn_status failed = job->failed;
    const struct cairn_sentence why = job->failed_why;
    pthread_mutex_unlock(&job->session->lock);
    return failed == CAIRN_OK ? CAIRN_OK : cairn_client_fail(failed, "%s", why.text);
}

static struct command *command_new(struct job *job, bool (*run)(struct command *))
{
    struct command *command = calloc(1, sizeof *command);
    if (command == NULL) return NULL;
    command->run = run;
    command->job = job;
    cairn_job_ref(job);
    return command;
}

/* Begins a put, push or fetch. `pattern` says what; job, op and run are filled in. */
static cairn_status begin(struct job *job, uint8_t kind, bool (*run)(struct command *),
                          const struct command *pattern, cairn_op **op_out)
{
    struct command *command = command_new(job, run);
    struct op *op = command != NULL ? cairn_op_new(job, kind, op_out != NULL) : NULL;
    if (op == NULL) {
        if (command != NULL) cairn_job_unref(job);
        free(command);
        return cairn_client_fail(CAIRN_ERR_NO_MEMORY,
                                 "out of memory, or too many operations are open");
    }
    void *handle = op->handle;
    command->op = op;
    command->tensor = pattern->tensor;
    command->micro = pattern->micro;
    command->plane = pattern->plane;
    command->dtype = pattern->dtype;
    command->ptr = pattern->ptr;
    command->round = pattern->round;
    command->version = pattern->version;
    cairn_session_command(job->session, command);
    if (op_out != NULL) *op_out = handle;
    return CAIRN_OK;
}

/* ---- initial state ---- */

static cairn_status put_inside(struct job *job, const char *tensor, const char *plane,
                               const struct cairn_box *box, const struct cairn_mem *mem,
                               cairn_op **op_out)
{
    size_t index;
    if (job->role != CAIRN_WORKER)
        return cairn_client_fail(CAIRN_ERR_REFUSED, "a reader cannot put");
    cairn_status status = judge_data(job, tensor, box, mem, &index);
    if (status != CAIRN_OK) return status;
    if (plane == NULL || cairn_plane_number(plane) != CAIRN_PLANE_PARAM)
        return cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                                 "tensor %s: only the plane \"param\" can be put", tensor);
    if (mem->dtype != CAIRN_F32) return refuse_dtype(tensor, mem, "CAIRN_F32");
    pthread_mutex_lock(&job->session->lock);
    const bool initialized = job->initialized;
    pthread_mutex_unlock(&job->session->lock);
    if (initialized)
        return cairn_client_fail(CAIRN_ERR_EXISTS,
                                 "job %s has its state already; nothing is to be put", job->name);
    if (job->rank != 0)
        return cairn_client_fail(CAIRN_ERR_REFUSED,
                                 "the initial state is put by rank 0; this is rank %u", job->rank);
    const struct command pattern = {
        .tensor = (uint32_t)index, .plane = CAIRN_PLANE_PARAM, .dtype = CAIRN_F32, .ptr = mem->ptr
    };
    return begin(job, CAIRN_CHUNK_PUT, cairn_transfer_run, &pattern, op_out);
}

cairn_status cairn_put(cairn_job *handle, const char *tensor, const char *plane,
                       const struct cairn_box *box, const struct cairn_mem *mem, cairn_op **op_out)
{
    struct job *job = job_get(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = check_failed(job);
    if (status == CAIRN_OK) status = put_inside(job, tensor, plane, box, mem, op_out);
    cairn_handle_put(handle);
    return status;
}

static cairn_status init_done_inside(struct job *job, uint64_t deadline_ms)
{
    cairn_status status = await_none_open(job, &job->puts_open, "puts", deadline_ms);
    if (status != CAIRN_OK) return status;
    pthread_mutex_lock(&job->session->lock);
    const bool initialized = job->initialized;
    const cairn_status put = job->puts_status;
    const struct cairn_sentence why = job->puts_why;
    job->puts_status = CAIRN_OK;
    pthread_mutex_unlock(&job->session->lock);
    if (put != CAIRN_OK) return cairn_client_fail(put, "a put failed: %s", why.text);
    if (initialized) return CAIRN_OK;
    Cairn__InitDone message = CAIRN__INIT_DONE__INIT;
    message.source = job->rank == 0;
    ProtobufCMessage *reply;
    status = cairn_control_ask(job->session, job, CAIRN_MSG_INIT_DONE, &message.base,
                               CAIRN_MSG_DONE, deadline_ms, &reply);
    if (status != CAIRN_OK) return status;
    cairn_message_free(reply);
    pthread_mutex_lock(&job->session->lock);
    job->initialized = true;
    pthread_mutex_unlock(&job->session->lock);
    return CAIRN_OK;
}

cairn_status cairn_init_done(cairn_job *handle, const uint8_t *digest, int timeout_ms)
{
    struct job *job = job_get(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = check_failed(job);
    if (status == CAIRN_OK && digest != NULL)
        status = cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                                   "comparing a digest is not supported yet; give NULL");
    if (status == CAIRN_OK && job->role != CAIRN_WORKER)
        status = cairn_client_fail(CAIRN_ERR_REFUSED,
                                   "a reader does not take part in the initial state");
    if (status == CAIRN_OK && timeout_ms < 0)
        status = cairn_client_fail(CAIRN_ERR_INVALID, "timeout_ms is negative");
    if (status == CAIRN_OK) status = init_done_inside(job, deadline_of(timeout_ms));
    cairn_handle_put(handle);
    return status;
}

/* ---- rounds ---- */

/* True if the round can be used: nothing voided it between its reply and now. */
static bool take_round(struct job *job, const Cairn__RoundOpened *opened, struct cairn_round *out)
{
    pthread_mutex_lock(&job->session->lock);
    const bool good = opened->round > job->void_round;
    if (good && opened->round != job->filling_round) {
        job->filling_round = opened->round;
        job->filling_micro = 0;
        job->filling_any = job->committed = false;
    }
    pthread_mutex_unlock(&job->session->lock);
    if (!good) return false;
    out->round = opened->round;
    out->step = opened->step;
    out->epoch = opened->epoch;
    out->version = (struct cairn_version) { opened->generation, opened->step };
    out->rank = opened->rank;
    out->world = opened->world;
    out->loss_scale = opened->loss_scale;
    return true;
}

static cairn_status round_begin_inside(struct job *job, uint64_t deadline_ms,
                                       struct cairn_round *out)
{
    // A void round's buffers come back before the caller fills them again.
    cairn_status status = await_none_open(job, &job->pushes_open, "pushes", deadline_ms);
    for (bool taken = false; status == CAIRN_OK && !taken;) {
        Cairn__RoundBegin message = CAIRN__ROUND_BEGIN__INIT;
        ProtobufCMessage *reply;
        status = cairn_control_ask(job->session, job, CAIRN_MSG_ROUND_BEGIN, &message.base,
                                   CAIRN_MSG_ROUND_OPENED, deadline_ms, &reply);
        if (status != CAIRN_OK) break;
        taken = take_round(job, (const Cairn__RoundOpened *)reply, out);
        cairn_message_free(reply);
    }
    return status;
}

cairn_status cairn_round_begin(cairn_job *handle, int timeout_ms, struct cairn_round *out)
{
    struct job *job = job_get(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = check_failed(job);
    if (status == CAIRN_OK && (out == NULL || out->struct_size != sizeof *out || timeout_ms < 0))
        status = cairn_client_fail(
            CAIRN_ERR_INVALID, "out must be given, its struct_size be %zu, timeout_ms 0 or more",
            sizeof *out);
    if (status == CAIRN_OK && job->role != CAIRN_WORKER)
        status = cairn_client_fail(CAIRN_ERR_REFUSED, "a reader takes no part in rounds");
    if (status == CAIRN_OK) status = round_begin_inside(job, deadline_of(timeout_ms), out);
    cairn_handle_put(handle);
    return status;
}

/* Is `micro` of `round` the micro-batch that is being filled? Under no lock. */
static cairn_status judge_fill(struct job *job, const struct cairn_round *round, uint32_t micro,
                               bool ends)
{
    if (round == NULL || round->struct_size != sizeof *round)
        return cairn_client_fail(CAIRN_ERR_INVALID, "round must be given, its struct_size be %zu",
                                 sizeof *round);
    cairn_status status = CAIRN_OK;
    pthread_mutex_lock(&job->session->lock);
    if (round->round <= job->void_round)
        status = cairn_client_fail(
            CAIRN_ERR_EPOCH_CHANGED,
            "round %llu of step %llu was abandoned; begin the next one and compute again",
            (unsigned long long)round->round, (unsigned long long)round->step);
    else if (round->round != job->filling_round || job->committed)
        status = cairn_client_fail(CAIRN_ERR_STALE, "round %llu is not this worker's open round",
                                   (unsigned long long)round->round);
    else if (micro != job->filling_micro)
        status = cairn_client_fail(CAIRN_ERR_INVALID,
                                   "micro-batch %u comes after micro-batch %u was ended", micro,
                                   job->filling_micro);
    else if (ends)
        job->filling_micro++, job->filling_any = false;
    else
        job->filling_any = true;
    pthread_mutex_unlock(&job->session->lock);
    return status;
}

static cairn_status push_inside(struct job *job, const struct cairn_round *round, uint32_t micro,
                                const char *tensor, const struct cairn_box *box,
                                const struct cairn_mem *mem, cairn_op **op_out)
{
    size_t index;
    cairn_status status = judge_data(job, tensor, box, mem, &index);
    if (status != CAIRN_OK) return status;
    if (job->spec.tensors[index].kind != CAIRN_TRAINED)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "tensor %s is not trained; it takes no gradient", tensor);
    if (mem->dtype != CAIRN_F32 && mem->dtype != CAIRN_BF16)
        return refuse_dtype(tensor, mem, "CAIRN_F32 or CAIRN_BF16");
    status = judge_fill(job, round, micro, false);
    if (status != CAIRN_OK) return status;
    const struct command pattern = { .tensor = (uint32_t)index,
                                     .micro = micro,
                                     .dtype = (uint8_t)mem->dtype,
                                     .ptr = mem->ptr,
                                     .round = round->round };
    return begin(job, CAIRN_CHUNK_PUSH, cairn_round_push_run, &pattern, op_out);
}

cairn_status cairn_push(cairn_job *handle, const struct cairn_round *round, uint32_t micro,
                        const char *tensor, const struct cairn_box *box,
                        const struct cairn_mem *mem, cairn_op **op_out)
{
    struct job *job = job_get(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = check_failed(job);
    if (status == CAIRN_OK) status = push_inside(job, round, micro, tensor, box, mem, op_out);
    cairn_handle_put(handle);
    return status;
}

static cairn_status send_word(struct job *job, bool (*run)(struct command *),
                              const struct cairn_round *round, uint32_t micro, uint64_t weight)
{
    struct command *command = command_new(job, run);
    if (command == NULL) return cairn_client_fail(CAIRN_ERR_NO_MEMORY, "out of memory");
    command->round = round->round;
    command->micro = micro;
    command->weight = weight;
    cairn_session_command(job->session, command);
    return CAIRN_OK;
}

cairn_status cairn_micro_end(cairn_job *handle, const struct cairn_round *round, uint32_t micro)
{
    struct job *job = job_get(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = check_failed(job);
    if (status == CAIRN_OK) status = judge_fill(job, round, micro, true);
    if (status == CAIRN_OK) status = send_word(job, cairn_round_micro_end_run, round, micro, 0);
    cairn_handle_put(handle);
    return status;
}

/* Ends the micro-batch being filled, if any, and commits; nothing if that was done before. */
static cairn_status commit_once(struct job *job, const struct cairn_round *round, uint64_t weight)
{
    pthread_mutex_lock(&job->session->lock);
    const bool is_void = round->round <= job->void_round;
    const bool is_done = job->committed && round->round == job->filling_round;
    const uint32_t micro = job->filling_micro;
    const bool fill = job->filling_any || micro == 0;
    pthread_mutex_unlock(&job->session->lock);
    if (is_void || is_done) return CAIRN_OK; // the coordinator says how it ended
    cairn_status status = CAIRN_OK;
    if (fill) {
        status = judge_fill(job, round, micro, true);
        if (status == CAIRN_OK) status = send_word(job, cairn_round_micro_end_run, round, micro, 0);
    }
    if (status != CAIRN_OK) return status;
    const uint32_t micros = micro + (fill ? 1 : 0);
    status = send_word(job, cairn_round_commit_run, round, micros - 1,
                       weight != 0 ? weight : micros);
    if (status != CAIRN_OK) return status;
    pthread_mutex_lock(&job->session->lock);
    job->committed = true;
    pthread_mutex_unlock(&job->session->lock);
    return CAIRN_OK;
}

static cairn_status take_result(const Cairn__RoundResult *result, struct cairn_result *out)
{
    const cairn_status status = cairn_status_known(result->status) ? (cairn_status)result->status
                                                                   : CAIRN_ERR_PROTOCOL;
    if (status != CAIRN_OK)
        return cairn_client_fail(status, "%s",
                                 result->text[0] != 0 ? result->text : cairn_status_text((int)status));
    out->step = result->step;
    out->version = (struct cairn_version) { result->generation, result->step };
    out->grad_norm = result->grad_norm;
    out->clip_scale = result->clip_scale;
    out->lr = result->lr;
    out->applied = result->applied;
    out->finite = result->finite;
    return CAIRN_OK;
}

static cairn_status commit_inside(struct job *job, const struct cairn_round *round, uint64_t weight,
                                  uint64_t deadline_ms, struct cairn_result *out)
{
    cairn_status status = commit_once(job, round, weight);
    if (status != CAIRN_OK) return status;
    Cairn__RoundCommit message = CAIRN__ROUND_COMMIT__INIT;
    message.round = round->round;
    ProtobufCMessage *reply;
    status = cairn_control_ask(job->session, job, CAIRN_MSG_ROUND_COMMIT, &message.base,
                               CAIRN_MSG_ROUND_RESULT, deadline_ms, &reply);
    if (status != CAIRN_OK) return status;
    status = await_none_open(job, &job->pushes_open, "pushes", deadline_ms);
    if (status == CAIRN_OK) status = take_result((const Cairn__RoundResult *)reply, out);
    cairn_message_free(reply);
    return status;
}

cairn_status cairn_commit(cairn_job *handle, const struct cairn_round *round, uint64_t weight,
                          const void *client_state, size_t state_bytes, int timeout_ms,
                          struct cairn_result *out)
{
    struct job *job = job_get(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = check_failed(job);
    if (status == CAIRN_OK && (client_state != NULL || state_bytes != 0))
        status = cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                                   "client_state is not supported yet; give NULL and 0");
    if (status == CAIRN_OK && (out == NULL || out->struct_size != sizeof *out || timeout_ms < 0 ||
                               round == NULL || round->struct_size != sizeof *round))
        status = cairn_client_fail(CAIRN_ERR_INVALID,
                                   "round and out must be given with their struct_size "
                                   "(%zu, %zu), timeout_ms be 0 or more",
                                   sizeof *round, sizeof *out);
    if (status == CAIRN_OK)
        status = commit_inside(job, round, weight, deadline_of(timeout_ms), out);
    cairn_handle_put(handle);
    return status;
}

/* ---- reading ---- */

static cairn_status fetch_inside(struct job *job, struct cairn_version version, const char *tensor,
                                 const char *plane, const struct cairn_box *box,
                                 const struct cairn_mem *mem, cairn_op **op_out)
{
    size_t index;
    cairn_status status = judge_data(job, tensor, box, mem, &index);
    if (status != CAIRN_OK) return status;
    const int number = cairn_plane_number(plane != NULL ? plane : "wire");
    if (number == 0)
        return cairn_client_fail(CAIRN_ERR_NOT_FOUND, "tensor %s has no plane %s", tensor, plane);
    const cairn_dtype dtype = number == CAIRN_PLANE_WIRE ? job->spec.tensors[index].wire
                                                         : CAIRN_F32;
    if (mem->dtype != dtype) return refuse_dtype(tensor, mem, cairn_dtype_name((int)dtype));
    const struct command pattern = { .tensor = (uint32_t)index,
                                     .plane = (uint8_t)number,
                                     .dtype = (uint8_t)dtype,
                                     .ptr = mem->ptr,
                                     .version = version };
    return begin(job, CAIRN_CHUNK_FETCH, cairn_transfer_run, &pattern, op_out);
}

cairn_status cairn_fetch(cairn_job *handle, struct cairn_version version, const char *tensor,
                         const char *plane, const struct cairn_box *box,
                         const struct cairn_mem *mem, cairn_op **op_out)
{
    if (op_out == NULL)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "op_out is NULL: nothing else says when a fetch is done");
    struct job *job = job_get(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = check_failed(job);
    if (status == CAIRN_OK) status = fetch_inside(job, version, tensor, plane, box, mem, op_out);
    cairn_handle_put(handle);
    return status;
}

cairn_status cairn_version_wait(cairn_job *handle, struct cairn_version at_least, int timeout_ms,
                                struct cairn_version *out)
{
    struct job *job = job_get(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = check_failed(job);
    if (status == CAIRN_OK && (out == NULL || timeout_ms < 0))
        status = cairn_client_fail(CAIRN_ERR_INVALID, "out must be given, timeout_ms be 0 or more");
    if (status == CAIRN_OK) {
        Cairn__VersionWait message = CAIRN__VERSION_WAIT__INIT;
        message.generation = at_least.generation;
        message.step = at_least.step;
        ProtobufCMessage *reply;
        status = cairn_control_ask(job->session, job, CAIRN_MSG_VERSION_WAIT, &message.base,
                                   CAIRN_MSG_VERSION_READY, deadline_of(timeout_ms), &reply);
        if (status == CAIRN_OK) {
            const Cairn__VersionReady *ready = (const Cairn__VersionReady *)reply;
            *out = (struct cairn_version) { ready->generation, ready->step };
            cairn_message_free(reply);
        }
    }
    cairn_handle_put(handle);
    return status;
}

cairn_status cairn_snapshot(cairn_job *handle, uint32_t flags, int timeout_ms, char id_out[64])
{
    struct job *job = job_get(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = check_failed(job);
    if (status == CAIRN_OK &&
        (id_out == NULL || timeout_ms < 0 || (flags & ~CAIRN_SNAPSHOT_WAIT) != 0))
        status = cairn_client_fail(CAIRN_ERR_INVALID,
                                   "id_out must be given, timeout_ms be 0 or more, flags 0 "
                                   "or CAIRN_SNAPSHOT_WAIT");
    if (status == CAIRN_OK) {
        Cairn__SnapshotCreate message = CAIRN__SNAPSHOT_CREATE__INIT;
        message.job = job->name;
        message.wait = (flags & CAIRN_SNAPSHOT_WAIT) != 0;
        ProtobufCMessage *reply;
        status = cairn_control_ask(job->session, job, CAIRN_MSG_SNAPSHOT_CREATE, &message.base,
                                   CAIRN_MSG_SNAPSHOT_STATUS, deadline_of(timeout_ms), &reply);
        if (status == CAIRN_OK) {
            const Cairn__SnapshotStatus *snapshot = (const Cairn__SnapshotStatus *)reply;
            strncpy(id_out, snapshot->id, 63);
            id_out[63] = 0;
            cairn_message_free(reply);
        }
    }
    cairn_handle_put(handle);
    return status;
}
