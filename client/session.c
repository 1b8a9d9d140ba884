#include "client/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/device/import.h"
#include "client/job.h"
#include "client/op.h"

void cairn_session_say(const struct session *s, const char *what)
{
    if (s->on_wait == NULL) fprintf(stderr, "cairn: %s\n", what);
}

void cairn_session_kick(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    // After the end the loop is gone, and libuv aborts on a dead handle.
    if (!s->ended) uv_async_send(&s->loop.kick);
    pthread_mutex_unlock(&s->lock);
}

#define WAKE_US 100

static void wake_now(struct session *s)
{
    const uint64_t one = 1;
    pthread_cond_broadcast(&s->changed);
    if (s->wake.tells) {
        const ssize_t written = write(s->event_fd, &one, sizeof one);
        (void)written; // a full counter is readable already
    }
    s->wake.is_due = s->wake.tells = false;
}

void cairn_session_wake(struct session *s, bool tells)
{
    const uint64_t now_us = cairn_client_now_us();
    s->wake.tells = s->wake.tells || tells;
    s->wake.is_due = now_us - s->wake.last_us < WAKE_US &&
                     pthread_equal(pthread_self(), s->loop.thread) != 0;
    if (s->wake.is_due) return;
    s->wake.last_us = now_us;
    wake_now(s);
}

void cairn_session_wake_due(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    if (s->wake.is_due) wake_now(s);
    pthread_mutex_unlock(&s->lock);
}

bool cairn_session_sleep(struct session *s, uint64_t deadline_ms)
{
    const struct timespec until = { .tv_sec = (time_t)(deadline_ms / 1000),
                                    .tv_nsec = (long)(deadline_ms % 1000) * 1000000 };
    return pthread_cond_timedwait(&s->changed, &s->lock, &until) != ETIMEDOUT;
}

static void end_command(struct command *command)
{
    if (command->op != NULL)
        cairn_op_let_go(command->op, CAIRN_ERR_CLOSED, "the session is closed");
    cairn_job_unref(command->job);
    cairn_command_free(command);
}

void cairn_session_commands(struct session *s, struct command *first, struct command *last)
{
    last->next = NULL;
    pthread_mutex_lock(&s->lock);
    const bool ended = s->ended;
    if (!ended && s->commands.last != NULL)
        s->commands.last->next = first;
    else if (!ended)
        s->commands.first = first;
    if (!ended) s->commands.last = last;
    pthread_mutex_unlock(&s->lock);
    for (struct command *next; ended && first != NULL; first = next) {
        next = first->next;
        end_command(first);
    }
    cairn_session_kick(s);
}

void cairn_session_command(struct session *s, struct command *command)
{
    cairn_session_commands(s, command, command);
}

void cairn_session_unref(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    const uint32_t left = --s->refs;
    pthread_mutex_unlock(&s->lock);
    if (left > 0) return;
    cairn_ops_release(s);
    cairn_memory_release(s);
    cairn_card_imports_close(s->imports);
    cairn_streams_release(s);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    close(s->event_fd);
    free(s->name);
    free(s);
}
