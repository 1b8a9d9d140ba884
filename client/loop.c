/* The loop thread: its connection to the coordinator, its iterations, and detaching from memory
 * that shards show. */
#include "client/session.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <string.h>

#include "client/base.h"
#include "client/device.h"
#include "client/job.h"
#include "client/op.h"
#include "client/push.h"
#include "client/read.h"
#include "proto/base/machine.h"
#include "proto/geometry/layout.h"

/* ==== detach ==== */

/* A process that maps GPU memory which another process owns cannot be restored from a checkpoint. A
 * trainer may therefore detach from such memory for a while: the fabric turns the shards away, and
 * the shards return when they are admitted again. Meanwhile no round, operation or mapped unit may
 * be open. Published memory that was mapped for reading is gone, as after the loss of a shard. */

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
    if (!TAILQ_EMPTY(&s->commands))
        return fail_with(why, CAIRN_ERR_BUSY, "an operation is under way: wait for it");
    for (struct job *job = s->jobs; job != NULL && status == CAIRN_OK; job = job->next)
        status = judge_job(job, why);
    return status;
}

/* Loop thread: takes a step towards the requested state. */
static void detach_turn(struct session *s)
{
    struct detachment *d = &s->detachment;
    bool wants_off = d->is_off;
    pthread_mutex_lock(&s->lock);
    if (d->is_asked && !d->is_answered) {
        cairn_status status = CAIRN_OK;
        if (d->wants_off && !d->is_off) status = judge_detach(s, &d->why);
        if (status == CAIRN_OK) wants_off = d->wants_off;
        // The answer waits until imported memory is unmapped. Before this, the fabric must release
        // the memory.
        if (status != CAIRN_OK || !wants_off ||
            (d->is_off && s->published == NULL && !card_imports_wait(s->imports))) {
            d->is_answered = true;
            d->status = status;
            pthread_cond_broadcast(&s->changed);
        }
    } else if (!d->is_asked) {
        wants_off = d->wants_off;
    }
    pthread_mutex_unlock(&s->lock);
    if (d->is_off == wants_off) return;
    d->is_off = wants_off;
    if (s->path.fabric != NULL) fabric_hold_off(s->path.fabric, wants_off);
    session_kick(s); // after the fabric's next progress
}

/* Not under the lock. CAIRN_ERR_BUSY: something is open; CAIRN_ERR_TIMEOUT: the state is as before. */
static cairn_status ask_detach(struct session *s, bool wants_off, uint64_t deadline_ms)
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
            sentence_set(&why, "not all memory shards showed was taken back in time");
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

static cairn_status detach_or_attach(cairn *handle, bool wants_off, int timeout_ms)
{
    CAIRN_TRY(api_judge_call(NULL, NULL, timeout_ms));
    API_SESSION(s, handle);
    return ask_detach(s, wants_off, api_deadline(timeout_ms));
}

cairn_status cairn_detach_memory(cairn *handle, int timeout_ms)
{
    return detach_or_attach(handle, true, timeout_ms);
}

cairn_status cairn_attach_memory(cairn *handle, int timeout_ms)
{
    return detach_or_attach(handle, false, timeout_ms);
}

/* ==== turn ==== */

static void loop_look_soon(struct session *s, bool looks);

/* An iteration of the loop thread: processes the work that the caller's threads have handed
 * over. */

/* Returns the next ask that can be sent now; an ask whose job has failed is answered here. */
static struct ask *next_ask(struct session *s)
{
    for (struct ask *ask = LIST_FIRST(&s->asks); ask != NULL; ask = LIST_NEXT(ask, next)) {
        if (ask->done) continue;
        if (ask->job->failure.status != CAIRN_OK) { // whether it was sent or not
            ask->done = true;
            ask->status = ask->job->failure.status;
            ask->why = ask->job->failure.why;
            pthread_cond_broadcast(&s->changed);
        } else if (ask->request == 0 && s->control.ready &&
                   (ask->job->attachment.state == JOB_ATTACHED ||
                    ask->call->type == CAIRN_MSG_WHO_IS_AWAITED)) { // also before the attach
            return ask;
        }
    }
    return NULL;
}

static void send_ask(struct session *s, struct ask *ask)
{
    uint64_t *job = message_job(ask->message);
    if (job != NULL) *job = ask->job->attachment.job; // the job's number is known only now
    ask->request = ++s->control.last_request;
    control_send(s, ask->call->type, ask->request, ask->message);
    if (ask->call->type == CAIRN_MSG_TILES_DECLARE)
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
    HOLD_LOCK(&s->lock);
    struct command *command = before != NULL ? TAILQ_NEXT(before, next) : TAILQ_FIRST(&s->commands);
    return command;
}

static void free_command(struct session *s, struct command *command)
{
    pthread_mutex_lock(&s->lock);
    TAILQ_REMOVE(&s->commands, command, next);
    pthread_mutex_unlock(&s->lock);
    job_unref(command->job);
    command_free(command);
}

static bool run_command(struct command *command)
{
    if (command->op == NULL) return command->run(command);
    return command->op->kind == CAIRN_CHUNK_PUSH ? pushes_run(command) : transfer_run(command);
}

/* Runs the commands in order, job by job. If one job waits for its shards, other jobs continue. If a
 * push waits for the stream that writes the gradient, commands that are not part of the round
 * continue. */
static void run_commands(struct session *s)
{
    struct command *before = NULL;
    bool any_awaits = false;
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        job->turn.stalled = job->turn.awaits_stream = false;
    for (struct command *command; (command = next_command(s, before)) != NULL;) {
        struct job *job = command->job;
        const bool awaited = job->turn.awaits_stream;
        const bool is_of_round = command->op == NULL || command->op->kind == CAIRN_CHUNK_PUSH;
        const bool waits = job->turn.stalled || (awaited && is_of_round);
        if (!waits && run_command(command)) {
            free_command(s, command);
            continue;
        }
        // A fetch that waits for its stream does not block other commands.
        if (!waits && command->event == NULL && job->turn.awaits_stream == awaited)
            job->turn.stalled = true;
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

/* An iteration of the loop thread, whenever it is woken: runs commands, sends asks, attaches and
 * closes jobs. */
static void run_turn(struct session *s)
{
    const uint64_t now_ms = monotonic_ms();
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (job->turn.broken.status != CAIRN_OK && job->failure.status == CAIRN_OK)
            job_fail(job, job->turn.broken.status, job->turn.broken.why.text);
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (job->attachment.reading != NULL && atomic_load(&job->attachment.reading->is_over))
            attach_read(job);
    cancel_ops(s);
    run_commands(s);
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (job->pushing.gives_up != 0 && job->attachment.state == JOB_ATTACHED)
            attach_give_up_round(job);
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

/* ---- who is awaited ---- */

/* Counts the job's chunks that a shard has not answered, or whose data is still on the way. *via_out: the
 * relay to which one of these chunks was sent; NULL: none was sent to a relay. */
static uint32_t count_open(const struct job *job, uint32_t shard, const struct shard_link **via_out)
{
    uint32_t count = 0;
    *via_out = NULL;
    for (uint32_t i = 0; i < job->parcels.count; i++) {
        const struct parcel *parcel = job->parcels.all[i];
        const bool is_done = parcel->answered && parcel->on_loan == 0;
        if (parcel->op == NULL || is_done || parcel->is_landed || parcel->shard != shard) continue;
        if (parcel->via != shard) *via_out = job->shards.links[parcel->via];
        count++;
    }
    return count;
}

/* Adds "shard s1 (5 chunks, through shard s0, not connected)". */
static void add_awaited(const struct shard_link *owner, uint32_t open, const struct shard_link *via,
                        struct sentence *out)
{
    const struct shard_link *asked = via != NULL ? via : owner;
    sentence_add(out, "%sshard %s (%u chunks", out->text[0] != '\0' ? ", " : "", owner->name, open);
    if (via != NULL) sentence_add(out, ", through shard %s", via->name);
    sentence_add(out, "%s)", asked->conn.peer == NULL ? ", not connected" : "");
}

static void list_awaited(const struct job *job, struct sentence *out)
{
    for (uint32_t i = 0; i < job->shards.count; i++) {
        const struct shard_link *via;
        const uint32_t open = count_open(job, i, &via);
        if (open > 0) add_awaited(job->shards.links[i], open, via, out);
    }
}

static void explain_awaited(struct job *job)
{
    struct session *s = job->session;
    struct sentence awaited = { "" };
    const bool asked = WITH_LOCK(&s->lock, job->awaited.asked);
    if (!asked) return;
    list_awaited(job, &awaited);
    HOLD_LOCK(&s->lock);
    job->awaited.text = awaited;
    job->awaited.asked = false;
    job->awaited.answered = true;
    pthread_cond_broadcast(&s->changed);
}

/* ==== control ==== */

static void connect_again(struct session *s);
static void on_frame(struct stream *stream, const struct wire_frame *frame, void *context);

#define CONNECT_TRY_MS 2000
#define RETRY_MIN_MS   50
#define RETRY_MAX_MS   1000
#define STRANGE_MAX    3 /* after so many handshakes that fail, cairn_open gives up */
/* a connection that lasted at least this long is not counted as a failure */
#define STEADY_MS       2000
#define PLACES_RETRY_MS 100 /* while no shard has joined */
#define FLIGHT_MS       500 /* transfers in flight for this long are reported */
#define FLIGHTS_MAX     64  /* the most jobs of a session whose transfers are reported */

/* ---- connection ---- */

/* An end whose reason the coordinator has said before keeps that reason. */
static void note_away(struct session *s, cairn_status status, const char *why)
{
    HOLD_LOCK(&s->lock);
    if (status == CAIRN_ERR_CLOSED && !s->reach.welcome &&
        (s->reach.status == CAIRN_ERR_REFUSED || s->reach.status == CAIRN_ERR_VERSION))
        return;
    if (s->reach.welcome || s->reach.away_since_ms == 0) s->reach.away_since_ms = monotonic_ms();
    s->reach.welcome = false;
    s->reach.status = status;
    sentence_set(&s->reach.why, "%s", why);
    for (struct ask *ask = LIST_FIRST(&s->asks); ask != NULL; ask = LIST_NEXT(ask, next))
        ask->request = 0;
    pthread_cond_broadcast(&s->changed);
}

/* The coordinator does not let this process in again, so its jobs are over: the token was revoked, say. */
static void fail_jobs_if_refused(struct session *s, cairn_status status, const char *why)
{
    if (status != CAIRN_ERR_REFUSED) return;
    for (struct job *job = s->jobs; job != NULL; job = job->next) job_fail(job, status, why);
}

static void retry_later(struct session *s)
{
    s->control.retry_at_ms = monotonic_ms();
    if (!endpoints_are_tried(&s->endpoints)) return; // the next one may lead
    s->control.retry_at_ms += s->control.retry_delay_ms;
    s->control.retry_delay_ms = s->control.retry_delay_ms * 2 < RETRY_MAX_MS
                                    ? s->control.retry_delay_ms * 2
                                    : RETRY_MAX_MS;
}

static void on_close(struct stream *stream, cairn_status status, const char *why, void *context)
{
    struct session *s = context;
    const bool was_ready = s->control.ready;
    (void)stream;
    fork_forget(s);
    s->control.stream = NULL;
    s->control.ready = s->control.hello_sent = false;
    if (!was_ready) fail_jobs_if_refused(s, status, why);
    // A coordinator that is killed, or is full, closes without a word too, so one such end says little.
    if (status == CAIRN_ERR_PROTOCOL && !was_ready && ++s->control.strange_count >= STRANGE_MAX)
        status = CAIRN_ERR_REFUSED;
    if (!s->control.is_choosing) note_away(s, status == CAIRN_OK ? CAIRN_ERR_CLOSED : status, why);
    if (s->ended && !uv_is_closing((uv_handle_t *)&s->loop.tick))
        uv_close((uv_handle_t *)&s->loop.tick, NULL);
    for (struct job *job = s->jobs; job != NULL; job = job->next) attachment_lost(job);
    if (was_ready && monotonic_ms() - s->control.welcome_ms >= STEADY_MS)
        s->control.retry_delay_ms = RETRY_MIN_MS;
    retry_later(s);
    if (s->control.is_choosing) connect_again(s);
}

static void on_dial(struct stream *stream, void *context)
{
    fork_watch(context, stream_descriptor(stream));
}

static void on_open(struct stream *stream, void *context)
{
    struct session *s = context;
    if (s->loop.stopping) {
        stream_close(stream, CAIRN_OK, "the session is closed");
        return;
    }
    Cairn__Hello hello = CAIRN__HELLO__INIT;
    hello.protocol = CAIRN_CONTROL_PROTOCOL;
    hello.role = CAIRN_ROLE_WIRE_WORKER; // JobOpen states what a job's member may do
    hello.name = s->name;
    hello.incarnation = s->incarnation;
    hello.version = wire_text(CAIRN_BUILD);
    if (s->path.fabric != NULL)
        hello.fabric_address.data = (uint8_t *)(uintptr_t)fabric_own_address(
            s->path.fabric, &hello.fabric_address.len);
    s->control.heard_ms = monotonic_ms();
    s->control.hello_sent = true;
    control_send(s, CAIRN_MSG_HELLO, ++s->control.last_request, &hello.base);
}

static void connect_now(struct session *s)
{
    static const struct stream_events events = { on_open, on_frame, on_close, on_dial };
    struct handshake_options secure;
    struct sentence why = { "" };
    s->endpoint = *endpoints_next(&s->endpoints);
    // The token may have been exchanged. If it cannot be read now, the former one is good for a try.
    if (entrance_find(&s->entrance, &s->endpoint, s->token_file, NULL, &why) != CAIRN_OK)
        session_say(s, why.text);
    const struct stream_options options = {
        .limits = { CAIRN_MSG_WELCOME, CAIRN_MSG_MAX, CAIRN_FRAME_BYTES_MAX },
        .secure = entrance_secure(&s->entrance, &secure),
    };
    cairn_status status = stream_connect(&s->loop.uv, &s->endpoint,
                                         endpoints_patience_ms(&s->endpoints, CONNECT_TRY_MS),
                                         &options, &events, s, &s->control.stream, &why);
    sodium_memzero(&secure, sizeof secure);
    if (status == CAIRN_OK) return;
    s->control.stream = NULL;
    note_away(s, status, why.text);
    retry_later(s);
}

/* ---- heartbeats ---- */

static void look_at_flights(struct job *job, uint64_t now_ms)
{
    bool fetches = false;
    for (uint32_t i = 0; i < job->shards.count; i++) fetches |= job->shards.links[i]->asked > 0;
    HOLD_LOCK(&job->session->lock);
    const bool pushes = job->filling.pushes_open > 0;
    if (!fetches || job->turn.none_fetched_ms == 0) job->turn.none_fetched_ms = now_ms;
    if (!pushes || job->turn.none_pushed_ms == 0) job->turn.none_pushed_ms = now_ms;
}

static uint32_t in_flight(const struct job *job, uint64_t now_ms)
{
    return (now_ms - job->turn.none_fetched_ms >= FLIGHT_MS ? CAIRN_FLIES_FETCH : 0u) |
           (now_ms - job->turn.none_pushed_ms >= FLIGHT_MS ? CAIRN_FLIES_PUSH : 0u);
}

enum { UNHEARD_MAX = 16 };

static bool is_listed(char *const *names, uint32_t count, const char *name)
{
    while (count > 0 && strcmp(names[count - 1], name) != 0) count--;
    return count > 0;
}

/* Lists the shards that are silent on the data path, by name, each once: [UNHEARD_MAX], borrowed. */
static uint32_t list_unheard(const struct session *s, char **names)
{
    uint32_t count = 0;
    for (const struct job *job = s->jobs; job != NULL; job = job->next)
        for (uint32_t i = 0; i < job->shards.count && count < UNHEARD_MAX; i++)
            if (job->shards.links[i]->silent &&
                !is_listed(names, count, job->shards.links[i]->name))
                names[count++] = job->shards.links[i]->name;
    return count;
}

/* Sends a heartbeat. It lists the transfers in flight and the silent shards, since each heartbeat
 * replaces the lists of the previous one. */
static void beat(struct session *s, uint64_t now_ms, Cairn__BytesTold *read)
{
    Cairn__InFlight reported[FLIGHTS_MAX], *list[FLIGHTS_MAX];
    char *unheard[UNHEARD_MAX];
    Cairn__Heartbeat heartbeat = CAIRN__HEARTBEAT__INIT;
    for (const struct job *job = s->jobs; job != NULL; job = job->next) {
        const uint32_t what = in_flight(job, now_ms);
        if (what == 0 || job->attachment.state != JOB_ATTACHED ||
            heartbeat.n_in_flight == FLIGHTS_MAX)
            continue;
        Cairn__InFlight *one = &reported[heartbeat.n_in_flight];
        cairn__in_flight__init(one);
        one->job = job->attachment.job;
        one->what = what;
        list[heartbeat.n_in_flight++] = one;
    }
    heartbeat.in_flight = list;
    heartbeat.bytes = &read;
    heartbeat.n_bytes = read != NULL;
    heartbeat.unheard = unheard;
    heartbeat.n_unheard = s->control.unheard_reported = list_unheard(s, unheard);
    control_send(s, CAIRN_MSG_HEARTBEAT, 0, &heartbeat.base);
}

/* Tells the coordinator how much the members have read from published memory; no shard sees these
 * reads. */
static void report_reads(struct session *s, uint64_t now_ms)
{
    if (!s->control.ready || now_ms - s->control.reads_reported_ms < s->control.heartbeat_ms)
        return;
    s->control.reads_reported_ms = now_ms;
    for (struct job *job = s->jobs; job != NULL; job = job->next) {
        const uint64_t reported = job->reads.reported;
        if (job->attachment.state != JOB_ATTACHED) continue;
        const uint64_t bytes = control_job_read(job);
        if (job->reads.reported == reported) continue;
        Cairn__BytesTold read = CAIRN__BYTES_TOLD__INIT;
        read.job = job->attachment.job;
        read.fetched_shared = bytes;
        beat(s, now_ms, &read);
    }
}

static void keep_alive(struct session *s, uint64_t now_ms)
{
    char *names[UNHEARD_MAX];
    for (struct job *job = s->jobs; job != NULL; job = job->next) look_at_flights(job, now_ms);
    report_reads(s, now_ms);
    // A change is reported at once: a client that trains sends other messages, and therefore no
    // regular heartbeats.
    if (s->control.ready && list_unheard(s, names) != s->control.unheard_reported)
        beat(s, now_ms, NULL);
    if (s->control.ready && now_ms - s->control.spoke_ms >= s->control.heartbeat_ms)
        beat(s, now_ms, NULL);
    const uint64_t lease_ms = s->control.lease_ms != 0 ? s->control.lease_ms : 5000;
    if (s->control.hello_sent && now_ms - s->control.heard_ms > lease_ms)
        stream_close(s->control.stream, CAIRN_ERR_CLOSED, "the coordinator was silent for %u ms",
                     (unsigned)lease_ms);
}

/* Connects, sends heartbeats, checks the lease and ticks the links. */
static void tick_control(struct session *s)
{
    const uint64_t now_ms = monotonic_ms();
    if (s->control.retry_delay_ms == 0) s->control.retry_delay_ms = RETRY_MIN_MS;
    if (s->control.stream == NULL && now_ms >= s->control.retry_at_ms && !s->loop.stopping)
        connect_now(s);
    if (s->control.stream != NULL) keep_alive(s, now_ms);
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        for (uint32_t i = 0; i < job->shards.count; i++) link_tick(job->shards.links[i], now_ms);
}

/* ---- frames ---- */

static const struct message_row *find_row(uint16_t type)
{
    static const struct message_row *const tables[] = { attach_rows, pushes_rows };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct message_row *row = tables[i]; row->type != 0; row++)
            if (row->type == type) return row;
    return NULL;
}

/* Returns the attached job with that number; NULL: none. */
static struct job *find_attached(struct session *s, uint64_t number)
{
    struct job *job = s->jobs;
    while (job != NULL && (job->attachment.state != JOB_ATTACHED || job->attachment.job != number))
        job = job->next;
    return job;
}

/* Returns the job that handles the message; NULL: none does. */
static struct job *job_of_row(struct session *s, const struct message_row *row, uint32_t request,
                              ProtobufCMessage *message)
{
    if (row == NULL) return NULL;
    if (row->find != NULL) return row->find(s, request);
    const uint64_t *number = message_job(message);
    return number != NULL ? find_attached(s, *number) : NULL;
}

/* Passes a reply, which it takes over, to the thread that asked for it. */
static void answer_ask(struct session *s, uint32_t request, uint16_t type,
                       ProtobufCMessage *message)
{
    pthread_mutex_lock(&s->lock);
    for (struct ask *ask = LIST_FIRST(&s->asks); ask != NULL; ask = LIST_NEXT(ask, next)) {
        if (ask->request != request || ask->done) continue;
        ask->done = true;
        if (type == CAIRN_MSG_ERROR && ask->job->failure.status != CAIRN_OK) {
            ask->status = ask->job->failure.status; // the ask and the notice of the failure crossed
            ask->why = ask->job->failure.why;
        } else if (type == CAIRN_MSG_ERROR) {
            const char *text;
            ask->status = attach_error((const Cairn__Error *)message, &text);
            sentence_set(&ask->why, "%s", text);
        } else {
            ask->reply_type = type;
            ask->reply = message;
            message = NULL;
        }
        pthread_cond_broadcast(&s->changed);
        break;
    }
    pthread_mutex_unlock(&s->lock);
    message_free(message);
}

/* The first Welcome lists the shards' places. The fabric is opened on the devices that lead to these
 * places, and then the connection is established again, with the fabric's address. */
static void choose_path(struct session *s, const Cairn__Welcome *welcome)
{
    struct sentence why = { "" };
    cairn_status status;
    if (datapath_choose(s, welcome, &why, &status) && status != CAIRN_OK) {
        note_away(s, status, why.text);
        pthread_mutex_lock(&s->lock);
        s->reach.no_path = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
    }
    s->control.is_choosing = true;
    stream_close(s->control.stream, CAIRN_OK, "the data path is opened first");
}

/* Called at the end of a connection whose only purpose was to learn the shards' places. */
static void connect_again(struct session *s)
{
    s->control.is_choosing = false;
    s->control.retry_at_ms = s->reach.no_path ? UINT64_MAX : monotonic_ms() + PLACES_RETRY_MS;
    if (s->path.fabric == NULL) return;
    s->control.retry_at_ms = 0;
    s->control.retry_delay_ms = RETRY_MIN_MS;
    if (!s->loop.stopping) tick_control(s);
}

static void on_welcome(struct session *s, const Cairn__Welcome *welcome)
{
    if (s->path.fabric == NULL) {
        choose_path(s, welcome);
        return;
    }
    s->control.ready = true;
    s->control.strange_count = 0;
    s->control.was_given_up = welcome->coordinator_incarnation == s->control.incarnation;
    s->control.incarnation = welcome->coordinator_incarnation;
    s->control.store = welcome->store;
    s->control.welcome_ms = monotonic_ms();
    s->control.unheard_reported = 0;
    s->control.heartbeat_ms = welcome->heartbeat_ms >= 10 ? welcome->heartbeat_ms : 10;
    s->control.lease_ms = welcome->lease_ms >= 100 ? welcome->lease_ms : 100;
    fabric_set_patience(s->path.fabric, s->control.lease_ms);
    pthread_mutex_lock(&s->lock);
    s->reach.welcome = true;
    s->reach.away_since_ms = 0;
    s->reach.status = CAIRN_OK;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    run_turn(s);
}

/* Handles an Error that is no answer to a request: the Error concerns a job, or the whole
 * connection. */
static void on_error(struct session *s, const Cairn__Error *error)
{
    const char *text;
    const cairn_status status = attach_error(error, &text);
    if (error->job != 0) { // the session's other jobs continue
        struct job *meant = find_attached(s, error->job);
        if (meant != NULL) attach_expelled(meant, status, text);
        return;
    }
    note_away(s, status, text);
    if (!s->control.ready) fail_jobs_if_refused(s, status, text);
    for (struct job *job = s->jobs; job != NULL; job = job->next)
        if (status == CAIRN_ERR_FENCED || status == CAIRN_ERR_JOB_LOST)
            attach_expelled(job, status, text);
}

/* If the pages of a message's job are still being read, delays the message until the reading is
 * over, so that a large job sees its messages in the same order as a small job. */
static void read_before(struct session *s, const struct wire_frame *frame,
                        ProtobufCMessage *message)
{
    const uint64_t *first = message_job(message);
    const uint64_t number = frame->type == CAIRN_MSG_ERROR ? ((const Cairn__Error *)message)->job
                            : first != NULL                ? *first
                                                           : 0;
    for (struct job *job = s->jobs; job != NULL; job = job->next) {
        const struct attachment *attachment = &job->attachment;
        if (attachment->reading == NULL) continue;
        if (attachment->reply->job == number || attachment->request == frame->request)
            attach_read(job);
    }
}

/* Takes the message over. Gives it to its handler, and then, if it is a reply, to the thread that
 * asked. */
static void hand_out(struct session *s, const struct wire_frame *frame, ProtobufCMessage *message)
{
    const struct message_row *row = find_row(frame->type);
    struct job *job = job_of_row(s, row, frame->request, message);
    const bool is_reply = frame->request != 0 && s->control.ready;
    if (job != NULL && row->handle(job, frame->request, message) != CAIRN_OK) {
        control_starve(s, message_name(frame->type));
    } else if (job != NULL && row->keeps) {
        return;
    } else if (frame->type == CAIRN_MSG_WELCOME) {
        on_welcome(s, (const Cairn__Welcome *)message);
    } else if (frame->type == CAIRN_MSG_ERROR && job == NULL && !is_reply) {
        on_error(s, (const Cairn__Error *)message);
    } else if (frame->type != CAIRN_MSG_HEARTBEAT && frame->request != 0) {
        answer_ask(s, frame->request, frame->type, message);
        return;
    }
    message_free(message);
}

static void on_frame(struct stream *stream, const struct wire_frame *frame, void *context)
{
    struct session *s = context;
    s->control.heard_ms = monotonic_ms();
    const ProtobufCMessageDescriptor *type = message_type(frame->type);
    ProtobufCMessage *message = type != NULL
                                    ? message_unpack(type, frame->payload, frame->payload_bytes)
                                    : NULL;
    if (message == NULL) {
        if (type != NULL && errno == ENOMEM)
            control_starve(s, message_name(frame->type));
        else
            stream_close(stream, CAIRN_ERR_PROTOCOL, "the coordinator sent a bad %s",
                         message_name(frame->type));
        return;
    }
    read_before(s, frame, message);
    hand_out(s, frame, message);
}

/* ==== loop ==== */

#define DESCRIPTORS 32 /* the most descriptors of a session before its Welcome; 21 were counted */
#define THREADS     2  /* ours, and UCX's */
#define TICK_MS     50
#define SOON_MS     1   /* between two checks of a stream's event, which wakes nobody */
#define STOP_MS     300 /* operations may take this long to complete */
#define GOODBYE_MS  300
#define STREAMS_MS  1000 /* then no stream waits any more: a stream could block this thread */

/* ---- the thread ---- */

static void on_walk_close(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

/* Closes everything that is open in the loop. */
static void cut_loop(struct session *s)
{
    uv_walk(&s->loop.uv, on_walk_close, NULL);
    uv_run(&s->loop.uv, UV_RUN_DEFAULT);
    uv_loop_close(&s->loop.uv);
}

/* Called if the coordinator does not read our last messages in time. */
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

/* Maps the memory whose mapping was postponed while a stream waited. */
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
    if (s->ended) return; // only this thread sets `ended`
    memory_show(s);
    mapped_sweep(s);
    map_late(s);
    detach_turn(s);
    run_turn(s);
    for (struct job *job = s->jobs; job != NULL; job = job->next) explain_awaited(job);
    if (s->loop.stopping && s->jobs != NULL && monotonic_ms() >= s->loop.stop_by_ms) {
        datapath_close(s);
        run_turn(s); // the jobs' loans are back, and the jobs are released
    }
    pthread_mutex_lock(&s->lock);
    s->ended = s->loop.stopping && s->jobs == NULL && TAILQ_EMPTY(&s->commands);
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
    tick_control(s);
    on_kick(&s->loop.kick);
}

static void on_soon(uv_timer_t *soon)
{
    on_kick(&((struct session *)soon->data)->loop.kick);
}

/* Loop thread: starts or stops checking, every millisecond, the commands that wait for streams. */
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
    tick_control(s);
    uv_run(&s->loop.uv, UV_RUN_DEFAULT);
    if (uv_loop_close(&s->loop.uv) != 0) cut_loop(s); // some stream did not end
    return NULL;
}

/* ---- its beginning and end ---- */

/* Checks that a session's descriptors and threads are available, before libraries take them;
 * proto/base/machine.h explains why. */
static cairn_status find_room(const struct session *s)
{
    struct sentence why = { "" };
    cairn_status status = descriptors_at_hand(s->event_fd, DESCRIPTORS, "a session", &why);
    if (status == CAIRN_OK) status = threads_at_hand(THREADS, "a session", &why);
    return status == CAIRN_OK ? CAIRN_OK : client_fail(status, "%s", why.text);
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

static cairn_status open_inside(struct session *s)
{
    struct sentence why = { "" };
    cairn_status status = datapath_open(s, &why);
    if (status != CAIRN_OK)
        return client_fail(status, "the data path cannot be opened: %s", why.text);
    status = init_loop(s);
    if (status == CAIRN_OK) {
        const int error = pthread_create(&s->loop.thread, NULL, session_thread, s);
        if (error == 0) return CAIRN_OK;
        status = client_fail(CAIRN_ERR_NO_MEMORY, "no thread: %s", strerror(error));
        if (s->path.fabric != NULL) fabric_poll_close(&s->path.poll, NULL, NULL);
        cut_loop(s);
    }
    fabric_close(s->path.fabric);
    return status;
}

/* The library's threads, including UCX's own, receive no signals of the host process. */
cairn_status loop_start(struct session *s)
{
    sigset_t before;
    signals_block(&before);
    cairn_status status = find_room(s);
    if (status == CAIRN_OK) status = open_inside(s);
    signals_return(&before);
    return status;
}

/* Called when the session has ended: joins the streams' thread. */
static void streams_end(struct session *s)
{
    pthread_mutex_lock(&s->streams.lock);
    s->streams.is_over = true;
    const bool was_running = s->streams.is_running;
    s->streams.is_running = false;
    pthread_cond_signal(&s->streams.changed);
    pthread_mutex_unlock(&s->streams.lock);
    if (was_running) pthread_join(s->streams.thread, NULL);
}

void loop_stop(struct session *s)
{
    s->loop.stop_by_ms = monotonic_ms() + STOP_MS;
    s->loop.stopping = true;
    pthread_mutex_lock(&s->streams.lock);
    s->streams.close_ms = monotonic_ms() + STREAMS_MS;
    pthread_cond_signal(&s->streams.changed);
    pthread_mutex_unlock(&s->streams.lock);
    session_kick(s);
    pthread_join(s->loop.thread, NULL);
    streams_end(s);
}
