/* The calls that read: fetch, the newest version, its client state, snapshots. */
#include <string.h>

#include "client/api/judge.h"
#include "client/api/list.h"
#include "client/ask.h"
#include "client/device/card.h"
#include "client/op.h"
#include "client/push/transfer.h"

cairn_status cairn_api_plane_of(const char *plane, int *number_out)
{
    *number_out = cairn_plane_number(plane != NULL ? plane : "wire");
    if (*number_out != 0) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_NOT_FOUND,
                             "there is no plane \"%s\"; planes are \"wire\", \"param\", "
                             "\"exp_avg\" (the momentum of sgd, too) and \"exp_avg_sq\"",
                             plane);
}

cairn_status cairn_api_judge_fetch(struct job *job, const char *tensor, int plane,
                                   const struct cairn_box *box, const struct cairn_mem *given,
                                   size_t *tensor_out, struct piece *piece_out,
                                   struct cairn_mem *mem_out)
{
    struct cairn_box of_target;
    cairn_status status = cairn_api_judge_boxed(job, tensor, given, mem_out, tensor_out, &box,
                                                &of_target);
    if (status == CAIRN_OK) status = cairn_api_judge_plane(job, *tensor_out, plane);
    if (status == CAIRN_OK) status = cairn_api_judge_dtype(job, *tensor_out, plane, mem_out);
    if (status == CAIRN_OK) status = cairn_api_judge_box(job, *tensor_out, box, mem_out, piece_out);
    if (status != CAIRN_OK) return status;
    if (!cairn_strides_apart(&piece_out->strides))
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "tensor %s: with these mem.stride elements may share memory; "
                                 "nothing can be fetched there",
                                 tensor);
    if (mem_out->device <= 0 || !piece_out->strides.given) return CAIRN_OK;
    return cairn_client_fail(CAIRN_ERR_UNSUPPORTED,
                             "tensor %s: memory of GPU %d with mem.stride is not written to: "
                             "fetch into dense memory, and copy it from there",
                             tensor, mem_out->device - CAIRN_GPU(0));
}

static cairn_status fetch_inside(struct job *job, struct cairn_version version, const char *tensor,
                                 const char *plane, const struct cairn_box *box,
                                 const struct cairn_mem *given, cairn_op **op_out)
{
    size_t index;
    int number;
    struct cairn_mem mem;
    struct command pattern = { .version = version };
    cairn_status status = cairn_api_plane_of(plane, &number);
    if (status == CAIRN_OK)
        status = cairn_api_judge_fetch(job, tensor, number, box, given, &index, &pattern.piece,
                                       &mem);
    if (status == CAIRN_OK) status = cairn_api_card(&mem, &pattern.card);
    if (status != CAIRN_OK) return status;
    pattern.tensor = (uint32_t)index;
    pattern.plane = (uint8_t)number;
    pattern.dtype = (uint8_t)mem.dtype;
    pattern.ptr = mem.ptr;
    if (pattern.card != NULL) status = cairn_card_mark(pattern.card, mem.stream, &pattern.event);
    if (status == CAIRN_OK)
        status = cairn_op_begin(job, CAIRN_CHUNK_FETCH, cairn_transfer_run, &pattern, op_out);
    if (status != CAIRN_OK) cairn_card_event_free(pattern.event);
    return status;
}

cairn_status cairn_fetch(cairn_job *handle, struct cairn_version version, const char *tensor,
                         const char *plane, const struct cairn_box *box,
                         const struct cairn_mem *mem, cairn_op **op_out)
{
    if (op_out == NULL)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "op_out is NULL: nothing else says when a fetch is done");
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = fetch_inside(job, version, tensor, plane, box, mem, op_out);
    return cairn_api_leave(handle, status);
}

static cairn_status wait_version(struct job *job, Cairn__VersionWait *message, int timeout_ms,
                                 Cairn__VersionReady **ready_out)
{
    message->timeout_ms = (uint32_t)timeout_ms;
    return cairn_ask(job, CAIRN_MSG_VERSION_WAIT, &message->base, CAIRN_MSG_VERSION_READY,
                     cairn_api_deadline(timeout_ms), (ProtobufCMessage **)ready_out);
}

cairn_status cairn_version_wait(cairn_job *handle, struct cairn_version at_least, int timeout_ms,
                                struct cairn_version *out)
{
    Cairn__VersionReady *ready;
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = cairn_api_judge_call("out", out, timeout_ms);
    if (status == CAIRN_OK) {
        Cairn__VersionWait message = CAIRN__VERSION_WAIT__INIT;
        message.generation = at_least.generation;
        message.step = at_least.step;
        status = wait_version(job, &message, timeout_ms, &ready);
    }
    if (status == CAIRN_OK) {
        *out = (struct cairn_version) { ready->generation, ready->step };
        cairn_message_free(&ready->base);
        pthread_mutex_lock(&job->session->lock);
        job->known.initialized = true;
        job->known.newest = *out;
        pthread_mutex_unlock(&job->session->lock);
    }
    return cairn_api_leave(handle, status);
}

static cairn_status give_state(const Cairn__VersionReady *ready, void *buffer, size_t capacity,
                               size_t *bytes_out, struct cairn_version *version_out)
{
    *bytes_out = ready->client_state.len;
    if (ready->client_state.len > capacity)
        return cairn_client_fail(CAIRN_ERR_INVALID,
                                 "the client state has %zu bytes, there is room for %zu",
                                 ready->client_state.len, capacity);
    if (ready->client_state.len > 0)
        memcpy(buffer, ready->client_state.data, ready->client_state.len);
    if (version_out != NULL)
        *version_out = (struct cairn_version) { ready->generation, ready->step };
    return CAIRN_OK;
}

cairn_status cairn_client_state(cairn_job *handle, void *buffer, size_t capacity, int timeout_ms,
                                size_t *bytes_out, struct cairn_version *version_out)
{
    Cairn__VersionReady *ready;
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = cairn_api_judge_call("bytes_out", bytes_out, timeout_ms);
    if (status == CAIRN_OK && buffer == NULL && capacity > 0)
        status = cairn_client_fail(CAIRN_ERR_INVALID,
                                   "buffer is NULL, and capacity %zu; NULL goes with 0", capacity);
    if (status == CAIRN_OK) {
        Cairn__VersionWait message = CAIRN__VERSION_WAIT__INIT;
        message.client_state = true;
        status = wait_version(job, &message, timeout_ms, &ready);
    }
    if (status == CAIRN_OK) {
        status = give_state(ready, buffer, capacity, bytes_out, version_out);
        cairn_message_free(&ready->base);
    }
    return cairn_api_leave(handle, status);
}

cairn_status cairn_snapshot(cairn_job *handle, uint32_t flags, int timeout_ms, char id_out[64])
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = cairn_api_judge_call("id_out", id_out, timeout_ms);
    if (status == CAIRN_OK && (flags & ~CAIRN_SNAPSHOT_WAIT) != 0)
        status = cairn_client_fail(CAIRN_ERR_INVALID,
                                   "flags is %u; allowed: 0, CAIRN_SNAPSHOT_WAIT (1)", flags);
    if (status == CAIRN_OK) {
        Cairn__SnapshotCreate message = CAIRN__SNAPSHOT_CREATE__INIT;
        message.job = job->name;
        message.wait = (flags & CAIRN_SNAPSHOT_WAIT) != 0;
        ProtobufCMessage *reply;
        status = cairn_ask(job, CAIRN_MSG_SNAPSHOT_CREATE, &message.base, CAIRN_MSG_SNAPSHOT_STATUS,
                           cairn_api_deadline(timeout_ms), &reply);
        if (status == CAIRN_OK) {
            const Cairn__SnapshotStatus *snapshot = (const Cairn__SnapshotStatus *)reply;
            strncpy(id_out, snapshot->id, 63);
            id_out[63] = 0;
            cairn_message_free(reply);
        }
    }
    return cairn_api_leave(handle, status);
}
