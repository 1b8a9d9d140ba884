/* This file contains what all other files use: sending to the coordinator and to members, the table
 * of a job's members, the counts of bytes, the messages that arrive in pages, the calls to all
 * modules, and finding, keeping and faulting a job. */
#include "server/shard/base.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/base/daemon.h"
#include "server/base/log.h"
#include "server/shard/shard.h"

/* ==== session ==== */

/* Sends messages to the coordinator. */

/* Closes the connection if a message could not be sent. The coordinator relies on receiving all
 * messages in order. */
static void judge_sent(struct coordinator_session *session, cairn_status status, uint16_t type,
                       const struct sentence *why)
{
    if (status == CAIRN_OK || status == CAIRN_ERR_CLOSED) return;
    log_error("cannot send %s to the coordinator: %s", message_name(type), why->text);
    stream_close(session->stream, status, "%s", why->text);
}

void session_send(struct shard_daemon *shard, uint16_t type, uint32_t request,
                  const ProtobufCMessage *message)
{
    struct coordinator_session *session = &shard->session;
    if (session->stream == NULL || (!session->welcome && type != CAIRN_MSG_HELLO)) return;
    struct sentence why;
    cairn_status status = stream_send(session->stream, type, request, message, &why);
    judge_sent(session, status, type, &why);
}

void session_send_pages(struct shard_daemon *shard, uint32_t request, enum page_what what,
                        struct packed *packed)
{
    struct coordinator_session *session = &shard->session;
    if (session->stream == NULL || !session->welcome) return;
    struct sentence why;
    cairn_status status = stream_send_pages(session->stream, request, what, packed, &why);
    judge_sent(session, status, CAIRN_MSG_PAGE, &why);
}

void session_refuse(struct shard_daemon *shard, cairn_status status, const char *format, ...)
{
    struct coordinator_session *session = &shard->session;
    if (session->stream == NULL) return;
    char text[CAIRN_SENTENCE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    log_error("closing the connection to the coordinator: %s", text);

    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = (int32_t)status;
    error.text = text;
    session_send(shard, CAIRN_MSG_ERROR, 0, &error.base);
    stream_finish(session->stream, status, "%s", text);
}

void shard_end(struct shard_daemon *shard, cairn_status why)
{
    if (shard->events.on_end != NULL && !shard->closing)
        shard->events.on_end(shard, why, shard->events.context);
}

void session_fenced(struct shard_daemon *shard, const char *text)
{
    log_error("this process has lost its place in the cluster: %s", text);
    shard_end(shard, CAIRN_ERR_FENCED);
}

struct request session_request(const struct shard_daemon *shard, uint32_t number)
{
    return (struct request) { .session = shard->session.serial, .number = number };
}

void session_answer(struct shard_daemon *shard, struct request *request, cairn_status status,
                    const struct sentence *why)
{
    struct request answered = *request;
    *request = (struct request) { 0 };
    // no request waits, or its session is lost
    if (answered.session != shard->session.serial) return;
    if (status == CAIRN_OK) {
        Cairn__Done done = CAIRN__DONE__INIT;
        session_send(shard, CAIRN_MSG_DONE, answered.number, &done.base);
        return;
    }
    Cairn__Error error = CAIRN__ERROR__INIT;
    error.status = (int32_t)status;
    error.text = (char *)(why != NULL ? why->text : status_text((int)status));
    session_send(shard, CAIRN_MSG_ERROR, answered.number, &error.base);
}

/* ==== member ==== */

/* The table of a job's members, and the messages that are sent to a member. */

/* ---- the table: open addressing, a power of two, at most half full ---- */

/* Returns the index in the table at which the member with that number is. If there is no such
 * member, returns the index for it. */
static size_t place_of(const struct shard_job *job, uint64_t number)
{
    size_t i = (size_t)((number * 0x9e3779b97f4a7c15ull) >> 32) & (job->members.capacity - 1);
    while (job->members.list[i] != NULL && job->members.list[i]->number != number)
        i = (i + 1) & (job->members.capacity - 1);
    return i;
}

struct shard_member *member_find(const struct shard_job *job, uint64_t number)
{
    return job->members.capacity == 0 ? NULL : job->members.list[place_of(job, number)];
}

cairn_status members_make_room(struct shard_job *job)
{
    if (job->members.count * 2 < job->members.capacity) return CAIRN_OK;
    const size_t old_capacity = job->members.capacity;
    const size_t capacity = old_capacity == 0 ? 16 : old_capacity * 2;
    struct shard_member **old = job->members.list;
    struct shard_member **members = calloc(capacity, sizeof *members);
    if (members == NULL) return CAIRN_ERR_NO_MEMORY;
    job->members.list = members;
    job->members.capacity = capacity;
    for (size_t i = 0; i < old_capacity; i++) {
        if (old[i] != NULL) job->members.list[place_of(job, old[i]->number)] = old[i];
    }
    free(old);
    return CAIRN_OK;
}

void members_add(struct shard_job *job, struct shard_member *member)
{
    job->members.list[place_of(job, member->number)] = member;
    job->members.count++;
}

/* Takes the member out of the hash table. Members behind it, up to the next free place, may have to
 * move up, so that a search still finds them. */
void members_take_out(struct shard_job *job, const struct shard_member *member)
{
    size_t i = place_of(job, member->number);
    assert(job->members.list[i] == member);
    job->members.list[i] = NULL;
    job->members.count--;
    for (;;) {
        i = (i + 1) & (job->members.capacity - 1);
        struct shard_member *moved = job->members.list[i];
        if (moved == NULL) return;
        job->members.list[i] = NULL;
        job->members.list[place_of(job, moved->number)] = moved;
    }
}

/* ---- sending ---- */

uint64_t member_way(const struct shard_member *member)
{
    return CAIRN_CHUNK_WAY(member->endpoint, member->connection);
}

void member_cut(struct shard_job *job, uint64_t number)
{
    struct shard_member *member = member_find(job, number);
    if (member != NULL && member->peer != NULL) member->cut = job->members.cut = true;
}

void member_send(struct shard_member *member, struct chunk_header *header)
{
    member_send_for(member, header, member->job->view->table.map.shard);
}

void member_send_for(struct shard_member *member, struct chunk_header *header, uint32_t shard)
{
    if (member->peer == NULL || member->cut) return;
    header->job = member->job->number;
    header->member = member->number;
    header->token = member->token;
    header->tile = shard; // the shard in whose name the header is sent: proto/wire/wire.h
    uint8_t bytes[CAIRN_CHUNK_HEADER_BYTES];
    chunk_encode(header, bytes);
    cairn_status status = fabric_send(member->peer, bytes, sizeof bytes, NULL, 0, NULL, NULL);
    if (status == CAIRN_OK || status == CAIRN_ERR_CLOSED) return;
    // The member would wait for ever for the missing answer. So the member's connection is cut, and
    // the member sees that its answers are lost.
    log_limited(&member->refusals, CAIRN_LOG_WARN, "cutting %s of job %s: %s", member->name,
                member->job->spec.name, status_text((int)status));
    member->cut = true;
    member->job->members.cut = true;
}

void member_refuse(struct shard_member *member, const struct chunk_header *header,
                   cairn_status status)
{
    member_refuse_for(member, header, status, member->job->view->table.map.shard);
}

void member_refuse_for(struct shard_member *member, const struct chunk_header *header,
                       cairn_status status, uint32_t shard)
{
    struct chunk_header nak = *header;
    nak.kind = CAIRN_CHUNK_NAK;
    nak.value = (uint64_t)status;
    nak.payload_bytes = nak.checksum = 0;
    member_send_for(member, &nak, shard);
}

void member_note_refusal(struct shard_member *member, const struct chunk_header *header,
                         const char *why)
{
    member->job->shard->stats.chunks_refused++;
    log_limited(&member->refusals, CAIRN_LOG_WARN, "refused %s of job %s from %s: %s",
                chunk_kind_name(header->kind), member->job->spec.name, member->name, why);
}

void member_refuse_why(struct shard_member *member, const struct chunk_header *header,
                       cairn_status status, const char *why)
{
    member_note_refusal(member, header, why);
    member_refuse(member, header, status);
}

/* ==== bytes ==== */

enum bytes_path bytes_path_of(const char *path)
{
    if (strcmp(path, "mapped") == 0) return BYTES_PATH_SHARED;
    if (strcmp(path, "device") == 0) return BYTES_PATH_DEVICE;
    if (strcmp(path, CAIRN_FABRIC_PATH_DIRECT) == 0) return BYTES_PATH_DIRECT;
    return strcmp(path, "one-sided") == 0 ? BYTES_PATH_ONE_SIDED : BYTES_PATH_CARRIED;
}

static bool is_shared(enum bytes_path path)
{
    return path == BYTES_PATH_SHARED || path == BYTES_PATH_DEVICE;
}

static void add_pushed(Cairn__BytesTold *to, uint64_t bytes, enum bytes_path path)
{
    *(is_shared(path) ? &to->pushed_shared : &to->pushed_carried) += bytes;
    if (path == BYTES_PATH_ONE_SIDED) to->pushed_one_sided += bytes;
    if (path == BYTES_PATH_DEVICE) to->pushed_device += bytes;
    if (path == BYTES_PATH_DIRECT) to->pushed_direct += bytes;
}

static void add_fetched(Cairn__BytesTold *to, uint64_t bytes, enum bytes_path path)
{
    *(is_shared(path) ? &to->fetched_shared : &to->fetched_carried) += bytes;
    if (path == BYTES_PATH_ONE_SIDED) to->fetched_one_sided += bytes;
    if (path == BYTES_PATH_DEVICE) to->fetched_device += bytes;
    if (path == BYTES_PATH_DIRECT) to->fetched_direct += bytes;
}

void bytes_pushed(struct shard_job *job, uint64_t member, uint64_t bytes, enum bytes_path path)
{
    struct shard_member *m = member_find(job, member);
    job->shard->stats.pushed_bytes += bytes;
    add_pushed(&job->bytes, bytes, path);
    if (m != NULL) add_pushed(&m->bytes, bytes, path);
}

void bytes_fetched(struct shard_job *job, uint64_t member, uint64_t bytes, enum bytes_path path)
{
    struct shard_member *m = member_find(job, member);
    job->shard->stats.fetched_bytes += bytes;
    add_fetched(&job->bytes, bytes, path);
    if (m != NULL) add_fetched(&m->bytes, bytes, path);
}

/* ==== arriving ==== */

#define SMALL_BYTES 32768 /* preparing this many bytes takes less time than waking a thread */

static void arriving_free(struct arriving *arriving)
{
    if (arriving->made != NULL) arriving->kind->unmake(arriving->made);
    paged_release(arriving->paged, CAIRN_ARRIVING_PAGED);
    message_free(arriving->message);
    free(arriving);
}

void arriving_drop(struct shard_daemon *shard, struct arriving *arriving)
{
    TAILQ_REMOVE(&shard->arriving, arriving, link);
    if (arriving->phase != CAIRN_ARRIVING_PREPARING) {
        arriving_free(arriving);
        return;
    }
    arriving->is_dropped = true;
    TAILQ_INSERT_TAIL(&shard->arriving_dropped, arriving, link);
}

static void free_dropped(struct shard_daemon *shard, struct arriving *arriving)
{
    TAILQ_REMOVE(&shard->arriving_dropped, arriving, link);
    arriving_free(arriving);
}

void arriving_release(struct shard_daemon *shard)
{
    while (!TAILQ_EMPTY(&shard->arriving_dropped))
        free_dropped(shard, TAILQ_FIRST(&shard->arriving_dropped));
}

void arriving_drop_all(struct shard_daemon *shard)
{
    while (!TAILQ_EMPTY(&shard->arriving)) arriving_drop(shard, TAILQ_FIRST(&shard->arriving));
}

static void answer_arriving(struct shard_daemon *shard, const struct arriving_kind *kind,
                            uint32_t request, cairn_status status, const struct sentence *why)
{
    struct request answered = session_request(shard, request);
    if (status != CAIRN_OK) log_warn("%s was refused: %s", kind->name, why->text);
    session_answer(shard, &answered, status, why);
}

void arriving_end(struct shard_daemon *shard, struct arriving *arriving, cairn_status status,
                  const struct sentence *why)
{
    answer_arriving(shard, arriving->kind, arriving->request, status, why);
    arriving_drop(shard, arriving);
}

bool arriving_whole(const struct arriving *arriving)
{
    return arriving->phase == CAIRN_ARRIVING_PREPARED;
}

/* ---- on a thread ---- */

static void run_prepare(struct task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    struct arriving *arriving = (struct arriving *)task;
    arriving->status = arriving->kind->prepare(arriving, &arriving->made, &arriving->why);
}

static void run_make(struct task *task, uint32_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    struct arriving *arriving = (struct arriving *)task;
    arriving->status = arriving->kind->make(arriving, arriving->made, &arriving->why);
}

static void on_through(struct task *task)
{
    struct arriving *arriving = (struct arriving *)task;
    struct shard_daemon *shard = arriving->shard;
    arriving->phase = CAIRN_ARRIVING_PREPARED;
    if (arriving->is_dropped) {
        free_dropped(shard, arriving);
        shard->up->memory_back(shard); // a JobCreate may wait for the memory of the message
    } else if (arriving->status != CAIRN_OK) {
        arriving_end(shard, arriving, arriving->status, &arriving->why);
    } else {
        arriving->kind->whole(shard, arriving);
    }
}

static void begin_arriving(struct arriving *arriving,
                           void (*run)(struct task *task, uint32_t item, uint32_t thread))
{
    arriving->phase = CAIRN_ARRIVING_PREPARING;
    arriving->task = (struct task) {
        .run = run, .done = on_through, .item_count = 1, .is_small = arriving->is_small
    };
    pool_submit(arriving->shard->memory.pool, &arriving->task);
}

void arriving_make(struct arriving *arriving)
{
    begin_arriving(arriving, run_make);
}

/* Continues with a message whose pages have all been received. */
static void go_on(struct shard_daemon *shard, struct arriving *arriving)
{
    uint64_t bytes = 0;
    for (int i = 0; i < CAIRN_ARRIVING_PAGED; i++) bytes += arriving->paged[i].have_bytes;
    arriving->is_small = bytes <= SMALL_BYTES;
    if (arriving->kind->prepare == NULL || bytes == 0) {
        arriving->phase = CAIRN_ARRIVING_PREPARED;
        arriving->kind->whole(shard, arriving);
        return;
    }
    begin_arriving(arriving, run_prepare);
}

static cairn_status judge_arriving(const struct shard_daemon *shard,
                                   const struct arriving_kind *kind, struct sentence *why)
{
    size_t count = 0;
    const struct arriving *a;
    TAILQ_FOREACH (a, &shard->arriving, link) count += a->kind == kind;
    if (count < CAIRN_ARRIVING_MAX) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_BUSY, "%s: %zu are on their way already", kind->name, count);
}

static cairn_status set_paged(struct arriving *arriving, struct sentence *why)
{
    const struct arriving_kind *kind = arriving->kind;
    for (int i = 0; i < CAIRN_ARRIVING_PAGED && kind->what[i] != 0; i++) {
        uint64_t bytes;
        memcpy(&bytes, (const char *)arriving->message + kind->bytes_at[i], sizeof bytes);
        if ((bytes == 0 && !kind->may_be_empty) ||
            paged_init(&arriving->paged[i], kind->what[i], bytes) != CAIRN_OK)
            return fail_with(why, CAIRN_ERR_INVALID,
                             "%s with pages of %" PRIu64 " bytes: 1 to %" PRIu64, kind->name, bytes,
                             CAIRN_PAGED_BYTES_MAX);
    }
    return CAIRN_OK;
}

void arriving_begin(struct shard_daemon *shard, const struct arriving_kind *kind, uint32_t request,
                    ProtobufCMessage *message)
{
    struct sentence why;
    cairn_status status = judge_arriving(shard, kind, &why);
    struct arriving *arriving = status == CAIRN_OK ? calloc(1, sizeof *arriving) : NULL;
    if (arriving == NULL) {
        if (status == CAIRN_OK) status = fail_with(&why, CAIRN_ERR_NO_MEMORY, "out of memory");
        answer_arriving(shard, kind, request, status, &why);
        message_free(message);
        return;
    }
    arriving->kind = kind;
    arriving->shard = shard;
    arriving->request = request;
    arriving->message = message;
    TAILQ_INSERT_TAIL(&shard->arriving, arriving, link);
    status = set_paged(arriving, &why);
    if (status != CAIRN_OK)
        arriving_end(shard, arriving, status, &why);
    else if (paged_whole(arriving->paged, CAIRN_ARRIVING_PAGED))
        go_on(shard, arriving);
}

/* Handles a page of a message that arrives in pages, or of such a message that was refused. */
static void on_page(struct shard_daemon *shard, struct request asked, const void *message)
{
    const Cairn__Page *page = message;
    struct arriving *arriving;
    TAILQ_FOREACH (arriving, &shard->arriving, link)
        if (arriving->request == asked.number) break;
    if (arriving == NULL) return; // the page belongs to a message that was refused
    const cairn_status status = arriving->phase == CAIRN_ARRIVING_PAGES
                                    ? paged_add(arriving->paged, CAIRN_ARRIVING_PAGED, page)
                                    : CAIRN_ERR_PROTOCOL;
    if (status != CAIRN_OK) {
        struct sentence why;
        sentence_set(&why, "%s: page at %" PRIu64 " of part %u does not follow those before",
                     arriving->kind->name, page->offset, page->what);
        arriving_end(shard, arriving, status, &why);
    } else if (paged_whole(arriving->paged, CAIRN_ARRIVING_PAGED)) {
        go_on(shard, arriving);
    }
}

/* Answers a probe. Any answer shows that this shard is alive. */
static void on_probe(struct shard_daemon *shard, struct request asked, const void *message)
{
    (void)message;
    session_answer(shard, &asked, CAIRN_OK, NULL);
}

const struct shard_module session_module = {
    .messages = (const struct shard_message[]) { { CAIRN_MSG_PAGE, .ask_shard = on_page },
                                                 { CAIRN_MSG_PROBE, .ask_shard = on_probe },
                                                 { 0 } },
};

/* ==== modules ==== */

void shard_tell(struct shard_job *job, enum shard_event event)
{
    for (size_t i = 0; i < shard_module_count; i++)
        if (shard_modules[i]->on[event] != NULL) shard_modules[i]->on[event](job);
}

/* Calls the ticks of all modules. The timer does not repeat; it is started again if any module
 * waits for something. */
static void on_tick(uv_timer_t *timer)
{
    struct shard_daemon *shard = timer->data;
    const uint64_t now_ms = uv_now(shard->loop);
    bool waits = false;
    for (struct shard_job *job = shard->jobs; job != NULL; job = job->next)
        for (size_t i = 0; i < shard_module_count; i++)
            if (shard_modules[i]->tick != NULL && shard_modules[i]->tick(job, now_ms)) waits = true;
    if (waits) shard_wake(shard);
}

void shard_wake(struct shard_daemon *shard)
{
    if (shard->closing || uv_is_active((uv_handle_t *)&shard->tick_timer)) return;
    uv_timer_start(&shard->tick_timer, on_tick, CAIRN_SHARD_TICK_MS, 0);
}

/* ==== job ==== */

struct shard_job *shard_job_find(struct shard_daemon *shard, uint64_t number)
{
    struct shard_job *job = shard->jobs;
    while (job != NULL && (job->number != number || job->state == CAIRN_JOB_LEAVING || job->staged))
        job = job->next;
    return job;
}

size_t shard_payload_max(const struct shard_job *job)
{
    return CAIRN_PAYLOAD_MAX(job->spec.group_count, job->spec.tensor_count,
                             job->spec.client_state_max);
}

struct compute *shard_job_home(const struct shard_job *job, uint64_t local_elem)
{
    const bool is_on_device = !job->planes.parked && local_elem < job->planes.host_from;
    return is_on_device ? &job->shard->device : &job->shard->host;
}

void shard_job_busy(struct shard_job *job)
{
    job->busy++;
}

void shard_job_idle(struct shard_job *job)
{
    assert(job->busy > 0);
    if (--job->busy == 0) job->shard->up->unused(job);
}

void shard_job_settle(struct shard_job *job)
{
    job->shard->up->settle(job);
}

void shard_job_fault(struct shard_job *job, const char *why)
{
    job->shard->up->fault(job, why);
}

bool shard_job_failed(struct shard_job *job, cairn_status status, const struct sentence *why)
{
    if (status == CAIRN_OK) return false;
    const bool all = home_has_failed(job->compute->home);
    for (struct shard_job *other = job->shard->jobs; other != NULL; other = other->next) {
        const bool is_hit = other == job || (all && other->compute == job->compute);
        if (is_hit && other->state != CAIRN_JOB_LOADING) shard_job_fault(other, why->text);
    }
    return true;
}

bool shard_job_run_failed(struct shard_job *job, const struct work_run *run)
{
    struct sentence why;
    if (run->status == CAIRN_OK) return false;
    compute_why(run->compute, &why);
    return shard_job_failed(job, run->status, &why);
}

struct shard_job *shard_job_find_part(struct shard_daemon *shard, uint64_t number,
                                      uint64_t generation)
{
    struct shard_job *job = shard->jobs;
    while (job != NULL && (job->number != number || job->generation != generation ||
                           job->state == CAIRN_JOB_LEAVING))
        job = job->next;
    return job;
}
