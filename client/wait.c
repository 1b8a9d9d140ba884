/* How long a call waits for a worker that is at work on something else; and that a call which waits says for
 * whom. */
#include "client/wait.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "client/job.h"

#define QUIET_MS 5000 /* that a call may wait and say nothing */
#define SAY_MS   60000

struct patience cairn_client_patience(struct job *job, uint64_t deadline_ms)
{
    const uint64_t now_ms = cairn_client_now_ms();
    return (struct patience) { .job = job,
                               .span_ms = deadline_ms > now_ms ? deadline_ms - now_ms : 0,
                               .say_ms = now_ms + QUIET_MS };
}

/* False: the caller waits no longer. */
static bool say(struct patience *p, const char *text, uint32_t paused_ms)
{
    const struct session *s = p->job->session;
    const uint64_t now_ms = cairn_client_now_ms();
    const bool is_due = now_ms >= p->say_ms || !p->said;
    if (is_due) p->say_ms = now_ms + SAY_MS;
    p->said = true;
    if (s->on_wait != NULL)
        return s->on_wait(s->on_wait_context, p->job->name, text, (int)paused_ms);
    if (is_due)
        fprintf(stderr, "cairn: job %s%s %s\n", p->job->name, paused_ms > 0 ? " waits for" : ":",
                text);
    return true;
}

uint64_t cairn_client_says_at(const struct patience *p, uint64_t deadline_ms)
{
    return !p->paused && p->say_ms < deadline_ms ? p->say_ms
                                                 : deadline_ms; // of a pause it says then
}

void cairn_client_say_wait(struct patience *p, const char *text)
{
    (void)say(p, text, 0); // the call has its own time
}

bool cairn_client_waits_on(struct patience *p, const Cairn__Awaited *awaited, uint64_t *deadline_ms)
{
    const uint32_t paused_ms = awaited != NULL ? awaited->paused_ms : 0;
    const bool was_paused = p->paused;
    if (p->span_ms == 0) return false; // it was to be looked at only
    p->paused = paused_ms > 0;
    if (!p->paused && !was_paused) return false;
    if (p->paused && !say(p, awaited->text, paused_ms)) return false;
    // Behind a pause the caller's own time begins again: nobody knows how long it is over.
    *deadline_ms = cairn_client_now_ms() +
                   (p->span_ms < SAY_MS || !p->paused ? p->span_ms : SAY_MS);
    return true;
}

/* Without one no shard is reached, and that is not the shard's fault. */
static bool has_descriptor(const struct session *s)
{
    const int fd = fcntl(s->event_fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return errno != EMFILE && errno != ENFILE;
    close(fd);
    return true;
}

void cairn_client_silence(struct job *job, struct cairn_sentence *out)
{
    if (!has_descriptor(job->session)) {
        cairn_sentence_set(out, "this process may open no descriptor more, and without one it "
                                "reaches no shard: close some, or raise the limit (ulimit -n); ");
        return;
    }
    pthread_mutex_lock(&job->session->lock);
    *out = job->shards.silence;
    pthread_mutex_unlock(&job->session->lock);
    if (out->text[0] != '\0') cairn_sentence_add(out, "; ");
}
