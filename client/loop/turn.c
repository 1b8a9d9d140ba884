/* A turn of the loop thread: what the caller's threads left for it. */
#include <stdlib.h>
#include <string.h>

#include "client/ask.h"
#include "client/job.h"
#include "client/loop/again.h"
#include "client/loop/attach.h"
#include "client/loop/layouts.h"
#include "client/op.h"
#include "client/push/fail.h"
#include "client/push/transfer.h"
#include "client/reading.h"

/* The next ask that can be sent now; one whose job has failed is answered here. */
static struct ask *next_ask(struct session *s)
{
    for (struct ask *ask = s->asks; ask != NULL; ask = ask->next) {
        if (ask->done) continue;
        if (ask->job->failure.status != CAIRN_OK) { // sent or not
            ask->done = true;
            ask->status = ask->job->failure.status;
            ask->why = ask->job->failure.why;
            pthread_cond_broadcast(&s->changed);
        } else if (ask->request == 0 && s->control.ready &&
                   (ask->job->attachment.state == JOB_ATTACHED ||
                    ask->type == CAIRN_MSG_WHO_IS_AWAITED)) { // for whom an attach waits, too
            return ask;
        }
    }
    return NULL;
}

/* The job's number is known only now. A message that is about a job has it as its first field, `job`; in
 * SnapshotCreate that is the job's name. */
static void set_job(ProtobufCMessage *message, uint64_t number)
{
    const ProtobufCFieldDescriptor *first = &message->descriptor->fields[0];
    if (strcmp(first->name, "job") == 0 && first->type == PROTOBUF_C_TYPE_FIXED64)
        memcpy((uint8_t *)message + first->offset, &number, sizeof number);
}

static void send_ask(struct session *s, struct ask *ask)
{
    set_job(ask->message, ask->job->attachment.job);
    ask->request = ++s->control.last_request;
    cairn_control_send(s, ask->type, ask->request, ask->message);
    if (ask->type == CAIRN_MSG_TILES_DECLARE)
        cairn_control_send_pages(s, ask->request, CAIRN_PAGE_TILES,
                                 ask->job->tiles.declaring->packed);
}

static void close_jobs(struct session *s)
{
    for (struct job *job = s->jobs, *next; job != NULL; job = next) {
        next = job->next;
        if (s->loop.stopping) job->closing = true;
        if (job->closing) cairn_attach_release(job);
    }
}

static struct command *next_command(struct session *s, struct command *before)
{
    pthread_mutex_lock(&s->lock);
    struct command *command = before != NULL ? before->next : s->commands.first;
    pthread_mutex_unlock(&s->lock);
    return command;
}

static void free_command(struct session *s, struct command *before, struct command *command)
{
    pthread_mutex_lock(&s->lock);
    if (before != NULL)
        before->next = command->next;
    else
        s->commands.first = command->next;
    if (s->commands.last == command) s->commands.last = before;
    pthread_mutex_unlock(&s->lock);
    cairn_job_unref(command->job);
    cairn_command_free(command);
}

static bool is_of_round(const struct command *command)
{
    return command->op == NULL || command->op->kind == CAIRN_CHUNK_PUSH;
}

/* In the order given, job by job: where one waits for its shards, others go on; and where a push waits for
 * the stream that writes it, what is not of the round goes on. */
static void run_commands(struct session *s)
{
    struct command *before = NULL;
    bool any_awaits = false;
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        job->stalled = job->awaits_stream = false;
    for (struct command *command; (command = next_command(s, before)) != NULL;) {
        struct job *job = command->job;
        const bool awaited = job->awaits_stream;
        const bool waits = job->stalled || (awaited && is_of_round(command));
        if (!waits && command->run(command)) {
            free_command(s, before, command);
            continue;
        }
        // A fetch that waits for its stream keeps nobody from going on.
        if (!waits && command->event == NULL && job->awaits_stream == awaited) job->stalled = true;
        any_awaits = any_awaits || command->event != NULL;
        before = command;
    }
    cairn_loop_look_soon(s, any_awaits);
}

static void cancel(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    const bool cancels = s->cancels;
    s->cancels = false;
    pthread_mutex_unlock(&s->lock);
    for (struct job *job = s->jobs; cancels && job != NULL; job = job->next)
        cairn_transfer_cancel(job);
}

void cairn_turn_run(struct session *s)
{
    const uint64_t now_ms = cairn_client_now_ms();
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (job->broken.status != CAIRN_OK)
            cairn_job_fail(job, job->broken.status, job->broken.why.text);
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (job->attachment.reading != NULL && atomic_load(&job->attachment.reading->is_over))
            cairn_attach_read(job);
    cancel(s);
    run_commands(s);
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (job->pushing.gives_up != 0 && job->attachment.state == JOB_ATTACHED)
            cairn_again_give_up(job);
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (s->control.ready && job->attachment.state == JOB_DETACHED && !job->closing &&
            job->failure.status == CAIRN_OK && now_ms >= job->attachment.at_ms)
            cairn_attach_begin(job);
    pthread_mutex_lock(&s->lock);
    for (struct ask *ask; (ask = next_ask(s)) != NULL;) send_ask(s, ask);
    pthread_mutex_unlock(&s->lock);
    for (struct job *job = s->jobs; job != NULL; job = job->next) cairn_layouts_trim(job);
    close_jobs(s);
}
