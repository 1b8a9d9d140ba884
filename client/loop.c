#include "client/loop.h"

#include <inttypes.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/device.h"
#include "client/job.h"
#include "client/op.h"
#include "client/push.h"
#include "client/read.h"
#include "proto/base/machine.h"

#define DESCRIPTORS 32 /* that a session opens at most before it is welcome; 21 were counted */
#define THREADS     2  /* ours, and UCX's */
#define TICK_MS     50
#define SOON_MS     1   /* an event of a stream tells nobody */
#define STOP_MS     300 /* what is under way may end by itself for so long */
#define GOODBYE_MS  300
#define STREAMS_MS  1000 /* then a stream may hold up this thread, and is let go */

static void detach_turn(struct session *s);
static void attach_release(struct job *job);
static void again_give_up(struct job *job);
static void attach_begin(struct job *job);
static void again_tiles(struct job *job);
static void again_ask_round(struct job *job);
static void again_pause(struct job *job);

/* ---- the thread ---- */

static void on_walk_close(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

/* Whatever is open in it is closed. */
static void cut_loop(struct session *s)
{
    uv_walk(&s->loop.uv, on_walk_close, NULL);
    uv_run(&s->loop.uv, UV_RUN_DEFAULT);
    uv_loop_close(&s->loop.uv);
}

/* The coordinator does not read to the end of what we said. */
static void on_goodbye_late(uv_timer_t *tick)
{
    struct session *s = tick->data;
    if (s->control.stream != NULL)
        stream_close(s->control.stream, CAIRN_OK, "the session is closed");
    uv_close((uv_handle_t *)tick, NULL);
}

static void stop_loop(struct session *s)
{
    datapath_close(s);
    uv_close((uv_handle_t *)&s->loop.kick, NULL);
    uv_close((uv_handle_t *)&s->loop.soon, NULL);
    uv_close((uv_handle_t *)&s->loop.rest, NULL);
    uv_timer_start(&s->loop.tick, on_goodbye_late, GOODBYE_MS, 0);
    if (s->control.stream != NULL)
        stream_finish(s->control.stream, CAIRN_OK, "the session is closed");
    else
        uv_close((uv_handle_t *)&s->loop.tick, NULL);
}

/* Maps what was put off while a stream waited. */
static void map_late(struct session *s)
{
    if (!card_imports_wait(s->imports) || !card_change_begin()) return;
    card_imports_turn(s->imports);
    card_change_end();
    mapped_settle(s);
}

static void on_kick(uv_async_t *kick)
{
    struct session *s = kick->data;
    if (s->ended) return; // set by this thread
    memory_show(s);
    mapped_sweep(s);
    map_late(s);
    detach_turn(s);
    turn_run(s);
    for (struct job *job = s->jobs; job != NULL; job = job->next) explain_awaited(job);
    if (s->loop.stopping && s->jobs != NULL && client_now_ms() >= s->loop.stop_by_ms) {
        datapath_close(s);
        turn_run(s); // the jobs have their loans back, and go
    }
    pthread_mutex_lock(&s->lock);
    s->ended = s->loop.stopping && s->jobs == NULL && s->commands.first == NULL;
    if (s->ended) pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->ended) stop_loop(s);
}

static void on_rest(uv_prepare_t *rest)
{
    struct session *s = rest->data;
    for (struct job *job = s->jobs; job != NULL; job = job->next) stage_end_landed(job);
    session_wake_due(s);
}

static void on_tick(uv_timer_t *tick)
{
    struct session *s = tick->data;
    control_tick(s);
    on_kick(&s->loop.kick);
}

static void on_soon(uv_timer_t *soon)
{
    on_kick(&((struct session *)soon->data)->loop.kick);
}

/* Loop thread: looks at what waits for streams every millisecond, or not any more. */
static void loop_look_soon(struct session *s, bool looks)
{
    if (looks == (uv_is_active((uv_handle_t *)&s->loop.soon) != 0)) return;
    if (looks)
        uv_timer_start(&s->loop.soon, on_soon, SOON_MS, SOON_MS);
    else
        uv_timer_stop(&s->loop.soon);
}

static void *session_thread(void *arg)
{
    struct session *s = arg;
    control_tick(s);
    uv_run(&s->loop.uv, UV_RUN_DEFAULT);
    if (uv_loop_close(&s->loop.uv) != 0) cut_loop(s); // a stream that would not end
    return NULL;
}

/* ---- its beginning and end ---- */

/* Judges whether a session's descriptors and threads can be had, before libraries take them;
 * proto/base/machine.h says why. */
static cairn_status find_room(const struct session *s)
{
    struct sentence why = { "" };
    cairn_status status = descriptors_at_hand(s->event_fd, DESCRIPTORS, "a session", &why);
    if (status == CAIRN_OK) status = threads_at_hand(THREADS, "a session", &why);
    return status == CAIRN_OK ? CAIRN_OK : client_fail(status, "%s", why.text);
}

static cairn_status open_fabric(struct session *s)
{
    struct sentence why = { "" };
    const cairn_status status = datapath_open(s, &why);
    return status == CAIRN_OK ? status
                              : client_fail(status, "the data path cannot be opened: %s", why.text);
}

static cairn_status init_loop(struct session *s)
{
    int error = uv_loop_init(&s->loop.uv);
    if (error != 0)
        return client_fail(CAIRN_ERR_NO_MEMORY, "no event loop: %s", uv_strerror(error));
    error = uv_async_init(&s->loop.uv, &s->loop.kick, on_kick);
    if (error == 0) error = uv_timer_init(&s->loop.uv, &s->loop.tick);
    if (error == 0) error = uv_timer_init(&s->loop.uv, &s->loop.soon);
    if (error == 0) error = uv_timer_start(&s->loop.tick, on_tick, TICK_MS, TICK_MS);
    if (error == 0) error = uv_prepare_init(&s->loop.uv, &s->loop.rest);
    if (error == 0) error = uv_prepare_start(&s->loop.rest, on_rest);
    s->loop.kick.data = s->loop.tick.data = s->loop.soon.data = s->loop.rest.data = s;
    if (error == 0 && (s->path.fabric == NULL ||
                       fabric_poll_init(&s->path.poll, &s->loop.uv, s->path.fabric, 0) == CAIRN_OK))
        return CAIRN_OK;
    cut_loop(s);
    return client_fail(CAIRN_ERR_NO_MEMORY, "no event loop: out of descriptors or memory");
}

static cairn_status start_thread(struct session *s)
{
    const int error = pthread_create(&s->loop.thread, NULL, session_thread, s);
    return error == 0 ? CAIRN_OK
                      : client_fail(CAIRN_ERR_NO_MEMORY, "no thread: %s", strerror(error));
}

static cairn_status open_inside(struct session *s)
{
    CAIRN_TRY(open_fabric(s));
    cairn_status status = init_loop(s);
    if (status == CAIRN_OK) {
        status = start_thread(s);
        if (status == CAIRN_OK) return CAIRN_OK;
        if (s->path.fabric != NULL) fabric_poll_close(&s->path.poll, NULL, NULL);
        cut_loop(s);
    }
    fabric_close(s->path.fabric);
    return status;
}

/* The library's threads, UCX's own included, take no signal of their host's. */
cairn_status loop_start(struct session *s)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    cairn_status status = find_room(s);
    if (status == CAIRN_OK) status = open_inside(s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return status;
}

void loop_stop(struct session *s)
{
    s->loop.stop_by_ms = client_now_ms() + STOP_MS;
    s->loop.stopping = true;
    streams_close_at(s, client_now_ms() + STREAMS_MS);
    session_kick(s);
    pthread_join(s->loop.thread, NULL);
    streams_end(s);
}

/* ==== turn ==== */

/* A turn of the loop thread: what the caller's threads left for it. */

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
    control_send(s, ask->type, ask->request, ask->message);
    if (ask->type == CAIRN_MSG_TILES_DECLARE)
        control_send_pages(s, ask->request, CAIRN_PAGE_TILES, ask->job->tiles.declaring->packed);
}

static void close_jobs(struct session *s)
{
    for (struct job *job = s->jobs, *next; job != NULL; job = next) {
        next = job->next;
        if (s->loop.stopping) job->closing = true;
        if (job->closing) attach_release(job);
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
    job_unref(command->job);
    command_free(command);
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
    loop_look_soon(s, any_awaits);
}

static void cancel_ops(struct session *s)
{
    pthread_mutex_lock(&s->lock);
    const bool cancels = s->cancels;
    s->cancels = false;
    pthread_mutex_unlock(&s->lock);
    for (struct job *job = s->jobs; cancels && job != NULL; job = job->next) transfer_cancel(job);
}

void turn_run(struct session *s)
{
    const uint64_t now_ms = client_now_ms();
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (job->broken.status != CAIRN_OK) job_fail(job, job->broken.status, job->broken.why.text);
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (job->attachment.reading != NULL && atomic_load(&job->attachment.reading->is_over))
            attach_read(job);
    cancel_ops(s);
    run_commands(s);
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (job->pushing.gives_up != 0 && job->attachment.state == JOB_ATTACHED) again_give_up(job);
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (s->control.ready && job->attachment.state == JOB_DETACHED && !job->closing &&
            job->failure.status == CAIRN_OK && now_ms >= job->attachment.at_ms)
            attach_begin(job);
    pthread_mutex_lock(&s->lock);
    for (struct ask *ask; (ask = next_ask(s)) != NULL;) send_ask(s, ask);
    pthread_mutex_unlock(&s->lock);
    for (struct job *job = s->jobs; job != NULL; job = job->next) layouts_trim(job);
    close_jobs(s);
}

/* ==== attach ==== */

/* After the coordinator said not now: the spec may be large. */
#define RETRY_MIN_MS 100
#define RETRY_MAX_MS 1000

static void attach_begin(struct job *job)
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
    attachment_put_off(job, "");
    pthread_mutex_lock(&s->lock);
    open.world = job->attachment.launch;
    pthread_mutex_unlock(&s->lock);
    job->attachment.request = ++s->control.last_request;
    control_send(s, CAIRN_MSG_JOB_OPEN, job->attachment.request, &open.base);
    if (job->attachment.spec_packed != NULL)
        control_send_pages(s, job->attachment.request, CAIRN_PAGE_SPEC,
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

void attach_differ(struct job *job, const Cairn__Error *error)
{
    uint8_t *bytes = malloc(cairn__error__get_packed_size(error) + 1);
    if (bytes != NULL && error->n_differences > 0 && job->attachment.refused == NULL)
        job->attachment.refused = cairn__error__unpack(NULL, cairn__error__pack(error, bytes),
                                                       bytes);
    free(bytes);
}

void attach_on_error(struct job *job, cairn_status status, const char *text)
{
    attachment_lost(job);
    if (status != CAIRN_ERR_BUSY && status != CAIRN_ERR_NOT_READY &&
        !was_lost_under_way(job, status)) {
        job_fail(job, status, text);
        return;
    }
    attachment_put_off(job, text);
    const uint32_t twice_ms = 2 * job->attachment.delay_ms;
    job->attachment.delay_ms = twice_ms < RETRY_MIN_MS   ? RETRY_MIN_MS
                               : twice_ms > RETRY_MAX_MS ? RETRY_MAX_MS
                                                         : twice_ms;
    job->attachment.at_ms = client_now_ms() + job->attachment.delay_ms;
}

/* ---- what Attached brings ---- */

/* A restore that nobody could tell of: it was while the coordinator was away. */
static cairn_status judge_step(const struct job *job, struct sentence *why)
{
    const uint64_t now = job->attachment.reply->step;
    pthread_mutex_lock(&job->session->lock);
    const uint64_t was = job->known.newest.step;
    pthread_mutex_unlock(&job->session->lock);
    if (!job->attachment.attached_once || now >= was) return CAIRN_OK;
    sentence_set(why,
                 "job %s was restored: it was at step %" PRIu64 ", and is at step %" PRIu64
                 "; close it and open it again",
                 job->name, was, now);
    return CAIRN_ERR_ROLLED_BACK;
}

/* Takes over the spec that the reading thread has read. Only the first one becomes the job's
 * spec. */
static cairn_status adopt_spec(struct job *job, struct reading *reading, struct sentence *why)
{
    if (reading->tells_clip_norm) job_note_clip_norm(job, reading->clip_norm);
    if (reading->spec_status != CAIRN_OK) {
        *why = reading->why;
        return reading->spec_status;
    }
    if (reading->takes_spec) {
        const struct job_spec_data was = job->spec;
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
        chunk_link_restart(&job->shards.links[i]->conn);
}

/* For lack of memory an open fails, and may be tried again; a job that was open is attached anew. */
static void give_up(struct job *job, cairn_status status, const char *why)
{
    if (status != CAIRN_ERR_NO_MEMORY)
        job_fail(job, status, why);
    else if (job->attachment.attached_once)
        control_starve(job->session, "Attached");
    else
        job_fail(job, status, "out of memory for the job's spec and layout");
}

void attach_read(struct job *job)
{
    struct session *s = job->session;
    const Cairn__Attached *a = job->attachment.reply;
    struct reading *reading = job->attachment.reading;
    struct sentence why;
    reading_await(reading);
    sentence_set(&why, "the coordinator sent a layout that is not one of this job");
    cairn_status status = adopt_spec(job, reading, &why);
    if (status == CAIRN_OK) status = judge_step(job, &why);
    if (status == CAIRN_OK) status = layouts_attached(job, reading, &why);
    if (status != CAIRN_OK) {
        attachment_drop_pages(&job->attachment);
        give_up(job, status, why.text);
        return;
    }
    job->attachment.state = JOB_ATTACHED;
    job->attachment.delay_ms = 0;
    if (job->attachment.attached_once && s->control.was_given_up) {
        restart_links(job);
        job->reads.reported_before =
            job->reads.reported; // it has them from the member that is gone
    }
    job->reads.reported = job->reads.reported_before;
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
    attachment_drop_pages(&job->attachment);
    layouts_apply(job);
    again_tiles(job);
    again_ask_round(job);
    again_pause(job);
    session_kick(s);
}

void attach_on_attached(struct job *job, Cairn__Attached *message)
{
    attachment_drop_pages(&job->attachment);
    job->attachment.reply = message;
    cairn_status status = paged_init(&job->attachment.spec_pages, message->spec_bytes);
    if (status == CAIRN_OK)
        status = paged_init(&job->attachment.layout_pages, message->layout_bytes);
    if (message->n_shards > CAIRN_CLIENT_SHARDS_MAX) status = CAIRN_ERR_PROTOCOL;
    if (status != CAIRN_OK) job_fail(job, status, "the coordinator announced too large a job");
}

static void begin_reading(struct job *job)
{
    const cairn_status status = reading_begin(job);
    if (status != CAIRN_OK)
        give_up(job, status, "");
    else if (atomic_load(&job->attachment.reading->is_over))
        attach_read(job);
}

void attach_on_page(struct job *job, const Cairn__Page *page)
{
    if (job->attachment.reply == NULL) return;
    struct paged *paged = page->what == CAIRN_PAGE_SPEC ? &job->attachment.spec_pages
                                                        : &job->attachment.layout_pages;
    cairn_status status = paged_add(paged, page);
    if (status != CAIRN_OK)
        give_up(job, status, "the coordinator sent the pages of the job out of order");
    else if (paged_whole(&job->attachment.spec_pages) && paged_whole(&job->attachment.layout_pages))
        begin_reading(job);
}

/* ---- the list, and the end ---- */

bool attach_list_run(struct command *command)
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

/* The job is closing: leaves it, and takes it out of the list once the fabric has nothing of it on loan. */
static void attach_release(struct job *job)
{
    attachment_drop_pages(&job->attachment);
    if (job->failure.status == CAIRN_OK) {
        struct sentence closed;
        sentence_set(&closed, "job %s was closed", job->name);
        fail_calls(job, CAIRN_ERR_CANCELED, closed.text);
        session_kick(job->session); // asks are answered by it
    }
    // A member that is given up while it attaches has no number to leave by. The end of the connection tells
    // the coordinator, which would else await a worker that nobody drives, and fence the next of its rank.
    if (job->attachment.state == JOB_ATTACHING && job->session->control.stream != NULL)
        stream_close(job->session->control.stream, CAIRN_OK, "job %s was given up", job->name);
    if (job->attachment.state == JOB_ATTACHED) {
        Cairn__JobLeave leave = CAIRN__JOB_LEAVE__INIT;
        leave.job = job->attachment.job;
        leave.fetched_shared = control_job_read(job);
        control_send(job->session, CAIRN_MSG_JOB_LEAVE, 0, &leave.base);
    }
    fail_parcels(job, CAIRN_ERR_CANCELED);
    for (uint32_t i = 0; i < job->shards.count; i++) chunk_link_close(&job->shards.links[i]->conn);
    if (!loans_are_back(job)) return; // the fabric gives them back soon; the tick comes again
    served_layouts_release(job);
    pushes_release(job);
    links_release(job);
    unlink_job(job);
    job_unref(job);
}

/* ==== detach ==== */

/* A process that maps memory of a GPU which another process owns cannot be restored from a
 * checkpoint. A trainer may therefore let go of such memory for a while: the fabric sends the
 * shards away, and they come back when they are let in. Nothing may be open meanwhile, and
 * published memory that was mapped for reading is gone, as when a shard is lost. */

static void answer_detach(struct session *s, cairn_status status)
{
    s->detachment.is_answered = true;
    s->detachment.status = status;
    pthread_cond_broadcast(&s->changed);
}

static bool has_parcels(const struct job *job)
{
    for (uint32_t i = 0; i < job->parcels.count; i++)
        if (job->parcels.all[i]->op != NULL) return true;
    return false;
}

/* Under the lock. */
static cairn_status judge_job(struct job *job, struct sentence *why)
{
    const struct filling *filling = &job->filling;
    if (filling->round > filling->void_round && !filling->committed)
        return fail_with(why, CAIRN_ERR_BUSY, "job %s: round %" PRIu64 " is open: commit it first",
                         job->name, filling->round);
    if (has_parcels(job))
        return fail_with(why, CAIRN_ERR_BUSY, "job %s: an operation is under way: wait for it",
                         job->name);
    if (!cache_forget(job))
        return fail_with(why, CAIRN_ERR_BUSY, "job %s: a unit is mapped: unmap it first",
                         job->name);
    return CAIRN_OK;
}

/* Under the lock. */
static cairn_status judge_detach(struct session *s, struct sentence *why)
{
    cairn_status status = CAIRN_OK;
    if (s->commands.first != NULL)
        return fail_with(why, CAIRN_ERR_BUSY, "an operation is under way: wait for it");
    for (struct job *job = s->jobs; job != NULL && status == CAIRN_OK; job = job->next)
        status = judge_job(job, why);
    return status;
}

static void hold_off(struct session *s, bool is_off)
{
    if (s->detachment.is_off == is_off) return;
    s->detachment.is_off = is_off;
    if (s->path.fabric != NULL) fabric_hold_off(s->path.fabric, is_off);
    session_kick(s); // behind the fabric's next progress
}

/* Loop thread: a step towards what is asked. */
static void detach_turn(struct session *s)
{
    struct detachment *d = &s->detachment;
    bool wants_off = d->is_off;
    pthread_mutex_lock(&s->lock);
    if (d->is_asked && !d->is_answered) {
        cairn_status status = CAIRN_OK;
        if (d->wants_off && !d->is_off) status = judge_detach(s, &d->why);
        if (status == CAIRN_OK) wants_off = d->wants_off;
        // The answer waits until imported memory is unmapped, for which the fabric must let it go.
        if (status != CAIRN_OK || !wants_off ||
            (d->is_off && s->published == NULL && !card_imports_wait(s->imports)))
            answer_detach(s, status);
    } else if (!d->is_asked) {
        wants_off = d->wants_off;
    }
    pthread_mutex_unlock(&s->lock);
    hold_off(s, wants_off);
}

cairn_status detach_ask(struct session *s, bool wants_off, uint64_t deadline_ms)
{
    struct detachment *d = &s->detachment;
    cairn_status status = CAIRN_OK;
    struct sentence why = { "" };
    pthread_mutex_lock(&s->lock);
    if (d->is_asked)
        status = fail_with(&why, CAIRN_ERR_BUSY, "another thread detaches or attaches");
    if (status == CAIRN_OK) {
        const bool was_off = d->wants_off;
        d->is_asked = true;
        d->is_answered = false;
        d->wants_off = wants_off;
        pthread_mutex_unlock(&s->lock);
        session_kick(s);
        pthread_mutex_lock(&s->lock);
        while (!d->is_answered && !s->ended && session_sleep(s, deadline_ms)) {}
        status = d->is_answered ? d->status : CAIRN_ERR_TIMEOUT;
        if (status == CAIRN_ERR_TIMEOUT)
            sentence_set(&why, "what shards showed was not all taken back in time");
        else
            why = d->why;
        d->is_asked = false;
        if (status != CAIRN_OK) d->wants_off = was_off;
    }
    pthread_mutex_unlock(&s->lock);
    if (status == CAIRN_OK) return CAIRN_OK;
    session_kick(s);
    return client_fail(status, "%s", why.text);
}

/* ==== again ==== */

/* The tiles that were declared: before anything else. */
static void again_tiles(struct job *job)
{
    const struct declared *declared = job->tiles.declared; // changed by this thread only
    if (declared == NULL || declared->world == 0) return;
    Cairn__TilesDeclare message = client_tiles_message(declared);
    message.job = job->attachment.job;
    job->tiles.request = ++job->session->control.last_request;
    control_send(job->session, CAIRN_MSG_TILES_DECLARE, job->tiles.request, &message.base);
    control_send_pages(job->session, job->tiles.request, CAIRN_PAGE_TILES, declared->packed);
}

/* Is it the reply to the call that waits now? Under the lock. */
static bool is_awaited(const struct job *job, uint32_t request)
{
    const struct ask *ask = job->session->asks;
    while (ask != NULL && (ask->job != job || ask->type != CAIRN_MSG_TILES_DECLARE))
        ask = ask->next;
    return ask != NULL && ask->request == request;
}

void again_on_tiles_set(struct job *job, uint32_t request)
{
    if (request == job->tiles.request) {
        job->tiles.request = 0;
        return;
    }
    struct declared *former = NULL;
    pthread_mutex_lock(&job->session->lock);
    if (is_awaited(job, request)) {
        former = job->tiles.declared;
        job->tiles.declared = job->tiles.declaring;
        job->tiles.declaring_holds = true;
    }
    pthread_mutex_unlock(&job->session->lock);
    client_tiles_free(former);
}

bool again_on_error(struct session *s, uint32_t request, cairn_status status, const char *text)
{
    struct job *job = s->jobs;
    while (job != NULL && job->tiles.request != request && job->pause.request != request)
        job = job->next;
    if (job == NULL) return false;
    if (job->tiles.request == request) job->tiles.request = 0;
    if (job->pause.request == request) job->pause.request = 0;
    job_fail(job, status, text);
    return true;
}

/* The pause of this worker, if it is in one. */
static void again_pause(struct job *job)
{
    struct session *s = job->session;
    const uint64_t now_ms = client_now_ms();
    Cairn__Pause message = CAIRN__PAUSE__INIT;
    char what[sizeof job->pause.what];
    pthread_mutex_lock(&s->lock);
    memcpy(what, job->pause.what, sizeof what);
    const uint64_t left_ms = job->pause.ends_ms > now_ms ? job->pause.ends_ms - now_ms : 0;
    pthread_mutex_unlock(&s->lock);
    if (left_ms == 0) return;
    message.job = job->attachment.job;
    message.at_most_ms = (uint32_t)left_ms;
    message.what = what;
    job->pause.request = ++s->control.last_request;
    control_send(s, CAIRN_MSG_PAUSE, job->pause.request, &message.base);
}

/* Attached in the middle of a round: it is decided or void by now, and no shard may be left to say so (one
 * that never granted it answers nothing). Only the coordinator knows. */
static void again_ask_round(struct job *job)
{
    Cairn__RoundCommit ask = CAIRN__ROUND_COMMIT__INIT;
    if (job->pushing.pusher.push == NULL) return;
    ask.job = job->attachment.job;
    ask.round = job->pushing.pusher.round;
    control_send(job->session, CAIRN_MSG_ROUND_COMMIT, ++job->session->control.last_request,
                 &ask.base);
}

/* A shard refused something of the round (client/push.c): it is given up, for all. */
static void again_give_up(struct job *job)
{
    Cairn__RoundCommit message = CAIRN__ROUND_COMMIT__INIT;
    message.job = job->attachment.job;
    message.round = job->pushing.gives_up;
    message.abandon = true;
    job->pushing.gives_up = 0;
    control_send(job->session, CAIRN_MSG_ROUND_COMMIT, ++job->session->control.last_request,
                 &message.base);
}
