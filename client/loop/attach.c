#include "client/loop/attach.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/job.h"
#include "client/loop/again.h"
#include "client/loop/layouts.h"
#include "client/loop/link.h"
#include "client/op.h"
#include "client/push/fail.h"
#include "client/reading.h"

/* After the coordinator said not now: the spec may be large. */
#define RETRY_MIN_MS 100
#define RETRY_MAX_MS 1000

void cairn_attach_begin(struct job *job)
{
    struct session *s = job->session;
    Cairn__JobOpen open = CAIRN__JOB_OPEN__INIT;
    open.name = job->name;
    open.role = job->member.role == CAIRN_READER ? CAIRN_ROLE_WIRE_READER : CAIRN_ROLE_WIRE_WORKER;
    open.rank = job->member.rank;
    open.session = job->member.id;
    open.token = job->member.token;
    open.spec_bytes = job->attachment.spec_packed != NULL ? job->attachment.spec_packed->size : 0;
    open.start_wait_ms = job->attachment.start_wait_ms;
    open.attached = job->attachment.attached_once ? job->attachment.job
                                                  : 0; // it is not to be made anew
    open.must_exist = (job->attachment.open_flags & CAIRN_OPEN_MUST_EXIST) != 0;
    open.resume_latest = (job->attachment.open_flags & CAIRN_OPEN_RESUME) != 0;
    open.must_not_exist = (job->attachment.open_flags & CAIRN_OPEN_MUST_NOT_EXIST) != 0;
    open.takeover = (job->attachment.open_flags & CAIRN_OPEN_TAKEOVER) != 0 &&
                    !job->attachment.attached_once; // it has the place since, or has lost it
    open.run = s->run;
    open.restarts = s->restarts;
    open.seen_epoch = job->attachment.seen_epoch;
    open.seen_store = job->attachment.seen_store;
    job->attachment.state = JOB_ATTACHING;
    cairn_attachment_put_off(job, "");
    pthread_mutex_lock(&s->lock);
    open.world = job->attachment.launch;
    pthread_mutex_unlock(&s->lock);
    job->attachment.request = ++s->control.last_request;
    cairn_control_send(s, CAIRN_MSG_JOB_OPEN, job->attachment.request, &open.base);
    if (job->attachment.spec_packed != NULL)
        cairn_control_send_pages(s, job->attachment.request, CAIRN_PAGE_SPEC,
                                 job->attachment.spec_packed);
}

/* It was there, and lost while its shards heard of us: asked again, once, it is restored. */
static bool was_lost_under_way(struct job *job, cairn_status status)
{
    const bool resumes = (job->attachment.open_flags & CAIRN_OPEN_RESUME) != 0 &&
                         !job->attachment.attached_once;
    const bool again = resumes && status == CAIRN_ERR_JOB_LOST && !job->attachment.lost_under_way;
    job->attachment.lost_under_way |= again;
    return again;
}

void cairn_attach_differ(struct job *job, const Cairn__Error *error)
{
    uint8_t *bytes = malloc(cairn__error__get_packed_size(error) + 1);
    if (bytes != NULL && error->n_differences > 0 && job->attachment.refused == NULL)
        job->attachment.refused = cairn__error__unpack(NULL, cairn__error__pack(error, bytes),
                                                       bytes);
    free(bytes);
}

void cairn_attach_on_error(struct job *job, cairn_status status, const char *text)
{
    cairn_attachment_lost(job);
    if (status != CAIRN_ERR_BUSY && status != CAIRN_ERR_NOT_READY &&
        !was_lost_under_way(job, status)) {
        cairn_job_fail(job, status, text);
        return;
    }
    cairn_attachment_put_off(job, text);
    const uint32_t twice_ms = 2 * job->attachment.delay_ms;
    job->attachment.delay_ms = twice_ms < RETRY_MIN_MS   ? RETRY_MIN_MS
                               : twice_ms > RETRY_MAX_MS ? RETRY_MAX_MS
                                                         : twice_ms;
    job->attachment.at_ms = cairn_client_now_ms() + job->attachment.delay_ms;
}

/* ---- what Attached brings ---- */

/* A restore that nobody could tell of: it was while the coordinator was away. */
static cairn_status judge_step(const struct job *job, struct cairn_sentence *why)
{
    const uint64_t now = job->attachment.reply->step;
    pthread_mutex_lock(&job->session->lock);
    const uint64_t was = job->known.newest.step;
    pthread_mutex_unlock(&job->session->lock);
    if (!job->attachment.attached_once || now >= was) return CAIRN_OK;
    cairn_sentence_set(
        why,
        "job %s was restored: it was at step %llu, and is at step %llu; close it and open it again",
        job->name, (unsigned long long)was, (unsigned long long)now);
    return CAIRN_ERR_ROLLED_BACK;
}

/* Takes over the spec that the reading thread has read. Only the first one becomes the job's
 * spec. */
static cairn_status take_spec(struct job *job, struct reading *reading, struct cairn_sentence *why)
{
    if (reading->tells_clip_norm) cairn_job_note_clip_norm(job, reading->clip_norm);
    if (reading->spec_status != CAIRN_OK) {
        *why = reading->why;
        return reading->spec_status;
    }
    if (reading->takes_spec) {
        const struct cairn_job_spec_data was = job->spec;
        job->spec = reading->spec;
        reading->spec = was; // freed with it
    }
    return CAIRN_OK;
}

/* A coordinator that lives on took the member for lost and had the shards cut their endpoints to it; both
 * ends begin anew. A new coordinator did not: connections stay, and what is under way on them goes on. */
static void restart_links(struct job *job)
{
    for (uint32_t i = 0; i < job->shards.count; i++)
        cairn_chunk_link_restart(&job->shards.links[i]->conn);
}

/* For lack of memory an open fails, and may be tried again; a job that was open is attached anew. */
static void give_up(struct job *job, cairn_status status, const char *why)
{
    if (status != CAIRN_ERR_NO_MEMORY)
        cairn_job_fail(job, status, why);
    else if (job->attachment.attached_once)
        cairn_control_starve(job->session, "Attached");
    else
        cairn_job_fail(job, status, "out of memory for the job's spec and layout");
}

void cairn_attach_read(struct job *job)
{
    struct session *s = job->session;
    const Cairn__Attached *a = job->attachment.reply;
    struct reading *reading = job->attachment.reading;
    struct cairn_sentence why;
    cairn_reading_await(reading);
    cairn_sentence_set(&why, "the coordinator sent a layout that is not one of this job");
    cairn_status status = take_spec(job, reading, &why);
    if (status == CAIRN_OK) status = judge_step(job, &why);
    if (status == CAIRN_OK) status = cairn_layouts_attached(job, reading, &why);
    if (status != CAIRN_OK) {
        cairn_attachment_drop_pages(&job->attachment);
        give_up(job, status, why.text);
        return;
    }
    job->attachment.state = JOB_ATTACHED;
    job->attachment.delay_ms = 0;
    if (job->attachment.attached_once && s->control.was_given_up) {
        restart_links(job);
        job->reads.told_before = job->reads.told; // it has them from the member that is gone
    }
    job->reads.told = job->reads.told_before;
    pthread_mutex_lock(&s->lock);
    job->attachment.job = a->job;
    if (!job->attachment.attached_once) {
        job->known.found = a->step > a->first_step;
        job->known.found_step = a->step;
        snprintf(job->known.made_by, sizeof job->known.made_by, "%s", a->made_by);
    }
    job->attachment.attached_once = true;
    job->known.initialized = a->initialized;
    job->known.newest = (struct cairn_version) { a->generation, a->step };
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    cairn_attachment_drop_pages(&job->attachment);
    cairn_layouts_apply(job);
    cairn_again_tiles(job);
    cairn_again_ask_round(job);
    cairn_again_pause(job);
    cairn_session_kick(s);
}

void cairn_attach_on_attached(struct job *job, Cairn__Attached *message)
{
    cairn_attachment_drop_pages(&job->attachment);
    job->attachment.reply = message;
    cairn_status status = cairn_paged_init(&job->attachment.spec_pages, message->spec_bytes);
    if (status == CAIRN_OK)
        status = cairn_paged_init(&job->attachment.layout_pages, message->layout_bytes);
    if (message->n_shards > CAIRN_CLIENT_SHARDS_MAX) status = CAIRN_ERR_PROTOCOL;
    if (status != CAIRN_OK)
        cairn_job_fail(job, status, "the coordinator announced too large a job");
}

static void begin_reading(struct job *job)
{
    const cairn_status status = cairn_reading_begin(job);
    if (status != CAIRN_OK)
        give_up(job, status, "");
    else if (atomic_load(&job->attachment.reading->is_over))
        cairn_attach_read(job);
}

void cairn_attach_on_page(struct job *job, const Cairn__Page *page)
{
    if (job->attachment.reply == NULL) return;
    struct cairn_paged *paged = page->what == CAIRN_PAGE_SPEC ? &job->attachment.spec_pages
                                                              : &job->attachment.layout_pages;
    cairn_status status = cairn_paged_add(paged, page);
    if (status != CAIRN_OK)
        give_up(job, status, "the coordinator sent the pages of the job out of order");
    else if (cairn_paged_whole(&job->attachment.spec_pages) &&
             cairn_paged_whole(&job->attachment.layout_pages))
        begin_reading(job);
}

/* ---- the list, and the end ---- */

bool cairn_attach_list_run(struct command *command)
{
    struct job *job = command->job;
    struct session *s = job->session;
    command->job = NULL;
    pthread_mutex_lock(&s->lock);
    job->next = s->jobs;
    s->jobs = job;
    pthread_mutex_unlock(&s->lock);
    return true;
}

static bool loans_are_back(const struct job *job)
{
    for (uint32_t i = 0; i < job->shards.count; i++)
        if (job->shards.links[i]->conn.on_loan > 0) return false;
    return true;
}

static void unlink_job(struct job *job)
{
    struct session *s = job->session;
    pthread_mutex_lock(&s->lock);
    struct job **link = &s->jobs;
    while (*link != job) link = &(*link)->next;
    *link = job->next;
    job->closed = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void cairn_attach_release(struct job *job)
{
    cairn_attachment_drop_pages(&job->attachment);
    if (job->failure.status == CAIRN_OK) {
        struct cairn_sentence closed;
        cairn_sentence_set(&closed, "job %s was closed", job->name);
        cairn_fail_calls(job, CAIRN_ERR_CANCELED, closed.text);
        cairn_session_kick(job->session); // asks are answered by it
    }
    // A member that is given up while it attaches has no number to leave by. The end of the connection tells
    // the coordinator, which would else await a worker that nobody drives, and fence the next of its rank.
    if (job->attachment.state == JOB_ATTACHING && job->session->control.stream != NULL)
        cairn_stream_close(job->session->control.stream, CAIRN_OK, "job %s was given up",
                           job->name);
    if (job->attachment.state == JOB_ATTACHED) {
        Cairn__JobLeave leave = CAIRN__JOB_LEAVE__INIT;
        leave.job = job->attachment.job;
        leave.fetched_shared = cairn_control_job_read(job);
        cairn_control_send(job->session, CAIRN_MSG_JOB_LEAVE, 0, &leave.base);
    }
    cairn_fail_parcels(job, CAIRN_ERR_CANCELED);
    for (uint32_t i = 0; i < job->shards.count; i++)
        cairn_chunk_link_close(&job->shards.links[i]->conn);
    if (!loans_are_back(job)) return; // the fabric gives them back soon; the tick comes again
    cairn_bodies_release(job);
    cairn_pushes_release(job);
    cairn_links_release(job);
    unlink_job(job);
    cairn_job_unref(job);
}
