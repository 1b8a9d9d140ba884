/* Leases: a version that is kept while it is read. The library does not renew them: a reader that hangs must
 * not hold the shards' memory. */
#include <sodium.h>

#include "client/api/api.h"
#include "client/ask.h"
#include "client/job.h"
#include "client/op.h"

static cairn_status ask_drop(struct job *job, Cairn__LeaseDrop *message, uint64_t deadline_ms)
{
    return cairn_ask(job, CAIRN_MSG_LEASE_DROP, &message->base, CAIRN_MSG_DONE, deadline_ms, NULL);
}

static bool withdraw_run(struct command *command)
{
    struct session *s = command->job->session;
    Cairn__LeaseDrop message = CAIRN__LEASE_DROP__INIT;
    message.job = command->job->attachment.job;
    message.key = command->round;
    cairn_control_send(s, CAIRN_MSG_LEASE_DROP, ++s->control.last_request, &message.base);
    return true;
}

/* The wish of that key is withdrawn, and what it began ends. Nobody waits for that: unheard, it ends all the
 * same, with its time or with the connection. */
static void withdraw(struct job *job, uint64_t key)
{
    struct command *command = cairn_op_command(job, withdraw_run);
    if (command == NULL) return;
    command->round = key;
    cairn_session_command(job->session, command);
}

/* The layouts by which it is read are kept as long. */
static void note(struct job *job, struct cairn_version version, int ttl_ms)
{
    const uint64_t now_ms = cairn_client_now_ms(), until_ms = now_ms + (uint64_t)ttl_ms;
    struct leased *leased = &job->leased;
    pthread_mutex_lock(&job->session->lock);
    if (leased->until_ms <= now_ms || cairn_version_compare(version, leased->oldest) < 0)
        leased->oldest = version;
    if (until_ms > leased->until_ms) leased->until_ms = until_ms;
    pthread_mutex_unlock(&job->session->lock);
}

static cairn_status take(struct job *job, struct cairn_version version, int ttl_ms,
                         uint64_t deadline_ms, struct cairn_version *out)
{
    Cairn__LeaseTake message = CAIRN__LEASE_TAKE__INIT;
    ProtobufCMessage *reply;
    message.generation = version.generation;
    message.step = version.step;
    message.ttl_ms = (uint32_t)ttl_ms;
    randombytes_buf(&message.key, sizeof message.key);
    message.key |= 1; // not 0
    const cairn_status status = cairn_ask(job, CAIRN_MSG_LEASE_TAKE, &message.base,
                                          CAIRN_MSG_LEASED, deadline_ms, &reply);
    if (status == CAIRN_ERR_TIMEOUT) withdraw(job, message.key);
    if (status != CAIRN_OK) return status;
    const Cairn__Leased *leased = (const Cairn__Leased *)reply;
    *out = (struct cairn_version) { leased->generation, leased->step };
    cairn_message_free(reply);
    note(job, *out, ttl_ms);
    return CAIRN_OK;
}

cairn_status cairn_lease(cairn_job *handle, struct cairn_version version, int ttl_ms,
                         int timeout_ms, struct cairn_version *out)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = cairn_api_judge_call("out", out, timeout_ms);
    if (status == CAIRN_OK && ttl_ms <= 0)
        status = cairn_client_fail(CAIRN_ERR_INVALID, "ttl_ms is %d; give 1 or more", ttl_ms);
    if (status == CAIRN_OK)
        status = take(job, version, ttl_ms, cairn_api_deadline(timeout_ms), out);
    return cairn_api_leave(handle, status);
}

cairn_status cairn_lease_end(cairn_job *handle, struct cairn_version version, int timeout_ms)
{
    struct job *job = cairn_api_job(handle);
    if (job == NULL) return CAIRN_ERR_HANDLE;
    cairn_status status = cairn_api_check(job);
    if (status == CAIRN_OK) status = cairn_api_judge_call(NULL, NULL, timeout_ms);
    if (status == CAIRN_OK) {
        Cairn__LeaseDrop message = CAIRN__LEASE_DROP__INIT;
        message.generation = version.generation;
        message.step = version.step;
        status = ask_drop(job, &message, cairn_api_deadline(timeout_ms));
    }
    return cairn_api_leave(handle, status);
}
